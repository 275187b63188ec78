import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import problems
from shoal.errors import InputError
from shoal.papers import wu2023


def test_patches_put_the_image_back_together():
    images = jnp.arange(2 * 8 * 8.0).reshape(2, 8, 8)
    pieces = problems.patches(images, 4)
    assert pieces.shape == (2, 4, 16)
    np.testing.assert_array_equal(pieces[1, 1].reshape(4, 4), images[1, :4, 4:])
    np.testing.assert_array_equal(pieces[1, 2].reshape(4, 4), images[1, 4:, :4])


def test_patches_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="patch=3 does not divide images of 8 x 8"):
        problems.patches(jnp.zeros((1, 8, 8)), 3)


def test_digits_are_real_and_two_classes_become_signs():
    images, _ = problems.handwritten_digits()
    assert images.shape == (1797, 8, 8)
    assert (images.min(), images.max()) == (0, 1)
    made = wu2023.problem(wu2023.Setting(problem="digits", classes="3,8", num_samples=60))
    assert set(np.asarray(made.y).tolist()) == {-1.0, 1.0}
    assert made.X.shape == (60, 4, 20)


def test_all_ten_digits_become_numbers_between_minus_one_and_one():
    made = wu2023.problem(wu2023.Setting(problem="digits", classes="all", num_samples=200))
    expected = {round(float(v), 9) for v in (np.arange(10) - 4.5) / 4.5}
    assert {round(v, 9) for v in np.asarray(made.y).tolist()} == expected


def test_the_embedding_is_linear_plus_positions():
    key = jax.random.key(3)
    pieces = jax.random.normal(jax.random.key(4), (2, 3, 5))
    zero = problems.patch_embedding(key, jnp.zeros((1, 3, 5)), 7)
    one = problems.patch_embedding(key, pieces, 7)
    two = problems.patch_embedding(key, 2 * pieces, 7)
    position = jnp.broadcast_to(zero, one.shape)
    np.testing.assert_allclose(two - position, 2 * (one - position), atol=1e-12)


@pytest.mark.parametrize("classes", ["0", "0,0", "0,11", "a,b", "0,1,2"])
def test_classes_that_are_not_a_pair_are_refused(classes):
    with pytest.raises(InputError, match="expected two different labels"):
        wu2023.problem(wu2023.Setting(problem="digits", classes=classes))


def test_more_images_than_there_are_is_refused():
    with pytest.raises(InputError, match="has only 360 images"):
        wu2023.problem(wu2023.Setting(problem="digits", num_samples=1000))


def test_teacher_labels_have_the_asked_scale_and_depend_on_the_data():
    setting = wu2023.Setting(labels="teacher", label_scale=0.7, num_samples=50)
    made = wu2023.problem(setting)
    assert float(jnp.sqrt(jnp.mean(made.y**2))) == pytest.approx(0.7, rel=1e-12)
    other = wu2023.problem(setting._replace(data_seed=1))
    assert not np.allclose(made.y, other.y)


def test_unit_tokens_have_norm_one():
    made = wu2023.problem(wu2023.Setting(tokens="unit"))
    np.testing.assert_allclose(jnp.linalg.norm(made.X, axis=-1), 1, atol=1e-14)


@pytest.mark.parametrize(
    ("X", "y", "complaint"),
    [
        (np.ones((2, 3)), np.ones(2), "expected \\(samples, tokens, dim\\)"),
        (np.ones((2, 3, 4)), np.ones(3), "expected \\(2,\\)"),
        (np.full((2, 3, 4), np.nan), np.ones(2), "24 entries that are NaN"),
        (np.ones((2, 3, 4)), np.array([1, np.inf]), "y has 1 entries"),
        (np.ones((2, 0, 4)), np.ones(2), "none of them 0"),
        (np.ones((2, 3, 4)), np.array(["a", "b"]), "expected real numbers"),
    ],
)
def test_bad_arrays_are_refused_with_the_reason(X, y, complaint):
    with pytest.raises(InputError, match=complaint):
        problems.checked(X, y, where="here")
