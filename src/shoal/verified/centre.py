r"""Values and derivatives of a program at the given weights, as balls.

Derivatives are carried forward through the program's own operations, not through a derivative
jaxpr, so no derivative rule of JAX and no rounded constant of one is believed.
"""

# ruff: noqa: ARG001, ARG005 (all rules have the same arguments)

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.verified import balls
from shoal.verified.balls import Ball, Refusal, exact
from shoal.verified.program import Operation, Program, depends, last_uses
from shoal.verified.spectra import spectral_norm
from shoal.verified.taylor import (
    Selection,
    Taylor,
    add,
    constant,
    div,
    dot,
    each,
    function,
    join,
    mul,
    neg,
    power,
    take,
    total,
)

LARGEST = 2.0e8
"""Numbers in the derivatives of one value above which a program is refused for its cost."""
MASKED = ("constant", "take", "join", "select", "add", "sub")
"""Operations whose results may hold an exact -inf."""


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
            most = np.bincount(part.entries[part.entries >= 0]).max(initial=0)
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


def _exponentials(u: Taylor, rows: int, order: int) -> tuple[Taylor, Taylor, np.ndarray]:
    """exp(z - c), its sums and c: any constant per row gives the same softmax."""
    z = u.value.mid.reshape(rows, -1)
    shift = np.max(np.where(np.isneginf(z), -np.inf, z), axis=1)
    count = z.shape[1]
    e = function("exp", add(u, constant(np.repeat(-shift, count))), order)
    return e, total(e, rows), shift


def _softmax(op: Operation, u: Taylor, order: int) -> Taylor:
    rows = op.options["rows"]
    e, sums, _ = _exponentials(u, rows, order)
    return div(e, each(sums, op.size // rows), order)


def _logsumexp(op: Operation, u: Taylor, order: int) -> Taylor:
    _, sums, shift = _exponentials(u, op.options["rows"], order)
    return add(function("log", sums, order), constant(shift))


def _centred(op: Operation, u: Taylor, order: int) -> Taylor:
    rows = op.options["rows"]
    count = op.size // rows
    mean = div(total(u, rows), constant(np.full(rows, float(count))), order)
    return add(u, neg(each(mean, count)))


def _normalised(op: Operation, u: Taylor, order: int) -> Taylor:
    rows, options = op.options["rows"], op.options
    squares = total(mul(u, u, order), rows)
    scaled = mul(squares, constant(np.full(rows, options["num"])), order)
    scaled = div(scaled, constant(np.full(rows, options["den"])), order)
    level = add(scaled, constant(np.full(rows, options["offset"])))
    root = function("rsqrt", level, order)
    return mul(u, each(root, op.size // rows), order)


# ------------------------------------------------------------------------------------ the table


def _weight(op: Operation, _: Any, weights: list[np.ndarray], order: int) -> Taylor:
    block = op.options["block"]
    value = exact(weights[block].ravel())
    first = {block: Selection(np.arange(op.size), op.size)} if order else {}
    return Taylor(value, first, {})


def _select(op: Operation, given: list[Taylor]) -> Taylor:
    where, a, b = given
    both = join([a, b])
    index = np.where(where.value, np.arange(op.size), op.size + np.arange(op.size))
    return take(both, index, 0.0)


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
    found = take(u, each * mid.shape[1] + top, 0.0)
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


def _negative(u: Taylor) -> Taylor:
    if not np.all(u.value.mid + balls.up(u.value.rad) < 0):
        raise Refusal("a number that is cut at zero is not below zero")
    return u


def _stopped(op: Operation, *_: Any) -> Taylor:
    raise Refusal("stop_gradient of something that depends on weights, and that does not cancel")


Rule = Callable[[Operation, list[Taylor], list[np.ndarray], int], Taylor]
RULES: dict[str, Rule] = {
    "weight": _weight,
    "constant": lambda op, g, w, order: constant(op.options["value"]),
    "take": lambda op, g, w, order: take(g[0], op.options["index"], op.options["fill"]),
    "join": lambda op, g, w, order: join(g),
    "add": lambda op, g, w, order: add(*g),
    "sub": lambda op, g, w, order: add(g[0], neg(g[1])),
    "neg": lambda op, g, w, order: neg(*g),
    "mul": lambda op, g, w, order: mul(g[0], g[1], order),
    "div": lambda op, g, w, order: div(g[0], g[1], order),
    "dot": lambda op, g, w, order: dot(g[0], g[1], op.options["sizes"], order),
    "sum": lambda op, g, w, order: total(g[0], op.options["rows"]),
    "max": lambda op, g, w, order: _largest(op, *g),
    "unary": lambda op, g, w, order: function(op.options["name"], g[0], order),
    "power": lambda op, g, w, order: power(g[0], op.options["exponent"], order),
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
    "negative": lambda op, g, w, order: _negative(g[0]),
    "stop": _stopped,
}
