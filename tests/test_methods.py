from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import run
from shoal.errors import InputError
from shoal.methods import (
    adam,
    averaging,
    decaying,
    from_optax,
    gradient_descent,
    gradient_flow,
    on_batches,
    projected,
    subset,
)

P = namedtuple("P", "a b")
START = P(jnp.array([2.0, -1.0]), jnp.array([3.0]))
CURVATURE = P(jnp.array([1.0, 5.0]), jnp.array([2.0]))


def quadratic(p):
    return 0.5 * (jnp.sum(CURVATURE.a * p.a**2) + jnp.sum(CURVATURE.b * p.b**2))


@pytest.mark.parametrize("method", [gradient_descent, gradient_flow, adam])
def test_every_method_keeps_shapes_and_types_and_lowers_a_convex_risk(method):
    out = run(method(0.05, {"b": 0.5}), quadratic, START, num_steps=10, every=5)
    assert jax.tree.map(jnp.shape, out.params) == jax.tree.map(jnp.shape, START)
    assert out.params.a.dtype == START.a.dtype
    assert bool(jnp.all(jnp.diff(out.risk) < 0))


def test_descent_follows_the_closed_form_with_step_ratios():
    out = run(gradient_descent(0.1, {"b": 0.25}), quadratic, START, num_steps=7)
    np.testing.assert_allclose(out.params.a, START.a * (1 - 0.1 * CURVATURE.a) ** 7, rtol=1e-14)
    np.testing.assert_allclose(out.params.b, START.b * (1 - 0.025 * CURVATURE.b) ** 7, rtol=1e-14)


def test_flow_follows_the_closed_form_with_step_ratios():
    out = run(gradient_flow(0.3, {"b": 0.25}), quadratic, START, num_steps=4)
    np.testing.assert_allclose(out.params.a, START.a * jnp.exp(-1.2 * CURVATURE.a), rtol=1e-7)
    np.testing.assert_allclose(out.params.b, START.b * jnp.exp(-0.3 * CURVATURE.b), rtol=1e-7)


def test_flow_is_the_limit_of_small_steps():
    def bumpy(p):
        return jnp.sum(jnp.cosh(p.a)) + jnp.sum(jax.nn.relu(p.b) ** 2) + jnp.sum(p.a) * p.b[0]

    flow = run(gradient_flow(0.1), bumpy, START, num_steps=1).params
    errors = []
    for k in (100, 200):
        steps = run(gradient_descent(0.1 / k), bumpy, START, num_steps=k).params
        errors.append(float(jnp.linalg.norm(steps.a - flow.a)))
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.02)  # Euler's method is of first order


def test_a_failed_integration_is_visible():
    out = run(gradient_flow(10.0, max_substeps=3), quadratic, START, num_steps=1)
    assert bool(jnp.isnan(out.risk[-1]))


def test_sliding_along_a_kink_does_not_stop_the_flow():
    # |a| pulls to the kink from both sides, and the other coordinate goes on along it
    def sliding(p):
        return jnp.sum(jnp.abs(p.a)) + 0.5 * jnp.sum(p.b**2)

    out = run(gradient_flow(1.0), sliding, START, num_steps=3)
    assert float(jnp.max(jnp.abs(out.params.a))) < 2e-3
    np.testing.assert_allclose(out.params.b, START.b * jnp.exp(-3.0), rtol=1e-3)


def test_a_float32_run_stays_in_float32():
    start = jax.tree.map(lambda x: x.astype(jnp.float32), START)
    out = run(gradient_descent(jnp.float64(0.1)), quadratic, start, num_steps=2)
    assert out.params.a.dtype == jnp.float32


def five_samples(blocks, rows=None):
    """A sum over five samples, each with its own centre."""
    centres = jnp.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-1.0, 1.0], [0.5, 0.5]])
    centres = centres if rows is None else centres[rows]
    return 0.5 * jnp.sum((blocks["w"][None] - centres) ** 2)


def test_adam_follows_the_published_recursion():
    method = adam(0.1, {"w": 0.5})
    blocks = {"w": jnp.array([4.0, -3.0])}
    state = method.init(blocks)
    w, m, v = np.array([4.0, -3.0]), np.zeros(2), np.zeros(2)
    for t in range(1, 8):
        blocks, state = method.step(five_samples, blocks, state)
        g = 5 * w - np.array([3.5, 4.5])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(blocks["w"], w, rtol=1e-10)


def test_a_batch_of_all_samples_is_plain_descent():
    plain = gradient_descent(0.01)
    batched = on_batches(plain, num_samples=5, batch_size=5)
    blocks = {"w": jnp.array([4.0, -3.0])}
    one, _ = plain.step(five_samples, blocks, plain.init(blocks))
    other, _ = batched.step(five_samples, blocks, batched.init(blocks))
    np.testing.assert_allclose(one["w"], other["w"], rtol=1e-12)


def test_batches_hold_different_samples_and_change():
    seen = []

    def watched(blocks, rows):
        seen.append(np.asarray(rows))
        return five_samples(blocks, rows)

    method = on_batches(gradient_descent(0.01), num_samples=5, batch_size=3)
    blocks = {"w": jnp.zeros(2)}
    state = method.init(blocks)
    for _ in range(40):
        blocks, state = method.step(watched, blocks, state)
    assert all(len(set(rows.tolist())) == 3 for rows in seen)
    counts = np.bincount(np.concatenate(seen), minlength=5)
    assert counts.min() > 12  # each sample is drawn in 3 of 5 steps, about 24 times
    assert len({tuple(sorted(rows.tolist())) for rows in seen}) > 5


def test_all_subsets_are_equally_likely():
    from scipy import stats

    drawn = jax.vmap(lambda key: subset(key, 6, 3))(jax.random.split(jax.random.key(1), 20000))
    kinds, counts = np.unique(np.sort(np.asarray(drawn), axis=1), axis=0, return_counts=True)
    assert len(kinds) == 20  # 6 over 3
    assert stats.chisquare(counts).pvalue > 1e-3
    assert set(np.asarray(subset(jax.random.key(0), 4, 4)).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("size", [0, 6])
def test_batches_that_do_not_fit_are_refused(size):
    with pytest.raises(InputError, match="expected between 1 and num_samples=5"):
        on_batches(gradient_descent(0.1), num_samples=5, batch_size=size)


def test_the_average_is_that_of_the_points_before_every_step():
    method = averaging(gradient_descent(0.1))
    blocks = {"w": jnp.array([4.0, -3.0])}
    state, seen = method.init(blocks), []
    for _ in range(6):
        seen.append(np.asarray(blocks["w"]))
        blocks, state = method.step(five_samples, blocks, state)
    np.testing.assert_allclose(state.mean["w"], np.mean(seen, axis=0), rtol=1e-12)
    assert int(state.steps) == 6


def test_projected_descent_stays_in_balls_around_the_start_row_by_row():
    method = projected(gradient_descent(0.05), {"a": 0.3, "b": 10.0})
    out = run(method, quadratic, START, num_steps=20)
    # rows of a vector are its entries: each moves by 0.3 towards zero and no further
    np.testing.assert_allclose(out.params.a, [1.7, -0.7], rtol=1e-12)
    np.testing.assert_allclose(out.params.b, START.b * 0.9**20, rtol=1e-12)


@pytest.mark.parametrize("to_start", [True, False])
def test_decay_descends_the_penalised_risk(to_start):
    out = run(
        decaying(gradient_descent(0.1), 0.5, to_start=to_start), quadratic, START, num_steps=3
    )
    w = np.array([2.0, -1.0])
    centre = w if to_start else np.zeros(2)
    for _ in range(3):
        w = w - 0.1 * (np.asarray(CURVATURE.a) * w + 0.5 * (w - centre))
    np.testing.assert_allclose(out.params.a, w, rtol=1e-12)


def test_any_optax_transformation_is_a_method_and_keeps_step_ratios():
    import optax

    made = from_optax(optax.sgd(0.1, momentum=0.9))(None, {"b": 0.0})
    out = run(made, quadratic, START, num_steps=5)
    w, v = np.array([2.0, -1.0]), np.zeros(2)
    for _ in range(5):
        v = 0.9 * v + np.asarray(CURVATURE.a) * w
        w = w - 0.1 * v
    np.testing.assert_allclose(out.params.a, w, rtol=1e-12)
    assert out.params.b.tolist() == START.b.tolist()
