r"""Balls: a midpoint and a radius for every number, and arithmetic that never loses the truth.

A ball $(m,\rho)$ stands for all real arrays with $|x-m|\le\rho$, entry by entry. Everything here is
NumPy, never XLA. What is assumed of the machine (docs/theory/prove.md, section 3.1):

- A1: IEEE binary64, to nearest, no flushing of subnormal numbers (`require_ieee` looks);
- A2: a sum of n products, in any order, errs by at most $\gamma_n\sum|a_i||b_i|$;
- A3: exp, exp2, expm1, log, log1p, tanh, logistic and erf err by at most 16 ulp; sin, cos and
  erfc by 32u(1 + |value|).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

UNIT = 2.0**-53
TINY = 1e-140
"""Added wherever a square or a product may have vanished by underflow."""


def of_scipy(name: str) -> Callable[[Any], Any]:
    """A function of `scipy.special`, which takes a fifth of a second to import: when called."""

    def function(x: Any) -> Any:
        from scipy import special

        return getattr(special, name)(x)

    return function


class Ball(NamedTuple):
    """All arrays within ``rad`` of ``mid``, entry by entry."""

    mid: np.ndarray
    rad: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the arrays."""
        return self.mid.shape

    @property
    def largest(self) -> np.ndarray:
        """Upper bound of the absolute values, entry by entry."""
        return up(np.abs(self.mid) + self.rad)


class Refusal(Exception):  # noqa: N818 (an answer, not an error)
    """No enclosure exists by these rules; the message says which rule and where."""


def require_ieee() -> None:
    """Refuse a process that flushes subnormal numbers or does not round to nearest (trap 13)."""
    one, small = np.array(1.0), np.array(5e-324)
    half = np.array(2.0**-53)
    fine = small * one > 0 and one + half == 1 and one + 3 * half > one + 2 * half
    if not fine:
        raise Refusal("this process does not follow IEEE arithmetic (fast math?)")


def gamma(count: int) -> float:
    r"""$\gamma_n = nu/(1-nu)$, rounded up."""
    return count * UNIT / (1 - count * UNIT) * (1 + 2.0**-40)


def up(value: Any, terms: int = 0) -> Any:
    """Upper bound of a sum of products of nonnegative numbers that was computed in floats.

    Covers 4096 roundings; a longer sum says how many ``terms`` it has.
    """
    slack = 2.0**-40 if terms <= 4000 else 2.0**-40 + 2 * gamma(terms + 16)
    return value * (1 + slack) + TINY


def down(value: Any) -> Any:
    """Lower bound of what `up` bounds above; negative where nothing is left."""
    return value * (1 - 2.0**-39) - TINY


def exact(value: Any) -> Ball:
    """The ball of numbers that are what they are."""
    mid = np.asarray(value, np.float64)
    return Ball(mid, np.broadcast_to(0.0, mid.shape))


def _or_zero(where: Any, radius: Any) -> Any:
    return np.where(where, radius, 0.0)


# ------------------------------------------------------------------------------------- arithmetic


def add(a: Ball, b: Ball) -> Ball:
    """Sum; the rounding error is known exactly (TwoSum). An exact -inf (a mask) stays one."""
    with np.errstate(invalid="ignore", over="ignore"):
        mid = a.mid + b.mid
        part = mid - a.mid
        error = np.abs((a.mid - (mid - part)) + (b.mid - part))
    rad = a.rad + b.rad + error
    if np.isinf(mid).any():
        masks = [np.isneginf(x.mid) & (x.rad == 0) for x in (a, b)]
        whole = [np.isfinite(x.mid) | mask for x, mask in zip((a, b), masks, strict=True)]
        masked = (masks[0] & whole[1]) | (masks[1] & whole[0])
        rad = np.where(masked, 0.0, np.where(np.isfinite(mid), rad, np.inf))
    return Ball(mid, _or_zero(rad != 0, up(rad)))


def neg(a: Ball) -> Ball:
    """The negative, exactly."""
    return Ball(-a.mid, a.rad)


def sub(a: Ball, b: Ball) -> Ball:
    """Difference."""
    return add(a, neg(b))


def mul(a: Ball, b: Ball) -> Ball:
    """Product; exact if a factor is exactly 0, free of rounding if one is exactly 1 or -1."""
    mid = a.mid * b.mid
    spread = np.abs(a.mid) * b.rad + a.rad * (np.abs(b.mid) + b.rad)
    zero = ((a.mid == 0) & (a.rad == 0)) | ((b.mid == 0) & (b.rad == 0))
    one = ((np.abs(a.mid) == 1) & (a.rad == 0)) | ((np.abs(b.mid) == 1) & (b.rad == 0))
    rad = np.where(one & (spread == 0), 0.0, up(spread + np.where(one, 0.0, UNIT * np.abs(mid))))
    return Ball(mid, _or_zero(~zero, rad))


def div(a: Ball, b: Ball) -> Ball:
    """Quotient, from x/y - q = (x - a + q(b - y))/y."""
    floor = (np.abs(b.mid) - b.rad) * (1 - 2.0**-40)
    good = (floor > 1e-150) & np.isfinite(b.mid)
    if not np.all(good):
        raise Refusal("a denominator is not away from zero")
    mid = a.mid / b.mid
    rad = (a.rad + (np.abs(mid) + TINY) * b.rad) * (1 + 2 * UNIT) / floor + 2 * UNIT * np.abs(mid)
    zero = (a.mid == 0) & (a.rad == 0)
    return Ball(mid, _or_zero(~zero, up(rad)))


def dot(a: Ball, b: Ball) -> Ball:
    """Matrix product over the last axis of ``a`` and the last but one of ``b``."""
    count = a.shape[-1]
    if count >= LONG and a.mid.ndim == b.mid.ndim == 2:
        return _long_dot(a, b)
    mid = _matmul(a.mid, b.mid)
    big = np.abs(b.mid)
    rad = gamma(count + 2) * _matmul(np.abs(a.mid), big)
    if b.rad.any():
        rad += _matmul(np.abs(a.mid), b.rad)
        big = big + b.rad
    if a.rad.any():
        rad += _matmul(a.rad, big)
    return Ball(mid, up(rad, count))


LONG = 2048
"""Terms from which on a product is summed in pieces, whose errors do not add up as far."""


def _long_dot(a: Ball, b: Ball) -> Ball:
    """A product of two matrices over a long axis: pieces, and then their sum."""
    piece = int(np.ceil(np.sqrt(a.shape[1])))
    count = -(-a.shape[1] // piece)
    spare = ((0, 0), (0, count * piece - a.shape[1]))

    def cut(x: np.ndarray) -> np.ndarray:  # zeros add nothing, not even rounding
        return np.pad(x, spare).reshape(len(x), count, piece).transpose(1, 0, 2)

    left = Ball(*map(cut, a))
    right = Ball(*(cut(x.T).transpose(0, 2, 1) for x in b))
    return total(dot(left, right), axis=0)


def _matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a @ b``; many small matrices times one are one large product."""
    if b.ndim == 2 and a.ndim > 2:
        return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
    return a @ b


def total(a: Ball, axis: int = -1) -> Ball:
    """Sum along an axis."""
    count = a.shape[axis]
    rad = a.rad.sum(axis) + gamma(count) * np.abs(a.mid).sum(axis)
    return Ball(a.mid.sum(axis), _or_zero(rad != 0, up(rad, count)))


def take(a: Ball, index: np.ndarray, trailing: int = 1) -> Ball:
    """Entries by number, over the last ``trailing`` axes as one."""
    lead = a.shape[: len(a.shape) - trailing]
    mid = a.mid.reshape(*lead, -1)[..., index]
    if a.rad.size and not a.rad.any():
        return Ball(mid, np.broadcast_to(0.0, mid.shape))
    return Ball(mid, a.rad.reshape(*lead, -1)[..., index])


def norm(a: Ball) -> float:
    """Upper bound of the Euclidean norm of all entries together."""
    scale = float(np.max(a.largest, initial=0.0))
    if not scale < np.inf:
        return np.inf
    if scale == 0:
        return 0.0
    big = a.largest / scale
    return float(up(np.sqrt(up(np.sum(big * big), big.size)) * scale))


def norm_below(a: Ball) -> float:
    """Lower bound of the same norm."""
    small = np.maximum(np.abs(a.mid) - a.rad, 0) * (1 - 2.0**-40)
    scale = float(np.max(small, initial=0.0))
    if not 0 < scale < np.inf:
        return 0.0
    small = small / scale
    value = np.sqrt(np.sum(small * small)) * (1 - 2 * gamma(small.size + 16)) * scale
    return float(max(down(value), 0.0)) if value < np.inf else 0.0


# ------------------------------------------------------------------------------------- functions


def interval(a: Ball) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the ball, widened by one float each way."""
    low, high = a.mid - a.rad, a.mid + a.rad
    return np.nextafter(low - TINY, -np.inf), np.nextafter(high + TINY, np.inf)


def _least(a: Ball) -> np.ndarray:
    """Lower bound of the distance from 0."""
    low, high = interval(a)
    return np.maximum(np.maximum(low, -high), 0.0)


def _above_zero(low: np.ndarray, name: str) -> np.ndarray:
    if not np.all(low > 0):
        raise Refusal(f"the argument of {name} is not above zero")
    return low


def _slope_sqrt(a: Ball) -> np.ndarray:
    return 0.5 / np.sqrt(_above_zero(interval(a)[0], "sqrt"))


def _slope_rsqrt(a: Ball) -> np.ndarray:
    low = _above_zero(interval(a)[0], "rsqrt")
    return 0.5 / (low * np.sqrt(low))


# value, bound of the slope on the ball, relative error and absolute error of the value
FUNCTIONS: dict[str, tuple[Any, Any, float, float]] = {
    "exp": (np.exp, lambda a: np.exp(interval(a)[1]), 32 * UNIT, 0.0),
    "exp2": (np.exp2, lambda a: 0.6931471806 * np.exp2(interval(a)[1]), 32 * UNIT, 0.0),
    "expm1": (np.expm1, lambda a: np.exp(interval(a)[1]), 32 * UNIT, 0.0),
    "log": (np.log, lambda a: 1 / _above_zero(interval(a)[0], "log"), 32 * UNIT, 0.0),
    "log1p": (
        np.log1p, lambda a: 1 / _above_zero((1 + interval(a)[0]) * (1 - 4 * UNIT), "log1p"),
        32 * UNIT, 0.0,
    ),
    "tanh": (np.tanh, lambda a: np.minimum(1, 4 * np.exp(-2 * _least(a))), 32 * UNIT, 0.0),
    "logistic": (
        of_scipy("expit"), lambda a: np.minimum(0.25, np.exp(-_least(a))), 32 * UNIT, 0.0,
    ),
    # exp and log1p err by 16 ulp each; e <= 1.45 log1p(e) for e in (0, 1]
    "softplus": (
        lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        lambda a: np.minimum(1, np.exp(np.minimum(interval(a)[1], 1.0))), 128 * UNIT, 0.0,
    ),
    # log((1 + e^x) / 2): the argument of log1p is in (-1/2, 0], where its condition is below 1.45,
    # and the sum is at least half of x
    "centred_softplus": (
        lambda x: np.maximum(x, 0) + np.log1p(np.expm1(-np.abs(x)) / 2),
        lambda a: np.minimum(1, np.exp(np.minimum(interval(a)[1], 1.0))), 128 * UNIT, 0.0,
    ),
    "erf": (
        of_scipy("erf"), lambda a: 1.1283791671 * np.exp(-_least(a) ** 2 * (1 - 1e-9)), 32 * UNIT,
        0.0,
    ),
    "erfc": (
        of_scipy("erfc"), lambda a: 1.1283791671 * np.exp(-_least(a) ** 2 * (1 - 1e-9)), 32 * UNIT,
        32 * UNIT,
    ),
    "sin": (np.sin, lambda a: np.ones(a.shape), 32 * UNIT, 32 * UNIT),
    "cos": (np.cos, lambda a: np.ones(a.shape), 32 * UNIT, 32 * UNIT),
    "sqrt": (np.sqrt, _slope_sqrt, UNIT, 0.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), _slope_rsqrt, 4 * UNIT, 0.0),
}  # fmt: skip


def apply(name: str, a: Ball) -> Ball:
    """One of `FUNCTIONS` of every entry; an exact -inf under exp is an exact 0 (a mask)."""
    function, slope, relative, absolute = FUNCTIONS[name]
    masked = np.isneginf(a.mid) & (a.rad == 0)
    if masked.any():
        if name != "exp":
            raise Refusal(f"{name} of -inf")
        a = Ball(np.where(masked, 0.0, a.mid), np.where(masked, 0.0, a.rad))
    with np.errstate(all="ignore"):
        mid = function(a.mid)
        rad = relative * np.abs(mid) + absolute + _or_zero(a.rad != 0, a.rad * slope(a))
    if name in ("log", "sqrt", "rsqrt"):
        _above_zero(interval(a)[0], name)
    return Ball(np.where(masked, 0.0, mid), _or_zero(~masked, up(rad * (1 + 1e-12))))


# ------------------------------------------------------------------------------------ comparisons


def gap(a: Ball, b: Ball) -> np.ndarray:
    """Lower bound of |a - b|, negative where the two may meet; both exact and equal: -inf."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.mid - b.mid)
    apart = np.where(a.mid == b.mid, 0.0, apart)  # also -inf and -inf
    return np.where(np.isinf(apart), np.inf, apart * (1 - 2.0**-40) - up(a.rad + b.rad))


COMPARISONS = {
    "gt": np.greater, "lt": np.less, "ge": np.greater_equal, "le": np.less_equal, "eq": np.equal,
    "ne": np.not_equal,
}  # fmt: skip


def compare(name: str, a: Ball, b: Ball) -> np.ndarray:
    """A decided comparison; refused where the balls meet, unless both are exact."""
    decided = (gap(a, b) > 0) | ((a.rad == 0) & (b.rad == 0))
    if not np.all(decided):
        raise Refusal("a comparison (a kink) is not decided at the given weights")
    return COMPARISONS[name](a.mid, b.mid)
