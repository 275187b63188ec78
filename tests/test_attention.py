import jax
import jax.numpy as jnp
import numpy as np

from shoal.attention import softmax, softmax_pullback


def test_pullback_is_the_transpose_of_the_derivative():
    S = jax.random.normal(jax.random.key(0), (5, 4, 4))
    T = jax.random.normal(jax.random.key(1), (5, 4, 4))
    _, pull = jax.vjp(softmax, S)
    np.testing.assert_allclose(softmax_pullback(softmax(S), T), pull(T)[0], atol=1e-15)


def test_softmax_survives_huge_scores():
    np.testing.assert_array_equal(softmax(jnp.array([[1e4, 0.0], [0.0, 1e4]])), np.eye(2))
