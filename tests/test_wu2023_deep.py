"""The deep and the causal form of wu2023: one layer is the paper's network; NumPy says the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal.papers.wu2023 import deep
from shoal.runtime import in_float64

SMALL = {"num_samples": 5, "num_tokens": 3, "dim": 4, "width": 7}


def made(**values):
    return sh.setup("wu2023", **(SMALL | values), seeds=[3])


@in_float64
def test_one_layer_of_the_deep_form_trains_like_the_encoder_to_1e_12():
    run = sh.train(made(), steps=30, step_size=0.01)
    one = run.setup.one()
    form, X, y = deep.Form(one.setting.scales(), False, True), jnp.array(one.inputs), one.targets

    def risk(params):
        seen = jax.vmap(deep.features, in_axes=(None, 0, None))(params, X, form)
        return jnp.sum((seen @ params.w_O - jnp.array(y)) ** 2) / 2

    params, risks = deep.stacked(jax.tree.map(jnp.array, one.params0)), []
    for _ in range(31):
        value, slope = jax.value_and_grad(risk)(params)
        risks.append(float(value))
        params = jax.tree.map(lambda W, g: W - 0.01 * g, params, slope)
    np.testing.assert_allclose(run.risk[0], risks, rtol=1e-12)
    assert risks[-1] < 0.6 * risks[0]


def test_with_one_token_the_causal_form_is_the_encoder():
    runs = [sh.train(made(num_tokens=1, causal=c), steps=20, step_size=0.01) for c in (False, True)]
    np.testing.assert_allclose(runs[0].risk, runs[1].risk, rtol=1e-12)


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("residual", ["both", "none"])
def test_outputs_of_three_layers_are_those_of_numpy_loops(causal, residual):
    setup = made(num_layers=3, causal=causal, residual=residual, pooling="sum")
    one = setup.one()
    W, tau = jax.tree.map(np.asarray, one.params0), 7**-0.5
    assert [x.shape for x in W] == [(3, 7, 4)] * 3 + [(2, 4, 7), (7,)]
    for x in np.asarray(one.inputs):
        tokens = x
        for layer in range(3):
            scores = tau * tokens @ W.W_Q[layer].T @ W.W_K[layer] @ tokens.T
            if causal:
                scores[np.triu_indices(3, 1)] = -np.inf
            hidden = np.maximum(softmax(scores) @ tokens @ W.W_V[layer].T, 0)
            if layer < 2:
                tokens = (tokens if residual == "both" else 0) + hidden @ W.W_D[layer].T
        expected = hidden.sum(axis=0) @ W.w_O
        assert float(one.setting.apply(one.params0, jnp.array(x))) == pytest.approx(
            expected, rel=1e-5
        )


def test_early_tokens_of_the_causal_form_do_not_see_later_ones():
    one = made(num_layers=2, causal=True).one()
    x = np.asarray(one.inputs)[0]
    other = x.copy()
    other[-1] += 1.0
    form, both = one.setting.form(), one.setting.replace(causal=False).form()
    seen, changed = (deep.preactivation(one.params0, jnp.array(z), form) for z in (x, other))
    np.testing.assert_array_equal(seen[:-1], changed[:-1])
    assert not np.allclose(seen[-1], changed[-1])
    seen, changed = (deep.preactivation(one.params0, jnp.array(z), both) for z in (x, other))
    assert not np.allclose(seen[:-1], changed[:-1])


def test_probes_and_kernel_of_the_deep_form_are_there_and_theorems_refuse_it():
    probes = ["attention_entropy", "dead_units", "kernel_lambda_min", "movement"]
    run = sh.train(made(num_layers=2), steps=3, probes=probes)
    assert all(np.isfinite(values).all() for values in run.probes.values())
    with pytest.raises(sh.InputError, match="does not cover this model"):
        sh.certify(run, "theorem_a")
    with pytest.raises(sh.InputError, match="num_layers=1"):
        made(num_layers=2, active=3)
