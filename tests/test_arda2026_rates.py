"""Training of arda2026: heads by samples, rates, windows and radii."""

import jax
import jax.numpy as jnp
import numpy as np

import shoal as sh
from shoal.lab.study import Plan
from shoal.models import predict
from shoal.papers.arda2026 import data, experiments, figures, teachers, variants
from shoal.papers.arda2026.heads import ACTIVATIONS

TANH = ACTIVATIONS["tanh"]
TINY = {"num_samples": 6, "num_tokens": 4, "dim": 3, "num_heads": 4, "pool": 64}


def test_held_out_tokens_are_labelled_by_the_teacher_of_the_training_ones():
    setup = sh.setup("arda2026", **TINY, labels="dual", test_samples=7)
    one = jax.tree.map(jnp.asarray, setup.one())
    assert one.held_out.X.shape == (7, 4, 3)
    assert not set(np.ravel(one.held_out.X).tolist()) & set(np.ravel(one.problem.X).tolist())
    v = data.dual_transport(one.setting, one.params0, one.inputs)  # made on training samples
    target = teachers.moved(one.params0, v)
    f = teachers.linearised(one.network, one.params0, one.held_out.inputs, target)
    np.testing.assert_allclose(f, one.held_out.y, rtol=1e-9, atol=1e-12)


def test_a_narrow_start_is_a_part_of_a_wide_one():
    setup = sh.setup("arda2026", **(TINY | {"num_heads": 8}))
    narrow = experiments.narrower(setup, 4)
    assert narrow.params0.c.shape == (1, 4)
    for wide, part in zip(setup.params0, narrow.params0, strict=True):
        np.testing.assert_array_equal(part, wide[:, [0, 1, 4, 5]])
    one = jax.tree.map(jnp.asarray, narrow.one())
    assert float(jnp.max(jnp.abs(predict(one.network, one.params0, one.inputs)))) < 1e-14


def test_heads_needed_are_those_of_a_known_law(monkeypatch):
    # the loss is sqrt(samples) / heads: a level of 1/10 needs 10 sqrt(samples) heads
    def law(n, seeds, steps, step, widths, **_):
        return np.stack([n**0.5 / np.array(widths, float)] * len(seeds))

    monkeypatch.setattr(experiments, "loss_by_heads", law)
    found = experiments.heads_needed(Plan(seeds=2, grid=(1, 4, 100)), 1.0, (16, 64), 0.1)
    np.testing.assert_allclose(found["low"][0], [0, 20, 64], rtol=1e-12)  # beyond: enclosed
    np.testing.assert_allclose(found["high"][1], [16, 20, np.inf], rtol=1e-12)


def test_the_rate_is_v_0_over_time_and_the_mean_of_the_losses_before():
    plan = Plan(seeds=2, steps=8, samples=6, width=4, grid=(3, 8))
    sizes = {"num_tokens": 4, "dim": 3, "pool": 64}
    run, V0 = experiments.rate_run(plan, 0.5, **sizes)
    certified = run.setup.replace(step_size=run.step_size)
    known = sh.train(certified, probes=("scaled_movement", "path")).certify("theorem_b")
    np.testing.assert_allclose(V0, [c.constants["V_0"] for c in known], rtol=1e-9)
    by_hand = [min(V0[k] / (0.5 * tau) / np.mean(run.risk[k, :tau]) for tau in (3, 8))
               for k in (0, 1)]  # fmt: skip
    np.testing.assert_allclose(
        experiments.rate_margins(plan, 0.5, **sizes), np.log10(by_hand), rtol=1e-12
    )


def test_a_recurrent_prediction_holds_no_window_and_attention_does():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 3)))
    model = variants.recurrent(4, 3, TANH)
    params = jax.tree.map(lambda b: jnp.asarray(np.random.default_rng(1).normal(size=b.shape)),
                          model.spec)  # fmt: skip
    found = variants.token_by_token(params, x)
    np.testing.assert_allclose(found, model.apply(params, x), rtol=1e-12)
    recurrent, attention = (
        [figures.prediction_cost(name, T)[0] for T in (64, 4096)] for name in ("recurrent", "heads")
    )
    assert recurrent[0] == recurrent[1]
    assert 32 < attention[1] / attention[0] < 128  # in proportion to 64 times the tokens


def test_a_radius_that_never_binds_is_told():
    plan = Plan(seeds=1, steps=20, samples=6, width=4)
    wide, small = (experiments.within(plan, 0.5, share, test_samples=3) for share in (9.0, 0.01))
    assert experiments.binds(wide).tolist() == [False]
    assert experiments.binds(small).tolist() == [True]
