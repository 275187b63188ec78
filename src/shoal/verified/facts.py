r"""What is enclosed about a question: facts at the weights, and constants on balls around them.

The residual $r_0$, the Jacobian $J_0$ and, where affordable, second derivatives at the weights;
$\beta, L, K$ on a grid of balls.
"""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from shoal.verified import balls, fate, jets
from shoal.verified.balls import Ball, Refusal, exact, up
from shoal.verified.centre import Centre, evaluate
from shoal.verified.constants import constants
from shoal.verified.fate import Range
from shoal.verified.program import Program, depends
from shoal.verified.spectra import lambda_max, sigma_min, spectral_norm
from shoal.verified.taylor import dense

RADII = 10.0 ** (np.arange(-128, 9) / 8)
"""Eight radii a decade, from 1e-16 to 10."""
ANCHORED = ("add", "sub", "dot", "softmax", "normalise", "mul", "div", "unary", "join", "select")
"""Operations whose results jets are anchored at."""
MOST_SECOND = 2.5e8
"""Numbers in the second derivatives of all values of one sample, at most."""


class Question(NamedTuple):
    """A run of gradient descent on a squared loss, at the weights that it has reached.

    One program and one vector of targets per sample; the risk is ``scale`` / 2 times the sum of
    squared errors; block b moves by ``step_size`` times ``ratios[b]`` times its gradient.
    """

    programs: tuple[Program, ...]
    weights: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]
    ratios: np.ndarray
    scale: Range
    step_size: float

    @property
    def num_weights(self) -> int:
        """Number of trained weights."""
        return sum(W.size for W in self.weights)

    @property
    def num_outputs(self) -> int:
        """Number of outputs of all samples together."""
        return sum(y.size for y in self.targets)


def step_range(question: Question) -> Range:
    r"""The step $h=\eta s$ of P1."""
    eta = Fraction(question.step_size)
    return Range(fate.below(eta * Fraction(question.scale.low)),
                 fate.above(eta * Fraction(question.scale.high)))  # fmt: skip


def require_sane(question: Question) -> None:
    """Refuse signs and shapes that would prove nonsense (traps 15 and 16)."""
    positive = [question.step_size, *question.scale, *question.ratios]
    if not all(0 < x < np.inf for x in positive):
        raise Refusal("the step, the scale of the risk and step ratios must be above zero")
    for program, y in zip(question.programs, question.targets, strict=True):
        if program.operations[program.output].size != y.size:
            raise Refusal("outputs and targets differ in size")
    if not (question.num_outputs and question.num_weights and len(question.weights)):
        raise Refusal("there are no outputs or no trained weights")
    if not all(np.isfinite(W).all() for W in (*question.weights, *question.targets)):
        raise Refusal("weights or targets are not finite")


# ------------------------------------------------------------------------------- at the centre


class Facts(NamedTuple):
    """Enclosures at the weights."""

    centres: tuple[Centre, ...]
    residual: Ball  # (outputs,)
    jacobian: Ball  # (outputs, weights), columns times the roots of the step ratios
    residual_norm: float
    sigma: float
    jacobian_norm: float
    risk: Range


def _root(ratio: float) -> Ball:
    root = float(np.sqrt(ratio))
    good = jets.root_above(ratio) == root
    return Ball(np.array(root), np.array(0.0 if good else float(up(4 * balls.UNIT * root))))


def _columns(question: Question, parts: dict[int, Any], count: int) -> Ball:
    """The derivative of some outputs by all weights, as rows, in scaled coordinates."""
    found = []
    for block, W in enumerate(question.weights):
        if block in parts:
            part = dense(parts[block])
            found.append(balls.mul(Ball(part.mid.T, part.rad.T), _root(question.ratios[block])))
        else:
            found.append(exact(np.zeros((count, W.size))))
    return Ball(*(np.concatenate([p[k] for p in found], axis=1) for k in (0, 1)))


def facts(question: Question, *, nodes: bool = False) -> Facts:
    """Enclose residual and Jacobian; with ``nodes``, also norms of derivatives along the way."""
    centres = []
    for program in question.programs:
        anchors = anchor_numbers(program) if nodes else ()
        centres.append(evaluate(program, list(question.weights), order=1, anchors=anchors))
    residual = _joined(
        [balls.sub(c.output.value, exact(y.ravel()))
         for c, y in zip(centres, question.targets, strict=True)]
    )  # fmt: skip
    rows = [_columns(question, c.output.first, len(y.ravel()))
            for c, y in zip(centres, question.targets, strict=True)]  # fmt: skip
    J = Ball(*(np.concatenate([r[k] for r in rows]) for k in (0, 1)))
    norm, least = balls.norm(residual), balls.norm_below(residual)
    risk = Range(
        max(0.0, balls.down(0.5 * question.scale.low * least * least)),
        float(up(0.5 * question.scale.high * norm * norm)),
    )
    return Facts(tuple(centres), residual, J, norm, sigma_min(J), spectral_norm(J), risk)


def _joined(parts: list[Ball]) -> Ball:
    return Ball(*(np.concatenate([p[k] for p in parts]) for k in (0, 1)))


def anchor_numbers(program: Program) -> tuple[int, ...]:
    """Values at which jets are anchored."""
    moving = depends(program)
    return tuple(
        n for n, op in enumerate(program.operations)
        if moving[n] and (op.kind in ANCHORED or n == program.output)
        and op.kind not in ("weight", "take")
    )  # fmt: skip


class Second(NamedTuple):
    """Second derivatives at the centre."""

    squares: float  # Bound of the second derivative of all outputs as one form.
    hessian: Ball  # Sum over outputs of residual times second derivative, (weights, weights).


def second(question: Question, found: Facts) -> Second | None:
    """Enclose second derivatives, or None if they are too many."""
    size = question.num_weights
    largest = max(sum(op.size for op, on in zip(p.operations, depends(p), strict=True) if on)
                  for p in question.programs)  # fmt: skip
    if float(size) ** 2 * largest > MOST_SECOND:
        return None
    gram, hessian = exact(np.zeros((size, size))), exact(np.zeros((size, size)))
    start = 0
    for program, y in zip(question.programs, question.targets, strict=True):
        try:
            centre = evaluate(program, list(question.weights), order=2)
        except Refusal:
            return None
        H = _full_second(question, centre, y.size)
        flat = Ball(*(x.reshape(size, -1) for x in H))
        gram = balls.add(gram, balls.dot(flat, Ball(flat.mid.T, flat.rad.T)))
        r = Ball(*(x[start : start + y.size, None] for x in found.residual))
        weighted = balls.dot(H, r)
        hessian = balls.add(hessian, Ball(*(x[..., 0] for x in weighted)))
        start += y.size
    return Second(float(up(np.sqrt(max(lambda_max(gram), 0.0)))), hessian)


def _full_second(question: Question, centre: Centre, count: int) -> Ball:
    """Second derivatives by all weights, (weights, weights, outputs), in scaled coordinates."""
    starts = np.cumsum([0, *(W.size for W in question.weights)])
    size = starts[-1]
    mid, rad = np.zeros((size, size, count)), np.zeros((size, size, count))
    for (i, j), part in centre.output.second.items():
        factor = balls.mul(_root(question.ratios[i]), _root(question.ratios[j]))
        scaled = balls.mul(part, factor)
        rows, columns = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        for into, values in ((mid, scaled.mid), (rad, scaled.rad)):
            into[rows, columns] = values
            into[columns, rows] = np.swapaxes(values, 0, 1)
    return Ball(mid, rad)


# --------------------------------------------------------------------------------- on the ball


class OnBalls(NamedTuple):
    """Constants for every radius of a grid, and why a radius is out of reach ('' if it is not)."""

    radii: np.ndarray
    beta: np.ndarray
    L: np.ndarray
    K: np.ndarray | None
    reasons: list[str]


def on_balls(
    question: Question, found: Facts, radii: np.ndarray, *, order: int = 2, nodes: bool = False,
    squares: float | None = None,
) -> OnBalls:  # fmt: skip
    """Bound the derivatives of all outputs on balls around the weights."""
    reasons = [""] * len(radii)
    parts = []
    for program, centre in zip(question.programs, found.centres, strict=True):
        norms = centre.norms if nodes else None
        made = jets.bounds(program, centre.values, radii, question.ratios, order=order, norms=norms)
        reasons = [old or new for old, new in zip(reasons, made.reasons, strict=True)]
        parts.append(made.jet)
    beta, L, K = constants(parts)
    if squares is not None and K is not None:
        L = np.minimum(L, up(squares + up(radii * K)))
    beta_jets = beta
    beta = np.minimum(beta, up(found.jacobian_norm + up(L * radii)))
    _require_consistent(found, beta_jets, reasons)
    return OnBalls(radii, beta, L, K, reasons)


def _require_consistent(found: Facts, beta: np.ndarray, reasons: list[str]) -> None:
    """A bound on the ball below the value at its centre means that a rule is wrong (trap 11)."""
    seen = float(np.linalg.norm(found.jacobian.mid, 2)) if found.jacobian.mid.size else 0.0
    good = np.array([not reason for reason in reasons])
    if np.any(good & ~(seen <= beta * (1 + 1e-6) + 1e-12)):
        raise AssertionError("a bound on the ball is below the value at its centre: a wrong rule")


def gradient(question: Question, found: Facts) -> Ball:
    r"""The gradient of the risk, $sJ^\top r$."""
    r = Ball(found.residual.mid[None], found.residual.rad[None])
    g = balls.dot(r, found.jacobian)
    return balls.mul(Ball(g.mid[0], g.rad[0]), _scale_ball(question))


def _scale_ball(question: Question) -> Ball:
    low, high = question.scale
    middle = (low + high) / 2
    return Ball(np.array(middle), np.array(0.0 if low == high else float(up(high - low))))


def hessian(question: Question, found: Facts, curve: Second) -> Ball:
    r"""The Hessian of the risk, $s(J^\top J+\sum_kr_kH_k)$."""
    J = found.jacobian
    gauss = balls.dot(Ball(J.mid.T, J.rad.T), J)
    return balls.mul(balls.add(gauss, curve.hessian), _scale_ball(question))


def third_bound(
    question: Question, residual: float, beta: float, L: float, K: float, radius: float
) -> float:
    r"""Bound of the risk's third derivative on a ball, $s(3\beta L+(\|r_0\|+\beta\varrho)K)$."""
    return float(up(question.scale.high * up(3 * beta * L + (residual + beta * radius) * K)))
