"""``bench``: speed against the alternatives, as ratios in one run."""

import json
import math
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

import shoal
from shoal import console, native
from shoal.cli.commands import print_json
from shoal.cli.publishing import machine, write_page
from shoal.disk.runs import FORMAT, versions, write_json, write_whole
from shoal.errors import InputError, nearest
from shoal.figures import Curve, Figure, Panel
from shoal.pages import drawing, page
from shoal.papers.wu2023.hidden_units import SOURCE

QUESTIONS = (
    "training",
    "small_runs",
    "kernel",
    "probes",
    "cold_start",
    "landscape",
    "heads",
    "blocks",
    "growth",
)
COLUMNS = (
    "side", "time", "quartiles", "/ shoal", "/ limit", "compiling", "MiB", "busy", "differs by",
)  # fmt: skip


def folder() -> Path:
    """Where the scripts are: in an installed package, or beside its source."""
    here = Path(shoal.__file__).parent
    for place in (here / "benchmarks", here.parents[1] / "benchmarks"):
        if (place / "harness.py").is_file():
            return place
    msg = "the benchmarks are not installed with this copy of shoal; run it from its repository."
    raise InputError(msg)


def bench(
    names: tuple[str, ...],
    out: Path,
    markdown: Path | None,
    *,
    rounds: int | None,
    as_json: bool,
) -> None:
    """``shoal bench``."""
    for name in names:
        if name not in QUESTIONS:
            msg = f"no benchmark is called {name!r}; {nearest(name, QUESTIONS)}"
            raise InputError(msg)
    if rounds is not None and rounds < 1:
        msg = f"--rounds {rounds}: expected 1 or more."
        raise InputError(msg)
    scripts = folder()
    if find_spec("torch") is None:
        console.note("PyTorch is not installed (extra 'bench'); its columns are left out.")
    chosen = names or QUESTIONS
    found = {}
    with console.progress("benchmarks") as tell:
        for done, name in enumerate(chosen):
            found[name] = _run(scripts / f"{name}.py", rounds if name != "growth" else None)
            tell(done + 1, len(chosen))
    about = {
        "format": FORMAT,
        "kind": "bench",
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "versions": versions() | _torch_version(),
        "code_in_c": native.kernel(SOURCE, "hidden_units", "float32") is not None,
        "questions": found,
    }
    write_json(out / "bench.json", about)
    figure = growth_figure(found["growth"]) if "growth" in found else None
    if figure is not None:
        drawing.save(figure, out)
    write_page(out / "index.html", "Speed", _lead(about), _sections(about, figure), [])
    if markdown is not None:
        write_markdown(markdown, about, figure)
    if as_json:
        print_json(about)
        return
    _print(about)
    console.note(f"wrote {out / 'index.html'} and {out / 'bench.json'}")


def _run(script: Path, rounds: int | None) -> dict[str, Any]:
    words = [sys.executable, str(script), *(["--rounds", str(rounds)] if rounds else [])]
    # programs are compiled as for anyone, whatever this process was told
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ChildProcessError(f"{script.name} failed: {' '.join(last)}")
    return json.loads(done.stdout)


def _torch_version() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {"torch": version("torch")}
    except PackageNotFoundError:
        return {}


# ---------------------------------------------------------------------------------- how it is told


def case_rows(case: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of a case's table."""
    rows = case["rows"]
    if not rows:
        return []
    first = rows[0]["seconds"]  # shoal, or what else comes first
    found: list[tuple[str, ...]] = []
    for row in rows:
        over = row["over_limit"]
        found.append(
            (
                row["side"],
                console.duration(row["seconds"]),
                f"{console.duration(row['low'])}-{console.duration(row['high'])}",
                f"{row['seconds'] / first:.2f}",
                "" if over is None or math.isnan(over) else f"{over:.2f}",
                console.duration(row["compile"]),
                f"{row['peak']:.0f}",
                f"{100 * row['busy']:.0f}%",
                f"{row['difference']:.0e}" + ("" if row["agrees"] else ": WRONG"),
            )
        )
    for side, reason in case["missing"].items():
        found.append((f"{side}: {reason}", *[""] * (len(COLUMNS) - 1)))
    return found


def _title(case: dict[str, Any]) -> str:
    rate = case["rate"]
    said = f"{case['name']}, {case['precision']}"
    return said + (f"; matrix product {rate / 1e9:.0f} Gflop/s" if rate else "")


def _lead(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    return (
        f"Made on {about['made']} on a machine with {about['machine']}; {versions}; hidden "
        f"units of wu2023 {'in C' if about['code_in_c'] else 'by XLA (no C compiler)'}. Every side "
        "runs in its own process on the same data and weights; they take turns. Times are "
        "medians; compiling, in the first call, is apart; MiB is the peak above what was held "
        "before, busy the share of all cores; the difference is to the first side's answer, "
        "relative to its largest number."
    )


def _sections(about: dict[str, Any], figure: Figure | None) -> list[page.Section]:
    parts = []
    for question in about["questions"].values():
        if "cases" in question:
            tables = tuple((_title(c), COLUMNS, tuple(case_rows(c))) for c in question["cases"])
            text = f"{question['about']} Time for one {question['unit']}."
            parts.append(page.Section(question["title"], text, tables=tables))
    if figure is not None:
        rows = tuple(growth_rows(about["questions"]["growth"]))
        shown = page.figure_section(figure)
        parts.append(shown._replace(tables=(("fitted exponents", GROWTH_COLUMNS, rows),)))
    return parts


def _print(about: dict[str, Any]) -> None:
    terminal = console.console()
    for question in about["questions"].values():
        if "cases" not in question:
            rows = console.table(*GROWTH_COLUMNS, title=question["title"])
            for row in growth_rows(question):
                rows.add_row(*row)
            terminal.print(rows)
            continue
        for case in question["cases"]:
            rows = console.table(*COLUMNS, title=escape(f"{question['title']}: {_title(case)}"))
            rows.columns[0].no_wrap = True
            for row in case_rows(case):
                rows.add_row(*map(escape, row))
            terminal.print(rows)


# ----------------------------------------------------------------------------------------- growth

GROWTH_COLUMNS = (
    "what",
    "against",
    "time grows like",
    "memory grows like",
    "last time",
    "peak MiB",
)


def _power(found: list[float]) -> str:
    slope, low, high = found
    return f"{slope:.2f} [{low:.2f}, {high:.2f}]"


def growth_rows(growth: dict[str, Any]) -> list[tuple[str, ...]]:
    """Fitted exponents, one row per curve."""
    return [
        (
            curve["what"],
            curve["axis"].replace("num_", ""),
            _power(curve["seconds_exponent"]),
            _power(curve["peak_exponent"]),
            console.duration(curve["seconds"][-1]),
            f"{curve['peak'][-1]:.0f}",
        )
        for curve in growth["curves"]
    ]


def growth_figure(growth: dict[str, Any]) -> Figure:
    """Time and memory against every size."""

    def panel(axis: str, key: str, label: str) -> Panel:
        curves = []
        for curve in growth["curves"]:
            if curve["axis"] == axis:
                x, y = np.array(curve["sizes"], float), np.array(curve[key], float)
                curves.append(Curve(curve["what"], x, y, y, y))
        name = axis.replace("num_", "")
        if axis == "memory":
            name = "memory allowed (GiB)"
        return Panel(name, name, label, tuple(curves), log_x=True, log_y=True)

    axes = list(dict.fromkeys(curve["axis"] for curve in growth["curves"]))
    times = [panel(axis, "seconds", "seconds") for axis in axes]
    peaks = [panel(axis, "peak", "peak MiB") for axis in axes]
    caption = (
        "wu2023 in float64: a training step and a tangent kernel. 50 samples, 10 tokens, dim 20, "
        "width 500, one size grown at a time; memory: 2000 samples, width 4000, with the setting "
        "`memory`."
    )
    return Figure("growth", "Growth of time and memory", caption, (*times, *peaks))


# --------------------------------------------------------------------------------------- document


def write_markdown(path: Path, about: dict[str, Any], figure: Figure | None) -> None:
    """The tables as a document; what is written by hand below the mark is kept."""
    lines = ["# Performance", "", "Generated by `shoal bench --markdown`. " + _lead(about), ""]
    for question in about["questions"].values():
        lines += [f"## {question['title']}", ""]
        if "cases" not in question:
            lines += _markdown_table(GROWTH_COLUMNS, growth_rows(question))
            if figure is not None:
                drawing.save(figure, path.parent / "images")
                lines += ["", f"![{figure.title}](images/{figure.key}.png)", "", figure.caption]
            lines.append("")
            continue
        lines += [f"{question['about']} Time for one {question['unit']}.", ""]
        for case in question["cases"]:
            lines += [f"**{_title(case)}**", ""]
            lines += [*_markdown_table(COLUMNS, case_rows(case)), ""]
    kept = ""
    if path.is_file():
        _, mark, rest = path.read_text().partition(MARK)
        kept = rest if mark else ""
    write_whole(path, ("\n".join(lines) + MARK + kept).encode())


MARK = "<!-- what follows is written by hand -->\n"


def _markdown_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    shown = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown]
