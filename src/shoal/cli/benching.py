"""``bench``: speed against the alternatives, as ratios in one run."""

import hashlib
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from json import loads
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

import shoal
from shoal import console, native
from shoal.cli.commands import answer, write_page
from shoal.cli.publishing import markdown_table, record
from shoal.disk.cache import code_version
from shoal.disk.runs import read_json, versions, write_json, write_whole
from shoal.errors import InputError, nearest
from shoal.figures import Curve, Figure, Panel
from shoal.pages import drawing, page
from shoal.papers.wu2023.hidden_units import SOURCE

QUESTIONS = (
    "training", "small_runs", "kernel", "any_kernel", "probes", "cold_start", "landscape", "layer",
    "heads", "blocks", "growth",
)  # fmt: skip
COLUMNS = (
    "side", "time", "quartiles", "/ shoal", "/ limit", "compiling", "MiB", "busy", "differs by",
)  # fmt: skip
GROWTH_COLUMNS = (
    "what", "against", "time grows like", "memory grows like", "last time", "peak MiB",
)  # fmt: skip
UNFINISHED = "unfinished"
"""Folder of the answers of a run that has not ended."""
MARK = "<!-- what follows is written by hand -->\n"


def folder() -> Path:
    """Where the scripts are: in an installed package, or beside its source."""
    here = Path(shoal.__file__).parent
    for place in (here / "benchmarks", here.parents[1] / "benchmarks"):
        if (place / "harness.py").is_file():
            return place
    msg = "the benchmarks are not installed with this copy of shoal; run it from its repository."
    raise InputError(msg)


def bench(*names: str, out: Path, markdown: Path | None, rounds: int | None, json: bool) -> None:
    """``shoal bench``."""
    for name in names:
        if name not in QUESTIONS:
            raise InputError(f"no benchmark is called {name!r}; {nearest(name, QUESTIONS)}")
    if rounds is not None and not 1 <= rounds <= 1000:
        raise InputError(f"--rounds {rounds}: expected 1 to 1000.")
    scripts = folder()
    torch: dict[str, str] = {}
    with suppress(PackageNotFoundError):
        torch["torch"] = version("torch")
    if not torch:
        console.note("PyTorch is not installed (extra 'bench'); its columns are left out.")
    chosen = names or QUESTIONS
    about = record(
        "bench",
        versions=versions() | torch,
        code_in_c=native.kernel(SOURCE, "hidden_units", "float32") is not None,
        questions={
            name: _kept(scripts / f"{name}.py", out, rounds if name != "growth" else None)
            for name in console.tracked("benchmarks", chosen, len(chosen))
        },
    )
    write_json(out / "bench.json", about)
    growth = about["questions"].get("growth")
    figure = growth_figure(growth) if growth else None
    if figure is not None:
        drawing.save(figure, out)
    write_page(out / "index.html", "Speed", _lead(about), list(_sections(about)), [])
    if markdown is not None:
        write_markdown(markdown, about, figure)
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)
    answer(about, _parts(about), f"wrote {out / 'index.html'} and {out / 'bench.json'}", json=json)


def _kept(script: Path, out: Path, rounds: int | None) -> dict[str, Any]:
    """The answer to a question: one that an interrupted run left behind, or a new one.

    A whole run removes what it kept; so an answer is at most as old as the interruption.
    """
    code = hashlib.sha256(code_version().encode())
    for path in sorted(script.parent.glob("*.py")):
        code.update(path.read_bytes())
    about = {"code": code.hexdigest(), "rounds": rounds, "versions": versions()}
    path = out / UNFINISHED / f"{script.stem}.json"
    with suppress(InputError, KeyError, TypeError):  # it is not there, or damaged
        found = read_json(path)
        if found["about"] == about:
            console.note(f"{script.stem}: kept from the run that was interrupted.")
            return found["answer"]
    answer = _run(script, rounds)
    write_json(path, {"about": about, "answer": answer})
    return answer


def _run(script: Path, rounds: int | None) -> dict[str, Any]:
    words = [sys.executable, str(script), *(["--rounds", str(rounds)] if rounds else [])]
    # programs are compiled as for anyone, whatever this process was told
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ChildProcessError(f"{script.name} failed: {' '.join(last)}")
    return loads(done.stdout)


# ---------------------------------------------------------------------------------- how it is told


def case_rows(case: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of a case's table."""
    rows = case["rows"]
    if not rows:
        return []
    first = rows[0]["seconds"]  # shoal, or what else comes first
    found = [
        (
            row["side"],
            console.duration(row["seconds"]),
            f"{console.duration(row['low'])}-{console.duration(row['high'])}",
            f"{row['seconds'] / first:.2f}",
            "" if (over := row["over_limit"]) is None or math.isnan(over) else f"{over:.2f}",
            console.duration(row["compile"]),
            f"{row['peak']:.0f}",
            f"{100 * row['busy']:.0f}%",
            f"{row['difference']:.0e}" + ("" if row["agrees"] else ": WRONG"),
        )
        for row in rows
    ]
    rest = ("",) * (len(COLUMNS) - 1)
    return [*found, *((f"{side}: {reason}", *rest) for side, reason in case["missing"].items())]


def _tables(question: dict[str, Any]) -> tuple[page.Table, ...]:
    """The tables of a question: one for each case, or the exponents of growth."""
    if "cases" not in question:
        return (("fitted exponents", GROWTH_COLUMNS, tuple(growth_rows(question))),)
    return tuple((_title(case), COLUMNS, tuple(case_rows(case))) for case in question["cases"])


def _title(case: dict[str, Any]) -> str:
    rate = f"; matrix product {case['rate'] / 1e9:.0f} Gflop/s" if case["rate"] else ""
    return f"{case['name']}, {case['precision']}{rate}"


def _text(question: dict[str, Any]) -> str:
    return f"{question['about']} Time for one {question['unit']}."


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


def _sections(about: dict[str, Any]) -> Iterator[page.Section]:
    for question in about["questions"].values():
        if "cases" in question:
            section = page.Section(question["title"], _text(question))
        else:
            section = page.figure_section(growth_figure(question))
        yield section._replace(tables=_tables(question), finding=_finding(question))


def _finding(question: dict[str, Any]) -> str:
    """The fastest alternative of each case, over the first side."""
    cases = [case["rows"] for case in question.get("cases", ()) if len(case["rows"]) > 1]
    ratios = [min(row["seconds"] for row in others) / first["seconds"] for first, *others in cases]
    if not ratios:
        return ""
    low, high = f"{min(ratios):.2g}", f"{max(ratios):.2g}"
    many = f"{low} to {high} times" if low != high else f"{low} times"
    return (
        f"{question['title']}: the fastest alternative takes {many} as long as "
        f"{cases[0][0]['side']} ({len(ratios)} case{'s' if len(ratios) > 1 else ''})."
    )


def _parts(about: dict[str, Any]) -> Iterator[Any]:
    for question in about["questions"].values():
        for title, head, rows in _tables(question):
            cells = [map(escape, row) for row in rows]
            made = console.table(*head, rows=cells, title=escape(f"{question['title']}: {title}"))
            made.columns[0].no_wrap = True
            yield made


# ----------------------------------------------------------------------------------------- growth


def growth_rows(growth: dict[str, Any]) -> list[tuple[str, ...]]:
    """Fitted exponents, one row per curve."""
    power = "{:.2f} [{:.2f}, {:.2f}]".format
    return [
        (
            curve["what"],
            curve["axis"].replace("num_", ""),
            power(*curve["seconds_exponent"]),
            power(*curve["peak_exponent"]),
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
        name = "memory allowed (GiB)" if axis == "memory" else axis.replace("num_", "")
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
        if "cases" in question:
            lines += [_text(question), ""]
        for title, head, rows in _tables(question):
            lines += [f"**{title}**", "", *markdown_table(head, rows), ""]
        if "cases" not in question and figure is not None:
            drawing.save(figure, path.parent / "images")
            lines += [f"![{figure.title}](images/{figure.key}.png)", "", figure.caption, ""]
    kept = path.read_text().partition(MARK)[2] if path.is_file() else ""
    write_whole(path, ("\n".join(lines) + MARK + kept).encode())
