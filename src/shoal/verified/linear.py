"""More primitives: sums into places, cumulative sums, convolutions, and functions made of others.

All but the last are products with a matrix: of known zeros and ones, or of patches with a kernel.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.verified.primitives import rule
from shoal.verified.values import Value

if TYPE_CHECKING:
    from shoal.verified.translate import Translator


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    """The entries of an array, numbered row by row."""
    return np.arange(int(np.prod(shape))).reshape(shape)


def _valued(to: "Translator", x: Any) -> Value:
    return to.constant(x.astype(float)) if isinstance(x, np.ndarray) else x


@rule("scatter-add")
def _scatter_add(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    """Updates are added into entries by known numbers: a sum of k of them has norm sqrt(k)."""
    x, where, update = inputs
    if not isinstance(where, np.ndarray):
        raise to.refused("scatter-add with indices that depend on weights")
    x, update = _valued(to, x), _valued(to, update)
    blank, more = (jnp.zeros(v.shape) for v in (x, update))

    def added(values: Any) -> Any:
        return equation.primitive.bind(blank, jnp.asarray(where), values, **equation.params)

    # where an update goes is what its derivative says, if entries are weighted by their numbers
    marks = jnp.asarray(1.0 + _numbers(x.shape))
    goes = np.rint(np.asarray(jax.vjp(added, more)[1](marks)[0])).astype(int).ravel() - 1
    if (goes < 0).any():
        raise to.refused("scatter-add writes out of bounds")
    order = np.argsort(goes, kind="stable")
    counts = np.bincount(goes, minlength=int(np.prod(x.shape)))
    members = np.full((counts.size, max(int(counts.max(initial=0)), 1)), -1)
    within = np.arange(goes.size) - np.repeat(np.cumsum(counts) - counts, counts)
    members[goes[order], within] = order
    taken = to.take(update.number, members.ravel(), 0.0)
    sums = to.emit("sum", (taken,), len(members), rows=len(members))
    return Value(to.arithmetic("add", x.number, sums), x.shape)


@rule("cumsum")
def _cumulative(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    """A product with a triangle of ones."""
    x, axis, reverse = inputs[0], equation.params["axis"], equation.params["reverse"]
    moved = np.moveaxis(_numbers(x.shape), axis, -1)
    n = x.shape[axis]
    ones = np.tri(n) if reverse else np.tri(n).T
    rows = moved.size // max(n, 1)
    left, right = to.take(x.number, moved.ravel()), to.constant(ones)
    product = to.emit("dot", (left, right.number), moved.size, sizes=(1, rows, n, n))
    back = np.moveaxis(_numbers(moved.shape), -1, axis)
    return Value(to.take(product, back.ravel()), x.shape)


@rule("conv_general_dilated")
def _convolution(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    """Patches of the left operand times the kernel."""
    params = equation.params
    if params["batch_group_count"] != 1:
        raise to.refused("a convolution with groups of samples")
    x, kernel = (_valued(to, v) for v in inputs)
    lhs, rhs, out = params["dimension_numbers"]
    image, weights = (_numbers(v.shape).transpose(s) for v, s in ((x, lhs), (kernel, rhs)))
    patches = jax.lax.conv_general_dilated_patches(
        jnp.asarray(image + 1.0), weights.shape[2:], params["window_strides"], params["padding"],
        lhs_dilation=params["lhs_dilation"], rhs_dilation=params["rhs_dilation"],
        precision=jax.lax.Precision.HIGHEST,
    )  # fmt: skip
    found = np.rint(np.asarray(patches)).astype(int) - 1  # padding is 0, so -1
    count, groups, places = len(found), params["feature_group_count"], found.shape[2:]
    features = weights.shape[0] // groups
    inside = found.shape[1] // groups
    left = found.reshape(count, groups, inside, -1).transpose(1, 0, 3, 2)
    right = weights.reshape(groups, features, inside).transpose(0, 2, 1)
    rows = count * int(np.prod(places))
    number = to.emit(
        "dot", (to.take(x.number, left.ravel(), 0.0), to.take(kernel.number, right.ravel())),
        groups * rows * features, sizes=(groups, rows, inside, features),
    )  # fmt: skip
    made = _numbers((groups, count, int(np.prod(places)), features)).transpose(1, 0, 3, 2)
    made = made.reshape(count, groups * features, *places).transpose(np.argsort(out))
    return Value(to.take(number, made.ravel()), made.shape)


@rule("tan", "sinh", "cosh")
def _made_of_others(to: "Translator", equation: Any, inputs: list[Any]) -> Any:
    x, name = inputs[0].number, equation.primitive.name
    if name == "tan":
        return Value(
            to.arithmetic("div", *(to.unary(f, x) for f in ("sin", "cos"))), inputs[0].shape
        )
    up, down = to.unary("exp", x), to.unary("exp", to.negative(x))
    both = to.arithmetic("sub" if name == "sinh" else "add", up, down)
    half = to.full(0.5, to.operations[x].size)
    return Value(to.arithmetic("mul", half, both), inputs[0].shape)
