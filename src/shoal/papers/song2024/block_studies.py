"""Claims about which weights to train, and about peaked scores.

The paper proves its theorems for one block or for all; that the choice decides how far training
gets is ours, as are all settings. Every seed draws its own tokens, targets and weights.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from shoal._typing import Array, Float
from shoal.evidence.sequences import Interval
from shoal.lab import effects
from shoal.lab.claim import Control, Design, above, below
from shoal.lab.engine import per_start
from shoal.lab.run import Run
from shoal.lab.setup import Setup
from shoal.lab.study import Seeds, fresh_setup, seeds_of, trained
from shoal.linalg import norm_fro
from shoal.papers.song2024 import bounds, layer
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import KERNELS, OTHER_SIDE, TINY

BLOCKS = {"W_V": "W_V", "W_Q": "W_Q", "W_Q and W_K": "W_Q,W_K", "all three": "W_Q,W_K,W_V"}
SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
UNSEEN = 1e-10
"""Gradients of softmax below this are rounding: outputs are of size one."""

# --------------------------------------------------------------------------- which weights to train


def block_runs(seeds: Seeds, kernel: str, moving: str, steps: int) -> Run:
    """Train some blocks of the layer on targets that are noise, each seed at its own step."""
    return trained(
        PAPER, seeds, fresh_data=True, kernel=kernel, train=moving, num_steps=steps,
        every=max(1, steps // 20),
    )  # fmt: skip


def _floor(setup: Setup) -> Float[Array, ""]:
    return setup.setting.floor(setup)(setup.params0)


def floors(run: Run) -> np.ndarray:
    """Lowest risk that the moving blocks can reach: a lower bound, for every seed."""
    return np.maximum(per_start(run.setup, _floor), 0.0)


def further(design: Design, seeds: tuple[int, ...]) -> list[Interval]:
    """Decades by which one choice of blocks ends below another, for the kernel with less."""
    least: list[Interval] | None = None
    for kernel in KERNELS:
        ends = [
            block_runs(seeds, kernel, design[side]["train"], design[side]["num_steps"]).risk[:, -1]
            for side in ("other", "favoured")
        ]
        gain = effects.loss_ratio(ends[0], ends[1], floor=TINY)
        least = gain if least is None else effects.smaller(least, gain)
    return least or []


def excess_left(design: Design, seeds: tuple[int, ...]) -> list[float]:
    """Share of the excess over the floor of queries that is left, for the kernel with more."""
    shares = []
    for kernel in KERNELS:
        run = block_runs(seeds, kernel, "W_Q", design["num_steps"])
        floor = floors(run)
        shares.append((run.risk[:, -1] - floor) / (run.risk[:, 0] - floor))
    return np.max(shares, axis=0).tolist()


def _claim(key: str, said: str, measure: Any, test: Any, design: Design, **more: Any) -> None:
    PAPER.claim(key, said, measure, test, design=design, assumptions=("float64",), **more)


LAYER = "4 samples of 4 tokens in dimension 24, one head, one output, targets that are noise"
_ALL, _VALUES = ({"train": BLOCKS[k], "num_steps": 2000} for k in ("all three", "W_V"))
_claim(
    "all_blocks_beat_values_alone",
    "After 2000 steps, each at its own default step, training W_Q, W_K and W_V together ends lower "
    "than training W_V alone, for both kernels.",
    further, above(0.0, "decades by which all blocks end below W_V alone, the lesser kernel"),
    {"favoured": _ALL, "other": _VALUES}, setting=LAYER, seconds=2.5,
    controls=[Control({"favoured": _VALUES, "other": _ALL}, why=OTHER_SIDE),
              Control({"other": {"num_steps": 1}}, "positive", "the other side does not train")],
)  # fmt: skip
_claim(
    "queries_alone_reach_their_floor",
    "On targets that are noise, training W_Q alone for 5000 steps takes away more than half of "
    "what lies above the lowest risk that any attention weights reach with the values as they are, "
    "for both kernels.",
    excess_left, below(0.5, "share left of the risk above the floor, the worse kernel", bound=True),
    {"num_steps": 5000}, setting=LAYER, seconds=1.5, why="a half is in the statement",
    controls=[Control({"num_steps": 2}, why="two steps are not enough")],
)  # fmt: skip

# -------------------------------------------------------------------------------- peaked attention


def _query_gradient(setup: Setup) -> Float[Array, ""]:
    r"""$\lVert\nabla_{W_Q}F\rVert_F$ over the norm of the residual, in closed form."""
    J = layer.query_jacobians(setup.params0, setup.inputs, setup.setting.form)
    r = bounds.residual(setup)
    rows = jnp.einsum("Nnpk,Nnp->Nnk", J, r)
    return norm_fro(jnp.einsum("NnD,Nnk->Dk", setup.inputs, rows)) / norm_fro(r)


def query_gradients(seeds: Seeds, kernel: str, scale: float) -> np.ndarray:
    """Gradient of W_Q at the start over the residual, by the scale of W_Q and W_K."""
    values = {"kernel": kernel, "score_scale": scale, "train": "W_Q"}
    return per_start(fresh_setup(PAPER, values, seeds=seeds_of(seeds)), _query_gradient)


def gradient_gap(design: Design, seeds: tuple[int, ...]) -> list[Interval]:
    """Orders by which the gradient of W_Q is larger on one side than on the other."""
    one, other = (query_gradients(seeds, **design[side]) for side in ("one", "other"))
    return effects.log10_ratio(one, other, floor=UNSEEN)


_START = f"{LAYER}, untrained"
_claim(
    "peaked_scores_stop_queries",
    "Peaked scores leave the query weights without a gradient: with softmax and scores of scale "
    "30 it is more than 1000 times smaller than at scale 1.",
    gradient_gap,
    above(3.0, "orders by which the gradient of W_Q is smaller at scale 30", against=0.0),
    {"one": {"kernel": "softmax", "scale": 1.0}, "other": {"kernel": "softmax", "scale": 30.0}},
    setting=_START, seconds=0.2, why="the number in the statement; only the wrong sign refutes it",
    controls=[Control({"one": {"scale": 0.001}, "other": {"scale": 1.0}},
                      why="scores near zero: the gradient grows with the scale of the keys"),
              Control({"other": {"kernel": "gaussian", "scale": 1000.0}}, "positive",
                      "all Gaussian weights underflow to zero, so that nothing is left")],
)  # fmt: skip
_claim(
    "gaussian_gradients_vanish_sooner",
    "At scores of scale 10 the Gaussian's gradient of W_Q is more than 1000 times smaller than "
    "softmax's, relative to the residual.",
    gradient_gap,
    above(3.0, "orders by which the Gaussian's gradient of W_Q is smaller", against=0.0),
    {"one": {"kernel": "softmax", "scale": 10.0}, "other": {"kernel": "gaussian", "scale": 10.0}},
    setting=_START, seconds=0.2, why="the number in the statement; only the wrong sign refutes it",
    controls=[Control({"one": {"scale": 0.1}, "other": {"scale": 0.1}},
                      why="with small scores the Gaussian's gradient is the larger one")],
    differs="Says nothing against the paper's theorem 3, which is about a start with a gradient: "
    "where it does not vanish the Gaussian may well be the better kernel.",
)  # fmt: skip
