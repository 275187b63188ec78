"""Compiled programs are forgotten before the system's limit of memory maps is reached."""

import jax
import jax.numpy as jnp
import pytest

from shoal import programs


def maps():
    return programs.TAKEN.read_bytes().count(b"\n")


@pytest.mark.skipif(not programs.ALLOWED.exists(), reason="this system does not count maps")
def test_near_the_limit_programs_are_forgotten_and_compiled_again(tmp_path, monkeypatch):
    double = jax.jit(lambda x: 2 * x)
    for size in range(1, 60):
        double(jnp.ones(size))
    before, compiled = maps(), double._cache_size()
    assert compiled == 59

    limit = tmp_path / "limit"
    limit.write_text(f"{4 * before}\n")
    monkeypatch.setattr(programs, "ALLOWED", limit)
    assert not programs.make_room()
    assert double._cache_size() == compiled

    limit.write_text(f"{before}\n")
    assert programs.make_room()
    assert maps() < before - 100  # a few maps a program are given back
    assert double(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_systems_that_do_not_count_maps_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "ALLOWED", tmp_path / "nowhere")
    assert not programs.make_room()
    (tmp_path / "words").write_text("many")
    monkeypatch.setattr(programs, "ALLOWED", tmp_path / "words")
    assert not programs.make_room()
