"""A claim's evidence in pictures: every draw against the limits, the bets, and a strip."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from shoal.figures import Curve, Panel
from shoal.pages import scales
from shoal.pages.scales import Axis
from shoal.pages.svg import Range, chart

Json = dict[str, Any]
HIGHEST = 1e12  # of the bets; beyond it nobody counts


def limits_of(record: Json) -> list[tuple[str, float]]:
    """The rule's limits, with the sign in which people read the effect."""
    ends = record["for"] if isinstance(record["for"], list) else (record["for"], record["against"])
    levels = [record["sign"] * float(end) for end in ends]
    if isinstance(record["for"], list):
        return [("window from", min(levels)), ("window to", max(levels))]
    if levels[0] == levels[1]:
        return [("limit", levels[0])]
    return [("limit for", levels[0]), ("limit against", levels[1])]


def _effects(record: Json) -> np.ndarray:
    """Both ends of every counted effect, in the order of seeds."""
    seen = [sorted((record["sign"] * lo, record["sign"] * hi))
            for lo, hi, *_ in record["effects"] if not abstains(record, lo, hi)]  # fmt: skip
    return np.array(seen, float).reshape(-1, 2)


def abstains(record: Json, low: float | None, high: float | None) -> bool:
    """Whether a draw does not count: its premise fails, or it is a tie that abstains."""
    if low is None or isinstance(record["for"], list):
        return low is None
    limits = {float(record["for"]), float(record["against"])}
    return record["ties"] == "abstain" and {low, high} == limits


def effect_range(record: Json) -> Range:
    """Ends of the axis: nearly all effects, all limits, and some room."""
    levels = [level for _, level in limits_of(record)]
    seen = _effects(record).ravel()
    seen = seen[np.isfinite(seen)]
    most = np.quantile(seen, [0.02, 0.98]) if len(seen) else []
    return scales.ends([*map(float, most), *levels], log=False, room=0.1)


def effect_panel(record: Json) -> Panel:
    """Every counted draw, the limits, and the interval for the median as it narrows."""
    ends = _effects(record)
    at = np.arange(1.0, len(ends) + 1)
    draws = Curve("draws", at, ends.mean(axis=1), ends[:, 0], ends[:, 1])
    name = record["effect"].rstrip(",")
    return Panel(
        "", "draw, in the order of seeds", name, (draws,), points=True,
        limits=tuple(limits_of(record)),
    )  # fmt: skip


def median_panel(record: Json) -> Panel | None:
    """The sample's median after each draw, with its interval; none if about a share of draws."""
    if record["quantifier"]["share"] != "1/2" or record["effect"].startswith("1 if "):
        return None
    path = [sorted(record["sign"] * end for end in ends) for ends in record["paths"]["median"]]
    steps = [(k, lo, hi) for k, (lo, hi) in enumerate(path, 1) if math.isfinite(hi - lo)]
    if not steps:
        return None
    at, low, high = np.array(steps, float).T
    ends = _effects(record)
    middle = np.array([np.median(ends[: int(k)], axis=0).mean() for k in at])
    curve = Curve("sample median", at, middle, low, high)
    limits = tuple(limits_of(record))
    name = "interval for the median (band) and sample median (line)"
    return Panel("The median, known within", "draws counted", name, (curve,), limits=limits)


def bets_panel(record: Json) -> Panel:
    """The largest E-values so far on a logarithmic axis, with what decides."""
    curves = []
    for side in ("for", "against"):
        largest = np.maximum.accumulate(np.array(record["paths"][side], float))
        bets = np.clip(largest, 1e-3, HIGHEST)
        at = np.arange(1.0, len(bets) + 1)
        curves.append(Curve(f"E {side}", at, bets, bets, bets))
    limits = (("a control needs 20", 20.0), ("decides at 10240", float(record["e"]["threshold"])))
    return Panel("The bets", "draws counted", "largest E so far", tuple(curves), log_y=True,
                 limits=limits)  # fmt: skip


def claim_plots(record: Json) -> str:
    """The pictures of a claim's page."""
    if not len(_effects(record)):
        return ""
    draws = effect_panel(record)._replace(title="Every draw, and the limits of the rule")
    shown = [chart(draws, y_range=effect_range(record))]
    middle = median_panel(record)
    shown += [chart(panel) for panel in (middle, bets_panel(record)) if panel is not None]
    return f'<div class="charts">{"".join(shown)}</div>'


# ---------------------------------------------------------------------------------------- strip

WIDE, HIGH, LINE = 440, 80, 46


def strip(record: Json) -> str:
    """All draws along one line, the limits across it, and the interval for the median."""
    ends = _effects(record)
    if not len(ends):
        return ""
    x = Axis(*effect_range(record), 10, WIDE - 10)
    ticks = scales.linear_ticks(x.low, x.high, 5)
    parts = [f'<path class="axis" d="M{x.start} {HIGH - 16}H{x.end}"/>']
    parts += [_text(x(v), HIGH - 3, scales.tick_label(v)) for v in ticks if 16 < x(v) < WIDE - 16]
    low, high = sorted(record["sign"] * end for end in record["sequence"]["median"])
    if math.isfinite(high - low):
        parts.append(f'<path class="median" d="M{x(low):g} {LINE}H{x(high):g}"/>')
    parts.append(f'<path class="dots k0" d="{_dots(ends.mean(axis=1), x)}"/>')
    names = []
    for row, (name, level) in enumerate(limits_of(record)):
        at, y = x(level), 13 + 15 * row  # names of near limits stand below each other
        parts.append(f'<path class="limit" d="M{at:g} {y - 6}V{HIGH - 16}"/>')
        anchor = "end" if at > WIDE / 2 else "start"
        names.append(_text(at + (-5 if anchor == "end" else 5), y, name, anchor, "limit"))
    parts += names  # above the lines, which they interrupt
    label = escape(f"{len(ends)} draws of {record['effect']}, with the limits of the rule")
    return (
        f'<svg class="strip" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _dots(values: Sequence[float] | np.ndarray, x: Axis) -> str:
    """One dot a draw; neighbours stand on three lines, so that they can be told apart."""
    return "".join(f"M{x(v):g} {LINE + (k % 3 - 1) * 7}h0" for k, v in enumerate(values))


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    base, _, power = escape(text).partition("^")
    raised = f'<tspan dy="-4" class="power">{power}</tspan>' if power else ""
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{mark}>{base}{raised}</text>'
