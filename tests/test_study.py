"""Studies: settings x seeds -> runs -> a table, a figure, a measurement."""

import math

import numpy as np
import polars as pl
import pytest

import shoal as sh
import toy_paper
from shoal.errors import InputError
from shoal.lab import study as module
from shoal.lab.own import own_setup
from shoal.lab.run import train
from shoal.lab.setup import paper_setup
from shoal.lab.study import (
    paper_named,
    program_key,
    run_row,
    runs_per_call,
    study_figure,
    trained,
)

DOE, PAPER = toy_paper.Doe, toy_paper.PAPER


def small(**more):
    options = {"grid": {"gain": (1.0, 2.0)}, "seeds": 3, "num_steps": 5} | more
    return sh.Study(DOE, **options)


def test_a_study_is_a_tidy_table():
    frame = small(probes=("movement", "kernel_eigenvalues"), theorems=("theorem_1",)).run()
    assert isinstance(frame, pl.DataFrame)
    assert frame.shape[0] == 6
    assert frame["gain"].to_list() == [1.0] * 3 + [2.0] * 3
    assert frame["seed"].to_list() == [0, 1, 2] * 2
    assert frame["status"].to_list() == ["done"] * 6
    assert frame["theorem_1"].to_list() == ["holds"] * 6
    assert set(frame.columns) >= {"used_step_size", "risk_first", "risk_last", "risk_least",
                                  "probe_movement_w", "probe_kernel_eigenvalues"}  # fmt: skip
    assert len(frame["probe_kernel_eigenvalues"][0]) == 4
    alone = train(paper_setup(PAPER, {"gain": 2.0, "num_steps": 5}, seeds=(1,)))
    row = frame.row(4, named=True)
    assert row["risk_last"] == pytest.approx(alone.risk[0, -1], rel=1e-12)
    assert row["used_step_size"] == alone.step_size[0]


def test_every_combination_of_the_grid_is_a_point():
    study = sh.Study(DOE, grid={"gain": (1.0, 2.0), "width": [2, 4, 6]})
    assert len(study.points()) == 6
    assert study.points()[1] == {"gain": 1.0, "width": 4}
    assert sh.Study(DOE).points() == [{}]
    assert "gain in [1.0, 2.0]" in repr(study)
    assert "8 seeds" in repr(study)
    assert all("Study of doe2024" in repr(sh.Study(t)) for t in (DOE, PAPER, "doe2024"))
    assert ": one setting; 8 seeds" in repr(sh.Study(lambda: None))


def test_seeds_are_a_number_or_a_list():
    assert sh.Study(DOE, seeds=3).seeds == (0, 1, 2)
    assert sh.Study(DOE, seeds=[5, 7]).seeds == (5, 7)
    frame = small(seeds=[5, 7]).run()
    assert frame["seed"].to_list() == [5, 7, 5, 7]


@pytest.mark.parametrize("target", [DOE, PAPER, toy_paper.__file__])
def test_the_target_is_a_paper_in_any_form(target):
    study = sh.Study(target, seeds=2, num_steps=3)
    assert study.setups()[0].setting.num_steps == 3
    assert paper_named(target).key == "doe2024"


def test_the_target_may_be_a_function_that_makes_setups():
    x, y = np.eye(3), np.arange(3.0)

    def setups(scale):
        return own_setup(lambda w, x: scale * x @ w, np.zeros(3), x, y)

    frame = sh.Study(setups, grid={"scale": (1.0, 2.0)}, step_size=0.1).run()
    assert frame["scale"].to_list() == [1.0, 2.0]
    assert frame["risk_last"][0] > frame["risk_last"][1]


def test_what_does_not_exist_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="doe2024 has no setting 'gian'; did you mean 'gain'"):
        sh.Study(DOE, grid={"gian": (1.0,)}).setups()
    with pytest.raises(InputError, match="doe2024 has no setting 'wdth'"):
        sh.Study(DOE, wdth=3).setups()
    with pytest.raises(InputError, match="no paper is called 'doe2025'"):
        sh.Study("doe2025").setups()


def test_fresh_data_draw_a_problem_for_every_seed():
    shared, fresh = small(num_steps=2), small(num_steps=2, fresh_data=True)
    assert shared.setups()[0].problem.X.shape == (4, 1, 6)
    made = fresh.setups()[0]
    assert made.problem.X.shape == (3, 4, 1, 6)
    own = paper_setup(PAPER, {"data_seed": 2}, seeds=(2,))
    np.testing.assert_array_equal(made.problem.X[2], own.problem.X)
    np.testing.assert_array_equal(made.one(2).params0.w, own.one().params0.w)


def test_a_control_overrides_settings_and_the_grid():
    study = small(control={"gain": 1.5, "labels": "twins"})
    gains = [setup.setting.gain for setup in study.setups()]
    assert gains == [1.5, 1.5]
    assert {setup.setting.labels for setup in study.setups()} == {"twins"}
    assert study.points() == small().points()  # the table still says what was meant
    frame = study.run()
    np.testing.assert_array_equal(frame["risk_last"][:3], frame["risk_last"][3:])


def test_changed_copies_keep_the_rest():
    study = small(probes=("distance",), fresh_data=True, step_size=0.01)
    other = study.changed(seeds=2, num_steps=7, gain=3.0)
    assert other.seeds == (0, 1)
    assert other.grid == {}  # a value that stays is no longer varied
    assert other.values == {"num_steps": 7, "gain": 3.0}
    assert (other.probes, other.fresh_data, other.step_size) == (("distance",), True, 0.01)
    assert study.seeds == (0, 1, 2)


def test_a_run_that_diverges_has_a_row_all_the_same():
    run = train(paper_setup(PAPER, {}, seeds=(0, 1)), step_size=[0.01, 1e9], steps=40)
    assert run_row(run, 0)["status"] == "done"
    row = run_row(run, 1)
    assert row["status"] == "diverged"
    assert row["risk_least"] == pytest.approx(row["risk_first"])
    assert not math.isfinite(row["risk_last"])


def test_the_same_call_is_done_only_once(monkeypatch):
    module._trained.cache_clear()
    calls = []
    monkeypatch.setattr(module, "train", lambda *a, **k: calls.append(1) or train(*a, **k))
    first = trained(PAPER, 2, ("distance",), num_steps=4, gain=2.0)
    assert trained(DOE, 2, ("distance",), gain=2.0, num_steps=4) is first
    trained(PAPER, 2, ("distance",), num_steps=4, gain=3.0)
    trained(PAPER, 2, ("distance",), num_steps=4, gain=2.0, fresh_data=True)
    assert len(calls) == 3
    module._trained.cache_clear()


def test_a_tuned_run_is_no_worse_than_the_default_one():
    usual, tuned = (trained(PAPER, 2, num_steps=10, step=s) for s in (None, "tuned"))
    assert sh.decades(tuned.risk).mean() >= sh.decades(usual.risk).mean()
    assert len(set(tuned.step_size.tolist())) == 1


def test_calls_are_cut_to_size():
    setup = paper_setup(PAPER, {})
    assert runs_per_call(setup) == 64
    assert runs_per_call(setup.with_setting(num_samples=10**7)) == 1


def test_the_key_of_a_program_forgets_numbers_seeds_and_data():
    one = paper_setup(PAPER, {"gain": 2.0, "data_seed": 3}, seeds=(5,))
    assert program_key(one) == program_key(paper_setup(PAPER, {}, seeds=(0,)))


def test_a_study_is_a_figure():
    figure = study_figure("gain", "Gains", small(), ("risk", "distance"), full=False)
    assert (figure.key, figure.title) == ("gain", "Gains")
    risk, distance = figure.panels
    assert [c.label for c in risk.curves] == ["gain 1.0", "gain 2.0"]
    assert risk.log_y
    assert not distance.log_y
    assert risk.curves[0].x.tolist() == [0, 1, 2, 3, 4, 5]
    (registered,) = PAPER.figures
    assert registered.key == "width"
    assert len(registered.make(False).panels) == 2


def test_full_size_has_four_times_the_seeds(monkeypatch):
    seen = []

    def watched(study):
        seen.append(len(study.seeds))
        raise KeyboardInterrupt

    monkeypatch.setattr(sh.Study, "runs", watched)
    for full in (False, True):
        with pytest.raises(KeyboardInterrupt):
            study_figure("k", "t", small(), ("risk",), full=full)
    assert seen == [3, 12]
