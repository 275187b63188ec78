"""Tests run in float64, with rank promotion and warnings as errors."""

import os
import tempfile

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# commands that tests start share one cache of compiled programs, and leave the user's alone
os.environ.setdefault("SHOAL_CACHE_DIR", tempfile.mkdtemp(prefix="shoal-tests-"))


@pytest.fixture(autouse=True)
def _doctests_see_plain_jax(doctest_namespace):
    import jax.numpy as jnp
    import numpy as np

    doctest_namespace.update(jnp=jnp, np=np, jax=jax)
