"""Many runs of one program in one compiled call: other numbers, data and seeds, equal shapes."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal._typing import Any, Params
from shoal.certificates import Certificate
from shoal.experiments.certifying import usual_step
from shoal.experiments.nouns import Paper, Theorem, trained
from shoal.experiments.preparing import activations, initial_params
from shoal.experiments.running import (
    case_of,
    chosen,
    method_of,
    numbers_of,
    over_seeds,
    program_of,
)
from shoal.models import training_risk
from shoal.problems import Problem
from shoal.training import diverged_at, leg, record, trajectory

MOST = 64
"""Runs in one call: more do not make it faster, and a stop would lose more."""
HELD = 2**24
"""Numbers that the runs of one call may hold together."""


class Program(NamedTuple):
    """What the runs of one call have in common."""

    paper: Paper
    setting: Any  # its numbers that vary are reset
    auto: bool  # the step is chosen by the program
    precision: str
    probes: tuple[str, ...]  # at the end
    theorems: tuple[str, ...]


class Outcome(NamedTuple):
    """What is kept of a run."""

    step_size: float
    step: np.ndarray
    risk: np.ndarray
    diverged_at: int  # -1: it did not
    probes: dict[str, np.ndarray]
    certificates: dict[str, Certificate]


def common(
    paper: Paper,
    setting: Any,
    precision: str,
    probes: tuple[str, ...],
    theorems: tuple[str, ...],
) -> Program:
    """The program of a setting: settings with the same one can run together."""
    shape = program_of(paper, setting)._replace(num_steps=setting.num_steps, every=setting.every)
    defaults = type(setting)._field_defaults
    shape = shape._replace(**{name: defaults[name] for name in paper.numeric})
    return Program(paper, shape, setting.step_size is None, precision, probes, theorems)


def held(program: Program) -> float:
    """Numbers that one run of a program holds, roughly."""
    spec = program.paper.model(program.setting).spec
    weights = sum(leaf.size for leaf in jax.tree.leaves(spec))
    return activations(program.paper, program.setting, weights) + 4.0 * weights


def at_once(program: Program) -> int:
    """How many runs of a program go into one call."""
    return max(1, min(MOST, int(HELD / held(program))))


def run_together(
    program: Program, settings: Sequence[Any], seeds: Sequence[int], count: int
) -> list[Outcome]:
    """Run every setting with its seed, ``count`` of them in a call (the last filled up)."""
    found: list[Outcome] = []
    for first in range(0, len(settings), count):
        some, their = settings[first : first + count], seeds[first : first + count]
        found += _call(program, some, their, count)
    return found


def _call(
    program: Program, settings: Sequence[Any], seeds: Sequence[int], count: int
) -> list[Outcome]:
    paper, precision = program.paper, program.precision
    parts = [_parts(paper, s, seed) for s, seed in zip(settings, seeds, strict=True)]
    parts += [parts[-1]] * (count - len(parts))  # one shape, one program
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *parts)
    data, starts, seed, numbers, values = stacked
    data, starts = trees.cast((data, starts), precision)
    theorems = tuple(t for t in paper.theorems if t.key in program.theorems)
    ended = _runs(
        data,
        starts,
        seed,
        numbers,
        values,
        paper=paper,
        setting=program.setting,
        auto=program.auto,
        precision=precision,
        probes=program.probes,
        theorems=theorems,
        count=count,
    )
    ended = jax.tree.map(np.asarray, ended)
    return [Outcome(**jax.tree.map(lambda x, i=i: x[i], ended)) for i in range(len(settings))]


def _parts(paper: Paper, setting: Any, seed: int) -> tuple:
    values = {name: float(getattr(setting, name)) for name in paper.numeric}
    numbers = numbers_of(paper, setting)
    start = jax.tree.map(lambda x: x[0], _starts(paper, _unnumbered(paper, setting), seed))
    return _data(paper, _untrained(paper, setting)), start, np.uint32(seed), numbers, values


def _unnumbered(paper: Paper, setting: Any) -> Any:
    defaults = type(setting)._field_defaults
    return setting._replace(**{n: defaults[n] for n in (*paper.numeric, "step_size", "num_steps")})


def _untrained(paper: Paper, setting: Any) -> Any:
    """Without what does not make the data."""
    return _unnumbered(paper, setting) if paper.data_alone else setting


@functools.lru_cache(maxsize=4096)
def _starts(paper: Paper, setting: Any, seed: int) -> Params:
    return initial_params(paper, setting, (seed,))


@functools.lru_cache(maxsize=256)
def _data(paper: Paper, setting: Any) -> tuple[Problem, Problem | None]:
    return paper.problem(setting), paper.held_out(setting)


@functools.partial(
    jax.jit,
    static_argnames=("paper", "setting", "auto", "precision", "probes", "theorems", "count"),
)
def _runs(
    data: Any,
    starts: Any,
    seeds: Any,
    numbers: Any,
    values: Any,
    *,
    paper: Paper,
    setting: Any,
    auto: bool,
    precision: str,
    probes: tuple[str, ...],
    theorems: tuple[Theorem, ...],
    count: int,
) -> dict[str, Any]:
    needed = tuple(dict.fromkeys(name for theorem in theorems for name in theorem.probes))

    def one(data, params0, seed, numbers, values):
        mine = setting._replace(**{k: v.astype(precision) for k, v in values.items()})
        exact = case_of(
            setting._replace(**values),
            trees.cast(data, "float64"),
            trees.cast(params0, "float64"),
            numbers,
        )
        if auto:
            step = usual_step(paper, exact)
            numbers = numbers | {"step_size": step}
            exact = exact._replace(step_size=step)
        case = case_of(mine, data, params0, numbers)
        key = jax.random.fold_in(jax.random.key(seed), 2)  # as in `simulate`
        risk = training_risk(paper.model(mine), case.problem, paper.loss)
        watched = chosen(paper, case, needed)
        walked = leg(
            method_of(paper, mine, numbers, len(case.problem.X), key),
            risk,
            params0,
            num_steps=setting.num_steps,
            every=setting.every,
            probes=watched,
            train=trained(setting),
        )
        last = record(risk, watched, walked.params)
        run = trajectory(walked.records, last, walked.params, setting.every)
        if paper.averages:
            run = run._replace(average=params0._replace(**walked.state.mean))
        final = record(risk, chosen(paper, case, probes), walked.params)
        final.pop("risk")
        seen = run._replace(params=())
        return {
            "step_size": numbers["step_size"],
            "step": run.step,
            "risk": run.risk,
            "diverged_at": diverged_at(run),
            "probes": final,
            "certificates": {t.key: t.certificate(exact, seen) for t in theorems},
        }

    return over_seeds(one, count, data, starts, seeds, numbers, values)
