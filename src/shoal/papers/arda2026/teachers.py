r"""Transport: a target function as a displacement of every head, and labels made by one.

A transport $v=(v_c,v_U,v_W)$ assigns to a head a displacement; at the heads of a student it leads
from $\phi_0$ to $\tilde\phi$, with $\tilde c=c_0+v_c/\sqrt m$, $\tilde U=U_0+c_0v_U/\sqrt m$ and
$\tilde W=W_0+c_0v_W/\sqrt m$. The linearised model at $\tilde\phi$ is an average over heads of
$F_cv_c+\langle F_U,v_U\rangle+\langle F_W,v_W\rangle$.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from shoal import trees
from shoal._typing import Any, Array, Callable, Float, Scalar
from shoal.methods import onto_balls
from shoal.models import Model, predict
from shoal.papers.arda2026.heads import BLOCK, Activation, Weights, features, portions, split

Radii = tuple[Scalar, Scalar, Scalar]
"""For c, U and W, in this order as in the paper."""


def of_anchors(params: Weights, anchors: Any, nu: Radii, activation: Activation) -> Weights:
    r"""The paper's transport: features at a few anchor inputs, averaged.

    $v_c$ and $v_U$ are scaled to norms $\nu_c$, $\nu_U$ at most; $v_W$ is clipped to $\nu_W$ anchor
    by anchor, and not scaled up, so its norm is usually far below $\nu_W$.
    """
    _, q = split(anchors)
    F = features(params, anchors, activation)
    turned = F.slope[..., None, None] * F.MU[..., :, None] * q[:, None, None, :]
    length = jnp.sqrt(jnp.sum(turned**2, axis=(2, 3), keepdims=True))
    clipped = turned * jnp.minimum(1.0, nu[2] / jnp.where(length > 0, length, 1.0))
    return Weights(
        W=jnp.mean(clipped, axis=0),
        U=nu[1] / activation.s1 * jnp.mean(F.slope[..., None] * F.a, axis=0),
        c=nu[0] / activation.s0 * jnp.mean(F.h, axis=0),
    )


def sums(params: Weights, inputs: Any, beta: Float[Array, " N"], activation: Activation) -> Weights:
    r"""$S_*=\sum_j\beta_jF_*(X_j)$ at every head."""
    _, q = split(inputs)
    F = features(params, inputs, activation)
    weighted = beta[:, None] * F.slope
    return Weights(
        W=jnp.einsum("jm,jmd,je->mde", weighted, F.MU, q),
        U=jnp.einsum("jm,jmd->md", weighted, F.a),
        c=beta @ F.h,
    )


def row_norms(W: Float[Array, "m *rest"]) -> Float[Array, " m"]:
    """Norm of each head's part of a block."""
    return jnp.sqrt(jnp.sum(W**2, axis=tuple(range(1, W.ndim))))


def dual(
    params: Weights, inputs: Any, beta: Float[Array, " N"], nu: Radii, activation: Activation
) -> Weights:
    r"""The transport of norms $\nu$ with the largest pairing with $\beta$: $\nu S_*/|S_*|$."""
    S = sums(params, inputs, beta, activation)
    W, U, c = (jnp.where(s > 0, s, 1.0) for s in map(row_norms, S))
    return Weights(nu[2] * S.W / W[:, None, None], nu[1] * S.U / U[:, None], nu[0] * S.c / c)


def pairing(S: Weights, radii: Radii) -> Float[Array, ""]:
    r"""Mean over heads of $\rho_c|S_c|+\rho_U\lVert S_U\rVert+\rho_W\lVert S_W\rVert_F$."""
    W, U, c = map(row_norms, S)
    return jnp.mean(radii[0] * c + radii[1] * U + radii[2] * W)


def moved(params0: Weights, v: Weights) -> Weights:
    r"""$\tilde\phi$: the student's heads displaced by a transport."""
    m = len(params0.c)
    return Weights(
        W=params0.W + params0.c[:, None, None] * v.W / m**0.5,
        U=params0.U + params0.c[:, None] * v.U / m**0.5,
        c=params0.c + v.c / m**0.5,
    )


def movement(params0: Any, params: Any) -> dict[str, Float[Array, " m"]]:
    r"""Movement of each row of each block times $\sqrt m$, for the variants too."""
    blocks = trees.blocks(jax.tree.map(jnp.subtract, params, params0))
    return {name: len(params0.c) ** 0.5 * row_norms(W) for name, W in blocks.items()}


def lengths(params: Any) -> dict[str, Float[Array, " m"]]:
    """Norm of each row of each block."""
    return {name: row_norms(W) for name, W in trees.blocks(params).items()}


def norms(params0: Any, params: Any) -> dict[str, Float[Array, ""]]:
    """Norms of the transport that leads to given parameters: the largest movement of a head."""
    return {name: jnp.max(rows) for name, rows in movement(params0, params).items()}


def labels(
    heads: Weights, v: Weights, inputs: Any, activation: Activation, *, block: int = BLOCK
) -> Float[Array, " N"]:
    """Mean over heads of their features paired with the transport, a block at a time."""
    X, q = split(inputs)
    b, h = portions(len(X), len(heads.c), X.shape[1] + 2 * X.shape[2], block)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(-1, h, *leaf.shape[1:]), (heads, v))

    def paired(sample: tuple, head: Weights, v: Weights) -> Float[Array, " b"]:
        F = features(head, sample, activation)
        turn = jnp.einsum("jmd,mde,je->jm", F.MU, v.W, sample[1])
        return jnp.sum(F.h * v.c[None] + F.slope * (jnp.einsum("jmd,md->jm", F.a, v.U) + turn), 1)

    def of_samples(sample: tuple) -> Float[Array, " b"]:
        def add(total: Array, group: tuple) -> tuple[Array, None]:
            return total + paired(sample, *group), None

        return jax.lax.scan(add, jnp.zeros(b, X.dtype), grouped)[0]

    y = jax.lax.map(of_samples, (trees.padded_chunks(X, b), trees.padded_chunks(q, b)))
    return y.reshape(-1)[: len(X)] / len(heads.c)


def linearised(model: Model, params0: Weights, inputs: Any, moved: Weights) -> Float[Array, " N"]:
    r"""$f_{lin}=\langle\nabla f(\phi_0),\phi-\phi_0\rangle$ (the output at the start is zero)."""
    return along(model, params0, inputs, jax.tree.map(jnp.subtract, moved, params0))


def along(model: Model, params: Weights, inputs: Any, direction: Weights) -> Float[Array, " N"]:
    """Derivative of every output along a direction."""
    return jax.jvp(lambda p: predict(model, p, inputs), (params,), (direction,))[1]


def nearest(params0: Weights, params: Weights, radii: Radii) -> Weights:
    r"""Projection on $\Omega_\rho$."""
    by_block = (radius / len(params0.c) ** 0.5 for radius in reversed(radii))
    return Weights(*map(onto_balls, params, params0, by_block))


DENSE = 2**24
"""Entries of the largest Jacobian that is formed; a larger one is applied without forming it."""


def _slope(model: Model, params0: Weights, inputs: Any, y: Array) -> Callable[[Weights], Weights]:
    """Gradient of half the linearised model's sum of squares, as a function of displacement."""
    flat, unravel = ravel_pytree(params0)
    if flat.size * len(y) <= DENSE:
        J = jax.vmap(lambda x: ravel_pytree(jax.grad(model.apply)(params0, x))[0])(inputs)
        return lambda delta: unravel((J @ ravel_pytree(delta)[0] - y) @ J)
    _, forward = jax.linearize(lambda p: predict(model, p, inputs), params0)
    transpose = jax.linear_transpose(forward, params0)
    return lambda delta: transpose(forward(delta) - y)[0]


def best_fit(
    model: Model, params0: Weights, inputs: Any, y: Array, radii: Radii, curvature: Scalar
) -> Weights:
    r"""The best linearised model within the radii, by 2000 steps of FISTA with restarts.

    Minimises $\frac12\lVert f_{lin}-y\rVert^2$; ``curvature`` is the largest eigenvalue of the
    tangent kernel at the start. How far it came is seen by duality: `sums` at the residual.
    """
    zero = jax.tree.map(jnp.zeros_like, params0)
    gradient, step = _slope(model, params0, inputs, y), 1.0 / curvature

    def advance(state: tuple, _: None) -> tuple[tuple, None]:
        delta, momentum, t = state
        slope = gradient(momentum)
        pulled = jax.tree.map(lambda p, a, g: p + (a - step * g), params0, momentum, slope)
        new = jax.tree.map(jnp.subtract, nearest(params0, pulled, radii), params0)
        change = jax.tree.map(jnp.subtract, new, delta)
        uphill = trees.dot(jax.tree.map(jnp.subtract, momentum, new), change)
        t_new = jnp.where(uphill > 0, 1.0, (1 + jnp.sqrt(1 + 4 * t**2)) / 2)
        weight = jnp.where(uphill > 0, 0.0, (t - 1) / t_new)
        onward = jax.tree.map(lambda a, b: a + weight * b, new, change)
        return (new, onward, t_new), None

    delta = jax.lax.scan(advance, (zero, zero, jnp.ones(())), length=2000)[0][0]
    return jax.tree.map(jnp.add, params0, delta)
