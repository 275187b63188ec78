"""What is inside a model, found by reading its program: attention, ReLU units, residual streams.

A model is a function of weights and a batch. `parts` writes it down as a list of operations (calls
are inlined), and finds

- *attention*: an exponential over its own sum, contracted with values along the summed axis;
- *units*: a maximum with zero;
- *stream*: a sum of two arrays of tokens one of which is made from the other (a residual), and the
  output of every attention.

Each is named by the line of the model's source, or by its module path, in the order of the program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from shoal._typing import Array, Float

INLINED = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint",
           "closed_call", "core_call", "custom_vjp_call_jaxpr", "custom_lin")  # fmt: skip
SAME = ("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "expand_dims", "copy",
        "stop_gradient", "transpose", "optimization_barrier")  # fmt: skip
"""Operations that only rearrange."""


class Operation(NamedTuple):
    """One operation of the flat program; values have numbers, constants stand as they are."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    place: str


class Found(NamedTuple):
    """Where something is: the number of its value, and what it is called."""

    value: int
    name: str
    axis: int = -1


class Parts(NamedTuple):
    """What was found, and the function that returns the values of all of it."""

    attention: tuple[Found, ...]
    units: tuple[Found, ...]
    stream: tuple[Found, ...]
    capture: Callable[[Any, Any], dict[int, Array]]


class _Constant(NamedTuple):
    value: Any


def called_jaxpr(equation: Any) -> ClosedJaxpr | None:
    """The body of an equation that only calls another jaxpr; None for all others."""
    if equation.primitive.name not in INLINED:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = equation.params.get(name)
        if isinstance(found, ClosedJaxpr):
            return found
        if isinstance(found, Jaxpr):
            return ClosedJaxpr(found, ())
    return None


def _flat(closed: ClosedJaxpr) -> tuple[list[Operation], list[int], list[Any]]:
    """The operations, the numbers of the inputs, and the values that come out."""
    operations: list[Operation] = []
    count = iter(range(10**9))

    def run(inner: ClosedJaxpr, given: list[Any], place: str) -> list[Any]:
        names: dict[Any, Any] = dict(zip(inner.jaxpr.invars, given, strict=True))
        constants = zip(inner.jaxpr.constvars, inner.consts, strict=True)
        names |= {var: _Constant(value) for var, value in constants}

        def value(atom: Any) -> Any:
            return _Constant(atom.val) if isinstance(atom, Literal) else names[atom]

        for equation in inner.jaxpr.eqns:
            inputs = [value(atom) for atom in equation.invars]
            here = place_of(equation) or place
            if (called := called_jaxpr(equation)) is not None:
                outputs = run(called, inputs, here)
            else:
                outputs = [next(count) for _ in equation.outvars]
                operations.append(Operation(equation, tuple(inputs), tuple(outputs), here))
            names |= dict(zip(equation.outvars, outputs, strict=True))
        return [value(atom) for atom in inner.jaxpr.outvars]

    inputs = [next(count) for _ in closed.jaxpr.invars]
    return operations, inputs, run(closed, list(inputs), "")


def place_of(equation: Any) -> str:
    """The module path or the line of source that made an operation."""
    if path := str(equation.source_info.name_stack):
        return path
    trace = equation.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        name = frame.file_name
        if "site-packages" not in name and "/shoal/" not in name and "<" not in name:
            return f"{name.rpartition('/')[2]}:{frame.line_num}"
    return ""


def _parts(closed: ClosedJaxpr) -> tuple[list[Operation], list[int], tuple, tuple, tuple]:
    operations, inputs, _ = _flat(closed)
    made_by = {number: op for op in operations for number in op.outputs}
    above: dict[int, int] = dict.fromkeys(inputs, 0)  # ancestors as bits
    for op in operations:
        bits = 0
        for given in op.inputs:
            if isinstance(given, int):
                bits |= above[given] | (1 << given)
        above |= dict.fromkeys(op.outputs, bits)

    def origin(value: Any, kind: str) -> Operation | None:
        """The operation of some kind that a value comes from by rearrangement only."""
        while isinstance(value, int) and value in made_by:
            op = made_by[value]
            if op.equation.primitive.name == kind:
                return op
            if op.equation.primitive.name not in SAME:
                return None
            value = op.inputs[0]
        return None

    attention: list[Found] = []
    units: list[Found] = []
    stream: list[Found] = []
    softmaxes: dict[int, int] = {}
    carried: dict[int, int] = {}  # a rearranged softmax, and which one it is
    for op in operations:
        name = op.equation.primitive.name
        if name == "div":
            top, bottom = origin(op.inputs[0], "exp"), origin(op.inputs[1], "reduce_sum")
            if top is not None and bottom is not None and bottom.inputs[0] == top.outputs[0]:
                axes = bottom.equation.params["axes"]
                if len(axes) == 1:
                    softmaxes[op.outputs[0]] = axes[0]
                    carried[op.outputs[0]] = op.outputs[0]
        elif name in (*SAME, "mul", "select_n"):
            for given in op.inputs:
                if isinstance(given, int) and given in carried:
                    carried[op.outputs[0]] = carried[given]
        elif name == "dot_general":
            for given in op.inputs:
                if isinstance(given, int) and given in carried:
                    source = carried[given]
                    if all(found.value != source for found in attention):
                        attention.append(Found(source, op.place, softmaxes[source]))
                        stream.append(Found(op.outputs[0], f"{op.place} (attended)"))
        elif name == "max" and any(_is_zero(given, made_by) for given in op.inputs):
            units.append(Found(op.outputs[0], op.place))
        elif name in ("add", "add_any") and all(isinstance(v, int) for v in op.inputs):
            one, other = op.inputs
            sizes = [atom.aval.shape for atom in op.equation.invars]
            nested = above[one] >> other & 1 or above[other] >> one & 1
            if sizes[0] == sizes[1] and len(sizes[0]) >= 3 and nested:
                stream.append(Found(op.outputs[0], op.place))
    return operations, inputs, tuple(attention), tuple(units), tuple(stream)


def _is_zero(value: Any, made_by: dict[int, Operation]) -> bool:
    while isinstance(value, int) and value in made_by:
        if made_by[value].equation.primitive.name not in SAME:
            return False
        value = made_by[value].inputs[0]
    return isinstance(value, _Constant) and jnp.ndim(value.value) == 0 and float(value.value) == 0


def parts(function: Callable[[Any, Any], Any], params: Any, x: Any) -> Parts:
    """Find attention, units and streams in ``function(params, x)``; shapes suffice."""
    closed = jax.make_jaxpr(function)(params, x)
    operations, inputs, attention, units, stream = _parts(closed)
    wanted = {found.value for found in (*attention, *units, *stream)}

    def capture(params: Any, x: Any) -> dict[int, Array]:
        values: dict[int, Any] = dict(zip(inputs, jax.tree.leaves((params, x)), strict=True))

        def value(given: Any) -> Any:
            return given.value if isinstance(given, _Constant) else values[given]

        for op in operations:
            bound = op.equation.primitive.get_bind_params(op.equation.params)
            functions, rest = bound if isinstance(bound, tuple) else ((), bound)
            out = op.equation.primitive.bind(*functions, *map(value, op.inputs), **rest)
            out = out if op.equation.primitive.multiple_results else [out]
            values |= dict(zip(op.outputs, out, strict=True))
        return {number: values[number] for number in wanted}

    return Parts(_named(attention), _named(units), _named(stream), capture)


def _named(found: tuple[Found, ...]) -> tuple[Found, ...]:
    """Names made different: the second on one line is ``... #2``."""
    seen: dict[str, int] = {}
    named = []
    for one in found:
        seen[one.name] = seen.get(one.name, 0) + 1
        more = f" #{seen[one.name]}" if seen[one.name] > 1 else ""
        named.append(one._replace(name=(one.name or "model") + more))
    return tuple(named)


# ------------------------------------------------------------------------------------- measures


def entropy(weights: Float[Array, "..."], axis: int = -1) -> Float[Array, ""]:
    """Mean entropy of attention rows over the largest possible: 1 is uniform, 0 is one token.

    Keys that are masked (weight exactly 0) do not count; rows with one key left are left out.

    >>> float(entropy(jnp.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])))
    1.0
    """
    logs = jnp.log(jnp.where(weights > 0, weights, 1))
    keys = jnp.sum(weights > 0, axis)
    of_rows = -jnp.sum(weights * logs, axis) / jnp.log(jnp.maximum(keys, 2))
    return jnp.sum(jnp.where(keys > 1, of_rows, 0)) / jnp.maximum(jnp.sum(keys > 1), 1)


def largest(weights: Float[Array, "..."], axis: int = -1) -> Float[Array, ""]:
    """Mean of the largest weight of every row."""
    return jnp.mean(jnp.max(weights, axis))


def dead(units: Float[Array, "... width"]) -> Float[Array, ""]:
    """Share of units that are zero on every sample and token."""
    return jnp.mean(jnp.all(units == 0, axis=tuple(range(units.ndim - 1))))


def cosine(stream: Float[Array, "... n d"]) -> Float[Array, ""]:
    """Mean cosine between different tokens of a sequence: 1 means that they have collapsed."""
    lengths = jnp.linalg.norm(stream, axis=-1, keepdims=True)
    unit = stream / jnp.where(lengths > 0, lengths, 1)
    n = stream.shape[-2]
    total = jnp.sum(jnp.square(jnp.sum(unit, -2)), -1) - jnp.sum(jnp.square(unit), (-1, -2))
    return jnp.mean(total) / max(n * (n - 1), 1)
