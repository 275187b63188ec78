"""``kernel``: a tangent kernel of many samples, on disk."""

import json as files
import shutil
from pathlib import Path
from typing import Any

from shoal import console
from shoal.cli.commands import answer
from shoal.cli.publishing import tracked
from shoal.disk.runs import require_folder, write_json
from shoal.errors import InputError
from shoal.files import remove_stale
from shoal.lab.setting import parse_assignments
from shoal.runtime import available_memory, cores
from shoal.sweeps import tiles
from shoal.sweeps.cluster import Spread, spreading
from shoal.workers import absolute_target

ABOUT = "kernel.json"


def kernel(
    target: str, *, settings: list[str] | None, data: Path | None, params: Path | None, seed: int,
    part: int, scheduler: str | None, out: Path, json: bool,
) -> None:  # fmt: skip
    """``shoal kernel``."""
    require_folder(out)
    values = {"step_size": 1.0} | dict(parse_assignments(settings or []))  # nothing is trained
    model = {
        "target": absolute_target(target), "values": values, "seed": seed,
        "data": _absolute(data), "params": _absolute(params), "precision": "float64",
    }  # fmt: skip
    start = tiles.one_start(model)
    samples = len(start.targets)
    outputs = start.num_outputs // samples
    work = tiles.Work(out.resolve(), model, tiles.divided(samples, part), outputs)
    _require_room(work)
    if scheduler is None:
        _require_memory(work, start)
    path = work.folder / tiles.KERNEL
    with spreading(scheduler) as spread:  # who works is known before anything is written
        _claim_folder(work)
        if path.exists():
            work.forget_parts()  # of a command that was killed after its last part
        else:
            _make(work, spread)
    about = work.about() | {"extremes": _extremes(work, path)}
    write_json(work.folder / ABOUT, about)
    _show(work, about, json=json)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _require_room(work: tiles.Work) -> None:
    """Refuse a kernel for which there is no room on disk: parts and array, 8 bytes a number."""
    needed, place = 2.2 * 8.0 * work.size**2, work.folder
    while not place.exists():
        place = place.parent
    if needed > (free := shutil.disk_usage(place).free) and not (work.folder / ABOUT).exists():
        raise InputError(
            f"a kernel of {work.size} rows takes {needed / 2**30:.3g} GiB on disk while it is "
            f"made, and {free / 2**30:.3g} are free; take fewer samples."
        )


def _require_memory(work: tiles.Work, start: Any) -> None:
    """Refuse parts that do not fit into memory, side by side on all cores."""
    side_by_side = min(len(work.parts.lines), cores())
    needed, have = side_by_side * tiles.part_bytes(start, work.parts), available_memory()
    if needed > have:
        raise InputError(
            f"parts of {work.parts.longest} samples, {side_by_side} at a time, would take "
            f"{needed / 2**30:.3g} GiB, and {have / 2**30:.3g} GiB are available; give a smaller "
            "--part."
        )


def _claim_folder(work: tiles.Work) -> None:
    """Begin a folder, or continue it if it is about the same kernel."""
    said, path = files.loads(files.dumps(work.about())), work.folder / ABOUT
    if path.exists():
        try:
            there: Any = files.loads(path.read_text())
            same = {name: there.get(name) for name in said} == said
        except (OSError, ValueError, AttributeError):
            same = False
        if not same:
            raise InputError(f"{str(work.folder)!r} holds another kernel; choose another --out.")
    else:
        write_json(path, said)
    remove_stale(work.folder / tiles.LINES)


def _make(work: tiles.Work, spread: Spread) -> None:
    for found in tracked("kernel: parts", spread, list(work.tasks())):
        if found.error is not None:
            raise ChildProcessError(f"part {found.task['line']}: {found.error.rstrip('.')}.")
    if lost := len(list(work.tasks())):
        raise InputError(
            f"{lost} parts did not arrive in {str(work.folder)!r}: every worker must see this "
            "folder under the same name."
        )
    work.assemble()


def _extremes(work: tiles.Work, path: Path) -> dict[str, Any]:
    found = tiles.ends_of(tiles.product_with(path), work.size)
    names = "smallest", "largest"
    return {
        name: {"value": value, "residual": found.residuals[k], "converged": found.converged[k]}
        for k, (name, value) in enumerate(zip(names, found[:2], strict=True))
    }


def _show(work: tiles.Work, about: dict[str, Any], *, json: bool) -> None:
    rows = [
        (
            name,
            console.number(e["value"]),
            f"{e['residual']:.1e}",
            "yes" if e["converged"] else "no",
        )
        for name, e in about["extremes"].items()
    ]
    table = console.table("eigenvalue", "value", "residual", "converged", rows=rows)
    size = f"{work.size} x {work.size} numbers, {8 * work.size**2 / 2**30:.3g} GiB"
    note = f"wrote {work.folder / tiles.KERNEL}: {size}"
    answer(about | {"out": str(work.folder), "rows": work.size}, [table], note, json=json)
