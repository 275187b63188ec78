r"""Heads with keys and queries of their own: $A=\sum_hv_hK_h^\top Q_h$ in a quadratic risk.

From small weights the risk falls in steps. Here are the exact staircase of aligned heads, the time
of a head's escape from a plateau, and convergence after the last one. Proofs are in
docs/theory/icl2025.md; $\lambda_d$ are the tokens' eigenvalues, $1/\gamma_d$ the optimal ones of A.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.certificates import Certificate, Equality, Inequality, not_checked, positive
from shoal.theory.products import Quadratic


def cubic_time(v: Any, gamma: Any) -> Any:
    r"""Time of $\dot v=v^2(1-\gamma v^3)$ up to a constant: $\Phi(v)$, increasing in $v$."""
    g = gamma ** (1 / 3)
    x = jnp.minimum(g * v, 1 - 1e-16)
    inside = jnp.log1p(x + x**2) / 6 - jnp.log1p(-x) / 3
    return -1 / v + g * (inside - jnp.arctan((2 * x + 1) / jnp.sqrt(3.0)) / jnp.sqrt(3.0))


def cubic_flow(v0: Any, gamma: Any, time: Any) -> Any:
    r"""The solution of $\dot v=v^2(1-\gamma v^3)$ from $0<v_0<\gamma^{-1/3}$, by bisection.

    >>> round(float(cubic_flow(0.5, 1.0, 1.0)), 4)
    0.788
    """
    goal = cubic_time(v0, gamma) + time
    low, high = jnp.broadcast_arrays(v0 + 0 * goal, gamma ** (-1 / 3) + 0 * goal)

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2
        early = cubic_time(middle, gamma) < goal
        return jnp.where(early, middle, low), jnp.where(early, high, middle)

    return jax.lax.fori_loop(0, 60, halve, (low, high))[0]


def cubic_descent(v0: Any, gamma: Any, eta: Any, every: int, records: int) -> Any:
    r"""The steps $v\leftarrow v+\eta v^2(1-\gamma v^3)$, at every ``every``-th of them."""

    def step(_: Any, v: Any) -> Any:
        return v + eta * v**2 * (1 - gamma * v**3)

    def record(v: Any, _: Any) -> Any:
        return jax.lax.fori_loop(0, every, step, v), v

    return jax.lax.scan(record, v0, None, length=records)[1]


def escape_time(v: float, k: np.ndarray, q: np.ndarray, mu: np.ndarray) -> float:
    r"""When $\dot v=k^\top Mq,\ \dot k=vMq,\ \dot q=vMk$ blows up, $M=\mathrm{diag}(\mu)$.

    In the time $dT=v\,dt$ the rows are $k\cosh MT+q\sinh MT$, and $v^2=E(T)$ is known, so the time
    is $\int dT/\sqrt E$; where $E$ has a zero, $v$ turns there.
    """
    from scipy.integrate import quad
    from scipy.optimize import brentq, minimize_scalar

    sign, unit = np.sign(v) or np.sign(k @ (mu * q)), 1 / np.max(mu)

    def E(T: float) -> float:
        turned = k * np.cosh(mu * T) + q * np.sinh(mu * T)
        return float(v**2 - k @ k + turned @ turned)

    def away(way: float) -> float:
        ends = unit * np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 300.0])
        pairs = itertools.pairwise(ends)
        return sum(quad(lambda T: E(way * T) ** -0.5, *pair, epsabs=0)[0] for pair in pairs)

    lowest = minimize_scalar(lambda T: E(sign * T), bounds=(0, 40 * unit), method="bounded").x
    if E(sign * lowest) > 0:
        return away(sign)
    turn = brentq(lambda T: E(sign * T), 0, lowest)  # T = turn - x^2 removes the root at the end
    back = quad(lambda x: 2 * x * E(sign * (turn - x**2)) ** -0.5, 0, turn**0.5, epsabs=0)[0]
    return 2 * back + away(-sign)


def first_escape(v: np.ndarray, K: np.ndarray, Q: np.ndarray, mu: np.ndarray) -> float:
    """When the first of several heads of rank one escapes."""
    return min(escape_time(float(a), k[0], q[0], mu) for a, k, q in zip(v, K, Q, strict=True))


class Triple(NamedTuple):
    """A start of separate heads: eigenvalues and gammas of the problem, optimum, and weights."""

    lam: Any
    gamma: Any
    best: Any
    v: Any  # (heads,)
    K: Any  # (heads, rank, dim), in the eigenbasis
    Q: Any


def staircase(start: Triple, run: Any, step_size: Any, flow: bool, every: int) -> Certificate:
    """The exact curve where head d is balanced and lies on eigenvector d."""
    lam, gamma, _, v, K, Q = start
    D = len(lam)
    rows = jnp.zeros_like(K).at[:, 0].set(v[:, None] * jnp.eye(len(v), D))
    aside = jnp.maximum(jnp.max(jnp.abs(K - rows)), jnp.max(jnp.abs(Q - rows)))
    if flow:
        time = (step_size * run.step)[:, None] * lam[None] ** 2
        found = cubic_flow(v[None, :D], gamma[None], time)
        tolerance = 1e-7 * lam.sum() + 0.0 * run.step
    else:
        found = cubic_descent(v[:D], gamma, step_size * lam**2, every, len(run.step))
        tolerance = 1e-13 * (10 + run.step) * lam.sum()
    exact = (
        lam.sum() + jnp.sum(lam[None] ** 2 * (gamma[None] * found**6 - 2 * found**3), axis=1)
    ) / 2
    full = jnp.max(gamma * jnp.maximum(v[:D], 0.0) ** 3)
    return Certificate(
        hypotheses={"heads are eigenvectors, v = |k| = |q|": Inequality(aside, 1e-12),
                    "0 < v": positive(jnp.min(v[:D])), "gamma v^3 < 1": Inequality(full, 1.0)},
        conclusions={"the risk is the exact curve": Equality(run.risk, exact, tolerance)},
        curves={"exact": exact},
    )  # fmt: skip


def after_last(start: Triple, q: Quadratic, excess: Any, run: Any, step_size: Any) -> Certificate:
    r"""Once the risk is below the last plateau, flow converges at a rate and stays near."""
    D, rows = len(start.lam), (start.K, start.Q)
    B = jnp.maximum(*(jnp.linalg.svd(x.reshape(-1, D), compute_uv=False)[0] for x in rows))
    last = start.lam[-1] / jnp.sqrt(start.gamma[-1])
    sigma = (last - jnp.sqrt(2 * excess)) / jnp.sqrt(q.h)
    share = jnp.sqrt(excess / q.kappa) / jnp.maximum(sigma, 1e-300)
    rho = B * share / (1 - share)
    m, time = 2 * q.kappa * (sigma / (B + rho)) ** 2, step_size * run.step
    bound, lost = excess * jnp.exp(-2 * m * time), run.risk - start.best
    near: Any = not_checked("distance")
    if "distance" in run.probes:
        near = Inequality(run.probes["distance"], rho, 1e-9 * B)
    return Certificate(
        hypotheses={"below the last plateau: 0 < sigma_A": positive(sigma),
                    "q < 1": Inequality(share, 1.0)},
        conclusions={"risk above its optimum": Inequality(lost, bound, 1e-9 * q.depth),
                     "weights stay within rho": near},
        constants={"sigma_A": sigma, "B": B, "q": share, "rho": rho, "m": m, "epsilon_0": excess},
        predicted_rate=2 * m, measured_rate=-jnp.log(lost[-1] / lost[0]) / time[-1],
        curves={"proved bound": bound + start.best},
    )  # fmt: skip
