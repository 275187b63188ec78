"""Tests run in float64, with rank promotion and warnings as errors."""

import os
import signal
import tempfile

# most of the time of a test is compilation, and much of that is polish and MLIR's detour; commands
# that tests start inherit this, and each process keeps to the core that it has
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)

# what commands keep is kept apart from the user's; compiled programs are shared by the tests' own
# processes and all that they start, since most of the time of a test is compilation
os.environ.setdefault("SHOAL_CACHE_DIR", tempfile.mkdtemp(prefix="shoal-tests-"))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{os.environ['SHOAL_CACHE_DIR']}/xla")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest

# a shell that starts the tests in the background ignores Ctrl-C, and so would what tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


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
