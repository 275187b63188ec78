"""What can be measured of song2024: kernels, floors, probes, and a step to begin with."""

import jax
import jax.numpy as jnp

from shoal import losses
from shoal._typing import Array, Callable, Float, Params, Probe, Scalar
from shoal.diagnostics import dynamics, kernels, layers
from shoal.experiments import Case, trained
from shoal.linalg import norm_op, numerical_rank, sigma_min
from shoal.models import empirical_risk, predict
from shoal.papers.song2024 import layer as architecture
from shoal.papers.song2024 import theorems
from shoal.papers.song2024.choices import form, loss, model
from shoal.papers.song2024.layer import Weights
from shoal.problems import Problem
from shoal.trees import block_names

LARGEST_KERNEL = 6000  # rows of the tangent kernel (samples x tokens x outputs) that we form
NORMALISED = ("softmax", "normalised_gaussian")


def start_of(case: Case, params: Weights) -> theorems.Start:
    """What the theorems look at: a point of a case, with its kernel."""
    return theorems.Start(
        case.problem,
        params,
        form(case.setting),
        case.setting.kernel,
        case.speeds,
        every_step=case.setting.every == 1,
    )


def usual_step(case: Case) -> Scalar | None:
    r"""A step to begin with.

    Classifier: 1e-3 for Adam, 0.1 for gradient descent. Layer: None, the tangent kernel rules,
    if values move. If only queries or keys move, that kernel may vanish where attention saturates,
    and a step made for it would fling queries away: then $1/L$ with the smoothness constant of
    theorem 3, of which there is one for softmax and one for the Gaussian.
    """
    setting = case.setting
    if setting.model == "classifier":
        return jnp.asarray(1e-3 if setting.method == "adam" else 0.1)
    if set(block_names(case.params0, trained(setting))) <= {"W_Q", "W_K"}:
        softly = setting.kernel in (*NORMALISED, "exponential")
        start = start_of(case, case.params0)._replace(kernel="softmax" if softly else "gaussian")
        return theorems.JUST_BELOW / theorems.smoothness(start)
    if driving_kernel(case) is None:  # too many outputs: the part of the values alone
        A = architecture.value_matrix(case.params0, case.problem.X, form(setting))
        return 0.5 / norm_op(A) ** 2
    return None


# ------------------------------------------------------------------------- kernels and floors


def driving_kernel(case: Case) -> Callable[[Params], Float[Array, "R R"]] | None:
    """The kernel that moves the outputs of the layer; none for the classifier, or if too large."""
    if case.setting.model == "classifier" or case.problem.y.size > LARGEST_KERNEL:
        return None
    parts = kernels.tangent_kernels(model(case.setting), case.problem.X)
    return kernels.total_kernel(parts, case.speeds)


def floor(case: Case) -> Callable[[Params], Scalar] | None:
    """A lower bound of the risk that no training of the moving blocks can break.

    If only values move: the least squares floor for the attention as it is. If only queries or keys
    move: the nearest point that weights of this kernel can mix from the values. Otherwise zero.
    """
    setting = case.setting
    if setting.model == "classifier":
        return None
    names = set(block_names(case.params0, trained(setting)))
    if names == {"W_V"}:
        return lambda params: theorems.value_numbers(start_of(case, params))["F_star"]
    if not names <= {"W_Q", "W_K"} or setting.kernel == "exponential":
        return lambda params: 0.0 * jnp.sum(params.W_O)
    return reach_floor(case)


def reach_floor(case: Case) -> Callable[[Weights], Float[Array, ""]]:
    """Lowest risk that attention weights of this kernel's range reach with the values at hand."""
    kind = case.setting.kernel
    box = None if kind in NORMALISED else 1.0
    box = 1.0 / case.setting.num_tokens if kind == "mean_gaussian" else box

    def lowest(params: Weights) -> Float[Array, ""]:
        U = jax.vmap(lambda x: architecture.values(params, x))(case.problem.X)
        rows = jax.vmap(lambda u, y: architecture.reach_floor(u, y, box=box))
        return jnp.sum(rows(U, case.problem.y))

    return lowest


# ------------------------------------------------------------------------------------- probes


def probes(case: Case) -> dict[str, Probe]:
    """Everything that can be recorded along a run."""
    risk = empirical_risk(model(case.setting), case.problem, loss)
    common: dict[str, Probe] = {
        "movement": dynamics.movement(case.params0),
        "distance": dynamics.distance(case.params0),
        "gradient_norm": dynamics.gradient_norm(risk),
    }
    if case.setting.model == "classifier":
        return common | _classifier_probes(case)
    return common | _layer_probes(case, risk)


def _classifier_probes(case: Case) -> dict[str, Probe]:
    network = model(case.setting)

    def accuracy_on(problem: Problem) -> Probe:
        return lambda params: losses.accuracy(predict(network, params, problem.X), problem.y)

    found = {"train_accuracy": accuracy_on(case.problem)}
    if case.held_out is not None:
        held = case.held_out
        found["test_risk"] = empirical_risk(network, held, loss)
        found["test_accuracy"] = accuracy_on(held)
    return found


def _layer_probes(case: Case, risk: Callable) -> dict[str, Probe]:
    X, shape = case.problem.X, form(case.setting)
    moving = trained(case.setting)

    def B(params: Weights) -> Array:
        return architecture.feature_matrix(params, X, shape)

    def A(params: Weights) -> Array:
        return architecture.value_matrix(params, X, shape)

    def heads(params: Weights, x: Array) -> Array:
        return architecture.attention(params, x, shape)

    def row_sums(params: Weights) -> dict[str, Array]:
        sums = jnp.sum(jax.vmap(lambda x: heads(params, x))(X), axis=-1)
        return {"mean": jnp.mean(sums), "min": jnp.min(sums), "max": jnp.max(sums)}

    start = start_of(case, case.params0)
    found: dict[str, Probe] = {
        "pl_ratio": dynamics.pl_ratio(risk),
        "lambda_B": lambda params: sigma_min(B(params)),
        "rank_B": lambda params: numerical_rank(B(params), theorems.ZERO),
        "lambda_A": lambda params: sigma_min(A(params)),
        "rank_A": lambda params: numerical_rank(A(params), theorems.ZERO),
        "row_sum": row_sums,
        "attention": lambda params: jax.vmap(lambda x: heads(params, x)[0])(X),
        "reach_floor": reach_floor(case),
        "curvature": dynamics.curvature(risk, train=moving),
        "stationarity": dynamics.stationarity(
            risk, floor(case) or (lambda _: 0.0), train=moving, scale=risk(case.params0)
        ),
        "sharpness": dynamics.sharpness(risk, jax.random.key(0)),
    }
    if case.setting.kernel in NORMALISED:
        found["attention_entropy"] = layers.attention_entropy(heads, X)
    if case.setting.num_heads == 1 and case.setting.kernel in ("softmax", "gaussian"):
        geometry = theorems.query_geometry(start)
        found["query_sigma"] = lambda params: theorems.smallest_jacobian(start, params, geometry)
    if (kernel := driving_kernel(case)) is not None:
        found["kernel_eigenvalues"] = kernels.kernel_eigenvalues(kernel)
        found["kernel_drift"] = kernels.kernel_drift(kernel, case.params0)
        found["kernel_distance"] = kernels.kernel_distance(kernel, case.params0)
    return found
