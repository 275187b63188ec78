import pytest

from shoal.errors import InputError
from shoal.papers.wu2023 import Setting
from shoal.settings import parse_assignments, with_values


def parse(*words):
    return with_values(Setting(), parse_assignments(words), owner="wu2023")


def test_words_become_typed_values():
    made = parse("width=64", "init=he", "score_exponent=1", "step_size=1e-3", "train=W_Q, w_O")
    assert (made.width, made.init, made.score_exponent) == (64, "he", 1.0)
    assert (made.step_size, made.train) == (1e-3, "W_Q,w_O")


def test_a_step_size_can_be_left_to_us():
    assert parse("step_size=auto").step_size is None


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("wdith=3", "no setting 'wdith'; did you mean 'width'"),
        ("width=0", "width=0: expected greater than or equal to 1"),
        ("width=abc", "width=abc: expected a valid integer"),
        ("width=2.5", "width=2.5: expected a valid integer"),
        ("init=foo", "init=foo: There are: lecun, he"),
        ("score_exponent=-1", "greater than or equal to 0"),
        ("score_exponent=nan", "finite"),
        ("step_size=inf", "finite"),
        ("step_size=0", "greater than 0"),
        ("data_seed=-1", "greater than or equal to 0"),
        ("width", "expected name=value"),
    ],
)
def test_bad_words_are_refused_in_one_line(word, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        parse(word)
    assert "\n" not in str(caught.value)
