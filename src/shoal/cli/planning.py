"""``plan``: how wide a model must be."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from shoal.cli import show
from shoal.errors import InputError
from shoal.session import begin

begin()

from shoal import figures, store, workers  # noqa: E402
from shoal.cli.publishing import write_page  # noqa: E402
from shoal.cli.work import print_json  # noqa: E402
from shoal.papers import paper_of  # noqa: E402
from shoal.programs import cores  # noqa: E402
from shoal.report import drawing, page  # noqa: E402
from shoal.settings import parse_assignments  # noqa: E402
from shoal.sweeps import planner  # noqa: E402


def _ask(questions: list[planner.Question]) -> Iterable[tuple[planner.Question, list[bool]]]:
    """On all cores, with progress."""
    tasks = [{"question": question} for question in questions]
    with show.progress(f"{questions[0]['kind']}: widths") as tell:
        for done, found in enumerate(workers.spread(tasks, most=min(cores(), len(tasks)))):
            if found.error is not None:
                width = found.task["question"]["width"]
                raise InputError(f"at width {width}: {found.error}")
            tell(done + 1, len(tasks))
            yield found.task["question"], found.value


def plan(
    key: str,
    assignments: list[str] | None,
    out: Path | None,
    *,
    samples: str | None,
    seeds: int | None,
    target: float | None,
    theorem: str | None,
    as_json: bool,
) -> None:
    """``shoal plan``."""
    paper = paper_of(key)
    wanted = planner.default_plan(
        paper,
        parse_assignments(assignments or ()),
        samples=_numbers(samples),
        seeds=seeds,
        target=target,
        theorem=theorem,
    )
    found = planner.carry_out(wanted, _ask)
    drawn = planner.figure(found)
    folder = Path(f"plan-{key}") if out is None else out
    store.write_json(folder / "plan.json", store.plain(found))
    store.write_rows(folder / "plan.parquet", figures.rows(drawn))
    drawing.save(drawn, folder)
    parts = [page.figure_section(drawn)._replace(tables=(_table(found),))]
    write_page(folder / "index.html", drawn.title, paper.title, parts, [paper])
    if as_json:
        print_json(store.plain(found))
        return
    terminal = show.console()
    _, head, rows = _table(found)
    shown = show.table(*head)
    for row in rows:
        shown.add_row(*row)
    terminal.print(shown)
    for line in _lines(found):
        terminal.print(line, markup=False)
    show.note(f"wrote {folder / 'index.html'}, plan.png and plan.pdf")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(w.strip().isdigit() and 0 < int(w) < 10**9 for w in words):
        msg = f"--samples {text}: expected whole numbers such as 2,4,8."
        raise InputError(msg)
    return tuple(int(w) for w in words)


def _lines(found: planner.Found) -> list[str]:
    lines = [planner.said("smallest width that trains", found.trains)]
    if found.certified is not None:
        name = f"smallest width that {found.plan.theorem} certifies"
        lines.append(planner.said(name, found.certified))
    return lines


def _middle(widths: np.ndarray) -> str:
    there = np.isfinite(widths)
    middle = np.median(np.where(there, widths, np.inf))
    if np.isinf(middle):
        return f"none up to the last tried ({there.sum()} of {len(widths)} seeds)"
    return f"{middle:.0f}"


def _table(found: planner.Found) -> tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]:
    head: tuple[str, ...] = ("samples", "trains from width")
    if found.certified is not None:
        head += (f"{found.plan.theorem} from width",)
    rows = []
    for i, samples in enumerate(found.plan.samples):
        row: tuple[str, ...] = (str(samples), _middle(found.trains.widths[i]))
        if found.certified is not None:
            row += (_middle(found.certified.widths[i]),)
        rows.append(row)
    return "smallest width, median over seeds", head, tuple(rows)
