r"""Values and derivatives of a program at the given weights, as balls.

Derivatives are carried forward through the program's own operations, not through a derivative
jaxpr, so no derivative rule of JAX and no rounded constant of one is believed. For every trained
block b a value v of n entries carries $D_bv$ as a ball of shape (size of b, n) and, for second
order, $D^2_{ij}v$ of shape (size of i, size of j, n) with $i\le j$.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.verified import balls
from shoal.verified.balls import Ball, Refusal, exact
from shoal.verified.program import Operation, Program, depends, last_uses
from shoal.verified.spectra import spectral_norm

LARGEST = 2.0e8
"""Numbers in the derivatives of one value above which a program is refused for its cost."""
MASKED = ("constant", "take", "join", "select", "add", "sub")
"""Operations whose results may hold an exact -inf."""


class Selection(NamedTuple):
    """A derivative of zeros and ones: entry k is entry ``index[k]`` of the block (-1: none)."""

    index: np.ndarray
    count: int

    def spread(self, values: Ball) -> Ball:
        """The dense derivative, with values in place of ones."""
        mid, rad = np.zeros((self.count, len(self.index))), np.zeros((self.count, len(self.index)))
        on = np.flatnonzero(self.index >= 0)
        mid[self.index[on], on], rad[self.index[on], on] = values.mid[on], values.rad[on]
        return Ball(mid, rad)

    def dense(self) -> Ball:
        """The derivative as a ball."""
        return self.spread(exact(np.ones(len(self.index))))


class Taylor(NamedTuple):
    """A value with its derivatives by block; what is missing is zero."""

    value: Any  # a Ball, or an array of truth values
    first: dict[int, Any]
    second: dict[tuple[int, int], Ball]


class Centre(NamedTuple):
    """Values of all operations, derivatives of the output, norms of derivatives at anchors."""

    values: list[Any]
    output: Taylor
    norms: dict[int, np.ndarray]
    second_norms: dict[int, np.ndarray]


def evaluate(
    program: Program,
    weights: list[np.ndarray],
    *,
    order: int = 1,
    anchors: tuple[int, ...] = (),
    second_anchors: tuple[int, ...] = (),
) -> Centre:
    """Evaluate a program, with derivatives up to ``order``."""
    _refuse_giants(program, weights, order)
    dead = last_uses(program)
    live: dict[int, Taylor] = {}
    values: list[Any] = []
    norms: dict[int, np.ndarray] = {}
    second_norms: dict[int, np.ndarray] = {}
    for number, op in enumerate(program.operations):
        try:
            with np.errstate(all="ignore"):
                found = RULES[op.kind](op, [live[i] for i in op.inputs], weights, order)
            _require_numbers(op, found)
        except Refusal as refusal:
            place = f" ({op.place})" if op.place and op.place not in str(refusal) else ""
            raise Refusal(f"{refusal}{place}") from None
        live[number] = found
        values.append(found.value)
        if number in anchors:
            norms[number] = first_norms(found, len(weights))
        if number in second_anchors:
            second_norms[number] = mixed_norms(found, len(weights))
        for gone in dead[number]:
            live.pop(gone, None)
    return Centre(values, live[program.output], norms, second_norms)


def _refuse_giants(program: Program, weights: list[np.ndarray], order: int) -> None:
    if order == 0:
        return
    for op, blocks in zip(program.operations, depends(program), strict=True):
        parameters = sum(weights[b].size for b in blocks)
        if op.kind not in ("weight", "take") and op.size * float(parameters) ** order > LARGEST:
            raise Refusal(f"too large: {op.size} numbers with {parameters} weights, order {order}")


def _require_numbers(op: Operation, found: Taylor) -> None:
    if not isinstance(found.value, Ball):
        return
    mid, rad = found.value
    whole = np.isfinite(mid) & np.isfinite(rad)
    if op.kind in MASKED:
        whole |= np.isneginf(mid) & (rad == 0)
    parts = [*found.first.values(), *found.second.values()]
    fine = all(np.isfinite(p.mid).all() and np.isfinite(p.rad).all()
               for p in parts if isinstance(p, Ball))  # fmt: skip
    if not (whole.all() and fine):
        raise Refusal(f"overflow, infinity or nan in {op.options.get('name', op.kind)!r}")


def first_norms(found: Taylor, count: int) -> np.ndarray:
    """Upper bounds of the spectral norms of the derivatives by each block."""
    norms = np.zeros(count)
    for block, part in found.first.items():
        if isinstance(part, Selection):
            most = np.bincount(part.index[part.index >= 0]).max(initial=0)
            norms[block] = balls.up(np.sqrt(float(most)))
        else:
            norms[block] = spectral_norm(part)
    return norms


def mixed_norms(found: Taylor, count: int) -> np.ndarray:
    r"""Upper bounds of $\|D^2_{ij}v\|$ as a bilinear form, symmetric in i and j."""
    norms = np.zeros((count, count))
    for (i, j), part in found.second.items():
        one = Ball(*(x.reshape(x.shape[0], -1) for x in part))
        other = Ball(*(np.moveaxis(x, 1, 0).reshape(x.shape[1], -1) for x in part))
        norms[i, j] = norms[j, i] = min(spectral_norm(one), spectral_norm(other))
    return norms


# ----------------------------------------------------------------------------- on Taylor values


def _dense(part: Any) -> Ball:
    return part.dense() if isinstance(part, Selection) else part


def _linear(
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
        key: both(_dense(a[key]), _dense(b[key]))
        if key in a and key in b
        else a.get(key, b.get(key))
        for key in sorted({*a, *b})
    }


def _add(u: Taylor, w: Taylor) -> Taylor:
    first = _merged(u.first, w.first, balls.add)
    return Taylor(balls.add(u.value, w.value), first, _merged(u.second, w.second, balls.add))


def _neg(u: Taylor) -> Taylor:
    return _linear(balls.neg(u.value), u, balls.neg)


def _scale(part: Any, factor: Ball) -> Ball:
    return part.spread(factor) if isinstance(part, Selection) else balls.mul(part, factor)


def _outer(one: Any, other: Any) -> Ball:
    a, b = _dense(one), _dense(other)
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


def _mul(u: Taylor, w: Taylor, order: int) -> Taylor:
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


def _div(u: Taylor, w: Taylor, order: int) -> Taylor:
    """q = u/w has Dq = (Du - q Dw)/w, and so on."""
    q = balls.div(u.value, w.value)
    first = {}
    for b in sorted({*u.first, *w.first}):
        parts = [_dense(u.first[b])] if b in u.first else []
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


def _take(u: Taylor, index: np.ndarray, fill: float) -> Taylor:
    if not isinstance(u.value, Ball):
        return Taylor(u.value[index], {}, {})
    padded = bool((index < 0).any())

    def apply(part: Ball, outside: float = 0.0) -> Ball:
        if not padded:
            return balls.take(part, index)
        mid, rad = part.mid[..., index], part.rad[..., index]
        return Ball(np.where(index < 0, outside, mid), np.where(index < 0, 0.0, rad))

    def moved(part: Selection) -> Selection:
        return Selection(np.where(index < 0, -1, part.index[index]), part.count)

    return _linear(apply(u.value, fill), u, apply, moved)


def _total(u: Taylor, rows: int) -> Taylor:
    def apply(part: Ball) -> Ball:
        return balls.total(Ball(*(x.reshape(*x.shape[:-1], rows, -1) for x in part)))

    return _linear(apply(u.value), u, apply)


def _each(u: Taylor, count: int) -> Taylor:
    """A number per row, for each of its entries."""
    return _take(u, np.repeat(np.arange(u.value.shape[0]), count), 0.0)


def _constant(value: np.ndarray) -> Taylor:
    return Taylor(exact(value), {}, {})


# ---------------------------------------------------------------------------------- functions

ROOT_PI = 1.7724538509055159  # below the true root; its error is in the radius
SLOPE_ERF = Ball(np.array(2 / ROOT_PI), np.array(4e-15))
HALF_ROOT = 0.7071067811865476


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
    if name in ("log", "log1p"):
        slope = balls.div(one, x if name == "log" else balls.add(one, x))
        return slope, lambda: balls.neg(balls.mul(slope, slope))
    if name == "tanh":
        slope = balls.sub(one, balls.mul(y, y))
        return slope, lambda: _times(balls.mul(y, slope), -2.0)
    if name in ("logistic", "softplus"):
        s = y if name == "logistic" else balls.apply("logistic", x)
        bend = balls.mul(s, balls.sub(one, s))
        if name == "softplus":
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


def _function(name: str, u: Taylor, order: int) -> Taylor:
    if name == "silu":
        return _mul(u, _function("logistic", u, order), order)
    if name == "gelu":
        size = u.value.shape[0]
        tail = _mul(u, _constant(np.full(size, -HALF_ROOT)), order)
        half = _mul(u, _constant(np.full(size, 0.5)), order)
        return _mul(half, _function("erfc", tail, order), order)
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


def _power(u: Taylor, n: int, order: int) -> Taylor:
    value = _whole_power(u.value, n)
    slope = _times(_whole_power(u.value, n - 1), float(n))
    return _compose(
        value, slope, lambda: _times(_whole_power(u.value, n - 2), float(n * (n - 1))), u, order
    )


def _exponentials(u: Taylor, rows: int, order: int) -> tuple[Taylor, Taylor, np.ndarray]:
    """exp(z - c), its sums and c: any constant per row gives the same softmax."""
    z = u.value.mid.reshape(rows, -1)
    shift = np.max(np.where(np.isneginf(z), -np.inf, z), axis=1)
    count = z.shape[1]
    e = _function("exp", _add(u, _constant(np.repeat(-shift, count))), order)
    return e, _total(e, rows), shift


def _softmax(op: Operation, u: Taylor, order: int) -> Taylor:
    rows = op.options["rows"]
    e, sums, _ = _exponentials(u, rows, order)
    return _div(e, _each(sums, op.size // rows), order)


def _logsumexp(op: Operation, u: Taylor, order: int) -> Taylor:
    _, sums, shift = _exponentials(u, op.options["rows"], order)
    return _add(_function("log", sums, order), _constant(shift))


def _centred(op: Operation, u: Taylor, order: int) -> Taylor:
    rows = op.options["rows"]
    count = op.size // rows
    mean = _div(_total(u, rows), _constant(np.full(rows, float(count))), order)
    return _add(u, _neg(_each(mean, count)))


def _normalised(op: Operation, u: Taylor, order: int) -> Taylor:
    rows, options = op.options["rows"], op.options
    squares = _total(_mul(u, u, order), rows)
    scaled = _mul(squares, _constant(np.full(rows, options["num"])), order)
    scaled = _div(scaled, _constant(np.full(rows, options["den"])), order)
    level = _add(scaled, _constant(np.full(rows, options["offset"])))
    root = _function("rsqrt", level, order)
    return _mul(u, _each(root, op.size // rows), order)


# ------------------------------------------------------------------------------------ the table


def _weight(op: Operation, _: Any, weights: list[np.ndarray], order: int) -> Taylor:
    block = op.options["block"]
    value = exact(weights[block].ravel())
    first = {block: Selection(np.arange(op.size), op.size)} if order else {}
    return Taylor(value, first, {})


def _join(op: Operation, given: list[Taylor]) -> Taylor:
    parts = [u.value for u in given]
    value = Ball(*(np.concatenate([p[k] for p in parts]) for k in (0, 1)))
    sizes = [u.value.shape[0] for u in given]
    first: dict[int, Any] = {}
    for b in sorted(set().union(*(u.first for u in given))):
        each = [u.first.get(b) for u in given]
        if all(p is None or isinstance(p, Selection) for p in each):
            index = [np.full(n, -1) if p is None else p.index
                     for n, p in zip(sizes, each, strict=True)]  # fmt: skip
            count = next(p.count for p in each if p is not None)
            first[b] = Selection(np.concatenate(index), count)
        else:
            first[b] = _with_zeros([None if p is None else _dense(p) for p in each], sizes)
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


def _select(op: Operation, given: list[Taylor]) -> Taylor:
    where, a, b = given
    both = _join(op, [a, b])
    index = np.where(where.value, np.arange(op.size), op.size + np.arange(op.size))
    return _take(both, index, 0.0)


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
    on = part.index[part.index >= 0]
    if len(np.unique(on)) < len(on):
        return None
    batch, m, k, n = sizes
    found = Ball(np.zeros((part.count, batch, m, n)), np.zeros((part.count, batch, m, n)))
    shape = (batch, m, k) if left else (batch, k, n)
    b, i, j = np.nonzero(part.index.reshape(shape) >= 0)
    p = part.index.reshape(shape)[b, i, j]
    matrix = Ball(*(x.reshape((batch, k, n) if left else (batch, m, k)) for x in other))
    for into, values in zip(found, matrix, strict=True):
        if left:
            into[p, b, i, :] = values[b, j, :]
        else:
            into[p, b, :, j] = values[b, :, i]
    return Ball(*(x.reshape(part.count, -1) for x in found))


def _dot(op: Operation, u: Taylor, w: Taylor, order: int) -> Taylor:
    sizes = op.options["sizes"]
    first: dict[int, list[Ball]] = {}
    for b, part in u.first.items():
        short = _dot_selected(part, w.value, sizes, True) if isinstance(part, Selection) else None
        found = _dot_parts(_dense(part), w.value, sizes) if short is None else short
        first.setdefault(b, []).append(found)
    for b, part in w.first.items():
        short = _dot_selected(part, u.value, sizes, False) if isinstance(part, Selection) else None
        found = _dot_parts(u.value, _dense(part), sizes) if short is None else short
        first.setdefault(b, []).append(found)
    second: dict[tuple[int, int], list[Ball]] = {}
    for pair, part in u.second.items():
        second.setdefault(pair, []).append(_dot_parts(part, w.value, sizes))
    for pair, part in w.second.items():
        second.setdefault(pair, []).append(_dot_parts(u.value, part, sizes))
    for i, j in _pairs(u.first, w.first) if order > 1 else ():
        for rows, columns, turned in ((i, j, False), (j, i, True)):
            if rows in u.first and columns in w.first:
                a, b = _dense(u.first[rows]), _dense(w.first[columns])
                a = Ball(*(x[None] if turned else x[:, None] for x in a))
                b = Ball(*(x[:, None] if turned else x[None] for x in b))
                second.setdefault((i, j), []).append(_dot_parts(a, b, sizes))
    return Taylor(_dot_parts(u.value, w.value, sizes), _collected(first), _collected(second))


def _largest(op: Operation, u: Taylor) -> Taylor:
    """The largest of each row, where one entry exceeds all others; else refused."""
    mid, rad = (x.reshape(op.options["rows"], -1) for x in u.value)
    top = np.argmax(mid, axis=1)
    each = np.arange(len(mid))
    lead = mid[each, top][:, None] - mid
    apart = lead * (1 - 2.0**-40) - balls.up(rad + rad[each, top][:, None])
    apart[each, top] = np.inf
    if not np.all(apart > 0) and u.first:
        raise Refusal("the largest of several entries is not decided at the given weights")
    found = _take(u, each * mid.shape[1] + top, 0.0)
    if u.first:
        return found
    value = Ball(found.value.mid, np.max(rad, axis=1))  # whichever it is, within that radius
    return found._replace(value=value)


def _logic(op: Operation, given: list[Taylor]) -> np.ndarray:
    values = [u.value for u in given]
    name = op.options["name"]
    if name in ("all", "any"):
        rows = values[0].reshape(op.size, -1)
        return rows.all(1) if name == "all" else rows.any(1)
    if name == "not":
        return ~values[0]
    return values[0] & values[1] if name == "and" else values[0] | values[1]


def _finite(u: Taylor) -> np.ndarray:
    return np.isfinite(u.value.mid)


def _truth(value: np.ndarray) -> Taylor:
    return Taylor(value, {}, {})


def _stopped(op: Operation, *_: Any) -> Taylor:
    raise Refusal("stop_gradient of something that depends on weights, and that does not cancel")


Rule = Callable[[Operation, list[Taylor], list[np.ndarray], int], Taylor]
RULES: dict[str, Rule] = {
    "weight": _weight,
    "constant": lambda op, g, w, order: _constant(op.options["value"]),
    "take": lambda op, g, w, order: _take(g[0], op.options["index"], op.options["fill"]),
    "join": lambda op, g, w, order: _join(op, g),
    "add": lambda op, g, w, order: _add(*g),
    "sub": lambda op, g, w, order: _add(g[0], _neg(g[1])),
    "neg": lambda op, g, w, order: _neg(*g),
    "mul": lambda op, g, w, order: _mul(*g, order),
    "div": lambda op, g, w, order: _div(*g, order),
    "dot": lambda op, g, w, order: _dot(op, *g, order),
    "sum": lambda op, g, w, order: _total(g[0], op.options["rows"]),
    "max": lambda op, g, w, order: _largest(op, *g),
    "unary": lambda op, g, w, order: _function(op.options["name"], g[0], order),
    "power": lambda op, g, w, order: _power(g[0], op.options["exponent"], order),
    "softmax": lambda op, g, w, order: _softmax(op, g[0], order),
    "logsumexp": lambda op, g, w, order: _logsumexp(op, g[0], order),
    "centre": lambda op, g, w, order: _centred(op, g[0], order),
    "normalise": lambda op, g, w, order: _normalised(op, g[0], order),
    "compare": lambda op, g, w, order: _truth(
        balls.compare(op.options["name"], g[0].value, g[1].value)
    ),
    "logic": lambda op, g, w, order: _truth(_logic(op, g)),
    "finite": lambda op, g, w, order: _truth(_finite(*g)),
    "select": lambda op, g, w, order: _select(op, g),
    "stop": _stopped,
}  # noqa: ARG005
