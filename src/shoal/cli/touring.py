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
    ("theorem_a", {"width": 4000, "score_exponent": 1.0}),
    ("theorem_a", {"width": 40000, "score_exponent": 1.0}),
    ("theorem_a", {"width": 40000, "score_exponent": 0.5}),
    ("theorem_a", {"width": 40000, "score_exponent": 0.5, "hidden_step_ratio": 0.01}),
    ("theorem_a", {"width": 40000, "score_exponent": 1.0, "init": "ntk"}),
    ("theorem_b", {"width": 4000, "score_exponent": 1.0}),
)
STEPS = {"theorem_a": 40, "theorem_b": 20, "kernel_regime": 200}
WIDTHS = (64, 256, 1024, 4096)


CLAIMS = (
    "wu2023.linear_convergence",
    "wu2023.scaling_large_width_equal_step",
    "wu2023.attention_tends_to_uniform",
    "wu2023.attention_stays_informative",
    "wu2023.weights_freeze_early",
    "wu2023.rank_is_needed",
)


def tour(page_path: Path, *, as_json: bool) -> None:
    """Train, certify, put claims on trial, and say what came out, here and on a page."""
    begun = time.perf_counter()
    out = show.console()
    results: dict[str, Any] = {}
    if not as_json:
        out.print("[bold]shoal tour[/]: one paper, wu2023, through the whole laboratory.\n")

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

    entries = publishing.ledger(publishing.wanted(CLAIMS), full=False)
    kept = ledger_json(entries)
    results["claims"] = [{k: v for k, v in claim.items() if k != "panel"} for claim in kept]
    if not as_json:
        out.print("[bold]4. Claims on trial[/] (a few; shoal claims has them all)")
        for entry in entries:
            found = entry.evidence
            colour = publishing.RULINGS[found.ruling]
            out.print(f"  [{colour}]{found.ruling}[/]  {escape(found.sentence)}")

    _page(page_path, stops_done, digits_done, kept)
    results["page"] = str(page_path)
    results["seconds"] = round(time.perf_counter() - begun, 1)
    if as_json:
        work.print_json(results)
    else:
        out.print(f"\n{results['seconds']} s. All of it on one page: {page_path}", soft_wrap=True)
        out.print("Next: shoal papers wu2023, shoal claims wu2023, shoal reproduce wu2023")


def _page(
    path: Path, stops: list[work.Done], digits: work.Done, kept: list[dict[str, Any]]
) -> None:
    """The tour as a page: the widest certified run, real data, and the ledger."""
    certified = stops[2]
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
    paper = paper_of("wu2023")
    lead = "A tour of the laboratory: certificates, real data and claims, for one paper."
    parts = [glance, *parts, sections.ledger_section(kept)]
    publishing.write_page(path, "shoal tour", lead, parts, [paper])


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
