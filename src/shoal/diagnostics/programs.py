"""A model as a list of operations: calls are inlined, values have numbers.

A `Program` can be run with some of its values changed on the way, which is how a diagnosis tries
what another scale of scores or a residual connection would bring.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from shoal import trees

OWN = str(Path(__file__).parents[1])
INLINED = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint",
           "closed_call", "core_call", "custom_vjp_call_jaxpr", "custom_lin")  # fmt: skip


class Operation(NamedTuple):
    """One operation of the flat program; values have numbers, constants stand as they are."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    place: str


class Constant(NamedTuple):
    """A value of the program that is known before it runs."""

    value: Any


def called_jaxpr(equation: Any, inlined: tuple[str, ...] = INLINED) -> ClosedJaxpr | None:
    """The body of an equation that only calls another jaxpr; None for all others."""
    if equation.primitive.name not in inlined:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = equation.params.get(name)
        if isinstance(found, ClosedJaxpr):
            return found
        if isinstance(found, Jaxpr):
            return ClosedJaxpr(found, ())
    return None


def flat_program(
    closed: ClosedJaxpr, inlined: tuple[str, ...] = INLINED
) -> tuple[list[Operation], list[int], list[Any]]:
    """The operations, the numbers of the inputs, and the values that come out."""
    operations: list[Operation] = []
    count = iter(range(10**9))

    def run(inner: ClosedJaxpr, given: list[Any], place: str) -> list[Any]:
        names: dict[Any, Any] = dict(zip(inner.jaxpr.invars, given, strict=True))
        constants = zip(inner.jaxpr.constvars, inner.consts, strict=True)
        names |= {var: Constant(value) for var, value in constants}

        def value(atom: Any) -> Any:
            return Constant(atom.val) if isinstance(atom, Literal) else names[atom]

        for equation in inner.jaxpr.eqns:
            inputs = [value(atom) for atom in equation.invars]
            here = place_of(equation) or place
            if (called := called_jaxpr(equation, inlined)) is not None:
                outputs = run(called, inputs, here)
            else:
                outputs = [next(count) for _ in equation.outvars]
                operations.append(Operation(equation, tuple(inputs), tuple(outputs), here))
            names |= dict(zip(equation.outvars, outputs, strict=True))
        return [value(atom) for atom in inner.jaxpr.outvars]

    inputs = [next(count) for _ in closed.jaxpr.invars]
    return operations, inputs, run(closed, list(inputs), "")


def value_of(given: Any, values: dict[int, Any]) -> Any:
    """A constant, or the value of some number."""
    return given.value if isinstance(given, Constant) else values[given]


def computed(op: Operation, values: dict[int, Any]) -> list[Any]:
    """What an operation makes of the values so far."""
    primitive = op.equation.primitive
    bound = primitive.get_bind_params(op.equation.params)
    functions, rest = bound if isinstance(bound, tuple) else ((), bound)
    out = primitive.bind(*functions, *(value_of(x, values) for x in op.inputs), **rest)
    return out if primitive.multiple_results else [out]


def place_of(equation: Any) -> str:
    """The module path or the line of source that made an operation."""
    if path := str(equation.source_info.name_stack):
        return path
    trace = equation.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        name = frame.file_name
        if "site-packages" not in name and not name.startswith(OWN) and "<" not in name:
            return f"{name.rpartition('/')[2]}:{frame.line_num}"
    return ""


class Program(NamedTuple):
    """A model as a list of operations: numbers of its inputs (weights first) and its output."""

    operations: list[Operation]
    inputs: list[int]
    blocks: tuple[str, ...]
    output: Any
    batch: tuple[tuple[int, ...], ...] = ()  # Shapes of the inputs that are not weights.

    def made_by(self) -> dict[int, Operation]:
        """For every value the operation that makes it."""
        return {number: op for op in self.operations for number in op.outputs}

    def run(self, params: Any, x: Any, edits: dict[int, Callable] | None = None) -> dict[int, Any]:
        """All values; ``edits`` change some of them on the way (``number -> function``)."""
        edits = edits or {}
        given = jax.tree.leaves((params, x))
        values: dict[int, Any] = dict(zip(self.inputs, given, strict=True))

        for op in self.operations:
            for number, array in zip(op.outputs, computed(op, values), strict=True):
                values[number] = edits[number](array, values) if number in edits else array
        return values

    def edited(self, edits: dict[int, Callable]) -> Callable[[Any, Any], Any]:
        """The model with some values changed, as a function of weights and the same batch."""
        return lambda params, x: self.run(params, x, edits)[self.output]


def program(function: Callable[[Any, Any], Any], params: Any, x: Any) -> Program:
    """Write ``function(params, x)`` down; shapes suffice."""
    operations, inputs, outputs = flat_program(jax.make_jaxpr(function)(params, x))
    shapes = tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(x))
    return Program(operations, inputs, tuple(trees.blocks(params)), outputs[0], shapes)
