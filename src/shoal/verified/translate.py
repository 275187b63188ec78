"""From a jaxpr to a `Program`: one small function per primitive, in the table `PRIMITIVES`.

Integers and booleans that follow from shapes and data are computed at once; floats become
operations. Softmax, logsumexp, centring, normalisation, GELU and SiLU are recognised by wiring
(`patterns`). A primitive without a rule is refused by name and source line.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from shoal.diagnostics.inside import called_jaxpr, place_of
from shoal.verified.balls import COMPARISONS, Refusal
from shoal.verified.patterns import Patterns
from shoal.verified.program import Operation, Program, pruned

LONGEST_LOOP = 1000


class Value(NamedTuple):
    """A float array: the number of its operation, and its shape."""

    number: int
    shape: tuple[int, ...]


class Predicate(NamedTuple):
    """An array of truth values that depend on floats."""

    number: int
    shape: tuple[int, ...]


class Weight(NamedTuple):
    """A trained block, by its number; stands for an argument of the jaxpr."""

    block: int


def translate(closed: ClosedJaxpr, arguments: list[Any]) -> tuple[Program, dict[str, int]]:
    """The program of a jaxpr with one output, and the numbers of the values that were named.

    ``arguments`` are arrays (data, frozen weights) or `Weight`. Names are those given by
    ``jax.ad_checkpoint.checkpoint_name``, and ``scores`` and so on for what enters a softmax.
    """
    if not jax.config.jax_enable_x64:
        raise Refusal("64-bit floats are switched off, so the trace may have rounded the model")
    made = Translator()
    given = [
        made.weight(a.block, var.aval.shape) if isinstance(a, Weight) else made.constant(a)
        for a, var in zip(arguments, closed.jaxpr.invars, strict=True)
    ]
    results = made.run(closed, given, "")
    if len(results) != 1 or not isinstance(results[0], Value):
        raise Refusal("the model does not return one array of floating-point numbers")
    output = results[0].number
    program = pruned(made.operations, output)
    needed = _needed(made.operations, output)
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    named = {name: numbers[n] for name, n in made.names.items() if n in numbers}
    return program, named


def _needed(operations: list[Operation], output: int) -> set[int]:
    needed = {output}
    for number in range(output, -1, -1):
        if number in needed:
            needed.update(operations[number].inputs)
    return needed


class Translator(Patterns):
    """Operations so far, and what is known of them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, int] = {}

    def weight(self, block: int, shape: tuple[int, ...]) -> Value:
        """A trained block."""
        return Value(self.emit("weight", (), int(np.prod(shape)), block=block), shape)

    def constant(self, value: Any) -> Any:
        """An array that is known: floats become an operation, others stay as they are."""
        array = np.asarray(value)
        if array.dtype.kind in "iub":
            return array
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise Refusal(f"an array of {array.dtype} has no enclosure")
        array = array.astype(np.float64)
        number = self.emit("constant", (), array.size, value=array.ravel())
        return Value(number, array.shape)

    # ------------------------------------------------------------------------------- the jaxpr

    def run(self, closed: ClosedJaxpr, given: list[Any], place: str) -> list[Any]:
        """Translate a jaxpr with an environment of its own (trap 17)."""
        names: dict[Any, Any] = dict(zip(closed.jaxpr.invars, given, strict=True))
        for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            names[var] = self.constant(value)

        def value(atom: Any) -> Any:
            return self.constant(atom.val) if isinstance(atom, Literal) else names[atom]

        for equation in closed.jaxpr.eqns:
            self.place = source_line(equation) or place
            outputs = self.equation(equation, [value(atom) for atom in equation.invars])
            names |= dict(zip(equation.outvars, outputs, strict=True))
        return [value(atom) for atom in closed.jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Translate one equation."""
        name, place = equation.primitive.name, self.place
        if name.startswith("custom_"):
            return self.custom(equation, inputs)
        if (inner := called_jaxpr(equation)) is not None:
            return self.run(inner, inputs, place)
        if all(isinstance(x, np.ndarray) for x in inputs) and name not in KEPT:
            return self.known(equation, inputs)
        if name not in PRIMITIVES:
            raise self.refused(f"the primitive {name!r} has no rule")
        outputs = PRIMITIVES[name](self, equation, inputs)
        return outputs if isinstance(outputs, list) else [outputs]

    def refused(self, why: str) -> Refusal:
        """A refusal with the source line."""
        return Refusal(f"{why} ({self.place})" if self.place else why)

    def known(self, equation: Any, inputs: list[np.ndarray]) -> list[Any]:
        """Whole numbers and truth values are computed at once; floats made of them too."""
        out = equation.outvars[0].aval.dtype
        if equation.primitive.name == "convert_element_type" and out.kind == "f":
            return [self.constant(inputs[0].astype(np.float64))]
        if equation.primitive.name == "iota" and out.kind == "f":
            exact = np.asarray(equation.primitive.bind(**(equation.params | {"dtype": np.int64})))
            return [self.constant(exact.astype(np.float64))]
        if any(var.aval.dtype.kind not in "iub" for var in equation.outvars):
            raise self.refused(f"the primitive {equation.primitive.name!r} has no rule")
        found = equation.primitive.bind(*map(jnp.asarray, inputs), **equation.params)
        many = equation.primitive.multiple_results
        return [np.asarray(x) for x in (found if many else [found])]

    def custom(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """A call with a derivative rule of its own: only JAX's own rules are believed (trap 3)."""
        inner = called_jaxpr(equation)
        if inner is None or equation.primitive.name != "custom_jvp_call":
            raise self.refused("a function with its own derivative rule (custom_vjp)")
        name = inner.jaxpr.debug_info.func_name
        if not _is_own_rule(equation, name):
            raise self.refused(f"{name!r} has a derivative rule of its own (custom_jvp)")
        if name == "logaddexp":
            a, b = (self.expanded(x, equation.outvars[0].aval.shape) for x in inputs)
            return [Value(self.log_add_exp(a.number, b.number), a.shape)]
        return self.run(inner, inputs, self.place)

    # --------------------------------------------------------------------------- data movement

    def moved(self, x: Any, index: np.ndarray) -> Any:
        """Entries of a value by number, in the shape of ``index``."""
        if isinstance(x, np.ndarray):
            return x.ravel()[index]
        return type(x)(self.take(x.number, index.ravel()), index.shape)

    def expanded(self, x: Any, shape: tuple[int, ...]) -> Any:
        """A value in a larger shape, if JAX broadcast it implicitly (trap 1)."""
        if np.shape(x) == shape if isinstance(x, np.ndarray) else x.shape == shape:
            return x
        own = np.shape(x) if isinstance(x, np.ndarray) else x.shape
        index = np.arange(int(np.prod(own))).reshape(own)
        return self.moved(x, np.broadcast_to(index, shape))

    def rows(self, x: Value, axes: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
        """Entries as rows over which to reduce, and the shape of what is left."""
        kept = [a for a in range(len(x.shape)) if a not in axes]
        index = np.arange(int(np.prod(x.shape))).reshape(x.shape).transpose(*kept, *axes)
        left = tuple(x.shape[a] for a in kept)
        return index.reshape(int(np.prod(left)), -1), left

    def fold(self, kind: str, a: int, b: int) -> int | None:
        """Sum, difference or product of two literals, if it is a float again."""
        one, other = (self.literal(n) for n in (a, b))
        if one is None or other is None or not np.isfinite([one, other]).all():
            return None
        x, y = Fraction(one), Fraction(other)
        exact = {"add": x + y, "sub": x - y, "mul": x * y}[kind]
        if abs(exact) > 1e300 or Fraction(float(exact)) != exact:
            return None
        value = np.full(self.operations[a].size, float(exact))
        return self.emit("constant", (), value.size, value=value)


def source_line(equation: Any) -> str:
    """The line of the model's source that made an equation, or its module path."""
    trace = equation.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        name = frame.file_name
        inside = any(part in name for part in ("site-packages", "/shoal/verified/", "/shoal/lab/"))
        if not inside and "<" not in name and not name.endswith("/shoal/models.py"):
            return f"{name.rpartition('/')[2]}:{frame.line_num}"
    return place_of(equation)


def _is_own_rule(equation: Any, name: str) -> bool:
    """Whether a derivative rule is that of JAX's function of the same name: equal traces."""
    own = {"relu": jax.nn.relu, "relu6": jax.nn.relu6, "logaddexp": jnp.logaddexp}.get(name)
    if own is None:
        return False
    arguments = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]

    def call(*given: Any) -> Any:
        bound = equation.primitive.get_bind_params(equation.params)
        functions, rest = bound if isinstance(bound, tuple) else ((), bound)
        return equation.primitive.bind(*functions, *given, **rest)[0]

    def rule(function: Callable) -> str:
        def both(given: list, tangents: list) -> Any:
            return jax.jvp(function, given, tangents)

        return str(jax.make_jaxpr(both)(arguments, arguments).jaxpr.eqns)

    axes = tuple(0 if a.ndim else None for a in arguments)
    candidates = [own]
    for _ in range(min(3, max((a.ndim for a in arguments), default=0))):  # under vmap
        candidates.append(jax.vmap(candidates[-1], in_axes=axes))
    try:
        with jax.numpy_rank_promotion("allow"):
            seen = rule(call)
            return any(seen == rule(known) for known in candidates)
    except Exception:  # noqa: BLE001 (whatever goes wrong, the rule is not known)
        return False


# ------------------------------------------------------------------------------------- primitives

Rule = Callable[[Translator, Any, list[Any]], Any]
PRIMITIVES: dict[str, Rule] = {}
KEPT: set[str] = set()
"""Primitives that handle known arrays themselves."""


def _rule(*names: str, known: bool = False) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        PRIMITIVES.update(dict.fromkeys(names, function))
        KEPT.update(names if known else ())
        return function

    return register


def _movement(*names: str) -> Callable[[Callable], Callable]:
    """A primitive that moves entries: a function of an array of their numbers."""

    def register(function: Callable[[Any, np.ndarray], np.ndarray]) -> Callable:
        def rule(to: Translator, equation: Any, inputs: list[Any]) -> Any:
            x = inputs[0]
            shape = np.shape(x) if isinstance(x, np.ndarray) else x.shape
            index = np.arange(int(np.prod(shape))).reshape(shape)
            return to.moved(x, function(equation.params, index))

        _rule(*names)(rule)
        return function

    return register


@_rule("reshape", "squeeze", "expand_dims")
def _reshaped(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    if equation.primitive.name == "reshape" and equation.params["dimensions"] is not None:
        raise to.refused("reshape with an order of its own has no rule")
    return type(inputs[0])(inputs[0].number, equation.outvars[0].aval.shape)


@_rule("copy", "copy_p", "optimization_barrier", "device_put")
def _same(to: Translator, equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    return list(inputs)


@_rule("name")
def _name(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    to.names[equation.params["name"]] = inputs[0].number
    return inputs[0]


@_movement("transpose")
def _transpose(params: Any, index: np.ndarray) -> np.ndarray:
    return index.transpose(params["permutation"])


@_movement("broadcast_in_dim")
def _broadcast(params: Any, index: np.ndarray) -> np.ndarray:
    shape, at = params["shape"], params["broadcast_dimensions"]
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


@_rule("split")
def _split(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    index = np.arange(int(np.prod(inputs[0].shape))).reshape(inputs[0].shape)
    cuts = np.cumsum(equation.params["sizes"])[:-1]
    return [to.moved(inputs[0], part) for part in np.split(index, cuts, equation.params["axis"])]


@_rule("gather", "dynamic_slice")
def _looked_up(to: Translator, equation: Any, inputs: list[Any]) -> Any:
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


@_rule("scatter", "dynamic_update_slice")
def _overwritten(to: Translator, equation: Any, inputs: list[Any]) -> Any:
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


@_rule("pad")
def _pad(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    fill = to.literal(inputs[1].number)
    if fill is None:
        raise to.refused("pad with a value that is not a literal")
    index = jnp.arange(int(np.prod(inputs[0].shape))).reshape(inputs[0].shape)
    found = np.asarray(equation.primitive.bind(index, jnp.asarray(-1), **equation.params))
    return Value(to.take(inputs[0].number, found.ravel(), fill), found.shape)


@_rule("concatenate")
def _concatenate(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    starts = np.cumsum([0, *(int(np.prod(x.shape)) for x in inputs)])
    parts = [
        start + np.arange(int(np.prod(x.shape))).reshape(x.shape)
        for start, x in zip(starts, inputs, strict=False)
    ]
    index = np.concatenate(parts, equation.params["dimension"])
    return Value(to.take(to.join(tuple(x.number for x in inputs)), index.ravel()), index.shape)


@_rule("stack")
def _stack(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    size = int(np.prod(inputs[0].shape))
    parts = [k * size + np.arange(size).reshape(x.shape) for k, x in enumerate(inputs)]
    index = np.stack(parts, equation.params["axis"])
    return Value(to.take(to.join(tuple(x.number for x in inputs)), index.ravel()), index.shape)


# -------------------------------------------------------------------------------------- arithmetic


def _pair(to: Translator, equation: Any, inputs: list[Any]) -> tuple[int, int, tuple[int, ...]]:
    shape = equation.outvars[0].aval.shape
    a, b = (
        to.expanded(to.constant(x.astype(float)) if isinstance(x, np.ndarray) else x, shape)
        for x in inputs
    )
    if isinstance(a, Predicate) or isinstance(b, Predicate):
        raise to.refused(f"{equation.primitive.name} of truth values that depend on weights")
    return a.number, b.number, shape


@_rule("add", "add_any", "sub", "mul", "div")
def _arithmetic(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    kind = {"add_any": "add"}.get(equation.primitive.name, equation.primitive.name)
    a, b, shape = _pair(to, equation, inputs)
    found = to.fold(kind, a, b) if kind != "div" else None
    return Value(to.arithmetic(kind, a, b) if found is None else found, shape)


@_rule("neg")
def _neg(to: Translator, equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    return Value(to.negative(inputs[0].number), inputs[0].shape)


@_rule("max", "min")
def _extreme(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    a, b, shape = _pair(to, equation, inputs)
    name = equation.primitive.name
    never = -np.inf if name == "max" else np.inf  # max(-inf, x) is x
    for one, other in ((a, b), (b, a)):
        if to.literal(one) == never:
            return Value(other, shape)
    first = to.emit("compare", (a, b), int(np.prod(shape)), name="gt" if name == "max" else "lt")
    return Value(to.select(first, a, b), shape)


@_rule("clamp")
def _clamp(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    shape = equation.outvars[0].aval.shape
    low, x, high = (to.expanded(v, shape).number for v in inputs)
    count = int(np.prod(shape))
    x = to.select(to.emit("compare", (x, low), count, name="gt"), x, low)
    return Value(to.select(to.emit("compare", (x, high), count, name="lt"), x, high), shape)


@_rule("abs", "sign")
def _abs(to: Translator, equation: Any, inputs: list[Any]) -> Any:
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


@_rule("exp", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sin", "cos", "sqrt",
       "rsqrt")  # fmt: skip
def _unary(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    return Value(to.unary(equation.primitive.name, inputs[0].number), inputs[0].shape)


@_rule("square", "integer_pow")
def _power(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    return Value(to.power(inputs[0].number, int(equation.params.get("y", 2))), inputs[0].shape)


@_rule("pow")
def _general_power(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    x, y, shape = _pair(to, equation, inputs)
    exponent = to.literal(y)
    if exponent is None:
        raise to.refused("a power whose exponent is not a literal")
    if exponent in (0.5, -0.5):
        return Value(to.unary("sqrt" if exponent > 0 else "rsqrt", x), shape)
    if exponent == round(exponent) and abs(exponent) <= 64:
        return Value(to.power(x, int(exponent)), shape)
    return Value(to.unary("exp", to.arithmetic("mul", y, to.unary("log", x))), shape)


@_rule("dot_general")
def _dot(to: Translator, equation: Any, inputs: list[Any]) -> Any:
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


@_rule("reduce_sum")
def _sum(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    members, left = to.rows(inputs[0], tuple(equation.params["axes"]))
    return Value(to.row_sum(inputs[0].number, members), left)


@_rule("reduce_max", "reduce_min")
def _largest(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    members, left = to.rows(inputs[0], tuple(equation.params["axes"]))
    if equation.primitive.name == "reduce_max":
        return Value(to.row_max(inputs[0].number, members), left)
    return Value(to.negative(to.row_max(to.negative(inputs[0].number), members)), left)


@_rule("stop_gradient")
def _stop(to: Translator, equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    return Value(to.stop(inputs[0].number), inputs[0].shape)


@_rule("convert_element_type")
def _convert(to: Translator, equation: Any, inputs: list[Any]) -> Any:
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


@_rule(*COMPARISONS)
def _compare(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    a, b, shape = _pair(to, equation, inputs)
    name = equation.primitive.name
    if a == b:  # such as x != x, which asks for nan
        return np.full(shape, name in ("ge", "le", "eq"))
    ops = to.operations[a], to.operations[b]
    if all(op.kind == "constant" for op in ops):
        values = [op.options["value"] for op in ops]
        return COMPARISONS[name](*values).reshape(shape)
    return Predicate(to.emit("compare", (a, b), int(np.prod(shape)), name=name), shape)


@_rule("is_finite")
def _finite(to: Translator, equation: Any, inputs: list[Any]) -> Any:  # noqa: ARG001
    x = inputs[0]
    if to.operations[x.number].kind == "constant":
        return np.isfinite(to.operations[x.number].options["value"]).reshape(x.shape)
    return Predicate(to.emit("finite", (x.number,), int(np.prod(x.shape))), x.shape)


@_rule("and", "or", "not", "reduce_and", "reduce_or")
def _logic(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    name, shape = equation.primitive.name, equation.outvars[0].aval.shape
    if any(isinstance(x, Value) for x in inputs):
        raise to.refused(f"{name} of floating-point numbers")
    if name.startswith("reduce"):
        members, left = to.rows(inputs[0], tuple(equation.params["axes"]))
        rows = to.take(inputs[0].number, members.ravel())
        word = "all" if name == "reduce_and" else "any"
        return Predicate(to.emit("logic", (rows,), len(members), name=word), left)
    given = tuple(to.truth(to.expanded(x, shape)) for x in inputs)
    return Predicate(to.emit("logic", given, int(np.prod(shape)), name=name), shape)


@_rule("select_n", known=True)
def _select(to: Translator, equation: Any, inputs: list[Any]) -> Any:
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


@_rule("scan", known=True)
def _scan(to: Translator, equation: Any, inputs: list[Any]) -> Any:
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


def _slice_of(to: Translator, x: Any, step: int) -> Any:
    if isinstance(x, np.ndarray):
        return x[step]
    index = np.arange(int(np.prod(x.shape))).reshape(x.shape)
    return to.moved(x, index[step])


def _stacked(to: Translator, parts: list[Any]) -> Any:
    if all(isinstance(x, np.ndarray) for x in parts):
        return np.stack(parts)
    if not all(isinstance(x, Value) for x in parts):
        raise to.refused("a loop that collects truth values")
    joined = to.join(tuple(x.number for x in parts))
    return Value(joined, (len(parts), *parts[0].shape))


@_rule("cond", known=True)
def _cond(to: Translator, equation: Any, inputs: list[Any]) -> Any:
    which, *rest = inputs
    if not isinstance(which, np.ndarray):
        raise to.refused("a branch that depends on weights (cond)")
    return to.run(equation.params["branches"][int(which)], rest, to.place)
