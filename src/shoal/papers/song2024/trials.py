"""Experiments of song2024 in the sizes that claims and figures need."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import attention
from shoal._typing import Array
from shoal.diagnostics.dynamics import curvature
from shoal.experiments import prepare, simulate
from shoal.losses import half_sum_of_squares
from shoal.methods import gradient_descent
from shoal.models import empirical_risk
from shoal.papers import song2024
from shoal.papers.song2024 import data, layer
from shoal.papers.song2024.layer import Form, Weights
from shoal.problems import Problem
from shoal.training import run


class Plan(NamedTuple):
    """Sizes of an experiment, and what a planted violation changes in it."""

    num_seeds: int = 8
    num_steps: int = 2000
    num_samples: int = 4
    num_tokens: int = 4
    points: int = 21  # along each side of a plane
    minutes: float = 0.2  # on two cores, roughly
    plant: tuple[tuple[str, Any], ...] = ()


class Batch(NamedTuple):
    """Problems and starts, one of each for every seed (leading axis)."""

    problem: Problem
    params0: Weights


class Ends(NamedTuple):
    """How runs of the layer ended; the leading axis is the seed."""

    risk: np.ndarray  # (seeds, records)
    gradient: np.ndarray
    hessian_min: np.ndarray
    params: Weights


@functools.partial(jax.jit, static_argnames=("kernel", "train", "num_steps", "every"))
def _descend(
    batch: Batch,
    step_size: Array,
    bandwidth: Array,
    *,
    kernel: str,
    train: tuple[str, ...],
    num_steps: int,
    every: int,
) -> tuple:
    H, D, k = batch.params0.W_Q.shape[1:]
    sizes = layer.Sizes(H, D, k, *batch.params0.W_O.shape[2:])
    network = layer.attention_layer(sizes, Form(attention.KERNELS[kernel], bandwidth))

    def one(problem: Problem, params0: Weights) -> tuple:
        risk = empirical_risk(network, problem, half_sum_of_squares)
        method = gradient_descent(step_size)
        walked = run(method, risk, params0, num_steps=num_steps, every=every, train=train)
        end = walked.params
        gradient = jax.grad(risk)(end)._asdict()
        g = jnp.sqrt(sum(jnp.sum(gradient[name] ** 2) for name in train))
        return walked.risk, g, curvature(risk, train=train)(end)["min"], end

    return jax.vmap(one)(*batch)


def descend(
    batch: Batch,
    *,
    kernel: str,
    train: str,
    step_size: float,
    num_steps: int,
    bandwidth: float | None = None,
    every: int | None = None,
) -> Ends:
    """Train a layer for every seed, each on its own problem, in one compiled call."""
    tau = batch.params0.W_Q.shape[-1] ** 0.5 if bandwidth is None else bandwidth
    every = num_steps if every is None else every
    found = _descend(
        batch,
        jnp.asarray(step_size),
        jnp.asarray(tau),
        kernel=kernel,
        train=tuple(train.split(",")),
        num_steps=num_steps,
        every=every,
    )
    risk, gradient, hessian, params = found
    return Ends(np.asarray(risk), np.asarray(gradient), np.asarray(hessian), params)


def keys_of(num_seeds: int, first: int = 0) -> Array:
    """A key for every seed."""
    seeds = jnp.arange(first, first + num_seeds, dtype=jnp.uint32)
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), 7))(seeds)


# --------------------------------------------------------------------------------- problems


def traps(num_seeds: int) -> Batch:
    """The trap E1 and neighbours of it: keys, values and start moved a little."""

    def one(key: Array) -> Batch:
        a, b, c = jax.random.split(key, 3)
        keys = jnp.array(data.TRAP_KEYS) + 0.03 * jax.random.normal(a, (4,))
        values = jnp.array(data.TRAP_VALUES) * (1 + 0.03 * jax.random.normal(b, (4,)))
        query = data.TRAP_QUERY + jax.random.uniform(c, (), minval=-0.5, maxval=1.0)
        column = (1, 4, 1)
        weights = Weights(
            jnp.broadcast_to(query, column),
            keys.reshape(column),
            values.reshape(column),
            jnp.ones((1, 1, 1)),
        )
        return Batch(data.trap(), weights)

    return jax.vmap(one)(keys_of(num_seeds))


def mixtures(num_seeds: int, row_sum: float, dim: int = 12, key_dim: int = 4) -> Batch:
    """Targets that mix the values themselves, with weights that sum to ``row_sum`` (E2).

    Three samples of three tokens, three outputs, identity as output weights.
    """

    def one(key: Array) -> Batch:
        a, b, c, e, f = jax.random.split(key, 5)
        X = jax.random.normal(a, (3, 3, dim))
        W_Q, W_K = (jax.random.normal(k, (1, dim, key_dim)) / dim**0.5 for k in (b, c))
        W_V = jax.random.normal(e, (1, dim, 3)) / dim**0.5
        shares = row_sum * jax.random.dirichlet(f, jnp.full(3, 5.0), (3, 3))
        weights = Weights(W_Q, W_K, W_V, jnp.eye(3)[None])
        U = jax.vmap(lambda x: layer.values(weights, x)[0])(X)
        return Batch(Problem(X, shares @ U), weights)

    return jax.vmap(one)(keys_of(num_seeds))


def hull_floors(batch: Batch) -> np.ndarray:
    """Lowest risk of softmax on each problem, values fixed."""

    def one(problem: Problem, params: Weights) -> Array:
        U = jax.vmap(lambda x: layer.values(params, x))(problem.X)
        return jnp.sum(jax.vmap(lambda u, y: layer.reach_floor(u, y, box=None))(U, problem.y))

    return np.asarray(jax.jit(jax.vmap(one))(*batch))


@functools.partial(
    jax.jit, static_argnames=("kernel", "teacher", "num_rows", "key_dim", "positive", "num_steps")
)
def _census(
    key: Array,
    *,
    kernel: str,
    teacher: str,
    num_rows: int,
    key_dim: int,
    positive: bool,
    num_steps: int,
) -> Array:
    def mixed(name: str, q: Array, K: Array, v: Array) -> Array:
        return attention.KERNELS[name](q[None], K, key_dim**0.5)[0] @ v

    def one(key: Array) -> Array:
        a, b, c, e = jax.random.split(key, 4)
        K, v = jax.random.normal(a, (6, key_dim)), jax.random.normal(b, (6,))
        v = jnp.abs(v) if positive else v
        y = mixed(teacher, jax.random.normal(c, (key_dim,)), K, v)

        def risk(q: Array) -> Array:
            return 0.5 * (mixed(kernel, q, K, v) - y) ** 2

        def step(q: Array, _: None) -> tuple[Array, None]:
            return q - 0.3 * jax.grad(risk)(q), None

        start = jax.random.normal(e, (key_dim,))
        return risk(jax.lax.scan(step, start, length=num_steps)[0])

    return jax.vmap(one)(jax.random.split(key, num_rows))


def census(
    num_rows: int, *, kernel: str, teacher: str, key_dim: int, positive: bool, num_steps: int = 8000
) -> np.ndarray:
    """Final risks of single queries on random rows (six tokens), labels from a teacher's query."""
    found = _census(
        jax.random.key(11),
        kernel=kernel,
        teacher=teacher,
        num_rows=num_rows,
        key_dim=key_dim,
        positive=positive,
        num_steps=num_steps,
    )
    return np.asarray(found)


SCALES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)


def feature_sigmas(
    num_seeds: int, *, kernel: str, tied: bool, scales: tuple[float, ...] = SCALES
) -> np.ndarray:
    """Smallest singular value of the features by scale of W_Q and W_K, (scales, seeds)."""
    form = Form(attention.KERNELS[kernel], 8**0.5)

    @jax.jit
    def sigma(keys: Array, scale: Array) -> Array:
        def one(key: Array) -> Array:
            a, b, c = jax.random.split(key, 3)
            X = jax.random.normal(a, (4, 4, 24)) / 24**0.5
            W_Q = scale * jax.random.normal(b, (1, 24, 8))
            W_K = W_Q if tied else scale * jax.random.normal(c, (1, 24, 8))
            weights = Weights(W_Q, W_K, jnp.zeros((1, 24, 1)), jnp.ones((1, 1, 1)))
            B = layer.feature_matrix(weights, X, form)
            return jnp.linalg.svd(B, full_matrices=False, compute_uv=False)[-1]

        return jax.lax.map(one, keys)

    return np.stack([np.asarray(sigma(keys_of(num_seeds), jnp.asarray(s))) for s in scales])


# ------------------------------------------------------------------------------- the classifier


@functools.lru_cache(maxsize=64)
def _classified(values: tuple, num_seeds: int) -> dict[str, np.ndarray]:
    experiment = prepare(song2024.PAPER, dict(values), seeds=range(num_seeds), precision="float32")
    found = simulate(experiment, ("test_accuracy", "test_risk"))
    return {
        "step": np.asarray(found.step[0]),
        "risk": np.asarray(found.risk),
        "accuracy": np.asarray(found.probes["test_accuracy"]),
        "test_risk": np.asarray(found.probes["test_risk"]),
    }


def classified(num_seeds: int, **values: Any) -> dict[str, np.ndarray]:
    """Train the classifier for every seed; curves on held-out data (each run only once)."""
    values = {"model": "classifier"} | values
    return _classified(tuple(sorted(values.items())), num_seeds)
