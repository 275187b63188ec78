r"""Theorem D: bounds of the Jacobian on a ball, for any depth (``docs/theory/qin2025.md``).

Norms at the start are measured once (`measure`); from them `ball_at` follows for every radius by a
recursion over the blocks. The letters are those of the page: subscript 1 bounds a first derivative
along a unit direction of the weights, subscript 2 a second one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Float, Scalar
from shoal.linalg import norm_fro, norm_op, sigma_min
from shoal.papers.qin2025.blocks import BLOCKS, Form, Weights, layers
from shoal.theory.descent import Ball, BallAt

ROUNDING = 1e-12  # singular values up to this share of the largest count as zero


class Start(NamedTuple):
    """What the bounds use of the start."""

    form: Form
    num_tokens: int
    weights: dict[str, Float[Array, " L"]]  # Spectral norms, block by block.
    u: Float[Array, ""]  # Of W_U.
    w_2: Float[Array, ""]  # Of the last W_2.
    x: Float[Array, " N"]  # Of the sequences.
    A: Float[Array, "L N"]
    Phi: Float[Array, "L N"]
    H: Float[Array, "L N"]
    H_all: Float[Array, ""]  # Of what W_U sees, all samples stacked.
    sigma_H: Float[Array, ""]  # Smallest singular values of the last block, all samples stacked.
    sigma_Phi: Float[Array, ""]
    sigma_A: Float[Array, ""]
    sigma_U: Float[Array, ""]
    sigma_2U: Float[Array, ""]

    @property
    def pooled(self) -> float:
        """Norm of the map from tokens to what W_U sees."""
        return self.num_tokens**-0.5 if self.form.output == "mean" else 1.0


def _operator(stack: Float[Array, "*lead rows columns"]) -> Float[Array, "*lead"]:
    flat = jax.lax.map(norm_op, stack.reshape(-1, *stack.shape[-2:]))
    return flat.reshape(stack.shape[:-2])


def measure(params: Weights, X: Float[Array, "N n d"], form: Form) -> Start:
    """Measure the start."""
    found = jax.vmap(lambda x: layers(params, x, form))(X)  # samples, depth, tokens, features
    parts = {name: getattr(found, name) for name in ("A", "Phi", "H")}
    _, Phi, H = (part[:, -1] for part in parts.values())
    W_2, W_U = params.W_2[-1], params.W_U
    stacked = {name: part[:, -1].reshape(-1, part.shape[3]) for name, part in parts.items()}
    if form.output == "mean":
        stacked |= {"Phi": jnp.mean(Phi, axis=1), "H": jnp.mean(H, axis=1)}
        stacked["A"] = stacked["A"] / X.shape[1] ** 0.5
    if form.output != "whole":
        through = W_2 @ W_U
    else:
        stacked["H"] = H.reshape(len(H), -1)
        through = jnp.einsum("md,ndc->nmc", W_2, W_U.reshape(*H.shape[1:], -1))
        through = through.reshape(-1, W_U.shape[1])
    return Start(
        form=form,
        num_tokens=X.shape[1],
        weights={name: _operator(getattr(params, name)) for name in BLOCKS},
        u=norm_op(W_U),
        w_2=norm_op(W_2),
        x=_operator(X),
        **{name: _operator(part).T for name, part in parts.items()},
        H_all=norm_op(stacked["H"]),
        **{f"sigma_{name}": sigma_min(part, ROUNDING) for name, part in stacked.items()},
        sigma_U=sigma_min(W_U.T, ROUNDING),
        sigma_2U=sigma_min(through.T, ROUNDING),
    )


class Recursion(NamedTuple):
    """Bounds of the last block on a ball, sample by sample."""

    a1: Float[Array, " N"]
    f1: Float[Array, " N"]
    h1: Float[Array, " N"]
    h2: Float[Array, " N"]


def recursion(start: Start, radius: Scalar, *, sharp: bool = True) -> Recursion:
    """First and second derivatives through the blocks; see the table of the page."""
    form = start.form
    rho, root = jnp.asarray(radius, float), start.num_tokens**0.5
    eps_a, eps_f, s = form.residual_attention, form.residual_feed_forward, form.branch
    ell, b_phi = form.activation.max_slope, form.activation.curvature
    C_s = 2**0.5 / 4 if sharp else 1.5
    zero = jnp.zeros_like(start.x)

    def block(state: tuple, seen: tuple) -> tuple[tuple, Recursion]:
        x, xi, xi2 = state
        W, A, Phi, H = seen
        q, k, v, w1, w2 = (W[name] + rho for name in BLOCKS)
        kappa = jnp.sqrt(q**2 + k**2)
        Q = kappa if sharp else q + k
        z1 = form.score * (2 * x * q * k * xi + x**2 * kappa)
        z2 = form.score * (2 * x * q * k * xi2 + 2 * q * k * xi**2 + 4 * x * xi * Q + x**2)
        a1 = eps_a * xi + s * (z1 * x * v / 2 + root * xi * v + root * x)
        turn = x * (z2 / 2 + C_s * z1**2) + z1 * xi + root * xi2
        a2 = eps_a * xi2 + s * (v * turn + z1 * x + 2 * root * xi)
        p1 = a1 * w1 + A + a1 * rho
        f1 = ell * p1
        f2 = ell * (a2 * w1 + 2 * a1) + b_phi * p1**2
        h1 = eps_f * a1 + s * (f1 * w2 + Phi + f1 * rho)
        h2 = eps_f * a2 + s * (f2 * w2 + 2 * f1)
        return (H + h1 * rho, h1, h2), Recursion(a1, f1, h1, h2)

    blocks = (start.weights, start.A, start.Phi, start.H)
    found = jax.lax.scan(block, (start.x, zero, zero), blocks)[1]
    return Recursion(*(part[-1] for part in found))


class Routes(NamedTuple):
    """Three lower bounds whose squares add up to alpha²: through W_U, W_2 and W_1."""

    H: Float[Array, ""]
    Phi: Float[Array, ""]
    A: Float[Array, ""]

    def together(self) -> Float[Array, ""]:
        """The bound of all three."""
        return jnp.sqrt(self.H**2 + self.Phi**2 + self.A**2)


def routes(start: Start, radius: Scalar = 0.0, last: Recursion | None = None) -> Routes:
    """The layer routes on a ball (the start itself has radius 0); ``last`` is `recursion` there."""
    rho, s = jnp.asarray(radius, float), start.form.branch
    last = recursion(start, radius) if last is None else last

    def left(sigma: Array, moved: Array) -> Array:
        return jnp.maximum(sigma - moved * rho, 0.0)

    sigma_U = left(start.sigma_U, jnp.ones(()))
    sigma_2U = left(start.sigma_2U, start.u + start.w_2 + rho)
    sigma_A = left(start.sigma_A, start.pooled * norm_fro(last.a1))
    return Routes(
        left(start.sigma_H, start.pooled * norm_fro(last.h1)),
        s * left(start.sigma_Phi, start.pooled * norm_fro(last.f1)) * sigma_U,
        s * start.form.activation.min_slope * sigma_A * sigma_2U,
    )


def ball_at(
    start: Start, *, sharp: bool = True, sigma_J: Scalar = 0.0, route: str = "best"
) -> BallAt:
    r"""Bounds of the Jacobian as a function of the radius.

    ``sigma_J`` is $\sigma_p(J_0)$ for the kernel route; without it only the layer routes count.
    """

    def at(radius: Array) -> Ball:
        last = recursion(start, radius, sharp=sharp)
        h1, h2 = start.pooled * norm_fro(last.h1), start.pooled * norm_fro(last.h2)
        u, H = start.u + radius, start.H_all + h1 * radius
        beta, lipschitz = h1 * u + H, h2 * u + 2 * h1
        if sharp:
            beta = jnp.sqrt((h1 * u) ** 2 + H**2)
            lipschitz = (h2 * u + jnp.sqrt((h2 * u) ** 2 + 4 * h1**2)) / 2
        by_layers = routes(start, radius, last).together()
        by_kernel = jnp.maximum(sigma_J - lipschitz * radius, 0.0)
        best = jnp.maximum(by_layers, by_kernel)
        alpha = {"layers": by_layers, "kernel": by_kernel, "best": best}[route]
        # a kink in the activation leaves no Lipschitz Jacobian, and then nothing is certified
        alpha = jnp.where(jnp.isfinite(lipschitz), alpha, 0.0)
        return Ball(radius, alpha, beta, lipschitz)

    return at
