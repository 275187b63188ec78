r"""The encoder with depth, and its decoder (causal) form; both ours.

The paper has one encoder layer. Here a layer that is not the last puts its hidden units back into
the tokens' dimension, with a residual connection if $\epsilon=1$:

$$ X_{l+1} = \epsilon X_l + \tau_1\,\mathrm{relu}(B_lX_lW_{V,l}^\top)W_{D,l}^\top, $$

and the last is the paper's. In the causal form token $i$ attends to tokens up to $i$ only. One
layer that is not causal is the paper's network.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Float
from shoal.attention import MASKED_SCORE, softmax


class DeepWeights(NamedTuple):
    """The parameters: the paper's letters with a leading axis of depth, and the maps back."""

    W_Q: Float[Array, "*lead L m d"]
    W_K: Float[Array, "*lead L m d"]
    W_V: Float[Array, "*lead L m d"]
    W_D: Float[Array, "*lead K d m"]
    w_O: Float[Array, "*lead m"]


class Form(NamedTuple):
    """What the layers share."""

    scales: Any
    causal: bool
    residual: bool


def stacked(params: Any) -> DeepWeights:
    """One layer's weights as those of a network of one layer; they may be NumPy arrays."""
    params = jax.tree.map(jnp.asarray, params)
    if isinstance(params, DeepWeights):
        return params
    m, d = params.W_V.shape
    nothing = jnp.zeros((0, d, m), params.W_V.dtype)
    Q, K, V, w = params
    return DeepWeights(W_Q=Q[None], W_K=K[None], W_V=V[None], W_D=nothing, w_O=w)


def attention(W_Q: Array, W_K: Array, X: Float[Array, "n d"], form: Form) -> Float[Array, "n n"]:
    """Attention weights of one layer."""
    scores = form.scales.score * (X @ (W_Q.T @ W_K) @ X.T)
    if form.causal:
        scores = jnp.where(jnp.tri(len(X), dtype=bool), scores, MASKED_SCORE)
    return softmax(scores)


def into_last(params: DeepWeights, X: Float[Array, "n d"], form: Form) -> Float[Array, "n d"]:
    """The tokens that the last layer sees."""

    def step(x: Array, W: tuple[Array, ...]) -> tuple[Array, None]:
        W_Q, W_K, W_V, W_D = W
        hidden = jax.nn.relu(attention(W_Q, W_K, x, form) @ x @ W_V.T)
        branch = form.scales.output * (hidden @ W_D.T)
        return (x + branch if form.residual else branch), None

    before = (*(W[:-1] for W in params[:3]), params.W_D)
    return jax.lax.scan(step, X, before)[0]


def last_attention(params: Any, X: Float[Array, "n d"], form: Form) -> Float[Array, "n n"]:
    """Attention weights of the last layer."""
    params = stacked(params)
    return attention(params.W_Q[-1], params.W_K[-1], into_last(params, X, form), form)


def preactivation(params: Any, X: Float[Array, "n d"], form: Form) -> Float[Array, "n m"]:
    """Hidden units of the last layer before ReLU."""
    params = stacked(params)
    x = into_last(params, X, form)
    return (attention(params.W_Q[-1], params.W_K[-1], x, form) @ x) @ params.W_V[-1].T


def features(params: Any, X: Float[Array, "n d"], form: Form) -> Float[Array, " m"]:
    """What the output weights see."""
    active = jax.nn.relu(preactivation(params, X, form))
    return form.scales.output * form.scales.pool * jnp.sum(active, axis=0)
