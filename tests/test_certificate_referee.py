"""The referee that is written from the theory's pages, on the pages' worked examples."""

import mpmath
import numpy as np
import pytest

import adversaries
import referee


def start(score, size, out, y):
    """One sample of two unit tokens, W_V = I (examples of docs/theory/wu2023.md)."""
    X, eye = referee.exact(np.eye(2)[None]), np.eye(2)
    weights = [referee.exact(W) for W in (size * eye, size * eye, eye, np.array([out, -out]))]
    return X, referee.exact([y]), weights, (mpmath.mpf(score), 1, 1), 1


def test_numbers_of_example_1():
    c = referee.wu_numbers(*start(1, 1.0, 0.01, 0.01), 8)
    digits = {"E": 0.01, "alpha": 1.414213562, "lambda_O": 0.09474852619, "D": 0.5728525103,
              "phi": 2.015159764}  # fmt: skip
    assert all(abs(c[k] / v - 1) < 1e-9 for k, v in digits.items())
    assert referee.theorem_a(*start(1, 1.0, 0.01, 0.01), 0.09534140636)
    assert not referee.theorem_a(*start(1, 1.0, 0.01, 0.01), 0.0953415)


@pytest.mark.parametrize(("score", "certified"), [(190, True), (194, False)])
def test_example_2_has_no_radii_from_a_score_of_194(score, certified):
    given = start(score, 1e-6, 0.001, -0.0125)
    assert referee.theorem_a(*given, 0.1) == certified
    assert referee.theorem_b(*given, 0.1)


@pytest.mark.parametrize("answer", [("holds", False), ("not applicable", True)])
def test_a_false_verdict_is_seen(answer):
    outcome, page = answer
    assert adversaries.false_answers((outcome, {}, {}, page))
    assert not adversaries.false_answers((outcome, {}, {}, not page))


@pytest.mark.parametrize(
    ("step", "drift", "true"),
    [(0.4, 0.1, True), (0.4, 1.5, False), (0.5, 0.1, False)],
)
def test_the_kernel_regime_of_two_weights(step, drift, true):
    """K = diag(1, 4): gamma 4 < 2, and q + gamma Delta = 0.6 + 0.4 Delta < 1."""
    J = referee.jacobian(lambda w: np.array([w[0], 2 * w[1]]), [referee.exact([0.3, 0.7])])
    assert referee.kernel_regime(J, 1, mpmath.mpf(step), mpmath.mpf(drift)) == true


QUICK = ("wu2023.theorem_a", "wu2023.theorem_b", "song2024.theorem_2", "song2024.kernel_regime")


@pytest.mark.parametrize(
    "theorem",
    [pytest.param(k, marks=[pytest.mark.slow] * (k not in QUICK)) for k in adversaries.REFEREED],
)
def test_verdicts_are_those_of_the_page(theorem):
    _, wrong = adversaries.attack(theorem, range(2000, 2003))
    assert wrong == []
