"""MNIST and Fashion-MNIST: 28 x 28 images in ten classes, from IDX files that are on this machine.

Nothing is downloaded. Debian's package ``dataset-fashion-mnist`` brings Fashion-MNIST (Xiao, Rasul
and Vollgraf 2017); MNIST (LeCun, Cortes and Burges) has the same format and names of files.
"""

import functools
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.errors import InputError
from shoal.files import read_idx

SIDE = 28
CLASSES = 10
FOLDERS = {"mnist": "mnist", "fashion_mnist": "fashion-mnist"}
"""Folders below ``datasets`` in which files are looked for."""
LARGEST = 2**27  # bytes of data in one file; the real ones have 47 million


class Pictures(NamedTuple):
    """Images as bytes (count, 28, 28), and their classes 0 to 9."""

    images: np.ndarray
    labels: np.ndarray


def folders(source: str) -> list[Path]:
    """Where the files of a data set are looked for: below the data folders of user and system."""
    own = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    places = [own, *shared.split(":")]
    return [Path(place) / "datasets" / FOLDERS[source] for place in places if place]


def _file(source: str, folder: str, name: str) -> Path:
    places = [Path(folder).expanduser()] if folder else folders(source)
    for path in (place / f"{name}{end}" for place in places for end in (".gz", "")):
        if path.is_file():
            return path
    get = "apt-get install dataset-fashion-mnist, or " if source == "fashion_mnist" else ""
    raise InputError(
        f"problem={source} needs the file {name}.gz (IDX format, with the three that belong to it) "
        f"in one of {', '.join(map(str, places))}; try: {get}--set folder=FOLDER."
    )


@functools.lru_cache(maxsize=2)
def pictures(source: str, folder: str = "") -> tuple[Pictures, Pictures]:
    """Training and test images of ``mnist`` or ``fashion_mnist``, checked."""
    return _part(source, folder, "train"), _part(source, folder, "t10k")


def _part(source: str, folder: str, part: str) -> Pictures:
    images = _file(source, folder, f"{part}-images-idx3-ubyte")
    classes = _file(source, folder, f"{part}-labels-idx1-ubyte")
    pixels, labels = read_idx(images, LARGEST), read_idx(classes, LARGEST)
    if pixels.shape[1:] != (SIDE, SIDE) or pixels.dtype != np.uint8:
        shape, kind = pixels.shape, pixels.dtype
        msg = f"{str(images)!r} holds {kind} of shape {shape}; expected bytes (count, 28, 28)."
        raise InputError(msg)
    if labels.shape != pixels.shape[:1] or labels.dtype != np.uint8 or labels.max() >= CLASSES:
        msg = f"{str(classes)!r} should hold a class 0 to 9 for each of {len(pixels)} images, as "
        raise InputError(f"{msg}bytes; it has shape {labels.shape} and goes up to {labels.max()}.")
    return Pictures(pixels, labels.astype(int))
