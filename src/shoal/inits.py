r"""Initialisations: a key and the shapes in, parameters out.

A block of shape (out, in) has ``fan_in = in`` and ``fan_out = out``; a vector is a map to one
number.
"""

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Params, PRNGKeyArray


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan_in, fan_out).

    >>> _fans((64, 8)), _fans((64,))
    ((8, 64), (64, 1))
    """
    *_, fan_out, fan_in = 1, 1, *shape
    return fan_in, fan_out


def _per_block(
    draw: Callable[[PRNGKeyArray, jax.ShapeDtypeStruct], Array], key: PRNGKeyArray, spec: Params
) -> Params:
    leaves, tree = jax.tree.flatten(spec)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(tree, [draw(k, s) for k, s in zip(keys, leaves, strict=True)])


def _gaussian(variance: Callable[[int, int], float], key: PRNGKeyArray, spec: Params) -> Params:
    def draw(key: PRNGKeyArray, block: Any) -> Array:
        scale = variance(*_fans(block.shape)) ** 0.5
        return scale * jax.random.normal(key, block.shape, block.dtype)

    return _per_block(draw, key, spec)


def lecun(key: PRNGKeyArray, spec: Params) -> Params:
    """Independent Gaussians of variance 1 / fan_in."""
    return _gaussian(lambda fan_in, _: 1 / fan_in, key, spec)


def he(key: PRNGKeyArray, spec: Params) -> Params:
    """Independent Gaussians of variance 2 / fan_in."""
    return _gaussian(lambda fan_in, _: 2 / fan_in, key, spec)


def ntk(key: PRNGKeyArray, spec: Params) -> Params:
    """Independent standard Gaussians; the model carries the scale 1 / sqrt(width)."""
    return _gaussian(lambda *_: 1.0, key, spec)


def xavier(key: PRNGKeyArray, spec: Params) -> Params:
    """Independent Gaussians of variance 2 / (fan_in + fan_out)."""
    return _gaussian(lambda fan_in, fan_out: 2 / (fan_in + fan_out), key, spec)


def orthogonal(key: PRNGKeyArray, spec: Params) -> Params:
    r"""Orthonormal columns, $W^\top W = I$ (rows, if the block is wide); a vector has norm 1.

    Uniform among such matrices: the Q of a Gaussian matrix, signs fixed by the diagonal of R.
    """

    def draw(key: PRNGKeyArray, block: Any) -> Array:
        columns, rows = _fans(block.shape)
        if len(block.shape) == 1:
            columns, rows = 1, columns
        tall = max(rows, columns), min(rows, columns)
        Q, R = jnp.linalg.qr(jax.random.normal(key, tall, block.dtype))
        Q = Q * jnp.sign(jnp.diagonal(R))[None]
        return (Q if rows >= columns else Q.T).reshape(block.shape)

    return _per_block(draw, key, spec)
