"""Claims about the layer of the theory, stacked one to three times (`stack`).

The paper's theorems are about one layer; what depth does is an open question of its summaries, and
all settings are ours. Every seed draws its own tokens, targets and weights.
"""

from typing import Any

from shoal.evidence.sequences import Interval
from shoal.lab import effects
from shoal.lab.claim import Control, Design, above
from shoal.lab.run import Run
from shoal.lab.setting import OURS
from shoal.lab.study import Seeds, trained
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import OTHER_SIDE, TINY

STEPS = 1000


def stacked_runs(seeds: Seeds, num_layers: int, kernel: str, residual: str, steps: int) -> Run:
    """Train W_Q, W_K, W_V of all layers on targets that are noise, each seed at its own step."""
    return trained(
        PAPER, seeds, ("lambda_B",), fresh_data=True, model="stack", num_layers=num_layers,
        kernel=kernel, residual=residual, value_dim=24, num_steps=steps,
        every=max(1, steps // 10),
    )  # fmt: skip


def deeper(design: Design, seeds: tuple[int, ...]) -> list[Interval]:
    """Decades of the loss by which one stack falls further than another (the lesser kernel)."""
    least: list[Interval] | None = None
    for kernel in design["kernels"]:
        left = []
        for side in ("other", "favoured"):
            risk = stacked_runs(seeds, kernel=kernel, **design[side]).risk
            left.append(risk[:, -1] / risk[:, 0])
        gain = effects.loss_ratio(left[0], left[1], floor=TINY)
        least = gain if least is None else effects.smaller(least, gain)
    return least or []


def _side(num_layers: int, residual: str) -> dict[str, Any]:
    return {"num_layers": num_layers, "residual": residual, "steps": STEPS}


def _claim(key: str, said: str, effect: str, design: Design, **more: Any) -> None:
    favoured, other = design["favoured"], design["other"]
    swapped = Control({"favoured": other, "other": favoured}, why=OTHER_SIDE)
    still = Control({"other": {"steps": 1}}, "positive", "the other side does not train")
    PAPER.claim(
        key, said, deeper, above(0.0, effect), design=design, source=OURS, seconds=3.0,
        setting="4 samples of 4 tokens in dimension 24, value width 24, one head a layer, one "
        f"output, targets that are noise, {STEPS} steps of half of 1 / lambda_max of each start",
        assumptions=("float64",), controls=[swapped, still], **more,
    )  # fmt: skip


_claim(
    "residual_trains_stacked_layers",
    "Three stacked layers of softmax attention train further with residual connections than "
    "without.",
    "decades of the loss gained by residual connections",
    {"kernels": ("softmax",), "favoured": _side(3, "both"), "other": _side(3, "none")},
)
_claim(
    "residual_trains_stacked_gaussian_layers",
    "Three stacked layers of Gaussian attention train further with residual connections than "
    "without.",
    "decades of the loss gained by residual connections",
    {"kernels": ("gaussian",), "favoured": _side(3, "both"), "other": _side(3, "none")},
    waits="three Gaussian layers without residual connections were not looked at yet",
)
_claim(
    "depth_costs_softmax",
    "With residual connections, one layer of softmax attention trains further than three of them, "
    "each at its own default step.",
    "decades of the loss by which one layer falls further than three",
    {"kernels": ("softmax",), "favoured": _side(1, "both"), "other": _side(3, "both")},
)
