"""Files from outside, checked before use. Nothing is ever unpickled.

What people bring: ``.npz`` arrays and IDX images (MNIST, Fashion-MNIST), plain or gzipped. The run
folders that shoal itself writes live in `store`.
"""

import atexit
import contextlib
import errno
import functools
import gzip
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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
    """Where what can be made again is kept: $SHOAL_CACHE_DIR, or the user's cache folder.

    What lies there is believed, and libraries among it are run. If somebody else could write there,
    an empty folder takes its place until the process ends.
    """
    import platformdirs

    chosen = os.environ.get("SHOAL_CACHE_DIR")
    return _private(Path(chosen) if chosen else platformdirs.user_cache_path("shoal"))


@functools.cache
def _private(folder: Path) -> Path:
    with contextlib.suppress(OSError):  # what cannot be made cannot be written to either
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reason = others_can_write(folder)
    if reason is None:
        return folder
    sys.stderr.write(f"shoal: the cache {str(folder)!r} is not used: {reason}.\n")
    own = tempfile.TemporaryDirectory(prefix="shoal-cache-")
    _own_caches.append(own)
    atexit.register(remove_own_cache)
    return Path(own.name)


_own_caches: list[tempfile.TemporaryDirectory] = []


def remove_own_cache() -> None:
    """Remove what was used instead of a cache that others can write."""
    while _own_caches:
        _own_caches.pop().cleanup()


def others_can_write(path: Path) -> str | None:
    """Who, besides this user and root, could change what is found at a path; None if nobody can.

    Folders above count too: who can write there can put another folder in the place of this one,
    unless only owners may rename (the sticky bit, as in /tmp).
    """
    if not hasattr(os, "getuid"):
        return None
    try:
        whole = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None  # nothing is there
    me = os.getuid()
    for place in (whole, *whole.parents):
        about = place.stat()
        if about.st_uid not in (me, 0) or (place == whole and about.st_uid != me):
            return f"{str(place)!r} belongs to another user"
        if about.st_mode & stat.S_ISVTX and place != whole:
            continue
        by_group = about.st_mode & 0o020 and not _alone_in(about.st_gid)
        if by_group or about.st_mode & 0o002:
            return f"other users can write to {str(place)!r} (chmod go-w)"
    return None


def _alone_in(group: int) -> bool:
    """Whether a group is the user's own, as many systems give one to each user."""
    import grp
    import pwd

    try:
        user, about = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and about.gr_name == user.pw_name and not about.gr_mem


def read_regular(path: Path, *, follow: bool = False, most: int = -1) -> bytes:
    """The bytes of a file; a pipe or device is an error, and nothing waits for it or fills memory.

    So is a link, unless ``follow``. At most ``most`` bytes are read, if it is given.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError("it is not a regular file")
        if about.st_size > LARGEST:
            raise OSError(f"it is larger than {LARGEST / 2**30:.0f} GiB")
        return file.read(most)


def _sizes(path: str | Path) -> dict[str, int]:
    """Names of the arrays in an ``.npz`` file, with their bytes after unpacking."""
    path = _existing(path)
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.infolist()
    except (zipfile.BadZipFile, OSError) as error:
        msg = f"{str(path)!r} is not an npz file ({error}); write one with numpy.savez."
        raise InputError(msg) from None
    return {m.filename[:-4]: m.file_size for m in found if m.filename.endswith(".npy")}


def npz_names(path: str | Path) -> tuple[str, ...]:
    """Names of the arrays in an ``.npz`` file."""
    return tuple(_sizes(path))


def read_npz(path: str | Path, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an ``.npz`` file: those in ``names`` (all must be there), or all of them."""
    present = _sizes(path)
    _require_names(path, names, present)
    wanted = names or tuple(present)
    size = sum(present[name] for name in wanted) / 2**30
    if size > LARGEST / 2**30:
        most = f"at most {LARGEST / 2**30:.0f} are read"
        raise InputError(f"{str(path)!r} unpacks to {size:.1f} GiB; {most}.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[f"{name}.npy"] for name in wanted}
    # numpy says ValueError for objects, and almost anything for members that are damaged on purpose
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{str(path)!r} cannot be read as plain arrays ({reason}).") from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InputError(f"{str(path)!r} cannot be read as plain arrays.")
    return arrays


def write_npz(file: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as `numpy.savez` does, but under any names (it has an argument ``file``).

    >>> import io
    >>> write_npz(content := io.BytesIO(), {"file": np.ones(2)})
    >>> np.load(io.BytesIO(content.getvalue()))["file"].tolist()
    [1.0, 1.0]
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _require_names(path: str | Path, names: Iterable[str] | None, present: Iterable[str]) -> None:
    if missing := [name for name in names or () if name not in present]:
        raise InputError(
            f"{str(path)!r} lacks {', '.join(missing)}; it has: {', '.join(present) or 'nothing'}."
        )


_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path, most: int = LARGEST) -> np.ndarray:
    """The array in an IDX file: two zero bytes, type, number of axes, axes (big-endian), data.

    A file that declares more than ``most`` bytes of data is refused before they are read.
    """
    path = _existing(path)
    name = repr(str(path))
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES:
                begins = start.hex() or "nothing"
                raise InputError(f"{name} is not an IDX file (it begins with {begins}).")
            dtype = np.dtype(_IDX_TYPES[start[2]])
            axes = file.read(4 * start[3])
            whole = len(axes) == 4 * start[3]
            shape = tuple(np.frombuffer(axes, ">u4").tolist()) if whole else ()
            expected = math.prod(shape) * dtype.itemsize
            if not whole or not expected or expected > most:
                raise InputError(f"{name} declares a shape of {shape}, which cannot be right.")
            data = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name} cannot be unpacked ({error}).") from None
    if len(data) != expected:
        size = f"{expected} bytes of data for shape {shape}"
        raise InputError(f"{name} should hold {size}, and does not.")
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


ASIDE = ".shoal-"
"""How the names of files and folders begin that are being written."""


def require_no_device(path: Path) -> None:
    """Refuse to replace a device, a pipe or a socket by a file."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")


def write_aside(path: Path, content: bytes, beside: Mapping[str, bytes] | None = None) -> None:
    """Write a file under another name, then give it its own: it is whole or not there.

    So are files that belong ``beside`` it, by their endings: if there is no room for one, none is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = {path.with_suffix(end): more for end, more in (beside or {}).items()}
    for each in (path, *contents):
        require_no_device(each)
    contents[path] = content
    with aside(path.parent) as folder:
        for number, bytes_of_one in enumerate(contents.values()):
            with (folder / f"file{number}").open("wb") as file:
                file.write(bytes_of_one)
                file.flush()
                os.fsync(file.fileno())
            (folder / f"file{number}").chmod(0o644)
        for number, target in enumerate(contents):
            (folder / f"file{number}").replace(target)


@contextlib.contextmanager
def aside(parent: Path) -> Iterator[Path]:
    """A new folder beside what is to be written; whatever is still in it at the end is removed.

    The folder is locked as long as somebody works in it. Those that a killed process left behind
    are not, and are removed here.
    """
    remove_stale(parent)
    folder, handle = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=ASIDE, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(ImportError, OSError):  # then nobody else can lock it either
                _lock(handle)
            if folder.exists():  # nobody took it for a leftover before it was locked
                return folder, handle
            os.close(handle)


def _lock(handle: int) -> None:
    """Lock a file or folder, or raise at once; the lock ends with the process."""
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_aside(path: Path) -> bool:
    """Whether a name is one that `tempfile` makes; ``.shoal-notes`` may be a user's."""
    return re.fullmatch(r"[a-z0-9_]{8}", path.name.removeprefix(ASIDE)) is not None


def remove_stale(parent: Path) -> None:
    """Remove what processes that no longer live were writing when they were killed."""
    for path in filter(_is_aside, parent.glob(f"{ASIDE}*")):
        with contextlib.suppress(ImportError, OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                _lock(handle)  # fails while somebody works there
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(handle)


def read_weights(path: str | Path, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Named arrays from ``.npz`` or ``.safetensors``, as `read_npz`. A pickle is never opened."""
    path = _existing(path)
    if path.suffix == ".npz":
        return read_npz(path, names)
    if path.suffix != ".safetensors":
        raise InputError(
            f"{str(path)!r}: expected .npz or .safetensors. A .pt file holds a pickle, which "
            "can run any code when it is opened, so shoal does not. To convert it: "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'w.safetensors')."
        )
    from safetensors.numpy import load_file

    if (size := path.stat().st_size) > LARGEST:
        most = f"at most {LARGEST / 2**30:.0f} are read"
        raise InputError(f"{str(path)!r} has {size / 2**30:.1f} GiB; {most}.")
    try:
        arrays = load_file(path)
    except Exception as error:  # types that NumPy lacks raise anything
        raise InputError(f"{str(path)!r} cannot be read as safetensors ({error}).") from None
    _require_names(path, names, arrays)
    return {name: arrays[name] for name in names or arrays}
