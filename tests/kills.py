"""Kills (-9) at random moments: afterwards the same command must end as if nothing had happened.

``python -m kills --seed 0 --count 100`` (``make kills``) goes through the long commands. Half of
the moments are drawn from the time that the command takes; the other half are drawn from what it
does to files (making, opening for writing, renaming, deleting), since there a kill could hurt: the
process ends itself just before the drawn one. Afterwards the same command runs to its end; its
files must be those of a run that nobody disturbed, byte for byte, without dates and durations; no
file that was half-written and no process may be left.
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from attack_inputs import specimens

LONGEST = 600.0  # seconds until children of a killed process count as left behind
SMALL = specimens.settings("wu2023")
WATCHED = """
import numpy as np, shoal as sh
setup = sh.setup(lambda w, x: x @ w, np.ones(3), np.eye(4, 3), np.ones(4))
watch = sh.watch(setup, every=1, out="log", method="gd", step_size=0.1, probes=[])
for step in range(150):
    watch(step, np.ones(3) * 0.9**step)
"""
COMMANDS: dict[str, list[str]] = {
    "train": ["train", "wu2023", *SMALL, "--steps", "3000", "--out", "run"],
    "claims": ["claims", "toy.py", "--until-decided", "--out", "pages",
               "--markdown", "table.md"],
    "reproduce": ["reproduce", "toy.py", "--out", "figures"],
    "sweep": ["sweep", "grid.toml", "--out", "swept"],
    "plan": ["plan", "./toy.py", "--samples", "2,3", "--seeds", "2", "--out", "planned"],
    "landscape": ["landscape", "trained", "--points", "15", "--out", "drawn"],
    "diagnose": ["diagnose", "own.py:model", "--steps", "200", "--out", "page.html"],
    "prove": ["prove", "own.py:line", "--steps", "20", "--out", "proof.json"],
    "kernel": ["kernel", "wu2023", "--set", "num_samples=40", *SMALL[2:], "--part", "14",
               "--out", "kernel"],
    "watch": [],
    "tour": ["tour", "--out", "tour.html"],
}  # fmt: skip
ENDER = """
import os, signal, sys
ROOT, AT, REPORT = os.environ.pop("KILLS").split("|")
seen = 0
def hook(event, given):
    global seen
    if event == "open":
        flags = given[2] if isinstance(given[2], int) else 0
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
    elif event not in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod"):
        return
    name = given[0]
    if not isinstance(name, (str, bytes)) and not hasattr(name, "__fspath__"):
        return
    if not os.path.abspath(os.fsdecode(name)).startswith(ROOT):
        return
    if os.fsdecode(name) == REPORT:
        return
    seen += 1
    if seen == int(AT):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
import atexit
@atexit.register
def tell():
    if AT == "0":
        open(REPORT, "w").write(str(seen))
"""


class Calm(NamedTuple):
    """What a command made when nobody disturbed it."""

    place: Path
    files: dict[str, bytes]
    seconds: float
    writes: int


class Field:
    """A folder in which a command is run, killed and run again."""

    def __init__(self, root: Path, prepared: Path, command: str) -> None:
        self.root, self.command = root, command
        self.place, self.temporary = root / "place", root / "tmp"
        shutil.copytree(prepared, self.place)
        self.temporary.mkdir()
        (root / "site").mkdir()
        (root / "site" / "sitecustomize.py").write_text(ENDER)

    def start(self, at: int | None = None) -> subprocess.Popen[bytes]:
        """Start the command; with ``at``, it ends itself before that write (0: it only counts)."""
        words = [sys.executable, "-m", "shoal", *COMMANDS[self.command]]
        if self.command == "watch":
            words = [sys.executable, "-c", WATCHED]
        environment = os.environ | {
            "SHOAL_CACHE_DIR": str(self.root / "cache"), "TMPDIR": str(self.temporary),
            "SOURCE_DATE_EPOCH": "0", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        if at is not None:
            environment["KILLS"] = f"{self.root}|{at}|{self.root / 'writes'}"
            paths = [str(self.root / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        return subprocess.Popen(
            words, cwd=self.place, env=environment, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def left(self) -> list[str]:
        """Files and folders that were half-written."""
        names = (*self.root.rglob(".shoal-*"), *self.temporary.rglob("*"))
        return [str(path.relative_to(self.root)) for path in names]

    def files(self) -> dict[str, bytes]:
        """What the command made, without dates, durations and the folder's own name."""
        found = {}
        for path in sorted(self.place.rglob("*")):
            if path.is_file() and not path.name.endswith("lock"):
                content = undated(path).replace(str(self.place).encode(), b"PLACE")
                found[str(path.relative_to(self.place))] = content
        return found


def undated(path: Path) -> bytes:
    """The bytes of a file, without dates and durations."""
    content = path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(_undated(json.loads(content)), sort_keys=True).encode()
    if path.suffix in (".html", ".md"):
        content = re.sub(rb"\d{4}-\d\d-\d\d( \d\d:\d\d UTC)?", b"", content)
        content = re.sub(rb"\d+(\.\d+)? (s|min|h)\b", b"", content)
    return content


def _undated(value: Any) -> Any:
    if isinstance(value, dict):
        # the seal of a proof covers its seconds
        dates = ("created", "seconds", "made", "date", "dates", "sha256")
        return {k: _undated(v) for k, v in value.items() if k not in dates}
    return [_undated(v) for v in value] if isinstance(value, list) else value


def prepare(folder: Path) -> None:
    """Files that the commands need."""
    folder.mkdir()
    specimens.files(folder)
    run = [sys.executable, "-m", "shoal"]
    for words in (
        ["claims", "freeze", "toy.py"],
        ["train", "wu2023", *SMALL, "--steps", "2", "--out", "trained"],
    ):
        subprocess.run([*run, *words], cwd=folder, check=True, capture_output=True)


def undisturbed(root: Path, prepared: Path, command: str) -> Calm:
    """Run a command twice without disturbing it: it must give the same, or nothing is shown."""
    made = []
    for number in range(2):
        field = Field(root / f"{command}-calm{number}", prepared, command)
        begun = time.monotonic()
        _, said = (process := field.start(at=0)).communicate()
        assert process.returncode == 0, said.decode()
        writes = int((field.root / "writes").read_text())
        made.append(Calm(field.place, field.files(), time.monotonic() - begun, writes))
    differ = [n for n in made[0].files if made[0].files[n] != made[1].files.get(n)]
    assert not differ, f"{command} is not deterministic: {differ}"
    return made[1]


def once(
    rng: random.Random, root: Path, prepared: Path, command: str, calm: Calm, at: int = 0
) -> list[str]:
    """Kill a command (before its write ``at``, if given), run it again, and say what is wrong."""
    field = Field(root, prepared, command)
    if not at and calm.writes and rng.random() < 0.5:
        at = rng.randint(1, calm.writes)
    process = field.start(at=at or None)
    if not at:
        try:
            process.wait(rng.uniform(0.05, 1.0) * calm.seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    try:
        process.communicate(timeout=LONGEST)  # until every child has closed its standard error
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return [f"children of the killed process lived on for {LONGEST:.0f} s"]
    if process.returncode not in (0, -signal.SIGKILL):
        return [f"exit {process.returncode} before the kill"]
    if command == "watch":
        return _log_is_whole(field, calm)
    again = field.start()
    said = again.communicate()[1].decode(errors="replace")
    finished = again.returncode == 2 and "exists already" in said  # killed after its last write
    wrong = [] if again.returncode == 0 or finished else [f"exit {again.returncode}: {said[-400:]}"]
    found = field.files()
    for name in sorted({*calm.files, *found}):
        if found.get(name) != calm.files.get(name):
            wrong.append(f"{name}: {_difference(calm.files.get(name), found.get(name))}")
    return wrong + [f"left behind: {name}" for name in field.left()]


def _difference(wanted: bytes | None, found: bytes | None) -> str:
    """Where two files part."""
    if wanted is None or found is None:
        return "should not be there" if wanted is None else "is missing"
    at = next((k for k, pair in enumerate(zip(wanted, found, strict=False)) if len({*pair}) > 1), 0)
    return f"{wanted[max(at - 60, 0) : at + 60]!r} became {found[max(at - 60, 0) : at + 60]!r}"


def _log_is_whole(field: Field, calm: Calm) -> list[str]:
    """A log that was cut short holds the first records; the next log clears up what was left."""
    from shoal.disk import logs

    whole, wrong = logs.records(calm.place / "log"), []
    if (log := field.place / "log").exists():
        if any(log.glob("records/*.parquet")):
            kept = logs.read_log(log)[1]
            if not kept.equals(whole.head(len(kept))):
                wrong.append("the records are not the first of the log")
        log.rename(field.root / "first")
        shutil.rmtree(field.root / "first")
    again = field.start()
    said = again.communicate()[1].decode(errors="replace")
    if again.returncode or not logs.records(log).equals(whole):
        wrong.append(f"exit {again.returncode}: {said[-400:]}")
    return wrong + [f"left behind: {name}" for name in field.left()]


def main() -> int:
    """Kill and compare; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    given = parser.parse_args()
    rng, bad = random.Random(given.seed), 0
    kills: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        root = Path(folder)
        os.environ.setdefault("SHOAL_CACHE_DIR", f"{folder}/cache")
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/xla")
        prepare(root / "prepared")
        calm = {name: undisturbed(root, root / "prepared", name) for name in given.only}
        for number in range(given.count):
            command = given.only[number % len(given.only)]
            place = root / f"kill{number}"
            wrong = once(rng, place, root / "prepared", command, calm[command])
            kills[command] += 1
            bad += bool(wrong)
            for text in wrong:
                sys.stdout.write(f"{number} {command}: {text}\n")
            sys.stdout.flush()
            sys.stderr.write(f"{number + 1} kills, {bad} with faults\n")
            shutil.rmtree(place)
    counted = ", ".join(
        f"{name} {n} ({calm[name].seconds:.0f} s, {calm[name].writes} writes)"
        for name, n in kills.items()
    )
    sys.stdout.write(f"{sum(kills.values())} kills: {counted}; {bad} with faults\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
