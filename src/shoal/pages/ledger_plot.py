"""A claim's evidence as one SVG picture: effects with limits and the sequence, and the bets."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

WIDE, HIGH, BETS, LEFT, RIGHT, TOP, GAP, FOOT = 720, 240, 150, 64, 12, 14, 40, 34


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers across a range."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next((k for k in (1, 2, 5, 10) if (high - low) / (k * step) <= count), 10)
    first = math.ceil(low / step)
    return [round(k * step, 12) for k in range(first, math.floor(high / step) + 1)]


def _range(values: Sequence[float], limits: Sequence[float]) -> tuple[float, float]:
    """Ends of the vertical axis: most effects, all limits, and some room."""
    finite = [v for v in values if math.isfinite(v)]
    low, high = np.quantile(finite, [0.02, 0.98]) if finite else (0.0, 0.0)
    low, high = min(low, *limits), max(high, *limits)
    room = 0.08 * (high - low) or max(0.1, 0.1 * abs(high))
    return float(low - room), float(high + room)


class _Axis:
    """Numbers to pixels along one side; what is beyond an end is drawn at that end."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        clipped = min(max(value, self.low), self.high)
        share = (clipped - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>'


def _label(x: float, y: float, text: str, anchor: str = "end") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def claim_plot(record: dict[str, Any]) -> str:
    """The picture; only numbers and fixed words are in it, so that nothing needs escaping."""
    sign = record["sign"]
    seen = [sorted((sign * lo, sign * hi)) for lo, hi, *_ in record["effects"] if lo is not None]
    ends = record["for"] if isinstance(record["for"], list) else (record["for"], record["against"])
    limits = [sign * float(end) for end in ends]
    count = max(len(seen), 1)
    x = _Axis(0.5, count + 0.5, LEFT, WIDE - RIGHT)
    upper = _Axis(*_range([v for pair in seen for v in pair], limits), TOP + HIGH, TOP)
    parts = _frame(upper, TOP, HIGH, _ticks(upper.low, upper.high))
    parts.append(_band(record, x, upper))
    words = ("upper", "lower") if isinstance(record["for"], list) else ("for", "against")
    parts += [_line(LEFT, upper(v), WIDE - RIGHT, upper(v), "limit") for v in set(limits)]
    for value, word in dict(zip(limits, words, strict=True)).items():
        name = "limit" if len(set(limits)) == 1 else f"limit {word}"
        name = "window" if isinstance(record["for"], list) else name
        parts.append(_label(WIDE - RIGHT - 4, upper(value) - 4, name))
    for k, (lo, hi) in enumerate(seen, 1):
        if lo != hi:
            parts.append(_line(x(k), upper(lo), x(k), upper(hi), "range"))
        else:
            kind = "dot" if upper.low <= lo <= upper.high else "beyond"
            parts.append(f'<circle cx="{x(k)}" cy="{upper(lo)}" r="3" class="{kind}"/>')
    return _svg(parts + _bets(record, x), record)


def _frame(axis: _Axis, top: float, high: float, ticks: Sequence[float]) -> list[str]:
    parts = [f'<rect x="{LEFT}" y="{top}" width="{WIDE - LEFT - RIGHT}" height="{high}" '
             'class="frame"/>']  # fmt: skip
    for tick in ticks:
        parts.append(_line(LEFT, axis(tick), WIDE - RIGHT, axis(tick), "grid"))
        parts.append(_label(LEFT - 6, axis(tick) + 4, f"{tick:g}"))
    return parts


def _band(record: dict[str, Any], x: _Axis, y: _Axis) -> str:
    """The narrowing sequence for the median."""
    path = [sorted(record["sign"] * end for end in ends) for ends in record["paths"]["median"]]
    steps = [(k, lo, hi) for k, (lo, hi) in enumerate(path, 1) if math.isfinite(hi - lo)]
    if not steps:
        return ""
    above = [f"{x(k)},{y(hi)}" for k, _, hi in steps]
    below = [f"{x(k)},{y(lo)}" for k, lo, _ in reversed(steps)]
    return f'<polygon points="{" ".join(above + below)}" class="band"/>'


def _bets(record: dict[str, Any], x: _Axis) -> list[str]:
    """E for and against on a logarithmic axis."""
    top = TOP + HIGH + GAP
    paths = {side: record["paths"][side] for side in ("for", "against")}
    highest = max([5.0, *(math.log10(e) for es in paths.values() for e in es if e > 0)])
    axis = _Axis(-3.0, min(highest, 12.0) + 0.3, top + BETS, top)
    parts = _frame(axis, top, BETS, [])
    for tick in range(-3, int(axis.high) + 1, 2):
        parts.append(_label(LEFT - 6, axis(tick) + 4, f"1e{tick}"))
    for value, name in ((20, "20"), (record["e"]["threshold"], "10240")):
        parts.append(_line(LEFT, axis(math.log10(value)), WIDE - RIGHT, axis(math.log10(value)),
                           "level"))  # fmt: skip
        parts.append(_label(WIDE - RIGHT - 4, axis(math.log10(value)) - 4, name))
    for side, path in paths.items():
        points = [f"{x(k)},{axis(math.log10(max(e, 1e-9)))}" for k, e in enumerate(path, 1)]
        if points:
            parts.append(f'<polyline points="{" ".join(points)}" class="{side}"/>')
    bottom = top + BETS + 18
    parts.append(_label(LEFT, bottom, "counted draws in order of seeds", "start"))
    parts.append(_label(WIDE - RIGHT, bottom, f"{len(paths['for'])}"))
    parts.append(
        _label(LEFT + 6, top + 16, "E for", "start").replace("<text", '<text class="tfor"')
    )
    against = _label(LEFT + 76, top + 16, "E against", "start")
    return [*parts, against.replace("<text", '<text class="tagainst"')]


def _svg(parts: Sequence[str], record: dict[str, Any]) -> str:
    high = TOP + HIGH + GAP + BETS + FOOT
    seeds = record["seeds"]
    title = f"Effects of {seeds['counted']} draws with limits and sequence, and e-values"
    return (
        f'<svg viewBox="0 0 {WIDE} {high}" role="img" aria-label="{title}">'
        + "".join(parts) + "</svg>"
    )  # fmt: skip
