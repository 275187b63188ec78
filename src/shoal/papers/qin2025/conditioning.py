"""How well conditioned attention's output is, and how far its tokens have become equal."""

import jax.numpy as jnp

from shoal import linalg
from shoal._typing import Array, Float


def conditioning(A: Float[Array, "rows d"]) -> dict[str, Float[Array, ""]]:
    r"""Singular values, condition number and ranks of one matrix.

    $\sigma_{\min}$ is taken over the rows, so it is 0 if there are more rows than columns. The
    condition number is infinite there, and wherever it is beyond what float64 resolves.
    """
    sigma = linalg.singular_values(A)
    low = linalg.sigma_min(A, sigma=sigma)
    rounding = float(jnp.finfo(A.dtype).eps) * max(A.shape) * sigma[0]
    return {
        "sigma_min": low,
        "sigma_max": sigma[0],
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


def weyl(X: Float[Array, "n d"], attended: Float[Array, "n d"]) -> dict[str, Float[Array, ""]]:
    r"""How far attention can lower $\sigma_{\min}(X)$, and the condition number that follows.

    ``attended`` is $SXW_V$. The bound of the condition number is infinite where Weyl's inequality
    leaves nothing; that does not mean that the sum is ill-conditioned.
    """
    sigma, size = linalg.singular_values(X), linalg.norm_op(attended)
    low = linalg.sigma_min(X, sigma=sigma) - size
    return {
        "sigma_min": low,
        "condition": jnp.where(low > 0, (sigma[0] + size) / jnp.where(low > 0, low, 1), jnp.inf),
    }
