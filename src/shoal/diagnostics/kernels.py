"""Tangent kernels, and what a run does to them."""

import functools
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

from shoal import trees
from shoal._typing import Any, Array, Callable, Float, Params, Probe, Scalar
from shoal.diagnostics import factors
from shoal.linalg import eigenvalues, norm_fro, norm_op
from shoal.models import Model, predict
from shoal.trees import block_names, blocks

LARGEST = 6000
"""Rows (samples times outputs) of the largest tangent kernel that is formed."""

SMALL = 2**20
"""Numbers of a Jacobian that is simply formed."""

Kernel = Callable[[Params], Float[Array, "N N"]]
Kernels = Callable[[Params], dict[str, Float[Array, "N N"]]]
"""Tangent kernel of each block, as a function of the parameters."""


def jacobian(
    model: Model, inputs: Any, *, train: Iterable[str] | None = None
) -> Callable[[Params], Float[Array, "R P"]]:
    """The dense Jacobian of all outputs: one row for each output, those of a sample together.

    ``train`` selects the blocks that move. Holds ``R x P`` numbers.
    """

    def dense(params: Params) -> Float[Array, "R P"]:
        flat = _block_jacobians(model, inputs, params)
        return jnp.concatenate([flat[name] for name in block_names(params, train)], axis=1)

    return dense


def _block_jacobians(model: Model, inputs: Any, params: Params) -> dict[str, Float[Array, "R P"]]:
    if model.coupled:  # one sample's output depends on the others: the whole batch for each row
        J = blocks(jax.jacrev(lambda params: predict(model, params, inputs).ravel())(params))
        return {name: j.reshape(j.shape[0], -1) for name, j in J.items()}
    one = jax.jacrev(lambda params, sample: model.apply(params, sample).ravel())
    J = blocks(jax.vmap(one, in_axes=(None, 0))(params, inputs))
    return {name: j.reshape(j.shape[0] * j.shape[1], -1) for name, j in J.items()}


def tangent_kernels(model: Model, inputs: Any, *, memory: float = 1.0) -> Kernels:
    r"""Tangent kernel of each block, $K_{ij} = \langle\nabla f(x_i),\nabla f(x_j)\rangle$.

    Works for any model, by the cheapest route: the Jacobian if it is small, else products of small
    factors found in the model's program (`factors`), in about ``memory`` GiB beside the kernel. A
    sample with several outputs has one row for each of them, next to each other.
    """

    def kernels(params: Params) -> dict[str, Float[Array, "R R"]]:
        outputs = jax.eval_shape(lambda p: predict(model, p, inputs), params)
        if outputs.size * trees.size(params) <= SMALL:
            return {name: J @ J.T for name, J in _block_jacobians(model, inputs, params).items()}
        if model.coupled:
            return _coupled_kernels(model, inputs, params, outputs.size, memory)
        return factors.factored_kernels(model, inputs, memory=memory)(params)

    return kernels


def _coupled_kernels(
    model: Model, inputs: Any, params: Params, count: int, memory: float
) -> dict[str, Float[Array, "R R"]]:
    """From rows of the Jacobian, in lots: every output depends on the whole batch."""
    f, pull = jax.vjp(lambda params: predict(model, params, inputs).ravel(), params)

    def rows(numbers: Any) -> dict[str, Array]:
        at = jax.nn.one_hot(numbers, count, dtype=f.dtype)
        J = blocks(jax.vmap(lambda row: pull(row)[0])(at))
        return {name: j.reshape(len(numbers), -1) for name, j in J.items()}

    def between(lots: list[dict[str, Array]]) -> dict[str, Array]:
        return {name: J @ lots[-1][name].T for name, J in lots[0].items()}

    fit = factors.lot_size(params, trees.size(params), memory)
    return factors.by_lots(rows, between, jnp.arange(count), fit)


def total_kernel(kernels: Kernels, step_ratios: Mapping[str, Scalar]) -> Kernel:
    r"""The kernel that drives the outputs, $\sum_* r_*K_*$, with the blocks' step ratios $r_*$."""

    def kernel(params: Params) -> Float[Array, "N N"]:
        ratios = {name: step_ratios.get(name, 1.0) for name in blocks(params)}
        moving = {name for name, ratio in ratios.items() if not _is_zero(ratio)}
        parts = [ratios[k] * K for k, K in kernels(params).items() if k in (moving or ratios)]
        return functools.reduce(jnp.add, parts)

    return kernel


def _is_zero(ratio: Scalar) -> bool:
    """Whether a block certainly does not move, so that its kernel need not be computed."""
    return isinstance(ratio, float | int) and ratio == 0


def kernel_eigenvalues(kernel: Kernel) -> Probe:
    """All eigenvalues, ascending, in float64.

    Those below ``N * eps * (the largest)`` are rounding, and may come out negative.
    """
    return lambda params: eigenvalues(kernel(params))


def kernel_shares(kernels: Kernels) -> Probe:
    r"""Share of each block in the trace, $\mathrm{tr}K_*/\mathrm{tr}K$."""

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        traces = {name: jnp.trace(K) for name, K in kernels(params).items()}
        total = sum(traces.values())
        return {name: trace / jnp.where(total > 0, total, 1) for name, trace in traces.items()}

    return probe


def kernel_drift(kernel: Kernel, params0: Params) -> Probe:
    r"""Relative change since the start, $\lVert K_t-K_0\rVert_F/\lVert K_0\rVert_F$."""
    K0 = kernel(params0)
    return lambda params: norm_fro(kernel(params) - K0) / norm_fro(K0)


def kernel_distance(kernel: Kernel, params0: Params) -> Probe:
    r"""Change since the start in operator norm, $\lVert K_t-K_0\rVert$."""
    K0 = kernel(params0)
    return lambda params: norm_op(kernel(params) - K0)
