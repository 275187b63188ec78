"""Where the next seeds go: to the claim that is nearest to a decision."""

import math
from fractions import Fraction

from shoal.evidence.betting import HALF, e_value_near, needed
from shoal.evidence.family import FIRST_THRESHOLD

PILOT, BATCH, FUTILE_FROM = 8, 8, 24
"""Seeds that every claim gets first, most seeds of a batch, seeds from which futility counts."""


def rest(
    counted: int, above: int, *, share: Fraction = HALF, most: int = 100,
    threshold: int = FIRST_THRESHOLD,
) -> int | None:  # fmt: skip
    """Seeds until a bet reaches the threshold, guessed hopefully; None if not within ``most``.

    The guess continues with the share seen so far plus one standard error.

    >>> rest(8, 8), rest(8, 7), rest(8, 4)
    (9, 18, None)
    """
    reached = needed(counted, threshold, share)
    if reached is not None and above >= reached:
        return 0
    q = (above + 1) / (counted + 2)
    hopeful = min(1.0, q + math.sqrt(q * (1 - q) / (counted + 3)))
    k = 0  # how many must be above; never falls with more seeds. A guess needs no exact e-values.
    for r in range(1, most - counted + 1):
        n = counted + r
        while k <= n and e_value_near(n, k, float(share)) < threshold:
            k += 1
        if k <= n and above + math.floor(hopeful * r + 0.5) >= k:
            return r
    return None
