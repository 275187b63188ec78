"""Problems: inputs and their targets, made by formulas or read from files."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal._typing import Any, Array, Callable, Float, PRNGKeyArray, Scalar
from shoal.errors import InputError


class Problem(NamedTuple):
    """Data: N sequences of n tokens in dimension d, and their targets.

    A target is a number (a class number, for a classifier), a matrix with a row for each token, or
    one row for the whole sequence. Some models take a query ``q`` for each sequence; without one
    the query is the last token.
    """

    X: Float[Array, "N n d"]
    y: Float[Array, "N ..."]
    q: Float[Array, "N d"] | None = None

    @property
    def inputs(self) -> Any:
        """What a model sees: the sequences, with their queries if there are any."""
        return self.X if self.q is None else (self.X, self.q)


class Samples(NamedTuple):
    """Data of any shape: a tree of arrays with a leading axis of samples, and targets."""

    x: Any
    y: Any

    @property
    def inputs(self) -> Any:
        """What a model sees."""
        return self.x


def require_finite(array: np.ndarray, what: str, precision: str = "float64") -> None:
    """Refuse what is not finite, or would not be in the working precision."""
    with np.errstate(over="ignore"):
        bad = int((~np.isfinite(array.astype(precision))).sum())
    if bad:
        msg = f"{what} has {bad} entries that are NaN or infinite in {precision}; clean the data."
        raise InputError(msg)


def checked(
    X: np.ndarray, y: np.ndarray, q: np.ndarray | None = None, *,
    where: str, precision: str = "float64", target: str = "y",
) -> Problem:  # fmt: skip
    """Make a problem of arrays from outside, or say what is wrong with them.

    ``target`` is ``y`` for one number per sample, ``Y`` for one row per token or sample.
    """
    arrays = (X, y) if q is None else (X, y, q)
    for name, array in zip(("X", target, "q"), arrays, strict=False):
        if array.dtype.kind not in "fiu":
            raise InputError(f"{where}: {name} holds {array.dtype}; expected real numbers.")
        require_finite(array, f"{where}: {name}", precision)
    if X.ndim != 3 or 0 in X.shape:
        msg = f"{where}: X has shape {X.shape}; expected (samples, tokens, dim), none of them 0."
        raise InputError(msg)
    N, n = X.shape[:2]
    if target == "y" and y.shape != (N,):
        raise InputError(f"{where}: y has shape {y.shape}, but X has {N} samples; expected ({N},).")
    if target == "Y" and (y.shape[:-1] not in ((N, n), (N,)) or 0 in y.shape):
        msg = f"{where}: Y has shape {y.shape}; with this X it should be ({N}, {n}, outputs)."
        raise InputError(msg)
    if q is not None and q.shape != (N, X.shape[2]):
        msg = f"{where}: q has shape {q.shape}; with this X it should be ({N}, {X.shape[2]})."
        raise InputError(msg)
    return Problem(*(np.asarray(array, float) for array in arrays))  # type: ignore[arg-type]


def read_problem(
    path: str | Path, target: str, precision: str = "float64", *, queries: bool = False
) -> tuple[Problem, Problem | None]:
    """The problem in an ``.npz`` file, and the held-out data, if any (``X_test`` and targets).

    ``queries``: the model takes a query ``q`` with each sequence, if the file has them.
    """
    from shoal.files import npz_names, read_npz

    present = set(npz_names(path))

    def read(end: str) -> Problem:
        query = [f"q{end}"] if f"q{end}" in present else []  # checked also where it is not used
        names = (f"X{end}", f"{target}{end}", *query)
        where = str(path) + (" (test)" if end else "")
        arrays = read_npz(path, names).values()
        found = checked(*arrays, where=where, precision=precision, target=target)
        return found if queries else Problem(found.X, found.y)

    problem = read("")
    if not {"X_test", f"{target}_test"} & present:
        return problem, None
    test = read("_test")
    if test.X.shape[1:] != problem.X.shape[1:] or test.y.shape[1:] != problem.y.shape[1:]:
        msg = f"{path}: X_test has shape {test.X.shape}; except for the samples it should be X's."
        raise InputError(msg)
    return problem, test


def gaussian_tokens(
    key: PRNGKeyArray, num_samples: int, num_tokens: int, dim: int
) -> Float[Array, "N n d"]:
    """Independent standard Gaussian tokens."""
    return jax.random.normal(key, (num_samples, num_tokens, dim), float)


def unit_tokens(X: Float[Array, "N n d"]) -> Float[Array, "N n d"]:
    """Every token scaled to norm 1 (a zero token stays zero).

    >>> unit_tokens(jnp.array([[[0.0, 4.0], [0.0, 0.0]]])).tolist()
    [[[0.0, 1.0], [0.0, 0.0]]]
    """
    length = jnp.linalg.norm(X, axis=-1, keepdims=True)
    return X / jnp.where(length > 0, length, 1)


def gaussian_labels(key: PRNGKeyArray, num_samples: int, scale: Scalar) -> Float[Array, " N"]:
    """Independent Gaussian labels of standard deviation ``scale``, unrelated to the data."""
    return scale * jax.random.normal(key, (num_samples,), float)


def teacher_labels(
    teacher: Callable[[Array], Array], X: Float[Array, "N n d"], scale: Scalar
) -> Float[Array, " N"]:
    """Outputs of a teacher, scaled to root mean square ``scale``."""
    outputs = jax.vmap(teacher)(X)
    return outputs * (scale / jnp.sqrt(jnp.mean(jnp.square(outputs))))


def patches(images: Float[Array, "N height width"], size: int) -> Float[Array, "N n pixels"]:
    """Cut images into squares, row by row, each flattened.

    >>> patches(jnp.arange(4.0).reshape(1, 2, 2), 1).tolist()
    [[[0.0], [1.0], [2.0], [3.0]]]
    """
    N, height, width = images.shape
    if height % size or width % size or not height * width:
        raise InputError(f"patch={size} does not divide images of {height} x {width} pixels.")
    squares = images.reshape(N, height // size, size, width // size, size)
    return squares.transpose(0, 1, 3, 2, 4).reshape(N, -1, size * size)


def patch_embedding(
    key: PRNGKeyArray, pieces: Float[Array, "N n pixels"], dim: int
) -> Float[Array, "N n d"]:
    r"""Fixed linear embedding with positions, $x_{n,i} = E^\top\mathrm{patch}_{n,i} + p_i$.

    $E$ has independent entries of variance $1/d$, so it keeps lengths on average, and $p_i$ is a
    random vector of length about 1. Neither is trained.
    """
    key_embedding, key_position = jax.random.split(key)
    E = jax.random.normal(key_embedding, (pieces.shape[-1], dim), float) / dim**0.5
    P = jax.random.normal(key_position, (pieces.shape[1], dim), float) / dim**0.5
    return pieces @ E + P[None]


def image_problem(
    key: PRNGKeyArray, images: np.ndarray, labels: np.ndarray, *,
    num_samples: int, patch: int, dim: int, classes: str,
) -> Problem:  # fmt: skip
    """Images (values in [0, 1]) as tokens; two classes as -1 and +1, or ``"all"`` as regression.

    With ``"all"`` the target is the label itself, moved to [-1, 1].
    """
    labels = np.asarray(labels)
    key_choice, key_embedding = jax.random.split(key)
    if classes == "all":
        keep, middle = np.arange(len(labels)), labels.max() / 2
        y = (labels - middle) / max(middle, 1)
    else:
        negative, positive = two_classes(classes, np.unique(labels))
        keep = np.flatnonzero((labels == negative) | (labels == positive))
        y = np.where(labels == positive, 1.0, -1.0)
    if num_samples > len(keep):
        raise InputError(f"{num_samples=}, but {classes=} has only {len(keep)} images.")
    keep = keep[np.asarray(jax.random.permutation(key_choice, len(keep)))[:num_samples]]
    pieces = patches(jnp.asarray(images[keep], float), patch)
    return Problem(patch_embedding(key_embedding, pieces, dim), jnp.asarray(y[keep], float))


def two_classes(classes: str, known: np.ndarray) -> tuple[int, int]:
    """The two labels that words such as ``3,8`` name."""
    parts = classes.split(",")
    if len(parts) == 2 and all(p.strip().isascii() and p.strip().isdigit() for p in parts):
        pair = int(parts[0][-18:]), int(parts[1][-18:])
        if pair[0] != pair[1] and set(pair) <= set(known.tolist()):
            return pair
    raise InputError(
        f"classes={classes!r}; expected two different labels such as 0,1 or 'all'. "
        f"There are: {', '.join(map(str, known.tolist()))}."
    )


def handwritten_digits() -> tuple[np.ndarray, np.ndarray]:
    """The 1797 real 8 x 8 digits of scikit-learn, values in [0, 1], and their labels."""
    from sklearn.datasets import load_digits  # a second to import: only when used

    digits = load_digits()
    return digits.images / 16.0, digits.target
