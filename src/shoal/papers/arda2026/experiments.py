"""Experiments of arda2026: what claims and figures measure, in the sizes of a plan.

In this order: width, steps and samples; length; series; projection. ``plan.get`` reads what a
negative control changes.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import inits
from shoal._typing import Array, Callable
from shoal.lab.claim import Measurement, Plan, comparison, log10_ratio
from shoal.lab.engine import per_start
from shoal.lab.run import Run, train
from shoal.lab.setup import WEIGHTS, Setup, key_of, paper_setup
from shoal.lab.study import fresh_setup, trained
from shoal.models import predict
from shoal.papers.arda2026 import data, heads, teachers
from shoal.papers.arda2026.heads import Weights
from shoal.papers.arda2026.model import PAPER

TOO_LONG = 5.0
"""Multiple of the step at which the linearised run turns unstable."""
LARGE = 1000
"""Samples from which runs by width are made one at a time, in float32, each kept on disk."""


def runs_of(plan: Plan, probes: tuple[str, ...] = (), **values: Any) -> Run:
    """Train every seed of a plan; other settings are keywords."""
    sizes = {"num_samples": plan.samples, "num_heads": plan.width, "num_steps": plan.steps}
    return trained(PAPER, plan.seeds, probes, **(sizes | values))


def curve(plan: Plan, columns: Any) -> Measurement:
    """One column of numbers of every seed for each value of a plan's grid."""
    return {"x": np.array(plan.grid, float), "y": np.stack(list(columns), axis=1)}


def by_grid(plan: Plan, name: str, statistic: Callable[[Run], Any]) -> Measurement:
    """A number of every run for the values of one setting; the control's step, if it has one."""
    step = plan.get("step_size", None)
    runs = (runs_of(plan, **{name: int(x), "step_size": step}) for x in plan.grid)
    return curve(plan, map(statistic, runs))


def lowest(run: Run) -> np.ndarray:
    """Lowest loss before the last step."""
    return run.risk[:, :-1].min(axis=1)


def _ratio(one: np.ndarray, other: np.ndarray) -> Measurement:
    return comparison(one, other, one / other)


def width_run(num_heads: int, seed: int, num_samples: int, num_steps: int) -> np.ndarray:
    """Losses of one run of the paper's width experiment, kept on disk when it is done."""
    from shoal.disk.cache import cached

    values = {"num_heads": num_heads, "num_samples": num_samples, "num_steps": num_steps}

    def make() -> dict[str, np.ndarray]:
        setup = paper_setup(PAPER, values | {"every": 10}, seeds=(seed,), precision="float32")
        return {"risk": train(setup, probes=()).risk[0]}

    return cached(["arda2026.width_run", values, seed], make).arrays["risk"]


def width_jobs(plan: Plan) -> list[Callable[[], np.ndarray]]:
    """Every `width_run` of a plan, not yet called; none if the plan is small."""
    seeds = range(plan.seeds if plan.samples >= LARGE else 0)
    sizes = (plan.samples, plan.steps)
    return [functools.partial(width_run, m, seed, *sizes) for seed in seeds for m in plan.grid]


def best_by_width(plan: Plan) -> Measurement:
    """Lowest training loss by width, same data and number of steps."""
    if plan.control or not (jobs := width_jobs(plan)):
        return by_grid(plan, "num_heads", lowest)
    best = np.array([job()[:-1].min() for job in jobs])
    return curve(plan, best.reshape(plan.seeds, -1).T)


def mean_by_steps(plan: Plan) -> Measurement:
    """Mean loss of a run by its number of steps, whose inverse root is the step."""
    return by_grid(plan, "num_steps", lambda run: run.risk[:, :-1].mean(axis=1))


def _errors(setup: Setup, seed: Array) -> dict[str, Array]:
    """Largest errors over samples at the teacher's transport, and at points of the boundary.

    There all heads move along one feature, each its own way, or along the transport.
    """
    params0, x, setting = setup.params0, setup.inputs[0], setup.setting
    v = data.teacher(setting, params0)
    F = heads.features(params0, x[None], setting.sigma)
    turned = F.MU[0][:, :, None] * x[-1][None, None, :]
    turned = turned / jnp.linalg.norm(turned, axis=(1, 2), keepdims=True)
    one_way = Weights(turned, F.a[0], jnp.ones_like(params0.c))  # twins included
    noise = inits.ntk(jax.random.fold_in(key_of(seed, WEIGHTS), 1), params0)

    def far(e: Weights) -> Weights:
        return jax.tree.map(lambda W, e: W + 1e3 * e, params0, e)

    points = {"coherent": far(one_way), "random": far(noise)}
    points["transported"] = teachers.moved(params0, jax.tree.map(lambda block: 1e3 * block, v))
    linearised = functools.partial(teachers.linearised, setup.network, params0, setup.inputs)
    found = {"approximation": linearised(teachers.moved(params0, v)) - setup.targets}
    for kind, point in points.items():
        edge = teachers.nearest(params0, point, setting.limits)
        found[kind] = predict(setup.network, edge, setup.inputs) - linearised(edge)
    return {kind: jnp.max(jnp.abs(error)) for kind, error in found.items()}


@functools.cache
def _width_errors(num_heads: int, seeds: int, samples: int) -> dict[str, np.ndarray]:
    sizes = {"num_heads": num_heads, "num_samples": samples}
    setup = paper_setup(PAPER, sizes, seeds=range(seeds))
    rows = [per_start(setup.rows([s]), _errors, np.uint32(s)) for s in range(seeds)]
    return jax.tree.map(lambda *xs: np.concatenate(xs), *rows)


def boundary_errors(plan: Plan, kind: str) -> Measurement:
    """Errors of one kind by width; nothing is trained."""
    kind = plan.get("kind", kind)
    return curve(plan, (_width_errors(int(m), plan.seeds, plan.samples)[kind] for m in plan.grid))


def _approximation(setup: Setup) -> Array:
    v = data.teacher(setup.setting, setup.params0)
    labels = teachers.labels(setup.params0, v, setup.inputs, setup.setting.sigma)
    return jnp.abs(labels - setup.targets)


def errors_by_samples(plan: Plan) -> Measurement:
    """Largest approximation error of the teacher's transport by number of samples."""
    values = {"num_samples": int(max(plan.grid)), "num_heads": plan.width}
    e = per_start(paper_setup(PAPER, values, seeds=range(plan.seeds)), _approximation)
    if plan.get("added", False):  # a negative control: errors that add up over the samples
        return curve(plan, ((e[:, :n] ** 2).mean(axis=1) ** 0.5 * n for n in plan.grid))
    return curve(plan, (e[:, :n].max(axis=1) for n in plan.grid))


def path_bound(plan: Plan) -> Measurement:
    """Theorem B's bound along the path over the mean loss."""
    run = runs_of(plan, ("scaled_movement", "path"))
    run = dataclasses.replace(run, risk=run.risk * plan.get("times", 1.0))
    known = [one.constants for one in run.certify("theorem_b")]
    bound, mean = (np.array([c[k] for c in known]) for k in ("bound along the path", "mean loss"))
    return _ratio(bound, mean)


def _gradient_norms(setup: Setup) -> Array:
    """Norm of each sample's output gradient in W (in the inner layers' W, if deep)."""
    params = setup.params0
    if setup.setting.model == "heads":
        return jnp.sqrt(heads.output_gradients(params, setup.inputs, setup.setting.sigma)["W"])
    # twins of opposite signs hide the inner layers: f = 0 whatever these do
    same = params._replace(c=jnp.abs(params.c))
    J = jax.lax.map(lambda x: jax.grad(setup.network.apply)(same, x).inner_W, setup.inputs)
    return teachers.row_norms(J)


def gradient_norms(plan: Plan, num_tokens: int = 16, norm: float = 1.0) -> np.ndarray:
    """Gradients at the start, (seeds, samples); every seed has its own data."""
    values = {"num_tokens": num_tokens, "token_norm": norm, "labels": "gaussian"}
    values |= {"num_samples": plan.samples, "num_heads": plan.width}
    values |= {"model": "deep", "num_layers": plan.layers} if plan.layers > 1 else {}
    return per_start(fresh_setup(PAPER, values, seeds=range(plan.seeds)), _gradient_norms)


def gradients(plan: Plan) -> Measurement:
    """Mean norm of the gradient in W at the start, by length; the control sums over tokens."""
    power = plan.get("power", 0)
    return curve(plan, (gradient_norms(plan, int(T)).mean(axis=1) * T**power for T in plan.grid))


def loss_by_length(plan: Plan) -> Measurement:
    """Lowest training loss over the mean square of the labels, the teacher being the same."""

    def relative(T: int) -> np.ndarray:
        step = 40.0 / T**2 if plan.get("slower", False) else None
        run = runs_of(plan, num_tokens=T, anchor_tokens=16, step_size=step)
        return lowest(run) / run.risk[:, 0]

    return curve(plan, map(relative, plan.grid))


def spikes(plan: Plan) -> Measurement:
    """Largest over mean gradient norm among samples, for long and for unit tokens."""
    tails = (gradient_norms(plan, norm=norm) for norm in (plan.get("norm", 10.0), 1.0))
    return log10_ratio(*(g.max(axis=1) / g.mean(axis=1) for g in tails))


def series_runs(plan: Plan, model: str, lag: int, **values: Any) -> dict[str, np.ndarray]:
    """Lowest held-out loss and largest Jacobian norm of a model on a series, for every seed."""
    common = {
        "problem": "autoregressive", "test_samples": plan.samples, "every": plan.steps // 20,
        "radius": None, "recurrence": 1.0, "channels": 8, "clip": False, "step_size": None,
    }  # fmt: skip
    run = runs_of(plan, ("test_risk", "jacobian"), model=model, lag=lag, **(common | values))
    jacobian = run.probes["jacobian_w" if model == "recurrent" else "jacobian_W"]
    return {"loss": run.probes["test_risk"].min(axis=1), "jacobian": jacobian.max(axis=1)}


def lag_growth(plan: Plan, model: str) -> Measurement:
    """Held-out loss at the longest lag minus that at the shortest."""
    model, size = plan.get("model", model), plan.get("recurrence", 1.0)
    long_first = plan.grid[::-1]
    return comparison(*(series_runs(plan, model, L, recurrence=size)["loss"] for L in long_first))


def jacobians(plan: Plan, channels: int) -> Measurement:
    """Largest Jacobian norms along training at the longest lag: recurrent against attention.

    ``channels`` is what the recurrent network sees of the positions; 0 leaves it the bare series.
    """
    extra = {"recurrence": plan.get("recurrence", 1.0), "channels": channels}
    recurrent = series_runs(plan, "recurrent", plan.grid[-1], **extra)["jacobian"]
    return log10_ratio(recurrent, series_runs(plan, "heads", plan.grid[-1])["jacobian"])


def small_lag(plan: Plan) -> Measurement:
    """Held-out loss at the shortest lag: attention minus recurrent."""
    lag, step = plan.grid[0], plan.get("step_size", None)
    recurrent = series_runs(plan, "recurrent", lag, step_size=step)["loss"]
    return comparison(series_runs(plan, "heads", lag)["loss"], recurrent)


def clipping(plan: Plan) -> Measurement:
    """Held-out loss with tokens clipped to norm 1 minus that with raw tokens."""
    sides = (plan.get("clip", True), False)
    return comparison(*(series_runs(plan, "heads", plan.grid[0], clip=c)["loss"] for c in sides))


def _by_place(setup: Setup) -> Array:
    """Held-out loss of the causal form at every place of the window."""
    test = setup.held_out
    return jnp.mean((predict(setup.network, setup.params0, test.X) - test.y)[..., 0] ** 2, axis=0)


def places(plan: Plan) -> Measurement:
    """Loss of the causal form at the end of the window over that just after the first lag."""
    lag, n = plan.grid
    run = runs_of(
        plan, model="causal", problem="autoregressive", lag=lag, num_tokens=n,
        test_samples=plan.samples, every=plan.steps, radius=None,
    )  # fmt: skip
    loss = per_start(run.setup.replace(params0=run.params), _by_place)
    loss = loss * (1 + plan.get("growth", 0.0) * np.arange(n)) ** 2  # the control's drift
    quarter = (n - lag) // 4
    return _ratio(loss[:, -quarter:].mean(axis=1), loss[:, lag : lag + quarter].mean(axis=1))


def _moved(run: Run) -> np.ndarray:
    """Largest scaled movement of any block, (seeds, records)."""
    return np.max([run.probes[f"scaled_movement_{k}"] for k in "cUW"], axis=0)


def use_of_radius(plan: Plan) -> Measurement:
    """Largest share of the radius that any block used, in the paper's width experiment."""
    radius = plan.get("radius", 3.0)
    run = runs_of(plan, ("scaled_movement",), radius=radius)
    return _ratio(_moved(run).max(axis=1) / radius, np.ones(plan.seeds))


def _largest_eigenvalue(setup: Setup) -> Array:
    return jnp.linalg.eigvalsh(setup.kernel()(setup.params0))[-1]


def tamed_runs(plan: Plan, radius: float) -> dict[str, Run]:
    """Runs with a step too long for plain gradient descent, with and without projection."""
    values: dict[str, Any] = {"token_norm": 4.0, "labels": "gaussian"}
    sizes = {"num_samples": plan.samples, "num_heads": plan.width}
    top = per_start(paper_setup(PAPER, values | sizes), _largest_eigenvalue)[0]
    values["step_size"] = TOO_LONG * 2 / float(top)
    sides = {"plain": None, f"radius {radius:g}": radius}
    return {label: runs_of(plan, radius=r, **values) for label, r in sides.items()}


def tamed(plan: Plan) -> Measurement:
    """Mean loss over the last half of a run with too long a step: plain against projected."""
    runs = tamed_runs(plan, plan.get("radius", 0.5)).values()
    late = (run.risk[:, plan.steps // 2 :].mean(axis=1) for run in runs)
    return log10_ratio(*(np.nan_to_num(risk, nan=1e9, posinf=1e9) for risk in late))


def decay(plan: Plan) -> Measurement:
    """Loss under decay to the start at equal largest movement, against that under projection."""

    def end(**values: Any) -> tuple[np.ndarray, np.ndarray]:
        common: dict[str, Any] = {"labels": "gaussian", "step_size": 0.5, "every": plan.steps}
        run = runs_of(plan, ("scaled_movement",), **common, **values)
        return np.log(_moved(run)[:, -1]), np.log(run.risk[:, -1])

    ends = [end(radius=None, decay=rate) for rate in reversed(plan.grid)]
    moved, loss = (np.stack(part, axis=1) for part in zip(*ends, strict=True))
    # where the largest movement is the radius, by a line through logarithms (less decay, more move)
    same = [np.interp(np.log(0.5), m, e) for m, e in zip(moved, loss, strict=True)]
    sides = np.exp(same), np.exp(end(radius=0.5)[1])
    return log10_ratio(*(sides[::-1] if plan.get("swapped", False) else sides))


def _certified_energy(setup: Setup) -> Array:
    r"""$(\beta^\top y)^2/n$: what theorem C certifies of the labels' mean square."""
    beta = data.top_direction(setup.setting, setup.params0, setup.inputs)
    return (beta @ setup.targets) ** 2 / len(beta)


def knee_runs(plan: Plan, share: float) -> dict[str, np.ndarray]:
    """Loss of the model trained within a share of the dual teacher's norm, for every seed."""
    run = runs_of(
        plan, fresh_data=True, labels="dual", radius=3 * share, step_size=0.5, every=plan.steps
    )
    lower = max(1 - share, 0) ** 2 * per_start(run.setup, _certified_energy)
    return {"loss": run.risk[:, -1], "energy": run.risk[:, 0], "lower": lower}


def knee(plan: Plan) -> Measurement:
    """Loss of runs within half of the dual teacher's norm, over what the lower bound expects."""
    found = knee_runs(plan, plan.get("share", 0.5))
    return _ratio(found["loss"], 0.25 * found["energy"])


def mean_field(plan: Plan) -> Measurement:
    """Drift of the tangent kernel with the output over sqrt(heads), against the paper's scale."""

    def drift(scale: float) -> np.ndarray:
        values: dict[str, Any] = {"output_scale": scale, "radius": None, "every": plan.steps}
        run = runs_of(plan, ("kernel_drift",), step_size=scale**2 * plan.steps**-0.5, **values)
        return run.probes["kernel_drift"][:, -1]

    return log10_ratio(drift(plan.get("scale", plan.width**0.5)), drift(1.0))
