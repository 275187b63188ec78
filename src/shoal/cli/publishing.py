"""``reproduce`` and ``report``: what is kept and shown."""

import contextlib
import os
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import TemplateError
from rich.markup import escape

from shoal import console, figures, workers
from shoal.cli.commands import answer, own_setup_of, write_figure, write_page
from shoal.disk import logs
from shoal.disk import runs as disk
from shoal.disk.cache import keep_measurements
from shoal.errors import InputError, nearest
from shoal.lab.paper import Paper, PaperFigure
from shoal.lab.run import Run
from shoal.pages import page, sections, theorems
from shoal.papers import known_paper, paper_of, split_target, target_of
from shoal.sweeps import cluster

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


def reproduce(
    name: str, *, out: Path | None, full: bool, interactive: bool, scheduler: str | None,
    json: bool,
) -> None:  # fmt: skip
    """``shoal reproduce``."""
    target, part = split_target(name)
    paper = paper_of(target)
    chosen = [figure for figure in paper.figures if not part or figure.key == part]
    if not paper.figures:
        msg = f"{target} has no figures; PAPER.figure(key, title, study, probes) adds one."
        raise InputError(msg)
    if not chosen:
        known = [figure.key for figure in paper.figures]
        raise InputError(f"{target} has no figure {part!r}; {nearest(part, known)}")
    folder = out or Path(f"figures-{paper.key}")
    disk.require_folder(folder)
    if full:
        console.note(f"{len(chosen)} figures at full size may take hours. {KEPT}")
    made = []
    with cluster.spreading(scheduler) as spread:
        for recipe in console.tracked(f"{paper.key}: figures", chosen, len(chosen)):
            _do_jobs(target, recipe, spread, full=full)
            figure = recipe.make(full)
            caption = f"{figure.caption} Source: {recipe.source}."
            figure = figure._replace(key=recipe.key, caption=caption)
            write_figure(folder, figure, figure._asdict() | {"paper": paper.key})
            made.append(figure)
    _write_index(folder, interactive=interactive)
    files = [str(folder / f"{f.key}.{end}") for f in made for end in ("png", "pdf", "parquet")]
    answer(
        {"paper": paper.key, "out": str(folder), "files": files},
        [f"[bold]{f.key}[/]  {escape(f.title)}. [dim]{escape(f.caption)}[/]" for f in made],
        f"wrote {len(files)} files and {folder / 'index.html'}",
        json=json,
    )


def _write_index(folder: Path, *, interactive: bool) -> None:
    """One page over all figures that are in the folder, whenever they were made."""
    _, _, parts, used = _figures_page(sorted(folder.glob("*.json")))
    keys = ", ".join(paper.key for paper in used)
    lead = "; ".join(paper.title for paper in used) + ". All figures made so far in this folder."
    write_page(
        folder / "index.html", f"Figures of {keys}", lead, parts, used, interactive=interactive
    )


def _do_jobs(target: str, recipe: PaperFigure, spread: cluster.Spread, *, full: bool) -> None:
    """Do the long parts of a figure's work side by side, with progress of their own."""
    name = f"{workers.absolute_target(target)}.{recipe.key}"
    tasks = [{"figure": name, "full": full, "job": job} for job in range(len(recipe.jobs(full)))]
    for found in tracked(f"{target}.{recipe.key}: runs", spread, tasks):
        if found.error is not None:
            raise ChildProcessError(f"{name}, run {found.task['job']}: {found.error}; {KEPT}")
        keep_measurements({file: b64decode(text) for file, text in found.value.items()})


def tracked(
    label: str, spread: cluster.Spread, tasks: list[workers.Task]
) -> Iterator[workers.Answer]:
    """Perform tasks, with progress."""
    if tasks:
        yield from console.tracked(label, spread(tasks, len(tasks)), len(tasks))


# --------------------------------------------------------------------------------------- report

Page = tuple[str, str, list[page.Section], list[Paper]]
"""Title, lead, sections, and the papers to cite."""


def report(*paths: Path, out: Path | None, paper: str, interactive: bool, json: bool) -> None:
    """``shoal report``."""
    if paper:
        target_of(paper)  # from now on its runs are known
    if not paths:
        msg = "report needs a run folder, or what reproduce or certify --json wrote."
        raise InputError(msg)
    pages = [_page_of(path, paper) for path in paths]
    title, lead, parts, used = pages[0]
    if len(pages) > 1:
        title = f"{len(pages)} results side by side"
        lead = "; ".join(dict.fromkeys(lead for _, lead, _, _ in pages if lead))
        runs = {name: _run_of(path, paper) for name, path in _named(paths).items() if _is_run(path)}
        parts = [sections.compared_section(runs)] if len(runs) > 1 else []
        for name, (_, _, some, _) in zip(_named(paths), pages, strict=True):
            parts += [part._replace(group=name, label=name) for part in some]
        used = list(dict.fromkeys(paper for _, _, _, some in pages for paper in some))
    first = paths[0]
    path = out or (first / "report.html" if first.is_dir() else first.with_suffix(".html"))
    write_page(path, title, lead, parts, used, interactive=interactive)
    answer({"page": str(path)}, note=f"wrote {path}", json=json)


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Paths by their last name; by the whole where two share it."""
    names = [path.name for path in paths]
    return {p.name if names.count(p.name) == 1 else str(p): p for p in paths}


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


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
    if _is_run(path):
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
                parts = theorems.certificate_sections(value, paper.setting().asdict())
            return f"{paper.key}.{value['theorem']}", paper.title, parts, [paper]
    msg = (
        f"{str(path)!r} is not a run folder, a reproduction or a certificate; make one with "
        "shoal train --out, reproduce or certify --json."
    )
    raise InputError(msg)


def _run_of(path: Path, target: str) -> Run:
    return disk.load_run(path, own_setup_of(target, path))


def _run_page(path: Path, target: str) -> Page:
    run = _run_of(path, target)
    found = disk.read_json(path / "certificates.json")
    with _reading(path):
        parts = sections.run_sections(run, found)
    paper = run.setup.paper
    title = paper.title if paper else run.setup.name
    return f"A run of {run.setup.name}", title, parts, [paper] if paper else []


def _figures_page(found: list[Path]) -> Page:
    """All figures of some files, those of a paper together."""
    made: dict[str, list[page.Section]] = {}
    for path in found:
        value = disk.read_json(path)
        if isinstance(value, dict) and "panels" in value:
            with _reading(path):
                key = str(value.pop("paper", ""))
                figure = figures.figure_from_json(value)
                made.setdefault(key, []).append(_figure_card(path, figure, key))
    if not made:
        raise InputError(f"{str(found[0].parent)!r} holds no figures made by shoal.")
    parts = [card for cards in made.values() for card in cards]
    return "Figures", "", parts, _papers_of(key for key in made if key)


def _figure_card(path: Path, figure: figures.Figure, paper: str) -> page.Section:
    """A figure with the files that lie beside its numbers."""
    ends = ("png", "pdf", "parquet", "json")
    beside = [path.with_suffix(f".{end}") for end in ends]
    card = page.figure_section(figure)
    named = tuple((one.name, quote(f"./{one.name}")) for one in beside if one.is_file())
    again = f"shoal reproduce {paper}.{figure.key}" if paper else ""
    return card._replace(files=named, source=again)
