"""What can be recorded along a run of qin2025."""

import jax
import jax.numpy as jnp

from shoal import linalg
from shoal._typing import Array, Callable, Float, Params, Probe
from shoal.diagnostics import dynamics, kernels
from shoal.experiments import Case
from shoal.losses import half_sum_of_squares
from shoal.models import empirical_risk
from shoal.papers.qin2025 import blocks, bounds
from shoal.papers.qin2025.choices import form, model, smallest_singular_value


def conditioning_of(A: Float[Array, "rows d"]) -> dict[str, Float[Array, ""]]:
    r"""Singular values, condition number and ranks of one matrix.

    $\sigma_{\min}$ is that over the rows, so 0 if there are more rows than columns; the condition
    number is infinite there, and wherever it is beyond what float64 resolves.
    """
    sigma = linalg.singular_values(A)
    rows, columns = A.shape
    low = sigma[-1] if rows <= columns else jnp.zeros(())
    rounding = float(jnp.finfo(A.dtype).eps) * max(A.shape) * sigma[0]
    return {
        "sigma_min": low,
        "sigma_max": sigma[0],
        "condition": jnp.where(low > rounding, sigma[0] / jnp.where(low > 0, low, 1), jnp.inf),
        "rank": jnp.sum(sigma > rounding) * 1.0,
        "stable_rank": jnp.sum(sigma**2) / sigma[0] ** 2,
    }


def centred_share(A: Float[Array, "N n d"]) -> Float[Array, ""]:
    r"""What of the tokens is not their sequence's mean, $\lVert A-1\bar a\rVert/\lVert A\rVert$."""
    return linalg.norm_fro(A - jnp.mean(A, axis=1, keepdims=True)) / linalg.norm_fro(A)


def token_cosine(A: Float[Array, "N n d"]) -> Float[Array, ""]:
    """Mean cosine between different tokens of a sequence; 1 where there is but one."""
    n = A.shape[1]
    length = jnp.linalg.norm(A, axis=2, keepdims=True)
    unit = A / jnp.where(length > 0, length, 1)
    total = jnp.sum(jnp.sum(unit, axis=1) ** 2, axis=1) - jnp.sum(unit**2, axis=(1, 2))
    return jnp.mean(total) / (n * (n - 1)) if n > 1 else jnp.ones(())


def _attention_outputs(case: Case, params: Params) -> Float[Array, "L N n d"]:
    shape = form(case.setting)
    X = case.problem.X
    return jax.vmap(lambda x: blocks.layers(params, x, shape).A, out_axes=1)(X)


def conditioning(case: Case) -> Probe:
    """Of every layer's attention output, all samples stacked: the matrix of the theorem."""

    def probe(params: Params) -> dict[str, Float[Array, " L"]]:
        A = _attention_outputs(case, params)
        found = jax.lax.map(lambda a: conditioning_of(a.reshape(-1, a.shape[-1])), A)
        return found | {"centred_share": jax.vmap(centred_share)(A)}

    return probe


def conditioning_each(case: Case) -> Probe:
    """Of every layer's attention output, sequence by sequence: the worst of them."""

    def probe(params: Params) -> dict[str, Float[Array, " L"]]:
        found = jax.vmap(jax.vmap(conditioning_of))(_attention_outputs(case, params))
        ends = {"sigma_min": jnp.min, "sigma_max": jnp.max, "condition": jnp.max, "rank": jnp.min}
        return {name: end(found[name], axis=1) for name, end in ends.items()}

    return probe


def cosines(case: Case) -> Probe:
    """Mean cosine between tokens of a sequence, after every layer's attention."""
    return lambda params: jax.vmap(token_cosine)(_attention_outputs(case, params))


def block_kernels(case: Case) -> kernels.Kernels:
    """Tangent kernels of the blocks; a row for each output of each token."""
    return kernels.tangent_kernels(model(case.setting), case.problem.X)


def driving_kernel(case: Case) -> Callable[[Params], Float[Array, "R R"]]:
    """The kernel that moves the outputs."""
    return kernels.total_kernel(block_kernels(case), case.speeds)


def routes(case: Case) -> Probe:
    r"""Three lower bounds of $\sigma_p(J)$ through the last block's layers, and $\sigma_p(J)$."""
    shape, X = form(case.setting), case.problem.X

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        found = bounds.routes_at_start(bounds.measure(params, X, shape), X.shape[1], shape)
        return found._asdict() | {
            "together": found.together(),
            "sigma_min": smallest_singular_value(case.setting, params, X),
        }

    return probe


def local_rate(case: Case) -> Probe:
    r"""Loss ratio of a step near convergence, $\max_\lambda(1-\eta\lambda)^2$ over $JJ^\top$."""

    def probe(params: Params) -> Float[Array, ""]:
        ends = jnp.linalg.eigvalsh(driving_kernel(case)(params))[jnp.array([0, -1])]
        return jnp.max((1 - case.step_size * jnp.maximum(ends, 0.0)) ** 2)

    return probe


def probes(case: Case) -> dict[str, Probe]:
    """Everything that can be recorded along a run."""
    risk = empirical_risk(model(case.setting), case.problem, half_sum_of_squares)
    sharp = dynamics.sharpness(risk, jax.random.key(0))

    def edge(params: Params) -> Array:
        return sharp(params)["value"] * case.step_size / 2

    return {
        "movement": dynamics.movement(case.params0),
        "distance": dynamics.distance(case.params0),
        "gradient_norm": dynamics.gradient_norm(risk),
        "pl_ratio": dynamics.pl_ratio(risk),
        "conditioning": conditioning(case),
        "conditioning_each": conditioning_each(case),
        "token_cosine": cosines(case),
        "routes": routes(case),
        "local_rate": local_rate(case),
        "sharpness": sharp,
        "curvature": dynamics.curvature(risk),
        "edge_of_stability": edge,
        "kernel_lambda_max": lambda p: kernels.kernel_eigenvalues(driving_kernel(case))(p)[-1],
        "kernel_eigenvalues": kernels.kernel_eigenvalues(driving_kernel(case)),
        "kernel_share": kernels.kernel_shares(block_kernels(case)),
        "kernel_drift": kernels.kernel_drift(driving_kernel(case), case.params0),
        "kernel_distance": kernels.kernel_distance(driving_kernel(case), case.params0),
    }
