"""The planner: known thresholds are found again; and real questions, small."""

import json
from pathlib import Path

import numpy as np
import pytest

from shoal import workers
from shoal.cli import main
from shoal.errors import InputError
from shoal.sweeps import planner

TOY = str(Path(__file__).with_name("toy_paper.py"))


def known(limits):
    """Answers as if seed s needed width limits[kind](samples, s)."""

    def ask(questions):
        asked.extend(questions)
        for q in reversed(questions):
            yield q, [q["width"] >= limits[q["kind"]](q["samples"], s) for s in range(q["seeds"])]

    asked: list = []
    ask.asked = asked
    return ask


def search(**changes):
    usual = {"samples": (2, 4, 8), "seeds": 3, "octaves": (2, 9), "highest": 20}
    return planner.make_search(TOY, {}, **(usual | changes))


def test_known_thresholds_and_exponents_are_found_by_bisection():
    ask = known(
        {
            "trains": lambda n, s: 4 * n * (1 + (s == 2)),
            "certified": lambda n, s: 16 * n**3 * (1 + (s == 1)),
        }
    )
    result = planner.carry_out(search(), ask)
    np.testing.assert_array_equal(result.trains.widths, [[8, 8, 16], [16, 16, 32], [32, 32, 64]])
    np.testing.assert_array_equal(result.certified.widths[:, 0], [128, 1024, 8192])
    np.testing.assert_array_equal(result.certified.widths[:, 1], [256, 2048, 16384])
    assert result.certified.fit.slope == pytest.approx(3.0, abs=1e-9)
    assert result.trains.fit.slope == pytest.approx(1.0, abs=1e-9)
    assert result.certified.fit.low < 3 < result.certified.fit.high
    # 19 octaves for three numbers of samples: bisection asks a few times, not 57
    certified = [q for q in ask.asked if q["kind"] == "certified"]
    assert len(certified) <= 3 * 8
    assert result.converged[0].tolist() == pytest.approx([0, 2 / 3, 1, 1, 1, 1, 1, 1])


def test_a_width_that_does_not_exist_is_said_to_be_none():
    ask = known({"trains": lambda n, s: 4, "certified": lambda n, s: float("inf")})
    result = planner.carry_out(search(), ask)
    assert np.isnan(result.certified.widths).all()
    assert result.certified.fit is None
    assert "too few" in planner.exponent_text("x", result.certified)
    assert planner.figure(result).panels


def test_a_question_is_answered_by_training_and_by_the_theorem(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    plan = search(seeds=2, theorem="theorem_1")
    # two samples need two weights of the linear model; with one the kernel is singular
    certified = planner._question(plan, "certified", 2, 2)
    assert certified["paper"] == TOY
    assert planner.answer(certified) == [True] * 2
    assert planner.answer(certified | {"width": 1}) == [False] * 2
    trains = planner._question(plan, "trains", 2, 2)
    assert planner.answer(trains | {"target": 0.999999}) == [True] * 2
    assert planner.answer(trains | {"target": 1e-300}) == [False] * 2
    assert planner.answer(trains | {"target": 1e-300}) == [False] * 2
    assert len(list((tmp_path / "measurements").iterdir())) == 4  # each kept once


BAD = {
    "one number of samples": ["--samples", "2"],
    "a word": ["--samples", "2,x"],
    "target": ["--target", "2"],
    "seeds": ["--seeds", "1"],
    "theorem": ["--theorem", "theorem_z"],
    "theorem that allows no step": ["--theorem", "kernel_regime"],
    "theorem of another method": ["--set", "method=adam"],
    "what is varied": ["--set", "width=3"],
    "setting": ["--set", "widht=3"],
}


@pytest.mark.parametrize("what", BAD)
def test_bad_plans_are_refused(what, capsys):
    assert main(["plan", TOY, *BAD[what]]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_paper_without_widths_has_no_plan(tmp_path):
    text = Path(TOY).read_text().replace("width", "breadth").replace("doe2024", "doe2023")
    (tmp_path / "narrow.py").write_text(text)
    with pytest.raises(InputError, match="no plan and no setting called width"):
        planner.make_search(str(tmp_path / "narrow.py"), {})


def test_the_command_draws_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "shoal.cli.planning._asking",
        lambda _: known({"trains": lambda n, s: 4 * n, "certified": lambda n, s: 16 * n**2}),
    )
    words = ["plan", TOY, "--samples", "2,4,8", "--seeds", "3"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["certified"]["fit"]["slope"] == pytest.approx(2.0)
    for name in ("plan.png", "plan.pdf", "plan.json", "plan.parquet", "index.html"):
        assert (tmp_path / "plan-doe2024" / name).stat().st_size > 500
    assert main([*words, "--out", "other"]) == 0
    assert "theorem_1 from width" in capsys.readouterr().out


@pytest.mark.slow
def test_workers_answer_for_a_paper_in_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(Path(TOY).read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "mine.py", "--samples", "2,4", "--seeds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # a linear model with as many weights as samples fits them, and its kernel is regular
    assert found["certified"]["widths"] == [[4.0, 4.0], [4.0, 4.0]]


def test_a_question_is_a_task_of_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    question = planner._question(search(seeds=2), "certified", 2, 2)
    task = json.loads(json.dumps({"question": question}))
    assert workers.perform(task) == [True, True]
