"""Settings: words become typed values, and every field says how it enters compiled programs."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import pytest

import shoal as sh
import toy_paper
from shoal.errors import InputError
from shoal.lab.setting import (
    Mark,
    Names,
    Positive,
    Setting,
    Share,
    Three,
    Whole,
    parse_assignments,
    provenance,
    with_values,
)


class Plenty(Setting):
    """One field of every kind."""

    source: ClassVar[str] = "paper"

    num_tokens: int = 1  # Tokens per sample.
    dim: int = 3  # Numbers per token.
    width: int = 8  # Hidden units. [ours]
    gain: Positive = 1.0  # Scale of the output. [summary]
    noise: Share = 0.0
    power: sh.Static[float] = 2.0  # Exponent; used in an if.
    heads: sh.Traced[int] = 2  # Heads in use; the others are masked.
    kernel: Literal["softmax", "linear"] = "softmax"  # Attention.
    labels: sh.Data[Literal["teacher", "random"]] = "teacher"  # What the labels are.
    masked: bool = False  # Leave out the future.
    scales: Three = (1.0, 2.0, 3.0)  # Three scales.
    blocks: Names = "a,b"  # Some names.
    lag: Whole | None = None  # A lag; auto: none.
    loss = sh.mean_of_squares
    init = "he"

    def data(self, key):
        X = jax.random.normal(key, (self.num_samples, self.num_tokens, self.dim))
        return sh.Problem(X, jnp.ones(self.num_samples))

    def params(self):
        return {"W": (self.width, self.dim), "deep": [(self.width,)]}

    def apply(self, params, x):
        return self.gain * params["deep"][0] @ jnp.tanh(params["W"] @ x[0])


def parse(*words):
    return with_values(Plenty(), parse_assignments(words), owner="plenty")


def test_words_become_typed_values():
    made = parse("width=64", "kernel=linear", "gain=2", "step_size=1e-3", "train=W, deep.0")
    assert (made.width, made.kernel, made.gain) == (64, "linear", 2.0)
    assert type(made.gain) is float
    assert (made.step_size, made.train) == (1e-3, "W,deep.0")
    assert parse("masked=true").masked is True
    assert parse("num-samples=3").num_samples == 3


@pytest.mark.parametrize(("word", "expected"), [("3", (3, 3, 3)), ("1,2,4", (1, 2, 4))])
def test_three_numbers_may_be_one(word, expected):
    assert parse(f"scales={word}").scales == expected
    assert with_values(Plenty(), {"scales": list(expected)}, owner="p").scales == expected


@pytest.mark.parametrize("word", ["auto", "none", "None", "AUTO"])
def test_what_is_optional_can_be_left_to_us(word):
    assert parse(f"step_size={word}").step_size is None
    assert parse(f"lag={word}").lag is None


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("wdith=3", "plenty has no setting 'wdith'; did you mean 'width'"),
        ("num_samples=0", "num_samples=0: expected a number greater than or equal to 1"),
        ("width=abc", "width=abc: expected a valid integer"),
        ("width=2.5", "width=2.5: expected a valid integer"),
        ("kernel=sotfmax", "kernel=sotfmax: did you mean 'softmax'"),
        ("gain=-1", "greater than 0"),
        ("gain=nan", "finite"),
        ("noise=1.5", "less than or equal to 1"),
        ("step_size=inf", "finite"),
        ("width=18446744073709551616", r"expected a whole number of at most 10\^12"),
        ("step_size=0", "greater than 0"),
        ("width=auto", "expected a valid integer"),
        ("data_seed=-1", "greater than or equal to 0"),
        ("data_seed=2147483648", "less than"),
        ("scales=1,2", "three positive numbers"),
        ("scales=1,2,x", "three positive numbers"),
        ("lag=-1", "greater than or equal to 0"),
        ("width", "expected name=value"),
        ("=3", "expected name=value"),
    ],
)
def test_bad_words_are_refused_in_one_line(word, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        parse(word)
    assert "\n" not in str(caught.value)


def test_a_truth_value_is_no_number_and_a_word_is_given_once():
    with pytest.raises(InputError, match="width=True: expected a number"):
        with_values(Plenty(), {"width": True}, owner="plenty")
    with pytest.raises(InputError, match="kernel=True: expected a word"):
        with_values(Plenty(), {"kernel": True}, owner="plenty")
    with pytest.raises(InputError, match="given twice"):
        parse_assignments(["num-steps=1", "num_steps=2"])


def test_settings_are_frozen_hashable_and_compared_by_value():
    one = Plenty()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.width = 3
    assert hash(one) == hash(Plenty())
    assert one.replace(width=9) != one
    assert one.replace(width=9).replace(width=8) == one
    with pytest.raises(TypeError, match="no field 'wdith'"):
        one.replace(wdith=9)
    assert one.asdict()["num_samples"] == 10
    assert Plenty.fields()[:2] == ("num_samples", "data_seed")


# --------------------------------------------------------------------- how fields enter programs


def test_floats_and_seeds_are_traced_and_the_rest_is_static():
    marks = Plenty.marks()
    traced = {name for name, mark in marks.items() if mark is Mark.TRACED}
    assert traced == {"gain", "noise", "heads", "scales", "step_size", "num_steps", "data_seed"}
    assert {name for name, mark in marks.items() if mark is Mark.DATA} == {"labels"}
    assert marks["power"] is marks["width"] is marks["masked"] is Mark.STATIC


def test_the_compile_key_forgets_numbers_and_what_only_makes_data():
    key, values = Plenty().split()
    changed = {"gain": 3.0, "data_seed": 7, "heads": 1, "scales": (4.0, 5.0, 6.0), "num_steps": 9}
    other, others = Plenty(labels="random", **changed).split()
    assert key == other
    assert hash(key) == hash(other)
    assert {name: others[name] for name in changed} == changed
    assert set(values) == set(others)
    for static in ({"width": 9}, {"power": 3.0}, {"kernel": "linear"}, {"masked": True}):
        assert Plenty(**static).split()[0] != key
    assert Plenty().split(for_data=True)[0] != Plenty(labels="random").split(for_data=True)[0]


def test_a_choice_of_steps_is_no_part_of_the_key_but_its_absence_is():
    assert "step_size" not in Plenty().split()[1]
    assert Plenty(step_size=0.1).split()[1]["step_size"] == 0.1


# ------------------------------------------------------------------------------- what is written


def test_the_comments_beside_fields_are_their_sentences():
    said = Plenty.sentences()
    assert said["dim"] == "Numbers per token."
    assert said["kernel"] == "softmax | linear; Attention."
    assert said["noise"] == ""
    assert said["method"].startswith("gd | flow | sgd | adam; Training rule")
    assert said["train"].endswith("such as W_Q,W_K.")


def test_provenance_is_the_class_s_unless_the_comment_says_otherwise():
    known = provenance(Plenty)
    assert known["dim"] == "paper"
    assert known["width"] == "ours"
    assert known["gain"] == "paper, as summarised"
    assert provenance(toy_paper.Doe)["gain"] == "paper"
    assert provenance(toy_paper.Doe)["width"] == "ours"


# ----------------------------------------------------------------------------------- what it makes


def test_a_setting_makes_its_model_weights_and_sizes():
    made = Plenty(width=5)
    model = made.network()
    assert model.spec["W"].shape == (5, 3)
    params = made.weights(jax.random.key(0))
    assert params["deep"][0].shape == (5,)
    assert made.loss(jnp.ones(4), jnp.zeros(4)) == 1.0  # the function that was given, not a method
    assert made.output_shape() == ()
    assert made.target() == "y"
    assert made.data_spec().X.shape == (10, 1, 3)


def test_init_is_a_name_or_a_function_and_lecun_by_default():
    class Function(Plenty):
        def init(self, spec):  # key, spec: two arguments, so it stays a plain function
            return jax.tree.map(lambda s: jnp.full(s.shape, 7.0), spec)

    assert float(Function().weights(jax.random.key(0))["W"][0, 0]) == 7.0
    he = Plenty(width=4000).weights(jax.random.key(0))["W"]
    assert float(jnp.mean(he**2)) == pytest.approx(2 / 3, rel=0.1)


def test_what_a_paper_forgot_to_define_is_named():
    class Empty(Setting):
        """Nothing."""

    with pytest.raises(InputError, match="Empty does not say which parameters it has"):
        Empty().network()
    with pytest.raises(InputError, match="Empty makes no data of its own"):
        Empty().data(jax.random.key(0))
    with pytest.raises(InputError, match="Empty has no model"):
        Empty().apply(None, None)


def test_an_output_with_rows_has_targets_called_Y():
    class Rows(Plenty):
        def apply(self, params, x):
            return x @ params["W"].T

    assert Rows().output_shape() == (1, 8)
    assert Rows().target() == "Y"
