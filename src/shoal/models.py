"""What a model is, and its risk on a problem."""

from typing import NamedTuple

import jax

from shoal._typing import Array, Callable, Float, Int, Params, Risk
from shoal.problems import Problem


class Model(NamedTuple):
    """Shapes of the parameters, and the map they parametrise (one sequence in)."""

    spec: Params
    apply: Callable[[Params, Float[Array, "n d"]], Float[Array, "..."]]
    at_once: int | None = None  # so many sequences fit into memory side by side; None: all


def predict(model: Model, params: Params, X: Float[Array, "N n d"]) -> Float[Array, "N ..."]:
    """Outputs for every sequence.

    What does not depend on the sequence (such as the product of query and key weights) is computed
    once: ``vmap`` leaves it outside the batch.
    """
    if model.at_once is None or len(X) <= model.at_once:
        return jax.vmap(model.apply, in_axes=(None, 0))(params, X)
    return jax.lax.map(lambda x: model.apply(params, x), X, batch_size=model.at_once)


def empirical_risk(model: Model, problem: Problem, loss: Callable[[Array, Array], Array]) -> Risk:
    """The loss of the model's outputs on a problem, as a function of the parameters.

    A second argument, the numbers of some samples, restricts it to them: that is what stochastic
    methods descend.
    """

    def risk(params: Params, rows: Int[Array, " b"] | None = None) -> Float[Array, ""]:
        X, y = problem if rows is None else (problem.X[rows], problem.y[rows])
        return loss(predict(model, params, X), y)

    return risk
