"""What claims about arda2026 measure."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.certificates import Certificate
from shoal.claims import Measurement
from shoal.experiments import certify, default_step, prepare, simulate, theorem_of
from shoal.models import predict
from shoal.papers import arda2026
from shoal.papers.arda2026 import data, trials
from shoal.papers.arda2026.trials import Plan
from shoal.rules import orders, pair

NEVER = 1e-7  # a step so small that nothing is learnt: for planted violations

# ------------------------------------------------------------------------- width, steps, samples


def boundary_errors(plan: Plan, kind: str) -> Measurement:
    """Errors at points of the boundary, by width."""
    widths = tuple(int(m) for m in plan.grid)
    found = trials.width_errors(widths, plan.num_seeds, plan.num_samples)
    return {"x": np.array(plan.grid), "y": found[dict(plan.plant).get("kind", kind)]}


def best_by_width(plan: Plan) -> Measurement:
    """Lowest training loss by width, same data and number of steps."""
    extra = {k: v for k, v in plan.plant if k == "step_size"}
    return {"x": np.array(plan.grid), "y": trials.best_losses(plan, **extra)}


def mean_by_steps(plan: Plan) -> Measurement:
    """Mean loss along a run by its number of steps, the step being one over its root."""
    extra = {k: v for k, v in plan.plant if k == "step_size"}
    runs = [
        trials.trained(
            plan.num_seeds,
            num_samples=plan.num_samples,
            num_heads=plan.num_heads,
            num_steps=int(tau),
            **extra,
        )
        for tau in plan.grid
    ]
    mean = np.stack([run.risk[:, :-1].mean(axis=1) for run in runs], axis=1)
    return {"x": np.array(plan.grid), "y": mean}


def errors_by_samples(plan: Plan) -> Measurement:
    """Largest approximation error by number of samples."""
    sizes = tuple(int(n) for n in plan.grid)
    found = trials.samples_errors(sizes, plan.num_seeds, plan.num_heads)
    y = found["sup"]
    if dict(plan.plant).get("added"):  # errors that add up over the samples
        y = found["rms"] * np.array(sizes)[None]
    return {"x": np.array(plan.grid), "y": y}


def path_bound(plan: Plan) -> Measurement:
    """Theorem B's bound along the path over the mean loss."""
    values = {"num_samples": plan.num_samples, "num_heads": plan.num_heads}
    experiment = prepare(
        arda2026.PAPER, values | {"num_steps": plan.num_steps}, seeds=range(plan.num_seeds)
    )
    step = default_step(experiment)
    experiment = experiment._replace(setting=experiment.setting._replace(step_size=step))
    run = simulate(experiment, ("scaled_movement", "path"))
    run = run._replace(risk=run.risk * dict(plan.plant).get("times", 1.0))
    found: list[Certificate] = certify(experiment, theorem_of(arda2026.PAPER, "theorem_b"), run)
    bound, mean = (
        np.array([float(c.constants[name]) for c in found])
        for name in ("bound along the path", "mean loss")
    )
    return pair(bound, mean, bound / mean)


# -------------------------------------------------------------------------------------- length


def gradients(plan: Plan, num_layers: int) -> Measurement:
    """Mean norm of the gradient in W at the start, by length."""
    found = trials.gradients_by_length(
        tuple(int(T) for T in plan.grid),
        plan.num_seeds,
        num_samples=plan.num_samples,
        num_heads=plan.num_heads,
        num_layers=num_layers,
        sum_tokens=dict(plan.plant).get("sum_tokens", False),
    )
    return {"x": np.array(plan.grid), "y": found["mean"]}


def loss_by_length(plan: Plan) -> Measurement:
    """Lowest training loss over the mean square of the labels, the teacher being the same."""
    best = []
    for T in plan.grid:
        slow = dict(plan.plant).get("slower", False)
        extra: dict[str, Any] = {"step_size": 40.0 / T**2} if slow else {}
        found = trials.trained(
            plan.num_seeds,
            num_samples=plan.num_samples,
            num_heads=plan.num_heads,
            num_steps=plan.num_steps,
            num_tokens=int(T),
            anchor_tokens=16,
            **extra,
        )
        best.append(found.risk[:, :-1].min(axis=1) / found.risk[:, 0])
    return {"x": np.array(plan.grid), "y": np.stack(best, axis=1)}


def spikes(plan: Plan) -> Measurement:
    """Largest over mean gradient norm among samples, for long and for unit tokens."""

    def tail(norm: float) -> np.ndarray:
        found = trials.gradients_by_length(
            (16,), plan.num_seeds, num_samples=plan.num_samples, num_heads=plan.num_heads, norm=norm
        )
        return found["max"][:, 0] / found["mean"][:, 0]

    return orders(tail(dict(plan.plant).get("norm", 10.0)), tail(1.0))


# -------------------------------------------------------------------------------------- series


def lag_growth(plan: Plan, model: str) -> Measurement:
    """Held-out loss at the longest lag minus that at the shortest."""
    plant = dict(plan.plant)
    extra = {"recurrence": plant["recurrence"]} if "recurrence" in plant else {}
    side = plant.get("model", model)
    short, long = (
        trials.series_runs(plan, side, int(lag), **extra)["loss"]
        for lag in (plan.grid[0], plan.grid[-1])
    )
    return pair(long, short, long - short)


def jacobians(plan: Plan, channels: int) -> Measurement:
    """Largest Jacobian norms along training at the longest lag: recurrent against attention.

    ``channels`` is what the recurrent network sees of the positions; 0 leaves it the bare series.
    """
    extra = {k: v for k, v in plan.plant if k == "recurrence"} | {"channels": channels}
    lag = int(plan.grid[-1])
    return orders(
        trials.series_runs(plan, "recurrent", lag, **extra)["jacobian"],
        trials.series_runs(plan, "heads", lag)["jacobian"],
    )


def small_lag(plan: Plan) -> Measurement:
    """Held-out loss at the shortest lag: attention minus recurrent."""
    extra = {k: v for k, v in plan.plant if k == "step_size"}
    lag = int(plan.grid[0])
    attention = trials.series_runs(plan, "heads", lag)["loss"]
    recurrent = trials.series_runs(plan, "recurrent", lag, **extra)["loss"]
    return pair(attention, recurrent, attention - recurrent)


def clipping(plan: Plan) -> Measurement:
    """Held-out loss with tokens clipped to norm 1 minus that with raw tokens."""
    lag = int(plan.grid[0])
    clipped = trials.series_runs(plan, "heads", lag, clip=dict(plan.plant).get("clip", True))
    raw = trials.series_runs(plan, "heads", lag)
    return pair(clipped["loss"], raw["loss"], clipped["loss"] - raw["loss"])


def places(plan: Plan) -> Measurement:
    """Loss of the causal form at the end of the window over that just after the first lag."""
    lag, n = int(plan.grid[0]), int(plan.grid[1])
    values: dict[str, Any] = {
        "model": "causal",
        "problem": "autoregressive",
        "lag": lag,
        "num_tokens": n,
        "num_samples": plan.num_samples,
        "test_samples": plan.num_samples,
        "num_heads": plan.num_heads,
        "num_steps": plan.num_steps,
        "every": plan.num_steps,
        "radius": None,
    }
    found = trials.trained(plan.num_seeds, **values)
    setting = arda2026.complete(arda2026.Setting(**values))
    test = data.autoregressive(setting, held_out=True)
    growing = 1 + dict(plan.plant).get("growth", 0.0) * jnp.arange(n)  # a planted drift
    f = jax.vmap(lambda p: predict(arda2026.model(setting), p, test.X))(found.params)
    square = ((f - test.y[None])[..., 0] * growing[None, None]) ** 2
    by_place = np.asarray(jnp.mean(square, axis=1))
    quarter = (n - lag) // 4
    early, late = by_place[:, lag : lag + quarter].mean(1), by_place[:, -quarter:].mean(1)
    return pair(late, early, late / early)


# ---------------------------------------------------------------------------------- projection


def use_of_radius(plan: Plan) -> Measurement:
    """Largest share of the radius that any block used, in the paper's width experiment."""
    radius = dict(plan.plant).get("radius", "3")
    found = trials.trained(
        plan.num_seeds,
        ("scaled_movement",),
        num_samples=plan.num_samples,
        num_heads=plan.num_heads,
        num_steps=plan.num_steps,
        radius=radius,
    )
    moved = np.stack([found.probes[f"scaled_movement_{name}"] for name in "cUW"])
    share = moved.max(axis=(0, 2)) / float(radius)
    return pair(share, np.ones_like(share), share)


TOO_LONG = 5.0
"""Times the step at which the linearised run turns unstable."""


def tamed_setting(plan: Plan) -> dict[str, Any]:
    """A run with a step that is too long for plain gradient descent, tokens of norm 4."""
    values: dict[str, Any] = {
        "num_samples": plan.num_samples,
        "num_heads": plan.num_heads,
        "token_norm": 4.0,
        "num_steps": plan.num_steps,
        "labels": "gaussian",
    }
    first = trials.trained(
        1, ("kernel_lambda_max",), **(values | {"num_steps": 1, "step_size": NEVER})
    )
    limit = 2 / float(first.probes["kernel_lambda_max"][0, 0])
    return values | {"step_size": TOO_LONG * limit}


def tamed(plan: Plan) -> Measurement:
    """Mean loss over the last half of a run with too long a step: plain against projected."""
    common = tamed_setting(plan)
    radius = dict(plan.plant).get("radius", "0.5")

    def late(radius: str | None) -> np.ndarray:
        risk = trials.trained(plan.num_seeds, radius=radius, **common).risk
        return np.nan_to_num(risk[:, plan.num_steps // 2 :].mean(axis=1), nan=1e9, posinf=1e9)

    return orders(late(None), late(radius))


def knee(plan: Plan) -> Measurement:
    """Loss of runs within half of the dual teacher's norm, over what the lower bound expects."""
    share = dict(plan.plant).get("share", 0.5)
    found = trials.knee(plan, (share,))
    loss, expected = found["loss"][:, 0], 0.25 * found["energy"][:, 0]
    return pair(loss, expected, loss / expected)


DECAYS = (0.003, 0.01, 0.03, 0.1, 0.3)


def decay(plan: Plan) -> Measurement:
    """Loss under decay to the start at equal largest movement, against that under projection."""
    common: dict[str, Any] = {
        "num_samples": plan.num_samples,
        "num_heads": plan.num_heads,
        "labels": "gaussian",
        "num_steps": plan.num_steps,
        "step_size": 0.5,
        "every": plan.num_steps,
    }
    probes = ("scaled_movement",)
    held = trials.trained(plan.num_seeds, probes, radius="0.5", **common)
    runs = [
        trials.trained(plan.num_seeds, probes, radius=None, decay=r, **common) for r in plan.grid
    ]
    moved, loss = (
        np.stack([part(run) for run in runs])
        for part in (
            lambda run: np.max([run.probes[f"scaled_movement_{k}"][:, -1] for k in "cUW"], axis=0),
            lambda run: run.risk[:, -1],
        )
    )
    # where the largest movement is the radius, by a line through logarithms (more decay, less move)
    same = [
        np.exp(np.interp(np.log(0.5), np.log(m[::-1]), np.log(e[::-1])))
        for m, e in zip(moved.T, loss.T, strict=True)
    ]
    sides = np.array(same), held.risk[:, -1]
    return orders(*(sides[::-1] if dict(plan.plant).get("swapped") else sides))


def mean_field(plan: Plan) -> Measurement:
    """Drift of the tangent kernel with the output over sqrt(heads), against the paper's scale."""

    def drift(scale: float) -> np.ndarray:
        found = trials.trained(
            plan.num_seeds,
            ("kernel_drift",),
            num_samples=plan.num_samples,
            num_heads=plan.num_heads,
            num_steps=plan.num_steps,
            every=plan.num_steps,
            output_scale=scale,
            step_size=scale**2 * plan.num_steps**-0.5,
            radius=None,
        )
        return found.probes["kernel_drift"][:, -1]

    scale = dict(plan.plant).get("scale", plan.num_heads**0.5)
    return orders(drift(scale), drift(1.0))
