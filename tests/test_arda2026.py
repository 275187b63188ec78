"""The multi-head model, its closed forms, its data and its runs, against loops and autodiff."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import arda2026_reference as witness
import shoal as sh
from shoal.diagnostics.kernels import tangent_kernels
from shoal.lab import probes as general
from shoal.lab.engine import kernel_predictions, per_start
from shoal.lab.study import Plan
from shoal.losses import mean_of_squares
from shoal.models import empirical_risk, predict, training_risk
from shoal.papers.arda2026 import PAPER, data, experiments, figures, heads, teachers, variants
from shoal.papers.arda2026.heads import ACTIVATIONS, Weights
from shoal.papers.arda2026.model import Arda
from shoal.problems import Problem

TANH = ACTIVATIONS["tanh"]
TINY = {"num_samples": 6, "num_tokens": 4, "dim": 3, "num_heads": 4, "pool": 64}


def some(n=5, T=4, d=3, m=6, seed=0):
    """Inputs with queries, and weights of no symmetry."""
    rng = np.random.default_rng(seed)
    X, q = rng.normal(size=(n, T, d)), rng.normal(size=(n, d))
    W, U, c = rng.normal(size=(m, d, d)), rng.normal(size=(m, d)), rng.normal(size=m)
    return (jnp.asarray(X), jnp.asarray(q)), Weights(*map(jnp.asarray, (W, U, c)))


def as_witness(params):
    return witness.Weights(*(np.asarray(params._asdict()[name]) for name in "cUW"))


# -------------------------------------------------------------------------------------- model


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_slopes_and_bounds_of_activations(name):
    sigma, other = ACTIVATIONS[name], witness.ACTIVATIONS[name]
    g = jnp.linspace(-6, 6, 4001)
    slope = jax.vmap(jax.grad(sigma.value))(g)
    bend = jax.vmap(jax.grad(jax.grad(sigma.value)))(g)
    np.testing.assert_allclose(sigma.slope(g), slope, atol=1e-14)
    np.testing.assert_allclose([sigma.s0, sigma.s1, sigma.s2], other[2:], rtol=1e-14)
    for values, bound in ((sigma.value(g), sigma.s0), (slope, sigma.s1), (bend, sigma.s2)):
        largest = float(jnp.max(jnp.abs(values)))
        assert largest <= bound * (1 + 1e-12)
    assert float(jnp.max(jnp.abs(bend))) > 0.999 * sigma.s2  # the bound is the maximum


@pytest.mark.parametrize(  # blocks of heads, of samples, and none
    ("name", "block"),
    [("tanh", 8), ("tanh", 40), ("tanh", 10**6), ("logistic", 8), ("sin", 40), ("erf", 8)],
)
def test_outputs_gradients_and_kernels_in_any_portions(name, block):
    inputs, params = some()
    sigma = ACTIVATIONS[name]
    model = heads.heads(6, 3, sigma, block=block)
    expected = [
        witness.forward(as_witness(params), x, q, witness.ACTIVATIONS[name])
        for x, q in zip(*map(np.asarray, inputs), strict=True)
    ]
    np.testing.assert_allclose(predict(model, params, inputs), expected, rtol=1e-12)
    labels = jnp.linspace(-1.0, 1.0, 5)
    problem = Problem(inputs[0], labels, inputs[1])
    streaming = heads.streamed_squares(sigma, block, 1.0)
    value = jnp.sum((jnp.asarray(expected) - labels) ** 2)
    np.testing.assert_allclose(streaming(params, inputs, labels), value, rtol=1e-12)  # value alone
    ways = (
        empirical_risk(model, problem, mean_of_squares),
        training_risk(model, problem, mean_of_squares),
        lambda params: streaming(params, inputs, labels) / 5,  # whatever the model has chosen
    )
    plain, *fast = [jax.tree.leaves(jax.jit(jax.value_and_grad(way))(params)) for way in ways]
    for found in fast:
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    closed = jax.jit(heads.tangent_kernels(inputs, sigma, block=block))(params)
    dense = jax.jit(tangent_kernels(model, inputs))(params)
    squares = heads.output_gradients(params, inputs, sigma)
    for part in "WUc":
        np.testing.assert_allclose(closed[part], dense[part], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(squares[part], np.diag(dense[part]), rtol=1e-12)


def test_the_gradient_is_that_of_the_witness():
    inputs, params = some()
    y = jnp.arange(5.0)
    for block in (8, 10**6):
        squares = heads.streamed_squares(TANH, block, 1.0)
        ours = jax.grad(lambda p, f=squares: f(p, inputs, y) / 5)(params)
        theirs = witness.loss_gradient(as_witness(params), *map(np.asarray, inputs), np.asarray(y))
        for name in "cUW":
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12)


def test_without_a_query_the_last_token_asks():
    (X, _), params = some()
    model = heads.heads(6, 3, TANH)
    np.testing.assert_array_equal(predict(model, params, X), predict(model, params, (X, X[:, -1])))
    y = jnp.zeros(5)
    np.testing.assert_array_equal(
        model.fused_squares(params, X, y), model.fused_squares(params, (X, X[:, -1]), y)
    )


@pytest.mark.parametrize("name", ["heads", "recurrent", "deep", "causal"])
def test_the_output_is_zero_at_the_start(name):
    values = {"model": name, "num_samples": 5, "num_heads": 8, "pool": 64, "recurrence": 0.5}
    values |= {"problem": "autoregressive"} if name == "causal" else {}
    setup = sh.setup("arda2026", seeds=(0, 1), **values)
    for seed in (0, 1):
        one = jax.tree.map(jnp.asarray, setup.one(seed))
        f = predict(one.network, one.params0, one.inputs)
        assert float(jnp.max(jnp.abs(f))) < 1e-14
        assert set(np.abs(one.params0.c).tolist()) == {1.0}
    if name == "recurrent":
        assert set(np.abs(setup.params0.w).ravel().tolist()) == {0.5}


def test_weights_have_the_names_and_shapes_of_the_contract():
    shapes = {name: block.shape for name, block in heads.shapes(4, 3)._asdict().items()}
    assert shapes == {"W": (4, 3, 3), "U": (4, 3), "c": (4,)}


# ----------------------------------------------------------------------------------- variants


def test_the_recurrent_network_and_its_derivative():
    rng = np.random.default_rng(1)
    params = variants.Units(
        *map(jnp.asarray, (rng.normal(size=4), rng.normal(size=(4, 2)), rng.normal(size=4)))
    )
    x = jnp.asarray(rng.normal(size=(6, 2)))
    model = variants.recurrent(4, 2, TANH)
    pairs = [witness.indrnn(w, u, x) for w, u in zip(params.w, params.u, strict=True)]
    states, slopes = np.array(pairs).T
    np.testing.assert_allclose(model.apply(params, x), params.c @ states / 2, rtol=1e-12)
    slope = jax.grad(model.apply)(params, x).w
    np.testing.assert_allclose(slope, params.c * slopes / 2, rtol=1e-12)
    for w, s in zip(params.w, slopes, strict=True):
        assert abs(s) <= witness.indrnn_bound(float(w), 6)


def test_the_causal_form_is_the_model_on_every_prefix():
    (X, _), params = some()
    f = variants.causal(6, 3, TANH).apply(params, X[0])
    model = heads.heads(6, 3, TANH)
    prefixes = [model.apply(params, X[0, : t + 1]) for t in range(4)]
    np.testing.assert_allclose(f[:, 0], prefixes, rtol=1e-12)


def test_the_deep_form_with_silent_layers_is_the_model():
    (X, _), params = some()
    deep = variants.deep(3, 6, 3, TANH)
    rng = np.random.default_rng(2)
    inner = [jnp.asarray(rng.normal(size=shape)) for shape in ((2, 6, 3, 3), (2, 6, 3), (2, 6, 3))]
    silent = variants.Deep(*params, *inner[:2], jnp.zeros((2, 6, 3)))
    model = heads.heads(6, 3, TANH)
    np.testing.assert_allclose(deep.apply(silent, X[0]), model.apply(params, X[0]), rtol=1e-12)
    # one layer that writes, in loops
    one = variants.deep(2, 6, 3, TANH)
    x, W, U, V = np.asarray(X[0]), *(np.asarray(block[0]) for block in inner)
    streamed = np.array(
        [
            x_t
            + sum(
                v * np.tanh(u @ witness.attend(x, x_t, w)[1])
                for w, u, v in zip(W, U, V, strict=True)
            )
            / 6**0.5
            for x_t in x
        ]
    )
    writing = variants.Deep(*params, *(block[:1] for block in inner))
    np.testing.assert_allclose(
        one.apply(writing, X[0]), model.apply(params, jnp.asarray(streamed)), rtol=1e-12
    )


# -------------------------------------------------------------------------------------- data


def test_series_are_stationary_and_remember_one_lag():
    x = np.asarray(data.series(jax.random.key(0), 20000, 12, 3))
    np.testing.assert_allclose(x.var(axis=0), data.TRIVIAL, rtol=0.05)
    for lag in range(1, 7):
        expected = 0.9 ** (lag // 3) * data.TRIVIAL if lag % 3 == 0 else 0.0
        found = np.mean(x[:, lag:] * x[:, :-lag])
        assert abs(found - expected) < 0.01
    assert np.mean((x[:, 3:] - 0.9 * x[:, :-3]) ** 2) == pytest.approx(data.BAYES, rel=0.02)


def test_a_window_is_followed_by_its_target():
    setting = Arda(problem="autoregressive", lag=3, num_samples=4).complete()
    key = jax.random.key(0)
    made = setting.data(key)
    assert made.X.shape == (4, 4, 17)
    causal = setting.replace(model="causal").data(key)
    np.testing.assert_array_equal(causal.y[:, -1, 0], made.y)
    np.testing.assert_array_equal(causal.y[:, :-1, 0], made.X[:, 1:, 0])
    assert float(jnp.max(jnp.linalg.norm(made.X, axis=2))) > 2.8
    unit = setting.replace(clip=True).data(key)
    assert float(jnp.max(jnp.linalg.norm(unit.X, axis=2))) <= 1 + 1e-12
    held_out = setting.replace(test_samples=4).test_data(key)
    assert not np.allclose(held_out.X[:, :, 0], made.X[:, :, 0])


@pytest.mark.slow
def test_labels_of_the_teacher_are_averages_over_its_pool():
    setting = Arda(num_samples=3, num_tokens=4, dim=3, num_anchors=2, pool=64).complete()
    anchors = data.anchors(setting)
    pool = heads.twins(jax.random.key(5), heads.shapes(8, 3))
    v = teachers.of_anchors(pool, anchors, (3.0, 2.0, 0.1), TANH)
    X = np.asarray(setting.data(jax.random.key(1)).X)
    by_hand, clipped = [], 0
    for i in range(8):
        at = [
            witness.features(x, x[-1], np.asarray(pool.U[i]), np.asarray(pool.W[i]))
            for x in np.asarray(anchors)
        ]
        v_c, v_u = 3.0 * np.mean([f[0] for f in at]), 2.0 * np.mean([f[1] for f in at], axis=0)
        lengths = [np.sqrt(np.sum(f[2] ** 2)) for f in at]
        clipped += sum(length > 0.1 for length in lengths)
        v_w = np.mean([f[2] * min(1, 0.1 / r) for f, r in zip(at, lengths, strict=True)], axis=0)
        np.testing.assert_allclose(v.W[i], v_w, rtol=1e-12)
        F = [witness.features(x, x[-1], np.asarray(pool.U[i]), np.asarray(pool.W[i])) for x in X]
        by_hand.append([f[0] * v_c + f[1] @ v_u + np.sum(f[2] * v_w) for f in F])
    assert clipped  # the clipping was at work
    for block in (12, 10**6):
        found = teachers.labels(pool, v, jnp.asarray(X), TANH, block=block)
        np.testing.assert_allclose(found, np.mean(by_hand, axis=0), rtol=1e-12)


def test_the_dual_teacher_is_built_on_the_heads_of_the_data_s_seed():
    for seed in (0, 3):
        setup = sh.setup("arda2026", labels="dual", data_seed=seed, seeds=[seed], **TINY)
        own = data.own_heads(setup.setting)
        for one, other in zip(own, setup.one().params0, strict=True):
            np.testing.assert_array_equal(one, other)
        phi_0 = as_witness(own)
        X, y = setup.problem.X, setup.problem.y
        K = np.array([[witness.dot(a, b) for a in G] for G in [_gradients(phi_0, X)] for b in G])
        beta = np.linalg.eigh(K.reshape(6, 6))[1][:, -1]
        _, _, expected = witness.dual_teacher(phi_0, X, X[:, -1], beta, 3.0)
        sign = np.sign(expected @ y)
        np.testing.assert_allclose(y, sign * expected, rtol=1e-9)


def _gradients(phi, X):
    return [witness.gradient(phi, x, x[-1]) for x in X]


@pytest.mark.slow
def test_the_best_fit_is_that_of_scipy():
    from scipy.optimize import minimize

    (X, _), _ = some()
    params0 = heads.twins(jax.random.key(3), heads.shapes(4, 3))
    model = heads.heads(4, 3, TANH)
    y = jnp.array([1.0, -0.5, 0.3, 0.2, -1.0])
    K = sum(tangent_kernels(model, X)(params0).values())
    top = jnp.linalg.eigvalsh(K)[-1]
    radii = (0.4, 0.2, 0.3)
    fit = teachers.best_fit(model, params0, X, y, radii, top)
    ours = float(jnp.mean((teachers.linearised(model, params0, X, fit) - y) ** 2))
    flat, unravel = jax.flatten_util.ravel_pytree(params0)
    J = jax.jacobian(lambda v: predict(model, unravel(v), X))(flat)

    def room(delta):
        d = unravel(jnp.asarray(delta))
        rows = [jnp.sum(getattr(d, n).reshape(4, -1) ** 2, axis=1) for n in "cUW"]
        return np.concatenate(
            [r**2 / 4 - np.asarray(row) for r, row in zip(radii, rows, strict=True)]
        )

    found = minimize(
        lambda d: float(jnp.mean((J @ d - y) ** 2)),
        np.zeros(flat.size),
        jac=lambda d: np.asarray(2 / 5 * J.T @ (J @ d - y)),
        constraints={"type": "ineq", "fun": room},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert ours == pytest.approx(found.fun, rel=1e-5)
    norms = teachers.norms(params0, fit)
    shares = [float(norms[k]) / r for k, r in zip("cUW", radii, strict=True)]
    assert max(shares) == pytest.approx(1, abs=1e-9)


# --------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("radius", ["3,3,3", "0.05,0.1,0.02"])
def test_a_run_folder_can_be_recomputed_by_anyone(tmp_path, radius):
    out = tmp_path / "run"
    setup = sh.setup("arda2026", seeds=(0, 3), radius=radius, num_steps=12, **TINY)
    run = sh.train(setup, probes=["scaled_movement", "boundary", "params"])
    run.save(out)
    step = np.ravel(json.loads((out / "run.json").read_text())["setting"]["step_size"])
    np.testing.assert_allclose(step, 12**-0.5)
    table = pl.read_parquet(out / "trajectory.parquet")
    with np.load(out / "problem.npz") as p, np.load(out / "params0.npz") as w0:
        X, y = p["X"], p["y"]
        starts = [witness.Weights(*(w0[name][s] for name in "cUW")) for s in range(2)]
    rho = tuple(map(float, radius.split(",")))
    for s, seed in enumerate((0, 3)):
        losses, iterates = witness.projected_gd(starts[s], X, X[:, -1], y, rho, step[0], 12)
        seen = table.filter(pl.col("seed") == seed)
        np.testing.assert_allclose(seen["risk"].to_numpy()[:-1], losses, rtol=1e-10, atol=1e-16)
        with np.load(out / "params.npz") as last, np.load(out / "average.npz") as mean:
            for name in "cUW":
                np.testing.assert_allclose(last[name][s], getattr(iterates[-1], name), atol=1e-12)
                expected = getattr(witness.average(iterates[:-1]), name)
                np.testing.assert_allclose(mean[name][s], expected, atol=1e-12)
        with np.load(out / "probes.npz") as arrays:
            for name, r in zip("cUW", rho, strict=True):
                moved = arrays[f"params_{name}"][s] - getattr(starts[s], name)[None]
                length = np.sqrt(np.sum(moved.reshape(13, 4, -1) ** 2, axis=2))
                assert length.max() <= r / 2 + 1e-12
        on = seen["boundary_c"].to_numpy()
        assert (on[-1] > 0) == (radius != "3,3,3")
    again = sh.load(out)
    assert again.setup.setting.radius == rho


def test_a_query_may_come_with_the_data(tmp_path):
    (X, q), _ = some(m=2)
    params = heads.twins(jax.random.key(0), heads.shapes(2, 3))
    np.savez(tmp_path / "d.npz", X=X, y=np.ones(5), q=q)
    np.savez(tmp_path / "w.npz", **params._asdict())
    files = {"data": tmp_path / "d.npz", "params": tmp_path / "w.npz"}
    run = sh.train(sh.setup("arda2026", num_steps=4, **files), step_size=0.5, probes=[])
    rho = (3.0, 3.0, 3.0)
    expected, _ = witness.projected_gd(
        as_witness(params), np.asarray(X), np.asarray(q), np.ones(5), rho, 0.5, 4
    )
    np.testing.assert_allclose(run.risk[0, :-1], expected, rtol=1e-10)


def test_weights_of_a_deep_form_decide_its_layers(tmp_path):
    deep = variants.deep_twins(jax.random.key(0), variants.deep(4, 6, 3, TANH).spec)
    np.savez(tmp_path / "w.npz", **deep._asdict())
    values = {"model": "deep", "num_samples": 2, "num_tokens": 2, "pool": 64}
    setting = sh.setup("arda2026", params=tmp_path / "w.npz", **values).setting
    assert (setting.num_layers, setting.num_heads, setting.dim) == (4, 6, 3)


def test_sgd_takes_one_sample_per_step_and_decay_pulls_back():
    values = TINY | {"num_steps": 12}
    setup = sh.setup("arda2026", method="sgd", seeds=(0, 1), **values)
    assert setup.setting.batch_size == 1
    risk = sh.train(setup, probes=[]).risk
    assert np.isfinite(risk).all()
    assert not np.allclose(risk[0], risk[1])
    pulled = {}
    for rate in (0.0, 50.0):
        setup = sh.setup("arda2026", decay=rate, step_size=0.01, **values)
        run = sh.train(setup, probes=["scaled_movement"])
        pulled[rate] = float(run.probes["scaled_movement_U"][0, -1])
    assert pulled[50.0] < 0.8 * pulled[0.0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_heads": 7}, "num_heads=7 is odd"),
        ({"radius": "-1"}, "three positive numbers"),
        ({"radius": "1,2"}, "three positive numbers"),
        ({"num_tokens": 0}, "num_tokens=0"),
        ({"problem": "autoregressive", "lag": 5, "num_tokens": 5}, "lag=5"),
        ({"problem": "file"}, "add --data"),
        ({"comparator": "teacher", "labels": "gaussian"}, "comparator=fit"),
        ({"batch_size": 4}, "method=sgd"),
        ({"model": "causal"}, "problem=autoregressive"),
        ({"model": "deep", "num_layers": 1}, "model=heads"),
        ({"activation": "relu"}, "activation=relu"),
    ],
)
def test_bad_words_are_refused(values, said):
    with pytest.raises(sh.InputError) as error:
        sh.setup("arda2026", **values)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_three_radii_may_be_written_in_many_ways():
    for radius in ("0.5,0.5,0.5", "0.5", 0.5, [0.5, 0.5, 0.5], (0.5, 0.5, 0.5)):
        assert sh.setup("arda2026", radius=radius, **TINY).setting.radius == (0.5, 0.5, 0.5)
    assert sh.setup("arda2026", radius="none", **TINY).setting.radius is None


def test_the_kernel_predicts_a_wide_run_in_the_paper_s_own_loss():
    values = {"num_samples": 6, "num_heads": 2000, "num_steps": 20, "step_size": 0.5, "pool": 64}
    run = sh.train(sh.setup("arda2026", **values), probes=[])
    predicted = kernel_predictions(run.setup, run.step)
    np.testing.assert_allclose(predicted[0], run.risk[0], rtol=0.01)
    assert run.risk[0, -1] < 0.9 * run.risk[0, 0]


# -------------------------------------------------------------------------------------- probes


def test_every_probe_and_setting_has_a_sentence():
    setup = sh.setup("arda2026", problem="autoregressive", lag=2, num_samples=2, num_heads=2)
    names = general.probe_names(setup)
    assert {"path", "boundary", "covariance", "test_risk"} <= set(names)
    assert all(general.sentence(setup, name).endswith(".") for name in names)
    sentences = Arda.sentences()
    assert all(text.endswith((".", "[paper]")) for text in sentences.values())


def _probed(setup):
    return {name: general.chosen(setup, (name,))[name](setup.params0) for name in PROBED}


PROBED = ("attention_entropy", "covariance", "jacobian", "linearisation")


def test_probes_are_those_of_the_witness():
    (X, q), params = some(m=4)
    setup = sh.setup("arda2026", **(TINY | {"num_samples": 5}))
    setup = setup.replace(
        problem=Problem(X, jnp.ones(5), q), params0=jax.tree.map(lambda W: W[None], params)
    )
    found = per_start(setup, _probed)
    phi = as_witness(params)
    attended = [
        witness.attend(np.asarray(x), np.asarray(query), W)
        for x, query in zip(X, q, strict=True)
        for W in phi.W
    ]
    entropy = np.mean([-np.sum(alpha * np.log(alpha)) for alpha, _, _ in attended]) / np.log(4)
    assert found["attention_entropy"][0] == pytest.approx(entropy, rel=1e-12)  # 1 is uniform
    trace = np.mean([np.trace(M) for _, _, M in attended])
    assert found["covariance"]["trace"][0] == pytest.approx(trace, rel=1e-12)
    gradients = [witness.gradient(phi, *map(np.asarray, s)) for s in zip(X, q, strict=True)]
    for name in "cUW":
        largest = max(np.sqrt(np.sum(getattr(g, name) ** 2)) for g in gradients)
        assert found["jacobian"][name][0] == pytest.approx(largest, rel=1e-12)
    assert found["linearisation"]["sup"][0] == 0


def test_a_scaled_output_scales_kernels_and_jacobians():
    ends = []
    for scale in (1.0, 2.0):
        setup = sh.setup("arda2026", output_scale=scale, **TINY)
        run = sh.train(setup, steps=0, probes=["kernel_eigenvalues", "jacobian"])
        ends.append((run.probes["kernel_eigenvalues"], run.probes["jacobian_W"]))
        one = jax.tree.map(jnp.asarray, setup.one())
        dense = tangent_kernels(one.network, one.inputs)(one.params0)
        closed = one.setting.block_kernels(one)(one.params0)
        for name in "WUc":
            np.testing.assert_allclose(closed[name], dense[name], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(ends[0][0], 4 * ends[1][0], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(ends[0][1], 2 * ends[1][1], rtol=1e-12)


# ------------------------------------------------------------------------------------- studies


def test_a_run_of_the_width_experiment_is_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    first = experiments.width_run(4, 1, 6, 20)
    assert len(list((tmp_path / "measurements").glob("*.npz"))) == 1
    monkeypatch.setattr(experiments, "train", None)  # the second time nothing is trained
    again = experiments.width_run(4, 1, 6, 20)
    np.testing.assert_array_equal(first, again)
    assert first.shape == (3,)
    assert 0 < first[-1] < first[0]


def test_mean_field_scaling_multiplies_the_drift_by_the_heads():
    plan = Plan(seeds=2, steps=20, samples=10, width=16)
    plain = experiments.kernel_drift(plan, 1.0)
    powers = np.log10(experiments.kernel_drift(plan, 4.0) / plain)
    np.testing.assert_allclose(powers, np.log10(16), atol=0.1)  # to leading order
    other = np.log10(experiments.kernel_drift(plan, 2.0) / plain)  # another scale: another power
    assert np.all(np.abs(other - np.log10(16)) > 0.3)


SMALLEST = {"seeds": 2, "steps": 20, "samples": 6, "width": 4}
GRIDS = {"series": (2, 4), "gradients": (4, 8), "training": (4, 8), "steps": (10, 20)}


@pytest.mark.slow
@pytest.mark.parametrize("figure", PAPER.figures, ids=lambda figure: figure.key)
def test_figures_can_be_made(figure, monkeypatch):
    def smallest(key, full):
        return Plan(**SMALLEST, grid=GRIDS.get(key, (4, 8)))

    monkeypatch.setattr(figures, "_sizes", smallest)
    monkeypatch.setattr(figures, "LAGS", (1, 2, 4))
    made = figure.make(False)
    assert made.key == figure.key
    assert made.caption
    for panel in made.panels:
        assert panel.curves
        assert all(len(c.x) == len(c.y) > 0 for c in panel.curves)


def test_the_visit_tells_of_a_theorem_that_holds():
    found = PAPER.visit()
    (row,) = found.rows
    assert row["verdict"] == "holds"
    assert row["mean_risk"] < row["at_most"] < 50 * row["mean_risk"]
    assert len(found.head) == len(found.cells[0])
    assert "times the mean loss" in found.words
