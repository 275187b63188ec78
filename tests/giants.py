"""Settings that do not fit into memory, and the largest that do.

``python -m giants refused`` prints how long each refusal takes; ``python -m giants fits 2`` finds,
for a test double of 2 GiB of available memory, the largest power of two of each size that is
accepted, trains it for a step in a process of its own, and prints the memory that it took.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODEL = """
import jax.numpy as jnp
import numpy as np
import shoal as sh

def pairs(w, x):
    return jnp.tanh(w * x[:, :, None] * x[:, None, :]).sum((1, 2))

def model(size=1000):
    return sh.setup(pairs, np.ones(()), np.ones((4, size)), np.ones(4))
"""
OWN = "own"
GIANTS = [
    ["train", "wu2023", "--set", "num_tokens=20000"],
    ["certify", "wu2023.theorem_a", "--set", "num_tokens=100000"],
    ["train", "wu2023", "--set", "width=100000000"],
    ["train", "wu2023", "--set", "num_samples=1000000"],
    ["train", "wu2023", "--seeds", "0-99999", "--set", "width=100000"],
    ["train", "wu2023", "--steps", "10000000000", "--set", "every=1"],
    ["train", "song2024", "--set", "num_tokens=100000"],
    ["train", "song2024", "--set", "num_samples=10000000"],
    ["train", "arda2026", "--set", "num_samples=100000000"],
    ["train", "arda2026", "--set", "num_tokens=100000000"],
    ["train", "qin2025", "--set", "num_tokens=50000"],
    ["certify", "qin2025.theorem_d", "--set", "width=100000000"],
    ["train", "qin2025", "--set", "dim=1000000"],
    ["train", "icl2025", "--set", "dim=1000000"],
    ["train", "icl2025", "--set", "num_heads=1000000000"],
    ["prove", "icl2025", "--set", "dim=200000"],
    ["diagnose", "arda2026", "--set", "num_samples=100000000", "--no-trials"],
    ["train", OWN, "--set", "size=200000"],
    ["prove", OWN, "--set", "size=1000000"],
]
KNOBS = [
    ("wu2023", "num_tokens"), ("wu2023", "width"), ("wu2023", "num_samples"),
    ("song2024", "num_tokens"), ("song2024", "num_samples"),
    ("arda2026", "num_tokens"), ("arda2026", "num_samples"),
    ("qin2025", "num_tokens"), ("qin2025", "width"),
    ("icl2025", "dim"), ("icl2025", "num_heads"),
]  # fmt: skip


def with_own_model(words: list[str], folder: Path) -> list[str]:
    """A command in which the own model is a file."""
    path = folder / "pairs.py"
    path.write_text(MODEL)
    return [f"{path}:model" if word == OWN else word for word in words]


def accepted(paper: str, name: str, size: int) -> bool:
    """Whether a setting is taken to fit."""
    from shoal.errors import InputError
    from shoal.lab.memory import refuse_giants
    from shoal.lab.setting import with_values
    from shoal.papers import PAPERS

    setting: Any = PAPERS[paper].setting()
    setting = with_values(setting, {name: size, "num_steps": 1}, owner=paper).complete()
    try:
        refuse_giants(setting, 1)
    except InputError as error:
        if "GiB are available" not in str(error):
            raise
        return False
    return True


def largest(paper: str, name: str) -> int:
    """The largest power of two that is accepted."""
    low = next(k for k in range(2, 60) if not accepted(paper, name, 2**k)) - 1
    return 2**low


def trained(paper: str, name: str, size: int, available: float) -> tuple[int, str]:
    """Train for a step where so many bytes are available, in this process."""
    from shoal.cli import main
    from shoal.lab import memory

    memory.available_memory = lambda: available
    words = ["train", paper, "--set", f"{name}={size}", "--steps", "1", "--probes", "none"]
    return main([*words, "--json"]), words[3]


def fits(available: float, only: list[str]) -> None:
    """The largest of each, run."""
    from shoal.lab import memory

    memory.available_memory = lambda: available
    for paper, name in KNOBS:
        if only and f"{paper}.{name}" not in only:
            continue
        size, begun = largest(paper, name), time.monotonic()
        words = [sys.executable, "-m", "giants", "one", paper, name, str(size), str(available)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        taken = done.stderr.strip().splitlines()[-1:] or [""]
        seconds = time.monotonic() - begun
        sys.stdout.write(
            f"{paper} {name}={size}: exit {done.returncode}, {seconds:.0f} s, {taken[0]}\n"
        )
        sys.stdout.flush()


def refused() -> None:
    """How long each refusal takes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for words in GIANTS:
            begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "shoal", *with_own_model(words, Path(folder))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
            told = (
                f"exit {done.returncode}, {time.monotonic() - begun:.1f} s ({cpu:.1f} of processor)"
            )
            sys.stdout.write(f"{' '.join(words)}: {told}: {done.stderr.strip()[:110]}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["refused"]:
            refused()
        case ["fits", gib, *only]:
            fits(float(gib) * 2**30, only)
        case ["one", paper, name, size, available]:
            import jax  # noqa: F401

            base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            code, _ = trained(paper, name, int(size), float(available))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            sys.stderr.write(
                f"peak {peak / 2**20:.2f} GiB, {(peak - base) / 2**20:.2f} beyond JAX\n"
            )
            sys.exit(code)
