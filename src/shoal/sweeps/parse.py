"""Read the file of a sweep. It is checked without JAX, so that mistakes are reported at once."""

import graphlib
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InputError, nearest
from shoal.files import read_regular
from shoal.sweeps.expressions import evaluate, names_in

LONGEST_FILE = 2**16  # bytes
LONGEST_AXIS = 100_000
MOST_NAMES = 100
LARGEST = 2**53  # Whole number.
DEEPEST = 4  # Tables within tables.
# tomllib takes quadratic time for keys with many dots; this begins at whole words, so it is linear
MANY_DOTS = re.compile(r"(?<![^\s.,=\[\]#])(?:[^\s.,=\[\]#]++\s*+\.\s*+){20}")
MOST_RUNS = 100_000  # Unless the file's budget allows more.
TABLES = ("set", "axes", "derived", "zip", "budget")
KEYS = ("paper", "seeds", "precision", "probes", "certify", *TABLES)
Value = int | float | str | bool
Axis = list[dict[str, Value]]
"""Points of an axis, each with a value for one name or, zipped, for several."""


class SweepFile(NamedTuple):
    """The content of a sweep's file; names are not yet compared with a paper's settings."""

    paper: str  # A key, or the path of a Python file.
    constant: dict[str, Value]
    axes: list[Axis]
    derived: dict[str, str]  # Expressions, each after those that it needs.
    seeds: tuple[int, ...]
    precision: str
    probes: tuple[str, ...]
    theorems: tuple[str, ...]
    hours: float  # No new work is started after this time.
    text: str  # Of the file.

    @property
    def names(self) -> tuple[str, ...]:
        """All settings that the file names."""
        return (*self.constant, *(name for axis in self.axes for name in axis[0]), *self.derived)

    @property
    def num_runs(self) -> int:
        """Settings times seeds."""
        return math.prod(map(len, self.axes)) * len(self.seeds)


def read(path: Path) -> SweepFile:
    """Read a TOML file."""
    try:
        return parse(read_regular(path, follow=True, most=LONGEST_FILE + 1).decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r} ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise InputError(f"{str(path)!r} is not text in UTF-8.") from None


def parse(text: str) -> SweepFile:
    """Read the text of a sweep; refuse, with a reason, what no paper could run."""
    table = _loaded(text)
    _require_known(table, KEYS, "a sweep")
    if not isinstance(table.get("paper"), str):
        raise InputError("a sweep must name its paper: paper = 'wu2023'.")
    constant, derived, budget = (_table(table, name) for name in ("set", "derived", "budget"))
    _require_known(budget, ("runs", "hours"), "[budget]")
    hours = budget.get("hours", math.inf)
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not hours > 0:
        raise InputError(f"budget hours={hours!r}: expected a positive number.")
    precision = table.get("precision", "float64")
    if precision not in ("float64", "float32"):
        raise InputError(f"precision={precision!r}: expected float64 or float32.")
    groups = [*({k: v} for k, v in _table(table, "axes").items()), *_zips(table)]
    if sum(map(len, [constant, derived, *groups])) > MOST_NAMES:
        raise InputError(f"a sweep may name at most {MOST_NAMES} settings.")
    seeds = _seeds(table.get("seeds", [0]))
    for name, value in constant.items():
        if not _is_value(value):
            raise InputError(f"[set] {name}: expected a finite number or a word.")
    axes = _axes(groups, constant, len(seeds), budget.get("runs", MOST_RUNS))
    return SweepFile(
        paper=table["paper"],
        constant=constant,
        axes=axes,
        derived=_in_order(derived, constant, axes),
        seeds=seeds,
        precision=precision,
        probes=_list_of_names(table, "probes"),
        theorems=_list_of_names(table, "certify"),
        hours=float(hours),
        text=text,
    )


def _loaded(text: str) -> dict[str, Any]:
    """TOML of ordinary size: no long keys, deep tables or giant numbers."""
    if len(text) > LONGEST_FILE:
        raise InputError(f"a sweep is a file of at most {LONGEST_FILE // 1024} KiB.")
    if MANY_DOTS.search(text):
        raise InputError("the sweep cannot be read as TOML: a key has too many dots.")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InputError("the sweep cannot be read as TOML: it is too deeply nested.") from None
    except ValueError as error:
        raise InputError(f"the sweep is not TOML: {str(error)[:200]}.") from None
    level: list[Any] = [table]
    for _ in range(DEEPEST):
        inner = [x for part in level for x in (part.values() if isinstance(part, dict) else part)]
        if any(type(x) is int and abs(x) > LARGEST for x in inner):
            raise InputError(f"the sweep has a whole number beyond {LARGEST:,}.")
        level = [x for x in inner if isinstance(x, dict | list)]
    if level:
        raise InputError("the sweep is too deeply nested.")
    return table


def _require_known(table: dict[str, Any], known: Iterable[str], where: str) -> None:
    for name in table:
        if name not in known:
            raise InputError(f"{where} has no key {name!r}; {nearest(name, known)}")


def _table(table: dict[str, Any], name: str) -> dict[str, Any]:
    part = table.get(name, {})
    if not isinstance(part, dict):
        raise InputError(f"[{name}] must be a table of names and values.")
    return part


def _zips(table: dict[str, Any]) -> list[dict[str, Any]]:
    groups = table.get("zip", [])
    if not isinstance(groups, list) or not all(isinstance(g, dict) and g for g in groups):
        raise InputError("zipped axes are tables of equally long lists, each under [[zip]].")
    return groups


def _list_of_names(table: dict[str, Any], key: str) -> tuple[str, ...]:
    names = table.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{key} must be a list of names.")
    return tuple(dict.fromkeys(names))


def _seeds(value: Any) -> tuple[int, ...]:
    """Seeds as a list, or a range such as ``"0-9"``."""
    if isinstance(value, str) and (ends := re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", value)):
        first, last = map(int, ends.groups())
        if last - first < LONGEST_AXIS:
            value = list(range(first, last + 1))
    fits = isinstance(value, list) and 0 < len(value) <= LONGEST_AXIS
    if not fits or not all(type(seed) is int and 0 <= seed < 2**31 for seed in value):
        raise InputError(f"seeds={str(value)[:60]}: expected a list such as [0, 1, 2], or '0-9'.")
    return tuple(dict.fromkeys(value))


def _is_value(value: Any) -> bool:
    return isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))


def _axes(
    groups: list[dict[str, Any]], constant: dict[str, Value], num_seeds: int, most: Any
) -> list[Axis]:
    """All axes; no more are made once there are more runs than the budget allows."""
    if type(most) is not int or not 1 <= most <= 10**7:
        msg = f"budget runs={str(most)[:60]}: expected a whole number of at most ten million."
        raise InputError(msg)
    runs, names, axes = _within(num_seeds, most), set(constant), []
    for group in groups:
        if twice := names & group.keys():
            msg = f"{min(twice)} is given twice: in [set], as an axis or as a zipped axis."
            raise InputError(msg)
        names |= group.keys()
        columns = {name: _values(name, values) for name, values in group.items()}
        if len({len(values) for values in columns.values()}) > 1:
            lengths = ", ".join(f"{name} has {len(v)}" for name, v in columns.items())
            raise InputError(f"zipped axes must be equally long: {lengths}.")
        points = list(zip(*columns.values(), strict=True))
        runs = _within(runs * len(points), most)
        axes.append([dict(zip(columns, point, strict=True)) for point in points])
    return axes


def _within(runs: int, most: int) -> int:
    if runs > most:
        msg = f"these axes make {runs:,} runs or more, and the budget is {most:,}; "
        raise InputError(msg + "shorten an axis, or raise budget.runs.")
    return runs


def _values(name: str, values: Any) -> list[Value]:
    """Values of an axis: a list, or a range with ``from``, ``to`` and ``count``."""
    if isinstance(values, dict):
        return _range(name, values)
    if not isinstance(values, list) or not 0 < len(values) <= LONGEST_AXIS:
        msg = f"axis {name}: expected a list of values, or {{ from = 1, to = 8, count = 4 }}."
        raise InputError(msg)
    if not all(map(_is_value, values)):
        raise InputError(f"axis {name}: expected finite numbers or words, not lists or tables.")
    if len({(type(v), v) for v in values}) < len(values):
        raise InputError(f"axis {name}: duplicate value.")
    return values


def _range(name: str, values: dict[str, Any]) -> list[Value]:
    _require_known(values, ("from", "to", "count", "log"), f"axis {name}")
    low, high, count, log = (values.get(key, "") for key in ("from", "to", "count", "log"))
    if type(count) is not int or not 2 <= count <= LONGEST_AXIS:
        msg = f"axis {name}: a range needs from, to, and a count of 2 to {LONGEST_AXIS:,}."
        raise InputError(msg)
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in (low, high)):
        raise InputError(f"axis {name}: a range needs numbers from and to.")
    if not max(abs(low), abs(high)) < 1e100 or low >= high or (log and low < 1e-100):
        raise InputError(f"axis {name}: expected from < to{', both positive' if log else ''}.")
    shares = [k / (count - 1) for k in range(count)]
    points = [low * (high / low) ** s if log else low + (high - low) * s for s in shares]
    points[0], points[-1] = low, high
    if isinstance(low, int) and isinstance(high, int):  # whole ends mean whole numbers
        points = list(dict.fromkeys(round(p) for p in points))
    return points


def _in_order(
    derived: dict[str, Any], constant: dict[str, Value], axes: list[Axis]
) -> dict[str, str]:
    """Expressions, each after those that it needs, tried on the first point of the grid."""
    first = constant | {name: value for axis in axes for name, value in axis[0].items()}
    if twice := first.keys() & derived.keys():
        msg = f"{min(twice)} is given twice: it is derived, and an axis or in [set] as well."
        raise InputError(msg)
    needs = {name: names_in(text) & derived.keys() for name, text in derived.items()}
    try:
        order = list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        circle = ", ".join(dict.fromkeys(error.args[1]))
        raise InputError(f"[derived] names depend on each other in a circle: {circle}.") from None
    for name in order:
        if (value := evaluate(derived[name], first, partly=True)) is not None:
            first[name] = value
    return {name: derived[name] for name in order}
