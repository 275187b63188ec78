"""Runs, certificates and figures as sections of a page."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.disk.runs import write_whole
from shoal.errors import InputError
from shoal.figures import Curve, Figure, Image, Panel, band, thinned
from shoal.lab import engine, probes
from shoal.lab.causes import Cause
from shoal.lab.diagnosis import Diagnosis, tried_words
from shoal.lab.looking import VERDICTS
from shoal.lab.run import Run
from shoal.lab.theorem import Certificates
from shoal.pages import page
from shoal.pages.page import Section, Slides, Table
from shoal.pages.theorems import number, theorem_section

MOST_RUNS = 6  # whose curves are laid over each other
MOST_MAPS = 8  # layers whose attention is shown


def run_sections(run: Run, theorems: list[dict[str, Any]], group: str = "") -> list[Section]:
    """A run with its certificates (as JSON): what came out, theorems, probes, attention."""
    setting = tuple(
        (k, "auto" if v is None else str(v)) for k, v in run.setup.setting.asdict().items()
    )
    parts = [
        Section(
            "The run", finding=fate(run), label=group, seen=fate(run),
            panels=(loss_panel(run, theorems),), details=chosen(run), more_details=setting,
            more_title="All settings",
        )
    ]  # fmt: skip
    parts += [theorem_section(theorem) for theorem in theorems]
    if panels := probe_panels(run):
        said = "Lines are medians over seeds, bands the middle half." if len(run.seeds) > 1 else ""
        parts.append(Section("Along training", said, panels=panels))
    if "kernel_eigenvalues" in run.probes:
        parts.append(Section("Spectrum of the tangent kernel", panels=(_spectrum(run),)))
    if "attention" in run.probes:
        said = "How much each token (row) looks at each other one (column), along training."
        parts.append(Section("Attention", said, slides=_films(run)))
    return [part._replace(group=group) for part in parts]


def _films(run: Run) -> Slides:
    """Attention of the first sample along the steps: one film, or one for each layer."""
    found = np.asarray(run.probes["attention"])[0, :, 0]
    tokens = found.shape[-2:] if found.ndim > 2 else (1, *found.shape[1:])
    layers = found.reshape(len(found), -1, *tokens)  # step, layer, query, key
    at, who = thinned(len(found), 41), f"First sample, seed {run.seeds[0]}"
    return tuple(
        (
            f"{who}, layer {k + 1}." if layers.shape[1] > 1 else f"{who}.",
            tuple(Image(f"step {run.step[i]}", layers[i, k]) for i in at),
        )
        for k in range(min(layers.shape[1], MOST_MAPS))
    )


def fate(run: Run) -> str:
    """What a run did, in a sentence."""
    gone = sum(at is not None for at in run.diverged_at)
    first, last = (float(np.median(run.risk[:, k])) for k in (0, -1))
    many = f", median of {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""
    verb = "fell" if last < first else "went"
    said = f"The risk {verb} from {number(first)} to {number(last)} in {run.step[-1]} steps{many}."
    return said + (f" {gone} of {len(run.seeds)} seeds diverged." if gone else "")


def chosen(run: Run) -> tuple[tuple[str, str], ...]:
    """What the user set, in place of all settings; seeds, step and precision."""
    setting = run.setup.setting.asdict()
    seeds = ", ".join(map(str, run.seeds[:20])) + (" ..." if len(run.seeds) > 20 else "")
    named = [(name, str(setting[name])) for name in run.setup.overrides if name in setting]
    given = run.setup.step_size
    steps = np.unique(np.asarray([] if given is None else given, float)).tolist()
    if steps and "step_size" not in run.setup.overrides:
        shown = (
            number(steps[0]) if len(steps) == 1 else f"{number(steps[0])} to {number(steps[-1])}"
        )
        named.append(("step size", f"{shown} (chosen by shoal)"))
    made = run.notes.get("command", "")
    rest = [("seeds", seeds), ("precision", run.setup.precision)]
    rest += [("made by", str(made))] if made else []
    return (*(named or [("set", "nothing: all settings are the paper's")]), *rest)


def _differing(runs: dict[str, Run]) -> dict[str, tuple[str, ...]]:
    """Settings that someone chose and that are not the same in all runs."""
    names = dict.fromkeys(name for run in runs.values() for name in run.setup.overrides)
    found = {}
    for name in names:
        each = tuple(str(run.setup.setting.asdict().get(name, "–")) for run in runs.values())
        if len(set(each)) > 1:
            found[name] = each
    return found


def compared_section(runs: dict[str, Run]) -> Section:
    """Several runs: their risks on one pair of axes, and what differs between them."""
    differ, rows, curves = _differing(runs), [], []
    ends = {name: float(np.median(run.risk[:, -1])) for name, run in runs.items()}
    for k, (name, run) in enumerate(runs.items()):
        first, own = number(float(np.median(run.risk[:, 0]))), [each[k] for each in differ.values()]
        rows.append((name, run.setup.name, *own, str(run.step[-1]), first, number(ends[name])))
        curves.append(_risk_panel(run, "", name).curves[0])
    head = ("run", "model", *differ, "steps", "first risk", "last risk")
    labels = {"risk" if run.best is None else "risk above its optimum" for run in runs.values()}
    panel = Panel("Risk of the runs", "step", labels.pop() if len(labels) == 1 else "risk",
                  tuple(curves[:MOST_RUNS]), log_y=True)  # fmt: skip
    best = min(ends, key=ends.__getitem__)
    found = f"Of {len(runs)} runs, {best} ends lowest, at a risk of {number(ends[best])}."
    if len({number(end) for end in ends.values()}) == 1:
        found = f"All {len(runs)} runs end at a risk of {number(ends[best])}."
    return Section("Side by side", finding=found, label="all", seen=found, panels=(panel,),
                   tables=(("", head, tuple(rows)),))  # fmt: skip


def _risk_panel(run: Run, title: str, label: str) -> Panel:
    curve = band(label, run.step, run.risk - (run.best or 0.0), positive=True)
    y_label = "risk" if run.best is None else "risk above its optimum"
    return Panel(title, "step", y_label, (curve,), log_y=True)


def loss_panel(run: Run, theorems: list[dict[str, Any]]) -> Panel:
    """Measured loss, the curves of theorems that apply, and the kernel's prediction."""
    panel = _risk_panel(run, "risk along training", "measured")
    curves = [curve for theorem in theorems for curve in _theorem_curves(run, theorem)]
    if run.setup.setting.method == "gd" and not any("kernel" in c.label for c in curves):
        predicted = engine.kernel_predictions(run.setup, run.step)
        if predicted is not None:
            label = "predicted by the initial kernel"
            curves.append(band(label, run.step, predicted, positive=True))
    guesses = ["kernel" in curve.label for curve in curves]
    said = " and ".join(["predicted"] * any(guesses) + ["proved"] * (not all(guesses)))
    title = f"{panel.title}, with what was {said}" if said else panel.title
    return panel._replace(title=title, curves=(*panel.curves, *curves))


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
            name, note = probe.replace("_", " "), probes.sentence(run.setup, probe)
            panels.append(Panel(name, "step", name, tuple(curves), note=note))
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


def sentence(text: str) -> str:
    """Words as a sentence: a capital and a full stop, but no capital for the name of a block."""
    named = "." in text.split(" ")[0] or "_" in text.split(" ")[0]
    first = text[:1] if named else text[:1].upper()
    return first + text[1:] + ("" if text.endswith(".") else ".")


def diagnosis_sections(found: Diagnosis) -> list[Section]:
    """A diagnosis: the verdict, the run beside what was tried, and a section for each cause."""
    said = f"{found.model}, seed {found.seed}: {found.verdict}. {sentence(found.reason)}"
    first = f" First cause: {found.causes[0].sentence}." if found.causes else ""
    parts = [Section("Verdict", f"{said} {VERDICTS[found.verdict]}{first}", panels=(found.risk,),
                     finding=f"{said}{first}", label=found.verdict)]  # fmt: skip
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
    curves = (Curve("measured", at, values, values, values),)
    wide = bool((values > 0).all() and values.max() > 100 * values.min())
    name = cause.key.replace("_", " ")
    limits = (("limit", cause.limit),) if cause.limit > 0 or not wide else ()
    panel = Panel(f"{name} by place", "place, in the order of the table", name, curves,
                  log_y=wide, points=True, limits=limits)  # fmt: skip
    return (panel,)


def log_sections(about: dict[str, Any], table: Any) -> list[Section]:
    """A log of a loop that shoal does not run: its risk and its scalar probes."""
    step = table["step"].to_numpy().astype(float)
    panels = []
    for name in table.columns:
        values = table[name]
        if name != "step" and values.dtype.is_numeric():
            y = values.to_numpy().astype(float)
            curve = Curve(name, step, y, y, y)
            shown = name.replace("_", " ")
            panels.append(Panel(shown, "step", shown, (curve,), log_y=name == "risk"))
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
    names = {f"run {k}" if len(runs) > 1 else "": run for k, run in enumerate(runs, 1)}
    parts = [compared_section(names)] if len(runs) > 1 else []
    for name, run in names.items():
        mine = [c.to_json(curves=True) for c in certificates if c.run is run]
        parts += run_sections(run, mine, group=name)
    parts += [page.figure_section(item) for item in found if isinstance(item, Figure)]
    for item in found:
        parts += diagnosis_sections(item) if isinstance(item, Diagnosis) else []
    papers = dict.fromkeys(run.setup.paper for run in runs if run.setup.paper)
    cited = [paper.citation() for paper in papers]
    title = title or "A report of shoal"
    text = page.render(title, "", parts, command="sh.report(...)", citations=cited)
    write_whole(out, text.encode())
    return out
