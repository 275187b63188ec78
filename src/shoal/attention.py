"""Attention kernels: scores in, weights out. A new kernel is one function."""

import jax
import jax.numpy as jnp

from shoal._typing import Array, Float, Scalar


def softmax(scores: Float[Array, "*batch n m"]) -> Float[Array, "*batch n m"]:
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


# ------------------------------------------------------- kernels of queries and keys (song2024)

Mask = Float[Array, " n"] | Float[Array, "n n"] | None
"""1 for a token, 0 for padding; nobody attends to padding. A matrix: which query sees which key."""


def dot_scores(Q: Float[Array, "*h n k"], K: Float[Array, "*h m k"]) -> Float[Array, "*h n m"]:
    r"""Scaled products, $QK^\top/\sqrt d$ with $d$ the width of queries and keys."""
    return Q @ jnp.swapaxes(K, -1, -2) / Q.shape[-1] ** 0.5


DIFFERENCES = 2**20
"""Numbers in the differences of queries and keys up to which they are formed."""


def distance_scores(
    Q: Float[Array, "*h n k"], K: Float[Array, "*h m k"], bandwidth: Scalar
) -> Float[Array, "*h n m"]:
    r"""Scores of a Gaussian, $-\lVert q_i-k_j\rVert^2/2\tau$.

    From differences, so that nearly equal queries and keys lose no digits. Where these are too
    many, through products; then rounding can make a squared distance slightly negative: the value
    is cut at 0, while derivatives pass as if it were not (at tied queries and keys a cut would lose
    the second derivative).
    """
    if Q.size * K.shape[-2] <= DIFFERENCES:
        apart = Q[..., :, None, :] - K[..., None, :, :]
        return -jnp.sum(apart**2, axis=-1) / (2 * bandwidth)
    squares = jnp.sum(Q**2, axis=-1)[..., :, None] + jnp.sum(K**2, axis=-1)[..., None, :]
    scores = (Q @ jnp.swapaxes(K, -1, -2) - squares / 2) / bandwidth
    return scores + jax.lax.stop_gradient(jnp.minimum(scores, 0) - scores)


MASKED_SCORE = -1e9
"""Score of padding under a softmax: its weight is zero, and rows of nothing else stay finite."""


def _masked(scores: Float[Array, "*h n m"], mask: Mask, masked: float) -> Float[Array, "*h n m"]:
    if mask is None:
        return scores
    shape = (1,) * (scores.ndim - mask.ndim) + mask.shape
    return jnp.where(mask.reshape(shape) > 0, scores, masked)


def softmax_kernel(Q: Array, K: Array, _bandwidth: Scalar, mask: Mask = None) -> Array:
    r"""$\mathrm{softmax}(QK^\top/\sqrt d)$; the bandwidth plays no part."""
    return softmax(_masked(dot_scores(Q, K), mask, MASKED_SCORE))


def gaussian_kernel(Q: Array, K: Array, bandwidth: Scalar, mask: Mask = None) -> Array:
    r"""$\exp(-\lVert q_i-k_j\rVert^2/2\tau)$, not normalised: a row may sum to anything up to n."""
    return jnp.exp(_masked(distance_scores(Q, K, bandwidth), mask, -jnp.inf))


def normalised_gaussian_kernel(Q: Array, K: Array, bandwidth: Scalar, mask: Mask = None) -> Array:
    r"""The Gaussian with rows that sum to 1: softmax whose keys have a bias $-|k|^2/2\tau$."""
    return softmax(_masked(distance_scores(Q, K, bandwidth), mask, MASKED_SCORE))


def mean_gaussian_kernel(Q: Array, K: Array, bandwidth: Scalar, mask: Mask = None) -> Array:
    """The Gaussian over the number of tokens: a row sums to at most 1, and to anything below."""
    return gaussian_kernel(Q, K, bandwidth, mask) / K.shape[-2]


def exponential_kernel(Q: Array, K: Array, _bandwidth: Scalar, mask: Mask = None) -> Array:
    r"""$\exp(QK^\top/\sqrt d)$: softmax without its normalisation."""
    return jnp.exp(_masked(dot_scores(Q, K), mask, -jnp.inf))


KERNELS = {
    "softmax": softmax_kernel,
    "gaussian": gaussian_kernel,
    "normalised_gaussian": normalised_gaussian_kernel,
    "mean_gaussian": mean_gaussian_kernel,
    "exponential": exponential_kernel,
}
