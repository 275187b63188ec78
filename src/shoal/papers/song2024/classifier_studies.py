"""Claims about the classifier: depth at the start, landscapes after training, real data.

Settings are ours, as in `studies`: the paper's batch sizes, step sizes and numbers of runs are not
known.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal._typing import Array, Float
from shoal.diagnostics import landscape
from shoal.lab.claim import Measurement, Plan, above, comparison
from shoal.lab.engine import per_start
from shoal.lab.run import Run, train
from shoal.lab.setting import OURS, SUMMARY
from shoal.lab.setup import Setup, completed, draw_weights, paper_setup
from shoal.lab.study import fresh_setup, trained
from shoal.linalg import singular_values
from shoal.papers.song2024 import classifier
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import FRESH, KERNELS, log10

ONE_DATA_SET = "our setting, one data set: intervals cover the draw of weights and batches, not of "
ONE_DATA_SET += "the data"


def _conditioning(setup: Setup, residual: Float[Array, ""]) -> Float[Array, " kernels"]:
    designs = (setup.setting.replace(kernel=k).design._replace(residual=residual) for k in KERNELS)
    B = (classifier.last_features(setup.params0, setup.inputs, design) for design in designs)
    return jnp.stack([sigma[-1] / sigma[0] for sigma in map(singular_values, B)])


def depth_conditioning(plan: Plan, residual: float, *, layers: int, norm: bool) -> np.ndarray:
    """Smallest over largest singular value of the last features on Gaussian tokens, in decades.

    At the start, mean of both kernels.
    """
    sizes = {"num_samples": plan.samples, "num_tokens": plan.tokens, "dim": 64}
    model = {"model": "classifier", "problem": "digits", "positions": plan.tokens}
    setting = completed(PAPER, sizes | model | {"num_layers": layers, "norm": norm})
    tokens = fresh_setup(PAPER, sizes, seeds=range(plan.seeds))
    weights = draw_weights(setting, range(plan.seeds))
    setup = tokens.replace(setting=setting, params0=weights, stacked=("params0", "problem"))
    # a seed counts once: geometric mean of the two kernels
    return log10(per_start(setup, _conditioning, np.array(residual)), 1e-20).mean(axis=1)


PAPER.claim(
    "residual_keeps_features",
    "Residual connections keep the last layer's features independent in deeper networks.",
    lambda plan: comparison(*(depth_conditioning(plan, residual, layers=3, norm=True)
                              for residual in (plan.get("residual", 1.0), 0.0))),
    rule=above(1.0, "decades of conditioning gained by residuals at three layers, with norm",
               "residual", "none"),
    control={"residual": 0.0}, setting=FRESH, quick=Plan(seeds=8, samples=4, tokens=8),
    full={"seeds": 50},
)  # fmt: skip

FLAT = 0.01
"""A plane whose risk varies by less (chance is log 2) shows the end of training only."""


@functools.lru_cache(maxsize=4)
def two_stages(plan: Plan, kernels: tuple[str, ...] = KERNELS) -> tuple[Run, ...]:
    """Softmax first, then each kernel from there; all weights, by Adam, on digits read by rows."""
    values = {"model": "classifier", "problem": "digits", "num_samples": plan.samples}
    values |= {"test_samples": 50, "num_steps": plan.steps, "every": plan.steps}

    def stage(kernel: str, **start: Any) -> Run:
        made = paper_setup(
            PAPER, values | {"kernel": kernel}, seeds=range(plan.seeds), precision="float32"
        )
        return train(made.replace(**start), step_size=1e-3, probes=())

    middle = stage("softmax").params
    return tuple(stage(kernel, params0=middle) for kernel in kernels)


def _plane(setup: Setup, end: Any, seed: Array, line: Float[Array, " points"]) -> Array:
    key, blocks = jax.random.key(seed), ("W_Q", "W_K")
    directions = landscape.random_directions(key, setup.params0, blocks)
    return landscape.plane(setup.risk, end, directions, line, line, batch_size=32)


def plane_of(run: Run, seed: int, points: int) -> tuple[np.ndarray, np.ndarray]:
    """The risk around a seed's end, on directions scaled by the weights that both sides began from.

    Grid and heights, in double precision.
    """
    line = np.linspace(-1.0, 1.0, points)
    end = trees.cast(jax.tree.map(lambda W: W[seed], run.params), "float64")
    heights = per_start(run.setup.rows([seed]), _plane, end, np.uint32(seed), line)[0]
    return line, heights


@functools.lru_cache(maxsize=4)  # two claims look at the same planes
def plane_measures(plan: Plan) -> list[dict[str, np.ndarray]]:
    """Numbers of both kernels' planes, same directions, for every seed."""
    sides = []
    for run in two_stages(plan, plan.get("kernels", KERNELS)):
        planes = (plane_of(run, seed, plan.points) for seed in range(plan.seeds))
        found = [landscape.measures(heights, (x[1] - x[0],) * 2) for x, heights in planes]
        sides.append({name: np.array([one[name] for one in found]) for name in found[0]})
    return sides


def compare_planes(plan: Plan, what: str) -> Measurement:
    """One number of both planes; nothing is decided if one of them is flat."""
    sides = plane_measures(plan)
    ranges = [np.median(side["highest"] - side["lowest"]) for side in sides]
    return comparison(*(side[what] for side in sides), premise=np.array(min(ranges) >= FLAT))


for _key, _what, _measure, _limit, _words in (
    ("more_minima", "has more local minima", "local_minima", 0.5, "strict local minima"),
    ("rougher", "is less smooth", "roughness", 0.01, "roughness"),
):
    _planes = Plan(seeds=6, steps=10, samples=60, points=15, minutes=0.5)
    PAPER.claim(
        f"landscape_{_key}",
        f"After two-stage training softmax's landscape {_what} than the Gaussian's.",
        functools.partial(compare_planes, what=_measure),
        rule=above(
            _limit, f"{_words} of the plane, softmax minus Gaussian", *KERNELS,
            premise=f"the risk varies by more than {FLAT:g} on both planes", revised=True,
        ),
        control={"kernels": ("softmax", "softmax")},
        control_plan=_planes._replace(seeds=2, samples=20, points=7), source=SUMMARY,
        setting=ONE_DATA_SET, quick=_planes, full={"seeds": 20, "points": 51},
    )  # fmt: skip


STEPS = {"sgd": (0.03, 0.1, 0.3), "adam": (3e-4, 1e-3, 3e-3)}
USUAL = {"sgd": 0.1, "adam": 1e-3}


def classified(plan: Plan, problem: str, kernel: str, method: str, step: float) -> Run:
    """Train the classifier with one kernel at one step size, looking at held-out data."""
    values: Any = {"num_samples": plan.samples, "test_samples": max(200, plan.samples // 4)}
    if problem == "digits":  # there are only 348 images of two digits
        values = {"num_samples": min(plan.samples, 200), "test_samples": 140}
    elif problem == "pathfinder":
        values["patch"] = round(32 / plan.tokens**0.5)
    else:
        values["num_tokens"] = plan.tokens
    return trained(
        PAPER, plan.seeds, ("test_accuracy", "test_risk"), step=step, precision="float32",
        model="classifier", problem=problem, kernel=kernel, method=method, num_steps=plan.steps,
        every=plan.steps // 5, **values,
    )  # fmt: skip


def accuracies(plan: Plan, problem: str, method: str, *, tuned: bool) -> Measurement:
    """Held-out accuracy of both kernels, at one step size or each at its own best.

    The best step is that of the lowest mean risk in training: held-out data stay unseen.
    """
    problem, sides = plan.get("problem", problem), []
    for kernel in ("gaussian", "softmax"):
        tried = plan.get(f"{kernel}_steps", STEPS[method] if tuned else (USUAL[method],))
        runs = [classified(plan, problem, kernel, method, step) for step in tried]
        last = [np.nan_to_num(run.risk[:, -1].astype(float), nan=1e9).mean() for run in runs]
        best = runs[int(np.argmin(last))]
        sides.append(100 * best.probes["test_accuracy"][:, -1].astype(float))
    return comparison(*sides, premise=np.array(max(side.mean() for side in sides) >= 55))


_TEXT = Plan(seeds=3, steps=100, samples=400, tokens=32, minutes=0.5)
_TEXT_FULL = {"seeds": 5, "steps": 2000, "samples": 8000, "tokens": 256, "minutes": 300.0}
_PICTURES = _TEXT._replace(tokens=16)
_PICTURES_FULL = {"seeds": 5, "steps": 6000, "samples": 20000, "tokens": 64, "minutes": 120.0}
_DIGITS = _TEXT._replace(seeds=8, tokens=8)

for _problem, _words, _method, _quick, _full, _tuned in (
    ("imdb", "IMDb reviews", "sgd", _TEXT, _TEXT_FULL, False),
    ("imdb", "IMDb reviews", "sgd", _TEXT, _TEXT_FULL, True),
    ("pathfinder", "easy Pathfinder", "adam", _PICTURES, _PICTURES_FULL, False),
    ("pathfinder", "easy Pathfinder", "adam", _PICTURES, _PICTURES_FULL, True),
    ("rotten_tomatoes", "Rotten Tomatoes", "sgd", _TEXT, _TEXT_FULL, False),
    ("digits", "digits by rows", "adam", _DIGITS._replace(seeds=5), {"seeds": 20}, False),
):
    PAPER.claim(
        f"{_problem}_{'tuned' if _tuned else 'equal_step'}",
        f"The Gaussian reaches a higher held-out accuracy than softmax on {_words}, "
        f"{'each at its own best step' if _tuned else 'at the same step'}.",
        functools.partial(accuracies, problem=_problem, method=_method, tuned=_tuned),
        rule=above(
            0.0, "points of held-out accuracy by which the Gaussian is ahead after the last step",
            "gaussian", "softmax", premise="the better one is above 55% (at this size; see --full)",
        ),
        # a Gaussian whose steps are too small to learn, on data that softmax learns at once
        control={"problem": "digits", "gaussian_steps": (1e-7,)},
        control_plan=_DIGITS, source=SUMMARY if _problem in ("imdb", "pathfinder") else OURS,
        setting=ONE_DATA_SET, quick=_quick, full=_full,
    )  # fmt: skip
