"""What people see in a terminal."""

import inspect
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.certificates import Certificate, Reading, Verdict, readings, verdict
from shoal.diagnostics.data import DataReport
from shoal.experiments import Experiment, Paper, Theorem
from shoal.training import Trajectory

COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.VIOLATED: "bold red",
    Verdict.NOT_APPLICABLE: "yellow",
    Verdict.UNRESOLVED: "magenta",
}
_SHOWN = (
    "num_samples",
    "num_tokens",
    "dim",
    "num_heads",
    "width",
    "kernel",
    "train",
    "init",
    "score_exponent",
)
MANY = 3  # more seeds than this are summed up


def console(*, stderr: bool = False) -> Console:
    """A console that is never narrower than our tables when its width is unknown."""
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=110)


def note(text: str) -> None:
    """A word on standard error, out of the way of results."""
    console(stderr=True).print(text, markup=False, soft_wrap=True)


def number(value: float) -> str:
    """Four significant digits.

    >>> number(0.000123456), number(29.5489), number(float("inf"))
    ('1.235e-04', '29.55', 'inf')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def duration(seconds: float) -> str:
    """A time with three digits and a unit that fits.

    >>> duration(0.0012345), duration(2.5), duration(4.2e-05)
    ('1.23 ms', '2.5 s', '42 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Progress on standard error: a bar in a terminal, else a line every few seconds."""
    err = console(stderr=True)
    if not err.is_terminal:
        begun = last = time.monotonic()

        def line(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last > 5 and done < total:
                last = time.monotonic()
                left = (last - begun) * (total - done) / max(done, 1)
                err.print(f"{label}: {done} of {total}, about {left:.0f} s left")

        yield line
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def coloured(outcome: Verdict) -> str:
    """A verdict with its colour."""
    return f"[{COLOURS[outcome]}]{outcome}[/]"


def table(*columns: str, title: str | None = None) -> Table:
    """A quiet table: the first column to the left, the others to the right."""
    rows = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        rows.add_column(column, justify="left" if index == 0 else "right", no_wrap=index > 0)
    return rows


_SAY = {True: "[green]yes[/]", False: "[red]no[/]", None: "[magenta]?[/]"}


def _readings(lines: list[Reading], title: str) -> Table:
    rows = table(title, "left side", "<=  right side", "margin", "holds")
    for line in lines:
        margin = f"{line.margin:+.3f}" if abs(line.margin) > 5e-4 else f"{line.margin:+.0e}"
        rows.add_row(
            escape(line.name), number(line.lhs), number(line.rhs), margin, _SAY[line.holds]
        )
    return rows


def _rates(certificate: Certificate, unit: str) -> str:
    proved, seen = float(certificate.predicted_rate), float(certificate.measured_rate)
    if math.isnan(proved):
        return "This theorem makes no statement about a rate."
    if verdict(certificate) == Verdict.NOT_APPLICABLE:
        return f"risk lost per {unit}: measured {number(seen)} (nothing is proved here)"
    ratio = f", {number(seen / proved)} times the proved rate" if proved > 0 else ""
    return f"risk lost per {unit}: proved {number(proved)}, measured {number(seen)}{ratio}"


def certificates(
    experiment: Experiment, theorem: Theorem, found: list[Certificate], notes: dict[str, Any]
) -> None:
    """A theorem confronted with every seed."""
    out = console()
    setting = experiment.setting
    out.print(f"[bold]{experiment.paper.key}.{theorem.key}[/]  {escape(theorem.statement)}")
    out.print(f"[dim]{escape(theorem.source)}[/]")
    sizes = ", ".join(
        f"{name}={getattr(setting, name)}" for name in _SHOWN if hasattr(setting, name)
    )
    out.print(f"{sizes}; step size {number(setting.step_size)} ({notes['step_size_source']})\n")
    unit = "unit of time" if theorem.method == "flow" else "step"
    for seed, certificate in list(zip(experiment.seeds, found, strict=True))[:MANY]:
        hypotheses, conclusions = readings(certificate)
        outcome = verdict(certificate)
        out.print(f"seed {seed}: {coloured(outcome)}")
        out.print(_readings(hypotheses, "hypothesis"))
        out.print(_readings(conclusions, "conclusion, at its tightest recorded step"))
        out.print(_rates(certificate, unit))
        out.print(f"{explain(outcome, hypotheses, conclusions)}\n")
    if len(found) > MANY:
        counts = {v: sum(verdict(c) == v for c in found) for v in Verdict}
        said = ", ".join(f"{coloured(v)} {n}" for v, n in counts.items() if n)
        out.print(f"all {len(found)} seeds: {said}")


def explain(outcome: Verdict, hypotheses: list[Reading], conclusions: list[Reading]) -> str:
    """A verdict as a sentence."""
    failed = [line.name for line in hypotheses if line.holds is False]
    broken = [line.name for line in conclusions if line.holds is False]
    open_ = [line.name for line in (*hypotheses, *conclusions) if line.holds is None]
    said = {
        Verdict.HOLDS: "Every hypothesis holds, and the run obeys every conclusion.",
        Verdict.NOT_APPLICABLE: "The theorem says nothing about this run, which may converge all "
        f"the same. Failed: {'; '.join(failed)}.",
        Verdict.VIOLATED: "The hypotheses hold, but the run breaks what they imply: "
        f"{'; '.join(broken)}. Either the record is wrong or the theorem is.",
        Verdict.UNRESOLVED: f"float64 cannot tell: {'; '.join(open_)}.",
    }
    return escape(said[outcome])


def run_summary(
    experiment: Experiment,
    run: Trajectory,
    theorems: list[tuple[Theorem, list[Certificate]]],
    notes: dict[str, Any],
    folder: Path | None,
) -> None:
    """What a training run did."""
    out = console()
    setting = experiment.setting
    out.print(
        f"[bold]{experiment.paper.key}[/]: {len(experiment.seeds)} seed(s), {setting.num_steps} "
        f"steps of {number(setting.step_size)} ({escape(notes['step_size_source'])}), "
        f"{notes['seconds']:.1f} s"
    )
    few = theorems if len(theorems) <= 3 else []
    columns = [f"{t.key}" for t, _ in few]
    rows = table("seed", "first risk", "last risk", "lost per step", *columns)
    risk = np.asarray(run.risk, float)
    diverged = ~np.isfinite(risk).all(axis=1)
    for i, seed in enumerate(experiment.seeds[:10]):
        lost = 1 - (risk[i, -1] / risk[i, 0]) ** (1 / setting.num_steps)
        verdicts = [coloured(verdict(found[i])) for _, found in few]
        last = "[red]diverged[/]" if diverged[i] else number(risk[i, -1])
        rows.add_row(str(seed), number(risk[i, 0]), last, number(lost), *verdicts)
    out.print(rows)
    if len(experiment.seeds) > 10:
        out.print(
            f"... and {len(experiment.seeds) - 10} more; median last risk "
            f"{number(float(np.median(risk[:, -1])))}"
        )
    for theorem, found in theorems if not few else ():
        counts = {v: sum(verdict(c) == v for c in found) for v in Verdict}
        said = ", ".join(f"{coloured(v)} ({n})" for v, n in counts.items() if n)
        out.print(f"{theorem.key}: {said}")
    if ended := notes.get("ended"):
        out.print(_endings(experiment.seeds, ended))
    if diverged.any():
        out.print(
            f"[red]{int(diverged.sum())} of {len(diverged)} seeds diverged[/]: "
            f"try --set step_size={setting.step_size / 4:.2g}."
        )
    if folder is None:
        out.print("[dim]Nothing was saved; add --out DIR to keep the run.[/]")


def _endings(seeds: tuple[int, ...], ended: list[dict[str, Any]]) -> Table:
    """Stuck or slow: where each seed came to rest."""
    rows = table(
        "seed", "at the end", "|gradient|", "Hessian from", "to", "above the floor", "floor"
    )
    for seed, end in list(zip(seeds, ended, strict=True))[:10]:
        low = number(float(end["hessian_min"])) + ("" if end["converged"] else " ?")
        rows.add_row(
            str(seed),
            end["state"],
            number(float(end["gradient_norm"])),
            low,
            number(float(end["hessian_max"])),
            number(float(end["above_floor"])),
            number(float(end["floor"])),
        )
    return rows


def papers(known: list[Paper]) -> None:
    """The list of papers."""
    out = console()
    for item in known:
        out.print(f"[bold]{item.key}[/]  {escape(item.title)} (arXiv {item.arxiv})")
        out.print(f"  {escape(item.authors)}, {item.year}. About {escape(item.about)}.")
        for theorem in item.theorems:
            out.print(f"  [cyan]{item.key}.{theorem.key}[/]  {escape(theorem.statement)}")
        names = ", ".join(recipe.key for recipe in item.figures)
        out.print(f"  {len(item.claims)} claims (shoal claims {item.key}); figures: {names}")
        out.print(f"  [dim]shoal papers {item.key} shows settings and probes.[/]")


def paper(item: Paper, probes: tuple[str, ...]) -> None:
    """One paper with all its settings."""
    papers([item])
    out = console()
    rows = table("setting", "default", "meaning")
    rows.columns[1].justify = rows.columns[2].justify = "left"
    rows.columns[2].no_wrap = False
    meaning = setting_comments(type(item.setting))
    for name, value in item.setting._asdict().items():
        default = "auto" if value is None else str(value)
        rows.add_row(name, default, escape(meaning.get(name, "")))
    out.print(rows)
    usual = [f"[bold]{p}[/]" if p in item.default_probes else p for p in probes]
    out.print(f"probes (recorded by default in bold): {', '.join(usual)}")


def setting_comments(kind: type) -> dict[str, str]:
    """What a setting's author wrote beside each field: its choices and its comment."""
    found = {}
    for line in inspect.getsource(kind).splitlines():
        if match := re.match(r"\s+(\w+): (.+?) = [^#]*(?:#\s*(.*))?$", line):
            name, hint, comment = match.groups()
            choices = re.findall(r'"(\w+)"', hint) if hint.startswith("Literal") else []
            found[name] = "; ".join(part for part in (" | ".join(choices), comment) if part)
    return found


def data(item: Paper, report: DataReport) -> None:
    """The data assumptions, measured."""
    out = console()
    out.print(
        f"{report.num_samples} samples of {report.num_tokens} tokens in dimension {report.dim}; "
        f"labels of root mean square {number(report.label_rms)}"
    )
    rows = table("assumption", "measured", "holds")
    rows.add_row("bounded: |X_n|_F <= sqrt(tokens) C", f"C = {number(report.bound)}", _SAY[True])
    rows.add_row(
        "full row rank: sigma_min / sigma_max of the worst sequence",
        number(report.row_conditioning),
        _SAY[report.full_row_rank],
    )
    fit = (
        f"{number(report.tail_exponent)} "
        f"[{number(report.tail_exponent_low)}, {number(report.tail_exponent_high)}]"
    )
    rows.add_row("tail exponent c, fitted to exp(-a t^c)", escape(fit), "")
    rows.add_row(
        "dissimilar: overlaps t >= 1 obey exp(-t^c) as they stand, for some c > 0",
        f"c <= {number(report.largest_exponent)}" if report.dissimilar else "no such c",
        _SAY[report.dissimilar],
    )
    rows.add_row("largest normalised overlap of two samples", number(report.overlap_max), "")
    rows.add_row("Gershgorin margin of the overlaps", number(report.gershgorin_margin), "")
    out.print(rows)
    out.print(
        f"[dim]Assumptions of {item.key} on data. Dissimilarity is not scale invariant: tokens "
        "scaled down satisfy it sooner. The normalised overlap is.[/]"
    )
