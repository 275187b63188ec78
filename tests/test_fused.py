"""Training steps in C against the readable formulas with automatic differentiation."""

import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.lab.engine import trajectories
from shoal.lab.setup import paper_setup
from shoal.papers import arda2026, qin2025, song2024, wu2023

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
SHORT = {"step_size": 1e-3, "num_steps": 3, "every": 1}
FREE = {"labels": "gaussian", "radius": "none"}
ODD = {"num_samples": 7, "num_tokens": 5, "dim": 9}
SONG = ODD | {"num_heads": 3, "key_dim": 3, "value_dim": 5, "out_dim": 11, "train": "all"}
QIN = ODD | {"num_layers": 3, "width": 19, "key_dim": 5, "out_dim": 3}
CASES = [
    *((song2024.PAPER, SONG | {"kernel": kernel}) for kernel in song2024.layer.KERNELS),
    (song2024.PAPER, {"num_samples": 40, "num_tokens": 17, "dim": 8, "num_heads": 2}),
    *((qin2025.PAPER, QIN | {"activation": name}) for name in ("relu", "leaky", "smooth_leaky")),
    (qin2025.PAPER, QIN | {"causal": "true", "residual": "attention", "residual_scale": "depth"}),
    (qin2025.PAPER, {"num_samples": 40, "num_tokens": 9, "residual": "none", "num_layers": 1}),
    (arda2026.PAPER, FREE | ODD | {"num_heads": 6}),
    (arda2026.PAPER, FREE | {"num_heads": 150, "activation": "logistic", "query": "fixed"}),
    (wu2023.PAPER, {"num_samples": 30, "width": 100}),
]


def start(paper, values, precision="float64"):
    setup = jax.device_put(paper_setup(paper, values | SHORT, precision=precision).one())
    return setup, setup.params0


def off(found, expected):
    """Largest difference of any block, relative to that block's largest number."""
    return max(
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


@pytest.mark.parametrize(("paper", "values"), CASES)
def test_a_step_in_c_is_the_derivative_of_the_formula(paper, values):
    for precision, rounding in (("float64", 1e-12), ("float32", 1e-4)):
        setup, params = start(paper, values, precision)

        @jax.jit
        def in_c(params, setup=setup):
            return jax.value_and_grad(setup.fast_risk)(params), setup.value_risk(params)

        assert "custom-call" in in_c.lower(params).as_text("hlo")
        both, alone = in_c(params)
        expected = jax.jit(jax.value_and_grad(setup.risk))(params)
        assert off(both, expected) < rounding
        assert off(alone, expected[0]) < rounding


@pytest.mark.parametrize(
    ("paper", "values"),
    [
        (qin2025.PAPER, {"activation": "gelu"}),
        (qin2025.PAPER, {"norm": "true"}),
        (qin2025.PAPER, {"output": "mean"}),
        (arda2026.PAPER, FREE | {"activation": "sin"}),
    ],
)
def test_what_the_code_in_c_does_not_know_is_done_by_the_formula(paper, values):
    setup, params = start(paper, values)
    text = jax.jit(jax.grad(setup.fast_risk)).lower(params).as_text("hlo")
    assert "custom-call" not in text
    slopes = jax.grad(setup.fast_risk)(params)
    assert off(slopes, jax.grad(setup.risk)(params)) < 1e-12


@pytest.mark.parametrize("case", [0, 7, 11])
def test_seeds_side_by_side_are_each_alone(case):
    paper, values = CASES[case]
    many = trajectories(paper_setup(paper, values | SHORT, seeds=range(3)))
    for seed in range(3):
        one = trajectories(paper_setup(paper, values | SHORT, seeds=[seed]))
        alone, beside = (jax.tree.map(lambda x, i=i: x[i], t.params)
                         for t, i in ((one, 0), (many, seed)))  # fmt: skip
        assert off(beside, alone) < 1e-13


def test_a_number_that_is_none_is_not_hidden():
    for paper, values in (CASES[0], CASES[6], CASES[11]):
        setup, params = start(paper, values)
        broken = jax.tree.map(lambda W: W.at[(0,) * W.ndim].set(jnp.nan), params)
        assert np.isnan(setup.fast_risk(broken))


def test_training_calls_the_code_once_a_step_and_records_its_value():
    """The recorded risk and the gradient's value are one call: XLA sees that they are equal."""
    setup, params = start(*CASES[6])

    def step(params):
        return setup.fast_risk(params), jax.grad(setup.fast_risk)(params)

    text = jax.jit(step).lower(params).compile().as_text()
    assert text.count('custom_call_target="shoal_') == 1


@pytest.mark.slow
def test_sanitizers_find_nothing():
    script = Path(__file__).with_name("native_shapes.py")
    subprocess.run([sys.executable, str(script), "--shapes", "30"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(("real", "most"), [("float", 1.5), ("double", 1.5)])
def test_the_exponential_is_off_by_little_more_than_half_a_unit(real, most, tmp_path):
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import native_shapes
    finally:
        sys.path.pop(0)
    program = native_shapes.compiled(0, real, ["-O3"], tmp_path)
    done = subprocess.run([program, "ulps"], check=True, capture_output=True, text=True)
    errors, odd = done.stdout.splitlines()
    exp, tanh, log = map(float, errors.split())
    assert exp < most
    assert max(tanh, log) < 4
    assert odd.split() == ["0", "inf", "nan", "1"]
