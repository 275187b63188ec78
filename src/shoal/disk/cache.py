"""Measurements kept on disk: made once, found again, redone if damaged or if the code changed."""

import contextlib
import functools
import hashlib
import inspect
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shoal
from shoal.files import cache_folder, read_npz, write_aside, write_npz
from shoal.runtime import clear_programs


class Cached(NamedTuple):
    """Arrays by name, the seconds it took to make them, and whether they were found on disk."""

    arrays: dict[str, np.ndarray]
    seconds: float
    found: bool


EDGES = ("benchmarks", "cli", "pages")  # Packages that cannot change a number.


@functools.cache
def code_version(paper: str | None = None) -> str:
    """A digest of all code that can change a measurement.

    If ``paper`` is given, the other papers do not count. A paper that is not built in counts by
    `source_of`.
    """
    root = Path(shoal.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for end in ("py", "c", "h") for path in root.rglob(f"*.{end}")):
        parts = path.relative_to(root).parts
        other = paper is not None and parts[0] == "papers" and len(parts) > 2 and parts[1] != paper
        if parts[0] not in EDGES and not other:
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def source_of(kind: type | Path) -> str:
    """A digest of a file, or of the file that defines a class: of what is not built in."""
    try:
        path = kind if isinstance(kind, Path) else Path(inspect.getfile(kind))
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""


def _name_of(about: Any) -> str:
    """Name under which a measurement is kept: what it is about, and the code's version."""
    libraries = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    text = json.dumps([about, code_version(), libraries], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_used: ContextVar[list[Path] | None] = ContextVar("used", default=None)


@contextlib.contextmanager
def used_measurements() -> Iterator[list[Path]]:
    """The files of the measurements that are made or found inside."""
    files: list[Path] = []
    before = _used.set(files)
    try:
        yield files
    finally:
        _used.reset(before)


def keep_measurements(files: Mapping[str, bytes]) -> None:
    """Keep measurements that another machine has made (`used_measurements`), under their names."""
    for name, content in files.items():
        path = cache_folder() / "measurements" / name
        if re.fullmatch(r"[0-9a-f]{32}\.npz", name) and not path.exists():
            write_aside(path, content)


def cached(about: Any, make: Callable[[], dict[str, Any]]) -> Cached:
    """A measurement from disk if it was made before, else made now; damaged files are redone.

    ``about`` is plain data (as JSON has it) that decides, with the code, what ``make`` returns.
    """
    path = cache_folder() / "measurements" / f"{_name_of(about)}.npz"
    if (files := _used.get()) is not None:
        files.append(path)
    with contextlib.suppress(KeyError, TypeError, ValueError):  # it is not there, or damaged
        found = read_npz(path)
        seconds, names = float(found.pop("_seconds")), str(found.pop("_names"))
        if names == ",".join(sorted(found)):
            return Cached(found, seconds, found=True)
    clear_programs()
    begun = time.perf_counter()
    made = {name: np.asarray(value) for name, value in make().items()}
    seconds = time.perf_counter() - begun
    kept: dict[str, Any] = {**made, "_seconds": seconds, "_names": ",".join(sorted(made))}
    write_npz(content := io.BytesIO(), kept)
    with contextlib.suppress(OSError):  # a cache that cannot be written is slower, not wrong
        write_aside(path, content.getvalue())
    return Cached(made, seconds, found=False)
