"""Experiments of arda2026 in the sizes that claims and figures need."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal._typing import Array
from shoal.experiments import default_step, prepare, simulate
from shoal.files import cache_folder
from shoal.keeping import kept
from shoal.losses import mean_of_squares
from shoal.methods import gradient_descent, projected
from shoal.models import empirical_risk, predict
from shoal.papers import arda2026
from shoal.papers.arda2026 import data, heads, relatives, teachers
from shoal.papers.arda2026.heads import ACTIVATIONS, Weights
from shoal.problems import Problem
from shoal.training import run

TANH = ACTIVATIONS["tanh"]
NORMS = (3.0, 3.0, 3.0)


class Plan(NamedTuple):
    """Sizes of an experiment, and what a planted violation changes in it."""

    num_seeds: int = 5
    num_steps: int = 400
    num_samples: int = 100
    grid: tuple[float, ...] = ()  # widths, lengths, lags, ...
    num_heads: int = 64
    minutes: float = 0.2  # on two cores, roughly
    plant: tuple[tuple[str, Any], ...] = ()


def keys_of(num_seeds: int) -> Array:
    """A key for every seed."""
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), 1))(
        jnp.arange(num_seeds, dtype=jnp.uint32)
    )


@functools.lru_cache(maxsize=64)
def _trained(values: tuple, num_seeds: int, probes: tuple[str, ...]) -> Any:
    precision = dict(values).get("precision", "float64")
    given = {k: v for k, v in values if k != "precision"}
    experiment = prepare(arda2026.PAPER, given, seeds=range(num_seeds), precision=precision)
    setting = experiment.setting
    if setting.step_size is None:
        setting = setting._replace(step_size=default_step(experiment))
    found = simulate(experiment._replace(setting=setting), probes)
    return jax.tree.map(np.asarray, found)


def trained(num_seeds: int, probes: tuple[str, ...] = (), **values: Any) -> Any:
    """Train every seed (a `Trajectory` of NumPy arrays); each run only once in a process."""
    return _trained(tuple(sorted(values.items())), num_seeds, probes)


# --------------------------------------------------------------------------------------- width

LARGE = 1000
"""From so many samples on, runs are made one by one, in float32, and each is kept on disk."""


def width_run(num_heads: int, seed: int, num_samples: int, num_steps: int) -> dict[str, np.ndarray]:
    """One run of the paper's width experiment, kept when done."""
    values = {"num_heads": num_heads, "num_samples": num_samples, "num_steps": num_steps}

    def make() -> dict[str, Any]:
        experiment = prepare(
            arda2026.PAPER, values | {"every": 10}, seeds=(seed,), precision="float32"
        )
        step = default_step(experiment)
        experiment = experiment._replace(setting=experiment.setting._replace(step_size=step))
        begun = time.perf_counter()
        found = jax.block_until_ready(simulate(experiment, ("scaled_movement",)))
        seconds = time.perf_counter() - begun
        average = jax.tree.map(lambda leaf: leaf[0].astype(jnp.float64), found.average)
        X, y = (a.astype(jnp.float64) for a in experiment.problem[:2])
        model = arda2026.model(experiment.setting)

        @jax.jit
        def outputs(params: Weights) -> Array:
            assert model.together is not None
            return model.together(params, X)

        moved = [found.probes[f"scaled_movement_{name}"][0].max() for name in "cUW"]
        return {
            "risk": found.risk[0],
            "average": jnp.mean((outputs(average) - y) ** 2),
            "energy": jnp.mean(y**2),
            "moved": np.array(moved),
            "seconds": seconds,
        }

    about = ["arda2026.width_run", values, seed]
    return kept(about, make, cache_folder() / "measurements").arrays


def best_losses(plan: Plan, **extra: Any) -> np.ndarray:
    """Lowest training loss before the last step, (seeds, widths)."""
    if plan.num_samples >= LARGE and not extra:
        rows = [
            [width_run(*job)["risk"][:-1].min() for job in width_jobs(plan) if job[1] == seed]
            for seed in range(plan.num_seeds)
        ]
        return np.array(rows)
    runs = [
        trained(
            plan.num_seeds,
            num_samples=plan.num_samples,
            num_heads=int(m),
            num_steps=plan.num_steps,
            **extra,
        )
        for m in plan.grid
    ]
    return np.stack([run.risk[:, :-1].min(axis=1) for run in runs], axis=1)


def width_jobs(plan: Plan) -> list[tuple[int, int, int, int]]:
    """Arguments of every `width_run` of a plan."""
    return [
        (int(m), seed, plan.num_samples, plan.num_steps)
        for seed in range(plan.num_seeds)
        for m in plan.grid
    ]


def coherent(params0: Weights, x: Array, radii: teachers.Radii) -> Weights:
    """A point of the boundary where all heads, twins included, move along the same feature."""
    m = len(params0.c)
    F = heads.features(params0, x[None], TANH)
    turned = F.MU[0][:, :, None] * x[-1][None, None, :]
    moved = Weights(
        W=params0.W + 1e3 * turned / jnp.linalg.norm(turned, axis=(1, 2), keepdims=True),
        U=params0.U + 1e3 * F.a[0],
        c=params0.c + jnp.full(m, 1e3),
    )
    return teachers.nearest(params0, moved, radii)


def scattered(key: Array, params0: Weights, radii: teachers.Radii) -> Weights:
    """A point of the boundary where every head moves its own way."""
    noise = [
        1e3 * jax.random.normal(k, W.shape)
        for k, W in zip(jax.random.split(key, 3), params0, strict=True)
    ]
    return teachers.nearest(params0, Weights(*map(jnp.add, params0, noise)), radii)


@functools.lru_cache(maxsize=16)
def width_errors(
    widths: tuple[int, ...], num_seeds: int, num_samples: int
) -> dict[str, np.ndarray]:
    """Errors at points of the boundary by width, each (seeds, widths): no training."""
    setting = arda2026.complete(arda2026.Setting(num_samples=num_samples))
    problem = data.sequences(setting)
    X, y = problem.X, problem.y
    found: dict[str, list] = {}
    for m in widths:
        model = heads.heads(m, setting.dim, TANH)

        @jax.jit
        def errors(keys: Array, m: int = m, model: Any = model) -> dict[str, Array]:
            def one(key: Array) -> dict[str, Array]:
                params0 = heads.twins(key, heads.shapes(m, setting.dim))
                v = data.teacher(setting, params0)
                long = Weights(*(1e3 * block for block in v))
                edge = teachers.nearest(params0, teachers.moved(params0, long), NORMS)
                target = teachers.moved(params0, v)

                def lin(point: Weights) -> Array:
                    apart = predict(model, point, X)
                    apart -= teachers.linearised(model, params0, X, point)
                    return jnp.max(jnp.abs(apart))

                e = teachers.linearised(model, params0, X, target) - y
                return {
                    "coherent": lin(coherent(params0, X[0], NORMS)),
                    "random": lin(scattered(jax.random.fold_in(key, 1), params0, NORMS)),
                    "transported": lin(edge),
                    "approximation": jnp.max(jnp.abs(e)),
                }

            return jax.lax.map(one, keys)

        for name, values in errors(keys_of(num_seeds)).items():
            found.setdefault(name, []).append(np.asarray(values))
    return {name: np.stack(values, axis=1) for name, values in found.items()}


def samples_errors(sizes: tuple[int, ...], num_seeds: int, num_heads: int) -> dict[str, np.ndarray]:
    """Approximation error at the teacher's transport by number of samples: largest, and rms."""
    setting = arda2026.complete(arda2026.Setting(num_samples=max(sizes), num_heads=num_heads))
    problem = data.sequences(setting)

    @jax.jit
    def errors(keys: Array) -> Array:
        def one(key: Array) -> Array:
            params0 = heads.twins(key, heads.shapes(num_heads, setting.dim))
            v = data.teacher(setting, params0)
            return jnp.abs(teachers.labels(params0, v, problem.X, TANH) - problem.y)

        return jax.lax.map(one, keys)

    e = np.asarray(errors(keys_of(num_seeds)))
    largest = np.stack([e[:, :n].max(axis=1) for n in sizes], axis=1)
    return {"sup": largest, "rms": np.stack([(e[:, :n] ** 2).mean(1) ** 0.5 for n in sizes], 1)}


# -------------------------------------------------------------------------------------- length


def gradients_by_length(
    lengths: tuple[int, ...],
    num_seeds: int,
    *,
    num_samples: int = 50,
    num_heads: int = 64,
    num_layers: int = 1,
    norm: float = 1.0,
    sum_tokens: bool = False,
) -> dict[str, np.ndarray]:
    """Norm of the output's gradient in W (inner layers' W, if deep) at the start, by length.

    ``sum_tokens`` plants a violation: attention that does not average but adds.
    """
    d = 8
    found: dict[str, list] = {"mean": [], "max": []}
    for T in lengths:

        @jax.jit
        def norms(keys: Array, T: int = T) -> tuple[Array, Array]:
            def one(key: Array) -> tuple[Array, Array]:
                key_X, key_w = jax.random.split(key)
                X = norm * data.clipped(jax.random.normal(key_X, (num_samples, T, d)))
                if num_layers == 1:
                    params = heads.twins(key_w, heads.shapes(num_heads, d))
                    squares = heads.output_gradients(params, X, TANH)["W"]
                else:
                    model = relatives.deep(num_layers, num_heads, d, TANH)
                    deep = relatives.deep_twins(key_w, model.spec)
                    # twins of opposite signs hide the inner layers: f = 0 whatever these do
                    deep = deep._replace(c=jnp.abs(deep.c))
                    J = jax.lax.map(lambda x: jax.grad(model.apply)(deep, x).inner_W, X)
                    squares = jnp.sum(J**2, axis=tuple(range(1, J.ndim)))
                root = jnp.sqrt(squares) * (T if sum_tokens else 1)
                return jnp.mean(root), jnp.max(root)

            return jax.lax.map(one, keys)

        mean, most = norms(keys_of(num_seeds))
        found["mean"].append(np.asarray(mean))
        found["max"].append(np.asarray(most))
    return {name: np.stack(values, axis=1) for name, values in found.items()}


# ---------------------------------------------------------------------------------------- knee


@functools.partial(jax.jit, static_argnames=("num_samples", "num_heads", "num_steps"))
def _knee(
    keys: Array, share: Array, *, num_samples: int, num_heads: int, num_steps: int
) -> tuple[Array, Array, Array]:
    model = heads.heads(num_heads, 8, TANH)
    nu = NORMS[0]

    def one(key: Array) -> tuple[Array, Array, Array]:
        key_X, key_w = jax.random.split(key)
        X = data.clipped(jax.random.normal(key_X, (num_samples, 16, 8)))
        params0 = heads.twins(key_w, heads.shapes(num_heads, 8))
        K = sum(heads.tangent_kernels(X, TANH)(params0).values())
        beta = jnp.linalg.eigh(K)[1][:, -1]
        v = teachers.dual(params0, X, beta, NORMS, TANH)
        y = teachers.labels(params0, v, X, TANH)
        radius = share * nu / num_heads**0.5
        method = projected(gradient_descent(0.5), dict.fromkeys("WUc", radius))
        risk = empirical_risk(model, Problem(X, y), mean_of_squares)
        walked = run(method, risk, params0, num_steps=num_steps, every=num_steps)
        energy = jnp.mean(y**2)
        lower = jnp.maximum(1 - share, 0) ** 2 * (beta @ y) ** 2 / num_samples
        return walked.risk[-1], energy, lower

    return jax.lax.map(one, keys)


def knee(plan: Plan, shares: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Loss of the model trained within a share of the dual teacher's norm, (seeds, shares)."""
    columns = [
        _knee(
            keys_of(plan.num_seeds),
            jnp.asarray(share),
            num_samples=plan.num_samples,
            num_heads=plan.num_heads,
            num_steps=plan.num_steps,
        )
        for share in shares
    ]
    loss, energy, lower = (np.stack(parts, axis=1) for parts in zip(*columns, strict=True))
    return {"loss": loss, "energy": energy, "lower": lower}


# ------------------------------------------------------------------------------- autoregressive


def series_runs(plan: Plan, model: str, lag: int, **values: Any) -> dict[str, np.ndarray]:
    """Lowest held-out loss and largest Jacobian norm of a model on a series, for every seed."""
    found = trained(
        plan.num_seeds,
        ("test_risk", "jacobian"),
        model=model,
        problem="autoregressive",
        lag=lag,
        num_samples=plan.num_samples,
        test_samples=plan.num_samples,
        num_heads=plan.num_heads,
        num_steps=plan.num_steps,
        every=plan.num_steps // 20,
        radius=None,
        **values,
    )
    block = "w" if model == "recurrent" else "W"
    return {
        "loss": found.probes["test_risk"].min(axis=1),
        "jacobian": found.probes[f"jacobian_{block}"].max(axis=1),
    }
