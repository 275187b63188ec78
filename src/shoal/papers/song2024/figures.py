"""What the paper's figures show, computed again, and pictures of what lies behind its claims.

Step sizes, batch sizes and numbers of runs of the paper are not known; ours are in the captions.
"""

import functools
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from shoal import attention, pathfinder
from shoal.diagnostics.landscape import measures
from shoal.figures import Image, Panel, Surface, band
from shoal.files import cache_folder
from shoal.lab.setting import SUMMARY
from shoal.lab.study import Plan, trained
from shoal.papers.song2024 import classifier_studies as real
from shoal.papers.song2024 import data, studies, tasks
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import KERNELS, SCALES

SIZES: dict[str, tuple[Plan, dict]] = {
    "trap": (Plan(seeds=16, steps=10000), {"seeds": 100}),
    "hull": (Plan(seeds=16, steps=40000), {"seeds": 100}),
    "scale": (Plan(seeds=16), {"seeds": 100}),
    "depth": (Plan(seeds=8, samples=4, tokens=8), {"seeds": 50}),
    "planes": (Plan(seeds=1, steps=10, samples=60, points=31),
               {"steps": 1000, "samples": 290, "points": 51}),
}  # fmt: skip
"""Plans at quick size, and what changes at full size."""


def _sizes(key: str, full: bool) -> Plan:
    quick, changes = SIZES[key]
    return quick._replace(**(changes if full else {}))


@PAPER.figure("trap", "A trap for softmax when only W_Q moves")
def trap(full: bool) -> tuple:
    """One query against fixed keys: where the two kernels can go, and where they end."""
    plan, q = _sizes("trap", full), np.linspace(-6.0, 6.0, 241)
    K, v = jnp.array(data.TRAP_KEYS)[:, None], jnp.array(data.TRAP_VALUES)
    curves = []
    for name in KERNELS:
        S = attention.KERNELS[name](jnp.asarray(q)[:, None], K, 1.0)
        risk = np.asarray(0.5 * (S @ v - data.TRAP_TARGET) ** 2)
        curves.append(band(name, q, np.maximum(risk, 1e-6)))

    def ends(title: str, moving: str, step: float) -> Panel:
        runs = {kernel: studies.near_trap(plan, kernel, moving, step) for kernel in KERNELS}
        lines = (band(k, r.step, np.maximum(r.risk, 1e-30)) for k, r in runs.items())
        return Panel(title, "step", "risk", tuple(lines), log_y=True)

    return (
        "Four tokens, keys -2, -1, 1, 2, values 0.2, 2, 0.2, 0.5, target 0.3, start at query 2: "
        "softmax slides into the minimum at 1.414 and stays, unless keys move too. Left: one row, "
        "0.01255 at that minimum. Middle and right: all four rows together, 0.0502, of "
        f"{plan.seeds} perturbed copies (median, quartiles).",
        Panel("risk of one row", "query", "risk", tuple(curves), log_y=True),
        ends("only W_Q moves", "W_Q", 0.5),
        ends("W_Q and W_K move", "W_Q,W_K", 0.2),
    )


@PAPER.figure("row_sums", "Expressivity floor against optimisation")
def row_sums(full: bool) -> tuple:
    """Five kernels on targets inside and outside the convex hull of the values."""
    plan, panels = _sizes("hull", full), []
    for row_sum in (0.6, 1.0):
        curves = []
        for kernel in attention.KERNELS:
            run = studies.mixture_runs(plan, kernel, row_sum)
            curves.append(band(kernel, run.step[1:], np.maximum(run.risk[:, 1:], 1e-30)))
        if row_sum < 1:
            floor = studies.hull_floors(run)[:, None]
            curves.append(band("hull floor", run.step[1:], np.repeat(floor, len(run.step) - 1, 1)))
        panels.append(Panel(f"row sums {row_sum:g}", "step", "risk", tuple(curves), log_y=True))
    return (
        "Only W_Q moves; three samples of three tokens, three outputs, dim 12, step 0.02, "
        f"{plan.seeds} problems (median, quartiles). Targets mix the values with weights that sum "
        "to 0.6 or to 1. Normalised kernels cannot go below the floor of the convex hull; inside "
        "the hull softmax is the better one. A kernel without a curve diverged at this step.",
        *panels,
    )


@PAPER.figure("census", "How often one query gets stuck")
def census(full: bool) -> tuple:
    """How many random rows end above zero, by kernel, teacher, sign of values and key width."""
    seeds = 350 if full else 50

    def panel(key_dim: int) -> Panel:
        curves = []
        for student in KERNELS:
            shares = [
                100 * np.mean(studies.census(
                    seeds, kernel=student, teacher=teacher, key_dim=key_dim, positive=positive))
                for positive in (True, False)
                for teacher in KERNELS
            ]  # fmt: skip
            curves.append(band(f"{student} student", np.arange(4.0), np.array(shares)))
        title, percent = f"key width {key_dim}", "% of rows above 1e-4"
        return Panel(title, "case", percent, tuple(curves), points=True)

    return (
        f"{seeds} random sets of six tokens, six queries each, labels from a teacher's queries; "
        "queries trained with step 0.3 for 8000 steps. Cases: 0 and 1 have positive values and a "
        "softmax or a Gaussian teacher, 2 and 3 values of both signs. The Gaussian is not free of "
        "traps either; with a Gaussian teacher most failures of softmax are of expressivity.",
        panel(1),
        panel(2),
    )


@PAPER.figure("values", "Training W_V alone")
def values(full: bool) -> tuple:
    """Value-only training beside the exact recursion; floors by heads and dimension."""
    plan = Plan(seeds=10 if full else 4, samples=4, tokens=4)
    risk: list[Any] = []
    exact: list[Any] = []
    for kernel, (heads, dim) in itertools.product(KERNELS, ((1, 24), (2, 6))):
        run = trained(
            PAPER, plan.seeds, step="theorem_1", fresh_data=True, kernel=kernel, num_heads=heads,
            dim=dim, train="W_V", num_steps=10000 if full else 400,
        )  # fmt: skip
        risk.append(run.risk)
        exact.append([one.curves["exact recursion"] for one in run.certify("theorem_1")])
    found = {"measured": risk, "recursion": exact}
    lines = [band(k, run.step, np.concatenate(y), positive=True) for k, y in found.items()]
    evidence = Panel("training W_V alone", "step", "risk", tuple(lines), log_y=True)
    curves = []
    for heads in (1, 2):
        dims = np.array([4, 8, 12, 16, 20, 24]) // heads
        floors = [studies.value_floors(plan, heads, int(dim)) for dim in dims]
        shares = np.maximum(np.array(floors).T, 1e-32)
        curves.append(band(f"{heads} head(s)", heads * dims / 16, shares))
    return (
        "Left: softmax and Gaussian, one head and two, measured and by the recursion. Right: the "
        "least squares floor falls to zero where heads x dim reaches samples x tokens = 16.",
        evidence,
        Panel("floor over first risk", "heads x dim / (samples x tokens)", "F* / F_0",
              tuple(curves), log_y=True),
    )  # fmt: skip


@PAPER.figure("initial_scale", "How the start decides lambda_B")
def initial_scale(full: bool) -> tuple:
    """Independence of features by the scale of W_Q and W_K."""
    seeds, curves = _sizes("scale", full).seeds, []
    for tied, name in ((False, ""), (True, ", W_K = W_Q")):
        for kernel in KERNELS:
            sigmas = np.maximum(studies.feature_sigmas(seeds, kernel, tied=tied), 1e-20)
            curves.append(band(kernel + name, np.array(SCALES), sigmas))
    return (
        "Four samples of four tokens N(0, 1/24) in dimension 24, key width 8; median and quartiles "
        f"of {seeds} draws. Too small is uniform attention, too large saturated (softmax) or zero "
        "(Gaussian); values below 1e-17 or so are rounding.",
        Panel("features", "scale of W_Q, W_K", "sigma_min(B)", tuple(curves), log_x=True,
              log_y=True),
    )  # fmt: skip


@PAPER.figure("depth", "Depth with and without residual connections")
def depth(full: bool) -> tuple:
    """Conditioning of the last layer's features by depth."""
    plan, layers, curves = _sizes("depth", full), (1, 2, 3), []
    for residual in (1.0, 0.0):
        for norm in (True, False):
            found = [real.depth_conditioning(plan, residual, layers=k, norm=norm) for k in layers]
            words = f"{'' if residual else 'no '}residual, {'' if norm else 'no '}norm"
            curves.append(band(words, np.array(layers), 10.0 ** np.stack(found, 1)))
    return (
        "The classifier at its start on Gaussian tokens, mean of both kernels (median, quartiles).",
        Panel("last layer at the start", "layers", "sigma_min / sigma_max of the features",
              tuple(curves), log_y=True),
    )  # fmt: skip


def _kept_plane(kernel: str, full: bool) -> dict[str, np.ndarray]:
    """A plane around the first seed's end, kept on disk, with the training risk there."""
    from shoal.disk.cache import cached

    plan = _sizes("planes", full)

    def make() -> dict[str, Any]:
        run = dict(zip(KERNELS, real.two_stages(plan), strict=True))[kernel]
        line, heights = real.plane_of(run, 0, plan.points)
        return {"line": line, "heights": heights, "risk": run.risk[0, -1]}

    return cached(["song2024.plane", kernel, list(plan)], make).arrays


def _plane_jobs(full: bool) -> list[Any]:
    return [functools.partial(_kept_plane, kernel, full=True) for kernel in KERNELS] if full else []


@PAPER.figure("landscapes", "Landscapes after two-stage training", source=SUMMARY, jobs=_plane_jobs)
def landscapes(full: bool) -> tuple:
    """Planes of both kernels after two-stage training, on the same random directions."""
    plan, panels, said = _sizes("planes", full), [], []
    for kernel in KERNELS:
        kept = _kept_plane(kernel, full)
        line, heights = kept["line"], kept["heights"]
        found = measures(heights, (line[1] - line[0],) * 2)
        said.append(f"{kernel}: training risk {float(kept['risk']):.2g}, "
                    f"{int(found['local_minima'])} strict minima")  # fmt: skip
        plane = Surface(kernel, line, line, heights)
        shown = Panel(kernel, "second direction", "first direction", surface=plane)
        panels += [shown, shown._replace(solid=True)]
    stage = "trained" if full else "at the beginning of training, not trained (--full is)"
    return (
        f"Classifier on {plan.samples} digits by rows, {stage}: softmax first, then each kernel "
        f"from there (all weights, Adam, {plan.steps} steps each). Risk on random "
        "filter-normalised directions of W_Q and W_K, the same for both. The paper's directions "
        f"are not known. {'; '.join(said)}.",
        *panels,
    )


TEXT_TASKS, PICTURE_TASKS = ("imdb", "rotten_tomatoes"), ("fashion_mnist",)
TRANSFER_TASKS = ("sort", "reverse", "next_byte")


def _runs(full: bool) -> int:
    """Seeds of each task."""
    return 5 if full else 1


def _task_jobs(keys: tuple[str, ...]) -> Any:
    return lambda full: tasks.jobs(keys, _runs(full)) if full else []


def _task_panels(keys: tuple[str, ...], full: bool) -> tuple:
    found = (tasks.held_out_panels(key, _runs(full), full=full) for key in keys)
    sizes = ". ".join(f"{tasks.TASKS[k].words}: {tasks.sizes_in_words(k, full=full)}" for k in keys)
    seeds = "5 seeds (median, quartiles)" if full else "one seed; --full has 5 and larger sizes"
    return f"{sizes}. Two layers of width 64, {seeds}.", *itertools.chain(*found)


@PAPER.figure("text", "Film reviews as words", source=SUMMARY, jobs=_task_jobs(TEXT_TASKS))
def text(full: bool) -> tuple:
    """Held-out accuracy and loss on reviews."""
    caption, *panels = _task_panels(TEXT_TASKS, full)
    return f"{caption} The paper reads 4000 bytes of a review by SGD.", *panels


@PAPER.figure("images", "Fashion-MNIST in patches", jobs=_task_jobs(PICTURE_TASKS))
def images(full: bool) -> tuple:
    """Held-out accuracy and loss on Fashion-MNIST."""
    return _task_panels(PICTURE_TASKS, full)


@PAPER.figure("transfer", "The next byte, and sequences put in order",
              jobs=_task_jobs(TRANSFER_TASKS))  # fmt: skip
def transfer(full: bool) -> tuple:
    """Held-out accuracy and loss of tasks that ask at every place."""
    return _task_panels(TRANSFER_TASKS, full)


def sample_sheet(data: pathfinder.Pathfinder, rows: int, columns: int) -> np.ndarray:
    """One picture, values in [0, 1]: the first positives in the left half, negatives in the right.

    Tiles are separated by a grey line, the halves by a white one.
    """

    def half(label: int) -> np.ndarray:
        chosen = data.images[data.labels == label][: rows * columns // 2] / 255
        tiles = np.pad(chosen, ((0, 0), (0, 1), (0, 1)), constant_values=0.5)
        grid = tiles.reshape(rows, columns // 2, pathfinder.SIZE + 1, pathfinder.SIZE + 1)
        return grid.transpose(0, 2, 1, 3).reshape(rows * (pathfinder.SIZE + 1), -1)[:-1, :-1]

    return np.hstack([half(1), np.ones((rows * (pathfinder.SIZE + 1) - 1, 3)), half(0)])


def _pathfinder_jobs(full: bool) -> list[Any]:
    return tasks.jobs(("pathfinder",), _runs(full)) if full else []


@PAPER.figure("pathfinder", "Pathfinder", source=SUMMARY, jobs=_pathfinder_jobs)
def pictures(full: bool) -> tuple:
    """Pathfinder: a sample sheet, and at full size held-out curves."""
    made = pathfinder.dataset(64, "easy", 0, cache_folder() / "pathfinder")
    sheet = 1 - np.asarray(sample_sheet(made, 4, 8))
    image = Image("left: one contour, right: two", sheet)
    sheets = Panel("easy, left: connected, right: not", "", "", images=(image,))
    words = "Do dashes lead from disk to disk?"
    if not full:
        return f"{words} Training takes 15 minutes a seed: --full.", sheets
    caption, *panels = _task_panels(("pathfinder",), full)
    caption = f"{words} {caption} Weights come from a stage with contours of three dashes."
    return caption, sheets, *panels
