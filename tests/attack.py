"""An attack on the bounds: ascent over point and direction inside a ball of weights.

For a function of a few weights, the largest $|Df[d]|$, $|D^2f[d,d]|$ and $|D^3f[d,d,d]|$ that
ascent finds on the ball, over the bounds beta, L and K. A ratio above 1 refutes a rule; ratios near
1 show that the attack bites. ``python tests/attack.py`` runs all of it.
"""

import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from questions import program
from shoal.activations import centred_softplus
from shoal.verified import jets
from shoal.verified.centre import evaluate
from shoal.verified.constants import constants

rng, late = np.random.default_rng(11), np.random.default_rng(12)


class Case(NamedTuple):
    """A function of weights, where it starts, and balls around that."""

    function: object
    weights: tuple
    radii: tuple = (0.01, 0.1)


def normal(*shape, scale=1.0):
    return scale * rng.standard_normal(shape)


def later(*shape):
    """Draws for cases that came later, so that those of the others stay."""
    return late.standard_normal(shape)


def _layer_norm(x, eps=1e-5):
    c = x - jnp.mean(x, -1, keepdims=True)
    return c / jnp.sqrt(jnp.mean(c**2, -1, keepdims=True) + eps)


def _cut(s):
    """Itself where it is below zero, as JAX's derivative says."""
    return s + jax.lax.stop_gradient(jnp.minimum(s, 0) - s)


def _bell(z):
    return jnp.exp(-jnp.sum(z * z, -1) / 2)


RULES = {
    "dot": Case(lambda a, b: a @ b, ([[1.0, 0.0]], [[1.0], [0.0]])),
    "dot, batches": Case(lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
                         (normal(2, 2, 3), normal(2, 3, 2))),
    "product": Case(lambda a, b: a * b, ([1.0], [1.0])),
    "product, broadcast": Case(lambda a, b: a[:, None] * b[None, :], (np.ones(3), np.ones(2))),
    "quotient": Case(lambda a, b: a / b, ([1.0], [1.0])),
    "quotient, broadcast": Case(lambda a, b: a[:, None] / b[None], (normal(3), [1.0, 1.1])),
    "sum": Case(lambda a: jnp.sum(a, 0) ** 2, (np.ones((4, 1)),)),
    "broadcast": Case(lambda a: jnp.broadcast_to(a, (5, 1)) ** 2, ([1.0],)),
    "join": Case(lambda a, b: jnp.concatenate([a, b]) ** 2, ([1.0], [1.0])),
    "gather": Case(lambda a: a[jnp.array([0, 0, 1])] ** 3, ([1.0, 0.5],)),
    "exp": Case(jnp.exp, ([0.3],)),
    "expm1": Case(jnp.expm1, ([0.3],)),
    "log": Case(jnp.log, ([0.7],)),
    "log1p": Case(jnp.log1p, ([-0.3],)),
    "sqrt": Case(jnp.sqrt, ([0.5],)),
    "rsqrt": Case(jax.lax.rsqrt, ([0.5],)),
    "tanh": Case(jnp.tanh, ([0.0],)),
    "tanh, bend": Case(jnp.tanh, ([0.6585],)),
    "tanh, far": Case(jnp.tanh, ([2.0],)),
    "logistic": Case(jax.nn.sigmoid, ([0.0],)),
    "logistic, bend": Case(jax.nn.sigmoid, ([1.317],)),
    "softplus": Case(jax.nn.softplus, ([0.0],)),
    "softplus, right": Case(jax.nn.softplus, ([6.0],)),
    "softplus, bend": Case(jax.nn.softplus, ([1.317],)),
    "centred softplus": Case(centred_softplus, ([0.0],)),
    "log of two exponentials": Case(jnp.logaddexp, ([0.3, 0.1], [0.0, 0.2])),
    "erf": Case(jax.lax.erf, ([0.0],)),
    "erf, bend": Case(jax.lax.erf, ([0.7071],)),
    "erfc": Case(jax.lax.erfc, ([-0.7071],)),
    "gelu": Case(lambda a: jax.nn.gelu(a, approximate=False), ([0.0],)),
    "gelu, slope": Case(lambda a: jax.nn.gelu(a, approximate=False), ([1.4142],)),
    "gelu, third": Case(lambda a: jax.nn.gelu(a, approximate=False), ([0.9],)),
    "gelu by tanh": Case(lambda a: jax.nn.gelu(a, approximate=True), ([0.2],)),
    "silu": Case(jax.nn.silu, ([0.0],)),
    "silu, slope": Case(jax.nn.silu, ([2.3994],)),
    "silu, third": Case(jax.nn.silu, ([1.1],)),
    "sin": Case(jnp.sin, ([0.0],)),
    "cos": Case(jnp.cos, ([0.0],)),
    "cube": Case(lambda a: a**3, ([1.0],)),
    "fifth power": Case(lambda a: a**5, ([0.8],)),
    "inverse square": Case(lambda a: a**-2, ([0.8],)),
    "softmax, two": Case(jax.nn.softmax, ([0.0, 0.0],)),
    "softmax, third cumulant": Case(jax.nn.softmax, ([0.0, 1.317],)),
    "softmax, rows": Case(jax.nn.softmax, (normal(3, 4),)),
    "softmax, masked": Case(
        lambda a: jax.nn.softmax(jnp.where(np.tri(3, dtype=bool), a, -jnp.inf)), (normal(3, 3),)),
    "logsumexp": Case(lambda a: jax.nn.logsumexp(a, axis=-1), ([0.0, 0.0],)),
    "logsumexp, one ahead": Case(lambda a: jax.nn.logsumexp(a, axis=-1), ([0.0, 8.0],)),
    "log softmax": Case(lambda a: jax.nn.log_softmax(a, axis=-1), (normal(2, 3),)),
    "centre": Case(lambda a: (a - jnp.mean(a, -1, keepdims=True)) ** 2, ([1.0, -1.0],)),
    "layer norm": Case(_layer_norm, ([[1.0, -1.0, 0.2]],)),
    "layer norm, rows": Case(_layer_norm, (normal(3, 4),)),
    "rms norm": Case(lambda a: a / jnp.sqrt(jnp.mean(a**2) + 1e-5), ([1.0, 0.3],)),
    "rms norm, large offset": Case(lambda a: a / jnp.sqrt(jnp.mean(a**2) + 1.0), ([0.1, 0.0],)),
    "gaussian": Case(_bell, ([0.0, 0.0],)),
    "relu": Case(lambda a: jax.nn.relu(a) ** 2, ([1.0, -1.0],)),
    "leaky relu": Case(lambda a: jax.nn.leaky_relu(a, 0.3) ** 2, ([1.0, -1.0],)),
    "abs": Case(lambda a: jnp.abs(a) ** 3, ([1.0, -1.0],)),
    "largest": Case(lambda a: jnp.max(a, -1) ** 2, ([[1.0, 0.3], [0.1, 0.9]],)),
    "clip": Case(lambda a: jnp.clip(a, -0.5, 0.5) ** 2, ([0.2, 2.0, -2.0],)),
    "smallest": Case(lambda a: jnp.min(a, -1) ** 2, ([[1.0, 0.3], [0.1, 0.9]],)),
    "sums into places": Case(
        lambda a, b: a.at[jnp.array([0, 1, 0])].add(b) ** 2, ([1.0, 0.0], [1.0, 0.0, 1.0])),
    "cumulative sum": Case(lambda a: jnp.cumsum(a) ** 2, ([0.7, 0.5, 0.3],)),
    "cumulative sum, backwards": Case(
        lambda a: jax.lax.cumsum(a, axis=0, reverse=True) ** 2, (later(3, 2),)),
    "convolution": Case(lambda a, k: jnp.convolve(a, k, mode="same"), (later(5), later(3))),
    "convolution, images": Case(lambda a, k: jax.lax.conv_general_dilated(
        a, k, (2, 1), ((1, 0), (0, 1)), rhs_dilation=(1, 2), feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC")), (later(2, 4, 5, 4), later(2, 2, 2, 4))),
    "power of two": Case(jnp.exp2, ([0.3],)),
    "tangent": Case(jnp.tan, ([0.4],)),
    "hyperbolic sine": Case(jnp.sinh, ([0.4],)),
    "hyperbolic cosine": Case(jnp.cosh, ([0.4],)),
    "negative": Case(lambda a: -(a**3), ([1.0],)),
    "masked fill": Case(lambda a: jnp.where(np.eye(2, dtype=bool), a, 3.0) ** 3, (later(2, 2),)),
    "padding": Case(lambda a: jnp.pad(a, 1, constant_values=2.0) ** 2, (later(3),)),
    "overwritten": Case(lambda a, b: a.at[1].set(b) ** 3, ([1.0, 0.5], 0.7)),
    "both conditions": Case(
        lambda a: jnp.where((a > 0) & (a < 2), a, 3.0) ** 3, ([1.0, -1.0, 3.0],)),
    "a mask by its value": Case(lambda a: jnp.where(a == -jnp.inf, 0.0, a) ** 3, ([1.0, -0.5],)),
    "a mask by its kind": Case(lambda a: jnp.where(jnp.isfinite(a), a, 0.0) ** 3, ([1.0, -0.5],)),
    "cut at zero": Case(lambda a: _cut(a[0] * a[1] - 2.0) ** 2, ([0.5, 0.8],)),
    "loop": Case(lambda a: jax.lax.scan(lambda c, x: (jnp.tanh(c + x), c), 0.1, a)[0][None],
                 ([0.2, -0.3, 0.5],)),
    "loop over numbers": Case(
        lambda a: jax.lax.scan(lambda c, x: (jnp.tanh(c * x), c), a, jnp.array([0.9, 1.1]))[0],
        ([0.2, -0.3],)),
}  # fmt: skip


def _attention(x, q, k, v, kernel=jax.nn.softmax):
    scores = (x @ q) @ jnp.swapaxes(x @ k, -1, -2) / np.sqrt(q.shape[-1])
    return kernel(scores) @ (x @ v)


X = normal(2, 3, 4)


def _distances(q, k):
    return -jnp.sum((q[:, :, None] - k[:, None]) ** 2, -1) / 2


def _block(x, q, k, v, a, b, activation):
    h = x + _attention(x, q, k, v)
    return h + activation(h @ a) @ b


def _pre_norm(x, q, k, v, a, b):
    h = x + _attention(_layer_norm(x), q, k, v)
    return h + jax.nn.gelu(_layer_norm(h) @ a, approximate=False) @ b


def _block_weights(s=0.5):
    return (normal(4, 3, scale=s), normal(4, 3, scale=s), normal(4, 4, scale=s),
            normal(4, 5, scale=s), normal(5, 4, scale=s))  # fmt: skip


def _smooth_leaky(x):
    return 0.3 * x + 0.7 * centred_softplus(x)


MODELS = {
    "tanh network": Case(lambda W, b, v: jnp.tanh(X[:, 0] @ W + b) @ v,
                         (normal(4, 5, scale=0.5), normal(5), normal(5))),
    "attention, softmax": Case(lambda q, k, v: _attention(X, q, k, v),
                               (normal(4, 2), normal(4, 2), normal(4, 1))),
    "attention, gaussian": Case(
        lambda q, k, v: jnp.exp(_distances(X @ q, X @ k)) @ (X @ v),
        (normal(4, 2, scale=0.5), normal(4, 2, scale=0.5), normal(4, 1))),
    "attention, linear": Case(lambda q, k, v: _attention(X, q, k, v, lambda s: s / 3),
                              (normal(4, 2), normal(4, 2), normal(4, 1))),
    "heads, tanh": Case(lambda W, u, c: jnp.tanh(jnp.einsum(
        "hnm,nmd,hd->nh", jax.nn.softmax(jnp.einsum("hd,nmd->hnm", W, X)), X, u)) @ c,
        (normal(3, 4), normal(3, 4), normal(3))),
    "encoder, relu": Case(
        lambda q, k, v, w: jnp.mean(jax.nn.relu(_attention(X, q, k, v)), 1) @ w,
        (normal(4, 3, scale=0.4), normal(4, 3, scale=0.4), normal(4, 5), normal(5)), (1e-4, 1e-3)),
    "residual block, smooth leaky": Case(
        lambda *w: _block(X, *w, _smooth_leaky), _block_weights()),
    "residual block, gelu": Case(
        lambda *w: _block(X, *w, lambda x: jax.nn.gelu(x, approximate=False)), _block_weights()),
    "pre-norm block": Case(lambda *w: _pre_norm(X, *w), _block_weights()),
    "two residual blocks": Case(
        lambda *w: _block(_block(X, *w[:5], jnp.tanh), *w[5:], jax.nn.silu),
        (*_block_weights(0.3), *_block_weights(0.3))),
    "classifier": Case(
        lambda q, k, v, w: jax.nn.log_softmax(jnp.mean(X + _attention(X, q, k, v), 1) @ w),
        (normal(4, 2), normal(4, 2), normal(4, 4), normal(4, 3))),
    "embedding": Case(
        lambda E, v: jax.nn.silu(E[jnp.array([[0, 1, 1], [2, 0, 3]])]).sum(1) @ v,
        (normal(4, 3), normal(3, 2))),
}  # fmt: skip
CASES = RULES | MODELS


def translated(case):
    """The program of a case, and its weights."""
    weights = tuple(np.asarray(w, float) for w in case.weights)
    with jax.numpy_rank_promotion("allow"):
        made = program(lambda w, _, x: jnp.ravel(case.function(*w)) * x, weights, (), 1.0)
    return made, weights


def bounds(case, *, nodes=False):
    """beta, L and K of a case on its balls."""
    made, weights = translated(case)
    anchors = tuple(range(len(made.operations))) if nodes else ()
    moving = [n for n in anchors if made.operations[n].kind not in ("compare", "logic", "finite")]
    found = evaluate(made, list(weights), anchors=tuple(moving) if nodes else ())
    jet = jets.bounds(made, found.values, np.array(case.radii), np.ones(len(weights)), order=3,
                      norms=found.norms if nodes else None)  # fmt: skip
    assert jet.reasons == ["", ""], (case, jet.reasons)
    return constants([jet.jet])


def attack(case, *, starts, steps, seed=0):
    """Largest derivatives found, (radii, orders), and how many points were evaluated."""
    weights = tuple(jnp.asarray(w, float) for w in case.weights)
    centre, unravel = ravel_pytree(weights)

    def along(point, direction):
        def f(t):
            return jnp.ravel(case.function(*unravel(point + t * direction)))

        def d(g):
            return lambda t: jax.jvp(g, (t,), (1.0,))[1]

        parts = [d(f), d(d(f)), d(d(d(f)))]
        return jnp.stack([jnp.sum(g(0.0) ** 2) for g in parts])

    def inside(p, q, radius):
        point = centre + radius * p / jnp.maximum(1.0, jnp.linalg.norm(p))
        return point, q / jnp.linalg.norm(q)

    def climb(p, q, radius, order):
        def height(z):
            return jnp.log(along(*inside(*z, radius))[order] + 1e-300)

        def step(carry, k):
            z, best = carry
            now, slope = jax.value_and_grad(height)(z)
            rate = 0.3 * 0.93**k
            norms = [jnp.linalg.norm(s) + 1e-300 for s in slope]
            z = tuple(a + rate * jnp.linalg.norm(a) * s / n
                      for a, s, n in zip(z, slope, norms, strict=True))  # fmt: skip
            return (z, jnp.maximum(best, jnp.where(jnp.isnan(now), -jnp.inf, now))), None

        (_, best), _ = jax.lax.scan(step, ((p, q), -jnp.inf), jnp.arange(float(steps)))
        return jnp.exp(best / 2)

    keys = jax.random.split(jax.random.key(seed), 2)
    ps, qs = (jax.random.normal(k, (starts, len(centre))) for k in keys)
    with jax.numpy_rank_promotion("allow"):
        one = jax.vmap(climb, (0, 0, None, None))
        every = jax.jit(jax.vmap(jax.vmap(one, (None, None, None, 0)), (None, None, 0, None)))
        found = every(ps, qs, jnp.asarray(case.radii), jnp.arange(3))
    return np.asarray(found.max(-1)), 2 * 3 * starts * steps


def ratios(case, *, starts, steps, seed=0):
    """What was found over the bounds, (radii, orders), plain and anchored; evaluations."""
    found, count = attack(case, starts=starts, steps=steps, seed=seed)
    both = []
    for nodes in (False, True):
        bound = np.stack(bounds(case, nodes=nodes), axis=1)
        both.append(np.where(found < 1e-9, 0.0, found / np.maximum(bound, 1e-300)))
    return both[0], both[1], count


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    total, worst, begun = 0, 0.0, time.perf_counter()
    chosen = sys.argv[1:] or list(CASES)
    for name in chosen:
        plain, anchored, count = ratios(CASES[name], starts=10, steps=60)
        total += count
        worst = max(worst, plain.max(), anchored.max())
        text = "  ".join(f"{r:.4f}" for r in (*plain.max(0), *anchored.max(0)))
        print(f"{name:32s} {text}", flush=True)  # noqa: T201
    spent = time.perf_counter() - begun
    print(f"{total} evaluations, largest ratio {worst:.12f}, {spent:.0f} s")  # noqa: T201
