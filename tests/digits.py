"""What a theorem compares, at 60 digits: jaxprs in mpmath. Shares no code with the enclosures."""

import functools

import jax
import mpmath
import numpy as np
from jax.extend import core

from shoal import native
from shoal.lab.engine import _sides
from shoal.verified.enclose import CHOSEN, SPREAD

mpmath.mp.dps = 60
mpf = mpmath.mpf
CHOICES: dict = {}
"""Free choices (`chosen`) that the enclosures made last: the same statement is judged."""


def recorded(compiled):
    """What the enclosures choose with, keeping the choices."""

    def choose(closed):
        def call(*args):
            CHOICES[str(closed.jaxpr)] = made = compiled(closed)(*args)
            return made

        return call

    return choose


def _each(function):
    return np.frompyfunc(function, 1, 1)


def _pair(function):
    return np.frompyfunc(function, 2, 1)


def exact(value):
    """An array of floats as 60-digit numbers; others as they are."""
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore"):  # nan stays nan
        return np.asarray(_each(lambda x: mpf(float(x)))(array.astype(object)), object)


def floats(value):
    """The nearest floats."""
    array = np.asarray(value)
    if array.dtype != object:
        return array
    return np.asarray(_each(float)(array), object).astype(float)


def evaluate(jaxpr, consts, args):
    values = dict(zip(jaxpr.invars, args, strict=True))
    values |= dict(zip(jaxpr.constvars, map(exact, consts), strict=True))

    def read(atom):
        return exact(atom.val) if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        found = _applied(equation, [read(v) for v in equation.invars])
        values |= dict(zip(equation.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


@functools.cache
def _compiled(closed):
    return jax.jit(core.jaxpr_as_fun(closed))


def _applied(equation, given):
    name, params = equation.primitive.name, equation.params
    given = [np.asarray(x) for x in given]
    closed = params.get("jaxpr") or params.get("call_jaxpr") or params.get("call")
    if name == "scan":
        return _scan(params, given)
    if closed is not None:
        closed = closed if hasattr(closed, "consts") else core.ClosedJaxpr(closed, ())
        if params.get("name") == CHOSEN:
            made = CHOICES.get(str(closed.jaxpr))
            made = _compiled(closed)(*map(floats, given)) if made is None else made
            return [exact(x) for x in made]
        if params.get("name") == SPREAD:
            return [x * 0 for x in given]
        return evaluate(closed.jaxpr, closed.consts, given)
    if name in MOVES or not any(x.dtype == object for x in given):
        return _moved(equation, given)
    found = RULES[name](params, *given)
    return found if isinstance(found, list) else [np.asarray(found, _kind(found))]


def _kind(found):
    array = np.asarray(found)
    return bool if array.dtype == bool else object


def _moved(equation, given):
    """Entries moved about: JAX moves their numbers."""
    objects = [x for x in given if x.dtype == object]
    if not objects:
        found = equation.primitive.bind(*given, **equation.params)
        many = equation.primitive.multiple_results
        return [exact(x) for x in (found if many else [found])]
    pool = np.concatenate([x.ravel() for x in objects])
    start, stand_ins = 0, []
    for x in given:
        if x.dtype == object:
            stand_ins.append(np.arange(start, start + x.size, dtype=float).reshape(x.shape))
            start += x.size
        else:
            stand_ins.append(x)
    found = equation.primitive.bind(*stand_ins, **equation.params)
    found = found if equation.primitive.multiple_results else [found]
    return [pool[np.asarray(x).astype(int)] if np.asarray(x).dtype.kind == "f" else np.asarray(x)
            for x in found]  # fmt: skip


MOVES = ("broadcast_in_dim", "reshape", "transpose", "squeeze", "slice", "concatenate", "rev",
         "split", "stack", "copy", "expand_dims", "gather", "dynamic_slice")  # fmt: skip


def _scan(params, given):
    consts, carry = params["num_consts"], params["num_carry"]
    fixed, state, seen = given[:consts], given[consts : consts + carry], given[consts + carry :]
    closed, made = params["jaxpr"], []
    order = range(params["length"])
    for k in reversed(order) if params["reverse"] else order:
        found = evaluate(closed.jaxpr, closed.consts, [*fixed, *state, *(x[k] for x in seen)])
        state, rest = found[:carry], found[carry:]
        made.append(rest)
    made = made[::-1] if params["reverse"] else made
    stacks = [
        np.stack([np.asarray(m[i]) for m in made]) for i in range(len(made[0]) if made else 0)
    ]
    return [*state, *stacks]


def _dot(params, a, b):
    (over_a, over_b), (batch_a, batch_b) = params["dimension_numbers"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    names_a, names_b = list(letters[: a.ndim]), [""] * b.ndim
    for i, j in zip((*over_a, *batch_a), (*over_b, *batch_b), strict=True):
        names_b[j] = names_a[i]
    free = iter(letters[a.ndim :])
    names_b = [x or next(free) for x in names_b]
    out = [names_a[i] for i in batch_a]
    out += [x for k, x in enumerate(names_a) if k not in (*over_a, *batch_a)]
    out += [x for k, x in enumerate(names_b) if k not in (*over_b, *batch_b)]
    script = f"{''.join(names_a)},{''.join(names_b)}->{''.join(out)}"
    return np.einsum(script, a, b, optimize=False)


def _spectrum(values):
    def rule(a):
        flat = a.reshape(-1, *a.shape[-2:])
        rows = [values(mpmath.matrix(m.tolist())) for m in flat]
        return np.array(rows, object).reshape(*a.shape[:-2], -1)

    return rule


def _singular(M):
    M = M if M.rows >= M.cols else M.T
    return sorted((x for x in mpmath.svd_r(M, compute_uv=False)), reverse=True)


def _eigen(M):
    return sorted(mpmath.eigsy(M, eigvals_only=True))


def _power(x, y):
    return mpf(1) if y == 0 else x**y


def _guarded(function):
    """JAX divides and roots without raising."""

    def call(*args):
        try:
            found = function(*args)
        except (ZeroDivisionError, ValueError, OverflowError):
            return mpmath.nan
        return found if not isinstance(found, mpmath.mpc) else mpmath.nan

    return call


def _divide(x, y):
    if y == 0:
        return mpmath.nan if x == 0 else mpmath.inf * mpmath.sign(x)
    return x / y


def _compare(how):
    return lambda _, a, b: np.asarray(np.frompyfunc(lambda x, y: bool(how(x, y)), 2, 1)(a, b), bool)


def _convert(params, a):
    if np.dtype(params["new_dtype"]).kind == "f":
        return a if a.dtype == object else exact(a.astype(float))
    return np.asarray(a, np.dtype(params["new_dtype"]))


def _largest(x, y):
    return mpmath.nan if x != x or y != y else max(x, y)


def _least(x, y):
    return mpmath.nan if x != x or y != y else min(x, y)


def _fold(how, a, axes):
    found = a
    for axis in sorted(axes, reverse=True):
        found = np.asarray(np.frompyfunc(how, 2, 1).reduce(found, axis=axis))
    return found


RULES = {
    "add": lambda _, a, b: a + b, "add_any": lambda _, a, b: a + b, "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b, "div": lambda _, a, b: _pair(_divide)(a, b),
    "neg": lambda _, a: -a, "abs": lambda _, a: _each(abs)(a), "square": lambda _, a: a * a,
    "integer_pow": lambda p, a: _each(_guarded(lambda x: x ** p["y"]))(a),
    "pow": lambda _, a, b: _pair(_guarded(_power))(a, b),
    "sqrt": lambda _, a: _each(_guarded(mpmath.sqrt))(a),
    "rsqrt": lambda _, a: _each(_guarded(lambda x: 1 / mpmath.sqrt(x)))(a),
    "exp": lambda _, a: _each(mpmath.exp)(a), "log": lambda _, a: _each(_guarded(mpmath.log))(a),
    "log1p": lambda _, a: _each(_guarded(lambda x: mpmath.log(1 + x)))(a),
    "expm1": lambda _, a: _each(mpmath.expm1)(a), "tanh": lambda _, a: _each(mpmath.tanh)(a),
    "logistic": lambda _, a: _each(lambda x: 1 / (1 + mpmath.exp(-x)))(a),
    "sin": lambda _, a: _each(mpmath.sin)(a), "cos": lambda _, a: _each(mpmath.cos)(a),
    "erf": lambda _, a: _each(mpmath.erf)(a), "sign": lambda _, a: _each(mpmath.sign)(a),
    "atan2": lambda _, a, b: _pair(mpmath.atan2)(a, b),
    "atan": lambda _, a: _each(mpmath.atan)(a), "atanh": lambda _, a: _each(mpmath.atanh)(a),
    "max": lambda _, a, b: _pair(_largest)(a, b), "min": lambda _, a, b: _pair(_least)(a, b),
    "reduce_sum": lambda p, a: _fold(lambda x, y: x + y, a, p["axes"]),
    "reduce_max": lambda p, a: _fold(_largest, a, p["axes"]),
    "reduce_min": lambda p, a: _fold(_least, a, p["axes"]),
    "lt": _compare(lambda x, y: x < y), "gt": _compare(lambda x, y: x > y),
    "le": _compare(lambda x, y: x <= y), "ge": _compare(lambda x, y: x >= y),
    "eq": _compare(lambda x, y: x == y), "ne": _compare(lambda x, y: x != y),
    "is_finite": lambda _, a: np.asarray(_each(lambda x: bool(mpmath.isfinite(x)))(a), bool),
    "select_n": lambda _, w, no, yes: np.where(w, yes, no),
    "clamp": lambda _, low, x, high: _pair(_least)(_pair(_largest)(x, low), high),
    "convert_element_type": _convert, "stop_gradient": lambda _, *a: list(a),
    "optimization_barrier": lambda _, *a: list(a), "dot_general": _dot,
    "svd": lambda _, a: [_spectrum(_singular)(a)],
    "eigh": lambda _, a: [a * mpmath.nan, _spectrum(_eigen)(a)],
    "pad": lambda p, a, b: _moved_pad(p, a, b),
}  # fmt: skip


def _moved_pad(params, a, b):
    numbers = np.arange(a.size, dtype=float).reshape(a.shape)
    found = np.asarray(jax.lax.pad_p.bind(numbers, np.float64(-1.0), **params)).astype(int)
    return np.where(found < 0, b, a.ravel()[found])


@functools.cache
def _traced(certificate, structure, shapes):
    """The jaxpr of the hypotheses, once for all runs of equal shape."""

    def assumed(start, seen):
        return _sides(certificate, start, seen)["hypotheses"]

    given = [jax.ShapeDtypeStruct(shape, name) for shape, name in shapes]
    with native.formulas_only():
        found = jax.make_jaxpr(assumed, return_shape=True)(*jax.tree.unflatten(structure, given))
    return found[0], jax.tree.structure(found[1])


def hypotheses(certificate, start, seen):
    """Both sides of every hypothesis of a theorem about one run, to 60 digits."""
    leaves, structure = jax.tree.flatten((start, seen))
    shapes = tuple((np.shape(x), np.asarray(x).dtype.name) for x in leaves)
    closed, tree = _traced(certificate, structure, shapes)
    found = evaluate(closed.jaxpr, closed.consts, [exact(x) for x in leaves])
    return jax.tree.unflatten(tree, [_Box(x) for x in found])


class _Box:
    def __init__(self, value):
        self.value = exact(value) if np.asarray(value).dtype != object else np.asarray(value)


def truths(certificate, start, seen):
    """For every hypothesis whether it is true at 60 digits; None where it is not defined (0/0)."""
    found = {}
    for name, (lhs, rhs, _) in hypotheses(certificate, start, seen).items():
        sides = (side.ravel() for side in np.broadcast_arrays(lhs.value, rhs.value))
        pairs = list(zip(*sides, strict=True))
        if any(mpmath.isnan(a) or mpmath.isnan(b) for a, b in pairs):
            found[name] = None
        else:
            found[name] = all(a <= b and mpmath.isfinite(b) for a, b in pairs)
    return found
