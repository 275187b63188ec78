"""``claims``, ``reproduce`` and ``report``: what is kept and shown."""

import os
import time
from pathlib import Path
from typing import Any

from rich.markup import escape

from shoal import console, figures, workers
from shoal.cli.commands import command_line, print_json
from shoal.disk.cache import cached, source_of
from shoal.disk.runs import (
    FORMAT,
    load_run,
    read_json,
    require_file,
    require_folder,
    versions,
    write_json,
    write_rows,
    write_whole,
)
from shoal.errors import InputError, nearest
from shoal.lab.claim import Claim, Plan, Ruling
from shoal.lab.ledger import Entry, about, ledger_json
from shoal.lab.paper import Paper, PaperFigure
from shoal.pages import drawing, page, sections
from shoal.papers import BUILT_IN, PAPERS, is_file, known_paper, paper_of, split_target
from shoal.runtime import cores

RULINGS = {
    Ruling.SUPPORTED: "green",
    Ruling.CONTRADICTED: "bold red",
    Ruling.INCONCLUSIVE: "yellow",
}
KEPT = "What is finished is kept; the same command continues."


def write_page(
    path: Path, title: str, lead: str, parts: list[page.Section], used: list[Paper]
) -> None:
    """Render and write a page, whole or not at all."""
    cited = [paper.citation() for paper in used]
    text = page.render(title, lead, parts, command=command_line(), citations=cited)
    write_whole(path, text.encode())


# -------------------------------------------------------------------------------------- claims


def wanted(names: tuple[str, ...]) -> list[Claim]:
    """Claims by the name of a paper or their own; all, if none is named."""
    if not names:
        return [claim for paper in PAPERS.values() for claim in paper.claims]
    chosen: dict[str, Claim] = {}
    for name in names:
        target, part = split_target(name)
        paper = paper_of(target)
        mine = [c for c in paper.claims if not part or c.key == f"{paper.key}.{part}"]
        if not mine:
            known = [c.key.removeprefix(f"{paper.key}.") for c in paper.claims]
            msg = f"{target} has no claim {part!r}; {nearest(part, known)}"
            raise InputError(msg)
        chosen |= {claim.key: claim for claim in mine}
    return list(chosen.values())


def ledger(chosen: list[Claim], *, full: bool) -> list[Entry]:
    """Measure and decide, with progress, keeping what is done."""
    entries = []
    with console.progress("claims") as tell:
        for done, claim in enumerate(chosen):
            plan = claim.full if full else claim.quick
            try:
                key = [*about(claim, plan), *_source(claim)]
                found, seconds, kept = cached(key, lambda: claim.measure(plan))  # noqa: B023
            except InputError as error:  # e.g. the text extra is not installed
                console.note(f"{claim.key} is left out: {error}")
                continue
            entries.append(Entry(claim, plan, claim.decide(found), seconds, kept))
            tell(done + 1, len(chosen))
    if chosen and not entries:
        msg = "none of these claims could be measured here; see the reasons above."
        raise InputError(msg)
    return entries


def _source(claim: Claim) -> list[str]:
    """What also decides a measurement if the paper is not built in: its file."""
    paper = known_paper(claim.key.partition(".")[0])
    return [] if paper.key in BUILT_IN else [source_of(paper.setting)]


def claims(
    names: tuple[str, ...], out: Path, markdown: Path | None, *, full: bool, as_json: bool
) -> None:
    """``shoal claims``."""
    chosen = wanted(names)
    require_folder(out)
    if markdown is not None:
        require_file(markdown)
    if full:
        console.note(_cost([claim.full for claim in chosen], "claims"))
    entries = ledger(chosen, full=full)
    kept = ledger_json(entries)
    record = _ledger_file(kept, full=full)
    write_json(out / "ledger.json", record)
    if markdown is not None:
        write_whole(markdown, _markdown(record).encode())
    used = _papers_of(entry.claim.key for entry in entries)
    parts = [sections.ledger_section(kept)]
    write_page(out / "index.html", "The ledger of claims", _ledger_lead(record), parts, used)
    if as_json:
        print_json([{k: v for k, v in claim.items() if k != "panel"} for claim in kept])
        return
    terminal = console.console()
    rows = console.table("claim", "verdict", "effect", "95% interval", "runs", "seconds")
    for entry in entries:
        found = entry.evidence
        rows.add_row(
            f"{escape(entry.claim.statement)}\n[dim]{escape(entry.claim.key)}[/]",
            f"[{RULINGS[found.ruling]}]{found.ruling}[/]",
            console.number(found.effect),
            f"\\[{console.number(found.low)}, {console.number(found.high)}]",
            str(found.runs),
            f"{entry.seconds:.1f}" + (" (kept)" if entry.cached else ""),
        )
    terminal.print(rows)
    console.note(f"wrote {out / 'index.html'} and {out / 'ledger.json'}")


_LEAD = (
    "Each claim is tested by a rule that stands in code; where a rule was revised after a first "
    "look at the same seeds, it says so, and is no confirmation. A paper's statement is "
    "given in our words; where its setting is not known, the setting is ours."
)


def _papers_of(keys: Any) -> list[Paper]:
    """The papers whose claims or figures have these keys."""
    return [known_paper(key) for key in dict.fromkeys(key.partition(".")[0] for key in keys)]


def _ledger_lead(about: dict[str, Any]) -> str:
    return (
        f"{_LEAD} Made on {about['made']} at {about['size']} size with shoal "
        f"{about['versions']['shoal']} and jax {about['versions']['jax']} on {about['machine']}, "
        f"by: {about['command']}"
    )


def _ledger_file(kept: list[dict[str, Any]], *, full: bool) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": "ledger",
        "size": "full" if full else "quick",
        "command": command_line(),
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "versions": versions(),
        "claims": kept,
    }


def machine() -> str:
    """What ran this, without its name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores and {memory:.0f} GiB"


def _markdown(about: dict[str, Any]) -> str:
    """The ledger as a document."""
    lines = [
        "# The ledger",
        "",
        f"Made on {about['made']} by `{about['command']}` with shoal {about['versions']['shoal']} "
        f"(jax {about['versions']['jax']}) on a machine with {about['machine']}; {about['size']} "
        "size. Do not edit: run the command again.",
        "",
        _LEAD + " Effects carry 95% intervals over seeds.",
        "",
        "| claim | verdict | what was seen | rule |",
        "|---|---|---|---|",
    ]
    for claim in about["claims"]:
        cells = (
            f"{claim['statement']} (`{claim['id']}`; {claim['source']})",
            f"**{claim['verdict']}**",
            claim["sentence"],
            claim["rule"],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cost(plans: list[Plan], what: str) -> str:
    """Say beforehand what full size costs: the minutes that the authors of the claims measured."""
    hours = sum(plan.minutes for plan in plans) / 60
    size = f"{len(plans)} {what} at full size"
    return f"{size}: about {hours:.1f} hours on two cores, roughly. {KEPT}"


# ------------------------------------------------------------------------------------- figures


def reproduce(name: str, out: Path | None, *, full: bool, as_json: bool) -> None:
    """``shoal reproduce``."""
    target, part = split_target(name)
    paper = paper_of(target)
    chosen = [figure for figure in paper.figures if not part or figure.key == part]
    if not chosen:
        known = [figure.key for figure in paper.figures]
        msg = f"{target} has no figure {part!r}; {nearest(part, known)}"
        raise InputError(msg)
    folder = out if out is not None else Path(f"figures-{paper.key}")
    require_folder(folder)
    if full:
        console.note(f"{len(chosen)} figures at full size may take hours. {KEPT}")
    made, files = [], []
    with console.progress(f"{paper.key}: figures") as tell:
        for done, recipe in enumerate(chosen):
            _do_jobs(target, recipe, full=full)
            figure = _make_figure(paper, recipe, folder, full=full)
            made.append(figure)
            files += [str(folder / f"{figure.key}.{end}") for end in ("png", "pdf", "parquet")]
            tell(done + 1, len(chosen))
    lead = f"{paper.title}: its experiments, reproduced{' at full size' if full else ''}."
    parts = [page.figure_section(figure) for figure in made]
    write_page(folder / "index.html", f"Figures of {paper.key}", lead, parts, [paper])
    if as_json:
        print_json({"paper": paper.key, "out": str(folder), "files": files})
        return
    terminal = console.console()
    for figure in made:
        words = f"{escape(figure.title)}. [dim]{escape(figure.caption)}[/]"
        terminal.print(f"[bold]{figure.key}[/]  {words}")
    console.note(f"wrote {len(files)} files and {folder / 'index.html'}")


def _do_jobs(target: str, recipe: PaperFigure, *, full: bool) -> None:
    """Do the long parts of a figure's work, on all cores, with progress of their own."""
    jobs = range(len(recipe.jobs(full)))
    if not jobs:
        return
    where = str(Path(target).resolve()) if is_file(target) else target
    name = f"{where}.{recipe.key}"
    tasks = [{"figure": name, "full": full, "job": job} for job in jobs]
    with console.progress(f"{target}.{recipe.key}: runs") as tell:
        for done, answer in enumerate(workers.spread(tasks, most=min(cores(), len(jobs)))):
            if answer.error is not None:
                msg = f"{name}, run {answer.task['job']}: {answer.error}; {KEPT}"
                raise ChildProcessError(msg)
            tell(done + 1, len(jobs))


def _make_figure(paper: Paper, recipe: PaperFigure, folder: Path, *, full: bool) -> figures.Figure:
    """Make a figure and its files; the record says whose it is."""
    figure = recipe.make(full)
    caption = f"{figure.caption} Source: {recipe.source}."
    figure = figure._replace(key=recipe.key, caption=caption)
    write_json(folder / f"{figure.key}.json", figure._asdict() | {"paper": paper.key})
    write_rows(folder / f"{figure.key}.parquet", figures.rows(figure))
    drawing.save(figure, folder)
    return figure


# --------------------------------------------------------------------------------------- report


def report(paths: tuple[Path, ...], out: Path | None, paper: str, *, as_json: bool) -> None:
    """``shoal report``."""
    if paper:
        paper_of(paper)  # from now on its runs are known
    if not paths:
        msg = "report needs a run folder, or what claims, reproduce or certify --json wrote."
        raise InputError(msg)
    pages = [_sections_of(path) for path in paths]
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
    page_path = out or (first / "report.html" if first.is_dir() else first.with_suffix(".html"))
    write_page(page_path, title, lead, parts, used)
    if as_json:
        print_json({"page": str(page_path)})
    else:
        console.note(f"wrote {page_path}")


def _sections_of(path: Path) -> tuple[str, str, list[page.Section], list[Paper]]:
    if (path / "run.json").is_file():
        return _run_page(path)
    if (path / "ledger.json").is_file():
        return _ledger_page(read_json(path / "ledger.json"), path)
    if path.is_dir() and (found := sorted(path.glob("*.json"))):
        return _figures_page(found)
    if path.is_file():
        value = read_json(path)
        if isinstance(value, dict) and {"paper", "theorem", "results"} <= set(value):
            return _certificate_page(value)
    msg = (
        f"{str(path)!r} is not a run folder, a ledger, a reproduction or a certificate; make one "
        "with shoal train --out, claims, reproduce or certify --json."
    )
    raise InputError(msg)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{str(path)!r} is not what it seems ({type(error).__name__}: {error}).")


def _run_page(path: Path) -> tuple[str, str, list[page.Section], list[Paper]]:
    run = load_run(path)
    theorems = read_json(path / "certificates.json")
    try:
        parts = sections.run_sections(run, theorems)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, error) from None
    paper = run.setup.paper
    title = paper.title if paper else run.setup.name
    lead = f"{title}. Made by: {run.notes.get('command', 'an unknown command')}"
    return f"A run of {run.setup.name}", lead, parts, [paper] if paper else []


def _ledger_page(value: Any, path: Path) -> tuple[str, str, list[page.Section], list[Paper]]:
    try:
        used = _papers_of(claim["id"] for claim in value["claims"])
        parts = [sections.ledger_section(value["claims"])]
        lead = _ledger_lead(value)
        page.render("check", lead, parts, command="", citations=[])
    except Exception as error:
        raise _damaged(path / "ledger.json", error) from None
    return "The ledger of claims", lead, parts, used


def _figures_page(found: list[Path]) -> tuple[str, str, list[page.Section], list[Paper]]:
    values = [(path, read_json(path)) for path in found]
    ours = [(p, v) for p, v in values if isinstance(v, dict) and "panels" in v]
    made, keys = [], []
    for path, value in ours:
        try:
            keys.append(str(value.pop("paper", "")))
            made.append(figures.figure_from_json(value))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, error) from None
    if not made:
        msg = f"{str(found[0].parent)!r} holds no figures made by shoal."
        raise InputError(msg)
    used = _papers_of(key for key in keys if key)
    return "Figures", "", [page.figure_section(figure) for figure in made], used


def _certificate_page(value: Any) -> tuple[str, str, list[page.Section], list[Paper]]:
    paper = known_paper(str(value["paper"]))
    try:
        parts = sections.certificate_sections(value)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        msg = f"that certificate is damaged ({type(error).__name__}: {error})."
        raise InputError(msg) from None
    return f"{paper.key}.{value['theorem']}", paper.title, parts, [paper]
