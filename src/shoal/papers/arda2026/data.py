"""Data of arda2026: tokens in the unit ball with a teacher's labels, and autoregressive series.

Functions take the setting: an `Arda` of ``model.py``.
"""

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Float, PRNGKeyArray
from shoal.lab.setup import DATA, WEIGHTS, key_of
from shoal.papers.arda2026 import heads, teachers
from shoal.papers.arda2026.heads import Weights
from shoal.problems import Problem, gaussian_labels, gaussian_tokens

COEFFICIENT, NOISE = 0.9, 0.1
"""Of the series: the weight of the value one lag ago, and the variance of the noise."""
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
    """Sequences in a ball, with their queries if these are not the last tokens."""
    X = setting.token_norm * clipped(gaussian_tokens(key, num_samples, num_tokens, setting.dim))
    if setting.query == "last":
        return X
    # from the data's key, so that anchors and samples have the same query
    key_q = jax.random.fold_in(key_of(setting.data_seed, DATA), 9)
    q = jax.random.normal(key_q, (setting.dim,), float)
    return X, jnp.broadcast_to(q / jnp.linalg.norm(q), (num_samples, setting.dim))


def anchors(setting: Any) -> Any:
    """The inputs at which the paper's teacher looks; never those of training."""
    key = jax.random.fold_in(key_of(setting.data_seed, DATA), 1)
    return _tokens(key, setting, setting.num_anchors, setting.anchor_tokens)


def teacher(setting: Any, params: Weights) -> Weights:
    """The paper's transport at given heads."""
    return teachers.of_anchors(params, anchors(setting), setting.teacher_norm, setting.sigma)


def own_heads(setting: Any) -> Weights:
    """The student's heads where its seed is ``data_seed``: the dual teacher is built on them."""
    key = key_of(setting.data_seed, WEIGHTS)
    return heads.twins(key, heads.shapes(setting.num_heads, setting.dim))


def top_direction(setting: Any, params: Weights, inputs: Any) -> Float[Array, " N"]:
    """The top eigenvector of the tangent kernel."""
    K = sum(heads.tangent_kernels(inputs, setting.sigma)(params).values())
    return jnp.linalg.eigh(K)[1][:, -1]


def dual_transport(setting: Any, params: Weights, inputs: Any) -> Weights:
    """The dual-certified transport along the top eigenvector of the heads' tangent kernel."""
    beta = top_direction(setting, params, inputs)
    return teachers.dual(params, inputs, beta, setting.teacher_norm, setting.sigma)


def sequences(setting: Any, key: PRNGKeyArray, held_out: int = 0) -> Problem:
    """Tokens in a ball, labelled by a teacher of known norm or by chance.

    Of ``held_out`` samples, if given: other tokens, labelled by the same teacher.
    """
    key_X, key_y, key_pool = jax.random.split(key, 3)
    inputs = _tokens(key_X, setting, setting.num_samples, setting.num_tokens)
    seen, count = inputs, setting.num_samples
    if held_out:
        count, key_y = held_out, jax.random.fold_in(key_y, 1)
        seen = _tokens(jax.random.fold_in(key_X, 1), setting, count, setting.num_tokens)
    X, q = seen if isinstance(seen, tuple) else (seen, None)
    if setting.labels == "gaussian":
        return Problem(X, gaussian_labels(key_y, count, setting.label_scale), q)
    if setting.labels == "dual":
        taught = own_heads(setting)
        v = dual_transport(setting, taught, inputs)
    else:
        pool = heads.twins(key_pool, heads.shapes(2 * setting.pool, setting.dim))
        taught = Weights(*(leaf[: setting.pool] for leaf in pool))
        v = teacher(setting, taught)
    return Problem(X, teachers.labels(taught, v, seen, setting.sigma), q)


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
    r"""Sines and cosines of the position, frequencies $10000^{-k/8}$ for the $k$-th pair."""
    angle = jnp.arange(1.0, num_tokens + 1)[:, None] * 10000.0 ** (-jnp.arange(pairs) / 8)[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def autoregressive(setting: Any, key: PRNGKeyArray, count: int) -> Problem:
    """Windows of a series with channels of positions; the target is what comes next."""
    values = series(key, count, setting.num_tokens + 1, setting.lag)
    places = positions(setting.num_tokens, setting.channels)
    places = jnp.broadcast_to(places[None], (count, *places.shape))
    X = jnp.concatenate([values[:, :-1, None], places], axis=2)
    y = values[:, 1:, None] if setting.model == "causal" else values[:, -1]
    return Problem(clipped(X) if setting.clip else X, y)
