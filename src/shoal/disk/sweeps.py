"""Sweep folders: finished runs in Parquet files that are named by their content.

``runs/<digest>.parquet`` hold the runs, one batch each, merged when there are many. A file's name
is the beginning of the SHA-256 of its bytes, so damage is noticed. A file appears whole or not at
all. Two files may hold the same run: the same row (a merge was interrupted), or a failure that was
retried, which no longer counts. ``index.parquet`` is the table without curves, for other tools; it
is written from ``runs``. ``sweep.toml`` is the file that was run. ``lock`` is held by the process
that writes.
"""

import fcntl
import hashlib
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from shoal.disk.tables import read_table
from shoal.errors import InputError
from shoal.files import read_regular, remove_stale, write_aside

MERGE_AT = 64  # Files.
CURVES = ("curve_step", "curve_risk")


class Damaged(NamedTuple):
    """A file of runs whose content does not fit its name."""

    path: Path
    reason: str


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def load(folder: Path) -> tuple[pl.DataFrame | None, list[Damaged]]:
    """All runs of a folder, each once and in order, and the files that cannot be read."""
    paths = (folder / "runs").glob("*.parquet")
    frames: list[pl.DataFrame] = []
    damaged: list[Damaged] = []
    for path in sorted(paths, key=lambda p: (-p.lstat().st_mtime_ns, p.name)):  # newest first
        try:
            content = read_regular(path)
            if _digest(content) != path.stem:
                raise OSError("its content changed after it was written")
            found = _checked(read_table(path, content=content))
            both = [rows.clear() for rows in (*frames[:1], found)]  # do the types go together?
            pl.concat(both, how="diagonal_relaxed")
            frames.append(found)
        # a forged file can make the reader raise almost anything, and panic
        except (Exception, pl.exceptions.PanicException) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            damaged.append(Damaged(path, reason or type(error).__name__))
    if not frames:
        return None, damaged
    rows = pl.concat(frames, how="diagonal_relaxed")
    rows = rows.sort(pl.col("status") == "failed", maintain_order=True)  # retried failures last
    return rows.unique("key", keep="first", maintain_order=True).sort("number"), damaged


def _checked(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, if they have the columns and types that shoal writes."""
    for name in ("number", "key", "seed", "status"):
        if name not in rows.columns:
            raise OSError(f"it has no column {name!r}")
        if rows[name].null_count():
            raise OSError(f"column {name!r} has gaps")
    for name, kind in rows.schema.items():
        if not any(kind.is_(k) for k in (pl.Boolean, pl.String, pl.Null)) and not _numbers(kind):
            raise OSError(f"column {name!r} holds {kind}")
    wanted: dict[str, Callable[[Any], bool]] = {
        "number": _whole, "seed": _whole, "key": _words, "status": _words, "reason": _words,
        "risk_first": _numeric, "risk_last": _numeric, "curve_step": _lists, "curve_risk": _lists,
    }  # fmt: skip
    for name, right in wanted.items():
        kind = rows.schema.get(name, pl.Null())
        if not kind.is_(pl.Null) and not right(kind):
            raise OSError(f"column {name!r} holds {kind}")
    return rows


def _whole(kind: Any) -> bool:
    return kind.is_integer()


def _numeric(kind: Any) -> bool:
    return kind.is_numeric()


def _words(kind: Any) -> bool:
    return kind.is_(pl.String)


def _lists(kind: Any) -> bool:
    return isinstance(kind, pl.List)


def _numbers(kind: Any) -> bool:
    """Numbers, or lists of numbers or words (a setting of several values)."""
    if isinstance(kind, pl.List):
        inner = kind.inner
        return inner.is_numeric() or any(inner.is_(k) for k in (pl.String, pl.Boolean, pl.Null))
    return kind.is_integer() or kind.is_float()


def frame(folder: str | Path) -> pl.DataFrame:
    """All finished runs of a sweep as a data frame, one row per run.

    Raises if a file is damaged: the message names it and says how to repair it.
    """
    folder = Path(folder)
    if not (folder / "runs").is_dir():
        raise InputError(f"{str(folder)!r} is not a sweep folder; make one with shoal sweep.")
    rows, damaged = load(folder)
    if damaged:
        files = "; ".join(f"{d.path.name}: {d.reason}" for d in damaged)
        msg = f"{str(folder)!r} is damaged ({files}); run the sweep again to repair it."
        raise InputError(msg)
    if rows is None:
        raise InputError(f"{str(folder)!r} holds no finished run yet.")
    return rows


class Writer:
    """The only process that writes into a folder, while it is open."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            self.lock = (folder / "lock").open("a+")
        except OSError as error:
            reason = error.strerror or error
            msg = f"cannot write into {str(folder)!r} ({reason}); choose another --out."
            raise InputError(msg) from None

    def __enter__(self) -> "Writer":
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.seek(0)
            who = self.lock.read(40).strip() or "another process"
            self.lock.close()
            msg = f"{str(self.folder)!r} is being written by {who}; wait, or choose another --out."
            raise InputError(msg) from None
        self.lock.truncate(0)
        self.lock.write(f"process {os.getpid()}\n")
        self.lock.flush()
        for place in (self.folder, self.runs):
            remove_stale(place)
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.close()

    def write_text(self, text: str) -> None:
        """Store the sweep's file beside its runs."""
        write_aside(self.folder / "sweep.toml", text.encode())

    def set_aside(self, damaged: Iterable[Damaged]) -> None:
        """Rename damaged files, so that they are read no more."""
        for file in damaged:
            file.path.rename(file.path.with_suffix(".damaged"))

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Store finished runs: when this returns, they are on disk."""
        self._write(pl.DataFrame(rows, infer_schema_length=None))
        if len(list(self.runs.glob("*.parquet"))) >= MERGE_AT:
            self.merge()

    def _write(self, rows: pl.DataFrame) -> Path:
        rows.write_parquet(content := io.BytesIO())
        path = self.runs / f"{_digest(content.getvalue())}.parquet"
        write_aside(path, content.getvalue())
        return path

    def merge(self) -> None:
        """Merge many small files into one. An interruption leaves duplicates, never gaps."""
        paths = sorted(self.runs.glob("*.parquet"))
        rows, damaged = load(self.folder)
        if rows is None or damaged or len(paths) < 2:
            return
        merged = self._write(rows)
        for path in paths:
            if path != merged:
                path.unlink()

    def index(self) -> pl.DataFrame | None:
        """Write the table without curves, and return it with them."""
        rows, _ = load(self.folder)
        if rows is not None:
            rows.drop(CURVES, strict=False).write_parquet(content := io.BytesIO())
            write_aside(self.folder / "index.parquet", content.getvalue())
        return rows
