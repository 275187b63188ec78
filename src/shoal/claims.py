"""Claims: what a paper says, put to a test whose rule is fixed before the run."""

from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from shoal._typing import Callable
from shoal.figures import Panel


class Ruling(StrEnum):
    """The three outcomes of a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


class Interval(NamedTuple):
    """A mean over seeds with its 95% confidence interval."""

    mean: float
    low: float
    high: float


class Evidence(NamedTuple):
    """What a claim's test found."""

    effect: float
    low: float  # 95% interval over seeds
    high: float
    meaning: str  # what the effect measures
    runs: int
    ruling: Ruling
    sentence: str
    panel: Panel | None = None


Measurement = dict[str, np.ndarray]


class Claim(NamedTuple):
    """A statement, the experiment that tests it, and the rule that decides.

    ``measure`` trains; ``decide`` only looks at the numbers, so a rule can be read and tested by
    itself. Plans are flat tuples of plain values: with the code's version they are the key under
    which a finished measurement is kept. ``planted`` is a plan on data or a model that breaks the
    claim.
    """

    key: str
    statement: str
    source: str
    setting: str
    rule: str
    measure: Callable[[Any], Measurement]
    decide: Callable[[Measurement], Evidence]
    quick: Any
    full: Any
    planted: Any


def sized(
    key: str,
    statement: str,
    rule: str,
    functions: tuple[Callable[[Any], Measurement], Callable[[Measurement], Evidence]],
    plant: tuple[tuple[str, Any], ...],
    quick: Any,
    *,
    source: str,
    setting: str,
    planted: Any = None,
    **full: Any,
) -> Claim:
    """A claim at quick and full size: ``functions`` measure and decide, ``full`` changes the plan.

    The violation is planted in the quick plan, or in a smaller one, ``planted``.
    """
    return Claim(
        key=key,
        statement=statement,
        source=source,
        setting=setting,
        rule=rule,
        measure=functions[0],
        decide=functions[1],
        quick=quick,
        full=quick._replace(**full),
        planted=(quick if planted is None else planted)._replace(plant=plant),
    )


def mean_interval(samples: np.ndarray) -> Interval:
    """Mean with Student's 95% interval (SciPy); a point if all samples are equal.

    >>> found = mean_interval(np.array([1.0, 2.0, 3.0]))
    >>> found.mean, found.low < 0, found.high > 4
    (2.0, True, True)
    """
    from scipy import stats  # most of a second to import: only when used

    samples = np.asarray(samples, float).ravel()
    mean = float(np.mean(samples))
    if not np.isfinite(samples).all() or len(samples) < 2:
        return Interval(mean, float("nan"), float("nan"))
    if np.ptp(samples) <= 1e-12 * max(abs(mean), 1e-300):
        return Interval(mean, mean, mean)
    low, high = stats.ttest_1samp(samples, 0.0).confidence_interval(0.95)
    return Interval(mean, float(low), float(high))


def ratio_interval(above: np.ndarray, below: np.ndarray) -> Interval:
    """Ratio of two means over the same seeds, with a 95% bootstrap interval (2000 draws).

    Not the mean of ratios, which one small denominator would decide.

    >>> found = ratio_interval(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    >>> found.mean, found.low, found.high
    (0.5, 0.5, 0.5)
    """
    above, below = np.asarray(above, float), np.asarray(below, float)
    mean = float(np.mean(above) / np.mean(below))
    if not (np.isfinite(above).all() and np.isfinite(below).all()) or len(above) < 2:
        return Interval(mean, float("nan"), float("nan"))
    rows = np.random.default_rng(0).integers(len(above), size=(2000, len(above)))
    ratios = above[rows].mean(axis=1) / below[rows].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(mean, float(low), float(high))


def above(found: Interval, threshold: float) -> Ruling:
    """Supported if the whole interval lies above, contradicted if none of it does.

    A tie, a point on the threshold, is not above it.

    >>> str(above(Interval(2.0, 1.0, 3.0), 0.0)), str(above(Interval(2.0, -1.0, 5.0), 0.0))
    ('supported', 'inconclusive')
    """
    if np.isnan(found.low) or np.isnan(found.high):
        return Ruling.INCONCLUSIVE
    if found.low > threshold:
        return Ruling.SUPPORTED
    return Ruling.CONTRADICTED if found.high <= threshold else Ruling.INCONCLUSIVE


def within(found: Interval, low: float, high: float) -> Ruling:
    """Supported if the whole interval lies within, contradicted if it lies wholly outside.

    >>> str(within(Interval(0.5, 0.4, 0.6), 0.0, 1.0)), str(within(Interval(2, 1.5, 2.5), 0.0, 1.0))
    ('supported', 'contradicted')
    """
    if np.isnan(found.low) or np.isnan(found.high):
        return Ruling.INCONCLUSIVE
    if low <= found.low and found.high <= high:
        return Ruling.SUPPORTED
    if found.high < low or found.low > high:
        return Ruling.CONTRADICTED
    return Ruling.INCONCLUSIVE


def evidence(
    found: Interval, meaning: str, runs: int, ruling: Ruling, sentence: str, panel: Panel | None
) -> Evidence:
    """Evidence whose sentence quotes the interval."""
    if np.isnan(found.low):
        sentence += " Too few runs ended with numbers to decide."
    elif ruling == Ruling.INCONCLUSIVE:
        sentence += " The interval reaches across the rule's limit: these seeds do not decide."
    said = sentence.format(mean=found.mean, low=found.low, high=found.high, ruling=ruling)
    return Evidence(found.mean, found.low, found.high, meaning, runs, ruling, said, panel)
