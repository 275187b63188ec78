r"""Does a dimension of samples x tokens^2 rescue softmax? Three cases beside that of `studies`.

The summaries of the paper mention $D\ge Nn^2$ as a remedy where $D\ge Nn$ is not enough. Targets in
reach are outputs of a softmax teacher with the same keys and values; targets out of reach mix the
values with weights that sum to 0.6, which no attention that is a softmax can do while values rest.
"""

from typing import Any

import numpy as np

from shoal.evidence.sequences import Interval
from shoal.lab import effects
from shoal.lab.claim import Control, Design, above
from shoal.lab.run import Run
from shoal.lab.setting import OURS, SUMMARY
from shoal.lab.study import trained
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import TINY

UNSEEN = "its effect and controls were not yet looked at on exploratory seeds"
WITHIN = {"labels": "query"}
BEYOND = {"labels": "mixture", "row_sum": 0.6}


def dimension_run(
    seeds: tuple[int, ...], *, count: int, dim: int, train: str, steps: int, step: float,
    targets: dict[str, Any],
) -> Run:  # fmt: skip
    """Train softmax attention on ``count`` samples of ``count`` tokens."""
    return trained(
        PAPER, seeds, step=step, fresh_data=True, init="identity", num_samples=count,
        num_tokens=count, dim=dim, key_dim=4, value_dim=count, out_dim=count, kernel="softmax",
        train=train, num_steps=steps, every=steps // 20, **targets,
    )  # fmt: skip


def last_shares(design: Design, seeds: tuple[int, ...], dim: int) -> np.ndarray:
    """Last over first risk of every seed at one dimension; a run that diverged is infinite."""
    names = ("count", "train", "steps", "step", "targets")
    run = dimension_run(seeds, dim=dim, **{name: design[name] for name in names})
    return np.nan_to_num(run.risk[:, -1] / run.risk[:, 0], nan=np.inf)


def gained(design: Design, seeds: tuple[int, ...]) -> list[Interval]:
    """Powers of ten by which the last share of the risk is lower at the large dimension."""
    small, large = (last_shares(design, seeds, design[side]) for side in ("small", "large"))
    return effects.loss_ratio(small, large, floor=TINY)


def left_over(design: Design, seeds: tuple[int, ...]) -> list[Interval]:
    """Log10 of the last over the first risk at the large dimension."""
    return effects.log10_known(last_shares(design, seeds, design["large"]), floor=TINY)


_THREE: dict[str, Any] = {
    "count": 3, "small": 9, "large": 27, "train": "W_Q", "steps": 20000, "step": 0.02,
    "targets": WITHIN,
}  # fmt: skip


def _claim(key: str, said: str, changes: dict[str, Any], **more: Any) -> None:
    design = _THREE | changes
    count, small, large = (design[name] for name in ("count", "small", "large"))
    words = f"{count} samples of {count} tokens and {count} outputs, dim {small} and {large}, "
    words += f"key width 4, {design['steps']} steps of {design['step']}"
    usual: dict[str, Any] = {"setting": words, "assumptions": ("float64",), "seconds": 1.5}
    PAPER.claim(key, said, design=design, **(usual | more))


_GAIN = "powers of ten by which the last share of the loss is lower at dim = samples x tokens^2"
for _key, _words, _changes, _source in (
    ("dimension_helps_softmax_at_four", "Where only W_Q moves and targets are in reach, with four "
     "samples of four tokens,", {"count": 4, "small": 16, "large": 64}, SUMMARY),
    ("dimension_helps_softmax_jointly", "Where W_Q, W_K and W_V move and targets are in reach, "
     "with three samples of three tokens,", {"train": "W_Q,W_K,W_V"}, OURS),
):  # fmt: skip
    _claim(
        _key, f"{_words} softmax ends lower at dim = samples x tokens^2 than at dim = samples x "
        "tokens.", _changes, measure=gained, test=above(0.0, _GAIN), source=_source,
        waits="" if "train" in _changes else UNSEEN,
        controls=[Control({"small": _changes.get("large", 27), "large": _changes.get("small", 9)},
                          why="the dimensions on the other side")],
    )  # fmt: skip
_claim(
    "dimension_cannot_leave_the_hull",
    "Where only W_Q moves and targets ask for attention rows that sum to 0.6, softmax keeps more "
    "than a thousandth of its first loss also at dim = samples x tokens^2.",
    {"targets": BEYOND}, measure=left_over,
    test=above(-3.0, "log10 of the last over the first risk", bound=True), source=OURS,
    why="a thousandth is in the statement; the hull's floor does not depend on the dimension",
    controls=[Control({"targets": BEYOND | {"row_sum": 1.0}}, why="targets inside the hull")],
)  # fmt: skip
