"""Claims: rules, planted violations, and a ledger that continues."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal import keeping, ledger
from shoal.claims import Interval, Ruling, above, mean_interval, within
from shoal.cli import main
from shoal.ledger import measured
from shoal.papers import PAPERS, wu2023
from shoal.papers.wu2023 import trials

CLAIMS = [claim for paper in PAPERS.values() for claim in paper.claims]


def test_the_interval_is_student_s():
    x = np.array([0.3, 1.2, -0.4, 0.9, 2.0])
    half = stats.t.ppf(0.975, 4) * x.std(ddof=1) / 5**0.5
    found = mean_interval(x)
    assert found == pytest.approx((x.mean(), x.mean() - half, x.mean() + half), rel=1e-12)


def test_the_interval_covers_the_truth_in_95_of_100_experiments():
    draws = np.random.default_rng(0).normal(1.0, 2.0, size=(2000, 8))
    covered = np.mean([i.low <= 1 <= i.high for i in map(mean_interval, draws)])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_equal_samples_are_a_point_and_nonsense_is_inconclusive():
    assert mean_interval(np.full(5, 2.0)) == Interval(2.0, 2.0, 2.0)
    assert above(mean_interval(np.array([1.0, np.nan])), 0.0) == Ruling.INCONCLUSIVE
    assert above(mean_interval(np.array([1.0])), 0.0) == Ruling.INCONCLUSIVE


def test_a_tie_is_not_ahead():
    assert above(Interval(0.0, 0.0, 0.0), 0.0) == Ruling.CONTRADICTED
    from shoal.papers.song2024.claims_classifier import decide_real

    half = np.full((3, 6), 0.5)
    sides = {f"{k}_{what}": half for k in ("softmax", "gaussian") for what in ("accuracy", "loss")}
    found = sides | {"softmax_step": 0.1, "gaussian_step": 0.1, "step": np.arange(6)}
    assert decide_real(found).ruling == Ruling.INCONCLUSIVE
    better = found | {"gaussian_accuracy": half + np.array([[0.3], [0.31], [0.32]])}
    assert decide_real(better).ruling == Ruling.SUPPORTED
    lost = better | {"softmax_accuracy": np.full((3, 6), np.nan)}
    assert decide_real(lost).ruling == Ruling.INCONCLUSIVE


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2, 0.8, Ruling.SUPPORTED),
        (-0.1, 0.5, Ruling.INCONCLUSIVE),
        (0.9, 1.1, Ruling.INCONCLUSIVE),
        (1.1, 1.2, Ruling.CONTRADICTED),
        (-1.0, -0.1, Ruling.CONTRADICTED),
        (-1.0, 2.0, Ruling.INCONCLUSIVE),
    ],
)
def test_a_range_decides_by_the_whole_interval(low, high, expected):
    assert within(Interval((low + high) / 2, low, high), 0.0, 1.0) == expected


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.key)
def test_a_planted_violation_is_contradicted(claim):
    found = claim.decide(claim.measure(claim.planted))
    assert found.ruling == Ruling.CONTRADICTED, found.sentence


def test_claims_are_many_and_described():
    assert len(wu2023.PAPER.claims) >= 12
    assert len({c.key for c in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.statement.endswith(".")
        assert claim.rule.startswith("supported if")
        assert claim.planted.plant
        assert not claim.quick.plant


def test_a_side_that_diverged_decides_nothing():
    from shoal.papers.wu2023.claims_training import decide_small_width

    broken, fine = np.full((4, 5), np.nan), np.ones((4, 5))
    for favoured, other in ((broken, broken), (fine, broken), (broken, fine)):
        found = decide_small_width({"favoured": favoured, "other": other})
        assert found.ruling == Ruling.INCONCLUSIVE
        assert "diverged" in found.sentence


def test_the_bisection_finds_the_first_width(monkeypatch):
    import jax

    from shoal.papers.wu2023 import claims_kernel as kernel

    limit = {"value": 0.0}

    def constants(start):
        width = jnp.sum(jnp.any(start.params0.W_V != 0, axis=1))
        holds = jnp.where(width >= limit["value"], 0.0, 2.0)
        return {"alpha": 1.0, "alpha_resolution": 0.0, "mu": 0.0, "c_5": holds}

    monkeypatch.setattr(kernel.theorems, "flow_constants", constants)
    problem = wu2023.problem(wu2023.Setting(num_samples=2, num_tokens=2, dim=3))
    keys, widths = jax.random.split(jax.random.key(0), 2), jnp.array([2.0, 4.0, 8.0, 16.0, 32.0])
    for value, expected in ((0.0, 0), (3.0, 1), (32.0, 4), (64.0, 5)):
        limit["value"] = value
        jax.clear_caches()
        found = kernel._smallest_certified(problem, keys, widths, 1.0, 64)
        assert found.tolist() == [expected, expected]


def test_decisions_can_come_out_either_way():
    rng = np.random.default_rng(0)
    steps = np.arange(201)
    from shoal.papers.wu2023.claims_kernel import decide_training_width, decide_uniform
    from shoal.papers.wu2023.claims_training import decide_freezing, decide_linear, decide_rank

    fall = np.exp(-0.05 * steps)[None] * np.exp(0.01 * rng.normal(size=(8, 1)))
    slow = (1 / (1 + steps) ** 0.2)[None] * np.ones((8, 1))
    assert decide_linear({"risk": fall}).ruling == Ruling.SUPPORTED
    assert decide_linear({"risk": fall + 0.5}).ruling == Ruling.CONTRADICTED
    for wrong in (1 / (1 + steps), (1.0 + steps) ** -0.2, np.exp(0.05 * steps)):
        assert decide_linear({"risk": wrong[None] * fall[:, :1]}).ruling == Ruling.CONTRADICTED
    left = np.array([[1.0, 0.05, *[0.01] * 6, 0.0]]) * np.ones((8, 1))
    assert decide_freezing({"left": left}).ruling == Ruling.SUPPORTED
    assert decide_rank({"favoured": fall, "other": slow}).ruling == Ruling.SUPPORTED
    N = np.array([4, 8, 16, 32])
    noise = np.exp(0.02 * rng.normal(size=(4, 8)))
    square = {"samples": N, "width": N[:, None] ** 2 * noise}
    assert decide_training_width(square).ruling == Ruling.SUPPORTED
    widths = np.array([32, 128, 512])
    flat = {"width": widths, "deficit": 0.1 * np.exp(0.01 * rng.normal(size=(3, 8)))}
    assert decide_uniform(flat).ruling == Ruling.CONTRADICTED


# --------------------------------------------------------------------------------- the ledger

CHEAP = ("wu2023.attention_tends_to_uniform", "wu2023.rank_is_needed")


def claim_of(key):
    return next(c for c in CLAIMS if c.key == key)


def test_the_same_seeds_give_the_same_measurement():
    claim = claim_of("wu2023.rank_is_needed")
    first = claim.measure(claim.quick)
    trials._once.cache_clear()
    second = claim.measure(claim.quick)
    for name, value in first.items():
        assert np.asarray(value).tobytes() == np.asarray(second[name]).tobytes()


def test_a_finished_measurement_is_not_repeated(tmp_path):
    claim = claim_of("wu2023.attention_tends_to_uniform")
    calls = []

    def counted(plan):
        calls.append(plan)
        return claim.measure(plan)

    watched = claim._replace(measure=counted)
    first = measured(watched, claim.quick, tmp_path)
    second = measured(watched, claim.quick, tmp_path)
    assert len(calls) == 1
    assert (first[2], second[2]) == (False, True)
    assert claim.decide(first[0])[:3] == claim.decide(second[0])[:3]
    (path,) = tmp_path.glob("*.npz")
    path.write_bytes(b"damaged")
    measured(watched, claim.quick, tmp_path)
    assert len(calls) == 2


def test_the_key_depends_on_plan_claim_and_code(monkeypatch):
    a, b = claim_of(CHEAP[0]), claim_of(CHEAP[1])
    keys = {
        keeping.name_of(ledger.about(a, a.quick)),
        keeping.name_of(ledger.about(b, a.quick)),
        keeping.name_of(ledger.about(a, a.full)),
    }
    monkeypatch.setattr("shoal.keeping.code_version", lambda: "another")
    keys.add(keeping.name_of(ledger.about(a, a.quick)))
    assert len(keys) == 4


def test_the_command_lists_and_keeps_the_ledger(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    words = ["claims", *CHEAP, "--out", "ledger", "--markdown", "ledger.md"]
    assert main([*words, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [c["id"] for c in first] == list(CHEAP)
    for claim in first:
        wanted = {"statement", "setting", "effect", "interval", "runs", "verdict", "seconds"}
        assert wanted <= set(claim)
        assert claim["interval"][0] <= claim["effect"] <= claim["interval"][1]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first  # seconds too: nothing was measured again
    assert (tmp_path / "ledger" / "index.html").stat().st_size > 10**6
    text = (tmp_path / "ledger.md").read_text()
    assert first[0]["sentence"] in text
    assert "cores" in text
    assert main(words) == 0
    assert "(kept)" in capsys.readouterr().out


def test_unknown_claims_and_figures_are_refused(capsys):
    for words, hint in (
        (["claims", "wu2023.rank_is_neded"], "wu2023.rank_is_needed"),
        (["claims", "wu1923"], "wu2023"),
        (["reproduce", "wu2023.scalling"], "scaling"),
        (["report", "nowhere"], "not a run folder"),
    ):
        assert main(words) == 2
        said = capsys.readouterr()
        assert hint in said.err
        assert said.out == ""


def test_the_kept_ledger_document_is_up_to_date_with_the_claims():
    from pathlib import Path

    text = (Path(__file__).parent.parent / "docs" / "ledger.md").read_text()
    for claim in CLAIMS:
        assert claim.key in text
        assert claim.statement in text
        assert claim.rule in text
