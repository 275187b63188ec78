import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import linalg


def with_singular_values(values, columns=9):
    rng = np.random.default_rng(0)
    k = len(values)
    U = np.linalg.qr(rng.normal(size=(k, k)))[0]
    V = np.linalg.qr(rng.normal(size=(columns, k)))[0]
    return jnp.asarray(U @ np.diag(values) @ V.T)


def test_sigma_min_resolves_what_gram_eigenvalues_cannot():
    A = with_singular_values([1.0, 1e-3, 1e-11])
    assert float(linalg.sigma_min(A)) == pytest.approx(1e-11, rel=1e-3)
    by_gram = float(jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(A @ A.T)[0], 0)))
    assert by_gram != pytest.approx(1e-11, rel=0.1)  # the trap that the SVD avoids


def test_sigma_min_is_zero_when_there_are_fewer_columns_than_rows():
    assert float(linalg.sigma_min(jnp.ones((3, 2)))) == 0.0


def test_small_singular_values_count_as_zero_if_asked():
    A = with_singular_values([1.0, 1e-3, 1e-11])
    assert float(linalg.sigma_min(A, rtol=1e-10)) == 0.0
    assert float(linalg.sigma_min(A, rtol=1e-12)) == pytest.approx(1e-11, rel=1e-3)
    known = linalg.singular_values(A)
    assert float(linalg.sigma_min(A, sigma=known)) == float(known[-1])
    assert int(linalg.numerical_rank(A, 1e-10)) == 2


def test_norms_match_numpy():
    A = np.random.default_rng(1).normal(size=(5, 3))
    assert float(linalg.norm_op(jnp.asarray(A))) == pytest.approx(np.linalg.norm(A, 2), rel=1e-13)
    assert float(linalg.norm_fro(jnp.asarray(A))) == pytest.approx(np.linalg.norm(A), rel=1e-13)
    assert float(linalg.norm_op(jnp.asarray(A[0]))) == pytest.approx(
        np.linalg.norm(A[0]), rel=1e-13
    )


def symmetric(eigenvalues):
    Q = np.linalg.qr(np.random.default_rng(2).normal(size=(len(eigenvalues),) * 2))[0]
    return jnp.asarray(Q @ np.diag(eigenvalues) @ Q.T)


def test_top_eigenvalue_is_not_fooled_by_a_larger_negative_one():
    A = symmetric(np.concatenate([[-100.0, -50.0], np.linspace(-1, 3, 98)]))
    start = jax.random.normal(jax.random.key(0), (100,))
    top = linalg.top_eigenvalue(lambda v: A @ v, start, num_matvecs=60)
    assert bool(top.converged)
    assert float(top.value) == pytest.approx(3.0, rel=1e-6)


def test_the_bottom_is_the_top_of_the_negative():
    A = symmetric(np.concatenate([[100.0, 50.0], np.linspace(-3, 1, 98)]))
    start = jax.random.normal(jax.random.key(0), (100,))
    low = linalg.bottom_eigenvalue(lambda v: A @ v, start, num_matvecs=60)
    assert bool(low.converged)
    assert float(low.value) == pytest.approx(-3.0, rel=1e-6)


def test_top_eigenvalue_admits_when_it_has_not_converged():
    A = symmetric(np.linspace(0, 1, 300))
    start = jax.random.normal(jax.random.key(0), (300,))
    top = linalg.top_eigenvalue(lambda v: A @ v, start, num_matvecs=4)
    assert not bool(top.converged)
    assert float(top.residual) > 1e-3


def test_an_eigenvalue_lies_within_the_residual():
    eigenvalues = np.linspace(0, 1, 300)
    A = symmetric(eigenvalues)
    start = jax.random.normal(jax.random.key(1), (300,))
    top = linalg.top_eigenvalue(lambda v: A @ v, start, num_matvecs=10)
    assert np.min(np.abs(eigenvalues - float(top.value))) <= float(top.residual) + 1e-12


@pytest.mark.parametrize(
    ("eigenvalues", "top"),
    [
        (np.ones(100), 1.0),
        (np.zeros(100), 0.0),
        (np.r_[np.zeros(99), 5.0], 5.0),
        (np.r_[np.ones(50), 2 * np.ones(50)], 2.0),
        (np.r_[np.zeros(297), -7.0, 3.0, 5.0], 5.0),
    ],
)
def test_an_exhausted_krylov_space_is_no_breakdown(eigenvalues, top):
    A = symmetric(eigenvalues)
    start = jax.random.normal(jax.random.key(0), (len(eigenvalues),))
    found = linalg.top_eigenvalue(lambda v: A @ v, start)
    assert bool(found.converged)
    assert float(found.value) == pytest.approx(top, abs=1e-9)


def test_convergence_is_judged_by_the_value_and_not_by_a_huge_negative_one():
    A = symmetric(np.r_[-1e6, np.linspace(-10, 1, 1000)])
    start = jax.random.normal(jax.random.key(0), (1001,))
    found = linalg.top_eigenvalue(lambda v: A @ v, start, num_matvecs=40)
    assert abs(float(found.value) - 1) > 1e-4  # it has not found the top yet, and says so
    assert not bool(found.converged)


@pytest.mark.parametrize("function", [linalg.singular_values, linalg.eigenvalues])
def test_under_vmap_lapack_is_called_matrix_by_matrix(function):
    """A batched call of jaxlib waits for workers of the pool that it runs on: two can deadlock."""
    stack = jax.random.normal(jax.random.key(0), (5, 3, 3))
    stack = stack + jnp.swapaxes(stack, 1, 2)
    batched = jax.jit(jax.vmap(function))
    text = batched.lower(stack).as_text()
    calls = [line for line in text.splitlines() if "custom_call @lapack" in line]
    assert calls
    assert all("tensor<3x3xf64>" in line and "tensor<5x" not in line for line in calls)
    np.testing.assert_allclose(batched(stack), [function(A) for A in stack], rtol=1e-12)
