"""What people see in a terminal; results print themselves by these functions too."""

import io
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal import trees
from shoal.certificates import (
    SMALLEST,
    Certificate,
    Reading,
    Verdict,
    is_condition,
    readings,
    undecided_words,
    verdict,
)
from shoal.diagnostics.data import DataReport
from shoal.lab.engine import default_steps
from shoal.lab.paper import Paper
from shoal.lab.probes import probe_names, sentence
from shoal.lab.run import Run
from shoal.lab.setting import provenance
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.theorem import Certificates
from shoal.lab.visit import number, signed

T = TypeVar("T")
COLOURS: dict[str, str] = {
    Verdict.HOLDS: "green",
    Verdict.VIOLATED: "bold red",
    Verdict.NOT_APPLICABLE: "yellow",
    Verdict.UNRESOLVED: "magenta",
    "supported": "green",
    "contradicted": "bold red",
    "inconclusive": "yellow",
    "exploratory": "dim",
}
WIDTH = 110  # of a table where the terminal's width is not known
MANY = 3  # seeds up to which each is shown at length


def console(*, stderr: bool = False) -> Console:
    """A console that is never narrower than our tables when its width is unknown."""
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def text_of(*parts: Any) -> str:
    """What a console would show, as plain text: for ``repr``."""
    file = io.StringIO()
    out = Console(file=file, highlight=False, width=WIDTH)
    for part in parts:
        out.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip("\n")


def note(text: str) -> None:
    """A message on standard error, out of the way of results."""
    console(stderr=True).print(printable(text), markup=False, soft_wrap=True)


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """A time with three digits and a unit that fits.

    >>> duration(0.0012345), duration(2.5), duration(4.2e-05)
    ('1.23 ms', '2.5 s', '42 us')
    """
    unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("us", 1e-6)
    return f"{seconds / size:.3g} {unit}"


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Progress on standard error: a bar in a terminal, else a line every few seconds."""
    err = console(stderr=True)
    if err.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(escape(label), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    first: tuple[float, int] | None = None  # what came before it was mostly compilation
    last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal first, last
        now = time.monotonic()
        first = first or (now, done)
        if now - last > 5 and 0 < done < total:
            last, rest = now, ""
            if done > first[1]:
                left = (now - first[0]) * (total - done) / (done - first[1])
                rest = f", about {left:.0f} s left"
            err.print(f"{label}: {done} of {total}{rest}", markup=False)

    yield line


@contextmanager
def working(label: str) -> Iterator[Callable[[str], None]]:
    """What is being done, on standard error: a moving line in a terminal, else a line each."""
    err = console(stderr=True)
    if err.is_terminal:
        with err.status(escape(label)) as status:
            yield lambda what: status.update(escape(f"{label}: {what}"))
        return
    yield lambda what: err.print(f"{label}: {what}", markup=False)


def tracked(label: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Go through items with progress."""
    with progress(label) as tell:
        for done, item in enumerate(items, 1):
            yield item
            tell(done, total)


def coloured(outcome: str) -> str:
    """A verdict or a ruling with its colour; other words as they are."""
    return f"[{COLOURS[outcome]}]{outcome}[/]" if outcome in COLOURS else escape(outcome)


def table(*columns: str, rows: Iterable[Iterable[str]] = (), title: str | None = None) -> Table:
    """A quiet table: the first column to the left, the others to the right.

    Control characters, which could command a terminal, are written out.
    """
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(
            printable(column), justify="left" if index == 0 else "right", no_wrap=index > 0
        )
    for row in rows:
        made.add_row(*map(printable, row))
    return made


def printable(text: str) -> str:
    r"""A text whose control characters are written out, except the ends of lines.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


# ------------------------------------------------------------------------------- certificates

_HOLDS = {True: "[green]yes[/]", False: "[red]no[/]", None: "[magenta]?[/]"}


def _readings(lines: list[Reading], title: str) -> Table:
    def cells(r: Reading) -> tuple[str, str, str]:
        if not r.checked:
            return "", r.relation, ""
        if is_condition(r.lhs, r.rhs):
            return "", "", ""
        if r.lhs == SMALLEST:  # it stands for 0 in "0 < x"
            return "0", f"< {number(r.rhs)}", signed(r.margin)
        return number(r.lhs), f"{r.relation} {number(r.rhs)}", signed(r.margin)

    rows = [(escape(r.name), *cells(r), _HOLDS[r.holds] if r.checked else "") for r in lines]
    return table(title, "left side", "right side", "margin", "holds", rows=rows)


def _rates(certificate: Certificate, unit: str) -> str:
    proved, seen = float(certificate.predicted_rate), float(certificate.measured_rate)
    if math.isnan(proved):
        return "This theorem makes no statement about a rate."
    if verdict(certificate) in (Verdict.NOT_APPLICABLE, Verdict.UNRESOLVED):
        measured = "not measured" if math.isnan(seen) else f"measured {number(seen)}"
        return f"risk lost per {unit}: {measured} (nothing is proved here)"
    ratio = f", {number(seen / proved)} times the proved rate" if proved > 0 else ""
    return f"risk lost per {unit}: proved {number(proved)}, measured {number(seen)}{ratio}"


def sizes_text(setup: Setup) -> str:
    """The sizes of a setup, and the settings that the user chose."""
    setting = setup.setting
    sizes = [n for n in ("num_heads", "num_layers", "width") if shapes_weights(setting, n)]
    more = ("residual",) if "num_layers" in sizes else ()
    names = dict.fromkeys(
        ("num_samples", "num_tokens", "dim", *sizes, *more, "kernel", "train", "init",
         "score_exponent", *setup.overrides)
    )  # fmt: skip
    shown = [n for n in names if n in setting.fields() and n not in ("num_steps", "step_size")]
    return ", ".join(f"{name}={getattr(setting, name)}" for name in shown)


def shapes_weights(setting: Any, name: str) -> bool:
    """Whether the weights' shapes depend on a size: in some papers only one model has it."""
    size = getattr(setting, name, None)
    if not isinstance(size, int):
        return False
    shapes = [
        [leaf.shape for leaf in trees.blocks(s.network().spec).values()]
        for s in (setting, setting.replace(**{name: 2 * size}))
    ]
    return shapes[0] != shapes[1]


def steps_text(setup: Setup) -> str:
    """The step size, or the range of those of all seeds."""
    steps = setup.step_size
    if steps is None:
        return "chosen by the method"
    low, high = float(np.min(steps)), float(np.max(steps))
    return number(low) if low == high or np.isnan(low) else f"{number(low)} to {number(high)}"


def certificates_parts(found: Certificates) -> Iterator[Any]:
    """A theorem compared with every seed, as things to print."""
    run, theorem = found.run, found.theorem
    yield f"[bold]{escape(run.setup.name)}.{theorem.key}[/]  {escape(theorem.statement)}"
    yield f"[dim]{escape(theorem.source)}[/]"
    source = run.notes.get("step_size_source", "given")
    sizes = escape(sizes_text(run.setup))
    yield f"{sizes}; step size {steps_text(run.setup)} ({escape(source)})\n"
    unit = "unit of time" if run.setup.setting.method == "flow" else "step"
    for seed, certificate in list(zip(run.seeds, found, strict=True))[:MANY]:
        hypotheses, conclusions = readings(certificate)
        outcome = verdict(certificate)
        yield f"seed {seed}: {coloured(outcome)}"
        yield _readings(hypotheses, "hypothesis")
        yield _readings(conclusions, "conclusion, at its tightest recorded step")
        yield _rates(certificate, unit)
        yield f"{escape(explain(certificate))}\n"
    if len(found) > MANY:
        yield f"all {len(found)} seeds: {counts_text(found.verdicts)}"


def counts_text(verdicts: list[str]) -> str:
    """How many seeds came out how."""
    return ", ".join(f"{verdicts.count(v)} {coloured(v)}" for v in Verdict if v in verdicts)


def explain(certificate: Certificate) -> str:
    """A verdict as a sentence."""
    (hypotheses, conclusions), outcome = readings(certificate), verdict(certificate)
    failed = [line.name for line in hypotheses if line.holds is False]
    broken = [line.name for line in conclusions if line.holds is False]
    lines = (*hypotheses, *conclusions)
    open_ = [line.name for line in lines if line.holds is None and line.checked]
    return {
        Verdict.HOLDS: "Every hypothesis holds, and the run obeys every conclusion.",
        Verdict.NOT_APPLICABLE: "The theorem says nothing about this run, which may still "
        f"converge. Failed: {'; '.join(failed)}.",
        Verdict.VIOLATED: "The hypotheses hold, but the run breaks what they imply: "
        f"{'; '.join(broken)}. Either the record is wrong or the theorem is.",
        Verdict.UNRESOLVED: undecided_words(open_, certificate.without_rule),
    }[outcome]


# --------------------------------------------------------------------------------------- runs


def setup_text(setup: Setup) -> str:
    """A setup in two lines."""
    blocks = trees.blocks(setup.params0)
    axes = 1 if setup.seeds else 0  # of seeds
    shapes = ", ".join(f"{k} {tuple(np.shape(W)[axes:])}" for k, W in list(blocks.items())[:8])
    more = f" and {len(blocks) - 8} more blocks" if len(blocks) > 8 else ""
    seeds = counted(len(setup.seeds), "seed") if setup.seeds else "one start"
    return f"Setup of {setup.name}, {seeds}: {sizes_text(setup)}\n{shapes}{more}"


def proof_text(proof: Any) -> str:
    """A proof in a few lines."""
    when = (
        f" at step {proof.step}" if proof.verdict == "undecided" else f" from step {proof.step} on"
    )
    at = "" if proof.step is None else when
    by = f" ({proof.theorem})" if proof.theorem else ""
    lines = [f"{proof.verdict}{at}{by}: {proof.reason}"]
    low, high = proof.risk
    if proof.verdict == "converges":
        lines.append(
            f"Every step multiplies the residual by at most {proof.rate[0]:.6g}, later by at most "
            f"{proof.rate[1]:.6g}; the weights stay within {proof.radius:.3g} of where they are."
        )
    elif proof.verdict == "stuck":
        lines.append(
            f"The risk tends to a number in [{low:.17g}, {high:.17g}], at the proved factor "
            f"{proof.rate[0]:.6g} per step; the weights stay within {proof.radius:.3g} of where "
            "they are."
        )
    lines.append(
        f"{counted(proof.num_weights, 'weight')}, {counted(proof.num_outputs, 'output')}, "
        f"{counted(proof.decisions, 'decision')}, {proof.seconds:.2f} s; "
        "for gradient descent in exact arithmetic."
    )
    if proof.slack:
        worst = ", ".join(
            f"{name} {factor:.3g}x" + (f" ({place})" if place else "")
            for name, place, factor in proof.slack
        )
        lines.append(f"Bounds lose most in: {worst}.")
    if proof.replayed:
        lines.append(f"Replayed {proof.replayed}.")
    return "\n".join([*lines, proof.remark] if proof.remark else lines)


def run_parts(run: Run, certificates: Sequence[Certificates] = ()) -> Iterator[Any]:
    """What a training run did, as things to print."""
    seconds = run.notes.get("seconds")
    spent = "" if seconds is None else f", {seconds:.1f} s"
    yield (
        f"[bold]{escape(run.setup.name)}[/]: {counted(len(run.seeds), 'seed')}, "
        f"{counted(int(run.step[-1]), 'step')} of {steps_text(run.setup)} "
        f"({escape(run.notes.get('step_size_source', 'given'))}){spent}"
    )
    few = certificates if len(certificates) <= MANY else ()
    rows = table("seed", "first risk", "last risk", "lost per step", *(c.theorem.key for c in few))
    risk = np.asarray(run.risk, float)
    above = risk - (run.best or 0.0)
    diverged = ~np.isfinite(risk).all(axis=1)
    for i, seed in enumerate(run.seeds[:10]):
        with np.errstate(invalid="ignore", divide="ignore"):
            lost = 1 - (above[i, -1] / above[i, 0]) ** (1 / max(int(run.step[-1]), 1))
        last = "[red]diverged[/]" if diverged[i] else number(risk[i, -1])
        verdicts = [coloured(c.verdicts[i]) for c in few]
        rows.add_row(str(seed), number(risk[i, 0]), last, number(lost), *verdicts)
    yield rows
    if len(run.seeds) > 10:
        middle = number(float(np.median(risk[:, -1])))
        yield f"... and {len(run.seeds) - 10} more; median last risk {middle}"
    for found in certificates if not few else ():
        yield f"{found.theorem.key}: {counts_text(found.verdicts)}"
    yield from map(_why_not, certificates)
    if ended := run.notes.get("ended"):
        yield _final_states(run.seeds, ended)
    if diverged.any():
        yield f"[red]{int(diverged.sum())} of {len(diverged)} seeds diverged[/]{_advice(run)}"


def _why_not(found: Certificates) -> str:
    """Which hypotheses fail, where a theorem does not apply; else nothing."""
    names: Counter[str] = Counter()
    for one in found:
        names.update({line.name for line in readings(one)[0] if line.holds is False})
    if not names:
        return ""
    told = "; ".join(escape(name) for name, _ in names.most_common(2))
    more = f"; and {len(names) - 2} more" if len(names) > 2 else ""
    return f"[dim]{found.theorem.key} is not applicable, since this fails: {told}{more}.[/]"


def _advice(run: Run) -> str:
    """What to try after divergence: the default step, or less if that was it."""
    if run.step_size is None:
        return ": try a smaller step."
    used = float(np.min(run.step_size))
    given = run.notes.get("step_size_source") == "given"
    usual = float(np.min(default_steps(run.setup))) if given else used
    return f": try --set step_size={usual if usual < used else used / 4:.2g}."


def _final_states(seeds: tuple[int, ...], ended: list[dict[str, Any]]) -> Table:
    """Stuck or slow: where each seed came to rest."""
    names = ("gradient_norm", "hessian_min", "hessian_max", "above_floor", "floor")
    rows = []
    for seed, end in list(zip(seeds, ended, strict=True))[:10]:
        norm, low, *more = (number(float(end[name])) for name in names)
        low += "" if end["converged"] else " ?"
        rows.append((str(seed), end["state"], norm, low, *more))
    head = ("seed", "at the end", "|gradient|", "Hessian from", "to", "above the floor", "floor")
    return table(*head, rows=rows)


# -------------------------------------------------------------------------------------- papers


def summary_parts(item: Paper, target: str) -> Iterator[str]:
    """A paper with its theorems and figures; ``target`` is what the user calls it."""
    where = f" (arXiv {item.arxiv})" if item.arxiv else ""
    yield f"[bold]{escape(item.key)}[/]  {escape(item.title)}{where}"
    who = ", ".join(str(part) for part in (item.authors, item.year) if part)
    about = f" About {item.about}." if item.about else ""
    yield f"  {escape(who)}.{escape(about)}"
    for theorem in item.all_theorems():
        source = escape(theorem.source.partition(";")[0])
        name = f"[cyan]{escape(target)}.{theorem.key}[/]"
        yield f"  {name}  {escape(theorem.statement)} [dim]({source})[/]"
    names = ", ".join(figure.key for figure in item.figures) or "none"
    claims = counted(len(item.claims), "claim")
    yield f"  {claims} (shoal claims {escape(target)}); figures: {escape(names)}"


def settings_of(kind: Any) -> dict[str, tuple[str, str]]:
    """For every setting what it does, and where it comes from."""
    said, sources = kind.sentences(), provenance(kind)
    return {name: (re.sub(r" \[\w+\]$", "", said[name]), sources[name]) for name in said}


def probes_of(item: Paper) -> dict[str, str]:
    """The probes of a paper's default setting, each with its sentence."""
    setup = paper_setup(item, {})
    return {name: sentence(setup, name) for name in probe_names(setup)}


def paper_parts(item: Paper, target: str) -> Iterator[Any]:
    """One paper with all its settings and probes."""
    yield from summary_parts(item, target)
    defaults, usual = item.setting().asdict(), item.setting.default_probes
    settings = [
        (name, escape(_plain_value(defaults[name])), escape(said), source)
        for name, (said, source) in settings_of(item.setting).items()
    ]
    probes = [(n, "yes" if n in usual else "", escape(s)) for n, s in probes_of(item).items()]
    for made in (
        table("setting", "default", "what it does", "source", rows=settings),
        table("probe", "default", "what it is", rows=probes),
    ):
        for column in made.columns[1:]:
            column.justify = "left"
        made.columns[2].no_wrap = False
        yield made


def _plain_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{v:g}" for v in value)
    return "auto" if value is None else str(value)


def data_parts(report: DataReport) -> Iterator[Any]:
    """The data assumptions of wu2023, measured on any problem."""
    yield (
        f"{counted(report.num_samples, 'sample')} of {counted(report.num_tokens, 'token')} in "
        f"dimension {report.dim}; labels of root mean square {number(report.label_rms)}"
    )
    low, high = number(report.tail_exponent_low), number(report.tail_exponent_high)
    fit = f"{number(report.tail_exponent)} [{low}, {high}]"
    if math.isnan(report.tail_exponent):
        fit = "too few pairs"
    exponents = f"c <= {number(report.largest_exponent)}" if report.dissimilar else "no such c"
    if math.isinf(report.largest_exponent):
        exponents = "every c"
    rank = "full row rank: sigma_min / sigma_max of the worst sequence"
    law = "dissimilar: overlaps t >= 1 obey exp(-t^c) as they stand, for some c > 0"
    rows = [
        ("bounded: |X_n|_F <= sqrt(tokens) C", f"C = {number(report.bound)}", _HOLDS[True]),
        (rank, number(report.row_conditioning), _HOLDS[report.full_row_rank]),
        ("tail exponent c, fitted to exp(-a t^c)", escape(fit), ""),
        (law, exponents, _HOLDS[report.dissimilar]),
        ("largest normalised overlap of two samples", number(report.overlap_max), ""),
        ("Gershgorin margin of the overlaps", number(report.gershgorin_margin), ""),
    ]
    yield table("assumption", "measured", "holds", rows=rows)
    yield (
        "[dim]The data assumptions of wu2023, measured on this problem. Dissimilarity is not scale "
        "invariant: tokens scaled down satisfy it sooner. The normalised overlap is.[/]"
    )
