"""A few kills at drawn moments; ``make kills`` draws a hundred. Only writes are counted here."""

import os
import random

import pytest

import kills


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name in kills.COMMANDS if name != "tour"])
def test_a_command_that_was_killed_ends_as_if_nothing_had_happened(command, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", os.environ["SHOAL_CACHE_DIR"])
    kills.prepare(tmp_path / "prepared")
    calm = kills.undisturbed(tmp_path, tmp_path / "prepared", command)
    assert calm.writes
    rng = random.Random(0)
    for number in range(2):
        place = tmp_path / f"kill{number}"
        at = rng.randint(1, calm.writes)
        assert not kills.once(rng, place, tmp_path / "prepared", command, calm, at=at)
