"""One self-contained HTML page: no network, script inlined, every string escaped."""

import functools
from datetime import UTC, datetime
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from shoal.disk.runs import versions
from shoal.figures import Curve, Figure, Image, Panel, thinned
from shoal.jsons import plain

Table = tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]
"""Caption, head and rows."""


class Section(NamedTuple):
    """A part of the page; what is empty is left out."""

    title: str
    text: str = ""
    verdicts: tuple[tuple[str, str], ...] = ()  # what, verdict
    tables: tuple[Table, ...] = ()
    panels: tuple[Panel, ...] = ()
    slides: tuple[tuple[str, tuple[Image, ...]], ...] = ()  # heat maps along the steps
    details: tuple[tuple[str, str], ...] = ()


def chart(panel: Panel) -> dict[str, Any]:
    """A panel as data for the page's script."""
    curves = []
    for curve in panel.curves:
        keep = thinned(len(curve.x), 600)  # more points than pixels help nobody
        curves.append(Curve(curve.label, *(np.asarray(line)[keep] for line in curve[1:])))
    shown = panel._replace(curves=tuple(curves), images=())
    image = panel.images[0].values if panel.images else None
    return plain(shown._asdict() | {"x": panel.x_label, "y": panel.y_label, "image": image})


def figure_section(figure: Figure) -> Section:
    """A figure as a section with interactive panels."""
    return Section(figure.title, figure.caption, panels=figure.panels)


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def render(
    title: str, lead: str, sections: list[Section], *, command: str, citations: list[str]
) -> str:
    """The page as a string."""
    import jinja2

    source = resources.files("shoal.pages").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    charts: list[dict[str, Any]] = []
    slides: list[dict[str, Any]] = []

    def add(panel: Panel) -> int:
        charts.append(chart(panel))
        return len(charts) - 1

    def slide(item: tuple[str, tuple[Image, ...]]) -> dict[str, Any]:
        label, images = item
        labels, values = [i.label for i in images], [i.values for i in images]
        slides.append(plain({"title": label, "labels": labels, "values": values}))
        return {"index": len(slides) - 1, "last": len(images) - 1, "first": labels[0]}

    made = [
        section._asdict()
        | {
            "charts": [add(panel) for panel in section.panels],
            "slides": [slide(item) for item in section.slides],
        }
        for section in sections
    ]
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.from_string(source).render(
        title=title, lead=lead, sections=made, charts=charts, slides=slides, plotly=_plotly(),
        command=command, citations=citations, versions=versions(), made=when,
    )  # fmt: skip
