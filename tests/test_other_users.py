"""What another account planted in a cache is neither loaded nor opened: a real second user."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest

from attack_inputs.specimens import settings

NOBODY = 65534
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.name != "posix" or os.getuid() != 0 or shutil.which("cc") is None,
        reason="needs root, to act as another user, and a C compiler",
    ),
]
TRAP = """
#include <stdio.h>
__attribute__((constructor)) static void trap(void) { fclose(fopen("MARK", "w")); }
"""
SPY = """
import os, sys
def hook(event, given):
    if event in ("open", "ctypes.dlopen") and isinstance(given[0], str):
        if given[0].startswith(os.environ["SPIED"] + "/"):
            os.write(2, f"OPENED {given[0]}\\n".encode())
sys.addaudithook(hook)
"""


def train(cache, spy):
    """Train with a cache, and tell which of its files were opened; compiled programs are kept."""
    environment = os.environ | {
        "SHOAL_CACHE_DIR": str(cache), "SPIED": str(cache), "PYTHONPATH": str(spy),
    }  # fmt: skip
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    words = [sys.executable, "-m", "shoal", "train", "wu2023", *settings("wu2023"), "--steps", "2"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def plant(cache, mark):
    """As the other user: his library in the place of each, his bytes in each compiled program."""
    source = cache.parent / "trap.c"
    source.write_text(TRAP.replace("MARK", str(mark)))
    trap = cache.parent / "trap.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(trap), str(source)], check=True)
    digest = hashlib.sha256(trap.read_bytes()).hexdigest()
    # a shell, since the other user may not be able to reach this Python
    code = """
        find "$1" -name '*.so' | while read f; do
            rm "$f" "${f%.so}.sha256"
            cp "$2" "$f" && chmod 755 "$f" && printf %s "$3" > "${f%.so}.sha256"
        done
        find "$1" -name '*-cache' | while read f; do rm "$f" && echo planted > "$f"; done
    """
    words = ["sh", "-e", "-c", code, "sh", str(cache), str(trap), digest]
    subprocess.run(words, user=NOBODY, group=NOBODY, extra_groups=[], check=True)


@pytest.fixture
def place(tmp_path):
    """A folder that the other user can reach, with an honest cache and a spy."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.name.startswith(("pytest", "test")):
            folder.chmod(0o755)
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY)
    (tmp_path / "cache").mkdir(mode=0o700)
    train(tmp_path / "cache", tmp_path / "spy")
    return tmp_path


def test_the_spy_sees_what_is_used(place):
    said = train(place / "cache", place / "spy")
    assert ".so" in said
    assert "-cache" in said


def test_a_cache_that_belongs_to_another_user_is_not_used(place):
    shutil.copytree(place / "cache", place / "his")
    for path in (place / "his", *(place / "his").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (place / "his").chmod(0o755)
    plant(place / "his", place / "mark")
    said = train(place / "his", place / "spy")
    assert "belongs to another user" in said
    assert "OPENED" not in said
    assert not (place / "mark").exists()


def test_folders_of_a_cache_into_which_another_user_wrote_are_not_used(place):
    cache = place / "cache"
    cache.chmod(0o755)
    for path in cache.iterdir():
        path.chmod(0o777)
    plant(cache, place / "mark")
    planted = sorted(path for path in cache.rglob("*") if path.is_file())
    assert {path.stat().st_uid for path in planted if path.suffix == ".so"} == {NOBODY}
    said = train(cache, place / "spy")
    assert not [x for x in said.splitlines() if x.startswith("OPENED") and x.endswith("-cache")]
    assert not [x for x in said.splitlines() if x.startswith("OPENED") and x.endswith(".so")]
    assert not (place / "mark").exists()
