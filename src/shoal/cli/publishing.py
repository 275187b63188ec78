"""``reproduce`` and ``report``: what is kept and shown."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from rich.markup import escape

from shoal import console, figures, workers
from shoal.cli.commands import answer, own_setup_of, write_figure, write_page
from shoal.disk import logs
from shoal.disk import runs as disk
from shoal.errors import InputError, nearest
from shoal.lab.paper import Paper, PaperFigure
from shoal.pages import page, sections
from shoal.papers import known_paper, paper_of, split_target, target_of
from shoal.runtime import cores

KEPT = "What is finished is kept; the same command continues."


def record(kind: str, **more: Any) -> dict[str, Any]:
    """What a file of results says about how it was made."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "format": disk.FORMAT,
        "kind": kind,
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores and {memory:.0f} GiB",  # without its name
        "versions": disk.versions(),
        **more,
    }


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in a Markdown document."""
    shown = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown]


def _papers_of(keys: Iterable[str]) -> list[Paper]:
    """The papers whose claims or figures have these keys."""
    return [known_paper(key) for key in dict.fromkeys(key.partition(".")[0] for key in keys)]


# ------------------------------------------------------------------------------------- figures


def reproduce(name: str, *, out: Path | None, full: bool, json: bool) -> None:
    """``shoal reproduce``."""
    target, part = split_target(name)
    paper = paper_of(target)
    chosen = [figure for figure in paper.figures if not part or figure.key == part]
    if not chosen:
        known = [figure.key for figure in paper.figures]
        raise InputError(f"{target} has no figure {part!r}; {nearest(part, known)}")
    folder = out or Path(f"figures-{paper.key}")
    disk.require_folder(folder)
    if full:
        console.note(f"{len(chosen)} figures at full size may take hours. {KEPT}")
    made = []
    for recipe in console.tracked(f"{paper.key}: figures", chosen, len(chosen)):
        _do_jobs(target, recipe, full=full)
        figure = recipe.make(full)
        caption = f"{figure.caption} Source: {recipe.source}."
        figure = figure._replace(key=recipe.key, caption=caption)
        write_figure(folder, figure, figure._asdict() | {"paper": paper.key})
        made.append(figure)
    lead = f"{paper.title}: its experiments, reproduced{' at full size' if full else ''}."
    parts = [page.figure_section(figure) for figure in made]
    write_page(folder / "index.html", f"Figures of {paper.key}", lead, parts, [paper])
    files = [str(folder / f"{f.key}.{end}") for f in made for end in ("png", "pdf", "parquet")]
    answer(
        {"paper": paper.key, "out": str(folder), "files": files},
        [f"[bold]{f.key}[/]  {escape(f.title)}. [dim]{escape(f.caption)}[/]" for f in made],
        f"wrote {len(files)} files and {folder / 'index.html'}",
        json=json,
    )


def _do_jobs(target: str, recipe: PaperFigure, *, full: bool) -> None:
    """Do the long parts of a figure's work, on all cores, with progress of their own."""
    name = f"{workers.absolute_target(target)}.{recipe.key}"
    tasks = [{"figure": name, "full": full, "job": job} for job in range(len(recipe.jobs(full)))]
    for found in on_all_cores(f"{target}.{recipe.key}: runs", tasks):
        if found.error is not None:
            raise ChildProcessError(f"{name}, run {found.task['job']}: {found.error}; {KEPT}")


def on_all_cores(label: str, tasks: list[workers.Task]) -> Iterator[workers.Answer]:
    """Perform tasks in processes of their own, with progress."""
    if tasks:
        answers = workers.spread(tasks, most=min(cores(), len(tasks)))
        yield from console.tracked(label, answers, len(tasks))


# --------------------------------------------------------------------------------------- report

Page = tuple[str, str, list[page.Section], list[Paper]]
"""Title, lead, sections, and the papers to cite."""


def report(*paths: Path, out: Path | None, paper: str, json: bool) -> None:
    """``shoal report``."""
    if paper:
        target_of(paper)  # from now on its runs are known
    if not paths:
        msg = "report needs a run folder, or what reproduce or certify --json wrote."
        raise InputError(msg)
    pages = [_page_of(path, paper) for path in paths]
    title, lead, parts, used = pages[0]
    if len(pages) > 1:
        title, lead = "A report", "; ".join(dict.fromkeys(lead for _, lead, _, _ in pages if lead))
        parts = [
            part._replace(title=f"{path.name}: {part.title}")
            for path, (_, _, some, _) in zip(paths, pages, strict=True)
            for part in some
        ]
        used = list(dict.fromkeys(paper for _, _, _, some in pages for paper in some))
    first = paths[0]
    path = out or (first / "report.html" if first.is_dir() else first.with_suffix(".html"))
    write_page(path, title, lead, parts, used)
    answer({"page": str(path)}, note=f"wrote {path}", json=json)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Refuse a file whose content is not what its name promises."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, TemplateError) as error:
        msg = f"{str(path)!r} is not what it seems ({type(error).__name__}: {error})."
        raise InputError(msg) from None


def _page_of(path: Path, target: str) -> Page:
    if not path.exists():
        raise InputError(f"there is no file or folder {str(path)!r}.")
    if (path / "run.json").is_file():
        return _run_page(path, target)
    if logs.is_log(path):
        about, table = logs.read_log(path)
        with _reading(path):
            parts = sections.log_sections(about, table)
        return f"A log of {about['model']}", "", parts, []
    if path.is_dir() and (found := sorted(path.glob("*.json"))):
        return _figures_page(found)
    if path.is_file() and path.suffix == ".json":
        value = disk.read_json(path)
        if isinstance(value, dict) and {"paper", "theorem", "results"} <= set(value):
            paper = known_paper(str(value["paper"]))
            with _reading(path):
                parts = sections.certificate_sections(value)
            return f"{paper.key}.{value['theorem']}", paper.title, parts, [paper]
    msg = (
        f"{str(path)!r} is not a run folder, a reproduction or a certificate; make one with "
        "shoal train --out, reproduce or certify --json."
    )
    raise InputError(msg)


def _run_page(path: Path, target: str) -> Page:
    run = disk.load_run(path, own_setup_of(target, path))
    theorems = disk.read_json(path / "certificates.json")
    with _reading(path):
        parts = sections.run_sections(run, theorems)
    paper = run.setup.paper
    title = paper.title if paper else run.setup.name
    lead = f"{title}. Made by: {run.notes.get('command', 'an unknown command')}"
    return f"A run of {run.setup.name}", lead, parts, [paper] if paper else []


def _figures_page(found: list[Path]) -> Page:
    made, keys = [], []
    for path in found:
        value = disk.read_json(path)
        if isinstance(value, dict) and "panels" in value:
            with _reading(path):
                keys.append(str(value.pop("paper", "")))
                made.append(figures.figure_from_json(value))
    if not made:
        raise InputError(f"{str(found[0].parent)!r} holds no figures made by shoal.")
    used = _papers_of(key for key in keys if key)
    return "Figures", "", [page.figure_section(figure) for figure in made], used
