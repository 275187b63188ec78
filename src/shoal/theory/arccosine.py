r"""Gaussian averages of ReLU features in closed form (arc-cosine kernels).

For $w\sim N(0, I)$ and vectors $u, v$ at angle $t$ (Cho and Saul, 2009):

$$ E[\mathrm{relu}(w^\top u)\,\mathrm{relu}(w^\top v)]
   = \lVert u\rVert\lVert v\rVert \frac{\sin t + (\pi - t)\cos t}{2\pi},
   \qquad E[1_{w^\top u>0} 1_{w^\top v>0}] = \frac{\pi - t}{2\pi}. $$

A zero vector has no angle: its features vanish, and the convention relu'(0) = 0 gives 0 in both.
"""

import jax.numpy as jnp

from shoal._typing import Array, Float


def _cosine(
    U: Float[Array, "a d"], V: Float[Array, "b d"]
) -> tuple[Float[Array, "a b"], Float[Array, "a b"], Float[Array, "a b"]]:
    """Cosines, angles and products of lengths, all pairs.

    The angle comes from atan2 of chords, which keeps digits near 0 and pi where arccos loses half.
    """
    length_u, length_v = jnp.linalg.norm(U, axis=-1), jnp.linalg.norm(V, axis=-1)
    unit_u = U / jnp.where(length_u > 0, length_u, 1)[:, None]
    unit_v = V / jnp.where(length_v > 0, length_v, 1)[:, None]
    apart = jnp.linalg.norm(unit_u[:, None] - unit_v[None], axis=-1)
    across = jnp.linalg.norm(unit_u[:, None] + unit_v[None], axis=-1)
    angle = 2 * jnp.arctan2(apart, across)
    return jnp.cos(angle), angle, length_u[:, None] * length_v[None]


def relu_kernel(U: Float[Array, "a d"], V: Float[Array, "b d"]) -> Float[Array, "a b"]:
    r"""$E[\mathrm{relu}(w^\top u)\,\mathrm{relu}(w^\top v)]$ for all pairs.

    >>> float(relu_kernel(jnp.array([[2.0, 0.0]]), jnp.array([[2.0, 0.0]]))[0, 0])
    2.0
    """
    cosine, angle, lengths = _cosine(U, V)
    return lengths * (jnp.sin(angle) + (jnp.pi - angle) * cosine) / (2 * jnp.pi)


def step_kernel(U: Float[Array, "a d"], V: Float[Array, "b d"]) -> Float[Array, "a b"]:
    r"""$E[1_{w^\top u>0}\,1_{w^\top v>0}]$ for all pairs.

    >>> float(step_kernel(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 3.0]]))[0, 0])
    0.25
    """
    _, angle, lengths = _cosine(U, V)
    return jnp.where(lengths > 0, (jnp.pi - angle) / (2 * jnp.pi), 0.0)


def gated_covariance(
    U: Float[Array, "a d"], V: Float[Array, "b d"]
) -> tuple[Float[Array, "a b"], Float[Array, "a b"], Float[Array, "a b"]]:
    r"""Coefficients of $E[1_{w^\top u>0}1_{w^\top v>0}\,ww^\top]$ in the basis that $u, v$ span.

    With unit vectors $\hat u, \hat v$ the matrix is
    $a I + b(\hat u\hat v^\top + \hat v\hat u^\top) - c(\hat u\hat u^\top + \hat v\hat v^\top)$,
    $a = (\pi-t)/2\pi$, $b = 1/(2\pi\sin t)$, $c = \cos t/(2\pi\sin t)$; at $t = 0$ the last two
    terms cancel. Returns $(a, b, c)$ for all pairs.
    """
    cosine, angle, lengths = _cosine(U, V)
    sine = jnp.sin(angle)
    # near t = 0 and t = pi the bracket is of order sin t although b and c are not: drop it there
    safe = (sine > 1e-6) & (lengths > 0)
    b = jnp.where(safe, 1 / (2 * jnp.pi * jnp.where(safe, sine, 1)), 0.0)
    return jnp.where(lengths > 0, (jnp.pi - angle) / (2 * jnp.pi), 0.0), b, b * cosine
