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


def _defect(Q: np.ndarray) -> float:
    """Upper bound of |I - Q'Q|, for columns that should be orthonormal."""
    gram = balls.dot(balls.exact(Q.T), balls.exact(Q))
    return balls.norm(balls.sub(balls.exact(np.eye(Q.shape[1])), gram))


def _around(values: np.ndarray, share: float, extra: float) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of values that are right up to a share of themselves and an absolute error."""
    wide = up(share * np.abs(values) + extra)
    return np.nextafter(values - wide, -np.inf), np.nextafter(values + wide, np.inf)


def singular_values(matrix: Ball) -> tuple[np.ndarray, np.ndarray]:
    r"""Lower and upper bounds of all singular values, the largest first, of every matrix in a ball.

    With a computed $A\approx USV^\top$, $\|I-U^\top U\|\le a$ and $\|I-V^\top V\|\le b$, those of
    $USV^\top$ lie within $\sqrt{(1\pm a)(1\pm b)}$ times $S$, and by Weyl those of $A$ within
    $\|A-USV^\top\|$ of them. The smallest is also bounded below by B2, which is closer.
    """
    mid, rad = matrix
    count = min(mid.shape)
    if count == 0:
        return np.zeros(0), np.zeros(0)
    nothing = np.zeros(count), np.full(count, np.inf)
    if not (np.isfinite(mid).all() and np.isfinite(rad).all()):
        return nothing
    top = float(np.max(np.abs(mid), initial=0.0))
    # scaled by a power of two, exactly but for underflow, which the radius of a product covers
    scale = 2.0 ** float(np.clip(-np.frexp(top)[1], -1000, 1000)) if top > 0 else 1.0
    scaled = Ball(mid * scale, up(rad * scale) if rad.any() else rad)
    if (narrow := _by_gram(scaled, scale)) is not None:
        return narrow
    try:
        U, S, Vt = np.linalg.svd(scaled.mid, full_matrices=False)
    except np.linalg.LinAlgError:
        return nothing
    a, b = _defect(U), _defect(Vt.T)
    if not (np.isfinite(S).all() and a < 0.5 and b < 0.5):
        return nothing
    product = balls.dot(balls.mul(balls.exact(U), balls.exact(S[None])), balls.exact(Vt))
    away = balls.norm(balls.sub(scaled, product)) if top > 0 else balls.norm(scaled)
    low, high = _around(S, up(a + b), away)
    if S[-1] > 0 and low[-1] < (1 - FINE) * S[-1]:
        wide = scaled if mid.shape[0] <= mid.shape[1] else Ball(scaled.mid.T, scaled.rad.T)
        low[-1] = max(low[-1], sigma_min(wide))
    return _ordered(low, high, scale)


FINE = 1e-8
"""Relative width up to which an enclosure is not sought to be narrower."""


def _ordered(low: np.ndarray, high: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of values in descending order: each bounds its neighbours too."""
    low = np.maximum(np.maximum.accumulate(low[::-1])[::-1], 0.0)
    with np.errstate(over="ignore"):
        return low / scale, np.minimum.accumulate(high) / scale


def _by_gram(scaled: Ball, scale: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Singular values of a long matrix from its small Gram matrix, if they come out narrow."""
    short = scaled if scaled.shape[0] <= scaled.shape[1] else Ball(scaled.mid.T, scaled.rad.T)
    if 8 * short.shape[0] > short.shape[1]:
        return None
    low, high = (x[::-1] for x in eigenvalues(balls.dot(short, Ball(short.mid.T, short.rad.T))))
    if not low[-1] > (1 - FINE) * high[-1]:
        return None
    low, high = np.sqrt(low) * (1 - 4 * UNIT), np.sqrt(high) * (1 + 4 * UNIT)
    return _ordered(low, high, scale)


def eigenvalues(matrix: Ball) -> tuple[np.ndarray, np.ndarray]:
    r"""Lower and upper bounds of all eigenvalues, ascending, of every symmetric matrix in a ball.

    With $A\approx V\Lambda V^\top$ and $\|I-V^\top V\|\le a<1$: by Ostrowski those of
    $V\Lambda V^\top$ lie within $(1\pm a)\Lambda$, and by Weyl those of A near them.
    """
    mid, rad = matrix
    size = len(mid)
    nothing = np.full(size, -np.inf), np.full(size, np.inf)
    if not (np.isfinite(mid).all() and np.isfinite(rad).all()):
        return nothing
    extra = balls.norm(balls.exact(rad + 2 * UNIT * np.abs(mid) + 0.5 * np.abs(mid - mid.T)))
    S = mid / 2 + mid.T / 2
    try:
        values, V = np.linalg.eigh(S)
    except np.linalg.LinAlgError:
        return nothing
    a = _defect(V)
    if not (np.isfinite(values).all() and a < 0.5):
        return nothing
    product = balls.dot(balls.mul(balls.exact(V), balls.exact(values[None])), balls.exact(V.T))
    away = balls.norm(balls.sub(balls.exact(S), product))
    low, high = _around(values, 2 * a, up(away + extra))
    return np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]


def eigenvectors(matrix: Ball) -> tuple[np.ndarray, np.ndarray]:
    r"""Lower and upper bounds of unit eigenvectors (columns) of every symmetric matrix in a ball.

    They belong to ascending eigenvalues, with the signs that LAPACK gives. If $|Av-tv|=r$ and all
    other eigenvalues are further than $\delta$ from $t$, then a unit eigenvector is within
    $\sqrt2r/\delta$ of a unit vector $v$ (Davis and Kahan); if they are not apart, nothing is known
    of its entries but $[-1,1]$. An exactly diagonal matrix has the axes, also where eigenvalues are
    equal.
    """
    mid, rad = matrix
    size = len(mid)
    finite = np.isfinite(mid).all() and np.isfinite(rad).all()
    if finite and not rad.any() and np.array_equal(mid, np.diag(np.diag(mid))):
        axes = np.eye(size)[:, np.argsort(np.diag(mid), kind="stable")]
        return axes, axes
    low, high = eigenvalues(matrix)
    if not (finite and np.isfinite(low).all() and np.isfinite(high).all()):
        return -np.ones((size, size)), np.ones((size, size))
    values, V = np.linalg.eigh(mid / 2 + mid.T / 2)
    guess, defect = balls.exact(V), _defect(V)
    away = balls.sub(balls.dot(matrix, guess), balls.mul(guess, balls.exact(values[None])))
    residual = np.array([balls.norm(Ball(*(x[:, k] for x in away))) for k in range(size)])
    apart = np.maximum(low[None] - values[:, None], values[:, None] - high[None])
    gap = balls.down(np.min(apart, axis=1, where=~np.eye(size, dtype=bool), initial=np.inf))
    # a computed v has a norm within the defect of 1, and sqrt 2 / (1 - defect) is below 2
    off = np.divide(2 * residual, gap, where=(gap > 0) & (defect < 0.25), out=np.full(size, 2.0))
    reach = up(off + defect)[None]
    low, high = np.nextafter(V - reach, -np.inf), np.nextafter(V + reach, np.inf)
    return np.maximum(low, -1.0), np.minimum(high, 1.0)
