"""``plan``: how wide a model must be."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from shoal import console, figures, workers
from shoal.cli.commands import print_json
from shoal.cli.publishing import write_page
from shoal.disk.runs import write_json, write_rows
from shoal.errors import InputError
from shoal.jsons import plain
from shoal.lab.setting import parse_assignments
from shoal.pages import drawing, page
from shoal.papers import paper_of
from shoal.runtime import cores
from shoal.sweeps import planner


def _ask(questions: list[planner.Question]) -> Iterable[tuple[planner.Question, list[bool]]]:
    """Answer questions on all cores, with progress."""
    tasks = [{"question": question} for question in questions]
    with console.progress(f"{questions[0]['kind']}: widths") as tell:
        for done, answer in enumerate(workers.spread(tasks, most=min(cores(), len(tasks)))):
            question = answer.task["question"]
            if answer.error is not None:
                raise InputError(f"at width {question['width']}: {answer.error}")
            tell(done + 1, len(tasks))
            yield question, answer.value


def plan(
    name: str,
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
    changes = {"samples": _numbers(samples), "seeds": seeds, "target": target, "theorem": theorem}
    search = planner.make_search(name, parse_assignments(assignments or ()), **changes)
    result = planner.carry_out(search, _ask)
    figure = planner.figure(result)
    folder = Path(f"plan-{search.paper}") if out is None else out
    write_json(folder / "plan.json", plain(result))
    write_rows(folder / "plan.parquet", figures.rows(figure))
    drawing.save(figure, folder)
    table = _table(result)
    parts, paper = [page.figure_section(figure)._replace(tables=(table,))], paper_of(name)
    write_page(folder / "index.html", figure.title, paper.title, parts, [paper])
    if as_json:
        print_json(plain(result))
        return
    terminal = console.console()
    _, head, rows = table
    shown = console.table(*head)
    for row in rows:
        shown.add_row(*row)
    terminal.print(shown)
    lines = [planner.exponent_text("smallest width that trains", result.trains)]
    if result.certified is not None:
        certified = f"smallest width that {search.theorem} certifies"
        lines.append(planner.exponent_text(certified, result.certified))
    terminal.print("\n".join(lines), markup=False)
    console.note(f"wrote {folder / 'index.html'}, plan.png and plan.pdf")


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


def _table(result: planner.Result) -> tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]:
    frontiers = {"trains from width": result.trains}
    if result.certified is not None:
        frontiers[f"{result.plan.theorem} from width"] = result.certified
    rows = [
        (str(samples), *(_median(frontier.widths[i]) for frontier in frontiers.values()))
        for i, samples in enumerate(result.plan.samples)
    ]
    return "smallest width, median over seeds", ("samples", *frontiers), tuple(rows)
