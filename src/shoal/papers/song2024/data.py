"""Data of song2024: synthetic tokens, the trap, and real text and pictures for both models."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import mnist, pathfinder, problems, reviews
from shoal._typing import Array, Callable, Float, PRNGKeyArray
from shoal.errors import InputError
from shoal.files import cache_folder
from shoal.linalg import norm_fro
from shoal.models import predict
from shoal.papers.song2024 import bounds
from shoal.papers.song2024.layer import Weights, values
from shoal.problems import Problem

TEXTS = ("imdb", "rotten_tomatoes")
PICTURES = ("mnist", "fashion_mnist")
SEQUENCES = ("reverse", "sort")
WITH_CLASSES = ("digits", "pathfinder", *TEXTS, *PICTURES, "next_byte", *SEQUENCES)
"""Problems of the classifier: real data, and two sequence-to-sequence tasks."""
SYMBOLS = 10
"""Symbols of a sequence, where nothing else is said."""


def side_of(setting: Any) -> int:
    """Pixels along a side of a picture; 0 for other problems."""
    return {"pathfinder": pathfinder.SIZE}.get(setting.problem, mnist.SIDE * is_picture(setting))


def is_picture(setting: Any) -> bool:
    """Whether the problem is MNIST or Fashion-MNIST."""
    return setting.problem in PICTURES


def sizes_of(setting: Any) -> dict[str, int]:
    """Number of tokens, and of numbers in a token, of a problem with classes."""
    if setting.problem == "digits":
        return {"num_tokens": 8, "dim": 8}
    if side := side_of(setting):
        if side % (patch := setting.patch):
            fit = ", ".join(str(k) for k in range(1, 9) if side % k == 0)
            raise InputError(f"{patch=} does not divide a side of {side} pixels; try {fit}.")
        return {"num_tokens": (side // patch) ** 2, "dim": patch**2}
    usual = {"next_byte": 64} | dict.fromkeys(SEQUENCES, 16)
    return {"num_tokens": usual.get(setting.problem, 256), "dim": 1}


def token_kinds(setting: Any) -> int:
    """Size of the table of tokens: bytes and padding, or words or symbols and two more."""
    if setting.problem in SEQUENCES:
        return (setting.vocabulary or SYMBOLS) + 2
    words = setting.vocabulary if setting.problem in TEXTS else 0
    return words + 2 if words else reviews.VOCABULARY


def num_classes(setting: Any) -> int:
    """Classes between which a score decides: tokens, where the answers are tokens."""
    if answers(setting):
        return token_kinds(setting)
    return mnist.CLASSES if is_picture(setting) and setting.classes == "all" else 2


def answers(setting: Any, num_tokens: int | None = None) -> int:
    """How many of the last tokens are asked for a class; 0 where the sequence has one class.

    The first half of a sequence of symbols is given, the second half asks. Bytes all ask.
    """
    count = num_tokens or setting.num_tokens or 2
    if setting.problem == "next_byte":
        return count
    return count // 2 if setting.problem in SEQUENCES else 0


def check(setting: Any, problem: Problem) -> None:
    """Refuse class numbers and tokens from outside that the classifier does not know."""
    y, X = np.asarray(problem.y), np.asarray(problem.X)
    kinds, last = token_kinds(setting), num_classes(setting) - 1
    if (asked := answers(setting, X.shape[1])) and y.shape != (len(X), asked):
        msg = f"Y has shape {y.shape}; expected a class for each of the last {asked} tokens."
        raise InputError(msg)
    if not (np.isfinite(y).all() and (np.round(y) == y).all() and 0 <= y.min() <= y.max() <= last):
        some = np.unique(y)[:4].tolist()
        known_classes = "0 and 1" if last == 1 else f"0 .. {last}"
        raise InputError(f"y holds {some}...; expected the class numbers {known_classes}.")
    known = X.shape[2] == 1 and (np.round(X) == X).all() and 0 <= X.min() <= X.max() < kinds
    if setting.has_vocabulary and not known:
        raise InputError(
            f"X has shape {X.shape} and values from {X.min():g} to {X.max():g}; with "
            f"problem={setting.problem} tokens are whole numbers 0 .. {kinds - 1} of shape "
            "(samples, tokens, 1); for vectors set problem=digits."
        )


Part = tuple[np.ndarray, np.ndarray]
"""Tokens (samples, tokens, dim) and classes."""


@functools.lru_cache(maxsize=2)
def labelled(setting: Any) -> tuple[Problem, Problem]:
    """Tokens with class numbers, for training and held out.

    Kept, since both parts come from one split. Shuffled classes belong to other samples: what is
    left to learn is how often each of them occurs.
    """
    problem = setting.problem
    if problem == "pathfinder":
        train, test = _pathfinder(setting)
    elif problem == "digits":
        train, test = _digits(setting)
    elif problem in PICTURES:
        train, test = _pictures(setting)
    elif problem in SEQUENCES:
        train, test = _sequences(setting)
    elif problem == "next_byte":
        train, test = _windows(setting)
    else:
        train, test = _reviews(setting)
    if setting.shuffled:
        order = np.random.default_rng([setting.data_seed, 6]).permutation(len(train[1]))
        train = train[0], train[1][order]
    parts = (Problem(jnp.asarray(X, float), jnp.asarray(y, float)) for X, y in (train, test))
    return next(parts), next(parts)


def _digits(setting: Any) -> tuple[Part, Part]:
    images, digits = problems.handwritten_digits()
    negative, positive = problems.two_classes(setting.classes, np.unique(digits))
    keep = np.flatnonzero((digits == negative) | (digits == positive))
    X, labels = images[keep], (digits[keep] == positive).astype(int)
    counts = setting.num_samples, setting.test_samples
    train, test = reviews.split(labels, *counts, setting.data_seed)
    return (X[train], labels[train]), (X[test], labels[test])


def _pathfinder(setting: Any) -> tuple[Part, Part]:
    count, held_out = setting.num_samples, setting.test_samples
    folder, seed = cache_folder() / "pathfinder", setting.data_seed
    made = pathfinder.dataset(count + held_out, setting.difficulty, seed, folder)
    X, y = made.images.reshape(len(made.images), -1, 1) + 1.0, made.labels
    if not setting.has_vocabulary:  # patches as vectors, not pixels as numbers
        X = _patches(made.images, setting.patch)
    return (X[held_out:], y[held_out:]), (X[:held_out], y[:held_out])


def _pictures(setting: Any) -> tuple[Part, Part]:
    """Training images of the training file, held-out ones of the test file."""

    def part(found: mnist.Pictures, num_train: int, num_test: int) -> Part:
        images, labels = found
        if setting.classes != "all":
            negative, positive = problems.two_classes(setting.classes, np.unique(labels))
            keep = np.flatnonzero((labels == negative) | (labels == positive))
            images, labels = images[keep], (labels[keep] == positive).astype(int)
        rows = np.concatenate(reviews.split(labels, num_train, num_test, setting.data_seed))
        return _patches(images[rows], setting.patch), labels[rows]

    train, test = mnist.pictures(setting.problem, setting.folder)
    return part(train, setting.num_samples, 0), part(test, 0, setting.test_samples)


def _patches(images: np.ndarray, size: int) -> np.ndarray:
    """Patches of images of bytes, values in [0, 1]."""
    return np.asarray(problems.patches(jnp.asarray(images / 255.0, float), size))


def _reviews(setting: Any) -> tuple[Part, Part]:
    """Reviews as bytes, or as the words that are most frequent in the training part."""
    texts, labels = reviews.reviews(setting.problem)
    counts, length = (setting.num_samples, setting.test_samples), setting.num_tokens
    parts = reviews.split(labels, *counts, setting.data_seed)
    chosen = [[texts[i] for i in rows] for rows in parts]
    if setting.vocabulary:
        known = reviews.vocabulary(chosen[0], setting.vocabulary)
        tokens = [reviews.word_tokens(some, length, known) for some in chosen]
    else:
        tokens = [reviews.byte_tokens(some, length) for some in chosen]
    train, test = ((X[..., None], labels[rows]) for X, rows in zip(tokens, parts, strict=True))
    return train, test


def _windows(setting: Any) -> tuple[Part, Part]:
    """A window of bytes from each of some IMDb reviews, and the bytes that follow each of its."""
    whole, classes = reviews.reviews("imdb")
    length, seed = setting.num_tokens + 1, setting.data_seed
    texts = [text for text in whole if len(text) >= length]
    labels = classes[[len(text) >= length for text in whole]]
    if len(set(labels.tolist())) < 2:
        raise InputError(f"hardly any review has {length} bytes; try fewer tokens.")
    generator = np.random.default_rng([seed, 5])

    def part(rows: np.ndarray) -> Part:
        tokens = reviews.byte_windows([texts[i] for i in rows], length, generator)
        return tokens[:, :-1, None], tokens[:, 1:]

    train, test = reviews.split(labels, setting.num_samples, setting.test_samples, seed)
    return part(train), part(test)


def _sequences(setting: Any) -> tuple[Part, Part]:
    """Random symbols 1 .. V, then as many tokens V + 1 that ask for them in another order."""
    symbols, asked = token_kinds(setting) - 2, answers(setting)
    counts = setting.num_samples, setting.test_samples
    generator = np.random.default_rng([setting.data_seed, 7])
    given = generator.integers(1, symbols + 1, (sum(counts), asked))
    y = given[:, ::-1] if setting.problem == "reverse" else np.sort(given, axis=1)
    X = np.hstack([given, np.full_like(given, symbols + 1)])[..., None]
    return (X[: counts[0]], y[: counts[0]]), (X[counts[0] :], y[counts[0] :])


def embedded(setting: Any, key: PRNGKeyArray) -> Problem:
    r"""Real data for the layer: frozen random embeddings with positions, labels $\pm1$ in each row.

    Bytes become $E[\mathrm{byte}] + P[\mathrm{position}]$: such additive embeddings have at most
    (distinct bytes) + n - 1 independent rows, whatever their dimension.
    """
    tokens, labels = labelled(setting)[0].X, labelled(setting)[0].y
    if setting.has_vocabulary:
        tokens = jax.nn.one_hot(tokens[..., 0].astype(int), token_kinds(setting), dtype=float)
    X = problems.patch_embedding(jax.random.fold_in(key, 1), tokens, setting.dim)
    y = 2.0 * labels[:, None, None] - 1
    return Problem(X, jnp.broadcast_to(y, (*X.shape[:2], setting.out_dim)))


def synthetic(setting: Any, key: PRNGKeyArray, own: Callable[[], Weights]) -> Problem:
    """Gaussian (or identity) tokens with the targets that ``labels`` names.

    ``own()`` are the weights of the seed whose number is ``data_seed``: a mixture mixes their
    values, a ``query`` teacher has their keys and values, and ``near`` targets lie beside their
    outputs.
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
    if setting.labels == "near":
        return Problem(X, _near(setting, own(), X, key_y))
    teacher = setting.replace(kernel=setting.teacher_kernel or setting.kernel)
    if setting.labels == "query":
        weights = own()._replace(W_Q=teacher.weights(key_y).W_Q)
        return Problem(X, predict(teacher.network(), weights, X))
    teacher = teacher.replace(init="gaussian", value_scale=1.0, output_scale=1.0)
    Y = predict(teacher.network(), teacher.weights(key_y), X)
    return Problem(X, Y * (setting.label_scale / jnp.sqrt(jnp.mean(Y**2))))


class _Start(NamedTuple):
    """What the constants of a theorem look at, before there is a setup."""

    setting: Any
    network: Any
    params0: Weights
    inputs: Array
    targets: Array


def _near(setting: Any, start: Weights, X: Float[Array, "N n d"], key: PRNGKeyArray) -> Array:
    r"""Targets in a random direction from the outputs of a start.

    With ``near_share`` 1 they are just near enough for theorem 3: $F_0=0.999\,\mu_0R_J^2/32$. Rows
    of normalised attention mix values, so their targets stay in the affine hull of the values.
    """
    network = setting.network()
    M = predict(network, start, X)
    noise = jax.random.normal(key, M.shape, float)
    if setting.form.kernel.normalised:
        U = jnp.sum(jax.vmap(values, in_axes=(None, 0))(start, X), axis=1)
        noise = jax.random.normal(key, (*X.shape[:2], X.shape[1]), float) @ bounds.centred(U)
    most = bounds.query_constants(_Start(setting, network, start, X, M))["threshold"]
    most = jnp.where(most > 0, most, 1e-12 * jnp.sum(M**2))  # not certified at any distance
    far = setting.near_share * jnp.sqrt(2 * 0.999 * most)
    return M + far * noise / norm_fro(noise)


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
