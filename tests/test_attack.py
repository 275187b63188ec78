"""A small seeded part of the attack on the bounds; ``python tests/attack.py`` runs all of it."""

import numpy as np
import pytest

from attack import CASES, MODELS, RULES, ratios

QUICK = (
    "dot", "exp", "log", "sqrt", "softmax, two", "layer norm", "embedding", "tanh network",
    "sums into places", "cumulative sum", "convolution, images", "power of two",
)  # fmt: skip
BITES = ("dot", "exp", "log", "sqrt", "softmax, two", "layer norm")


@pytest.mark.parametrize("name", QUICK)
def test_ascent_finds_nothing_above_the_bounds(name):
    plain, anchored, _ = ratios(CASES[name], starts=3, steps=30)
    assert max(plain.max(), anchored.max()) <= 1 + 1e-9
    assert (anchored >= plain * (1 - 1e-9)).all()  # anchoring only sharpens
    if name in BITES:
        assert plain[:, 0].max() > 0.95


@pytest.mark.slow
def test_the_whole_attack():
    assert len(MODELS) == 12
    total, worst = 0, 0.0
    for name in (*RULES, *MODELS):
        plain, anchored, count = ratios(CASES[name], starts=10, steps=60)
        total, worst = total + count, max(worst, plain.max(), anchored.max())
        assert np.isfinite(plain).all()
    assert total >= 100_000
    assert worst <= 1 + 1e-9
