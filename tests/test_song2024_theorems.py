"""Theorems of song2024: worked numbers, autodiff, brute force, and runs that must fail."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal.certificates import Verdict, readings, verdict
from shoal.lab.engine import default_steps
from shoal.lab.setup import Setup
from shoal.lab.theorem import allowed_steps
from shoal.models import predict
from shoal.papers.song2024 import PAPER, Song, bounds, layer
from shoal.papers.song2024.layer import Weights
from shoal.problems import Problem


def start_of(X, Y, W_Q, W_K, W_V, W_O, kernel, train="W_Q,W_K,W_V", **values):
    """A setup of one start from plain lists of one head; bandwidth 1."""
    arrays = [np.asarray(W, float) for W in (W_Q, W_K, W_V, W_O)]
    heads = [W[None, None] if W.ndim == 2 else W[None, None, :, None] for W in arrays]
    problem = Problem(np.asarray(X, float), np.asarray(Y, float))
    N, n, D = problem.X.shape
    setting = Song(
        num_samples=N, num_tokens=n, dim=D, key_dim=heads[0].shape[-1],
        value_dim=heads[3].shape[-2], out_dim=heads[3].shape[-1], kernel=kernel, bandwidth=1.0,
        train=train, num_steps=20, **values,
    )  # fmt: skip
    return Setup(setting.complete(), problem, Weights(*heads), seeds=(0,), from_init=False)


def one_of(setup, row=0):
    """One start, in JAX arrays as compiled programs see it."""
    return jax.tree.map(jnp.asarray, setup.one(row))


def with_targets(setup, Y):
    return setup.replace(problem=setup.problem._replace(y=np.asarray(Y)))


def outputs_of(setup):
    one = one_of(setup)
    return np.asarray(predict(one.network, one.params0, one.inputs))


def largest_step(setup, key):
    return float(allowed_steps(setup, key)[0])


def example_1(kernel):
    X, Y = [[[1, 0], [1, 1]]], [[[1], [-1]]]
    return start_of(X, Y, [1, 1], [0, 1], [0, 0], [[2]], kernel, "W_V")


def example_2(kernel, alpha):
    X = [[[1, 0, 0, 0], [1, 1, 0, 0]], [[0, 0, 2, 0], [0, 1, 0, 1]]]
    Y = [[[1], [-1]], [[2], [0]]]
    return start_of(X, Y, [1, 1, -1, 1], [0, 1, 1, -1], [0, 0, 0, 0], [[alpha]], kernel)


def example_3(kernel, epsilon):
    W_V, W_Q = [[1, 0], [0, 1], [2, -1]], [[1, 0], [0, 1], [1, 1]]
    W_K, X = [[1, 1], [-1, 0], [0, 1]], [np.diag([1.0, 2.0, 1.0])]
    at_rest = start_of(X, np.zeros((1, 3, 2)), W_Q, W_K, W_V, np.eye(2), kernel, "W_Q")
    away = np.array([[[1.0, 0.0], [0.0, -1.0], [1.0, 1.0]]])
    return with_targets(at_rest, outputs_of(at_rest) + epsilon * away)


def compared(setup, key, step_size, num_steps=20, tamper=lambda run: run, every=1):
    """Train and certify, after changing the record by ``tamper``."""
    theorem = PAPER.theorem_of(key)
    start = setup.with_setting(num_steps=num_steps, every=every)
    run = sh.train(start, step_size=float(step_size), probes=theorem.probes)
    return sh.certify(tamper(run), key)[0], run


def with_risk(run, at, change):
    risk = run.risk.copy()
    risk[0, at] = change(risk[0, at])
    return dataclasses.replace(run, risk=risk)


def with_probe(run, name, factor):
    bent = run.probes[name].copy()
    bent[0, 5] *= factor
    return dataclasses.replace(run, probes=run.probes | {name: bent})


# ---------------------------------------------------------------------------------- theorem 1


@pytest.mark.parametrize(
    ("kernel", "A", "lam", "L", "F_10", "bound", "best"),
    [
        ("softmax", [[2, 1.462117157], [2, 1.761594156]], 0.02714923017, 13.21385132,
         0.9584124539, 0.9597001861, 0.1510459872),
        ("gaussian", [[3.213061319, 2], [1.483731886, 1.213061319]], 0.04820608282, 17.94853503,
         0.8546330964, 0.9476328306, 0.1111312313),
    ],
)  # fmt: skip
def test_worked_example_1(kernel, A, lam, L, F_10, bound, best):
    start = example_1(kernel)
    one = one_of(start)
    found = layer.value_matrix(one.params0, one.inputs, one.setting.form)
    np.testing.assert_allclose(found, A, rtol=1e-9)
    certificate, run = compared(start, "theorem_1", 1 / L)
    c = certificate.constants
    assert c["lambda"] == pytest.approx(lam, rel=1e-9)
    assert c["L"] == pytest.approx(L, rel=1e-9)
    assert c["best step"] == pytest.approx(best, rel=1e-9)
    assert float(run.risk[0, 10]) == pytest.approx(F_10, rel=1e-9)
    assert float(certificate.predicted_rate) == pytest.approx(1 - bound ** (1 / 10), rel=1e-7)
    assert verdict(certificate) == Verdict.HOLDS


@pytest.mark.parametrize(  # 12 rows: dim 8 with one head is deficient
    ("kernel", "heads", "dim"),
    [("softmax", 1, 8), ("gaussian", 1, 8), ("gaussian", 1, 20), ("softmax", 2, 8)],
)
def test_the_recursion_is_exact_and_the_floor_is_lstsq_s(kernel, heads, dim):
    values = {"num_samples": 3, "num_tokens": 4, "dim": dim, "num_heads": heads, "kernel": kernel}
    setup = sh.setup(PAPER, **values, train="W_V", num_steps=100, out_dim=2)
    run = sh.train(setup, step_size="theorem_1", probes=())
    (certificate,) = run.certify("theorem_1")
    assert verdict(certificate) == Verdict.HOLDS
    one, step = one_of(setup), run.step_size[0]
    A = np.asarray(layer.value_matrix(one.params0, one.inputs, one.setting.form))
    y = setup.targets.ravel()
    fitted = A @ np.linalg.lstsq(A, y, rcond=1e-12)[0]
    floor = 0.5 * np.sum((fitted - y) ** 2)
    F_0 = float(run.risk[0, 0])
    assert float(certificate.constants["F_star"]) == pytest.approx(floor, abs=1e-12 * F_0)
    r = A @ np.asarray(one.params0.W_V).ravel() - y
    exact = certificate.curves["exact recursion"]
    for t, risk in enumerate(run.risk[0]):  # the recursion itself, densely
        assert risk == pytest.approx(0.5 * r @ r, abs=1e-10 * F_0), t
        assert exact[t] == pytest.approx(0.5 * r @ r, abs=1e-10 * F_0), t
        r = r - step * A @ (A.T @ r)
    full = heads * dim >= 12
    assert (floor < 1e-12 * F_0) == full
    assert int(certificate.constants["rank A"]) == (24 if full else 2 * heads * dim)


def test_theorem_1_is_tight_on_the_bottom_singular_vector():
    start = example_1("softmax")
    one = one_of(start)
    U, sigma, _ = np.linalg.svd(layer.value_matrix(one.params0, one.inputs, one.setting.form))
    start = with_targets(start, U[:, -1].reshape(1, 2, 1))
    certificate, run = compared(start, "theorem_1", 1 / sigma[0] ** 2)
    q = float(certificate.constants["q"])
    np.testing.assert_allclose(run.risk[0], 0.5 * q ** (2 * np.arange(21)), rtol=1e-9)


def test_theorem_1_needs_a_small_step_and_values_alone():
    start = example_1("gaussian")
    certificate, _ = compared(start, "theorem_1", 2.1 / 17.94853503)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE
    joint = start.with_setting(train="W_Q,W_V")
    certificate, _ = compared(joint, "theorem_1", 0.01)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE


def test_theorem_1_notices_a_tampered_run():
    certificate, _ = compared(
        example_1("softmax"), "theorem_1", 0.05,
        tamper=lambda run: with_risk(run, 5, lambda x: x * (1 + 1e-6)),
    )  # fmt: skip
    assert verdict(certificate) == Verdict.VIOLATED


# ---------------------------------------------------------------------------------- theorem 2

JOINT = {
    "softmax": (1e5, {
        "lambda": 6497.735729, "|A_0|": 199378.7278, "L_A": 1198734.428, "R": 0.002710248232,
        "threshold": 9.691527880, "F_0": 3.0, "a^2+b^2": 4.106849768e10, "E": 18736.28979,
        "L": 4.107145701e10}, (3.466881190, 5.296923119), 2.569945935e-4, 1.094277198),
    "gaussian": (2e4, {
        "lambda": 1540.089162, "|A_0|": 42627.35133, "L_A": 115983.1316, "R": 0.006639280820,
        "threshold": 3.267260990, "F_0": 3.0, "a^2+b^2": 1883926940, "E": 3399.815330,
        "L": 1884215234}, (1.962774445, 2.426122639), 3.147032494e-4, 2.712803981),
}  # fmt: skip


@pytest.mark.parametrize("kernel", list(JOINT))
def test_worked_example_2(kernel):
    alpha, expected, c, rate, F_10 = JOINT[kernel]
    start = example_2(kernel, alpha)
    found = bounds.joint_constants(one_of(start))
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-9), name
    np.testing.assert_allclose(found["c"][:, 0], c, rtol=1e-9)
    step = largest_step(start, "theorem_2")
    certificate, run = compared(start, "theorem_2", step)
    assert verdict(certificate) == Verdict.HOLDS
    assert float(certificate.predicted_rate) == pytest.approx(rate, rel=1e-7)
    assert float(run.risk[0, 10]) == pytest.approx(F_10, rel=1e-7)
    names = [r.name for r in readings(certificate)[1]]
    assert len(names) == 6
    for part in ("descends", "gradient is large", "radius", "proved rate", "independent"):
        assert any(part in name for name in names)


@pytest.mark.parametrize(("kernel", "edge"), [("softmax", 55637.10226), ("gaussian", 19164.55367)])
def test_theorem_2_begins_to_apply_where_it_should(kernel, edge):
    below, above = (example_2(kernel, edge * (1 + s)) for s in (-1e-6, 1e-6))
    assert not np.isfinite(largest_step(below, "theorem_2"))
    certificate, _ = compared(below, "theorem_2", 1e-12)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE
    certificate, _ = compared(above, "theorem_2", largest_step(above, "theorem_2"))
    assert verdict(certificate) == Verdict.HOLDS


def test_a_longer_step_is_certified_a_posteriori_where_descent_was_checked():
    start = example_2("gaussian", 2e4)
    step = 1.05 * largest_step(start, "theorem_2")
    certificate, _ = compared(start, "theorem_2", step)
    assert float(step * certificate.constants["L"]) > 1.04
    assert verdict(certificate) == Verdict.HOLDS
    wild, run = compared(start, "theorem_2", 3 * largest_step(start, "theorem_2"))
    assert float(run.risk[0, 1]) > float(run.risk[0, 0])
    assert verdict(wild) == Verdict.NOT_APPLICABLE
    blind, _ = compared(start, "theorem_2", step, every=10)  # nothing can be checked
    assert verdict(blind) == Verdict.NOT_APPLICABLE


def test_theorem_2_needs_its_blocks_and_kernel():
    start = example_2("gaussian", 2e4)
    step = largest_step(start, "theorem_2")
    for changes in ({"train": "W_Q,W_K"}, {"train": "all"}, {"kernel": "mean_gaussian"}):
        other = start.with_setting(**changes)
        assert np.isnan(largest_step(other, "theorem_2"))
        certificate, _ = compared(other, "theorem_2", step)
        assert verdict(certificate) == Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("probe", ["risk", "distance", "lambda_A", "gradient_norm_W_V"])
def test_theorem_2_notices_a_tampered_run(probe):
    def bent(run):
        if probe == "risk":
            return with_risk(run, 5, lambda _: 2.9999)
        return with_probe(run, probe, 1e6 if probe == "distance" else 1e-6)

    start = example_2("softmax", 1e5)
    certificate, _ = compared(start, "theorem_2", largest_step(start, "theorem_2"), tamper=bent)
    assert verdict(certificate) == Verdict.VIOLATED


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_theorem_2_s_curvature_bound_is_above_the_hessian(kernel):
    """Sampled in the ball and below the first risk, where the bound is claimed."""
    start = one_of(example_2(kernel, JOINT[kernel][0]))
    c = bounds.joint_constants(start)

    def risk(blocks):
        return start.risk(start.params0._replace(**blocks))

    blocks = {k: jnp.asarray(getattr(start.params0, k)) for k in ("W_Q", "W_K", "W_V")}
    flat, unravel = jax.flatten_util.ravel_pytree(blocks)
    hessian = jax.jit(jax.hessian(lambda v: risk(unravel(v))))
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(60):
        away = rng.normal(size=flat.shape)
        away *= float(c["R"]) * 10 ** rng.uniform(-6, 0) / np.linalg.norm(away)
        if float(risk(unravel(flat + away))) <= 3.0:
            seen += 1
            top = np.abs(np.linalg.eigvalsh(np.asarray(hessian(flat + away)))).max()
            assert top <= float(c["L"])
    assert seen > 5


# ---------------------------------------------------------------------------------- theorem 3

QUERIES = {
    "softmax": (1e-5, {
        "mu_0": 9.581458813e-4, "beta": 1.844708405, "j": 2.087713388, "R_J": 0.004194962671,
        "threshold": 5.269117216e-10, "L": 17.43433633, "sigma_X": 1.0, "|X|": 2.0},
        1.373935123e-5, [0.03455186575, 0.03095393160, 0.05163096052]),
    "gaussian": (5e-7, {
        "mu_0": 1.491204291e-4, "beta": 4.582575695, "j": 2.779472659, "R_J": 6.661912645e-4,
        "threshold": 2.068164283e-12, "L": 30.90189139, "sigma_X": 1.0, "|X|": 2.0},
        1.206402120e-6, [0.08350268886, 0.04700593998, 0.01221148759]),
}  # fmt: skip


@pytest.mark.parametrize("kernel", list(QUERIES))
def test_worked_example_3(kernel):
    epsilon, expected, rate, sigma = QUERIES[kernel]
    start = example_3(kernel, epsilon)
    one = one_of(start)
    J = layer.query_jacobians(one.params0, one.inputs, one.setting.form)
    np.testing.assert_allclose(np.linalg.svd(J[0], compute_uv=False)[:, -1], sigma, rtol=1e-9)
    found = bounds.query_constants(one_of(start))
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-8), name
    assert float(found["F_0"]) == pytest.approx(2 * epsilon**2, rel=1e-7)
    certificate, _ = compared(start, "theorem_3", largest_step(start, "theorem_3"))
    assert verdict(certificate) == Verdict.HOLDS
    assert float(certificate.predicted_rate) == pytest.approx(rate, rel=1e-7)


@pytest.mark.parametrize("probe", ["risk", "distance", "gradient_norm_W_Q"])
def test_theorem_3_notices_a_tampered_run(probe):
    def bent(run):
        if probe == "risk":
            return with_risk(run, 5, lambda x: 1.01 * x)
        return with_probe(run, probe, 1e6 if probe == "distance" else 1e-6)

    start = example_3("softmax", 1e-5)
    certificate, _ = compared(start, "theorem_3", largest_step(start, "theorem_3"), tamper=bent)
    assert verdict(certificate) == Verdict.VIOLATED


def square_outputs(kernel, *, tied=False):
    """As many outputs as tokens (p = n = 3), independent tokens, targets next to the start."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(1, 3, 4))
    W_Q, W_K = (rng.normal(size=(4, 3)) / 2 for _ in range(2))
    W_K = W_Q if tied else W_K
    W_V = rng.normal(size=(4, 3))
    start = start_of(X, np.zeros((1, 3, 3)), W_Q, W_K, W_V, np.eye(3), kernel, "W_Q")
    return with_targets(start, outputs_of(start) + 1e-7 * rng.normal(size=(1, 3, 3)))


def test_with_as_many_outputs_as_tokens_only_the_gaussian_is_certified():
    softmax, gaussian = square_outputs("softmax"), square_outputs("gaussian")
    one = one_of(softmax)
    J = layer.query_jacobians(one.params0, one.inputs, one.setting.form)
    assert (np.linalg.matrix_rank(np.asarray(J[0]), tol=1e-12) <= 2).all()
    certificate, _ = compared(softmax, "theorem_3", 1e-3)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE
    kept = [h.name for h in readings(certificate)[0] if h.holds]
    assert "outputs turn with queries: 0 < s_0" not in kept  # s_0 = 0 cannot be proved in floats
    assert float(bounds.query_constants(one_of(gaussian))["s_0"]) > 1e-3
    away = outputs_of(gaussian) - gaussian.targets
    near = with_targets(gaussian, gaussian.targets + (1 - 1e-3) * away)
    certificate, _ = compared(near, "theorem_3", largest_step(near, "theorem_3"))
    assert verdict(certificate) == Verdict.HOLDS


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
@pytest.mark.parametrize(("share", "expected"), [(1.0, "holds"), (10.0, "not applicable")])
def test_theorem_3_holds_for_labels_beside_the_outputs_and_not_ten_times_as_far(
    kernel, share, expected
):
    setup = sh.setup("song2024", kernel=kernel, labels="near", near_share=share, num_steps=30)
    run = sh.train(setup, step_size="theorem_3")
    far = np.linalg.norm(outputs_of(setup) - np.asarray(setup.problem.y))
    threshold = sh.certify(run, "theorem_3")[0].constants["threshold"]
    np.testing.assert_allclose(far**2 / 2, 0.999 * share**2 * threshold, rtol=1e-6)
    assert sh.certify(run, "theorem_3").verdicts == [expected]


@pytest.mark.parametrize("wrong", [{"num_heads": 2}, {"near_share": 2.0, "labels": "gaussian"}])
def test_near_labels_are_for_one_head_and_their_distance_for_near_labels(wrong):
    with pytest.raises(sh.InputError, match="near"):
        sh.setup("song2024", **({"labels": "near"} | wrong))


def test_tied_weights_leave_theorem_3_nothing_to_say():
    start = square_outputs("gaussian", tied=True)
    c = bounds.query_constants(one_of(start))
    assert float(c["s_0"]) < 1e-12 * float(c["j"])
    certificate, _ = compared(start, "theorem_3", 1e-3)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE
    # although tied weights are fine for theorems 1 and 2
    assert float(bounds.joint_constants(one_of(start))["lambda"]) > 1e-6


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_lipschitz_constants_of_theorem_3_hold_on_random_pairs(kernel):
    start = one_of(example_3(kernel, 1e-5))
    g = bounds.query_geometry(start)
    beta, j = bounds.PROVED[kernel].turning(g["U"], g["K"], 1.0)
    rng = np.random.default_rng(1)
    X, form = start.inputs, start.setting.form
    inverse = jnp.linalg.inv(X[0])

    @jax.jit
    def jacobian(Q):
        params = start.params0._replace(W_Q=(inverse @ Q)[None])
        return layer.query_jacobians(params, X, form)[0]

    for _ in range(300):
        Q = jnp.asarray(rng.normal(size=(3, 2)) * 2)
        dQ = jnp.asarray(rng.normal(size=(3, 2)) * 10 ** rng.uniform(-3, 0.5))
        one, other = np.asarray(jacobian(Q)), np.asarray(jacobian(Q + dQ))
        for k in range(3):
            assert np.linalg.norm(one[k], 2) <= float(j[0]) * (1 + 1e-12)
            change = np.linalg.norm(one[k] - other[k], 2)
            assert change <= float(beta[0]) * np.linalg.norm(dQ[k]) * (1 + 1e-9)


# ---------------------------------------------------------------------------------- theorem S


def free_of_traps(tamper=lambda run: run, **changes):
    """Independent tokens and keys, targets in the affine hull of the values (here: the line)."""
    values = {"num_samples": 2, "num_tokens": 3, "dim": 8, "key_dim": 4, "value_dim": 1}
    values |= {"train": "W_Q", "num_steps": 400, "label_scale": 0.3}
    setup = sh.setup(PAPER, **(values | changes))
    step = 0.5 * default_steps(setup)
    run = sh.train(setup, step_size=step, probes=PAPER.theorem_of("theorem_s").probes)
    return sh.certify(tamper(run), "theorem_s")[0]


def test_theorem_s_holds_and_can_fail():
    certificate = free_of_traps()
    assert verdict(certificate) == Verdict.HOLDS
    assert len(certificate.conclusions) == 4

    def still(run):
        nothing = {"gradient_norm_W_Q": 0 * run.probes["gradient_norm_W_Q"]}
        return dataclasses.replace(run, probes=run.probes | nothing)

    assert verdict(free_of_traps(still)) == Verdict.VIOLATED


@pytest.mark.parametrize(
    "changes",
    [
        {"key_dim": 1},
        {"kernel": "gaussian"},
        {"train": "W_Q,W_K"},
        {"dim": 5},
        {"out_dim": 3, "value_dim": 3},  # targets off the plane of three values
    ],
)
def test_theorem_s_needs_independent_keys_softmax_and_queries_alone(changes):
    assert verdict(free_of_traps(**changes)) == Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("what", ["first", "rise", "gradient"])
def test_theorem_s_notices_a_tampered_run(what):
    def bent(run):
        if what == "gradient":
            return with_probe(run, "gradient_norm_W_Q", 1e-6)
        at, factor = (0, 2.0) if what == "first" else (15, 1.1)
        return with_risk(run, at, lambda x: factor * x)

    assert verdict(free_of_traps(bent)) == Verdict.VIOLATED


def line_of_values(off):
    """Two tokens, values on a line, targets off that line by a little."""
    X, Y = [np.eye(2)], [[[0.4, off], [0.6, off]]]
    W_K, W_V = [[1.0, 0.0], [-1.0, 0.5]], [[0.0, 0.0], [1.0, 0.0]]
    return start_of(X, Y, np.zeros((2, 2)), W_K, W_V, np.eye(2), "softmax", "W_Q")


@pytest.mark.parametrize("off", [0.0, 1e-11, 1e-10, 5e-10])
def test_targets_rounded_off_the_hull_do_not_refute_theorem_s(off):
    certificate, _ = compared(line_of_values(off), "theorem_s", 0.5, 400)
    assert verdict(certificate) in (Verdict.HOLDS, Verdict.UNRESOLVED)
    certificate, _ = compared(line_of_values(1e-6), "theorem_s", 0.5, 400)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE


def test_one_token_leaves_nothing_to_turn():
    start = start_of([[[2.0]]], [[[6.0]]], [1.0], [1.0], [3.0], [[1.0]], "softmax", "W_Q")
    assert float(bounds.query_constants(one_of(start))["s_0"]) == 0.0
    certificate, _ = compared(start, "theorem_s", 0.1)
    assert verdict(certificate) != Verdict.VIOLATED


def test_the_trap_is_outside_theorem_s():
    setup = sh.setup(PAPER, problem="trap", init="trap", train="W_Q", num_steps=20)
    certificate, _ = compared(setup, "theorem_s", 0.1)
    failed = [h.name for h in readings(certificate)[0] if h.holds is False]
    assert failed == ["keys are affinely independent: rank = n - 1"]


def test_an_infimum_above_the_floor():
    """Keys (-1, 0, 1), values (0, 1, 0): outputs stay below 1/3, the hull reaches 1."""
    start = start_of(
        [np.eye(3)], np.full((1, 3, 1), 2.0), [0, 0, 0], [-1, 0, 1], [0, 1, 0], [[1]], "softmax",
        "W_Q",
    )  # fmt: skip
    one = one_of(start)
    floor = float(one.setting.floor(one)(one.params0))
    assert floor == pytest.approx(3 * 0.5, rel=1e-9)
    run = sh.train(start, steps=200, step_size=0.5, probes=())
    assert run.risk[0].min() == pytest.approx(3 * 25 / 18, rel=1e-9)
    assert run.risk[0].min() >= floor


# ------------------------------------------------------------------------------- kernel regime


def test_the_kernel_predicts_training_of_values_exactly():
    setup = sh.setup(PAPER, train="W_V", num_steps=40, num_samples=2, num_tokens=3, out_dim=2)
    run = sh.train(setup, probes=["kernel_distance"])
    (certificate,) = run.certify("kernel_regime")
    assert float(certificate.constants["Delta"]) < 1e-12
    assert verdict(certificate) == Verdict.HOLDS
    one = one_of(setup)
    A = np.asarray(layer.value_matrix(one.params0, one.inputs, one.setting.form))
    np.testing.assert_allclose(one.kernel()(one.params0), A @ A.T, atol=1e-12)
    largest = np.linalg.norm(A, 2) * np.linalg.norm(one.params0.W_V)
    assert float(one.setting.output_size(one)) == pytest.approx(
        largest + np.linalg.norm(setup.targets), rel=1e-9
    )
