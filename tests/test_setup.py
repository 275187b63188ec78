"""Setups: from a paper's words, from files, and from any function; what does not fit is refused."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal.errors import InputError
from shoal.lab.own import own_setup, per_sample
from shoal.lab.setup import (
    BATCHES,
    DATA,
    WEIGHTS,
    Setup,
    draw_weights,
    key_of,
    make_data,
    paper_setup,
)


def jaxed(setup, row=0):
    """One start with JAX arrays, as compiled functions see it."""
    return jax.tree.map(jnp.asarray, setup.one(row))


class Net(NamedTuple):
    W: jax.Array
    b: jax.Array
    a: jax.Array


class Wide(sh.Setting):
    """A two-layer network with a bias column, so that an axis is a size and one more."""

    num_tokens: int = 2  # Tokens per sample.
    dim: int = 3  # Numbers per token.
    width: int = 4  # Hidden units.
    out_dim: int = 2  # Outputs.
    shift: float = 0.0  # Added to the inputs.
    step_ratio: float = 0.5  # Step of a over the others'.
    num_samples: int = 5  # Samples.
    queries = False

    def data(self, key):
        X = jax.random.normal(key, (self.num_samples, self.num_tokens, self.dim))
        return sh.Problem(X + self.shift, jnp.ones((self.num_samples, self.out_dim)))

    def test_data(self, key):
        return self.data(jax.random.fold_in(key, 1))

    def params(self):
        return Net(W=(self.width, self.dim + 1), b=(self.width,), a=(self.out_dim, self.width))

    def apply(self, params, x):
        x = jnp.append(jnp.mean(x, axis=0), 1.0)
        return params.a @ jnp.tanh(params.W @ x + params.b)

    def step_ratios(self):
        return {"a": self.step_ratio}

    def check(self, problem):
        if problem.X.shape[1] > 9:
            msg = "at most nine tokens."
            raise InputError(msg)


WIDE = sh.Paper(Wide, key="wide")


def problem_file(path, samples=6, tokens=3, dim=7, out=5, **more):
    rng = np.random.default_rng(0)
    arrays = {"X": rng.normal(size=(samples, tokens, dim)), "Y": rng.normal(size=(samples, out))}
    np.savez(path, **(arrays | more))
    return path, arrays


def weights_file(path, width=4, dim=3, out=2, seeds=None, **more):
    rng = np.random.default_rng(1)
    lead = () if seeds is None else (seeds,)
    shapes = {"W": (width, dim + 1), "b": (width,), "a": (out, width)}
    arrays = {name: rng.normal(size=lead + shape) for name, shape in shapes.items()} | more
    np.savez(path, **arrays)
    return path, arrays


# ------------------------------------------------------------------------------- from a paper


def test_a_paper_s_words_make_a_problem_and_weights_for_every_seed():
    made = paper_setup(WIDE, {"width": "8", "num_samples": 3}, seeds=(5, 2))
    assert made.setting.width == 8
    assert made.problem.X.shape == (3, 2, 3)
    assert made.params0.W.shape == (2, 8, 4)
    assert (made.seeds, made.num_runs, made.name) == ((5, 2), 2, "wide")
    assert made.overrides == ("width", "num_samples")
    assert made.held_out.X.shape == (3, 2, 3)
    assert made.from_init
    assert made.step_size is None
    assert paper_setup(WIDE, {"step_size": 0.1}, seeds=(0, 1)).step_size.tolist() == [0.1, 0.1]


def test_everything_is_numpy_in_float64():
    made = paper_setup(WIDE, {})
    for leaf in jax.tree.leaves((made.problem, made.params0, made.held_out)):
        assert type(leaf) is np.ndarray
        assert leaf.dtype == np.float64
    single = paper_setup(WIDE, {}, precision="float32")
    assert {leaf.dtype for leaf in jax.tree.leaves((single.problem, single.params0))} == {
        np.dtype("float32")
    }
    np.testing.assert_array_equal(single.params0.W, made.params0.W.astype(np.float32))


def test_seeds_become_keys_in_one_way():
    made = paper_setup(WIDE, {"data_seed": 9}, seeds=(3, 7))
    data = made.setting.data(key_of(9, DATA))
    np.testing.assert_allclose(made.problem.X, data.X, rtol=1e-14)
    for row, seed in enumerate((3, 7)):
        drawn = made.setting.weights(key_of(seed, WEIGHTS))
        np.testing.assert_allclose(made.params0.W[row], drawn.W, rtol=1e-13)
    keys = {tuple(jax.random.key_data(key_of(s, p)).tolist())
            for s in (0, 1, 2**31 - 1) for p in (DATA, WEIGHTS, BATCHES)}  # fmt: skip
    assert len(keys) == 9
    plain = jax.random.fold_in(jax.random.key(3), 1)
    assert jax.random.key_data(key_of(3, 1)).tolist() == jax.random.key_data(plain).tolist()


def test_a_seed_s_weights_do_not_depend_on_its_companions_and_data_not_on_seeds():
    many, one = (paper_setup(WIDE, {}, seeds=s) for s in ((0, 1, 2, 3), (3,)))
    np.testing.assert_array_equal(many.params0.W[3], one.params0.W[0])
    np.testing.assert_array_equal(many.problem.X, one.problem.X)
    other = paper_setup(WIDE, {"data_seed": 1})
    assert not np.allclose(other.problem.X, one.problem.X)
    np.testing.assert_array_equal(other.params0.W[0], many.params0.W[0])


def test_data_and_weights_do_not_depend_on_how_they_will_be_trained():
    usual = paper_setup(WIDE, {})
    other = paper_setup(
        WIDE, {"method": "adam", "num_steps": 7, "step_size": 3.0, "train": "a", "batch_size": 2}
    )
    np.testing.assert_array_equal(usual.problem.X, other.problem.X)
    np.testing.assert_array_equal(usual.params0.W, other.params0.W)


def test_another_number_or_seed_makes_data_and_weights_without_compiling():
    from shoal.lab import setup as module

    setting = paper_setup(WIDE, {}).setting
    make_data(setting)
    draw_weights(setting, (0, 1))
    sizes = module._made._cache_size(), module._drawn._cache_size()
    moved, _ = make_data(setting.replace(shift=5.0, data_seed=0))
    np.testing.assert_allclose(moved.X, make_data(setting)[0].X + 5.0, rtol=1e-12)
    draw_weights(setting.replace(shift=5.0), (7, 8))
    assert (module._made._cache_size(), module._drawn._cache_size()) == sizes


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"wdith": 3}, "wide has no setting 'wdith'; did you mean 'width'"),
        ({"width": "x"}, "expected a valid integer"),
        ({"train": "W,c"}, "no parameter is called 'c'"),
        ({"train": "z*"}, r"no parameter is called 'z\*'"),
        ({"num_steps": 10, "every": 3}, "every=3 does not divide num_steps=10; try 1"),
        ({"num_samples": 10**9, "dim": 10**4}, "data would take .* GiB"),
    ],
)
def test_words_that_do_not_fit_are_refused(values, complaint):
    with pytest.raises(InputError, match=complaint):
        paper_setup(WIDE, values)


@pytest.mark.parametrize(
    ("precision", "values", "complaint"),
    [("float16", {}, "expected float64 or float32"),
     ("float32", {"method": "flow"}, "method=flow needs float64")],
)  # fmt: skip
def test_precisions_that_do_not_fit_are_refused(precision, values, complaint):
    with pytest.raises(InputError, match=complaint):
        paper_setup(WIDE, values, precision=precision)


# --------------------------------------------------------------------------------- from files


def test_a_problem_file_decides_the_sizes(tmp_path):
    path, arrays = problem_file(tmp_path / "p.npz")
    made = paper_setup(WIDE, {}, data=path)
    sizes = (
        made.setting.num_samples,
        made.setting.num_tokens,
        made.setting.dim,
        made.setting.out_dim,
    )
    assert sizes == (6, 3, 7, 5)
    assert made.params0.W.shape == (1, 4, 8)
    np.testing.assert_array_equal(made.problem.X, arrays["X"])
    assert made.held_out is None
    path, _ = problem_file(tmp_path / "q.npz", X_test=np.ones((2, 3, 7)), Y_test=np.ones((2, 5)))
    assert paper_setup(WIDE, {}, data=path).held_out.y.shape == (2, 5)


def test_weights_from_a_file_decide_the_sizes_too(tmp_path):
    path, arrays = weights_file(tmp_path / "w.npz", width=9, dim=6, out=3)
    made = paper_setup(WIDE, {}, params=path)
    assert (made.setting.width, made.setting.dim, made.setting.out_dim) == (9, 6, 3)
    assert made.problem.X.shape == (5, 2, 6)
    np.testing.assert_array_equal(made.params0.W[0], arrays["W"])
    assert not made.from_init
    assert made.seeds == (0,)
    path, _ = weights_file(tmp_path / "s.npz", seeds=3)
    assert paper_setup(WIDE, {}, params=path).seeds == (0, 1, 2)
    assert paper_setup(WIDE, {}, params=path, seeds=(7, 8, 9)).seeds == (7, 8, 9)


def test_a_size_that_shows_up_in_two_axes_is_found_by_what_it_does(tmp_path):
    # width = dim + 1 = 4 by default: only doubling tells which axis is which
    path, _ = weights_file(tmp_path / "w.npz", width=5, dim=3)
    made = paper_setup(WIDE, {}, params=path)
    assert (made.setting.width, made.setting.dim) == (5, 3)


@pytest.mark.parametrize(
    ("values", "sizes", "complaint"),
    [
        ({"dim": 4}, {}, "dim=4, but .*p.npz has 7; leave it out or match it"),
        ({}, {"out": 0}, "Y has shape"),
        ({}, {"tokens": 10}, "at most nine tokens"),
    ],
)
def test_problem_files_that_do_not_fit_are_refused(tmp_path, values, sizes, complaint):
    path, _ = problem_file(tmp_path / "p.npz", **sizes)
    with pytest.raises(InputError, match=complaint):
        paper_setup(WIDE, values, data=path)


def test_targets_of_the_wrong_kind_are_refused(tmp_path):
    path, _ = problem_file(tmp_path / "p.npz", Y=np.ones((6, 3, 5)))
    with pytest.raises(InputError, match="expected one target row per sample"):
        paper_setup(WIDE, {}, data=path)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"W": np.ones((9, 4))}, "with these data it should be"),
        ({"W": np.full((4, 4), np.nan)}, "NaN or infinite"),
        ({"W": np.array([["a"] * 4] * 4)}, "expected real numbers"),
        ({"W": np.ones((4,))}, "expected 2 axes, or one more in front for seeds"),
        ({"W": np.ones((3, 4, 4))}, "some arrays have a leading axis of seeds and some have not"),
        ({"W": np.ones((0, 4))}, "expected 2 axes"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, changed, complaint):
    path, _ = weights_file(tmp_path / "w.npz", **changed)
    with pytest.raises(InputError, match=complaint):
        paper_setup(WIDE, {}, params=path)


def test_weights_of_different_numbers_of_seeds_are_refused(tmp_path):
    path, _ = weights_file(tmp_path / "w.npz", seeds=3, b=np.ones((2, 4)))
    with pytest.raises(InputError, match="leading axes of different length"):
        paper_setup(WIDE, {}, params=path)
    path, _ = weights_file(tmp_path / "v.npz", seeds=3)
    with pytest.raises(InputError, match="2 seeds, but the weights hold 3"):
        paper_setup(WIDE, {}, params=path, seeds=(0, 1))
    np.savez(tmp_path / "u.npz", W=np.ones((4, 4)))
    with pytest.raises(InputError, match="lacks b, a"):
        paper_setup(WIDE, {}, params=tmp_path / "u.npz")


def test_data_and_weights_that_disagree_are_refused(tmp_path):
    data, _ = problem_file(tmp_path / "p.npz", dim=7, out=2)
    weights, _ = weights_file(tmp_path / "w.npz", dim=6)
    with pytest.raises(InputError, match=r"dim=7, but .*w.npz has 6"):
        paper_setup(WIDE, {}, data=data, params=weights)


# ---------------------------------------------------------------------------------- its parts


@pytest.fixture(scope="module")
def wide():
    return paper_setup(WIDE, {"train": "W,a", "step_size": 0.1}, seeds=range(4))


def test_frozen_blocks_have_ratio_zero(wide):
    assert wide.trained == ("W", "a")
    assert wide.step_ratios == {"W": 1.0, "b": 0.0, "a": 0.5}
    assert wide.with_setting(train="all").trained == ("W", "b", "a")


def test_the_risk_is_the_loss_of_the_outputs(wide):
    one = jaxed(wide, 2)
    outputs = np.stack([one.setting.apply(one.params0, x) for x in one.problem.X])
    y = np.asarray(one.problem.y)
    expected = 0.5 * np.sum((outputs - y) ** 2)
    assert float(one.risk(one.params0)) == pytest.approx(expected, rel=1e-12)
    assert float(one.fast_risk(one.params0)) == pytest.approx(expected, rel=1e-12)
    rows = jnp.array([1, 3])
    some = 0.5 * np.sum((outputs - y)[[1, 3]] ** 2)
    assert float(one.risk(one.params0, rows)) == pytest.approx(some, rel=1e-12)


def test_the_kernel_drives_the_outputs_to_first_order(wide):
    one, h = jaxed(wide, 1), 1e-6
    outputs = lambda p: jax.vmap(lambda x: one.setting.apply(p, x))(one.problem.X).ravel()  # noqa: E731
    e = outputs(one.params0) - one.problem.y.ravel()
    gradient = jax.grad(one.risk)(one.params0)
    ratios = one.step_ratios
    moved = Net(
        *(W - h * ratios[k] * g for k, W, g in zip(Net._fields, one.params0, gradient, strict=True))
    )
    change = (outputs(moved) - outputs(one.params0)) / h
    np.testing.assert_allclose(change, -one.kernel()(one.params0) @ e, rtol=1e-4)


def test_rows_and_one_select_runs(wide):
    some = wide.rows([3, 1])
    assert some.seeds == (3, 1)
    np.testing.assert_array_equal(some.params0.W, wide.params0.W[[3, 1]])
    assert some.step_size.tolist() == [0.1, 0.1]
    np.testing.assert_array_equal(wide.one(3).params0.a, wide.params0.a[3])
    assert wide.one(3).step_size == 0.1
    np.testing.assert_array_equal(some.problem.X, wide.problem.X)


def test_steps_are_one_for_all_or_one_for_each(wide):
    assert wide.with_steps(0.5).step_size.tolist() == [0.5] * 4
    assert wide.with_steps([1, 2, 3, 4]).step_size.tolist() == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="broadcast"):
        wide.with_steps([1, 2])


def test_a_setup_is_a_tree_whose_structure_forgets_numbers(wide):
    leaves, structure = jax.tree.flatten(wide)
    again = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(again.params0.W, wide.params0.W)
    assert float(again.setting.step_ratio) == 0.5
    other = paper_setup(
        WIDE, {"train": "W,a", "step_size": 0.3, "shift": 2.0, "data_seed": 4}, seeds=range(4, 8)
    )
    assert jax.tree.structure(other) == structure
    assert jax.tree.structure(wide.with_setting(width=9)) != structure
    assert jax.tree.structure(wide.with_setting(train="all")) != structure
    assert all(leaf.dtype in (np.float64, np.int64) for leaf in leaves)
    single = jax.tree.leaves(wide.astype("float32").replace(step_size=None))
    assert {leaf.dtype.name for leaf in single} == {"float32", "int64"}


def test_a_setup_says_what_it_is(wide):
    said = repr(wide)
    assert "Setup of wide, 4 seed" in said
    assert "W (4, 4), b (4,), a (2, 4)" in said
    assert "width=4" in said
    assert "W (4, 4), b (4,), a (2, 4)" in repr(wide.one())


# ------------------------------------------------------------------------------ from own models


def model(params, x):
    return jnp.tanh(x @ params["in"]["W"]) @ params["out"]


X, Y = np.random.default_rng(0).normal(size=(6, 3)), np.linspace(-1, 1, 6)
PARAMS = {"in": {"W": jnp.ones((3, 4))}, "out": jnp.arange(4.0)}


def test_a_function_weights_and_data_make_a_setup():
    made = own_setup(model, PARAMS, X, Y)
    assert made.name == "model"
    assert made.trained == ("in.W", "out")
    assert (made.num_runs, made.setting.num_samples) == (1, 6)
    assert not made.from_init
    expected = 0.5 * np.sum((np.asarray(model(PARAMS, X)) - Y) ** 2)
    assert float(jaxed(made).risk(PARAMS)) == pytest.approx(expected, rel=1e-12)


def test_a_function_that_draws_weights_has_a_start_for_every_seed():
    def init(key):
        return {"in": {"W": jax.random.normal(key, (3, 4))}, "out": jnp.zeros(4)}

    made = own_setup(model, init, X, Y, seeds=(2, 5), train="in.*")
    assert made.params0["in"]["W"].shape == (2, 3, 4)
    np.testing.assert_allclose(made.params0["in"]["W"][1], init(key_of(5, WEIGHTS))["in"]["W"])
    assert made.trained == ("in.W",)
    assert made.from_init


def test_the_loss_is_a_name_or_a_function():
    mean = own_setup(model, PARAMS, X, Y, loss="mean_squares")
    half = own_setup(model, PARAMS, X, Y)
    ratio = jaxed(half).risk(PARAMS) / jaxed(mean).risk(PARAMS)
    assert float(ratio) == pytest.approx(3)
    assert mean.squares_weight == pytest.approx(1 / 6)

    def cubic(outputs, targets):
        return jnp.sum(jnp.abs(outputs - targets) ** 3)

    own = own_setup(model, PARAMS, X, Y, loss=cubic)
    assert own.squares_weight is None
    assert own.one().kernel() is None


def test_inputs_may_be_a_tree_and_whole_numbers_stay_whole():
    def lookup(params, x):
        return params[x["word"]] * x["scale"]

    x = {"word": np.array([0, 2, 1]), "scale": np.array([1.0, 2.0, 3.0], np.float32)}
    made = own_setup(lookup, np.array([1.0, 2.0, 3.0]), x, np.zeros(3))
    assert made.problem.x["word"].dtype.kind == "i"
    assert made.problem.x["scale"].dtype == np.float64
    assert float(jaxed(made).risk(jaxed(made).params0)) == 0.5 * (1 + 36 + 36)
    assert made.trained == ("params",)


def test_per_sample_lifts_a_function_of_one_sample():
    def one(params, x):
        return jnp.tanh(x @ params["in"]["W"]) @ params["out"]

    lifted = per_sample(one)
    np.testing.assert_allclose(lifted(PARAMS, X), model(PARAMS, X), rtol=1e-12)
    assert own_setup(lifted, PARAMS, X, Y).name == "one"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"y": Y[:5]}, r"leading axes of length \[5, 6\]"),
        ({"loss": "sqares"}, "no loss is called 'sqares'; did you mean 'squares'"),
        ({"train": "inn.*"}, r"no parameter is called 'inn.\*'"),
        ({"loss": lambda o, t: o - t}, "returns shape .6,. of float64; expected one"),
        (
            {"y": np.ones((6, 1))},
            r"y has \(6, 1\); half_sum_of_squares expects",
        ),  # would be broadcast
    ],
)
def test_own_models_that_do_not_fit_are_refused(change, complaint):
    options = {"y": Y} | change
    with pytest.raises(InputError, match=complaint):
        own_setup(model, PARAMS, X, **options)


def test_an_objective_without_samples_has_a_risk_and_says_what_it_lacks():
    class Bowl(sh.Setting):
        """A risk of the parameters alone."""

        sharp: float = 2.0  # Curvature.

        def data(self, key):
            return {"centre": jax.random.normal(key, (3,))}

        def params(self):
            return {"w": (3,)}

        def objective(self, params, problem):
            return 0.5 * self.sharp * jnp.sum((params["w"] - problem["centre"]) ** 2)

        def lowest(self, problem):
            return 0.0

    made = paper_setup(sh.Paper(Bowl, key="bowl"), {}, seeds=(0, 1))
    one = jaxed(made)
    assert not made.has_samples
    assert one.kernel() is None
    expected = np.sum((one.params0["w"] - one.problem["centre"]) ** 2)
    assert float(one.risk(one.params0)) == pytest.approx(expected)
    with pytest.raises(InputError, match="bowl has no samples"):
        one.inputs  # noqa: B018
    assert sh.train(made, steps=3, step_size=0.1).risk.shape == (2, 4)
    assert sh.train(made, steps=3).step_size == pytest.approx([0.25, 0.25])  # half of 1 / sharpness


def test_a_setup_is_frozen(wide):
    with pytest.raises(dataclasses.FrozenInstanceError):
        wide.seeds = (1,)
    assert isinstance(wide, Setup)
