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
from shoal.lab.paper import Paper
from shoal.lab.theorem import certify
from shoal.lab.visit import Visit
from shoal.pages import ledger as pages
from shoal.pages import page, sections
from shoal.pages.ledger_plot import effect_panel
from shoal.papers import PAPERS

CLAIMS = (
    "wu2023.rank_is_needed",
    "song2024.tied_gaussian_is_better",
    "arda2026.long_tokens_make_spikes",
    "qin2025.residual_cures_correlated_tokens",
)


def tour(*, out: Path, interactive: bool, json: bool) -> None:
    """Train, certify, test a few claims, and say what came out, here and on a page."""
    require_file(out)
    begun = time.perf_counter()
    terminal = console.console()
    terminal.quiet, say = json, terminal.print
    visited = {paper: paper.visit for paper in PAPERS.values() if paper.visit is not None}
    names = ", ".join(paper.key for paper in visited)
    say(f"[bold]shoal tour[/]: the laboratory on its papers, {names}.\n")
    results: dict[str, Any] = {}
    parts: list[page.Section] = []
    for number, (paper, make) in enumerate(visited.items(), 1):
        visit: Visit = make()
        results[paper.key] = visit.rows
        parts += _story(paper, visit)
        say(f"[bold]{number}. {paper.key}: {escape(visit.title)}[/]")
        say(console.table(*visit.head, rows=[map(console.coloured, row) for row in visit.cells]))
        say(visit.words + "\n", markup=False)
    explored = [claiming.explored(c) for c in claiming.wanted(CLAIMS) if isinstance(c, Claim)]
    results["claims"] = [{k: v for k, v in r.items() if k != "paths"} for r in explored]
    say(f"[bold]{len(visited) + 1}. Some claims[/] on a few draws (shoal claims has the verdicts)")
    for record in explored:
        say(f"  {escape(record['statement'])} {escape(pages.sentence(record))}")
    lead = "A visit to each paper: what it says, what was run, and what came out."
    parts += [_claim_card(record) for record in explored]
    write_page(out, "shoal tour", lead, parts, visited, interactive=interactive)
    seconds = round(time.perf_counter() - begun, 1)
    say(f"\n{seconds} s. All of it on one page: {out}", soft_wrap=True)
    say("Next: shoal papers, shoal claims qin2025, shoal reproduce wu2023")
    answer(results | {"page": str(out), "seconds": seconds}, json=json)


def _story(paper: Paper, visit: Visit) -> list[page.Section]:
    """A visit as cards: the story, then the runs that are shown at length."""
    title, about = (text[:1].upper() + text[1:] for text in (visit.title, visit.about))
    first = page.Section(
        title, about, visit.verdicts, (("", visit.head, tuple(visit.cells)),), visit.panels,
        finding=visit.finding or visit.words.splitlines()[0], label=paper.key,
        seen=visit.words,
    )  # fmt: skip
    cards = [first]
    for label, run, theorems in visit.runs:
        found = [certify(run, theorem).to_json(curves=True) for theorem in theorems]
        for part in sections.run_sections(run, found):
            cards.append(part._replace(title=f"{label}: {part.title}", finding=""))
    return [card._replace(group=f"{paper.key}: {paper.title}") for card in cards]


def _claim_card(record: dict[str, Any]) -> page.Section:
    """A claim on a few draws, without a verdict."""
    said = pages.sentence(record)
    return page.Section(
        record["statement"], verdicts=(("eight draws, not registered", "exploratory"),),
        source=f"{record['claim']}; provenance: {record['provenance']}", seen=said,
        finding=f"Seen in {record['seeds']['above']} of {record['seeds']['counted']} draws: "
        f"{record['statement']}", label="claim",
        panels=(effect_panel(record),), group="Some claims, on a few draws",
        more_details=(("rule", pages.rule_text(record)), ("why this limit", record["why"])),
        more_title="Rule and limit",
    )  # fmt: skip
