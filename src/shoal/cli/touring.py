"""``shoal tour``: one visit to each paper, in about a minute.

A visit trains and certifies a few small runs; what it says depends on what came out.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from shoal.certificates import Certificate, Verdict, verdict
from shoal.cli import publishing, show, work
from shoal.experiments import prepare, theorem_of
from shoal.figures import Panel, band
from shoal.ledger import ledger_json
from shoal.papers import paper_of
from shoal.report import page, sections

SMALL = {
    "num_samples": 3,
    "num_tokens": 2,
    "dim": 16,
    "tokens": "unit",
    "label_scale": 0.3,
    "pooling": "sum",
}
STOPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("theorem_a", {"width": 400, "score_exponent": 1.0}),
    ("theorem_a", {"width": 40000, "score_exponent": 1.0}),
)
CERTIFIED = 1  # of these, the one that the page shows at length
STEPS = {"theorem_a": 40, "kernel_regime": 200}
CLAIMS = (
    "wu2023.rank_is_needed",
    "song2024.softmax_is_trapped",
    "arda2026.long_tokens_make_spikes",
    "qin2025.residual_cures_correlated_tokens",
)
SEQUENCES = {"num_samples": 20, "num_tokens": 8, "dim": 4, "num_heads": 16, "num_steps": 100}
BALLS: tuple[tuple[str, dict[str, Any]], ...] = (("theorem_b", {}),)
TRAP = {"problem": "trap", "init": "trap", "step_size": 0.5, "num_steps": 5000, "every": 50}
TRAPS = (  # kernel, trained blocks
    ("softmax", "W_Q"),
    ("gaussian", "W_Q"),
    ("softmax", "W_V"),  # on random data instead, where theorem_1 has something to say
)
NEAR = {
    "num_samples": 3,
    "num_tokens": 4,
    "width": 32,
    "num_layers": 2,
    "token_scale": 32**-0.5,
    "scale_qk": 0.5,
    "scale_v": 0.3,
    "scale_1": 0.5,
    "scale_2": 0.3,
    "labels": "near",
    "near_error": 1e-4,
    "step_size": 2e-4,
    "num_steps": 200,
}
RESIDUALS = ("both", "none")


class Visit(NamedTuple):
    """What a paper had to show: numbers for scripts, a table and words for people."""

    title: str
    rows: list[dict[str, Any]]
    table: Table
    words: str
    sections: list[page.Section]  # the paper's story, then details


def tour(page_path: Path, *, as_json: bool) -> None:
    """Train, certify, put claims on trial, and say what came out, here and on a page."""
    begun = time.perf_counter()
    out = show.console()
    results: dict[str, Any] = {}
    if not as_json:
        out.print(f"[bold]shoal tour[/]: the laboratory on its papers, {', '.join(VISITS)}.\n")
    stories: list[page.Section] = []
    details: list[page.Section] = []
    for number, (key, visit) in enumerate(VISITS.items(), 1):
        found = visit()
        results[key] = found.rows
        stories.append(found.sections[0])
        details += found.sections[1:]
        if not as_json:
            out.print(f"[bold]{number}. {key}: {found.title}[/]")
            out.print(found.table)
            out.print(found.words + "\n")

    entries = publishing.ledger(publishing.wanted(CLAIMS), full=False)
    kept = ledger_json(entries)
    results["claims"] = [{k: v for k, v in claim.items() if k != "panel"} for claim in kept]
    if not as_json:
        out.print(f"[bold]{len(VISITS) + 1}. Claims on trial[/] (a few; shoal claims has them all)")
        for entry in entries:
            ruling = entry.evidence.ruling
            said = f"{escape(entry.claim.statement)} {escape(entry.evidence.sentence)}"
            out.print(f"  [{publishing.RULINGS[ruling]}]{ruling}[/]  {said}")

    lead = "A visit to each paper: what it says, what was run, and what came out."
    parts = [*stories, sections.ledger_section(kept), *details]
    publishing.write_page(page_path, "shoal tour", lead, parts, [paper_of(key) for key in VISITS])
    results["page"] = str(page_path)
    results["seconds"] = round(time.perf_counter() - begun, 1)
    if as_json:
        work.print_json(results)
    else:
        out.print(f"\n{results['seconds']} s. All of it on one page: {page_path}", soft_wrap=True)
        out.print("Next: shoal papers, shoal claims qin2025, shoal reproduce wu2023")


def _certified(paper_key: str, name: str, values: dict[str, Any], extra: tuple = ()) -> work.Done:
    """Train by the step that a theorem allows (or the usual one), and certify."""
    paper = paper_of(paper_key)
    theorem = theorem_of(paper, name)
    experiment, source = work.with_step(prepare(paper, values), theorem)
    return work.execute(experiment, (*theorem.probes, *extra), (theorem,), source)


# -------------------------------------------------------------------------------------- wu2023


def _wide() -> Visit:
    stops = [
        _certified("wu2023", name, SMALL | values | {"num_steps": STEPS[name]})
        for name, values in STOPS
    ]
    digits_values = {"problem": "digits", "num_samples": 50, "dim": 24, "width": 512}
    digits_done = _certified(
        "wu2023",
        "kernel_regime",
        digits_values | {"num_steps": STEPS["kernel_regime"]},
        ("kernel_drift", "attention"),
    )
    rows, digits = [_stop(done) for done in stops], _digits(digits_done)
    real = (
        f"Real data, handwritten 0 against 1: risk {show.number(digits['first_risk'])} -> "
        f"{show.number(digits['last_risk'])} in {digits['num_steps']} steps; the kernel at the "
        f"start predicted {show.number(digits['predicted_risk'])} and moved by "
        f"{100 * digits['kernel_drift']:.1f}%"
    )
    words = f"{_certificate_words(rows)}\n{real}: kernel_regime {digits['verdict']}."
    verdicts = tuple(
        (f"{row['theorem']}, width {row['width']}, p = {row['score_exponent']:g}", row["verdict"])
        for row in rows
    )
    text = (
        "wu2023: wide enough shallow encoders are trained to zero by gradient descent, and how "
        f"wide depends on how scores are scaled. {words}"
    )
    glance = page.Section(
        "Does the theorem apply?",
        text,
        verdicts=(*verdicts, ("kernel_regime on digits", digits["verdict"])),
    )
    shown = [
        section._replace(title=f"{title}: {section.title}")
        for title, done in (("Theorem A at width 40000", stops[CERTIFIED]), ("Digits", digits_done))
        for section in sections.run_sections(done.experiment, done.run, work.theorems_json(done))
    ]
    title = "how wide is wide enough? 3 sequences of 2 unit tokens"
    return Visit(title, [*rows, digits], _certificate_table(rows), words, [glance, *shown])


# ------------------------------------------------------------------------------------ song2024


def _trapped(kernel: str, train: str) -> work.Done:
    paper = paper_of("song2024")
    values = TRAP | {"kernel": kernel, "train": train}
    if train == "W_V":  # exact theory exists: see it hold
        theorem = theorem_of(paper, "theorem_1")
        values = {"kernel": kernel, "train": train, "num_steps": 200}
        experiment, source = work.with_step(prepare(paper, values), theorem)
        return work.execute(experiment, (), (theorem,), source)
    return work.execute(prepare(paper, values), (), (), "given")


def _trap(done: work.Done) -> dict[str, Any]:
    setting, ended = done.experiment.setting, done.notes["ended"][0]
    risk = np.asarray(done.run.risk[0])
    verdicts = [str(verdict(found[0])) for _, found in done.theorems]
    return {
        "kernel": setting.kernel,
        "train": setting.train,
        "first_risk": risk[0],
        "last_risk": risk[-1],
        "state": ended["state"],
        "gradient_norm": float(ended["gradient_norm"]),
        "hessian_min": float(ended["hessian_min"]),
        "verdict": verdicts[0] if verdicts else None,
    }


def _trap_table(rows: list[dict[str, Any]]) -> Table:
    table = show.table("kernel", "trained", "first risk", "last risk", "at the end", "|gradient|")
    for row in rows:
        table.add_row(
            row["kernel"],
            row["train"],
            show.number(row["first_risk"]),
            show.number(row["last_risk"]),
            row["state"],
            show.number(row["gradient_norm"]),
        )
    return table


def _trap_words(rows: list[dict[str, Any]]) -> str:
    """What the table says, in words that depend on what is in it."""
    stuck = [row for row in rows if row["state"] == "stuck"]
    said = [
        f"{row['kernel']} with {row['train']} sits in a strict local minimum (Hessian from "
        f"{show.number(row['hessian_min'])})"
        for row in stuck
        if row["hessian_min"] > 0
    ]
    others = [f"{r['kernel']} with {r['train']}" for r in rows if r["state"] == "at the floor"]
    words = f"Stuck: {'; '.join(said) or 'none'}. Solved: {'; '.join(others) or 'none'}."
    exact = [row["verdict"] for row in rows if row["verdict"]]
    if not exact:
        return words
    return (
        f"{words}\nOnly W_V moving (random data) is a recursion that theorem_1 knows: {exact[0]}."
    )


def _traps() -> Visit:
    done = [_trapped(kernel, train) for kernel, train in TRAPS]
    rows = [_trap(one) for one in done]
    curves = tuple(
        band(
            f"{row['kernel']}, {row['train']}",
            np.asarray(one.run.step[0]),
            np.maximum(np.asarray(one.run.risk), 1e-30),
        )
        for row, one in zip(rows, done, strict=True)
    )
    loss = Panel("training", "step", "risk", curves, log_y=True)
    cells = tuple(
        (
            f"{row['kernel']}, {row['train']}",
            show.number(row["last_risk"]),
            row["state"],
            show.number(row["gradient_norm"]),
            show.number(row["hessian_min"]),
        )
        for row in rows
    )
    head = ("side", "last risk", "at the end", "|gradient|", "Hessian from")
    words = _trap_words(rows)
    text = (
        "song2024: with softmax attention and only the query weights moving, gradient descent can "
        f"get stuck where a Gaussian kernel does not. Four tokens, one number to hit. {words}"
    )
    verdicts = tuple(
        (f"theorem_1, {row['kernel']}, {row['train']}", row["verdict"])
        for row in rows
        if row["verdict"]
    )
    section = page.Section(
        "Stuck or slow?", text, verdicts=verdicts, tables=(("ends", head, cells),), panels=(loss,)
    )
    return Visit("stuck or slow? softmax or Gaussian", rows, _trap_table(rows), words, [section])


# ------------------------------------------------------------------------------------ arda2026


def _ball(done: work.Done) -> dict[str, Any]:
    certificate: Certificate = done.theorems[0][1][0]
    setting, known = done.experiment.setting, certificate.constants
    upper = known.get("bound along the path", np.nan)
    return {
        "theorem": done.theorems[0][0].key,
        "labels": setting.labels,
        "radius": setting.radius,
        "first_risk": float(done.run.risk[0, 0]),
        "last_risk": float(done.run.risk[0, -1]),
        "mean_risk": float(np.mean(done.run.risk[0, :-1])),
        "at_most": float(upper),
        "verdict": str(verdict(certificate)),
    }


def _or_dash(value: float) -> str:
    return "-" if np.isnan(value) else show.number(value)


def _ball_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["theorem"],
        row["labels"],
        row["radius"],
        show.number(row["last_risk"]),
        show.number(row["mean_risk"]),
        _or_dash(row["at_most"]) if row["verdict"] != Verdict.NOT_APPLICABLE else "-",
    )


_BALL_HEAD = ("theorem", "labels", "radius", "last loss", "mean loss", "mean at most")


def _ball_table(rows: list[dict[str, Any]]) -> Table:
    table = show.table(*_BALL_HEAD, "verdict")
    for row in rows:
        table.add_row(*_ball_cells(row), show.coloured(Verdict(row["verdict"])))
    return table


def _ball_words(rows: list[dict[str, Any]]) -> str:
    """What the table says, in words that depend on what is in it."""
    words = []
    for row in rows:
        if row["verdict"] == Verdict.HOLDS and row["theorem"] == "theorem_b":
            ratio = row["at_most"] / row["mean_risk"]
            words.append(
                f"With radius {row['radius']} the bound is {ratio:.1f} times the mean loss."
            )
        elif row["verdict"] == Verdict.NOT_APPLICABLE:
            words.append(f"Radius {row['radius']} does not hold the teacher: nothing is promised.")
    return "\n".join(words)


def _balls() -> Visit:
    done = [_certified("arda2026", name, SEQUENCES | values) for name, values in BALLS]
    rows = [_ball(one) for one in done]
    curves = tuple(
        band(
            f"{row['labels']}, radius {row['radius']}",
            np.asarray(one.run.step[0]),
            np.asarray(one.run.risk),
        )
        for row, one in zip(rows, done, strict=True)
    )
    loss = Panel("projected gradient descent", "step", "loss", curves, log_y=True)
    words = _ball_words(rows)
    text = (
        "arda2026: heads with one neuron each, in pairs of opposite signs, each kept in a ball "
        f"around its start; the loss is bounded in finite time, whatever the length. {words}"
    )
    verdicts = tuple((f"{r['theorem']}, radius {r['radius']}", r["verdict"]) for r in rows)
    cells = tuple((*_ball_cells(row), row["verdict"]) for row in rows)
    tables = (("runs", (*_BALL_HEAD, "verdict"), cells),)
    section = page.Section(
        "Projected descent", text, verdicts=verdicts, tables=tables, panels=(loss,)
    )
    return Visit("descent within a radius", rows, _ball_table(rows), words, [section])


# ------------------------------------------------------------------------------------- qin2025


def _residual(done: work.Done) -> dict[str, Any]:
    certificate: Certificate = done.theorems[0][1][0]
    risk = np.asarray(done.run.risk[0])
    return {
        "residual": done.experiment.setting.residual,
        "layers": done.experiment.setting.num_layers,
        "condition": float(done.run.probes["conditioning_condition"][0, 0, -1]),
        "r_max": float(certificate.constants["r_max"]),
        "r_0": float(certificate.constants["|r_0|"]),
        "risk_left": float(risk[-1] / risk[0]),
        "verdict": str(verdict(certificate)),
    }


_RESIDUAL_HEAD = ("residuals", "layers", "condition number", "r_max", "|r_0|", "risk left")


def _residual_cells(row: dict[str, Any]) -> tuple[str, ...]:
    numbers = (row[name] for name in ("condition", "r_max", "r_0", "risk_left"))
    return (row["residual"], str(row["layers"]), *map(show.number, numbers))


def _residuals() -> Visit:
    done = [
        _certified("qin2025", "theorem_d", NEAR | {"residual": mode}, ("conditioning",))
        for mode in RESIDUALS
    ]
    rows = [_residual(one) for one in done]
    table = show.table(*_RESIDUAL_HEAD, "verdict")
    for row in rows:
        table.add_row(*_residual_cells(row), show.coloured(Verdict(row["verdict"])))
    said = [
        f"{'With' if row['residual'] == 'both' else 'Without'} residuals the second layer's "
        f"attention output has condition number {show.number(row['condition'])}, and theorem_d "
        f"certifies initial errors up to {show.number(row['r_max'])}: {row['verdict']}."
        for row in rows
    ]
    words = "\n".join(said)
    text = (
        "qin2025: softmax makes attention's output ill-conditioned, residual connections mend it, "
        f"and the speed of training follows its singular values. {words}"
    )
    verdicts = tuple((f"theorem_d, residuals: {r['residual']}", r["verdict"]) for r in rows)
    cells = tuple((*_residual_cells(row), row["verdict"]) for row in rows)
    curves = tuple(
        band(
            f"residuals: {row['residual']}",
            np.asarray(one.run.step[0]),
            np.asarray(one.run.risk) / np.asarray(one.run.risk)[:, :1],
        )
        for row, one in zip(rows, done, strict=True)
    )
    loss = Panel("at one step for both", "step", "risk over its start", curves)
    tables = (("runs", (*_RESIDUAL_HEAD, "verdict"), cells),)
    section = page.Section(
        "What residuals do", text, verdicts=verdicts, tables=tables, panels=(loss,)
    )
    return Visit("what residuals do to two layers", rows, table, words, [section])


# ----------------------------------------------------------------------------- wu2023, its parts


def _stop(done: work.Done) -> dict[str, Any]:
    certificate: Certificate = done.theorems[0][1][0]
    setting = done.experiment.setting
    return {
        "theorem": done.theorems[0][0].key,
        "width": setting.width,
        "init": setting.init,
        "score_exponent": setting.score_exponent,
        "hidden_step_ratio": setting.hidden_step_ratio,
        "step_size": setting.step_size,
        "alpha": float(certificate.constants["alpha"]),
        "c_5": float(certificate.constants["c_5"]),
        "c_6": float(certificate.constants.get("c_6", np.nan)),
        "verdict": str(verdict(certificate)),
        "predicted_rate": float(certificate.predicted_rate),
        "measured_rate": float(certificate.measured_rate),
    }


def _certificate_table(rows: list[dict[str, Any]]) -> Table:
    table = show.table(
        "theorem", "width", "p", "c_5 < 1", "c_6 < 2", "verdict", "proved", "measured"
    )
    for row in rows:
        table.add_row(
            row["theorem"],
            str(row["width"]),
            f"{row['score_exponent']:g}",
            show.number(row["c_5"]),
            "-" if np.isnan(row["c_6"]) else show.number(row["c_6"]),
            show.coloured(Verdict(row["verdict"])),
            show.number(row["predicted_rate"]) if row["verdict"] != "not applicable" else "-",
            show.number(row["measured_rate"]),
        )
    return table


def _certificate_words(rows: list[dict[str, Any]]) -> str:
    """What the table says, in words that depend on what is in it."""
    silent = [row for row in rows if row["verdict"] == Verdict.NOT_APPLICABLE]
    falling = sum(row["measured_rate"] > 0 for row in silent)
    applied = [row for row in rows if row["verdict"] == Verdict.HOLDS]
    ratios = [row["measured_rate"] / row["predicted_rate"] for row in applied]
    words = ["p: scores are scaled by width^-p. Rates: share of the risk lost per step."]
    if applied:
        words.append(
            f"Where the theorem applies, the run was {max(ratios):.0f} times as fast as proved."
        )
    if silent:
        words.append(
            f"Not applicable is not divergent: {falling} of {len(silent)} such runs lost risk all "
            "the same."
        )
    return "\n".join(words)


def _digits(done: work.Done) -> dict[str, Any]:
    certificate = done.theorems[0][1][0]
    risk = np.asarray(done.run.risk[0])
    steps = done.experiment.setting.num_steps
    return {
        "num_steps": steps,
        "first_risk": risk[0],
        "last_risk": risk[-1],
        "predicted_risk": risk[0] * (1 - float(certificate.predicted_rate)) ** steps,
        "kernel_drift": float(np.max(done.run.probes["kernel_drift"])),
        "verdict": str(verdict(certificate)),
    }


VISITS: dict[str, Callable[[], Visit]] = {
    "wu2023": _wide,
    "song2024": _traps,
    "arda2026": _balls,
    "qin2025": _residuals,
}
