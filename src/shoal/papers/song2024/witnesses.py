r"""Witnesses: verified strict minima of one query's risk, for statements that something exists.

A query $q$ against fixed keys $k_j$ with values $v_j$ has output $f(q)=\sum_jw_j(q)v_j$ and risk
$R=\tfrac12(f-y)^2$. Let $\lambda\le R''(q_0)$, and let $L$ bound the third derivative of $R$ within
$r$ of $q_0$. If $\lambda>Lr$ and $|R'(q_0)|<(\lambda-Lr)r$, then $[q_0-r,q_0+r]$ holds exactly one
stationary point and it is a strict minimum: $R$ is strongly convex there and its slope points
outwards at both ends. The risk is at least $R(q_0)-|R'(q_0)|r$ there. Sums of a few terms of size 1
are exact to 1e-12 in float64, which is counted against the witness.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.papers.song2024.data import TRAP_KEYS, TRAP_QUERY, TRAP_TARGET, TRAP_VALUES

ROUNDING = 1e-12


class Row(NamedTuple):
    """A row's output, its first two derivatives, and a bound of the third, valid everywhere."""

    f: float
    f1: float
    f2: float
    f3_at_most: float


Output = Callable[[float], Row]


def softmax_row(keys: Any, values: Any) -> Output:
    """Output of softmax: derivatives by the query are joint cumulants of keys and values."""
    k, v = np.asarray(keys, float), np.asarray(values, float)
    width, height = float(np.ptp(k)), float(np.ptp(v))

    def at(q: float) -> Row:
        w = np.exp(q * k - np.max(q * k))
        w = w / w.sum()
        kc, vc = k - w @ k, v - w @ v
        # |E kc^3 vc| + 3 E kc^2 |E kc vc|, with |kc| <= width and |vc| <= height
        third = 4 * width**3 * height
        return Row(float(w @ v), float(w @ (kc * vc)), float(w @ (kc**2 * vc)), third)

    return at


def gaussian_row(keys: Any, values: Any) -> Output:
    r"""Output of the Gaussian kernel $\sum_je^{-(q-k_j)^2/2}v_j$, not normalised."""
    k, v = np.asarray(keys, float), np.asarray(values, float)

    def at(q: float) -> Row:
        u = q - k
        w = np.exp(-(u**2) / 2)
        third = 1.39 * float(np.abs(v).sum())  # the largest |u^3 - 3u| exp(-u^2/2) is 1.3801...
        return Row(float(w @ v), float(w @ (-u * v)), float(w @ ((u**2 - 1) * v)), third)

    return at


def strict_minimum(row: Output, target: float, q: float, radius: float = 1e-6) -> dict[str, Any]:
    """Check a witness: whether a ball around ``q`` holds exactly one minimum, and its risk."""
    at = row(q)
    e = at.f - target
    slope, curvature = e * at.f1, at.f1**2 + e * at.f2
    # within the ball: first and second derivative of the output, and the error
    second = abs(at.f2) + radius * at.f3_at_most
    first = abs(at.f1) + radius * second
    third = 3 * first * second + (abs(e) + radius * first) * at.f3_at_most
    room = curvature - ROUNDING - third * radius
    found = room > 0 and abs(slope) + ROUNDING < room * radius
    low = 0.5 * e**2 - (abs(slope) + ROUNDING) * radius - ROUNDING
    return {"query": q, "risk_at_least": low, "curvature": curvature, "slope": slope,
            "radius": radius, "accepted": bool(found)}  # fmt: skip


def descended(row: Output, target: float, q: float, step: float = 0.5, steps: int = 20000) -> float:
    """Where gradient descent ends."""
    for _ in range(steps):
        at = row(q)
        moved = q - step * (at.f - target) * at.f1
        if moved == q:
            break
        q = moved
    return q


def softmax_trap() -> dict[str, Any]:
    """Softmax ends at a strict minimum above 0.01; the Gaussian from the same start at zero."""
    soft, bell = softmax_row(TRAP_KEYS, TRAP_VALUES), gaussian_row(TRAP_KEYS, TRAP_VALUES)
    found = strict_minimum(soft, TRAP_TARGET, descended(soft, TRAP_TARGET, TRAP_QUERY))
    other = descended(bell, TRAP_TARGET, TRAP_QUERY)
    risk = 0.5 * (bell(other).f - TRAP_TARGET) ** 2
    good = found["accepted"] and found["risk_at_least"] > 0.01 and risk < 1e-12
    return found | {"gaussian_risk": risk, "accepted": good}


def gaussian_trap() -> dict[str, Any]:
    """Two keys far apart, one with too small a value: a minimum at it, and zero at the other."""
    row, target = gaussian_row((-3.0, 3.0), (0.5, 1.0)), 0.8
    found = strict_minimum(row, target, descended(row, target, -2.5))
    other = descended(row, target, 2.5)
    risk = 0.5 * (row(other).f - target) ** 2
    good = found["accepted"] and found["risk_at_least"] > 1e-4 and risk < 1e-12
    return found | {"risk_in_reach": risk, "accepted": good}
