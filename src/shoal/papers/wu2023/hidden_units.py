r"""The hidden units of wu2023, in a step and in a tangent kernel: by formulas or by code in C.

For attended tokens $u_i$ of $N$ sequences, units $W_k$ and their weighted selves $A_k$:

$$ m_{ik}=1[W_k\cdot u_i>0],\quad g_i=\sum_km_{ik}A_k. $$

A step, where $u_i=\sum_jB_{ij}x_j$, needs $e_n=\sum_{i\in n}g_i\cdot u_i-y_n$,
$P_k=\sum_{n,i}m_{ik}e_nu_i$ and, for the scores, $R=\sum_nX^\top S_nX$ with $S_n$ what softmax
pulls back of $2e_ng_i\cdot x_j$. A tangent kernel needs $J_{nk}=w_k\sum_{i\in n}m_{ik}u_i$,
$F_{nk}=\sum_{i\in n}(W_k\cdot u_i)_+$ and $g_i$ for $A_k=w_kW_k$. Tests compare the C code with
the formulas.
"""

import ctypes
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal import native
from shoal._typing import Any, Array, Float
from shoal.attention import softmax_pullback
from shoal.trees import padded_chunks

SOURCE = Path(__file__).with_suffix(".c")
Answers = tuple[Float[Array, "m d"], Float[Array, " N"], Float[Array, "d d"]]
Rows = tuple[Float[Array, "N m d"], Float[Array, "N m"], Float[Array, "N n d"]]


def hidden_units(
    X: Float[Array, "N n d"], B: Float[Array, "N n n"], W: Float[Array, "m d"],
    A: Float[Array, "m d"], y: Float[Array, " N"], held: int,
) -> Answers:  # fmt: skip
    """$P$, $e$ and $R$: by C code, if it is available and needs at most ``held`` numbers."""
    shapes = W.shape, y.shape, (X.shape[2],) * 2
    found = _called("hidden_units", shapes, held, X, W, A, y, B)
    return by_formula(X, B, W, A, y, held) if found is None else found


def hidden_value(
    X: Float[Array, "N n d"], B: Float[Array, "N n n"], W: Float[Array, "m d"],
    a: Float[Array, " m"], y: Float[Array, " N"], held: int,
) -> Float[Array, " N"]:  # fmt: skip
    r"""$e$ alone for $A_k=a_kW_k$: by C code under the same conditions as `hidden_units`."""
    found = _called("hidden_value", (y.shape,), held, X, W, a, y, B)
    return by_formula(X, B, W, a[:, None] * W, y, held)[1] if found is None else found[0]


def _called(handler: str, shapes: tuple, held: int, U: Array, W: Array, *rest: Array) -> Any:
    """The C code's answer; None if it is not available or needs more than ``held`` numbers."""
    kind = jnp.result_type(U, W, *rest)  # the C code expects one dtype
    given = [x.astype(kind) for x in (U, W, *rest)]
    found = native.kernel(SOURCE, handler, str(kind))
    if found is None:
        return None
    name, library = found
    needed = getattr(library, f"{handler}_room")
    needed.restype, needed.argtypes = ctypes.c_int64, [ctypes.c_int64] * 4
    room = needed(*U.shape, len(W))
    if room > held:
        return None
    out: Any = [jax.ShapeDtypeStruct(shape, kind) for shape in (*shapes, (room,))]
    return tuple(jax.ffi.ffi_call(name, out, vmap_method="broadcast_all")(*given)[:-1])


def by_formula(
    X: Float[Array, "N n d"], B: Float[Array, "N n n"], W: Float[Array, "m d"],
    A: Float[Array, "m d"], y: Float[Array, " N"], held: int,
) -> Answers:  # fmt: skip
    """The same by matrix products. The mask has the width first: two of them run along its rows."""
    N, n, d = X.shape

    def some(X: Float[Array, "b n d"], B: Float[Array, "b n n"], y: Float[Array, " b"]) -> Answers:
        U = B @ X
        u = U.reshape(-1, d)
        mask = (W @ u.T > 0).astype(u.dtype)
        # the barrier keeps the compiler from turning this into the slower mask.T @ A
        g = jax.lax.optimization_barrier(A.T @ mask).T
        e = jnp.sum((g * u).reshape(len(y), n * d), axis=1) - y
        P = mask @ (e[:, None, None] * U).reshape(-1, d)
        dU = 2 * e[:, None, None] * g.reshape(U.shape)
        back = softmax_pullback(B, dU @ X.transpose(0, 2, 1)) @ X
        return P, e, X.reshape(-1, d).T @ back.reshape(-1, d)

    batch_size = max(1, min(N, held // (n * len(W))))
    if batch_size == N:
        return some(X, B, y)

    # a sample of zeros has no error, so padding of the last chunk adds nothing
    def add(total: tuple[Array, Array], chunk: tuple) -> tuple[tuple[Array, Array], Array]:
        P, e, R = some(*chunk)
        return (total[0] + P, total[1] + R), e

    chunks = tuple(padded_chunks(array, batch_size) for array in (X, B, y))
    zero = jnp.zeros_like(W), jnp.zeros((d, d), X.dtype)
    (P, R), e = jax.lax.scan(add, zero, chunks)
    return P, e.reshape(-1)[:N], R


def hidden_rows(
    U: Float[Array, "N n d"], W: Float[Array, "m d"], w: Float[Array, " m"], held: int
) -> Rows:
    """$J$, $F$ and $g$: by C code, if it is available and needs at most ``held`` numbers."""
    shapes = (len(U), *W.shape), (len(U), len(W)), U.shape
    found = _called("hidden_rows", shapes, held, U, W, w[:, None] * W, w)
    return rows_by_formula(U, W, w) if found is None else found


def rows_by_formula(
    U: Float[Array, "N n d"], W: Float[Array, "m d"], w: Float[Array, " m"]
) -> Rows:
    """The same by matrix products."""
    H = U @ W.T
    mask = (H > 0).astype(U.dtype)
    J = w[None, :, None] * (mask.transpose(0, 2, 1) @ U)
    return J, jnp.sum(jnp.maximum(H, 0), axis=1), mask @ (w[:, None] * W)
