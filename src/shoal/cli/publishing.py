"""``claims``, ``reproduce`` and ``report``: what is kept and shown."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rich.markup import escape

from shoal import workers
from shoal.cli import show
from shoal.errors import InputError, nearest
from shoal.files import cache_folder
from shoal.session import begin

begin()

from shoal import figures, store  # noqa: E402
from shoal.claims import Claim, Ruling  # noqa: E402
from shoal.cli.work import print_json  # noqa: E402
from shoal.experiments import FigureRecipe, Paper  # noqa: E402
from shoal.ledger import Entry, ledger_json, measured  # noqa: E402
from shoal.papers import PAPERS, paper_of  # noqa: E402
from shoal.programs import cores  # noqa: E402
from shoal.report import drawing, page, sections  # noqa: E402

RULINGS = {
    Ruling.SUPPORTED: "green",
    Ruling.CONTRADICTED: "bold red",
    Ruling.INCONCLUSIVE: "yellow",
}


KEPT = "What is finished is kept; Ctrl-C and the same command continue."


def command() -> str:
    """The exact command that is running."""
    return shlex.join(["shoal", *sys.argv[1:]])


def write_page(
    path: Path, title: str, lead: str, parts: list[page.Section], used: list[Paper]
) -> None:
    """Render and write a page, whole or not at all."""
    cited = [sections.citation(paper) for paper in used]
    text = page.render(title, lead, parts, command=command(), citations=cited)
    store.write_whole(path, text.encode())


# -------------------------------------------------------------------------------------- claims


def wanted(names: tuple[str, ...]) -> list[Claim]:
    """Claims by the name of a paper or their own; all, if none is named."""
    if not names:
        return [claim for paper in PAPERS.values() for claim in paper.claims]
    found: list[Claim] = []
    for name in names:
        paper = paper_of(name.partition(".")[0])
        mine = [c for c in paper.claims if name in (paper.key, c.key)]
        if not mine:
            msg = f"no claim is called {name!r}; {nearest(name, [c.key for c in paper.claims])}"
            raise InputError(msg)
        found += mine
    return list(dict.fromkeys(found))


def ledger(chosen: list[Claim], *, full: bool) -> list[Entry]:
    """Measure and decide, with progress, keeping what is done."""
    entries = []
    folder = cache_folder() / "measurements"
    with show.progress("claims") as tell:
        for done, claim in enumerate(chosen):
            plan = claim.full if full else claim.quick
            try:
                found, seconds, kept = measured(claim, plan, folder)
            except InputError as error:  # e.g. the text extra is not installed
                show.note(f"{claim.key} is left out: {error}")
                continue
            entries.append(Entry(claim, plan, claim.decide(found), seconds, kept))
            tell(done + 1, len(chosen))
    if chosen and not entries:
        msg = "none of these claims could be measured here; see the reasons above."
        raise InputError(msg)
    return entries


def claims(
    names: tuple[str, ...], out: Path, markdown: Path | None, *, full: bool, as_json: bool
) -> None:
    """``shoal claims``."""
    chosen = wanted(names)
    if full:
        show.note(_cost([claim.full for claim in chosen], len(chosen), "claims", KEPT))
    entries = ledger(chosen, full=full)
    kept = ledger_json(entries)
    about = _ledger_file(kept, full=full)
    store.write_json(out / "ledger.json", about)
    if markdown is not None:
        store.write_whole(markdown, _markdown(about).encode())
    used = [p for p in PAPERS.values() if any(e.claim in p.claims for e in entries)]
    parts = [sections.ledger_section(kept)]
    write_page(out / "index.html", "Claims on trial", _ledger_lead(about), parts, used)
    if as_json:
        print_json([{k: v for k, v in claim.items() if k != "panel"} for claim in kept])
        return
    terminal = show.console()
    rows = show.table("claim", "verdict", "effect", "95% interval", "runs", "seconds")
    for entry in entries:
        found = entry.evidence
        rows.add_row(
            f"{escape(entry.claim.statement)}\n[dim]{escape(entry.claim.key)}[/]",
            f"[{RULINGS[found.ruling]}]{found.ruling}[/]",
            show.number(found.effect),
            f"\\[{show.number(found.low)}, {show.number(found.high)}]",
            str(found.runs),
            f"{entry.seconds:.1f}" + (" (kept)" if entry.kept else ""),
        )
    terminal.print(rows)
    show.note(f"wrote {out / 'index.html'} and {out / 'ledger.json'}")


_LEAD = (
    "Each claim is tested by a rule that stands in code; where a rule was revised after a first "
    "look at the same seeds, it says so, and is no confirmation. A paper's statement is "
    "given in our words; where its setting is not known, the setting is ours."
)


def _ledger_lead(about: dict[str, Any]) -> str:
    return (
        f"{_LEAD} Made on {about['made']} at {about['size']} size with shoal "
        f"{about['versions']['shoal']} and jax {about['versions']['jax']} on {about['machine']}, "
        f"by: {about['command']}"
    )


def _ledger_file(kept: list[dict[str, Any]], *, full: bool) -> dict[str, Any]:
    return {
        "format": store.FORMAT,
        "kind": "ledger",
        "size": "full" if full else "quick",
        "command": command(),
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "versions": store.versions(),
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


def _cost(plans: list[Any], count: int, what: str, after: str) -> str:
    """Say beforehand what full size will cost."""
    hours = 0.0
    for plan in plans:
        if hasattr(plan, "minutes"):  # measured once by the paper's author
            hours += plan.minutes / 60
            continue
        tokens = plan.num_samples * plan.num_tokens
        step = sum(18.0 * tokens * plan.dim * width for width in plan.widths)
        flops = 6 * plan.num_seeds * plan.num_steps * step  # about six runs each, with tuning
        hours += flops / 2e10 / 3600
    return f"{count} {what} at full size: about {hours:.1f} hours on two cores, roughly. {after}"


# ------------------------------------------------------------------------------------- figures


def reproduce(name: str, out: Path | None, *, full: bool, as_json: bool) -> None:
    """``shoal reproduce``."""
    key, dot, wanted = name.partition(".")
    paper = paper_of(key)
    recipes = [r for r in paper.figures if not dot or r.key == wanted]
    if not recipes:
        msg = f"{key} has no figure {wanted!r}; {nearest(wanted, [r.key for r in paper.figures])}"
        raise InputError(msg)
    folder = out if out is not None else Path(f"figures-{key}")
    if full and paper.claims:
        show.note(_cost([paper.claims[0].full] * len(recipes), len(recipes), "figures", ""))
    made, files = [], []
    with show.progress(f"{key}: figures") as tell:
        for done, recipe in enumerate(recipes):
            _work(paper, recipe, full=full)
            figure = _figure(recipe, folder, full=full)
            made.append(figure)
            files += [str(folder / f"{figure.key}.{end}") for end in ("png", "pdf", "parquet")]
            tell(done + 1, len(recipes))
    lead = f"{paper.title}: its experiments, made anew{' at full size' if full else ''}."
    parts = [page.figure_section(figure) for figure in made]
    write_page(folder / "index.html", f"Figures of {key}", lead, parts, [paper])
    if as_json:
        print_json({"paper": key, "out": str(folder), "files": files})
    else:
        terminal = show.console()
        for figure in made:
            words = f"{escape(figure.title)}. [dim]{escape(figure.caption)}[/]"
            terminal.print(f"[bold]{figure.key}[/]  {words}")
        show.note(f"wrote {len(files)} files and {folder / 'index.html'}")


def _work(paper: Paper, recipe: FigureRecipe, *, full: bool) -> None:
    """Do the long parts of a figure's work, on all cores, with progress of their own."""
    name = f"{paper.key}.{recipe.key}"
    jobs = range(len(recipe.jobs(full)))
    if jobs:
        tasks = [{"figure": name, "full": full, "job": job} for job in jobs]
        with show.progress(f"{name}: runs") as tell:
            for done, answer in enumerate(workers.spread(tasks, most=min(cores(), len(jobs)))):
                if answer.error is not None:
                    msg = f"{name}, run {answer.task['job']}: {answer.error}; {KEPT}"
                    raise ChildProcessError(msg)
                tell(done + 1, len(jobs))


def _figure(recipe: FigureRecipe, folder: Path, *, full: bool) -> figures.Figure:
    """Make a figure and its files."""
    figure = recipe.make(full)
    store.write_json(folder / f"{figure.key}.json", figure)
    store.write_rows(folder / f"{figure.key}.parquet", figures.rows(figure))
    drawing.save(figure, folder)
    return figure


# --------------------------------------------------------------------------------------- report


def report(path: Path, out: Path | None, *, as_json: bool) -> None:
    """``shoal report``."""
    title, lead, parts, used = _sections_of(path)
    page_path = out or (path / "report.html" if path.is_dir() else path.with_suffix(".html"))
    write_page(page_path, title, lead, parts, used)
    if as_json:
        print_json({"page": str(page_path)})
    else:
        show.note(f"wrote {page_path}")


def _sections_of(path: Path) -> tuple[str, str, list[page.Section], list[Paper]]:
    if (path / "run.json").is_file():
        return _run_page(path)
    if (path / "ledger.json").is_file():
        return _ledger_page(store.read_json(path / "ledger.json"), path)
    if path.is_dir() and (found := sorted(path.glob("*.json"))):
        return _figures_page(found)
    if path.is_file():
        value = store.read_json(path)
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
    experiment, run = store.load_run(path, PAPERS)
    theorems = store.read_json(path / "certificates.json")
    arrays = store.read_npz(path / "probes.npz") if (path / "probes.npz").is_file() else {}
    try:
        parts = sections.run_sections(experiment, run, theorems, arrays)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, error) from None
    about = store.read_json(path / "run.json")
    lead = f"{experiment.paper.title}. Made by: {about.get('command', 'an unknown command')}"
    return f"A run of {experiment.paper.key}", lead, parts, [experiment.paper]


def _ledger_page(value: Any, path: Path) -> tuple[str, str, list[page.Section], list[Paper]]:
    try:
        keys = {claim["id"].partition(".")[0] for claim in value["claims"]}
        parts = [sections.ledger_section(value["claims"])]
        lead = _ledger_lead(value)
        page.render("check", lead, parts, command="", citations=[])
    except Exception as error:
        raise _damaged(path / "ledger.json", error) from None
    return "Claims on trial", lead, parts, [p for k, p in PAPERS.items() if k in keys]


def _figures_page(found: list[Path]) -> tuple[str, str, list[page.Section], list[Paper]]:
    values = [(path, store.read_json(path)) for path in found]
    ours = [(p, v) for p, v in values if isinstance(v, dict) and "panels" in v]
    made = []
    for path, value in ours:
        try:
            made.append(figures.figure_from_json(value))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, error) from None
    if not made:
        msg = f"{str(found[0].parent)!r} holds no figures of ours."
        raise InputError(msg)
    keys = {figure.key for figure in made}
    used = [p for p in PAPERS.values() if keys & {recipe.key for recipe in p.figures}]
    return "Figures", "", [page.figure_section(figure) for figure in made], used


def _certificate_page(value: Any) -> tuple[str, str, list[page.Section], list[Paper]]:
    paper = paper_of(str(value["paper"]))
    try:
        parts = sections.certificate_sections(value)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        msg = f"that certificate is damaged ({type(error).__name__}: {error})."
        raise InputError(msg) from None
    return f"{paper.key}.{value['theorem']}", paper.title, parts, [paper]
