"""``shoal tour``: what the laboratory can do, in about a minute."""

import time
from typing import Any

import numpy as np
from rich.table import Table

from shoal import fits
from shoal.certificates import Certificate, Verdict, verdict
from shoal.cli import show, work
from shoal.experiments import prepare, theorem_of
from shoal.papers import paper_of, wu2023

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
STEPS = {"theorem_a": 60, "theorem_b": 20, "kernel_regime": 200}
WIDTHS = (64, 256, 1024, 4096)


def tour(*, as_json: bool) -> None:
    """Train and certify wu2023 at a few widths, and say what came out."""
    begun = time.perf_counter()
    out = show.console()
    results: dict[str, Any] = {}
    if not as_json:
        out.print("[bold]shoal tour[/]: one paper, wu2023, through the whole laboratory.\n")

    results["certificates"] = stops = [_stop(name, SMALL | values) for name, values in STOPS]
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

    results["digits"] = digits = _digits()
    if not as_json:
        out.print("[bold]3. Real data[/]: handwritten 0 against 1, 4 x 4 patches as tokens.")
        out.print(
            f"50 images, width 512: risk {show.number(digits['first_risk'])} -> "
            f"{show.number(digits['last_risk'])} in {digits['num_steps']} steps; the tangent "
            f"kernel at the start predicted {show.number(digits['predicted_risk'])}."
        )
        drift = f"The kernel moved by {100 * digits['kernel_drift']:.1f}%"
        out.print(f"{drift}; kernel_regime: {show.coloured(Verdict(digits['verdict']))}.\n")

    results["seconds"] = round(time.perf_counter() - begun, 1)
    if as_json:
        work.print_json(results)
    else:
        out.print(f"{results['seconds']} s. Next: shoal papers wu2023, or")
        out.print("  shoal certify wu2023.theorem_a --set width=4000 --set score_exponent=1 ...")


def _run(name: str, values: dict[str, Any], extra: tuple[str, ...] = ()) -> work.Done:
    paper = paper_of("wu2023")
    theorem = theorem_of(paper, name)
    values = values | {"num_steps": STEPS[name], "method": theorem.method}
    experiment, source = work.with_step(prepare(paper, values), theorem)
    return work.execute(experiment, (*theorem.probes, *extra), (theorem,), source)


def _stop(name: str, values: dict[str, Any]) -> dict[str, Any]:
    done = _run(name, values)
    certificate: Certificate = done.theorems[0][1][0]
    setting = done.experiment.setting
    return {
        "theorem": name,
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


def _digits() -> dict[str, Any]:
    values = {"problem": "digits", "num_samples": 50, "dim": 24, "width": 512}
    done = _run("kernel_regime", values, ("kernel_drift",))
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
