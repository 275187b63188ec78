import jax.numpy as jnp
import numpy as np
import pytest

from shoal.certificates import (
    Certificate,
    Equality,
    Inequality,
    Verdict,
    read_conclusion,
    read_hypothesis,
    readings,
    share_lost,
    verdict,
)

FINE = Inequality(np.float64(1.0), np.float64(2.0))


def judge(hypothesis=FINE, conclusion=FINE):
    return verdict(Certificate({"h": hypothesis}, {"c": conclusion}, {}, 0.0, 0.0))


@pytest.mark.parametrize(
    ("lhs", "rhs", "expected"),
    [
        (1.0, 2.0, Verdict.HOLDS),
        (2.0, 1.0, Verdict.NOT_APPLICABLE),
        (1.0, 1.0, Verdict.UNRESOLVED),
        (1.0, 1.0 + 1e-10, Verdict.UNRESOLVED),
        (1.0, 1.0 + 1e-8, Verdict.HOLDS),
        (1.0, np.inf, Verdict.NOT_APPLICABLE),
        (np.inf, np.inf, Verdict.NOT_APPLICABLE),
        (np.nan, 1.0, Verdict.NOT_APPLICABLE),
        (1.0, np.nan, Verdict.NOT_APPLICABLE),
    ],
)
def test_a_hypothesis_must_hold_by_more_than_rounding(lhs, rhs, expected):
    assert judge(hypothesis=Inequality(lhs, rhs)) == expected


@pytest.mark.parametrize(
    ("lhs", "rhs", "resolution", "expected"),
    [
        (1.0, 1.0, 0.0, Verdict.HOLDS),
        (1.0 + 1e-10, 1.0, 0.0, Verdict.UNRESOLVED),
        (1.001, 1.0, 0.0, Verdict.VIOLATED),
        (np.nan, 1.0, 0.0, Verdict.VIOLATED),
        (np.inf, 1.0, 0.0, Verdict.VIOLATED),
        (1.0, np.inf, 0.0, Verdict.UNRESOLVED),
        (1e-30, 1e-40, 1e-29, Verdict.UNRESOLVED),
        (1e-28, 1e-40, 1e-29, Verdict.VIOLATED),
    ],
)
def test_a_conclusion_may_be_tight_but_not_broken(lhs, rhs, resolution, expected):
    assert judge(conclusion=Inequality(lhs, rhs, resolution)) == expected


def test_one_bad_step_among_many_is_violated_and_named():
    lhs = np.ones(100)
    lhs[37] = 3.0
    reading = read_conclusion("risk", Inequality(lhs, 2 * np.ones(100)))
    assert (reading.holds, reading.at, reading.lhs) == (False, 37, 3.0)
    assert reading.margin == pytest.approx(-1 / 3)


def test_a_failed_hypothesis_outranks_everything():
    assert judge(Inequality(2.0, 1.0), Inequality(2.0, 1.0)) == Verdict.NOT_APPLICABLE


def test_a_certificate_without_conclusions_never_holds():
    assert verdict(Certificate({"h": FINE}, {}, {}, 0.0, 0.0)) == Verdict.UNRESOLVED


def test_the_margin_is_the_relative_slack():
    assert read_hypothesis("h", Inequality(1.0, 4.0)).margin == 0.75
    assert read_hypothesis("h", Inequality(4.0, 1.0)).margin == -0.75
    assert read_hypothesis("h", Inequality(0.0, 0.0)).holds is None


def test_readings_keep_the_order_of_the_theorem():
    certificate = Certificate({"z": FINE, "a": FINE}, {"m": FINE, "b": FINE}, {}, 0.0, 0.0)
    hypotheses, conclusions = readings(certificate)
    assert [h.name for h in hypotheses] == ["z", "a"]
    assert [c.name for c in conclusions] == ["m", "b"]


@pytest.mark.parametrize(
    ("lhs", "rhs", "tolerance", "expected"),
    [
        (1.0, 1.1, 0.2, Verdict.HOLDS),
        (1.1, 1.0, 0.2, Verdict.HOLDS),
        (1.0, 1.5, 0.2, Verdict.VIOLATED),
        (np.nan, 1.0, 0.2, Verdict.VIOLATED),
        (1.0, np.inf, 0.2, Verdict.UNRESOLVED),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 2.0], 0.1, Verdict.VIOLATED),
    ],
)
def test_an_equality_holds_up_to_its_tolerance_on_both_sides(lhs, rhs, tolerance, expected):
    assert judge(conclusion=Equality(np.asarray(lhs), np.asarray(rhs), tolerance)) == expected


def test_an_equality_is_read_where_it_is_worst():
    curve = Equality(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.3, 3.1]), np.full(3, 0.5))
    reading = read_conclusion("curve", curve)
    assert (reading.at, reading.holds) == (1, True)
    assert reading.margin == pytest.approx(0.4)


def test_the_share_lost_per_step_is_that_of_a_geometric_curve():
    risk = 5 * 0.9 ** jnp.arange(11.0)
    assert float(share_lost(risk, 10)) == pytest.approx(0.1)
