"""How sides of a benchmark are run against each other.

A script asks one question. It lists cases (sizes) and sides (ways to do the work). Every side of a
case runs in a process of its own, with the same data, weights and number of steps, on the same
cores; the processes take turns of one call or half a second, whichever is longer, so a noisy minute
meets all of them. Answers are compared with the first side's before anything is timed: a wrong fast
answer is no answer. Reported are medians and quartiles; the first call, which compiles, apart; peak
memory of a call above what was held before it, in yet another process; and the rates of a large
matrix product and of exponentials, measured in the same turns, which are the yardsticks.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

GEMM = "matrix product"
EXP = "exponentials"
MANY = 2**22  # exponentials of the yardstick
TURN = 0.5  # seconds of a turn, at least: the first call after a pause is slower
ORDER = 2048  # of the matrices whose product is the yardstick

Work = Callable[[], dict[str, Any]]
"""Does the work once and returns what can be compared with other sides, as arrays."""


class Case(NamedTuple):
    """One size of a question."""

    name: str
    values: dict[str, Any]  # what the sides are told
    steps: dict[str, int]  # how many steps (or whatever is counted) a call of each side does
    flops: float = 0.0  # that a step cannot do without; 0: no limit is known
    precision: str = "float32"
    rounds: int = 7
    exponentials: float = 0.0  # that a step cannot do without


class Question(NamedTuple):
    """What a script measures."""

    title: str
    about: str
    unit: str  # what a step is
    cases: tuple[Case, ...]
    sides: dict[str, Callable[..., Work]]
    tolerance: dict[str, float] = {"float32": 1e-3, "float64": 1e-9}  # noqa: RUF012


# ------------------------------------------------------------------------------- a side's process


def matrix_product(precision: str) -> Work:
    """The yardstick: a product of two large matrices, by XLA."""
    import jax
    import jax.numpy as jnp

    A = jnp.asarray(np.random.default_rng(0).standard_normal((ORDER, ORDER)), precision)
    product = jax.jit(lambda A: A @ A)

    def work() -> dict[str, Any]:
        for _ in range(3):
            product(A).block_until_ready()
        return {}

    return work


def many_exponentials(precision: str) -> Work:
    """The other yardstick: exponentials, by XLA."""
    import jax
    import jax.numpy as jnp

    x = jnp.asarray(-np.random.default_rng(0).random(MANY), precision)
    exponentials = jax.jit(jnp.exp)

    def work() -> dict[str, Any]:
        for _ in range(3):
            exponentials(x).block_until_ready()
        return {}

    return work


def _memory(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024  # MiB
    return float("nan")


def _watch_memory() -> float:
    """What is held now, in MiB; the peak begins anew."""
    time.sleep(0.3)  # buffers of the last call are given back a little after its answer
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def timed(call: Callable[[], None], steps: int, *, rounds: int = 5) -> dict[str, float]:
    """Median seconds a step of a call in this process, and its peak memory in MiB."""
    call()
    before = _watch_memory()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) / steps)
    return {"seconds": float(np.median(times)), "peak": _memory("VmHWM") - before}


YARDSTICKS = {GEMM: matrix_product, EXP: many_exponentials}


def _serve(question: Question, case: Case, side: str, folder: Path) -> None:
    """Answer every line of standard input with the time of one call."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # compilation is measured, not remembered
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        if side in YARDSTICKS:
            work = YARDSTICKS[side](case.precision)
        else:
            work = question.sides[side](case.precision, **case.values)
    except ImportError as error:
        answer({"missing": str(error)})
        return
    before = _watch_memory()
    for line in sys.stdin:
        word = line.strip()
        if word == "peak":  # not counting what compiling took
            before = _watch_memory()
        calls: list[tuple[float, float]] = []
        ends = time.perf_counter() + (TURN if word == "go" else 0)
        while not calls or time.perf_counter() < ends:
            begun, cpu = time.perf_counter(), time.process_time()
            found = work()
            calls.append((time.perf_counter() - begun, time.process_time() - cpu))
        if word == "show":
            np.savez(folder / f"{side}.npz", **{k: np.asarray(v) for k, v in found.items()})
        seconds, cpu = map(float, np.median(calls, axis=0))
        answer({"seconds": seconds, "cpu": cpu, "peak": _memory("VmHWM") - before})


# ------------------------------------------------------------------------------------ the referee


class _Player:
    """A side's process, as the referee sees it."""

    def __init__(self, script: Path, case: int, side: str, folder: Path, **extra: str) -> None:
        words = [sys.executable, str(script), "--serve", str(case), side, str(folder)]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | extra,
        )

    def play(self, word: str = "go") -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has said why, or died
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"missing": "its process ended"}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


# large arrays are given back to the system at once, so that the peak shows them
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def _peak(script: Path, case: int, side: str, folder: Path) -> float:
    """Memory that one call takes beyond what is held before it, in MiB; compiled before."""
    player = _Player(script, case, side, folder, **GIVE_BACK)
    player.play("warm up")
    peak = player.play("peak").get("peak", float("nan"))
    player.end()
    return peak


def _difference(folder: Path, side: str, first: str) -> float:
    """Largest relative difference of a side's answer to the first side's."""
    worst = 0.0
    with np.load(folder / f"{side}.npz") as one, np.load(folder / f"{first}.npz") as other:
        for name in other.files:
            size = np.abs(other[name]).max()
            gap = np.abs(one[name] - other[name]).max() / (size if size > 0 else 1.0)
            worst = max(worst, float(gap) if np.isfinite(gap) else float("inf"))
    return worst


def _quartiles(times: list[float]) -> tuple[float, float, float]:
    low, mid, high = np.quantile(times, [0.25, 0.5, 0.75])
    return float(low), float(mid), float(high)


def referee(question: Question, script: Path, folder: Path, *, rounds: int | None) -> dict:
    """Run every case, and say what was seen as plain data."""
    return {
        "title": question.title,
        "about": question.about,
        "unit": question.unit,
        "cases": [
            _match(question, case, i, script, folder, rounds=rounds)
            for i, case in enumerate(question.cases)
        ],
    }


def _match(
    question: Question, case: Case, index: int, script: Path, folder: Path, *, rounds: int | None
) -> dict:
    rounds = case.rounds if rounds is None else rounds
    names = [name for name in question.sides if name in case.steps]
    asked = [*names, *([GEMM] if case.flops else []), *([EXP] if case.exponentials else [])]
    players, first_calls, missing = {}, {}, {}
    here = folder / str(index)
    here.mkdir(parents=True)
    for side in asked:
        players[side] = _Player(script, index, side, here)
        seen = players[side].play("show")
        if "missing" in seen:
            missing[side] = seen["missing"]
            players.pop(side).end()
        else:
            first_calls[side] = seen
    told = {side: [] for side in players}
    for _ in range(rounds):
        for side, player in players.items():
            told[side].append(player.play())
    for player in players.values():
        player.end()
    rate = float("nan")
    if GEMM in told:
        rate = 3 * 2 * ORDER**3 / _quartiles([t["seconds"] for t in told.pop(GEMM)])[1]
    limit = case.flops / rate if case.flops else float("nan")
    if EXP in told:
        limit += case.exponentials / (
            3 * MANY / _quartiles([t["seconds"] for t in told.pop(EXP)])[1]
        )
    rows = []
    for side, turns in told.items():
        steps = case.steps[side]
        low, mid, high = _quartiles([t["seconds"] / steps for t in turns])
        off = _difference(here, side, names[0])
        rows.append(
            {
                "side": side,
                "seconds": mid,
                "low": low,
                "high": high,
                "compile": max(0.0, first_calls[side]["seconds"] - mid * steps),
                "peak": _peak(script, index, side, here),
                "busy": float(np.median([t["cpu"] / t["seconds"] for t in turns])) / _cores(),
                "difference": off,
                "agrees": off <= question.tolerance[case.precision],
                "over_limit": mid / limit if case.flops else None,
            }
        )
    return {
        "name": case.name,
        "precision": case.precision,
        "flops": case.flops,
        "exponentials": case.exponentials,
        "rate": rate if case.flops else None,
        "rounds": rounds,
        "rows": rows,
        "missing": missing,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def main(question: Question) -> None:
    """Run a script: as referee (prints JSON), or as one of its sides."""
    script = Path(sys.argv[0]).resolve()
    if sys.argv[1:2] == ["--serve"]:
        index, side, folder = sys.argv[2:5]
        _serve(question, question.cases[int(index)], side, Path(folder))
        return
    import tempfile

    reader = argparse.ArgumentParser(description=f"{question.title} {question.about}")
    reader.add_argument("--rounds", type=int, help="turns of every side (default: as listed)")
    words = reader.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = referee(question, script, Path(folder), rounds=words.rounds)
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")
