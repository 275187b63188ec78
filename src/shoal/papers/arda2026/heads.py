r"""The multi-head softmax model with one neuron per head, and its closed forms.

$$\alpha_i=\mathrm{softmax}_t(X_t^\top W_iq),\quad a_i=\textstyle\sum_t\alpha_{i,t}X_t,\quad
f=m^{-1/2}\textstyle\sum_ic_i\,\sigma(U_i^\top a_i).$$

The query $q$ is not trained: the last token, or a vector that comes with the sample. Everything
about a head follows from $s_t=U^\top X_t$: $g=\sum_t\alpha_ts_t$ and $MU=\sum_t\alpha_t(s_t-g)X_t$,
with $M$ the covariance of the tokens under $\alpha$, so no $d\times d$ matrix is formed.
"""

import ctypes
import functools
import math
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import native
from shoal._typing import Any, Array, Callable, Float, PRNGKeyArray
from shoal.models import Model, with_gradient
from shoal.runtime import cores
from shoal.trees import padded_chunks

SOURCE = Path(__file__).with_suffix(".c")
IN_C = ("tanh", "logistic")
"""Activations that the code in C has, in its order."""
BLOCK = 2**16 if cores() == 1 else 2**18
"""Maximum size of an array of attention weights (samples x heads x tokens).

What one core works on fits into its cache; chunks for several cores must be worth dividing.
"""
LEAST_ROOM = 2**20
"""Numbers that the code in C may always work in."""
FEW = 16
"""Heads up to which automatic differentiation is faster, if 16 blocks hold all that it keeps."""


class Activation(NamedTuple):
    """A bounded smooth function, with bounds of itself and of its first two derivatives."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    s0: float
    s1: float
    s2: float


ACTIVATIONS = {
    "tanh": Activation(jnp.tanh, lambda g: 1 - jnp.tanh(g) ** 2, 1.0, 1.0, 4 / 27**0.5),
    "logistic": Activation(jax.nn.sigmoid, lambda g: jax.nn.sigmoid(g) * jax.nn.sigmoid(-g),
                           1.0, 0.25, 1 / (6 * 3**0.5)),
    "sin": Activation(jnp.sin, jnp.cos, 1.0, 1.0, 1.0),
    "erf": Activation(jax.scipy.special.erf, lambda g: 2 / math.pi**0.5 * jnp.exp(-(g**2)),
                      1.0, 2 / math.pi**0.5, (8 / (math.pi * math.e)) ** 0.5),
}  # fmt: skip


class Weights(NamedTuple):
    """Parameters of ``m`` heads."""

    W: Float[Array, "*lead m d d"]
    U: Float[Array, "*lead m d"]
    c: Float[Array, "*lead m"]


def spec_of(kind: Any, **sizes: tuple[int, ...]) -> Any:
    """A NamedTuple of shapes, as `Model` wants them."""
    return kind(**{k: jax.ShapeDtypeStruct(v, jnp.float64) for k, v in sizes.items()})


def shapes(num_heads: int, dim: int) -> Any:
    """Shapes of all weights."""
    return spec_of(Weights, W=(num_heads, dim, dim), U=(num_heads, dim), c=(num_heads,))


def twins(key: PRNGKeyArray, spec: Any) -> Any:
    """Gaussian heads with random signs, and for each a twin with the opposite sign, so that f = 0.

    The last block holds the signs; any other block with one number per head also holds signs.
    """

    def draw(key: PRNGKeyArray, block: Any) -> Array:
        shape = (block.shape[0] // 2, *block.shape[1:])
        random = jax.random.normal if len(shape) > 1 else jax.random.rademacher
        return random(key, shape, block.dtype)

    *others, c = map(draw, jax.random.split(key, len(spec)), spec)
    return type(spec)(*(jnp.concatenate([W, W]) for W in others), jnp.concatenate([c, -c]))


def split(inputs: Any) -> tuple[Any, Any]:
    """Tokens and query of a sample (or of many): the query given with it, or its last token."""
    return inputs if isinstance(inputs, tuple) else (inputs, inputs[..., -1, :])


def attention(W: Float[Array, "m d d"], x: Float[Array, "n d"], q: Float[Array, " d"]) -> Array:
    """Attention weights of every head, (m, n)."""
    return jax.nn.softmax(jnp.einsum("td,mde,e->mt", x, W, q), axis=1)


def heads(
    num_heads: int, dim: int, activation: Activation, *, block: int = BLOCK, scale: float = 1.0
) -> Model:
    """The model, its output divided by ``scale`` (1 in the paper).

    ``block`` bounds the attention weights held at a time in training.
    """

    def apply(params: Weights, inputs: Any) -> Float[Array, ""]:
        x, q = split(inputs)
        a = attention(params.W, x, q) @ x
        h = activation.value(jnp.sum(params.U * a, axis=1))
        return jnp.sum(params.c * h) / (scale * len(h) ** 0.5)

    streaming = streamed_squares(activation, block, scale)
    in_c, in_c_alone = squares_in_c(activation, scale)

    def usable(params: Weights, inputs: Any) -> bool:
        return _kernel("heads", activation, params, split(inputs)[0], 8 * block) is not None

    def squares(params: Weights, inputs: Any, y: Any) -> Float[Array, ""]:
        N, n, _ = split(inputs)[0].shape
        if usable(params, inputs):
            return in_c(params, inputs, y)
        if num_heads > FEW or N * n * num_heads > 16 * block:
            return streaming(params, inputs, y)
        return jnp.sum((jax.vmap(apply, in_axes=(None, 0))(params, inputs) - y) ** 2)

    def alone(params: Weights, inputs: Any, y: Any) -> Float[Array, ""]:
        return (in_c_alone if usable(params, inputs) else squares)(params, inputs, y)

    return Model(shapes(num_heads, dim), apply, fused_squares=squares, squares_alone=alone)


class Features(NamedTuple):
    """What the closed forms need of samples (leading axis) and heads: F_c = h and so on."""

    h: Float[Array, "N m"]
    slope: Float[Array, "N m"]
    a: Float[Array, "N m d"]
    MU: Float[Array, "N m d"]


def features(params: Weights, inputs: Any, activation: Activation) -> Features:
    """Features of every sample and head, in one pass."""
    X, q = split(inputs)

    def one(x: Float[Array, "n d"], q: Float[Array, " d"]) -> Features:
        alpha = attention(params.W, x, q)
        s = params.U @ x.T
        g = jnp.sum(alpha * s, axis=1)
        MU = (alpha * (s - g[:, None])) @ x
        return Features(activation.value(g), activation.slope(g), alpha @ x, MU)

    return jax.vmap(one)(X, q)


def output_gradients(params: Weights, inputs: Any, activation: Activation) -> dict[str, Array]:
    r"""$\lVert\nabla_*f(X_j)\rVert^2$ of each block $*$, for every sample."""
    _, q = split(inputs)
    F = features(params, inputs, activation)
    inner = (params.c[None] * F.slope) ** 2 / len(params.c)
    return {
        "W": jnp.sum(inner * jnp.sum(F.MU**2, axis=2), axis=1) * jnp.sum(q**2, axis=1),
        "U": jnp.sum(inner * jnp.sum(F.a**2, axis=2), axis=1),
        "c": jnp.sum(F.h**2, axis=1) / len(params.c),
    }


def portions(num_samples: int, num_heads: int, num_tokens: int, block: int) -> tuple[int, int]:
    """Samples and heads to take at a time: heads by a divisor, samples by any number."""
    fits = [k for k in range(1, num_heads + 1) if num_heads % k == 0 and k * num_tokens <= block]
    num_heads = max(fits, default=1)
    return max(1, min(num_samples, block // (num_heads * num_tokens))), num_heads


def _attend(params: Weights, X: Float[Array, "b n d"], q: Float[Array, "b d"]) -> tuple:
    """A block of samples seen by a block of heads; tokens before heads, so that heads are last.

    Attention weights (b, n, h) before they are divided by their sum, that sum (b, h), which is a
    pass less over the largest array, and the $s$ (b, n, h) and $g$ (b, h).
    """
    h, d, e = params.W.shape
    keys = (q @ params.W.transpose(2, 1, 0).reshape(e, d * h)).reshape(len(q), d, h)
    scores = jnp.einsum("btd,bdh->bth", X, keys)
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=1, keepdims=True)))
    total = jnp.sum(weights, axis=1)
    s = (X.reshape(-1, d) @ params.U.T).reshape(*X.shape[:2], h)
    return weights, total, s, jnp.sum(weights * s, axis=1) / total


def _grouped(params: Weights, num_heads: int) -> Weights:
    """Heads in groups along a leading axis."""
    return Weights(*(leaf.reshape(-1, num_heads, *leaf.shape[1:]) for leaf in params))


def _pulled(
    activation: Activation, head: Weights, x: Array, q: Array, k: Array, seen: tuple
) -> Weights:
    """Gradient of sum_j k_j f_j for a block of heads (closed form)."""
    h, d, e = head.W.shape
    weights, total, s, g = seen
    P = (k[:, None] * activation.slope(g) * head.c[None] / total)[:, None] * weights
    turned = jnp.einsum("btd,bth->bdh", x, P * (s - g[:, None]))
    return Weights(
        W=(q.T @ turned.reshape(len(q), d * h)).reshape(e, d, h).transpose(2, 1, 0),
        U=(x.reshape(-1, d).T @ P.reshape(-1, h)).T,
        c=k @ activation.value(g),
    )


def streamed_squares(
    activation: Activation, block: int, scale: float
) -> Callable[[Weights, Any, Float[Array, " N"]], Float[Array, ""]]:
    """Sum of squared errors; its gradient comes with the value, in one pass over the samples.

    Samples and heads come in blocks, so memory does not grow with their numbers. An error depends
    on its own sample only; attention is computed again for the gradient only if not all heads fit
    into a block beside one sample. A first derivative in the parameters only.
    """

    def chunks(params: Weights, inputs: Any, y: Array) -> tuple[tuple, Weights]:
        X, q = split(inputs)
        b, h = portions(len(X), len(params.c), X.shape[1], block)
        real = jnp.ones(len(X), X.dtype)  # padding adds samples for which this is 0
        return tuple(padded_chunks(array, b) for array in (X, q, y, real)), _grouped(params, h)

    def errors(params: Weights, groups: Weights, sample: tuple) -> Float[Array, " b"]:
        x, q, label, mask = sample

        def add(f: Array, head: Weights) -> tuple[Array, None]:
            return f + activation.value(_attend(head, x, q)[-1]) @ head.c, None

        f = jax.lax.scan(add, jnp.zeros(len(x), x.dtype), groups)[0]
        return mask * (f / (scale * len(params.c) ** 0.5) - label)

    def alone(params: Weights, inputs: Any, y: Array) -> Float[Array, ""]:
        samples, groups = chunks(params, inputs, y)
        return jnp.sum(jax.lax.map(lambda sample: errors(params, groups, sample), samples) ** 2)

    def both(params: Weights, inputs: Any, y: Array) -> tuple[Array, Any]:
        samples, groups = chunks(params, inputs, y)
        root = scale * len(params.c) ** 0.5

        def add(total: tuple[Array, Weights], sample: tuple) -> tuple[tuple, None]:
            x, q, label, mask = sample
            if len(groups.c) == 1:
                seen = _attend(params, x, q)
                error = mask * (activation.value(seen[-1]) @ params.c / root - label)
                gradient = _pulled(activation, params, x, q, 2 * error / root, seen)
            else:
                error = errors(params, groups, sample)
                k = 2 * error / root
                parts = jax.lax.map(
                    lambda head: _pulled(activation, head, x, q, k, _attend(head, x, q)), groups
                )
                gradient = jax.tree.map(lambda g, W: g.reshape(W.shape), parts, params)
            return jax.tree.map(jnp.add, total, (jnp.sum(error**2), gradient)), None

        zero = jnp.zeros((), samples[0].dtype), jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(add, zero, samples)[0]

    return with_gradient(both, alone)


def _kernel(
    handler: str, activation: Activation, params: Weights, X: Any, held: int
) -> tuple[str, int] | None:
    """The name of the code in C and the numbers that it works in, if it can be used here."""
    known = [ACTIVATIONS[name] for name in IN_C]
    found = native.kernel(SOURCE, handler, str(jnp.result_type(X, *params)))
    if found is None or activation not in known:
        return None
    name, library = found
    needed = library.heads_room
    needed.restype, needed.argtypes = ctypes.c_int64, [ctypes.c_int64] * 4
    room = needed(*X.shape, len(params.c))
    return (name, room) if room <= max(held, LEAST_ROOM) else None


Squares = Callable[[Weights, Any, Float[Array, " N"]], Float[Array, ""]]


def squares_in_c(activation: Activation, scale: float) -> tuple[Squares, Squares]:
    """Sum of squared errors, with its gradient in one pass and alone, by code in C (`heads.c`)."""

    def called(handler: str, params: Weights, inputs: Any, y: Any) -> Any:
        X, q = split(inputs)
        kind = jnp.result_type(X, q, y, *params)
        found = _kernel(handler, activation, params, X, native.LARGEST)
        assert found is not None, "ask _kernel() first"
        name, room = found
        gradients = [W.shape for W in params] if handler == "heads" else []
        out = [jax.ShapeDtypeStruct(shape, kind) for shape in ((), *gradients, (room,))]
        number = [ACTIVATIONS[name] for name in IN_C].index(activation)
        given = [jnp.asarray(x, kind) for x in (X, q, y, *params)]
        factor = jnp.full(1, 1 / (scale * len(params.c) ** 0.5), kind)
        call = jax.ffi.ffi_call(name, out, vmap_method="broadcast_all")
        return call(*given, factor, jnp.full(1, number, jnp.int32))

    def both(params: Weights, inputs: Any, y: Array) -> tuple[Array, Weights]:
        value, *gradient = called("heads", params, inputs, y)[:-1]
        return value, Weights(*gradient)

    return with_gradient(both), lambda *given: called("heads_value", *given)[0]


def tangent_kernels(
    inputs: Any, activation: Activation, *, block: int = BLOCK
) -> Callable[[Weights], dict[str, Float[Array, "N N"]]]:
    r"""Tangent kernel of each block in closed form, a few heads and samples at a time.

    With $H=h$, $A=c\sigma'a$, $B=c\sigma'MU$ as matrices (samples, heads x dim):
    $K_c=HH^\top/m$, $K_U=AA^\top/m$ and $K_W=(qq^\top)\circ BB^\top/m$.
    """
    X, q = split(inputs)

    def kernels(params: Weights) -> dict[str, Float[Array, "N N"]]:
        b, h = portions(len(X), len(params.c), X.shape[1] + 2 * X.shape[2], block)
        samples = padded_chunks(X, b), padded_chunks(q, b)

        def add(total: dict[str, Array], head: Weights) -> tuple[dict[str, Array], None]:
            F = jax.lax.map(functools.partial(features, head, activation=activation), samples)
            F = Features(*(f.reshape(-1, *f.shape[2:])[: len(X)] for f in F))
            scale = (head.c[None] * F.slope)[..., None]
            A, B = ((scale * f).reshape(len(X), -1) for f in (F.a, F.MU))
            squares = {"W": B @ B.T, "U": A @ A.T, "c": F.h @ F.h.T}
            return jax.tree.map(jnp.add, total, squares), None

        zero = jnp.zeros((len(X), len(X)), X.dtype)
        total = jax.lax.scan(add, dict.fromkeys("WUc", zero), _grouped(params, h))[0]
        total["W"] = (q @ q.T) * total["W"]
        return {name: K / len(params.c) for name, K in total.items()}

    return kernels
