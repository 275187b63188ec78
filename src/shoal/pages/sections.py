"""Runs, certificates and figures as sections of a page."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.disk.runs import write_whole
from shoal.errors import InputError
from shoal.figures import Curve, Figure, Image, Panel, band, thinned
from shoal.lab import engine, visit
from shoal.lab.causes import Cause
from shoal.lab.diagnosis import Diagnosis, tried_words
from shoal.lab.looking import VERDICTS
from shoal.lab.run import Run
from shoal.lab.theorem import Certificates
from shoal.pages import page
from shoal.pages.page import Section, Table


def number(value: float | None) -> str:
    """Four significant digits; a dash for what is not a number."""
    return "–" if value is None or not np.isfinite(value) else visit.number(value)


def run_sections(run: Run, theorems: list[dict[str, Any]]) -> list[Section]:
    """A run with its certificates (as JSON): verdicts, curves with bounds, spectra, attention."""
    gone = sum(at is not None for at in run.diverged_at)
    said = f"{gone} of {len(run.seeds)} seeds diverged." if gone else ""
    sections = [
        Section("Verdicts at a glance", said, verdicts=glance(theorems)),
        Section("Loss", panels=(loss_panel(run, theorems),)),
    ]
    if panels := probe_panels(run):
        said = "Median and quartiles over seeds."
        sections.append(Section("Along training", said, panels=panels))
    if "kernel_eigenvalues" in run.probes:
        sections.append(Section("Spectrum", panels=(_spectrum(run),)))
    if "attention" in run.probes:
        maps = np.asarray(run.probes["attention"])[0, :, 0]
        images = tuple(Image(f"step {run.step[k]}", maps[k]) for k in thinned(len(run.step), 41))
        slides = ((f"first sample, seed {run.seeds[0]}", images),)
        sections.append(Section("Attention", "Move the slider along training.", slides=slides))
    sections += [theorem_section(theorem) for theorem in theorems]
    setting = run.setup.setting.asdict().items()
    details = tuple((k, "auto" if v is None else str(v)) for k, v in setting)
    seeds = ", ".join(map(str, run.seeds[:20])) + (" ..." if len(run.seeds) > 20 else "")
    extra = (("seeds", seeds), ("precision", run.setup.precision))
    return [*sections, Section("Setting", details=details + extra)]


def glance(theorems: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """How many seeds came out how, and which, for every theorem."""
    lines = []
    for theorem in theorems:
        seeds: dict[str, list[str]] = {}
        for result in theorem["results"]:
            seeds.setdefault(result["verdict"], []).append(str(result["seed"]))
        for verdict, mine in seeds.items():
            shown = ", ".join(mine[:12]) + (f", ... ({len(mine)} in all)" if len(mine) > 12 else "")
            lines.append((f"{theorem['paper']}.{theorem['theorem']}, seeds {shown}", verdict))
    return tuple(lines)


def certificate_sections(theorem: dict[str, Any]) -> list[Section]:
    """A certificate as ``shoal certify --json`` printed it."""
    setting = tuple((str(k), str(v)) for k, v in theorem.get("setting", {}).items())
    parts = [Section("Verdicts at a glance", verdicts=glance([theorem])), theorem_section(theorem)]
    return [*parts, Section("Setting", details=setting)] if setting else parts


def _risk_panel(run: Run, title: str, label: str) -> Panel:
    curve = band(label, run.step, run.risk - (run.best or 0.0), positive=True)
    y_label = "risk" if run.best is None else "risk above its optimum"
    return Panel(title, "step", y_label, (curve,), log_y=True)


def loss_panel(run: Run, theorems: list[dict[str, Any]]) -> Panel:
    """Measured loss, the curves of theorems that apply, and the kernel's prediction."""
    panel = _risk_panel(run, "loss, with bounds and predictions", "measured")
    curves = [curve for theorem in theorems for curve in _theorem_curves(run, theorem)]
    if run.setup.setting.method == "gd" and not any("kernel" in c.label for c in curves):
        predicted = engine.kernel_predictions(run.setup, run.step)
        if predicted is not None:
            label = "predicted by the initial kernel"
            curves.append(band(label, run.step, predicted, positive=True))
    return panel._replace(curves=(*panel.curves, *curves))


def _theorem_curves(run: Run, theorem: dict[str, Any]) -> Iterator[Curve]:
    """A theorem's own curves, over the seeds to which it applies."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for result in theorem["results"]:
        if result["verdict"] != "not applicable":
            for name, curve in result.get("curves", {}).items():
                lines.setdefault(name, []).append(curve)
    for name, rows in lines.items():
        label = name if theorem["theorem"] == "kernel_regime" else f"{theorem['theorem']}: {name}"
        values = np.stack([np.asarray(row["y"], float) for row in rows]) - (run.best or 0.0)
        at = np.asarray(rows[0]["at"], int)
        yield band(label, run.step[at], values, positive=True)


def probe_panels(run: Run, names: Iterable[str] = ()) -> tuple[Panel, ...]:
    """Scalar probes, the parts of one probe together."""
    panels = []
    for probe, parts in run.parts.items():
        if names and probe not in names:
            continue
        columns = {part: f"{probe}_{part}" for part in parts} or {probe: probe}
        curves = []
        for label, column in columns.items():
            values = np.asarray(run.probes.get(column, np.nan), float)
            if values.ndim == 2 and np.isfinite(values).any():
                curves.append(band(label, run.step, values))
        if curves:
            panels.append(Panel(probe.replace("_", " "), "step", "", tuple(curves)))
    return tuple(panels)


def run_figure(run: Run, names: tuple[str, ...] = ()) -> Figure:
    """The risk and some probes of a run as a figure."""
    panels = _risk_panel(run, "risk", "median and quartiles"), *probe_panels(run, names)
    return Figure("run", f"{run.setup.name}, {len(run.seeds)} seed(s)", "", panels)


def _spectrum(run: Run) -> Panel:
    values = np.asarray(run.probes["kernel_eigenvalues"])
    picked = np.unique(np.linspace(0, values.shape[-1] - 1, 6).astype(int))
    curves = tuple(
        band(f"eigenvalue {k + 1}", run.step, values[:, :, k], positive=True)
        for k in picked
        if (values[:, :, k] > 0).any()
    )
    return Panel("tangent kernel", "step", "eigenvalue", curves, log_y=True)


_HOLDS = {True: "yes", False: "no", None: "?"}


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    if (relation := line.get("relation", "<=")).startswith("not checked"):
        return line["name"], "", relation, "–", ""
    margin = "–" if line["margin"] is None else visit.signed(line["margin"])
    right = f"{'=' if relation == '=' else '≤'} {number(line['rhs'])}"
    return line["name"], number(line["lhs"]), right, margin, _HOLDS[line["holds"]]


def _rate(result: dict[str, Any]) -> str:
    nothing = result["verdict"] == "not applicable"
    proved = "nothing proved" if nothing else f"proved {number(result['predicted_rate'])}"
    return f"seed {result['seed']}: measured {number(result['measured_rate'])}, {proved}"


def theorem_section(theorem: dict[str, Any]) -> Section:
    """A theorem compared with some seeds: both sides of every inequality, and the rates."""
    tables = []
    for result in theorem["results"][:3]:
        for kind in ("hypotheses", "conclusions"):
            head = (kind, "left side", "right side", "margin", "holds")
            rows = tuple(map(_cells, result[kind]))
            tables.append((f"seed {result['seed']}: {result['verdict']}", head, rows))
    results = [r for r in theorem["results"][:3] if r["predicted_rate"] is not None]
    rates = "; ".join(map(_rate, results))
    statement = f"{theorem['statement']} " if theorem.get("statement") else ""
    source = f"Source: {theorem['source']}. " if "source" in theorem else ""
    text = statement + source + (f"Rate at which the risk is lost: {rates}." if rates else "")
    return Section(f"{theorem['paper']}.{theorem['theorem']}", text, tables=tuple(tables))


def sentence(text: str) -> str:
    """Words as a sentence: a capital and a full stop, but no capital for the name of a block."""
    named = "." in text.split(" ")[0] or "_" in text.split(" ")[0]
    first = text[:1] if named else text[:1].upper()
    return first + text[1:] + ("" if text.endswith(".") else ".")


def diagnosis_sections(found: Diagnosis) -> list[Section]:
    """A diagnosis: the verdict, the run beside what was tried, and a section for each cause."""
    said = f"{found.model}, seed {found.seed}: {found.verdict}. {sentence(found.reason)}"
    first = f" First cause: {found.causes[0].sentence}." if found.causes else ""
    parts = [Section("Verdict", f"{said} {VERDICTS[found.verdict]}{first}", panels=(found.risk,))]
    for rank, cause in enumerate(found.causes, start=1):
        rows = ((cause.key.replace("_", " "), number(cause.value), number(cause.limit), cause.why),)
        tables: tuple[Table, ...] = (
            ("what was measured", ("cause", "number", "limit", "why this limit"), rows),
        )
        if cause.places:
            each = tuple((name, number(value)) for name, value in cause.places[:40])
            tables += (("by place, at the start", ("place", "number"), each),)
        text = f"What to change: {sentence(cause.advice)} {tried_words(cause)}"
        parts.append(Section(f"{rank}. {sentence(cause.sentence)}", text, tables=tables,
                             panels=_place_panels(cause)))  # fmt: skip
    if found.tried:
        tried = tuple((c.sentence, c.trial.change, f"{c.trial.factor:.2g} times lower")
                      for c in found.tried if c.trial is not None)  # fmt: skip
        head = ("suspected", "tried", "risk")
        said = "These were suspected; the change did not help."
        parts.append(Section("Not the cause", said, tables=(("trials", head, tried),)))
    return parts


def _place_panels(cause: Cause) -> tuple[Panel, ...]:
    """The number at every place in the model, and the limit as a line."""
    if len(cause.places) < 4:
        return ()
    at = np.arange(1, len(cause.places) + 1, dtype=float)
    values = np.array([value for _, value in cause.places], float)
    limit = np.full(len(at), cause.limit)
    curves = (Curve("measured", at, values, values, values),
              Curve("limit", at, limit, limit, limit))  # fmt: skip
    wide = bool((values > 0).all() and values.max() > 100 * values.min())
    title = cause.key.replace("_", " ") + " by place"
    return (Panel(title, "place, in the order of the table", "", curves, log_y=wide, points=True),)


def log_sections(about: dict[str, Any], table: Any) -> list[Section]:
    """A log of a loop that shoal does not run: its risk and its scalar probes."""
    step = table["step"].to_numpy().astype(float)
    panels = []
    for name in table.columns:
        values = table[name]
        if name != "step" and values.dtype.is_numeric():
            y = values.to_numpy().astype(float)
            curve = Curve(name, step, y, y, y)
            panels.append(Panel(name.replace("_", " "), "step", "", (curve,), log_y=name == "risk"))
    known = tuple((key, str(value)) for key, value in about.items() if key != "format")
    return [Section("Along training", panels=tuple(panels)), Section("The log", details=known)]


def report_page(results: Iterable[Any], out: Path, title: str = "") -> Path:
    """One page about runs and certificates; certificates of a run appear with it."""
    found = list(results)
    for item in found:
        if not isinstance(item, Run | Certificates | Figure | Diagnosis):
            msg = f"cannot report on {type(item).__name__}: expected runs, certificates or figures."
            raise InputError(msg)
    certificates = [item for item in found if isinstance(item, Certificates)]
    runs = dict.fromkeys([i for i in found if isinstance(i, Run)] + [c.run for c in certificates])
    parts: list[Section] = []
    for run in runs:
        parts += run_sections(run, [c.to_json(curves=True) for c in certificates if c.run is run])
    parts += [page.figure_section(item) for item in found if isinstance(item, Figure)]
    for item in found:
        parts += diagnosis_sections(item) if isinstance(item, Diagnosis) else []
    papers = dict.fromkeys(run.setup.paper for run in runs if run.setup.paper)
    cited = [paper.citation() for paper in papers]
    title = title or "A report of shoal"
    text = page.render(title, "", parts, command="sh.report(...)", citations=cited)
    write_whole(out, text.encode())
    return out
