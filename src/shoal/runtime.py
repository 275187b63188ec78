"""What compiled programs run on: precision, cores, memory maps, and the compile cache."""

import contextlib
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from shoal.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
MAPS_ALLOWED = Path("/proc/sys/vm/max_map_count")
MAPS_TAKEN = Path("/proc/self/maps")


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with JAX's float64 switched on, in this thread and for this call only.

    LAPACK works on one thread meanwhile, see `one_lapack_thread`.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        import jax

        with jax.enable_x64(True), one_lapack_thread():
            return function(*args, **kwargs)

    return wrapped


_limiting = threading.Lock()
_limits: list[int] = []  # Threads before each of the calls that are under way.


@contextlib.contextmanager
def one_lapack_thread() -> Iterator[None]:
    """Let the LAPACK that JAX calls work on one thread, unless ``OPENBLAS_NUM_THREADS`` is set.

    OpenBLAS's threads spin for tens of milliseconds after each small call, on cores that training
    needs. When the last of several calls ends, their number is as before.
    """
    functions = None if "OPENBLAS_NUM_THREADS" in os.environ else _openblas()
    if functions is None:
        yield
        return
    count, limit = functions
    with _limiting:
        _limits.append(count())
        limit(1)
    try:
        yield
    finally:
        with _limiting:
            before = _limits.pop()
            if not _limits:
                limit(before)


@functools.cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What tells and sets the number of threads of SciPy's OpenBLAS, where JAX finds LAPACK."""
    import ctypes

    from scipy.linalg import cython_lapack

    try:
        library = ctypes.CDLL(cython_lapack.__file__)  # symbols of what it is linked with, too
        return library.scipy_openblas_get_num_threads, library.scipy_openblas_set_num_threads
    except (OSError, AttributeError):  # another LAPACK
        return None


def numpy_tree(tree: Any) -> Any:
    """Every array of a tree as a NumPy array."""
    import jax
    import numpy as np

    return jax.tree.map(np.asarray, tree)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> float:
    """Bytes that this process may still take: what the system has, its group's and its own limit.

    >>> available_memory() > 0
    True
    """
    found: list[float | None] = [_pages("SC_AVPHYS_PAGES") or _pages("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found[0] = next(1024.0 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    found += [_group_memory(*names) for names in GROUPS]
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        pages = Path("/proc/self/statm").read_text().split()  # all addresses first, data sixth
        for limit, taken in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY:
                found.append(float(most - int(taken) * os.sysconf("SC_PAGE_SIZE")))
    return max(0.0, min(size for size in found if size is not None))


GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Where Linux tells the limit of a container, in its two versions."""


def _group_memory(folder: Path, limit: str, taken: str) -> float | None:
    try:
        return float(int((folder / limit).read_text()) - int((folder / taken).read_text()))
    except (OSError, ValueError):  # there is none, or it says "max"
        return None


def _pages(name: str) -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf(name))


def clear_programs() -> bool:
    """Forget compiled programs if their memory maps come near the system's limit.

    Each program takes a few maps and keeps them; Linux allows a process about 65,000. One map too
    many kills the process inside XLA, without a message. What is forgotten is compiled again when
    it is next used, or read from the cache on disk. Returns whether anything was forgotten; on
    systems that do not count maps it does nothing.
    """
    import jax

    try:
        allowed = int(MAPS_ALLOWED.read_text())
        taken = MAPS_TAKEN.read_bytes().count(b"\n")
    except (OSError, ValueError):
        return False
    if near := taken >= allowed // 2:
        jax.clear_caches()
    return near


ADDRESSES = 4 * 2**30
"""Bytes of addresses (not of memory) that JAX and its threads take; with fewer it aborts."""


def _require_addresses() -> None:
    with contextlib.suppress(ImportError):
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if 0 <= most < ADDRESSES:
            raise InputError(
                f"this process may use {most / 2**30:.2g} GiB of addresses (ulimit -v); JAX needs "
                f"about {ADDRESSES / 2**30:.0f}. Try ulimit -v unlimited."
            )


def _require_jax() -> None:
    """Import JAX; refuse variables that it cannot read, and a platform that it cannot use."""
    try:
        import jax
    except ValueError as error:  # JAX_ENABLE_X64=maybe
        raise InputError(f"JAX cannot be loaded ({error}).") from None
    if (wanted := os.environ.get("JAX_PLATFORMS", "cpu")) not in ("", "cpu"):
        try:
            jax.devices()
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            msg = f"JAX cannot start on JAX_PLATFORMS={wanted} ({reason[:200]}); try cpu."
            raise InputError(msg) from None


SWITCHES = {
    "jax_debug_nans": False,  # that a run diverges is a result
    "jax_debug_infs": False,
    "jax_check_tracer_leaks": False,
    "jax_transfer_guard": "allow",
    "jax_numpy_dtype_promotion": "standard",
    "jax_default_prng_impl": "threefry2x32",  # a seed means the same weights everywhere
    "jax_threefry_partitionable": True,
}
"""What JAX's variables would otherwise change in numbers, or turn into exceptions."""


@contextlib.contextmanager
def command_session() -> Iterator[None]:
    """What a command of shoal switches on for its own time: float64, and the cache of programs.

    Switches of JAX that would change results are as shoal needs them. JAX's configuration is as
    before when it ends. If the user chose a cache folder (``JAX_COMPILATION_CACHE_DIR``), it stays.
    """
    _require_addresses()
    _require_jax()
    import jax
    import numpy as np

    chosen: dict[str, Any] = dict(SWITCHES)
    by_user = getattr(jax.config, "jax_compilation_cache_dir", None)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and not by_user:
        from shoal.files import cache_folder, others_can_write

        folder = cache_folder() / "compiled"
        with contextlib.suppress(OSError):  # no cache is slower, not wrong
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if reason := others_can_write(folder):
                raise PermissionError(reason)
            chosen |= {
                "jax_compilation_cache_dir": str(folder),
                "jax_persistent_cache_min_compile_time_secs": 0.0,
                "jax_persistent_cache_min_entry_size_bytes": -1,
            }
    before = {name: getattr(jax.config, name) for name in chosen}
    for name, value in chosen.items():
        jax.config.update(name, value)
    try:
        # that numbers overflow is a result, told where it matters, and no warning of NumPy
        quiet = np.errstate(all="ignore")
        with jax.enable_x64(True), warnings.catch_warnings(), quiet:
            # JAX does not write an entry in one piece; one that is cut short is compiled again
            unreadable = "Error (reading|writing) persistent compilation cache"
            warnings.filterwarnings("ignore", message=unreadable, category=UserWarning)
            yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
