"""Setups from a user's own model: any JAX function of weights and a batch."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from shoal.errors import InputError
from shoal.lab.setting import Setting, Static
from shoal.lab.setup import WEIGHTS, Setup, key_of, trained_blocks
from shoal.losses import loss_of
from shoal.models import Model
from shoal.problems import Samples
from shoal.runtime import in_float64, numpy_tree


class Own(Setting):
    """The setting of a user's own model: a function of parameters and a whole batch."""

    function: Static[Any] = None  # f(params, x) on the whole batch.
    loss_function: Static[Any] = None  # The loss of outputs and targets.
    shapes: Static[Any] = None  # Tree structure and shapes of the parameters.
    label: Static[str] = "own"  # Name of the model.

    @property
    def loss(self) -> Any:  # type: ignore[override]
        """The loss that was given."""
        return self.loss_function

    def params(self) -> Any:
        """Shapes of the parameters that were given."""
        return jax.tree.unflatten(*self.shapes)

    def apply(self, params: Any, x: Any) -> Any:
        """Output for one sample."""
        return self.function(params, jax.tree.map(lambda a: a[None], x))[0]

    def network(self) -> Model:
        """The model, whose outputs come for the whole batch."""
        return Model(self.spec(), self.apply, outputs=self.function)


@in_float64
def own_setup(
    function: Callable[[Any, Any], Any],
    params: Any,
    x: Any,
    y: Any,
    *,
    loss: str | Callable = "squares",
    seeds: Iterable[int] = (0,),
    train: str = "all",
    precision: str = "float64",
) -> Setup:
    """A setup from ``f(params, x)``; ``params`` are weights, or ``init(key)`` that draws them."""
    seeds = tuple(seeds)
    if callable(params):
        draw = jax.vmap(lambda seed: params(key_of(seed, WEIGHTS)))
        params0 = numpy_tree(draw(np.asarray(seeds, np.uint32)))
    else:
        params0 = jax.tree.map(lambda W: np.asarray(W, np.float64)[None], params)
        seeds = seeds[:1]
    x, y = jax.tree.map(_as_data, (x, y))
    lengths = {len(leaf) for leaf in jax.tree.leaves((x, y))}
    if len(lengths) != 1:
        msg = f"x and y have leading axes of length {sorted(lengths)}; expected one of samples."
        raise InputError(msg)
    shapes = jax.tree.structure(params0), tuple(W.shape[1:] for W in jax.tree.leaves(params0))
    label = getattr(function, "__name__", type(function).__name__)
    setting = Own(num_samples=lengths.pop(), train=train, function=function,
                  loss_function=loss_of(loss), shapes=shapes, label=label)  # fmt: skip
    trained_blocks(setting, params0)
    outputs = jax.eval_shape(function, jax.tree.map(lambda W: W[0], params0), x)
    apart = hasattr(setting.loss, "squares_weight") and outputs.shape != y.shape  # would broadcast
    if apart or jax.eval_shape(setting.loss, outputs, y).shape != ():
        raise InputError(f"outputs {outputs.shape} and targets {y.shape} do not fit this loss.")
    made = Setup(setting, Samples(x, y), params0, seeds, from_init=callable(params))
    return made.astype(precision)


def _as_data(array: Any) -> np.ndarray:
    found = np.asarray(array)
    return found if found.dtype.kind in "iub" else found.astype(np.float64)


def per_sample(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Lift a function of one sample to the whole batch.

    >>> per_sample(lambda w, x: w @ x)(jnp.ones(2), jnp.ones((3, 2))).tolist()
    [2.0, 2.0, 2.0]
    """
    batched = jax.vmap(function, in_axes=(None, 0))
    batched.__name__ = getattr(function, "__name__", "model")
    return batched
