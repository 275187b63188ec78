"""Figures as data: what to draw, without drawing. The report and the files draw the same values."""

from typing import Any, NamedTuple

import numpy as np


class Curve(NamedTuple):
    """A line with a band: y against x, and where most seeds lie."""

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Image(NamedTuple):
    """A heat map, e.g. one attention matrix."""

    label: str
    values: np.ndarray  # rows downward


class Surface(NamedTuple):
    """Heights over a plane."""

    label: str
    x: np.ndarray  # along the columns of values
    y: np.ndarray  # along the rows
    values: np.ndarray


class Panel(NamedTuple):
    """Axes with curves, an image or a surface."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...] = ()
    images: tuple[Image, ...] = ()
    log_x: bool = False
    log_y: bool = False
    points: bool = False  # markers only, where x has no order
    surface: Surface | None = None  # as contour lines, with the curves on top
    solid: bool = False  # the surface in three dimensions instead
    limits: tuple[tuple[str, float], ...] = ()  # level lines: what the number is compared with
    note: str = ""  # a sentence below: what is shown


class Figure(NamedTuple):
    """Panels side by side, with what they show."""

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]


def band(label: str, x: Any, samples: Any, *, positive: bool = False) -> Curve:
    """Median over seeds (the leading axis) with the band from the first to the third quartile.

    ``positive`` is for a logarithmic axis: what is not positive counts as zero, and points whose
    median is zero are left out.

    >>> curve = band("a", np.arange(2), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]))
    >>> curve.y.tolist(), curve.low.tolist()
    ([3.0, 4.0], [2.0, 3.0])
    """
    samples, x = np.atleast_2d(np.asarray(samples, float)), np.asarray(x, float)
    # a seed that diverged counts as infinitely high: survivors alone would look too good
    samples = np.where(np.isfinite(samples), samples, np.inf)
    if not samples.size:  # nothing can be shown
        return Curve(label, *(np.zeros(0) for _ in range(4)))
    if positive:  # a seed that reached zero stays in the median: the others would look too bad
        samples = np.maximum(samples, 0.0)
    with np.errstate(invalid="ignore"):
        low, middle, high = np.quantile(samples, [0.25, 0.5, 0.75], axis=0)
    shown = np.isfinite(middle) & (middle > 0 if positive else True)
    low, middle, high = low[shown], middle[shown], high[shown]
    if positive:
        least = np.min(samples[samples > 0], initial=np.inf)
        low = np.where(low > 0, low, np.minimum(least, middle))
    high = np.where(np.isfinite(high), high, np.max(middle, initial=0.0))
    return Curve(label, x[shown], middle, low, np.maximum(high, middle))


def thinned(count: int, most: int) -> np.ndarray:
    """Positions of at most ``most`` of ``count`` points, the first and the last among them.

    >>> thinned(5, 10).tolist(), thinned(1000, 4).tolist()
    ([0, 1, 2, 3, 4], [0, 333, 666, 999])
    """
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).astype(int))


def rows(figure: Figure) -> list[dict]:
    """Every number of a figure, one row a point."""
    found = []
    for panel in figure.panels:
        planes = [
            Surface(label, np.arange(F.shape[1]), np.arange(F.shape[0]), F)
            for label, F in panel.images
        ]
        if panel.surface is not None and not panel.solid:
            planes.append(panel.surface)
        points = [(c.label, *p) for c in panel.curves for p in zip(*c[1:], strict=True)]
        for label, x, y, values in planes:
            points += [(label, x[j], y[i], F, F) for (i, j), F in np.ndenumerate(values)]
        for label, *numbers in points:
            named = dict(zip(("x", "y", "low", "high"), map(float, numbers), strict=True))
            found.append({"panel": panel.title, "label": label} | named)
    return found


def panel_from_json(value: dict) -> Panel:
    """A panel from its JSON form (`store.plain` of it)."""

    def part(kind: Any, about: dict) -> Any:
        return kind(about["label"], *(np.array(about[k], float) for k in kind._fields[1:]))

    curves = tuple(part(Curve, c) for c in value["curves"])
    images = tuple(part(Image, i) for i in value["images"])
    plane = value.get("surface") and part(Surface, value["surface"])
    limits = tuple((str(name), float(level)) for name, level in value.get("limits", ()))
    parts = {"curves": curves, "images": images, "surface": plane, "limits": limits}
    return Panel(**(value | parts))


def figure_from_json(value: dict) -> Figure:
    """A figure from its JSON form."""
    return Figure(**(value | {"panels": tuple(panel_from_json(p) for p in value["panels"])}))
