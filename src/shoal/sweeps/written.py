"""What the file of a sweep says: checked without JAX, so that what is wrong is told at once."""

import graphlib
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InputError, nearest
from shoal.sweeps.expressions import evaluate, names_in

LONGEST_FILE = 2**16  # bytes
LONGEST_AXIS = 100_000
MOST_NAMES = 100
LARGEST = 2**53  # whole number
DEEPEST = 4  # tables within tables
# keys with many dots take tomllib quadratic time
MANY_DOTS = re.compile(r"(?:[^\s.,=\[\]#]+\s*\.\s*){20}")
MOST_RUNS = 100_000  # unless the file's budget says more
KEYS = ("paper", "seeds", "precision", "probes", "certify", "set", "axes", "zip", "derived")
BUDGET = ("runs", "hours")
Value = int | float | str | bool
Axis = list[dict[str, Value]]
"""One thing that is varied: its points, each with a value for one name or, zipped, for several."""


class Written(NamedTuple):
    """A sweep as it is written: names are not yet compared with a paper's."""

    paper: str
    constant: dict[str, Value]
    axes: list[Axis]
    derived: dict[str, str]  # each after those that it needs
    seeds: tuple[int, ...]
    precision: str
    probes: tuple[str, ...]
    theorems: tuple[str, ...]
    hours: float  # after which no new work is begun
    text: str  # of the file


def read(path: Path) -> Written:
    """What a TOML file says."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_FILE + 1)
        return parse(content.decode())
    except OSError as error:
        msg = f"cannot read {str(path)!r} ({error.strerror})."
        raise InputError(msg) from None
    except UnicodeDecodeError:
        msg = f"{str(path)!r} is not text in UTF-8."
        raise InputError(msg) from None


def parse(text: str) -> Written:
    """What the text of a sweep says; refuses, with a reason, what no paper could run."""
    table = _loaded(text)
    _only(table, (*KEYS, "budget"), "a sweep")
    if not isinstance(table.get("paper"), str):
        msg = "a sweep says which paper it is about: paper = 'wu2023'."
        raise InputError(msg)
    budget = _table(table, "budget")
    _only(budget, BUDGET, "[budget]")
    hours = budget.get("hours", math.inf)
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not hours > 0:
        msg = f"budget hours={hours!r}: expected a positive number."
        raise InputError(msg)
    precision = table.get("precision", "float64")
    if precision not in ("float64", "float32"):
        msg = f"precision={precision!r}: expected float64 or float32."
        raise InputError(msg)
    if sum(map(len, _tables(table))) > MOST_NAMES:
        msg = f"a sweep speaks of at most {MOST_NAMES} settings."
        raise InputError(msg)
    seeds, constant = _seeds(table.get("seeds", [0])), _constant(table)
    axes = _axes(table, seeds, budget)
    return Written(
        paper=table["paper"],
        constant=constant,
        axes=axes,
        derived=_derived(table, constant, axes),
        seeds=seeds,
        precision=precision,
        probes=_names(table, "probes"),
        theorems=_names(table, "certify"),
        hours=float(hours),
        text=text,
    )


def _loaded(text: str) -> dict[str, Any]:
    """TOML of ordinary size: no long keys, deep tables or giant numbers."""
    if len(text) > LONGEST_FILE:
        msg = f"a sweep is a file of at most {LONGEST_FILE // 1024} KiB."
        raise InputError(msg)
    if MANY_DOTS.search(text):
        msg = "the sweep is not TOML that can be read: a key with too many dots."
        raise InputError(msg)
    try:
        table = tomllib.loads(text)
    except RecursionError:
        msg = "the sweep is not TOML that can be read: too deeply nested."
        raise InputError(msg) from None
    except ValueError as error:
        msg = f"the sweep is not TOML: {str(error)[:200]}."
        raise InputError(msg) from None
    level: list[Any] = [table]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for part in level:
            for value in part.values() if isinstance(part, dict) else part:
                if isinstance(value, dict | list):
                    inner.append(value)
                elif type(value) is int and abs(value) > LARGEST:
                    msg = f"the sweep has a whole number beyond {LARGEST:,}."
                    raise InputError(msg)
        level = inner
    if level:
        msg = "the sweep is too deeply nested."
        raise InputError(msg)
    return table


def _only(table: dict[str, Any], known: Iterable[str], where: str) -> None:
    for name in table:
        if name not in known:
            msg = f"{where} has no key {name!r}; {nearest(name, known)}"
            raise InputError(msg)


def _table(table: dict[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        msg = f"[{name}] must be a table of names and values."
        raise InputError(msg)
    return found


def _names(table: dict[str, Any], key: str) -> tuple[str, ...]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
        msg = f"{key} must be a list of names."
        raise InputError(msg)
    return tuple(dict.fromkeys(found))


def _seeds(value: Any) -> tuple[int, ...]:
    """Seeds as a list, or words such as ``0-9``."""
    if isinstance(value, str) and (ends := re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", value)):
        first, last = map(int, ends.groups())
        if last - first < LONGEST_AXIS:
            value = list(range(first, last + 1))
    fine = isinstance(value, list) and 0 < len(value) <= LONGEST_AXIS
    if not fine or not all(type(s) is int and 0 <= s < 2**31 for s in value):
        msg = f"seeds={str(value)[:60]}: expected a list such as [0, 1, 2], or '0-9'."
        raise InputError(msg)
    return tuple(dict.fromkeys(value))


def _axes(table: dict[str, Any], seeds: tuple[int, ...], budget: dict[str, Any]) -> list[Axis]:
    """All axes; more runs than the budget allows are refused before their points are made."""
    most = budget.get("runs", MOST_RUNS)
    if type(most) is not int or not 1 <= most <= 10**7:
        msg = f"budget runs={str(most)[:60]}: expected a whole number of at most ten million."
        raise InputError(msg)
    found: list[Axis] = []
    seen: set[str] = set(_table(table, "set"))
    runs = 1

    def multiply(length: int) -> None:
        nonlocal runs
        runs *= length
        if runs > most:
            msg = (
                f"these axes make {runs:,} runs or more, and the budget is {most:,}; shorten an "
                "axis, or raise budget.runs."
            )
            raise InputError(msg)

    multiply(len(seeds))

    def claim(name: str) -> None:
        if name in seen:
            msg = f"{name} is given twice: an axis, a zipped axis and [set] exclude each other."
            raise InputError(msg)
        seen.add(name)

    for name, values in _table(table, "axes").items():
        claim(name)
        multiply(_length(name, values))
        found.append([{name: v} for v in _values(name, values)])
    for group in _groups(table):
        multiply(_length(*next(iter(group.items()))))
        columns = {}
        for name, values in group.items():
            claim(name)
            columns[name] = _values(name, values)
        if len({len(v) for v in columns.values()}) > 1:
            said = ", ".join(f"{k} has {len(v)}" for k, v in columns.items())
            msg = f"zipped axes must be equally long: {said}."
            raise InputError(msg)
        found.append(
            [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        )
    return found


def _groups(table: dict[str, Any]) -> list[dict[str, Any]]:
    groups = table.get("zip", [])
    if not isinstance(groups, list) or not all(isinstance(g, dict) and g for g in groups):
        msg = "zipped axes are tables of equally long lists, each under [[zip]]."
        raise InputError(msg)
    return groups


def _tables(table: dict[str, Any]) -> list[dict[str, Any]]:
    """All that speak of settings."""
    return [*(_table(table, name) for name in ("set", "axes", "derived")), *_groups(table)]


def _length(name: str, values: Any) -> int:
    """Points that an axis asks for, before they are made."""
    if isinstance(values, dict):
        count = values.get("count")
        if type(count) is not int or not 2 <= count <= LONGEST_AXIS:
            msg = (
                f"axis {name}: a range needs numbers from and to, and a count of 2 to "
                f"{LONGEST_AXIS:,}."
            )
            raise InputError(msg)
        return count
    if not isinstance(values, list) or not 0 < len(values) <= LONGEST_AXIS:
        msg = f"axis {name}: expected a list of values, or {{ from = 1, to = 8, count = 4 }}."
        raise InputError(msg)
    return len(values)


def _values(name: str, values: Any) -> list[Value]:
    """The points of an axis: a list, or a range with ``from``, ``to`` and ``count``."""
    count = _length(name, values)
    if isinstance(values, dict):
        return _range(name, values, count)
    if not all(map(_plain, values)):
        msg = f"axis {name}: expected finite numbers or words, not lists or tables."
        raise InputError(msg)
    if len({(type(v), v) for v in values}) < len(values):
        msg = f"axis {name}: a value is there twice."
        raise InputError(msg)
    return values


def _plain(value: Any) -> bool:
    return isinstance(value, int | str | bool) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _range(name: str, values: dict[str, Any], count: int) -> list[Value]:
    _only(values, ("from", "to", "count", "log"), f"axis {name}")
    low, high = (values.get(k, "") for k in ("from", "to"))
    log = values.get("log", False)
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high)):
        msg = f"axis {name}: a range needs numbers from and to."
        raise InputError(msg)
    if not max(abs(low), abs(high)) < 1e100 or low >= high or (log and low < 1e-100):
        msg = f"axis {name}: expected from < to" + (", both positive." if log else ".")
        raise InputError(msg)
    shares = [k / (count - 1) for k in range(count)]
    if log:
        points = [low * (high / low) ** s for s in shares]
    else:
        points = [low + (high - low) * s for s in shares]
    points[0], points[-1] = low, high
    if isinstance(low, int) and isinstance(high, int):  # whole ends mean whole numbers
        points = list(dict.fromkeys(round(p) for p in points))
    return points


def _constant(table: dict[str, Any]) -> dict[str, Value]:
    constant = _table(table, "set")
    for name, value in constant.items():
        if not _plain(value):
            msg = f"[set] {name}: expected a finite number or a word."
            raise InputError(msg)
    return constant


def _derived(table: dict[str, Any], constant: dict[str, Value], axes: list[Axis]) -> dict[str, str]:
    """Expressions, each after those that it needs, tried on the first point of the grid."""
    derived = _table(table, "derived")
    first = constant | {name: value for axis in axes for name, value in axis[0].items()}
    for name in derived:
        if name in first:
            msg = f"{name} is given twice: it is derived, and an axis or in [set] as well."
            raise InputError(msg)
    order = _order(derived)
    for name in order:
        if (value := evaluate(derived[name], first, partly=True)) is not None:
            first[name] = value
    return {name: derived[name] for name in order}


def _order(derived: dict[str, Any]) -> list[str]:
    """Derived names, each after those that it needs."""
    needs = {name: names_in(text) & derived.keys() for name, text in derived.items()}
    try:
        return list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        msg = f"[derived] goes round in a circle: {', '.join(dict.fromkeys(error.args[1]))}."
        raise InputError(msg) from None
