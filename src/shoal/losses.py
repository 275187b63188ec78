"""Losses: all outputs and all targets in, one number out.

A loss that is a multiple of the sum of squared errors says so by its attribute ``squares_weight``,
a function of the number of outputs; tangent kernels and fused training steps need it. Attributes
survive `functools.wraps`, so a wrapped loss keeps its fast path.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Shaped

from shoal._typing import Any, Array, Callable, Float
from shoal.errors import InputError, nearest


def half_sum_of_squares(
    outputs: Float[Array, "*shape"], targets: Float[Array, "*shape"]
) -> Float[Array, ""]:
    r"""$\ell = \tfrac12 \sum_n (f_n - y_n)^2$, with no $1/N$ (wu2023, song2024).

    >>> float(half_sum_of_squares(jnp.array([1.0, 2.0]), jnp.array([0.0, 0.0])))
    2.5
    """
    return 0.5 * jnp.sum(jnp.square(outputs - targets))


half_sum_of_squares.squares_weight = lambda count: 0.5  # type: ignore[attr-defined]  # noqa: ARG005


def mean_of_squares(
    outputs: Float[Array, "*shape"], targets: Float[Array, "*shape"]
) -> Float[Array, ""]:
    r"""$\ell = \tfrac1N\sum_n (f_n - y_n)^2$, without $\tfrac12$ (arda2026).

    >>> float(mean_of_squares(jnp.array([1.0, 2.0]), jnp.array([0.0, 0.0])))
    2.5
    """
    return jnp.mean(jnp.square(outputs - targets))


mean_of_squares.squares_weight = lambda count: 1 / count  # type: ignore[attr-defined]


def cross_entropy(
    scores: Float[Array, "*shape classes"], classes: Shaped[Array, "*shape"]
) -> Float[Array, ""]:
    r"""Mean of $-\log\mathrm{softmax}(scores)_{class}$ over samples, or over all their tokens.

    >>> round(float(cross_entropy(jnp.zeros((3, 2)), jnp.array([0.0, 1.0, 1.0]))), 6)
    0.693147
    """
    chosen = jnp.take_along_axis(scores, classes.astype(int)[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - chosen)


cross_entropy.of_classes = True  # type: ignore[attr-defined]  # targets lack the axis of scores


def accuracy(
    scores: Float[Array, "*shape classes"], classes: Shaped[Array, "*shape"]
) -> Float[Array, ""]:
    """Share of highest scores that are those of the class; NaN where scores are not finite.

    The largest of nothing but NaN would be class 0, and a diverged model right half of the time.
    """
    right = jnp.mean(jnp.argmax(scores, axis=-1) == classes.astype(int), dtype=scores.dtype)
    return jnp.where(jnp.all(jnp.isfinite(scores)), right, jnp.nan)


def logistic(scores: Float[Array, " N"], signs: Float[Array, " N"]) -> Float[Array, ""]:
    r"""Mean over samples of $\log(1+e^{-yf})$ for labels $y=\pm1$.

    >>> round(float(logistic(jnp.zeros(2), jnp.array([1.0, -1.0]))), 6)
    0.693147
    """
    return jnp.mean(jax.nn.softplus(-signs * scores))


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "squares": half_sum_of_squares,
    "mean_squares": mean_of_squares,
    "cross_entropy": cross_entropy,
    "logistic": logistic,
}


def loss_of(loss: Any) -> Callable[[Any, Any], Any]:
    """A loss by its name, or the function itself."""
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise InputError(f"no loss is called {loss!r}; {nearest(str(loss), LOSSES)}")
    return LOSSES[loss]
