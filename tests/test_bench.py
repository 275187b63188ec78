"""Benchmarks: sides agree, ratios are told, and nothing is asserted about seconds."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.cli import benching, main

FOLDER = benching.folder()
QUICK = '''
"""A question that takes no time."""
import sys
sys.path.insert(0, {folder!r})
import harness


def steady(precision, **values):
    import numpy as np
    return lambda: {{"x": np.ones(3)}}


def wrong(precision, **values):
    import numpy as np
    return lambda: {{"x": np.ones(3) * 1.1}}


def absent(precision, **values):
    import nothing_of_that_name
    return None


SIDES = {{"shoal": steady, "liar": wrong, "absent": absent}}
QUESTION = harness.Question(
    "Quick", "Nothing.", "step",
    (harness.Case("tiny", {{}}, dict.fromkeys(SIDES, 2), 1e6, "float64"),), SIDES,
)
if __name__ == "__main__":
    harness.main(QUESTION)
'''


@pytest.mark.slow
def test_sides_are_compared_before_they_are_timed(tmp_path):
    script = tmp_path / "quick.py"
    script.write_text(QUICK.format(folder=str(FOLDER)))
    done = subprocess.run(
        [sys.executable, str(script), "--rounds", "2"], capture_output=True, check=True, text=True
    )
    (case,) = json.loads(done.stdout)["cases"]
    rows = {row["side"]: row for row in case["rows"]}
    assert set(rows) == {"shoal", "liar"}
    assert rows["shoal"]["agrees"]
    assert not rows["liar"]["agrees"]
    assert rows["liar"]["difference"] == pytest.approx(0.1)
    assert "nothing_of_that_name" in case["missing"]["absent"]
    assert case["rate"] > 1e8  # a matrix product was timed beside them
    told = benching.case_rows(case)
    assert told[0][3] == "1.00"
    assert told[1][-1].endswith("WRONG")
    assert told[2][0].startswith("absent: ")


@pytest.mark.parametrize(
    "name", [q for q in benching.QUESTIONS if q not in ("growth", "cold_start")]
)
def test_every_side_answers_what_shoal_answers(name, monkeypatch):
    """On small sizes, in this process; PyTorch's sides where it is installed."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"bench_{name}", FOLDER / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    question = script.QUESTION
    small = {
        "num_samples": 6, "num_tokens": 3, "dim": 4, "width": 8, "num_heads": 4, "num_steps": 4,
    }  # fmt: skip
    if name == "small_runs":
        script.SEEDS, script.LONG = 2, script.SHORT
    if name == "probes":
        small["num_steps"] = 50  # once and again
    values = {k: small.get(k, v) for k, v in question.cases[0].values.items()}
    answers = {}
    for side, make in question.sides.items():
        if "torch" in side.lower() and importlib.util.find_spec("torch") is None:
            continue
        if side != "torch.compile":  # minutes of work for a C compiler
            answers[side] = make("float64", **values)()
    if len(answers) < 2:
        pytest.skip("nothing to compare with: PyTorch is not installed")
    first = next(iter(answers.values()))
    for answer in answers.values():
        for key, value in first.items():
            np.testing.assert_allclose(answer[key], value, rtol=1e-9, atol=1e-12)


def test_an_interrupted_bench_keeps_the_questions_that_are_answered(tmp_path, monkeypatch, capsys):
    words = ["bench", "training", "kernel", "--rounds", "2", "--out", str(tmp_path / "out")]
    answer = {"title": "T", "about": "A.", "unit": "step", "cases": []}
    asked, stops = [], ["kernel"]

    def run(script, rounds):
        asked.append((script.stem, rounds))
        if script.stem in stops:
            raise KeyboardInterrupt
        return answer | {"title": script.stem}

    monkeypatch.setattr(benching, "_run", run)
    assert main(words) == 130
    assert "finished questions are kept, and the same command continues" in capsys.readouterr().err
    assert not (tmp_path / "out" / "bench.json").exists()
    stops.clear()
    assert main([*words[:-3], "3", *words[-2:]]) == 0  # other rounds are another measurement
    assert asked == [("training", 2), ("kernel", 2), ("training", 3), ("kernel", 3)]
    stops.append("kernel")
    assert main(words) == 130
    stops.clear()
    assert main(words) == 0
    assert asked[4:] == [("training", 2), ("kernel", 2), ("kernel", 2)]
    made = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [made["questions"][name]["title"] for name in words[1:3]] == ["training", "kernel"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["bench.json", "index.html"]


def test_bad_questions_are_refused(capsys):
    assert main(["bench", "trainig"]) == 2
    assert "training" in capsys.readouterr().err
    assert main(["bench", "training", "--rounds", "0"]) == 2


def test_a_document_keeps_what_was_written_by_hand(tmp_path):
    path = tmp_path / "performance.md"
    about = {
        "made": "today", "machine": "2 cores", "code_in_c": True, "versions": {},
        "questions": {"q": {"title": "T", "about": "A.", "unit": "step", "cases": []}},
    }  # fmt: skip
    path.write_text(f"old\n{benching.MARK}By hand.\n")
    benching.write_markdown(path, about, None)
    text = path.read_text()
    assert "old" not in text
    assert "## T" in text
    assert text.endswith("By hand.\n")


def test_growth_is_drawn_with_its_exponents():
    curve = {
        "what": "step", "axis": "width", "sizes": [1, 2, 4], "seconds": [1.0, 2.0, 4.0],
        "peak": [1.0, 1.0, 1.0], "seconds_exponent": [1.0, 0.9, 1.1],
        "peak_exponent": [0.0, 0.0, 0.0],
    }  # fmt: skip
    growth = {"title": "Growth", "curves": [curve]}
    assert benching.growth_rows(growth)[0][2] == "1.00 [0.90, 1.10]"
    panels = benching.growth_figure(growth).panels
    assert panels[0].curves[0].y.tolist() == [1.0, 2.0, 4.0]


def test_the_package_carries_the_scripts():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert 'benchmarks = "shoal/benchmarks"' in text
