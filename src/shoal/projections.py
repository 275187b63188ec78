"""Nearest points of simple sets."""

import jax.numpy as jnp

from shoal._typing import Array, Scalar


def onto_balls(W: Array, centre: Array, radius: Scalar) -> Array:
    """Bring each row of a block into the ball of some radius around the same row of ``centre``.

    A row is what the leading axis counts, such as a head; its norm is Euclidean over all else. The
    set is a product of balls, so the nearest point of it is the nearest point of each. Rows inside
    stay exactly as they are.

    >>> onto_balls(jnp.array([[3.0, 4.0], [0.1, 0.0]]), jnp.zeros((2, 2)), 1.0).round(3).tolist()
    [[0.6, 0.8], [0.1, 0.0]]
    """
    moved = W - centre
    length = jnp.sqrt(jnp.sum(moved**2, axis=tuple(range(1, W.ndim)), keepdims=True))
    share = jnp.asarray(radius, W.dtype) / jnp.where(length > 0, length, 1)
    return jnp.where(length > radius, centre + share * moved, W)
