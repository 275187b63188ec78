r"""The small Transformer of the experiments: tokens in, class scores out.

Embedding and learned positions, pre-norm blocks (attention, then a feed-forward part, each added to
what came in), a last norm, mean over all positions (padding counts as zero) and a hidden layer
before the classes. Where a task asks for a class at every place (the next byte, symbols in another
order), the hidden layer reads the last tokens one by one instead of their mean. The paper gives 2
layers, 2 heads, width 64, hidden 128; the rest is that of Skyformer (Chen et al. 2021), which has
the same numbers. No dropout.
"""

from collections import namedtuple
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Float, PRNGKeyArray, Scalar
from shoal.papers.song2024.layer import Form

Weights = namedtuple(
    "Weights",
    "E P W_Q W_K W_V W_O b_Q b_K b_V b_O W_1 b_1 W_2 b_2 gain shift last_gain last_shift "
    "W_H b_H W_C b_C",
)
"""Parameters; `shapes` says which axes each has. ``E`` has one row for each token of a vocabulary,
or for each number of a token vector."""


class Design(NamedTuple):
    """What the weights' shapes do not say: attention, tokens, and the switches of depth."""

    form: Form
    vocabulary: bool = False  # Tokens are numbers of a vocabulary, 0 is padding.
    residual: Scalar | bool = True  # 1 or 0: the share of a part's input that is added to it.
    norm: bool = True  # Layer norm before each part.
    causal: bool = False  # A token sees itself and those before it.
    answers: int = 0  # How many of the last tokens have class scores of their own; 0: their mean.


def shapes(
    *, rows: int, positions: int, num_layers: int, num_heads: int, width: int, hidden: int,
    classes: int = 2,
) -> Weights:  # fmt: skip
    """Shapes of all weights; ``rows`` is the size of the vocabulary or of a token vector.

    A leading axis ``L`` is the layer, ``H`` the head.
    """
    L, H, D, m, C, k = num_layers, num_heads, width, hidden, classes, width // num_heads
    scores, bias = (L, H, D, k), (L, H, k)
    return Weights(
        E=(rows, D), P=(positions, D),
        W_Q=scores, W_K=scores, W_V=scores, W_O=(L, H, k, D),
        b_Q=bias, b_K=bias, b_V=bias, b_O=(L, D),
        W_1=(L, D, m), b_1=(L, m), W_2=(L, m, D), b_2=(L, D),
        gain=(L, 2, D), shift=(L, 2, D), last_gain=(D,), last_shift=(D,),
        W_H=(D, m), b_H=(m,), W_C=(m, C), b_C=(C,),
    )  # fmt: skip


def waves(places: Float[Array, " n"], width: int) -> Float[Array, "n width"]:
    r"""Sines and cosines of a place, with frequencies $10000^{-2k/w}$ (Vaswani et al. 2017).

    >>> waves(jnp.array([0.0, 1.0]), 2).round(3).tolist()
    [[0.0, 1.0], [0.841, 0.54]]
    """
    half = -(-width // 2)
    angle = places[:, None] * 10000.0 ** (-jnp.arange(half) / half)[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)[:, :width]


def sinusoidal(spec: Any, columns: int) -> Float[Array, "positions D"]:
    """A table of positions made of waves: along a text, or over the rows and columns of a picture.

    ``columns`` is the number of tokens in a row of the picture, 0 for a text.
    """
    places, width = jnp.arange(spec.shape[0], dtype=spec.dtype), spec.shape[1]
    if not columns:
        return waves(places, width)
    row, column = jnp.divmod(places, columns)
    return jnp.hstack([waves(row, width // 2), waves(column, width - width // 2)])


def initial(
    key: PRNGKeyArray, spec: Weights, *, score_scale: Scalar, embedding_scale: Scalar,
    places: Float[Array, "positions D"] | None,
) -> Weights:  # fmt: skip
    """Tables of standard deviation 0.02, matrices of variance 1 / (3 fan_in) as in PyTorch.

    ``score_scale`` multiplies query and key weights; ``places`` is the table of positions to begin
    with instead of a random one. Biases start at zero, gains at one. With small tables the first
    attention output, nearly the same for all tokens, drowns what tells them apart.
    """
    keys = jax.random.split(key, len(spec))

    def draw(name: str, key: PRNGKeyArray, block: Any) -> Array:
        noise = jax.random.normal(key, block.shape, block.dtype)
        if name == "P" and places is not None:
            return places
        if name in ("E", "P"):
            return embedding_scale * noise
        if name.endswith("gain"):
            return jnp.ones(block.shape, block.dtype)
        if not name.startswith("W"):
            return jnp.zeros(block.shape, block.dtype)
        fan_in = block.shape[-2] * (block.shape[1] if name == "W_O" else 1)
        return noise / (3 * fan_in) ** 0.5 * (score_scale if name in ("W_Q", "W_K") else 1.0)

    return Weights(*(draw(n, k, b) for n, k, b in zip(Weights._fields, keys, spec, strict=True)))


def _norm(x: Float[Array, "n D"], gain: Array, shift: Array) -> Float[Array, "n D"]:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
    return centred * scale * gain[None] + shift[None]


def _embedded(params: Weights, x: Float[Array, "n d"], design: Design) -> tuple:
    """Token vectors with positions (n, D), and the mask of padding (n,) if there is any."""
    P = params.P[: len(x)]
    if not design.vocabulary:
        return x @ params.E + P, None
    tokens = x[:, 0].astype(jnp.int32)
    return params.E[tokens] + P, (tokens > 0).astype(x.dtype)


def _seen_by(mask: Array | None, x: Float[Array, "n D"]) -> Float[Array, "n n"]:
    """1 where the token of a row sees that of a column: itself, and those before it."""
    before = jnp.tril(jnp.ones((len(x), len(x)), x.dtype))
    return before if mask is None else before * mask[None]


def _attended(
    params: Weights, x: Float[Array, "n D"], mask: Array | None, form: Form, index: int
) -> tuple[Float[Array, "H n n"], Float[Array, "n D"]]:
    """Attention weights of one layer, and its output."""

    def heads(W: Array, b: Array) -> Float[Array, "H n k"]:
        return jnp.einsum("nD,HDk->Hnk", x, W[index]) + b[index][:, None]

    Q, K = heads(params.W_Q, params.b_Q), heads(params.W_K, params.b_K)
    S = form.kernel.weights(Q, K, form.bandwidth, mask)
    mixed = S @ heads(params.W_V, params.b_V)
    return S, jnp.einsum("Hnk,HkD->nD", mixed, params.W_O[index]) + params.b_O[index][None]


def layer_inputs(
    params: Weights, x: Float[Array, "n d"], design: Design
) -> tuple[list[tuple[Array, Array]], Array, Array | None]:
    """For each layer its attention weights and the tokens that they mix; the end; the mask."""
    x, mask = _embedded(params, x, design)
    sees = _seen_by(mask, x) if design.causal else mask
    seen = []
    for index in range(len(params.W_Q)):
        gain, shift = params.gain[index], params.shift[index]
        z = _norm(x, gain[0], shift[0]) if design.norm else x
        S, out = _attended(params, z, sees, design.form, index)
        seen.append((S, z))
        x = design.residual * x + out
        z = _norm(x, gain[1], shift[1]) if design.norm else x
        hidden = jax.nn.gelu(z @ params.W_1[index] + params.b_1[index][None], approximate=False)
        x = design.residual * x + (hidden @ params.W_2[index] + params.b_2[index][None])
    return seen, x, mask


def class_scores(
    params: Weights, x: Float[Array, "n d"], design: Design
) -> Float[Array, " C"] | Float[Array, "answers C"]:
    """One sequence in, a score for each class out, or one row of them for each answer."""
    _, x, mask = layer_inputs(params, x, design)
    x = _norm(x, params.last_gain, params.last_shift) if design.norm else x
    if design.answers:
        hidden = jax.nn.relu(x[-design.answers :] @ params.W_H + params.b_H[None])
        return hidden @ params.W_C + params.b_C[None]
    pooled = jnp.mean(x if mask is None else x * mask[:, None], axis=0)
    return jax.nn.relu(pooled @ params.W_H + params.b_H) @ params.W_C + params.b_C


def last_features(params: Weights, X: Float[Array, "N n d"], design: Design) -> Float[Array, "R C"]:
    r"""$B=[S_1X|\dots|S_HX]$ of the last layer, $X$ the tokens that enter its attention."""

    def one(x: Float[Array, "n d"]) -> Float[Array, "n C"]:
        S, z = layer_inputs(params, x, design)[0][-1]
        return jnp.einsum("Hnm,mD->nHD", S, z).reshape(len(z), -1)

    rows = jax.vmap(one)(X)
    return rows.reshape(-1, rows.shape[-1])
