"""A panel as inline SVG: a few kilobytes, coloured by the page's style, legible without scripts.

Everything is drawn in a box of 440 by about 250 units, so that a panel that fills a telephone's
screen still has legible text. The script of the page reads ``data-x`` and ``data-y`` of a curve
to show numbers where a reader points.
"""

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from shoal.figures import Curve, Image, Panel, Surface, thinned
from shoal.pages import images, scales
from shoal.pages.scales import Axis
from shoal.pages.words import pieces, words

WIDE, HIGH, RIGHT, TOP, FOOT = 440, 250, 14, 24, 38
FEW = 12  # a curve of at most so many points shows them
MOST_POINTS = 200  # more points than pixels help nobody
LONG = 52  # letters of a name that fit above a chart
SHADES = 6  # colours and dashes of the style sheet

Range = tuple[float, float]


class Gauge(NamedTuple):
    """A hypothesis: its left side as a multiple of the right one, which is the limit."""

    name: str
    ratio: float | None  # None where a ratio says nothing
    said: str
    holds: bool | None


class Shared(NamedTuple):
    """Scales that panels which are compared have in common."""

    image: Range = (0.0, 1.0)
    levels: tuple[float, ...] = ()

    @classmethod
    def of(cls, panels: Iterable[Panel]) -> "Shared":
        """One scale for all heat maps, and one for all surfaces, of some panels."""
        shown = list(panels)
        maps = [i.values[np.isfinite(i.values)] for panel in shown for i in panel.images]
        seen = np.concatenate([np.zeros(1), *(part.ravel() for part in maps)])
        planes = [p.surface.values.ravel() for p in shown if p.surface is not None]
        levels = scales.quantile_levels(np.concatenate(planes)) if planes else ()
        return cls((float(seen.min()), float(seen.max()) or 1.0), tuple(map(float, levels)))


def chart(
    panel: Panel, shared: Shared | None = None, *, place: int = 0, y_range: Range | None = None
) -> str:
    """The panel with its title, its legend where there is something to tell apart, and its note."""
    shared = shared or Shared.of([panel])
    if panel.solid:
        drawn = _solid(panel)
    elif panel.images or panel.surface is not None:
        drawn = _plane(panel, shared)
    else:
        drawn = _curves(panel, y_range)
    named = panel.title and panel.title != panel.y_label  # else the axis says it already
    title = f"<figcaption>{words(panel.title)}</figcaption>" if named else ""
    if len(panel.y_label) > LONG:
        title += f'<p class="note">{words(panel.y_label)}:</p>'
    note = f'<p class="note">{words(panel.note)}</p>' if panel.note else ""
    name = f' data-chart="{place}"'
    return f'<figure class="chart"{name}>{title}{drawn}{_legend(panel.curves)}{note}</figure>'


def _legend(curves: Sequence[Curve]) -> str:
    """Names of curves, as buttons that hide and show them; none for one curve."""
    if len(curves) < 2:
        return ""
    items = []
    for k, curve in enumerate(curves):
        sample = (
            f'<svg viewBox="0 0 26 8" class="k{k % SHADES}"><path class="line" d="M1 4H25"/></svg>'
        )
        items.append(
            f'<button type="button" data-k="{k}" aria-pressed="true">{sample}'
            f"<span>{words(curve.label)}</span></button>"
        )
    return f'<div class="legend">{"".join(items)}</div>'


def _svg(parts: Iterable[str], label: str, high: float = HIGH, axes: str = "") -> str:
    return (
        f'<svg viewBox="0 0 {WIDE} {high:g}" role="img" aria-label="{escape(label)}"{axes}>'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "end", kind: str = "") -> str:
    """Text, its indices lowered and its powers raised."""
    parts, at = [], 0
    for how, piece in pieces(text):
        shift = {"sup": -5, "sub": 3}.get(how, 0)
        marks = f' dy="{shift - at}"' if shift != at else ""
        marks += ' class="power"' if shift else ' font-style="italic"' if how else ""
        parts.append(f"<tspan{marks}>{escape(piece)}</tspan>" if marks else escape(piece))
        at = shift
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{mark}>{"".join(parts)}</text>'


# -------------------------------------------------------------------------------------- curves


def _curves(panel: Panel, y_range: Range | None) -> str:
    curves = [_thin(curve) for curve in panel.curves]
    lines = [np.concatenate([c.y, c.low, c.high]) for c in curves]
    levels = [level for _, level in panel.limits]
    seen = np.concatenate([*lines, levels]) if curves else np.array(levels, float)
    y_low, y_high = y_range or scales.ends(seen, log=panel.log_y, room=0.06)
    places = np.concatenate([c.x for c in curves]) if curves else np.zeros(0)
    x_low, x_high = scales.ends(places, log=panel.log_x, room=0.03 if panel.points else 0.0)
    base = 0.0 if panel.log_y else scales.base_of(y_low, y_high)
    y_ticks = _ticks(y_low, y_high, log=panel.log_y, base=base)
    left = 14 + max([len(label.replace("^", "")) for _, label in y_ticks] or [1]) * 7.5
    x = Axis(x_low, x_high, left, WIDE - RIGHT, panel.log_x)
    y = Axis(y_low, y_high, HIGH - FOOT, TOP, panel.log_y)
    alone = np.unique(places).tolist()
    counted = alone if len(alone) == 1 else scales.measured_ticks(places.tolist(), log=panel.log_x)
    x_ticks = [(v, scales.tick_label(v)) for v in counted] if counted else _ticks(
        x_low, x_high, log=panel.log_x
    )  # fmt: skip
    name = panel.y_label or panel.title
    shown = name if len(name) <= LONG else ""  # a longer one stands above the picture
    if base:
        shown = f"{shown}, minus {scales.tick_label(base)}".lstrip(", ")
    parts = [*_frame(x, y, x_ticks, y_ticks), _text(0, 13, shown, "start", "name")]
    parts.append(_text(WIDE - RIGHT, HIGH - 3, panel.x_label, "end", "name"))
    parts += [_curve(k, curve, x, y, points=panel.points) for k, curve in enumerate(curves)]
    parts += _limits(panel.limits, x, y)
    label = f"{panel.title or name}: {name} against {panel.x_label}"
    numbers = (*x[:4], int(x.log), *y[:4], int(y.log))
    scale = f' data-scale="{" ".join(f"{float(v):.10g}" for v in numbers)}" tabindex="0"'
    return _svg(parts, label, axes=scale)


def _thin(curve: Curve) -> Curve:
    keep = thinned(len(curve.x), MOST_POINTS)
    return Curve(curve.label, *(np.asarray(line, float)[keep] for line in curve[1:]))


def _ticks(low: float, high: float, *, log: bool, base: float = 0.0) -> list[tuple[float, str]]:
    if log:
        return [(v, scales.tick_label(v)) for v in scales.log_ticks(low, high)]
    found = scales.linear_ticks(low - base, high - base, scales.MOST_TICKS - 1)
    return [(v + base, scales.tick_label(v)) for v in found]


def _frame(
    x: Axis, y: Axis, x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[tuple[float, str]],
    *, grid: bool = True,
) -> list[str]:  # fmt: skip
    """Grid lines and the labels of both axes."""
    level = "".join(f"M{x.start:g} {y(v):g}H{x.end:g}" for v, _ in y_ticks if grid)
    parts = [
        f'<path class="grid" d="{level}"/>',
        f'<path class="axis" d="M{x.start:g} {y.start:g}H{x.end:g}"/>',
    ]
    parts += [_text(x.start - 6, y(v) + 4, label) for v, label in y_ticks]
    taken = -100.0
    for value, label in x_ticks:
        half = 4.0 * len(label)
        if x(value) - half < taken or not x.holds(value):  # labels never touch
            continue
        taken = x(value) + half + 8
        at = min(x(value), WIDE - half)
        parts.append(_text(at, y.start + 17, label, "middle"))
        parts.append(f'<path class="axis" d="M{x(value):g} {y.start:g}v4"/>')
    return parts


def _points(xs: Iterable[float], ys: Iterable[float], x: Axis, y: Axis) -> list[str]:
    return [f"{x(a):g} {y(b):g}" for a, b in zip(xs, ys, strict=True)]


def _curve(k: int, curve: Curve, x: Axis, y: Axis, *, points: bool) -> str:
    """A curve with its band; points that lie beyond the frame are hollow, on its edge."""
    parts = []
    spread = bool((curve.high > curve.low).any())
    if spread and not points and len(curve.x) > 1:
        upper = _points(curve.x, curve.high, x, y)
        lower = _points(curve.x[::-1], curve.low[::-1], x, y)
        parts.append(f'<path class="band" d="M{"L".join(upper + lower)}Z"/>')
    elif spread:
        bars = zip(curve.x, curve.low, curve.high, strict=True)
        lines = "".join(f"M{x(a):g} {y(lo):g}V{y(hi):g}" for a, lo, hi in bars)
        parts.append(f'<path class="bar" d="{lines}"/>')
    places = _points(curve.x, curve.y, x, y)
    if not points and len(places) > 1:
        parts.append(f'<path class="line" d="M{"L".join(places)}"/>')
    if points or len(places) <= FEW:
        inside = [p for p, v in zip(places, curve.y, strict=True) if y.holds(v)]
        beyond = [p for p, v in zip(places, curve.y, strict=True) if not y.holds(v)]
        for kind, some in (("dots", inside), ("beyond", beyond)):
            if some:
                parts.append(f'<path class="{kind}" d="M{"h0M".join(some)}h0"/>')
    xs, ys = (" ".join(f"{v:.4g}" for v in line) for line in (curve.x, curve.y))
    name = escape(curve.label)
    about = f'data-k="{k}" data-name="{name}" data-x="{xs}" data-y="{ys}"'
    return f'<g class="k{k % SHADES}" {about}>{"".join(parts)}</g>'


def _limits(limits: Sequence[tuple[str, float]], x: Axis, y: Axis) -> list[str]:
    parts = []
    for name, level in limits:
        at = y(level)
        parts.append(f'<path class="limit" d="M{x.start:g} {at:g}H{x.end:g}"/>')
        parts.append(_text(x.end - 2, at - 4 if at > TOP + 12 else at + 13, name, "end", "limit"))
    return parts


# ------------------------------------------------------------------------- heat maps, surfaces

BAR = 84  # room for the bar of colours


def _bar(labels: Sequence[tuple[float, str]], top: float, high: float) -> list[str]:
    """The scale of colours, with numbers at shares of it."""
    uri = images.data_uri(np.linspace(1, 0, images.LEVELS)[:, None], 0.0, 1.0)
    at = WIDE - BAR
    parts = [
        f'<image href="{uri}" x="{at}" y="{top:g}" width="9" height="{high:g}" '
        'preserveAspectRatio="none"/>'
    ]
    parts += [_text(at + 13, top + (1 - s) * high + 4, label, "start") for s, label in labels]
    return parts


def _plane(panel: Panel, shared: Shared) -> str:
    """A heat map or a surface, the curves on top of it."""
    if panel.surface is not None:
        return _surface(panel, panel.surface, shared)
    return _map(panel, panel.images[0], shared.image)


def _map(panel: Panel, image: Image, ends: Range) -> str:
    """Cells of equal sides, rows downward, whole numbers along both sides."""
    rows, columns = image.values.shape
    left, room = 44, WIDE - 44 - BAR - 10
    side = min(room / columns, 300 / rows)
    wide, high = side * columns, max(side * rows, 40)
    parts = [
        f'<image href="{images.data_uri(image.values, *ends)}" x="{left}" y="{TOP}" '
        f'width="{wide:g}" height="{high:g}" preserveAspectRatio="none" class="cells"/>',
        _text(0, 13, panel.y_label, "start", "name"),
        _text(left + wide, TOP + high + 32, panel.x_label, "end", "name"),
    ]
    for k in _whole(columns):
        parts.append(_text(left + (k + 0.5) * wide / columns, TOP + high + 15, str(k), "middle"))
    for k in _whole(rows):
        parts.append(_text(left - 5, TOP + (k + 0.5) * high / rows + 4, str(k)))
    shares = [
        (s, scales.tick_label(float(f"{ends[0] + s * (ends[1] - ends[0]):.2g}")))
        for s in (0, 0.5, 1)
    ]
    parts += _bar(shares, TOP, high)
    return _svg(parts, f"{panel.title}: {image.label}", TOP + high + 38)


def _whole(count: int) -> list[int]:
    every = next(
        k
        for k in itertools.chain((1, 2, 5, 10, 20, 50, 100), itertools.count(200, 100))
        if count / k <= 8
    )
    return list(range(0, count, every))


def _banded(surface: Surface, levels: Sequence[float], times: int) -> np.ndarray:
    """The band in which each place of a finer plane lies, as a share of all bands."""
    values = np.where(np.isfinite(surface.values), surface.values, levels[-1])
    found = np.digitize(images.finer(values, times), levels[1:-1])
    return found / max(len(levels) - 2, 1)


def _surface(panel: Panel, surface: Surface, shared: Shared) -> str:
    high = 340
    left = 52
    xs, ys = np.asarray(surface.x, float), np.asarray(surface.y, float)
    x = Axis(float(xs.min()), float(xs.max()), left, WIDE - BAR - 14)
    y = Axis(float(ys.min()), float(ys.max()), high - FOOT, TOP)
    times = max(1, 240 // max(surface.values.shape))
    bands = _banded(surface, shared.levels, times)[::-1]  # the first row is the lowest
    uri = images.data_uri(bands, 0.0, 1.0)
    parts = [
        f'<image href="{uri}" x="{left}" y="{TOP}" width="{x.end - left:g}" '
        f'height="{y.start - TOP:g}" preserveAspectRatio="none"/>'
    ]
    ticks = (_ticks(side.low, side.high, log=False) for side in (x, y))
    parts += _frame(x, y, *ticks, grid=False)
    parts += [_text(0, 13, panel.y_label, "start", "name")]
    parts += [_text(x.end, high - 3, panel.x_label, "end", "name")]
    parts += [_curve(k, _thin(c), x, y, points=panel.points) for k, c in enumerate(panel.curves)]
    picked = thinned(len(shared.levels), 5)
    shares = [
        (k / (len(shared.levels) - 1), scales.tick_label(float(f"{shared.levels[k]:.2g}")))
        for k in picked
    ]
    parts += _bar(shares, TOP, y.start - TOP)
    return _svg(parts, f"{panel.title}: {surface.label}", high)


def _solid(panel: Panel) -> str:
    """A surface seen from a corner: its cells from the farthest to the nearest."""
    plane = panel.surface
    if plane is None:
        return ""
    values = np.where(np.isfinite(plane.values), plane.values, np.nan)
    top = float(np.nanquantile(values, 0.9))  # a wall at the rim would flatten everything else
    values = np.minimum(np.nan_to_num(values, nan=top), top)
    low = float(values.min())
    rows, columns = values.shape
    u, v = np.meshgrid(np.linspace(0, 1, columns), np.linspace(0, 1, rows))
    across = WIDE / 2 + (u - v) * 200
    down = 215 + (u + v - 1) * 85 - (values - low) / ((top - low) or 1.0) * 110
    cells = sorted(itertools.product(range(rows - 1), range(columns - 1)), key=sum)
    parts = []
    for i, j in cells:
        corners = ((i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j))
        points = " ".join(f"{across[c]:.0f},{down[c]:.0f}" for c in corners)
        share = (values[i, j] - low) / ((top - low) or 1.0)
        parts.append(f'<polygon points="{points}" fill="{images.colour(share)}"/>')
    parts.append(_text(WIDE - 60, 292, panel.x_label, "middle", "name"))
    parts.append(_text(60, 292, panel.y_label, "middle", "name"))
    return _svg(['<g class="solid">', *parts, "</g>"], f"{panel.title}: {plane.label}", 310)


# --------------------------------------------------------------------------------------- gauges

ROW, NEXT, REACH = 40, 17, 1000.0  # a bar shows ratios from 1 / REACH to REACH
BAR_END = 255.0


def gauges(shown: Sequence[Gauge]) -> str:
    """One bar a hypothesis, on a common logarithmic scale with the limit in its middle."""
    if not shown:
        return ""
    axis = Axis(1 / REACH, REACH, 6, BAR_END, log=True)
    names = [textwrap.wrap(gauge.name, LONG, break_on_hyphens=False) or [""] for gauge in shown]
    parts = [
        _text(axis(1), 13, "limit", "middle", "limit"),
        _text(axis.start - 4, 13, "holds by far", "start"),
        _text(axis.end, 13, "fails by far", "end"),
    ]
    y = TOP
    for gauge, lines in zip(shown, names, strict=True):
        for line in lines:
            parts.append(_text(2, y + 14, line, "start", "name"))
            y += NEXT
        y -= NEXT
        kind = {True: "good", False: "bad", None: "odd"}[gauge.holds]
        parts.append(_text(WIDE - 2, y + 30, gauge.said, "end"))
        parts.append(f'<path class="track" d="M{axis.start:g} {y + 26}H{axis.end:g}"/>')
        parts.append(f'<path class="limit" d="M{axis(1):g} {y + 20}v12"/>')
        if gauge.ratio is not None:
            at = axis(gauge.ratio)
            parts.append(f'<path class="gauge {kind}" d="M{axis(1):g} {y + 26}H{at:g}"/>')
            parts.append(f'<path class="dots {kind}" d="M{at:g} {y + 26}h0"/>')
        y += ROW
    drawn = _svg(parts, "hypotheses: left side over right side, the limit in the middle", y + 2)
    return f'<figure class="chart gauges">{drawn}</figure>'
