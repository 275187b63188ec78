"""Figures of the studies over decades of width, of depth, and of the width that is certified."""

from typing import Any

import numpy as np

from shoal.figures import Figure, Panel, band
from shoal.lab.setting import OURS, SUMMARY
from shoal.lab.study import decades
from shoal.papers.wu2023 import width_studies as wide
from shoal.papers.wu2023.depth_studies import condition
from shoal.papers.wu2023.drawn_widths import smallest_drawn
from shoal.papers.wu2023.model import PAPER
from shoal.papers.wu2023.studies import SIZES, Plan, at_start

EXPONENTS = (0.25, 0.5, 0.75, 1.0)


@PAPER.figure("scaling_by_width", "The lead of width^-1/2, by width", source=SUMMARY)
def scaling_by_width(full: bool) -> Figure:
    """Does the lead of width^-1/2 grow with the width? Lead, entropy and gradients along widths."""
    widths = (32, 256, 2048, 8192, 16384) if full else (32, 256, 2048)
    sizes: dict[str, Any] = SIZES if full else wide.SHORT
    plan = Plan(seeds=10 if full else 4)._replace(**sizes)
    speed: dict[float, list] = {p: [] for p in EXPONENTS}
    last: dict[float, list] = {p: [] for p in EXPONENTS}
    deficit: dict[float, list] = {p: [] for p in EXPONENTS}
    gradient: dict[float, list] = {p: [] for p in EXPONENTS}
    for width in widths:
        steps = wide.default_steps(plan, width=width, score_exponent=0.5)
        for p in EXPONENTS:
            probes = ("gradient_norm@10", "attention_entropy@10")
            run = wide.stepped(plan, steps, *probes, width=width, score_exponent=p)
            speed[p].append(decades(run.risk))
            last[p].append(run.risk[:, -1] / run.risk[:, 0])
            deficit[p].append(np.max(1 - run.probes["attention_entropy"][:, ::10], axis=1))
            norms = [run.probes[f"gradient_norm_{k}"][:, ::10] for k in ("W_Q", "W_K")]
            squares = norms[0] ** 2 + norms[1] ** 2
            gradient[p].append(np.median(np.sqrt(squares / (2 * run.risk[:, ::10])), axis=1))

    def panel(title: str, y: str, found: dict[float, list], *, log: bool = True) -> Panel:
        curves = tuple(band(f"p = {p:g}", np.array(widths, float), np.array(found[p]).T)
                       for p in found)  # fmt: skip
        return Panel(title, "width", y, curves, log_x=True, log_y=log)

    ahead = {p: [a - b for a, b in zip(speed[p], speed[1.0], strict=True)] for p in EXPONENTS[:3]}
    caption = (
        f"Scores scaled by width^-p, all at the step that suits p = 1/2; {plan.seeds} draws "
        f"(median, quartiles), {plan.steps} steps, widths up to {widths[-1]}. Left: mean speed "
        "ahead of p = 1. Full size is 10 draws up to width 16384; its time was not measured."
    )
    return Figure("scaling_by_width", "The lead of width^-1/2, by width", caption, (
        panel("ahead of p = 1", "decades of mean speed", ahead, log=False),
        panel("last loss", "last over first risk", last),
        panel("distance of attention from uniform", "largest 1 - entropy", deficit),
        panel("gradient of W_Q and W_K", "norm over that of the errors", gradient),
    ))  # fmt: skip


@PAPER.figure("narrow_and_wide", "Is width N needed to converge?", source=SUMMARY)
def narrow_and_wide(full: bool) -> tuple:
    """Is width N needed to converge? Loss at N / 10, N, 10 N and 40 N, two rules for the step."""
    sizes: dict[str, Any] = SIZES | {"samples": 100, "steps": 400} if full else wide.MORE
    plan = Plan(seeds=10 if full else 4)._replace(**sizes)
    N = plan.samples
    widths, panels = (N // 10, N, 10 * N, 40 * N), []
    common = wide.default_steps(plan, width=widths[-1])
    for title, own in (("one step, that of width 40 N", False), ("own steps", True)):
        curves = []
        for width in widths:
            steps = wide.default_steps(plan, width=width) if own else common
            run = wide.stepped(plan, steps, width=width)
            share = run.risk / run.risk[:, :1]
            curves.append(band(f"width {width}", run.step, share, positive=True))
        panels.append(Panel(title, "step", "risk over its start", tuple(curves), log_y=True))
    return (
        f"{N} Gaussian samples of {plan.tokens} tokens in dimension {plan.dim}, {plan.seeds} draws "
        "(median, quartiles). Below width N the features are dependent and the theorems silent. "
        "Full size has 100 samples, widths to 4000 and 400 steps; its time was not measured.",
        *panels,
    )


@PAPER.figure("certified_width", "Width N^2 is certified at p = 1, not at p = 1/2", source=SUMMARY)
def certified_width(full: bool) -> tuple:
    """Is a quadratic width enough? Smallest width that theorems A and B certify, by samples."""
    counts, seeds = (2, 4, 8, 16, 32), 20 if full else 5
    cases: dict[str, dict[str, Any]] = {
        "flow, p = 1, dim 16": {"method": "flow", "score_exponent": 1.0, "dim_power": 0},
        "descent, p = 1, dim 16": {"method": "descent", "score_exponent": 1.0, "dim_power": 0},
        "flow, p = 1/2, dim 16": {"method": "flow", "score_exponent": 0.5, "dim_power": 0},
        "flow, p = 1/2, dim 4 N": {"method": "flow", "score_exponent": 0.5, "dim_power": 1},
    }
    curves, octaves = [], np.arange(5, 37, 0.125)
    for label, case in cases.items():
        columns = []
        for N in counts:
            dim = 4 * N if case["dim_power"] else 16
            widths = np.round(2.0 ** octaves[2.0**octaves >= max(2 * dim, N)])
            values = {"num_samples": N, "dim": dim, "label_scale": 0.3}
            values["score_exponent"] = case["score_exponent"]
            at = [smallest_drawn(values, s, case["method"], widths) for s in range(seeds)]
            columns.append(np.append(widths, np.nan)[at])
        curves.append(band(label, np.array(counts, float), np.array(columns).T))
    x = np.array(counts, float)
    curves += [band(f"N^{k}", x, 1e3 * (x / 2) ** k) for k in (2, 3)]
    words = ("smallest certified width", "samples N", "width")
    return (
        f"Median and quartiles of {seeds} draws of the start; unit tokens, two per sequence, "
        "labels of scale 0.3. Widths are drawn from their distribution. "
        "With p = 1 the certified width grows about like N^2 as the paper says; with p = 1/2 and "
        "a fixed dimension faster than N^3. The theorems are ours, and sufficient only.",
        Panel(*words, tuple(curves), log_x=True, log_y=True),
    )


@PAPER.figure("depth", "Depth and the decoder form", source=OURS)
def depth(full: bool) -> tuple:
    """What depth and the causal form change: features at the start and training."""
    sizes: dict[str, Any] = SIZES
    plan = Plan(seeds=10 if full else 4)._replace(**sizes)
    layers, curves, losses = (1, 2, 3, 4), [], []
    for residual in ("both", "none"):
        found = [at_start(plan, condition, num_layers=L, residual=residual, width=64)
                 for L in layers]  # fmt: skip
        label = "residual" if residual == "both" else "no residual"
        curves.append(band(label, np.array(layers, float), np.array(found).T))
    cases: dict[str, dict[str, Any]] = {
        "encoder, 1 layer": {}, "decoder, 1 layer": {"causal": True},
        "encoder, 3 layers": {"num_layers": 3},
        "decoder, 3 layers": {"num_layers": 3, "causal": True},
    }  # fmt: skip
    for label, values in cases.items():
        steps = wide.default_steps(plan, width=64, **values)
        run = wide.stepped(plan, steps, width=64, **values)
        losses.append(band(label, run.step, run.risk / run.risk[:, :1], positive=True))
    return (
        f"Width 64, 12 samples of 4 tokens in dimension 10, {plan.seeds} draws (median, quartiles);"
        " each run takes the step that its own kernel allows. Layers before the last have residual "
        "connections on the right. Depth and decoder are ours: the paper has one encoder layer.",
        Panel("features of the last layer at the start", "layers", "condition number",
              tuple(curves), log_y=True),
        Panel("training", "step", "risk over its start", tuple(losses), log_y=True),
    )  # fmt: skip
