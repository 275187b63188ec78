"""Bets, sequences, families and spending, against numbers worked out by hand and by simulation.

Exact fractions below come from the closed form by hand (or from the integral, in the comments),
never from the code.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, stats

from shoal.errors import InputError
from shoal.evidence import betting, family, rules, sequences, slopes, spending
from shoal.evidence.betting import e_value
from shoal.evidence.rules import Effect, Rule

INF, F = math.inf, Fraction

# ---------------------------------------------------------------------------------------- e-values


@pytest.mark.parametrize(
    ("counted", "above", "expected"),
    [
        (0, 0, F(1)), (1, 1, F(3, 2)), (2, 1, F(2, 3)), (5, 0, F(1, 6)), (7, 3, F(93, 280)),
        (10, 9, F(1018, 55)), (12, 11, F(1363, 26)), (20, 18, F(29956, 57)), (7, 7, F(255, 8)),
        (8, 8, F(511, 9)), (15, 15, F(65535, 16)), (17, 17, F(29127, 2)), (17, 16, F(29125, 34)),
        (22, 21, F(4194292, 253)), (30, 27, F(536869664, 31465)),
    ],
)  # fmt: skip
def test_e_values_for_the_median(counted, above, expected):
    assert e_value(counted, above) == expected


@pytest.mark.parametrize(
    ("counted", "above", "share", "expected"),
    [
        (30, 27, F(1, 2), 17062.4397), (100, 73, F(1, 2), 13091.9813),
        (100, 72, F(1, 2), 5021.5682), (1, 1, F(1, 20), 10.5), (1, 0, F(1, 20), 0.5),
        (500, 48, F(1, 20), 249.17906), (3, 1, F(1, 10), 13 / 12), (5, 5, F(1, 10), 18518.5),
        (8, 8, F(9, 10), 1.5811748), (3, 2, F(1, 4), 2.25),
    ],
)  # fmt: skip
def test_e_values_for_other_shares(counted, above, share, expected):
    assert float(e_value(counted, above, share)) == pytest.approx(expected, rel=1e-7)
    near = betting.e_value_near(counted, above, float(share))
    assert near == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("n", "S", "s"), [(9, 4, 0.5), (12, 3, 0.05), (20, 19, 0.9)])
def test_the_closed_form_is_the_integral(n, S, s):
    def wealth(p):
        return (p / s) ** S * ((1 - p) / (1 - s)) ** (n - S)

    integral = integrate.quad(wealth, s, 1)[0] / (1 - s)
    exact = e_value(n, S, F(s).limit_denominator(100))
    assert float(exact) == pytest.approx(integral, rel=1e-8)


@pytest.mark.parametrize("s", [F(1, 2), F(1, 20), F(9, 10), F(1, 3)])
def test_a_fair_bet_gains_nothing_on_average(s):
    for n in range(12):
        for S in range(n + 1):
            later = s * e_value(n + 1, S + 1, s) + (1 - s) * e_value(n + 1, S, s)
            assert later == e_value(n, S, s)


def test_both_sides_together_are_the_two_sided_mixture():
    for n in range(15):
        for S in range(n + 1):
            both = F(2 ** (n + 1), (n + 1) * math.comb(n, S))
            assert e_value(n, S) + e_value(n, n - S) == both


def test_shares_of_zero_and_one_have_limits():
    assert betting.e_value_near(5, 3, 0.0) == INF
    assert betting.e_value_near(5, 5, 1.0) == 1.0


TABLE = {
    40: {8: 8, 10: 10, 12: 11, 15: 14, 17: 15, 20: 17, 22: 18, 25: 20, 26: 21, 30: 24, 40: 30,
         50: 36, 60: 42, 80: 55, 100: 66},
    10240: {8: None, 10: None, 12: None, 15: None, 17: 17, 20: 20, 22: 21, 25: 24, 26: 24, 30: 27,
            40: 34, 50: 41, 60: 48, 80: 61, 100: 73},
}  # fmt: skip


@pytest.mark.parametrize("threshold", TABLE)
def test_how_many_are_needed(threshold):
    assert {n: betting.needed(n, threshold) for n in TABLE[threshold]} == TABLE[threshold]


def test_means_of_bounded_numbers():
    tenths = [F(9, 10), F(8, 10), F(95, 100), F(7, 10)]
    assert betting.mean_e_value(tenths, F(1, 2)) == F(43929789, 12500000)
    assert betting.mean_e_value([F(0), F(1)], F(1, 2)) == F(27, 40)
    assert betting.mean_e_value([F(1, 2), F(1, 2)], F(1, 2)) == 1


# --------------------------------------------------------------------------------------- sequences

SEQUENCE = (3.1, 2.4, -0.2, 4.0, 1.8, 2.9, 3.3, 0.7, 2.2, 5.1, 1.1, 2.7)
DIRECTION = Rule("direction", 0.0, 0.0)


def effects(*values):
    return [Effect(rules.known(v)) for v in values]


def test_a_worked_sequence():
    found = rules.tally(DIRECTION, effects(*SEQUENCE))
    path = [1.5, 7 / 3, 11 / 12, 1.3, 1.9, 2.857143, 4.410714, 6.972222, 11.255556, 18.509091,
            30.931818, 52.423077]  # fmt: skip
    events = betting.path(x > 0 for x in SEQUENCE)
    np.testing.assert_allclose([float(e) for e in events], path, rtol=1e-6)
    assert (found.counted, found.above, found.below) == (12, 11, 1)
    assert float(found.for_now) == pytest.approx(52.423077)
    medians = sequences.median_sequence([(x, x) for x in SEQUENCE])
    assert medians[7] == (-0.2, 4.0)
    assert medians[11] == (0.7, 4.0)
    assert medians[6] == (-INF, INF)


def test_the_sequence_covers_the_median_at_all_times():
    rng, covered = np.random.default_rng(1), 0
    for _ in range(400):
        draws = rng.standard_cauchy(60)
        low, high = sequences.median_sequence([(x, x) for x in draws])[-1]
        covered += low <= 0 <= high
    assert covered / 400 >= 0.95 - 3 * (0.05 * 0.95 / 400) ** 0.5


def test_the_share_s_interval_is_where_neither_bet_wins():
    seen = [(1.0, 1.0)] * 27 + [(-1.0, -1.0)] * 3
    low, high = sequences.share_sequence(seen, 0.0)
    # the ends solve E = 40 at some number of seeds; the strongest is found by scanning all
    worst = max(betting.e_value_near(n, min(n, 27), low) for n in range(1, 31))
    assert worst == pytest.approx(40, rel=1e-4)
    assert high < 1
    assert sequences.share_sequence(seen[:2], 0.0) == (pytest.approx(0.0, abs=0.2), 1.0)
    one_sided = sequences.share_sequence([(-INF, INF)] * 30, 0.0)
    assert one_sided == (0.0, 1.0)


def test_censored_slopes():
    x, low = [2, 4, 8, 16], [16, 64, 256, 1024]
    assert slopes.slope_interval(x, low, [32, 128, 512, INF]) == (pytest.approx(1.6), INF)
    found = slopes.slope_interval(x, low, [32, 128, 512, 2048])
    assert found == (pytest.approx(1.6), pytest.approx(2.4))
    # the middle of a symmetric grid has no weight: a value that is not known there does not matter
    five = slopes.slope_interval([1, 2, 4, 8, 16], [1, 2, 0, 8, 16], [1, 2, INF, 8, 16])
    assert five == (pytest.approx(1.0), pytest.approx(1.0))
    values = np.array([3.0, 1.0, 4.0, 1.5])
    exact = np.polyfit(np.log(x), np.log(values), 1)[0]
    assert slopes.slope_interval(x, values, values) == (pytest.approx(exact), pytest.approx(exact))


def test_the_bend_is_the_upper_half_s_slope_minus_the_lower_half_s():
    x = np.array([1.0, 2, 4, 8, 16])
    y = np.array([1.0, 2, 4, 16, 64])
    upper, lower = (np.polyfit(np.log(x[k]), np.log(y[k]), 1)[0]
                    for k in (slice(2, 5), slice(0, 3)))  # fmt: skip
    assert slopes.bend_interval(x, y, y) == (pytest.approx(upper - lower),) * 2
    assert slopes.bend_interval(x, x**1.7, x**1.7) == (pytest.approx(0, abs=1e-12),) * 2
    low, high = slopes.bend_interval(x, y, [*y[:4], INF])
    assert high == INF
    assert low == pytest.approx(upper - lower)


# ------------------------------------------------------------------------------------------- kinds


def test_a_verdict_is_not_taken_back_by_later_seeds():
    found = rules.tally(DIRECTION, effects(*[1.0] * 17, *[-1.0] * 4))
    assert float(found.for_now) == pytest.approx(31.785486)
    assert float(found.for_max) == 14563.5
    assert betting.p_value(found.for_max) == pytest.approx(6.866e-5, rel=1e-3)
    assert family.rejected({"it": (found.for_max, 1)}) == {"it"}


def test_equivalence_needs_both_sides_and_is_refuted_by_an_average():
    rule = Rule("equivalence", 0.8, 1.25)
    seen = effects(0.96, 1.02, 0.91, 1.1, 0.99, 1.3, 1.05, 0.97, 0.88, 1.0)
    found = rules.tally(rule, seen)
    assert found.for_max == F(1018, 55)  # the other side: 2047/11
    assert found.against_now == F(1, 10)
    assert rules.tally(rule, effects(*[0.9] * 10)).for_max == F(2047, 11)
    assert float(rules.tally(rule, effects(*[0.7] * 18)).against_max) == pytest.approx(13797.05)
    assert float(rules.tally(rule, effects(*[0.7] * 17)).against_max) == pytest.approx(7281.78)


def test_the_average_of_two_bets_is_maximised_after_averaging():
    # first low, then high: each alone rises at its own time
    rule = Rule("equivalence", 0.0, 1.0)
    found = rules.tally(rule, effects(*[-1.0] * 6, *[2.0] * 6))
    low = betting.path([True] * 6 + [False] * 6)
    high = betting.path([False] * 6 + [True] * 6)
    assert found.against_max == max((a + b) / 2 for a, b in zip(low, high, strict=True))
    assert found.against_max < (max(low) + max(high)) / 2


def test_ties_and_what_is_not_known():
    six = effects(*[1.0] * 6, *[0.0] * 10)
    abstaining = rules.tally(DIRECTION._replace(ties="abstain"), six)
    assert (abstaining.counted, abstaining.for_now) == (6, F(127, 7))
    against = rules.tally(DIRECTION, six)
    assert (against.counted, against.for_now) == (16, F(10889, 68068))
    lost = rules.tally(DIRECTION, effects(*[1.0] * 7, math.nan))
    assert lost.for_now == e_value(8, 7)
    assert (lost.above, lost.below, lost.unknown) == (7, 0, 1)
    skipped = rules.tally(DIRECTION, [*effects(1.0, 2.0), None])
    assert (skipped.counted, skipped.abstained) == (2, 1)


def test_a_censored_slope_counts_only_where_it_is_known():
    wide = Effect(slopes.slope_interval([2, 4, 8, 16], [16, 64, 256, 1024], [32, 128, 512, 2048]))
    for limit, above, below in ((2.25, 0, 0), (2.5, 0, 1)):
        found = rules.tally(Rule("direction", limit, limit), [wide])
        assert (found.above, found.below) == (above, below)


def test_a_scaling_needs_a_straight_line_too():
    rule = Rule("scaling", -0.6, -0.4)
    straight = [Effect((-0.5, -0.5), (0.01, 0.01))] * 17
    bent = [Effect((-0.5, -0.5), (0.3, 0.3))] * 17
    assert rules.tally(rule, straight).for_max == e_value(17, 17)
    assert rules.tally(rule, bent).for_max < 2
    assert rules.bend_is_refuted(rule, bent)
    assert not rules.bend_is_refuted(rule, straight)
    steep = [Effect((-1.0, -1.0), (0.0, 0.0))] * 18
    assert float(rules.tally(rule, steep).against_max) == pytest.approx(13797.05)


def test_statements_about_shares_and_about_all_draws():
    nearly = Rule("direction", 0.0, 0.0, share=F(9, 10))
    assert float(rules.tally(nearly, effects(*[1.0] * 110)).for_max) < 10240
    assert float(rules.tally(nearly, effects(*[1.0] * 111)).for_max) >= 10240
    assert float(rules.tally(nearly, effects(*[-1.0] * 5)).against_max) >= 10240
    every = Rule("bound", 0.0, 0.0, every=True)
    assert rules.tally(every, effects(*[1.0] * 111)).for_max == e_value(111, 111, F(9, 10))


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (Rule("hunch", 0, 0), "expected one of direction"),
        (Rule("equivalence", 1.0, 0.5), "lower end first"),
        (Rule("scaling", 0, 1, share=F(9, 10)), "about the median only"),
        (Rule("direction", 0.0, 1.0), "swap them"),
        (Rule("direction", 0, 0, share=F(1)), "between 0 and 1"),
        (Rule("direction", 0, 0, ties="split"), "expected against or abstain"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rule, complaint):
    with pytest.raises(InputError, match=complaint):
        rules.check_rule(rule)


def test_controls():
    plain = Rule("direction", 1.0, 0.0)
    assert rules.control_passed("negative", plain, effects(*[0.5] * 6)) is None
    assert rules.control_passed("negative", plain, effects(*[0.5] * 7))  # limits closed: below 1
    assert rules.control_passed("negative", plain, effects(*[2.0] * 17)) is False
    assert rules.control_passed("positive", plain, effects(*[2.0] * 7))
    fair = effects(*[1.0, -1.0] * 8, 1.0)
    assert rules.control_passed("null", DIRECTION, fair)
    assert rules.control_passed("null", DIRECTION, fair[:16]) is None
    assert rules.control_passed("null", DIRECTION, effects(*[1.0] * 7)) is False
    nearly = plain._replace(share=F(9, 10))
    assert rules.control_passed("positive", nearly, effects(*[2.0] * 42)) is None
    assert rules.control_passed("positive", nearly, effects(*[2.0] * 43))
    assert rules.control_passed("negative", nearly, effects(*[0.0] * 2))


def decide(rule, seen, **more):
    given = {"refuted_for": False, "refuted_against": False, "violated": False,
             "controls_passed": True, "sequence": (-INF, INF), "most": 100}  # fmt: skip
    return rules.verdict(rule, seen, **(given | more))


def test_reasons_come_in_order():
    room = Rule("direction", 1.0, 0.0)
    undecided, mixed = effects(1.0, -1.0), effects(*[1.0, -1.0] * 12)
    assert decide(room, undecided) == ("inconclusive", "undecided")
    assert decide(DIRECTION, mixed) == ("inconclusive", "set aside")
    assert decide(room, mixed, sequence=(0.2, 0.9)).reason == "between the limits"
    assert decide(room, [None] * 400).reason == "premise rarely met"
    assert decide(room, mixed, refuted_for=True, refuted_against=True).reason == "conflict"
    assert decide(room, mixed, refuted_for=True).word == "supported"
    assert decide(room, mixed, refuted_against=True).word == "contradicted"
    assert decide(room, mixed, refuted_for=True, violated=True).word == "contradicted"
    failed = decide(room, mixed, refuted_for=True, controls_passed=False)
    assert failed == ("inconclusive", "control failed")
    waiting = decide(room, mixed, refuted_for=True, controls_passed=None)
    assert waiting.reason == "controls not finished"


# --------------------------------------------------------------------------------- many at once


def test_holm_steps_down_and_rounds_do_not_help_earlier_rounds():
    largest = {"a": 20000, "b": 11000, "c": 10220, "d": 10210, "e": 300}
    others = dict.fromkeys(range(507), (1, 1))
    one_round = {k: (e, 1) for k, e in largest.items()} | others
    assert family.rejected(one_round) == {"a", "b", "c", "d"}
    assert [family.threshold(r) for r in range(5)] == [10240, 10220, 10200, 10180, 10160]
    later = {k: (e, 2 if k in "ab" else 1) for k, e in largest.items()} | others
    assert family.rejected(later) == {"a", "b"}


def test_the_next_seeds_go_where_a_decision_is_nearest():
    expected = {(8, 8): 9, (8, 7): 18, (8, 6): 38, (8, 5): 81, (8, 4): None, (16, 15): 6,
                (24, 18): 34, (24, 15): None}  # fmt: skip
    assert {key: spending.rest(*key) for key in expected} == expected
    assert spending.rest(17, 17) == 0
    cost = {(8, 8): 2.0, (8, 7): 0.5, (16, 15): 4.0}  # seconds a seed
    assert min(cost, key=lambda key: cost[key] * spending.rest(*key)) == (8, 7)
    assert rules.seeds_left(DIRECTION, effects(*[1.0] * 8), 100) == 9
    assert rules.seeds_left(DIRECTION, effects(*[1.0, -1.0] * 4), 100) == 16
    assert rules.seeds_left(DIRECTION, effects(*[1.0, -1.0] * 12), 100) is None


def unanimous(share, threshold):
    """Seeds, all on one side, until a threshold: from the closed form for S = n."""
    n = 0
    while True:
        n += 1
        s = float(share)
        if (s ** -(n + 1) - 1) / (n + 1) * s / (1 - s) >= threshold:
            return n


def test_unanimous_seeds():
    assert [unanimous(0.5, t) for t in (20, 1840, 3680, 10240)] == [7, 14, 15, 17]
    assert unanimous(0.9, 10240) == 111
    for share, threshold in ((F(1, 2), 20), (F(1, 2), 10240), (F(1, 10), 10240)):
        n = unanimous(share, threshold)
        assert betting.needed(n, threshold, share) == n
        assert betting.needed(n - 1, threshold, share) is None
    wrong = {k: next(n for n in range(k, 99) if e_value(n, n - k) >= 10240) for k in (1, 2, 3, 5)}
    assert wrong == {1: 22, 2: 26, 3: 30, 5: 37}


def decided_by(q, threshold, most=400):
    """Chance that a bet has reached the threshold by each seed, exactly, by recursion."""
    alive, decided, chances = np.array([1.0]), 0.0, []
    for n in range(1, most + 1):
        grown = np.zeros(n + 1)
        grown[:-1] += alive * (1 - q)
        grown[1:] += alive * q
        k = betting.needed(n, threshold)
        if k is not None:
            decided += grown[k:].sum()
            grown[k:] = 0
        alive = grown
        chances.append(decided)
    return np.array(chances)


POWER = {  # median and 90 % quantile of the seeds needed
    0.75: {20: (23, 56), 1840: (60, 105), 3680: (67, 113), 10240: (75, 123)},
    0.80: {20: (17, 35), 1840: (43, 71), 3680: (44, 76), 10240: (49, 81)},
    0.90: {20: (11, 17), 1840: (23, 33), 3680: (24, 38), 10240: (26, 40)},
    0.95: {20: (7, 11), 1840: (19, 23), 3680: (20, 28), 10240: (22, 30)},
}


@pytest.mark.parametrize("q", POWER)
def test_power(q):
    for threshold, expected in POWER[q].items():
        chances = decided_by(q, threshold)
        found = tuple(int(np.searchsorted(chances, level)) + 1 for level in (0.5, 0.9))
        assert found == expected
    by_100 = {0.75: 0.77, 0.80: 0.97, 0.90: 1.0, 0.95: 1.0}[q]
    assert decided_by(q, 10240)[99] == pytest.approx(by_100, abs=0.005)


# ------------------------------------------------------------------------------------ null ledgers

TABLE_OF_E = np.array(
    [[float(e_value(n, S)) if n >= S else 0.0 for S in range(101)] for n in range(101)]
)
WORTH_A_LOOK = np.array([betting.needed(n, 5000) or 127 for n in range(1, 101)], np.uint8)


def largest_e(above):
    """Largest e-value along the last axis (seeds); 1 where it is below 5000 at all times."""
    S = np.cumsum(above, axis=-1, dtype=np.uint8)
    found = np.ones(above.shape[:-1])
    close = (WORTH_A_LOOK[: S.shape[-1]] <= S).any(axis=-1)
    found[close] = TABLE_OF_E[np.arange(1, S.shape[-1] + 1), S[close]].max(axis=-1)
    return found


def false_ledgers(ledgers, claims, rng, *, q=None, shared=1, seen_early=False, seeds=100):
    """Share of ledgers with a false verdict, and right verdicts per ledger.

    Claims with q = 1/2 are at the limit: both nulls are true. ``shared`` claims look at each run.
    ``seen_early`` stops a claim just before a bad seed that was seen through another claim.
    """
    q, wrong, right = np.full(claims, 0.5) if q is None else np.asarray(q), 0, 0
    for _ in range(ledgers // 100):
        runs = rng.integers(0, 2**16, (100, -(-claims // shared), seeds), np.uint16)
        above = np.repeat(runs, shared, axis=1)[:, :claims] < q[:, None] * 2**16
        for_, against = largest_e(above), largest_e(~above)
        if seen_early:
            stop = np.where(above.all(axis=-1), seeds, above.argmin(axis=-1))
            for_ = np.maximum(TABLE_OF_E[stop, stop], 1.0)
        for one in range(100):
            sides = {"for": for_[one], "against": against[one]}
            nulls = {
                (s, int(k)): (e[k], 1) for s, e in sides.items() for k in np.flatnonzero(e > 1)
            }
            rejected = family.rejected(nulls)
            bad = [(side, k) for side, k in rejected if q[k] == 0.5 or side == "against"]
            wrong, right = wrong + bool(bad), right + len(rejected) - len(bad)
    return wrong / ledgers, right / ledgers


MIXED = np.concatenate([np.full(40, 0.5), np.full(13, 0.75), np.full(20, 0.9), np.full(19, 0.99)])
RIGHT = 49.1  # of 52: 39 at 0.9 and 0.99, and of 13 at 0.75 a share of 0.77


def test_few_null_ledgers_have_any_false_verdict():
    share, _ = false_ledgers(300, 92, np.random.default_rng(0))
    assert share <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
    share, right = false_ledgers(100, 92, np.random.default_rng(1), q=MIXED)
    assert share <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5
    assert right == pytest.approx(RIGHT, abs=0.7)
    exactly = 39 + 13 * decided_by(0.75, 20 * (512 - 49))[99]
    assert exactly == pytest.approx(RIGHT, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "more"),
    [
        (0.020, {"claims": 256}),
        (0.008, {"claims": 92}),
        (0.004, {"claims": 92, "q": MIXED}),
        (0.001, {"claims": 92, "q": MIXED, "shared": 4}),
        (0.007, {"claims": 92, "seen_early": True}),
    ],
    ids=["256 claims", "92 claims", "40 at the limit", "shared runs", "seen early"],
)
def test_ten_thousand_null_ledgers(expected, more):
    share, right = false_ledgers(10_000, rng=np.random.default_rng(17), **more)
    assert share < 0.05 + 0.0065
    assert share == pytest.approx(expected, abs=3 * (expected / 10_000) ** 0.5 + 0.001)
    if "q" in more:
        assert right == pytest.approx(RIGHT, abs=0.2)


@pytest.mark.slow
def test_the_intervals_of_the_first_ledger_were_wrong_somewhere_in_nearly_every_ledger():
    rng = np.random.default_rng(3)
    draws = rng.normal(size=(2000, 92, 8))
    t = draws.mean(axis=2) / (draws.std(axis=2, ddof=1) / 8**0.5)
    wrong = np.abs(t) > stats.t.ppf(0.975, 7)
    assert wrong.any(axis=1).mean() == pytest.approx(0.991, abs=0.01)
    assert wrong.sum(axis=1).mean() == pytest.approx(4.6, abs=0.3)
