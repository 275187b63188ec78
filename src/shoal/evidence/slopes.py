"""Exponents of one seed's curve, also where some of its values are only bounded."""

from typing import Any

import numpy as np

Interval = tuple[float, float]


def slope_interval(x: Any, low: Any, high: Any) -> Interval:
    """The exponent of y against x by least squares, if each y is known to lie in [low, high].

    A censored value (``high`` infinite, or ``low`` zero) is never replaced by a number.

    >>> found = slope_interval([2, 4, 8, 16], [16, 64, 256, 1024], [32, 128, 512, 2048])
    >>> [round(end, 9) for end in found]
    [1.6, 2.4]
    """
    return _weighted(_weights(np.log(np.asarray(x, float))), low, high)


def bend_interval(x: Any, low: Any, high: Any) -> Interval:
    """The exponent over the upper half of the grid minus that over the lower half.

    An odd grid has its middle point in both halves. Zero for a power law.
    """
    log_x = np.log(np.asarray(x, float))
    half = (len(log_x) + 1) // 2
    weights = np.zeros(len(log_x))
    weights[-half:] += _weights(log_x[-half:])
    weights[:half] -= _weights(log_x[:half])
    return _weighted(weights, low, high)


def _weights(t: np.ndarray) -> np.ndarray:
    t = t - t.mean()
    return t / (t @ t)


def _weighted(weights: np.ndarray, low: Any, high: Any) -> Interval:
    """Ends of ``sum weights * log y``; weights that are zero up to rounding are left out."""
    kept = np.abs(weights) >= 1e-12 * np.abs(weights).max()
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.stack([weights * np.log(np.asarray(y, float)) for y in (low, high)])[:, kept]
        lo, hi = float(ends.min(axis=0).sum()), float(ends.max(axis=0).sum())
    return (-np.inf if np.isnan(lo) else lo), (np.inf if np.isnan(hi) else hi)
