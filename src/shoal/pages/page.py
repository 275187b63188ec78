"""One self-contained HTML page: findings first, inline SVG, every string escaped, no network.

A page is a list of sections, each a card. `render` puts what they found on top, and contents;
all that a reader needs is there without scripts. With ``interactive`` plotly's script is put in
as well (4.8 MB), and draws the same panels.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from shoal.disk.runs import versions
from shoal.figures import Curve, Figure, Image, Panel, thinned
from shoal.jsons import plain
from shoal.pages import images, svg
from shoal.pages.words import words

Table = tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]
"""Caption, head and rows."""
Slides = tuple[tuple[str, tuple[Image, ...]], ...]
"""Films: a title, and its heat maps in order."""

VERDICTS = frozenset((
    "holds", "violated", "not applicable", "unresolved", "supported", "contradicted",
    "inconclusive", "exploratory", "stale", "superseded", "not testable", "converges", "stuck",
    "undecided", "at the floor", "slow", "diverged",
))  # fmt: skip
MOST_BESIDE = 6
"""Columns of a table that fit beside a chart."""
_NUMBER = re.compile(r"[-+−≤=<>~ ]*\d[\d.,e+\-– ]*%?")


class Section(NamedTuple):
    """A part of the page; what is empty is left out."""

    title: str
    text: str = ""
    verdicts: tuple[tuple[str, str], ...] = ()  # what, verdict
    tables: tuple[Table, ...] = ()
    panels: tuple[Panel, ...] = ()
    slides: Slides = ()  # heat maps along the steps
    details: tuple[tuple[str, str], ...] = ()
    group: str = ""  # heading that it shares with its neighbours
    finding: str = ""  # the sentence for the top of the page
    label: str = ""  # beside that sentence
    source: str = ""  # provenance
    formula: str = ""  # LaTeX between dollar signs
    seen: str = ""  # what came out, in a sentence
    more: tuple[Table, ...] = ()  # folded
    more_details: tuple[tuple[str, str], ...] = ()  # folded
    more_title: str = "Details"
    files: tuple[tuple[str, str], ...] = ()  # label, address beside the page
    gauges: tuple[svg.Gauge, ...] = ()  # hypotheses, both sides of each


def figure_section(figure: Figure) -> Section:
    """A figure as a section."""
    return Section(figure.title, figure.caption, panels=figure.panels)


def _text(name: str) -> str:
    return resources.files("shoal.pages").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def environment() -> Any:
    """Templates of this folder, with every value escaped."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"words": words, "numeric": _is_number}
    made.globals["verdicts"] = VERDICTS
    return made


def _is_number(value: Any) -> bool:
    return _NUMBER.fullmatch(str(value)) is not None


def shell(*scripts: str) -> dict[str, Any]:
    """What all pages share: style, scripts, and the hashes by which a browser knows these."""
    sums = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in sums)
    return {"style": _text("page.css"), "scripts": scripts, "hashes": hashes or "'none'"}


def script() -> str:
    """The page's own script."""
    return _text("page.js")


def render(
    title: str, lead: str, sections: Sequence[Section], *, command: str,
    citations: Sequence[str], interactive: bool = False,
) -> str:  # fmt: skip
    """The page as a string."""
    panels: list[dict[str, Any]] = []
    made: list[dict[str, Any]] = []
    for number, section in enumerate(sections, 1):
        charts = _charts(section.panels, panels)
        before = sections[number - 2].group if number > 1 else ""
        made.append(section._asdict() | {
            "id": f"s{number}", "charts": charts, "films": _films(section.slides),
            "gauges": svg.gauges(section.gauges), "beside": _fits_beside(section),
            "heading": section.group if section.group != before else "",
            "marks": {verdict for _, verdict in section.verdicts},
        })  # fmt: skip
    scripts = [script()] + ([_plotly(), _text("interactive.js")] if interactive else [])
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment().get_template("page.html.j2").render(
        title=title, lead=lead, sections=made, findings=[s for s in made if s["finding"]],
        contents=_contents(made), panels=panels if interactive else [], command=command,
        citations=citations, versions=versions(), made=when, **shell(*scripts),
    )  # fmt: skip


def _fits_beside(section: Section) -> bool:
    """Whether tables and details stand beside the only chart; a wider table would be cut there."""
    narrow = all(len(head) <= MOST_BESIDE for _, head, _ in section.tables)
    return len(section.panels) == 1 and narrow and bool(section.tables or section.details)


def _contents(made: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Groups, and sections that are in none."""
    found = []
    for section in made:
        if section["heading"]:
            found.append((f"{section['id']}-group", section["heading"]))
        elif not section["group"]:
            found.append((section["id"], section["title"]))
    return found


def _charts(shown: Sequence[Panel], panels: list[dict[str, Any]]) -> list[str]:
    """Panels as SVG on common scales; also noted as data, for plotly."""
    shared = svg.Shared.of(shown)
    charts = []
    for panel in shown:
        charts.append(svg.chart(panel, shared, place=len(panels)))
        curves = tuple(_thin(curve) for curve in panel.curves)
        panels.append(plain(panel._replace(curves=curves)._asdict() | {"ends": shared.image}))
    return charts


def _thin(curve: Curve) -> Curve:
    keep = thinned(len(curve.x), 600)
    return Curve(curve.label, *(np.asarray(line)[keep] for line in curve[1:]))


def _films(slides: Slides) -> list[dict[str, Any]]:
    """Heat maps along the steps, all on one scale; three of each film show without scripts."""
    every = (float(np.nanmax(image.values)) for _, frames in slides for image in frames)
    top = max(every, default=0.0) or 1.0
    bar = images.data_uri(np.linspace(0, 1, images.LEVELS)[None], 0.0, 1.0)
    return [
        {
            "title": title, "bar": bar, "top": f"{top:.2g}",
            "frames": [(one.label, images.data_uri(one.values, 0.0, top)) for one in frames],
            "kept": thinned(len(frames), 3).tolist(),
        }
        for title, frames in slides
    ]  # fmt: skip
