"""``shoal tour``: one visit to each paper, in about a minute.

What a visit shows belongs to the paper (`Paper.visit`); here the visits become a page.
"""

import time
from pathlib import Path
from typing import Any

from rich.markup import escape

from shoal import console
from shoal.cli import claiming
from shoal.cli.commands import answer, write_page
from shoal.disk.runs import require_file
from shoal.lab.claim import Claim
from shoal.lab.theorem import certify
from shoal.lab.visit import Visit
from shoal.pages import ledger as pages
from shoal.pages import page, sections
from shoal.papers import PAPERS

CLAIMS = (
    "wu2023.rank_is_needed",
    "song2024.tied_gaussian_is_better",
    "arda2026.long_tokens_make_spikes",
    "qin2025.residual_cures_correlated_tokens",
)


def tour(*, out: Path, json: bool) -> None:
    """Train, certify, test a few claims, and say what came out, here and on a page."""
    require_file(out)
    begun = time.perf_counter()
    terminal = console.console()
    terminal.quiet, say = json, terminal.print
    visited = {paper: paper.visit for paper in PAPERS.values() if paper.visit is not None}
    names = ", ".join(paper.key for paper in visited)
    say(f"[bold]shoal tour[/]: the laboratory on its papers, {names}.\n")
    results: dict[str, Any] = {}
    stories: list[page.Section] = []
    details: list[page.Section] = []
    for number, (paper, make) in enumerate(visited.items(), 1):
        visit: Visit = make()
        results[paper.key] = visit.rows
        text = f"{paper.key}: {visit.about} {visit.words}"
        tables = (("runs", visit.head, tuple(visit.cells)),)
        title = visit.title[:1].upper() + visit.title[1:]
        stories.append(page.Section(title, text, visit.verdicts, tables, visit.panels))
        for label, run, theorems in visit.runs:  # these are shown at length
            found = [certify(run, theorem).to_json(curves=True) for theorem in theorems]
            some = sections.run_sections(run, found)
            details += [part._replace(title=f"{label}: {part.title}") for part in some]
        say(f"[bold]{number}. {paper.key}: {escape(visit.title)}[/]")
        say(console.table(*visit.head, rows=[map(console.coloured, row) for row in visit.cells]))
        say(visit.words + "\n", markup=False)
    explored = [claiming.explored(c) for c in claiming.wanted(CLAIMS) if isinstance(c, Claim)]
    results["claims"] = [{k: v for k, v in r.items() if k != "paths"} for r in explored]
    say(f"[bold]{len(visited) + 1}. Some claims[/] on a few draws (shoal claims has the verdicts)")
    for record in explored:
        say(f"  {escape(record['statement'])} {escape(pages.sentence(record))}")
    lead = "A visit to each paper: what it says, what was run, and what came out."
    rows = tuple((r["statement"], pages.sentence(r)) for r in explored)
    said = "Eight draws each, not registered: no verdict. The ledger has those."
    tables = (("claims", ("claim", "what was seen"), rows),)
    parts = [*stories, page.Section("Some claims", said, tables=tables), *details]
    write_page(out, "shoal tour", lead, parts, visited)
    seconds = round(time.perf_counter() - begun, 1)
    say(f"\n{seconds} s. All of it on one page: {out}", soft_wrap=True)
    say("Next: shoal papers, shoal claims qin2025, shoal reproduce wu2023")
    answer(results | {"page": str(out), "seconds": seconds}, json=json)
