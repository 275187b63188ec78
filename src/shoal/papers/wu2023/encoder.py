r"""The encoder-only shallow Transformer of Wu et al. (2023), and its tangent kernel.

One head, no bias, no residual, no normalisation, scalar output. For a sequence $X$ with rows $x_i$:

$$ b_i = \mathrm{softmax}(\tau_0 X W_K^\top W_Q x_i),\quad u_i = X^\top b_i,\quad
   F = \tau_1\kappa\sum_i\mathrm{relu}(W_V u_i),\quad f = F^\top w_O. $$

Symbols: the paper's $d_m$ is ``width``, $d_s$ ``num_tokens``, $\tau_0$ ``score``, $\tau_1$
``output``, and $\kappa$ ``pool`` ($1/d_s$ for mean pooling, 1 for the sum).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Callable, Float, Params
from shoal.attention import softmax, softmax_pullback
from shoal.diagnostics.kernels import Kernels
from shoal.models import Model, with_gradient
from shoal.papers.wu2023.hidden_units import hidden_rows, hidden_units
from shoal.trees import in_pieces

HELD = 2**24
"""Numbers in the largest array of hidden units (samples x tokens x width) that a step holds; the
formula holds two such, the C code at most one."""
TILE = 2**20
"""Numbers in the largest array that a tangent kernel holds of a tile of the width; three are."""


class Weights(NamedTuple):
    """The parameters, in the paper's letters."""

    W_Q: Float[Array, "m d"]
    W_K: Float[Array, "m d"]
    W_V: Float[Array, "m d"]
    w_O: Float[Array, " m"]


class Scales(NamedTuple):
    """The constants of the model that are not trained."""

    score: float  # tau_0 = width ** -p
    output: float  # tau_1
    pool: float  # kappa


def weights_spec(dim: int, width: int) -> Weights:
    """Shapes of the parameters."""
    matrix: Any = jax.ShapeDtypeStruct((width, dim), jnp.float64)
    vector: Any = jax.ShapeDtypeStruct((width,), jnp.float64)
    return Weights(matrix, matrix, matrix, vector)


def attention(params: Weights, X: Float[Array, "n d"], scales: Scales) -> Float[Array, "n n"]:
    r"""Attention weights $B$, row $i$ for the query token $i$.

    Scores need only the product $W_Q^\top W_K$, of size dim x dim: formed once for all sequences,
    since under ``vmap`` it does not depend on the batch.
    """
    return softmax(scales.score * (X @ (params.W_Q.T @ params.W_K) @ X.T))


def preactivation(params: Weights, X: Float[Array, "n d"], scales: Scales) -> Float[Array, "n m"]:
    """Hidden units before ReLU: attend first, project after."""
    return (attention(params, X, scales) @ X) @ params.W_V.T


def features(params: Weights, X: Float[Array, "n d"], scales: Scales) -> Float[Array, " m"]:
    r"""What the output weights see, $F = \tau_1\kappa\sum_i\mathrm{relu}(W_Vu_i)$."""
    active = jax.nn.relu(preactivation(params, X, scales))
    return scales.output * scales.pool * jnp.sum(active, axis=0)


def encoder(dim: int, width: int, scales: Scales, held: int = HELD) -> Model:
    """The model as one sequence in, one number out; ``held`` as in `fused_squares`."""
    return Model(
        spec=weights_spec(dim, width),
        apply=lambda params, X: features(params, X, scales) @ params.w_O,
        squares=fused_squares(scales, held),
    )


def fused_squares(
    scales: Scales, held: int = HELD
) -> Callable[[Weights, Float[Array, "N n d"], Float[Array, " N"]], Float[Array, ""]]:
    r"""Sum of squared errors and its gradient by three matrix products over the hidden units.

    ReLU is homogeneous, so of the hidden units only the mask $m_{ik}=1[W_{V,k}\cdot u_i>0]$ is
    needed. With $\lambda=\tau_1\kappa$ and errors $e_n$:

    $$ g_i = \lambda\sum_k m_{ik}w_kW_{V,k},\quad f_n=\sum_ig_i\cdot u_i,\quad
       P_k = \sum_{n,i}m_{ik}e_nu_i, $$

    the gradient is $2e_ng_i$ in $u_i$, $2\lambda w_kP_k$ in $W_{V,k}$ and
    $2\lambda P_k\cdot W_{V,k}$ in $w_k$. That in the scores passes through a dim x dim matrix, like
    the scores themselves. Automatic differentiation would hold and read three arrays of the hidden
    units' size; the formula of ``hidden_units`` holds one, its kernel a piece of one that stays in
    the cache.
    """

    def both(params: Weights, X: Array, y: Array) -> tuple[Array, Weights]:
        size = scales.output * scales.pool
        B = jax.vmap(attention, in_axes=(None, 0, None))(params, X, scales)
        weighted = size * params.w_O[:, None] * params.W_V
        P, e, dG = hidden_units(X, B, params.W_V, weighted, y, held)
        R = scales.score * dG
        gradient = Weights(
            W_Q=params.W_K @ R.T,
            W_K=params.W_Q @ R,
            W_V=2 * size * params.w_O[:, None] * P,
            w_O=2 * size * jnp.sum(P * params.W_V, axis=1),
        )
        return jnp.sum(e**2), gradient

    return with_gradient(both)


def tangent_kernels(X: Float[Array, "N n d"], scales: Scales, tile: int = TILE) -> Kernels:
    r"""Exact tangent kernel of each block, without a Jacobian.

    With the slopes $m_i = 1[W_Vu_i>0]$, $Z_i = w_O\odot m_i$, $g_i=\tau_1\kappa W_V^\top Z_i$ and
    $M = \sum_i X^\top(\mathrm{diag}\,b_i-b_ib_i^\top)Xg_i\,x_i^\top$ (dim x dim) for each sequence:

    $$ K_O = FF^\top,\quad
       K_V = (\tau_1\kappa)^2\sum_{ij}(Z_i\cdot Z'_j)(u_i\cdot u'_j),\quad
       K_Q = \tau_0^2\langle W_K^\top W_K M, M'\rangle,\quad
       K_K = \tau_0^2\langle M W_Q^\top W_Q, M'\rangle. $$

    Derived for shoal (``docs/theory/wu2023.md``, section 9). relu'(0) = 0, as automatic
    differentiation has it. Hidden units are summed tile by tile, each of about ``tile`` numbers, so
    memory does not grow with the width. $K_V$ is either the sum over pairs of tokens, which costs
    $2N^2n^2m$ operations, or the product of the rows $\sum_iZ_iu_i^\top$, which costs
    $2N^2md+2Nnmd$: whichever is less.
    """
    N, n, d = X.shape
    by_pairs = N * n * n < d * (N + n)

    def kernels(params: Weights) -> dict[str, Float[Array, "N N"]]:
        B = jax.vmap(attention, in_axes=(None, 0, None))(params, X, scales)
        U = B @ X
        u = U.reshape(N * n, d)
        units = len(params.w_O)
        most = max(1, tile // (N * max(n, 0 if by_pairs else d)))
        width = -(-units // -(-units // most))  # tiles of equal width, as few as can be

        def add(total: tuple, units: tuple[Array, Array]) -> tuple[tuple, None]:
            W, w = units  # the last tile is filled with units of weight 0, which add nothing
            if by_pairs:
                H = u @ W.T
                Z = jnp.where(H > 0, w, 0)
                F = jnp.sum(jnp.maximum(H, 0).reshape(N, n, width), axis=1)
                g, values = Z @ W, Z @ Z.T
            else:
                J, F, g = hidden_rows(U, W, w, 2 * tile)
                rows = J.reshape(N, width * d)
                g, values = g.reshape(N * n, d), rows @ rows.T
            return jax.tree.map(jnp.add, total, (g, values, F @ F.T)), None

        square = jnp.zeros((N, N), X.dtype)
        zero = jnp.zeros_like(u), jnp.zeros((N * n, N * n), X.dtype) if by_pairs else square, square
        tiles = in_pieces(params.W_V, width), in_pieces(params.w_O, width)
        (g, values, outputs), _ = jax.lax.scan(add, zero, tiles)
        if by_pairs:
            values = jnp.sum((values * (u @ u.T)).reshape(N, n, N, n), axis=(1, 3))

        size = scales.output * scales.pool
        p = softmax_pullback(B, size * g.reshape(U.shape) @ X.transpose(0, 2, 1)) @ X
        M = jnp.einsum("nia,nib->nab", p, X)
        flat = M.reshape(N, d * d)
        through_K = ((params.W_K.T @ params.W_K) @ M).reshape(N, d * d)
        through_Q = (M @ (params.W_Q.T @ params.W_Q)).reshape(N, d * d)
        return {
            "W_Q": scales.score**2 * (through_K @ flat.T),
            "W_K": scales.score**2 * (through_Q @ flat.T),
            "W_V": size**2 * values,
            "w_O": size**2 * outputs,
        }

    return kernels


def conserved_drift(params0: Weights, speeds: dict) -> Callable[[Params], dict[str, Array]]:
    r"""How far the invariants of gradient flow have moved.

    The flow with step ratios $r_*$ conserves $r_KW_QW_Q^\top - r_QW_KW_K^\top$ and, for each hidden
    unit, $r_V w_O^2 - r_O\lVert W_V\rVert^2$ (row norms); gradient descent moves them by
    $O(\gamma)$. Reported: Frobenius norm and Euclidean norm of the change. The first is a
    (width x width) matrix of rank at most 4 dim: with $M=[W_Q, W_K, W_Q^0, W_K^0] = QR$ it is
    $Q(R\,\mathrm{diag}\,R^\top)Q^\top$, so R suffices.
    """
    r = {name: speeds.get(name, 1.0) for name in ("W_Q", "W_K", "W_V", "w_O")}

    def per_unit(params: Weights) -> Float[Array, " m"]:
        return r["W_V"] * params.w_O**2 - r["w_O"] * jnp.sum(params.W_V**2, axis=1)

    def probe(params: Weights) -> dict[str, Float[Array, ""]]:
        signs = jnp.array([r["W_K"], -r["W_Q"], -r["W_K"], r["W_Q"]])
        M = jnp.concatenate([params.W_Q, params.W_K, params0.W_Q, params0.W_K], axis=1)
        R = jnp.linalg.qr(M, mode="r")
        change = (R * jnp.repeat(signs, params0.W_Q.shape[1])[None]) @ R.T
        return {
            "query_key": jnp.linalg.norm(change),
            "value_output": jnp.linalg.norm(per_unit(params) - per_unit(params0)),
        }

    return probe
