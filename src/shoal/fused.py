"""Squared errors of attention blocks with their gradient in one pass, by code in C.

The formulas are those of the papers (`song2024.layer`, `qin2025.blocks`); a model calls this where
`usable` says so and its formula elsewhere. Tests compare the two.
"""

import ctypes
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import native
from shoal._typing import Any, Array, Callable, Float, Scalar

SOURCE = Path(__file__).with_name("attention_blocks.c")


class Blocks(NamedTuple):
    """Weights of blocks: attention by heads, then hidden units, and what reads the outputs.

    Without hidden units ``W_1`` and ``W_2`` have none; without a last map ``W_U`` has no rows.
    """

    W_Q: Float[Array, "L H D k"]
    W_K: Float[Array, "L H D k"]
    W_V: Float[Array, "L H D p"]
    W_1: Float[Array, "L D m"]
    W_2: Float[Array, "L m p"]
    W_U: Float[Array, "r c"]


class Kind(NamedTuple):
    """How blocks are put together; numbers may be traced."""

    score: Scalar  # Scores are products times this, or squared distances times minus this.
    weight: Scalar = 1.0  # Attention weights are multiplied by this.
    residual_attention: Scalar = 0.0
    residual_feed_forward: Scalar = 0.0
    branch: Scalar = 1.0
    slope: Scalar = 0.0  # Of the activation to the left.
    distances: bool = False
    softmax: bool = True  # Else exponentials that are not divided by their sum.
    causal: bool = False
    smooth: bool = False  # The activation: smooth leaky ReLU, else leaky ReLU.


def _kernel(handler: str, weights: Any, X: Any, kind: Any) -> tuple[str, int] | None:
    """The name of the code in C and the numbers it works in, if it can be used here."""
    found = native.kernel(SOURCE, handler, str(kind))
    if found is None:
        return None
    name, library = found
    N, n, D = X.shape
    L, H, _, k = weights.W_Q.shape
    sizes = N, n, D, weights.W_U.shape[1], L, H, k, *weights.W_V.shape[3:], weights.W_1.shape[2]
    needed = library.attention_blocks_room
    needed.restype, needed.argtypes = ctypes.c_int64, [ctypes.c_int64 * 10]
    room = needed((ctypes.c_int64 * 10)(*sizes, weights.W_U.shape[0]))
    return (name, room) if room <= native.LARGEST else None


def usable(weights: Blocks, X: Float[Array, "N n D"]) -> bool:
    """Whether the code in C can be used for these shapes on this machine."""
    return _kernel("attention_blocks", weights, X, jnp.result_type(X, *weights)) is not None


def squares(
    weights: Blocks, X: Float[Array, "N n D"], Y: Float[Array, "N n c"], kind: Kind
) -> tuple[Float[Array, ""], Blocks]:
    """The sum of squared errors and its gradient."""
    value, *gradient = _called("attention_blocks", weights, X, Y, kind)
    return value, Blocks(*gradient)


def value(
    weights: Blocks, X: Float[Array, "N n D"], Y: Float[Array, "N n c"], kind: Kind
) -> Float[Array, ""]:
    """The sum of squared errors alone."""
    return _called("attention_blocks_value", weights, X, Y, kind)[0]


Squares = Callable[[Any, Array, Array], Float[Array, ""]]
"""Parameters, inputs and targets in, the sum of squared errors out."""


def where_usable(
    gradient: Squares, alone: Squares, plain: Squares, blocks: Callable[[Any], Blocks]
) -> tuple[Squares, Squares]:
    """The two ways in C where these can be used, else the formula."""

    def choose(way: Squares) -> Squares:
        def squares(params: Any, X: Any, Y: Any) -> Float[Array, ""]:
            X, Y = jnp.asarray(X), jnp.asarray(Y)  # data may be NumPy arrays
            return (way if usable(blocks(params), X) else plain)(params, X, Y)

        return squares

    return choose(gradient), choose(alone)


def _called(handler: str, weights: Blocks, X: Array, Y: Array, kind: Kind) -> list[Array]:
    dtype = jnp.result_type(X, Y, *weights)
    found = _kernel(handler, weights, X, dtype)
    assert found is not None, "ask usable() first"
    name, room = found
    numbers = jnp.stack([jnp.asarray(x, dtype) for x in kind[:6]])
    choices = jnp.array(kind[6:], jnp.int32)
    gradients = [W.shape for W in weights] if handler == "attention_blocks" else []
    out = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((), *gradients, (room,))]
    given = [x.astype(dtype) for x in (X, Y, *weights)]
    call = jax.ffi.ffi_call(name, out, vmap_method="broadcast_all")
    return list(call(*given, numbers, choices))[:-1]
