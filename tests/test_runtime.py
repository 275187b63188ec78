"""What programs run on: precision, memory maps, and a session that leaves nothing behind."""

import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import runtime


def maps():
    return runtime.MAPS_TAKEN.read_bytes().count(b"\n")


@pytest.mark.skipif(
    not runtime.MAPS_ALLOWED.exists(), reason="this system does not count memory maps"
)
def test_near_the_limit_programs_are_forgotten_and_compiled_again(tmp_path, monkeypatch):
    double = jax.jit(lambda x: 2 * x)
    for size in range(1, 21):
        double(np.ones(size))
    before, compiled = maps(), double._cache_size()
    assert compiled == 20

    limit = tmp_path / "limit"
    limit.write_text(f"{4 * before}\n")
    monkeypatch.setattr(runtime, "MAPS_ALLOWED", limit)
    assert not runtime.clear_programs()
    assert double._cache_size() == compiled

    limit.write_text(f"{before}\n")
    assert runtime.clear_programs()
    assert maps() < before - 40  # a few maps a program are given back
    assert double(np.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_systems_that_do_not_count_maps_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "MAPS_ALLOWED", tmp_path / "nowhere")
    assert not runtime.clear_programs()
    (tmp_path / "words").write_text("many")
    monkeypatch.setattr(runtime, "MAPS_ALLOWED", tmp_path / "words")
    assert not runtime.clear_programs()


def test_float64_is_on_inside_and_as_before_outside():
    @runtime.in_float64
    def inside():
        """Words."""
        return jnp.ones(1).dtype

    with jax.enable_x64(False):
        assert jnp.ones(1).dtype == jnp.float32
        assert inside() == jnp.float64
        assert jnp.ones(1).dtype == jnp.float32
    assert inside.__doc__ == "Words."


def test_float64_is_on_in_this_thread_only():
    seen, ready, done = [], threading.Event(), threading.Event()

    @runtime.in_float64
    def long():
        ready.set()
        done.wait()

    jax.config.update("jax_enable_x64", False)
    try:
        thread = threading.Thread(target=long)
        thread.start()
        ready.wait()
        seen.append(jnp.ones(1).dtype)
        done.set()
        thread.join()
    finally:
        jax.config.update("jax_enable_x64", True)
    assert seen == [jnp.float32]


def test_an_error_inside_leaves_the_precision_as_it_was():
    @runtime.in_float64
    def broken():
        raise ZeroDivisionError

    with jax.enable_x64(False):
        with pytest.raises(ZeroDivisionError):
            broken()
        assert jnp.ones(1).dtype == jnp.float32


def test_a_tree_of_arrays_becomes_numpy():
    found = runtime.numpy_tree({"a": jnp.ones(2), "b": (jnp.zeros(()), np.ones(1))})
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(found))


NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_enable_x64",
)


def test_a_session_of_a_command_leaves_jax_as_it_was(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        before = {name: getattr(jax.config, name) for name in NAMES}
        environment = dict(os.environ)
        with runtime.command_session():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "compiled")
            assert jnp.ones(1).dtype == jnp.float64
        assert {name: getattr(jax.config, name) for name in NAMES} == before
        with pytest.raises(ZeroDivisionError), runtime.command_session():
            raise ZeroDivisionError
        assert {name: getattr(jax.config, name) for name in NAMES} == before
        assert dict(os.environ) == environment
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)


def test_a_cache_folder_that_the_user_chose_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "chosen")
    with runtime.command_session():
        assert jax.config.jax_compilation_cache_dir == before
    assert not (tmp_path / "compiled").exists()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with runtime.command_session():
            assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)


def test_cores_are_those_that_this_process_may_use():
    assert 1 <= runtime.cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(runtime._openblas() is None, reason="another LAPACK")
def test_lapack_has_one_thread_inside_and_as_many_as_before_outside(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    count, limit = runtime._openblas()
    usual = count()
    try:
        limit(2)
        with runtime.one_lapack_thread():
            assert count() == 1
            with pytest.raises(ZeroDivisionError), runtime.one_lapack_thread():
                raise ZeroDivisionError
            assert count() == 1  # the outer call is still under way
        assert count() == 2
        first, second = runtime.one_lapack_thread(), runtime.one_lapack_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)  # the first to come is the first to go
        assert count() == 1
        second.__exit__(None, None, None)
        assert count() == 2
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        with runtime.one_lapack_thread():
            assert count() == 2
    finally:
        limit(usual)
