"""Qin2025: rates from singular values, equal tokens, and theorem D as an inequality."""

import numpy as np
import pytest

from shoal.papers.qin2025 import PAPER, rates
from shoal.papers.qin2025.experiments import at_start

CLAIMS = {claim.key.removeprefix("qin2025."): claim for claim in PAPER.claims}


def points(a, b, *, count=4, seed=0):
    """Made points of one seed that follow a law."""
    rng = np.random.default_rng(seed)
    low, high = 10 ** rng.uniform(-1, 0, (1, count)), 10 ** rng.uniform(0, 1, (1, count))
    return {"rate": 10**a * (low / high) ** b, "low": low, "high": high}


def test_a_law_is_found_and_predicted_out_of_sample():
    groups = [points(-0.5, 1.5, seed=k) for k in range(3)]
    assert rates.fitted(groups, 0) == pytest.approx([-0.5, 1.5])
    assert rates.skill(groups, 0) == pytest.approx(1.0)


def test_a_group_with_another_step_is_not_predicted():
    """The claim's control, with a known answer: one group's rates are 30 times smaller."""
    groups = [points(-0.5 - 1.5 * (k == 1), 1.5, seed=k) for k in range(3)]
    assert rates.skill(groups, 0) < 0.5


def test_the_smallest_nonzero_value_of_equal_tokens_is_that_of_single_ones():
    """Six equal tokens attend to themselves: rows are those of one token, six times."""
    values = {"num_samples": 3, "token_correlation": 1.0, "scale_v": 0.1}
    six = at_start(rates.nonzero_values, (4,), num_tokens=6, **values)
    one = at_start(rates.nonzero_values, (4,), num_tokens=1, **values)
    for name in ("low", "high"):
        assert six[name] == pytest.approx(6**0.5 * one[name], rel=1e-9)


def test_theorem_d_is_an_inequality_that_a_long_step_breaks():
    claim = CLAIMS["never_slower_than_theorem_d"]
    (kept,) = claim.effects((3,))
    (broken,) = claim.effects((3,), claim.controls[0].changes)
    assert kept.value[0] > 0 > broken.value[1]
