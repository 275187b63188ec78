"""Losses, each the paper's own."""

import jax.numpy as jnp

from shoal._typing import Array, Float


def half_sum_of_squares(
    outputs: Float[Array, "*shape"], targets: Float[Array, "*shape"]
) -> Float[Array, ""]:
    r"""$\ell = \tfrac12 \sum_n (f_n - y_n)^2$, with no $1/N$ (wu2023, song2024).

    >>> float(half_sum_of_squares(jnp.array([1.0, 2.0]), jnp.array([0.0, 0.0])))
    2.5
    """
    return 0.5 * jnp.sum(jnp.square(outputs - targets))
