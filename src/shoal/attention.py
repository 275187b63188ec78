"""Attention kernels: scores in, weights out. A new kernel is one function."""

import jax
import jax.numpy as jnp

from shoal._typing import Array, Float


def softmax(scores: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    r"""Softmax over keys, $B_{ij} = e^{s_{ij}} / \sum_k e^{s_{ik}}$ (row maximum subtracted).

    >>> softmax(jnp.zeros((2, 2))).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    return jax.nn.softmax(scores, axis=-1)


def softmax_pullback(
    B: Float[Array, "*batch n n"], T: Float[Array, "*batch n n"]
) -> Float[Array, "*batch n n"]:
    r"""Transpose of softmax's derivative at weights $B$: rows $(\mathrm{diag}\,b - bb^\top)\,t$."""
    weighted = B * T
    return weighted - B * jnp.sum(weighted, axis=-1, keepdims=True)
