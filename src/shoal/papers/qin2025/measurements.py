"""What claims about qin2025 measure. Every function trains or computes; rules are in `claims`."""

from typing import Any

import numpy as np

from shoal.claims import Measurement
from shoal.papers.qin2025 import trials
from shoal.papers.qin2025.trials import CERTIFIED, FLAGS, SMALL, Numbers, Plan, Sizes
from shoal.rules import orders, pair

COMMON_STEP = 0.01
NEVER = 1e-9
"""A step so small that nothing is learnt: for planted violations."""
STEPS = tuple(np.geomspace(1e-3, 0.3, 11).tolist())


def _planted(plan: Plan, name: str, value: Any) -> Any:
    return dict(plan.plant).get(name, value)


# -------------------------------------------------------------------------------- conditioning

SETTINGS = tuple((n, *s) for n in (8, 16, 32) for s in ((0.25, 0.1), (1.0, 0.5), (2.0, 1.0)))


def conditioning(plan: Plan) -> Measurement:
    """Condition numbers without and with the residual; the setting where it helps least."""
    found = [trials.attention(plan.num_seeds, *s) for s in SETTINGS]
    kind = _planted(plan, "kind", "condition_with")
    without = np.stack([f["condition_without"] for f in found])
    with_it = np.stack([f[kind] for f in found])
    least = np.argmin(np.log10(without / with_it), axis=0)
    seeds = np.arange(plan.num_seeds)
    return orders(without[least, seeds], with_it[least, seeds])


def correlated(plan: Plan) -> Measurement:
    """The same for tokens of correlation 0.99."""
    found = trials.attention(plan.num_seeds, 16, 1.0, 0.5, plan.grid[-1])
    kind = _planted(plan, "kind", "condition_with")
    return orders(found["condition_without"], found[kind])


def of_tokens(plan: Plan) -> Measurement:
    """Condition number with the residual over that of the tokens, small value weights."""
    scale_v = _planted(plan, "scale_v", 0.1)
    found = trials.attention(plan.num_seeds, 16, 1.0, scale_v, 0.9)
    one, other = found["condition_with"], found["condition_X"]
    return pair(one, other, one / other)


def logits(plan: Plan) -> Measurement:
    """Condition number of the attention matrix at one score scale against another."""
    scale, middle = plan.grid
    found = trials.attention(plan.num_seeds, 16, _planted(plan, "scale", scale), 0.5)
    return orders(
        found["condition_S"], trials.attention(plan.num_seeds, 16, middle, 0.5)["condition_S"]
    )


def deep_condition(plan: Plan, one: str, other: str) -> Measurement:
    """Condition number of the attention output at a depth, one residual mode against another."""
    layer = plan.num_layers - 1
    sides = [trials.depths(plan.num_seeds, _planted(plan, "mode", one), 0.5)]
    sides.append(trials.depths(plan.num_seeds, other, 0.5))
    return orders(*(np.minimum(s["condition"][:, layer], 1e16) for s in sides))


def collapse(plan: Plan) -> Measurement:
    """Centred share of the attention output at a depth: with residuals against without."""
    layer = plan.num_layers - 1
    with_it = trials.depths(plan.num_seeds, "both", 0.5)["share"][:, layer]
    without = trials.depths(plan.num_seeds, _planted(plan, "mode", "none"), 0.5)["share"][:, layer]
    return orders(with_it, np.maximum(without, 1e-16))


def collapse_speed(plan: Plan) -> Measurement:
    """Without residuals: logarithm of the share, how much faster it falls in the second layer."""
    share = trials.depths(plan.num_seeds, "none", 0.5)["share"]
    fall = -np.diff(np.log10(np.maximum(share, 1e-16)), axis=1)
    late, early = (fall[:, k] for k in ((0, 1) if _planted(plan, "swapped", False) else (1, 0)))
    return pair(late, early, late / early)


# ------------------------------------------------------------------------------------- training


def _sizes(plan: Plan, **changed: Any) -> Sizes:
    return Sizes(num_layers=plan.num_layers)._replace(**changed)


def _last(plan: Plan, residual: str, step: float, **changed: Any) -> np.ndarray:
    numbers = Numbers(residual=FLAGS[residual])
    risk, _ = trials.train(
        plan.num_seeds, _sizes(plan, **changed), numbers, step, num_steps=plan.num_steps
    )
    return np.asarray(risk[:, 0, -1] / risk[:, 0, 0])


def common_step(plan: Plan, one: str, other: str, **changed: Any) -> Measurement:
    """Loss after training over the first one, at one step for both."""
    step = _planted(plan, "step", plan.grid[0] if plan.grid else COMMON_STEP)
    return orders(_last(plan, one, step, **changed), _last(plan, other, step, **changed))


def own_step(plan: Plan, one: str, other: str) -> Measurement:
    """The same, each side at the best of eleven steps, seed by seed."""

    def best(residual: str, steps: tuple[float, ...]) -> np.ndarray:
        numbers = Numbers(residual=FLAGS[residual])
        risk, _ = trials.train(
            plan.num_seeds, _sizes(plan), numbers, steps, num_steps=plan.num_steps
        )
        return trials.best_steps(np.asarray(risk))

    few = _planted(plan, "steps", STEPS)
    return orders(best(one, few), best(other, few))


def by_depth(plan: Plan) -> Measurement:
    """Loss after training: one layer against several, at one step."""
    step = _planted(plan, "step", 0.003)
    flat = _last(plan._replace(num_layers=1), "both", step)
    return orders(flat, _last(plan, "both", step))


def local_rate(plan: Plan, residual: str = "both") -> Measurement:
    """Decay of the loss late in training over what the smallest eigenvalue predicts."""
    numbers, sizes = Numbers(residual=FLAGS[residual]), _sizes(plan)
    step, tail = COMMON_STEP, plan.num_steps // 5
    risk, params = trials.train(
        plan.num_seeds, sizes, numbers, step, num_steps=plan.num_steps, every=1
    )
    last = trials.Weights(*(leaf[:, 0] for leaf in params))
    seen = trials.look(plan.num_seeds, sizes, numbers, last)
    curves = np.asarray(risk[:, 0])
    measured = -np.log(curves[:, -1] / curves[:, -1 - tail]) / tail
    which = _planted(plan, "eigenvalue", "lambda_min")
    predicted = -2 * np.log(np.abs(1 - step * seen[which]))
    return pair(measured, predicted, measured / predicted)


def late_rate(risk: np.ndarray) -> float:
    """Exponential rate over the last fifth of what comes before the loss is rounding.

    >>> round(late_rate(np.exp(-0.1 * np.arange(2000))), 6)
    0.1
    """
    end = int(np.sum(risk > 1e-20 * risk[0])) - 1
    tail = max(1, end // 5)
    return float(-np.log(risk[end] / risk[end - tail]) / tail)


def rate_by_condition(plan: Plan) -> Measurement:
    """Share of the loss lost in a late step, by the condition number of the tokens."""
    rates = []
    frozen = _planted(plan, "frozen", False)
    for condition in plan.grid:
        numbers = Numbers(condition=condition, scale_v=0.1)
        top = trials.look(plan.num_seeds, _sizes(plan), numbers)["lambda_max"]
        step = NEVER if frozen else 0.5 / float(top.max())
        risk, _ = trials.train(
            plan.num_seeds, _sizes(plan), numbers, step, num_steps=plan.num_steps, every=1
        )
        rates.append([late_rate(curve) for curve in np.asarray(risk[:, 0])])
    return {"x": np.array(plan.grid), "y": np.array(rates).T}


def step_limit(plan: Plan, residual: str) -> Measurement:
    """Longest step that ends below the start, as a share of 2 / sharpness."""
    numbers = Numbers(residual=FLAGS[_planted(plan, "mode", residual)])
    share = trials.step_limits(plan.num_seeds, _sizes(plan), numbers, plan.num_steps)
    return pair(share, np.ones_like(share), share)


def sharpness_growth(plan: Plan) -> Measurement:
    """Sharpness at a depth over that of one layer: branches as they are against scaled."""

    def growth(scaled: bool) -> np.ndarray:
        L = plan.num_layers
        deep, flat = (
            trials.sharpness(
                plan.num_seeds,
                Sizes(num_layers=depth),
                Numbers(branch=depth**-0.5 if scaled else 1.0),
            )
            for depth in (L, 1)
        )
        return deep / flat

    return orders(growth(_planted(plan, "scaled", False)), growth(True))


def certified(plan: Plan, what: str = "relative") -> Measurement:
    """Largest certified residual over the size of the output, with against without."""
    mode = _planted(plan, "mode", "both")
    sides = (
        trials.radius(plan.num_seeds, CERTIFIED, SMALL._replace(residual=FLAGS[m]))[what]
        for m in (mode, "none")
    )
    return orders(*sides)


def conservative(plan: Plan) -> Measurement:
    """What the kernel at the start loses a step, over what theorem D guarantees at its step."""
    share = _planted(plan, "share", 1.0)  # of the largest residual: a small one needs a small ball
    found = trials.radius(plan.num_seeds, CERTIFIED, SMALL, share)
    seen = 1 - np.abs(1 - found["step"] * found["lambda_min"])
    return orders(seen, found["lost"])


TALL = Sizes(num_samples=8, num_tokens=12)  # 96 tokens in dimension 32


def realizable(plan: Plan) -> Measurement:
    """More tokens than dimensions: random targets against those of a teacher."""

    def last(teacher: float) -> np.ndarray:
        numbers = Numbers(teacher=teacher)
        top = trials.look(plan.num_seeds, TALL, numbers)["lambda_max"]
        step = 0.5 / float(top.max())
        risk, _ = trials.train(plan.num_seeds, TALL, numbers, step, num_steps=plan.num_steps)
        return np.asarray(risk[:, 0, -1] / risk[:, 0, 0])

    return orders(last(0.0), last(_planted(plan, "teacher", 1.0)))
