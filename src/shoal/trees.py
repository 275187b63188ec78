"""Parameters as named blocks."""

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Float, Params
from shoal.errors import InputError, nearest


def blocks(params: Params) -> dict[str, Any]:
    """Return the blocks of a parameter tuple (or of its shapes) by name.

    >>> from collections import namedtuple
    >>> blocks(namedtuple("P", "a b")(1, 2))
    {'a': 1, 'b': 2}
    """
    return params._asdict()


def block_names(params: Params, wanted: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return ``wanted`` in the order of the parameters, or all names; refuse unknown ones."""
    if wanted is None:
        return params._fields
    wanted = tuple(wanted)
    for name in wanted:
        if name not in params._fields:
            msg = f"no parameter is called {name!r}; {nearest(name, params._fields)}"
            raise InputError(msg)
    return tuple(name for name in params._fields if name in wanted)


def norm(tree: Mapping | tuple) -> Float[Array, ""]:
    r"""Euclidean norm of everything in a tree, $(\sum_* \lVert W_*\rVert_F^2)^{1/2}$.

    >>> float(norm({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}))
    5.0
    """
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def dot(one: Mapping | tuple, other: Mapping | tuple) -> Float[Array, ""]:
    """Inner product of two trees of the same shape.

    >>> float(dot({"a": jnp.array([3.0])}, {"a": jnp.array([4.0])}))
    12.0
    """
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), one, other)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def in_pieces(array: Array, size: int) -> Array:
    """The leading axis in pieces of ``size``, zeros at the end.

    >>> in_pieces(jnp.arange(1, 6), 2).tolist()
    [[1, 2], [3, 4], [5, 0]]
    """
    pieces = -(-len(array) // size)
    missing = pieces * size - len(array)
    padded = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
    return padded.reshape(pieces, size, *array.shape[1:])


def cast(tree: Params, dtype: str) -> Params:
    """Every array of a tree in another precision."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
