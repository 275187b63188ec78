"""Experiments of qin2025 in the sizes that claims and figures need.

Residual switches, scales and steps are numbers to the compiled programs here, so that networks with
and without residuals, which share everything else, also share the program.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal._typing import Array
from shoal.diagnostics import dynamics
from shoal.diagnostics.kernels import jacobian
from shoal.linalg import norm_fro, singular_values
from shoal.losses import half_sum_of_squares
from shoal.methods import gradient_descent
from shoal.models import Model, empirical_risk, predict
from shoal.papers.qin2025 import blocks, bounds, choices
from shoal.papers.qin2025.blocks import Form, Weights
from shoal.papers.qin2025.measuring import centred_share, conditioning_of
from shoal.problems import Problem
from shoal.theory import descent
from shoal.training import run

FLAGS = {
    "both": (1.0, 1.0),
    "attention": (1.0, 0.0),
    "feedforward": (0.0, 1.0),
    "none": (0.0, 0.0),
}


class Plan(NamedTuple):
    """Sizes of an experiment, and what a planted violation changes in it."""

    num_seeds: int = 5
    num_steps: int = 500
    num_layers: int = 1
    grid: tuple[float, ...] = ()
    minutes: float = 0.1  # on two cores, roughly
    plant: tuple[tuple[str, Any], ...] = ()


class Sizes(NamedTuple):
    """Shapes of data and network, and the kind of network: what a program is compiled for."""

    num_samples: int = 4
    num_tokens: int = 6
    dim: int = 32
    key_dim: int = 16
    width: int = 64
    out_dim: int = 2
    num_layers: int = 1
    activation: str = "smooth_leaky"
    causal: bool = False


class Numbers(NamedTuple):
    """What may change from run to run without another program."""

    residual: Any = FLAGS["both"]
    branch: Any = 1.0
    scale_qk: Any = 1.0
    scale_v: Any = 0.5
    scale_1: Any = 1.0
    scale_2: Any = 0.5
    token_scale: Any = 0.5
    correlation: Any = 0.0
    condition: Any = 0.0  # of all tokens; 0 leaves them as drawn
    teacher: Any = 0.0  # 1: targets of a network of the same kind; 0: random ones


def keys_of(num_seeds: int) -> Array:
    """A key for every seed, for weights and data."""
    return jax.vmap(jax.random.key)(jnp.arange(num_seeds, dtype=jnp.uint32))


def _network(sizes: Sizes, numbers: Numbers) -> tuple[Model, Form]:
    form = Form(
        blocks.activation(sizes.activation, 0.3),
        residual_attention=numbers.residual[0],
        residual_feedforward=numbers.residual[1],
        branch=numbers.branch,
        score=sizes.key_dim**-0.5,
        causal=sizes.causal,
    )
    shapes = (sizes.num_layers, sizes.dim, sizes.key_dim, sizes.width, sizes.out_dim)
    return blocks.transformer(blocks.shapes(*shapes), form), form


def _drawn(key: Array, spec: Any, numbers: Numbers) -> Weights:
    qk = dict.fromkeys(("W_Q", "W_K"), numbers.scale_qk)
    rest = {"W_V": numbers.scale_v, "W_1": numbers.scale_1, "W_2": numbers.scale_2, "W_U": 1.0}
    return blocks.gaussian(key, spec, qk | rest)


class Begun(NamedTuple):
    """One start: the network, its weights and its data."""

    model: Model
    form: Form
    params: Weights
    problem: Problem


def begin(key: Array, sizes: Sizes, numbers: Numbers) -> Begun:
    """Draw data and weights of one seed."""
    key_X, key_Y, key_w, key_teacher = jax.random.split(key, 4)
    N, n, d = sizes.num_samples, sizes.num_tokens, sizes.dim
    X = choices.tokens(key_X, N, n, d, numbers.token_scale, numbers.correlation)
    if N * n <= d:
        wanted = jnp.asarray(numbers.condition, float)
        X = jnp.where(wanted > 0, choices.conditioned(X, jnp.maximum(wanted, 1.0)), X)
    network, form = _network(sizes, numbers)
    noise = jax.random.normal(key_Y, (N, n, sizes.out_dim), float)
    taught = predict(network, _drawn(key_teacher, network.spec, numbers), X)
    Y = jnp.where(numbers.teacher > 0, taught, noise)
    return Begun(network, form, _drawn(key_w, network.spec, numbers), Problem(X, Y))


@functools.partial(jax.jit, static_argnames=("sizes", "num_steps", "every"))
def _train(
    keys: Array, numbers: Numbers, steps: Array, *, sizes: Sizes, num_steps: int, every: int
) -> tuple[Array, Weights]:
    def one(key: Array, step: Array) -> Any:
        start = begin(key, sizes, numbers)
        risk = empirical_risk(start.model, start.problem, half_sum_of_squares)
        walked = run(gradient_descent(step), risk, start.params, num_steps=num_steps, every=every)
        return walked.risk, walked.params

    return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(keys, steps)


def train(
    num_seeds: int, sizes: Sizes, numbers: Numbers, steps: Any, *, num_steps: int, every: int = 0
) -> tuple[Array, Weights]:
    """Risks (seeds, steps sizes, records) and last weights of every seed at every step size."""
    every = every or max(1, num_steps // 50)
    return _train(
        keys_of(num_seeds),
        _as_arrays(numbers),
        jnp.atleast_1d(jnp.asarray(steps, float)),
        sizes=sizes,
        num_steps=num_steps,
        every=every,
    )


def _as_arrays(numbers: Numbers) -> Numbers:
    return Numbers(*(jnp.asarray(v, float) for v in numbers))


@functools.partial(jax.jit, static_argnames="sizes")
def _look(keys: Array, numbers: Numbers, params: Weights | None, *, sizes: Sizes) -> dict:
    def one(args: Any) -> dict[str, Array]:
        key, moved = args
        start = begin(key, sizes, numbers)
        at = start.params if moved is None else moved
        sigma = singular_values(jacobian(start.model, start.problem.X)(at))
        A = jax.vmap(lambda x: blocks.layers(at, x, start.form).A[-1])(start.problem.X)
        stacked = conditioning_of(A.reshape(-1, A.shape[-1]))
        return {"lambda_min": sigma[-1] ** 2, "lambda_max": sigma[0] ** 2} | stacked

    return jax.lax.map(one, (keys, params))


def look(num_seeds: int, sizes: Sizes, numbers: Numbers, params: Any = None) -> dict:
    """Ends of the tangent kernel's spectrum and conditioning of the last attention output."""
    found = _look(keys_of(num_seeds), _as_arrays(numbers), params, sizes=sizes)
    return {name: np.asarray(values) for name, values in found.items()}


@functools.partial(jax.jit, static_argnames="sizes")
def _sharpness(keys: Array, numbers: Numbers, *, sizes: Sizes) -> Array:
    def one(key: Array) -> Array:
        start = begin(key, sizes, numbers)
        risk = empirical_risk(start.model, start.problem, half_sum_of_squares)
        found = dynamics.sharpness(risk, jax.random.key(0), num_matvecs=60)(start.params)
        return jnp.where(found["converged"], found["value"], jnp.nan)

    return jax.lax.map(one, keys)


def sharpness(num_seeds: int, sizes: Sizes, numbers: Numbers) -> np.ndarray:
    """Top Hessian eigenvalue at the start."""
    return np.asarray(_sharpness(keys_of(num_seeds), _as_arrays(numbers), sizes=sizes))


# -------------------------------------------------------------------------- conditioning, untrained


@functools.partial(jax.jit, static_argnames=("num_tokens", "dim"))
def _attention(
    keys: Array,
    scale_qk: Array,
    scale_v: Array,
    correlation: Array,
    *,
    num_tokens: int,
    dim: int,
) -> dict[str, Array]:
    def one(key: Array) -> dict[str, Array]:
        key_X, key_w = jax.random.split(key)
        X = choices.tokens(key_X, 1, num_tokens, dim, 1.0, correlation)[0]
        numbers = Numbers(scale_qk=scale_qk, scale_v=scale_v, residual=FLAGS["none"])
        sizes = Sizes(dim=dim, key_dim=dim, width=1, out_dim=1)
        network, form = _network(sizes, numbers)
        W = _drawn(key_w, network.spec, numbers)
        layer = jax.tree.map(lambda leaf: leaf[0], blocks.layers(W, X, form))
        kinds = {"S": layer.S, "without": layer.A, "with": X + layer.A, "X": X}
        found = {name: conditioning_of(matrix) for name, matrix in kinds.items()}
        weyl = bounds.weyl(X, layer.A)
        return {
            **{f"condition_{name}": c["condition"] for name, c in found.items()},
            **{f"sigma_min_{name}": c["sigma_min"] for name, c in found.items()},
            "weyl_sigma_min": weyl["sigma_min"],
            "weyl_condition": weyl["condition"],
        }

    return jax.vmap(one)(keys)


def attention(
    num_seeds: int, num_tokens: int, scale_qk: float, scale_v: float, correlation: float = 0.0
) -> dict[str, np.ndarray]:
    """Conditioning of one sequence's attention output, with and without the residual (dim 64)."""
    numbers = (jnp.asarray(v, float) for v in (scale_qk, scale_v, correlation))
    found = _attention(keys_of(num_seeds), *numbers, num_tokens=num_tokens, dim=64)
    return {name: np.asarray(values) for name, values in found.items()}


DEEP = Sizes(num_samples=4, num_tokens=8, dim=64, key_dim=64, width=128, num_layers=8)


@functools.partial(jax.jit, static_argnames="sizes")
def _depths(keys: Array, numbers: Numbers, *, sizes: Sizes) -> tuple[Array, Array]:
    def one(key: Array) -> tuple[Array, Array]:
        start = begin(key, sizes, numbers)
        found = jax.vmap(lambda x: blocks.layers(start.params, x, start.form).A, out_axes=1)
        A = found(start.problem.X)
        stacked = jax.vmap(lambda a: conditioning_of(a.reshape(-1, a.shape[-1]))["condition"])(A)
        return stacked, jax.vmap(centred_share)(A)

    return jax.vmap(one)(keys)


def depths(num_seeds: int, residual: str, scale: float) -> dict[str, np.ndarray]:
    """Condition number and centred share of every layer's attention output, (seeds, depth)."""
    numbers = Numbers(residual=FLAGS[residual], scale_v=scale, scale_2=scale, token_scale=1.0)
    condition, share = _depths(keys_of(num_seeds), _as_arrays(numbers), sizes=DEEP)
    return {"condition": np.asarray(condition), "share": np.asarray(share)}


# ---------------------------------------------------------------------------------- certificates


CERTIFIED = Sizes(num_samples=3, num_tokens=4, width=32)
"""Sizes at which theorem D has something to say, tokens of variance 1 / dim."""
SMALL = Numbers(scale_qk=0.5, scale_v=0.3, scale_1=0.5, scale_2=0.3, token_scale=32**-0.5)


@functools.partial(jax.jit, static_argnames="sizes")
def _radius(keys: Array, numbers: Numbers, share: Array, *, sizes: Sizes) -> dict[str, Array]:
    def one(key: Array) -> dict[str, Array]:
        start = begin(key, sizes, numbers)
        X = start.problem.X
        norms = bounds.measure(start.params, X, start.form)
        low = bounds.smallest(jacobian(start.model, X)(start.params))
        ball = bounds.ball_at(norms, X.shape[1], start.form, sigma_J=low)
        top, _ = descent.largest_residual(ball)
        best, _ = descent.smallest_ball(ball, share * top)
        step = descent.largest_step(best, share * top)
        size = norm_fro(predict(start.model, start.params, X))
        return {
            "absolute": top,
            "relative": top / size,
            "step": step,
            "lost": descent.Split().c * step * best.alpha**2,
            "lambda_min": low**2,
        }

    return jax.lax.map(one, keys)


def radius(
    num_seeds: int, sizes: Sizes, numbers: Numbers, share: float = 1.0
) -> dict[str, np.ndarray]:
    """How large an initial residual theorem D certifies, absolute and over the output's size.

    Step and rate are those for a residual of that size, or of a share of it.
    """
    found = _radius(keys_of(num_seeds), _as_arrays(numbers), jnp.asarray(share), sizes=sizes)
    return {name: np.asarray(values) for name, values in found.items()}


# ------------------------------------------------------------------------------------ step sizes


SHARES = tuple(np.geomspace(0.05, 10, 24).tolist())


def step_limits(num_seeds: int, sizes: Sizes, numbers: Numbers, num_steps: int) -> np.ndarray:
    """Longest step (as a share of 2 / sharpness at the start) up to which runs end below it."""
    top = sharpness(num_seeds, sizes, numbers)
    limits = []
    for seed in range(num_seeds):
        steps = np.array(SHARES) * 2 / top[seed]
        risk, _ = _train(
            keys_of(num_seeds)[seed : seed + 1],
            _as_arrays(numbers),
            jnp.asarray(steps),
            sizes=sizes,
            num_steps=num_steps,
            every=num_steps,
        )
        fine = np.asarray(risk[0, :, -1] < risk[0, :, 0])
        count = int(np.argmin(fine)) if not fine.all() else len(fine)
        limits.append(SHARES[count - 1] if count else np.nan)
    return np.array(limits)


def best_steps(risk: np.ndarray) -> np.ndarray:
    """Lowest last risk over step sizes, over the first; runs that diverged do not count."""
    last = np.where(np.isfinite(risk[:, :, -1]), risk[:, :, -1], np.inf)
    return last.min(axis=1) / risk[:, 0, 0]
