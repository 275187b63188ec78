import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import inits
from shoal.papers.wu2023.encoder import weights_spec

DIM, WIDTH = 50, 400


@pytest.mark.parametrize(
    ("init", "matrix", "vector"),
    [
        (inits.lecun, 1 / DIM, 1 / WIDTH),
        (inits.he, 2 / DIM, 2 / WIDTH),
        (inits.ntk, 1, 1),
        (inits.xavier, 2 / (DIM + WIDTH), 2 / (WIDTH + 1)),
    ],
)
def test_gaussian_entries_have_the_tabled_variance(init, matrix, vector):
    params = init(jax.random.key(0), weights_spec(DIM, WIDTH))
    for W, variance in ((params.W_Q, matrix), (params.W_V, matrix), (params.w_O, vector)):
        # the mean square of k Gaussians has relative standard deviation sqrt(2 / k)
        assert float(jnp.mean(W**2)) == pytest.approx(variance, rel=5 * (2 / W.size) ** 0.5)
        assert abs(float(jnp.mean(W))) < 5 * (variance / W.size) ** 0.5


def test_blocks_are_independent():
    params = inits.ntk(jax.random.key(0), weights_spec(DIM, WIDTH))
    correlation = jnp.mean(params.W_Q * params.W_K)
    assert abs(float(correlation)) < 5 / (DIM * WIDTH) ** 0.5


@pytest.mark.parametrize("width", [30, 400])
def test_orthogonal_has_orthonormal_columns_or_rows(width):
    params = inits.orthogonal(jax.random.key(0), weights_spec(DIM, width))
    W = params.W_V
    gram = W.T @ W if width >= DIM else W @ W.T
    np.testing.assert_allclose(gram, np.eye(min(DIM, width)), atol=1e-12)
    assert float(jnp.linalg.norm(params.w_O)) == pytest.approx(1, abs=1e-12)
