r"""The single-head residual Transformer of any depth.

$$S=\mathrm{softmax}(\mathrm{score}\cdot XW_QW_K^\top X^\top),\quad
A=\epsilon_aX+s\,SXW_V,\quad \Phi=\phi(AW_1),\quad H=\epsilon_fA+s\,\Phi W_2,$$

one block after the other with $X\leftarrow H$; the output is $F=HW_U$ of the last. $A$ is the
attention layer's output, whose singular values the paper is about. The switches
$\epsilon_a,\epsilon_f$ are 1 or 0; the branch scale $s$ is 1, or $1/\sqrt L$ at depth $L$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import fused, linalg
from shoal._typing import Any, Array, Callable, Float, PRNGKeyArray, Scalar
from shoal.activations import centred_softplus
from shoal.attention import MASKED_SCORE, softmax
from shoal.models import with_gradient

UNROLL_FROM = 2**11
"""Tokens times hidden units from which on the loop over the blocks is unrolled."""


class Activation(NamedTuple):
    r"""A function $\phi$ with bounds of its derivatives."""

    value: Callable[[Array], Array]
    min_slope: Scalar  # Lower bound of the derivative; 0 if the derivative may be negative.
    curvature: Scalar  # Bound of the second derivative; infinite if there is a kink.
    max_slope: float = 1.0  # Bound of the derivative's absolute value.
    left: Scalar | None = None  # Slope to the left of a (smooth) leaky ReLU; None: another one.
    smooth: bool = False


def activation(name: str, slope: Scalar) -> Activation:
    """The activation of a name; ``slope`` is that of the leaky ones to the left.

    >>> smooth = activation("smooth_leaky", 0.3)
    >>> round(float(smooth.value(jnp.asarray(0.0))), 12), smooth.curvature
    (0.0, 0.175)
    """
    rest = 1 - slope  # here, and so outside of training loops (see `lab.setting.derived`)
    if name == "smooth_leaky":
        return Activation(
            lambda x: slope * x + rest * centred_softplus(x), slope, rest / 4,
            left=slope, smooth=True,
        )  # fmt: skip
    kink = float("inf")
    return {
        "relu": Activation(jax.nn.relu, 0.0, kink, left=0.0),
        "leaky": Activation(lambda x: jnp.where(x > 0, x, slope * x), slope, kink, left=slope),
        # not approximated; phi''(0) and phi'(sqrt 2), rounded up
        "gelu": Activation(lambda x: jax.nn.gelu(x, False), 0.0, 0.7978845609, 1.1289041452),
    }[name]


class Form(NamedTuple):
    """Everything about the network but its weights and sizes."""

    activation: Activation
    residual_attention: float = 1.0
    residual_feed_forward: float = 1.0
    branch: float = 1.0  # The branch scale s.
    score: Scalar = 1.0  # What scores are multiplied by.
    output: str = "tokens"  # Or `mean` over tokens, or `whole`: all tokens as one long vector.
    causal: bool = False
    norm: bool = False  # Each branch sees tokens of mean 0 and variance 1.


class Weights(NamedTuple):
    """The parameters; those of the blocks have a leading axis of depth."""

    W_Q: Float[Array, "*lead L d k"]
    W_K: Float[Array, "*lead L d k"]
    W_V: Float[Array, "*lead L d d"]
    W_1: Float[Array, "*lead L d m"]
    W_2: Float[Array, "*lead L m d"]
    W_U: Float[Array, "*lead e c"]


BLOCKS = Weights._fields[:-1]


class Layer(NamedTuple):
    """What one block makes of a sequence."""

    S: Float[Array, "*lead n n"]
    A: Float[Array, "*lead n d"]
    Phi: Float[Array, "*lead n m"]
    H: Float[Array, "*lead n d"]


def _normed(X: Float[Array, "n d"]) -> Float[Array, "n d"]:
    centred = X - jnp.mean(X, axis=1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=1, keepdims=True) + 1e-5)


def block(W: Weights, X: Float[Array, "n d"], form: Form) -> Layer:
    """One block; ``W`` has no axis of depth."""
    see = _normed if form.norm else lambda x: x
    x = see(X)
    scores = form.score * (x @ W.W_Q) @ (x @ W.W_K).T
    if form.causal:
        scores = jnp.where(jnp.tri(len(X), dtype=bool), scores, MASKED_SCORE)
    S = softmax(scores)
    A = form.residual_attention * X + form.branch * (S @ (x @ W.W_V))
    Phi = form.activation.value(see(A) @ W.W_1)
    H = form.residual_feed_forward * A + form.branch * (Phi @ W.W_2)
    return Layer(S, A, Phi, H)


def layers(params: Weights, X: Float[Array, "n d"], form: Form) -> Layer:
    """What every block makes of a sequence, with a leading axis of depth."""

    def step(x: Array, W: Weights) -> tuple[Array, Layer]:
        found = block(W, x, form)
        return found.H, found

    return jax.lax.scan(step, X, params._replace(W_U=None))[1]  # type: ignore[arg-type]


def outputs(params: Weights, X: Float[Array, "n d"], form: Form) -> Float[Array, "..."]:
    """The network's output for one sequence."""

    def step(x: Array, W: Weights) -> tuple[Array, None]:
        return block(W, x, form).H, None

    stacked: Any = params._replace(W_U=None)  # type: ignore[arg-type]
    # a loop over the blocks compiles faster; without one, large blocks run faster
    unroll = len(X) * params.W_1.shape[-1] >= UNROLL_FROM
    H = jax.lax.scan(step, X, stacked, unroll=unroll)[0]
    if form.output == "mean":
        return jnp.mean(H, axis=0) @ params.W_U
    return H.ravel() @ params.W_U if form.output == "whole" else H @ params.W_U


Squares = Callable[[Weights, Float[Array, "N n d"], Float[Array, "..."]], Float[Array, ""]]


def fused_squares(form: Form) -> tuple[Squares, Squares]:
    """Sum of squared errors: with its gradient in one pass over the samples, and alone.

    By C code (`shoal.fused`), or by the formula where there is none.
    """

    def blocks(params: Weights) -> fused.Blocks:
        return fused.Blocks._make([*(W[:, None] for W in params[:3]), *params[3:]])

    kind = fused.Kind(
        form.score,
        residual_attention=form.residual_attention,
        residual_feed_forward=form.residual_feed_forward,
        branch=form.branch,
        slope=0.0 if form.activation.left is None else form.activation.left,
        causal=form.causal,
        smooth=form.activation.smooth,
    )

    def plain(params: Weights, X: Any, Y: Any) -> Float[Array, ""]:
        found = jax.vmap(outputs, in_axes=(None, 0, None))(params, X, form)
        return jnp.sum((found - Y) ** 2)

    def both(params: Weights, X: Array, Y: Array) -> tuple[Array, Weights]:
        value, slope = fused.squares(blocks(params), X, Y, kind)
        return value, Weights._make([*(W[:, 0] for W in slope[:3]), *slope[3:]])

    def alone(params: Weights, X: Array, Y: Array) -> Float[Array, ""]:
        return fused.value(blocks(params), X, Y, kind)

    if form.output != "tokens" or form.norm or form.activation.left is None:
        return plain, plain
    return fused.where_usable(with_gradient(both), alone, plain, blocks)


# ------------------------------------------------------------------- initial weights and tokens


def gaussian(key: PRNGKeyArray, shape: tuple[int, ...], scale: Scalar) -> Array:
    """Independent Gaussians of variance scale² / fan_in; a map goes from rows to columns."""
    return scale / shape[-2] ** 0.5 * jax.random.normal(key, shape, float)


def orthogonal(key: PRNGKeyArray, shape: tuple[int, ...], scale: Scalar) -> Array:
    """Orthonormal columns (rows, if a matrix is wide): every singular value is the scale."""
    *lead, rows, columns = shape
    tall = (*lead, max(rows, columns), min(rows, columns))
    Q, R = jnp.linalg.qr(jax.random.normal(key, tall, float))
    Q = Q * jnp.sign(jnp.diagonal(R, axis1=-2, axis2=-1))[..., None, :]
    return scale * (Q if rows >= columns else jnp.swapaxes(Q, -1, -2))


def tokens(
    key: PRNGKeyArray, shape: tuple[int, int, int], scale: Scalar, correlation: Scalar
) -> Float[Array, "N n d"]:
    """Gaussian tokens; those of a sequence share a part, so that any two are correlated."""
    N, _, d = shape
    key_own, key_shared = jax.random.split(key)
    own = jax.random.normal(key_own, shape, float)
    shared = jax.random.normal(key_shared, (N, 1, d), float)
    return scale * (jnp.sqrt(1 - correlation) * own + jnp.sqrt(correlation) * shared)


def conditioned(X: Float[Array, "N n d"], condition: Scalar) -> Float[Array, "N n d"]:
    """The same directions; stacked tokens get singular values spread evenly in logarithm."""
    N, n, d = X.shape
    U, s, Vt = jnp.linalg.svd(X.reshape(N * n, d), full_matrices=False)
    wanted = jnp.logspace(0.0, -1.0, N * n) ** jnp.log10(condition)
    wanted = wanted * jnp.sqrt(jnp.sum(s**2) / jnp.sum(wanted**2))
    return ((U * wanted[None]) @ Vt).reshape(N, n, d)


# ---------------------------------------------------------------------------------- conditioning


def conditioning(A: Float[Array, "rows d"]) -> dict[str, Float[Array, ""]]:
    r"""Singular values, condition number and ranks of one matrix.

    $\sigma_{\min}$ is taken over the rows, so it is 0 if there are more rows than columns. The
    condition number is infinite there, and wherever it is beyond what float64 resolves.
    """
    sigma = linalg.singular_values(A)
    low = linalg.sigma_min(A, sigma=sigma)
    rounding = float(jnp.finfo(A.dtype).eps) * max(A.shape) * sigma[0]
    return {"sigma_min": low, "sigma_max": sigma[0]} | {
        "condition": jnp.where(low > rounding, sigma[0] / jnp.where(low > 0, low, 1), jnp.inf),
        "rank": jnp.sum(sigma > rounding) * 1.0,
        "stable_rank": jnp.sum(sigma**2) / sigma[0] ** 2,
    }


def centred_share(A: Float[Array, "N n d"]) -> Float[Array, ""]:
    r"""Share of the tokens that is not their mean, $\lVert A-1\bar a\rVert/\lVert A\rVert$."""
    return linalg.norm_fro(A - jnp.mean(A, axis=1, keepdims=True)) / linalg.norm_fro(A)


def token_cosine(A: Float[Array, "N n d"]) -> Float[Array, ""]:
    """Mean cosine between different tokens of a sequence; 1 if there is only one token."""
    n = A.shape[1]
    length = jnp.linalg.norm(A, axis=2, keepdims=True)
    unit = A / jnp.where(length > 0, length, 1)
    total = jnp.sum(jnp.sum(unit, axis=1) ** 2, axis=1) - jnp.sum(unit**2, axis=(1, 2))
    return jnp.mean(total) / (n * (n - 1)) if n > 1 else jnp.ones(())
