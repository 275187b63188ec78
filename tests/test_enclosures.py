"""Enclosures of certificates: false ones that were found, their classes, and an attack."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adversaries
import digits
import shoal as sh
from helpers import handmade
from shoal.certificates import Inequality, Verdict, not_checked, read_conclusion, readings, verdict
from shoal.lab.run import train
from shoal.lab.theorem import certify
from shoal.papers.wu2023.model import Weights
from shoal.problems import Problem
from shoal.runtime import in_float64
from shoal.verified import spectra
from shoal.verified.balls import Ball, exact
from shoal.verified.enclose import chosen, enclosed, enclosure_width


def lines(found):
    hypotheses, conclusions = readings(found)
    return {line.name: line for line in (*hypotheses, *conclusions)}


# ------------------------------------------------------------------------- the arithmetic itself


def some_formula(x, W):
    """Softmax, norms, powers, selections, singular values and eigenvalues."""
    A = jax.nn.softmax(x @ W @ x.T, axis=-1) @ x
    sigma = jnp.linalg.svd(A, full_matrices=False, compute_uv=False)
    top = jnp.linalg.eigvalsh(A @ A.T)[-1]
    gap = jnp.where(sigma[0] > 1, jnp.log1p(sigma[0]), jnp.tanh(sigma[-1]))
    return (
        sigma,
        jnp.sqrt(top) ** 3 / (1 + jnp.max(jnp.abs(A))),
        gap,
        jnp.exp(-gap) ** jnp.arange(3),
    )


@in_float64
def test_scattered_sums_contain_the_exact_ones():
    rng = np.random.default_rng(0)
    closed = jax.make_jaxpr(lambda x, y: x.at[jnp.array([1, 1, 0, 1, 3])].add(y))(
        jnp.zeros(5), jnp.zeros(5)
    )
    for _ in range(50):
        x, y = (rng.normal(size=5) * 10.0 ** rng.integers(-12, 12, 5) for _ in range(2))
        (found,) = enclosed(closed, [x, y]).values
        exactly = [Fraction(v) for v in x]
        for place, v in zip([1, 1, 0, 1, 3], y, strict=True):
            exactly[place] += Fraction(v)
        for low, high, true in zip(found.low, found.high, exactly, strict=True):
            assert Fraction(low) <= true <= Fraction(high)
        assert found.low[2] == found.high[2] == x[2]  # nothing is added there


def test_a_kernel_of_embeddings_that_is_singular_is_not_certified():
    """Two samples are the same words in another order; floats say that 0 < 6e-16."""
    E, w = np.random.default_rng(0).standard_normal((2, 4, 4))
    words = np.array([[0, 1], [1, 0], [2, 2]])
    model = sh.per_sample(lambda p, x: jnp.tanh(p["E"][x].mean(0)) @ p["w"])
    setup = sh.setup(model, {"E": E[:3], "w": w[0]}, words, np.array([0.1, 0.2, 0.3]))
    run = train(setup.with_setting(num_steps=2), step_size=0.01, probes=["kernel_distance"])
    line = lines(certify(run, "kernel_regime")[0])["kernel is positive: 0 < lambda_min(K_0)"]
    assert line.holds is None


@in_float64
@pytest.mark.parametrize("size", [1e-6, 1.0, 30.0])
def test_enclosures_contain_the_value_at_60_digits(size):
    rng = np.random.default_rng(0)
    for _ in range(8):
        x, W = rng.normal(size=(3, 4)), size * rng.normal(size=(4, 4))
        closed = jax.make_jaxpr(some_formula)(x, W)
        found = enclosed(closed, [x, W]).values
        exactly = digits.evaluate(closed.jaxpr, closed.consts, [digits.exact(x), digits.exact(W)])
        for interval, value in zip(found, exactly, strict=True):
            for low, high, true in zip(
                np.ravel(interval.low), np.ravel(interval.high), np.ravel(value), strict=True
            ):
                assert digits.mpf(float(low)) <= true <= digits.mpf(float(high))
                assert high - low <= 1e-9 * max(abs(high), 1e-3) * max(size, 1)


@in_float64
def test_an_open_comparison_selects_both_branches_and_a_choice_is_exact():
    def formula(x):
        total = jnp.sum(x)  # 0, but for rounding
        branch = jnp.where(total > 0, 1.0, -1.0)
        return branch, chosen(lambda t: t + 1.0)(total), enclosure_width(total)

    x = np.array([0.1, 0.2, 0.3, -0.6])
    closed = jax.make_jaxpr(formula)(x)
    branch, choice, width = enclosed(closed, [x]).values
    assert (float(branch.low), float(branch.high)) == (-1.0, 1.0)
    assert float(choice.low) == float(choice.high)
    assert 0 < float(width.low) < 1e-14
    assert float(formula(jnp.asarray(x))[2]) == 0


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda x: x**2, 1e-200), (lambda x: x**3, -1e-200), (lambda x: x**-3, 1e200),
        (lambda x: x**1.5, 1e-300), (jax.nn.sigmoid, -800.0), (jax.nn.sigmoid, -724.0),
        (jnp.exp, -800.0), (lambda x: jnp.linalg.norm(x), 1e-200),
    ],
)  # fmt: skip
def test_what_vanishes_by_underflow_is_not_called_zero(function, value):
    """|x| at 1e-200 was [0, 0], so that features of that size counted as none at all."""
    x = np.array([value])
    (found,) = enclosed(jax.make_jaxpr(function)(x), [x]).values
    low, high = np.ravel(found.low)[0], np.ravel(found.high)[0]
    if value == -1e-200:
        assert low < 0 <= high
    elif value == -724.0:  # subnormal, where SciPy says 0
        assert low <= np.exp(value) <= high
    else:
        assert low <= 0 < high


@in_float64
def test_entries_that_are_replaced_branches_and_inverse_functions_are_enclosed():
    def formula(x):
        replaced = x.at[:, 0].set(jnp.arctan(x[0]))
        return jnp.diagonal(replaced), jnp.arctanh(x / 4).sum(), replaced

    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (3, 3))
    closed = jax.make_jaxpr(formula)(x)
    found = enclosed(closed, [x])
    assert not found.without_rule
    with digits.mpmath.workdps(60):
        X = [[digits.mpmath.mpf(v) for v in row] for row in x.tolist()]
        corner = [digits.mpmath.atan(v) for v in X[0]]
        exactly = [corner[0], X[1][1], X[2][2]]
        total = digits.mpmath.fsum(digits.mpmath.atanh(v / 4) for row in X for v in row)
    diagonal, summed, replaced = found.values
    for low, high, true in zip(diagonal.low, diagonal.high, exactly, strict=True):
        assert low <= true <= high
        assert high - low <= 1e-14
    assert summed.low <= total <= summed.high
    assert summed.high - summed.low < 1e-13
    assert np.all(replaced.low[:, 1:] == x[:, 1:])
    several = jax.make_jaxpr(lambda x: x.at[jnp.array([0, 0])].set(x[1:]))(x)
    assert "may coincide" in enclosed(several, [x]).without_rule[0]
    beyond = jax.make_jaxpr(jnp.arctanh)(x)
    (open_,) = enclosed(beyond, [np.array([[2.0] * 3] * 3)]).values
    assert np.all(open_.high == np.inf)


@pytest.mark.parametrize("spread", [1.0, 1e-6])
def test_eigenvectors_of_every_matrix_in_a_ball(spread):
    rng = np.random.default_rng(2)
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    A = Q @ np.diag(1 + spread * np.arange(4.0)) @ Q.T
    A, rad = A / 2 + A.T / 2, spread * 1e-3 * rng.random((4, 4))
    rad = rad + rad.T
    low, high = spectra.eigenvectors(Ball(A, rad))
    assert np.max(high - low) < 0.2
    middle = np.linalg.eigh(A)[1]
    for _ in range(50):
        other = rng.uniform(-1, 1, A.shape)
        V = np.linalg.eigh(A + rad * np.where(np.tri(4, dtype=bool), other, other.T))[1]
        V = V * np.sign(np.sum(V * middle, axis=0))
        assert np.all((low <= V) & (high >= V))
    sharp = spectra.eigenvectors(exact(A))
    with digits.mpmath.workdps(60):
        values, V = digits.mpmath.eigsy(digits.mpmath.matrix(A.tolist()))
        for k, column in enumerate(sorted(range(4), key=lambda k: values[k])):
            sign = digits.mpmath.sign(sum(V[i, column] * middle[i, k] for i in range(4)))
            assert all(sharp[0][i, k] <= sign * V[i, column] <= sharp[1][i, k] for i in range(4))
    assert np.max(sharp[1] - sharp[0]) < 1e-12 / spread


def test_equal_eigenvalues_leave_eigenvectors_open_but_a_diagonal_matrix_has_the_axes():
    Q = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0]
    twice = Q @ np.diag([1.0, 1.0, 2.0]) @ Q.T
    low, high = spectra.eigenvectors(exact(twice / 2 + twice.T / 2))
    assert np.all(low[:, :2] == -1)
    assert np.all(high[:, :2] == 1)
    assert np.max(high[:, 2] - low[:, 2]) < 1e-13
    low, high = spectra.eigenvectors(exact(np.diag([2.0, 1.0, 2.0])))
    assert np.array_equal(low, [[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    assert np.array_equal(low, high)


def test_singular_values_of_every_matrix_in_a_ball():
    rng = np.random.default_rng(1)
    A, rad = rng.normal(size=(3, 40)), 1e-3 * rng.random((3, 40))
    low, high = spectra.singular_values(Ball(A, rad))
    for _ in range(50):
        seen = np.linalg.svd(A + rad * rng.uniform(-1, 1, A.shape), compute_uv=False)
        assert np.all((low <= seen) & (seen <= high))
    twice = np.concatenate([A, A[:1]])
    assert spectra.singular_values(exact(twice))[0][-1] == 0


def test_a_nan_fails_a_conclusion_on_either_side_and_a_missing_probe_is_not_checked():
    assert read_conclusion("c", Inequality(np.nan, 1.0)).holds is False
    assert read_conclusion("c", Inequality(1.0, np.nan)).holds is False
    missing = read_conclusion("c", not_checked("path"))
    assert missing.holds is None
    assert not missing.checked


# ---------------------------------------------------------------------- two certificates that lied


def permuted(size):
    """Two sequences that differ by the order of tokens, which sum pooling cannot see."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 3))
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
    weights = Weights(size * draw(8, 3), draw(8, 3), draw(8, 3), draw(8))
    data = Problem(jnp.asarray(np.stack([x, x[[2, 0, 1]]])), jnp.array([1.0, -0.5]))
    return handmade(data, weights, (1.0, 1.0, 1.0), hidden_step_ratio=0.0)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e7])
def test_exactly_dependent_features_are_never_called_independent(size):
    run = train(permuted(size), steps=5, step_size=1e-3, probes=("feature_sigma_min",))
    found = certify(run, "theorem_a")
    assert found.verdict in (Verdict.UNRESOLVED, Verdict.NOT_APPLICABLE)
    assert lines(found[0])["features are independent: 0 < alpha"].holds is not True


@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-12])
def test_an_activation_that_cancels_near_0_does_not_refute_theorem_d(size):
    made = sh.setup("qin2025", num_samples=1, num_tokens=2, dim=8, width=8, num_layers=1)
    made = made.replace(params0=made.params0._replace(W_1=size * np.asarray(made.params0.W_1)))
    for near in (1e-3, 1e-9):
        outputs = adversaries.per_start(made, adversaries._outputs)[0]
        y = outputs + near * np.ones_like(outputs)
        close = made.replace(problem=made.problem._replace(y=y), from_init=False)
        found = certify(train(close, steps=20, step_size="theorem_d"), "theorem_d")
        assert found.verdict != Verdict.VIOLATED


# ------------------------------------------------------------------------------------- the classes


def test_theorem_c_without_its_path_says_what_it_did_not_check():
    made = sh.setup("arda2026", num_samples=4, num_heads=8, dim=3, radius=(0.3, 0.3, 0.3))
    for seed in range(3):
        run = train(sh.setup("arda2026", num_samples=4, num_heads=8, dim=3, radius=(0.3,) * 3,
                             seeds=(seed,)), steps=30, probes=["scaled_movement"])  # fmt: skip
        found = certify(run, "theorem_c")
        assert found.verdict != Verdict.VIOLATED
        line = lines(found[0])["no iterate is below (its own linearisation error)"]
        assert not line.checked
        assert "not checked" in repr(found)
    assert made.num_runs == 1


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-8])
def test_tokens_of_no_size_do_not_refute(size):
    made = sh.setup("song2024", num_samples=1, num_tokens=2, dim=4, key_dim=2, train="W_V")
    tiny = made.replace(problem=made.problem._replace(X=size * np.asarray(made.problem.X)))
    run = train(tiny, steps=3, step_size=1.0)
    assert certify(run, "theorem_1").verdict != Verdict.VIOLATED


@pytest.mark.parametrize("key", ["theorem_a", "theorem_b"])
@pytest.mark.parametrize("label", [0.0, 1e-8])
def test_tiny_labels_leave_room_for_the_rounding_of_outputs(key, label):
    made = sh.setup("arda2026", num_samples=3, num_heads=4, dim=2, radius=(1.0, 1.0, 1.0))
    y = label * np.ones(3)
    made = made.replace(problem=made.problem._replace(y=y), from_init=False)
    found = certify(train(made, steps=10, step_size=0.2, probes=["scaled_movement", "path"]), key)
    assert found.verdict != Verdict.VIOLATED


@pytest.mark.parametrize("key", ["theorem_a", "theorem_b"])
@pytest.mark.parametrize("values", [{"precision": "float32"}, {"radius": (1e160, 1e160, 1e160)}])
def test_single_precision_and_endless_radii_are_compared(key, values):
    values = {"radius": (1.0, 1.0, 1.0)} | values
    made = sh.setup("arda2026", num_samples=3, num_heads=4, dim=2, **values)
    found = certify(train(made, steps=5, step_size=0.1, probes=["scaled_movement", "path"]), key)
    assert found.verdict != Verdict.VIOLATED


def test_many_steps_of_rounding_do_not_refute_the_kernel_regime():
    x = np.linspace(-1.0, 1.0, 3)[:, None]
    made = sh.setup(lambda w, x: x[:, 0] * w["a"] + w["b"] * 1e6 - 1e6 * w["c"],
                    {"a": 0.3, "b": 1.0, "c": 1.0}, x, x[:, 0], train="a")  # fmt: skip
    run = train(made, steps=6000, step_size=1e-2, probes=["kernel_distance"])
    assert certify(run, "kernel_regime").verdict != Verdict.VIOLATED


def test_theorem_d0_is_offered_for_any_model():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2))
    p = {"W": rng.normal(size=(2, 16)) / 2, "v": rng.normal(size=16) / 2}
    f = lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"]  # noqa: E731
    y = np.tanh(x @ p["W"]) @ p["v"]
    near = sh.setup(f, p, x, y + 1e-5 * np.array([1.0, -1.0, 0.5]))
    run = train(near, steps=50, step_size="theorem_d0")
    found = certify(run, "theorem_d0")
    assert found.verdict == Verdict.HOLDS
    J = np.concatenate(
        [np.einsum("nm,m,nd->ndm", 1 - np.tanh(x @ p["W"]) ** 2, p["v"], x).reshape(3, -1),
         np.tanh(x @ p["W"])], axis=1,
    )  # fmt: skip
    sigma = np.linalg.svd(J, compute_uv=False)
    c = found[0].constants
    assert 0.5 * sigma[-1] < float(c["alpha"]) < sigma[-1] <= sigma[0] < float(c["beta"])
    far = train(sh.setup(f, p, x, y + 1.0), steps=3, probes=["distance"])
    assert certify(far, "theorem_d0").verdict == Verdict.NOT_APPLICABLE
    kinked = sh.setup(lambda p, x: jnp.abs(x @ p["W"]) @ p["v"], p, 0 * x, y)
    run = train(kinked, steps=3, step_size=1e-3, probes=["distance"])
    assert certify(run, "theorem_d0").verdict in (Verdict.UNRESOLVED, Verdict.NOT_APPLICABLE)


@pytest.mark.slow
@pytest.mark.parametrize("error", [1e-5, 1e-9])
def test_a_small_residual_has_a_ball_with_room_for_its_rounding(error):
    made = sh.setup("qin2025", **adversaries.SMALL["qin2025"])
    outputs = np.asarray(adversaries.per_start(made, adversaries._outputs)[0])
    noise = np.random.default_rng(0).normal(size=outputs.shape)
    near = made.replace(problem=made.problem._replace(y=outputs + error * noise), from_init=False)
    for key in ("theorem_d", "theorem_d0"):
        assert certify(train(near, steps=8, step_size=key), key).verdict == Verdict.HOLDS


@pytest.mark.slow
def test_a_ball_that_rounding_makes_too_large_for_the_step_decides_nothing(monkeypatch):
    """Outputs of 1e3 from numbers of 1e7: the residual's enclosure is wider than the residual."""
    monkeypatch.setattr(adversaries, "NEARLY_ALWAYS_FAR", ())
    outcome, said, truth, _ = adversaries.attacked("qin2025.theorem_d", 130)
    assert all(truth.values())
    assert (outcome, said["step <= min(a / beta^2, b / (L_J |r_0|))"]) == ("unresolved", None)


# ------------------------------------------------------------------------------------- the attack

QUICK = ("wu2023.theorem_a", "song2024.theorem_1", "song2024.theorem_3", "qin2025.theorem_d")


@pytest.mark.parametrize("theorem", QUICK)
def test_no_certificate_is_false(theorem):
    _, wrong = adversaries.attack(theorem, range(1000, 1005))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("theorem", adversaries.SETTINGS)
def test_no_certificate_of_many_is_false(theorem):
    counts, wrong = adversaries.attack(theorem, range(300))
    assert wrong == []
    assert counts.total() == 300


def test_a_tampered_start_is_seen_by_the_attack():
    rng = np.random.default_rng(5)
    setup = adversaries.start("song2024.theorem_1", rng)
    run = train(setup, steps=4, step_size=1e-3)
    bad = np.array(run.risk)
    bad[0, 2] *= 2
    import dataclasses

    assert verdict(certify(dataclasses.replace(run, risk=bad), "theorem_1")[0]) == "violated"


SEEN = np.random.default_rng(5).standard_normal((3, 4))
TWICE = SEEN[[0, 0, 2]]


@pytest.mark.parametrize(
    ("inputs", "error", "fate"),
    [
        (SEEN, [1e-4, 0, 0], ("holds", "converges")),
        (TWICE, [0, 1e-4, 0], ("not applicable", "undecided")),  # one input, two labels
        (TWICE * [[1], [1 + 1e-13], [1]], [1e-4, -1e-4, 0], ("not applicable", "undecided")),
    ],
)
def test_samples_that_look_alike_are_never_certified(inputs, error, fate):
    rng = np.random.default_rng(6)
    start = {"W": rng.standard_normal((4, 9)) / 2, "v": rng.standard_normal(9) / 2}

    def model(p, x):
        return jnp.tanh(x @ p["W"]) @ p["v"]

    setup = sh.setup(model, start, inputs, np.asarray(model(start, inputs)) + error)
    certified = certify(train(setup, steps=20, step_size=0.02, probes=["+distance"]), "theorem_d0")
    assert (certified.verdict, sh.prove(setup, 0.02).verdict) == fate
