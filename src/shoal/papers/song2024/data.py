"""Data of song2024: synthetic tokens, the trap, and real text and pictures for both models."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import pathfinder, problems, reviews
from shoal._typing import Array, Float
from shoal.errors import InputError
from shoal.experiments import data_key
from shoal.files import cache_folder
from shoal.papers.song2024 import layer
from shoal.papers.song2024.layer import Weights
from shoal.problems import Problem

REAL = ("digits", "imdb", "rotten_tomatoes", "pathfinder")
SIDE = 32  # of a Pathfinder image


class Labelled(NamedTuple):
    """Sequences with two classes, split: rows of numbers, or numbers of a vocabulary."""

    train: np.ndarray  # (samples, tokens, numbers)
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    vocabulary: int  # 0 if tokens are vectors


def sizes_of(setting: Any) -> dict[str, int]:
    """Tokens and numbers a token that a real problem has."""
    if setting.problem == "digits":
        return {"num_tokens": 8, "dim": 8}
    if setting.problem == "pathfinder":
        _require_patch(setting.patch)
        return {"num_tokens": (SIDE // setting.patch) ** 2, "dim": setting.patch**2}
    return {"num_tokens": 256, "dim": 1}


def _require_patch(patch: int) -> None:
    if SIDE % patch:
        msg = f"patch={patch} does not divide Pathfinder's side of {SIDE}; try 1, 2, 4 or 8."
        raise InputError(msg)


def check(setting: Any, problem: Problem, vocabulary: int) -> None:
    """Refuse class numbers and tokens from outside that the classifier does not know."""
    y, X = np.asarray(problem.y), np.asarray(problem.X)
    if not np.isin(y, (0.0, 1.0)).all():
        msg = f"y holds {np.unique(y)[:4].tolist()}...; expected the class numbers 0 and 1."
        raise InputError(msg)
    if not vocabulary:
        return
    if X.shape[2] != 1 or (np.round(X) != X).any() or X.min() < 0 or X.max() >= vocabulary:
        msg = (
            f"X has shape {X.shape} and values from {X.min():g} to {X.max():g}; with "
            f"problem={setting.problem} tokens are whole numbers 0 .. {vocabulary - 1} of shape "
            "(samples, tokens, 1); for vectors set problem=digits."
        )
        raise InputError(msg)


def labelled(setting: Any) -> Labelled:
    """The real data of a setting (kept, since training and held-out data come from one split)."""
    return _labelled(
        setting.problem,
        setting.num_samples,
        setting.test_samples,
        setting.num_tokens,
        setting.patch,
        setting.difficulty,
        setting.classes,
        setting.data_seed,
    )


@functools.lru_cache(maxsize=4)
def _labelled(
    problem: str,
    num_train: int,
    num_test: int,
    length: int,
    patch: int,
    difficulty: str,
    classes: str,
    seed: int,
) -> Labelled:
    if problem in reviews.SOURCES:
        found = reviews.reviews(problem)
        train, test = reviews.split(found.labels, num_train, num_test, seed)
        tokens = [
            reviews.byte_tokens([found.texts[i] for i in part], length) for part in (train, test)
        ]
        return _joined(tokens[0], found.labels[train], tokens[1], found.labels[test])
    if problem == "pathfinder":
        return _pictures(num_train, num_test, patch, difficulty, seed)
    return _digit_rows(num_train, num_test, classes, seed)


def _joined(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray
) -> Labelled:
    """Token numbers as sequences of one number each."""
    return Labelled(
        train[..., None], train_labels, test[..., None], test_labels, reviews.VOCABULARY
    )


def _pictures(num_train: int, num_test: int, patch: int, difficulty: str, seed: int) -> Labelled:
    made = pathfinder.dataset(num_train + num_test, difficulty, seed, cache_folder() / "pathfinder")
    if patch == 1:
        pixels = made.images.reshape(len(made.images), -1).astype(np.int32) + 1
        return _joined(
            pixels[num_test:], made.labels[num_test:], pixels[:num_test], made.labels[:num_test]
        )
    pieces = np.asarray(problems.patches(jnp.asarray(made.images / 255.0, float), patch))
    return Labelled(
        pieces[num_test:], made.labels[num_test:], pieces[:num_test], made.labels[:num_test], 0
    )


def _digit_rows(num_train: int, num_test: int, classes: str, seed: int) -> Labelled:
    images, digits = problems.handwritten_digits()
    negative, positive = problems.two_classes(classes, np.unique(digits))
    keep = np.flatnonzero((digits == negative) | (digits == positive))
    train, test = reviews.split((digits[keep] == positive).astype(int), num_train, num_test, seed)
    labels = (digits[keep] == positive).astype(int)
    rows = images[keep]
    return Labelled(rows[train], labels[train], rows[test], labels[test], 0)


# ----------------------------------------------------------------------------------- problems


def classified(setting: Any, *, held_out: bool) -> Problem | None:
    """Training or held-out data for the classifier: token numbers or vectors, and class numbers."""
    found = labelled(setting)
    if held_out:
        if not len(found.test):
            return None
        return Problem(jnp.asarray(found.test, float), jnp.asarray(found.test_labels, float))
    return Problem(jnp.asarray(found.train, float), jnp.asarray(found.train_labels, float))


def embedded(setting: Any) -> Problem:
    r"""Real data for the layer: frozen random embeddings with positions, labels $\pm1$ in each row.

    Bytes become $E[\mathrm{byte}] + P[\mathrm{position}]$: such additive embeddings have at most
    (distinct bytes) + n - 1 independent rows, whatever their dimension.
    """
    found = labelled(setting)
    key = jax.random.fold_in(data_key(setting), 1)
    if found.vocabulary:
        tokens = jax.nn.one_hot(found.train[..., 0], found.vocabulary, dtype=float)
    else:
        tokens = jnp.asarray(found.train, float)
    X = problems.patch_embedding(key, tokens, setting.dim)
    y = jnp.asarray(2.0 * found.train_labels - 1, float)
    return Problem(X, jnp.broadcast_to(y[:, None, None], (*X.shape[:2], setting.out_dim)))


def synthetic(setting: Any, teacher: Any) -> Problem:
    """Gaussian tokens with Gaussian targets, or those of a teacher (a model and its weights)."""
    key_X, key_y = jax.random.split(data_key(setting))
    X = problems.gaussian_tokens(key_X, setting.num_samples, setting.num_tokens, setting.dim)
    if setting.tokens == "unit":
        X = problems.unit_tokens(X)
    elif setting.tokens == "scaled":
        X = X / setting.dim**0.5
    shape = (*X.shape[:2], setting.out_dim)
    if setting.labels == "gaussian":
        return Problem(X, setting.label_scale * jax.random.normal(key_y, shape, float))
    network, init = teacher
    weights = init(key_y, network.spec)
    Y = jax.vmap(network.apply, in_axes=(None, 0))(weights, X)
    return Problem(X, Y * (setting.label_scale / jnp.sqrt(jnp.mean(Y**2))))


# -------------------------------------------------------------------------------- the trap E1

TRAP_KEYS = (-2.0, -1.0, 1.0, 2.0)
TRAP_VALUES = (0.2, 2.0, 0.2, 0.5)
TRAP_TARGET, TRAP_QUERY = 0.3, 2.0


def trap() -> Problem:
    """Four tokens, the identity: every query is free, and one number is to be hit."""
    X: Float[Array, "N n d"] = jnp.eye(4)[None]
    return Problem(X, jnp.full((1, 4, 1), TRAP_TARGET))


def trap_weights() -> Weights:
    """The start from which softmax runs into a strict local minimum and the Gaussian does not."""
    column = (1, 4, 1)
    return layer.Weights(
        W_Q=jnp.full(column, TRAP_QUERY),
        W_K=jnp.array(TRAP_KEYS).reshape(column),
        W_V=jnp.array(TRAP_VALUES).reshape(column),
        W_O=jnp.ones((1, 1, 1)),
    )
