"""What the paper's figures show, computed again, and pictures of what lies behind its claims.

Step sizes, batch sizes and numbers of runs of the paper are not known; ours are in the captions.
"""

import jax.numpy as jnp
import numpy as np

from shoal import attention, pathfinder
from shoal.figures import Curve, Figure, Image, Panel, Surface, band
from shoal.files import cache_folder
from shoal.lab.claim import Claim, Plan
from shoal.lab.setting import SUMMARY
from shoal.papers.song2024 import classifier_studies as real
from shoal.papers.song2024 import data, studies
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import KERNELS, SCALES


def _claim(key: str) -> Claim:
    return next(c for c in PAPER.claims if c.key == f"song2024.{key}")


def _plan(key: str, full: bool) -> Plan:
    return _claim(key).full if full else _claim(key).quick


def _figure(key: str, caption: str, *panels: Panel) -> Figure:
    title = next(figure.title for figure in PAPER.figures if figure.key == key)
    return Figure(key, title, caption, panels)


def _line(label: str, x: np.ndarray, y: np.ndarray) -> Curve:
    return Curve(label, x, y, y, y)


@PAPER.figure("trap", "A trap for softmax when only W_Q moves")
def trap(full: bool) -> Figure:
    """One query against fixed keys: where the two kernels can go, and where they end."""
    q = np.linspace(-6.0, 6.0, 241)
    K, v = jnp.array(data.TRAP_KEYS)[:, None], jnp.array(data.TRAP_VALUES)
    curves = []
    for name in KERNELS:
        S = attention.KERNELS[name](jnp.asarray(q)[:, None], K, 1.0)
        risk = np.asarray(0.5 * (S @ v - data.TRAP_TARGET) ** 2)
        curves.append(_line(name, q, np.maximum(risk, 1e-6)))
    panels = [Panel("risk of one row", "query", "risk", tuple(curves), log_y=True)]
    plan = _plan("softmax_is_trapped", full)
    for title, moving, step in (
        ("only W_Q moves", "W_Q", 0.5),
        ("W_Q and W_K move", "W_Q,W_K", 0.2),
    ):
        runs = {kernel: studies.near_trap(plan, kernel, moving, step) for kernel in KERNELS}
        lines = tuple(band(k, r.step, np.maximum(r.risk, 1e-30)) for k, r in runs.items())
        panels.append(Panel(title, "step", "risk", lines, log_y=True))
    caption = (
        "Four tokens, keys -2, -1, 1, 2, values 0.2, 2, 0.2, 0.5, target 0.3, start at query 2: "
        "softmax slides into the minimum at 1.414 and stays at 0.0502, unless keys move too. "
        f"Middle and right: {plan.seeds} perturbed copies (median, quartiles)."
    )
    return _figure("trap", caption, *panels)


@PAPER.figure("row_sums", "Expressivity floor against optimisation")
def row_sums(full: bool) -> Figure:
    """Five kernels on targets inside and outside the convex hull of the values."""
    plan = _plan("softmax_stops_at_hull", full)
    panels = []
    for row_sum in (0.6, 1.0):
        curves = []
        for kernel in attention.KERNELS:
            run = studies.mixture_runs(plan, kernel, row_sum)
            curves.append(band(kernel, run.step[1:], np.maximum(run.risk[:, 1:], 1e-30)))
        if row_sum < 1:
            floor = studies.hull_floors(run)[:, None]
            curves.append(band("hull floor", run.step[1:], np.repeat(floor, len(run.step) - 1, 1)))
        panels.append(Panel(f"row sums {row_sum:g}", "step", "risk", tuple(curves), log_y=True))
    caption = (
        "Only W_Q moves; three samples of three tokens, three outputs, dim 12, step 0.02, "
        f"{plan.seeds} problems (median, quartiles). Targets mix the values with weights that sum "
        "to 0.6 or to 1. Normalised kernels cannot go below the floor of the convex hull; inside "
        "the hull softmax is the better one. A kernel without a curve diverged at this step."
    )
    return _figure("row_sums", caption, *panels)


@PAPER.figure("census", "How often one query gets stuck")
def census(full: bool) -> Figure:
    """How many random rows end above zero, by kernel, teacher, sign of values and key width."""
    seeds = 350 if full else 50
    panels = []
    for key_dim in (1, 2):
        curves = []
        for student in KERNELS:
            shares = [
                100 * np.mean(studies.stuck_share(studies.census(
                    seeds, kernel=student, teacher=teacher, key_dim=key_dim, positive=positive)))
                for positive in (True, False)
                for teacher in KERNELS
            ]  # fmt: skip
            curves.append(_line(f"{student} student", np.arange(4.0), np.array(shares)))
        title = f"key width {key_dim}"
        panels.append(Panel(title, "case", "% of rows above 1e-4", tuple(curves), points=True))
    caption = (
        f"{seeds} random sets of six tokens, six queries each, labels from a teacher's queries; "
        "queries trained with step 0.3 for 8000 steps. Cases: 0 and 1 have positive values and a "
        "softmax or a Gaussian teacher, 2 and 3 values of both signs. The Gaussian is not free of "
        "traps either; with a Gaussian teacher most failures of softmax are of expressivity."
    )
    return _figure("census", caption, *panels)


@PAPER.figure("values", "Training W_V alone")
def values(full: bool) -> Figure:
    """Value-only training beside the exact recursion; floors by heads and dimension."""
    claim = _claim("values_follow_recursion")
    evidence = claim.decide(claim.measure(claim.full if full else claim.quick)).panel
    assert evidence is not None
    first = evidence._replace(title="training W_V alone")
    plan = Plan(seeds=10 if full else 4, samples=4, tokens=4)
    curves = []
    for heads in (1, 2):
        dims = np.array([4, 8, 12, 16, 20, 24]) // heads
        floors = [studies.value_floors(plan, heads, int(dim)) for dim in dims]
        shares = np.maximum(np.array(floors).T, 1e-32)
        curves.append(band(f"{heads} head(s)", heads * dims / 16, shares))
    second = Panel(
        "floor over first risk", "heads x dim / (samples x tokens)", "F* / F_0", tuple(curves),
        log_y=True,
    )  # fmt: skip
    caption = (
        "Left: softmax and Gaussian, one head and two, measured and by the recursion. Right: the "
        "least squares floor falls to zero where heads x dim reaches samples x tokens = 16."
    )
    return _figure("values", caption, first, second)


@PAPER.figure("initial_scale", "How the start decides lambda_B")
def initial_scale(full: bool) -> Figure:
    """Independence of features by the scale of W_Q and W_K."""
    seeds = _plan("middling_scale_is_best", full).seeds
    curves = tuple(
        band(
            kernel + (", W_K = W_Q" if tied else ""),
            np.array(SCALES),
            studies.feature_sigmas(seeds, kernel, tied=tied),
        )
        for tied in (False, True)
        for kernel in KERNELS
    )
    panel = Panel("features", "scale of W_Q, W_K", "sigma_min(B)", curves, log_x=True, log_y=True)
    caption = (
        "Four samples of four tokens N(0, 1/24) in dimension 24, key width 8; median and quartiles "
        f"of {seeds} draws. Too small is uniform attention, too large saturated (softmax) or zero "
        "(Gaussian); values below 1e-17 or so are rounding."
    )
    return _figure("initial_scale", caption, panel)


@PAPER.figure("depth", "Depth with and without residual connections")
def depth(full: bool) -> Figure:
    """Conditioning of the last layer's features by depth."""
    plan, layers = _plan("residual_keeps_features", full), (1, 2, 3)
    curves = []
    for residual in (1.0, 0.0):
        for norm in (True, False):
            found = [real.depth_conditioning(plan, residual, layers=k, norm=norm) for k in layers]
            words = "residual" if residual else "no residual", "norm" if norm else "no norm"
            curves.append(band(", ".join(words), np.array(layers), 10.0 ** np.stack(found, 1)))
    panel = Panel(
        "last layer at the start", "layers", "sigma_min / sigma_max of the features",
        tuple(curves), log_y=True,
    )  # fmt: skip
    caption = (
        "The classifier at its start on Gaussian tokens, mean of both kernels (median, quartiles)."
    )
    return _figure("depth", caption, panel)


@PAPER.figure("landscapes", "Landscapes after two-stage training", source=SUMMARY)
def landscapes(full: bool) -> Figure:
    """Planes of both kernels after two-stage training, on the same random directions."""
    plan = _plan("landscape_rougher", full)
    panels = []
    for kernel, run in zip(KERNELS, real.two_stages(plan), strict=True):
        line, heights = real.plane_of(run, 0, 51 if full else 31)
        plane = Surface(kernel, line, line, heights)
        shown = Panel(kernel, "second direction", "first direction", surface=plane)
        panels += [shown, shown._replace(solid=True)]
    caption = (
        "Classifier on digits by rows: softmax first, then each kernel from there (all weights, "
        f"Adam, {plan.steps} steps each). Risk on random filter-normalised directions of W_Q "
        "and W_K, the same for both. The paper's directions are not known."
    )
    return _figure("landscapes", caption, *panels)


def _held_out(plan: Plan, problem: str, method: str) -> tuple[Panel, Panel]:
    runs = [real.classified(plan, problem, k, method, real.USUAL[method]) for k in KERNELS]

    def curves(name: str) -> tuple[Curve, ...]:
        return tuple(
            band(kernel, run.step, run.probes[name])
            for kernel, run in zip(KERNELS, runs, strict=True)
        )

    return (
        Panel("held-out accuracy", "step", "accuracy", curves("test_accuracy")),
        Panel("held-out loss", "step", "cross-entropy", curves("test_risk")),
    )


@PAPER.figure("text", "IMDb reviews as bytes", source=SUMMARY)
def text(full: bool) -> Figure:
    """Held-out accuracy and loss on IMDb bytes."""
    plan = _plan("imdb_equal_step", full)
    caption = (
        f"{plan.samples} IMDb reviews as {plan.tokens} bytes each, SGD with step "
        f"{real.USUAL['sgd']}, batches of 32, {plan.seeds} seeds (median, quartiles). At quick "
        "size nothing is learned yet."
    )
    return _figure("text", caption, *_held_out(plan, "imdb", "sgd"))


@PAPER.figure("pathfinder", "Pathfinder", source=SUMMARY)
def pictures(full: bool) -> Figure:
    """Pathfinder: a sample sheet, and held-out curves."""
    made = pathfinder.dataset(64, "easy", 0, cache_folder() / "pathfinder")
    sheet = pathfinder.sample_sheet(made, 4, 8)
    image = Image("left: one contour, right: two", 1 - np.asarray(sheet))
    first = Panel("easy, left: connected, right: not", "", "", images=(image,))
    plan = _plan("pathfinder_equal_step", full)
    caption = (
        f"{plan.samples} easy images in {plan.tokens} patches, Adam with step "
        f"{real.USUAL['adam']}, batches of 32, {plan.seeds} seeds (median, quartiles). Do dashes "
        "lead from disk to disk? At quick size nothing is learned yet."
    )
    return _figure("pathfinder", caption, first, *_held_out(plan, "pathfinder", "adam"))
