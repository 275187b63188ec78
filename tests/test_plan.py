"""The planner: thresholds that are known, found again; and the real thing, small."""

import json

import numpy as np
import pytest

from shoal.cli import main
from shoal.errors import InputError
from shoal.papers import PAPERS, wu2023
from shoal.sweeps import planner


def known(limits):
    """Answers as if seed s needed width limits[kind](samples, s)."""

    def ask(questions):
        asked.extend(questions)
        for q in reversed(questions):
            yield q, [q["width"] >= limits[q["kind"]](q["samples"], s) for s in range(q["seeds"])]

    asked: list = []
    ask.asked = asked
    return ask


def plan(**changes):
    return planner.default_plan(wu2023.PAPER, {}, samples=(2, 4, 8), seeds=3, **changes)


def test_known_thresholds_and_exponents_are_found_by_bisection():
    ask = known(
        {
            "trains": lambda n, s: 4 * n * (1 + (s == 2)),
            "certified": lambda n, s: 16 * n**3 * (1 + (s == 1)),
        }
    )
    found = planner.carry_out(plan(), ask)
    np.testing.assert_array_equal(found.trains.widths, [[8, 8, 16], [16, 16, 32], [32, 32, 64]])
    np.testing.assert_array_equal(found.certified.widths[:, 0], [128, 1024, 8192])
    np.testing.assert_array_equal(found.certified.widths[:, 1], [256, 2048, 16384])
    assert found.certified.fit.slope == pytest.approx(3.0, abs=1e-9)
    assert found.trains.fit.slope == pytest.approx(1.0, abs=1e-9)
    assert found.certified.fit.low < 3 < found.certified.fit.high
    # 19 octaves for three numbers of samples: bisection asks a few times, not 57
    certified = [q for q in ask.asked if q["kind"] == "certified"]
    assert len(certified) <= 3 * 8
    assert found.converged[0].tolist() == pytest.approx([0, 2 / 3, 1, 1, 1, 1, 1, 1])


def test_a_width_that_does_not_exist_is_said_to_be_none():
    ask = known({"trains": lambda n, s: 4, "certified": lambda n, s: float("inf")})
    found = planner.carry_out(plan(), ask)
    assert np.isnan(found.certified.widths).all()
    assert found.certified.fit is None
    assert "too few" in planner.said("x", found.certified)
    assert planner.figure(found).panels


def test_a_question_is_answered_by_training_and_by_the_theorem(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    about = plan()._replace(values=dict(wu2023.PAPER.planned.values) | {"num_steps": 50, "dim": 16})
    wide = planner._question(about, "certified", 2, 16)
    assert planner.answer(wide) == [True] * 3
    assert planner.answer(wide | {"width": 4}) == [False] * 3
    trains = planner._question(about, "trains", 2, 6)
    assert planner.answer(trains | {"target": 0.999999}) == [True] * 3
    assert planner.answer(trains | {"target": 1e-300}) == [False] * 3
    assert len(list((tmp_path / "measurements").iterdir())) == 4  # kept


def test_bad_plans_are_refused(capsys):
    assert main(["plan", "song2024"]) == 2
    assert "wu2023" in capsys.readouterr().err
    for words in (
        ["--samples", "2"],
        ["--samples", "2,x"],
        ["--target", "2"],
        ["--seeds", "1"],
        ["--theorem", "theorem_z"],
        ["--set", "width=3"],
    ):
        assert main(["plan", "wu2023", *words]) == 2, words
    with pytest.raises(InputError):
        planner.default_plan(PAPERS["song2024"], {})


def test_the_command_draws_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "shoal.cli.planning._ask",
        known({"trains": lambda n, s: 4 * n, "certified": lambda n, s: 16 * n**2}),
    )
    assert main(["plan", "wu2023", "--samples", "2,4,8", "--seeds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["certified"]["fit"]["slope"] == pytest.approx(2.0)
    for name in ("plan.png", "plan.pdf", "plan.json", "plan.parquet", "index.html"):
        assert (tmp_path / "plan-wu2023" / name).stat().st_size > 1000 or name == "plan.json"
