"""Experiments of arda2026: what claims and figures measure, in the sizes of a plan.

In this order: width, steps and samples; length; series; projection. Every seed draws its own data
and weights.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import inits
from shoal._typing import Array, Callable
from shoal.lab.effects import first_times
from shoal.lab.engine import per_start
from shoal.lab.run import Run, train
from shoal.lab.setup import WEIGHTS, Setup, key_of, paper_setup
from shoal.lab.study import Plan, fresh_setup, seeds_of, trained
from shoal.models import predict
from shoal.papers.arda2026 import data, heads, teachers
from shoal.papers.arda2026.heads import Weights
from shoal.papers.arda2026.model import PAPER

LARGE = 1000
"""Samples from which runs by width are made one at a time, in float32, each kept on disk."""


def runs_of(plan: Plan, probes: tuple[str, ...] = (), **values: Any) -> Run:
    """Train every seed of a plan; other settings are keywords."""
    sizes = {"num_samples": plan.samples, "num_heads": plan.width, "num_steps": plan.steps}
    return trained(PAPER, plan.seeds, probes, fresh_data=True, **(sizes | values))


Curves = dict[str, np.ndarray]
"""``x``, and ``y`` of every seed, (seeds, points)."""


def curve(plan: Plan, columns: Any) -> Curves:
    """One column of numbers of every seed for each value of a plan's grid."""
    return {"x": np.array(plan.grid, float), "y": np.stack(list(columns), axis=1)}


def by_grid(
    plan: Plan, name: str, statistic: Callable[[Run], Any], step_power: float = 0.0
) -> Curves:
    """A number of every run for the values of one setting.

    With a ``step_power`` p the step shrinks like the setting to -p.
    """
    first, usual = plan.grid[0], plan.steps**-0.5

    def run(x: Any) -> Run:
        step = None if step_power == 0 else usual * (first / x) ** step_power
        values: dict[str, Any] = {name: int(x), "step_size": step}
        return runs_of(plan, **values)

    return curve(plan, (statistic(run(x)) for x in plan.grid))


def lowest(run: Run) -> np.ndarray:
    """Lowest loss before the last step."""
    return run.risk[:, :-1].min(axis=1)


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
    seeds = seeds_of(plan.seeds) if plan.samples >= LARGE else ()
    sizes = (plan.samples, plan.steps)
    return [functools.partial(width_run, m, seed, *sizes) for seed in seeds for m in plan.grid]


def best_by_width(plan: Plan, step_power: float = 0.0) -> Curves:
    """Lowest training loss by width, same number of steps."""
    if step_power or not (jobs := width_jobs(plan)):
        return by_grid(plan, "num_heads", lowest, step_power)
    best = np.array([job()[:-1].min() for job in jobs])
    return curve(plan, best.reshape(len(seeds_of(plan.seeds)), -1).T)


def mean_by_steps(plan: Plan) -> Curves:
    """Mean loss of a run by its number of steps, whose inverse root is the step."""
    return by_grid(plan, "num_steps", lambda run: run.risk[:, :-1].mean(axis=1))


def path_margins(plan: Plan, name: str, **values: Any) -> np.ndarray:
    """Log10 of theorem B's bound along the path over the mean loss, smallest over a grid."""
    found = [log10_margin(plan, **{name: int(x)}, **values) for x in plan.grid]
    return np.min(found, axis=0)


def log10_margin(plan: Plan, **values: Any) -> np.ndarray:
    """Log10 of theorem B's bound along the path over the mean loss."""
    run = runs_of(plan, ("scaled_movement", "path"), **values)
    known = [one.constants for one in run.certify("theorem_b")]
    bound, mean = (np.array([c[k] for c in known]) for k in ("bound along the path", "mean loss"))
    return np.log10(bound / mean)


def is_violated(plan: Plan, name: str, **values: Any) -> bool:
    """Whether the certificate, which accounts for rounding, finds theorem B violated somewhere."""
    runs = (runs_of(plan, ("scaled_movement", "path"), **{name: int(x)}, **values)
            for x in plan.grid)  # fmt: skip
    return any("violated" in run.certify("theorem_b").verdicts for run in runs)


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
def _width_errors(
    num_heads: int, seeds: tuple[int, ...], samples: int, norm: float
) -> dict[str, np.ndarray]:
    sizes = {"num_heads": num_heads, "num_samples": samples, "radius": norm, "teacher_norm": norm}
    setup = fresh_setup(PAPER, sizes, seeds=seeds)
    rows = [per_start(setup.rows([k]), _errors, np.uint32(s)) for k, s in enumerate(seeds)]
    return jax.tree.map(lambda *xs: np.concatenate(xs), *rows)


def boundary_errors(plan: Plan, kind: str, radius_power: float = 0.0) -> Curves:
    """Errors of one kind by width; nothing is trained.

    With a ``radius_power`` p radius and teacher grow like the heads to p.
    """

    def errors(m: int) -> np.ndarray:
        norm = 3.0 * (m / plan.grid[0]) ** radius_power
        return _width_errors(m, seeds_of(plan.seeds), plan.samples, norm)[kind]

    return curve(plan, (errors(int(m)) for m in plan.grid))


def _approximation(setup: Setup) -> Array:
    v = data.teacher(setup.setting, setup.params0)
    labels = teachers.labels(setup.params0, v, setup.inputs, setup.setting.sigma)
    return jnp.abs(labels - setup.targets)


def errors_by_samples(plan: Plan, heads_power: float = 0.0) -> Curves:
    """Largest approximation error of the teacher's transport by number of samples.

    With a ``heads_power`` p the heads fall like the samples to -p.
    """

    def largest(n: int) -> np.ndarray:
        share = (plan.grid[0] / n) ** heads_power
        values = {"num_samples": n, "num_heads": 2 * max(1, round(plan.width * share / 2))}
        setup = fresh_setup(PAPER, values, seeds=seeds_of(plan.seeds))
        return per_start(setup, _approximation).max(axis=1)

    return curve(plan, (largest(int(n)) for n in plan.grid))


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
    return per_start(fresh_setup(PAPER, values, seeds=seeds_of(plan.seeds)), _gradient_norms)


def gradients(plan: Plan, norm_power: float = 0.0) -> Curves:
    """Mean norm of the gradient in W at the start, by length.

    With a ``norm_power`` p the norm of tokens grows like the length to p.
    """
    norms = [(T / plan.grid[0]) ** norm_power for T in plan.grid]
    pairs = zip(plan.grid, norms, strict=True)
    return curve(plan, (gradient_norms(plan, int(T), norm).mean(axis=1) for T, norm in pairs))


def loss_by_length(plan: Plan, step_power: float = 0.0) -> Curves:
    """Lowest training loss over the mean square of the labels, the teacher being the same."""

    def relative(T: int) -> np.ndarray:
        step = None if step_power == 0 else plan.steps**-0.5 * (plan.grid[0] / T) ** step_power
        deep: dict[str, Any] = {}
        if plan.layers > 1:
            deep = {"model": "deep", "num_layers": plan.layers}
        run = runs_of(plan, num_tokens=T, anchor_tokens=16, step_size=step, **deep)
        return lowest(run) / run.risk[:, 0]

    return curve(plan, map(relative, plan.grid))


def spikes(plan: Plan, norm: float) -> np.ndarray:
    """Largest over mean gradient norm among samples, for tokens of some norm."""
    g = gradient_norms(plan, norm=norm)
    return g.max(axis=1) / g.mean(axis=1)


def series_runs(plan: Plan, model: str, lag: int, **values: Any) -> dict[str, np.ndarray]:
    """Lowest held-out loss and largest Jacobian norm of a model on a series, for every seed."""
    common = {
        "problem": "autoregressive", "test_samples": plan.samples, "every": plan.steps // 20,
        "radius": None, "recurrence": 1.0, "channels": 8, "clip": False, "step_size": None,
    }  # fmt: skip
    run = runs_of(plan, ("test_risk", "jacobian"), model=model, lag=lag, **(common | values))
    jacobian = run.probes["jacobian_w" if model == "recurrent" else "jacobian_W"]
    return {"loss": run.probes["test_risk"].min(axis=1), "jacobian": jacobian.max(axis=1)}


def _by_place(setup: Setup) -> Array:
    """Held-out loss of the causal form at every place of the window."""
    test = setup.held_out
    return jnp.mean((predict(setup.network, setup.params0, test.X) - test.y)[..., 0] ** 2, axis=0)


def places(plan: Plan, lag: int, num_tokens: int, skip: int) -> np.ndarray:
    """Loss of the causal form late in the window over that after the first ``skip`` places."""
    run = runs_of(
        plan, model="causal", problem="autoregressive", lag=lag, num_tokens=num_tokens,
        test_samples=plan.samples, every=plan.steps, radius=None,
    )  # fmt: skip
    loss = per_start(run.setup.replace(params0=run.params), _by_place)
    quarter = (num_tokens - skip) // 4
    return loss[:, -quarter:].mean(axis=1) / loss[:, skip : skip + quarter].mean(axis=1)


def moved(run: Run) -> np.ndarray:
    """Largest scaled movement of any block, (seeds, records)."""
    return np.max([run.probes[f"scaled_movement_{k}"] for k in "cUW"], axis=0)


def use_of_radius(plan: Plan, radius: float) -> np.ndarray:
    """Largest share of the radius that any block used, in the paper's width experiment."""
    run = runs_of(plan, ("scaled_movement",), radius=radius)
    return moved(run).max(axis=1) / radius


def _largest_eigenvalue(setup: Setup) -> Array:
    return jnp.linalg.eigvalsh(setup.kernel()(setup.params0))[-1]


def tamed_runs(plan: Plan, radius: float, multiples: tuple[float, float]) -> dict[str, Run]:
    """Runs with a step too long for plain gradient descent, with and without projection.

    Steps are multiples of each seed's own 2 / lambda_max: of the plain and the projected side.
    """
    values: dict[str, Any] = {"token_norm": 4.0, "labels": "gaussian"}
    sizes = {"num_samples": plan.samples, "num_heads": plan.width}
    setup = fresh_setup(PAPER, values | sizes, seeds=seeds_of(plan.seeds))
    top = per_start(setup, _largest_eigenvalue)
    sides = {"plain": (None, multiples[0]), f"radius {radius:g}": (radius, multiples[1])}
    found = {}
    for label, (limit, multiple) in sides.items():
        step = tuple((multiple * 2 / top).tolist())
        found[label] = runs_of(plan, radius=limit, step=step, **values)
    return found


def decay_ends(plan: Plan, **values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Largest movement and loss at the end of a run with Gaussian labels."""
    common: dict[str, Any] = {"labels": "gaussian", "step_size": 0.5, "every": plan.steps}
    run = runs_of(plan, ("scaled_movement",), **common, **values)
    return moved(run)[:, -1], run.risk[:, -1]


def loss_at_movement(plan: Plan, movement: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the loss under decay to the start, where the largest movement is as given.

    The movement lies between those of two neighbours in the grid of decays, and so does the loss;
    where no two enclose it, nothing is known.
    """
    ends = [decay_ends(plan, radius=None, decay=rate) for rate in plan.grid]  # rates ascend
    moved, loss = (np.stack(part, axis=1) for part in zip(*ends, strict=True))
    low, high = np.zeros(len(moved)), np.full(len(moved), np.inf)
    for k in range(moved.shape[1] - 1):
        inside = (moved[:, k] >= movement) & (moved[:, k + 1] <= movement)
        pair = loss[:, k : k + 2]
        low = np.where(inside, pair.min(axis=1), low)
        high = np.where(inside, pair.max(axis=1), high)
    return low, high


def _certified_energy(setup: Setup) -> Array:
    r"""$(\beta^\top y)^2/n$: what theorem C certifies of the labels' mean square."""
    beta = data.top_direction(setup.setting, setup.params0, setup.inputs)
    return (beta @ setup.targets) ** 2 / len(beta)


def knee_runs(plan: Plan, share: float) -> dict[str, np.ndarray]:
    """Loss of the model trained within a share of the dual teacher's norm, for every seed."""
    run = runs_of(plan, labels="dual", radius=3 * share, step_size=0.5, every=plan.steps)
    lower = max(1 - share, 0) ** 2 * per_start(run.setup, _certified_energy)
    return {"loss": run.risk[:, -1], "energy": run.risk[:, 0], "lower": lower}


def kernel_drift(plan: Plan, scale: float) -> np.ndarray:
    """Drift of the tangent kernel with the output divided by a scale and steps to match."""
    values: dict[str, Any] = {"output_scale": scale, "radius": None, "every": plan.steps}
    run = runs_of(plan, ("kernel_drift",), step_size=scale**2 * plan.steps**-0.5, **values)
    return run.probes["kernel_drift"][:, -1]


# ------------------------------------------------------------------------ rates, windows, radii


def narrower(setup: Setup, num_heads: int) -> Setup:
    """The same data for the first heads of a wide start, and their twins."""
    half = setup.setting.num_heads // 2
    rows = np.r_[: num_heads // 2, half : half + num_heads // 2]
    params0 = jax.tree.map(lambda W: W[:, rows], setup.params0)
    return setup.replace(setting=setup.setting.replace(num_heads=num_heads), params0=params0)


def loss_by_heads(
    num_samples: int, seeds: tuple[int, ...], steps: int, step: float, widths: tuple[int, ...],
    **values: Any,
) -> np.ndarray:  # fmt: skip
    """Lowest loss over the labels' energy, (seeds, widths); starts are nested."""
    wanted = {"num_samples": num_samples, "num_steps": steps, "num_heads": max(widths)}
    wide = fresh_setup(PAPER, wanted | values, seeds=seeds)
    runs = (train(narrower(wide, m), step_size=step, probes=()) for m in widths)
    return np.stack([lowest(run) / run.risk[:, 0] for run in runs], axis=1)


def _kept_loss(num_samples: int, seed: int, **how: Any) -> np.ndarray:
    """`loss_by_heads` of one seed, kept on disk when it is done."""
    from shoal.disk.cache import cached

    key = ["arda2026.loss_by_heads", num_samples, seed, {k: how[k] for k in sorted(how)}]
    return cached(key, lambda: {"loss": loss_by_heads(num_samples, (seed,), **how)}).arrays["loss"]


def heads_jobs(plan: Plan, step: float, widths: tuple[int, ...], **values: Any) -> list:
    """The parts of `heads_needed`, not yet called, each kept on disk when done."""
    how = {"steps": plan.steps, "step": step, "widths": widths} | values
    return [functools.partial(_kept_loss, int(n), seed, **how)
            for n in plan.grid for seed in seeds_of(plan.seeds)]  # fmt: skip


def heads_needed(
    plan: Plan, step: float, widths: tuple[int, ...], share: float, kept: bool = False,
    norm_power: float = 0.0, **values: Any,
) -> Curves:  # fmt: skip
    """Heads at which the lowest loss first falls to a share of the labels' energy, by samples.

    Between two widths the logarithm of the loss is taken as straight in that of the heads; ``low``
    and ``high`` enclose what lies beyond the widths. With a ``norm_power`` p the teacher's norm and
    the radius grow like the samples to p, and the level stays where it was: its share falls.
    """
    seeds = seeds_of(plan.seeds)
    low: list[np.ndarray] = []
    high: list[np.ndarray] = []
    jobs: Any = iter(heads_jobs(plan, step, widths, **values) if kept else ())
    for n in plan.grid:
        grown = (n / plan.grid[0]) ** norm_power
        level = share / grown**2
        if kept:
            loss = np.concatenate([next(jobs)() for _ in seeds])
        else:
            norm = {"teacher_norm": 3 * grown, "radius": 3 * grown} if norm_power else {}
            loss = loss_by_heads(int(n), seeds, plan.steps, step, widths, **(values | norm))
        place = first_times(np.log(widths), np.log(loss), np.full(len(loss), np.log(level)))
        below, never = loss[:, 0] <= level, np.isinf(place)
        found = np.exp(np.where(never, 0.0, place))
        low.append(np.where(below, 0.0, np.where(never, widths[-1], found)))
        high.append(np.where(below, widths[0], np.where(never, np.inf, found)))
    return {"x": np.array(plan.grid, float), "low": np.stack(low, 1), "high": np.stack(high, 1)}


def _squared_move(setup: Setup) -> Array:
    """Squared distance from the start to the teacher's transport."""
    v = data.teacher(setup.setting, setup.params0)
    move = jax.tree.map(jnp.subtract, teachers.moved(setup.params0, v), setup.params0)
    return jnp.sum(jnp.stack([jnp.sum(block**2) for block in move]))


def mean_so_far(risk: np.ndarray) -> np.ndarray:
    """Mean loss of the first tau steps, for tau from 1 on: the start counts, the end does not.

    >>> mean_so_far(np.array([[4.0, 2.0, 0.0]])).tolist()
    [[4.0, 3.0]]
    """
    return np.cumsum(risk[:, :-1], axis=1) / np.arange(1, risk.shape[1])


def rate_run(plan: Plan, step: float, scale: float = 1.0, **values: Any) -> tuple[Run, np.ndarray]:
    """A run of constant step, and V_0 of its teacher; ``scale`` divides the output.

    The step grows like the square of the scale, so that outputs move at the same speed; in these
    units V_0 / (step tau) is the same number.
    """
    more = {"output_scale": scale, "step_size": scale**2 * step}
    run = runs_of(plan, **(more | values))
    return run, per_start(run.setup, _squared_move)


def rate_margins(plan: Plan, step: float, **values: Any) -> np.ndarray:
    """Log10 of V_0 / (step tau) over the mean loss of tau steps, the smallest over a grid."""
    run, V0 = rate_run(plan, step, **values)
    taus = np.array(plan.grid)
    return np.log10(V0[:, None] / (step * taus) / mean_so_far(run.risk)[:, taus - 1]).min(1)


RADIUS_PROBES = ("gradient_norm", "scaled_movement", "boundary", "test_risk", "kernel_drift")


def within(plan: Plan, step: float, share: float | None, **values: Any) -> Run:
    """A run on the dual teacher within a share of its norm, or without a projection."""
    radius = None if share is None else 3 * share
    more: dict[str, Any] = {"labels": "dual", "test_samples": 200, "every": plan.steps // 20}
    return runs_of(plan, RADIUS_PROBES, radius=radius, step_size=step, **(more | values))


def binds(run: Run) -> np.ndarray:
    """Whether some head of a seed is on the boundary at some record; never without a projection."""
    return np.any([run.probes[f"boundary_{k}"].max(axis=1) > 0 for k in "cUW"], axis=0)


def gradient_sizes(run: Run) -> np.ndarray:
    """Norm of the whole gradient, (seeds, records)."""
    return np.sqrt(sum(run.probes[f"gradient_norm_{k}"] ** 2 for k in "cUW"))


def lengthened(plan: Plan, norm: float, **values: Any) -> Run:
    """The paper's step on Gaussian labels, with tokens and queries of some norm."""
    return runs_of(plan, token_norm=norm, labels="gaussian", **values)


def decay_of_reach(plan: Plan, step: float, movement: float) -> tuple[float, Run]:
    """The decay to the start, of a few, whose largest movement is nearest to a given one."""
    found = [(rate, within(plan, step, None, decay=rate)) for rate in DECAYS]
    return min(found, key=lambda one: abs(np.log(np.median(moved(one[1])[:, -1]) / movement)))


DECAYS = tuple(np.geomspace(0.003, 0.3, 5).round(4).tolist())
