"""What can be recorded along a run of arda2026."""

import jax
import jax.numpy as jnp

from shoal import trees
from shoal._typing import Any, Array, Callable, Float, Params, Probe
from shoal.diagnostics import dynamics, kernels
from shoal.experiments import Case
from shoal.losses import mean_of_squares
from shoal.models import empirical_risk, predict
from shoal.papers.arda2026 import data, heads, teachers, theorems
from shoal.papers.arda2026.choices import block, model, radii
from shoal.papers.arda2026.heads import ACTIVATIONS, Weights
from shoal.papers.arda2026.theorems import Start

INFINITE = (float("inf"),) * 3
ON_THE_BOUNDARY = 1e-6
"""Relative distance from the radius below which a head counts as being on it."""


def comparator(case: Case) -> Weights:
    """The point that the theorems compare a run with, before it is brought into the set."""
    setting, params0 = case.setting, case.params0
    inputs, y = case.problem.inputs, case.problem.y
    if setting.comparator == "teacher":
        made = (
            data.dual_transport(setting, params0, inputs)
            if setting.labels == "dual"
            else data.teacher(setting, params0)
        )
        return teachers.moved(params0, made)
    top = jnp.linalg.eigvalsh(_plain_kernel(case)(params0))[-1] * (1 + 1e-6)
    limits = radii(setting) or INFINITE
    return teachers.best_fit(model(setting), params0, inputs, y, limits, top)


def start_of(case: Case) -> Start:
    """The start of a run as the theorems see it: in float64, whatever the run is in."""
    case = case._replace(
        problem=trees.cast(case.problem, "float64"), params0=trees.cast(case.params0, "float64")
    )
    limits = radii(case.setting) or INFINITE
    there = comparator(case)
    return Start(
        problem=case.problem,
        params0=case.params0,
        comparator=teachers.nearest(case.params0, there, limits),
        comparator_norms=teachers.norms(teachers.transport_of(case.params0, there)),
        model=model(case.setting),
        activation=ACTIVATIONS[case.setting.activation],
        radii=limits,
        token_bound=case.setting.token_bound,
        query_bound=case.setting.query_bound,
    )


def block_kernels(case: Case) -> kernels.Kernels:
    """Tangent kernels of the heads in closed form, of the relatives by differentiation."""
    inputs = case.problem.inputs
    if case.setting.model != "heads" or case.setting.output_scale != 1:
        return kernels.tangent_kernels(model(case.setting), inputs)
    activation = ACTIVATIONS[case.setting.activation]
    return heads.tangent_kernels(inputs, activation, block=block(case.setting))


def _plain_kernel(case: Case) -> Callable[[Params], Float[Array, "N N"]]:
    return kernels.total_kernel(block_kernels(case), dict.fromkeys(case.params0._fields, 1.0))


def driving_kernel(case: Case) -> Callable[[Params], Float[Array, "N N"]]:
    r"""What moves the outputs of a mean of squares, $f_{t+1}\approx f_t-\eta\frac2NKe_t$."""
    K = kernels.total_kernel(block_kernels(case), case.speeds)
    return lambda params: 2 / case.problem.y.size * K(params)


def usual_step(case: Case) -> float:
    """The paper's step, one over the root of the number of steps."""
    return case.setting.num_steps**-0.5


def covariance(case: Case) -> Probe:
    """Trace and Frobenius norm of the tokens' covariance under attention, mean over heads."""

    def probe(params: Weights) -> dict[str, Float[Array, ""]]:
        def one(sample: Any) -> tuple[Array, Array]:
            x, q = heads.split(sample)
            alpha = heads.attention(params.W, x, q)
            a = alpha @ x
            M = jnp.einsum("mt,td,te->mde", alpha, x, x) - a[:, :, None] * a[:, None, :]
            size = jnp.sqrt(jnp.sum(M**2, axis=(1, 2)))
            return jnp.mean(jnp.trace(M, axis1=1, axis2=2)), jnp.mean(size)

        trace, size = jax.lax.map(one, case.problem.inputs)
        return {"trace": jnp.mean(trace), "norm": jnp.mean(size)}

    return probe


def entropy(case: Case) -> Probe:
    """Entropy of the attention weights, mean over samples and heads; log(tokens) is uniform."""

    def probe(params: Weights) -> Float[Array, ""]:
        def one(sample: Any) -> Array:
            alpha = heads.attention(params.W, *heads.split(sample))
            return -jnp.mean(jnp.sum(jax.scipy.special.xlogy(alpha, alpha), axis=1))

        return jnp.mean(jax.lax.map(one, case.problem.inputs))

    return probe


def linearisation(case: Case) -> Probe:
    """Distance of the outputs from those of the linearised model: largest, and root mean square."""
    network, inputs = model(case.setting), case.problem.inputs

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        f0 = predict(network, case.params0, inputs)
        apart = jax.tree.map(jnp.subtract, params, case.params0)
        lin = f0 + teachers.along(network, case.params0, inputs, apart)
        error = predict(network, params, inputs) - lin
        return {"sup": jnp.max(jnp.abs(error)), "rms": jnp.sqrt(jnp.mean(error**2))}

    return probe


def scaled_movement(case: Case) -> Probe:
    """Largest movement of a head times the root of their number, block by block."""

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        root = params.c.shape[0] ** 0.5
        apart = jax.tree.map(jnp.subtract, params, case.params0)
        return {name: root * jnp.max(_rows(W)) for name, W in trees.blocks(apart).items()}

    return probe


def _rows(W: Array) -> Float[Array, " m"]:
    return jnp.sqrt(jnp.sum(W**2, axis=tuple(range(1, W.ndim))))


def boundary(case: Case) -> Probe:
    """Share of heads on the boundary of the set, block by block."""
    limits = dict(zip("cUW", radii(case.setting) or INFINITE, strict=True))

    def probe(params: Weights) -> dict[str, Float[Array, ""]]:
        root = params.c.shape[0] ** 0.5
        apart = jax.tree.map(jnp.subtract, params, case.params0)
        return {
            name: jnp.mean(root * _rows(W) >= limits[name] * (1 - ON_THE_BOUNDARY), dtype=float)
            for name, W in trees.blocks(apart).items()
        }

    return probe


def jacobian(case: Case) -> Probe:
    """Norm of the output's gradient, block by block: the largest over samples."""
    network, inputs = model(case.setting), case.problem.inputs

    def probe(params: Params) -> dict[str, Float[Array, ""]]:
        if case.setting.model == "heads" and case.setting.output_scale == 1:
            squares = heads.output_gradients(params, inputs, ACTIVATIONS[case.setting.activation])
        else:
            J = jax.vmap(jax.jacrev(network.apply), in_axes=(None, 0))(params, inputs)
            squares = {
                k: jnp.sum(j**2, axis=tuple(range(1, j.ndim))) for k, j in trees.blocks(J).items()
            }
        return {name: jnp.sqrt(jnp.max(s)) for name, s in squares.items()}

    return probe


def probes(case: Case) -> dict[str, Probe]:
    """Everything that can be recorded along a run."""
    network = model(case.setting)
    risk = empirical_risk(network, case.problem, mean_of_squares)
    found: dict[str, Probe] = {
        "movement": dynamics.movement(case.params0),
        "scaled_movement": scaled_movement(case),
        "gradient_norm": dynamics.gradient_norm(risk),
        "pl_ratio": dynamics.pl_ratio(risk),
        "linearisation": linearisation(case),
        "jacobian": jacobian(case),
        "sharpness": dynamics.sharpness(risk, jax.random.key(0)),
        "kernel_lambda_max": lambda p: kernels.kernel_eigenvalues(driving_kernel(case))(p)[-1],
        "kernel_eigenvalues": kernels.kernel_eigenvalues(driving_kernel(case)),
        "kernel_share": kernels.kernel_shares(block_kernels(case)),
        "kernel_drift": kernels.kernel_drift(driving_kernel(case), case.params0),
        "kernel_distance": kernels.kernel_distance(driving_kernel(case), case.params0),
    }
    if case.setting.model == "heads":
        found |= {
            "boundary": boundary(case),
            "covariance": covariance(case),
            "attention_entropy": entropy(case),
        }
    if case.setting.model == "heads" and case.setting.output_scale == 1:
        found |= {
            "path": theorems.path(start_of(case)),
        }
    if case.held_out is not None:
        found["test_risk"] = empirical_risk(network, case.held_out, mean_of_squares)
    return found
