"""All verdicts of a ledger together: Holm's correction over its places, round by round.

The ledger has 256 places of two null hypotheses each, used or not. A null is rejected if its
largest e-value reaches 20 (512 - r), where r counts the nulls rejected so far in its own round and
in earlier ones. By Ville's inequality and a union bound the chance that any true null is ever
rejected is at most 5 %, for any dependence between claims, any order of work, and rounds that were
registered after a look at earlier rounds.
"""

from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import TypeVar

PLACES = 256
NULLS = 2 * PLACES
LEVEL = Fraction(1, 20)
FIRST_THRESHOLD = int(NULLS / LEVEL)  # 10240

Name = TypeVar("Name", bound=Hashable)


def threshold(rejected: int) -> int:
    """The e-value that the next null must reach.

    >>> threshold(0), threshold(80)
    (10240, 8640)
    """
    return int((NULLS - rejected) / LEVEL)


def rejected(nulls: Mapping[Name, tuple[Fraction | float, int]]) -> set[Name]:
    """The nulls that are rejected, of ``{name: (largest e-value, round)}``.

    >>> sorted(rejected({"a": (20000, 1), "b": (10220, 1), "c": (300, 1)}))
    ['a', 'b']
    """
    found: set[Name] = set()
    while True:
        rounds = [nulls[name][1] for name in found]
        more = {
            name
            for name, (e, number) in nulls.items()
            if name not in found and e >= threshold(sum(r <= number for r in rounds))
        }
        if not more:
            return found
        found |= more  # thresholds only fall, so the order of rejections does not matter
