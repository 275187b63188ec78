"""Data of song2024: synthetic tokens, the trap, and real text and pictures for both models."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import pathfinder, problems, reviews
from shoal._typing import Array, Callable, Float, PRNGKeyArray
from shoal.errors import InputError
from shoal.files import cache_folder
from shoal.models import predict
from shoal.papers.song2024.layer import Weights, values
from shoal.problems import Problem

REAL = ("digits", "imdb", "rotten_tomatoes", "pathfinder")
SIDE = 32
"""Pixels along a side of a Pathfinder image."""


def sizes_of(setting: Any) -> dict[str, int]:
    """Number of tokens, and of numbers in a token, of a real problem."""
    if setting.problem == "digits":
        return {"num_tokens": 8, "dim": 8}
    if setting.problem == "pathfinder":
        if SIDE % (patch := setting.patch):
            raise InputError(
                f"{patch=} does not divide Pathfinder's side of {SIDE}; try 1, 2, 4 or 8."
            )
        return {"num_tokens": (SIDE // patch) ** 2, "dim": patch**2}
    return {"num_tokens": 256, "dim": 1}


def check(setting: Any, problem: Problem) -> None:
    """Refuse class numbers and tokens from outside that the classifier does not know."""
    y, X, most = np.asarray(problem.y), np.asarray(problem.X), reviews.VOCABULARY
    if not np.isin(y, (0.0, 1.0)).all():
        some = np.unique(y)[:4].tolist()
        raise InputError(f"y holds {some}...; expected the class numbers 0 and 1.")
    known = X.shape[2] == 1 and (np.round(X) == X).all() and X.min() >= 0 and X.max() < most
    if setting.has_vocabulary and not known:
        raise InputError(
            f"X has shape {X.shape} and values from {X.min():g} to {X.max():g}; with "
            f"problem={setting.problem} tokens are whole numbers 0 .. {most - 1} of shape "
            "(samples, tokens, 1); for vectors set problem=digits."
        )


@functools.lru_cache(maxsize=2)
def labelled(setting: Any) -> tuple[Problem, Problem]:
    """Real token numbers or vectors with class numbers 0 and 1, for training and held out.

    Kept, since both parts come from one split.
    """
    counts, seed = (setting.num_samples, setting.test_samples), setting.data_seed
    if setting.problem == "pathfinder":
        folder = cache_folder() / "pathfinder"
        made = pathfinder.dataset(sum(counts), setting.difficulty, seed, folder)
        X, labels = made.images.reshape(len(made.images), -1, 1) + 1.0, made.labels
        if not setting.has_vocabulary:  # patches as vectors, not pixels as numbers
            X = np.asarray(problems.patches(jnp.asarray(made.images / 255.0, float), setting.patch))
        test, train = np.split(np.arange(len(labels)), [counts[1]])
    elif setting.problem == "digits":
        images, digits = problems.handwritten_digits()
        negative, positive = problems.two_classes(setting.classes, np.unique(digits))
        keep = np.flatnonzero((digits == negative) | (digits == positive))
        X, labels = images[keep], (digits[keep] == positive).astype(int)
        train, test = reviews.split(labels, *counts, seed)
    else:
        texts, labels = reviews.reviews(setting.problem)
        train, test = reviews.split(labels, *counts, seed)
        X = np.zeros((len(texts), setting.num_tokens, 1), np.int32)
        for part in (train, test):
            X[part, :, 0] = reviews.byte_tokens([texts[i] for i in part], setting.num_tokens)

    def problem(rows: np.ndarray) -> Problem:
        return Problem(jnp.asarray(X[rows], float), jnp.asarray(labels[rows], float))

    return problem(train), problem(test)


def embedded(setting: Any, key: PRNGKeyArray) -> Problem:
    r"""Real data for the layer: frozen random embeddings with positions, labels $\pm1$ in each row.

    Bytes become $E[\mathrm{byte}] + P[\mathrm{position}]$: such additive embeddings have at most
    (distinct bytes) + n - 1 independent rows, whatever their dimension.
    """
    tokens, labels = labelled(setting)[0].X, labelled(setting)[0].y
    if setting.has_vocabulary:
        tokens = jax.nn.one_hot(tokens[..., 0].astype(int), reviews.VOCABULARY, dtype=float)
    X = problems.patch_embedding(jax.random.fold_in(key, 1), tokens, setting.dim)
    y = 2.0 * labels[:, None, None] - 1
    return Problem(X, jnp.broadcast_to(y, (*X.shape[:2], setting.out_dim)))


def synthetic(setting: Any, key: PRNGKeyArray, own: Callable[[], Weights]) -> Problem:
    """Gaussian (or identity) tokens with the targets that ``labels`` names.

    ``own()`` are the weights of the seed whose number is ``data_seed``: a mixture mixes their
    values, and a ``query`` teacher has their keys and values.
    """
    key_X, key_y = jax.random.split(key)
    X = _tokens(setting, key_X)
    shape = (*X.shape[:2], setting.out_dim)
    if setting.labels == "gaussian":
        return Problem(X, setting.label_scale * jax.random.normal(key_y, shape, float))
    if setting.labels == "mixture":
        shares = jax.random.dirichlet(key_y, jnp.full(setting.num_tokens, 5.0), shape[:2])
        U = jnp.sum(jax.vmap(values, in_axes=(None, 0))(own(), X), axis=1)
        return Problem(X, setting.row_sum * shares @ U)
    teacher = setting.replace(kernel=setting.teacher_kernel or setting.kernel)
    if setting.labels == "query":
        weights = own()._replace(W_Q=teacher.weights(key_y).W_Q)
        return Problem(X, predict(teacher.network(), weights, X))
    teacher = teacher.replace(init="gaussian", value_scale=1.0, output_scale=1.0)
    Y = predict(teacher.network(), teacher.weights(key_y), X)
    return Problem(X, Y * (setting.label_scale / jnp.sqrt(jnp.mean(Y**2))))


def _tokens(setting: Any, key: PRNGKeyArray) -> Float[Array, "N n d"]:
    if setting.tokens == "identity":
        return jnp.tile(jnp.eye(setting.num_tokens), (setting.num_samples, 1, 1))
    X = problems.gaussian_tokens(key, setting.num_samples, setting.num_tokens, setting.dim)
    if setting.tokens == "unit":
        return problems.unit_tokens(X)
    return X / setting.dim**0.5 if setting.tokens == "scaled" else X


TRAP_KEYS = (-2.0, -1.0, 1.0, 2.0)
TRAP_VALUES = (0.2, 2.0, 0.2, 0.5)
TRAP_TARGET, TRAP_QUERY = 0.3, 2.0


def trap() -> Problem:
    """Four tokens, the identity: every query is free, and all have to reach the same number."""
    return Problem(jnp.eye(4)[None], jnp.full((1, 4, 1), TRAP_TARGET))


def trap_weights(key: PRNGKeyArray | None = None) -> Weights:
    """The start from which softmax runs into a strict local minimum and the Gaussian does not.

    With a key, a neighbour of it: keys, values and queries moved a little.
    """
    keys, values, query = jnp.array(TRAP_KEYS), jnp.array(TRAP_VALUES), jnp.asarray(TRAP_QUERY)
    if key is not None:
        a, b, c = jax.random.split(key, 3)
        keys = keys + 0.03 * jax.random.normal(a, (4,))
        values = values * (1 + 0.03 * jax.random.normal(b, (4,)))
        query = query + jax.random.uniform(c, (), minval=-0.5, maxval=1.0)
    W_Q, W_K, W_V = (jnp.broadcast_to(z, 4).reshape(1, 4, 1) for z in (query, keys, values))
    return Weights(W_Q, W_K, W_V, W_O=jnp.ones((1, 1, 1)))
