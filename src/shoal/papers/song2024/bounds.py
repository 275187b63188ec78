r"""Constants of the theorems: what is known of a start before it is trained.

Letters as in docs/theory/song2024.md. Functions take one start (a `Setup` without the axis of
seeds); most look at its initial weights ``params0``, its tokens and its kernel.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Float, Scalar
from shoal.linalg import norm_op, numerical_rank, singular_values
from shoal.models import predict
from shoal.papers.song2024 import layer
from shoal.papers.song2024.layer import Weights
from shoal.verified.enclose import chosen

KAPPA_3 = math.sqrt(6) / 9
"""Largest third cumulant of a unit vector under a probability vector (lemma 1)."""
ZERO = 1e-12
"""Singular values below this share of the largest are left out where that is a choice."""
ON_HULL = 1e-9
"""Distance from the affine hull, over the size of values and targets, up to which a target counts
as one that was meant to lie in it. What lies off it stays in the risk, and the theorems say so."""

Numbers = dict[str, Array]
norms_op = jax.vmap(norm_op)


def residual(setup: Any) -> Float[Array, "N n p"]:
    """Outputs minus targets at the start; half their sum of squares is $F_0$."""
    return predict(setup.network, setup.params0, setup.inputs) - setup.targets


def centred(Z: Float[Array, "*N n k"]) -> Float[Array, "*N n k"]:
    """$PZ$: the mean row subtracted from every row."""
    return Z - jnp.mean(Z, axis=-2, keepdims=True)


class Bounds(NamedTuple):
    r"""Bounds of the derivatives of attention weights, for any query.

    ``scores(n, d, tau)`` are $a, b, f, g$ of lemma 3: $c=a\,x+b\,x^2(\omega+R)$ bounds $\dot S$ and
    $e=f\,c^2+g\,x^2$ bounds $\ddot S$. ``turning(U, K, tau)`` are $\beta_i$, the Lipschitz constant
    of $J_{ik}=\partial m_{ik}/\partial q_{ik}$, and $j_i$, the bound of that.
    """

    scores: Callable[[int, int, Scalar], tuple[Scalar, Scalar, Scalar, Scalar]]
    turning: Callable[[Array, Array, Scalar], tuple[Array, Array]]


def _softmax_turning(U: Array, K: Array, _: Scalar) -> tuple[Array, Array]:
    d = K.shape[-1]
    PU, PK = norms_op(centred(U)), norms_op(centred(K))
    return KAPPA_3 * PU * PK**2 / d, PU * PK / (2 * d**0.5)


def _gaussian_turning(U: Array, K: Array, tau: Scalar) -> tuple[Array, Array]:
    n, size = K.shape[-2], norms_op(U)
    return n**0.5 * size / tau, size * jnp.sqrt(n / (math.e * tau))


SOFTMAX = Bounds(
    lambda _n, d, _tau: (0.0, 1 / (2 * d**0.5), 4 * KAPPA_3, 1 / (2 * d**0.5)), _softmax_turning
)
GAUSSIAN = Bounds(
    lambda n, _d, tau: (jnp.sqrt(2 * n / (math.e * tau)), 0.0, 0.0, 2 * n**0.5 / tau),
    _gaussian_turning,
)
PROVED = {"softmax": SOFTMAX, "gaussian": GAUSSIAN}
"""The kernels that theorems 2 and 3 cover."""
RULE_OF_THUMB = {"normalised_gaussian": SOFTMAX, "exponential": SOFTMAX, "mean_gaussian": GAUSSIAN}
"""Bounds that other kernels borrow, for a default step only."""


def bounds_of(setup: Any) -> Bounds:
    """Bounds of a start's kernel: proved, or borrowed."""
    return (PROVED | RULE_OF_THUMB)[setup.setting.kernel]


def value_numbers(setup: Any) -> Numbers:
    r"""All about training $W_V$ alone: $\lambda$, $L$, the floor, and the residual's parts."""
    X, form = setup.inputs, setup.setting.form
    A = layer.value_matrix(setup.params0, X, form)
    r = residual(setup).ravel()
    U, sigma, _ = jnp.linalg.svd(A, full_matrices=False)
    alive = sigma > ZERO * sigma[0]
    parts = jnp.where(alive, U.T @ r, 0.0)
    return {
        "lambda": jnp.min(jnp.where(alive, sigma, jnp.inf)) ** 2,
        "L": sigma[0] ** 2,
        "F_0": 0.5 * jnp.sum(r**2),
        "F_star": 0.5 * jnp.sum((r - U @ parts) ** 2),
        "rank A": jnp.sum(alive),
        "rank B": numerical_rank(layer.feature_matrix(setup.params0, X, form), ZERO),
        "rows of A": jnp.asarray(len(r)), "sigma": sigma, "parts": parts,
    }  # fmt: skip


def joint_constants(setup: Any) -> Numbers:
    r"""Every constant of theorem 2.

    $R$ is the largest with $RL_A\le\lambda/2$: for each head the root of
    $R(\alpha+\beta R)=\lambda/2$ with $\alpha=o(\bar a+\bar b\omega)$, $\beta=o\bar b$, where
    $\bar a^2=\sum_i(ax_i^2)^2$ and $\bar b^2=\sum_i(bx_i^3)^2$ (one of $a$, $b$ is zero).
    """
    X, params0, form = setup.inputs, setup.params0, setup.setting.form
    sigma = singular_values(layer.value_matrix(params0, X, form))
    lam = jnp.where(params0.W_V.size >= setup.targets.size, sigma[-1], 0.0)  # columns, rows of A
    x, (Q, K, V, o) = norms_op(X), map(norms_op, params0)
    omega = jnp.sqrt(Q**2 + K**2)
    a, b, f, g = bounds_of(setup).scores(X.shape[1], params0.W_Q.shape[-1], form.bandwidth)
    alpha = o * (a * jnp.sqrt(jnp.sum(x**4)) + b * jnp.sqrt(jnp.sum(x**6)) * omega)
    beta = o * b * jnp.sqrt(jnp.sum(x**6))
    below = alpha + jnp.sqrt(alpha**2 + 2 * beta * lam)  # no cancellation in the root this way
    # a head with W_O = 0 sets no limit
    R = jnp.min(jnp.where(below > 0, lam / jnp.where(below > 0, below, 1), jnp.inf))
    x = x[:, None]
    c = a * x + b * x**2 * (omega[None] + R)
    e = f * c**2 + g * x**2
    L_A = jnp.max(o * jnp.sqrt(jnp.sum((c * x) ** 2, axis=0)))
    A_norm = sigma[0] + R * L_A
    u = x * (V + R)[None] * o[None]
    jacobian = A_norm**2 + jnp.sum((c * u) ** 2)
    E = jnp.sqrt(jnp.sum(jnp.max((e * u) ** 2, axis=1)))
    F_0 = 0.5 * jnp.sum(residual(setup) ** 2)
    return {
        "lambda": lam, "|A_0|": sigma[0], "c": c, "L_A": L_A, "R": R,
        "threshold": lam**2 * R**2 / 32, "F_0": F_0, "a^2+b^2": jacobian, "E": E,
        "L": jacobian + jnp.sqrt(2 * F_0) * 0.5 * (E + jnp.sqrt(E**2 + 4 * L_A**2)),
        "mu": lam**2 / 4,
    }  # fmt: skip


def affine_gap(U: Float[Array, "n p"], Y: Float[Array, "n p"]) -> Float[Array, " n"]:
    """Distance of each target row to the affine hull of the values."""
    _, sigma, V = jnp.linalg.svd(centred(U), full_matrices=False)
    alive = sigma > ZERO * norm_op(U)
    away = Y - jnp.mean(U, axis=0)[None]
    inside = (away @ V.T) * alive[None] @ V
    return jnp.sqrt(jnp.sum((away - inside) ** 2, axis=1))


def query_geometry(setup: Any) -> Numbers:
    r"""Values, keys and the ranks that decide what training $W_Q$ alone can do (one head)."""
    X, params0, Y = setup.inputs, setup.params0, setup.targets
    U = jax.vmap(lambda x: layer.values(params0, x)[0])(X)
    K = jax.vmap(lambda x: layer.queries_and_keys(params0, x)[1][0])(X)
    sigma_X = singular_values(X.reshape(-1, X.shape[-1]))
    full = X.shape[0] * X.shape[1] <= X.shape[2]
    size = norms_op(U) + jnp.sqrt(jnp.max(jnp.sum(Y**2, -1), -1))
    gap = chosen(jax.vmap(affine_gap))(U, Y)
    # a choice: what lies off the hull stays in the risk, and the theorems say so
    in_hull = chosen(lambda gap, size: jnp.max(gap, axis=1) <= ON_HULL * size)(gap, size)
    n, k = K.shape[1:]
    spread_U, spread_K = (jax.vmap(singular_values)(centred(Z)) for Z in (U, K))

    def rank(spread: Array, Z: Array) -> Array:
        return jnp.sum(spread > ZERO * norms_op(Z)[:, None], axis=1)

    full_rank = min(n - 1, U.shape[-1])
    sigma_K = jnp.ones(()) if n == 1 else jnp.zeros(())  # one key is independent
    if 1 < n <= k + 1:
        sigma_K = jnp.min(spread_K[:, n - 2])
    return {
        "U": U, "K": K, "rank_U": chosen(rank)(spread_U, U), "rank_K": chosen(rank)(spread_K, K),
        "in_hull": in_hull, "full_rank": jnp.asarray(full_rank),
        "sigma_U": jnp.min(spread_U[:, full_rank - 1]) if full_rank else jnp.ones(()),
        "sigma_K": sigma_K,
        "off_hull": jnp.sqrt(jnp.sum(jnp.where(in_hull[:, None], gap, 0.0) ** 2)),
        "sigma_X": sigma_X[-1] if full else jnp.zeros(()), "|X|": sigma_X[0],
    }  # fmt: skip


def smallest_jacobian(setup: Any, params: Weights, geometry: Numbers) -> Float[Array, ""]:
    r"""$\min_{ik}\sigma_{a_i}(J_{ik})$; samples with $a_i=0$ are fitted and do not count."""
    form = setup.setting.form
    J = layer.query_jacobians(params, setup.inputs, form)
    N, n, p, _ = J.shape
    sigma = jnp.linalg.svd(J, full_matrices=False, compute_uv=False)
    sigma = jnp.concatenate([sigma, jnp.zeros((N, n, p))], axis=-1)[..., :p]  # zero if k < p
    count = jnp.full(N, p)
    if form.kernel.normalised:
        count = jnp.where(geometry["in_hull"], geometry["rank_U"], p)
    picked = jnp.take_along_axis(sigma, jnp.maximum(count - 1, 0)[:, None, None], axis=2)[..., 0]
    least = jnp.min(jnp.where(count[:, None] > 0, picked, jnp.inf))
    return jnp.where(jnp.any(count > 0), least, 0.0)  # nothing can turn, and nothing needs to


def smoothness(setup: Any) -> Float[Array, ""]:
    r"""$L$ of theorem 3, heads added up: beyond one head and $W_Q$ alone only a rule of thumb."""
    X, params0, tau = setup.inputs, setup.params0, setup.setting.form.bandwidth

    def head(W_K: Array, W_VO: Array) -> tuple[Array, Array]:
        beta, j = bounds_of(setup).turning(X @ W_VO, X @ W_K, tau)
        return jnp.max(beta), jnp.max(j) ** 2

    beta, j2 = jax.vmap(head)(params0.W_K, params0.W_V @ params0.W_O)
    size = norm_op(X.reshape(-1, X.shape[-1]))
    r = jnp.sqrt(jnp.sum(residual(setup) ** 2))
    L = size**2 * (jnp.sum(j2) + r * jnp.max(beta))
    return jnp.where(L > 0, L, 1.0)


def query_constants(setup: Any, geometry: Numbers | None = None) -> Numbers:
    """Every constant of theorem 3."""
    form, g = setup.setting.form, geometry or query_geometry(setup)
    s_0 = smallest_jacobian(setup, setup.params0, g)
    beta, j = bounds_of(setup).turning(g["U"], g["K"], form.bandwidth)
    token = jnp.max(jnp.sqrt(jnp.sum(setup.inputs**2, axis=-1)), axis=1)
    R_J, beta, j = s_0 / (2 * jnp.max(beta * token)), jnp.max(beta), jnp.max(j)
    F_0 = 0.5 * jnp.sum(residual(setup) ** 2)
    mu_0 = (g["sigma_X"] * s_0) ** 2
    return {
        "sigma_X": g["sigma_X"], "|X|": g["|X|"], "s_0": s_0, "mu_0": mu_0, "beta": beta, "j": j,
        "R_J": R_J, "threshold": mu_0 * R_J**2 / 32, "F_0": F_0,
        "L": g["|X|"] ** 2 * (j**2 + jnp.sqrt(2 * F_0) * beta),
        "off the hull": g["off_hull"] if form.kernel.normalised else jnp.zeros(()),
        "sigma of centred keys, least": g["sigma_K"],
        "rank of centred values, least": jnp.min(g["rank_U"]),
        "rank of centred keys, least": jnp.min(g["rank_K"]),
    }  # fmt: skip
