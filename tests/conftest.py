"""Tests run in float64, with rank promotion and warnings as errors."""

import os
import tempfile

# most of the time of a test is compilation, and much of that is polish and MLIR's detour; commands
# that tests start inherit this, and each process keeps to the core that it has
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=1 "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# commands that tests start share one cache of compiled programs, and leave the user's alone
os.environ.setdefault("SHOAL_CACHE_DIR", tempfile.mkdtemp(prefix="shoal-tests-"))
# so do the tests themselves, in all their processes: most of their time is compilation
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    folder = os.path.join(os.environ["SHOAL_CACHE_DIR"], "xla")
    jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def _room_for_programs():
    """Some hundred tests compile more than a process may hold."""
    from shoal.runtime import clear_programs

    clear_programs()


@pytest.fixture(autouse=True, scope="module")
def _memory_is_given_back():
    """Compiled programs of one module are of no use to the next, and stay in the cache on disk."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _doctests_see_plain_jax(doctest_namespace):
    import jax.numpy as jnp
    import numpy as np

    doctest_namespace.update(jnp=jnp, np=np, jax=jax)
