import numpy as np
import pytest

import toy_paper
from shoal.errors import InputError
from shoal.lab import engine
from shoal.lab.setup import paper_setup
from shoal.lab.study import decades, tuned_step
from shoal.tuning import best_step


def test_the_best_power_of_two_is_found_and_bracketed():
    found = best_step(lambda s: (np.log2(s) - 3.2) ** 2, 1.0)
    assert found.step_size == 8.0
    assert found.bracketed


def test_divergence_bounds_the_search_from_above():
    found = best_step(lambda s: np.inf if s > 1.5 else -s, 1.0)
    assert found.step_size == 1.0
    assert found.bracketed


def test_a_minimum_below_the_grid_is_followed():
    assert best_step(lambda s: (np.log2(s) + 5) ** 2, 1.0, budget=12).step_size == 2.0**-5


def test_the_budget_is_kept_and_an_open_bracket_admitted():
    calls = []
    found = best_step(lambda s: calls.append(s) or -s, 1.0, budget=7)
    assert len(calls) == 7
    assert not found.bracketed
    with pytest.raises(InputError, match="at least 5"):
        best_step(lambda s: s, 1.0, budget=3)


def test_if_everything_diverges_nothing_is_bracketed():
    assert not best_step(lambda s: np.inf, 1.0).bracketed


def test_decades_count_powers_of_ten():
    risk = np.array([[1.0, 0.1, 0.01], [1.0, 1.0, 1.0], [1.0, 2.0, np.nan]])
    assert decades(risk) == pytest.approx([1.0, 0.0, -np.inf])


def test_nothing_is_gained_below_the_floor():
    assert decades(np.array([[1.0, 1e-20]]), floor=1e-2) == pytest.approx([1.0])


def test_a_tuned_step_beats_its_neighbours():
    setup = paper_setup(toy_paper.PAPER, {"num_steps": 20}, seeds=(0, 1))

    def score(step):
        return float(np.mean(decades(engine.trajectories(setup.with_steps(step)).risk)))

    found = tuned_step(setup)
    assert np.log2(found / engine.default_steps(setup).min()) % 1 == 0
    assert score(found) > max(score(found / 2), score(2 * found))
