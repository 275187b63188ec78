r"""Singular values and extreme eigenvalues, with honesty about what floating point resolves.

Ranks and smallest singular values come from an SVD, never from the eigenvalues of a Gram matrix,
whose rounding error $\epsilon\lVert A\rVert^2$ hides every singular value below
$\sqrt\epsilon\lVert A\rVert$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from matfree import decomp

from shoal._typing import Any, Array, Bool, Callable, Float, Int

# Under vmap these run one matrix after the other. A batched LAPACK call of jaxlib 0.10 waits on a
# worker of XLA's thread pool for other workers of the same pool; if as many such calls run at once
# as there are workers (two threads that train, on two cores), all wait for ever.


@jax.custom_batching.sequential_vmap
def _svd(A: Array) -> Array:
    # full_matrices=False although no vectors are wanted: else LAPACK reserves columns x columns
    return jnp.linalg.svd(A, full_matrices=False, compute_uv=False)


@jax.custom_batching.sequential_vmap
def _eigh(A: Array) -> tuple[Array, Array]:
    return tuple(jnp.linalg.eigh(A))


@jax.custom_batching.sequential_vmap
def _eigvalsh(A: Array) -> Array:
    return jnp.linalg.eigvalsh(A)


def singular_values(A: Float[Array, "rows columns"]) -> Float[Array, " k"]:
    """Singular values in float64, the largest first."""
    return _svd(A.astype(jnp.float64))


def eigenvalues(A: Float[Array, "k k"]) -> Float[Array, " k"]:
    """Eigenvalues of a symmetric matrix in float64, ascending.

    >>> eigenvalues(jnp.array([[0.0, 1.0], [1.0, 0.0]])).round(9).tolist()
    [-1.0, 1.0]
    """
    return _eigvalsh(A.astype(jnp.float64))


def eigensystem(A: Float[Array, "k k"]) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
    """Eigenvalues of a symmetric matrix in float64, ascending, and eigenvectors as columns.

    >>> values, vectors = eigensystem(jnp.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> bool(jnp.allclose(vectors * values[None] @ vectors.T, jnp.array([[0.0, 1.0], [1.0, 0.0]])))
    True
    """
    return _eigh(A.astype(jnp.float64))


def principal_axes(S: Float[Array, "k k"]) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
    """As `eigensystem`, the largest first; the largest entry of every eigenvector is positive.

    >>> values, vectors = principal_axes(jnp.array([[1.0, 0.0], [0.0, 3.0]]))
    >>> values.tolist(), vectors.tolist()
    ([3.0, 1.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    values, E = (x[..., ::-1] for x in eigensystem(S))
    return values, E * jnp.where(jnp.max(E, axis=0) + jnp.min(E, axis=0) < 0, -1.0, 1.0)[None]


def norm_op(A: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Operator norm of a matrix, Euclidean norm of a vector."""
    return singular_values(A)[0] if A.ndim == 2 else norm_fro(A)


def norm_fro(A: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Frobenius norm.

    >>> float(norm_fro(jnp.array([[3.0, 4.0]])))
    5.0
    """
    return jnp.sqrt(jnp.sum(jnp.square(A)))


def sigma_min(
    A: Float[Array, "rows columns"], rtol: float = 0.0, *, sigma: Float[Array, " k"] | None = None
) -> Float[Array, ""]:
    r"""Smallest singular value over the rows, $\sigma_{rows}(A)$: zero if there are fewer columns.

    Values up to ``rtol`` times the largest count as zero. ``sigma`` are all singular values, if
    they are known already.

    >>> float(sigma_min(jnp.array([[1.0], [1.0]])))
    0.0
    >>> float(sigma_min(jnp.diag(jnp.array([1.0, 1e-13])), rtol=1e-12))
    0.0
    """
    rows, columns = A.shape
    if columns < rows:
        return jnp.zeros((), jnp.float64)
    sigma = singular_values(A) if sigma is None else sigma
    return jnp.where(sigma[-1] <= rtol * sigma[0], 0.0, sigma[-1])


def numerical_rank(A: Float[Array, "rows columns"], rtol: float = 1e-12) -> Int[Array, ""]:
    r"""Singular values above ``rtol`` times the largest.

    >>> int(numerical_rank(jnp.array([[1.0, 2.0], [2.0, 4.0]])))
    1
    """
    sigma = singular_values(A)
    return jnp.sum(sigma > rtol * sigma[0])


class Extreme(NamedTuple):
    """An eigenvalue found by iteration, and whether to believe it."""

    value: Float[Array, ""]
    residual: Float[Array, ""]  # ||A v - value v|| for the unit Ritz vector v
    converged: Bool[Array, ""]


def top_eigenvalue(
    matvec: Callable[[Array], Array], start: Float[Array, " k"], *,
    num_matvecs: int = 40, rtol: float = 1e-6,
) -> Extreme:  # fmt: skip
    r"""Largest (not largest in magnitude) eigenvalue of a symmetric operator, by Lanczos.

    A Krylov space approximates both ends of the spectrum, so a dominating negative eigenvalue does
    no harm: we take the largest Ritz value $\vartheta$. Its residual is
    $\lVert Av-\vartheta v\rVert$, and an eigenvalue lies within that distance of $\vartheta$;
    ``converged`` says that it is below ``rtol`` times $|\vartheta|$. Where it is not, raise
    ``num_matvecs``. If the Krylov space is exhausted earlier (few distinct eigenvalues), the rest
    of the basis is noise and is cut off.

    >>> A = jnp.diag(jnp.array([-9.0, 1.0, 2.0]))
    >>> round(float(top_eigenvalue(lambda v: A @ v, jnp.ones(3)).value), 6)
    2.0
    """
    depth = min(num_matvecs, start.size)
    result = decomp.tridiag_sym(depth, reortho="full", custom_vjp=False)(matvec, start)
    diagonal = jnp.nan_to_num(jnp.diagonal(result.J_small))
    beside = jnp.nan_to_num(jnp.diagonal(result.J_small, offset=1))
    size = jnp.max(jnp.abs(diagonal)) + jnp.max(jnp.abs(beside), initial=0.0)
    # everything behind a vanishing off-diagonal entry belongs to another Krylov space
    good = jnp.concatenate([jnp.ones(1, bool), jnp.cumprod(beside > 1e-12 * size).astype(bool)])
    J = jnp.diag(jnp.where(good, diagonal, -4 * size - 1))
    J += jnp.diag(jnp.where(good[1:], beside, 0), 1) + jnp.diag(jnp.where(good[1:], beside, 0), -1)
    S = _eigh(J)[1]
    basis = jnp.where(good[:, None], jnp.nan_to_num(result.Q_tall), 0)
    vector = S[:, -1] @ basis  # matfree keeps the Krylov basis in rows
    vector = vector / norm_fro(vector)
    # one more product buys the true residual: the recurrence's own estimate trusts orthogonality
    image = matvec(vector)
    value = vector @ image
    residual = norm_fro(image - value * vector)
    rounding = jnp.finfo(start.dtype).eps * depth * size
    return Extreme(value, residual, residual <= rtol * jnp.abs(value) + rounding)


def bottom_eigenvalue(
    matvec: Callable[[Array], Array], start: Float[Array, " k"], **options: Any
) -> Extreme:
    """Smallest eigenvalue of a symmetric operator; ``options`` are those of `top_eigenvalue`.

    >>> A = jnp.diag(jnp.array([-9.0, 1.0, 2.0]))
    >>> round(float(bottom_eigenvalue(lambda v: A @ v, jnp.ones(3)).value), 6)
    -9.0
    """
    top = top_eigenvalue(lambda v: -matvec(v), start, **options)
    return top._replace(value=-top.value)
