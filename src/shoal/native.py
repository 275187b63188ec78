"""Small kernels in C, compiled on this machine when first used.

A kernel is a C file beside the formula that it hastens. It needs a C compiler (``cc``, or what
``CC`` names); without one, or with ``SHOAL_NATIVE=0``, XLA computes the formula itself: slower,
the same but for rounding. What was compiled is kept in the cache folder under a digest of the
source, the compiler's words, the version and the processor, since many machines may share a home.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path

import jax

from shoal.files import aside, cache_folder, others_can_write, write_aside

WORDS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=gnu11", "-shared", "-fPIC")
HEADER = Path(__file__).with_suffix(".h")
REAL = {"float32": "float", "float64": "double"}
LARGEST = 2**24
"""Numbers that a kernel may work in; beyond it the formula, which may hold less, is used."""
_compiling = threading.Lock()


_FORMULAS: ContextVar[bool] = ContextVar("formulas", default=False)


@contextlib.contextmanager
def formulas_only() -> Iterator[None]:
    """Inside, nothing is compiled from C: what is traced consists of JAX's own operations."""
    token = _FORMULAS.set(True)
    try:
        yield
    finally:
        _FORMULAS.reset(token)


def kernel(source: Path, handler: str, precision: str) -> tuple[str, ctypes.CDLL] | None:
    """A handler of a C file for one precision: the name that XLA knows it by, and its library.

    None if it cannot be had here.
    """
    if os.environ.get("SHOAL_NATIVE") == "0" or jax.default_backend() != "cpu":
        return None
    if _FORMULAS.get():
        return None
    with _compiling:
        return _kernel(source, handler, precision)


@functools.cache
def _kernel(source: Path, handler: str, precision: str) -> tuple[str, ctypes.CDLL] | None:
    command = _compiler()
    if precision not in REAL or command is None:
        return None
    words = [*command, *WORDS, f"-DREAL={REAL[precision]}"]
    about = [source.read_text(), HEADER.read_text(), *words, version("jaxlib"), _processor()]
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()[:24]
    path = cache_folder() / "native" / f"{source.stem}-{digest}.so"
    library = _loaded(path)
    if library is None:  # not there, or damaged
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # slower, not wrong
            folders = [f"-I{folder}" for folder in (HEADER.parent, jax.ffi.include_dir())]
            _compile([*words, *folders, str(source)], path)
        library = _loaded(path)
    if library is None or not hasattr(library, handler):
        return None
    name = f"shoal_{handler}_{digest}"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, handler)), platform="cpu")
    return name, library


def _compiler() -> list[str] | None:
    try:
        command = shlex.split(os.environ.get("CC", "cc"))
    except ValueError:
        return None
    return command if command and shutil.which(command[0]) else None


def _loaded(path: Path) -> ctypes.CDLL | None:
    """A library whose bytes are those that were written, and that nobody else could change.

    A damaged one could kill the process.
    """
    with contextlib.suppress(OSError):
        trusted = others_can_write(path) is None
        if trusted and _digest(path) == path.with_suffix(".sha256").read_text():
            return ctypes.CDLL(str(path))
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compile(words: list[str], path: Path) -> None:
    if reason := others_can_write(path.parent):  # it would not be loaded from there
        raise PermissionError(reason)
    with aside(path.parents[1]) as folder:
        made = folder / "made.so"
        subprocess.run([*words, "-o", str(made)], check=True, capture_output=True, timeout=120)
        write_aside(path, made.read_bytes())
        write_aside(path.with_suffix(".sha256"), _digest(made).encode())


def _processor() -> str:
    """What ``-march=native`` means here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    known = [x for x in lines if x.startswith(("model name", "flags", "Features", "CPU part"))]
    steady = [x for x in lines if "mhz" not in x.lower() and "bogomips" not in x.lower()]
    return "\n".join([platform.machine(), *dict.fromkeys(known or steady)])
