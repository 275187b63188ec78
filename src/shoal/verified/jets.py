r"""Norm jets: bounds of derivatives that hold on a whole ball of weights, for many radii at once.

A jet of a value $v$ consists of nonnegative $d_1, d_2, d_3$ with, at every point of the ball and
for all directions with block norms $\tau$,

$$ \|Dv[\delta]\|\le d_1\cdot\tau,\quad \|D^2v[\delta,\delta']\|\le d_2[\tau,\tau'],\quad
   \|D^3v[\delta,\delta',\delta'']\|\le d_3[\tau,\tau',\tau'']. $$

Arrays have a leading axis of radii. The value itself moves by at most radius times $|d_1|$ (`mov`).
Each rule has its number in docs/theory/prove.md, section 3.3.
"""

# ruff: noqa: ARG001, ARG005 (all rules have the same arguments)

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from shoal.verified import balls
from shoal.verified.balls import Ball, Refusal, up
from shoal.verified.program import Operation, Program, copies, last_uses
from shoal.verified.slopes import SLOPES, Slopes
from shoal.verified.spectra import spectral_norm

ROOT_6_OVER_9 = 0.27216552697590873
"""Rounded up."""


class Jet(NamedTuple):
    """Bounds of the first, second and (if they are carried) third derivative."""

    first: np.ndarray  # (radii, blocks)
    second: np.ndarray  # (radii, blocks, blocks)
    third: np.ndarray | None  # (radii, blocks, blocks, blocks)


class Bounds(NamedTuple):
    """The output's jet, and for every radius why it is out of reach ('' if it is not)."""

    jet: Jet
    reasons: list[str]
    first_by_value: dict[int, np.ndarray]  # d1 of every value, for the report of slack


class Walk:
    """What the rules share: radii, values at the centre, and which radii are still good."""

    def __init__(self, radii: np.ndarray, ratios: np.ndarray, values: list[Any]) -> None:
        self.radii, self.values = np.asarray(radii, float), values
        self.roots = np.asarray([root_above(a) for a in ratios])
        self.reasons = [""] * len(self.radii)
        self.place, self.number = "", 0

    def require(self, good: np.ndarray, why: str) -> None:
        """Give up radii for which a condition does not hold (nan does not)."""
        for g in np.flatnonzero(~np.asarray(good, bool)):
            if not self.reasons[g]:
                self.reasons[g] = f"{why} ({self.place})" if self.place else why

    def mov(self, jet: Jet | None) -> np.ndarray:
        """How far a value can move on the ball."""
        if jet is None:
            return np.zeros(len(self.radii))
        scale = np.max(jet.first, axis=1, keepdims=True)
        safe = np.where(scale > 0, scale, 1.0)
        length = np.sqrt(np.sum((jet.first / safe) ** 2, axis=1)) * scale[:, 0]
        return up(up(length, jet.first.shape[1]) * self.radii)

    def largest(self, number: int, jet: Jet | None) -> np.ndarray:
        """Upper bound of all entries' absolute values on the ball."""
        return up(np.max(self.values[number].largest, initial=0.0) + self.mov(jet))

    def range(self, number: int, jet: Jet | None) -> tuple[np.ndarray, np.ndarray]:
        """Ends of an interval that holds all entries on the ball."""
        low, high = balls.interval(self.values[number])
        moved = up(self.mov(jet))
        low, high = np.min(low, initial=np.inf) - moved, np.max(high, initial=-np.inf) + moved
        return np.nextafter(low, -np.inf), np.nextafter(high, np.inf)

    def spectral(self, number: int, jet: Jet | None, shape: tuple[int, ...]) -> np.ndarray:
        """Upper bound of the spectral norms of a batch of matrices on the ball."""
        value = self.values[number]
        norms = [
            spectral_norm(Ball(m, r))
            for m, r in zip(value.mid.reshape(shape), value.rad.reshape(shape), strict=True)
        ]
        return up(max(norms, default=0.0) + self.mov(jet))


def root_above(number: float) -> float:
    """Upper bound of a square root, exact for squares."""
    root = float(np.sqrt(number))
    return root if Fraction(root) ** 2 == Fraction(number) else float(up(root))


def bounds(
    program: Program,
    values: list[Any],
    radii: np.ndarray,
    ratios: np.ndarray,
    *,
    order: int = 2,
    norms: dict[int, np.ndarray] | None = None,
    second_norms: dict[int, np.ndarray] | None = None,
) -> Bounds:
    """Jets of a program on balls around the weights where it has the given values.

    ``norms`` and ``second_norms`` are norms of derivatives at the centre, by value, at which the
    jets are anchored (3.5).
    """
    walk = Walk(radii, ratios, values)
    dead = last_uses(program)
    live: dict[int, Jet | None] = {}
    seen: dict[int, np.ndarray] = {}
    for number, op in enumerate(program.operations):
        walk.place, walk.number = op.place, number
        with np.errstate(all="ignore"):
            jet = RULES[op.kind](walk, op, [live[i] for i in op.inputs], order)
            jet = None if jet is None else _rounded(jet)
            if jet is not None and norms and number in norms:
                jet = _anchored(walk, jet, norms[number])
            if jet is not None and second_norms and number in second_norms:
                jet = _anchored_twice(walk, jet, second_norms[number])
        live[number] = jet
        if jet is not None:
            seen[number] = jet.first
            walk.require(np.isfinite(jet.first).all(1) & np.isfinite(jet.second).all((1, 2)),
                         "overflow")  # fmt: skip
        for gone in dead[number]:
            live.pop(gone, None)
    final = live[program.output]
    if final is None:
        raise Refusal("the outputs do not depend on the trained weights")
    return Bounds(final, walk.reasons, seen)


def _rounded(jet: Jet) -> Jet:
    """Round outward; what is exactly zero stays so."""
    first, second, third = (None if d is None else np.where(d == 0, 0.0, up(d)) for d in jet)
    return Jet(first, second, third)  # type: ignore[arg-type]


def _anchored(walk: Walk, jet: Jet, norms: np.ndarray) -> Jet:
    """3.5: a first derivative is that at the centre, plus what the second allows."""
    at_centre = up(norms * walk.roots)[None]
    grown = up(at_centre + up(walk.radii[:, None] * length(jet.second)))
    return jet._replace(first=np.minimum(jet.first, grown))


def _anchored_twice(walk: Walk, jet: Jet, norms: np.ndarray) -> Jet:
    if jet.third is None:
        return jet
    at_centre = up(norms * walk.roots[:, None] * walk.roots[None])[None]
    grown = up(at_centre + up(walk.radii[:, None, None] * length(jet.third)))
    return jet._replace(second=np.minimum(jet.second, grown))


def length(x: np.ndarray) -> np.ndarray:
    """Upper bound of the Euclidean norm over the last axis."""
    scale = np.max(x, axis=-1, keepdims=True, initial=0.0)
    safe = np.where(scale > 0, scale, 1.0)
    return up(up(np.sqrt(np.sum((x / safe) ** 2, axis=-1)), x.shape[-1]) * scale[..., 0])


# ---------------------------------------------------------------------------- R1 to R3: linear maps


def _scaled(jet: Jet | None, factor: Any) -> Jet | None:
    """R1: times the norm of a linear map, a number for each radius."""
    if jet is None:
        return None
    f = np.broadcast_to(np.asarray(factor, float), (len(jet.first),))
    return Jet(
        jet.first * f[:, None],
        jet.second * f[:, None, None],
        None if jet.third is None else jet.third * f[:, None, None, None],
    )


def _root(count: int) -> float:
    return root_above(float(count))


def _added(*jets: Jet | None) -> Jet | None:
    """R2."""
    real = [jet for jet in jets if jet is not None]
    if not real:
        return None
    return Jet(*(None if any(d is None for d in ds) else sum(ds) for ds in zip(*real, strict=True)))  # type: ignore[arg-type]


def _stacked(*jets: Jet | None) -> Jet | None:
    """R3: entrywise the root of the sum of squares."""
    real = [jet for jet in jets if jet is not None]
    if len(real) < 2:
        return real[0] if real else None

    def together(ds: tuple) -> Any:
        if any(d is None for d in ds):
            return None
        return length(np.stack(ds, axis=-1))

    return Jet(*(together(ds) for ds in zip(*real, strict=True)))


# ------------------------------------------------------------- R4 products, R5 compositions


def _outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[:, :, None] * b[:, None, :]


def _sym(d2: np.ndarray, d1: np.ndarray) -> np.ndarray:
    """Sum over the three places of the single index."""
    return (
        d2[:, :, :, None] * d1[:, None, None, :]
        + d2[:, :, None, :] * d1[:, None, :, None]
        + d2[:, None, :, :] * d1[:, :, None, None]
    )


def _product(u: Jet | None, w: Jet | None, U: np.ndarray, W: np.ndarray) -> Jet | None:
    """R4, Leibniz; U and W bound the two factors on the ball."""
    if u is None or w is None:
        return _scaled(u, W) if w is None else _scaled(w, U)
    one, other = _scaled(u, W), _scaled(w, U)
    cross = _outer(u.first, w.first)
    both = _added(one, other)
    second = both.second + cross + np.swapaxes(cross, 1, 2)  # type: ignore[union-attr]
    third = None
    if both.third is not None:  # type: ignore[union-attr]
        third = both.third + _sym(u.second, w.first) + _sym(w.second, u.first)  # type: ignore[union-attr]
    return Jet(both.first, second, third)  # type: ignore[union-attr]


def _composed(u: Jet | None, slopes: Slopes) -> Jet | None:
    """R5, Faa di Bruno; slopes bound the derivatives of the outer function."""
    if u is None:
        return None
    M1, M2, M3 = (np.broadcast_to(np.asarray(M, float), (len(u.first),)) for M in slopes)
    inner = _scaled(u, M1)
    pair = _outer(u.first, u.first)
    second = inner.second + M2[:, None, None] * pair  # type: ignore[union-attr]
    third = None
    if u.third is not None:
        triple = pair[:, :, :, None] * u.first[:, None, None, :]
        third = inner.third + M2[:, None, None, None] * _sym(u.second, u.first)  # type: ignore[union-attr]
        third = third + M3[:, None, None, None] * triple
    return Jet(inner.first, second, third)  # type: ignore[union-attr]


def _unary(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    if given[0] is None:
        return None
    return _composed(
        given[0], SLOPES[op.options["name"]](walk, *walk.range(op.inputs[0], given[0]))
    )


def _power(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    if given[0] is None:
        return None
    n = op.options["exponent"]
    if n > 0:
        b = walk.largest(op.inputs[0], given[0])
        falling = (n, n * (n - 1), n * (n - 1) * (n - 2))
        return _composed(given[0], tuple(
            c * up(b ** max(n - k, 0)) * (1 + 1e-13) if c else np.zeros_like(b)
            for k, c in enumerate(falling, 1)
        ))  # type: ignore[arg-type]  # fmt: skip
    return _composed(given[0], _reciprocal(walk, op.inputs[0], given[0], -n))


def _reciprocal(walk: Walk, number: int, jet: Jet | None, n: int) -> Slopes:
    """Slopes of x^-n on the ball."""
    value = walk.values[number]
    least = np.min((np.abs(value.mid) - value.rad) * (1 - 2.0**-40), initial=np.inf)
    a = least - walk.mov(jet) * (1 + 2.0**-40)
    walk.require(a > 1e-60, "a denominator may reach zero")
    a = np.where(a > 1e-60, a, 1.0) * (1 - 1e-13)
    return n * a ** (-n - 1), n * (n + 1) * a ** (-n - 2), n * (n + 1) * (n + 2) * a ** (-n - 3)


def _quotient(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    u, w = given
    if u is None and w is None:
        return None
    slopes = _reciprocal(walk, op.inputs[1], w, 1)
    inverse = None if w is None else _rounded(_composed(w, slopes))  # type: ignore[arg-type]
    value = walk.values[op.inputs[1]]
    least = np.min((np.abs(value.mid) - value.rad) * (1 - 2.0**-40), initial=np.inf)
    top = up(up(1 / least) + walk.mov(inverse))  # as for any factor: at the centre, and its move
    return _product(u, inverse, walk.largest(op.inputs[0], u), top)


def _entrywise(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    u, w = given
    if u is None and w is None:
        return None
    return _product(u, w, walk.largest(op.inputs[0], u), walk.largest(op.inputs[1], w))


def _dot(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    (u, w), (batch, m, k, n) = given, op.options["sizes"]
    if u is None and w is None:
        return None
    # the norm of a factor is needed only if the other one moves
    U = walk.spectral(op.inputs[0], u, (batch, m, k)) if w is not None else np.zeros(1)
    W = walk.spectral(op.inputs[1], w, (batch, k, n)) if u is not None else np.zeros(1)
    return _product(u, w, U, W)


def _softmax(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    if given[0] is None:
        return None
    own = walk.values[walk.number]
    top = np.max(own.largest) + 0.5 * walk.mov(given[0])
    return _composed(given[0], (np.minimum(0.5, up(top)), ROOT_6_OVER_9, 0.5))


def _logsumexp(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    return _composed(given[0], (1.0, 0.5, ROOT_6_OVER_9))


def _normalise(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    if given[0] is None:
        return None
    value, options = walk.values[op.inputs[0]], op.options
    rows = [x.reshape(options["rows"], -1) for x in value]
    least = min(balls.norm_below(Ball(m, r)) for m, r in zip(*rows, strict=True))
    short = np.maximum(least - walk.mov(given[0]) * (1 + 2.0**-40), 0.0)
    share = options["num"] / options["den"]
    level = (short**2 * share + options["offset"]) * (1 - 1e-12)
    walk.require(level > 1e-60, "the norm of a normalised row may reach zero")
    root = np.sqrt(np.where(level > 1e-60, level, 1.0)) * (1 - 1e-12)
    share = float(up(share))
    slopes = 1 / root, 1.1547005384 * np.sqrt(share) / root**2, 3 * share / root**3
    return _composed(given[0], tuple(s * (1 + 1e-12) for s in slopes))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- R6 kinks


def _compare(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> None:
    if given[0] is None and given[1] is None:
        return
    a, b = (walk.values[i] for i in op.inputs)
    least = np.min(balls.gap(a, b), initial=np.inf)
    reach = up(walk.mov(given[0]) + walk.mov(given[1]))
    walk.require(least > reach, "a kink is within reach")


def _largest(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    if given[0] is None:
        return None
    mid, rad = (x.reshape(op.options["rows"], -1) for x in walk.values[op.inputs[0]])
    ordered = np.sort(mid, axis=1)
    lead = ordered[:, -1] - ordered[:, -2] if mid.shape[1] > 1 else np.full(len(mid), np.inf)
    room = lead * (1 - 2.0**-40) - up(2 * np.max(rad, axis=1))
    reach = up(1.4142135624 * walk.mov(given[0]))
    walk.require(np.min(room, initial=np.inf) > reach, "the largest of several entries may change")
    return given[0]


def _negative(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    if given[0] is not None:
        high = walk.range(op.inputs[0], given[0])[1]
        walk.require(high < 0, "a number that is cut at zero may reach zero")
    return given[0]


def _select(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    which = walk.values[op.inputs[0]]
    if which.all() or not which.any():
        return given[1] if which.all() else given[2]
    return _stacked(*given[1:])


def _weight(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet:
    """R0."""
    count, radii, block = len(walk.roots), len(walk.radii), op.options["block"]
    first = np.zeros((radii, count))
    first[:, block] = walk.roots[block]
    third = np.zeros((radii, count, count, count)) if order > 2 else None
    return Jet(first, np.zeros((radii, count, count)), third)


def _take(walk: Walk, op: Operation, given: list[Jet | None], order: int) -> Jet | None:
    return _scaled(given[0], _root(copies(op.options["index"])))


Rule = Callable[[Walk, Operation, list[Jet | None], int], Jet | None]
RULES: dict[str, Rule] = {
    "weight": _weight,
    "constant": lambda *_: None,
    "take": _take,
    "join": lambda walk, op, g, order: _stacked(*g),
    "add": lambda walk, op, g, order: _added(*g),
    "sub": lambda walk, op, g, order: _added(*g),
    "neg": lambda walk, op, g, order: g[0],
    "mul": _entrywise,
    "div": _quotient,
    "dot": _dot,
    "sum": lambda walk, op, g, order: _scaled(
        g[0], _root(walk.values[op.inputs[0]].shape[0] // max(op.options["rows"], 1))
    ),
    "max": _largest,
    "unary": _unary,
    "power": _power,
    "softmax": _softmax,
    "logsumexp": _logsumexp,
    "centre": lambda walk, op, g, order: g[0],
    "normalise": _normalise,
    "compare": _compare,
    "logic": lambda *_: None,
    "finite": lambda *_: None,
    "select": _select,
    "negative": _negative,
}
