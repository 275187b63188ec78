"""SQL over the table of a sweep, in a process that can do nothing else.

Polars' SQL also reads files (``read_csv``) and can take any time and memory. So a question is asked
in a process of its own: it reads the table, gives up the right to open anything, and then answers.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl

from shoal.disk import sweeps
from shoal.errors import InputError, nearest

SECONDS = 120
RECURSIVE = 10
GIB = 8
"""Limits of a question: processor time (less where it may recur without an end), and memory with
all that Python and polars take."""
LARGEST = 10_000_000
"""Values that an answer may have."""
LONGEST = 100_000  # characters


def ask(folder: Path, sql: str) -> pl.DataFrame:
    """The answer to one SELECT or WITH statement over the table ``runs``."""
    refuse_other_statements(sql)
    seconds = min(SECONDS, RECURSIVE) if re.search(r"\brecursive\b", sql, re.I) else SECONDS
    request = json.dumps({"folder": str(folder), "sql": sql, "seconds": seconds}).encode()
    command = [sys.executable, "-m", "shoal.disk.asking"]
    done = subprocess.run(command, input=request, capture_output=True)
    if done.returncode == -signal.SIGXCPU:
        less = "ask for less" if seconds == SECONDS else "let its recursion end"
        msg = f"{sql[:80]!r} took more than {seconds} seconds of processor time; {less}."
        raise InputError(msg)
    if done.returncode == 2:
        raise InputError(done.stderr.decode(errors="replace").strip())
    if done.returncode:
        msg = f"{sql[:80]!r} could not be answered within {GIB} GiB of memory; ask for less."
        raise InputError(msg)
    return pl.read_ipc(done.stdout)


def refuse_other_statements(sql: str) -> None:
    """Refuse what is not one SELECT or WITH statement over the table."""
    first = re.match(r"\s*(\w*)", sql)
    if first is None or first[1].lower() not in ("select", "with"):
        raise InputError(f"{sql[:80]!r}: expected one statement that begins with select or with.")
    if len(sql) > LONGEST:
        raise InputError(f"a statement of {len(sql)} characters; at most {LONGEST} are read.")
    # also inside strings: what is one depends on the dialect
    if reader := re.search(r"read_\w+", sql, re.IGNORECASE):
        raise InputError(f"{reader[0]} is not available; the only table is `runs`.")


def _answer(folder: Path, sql: str, seconds: int) -> bytes:
    table = sweeps.frame(folder)
    _close_doors(seconds)
    try:
        rows = pl.SQLContext({"runs": table}, eager=True).execute(sql)
    except (pl.exceptions.PolarsError, ValueError) as error:
        reason = str(error).splitlines()[0].partition("; valid columns")[0]
        words = [word for word in re.findall(r"\w+", reason) if word in sql.split()]
        missing = words[-1] if words and "column" in reason else ""
        hint = nearest(missing, table.columns) if missing else "the table is `runs`."
        raise InputError(f"{sql[:80]!r}: {reason}; {hint}") from None
    except pl.exceptions.PanicException as error:
        raise InputError(f"{sql[:80]!r} cannot be answered ({error}).") from None
    if rows.height * rows.width > LARGEST:
        msg = f"{sql[:80]!r} has {rows.height:,} rows of {rows.width} columns; ask for less."
        raise InputError(msg)
    found = rows.write_ipc(None)
    return found.getvalue()


def _close_doors(seconds: int = SECONDS) -> None:
    """No file or connection can be opened from here on, and memory is limited."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (GIB * 2**30, GIB * 2**30))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def main() -> int:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    try:
        found = _answer(Path(request["folder"]), request["sql"], request["seconds"])
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.buffer.write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
