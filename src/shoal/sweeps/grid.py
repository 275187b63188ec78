"""The runs of a sweep: what its file says, completed by a paper, checked before anything runs."""

import functools
import hashlib
import json
from collections.abc import Iterator
from itertools import product
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
from shoal.sweeps.expressions import evaluate
from shoal.sweeps.written import Value, Written, parse


class Sweep(NamedTuple):
    """Runs of one paper: every setting with every seed, in this order."""

    paper: Paper
    given: tuple[dict[str, Value], ...]  # what the file says of each setting
    settings: tuple[Any, ...]  # the same, complete and checked
    varied: tuple[str, ...]  # names whose values differ
    written: Written  # what the file says besides: seeds, probes, theorems

    @property
    def num_runs(self) -> int:
        """Settings times seeds."""
        return len(self.settings) * len(self.written.seeds)

    def run(self, number: int) -> tuple[int, int]:
        """Position of a run's setting, and its seed."""
        where, which = divmod(number, len(self.written.seeds))
        return where, self.written.seeds[which]


def from_text(text: str) -> Sweep:
    """The sweep of a file's text; refuses, with a reason, what cannot be run."""
    return listed(parse(text))


def listed(written: Written) -> Sweep:
    """The runs of what a file says, each setting complete and checked."""
    paper = paper_of(written.paper)
    given = tuple(_points(paper, written))
    made = tuple(_complete(paper, values) for values in given)
    _check_probes(paper, made[0], written.probes)
    for key in written.theorems:
        theorem = theorem_of(paper, key)
        for setting in made:
            require_method(setting, theorem)
            require_covered(paper, setting, theorem)
    varied = [name for name in given[0] if any(v[name] != given[0][name] for v in given)]
    return Sweep(paper, given, made, tuple(varied), written)


def _points(paper: Paper, written: Written) -> Iterator[dict[str, Value]]:
    """Every point of the grid, with what is derived from it."""
    defaults = paper.setting._asdict()
    for corner in product(*written.axes):
        values = dict(written.constant)
        for part in corner:
            values |= part
        for name, expression in written.derived.items():
            values[name] = evaluate(expression, defaults | values)
        yield values


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
        sweep.written.precision,
        sweep.written.probes,
        sweep.written.theorems,
        _version(sweep.paper.key),
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
