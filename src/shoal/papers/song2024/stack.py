r"""The layer of the theory, stacked: one to a few layers, with and without residual connections.

$$X\leftarrow\epsilon X+\sum_hS_hXW_V^hW_I^h\quad\text{for all layers but the last},\qquad
M=\sum_hS_hXW_V^hW_O^h .$$

The last layer is that of the theory (`layer`), so one layer is that layer whatever $\epsilon$ is.
The paper's theorems are about one layer; how layers are stacked is ours.
"""

from typing import NamedTuple

import jax.numpy as jnp

from shoal._typing import Array, Float
from shoal.papers.song2024 import layer
from shoal.papers.song2024.layer import Form


class Weights(NamedTuple):
    """Parameters; the first axis is the layer, then the head."""

    W_Q: Float[Array, "L H D k"]
    W_K: Float[Array, "L H D k"]
    W_V: Float[Array, "L H D v"]
    W_I: Float[Array, "l H v D"]  # From values back to tokens, for all layers but the last.
    W_O: Float[Array, "H v p"]


def one_layer(params: Weights, index: int) -> layer.Weights:
    """The weights of one layer."""
    last = index == len(params.W_Q) - 1
    W_O = params.W_O if last else params.W_I[index]
    return layer.Weights(params.W_Q[index], params.W_K[index], params.W_V[index], W_O)


def last_tokens(
    params: Weights, x: Float[Array, "n D"], form: Form, residual: float
) -> Float[Array, "n D"]:
    """What the last layer sees of a sequence."""
    for index in range(len(params.W_Q) - 1):
        x = residual * x + layer.outputs(one_layer(params, index), x, form)
    return x


def outputs(
    params: Weights, x: Float[Array, "n D"], form: Form, residual: float
) -> Float[Array, "n p"]:
    """The last layer's output: one row for each token of a sequence."""
    x = last_tokens(params, x, form, residual)
    return layer.outputs(one_layer(params, len(params.W_Q) - 1), x, form)


def feature_matrix(
    params: Weights, X: Float[Array, "N n D"], form: Form, residual: float
) -> Float[Array, "R C"]:
    r"""$B=[S_1X|\dots|S_HX]$ of the last layer, $X$ the tokens that it sees."""
    seen = jnp.stack([last_tokens(params, x, form, residual) for x in X])
    return layer.feature_matrix(one_layer(params, len(params.W_Q) - 1), seen, form)
