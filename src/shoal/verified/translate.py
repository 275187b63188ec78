"""From a jaxpr to a `Program`: one small function per primitive (`primitives`).

Integers and booleans that follow from shapes and data are computed at once; floats become
operations. Softmax, logsumexp, centring, normalisation, GELU and SiLU are recognised by wiring
(`patterns`). A primitive without a rule is refused by name and source line.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from shoal.activations import centred_softplus
from shoal.diagnostics.programs import called_jaxpr, place_of
from shoal.verified import linear  # noqa: F401 (enters its rules into the table)
from shoal.verified.balls import Refusal
from shoal.verified.patterns import Patterns
from shoal.verified.primitives import KEPT, PRIMITIVES
from shoal.verified.program import Operation, Program, pruned
from shoal.verified.values import Value, Weight


def translate(closed: ClosedJaxpr, arguments: list[Any]) -> tuple[Program, dict[str, int]]:
    """The program of a jaxpr with one output, and the numbers of the values that were named.

    ``arguments`` are arrays (data, frozen weights) or `Weight`. Names are those given by
    ``jax.ad_checkpoint.checkpoint_name``, and ``scores`` and so on for what enters a softmax.
    """
    if not getattr(jax.config, "jax_enable_x64", False):
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
        for var, known in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            names[var] = self.constant(known)

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
        if name == "centred_softplus":
            x = inputs[0]
            return [Value(self.unary(name, x.number), x.shape)]
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

    def rows(self, x: Any, axes: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
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
    own: Any = {"relu": jax.nn.relu, "relu6": jax.nn.relu6, "logaddexp": jnp.logaddexp,
                "centred_softplus": centred_softplus}.get(name)  # fmt: skip
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
    candidates: list[Any] = [own]
    for _ in range(min(3, max((a.ndim for a in arguments), default=0))):  # under vmap
        candidates.append(jax.vmap(candidates[-1], in_axes=axes))
    try:
        with jax.numpy_rank_promotion("allow"):
            seen = rule(call)
            return any(seen == rule(known) for known in candidates)
    except Exception:
        return False
