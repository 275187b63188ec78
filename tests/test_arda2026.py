"""The multi-head model, its closed forms and its data, against loops in NumPy and autodiff."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import arda2026_reference as witness
from shoal.cli import main
from shoal.diagnostics.kernels import tangent_kernels
from shoal.experiments import default_step, prepare, simulate
from shoal.losses import mean_of_squares
from shoal.models import empirical_risk, predict, training_risk
from shoal.papers import arda2026
from shoal.papers.arda2026 import data, heads, relatives, teachers
from shoal.papers.arda2026.heads import ACTIVATIONS, Weights
from shoal.problems import Problem


def some(n=5, T=4, d=3, m=6, seed=0):
    """Inputs with queries, and weights of no symmetry."""
    rng = np.random.default_rng(seed)
    X, q = rng.normal(size=(n, T, d)), rng.normal(size=(n, d))
    W, U, c = rng.normal(size=(m, d, d)), rng.normal(size=(m, d)), rng.normal(size=m)
    return (jnp.asarray(X), jnp.asarray(q)), Weights(*map(jnp.asarray, (W, U, c)))


def as_witness(params):
    return witness.Weights(*(np.asarray(params._asdict()[name]) for name in "cUW"))


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


@pytest.mark.parametrize("name", list(ACTIVATIONS))
@pytest.mark.parametrize("block", [8, 40, 10**6])  # blocks of heads, of samples, and none
def test_outputs_gradients_and_kernels_in_any_portions(name, block):
    inputs, params = some()
    sigma = ACTIVATIONS[name]
    model = heads.heads(6, 3, sigma, block=block)
    expected = [
        witness.forward(as_witness(params), x, q, witness.ACTIVATIONS[name])
        for x, q in zip(*map(np.asarray, inputs), strict=True)
    ]
    np.testing.assert_allclose(predict(model, params, inputs), expected, rtol=1e-12)
    np.testing.assert_allclose(model.together(params, inputs), expected, rtol=1e-12)
    pull = jnp.arange(1.0, 6.0)

    @functools.partial(jax.jit, static_argnames="fast")
    def gradient(params, fast):
        f = model.together if fast else functools.partial(predict, model)
        return jax.grad(lambda p: jnp.sum(pull * f(p, inputs)))(params)

    for fast, plain in zip(gradient(params, fast=True), gradient(params, fast=False), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-12, atol=1e-14)
    labels = jnp.linspace(-1.0, 1.0, 5)
    problem = Problem(inputs[0], labels, inputs[1])
    streaming = heads.streamed_squares(sigma, block, 1.0)
    ways = (
        empirical_risk(model, problem, mean_of_squares),
        training_risk(model, problem, mean_of_squares),
        lambda params: streaming(params, inputs, labels) / 5,  # whatever the model has chosen
    )
    plain, *fast = [jax.tree.leaves(jax.value_and_grad(way)(params)) for way in ways]
    for found in fast:
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    closed = heads.tangent_kernels(inputs, sigma, block=block)(params)
    dense = tangent_kernels(model, inputs)(params)
    squares = heads.output_gradients(params, inputs, sigma)
    for part in "WUc":
        np.testing.assert_allclose(closed[part], dense[part], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(squares[part], np.diag(dense[part]), rtol=1e-12)


def test_the_gradient_is_that_of_the_witness():
    inputs, params = some()
    y = jnp.arange(5.0)
    model = heads.heads(6, 3, ACTIVATIONS["tanh"])
    ours = jax.grad(lambda p: jnp.mean((model.together(p, inputs) - y) ** 2))(params)
    theirs = witness.loss_gradient(as_witness(params), *map(np.asarray, inputs), np.asarray(y))
    for name in "cUW":
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12)


def test_without_a_query_the_last_token_asks():
    (X, _), params = some()
    model = heads.heads(6, 3, ACTIVATIONS["tanh"])
    np.testing.assert_array_equal(predict(model, params, X), predict(model, params, (X, X[:, -1])))
    np.testing.assert_allclose(model.together(params, X), predict(model, params, X), rtol=1e-12)


@pytest.mark.parametrize("name", ["heads", "recurrent", "deep", "causal"])
def test_the_output_is_zero_at_the_start(name):
    values = {"model": name, "num_samples": 5, "num_heads": 8}
    values |= {"problem": "autoregressive"} if name == "causal" else {}
    experiment = prepare(arda2026.PAPER, values, seeds=(0, 1))
    for seed in (0, 1):
        params = jax.tree.map(lambda leaf, s=seed: leaf[s], experiment.params0)
        f = predict(arda2026.model(experiment.setting), params, experiment.problem.inputs)
        assert float(jnp.max(jnp.abs(f))) < 1e-14
        assert set(np.abs(params.c).tolist()) == {1.0}


# --------------------------------------------------------------------------------- relatives


def test_the_recurrent_network_and_its_derivative():
    rng = np.random.default_rng(1)
    params = relatives.Units(
        *map(jnp.asarray, (rng.normal(size=4), rng.normal(size=(4, 2)), rng.normal(size=4)))
    )
    x = jnp.asarray(rng.normal(size=(6, 2)))
    model = relatives.recurrent(4, 2, ACTIVATIONS["tanh"])
    pairs = [witness.indrnn(w, u, x) for w, u in zip(params.w, params.u, strict=True)]
    states, slopes = np.array(pairs).T
    np.testing.assert_allclose(model.apply(params, x), params.c @ states / 2, rtol=1e-12)
    slope = jax.grad(model.apply)(params, x).w
    np.testing.assert_allclose(slope, params.c * slopes / 2, rtol=1e-12)
    for w, s in zip(params.w, slopes, strict=True):
        assert abs(s) <= witness.indrnn_bound(float(w), 6)


def test_the_causal_form_is_the_model_on_every_prefix():
    (X, _), params = some()
    f = relatives.causal(6, 3, ACTIVATIONS["tanh"]).apply(params, X[0])
    model = heads.heads(6, 3, ACTIVATIONS["tanh"])
    prefixes = [model.apply(params, X[0, : t + 1]) for t in range(4)]
    np.testing.assert_allclose(f[:, 0], prefixes, rtol=1e-12)


def test_the_deep_form_with_silent_layers_is_the_model():
    (X, _), params = some()
    deep = relatives.deep(3, 6, 3, ACTIVATIONS["tanh"])
    rng = np.random.default_rng(2)
    inner = [jnp.asarray(rng.normal(size=shape)) for shape in ((2, 6, 3, 3), (2, 6, 3), (2, 6, 3))]
    silent = relatives.Deep(*params, *inner[:2], jnp.zeros((2, 6, 3)))
    model = heads.heads(6, 3, ACTIVATIONS["tanh"])
    np.testing.assert_allclose(deep.apply(silent, X[0]), model.apply(params, X[0]), rtol=1e-12)
    # one speaking layer, written out
    one = relatives.deep(2, 6, 3, ACTIVATIONS["tanh"])
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
    speaking = relatives.Deep(*params, *(block[:1] for block in inner))
    np.testing.assert_allclose(
        one.apply(speaking, X[0]), model.apply(params, jnp.asarray(streamed)), rtol=1e-12
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
    setting = arda2026.complete(arda2026.Setting(problem="autoregressive", lag=3, num_samples=4))
    made = data.autoregressive(setting, held_out=False)
    assert made.X.shape == (4, 4, 17)
    causal = data.autoregressive(setting._replace(model="causal"), held_out=False)
    np.testing.assert_array_equal(causal.y[:, -1, 0], made.y)
    np.testing.assert_array_equal(causal.y[:, :-1, 0], made.X[:, 1:, 0])
    assert float(jnp.max(jnp.linalg.norm(made.X, axis=2))) > 2.8
    unit = data.autoregressive(setting._replace(clip=True), held_out=False)
    assert float(jnp.max(jnp.linalg.norm(unit.X, axis=2))) <= 1 + 1e-12


def test_labels_of_the_teacher_are_averages_over_its_pool():
    setting = arda2026.complete(arda2026.Setting(num_samples=3, num_tokens=4, dim=3, num_anchors=2))
    anchors = data.anchors(setting)
    pool = heads.twins(jax.random.key(5), heads.shapes(8, 3))
    v = teachers.of_anchors(pool, anchors, (3.0, 2.0, 0.1), ACTIVATIONS["tanh"])
    X = np.asarray(arda2026.problem(setting).X)
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
        found = teachers.labels(pool, v, jnp.asarray(X), ACTIVATIONS["tanh"], block=block)
        np.testing.assert_allclose(found, np.mean(by_hand, axis=0), rtol=1e-12)


def test_the_best_fit_is_that_of_scipy():
    from scipy.optimize import minimize

    (X, _), _ = some()
    params0 = heads.twins(jax.random.key(3), heads.shapes(4, 3))
    model = heads.heads(4, 3, ACTIVATIONS["tanh"])
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
    assert max(
        float(v) / r
        for v, r in zip(
            (teachers.norms(teachers.transport_of(params0, fit))[k] for k in "cUW"),
            radii,
            strict=True,
        )
    ) == pytest.approx(1, abs=1e-9)


# ------------------------------------------------------------------------------ run folders


@pytest.mark.parametrize("radius", ["3,3,3", "0.05,0.1,0.02"])
def test_a_run_folder_can_be_recomputed_by_anyone(tmp_path, radius):
    out = tmp_path / "run"
    words = f"train arda2026 --set radius={radius} --set num_samples=6 --set num_tokens=4"
    words += " --set dim=3 --set num_heads=4 --steps 12 --seeds 0,3"
    words += f" --probes scaled_movement,boundary,params --out {out}"
    assert main(words.split()) == 0
    step = json.loads((out / "run.json").read_text())["setting"]["step_size"]
    assert step == pytest.approx(12**-0.5)
    table = pl.read_parquet(out / "trajectory.parquet")
    with np.load(out / "problem.npz") as p, np.load(out / "params0.npz") as w0:
        X, y = p["X"], p["y"]
        starts = [witness.Weights(*(w0[name][s] for name in "cUW")) for s in range(2)]
    rho = tuple(map(float, radius.split(",")))
    for s, seed in enumerate((0, 3)):
        losses, iterates = witness.projected_gd(starts[s], X, X[:, -1], y, rho, step, 12)
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


def test_a_query_may_come_with_the_data(tmp_path):
    (X, q), params = some(m=2)
    params = heads.twins(jax.random.key(0), heads.shapes(2, 3))
    np.savez(tmp_path / "d.npz", X=X, y=np.ones(5), q=q)
    np.savez(tmp_path / "w.npz", **params._asdict())
    experiment = prepare(
        arda2026.PAPER, {"num_steps": 4}, data=tmp_path / "d.npz", params=tmp_path / "w.npz"
    )
    experiment = experiment._replace(setting=experiment.setting._replace(step_size=0.5))
    found = simulate(experiment).risk[0]
    rho = (3.0, 3.0, 3.0)
    expected, _ = witness.projected_gd(
        as_witness(params), np.asarray(X), np.asarray(q), np.ones(5), rho, 0.5, 4
    )
    np.testing.assert_allclose(found[:-1], expected, rtol=1e-10)


def test_sgd_takes_one_sample_a_step_and_decay_pulls_back():
    values = {"method": "sgd", "num_samples": 8, "num_steps": 30, "num_heads": 4}
    experiment = prepare(arda2026.PAPER, values, seeds=(0, 1))
    assert experiment.setting.batch_size == 1
    step = default_step(experiment)
    experiment = experiment._replace(setting=experiment.setting._replace(step_size=step))
    risk = simulate(experiment).risk
    assert np.isfinite(risk).all()
    assert not np.allclose(risk[0], risk[1])
    pulled = {}
    for rate in (0.0, 50.0):
        setting = experiment.setting._replace(
            method="gd", batch_size=None, step_size=0.01, decay=rate
        )
        run = simulate(experiment._replace(setting=setting), ("scaled_movement",))
        pulled[rate] = float(run.probes["scaled_movement_U"][0, -1])
    assert pulled[50.0] < 0.5 * pulled[0.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--set num_heads=7", "num_heads=7 is odd"),
        ("--set radius=-1", "three positive numbers"),
        ("--set radius=1,2", "three positive numbers"),
        ("--set num_tokens=0", "num_tokens=0"),
        ("--set problem=autoregressive --set lag=5 --set num_tokens=5", "lag=5"),
        ("--set problem=file", "add --data"),
        ("--set comparator=teacher --set labels=gaussian", "comparator=fit"),
        ("--set batch_size=4", "method=sgd"),
        ("--set model=causal", "problem=autoregressive"),
        ("--set model=deep --set num_layers=1", "model=heads"),
        ("--set activation=relu", "activation=relu"),
    ],
)
def test_bad_words_are_refused(capsys, tmp_path, words, said):
    assert main(["train", "arda2026", *words.split(), "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_the_kernel_predicts_a_wide_run_in_the_paper_s_own_loss():
    from shoal.experiments import kernel_predictions

    values = {"num_samples": 6, "num_heads": 2000, "num_steps": 20, "step_size": 0.5, "pool": 64}
    experiment = prepare(arda2026.PAPER, values)
    run = simulate(experiment)
    predicted = kernel_predictions(experiment, run.step[0])
    np.testing.assert_allclose(predicted[0], run.risk[0], rtol=0.01)
    assert float(run.risk[0, -1]) < 0.9 * float(run.risk[0, 0])
