"""What a page shows beside a verdict: intervals that hold at all times (confidence sequences)."""

import bisect
import math
from collections.abc import Callable, Sequence

from shoal.evidence.betting import e_value_near, needed

Interval = tuple[float, float]
EVERYWHERE: Interval = (-math.inf, math.inf)
SHOWN, LEDGER = 40, 10240
"""Thresholds of a 95 % sequence for one claim, and for all claims of the ledger at once."""


def median_sequence(effects: Sequence[Interval], threshold: int = SHOWN) -> list[Interval]:
    """An interval for the median after every counted seed, narrowing.

    With threshold 40 it covers the median at all times with probability 95 %: the k-th largest
    lower and the k-th smallest upper end, where k of n above would reach the threshold.

    >>> median_sequence([(x, x) for x in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)])[-1]
    (1.0, 8.0)
    """
    lows: list[float] = []
    highs: list[float] = []
    found, (low, high) = [], EVERYWHERE
    for n, (lo, hi) in enumerate(effects, 1):
        bisect.insort(lows, lo)
        bisect.insort(highs, hi)
        if (k := needed(n, threshold)) is not None:
            low, high = max(low, lows[-k]), min(high, highs[k - 1])
        found.append((low, high))
    return found


def share_sequence(effects: Sequence[Interval], limit: float, threshold: int = SHOWN) -> Interval:
    """An interval for the share of draws above a limit, valid at all times with 95 %."""
    above = _counts([lo > limit for lo, _ in effects])
    not_above = _counts([hi <= limit for _, hi in effects])

    def refuted(counts: list[int], share: float) -> bool:
        return any(e_value_near(n, S, share) >= threshold for n, S in enumerate(counts, 1))

    low = _last(lambda share: refuted(above, share))
    return low, 1 - _last(lambda share: refuted(not_above, share))


def _counts(events: Sequence[bool]) -> list[int]:
    total, found = 0, []
    for event in events:
        total += event
        found.append(total)
    return found


def _last(true_below: Callable[[float], bool]) -> float:
    """Where a statement about a share that is true below some point stops being true."""
    low, high = 0.0, 1.0
    if not true_below(1e-9):
        return 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if true_below(middle) else (low, middle)
    return low
