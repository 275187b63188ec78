"""Axes: numbers to pixels, and ticks that a reader can name without a calculator."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

MOST_TICKS = 6
FINE = 1e-3  # an axis that spans less than this share of its numbers is labelled by differences


class Axis(NamedTuple):
    """One side of a panel: numbers between ``low`` and ``high`` lie from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a number; what lies beyond an end is drawn at that end.

        >>> Axis(1, 100, 0, 200, log=True)(10)
        100.0
        >>> Axis(0, 1, 0, 200)(7)
        200.0
        """
        low, high = self.low, self.high
        clipped = min(max(value, low), high)
        if self.log:
            low, high, clipped = math.log10(low), math.log10(high), math.log10(clipped)
        share = (clipped - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def holds(self, value: float) -> bool:
        """Whether a number lies between the ends."""
        return bool(self.low <= value <= self.high)


def ends(values: Iterable[float], *, log: bool, room: float = 0.05) -> tuple[float, float]:
    """The range of an axis that shows these numbers, with some room.

    >>> ends([1.0, 3.0], log=False, room=0.5)
    (0.0, 4.0)
    >>> ends([2.0, 2.0], log=True)
    (1.0, 4.0)
    """
    seen = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (float(min(seen)), float(max(seen))) if seen else (1.0, 1.0)
    if log:
        if high < low * (1 + 1e-9):
            return low / 2, high * 2
        factor = (high / low) ** room
        return max(low / factor, 1e-300), min(high * factor, 1e300)
    extra = room * (high - low)
    if high - low <= 1e-13 * max(abs(low), abs(high)):
        extra = max(0.1 * abs(high), 1e-12) if high else 1.0
    return low - extra, high + extra


def linear_ticks(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """Round numbers across a range, ``most`` and one: multiples of 1, 2 or 5 times a power of ten.

    >>> linear_ticks(0.0, 1.0), linear_ticks(-3, 42, 4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 10.0, 20.0, 30.0, 40.0])
    """

    def count(step: float) -> int:
        return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1

    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next((k for k in (1, 2, 5, 10) if count(k * step) <= most + 1), 20)
    digits = max(0, 1 - math.floor(math.log10(step)))
    first = math.ceil(low / step - 1e-9)
    return [round((first + k) * step, digits) + 0.0 for k in range(count(step))]


def log_ticks(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """Powers of ten, every so many; below two decades 1, 2, 5 times them; else round numbers.

    >>> log_ticks(1e-30, 1, 4)
    [1e-30, 1e-20, 1e-10, 1.0]
    >>> log_ticks(3, 60)
    [5.0, 10.0, 20.0, 50.0]
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 2:
        every = next(k for k in (1, 2, 5, 10, 20, 50, 100, 1000) if (last - first) // k < most)
        return [float(f"1e{k}") for k in range(first, last + 1) if k % every == 0]
    places = [float(f"{m}e{k}") for k in range(first - 1, last + 1) for m in (1, 2, 5)]
    found = [v for v in places if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
    return found if len(found) > 1 else [v for v in linear_ticks(low, high, 5) if v > 0]


def measured_ticks(values: Sequence[float], *, log: bool) -> list[float] | None:
    """The measured places themselves, if they are few: at most twelve, a tenth apart.

    >>> measured_ticks([32, 64, 65, 512], log=True)
    [32, 64, 512]
    """
    places = sorted({v for v in values if v > 0 or not log})
    if not log or not 1 < len(places) <= 12:
        return None
    chosen = places[:1]
    for place in places[1:]:
        if math.log(place / chosen[-1]) > 0.1 * math.log(places[-1] / places[0]):
            chosen.append(place)
    return chosen


def base_of(low: float, high: float) -> float:
    """What a very narrow axis counts from; zero for any other.

    >>> base_of(28.548961, 28.548964), base_of(0.0, 1.0)
    (28.54896, 0.0)
    """
    middle = max(abs(low), abs(high))
    if high - low >= FINE * middle:
        return 0.0
    step = 10.0 ** math.ceil(math.log10(high - low))
    return round(math.floor(low / step) * step, max(0, -round(math.log10(step))))


def tick_label(value: float) -> str:
    """A tick as text; powers of ten far from one are written as such, with signs of minus.

    >>> tick_label(-0.5), tick_label(1e-12), tick_label(2500.0), tick_label(3e-07)
    ('−0.5', '10^−12', '2500', '3·10^−7')
    """
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.10g}".replace("-", "−")
    factor, _, power = f"{value:.10e}".partition("e")
    lead = f"{float(factor):.6g}"
    front = {"1": "", "-1": "-"}.get(lead, f"{lead}·")
    return f"{front}10^{int(power)}".replace("-", "−")


def quantile_levels(values: np.ndarray, count: int = 14) -> np.ndarray:
    """Levels of a surface: by quantiles, so that neither a wall nor a basin takes them all."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.array([0.0, 1.0])
    chosen = np.unique(np.quantile(finite, np.linspace(0, 1, count)))
    return chosen if len(chosen) > 1 else np.array([chosen[0], np.nextafter(chosen[0], np.inf)])
