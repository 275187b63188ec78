from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import run
from shoal.errors import InputError
from shoal.methods import gradient_descent
from shoal.training import record, segment, spacing

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


def test_a_run_in_segments_is_the_run():
    method = gradient_descent(0.01)
    whole = run(method, risk, START, num_steps=6)
    first = segment(method, risk, START, num_steps=3)
    second = segment(method, risk, first.params, first.state, num_steps=3)
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
    assert np.isfinite(out.risk[0])
    assert not np.isfinite(out.risk[-1])


def test_a_run_of_nested_parameters_moves_what_a_pattern_selects():
    start = {"a": {"x": jnp.array(2.0), "y": jnp.array(3.0)}, "b": [jnp.array(1.0)]}

    def squares(p):
        return 0.5 * sum(W**2 for W in jax.tree.leaves(p))

    out = run(gradient_descent(0.5), squares, start, num_steps=1, train=["a.*"])
    assert jax.tree.map(float, out.params) == {"a": {"x": 1.0, "y": 1.5}, "b": [1.0]}


def test_unknown_and_empty_selections_are_refused():
    with pytest.raises(InputError, match="no parameter is called 'u'"):
        run(gradient_descent(0.1), risk, START, num_steps=1, train=["u"])
    with pytest.raises(InputError, match="selects no parameter"):
        run(gradient_descent(0.1), risk, START, num_steps=1, train=[])


def test_a_probe_with_parts_has_a_record_for_each():
    probes = {"both": lambda p: {"w": p.w, "v": p.v}, "sum": lambda p: p.w + p.v}
    out = run(gradient_descent(0.1), risk, START, num_steps=2, probes=probes)
    assert list(out.probes) == ["both_v", "both_w", "sum"]  # sorted: JAX's dicts are
    np.testing.assert_array_equal(out.probes["sum"], out.probes["both_w"] + out.probes["both_v"])
    assert list(record(risk, probes, START)) == ["risk", "both_w", "both_v", "sum"]


@pytest.mark.parametrize(("steps", "records"), [(1000, 20), (97, 10), (1, 5), (4000, 100), (12, 1)])
def test_spacing_divides_the_steps_and_is_not_absurd(steps, records):
    every = spacing(steps, records)
    assert steps % every == 0
    assert every <= 10 * -(-steps // records)
