"""A small seeded part of the attack on the bounds; ``python tests/attack.py`` runs all of it."""

import numpy as np
import pytest

from attack import CASES, MODELS, RULES, ratios, translated
from shoal.verified import jets
from shoal.verified.slopes import SLOPES

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
    if name == "softmax, two":
        assert plain[:, 2].max() > 0.95


def test_every_rule_is_among_those_attacked():
    operations = [op for case in RULES.values() for op in translated(case)[0].operations]
    assert {op.kind for op in operations} == set(jets.RULES)
    assert {op.options["name"] for op in operations if op.kind == "unary"} == set(SLOPES)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("dot", "dot"), ("mul", "product"), ("softmax", "softmax, two"), ("normalise", "layer norm")],
)
def test_ascent_finds_a_rule_that_is_weaker_by_a_tenth(kind, name, monkeypatch):
    right = jets.RULES[kind]

    def wrong(*given):
        found = right(*given)
        return None if found is None else jets._scaled(found, 0.9)

    monkeypatch.setitem(jets.RULES, kind, wrong)
    plain, _, _ = ratios(CASES[name], starts=3, steps=30)
    assert plain.max() > 1.05


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
