"""Questions to decide, made of a function of weights, frozen arrays and one sample."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.verified.facts import Question
from shoal.verified.fate import Range
from shoal.verified.translate import translate
from shoal.verified.values import Weight


def program(function, weights, frozen, x):
    """The program of ``function(weights, frozen, x)``; weights are trained, the rest is not."""
    closed = jax.make_jaxpr(function)(weights, frozen, x)
    leaves = [Weight(k) for k in range(len(weights))]
    leaves += [np.asarray(a) for a in jax.tree.leaves((frozen, x))]
    return translate(closed, leaves)[0]


def question(function, weights, xs, ys, step, *, frozen=(), ratios=None, scale=1.0):
    """A question with one program per sample."""
    weights = tuple(np.asarray(w, float) for w in weights)
    frozen = tuple(np.asarray(w, float) for w in frozen)
    programs = tuple(program(function, weights, frozen, x) for x in xs)
    ratios = np.ones(len(weights)) if ratios is None else np.asarray(ratios, float)
    targets = tuple(np.asarray(y, float).ravel() for y in ys)
    return Question(programs, weights, targets, ratios, Range(scale, scale), step)


# ------------------------------------------------------------- the worked examples of the theory


def product(step=0.5, ratios=None):
    """E1."""
    return question(lambda w, _, x: w[0] * w[1] * x, (1.2, 0.8), [1.0], [1.0], step, ratios=ratios)


def network(y):
    """E2."""
    W = [[0.5, -1, 0.25], [1, 0.5, -0.75]]
    weights = W, [0.1, -0.2, 0.3], [1, -0.5, 0.75]
    xs = np.array([[1, 0.5], [-0.5, 1]])
    return question(lambda w, _, x: jnp.tanh(x @ w[0] + w[1]) @ w[2], weights, xs, y, 0.2)


def trap(queries=1.4143576):
    """E3 and E4: only the queries of an attention layer are trained."""
    keys, values = [[-2], [-1], [1], [2]], [[0.2], [2], [0.2], [0.5]]

    def layer(w, frozen, x):
        K, V = frozen
        return (jax.nn.softmax((x @ w[0]) @ (x @ K).T, axis=-1) @ (x @ V))[:, 0]

    start = (np.full((4, 1), queries),)
    return question(layer, start, [np.eye(4)], [np.full(4, 0.3)], 0.5, frozen=(keys, values))


def kinked():
    """E5."""
    weights = [[0.5, -0.25], [0.25, 0.5]], [1, 1]
    return question(
        lambda w, _, x: jax.nn.relu(x @ w[0]) @ w[1], weights, [np.ones(2)], [0.95], 0.2
    )


def attention():
    """E6."""

    def layer(w, _, x):
        Q, K, V = (x @ each[:, None] for each in w)
        return (jax.nn.softmax(Q @ K.T, axis=-1) @ V)[:, 0]

    weights = [1, 0.5], [0.5, -1], [1, 2]
    return question(layer, weights, [np.eye(2)], [[1.19, 1.31]], 0.1)


def ridge():
    """E7: f = (u, u^2), u = ab."""

    def pair(w, _, x):
        u = w[0] * w[1] * x
        return jnp.stack([u, u * u])

    return question(pair, (1.0, 0.6), [1.0], [[1.0, 0.0]], 0.2)
