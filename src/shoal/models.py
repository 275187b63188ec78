"""What a model is, and its outputs and risk on a problem."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Float, Int, Params, Risk
from shoal.problems import Problem, Samples


class Model(NamedTuple):
    """Shapes of the parameters, and the map they parametrise (one sample in)."""

    spec: Params
    apply: Callable[[Params, Any], Float[Array, "..."]]
    batch_size: int | None = None  # Maximum samples per batch; None means all.
    outputs: Callable[[Params, Any], Float[Array, "N ..."]] | None = None
    """Outputs of all samples at once, if not by ``vmap`` of ``apply``."""
    coupled: bool = False  # The output of a sample depends on the other samples of its batch.
    fast_outputs: Callable[[Params, Any], Float[Array, "N ..."]] | None = None
    """A faster way to all outputs, differentiable once and in the parameters only."""
    fused_squares: Callable[[Params, Any, Array], Float[Array, ""]] | None = None
    """The sum of squared errors with its gradient in one pass, differentiable once."""
    squares_alone: Callable[[Params, Any, Array], Float[Array, ""]] | None = None
    """The sum of squared errors by the cheapest way, if no gradient is wanted."""


def predict(model: Model, params: Params, inputs: Any) -> Float[Array, "N ..."]:
    """Outputs for every sample (for a sequence with its query: see `Problem.inputs`).

    What does not depend on the sample (such as the product of query and key weights) is computed
    once: ``vmap`` leaves it outside the batch.
    """
    if model.outputs is not None:
        return model.outputs(params, inputs)
    if model.batch_size is None or len(jax.tree.leaves(inputs)[0]) <= model.batch_size:
        return jax.vmap(model.apply, in_axes=(None, 0))(params, inputs)
    return jax.lax.map(lambda x: model.apply(params, x), inputs, batch_size=model.batch_size)


def with_gradient(
    both: Callable[[Params, Any, Array], tuple[Float[Array, ""], Params]],
    alone: Callable[[Params, Any, Array], Float[Array, ""]] | None = None,
) -> Callable[[Params, Any, Array], Float[Array, ""]]:
    """A function of parameters, inputs and targets whose gradient comes with its value.

    ``both`` computes the two in one pass; ``alone`` is a cheaper way to the value, if the compiler
    cannot find it by leaving out the gradient. A first derivative, in the parameters only.
    """

    @jax.custom_vjp
    def value(params: Params, inputs: Any, y: Array) -> Float[Array, ""]:
        return both(params, inputs, y)[0] if alone is None else alone(params, inputs, y)

    def forward(params: Params, inputs: Any, y: Array) -> tuple[Array, tuple]:
        total, gradient = both(params, inputs, y)
        return total, (gradient, inputs, y)

    def backward(saved: tuple, pull: Float[Array, ""]) -> tuple:
        gradient, *others = saved
        return jax.tree.map(lambda g: pull * g, gradient), *jax.tree.map(jnp.zeros_like, others)

    value.defvjp(forward, backward)
    return value


def squares_weight(loss: Callable, count: int) -> float | None:
    """The c of a loss that is c times the sum of squared errors; None for other losses.

    >>> from shoal.losses import mean_of_squares
    >>> squares_weight(mean_of_squares, 4)
    0.25
    """
    return getattr(loss, "squares_weight", lambda _: None)(count)


Loss = Callable[[Any, Any], Array]


def empirical_risk(model: Model, problem: Problem | Samples, loss: Loss) -> Risk:
    """The loss of the model's outputs on a problem, as a function of the parameters.

    If ``rows`` is given, only those samples: that is what stochastic methods descend.
    """
    return training_risk(model._replace(fused_squares=None, fast_outputs=None), problem, loss)


def training_risk(model: Model, problem: Problem | Samples, loss: Loss) -> Risk:
    """The same number by the model's fastest way: for training steps, not for Hessians."""
    fused, fast = model.fused_squares, model.fast_outputs

    def risk(params: Params, rows: Int[Array, " b"] | None = None) -> Float[Array, ""]:
        seen = problem if rows is None else jax.tree.map(lambda a: a[rows], problem)
        if fused is not None and (weight := squares_weight(loss, seen.y.size)) is not None:
            return weight * fused(params, seen.inputs, seen.y)
        outputs = fast(params, seen.inputs) if fast else predict(model, params, seen.inputs)
        return loss(outputs, seen.y)

    return risk


def value_risk(model: Model, problem: Problem | Samples, loss: Loss) -> Risk:
    """The same number by the fastest way to it alone: for planes, not for gradients."""
    alone = model.squares_alone or model.fused_squares
    return training_risk(model._replace(fused_squares=alone), problem, loss)
