"""The worked examples of docs/theory/prove.md, section 6: to 8 digits, always on the safe side.

Expected numbers were computed at 50 digits for the theory page, not by this code.
"""

import inspect

import numpy as np
import pytest

from questions import attention, kinked, network, product, ridge, trap
from shoal.verified import balls, fate, jets, through
from shoal.verified.constants import constants
from shoal.verified.decide import converges, decide, stuck
from shoal.verified.facts import facts, gradient, hessian, on_balls, second, step_range
from shoal.verified.fate import Range
from shoal.verified.spectra import lambda_max, lambda_min
from shoal.verified.through import stuck_through

CLOSE = 6e-8  # the page prints 8 digits; `test_verified.py` compares at 300 bits


def is_above(found, exact, rtol=CLOSE):
    """An upper bound: not below the exact number (as printed), and not far above."""
    assert exact * (1 - rtol) <= found <= exact * (1 + rtol)


is_near = is_above


def p1(question, radius, *, squares=None, order=2):
    """P1 on one ball, with beta = |J_0| + L radius as on the page."""
    found = facts(question)
    bound = on_balls(question, found, np.array([radius]), order=order, squares=squares)
    assert bound.reasons == [""]
    L = float(bound.L[0])
    beta = float(balls.up(found.jacobian_norm + balls.up(L * radius)))
    h = step_range(question)
    return found, bound, fate.contraction(found.residual_norm, found.sigma, beta, L, h, radius)


def by_jets(question, radius):
    """beta, L and K as plain jets give them, before anything sharper is tried."""
    found = facts(question)
    parts = [
        jets.bounds(made, centre.values, np.array([radius]), question.ratios, order=3).jet
        for made, centre in zip(question.programs, found.centres, strict=True)
    ]
    return [float(x[0]) for x in constants(parts)]


def test_e1_plain():
    found, bound, result = p1(product(), 0.075, order=3)
    is_near(found.residual_norm, 0.04)
    is_near(found.sigma, 1.4422205)
    is_near(found.jacobian_norm, 1.4422205)
    assert found.sigma <= found.jacobian_norm
    is_above(bound.L[0], 1.0)
    assert bound.K[0] < 1e-100
    is_near(result.alpha, 1.3672205)
    is_near(result.c, 0.41451048)
    is_near(result.reach, 0.043670353, 2e-8)
    is_above(result.factor, 0.61257945)
    is_above(result.later_factor, 0.15097904, 3e-8)
    is_near(result.largest_residual, 0.043576162, 2e-8)
    assert result.holds


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("free - high * lip * r / 2", "free"),
        ("1 - high * b * b / 2", "1 - high * b * b / 4"),
        ("s * rho - lip * rho * rho / 2", "s * rho"),
        ("1 - c * low * alpha * alpha", "1 - low * alpha * alpha"),
        ("alpha = s - lip * rho", "alpha = s"),
    ],
)
def test_p1_with_a_term_left_out_fails_e1(old, new, monkeypatch):
    source = inspect.getsource(fate.contraction)
    assert source.count(old) == 1
    changed = dict(vars(fate))
    exec(source.replace(old, new), changed)
    monkeypatch.setattr(fate, "contraction", changed["contraction"])
    with pytest.raises(AssertionError):
        test_e1_plain()


def test_e1_on_a_smaller_ball_is_not_proved():
    _, _, result = p1(product(), 0.05)
    is_near(result.reach, 0.030705463, 2e-8)
    assert not result.holds


def test_e1_with_a_step_ratio():
    found, bound, result = p1(product(0.1, (4.0, 1.0)), 0.05)
    is_near(found.sigma, 2.0)
    is_above(bound.L[0], 2.0)
    is_near(result.c, 0.7755)
    is_near(result.reach, 0.07561125)
    is_above(result.factor, 0.7200445)
    assert result.holds


def test_e1_with_too_long_a_step():
    found = decide(product(1.2))
    assert found.verdict == "undecided"
    assert "1.248" in found.reason  # h |J|^2 = 2.496


def test_e1_with_errors():
    sigma = 1.4422205101855958
    beta, h = sigma + 0.075, Range(0.5, 0.5)
    found = fate.contraction_with_errors(0.04, sigma, beta, 1.0, h, 0.075, 0.042, 1e-15)
    assert found.holds
    is_near(found.c, 0.41401048)
    is_near(found.steps, 9.459e11, 1e-4)
    is_above(found.floor, 3.9209404e-15)


E2 = [
    ((1.34, -0.03), 0.039683668, (0.056231495, 0.90853094), (0.064131822, 0.87989560)),
    ((1.36, -0.03), 0.059683473, (0.055120579, None), (0.063215171, 0.88161228)),
    ((1.40, -0.03), 0.099683317, (0.052898734, None), (0.061381858, None)),
]


def e2():
    return network((1.34, -0.03))


@pytest.mark.parametrize(
    ("make", "radius", "expected"),
    [
        (e2, 0.01, (3.2787260, 4.3554174, 13.617127)),
        (e2, 0.1, (3.5386309, 4.5349653, 14.437231)),
        (attention, 0.07, (2.2668316, 3.1488619, 9.0286537)),
    ],
)
def test_e2_and_e6_by_plain_jets(make, radius, expected):
    for found, exact in zip(by_jets(make(), radius), expected, strict=True):
        is_above(found, exact)


@pytest.mark.parametrize(
    ("make", "expected"),
    [(e2, (1.3003169, -0.030215291)), (attention, (1.1824255, 1.3208213)), (kinked, (1.0,))],
)
def test_outputs_of_e2_e5_and_e6(make, expected):
    found = [centre.output.value for centre in facts(make()).centres]
    assert np.concatenate([ball.mid for ball in found]) == pytest.approx(expected, rel=CLOSE)
    assert max(ball.rad.max() for ball in found) < 1e-12


@pytest.mark.parametrize(("y", "residual", "plain", "anchored"), E2)
def test_e2(y, residual, plain, anchored):
    question = network(y)
    found, bound, result = p1(question, 0.1, order=3)
    is_above(found.residual_norm, residual, 2e-8)
    is_near(found.sigma, 1.4515942, 2e-8)
    is_above(found.jacobian_norm, 1.8332331)
    is_above(bound.L[0], 4.5349653)
    is_above(bound.K[0], 14.437231)
    curve = second(question, found)
    is_above(curve.squares, 2.1613727)
    _, sharp, better = p1(question, 0.1, order=3, squares=curve.squares)
    is_above(sharp.L[0], 3.6050957)
    for seen, (reach, factor) in ((result, plain), (better, anchored)):
        is_near(seen.reach, reach, 2e-8)
        assert seen.holds == (factor is not None)
        if factor is not None:
            is_above(seen.factor, factor)
    is_near(better.largest_residual, 0.063060396, 2e-8)


def test_e2_at_a_smaller_radius():
    _, bound, _ = p1(network((1.34, -0.03)), 0.01, order=3)
    is_above(bound.L[0], 4.3554174)
    is_above(bound.K[0], 13.617127)


def test_e3_is_stuck():
    question = trap()
    found = facts(question)
    bound = on_balls(question, found, np.array([1e-5]), order=3)
    curve = second(question, found)
    is_above(found.residual_norm, 0.31684455, 2e-8)
    assert 4.3714241e-9 <= found.jacobian_norm <= 4.3714241e-9 + 1e-12
    assert 1.3850619e-9 * (1 - 1e-7) <= balls.norm(gradient(question, found)) <= 1.3851e-9
    matrix = hessian(question, found, curve)
    low, high = lambda_min(matrix), lambda_max(matrix)
    assert 0.015331219 - 1e-9 <= low <= 0.0153312194 <= high + 1e-12 <= 0.01533123
    is_above(bound.L[0], 5.6633977, 2e-8)
    is_above(bound.K[0], 32.901368, 2e-8)
    result = stuck(question, found, bound, curve)
    assert (result.verdict, result.theorem) == ("stuck", "P2")
    is_above(result.constants["M"], 10.425581, 1e-7)
    is_near(result.constants["m"], 0.015226964, 5e-8)
    is_above(result.constants["Lambda"], 0.015435475, 5e-8)
    is_above(result.constants["distance"], 9.0345353e-8, 1e-5)
    is_above(result.rate[0], 0.99238652)
    limit = 0.0501952333940021189
    assert result.risk.low <= limit <= result.risk.high
    assert result.risk.high - result.risk.low < 1e-12


def test_e3_cannot_converge():
    found = decide(trap(), minimum=False)
    assert found.verdict == "undecided"


def test_e4_converges():
    found, _, result = p1(trap(-2.833), 1e-3)
    is_above(found.residual_norm, 6.3568932e-6, 2e-8)
    is_near(found.sigma, 0.094395419, 2e-8)
    is_near(result.alpha, 0.088732022, 2e-8)
    is_near(result.c, 0.99748806, 2e-8)
    is_near(result.reach, 9.1333718e-5, 2e-8)
    is_above(result.factor, 0.99607320, 2e-8)
    assert result.holds


def test_e5_kink():
    question = kinked()
    found, bound, result = p1(question, 0.1, order=3)
    is_near(found.sigma, 2.1505813, 2e-8)
    is_above(bound.L[0], np.sqrt(2))
    assert bound.K[0] < 1e-100
    is_near(result.c, 0.46760131, 2e-8)
    is_near(result.reach, 0.097255023, 2e-8)
    is_above(result.factor, 0.62248454)
    near = on_balls(question, found, np.array([0.17, 0.1767, 0.1768, 0.18]))
    assert [bool(reason) for reason in near.reasons] == [False, False, True, True]
    assert "kink" in near.reasons[3]


def test_e6_attention():
    question = attention()
    found, bound, result = p1(question, 0.07, order=3)
    is_above(found.residual_norm, 0.013208832, 2e-8)
    is_near(found.sigma, 0.31179999, 2e-8)
    is_above(found.jacobian_norm, 1.1805943, 3e-8)
    is_above(bound.L[0], 3.1488619, 2e-8)
    is_above(bound.K[0], 9.0286537, 2e-8)
    is_near(result.reach, 0.012697030, 3e-8)
    assert not result.holds
    is_above(found.residual_norm / result.largest_residual, 1.0402158, 5e-8)
    curve = second(question, found)
    is_above(curve.squares, 0.68555203, 2e-8)
    _, sharp, better = p1(question, 0.07, order=3, squares=curve.squares)
    is_above(sharp.L[0], 1.3175578, 2e-8)
    is_near(better.reach, 0.017075289, 3e-8)
    is_above(better.factor, 0.99557359)
    assert better.holds


def test_e7_theorem():
    found = fate.valley(0.032, Range(2.7443582, 3.6200153), Range(1.1161904, 1.2161904), 1.0, 0.2,
                        0.05, Range(0.1448, 0.1448))  # fmt: skip
    assert found.holds
    is_above(found.Lambda, 5.6065650, 3e-8)
    is_near(found.kappa, 0.43934350, 4e-8)
    is_above(found.needed, 0.011660285, 5e-8)
    is_near(found.reach, 0.024519550, 5e-8)
    is_above(found.factor, 0.39912857, 4e-8)
    is_near(found.risk.low, 0.14461344, 4e-8)


def test_e7_is_stuck_through_the_product():
    question = ridge()
    assert decide(question).verdict == "undecided"  # the Hessian is singular
    u = next(n for n, op in enumerate(question.programs[0].operations)
             if op.kind == "mul" and op.inputs == (0, 1))  # fmt: skip
    result = stuck_through(question, (u,), facts(question).risk)
    assert (result.verdict, result.theorem) == ("stuck", "P3")
    assert result.risk.low <= 0.14463671 <= result.risk.high <= 0.1448 * (1 + 1e-9)
    is_above(result.constants["gradient"], 0.032, 1e-6)


def test_e7_constants_of_the_program(monkeypatch):
    monkeypatch.setattr(through, "RADII", np.array([0.05]))
    question = ridge()
    u = next(n for n, op in enumerate(question.programs[0].operations)
             if op.kind == "mul" and op.inputs == (0, 1))  # fmt: skip
    result = stuck_through(question, (u,), facts(question).risk)
    found = result.constants
    exact = {"a_u": 1.1161904, "b_u": 1.2161904, "L_u": 1.0, "gradient": 0.032}
    for name, number in exact.items():
        is_near(found[name], number)
    # the page has the exact ends of G'' = 1 + 6 u^2 on the ball, the program a bound of G'''
    m, m_bar = 1 + 6 * 0.539190481051547**2, 1 + 6 * 0.660809518948453**2
    assert 0.9 * m < found["m"] <= m
    assert m_bar <= found["m_bar"] < 1.1 * m_bar
    assert found["Lambda"] >= 5.6065650
    assert found["kappa"] <= 0.43934350
    assert found["reach"] <= 0.024519550
    assert 0.39912857 <= result.rate[0] < 1
    assert result.risk.low <= 0.14461344
    is_above(result.risk.high, 0.1448)


def test_every_example_is_decided_as_the_page_says():
    assert decide(product()).verdict == "converges"
    assert decide(trap()).verdict == "stuck"
    assert decide(trap(-2.833)).verdict == "converges"
    assert decide(kinked()).verdict == "converges"
    assert decide(attention()).verdict == "converges"


def test_converges_reports_the_smallest_ball():
    question = kinked()
    found = facts(question)
    radii = np.array([0.05, 0.1, 0.15])
    result = converges(question, found, on_balls(question, found, radii), "jets")
    assert result.radius in radii
    smaller = radii[radii < result.radius]
    for radius in smaller:
        alone = on_balls(question, found, np.array([radius]))
        assert converges(question, found, alone, "jets").verdict == "undecided"
