"""The paper's figures and its part of the tour; sizes are ours where summaries give none."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from shoal.certificates import Verdict
from shoal.diagnostics.data import pair_overlaps
from shoal.figures import Figure, Image, Panel, band
from shoal.lab.run import Run, train
from shoal.lab.setting import OURS, SUMMARY
from shoal.lab.setup import paper_setup
from shoal.lab.study import Plan
from shoal.lab.theorem import Certificates, certify
from shoal.lab.visit import Visit, number
from shoal.papers.wu2023.limits import distances_to_limit
from shoal.papers.wu2023.model import CERTIFIABLE, PAPER, Weights
from shoal.papers.wu2023.studies import FULL, QUICK, run_of, steps_of
from shoal.runtime import in_float64

STEP = "Each run takes as step half of 1 / lambda_max of its tangent kernel."
PLANS = {False: QUICK, True: FULL}


def loss_panel(title: str, runs: dict[str, Run]) -> Panel:
    """Loss curves on a logarithmic axis, with bands over seeds."""
    steps = np.arange(next(iter(runs.values())).risk.shape[1])
    curves = tuple(band(label, steps, run.risk, positive=True) for label, run in runs.items())
    return Panel(title, "step", "risk", curves, log_y=True)


def compared(title: str, plan: Plan, sides: dict[str, dict], **common: Any) -> Panel:
    """Losses of several settings, by label."""
    return loss_panel(title, {k: run_of(plan, **(common | side)) for k, side in sides.items()})


def _by_width(full: bool, exponent: float) -> tuple:
    """Loss, weight change and kernel change by width."""
    plan, probes = PLANS[full], ("movement", "kernel_drift")
    values: dict[str, Any] = {"score_exponent": exponent}
    runs = {f"width {w}": run_of(plan, *probes, width=w, **values) for w in plan.grid}

    def moved(run: Run) -> np.ndarray:
        return np.sqrt(sum(run.probes[f"movement_{name}"] ** 2 for name in Weights._fields))

    def change(title: str, measure: Callable[[Run], np.ndarray]) -> Panel:
        curves = tuple(band(label, run.step, measure(run)) for label, run in runs.items())
        return Panel(title, "step", "relative change since the start", curves)

    drift = change("tangent kernel", lambda run: run.probes["kernel_drift"])
    caption = (
        f"LeCun initialisation, scores scaled by width^-{exponent:g}, {plan.samples} Gaussian "
        f"samples of {plan.tokens} tokens in dimension {plan.dim}, {plan.seeds} seeds (median, "
        f"quartiles). {STEP}"
    )
    return caption, loss_panel("loss", runs), change("weights", moved), drift


# the paper's main experiment, and the same in its appendix
for _key, _name, _p in (("loss_by_width", "1/2", 0.5), ("loss_by_width_uniform", "1", 1.0)):
    _title = f"Training by width, p = {_name}"
    PAPER.figure(_key, _title, source=SUMMARY)(partial(_by_width, exponent=_p))


@PAPER.figure("scaling", "Scaling of the scores", source=SUMMARY)
def scaling(full: bool) -> Figure:
    """p = 1/2 against p = 1 at a small and a large width, the same step for both."""
    plan = PLANS[full]
    sides = {f"p = {p:g}": {"score_exponent": p} for p in (0.5, 1.0)}
    panels = tuple(
        compared(f"width {w}", plan, sides, width=w, step=steps_of(plan, width=w))
        for w in (plan.grid[0], plan.grid[-1])
    )
    caption = "Both scalings at the step that suits p = 1/2, at the smallest and the largest width."
    return Figure("scaling", "Scaling of the scores", caption, panels)


@PAPER.figure("initialisation", "Initialisation", source=SUMMARY)
def initialisation(full: bool) -> Figure:
    """LeCun, He and NTK at the same step, and each at its own best."""
    plan = PLANS[full]
    width = plan.grid[-1]
    step = steps_of(plan, width=width, init="he")  # the smallest of the three
    sides = {label: {"init": label.lower()} for label in ("LeCun", "He", "NTK")}
    panels = (
        compared("same step", plan, sides, width=width, step=step),
        compared("own best step", plan, sides, width=width, step="tuned"),
    )
    caption = (
        f"Width {width}. The same step is the one that suits He; the kernels of LeCun and He are "
        "larger than NTK's by about the width, so it is a small step for NTK."
    )
    return Figure("initialisation", "Initialisation", caption, panels)


@PAPER.figure("digits", "Handwritten digits", source=f"{SUMMARY}, which uses MNIST")
def digits(full: bool) -> Figure:
    """Handwritten digits, two classes, by width."""
    plan = PLANS[full]._replace(tokens=4, samples=100 if full else 40, dim=16)
    sides = {f"width {w}": {"width": w} for w in plan.grid}
    panels = tuple(
        compared(f"p = {p:g}", plan, sides, problem="digits", score_exponent=p) for p in (0.5, 1.0)
    )
    caption = (
        f"scikit-learn's 8 x 8 digits, 0 against 1, as four 4 x 4 patches with a fixed embedding; "
        f"{plan.samples} images. The paper uses MNIST, with a patch size that is not known. {STEP}"
    )
    return Figure("digits", "Handwritten digits", caption, panels)


@PAPER.figure("data_assumption", "Dissimilarity of the samples", source=SUMMARY)
@in_float64
def data_assumption(full: bool) -> Figure:
    """How often two samples overlap by more than t, for several kinds of data."""
    count = 200 if full else 60
    gaussian: dict[str, Any] = {"num_tokens": 4, "dim": 64}
    kinds = {"Gaussian tokens": gaussian, "digits": {"problem": "digits", "dim": 64}}
    kinds |= {f"unit {label}": values | {"tokens": "unit"} for label, values in kinds.items()}
    curves = []
    for label, values in kinds.items():
        X = paper_setup(PAPER, values | {"num_samples": count, "width": 1}).inputs
        overlap = np.sort(np.asarray(pair_overlaps(jnp.asarray(X)))[np.triu_indices(count, 1)])
        curves.append(band(label, overlap, 1 - np.arange(len(overlap)) / len(overlap)))
    words = ("overlap of two samples", "t", "share of pairs with overlap >= t")
    panels = (Panel(*words, tuple(curves), log_x=True, log_y=True),)
    caption = (
        "The paper assumes that this falls like exp(-t^c), which depends on the scale of the data. "
        "It shows IMDb reviews, with an embedding that is not known."
    )
    return Figure("data_assumption", "Dissimilarity of the samples", caption, panels)


@PAPER.figure("attention_maps", "Attention before and after training", source=OURS)
def attention_maps(full: bool) -> Figure:
    """Attention of one sequence before and after training, both scalings."""
    plan = PLANS[full]._replace(seeds=1, tokens=6)
    width = plan.grid[-1]
    panels = []
    for p in (0.5, 1.0):
        run = run_of(plan, "attention", width=width, score_exponent=p, every=plan.steps)
        for when, B in zip(("start", "end"), run.probes["attention"][0, :, 0], strict=True):
            image = Image("attention", B)
            panels.append(Panel(f"p = {p:g}, {when}", "key", "query", images=(image,)))
    caption = (
        f"Attention weights of one sequence, width {width}, seed 0; scores are scaled by width^-p. "
        "Uniform attention would be flat."
    )
    return Figure("attention_maps", "Attention before and after training", caption, tuple(panels))


@PAPER.figure("kernel_limit", "The kernel settles with width", source=OURS)
def kernel_limit(full: bool) -> Figure:
    """Distance of the tangent kernel to its infinite-width limit, p = 1."""
    widths = (64, 256, 1024, 4096, 16384) if full else (64, 256, 1024, 4096)
    small = {"num_samples": 6, "num_tokens": 4, "dim": 8, "score_exponent": 1.0}
    x, curves = np.array(widths, float), []
    for label in ("LeCun", "He", "NTK"):
        sides = (small | {"init": label.lower(), "width": w} for w in widths)
        found = [distances_to_limit(paper_setup(PAPER, side, seeds=range(10))) for side in sides]
        curves.append(band(label, x, np.stack(found, axis=1)))
    curves.append(band("width^-1/2", x, curves[0].y[0] * (x / x[0]) ** -0.5))
    words = ("relative distance", "width", "|K - K_limit| / |K_limit|")
    panel = Panel(*words, tuple(curves), log_x=True, log_y=True)
    caption = "Tangent kernel at the start against its deterministic limit; ten seeds."
    return Figure("kernel_limit", "The kernel settles with width", caption, (panel,))


# ---------------------------------------------------------------------------------------- the tour

SMALL = CERTIFIABLE | {"num_samples": 3, "dim": 16, "label_scale": 0.3, "num_steps": 40}
WIDTHS = (400, 40000)  # below and above what theorem A needs
DIGITS = {"problem": "digits", "num_samples": 50, "dim": 24, "width": 512, "num_steps": 200}
HEAD = ("theorem", "width", "p", "c_5 < 1", "c_6 < 2", "verdict", "proved", "measured")


def certified(theorem: str, values: dict[str, Any], *probes: str) -> Certificates:
    """Train at the step that a theorem allows (or the default one), and certify."""
    return certify(train(paper_setup(PAPER, values), step_size=theorem, probes=probes), theorem)


def _row(found: Certificates) -> dict[str, Any]:
    (one,), setting = found, found.run.setup.setting
    same = ("width", "init", "score_exponent", "hidden_step_ratio")
    return {
        "theorem": found.theorem.key,
        **{name: getattr(setting, name) for name in same},
        "step_size": float(found.run.step_size[0]),
        **{name: float(one.constants[name]) for name in ("alpha", "c_5", "c_6")},
        "verdict": found.verdict,
        **{name: float(getattr(one, name)) for name in ("predicted_rate", "measured_rate")},
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    model = (row["theorem"], str(row["width"]), f"{row['score_exponent']:g}")
    proved = "-" if row["verdict"] == Verdict.NOT_APPLICABLE else number(row["predicted_rate"])
    constants = (number(row["c_5"]), number(row["c_6"]))
    return *model, *constants, row["verdict"], proved, number(row["measured_rate"])


def _digits_row(found: Certificates) -> dict[str, Any]:
    risk, steps = found.run.risk[0], int(found.run.step[-1])
    predicted = float(risk[0] * (1 - float(found[0].predicted_rate)) ** steps)
    drift = float(np.max(found.run.probes["kernel_drift"]))
    risks = {"first_risk": float(risk[0]), "last_risk": float(risk[-1])}
    seen = {"predicted_risk": predicted, "kernel_drift": drift, "verdict": found.verdict}
    return {"num_steps": steps} | risks | seen


def _words(rows: list[dict[str, Any]], real: dict[str, Any]) -> str:
    """What the table says, in words that depend on it."""
    silent = [row for row in rows if row["verdict"] == Verdict.NOT_APPLICABLE]
    applied = [row for row in rows if row["verdict"] == Verdict.HOLDS]
    words = ["p: scores are scaled by width^-p. Rates: share of the risk lost per step."]
    if applied:
        ratio = max(row["measured_rate"] / row["predicted_rate"] for row in applied)
        words.append(f"Where the theorem applies, the run was {ratio:.0f} times as fast as proved.")
    if silent:
        several = f"{sum(row['measured_rate'] > 0 for row in silent)} of {len(silent)}"
        words.append(f"Not applicable does not mean divergent: {several} such runs lost risk.")
    words.append(
        f"Real data, handwritten 0 against 1: the risk fell from {number(real['first_risk'])} to "
        f"{number(real['last_risk'])} in {real['num_steps']} steps; the initial kernel predicted "
        f"{number(real['predicted_risk'])} and moved by {100 * real['kernel_drift']:.1f}%: "
        f"kernel_regime {real['verdict']}."
    )
    return "\n".join(words)


def _finding(rows: list[dict[str, Any]]) -> str:
    applied = [row for row in rows if row["verdict"] == Verdict.HOLDS]
    if not applied:
        widest = max(row["width"] for row in rows)
        return f"Up to width {widest} theorem_a does not apply: the network is not wide enough."
    row = min(applied, key=lambda row: row["width"])
    return (
        f"At width {row['width']} theorem_a certifies that training converges, and the run is "
        f"{row['measured_rate'] / row['predicted_rate']:.0f} times as fast as certified."
    )


def visit() -> Visit:
    """Theorem A at a width that is too small and one that is not, and real digits."""
    stops = [certified("theorem_a", SMALL | {"width": width}) for width in WIDTHS]
    real = certified("kernel_regime", DIGITS, "kernel_drift", "attention")
    rows, digits_row = [_row(found) for found in stops], _digits_row(real)
    verdicts = [
        (f"{row['theorem']}, width {row['width']}, p = {row['score_exponent']:g}", row["verdict"])
        for row in rows
    ]
    return Visit(
        "how wide is wide enough? 3 sequences of 2 unit tokens",
        [*rows, digits_row], HEAD, [_cells(row) for row in rows], _words(rows, digits_row),
        about="Gradient descent trains wide enough shallow encoders to zero loss, and how wide "
        "depends on how scores are scaled.",
        verdicts=(*verdicts, ("kernel_regime on digits", digits_row["verdict"])),
        runs=((f"Theorem A at width {WIDTHS[-1]}", stops[-1].run, ("theorem_a",)),
              ("Digits", real.run, ("kernel_regime",))),
        finding=_finding(rows),
    )  # fmt: skip


PAPER.visit = visit
