"""Runs, certificates, ledgers and figures as sections of a page."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.experiments import Experiment, Paper, has_kernel, kernel_predictions
from shoal.figures import Image, Panel, band, panel_from_json, thinned
from shoal.report.page import Section
from shoal.training import Trajectory


def number(value: float | None) -> str:
    """Four significant digits; a dash for what is not a number."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def citation(paper: Paper) -> str:
    """How to cite a paper."""
    return f"{paper.authors} ({paper.year}). {paper.title}. arXiv:{paper.arxiv}."


def run_sections(
    experiment: Experiment,
    run: Trajectory,
    theorems: list[dict[str, Any]],
    arrays: dict[str, Any] | None = None,
) -> list[Section]:
    """A run with its certificates: verdicts, curves with bounds, spectra, attention."""
    diverged = ~np.isfinite(np.asarray(run.risk)).all(axis=1)
    said = f"{int(diverged.sum())} of {len(diverged)} seeds diverged." if diverged.any() else ""
    found = [
        Section("Verdicts at a glance", said, verdicts=glance(theorems)),
        Section("Loss", panels=(loss_panel(experiment, run, theorems),)),
    ]
    if probes := _probe_panels(run):
        found.append(Section("Along training", "Median and quartiles over seeds.", panels=probes))
    arrays = dict(run.probes if arrays is None else arrays)
    if "kernel_eigenvalues" in arrays:
        found.append(Section("Spectrum", panels=(_spectrum(run, arrays["kernel_eigenvalues"]),)))
    if "attention" in arrays:
        maps = np.asarray(arrays["attention"])[0, :, 0]
        steps = np.asarray(run.step[0])
        keep = thinned(len(steps), 41)
        images = tuple(Image(f"step {steps[k]}", maps[k]) for k in keep)
        slides = ((f"first sample, seed {experiment.seeds[0]}", images),)
        found.append(Section("Attention", "Move the slider along training.", slides=slides))
    found += [_theorem_section(t) for t in theorems]
    details = tuple((k, "auto" if v is None else str(v)) for k, v in _asdict(experiment.setting))
    seeds = ", ".join(map(str, experiment.seeds[:20])) + (
        " ..." if len(experiment.seeds) > 20 else ""
    )
    extra = (("seeds", seeds), ("precision", experiment.precision))
    found.append(Section("Setting", details=details + extra))
    return found


def glance(theorems: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """How many seeds came out how, and which, for every theorem."""
    found = []
    for theorem in theorems:
        seeds: dict[str, list[str]] = {}
        for result in theorem["results"]:
            seeds.setdefault(result["verdict"], []).append(str(result["seed"]))
        for verdict, mine in seeds.items():
            shown = ", ".join(mine[:12]) + (f", ... ({len(mine)} in all)" if len(mine) > 12 else "")
            found.append((f"{theorem['paper']}.{theorem['theorem']}, seeds {shown}", verdict))
    return tuple(found)


def certificate_sections(theorem: dict[str, Any]) -> list[Section]:
    """A certificate as ``shoal certify --json`` printed it."""
    setting = tuple((str(k), str(v)) for k, v in theorem.get("setting", {}).items())
    parts = [Section("Verdicts at a glance", verdicts=glance([theorem])), _theorem_section(theorem)]
    return [*parts, Section("Setting", details=setting)] if setting else parts


def _asdict(setting: Any) -> Iterable[tuple[str, Any]]:
    return setting._asdict().items()


def loss_panel(experiment: Experiment, run: Trajectory, theorems: list[dict[str, Any]]) -> Panel:
    """Measured loss, the theorem's bound where it applies, and the kernel's prediction."""
    steps = np.asarray(run.step[0])
    curves = [band("measured", steps, np.asarray(run.risk), positive=True)]
    for theorem in theorems:
        bounds = [
            b for r in theorem["results"] if (b := _bound(theorem["theorem"], r, run)) is not None
        ]
        if bounds:
            curves.append(band(f"bound of {theorem['theorem']}", steps, np.array(bounds)))
    if experiment.setting.method == "gd" and has_kernel(experiment):
        predicted = np.asarray(kernel_predictions(experiment, run.step[0]))
        curves.append(band("predicted by the initial kernel", steps, predicted, positive=True))
    return Panel("loss, with what was promised", "step", "risk", tuple(curves), log_y=True)


def _bound(key: str, result: dict[str, Any], run: Trajectory) -> np.ndarray | None:
    """The bound on the risk: a first risk (or residual), a floor, and a rate."""
    rate, constants = result["predicted_rate"], result["constants"]
    if result["verdict"] == "not applicable" or rate is None or key == "kernel_regime":
        return None
    start, residual = constants.get("F_0"), constants.get("E_0")
    if start is None and residual is None:
        return None
    first = residual**2 / 2 if start is None else start
    floor = constants.get("F_star") or 0.0
    steps = np.asarray(run.step[0], float)
    if "time step" in constants:  # a flow: the rate is per unit of time
        return first * np.exp(-rate * constants["time step"] * steps)
    return floor + (first - floor) * (1 - rate) ** steps


def _probe_panels(run: Trajectory) -> tuple[Panel, ...]:
    """Scalar probes, those of one name together."""
    steps = np.asarray(run.step[0])
    scalar = {k: np.asarray(v, float) for k, v in run.probes.items() if np.ndim(v) == 2}
    groups: dict[str, list[str]] = {}
    # longest first, so that `last_gain` is not taken for `gain`
    blocks = sorted((f"_{name}" for name in run.params._fields), key=len, reverse=True)
    for name in scalar:
        for block in blocks:
            if name.endswith(block):
                groups.setdefault(name.removesuffix(block), []).append(name)
                break
        else:
            groups.setdefault(name, []).append(name)
    panels = []
    for group, names in groups.items():
        curves = []
        for name in names:
            if np.isfinite(scalar[name]).any():
                curves.append(band(name.removeprefix(f"{group}_"), steps, scalar[name]))
        if curves:
            panels.append(Panel(group.replace("_", " "), "step", "", tuple(curves)))
    return tuple(panels)


def _spectrum(run: Trajectory, eigenvalues: Any) -> Panel:
    steps = np.asarray(run.step[0])
    values = np.asarray(eigenvalues)
    picked = np.unique(np.linspace(0, values.shape[-1] - 1, 6).astype(int))
    curves = []
    for k in picked:
        if (values[:, :, k] > 0).any():
            curves.append(band(f"eigenvalue {k + 1}", steps, values[:, :, k], positive=True))
    return Panel("tangent kernel", "step", "eigenvalue", tuple(curves), log_y=True)


_HOLDS = {True: "yes", False: "no", None: "?"}


def _theorem_section(theorem: dict[str, Any]) -> Section:
    tables = []
    for result in theorem["results"][:3]:
        for kind in ("hypotheses", "conclusions"):
            rows = tuple(
                (
                    line["name"],
                    number(line["lhs"]),
                    number(line["rhs"]),
                    number(line["margin"]),
                    _HOLDS[line["holds"]],
                )
                for line in result[kind]
            )
            head = (kind, "left side", "≤ right side", "margin", "holds")
            tables.append((f"seed {result['seed']}: {result['verdict']}", head, rows))
    rates = "; ".join(
        f"seed {r['seed']}: proved {number(r['predicted_rate'])}, "
        f"measured {number(r['measured_rate'])}"
        for r in theorem["results"][:3]
        if r["predicted_rate"] is not None
    )
    text = f"Rate at which the risk is lost. {rates}." if rates else ""
    return Section(f"{theorem['paper']}.{theorem['theorem']}", text, tables=tuple(tables))


def ledger_section(claims: list[dict[str, Any]]) -> Section:
    """The ledger (as in ledger.json) with evidence."""
    shown = []
    for claim in claims:
        low, high = claim["interval"]
        text = f"{number(claim['effect'])} [{number(low)}, {number(high)}]"
        panel = panel_from_json(claim["panel"]) if claim.get("panel") else None
        shown.append(claim | {"effect_text": text, "panel": panel})
    counts: dict[str, int] = {}
    for claim in shown:
        counts[claim["verdict"]] = counts.get(claim["verdict"], 0) + 1
    said = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return Section("The ledger", f"{len(shown)} claims: {said}.", claims=tuple(shown))
