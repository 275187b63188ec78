"""Models from elsewhere: Flax, Equinox and PyTorch modules as functions of weights and a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Foreign(NamedTuple):
    """A module as a function, its weights, and the way back."""

    function: Callable[[Any, Any], Any]
    params: Any
    restore: Callable[[Any], Any]
    """The module's own form of trained weights (for PyTorch a ``state_dict``)."""
    read: Callable[[Any], Any]
    """The weights of such a module, in the form of ``params``."""
    frozen: tuple[str, ...] = ()  # Weights that the module does not train.


def is_module(target: Any) -> bool:
    """Whether a value is a module of Flax NNX, Equinox or PyTorch, without importing any."""
    return _kind(target) is not None


def _kind(target: Any) -> str | None:
    if isinstance(target, type):
        return None
    for base in type(target).__mro__:
        root = base.__module__.partition(".")[0]
        if root == "torch" and base.__name__ == "Module":
            return "torch"
        if root == "equinox" and base.__name__ == "Module":
            return "equinox"
        if root == "flax" and base.__name__ == "Module":
            return "linen" if ".linen" in base.__module__ else "nnx"
    return None


def from_module(module: Any, x: Any, variables: Any = None) -> Foreign:
    """A module as a function of its weights and a batch; ``x`` is a batch to try it on."""
    kind = _kind(module)
    if kind == "torch":
        from shoal.interop.torch import from_torch

        return from_torch(module, x)
    from shoal.interop import jax_modules

    if kind == "linen":
        return jax_modules.from_linen(module, variables)
    return jax_modules.from_nnx(module) if kind == "nnx" else jax_modules.from_equinox(module)
