r"""Experiments of wu2023 in the sizes that claims and figures need, each run only once."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.experiments import Experiment, default_step, prepare, simulate
from shoal.figures import Panel, band
from shoal.papers import wu2023
from shoal.problems import Problem
from shoal.tuning import tuned


class Plan(NamedTuple):
    """Sizes of an experiment, and what a planted violation changes in it."""

    num_samples: int = 12
    num_tokens: int = 4
    dim: int = 10
    widths: tuple[int, ...] = (32, 128, 512)
    num_seeds: int = 8
    num_steps: int = 200
    plant: tuple[tuple[str, Any], ...] = ()


QUICK = Plan()
FULL = Plan(100, 10, 100, (10, 100, 1000, 4000), 10, 400)

# ------------------------------------------------------------------------------- experiments


def twins(problem: Problem) -> Problem:
    """Two equal samples with opposite labels: no network of this form can fit them."""
    X, y = problem.X, problem.y
    return Problem(X.at[1].set(X[0]), y.at[0].set(1.0).at[1].set(-1.0))


def equal_means(problem: Problem) -> Problem:
    """Every sequence has the same token mean: under uniform attention all look alike."""
    X, y = problem.X, problem.y
    shift = jnp.mean(X, axis=1, keepdims=True) - jnp.mean(X, axis=(0, 1), keepdims=True)
    return Problem(X - shift, y)


def doubled_tokens(problem: Problem) -> Problem:
    """The second token of every sequence repeats the first: no full row rank."""
    return problem._replace(X=problem.X.at[:, 1].set(problem.X[:, 0]))


def overlapping(problem: Problem, share: float) -> Problem:
    """All sequences share a part with the first: at 1 they are equal."""
    X, y = problem.X, problem.y
    common = jnp.broadcast_to(X[:1], X.shape)
    return Problem((1 - share) ** 0.5 * X + share**0.5 * common, y)


SHAPES = {"twins": twins, "equal_means": equal_means, "doubled_tokens": doubled_tokens}


def experiment_of(plan: Plan, values: dict[str, Any]) -> Experiment:
    """A problem (maybe reshaped) and a start for every seed of a plan."""
    values = dict(values)
    shape, overlap = values.pop("shape", None), values.pop("overlap", None)
    sizes = {k: getattr(plan, k) for k in ("num_samples", "num_tokens", "dim", "num_steps")}
    made = prepare(wu2023.PAPER, sizes | values, seeds=range(plan.num_seeds))
    if shape is not None:
        made = made._replace(problem=SHAPES[shape](made.problem))
    if overlap is not None:
        made = made._replace(problem=overlapping(made.problem, overlap))
    return made


def trained(
    plan: Plan, *, step: Any = "default", probes: tuple[str, ...] = (), **values: Any
) -> Any:
    """Train; the step is a number, ``default`` (half of 1 / lambda_max) or ``tuned``."""
    # a plan's planted changes are already in `values`, so that equal runs are shared by claims
    plan = plan._replace(plant=(), widths=())
    return _once(plan, step, probes, tuple(sorted(values.items())))


@functools.lru_cache(maxsize=256)
def _once(plan: Plan, step: float | str, probes: tuple[str, ...], values: tuple) -> Any:
    experiment = experiment_of(plan, dict(values))
    if step == "tuned":
        step = tuned(experiment).step_size
    elif step == "default":
        step = default_step(experiment)
    setting = experiment.setting._replace(step_size=float(step))
    found = simulate(experiment._replace(setting=setting), probes)
    return jax.tree.map(np.asarray, found._replace(params=()))


def suitable_step(plan: Plan, **values: Any) -> float:
    """Half of 1 / lambda_max of the tangent kernel."""
    return default_step(experiment_of(plan, values))


def curve_panel(title: str, curves: list[tuple[str, np.ndarray]]) -> Panel:
    """Loss curves on a logarithmic axis, with bands over seeds."""
    steps = np.arange(curves[0][1].shape[1])
    made = tuple(band(label, steps, risk, positive=True) for label, risk in curves)
    return Panel(title, "step", "risk", made, log_y=True)


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Slope of each seed's line: y has shape (points, seeds)."""
    return np.polyfit(x, y, 1)[0]
