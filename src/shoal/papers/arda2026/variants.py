r"""Variants of the model for its open questions: a recurrent network, a causal and a deep form.

The recurrent one is the IndRNN, $h_t=\sigma(wh_{t-1}+u^\top X_t)$ with $h_0=0$ for each of $m$
units and $f=m^{-1/2}\sum_ic_ih_T^i$ (Li et al. 2018; Cayci & Eryilmaz 2024). All start with twins
of opposite signs, so that the output is zero.
"""

from collections import namedtuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Float, PRNGKeyArray
from shoal.models import Model
from shoal.papers.arda2026 import heads
from shoal.papers.arda2026.heads import Activation, Weights, attention, spec_of, split

Units = namedtuple("Units", "w u c")
"""Parameters of ``m`` independent recurrent units: (m,), (m, d) and (m,)."""
Deep = namedtuple("Deep", "W U c inner_W inner_U inner_V")
"""The heads of the last layer, and of the ``L`` layers before it, which write vectors ``V``:
(L, m, d, d), (L, m, d) and (L, m, d)."""


def recurrent(num_units: int, dim: int, activation: Activation) -> Model:
    """The IndRNN: the state of a unit sees itself and the token."""

    def apply(params: Units, inputs: Any) -> Float[Array, ""]:
        x, _ = split(inputs)

        def step(h: Array, drive: Array) -> tuple[Array, None]:
            return activation.value(params.w * h + drive), None

        last = jax.lax.scan(step, jnp.zeros_like(params.w), x @ params.u.T)[0]
        return jnp.sum(params.c * last) / len(last) ** 0.5

    return Model(spec_of(Units, w=(num_units,), u=(num_units, dim), c=(num_units,)), apply)


def token_by_token(params: Units, x: Float[Array, "n d"]) -> Float[Array, ""]:
    """The output of the recurrent network (tanh), holding its state only, whatever the length."""

    def step(h: Array, token: Array) -> tuple[Array, None]:
        return jnp.tanh(params.w * h + params.u @ token), None

    last = jax.lax.scan(step, jnp.zeros_like(params.w), x)[0]
    return jnp.sum(params.c * last) / len(last) ** 0.5


def operations(num_units: int, dim: int, num_tokens: int) -> float:
    """Sums and products of `token_by_token`, an activation counted as one."""
    return num_tokens * num_units * (2.0 * dim + 3) + 2 * num_units


def causal(num_heads: int, dim: int, activation: Activation) -> Model:
    """One output per token: its query is the token, and it attends to that and earlier tokens."""

    def apply(params: Weights, inputs: Any) -> Float[Array, "n 1"]:
        x, _ = split(inputs)
        scores = jnp.einsum("sd,mde,te->mts", x, params.W, x)
        seen = jnp.tril(jnp.ones((len(x), len(x)), bool))
        alpha = jax.nn.softmax(jnp.where(seen[None], scores, -jnp.inf), axis=2)
        g = jnp.einsum("mts,sd,md->tm", alpha, x, params.U)
        return (activation.value(g) @ params.c / len(params.c) ** 0.5)[:, None]

    return Model(heads.shapes(num_heads, dim), apply)


def deep(num_layers: int, num_heads: int, dim: int, activation: Activation) -> Model:
    """Layers that add to a stream of tokens, each token its own query; then the usual heads."""
    L, m, d, last = num_layers - 1, num_heads, dim, heads.heads(num_heads, dim, activation)
    sizes = {"W": (m, d, d), "U": (m, d), "c": (m,)}
    spec = spec_of(Deep, **sizes, inner_W=(L, m, d, d), inner_U=(L, m, d), inner_V=(L, m, d))

    def add(x: Array, layer: tuple) -> tuple[Array, None]:
        W, U, V = layer
        a = jax.vmap(lambda q: attention(W, x, q) @ x)(x)  # tokens, heads, dim
        h = activation.value(jnp.einsum("tmd,md->tm", a, U))
        return x + h @ V / m**0.5, None

    def apply(params: Deep, inputs: Any) -> Float[Array, ""]:
        x, _ = split(inputs)
        x = jax.lax.scan(add, x, (params.inner_W, params.inner_U, params.inner_V))[0]
        return last.apply(Weights(params.W, params.U, params.c), x)

    return Model(spec, apply)


def deep_twins(key: PRNGKeyArray, spec: Any) -> Deep:
    """Twins in the last layer only; inner values of length about one."""
    key_last, *keys = jax.random.split(key, 4)
    last: Weights = heads.twins(key_last, Weights(*spec[:3]))
    W, U, V = (jax.random.normal(k, b.shape, b.dtype) for k, b in zip(keys, spec[3:], strict=True))
    return Deep(*last, W, U, V / V.shape[-1] ** 0.5)
