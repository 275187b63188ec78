"""``plan``: how wide a model must be."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from shoal import console
from shoal.cli.commands import answer, write_figure, write_page
from shoal.cli.publishing import tracked
from shoal.errors import InputError
from shoal.lab.setting import parse_assignments
from shoal.pages import page
from shoal.pages.sections import sentence
from shoal.papers import paper_of
from shoal.sweeps import cluster, planner


def _asking(spread: cluster.Spread) -> planner.Ask:
    """Answers questions side by side, with progress."""

    def ask(questions: list[planner.Question]) -> Iterable[tuple[planner.Question, list[bool]]]:
        tasks = [{"question": question} for question in questions]
        for found in tracked(f"{questions[0]['kind']}: widths", spread, tasks):
            question = found.task["question"]
            if found.error is not None:
                raise InputError(f"at width {question['width']}: {found.error}")
            yield question, found.value

    return ask


def plan(
    name: str, *, settings: list[str] | None, samples: str | None, out: Path | None,
    scheduler: str | None, json: bool, **changes: Any,
) -> None:  # fmt: skip
    """``shoal plan``."""
    values = parse_assignments(settings or ())
    search = planner.make_search(name, values, samples=_numbers(samples), **changes)
    with cluster.spreading(scheduler) as spread:
        result = planner.carry_out(search, _asking(spread))
    figure, paper, table = planner.figure(result), paper_of(name), _table(result)
    folder = out or Path(f"plan-{search.paper}")
    write_figure(folder, figure, result)
    lines = [planner.exponent_text("smallest width that trains", result.trains)]
    if result.certified is not None:
        certified = f"smallest width that {search.theorem} certifies"
        lines.append(planner.exponent_text(certified, result.certified))
    found = " ".join(sentence(line) for line in lines)
    parts = [page.figure_section(figure)._replace(tables=(table,), finding=found)]
    write_page(folder / "index.html", figure.title, paper.title, parts, [paper])
    shown = [console.table(*table[1], rows=table[2]), *map(escape, lines)]
    wrote = f"wrote {folder / 'index.html'}, plan.png and plan.pdf"
    answer(result, shown, wrote, json=json)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(w.strip().isdecimal() and len(w) < 12 and 0 < int(w) < 10**9 for w in words):
        raise InputError(f"--samples {text}: expected whole numbers such as 2,4,8.")
    return tuple(int(w) for w in words)


def _median(widths: np.ndarray) -> str:
    finite = np.isfinite(widths)
    middle = np.median(np.where(finite, widths, np.inf))
    if np.isinf(middle):
        return f"none up to the last tried ({finite.sum()} of {len(widths)} seeds)"
    return f"{middle:.0f}"


def _table(result: planner.Result) -> page.Table:
    frontiers = {"trains from width": result.trains}
    if result.certified is not None:
        frontiers[f"{result.plan.theorem} from width"] = result.certified
    rows = [
        (str(samples), *(_median(frontier.widths[i]) for frontier in frontiers.values()))
        for i, samples in enumerate(result.plan.samples)
    ]
    return "smallest width, median over seeds", ("samples", *frontiers), tuple(rows)
