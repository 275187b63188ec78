"""``shoal tour``: one visit to each paper, in about a minute.

What a visit shows belongs to the paper (`Paper.visit`); here the visits become a page.
"""

import time
from pathlib import Path
from typing import Any

from rich.markup import escape

from shoal import console
from shoal.cli import publishing
from shoal.cli.commands import print_json
from shoal.disk.runs import require_file
from shoal.lab.ledger import ledger_json
from shoal.lab.paper import Paper
from shoal.lab.theorem import certify
from shoal.lab.visit import Visit
from shoal.pages import page, sections
from shoal.papers import PAPERS

CLAIMS = (
    "wu2023.rank_is_needed",
    "song2024.softmax_is_trapped",
    "arda2026.long_tokens_make_spikes",
    "qin2025.residual_cures_correlated_tokens",
)


def tour(page_path: Path, *, as_json: bool) -> None:
    """Train, certify, test a few claims, and say what came out, here and on a page."""
    require_file(page_path)
    begun = time.perf_counter()
    out = console.console()
    visited = [paper for paper in PAPERS.values() if paper.visit is not None]
    if not as_json:
        names = ", ".join(paper.key for paper in visited)
        out.print(f"[bold]shoal tour[/]: the laboratory on its papers, {names}.\n")
    results: dict[str, Any] = {}
    stories: list[page.Section] = []
    details: list[page.Section] = []
    for number, paper in enumerate(visited, 1):
        visit: Visit = paper.visit()  # type: ignore[misc]
        results[paper.key] = visit.rows
        stories.append(_story(paper, visit))
        details += _details(visit)
        if not as_json:
            _print(out, number, paper, visit)
    entries = publishing.ledger(publishing.wanted(CLAIMS), full=False)
    kept = ledger_json(entries)
    results["claims"] = [{k: v for k, v in claim.items() if k != "panel"} for claim in kept]
    if not as_json:
        out.print(f"[bold]{len(visited) + 1}. Some claims[/] (shoal claims tests all of them)")
        for entry in entries:
            ruling = entry.evidence.ruling
            said = f"{escape(entry.claim.statement)} {escape(entry.evidence.sentence)}"
            out.print(f"  [{publishing.RULINGS[ruling]}]{ruling}[/]  {said}")
    lead = "A visit to each paper: what it says, what was run, and what came out."
    parts = [*stories, sections.ledger_section(kept), *details]
    publishing.write_page(page_path, "shoal tour", lead, parts, visited)
    results["page"] = str(page_path)
    results["seconds"] = round(time.perf_counter() - begun, 1)
    if as_json:
        print_json(results)
    else:
        out.print(f"\n{results['seconds']} s. All of it on one page: {page_path}", soft_wrap=True)
        out.print("Next: shoal papers, shoal claims qin2025, shoal reproduce wu2023")


def _print(out: Any, number: int, paper: Paper, visit: Visit) -> None:
    out.print(f"[bold]{number}. {paper.key}: {escape(visit.title)}[/]")
    table = console.table(*visit.head)
    for row in visit.cells:
        table.add_row(*(console.coloured(cell) for cell in row))
    out.print(table)
    out.print(visit.words + "\n", markup=False)


def _story(paper: Paper, visit: Visit) -> page.Section:
    text = f"{paper.key}: {visit.about} {visit.words}"
    tables = (("runs", visit.head, tuple(visit.cells)),)
    title = visit.title[:1].upper() + visit.title[1:]
    return page.Section(title, text, verdicts=visit.verdicts, tables=tables, panels=visit.panels)


def _details(visit: Visit) -> list[page.Section]:
    """Runs that are shown at length."""
    return [
        section._replace(title=f"{title}: {section.title}")
        for title, run, theorems in visit.runs
        for section in sections.run_sections(
            run, [certify(run, theorem).to_json(curves=True) for theorem in theorems]
        )
    ]
