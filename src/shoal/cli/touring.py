"""``shoal tour``: what the laboratory can do, in about a minute."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from shoal import fits
from shoal.certificates import Certificate, Verdict, verdict
from shoal.cli import publishing, show, work
from shoal.experiments import prepare, theorem_of
from shoal.figures import Panel, band
from shoal.ledger import ledger_json
from shoal.papers import paper_of, wu2023
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
    ("theorem_a", {"width": 40000, "score_exponent": 0.5}),
    ("theorem_a", {"width": 40000, "score_exponent": 0.5, "hidden_step_ratio": 0.01}),
    ("theorem_b", {"width": 4000, "score_exponent": 1.0}),
)
CERTIFIED = 1  # of these, the one that the page shows at length
STEPS = {"theorem_a": 40, "theorem_b": 20, "kernel_regime": 200}
WIDTHS = (64, 256, 1024, 4096)


CLAIMS = (
    "wu2023.linear_convergence",
    "wu2023.attention_tends_to_uniform",
    "wu2023.rank_is_needed",
    "song2024.softmax_is_trapped",
    "song2024.keys_free_softmax",
    "song2024.gaussian_has_traps_too",
    "song2024.middling_scale_is_best",
    "arda2026.long_tokens_make_spikes",
    "arda2026.loss_has_a_knee_at_the_teacher_s_norm",
)
SEQUENCES = {"num_samples": 20, "num_tokens": 8, "dim": 4, "num_heads": 16, "num_steps": 100}
BALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("theorem_b", {}),
    ("theorem_b", {"radius": "0.1"}),
    ("theorem_c", {"labels": "dual", "radius": "1.5", "num_heads": 64, "step_size": 0.5}),
)
TRAP = {"problem": "trap", "init": "trap", "step_size": 0.5, "num_steps": 5000, "every": 50}
TRAPS = (  # kernel, trained blocks
    ("softmax", "W_Q"),
    ("gaussian", "W_Q"),
    ("softmax", "W_Q,W_K"),
    ("softmax", "W_V"),  # on random data instead, where theorem_1 has something to say
)


def tour(page_path: Path, *, as_json: bool) -> None:
    """Train, certify, put claims on trial, and say what came out, here and on a page."""
    begun = time.perf_counter()
    out = show.console()
    results: dict[str, Any] = {}
    if not as_json:
        out.print(
            "[bold]shoal tour[/]: the laboratory on its papers, wu2023, song2024 and arda2026.\n"
        )

    stops_done = [_run(name, SMALL | values) for name, values in STOPS]
    results["certificates"] = stops = [_stop(done) for done in stops_done]
    if not as_json:
        out.print(
            "[bold]1. Does the theorem apply, and does the run obey?[/]  3 sequences of 2 unit "
            "tokens in dimension 16."
        )
        out.print(_certificate_table(stops))
        out.print(_certificate_words(stops) + "\n")

    results["limit"] = limit = _limit()
    if not as_json:
        out.print("[bold]2. The tangent kernel settles as the network widens[/] (LeCun, p = 1)")
        out.print(_limit_table(limit))
        out.print(
            f"Fitted exponent {limit['slope']:.3f} [{limit['low']:.3f}, {limit['high']:.3f}]; "
            "theory says -1/2.\n"
        )

    digits_done = _run(
        "kernel_regime",
        {"problem": "digits", "num_samples": 50, "dim": 24, "width": 512},
        ("kernel_drift", "kernel_eigenvalues", "attention", "movement", "pl_ratio"),
    )
    results["digits"] = digits = _digits(digits_done)
    if not as_json:
        out.print("[bold]3. Real data[/]: handwritten 0 against 1, 4 x 4 patches as tokens.")
        out.print(
            f"50 images, width 512: risk {show.number(digits['first_risk'])} -> "
            f"{show.number(digits['last_risk'])} in {digits['num_steps']} steps; the tangent "
            f"kernel at the start predicted {show.number(digits['predicted_risk'])}."
        )
        drift = f"The kernel moved by {100 * digits['kernel_drift']:.1f}%"
        out.print(f"{drift}; kernel_regime: {show.coloured(Verdict(digits['verdict']))}.\n")

    traps_done = [_trapped(kernel, train) for kernel, train in TRAPS]
    results["traps"] = traps = [_trap(done) for done in traps_done]
    if not as_json:
        out.print(
            "[bold]4. Stuck or slow?[/]  song2024: four tokens, one number to hit; softmax against "
            "Gaussian attention."
        )
        out.print(_trap_table(traps))
        out.print(_trap_words(traps) + "\n")

    balls_done = [_projected(name, SEQUENCES | values) for name, values in BALLS]
    results["balls"] = balls = [_ball(done) for done in balls_done]
    if not as_json:
        out.print(
            "[bold]5. Projected descent[/]  arda2026: 20 sequences of 8 tokens; every head stays "
            "in a ball around its start."
        )
        out.print(_ball_table(balls))
        out.print(_ball_words(balls) + "\n")

    entries = publishing.ledger(publishing.wanted(CLAIMS), full=False)
    kept = ledger_json(entries)
    results["claims"] = [{k: v for k, v in claim.items() if k != "panel"} for claim in kept]
    if not as_json:
        out.print("[bold]6. Claims on trial[/] (a few; shoal claims has them all)")
        for entry in entries:
            found = entry.evidence
            colour = publishing.RULINGS[found.ruling]
            out.print(f"  [{colour}]{found.ruling}[/]  {escape(found.sentence)}")

    _page(page_path, stops_done, digits_done, traps_done, balls_done, kept)
    results["page"] = str(page_path)
    results["seconds"] = round(time.perf_counter() - begun, 1)
    if as_json:
        work.print_json(results)
    else:
        out.print(f"\n{results['seconds']} s. All of it on one page: {page_path}", soft_wrap=True)
        out.print("Next: shoal papers, shoal claims song2024, shoal reproduce wu2023")


def _page(
    path: Path,
    stops: list[work.Done],
    digits: work.Done,
    traps: list[work.Done],
    balls: list[work.Done],
    kept: list[dict[str, Any]],
) -> None:
    """The tour as a page: the widest certified run, real data, and the ledger."""
    certified = stops[CERTIFIED]
    parts = [
        section._replace(title=f"{title}: {section.title}")
        for title, done in (("Theorem A at width 40000", certified), ("Digits", digits))
        for section in sections.run_sections(done.experiment, done.run, work.theorems_json(done))
    ]
    verdicts = tuple(
        (
            f"{row['theorem']}, width {row['width']}, {row['init']}, "
            f"p = {row['score_exponent']:g}, ratio {row['hidden_step_ratio']:g}",
            row["verdict"],
        )
        for row in map(_stop, stops)
    )
    glance = page.Section("Does the theorem apply?", verdicts=verdicts)
    lead = "A tour of the laboratory: certificates, real data, traps and claims, for three papers."
    shown = [*_trap_sections(traps), _ball_section(balls)]
    parts = [glance, *parts, *shown, sections.ledger_section(kept)]
    used = [paper_of(key) for key in ("wu2023", "song2024", "arda2026")]
    publishing.write_page(path, "shoal tour", lead, parts, used)


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


def _trap_sections(traps: list[work.Done]) -> list[page.Section]:
    rows = [_trap(done) for done in traps]
    curves = tuple(
        band(
            f"{row['kernel']}, {row['train']}",
            np.asarray(done.run.step[0]),
            np.maximum(np.asarray(done.run.risk), 1e-30),
        )
        for row, done in zip(rows, traps, strict=True)
    )
    loss = Panel("from the same start", "step", "risk", curves, log_y=True)
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
    text = f"song2024: four tokens, one number to hit. {_trap_words(rows)}"
    return [page.Section("Stuck or slow?", text, tables=(("ends", head, cells),), panels=(loss,))]


def _projected(name: str, values: dict[str, Any]) -> work.Done:
    paper = paper_of("arda2026")
    theorem = theorem_of(paper, name)
    experiment, source = work.with_step(prepare(paper, values), theorem)
    return work.execute(experiment, theorem.probes, (theorem,), source)


def _ball(done: work.Done) -> dict[str, Any]:
    certificate: Certificate = done.theorems[0][1][0]
    setting, known = done.experiment.setting, certificate.constants
    upper = known.get("bound along the path", np.nan)
    lower = known.get("lower bound of the linearised loss", np.nan)
    return {
        "theorem": done.theorems[0][0].key,
        "labels": setting.labels,
        "radius": setting.radius,
        "first_risk": float(done.run.risk[0, 0]),
        "last_risk": float(done.run.risk[0, -1]),
        "mean_risk": float(np.mean(done.run.risk[0, :-1])),
        "at_most": float(upper),
        "at_least": float(lower),
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
        _or_dash(row["at_least"]),
    )


_BALL_HEAD: tuple[str, ...] = ("theorem", "labels", "radius", "last loss", "mean loss")
_BALL_HEAD += ("mean at most", "any at least")


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
        elif row["theorem"] == "theorem_c":
            words.append(
                "Labels of exactly known norm, half of it allowed: no weights in the balls get "
                f"much below {show.number(row['at_least'])}."
            )
    return "\n".join(words)


def _ball_section(balls: list[work.Done]) -> page.Section:
    rows = [_ball(done) for done in balls]
    curves = tuple(
        band(
            f"{row['labels']}, radius {row['radius']}",
            np.asarray(done.run.step[0]),
            np.asarray(done.run.risk),
        )
        for row, done in zip(rows, balls, strict=True)
    )
    loss = Panel("projected gradient descent", "step", "loss", curves, log_y=True)
    text = (
        "arda2026: heads with one neuron each, in pairs of opposite signs, each kept in a ball "
        f"around its start. {_ball_words(rows)}"
    )
    cells = tuple((*_ball_cells(row), row["verdict"]) for row in rows)
    head = (*_BALL_HEAD, "verdict")
    return page.Section("Projected descent", text, tables=(("runs", head, cells),), panels=(loss,))


def _run(name: str, values: dict[str, Any], extra: tuple[str, ...] = ()) -> work.Done:
    paper = paper_of("wu2023")
    theorem = theorem_of(paper, name)
    values = values | {"num_steps": STEPS[name], "method": theorem.method}
    experiment, source = work.with_step(prepare(paper, values), theorem)
    return work.execute(experiment, (*theorem.probes, *extra), (theorem,), source)


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
        "theorem",
        "width",
        "init",
        "p",
        "ratio",
        "c_5 < 1",
        "c_6 < 2",
        "verdict",
        "proved",
        "measured",
    )
    for row in rows:
        table.add_row(
            row["theorem"],
            str(row["width"]),
            row["init"],
            f"{row['score_exponent']:g}",
            f"{row['hidden_step_ratio']:g}",
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
    words = [
        "p: scores are scaled by width^-p; ratio: step of the hidden weights over that of the "
        "output. Rates: share\nof the risk lost per step (theorem_b: per unit of time)."
    ]
    if applied:
        words.append(
            f"Where the theorem applies, the run was {min(ratios):.0f} to {max(ratios):.0f} times "
            "as fast as proved."
        )
    if silent:
        words.append(
            f"Not applicable is not divergent: {falling} of those {len(silent)} runs lost risk "
            "all the same."
        )
    return "\n".join(words)


def _limit() -> dict[str, Any]:
    seeds = tuple(range(6))
    setting = wu2023.Setting(num_samples=6, num_tokens=4, dim=8, score_exponent=1.0)
    problem = wu2023.problem(setting)
    distance = np.array(
        [wu2023.distance_to_limit(setting._replace(width=w), problem, seeds) for w in WIDTHS]
    )
    fit = fits.power_law(np.repeat(WIDTHS, len(seeds)), distance)
    return {"widths": WIDTHS, "distance": distance.mean(axis=1), **fit._asdict()}


def _limit_table(limit: dict[str, Any]) -> Table:
    table = show.table("width", *map(str, limit["widths"]))
    table.add_row("relative distance to the limit", *map(show.number, limit["distance"]))
    return table


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
