r"""Verified extremes of matrices: eigenvalues, spectral norms, smallest singular values.

Nothing that LAPACK returns is believed. An eigenvalue is a guess t; a Cholesky factor R of
$A = tI-S$ is any matrix, and $\lambda_{\min}(A)\ge-\|A-R^\top R\|_F$ whatever R is, with the
difference enclosed by balls (docs/theory/prove.md, section 3.2).
"""

import numpy as np

from shoal.verified import balls
from shoal.verified.balls import UNIT, Ball, up


def _deficit(A: np.ndarray) -> float:
    """A number d with lambda_min(A) >= -d, or inf if Cholesky does not go through."""
    try:
        R = np.linalg.cholesky(A).T
    except np.linalg.LinAlgError:
        return np.inf
    if not np.isfinite(R).all():  # OpenBLAS lets a nan pass
        return np.inf
    return balls.norm(balls.sub(balls.exact(A), balls.dot(balls.exact(R.T), balls.exact(R))))


def lambda_max(matrix: Ball) -> float:
    """Upper bound of the largest eigenvalue of every symmetric matrix in a ball."""
    mid, rad = matrix
    size = len(mid)
    if size == 0:
        return -np.inf
    if not (np.isfinite(mid).all() and np.isfinite(rad).all()):
        return np.inf
    if size == 1:
        return float(np.nextafter(mid[0, 0] + up(rad[0, 0]), np.inf))
    S = (mid + mid.T) / 2
    extra = balls.norm(balls.exact(rad + 2 * UNIT * np.abs(mid) + 0.5 * np.abs(mid - mid.T)))
    values = np.linalg.eigvalsh(S)
    top, scale = float(values[-1]), float(np.max(np.abs(values)))
    for k in range(-14, 2):
        t = top + 10.0**k * scale + balls.TINY
        A = -S
        A[np.diag_indices(size)] += t
        rounding = 2 * UNIT * float(np.max(np.abs(np.diag(S)) + abs(t)))
        if (d := _deficit(A)) < np.inf:
            found = t + up(d + rounding + extra)
            return float(np.nextafter(found, np.inf))
    return np.inf


def lambda_min(matrix: Ball) -> float:
    """Lower bound of the smallest eigenvalue of every symmetric matrix in a ball."""
    return -lambda_max(balls.neg(matrix))


def spectral_norm(matrix: Ball) -> float:
    """Upper bound of the spectral norm of every matrix in a ball; never above the Euclidean."""
    mid, rad = matrix
    rough = balls.norm(matrix)
    if min(mid.shape) <= 1 or not 0 < rough < np.inf:
        return rough
    power = 2.0 ** float(np.clip(-np.frexp(np.max(np.abs(mid)))[1], -1000, 1000))
    scaled = mid * power  # exact but for underflow, which TINY covers
    short = balls.exact(scaled if mid.shape[0] <= mid.shape[1] else scaled.T)
    top = lambda_max(balls.dot(short, balls.exact(short.mid.T)))
    loss = balls.norm(balls.exact(rad))
    with np.errstate(over="ignore"):
        return float(min(rough, up(up(np.sqrt(max(top, 0.0))) / power + loss)))


def sigma_min(matrix: Ball) -> float:
    r"""Lower bound of $\sigma$ in $\|J^\top v\|\ge\sigma\|v\|$; 0 if nothing is proved (B2).

    A matrix with more rows than columns has $\sigma=0$.
    """
    mid = matrix.mid
    rows, columns = mid.shape
    if rows == 0 or rows > columns or not np.isfinite(mid).all():
        return 0.0
    if rows == 1:
        return balls.norm_below(matrix)
    try:
        X = np.linalg.pinv(mid)
    except np.linalg.LinAlgError:
        return 0.0
    if not np.isfinite(X).all():
        return 0.0
    error = balls.norm(balls.sub(balls.exact(np.eye(rows)), balls.dot(matrix, balls.exact(X))))
    good = error < 1
    if not good:
        return 0.0
    return float(max(balls.down((1 - error) * (1 - 2.0**-50) / spectral_norm(balls.exact(X))), 0.0))


def perron(matrices: np.ndarray) -> np.ndarray:
    r"""Upper bounds of the largest eigenvalues of nonnegative symmetric matrices.

    Collatz and Wielandt: $\lambda_{\max}(S)\le\max_i(Sx)_i/x_i$ for any $x>0$. The last two axes
    are the matrix.
    """
    size = matrices.shape[-1]
    if size == 0:
        return np.zeros(matrices.shape[:-2])
    good = np.isfinite(matrices).all((-1, -2))
    safe = np.where(good[..., None, None], matrices, 0.0)
    if size == 1:
        return np.where(good, up(safe[..., 0, 0]), np.inf)
    scale = np.max(safe, (-1, -2), keepdims=True)
    safe = safe / np.where(scale > 0, scale, 1.0)
    symmetric = np.maximum(safe, np.swapaxes(safe, -1, -2))
    vectors = np.abs(np.linalg.eigh(symmetric)[1][..., -1])
    best = np.full(good.shape, np.inf)
    for x in (vectors, np.ones_like(vectors)):
        x = np.maximum(x, 1e-13 * np.max(x, -1, keepdims=True))
        best = np.minimum(best, np.max((symmetric @ x[..., None])[..., 0] / x, -1))
    return np.where(good, up(up(best, size) * scale[..., 0, 0]), np.inf)
