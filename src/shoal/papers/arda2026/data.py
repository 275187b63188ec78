"""Data of arda2026: tokens on the unit ball with a teacher's labels, and autoregressive series."""

import functools

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Float, PRNGKeyArray
from shoal.errors import InputError
from shoal.experiments import data_key
from shoal.papers.arda2026 import heads, teachers
from shoal.papers.arda2026.heads import ACTIVATIONS, Weights
from shoal.problems import Problem, gaussian_labels, gaussian_tokens

COEFFICIENT, NOISE = 0.9, 0.1
"""Of the series: the weight of the value a lag ago, and the variance of what is new."""
BAYES, TRIVIAL = NOISE, NOISE / (1 - COEFFICIENT**2)
"""Mean square error of the best prediction, and of predicting zero."""


def clipped(X: Float[Array, "N n d"]) -> Float[Array, "N n d"]:
    """Tokens longer than 1 are scaled down to 1.

    >>> clipped(jnp.array([[[3.0, 4.0], [0.0, 0.5]]])).round(3).tolist()
    [[[0.6, 0.8], [0.0, 0.5]]]
    """
    length = jnp.linalg.norm(X, axis=-1, keepdims=True)
    return X / jnp.maximum(length, 1.0)


def _tokens(key: PRNGKeyArray, setting: Any, num_samples: int, num_tokens: int) -> Any:
    """Sequences as the setting wants them, with their queries, if these are not the last token."""
    X = clipped(gaussian_tokens(key, num_samples, num_tokens, setting.dim))
    X = setting.token_norm * X
    if setting.query == "last":
        return X, None
    # one vector for all: not of this key, so that anchors ask like samples
    q = jax.random.normal(jax.random.fold_in(data_key(setting), 9), (setting.dim,), float)
    return X, jnp.broadcast_to(q / jnp.linalg.norm(q), (num_samples, setting.dim))


def _inputs(X: Array, q: Array | None) -> Any:
    return X if q is None else (X, q)


def anchors(setting: Any) -> Any:
    """The inputs at which the paper's teacher looks; never those of training."""
    key = jax.random.fold_in(data_key(setting), 1)
    return _inputs(*_tokens(key, setting, setting.num_anchors, setting.anchor_tokens))


def teacher(setting: Any, params: Weights) -> Weights:
    """The paper's transport at given heads."""
    activation = ACTIVATIONS[setting.activation]
    return teachers.of_anchors(params, anchors(setting), norms(setting), activation)


def norms(setting: Any) -> teachers.Radii:
    """Nominal norms of the teacher's transport, for c, U and W."""
    return tuple(map(float, setting.teacher_norm.split(",")))  # type: ignore[return-value]


def own_heads(setting: Any) -> Weights:
    """The student's heads at seed 0, on which the dual teacher is built."""
    key = jax.random.fold_in(jax.random.key(jnp.uint32(0)), 1)
    return heads.twins(key, heads.shapes(setting.num_heads, setting.dim))


def dual_transport(setting: Any, params: Weights, inputs: Any) -> Weights:
    """The dual-certified transport, along the top eigenvector of the students' tangent kernel."""
    activation = ACTIVATIONS[setting.activation]
    K = sum(heads.tangent_kernels(inputs, activation)(params).values())
    return teachers.dual(params, inputs, jnp.linalg.eigh(K)[1][:, -1], norms(setting), activation)


def sequences(setting: Any) -> Problem:
    """Tokens within a ball, labelled by a teacher of known norm or by chance."""
    return _sequences(setting._replace(step_size=None, num_steps=1, every=1))


@functools.partial(jax.jit, static_argnums=0)
def _sequences(setting: Any) -> Problem:
    key = jax.random.fold_in(data_key(setting), 2)
    key_X, key_y, key_pool = jax.random.split(key, 3)
    X, q = _tokens(key_X, setting, setting.num_samples, setting.num_tokens)
    if setting.labels == "gaussian":
        return Problem(X, gaussian_labels(key_y, setting.num_samples, setting.label_scale), q)
    activation = ACTIVATIONS[setting.activation]
    if setting.labels == "dual":
        own = own_heads(setting)
        v = dual_transport(setting, own, _inputs(X, q))
        return Problem(X, teachers.labels(own, v, _inputs(X, q), activation), q)
    pool = heads.twins(key_pool, heads.shapes(2 * setting.pool, setting.dim))
    pool = Weights(*(leaf[: setting.pool] for leaf in pool))
    v = teacher(setting, pool)
    return Problem(X, teachers.labels(pool, v, _inputs(X, q), activation), q)


# -------------------------------------------------------------------------------- autoregressive


def series(key: PRNGKeyArray, count: int, length: int, lag: int) -> Float[Array, "N length"]:
    r"""Stationary $X_t=0.9X_{t-L}+\epsilon_t$: a chain for each residue of the time modulo $L$."""
    links = -(-length // lag)
    first, new = jax.random.split(key)
    start = TRIVIAL**0.5 * jax.random.normal(first, (count, lag), float)
    noise = NOISE**0.5 * jax.random.normal(new, (links, count, lag), float)

    def advance(x: Array, e: Array) -> tuple[Array, Array]:
        return COEFFICIENT * x + e, x

    chains = jax.lax.scan(advance, start, noise)[1]
    return jnp.swapaxes(chains, 0, 1).reshape(count, -1)[:, :length]


def positions(num_tokens: int, pairs: int) -> Float[Array, "n channels"]:
    r"""Sines and cosines of the place, frequencies $10000^{-k/8}$ for the $k$-th pair."""
    angle = jnp.arange(1.0, num_tokens + 1)[:, None] * 10000.0 ** (-jnp.arange(pairs) / 8)[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def autoregressive(setting: Any, *, held_out: bool) -> Problem:
    """Windows of a series with channels of positions; to predict: what comes next."""
    key = jax.random.fold_in(data_key(setting), 4 if held_out else 3)
    count = setting.test_samples if held_out else setting.num_samples
    n = setting.num_tokens
    values = series(key, count, n + 1, setting.lag)
    places = jnp.broadcast_to(
        positions(n, setting.channels)[None], (count, n, 2 * setting.channels)
    )
    X = jnp.concatenate([values[:, :n, None], places], axis=2)
    X = clipped(X) if setting.clip else X
    return Problem(X, values[:, 1:, None] if setting.model == "causal" else values[:, -1])


def require_lag(setting: Any) -> None:
    """Refuse a window that cannot hold what decides the next value."""
    if setting.lag >= setting.num_tokens:
        msg = (
            f"lag={setting.lag}, but a window has num_tokens={setting.num_tokens}; the lag must be "
            f"smaller: try num_tokens={setting.lag + 1}."
        )
        raise InputError(msg)
