"""Generic probes against dense computations that share no code with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import shoal as sh
from shoal.diagnostics import kernels
from shoal.lab import probes

RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((6, 3)), RNG.standard_normal((6, 2))
CLASSES = RNG.integers(0, 2, 6)


def network(p, x):
    return jnp.tanh(x @ p["W"] + p["b"][None]) @ p["v"]


SHAPES = {"W": (3, 5), "b": (5,), "v": (5, 2)}
PARAMS = {name: RNG.standard_normal(shape) for name, shape in SHAPES.items()}


def one(**more):
    made = sh.setup(network, PARAMS, X, Y, **more)
    return jax.tree.map(jnp.asarray, made.one())


def measured(setup, *names):
    found = probes.chosen(setup, names)
    return jax.jit(lambda p: {name: probe(p) for name, probe in found.items()})(setup.params0)


def dense_jacobian(names=("W", "b", "v")):
    """By finite differences of order six."""
    weights = {k: np.array(PARAMS[k]) for k in names}
    flat, unravel = ravel_pytree(weights)
    flat = np.asarray(flat)

    def outputs(v):
        return np.asarray(network(PARAMS | dict(unravel(v)), X)).ravel()

    columns = []
    for e in np.eye(flat.size) * 1e-3:
        rises = [outputs(flat + k * e) - outputs(flat - k * e) for k in (1, 2, 3)]
        columns.append((45 * rises[0] - 9 * rises[1] + rises[2]) / 60e-3)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("train", ["all", "W,v"])
def test_the_spectrum_of_the_kernel_is_that_of_differences(train):
    start = one(train=train)
    J = dense_jacobian(("W", "b", "v") if train == "all" else ("W", "v"))
    values = np.linalg.eigvalsh(J @ J.T)
    found = measured(start, "kernel_extremes", "kernel_condition", "kernel_effective_rank")
    ends = found["kernel_extremes"]
    assert (ends["min"], ends["max"]) == pytest.approx((values[0], values[-1]), rel=1e-6)
    assert float(found["kernel_condition"]) == pytest.approx(values[-1] / values[0], rel=1e-6)
    shares = values / values.sum()
    rank = np.prod(shares**-shares)
    assert float(found["kernel_effective_rank"]) == pytest.approx(rank, rel=1e-6)


def test_a_kernel_without_full_rank_has_infinite_condition():
    start = jax.tree.map(jnp.asarray, sh.setup(network, PARAMS, X[[0, 0, 1]], Y[:3]).one())
    assert np.isinf(measured(start, "kernel_condition")["kernel_condition"])


def test_lanczos_finds_the_same_ends_and_says_when_it_has_not():
    start = one()
    values = np.linalg.eigvalsh(dense_jacobian() @ dense_jacobian().T)
    whole = kernels.kernel_extremes(start.network, start.inputs, {}, num_matvecs=12, rtol=1e-6)
    found = jax.jit(whole)(start.params0)
    assert (found["min"], found["max"]) == pytest.approx((values[0], values[-1]), rel=1e-6)
    assert found["min_converged"]
    assert found["max_converged"]
    short = kernels.kernel_extremes(start.network, start.inputs, {}, num_matvecs=2, rtol=1e-6)
    early = jax.jit(short)(start.params0)
    assert not early["min_converged"]
    assert float(early["min_residual"]) > 0


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_kernel_products_are_those_of_the_kernel(at_once):
    start, v = one(), RNG.standard_normal(12)
    ratios = {"W": 2.0, "b": 0.0, "v": 0.5}
    product = kernels.kernel_product(
        start.network, start.inputs, start.params0, ratios, at_once=at_once
    )
    parts = [ratios[k] * dense_jacobian((k,)) @ dense_jacobian((k,)).T for k in ratios]
    np.testing.assert_allclose(product(jnp.asarray(v)), sum(parts) @ v, rtol=1e-6)


def test_large_kernels_are_never_formed(monkeypatch):
    dense = measured(one(), "kernel_extremes")["kernel_extremes"]
    monkeypatch.setattr("shoal.lab.setting.LARGEST", 5)
    start = one()
    assert "kernel_eigenvalues" not in probes.all_probes(start)
    found = measured(start, "kernel_extremes")["kernel_extremes"]
    assert float(found["max"]) == pytest.approx(float(dense["max"]), rel=1e-6)
    assert float(found["min"]) == pytest.approx(float(dense["min"]), rel=1e-6)


def test_the_residual_is_split_by_decades_of_the_spectrum():
    J = dense_jacobian()
    U, sigma, _ = np.linalg.svd(J, full_matrices=False)
    along = (U.T @ (np.asarray(network(PARAMS, X)) - Y).ravel()) ** 2
    decade = np.ceil(-2 * np.log10(sigma / sigma[0])) - 1
    expected = [along[(decade == j) | ((j == 0) & (decade < 0))].sum() for j in range(11)]
    found = measured(one(), "residual_spectrum")["residual_spectrum"]
    np.testing.assert_allclose(found, expected / along.sum(), atol=1e-6)
    assert float(found.sum()) == pytest.approx(1, rel=1e-12)
    assert np.count_nonzero(found) > 1


def test_a_residual_along_one_eigenvector_lies_in_its_decade():
    K = jnp.diag(jnp.array([5.0, 0.5, 4e-7, 0.0]))
    for entry, decade in ((0, 0), (1, 1), (2, 7), (3, 10)):
        probe = kernels.residual_spectrum(lambda _: K, lambda _, k=entry: jnp.eye(4)[k])
        np.testing.assert_allclose(probe(None), np.eye(11)[decade], atol=1e-12)


@pytest.mark.parametrize("loss", ["squares", "mean_squares"])
def test_gradient_noise_is_the_covariance_of_gradients_over_their_mean(loss):
    J, e = dense_jacobian(), (np.asarray(network(PARAMS, X)) - Y).ravel()
    rows = np.stack([J[2 * i : 2 * i + 2].T @ e[2 * i : 2 * i + 2] for i in range(6)])
    expected = np.trace(np.cov(rows.T, bias=True)) / np.sum(rows.mean(0) ** 2)
    found = measured(one(loss=loss), "gradient_noise")["gradient_noise"]
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_equal_samples_have_no_gradient_noise():
    start = jax.tree.map(jnp.asarray, sh.setup(network, PARAMS, X[[0, 0]], Y[[0, 0]]).one())
    assert float(measured(start, "gradient_noise")["gradient_noise"]) == pytest.approx(0, abs=1e-12)


def test_classifiers_have_the_probes_of_the_kernel_too():
    start = jax.tree.map(
        jnp.asarray, sh.setup(network, PARAMS, X, CLASSES, loss="cross_entropy").one()
    )
    J = dense_jacobian()
    found = measured(start, "kernel_lambda_max", "residual_spectrum", "gradient_noise")
    top = np.linalg.eigvalsh(J @ J.T)[-1]
    assert float(found["kernel_lambda_max"]) == pytest.approx(top, rel=1e-6)
    assert float(found["residual_spectrum"].sum()) == pytest.approx(1)
    assert start.kernel() is None  # theorems about squares do not apply
