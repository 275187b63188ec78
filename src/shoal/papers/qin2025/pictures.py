"""Pictures of what the paper says. Its own settings are not known to us: all of these are ours."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.experiments import FigureRecipe
from shoal.figures import Curve, Figure, Panel, band
from shoal.papers.qin2025 import measurements as measure
from shoal.papers.qin2025 import trials
from shoal.papers.qin2025.trials import CERTIFIED, FLAGS, SMALL, Numbers, Sizes

NAMES = {
    "both": "both residuals",
    "attention": "attention's only",
    "feedforward": "feed-forward's only",
    "none": "none",
}
MOST = 1e16
"""Condition numbers beyond this are rounding; they are drawn here."""


def _line(label: str, x: Any, y: Any) -> Curve:
    x, y = np.asarray(x, float), np.asarray(y, float)
    return Curve(label, x, y, y, y)


def _seeds(full: bool, quick: int = 5) -> int:
    return 30 if full else quick


def _attended(grid: Any, settings: Any, num_seeds: int, title: str, against: str) -> Panel:
    """Condition numbers of tokens, attention and output along a grid of settings."""
    found = [trials.attention(num_seeds, *s) for s in settings]
    kinds = {
        "without residual": "condition_without",
        "with residual": "condition_with",
        "tokens": "condition_X",
        "attention matrix": "condition_S",
    }
    x = np.array(grid, float)
    curves = tuple(
        band(label, x, np.stack([f[kind] for f in found], axis=1)) for label, kind in kinds.items()
    )
    return Panel(title, against, "condition number", curves, log_x=True, log_y=True)


def conditioning(full: bool) -> Figure:
    """Condition number with and without residual against everything that moves it."""
    k = _seeds(full, 20)
    lengths = (4, 8, 16, 32, 48)
    scores, values = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    apart = (1.0, 0.5, 0.1, 0.01, 0.001)
    panels = (
        _attended(lengths, [(n, 1.0, 0.5) for n in lengths], k, "number of tokens", "tokens"),
        _attended(scores, [(16, s, 0.5) for s in scores], k, "scale of scores", "score scale"),
        _attended(values, [(16, 1.0, v) for v in values], k, "scale of values", "value scale"),
        _attended(
            apart,
            [(16, 1.0, 0.5, 1 - a) for a in apart],
            k,
            "correlation of tokens",
            "1 - correlation",
        ),
    )
    caption = (
        f"One sequence of Gaussian tokens, dim 64, untrained; 16 tokens, score scale 1, value "
        f"scale 0.5 where not varied; {k} seeds (median, quartiles)."
    )
    return Figure("conditioning", "Conditioning of attention's output", caption, panels)


def depth(full: bool) -> Figure:
    """Condition number and collapse by layer, for every combination of residuals."""
    k = _seeds(full)
    found = {name: trials.depths(k, name, 0.5) for name in FLAGS}
    x = np.arange(1, trials.DEEP.num_layers + 1)
    condition = Panel(
        "condition number",
        "layer",
        "of the attention output, all samples",
        tuple(band(NAMES[name], x, np.minimum(f["condition"], MOST)) for name, f in found.items()),
        log_y=True,
    )
    share = Panel(
        "rank collapse",
        "layer",
        "share of tokens that is not their mean",
        tuple(band(NAMES[name], x, np.maximum(f["share"], 1e-17)) for name, f in found.items()),
        log_y=True,
    )
    caption = (
        f"4 sequences of 8 Gaussian tokens, dim 64, width 128, branch weights of scale 0.5, "
        f"untrained, {k} seeds. Beyond {MOST:g} float64 sees no difference from singular."
    )
    return Figure("depth", "What depth does to attention's output", caption, (condition, share))


def training(full: bool) -> Figure:
    """Loss along training for every combination of residuals."""
    k, steps = _seeds(full), 500

    def curves(step: float, **changed: Any) -> tuple[Curve, ...]:
        lines = []
        for name, flags in FLAGS.items():
            risk, _ = trials.train(
                k, Sizes(**changed), Numbers(residual=flags), step, num_steps=steps, every=10
            )
            r = np.asarray(risk[:, 0])
            lines.append(band(NAMES[name], np.arange(0, steps + 1, 10), r / r[:, :1]))
        return tuple(lines)

    panels = tuple(
        Panel(title, "step", "loss over its start", curves(step, **changed), log_y=True)
        for title, step, changed in (
            ("smooth leaky, step 0.01", 0.01, {}),
            ("ReLU, step 0.01", 0.01, {"activation": "relu"}),
            ("causal, step 0.01", 0.01, {"causal": True}),
        )
    )
    caption = (
        f"One layer, 4 sequences of 6 tokens, dim 32, width 64, random targets, {k} seeds (data "
        "and weights)."
    )
    return Figure("training", "Training with and without residuals", caption, panels)


def own_steps(full: bool) -> Figure:
    """Loss after training against the step, for both sides."""
    k = _seeds(full)
    x = np.array(measure.STEPS)
    lines = []
    for name in ("both", "none"):
        risk, _ = trials.train(
            k, Sizes(), Numbers(residual=FLAGS[name]), measure.STEPS, num_steps=500
        )
        r = np.asarray(risk)
        lines.append(band(NAMES[name], x, r[:, :, -1] / r[:, :, 0]))
    panel = Panel(
        "loss after 500 steps", "step size", "over its start", tuple(lines), log_x=True, log_y=True
    )
    caption = f"One layer, smooth leaky, {k} seeds; steps where half diverge are missing."
    return Figure("steps", "Each side at its own step", caption, (panel,))


def rate(full: bool) -> Figure:
    """Loss against what the smallest eigenvalue predicts, and the rate by condition number."""
    k = _seeds(full)
    numbers, sizes, steps = Numbers(), Sizes(), 800
    risk, params = trials.train(k, sizes, numbers, 0.01, num_steps=steps, every=10)
    last = trials.Weights(*(leaf[:, 0] for leaf in params))
    low = trials.look(k, sizes, numbers, last)["lambda_min"]
    t = np.arange(0, steps + 1, 10)
    r = np.asarray(risk[:, 0])
    predicted = r[:, -1:] * (1 - 0.01 * low[:, None]) ** (2 * (t[None] - steps))
    curves = Panel(
        "loss late in training",
        "step",
        "half sum of squares",
        (band("measured", t, r), band("(1 - step lambda_min)^2 a step", t, predicted)),
        log_y=True,
    )
    plan = trials.Plan(num_seeds=k, num_steps=1000, grid=(2.0, 4.0, 8.0, 16.0, 32.0))
    found = measure.rate_by_condition(plan)
    x = found["x"]
    guide = _line("power -2", x, np.median(found["y"][:, 0]) * (x / x[0]) ** -2.0)
    by_condition = Panel(
        "rate and conditioning",
        "condition number of the tokens",
        "exponential rate of the loss",
        (band("measured", x, found["y"], positive=True), guide),
        log_x=True,
        log_y=True,
    )
    caption = f"One layer with residuals, smooth leaky, {k} seeds. Right: value scale 0.1."
    return Figure("rate", "The rate and the singular values", caption, (curves, by_condition))


def deep_training(full: bool) -> Figure:
    """Depth sweep: loss, smallest eigenvalue, sharpness."""
    k = _seeds(full)
    depths = (1, 2, 4, 8)
    kinds = {
        "residuals": ("both", False),
        "residuals, branches over sqrt(depth)": ("both", True),
        "none": ("none", False),
    }
    loss: dict[str, list] = {name: [] for name in kinds}
    low: dict[str, list] = {name: [] for name in kinds}
    sharp: dict[str, list] = {name: [] for name in kinds}
    for L in depths:
        for name, (mode, scaled) in kinds.items():
            numbers = Numbers(residual=FLAGS[mode], branch=L**-0.5 if scaled else 1.0)
            sizes = Sizes(num_layers=L)
            risk, _ = trials.train(k, sizes, numbers, 0.003, num_steps=500)
            loss[name].append(np.asarray(risk[:, 0, -1] / risk[:, 0, 0]))
            low[name].append(np.maximum(trials.look(k, sizes, numbers)["lambda_min"], 1e-20))
            sharp[name].append(trials.sharpness(k, sizes, numbers))

    def panel(title: str, y_label: str, found: dict[str, list]) -> Panel:
        curves = tuple(
            band(name, np.array(depths), np.stack(values, axis=1), positive=True)
            for name, values in found.items()
        )
        return Panel(title, "layers", y_label, curves, log_x=True, log_y=True)

    panels = (
        panel("loss after 500 steps of 0.003", "over its start", loss),
        panel("smallest eigenvalue at the start", "of the tangent kernel", low),
        panel("sharpness at the start", "top Hessian eigenvalue", sharp),
    )
    caption = f"Smooth leaky, 4 sequences of 6 tokens, dim 32, scale 0.5, {k} seeds."
    return Figure("layers", "Depth with and without residuals", caption, panels)


def stability(full: bool) -> Figure:
    """Longest steps against 2 / sharpness, and the edge of stability along a run."""
    k = _seeds(full)
    limits = {
        name: trials.step_limits(k, Sizes(), Numbers(residual=FLAGS[name]), 120) for name in FLAGS
    }
    columns = tuple(
        band(NAMES[name], np.full(k, float(i)), values[None, :])
        for i, (name, values) in enumerate(limits.items())
    )
    longest = Panel(
        "longest step that trains", "residuals", "over 2 / sharpness", columns, points=True
    )
    along = _edge(k, Numbers())
    t = np.arange(0, 401, 20)
    edge = Panel(
        "edge of stability",
        "step",
        "sharpness times step / 2",
        (band("step 0.01", t, along), _line("limit", t, np.ones_like(t, dtype=float))),
    )
    caption = f"One layer, smooth leaky; left: 120 steps, 24 steps sizes tried; {k} seeds."
    return Figure("stability", "How long a step may be", caption, (longest, edge))


def _edge(num_seeds: int, numbers: Numbers) -> np.ndarray:
    from shoal.diagnostics import dynamics
    from shoal.losses import half_sum_of_squares
    from shoal.methods import gradient_descent
    from shoal.models import empirical_risk
    from shoal.training import run

    @jax.jit
    def walk(keys: Any) -> Any:
        def one(key: Any) -> Any:
            start = trials.begin(key, Sizes(), numbers)
            risk = empirical_risk(start.model, start.problem, half_sum_of_squares)
            sharp = dynamics.sharpness(risk, jax.random.key(0))
            probes = {"edge": lambda p: sharp(p)["value"] * 0.005}
            method = gradient_descent(jnp.asarray(0.01))
            found = run(method, risk, start.params, num_steps=400, every=20, probes=probes)
            return found.probes["edge"]

        return jax.lax.map(one, keys)

    return np.asarray(walk(trials.keys_of(num_seeds)))


def certificate(full: bool) -> Figure:
    """The largest residual that theorem D certifies, by value scale and by depth."""
    k = _seeds(full, 3)
    scales = (0.05, 0.1, 0.3, 1.0)

    def reach(sizes: Sizes, numbers: Numbers) -> np.ndarray:
        return np.maximum(trials.radius(k, sizes, numbers)["relative"], 1e-20)

    by_scale = Panel(
        "one layer",
        "value scale",
        "r_max over the output's size",
        tuple(
            band(
                NAMES[name],
                np.array(scales),
                np.stack(
                    [
                        reach(CERTIFIED, SMALL._replace(residual=FLAGS[name], scale_v=v))
                        for v in scales
                    ],
                    axis=1,
                ),
            )
            for name in FLAGS
        ),
        log_x=True,
        log_y=True,
    )
    depths = (1, 2, 3)
    by_depth = Panel(
        "by depth",
        "layers",
        "r_max over the output's size",
        tuple(
            band(
                NAMES[name],
                np.array(depths),
                np.stack(
                    [
                        reach(
                            CERTIFIED._replace(num_layers=L), SMALL._replace(residual=FLAGS[name])
                        )
                        for L in depths
                    ],
                    axis=1,
                ),
            )
            for name in ("both", "none")
        ),
        log_y=True,
    )
    caption = (
        "3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3, the "
        f"better of both routes, {k} seeds; 1e-20 stands for no certificate."
    )
    return Figure("certificate", "What theorem D certifies", caption, (by_scale, by_depth))


FIGURES = (
    FigureRecipe("conditioning", "Conditioning of attention's output", conditioning),
    FigureRecipe("depth", "What depth does to attention's output", depth),
    FigureRecipe("training", "Training with and without residuals", training),
    FigureRecipe("steps", "Each side at its own step", own_steps),
    FigureRecipe("rate", "The rate and the singular values", rate),
    FigureRecipe("layers", "Depth with and without residuals", deep_training),
    FigureRecipe("stability", "How long a step may be", stability),
    FigureRecipe("certificate", "What theorem D certifies", certificate),
)
