r"""Training a quadratic of a product: $\ell=\ell_*+\frac12\lVert R(A-A_*)\rVert^2$, $A=W^\top v$.

$v\in R^H$, $W\in R^{H\times n}$: a linear network with two layers, or attention with merged keys
and queries. All is proved in docs/theory/icl2025.md; every quadratic with a positive definite
$R^\top R$ is covered, of an expectation as of samples.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Float, Scalar
from shoal.certificates import Certificate, Equality, Inequality, not_checked, positive
from shoal.linalg import norm_fro


class Quadratic(NamedTuple):
    """The numbers by which a quadratic enters the theorems."""

    h: Any  # Largest eigenvalue of the Hessian R'R,
    kappa: Any  # and its smallest.
    slope: Any  # Norm of the gradient at A = 0.
    optimum: Any  # Norm of the optimal A.
    depth: Any  # Risk at A = 0 above the optimum.


def quadratic(root: Float[Array, "m n"], optimum: Float[Array, "..."]) -> Quadratic:
    """The numbers of a quadratic, whose variable may have any shape.

    >>> [float(x) for x in quadratic(jnp.diag(jnp.array([2.0, 1.0])), jnp.array([3.0, 0.0]))]
    [4.0, 1.0, 12.0, 3.0, 18.0]
    """
    sigma, image = jnp.linalg.svd(root, compute_uv=False), root @ optimum.ravel()
    return Quadratic(
        sigma[0] ** 2, sigma[-1] ** 2, norm_fro(root.T @ image), norm_fro(optimum),
        0.5 * jnp.sum(image**2),
    )  # fmt: skip


def square_form(
    H: Float[Array, "n n"], b: Float[Array, " n"], c: Scalar
) -> tuple[Array, Array, Array]:
    r"""Root, minimiser and minimum of $\frac12a^\top Ha-b^\top a+\frac12c$, as in $\ell$ above.

    >>> root, best, least = square_form(jnp.diag(jnp.array([4.0, 1.0])), jnp.array([4.0, 0.0]), 5.0)
    >>> jnp.diag(root).tolist(), best.tolist(), float(least)
    ([2.0, 1.0], [1.0, 0.0], 0.5)
    """
    factor = jax.scipy.linalg.cho_factor(H)
    optimum = jax.scipy.linalg.cho_solve(factor, b)
    return jnp.triu(factor[0]), optimum, 0.5 * (c - b @ optimum)


def imbalance(v: Float[Array, " H"], W: Float[Array, "H ..."]) -> Scalar:
    r"""What gradient flow conserves, $\lVert vv^\top-WW^\top\rVert_2$.

    >>> float(imbalance(jnp.array([2.0]), jnp.array([[1.0, 1.0]])))
    2.0
    """
    rows = W.reshape(len(v), -1)
    return jnp.max(jnp.abs(jnp.linalg.eigvalsh(jnp.outer(v, v) - rows @ rows.T)))


def least_value(q: Quadratic, c: Scalar, gained: Scalar) -> Scalar:
    r"""A lower bound of $|v|^2$ where the risk is ``gained`` below that of $A=0$; 0 if not below.

    $$ u_-^2=\tfrac12\big(\sqrt{c^2+4a_-^2}-c\big),\qquad
       a_-=\frac{2\delta}{b+\sqrt{b^2-2\kappa\delta}} $$
    """
    delta = jnp.maximum(gained, 0.0)
    within = jnp.maximum(q.slope**2 - 2 * q.kappa * delta, 0.0)
    a = 2 * delta / (q.slope + jnp.sqrt(within))
    # the difference of root and c, without its cancellation; at a = 0 it is 0, also if c is 0
    return jnp.where(a > 0, 2 * a**2 / (c + jnp.sqrt(c**2 + 4 * a**2)), 0.0)


class StepBound(NamedTuple):
    """Constants of gradient descent with a step: it descends if ``needed`` is at most 1."""

    needed: Any
    c: Any  # Bound of the imbalance all along.
    s: Any  # Bound of |v|^2 + |W|^2 all along.


def step_bound(q: Quadratic, eta: Scalar, excess: Scalar, c0: Scalar, num_heads: int) -> StepBound:
    r"""What a step needs, $\eta[\hat G+h\hat s(1+\frac12\eta\hat G)^2]\le1$.

    ``excess`` is the risk at the start above the optimum, ``c0`` the imbalance there.
    """
    c = c0 + 2 * eta * excess
    a, G = q.optimum + jnp.sqrt(2 * excess / q.kappa), jnp.sqrt(2 * q.h * excess)
    s = jnp.sqrt(c**2 + 4 * a**2) + (0 if num_heads == 1 else 2) * c
    return StepBound(eta * (G + q.h * s * (1 + eta * G / 2) ** 2), c, s)


def largest_step(q: Quadratic, excess: Scalar, c0: Scalar, num_heads: int) -> Scalar:
    """The largest step that `step_bound` allows, by bisection of its logarithm."""

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2
        fits = step_bound(q, jnp.exp(middle), excess, c0, num_heads).needed <= 1
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    top = -jnp.log(q.h * 2 * q.optimum)  # needed >= eta h s, and s >= 2 |A*|
    low, _ = jax.lax.fori_loop(0, 80, halve, (top - 60.0, top))
    return (1 - 1e-9) * jnp.exp(low)


class Isotropic(NamedTuple):
    r"""Start of a product in $\frac12k\lVert A-A_*\rVert^2$, heads $W_h=p_hA_*/|A_*|$."""

    k: Any
    optimum: Any  # |A*|
    plus: Any  # |v + p|^2 / 4
    minus: Any  # |v - p|^2 / 4


def aligned_flow(start: Isotropic, time: Float[Array, " T"]) -> Float[Array, " T"]:
    r"""The length of A along the flow, exactly.

    With $E$ the squared growth of $v+p$, $|A|=\alpha E-\bar\alpha/E$ and
    $\dot E=2k(|A_*|E-\alpha E^2+\bar\alpha)$, a Riccati equation with roots $E_+>0\ge-E_-$.
    """
    k, a, plus, minus = start
    root = jnp.sqrt(a**2 + 4 * plus * minus)
    E_plus, E_minus = (a + root) / (2 * plus), 2 * minus / (a + root)
    left = jnp.exp(-2 * k * root * time)
    gone = -jnp.expm1(-2 * k * root * time)
    E = (E_plus + E_minus * left + minus / plus * gone) / (gone + E_minus + E_plus * left)
    return plus * E - minus / E


def aligned_descent(start: Isotropic, eta: Scalar, every: int, records: int) -> Array:
    """The length of A along gradient descent, exactly, at every ``every``-th step.

    What is missing of |A*| has a recursion of its own: there an interval shrinks as it does.

    >>> start = Isotropic(k=1.0, optimum=1.0, plus=jnp.array(0.5), minus=jnp.array(0.0))
    >>> aligned_descent(start, 0.1, 1, 2).round(6).tolist()
    [0.5, 0.55125]
    """
    k, a, plus, minus = start

    def step(_: Any, now: Any) -> Any:
        plus, minus, missing = now
        f = eta * k * missing
        left = missing * (1 - 2 * eta * k * (plus + minus) - eta * k * f * (a - missing))
        return plus * (1 + f) ** 2, minus * (1 - f) ** 2, left

    def record(now: Any, _: Any) -> Any:
        plus, minus, missing = now
        length = jnp.where(missing < a / 2, a - missing, plus - minus)
        return jax.lax.fori_loop(0, every, step, now), length

    return jax.lax.scan(record, (plus, minus, a - (plus - minus)), None, length=records)[1]


def balanced_flow(k: Scalar, a: Scalar, r0: Scalar, cosine: Scalar, time: Array) -> Array:
    r"""Length of A and its cosine to A* along the flow, if every $W_h=v_hn$ with $|n|=1$.

    The cosine is $\tanh\tau$, $\tau=\nu t+\tau_0$, $\nu=k|A_*|$; the length solves Bernoulli's
    equation $\dot r=2\nu r\cos-2kr^2$. Written in $e^{-2\tau}$, so that nothing overflows.
    """
    gone = k * a * time
    tau0 = jnp.arctanh(jnp.clip(cosine, -1.0, 1.0))
    x0, left = jnp.exp(-2 * tau0), jnp.exp(-2 * gone)
    x = x0 * left
    area = gone * x / 2 + ((1 - x**2) - left * (1 - x0**2)) / 8
    r = (1 + x) ** 2 / 4 / (left * (1 + x0) ** 2 / 4 / r0 + 2 / a * area)
    return jnp.stack([r, jnp.tanh(gone + tau0)])


class Product(NamedTuple):
    """A start: the quadratic as arrays, its optimum, and the weights of the product."""

    root: Float[Array, "m n"]
    optimum: Float[Array, " n"]
    best: Scalar
    v: Float[Array, " H"]
    W: Float[Array, "H n"]

    def facts(self) -> tuple[Quadratic, Any, Any, Any]:
        """The quadratic's numbers, excess and gain of the risk at the start, and imbalance."""
        q = quadratic(self.root, self.optimum)
        excess = 0.5 * jnp.sum((self.root @ (self.W.T @ self.v - self.optimum)) ** 2)
        return q, excess, q.depth - excess, imbalance(self.v, self.W)

    def largest_step(self) -> Scalar:
        """The largest step of gradient descent that `descends` certifies."""
        q, excess, _, c = self.facts()
        return largest_step(q, excess, c, len(self.v))


def product(
    root: Float[Array, "m n"], optimum: Float[Array, "..."], best: Scalar,
    v: Float[Array, " H"], W: Float[Array, "H ..."],
) -> Product:  # fmt: skip
    """A start whose optimum and rows of W may have any shape."""
    return Product(root, optimum.ravel(), best, v, W.reshape(len(v), -1))


def scale_free(start: Product, E: Float[Array, "d d"], gamma: Float[Array, " d"]) -> Scalar:
    r"""A lower bound of $u^2$ along the flow of one head $A=uU$ at any scale; 0 for more heads.

    For a Hessian that is diagonal in the basis $E$, with optimum $\mathrm{diag}(1/\gamma)$ there:
    a positive $U_{ii}$ grows while it is below $1/(\gamma_iu_+)$, and $u^2-|U|^2$ is conserved.
    """
    (q, excess, *_), u, U = start.facts(), start.v[0], start.W[0].reshape(E.shape)
    c, most = u**2 - jnp.sum(U**2), q.optimum + jnp.sqrt(2 * excess / q.kappa)
    top = jnp.sqrt((c + jnp.sqrt(c**2 + 4 * most**2)) / 2)
    diagonal = jnp.maximum(jnp.diagonal(E.T @ U @ E) * jnp.sign(u), 0.0)
    return (len(start.v) == 1) * (c + jnp.sum(jnp.minimum(diagonal, 1 / (gamma * top)) ** 2))


def flows(start: Product, setup: Any, run: Any, free: Any = 0.0) -> Certificate:
    r"""Gradient flow falls like $e^{-2\kappa u_-^2t}$ if $|v|^2\ge u_-^2>0$ all along.

    $u_-^2$ follows from `least_value`; ``free`` is another lower bound that is known.
    """
    q, excess, gain, c = start.facts()
    by_gain = least_value(q, c, gain)
    rate, time = 2 * q.kappa * jnp.maximum(by_gain, free), setup.step_size * run.step
    bound, lost = jnp.exp(-rate * time) * excess, run.risk - start.best
    return Certificate(
        hypotheses={"|v| stays away from 0: 0 < u_-^2": positive(jnp.maximum(by_gain, free))},
        conclusions={"risk above its optimum": Inequality(lost, bound, 1e-9 * q.depth)},
        constants={"u_-^2 by delta_0": by_gain, "u_-^2 at any scale": jnp.asarray(free, float),
                   "delta_0": gain, "kappa": q.kappa, "mu": rate},
        predicted_rate=rate, measured_rate=-jnp.log(lost[-1] / lost[0]) / time[-1],
        curves={"proved bound": bound + start.best},
    )  # fmt: skip


def descends(start: Product, setup: Any, run: Any) -> Certificate:
    r"""No step of gradient descent raises the risk, and it falls linearly where $\delta_0>0$."""
    q, excess, gain, c0 = start.facts()
    step_size, seen = setup.step_size, run.probes
    bound = step_bound(q, step_size, excess, c0, len(start.v))
    rate = step_size * q.kappa * least_value(q, bound.c, gain)
    curve, lost = (1 - rate) ** run.step * excess + start.best, run.risk[-1] - start.best
    fall, room = 0.0, 1e-13 * (q.depth + start.best)
    if "gradient_norm" in seen and setup.setting.every == 1:
        fall = step_size / 2 * seen["gradient_norm"][:-1] ** 2
    kept: Any = not_checked("imbalance")
    if "imbalance" in seen:
        kept = Inequality(seen["imbalance"], bound.c, 1e-13 * bound.s)
    return Certificate(
        hypotheses={"step: eta (G + h s (1 + eta G/2)^2) <= 1": Inequality(bound.needed, 1.0)},
        conclusions={
            "every step descends": Inequality(run.risk[1:], run.risk[:-1] - fall, room),
            "heads stay as balanced": kept,
            "risk, linear where delta_0 > 0": Inequality(run.risk, curve, room),
        },
        constants={"h": q.h, "kappa": q.kappa, "c": bound.c, "s": bound.s, "delta_0": gain,
                   "epsilon_0": excess, "factor": 1 - rate},
        predicted_rate=rate, measured_rate=1 - (lost / excess) ** (1 / run.step[-1]),
        curves={"proved bound": curve},
    )  # fmt: skip


def follows(start: Product, setup: Any, run: Any) -> Certificate:
    r"""In an isotropic quadratic, $R^\top R=kI$, the whole curve is known.

    Heads are multiples of $A_*$ (flow and descent), or $W_h=v_hn$ with $|n|=1$ (flow).
    """
    v, W, a, H = start.v, start.W, norm_fro(start.optimum), start.root.T @ start.root
    k = jnp.trace(H) / len(H)
    p = W @ start.optimum / a
    aside = jnp.max(jnp.abs(W - p[:, None] * start.optimum[None] / a))
    aligned = Isotropic(k, a, jnp.sum((v + p) ** 2) / 4, jnp.sum((v - p) ** 2) / 4)
    if setup.setting.method == "flow":
        time, n = setup.step_size * run.step, v @ W / jnp.sum(v**2)
        skew = jnp.max(jnp.abs(W - v[:, None] * n[None])) + jnp.abs(norm_fro(n) - 1)
        r, cosine = balanced_flow(k, a, jnp.sum(v**2), n @ start.optimum / a, time)
        straight = (aligned_flow(aligned, time) - a) ** 2
        square = jnp.where(aside < skew, straight, r**2 - 2 * a * r * cosine + a**2)
        aside, tolerance = jnp.minimum(aside, skew), 1e-7 * k * a**2 + 0 * time
    else:
        how = setup.step_size, setup.setting.every, len(run.step)
        square = (aligned_descent(aligned, *how) - a) ** 2
        tolerance = 1e-14 * (10 + run.step) * (start.best + k * a**2)
    exact = start.best + 0.5 * k * square
    isotropy = jnp.max(jnp.abs(H - k * jnp.eye(len(H))))
    return Certificate(
        hypotheses={"isotropic: |R'R - k I| = 0": Inequality(isotropy, 1e-12 * k),
                    "heads are aligned or balanced": Inequality(aside, 1e-12)},
        conclusions={"the risk is the exact curve": Equality(run.risk, exact, tolerance)},
        constants={"k": k, "|A*|": a}, curves={"exact": exact},
    )  # fmt: skip
