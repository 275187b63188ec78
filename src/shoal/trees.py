"""Parameters as named blocks: the leaves of any pytree, called by their path.

A NamedTuple's block is its field (``W_Q``); deeper trees join the way down with dots
(``layers.0.attn.q``). A pattern such as ``layers.*.attn.*`` selects several.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Float, Params
from shoal.errors import InputError, nearest


def _name(path: tuple) -> str:
    """The dotted name of a leaf's path; a bare array is called ``params``."""
    parts = (getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))) for key in path)
    return ".".join(str(part) for part in parts) or "params"


def blocks(params: Params) -> dict[str, Any]:
    """Return the blocks of a tree of parameters (or of its shapes) by name.

    >>> from collections import namedtuple
    >>> blocks(namedtuple("P", "a b")(1, {"x": [2, 3]}))
    {'a': 1, 'b.x.0': 2, 'b.x.1': 3}
    """
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def with_blocks(params: Params, changed: Mapping[str, Any]) -> Params:
    """Return the tree with some blocks replaced.

    >>> with_blocks({"a": 1, "b": 2}, {"b": 5})
    {'a': 1, 'b': 5}
    """
    return jax.tree_util.tree_map_with_path(lambda p, leaf: changed.get(_name(p), leaf), params)


def block_names(params: Params, wanted: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names that ``wanted`` selects, in the order of the parameters; None means all.

    A name or pattern that selects nothing is refused.

    >>> block_names({"q_1": 0, "q_2": 0, "v": 0}, ["v", "q*"])
    ('q_1', 'q_2', 'v')
    """
    names = tuple(blocks(params))
    if wanted is None:
        return names
    patterns = tuple(wanted)
    for pattern in patterns:
        if not any(_selects(pattern, name) for name in names):
            raise InputError(f"no parameter is called {pattern!r}; {nearest(pattern, names)}")
    return tuple(name for name in names if any(_selects(p, name) for p in patterns))


def _selects(pattern: str, name: str) -> bool:
    return pattern == name or fnmatchcase(name, pattern)  # names may hold brackets


def selected(params: Params, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the blocks that ``wanted`` selects, by name (`block_names`)."""
    names = block_names(params, wanted)
    return {name: leaf for name, leaf in blocks(params).items() if name in names}


def norm(tree: Any) -> Float[Array, ""]:
    r"""Euclidean norm of everything in a tree, $(\sum_* \lVert W_*\rVert_F^2)^{1/2}$.

    >>> float(norm({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}))
    5.0
    """
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def dot(one: Any, other: Any) -> Float[Array, ""]:
    """Inner product of two trees of the same shape.

    >>> float(dot({"a": jnp.array([3.0])}, {"a": jnp.array([4.0])}))
    12.0
    """
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), one, other)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def size(params: Params) -> int:
    """Return the number of entries of all blocks (shapes suffice).

    >>> size({"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)})
    10
    """
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def padded_chunks(array: Array, length: int) -> Array:
    """The leading axis in chunks of ``length``, zeros at the end.

    >>> padded_chunks(jnp.arange(1, 6), 2).tolist()
    [[1, 2], [3, 4], [5, 0]]
    """
    chunks = -(-len(array) // length)
    missing = chunks * length - len(array)
    padded = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
    return padded.reshape(chunks, length, *array.shape[1:])


def cast(tree: Any, dtype: str) -> Any:
    """Every array of real numbers in another precision; whole numbers stay as they are."""

    def one(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree)
