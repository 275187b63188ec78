"""A ledger's folder: registrations, results, and who may write.

``registered.jsonl`` is append-only, one line per place, chained by digests.
``results/CLAIM.vN.json`` holds the effects of a claim's seeds in order; ``replicas/`` the same on
disjoint seeds; ``exploratory/`` what was run without a registration. Every file is replaced whole,
so a killed process loses the batch it was in and nothing else.
"""

import fcntl
import json
from pathlib import Path
from typing import Any

from shoal.disk.runs import read_json
from shoal.errors import InputError
from shoal.files import read_regular, remove_stale, write_aside
from shoal.lab.ledger import Json, check_chain, empty_result, line_digest

KINDS = SCORED, REPLICAS, EXPLORATORY = "results", "replicas", "exploratory"


class LedgerFolder:
    """Reads a ledger; writes while it is open as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, None

    def __enter__(self) -> "LedgerFolder":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock: Any = (self.folder / ".lock").open("a+")
        except OSError as error:
            reason = error.strerror or error
            msg = f"cannot write into {str(self.folder)!r} ({reason}); choose --ledger."
            raise InputError(msg) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            msg = f"{str(self.folder)!r} is being written by another process; wait for it."
            raise InputError(msg) from None
        self.lock = lock
        for place in (self.folder, *(self.folder / kind for kind in KINDS)):
            remove_stale(place)
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.close()

    # ------------------------------------------------------------------------- registrations

    @property
    def registered(self) -> Path:
        """The file of registrations."""
        return self.folder / "registered.jsonl"

    def lines(self) -> list[str]:
        """Lines of the registrations, without their ends."""
        if not self.registered.is_file():
            return []
        try:
            return read_regular(self.registered, follow=True).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            msg = f"{str(self.registered)!r} cannot be read ({error})."
            raise InputError(msg) from None

    def registrations(self) -> list[Json]:
        """All registrations, after their chain was checked."""
        return check_chain(self.lines())

    def last_digest(self) -> str:
        """The digest of the last line, for the next."""
        lines = self.lines()
        return line_digest(lines[-1] if lines else "")

    def append(self, registration: Json) -> None:
        """Add a line."""
        line = json.dumps(registration, ensure_ascii=False, separators=(", ", ": "))
        text = "\n".join([*self.lines(), line]) + "\n"
        write_aside(self.registered, text.encode())

    # ------------------------------------------------------------------------------- results

    def path(self, kind: str, key: str, version: int) -> Path:
        """Where a result is kept."""
        return self.folder / kind / f"{key}.v{version}.json"

    def result(self, kind: str, key: str, version: int, digest: str, first: int) -> Json:
        """A result, empty if there is none yet."""
        path = self.path(kind, key, version)
        if not path.is_file():
            return empty_result(key, version, digest, first)
        found = read_json(path)
        if not isinstance(found, dict) or found.get("digest") != digest:
            msg = f"{str(path)!r} is not a result of this registration (its digest differs); "
            raise InputError(f"{msg}restore it from version control.")
        return _checked(found, path)

    def write(self, kind: str, result: Json) -> None:
        """Replace a result: when this returns, it is on disk."""
        rows = json.dumps(result, indent=1, ensure_ascii=False)
        path = self.path(kind, result["claim"], result["version"])
        write_aside(path, (_compact(rows) + "\n").encode())

    def rounds_with_seeds(self) -> set[int]:
        """Rounds in which a scored seed was run, for whichever claim (replicas included)."""
        found = set()
        for kind in (SCORED, REPLICAS):
            for path in sorted((self.folder / kind).glob("*.json")):
                kept = _checked(read_json(path), path)
                if kept["effects"]:
                    found.add(kept["first_seed"] // 10_000)
        return found


def _checked(result: Any, path: Path) -> Json:
    """Refuse a result that this program cannot have written."""

    def rows(value: Any) -> bool:
        one = isinstance(value, list) and all(isinstance(row, list) for row in value)
        return one and all(row == [None, None] or _numbers(row) for row in value)

    try:
        kinds = {"claim": str, "version": int, "first_seed": int, "violations": list, "code": list}
        fits = (
            all(type(result[name]) is kind for name, kind in kinds.items())
            and rows(result["effects"])
            and isinstance(result["controls"], list)
            and all(rows(control["effects"]) for control in result["controls"])
            and all(type(seed) is int for seed in result["violations"])
            and all(isinstance(code, str) for code in result["code"])
            and isinstance(result["stale"], dict | None)
            and type(result["log"]["seconds"]) in (int, float)
            and all(isinstance(date, str) for date in result["log"]["dates"])
        )
    except (LookupError, TypeError):
        fits = False
    if not fits:
        msg = f"{str(path)!r} is not a result of a claim; restore it from version control."
        raise InputError(msg)
    return result


def _numbers(row: list[Any]) -> bool:
    return len(row) in (2, 4) and all(type(x) in (int, float) for x in row)


def _compact(text: str) -> str:
    """Put the numbers of one seed onto one line."""
    lines, held = [], None
    for line in text.splitlines():
        bare = line.strip()
        if held is not None:
            if bare in ("]", "],"):
                lines.append(held.rstrip() + bare)
                held = None
            else:
                held += bare + (" " if bare.endswith(",") else "")
        elif bare == "[":
            held = line
        else:
            lines.append(line)
    return "\n".join(lines)
