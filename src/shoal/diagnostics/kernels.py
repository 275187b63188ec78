"""Tangent kernels, and what a run does to them."""

import functools
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

from shoal import linalg, trees
from shoal._typing import Any, Array, Callable, Float, Params, Probe, Scalar
from shoal.diagnostics import factors
from shoal.linalg import eigenvalues, norm_fro, norm_op
from shoal.models import Model, predict
from shoal.trees import block_names, blocks

LARGEST = 6000
"""Rows (samples times outputs) of the largest tangent kernel that is formed."""

SMALL = 2**20
"""Numbers of a Jacobian that is simply formed."""
AT_ONCE = 2**22
"""Weights times samples that a kernel-vector product works on at once: one, for a large model."""

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


# --------------------------------------------------------------------------------- matrix-free


def kernel_product(
    model: Model,
    inputs: Any,
    params: Params,
    step_ratios: Mapping[str, Scalar],
    *,
    at_once: int = 1,
) -> Callable[[Float[Array, " R"]], Float[Array, " R"]]:  # fmt: skip
    r"""Products of a vector with $\sum_*r_*K_*=JRJ^\top$: one pass backwards and one forwards.

    Holds a gradient, and what the model makes of ``at_once`` samples (of all, if it is coupled).
    """
    count = len(jax.tree.leaves(inputs)[0])
    divisors = (k for k in range(min(at_once, count), 0, -1) if count % k == 0)
    size = count if model.coupled else next(divisors)
    lots = jax.tree.map(lambda a: jnp.asarray(a).reshape(-1, size, *a.shape[1:]), inputs)
    ratios = [step_ratios.get(name, 1.0) for name in blocks(params)]

    def outputs(lot: Any) -> Callable[[Params], Array]:
        return lambda params: predict(model, params, lot).ravel()

    def backwards(total: Params, part: tuple[Any, Array]) -> tuple[Params, None]:
        lot, v = part
        (gradient,) = jax.vjp(outputs(lot), params)[1](v)
        return jax.tree.map(jnp.add, total, gradient), None

    def product(v: Float[Array, " R"]) -> Float[Array, " R"]:
        zero = jax.tree.map(jnp.zeros_like, params)
        parts = lots, v.reshape(count // size, -1)
        gradient = jax.lax.scan(backwards, zero, parts)[0]
        leaves, structure = jax.tree.flatten(gradient)
        scaled = [(r * g).astype(g.dtype) for r, g in zip(ratios, leaves, strict=True)]
        along = jax.tree.unflatten(structure, scaled)
        return jax.lax.map(lambda lot: jax.jvp(outputs(lot), (params,), (along,))[1], lots).ravel()

    return product


def kernel_extremes(
    model: Model, inputs: Any, step_ratios: Mapping[str, Scalar], *,
    kernel: Kernel | None = None, num_matvecs: int = 40, rtol: float = 1e-3,
) -> Probe:  # fmt: skip
    """Smallest and largest eigenvalue of the tangent kernel, each with residual and ``converged``.

    Dense from ``kernel``, if it is given; otherwise by Lanczos on `kernel_product`, whose smallest
    eigenvalue rarely converges where the kernel is ill-conditioned: read the flag.
    """

    def probe(params: Params) -> dict[str, Array]:
        if kernel is not None:
            values = eigenvalues(kernel(params))
            precision = jnp.finfo(jnp.result_type(*jax.tree.leaves(params))).eps
            dust, yes = len(values) * precision * values[-1], jnp.ones((), bool)
            low, high = (linalg.Extreme(values[k], dust, yes) for k in (0, -1))
        else:
            f = jax.eval_shape(lambda p: predict(model, p, inputs), params)
            start = jax.random.normal(jax.random.key(0), (f.size,), f.dtype)
            at_once = max(AT_ONCE // trees.size(params), 1)
            search = kernel_product(model, inputs, params, step_ratios, at_once=at_once), start
            low = linalg.bottom_eigenvalue(*search, num_matvecs=num_matvecs, rtol=rtol)
            high = linalg.top_eigenvalue(*search, num_matvecs=num_matvecs, rtol=rtol)
        return _named("min", low) | _named("max", high)

    return probe


def _named(end: str, found: linalg.Extreme) -> dict[str, Array]:
    return {
        end: found.value,
        f"{end}_residual": found.residual,
        f"{end}_converged": found.converged,
    }


# ------------------------------------------------------------------------ what a spectrum says


def condition(values: Float[Array, " R"]) -> Float[Array, ""]:
    r"""Largest over smallest eigenvalue; infinite where the smallest is rounding.

    >>> float(condition(jnp.array([1.0, 4.0])))
    4.0
    >>> float(condition(jnp.array([1e-30, 4.0])))
    inf
    """
    dust = len(values) * jnp.finfo(values.dtype).eps * values[-1]
    safe = values[0] > dust
    return jnp.where(safe, values[-1] / jnp.where(safe, values[0], 1), jnp.inf)


def effective_rank(values: Float[Array, " R"]) -> Float[Array, ""]:
    r"""How many directions count, $e^{H}$ with $H$ the entropy of $\lambda_i/\sum_j\lambda_j$.

    >>> round(float(effective_rank(jnp.array([0.0, 2.0, 2.0]))), 6)
    2.0
    """
    shares = jnp.maximum(values, 0)
    total = jnp.sum(shares)
    shares = shares / jnp.where(total > 0, total, 1)
    return jnp.exp(-jnp.sum(shares * jnp.log(jnp.where(shares > 0, shares, 1))))


DECADES = 10
"""Decades of the spectrum that `residual_spectrum` tells apart; the last entry is all below."""


def residual_spectrum(kernel: Kernel, residual: Callable[[Params], Float[Array, " R"]]) -> Probe:
    r"""How much of the residual lies in which part of the kernel's spectrum.

    Entry $j$ is the share of $\lVert e\rVert^2$ along eigenvectors with
    $10^{-j-1}<\lambda/\lambda_{\max}\le10^{-j}$, and the last entry the share below
    $10^{-10}$. Gradient descent removes the first within some $1/\gamma\lambda_{\max}$ steps, each
    next one ten times as slowly.
    """

    def probe(params: Params) -> Float[Array, " decades"]:
        values, vectors = linalg.eigensystem(kernel(params))
        along = jnp.square(residual(params).astype(values.dtype) @ vectors)
        top = jnp.where(values[-1] > 0, values[-1], 1)
        edges = 10.0 ** -jnp.arange(1.0, DECADES + 1)
        decade = jnp.sum(values[:, None] <= top * edges[None], axis=1)
        total = jnp.sum(along)
        shares = jax.ops.segment_sum(along, decade, num_segments=DECADES + 1)
        return shares / jnp.where(total > 0, total, 1)

    return probe
