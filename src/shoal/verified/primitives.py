"""The table of primitives: each a small function from an equation to operations of a program.

`PRIMITIVES` maps a primitive's name to a function of the translator, the equation and its inputs. A
new primitive is one function here, and a test that compares it with values at 300 bits.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.verified.balls import COMPARISONS
from shoal.verified.values import Predicate, Value

if TYPE_CHECKING:
    from shoal.verified.translate import Translator

LONGEST_LOOP = 1000

Rule = Callable[["Translator", Any, list[Any]], Any]
PRIMITIVES: dict[str, Rule] = {}
KEPT: set[str] = set()
"""Primitives that handle known arrays themselves."""


def rule(*names: str, known: bool = False) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some primitives."""

    def register(function: Rule) -> Rule:
        PRIMITIVES.update(dict.fromkeys(names, function))
        KEPT.update(names if known else ())
        return function

    return register


def _movement(*names: str) -> Callable[[Callable], Callable]:
    """A primitive that moves entries: a function of an array of their numbers."""

    def register(function: Callable[[Any, np.ndarray], np.ndarray]) -> Callable:
        def made(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
            x = inputs[0]
            shape = np.shape(x) if isinstance(x, np.ndarray) else x.shape
            index = np.arange(int(np.prod(shape))).reshape(shape)
            return to.moved(x, function(equation.params, index))

        rule(*names)(made)
        return function

    return register


@rule("reshape", "squeeze", "expand_dims")
def _reshaped(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    if equation.primitive.name == "reshape" and equation.params["dimensions"] is not None:
        raise to.refused("reshape with an order of its own has no rule")
    return type(inputs[0])(inputs[0].number, equation.outvars[0].aval.shape)


@rule("copy", "copy_p", "optimization_barrier", "device_put")
def _same(to: "Translator", equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    return list(inputs)


@rule("name")
def _name(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    to.names[equation.params["name"]] = inputs[0].number
    return inputs[0]


@_movement("transpose")
def _transpose(params: Any, index: np.ndarray) -> np.ndarray:
    return index.transpose(params["permutation"])


@_movement("broadcast_in_dim")
def _broadcast(params: Any, index: np.ndarray) -> np.ndarray:
    shape, at = params["shape"], tuple(map(int, params["broadcast_dimensions"]))
    return np.broadcast_to(
        index.reshape([shape_of(index, at, axis) for axis in range(len(shape))]), shape
    )


def shape_of(index: np.ndarray, at: tuple[int, ...], axis: int) -> int:
    """Length of an axis before broadcasting: 1 where it is new."""
    return index.shape[at.index(axis)] if axis in at else 1


@_movement("slice")
def _slice(params: Any, index: np.ndarray) -> np.ndarray:
    steps = params["strides"] or (1,) * index.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return index[tuple(slice(*each) for each in bounds)]


@_movement("rev")
def _rev(params: Any, index: np.ndarray) -> np.ndarray:
    return np.flip(index, params["dimensions"])


@rule("split")
def _split(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    index = np.arange(int(np.prod(inputs[0].shape))).reshape(inputs[0].shape)
    cuts = np.cumsum(equation.params["sizes"])[:-1]
    return [to.moved(inputs[0], part) for part in np.split(index, cuts, equation.params["axis"])]


@rule("gather", "dynamic_slice")
def _looked_up(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    """Entries by known numbers: the primitive itself moves the numbers of the entries."""
    x, *where = inputs
    if not isinstance(x, Value) or not all(isinstance(i, np.ndarray) for i in where):
        raise to.refused(f"{equation.primitive.name} with indices that depend on weights")
    index = jnp.arange(int(np.prod(x.shape))).reshape(x.shape)
    params = dict(equation.params)
    if equation.primitive.name == "gather":  # out of bounds must be seen, not clamped
        mode = jax.lax.GatherScatterMode.FILL_OR_DROP
        params |= {"mode": mode, "fill_value": -1, "indices_are_sorted": False}
    found = np.asarray(equation.primitive.bind(index, *map(jnp.asarray, where), **params))
    if (found < 0).any():
        raise to.refused("an index is out of bounds")
    return to.moved(x, found)


@rule("scatter", "dynamic_update_slice")
def _overwritten(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    """Entries of one array replaced by those of another."""
    scatter = equation.primitive.name == "scatter"
    x, update, where = (inputs[0], inputs[2], inputs[1:2]) if scatter else (*inputs[:2], inputs[2:])
    if not all(isinstance(i, np.ndarray) for i in where):
        raise to.refused(f"{equation.primitive.name} with indices that depend on weights")
    sizes = [int(np.prod(v.shape)) for v in (x, update)]
    old = jnp.arange(sizes[0]).reshape(x.shape)
    new = sizes[0] + jnp.arange(sizes[1]).reshape(update.shape)
    at = tuple(map(jnp.asarray, where))
    given = (old, *at, new) if scatter else (old, new, *at)
    found = np.asarray(equation.primitive.bind(*given, **equation.params))
    if scatter and np.isin(np.arange(sizes[0], sum(sizes)), found).sum() < sizes[1]:
        raise to.refused("scatter writes an entry twice, or out of bounds")
    return Value(to.take(to.join((x.number, update.number)), found.ravel()), found.shape)


@rule("pad")
def _pad(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    fill = to.literal(inputs[1].number)
    if fill is None:
        raise to.refused("pad with a value that is not a literal")
    index = jnp.arange(int(np.prod(inputs[0].shape))).reshape(inputs[0].shape)
    found = np.asarray(equation.primitive.bind(index, jnp.asarray(-1), **equation.params))
    return Value(to.take(inputs[0].number, found.ravel(), fill), found.shape)


@rule("concatenate")
def _concatenate(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    starts = np.cumsum([0, *(int(np.prod(x.shape)) for x in inputs)])
    parts = [
        start + np.arange(int(np.prod(x.shape))).reshape(x.shape)
        for start, x in zip(starts, inputs, strict=False)
    ]
    index = np.concatenate(parts, equation.params["dimension"])
    return Value(to.take(to.join(tuple(x.number for x in inputs)), index.ravel()), index.shape)


@rule("stack")
def _stack(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    size = int(np.prod(inputs[0].shape))
    parts = [k * size + np.arange(size).reshape(x.shape) for k, x in enumerate(inputs)]
    index = np.stack(parts, equation.params["axis"])
    return Value(to.take(to.join(tuple(x.number for x in inputs)), index.ravel()), index.shape)


# -------------------------------------------------------------------------------------- arithmetic


def _pair(to: "Translator", equation: Any, inputs: list[Any]) -> tuple[int, int, tuple[int, ...]]:
    shape = equation.outvars[0].aval.shape
    a, b = (
        to.expanded(to.constant(x.astype(float)) if isinstance(x, np.ndarray) else x, shape)
        for x in inputs
    )
    if isinstance(a, Predicate) or isinstance(b, Predicate):
        raise to.refused(f"{equation.primitive.name} of truth values that depend on weights")
    return a.number, b.number, shape


@rule("add", "add_any", "sub", "mul", "div")
def _arithmetic(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    kind = {"add_any": "add"}.get(equation.primitive.name, equation.primitive.name)
    a, b, shape = _pair(to, equation, inputs)
    found = to.fold(kind, a, b) if kind != "div" else None
    return Value(to.arithmetic(kind, a, b) if found is None else found, shape)


@rule("neg")
def _neg(to: "Translator", equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    return Value(to.negative(inputs[0].number), inputs[0].shape)


@rule("max", "min")
def _extreme(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    a, b, shape = _pair(to, equation, inputs)
    name = equation.primitive.name
    never = -np.inf if name == "max" else np.inf  # max(-inf, x) is x
    for one, other in ((a, b), (b, a)):
        if to.literal(one) == never:
            return Value(other, shape)
    first = to.emit("compare", (a, b), int(np.prod(shape)), name="gt" if name == "max" else "lt")
    return Value(to.select(first, a, b), shape)


@rule("clamp")
def _clamp(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    shape = equation.outvars[0].aval.shape
    low, x, high = (to.expanded(v, shape).number for v in inputs)
    count = int(np.prod(shape))
    x = to.select(to.emit("compare", (x, low), count, name="gt"), x, low)
    return Value(to.select(to.emit("compare", (x, high), count, name="lt"), x, high), shape)


@rule("abs", "sign")
def _abs(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    x, shape = inputs[0].number, inputs[0].shape
    if equation.primitive.name == "abs" and to.is_positive(x):
        return inputs[0]
    count = to.operations[x].size
    zero, one = to.full(0.0, count), to.full(1.0, count)
    above = to.emit("compare", (x, zero), count, name="gt")
    if equation.primitive.name == "abs":
        return Value(to.select(above, x, to.negative(x)), shape)
    below = to.emit("compare", (x, zero), count, name="lt")
    return Value(to.select(above, one, to.select(below, to.negative(one), zero)), shape)


@rule("exp", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sin", "cos", "sqrt",
      "rsqrt", "exp2")  # fmt: skip
def _unary(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    return Value(to.unary(equation.primitive.name, inputs[0].number), inputs[0].shape)


@rule("square", "integer_pow")
def _power(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    return Value(to.power(inputs[0].number, int(equation.params.get("y", 2))), inputs[0].shape)


@rule("pow")
def _general_power(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    x, y, shape = _pair(to, equation, inputs)
    exponent = to.literal(y)
    if exponent is None:
        raise to.refused("a power whose exponent is not a literal")
    if exponent in (0.5, -0.5):
        return Value(to.unary("sqrt" if exponent > 0 else "rsqrt", x), shape)
    if exponent == round(exponent) and abs(exponent) <= 64:
        return Value(to.power(x, int(exponent)), shape)
    return Value(to.unary("exp", to.arithmetic("mul", y, to.unary("log", x))), shape)


@rule("dot_general")
def _dot(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    a, b = (to.constant(x.astype(float)) if isinstance(x, np.ndarray) else x for x in inputs)
    free_a = [i for i in range(len(a.shape)) if i not in (*over_a, *batch_a)]
    free_b = [i for i in range(len(b.shape)) if i not in (*over_b, *batch_b)]
    left = np.arange(int(np.prod(a.shape))).reshape(a.shape).transpose(*batch_a, *free_a, *over_a)
    right = np.arange(int(np.prod(b.shape))).reshape(b.shape).transpose(*batch_b, *over_b, *free_b)
    count = [
        int(np.prod([shape[i] for i in axes]))
        for shape, axes in (
            (a.shape, batch_a), (a.shape, free_a), (a.shape, over_a), (b.shape, free_b)
        )
    ]  # fmt: skip
    one, other = to.take(a.number, left.ravel()), to.take(b.number, right.ravel())
    batch, m, k, n = count
    number = to.emit("dot", (one, other), batch * m * n, sizes=(batch, m, k, n))
    return Value(number, equation.outvars[0].aval.shape)


@rule("reduce_sum")
def _sum(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    members, left = to.rows(inputs[0], tuple(map(int, equation.params["axes"])))
    return Value(to.row_sum(inputs[0].number, members), left)


@rule("reduce_max", "reduce_min")
def _largest(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    members, left = to.rows(inputs[0], tuple(map(int, equation.params["axes"])))
    if equation.primitive.name == "reduce_max":
        return Value(to.row_max(inputs[0].number, members), left)
    return Value(to.negative(to.row_max(to.negative(inputs[0].number), members)), left)


@rule("stop_gradient")
def _stop(to: "Translator", equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    return Value(to.stop(inputs[0].number), inputs[0].shape)


@rule("convert_element_type")
def _convert(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    """Between floats the identity; truth values become 0 and 1 (traps 4 and 5)."""
    x, kind = inputs[0], equation.params["new_dtype"].kind
    if isinstance(x, Predicate):
        if kind == "b":
            return x
        if kind != "f":
            raise to.refused("truth values that depend on weights become whole numbers")
        count = to.operations[x.number].size
        return Value(to.select(x.number, to.full(1.0, count), to.full(0.0, count)), x.shape)
    if kind == "f" or equation.params["new_dtype"].name == "bfloat16":
        return x
    found = to.operations[x.number]
    if found.kind != "constant" or not np.isfinite(found.options["value"]).all():
        raise to.refused("a float becomes a whole number")
    return found.options["value"].reshape(x.shape).astype(equation.params["new_dtype"])


# ---------------------------------------------------------------------------------- truth values


@rule(*COMPARISONS)
def _compare(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    a, b, shape = _pair(to, equation, inputs)
    name = equation.primitive.name
    if a == b:  # such as x != x, which asks for nan
        return np.full(shape, name in ("ge", "le", "eq"))
    ops = to.operations[a], to.operations[b]
    if all(op.kind == "constant" for op in ops):
        values = [op.options["value"] for op in ops]
        return COMPARISONS[name](*values).reshape(shape)
    return Predicate(to.emit("compare", (a, b), int(np.prod(shape)), name=name), shape)


@rule("is_finite")
def _finite(to: "Translator", equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    x = inputs[0]
    if to.operations[x.number].kind == "constant":
        return np.isfinite(to.operations[x.number].options["value"]).reshape(x.shape)
    return Predicate(to.emit("finite", (x.number,), int(np.prod(x.shape))), x.shape)


@rule("and", "or", "not", "reduce_and", "reduce_or")
def _logic(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    name, shape = equation.primitive.name, equation.outvars[0].aval.shape
    if any(isinstance(x, Value) for x in inputs):
        raise to.refused(f"{name} of floating-point numbers")
    if name.startswith("reduce"):
        members, left = to.rows(inputs[0], tuple(map(int, equation.params["axes"])))
        rows = to.take(inputs[0].number, members.ravel())
        word = "all" if name == "reduce_and" else "any"
        return Predicate(to.emit("logic", (rows,), len(members), name=word), left)
    given = tuple(to.truth(to.expanded(x, shape)) for x in inputs)
    return Predicate(to.emit("logic", given, int(np.prod(shape)), name=name), shape)


@rule("select_n", known=True)
def _select(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    which, *cases = inputs
    shape = equation.outvars[0].aval.shape
    which, *cases = (to.expanded(x, shape) for x in (which, *cases))
    if isinstance(which, np.ndarray):
        number = which.astype(int)
        if number.size and (number == number.flat[0]).all():
            return cases[int(number.flat[0])]
        if all(isinstance(x, np.ndarray) for x in cases):
            return np.choose(number, cases)
        if all(isinstance(x, Value) for x in cases):
            index = number * number.size + np.arange(number.size).reshape(shape)
            joined = to.join(tuple(x.number for x in cases))
            return Value(to.take(joined, index.ravel()), shape)
    if isinstance(which, Predicate) and all(isinstance(x, Value) for x in cases):
        otherwise, chosen = cases
        return Value(to.select(which.number, chosen.number, otherwise.number), shape)
    raise to.refused("a choice between truth values that depend on weights")


# ------------------------------------------------------------------------------------------ loops


@rule("scan", known=True)
def _scan(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    """A loop of constant length, unrolled."""
    params = equation.params
    length, body = params["length"], params["jaxpr"]
    if length > LONGEST_LOOP:
        raise to.refused(f"a loop of {length} steps (at most {LONGEST_LOOP} are unrolled)")
    fixed, carried = params["num_consts"], params["num_carry"]
    constants, carry, along = (
        inputs[:fixed],
        inputs[fixed : fixed + carried],
        inputs[fixed + carried :],
    )
    order = range(length)[::-1] if params["reverse"] else range(length)
    collected: dict[int, list[Any]] = {}
    for step in order:
        slices = [_slice_of(to, x, step) for x in along]
        results = to.run(body, [*constants, *carry, *slices], to.place)
        carry, collected[step] = results[:carried], results[carried:]
    stacked = [
        _stacked(to, [collected[k][i] for k in range(length)])
        for i in range(len(equation.outvars) - carried)
    ]
    return [*carry, *stacked]


def _slice_of(to: "Translator", x: Any, step: int) -> Any:
    if isinstance(x, np.ndarray):
        return x[step, ...]
    index = np.arange(int(np.prod(x.shape))).reshape(x.shape)
    return to.moved(x, index[step, ...])


def _stacked(to: "Translator", parts: list[Any]) -> Any:
    if all(isinstance(x, np.ndarray) for x in parts):
        return np.stack(parts)
    if not all(isinstance(x, Value) for x in parts):
        raise to.refused("a loop that collects truth values")
    joined = to.join(tuple(x.number for x in parts))
    return Value(joined, (len(parts), *parts[0].shape))


@rule("cond", known=True)
def _cond(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    which, *rest = inputs
    if not isinstance(which, np.ndarray):
        raise to.refused("a branch that depends on weights (cond)")
    return to.run(equation.params["branches"][int(which)], rest, to.place)
