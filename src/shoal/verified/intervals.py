r"""Intervals: two ends for every number, rounded outward.

An interval stands for every real array between its ends, entry by entry; an end may be infinite.
What is assumed of the machine is said in `balls` (A1 to A3); `pow`, `atan`, `atan2` and `atanh`
count among the functions of A3. A number that is not known at all is the interval from -inf to inf.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.verified import balls
from shoal.verified.balls import Ball, of_scipy

ERROR = 40 * balls.UNIT
"""Relative error of a function of the library, as A3 of `balls` has it, and of what follows."""
WHOLE_BELOW = 2.0**52
LEAST = 5e-324
"""A value of 0 at an argument that is not 0 may have vanished by underflow."""


class Interval(NamedTuple):
    """All arrays between ``low`` and ``high``, entry by entry."""

    low: Any
    high: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the arrays."""
        return self.low.shape

    @property
    def exact(self) -> bool:
        """Whether it was made as a single point."""
        return self.low is self.high

    @property
    def largest(self) -> Any:
        """Upper bound of the absolute values."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


class Truth(NamedTuple):
    """Predicates: where they are ``sure`` to be true, and where that is ``possible``."""

    sure: Any
    possible: Any


def point(value: Any) -> Interval:
    """Numbers that are what they are; a NaN is not known at all."""
    array = np.asarray(value, np.float64)
    missing = np.isnan(array)
    if missing.any():
        return Interval(np.where(missing, -np.inf, array), np.where(missing, np.inf, array))
    return Interval(array, array)


def _made(low: Any, high: Any) -> Interval:
    """Ends of which a NaN is no bound."""
    if np.isnan(low).any():
        low = np.where(np.isnan(low), -np.inf, low)
    if np.isnan(high).any():
        high = np.where(np.isnan(high), np.inf, high)
    return Interval(low, high)


def _down(x: Any) -> Any:
    return np.nextafter(x, -np.inf)


def _up(x: Any) -> Any:
    return np.nextafter(x, np.inf)


def widened(a: Interval, relative: float) -> Interval:
    """The interval, each end moved outward by a share of itself."""
    low = _down(a.low - relative * np.abs(a.low))
    high = _up(a.high + relative * np.abs(a.high))
    return _made(np.where(a.low == 0, 0.0, low), np.where(a.high == 0, 0.0, high))


def ball_of(a: Interval) -> Ball:
    """The ball around the interval; infinite radii where an end is."""
    if a.exact and np.isfinite(a.low).all():
        return balls.exact(a.low)
    finite = np.isfinite(a.low) & np.isfinite(a.high)
    low, high = np.where(finite, a.low, 0.0), np.where(finite, a.high, 0.0)
    mid = 0.5 * low + 0.5 * high
    rad = np.where(low == high, 0.0, balls.up(np.maximum(high - mid, mid - low)))
    return Ball(np.where(low == high, low, mid), np.where(finite, rad, np.inf))


def interval_of(a: Ball) -> Interval:
    """The interval of a ball."""
    if not a.rad.any():
        return _made(a.mid, a.mid) if np.isfinite(a.mid).all() else point(a.mid)
    sharp = a.rad == 0
    low = np.where(sharp, a.mid, _down(a.mid - a.rad))
    return _made(low, np.where(sharp, a.mid, _up(a.mid + a.rad)))


def hull(a: Interval, b: Interval) -> Interval:
    """The least interval around two."""
    return Interval(np.minimum(a.low, b.low), np.maximum(a.high, b.high))


# ------------------------------------------------------------------------------------- arithmetic


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """A rounded sum and its error, exactly (TwoSum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def add(a: Interval, b: Interval) -> Interval:
    """Sum; an exact one stays exact."""
    low, error = _sum(a.low, b.low)
    if a.exact and b.exact and not error.any():
        return _made(low, low)
    low = np.where((error < 0) | np.isnan(error) | np.isposinf(low), _down(low), low)
    high, error = _sum(a.high, b.high)
    high = np.where((error > 0) | np.isnan(error) | np.isneginf(high), _up(high), high)
    both = np.isinf(a.low) & np.isinf(b.low) & (a.low == b.low)
    return _made(np.where(both, a.low, low), high)


def neg(a: Interval) -> Interval:
    """Negative."""
    low = -a.high
    return Interval(low, low) if a.exact else Interval(low, -a.low)


def sub(a: Interval, b: Interval) -> Interval:
    """Difference."""
    return add(a, neg(b))


def _products(a: Interval, b: Interval) -> tuple[list[Any], Any]:
    """Products of the ends (0 times an infinite end is 0), and where they are exact."""
    ends_a = [a.low] if a.exact else [a.low, a.high]
    ends_b = [b.low] if b.exact else [b.low, b.high]
    found = [x * y for x in ends_a for y in ends_b]
    found = [np.where(np.isnan(p), 0.0, p) if np.isnan(p).any() else p for p in found]
    sharp = ((a.low == 0) & (a.high == 0)) | ((b.low == 0) & (b.high == 0))
    for x in (a, b):
        if x.exact:
            sharp = sharp | (np.abs(x.low) == 1)
    return found, sharp


def mul(a: Interval, b: Interval) -> Interval:
    """Product."""
    found, sharp = _products(a, b)
    low, high = _least(found), _largest(found)
    return _made(np.where(sharp, low, _down(low)), np.where(sharp, high, _up(high)))


def _least(parts: list[Any]) -> Any:
    return np.minimum.reduce(parts) if len(parts) > 1 else parts[0]


def _largest(parts: list[Any]) -> Any:
    return np.maximum.reduce(parts) if len(parts) > 1 else parts[0]


def reciprocal(b: Interval) -> Interval:
    """1 / b; unbounded where b may be 0."""
    with np.errstate(divide="ignore"):
        low, high = _down(1 / b.high), _up(1 / b.low)
    above, below = b.low > 0, b.high < 0
    one_sided_low = np.where(b.low == 0, np.where(b.high > 0, low, -np.inf), -np.inf)
    one_sided_high = np.where(b.high == 0, np.where(b.low < 0, high, np.inf), np.inf)
    sure = above | below
    return _made(np.where(sure, low, one_sided_low), np.where(sure, high, one_sided_high))


def div(a: Interval, b: Interval) -> Interval:
    """Quotient; unbounded where the divisor may be 0, unless 0 is divided by what is not 0."""
    sure = (b.low > 0) | (b.high < 0)
    if not sure.all():
        return mul(a, reciprocal(b))
    ends_b = [b.low] if b.exact else [b.low, b.high]
    found = [x / y for x in ([a.low] if a.exact else [a.low, a.high]) for y in ends_b]
    low, high = _least(found), _largest(found)
    sharp = (a.low == 0) & (a.high == 0)
    return _made(np.where(sharp, 0.0, _down(low)), np.where(sharp, 0.0, _up(high)))


def dot(a: Interval, b: Interval) -> Interval:
    """Matrix product over the last axis of ``a`` and the last but one of ``b``."""
    left, right = ball_of(a), ball_of(b)
    with np.errstate(invalid="ignore", over="ignore"):
        found = balls.dot(left, right)
    rad = np.where(np.isnan(found.rad) | np.isnan(found.mid), np.inf, found.rad)
    mid = np.where(np.isfinite(found.mid), found.mid, 0.0)
    small = rad < 1e3 * balls.TINY
    if small.any():  # nothing but zeros: the product is 0 exactly
        none = ((left.mid != 0) | (left.rad != 0)).astype(float) @ (
            (right.mid != 0) | (right.rad != 0)
        ).astype(float)
        rad = np.where(small & (none == 0), 0.0, rad)
    rad = np.where(np.isfinite(found.mid), rad, np.inf)
    return interval_of(Ball(mid, rad))


def total(a: Interval, axes: tuple[int, ...]) -> Interval:
    """Sum over some axes."""
    count = int(np.prod([a.shape[k] for k in axes]))
    if count == 1:
        low = a.low.sum(axes)
        return Interval(low, low) if a.exact else Interval(low, a.high.sum(axes))

    def end(x: Any, sign: float) -> Any:
        error = np.abs(x).sum(axes) * (balls.gamma(count) * (1 + 1e-9))
        value = x.sum(axes)
        return np.where(error == 0, value, np.nextafter(value + sign * error, sign * np.inf))

    with np.errstate(invalid="ignore"):
        return _made(end(a.low, -1.0), end(a.high, 1.0))


def scattered(added: Callable[[Any, Any], Any], a: Interval, b: Interval) -> Interval:
    """Entries of ``b`` added to some of ``a``: ``added`` does so in floats, in any order."""
    hits = added(np.zeros(a.shape), np.ones(b.shape))
    share = balls.gamma(int(hits.max(initial=0.0)) + 1) * (1 + 1e-9)

    def end(x: Any, y: Any, sign: float) -> Any:
        value, error = added(x, y), added(np.abs(x), np.abs(y)) * share
        wide = np.nextafter(value + sign * error, sign * np.inf)
        return np.where((hits == 0) | (error == 0), value, wide)

    with np.errstate(invalid="ignore"):
        return _made(end(a.low, b.low, -1.0), end(a.high, b.high, 1.0))


# -------------------------------------------------------------------------------------- functions


def _increasing(function: Any, relative: float = ERROR, absolute: float = 0.0) -> Any:
    def rule(a: Interval) -> Interval:
        low, high = function(a.low), function(a.high)
        gone = [absolute + LEAST * away for away in (a.low < 0, a.high > 0)]
        low = np.where(low == 0, -gone[0], _down(low - relative * np.abs(low) - absolute))
        high = np.where(high == 0, gone[1], _up(high + relative * np.abs(high) + absolute))
        return _made(low, high)

    return rule


def _floored(rule: Any, least: float, most: float) -> Any:
    """A rule whose values lie between two numbers."""
    return lambda a: Interval(*(np.clip(end, least, most) for end in rule(a)))


def _above_zero(function: Any) -> Any:
    """An increasing function that is above 0, but for an exact 0 at -inf (a mask)."""

    def rule(a: Interval) -> Interval:
        found = _increasing(function)(a)
        high = np.where(np.isneginf(a.high), 0.0, np.maximum(found.high, LEAST))
        return Interval(np.maximum(found.low, 0.0), high)

    return rule


_exp = _above_zero(np.exp)


def _expit(x: Any) -> Any:
    """The logistic function; SciPy's is 0 where it is below 1e-308."""
    return np.where(x < -700, np.exp(x), of_scipy("expit")(x))


def _sqrt(a: Interval) -> Interval:
    low = np.sqrt(np.maximum(a.low, 0.0))
    high = np.sqrt(np.maximum(a.high, 0.0))
    return _made(
        np.where(low == 0, 0.0, _down(low)),
        np.where(a.high < 0, np.inf, np.where(high == 0, 0.0, _up(high))),
    )


def _log(a: Interval) -> Interval:
    safe = Interval(np.maximum(a.low, 0.0), np.maximum(a.high, 0.0))
    found = _increasing(np.log)(safe)
    return _made(found.low, np.where(a.high < 0, np.inf, found.high))


def _waving(function: Any) -> Any:
    """Sine and cosine: the value at the middle, and a slope of at most 1."""

    def rule(a: Interval) -> Interval:
        mid, rad = ball_of(a)
        value = function(mid)
        wide = balls.up(rad + 2 * ERROR)
        return Interval(np.maximum(value - wide, -1.0), np.minimum(value + wide, 1.0))

    return rule


def _falling_erfc(a: Interval) -> Interval:
    return neg(_increasing(lambda z: -of_scipy("erfc")(z), ERROR, ERROR)(a))


FUNCTIONS = {
    "exp": _exp,
    "exp2": lambda a: _exp(mul(a, widened(point(np.log(2.0)), ERROR))),
    "expm1": _floored(_increasing(np.expm1), -1.0, np.inf),
    "log": _log,
    "log1p": lambda a: _increasing(np.log1p)(
        Interval(np.maximum(a.low, -1.0), np.maximum(a.high, -1.0))
    ),
    "atan": _increasing(np.arctan),
    "atanh": lambda a: _increasing(np.arctanh)(Interval(*(np.clip(x, -1.0, 1.0) for x in a))),
    "tanh": _floored(_increasing(np.tanh), -1.0, 1.0),
    "logistic": _floored(_above_zero(_expit), 0.0, 1.0),
    "erf": _floored(_increasing(of_scipy("erf")), -1.0, 1.0),
    "erfc": lambda a: _floored(_falling_erfc, 0.0, 2.0)(a),
    "sin": _waving(np.sin),
    "cos": _waving(np.cos),
    "sqrt": _sqrt,
    "rsqrt": lambda a: reciprocal(_sqrt(a)),
    "floor": lambda a: Interval(np.floor(a.low), np.floor(a.high)),
    "ceil": lambda a: Interval(np.ceil(a.low), np.ceil(a.high)),
    "sign": lambda a: Interval(np.sign(a.low), np.sign(a.high)),
}


def absolute(a: Interval) -> Interval:
    """Absolute value."""
    if a.exact:
        return point(np.abs(a.low))
    inside = (a.low <= 0) & (a.high >= 0)
    least = np.minimum(np.abs(a.low), np.abs(a.high))
    return Interval(np.where(inside, 0.0, least), a.largest)


def whole_power(a: Interval, exponent: int) -> Interval:
    """A whole power."""
    if exponent < 0:
        return reciprocal(whole_power(a, -exponent))
    if exponent == 0:
        return point(np.ones(a.shape))
    if exponent == 1:
        return a
    base = absolute(a) if exponent % 2 == 0 else a
    relative = (exponent + 2) * balls.UNIT
    return _increasing(lambda x: x**exponent, relative)(base)


def power(a: Interval, b: Interval) -> Interval:
    """a to the power b, for a >= 0; a negative base needs a whole exponent."""
    whole = b.exact and bool(np.all((b.low == np.round(b.low)) & (np.abs(b.low) < WHOLE_BELOW)))
    with np.errstate(all="ignore"):
        base = Interval(np.maximum(a.low, 0.0), np.maximum(a.high, 0.0))
        ends = [x**y for x in base for y in b]
        found = widened(_made(_least(ends), _largest(ends)), ERROR)
        gone = (found.high == 0) & (base.high > 0)
        found = Interval(found.low, np.where(gone, LEAST, found.high))
        if not np.any(a.low < 0):
            return found
        if not whole:
            return _made(np.where(a.low < 0, -np.inf, found.low),
                         np.where(a.low < 0, np.inf, found.high))  # fmt: skip
        most = np.where(b.low >= 0, a.largest ** np.maximum(b.low, 0.0), np.inf)
        most = _up(most * (1 + ERROR))  # never 0
        even = np.broadcast_to(b.low % 2 == 0, np.broadcast_shapes(a.shape, b.shape))
        one = (b.low == 0) & (b.high == 0)
        low = np.where(a.low < 0, np.where(even, 0.0, -most), found.low)
        return _made(
            np.where(one, 1.0, low), np.where(one, 1.0, np.where(a.low < 0, most, found.high))
        )


def angle(y: Interval, x: Interval) -> Interval:
    """atan2 for x, y >= 0; elsewhere from -pi to pi."""
    first = (y.low >= 0) & (x.low >= 0)
    low = np.arctan2(np.maximum(y.low, 0), np.maximum(x.high, 0)) * (1 - ERROR)
    high = np.arctan2(np.maximum(y.high, 0), np.maximum(x.low, 0)) * (1 + ERROR)
    low, high = np.maximum(_down(low), 0.0), np.where(y.high > 0, _up(high), high)
    undefined = (y.low <= 0) & (x.low <= 0)
    low = np.where(undefined, 0.0, low)
    high = np.where(undefined, 1.5707963267948972, high)
    return Interval(
        np.where(first, low, -3.1415926535897936), np.where(first, high, 3.1415926535897936)
    )


# ------------------------------------------------------------------------------------ comparisons


def less(a: Interval, b: Interval) -> Truth:
    """a < b."""
    return Truth(a.high < b.low, a.low < b.high)


def less_equal(a: Interval, b: Interval) -> Truth:
    """a <= b."""
    return Truth(a.high <= b.low, a.low <= b.high)


def equal(a: Interval, b: Interval) -> Truth:
    """a = b."""
    same = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return Truth(same, (a.low <= b.high) & (b.low <= a.high))


def negation(a: Truth) -> Truth:
    """Not a."""
    return Truth(~a.possible, ~a.sure)


def choice(where: Truth, yes: Interval, no: Interval) -> Interval:
    """``yes`` where the predicate holds, ``no`` where it does not, both where that is open."""
    low = np.where(
        where.sure, yes.low, np.where(where.possible, np.minimum(yes.low, no.low), no.low)
    )
    if yes.exact and no.exact and bool(np.all(where.sure == where.possible)):
        return Interval(low, low)
    high = np.where(
        where.sure, yes.high, np.where(where.possible, np.maximum(yes.high, no.high), no.high)
    )
    return Interval(low, high)
