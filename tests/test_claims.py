"""Claims: rules on numbers made up for the purpose, negative controls, and what is kept on disk."""

import json
import math

import numpy as np
import pytest
from scipy import stats

import shoal as sh
import toy_paper
from shoal.disk import cache
from shoal.errors import InputError
from shoal.figures import Panel
from shoal.jsons import plain
from shoal.lab.claim import (
    Interval,
    Plan,
    Rule,
    Ruling,
    above,
    below,
    between,
    comparison,
    exponent,
    exponents,
    judge,
    log10_ratio,
    mean_interval,
    ratio_interval,
    slope,
    slopes,
    spread_ratio,
)
from shoal.lab.ledger import Entry, about, entry_json, ledger_json

SUPPORTED, CONTRADICTED, INCONCLUSIVE = Ruling
INF, NAN = math.inf, math.nan


class Fakes(sh.Setting):
    """Nothing but claims."""


FAKES = sh.Paper(Fakes, key="fake")


def noisy(mean, *shape, spread=0.01):
    return mean + spread * np.random.default_rng(0).normal(size=shape)


# --------------------------------------------------------------------------------- intervals


def test_the_interval_is_student_s():
    x = np.array([0.3, 1.2, -0.4, 0.9, 2.0])
    half = stats.t.ppf(0.975, 4) * x.std(ddof=1) / 5**0.5
    found = mean_interval(x)
    assert found == pytest.approx((x.mean(), x.mean() - half, x.mean() + half), rel=1e-12)


def test_the_interval_covers_the_truth_in_95_of_100_experiments():
    draws = np.random.default_rng(0).normal(1.0, 2.0, size=(2000, 8))
    covered = np.mean([i.low <= 1 <= i.high for i in map(mean_interval, draws)])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_equal_samples_are_a_point_and_nonsense_has_no_interval():
    assert mean_interval(np.full(5, 2.0)) == Interval(2.0, 2.0, 2.0)
    for samples in ([1.0, NAN], [1.0], [1.0, INF], [-INF, 1.0, 2.0]):
        assert math.isnan(mean_interval(np.array(samples)).low)


def test_the_ratio_of_means_is_not_the_mean_of_ratios():
    top, bottom = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1e-9, 1.0, 1.0, 1.0])
    found = ratio_interval(top, bottom)
    assert found.mean == pytest.approx(4 / 3)
    assert found.low < found.mean < found.high
    draws = np.random.default_rng(1).lognormal(size=(2, 200))
    found = ratio_interval(3 * draws[0], draws[1])
    assert found.low < 3 < found.high
    assert math.isnan(ratio_interval(np.array([1.0, NAN]), np.ones(2)).low)
    assert math.isnan(ratio_interval(np.ones(1), np.ones(1)).low)


def test_the_ratio_of_spreads_sees_a_sample_that_concentrates():
    rng = np.random.default_rng(2)
    wide, narrow = 1 + 0.4 * rng.normal(size=60), 1 + 0.1 * rng.normal(size=60)
    found = spread_ratio(wide, narrow)
    assert found.low < 0.25 < found.high < 1
    assert spread_ratio(10 * wide, narrow) == pytest.approx(found, rel=1e-9)  # it is relative


def test_exponents_and_slopes_are_least_squares_per_seed():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    y = np.stack([3 * x**1.5, x**-0.5])
    np.testing.assert_allclose(exponents(x, y), [1.5, -0.5], rtol=1e-12)
    z = noisy(0.0, 3, 4)
    np.testing.assert_allclose(slopes(x, z), [np.polyfit(x, row, 1)[0] for row in z], rtol=1e-10)
    lost = exponents(x, np.stack([[0.0, 1, 2, 3], [-1.0, 1, 2, 3]]))
    assert not np.isfinite(lost).any()


# ------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2, 0.8, SUPPORTED),
        (0.0, 1.0, SUPPORTED),
        (-0.1, 0.5, INCONCLUSIVE),
        (0.9, 1.1, INCONCLUSIVE),
        (1.1, 1.2, CONTRADICTED),
        (-1.0, -0.1, CONTRADICTED),
        (-1.0, 2.0, INCONCLUSIVE),
        (NAN, NAN, INCONCLUSIVE),
        (NAN, 0.5, INCONCLUSIVE),
        (INF, INF, CONTRADICTED),
    ],
)
def test_a_range_decides_by_the_whole_interval(low, high, expected):
    assert judge(Interval((low + high) / 2, low, high), 0.0, 1.0) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.1, 0.2, SUPPORTED), (0.0, 0.2, INCONCLUSIVE), (-1.0, 0.0, CONTRADICTED),
     (0.0, 0.0, CONTRADICTED)],
)  # fmt: skip
def test_a_tie_is_not_ahead(low, high, expected):
    assert judge(Interval(0.0, low, high), 0.0, INF) == expected
    assert judge(Interval(0.0, -high, -low), -INF, 0.0) == expected


KINDS = {
    "above": (above(1.0, "gap"), {"effect": noisy(1.5, 8)}, {"effect": noisy(0.5, 8)}),
    "below": (below(1.0, "gap"), {"effect": noisy(0.5, 8)}, {"effect": noisy(1.5, 8)}),
    "between": (between(1, 2, "gap"), {"effect": noisy(1.5, 8)}, {"effect": noisy(2.5, 8)}),
    "exponent": (
        exponent(1.5, 2.5, "time", "width"),
        {"x": np.array([1.0, 2.0, 4.0]), "y": np.array([1.0, 4.0, 16.0]) * noisy(1, 6, 1)},
        {"x": np.array([1.0, 2.0, 4.0]), "y": np.array([1.0, 2.0, 4.0]) * noisy(1, 6, 1)},
    ),
    "slope": (
        slope("width", above=0.2, what="decades"),
        {"x": np.array([2.0, 4.0, 16.0]), "y": np.array([0.0, 0.5, 1.5]) + noisy(0, 6, 1)},
        {"x": np.array([2.0, 4.0, 16.0]), "y": np.array([0.0, 0.1, 0.3]) + noisy(0, 6, 3)},
    ),
    "falling": (
        slope("width", below=0.0),
        {"x": np.array([2.0, 4.0]), "y": np.array([1.0, 0.5]) + noisy(0, 6, 1)},
        {"x": np.array([2.0, 4.0]), "y": np.array([0.5, 1.0]) + noisy(0, 6, 1)},
    ),
    "ratio": (
        above(2.0, "ratio", "slow", "fast", statistic="ratio"),
        {"one": noisy(3.0, 8), "other": noisy(1.0, 8)},
        {"one": noisy(1.0, 8), "other": noisy(3.0, 8)},
    ),
    "spread": (
        below(0.5, "spread", statistic="spread"),
        {"one": noisy(1.0, 40, spread=0.4), "other": noisy(1.0, 40, spread=0.04)},
        {"one": noisy(1.0, 40, spread=0.04), "other": noisy(1.0, 40, spread=0.4)},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rule_comes_out_both_ways(kind):
    rule, true, false = KINDS[kind]
    yes, no = rule.decide(true), rule.decide(false)
    assert (yes.ruling, no.ruling) == (SUPPORTED, CONTRADICTED)
    assert rule.sentence.startswith("supported if ")
    assert yes.low <= yes.effect <= yes.high
    assert rule.effect[1:] in yes.sentence
    assert yes.runs == sum(np.size(true[k]) for k in ("effect", "y", "one", "other") if k in true)
    json.dumps(plain(yes))  # goes to disk as it is


@pytest.mark.parametrize("kind", KINDS)
def test_runs_that_diverged_decide_nothing(kind):
    rule, true, _ = KINDS[kind]
    broken = {k: v.copy() if k == "x" else np.where(np.arange(len(v)) == 1, NAN, v.T).T
              for k, v in true.items()}  # fmt: skip
    found = rule.decide(broken)
    assert found.ruling == INCONCLUSIVE
    assert "Too few runs ended with numbers" in found.sentence


def test_a_run_that_lost_infinitely_decides_nothing():
    found = above(0.0, "decades").decide({"effect": np.array([1.0, 2.0, -INF])})
    assert found.ruling == INCONCLUSIVE


def test_a_slope_counts_per_doubling():
    rule = slope("width", above=0.0, what="decades")
    found = rule.decide({"x": np.array([32.0, 128.0]), "y": np.array([[1.0, 2.0]] * 3)})
    assert found.effect == pytest.approx(0.5)
    assert rule.effect == "decades per doubling of the width"
    assert (rule.low, rule.high) == (0.0, INF)


def test_a_premise_that_fails_decides_nothing_and_says_so():
    rule = above(1.0, "gap", premise="both sides fit the data")
    held = {"effect": noisy(1.5, 4), "premise": np.array([True] * 4)}
    assert rule.decide(held).ruling == SUPPORTED
    assert rule.sentence == "supported if gap is above 1, provided that both sides fit the data"
    for premise in (np.array([True, False, True, True]), np.array([False] * 4), np.array(False)):
        found = rule.decide(held | {"premise": premise})
        assert found.ruling == INCONCLUSIVE
        assert "Not decided: it is not so that both sides fit the data." in found.sentence


def test_a_scalar_premise_leaves_the_effect_as_it_is():
    found = above(1.0, "gap", premise="p").decide({"effect": noisy(1.5, 4), "premise": False})
    assert found.effect == pytest.approx(1.5, abs=0.02)
    assert found.ruling == INCONCLUSIVE


def test_an_interval_across_the_limit_says_that_seeds_do_not_decide():
    found = above(1.0, "gap").decide({"effect": noisy(1.0, 8, spread=0.5)})
    assert found.ruling == INCONCLUSIVE
    assert "these seeds do not decide" in found.sentence


def test_rules_say_what_they_are():
    assert below(2, "x").sentence == "supported if x is below 2"
    assert between(1, 2, "x").sentence == "supported if x lies in [1, 2]"
    power = exponent(1.5, 2.5, "time", "width")
    assert power.sentence == "supported if the exponent of time against width lies in [1.5, 2.5]"
    assert above(1, "x", revised=True).sentence.endswith(
        "(revised after a first look at the same seeds)"
    )
    assert (
        above(1, "x", note="By chance.")
        .decide({"effect": noisy(2, 3)})
        .sentence.endswith("By chance.")
    )


# --------------------------------------------------------------------------------- measurements


def test_a_comparison_is_a_difference_unless_told_otherwise():
    found = comparison([3, 4], [1, 1], curve=np.ones(2))
    assert found["effect"].tolist() == [2.0, 3.0]
    assert comparison([3], [1], effect=[7])["effect"].tolist() == [7.0]
    assert log10_ratio([100, 1], [1, 10])["effect"].tolist() == [2.0, -1.0]
    assert np.isnan(log10_ratio([0], [0])["effect"]).all()  # and no warning


def test_evidence_is_drawn_from_what_was_measured():
    rule = above(0.0, "gap", "softmax", "gaussian")
    sides = rule.decide(comparison(noisy(2, 4), noisy(1, 4)))
    assert [c.label for c in sides.panel.curves] == ["softmax", "gaussian"]
    assert "softmax 2" in sides.sentence
    curves = {"curve softmax": np.ones((4, 5)), "curve gaussian": np.ones((4, 5)), "every": 10}
    panel = rule.decide(comparison(noisy(2, 4), noisy(1, 4), **curves)).panel
    assert panel.curves[0].x.tolist() == [0, 10, 20, 30, 40]
    power = exponent(0, 3, "time", "width").decide(KINDS["exponent"][1]).panel
    assert (power.log_x, power.log_y) == (True, True)
    assert rule.decide({"effect": noisy(2, 4)}).panel is None


# ----------------------------------------------------------------------------- claims and plans


def test_a_plan_reads_its_control():
    usual, control = Plan(), Plan(control=(("labels", "twins"),))
    assert usual.get("labels", "teacher") == "teacher"
    assert control.get("labels", "teacher") == "twins"
    assert control.get("width", 64) == 64


def test_a_claim_of_a_function_has_three_sizes():
    seen = []

    def measure(plan):
        seen.append(plan)
        mean = plan.get("gain", 2.0)
        return {"effect": noisy(mean, plan.seeds)}

    made = FAKES.claim(
        "k", "Gains gain.", measure, None, above(1.0, "gain"), control={"gain": 0.5}, source="ours",
        quick=Plan(seeds=4, width=8), full={"seeds": 32, "minutes": 5.0},
    )  # fmt: skip
    assert (made.quick.seeds, made.full.seeds, made.full.width) == (4, 32, 8)
    assert made.control == Plan(seeds=4, width=8, control=(("gain", 0.5),))
    assert made.decide(made.measure(made.quick)).ruling == SUPPORTED
    assert made.decide(made.measure(made.control)).ruling == CONTRADICTED
    assert seen[1].control == (("gain", 0.5),)


def test_a_control_may_have_sizes_of_its_own():
    made = FAKES.claim(
        "k", "S.", lambda plan: {}, None, above(1.0, "x"), control={"a": 1},
        quick=Plan(seeds=4), control_plan=Plan(seeds=16, steps=9),
    )  # fmt: skip
    assert (made.control.seeds, made.control.steps, made.control.get("a", 0)) == (16, 9, 1)


@pytest.mark.parametrize(
    ("study", "statistic", "rule", "complaint"),
    [
        (sh.Study("doe2024"), None, above(1, "x"), "a study needs a statistic"),
        (sh.Study("doe2024"), lambda run: run, None, "a claim needs a rule"),
    ],
)
def test_half_a_claim_is_refused(study, statistic, rule, complaint):
    with pytest.raises(InputError, match=complaint):
        FAKES.claim("k", "S.", study, statistic, rule)


def test_a_source_is_one_of_three():
    paper = sh.Paper(toy_paper.Doe, key="other")
    try:
        with pytest.raises(InputError, match="expected 'paper'"):
            paper.claim("k", "S.", lambda plan: {}, None, above(1, "x"), source="a friend")
        made = paper.claim(
            "k", "S.", lambda plan: {}, None, above(1, "x"), source="ours, after Th 1"
        )
        assert made.key == "other.k"
        assert paper.claims == [made]
    finally:
        toy_paper.Doe.paper = toy_paper.PAPER


CLAIMS = {claim.key.partition(".")[2]: claim for claim in toy_paper.PAPER.claims}


@pytest.mark.parametrize("key", CLAIMS)
def test_the_toy_s_claims_are_supported_and_their_controls_contradicted(key):
    claim = CLAIMS[key]
    found = claim.decide(claim.measure(claim.quick))
    assert found.ruling == SUPPORTED, found.sentence
    control = claim.decide(claim.measure(claim.control))
    assert control.ruling == CONTRADICTED, control.sentence


def test_the_same_seeds_give_the_same_measurement():
    claim = CLAIMS["gain_helps"]
    first, second = claim.measure(claim.quick), claim.measure(claim.quick)
    assert set(first) == set(second) == {"x", "y"}
    assert first["y"].shape == (4, 2)
    assert first["y"].tobytes() == second["y"].tobytes()


def test_more_seeds_begin_with_the_same_ones():
    claim = CLAIMS["gain_helps"]
    few, more = (claim.measure(Plan(seeds=k))["y"] for k in (2, 4))
    np.testing.assert_allclose(more[:2], few, rtol=1e-12)


# ------------------------------------------------------------------------------ what is kept


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where measurements are kept."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    return tmp_path / "measurements"


def kept(claim, plan, calls=None):
    def make():
        if calls is not None:
            calls.append(plan)
        return claim.measure(plan)

    return cache.cached(about(claim, plan), make)


FAKE = FAKES.claim(
    "claim", "Fakes are made up.", lambda plan: {"effect": noisy(plan.width, plan.seeds)},
    None, above(1.0, "gap"), control={"width": 0}, quick=Plan(seeds=4, width=8),
)  # fmt: skip


def test_a_finished_measurement_is_not_repeated(folder):
    calls = []
    first = kept(FAKE, FAKE.quick, calls)
    second = kept(FAKE, FAKE.quick, calls)
    assert len(calls) == 1
    assert (first.found, second.found) == (False, True)
    assert second.seconds == first.seconds
    assert second.arrays["effect"].tobytes() == first.arrays["effect"].tobytes()
    assert FAKE.decide(first.arrays)[:3] == FAKE.decide(second.arrays)[:3]


@pytest.mark.parametrize("damage", [b"damaged", b"", {}, {"_seconds": np.ones(2), "_names": "x"}])
def test_damaged_measurements_are_redone(folder, damage):
    calls = []
    kept(FAKE, FAKE.quick, calls)
    (path,) = folder.glob("*.npz")
    if isinstance(damage, dict):
        np.savez(path, effect=np.ones(4), **damage)  # without what says that it is whole
    else:
        path.write_bytes(damage)
    assert not kept(FAKE, FAKE.quick, calls).found
    assert len(calls) == 2
    assert kept(FAKE, FAKE.quick, calls).found


def test_an_interrupted_measurement_leaves_nothing(folder):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.cached(["x"], interrupted)
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_is_no_error(folder):
    folder.write_text("")
    assert kept(FAKE, FAKE.quick).arrays["effect"].shape == (4,)


def test_the_name_depends_on_plan_claim_code_and_libraries(monkeypatch):
    other = FAKE._replace(key="fake.other")
    cases = ((FAKE, FAKE.quick), (other, FAKE.quick), (FAKE, FAKE.full), (FAKE, FAKE.control))
    names = [cache._name_of(about(*case)) for case in cases]
    assert cache._name_of(about(FAKE, FAKE.quick)) == names[0]
    monkeypatch.setattr(cache, "code_version", lambda: "another")
    names.append(cache._name_of(about(FAKE, FAKE.quick)))
    monkeypatch.setattr(cache, "version", lambda name: "another")
    names.append(cache._name_of(about(FAKE, FAKE.quick)))
    assert len(set(names)) == 6


def test_the_code_s_version_knows_what_can_change_a_number(tmp_path, monkeypatch):
    for name in ("lab/engine.py", "papers/one/model.py", "papers/two/model.py", "cli/x.py", "k.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(cache.shoal, "__file__", str(tmp_path / "__init__.py"))

    def versions():
        cache.code_version.cache_clear()
        return cache.code_version(), cache.code_version("one"), cache.code_version("two")

    try:
        whole, one, two = versions()
        (tmp_path / "cli/x.py").write_text("2")
        assert versions() == (whole, one, two)
        (tmp_path / "papers/one/model.py").write_text("2")
        now = versions()
        assert now[2] == two
        assert now[0] != whole
        assert now[1] != one
        (tmp_path / "k.c").write_text("2")
        assert all(a != b for a, b in zip(versions(), now, strict=True))
    finally:
        cache.code_version.cache_clear()


def test_a_paper_s_file_counts_by_its_content():
    assert len(cache.source_of(toy_paper.Doe)) == 16
    assert cache.source_of(type("Made", (), {"__module__": "nowhere"})) == ""


def test_an_entry_as_json_has_what_a_reader_needs():
    found = FAKE.measure(FAKE.quick)
    entry = Entry(FAKE, FAKE.quick, FAKE.decide(found), 0.1234, cached=False)
    said = entry_json(entry)
    assert said["setting"] == "our setting: seeds=4, width=8"
    assert said["verdict"] == "supported"
    assert said["rule"] == FAKE.rule.sentence
    assert said["interval"][0] <= said["effect"] <= said["interval"][1]
    assert said["seconds"] == 0.12
    (kept,) = ledger_json([entry])
    assert json.loads(json.dumps(kept)) == kept
    assert "panel" in kept


def test_a_rule_is_plain_data():
    assert Rule("x") == Rule("x", -INF, INF)
    assert "NaN" not in json.dumps(plain(Rule("x")))


def test_a_figure_may_be_its_caption_and_panels_in_the_sizes_of_a_claim(monkeypatch):
    monkeypatch.setattr(toy_paper.Doe, "paper", toy_paper.PAPER)  # another paper takes its place
    paper = sh.Paper(toy_paper.Doe, key="other")
    quick = Plan(seeds=3)
    paper.claim("c", "s", lambda plan: {}, rule=above(0.0, "w"), quick=quick, full={"seeds": 9})

    @paper.figure("seeds", "Seeds")
    def seeds(full):
        return (
            f"{paper.sizes('c', full).seeds} seeds",
            Panel("first", "", ""),
            Panel("last", "", ""),
        )

    found = paper.figures[0].make(True)
    assert (found.key, found.title, found.caption) == ("seeds", "Seeds", "9 seeds")
    assert [panel.title for panel in found.panels] == ["first", "last"]
    assert seeds(False).caption == "3 seeds"
