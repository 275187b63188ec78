"""Claims about the classifier: depth at the start, landscapes after training, real data.

Settings are ours, as in `studies`: the paper's batch sizes, step sizes and numbers of runs are not
known. A real data set is a population of subsets: every seed draws training and held-out data.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal._typing import Array, Float
from shoal.diagnostics import landscape
from shoal.evidence.sequences import Interval
from shoal.lab import effects
from shoal.lab.claim import Control, Design, Value, above
from shoal.lab.engine import per_start
from shoal.lab.run import Run, train
from shoal.lab.setting import SUMMARY
from shoal.lab.setup import Setup, completed, draw_weights
from shoal.lab.study import Plan, fresh_setup, seeds_of, trained
from shoal.linalg import singular_values
from shoal.papers.song2024 import classifier
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import KERNELS, OTHER_SIDE, log10

Seeds = tuple[int, ...]


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
    seeds = seeds_of(plan.seeds)
    tokens = fresh_setup(PAPER, sizes, seeds=seeds)
    weights = draw_weights(setting, seeds)
    setup = tokens.replace(setting=setting, params0=weights, stacked=("params0", "problem"))
    # a seed counts once: geometric mean of the two kernels
    return log10(per_start(setup, _conditioning, np.array(residual)), 1e-20).mean(axis=1)


def kept_features(design: Design, seeds: Seeds) -> list[Interval]:
    """Decades of conditioning with one strength of the residuals minus that with another."""
    plan = Plan(seeds=seeds, samples=4, tokens=8)
    one, other = (
        effects.points(depth_conditioning(plan, design[side], layers=design["layers"], norm=True))
        for side in ("one", "other")
    )
    return effects.minus(one, other)


PAPER.claim(
    "residual_keeps_features",
    "In a classifier of three layers with norm, residual connections keep the last layer's "
    "features independent: their conditioning is better by more than a power of ten.",
    kept_features,
    above(1.0, "decades of conditioning gained by residuals", against=0.0),
    design={"one": 1.0, "other": 0.0, "layers": 3}, seconds=0.3,
    setting="4 samples of 8 Gaussian tokens, width 64, at the start, mean of both kernels",
    why="a power of ten is in the statement; only the wrong sign refutes it",
    assumptions=("float64",),
    controls=[Control({"one": 0.0, "other": 1.0}, why=OTHER_SIDE)],
)  # fmt: skip

FLAT = 0.01
"""A plane whose risk varies by less (chance is log 2) shows the end of training only."""


@functools.lru_cache(maxsize=4)
def two_stages(
    plan: Plan, kernels: tuple[str, ...] = KERNELS, step: float = 1e-3
) -> tuple[Run, ...]:
    """Softmax first, then each kernel from there; all weights, by Adam, on digits read by rows."""
    values = {"model": "classifier", "problem": "digits", "num_samples": plan.samples}
    values |= {"test_samples": 50, "num_steps": plan.steps, "every": plan.steps}

    def stage(kernel: str, **start: Any) -> Run:
        values_of = values | {"kernel": kernel}
        made = fresh_setup(PAPER, values_of, seeds=seeds_of(plan.seeds), precision="float32")
        return train(made.replace(**start), step_size=step, probes=())

    middle = stage("softmax").params
    return tuple(stage(kernel, params0=middle) for kernel in kernels)


def _plane(setup: Setup, end: Any, seed: Array, line: Float[Array, " points"]) -> Array:
    key, blocks = jax.random.key(seed), ("W_Q", "W_K")
    directions = landscape.random_directions(key, setup.params0, blocks)
    return landscape.plane(setup.risk, end, directions, line, line, batch_size=32)


def plane_of(run: Run, row: int, points: int, span: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The risk around one run's end, on directions scaled by the weights both sides began from.

    Grid and heights, in double precision.
    """
    line = np.linspace(-span, span, points)
    end = trees.cast(jax.tree.map(lambda W: W[row], run.params), "float64")
    seed = np.uint32(run.seeds[row])
    heights = per_start(run.setup.rows([row]), _plane, end, seed, line)[0]
    return line, heights


@functools.lru_cache(maxsize=8)  # two claims look at the same planes
def plane_measures(plan: Plan, spans: tuple[float, float]) -> list[dict[str, np.ndarray]]:
    """Numbers of both kernels' planes, same directions, for every seed."""
    sides = []
    for run, span in zip(two_stages(plan), spans, strict=True):
        planes = (plane_of(run, row, plan.points, span) for row in range(len(run.seeds)))
        found = [landscape.measures(heights, (x[1] - x[0],) * 2) for x, heights in planes]
        sides.append({name: np.array([one[name] for one in found]) for name in found[0]})
    return sides


def compare_planes(design: Design, seeds: Seeds) -> list[Value]:
    """One number of softmax's plane minus that of the Gaussian's; flat planes abstain.

    So do runs that end above ``trained_to``, if the design has it.
    """
    plan = Plan(seeds=seeds, **design["sizes"])
    sides = plane_measures(plan, tuple(design["spans"]))
    met = np.min([side["highest"] - side["lowest"] for side in sides], axis=0) >= FLAT
    for run in two_stages(plan) if "trained_to" in design else ():
        met &= run.risk[:, -1] <= design["trained_to"]
    one, other = (effects.points(side[design["measure"]]) for side in sides)
    return effects.where(met.tolist(), effects.minus(one, other))


for _key, _what, _measure, _words in (
    ("more_minima", "has more local minima", "local_minima", "strict local minima"),
    ("rougher", "is less smooth", "roughness", "roughness"),
):
    PAPER.claim(
        f"landscape_{_key}",
        f"After two-stage training on digits, the landscape of softmax {_what} than that of the "
        "Gaussian, on a random plane of query and key weights.",
        compare_planes,
        above(0.0, f"{_words} of softmax's plane minus those of the Gaussian's", ties="abstain"),
        design={"measure": _measure, "spans": (1.0, 1.0),
                "sizes": {"steps": 10, "samples": 60, "points": 51}},
        why="the statement has no number; draws on which both sides are alike abstain",
        premise=f"the risk varies by more than {FLAT:g} on both planes",
        setting="60 images of 3 and 8 read by rows, two layers, 10 steps of Adam in each stage",
        assumptions=("float32 training, float64 planes",), source=SUMMARY, seconds=10.0,
        controls=[Control({"spans": (0.3, 10.0)}, why="softmax's plane is smaller and that of the "
                          "Gaussian ten times larger; replaces a plane of softmax a hundred times "
                          "smaller, on which the risk hardly varies, so that all draws abstained")],
    )  # fmt: skip

TRAINED = 0.02
"""Training risk below which a classifier counts as trained; chance is log 2 = 0.69."""
TRAINED_SIZES = {"steps": 300, "samples": 200, "points": 21}

for _key, _what, _measure, _words in (
    ("more_minima", "has more local minima", "local_minima", "strict local minima"),
    ("rougher", "is less smooth", "roughness", "roughness"),
):
    PAPER.claim(
        f"trained_landscape_{_key}",
        f"Around classifiers trained on digits in two stages, the landscape of softmax {_what} "
        "than that of the Gaussian, on a random plane of query and key weights.",
        compare_planes,
        above(0.0, f"{_words} of softmax's plane minus those of the Gaussian's", ties="abstain"),
        design={"measure": _measure, "spans": (1.0, 1.0), "sizes": TRAINED_SIZES,
                "trained_to": TRAINED},
        why="the statement has no number; draws on which both sides are alike abstain",
        premise=f"both training risks end below {TRAINED:g}, and the risk varies by more than "
        f"{FLAT:g} on both planes",
        setting="200 images of 3 and 8 read by rows, two layers, 300 steps of Adam in each stage",
        assumptions=("float32 training, float64 planes",), source=SUMMARY, seconds=45.0,
        controls=[Control({"spans": (0.3, 10.0)}, why="softmax's plane is smaller and that of the "
                          "Gaussian ten times larger")],
        waits="nobody has looked yet whether its premise is met: exploratory seeds first",
        same_runs=tuple(f"song2024.trained_landscape_{key}" for key in ("more_minima", "rougher")
                        if key != _key),
    )  # fmt: skip


def digits(plan: Plan, kernel: str, method: str, step: float) -> Run:
    """Train the classifier on digits with one kernel, looking at held-out data."""
    return trained(  # there are only 348 images of two digits
        PAPER, plan.seeds, ("test_accuracy", "test_risk"), step=step, precision="float32",
        fresh_data=True, model="classifier", problem="digits", kernel=kernel, method=method,
        num_steps=plan.steps, every=plan.steps // 5, num_samples=min(plan.samples, 200),
        test_samples=140,
    )  # fmt: skip


def digits_lead(design: Design, seeds: Seeds) -> list[Value]:
    """Held-out loss by which the Gaussian is ahead of softmax."""
    plan, steps = Plan(seeds=seeds, **design["sizes"]), design["steps"]
    gaussian, softmax = (
        digits(plan, kernel, design["method"], steps[kernel]).probes["test_risk"][:, -1]
        for kernel in ("gaussian", "softmax")
    )
    return list(effects.minus(*(effects.points(x.astype(float)) for x in (softmax, gaussian))))


PAPER.claim(
    "digits_equal_step",
    "On digits by rows the Gaussian reaches a lower held-out loss than softmax, at the same step.",
    digits_lead, above(0.0, "held-out loss of softmax minus that of the Gaussian"),
    design={"problem": "digits", "method": "adam",
            "sizes": {"steps": 100, "samples": 400, "tokens": 8},
            "steps": dict.fromkeys(KERNELS, 1e-3), "compare": "loss"},
    setting="400 samples of 8 tokens at most, 100 steps of adam, batches of 32, two layers of "
    "width 64",
    why="the statement has no number", assumptions=("float32",), seconds=3.0,
    controls=[Control({"problem": "digits", "method": "adam",
                       "steps": {"gaussian": 1e-7, "softmax": 1e-3}},
                      why="a Gaussian whose steps are too small to learn")],
)  # fmt: skip
