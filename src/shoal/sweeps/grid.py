"""The runs of a sweep: every setting of its grid, complete and checked, with every seed."""

import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.disk.cache import code_version, source_of
from shoal.errors import InputError, nearest
from shoal.lab.engine import stride_of
from shoal.lab.own import OwnModel
from shoal.lab.paper import Paper
from shoal.lab.probes import probe_names
from shoal.lab.setup import (
    DATA,
    Setup,
    completed,
    key_of,
    make_data,
    paper_setup,
    refuse_giants,
    require_precision,
)
from shoal.lab.theorem import require_covered
from shoal.papers import BUILT_IN, target_of
from shoal.runtime import in_float64
from shoal.sweeps.expressions import evaluate
from shoal.sweeps.parse import SweepFile, Value
from shoal.workers import absolute_target


class Sweep(NamedTuple):
    """Runs of one paper: every setting with every seed, in this order."""

    file: SweepFile
    paper: Paper | OwnModel
    given: tuple[dict[str, Value], ...]  # The file's values of each setting.
    settings: tuple[Any, ...]  # The same, complete and checked.
    programs: dict[Any, Setup]  # For each compiled program a setup of zeros (`blank_setup`).
    code: str  # Version of the code that decides the numbers.

    @property
    def varied(self) -> tuple[str, ...]:
        """Settings whose values differ."""
        first = self.given[0]
        return tuple(name for name in first if any(v[name] != first[name] for v in self.given))

    def run(self, number: int) -> tuple[int, int]:
        """Position of a run's setting, and its seed."""
        where, which = divmod(number, len(self.file.seeds))
        return where, self.file.seeds[which]

    def key(self, number: int) -> str:
        """The name of a run: a digest of everything that decides its row."""
        where, seed = self.run(number)
        recorded = [self.file.precision, self.file.probes, self.file.theorems, self.code]
        about = [self.paper.key, self.settings[where].asdict(), seed, *recorded]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]

    def row(self, number: int, cells: dict[str, Any]) -> dict[str, Any]:
        """A row of the table: the run's number, key, seed and settings, then its results."""
        where, seed = self.run(number)
        setting = self.settings[where]
        values = {k: getattr(setting, k, value) for k, value in self.given[where].items()}
        return {"number": number, "key": self.key(number), "seed": seed} | values | cells

    def task(self, numbers: tuple[int, ...], size: int) -> dict[str, Any]:
        """A batch as a worker needs it (`batches.run_batch`), in JSON-compatible values."""
        return {
            "paper": absolute_target(self.file.paper),
            "runs": [[self.given[where], seed] for where, seed in map(self.run, numbers)],
            "size": size,
            "precision": self.file.precision,
            "probes": self.file.probes,
            "theorems": self.file.theorems,
        }


@in_float64
def make_sweep(file: SweepFile) -> Sweep:
    """List the runs of a file; refuse, with a reason, what cannot be run."""
    paper = target_of(file.paper)
    given = tuple(_points(paper, file))
    programs: dict[Any, Setup] = {}
    settings = tuple(_checked(paper, values, file, programs) for values in given)
    _require_probes(file, paper, programs[program_of(settings[0])])
    own = paper.file if isinstance(paper, OwnModel) else paper.setting
    source = "" if paper.key in BUILT_IN else source_of(own)
    return Sweep(file, paper, given, settings, programs, code_version(paper.key) + source)


def _points(paper: Paper | OwnModel, file: SweepFile) -> Iterator[dict[str, Value]]:
    """Every point of the grid, with the values derived from it."""
    defaults = paper.defaults() if isinstance(paper, OwnModel) else paper.setting().asdict()
    for corner in itertools.product(*file.axes):
        values = functools.reduce(operator.or_, corner, dict(file.constant))
        for name, expression in file.derived.items():
            values[name] = evaluate(expression, defaults | values)
        yield values


def complete_setting(paper: Paper, values: dict[str, Value]) -> Any:
    """A setting with all its sizes. Only data from files are made to learn their sizes."""
    setting = completed(paper, values)
    return paper_setup(paper, values).setting if setting.reads_files() else setting


def _checked(
    paper: Paper | OwnModel, values: dict[str, Value], file: SweepFile, programs: dict[Any, Setup]
) -> Any:
    """The setting of some values, checked; its program is added to those that are known."""
    try:
        blank = None
        if isinstance(paper, OwnModel):
            blank = paper.setup(values, seeds=file.seeds, precision=file.precision).rows([0])
            setting = blank.setting
        else:
            setting = complete_setting(paper, values)
        program = program_of(setting)
        if new := program not in programs:
            require_precision(file.precision, setting)
            refuse_giants(setting, 1)
            programs[program] = blank_setup(setting) if blank is None else blank.with_steps(1.0)
            programs[program].trained  # noqa: B018 (refuses unknown names)
        for theorem in map(paper.theorem_of, file.theorems):
            if new or not theorem.covers(setting):
                require_covered(programs[program].replace(setting=setting), theorem)
    except InputError as error:
        where = ", ".join(f"{name}={value}" for name, value in values.items())
        raise InputError(f"{error} (at {where})") from None
    return setting


def program_of(setting: Any) -> Any:
    """Settings with the same one train in one compiled call."""
    return setting.split()[0], setting.num_steps


@in_float64
def blank_setup(setting: Any) -> Setup:
    """A setup of one run with the right shapes, and zeros for data and weights."""

    def zeros(leaf: Any) -> np.ndarray:
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)

    def data() -> Any:
        key = key_of(setting.data_seed, DATA)
        return setting.data(key), setting.test_data(key)

    shapes = make_data(setting) if setting.reads_files() else jax.eval_shape(data)
    problem, held_out = jax.tree.map(zeros, shapes)
    params0 = jax.tree.map(lambda leaf: zeros(leaf)[None], setting.network().spec)
    return Setup(setting, problem, params0, (0,), np.ones(1), held_out)


def _require_probes(file: SweepFile, paper: Paper | OwnModel, setup: Setup) -> None:
    """Refuse probes, asked for or needed by a theorem, that the model does not have."""
    needed = {name: key for key in file.theorems for name in paper.theorem_of(key).needs}
    known = probe_names(setup) if file.probes or needed else ()
    for name, stride in map(stride_of, file.probes):
        if name not in known:
            raise InputError(f"a sweep has no probe {name!r}; {nearest(name, known)}")
        if stride is not None:
            raise InputError(f"{name}@{stride}: a sweep keeps a probe's last value; leave @ out.")
    for name, key in needed.items():
        if name not in known:
            raise InputError(f"{key} needs the probe {name}, which this model does not have.")
