"""Decisions: whether the fate of a run is certain, by which theorem, on which ball.

Bounds are tried from cheap to sharp: plain jets, anchored at nodes, anchored at the output too.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shoal.verified import balls, fate, jets
from shoal.verified.balls import Refusal
from shoal.verified.centre import evaluate
from shoal.verified.facts import (
    RADII,
    Facts,
    OnBalls,
    Question,
    Second,
    facts,
    gradient,
    hessian,
    on_balls,
    require_sane,
    second,
    step_range,
    third_bound,
)
from shoal.verified.fate import Range
from shoal.verified.program import depends
from shoal.verified.spectra import lambda_max, lambda_min

FAR = 1000.0
"""Beyond this factor between residual and reach, anchoring at the output is not tried."""
LEVELS = ("jets", "nodes", "output")


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
        if early is not None and not (level == "output" and minimum and found.sigma <= 0):
            continue
        nodes = "nodes" in levels and level != "jets"
        if level == "output":
            far = early is None and closest > FAR and len(levels) > 1
            if far and not _at_rest(question, found):
                continue  # second derivatives would cost much and not help
            curve = second(question, found)
            if curve is None and (early is not None or len(levels) > 1):
                continue
        if nodes and with_nodes is None:
            with_nodes = facts(question, nodes=True)
        used = with_nodes if nodes and with_nodes is not None else found
        order = 3 if curve is not None else 2
        radii = _fewer(question, used, nodes) if order == 3 else RADII
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
                both = f"{early.reason[:-1]}. {tried.reason}"
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
                "converges", "Gradient descent takes the residual to zero.", "P1", float(radius),
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
        with np.errstate(over="ignore"):  # a bound beyond all numbers is lost altogether
            size = float(np.linalg.norm(centre.norms[n] * roots))
            ratio[n] = float(np.linalg.norm(first[0])) / size if size > 0 else 1.0
        if op.kind == "weight":
            continue  # exact
        before = max((ratio.get(i, 1.0) for i in op.inputs), default=1.0)
        name = str(op.options.get("name", op.kind))
        lost.append((name, op.place, round(ratio[n] / max(before, 1e-300), 3)))
    return tuple(sorted(lost, key=lambda each: -each[2])[:most])
