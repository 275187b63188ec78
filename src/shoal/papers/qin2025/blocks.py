r"""The single-head residual Transformer of any depth.

$$S=\mathrm{softmax}(\mathrm{score}\cdot XW_QW_K^\top X^\top),\quad
A=\epsilon_aX+s\,SXW_V,\quad \Phi=\phi(AW_1),\quad H=\epsilon_fA+s\,\Phi W_2,$$

block after block with $X\leftarrow H$, and the output $F=HW_U$ of the last. $A$ is the attention
layer's output, whose singular values the paper speaks of. The flags $\epsilon_a,\epsilon_f$ are 1
or 0; the branch scale $s$ is 1, or $1/\sqrt L$ at depth $L$.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Float, PRNGKeyArray, Scalar
from shoal.attention import softmax
from shoal.models import Model

AWAY = -1e9
"""Score of a token that must not be seen."""

LARGE = 2**11
"""Tokens times hidden units, from which on the blocks are compiled one by one."""


class Activation(NamedTuple):
    r"""A function with $\phi'\ge$ ``slope``, $|\phi'|\le$ ``steep`` and $|\phi''|\le$ ``bend``."""

    value: Callable[[Array], Array]
    slope: float  # 0 if the derivative may be negative
    bend: float  # infinite if there is a kink
    steep: float = 1.0


def activation(name: str, slope: float) -> Activation:
    """The activation of a name; ``slope`` is that of the leaky ones to the left.

    >>> smooth = activation("smooth_leaky", 0.3)
    >>> round(float(smooth.value(jnp.asarray(0.0))), 12), smooth.bend
    (0.0, 0.175)
    """
    if name == "smooth_leaky":
        return Activation(
            lambda x: slope * x + (1 - slope) * (jax.nn.softplus(x) - math.log(2)),
            slope,
            (1 - slope) / 4,
        )
    never = float("inf")
    return {
        "relu": Activation(jax.nn.relu, 0.0, never),
        "leaky": Activation(lambda x: jnp.where(x > 0, x, slope * x), slope, never),
        # phi'(sqrt 2) and phi''(0), rounded up
        "gelu": Activation(
            lambda x: jax.nn.gelu(x, approximate=False), 0.0, 0.7978845609, 1.1289041452
        ),
    }[name]


class Form(NamedTuple):
    """Everything about the network but its weights and sizes."""

    activation: Activation
    residual_attention: Scalar = 1.0
    residual_feedforward: Scalar = 1.0
    branch: Scalar = 1.0  # s
    score: Scalar = 1.0  # what scores are multiplied by
    output: str = "tokens"  # or `mean` over tokens, or `whole` (all tokens in one long vector)
    causal: bool = False
    norm: bool = False  # each branch sees tokens of mean 0 and variance 1


class Weights(NamedTuple):
    """Parameters, and nothing else: the blocks' along a leading axis of depth."""

    W_Q: Float[Array, "*lead L d k"]
    W_K: Float[Array, "*lead L d k"]
    W_V: Float[Array, "*lead L d d"]
    W_1: Float[Array, "*lead L d m"]
    W_2: Float[Array, "*lead L m d"]
    W_U: Float[Array, "*lead e c"]


BLOCKS = Weights._fields[:-1]


def shapes(
    num_layers: int, dim: int, key_dim: int, width: int, out_dim: int, *, seen: int | None = None
) -> Any:
    """Shapes of all weights; ``seen`` is what the last map sees (the dim, unless told)."""
    listed = {
        "W_Q": (num_layers, dim, key_dim),
        "W_K": (num_layers, dim, key_dim),
        "W_V": (num_layers, dim, dim),
        "W_1": (num_layers, dim, width),
        "W_2": (num_layers, width, dim),
        "W_U": (dim if seen is None else seen, out_dim),
    }
    spec: Any = {k: jax.ShapeDtypeStruct(v, jnp.float64) for k, v in listed.items()}
    return Weights(**spec)


def _normed(X: Float[Array, "n d"]) -> Float[Array, "n d"]:
    centred = X - jnp.mean(X, axis=1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=1, keepdims=True) + 1e-5)


class Layer(NamedTuple):
    """What one block makes of a sequence."""

    S: Float[Array, "*lead n n"]
    A: Float[Array, "*lead n d"]
    Phi: Float[Array, "*lead n m"]
    H: Float[Array, "*lead n d"]


def block(W: Weights, X: Float[Array, "n d"], form: Form) -> Layer:
    """One block; ``W`` without the axis of depth."""
    see = _normed if form.norm else lambda x: x
    x = see(X)
    scores = form.score * (x @ W.W_Q) @ (x @ W.W_K).T
    if form.causal:
        scores = jnp.where(jnp.tri(len(X), dtype=bool), scores, AWAY)
    S = softmax(scores)
    A = form.residual_attention * X + form.branch * (S @ (x @ W.W_V))
    Phi = form.activation.value(see(A) @ W.W_1)
    H = form.residual_feedforward * A + form.branch * (Phi @ W.W_2)
    return Layer(S, A, Phi, H)


def layers(params: Weights, X: Float[Array, "n d"], form: Form) -> Layer:
    """What every block makes of a sequence, depth in front."""

    def step(x: Array, W: Weights) -> tuple[Array, Layer]:
        found = block(W, x, form)
        return found.H, found

    return jax.lax.scan(step, X, params._replace(W_U=None))[1]  # type: ignore[arg-type]


def read_out(params: Weights, H: Float[Array, "n d"], form: Form) -> Array:
    """Outputs from the last block's tokens."""
    if form.output == "mean":
        return jnp.mean(H, axis=0) @ params.W_U
    return H.ravel() @ params.W_U if form.output == "whole" else H @ params.W_U


def transformer(spec: Any, form: Form) -> Model:
    """The model."""

    def apply(params: Weights, X: Float[Array, "n d"]) -> Array:
        def step(x: Array, W: Weights) -> tuple[Array, None]:
            return block(W, x, form).H, None

        stacked: Any = params._replace(W_U=None)  # type: ignore[arg-type]
        # a loop over the blocks compiles faster; without one, large blocks run faster
        unroll = len(X) * params.W_1.shape[-1] >= LARGE
        H = jax.lax.scan(step, X, stacked, unroll=unroll)[0]
        return read_out(params, H, form)

    return Model(spec, apply)


# ----------------------------------------------------------------------------- initialisations


def gaussian(key: PRNGKeyArray, spec: Any, scales: dict[str, Any]) -> Weights:
    """Independent Gaussians of variance scale² / fan_in; a map goes from rows to columns."""
    keys = jax.random.split(key, len(spec))
    drawn = {
        name: scales[name] / s.shape[-2] ** 0.5 * jax.random.normal(k, s.shape, s.dtype)
        for k, (name, s) in zip(keys, spec._asdict().items(), strict=True)
    }
    return Weights(**drawn)


def orthogonal(key: PRNGKeyArray, spec: Any, scales: dict[str, Any]) -> Weights:
    """Scale times orthonormal columns (rows, if a matrix is wide): every singular value is it."""
    keys = jax.random.split(key, len(spec))

    def draw(key: PRNGKeyArray, shape: tuple[int, ...], scale: Any) -> Array:
        *lead, rows, columns = shape
        tall = (*lead, max(rows, columns), min(rows, columns))
        Q, R = jnp.linalg.qr(jax.random.normal(key, tall, float))
        Q = Q * jnp.sign(jnp.diagonal(R, axis1=-2, axis2=-1))[..., None, :]
        return scale * (Q if rows >= columns else jnp.swapaxes(Q, -1, -2))

    drawn = {
        name: draw(k, s.shape, scales[name])
        for k, (name, s) in zip(keys, spec._asdict().items(), strict=True)
    }
    return Weights(**drawn)
