"""The residual Transformer against the NumPy witness: outputs, runs, bounds, probes, data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qin2025_reference as reference
import shoal as sh
from shoal.diagnostics.kernels import jacobian
from shoal.errors import InputError
from shoal.lab.setup import WEIGHTS, key_of, paper_setup
from shoal.lab.study import fresh_setup
from shoal.linalg import singular_values
from shoal.models import empirical_risk, predict
from shoal.papers.qin2025 import PAPER, Qin, blocks, bounds, experiments, studies
from shoal.papers.qin2025.blocks import Form, Weights
from shoal.theory import descent
from test_qin2025_reference import example_1, example_2

SIZES = {"num_samples": 2, "num_tokens": 3, "dim": 8, "key_dim": 4, "width": 7}
HALF, STANDARD = descent.Split(), descent.Split(1.0, 0.5)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def witness_model(setting):
    form = setting.form
    named = {
        "relu": reference.relu(),
        "leaky": reference.leaky(setting.slope),
        "smooth_leaky": reference.smooth_leaky(setting.slope),
        "gelu": reference.gelu(),
    }
    return reference.Model(
        activation=named[setting.activation],
        residual_attention=form.residual_attention,
        residual_feedforward=form.residual_feed_forward,
        branch_scale=form.branch,
        score_exponent=setting.score_power,
        causal=setting.causal,
        layer_norm=setting.norm,
        output="vec" if setting.output == "whole" else setting.output,
    )


def witness_weights(params):
    """From stacked blocks to the witness's list of them."""
    arrays = {name: np.asarray(leaf) for name, leaf in params._asdict().items()}
    depth = len(arrays["W_Q"])
    listed = [{name: arrays[name][k] for name in blocks.BLOCKS} for k in range(depth)]
    return reference.Weights(listed, arrays["W_U"])


def from_witness(weights):
    stacked = {
        name: jnp.stack([jnp.asarray(block[name], float) for block in weights.blocks])
        for name in blocks.BLOCKS
    }
    return Weights(**stacked, W_U=jnp.asarray(weights.W_U, float))


def start(**values):
    """Setting, weights and problem of one start, as compiled programs see them."""
    one = paper_setup(PAPER, SIZES | values).one()
    return one.setting, *jax.tree.map(jnp.asarray, (one.params0, one.problem))


VARIANTS = (
    {},
    {"num_layers": 3, "residual": "attention", "activation": "relu"},
    {"num_layers": 2, "residual": "feed_forward", "activation": "leaky", "slope": 0.1},
    {"num_layers": 2, "residual": "none", "activation": "gelu", "score_power": 1.0},
    {"num_layers": 3, "residual_scale": "depth", "causal": True},
    {"num_layers": 2, "norm": True, "output": "mean", "activation": "gelu"},
    {"num_layers": 2, "output": "whole", "causal": True, "score_power": 0.0},
)


def test_large_blocks_are_not_looped_over_and_their_outputs_are_those_of_the_witness(monkeypatch):
    setting, params, problem = start(**VARIANTS[1])
    network, loops = setting.network(), []
    for large in (blocks.UNROLL_FROM, 1):
        monkeypatch.setattr(blocks, "UNROLL_FROM", large)
        step = jax.jit(lambda p, X: predict(network, p, X))
        loops.append("while" in step.lower(params, problem.X).as_text())
    assert loops == [True, False]
    weights, X = witness_weights(params), np.asarray(problem.X)
    theirs = reference.outputs(weights, X, witness_model(setting))
    np.testing.assert_allclose(step(params, problem.X).ravel(), theirs, rtol=1e-12)


@pytest.mark.parametrize("values", VARIANTS)
def test_outputs_and_gradients_are_those_of_the_witness(values):
    setting, params, problem = start(**values)
    network, witness = setting.network(), witness_model(setting)
    weights, X = witness_weights(params), np.asarray(problem.X)

    @jax.jit
    def everything(params):
        risk = empirical_risk(network, problem, setting.loss)
        return predict(network, params, problem.X), jax.grad(risk)(params)

    ours, gradient = everything(params)
    np.testing.assert_allclose(ours.ravel(), reference.outputs(weights, X, witness), rtol=1e-12)
    theirs = reference.loss_gradient(weights, X, np.asarray(problem.y).ravel(), witness)
    flat = reference.flatten(witness_weights(gradient))
    np.testing.assert_allclose(flat, theirs, rtol=1e-9, atol=1e-12)


def test_one_block_is_that_of_jax_s_own_attention():
    setting, params, problem = start()
    W = jax.tree.map(lambda leaf: leaf[0], params._replace(W_U=None))
    X = problem.X
    query, key, value = (X @ W[i] for i in range(3))
    # their width of queries and values is one: pad
    pad = [(0, 0), (0, 0), (0, value.shape[2] - query.shape[2])]
    attended = jax.nn.dot_product_attention(
        jnp.pad(query, pad)[:, :, None],
        jnp.pad(key, pad)[:, :, None],
        value[:, :, None],
        scale=setting.key_dim**-0.5,
    )[:, :, 0]
    found = setting.attended(params, X)[0]
    np.testing.assert_allclose(found, X + attended, atol=1e-6)  # theirs is in single precision


def test_one_block_is_that_of_torch():
    torch = pytest.importorskip("torch")
    setting, params, problem = start(activation="gelu")
    tensors = {k: torch.tensor(np.asarray(v)) for k, v in params._asdict().items()}
    X = torch.tensor(np.asarray(problem.X))
    W = {k: v[0] for k, v in tensors.items() if k != "W_U"}
    attended = torch.nn.functional.scaled_dot_product_attention(
        X @ W["W_Q"], X @ W["W_K"], X @ W["W_V"]
    )
    A = X + attended
    H = A + torch.nn.functional.gelu(A @ W["W_1"]) @ W["W_2"]
    ours = predict(setting.network(), params, problem.X)
    np.testing.assert_allclose(ours, (H @ tensors["W_U"]).numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("num_layers", "residual", "activation"),
    [(1, "both", "smooth_leaky"), (3, "none", "relu"), slow(3, "both", "smooth_leaky"),
     slow(1, "none", "relu"), slow(1, "both", "relu"), slow(3, "both", "relu")],
)  # fmt: skip
def test_a_run_can_be_recomputed_by_anyone(num_layers, residual, activation):
    values = SIZES | {"num_layers": num_layers, "residual": residual, "activation": activation}
    run = sh.train(sh.setup("qin2025", **values), steps=4, step_size=0.02, probes=[])
    one, model = run.setup.one(), witness_model(run.setup.setting)
    weights, X, Y = witness_weights(one.params0), one.problem.X, one.problem.y.ravel()
    risks = []
    for _ in range(5):
        risks.append(reference.loss(weights, X, Y, model))
        step = reference.loss_gradient(weights, X, Y, model)
        weights = reference.unflatten(reference.flatten(weights) - 0.02 * step, weights)
    np.testing.assert_allclose(run.risk[0], risks, rtol=1e-10)


# ------------------------------------------------------------------------------------ theorem D

NETWORKS = (
    {},
    {"num_layers": 3, "residual": "attention"},
    {"num_layers": 2, "residual": "none", "activation": "gelu"},
    {"num_layers": 2, "residual_scale": "depth", "causal": True, "score_power": 1.0},
    {"num_layers": 2, "output": "mean"},
    {"num_layers": 2, "output": "whole"},
)
IN_SHORT = ((0, "sharp"), (1, "basic"), (4, "sharp"))


@pytest.mark.parametrize(
    ("network", "variant"),
    [pair if pair in IN_SHORT else slow(*pair) for pair in
     ((k, v) for k in range(len(NETWORKS)) for v in ("basic", "sharp"))],
)  # fmt: skip
def test_ball_constants_are_those_of_the_witness(network, variant):
    setting, params, problem = start(**NETWORKS[network], width=8, bounds=variant)
    theirs = reference.start_numbers(
        witness_weights(params), np.asarray(problem.X), witness_model(setting)
    )
    radius = 0.003

    @jax.jit
    def ours(params):
        norms = bounds.measure(params, problem.X, setting.form)
        last = bounds.recursion(norms, radius, sharp=variant == "sharp")
        found = {"routes": jnp.stack(bounds.routes(norms, radius, last))}
        for route in ("layers", "kernel"):
            ball_at = setting.replace(route=route).ball_at(params, problem.X, norms)
            found[route] = ball_at(jnp.asarray(radius))
            found[f"{route} r_max"] = descent.largest_residual(ball_at, HALF)
        return found

    found, expected = ours(params), reference.ball_constants(theirs, radius, variant)
    np.testing.assert_allclose(found["routes"], expected["routes"], rtol=1e-9, atol=1e-15)
    for route, name in (("layers", "lay"), ("kernel", "ntk")):
        ball = found[route]
        numbers = [ball.alpha, ball.beta, ball.lipschitz]
        printed = [expected[f"alpha_{name}"], expected["beta"], expected["L_J"]]
        np.testing.assert_allclose(numbers, printed, rtol=1e-9, atol=1e-15)
        top, _ = reference.r_max(theirs, variant, name, reference.Choice(0.5, 0.5))
        np.testing.assert_allclose(found[f"{route} r_max"][0], top, rtol=1e-7, atol=1e-20)


FORM = Form(blocks.activation("smooth_leaky", 0.3))


def worked(example):
    weights, X = example
    return from_witness(weights), jnp.asarray(X)


PRINTED = (
    ("basic", STANDARD, [0.03493619185, 1.14494448, 32.63376601, 241.2788232, 0.0009390000374]),
    ("basic", HALF, [0.01205809209, 1.658637192, 30.09518401, 211.7161107, 0.000552046929]),
    ("sharp", HALF, [0.01205809209, 1.658637192, 26.98301675, 144.6020974, 0.0006867347093]),
)


@pytest.mark.parametrize(("variant", "split", "printed"), PRINTED)
def test_worked_example_1(variant, split, printed):
    params, X = worked(example_1())

    @jax.jit
    def numbers(params):
        norms = bounds.measure(params, X, FORM)
        ball_at = bounds.ball_at(norms, sharp=variant == "sharp", route="layers")
        ball, _ = descent.smallest_ball(ball_at, 0.01, split)
        return ball, descent.allowed_step(ball_at, 0.01, split)

    ball, step = numbers(params)
    np.testing.assert_allclose([*ball, step / (1 - descent.ROOM)], printed, rtol=2e-7)
    np.testing.assert_allclose(ball, printed[:-1], rtol=2e-9)  # the step leaves room for rounding


def test_worked_example_1_beyond_a_dip():
    params, X = worked(example_1())
    network = Qin().network()._replace(apply=lambda p, x: blocks.outputs(p, x, FORM))

    @jax.jit
    def numbers(params):
        sigma = singular_values(jacobian(network, X)(params))
        ball_at = bounds.ball_at(bounds.measure(params, X, FORM), sigma_J=sigma[-1])
        return descent.smallest_ball(ball_at, 0.0061, STANDARD)[0], sigma

    ball, sigma = numbers(params)
    np.testing.assert_allclose(sigma, [7.47508319, 3.766408241], rtol=2e-9)
    np.testing.assert_allclose([ball.radius, ball.alpha], [0.01210767361, 2.015250888], rtol=1e-8)


def test_worked_example_2():
    params, X = worked(example_2())
    form = FORM._replace(score=2**-0.5)

    @jax.jit
    def numbers(params):
        norms = bounds.measure(params, X, form)
        ball_at = bounds.ball_at(norms)
        top = descent.largest_residual(ball_at, STANDARD)
        return bounds.recursion(norms, 1e-3), ball_at(jnp.asarray(1e-3)), top

    last, ball, (top, radius) = numbers(params)
    np.testing.assert_allclose(last.h1, [6.216624349, 10.71830918], rtol=2e-9)
    np.testing.assert_allclose(last.h2, [35.90137393, 85.01701795], rtol=2e-9)
    np.testing.assert_allclose(
        [ball.alpha, ball.beta, ball.lipschitz], [0.8592393493, 12.57717538, 94.0118839], rtol=2e-9
    )
    np.testing.assert_allclose(top, 0.002521245094, rtol=2e-9)
    np.testing.assert_allclose(radius, 0.02197, rtol=5e-4)


@pytest.mark.parametrize(
    "values", [{}, slow({"num_layers": 2, "causal": True}), slow({"output": "mean"})]
)
def test_constants_bound_what_is_sampled_in_the_ball(values):
    setting, params, problem = start(**values, dim=12, width=16, token_scale=0.3)
    network, radius = setting.network(), 0.05

    @jax.jit
    def sample(key):
        def inside(key):
            keys = jax.random.split(key, len(params))
            away = [jax.random.normal(k, W.shape) for k, W in zip(keys, params, strict=True)]
            size = jnp.sqrt(sum(jnp.sum(a**2) for a in away))
            return Weights(*(W + radius * a / size for W, a in zip(params, away, strict=True)))

        one, other = (inside(k) for k in jax.random.split(key))
        J, K = (jacobian(network, problem.X)(p) for p in (one, other))
        apart = jnp.sqrt(sum(jnp.sum((a - b) ** 2) for a, b in zip(one, other, strict=True)))
        sigma = singular_values(J)
        return sigma[-1], sigma[0], singular_values(J - K)[0] / apart

    ball = jax.jit(lambda p: setting.ball_at(p, problem.X)(jnp.asarray(radius)))(params)
    low, high, turn = jax.lax.map(sample, jax.random.split(jax.random.key(0), 20))
    assert jnp.min(low) >= ball.alpha
    assert jnp.max(high) <= ball.beta
    assert jnp.max(turn) <= ball.lipschitz
    assert ball.beta < 200 * jnp.max(high)  # and it is a bound of this size, not any number


# -------------------------------------------------------------------------------- conditioning

TABLE = """8 .25 .1 1.2e3 1.7e3 1.8 1.8
8 1 .5 1.1e2 1.6e2 1.9 1.8
8 2 1 4.5e2 6.3e2 2.8 1.8
16 .25 .1 6.2e3 1.0e4 2.6 2.6
16 1 .5 1.2e2 1.8e2 2.6 2.6
16 2 1 1.6e3 2.3e3 3.5 2.6
32 .25 .1 7.3e3 2.1e4 5.0 5.0
32 1 .5 2.1e3 5.2e3 5.2 5.0
32 2 1 2.0e3 6.2e3 7.6 5.0
64 .25 .1 2.6e5 5.0e8 1.1e3 782
64 1 .5 6.6e3 5.8e6 3.9e2 782
64 2 1 3.1e3 3.6e6 2.4e2 782"""


@pytest.mark.parametrize("num_tokens", [8, slow(16), slow(32), slow(64)])
def test_the_conditioning_table_is_met_within_seed_noise(num_tokens):
    """Geometric means over 5 seeds of another generator, measured before this code existed."""
    for line in TABLE.splitlines():
        n, scale_qk, scale_v, *printed = map(float, line.split())
        if n != num_tokens:
            continue
        found = experiments.attention(40, num_tokens, scale_qk, scale_v)
        for kind, value in zip(("S", "without", "with", "X"), printed, strict=True):
            logs = np.log10(found[f"condition_{kind}"])
            noise = logs.std(ddof=1) * (1 / 40 + 1 / 5) ** 0.5
            assert abs(logs.mean() - np.log10(value)) < 4 * noise + 0.02, (line, kind)


def test_weyl_s_bound_is_never_exceeded():
    useful = 0
    for scale_qk, scale_v in ((0.5, 0.05), (1.0, 0.1), (2.0, 0.5)):
        found = experiments.attention(40, 8, scale_qk, scale_v)
        values = experiments.SEQUENCE | {"scale_qk": scale_qk, "scale_v": scale_v, "num_tokens": 8}
        setup = fresh_setup(PAPER, values, seeds=range(40))
        for seed in range(40):
            one = setup.one(seed)
            (X,), weights = one.problem.X, witness_weights(one.params0)
            attended = reference.traces(weights, X, witness_model(one.setting))[0]["A"]
            low, condition = reference.weyl(X, attended)
            assert found["sigma_min_with"][seed] >= low * (1 - 1e-12)
            assert found["condition_with"][seed] <= condition * (1 + 1e-12)
            useful += low > 0
    assert 40 < useful < 120  # where it is not vacuous


def test_probes_are_those_of_the_witness():
    setup = sh.setup("qin2025", **SIZES, num_layers=2, residual="attention")
    names = ("conditioning", "conditioning_each", "token_cosine", "edge_of_stability", "curvature")
    run = sh.train(setup, steps=0, step_size=0.01, probes=(*names, "local_rate", "routes"))
    seen = {name: values[0, 0] for name, values in run.probes.items()}
    one = setup.one()
    X, witness, weights = one.problem.X, witness_model(one.setting), witness_weights(one.params0)
    traced = [reference.traces(weights, x, witness) for x in X]
    for layer in range(2):
        A = np.stack([one[layer]["A"] for one in traced])
        expected = reference.conditioning(A.reshape(-1, A.shape[2]), 3)
        for ours, theirs in (
            ("sigma_min", "sigma_min"),
            ("sigma_max", "sigma_max"),
            ("condition", "kappa"),
            ("stable_rank", "stable_rank"),
            ("centred_share", "centred_share"),
        ):
            np.testing.assert_allclose(
                seen[f"conditioning_{ours}"][layer], expected[theirs], rtol=1e-8
            )
        each = [np.linalg.svd(a, compute_uv=False) for a in A]
        worst = max(s[0] / s[-1] for s in each)
        np.testing.assert_allclose(seen["conditioning_each_condition"][layer], worst, rtol=1e-8)
        unit = A / np.linalg.norm(A, axis=2, keepdims=True)
        pairs = [u @ u.T for u in unit]
        cosines = [p[i, j] for p in pairs for i in range(3) for j in range(3) if i != j]
        np.testing.assert_allclose(seen["token_cosine"][layer], np.mean(cosines), rtol=1e-9)
    J = reference.jacobian(weights, X, witness)
    low, high = np.linalg.svd(J, compute_uv=False)[[-1, 0]] ** 2
    rate = max((1 - 0.01 * low) ** 2, (1 - 0.01 * high) ** 2)
    np.testing.assert_allclose(seen["local_rate"], rate, rtol=1e-9)
    np.testing.assert_allclose(seen["routes_sigma_min"], low**0.5, rtol=1e-8)
    assert seen["routes_together"] <= low**0.5
    np.testing.assert_allclose(seen["edge_of_stability"], seen["curvature_max"] / 200, rtol=1e-3)


def test_every_setting_and_every_probe_has_a_sentence():
    assert all(Qin.sentences().values())
    own = Qin().probes(paper_setup(PAPER, SIZES).one().replace(step_size=0.1))
    assert set(Qin.probe_sentences) == set(own)
    assert set(Qin.default_probes) & set(own) == {"conditioning", "token_cosine"}


def test_more_rows_than_columns_have_no_smallest_singular_value():
    found = blocks.conditioning(jnp.ones((3, 2)))
    assert float(found["sigma_min"]) == 0
    assert np.isinf(found["condition"])
    assert float(found["rank"]) == 1


def test_orthogonal_weights_have_one_singular_value():
    _, params, _ = start(init="orthogonal", scale_v=0.7, num_layers=2)
    for name, W in params._asdict().items():
        scale = {"W_V": 0.7, "W_2": 0.5}.get(name, 1.0)
        sigma = np.linalg.svd(np.asarray(W), compute_uv=False)
        np.testing.assert_allclose(sigma, scale, rtol=1e-12)


# ---------------------------------------------------------------------------------------- data


def test_tokens_can_be_conditioned_and_correlated():
    _, _, problem = start(token_condition=30.0)
    X = np.asarray(problem.X).reshape(6, 8)
    sigma = np.linalg.svd(X, compute_uv=False)
    np.testing.assert_allclose(sigma[0] / sigma[-1], 30, rtol=1e-9)
    X = np.asarray(blocks.tokens(jax.random.key(0), (200, 2, 64), 1.0, 0.9))
    np.testing.assert_allclose(np.mean(X[:, 0] * X[:, 1]), 0.9, atol=0.03)


def test_labels_near_the_start_are_as_near_as_asked():
    setting, _, problem = start(labels="near", near_seed=3, near_error=0.01)
    params = setting.weights(key_of(3, WEIGHTS))
    drawn = paper_setup(PAPER, SIZES, seeds=(3,)).params0
    for ours, theirs in zip(params, drawn, strict=True):
        np.testing.assert_allclose(ours, theirs[0], rtol=1e-14)
    F = predict(setting.network(), params, problem.X)
    np.testing.assert_allclose(np.linalg.norm((F - problem.y).ravel()), 0.01, rtol=1e-9)


def test_the_teacher_s_labels_can_be_fitted_exactly():
    setting, _, problem = start(labels="teacher")
    key = jax.random.split(key_of(setting.data_seed, 0), 3)[2]
    F = predict(setting.network(), setting.weights(key), problem.X)
    np.testing.assert_allclose(F, problem.y, rtol=1e-12)


def test_the_word_of_older_run_folders_is_still_understood():
    setup = paper_setup(PAPER, SIZES | {"residual": "feedforward"})
    assert setup.setting.residual == "feed_forward"
    assert (setup.setting.form.residual_attention, setup.setting.form.residual_feed_forward) == (
        0.0,
        1.0,
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"residual": "sideways"}, "both, attention, feed_forward, none"),
        ({"slope": 1.5}, "slope"),
        ({"near_error": 0.1}, "labels=near"),
        ({"token_condition": 5.0, "num_samples": 100}, "token_condition"),
        ({"problem": "file"}, "--data"),
    ],
)
def test_bad_input_is_told(values, said):
    with pytest.raises(InputError, match=said):
        paper_setup(PAPER, SIZES | values)


def test_targets_must_be_what_the_model_puts_out(tmp_path):
    rng = np.random.default_rng(0)
    file = tmp_path / "p.npz"
    np.savez(file, X=rng.normal(size=(2, 3, 8)), Y=rng.normal(size=(2, 3, 1)))
    with pytest.raises(InputError, match="one target row per sample"):
        sh.setup("qin2025", data=file, output="mean")
    np.savez(file, X=rng.normal(size=(2, 3, 8)), Y=rng.normal(size=(2, 1)))
    setting = sh.setup("qin2025", data=file, output="mean").setting
    assert (setting.problem, setting.out_dim, setting.dim) == ("file", 1, 8)


# -------------------------------------------------------------------------------------- claims


@pytest.mark.slow
def test_the_registered_steps_are_the_best_on_the_tuning_seeds():
    for mode, step in studies.TUNED_STEPS.items():
        left = experiments.risk_by_step(tuple(range(9000, 9016)), studies.STEPS, 500, mode)
        best = int(np.argmin(np.median(left, axis=0)))
        assert studies.STEPS[best] == step
        assert 0 < best < len(studies.STEPS) - 1


def test_all_claims_and_figures_are_registered():
    assert len(PAPER.claims) == 27
    assert [figure.key for figure in PAPER.figures] == [
        "conditioning", "depth", "training", "steps", "rate", "layers", "stability", "certificate",
        "singular_values",
    ]  # fmt: skip
    assert [theorem.key for theorem in PAPER.theorems] == ["theorem_d", "theorem_d0"]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["depth", "certificate"])
def test_figures_hold_finite_numbers(key):
    (figure,) = (f for f in PAPER.figures if f.key == key)
    made = figure.make(False)
    assert len(made.panels) == 2
    assert all(np.isfinite(c.y).all() and len(c.y) for p in made.panels for c in p.curves)


@pytest.mark.slow
def test_the_visit_tells_what_residuals_do():
    found = PAPER.visit()
    with_it, without = found.rows
    assert (with_it["verdict"], without["verdict"]) == ("holds", "not applicable")
    assert without["condition"] > 1e6 * with_it["condition"]
    assert len(found.cells[0]) == len(found.head)
    assert "With residuals" in found.words
