"""What the paper's figures show, made anew. Dimensions and steps are ours where it gives none."""

from typing import Any

import jax
import numpy as np

from shoal.diagnostics.data import pair_overlaps
from shoal.experiments import FigureRecipe, prepare, simulate
from shoal.figures import Curve, Figure, Image, Panel, band
from shoal.papers import wu2023
from shoal.papers.wu2023.encoder import Weights
from shoal.papers.wu2023.trials import FULL, QUICK, Plan, curve_panel, suitable_step, trained

STEP = "Each run takes as step half of 1 / lambda_max of its tangent kernel."


def _plan(full: bool) -> Plan:
    return FULL if full else QUICK


def _movement(out: Any) -> np.ndarray:
    parts = [out.probes[f"movement_{name}"] for name in Weights._fields]
    return np.sqrt(sum(part**2 for part in parts))


def _by_width(full: bool, exponent: float, key: str) -> Figure:
    plan = _plan(full)
    runs = {
        width: trained(
            plan, width=width, score_exponent=exponent, probes=("movement", "kernel_drift")
        )
        for width in plan.widths
    }
    steps = np.arange(plan.num_steps + 1)
    loss = curve_panel("loss", [(f"width {w}", out.risk) for w, out in runs.items()])
    change = Panel(
        "weights",
        "step",
        "relative change since the start",
        tuple(band(f"width {w}", steps, _movement(out)) for w, out in runs.items()),
    )
    kernel = Panel(
        "tangent kernel",
        "step",
        "relative change since the start",
        tuple(band(f"width {w}", steps, out.probes["kernel_drift"]) for w, out in runs.items()),
    )
    caption = (
        f"LeCun initialisation, scores scaled by width^-{exponent:g}, {plan.num_samples} Gaussian "
        f"samples of {plan.num_tokens} tokens in dimension {plan.dim}, {plan.num_seeds} seeds "
        f"(median, quartiles). {STEP}"
    )
    return Figure(key, f"Training by width, p = {exponent:g}", caption, (loss, change, kernel))


def loss_by_width(full: bool) -> Figure:
    """Loss, weight change and kernel change by width, p = 1/2 (the paper's main experiment)."""
    return _by_width(full, 0.5, "loss_by_width")


def loss_by_width_uniform(full: bool) -> Figure:
    """The same with p = 1 (the paper's appendix)."""
    return _by_width(full, 1.0, "loss_by_width_uniform")


def scaling(full: bool) -> Figure:
    """p = 1/2 against p = 1 at a small and a large width, the same step for both."""
    plan = _plan(full)
    panels = []
    for width in (plan.widths[0], plan.widths[-1]):
        step = suitable_step(plan, width=width)
        curves = [
            (f"p = {p:g}", trained(plan, step=step, width=width, score_exponent=p).risk)
            for p in (0.5, 1.0)
        ]
        panels.append(curve_panel(f"width {width}", curves))
    caption = "Both scalings at the step that suits p = 1/2, at the smallest and the largest width."
    return Figure("scaling", "Scaling of the scores", caption, tuple(panels))


def initialisation(full: bool) -> Figure:
    """LeCun, He and NTK at the same step and each at its own best."""
    plan = _plan(full)
    width = plan.widths[-1]
    step = suitable_step(plan, width=width, init="he")  # the smallest of the three
    panels = []
    for title, choice in (("same step", step), ("own best step", "tuned")):
        curves = [
            (label, trained(plan, step=choice, width=width, init=init).risk)
            for label, init in (("LeCun", "lecun"), ("He", "he"), ("NTK", "ntk"))
        ]
        panels.append(curve_panel(title, curves))
    caption = (
        f"Width {width}. The same step is the one that suits He; the kernels of LeCun and He are "
        "larger than NTK's by about the width, so it is a small step for NTK."
    )
    return Figure("initialisation", "Initialisation", caption, tuple(panels))


def digits(full: bool) -> Figure:
    """Handwritten digits, two classes, by width."""
    plan = _plan(full)._replace(num_tokens=4, num_samples=100 if full else 40, dim=16)
    panels = []
    for p in (0.5, 1.0):
        curves = [
            (f"width {w}", trained(plan, problem="digits", width=w, score_exponent=p).risk)
            for w in plan.widths
        ]
        panels.append(curve_panel(f"p = {p:g}", curves))
    caption = (
        f"scikit-learn's 8 x 8 digits, 0 against 1, as four 4 x 4 patches with a fixed embedding; "
        f"{plan.num_samples} images. The paper uses MNIST, with a patch size that is not known. "
        f"{STEP}"
    )
    return Figure("digits", "Handwritten digits", caption, tuple(panels))


def data_assumption(full: bool) -> Figure:
    """How often two samples overlap by more than t, for several kinds of data."""
    count = 200 if full else 60
    kinds: dict[str, dict[str, Any]] = {
        "Gaussian tokens": {"num_tokens": 4, "dim": 64},
        "unit Gaussian tokens": {"num_tokens": 4, "dim": 64, "tokens": "unit"},
        "digits": {"problem": "digits", "dim": 64},
        "unit digits": {"problem": "digits", "dim": 64, "tokens": "unit"},
    }
    curves = []
    for label, values in kinds.items():
        X = wu2023.problem(wu2023.Setting(num_samples=count, **values)).X
        overlap = np.sort(np.asarray(pair_overlaps(X))[np.triu_indices(count, 1)])
        above = 1 - np.arange(len(overlap)) / len(overlap)
        curves.append(Curve(label, overlap, above, above, above))
    panel = Panel(
        "overlap of two samples",
        "t",
        "share of pairs with overlap >= t",
        tuple(curves),
        log_x=True,
        log_y=True,
    )
    caption = (
        "The paper assumes that this falls like exp(-t^c), which depends on the scale of the data. "
        "It shows IMDb reviews, with an embedding that is not known."
    )
    return Figure("data_assumption", "Dissimilarity of the samples", caption, (panel,))


def attention_maps(full: bool) -> Figure:
    """Attention of one sample before and after training, both scalings."""
    plan = _plan(full)
    width = plan.widths[-1]
    panels = []
    for p in (0.5, 1.0):
        values = {"width": width, "score_exponent": p, "num_tokens": 6, "every": plan.num_steps}
        sizes = {k: getattr(plan, k) for k in ("num_samples", "dim", "num_steps")}
        made = prepare(wu2023.PAPER, sizes | values)
        step = suitable_step(plan._replace(num_tokens=6), width=width, score_exponent=p)
        made = made._replace(setting=made.setting._replace(step_size=step))
        maps = np.asarray(simulate(made, ("attention",)).probes["attention"])[0, :, 0]
        for when, B in zip(("start", "end"), maps, strict=True):
            image = Image("attention", B)
            panels.append(Panel(f"p = {p:g}, {when}", "key", "query", images=(image,)))
    caption = f"One sequence, width {width}, seed 0. Uniform attention would be flat."
    return Figure("attention_maps", "Attention before and after training", caption, tuple(panels))


def kernel_limit(full: bool) -> Figure:
    """Distance of the tangent kernel to its infinite-width limit, p = 1."""
    widths = (64, 256, 1024, 4096, 16384) if full else (64, 256, 1024, 4096)
    seeds = tuple(range(10))
    curves = []
    for label, init in (("LeCun", "lecun"), ("He", "he"), ("NTK", "ntk")):
        base = wu2023.Setting(num_samples=6, num_tokens=4, dim=8, score_exponent=1.0)
        setting = base._replace(init=init)  # type: ignore[arg-type]
        problem = wu2023.problem(setting)
        found = [
            wu2023.distance_to_limit(setting._replace(width=w), problem, seeds) for w in widths
        ]
        curves.append(band(label, np.array(widths), np.asarray(jax.device_get(found)).T))
    x = np.array(widths, float)
    guide = curves[0].y[0] * (x / x[0]) ** -0.5
    curves.append(Curve("width^-1/2", x, guide, guide, guide))
    panel = Panel(
        "relative distance",
        "width",
        "|K - K_limit| / |K_limit|",
        tuple(curves),
        log_x=True,
        log_y=True,
    )
    caption = "Tangent kernel at the start against its deterministic limit; ten seeds."
    return Figure("kernel_limit", "The kernel settles with width", caption, (panel,))


FIGURES = tuple(
    FigureRecipe(make.__name__, (make.__doc__ or "").splitlines()[0], make)
    for make in (
        loss_by_width,
        loss_by_width_uniform,
        scaling,
        initialisation,
        digits,
        data_assumption,
        attention_maps,
        kernel_limit,
    )
)
