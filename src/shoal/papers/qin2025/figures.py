"""Figures of what the paper says. Its own settings are not known to us: all of these are ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shoal.figures import Curve, Panel, band
from shoal.papers.qin2025 import experiments, rates
from shoal.papers.qin2025.experiments import MOST, at_start, attention, certified_reach, fresh_run
from shoal.papers.qin2025.model import PAPER
from shoal.papers.qin2025.studies import COMMON_STEP, SMALL_STEP, STEPS

NAMES = {"both": "both residuals", "attention": "attention's only",
         "feed_forward": "feed-forward's only", "none": "none"}  # fmt: skip
_loglog = partial(Panel, log_x=True, log_y=True)


def _figure(key: str, title: str, quick: int = 5, **more: Any) -> Callable:
    """Register a function of the number of seeds that returns a caption and panels."""
    register = PAPER.figure(key, title, **more)
    return lambda make: register(lambda full: make(30 if full else quick))


@_figure("conditioning", "Conditioning of attention's output", 20)
def conditioning(k: int) -> tuple:
    """Condition number with and without residual against everything that changes it."""
    kinds = {"without residual": "without", "with residual": "with", "tokens": "X",
             "attention matrix": "S"}  # fmt: skip

    def panel(title: str, x_label: str, grid: tuple, settings: list[tuple]) -> Panel:
        found = [attention(k, *setting) for setting in settings]
        curves = (band(label, np.array(grid), np.transpose([f[f"condition_{kind}"] for f in found]))
                  for label, kind in kinds.items())  # fmt: skip
        return _loglog(title, x_label, "condition number", tuple(curves))

    lengths, distances = (4, 8, 16, 32, 48), (1.0, 0.5, 0.1, 0.01, 0.001)
    scores, values = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    correlated = [(16, 1.0, 0.5, 1 - x) for x in distances]
    return (
        "One sequence of Gaussian tokens, dim 64, untrained; 16 tokens, score scale 1, value "
        f"scale 0.5 where not varied; {k} seeds (median, quartiles).",
        panel("number of tokens", "tokens", lengths, [(n, 1.0, 0.5) for n in lengths]),
        panel("scale of scores", "score scale", scores, [(16, s, 0.5) for s in scores]),
        panel("scale of values", "value scale", values, [(16, 1.0, v) for v in values]),
        panel("correlation of tokens", "1 - correlation", distances, correlated),
    )


@_figure("depth", "What depth does to attention's output")
def depth(k: int) -> tuple:
    """Condition number and collapse by layer, for every combination of residuals."""
    found = {mode: experiments.depths(k, mode) for mode in NAMES}
    x = np.arange(1, experiments.DEEP["num_layers"] + 1)

    def panel(title: str, y_label: str, kind: str) -> Panel:
        curves = (band(NAMES[m], x, np.clip(f[kind], 1e-17, MOST)) for m, f in found.items())
        return Panel(title, "layer", y_label, tuple(curves), log_y=True)

    return (
        "4 sequences of 8 Gaussian tokens, dim 64, width 128, branch weights of scale 0.5, "
        f"untrained, {k} seeds. Beyond {MOST:g} float64 sees no difference from singular.",
        panel("condition number", "of the attention output, all samples", "condition"),
        panel("rank collapse", "share of tokens that is not their mean", "centred_share"),
    )


@_figure("training", "Training with and without residuals",
         source="paper, as summarised; the settings are ours")  # fmt: skip
def training(k: int) -> tuple:
    """Loss along training for every combination of residuals."""

    def panel(title: str, **values: Any) -> Panel:
        runs = {m: fresh_run(k, COMMON_STEP, residual=m, every=10, **values) for m in NAMES}
        curves = (band(NAMES[m], r.step, r.risk / r.risk[:, :1]) for m, r in runs.items())
        return Panel(title, "step", "loss over its start", tuple(curves), log_y=True)

    return (
        f"One layer, 4 sequences of 6 tokens, dim 32, width 64, random targets, {k} seeds (data "
        "and weights).",
        panel("smooth leaky, step 0.01"),
        panel("ReLU, step 0.01", activation="relu"),
        panel("causal, step 0.01", causal=True),
    )


@_figure("steps", "Each side at its own step")
def steps(k: int) -> tuple:
    """Loss after training against the step size, with and without residuals."""
    found = {mode: experiments.risk_by_step(k, STEPS, 500, mode) for mode in ("both", "none")}
    lines = tuple(band(NAMES[m], np.array(STEPS), left) for m, left in found.items())
    return (
        f"One layer, smooth leaky, {k} seeds; steps where half diverge are missing.",
        _loglog("loss after 500 steps", "step size", "over its start", lines),
    )


@_figure("rate", "The rate and the singular values")
def rate(k: int) -> tuple:
    """Loss against what the smallest eigenvalue predicts, and the rate by condition number."""
    run = fresh_run(k, COMMON_STEP, ("kernel_lambda_min@800",), num_steps=800, every=10)
    factor = 1 - COMMON_STEP * run.probes["kernel_lambda_min"][:, -1:]
    predicted = run.risk[:, -1:] * factor ** (2 * (run.step[None] - 800))
    lines = (
        band("measured", run.step, run.risk),
        band("(1 - step lambda_min)^2 per step", run.step, predicted),
    )
    x = np.array([2.0, 4.0, 8.0, 16.0, 32.0])
    found = experiments.rates(k, 1000, tuple(x.tolist()))
    guide = np.median(found[:, 0]) * (x / x[0]) ** -2.0
    curves = (band("measured", x, found, positive=True), band("power -2", x, guide))
    words = ("condition number of the tokens", "exponential rate of the loss")
    return (
        f"One layer with residuals, smooth leaky, {k} seeds. Right: value scale 0.1.",
        Panel("loss late in training", "step", "half sum of squares", lines, log_y=True),
        _loglog("rate and conditioning", *words, curves),
    )


@_figure("layers", "Depth with and without residuals")
def layers(k: int) -> tuple:
    """Loss, smallest kernel eigenvalue and sharpness by depth."""
    depths = (1, 2, 4, 8)
    scaled = {"residual": "both", "residual_scale": "depth"}
    kinds = {"residuals": {"residual": "both"}, "residuals, branches over sqrt(depth)": scaled,
             "none": {"residual": "none"}}  # fmt: skip

    def low(**values: Any) -> np.ndarray:
        return np.maximum(at_start(experiments.sigma_jacobian, k, **values) ** 2, 1e-20)

    def panel(title: str, y_label: str, measure: Callable) -> Panel:
        curves = []
        for label, values in kinds.items():
            found = np.transpose([measure(num_layers=L, **values) for L in depths])
            curves.append(band(label, np.array(depths), found, positive=True))
        return _loglog(title, "layers", y_label, tuple(curves))

    return (
        f"Smooth leaky, 4 sequences of 6 tokens, dim 32, scale 0.5, {k} seeds.",
        panel("loss after 500 steps of 0.003", "over its start",
              partial(experiments.risk_left, k, SMALL_STEP, 500)),
        panel("smallest eigenvalue at the start", "of the tangent kernel", low),
        panel("sharpness at the start", "top Hessian eigenvalue",
              partial(at_start, experiments.top_hessian, k)),
    )  # fmt: skip


@_figure("stability", "How long a step may be")
def stability(k: int) -> tuple:
    """Longest steps against 2 / sharpness, and the edge of stability along a run."""
    columns = tuple(
        band(NAMES[mode], np.full(k, float(i)), experiments.step_limits(k, mode, 120)[0][None, :])
        for i, mode in enumerate(NAMES)
    )
    run = fresh_run(k, COMMON_STEP, ("edge_of_stability",), num_steps=400, every=20)
    lines = (
        band("step 0.01", run.step, run.probes["edge_of_stability"]),
        band("limit", run.step, np.ones((1, len(run.step)))),
    )
    return (
        f"One layer, smooth leaky; left: 120 steps, 24 step sizes tried; {k} seeds.",
        Panel("longest step that trains", "residuals", "over 2 / sharpness", columns, points=True),
        Panel("edge of stability", "step", "sharpness times step / 2", lines),
    )


@_figure("certificate", "What theorem D certifies", 3)
def certificate(k: int) -> tuple:
    """The largest residual that theorem D certifies, by value scale and by depth."""

    def curve(mode: str, name: str, grid: tuple) -> Curve:
        found = [certified_reach(k, residual=mode, **{name: v})["relative"] for v in grid]
        return band(NAMES[mode], np.array(grid), np.maximum(np.transpose(found), 1e-20))

    by_scale = tuple(curve(mode, "scale_v", (0.05, 0.1, 0.3, 1.0)) for mode in NAMES)
    by_depth = tuple(curve(mode, "num_layers", (1, 2, 3)) for mode in ("both", "none"))
    y_label = "r_max over the output's size"
    return (
        "3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3, the "
        f"better of both routes, {k} seeds; 1e-20 stands for no certificate.",
        _loglog("one layer", "value scale", y_label, by_scale),
        Panel("by depth", "layers", y_label, by_depth, log_y=True),
    )


def _predictions(k: int) -> list[tuple[str, rates.Points, np.ndarray]]:
    """For every group its points, and the rates that a fit to the other groups predicts."""
    seeds = tuple(range(k))
    groups = {
        name: rates.kept_points(seeds, 1000, rates.CONDITIONS, **group)
        for name, group in rates.GROUPS.items()
    }
    found = []
    for name, points in groups.items():
        others = [other for key, other in groups.items() if key != name]
        guess = [rates.predicted(others, points, seed)[0] for seed in seeds]
        found.append((name, points, 10 ** np.array(guess)))
    return found


@PAPER.figure(
    "singular_values", "Singular values of attention's output predict the rate out of sample",
    source="paper, as summarised; the settings are ours",
    jobs=lambda full: rates.point_jobs(30) if full else [],
)  # fmt: skip
def singular_values(full: bool) -> tuple:
    """Late rate against its prediction from other settings, and against the condition number."""
    k = 30 if full else 5
    found = _predictions(k)
    ends = np.array([p["rate"] for _, p, _ in found])
    line = np.array([ends.min(), ends.max()])
    hits = (band(name, g.ravel(), p["rate"].ravel()) for name, p, g in found)
    kappa = (band(name, (p["high"] / p["low"]).ravel(), p["rate"].ravel()) for name, p, _ in found)
    fits = np.array([rates.fitted([p for _, p, _ in found], seed) for seed in range(k)])
    exponent = np.median(fits[:, 1])
    return (
        f"4 sequences of 6 tokens, dim 32, width 64, value scale 0.1, conditions 2, 8 and 32; {k} "
        "draws, each a point per setting. Left: predicted by a fit to the other two groups of "
        f"settings. Exponent of sigma_min / sigma_max in the fit to all: {exponent:.2f} (median); "
        "our guarantee has 2. With --full 30 draws, minutes.",
        _loglog("rate, out of sample", "predicted", "measured", (*hits, band("equal", line, line)),
                points=True),
        _loglog("rate and conditioning", "sigma_max / sigma_min at the start", "rate per step",
                tuple(kappa), points=True),
    )  # fmt: skip
