"""The one error that means *your input*, not *our bug*."""

import difflib
import sysconfig
from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """What was given cannot be used; the message says what was expected and what to try.

    The command line prints it as one line and exits with 2. Anything else that escapes is a
    failure of shoal (exit 1).
    """


def words_of(error: BaseException) -> str:
    """The message of any exception, also of a user's whose message cannot be had.

    >>> words_of(ValueError("no such shape"))
    'no such shape'
    """
    try:
        return str(error)
    except Exception:
        return "it has no message"


def place_of(error: BaseException) -> str:
    """Where in a user's file an exception was raised; empty if it was not in one."""
    paths = sysconfig.get_paths()
    others = (str(Path(__file__).parent), paths["stdlib"], paths["purelib"], "<")
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(others):
            place = f"{Path(file).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names what exists, the likeliest first.

    >>> nearest("wdith", ["width", "dim"])
    "did you mean 'width'? There are: width, dim."
    >>> nearest("zzz", ["width", "dim"])
    'there are: width, dim.'
    """
    known = list(known)
    folded = {other.casefold(): other for other in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    hint = f"did you mean {folded[close[0]]!r}? There" if close else "there"
    return f"{hint} are: {', '.join(known)}."
