"""Batches of a sweep: runs of one compiled program, trained in one call of the engine.

Who trains a batch does not matter to its numbers.
"""

import dataclasses
import functools
import math
from collections import defaultdict
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.certificates import Certificate, readings, verdict
from shoal.errors import InputError
from shoal.figures import thinned
from shoal.lab import engine
from shoal.lab.own import OwnModel
from shoal.lab.probes import parts_of
from shoal.lab.run import Run, chosen_probes
from shoal.lab.setup import Setup, draw_weights, make_data, untrained
from shoal.lab.study import program_key, run_row, runs_per_call, stack
from shoal.lab.theorem import theorem_of
from shoal.papers import target_of
from shoal.runtime import in_float64
from shoal.sweeps.grid import Sweep, complete_setting, program_of
from shoal.trees import size

CURVE = 65  # Points of a risk curve that are kept.


class Batch(NamedTuple):
    """Runs that share a program."""

    runs: tuple[int, ...]
    size: int  # Runs in a call; a shorter batch is filled up, so that one program serves all.
    program: Any


def divide(sweep: Sweep) -> list[Batch]:
    """Divide a sweep into batches.

    The division depends on the file alone: a batch always has the same runs in the same order, so
    its numbers are the same whenever it is trained, and wherever on one kind of machine.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    seeds = len(sweep.file.seeds)
    for where, setting in enumerate(sweep.settings):
        groups[program_of(setting)] += range(where * seeds, (where + 1) * seeds)
    batches = []
    for program, runs in groups.items():
        most = min(runs_per_call(sweep.programs[program]), len(runs))
        # of nearly equal length, so that little of the last one is filling
        length = math.ceil(len(runs) / math.ceil(len(runs) / most))
        pieces = (runs[k : k + length] for k in range(0, len(runs), length))
        batches += [Batch(tuple(piece), length, program) for piece in pieces]
    return batches


# ---------------------------------------------------------------------------------- in a worker


def run_batch(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Train a batch (`Sweep.task`) and return the cells of every run, in order."""
    paper = target_of(task["paper"])
    cells: dict[int, dict[str, Any]] = {}
    try:
        if isinstance(paper, OwnModel):
            return _own_batch(paper, task)
        setups = [_setup(paper, values, seed, task["precision"]) for values, seed in task["runs"]]
        groups = defaultdict(list)  # more than one only if the data's shapes depend on the data
        for place, setup in enumerate(setups):
            groups[program_key(setup)].append(place)
        for places in groups.values():
            filled = [setups[k] for k in places]
            filled += filled[-1:] * (task["size"] - len(places))
            results = _trained(stack(filled), tuple(task["probes"]), tuple(task["theorems"]))
            cells |= dict(zip(places, results, strict=False))
    except (InputError, ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        failed = failure(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        cells = dict.fromkeys(range(len(task["runs"])), failed) | cells
    return [cells[place] for place in range(len(task["runs"]))]


def _own_batch(model: OwnModel, task: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs of a user's model: one setting of it, with some seeds."""
    values, seeds = task["runs"][0][0], tuple(seed for _, seed in task["runs"])
    setup = model.setup(values, seeds=seeds, precision=task["precision"])
    return _trained(setup, tuple(task["probes"]), tuple(task["theorems"]))


def failure(reason: str) -> dict[str, Any]:
    """The cells of a run that failed."""
    return {"status": "failed", "reason": reason}


def _setup(paper: Any, values: dict[str, Any], seed: int, precision: str) -> Setup:
    """The setup of one run. Settings that differ only in how they train share data and weights."""
    setting = _setting(paper, tuple(values.items()))
    problem, held_out = _data(untrained(setting))
    weights = _weights(untrained(setting), (seed,))
    setup = Setup(setting, problem, weights, (seed,), held_out=held_out).astype(precision)
    return setup if setting.step_size is None else setup.with_steps(setting.step_size)


@functools.lru_cache(maxsize=1024)
def _setting(paper: Any, values: tuple[tuple[str, Any], ...]) -> Any:
    return complete_setting(paper, dict(values))


_data = functools.lru_cache(maxsize=256)(make_data)
_weights = functools.lru_cache(maxsize=1024)(draw_weights)


def _trained(
    setup: Setup, probes: tuple[str, ...], theorems: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Train stacked setups and compare the theorems with them: the cells of every run."""
    if setup.step_size is None:
        setup = setup.with_steps(engine.default_steps(setup))
    needed = tuple(name for key in theorems for name in theorem_of(setup, key).probes)
    names, parts = _recorded(setup, probes, needed)
    seen = engine.trajectories(setup, names)
    step, risk = np.asarray(seen.step[0]), np.asarray(seen.risk)
    run = Run(setup, step, risk, dict(seen.probes), seen.params)
    found = {key: run.certify(key) for key in theorems}
    columns = [c for name in probes for c in [f"{name}_{p}" for p in parts[name]] or [name]]
    run = dataclasses.replace(run, probes={column: seen.probes[column] for column in columns})
    kept = thinned(len(run.step), CURVE)
    rows = []
    for i, gone in enumerate(run.diverged_at):
        reason = "" if gone is None else f"the risk was not a finite number at step {gone}"
        row = {"status": "", "reason": reason} | run_row(run, i)
        for key, certificates in found.items():
            row |= _certificate_cells(key, certificates[i])
        curve = {"curve_step": run.step[kept].tolist(), "curve_risk": run.risk[i, kept].tolist()}
        rows.append(row | curve)
    return rows


_RECORDED: dict[Any, tuple] = {}


def _recorded(setup: Setup, probes: tuple[str, ...], needed: tuple[str, ...]) -> tuple:
    """Probes to record and their parts, found once per program: the search traces all probes.

    Probes that only the table needs are recorded at both ends, not along the run.
    """
    key = program_key(setup), probes, needed
    if key not in _RECORDED:
        at_the_end = [f"{name}@{setup.setting.num_steps}" for name in probes]
        names = chosen_probes(setup, at_the_end, needed)
        _RECORDED[key] = names, parts_of(setup, names)
    return _RECORDED[key]


def _certificate_cells(key: str, certificate: Certificate) -> dict[str, Any]:
    hypotheses, conclusions = readings(certificate)
    return {
        key: str(verdict(certificate)),
        f"{key}_hypotheses_margin": min((h.margin for h in hypotheses), default=None),
        f"{key}_conclusions_margin": min(
            (c.margin for c in conclusions if c.checked), default=None
        ),
        f"{key}_predicted_rate": float(certificate.predicted_rate),
        f"{key}_measured_rate": float(certificate.measured_rate),
    }


class Estimate(NamedTuple):
    """What a sweep will cost, roughly."""

    runs: int
    programs: int  # To be compiled.
    batches: int
    flops: float
    seconds: float  # On the cores that there are.
    memory: float  # GiB, of all processes.


RATE = 4e9  # Flops per second that small models reach on one core, everything included.
COMPILING = 4.0  # Seconds per program.


def estimate(sweep: Sweep, cores: int) -> Estimate:
    """Count runs, programs, flops and memory without running anything."""
    batches = divide(sweep)
    flops = {program: _flops_per_run(setup) for program, setup in sweep.programs.items()}
    floats = {
        program: setup.setting.floats_per_step() + 4.0 * size(setup.params0)
        for program, setup in sweep.programs.items()
    }
    total = sum(len(batch.runs) * flops[batch.program] for batch in batches)
    largest = max(8.0 * floats[batch.program] * batch.size for batch in batches)
    busy = min(cores, len(batches))
    seconds = (total / RATE + COMPILING * len(flops)) / busy
    memory = busy * (largest + 0.5 * 2**30) / 2**30
    return Estimate(sweep.file.num_runs, len(flops), len(batches), total, seconds, memory)


@in_float64
def _flops_per_run(setup: Setup) -> float:
    """Flops of the gradients, as the compiler counts the plain formula before optimising it."""
    gradient = jax.jit(lambda one: jax.grad(one.risk)(one.params0))
    counted = gradient.lower(setup.one()).cost_analysis()
    return setup.setting.num_steps * float((counted or {}).get("flops", 0.0))
