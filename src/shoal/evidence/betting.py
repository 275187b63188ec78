r"""Bets against a null hypothesis about a share, valid however often one looks.

After $n$ counted seeds, $S$ of them above the limit, the null "at most a share $s$ of draws is
above" has the e-value

$$ E(n,S;s)=\frac1{1-s}\int_s^1\Big(\frac ps\Big)^S\Big(\frac{1-p}{1-s}\Big)^{n-S}dp
   =\frac{\sum_{j\le S}\binom{n+1}js^j(1-s)^{n+1-j}}{(n+1)\binom nSs^S(1-s)^{n+1-S}}, $$

the wealth of a player who stakes equal amounts on every $p\ge s$. Under the null it is a
nonnegative supermartingale from 1, so it ever reaches $1/u$ with probability at most $u$ (Ville).
Nothing is assumed about the effects' distribution, and the number of seeds need not be fixed.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

HALF = Fraction(1, 2)


@functools.lru_cache(maxsize=2**16)
def e_value(counted: int, above: int, share: Fraction = HALF) -> Fraction:
    """The e-value against "at most ``share`` of draws is above", exactly.

    >>> e_value(7, 7), e_value(10, 9), e_value(3, 1, Fraction(1, 10))
    (Fraction(255, 8), Fraction(1018, 55), Fraction(13, 12))
    """
    a, b = share.numerator, share.denominator - share.numerator  # odds a : b
    n, S = counted, above
    total, term = 0, b ** (n + 1)  # term j is C(n+1, j) a^j b^(n+1-j)
    for j in range(S + 1):
        total += term
        term = term * (n + 1 - j) * a // ((j + 1) * b)
    return Fraction(total, (n + 1) * math.comb(n, S) * a**S * b ** (n + 1 - S))


def e_value_near(counted: int, above: int, share: float) -> float:
    """The same in floating point, for any share: terms from the last one down.

    >>> round(e_value_near(500, 48, 0.05), 4)
    249.1791
    """
    n, odds = counted, (1 - share) / share if share > 0 else math.inf
    if share >= 1:
        return 1.0 if above == n else 0.0
    term = total = 1 / (n + 1 - above)
    for j in range(above, 0, -1):
        term *= j / (n + 2 - j) * odds
        total += term
        if math.isinf(total):
            break
    return total


@functools.lru_cache(maxsize=2**14)
def needed(counted: int, threshold: int, share: Fraction = HALF) -> int | None:
    """The smallest number above the limit whose e-value reaches the threshold, if there is one.

    >>> needed(30, 10240), needed(16, 10240)
    (27, None)
    """
    if e_value(counted, counted, share) < threshold:
        return None
    low, high = -1, counted  # the e-value rises with the number above
    while high - low > 1:
        middle = (low + high) // 2
        if e_value(counted, middle, share) >= threshold:
            high = middle
        else:
            low = middle
    return high


def path(events: Iterable[bool], share: Fraction = HALF) -> list[Fraction]:
    """The e-value after every counted seed; an event is "above the limit"."""
    found, above = [], 0
    for n, event in enumerate(events, 1):
        above += bool(event)
        found.append(e_value(n, above, share))
    return found


def average(paths: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """The average of e-values step by step: a bet against "all of these nulls hold"."""
    return [sum(at, Fraction(0)) / len(paths) for at in zip(*paths, strict=True)]


def largest(e_values: Iterable[Fraction]) -> Fraction:
    """The largest e-value so far; 1 before the first seed."""
    return max(e_values, default=Fraction(1))


def p_value(largest_e: Fraction) -> float:
    """The anytime-valid p-value of a largest e-value.

    >>> round(p_value(e_value(17, 17)), 9)
    6.8665e-05
    """
    return min(1.0, float(1 / largest_e)) if largest_e > 0 else 1.0


def mean_e_value(values: Sequence[Fraction | float], mean: Fraction) -> Fraction:
    r"""The e-value against "the mean of values in [0, 1] is at most ``mean``".

    $$ E_n=\tfrac1{19}\sum_{j=1}^{19}\prod_i\big(1+\lambda_j(X_i-m)\big),\quad\lambda_j=j/(20m) $$

    >>> mean_e_value([Fraction(0), Fraction(1)], Fraction(1, 2))
    Fraction(27, 40)
    """
    total = Fraction(0)
    for j in range(1, 20):
        stake = Fraction(j, 20) / mean
        total += math.prod((1 + stake * (Fraction(x) - mean) for x in values), start=Fraction(1))
    return total / 19
