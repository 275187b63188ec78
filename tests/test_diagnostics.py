import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from helpers import small, start_of
from shoal.diagnostics import dynamics, kernels, layers
from shoal.diagnostics.data import data_report, largest_exponent, pair_overlaps, tail_fit
from shoal.experiments import Case
from shoal.methods import gradient_descent, gradient_flow
from shoal.models import empirical_risk
from shoal.papers import wu2023
from shoal.papers.wu2023 import encoder as architecture
from shoal.problems import Problem
from shoal.training import run


@pytest.fixture
def case():
    setting = small(step_size=0.01)
    problem, params0, _ = start_of(setting)
    speeds = {"W_Q": 1.0, "W_K": 1.0, "W_V": 1.0, "w_O": 1.0}
    return Case(setting, problem, params0, 0.01, speeds, drawn=True)


def risk_of(case):
    return empirical_risk(wu2023.model(case.setting), case.problem, wu2023.PAPER.loss)


def moved(case, num_steps=5, step=0.01):
    return run(gradient_descent(step), risk_of(case), case.params0, num_steps=num_steps).params


def test_every_probe_works_inside_the_scan_and_afterwards(case):
    probes = wu2023.probes(case)
    out = run(gradient_descent(0.01), risk_of(case), case.params0, num_steps=2, probes=probes)
    for name, probe in probes.items():
        after = probe(out.params)
        parts = after.items() if isinstance(after, dict) else [(None, after)]
        for part, value in parts:
            recorded = out.probes[f"{name}_{part}" if part else name][-1]
            np.testing.assert_allclose(
                np.asarray(recorded, float), np.asarray(value, float), rtol=1e-6, atol=1e-9
            )


def test_sharpness_is_the_top_of_the_dense_hessian(case):
    params = moved(case)
    flat, unravel = ravel_pytree(params)
    H = jax.hessian(lambda v: risk_of(case)(unravel(v)))(flat)
    found = dynamics.sharpness(risk_of(case), jax.random.key(0))(params)
    assert bool(found["converged"])
    assert float(found["value"]) == pytest.approx(float(jnp.linalg.eigvalsh(H)[-1]), rel=1e-6)


def test_sharpness_is_safe_when_the_largest_in_magnitude_is_negative():
    params = wu2023.Weights(jnp.ones((2, 1)), jnp.ones((2, 1)), jnp.ones((2, 1)), jnp.ones(2))

    def saddle(p):
        return jnp.sum(p.W_Q**2) - 50 * jnp.sum(p.W_K**2) + 0.5 * jnp.sum(p.W_V**2)

    found = dynamics.sharpness(saddle, jax.random.key(0))(params)
    assert float(found["value"]) == pytest.approx(2.0, rel=1e-6)


def test_pl_ratio_and_gradient_norm_match_finite_differences(case):
    flat, unravel = ravel_pytree(case.params0)
    risk = lambda v: risk_of(case)(unravel(v))  # noqa: E731
    h = 1e-6
    slope = np.array(
        [(risk(flat + h * e) - risk(flat - h * e)) / (2 * h) for e in jnp.eye(flat.size)]
    )
    expected = np.sum(slope**2) / (2 * float(risk(flat)))
    assert float(dynamics.pl_ratio(risk_of(case))(case.params0)) == pytest.approx(
        expected, rel=1e-6
    )
    norms = dynamics.gradient_norm(risk_of(case))(case.params0)
    assert sum(float(x) ** 2 for x in norms.values()) == pytest.approx(np.sum(slope**2), rel=1e-6)


def test_the_pl_ratio_of_a_wide_linear_problem_is_bounded_by_the_kernel(case):
    # ||grad||^2 = e^T K e lies between lambda_min and lambda_max of K times ||e||^2 = 2 risk
    eigenvalues = kernels.kernel_eigenvalues(wu2023.driving_kernel(case))(case.params0)
    ratio = float(dynamics.pl_ratio(risk_of(case))(case.params0))
    assert float(eigenvalues[0]) <= ratio <= float(eigenvalues[-1])


def test_movement_is_relative_to_the_start(case):
    doubled = jax.tree.map(lambda W: 2 * W, case.params0)
    assert all(float(x) == 1.0 for x in dynamics.movement(case.params0)(doubled).values())
    zero = case.params0._replace(w_O=jnp.zeros(16))
    absolute = dynamics.movement(zero)(zero._replace(w_O=jnp.full(16, 0.5)))["w_O"]
    assert float(absolute) == pytest.approx(2.0)


def test_entropy_and_uniformity_at_the_two_extremes():
    X = jnp.zeros((3, 4, 2))
    uniform = lambda p, x: jnp.full((4, 4), 0.25)  # noqa: E731
    sharp = lambda p, x: jnp.eye(4)  # noqa: E731
    assert float(layers.attention_entropy(uniform, X)(None)) == pytest.approx(1)
    assert float(layers.attention_entropy(sharp, X)(None)) == 0
    assert float(layers.attention_from_uniform(uniform, X)(None)) == 0
    # each row is at distance sqrt(3)/2 from uniform, four rows make sqrt(3)
    assert float(layers.attention_from_uniform(sharp, X)(None)) == pytest.approx(3**0.5)


def test_dead_units_are_counted(case):
    W_V = case.params0.W_V.at[:4].set(0.0)
    probe = wu2023.probes(case)["dead_units"]
    before, after = float(probe(case.params0)), float(probe(case.params0._replace(W_V=W_V)))
    alive = np.asarray(
        jax.vmap(
            lambda x: architecture.preactivation(case.params0, x, wu2023.scales(case.setting))
        )(case.problem.X)
        > 0
    ).any(axis=(0, 1))
    assert before == pytest.approx(1 - alive.mean())
    assert after == pytest.approx(1 - alive[4:].sum() / 16)


def test_kernel_shares_add_up_to_one_and_drift_starts_at_zero(case):
    shares = kernels.kernel_shares(wu2023.block_kernels(case))(case.params0)
    assert sum(float(s) for s in shares.values()) == pytest.approx(1)
    drift = kernels.kernel_drift(wu2023.driving_kernel(case), case.params0)
    assert float(drift(case.params0)) == 0.0
    params = moved(case)
    K0, K1 = (wu2023.driving_kernel(case)(p) for p in (case.params0, params))
    assert float(drift(params)) == pytest.approx(np.linalg.norm(K1 - K0) / np.linalg.norm(K0))
    distance = kernels.kernel_distance(wu2023.driving_kernel(case), case.params0)
    assert float(distance(params)) == pytest.approx(np.linalg.norm(K1 - K0, 2), rel=1e-12)


@pytest.mark.parametrize("speeds", [{}, {"W_Q": 0.3, "W_K": 2.0, "W_V": 0.1}])
def test_flow_conserves_what_descent_moves_in_proportion_to_its_step(case, speeds):
    probe = architecture.conserved_drift(case.params0, speeds)
    risk = risk_of(case)
    flow = run(gradient_flow(0.05, speeds), risk, case.params0, num_steps=1).params
    assert all(float(x) < 1e-8 for x in probe(flow).values())
    drifts = []
    for k in (10, 20):
        params = run(gradient_descent(0.05 / k, speeds), risk, case.params0, num_steps=k).params
        drifts.append({name: float(x) for name, x in probe(params).items()})
    for name in ("query_key", "value_output"):
        assert drifts[0][name] > 1e-6
        assert drifts[0][name] / drifts[1][name] == pytest.approx(2, rel=0.1)


def test_conserved_drift_equals_the_dense_matrix(case):
    params = moved(case)
    dense = lambda p: p.W_Q @ p.W_Q.T - p.W_K @ p.W_K.T  # noqa: E731
    expected = np.linalg.norm(dense(params) - dense(case.params0))
    found = architecture.conserved_drift(case.params0, {})(params)["query_key"]
    assert float(found) == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------------------------- data


def test_overlaps_are_inner_products_of_token_covariances():
    X = np.random.default_rng(0).normal(size=(3, 4, 5))
    expected = [[np.sum((a.T @ a) * (b.T @ b)) for b in X] for a in X]
    np.testing.assert_allclose(pair_overlaps(jnp.asarray(X)), expected, rtol=1e-12)


def test_the_tail_exponent_of_a_weibull_sample_is_found():
    for c in (0.5, 1.0, 2.0):
        sample = np.random.default_rng(0).weibull(c, size=4000)
        slope, low, high = tail_fit(sample)
        assert slope == pytest.approx(c, rel=0.1)
        assert low < slope < high


def test_the_paper_s_tail_bound_is_checked_as_it_stands():
    lighter = 0.3 * np.random.default_rng(1).weibull(1.0, size=500)
    assert 1 <= largest_exponent(lighter) < np.inf
    heavy = 10 + np.random.default_rng(1).weibull(1.0, size=500)
    assert largest_exponent(heavy) <= 0


def test_the_report_sees_what_violates_the_assumptions():
    good = data_report(wu2023.problem(wu2023.Setting(num_tokens=3, dim=30)))
    assert good.full_row_rank
    assert good.overlap_max < 0.5
    X = jax.random.normal(jax.random.key(0), (6, 3, 30))
    repeated = data_report(Problem(X.at[:, 1].set(X[:, 0]), jnp.ones(6)))
    assert not repeated.full_row_rank
    twins = data_report(Problem(X.at[1].set(X[0]), jnp.ones(6)))
    assert twins.overlap_max == pytest.approx(1)
    assert twins.gershgorin_margin < 0
    assert not data_report(Problem(jnp.ones((2, 5, 3)), jnp.ones(2))).full_row_rank
