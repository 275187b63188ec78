"""Files from outside, checked before use. Nothing is ever unpickled.

What people bring: ``.npz`` arrays and IDX images (MNIST, Fashion-MNIST), plain or gzipped. The run
folders that shoal itself writes live in `store`.
"""

import gzip
import math
import os
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from shoal.errors import InputError

LARGEST = 8 * 2**30  # bytes after unpacking; a bigger file is refused, not read into memory


def _existing(path: str | Path) -> Path:
    path = Path(path)
    try:
        found = path.is_file()
        kind = "a folder" if path.is_dir() else "nothing of that name"
    except (OSError, ValueError) as error:
        found, kind = False, str(error)
    if not found:
        raise InputError(f"there is no file {str(path)[:200]!r} ({kind}).")
    return path


def cache_folder() -> Path:
    """Where what can be made again is kept: $SHOAL_CACHE_DIR, or the user's cache folder."""
    import platformdirs

    chosen = os.environ.get("SHOAL_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("shoal")


def _members(path: Path) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, OSError) as error:
        msg = f"{str(path)!r} is not an npz file ({error}); write one with numpy.savez."
        raise InputError(msg) from None


def npz_names(path: str | Path) -> tuple[str, ...]:
    """Names of the arrays in an ``.npz`` file."""
    members = _members(_existing(path))
    return tuple(m.filename.removesuffix(".npy") for m in members if m.filename.endswith(".npy"))


def read_npz(path: str | Path, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an ``.npz`` file: those in ``names`` (all must be there), or all of them."""
    path = _existing(path)
    members = _members(path)
    present = [m.filename.removesuffix(".npy") for m in members if m.filename.endswith(".npy")]
    if missing := [name for name in names or () if name not in present]:
        raise InputError(
            f"{str(path)!r} lacks {', '.join(missing)}; it has: {', '.join(present) or 'nothing'}."
        )
    wanted = names or tuple(present)
    size = sum(m.file_size for m in members if m.filename.removesuffix(".npy") in wanted)
    if size > LARGEST:
        most = LARGEST / 2**30
        msg = f"{str(path)!r} unpacks to {size / 2**30:.1f} GiB; at most {most:.0f} are read."
        raise InputError(msg)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[f"{name}.npy"] for name in wanted}
        if all(isinstance(array, np.ndarray) for array in arrays.values()):
            return arrays
        raise InputError(f"{str(path)!r} cannot be read as plain arrays.")
    except InputError:
        raise
    # numpy says ValueError for objects, and almost anything for members that are damaged on purpose
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{str(path)!r} cannot be read as plain arrays ({reason}).") from None


_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an IDX file: two zero bytes, type, number of axes, axes (big-endian), data."""
    path = _existing(path)
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES:
                raise InputError(
                    f"{str(path)!r} is not an IDX file (it begins with {start.hex() or 'nothing'})."
                )
            dtype = np.dtype(_IDX_TYPES[start[2]])
            axes = file.read(4 * start[3])
            whole = len(axes) == 4 * start[3]
            shape = tuple(np.frombuffer(axes, ">u4").tolist()) if whole else ()
            expected = math.prod(shape) * dtype.itemsize
            if not whole or not expected or expected > LARGEST:
                msg = f"{str(path)!r} declares a shape of {shape}, which cannot be right."
                raise InputError(msg)
            data = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{str(path)!r} cannot be unpacked ({error}).") from None
    if len(data) != expected:
        msg = f"{str(path)!r} should hold {expected} bytes of data for shape {shape}, and does not."
        raise InputError(msg)
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def read_idx_images(images: str | Path, labels: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """A pair of IDX files as images with values in [0, 1] and integer labels."""
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or classes.shape != pixels.shape[:1]:
        raise InputError(
            f"images of shape {pixels.shape} and labels of shape {classes.shape} do not match; "
            "expected (count, height, width) and (count,)."
        )
    for name, array in (("images", pixels), ("labels", classes)):
        if not np.isfinite(array).all():
            raise InputError(f"{name} hold values that are NaN or infinite.")
    if (classes != np.round(classes)).any():
        raise InputError("labels must be whole numbers.")
    top = float(pixels.max())
    return pixels / (top if top > 0 else 1.0), classes.astype(int)


def write_aside(path: Path, content: bytes) -> None:
    """Write a file under another name, then give it its own: it is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".shoal-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
