"""What a model is, and its risk on a problem."""

from typing import NamedTuple

import jax

from shoal._typing import Array, Callable, Float, Params, Risk
from shoal.problems import Problem


class Model(NamedTuple):
    """Shapes of the parameters, and the map they parametrise (one sequence in)."""

    spec: Params
    apply: Callable[[Params, Float[Array, "n d"]], Float[Array, "..."]]


def predict(model: Model, params: Params, X: Float[Array, "N n d"]) -> Float[Array, "N ..."]:
    """Outputs for every sequence.

    What does not depend on the sequence (such as the product of query and key weights) is computed
    once: ``vmap`` leaves it outside the batch.
    """
    return jax.vmap(model.apply, in_axes=(None, 0))(params, X)


def empirical_risk(model: Model, problem: Problem, loss: Callable[[Array, Array], Array]) -> Risk:
    """The loss of the model's outputs on a problem, as a function of the parameters."""

    def risk(params: Params) -> Float[Array, ""]:
        return loss(predict(model, params, problem.X), problem.y)

    return risk
