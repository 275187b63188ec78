"""Where weights enter a model by a matrix product, found by reading its program.

`read_program` follows every weight through what only rearranges or scales it (transposes, slices,
reshapes, casts, factors) to the products and lookups that use it. Which entries of the weight meet
which operation is known exactly, because the numbers of the entries are rearranged alike; so a
weight that is used twice, or in parts, is told from one that is used in overlapping parts.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal._typing import Array, Params
from shoal.diagnostics.programs import Operation, computed, flat_program, value_of

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint")
"""What is inlined: functions with a derivative of their own stay whole."""
REARRANGED = ("transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice",
              "split", "rev", "copy", "convert_element_type")  # fmt: skip


class Use(NamedTuple):
    """A product by which a weight enters: its gradient is the sum over t of h[t, c] delta[t, f].

    Everything has a leading axis ``b``, over which the products are independent (such as heads).
    """

    operation: int  # Number of the product in the program.
    other: Any  # The value h.
    entries: np.ndarray  # Which entries of the weight these are: (b, c, f).
    source: str  # The same for uses with the same h in the same arrangement.
    arrange_other: Callable[[Array], Array]  # h as (b, t, c), or the whole numbers t of a lookup.
    arrange_delta: Callable[[Array], Array]  # delta as (b, t, f).
    factors: tuple[Any, ...]  # Scalars with which the weight was multiplied.
    lookup: bool = False


class Piece(NamedTuple):
    """Uses of the same entries of a weight; ``swapped`` where a use has c and f exchanged."""

    uses: tuple[Use, ...]
    swapped: tuple[bool, ...]
    shared: bool  # h does not depend on the sample.

    @property
    def whole(self) -> bool:
        """Whether h is kept as the numbers of the rows that are looked up."""
        return all(use.lookup for use in self.uses)

    @property
    def source(self) -> str | None:
        """What h is, where there is only one use; None where it is joined from several."""
        return self.uses[0].source if len(self.uses) == 1 else None

    @property
    def by_output(self) -> bool:
        """Whether h has an axis of outputs, because some uses are swapped."""
        return any(self.swapped)


class Program(NamedTuple):
    """A model of one sample as a list of operations, and how each weight enters it."""

    operations: list[Operation]
    inputs: list[int]
    outputs: list[Any]
    pieces: dict[int, tuple[Piece, ...]]  # By the weight's number; others enter in other ways.
    num_weights: int
    sizes: dict[int, tuple[int, ...]]  # Shape of the product of each tapped operation.


def read_program(apply: Callable[[Params, Any], Array], params: Params, sample: Any) -> Program:
    """Trace a model of one sample, and find how its weights enter (shapes suffice)."""
    closed = jax.make_jaxpr(apply)(params, sample)
    leaves = jax.tree.leaves(params)
    if (better := _weights_first(closed, len(leaves))) is not None:
        closed = jax.make_jaxpr(better)(*jax.tree.leaves((params, sample)))
    operations, inputs, outputs = flat_program(closed, CALLS)
    operations = _needed(operations, outputs)
    pieces = _pieces(operations, inputs, outputs, [leaf.shape for leaf in leaves])
    sizes = {
        use.operation: operations[use.operation].equation.outvars[0].aval.shape
        for found in pieces.values() for piece in found for use in piece.uses
    }  # fmt: skip
    return Program(operations, inputs, outputs, pieces, len(leaves), sizes)


def _needed(operations: list[Operation], outputs: list[Any]) -> list[Operation]:
    """The operations on which the outputs depend."""
    wanted = {v for v in outputs if isinstance(v, int)}
    kept = []
    for op in reversed(operations):
        if wanted.intersection(op.outputs):
            kept.append(op)
            wanted.update(v for v in op.inputs if isinstance(v, int))
    return kept[::-1]


class _Entries(NamedTuple):
    """A value that is entries of a weight, rearranged."""

    weight: int
    numbers: np.ndarray
    factors: tuple[Any, ...] = ()


def _pieces(
    operations: list[Operation], inputs: list[int], outputs: list[Any], shapes: list
) -> dict[int, tuple[Piece, ...]]:
    weights = range(len(shapes))
    indices = {k: np.arange(math.prod(shapes[k])).reshape(shapes[k]) for k in weights}
    entries = {inputs[k]: _Entries(k, indices[k]) for k in weights}
    samples = set(inputs[len(shapes) :])  # and what is made from them
    scalars: dict[int, Any] = {}
    found: dict[int, list[Use]] = {k: [] for k in weights}
    other_ways: set[int] = set()
    for number, op in enumerate(operations):
        ints = [v for v in op.inputs if isinstance(v, int)]
        if samples.intersection(ints):
            samples.update(op.outputs)
        _note_scalar(op, scalars)
        for position, given in enumerate(op.inputs):
            if not isinstance(given, int) or given not in entries:
                continue
            held = entries[given]
            carried = _carried(op, position, held, scalars)
            if carried is not None:
                entries |= dict(zip(op.outputs, carried, strict=True))
            elif (use := _use(number, op, position, held)) is not None:
                found[held.weight].append(use)
            else:
                other_ways.add(held.weight)
    other_ways |= {entries[v].weight for v in outputs if isinstance(v, int) and v in entries}
    grouped = {k: _grouped(uses, samples, math.prod(shapes[k])) for k, uses in found.items()}
    return {k: some for k, some in grouped.items() if some and k not in other_ways}


def _note_scalar(op: Operation, scalars: dict[int, Any]) -> None:
    """Remember what is a single number, spread out."""
    if op.equation.primitive.name in ("broadcast_in_dim", "convert_element_type", "reshape"):
        given = op.inputs[0]
        small = op.equation.invars[0].aval.size == 1
        source = given if small else scalars.get(given) if isinstance(given, int) else None
        if source is not None:
            scalars[op.outputs[0]] = source


def _carried(
    op: Operation, position: int, held: _Entries, scalars: dict[int, Any]
) -> list[_Entries] | None:
    """The entries after a rearrangement or a product with a number; None for anything else."""
    name, params = op.equation.primitive.name, op.equation.params
    if name in ("mul", "div", "neg"):
        if name == "neg":
            return [held._replace(factors=(*held.factors, ("neg", None)))]
        other, aval = op.inputs[1 - position], op.equation.invars[1 - position].aval
        scalar = other if aval.size == 1 else scalars.get(other) if isinstance(other, int) else None
        if scalar is None or (name == "div" and position == 1) or other == op.inputs[position]:
            return None
        if held.numbers.shape != op.equation.outvars[0].aval.shape:
            return None
        return [held._replace(factors=(*held.factors, (name, scalar)))]
    real = jnp.issubdtype(op.equation.outvars[0].aval.dtype, jnp.floating)
    if name not in REARRANGED or len(op.inputs) != 1 or not real:
        return None
    index = held.numbers
    if name == "split":
        cuts = np.cumsum(params["sizes"])[:-1]
        parts = np.split(index, [int(c) for c in cuts], axis=params["axis"])
        return [held._replace(numbers=part) for part in parts]
    if name == "transpose":
        index = index.transpose(params["permutation"])
    elif name in ("reshape", "squeeze", "expand_dims"):
        if params.get("dimensions") is not None and name == "reshape":
            return None
        index = index.reshape(op.equation.outvars[0].aval.shape)
    elif name == "broadcast_in_dim":
        shape = [1] * len(params["shape"])
        for axis, size in zip(params["broadcast_dimensions"], index.shape, strict=True):
            shape[axis] = size
        index = np.broadcast_to(index.reshape(shape), params["shape"])
    elif name == "slice":
        strides = params["strides"] or (1,) * index.ndim
        ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        index = index[tuple(slice(*end) for end in ends)]
    elif name == "rev":
        index = np.flip(index, params["dimensions"])
    return [held._replace(numbers=index)]


def _use(number: int, op: Operation, position: int, held: _Entries) -> Use | None:
    """The use of a weight by this operation, if it is a matrix product or a lookup of rows."""
    name = op.equation.primitive.name
    if name == "dot_general":
        return _product(number, op, position, held)
    if name == "gather" and position == 0:
        return _lookup(number, op, held)
    return None


def _product(number: int, op: Operation, position: int, held: _Entries) -> Use | None:
    contracted, batch = op.equation.params["dimension_numbers"]
    ranks = [len(atom.aval.shape) for atom in op.equation.invars]
    free = [
        [axis for axis in range(ranks[side]) if axis not in (*contracted[side], *batch[side])]
        for side in (0, 1)
    ]
    mine, other = position, 1 - position
    places = {(0, axis): len(batch[0]) + k for k, axis in enumerate(free[0])}
    places |= {(1, axis): len(batch[0]) + len(free[0]) + k for k, axis in enumerate(free[1])}
    # an axis along which the weight is repeated belongs to the tokens
    repeated = [] if _distinct(held.numbers) else _repeated(held.numbers)
    if set(repeated) - set(batch[mine]):
        return None
    kept = [k for k, axis in enumerate(batch[mine]) if axis not in repeated]
    moved = [k for k, axis in enumerate(batch[mine]) if axis in repeated]
    once = [slice(0, 1) if axis in repeated else slice(None) for axis in range(ranks[mine])]
    index = held.numbers[tuple(once)]
    order = [*(batch[mine][k] for k in kept), *repeated, *contracted[mine], *free[mine]]
    sizes = [held.numbers.shape[batch[mine][k]] for k in kept]
    width = math.prod(held.numbers.shape[axis] for axis in contracted[mine])
    index = index.transpose(order).reshape(math.prod(sizes), width, -1)
    if not _distinct(index):
        return None
    count = math.prod(sizes)
    of_other = [*(batch[other][k] for k in kept), *(batch[other][k] for k in moved),
                *free[other], *contracted[other]]  # fmt: skip
    of_delta = [*kept, *moved, *(places[other, a] for a in free[other]),
                *(places[mine, a] for a in free[mine])]  # fmt: skip
    columns = index.shape[2]
    return Use(
        number, op.inputs[other], index, _source(op.inputs[other], (*of_other, count, width)),
        lambda h: h.transpose(of_other).reshape(count, -1, width),
        lambda delta: delta.transpose(of_delta).reshape(count, -1, columns),
        held.factors,
    )  # fmt: skip


def _source(value: Any, arrangement: tuple[int, ...]) -> str:
    return f"{value if isinstance(value, int) else f'constant {id(value)}'} as {arrangement}"


def _distinct(index: np.ndarray) -> bool:
    return bool(np.bincount(index.ravel()).max(initial=0) <= 1)


def _repeated(index: np.ndarray) -> list[int]:
    """Axes along which an array is constant."""
    longer = [axis for axis in range(index.ndim) if index.shape[axis] > 1]
    return [axis for axis in longer if (index == index.take([0], axis)).all()]


def _lookup(number: int, op: Operation, held: _Entries) -> Use | None:
    """Whole rows of a matrix by their numbers."""
    shape, how = held.numbers.shape, op.equation.params["dimension_numbers"]
    rank = len(op.equation.outvars[0].aval.shape)
    rows = len(shape) == 2 and op.equation.params["slice_sizes"] == (1, shape[1])
    plain = how.collapsed_slice_dims == (0,) and how.start_index_map == (0,)
    if not (rows and plain and how.offset_dims == (rank - 1,)) or how.operand_batching_dims:
        return None
    if not _distinct(held.numbers):
        return None
    return Use(
        number, op.inputs[1], held.numbers[None], _source(op.inputs[1], shape),
        lambda rows: jnp.clip(rows.reshape(1, -1), 0, shape[0] - 1),
        lambda delta: delta.reshape(1, -1, shape[1]),
        held.factors, lookup=True,
    )  # fmt: skip


def _grouped(uses: list[Use], samples: set[int], size: int) -> tuple[Piece, ...]:
    """Uses of the same entries together; none if some overlap in another way."""
    groups: list[list[tuple[Use, bool]]] = []
    for use in uses:
        for group in groups:
            first = group[0][0].entries
            if np.array_equal(first, use.entries):
                group.append((use, False))
                break
            if np.array_equal(first, use.entries.swapaxes(1, 2)):
                group.append((use, True))
                break
        else:
            groups.append([(use, False)])
    covered = np.zeros(size, int)
    for group in groups:
        covered += np.bincount(group[0][0].entries.ravel(), minlength=size)
    if covered.max(initial=0) > 1:
        return ()

    def is_shared(group: list) -> bool:
        other = group[0][0].other
        return len(group) == 1 and not (isinstance(other, int) and other in samples)

    return tuple(
        Piece(tuple(u for u, _ in group), tuple(s for _, s in group), is_shared(group))
        for group in groups
    )


# ------------------------------------------------------------------------------- weights first


class _Projection(NamedTuple):
    """A value x A with A the same for all samples; ``axes`` name its axes, as in einsum."""

    x: Any
    A: Any
    x_axes: tuple[Any, ...]
    A_axes: tuple[Any, ...]
    axes: tuple[Any, ...]
    width: int  # Of x.


def _weights_first(closed: Any, num_weights: int) -> Callable[..., Array] | None:
    """The model with (x A)(y B)' computed as x (A B') y' where A and B are wider than x and y.

    These are the scores of wide attention. The products of weights are then the same for all
    samples, and what meets a sample is small. None if there is nothing of that kind.
    """
    operations, inputs, outputs = flat_program(closed, CALLS)
    samples = set(inputs[num_weights:])
    known: dict[int, _Projection] = {}
    better: dict[int, Any] = {}
    for number, op in enumerate(operations):
        name, ints = op.equation.primitive.name, [v for v in op.inputs if isinstance(v, int)]
        depends = [isinstance(v, int) and v in samples for v in op.inputs]
        if any(depends):
            samples.update(op.outputs)
        if name == "transpose" and ints and ints[0] in known:
            axes = tuple(known[ints[0]].axes[k] for k in op.equation.params["permutation"])
            known[op.outputs[0]] = known[ints[0]]._replace(axes=axes)
        elif name == "dot_general" and depends.count(True) == 1:
            if (made := _projection(number, op, depends.index(True))) is not None:
                known[op.outputs[0]] = made
        elif name == "dot_general" and len(ints) == 2 and all(v in known for v in ints):
            better[number] = _wide_product(op, *(known[v] for v in ints))
    better = {number: way for number, way in better.items() if way is not None}

    def outputs_of(*leaves: Any) -> Array:
        values = dict(zip(inputs, leaves, strict=True))
        for number, op in enumerate(operations):
            results = [better[number](values)] if number in better else computed(op, values)
            values |= dict(zip(op.outputs, results, strict=True))
        return value_of(outputs[0], values)

    return outputs_of if better else None


def _projection(number: int, op: Operation, side: int) -> _Projection | None:
    contracted, batch = op.equation.params["dimension_numbers"]
    if batch[0] or len(contracted[0]) != 1:
        return None
    shapes = [atom.aval.shape for atom in op.equation.invars]
    names: list[list[Any]] = [[(number, s, k) for k in range(len(shapes[s]))] for s in (0, 1)]
    free = [[name for k, name in enumerate(names[s]) if k not in contracted[s]] for s in (0, 1)]
    for s in (0, 1):
        names[s][contracted[s][0]] = (number, "contracted")
    x, A = op.inputs[side], op.inputs[1 - side]
    width = shapes[side][contracted[side][0]]
    axes = (*free[0], *free[1])
    return _Projection(x, A, tuple(names[side]), tuple(names[1 - side]), axes, width)


def _wide_product(
    op: Operation, one: _Projection, two: _Projection
) -> Callable[[dict[int, Any]], Array] | None:
    """The product of two projections over axes that come from the weights, if these are wide."""
    contracted, batch = op.equation.params["dimension_numbers"]
    ours = {one.axes[k] for k in contracted[0]} == set(one.A_axes) - set(one.x_axes)
    theirs = {two.axes[k] for k in contracted[1]} == set(two.A_axes) - set(two.x_axes)
    width = math.prod(op.equation.invars[0].aval.shape[k] for k in contracted[0])
    if not (ours and theirs) or width <= max(one.width, two.width):
        return None
    letter: dict[Any, int] = {}
    pairs = [*zip(contracted[0], contracted[1], strict=True), *zip(batch[0], batch[1], strict=True)]
    same = {(2, two.axes[k]): (1, one.axes[j]) for j, k in pairs}

    def numbers(which: int, axes: tuple[Any, ...]) -> list[int]:
        names = [same.get((which, axis), (which, axis)) for axis in axes]
        return [letter.setdefault(name, len(letter)) for name in names]

    x, A = numbers(1, one.x_axes), numbers(1, one.A_axes)
    y, B = numbers(2, two.x_axes), numbers(2, two.A_axes)
    free = [
        [axis for k, axis in enumerate(made.axes) if k not in (*contracted[s], *batch[s])]
        for s, made in enumerate((one, two))
    ]
    shared = numbers(1, tuple(one.axes[k] for k in batch[0]))
    out = [*shared, *numbers(1, tuple(free[0])), *numbers(2, tuple(free[1]))]
    middle = [k for k in A if k in x] + [k for k in B if k in y]
    left = [*(k for k in x if k not in middle), *(k for k in B if k in y)]

    def product(values: dict[int, Any]) -> Array:
        values_of = [value_of(v, values) for v in (one.x, one.A, two.A, two.x)]
        of_weights = jnp.einsum(values_of[1], A, values_of[2], B, middle)
        return jnp.einsum(jnp.einsum(values_of[0], x, of_weights, middle, left), left,
                          values_of[3], y, out)  # fmt: skip

    return product
