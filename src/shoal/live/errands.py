"""Longer work on a run, done by a second worker: proof, landscape, run folder, page, pinned curve.

Each errand gets a state and the number of steps taken, and replays the run from its start: what is
proved, saved or drawn is what the address describes, whatever happened on the way.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shoal as sh
from shoal.disk import runs as disk
from shoal.errors import InputError
from shoal.lab import engine
from shoal.lab.run import Run
from shoal.live.desk import Asked, ask, data_file, with_weights
from shoal.live.state import State, command

CHANGED = "the step size was changed on the way; a run folder holds one step size. Copy Python."


def replay(asked: Asked, steps: int, probes: tuple[str, ...]) -> Run:
    """The run up to some step, with its changes of the step size, in the pieces of the page."""
    setup, every = asked.setup, asked.setup.setting.every
    under, rows, at = engine.begin(setup), [], 0
    changes = dict(asked.state.changes)
    while at < steps:
        if at in changes:
            changed = under.setup.replace(step_size=np.full(1, changes[at]))
            under = under._replace(setup=changed)
        stop = min([steps, *(k for k in changes if k > at)])
        length = asked.piece(at, stop)
        under, seen = engine.advance(under, length, probes)
        rows.append({name: x[0] for name, x in seen.items()})
        at += length
    last = engine.look(setup, under.params, probes)
    rows.append({name: np.asarray(x) for name, x in last.items()})
    joined = {name: np.concatenate([row[name] for row in rows])[None] for name in rows[0]}
    risk = joined.pop("risk")
    done = setup.with_setting(num_steps=max(steps, 1))
    parts = engine.generic.parts_of(setup, probes, joined)
    params = engine.numpy_tree(under.params)
    step = np.arange(risk.shape[1]) * every
    return Run(done, step, risk, joined, params, engine.average_of(under), parts)


def _whole_run(asked: Asked, steps: int) -> Run:
    if asked.state.changes:
        raise InputError(CHANGED)
    if steps < 1:
        raise InputError("nothing was trained yet; press play first.")
    setup = asked.setup.with_setting(num_steps=steps)
    run = sh.train(setup, probes=list(asked.probes))
    data = str(data_file(asked.state.data)) if asked.state.data else ""
    values = dict(asked.state.values) | {"num_steps": str(steps)}
    state = asked.state._replace(values=tuple(values.items()))
    run.notes["command"] = command(state, asked.step_size, asked.probes, data)
    return run


def pin(asked: Asked, steps: int, out: Path) -> dict[str, Any]:  # noqa: ARG001
    """The curve of a pinned run."""
    run = replay(asked, steps, asked.probes)
    return {"step": run.step, "risk": run.risk[0]}


def prove(asked: Asked, steps: int, out: Path) -> dict[str, Any]:  # noqa: ARG001
    """The first recorded step from which the fate of the run is certain."""
    if asked.state.changes:  # the run from here on has one step size
        at, size = asked.state.changes[-1]
        before = replay(asked, max(at, steps), ())
        found = sh.prove(with_weights(asked.setup, before.params, size)).to_json()
        return found | {"step": max(at, steps) if found["verdict"] != "undecided" else None}
    setup = asked.setup.with_setting(num_steps=steps)
    if not steps:
        found = sh.prove(asked.setup).to_json()
        return found | {"step": 0}
    return sh.prove(sh.train(setup, probes=[])).to_json()


def landscape(asked: Asked, steps: int, out: Path) -> dict[str, Any]:  # noqa: ARG001
    """The risk on a plane around the present weights; the path where the run has one step size."""
    run = replay(asked, steps, ())
    kind = "pca" if steps >= 2 and not asked.state.changes else "random"
    found = sh.landscape(run, directions=kind, points=31, span=_span(kind, run))
    path = found.figure.panels[0].curves
    return {
        "words": found.words, "grid": found.grid, "values": found.planes[0],
        "path": {"x": path[0].x, "y": path[0].y} if path else None,
    }  # fmt: skip


def _span(kind: str, run: Run) -> float:
    """Half the side of the plane: principal directions have the length of the weights' path."""
    if kind != "pca":
        return 1.0
    start, end = run.setup.moving(run.setup.params0), run.setup.moving(run.params)
    return 1.5 * float(np.sqrt(sum(np.sum((end[k] - start[k]) ** 2) for k in end))) or 1.0


def save(asked: Asked, steps: int, out: Path) -> dict[str, Any]:
    """Write a run folder, with the certificate of the theorem."""
    run = _whole_run(asked, steps)
    found = [] if asked.theorem is None else [sh.certify(run, asked.theorem)]
    folder = _free(out, run.setup.name, "")
    run.save(folder, found)
    return {"path": str(folder)}


def report(asked: Asked, steps: int, out: Path) -> dict[str, Any]:
    """Write a page about the run."""
    run = _whole_run(asked, steps)
    results: list[Any] = [run] if asked.theorem is None else [sh.certify(run, asked.theorem)]
    disk.require_folder(out)
    path = _free(out, run.setup.name, ".html")
    sh.report(*results, out=path, title=f"{run.setup.name}: a run of the lab")
    return {"path": str(path), "page": path.name}


def _free(folder: Path, name: str, end: str) -> Path:
    """The first name that is not taken: ``wu2023-1``, ``wu2023-2``, ..."""
    count = 1
    while (path := folder / f"{name}-{count}{end}").exists():
        count += 1
    return path


ERRANDS: dict[str, Callable[[Asked, int, Path], dict[str, Any]]] = {
    "pin": pin, "prove": prove, "landscape": landscape, "save": save, "report": report,
}  # fmt: skip


def run_errand(name: str, state: State, steps: int, own: str, out: Path) -> dict[str, Any]:
    """Do one errand."""
    asked = ask(state, own)
    every = asked.setup.setting.every
    return ERRANDS[name](asked, min(steps, asked.total) // every * every, out)
