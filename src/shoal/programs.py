"""What compiled programs run on: cores, and memory maps, of which Linux grants some 65,000."""

import os
from pathlib import Path

import jax

ALLOWED = Path("/proc/sys/vm/max_map_count")
TAKEN = Path("/proc/self/maps")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_room() -> bool:
    """Forget compiled programs if their memory maps come near the system's limit.

    Each program takes a few maps and keeps them. A process that compiles ten thousand programs
    and asks for one map too many is killed inside XLA, without a word. What is forgotten is
    compiled again when it is next used, or read from the cache on disk. Says whether it forgot;
    on systems that do not count maps it does nothing.
    """
    try:
        allowed = int(ALLOWED.read_text())
        taken = TAKEN.read_bytes().count(b"\n")
    except (OSError, ValueError):
        return False
    if taken < allowed // 2:
        return False
    jax.clear_caches()
    return True
