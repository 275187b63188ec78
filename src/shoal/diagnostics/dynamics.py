"""Gradients, movement and curvature of any risk."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from shoal import linalg, trees
from shoal._typing import Array, Callable, Float, Params, PRNGKeyArray, Probe, Risk, Scalar


def gradient_norm(risk: Risk) -> Probe:
    """Norm of the gradient, block by block."""
    slope = jax.grad(risk)
    return lambda params: {k: linalg.norm_fro(g) for k, g in trees.blocks(slope(params)).items()}


def pl_ratio(risk: Risk, *, floor: Scalar = 0.0) -> Probe:
    r"""Polyak-Lojasiewicz ratio $\lVert\nabla\ell\rVert^2 / (2(\ell-\ell^*))$, ``floor`` $=\ell^*$.

    Gradient flow loses risk at twice this rate. NaN where the risk is at its floor.
    """

    def probe(params: Params) -> Float[Array, ""]:
        value, gradient = jax.value_and_grad(risk)(params)
        return trees.norm(gradient) ** 2 / (2 * (value - floor))

    return probe


def gradient_noise(risk: Risk, num_samples: int, train: Iterable[str] | None = None) -> Probe:
    r"""Noise of a gradient from one sample, $\mathrm{tr}\,\mathrm{Cov}(g_i)/\lVert\bar g\rVert^2$.

    $g_i$ is the gradient of the risk on sample $i$ alone, $\bar g$ their mean, and the covariance
    is over the samples at hand. A minibatch larger than this number sees mostly signal, a smaller
    one mostly noise. One gradient is held at a time.
    """

    def probe(params: Params) -> Float[Array, ""]:
        moving = trees.selected(params, train)

        def add(so_far: tuple, row: Array) -> tuple[tuple, None]:
            mean, square = so_far
            g = jax.grad(lambda b: risk(trees.with_blocks(params, b), row[None]))(moving)
            mean = jax.tree.map(lambda m, x: m + x / num_samples, mean, g)
            return (mean, square + trees.norm(g) ** 2 / num_samples), None

        zero = jnp.zeros((), jnp.result_type(*moving.values()))
        start = jax.tree.map(jnp.zeros_like, moving), zero
        (mean, square), _ = jax.lax.scan(add, start, jnp.arange(num_samples))
        signal = trees.norm(mean) ** 2
        return (square - signal) / signal

    return probe


def movement(params0: Params) -> Probe:
    r"""Relative movement of each block, $\lVert W-W^0\rVert_F/\lVert W^0\rVert_F$.

    A block that starts at zero is measured absolutely.
    """

    def relative(W: Array, W0: Array) -> Float[Array, ""]:
        start = linalg.norm_fro(W0)
        return linalg.norm_fro(W - W0) / jnp.where(start > 0, start, 1)

    return lambda params: trees.blocks(jax.tree.map(relative, params, params0))


def distance(params0: Params) -> Probe:
    r"""Distance from the start over all blocks together, $\lVert\theta-\theta^0\rVert$."""
    return lambda params: trees.norm(jax.tree.map(jnp.subtract, params, params0))


def _hessian(function: Risk, point: Float[Array, " P"]) -> Callable[[Array], Array]:
    """The Hessian at a point, as its products with vectors."""
    gradient = jax.grad(function)
    return lambda v: jax.jvp(gradient, (point,), (v,))[1]


def _vectors(size: int, wanted: int) -> int:
    """How many Lanczos vectors of a model fit into 1 GiB: as many as wanted, but at least 6.

    The iteration holds about three copies of them.
    """
    return max(6, min(wanted, 2**27 // (3 * size)))


def sharpness(risk: Risk, key: PRNGKeyArray, *, num_matvecs: int = 40, rtol: float = 1e-4) -> Probe:
    """Top eigenvalue of the Hessian, by Lanczos on Hessian-vector products.

    The largest, not the largest in magnitude. Returns the fields of `linalg.Extreme`: ``value``,
    ``residual`` and ``converged``; where it has not converged, raise ``num_matvecs``.
    """

    def probe(params: Params) -> dict[str, Array]:
        flat, unravel = ravel_pytree(trees.cast(params, "float64"))
        hessian = _hessian(lambda v: risk(unravel(v)), flat)
        start = jax.random.normal(key, flat.shape, flat.dtype)
        count = _vectors(flat.size, num_matvecs)
        return linalg.top_eigenvalue(hessian, start, num_matvecs=count, rtol=rtol)._asdict()

    return probe


DENSE_HESSIAN = 400  # parameters up to which the Hessian is formed; beyond, Lanczos


def curvature(risk: Risk, *, train: Iterable[str] | None = None) -> Probe:
    """Smallest and largest eigenvalue of the Hessian over the blocks that are trained.

    Dense up to 400 parameters, by Lanczos beyond, each with its ``converged`` flag.
    """

    def probe(params: Params) -> dict[str, Array]:
        blocks = trees.selected(params, train)
        flat, unravel = ravel_pytree({k: W.astype(jnp.float64) for k, W in blocks.items()})

        def along(v: Array) -> Float[Array, ""]:
            return risk(trees.with_blocks(params, unravel(v)))

        if flat.size <= DENSE_HESSIAN:
            exact = linalg.eigenvalues(jax.hessian(along)(flat))
            zero, yes = jnp.zeros(()), jnp.ones((), bool)
            low, high = (linalg.Extreme(exact[k], zero, yes) for k in (0, -1))
        else:
            start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
            search = _hessian(along, flat), start
            count = _vectors(flat.size, 60)
            low = linalg.bottom_eigenvalue(*search, num_matvecs=count, rtol=1e-4)
            high = linalg.top_eigenvalue(*search, num_matvecs=count, rtol=1e-4)
        values = {"min": low.value, "max": high.value}
        return values | {"min_converged": low.converged, "max_converged": high.converged}

    return probe


STATES = ("at the floor", "slow", "stuck", "at a saddle", "diverged")
"""What `stationarity` tells apart, by number."""


def stationarity(
    risk: Risk, floor: Callable[[Params], Scalar], *,
    train: Iterable[str] | None = None, scale: Scalar = 1.0,
) -> Probe:  # fmt: skip
    r"""Is a run stuck or only slow? Gradient, Hessian and distance to the lowest risk possible.

    ``floor`` is a lower bound $\ell^*$ of the risk over the trained blocks, ``scale`` the risk at
    the start. The ``state`` is a number into `STATES`. At the floor: $\ell-\ell^*\le10^{-6}$ of
    the scale. Stationary: the gradient is so small that the PL ratio
    $\lVert\nabla\ell\rVert^2/2(\ell-\ell^*)$ is below $10^{-12}$ of the largest curvature, so no
    patience helps; then *stuck* if the Hessian has no negative eigenvalue, else at a saddle. Stuck
    also if the Hessian is positive and a Newton step, $\lVert\nabla\ell\rVert^2/2\lambda_{\min}$,
    would gain less than $10^{-6}$ of the way down. Anything else is slow.
    """

    def probe(params: Params) -> dict[str, Array]:
        blocks = trees.selected(params, train)
        value, gradient = jax.value_and_grad(lambda b: risk(trees.with_blocks(params, b)))(blocks)
        g = trees.norm(gradient)
        lowest = jnp.asarray(floor(params), float)
        ends = curvature(risk, train=blocks)(params)
        low, high = ends["min"], ends["max"]
        steepest = jnp.maximum(jnp.abs(low), jnp.abs(high))
        above = value - lowest
        still = g**2 <= 1e-12 * steepest * 2 * jnp.maximum(above, 0)
        dips = low < -1e-9 * steepest
        beside = (low > 0) & (g**2 <= 2 * low * 1e-6 * above)
        state = jnp.where(still | beside, jnp.where(dips, 3, 2), 1)
        state = jnp.where(above <= 1e-6 * scale, 0, state)
        state = jnp.where(jnp.isfinite(value) & jnp.isfinite(g), state, 4)
        return {
            "gradient_norm": g, "hessian_min": low, "hessian_max": high,
            "converged": ends["min_converged"], "floor": lowest, "above_floor": above,
            "state": state,
        }  # fmt: skip

    return probe
