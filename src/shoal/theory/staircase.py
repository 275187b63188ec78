r"""Training a product of three: $\ell=\ell_*+\frac12|P(A-A_*)S|^2$, $A=\sum_hv_hK_h^\top Q_h$.

$P$, $S$ and $A_*=\mathrm{diag}(1/\gamma_d)$ are diagonal in one basis; there the slope at $A=0$
is $-b_d=-P_d^2S_d^2/\gamma_d$. From small weights the risk falls in steps. Here are the staircase
of heads that lie on the axes, the time of a head's escape from a plateau, and convergence after
the last one. Proofs are in docs/theory/icl2025.md.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.certificates import Certificate, Equality, Inequality, not_checked, positive


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
    r"""The steps $v\leftarrow v+\eta v^2(1-\gamma v^3)$, at every ``every``-th of them.

    In $x=\gamma^{1/3}v$, and near the end in $1-x$: there an interval shrinks as the steps do.

    >>> start, gamma = jnp.array(0.5), jnp.array(1.0)
    >>> cubic_descent(start, gamma, 0.1, 1, 2).round(6).tolist()
    [0.5, 0.521875]
    """
    g = gamma ** (1 / 3)
    c = eta / g

    def step(_: Any, x: Any) -> Any:
        late = 1 - (1 - x) * (1 - c * x**2 * (1 + x + x**2))
        return jnp.where(x < 0.5, x + c * x**2 * (1 - x**3), late)

    def record(x: Any, _: Any) -> Any:
        return jax.lax.fori_loop(0, every, step, x), x / g

    return jax.lax.scan(record, g * v0, None, length=records)[1]


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
    """A start: the quadratic in its basis, its minimum, and the weights."""

    left: Any  # P_d^2,
    right: Any  # S_d^2,
    gamma: Any  # and 1 / (A_*)_dd.
    best: Any
    v: Any  # (heads,)
    K: Any  # (heads, rank, dim), in the basis
    Q: Any

    @property
    def slope(self) -> Any:
        """The numbers b_d."""
        return self.left * self.right / self.gamma

    @property
    def excess(self) -> Any:
        """The risk above its minimum."""
        off = jnp.einsum("h,hri,hrj->ij", self.v, self.K, self.Q) - jnp.diag(1 / self.gamma)
        return jnp.sum(self.left[:, None] * off**2 * self.right[None]) / 2


def staircase(start: Triple, setup: Any, run: Any) -> Certificate:
    """The exact curve where head d is balanced and lies on direction d."""
    slope, (_, _, gamma, best, v, K, Q) = start.slope, start
    D, depth, step_size = len(gamma), jnp.sum(slope / gamma) / 2, setup.step_size
    rows = jnp.zeros_like(K).at[:, 0].set(v[:, None] * jnp.eye(len(v), D))
    aside = jnp.maximum(jnp.max(jnp.abs(K - rows)), jnp.max(jnp.abs(Q - rows)))
    if setup.setting.method == "flow":
        time = (step_size * run.step)[:, None] * slope[None]
        found = cubic_flow(v[None, :D], gamma[None], time)
        tolerance = 2e-7 * (best + depth) + 0.0 * run.step
    else:
        found = cubic_descent(v[:D], gamma, step_size * slope, setup.setting.every, len(run.step))
        tolerance = 2e-13 * (10 + run.step) * (best + depth)
    gained = slope[None] * (2 * found**3 - gamma[None] * found**6)
    exact = best + depth - jnp.sum(gained, axis=1) / 2
    full = jnp.max(gamma * jnp.maximum(v[:D], 0.0) ** 3)
    return Certificate(
        hypotheses={"heads are eigenvectors, v = |k| = |q|": Inequality(aside, 1e-12),
                    "0 < v": positive(jnp.min(v[:D])), "gamma v^3 < 1": Inequality(full, 1.0)},
        conclusions={"the risk is the exact curve": Equality(run.risk, exact, tolerance)},
        curves={"exact": exact},
    )  # fmt: skip


def after_last(start: Triple, setup: Any, run: Any) -> Certificate:
    r"""Once the risk is below the last plateau, flow converges at a rate and stays near."""
    D, excess, rows = len(start.gamma), start.excess, (start.K, start.Q)
    h = jnp.max(start.left) * jnp.max(start.right)
    kappa = jnp.min(start.left) * jnp.min(start.right)
    B = jnp.maximum(*(jnp.linalg.svd(x.reshape(-1, D), compute_uv=False)[0] for x in rows))
    last = jnp.sqrt(jnp.min(start.slope / start.gamma))
    sigma = (last - jnp.sqrt(2 * excess)) / jnp.sqrt(h)
    share = jnp.sqrt(excess / kappa) / jnp.maximum(sigma, 1e-300)
    rho = B * share / (1 - share)
    m, time = 2 * kappa * (sigma / (B + rho)) ** 2, setup.step_size * run.step
    bound, lost = excess * jnp.exp(-2 * m * time), run.risk - start.best
    room, near = 1e-9 * jnp.sum(start.slope / start.gamma) / 2, None
    if "distance" in run.probes:
        near = Inequality(run.probes["distance"], rho, 1e-9 * B)
    return Certificate(
        hypotheses={"below the last plateau: 0 < sigma_A": positive(sigma),
                    "q < 1": Inequality(share, 1.0)},
        conclusions={"risk above its optimum": Inequality(lost, bound, room),
                     "weights stay within rho": near or not_checked("distance")},
        constants={"sigma_A": sigma, "B": B, "q": share, "rho": rho, "m": m, "epsilon_0": excess},
        predicted_rate=2 * m, measured_rate=-jnp.log(lost[-1] / lost[0]) / time[-1],
        curves={"proved bound": bound + start.best},
    )  # fmt: skip
