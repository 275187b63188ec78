"""What a model is, and its risk on a problem."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Float, Int, Params, Risk
from shoal.losses import half_sum_of_squares, mean_of_squares
from shoal.problems import Problem


class Model(NamedTuple):
    """Shapes of the parameters, and the map they parametrise (one sequence in)."""

    spec: Params
    apply: Callable[[Params, Any], Float[Array, "..."]]
    at_once: int | None = None  # so many sequences fit into memory side by side; None: all
    together: Callable[[Params, Any], Float[Array, "N ..."]] | None = None
    """A faster way to all outputs, differentiable once and in the parameters only."""
    squares: Callable[[Params, Any, Array], Float[Array, ""]] | None = None
    """A faster way still to the sum of squared errors, value and gradient in one pass."""


def predict(model: Model, params: Params, inputs: Any) -> Float[Array, "N ..."]:
    """Outputs for every sequence (or sequence with its query: see `Problem.inputs`).

    What does not depend on the sequence (such as the product of query and key weights) is computed
    once: ``vmap`` leaves it outside the batch.
    """
    if model.at_once is None or len(jax.tree.leaves(inputs)[0]) <= model.at_once:
        return jax.vmap(model.apply, in_axes=(None, 0))(params, inputs)
    return jax.lax.map(lambda x: model.apply(params, x), inputs, batch_size=model.at_once)


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


def empirical_risk(model: Model, problem: Problem, loss: Callable[[Array, Array], Array]) -> Risk:
    """The loss of the model's outputs on a problem, as a function of the parameters.

    A second argument, the numbers of some samples, restricts it to them: that is what stochastic
    methods descend.
    """

    def risk(params: Params, rows: Int[Array, " b"] | None = None) -> Float[Array, ""]:
        seen = problem if rows is None else jax.tree.map(lambda a: a[rows], problem)
        return loss(predict(model, params, seen.inputs), seen.y)

    return risk


def training_risk(model: Model, problem: Problem, loss: Callable[[Array, Array], Array]) -> Risk:
    """The same number by the model's fast way, if it has one: for steps, not for Hessians."""
    squares, together = model.squares, model.together
    known = loss in (half_sum_of_squares, mean_of_squares)
    fused = squares if known else None

    def risk(params: Params, rows: Int[Array, " b"] | None = None) -> Float[Array, ""]:
        seen = problem if rows is None else jax.tree.map(lambda a: a[rows], problem)
        if fused is not None:
            share = 0.5 if loss is half_sum_of_squares else 1 / seen.y.size
            return share * fused(params, seen.inputs, seen.y)
        assert together is not None
        return loss(together(params, seen.inputs), seen.y)

    return empirical_risk(model, problem, loss) if fused is together is None else risk
