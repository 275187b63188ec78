r"""Theorems P1, P2 and P3: what is certain, from enclosed constants (docs/theory/prove.md).

Pure functions of a few numbers. Upper and lower bounds come in as floats; everything after that is
computed with fractions, so no rounding decides; results are rounded to the safe side.
"""

import math
import sys
from fractions import Fraction
from typing import NamedTuple

MOST = Fraction(sys.float_info.max)


class Range(NamedTuple):
    """A number between two floats."""

    low: float
    high: float


def _fractions(*numbers: float) -> list[Fraction] | None:
    """The numbers exactly; None if one is not finite."""
    return [Fraction(x) for x in numbers] if all(map(math.isfinite, numbers)) else None


def above(number: Fraction) -> float:
    """The least float that is not below."""
    if abs(number) > MOST:
        return math.inf if number > 0 else -sys.float_info.max
    found = float(number)
    return found if Fraction(found) >= number else math.nextafter(found, math.inf)


def below(number: Fraction) -> float:
    """The largest float that is not above."""
    if abs(number) > MOST:
        return -math.inf if number < 0 else sys.float_info.max
    found = float(number)
    return found if Fraction(found) <= number else math.nextafter(found, -math.inf)


def root_below(number: Fraction) -> Fraction:
    """A lower bound of a square root, to about 30 digits."""
    if number <= 0:
        return Fraction(0)
    shift = max(0, 120 - (number.numerator.bit_length() - number.denominator.bit_length()) // 2)
    scaled = (number.numerator << (2 * shift)) // number.denominator
    return Fraction(math.isqrt(scaled), 1 << shift)


class Contraction(NamedTuple):
    """What P1 says on one ball."""

    holds: bool
    alpha: float
    c: float
    reach: float  # c Psi(radius), which the residual must stay below.
    largest_residual: float  # The largest residual with which P1 would hold here.
    path: float  # Length of the whole path; nan if P1 does not hold.
    factor: float  # Proved factor of the residual's norm, in each step.
    later_factor: float  # The factor that it tends to.


def contraction(
    residual: float, sigma: float, beta: float, L: float, step: Range, radius: float
) -> Contraction | None:
    r"""P1: gradient descent converges to zero residual.

    ``residual``, ``beta`` ($\|J\|$ on the ball) and ``L`` are upper bounds, ``sigma`` a lower one,
    ``step`` encloses $h=\eta s$. None if a constant is not finite.
    """
    given = _fractions(residual, sigma, beta, L, *step, radius)
    if given is None:
        return None
    r, s, b, lip, low, high, rho = given
    if not (low > 0 and rho > 0):
        return None
    alpha = s - lip * rho
    free = 1 - high * b * b / 2
    c = free - high * lip * r / 2
    psi = s * rho - lip * rho * rho / 2
    holds = alpha > 0 and c > 0 and r < c * psi
    largest = free * psi / (1 + high * lip * psi / 2) if alpha > 0 and free > 0 else Fraction(0)
    path, factor, later = math.nan, math.nan, math.nan
    if holds:
        path = above(2 * (r / c) / (s + root_below(s * s - 2 * lip * r / c)))
        factor = above(1 - c * low * alpha * alpha)
        later = above(max(abs(1 - h * x * x) for h in (low, high) for x in (alpha, b)))
    return Contraction(
        bool(holds), below(alpha), below(c), below(c * psi), below(largest), path, factor, later
    )


class Drift(NamedTuple):
    """What P1 with errors says of a run whose steps are not exact."""

    holds: bool
    c: float
    steps: float  # For so many steps the bound holds.
    floor: float  # The residual's norm tends to at most this.


def contraction_with_errors(
    residual: float, sigma: float, beta: float, L: float, step: Range, radius: float,
    allowed: float, error: float,
) -> Drift:  # fmt: skip
    """P1 with errors: steps are off by at most ``error``, residuals stay below ``allowed``."""
    if not error < math.inf:
        return Drift(False, math.nan, 0.0, math.inf)
    r, s, b, lip, low, high, rho, most, e = (
        Fraction(x) for x in (residual, sigma, beta, L, *step, radius, allowed, error)
    )
    alpha, psi = s - lip * rho, s * rho - lip * rho * rho / 2
    c = 1 - high * b * b / 2 - high * lip * most / 2
    holds = alpha > 0 and c > 0 and r <= most < c * psi
    steps = math.inf if e == 0 else below((most - r) / ((b + c * s) * e)) if holds else 0.0
    floor = above(b * e / (c * low * alpha * alpha)) if holds else math.inf
    return Drift(bool(holds), below(c), math.floor(steps) if steps < math.inf else steps, floor)


class Minimum(NamedTuple):
    """What P2 says on one ball."""

    exists: bool  # The ball holds exactly one critical point, a strict minimum.
    converges: bool  # and the run converges to it
    m: float
    Lambda: float
    distance: float  # From here to the minimum, at most.
    risk: Range  # The risk there.
    factor: float  # Proved factor of the distance in each step.
    reach: float  # rho (lambda/2 - M rho/8), which the gradient must not exceed


def minimum(
    gradient: float, curvature: Range, M: float, step_size: float, radius: float, risk: Range
) -> Minimum | None:
    r"""P2: gradient descent converges to a strict local minimum.

    ``gradient`` and ``M`` (of the third derivative) are upper bounds, ``curvature`` encloses the
    Hessian's eigenvalues and ``risk`` the risk, all at the start. None if a constant is not finite.
    """
    given = _fractions(gradient, *curvature, M, step_size, radius, *risk)
    if given is None:
        return None
    g, low, high, third, eta, rho, R_low, R_high = given
    m, top = low - third * rho, high + third * rho
    reach = rho * (low / 2 - third * rho / 8)
    exists = m > 0 and g <= reach
    if not exists:
        return Minimum(False, False, below(m), above(top), math.nan, risk, math.nan, below(reach))
    converges = 0 < eta * top < 2
    distance = above(2 * g / (low + root_below(low * low - 2 * third * g)))
    factor = above(max(abs(1 - eta * m), abs(1 - eta * top)))
    limit = Range(max(0.0, below(R_low - g * g / (2 * m))), above(R_high))
    return Minimum(
        True, bool(converges), below(m), above(top), distance, limit, factor, below(reach)
    )


def distance_with_errors(
    factor: float, distance: float, radius: float, error: float
) -> float | None:
    """P2 with errors: the floor of the distance to the minimum; None if nothing is proved."""
    if not (factor < 1 and error < math.inf):
        return None
    floor = Fraction(error) / (1 - Fraction(factor))
    fits = Fraction(distance) + max(Fraction(distance), floor) <= Fraction(radius)
    return above(floor) if fits else None


class Valley(NamedTuple):
    """What P3 says on one ball."""

    holds: bool
    kappa: float
    Lambda: float
    needed: float  # G_0/m, which must stay below ...
    reach: float  # ... min(kappa a_u, b_u) radius.
    factor: float  # Proved factor of the excess risk in each step.
    risk: Range  # The limiting risk.


def valley(
    gradient: float, curvature: Range, slope: Range, bend: float, step_size: float, radius: float,
    risk: Range,
) -> Valley | None:  # fmt: skip
    r"""P3: the run converges although the Hessian is singular, through an intermediate array u.

    ``gradient``: upper bound of $\|\nabla G(u_0)\|$; ``curvature``: $m,\bar m$ of G on the ball of
    radius $b_u\varrho$; ``slope``: $a_u, b_u$ of u on the ball; ``bend``: bound of $D^2u$.
    """
    given = _fractions(gradient, *curvature, *slope, bend, step_size, radius, *risk)
    if given is None:
        return None
    G, m, top, a, b, lip, eta, rho, R_low, R_high = given
    large = b * b * top + (G + top * b * rho) * lip
    kappa = 1 - eta * large / 2
    if not (m > 0 and a > 0 and kappa > 0 and eta > 0):
        return Valley(False, below(kappa), above(large), math.inf, 0.0, math.nan, risk)
    needed, reach = G / m, min(kappa * a, b) * rho
    holds = needed < reach
    limit = Range(max(0.0, below(R_low - G * G / (2 * m))), above(R_high))
    factor = above(1 - 2 * kappa * eta * a * a * m) if holds else math.nan
    found = above(needed), below(reach), factor
    return Valley(bool(holds), below(kappa), above(large), *found, limit)
