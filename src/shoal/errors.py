"""The one error that means *your input*, not *our bug*."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """What was given cannot be used; the message says what was expected and what to try.

    The command line prints it as one line and exits with 2. Anything else that escapes is a
    failure of shoal (exit 1).
    """


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
