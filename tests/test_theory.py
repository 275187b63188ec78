from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from shoal.certificates import Verdict, verdict
from shoal.methods import gradient_descent
from shoal.theory.arccosine import gated_covariance, relu_kernel, step_kernel
from shoal.theory.kernel_regime import kernel_regime, predicted_risk
from shoal.training import run


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
