r"""From a model's program, weights and targets to a decision: enclosures, bounds, theorems.

The residual $r_0$, the Jacobian $J_0$ and, where it is affordable, second derivatives are enclosed at
the weights; $\beta, L, K$ are bounded on a grid of balls around them; P1 and P2 decide. Bounds are
tried from cheap to sharp: plain jets, jets anchored at nodes, anchored at the output too.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from shoal.verified import balls, fate, jets
from shoal.verified.balls import Ball, Refusal, exact, up
from shoal.verified.centre import Centre, _dense, evaluate
from shoal.verified.fate import Range
from shoal.verified.program import Program, depends
from shoal.verified.spectra import lambda_max, lambda_min, sigma_min, spectral_norm

RADII = 10.0 ** (np.arange(-128, 9) / 8)
"""Eight radii a decade, from 1e-16 to 10."""
ANCHORED = ("add", "sub", "dot", "softmax", "normalise", "mul", "div", "unary", "join", "select")
"""Operations whose results jets are anchored at."""
MOST_SECOND = 2.5e8
"""Numbers in the second derivatives of all values of one sample, at most."""
FAR = 1000.0
"""Beyond this factor between residual and reach, anchoring at the output is not tried."""
LEVELS = ("jets", "nodes", "output")


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


class Decision(NamedTuple):
    """What is certain, by which theorem, on which ball, from which constants."""

    verdict: str
    reason: str
    theorem: str = ""
    radius: float = float("nan")
    rate: tuple[float, float] = (float("nan"), float("nan"))
    risk: Range = Range(0.0, float("inf"))
    level: str = ""
    constants: dict[str, float] = {}  # noqa: RUF012 (never changed)
    slack: tuple[tuple[str, str, float], ...] = ()


def step_range(question: Question) -> Range:
    r"""The step $h=\eta s$ of P1."""
    from fractions import Fraction

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
            part = _dense(parts[block])
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
    beta, L, K = jets.constants(parts)
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


# ---------------------------------------------------------------------------------- decisions


def decide(
    question: Question, *, levels: tuple[str, ...] = LEVELS, minimum: bool = True
) -> Decision:
    """Whether the fate of the run is certain. The first level of bounds that proves it is used."""
    try:
        balls.require_ieee()
        require_sane(question)
        found = facts(question)
        best: Decision | None = None
        for decision in _attempts(question, found, levels, minimum):
            if decision.verdict != "undecided":
                return decision
            best = decision if best is None or _further(decision, best) else best
    except Refusal as refusal:
        return Decision("undecided", f"The rules do not cover this model: {refusal}.")
    return best if best is not None else Decision("undecided", "Nothing was tried.")


def _further(new: Decision, old: Decision) -> bool:
    """Whether an undecided answer came closer than another."""
    return new.constants.get("short_by", np.inf) < old.constants.get("short_by", np.inf)


def _attempts(
    question: Question, found: Facts, levels: tuple[str, ...], minimum: bool
) -> Iterator[Decision]:
    early = _too_early(question, found)
    with_nodes, curve, closest = None, None, np.inf
    for level in levels:
        if early is not None and not (minimum and found.sigma <= 0):
            break
        if early is not None and level != levels[-1]:
            continue
        nodes = "nodes" in levels and level != "jets"
        if nodes and with_nodes is None:
            with_nodes = facts(question, nodes=True)
        used = with_nodes if nodes and with_nodes is not None else found
        order, radii = 2, RADII
        if level == "output":
            if early is None and closest > FAR and len(levels) > 1 and not _at_rest(question, found):
                continue  # second derivatives would cost much and not help
            curve = second(question, found)
            order = 3 if curve is not None else 2
            radii = _fewer(question, used, nodes) if order == 3 else radii
        bound = on_balls(question, used, radii, order=order, nodes=nodes,
                         squares=None if curve is None else curve.squares)  # fmt: skip
        label = "nodes, output" if nodes and level == "output" else level
        if early is None:
            tried = converges(question, used, bound, label)
            closest = min(closest, tried.constants.get("short_by", np.inf))
            yield tried
        if level == "output" and minimum and curve is not None:
            tried = stuck(question, used, bound, curve, label)
            if early is not None and tried.verdict == "undecided":
                both = f"{early.reason[:-1]}; {tried.reason[:1].lower()}{tried.reason[1:]}"
                early = early._replace(reason=both, constants=early.constants | tried.constants)
            else:
                yield tried
    if early is not None:
        yield early


def _at_rest(question: Question, found: Facts) -> bool:
    """Whether a strict minimum may be near: a step hardly lowers the risk."""
    if question.num_outputs >= question.num_weights:
        return True
    slope = balls.norm(gradient(question, found))
    return question.step_size * slope**2 <= 1e-6 * found.risk.high


def _fewer(question: Question, found: Facts, nodes: bool) -> np.ndarray:
    """All radii, or those around the most promising one if third derivatives cost too much."""
    if len(RADII) * len(question.weights) ** 3 <= 2e5:
        return RADII
    bound = on_balls(question, found, RADII, nodes=nodes)
    good = [g for g, reason in enumerate(bound.reasons) if not reason]
    if not good:
        return RADII[:1]
    value = np.where([not r for r in bound.reasons],
                     found.sigma * RADII - bound.L * RADII**2 / 2, -np.inf)  # fmt: skip
    g = int(np.argmax(value))
    return RADII[max(0, g - 8) : g + 9]


def _too_early(question: Question, found: Facts) -> Decision | None:
    """Conditions of P1 that no ball can repair."""
    h = step_range(question).high
    common = {"residual": found.residual_norm, "sigma": found.sigma,
              "jacobian_norm": found.jacobian_norm}  # fmt: skip
    if not found.sigma > 0:
        if question.num_outputs > question.num_weights:
            why = f"there are more outputs ({question.num_outputs}) than trained weights"
        else:
            why = "the Jacobian's smallest singular value is lost in rounding"
        return Decision("undecided", f"P1 needs sigma > 0, and {why}.", risk=found.risk,
                        constants=common)  # fmt: skip
    half = h * found.jacobian_norm**2 / 2
    if not half < 1:
        return Decision(
            "undecided", f"The step is too long for P1: h |J|^2 / 2 = {half:.4g}, not below 1.",
            risk=found.risk, constants=common | {"short_by": half},
        )  # fmt: skip
    return None


def converges(question: Question, found: Facts, bound: OnBalls, level: str) -> Decision:
    """P1 on a grid of balls; the smallest ball that proves it is reported."""
    h, best = step_range(question), 0.0
    for g, radius in enumerate(bound.radii):
        if bound.reasons[g]:
            continue
        tried = fate.contraction(found.residual_norm, found.sigma, float(bound.beta[g]),
                                 float(bound.L[g]), h, float(radius))  # fmt: skip
        if tried is None:
            continue
        best = max(best, tried.largest_residual)
        if tried.holds:
            constants = {
                "residual": found.residual_norm, "sigma": found.sigma,
                "jacobian_norm": found.jacobian_norm, "beta": float(bound.beta[g]),
                "L": float(bound.L[g]), "alpha": tried.alpha, "c": tried.c, "reach": tried.reach,
                "path": tried.path, "step_low": h.low, "step_high": h.high,
                "largest_residual": tried.largest_residual,
            }  # fmt: skip
            return Decision(
                "converges", "Gradient descent converges to zero risk.", "P1", float(radius),
                (tried.factor, tried.later_factor), Range(0.0, 0.0), level, constants,
            )  # fmt: skip
    constants = {"residual": found.residual_norm, "sigma": found.sigma,
                 "jacobian_norm": found.jacobian_norm, "largest_residual": best}  # fmt: skip
    if best == 0:
        reason = next((r for r in bound.reasons if r), "no ball fits")
        return Decision("undecided", f"No ball around the weights is covered: {reason}.",
                        risk=found.risk, level=level, constants=constants)  # fmt: skip
    short = found.residual_norm / best
    return Decision(
        "undecided", f"The residual is too large for P1, by a factor of {short:.4g}.",
        risk=found.risk, level=level, constants=constants | {"short_by": short},
    )  # fmt: skip


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


def stuck(
    question: Question, found: Facts, bound: OnBalls, curve: Second, level: str = "output"
) -> Decision:
    """P2 on a grid of balls."""
    matrix = hessian(question, found, curve)
    low, high = lambda_min(matrix), lambda_max(matrix)
    slope = balls.norm(gradient(question, found))
    constants = {"gradient": slope, "lambda_min": low, "lambda_max": high}
    if not low > 0:
        return Decision("undecided", f"P2 needs a positive Hessian, and its smallest eigenvalue is "
                        f"{low:.4g}.", risk=found.risk, constants=constants)  # fmt: skip
    best = 0.0
    failed = "no ball around the weights is covered"
    for g, radius in enumerate(bound.radii):
        if bound.reasons[g] or bound.K is None:
            continue
        beta, L, K = float(bound.beta[g]), float(bound.L[g]), float(bound.K[g])
        M = third_bound(question, found.residual_norm, beta, L, K, float(radius))
        tried = fate.minimum(slope, Range(low, high), M, question.step_size, float(radius),
                             found.risk)  # fmt: skip
        if tried is None:
            continue
        best = max(best, tried.reach)
        if not tried.exists:
            continue
        if not tried.converges:
            failed = "a strict minimum is near, and the step is too long for it"
            continue
        constants |= {"beta": beta, "L": L, "K": K, "M": M, "m": tried.m, "Lambda": tried.Lambda,
                      "residual": found.residual_norm, "distance": tried.distance}  # fmt: skip
        if not tried.risk.low > 0:
            failed = "the limit is certain, and the sign of its risk is not"
            continue
        return Decision(
            "stuck", "Gradient descent converges to a strict local minimum of positive risk.",
            "P2", float(radius), (tried.factor, tried.factor), tried.risk, level, constants,
        )  # fmt: skip
    if best > 0 and slope > best:
        failed = f"the gradient is too large for P2, by a factor of {slope / best:.4g}"
        constants["short_by"] = slope / best
    return Decision("undecided", f"{failed[:1].upper()}{failed[1:]}.", risk=found.risk,
                    constants=constants)  # fmt: skip


def slack(question: Question, most: int = 3) -> tuple[tuple[str, str, float], ...]:
    """Where plain jets lose most: operation, source line, and the factor of its first derivative.

    Bounds over norms at the centre, for the first sample; an operation's loss is its ratio over the
    largest ratio of its operands.
    """
    program = question.programs[0]
    try:
        moving = depends(program)
        every = tuple(n for n, blocks in enumerate(moving) if blocks)
        centre = evaluate(program, list(question.weights), order=1, anchors=every)
        made = jets.bounds(program, centre.values, RADII[:1], question.ratios)
    except Refusal:
        return ()
    roots = np.sqrt(question.ratios)
    ratio: dict[int, float] = {}
    lost = []
    for n, first in made.first_by_value.items():
        op = program.operations[n]
        size = float(np.linalg.norm(centre.norms[n] * roots))
        ratio[n] = float(np.linalg.norm(first[0])) / size if size > 0 else 1.0
        before = max((ratio.get(i, 1.0) for i in op.inputs), default=1.0)
        name = str(op.options.get("name", op.kind))
        lost.append((name, op.place, round(ratio[n] / max(before, 1e-300), 3)))
    return tuple(sorted(lost, key=lambda each: -each[2])[:most])
