r"""Suprema of the first three derivatives of functions, over the values that are taken on a ball.

Each entry of `SLOPES` is a function of the walk (which gives up radii where it is not defined) and
of the ends of the values' range, one pair for each radius. Proofs: docs/theory/prove.md, 3.3.
Decimals are rounded up.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Slopes = tuple[np.ndarray | float, np.ndarray | float, np.ndarray | float]


def _tanh(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:  # noqa: ARG001
    z = np.maximum(np.maximum(low, -high), 0.0)
    mu = np.minimum(1.0, 1 - np.tanh(z) ** 2 + 1e-15)
    return mu, np.minimum(0.76980036, 2 * mu), np.minimum(2.0, 4 * mu)


def _logistic(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:
    """It is (1 + tanh(x/2)) / 2."""
    first, second, third = _tanh(walk, low / 2, high / 2)
    return first / 4, second / 8, third / 16


def _exp(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:  # noqa: ARG001
    walk.require(high < 700, "an exponential overflows on the ball")
    top = np.exp(np.minimum(high, 701.0)) * (1 + 1e-13)
    return top, top, top


def _exp2(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:  # noqa: ARG001
    walk.require(high < 1000, "a power of two overflows on the ball")
    top = np.exp2(np.minimum(high, 1001.0)) * (1 + 1e-13)
    return 0.6931471806 * top, 0.480453014 * top, 0.333024652 * top  # log(2)^k, rounded up


def _positive(walk: Any, low: np.ndarray, name: str) -> np.ndarray:
    walk.require(low > 1e-60, f"the argument of {name} may reach zero")
    return np.where(low > 1e-60, low, 1.0) * (1 - 1e-13)


def _log(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:  # noqa: ARG001
    a = _positive(walk, low, "log")
    return 1 / a, 1 / a**2, 2 / a**3


def _log1p(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:
    return _log(walk, np.nextafter(1 + low, -np.inf), high)


def _sqrt(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:  # noqa: ARG001
    a = _positive(walk, low, "sqrt")
    return 0.5 * a**-0.5, 0.25 * a**-1.5, 0.375 * a**-2.5


def _rsqrt(walk: Any, low: np.ndarray, high: np.ndarray) -> Slopes:  # noqa: ARG001
    a = _positive(walk, low, "rsqrt")
    return 0.5 * a**-1.5, 0.75 * a**-2.5, 1.875 * a**-3.5


def _always(*slopes: float) -> Callable[..., Slopes]:
    return lambda *_: slopes  # type: ignore[return-value]


# The bounds of the table of 3.3: suprema of |phi'|, |phi''|, |phi'''| over the values taken.
SLOPES: dict[str, Callable[[Any, np.ndarray, np.ndarray], Slopes]] = {
    "tanh": _tanh,
    "logistic": _logistic,
    "softplus": _always(1.0, 0.25, 0.09622504487),
    "centred_softplus": _always(1.0, 0.25, 0.09622504487),
    "erf": _always(1.1283791671, 0.9678828981, 2.2567583342),
    "erfc": _always(1.1283791671, 0.9678828981, 2.2567583342),
    "sin": _always(1.0, 1.0, 1.0),
    "cos": _always(1.0, 1.0, 1.0),
    "gelu": _always(1.1289041453, 0.7978845609, 0.7787696351),
    "silu": _always(1.0998393202, 0.5, 0.3081815159),
    "exp": _exp,
    "expm1": _exp,
    "exp2": _exp2,
    "log": _log,
    "log1p": _log1p,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
}
