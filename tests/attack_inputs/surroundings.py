"""Commands in odd surroundings: no home, a full device, closed streams, a folder that is gone.

Each is a real process. What must not happen anywhere: a traceback, an exit code that is not
documented, a wait that does not end.
"""

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from attack_inputs.specimens import settings

LONGEST = 900.0  # seconds: a command of this list takes a few, on a busy machine minutes
SURROUNDINGS = {
    "no HOME": "env -u HOME -u SHOAL_CACHE_DIR {}",
    "HOME is nowhere": "env -u SHOAL_CACHE_DIR HOME=/nonexistent/home {}",
    "HOME is a file": "env -u SHOAL_CACHE_DIR HOME=/etc/passwd {}",
    "HOME cannot be written": "env -u SHOAL_CACHE_DIR HOME=/proc {}",
    "the cache is a file": "env SHOAL_CACHE_DIR=/etc/passwd {}",
    "the cache is a loop": "ln -s loop loop; env SHOAL_CACHE_DIR=loop/x {}",
    "TMPDIR is nowhere": "env TMPDIR=/nonexistent {}",
    "TMPDIR is a file": "env TMPDIR=/etc/passwd {}",
    "LANG=C": "env LANG=C LC_ALL=C {}",
    "no UTF-8 at all": "env LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {}",
    "ASCII streams": "env PYTHONIOENCODING=ascii:strict {}",
    "stdout closed": "{} >&-",
    "stderr closed": "{} 2>&-",
    "stdin closed": "{} <&-",
    "all closed": "{} <&- >&- 2>&-",
    "stdout full": "{} >/dev/full",
    "stderr full": "{} 2>/dev/full",
    "both full": "{} >/dev/full 2>&1",
    "a pipe that closes early": "{} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}",
    "a pipe that nobody reads": "{} | true; exit ${{PIPESTATUS[0]}}",
    "ten columns": "env COLUMNS=10 {}",
    "one column": "env COLUMNS=1 {}",
    "no columns": "env COLUMNS=0 LINES=0 {}",
    "columns of words": "env COLUMNS=wide {}",
    "no colour": "env NO_COLOR=1 {}",
    "a dumb terminal": "env TERM=dumb {}",
    "a forced terminal": "env FORCE_COLOR=1 TERM=nonsense {}",
    "umask 777": "umask 777; {}",
    "umask 0": "umask 0; {}",
    "the folder is gone": "mkdir gone; cd gone; rmdir ../gone; {}",
    "a folder without permission": "mkdir shut; cd shut; chmod 0 .; {}",
    "no environment": "env -i {}",
    "no PATH": "env PATH= {}",
    "another compiler": "env CC='rm -rf' {}",
    "a compiler that fails": "env CC=false SHOAL_CACHE_DIR=$PWD/fresh {}",
    "few files": "ulimit -n 24; {}",
    "small files": "ulimit -f 1; {}",
    "no core, small stack": "ulimit -c 0 -s 512; {}",
    "few addresses": "ulimit -v 2000000; {}",
    "a low priority": "nice -n 19 {}",
    "ignored signals": "trap '' INT TERM PIPE HUP; {}",
    "one core": "taskset -c 0 {}",
    "a folder named with a newline": "mkdir $'a\\nb'; cd $'a\\nb'; {}",
    "a folder that is not UTF-8": "mkdir $'\\xff'; cd $'\\xff'; {}",
    "a module in the way": "echo 'raise SystemExit(99)' > random.py; {}",
    "optimised Python": "env PYTHONOPTIMIZE=2 {}",
    "unbuffered": "env PYTHONUNBUFFERED=1 {}",
    "warnings are errors": "env PYTHONWARNINGS=error {}",
    "JAX wants a GPU": "env JAX_PLATFORMS=cuda {}",
    "JAX's cache is nowhere": "env JAX_COMPILATION_CACHE_DIR=/nonexistent/x {}",
    "nonsense for XLA": "env XLA_FLAGS=--xla_nonsense=1 {}",
    "nonsense for threads": "env OPENBLAS_NUM_THREADS=many OMP_NUM_THREADS=-1 {}",
    "nonsense for matplotlib": "env MPLBACKEND=nonsense MPLCONFIGDIR=/nonexistent {}",
    "a date far away": "env SOURCE_DATE_EPOCH=99999999999999 TZ=Nonsense/Zone {}",
}  # fmt: skip
BROKEN = (
    "Traceback",
    "Warning: ",
    "Exception ignored",
    "Fatal Python error",
    "Segmentation",
    "core dumped",
)
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def commands(has: dict[str, Path]) -> dict[str, list[str]]:
    """One command of each sort: it prints, trains, draws, writes, asks, serves."""
    small = settings("wu2023")
    return {
        "help": ["--help"],
        "papers": ["papers", "wu2023"],
        "train": ["train", "wu2023", *small, "--steps", "2", "--out", "run"],
        "json": ["train", "wu2023", *small, "--steps", "2", "--json"],
        "report": ["report", str(has["run wu2023"]), "--out", "page.html"],
        "landscape": ["landscape", str(has["run wu2023"]), "--points", "3", "--out", "drawn"],
        "sweep": ["sweep", str(has["sweep file"]), "--out", "swept"],
        "query": ["query", str(has["sweep"]), "select * from runs"],
        "export": ["export", str(has["sweep"]), "t.csv"],
        "check": ["check", str(has["proof"])],
        "diagnose": ["diagnose", str(has["log"]), "--out", "d.html"],
        "claims": ["claims", str(has["toy"]), "--ledger", str(has["ledger"])],
        "new": ["new", "paper", "mine"],
        "bad": ["train", "nonsense\x1b[2J"],
    }


def tried(name: str, command: list[str]) -> tuple[int | None, str]:
    """Run a command in a surrounding; its exit code and what is wrong."""
    words = shlex.join([sys.executable, "-m", "shoal", *command])
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        line = SURROUNDINGS[name].format(words)
        try:
            done = subprocess.run(
                ["bash", "-c", line], cwd=place, capture_output=True, timeout=LONGEST,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, "did not end"
        finally:
            for folder, _, _ in os.walk(place):
                os.chmod(folder, 0o700)
    said = (done.stdout + done.stderr).decode(errors="replace")
    if any(word in said for word in BROKEN):
        return done.returncode, f"traceback: {said[-1500:]}"
    if done.returncode not in (0, 1, 2):
        return done.returncode, f"wrong exit {done.returncode}: {said[-300:]!r}"
    if done.returncode and "closed" not in name and "full" not in name and "pipe" not in name:
        lines = [x for x in done.stderr.decode(errors="replace").splitlines() if x]
        if not any(x.startswith(("shoal: ", "not checked")) for x in [*lines, said]):
            return done.returncode, f"message: {said[-500:]!r}"
    if CONTROL.search(said.replace("\x1b[", "")) and "forced" not in name:
        return done.returncode, f"control characters: {said[:300]!r}"
    return done.returncode, ""


def attack(has: dict[str, Path], only: list[str], share: float, seed: int) -> int:
    """Every command in every surrounding, or a drawn share; the number of faults, each printed."""
    wrong, count, rng = 0, 0, random.Random(seed)
    for name in only or SURROUNDINGS:
        codes = []
        for sort, command in commands(has).items():
            if rng.random() >= share:
                continue
            code, fault = tried(name, command)
            count += 1
            codes.append(f"{sort} {code}")
            if fault:
                wrong += 1
                sys.stdout.write(f"  FAULT {name}, {sort}: {fault}\n")
        sys.stdout.write(f"{name}: {', '.join(codes)}\n")
        sys.stdout.flush()
    sys.stdout.write(f"surroundings: {count} commands, {wrong} faults\n")
    return wrong


if __name__ == "__main__":
    from attack_inputs.specimens import make

    parser = argparse.ArgumentParser(prog="attack_inputs.surroundings")
    parser.add_argument("only", nargs="*", choices=[*SURROUNDINGS, []])
    parser.add_argument("--share", type=float, default=1.0, help="draw this share of all pairs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attack-") as where:
        os.environ["SHOAL_CACHE_DIR"] = f"{where}/cache"
        made = make(Path(where) / "specimens")
        sys.exit(1 if attack(made, given.only, given.share, given.seed) else 0)
