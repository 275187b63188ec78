"""Names for the kinds of things that pass between layers. Nothing but arrays and functions.

Axis letters mean the same in every file: ``N`` samples, ``n`` tokens, ``d`` token dimension,
``m`` width, ``S`` seeds, ``T`` recorded steps.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

Scalar = Float[Array, ""] | float
Params = Any
"""A NamedTuple of arrays whose fields carry the paper's letters (``W_Q``, ``w_O``, ...)."""
Risk = Callable[..., Float[Array, ""]]
"""The loss of parameters; with numbers of samples as a second argument, of these samples only."""
Probe = Callable[[Params], Any]
"""What a run can record: parameters in, arrays out (a probe of a probe is a pytree)."""
Init = Callable[[PRNGKeyArray, Params], Params]

__all__ = [
    "Any", "Array", "Bool", "Callable", "Float", "Init", "Int", "PRNGKeyArray", "Params", "Probe",
    "PyTree", "Risk", "Scalar",
]  # fmt: skip
