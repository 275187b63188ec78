"""What the paper's figures show, made anew, and pictures of what lies behind its claims.

Step sizes, batch sizes and numbers of runs of the paper are not known; ours are in the captions.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import attention, pathfinder, trees
from shoal.experiments import FigureRecipe
from shoal.figures import Curve, Figure, Image, Panel, Surface, band
from shoal.files import cache_folder
from shoal.papers.song2024 import claims_classifier as real
from shoal.papers.song2024 import claims_layer as layer
from shoal.papers.song2024 import data, trials
from shoal.papers.song2024.claims import CLAIMS
from shoal.papers.song2024.trials import Plan

KERNELS = ("softmax", "gaussian")


def _plan(key: str, full: bool) -> Plan:
    claim = next(c for c in CLAIMS if c.key == f"song2024.{key}")
    return claim.full if full else claim.quick


def _line(label: str, x: np.ndarray, y: np.ndarray) -> Curve:
    return Curve(label, x, y, y, y)


def trap(full: bool) -> Figure:
    """One query against fixed keys: where the two kernels can go, and where they end."""
    q = np.linspace(-6.0, 6.0, 241)
    K, v = jnp.array(data.TRAP_KEYS)[:, None], jnp.array(data.TRAP_VALUES)
    curves = []
    for name in KERNELS:
        S = attention.KERNELS[name](jnp.asarray(q)[:, None], K, 1.0)
        risk = np.asarray(0.5 * (S @ v - data.TRAP_TARGET) ** 2)
        curves.append(_line(name, q, np.maximum(risk, 1e-6)))
    risk_panel = Panel("risk of one row", "query", "risk", tuple(curves), log_y=True)
    plan = _plan("softmax_is_trapped", full)
    panels = [risk_panel]
    for title, train, step in (
        ("only W_Q moves", "W_Q", 0.5),
        ("W_Q and W_K move", "W_Q,W_K", 0.2),
    ):
        batch = trials.traps(plan.num_seeds)
        runs = {
            kernel: trials.descend(
                batch, kernel=kernel, train=train, step_size=step, num_steps=10000, every=50
            ).risk
            for kernel in KERNELS
        }
        steps = 50 * np.arange(201)
        lines = tuple(band(k, steps, np.maximum(r, 1e-30)) for k, r in runs.items())
        panels.append(Panel(title, "step", "risk", lines, log_y=True))
    caption = (
        "Four tokens, keys -2, -1, 1, 2, values 0.2, 2, 0.2, 0.5, target 0.3, start at query 2: "
        "softmax slides into the minimum at 1.414 and stays at 0.0502, unless keys move too. "
        f"Middle and right: {plan.num_seeds} perturbed copies (median, quartiles)."
    )
    return Figure("trap", "A trap for softmax when only W_Q moves", caption, tuple(panels))


def row_sums(full: bool) -> Figure:
    """Five kernels on targets inside and outside the convex hull of the values."""
    plan = _plan("softmax_stops_at_hull", full)
    panels = []
    for row_sum in (0.6, 1.0):
        batch = trials.mixtures(plan.num_seeds, row_sum)
        curves = []
        for kernel in attention.KERNELS:
            ends = trials.descend(
                batch, kernel=kernel, train="W_Q", step_size=0.02, num_steps=40000, every=400
            )
            steps = 400.0 * np.arange(ends.risk.shape[1])
            curves.append(band(kernel, steps[1:], np.maximum(ends.risk[:, 1:], 1e-30)))
        floor = np.maximum(trials.hull_floors(batch), 1e-30)
        curves.append(band("hull floor", steps[1:], np.repeat(floor[:, None], len(steps) - 1, 1)))
        shown = tuple(curves) if row_sum < 1 else tuple(curves[:-1])
        panels.append(Panel(f"row sums {row_sum:g}", "step", "risk", shown, log_y=True))
    caption = (
        "Only W_Q moves; three samples of three tokens, three outputs, dim 12, step 0.02, "
        f"{plan.num_seeds} problems (median, quartiles). Targets mix the values with weights that "
        "sum to 0.6 or to 1. Normalised kernels cannot go below the floor of the convex hull; "
        "inside the hull softmax is the better one. A kernel without a curve diverged at this step."
    )
    return Figure("row_sums", "Expressivity floor against optimisation", caption, tuple(panels))


def census(full: bool) -> Figure:
    """How many random rows end above zero, by kernel, teacher, sign of values and key width."""
    rows = 2000 if full else 300
    panels = []
    for key_dim in (1, 2):
        curves = []
        for student in KERNELS:
            shares = [
                100 * float(np.mean(trials.census(rows, kernel=student, teacher=teacher,
                    key_dim=key_dim, positive=positive) > 1e-4))
                for positive in (True, False)
                for teacher in KERNELS
            ]  # fmt: skip
            curves.append(_line(f"{student} student", np.arange(4.0), np.array(shares)))
        title = f"key width {key_dim}"
        panels.append(Panel(title, "case", "% of rows above 1e-4", tuple(curves), points=True))
    caption = (
        f"{rows} random rows of six tokens each, labels from a teacher's query, one query trained "
        "with step 0.3 for 8000 steps. Cases: 0 and 1 have positive values and a softmax or a "
        "Gaussian teacher, 2 and 3 values of both signs. The Gaussian is not free of traps "
        "either; with a Gaussian teacher most failures of softmax are of expressivity."
    )
    return Figure("census", "How often one query gets stuck", caption, tuple(panels))


def values(full: bool) -> Figure:
    """Value-only training beside the exact recursion; floors by heads and dimension."""
    found = layer.measure_values(_plan("values_follow_recursion", full))
    first: Any = layer.decide_values(found).panel
    plan = Plan(num_seeds=10 if full else 4, num_steps=20)
    curves = []
    for heads in (1, 2):
        dims = [4, 8, 12, 16, 20, 24] if heads == 1 else [2, 4, 6, 8, 10, 12]
        floors = []
        for dim in dims:
            made = layer.values_experiment(plan, "softmax", heads, dim, "W_V")
            floors.append(layer.floor_shares(made, plan.num_seeds))
        x = np.array([heads * dim / 16 for dim in dims])
        curves.append(band(f"{heads} head(s)", x, np.maximum(np.array(floors).T, 1e-32)))
    second = Panel(
        "floor over first risk", "heads x dim / (samples x tokens)", "F* / F_0", tuple(curves),
        log_y=True,
    )  # fmt: skip
    caption = (
        "Left: softmax and Gaussian, one head and two, measured and by the recursion. Right: the "
        "least squares floor falls to zero where heads x dim reaches samples x tokens = 16."
    )
    return Figure("values", "Training W_V alone", caption, (first, second))


def initial_scale(full: bool) -> Figure:
    """Independence of features by the scale of W_Q and W_K."""
    seeds = _plan("middling_scale_is_best", full).num_seeds
    sides = (
        ("softmax", "softmax", False),
        ("gaussian", "gaussian", False),
        ("gaussian, W_K = W_Q", "gaussian", True),
        ("softmax, W_K = W_Q", "softmax", True),
    )
    found = {
        name: trials.feature_sigmas(seeds, kernel=kernel, tied=tied) for name, kernel, tied in sides
    }
    caption = (
        "Four samples of four tokens N(0, 1/24) in dimension 24, key width 8; median and quartiles "
        f"of {seeds} draws. Too small is uniform attention, too large saturated (softmax) or zero "
        "(Gaussian); values below 1e-17 or so are rounding."
    )
    panel = layer.scale_panel(found)
    return Figure("initial_scale", "How the start decides lambda_B", caption, (panel,))


def depth(full: bool) -> Figure:
    """Conditioning of the last layer's features by depth."""
    panel: Any = real.decide_depth(real.measure_depth(_plan("residual_keeps_features", full))).panel
    caption = (
        "The classifier at its start on Gaussian tokens, mean of both kernels (median, quartiles)."
    )
    return Figure("depth", "Depth with and without residual connections", caption, (panel,))


def landscapes(full: bool) -> Figure:
    """Planes of both kernels after two-stage training, on the same random directions."""
    plan = _plan("landscape_rougher", full)
    experiments, ends = real.two_stages(plan)
    grid = jnp.linspace(-1.0, 1.0, 51 if full else 31)
    points = [trees.cast(jax.tree.map(lambda w: w[0], end), "float64") for end in ends]
    directions = real.middle_directions(experiments[0], 0)
    panels = []
    for kernel, experiment, point in zip(KERNELS, experiments, points, strict=True):
        heights = np.asarray(real.plane_of(experiment, point, directions, grid), float)
        line = np.asarray(grid, float)
        plane = Surface(kernel, line, line, heights)
        shown = Panel(kernel, "second direction", "first direction", surface=plane)
        panels += [shown, shown._replace(solid=True)]
    caption = (
        "Classifier on digits by rows: softmax first, then each kernel from there (all weights, "
        f"Adam, {plan.num_steps} steps each). Risk on random filter-normalised directions of W_Q "
        "and W_K, the same for both. The paper's directions are not known."
    )
    return Figure("landscapes", "Landscapes after two-stage training", caption, tuple(panels))


def _curves(key: str, problem: str, method: str, full: bool) -> tuple[Panel, Panel]:
    plan = _plan(key, full)
    accuracy, loss = [], []
    for kernel in KERNELS:
        run = real.curves(plan, problem, kernel, method, real.USUAL[method])
        accuracy.append(band(kernel, run["step"], run["accuracy"]))
        loss.append(band(kernel, run["step"], run["test_risk"]))
    return (
        Panel("held-out accuracy", "step", "accuracy", tuple(accuracy)),
        Panel("held-out loss", "step", "cross-entropy", tuple(loss)),
    )


def text(full: bool) -> Figure:
    """Held-out accuracy and loss on IMDb bytes."""
    plan = _plan("imdb_equal_step", full)
    caption = (
        f"{plan.num_samples} IMDb reviews as {plan.num_tokens} bytes each, SGD with step "
        f"{real.USUAL['sgd']}, batches of 32, {plan.num_seeds} seeds (median, quartiles). At quick "
        "size nothing is learned yet."
    )
    panels = _curves("imdb_equal_step", "imdb", "sgd", full)
    return Figure("text", "IMDb reviews as bytes", caption, panels)


def pictures(full: bool) -> Figure:
    """Pathfinder: a sample sheet, and held-out curves."""
    made = pathfinder.dataset(64, "easy", 0, cache_folder() / "pathfinder")
    sheet = pathfinder.sample_sheet(made, 4, 8)
    image = Image("left: one contour, right: two", 1 - np.asarray(sheet))
    first = Panel("easy, left: connected, right: not", "", "", images=(image,))
    plan = _plan("pathfinder_equal_step", full)
    caption = (
        f"{plan.num_samples} easy images in {plan.num_tokens} patches, Adam with step "
        f"{real.USUAL['adam']}, batches of 32, {plan.num_seeds} seeds (median, quartiles). Do "
        "dashes lead from disk to disk? At quick size nothing is learned yet."
    )
    panels = _curves("pathfinder_equal_step", "pathfinder", "adam", full)
    return Figure("pathfinder", "Pathfinder", caption, (first, *panels))


FIGURES = (
    FigureRecipe("trap", "A trap for softmax when only W_Q moves", trap),
    FigureRecipe("row_sums", "Expressivity floor against optimisation", row_sums),
    FigureRecipe("census", "How often one query gets stuck", census),
    FigureRecipe("values", "Training W_V alone", values),
    FigureRecipe("initial_scale", "How the start decides lambda_B", initial_scale),
    FigureRecipe("depth", "Depth with and without residual connections", depth),
    FigureRecipe("landscapes", "Landscapes after two-stage training", landscapes),
    FigureRecipe("text", "IMDb reviews as bytes", text),
    FigureRecipe("pathfinder", "Pathfinder", pictures),
)
