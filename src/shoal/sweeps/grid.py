"""The file of a sweep: what is varied, checked whole before anything runs."""

import functools
import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from shoal import settings
from shoal.errors import InputError, nearest
from shoal.experiments import (
    ITERATES,
    Paper,
    prepare,
    probe_names,
    refuse_giants,
    require_covered,
    require_method,
    require_whole_records,
    stride_of,
    theorem_of,
)
from shoal.keeping import code_version
from shoal.papers import paper_of
from shoal.sweeps.expressions import evaluate, names_in

LONGEST_FILE = 2**20  # bytes
LONGEST_AXIS = 100_000
MOST_RUNS = 100_000  # unless the file's budget says more
KEYS = ("paper", "seeds", "precision", "probes", "certify", "set", "axes", "zip", "derived")
BUDGET = ("runs", "hours")
Value = int | float | str | bool


class Sweep(NamedTuple):
    """Runs of one paper: every setting with every seed, in this order."""

    paper: Paper
    given: tuple[dict[str, Value], ...]  # what the file says of each setting
    settings: tuple[Any, ...]  # the same, complete and checked
    varied: tuple[str, ...]  # names whose values differ
    seeds: tuple[int, ...]
    precision: str
    probes: tuple[str, ...]
    theorems: tuple[str, ...]
    hours: float  # after which no new work is begun
    text: str  # of the file

    @property
    def num_runs(self) -> int:
        """Settings times seeds."""
        return len(self.settings) * len(self.seeds)

    def run(self, number: int) -> tuple[int, int]:
        """Position of a run's setting, and its seed."""
        where, which = divmod(number, len(self.seeds))
        return where, self.seeds[which]


def read(path: Path) -> Sweep:
    """A sweep from a TOML file."""
    try:
        if path.stat().st_size > LONGEST_FILE:
            msg = f"{str(path)!r} is longer than a mebibyte; no sweep needs that."
            raise InputError(msg)
        return from_text(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"cannot read {str(path)!r} ({error.strerror})."
        raise InputError(msg) from None
    except UnicodeDecodeError:
        msg = f"{str(path)!r} is not text in UTF-8."
        raise InputError(msg) from None


def from_text(text: str) -> Sweep:
    """A sweep from the text of its file; refuses, with a reason, what cannot be run."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"the sweep is not TOML: {error}."
        raise InputError(msg) from None
    except RecursionError:
        msg = "the sweep is not TOML that can be read: too deeply nested."
        raise InputError(msg) from None
    _only(table, (*KEYS, "budget"), "a sweep")
    if not isinstance(table.get("paper"), str):
        msg = "a sweep says which paper it is about: paper = 'wu2023'."
        raise InputError(msg)
    paper = paper_of(table["paper"])
    budget = _table(table, "budget")
    _only(budget, BUDGET, "[budget]")
    seeds = _seeds(table.get("seeds", [0]))
    axes = _axes(table)
    _count(axes, seeds, budget)
    constant, derived = _table(table, "set"), _table(table, "derived")
    given = tuple(_points(paper, constant, axes, derived))
    made = tuple(_complete(paper, values) for values in given)
    probes = _names(table, "probes")
    theorems = _names(table, "certify")
    precision = table.get("precision", "float64")
    if precision not in ("float64", "float32"):
        msg = f"precision={precision!r}: expected float64 or float32."
        raise InputError(msg)
    _check_probes(paper, made[0], probes)
    for key in theorems:
        theorem = theorem_of(paper, key)
        for setting in made:
            require_method(setting, theorem)
            require_covered(paper, setting, theorem)
    varied = [name for name in given[0] if any(v[name] != given[0][name] for v in given)]
    hours = budget.get("hours", math.inf)
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not hours > 0:
        msg = f"budget hours={hours!r}: expected a positive number."
        raise InputError(msg)
    return Sweep(
        paper, given, made, tuple(varied), seeds, precision, probes, theorems, float(hours), text
    )


# ---------------------------------------------------------------------------------------- checks


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
    """Seeds as a list, a number of them, or words such as ``0-9``."""
    if isinstance(value, str):
        first, dash, last = value.partition("-")
        if dash and first.isdigit() and last.isdigit() and int(last) - int(first) < LONGEST_AXIS:
            value = list(range(int(first), int(last) + 1))
    fine = isinstance(value, list) and 0 < len(value) <= LONGEST_AXIS
    if not fine or not all(type(s) is int and 0 <= s < 2**31 for s in value):
        msg = f"seeds={str(value)[:60]}: expected a list such as [0, 1, 2], or '0-9'."
        raise InputError(msg)
    return tuple(dict.fromkeys(value))


Axis = list[dict[str, Value]]
"""One thing that is varied: its points, each with a value for one name or, zipped, for several."""


def _axes(table: dict[str, Any]) -> list[Axis]:
    found: list[Axis] = []
    seen: set[str] = set(_table(table, "set"))

    def claim(name: str) -> None:
        if name in seen:
            msg = f"{name} is given twice: an axis, a zipped axis and [set] exclude each other."
            raise InputError(msg)
        seen.add(name)

    for name, values in _table(table, "axes").items():
        claim(name)
        found.append([{name: v} for v in _values(name, values)])
    groups = table.get("zip", [])
    if not isinstance(groups, list) or not all(isinstance(g, dict) and g for g in groups):
        msg = "zipped axes are tables of equally long lists, each under [[zip]]."
        raise InputError(msg)
    for group in groups:
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


def _values(name: str, values: Any) -> list[Value]:
    """The points of an axis: a list, or a range with ``from``, ``to`` and ``count``."""
    if isinstance(values, dict):
        return _range(name, values)
    if not isinstance(values, list) or not 0 < len(values) <= LONGEST_AXIS:
        msg = f"axis {name}: expected a list of values, or {{ from = 1, to = 8, count = 4 }}."
        raise InputError(msg)
    if not all(isinstance(v, int | float | str | bool) for v in values):
        msg = f"axis {name}: expected numbers or words, not lists or tables."
        raise InputError(msg)
    if len({(type(v), v) for v in values}) < len(values):
        msg = f"axis {name}: a value is there twice."
        raise InputError(msg)
    return values


def _range(name: str, values: dict[str, Any]) -> list[Value]:
    _only(values, ("from", "to", "count", "log"), f"axis {name}")
    low, high, count = (values.get(k, "") for k in ("from", "to", "count"))
    log = values.get("log", False)
    fine = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high, count))
    if not fine or type(count) is not int or not 2 <= count <= LONGEST_AXIS:
        msg = f"axis {name}: a range needs numbers from and to, and a count of 2 or more."
        raise InputError(msg)
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high or (log and low <= 0):
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


def _count(axes: list[Axis], seeds: tuple[int, ...], budget: dict[str, Any]) -> None:
    """Refuse more runs than the budget allows, before any is listed."""
    most = budget.get("runs", MOST_RUNS)
    if type(most) is not int or not 1 <= most <= 10**7:
        msg = f"budget runs={most!r}: expected a whole number of at most ten million."
        raise InputError(msg)
    count = math.prod(len(axis) for axis in axes) * len(seeds)
    if count > most:
        msg = (
            f"these axes make {count:,} runs, and the budget is {most:,}; shorten an axis, or "
            "raise budget.runs."
        )
        raise InputError(msg)


def _points(
    paper: Paper, constant: dict[str, Any], axes: list[Axis], derived: dict[str, Any]
) -> Iterator[dict[str, Value]]:
    """Every point of the grid, with what is derived from it."""
    order = _order(derived)
    defaults = paper.setting._asdict()
    for name, value in constant.items():
        if not isinstance(value, int | float | str | bool):
            msg = f"[set] {name}: expected a number or a word."
            raise InputError(msg)
    axis_names = {name for axis in axes for name in axis[0]}
    for name in derived:
        if name in constant or name in axis_names:
            msg = f"{name} is given twice: it is derived, and an axis or in [set] as well."
            raise InputError(msg)
    for corner in product(*axes):
        values = dict(constant)
        for part in corner:
            values |= part
        for name in order:
            values[name] = evaluate(derived[name], defaults | values)
        yield values


def _order(derived: dict[str, Any]) -> list[str]:
    """Derived names, each after those that it needs."""
    needs = {name: names_in(text) & set(derived) for name, text in derived.items()}
    order: list[str] = []
    while len(order) < len(derived):
        ready = [name for name in derived if name not in order and needs[name] <= set(order)]
        if not ready:
            left = ", ".join(name for name in derived if name not in order)
            msg = f"[derived] goes round in a circle: {left}."
            raise InputError(msg)
        order += ready
    return order


def _complete(paper: Paper, values: dict[str, Value]) -> Any:
    try:
        setting = paper.complete(settings.with_values(paper.setting, values, owner=paper.key))
        if setting.problem != paper.setting.problem:  # such data may decide sizes themselves
            setting = prepare(paper, values).setting
        require_whole_records(setting)
        refuse_giants(paper, setting, 1)
    except InputError as error:
        said = ", ".join(f"{k}={v}" for k, v in values.items())
        msg = f"{error} (at {said})"
        raise InputError(msg) from None
    return setting


def _check_probes(paper: Paper, setting: Any, probes: tuple[str, ...]) -> None:
    if not probes:
        return
    known = probe_names(paper, setting)
    for name, stride in map(stride_of, probes):
        if name == ITERATES or name not in known:
            msg = f"{paper.key} has no probe {name!r} for sweeps; {nearest(name, known)}"
            raise InputError(msg)
        if stride is not None:
            msg = f"{name}@{stride}: a sweep keeps what probes say at the end; leave @ out."
            raise InputError(msg)


# ------------------------------------------------------------------------------------- identity


@functools.lru_cache(maxsize=8)
def _version(paper: str) -> str:
    return code_version(paper)


def key_of(sweep: Sweep, number: int) -> str:
    """The name under which a run is kept: what decides its numbers, and the model's code."""
    where, seed = sweep.run(number)
    about = [
        sweep.paper.key,
        sweep.settings[where]._asdict(),
        seed,
        sweep.precision,
        sweep.probes,
        sweep.theorems,
        _version(sweep.paper.key),
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
