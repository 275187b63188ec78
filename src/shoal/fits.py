"""Straight lines through measurements, with honest intervals."""

from typing import NamedTuple

import numpy as np


class Fit(NamedTuple):
    """A fitted slope with its 95% confidence interval, and the line's value at log x = 0."""

    slope: float
    low: float
    high: float
    intercept: float


def power_law(x: np.ndarray, y: np.ndarray) -> Fit:
    """Exponent of y against x: least squares through (log x, log y), Student's t interval.

    >>> fit = power_law(np.exp([0.0, 1.0, 2.0, 3.0]), np.exp([1.0, 3.1, 4.9, 7.0]))
    >>> round(fit.slope, 2), fit.low < 2 < fit.high
    (1.98, True)
    """
    from scipy import stats  # most of a second to import: only when used

    found = stats.linregress(np.log(np.ravel(x)), np.log(np.ravel(y)))
    half = stats.t.ppf(0.975, np.size(x) - 2) * found.stderr
    ends = found.slope - half, found.slope + half
    return Fit(*map(float, (found.slope, *ends, found.intercept)))
