r"""The loss curve predicted from the initial tangent kernel, and when to believe it.

Gradient descent moves the outputs by $f_{t+1} = f_t - \gamma\tilde K_t e_t$ with a kernel
$\tilde K_t$ that is the tangent kernel up to the curvature within one step. If it stayed at
$K_0$, the residual would be $\hat e_t = (I-\gamma K_0)^t e_0$. If
$\lVert\tilde K_t-K_0\rVert\le\Delta$ and $q = \lVert I-\gamma K_0\rVert$, then
$\lVert e_t\rVert\le(q+\gamma\Delta)^tE_0$ and, summing the errors of all steps,

$$ \lVert e_t-\hat e_t\rVert \le \big((q+\gamma\Delta)^t - q^t\big)E_0. $$

Proof in ``docs/theory/kernel_regime.md``. The statement is ours. $\Delta$ is *measured*: the
largest $\lVert K_t-K_0\rVert$ along the run, so the certificate can fail where steps are so long
that the kernel along them is not the tangent kernel at their ends.
"""

import jax.numpy as jnp

from shoal._typing import Array, Float, Int, Scalar
from shoal.certificates import Certificate, Equality, Inequality, condition, positive, share_lost
from shoal.linalg import norm_fro
from shoal.training import Trajectory
from shoal.verified.enclose import chosen, enclosure_width


def predicted_residual(
    K: Float[Array, "N N"], e0: Float[Array, " N"], step_size: Scalar, step: Int[Array, " T"]
) -> Float[Array, "T N"]:
    r"""Residual of the linearised run, $(I-\gamma K)^te_0$.

    >>> predicted_residual(jnp.eye(1), jnp.array([2.0]), 0.5, jnp.array([0, 1])).tolist()
    [[2.0], [1.0]]
    """
    eigenvalues, V = jnp.linalg.eigh(K)
    factors = (1 - step_size * eigenvalues)[None, :] ** step[:, None]
    return (factors * (V.T @ e0)[None]) @ V.T


def predicted_risk(
    K: Float[Array, "N N"], e0: Float[Array, " N"], step_size: Scalar, step: Int[Array, " T"]
) -> Float[Array, " T"]:
    r"""Risk of the linearised run, $\tfrac12\lVert(I-\gamma K)^te_0\rVert^2$.

    >>> predicted_risk(jnp.eye(1), jnp.array([2.0]), 0.5, jnp.array([0, 1, 2])).tolist()
    [2.0, 0.5, 0.125]
    """
    return 0.5 * jnp.sum(predicted_residual(K, e0, step_size, step) ** 2, axis=1)


def kernel_regime(
    K0: Float[Array, "N N"], e0: Float[Array, " N"], step_size: Scalar, trajectory: Trajectory,
    *, output_size: Scalar, kernel_noise: Scalar = 0.0,
) -> Certificate:  # fmt: skip
    r"""Compare a run with the prediction of its initial kernel.

    Needs the probe ``kernel_distance``, $\lVert K_t-K_0\rVert$ (spectral norm), at every step.
    ``output_size`` is the size of the numbers whose sum is the output (and of the labels): it sets
    the rounding error of a residual. ``kernel_noise`` is what rounding adds to that probe.
    """
    eigenvalues = jnp.linalg.eigvalsh(K0)
    lambda_min, lambda_max = eigenvalues[0], eigenvalues[-1]
    q = jnp.maximum(jnp.abs(1 - step_size * lambda_min), jnp.abs(1 - step_size * lambda_max))
    t, missing = trajectory.step, jnp.full_like(trajectory.risk, jnp.nan)
    drift = jnp.max(trajectory.probes.get("kernel_distance", missing)).astype(jnp.float64)
    E0 = jnp.sqrt(jnp.sum(e0**2))
    predicted = chosen(predicted_risk)(K0, e0, step_size, t)
    risk = trajectory.risk.astype(jnp.float64)
    seen, foretold = jnp.sqrt(2 * risk), jnp.sqrt(2 * predicted)
    gap = jnp.where(t > 0, jnp.abs(seen - foretold), 0.0)
    moved = q + step_size * drift
    # the exact bound: (moved^t - q^t) E_0; each step rounds the residual, and K_0 is rounded too
    allowed = (moved**t - q**t) * E0
    eps = float(jnp.finfo(trajectory.risk.dtype).eps)
    coarser = eps / float(jnp.finfo(jnp.float64).eps)
    once = 4 * coarser * norm_fro(enclosure_width(e0)) + 64 * eps * (E0 + output_size)
    wide_K = norm_fro(enclosure_width(K0)) + 64 * len(e0) * jnp.finfo(jnp.float64).eps * lambda_max
    steps = jnp.minimum(t.astype(float), jnp.where(moved < 1, 1 / (1 - moved), jnp.inf))
    left = jnp.minimum(moved, 1.0) ** jnp.maximum(t - 1, 0)
    rounding = once * (1 + steps) + t * left * step_size * (wide_K + kernel_noise) * E0
    return Certificate(
        hypotheses={
            "kernel is positive: 0 < lambda_min(K_0)": positive(lambda_min),
            "step: gamma lambda_max(K_0) < 2": Inequality(step_size * lambda_max, 2.0),
            "recorded at every step": condition(jnp.max(jnp.diff(t)) <= 1),
            "kernel moves little: |I - gamma K_0| + gamma max_t |K_t - K_0| < 1": Inequality(
                moved, 1.0, step_size * kernel_noise
            ),
        },
        conclusions={
            "residual stays near the predicted one": Equality(seen, foretold, allowed + rounding)
        },
        constants={
            "lambda_min": lambda_min, "lambda_max": lambda_max, "q": q, "Delta": drift, "E_0": E0,
            "gamma": jnp.asarray(step_size), "largest gap over E_0": jnp.max(gap) / E0,
        },
        predicted_rate=1 - jnp.minimum(moved, 1.0) ** 2,  # of the bound, not of the curve
        measured_rate=share_lost(trajectory.risk, t[-1]),
        curves={"predicted by the initial kernel": predicted},
    )  # fmt: skip
