"""Run a case, and say what is wrong with what came of it."""

import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from attack_inputs.cases import Case

LONGEST = 20.0  # seconds of a clock and of processors: a busy machine is no fault
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Outcome(NamedTuple):
    """What a command did."""

    code: int | None
    out: str
    err: str
    seconds: float
    escaped: str = ""


class _Hangs(BaseException):
    pass


def _worked() -> float:
    """Seconds that processors spent on this process and on those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _timer() -> Callable[[], float]:
    begun, worked = time.monotonic(), _worked()
    return lambda: min(time.monotonic() - begun, _worked() - worked)


def in_process(case: Case, limit: float | None = None) -> Outcome:
    """Call the command line here; ``limit`` interrupts Python code that takes longer."""
    from shoal.cli import main

    out, err, code, escaped = io.StringIO(), io.StringIO(), None, ""

    def stop(*_: Any) -> None:
        nonlocal escaped
        escaped = f"stopped after {limit} s"  # whatever becomes of the exception
        raise _Hangs

    seconds = _timer()
    if limit:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(case.words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        escaped = traceback.format_exc()
    finally:
        if limit:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return Outcome(code, out.getvalue(), err.getvalue(), seconds(), escaped)


def as_process(case: Case, limit: float) -> Outcome:
    """Start the installed command; no system passes on a NUL."""
    seconds = _timer()
    words = [w.replace("\0", "\\0") for w in (sys.executable, "-m", "shoal", *case.words)]
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=limit)
    except subprocess.TimeoutExpired:
        return Outcome(None, "", "", limit, "did not end")
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return Outcome(done.returncode, out, err, seconds())


def faults(kind: str, case: Case, had: Outcome, left: list[str]) -> list[str]:
    """What is wrong: tracebacks, wrong exits, messages, leftovers, hangs."""
    found = []
    if had.seconds > LONGEST:
        found.append(f"hang: {had.seconds:.0f} s")
    if had.escaped or "Traceback" in had.err:
        return [*found, f"traceback: {(had.escaped or had.err)[-1500:]}"]
    rejected = case.words[0] == "check" and had.code == 1 and had.out.strip()
    expected = (2,) if case.refused else (0,) if kind == "honest" else (0, 2)
    if kind == "outs":
        expected = (0, 1, 2)  # a device may turn out to be full when it is written to
    if had.code not in expected and not rejected:
        found.append(f"wrong exit: {had.code}, {had.err[-300:]!r}")
    if had.code in (1, 2) and not rejected:
        lines = [line for line in had.err.splitlines() if line.startswith("shoal: ")]
        if len(lines) != 1 or len(lines[0]) > 2500:
            found.append(f"message: {had.err[:600]!r}")
    if "Warning: " in had.err:
        found.append(f"a warning of Python: {had.err[:600]!r}")
    if CONTROL.search(had.out) or CONTROL.search(had.err.replace("\x1b[2K", "")):
        found.append(f"control characters: {(had.out + had.err)[:300]!r}")
    if had.code == 0 and "--json" in case.words:
        try:
            json.loads(had.out)
        except ValueError:
            found.append(f"not JSON: {had.out[:200]!r}")
    if left:
        found.append(f"leftovers: {left[:5]}")
    return found


def listing(*places: Path) -> set[str]:
    """All files and folders, without what commands remember in a lock."""
    return {str(p) for place in places for p in place.rglob("*") if not p.name.endswith("lock")}


def leftovers(before: set[str], had: Outcome, place: Path, temporary: Path) -> list[str]:
    """New files after a refusal; half-written ones after anything; temporary ones."""
    new = listing(place) - before
    wrong = new if had.code == 2 else {path for path in new if "/.shoal-" in path}
    made = {p for p in listing(temporary) if "/shoal-" in p or "/.shoal-" in p}
    return sorted(wrong | made)


@contextlib.contextmanager
def own_place() -> Any:
    """A folder to be attacked in, and one for temporary files beside it."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        place, temporary = Path(folder) / "place", Path(folder) / "tmp"
        place.mkdir()
        temporary.mkdir()
        home, before, old = os.getcwd(), tempfile.tempdir, os.environ.get("TMPDIR")
        tempfile.tempdir, os.environ["TMPDIR"] = str(temporary), str(temporary)
        try:
            yield place, temporary
        finally:
            os.chdir(home)
            tempfile.tempdir = before
            os.environ.pop("TMPDIR")
            if old is not None:
                os.environ["TMPDIR"] = old


def tried(
    seed: int, number: int, has: dict[str, Path], *, process: bool = False,
    limit: float | None = None, kinds: tuple[str, ...] = (),
) -> tuple[str, Case, Outcome, list[str]]:  # fmt: skip
    """Draw a case, run it and judge it."""
    from attack_inputs.cases import draw

    with own_place() as (place, temporary):
        kind, case = draw(seed, number, place, has, kinds)
        before = listing(place)
        had = as_process(case, 6 * LONGEST) if process else in_process(case, limit)
        return kind, case, had, faults(kind, case, had, leftovers(before, had, place, temporary))
