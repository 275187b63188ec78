r"""Theorem D: bounds of the Jacobian on a ball, for any depth (``docs/theory/qin2025.md``).

Norms at the start are measured once (`measure`); from them `ball` follows for every radius by a
recursion over the blocks. The letters are those of the page: subscript 1 bounds a first derivative
along a unit direction of the weights, subscript 2 a second one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import linalg
from shoal._typing import Array, Float, Scalar
from shoal.papers.qin2025.blocks import Form, Weights, layers
from shoal.theory.descent import Ball, BallAt

ROUNDING = 1e-12
"""Singular values below so much of the largest count as zero."""


class Norms(NamedTuple):
    """What the recursion needs of the start."""

    weights: dict[str, Float[Array, " L"]]  # spectral norms, block by block
    u: Float[Array, ""]  # of W_U
    w_2: Float[Array, ""]  # of the last W_2
    x: Float[Array, " N"]  # of the sequences
    A: Float[Array, "L N"]
    Phi: Float[Array, "L N"]
    H: Float[Array, "L N"]
    H_all: Float[Array, ""]  # of what W_U sees, all samples stacked
    sigma_H: Float[Array, ""]  # smallest singular values of the last block, all samples stacked
    sigma_Phi: Float[Array, ""]
    sigma_A: Float[Array, ""]
    sigma_U: Float[Array, ""]
    sigma_2U: Float[Array, ""]


def smallest(A: Float[Array, "rows columns"]) -> Float[Array, ""]:
    r"""$\sigma_{rows}(A)$; zero if there are fewer columns, and where it is rounding."""
    sigma = linalg.singular_values(A)
    rows, columns = A.shape
    low = sigma[-1] if rows <= columns else jnp.zeros(())
    return jnp.where(low > ROUNDING * sigma[0], low, 0.0)


def _operator(stack: Float[Array, "*lead rows columns"]) -> Float[Array, "*lead"]:
    return jnp.linalg.svd(stack, full_matrices=False, compute_uv=False)[..., 0]


def measure(params: Weights, X: Float[Array, "N n d"], form: Form) -> Norms:
    """Measure the start."""
    found = jax.vmap(lambda x: layers(params, x, form))(X)  # samples, depth, tokens, features
    A, Phi, H = (part[:, -1] for part in (found.A, found.Phi, found.H))
    W_2, W_U = params.W_2[-1], params.W_U
    stacked = {"A": A, "Phi": Phi, "H": H}
    stacked = {name: part.reshape(-1, part.shape[2]) for name, part in stacked.items()}
    if form.output == "mean":
        stacked |= {"Phi": jnp.mean(Phi, axis=1), "H": jnp.mean(H, axis=1)}
        stacked["A"] = stacked["A"] / X.shape[1] ** 0.5
    if form.output != "whole":
        through = W_2 @ W_U
    else:
        stacked["H"] = H.reshape(len(H), -1)
        through = jnp.einsum("md,ndc->nmc", W_2, W_U.reshape(*H.shape[1:], -1))
        through = through.reshape(-1, W_U.shape[1])
    return Norms(
        weights={name: _operator(getattr(params, name)) for name in Weights._fields[:-1]},
        u=linalg.norm_op(W_U),
        w_2=linalg.norm_op(W_2),
        x=_operator(X),
        A=_operator(found.A).T,
        Phi=_operator(found.Phi).T,
        H=_operator(found.H).T,
        H_all=linalg.norm_op(stacked["H"]),
        sigma_H=smallest(stacked["H"]),
        sigma_Phi=smallest(stacked["Phi"]),
        sigma_A=smallest(stacked["A"]),
        sigma_U=smallest(W_U.T),
        sigma_2U=smallest(through.T),
    )


class Recursion(NamedTuple):
    """Bounds of the last block on a ball, sample by sample."""

    a1: Float[Array, " N"]
    f1: Float[Array, " N"]
    h1: Float[Array, " N"]
    h2: Float[Array, " N"]


def recursion(
    norms: Norms, radius: Scalar, num_tokens: int, form: Form, *, sharp: bool
) -> Recursion:
    """First and second derivatives through the blocks; see the table of the page."""
    rho, root = jnp.asarray(radius, float), num_tokens**0.5
    eps_a, eps_f, s = form.residual_attention, form.residual_feedforward, form.branch
    C_s = 2**0.5 / 4 if sharp else 1.5
    b_phi = form.activation.bend
    zero = jnp.zeros_like(norms.x)

    def block(state: tuple, seen: tuple) -> tuple[tuple, Recursion]:
        x, xi, xi2 = state
        W, A, Phi, H = seen
        q, k, v, w1, w2 = (W[name] + rho for name in ("W_Q", "W_K", "W_V", "W_1", "W_2"))
        kappa = jnp.sqrt(q**2 + k**2)
        Q = kappa if sharp else q + k
        z1 = form.score * (2 * x * q * k * xi + x**2 * kappa)
        z2 = form.score * (2 * x * q * k * xi2 + 2 * q * k * xi**2 + 4 * x * xi * Q + x**2)
        a1 = eps_a * xi + s * (z1 * x * v / 2 + root * xi * v + root * x)
        turn = x * (z2 / 2 + C_s * z1**2) + z1 * xi + root * xi2
        a2 = eps_a * xi2 + s * (v * turn + z1 * x + 2 * root * xi)
        p1 = a1 * w1 + A + a1 * rho
        f1 = form.activation.steep * p1
        f2 = form.activation.steep * (a2 * w1 + 2 * a1) + b_phi * p1**2
        h1 = eps_f * a1 + s * (f1 * w2 + Phi + f1 * rho)
        h2 = eps_f * a2 + s * (f2 * w2 + 2 * f1)
        return (H + h1 * rho, h1, h2), Recursion(a1, f1, h1, h2)

    blocks = (norms.weights, norms.A, norms.Phi, norms.H)
    found = jax.lax.scan(block, (norms.x, zero, zero), blocks)[1]
    return Recursion(*(part[-1] for part in found))


class Routes(NamedTuple):
    """Three lower bounds whose squares add up to alpha²: through W_U, W_2 and W_1."""

    H: Float[Array, ""]
    Phi: Float[Array, ""]
    A: Float[Array, ""]

    def together(self) -> Float[Array, ""]:
        """The bound of all three."""
        return jnp.sqrt(self.H**2 + self.Phi**2 + self.A**2)


def _size(parts: Float[Array, " N"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(parts**2))


def routes(norms: Norms, radius: Scalar, num_tokens: int, form: Form, last: Recursion) -> Routes:
    """The layer route on the ball; ``last`` are the bounds of the last block there."""
    rho = jnp.asarray(radius, float)
    pooled = num_tokens**-0.5 if form.output == "mean" else 1.0

    def left(sigma: Array, moved: Array) -> Array:
        return jnp.maximum(sigma - moved * rho, 0.0)

    g = form.activation.slope
    sigma_U = left(norms.sigma_U, jnp.ones(()))
    return Routes(
        left(norms.sigma_H, pooled * _size(last.h1)),
        form.branch * left(norms.sigma_Phi, pooled * _size(last.f1)) * sigma_U,
        form.branch
        * g
        * left(norms.sigma_A, pooled * _size(last.a1))
        * left(norms.sigma_2U, norms.u + norms.w_2 + rho),
    )


def routes_at_start(norms: Norms, num_tokens: int, form: Form) -> Routes:
    """What the layers say of the start itself."""
    last = recursion(norms, 0.0, num_tokens, form, sharp=True)
    return routes(norms, 0.0, num_tokens, form, last)


def ball_at(
    norms: Norms,
    num_tokens: int,
    form: Form,
    *,
    sharp: bool = True,
    sigma_J: Scalar | None = None,
    route: str = "best",
) -> BallAt:
    r"""Bounds of the Jacobian as a function of the radius.

    ``sigma_J`` is $\sigma_p(J_0)$, for the kernel route; without it only the layers speak.
    """
    pooled = num_tokens**-0.5 if form.output == "mean" else 1.0

    def at(radius: Array) -> Ball:
        last = recursion(norms, radius, num_tokens, form, sharp=sharp)
        h1, h2 = pooled * _size(last.h1), pooled * _size(last.h2)
        u = norms.u + radius
        H = norms.H_all + h1 * radius
        if sharp:
            beta = jnp.sqrt((h1 * u) ** 2 + H**2)
            lipschitz = (h2 * u + jnp.sqrt((h2 * u) ** 2 + 4 * h1**2)) / 2
        else:
            beta = h1 * u + H
            lipschitz = h2 * u + 2 * h1
        by_layers = routes(norms, radius, num_tokens, form, last).together()
        by_kernel = jnp.zeros(())
        if sigma_J is not None:
            by_kernel = jnp.maximum(sigma_J - lipschitz * radius, 0.0)
        alpha = {
            "layers": by_layers,
            "kernel": by_kernel,
            "best": jnp.maximum(by_layers, by_kernel),
        }[route]
        # a kink in the activation leaves no Lipschitz Jacobian, and then nothing is certified
        alpha = jnp.where(jnp.isfinite(lipschitz), alpha, 0.0)
        return Ball(radius, alpha, beta, lipschitz)

    return at


def weyl(X: Float[Array, "n d"], attended: Float[Array, "n d"]) -> dict[str, Float[Array, ""]]:
    r"""How far attention can lower $\sigma_{\min}(X)$, and the condition number that follows.

    ``attended`` is $SXW_V$. The bound of the condition number is infinite where Weyl's inequality
    leaves nothing, which does not mean ill-conditioned.
    """
    sigma = linalg.singular_values(X)
    size = linalg.norm_op(attended)
    low = linalg.sigma_min(X) - size
    return {
        "sigma_min": low,
        "condition": jnp.where(low > 0, (sigma[0] + size) / jnp.where(low > 0, low, 1), jnp.inf),
    }
