"""Logs of training loops that shoal does not run: a folder that grows by whole records.

``log.json`` says what is watched; ``records/`` holds Parquet files with one row per record, each
written aside and renamed, so a kill loses at most the record in flight. ``params0.npz`` are the
weights at the first record and ``params.npz`` the newest ones.
"""

import io
from pathlib import Path
from typing import Any

from shoal import trees
from shoal.disk.runs import read_json, require_free, write_json, write_whole
from shoal.disk.tables import read_table
from shoal.errors import InputError
from shoal.files import aside, write_npz

FORMAT = 1
TOGETHER = 64
"""Records that are gathered into one file."""


def is_log(folder: Path) -> bool:
    """Whether a folder is a log."""
    return (folder / "log.json").is_file()


def begin(folder: Path, about: dict[str, Any]) -> None:
    """Make a log's folder, whole or not at all."""
    require_free(folder)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with aside(folder.absolute().parent) as place:
        (place / "log" / "records").mkdir(parents=True)
        write_json(place / "log" / "log.json", {"format": FORMAT} | about)
        (place / "log").rename(folder)


def append(folder: Path, row: dict[str, Any]) -> None:
    """Add a record; after some of them, gather what is there into one file."""
    import polars as pl

    write_whole(folder / "records" / f"{row['step']:012d}.parquet", _parquet(pl.DataFrame([row])))
    files = sorted((folder / "records").glob("*.parquet"))
    if len(files) >= TOGETHER:
        # if a kill comes between the two, rows are there twice, and `records` drops the second
        write_whole(
            folder / "records" / f"{row['step']:012d}-all.parquet", _parquet(records(folder))
        )
        for path in files:
            path.unlink()


def _parquet(table: Any) -> bytes:
    table.write_parquet(content := io.BytesIO())
    return content.getvalue()


def write_params(path: Path, params: Any) -> None:
    """Write weights by block name, whole or not at all."""
    write_npz(content := io.BytesIO(), trees.blocks(params))
    write_whole(path, content.getvalue())


def records(folder: Path) -> Any:
    """All records of a log as a polars frame, in the order of steps."""
    import polars as pl

    files = sorted((folder / "records").glob("*.parquet"))
    if not files:
        raise InputError(f"{str(folder)!r} holds no record yet.")
    try:
        tables = [read_table(path) for path in files]
        return pl.concat(tables, how="diagonal").unique("step").sort("step")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{str(folder)!r} is damaged ({type(error).__name__}).") from None


def read_log(folder: Path) -> tuple[dict[str, Any], Any]:
    """What ``log.json`` says, and the records."""
    about = read_json(folder / "log.json")
    if not isinstance(about, dict) or about.get("format") != FORMAT or "model" not in about:
        raise InputError(f"{str(folder / 'log.json')!r} is not a log of this version.")
    return about, records(folder)
