from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import inits

DIM, WIDTH = 50, 400
Weights = namedtuple("Weights", "W_Q W_K W_V w_O")


def spec_of(dim, width):
    matrix = jax.ShapeDtypeStruct((width, dim), jnp.float64)
    return Weights(matrix, matrix, matrix, jax.ShapeDtypeStruct((width,), jnp.float64))


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
    params = init(jax.random.key(0), spec_of(DIM, WIDTH))
    for W, variance in ((params.W_Q, matrix), (params.W_V, matrix), (params.w_O, vector)):
        # the mean square of k Gaussians has relative standard deviation sqrt(2 / k)
        assert float(jnp.mean(W**2)) == pytest.approx(variance, rel=5 * (2 / W.size) ** 0.5)
        assert abs(float(jnp.mean(W))) < 5 * (variance / W.size) ** 0.5


def test_blocks_are_independent():
    params = inits.ntk(jax.random.key(0), spec_of(DIM, WIDTH))
    correlation = jnp.mean(params.W_Q * params.W_K)
    assert abs(float(correlation)) < 5 / (DIM * WIDTH) ** 0.5


@pytest.mark.parametrize("width", [30, 400])
def test_orthogonal_has_orthonormal_columns_or_rows(width):
    params = inits.orthogonal(jax.random.key(0), spec_of(DIM, width))
    W = params.W_V
    gram = W.T @ W if width >= DIM else W @ W.T
    np.testing.assert_allclose(gram, np.eye(min(DIM, width)), atol=1e-12)
    assert float(jnp.linalg.norm(params.w_O)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("init", [inits.lecun, inits.orthogonal])
def test_any_tree_of_shapes_is_drawn_in_its_own_form_and_precision(init):
    spec = {
        "a": [jax.ShapeDtypeStruct((3, 2), jnp.float32)],
        "b": jax.ShapeDtypeStruct((4,), float),
    }
    params = init(jax.random.key(0), spec)
    assert jax.tree.map(jnp.shape, params) == {"a": [(3, 2)], "b": (4,)}
    assert (params["a"][0].dtype, params["b"].dtype) == (jnp.float32, jnp.float64)
