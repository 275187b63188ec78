import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import problems
from shoal.errors import InputError


def test_patches_put_the_image_back_together():
    images = jnp.arange(2 * 8 * 8.0).reshape(2, 8, 8)
    pieces = problems.patches(images, 4)
    assert pieces.shape == (2, 4, 16)
    np.testing.assert_array_equal(pieces[1, 1].reshape(4, 4), images[1, :4, 4:])
    np.testing.assert_array_equal(pieces[1, 2].reshape(4, 4), images[1, 4:, :4])


def test_patches_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="patch=3 does not divide images of 8 x 8"):
        problems.patches(jnp.zeros((1, 8, 8)), 3)


def digits(**changes):
    images, labels = problems.handwritten_digits()
    options = {"num_samples": 60, "patch": 4, "dim": 20, "classes": "3,8"} | changes
    return problems.image_problem(jax.random.key(0), images, labels, **options)


def test_digits_are_real_and_two_classes_become_signs():
    images, _ = problems.handwritten_digits()
    assert images.shape == (1797, 8, 8)
    assert (images.min(), images.max()) == (0, 1)
    made = digits()
    assert set(np.asarray(made.y).tolist()) == {-1.0, 1.0}
    assert made.X.shape == (60, 4, 20)


def test_all_ten_digits_become_numbers_between_minus_one_and_one():
    made = digits(classes="all", num_samples=200)
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


@pytest.mark.parametrize("classes", ["0", "0,0", "0,11", "a,b", "0,1,2", "9" * 40 + ",1"])
def test_classes_that_are_not_a_pair_are_refused(classes):
    with pytest.raises(InputError, match="expected two different labels"):
        problems.two_classes(classes, np.arange(10))


def test_more_images_than_there_are_is_refused():
    with pytest.raises(InputError, match="has only 360 images"):
        digits(classes="0,1", num_samples=1000)


def test_teacher_labels_have_the_asked_scale_and_depend_on_the_data():
    X = problems.gaussian_tokens(jax.random.key(0), 50, 3, 6)
    y = problems.teacher_labels(lambda x: jnp.sum(jnp.tanh(x)), X, 0.7)
    assert float(jnp.sqrt(jnp.mean(y**2))) == pytest.approx(0.7, rel=1e-12)
    np.testing.assert_allclose(y / y[0], jnp.tanh(X).sum((1, 2)) / jnp.tanh(X[0]).sum(), rtol=1e-12)


def test_unit_tokens_have_norm_one():
    X = problems.unit_tokens(problems.gaussian_tokens(jax.random.key(0), 5, 3, 6))
    np.testing.assert_allclose(jnp.linalg.norm(X, axis=-1), 1, atol=1e-14)


def test_gaussian_labels_have_the_asked_spread():
    y = problems.gaussian_labels(jax.random.key(0), 4000, 0.3)
    assert float(jnp.std(y)) == pytest.approx(0.3, rel=0.05)


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


@pytest.mark.parametrize(
    ("Y", "complaint"),
    [
        (np.ones((2, 3, 2)), None),
        (np.ones((2, 2)), None),
        (np.ones((2, 4, 2)), r"it should be \(2, 3, outputs\)"),
        (np.ones((3, 2)), r"it should be \(2, 3, outputs\)"),
        (np.ones((2, 3, 0)), "it should be"),
    ],
)
def test_target_rows_are_one_per_token_or_one_per_sample(Y, complaint):
    if complaint is None:
        assert problems.checked(np.ones((2, 3, 4)), Y, where="here", target="Y").y.shape == Y.shape
        return
    with pytest.raises(InputError, match=complaint):
        problems.checked(np.ones((2, 3, 4)), Y, where="here", target="Y")


def test_numbers_too_large_for_the_precision_are_refused():
    X = np.full((1, 1, 1), 1e300)
    assert problems.checked(X, np.ones(1), where="here").X.dtype == np.float64
    with pytest.raises(InputError, match="infinite in float32"):
        problems.checked(X, np.ones(1), where="here", precision="float32")


def test_a_problem_file_may_hold_queries_and_held_out_data(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "X": rng.normal(size=(4, 3, 2)),
        "y": rng.normal(size=4),
        "q": rng.normal(size=(4, 2)),
    }
    more = {"X_test": rng.normal(size=(5, 3, 2)), "y_test": np.ones(5), "q_test": np.ones((5, 2))}
    np.savez(tmp_path / "p.npz", **arrays, **more)
    problem, test = problems.read_problem(tmp_path / "p.npz", "y", queries=True)
    np.testing.assert_array_equal(problem.inputs[1], arrays["q"])
    assert test.X.shape == (5, 3, 2)
    assert problems.read_problem(tmp_path / "p.npz", "y")[0].q is None
    np.savez(tmp_path / "p.npz", **arrays)
    assert problems.read_problem(tmp_path / "p.npz", "y")[1] is None


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"X_test": np.ones((5, 2, 2)), "y_test": np.ones(5)}, "except for the samples"),
        ({"X_test": np.ones((5, 3, 2))}, "lacks y_test"),
        ({"q": np.ones((4, 3))}, "q has shape"),
    ],
)
def test_parts_of_a_problem_file_must_fit_together(tmp_path, changed, complaint):
    np.savez(tmp_path / "p.npz", **({"X": np.ones((4, 3, 2)), "y": np.ones(4)} | changed))
    with pytest.raises(InputError, match=complaint):
        problems.read_problem(tmp_path / "p.npz", "y", queries=True)
