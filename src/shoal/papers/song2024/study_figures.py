"""Figures of `block_studies` and `depth_studies`.

Long runs are kept on disk, one file for each curve and ten seeds, so that a stop loses little.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.figures import Panel, band
from shoal.papers.song2024 import block_studies, depth_studies
from shoal.papers.song2024.block_studies import BLOCKS, SCALES
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import KERNELS

QUICK, FULL, AT_ONCE = 10, 50, 10
DEPTHS = (1, 2, 3)
SIDES = {"both": "residual", "none": "no residual"}


def _kept(name: str, about: list[Any], make: Callable[[], dict[str, Any]]) -> dict[str, np.ndarray]:
    from shoal.disk.cache import cached

    return cached([f"song2024.{name}", *about], make).arrays


def _parts(full: bool) -> list[tuple[int, ...]]:
    seeds = range(FULL if full else QUICK)
    return [tuple(seeds[k : k + AT_ONCE]) for k in range(0, len(seeds), AT_ONCE)]


def block_part(kernel: str, moving: str, seeds: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Steps, risks and floors of ten runs of 5000 steps."""

    def make() -> dict[str, Any]:
        run = block_studies.block_runs(seeds, kernel, moving, 5000)
        return {"step": run.step, "risk": run.risk, "floor": block_studies.floors(run)}

    return _kept("blocks", [kernel, moving, list(seeds)], make)


def _block_jobs(full: bool) -> list[Callable[[], Any]]:
    return [
        functools.partial(block_part, kernel, moving, seeds)
        for kernel in KERNELS
        for moving in BLOCKS.values()
        for seeds in _parts(full)
    ]


@PAPER.figure("blocks", "All weights together reach zero; values alone crawl, queries alone stop",
              jobs=lambda full: _block_jobs(full) if full else [])  # fmt: skip
def blocks(full: bool) -> tuple:
    """Risk along training by the blocks that move, and the floor of queries."""

    def panel(kernel: str) -> Panel:
        curves = []
        for label, moving in BLOCKS.items():
            parts = [block_part(kernel, moving, seeds) for seeds in _parts(full)]
            risk = np.concatenate([part["risk"] for part in parts])
            curves.append(band(label, parts[0]["step"], np.maximum(risk, 1e-32)))
            if moving == "W_Q":
                floor = np.concatenate([part["floor"] for part in parts])
                level = np.repeat(np.maximum(floor, 1e-32)[:, None], len(parts[0]["step"]), 1)
                curves.append(band("floor of W_Q", parts[0]["step"], level))
        return Panel(kernel, "step", "risk", tuple(curves), log_y=True)

    return (
        f"{block_studies.LAYER}; 5000 steps at each run's default step, {len(_parts(full)) * 10} "
        "draws (median, quartiles). Values alone can reach zero too, along an exact recursion, but "
        "the smallest singular value makes it slow. The floor: the lowest risk of any attention "
        "weights with the first values. Some Gaussian runs stall above zero. With --full 50 draws, "
        "a quarter of an hour of one core.",
        *map(panel, KERNELS),
    )


@PAPER.figure("peaked", "Peaked scores stop W_Q, the Gaussian's first")
def peaked(full: bool) -> tuple:
    """Gradient of W_Q by the scale of the scores."""
    seeds, x = 200 if full else 20, np.array(SCALES)
    curves = []
    for kernel in KERNELS:
        found = [block_studies.query_gradients(seeds, kernel, scale) for scale in SCALES]
        curves.append(band(kernel, x, np.maximum(np.transpose(found), 1e-30)))
    return (
        f"{block_studies.LAYER}, untrained; {seeds} draws (median, quartiles). Softmax below 1e-13 "
        "is rounding; 1e-30 stands for less. Scores grow with the square of the scale. Peaked "
        "softmax picks one key; a Gaussian far from all keys sees none.",
        Panel("start", "scale of W_Q, W_K", "gradient of W_Q over the residual", tuple(curves),
              log_x=True, log_y=True),
    )  # fmt: skip


def stack_part(
    kernel: str, residual: str, num_layers: int, seeds: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Share of the first risk that is left, and the first independence of features."""

    def make() -> dict[str, Any]:
        run = depth_studies.stacked_runs(seeds, num_layers, kernel, residual, depth_studies.STEPS)
        lambda_B = run.probes["lambda_B"][:, 0]
        return {"share": run.risk[:, -1] / run.risk[:, 0], "lambda_B": lambda_B}

    return _kept("stack", [kernel, residual, num_layers, list(seeds)], make)


def _stack_jobs(full: bool) -> list[Callable[[], Any]]:
    return [
        functools.partial(stack_part, kernel, residual, num_layers, seeds)
        for kernel in KERNELS
        for residual in SIDES
        for num_layers in DEPTHS
        for seeds in _parts(full)
    ]


@PAPER.figure("stack", "Three layers train only with residual connections",
              jobs=lambda full: _stack_jobs(full) if full else [])  # fmt: skip
def stack(full: bool) -> tuple:
    """Risk after training and independence of the last features, by layers, kernel, residuals."""
    x = np.array(DEPTHS)

    def panel(title: str, y_label: str, name: str) -> Panel:
        curves = []
        for kernel in KERNELS:
            for residual, words in SIDES.items():
                found = [
                    np.concatenate([stack_part(kernel, residual, k, s)[name] for s in _parts(full)])
                    for k in DEPTHS
                ]
                values = np.maximum(np.transpose(found), 1e-32)
                curves.append(band(f"{kernel}, {words}", x, values))
        return Panel(title, "layers", y_label, tuple(curves), log_y=True)

    return (
        "4 samples of 4 tokens in dimension 24, value width 24, one head a layer, noise as "
        f"targets; {depth_studies.STEPS} steps of half of 1 / lambda_max of each start, "
        f"{len(_parts(full)) * 10} draws (median, quartiles). One layer is the layer of the "
        "theory. With --full 50 draws, a quarter of an hour of one core.",
        panel("after training", "risk over its start", "share"),
        panel("last features at the start", "sigma_min(B)", "lambda_B"),
    )
