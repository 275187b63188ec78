"""Gradients, movement and curvature of any risk."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from shoal import linalg, trees
from shoal._typing import Array, Float, Params, PRNGKeyArray, Probe, Risk


def gradient_norm(risk: Risk) -> Probe:
    """Norm of the gradient, block by block."""

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        return {k: linalg.norm_fro(g) for k, g in trees.blocks(jax.grad(risk)(params)).items()}

    return probe


def pl_ratio(risk: Risk, *, floor: float = 0.0) -> Probe:
    r"""Polyak-Lojasiewicz ratio $\lVert\nabla\ell\rVert^2 / (2(\ell-\ell^*))$, ``floor`` $=\ell^*$.

    Gradient flow loses risk at twice this rate. NaN where the risk is at its floor.
    """

    def probe(params: Params) -> Float[Array, ""]:
        value, gradient = jax.value_and_grad(risk)(params)
        return trees.norm(gradient) ** 2 / (2 * (value - floor))

    return probe


def movement(params0: Params) -> Probe:
    r"""Relative movement of each block, $\lVert W-W^0\rVert_F/\lVert W^0\rVert_F$.

    A block that starts at zero is measured absolutely.
    """

    def relative(W: Array, W0: Array) -> Float[Array, ""]:
        start = linalg.norm_fro(W0)
        return linalg.norm_fro(W - W0) / jnp.where(start > 0, start, 1)

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        return trees.blocks(jax.tree.map(relative, params, params0))

    return probe


def sharpness(risk: Risk, key: PRNGKeyArray, *, num_matvecs: int = 40, rtol: float = 1e-4) -> Probe:
    """Top eigenvalue of the Hessian, by Lanczos on Hessian-vector products.

    The largest, not the largest in magnitude. Returns the fields of `linalg.Extreme`: ``value``,
    ``residual`` and ``converged``; where it has not converged, raise ``num_matvecs``.
    """

    def probe(params: Params) -> dict[str, Array]:
        flat, unravel = ravel_pytree(trees.cast(params, "float64"))
        gradient = jax.grad(lambda v: risk(unravel(v)))
        start = jax.random.normal(key, flat.shape, flat.dtype)
        return linalg.top_eigenvalue(
            lambda v: jax.jvp(gradient, (flat,), (v,))[1],
            start,
            num_matvecs=num_matvecs,
            rtol=rtol,
        )._asdict()

    return probe
