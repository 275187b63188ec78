"""What attention and hidden units do: entropy, uniformity, dead units, features."""

import jax
import jax.numpy as jnp

from shoal import linalg
from shoal._typing import Array, Callable, Float, Params, Probe

PerSequence = Callable[[Params, Float[Array, "n d"]], Array]


def _over(function: PerSequence, X: Float[Array, "N n d"], params: Params) -> Array:
    return jax.vmap(function, in_axes=(None, 0))(params, X)


def attention_entropy(attention: PerSequence, X: Float[Array, "N n d"]) -> Probe:
    r"""Mean entropy of attention rows over $\log n$: 1 is uniform, 0 one-hot (1 if $n=1$)."""

    def probe(params: Params) -> Float[Array, ""]:
        B = _over(attention, X, params)
        # 0 log 0 = 0; so written it is a fifth of xlogy's time
        rows = -jnp.sum(B * jnp.log(jnp.maximum(B, jnp.finfo(B.dtype).tiny)), axis=-1)
        return jnp.mean(rows) / jnp.log(B.shape[-1]) if B.shape[-1] > 1 else jnp.ones(())

    return probe


def attention_from_uniform(attention: PerSequence, X: Float[Array, "N n d"]) -> Probe:
    r"""Root mean square over samples of $\lVert B_n - \tfrac1n 11^\top\rVert_F$."""

    def probe(params: Params) -> Float[Array, ""]:
        B = _over(attention, X, params)
        return linalg.norm_fro(B - 1 / B.shape[-1]) / len(X) ** 0.5

    return probe


def dead_units(preactivation: PerSequence, X: Float[Array, "N n d"]) -> Probe:
    """Fraction of hidden units that are off for every token of every sample."""
    return lambda params: jnp.mean(jnp.all(_over(preactivation, X, params) <= 0, axis=(0, 1)))


def feature_matrix(features: PerSequence, X: Float[Array, "N n d"]) -> Probe:
    """The matrix whose rows are the features that the output weights see."""
    return lambda params: _over(features, X, params)


def feature_sigma_min(features: PerSequence, X: Float[Array, "N n d"]) -> Probe:
    r"""$\sigma_N(F)$ of the feature matrix, by SVD in float64; zero if the width is below N."""
    return lambda params: linalg.sigma_min(_over(features, X, params))


def feature_norm(features: PerSequence, X: Float[Array, "N n d"]) -> Probe:
    r"""$\lVert F\rVert$ of the feature matrix."""
    return lambda params: linalg.norm_op(_over(features, X, params))
