"""From the jets of single samples to bounds of all outputs (docs/theory/prove.md, 3.4)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shoal.verified.balls import up
from shoal.verified.jets import Jet, length
from shoal.verified.spectra import perron


class Constants(NamedTuple):
    """Bounds of the stacked outputs on balls, one number for each radius."""

    beta: np.ndarray
    L: np.ndarray
    K: np.ndarray | None


def constants(jets: list[Jet]) -> Constants:
    r"""$\beta$, L and K of all samples' outputs together."""
    first = np.stack([jet.first for jet in jets])
    with np.errstate(all="ignore"):
        beta = up(np.sqrt(perron(up(np.einsum("igb,igc->gbc", first, first), len(jets)))))
        L = _together([jet.second for jet in jets], perron)
        thirds = [jet.third for jet in jets]
        K = None if any(d is None for d in thirds) else _together(thirds, _third)  # type: ignore[arg-type]
    return Constants(beta, L, K)


def _third(d3: np.ndarray) -> np.ndarray:
    return length(perron(d3))


def _together(parts: list[np.ndarray], largest: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    joint = largest(length(np.stack(parts, axis=-1)))
    apart = length(np.stack([largest(part) for part in parts], axis=-1))
    return np.minimum(joint, apart)
