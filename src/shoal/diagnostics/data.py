r"""Do the data satisfy what theorems assume of them? A report on any problem.

Wu et al. (2023) assume that tokens are bounded, that each sequence has full row rank, and that
different sequences are dissimilar: $P(|\langle X_n^\top X_n, X_{n'}^\top X_{n'}\rangle|\ge t)
\le\exp(-t^c)$ for some $c>0$. The last is not scale invariant, so we also report the normalised
overlap.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import fits
from shoal._typing import Array, Float
from shoal.problems import Problem

FULL_RANK = 1e-8  # smallest over largest singular value of a sequence that counts as full rank


class DataReport(NamedTuple):
    """The paper's data assumptions, measured."""

    num_samples: int
    num_tokens: int
    dim: int
    token_norm_max: float
    bound: float  # C_x = max_n ||X_n||_F / sqrt(n)
    row_conditioning: float  # min_n sigma_n(X_n) / sigma_1(X_n), 0 if dim < num_tokens
    full_row_rank: bool
    tail_exponent: float  # fitted c
    tail_exponent_low: float  # 95% interval of the fit
    tail_exponent_high: float
    largest_exponent: float  # largest c for which the sample obeys the paper's bound as it stands
    dissimilar: bool  # it is positive
    overlap_max: float  # largest normalised overlap q of two samples
    gershgorin_margin: float  # 1 - max_n sum_n' q
    label_rms: float


def pair_overlaps(X: Float[Array, "N n d"]) -> Float[Array, "N N"]:
    r"""Overlaps $\langle X^\top X, X'^\top X'\rangle = \lVert XX'^\top\rVert_F^2$ of all pairs."""
    return jax.lax.map(lambda x: jnp.sum(jnp.einsum("id,Njd->Nij", x, X) ** 2, axis=(1, 2)), X)


def _survival(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct positive values t, and the share of the sample that is at least t."""
    t = np.unique(values[values > 0])
    return t, 1 - np.searchsorted(np.sort(values), t, side="left") / len(values)


def tail_fit(overlaps: np.ndarray) -> tuple[float, float, float]:
    r"""Fit a tail $S(t)=\exp(-at^c)$: the slope of $\log(-\log S)$ against $\log t$.

    Returns $c$ and the 95% interval of the line, NaN where fewer than three distinct values leave
    nothing to fit. Points of a survival curve depend on each other, so the interval is narrower
    than that of a new sample.
    """
    t, above = _survival(overlaps)
    inner = (above > 0) & (above < 1)
    if inner.sum() < 3:
        return (float("nan"),) * 3
    return fits.power_law(t[inner], -np.log(above[inner]))[:3]


def largest_exponent(overlaps: np.ndarray) -> float:
    r"""Largest $c$ with $S(t)\le e^{-t^c}$ at every $t\ge1$: the paper's bound as it stands.

    $-\log S(t)\ge t^c$ bounds $c$ from above at each value beyond 1. Below 1 a finite sample says
    nothing: every sample has $S=1$ up to its smallest value. Infinite if no value reaches 1.

    >>> largest_exponent(np.array([0.1, 0.2, 0.3]))
    inf
    >>> largest_exponent(np.array([5.0, 6.0, 7.0, 8.0])) > 0
    False
    """
    t, above = _survival(overlaps)
    if np.mean(overlaps >= 1) > np.exp(-1):
        return float("-inf")  # t^c = 1 at t = 1, whatever c is
    with np.errstate(divide="ignore"):
        bound = np.log(-np.log(above[t > 1])) / np.log(t[t > 1])
    return float(np.min(bound, initial=np.inf))


def data_report(problem: Problem) -> DataReport:
    """Measure the data assumptions of Wu et al. (2023), in float64."""
    X = jnp.asarray(problem.X, jnp.float64)
    N, n, d = X.shape
    norms = jnp.linalg.norm(X, axis=-1)
    sigma = np.asarray(jnp.linalg.svd(X, full_matrices=False, compute_uv=False))
    conditioning = 0.0 if d < n else float((sigma[:, -1] / np.maximum(sigma[:, 0], 1e-300)).min())
    G = np.asarray(pair_overlaps(X))
    own = np.sqrt(np.diagonal(G))
    q = (G / np.maximum(own[:, None] * own[None, :], 1e-300)) * ~np.eye(N, dtype=bool)
    overlaps = G[np.triu_indices(N, 1)]
    c, low, high = tail_fit(overlaps)
    most = largest_exponent(overlaps) if N > 1 else float("inf")
    return DataReport(
        num_samples=N, num_tokens=n, dim=d, token_norm_max=float(norms.max()),
        bound=float(jnp.sqrt(jnp.max(jnp.sum(norms**2, axis=1)) / n)),
        row_conditioning=conditioning, full_row_rank=conditioning > FULL_RANK,
        tail_exponent=c, tail_exponent_low=low, tail_exponent_high=high,
        largest_exponent=most, dissimilar=most > 0,
        overlap_max=float(q.max()), gershgorin_margin=float(1 - q.sum(axis=1).max()),
        label_rms=float(jnp.sqrt(jnp.mean(problem.y**2))),
    )  # fmt: skip
