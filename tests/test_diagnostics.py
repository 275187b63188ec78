from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import shoal as sh
from helpers import run
from shoal.diagnostics import dynamics, kernels, layers
from shoal.diagnostics.data import data_report, largest_exponent, pair_overlaps, tail_fit
from shoal.lab import probes as generic
from shoal.methods import gradient_descent, gradient_flow
from shoal.problems import Problem


class Weights(NamedTuple):
    W_Q: jax.Array
    W_K: jax.Array
    W_V: jax.Array
    w_O: jax.Array


WIDTH, DIM = 4, 3
SHAPES = Weights((WIDTH, DIM), (WIDTH, DIM), (WIDTH, DIM), (WIDTH,))


def preactivation(p, x):
    A = jax.nn.softmax((x @ p.W_Q.T) @ (x @ p.W_K.T).T, axis=-1)
    return A @ x @ p.W_V.T


def attention(p, x):
    return jnp.sum(jax.nn.relu(preactivation(p, x)) @ p.w_O)


def draw(key):
    keys = jax.random.split(key, 4)
    drawn = [jax.random.normal(k, s) / WIDTH**0.5 for k, s in zip(keys, SHAPES, strict=True)]
    return Weights(*drawn)


@pytest.fixture(scope="module")
def start():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3, DIM)), rng.normal(size=4)
    made = sh.setup(sh.per_sample(attention), draw, x, y).with_steps(0.01)
    return jax.tree.map(jnp.asarray, made.one())


def moved(start, num_steps=5, step=0.01):
    method = gradient_descent(step)
    walk = jax.jit(lambda p: run(method, start.risk, p, num_steps=num_steps).params)
    return walk(start.params0)


def test_every_probe_works_inside_the_scan_and_afterwards(start):
    probes = generic.all_probes(start)
    assert {"movement", "sharpness", "kernel_eigenvalues", "edge_of_stability", "params"} <= set(
        probes
    )
    assert all(generic.sentence(start, name) for name in probes)
    step = gradient_descent(0.01)
    out = jax.jit(lambda p: run(step, start.risk, p, num_steps=2, probes=probes))(start.params0)
    afterwards = jax.jit(lambda p: {name: probe(p) for name, probe in probes.items()})(out.params)
    for name, after in afterwards.items():
        parts = after.items() if isinstance(after, dict) else [(None, after)]
        for part, value in parts:
            recorded = out.probes[f"{name}_{part}" if part else name][-1]
            np.testing.assert_allclose(
                np.asarray(recorded, float), np.asarray(value, float), rtol=1e-6, atol=1e-9
            )


def test_sharpness_is_the_top_of_the_dense_hessian(start):
    params = moved(start)
    flat, unravel = ravel_pytree(params)
    H = jax.jit(jax.hessian(lambda v: start.risk(unravel(v))))(flat)
    found = jax.jit(dynamics.sharpness(start.risk, jax.random.key(0)))(params)
    assert bool(found["converged"])
    eigenvalues = np.linalg.eigvalsh(H)
    assert float(found["value"]) == pytest.approx(eigenvalues[-1], rel=1e-6)
    ends = jax.jit(dynamics.curvature(start.risk))(params)
    assert (float(ends["min"]), float(ends["max"])) == pytest.approx(
        (eigenvalues[0], eigenvalues[-1]), rel=1e-9
    )


def test_curvature_sees_the_trained_blocks_only(start):
    risk = lambda w: start.risk(start.params0._replace(w_O=w))  # noqa: E731
    H = jax.jit(jax.hessian(risk))(start.params0.w_O)
    ends = jax.jit(dynamics.curvature(start.risk, train=["w_O"]))(start.params0)
    assert float(ends["max"]) == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-9)
    assert float(ends["min"]) == pytest.approx(np.linalg.eigvalsh(H)[0], rel=1e-6, abs=1e-12)


def test_large_hessians_are_never_formed(monkeypatch, start):
    dense = jax.jit(dynamics.curvature(start.risk))(start.params0)
    monkeypatch.setattr(dynamics, "DENSE_HESSIAN", 3)
    lanczos = jax.jit(dynamics.curvature(start.risk))(start.params0)
    for end in ("min", "max"):
        assert bool(lanczos[f"{end}_converged"])
        assert float(lanczos[end]) == pytest.approx(float(dense[end]), rel=1e-6)


def test_sharpness_is_safe_when_the_largest_in_magnitude_is_negative():
    params = Weights(jnp.ones((2, 1)), jnp.ones((2, 1)), jnp.ones((2, 1)), jnp.ones(2))

    def saddle(p):
        return jnp.sum(p.W_Q**2) - 50 * jnp.sum(p.W_K**2) + 0.5 * jnp.sum(p.W_V**2)

    found = jax.jit(dynamics.sharpness(saddle, jax.random.key(0)))(params)
    assert float(found["value"]) == pytest.approx(2.0, rel=1e-6)


def test_pl_ratio_and_gradient_norm_match_finite_differences(start):
    flat, unravel = ravel_pytree(start.params0)
    risk = jax.jit(lambda v: start.risk(unravel(v)))
    h = 1e-6
    slope = np.array(
        [(risk(flat + h * e) - risk(flat - h * e)) / (2 * h) for e in jnp.eye(flat.size)]
    )
    expected = np.sum(slope**2) / (2 * float(risk(flat)))
    assert float(dynamics.pl_ratio(start.risk)(start.params0)) == pytest.approx(expected, rel=1e-6)
    norms = dynamics.gradient_norm(start.risk)(start.params0)
    assert sum(float(x) ** 2 for x in norms.values()) == pytest.approx(np.sum(slope**2), rel=1e-6)
    above = np.sum(slope**2) / (2 * (float(risk(flat)) - 0.1))
    shifted = dynamics.pl_ratio(start.risk, floor=0.1)(start.params0)
    assert float(shifted) == pytest.approx(above, rel=1e-6)


def test_the_pl_ratio_is_bounded_by_the_kernel(start):
    # ||grad||^2 = e^T K e lies between lambda_min and lambda_max of K times ||e||^2 = 2 risk
    eigenvalues = kernels.kernel_eigenvalues(start.kernel())(start.params0)
    ratio = float(dynamics.pl_ratio(start.risk)(start.params0))
    assert float(eigenvalues[0]) <= ratio <= float(eigenvalues[-1])


def test_movement_is_relative_to_the_start(start):
    doubled = jax.tree.map(lambda W: 2 * W, start.params0)
    assert all(float(x) == 1.0 for x in dynamics.movement(start.params0)(doubled).values())
    zero = start.params0._replace(w_O=jnp.zeros(WIDTH))
    absolute = dynamics.movement(zero)(zero._replace(w_O=jnp.full(WIDTH, 0.5)))["w_O"]
    assert float(absolute) == pytest.approx(0.5 * WIDTH**0.5)
    whole = dynamics.distance(start.params0)(doubled)
    assert float(whole) == pytest.approx(np.linalg.norm(ravel_pytree(start.params0)[0]))


def test_entropy_and_uniformity_at_the_two_extremes():
    X = jnp.zeros((3, 4, 2))
    uniform = lambda p, x: jnp.full((4, 4), 0.25)  # noqa: E731
    sharp = lambda p, x: jnp.eye(4)  # noqa: E731
    assert float(layers.attention_entropy(uniform, X)(None)) == pytest.approx(1)
    assert float(layers.attention_entropy(sharp, X)(None)) == 0
    assert float(layers.attention_from_uniform(uniform, X)(None)) == 0
    # each row is at distance sqrt(3)/2 from uniform, four rows make sqrt(3)
    assert float(layers.attention_from_uniform(sharp, X)(None)) == pytest.approx(3**0.5)


def test_dead_units_are_counted(start):
    X = start.inputs
    probe = layers.dead_units(preactivation, X)
    alive = np.asarray(jax.vmap(lambda x: preactivation(start.params0, x))(X) > 0).any(axis=(0, 1))
    assert float(probe(start.params0)) == pytest.approx(1 - alive.mean())
    W_V = start.params0.W_V.at[:4].set(0.0)
    after = float(probe(start.params0._replace(W_V=W_V)))
    assert after == pytest.approx(1 - alive[4:].sum() / WIDTH)


def test_features_are_measured_by_their_singular_values(start):
    def features(p, x):
        return jnp.sum(jax.nn.relu(preactivation(p, x)), axis=0)

    F = np.stack([features(start.params0, x) for x in start.inputs])
    sigma = np.linalg.svd(F, compute_uv=False)
    smallest = layers.feature_sigma_min(features, start.inputs)(start.params0)
    assert float(smallest) == pytest.approx(sigma[-1], rel=1e-9)
    largest = layers.feature_norm(features, start.inputs)(start.params0)
    assert float(largest) == pytest.approx(sigma[0], rel=1e-12)


def test_the_tangent_kernel_is_the_gram_matrix_of_gradients(start):
    J = np.stack([ravel_pytree(jax.grad(attention)(start.params0, x))[0] for x in start.inputs])
    np.testing.assert_allclose(start.kernel()(start.params0), J @ J.T, rtol=1e-10)
    dense = kernels.jacobian(start.network, start.inputs)(start.params0)
    np.testing.assert_allclose(dense @ dense.T, J @ J.T, rtol=1e-10)
    outer = kernels.jacobian(start.network, start.inputs, train=["w_O"])(start.params0)
    assert outer.shape == (4, WIDTH)


def test_kernel_shares_add_up_to_one_and_drift_starts_at_zero(start):
    parts, kernel = start.setting.block_kernels(start), start.kernel()
    shares = kernels.kernel_shares(parts)(start.params0)
    assert sum(float(s) for s in shares.values()) == pytest.approx(1)
    drift = kernels.kernel_drift(kernel, start.params0)
    assert float(drift(start.params0)) == 0.0
    params = moved(start)
    K0, K1 = (kernel(p) for p in (start.params0, params))
    assert float(drift(params)) == pytest.approx(np.linalg.norm(K1 - K0) / np.linalg.norm(K0))
    distance = kernels.kernel_distance(kernel, start.params0)
    assert float(distance(params)) == pytest.approx(np.linalg.norm(K1 - K0, 2), rel=1e-12)


@pytest.mark.parametrize("ratios", [{}, {"W_Q": 0.3, "W_K": 2.0}])
def test_flow_conserves_what_descent_moves_in_proportion_to_its_step(start, ratios):
    """W_Q W_Q^T / r_Q - W_K W_K^T / r_K does not change along the flow."""

    def kept(p):
        q, k = (p.W_Q @ p.W_Q.T, p.W_K @ p.W_K.T)
        return q / ratios.get("W_Q", 1.0) - k / ratios.get("W_K", 1.0)

    def drift(method, steps):
        walk = jax.jit(lambda p: run(method, start.risk, p, num_steps=steps).params)
        return float(jnp.linalg.norm(kept(walk(start.params0)) - kept(start.params0)))

    assert drift(gradient_flow(0.02, ratios), 1) < 1e-8
    coarse, fine = (drift(gradient_descent(0.02 / k, ratios), k) for k in (10, 20))
    assert coarse > 1e-7
    assert coarse / fine == pytest.approx(2, rel=0.1)


# --------------------------------------------------------------------------- stuck or only slow


@pytest.mark.parametrize(
    ("at", "state"),
    [
        ([0.0, 0.0], "at a saddle"),
        ([1.0, 0.0], "at the floor"),
        ([0.9, 0.1], "slow"),
        ([jnp.nan, 0.0], "diverged"),
    ],
)
def test_states_of_a_double_well(at, state):
    def well(p):
        return (p["w"][0] ** 2 - 1) ** 2 + p["w"][1] ** 2

    found = jax.jit(dynamics.stationarity(well, lambda p: 0.0))({"w": jnp.array(at)})
    assert dynamics.STATES[int(found["state"])] == state


def test_a_minimum_above_the_floor_is_stuck():
    probe = dynamics.stationarity(lambda p: 1 + p["w"] ** 2, lambda p: 0.0)
    found = jax.jit(probe)({"w": jnp.array(0.0)})
    assert dynamics.STATES[int(found["state"])] == "stuck"
    assert float(found["above_floor"]) == 1.0


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
    X = jax.random.normal(jax.random.key(1), (10, 3, 30))
    good = data_report(Problem(X, jnp.ones(10)))
    assert good.full_row_rank
    assert good.overlap_max < 0.5
    X = jax.random.normal(jax.random.key(0), (6, 3, 30))
    repeated = data_report(Problem(X.at[:, 1].set(X[:, 0]), jnp.ones(6)))
    assert not repeated.full_row_rank
    twins = data_report(Problem(X.at[1].set(X[0]), jnp.ones(6)))
    assert twins.overlap_max == pytest.approx(1)
    assert twins.gershgorin_margin < 0
    assert not data_report(Problem(jnp.ones((2, 5, 3)), jnp.ones(2))).full_row_rank
