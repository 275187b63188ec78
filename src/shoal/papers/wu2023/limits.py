r"""The tangent kernel as the width grows.

With $\tau_0 = d_m^{-p}$, $p>\tfrac12$, attention becomes uniform and the kernel deterministic
(section 10 of ``docs/theory/wu2023.md``). With $p=\tfrac12$ the product $\tau_0W_Q^\top W_K$ tends
to a matrix $G$ of independent Gaussians of variance $\eta_Q\eta_K$: logits, and with them the
kernel, stay *random* at any width, so across seeds there is no limit kernel, only a limit
distribution.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal._typing import Array, Float, PRNGKeyArray
from shoal.attention import softmax
from shoal.errors import InputError
from shoal.lab.engine import per_start
from shoal.lab.setup import Setup
from shoal.papers.wu2023.model import Scales, Weights
from shoal.theory.arccosine import gated_covariance, relu_kernel, step_kernel

Blocks = dict[str, Float[Array, "N N"]]
"""A kernel, block by block."""


class RandomKernel(NamedTuple):
    """Mean and standard deviation over draws of the limit, by block."""

    mean: Blocks
    spread: Blocks


def uniform_limit(
    X: Float[Array, "N n d"], variances: Weights, scales: Scales, width: int
) -> Blocks:
    r"""Kernel for $p>\tfrac12$: uniform attention, data enter through the token means only.

    $K_O\to\tau_1^2d_m\eta_V(\kappa n)^2E[\mathrm{relu}\,\mathrm{relu}]$,
    $K_V\to\tau_1^2d_m\eta_O(\kappa n)^2E[1\,1]\circ\Phi\Phi^\top$, $K_Q, K_K\to0$. Where the
    prefactor grows with the width (LeCun, He), this is the leading term at the given width.
    """
    means = jnp.mean(X, axis=1)
    scale = (scales.output * scales.pool * X.shape[1]) ** 2 * width
    return {
        **dict.fromkeys(("W_Q", "W_K"), jnp.zeros((len(X), len(X)))),
        "W_V": scale * variances.w_O * step_kernel(means, means) * (means @ means.T),
        "w_O": scale * variances.W_V * relu_kernel(means, means),
    }


def kernel_given_scores(
    X: Float[Array, "N n d"], G: Float[Array, "d d"], variances: Weights, scales: Scales, width: int
) -> Blocks:
    r"""Limit for $p=\tfrac12$ given $G$; the query and key blocks are averaged over the rest.

    $K_Q+K_K\to(\eta_Q+\eta_K)\tau_1^2d_m\eta_O\eta_V\kappa^2\sum_{ij}(x_i\cdot x'_j)
    \mathrm{tr}(C_iE_{ij}C'_j)$ with $C_i=X^\top(\mathrm{diag}\,b_i-b_ib_i^\top)X$ and
    $E_{ij}=E[1\,1\,ww^\top]$ (`arccosine.gated_covariance`).
    """
    N, n, d = X.shape
    B = softmax(X @ G @ X.transpose(0, 2, 1))
    U = (B @ X).reshape(N * n, d)
    C = jnp.einsum("nij,nja,njb->niab", B, X, X).reshape(N * n, d, d)
    C = C - U[:, :, None] * U[:, None, :]
    tokens = X.reshape(N * n, d)
    lengths = jnp.linalg.norm(U, axis=1, keepdims=True)
    unit = U / jnp.where(lengths > 0, lengths, 1)

    a, b, c = gated_covariance(U, U)
    own = jnp.einsum("iab,ib->ia", C, unit)  # C_i u_i
    other = jnp.einsum("jab,ib->ija", C, unit)  # C_j u_i
    swapped = other.transpose(1, 0, 2)  # C_i u_j
    flat = C.reshape(N * n, d * d)
    trace = (
        a * (flat @ flat.T)
        + b * (own @ own.T + jnp.sum(other * swapped, axis=-1))
        - c * (jnp.einsum("ija,ia->ij", other, own) + jnp.einsum("ija,ja->ij", swapped, own))
    )

    def pooled(pairs: Float[Array, "P P"]) -> Float[Array, "N N"]:
        return jnp.sum(pairs.reshape(N, n, N, n), axis=(1, 3))

    scale = (scales.output * scales.pool) ** 2 * width
    query_key = scale * variances.w_O * variances.W_V * pooled((tokens @ tokens.T) * trace)
    return {
        "W_Q": variances.W_K * query_key,  # W_K^T W_K -> width * eta_K, and conversely
        "W_K": variances.W_Q * query_key,
        "W_V": scale * variances.w_O * pooled(step_kernel(U, U) * (U @ U.T)),
        "w_O": scale * variances.W_V * pooled(relu_kernel(U, U)),
    }


def random_limit(
    key: PRNGKeyArray, X: Float[Array, "N n d"], variances: Weights, scales: Scales, width: int,
    *, num_draws: int = 400,
) -> RandomKernel:  # fmt: skip
    r"""Mean and spread of the limit for $p=\tfrac12$ over draws of $G$ (Monte Carlo)."""
    spread = (variances.W_Q * variances.W_K) ** 0.5

    def draw(key: PRNGKeyArray) -> Blocks:
        G = spread * jax.random.normal(key, (X.shape[-1],) * 2, X.dtype)
        return kernel_given_scores(X, G, variances, scales, width)

    draws = jax.lax.map(draw, jax.random.split(key, num_draws))
    return RandomKernel(
        mean=jax.tree.map(lambda K: jnp.mean(K, axis=0), draws),
        spread=jax.tree.map(lambda K: jnp.std(K, axis=0, ddof=1), draws),
    )


def _distance(setup: Setup) -> Float[Array, ""]:
    setting = setup.setting
    limit = uniform_limit(setup.inputs, setting.variances(), setting.scales(), setting.width)
    blocks = setting.block_kernels(setup)(setup.params0)
    K, goal = (functools.reduce(jnp.add, part.values()) for part in (blocks, limit))
    return jnp.linalg.norm(K - goal) / jnp.linalg.norm(goal)


def distances_to_limit(setup: Setup) -> np.ndarray:
    r"""$\lVert K-K_\infty\rVert_F/\lVert K_\infty\rVert_F$ at the start of every seed ($p>1/2$)."""
    p = setup.setting.score_exponent
    if p <= 0.5:
        msg = f"score_exponent={p}: only above 1/2 is there a fixed limit (limits.random_limit)."
        raise InputError(msg)
    return per_start(setup, _distance)
