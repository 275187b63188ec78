r"""Values with their derivatives by block, as balls: the arithmetic that `centre` is made of.

For every trained block b a value v of n entries carries $D_bv$ as a ball of shape (size of b, n)
and, for second order, $D^2_{ij}v$ of shape (size of i, size of j, n) with $i\le j$. What is missing
is zero.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.verified import balls
from shoal.verified.balls import Ball, exact


class Selection(NamedTuple):
    """A derivative of zeros and ones: entry k is entry ``entries[k]`` of the block (-1: none)."""

    entries: np.ndarray
    size: int

    def spread(self, values: Ball) -> Ball:
        """The dense derivative, with values in place of ones."""
        mid, rad = (
            np.zeros((self.size, len(self.entries))),
            np.zeros((self.size, len(self.entries))),
        )
        on = np.flatnonzero(self.entries >= 0)
        mid[self.entries[on], on], rad[self.entries[on], on] = values.mid[on], values.rad[on]
        return Ball(mid, rad)

    def dense(self) -> Ball:
        """The derivative as a ball."""
        return self.spread(exact(np.ones(len(self.entries))))


class Taylor(NamedTuple):
    """A value with its derivatives by block; what is missing is zero."""

    value: Any  # a Ball, or an array of truth values
    first: dict[int, Any]
    second: dict[tuple[int, int], Ball]


def dense(part: Any) -> Ball:
    """A derivative as a ball."""
    return part.dense() if isinstance(part, Selection) else part


def linear(
    value: Ball, u: Taylor, apply: Callable[[Ball], Ball], moved: Callable | None = None
) -> Taylor:
    """A linear map: the same for derivatives; ``moved`` is a cheaper way for a selection."""

    def on(part: Any) -> Any:
        if isinstance(part, Selection):
            return moved(part) if moved is not None else apply(part.dense())
        return apply(part)

    first = {b: on(part) for b, part in u.first.items()}
    return Taylor(value, first, {pair: apply(part) for pair, part in u.second.items()})


def _merged(a: dict, b: dict, both: Callable[[Ball, Ball], Ball]) -> dict:
    return {
        key: both(dense(a[key]), dense(b[key])) if key in a and key in b else a.get(key, b.get(key))
        for key in sorted({*a, *b})
    }


def add(u: Taylor, w: Taylor) -> Taylor:
    """Sum."""
    first = _merged(u.first, w.first, balls.add)
    return Taylor(balls.add(u.value, w.value), first, _merged(u.second, w.second, balls.add))


def neg(u: Taylor) -> Taylor:
    """Negative."""
    return linear(balls.neg(u.value), u, balls.neg)


def _scale(part: Any, factor: Ball) -> Ball:
    return part.spread(factor) if isinstance(part, Selection) else balls.mul(part, factor)


def _outer(one: Any, other: Any) -> Ball:
    a, b = dense(one), dense(other)
    return balls.mul(Ball(a.mid[:, None], a.rad[:, None]), Ball(b.mid[None], b.rad[None]))


def _pairs(*dicts: dict[int, Any]) -> list[tuple[int, int]]:
    blocks = sorted(set().union(*dicts))
    return [(i, j) for i in blocks for j in blocks if i <= j]


def _sum_of(parts: list[Ball]) -> Ball | None:
    if not parts:
        return None
    found = parts[0]
    for part in parts[1:]:
        found = balls.add(found, part)
    return found


def _collected(found: dict[Any, list[Ball]]) -> dict:
    return {key: total for key, parts in found.items() if (total := _sum_of(parts)) is not None}


def mul(u: Taylor, w: Taylor, order: int) -> Taylor:
    """Product, entry by entry."""
    first: dict[int, list[Ball]] = {}
    for one, other in ((u, w), (w, u)):
        for b, part in one.first.items():
            first.setdefault(b, []).append(_scale(part, other.value))
    second: dict[tuple[int, int], list[Ball]] = {}
    for one, other in ((u, w), (w, u)):
        for pair, part in one.second.items():
            second.setdefault(pair, []).append(balls.mul(part, other.value))
    for i, j in _pairs(u.first, w.first) if order > 1 else ():
        for one, other in ((u, w), (w, u)):
            if i in one.first and j in other.first:
                second.setdefault((i, j), []).append(_outer(one.first[i], other.first[j]))
    return Taylor(balls.mul(u.value, w.value), _collected(first), _collected(second))


def div(u: Taylor, w: Taylor, order: int) -> Taylor:
    """q = u/w has Dq = (Du - q Dw)/w, and so on."""
    q = balls.div(u.value, w.value)
    first = {}
    for b in sorted({*u.first, *w.first}):
        parts = [dense(u.first[b])] if b in u.first else []
        parts += [balls.neg(_scale(w.first[b], q))] if b in w.first else []
        first[b] = balls.div(_sum_of(parts), _rows(w.value, 1))  # type: ignore[arg-type]
    second = {}
    for i, j in _pairs(first) if order > 1 else ():
        parts = [u.second[i, j]] if (i, j) in u.second else []
        parts += [balls.neg(balls.mul(w.second[i, j], q))] if (i, j) in w.second else []
        if j in w.first:
            parts.append(balls.neg(_outer(first[i], w.first[j])))
        if i in w.first:
            parts.append(balls.neg(_outer(w.first[i], first[j])))
        if parts:
            second[i, j] = balls.div(_sum_of(parts), _rows(w.value, 2))  # type: ignore[arg-type]
    return Taylor(q, first, second)


def _rows(value: Ball, lead: int) -> Ball:
    index = (None,) * lead
    return Ball(value.mid[index], value.rad[index])


def _compose(value: Ball, slope: Ball, bend: Callable[[], Ball], u: Taylor, order: int) -> Taylor:
    first = {b: _scale(part, slope) for b, part in u.first.items()}
    second = {pair: [balls.mul(part, slope)] for pair, part in u.second.items()}
    if order > 1 and u.first:
        curve = bend()
        for i, j in _pairs(u.first):
            outer = balls.mul(_outer(u.first[i], u.first[j]), curve)
            second.setdefault((i, j), []).append(outer)
    return Taylor(value, first, _collected(second))


def take(u: Taylor, index: np.ndarray, fill: float) -> Taylor:
    """Entries by number; -1 is ``fill``."""
    if not isinstance(u.value, Ball):
        return Taylor(u.value[index], {}, {})
    padded = bool((index < 0).any())

    def apply(part: Ball, outside: float = 0.0) -> Ball:
        if not padded:
            return balls.take(part, index)
        mid, rad = part.mid[..., index], part.rad[..., index]
        return Ball(np.where(index < 0, outside, mid), np.where(index < 0, 0.0, rad))

    def moved(part: Selection) -> Selection:
        return Selection(np.where(index < 0, -1, part.entries[index]), part.size)

    return linear(apply(u.value, fill), u, apply, moved)


def total(u: Taylor, rows: int) -> Taylor:
    """Sum of each row."""

    def apply(part: Ball) -> Ball:
        return balls.total(Ball(*(x.reshape(*x.shape[:-1], rows, -1) for x in part)))

    return linear(apply(u.value), u, apply)


def each(u: Taylor, count: int) -> Taylor:
    """A number per row, for each of its entries."""
    return take(u, np.repeat(np.arange(u.value.shape[0]), count), 0.0)


def constant(value: np.ndarray) -> Taylor:
    """What does not depend on weights."""
    return Taylor(exact(value), {}, {})


# ---------------------------------------------------------------------------------- functions

ROOT_PI = 1.7724538509055159  # below the true root; its error is in the radius
SLOPE_ERF = Ball(np.array(2 / ROOT_PI), np.array(4e-15))
HALF_ROOT = 0.7071067811865476
LOG2 = 0.6931471805599453  # off by less than 1e-16


def _times(value: Ball, factor: float) -> Ball:
    return balls.mul(value, exact(np.full(value.shape, factor)))


def _bell(x: Ball, sign: float) -> Ball:
    bell = balls.apply("exp", balls.neg(balls.mul(x, x)))
    constant = Ball(np.full(x.shape, sign * SLOPE_ERF.mid), np.full(x.shape, SLOPE_ERF.rad))
    return balls.mul(constant, bell)


def _slopes(name: str, x: Ball, y: Ball) -> tuple[Ball, Callable[[], Ball]]:
    """First derivative, and the second when it is asked for; y is the value at x."""
    one = exact(np.ones(x.shape))
    if name in ("exp", "expm1"):
        slope = y if name == "exp" else balls.apply("exp", x)
        return slope, lambda: slope
    if name == "exp2":
        log2 = Ball(np.full(x.shape, LOG2), np.full(x.shape, 1e-16))
        slope = balls.mul(log2, y)
        return slope, lambda: balls.mul(log2, slope)
    if name in ("log", "log1p"):
        slope = balls.div(one, x if name == "log" else balls.add(one, x))
        return slope, lambda: balls.neg(balls.mul(slope, slope))
    if name == "tanh":
        slope = balls.sub(one, balls.mul(y, y))
        return slope, lambda: _times(balls.mul(y, slope), -2.0)
    if name in ("logistic", "softplus", "centred_softplus"):
        s = y if name == "logistic" else balls.apply("logistic", x)
        bend = balls.mul(s, balls.sub(one, s))
        if name != "logistic":
            return s, lambda: bend
        return bend, lambda: balls.mul(bend, balls.sub(one, _times(s, 2.0)))
    if name in ("erf", "erfc"):
        slope = _bell(x, 1.0 if name == "erf" else -1.0)
        return slope, lambda: _times(balls.mul(x, slope), -2.0)
    if name in ("sin", "cos"):
        other = balls.apply("cos" if name == "sin" else "sin", x)
        return other if name == "sin" else balls.neg(other), lambda: balls.neg(y)
    if name == "sqrt":
        slope = balls.div(exact(np.full(x.shape, 0.5)), y)
        return slope, lambda: _times(balls.div(slope, x), -0.5)
    slope = _times(balls.div(y, x), -0.5)  # rsqrt
    return slope, lambda: _times(balls.div(slope, x), -1.5)


def function(name: str, u: Taylor, order: int) -> Taylor:
    """A function of every entry."""
    if name == "silu":
        return mul(u, function("logistic", u, order), order)
    if name == "gelu":
        size = u.value.shape[0]
        tail = mul(u, constant(np.full(size, -HALF_ROOT)), order)
        half = mul(u, constant(np.full(size, 0.5)), order)
        return mul(half, function("erfc", tail, order), order)
    value = balls.apply(name, u.value)
    if not u.first:
        return Taylor(value, {}, {})
    return _compose(value, *_slopes(name, u.value, value), u, order)


def _whole_power(x: Ball, exponent: int) -> Ball:
    if exponent < 0:
        return balls.div(exact(np.ones(x.shape)), _whole_power(x, -exponent))
    found = exact(np.ones(x.shape))
    for _ in range(exponent):
        found = balls.mul(found, x)
    return found


def power(u: Taylor, n: int, order: int) -> Taylor:
    """A whole power of every entry."""
    value = _whole_power(u.value, n)
    slope = _times(_whole_power(u.value, n - 1), float(n))
    return _compose(
        value, slope, lambda: _times(_whole_power(u.value, n - 2), float(n * (n - 1))), u, order
    )


def join(given: list[Taylor]) -> Taylor:
    """Several values, one after the other."""
    parts = [u.value for u in given]
    value = Ball(*(np.concatenate([p[k] for p in parts]) for k in (0, 1)))
    sizes = [u.value.shape[0] for u in given]
    first: dict[int, Any] = {}
    for b in sorted(set().union(*(u.first for u in given))):
        each = [u.first.get(b) for u in given]
        if all(p is None or isinstance(p, Selection) for p in each):
            index = [np.full(n, -1) if p is None else p.entries
                     for n, p in zip(sizes, each, strict=True)]  # fmt: skip
            count = next(p.size for p in each if p is not None)
            first[b] = Selection(np.concatenate(index), count)
        else:
            first[b] = _with_zeros([None if p is None else dense(p) for p in each], sizes)
    second = {
        pair: _with_zeros([u.second.get(pair) for u in given], sizes)
        for pair in sorted(set().union(*(u.second for u in given)))
    }
    return Taylor(value, first, second)


def _with_zeros(parts: list[Ball | None], sizes: list[int]) -> Ball:
    lead = next(p for p in parts if p is not None).shape[:-1]
    full = [exact(np.zeros((*lead, n))) if p is None else p
            for n, p in zip(sizes, parts, strict=True)]  # fmt: skip
    return Ball(*(np.concatenate([p[k] for p in full], axis=-1) for k in (0, 1)))


def _dot_parts(a: Ball, b: Ball, sizes: tuple[int, ...]) -> Ball:
    """Products of matrices with leading axes of derivatives."""
    batch, m, k, n = sizes
    one = Ball(*(x.reshape(*x.shape[:-1], batch, m, k) for x in a))
    other = Ball(*(x.reshape(*x.shape[:-1], batch, k, n) for x in b))
    if batch == 1 and one.mid.ndim == 3:  # a matrix times many
        flipped = Ball(*(np.swapaxes(x[..., 0, :, :], -1, -2) for x in other))
        found = balls.dot(flipped, Ball(*(x[0].T for x in one)))
        found = Ball(*(np.swapaxes(x, -1, -2) for x in found))
    elif batch == 1 and other.mid.ndim == 3:
        found = balls.dot(Ball(*(x[..., 0, :, :] for x in one)), Ball(*(x[0] for x in other)))
    else:
        found = balls.dot(one, other)
        return Ball(*(x.reshape(*x.shape[:-3], batch * m * n) for x in found))
    return Ball(*(x.reshape(*x.shape[:-2], m * n) for x in found))


def _dot_selected(part: Selection, other: Ball, sizes: tuple[int, ...], left: bool) -> Ball | None:
    """A selection times a matrix: its entries put in place, without arithmetic."""
    on = part.entries[part.entries >= 0]
    if len(np.unique(on)) < len(on):
        return None
    batch, m, k, n = sizes
    found = Ball(np.zeros((part.size, batch, m, n)), np.zeros((part.size, batch, m, n)))
    shape = (batch, m, k) if left else (batch, k, n)
    b, i, j = np.nonzero(part.entries.reshape(shape) >= 0)
    p = part.entries.reshape(shape)[b, i, j]
    matrix = Ball(*(x.reshape((batch, k, n) if left else (batch, m, k)) for x in other))
    for into, values in zip(found, matrix, strict=True):
        if left:
            into[p, b, i, :] = values[b, j, :]
        else:
            into[p, b, :, j] = values[b, :, i]
    return Ball(*(x.reshape(part.size, -1) for x in found))


def dot(u: Taylor, w: Taylor, sizes: tuple[int, ...], order: int) -> Taylor:
    """Products of matrices: sizes are batch, m, k, n."""
    first: dict[int, list[Ball]] = {}
    for b, part in u.first.items():
        short = _dot_selected(part, w.value, sizes, True) if isinstance(part, Selection) else None
        found = _dot_parts(dense(part), w.value, sizes) if short is None else short
        first.setdefault(b, []).append(found)
    for b, part in w.first.items():
        short = _dot_selected(part, u.value, sizes, False) if isinstance(part, Selection) else None
        found = _dot_parts(u.value, dense(part), sizes) if short is None else short
        first.setdefault(b, []).append(found)
    second: dict[tuple[int, int], list[Ball]] = {}
    for pair, part in u.second.items():
        second.setdefault(pair, []).append(_dot_parts(part, w.value, sizes))
    for pair, part in w.second.items():
        second.setdefault(pair, []).append(_dot_parts(u.value, part, sizes))
    for i, j in _pairs(u.first, w.first) if order > 1 else ():
        for rows, columns, turned in ((i, j, False), (j, i, True)):
            if rows in u.first and columns in w.first:
                left, right = dense(u.first[rows]), dense(w.first[columns])
                left = Ball(*(x[None] if turned else x[:, None] for x in left))
                right = Ball(*(x[:, None] if turned else x[None] for x in right))
                second.setdefault((i, j), []).append(_dot_parts(left, right, sizes))
    return Taylor(_dot_parts(u.value, w.value, sizes), _collected(first), _collected(second))
