from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import shoal as sh
from helpers import run
from shoal.certificates import Verdict, verdict
from shoal.methods import gradient_descent
from shoal.theory import descent
from shoal.theory.arccosine import gated_covariance, relu_kernel, step_kernel
from shoal.theory.kernel_regime import kernel_regime, predicted_risk


def by_quadrature(u, v):
    """Both Gaussian averages by integrating over the angle of w in the plane of u and v."""

    def relu_relu(t):
        w = np.array([np.cos(t), np.sin(t)])
        return max(w @ u, 0) * max(w @ v, 0)

    def both_on(t):
        w = np.array([np.cos(t), np.sin(t)])
        return float(w @ u > 0) * float(w @ v > 0)

    kinks = sorted(
        np.mod([np.arctan2(-x[0], x[1]) + k * np.pi for x in (u, v) for k in (0, 1)], 2 * np.pi)
    )
    around = lambda f: integrate.quad(f, 0, 2 * np.pi, points=kinks, limit=200)[0]  # noqa: E731
    # E|w|^2 = 2 in the plane
    return 2 * around(relu_relu) / (2 * np.pi), around(both_on) / (2 * np.pi)


@pytest.mark.parametrize("seed", range(5))
def test_arc_cosine_kernels_match_quadrature(seed):
    u, v = np.random.default_rng(seed).normal(size=(2, 2))
    relu, step = by_quadrature(u, v)
    U, V = jnp.asarray(u)[None], jnp.asarray(v)[None]
    assert float(relu_kernel(U, V)[0, 0]) == pytest.approx(relu, rel=1e-7)
    assert float(step_kernel(U, V)[0, 0]) == pytest.approx(step, rel=1e-5)


def test_arc_cosine_kernels_at_the_special_angles():
    u = jnp.array([[3.0, 4.0]])
    assert float(relu_kernel(u, u)[0, 0]) == pytest.approx(12.5)  # |u|^2 / 2
    assert float(relu_kernel(u, -u)[0, 0]) == pytest.approx(0, abs=1e-14)
    assert float(step_kernel(u, -u)[0, 0]) == pytest.approx(0, abs=1e-15)
    zero = jnp.zeros((1, 2))
    assert float(relu_kernel(zero, u)[0, 0]) == 0
    assert float(step_kernel(zero, u)[0, 0]) == 0


def test_gated_covariance_matches_monte_carlo():
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(2, 3))
    w = rng.normal(size=(1_000_000, 3))
    on = (w @ u > 0) & (w @ v > 0)
    expected = (w[on].T @ w[on]) / len(w)
    a, b, c = (float(x[0, 0]) for x in gated_covariance(jnp.asarray(u)[None], jnp.asarray(v)[None]))
    u, v = u / np.linalg.norm(u), v / np.linalg.norm(v)
    found = (
        a * np.eye(3)
        + b * (np.outer(u, v) + np.outer(v, u))
        - c * (np.outer(u, u) + np.outer(v, v))
    )
    np.testing.assert_allclose(found, expected, atol=4e-3)


def test_gated_covariance_of_parallel_vectors_is_half_the_identity():
    u = jnp.array([[1.0, 2.0]])
    a, b, c = gated_covariance(u, 3 * u)
    assert (float(a[0, 0]), float(b[0, 0]), float(c[0, 0])) == pytest.approx((0.5, 0, 0), abs=1e-7)


P = namedtuple("P", "w")
A = jax.random.normal(jax.random.key(0), (3, 8))
Y = jnp.array([1.0, -2.0, 0.5])


def linear_run(step_size, bend=0.0):
    """A linear model (its kernel never moves), bent a little if asked."""

    def outputs(p):
        return A @ p.w + bend * (A @ p.w) ** 2

    def distance(p):
        J0, J = jax.jacobian(outputs)(start).w, jax.jacobian(outputs)(p).w
        return jnp.linalg.norm(J @ J.T - J0 @ J0.T, 2)

    start = P(jnp.full(8, 0.1))
    out = run(
        gradient_descent(step_size),
        lambda p: 0.5 * jnp.sum((outputs(p) - Y) ** 2),
        start,
        num_steps=30,
        probes={"kernel_distance": distance},
    )
    J0 = jax.jacobian(outputs)(start).w
    return J0 @ J0.T, outputs(start) - Y, out


def judge(K, e0, step_size, out):
    return kernel_regime(K, e0, step_size, out, output_size=float(jnp.linalg.norm(Y)))


def test_the_kernel_predicts_a_linear_run_exactly():
    K, e0, out = linear_run(0.02)
    np.testing.assert_allclose(predicted_risk(K, e0, 0.02, out.step), out.risk, rtol=1e-10)


def test_a_nearly_linear_run_stays_within_the_measured_drift():
    K, e0, out = linear_run(0.02, bend=0.01)
    certificate = judge(K, e0, 0.02, out)
    assert verdict(certificate) == Verdict.HOLDS
    assert float(certificate.constants["Delta"]) > 1e-3  # not the trivial case


def test_a_strongly_bent_run_is_outside_the_kernel_regime():
    K, e0, out = linear_run(0.001, bend=1.0)
    assert verdict(judge(K, e0, 0.001, out)) == Verdict.NOT_APPLICABLE


def test_too_large_a_step_is_not_applicable():
    K, e0, _ = linear_run(0.02)
    step = float(2.5 / jnp.linalg.eigvalsh(K)[-1])
    K, e0, out = linear_run(step)
    assert verdict(judge(K, e0, step, out)) == Verdict.NOT_APPLICABLE


def test_a_tampered_run_breaks_the_kernel_prediction():
    K, e0, out = linear_run(0.02, bend=0.01)
    bad = out._replace(risk=out.risk.at[20].multiply(50))
    assert verdict(judge(K, e0, 0.02, bad)) == Verdict.VIOLATED


def test_a_kernel_that_never_moves_predicts_up_to_rounding():
    K, e0, out = linear_run(0.02)
    still = out._replace(probes={"kernel_distance": jnp.zeros_like(out.risk)})
    assert verdict(judge(K, e0, 0.02, still)) == Verdict.HOLDS


def test_a_bound_that_would_grow_is_not_applicable():
    # Delta below lambda_min is not enough where the step is near its limit: q + gamma Delta > 1
    K, e0, out = linear_run(0.02)
    step = float(1.95 / jnp.linalg.eigvalsh(K)[-1])
    K, e0, out = linear_run(step)
    drift = 0.9 * float(jnp.linalg.eigvalsh(K)[0])
    moved = out._replace(probes={"kernel_distance": jnp.full_like(out.risk, drift)})
    assert verdict(judge(K, e0, step, moved)) == Verdict.NOT_APPLICABLE


def test_a_sparse_record_is_not_applicable():
    K, e0, out = linear_run(0.02, bend=0.01)
    thin = out._replace(
        step=out.step[::2], risk=out.risk[::2], probes={"kernel_distance": out.risk[::2] * 0}
    )
    assert verdict(judge(K, e0, 0.02, thin)) == Verdict.NOT_APPLICABLE


# ------------------------------------------------------------------------------- theorem D0


def test_the_smallest_ball_solves_the_quadratic_of_a_constant_lipschitz_bound():
    """With alpha = s - L rho: r_max = c s^2 / 4L at rho = s / 2L, and a quadratic for the edge."""
    J0, L, r = jnp.diag(jnp.array([3.0, 2.0])), 0.8, 0.5
    ball_at = descent.around(J0, lambda radius: L)
    top, at = descent.largest_residual(ball_at)
    assert float(top) == pytest.approx(0.5 * 2.0**2 / (4 * L), rel=1e-9)
    assert float(at) == pytest.approx(2.0 / (2 * L), rel=1e-3)
    ball, _ = descent.smallest_ball(ball_at, r)
    radius = (2.0 - (2.0**2 - 4 * L * r / 0.5) ** 0.5) / (2 * L)
    assert float(ball.radius) == pytest.approx(radius, rel=1e-9)
    assert float(ball.alpha) == pytest.approx(2.0 - L * radius, rel=1e-9)
    step = min(0.5 / (3.0 + L * radius) ** 2, 0.5 / (L * r))
    assert float(descent.allowed_step(ball_at, r)) == pytest.approx(step, rel=1e-6)
    assert np.isnan(descent.allowed_step(ball_at, 1.01 * top))


def test_rounding_and_missing_columns_leave_no_ball():
    for J0 in (jnp.diag(jnp.array([1.0, 1e-13])), jnp.ones((2, 1))):
        ball_at = descent.around(J0, lambda radius: 0.0, rtol=1e-12)
        assert float(ball_at(jnp.asarray(1.0)).alpha) == 0
        assert np.isnan(descent.allowed_step(ball_at, 1e-3))


def linear_certificate(setup, run, bend=0.0):
    """Theorem D0 for a model that is linear in its weights, or said to bend."""
    e0 = setup.inputs @ setup.params0 - setup.targets
    ball_at = descent.around(setup.inputs, lambda radius: bend)
    size = jnp.linalg.norm(setup.targets)
    return descent.ball_descent(
        ball_at, jnp.linalg.norm(e0), setup.step_size, run, output_size=size
    )


def bent_certificate(setup, run):
    return linear_certificate(setup, run, bend=1e6)


def test_theorem_d0_covers_any_model():
    x = np.random.default_rng(0).normal(size=(3, 8))
    setup = sh.setup(lambda w, x: x @ w, np.full(8, 0.1), x, np.array([1.0, -2.0, 0.5]))
    sigma = np.linalg.svd(x, compute_uv=False)
    run = sh.train(setup, steps=20, step_size=0.4 / sigma[0] ** 2, probes=("distance",))
    (found,) = sh.certify(run, linear_certificate)
    assert verdict(found) == Verdict.HOLDS
    constants = [float(found.constants[name]) for name in ("alpha", "beta", "L_J", "factor")]
    factor = 1 - 0.5 * float(run.step_size[0]) * sigma[-1] ** 2
    np.testing.assert_allclose(constants, [sigma[-1], sigma[0], 0.0, factor], rtol=1e-9)
    assert sh.certify(run, bent_certificate).verdict == "not applicable"
    long = sh.train(setup, steps=20, step_size=0.6 / sigma[0] ** 2, probes=("distance",))
    assert sh.certify(long, linear_certificate).verdict == "not applicable"
