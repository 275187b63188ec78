"""Choices made once at the edge: precision, and a cache of compiled programs on disk."""

import os

from shoal.files import cache_folder


def begin() -> None:
    """Switch JAX to float64 and let it remember what it compiled."""
    import jax

    jax.config.update("jax_enable_x64", True)
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return  # the user has chosen
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # no cache is slower, not wrong
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def hurry() -> None:
    """Compile with less polish: for work that compiles much and computes little.

    Has an effect only before JAX's first array, and none if the user has chosen a level.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_optimization_level" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=1".strip()
