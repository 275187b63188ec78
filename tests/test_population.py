"""A paper whose risk has no samples: what the core must not assume."""

from pathlib import Path

import numpy as np
import pytest

import shoal as sh
from shoal.cli import main

PATH = str(Path(__file__).with_name("population_paper.py"))


@pytest.fixture(scope="module")
def run():
    return sh.train(sh.setup(sh.papers.paper_of(PATH), seeds=range(2)), probes=["pl_ratio"])


def test_the_flow_follows_the_exact_curve_and_gradient_descent_does_not(run):
    assert sh.certify(run, "theorem_exact").verdicts == ["holds", "holds"]
    descent = sh.train(sh.setup(run.setup.paper, method="gd", num_steps=5))
    assert sh.certify(descent, "theorem_exact").verdict == "violated"


def test_the_exact_curve_agrees_with_the_closed_form(run):
    law, w0 = run.setup.problem, run.setup.params0.w
    gap = (w0 - law.target) * np.exp(-law.spectrum * 0.1 * 20)
    np.testing.assert_allclose(
        run.risk[:, -1], 0.5 * np.sum(law.spectrum * gap**2, axis=1) + 0.25, rtol=1e-7
    )


def test_rates_subtract_the_known_optimum(run):
    assert run.best == 0.25
    law, w0 = run.setup.problem, run.setup.params0.w
    gradient = law.spectrum * (w0 - law.target)
    above = 0.5 * np.sum(law.spectrum * (w0 - law.target) ** 2, axis=1)
    np.testing.assert_allclose(
        run.probes["pl_ratio"][:, 0], np.sum(gradient**2, axis=1) / (2 * above), rtol=1e-12
    )


def test_a_flow_records_times(run):
    frame = run.frame()
    assert frame.columns[:4] == ["seed", "step", "time", "risk"]
    np.testing.assert_allclose(frame["time"].to_numpy()[:3], [0.0, 0.1, 0.2])


def test_what_needs_samples_says_that_there_are_none(run, capsys):
    with pytest.raises(sh.InputError, match="no samples"):
        _ = run.setup.inputs
    assert run.setup.one().kernel() is None
    with pytest.raises(sh.InputError, match="no probe 'kernel_distance'"):
        sh.train(run.setup, probes=["kernel_distance"])
    descent = sh.train(sh.setup(run.setup.paper, method="gd", num_steps=5))
    with pytest.raises(sh.InputError, match="no samples"):
        sh.certify(descent, "kernel_regime")
    assert main(["data", PATH]) == 2
    assert "no sequences of tokens" in capsys.readouterr().err


def test_it_saves_loads_and_draws_itself(run, tmp_path):
    run.save(tmp_path / "r")
    again = sh.load(tmp_path / "r")
    np.testing.assert_array_equal(again.risk, run.risk)
    np.testing.assert_array_equal(again.setup.problem.spectrum, run.setup.problem.spectrum)
    assert sh.certify(again, "theorem_exact").verdict == "holds"
    page = sh.report(again, sh.certify(again, "theorem_exact"), out=tmp_path / "p.html")
    text = page.read_text()
    assert "theorem_exact: exact" in text
    assert "risk above its optimum" in text
