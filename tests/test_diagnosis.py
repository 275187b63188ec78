"""Diagnoses of models with planted faults, of healthy ones, and of what the numbers rest on."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planted_faults as planted
import shoal as sh
from shoal.cli import main
from shoal.lab.causes import CHECKS, contradictions
from shoal.lab.looking import VERDICTS, Look, curve_verdict

FAST = (
    "step_too_short", "dead_units", "contradicting_samples", "label_scale", "block_scale",
    "ill_conditioned", "too_narrow",
)  # fmt: skip


def diagnosed(name):
    if name in ("frozen_block", "saturated_attention_torch") or "torch" in name:
        pytest.importorskip("torch", reason="this model is a PyTorch module")
    setup, how = getattr(planted, name)()
    return sh.diagnose(sh.train(setup, probes=[], **how))


def check_fault(name):
    found = diagnosed(name)
    assert found.causes, found
    assert name.startswith(found.causes[0].key), found
    trial = found.causes[0].trial
    assert name == "too_narrow" or trial.factor >= 3
    assert found.verdict in VERDICTS


@pytest.mark.parametrize("name", FAST)
def test_a_planted_fault_is_the_first_cause(name):
    check_fault(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in planted.FAULTS if name not in FAST])
def test_a_planted_fault_is_the_first_cause_slow(name):
    check_fault(name)


@pytest.mark.parametrize("name", ["healthy_mlp", "healthy_linear", "healthy_zero_head"])
def test_no_cause_is_raised_on_a_healthy_model(name):
    assert not diagnosed(name).causes


@pytest.mark.slow
@pytest.mark.parametrize("name", planted.HEALTHY)
def test_no_cause_is_raised_on_a_healthy_model_slow(name):
    assert not diagnosed(name).causes


# ------------------------------------------------------------------------- promises that are kept


def promised(name, changed, scale=1.0, **more):
    """The first cause, and the factor that its change brings when it is made by hand."""
    setup, how = getattr(planted, name)()
    run = sh.train(setup, probes=[], **how)
    found = sh.diagnose(run)
    y = np.asarray(setup.targets)
    chance = np.mean((y - y.mean(0)) ** 2)  # of a mean of squares
    before = run.risk[0, -1] if np.isfinite(run.risk[0, -1]) else min(run.risk[0, 0], chance)
    after = sh.train(changed(setup), probes=[], **(how | more)).risk[0, -1]
    return found.causes[0], before / (after * scale**2)


def with_params(setup, change):
    params = jax.tree.map(lambda W: W[0], setup.params0)
    loss = setup.setting.loss
    return sh.setup(setup.setting.function, change(params), setup.inputs, setup.targets, loss=loss)


def within_three(cause, factor):
    assert 1 / 3 <= cause.trial.factor / factor <= 3, (cause, factor)


def test_a_shorter_step_brings_what_the_trial_promised():
    cause, factor = promised("step_too_short", lambda s: s, step_size=0.009)
    assert "0.009" in cause.advice
    within_three(cause, factor)


def test_smaller_targets_bring_what_the_trial_promised():
    size = float(np.sqrt(np.mean(np.square(1000 * planted.mlp_data()[1]))))

    def smaller(setup):
        params = jax.tree.map(lambda W: W[0], setup.params0)
        y = np.asarray(setup.targets) / size
        return sh.setup(planted.mlp, params, setup.inputs, y, loss="mean_squares")

    within_three(*promised("label_scale", smaller, scale=size))


def test_a_scaled_block_brings_what_the_trial_promised():
    def scaled(setup):
        return with_params(setup, lambda p: p | {"W1": p["W1"] * 0.0035})

    cause, factor = promised("block_scale", scaled)
    assert "scale W1 by 0.0035" in cause.advice
    within_three(cause, factor)


def test_other_biases_bring_what_the_trial_promised():
    def raised(setup):
        def change(p):
            h = np.maximum(np.asarray(setup.inputs) @ p["W1"] + p["b1"], 0) @ p["W2"]
            return p | {"b2": -np.median(h, axis=0, keepdims=True)}

        return with_params(setup, change)

    within_three(*promised("dead_units", raised))


@pytest.mark.slow
def test_smaller_queries_and_keys_bring_what_the_trial_promised():
    def smaller(setup):
        def change(p):
            second = p["layers"][1]
            second = second | {"Q": second["Q"] / 30.9, "K": second["K"] / 30.9}
            return p | {"layers": [p["layers"][0], second]}

        return with_params(setup, change)

    cause, factor = promised("saturated_attention", smaller)
    assert "layers.1.K and layers.1.Q by 30.9" in cause.advice
    within_three(cause, factor)


# ----------------------------------------------------------------------------------- the numbers


def test_the_hessian_ends_are_those_of_the_dense_hessian():
    params = planted.mlp_params(hidden=6)
    setup = sh.setup(planted.mlp, params, *planted.mlp_data(), loss="mean_squares")
    look = Look(sh.train(setup, steps=5, step_size=0.01, probes=[]), 0)
    with jax.enable_x64(True):
        flat, unravel = jax.flatten_util.ravel_pytree(look.end)
        dense = np.linalg.eigvalsh(jax.hessian(lambda v: look.start.risk(unravel(v)))(flat))
    np.testing.assert_allclose(look.ends, dense[[0, -1]], rtol=2e-3)


def test_contradictions_are_found_and_their_floor_is_exact():
    setup, _ = planted.contradicting_samples()
    found, means = contradictions(setup.one())
    assert [rows.tolist() for rows in found] == [[2, 3], [6, 7]]
    lost = np.sum((np.asarray(setup.targets) - means) ** 2) / 16
    assert lost == pytest.approx((1 + 1 + 1 + 1) / 16)  # targets 1 and -1, 2 and 0


@pytest.mark.parametrize(
    ("risk", "word"),
    [
        (0.9 ** np.arange(200), "converging"),
        (10.0 ** -np.arange(40), "at the floor"),
        (np.ones(100), "slow"),
        (np.arange(1, 100.0), "diverging"),
        (1 + 0.5 * (-1.0) ** np.arange(100), "unstable"),
        (np.r_[1, np.nan], "diverging"),
        (1 - 1e-5 * np.arange(100), "slow"),
    ],
)
def test_the_curve_alone_says_much(risk, word):
    assert curve_verdict(np.arange(len(risk)), risk)[0] == word


def test_bounded_outputs_cannot_reach_large_targets():
    x, y = planted.mlp_data(count=6)
    setup = sh.setup(lambda w, x: jnp.tanh(x @ w), np.zeros(8), x, 3 * np.sign(y))
    found = sh.diagnose(setup, steps=200)
    assert found.verdict == "cannot fit"
    assert found.causes[0].key == "out_of_reach"
    assert "[-1, 1]" in found.causes[0].sentence


def test_the_optimum_of_a_convex_risk_is_the_floor():
    g = planted.rng(3)
    x = g.normal(size=(50, 4))
    setup = sh.setup(lambda w, x: x @ w, np.zeros(4), x, x[:, 0] + g.normal(size=50))
    found = sh.diagnose(setup, steps=2000)
    assert found.verdict == "at the floor"
    assert not found.causes


def test_a_mask_that_leaves_one_token_is_named():
    params = planted.attention_params(layers=1)
    mask = np.where(np.eye(planted.TOKENS), 0.0, -1e9)[None]

    def model(p, x):
        layer = p["layers"][0]
        scores = x @ layer["Q"] @ jnp.swapaxes(x @ layer["K"], -1, -2) + mask
        return (jax.nn.softmax(scores, axis=-1) @ (x @ layer["V"])).mean(1) @ p["out"]

    found = sh.diagnose(sh.setup(model, params, *planted.choose(), loss="mean_squares"), steps=400)
    assert found.causes[0].key == "masked_attention"


def test_a_small_scale_of_a_norm_is_a_block_scale():
    def model(p, x):
        h = x @ p["W"]
        h = (h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True) * p["scale"]
        return jnp.tanh(h) @ p["out"]

    g = planted.rng(0)
    params = {"W": g.normal(size=(8, 64)) / 3, "scale": np.full((1, 64), 1e-3),
              "out": g.normal(size=64) / 8}  # fmt: skip
    found = sh.diagnose(sh.setup(model, params, *planted.mlp_data()), steps=500, step_size=0.02)
    assert found.causes[0].key == "block_scale"
    assert "scale" in found.causes[0].advice


def test_constants_inside_the_function_do_no_harm():
    def model(p, x):
        return (jnp.zeros((len(x), 3)) @ p["U"] + jnp.tanh(x @ p["W"])) @ p["v"]

    g = planted.rng(0)
    params = {"U": g.normal(size=(3, 5)), "W": g.normal(size=(8, 5)), "v": g.normal(size=5)}
    setup = sh.setup(model, params, *planted.mlp_data(count=8))
    assert sh.diagnose(setup, steps=20, trials=False).verdict in VERDICTS


def test_a_residual_is_added_after_the_values_are_projected():
    """What the diagnosis tries is the ordinary residual, x + A x V."""
    from shoal.diagnostics import inside

    params = {k: planted.rng(k_).normal(size=(8, 8)) for k_, k in enumerate("QKV")}
    x = planted.tokens()[0]

    def bare(p, x):
        scores = x @ p["Q"] @ jnp.swapaxes(x @ p["K"], -1, -2)
        return jax.nn.softmax(scores, axis=-1) @ x @ p["V"]

    parts = inside.parts(bare, params, x)
    edited = parts.program.edited(inside.residuals(parts.program, parts))
    np.testing.assert_allclose(edited(params, x), bare(params, x) + x, rtol=1e-6)


def test_a_detached_block_is_named():
    def net(p, x):
        return jnp.tanh(x @ jax.lax.stop_gradient(p["a"])) @ p["b"]

    g = planted.rng(0)
    params = {"a": g.normal(size=(8, 3)), "b": np.zeros(3)}
    found = sh.diagnose(sh.setup(net, params, *planted.mlp_data()), steps=300)
    assert "no_gradient" in [cause.key for cause in found.causes]
    assert "a" in next(c for c in found.causes if c.key == "no_gradient").sentence


def test_every_check_says_in_a_sentence_what_it_looks_for():
    assert all(check.__doc__ for check in CHECKS)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [(3, "cannot diagnose a int"), ("run", "cannot diagnose a str")],
)
def test_what_cannot_be_diagnosed_is_refused(given, complaint):
    with pytest.raises(sh.InputError, match=complaint):
        sh.diagnose(given)


# ------------------------------------------------------------------------------- the command line


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "my.py"
    path.write_text("import planted_faults as p\n\ndef dead():\n    return p.dead_units()[0]\n")
    return path


def test_the_command_prints_json_and_writes_a_page(model_file, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ["--steps", "300", "--step-size", "0.05", "--json", "--out", str(page)]
    assert main(["diagnose", f"{model_file}:dead", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "stuck"
    assert found["causes"][0]["cause"] == "dead_units"
    assert found["causes"][0]["trial"]["factor"] > 1e3
    assert "are zero on every sample" in page.read_text()


def test_the_command_diagnoses_a_run_folder(model_file, tmp_path, capsys):
    run = tmp_path / "run"
    steps = ["--steps", "300", "--set", "step_size=0.05"]
    assert main(["train", f"{model_file}:dead", "--steps", "300", "--out", str(run)]) == 0
    assert main(["diagnose", f"{model_file}:dead", "--run", str(run), "--no-trials"]) == 0
    assert "zero on every sample" in capsys.readouterr().out
    assert main(["diagnose", f"{model_file}:dead", "--run", str(run), *steps]) == 2
    assert main(["diagnose"]) == 2
