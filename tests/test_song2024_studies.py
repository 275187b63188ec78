"""Song2024: stacked layers, which weights are trained, peaked scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal.lab.study import fresh_setup
from shoal.models import predict
from shoal.papers import song2024
from shoal.papers.song2024 import block_studies, layer

PAPER = song2024.PAPER


def as_arrays(setup):
    """The first run of a setup, with JAX's arrays throughout."""
    return jax.tree.map(jnp.asarray, setup.rows([0]).one())


# --------------------------------------------------------------------------------- stacked layers


def test_one_stacked_layer_is_the_layer():
    def trained(**values):
        setup = sh.setup(PAPER, seeds=range(2), num_steps=20, **values)
        return sh.train(setup, step_size=1e-3, probes=["lambda_B"])

    one, same = trained(), trained(model="stack", num_layers=1, residual="none")
    assert np.allclose(one.risk, same.risk, rtol=1e-12)
    assert np.allclose(one.probes["lambda_B"], same.probes["lambda_B"], rtol=1e-9)


@pytest.mark.parametrize("residual", ["both", "none"])
def test_two_stacked_layers_against_numpy(residual):
    setup = sh.setup(
        PAPER, model="stack", num_layers=2, residual=residual, num_heads=2, seeds=[0], num_steps=1
    )
    one = as_arrays(setup)
    W, x = [np.asarray(block) for block in one.params0], np.asarray(one.inputs[0])

    def attended(x, index, W_out):
        total = 0.0
        for h in range(2):
            scores = (x @ W[0][index, h]) @ (x @ W[1][index, h]).T / 8**0.5
            S = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            total = total + S @ x @ W[2][index, h] @ W_out[h]
        return total

    hidden = (residual == "both") * x + attended(x, 0, W[3][0])
    found = setup.network.apply(one.params0, one.inputs[0])
    assert np.allclose(found, attended(hidden, 1, W[4]), rtol=1e-12)


@pytest.mark.parametrize("wrong", [{"init": "identity", "value_dim": 1}, {"labels": "mixture"}])
def test_a_stack_refuses_what_belongs_to_the_layer(wrong):
    with pytest.raises(sh.InputError, match="belongs to model=layer"):
        sh.setup(PAPER, model="stack", **wrong)


# ------------------------------------------------------------------- which weights, peaked scores


def test_values_alone_follow_the_recursion_that_the_comparison_meets():
    """The slow side of the claim about blocks has a known answer."""
    run = block_studies.block_runs((3,), "softmax", "W_V", 40)
    setup = as_arrays(run.setup)
    A = np.asarray(layer.value_matrix(setup.params0, setup.inputs, setup.setting.form))
    M = np.asarray(predict(setup.network, setup.params0, setup.inputs))
    r = (M - np.asarray(setup.targets)).ravel()
    step = float(run.step_size[0])
    left = np.linalg.matrix_power(np.eye(len(r)) - step * A @ A.T, int(run.step[-1])) @ r
    assert run.risk[0, -1] == pytest.approx(0.5 * left @ left, rel=1e-9)


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_the_gradient_of_queries_is_autodiff_s(kernel):
    setup = as_arrays(fresh_setup(PAPER, {"kernel": kernel, "train": "W_Q"}, seeds=(5,)))
    slope = jax.grad(setup.risk)(setup.params0).W_Q
    size = np.linalg.norm(predict(setup.network, setup.params0, setup.inputs) - setup.targets)
    found = block_studies.query_gradients((5,), kernel, 1.0)[0]
    assert found == pytest.approx(float(jnp.linalg.norm(slope)) / size, rel=1e-9)
