"""Measurements and rules for claims about the classifier: real data, landscapes, depth."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal._typing import Callable
from shoal.attention import KERNELS as KERNELS_BY_NAME
from shoal.claims import Evidence, Measurement, Ruling, above, evidence, mean_interval
from shoal.diagnostics import landscape as land
from shoal.experiments import Experiment, prepare, simulate
from shoal.figures import Panel, band
from shoal.models import empirical_risk
from shoal.papers import song2024
from shoal.papers.song2024 import classifier, trials
from shoal.papers.song2024.layer import Form
from shoal.papers.song2024.trials import Plan

KERNELS = ("softmax", "gaussian")
STEPS = {"sgd": (0.03, 0.1, 0.3), "adam": (3e-4, 1e-3, 3e-3)}
USUAL = {"sgd": 0.1, "adam": 1e-3}
FLAT = 0.01  # a plane whose risk varies by less (chance is log 2) shows the end of training only


# ---------------------------------------------------------------------------- real data


def curves(plan: Plan, problem: str, kernel: str, method: str, step: float) -> dict[str, Any]:
    """Curves on held-out data of one kernel at one step size."""
    values: dict[str, Any] = {
        "problem": problem,
        "kernel": kernel,
        "method": method,
        "step_size": step,
        "num_samples": plan.num_samples,
        "test_samples": max(200, plan.num_samples // 4),
        "num_steps": plan.num_steps,
        "every": plan.num_steps // 5,
    }
    if problem in ("imdb", "rotten_tomatoes"):
        values["num_tokens"] = plan.num_tokens
    if problem == "digits":  # there are only 348 images of two digits
        values |= {"num_samples": min(plan.num_samples, 200), "test_samples": 140}
    if problem == "pathfinder":
        values["patch"] = round(32 / plan.num_tokens**0.5)
    return trials.classified(plan.num_seeds, **values)


def measure_real(plan: Plan, problem: str, method: str, *, tuned: bool) -> Measurement:
    """Held-out accuracy and loss of both kernels, at one step size or each at its own best."""
    plant = dict(plan.plant)
    problem = plant.get("problem", problem)
    found: Measurement = {}
    for kernel in KERNELS:
        tried = plant.get(f"{kernel}_steps", STEPS[method] if tuned else (USUAL[method],))
        runs = [curves(plan, problem, kernel, method, step) for step in tried]
        # the best step is that of the lowest mean risk in training: held-out data stay unseen
        last = [np.nan_to_num(run["risk"][:, -1].astype(float), nan=1e9).mean() for run in runs]
        best = int(np.argmin(last))
        found[f"{kernel}_accuracy"] = runs[best]["accuracy"]
        found[f"{kernel}_loss"] = runs[best]["test_risk"]
        found[f"{kernel}_step"] = np.asarray(tried[best])
        found["step"] = runs[best]["step"]
    return found


def decide_real(found: Measurement) -> Evidence:
    """The Gaussian is ahead in held-out accuracy at the end, seed by seed."""
    soft, bell = found["softmax_accuracy"], found["gaussian_accuracy"]
    interval = mean_interval(100 * (bell[:, -1].astype(float) - soft[:, -1]))
    loss = found["gaussian_loss"][:, -1].astype(float) - found["softmax_loss"][:, -1]
    sentence = (
        "The Gaussian is ahead by {mean:.1f} [{low:.1f}, {high:.1f}] points of held-out accuracy "
        f"({100 * np.mean(bell[:, -1]):.1f}% against {100 * np.mean(soft[:, -1]):.1f}%, steps "
        f"{float(found['gaussian_step']):g} and {float(found['softmax_step']):g}); its held-out "
        f"loss is {'higher' if np.mean(loss) > 0 else 'lower'} by {abs(np.mean(loss)):.3f}."
    )
    ruling = above(interval, 0.0)
    if max(np.mean(soft[:, -1]), np.mean(bell[:, -1])) < 0.55:
        ruling = Ruling.INCONCLUSIVE
        sentence += " Neither is clearly above chance at this size: see --full."
    panel = Panel(
        "held-out accuracy",
        "step",
        "accuracy",
        tuple(
            band(name, found["step"], accuracy)
            for name, accuracy in (("softmax", soft), ("gaussian", bell))
        ),
    )
    meaning = "points of held-out accuracy by which the Gaussian is ahead"
    return evidence(interval, meaning, 2 * len(soft), ruling, sentence, panel)


# ---------------------------------------------------------------------------- landscapes


@functools.lru_cache(maxsize=4)
def two_stages(plan: Plan, kernels: tuple[str, ...] = KERNELS) -> tuple[list[Experiment], list]:
    """Softmax first, then each kernel from there: experiments (with starts) and their ends.

    Both stages train all weights by Adam on digits read by rows.
    """
    common = {
        "model": "classifier",
        "problem": "digits",
        "num_samples": plan.num_samples,
        "test_samples": 50,
        "num_steps": plan.num_steps,
        "every": plan.num_steps,
        "step_size": 1e-3,
    }
    seeds = range(plan.num_seeds)
    first = prepare(
        song2024.PAPER, common | {"kernel": "softmax"}, seeds=seeds, precision="float32"
    )
    middle = simulate(first).params
    second = [
        prepare(
            song2024.PAPER, common | {"kernel": kernel}, seeds=seeds, precision="float32"
        )._replace(params0=middle)
        for kernel in kernels
    ]
    return second, [simulate(experiment).params for experiment in second]


@functools.partial(jax.jit, static_argnames=("setting",))
def _plane(problem: Any, centre: Any, directions: Any, grid: Any, *, setting: Any) -> Any:
    risk = empirical_risk(song2024.model(setting), problem, song2024.loss)
    return land.plane(risk, centre, directions, grid, grid, at_once=32)


def plane_of(experiment: Experiment, centre: Any, directions: land.Directions, grid: Any) -> Any:
    """The risk on a plane through one point, in one compiled call, in double precision."""
    problem = trees.cast(experiment.problem, "float64")
    return _plane(problem, centre, directions, grid, setting=experiment.setting)


def middle_directions(experiment: Experiment, seed: int) -> land.Directions:
    """Random directions of W_Q and W_K, scaled by the weights from which both sides started."""
    middle = trees.cast(jax.tree.map(lambda w: w[seed], experiment.params0), "float64")
    return land.random_directions(jax.random.key(seed), middle, ("W_Q", "W_K"))


@functools.lru_cache(maxsize=4)  # two claims look at the same planes
def measure_landscape(plan: Plan) -> Measurement:
    """Numbers of both kernels' planes, same directions, for every seed."""
    kernels = dict(plan.plant).get("kernels", KERNELS)
    experiments, ends = two_stages(plan, kernels)
    grid = jnp.linspace(-1.0, 1.0, plan.points)
    spacing = (float(grid[1] - grid[0]),) * 2
    found: dict[str, list] = {}
    for seed in range(plan.num_seeds):
        points = [
            trees.cast(jax.tree.map(lambda w, seed=seed: w[seed], e), "float64") for e in ends
        ]
        directions = middle_directions(experiments[0], seed)
        for side, (experiment, point) in enumerate(zip(experiments, points, strict=True)):
            values = np.asarray(plane_of(experiment, point, directions, grid), float)
            for name, number in land.measures(values, spacing).items():
                found.setdefault(f"{name}_{side}", []).append(number)
    return {name: np.array(numbers) for name, numbers in found.items()}


def _difference(found: Measurement, name: str, limit: float, words: str) -> Evidence:
    soft, bell = found[f"{name}_0"], found[f"{name}_1"]
    interval = mean_interval(soft - bell)
    sentence = (
        f"{words}: softmax minus Gaussian {{mean:.3g}} [{{low:.3g}}, {{high:.3g}}] (means "
        f"{np.mean(soft):.3g} and {np.mean(bell):.3g})."
    )
    panel = Panel(
        words,
        "seed",
        words,
        tuple(
            band(label, np.arange(len(x), dtype=float), x[None])
            for label, x in (("softmax", soft), ("gaussian", bell))
        ),
        points=True,
    )
    meaning = f"{words}, softmax minus Gaussian"
    ruling = above(interval, limit)
    ranges = [np.median(found[f"highest_{k}"] - found[f"lowest_{k}"]) for k in (0, 1)]
    if min(ranges) < FLAT:
        ruling = Ruling.INCONCLUSIVE
        sentence += f" One side's plane is flat (range {min(ranges):.1e}): nothing to compare."
    return evidence(interval, meaning, 2 * len(soft), ruling, sentence, panel)


def decide_minima(found: Measurement) -> Evidence:
    """Softmax has more strict local minima on the grid."""
    return _difference(found, "local_minima", 0.5, "strict local minima of the plane")


def decide_roughness(found: Measurement) -> Evidence:
    """Softmax's plane goes up and down more."""
    return _difference(found, "roughness", 0.01, "roughness of the plane")


# --------------------------------------------------------------------------------- depth


def measure_depth(plan: Plan) -> Measurement:
    """Independence of the last layer's features at the start, with residual and without."""
    sides = {"with": dict(plan.plant).get("residual", 1.0), "without": 0.0}
    found: Measurement = {}
    for norm in (True, False):
        for layers in (1, 2, 3):
            sigma = _last_sigmas(plan, norm=norm, num_layers=layers)
            for side, residual in sides.items():
                found[f"{side}_{'norm' if norm else 'bare'}_{layers}"] = sigma(residual)
    return found


def _last_sigmas(plan: Plan, *, norm: bool, num_layers: int) -> Callable[[float], np.ndarray]:
    """Smallest over largest singular value of the last features, both kernels, Gaussian tokens."""
    sizes = classifier.Sizes(64, False, plan.num_tokens, num_layers, 2, 64, 128, norm=norm)
    shape = (plan.num_samples, plan.num_tokens, 64)
    forms = [Form(KERNELS_BY_NAME[kernel], 32**0.5) for kernel in KERNELS]

    def one(key: Any, form: Form, residual: Any) -> Any:
        key_X, key_W = jax.random.split(key)
        params = classifier.initial(key_W, classifier.shapes(sizes))
        X = jax.random.normal(key_X, shape)
        B = classifier.last_features(params, X, sizes._replace(residual=residual), form)
        sigma = jnp.linalg.svd(B, full_matrices=False, compute_uv=False)
        return sigma[-1] / sigma[0]

    @jax.jit
    def both(keys: Any, residual: Any) -> list:
        return [jax.lax.map(lambda k, f=f: one(k, f, residual), keys) for f in forms]

    keys = trials.keys_of(plan.num_seeds)
    # geometric mean of the two kernels, so that a seed counts once
    return lambda residual: np.exp(
        np.mean([np.log(np.maximum(part, 1e-20)) for part in both(keys, jnp.asarray(residual))], 0)
    )


def decide_depth(found: Measurement) -> Evidence:
    """At three layers with norm, residual connections gain a decade of conditioning."""
    logs = {name: np.log10(np.maximum(values, 1e-20)) for name, values in found.items()}
    interval = mean_interval(logs["with_norm_3"] - logs["without_norm_3"])
    layers = np.array([1.0, 2.0, 3.0])
    panel = Panel(
        "last layer at the start",
        "layers",
        "sigma_min / sigma_max of the features",
        tuple(
            band(
                f"{'residual' if side == 'with' else 'no residual'}, "
                f"{'norm' if norm == 'norm' else 'no norm'}",
                layers,
                np.maximum(
                    np.stack([found[f"{side}_{norm}_{k}"] for k in (1, 2, 3)], axis=1), 1e-20
                ),
                positive=True,
            )
            for side in ("with", "without")
            for norm in ("norm", "bare")
        ),
        log_y=True,
    )
    bare = np.mean(logs["with_bare_3"] - logs["without_bare_3"])
    return evidence(
        interval,
        "decades of conditioning gained by residuals at three layers, with norm",
        4 * len(logs["with_norm_3"]),
        above(interval, 1.0),
        "At three layers residual connections improve the conditioning of the last layer's "
        f"features by {{mean:.2f}} [{{low:.2f}}, {{high:.2f}}] decades ({bare:.2f} without norm).",
        panel,
    )
