r"""The hidden units of wu2023: of a step, and of a tangent kernel; by formulas or a kernel in C.

For attended tokens $u_i$ of $N$ sequences, units $W_k$ and their weighted selves $A_k$:

$$ m_{ik}=1[W_k\cdot u_i>0],\quad g_i=\sum_km_{ik}A_k. $$

A step needs $e_n=\sum_{i\in n}g_i\cdot u_i-y_n$, $P_k=\sum_{n,i}m_{ik}e_nu_i$ and $2e_ng_i$; a
tangent kernel needs $J_{nk}=w_k\sum_{i\in n}m_{ik}u_i$, $F_{nk}=\sum_{i\in n}(W_k\cdot u_i)_+$
and $g_i$ for $A_k=w_kW_k$. The formulas are what the code in C is tested against.
"""

import ctypes
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal import native
from shoal._typing import Any, Array, Float
from shoal.trees import in_pieces

SOURCE = Path(__file__).with_suffix(".c")
Answers = tuple[Float[Array, "m d"], Float[Array, " N"], Float[Array, "N n d"]]


def hidden_units(
    U: Float[Array, "N n d"],
    W: Float[Array, "m d"],
    A: Float[Array, "m d"],
    y: Float[Array, " N"],
    held: int,
) -> Answers:
    """$P$, $e$ and $2e_ng_i$: in C, if that can be had and takes ``held`` numbers or less."""
    shapes = W.shape, y.shape, U.shape
    found = _called("hidden_units", shapes, held, U, W, A, y)
    return by_formula(U, W, A, y, held) if found is None else found


def _called(handler: str, shapes: tuple, held: int, U: Array, W: Array, *rest: Array) -> Any:
    """What the C code answers; None if it cannot be had, or needs more room than ``held``."""
    kind = jnp.result_type(U, W, *rest)  # the code takes what it is given for numbers of one kind
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
    U: Float[Array, "N n d"],
    W: Float[Array, "m d"],
    A: Float[Array, "m d"],
    y: Float[Array, " N"],
    held: int,
) -> Answers:
    """The same by three matrix products. The mask lies width first: both run along its rows."""
    N, n, d = U.shape

    def some(U: Float[Array, "b n d"], y: Float[Array, " b"]) -> Answers:
        u = U.reshape(-1, d)
        mask = (W @ u.T > 0).astype(U.dtype)
        # the barrier keeps the compiler from turning this into the slower mask.T @ A
        g = jax.lax.optimization_barrier(A.T @ mask).T
        e = jnp.sum((g * u).reshape(len(y), n * d), axis=1) - y
        P = mask @ (e[:, None, None] * U).reshape(-1, d)
        return P, e, 2 * e[:, None, None] * g.reshape(U.shape)

    at_once = max(1, min(N, held // (n * len(W))))
    if at_once == N:
        return some(U, y)

    # a sample of zeros has no error, so what fills the last piece adds nothing
    def add(total: Array, piece: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        P, e, dU = some(*piece)
        return total + P, (e, dU)

    pieces = in_pieces(U, at_once), in_pieces(y, at_once)
    P, (e, dU) = jax.lax.scan(add, jnp.zeros_like(W), pieces)
    return P, e.reshape(-1)[:N], dU.reshape(-1, n, d)[:N]


Rows = tuple[Float[Array, "N m d"], Float[Array, "N m"], Float[Array, "N n d"]]


def hidden_rows(
    U: Float[Array, "N n d"], W: Float[Array, "m d"], w: Float[Array, " m"], held: int
) -> Rows:
    """$J$, $F$ and $g$, in C if that can be had and takes ``held`` numbers or less."""
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
