"""``sweep``, ``ls``, ``show``, ``query`` and ``export``: many runs, and what is found in them."""

import io
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.markup import escape

from shoal.cli import show
from shoal.errors import InputError, nearest
from shoal.files import write_aside
from shoal.session import begin

begin()

import polars as pl  # noqa: E402

from shoal import workers  # noqa: E402
from shoal.cli.work import print_json  # noqa: E402
from shoal.programs import cores  # noqa: E402
from shoal.sweeps import batches, cluster, folder, grid  # noqa: E402
from shoal.sweeps.written import Written, read  # noqa: E402


def sweep(
    file: Written,
    out: Path,
    *,
    dry_run: bool,
    retry: bool,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """``shoal sweep``."""
    wanted = grid.listed(file)
    if dry_run:
        _dry_run(wanted, out, as_json=as_json)
        return
    with folder.Writer(out) as writer:
        _go(wanted, writer, scheduler, retry=retry, as_json=as_json)


def _dry_run(wanted: grid.Sweep, out: Path, *, as_json: bool) -> None:
    found = batches.estimate(wanted, cores())
    if as_json:
        print_json(found._asdict() | {"out": str(out)})
        return
    terminal = show.console()
    varied = ", ".join(wanted.varied) or "nothing but seeds"
    terminal.print(
        f"{found.runs} runs of {wanted.paper.key}: {len(wanted.settings)} settings ({varied}) with "
        f"{len(wanted.written.seeds)} seeds.\n"
        f"{found.batches} batches of {found.programs} programs, about {found.flops:.2g} flops: "
        f"roughly {show.duration(found.seconds)} on {cores()} cores and "
        f"{found.memory:.1f} GiB in all.",
        markup=False,
    )


def _go(
    wanted: grid.Sweep,
    writer: folder.Writer,
    scheduler: str | None,
    *,
    retry: bool,
    as_json: bool,
) -> None:
    rows, damaged = folder.load(writer.folder)
    if damaged:
        for found in damaged:
            show.note(f"{found.path.name} is damaged ({found.reason}); its runs are done again.")
        writer.set_aside(damaged)
    if rows is not None and retry:
        rows = rows.filter(pl.col("status") != "failed")
    have = set() if rows is None else set(rows["key"])
    divided = batches.batches(wanted.written.text)
    keys = [grid.key_of(wanted, run) for run in range(wanted.num_runs)]
    todo = [k for k, b in enumerate(divided) if any(keys[run] not in have for run in b.runs)]
    recorded = sum(key in have for key in keys)
    if recorded:
        show.note(f"{recorded} of {wanted.num_runs} runs are there already.")
    writer.keep_text(wanted.written.text)
    begun = time.monotonic()
    done = 0
    try:
        with show.progress(f"{wanted.paper.key}: runs") as tell:
            for number, made, error in _answers(wanted, todo, scheduler, begun):
                new = made if not error else _failed(wanted, divided[number], error)
                new = [row for row in new if row["key"] not in have]
                writer.add(new)
                done += len(new)
                tell(recorded + done, wanted.num_runs)
    except KeyboardInterrupt:
        show.note(f"stopped: {recorded + done} of {wanted.num_runs} runs are kept; {_again()}")
        raise
    except OSError as error:
        show.note(f"{recorded + done} of {wanted.num_runs} runs are kept; {_again()}")
        raise InputError(f"cannot write into {str(writer.folder)!r} ({error.strerror}).") from None
    seconds = time.monotonic() - begun
    writer.merge()
    table = writer.index()
    if table is None:
        raise InputError(f"no run was finished; {_again()}.")
    mine = table.filter(pl.col("key").is_in(keys))
    _tell(wanted, mine, writer.folder, done, seconds, as_json=as_json)


def _again() -> str:
    return f"the same command continues: {shlex.join(['shoal', *sys.argv[1:]])}"


def _answers(
    wanted: grid.Sweep, todo: list[int], scheduler: str | None, begun: float
) -> Iterator[tuple[int, list[dict[str, Any]], str]]:
    """Batches as they are done, until the budget's hours are over."""

    def in_time() -> Iterator[int]:
        for number in todo:
            if time.monotonic() - begun > 3600 * wanted.written.hours:
                show.note(f"the budget of {wanted.written.hours:g} hours is used up; {_again()}")
                return
            yield number

    if scheduler is not None:
        yield from cluster.spread(scheduler, wanted.written.text, in_time())
        return
    tasks = ({"sweep": wanted.written.text, "batch": number} for number in in_time())
    for answer in workers.spread(tasks, most=min(cores(), max(len(todo), 1))):
        yield answer.task["batch"], answer.value, answer.error or ""


def _failed(wanted: grid.Sweep, batch: batches.Batch, error: str) -> list[dict[str, Any]]:
    return [batches.row_of(wanted, run, error) for run in batch.runs]


def _tell(
    wanted: grid.Sweep, table: pl.DataFrame, out: Path, done: int, seconds: float, *, as_json: bool
) -> None:
    counts = dict(table.group_by("status").len().sort("status").iter_rows())
    rate = done / seconds if seconds > 0 else 0.0
    if as_json:
        about = {"out": str(out), "runs": len(table), "done_now": done, "seconds": seconds}
        print_json(about | {"status": counts})
        return
    terminal = show.console()
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    terminal.print(_summary(table, list(wanted.varied), list(wanted.written.theorems)))
    terminal.print(f"{len(table)} of {wanted.num_runs} runs: {said}.", markup=False)
    if done:
        show.note(f"{done} runs in {show.duration(seconds)}, {rate:.3g} a second.")
    show.note(f"wrote {out}; look with shoal ls, show, query and export.")


LINES = 40


def _summary(table: pl.DataFrame, varied: list[str], theorems: list[str]) -> Any:
    """Settings with the median of their seeds."""
    last = pl.col("risk_last") / pl.col("risk_first")
    columns = [
        pl.len().alias("runs"),
        (pl.col("status") == "done").sum().alias("done"),
        last.median().alias("risk over first"),
        *((pl.col(t) == "holds").sum().alias(f"{t} holds") for t in theorems),
    ]
    for name in ("risk_last", "risk_first", *theorems):
        if name not in table.columns:  # nothing but failures
            table = table.with_columns(pl.lit(None, pl.Float64).alias(name))
    found = (
        table.group_by(varied, maintain_order=True).agg(columns)
        if varied
        else table.select(columns)
    )
    return _shown(found)


def _shown(found: pl.DataFrame) -> Any:
    rows = show.table(*found.columns)
    for row in found.head(LINES).iter_rows():
        rows.add_row(*(escape(_cell(value)) for value in row))
    if len(found) > LINES:
        rows.add_row(f"... {len(found) - LINES} more", *[""] * (len(found.columns) - 1))
    return rows


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return show.number(value)
    if isinstance(value, list):
        return f"[{len(value)} numbers]"
    return str(value)


# ---------------------------------------------------------------------------------------- looking


def ls(path: Path, *, as_json: bool) -> None:
    """``shoal ls``."""
    table = folder.frame(path)
    try:
        wanted = grid.listed(read(path / "sweep.toml"))
        varied, theorems = list(wanted.varied), list(wanted.written.theorems)
        total = wanted.num_runs
    except InputError:  # made by another version: the runs can still be read
        varied, theorems, total = [], [], len(table)
    if as_json:
        print_json([_row(row) for row in table.drop(folder.CURVES, strict=False).to_dicts()])
        return
    terminal = show.console()
    terminal.print(_summary(table, [v for v in varied if v in table.columns], theorems))
    terminal.print(f"{len(table)} of {total} runs in {path}.", markup=False)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if v is not None}


def show_run(path: Path, run: str, *, as_json: bool) -> None:
    """``shoal show``: by number, or by the beginning of a key."""
    table = folder.frame(path)
    if run.isdigit() and len(run) < 12:
        found = table.filter(pl.col("number") == int(run))
    else:
        found = table.filter(pl.col("key").str.starts_with(run))
    if len(found) != 1:
        many = f"{len(found)} runs have keys that begin so" if len(found) else "there is none"
        msg = f"run {run!r}: {many}; numbers go from 0 to {len(table) - 1}."
        raise InputError(msg)
    row = _row(found.to_dicts()[0])
    if as_json:
        print_json(row)
        return
    terminal = show.console()
    rows = show.table("", f"run {row['number']}")
    for name, value in row.items():
        if name not in folder.CURVES:
            rows.add_row(escape(name), escape(_cell(value)))
    terminal.print(rows)
    if "curve_risk" in row:
        curve = show.table("step", "risk")
        points = list(zip(row["curve_step"], row["curve_risk"], strict=True))
        for step, risk in points[:: max(1, len(points) // 12)]:
            curve.add_row(str(step), _cell(risk))
        terminal.print(curve)


def query(path: Path, sql: str, *, as_json: bool) -> None:
    """``shoal query``: SQL over the table ``runs``."""
    table = folder.frame(path)
    try:
        found = pl.SQLContext({"runs": table}, eager=True).execute(sql)
    except (pl.exceptions.PolarsError, ValueError) as error:
        said = str(error).splitlines()[0]
        missing = said.rpartition(" ")[2].strip("'\"`")
        hint = nearest(missing, table.columns) if "not found" in said else "the table is `runs`."
        msg = f"{sql[:80]!r}: {said}; {hint}"
        raise InputError(msg) from None
    if as_json:
        print_json(found.to_dicts())
        return
    show.console().print(_shown(found))


def export(path: Path, out: Path, *, as_json: bool) -> None:
    """``shoal export``."""
    table = folder.frame(path)
    content = io.BytesIO()
    if out.suffix == ".parquet":
        table.write_parquet(content)
    elif out.suffix == ".csv":
        lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
        table.drop(lists).write_csv(content)
        if lists:
            show.note(f"left out, since CSV has no lists: {', '.join(lists)}.")
    else:
        msg = f"{str(out)!r}: expected a name that ends in .csv or .parquet."
        raise InputError(msg)
    write_aside(out, content.getvalue())
    if as_json:
        print_json({"out": str(out), "rows": len(table)})
    else:
        show.note(f"wrote {len(table)} rows to {out}")
