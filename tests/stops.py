"""SIGTERM and SIGINT in the midst of long commands: how long until nothing of them is left.

``python -m stops`` prints the seconds, the exit code, whether the command said what is kept, its
children that live on, and files that were half-written.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from attack_inputs import specimens

SMALL = specimens.settings("wu2023")
ENDLESS = [*SMALL, "--steps", "100000000000", "--set", "every=10000000000"]
SWEEP = """paper = "wu2023"
[set]
num_samples = 3
num_tokens = 2
dim = 4
num_steps = 100000000000
every = 10000000000
[axes]
width = [4, 6, 8]
"""
BEGINS = "the same command begins again"


def children(pid: int) -> set[int]:
    """Processes that a process has started, and theirs."""
    found: set[int] = set()
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in listed.read_text().split():
            found |= {int(child)} | children(int(child))
    return found


def worked(pid: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_training(process: subprocess.Popen[str], _: Path) -> bool:
    """Whether a command has loaded and compiled everything: then it is in one long call of XLA."""
    return process.poll() is None and worked(process.pid) > 20


def has_busy_children(process: subprocess.Popen[str], _: Path) -> bool:
    """Whether its workers have loaded their libraries and work."""
    return any(worked(child) > 4 for child in children(process.pid))


def is_busy(process: subprocess.Popen[str], place: Path) -> bool:
    """Whether it works, here or in workers: a figure may have a single job."""
    return is_training(process, place) or has_busy_children(process, place)


def has_ledger(_: Any, place: Path) -> bool:
    """Whether a first batch is stored."""
    return any((place / "ledger").glob("*/*.json"))


class Long(NamedTuple):
    """A command, when it is in the midst of its work, and what it says when it is stopped."""

    words: list[str]
    ready: Callable[[Any, Path], bool]
    said: str


COMMANDS = {
    "train in one XLA call": Long(["train", "wu2023", *ENDLESS], is_training, "nothing was saved"),
    "sweep with workers": Long(
        ["sweep", "s.toml"], has_busy_children, "0 of 3 runs are stored; the same command continues"
    ),
    "sweep on Dask": Long(
        ["sweep", "s.toml", "--scheduler"],
        lambda _, place: (place / "s-sweep" / "sweep.toml").exists(),
        "0 of 3 runs are stored; the same command continues",
    ),
    "claims": Long(
        ["claims", "wu2023", "--until-decided", "--ledger", "ledger"], has_ledger,
        "every finished batch is kept, and the same command continues",
    ),
    "reproduce": Long(
        ["reproduce", "wu2023.scaling", "--full"], is_busy,
        "finished runs are kept, and the same command continues",
    ),
    "plan": Long(
        ["plan", "wu2023", "--samples", "64,128", "--seeds", "16"], has_busy_children, BEGINS
    ),
    "prove": Long(
        ["prove", "wu2023", *SMALL, "--steps", "1000000000", "--set", "every=100000000"],
        is_training, BEGINS,
    ),
    "lab": Long(["lab", "--no-open"], has_busy_children, "what was saved from the page is kept"),
}  # fmt: skip


@contextmanager
def dask(folder: Path) -> Iterator[list[str]]:
    """A scheduler with a worker; its address."""
    from test_cluster import cluster

    with cluster(folder) as (address, _):
        yield [address]


def stopped(name: str, number: int, place: Path) -> tuple[float, int, str, set[int], list[str]]:
    """Start, wait for the midst, send the signal.

    Seconds until nothing of it is left, exit code, what it said, its children that live, leftovers.
    """
    place.mkdir()
    (place / "s.toml").write_text(SWEEP)
    before = set(place.iterdir())
    with dask(place.parent) if name.endswith("Dask") else nullcontext([]) as more:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *COMMANDS[name].words, *more], cwd=place,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        while not COMMANDS[name].ready(process, place):
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            assert process.poll() is None, process.communicate()[1]
        mine, begun = children(process.pid), time.monotonic()
        process.send_signal(number)
        _, said = process.communicate()  # until no child holds its standard error
        seconds = time.monotonic() - begun
    alive = {pid for pid in mine if Path(f"/proc/{pid}").exists()}
    left = [str(p) for p in place.rglob(".shoal-*")]
    if "nothing" in COMMANDS[name].said or COMMANDS[name].said == BEGINS:
        left += [str(p) for p in set(place.iterdir()) - before]
    return seconds, process.returncode, said, alive, left


def main() -> None:
    """Print the seconds."""
    # a shell lets commands in the background ignore SIGINT, and children would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in sys.argv[1:] or COMMANDS:
        for number in (signal.SIGTERM, signal.SIGINT):
            with tempfile.TemporaryDirectory(prefix="stops-") as folder:
                seconds, code, said, alive, left = stopped(name, number, Path(folder) / "place")
            kept = "says it" if COMMANDS[name].said in said else f"SAYS {said[-200:]!r}"
            sys.stdout.write(
                f"{name}, {number.name}: {seconds:.2f} s, exit {code}, {kept}, "
                f"{len(alive)} children, {len(left)} leftovers\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
