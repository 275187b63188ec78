r"""The attention layer of the theory, and the matrices that its theorems look at.

For a sequence $X\in\mathbb R^{n\times D}$ and heads $h$: $Q=XW_Q^h$, $K=XW_K^h$, $U_h=XW_V^hW_O^h$,
weights $S_h$ from a kernel of $Q$ and $K$, output $M=\sum_hS_hU_h\in\mathbb R^{n\times p}$.

Products come in the cheap order: $W_V^hW_O^h$ is formed once for all sequences, so values cost
$nDp$ each, not $nDd_v + nd_vp$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import attention as kernels
from shoal import fused
from shoal._typing import Array, Callable, Float, Scalar
from shoal.linalg import norm_op
from shoal.models import with_gradient


class Weights(NamedTuple):
    """Parameters of the layer; the leading axis of each is the head."""

    W_Q: Float[Array, "H D k"]
    W_K: Float[Array, "H D k"]
    W_V: Float[Array, "H D v"]
    W_O: Float[Array, "H v p"]


class Kernel(NamedTuple):
    """Attention weights as a function of queries and keys, and what is known of them."""

    weights: Callable[..., Array]
    products: bool  # Scores are products $q^\top k/\sqrt d$; else distances over the bandwidth.
    normalised: bool  # A row sums to one.
    largest: Callable[[int], float | None] = lambda _: 1.0  # Largest weight of n; None: no limit.


KERNELS = {
    name: Kernel(
        weights,
        products=name in ("softmax", "exponential"),
        normalised=name in ("softmax", "normalised_gaussian"),
    )
    for name, weights in kernels.KERNELS.items()
}
KERNELS["mean_gaussian"] = KERNELS["mean_gaussian"]._replace(largest=lambda n: 1 / n)
KERNELS["exponential"] = KERNELS["exponential"]._replace(largest=lambda _: None)


class Form(NamedTuple):
    """Which attention: the kernel and its bandwidth."""

    kernel: Kernel
    bandwidth: Scalar


def queries_and_keys(params: Weights, x: Float[Array, "n D"]) -> tuple[Array, Array]:
    """Queries and keys of every head, (H, n, k)."""
    return jnp.einsum("nD,HDk->Hnk", x, params.W_Q), jnp.einsum("nD,HDk->Hnk", x, params.W_K)


def attention(params: Weights, x: Float[Array, "n D"], form: Form) -> Float[Array, "H n n"]:
    """Attention weights $S_h$ of one sequence."""
    return form.kernel.weights(*queries_and_keys(params, x), form.bandwidth)


def values(params: Weights, x: Float[Array, "n D"]) -> Float[Array, "H n p"]:
    """Rows $u_j$ that attention mixes, $U_h=XW_V^hW_O^h$."""
    return jnp.einsum("nD,HDp->Hnp", x, params.W_V @ params.W_O)


def outputs(params: Weights, x: Float[Array, "n D"], form: Form) -> Float[Array, "n p"]:
    """The layer's output: one row for each token of a sequence."""
    return jnp.einsum("Hnm,Hmp->np", attention(params, x, form), values(params, x))


Squares = Callable[[Weights, Float[Array, "N n D"], Float[Array, "N n p"]], Float[Array, ""]]


def fused_squares(form: Form) -> tuple[Squares, Squares]:
    """Sum of squared errors: with its gradient in one pass over the samples, and alone.

    By C code (`shoal.fused`), or by the formula where there is none.
    """

    def blocks(params: Weights) -> fused.Blocks:
        W_Q, W_K, values = params.W_Q[None], params.W_K[None], (params.W_V @ params.W_O)[None]
        D, p = values.shape[2:]
        none = jnp.zeros((1, D, 0)), jnp.zeros((1, 0, p)), jnp.zeros((0, p))
        return fused.Blocks(W_Q, W_K, values, *(x.astype(values.dtype) for x in none))

    def kind(params: Weights, X: Array) -> fused.Kind:
        products, scale = form.kernel.products, params.W_Q.shape[-1] ** -0.5
        return fused.Kind(
            scale if products else 1 / (2 * form.bandwidth),
            weight=1.0 if form.kernel.normalised else form.kernel.largest(X.shape[1]) or 1.0,
            distances=not products,
            softmax=form.kernel.normalised,
        )

    def plain(params: Weights, X: Array, Y: Array) -> Float[Array, ""]:
        found = jax.vmap(outputs, in_axes=(None, 0, None))(params, X, form)
        return jnp.sum((found - Y) ** 2)

    def both(params: Weights, X: Array, Y: Array) -> tuple[Array, Weights]:
        value, slope = fused.squares(blocks(params), X, Y, kind(params, X))
        dV = slope.W_V[0]
        W_V = jnp.einsum("HDp,Hvp->HDv", dV, params.W_O)
        W_O = jnp.einsum("HDv,HDp->Hvp", params.W_V, dV)
        return value, Weights(slope.W_Q[0], slope.W_K[0], W_V, W_O)

    def alone(params: Weights, X: Array, Y: Array) -> Float[Array, ""]:
        return fused.value(blocks(params), X, Y, kind(params, X))

    return fused.where_usable(with_gradient(both), alone, plain, blocks)


def mixed_tokens(params: Weights, X: Float[Array, "N n D"], form: Form) -> Float[Array, "N n H D"]:
    r"""What each head hands on: the rows of $S_{ih}X_i$."""
    S = jax.vmap(lambda x: attention(params, x, form))(X)
    return jnp.einsum("NHnm,NmD->NnHD", S, X)


def feature_matrix(params: Weights, X: Float[Array, "N n D"], form: Form) -> Float[Array, "R C"]:
    r"""$B=[S_1X|\dots|S_HX]\in\mathbb R^{Nn\times HD}$."""
    mixed = mixed_tokens(params, X, form)
    return mixed.reshape(mixed.shape[0] * mixed.shape[1], -1)


def value_matrix(params: Weights, X: Float[Array, "N n D"], form: Form) -> Float[Array, "R C"]:
    r"""$A$ with $\mathrm{vec}(M)=A\,\mathrm{vec}(W_V)$, both row by row.

    $$ A = [(S_hX)\otimes(W_O^h)^\top]_h \in\mathbb R^{Nnp\times HDd_v} $$
    """
    A = jnp.einsum("NnHD,Hvp->NnpHDv", mixed_tokens(params, X, form), params.W_O)
    return A.reshape(A.shape[0] * A.shape[1] * A.shape[2], -1)


def query_jacobians(
    params: Weights, X: Float[Array, "N n D"], form: Form
) -> Float[Array, "N n p k"]:
    r"""$J_{ik}=\partial m_{ik}/\partial q_{ik}$ of a single head, in closed form.

    Softmax: $U^\top(\mathrm{diag}\,s-ss^\top)K/\sqrt d$. Gaussian:
    $U^\top\mathrm{diag}(s)(K-\mathbf 1q^\top)/\tau$. All kernels subtract a centre from the keys
    of $\sum_js_ju_jk_j^\top$: their mean if rows are normalised, else the query (distances) or 0.
    """

    def one(x: Float[Array, "n D"]) -> Float[Array, "n p k"]:
        Q, K = (z[0] for z in queries_and_keys(params, x))
        S, U = attention(params, x, form)[0], values(params, x)[0]
        moment = jnp.einsum("nm,mp,mk->npk", S, U, K)
        centre = S @ K if form.kernel.normalised else 0 * Q if form.kernel.products else Q
        scale = K.shape[-1] ** 0.5 if form.kernel.products else form.bandwidth
        return (moment - jnp.einsum("np,nk->npk", S @ U, centre)) / scale

    return jax.vmap(one)(X)


def simplex_projection(v: Float[Array, " n"]) -> Float[Array, " n"]:
    """Nearest point with entries at least 0 that sum to 1.

    >>> simplex_projection(jnp.array([2.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    ordered = jnp.sort(v)[::-1]
    excess = (jnp.cumsum(ordered) - 1) / jnp.arange(1, len(v) + 1)
    last = jnp.sum(ordered > excess) - 1
    return jnp.maximum(v - excess[last], 0)


def reach_floor(
    U: Float[Array, "H n p"], Y: Float[Array, "rows p"], *, box: float | None, num_steps: int = 600
) -> Float[Array, ""]:
    r"""Lower bound of $\tfrac12\lVert M-Y\rVert_F^2$ over all attention weights, values $U$ fixed.

    A normalised row lies in the sum over heads of the convex hulls of the $u_j$ (``box=None``); an
    unnormalised one in $\{\sum_js_ju_j: 0\le s_j\le b\}$ with ``box`` $=b$. A projection
    $\hat y$ is approximated by accelerated projected gradient steps; the bound does not trust it:
    for any direction $g$ the distance is at least $(g^\top y-h(g))/\lVert g\rVert$ with the support
    function $h$ of the set, and $g=y-\hat y$ is used.
    """
    H, n, _ = U.shape
    step = 1 / jnp.maximum(norm_op(U.reshape(H * n, -1)) ** 2, jnp.finfo(U.dtype).tiny)

    def inside(w: Float[Array, "H n"]) -> Float[Array, "H n"]:
        return jax.vmap(simplex_projection)(w) if box is None else jnp.clip(w, 0.0, box)

    def support(g: Float[Array, " p"]) -> Float[Array, ""]:
        reach = jnp.einsum("Hnp,p->Hn", U, g)
        return jnp.sum(jnp.max(reach, 1)) if box is None else box * jnp.sum(jnp.maximum(reach, 0))

    def row(y: Float[Array, " p"]) -> Float[Array, ""]:
        def improve(carry: tuple, _: None) -> tuple[tuple, None]:
            w, ahead, k = carry
            error = jnp.einsum("Hn,Hnp->p", ahead, U) - y
            moved = inside(ahead - step * jnp.einsum("Hnp,p->Hn", U, error))
            # momentum that points uphill is dropped (O'Donoghue & Candes 2015)
            k = jnp.where(jnp.sum((ahead - moved) * (moved - w)) > 0, 0.0, k + 1)
            return (moved, moved + k / (k + 3) * (moved - w), k), None

        start = inside(jnp.zeros((H, n)))
        (w, _, _), _ = jax.lax.scan(improve, (start, start, 0.0), length=num_steps)
        g = y - jnp.einsum("Hn,Hnp->p", w, U)
        length = jnp.sqrt(jnp.sum(g**2))
        gap = (g @ y - support(g)) / jnp.where(length > 0, length, 1)
        # rounding of the two products, whose difference this is
        blur = 8 * jnp.finfo(U.dtype).eps * (jnp.sqrt(jnp.sum(y**2)) + jnp.sqrt(jnp.sum(U**2)))
        return 0.5 * jnp.maximum(gap - blur, 0) ** 2

    return jnp.sum(jax.vmap(row)(Y))
