from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import small
from shoal.errors import InputError
from shoal.experiments import Experiment, certify, initial_params, simulate, theorem_of
from shoal.methods import gradient_descent
from shoal.papers import wu2023
from shoal.training import diverged_at, leg, run

P = namedtuple("P", "w v")
START = P(jnp.array(4.0), jnp.array(1.0))


def risk(p):
    return 0.5 * (p.w * p.v) ** 2


def test_records_are_those_of_a_python_loop():
    w, v, expected = 4.0, 1.0, []
    for _ in range(7):
        expected.append(0.5 * (w * v) ** 2)
        w, v = w - 0.01 * w * v * v, v - 0.01 * w * w * v
    out = run(
        gradient_descent(0.01), risk, START, num_steps=6, every=2, probes={"w": lambda p: p.w}
    )
    np.testing.assert_allclose(out.risk, expected[::2], rtol=1e-14)
    assert out.step.tolist() == [0, 2, 4, 6]
    assert float(out.probes["w"][0]) == 4.0
    assert float(out.probes["w"][-1]) == float(out.params.w)


def test_a_run_in_legs_is_the_run():
    method = gradient_descent(0.01)
    whole = run(method, risk, START, num_steps=6)
    first = leg(method, risk, START, num_steps=3)
    second = leg(method, risk, first.params, first.state, num_steps=3)
    assert second.params == whole.params
    np.testing.assert_array_equal(
        jnp.concatenate([first.records["risk"], second.records["risk"]]), whole.risk[:-1]
    )


def test_gradients_of_frozen_parameters_are_never_computed():
    @jax.custom_vjp
    def fragile(x):
        return x

    def backward(_, cotangent):
        raise AssertionError("the gradient of a frozen parameter was asked for")

    fragile.defvjp(lambda x: (x, None), backward)

    def guarded(p):
        return 0.5 * (p.w * fragile(p.v)) ** 2

    out = run(gradient_descent(0.1), guarded, START, num_steps=3, train=["w"])
    assert float(out.params.v) == 1.0
    assert float(out.params.w) < 4.0
    with pytest.raises(AssertionError, match="frozen"):
        run(gradient_descent(0.1), guarded, START, num_steps=3)


def test_divergence_is_data():
    out = run(gradient_descent(3.0), risk, START, num_steps=40)
    assert int(diverged_at(out)) > 0
    assert not np.isfinite(np.asarray(out.risk[-1]))
    assert int(diverged_at(run(gradient_descent(0.01), risk, START, num_steps=4))) == -1


@pytest.mark.parametrize(("num_steps", "every"), [(10, 3), (0, 1), (5, 0)])
def test_records_that_do_not_fit_are_refused(num_steps, every):
    with pytest.raises(InputError, match="does not divide"):
        run(gradient_descent(0.1), risk, START, num_steps=num_steps, every=every)


def test_unknown_and_empty_selections_are_refused():
    with pytest.raises(InputError, match="no parameter is called 'u'"):
        run(gradient_descent(0.1), risk, START, num_steps=1, train=["u"])
    with pytest.raises(InputError, match="names no parameter"):
        run(gradient_descent(0.1), risk, START, num_steps=1, train=[])


def counting(counter):
    def model(setting):
        counter.append(setting)
        return wu2023.model(setting)

    return wu2023.PAPER._replace(model=model)


def experiment(paper, setting, seeds):
    return Experiment(
        paper,
        setting,
        (),
        wu2023.problem(setting),
        initial_params(wu2023.PAPER, setting, seeds),
        seeds,
        "float64",
    )


def test_a_hundred_seeds_are_one_call_and_one_compilation():
    traces = []
    paper = counting(traces)
    setting = small(step_size=0.01, num_steps=6)
    out = simulate(experiment(paper, setting, tuple(range(100))), ("pl_ratio",))
    assert out.risk.shape == (100, 7)
    # one trace of the loop and one of the last record, whatever the number of seeds and legs
    assert len(traces) == 2
    again = setting._replace(step_size=0.02, hidden_step_ratio=0.5, data_seed=3, label_scale=0.1)
    simulate(experiment(paper, again, tuple(range(100, 200))), ("pl_ratio",))
    assert len(traces) == 2


def test_a_batch_of_seeds_agrees_with_each_seed_alone():
    setting = small(step_size=0.01, num_steps=6)
    many = simulate(experiment(wu2023.PAPER, setting, (0, 1, 2)))
    one = simulate(experiment(wu2023.PAPER, setting, (2,)))
    np.testing.assert_allclose(many.risk[2], one.risk[0], rtol=1e-12)


def test_more_seeds_than_fit_at_once_give_the_same_runs(monkeypatch):
    setting = small(step_size=0.01, num_steps=6)
    whole = simulate(experiment(wu2023.PAPER, setting, (0, 1, 2)))
    monkeypatch.setattr("shoal.experiments.running._seeds_at_once", lambda *_: 2)
    parts = simulate(experiment(wu2023.PAPER, setting, (0, 1, 2)))
    np.testing.assert_allclose(parts.risk, whole.risk, rtol=1e-12)


def test_a_rare_probe_is_recorded_at_its_stride_and_at_the_end():
    setting = small(step_size=0.01, num_steps=12, every=2)
    often = simulate(
        experiment(wu2023.PAPER, setting, (0, 1, 2)), ("kernel_eigenvalues", "movement")
    )
    rare = simulate(
        experiment(wu2023.PAPER, setting, (0, 1, 2)), ("kernel_eigenvalues@6", "movement")
    )
    assert rare.step[0].tolist() == [0, 2, 4, 6, 8, 10, 12]
    there = np.array([0, 3, 6])
    between = np.array([1, 2, 4, 5])
    np.testing.assert_allclose(
        rare.probes["kernel_eigenvalues"][:, there],
        often.probes["kernel_eigenvalues"][:, there],
        rtol=1e-9,
    )
    assert bool(jnp.isnan(rare.probes["kernel_eigenvalues"][:, between]).all())
    np.testing.assert_allclose(rare.risk, often.risk, rtol=1e-12)
    np.testing.assert_allclose(rare.probes["movement_W_V"], often.probes["movement_W_V"], rtol=1e-9)


@pytest.mark.parametrize("names", [("movement@5",), ("movement@3", "pl_ratio@6"), ("movement@x",)])
def test_strides_that_do_not_fit_are_refused(names):
    setting = small(step_size=0.01, num_steps=12, every=1)
    with pytest.raises(InputError):
        simulate(experiment(wu2023.PAPER, setting, (0,)), names)


def test_a_theorem_does_not_judge_by_a_probe_that_was_recorded_rarely():
    setting = small(step_size=0.001, num_steps=12)
    made = experiment(wu2023.PAPER, setting, (0,))
    run = simulate(made, ("kernel_distance@6",))
    with pytest.raises(InputError, match="kernel_distance"):
        certify(made, theorem_of(wu2023.PAPER, "kernel_regime"), run)


def test_progress_is_reported_up_to_the_end():
    seen = []
    setting = small(step_size=0.01, num_steps=12)
    simulate(experiment(wu2023.PAPER, setting, (0,)), progress=lambda d, t: seen.append((d, t)))
    assert seen[-1] == (12, 12)
    assert len(seen) == 12
