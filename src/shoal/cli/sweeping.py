"""``sweep``, ``ls``, ``show``, ``query`` and ``export``: many runs, and their table."""

import contextlib
import io
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from rich.markup import escape

from shoal import console, workers
from shoal.cli.commands import answer, command_line
from shoal.disk import asking
from shoal.disk import sweeps as folders
from shoal.disk.runs import write_whole
from shoal.errors import InputError
from shoal.runtime import cores
from shoal.sweeps import cluster, grid
from shoal.sweeps.batches import divide, estimate, failure
from shoal.sweeps.parse import SweepFile, read

LINES = 40  # Of a table.


def sweep(
    file: SweepFile, out: Path, *, dry_run: bool, retry: bool, scheduler: str | None, json: bool
) -> None:
    """``shoal sweep``."""
    wanted = grid.make_sweep(file)
    if not dry_run:
        with cluster.spreading(scheduler) as spread, folders.Writer(out) as writer:
            _run_sweep(wanted, writer, spread, retry=retry, json=json)
        return
    cost = estimate(wanted, cores())
    varied = ", ".join(wanted.varied) or "only seeds vary"
    said = (
        f"{cost.runs} runs of {wanted.paper.key}: {len(wanted.settings)} settings ({varied}) with "
        f"{len(wanted.file.seeds)} seeds.\n"
        f"{cost.batches} batches of {cost.programs} programs, about {cost.flops:.2g} flops: "
        f"roughly {console.duration(cost.seconds)} on {cores()} cores and "
        f"{cost.memory:.1f} GiB in all."
    )
    answer(cost._asdict() | {"out": str(out)}, [escape(said)], json=json)


def _run_sweep(
    wanted: grid.Sweep, writer: folders.Writer, spread: cluster.Spread, *, retry: bool, json: bool
) -> None:
    stored, total = _stored_keys(writer, retry=retry), wanted.file.num_runs
    keys = [wanted.key(number) for number in range(total)]
    batches = divide(wanted)
    todo = [k for k, b in enumerate(batches) if any(keys[run] not in stored for run in b.runs)]
    done = before = sum(key in stored for key in keys)
    if before:
        console.note(f"{before} of {total} runs are already stored.")
    writer.write_text(wanted.file.text)
    begun = time.monotonic()

    def tasks() -> Iterator[workers.Task]:
        for k in todo:
            if time.monotonic() - begun > 3600 * wanted.file.hours:
                console.note(f"the budget of {wanted.file.hours:g} hours is used up; {_again()}")
                return
            yield {"sweep": wanted.task(batches[k].runs, batches[k].size), "batch": k}

    answers = spread(tasks(), len(todo))
    try:
        with console.progress(f"{wanted.paper.key}: runs") as tell:
            for found in answers:
                runs = batches[found.task["batch"]].runs
                cells = found.value or [failure(found.error or "no answer")] * len(runs)
                rows = [wanted.row(*run) for run in zip(runs, cells, strict=True)]
                new = [row for row in rows if row["key"] not in stored]
                writer.add(new)
                done += len(new)
                tell(done, total)
    except KeyboardInterrupt:
        console.note(f"stopped: {done} of {total} runs are stored; {_again()}")
        raise
    except ConnectionError:  # of the cluster
        console.note(f"{done} of {total} runs are stored; {_again()}")
        raise
    except OSError as error:
        console.note(f"{done} of {total} runs are stored; {_again()}")
        raise InputError(f"cannot write into {str(writer.folder)!r} ({error.strerror}).") from None
    seconds = time.monotonic() - begun
    writer.merge()
    table = writer.index()
    if table is None:
        raise InputError(f"no run was finished; {_again()}.")
    table = table.filter(pl.col("key").is_in(keys))
    counts = dict(table.group_by("status").len().sort("status").iter_rows())
    about = {"out": str(writer.folder), "runs": len(table), "done_now": done - before}
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
    parts = [_summary(table, wanted.file), escape(f"{len(table)} of {total} runs: {statuses}.")]
    note = f"wrote {writer.folder}; look with shoal ls, show, query and export."
    if done > before:
        rate = f"{(done - before) / seconds:.3g} per second"
        note = f"{done - before} runs in {console.duration(seconds)}, {rate}.\n{note}"
    answer(about | {"seconds": seconds, "status": counts}, parts, note, json=json)


def _stored_keys(writer: folders.Writer, *, retry: bool) -> set[str]:
    """Runs that need not be done; damaged files are set aside."""
    table, damaged = folders.load(writer.folder)
    for file in damaged:
        console.note(f"{file.path.name} is damaged ({file.reason}); its runs are done again.")
    writer.set_aside(damaged)
    if table is None:
        return set()
    return set((table.filter(pl.col("status") != "failed") if retry else table)["key"])


def _again() -> str:
    return f"the same command continues: {command_line()}"


def _summary(table: pl.DataFrame, file: SweepFile | None) -> Any:
    """Settings that vary, with the median of their seeds."""
    theorems, names = (file.theorems, file.names) if file else ((), ())
    varied = [name for name in names if name in table.columns and table[name].n_unique() > 1]
    for name in ("risk_last", "risk_first"):
        if name not in table.columns:  # every run failed
            table = table.with_columns(pl.lit(None, pl.Float64).alias(name))
    columns = [
        pl.len().alias("runs"),
        (pl.col("status") == "done").sum().alias("done"),
        (pl.col("risk_last") / pl.col("risk_first")).median().alias("risk over first"),
        *(pl.col(t).drop_nulls().implode().alias(t) for t in theorems if t in table.columns),
    ]
    groups = table.group_by(varied, maintain_order=True)
    found = groups.agg(columns) if varied else table.select(columns)
    verdicts = pl.col(t for t in theorems if t in table.columns)
    return _shown(found.with_columns(verdicts.map_elements(_counted, return_dtype=pl.String)))


def _counted(verdicts: Any) -> str:
    """How often each verdict came, such as ``3 holds, 1 unresolved``."""
    return ", ".join(f"{n} {said}" for said, n in Counter(verdicts).most_common())


def _shown(table: pl.DataFrame) -> Any:
    rows = [[escape(_cell(value)) for value in row] for row in table.head(LINES).iter_rows()]
    more = [[f"... {len(table) - LINES} more"]] if len(table) > LINES else []
    return console.table(*map(escape, table.columns), rows=rows + more)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return console.number(value)
    if isinstance(value, list):
        return f"[{len(value)} numbers]"
    return str(value)


# ---------------------------------------------------------------------------------------- looking


def ls(path: Path, *, json: bool) -> None:
    """``shoal ls``: it needs no paper, and runs no file that the sweep names."""
    table, file = folders.frame(path), None
    with contextlib.suppress(InputError):  # the runs can be read all the same
        file = read(path / "sweep.toml")
    total = file.num_runs if file else len(table)
    parts = [_summary(table, file), escape(f"{len(table)} of {total} runs in {path}.")]
    rows = table.drop(folders.CURVES, strict=False).to_dicts() if json else ()
    answer([_present(row) for row in rows], parts, json=json)


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if v is not None}


def show_run(path: Path, run: str, *, json: bool) -> None:
    """``shoal show``: by number, or by the beginning of a key."""
    table = folders.frame(path)
    by_number = run.isdecimal() and len(run) < 12
    chosen = pl.col("number") == int(run) if by_number else pl.col("key").str.starts_with(run)
    matches = table.filter(chosen)
    if len(matches) != 1:
        many = f"{len(matches)} runs have such a key" if len(matches) else "there is none"
        raise InputError(f"run {run!r}: {many}; numbers go from 0 to {len(table) - 1}.")
    row = _present(matches.to_dicts()[0])
    cells = [(escape(k), escape(_cell(v))) for k, v in row.items() if k not in folders.CURVES]
    parts = [console.table("", f"run {row['number']}", rows=cells)]
    if "curve_risk" in row:
        points = list(zip(row["curve_step"], row["curve_risk"], strict=True))
        some = points[:: max(1, len(points) // 12)]
        parts.append(
            console.table("step", "risk", rows=[(str(t), _cell(risk)) for t, risk in some])
        )
    answer(row, parts, json=json)


def query(path: Path, sql: str, *, json: bool) -> None:
    """``shoal query``: SQL over the table ``runs``, and over nothing else."""
    rows = asking.ask(path, sql)
    answer(rows.to_dicts() if json else None, [_shown(rows)], json=json)


def _harmless(name: str) -> pl.Expr:
    """A column of words in which a spreadsheet finds no formula: those get a quote before them."""
    words = pl.col(name)
    quoted = pl.concat_str(pl.lit("'"), words)
    return pl.when(words.str.contains(r"^[=+\-@\t\r]")).then(quoted).otherwise(words).alias(name)


def export(path: Path, out: Path, *, json: bool) -> None:
    """``shoal export``."""
    table, content = folders.frame(path), io.BytesIO()
    if out.suffix == ".parquet":
        table.write_parquet(content)
    elif out.suffix == ".csv":
        lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
        table.drop(lists).with_columns(
            _harmless(name) for name, kind in table.schema.items() if kind == pl.String
        ).write_csv(content)
        if lists:
            console.note(f"left out, since CSV has no lists: {', '.join(lists)}.")
    else:
        raise InputError(f"{str(out)!r}: expected a name that ends in .csv or .parquet.")
    write_whole(out, content.getvalue())
    note = f"wrote {len(table)} rows to {out}"
    answer({"out": str(out), "rows": len(table)}, note=note, json=json)
