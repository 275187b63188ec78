r"""The smallest width that theorems A and B certify, also for widths that are too large to build.

The theorems look at a start through a few numbers, whose distribution is known for Gaussian
weights. $[W_Q,W_K]^\top[W_Q,W_K]$ and $W_V^\top W_V$ are Wishart, drawn by Bartlett's factors;
given attention, $FF^\top$ is a sum over independent hidden units; given $F$, the outputs are
Gaussian. Beyond `UNITS` the sum is that of the first `UNITS` units times width / `UNITS`: of the
smallest eigenvalue that is known to about one per cent, and widths are searched on a grid of
eighths of an octave. For each seed all widths use the same random numbers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.papers.wu2023.theorems import descent_numbers, flow_numbers
from shoal.runtime import in_float64

UNITS = 2**14
STRIDE = 16
Numbers = dict[str, Any]


def bartlett(rng: np.random.Generator, dofs: np.ndarray, size: int) -> list[np.ndarray]:
    """Wishart matrices of unit scale, one for every number of degrees of freedom, ``>= size``."""
    from scipy import stats

    below = np.tril(rng.standard_normal((size, size)), -1)
    levels = rng.uniform(size=size)
    factors = [below + np.diag(stats.chi2.ppf(levels, m - np.arange(size)) ** 0.5) for m in dofs]
    return [A @ A.T for A in factors]


def relu_sums(U: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Hidden units summed over the tokens of every sequence (samples, units)."""
    hidden = U.reshape(-1, U.shape[-1]) @ units.T
    return np.maximum(hidden, 0, out=hidden).reshape(*U.shape[:2], len(units)).sum(axis=1)


def drawn_starts(values: dict[str, Any], seed: int, widths: np.ndarray) -> Numbers:
    """The numbers that theorems A and B need of LeCun starts of one seed, an entry per width.

    Data and model are those of `CERTIFIABLE`: pairs of unit tokens, Gaussian labels, pooling by
    sums. Widths must be at least twice the dimension, and the number of samples.
    """
    from scipy.special import softmax

    N, d, n, p = values["num_samples"], values["dim"], 2, values["score_exponent"]
    rng = np.random.default_rng([seed, 2023, N])
    X, y = rng.standard_normal((N, n, d)), values["label_scale"] * rng.standard_normal(N)
    X /= np.linalg.norm(X, axis=-1, keepdims=True)
    scores, value_grams = bartlett(rng, widths, 2 * d), bartlett(rng, widths, d)
    units, noise = rng.standard_normal((UNITS, d)) / d**0.5, rng.standard_normal(N)
    found = []
    for m, G, V in zip(widths, scores, value_grams, strict=True):
        B = softmax(m**-p * (X @ (G[:d, d:] / d) @ X.transpose(0, 2, 1)), axis=-1)
        drawn = min(int(m), UNITS)
        H = relu_sums(B @ X, units[:drawn])
        eigenvalues, vectors = np.linalg.eigh(H @ H.T * (m / drawn))
        outputs = vectors @ (np.sqrt(np.maximum(eigenvalues, 0) / m) * noise)
        norms = {k: np.linalg.eigvalsh(W / d)[-1] ** 0.5
                 for k, W in (("q_0", G[:d, :d]), ("k_0", G[d:, d:]), ("v_0", V))}  # fmt: skip
        found.append(norms | {
            "E_0": np.linalg.norm(outputs - y), "alpha": max(eigenvalues[0], 0.0) ** 0.5,
            "norm_F": eigenvalues[-1] ** 0.5, "tau_0": m**-p,
        })  # fmt: skip
    apart = np.linalg.norm(X[:, :, None] - X[:, None], axis=-1)
    R, one = np.linalg.norm(X, axis=-1).max(), np.ones(len(widths))
    same = {"R": R, "c_X": apart.max() ** 2 / 4, "rho": N**0.5 * n * R, "r": 1.0, "o_0": 1.0,
            "tau_1": 1.0, "kappa": 1.0}  # fmt: skip
    each = {name: np.array([row[name] for row in found]) for name in found[0]}
    return each | {name: value * one for name, value in same.items()}


@in_float64
def smallest_drawn(values: dict[str, Any], seed: int, method: str, widths: np.ndarray) -> int:
    """Position of the smallest width from which on a theorem applies; their number if none does.

    ``method`` is flow (theorem B) or descent (theorem A, one step size for all weights). Looks at
    every sixteenth width first, then between the last that fails and the next.
    """

    def first(some: np.ndarray) -> int:
        """Position in ``some`` from which on the theorem applies."""
        start = {k: jnp.asarray(v) for k, v in drawn_starts(values, seed, some).items()}
        c = jax.vmap(flow_numbers if method == "flow" else descent_numbers)(start)
        applies = (c["mu"] < 1) & (c["c_5"] < 1) & (start["alpha"] > 0)
        applies &= True if method == "flow" else c["c_6"] < 2
        fails = np.flatnonzero(~np.asarray(applies))
        return int(fails[-1]) + 1 if len(fails) else 0

    coarse = STRIDE * first(widths[::STRIDE])
    low = max(coarse - STRIDE + 1, 0)
    return low + first(widths[low:coarse]) if coarse else 0
