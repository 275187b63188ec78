"""Tangent kernels, and what a run does to them."""

import functools
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Float, Params, Probe, Scalar
from shoal.linalg import norm_fro, norm_op
from shoal.models import Model
from shoal.trees import block_names, blocks

Kernels = Callable[[Params], dict[str, Float[Array, "N N"]]]
"""Tangent kernel of each block, as a function of the parameters."""


def jacobian(
    model: Model, inputs: Any, *, train: Iterable[str] | None = None
) -> Callable[[Params], Float[Array, "R P"]]:
    """All derivatives of all outputs, dense: a row for each output, those of a sequence together.

    For its singular values; ``R x P`` numbers are held. ``train`` names the blocks that move.
    """

    def dense(params: Params) -> Float[Array, "R P"]:
        flat = _block_jacobians(model, inputs, params)
        return jnp.concatenate([flat[name] for name in block_names(params, train)], axis=1)

    return dense


def _block_jacobians(model: Model, inputs: Any, params: Params) -> dict[str, Float[Array, "R P"]]:
    def outputs(params: Params, sequence: Any) -> Float[Array, " outputs"]:
        return model.apply(params, sequence).ravel()

    J = blocks(jax.vmap(jax.jacrev(outputs), in_axes=(None, 0))(params, inputs))
    return {name: j.reshape(j.shape[0] * j.shape[1], -1) for name, j in J.items()}


def tangent_kernels(model: Model, inputs: Any) -> Kernels:
    r"""Tangent kernel of each block, $K_{ij} = \langle\nabla f(x_i),\nabla f(x_j)\rangle$.

    By automatic differentiation: works for any model, and needs memory for the whole Jacobian.
    Papers bring closed forms that do not. If a sequence has several outputs, there is a row for
    each, those of a sequence together.
    """

    def kernels(params: Params) -> dict[str, Float[Array, "R R"]]:
        flat = _block_jacobians(model, inputs, params)
        return {name: j @ j.T for name, j in flat.items()}

    return kernels


def total_kernel(
    kernels: Kernels, speeds: Mapping[str, Scalar]
) -> Callable[[Params], Float[Array, "N N"]]:
    r"""The kernel that drives the outputs, $\sum_* r_*K_*$, with the blocks' step ratios $r_*$."""

    def kernel(params: Params) -> Float[Array, "N N"]:
        parts = kernels(params)
        return functools.reduce(jnp.add, [speeds[name] * K for name, K in parts.items()])

    return kernel


def kernel_eigenvalues(kernel: Callable[[Params], Float[Array, "N N"]]) -> Probe:
    """All eigenvalues, ascending, in float64.

    Those below ``N * eps * (the largest)`` are rounding, and may come out negative.
    """
    return lambda params: jnp.linalg.eigvalsh(kernel(params).astype(jnp.float64))


def kernel_shares(kernels: Kernels) -> Probe:
    r"""Share of each block in the trace, $\mathrm{tr}K_*/\mathrm{tr}K$."""

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        traces = {name: jnp.trace(K) for name, K in kernels(params).items()}
        total = sum(traces.values())
        return {name: trace / jnp.where(total > 0, total, 1) for name, trace in traces.items()}

    return probe


def kernel_drift(kernel: Callable[[Params], Float[Array, "N N"]], params0: Params) -> Probe:
    r"""Relative change since the start, $\lVert K_t-K_0\rVert_F/\lVert K_0\rVert_F$."""
    K0 = kernel(params0)
    return lambda params: norm_fro(kernel(params) - K0) / norm_fro(K0)


def kernel_distance(kernel: Callable[[Params], Float[Array, "N N"]], params0: Params) -> Probe:
    r"""Change since the start in operator norm, $\lVert K_t-K_0\rVert$."""
    K0 = kernel(params0)
    return lambda params: norm_op(kernel(params) - K0)
