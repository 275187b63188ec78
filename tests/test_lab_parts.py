"""What a page of `shoal lab` is made of: controls, gauges, formulas, advice, and runs in pieces."""

import dataclasses

import numpy as np
import pytest

import shoal as sh
from shoal.errors import InputError
from shoal.lab.setting import Mark, with_values
from shoal.live import gauges
from shoal.live.advice import trials
from shoal.live.controls import NOT_HERE, controls
from shoal.live.desk import EXAMPLE, ask, source_of
from shoal.live.errands import run_errand
from shoal.live.session import Session
from shoal.live.state import State, read_state, script
from shoal.live.stories import STORIES
from shoal.pages.formulas import FORMULAS
from shoal.pages.words import math_html
from shoal.papers import PAPERS

SMALL = {
    "wu2023": {"num_samples": "3", "num_tokens": "2", "dim": "4", "width": "8", "num_steps": "6"},
    "arda2026": {"num_samples": "4", "num_tokens": "3", "dim": "2", "num_heads": "4",
                 "num_steps": "6", "pool": None},
}  # fmt: skip
WU = State("wu2023", tuple(SMALL["wu2023"].items()))


def session(own=""):
    """A session, and what it said by kind."""
    said = {}
    return Session(own, lambda kind, **payload: said.setdefault(kind, []).append(payload)), said


def finish(one):
    while one.work():
        pass


def test_every_theorem_of_the_papers_has_a_formula():
    for paper in PAPERS.values():
        for theorem in paper.all_theorems():
            pair = FORMULAS.get(f"{paper.key}.{theorem.key}") or FORMULAS[theorem.key]
            for text in pair:
                assert math_html(f"$${text}$$").count("<math") == 1
    assert len(FORMULAS) == 1 + sum(len(p.theorems) for p in PAPERS.values()) - sum(
        t.key == "kernel_regime" for p in PAPERS.values() for t in p.theorems
    )


@pytest.mark.parametrize("key", list(PAPERS))
def test_every_setting_is_a_control_whose_words_the_setting_takes_back(key):
    setting = PAPERS[key].setting().complete()
    found = {c["name"]: c for c in controls(PAPERS[key], setting)}
    assert set(found) == set(setting.fields()) - set(NOT_HERE) - {"step_size"}
    words = {name: c["value"] for name, c in found.items()}
    assert with_values(PAPERS[key].setting(), words, owner=key).complete() == setting
    for name, control in found.items():
        assert control["sentence"], name
        if control["kind"] in ("whole", "number"):
            assert control["low"] < control["high"]
            if control["value"] not in ("auto", "0"):
                assert control["low"] <= float(control["value"]) <= control["high"]
        if control["kind"] == "choice":
            assert control["value"] in (*control["choices"], "auto")
        traced = setting.marks()[name] is Mark.TRACED
        assert control["compiles"] is (not traced or name == "num_steps")


def test_the_kinds_of_controls_come_from_the_types():
    kinds = {c["name"]: c["kind"] for c in controls(PAPERS["qin2025"], PAPERS["qin2025"].setting())}
    assert (kinds["residual"], kinds["causal"], kinds["width"], kinds["slope"]) == (
        "choice", "switch", "whole", "number",
    )  # fmt: skip
    assert {c["kind"] for c in controls(PAPERS["arda2026"], PAPERS["arda2026"].setting().complete())
            if c["name"] in ("radius", "train")} == {"text"}  # fmt: skip


def test_gauges_at_the_start_are_the_hypotheses_of_the_certificate():
    asked = ask(WU)
    found = gauges.judged(asked, gauges.at_start(asked))
    run = sh.train(asked.setup, probes=list(asked.probes))
    expected = sh.certify(run, "theorem_a").to_json()["results"][0]["hypotheses"]
    assert [h["name"] for h in found["hypotheses"]] == [h["name"] for h in expected]
    for mine, theirs in zip(found["hypotheses"], expected, strict=True):
        assert mine["lhs"] == theirs["lhs"]
        assert mine["holds"] is theirs["holds"]


def test_a_session_trains_in_pieces_to_the_last_digit_and_ends_with_the_verdict_of_certify():
    one, said = session()
    one.look(WU, reset=True, number=1)
    for goal in (1, 4, 6):
        one.go(goal, 0.0)
        finish(one)
    risk = [r for m in said["records"] for r in m["curves"]["risk"]]
    run = sh.train(one.asked.setup, probes=list(one.asked.probes))
    assert np.array_equal(risk, run.risk[0])
    last = said["gauges"][-1]
    assert (last["finished"], last["verdict"]) == (True, sh.certify(run, "theorem_a").verdict)
    assert {"controls", "statement", "edge", "prediction", "spectrum", "attention"} <= set(said)
    assert said["statement"][0]["formula"].count("<math") == 2


def test_two_over_sharpness_is_the_inverse_of_the_hessian_of_a_quadratic():
    # the loss of a linear model, by hand: x = (1, 3), so the Hessian is 1 + 9
    asked = ask(State(EXAMPLE))
    line = sh.setup(lambda w, x: x * w, np.zeros(()), np.array([1.0, 3.0]), np.ones(2))
    found = gauges.edge(asked._replace(setup=line.with_steps(0.1)))
    assert found == pytest.approx(0.2, rel=1e-6)


def test_the_step_changes_on_the_way_and_the_script_repeats_it(tmp_path):
    one, said = session()
    one.look(WU, reset=True, number=1)
    one.go(2, 0.0)
    finish(one)
    one.change_step(0.003)
    one.go(6, 0.0)
    finish(one)
    risk = [r for m in said["records"] for r in m["curves"]["risk"]]
    assert said["status"][-1]["changes"] == [(2, 0.003)]
    assert said["gauges"][-1]["verdict"] == "not applicable"
    assert said["texts"][-1]["command"] == ""
    names = {}
    exec(said["texts"][-1]["python"], names)
    assert names["run"].risk[0, -1] == risk[-1]
    again, heard = session()  # and so does the address
    again.look(WU._replace(changes=((2, 0.003),)), reset=True, number=1)
    again.go(6, 0.0)
    finish(again)
    assert [r for m in heard["records"] for r in m["curves"]["risk"]] == risk
    with pytest.raises(InputError, match="step size was changed"):
        run_errand("save", WU._replace(changes=((2, 0.003),)), 6, "", tmp_path)


@pytest.mark.slow
def test_other_probes_replay_the_run_and_another_setting_starts_anew():
    one, said = session()
    one.look(WU, reset=True, number=1)
    one.go(6, 0.0)
    finish(one)
    one.look(WU._replace(probes=("pl_ratio",)), reset=False, number=2)
    assert one.goal == 6
    finish(one)
    assert "pl_ratio" in said["records"][-1]["curves"]
    other = WU._replace(values=(*WU.values, ("label_scale", "0.5")))
    one.look(other, reset=False, number=3)
    assert (one.at, one.goal) == (0, 0)


def test_advice_keeps_its_promise():
    """A step beyond the limit of theorem 1: the advice names one that makes all hypotheses hold."""
    values = {"train": "W_V", "num_steps": "4", "step_size": "50"}
    asked = ask(State("song2024", tuple(values.items()), theorem="theorem_1"))
    found = [change for change in trials(asked, "") if change]
    (best,) = [change for change in found if change["whole"]]
    assert best["name"] == "step_size"
    better = ask(
        asked.state._replace(values=tuple((values | {"step_size": best["value"]}).items()))
    )
    after = gauges.judged(better, gauges.at_start(better))
    assert all(line["holds"] for line in after["hypotheses"])


@pytest.mark.slow
def test_the_proof_of_a_page_is_that_of_prove(tmp_path):
    values = {"num_samples": "1", "num_steps": "30", "width": "6"}
    found = run_errand("prove", State(EXAMPLE, tuple(values.items())), 30, "", tmp_path)
    asked = ask(State(EXAMPLE, tuple(values.items())))
    proof = sh.prove(sh.train(asked.setup, probes=[]))
    assert proof.verdict == "converges"
    assert (found["verdict"], found["step"]) == (proof.verdict, proof.step)
    # after a change of the step size: from the weights as they are then
    changed = ask(State(EXAMPLE, tuple(values.items()), changes=((20, asked.step_size / 2),)))
    later = run_errand("prove", changed.state, 30, "", tmp_path)
    assert (later["verdict"], later["step"]) == ("converges", 30)


@pytest.mark.slow
def test_the_script_of_an_own_model_runs():
    state = State(EXAMPLE, (("num_steps", "3"), ("width", "4")), theorem="kernel_regime")
    asked = ask(state)
    names = {}
    exec(script(asked.state, asked.step_size, asked.probes, "", 3, 1), names)
    assert names["run"].risk.shape == (1, 4)


def test_only_what_was_typed_can_be_opened(tmp_path):
    file = tmp_path / "evil.py"
    file.write_text("raise SystemExit('it was run')")
    with pytest.raises(InputError, match="shoal lab"):
        source_of(f"{file}:model", own="")
    with pytest.raises(InputError, match="cannot be set on the page"):
        ask(State("wu2023", (("images", "/etc/passwd"),)))
    with pytest.raises(InputError, match="digest"):
        ask(State("wu2023", data="../../etc/passwd"))


def test_stories_are_states_that_can_be_asked_for():
    assert len(STORIES) == 5
    for story in STORIES:
        assert 3 <= len(story["steps"]) <= 5
        for step in story["steps"]:
            assert len(step["text"]) > 60
            if step["state"]:
                state = read_state(step["state"])
                source = source_of(state.target, "")
                assert state.theorem in [t.key for t in source.all_theorems()]
                if state.target in PAPERS:
                    values = dict(state.values)
                    with_values(source.setting(), values, owner=state.target).complete()


def test_records_beyond_what_a_page_holds_are_refused_in_words():
    values = dict(WU.values) | {"num_steps": "1000000"}
    with pytest.raises(InputError, match="every"):
        ask(State("wu2023", tuple(values.items())))


def test_a_state_is_plain_data():
    assert dataclasses.is_dataclass(PAPERS["wu2023"].setting())
    assert read_state({"target": "x", "changes": [[5, 0.1], [2, 1]]}).changes == (
        (2, 1.0),
        (5, 0.1),
    )
