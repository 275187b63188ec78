"""Figures of what the paper says. Its own settings are not known to us: all of these are ours."""

from typing import Any

import numpy as np

from shoal.figures import Curve, Figure, Panel, band
from shoal.papers.qin2025 import experiments
from shoal.papers.qin2025.experiments import MOST
from shoal.papers.qin2025.model import PAPER
from shoal.papers.qin2025.studies import COMMON_STEP, SMALL_STEP, STEPS

NAMES = {
    "both": "both residuals",
    "attention": "attention's only",
    "feed_forward": "feed-forward's only",
    "none": "none",
}


def _line(label: str, x: Any, y: Any) -> Curve:
    x, y = np.asarray(x, float), np.asarray(y, float)
    return Curve(label, x, y, y, y)


def _columns(label: str, x: Any, samples: list[np.ndarray], **more: Any) -> Curve:
    """A band through samples (seeds) at each x."""
    return band(label, np.asarray(x, float), np.stack(samples, axis=1), **more)


def _seeds(full: bool, quick: int = 5) -> int:
    return 30 if full else quick


@PAPER.figure("conditioning", "Conditioning of attention's output")
def conditioning(full: bool) -> Figure:
    """Condition number with and without residual against everything that changes it."""
    k = _seeds(full, 20)
    kinds = {"without residual": "without", "with residual": "with", "tokens": "X",
             "attention matrix": "S"}  # fmt: skip

    def panel(title: str, x_label: str, grid: tuple, settings: list[tuple]) -> Panel:
        found = [experiments.attention(k, *s) for s in settings]
        curves = tuple(
            _columns(label, grid, [f[f"condition_{kind}"] for f in found])
            for label, kind in kinds.items()
        )
        return Panel(title, x_label, "condition number", curves, log_x=True, log_y=True)

    lengths, distances = (4, 8, 16, 32, 48), (1.0, 0.5, 0.1, 0.01, 0.001)
    scores, values = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    panels = (
        panel("number of tokens", "tokens", lengths, [(n, 1.0, 0.5) for n in lengths]),
        panel("scale of scores", "score scale", scores, [(16, s, 0.5) for s in scores]),
        panel("scale of values", "value scale", values, [(16, 1.0, v) for v in values]),
        panel("correlation of tokens", "1 - correlation", distances,
              [(16, 1.0, 0.5, 1 - x) for x in distances]),
    )  # fmt: skip
    caption = (
        "One sequence of Gaussian tokens, dim 64, untrained; 16 tokens, score scale 1, value "
        f"scale 0.5 where not varied; {k} seeds (median, quartiles)."
    )
    return Figure("conditioning", "Conditioning of attention's output", caption, panels)


@PAPER.figure("depth", "What depth does to attention's output")
def depth(full: bool) -> Figure:
    """Condition number and collapse by layer, for every combination of residuals."""
    k = _seeds(full)
    found = {name: experiments.depths(k, name) for name in NAMES}
    x = np.arange(1, experiments.DEEP["num_layers"] + 1)

    def panel(title: str, y_label: str, kind: str, low: float, high: float) -> Panel:
        curves = (band(NAMES[m], x, np.clip(f[kind], low, high)) for m, f in found.items())
        return Panel(title, "layer", y_label, tuple(curves), log_y=True)

    panels = (
        panel("condition number", "of the attention output, all samples", "condition", 0, MOST),
        panel("rank collapse", "share of tokens that is not their mean", "centred_share", 1e-17, 1),
    )
    caption = (
        f"4 sequences of 8 Gaussian tokens, dim 64, width 128, branch weights of scale 0.5, "
        f"untrained, {k} seeds. Beyond {MOST:g} float64 sees no difference from singular."
    )
    return Figure("depth", "What depth does to attention's output", caption, panels)


@PAPER.figure(
    "training",
    "Training with and without residuals",
    source="paper, as summarised; the settings are ours",
)
def training(full: bool) -> Figure:
    """Loss along training for every combination of residuals."""
    k = _seeds(full)

    def panel(title: str, **values: Any) -> Panel:
        curves = []
        for mode, label in NAMES.items():
            run = experiments.fresh_run(k, COMMON_STEP, residual=mode, every=10, **values)
            curves.append(band(label, run.step, run.risk / run.risk[:, :1]))
        return Panel(title, "step", "loss over its start", tuple(curves), log_y=True)

    panels = (
        panel("smooth leaky, step 0.01"),
        panel("ReLU, step 0.01", activation="relu"),
        panel("causal, step 0.01", causal=True),
    )
    caption = (
        f"One layer, 4 sequences of 6 tokens, dim 32, width 64, random targets, {k} seeds (data "
        "and weights)."
    )
    return Figure("training", "Training with and without residuals", caption, panels)


@PAPER.figure("steps", "Each side at its own step")
def steps(full: bool) -> Figure:
    """Loss after training against the step size, with and without residuals."""
    k = _seeds(full)
    lines = tuple(
        band(NAMES[m], np.array(STEPS), experiments.risk_by_step(k, STEPS, 500, m))
        for m in ("both", "none")
    )
    title = "loss after 500 steps"
    panel = Panel(title, "step size", "over its start", lines, log_x=True, log_y=True)
    caption = f"One layer, smooth leaky, {k} seeds; steps where half diverge are missing."
    return Figure("steps", "Each side at its own step", caption, (panel,))


@PAPER.figure("rate", "The rate and the singular values")
def rate(full: bool) -> Figure:
    """Loss against what the smallest eigenvalue predicts, and the rate by condition number."""
    k = _seeds(full)
    run = experiments.fresh_run(k, COMMON_STEP, ("kernel_lambda_min@800",), num_steps=800, every=10)
    low = run.probes["kernel_lambda_min"][:, -1:]
    predicted = run.risk[:, -1:] * (1 - COMMON_STEP * low) ** (2 * (run.step[None] - 800))
    lines = (
        band("measured", run.step, run.risk),
        band("(1 - step lambda_min)^2 per step", run.step, predicted),
    )
    curves = Panel("loss late in training", "step", "half sum of squares", lines, log_y=True)
    x = np.array([2.0, 4.0, 8.0, 16.0, 32.0])
    found = experiments.rates(k, None, 1000, tuple(x.tolist()))
    guide = _line("power -2", x, np.median(found[:, 0]) * (x / x[0]) ** -2.0)
    by_condition = Panel(
        "rate and conditioning",
        "condition number of the tokens",
        "exponential rate of the loss",
        (band("measured", x, found, positive=True), guide),
        log_x=True,
        log_y=True,
    )
    caption = f"One layer with residuals, smooth leaky, {k} seeds. Right: value scale 0.1."
    return Figure("rate", "The rate and the singular values", caption, (curves, by_condition))


@PAPER.figure("layers", "Depth with and without residuals")
def layers(full: bool) -> Figure:
    """Loss, smallest kernel eigenvalue and sharpness by depth."""
    k, depths = _seeds(full), (1, 2, 4, 8)
    kinds = {
        "residuals": {"residual": "both"},
        "residuals, branches over sqrt(depth)": {"residual": "both", "residual_scale": "depth"},
        "none": {"residual": "none"},
    }

    def loss(**values: Any) -> np.ndarray:
        return experiments.risk_left(k, SMALL_STEP, 500, **values)

    def low(**values: Any) -> np.ndarray:
        return np.maximum(experiments.at_start(experiments.sigma_jacobian, k, **values) ** 2, 1e-20)

    def sharp(**values: Any) -> np.ndarray:
        return experiments.at_start(experiments.top_hessian, k, **values)

    def panel(title: str, y_label: str, measure: Any) -> Panel:
        curves = tuple(
            _columns(label, depths, [measure(num_layers=L, **v) for L in depths], positive=True)
            for label, v in kinds.items()
        )
        return Panel(title, "layers", y_label, curves, log_x=True, log_y=True)

    panels = (
        panel("loss after 500 steps of 0.003", "over its start", loss),
        panel("smallest eigenvalue at the start", "of the tangent kernel", low),
        panel("sharpness at the start", "top Hessian eigenvalue", sharp),
    )
    caption = f"Smooth leaky, 4 sequences of 6 tokens, dim 32, scale 0.5, {k} seeds."
    return Figure("layers", "Depth with and without residuals", caption, panels)


@PAPER.figure("stability", "How long a step may be")
def stability(full: bool) -> Figure:
    """Longest steps against 2 / sharpness, and the edge of stability along a run."""
    k = _seeds(full)
    limits = {mode: experiments.step_limits(k, mode, 120) for mode in NAMES}
    columns = tuple(
        band(NAMES[mode], np.full(k, float(i)), values[None, :])
        for i, (mode, values) in enumerate(limits.items())
    )
    title = "longest step that trains"
    longest = Panel(title, "residuals", "over 2 / sharpness", columns, points=True)
    run = experiments.fresh_run(k, COMMON_STEP, ("edge_of_stability",), num_steps=400, every=20)
    lines = (
        band("step 0.01", run.step, run.probes["edge_of_stability"]),
        _line("limit", run.step, np.ones(len(run.step))),
    )
    edge = Panel("edge of stability", "step", "sharpness times step / 2", lines)
    caption = f"One layer, smooth leaky; left: 120 steps, 24 step sizes tried; {k} seeds."
    return Figure("stability", "How long a step may be", caption, (longest, edge))


@PAPER.figure("certificate", "What theorem D certifies")
def certificate(full: bool) -> Figure:
    """The largest residual that theorem D certifies, by value scale and by depth."""
    k = _seeds(full, 3)

    def panel(title: str, x_label: str, name: str, grid: tuple, modes: Any, log_x: bool) -> Panel:
        curves = []
        for mode in modes:
            found = [experiments.certified_reach(k, residual=mode, **{name: v}) for v in grid]
            top = [np.maximum(f["relative"], 1e-20) for f in found]
            curves.append(_columns(NAMES[mode], grid, top))
        y_label = "r_max over the output's size"
        return Panel(title, x_label, y_label, tuple(curves), log_x=log_x, log_y=True)

    panels = (
        panel("one layer", "value scale", "scale_v", (0.05, 0.1, 0.3, 1.0), NAMES, True),
        panel("by depth", "layers", "num_layers", (1, 2, 3), ("both", "none"), False),
    )
    caption = (
        "3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3, the "
        f"better of both routes, {k} seeds; 1e-20 stands for no certificate."
    )
    return Figure("certificate", "What theorem D certifies", caption, panels)
