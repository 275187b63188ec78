"""Flax NNX, Flax Linen and Equinox modules as functions of their weights and a batch.

A batch is an array, or a tuple or dict of arrays, which the module gets as its arguments.
Everything but the weights (dropout's randomness, running averages) stays as it is: evaluation mode.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal import trees
from shoal.errors import InputError
from shoal.interop import Foreign


def called(function: Callable, x: Any) -> Any:
    """Call with a batch: a tuple is several arguments, a dict is keywords."""
    if isinstance(x, dict):
        return function(**x)
    return function(*x) if isinstance(x, tuple | list) else function(x)


def from_nnx(module: Any) -> Foreign:
    """A Flax NNX module, by ``nnx.split`` and ``nnx.merge``; its ``nnx.Param`` are the weights."""
    from flax import nnx

    module.eval()
    parts: Any = nnx.split(module, nnx.Param, ...)
    graph, weights, rest = parts
    params = nnx.to_pure_dict(weights)

    def function(params: Any, x: Any) -> Any:
        state = jax.tree.map(lambda leaf: leaf, weights)
        nnx.replace_by_pure_dict(state, params)
        return called(nnx.merge(graph, state, rest), x)

    def restore(params: Any) -> Any:
        nnx.replace_by_pure_dict(weights, params)
        return nnx.merge(graph, weights, rest)

    function.__name__ = type(module).__name__

    def read(module: Any) -> Any:
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))

    return Foreign(function, params, restore, read)


def from_linen(module: Any, variables: Any) -> Foreign:
    """A Flax Linen module with its variables; the collection ``params`` is what is trained."""
    if not isinstance(variables, dict) or "params" not in variables:
        raise InputError(
            "a Linen module needs its variables: sh.setup(module, variables, x, y), with "
            "variables = module.init(key, x), a dict that holds 'params'."
        )
    rest = {name: part for name, part in variables.items() if name != "params"}

    def function(params: Any, x: Any) -> Any:
        return called(lambda *a, **k: module.apply({"params": params, **rest}, *a, **k), x)

    function.__name__ = type(module).__name__
    params = variables["params"]
    return Foreign(
        function, params, lambda params: {"params": params, **rest}, lambda seen: seen["params"]
    )


def from_equinox(module: Any) -> Foreign:
    """An Equinox module of one sample; its floating-point arrays are the weights."""
    import equinox as eqx

    module = eqx.nn.inference_mode(module)
    weights, rest = eqx.partition(module, eqx.is_inexact_array)
    structure = jax.tree.structure(weights)
    params = {name: np.asarray(leaf) for name, leaf in trees.blocks(weights).items()}
    names = list(params)

    def combined(params: Any) -> Any:
        leaves = [params[name] for name in names]
        return eqx.combine(jax.tree_util.tree_unflatten(structure, leaves), rest)

    def function(params: Any, x: Any) -> Any:
        model = combined(params)
        return jax.vmap(lambda one: called(model, one))(x)

    function.__name__ = type(module).__name__

    def read(module: Any) -> Any:
        return trees.blocks(eqx.filter(module, eqx.is_inexact_array))

    return Foreign(function, params, combined, read)
