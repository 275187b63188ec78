"""``shoal papers`` the second time: the same words, without JAX."""

import os
import subprocess
import sys

PROGRAM = """
import sys
if {blocked}:
    sys.modules["jax"] = None  # importing it is an error
from shoal.cli import listing
listing.papers({target!r}, json=False)
"""


def listed(folder, target="", *, blocked):
    words = [sys.executable, "-c", PROGRAM.format(blocked=blocked, target=target)]
    env = os.environ | {"SHOAL_CACHE_DIR": str(folder)}
    return subprocess.run(words, check=False, capture_output=True, text=True, env=env)


def test_the_second_call_needs_no_jax(tmp_path):
    first = listed(tmp_path, blocked=False)
    assert first.returncode == 0
    assert "wu2023" in first.stdout
    assert listed(tmp_path, blocked=True).stdout == first.stdout
    assert listed(tmp_path, "wu2023", blocked=True).returncode != 0  # was not asked before


def test_a_damaged_answer_is_made_again(tmp_path):
    first = listed(tmp_path, "icl2025", blocked=False).stdout
    (kept,) = (tmp_path / "listings").iterdir()
    kept.write_bytes(b"\xff\xfe")
    assert listed(tmp_path, "icl2025", blocked=False).stdout == first
