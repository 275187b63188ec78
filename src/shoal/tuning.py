"""A step size for each side of a comparison, found with the same budget."""

import math
from typing import NamedTuple

from shoal._typing import Callable
from shoal.errors import InputError


class Search(NamedTuple):
    """The best step size of a log grid."""

    step_size: float
    bracketed: bool  # a worse or diverging step was seen on both sides


def best_step(score: Callable[[float], float], first: float, *, budget: int = 9) -> Search:
    """Minimise a score over step sizes ``first * 2**k``, with at most ``budget`` evaluations.

    Starts with five neighbouring powers of two and moves outward where the best lies at an edge. A
    score of infinity marks divergence, which also ends the bracket on that side.

    >>> best_step(lambda step: abs(step - 8.0), 1.0).step_size
    8.0
    """
    if budget < 5:
        raise InputError(f"budget={budget}: a bracket needs at least 5 evaluations.")
    seen = {k: score(first * 2.0**k) for k in (-2, -1, 0, 1, 2)}
    while len(seen) < budget:
        best = min(seen, key=lambda k: (seen[k], k))
        edge = {min(seen): -1, max(seen): 1}.get(best)
        if edge is None:
            break
        seen[best + edge] = score(first * 2.0 ** (best + edge))
    best = min(seen, key=lambda k: (seen[k], k))
    return Search(first * 2.0**best, min(seen) < best < max(seen) and math.isfinite(seen[best]))
