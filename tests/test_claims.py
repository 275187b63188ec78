"""Claims: how they are put together, what their experiments return, and one control per kind."""

import math
from fractions import Fraction

import numpy as np
import pytest

import shoal as sh
import toy_paper
from shoal.errors import InputError
from shoal.evidence import rules
from shoal.evidence.rules import Effect
from shoal.lab import effects
from shoal.lab.claim import (
    Claim,
    Control,
    above,
    below,
    between,
    changed_design,
    exponent,
    make_claim,
    quantifier,
)
from shoal.lab.ledger import number_text
from shoal.papers import BUILT_IN, paper_of

INF, NAN = math.inf, math.nan


def fake(design, seeds):
    return [design["gain"] + 0.001 * seed for seed in seeds]


def claim_of(test=None, measure=fake, **more):
    given = {"source": "ours", "design": {"gain": 2.0}, "control": {"gain": 0.5}, "why": "said so"}
    return make_claim(
        "fake.k", "Gains gain.", measure, test or above(1.0, "gain"), **(given | more)
    )


# ------------------------------------------------------------------------------ what a claim needs


def test_a_claim_measures_one_effect_per_seed_and_controls_are_other_experiments():
    claim = claim_of()
    assert [e.value[0] for e in claim.effects((10, 20))] == pytest.approx([2.01, 2.02])
    (control,) = claim.controls
    assert [e.value[0] for e in claim.effects((10,), control.changes)] == pytest.approx([0.51])


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"control": None}, "needs a negative control"),
        ({"control": {"gain": 2.0}}, "a control changes nothing"),
        ({"why": ""}, "say in why="),
        ({"controls": [Control({"gain": 1.0}, "odd")]}, "sort 'odd'"),
    ],
)
def test_half_a_claim_is_refused(more, complaint):
    with pytest.raises(InputError, match=complaint):
        claim_of(**more)


def test_a_limit_of_zero_explains_itself():
    assert (
        claim_of(above(0.0, "gain"), why="").why == "the statement has no number, so the limit is 0"
    )


def test_an_experiment_must_answer_for_every_seed():
    claim = claim_of(measure=lambda design, seeds: [1.0])
    with pytest.raises(InputError, match="1 numbers for 2 seeds"):
        claim.effects((1, 2))


def test_small_effects_that_help_are_turned():
    claim = claim_of(below(3.0, "loss", against=4.0), measure=lambda d, s: [2.0, (1.0, 5.0), None])
    assert claim.effects((0, 1, 2)) == [Effect((-2.0, -2.0)), Effect((-5.0, -1.0)), None]
    assert (claim.test.rule.for_limit, claim.test.rule.against_limit) == (-3.0, -4.0)
    said = "supported if in a typical draw loss is below 3; contradicted if it is above 4"
    assert claim.test.sentence == said


def test_rules_say_what_they_are():
    assert "lies in [0.8, 1.25]" in between(0.8, 1.25, "ratio").sentence
    assert "bends by less than 0.1" in exponent(-0.6, -0.4, "slope").sentence
    words = {
        "in every draw": above(0, "x", every=True),
        "in nearly all draws": above(0, "x", share=Fraction(9, 10)),
        "in more than 5% of draws": above(0, "x", share=Fraction(1, 20)),
        "in a typical draw": above(0, "x"),
    }
    assert {said: quantifier(test.rule) for said, test in words.items()} == {k: k for k in words}


def test_designs_change_name_by_name():
    design = {"side": {"a": 1, "b": 2}, "n": 3}
    assert changed_design(design, {"side": {"b": 5}}) == {"side": {"a": 1, "b": 5}, "n": 3}
    assert changed_design(design, {"n": {"x": 1}}) == {"side": {"a": 1, "b": 2}, "n": {"x": 1}}


# ----------------------------------------------------------------------------------------- effects


def test_what_a_run_only_bounds_stays_an_interval():
    assert effects.log10_known([1e-40, 10.0, NAN], floor=1e-28) == [
        (-INF, -28.0), (1.0, 1.0), (-INF, INF)]  # fmt: skip
    assert effects.log10_known([1e20], ceiling=1e16) == [(16.0, INF)]
    # one side that diverged is data; two say nothing
    assert effects.loss_ratio([NAN, NAN, 1.0], [1.0, NAN, NAN]) == [
        (INF, INF), (-INF, INF), (-INF, -INF)]  # fmt: skip
    assert effects.loss_ratio([1e-40], [1e-2], floor=1e-30) == [(-INF, -28.0)]
    assert effects.log10_ratio([0.0], [1.0]) == [(-INF, -INF)]


def test_the_smaller_of_two_margins_is_above_only_if_both_are():
    assert effects.smaller([(1.0, 2.0)], [(-1.0, 5.0)]) == [(-1.0, 2.0)]


def test_exponents_and_slopes_of_every_seed():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    steep, flat = effects.exponents(x, np.stack([3 * x**1.5, x**0.0]))
    assert steep.value == (pytest.approx(1.5), pytest.approx(1.5))
    assert steep.bend == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))
    assert flat.value == (pytest.approx(0), pytest.approx(0))
    z = np.random.default_rng(0).normal(size=(3, 4))
    expected = [np.polyfit(x, row, 1)[0] for row in z]
    np.testing.assert_allclose(effects.slopes(x, z), expected, rtol=1e-10)


def test_a_premise_that_cannot_be_evaluated_does_not_excuse():
    assert effects.where([True, False, None], [1.0, 2.0, 3.0]) == [1.0, None, (-INF, INF)]


def test_studies_make_experiments():
    by_width = sh.Study("doe2024", grid={"width": (2, 4)}, seeds=4)
    with pytest.raises(InputError, match="needs one setting"):
        sh.per_doubling(sh.Study("doe2024"), lambda run: 0)
    with pytest.raises(InputError, match="needs one setting"):
        sh.power_law(sh.Study("doe2024"), lambda run: 0)
    with pytest.raises(InputError, match="has 3 points"):
        sh.compared(sh.Study("doe2024", grid={"width": (1, 2, 3)}), lambda run: 0)
    with pytest.raises(InputError, match="expected one"):
        sh.measured(by_width, lambda run: 0)
    made = sh.per_doubling(by_width, lambda run: 0)
    changed = made.changes({"width": 6, "step_size": 0.1})
    assert changed == {"every_point": {"width": 6}, "step_size": 0.1}


CLAIMS = {claim.key.partition(".")[2]: claim for claim in toy_paper.PAPER.claims}


def test_a_seed_s_effect_does_not_depend_on_its_companions():
    claim = CLAIMS["gain_helps"]
    alone = [claim.effects((seed,))[0].value[0] for seed in (3, 4, 5)]
    together = [e.value[0] for e in claim.effects((5, 3, 4))]
    np.testing.assert_allclose(sorted(together), sorted(alone), rtol=1e-10)
    assert len(set(alone)) == 3  # each has its own data


def test_a_claim_s_seed_is_the_command_line_s():
    claim = CLAIMS["learns"]
    setup = sh.setup(toy_paper.PAPER, data_seed=10017, num_steps=200, seeds=(10017,))
    run = sh.train(setup, probes=[])
    expected = float(-np.log10(run.risk[0, -1] / run.risk[0, 0]))
    assert claim.effects((10017,))[0].value[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("key", CLAIMS)
def test_the_toy_s_controls_are_contradicted(key):
    claim = CLAIMS[key]
    found = claim.effects(tuple(range(15000, 15017)), claim.controls[0].changes)
    assert rules.control_passed("negative", claim.test.rule, found)


# ------------------------------------------------------------------------------- the built-in ones

ALL = [claim for key in BUILT_IN for claim in paper_of(key).claims]
MEASURED = [claim for claim in ALL if isinstance(claim, Claim)]


def test_every_claim_of_the_first_ledger_is_still_there():
    from pathlib import Path

    old = Path(__file__).parent.parent / "docs" / "ledger-0.1.md"
    keys = {cell.split("`")[1] for cell in old.read_text().splitlines() if "(`" in cell}
    assert len(keys) == 92
    assert keys <= {claim.key for claim in ALL}


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.key)
def test_every_claim_stands_alone_and_can_be_registered(claim):
    from shoal.lab.ledger import frozen_fields

    first = claim.statement.split()[0].rstrip(",")
    assert first not in ("It", "So", "There", "This", "They", "That")
    assert claim.statement.endswith(".")
    assert claim.why
    assert claim.setting
    assert all(control.why for control in claim.controls)
    fields = frozen_fields(claim)
    assert fields["for"]
    assert number_text(claim.seconds) != "0"


KINDS = {
    "direction": "qin2025.small_logits_hurt",
    "equivalence": "qin2025.residual_cannot_beat_its_tokens",
    "bound": "song2024.keys_free_softmax",
    "scaling": "wu2023.attention_stays_informative",
}


def passes(claim, number):
    """Run a control on seeds of its own until it is decided, as the ledger does."""
    control, found = claim.controls[number], []
    first = 15000 if control.sort != "positive" else 17500
    rule = claim.test.rule
    while rules.control_passed(control.sort, rule, found) is None:
        left = rules.control_seeds(rule) - len(rules.counted(rule.for_control(), found))
        more = tuple(range(first + len(found), first + len(found) + max(1, min(8, left))))
        found += claim.effects(more, control.changes)
    return rules.control_passed(control.sort, claim.test.rule, found)


@pytest.mark.parametrize("kind", KINDS)
def test_one_negative_control_of_each_kind_is_decided_the_other_way(kind):
    (claim,) = (c for c in MEASURED if c.key == KINDS[kind])
    assert claim.test.rule.kind == kind
    assert passes(claim, 0)


# its control comes out like the claim: the ledger says "control failed" and gives no verdict
WITHOUT_CONTROL = ("arda2026.causal_loss_is_flat_along_the_window",)


def controlled():
    """Every claim whose controls can be run here; those that are known to fail must fail."""
    for claim in MEASURED:
        if not claim.waits and claim.seconds < 100:
            known = pytest.mark.xfail(strict=True, raises=AssertionError)
            marks = [known] if claim.key in WITHOUT_CONTROL else []
            yield pytest.param(claim, id=claim.key, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("claim", list(controlled()))
def test_every_control_passes(claim):
    for number in range(len(claim.controls)):
        assert passes(claim, number), claim.controls[number]
