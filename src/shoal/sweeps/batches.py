"""What is done in one call: runs of equal shape. Who does it does not matter to the numbers."""

import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.certificates import readings, verdict
from shoal.errors import InputError
from shoal.experiments.together import Outcome, Program, at_once, common, held, run_together
from shoal.figures import thinned
from shoal.models import empirical_risk
from shoal.problems import Problem
from shoal.sweeps.grid import Sweep, from_text, key_of

CURVE = 65  # points of a risk curve that are kept


class Batch(NamedTuple):
    """Runs that share a program."""

    program: Program
    runs: tuple[int, ...]
    size: int  # of a call; a shorter one is filled up


@functools.lru_cache(maxsize=4)
def batches(sweep_text: str) -> tuple[Batch, ...]:
    """How a sweep is divided.

    It depends on the file alone: a batch is always made of the same runs in the same order, so its
    numbers are the same whenever it is done, and wherever on one kind of machine.
    """
    sweep = from_text(sweep_text)
    file = sweep.written
    groups: dict[Program, list[int]] = {}
    for where, setting in enumerate(sweep.settings):
        program = common(sweep.paper, setting, file.precision, file.probes, file.theorems)
        first = where * len(file.seeds)
        groups.setdefault(program, []).extend(range(first, first + len(file.seeds)))
    found = []
    for program, runs in groups.items():
        count = min(at_once(program), len(runs))
        # batches of nearly equal length, so that little of the last one is filling
        pieces = math.ceil(len(runs) / count)
        count = math.ceil(len(runs) / pieces)
        found += [
            Batch(program, tuple(runs[k : k + count]), count) for k in range(0, len(runs), count)
        ]
    return tuple(found)


@functools.lru_cache(maxsize=4)
def _sweep(text: str) -> Sweep:
    return from_text(text)


def do(sweep_text: str, number: int) -> list[dict[str, Any]]:
    """Do one batch: a row for every run, failed ones among them."""
    sweep = _sweep(sweep_text)
    batch = batches(sweep_text)[number]
    places = [sweep.run(run) for run in batch.runs]
    settings = [sweep.settings[where] for where, _ in places]
    seeds = [seed for _, seed in places]
    try:
        outcomes: list[Outcome | str] = [*run_together(batch.program, settings, seeds, batch.size)]
    except (InputError, ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        outcomes = [f"{type(error).__name__}: {reason}"] * len(batch.runs)
    return [row_of(sweep, run, out) for run, out in zip(batch.runs, outcomes, strict=True)]


def row_of(sweep: Sweep, number: int, outcome: Outcome | str) -> dict[str, Any]:
    """A run as a row of the table; an outcome in words is the reason why there is none."""
    where, seed = sweep.run(number)
    row: dict[str, Any] = {"number": number, "key": key_of(sweep, number), "seed": seed}
    row |= {name: getattr(sweep.settings[where], name) for name in sweep.given[where]}
    if isinstance(outcome, str):
        return row | {"status": "failed", "reason": outcome}
    gone = int(outcome.diverged_at)
    risk = np.asarray(outcome.risk, float)
    finite = risk[np.isfinite(risk)]
    row |= {
        "status": "done" if gone < 0 else "diverged",
        "reason": "" if gone < 0 else f"the risk was not a finite number at step {gone}",
        "used_step_size": float(outcome.step_size),
        "risk_first": float(risk[0]),
        "risk_last": float(risk[-1]),
        "risk_least": float(finite.min()) if finite.size else None,
    }
    for name, value in outcome.probes.items():
        flat = np.asarray(value)
        row[f"probe_{name}"] = flat.item() if flat.ndim == 0 else [float(x) for x in flat.ravel()]
    for key, certificate in outcome.certificates.items():
        hypotheses, conclusions = readings(certificate)
        row[key] = str(verdict(certificate))
        row[f"{key}_hypotheses_margin"] = min((h.margin for h in hypotheses), default=None)
        row[f"{key}_conclusions_margin"] = min((c.margin for c in conclusions), default=None)
        row[f"{key}_predicted_rate"] = float(certificate.predicted_rate)
        row[f"{key}_measured_rate"] = float(certificate.measured_rate)
    keep = thinned(len(risk), CURVE)
    row["curve_step"] = [int(s) for s in np.asarray(outcome.step)[keep]]
    row["curve_risk"] = [float(r) for r in risk[keep]]
    return row


# ------------------------------------------------------------------------------------- beforehand


class Estimate(NamedTuple):
    """What a sweep will cost, roughly."""

    runs: int
    programs: int  # to be compiled
    batches: int
    flops: float
    seconds: float  # on the cores that there are
    memory: float  # GiB, of all processes


RATE = 4e9  # flops a second that small models reach on one core, all told
COMPILING = 4.0  # seconds a program


def estimate(sweep: Sweep, cores: int) -> Estimate:
    """Count runs, programs, flops and memory without running anything."""
    divided = batches(sweep.written.text)
    total, largest = 0.0, 0.0
    flops_of: dict[Program, float] = {}
    for batch in divided:
        program = batch.program
        if program not in flops_of:
            flops_of[program] = _flops(program)
        largest = max(largest, 8.0 * held(program) * batch.size)
        total += len(batch.runs) * program.setting.num_steps * flops_of[program]
    busy = min(cores, len(divided))
    seconds = (total / RATE + COMPILING * len(flops_of)) / busy
    memory = busy * (largest + 0.5 * 2**30) / 2**30
    return Estimate(sweep.num_runs, len(flops_of), len(divided), total, seconds, memory)


def _flops(program: Program) -> float:
    """Of a step, as the compiler counts them before it optimises: of the plain formula."""
    paper, setting = program.paper, program.setting
    network = paper.model(setting)
    shape = (setting.num_samples, setting.num_tokens, setting.dim)
    X: Any = jax.ShapeDtypeStruct(shape, program.precision)
    one: Any = jax.ShapeDtypeStruct(shape[1:], program.precision)
    out = jax.eval_shape(network.apply, network.spec, one)
    y: Any = jax.ShapeDtypeStruct((shape[0], *out.shape), program.precision)
    if paper.target(setting) == "y":
        y = jax.ShapeDtypeStruct((shape[0],), program.precision)

    def step(params: Any, problem: Problem) -> Any:
        return jax.grad(empirical_risk(network, problem, paper.loss))(params)

    found = jax.jit(step).lower(network.spec, Problem(X, y)).cost_analysis()
    return float((found or {}).get("flops", 0.0))
