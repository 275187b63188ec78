r"""Enclosures of any JAX function: its jaxpr evaluated in interval arithmetic, in NumPy.

`enclosed` is to a jaxpr what evaluation is, but every float becomes an `Interval` that contains the
real number which the formula denotes at the given floats. Comparisons that the ends do not decide
select both branches. Arguments are exact; a float constant in the formula that is not a multiple of
2^-20 may have been rounded and is widened. Singular values and eigenvalues are verified
(`spectra`). What `chosen` marks is a free choice: any value makes a true statement, so it is
computed in floats and taken as it is. The result of a primitive without a rule is not known at all:
the interval from -inf to inf.
"""

import functools
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import jaxprs_in_params

from shoal.verified import balls, intervals, spectra
from shoal.verified.balls import Refusal
from shoal.verified.intervals import Interval, Truth, point
from shoal.verified.translate import source_line

CHOSEN = "chosen_value"
SPREAD = "enclosure_width"
Value = Any
"""An `Interval` for floats, a `Truth` for predicates, an array of whole numbers, all exact."""


class NoRule(Refusal):
    """The formula uses a primitive that has no rule, whatever the numbers."""


def chosen(function: Callable) -> Callable:
    """Mark a function whose value is a free choice, such as a radius: any will do.

    >>> float(chosen(lambda x: x + 1)(1.0))
    2.0
    """

    def chosen_value(*args: Any) -> Any:
        return function(*args)

    return jax.jit(chosen_value)


@jax.jit
def enclosure_width(value: Any) -> Any:
    """Width of the enclosure of a value, which bounds its rounding error; 0 in plain floats.

    A theorem says by it how far a run, which evaluates the same formula in floats, may be off.
    """
    return jax.numpy.zeros_like(value)


class _UnderWay:
    """Primitives without a rule that an evaluation met, and the equations that it is inside of."""

    def __init__(self) -> None:
        self.without_rule: dict[str, None] = {}
        self.inside: list[Any] = []

    def note(self, name: str) -> None:
        """Note a primitive without a rule, with the innermost line of source that is known."""
        place = next(filter(None, map(source_line, reversed(self.inside))), "")
        self.without_rule[f"{name} ({place})" if place else name] = None


_UNDER_WAY: ContextVar[_UnderWay] = ContextVar("under_way")


class Enclosed(NamedTuple):
    """Enclosures of the outputs of a formula, and which of its primitives had no rule."""

    values: list[Value]
    without_rule: tuple[str, ...]  # Such as "'sort' (my.py:12)".


def enclosed(closed: Any, args: list[Any]) -> Enclosed:
    """Enclose the outputs of a closed jaxpr at exact arguments."""
    under_way = _UnderWay()
    token = _UNDER_WAY.set(under_way)
    try:
        with np.errstate(all="ignore"):
            values = _evaluate(closed.jaxpr, closed.consts, [_argument(x) for x in args])
    except Refusal:  # a loop whose end is open, an index that is not known
        values = [_anything(v.aval) for v in closed.jaxpr.outvars]
    finally:
        _UNDER_WAY.reset(token)
    return Enclosed(values, tuple(under_way.without_rule))


def _anything(aval: Any) -> Value:
    if aval.dtype == bool:
        return Truth(np.zeros(aval.shape, bool), np.ones(aval.shape, bool))
    return Interval(np.full(aval.shape, -np.inf), np.full(aval.shape, np.inf))


def _argument(value: Any) -> Value:
    array = np.asarray(value)
    if array.dtype == bool:
        return Truth(array, array)
    return point(array) if array.dtype.kind == "f" else array


def _constant(value: Any) -> Value:
    """A constant of the formula, which may have been rounded when it was written."""
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return _argument(array)
    scaled = array.astype(np.float64) * 2.0**20
    if np.all((scaled == np.round(scaled)) | ~np.isfinite(array)):
        return point(array)
    return intervals.widened(point(array), 8 * balls.UNIT)


def _evaluate(jaxpr: Any, consts: Any, args: list[Value]) -> list[Value]:
    plan, under_way = _plan(jaxpr), _UNDER_WAY.get()
    values: dict[Any, Value] = dict(zip(jaxpr.invars, args, strict=True))
    values |= dict(zip(jaxpr.constvars, map(_constant, consts), strict=True))

    def read(atom: Any) -> Value:
        return _constant(atom.val) if isinstance(atom, core.Literal) else values[atom]

    for equation, over in plan:
        under_way.inside.append(equation)
        try:
            found = _applied(equation, [read(atom) for atom in equation.invars])
        except NoRule as why:
            under_way.note(str(why))
            avals = [v.aval for v in equation.outvars]
            if any(aval.dtype.kind in "iu" for aval in avals):
                raise Refusal("a whole number is not known") from why
            found = [_anything(aval) for aval in avals]
        under_way.inside.pop()
        values |= dict(zip(equation.outvars, found, strict=True))
        for variable in over:
            del values[variable]
    return [read(atom) for atom in jaxpr.outvars]


@functools.lru_cache(maxsize=1024)
def _plan(jaxpr: Any) -> list[tuple[Any, list[Any]]]:
    """Equations that the outputs depend on, each with the variables that nobody reads after it."""
    wanted = {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    found = []
    for equation in reversed(jaxpr.eqns):
        if any(v in wanted for v in equation.outvars):
            read = {v for v in equation.invars if not isinstance(v, core.Literal)}
            found.append((equation, [v for v in {*read, *equation.outvars} if v not in wanted]))
            wanted |= read
    return found[::-1]


def needed_bytes(jaxpr: Any) -> float:
    """Memory that an enclosure takes at most, roughly, foreseen from shapes.

    Two ends for what is still to be read, and eight arrays like its result for an operation.
    """
    held: dict[Any, float] = {v: _bytes(v) for v in (*jaxpr.invars, *jaxpr.constvars)}
    most = 0.0
    for equation, over in _plan(jaxpr):
        inner = max(map(needed_bytes, jaxprs_in_params(equation.params)), default=0.0)
        made = {v: _bytes(v) for v in equation.outvars}
        most = max(most, 2 * sum(held.values()) + max(inner, 8 * sum(made.values())))
        held |= made
        for variable in over:
            held.pop(variable, None)
    return most


def _bytes(variable: Any) -> float:
    return 8.0 * math.prod(map(float, variable.aval.shape))


def _applied(equation: Any, given: list[Value]) -> list[Value]:
    name = equation.primitive.name
    whole = name not in CALLS and not any(isinstance(x, Interval | Truth) for x in given)
    if whole and all(v.aval.dtype.kind in "iu" for v in equation.outvars):
        found = equation.primitive.bind(*given, **equation.params)
        several = equation.primitive.multiple_results
        return [np.asarray(x) for x in (found if several else [found])]
    if name not in RULES:
        raise NoRule(repr(name))
    found = RULES[name](equation.params, *given)
    return found if isinstance(found, list) else [found]


# ----------------------------------------------------------------------------- calls and loops


def middle(value: Value) -> Any:
    """A float in the middle of an enclosure; what a free choice is computed from."""
    if isinstance(value, Interval):
        mid = 0.5 * value.low + 0.5 * value.high
        return value.low if value.exact else np.where(np.isfinite(mid), mid, np.nan)
    return value.sure if isinstance(value, Truth) else value


@functools.lru_cache(maxsize=256)
def _compiled(closed: Any) -> Callable:
    return jax.jit(core.jaxpr_as_fun(closed))


def _call(params: dict[str, Any], *given: Value) -> list[Value]:
    closed: Any = params.get("jaxpr") or params.get("call_jaxpr") or params.get("call")
    closed = closed if hasattr(closed, "consts") else core.ClosedJaxpr(closed, ())
    if params.get("name") == CHOSEN:
        # what is chosen for numbers that are not finite is of no use, and does no harm
        found = _compiled(closed)(*map(middle, given))
        return [_argument(x) for x in found]
    if params.get("name") == SPREAD:
        return [point(np.where(x.low == x.high, 0.0, x.high - x.low)) for x in given]
    return _evaluate(closed.jaxpr, closed.consts, list(given))


def _indexed(value: Value, k: int) -> Value:
    return _moved(lambda x: x[k], value)


def _moved(move: Callable[[np.ndarray], np.ndarray], value: Value) -> Value:
    """Entries moved about; a single point stays one."""
    if isinstance(value, Interval):
        low = move(value.low)
        return Interval(low, low) if value.exact else Interval(low, move(value.high))
    return Truth(*map(move, value)) if isinstance(value, Truth) else move(value)


def _joined(parts: list[Value], how: Callable[[list[np.ndarray]], np.ndarray]) -> Value:
    first = parts[0]
    if isinstance(first, Interval):
        low = how([p.low for p in parts])
        if all(p.exact for p in parts):
            return Interval(low, low)
        return Interval(low, how([p.high for p in parts]))
    if isinstance(first, Truth):
        return Truth(how([p.sure for p in parts]), how([p.possible for p in parts]))
    return how(parts)


def _scan(params: dict[str, Any], *given: Value) -> list[Value]:
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    closed, length = params["jaxpr"], params["length"]
    fixed, carry = list(given[:num_consts]), list(given[num_consts : num_consts + num_carry])
    seen = given[num_consts + num_carry :]
    order = range(length)[::-1] if params["reverse"] else range(length)
    made: dict[int, list[Value]] = {}
    for k in order:
        inputs = fixed + carry + [_indexed(x, k) for x in seen]
        found = _evaluate(closed.jaxpr, closed.consts, inputs)
        carry, made[k] = found[:num_carry], found[num_carry:]
    stacks = [_joined([made[k][i] for k in range(length)], np.stack)
              for i in range(len(made[0]) if length else 0)]  # fmt: skip
    if not length:
        stacks = [_empty(v.aval) for v in closed.jaxpr.outvars[num_carry:]]
    return carry + stacks


def _empty(aval: Any) -> Value:
    return _argument(np.zeros((0, *aval.shape), aval.dtype))


def _while(params: dict[str, Any], *given: Value) -> list[Value]:
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    asked, fixed, carry = (
        list(given[: split[0]]),
        list(given[split[0] : split[1]]),
        given[split[1] :],
    )
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    while True:
        (more,) = _evaluate(cond.jaxpr, cond.consts, [*asked, *carry])
        if bool(np.any(more.sure != more.possible)):
            raise Refusal("the end of a loop is not decided")
        if not bool(np.all(more.sure)):
            return list(carry)
        carry = tuple(_evaluate(body.jaxpr, body.consts, [*fixed, *carry]))


def _cond(params: dict[str, Any], index: Any, *given: Value) -> list[Value]:
    """The branch of a whole number, which is known exactly."""
    branches = params["branches"]
    chosen_one = branches[int(np.clip(index, 0, len(branches) - 1))]
    return _evaluate(chosen_one.jaxpr, chosen_one.consts, list(given))


# ---------------------------------------------------------------------------------- arrays


def _dot_general(params: dict[str, Any], a: Interval, b: Interval) -> Interval:
    (over_a, over_b), (batch_a, batch_b) = params["dimension_numbers"]
    free_a = [k for k in range(len(a.shape)) if k not in (*over_a, *batch_a)]
    free_b = [k for k in range(len(b.shape)) if k not in (*over_b, *batch_b)]
    batch = [a.shape[k] for k in batch_a]
    size = int(np.prod([a.shape[k] for k in over_a], dtype=int))

    def left(x: Any) -> Any:
        return x.transpose(*batch_a, *free_a, *over_a).reshape(*batch, -1, size)

    def right(x: Any) -> Any:
        return x.transpose(*batch_b, *over_b, *free_b).reshape(*batch, size, -1)

    found = intervals.dot(_moved(left, a), _moved(right, b))
    shape = (*batch, *(a.shape[k] for k in free_a), *(b.shape[k] for k in free_b))
    return _moved(lambda x: x.reshape(shape), found)


def _broadcast(params: dict[str, Any], a: Value, *_: Value) -> Value:
    shape, kept = params["shape"], params["broadcast_dimensions"]

    def move(x: Any) -> Any:
        spread = [1] * len(shape)
        for k, axis in enumerate(kept):
            spread[axis] = x.shape[k]
        return np.broadcast_to(x.reshape(spread), shape)

    return _moved(move, a)


def _slice(params: dict[str, Any], a: Value) -> Value:
    strides = params["strides"] or (1,) * len(params["start_indices"])
    cut = tuple(map(slice, params["start_indices"], params["limit_indices"], strides))
    return _moved(lambda x: x[cut], a)


def _dynamic_slice(params: dict[str, Any], a: Value, *starts: Any) -> Value:
    shape = a.sure.shape if isinstance(a, Truth) else a.shape
    first = [
        int(np.clip(s, 0, n - k))
        for s, n, k in zip(starts, shape, params["slice_sizes"], strict=True)
    ]
    cut = tuple(slice(s, s + k) for s, k in zip(first, params["slice_sizes"], strict=True))
    return _moved(lambda x: x[cut], a)


def _by_jax(primitive: str) -> Callable:
    """Entries moved about by JAX itself: gather, pad."""

    def rule(params: dict[str, Any], a: Value, *rest: Value) -> Value:
        extra = [middle(x) for x in rest]
        bind = _BIND[primitive]
        return _moved(lambda x: np.asarray(bind(x, *extra, **params)), a)

    return rule


_BIND = {"gather": jax.lax.gather_p.bind, "pad": jax.lax.pad_p.bind}


def _scatter_add(params: dict[str, Any], a: Value, where: Any, b: Value) -> Value:
    if not (isinstance(a, Interval) and isinstance(b, Interval)):
        raise NoRule("'scatter-add' of whole numbers")
    bind = jax.lax.scatter_add_p.bind
    return intervals.scattered(lambda x, y: np.asarray(bind(x, where, y, **params)), a, b)


def _scatter(params: dict[str, Any], a: Value, where: Any, b: Value) -> Value:
    """Entries replaced by others; which one stays if there are several is open."""
    if params["update_jaxpr"] is not None or not isinstance(a, Interval | Truth):
        raise NoRule("'scatter' by a function, or of whole numbers")
    if not params["unique_indices"]:
        raise NoRule("'scatter' to places that may coincide")
    bind = jax.lax.scatter_p.bind
    low, high = (np.asarray(bind(x, where, y, **params)) for x, y in zip(a, b, strict=True))
    sharp = isinstance(a, Interval) and a.exact and b.exact
    return Interval(low, low) if sharp else type(a)(low, high)


def _split(params: dict[str, Any], a: Value) -> list[Value]:
    at, axis = np.cumsum(params["sizes"])[:-1], params["axis"]
    count = len(params["sizes"])

    def part(k: int) -> Callable:
        return lambda x: np.split(x, at, axis)[k]

    return [_moved(part(k), a) for k in range(count)]


def _convert(params: dict[str, Any], a: Value) -> Value:
    kind = np.dtype(params["new_dtype"])
    if kind.kind == "f":
        if isinstance(a, Truth):
            return Interval(a.sure.astype(float), a.possible.astype(float))
        return a if isinstance(a, Interval) else point(a)
    if kind.kind == "b" and isinstance(a, Interval):
        return intervals.negation(intervals.equal(a, point(np.zeros(a.shape))))
    if isinstance(a, Interval):
        if not np.array_equal(a.low, a.high):
            raise Refusal("a whole number depends on a rounded one")
        return a.low.astype(kind)
    if isinstance(a, Truth):
        if not np.array_equal(*a):
            raise Refusal("a whole number depends on an undecided comparison")
        return a.sure.astype(kind)
    return a.astype(kind) if kind.kind != "b" else Truth(a != 0, a != 0)


def _select(params: dict[str, Any], which: Value, *cases: Value) -> Value:  # noqa: ARG001
    if isinstance(which, Truth) and isinstance(cases[0], Interval):
        return intervals.choice(which, cases[1], cases[0])
    if isinstance(which, Truth) and isinstance(cases[0], Truth):
        no, yes = cases
        return Truth(
            np.where(which.sure, yes.sure, ~which.possible & no.sure | yes.sure & no.sure),
            np.where(which.sure, yes.possible, no.possible | which.possible & yes.possible),
        )
    if isinstance(which, Truth):
        if not np.array_equal(*which):
            raise Refusal("a whole number depends on an undecided comparison")
        return np.where(which.sure, cases[1], cases[0])
    return _joined(list(cases), lambda parts: np.choose(which, parts))


def _reduced(how: Callable) -> Callable:
    def rule(params: dict[str, Any], a: Value) -> Value:
        axes = tuple(map(int, params["axes"]))
        return _moved(lambda x: how(x, axis=axes), a)

    return rule


def _sum(params: dict[str, Any], a: Interval) -> Interval:
    return intervals.total(a, tuple(map(int, params["axes"])))


def _cumulated(params: dict[str, Any], a: Value) -> Value:
    axis, parts = params["axis"], []
    if not isinstance(a, Interval) or params["reverse"]:
        raise NoRule("'cumsum' backwards, or of whole numbers")
    for k in range(a.shape[axis]):
        part = _moved(functools.partial(np.take, indices=range(k + 1), axis=axis), a)
        parts.append(intervals.total(part, (axis,)))
    return _joined(parts, lambda xs: np.stack(xs, axis))


def _compared(name: str) -> Callable:
    def rule(_: dict[str, Any], a: Value, b: Value) -> Truth:
        if not isinstance(a, Interval | Truth):
            found = balls.COMPARISONS[name](a, b)
            return Truth(found, found)
        if a is b and isinstance(a, Interval):  # x != x asks for NaN, and a real number is none
            same = np.full(a.shape, name in ("eq", "le", "ge"))
            return Truth(same, same)
        if isinstance(a, Truth):
            a, b = (Interval(x.sure.astype(float), x.possible.astype(float)) for x in (a, b))
        return {
            "lt": lambda: intervals.less(a, b), "gt": lambda: intervals.less(b, a),
            "le": lambda: intervals.less_equal(a, b), "ge": lambda: intervals.less_equal(b, a),
            "eq": lambda: intervals.equal(a, b),
            "ne": lambda: intervals.negation(intervals.equal(a, b)),
        }[name]()  # fmt: skip

    return rule


def _both(how: Callable) -> Callable:
    """Operations that act on sure and possible, or on the two ends, alike."""

    def rule(_: dict[str, Any], *given: Value) -> Value:
        if isinstance(given[0], Interval):
            return Interval(how(*(x.low for x in given)), how(*(x.high for x in given)))
        return Truth(how(*(x.sure for x in given)), how(*(x.possible for x in given)))

    return rule


def _arithmetic(how: Callable) -> Callable:
    return lambda _, *given: how(*given)


def _scalar(rule: Callable) -> Callable:
    return lambda params, a: rule(a)  # noqa: ARG005


def _finite(_: dict[str, Any], a: Interval) -> Truth:
    known = np.isfinite(a.low) & np.isfinite(a.high)
    endless = np.isinf(a.low) & (a.low == a.high)
    return Truth(known, ~endless)


# ----------------------------------------------------------------------------- linear algebra


def _spectrum(rule: Callable, a: Interval) -> Interval:
    """The rule for every matrix of a batch."""
    flat = (x.reshape(-1, *a.shape[-2:]) for x in a)
    found = [rule(intervals.ball_of(Interval(*ends))) for ends in zip(*flat, strict=True)]
    ends = (np.stack([f[k] for f in found]) for k in (0, 1))
    return Interval(*(x.reshape(*a.shape[:-2], *x.shape[1:]) for x in ends))


def _svd(params: dict[str, Any], a: Interval) -> list[Value]:
    if params["compute_uv"]:
        raise NoRule("'svd' with its vectors")
    return [_spectrum(spectra.singular_values, a)]


def _eigh(_: dict[str, Any], a: Interval) -> list[Value]:
    """Eigenvectors, as far as eigenvalues are apart, and eigenvalues."""
    return [_spectrum(spectra.eigenvectors, a), _spectrum(spectra.eigenvalues, a)]


RULES: dict[str, Callable] = {
    "add": _arithmetic(intervals.add),
    "add_any": _arithmetic(intervals.add),
    "sub": _arithmetic(intervals.sub),
    "mul": _arithmetic(intervals.mul),
    "div": _arithmetic(intervals.div),
    "neg": _arithmetic(intervals.neg),
    "abs": _arithmetic(intervals.absolute),
    "square": lambda _, a: intervals.whole_power(a, 2),
    "integer_pow": lambda params, a: intervals.whole_power(a, params["y"]),
    "pow": lambda _, a, b: intervals.power(a, b if isinstance(b, Interval) else point(b)),
    "atan2": _arithmetic(intervals.angle),
    "max": _both(np.maximum),
    "min": _both(np.minimum),
    "and": _both(np.logical_and),
    "or": _both(np.logical_or),
    "not": _arithmetic(intervals.negation),
    "is_finite": _finite,
    "clamp": lambda _, low, x, high: Interval(
        *(np.minimum(np.maximum(b, a), c) for a, b, c in zip(low, x, high, strict=True))
    ),
    "select_n": _select,
    "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_and": _reduced(np.all),
    "reduce_or": _reduced(np.any),
    "reduce_sum": _sum,
    "cumsum": _cumulated,
    "dot_general": _dot_general,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda params, a: _moved(lambda x: x.reshape(params["new_sizes"]), a),
    "transpose": lambda params, a: _moved(lambda x: x.transpose(params["permutation"]), a),
    "squeeze": lambda params, a: _moved(lambda x: x.squeeze(params["dimensions"]), a),
    "expand_dims": lambda params, a: _moved(lambda x: np.expand_dims(x, params["dimensions"]), a),
    "rev": lambda params, a: _moved(lambda x: np.flip(x, params["dimensions"]), a),
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "split": _split,
    "concatenate": lambda params, *parts: _joined(
        list(parts), lambda xs: np.concatenate(xs, params["dimension"])
    ),
    "stack": lambda params, *parts: _joined(
        list(parts), lambda xs: np.stack(xs, params.get("axis", 0))
    ),
    "gather": _by_jax("gather"),
    "scatter": _scatter,
    "scatter-add": _scatter_add,
    "pad": _by_jax("pad"),
    "convert_element_type": _convert,
    "copy": lambda _, a: a,
    "stop_gradient": lambda _, *given: list(given),
    "optimization_barrier": lambda _, *given: list(given),
    "reduce_precision": lambda _, a: a,
    "svd": _svd,
    "eigh": _eigh,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
RULES |= {name: _scalar(rule) for name, rule in intervals.FUNCTIONS.items()}
RULES |= {name: _compared(name) for name in ("lt", "gt", "le", "ge", "eq", "ne")}
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call",
         "remat", "checkpoint", "scan", "while", "cond")  # fmt: skip
RULES |= dict.fromkeys(CALLS[:-3], _call)
