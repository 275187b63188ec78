"""What is inside a model, found by reading its program: attention, ReLU units, residual streams.

A model is a function of weights and a batch. `parts` writes it down as a list of operations (calls
are inlined), and finds

- *attention*: an exponential over its own sum, contracted with values along the summed axis;
- *units*: a maximum with zero (and, apart, what can saturate: tanh and logistic);
- *stream*: a sum of two arrays of tokens one of which is made from the other (a residual), and the
  output of every attention.

Each is named by the line of the model's source, or by its module path, in the order of the program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from shoal._typing import Array, Float
from shoal.diagnostics.programs import Constant, Operation, Program, program

SAME = ("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "expand_dims", "copy",
        "stop_gradient", "transpose", "optimization_barrier")  # fmt: skip
"""Operations that only rearrange."""


class Found(NamedTuple):
    """Where something is: the number of its value, and what it is called."""

    value: int
    name: str
    axis: int = -1
    before: int = -1  # Attention: its scores; units: what enters them.
    kind: str = ""  # The operation.


class Weight(NamedTuple):
    """A block of weights, what it multiplies (or is added to), and the result."""

    block: str
    given: Any
    product: int
    name: str
    kind: str = "dot_general"


class Parts(NamedTuple):
    """What was found in a program."""

    attention: tuple[Found, ...]
    units: tuple[Found, ...]
    saturating: tuple[Found, ...]
    stream: tuple[Found, ...]
    program: Program

    def capture(self, params: Any, x: Any) -> dict[int, Array]:
        """The values of all that was found."""
        wanted = {found.value for some in self[:4] for found in some}
        values = self.program.run(params, x)
        return {number: values[number] for number in wanted}


def _origin(value: Any, kinds: tuple[str, ...], made_by: dict[int, Operation]) -> Operation | None:
    """The operation of some kind that a value comes from by rearrangement only."""
    while isinstance(value, int) and value in made_by:
        op = made_by[value]
        if op.equation.primitive.name in kinds:
            return op
        if op.equation.primitive.name not in SAME:
            return None
        value = op.inputs[0]
    return None


def parts(function: Callable[[Any, Any], Any], params: Any, x: Any) -> Parts:
    """Find attention, units and streams in ``function(params, x)``; shapes suffice."""
    listed = program(function, params, x)
    made_by = listed.made_by()
    above: dict[int, int] = dict.fromkeys(listed.inputs, 0)  # ancestors as bits
    for op in listed.operations:
        bits = 0
        for given in op.inputs:
            if isinstance(given, int):
                bits |= above[given] | (1 << given)
        above |= dict.fromkeys(op.outputs, bits)
    attention: list[Found] = []
    units: list[Found] = []
    saturating: list[Found] = []
    stream: list[Found] = []
    softmaxes: dict[int, tuple[int, int]] = {}  # a softmax, its axis and its scores
    carried: dict[int, int] = {}  # a rearranged softmax, and which one it is
    for op in listed.operations:
        name = op.equation.primitive.name
        if name == "div":
            top = _origin(op.inputs[0], ("exp",), made_by)
            bottom = _origin(op.inputs[1], ("reduce_sum",), made_by)
            if top is not None and bottom is not None and bottom.inputs[0] == top.outputs[0]:
                axes = bottom.equation.params["axes"]
                if len(axes) == 1:
                    softmaxes[op.outputs[0]] = int(axes[0]), top.inputs[0]
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
                        axis, scores = softmaxes[source]
                        attention.append(Found(source, op.place, axis, scores))
                        stream.append(Found(op.outputs[0], f"{op.place} (attended)"))
        elif name == "max" and any(_is_zero(given, made_by) for given in op.inputs):
            before = [v for v in op.inputs if not _is_zero(v, made_by)]
            units.append(Found(op.outputs[0], op.place, -1, before[0] if before else -1))
        elif name in ("tanh", "logistic") and len(op.equation.outvars[0].aval.shape) >= 2:
            saturating.append(Found(op.outputs[0], op.place, -1, op.inputs[0], name))
        elif name in ("add", "add_any") and all(isinstance(v, int) for v in op.inputs):
            one, other = op.inputs
            sizes = [atom.aval.shape for atom in op.equation.invars]
            nested = above[one] >> other & 1 or above[other] >> one & 1
            if sizes[0] == sizes[1] and len(sizes[0]) >= 3 and nested:
                stream.append(Found(op.outputs[0], op.place))
    some = [_named(tuple(found)) for found in (attention, units, saturating, stream)]
    return Parts(some[0], some[1], some[2], some[3], listed)


def weights(listed: Program, kinds: tuple[str, ...] = ("dot_general",)) -> tuple[Weight, ...]:
    """Where a block of weights meets something, in the order of the program."""
    made_by = listed.made_by()
    names = dict(zip(listed.inputs, listed.blocks, strict=False))
    found = []
    for op in listed.operations:
        kind = op.equation.primitive.name
        if kind in kinds and len(op.inputs) == 2:
            for block, other in (op.inputs, op.inputs[::-1]):
                source, against = _root(block, made_by), _root(other, made_by)
                known = [isinstance(v, int) and v in names for v in (source, against)]
                if isinstance(against, int) and known == [True, False]:
                    found.append(Weight(names[source], other, op.outputs[0], op.place, kind))
    return tuple(found)


def bias_of(listed: Program, value: int) -> str:
    """The block that was added last to what became a value; empty if none is known."""
    root = _root(value, listed.made_by())
    return next((w.block for w in weights(listed, ("add",)) if w.product == root), "")


def _root(value: Any, made_by: dict[int, Operation]) -> Any:
    """What a value is a rearrangement or a slice of."""
    while isinstance(value, int) and value in made_by:
        op = made_by[value]
        if op.equation.primitive.name not in (*SAME, "slice", "split", "dynamic_slice"):
            break
        value = op.inputs[0]
    return value


def _named_root(value: Any, made_by: dict[int, Operation], names: dict[int, str]) -> str:
    root = _root(value, made_by)
    return names.get(root, "") if isinstance(root, int) else ""


def needed(listed: Program, value: int) -> bool:
    """Whether everything that the output knows of the batch passes through a value."""
    first = listed.inputs[len(listed.blocks) :]
    reached = set(first)
    for op in listed.operations:
        if any(isinstance(v, int) and v in reached for v in op.inputs):
            reached |= {number for number in op.outputs if number != value}
    return listed.output not in reached


def feeds(listed: Program, value: int, later: Any, *, near: bool = True) -> bool:
    """Whether a value reaches a later one; ``near``: through at most one product of two values."""
    reached = {value: 0}
    for op in listed.operations:
        depths = [reached[v] for v in op.inputs if isinstance(v, int) and v in reached]
        if depths:
            depth = max(depths) + (op.equation.primitive.name == "dot_general")
            reached |= dict.fromkeys(op.outputs, depth)
    return later in reached and (not near or reached[later] <= 1)


def residuals(listed: Program, found: Parts) -> dict[int, Callable]:
    """Edits that add to what follows each attention what went into it, where nothing does.

    It is added after the last linear operation that follows the attention and has that shape.
    """
    shapes = {n: v.aval.shape for op in listed.operations
              for n, v in zip(op.outputs, op.equation.outvars, strict=True)}  # fmt: skip
    order = [number for op in listed.operations for number in op.outputs]
    places = {number: k for k, number in enumerate(order)}
    made_by, names = listed.made_by(), dict(zip(listed.inputs, listed.blocks, strict=False))
    edits: dict[int, Callable] = {}
    for at in found.attention:
        attended = next(op.outputs[0] for op in listed.operations
                        if op.equation.primitive.name == "dot_general"
                        and any(_carries(v, at.value, listed) for v in op.inputs))  # fmt: skip
        if not needed(listed, attended):
            continue
        into = [
            n for n in order[: places[at.value]]
            if len(shapes[n]) >= 3 and needed(listed, n) and feeds(listed, n, at.before, near=False)
        ]  # fmt: skip
        into += [n for n in listed.inputs[len(listed.blocks) :] if n not in shapes]
        batch = dict(zip(listed.inputs[len(listed.blocks) :], listed.batch, strict=True))
        linear, last = {attended}, None
        for op in listed.operations:
            kind = op.equation.primitive.name
            inside = [v for v in op.inputs if isinstance(v, int) and v in linear]
            others = [v for v in op.inputs if v not in inside]
            fixed = all(not isinstance(v, int) or _named_root(v, made_by, names) for v in others)
            if inside and (
                kind in SAME or (kind in ("dot_general", "add", "mul", "div") and fixed)
            ):
                linear |= set(op.outputs)
                shape = shapes[op.outputs[0]]
                same = [n for n in into if (shapes.get(n) or batch.get(n)) == shape]
                if same and needed(listed, op.outputs[0]):
                    last = op.outputs[0], same[-1]
        if last is None and (same := [n for n in into if shapes.get(n) == shapes[attended]]):
            last = attended, same[-1]
        if last is not None:
            edits[last[0]] = lambda v, values, n=last[1]: v + values[n]
    return edits


def _carries(value: Any, source: int, listed: Program) -> bool:
    made_by = listed.made_by()
    while isinstance(value, int) and value != source and value in made_by:
        if made_by[value].equation.primitive.name not in (*SAME, "mul", "select_n"):
            return False
        value = next((v for v in made_by[value].inputs if isinstance(v, int)), None)
    return value == source


def output_range(listed: Program) -> tuple[float, float, str]:
    """Bounds of the output that follow from the last operation, and its name."""
    made_by = listed.made_by()
    ranges = {"tanh": (-1.0, 1.0), "logistic": (0.0, 1.0), "exp": (0.0, jnp.inf)}
    if (op := _origin(listed.output, tuple(ranges), made_by)) is not None:
        return (*ranges[op.equation.primitive.name], op.equation.primitive.name)
    op = _origin(listed.output, ("max",), made_by)
    if op is not None and any(_is_zero(given, made_by) for given in op.inputs):
        return 0.0, jnp.inf, "ReLU"
    return -jnp.inf, jnp.inf, ""


def last_features(listed: Program) -> int | None:
    """The value that the last block of weights multiplies, if only biases come after it."""
    made_by = listed.made_by()
    names = dict(zip(listed.inputs, listed.blocks, strict=False))
    value = listed.output
    for _ in range(20):
        if (op := _origin(value, ("add", "dot_general"), made_by)) is None:
            return None
        roots = [_named_root(given, made_by, names) for given in op.inputs]
        if op.equation.primitive.name == "dot_general":
            sides = [v for v, root in zip(op.inputs, roots, strict=True) if not root]
            return sides[0] if len(sides) == 1 and isinstance(sides[0], int) else None
        sides = [v for v, root in zip(op.inputs, roots, strict=True) if not root]
        if len(sides) != 1:
            return None
        value = sides[0]
    return None


def _is_zero(value: Any, made_by: dict[int, Operation]) -> bool:
    while isinstance(value, int) and value in made_by:
        if made_by[value].equation.primitive.name not in SAME:
            return False
        value = made_by[value].inputs[0]
    return isinstance(value, Constant) and jnp.ndim(value.value) == 0 and float(value.value) == 0


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


def alone(scores: Float[Array, "..."], axis: int = -1) -> Float[Array, ""]:
    """Share of attention rows to which a mask leaves one token at most.

    ``scores`` are shifted so that the largest of a row is 0; masked ones are -1e6 or below.
    """
    return jnp.mean(jnp.sum(scores > -1e6, axis) <= 1) * (scores.shape[axis] > 1)


def dead(units: Float[Array, "... width"]) -> Float[Array, ""]:
    """Share of units that are zero on every sample and token."""
    return jnp.mean(jnp.all(units == 0, axis=tuple(range(units.ndim - 1))))


def saturated(units: Float[Array, "... width"], kind: str = "tanh") -> Float[Array, ""]:
    """Share of tanh or logistic units whose slope is below 0.02 on every sample and token.

    >>> float(saturated(jnp.array([[0.999, 0.5], [-0.999, 0.5]])))
    0.5
    """
    slope = 1 - units**2 if kind == "tanh" else 2 * units * (1 - units)
    return jnp.mean(jnp.all(slope < 0.02, axis=tuple(range(units.ndim - 1))))


def cosine(stream: Float[Array, "... n d"]) -> Float[Array, ""]:
    """Mean cosine between different tokens of a sequence: 1 means that they have collapsed."""
    lengths = jnp.linalg.norm(stream, axis=-1, keepdims=True)
    unit = stream / jnp.where(lengths > 0, lengths, 1)
    n = stream.shape[-2]
    total = jnp.sum(jnp.square(jnp.sum(unit, -2)), -1) - jnp.sum(jnp.square(unit), (-1, -2))
    return jnp.mean(total) / max(n * (n - 1), 1)
