"""A theorem compared with a run: what it assumes, what it concludes, and the verdict."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from shoal._typing import Array, Float, Int

RTOL = 1e-9
"""Relative distance below which two floats that nothing encloses do not decide a comparison."""


class Ends(NamedTuple):
    """Enclosures of both sides, and the largest value of the resolution."""

    lhs: tuple[Any, Any]
    rhs: tuple[Any, Any]
    resolution: Any


class Inequality(NamedTuple):
    """The claim ``lhs <= rhs``, elementwise.

    ``resolution`` is the absolute rounding level of what was recorded (e.g. of a risk near zero).
    ``ends`` enclose both sides; they are added by `certify`, and then they decide. A theorem gives
    the floats. A conclusion whose own condition fails does not ``apply``: it is not compared.
    """

    lhs: Float[Array, "..."] | float
    rhs: Float[Array, "..."] | float
    resolution: Float[Array, "..."] | float = 0.0
    ends: Ends | None = None
    applies: Any = True


def condition(true: Any) -> Inequality:
    """A hypothesis that is a yes or a no, such as "only W_V is trained".

    >>> condition(True)[:2]
    (0.0, 0.5)
    """
    return Inequality(1.0 - 1.0 * true, 0.5)


def is_condition(lhs: float | None, rhs: float | None) -> bool:
    """Whether these are the sides of a `condition`, which is shown as a yes or a no.

    >>> is_condition(0.0, 0.5), is_condition(0.2, 0.5)
    (True, False)
    """
    return rhs == 0.5 and lhs in (0.0, 1.0)


SMALLEST = float(np.finfo(np.float64).tiny)


def positive(value: Any) -> Inequality:
    """The hypothesis ``0 < value``, which an exact 0 fails.

    >>> [read_hypothesis("0 < x", positive(x)).holds for x in (0.0, 1e-9)]
    [False, True]
    """
    return Inequality(SMALLEST, value)


class Equality(NamedTuple):
    """The claim ``lhs = rhs`` up to ``tolerance``, elementwise, e.g. over a whole curve."""

    lhs: Float[Array, "..."] | float
    rhs: Float[Array, "..."] | float
    tolerance: Float[Array, "..."] | float
    ends: Ends | None = None


class NotChecked(NamedTuple):
    """A conclusion that was not compared, because ``probe`` was not recorded.

    The probe is the key of an empty dict, so that JAX passes the name along.
    """

    probe: dict[str, None]


def not_checked(probe: str) -> NotChecked:
    """A conclusion whose ingredient was not recorded.

    >>> read_conclusion("weights stay", not_checked("distance")).relation
    'not checked: distance was not recorded'
    """
    return NotChecked({probe: None})


class Certificate(NamedTuple):
    """A theorem compared with a run: what it assumes, and what it concludes.

    The rates are shares of the risk lost per step (per unit of time for a flow), the theorem's
    guarantee and what the run did; NaN if the theorem says nothing about a rate. ``curves`` are
    drawn beside the risk, by name: a bound, or the exact curve; one number for each record.
    ``without_rule`` names the primitives that `certify` could not enclose.
    """

    hypotheses: dict[str, Inequality]
    conclusions: dict[str, Inequality | Equality | NotChecked]
    constants: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    predicted_rate: Float[Array, ""] | float = float("nan")
    measured_rate: Float[Array, ""] | float = float("nan")
    curves: dict[str, Any] = {}  # noqa: RUF012
    without_rule: tuple[str, ...] = ()


class Verdict(StrEnum):
    """The four outcomes of a certificate."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_APPLICABLE = "not applicable"
    UNRESOLVED = "unresolved"


class Reading(NamedTuple):
    """An inequality at its tightest point. ``holds`` is None where arithmetic does not decide."""

    name: str
    lhs: float
    rhs: float
    holds: bool | None
    margin: float
    at: int | None  # position of the tightest point, if the inequality has many
    relation: str = "<="

    @property
    def checked(self) -> bool:
        """Whether it was compared at all."""
        return self.relation in ("<=", "=")


def _margin(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Slack relative to the larger side: 1 is far from the bound, 0 on it, negative beyond."""
    scale = np.maximum(np.abs(lhs), np.abs(rhs))
    with np.errstate(invalid="ignore", divide="ignore"):
        margin = np.where(scale > 0, (rhs - lhs) / scale, 0.0)
    return np.where(np.isfinite(lhs) & np.isfinite(rhs), margin, -1.0)


class _Points(NamedTuple):
    """Both sides as floats, their ends, and the resolution; one entry per point."""

    lhs: np.ndarray
    rhs: np.ndarray
    lhs_low: np.ndarray
    lhs_high: np.ndarray
    rhs_low: np.ndarray
    rhs_high: np.ndarray
    resolution: np.ndarray


def _points(inequality: Inequality | Equality, rtol: float) -> _Points:
    """Floats that nothing encloses are trusted up to ``rtol`` of the larger side."""
    lhs, rhs, resolution, ends = inequality[:4]
    if ends is None:
        sides = [np.asarray(x, np.float64) for x in (lhs, rhs)]
        if isinstance(inequality, Inequality):
            with np.errstate(invalid="ignore"):
                largest = np.maximum(np.abs(sides[0]), np.abs(sides[1]))
                resolution = rtol * largest + np.asarray(resolution)
        ends = Ends((lhs, lhs), (rhs, rhs), resolution)
    given = (lhs, rhs, *ends.lhs, *ends.rhs, ends.resolution)
    arrays = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in given))
    return _Points(*(np.atleast_1d(a).ravel() for a in arrays))


def _reading(
    name: str, inequality: Inequality | Equality, points: _Points, decided: np.ndarray
) -> Reading:
    """Gather elementwise decisions (+1 holds, 0 undecided, -1 fails) into one line."""
    lhs, rhs = points.lhs, points.rhs
    equality = isinstance(inequality, Equality)
    with np.errstate(invalid="ignore"):  # of a run that diverged
        margin = _margin(np.abs(lhs - rhs), points.resolution) if equality else _margin(lhs, rhs)
    worst = int(np.lexsort((margin, decided))[0])  # a failed point before an undecided one
    holds = {1: True, 0: None, -1: False}[int(decided[worst])]
    at = worst if np.ndim(inequality.lhs) or np.ndim(inequality.rhs) else None
    sides = float(lhs[worst]), float(rhs[worst])
    return Reading(name, *sides, holds, float(margin[worst]), at, "=" if equality else "<=")


def read_hypothesis(name: str, inequality: Inequality, rtol: float = RTOL) -> Reading:
    """Judge an assumption: it must hold for everything that its enclosures contain.

    An infinite side fails, and so does a side that is not a number, unless that is only rounding:
    then its enclosure is endless and decides nothing.
    """
    p = _points(inequality, rtol)
    with np.errstate(invalid="ignore"):
        sure = p.rhs_low - p.lhs_high > p.resolution
        broken = p.lhs_low - p.rhs_high > p.resolution
    decided = np.where(sure, 1, np.where(broken, -1, 0))
    endless = np.isinf(p.lhs) | np.isinf(p.rhs)
    missing = (np.isnan(p.lhs) | np.isnan(p.rhs)) & (inequality.ends is None)
    return _reading(name, inequality, p, np.where(endless | missing, -1, decided))


def read_conclusion(
    name: str, inequality: Inequality | Equality | NotChecked, rtol: float = RTOL
) -> Reading:
    """Judge a conclusion: equality is fine, a NaN on either side fails, and so does infinity.

    An infinite bound decides nothing, nor does an excess within the enclosures and the resolution.

    >>> read_conclusion("x <= 2, where y < 1", Inequality(1.0, 2.0, applies=False)).relation
    'not applicable'
    """
    nan = float("nan")
    if isinstance(inequality, Inequality) and not np.all(inequality.applies):
        return Reading(name, nan, nan, None, nan, None, "not applicable")
    if isinstance(inequality, NotChecked):
        (probe,) = inequality.probe
        return Reading(name, nan, nan, None, nan, None, f"not checked: {probe} was not recorded")
    p = _points(inequality, rtol)
    with np.errstate(invalid="ignore"):
        if isinstance(inequality, Equality):
            near = np.abs(p.lhs - p.rhs) <= p.resolution
            apart = np.maximum(p.lhs_low - p.rhs_high, p.rhs_low - p.lhs_high) > p.resolution
            decided = np.where(near, 1, np.where(apart, -1, 0))
        else:
            beyond = p.lhs_low - p.rhs_high > p.resolution
            decided = np.where(p.lhs <= p.rhs, 1, np.where(beyond, -1, 0))
    decided = np.where(np.isinf(p.rhs) & np.isfinite(p.lhs), 0, decided)
    broken = ~np.isfinite(p.lhs) | np.isnan(p.rhs)
    return _reading(name, inequality, p, np.where(broken, -1, decided))


def readings(certificate: Certificate, rtol: float = RTOL) -> tuple[list[Reading], list[Reading]]:
    """Hypotheses and conclusions, each at its tightest point."""
    hypotheses = [read_hypothesis(k, v, rtol) for k, v in certificate.hypotheses.items()]
    conclusions = [read_conclusion(k, v, rtol) for k, v in certificate.conclusions.items()]
    return hypotheses, conclusions


def verdict(certificate: Certificate, rtol: float = RTOL) -> Verdict:
    """What the comparison says.

    >>> fine, broken = Inequality(1.0, 2.0), Inequality(3.0, 2.0)
    >>> judge = lambda h, c: str(verdict(Certificate({"h": h}, {"c": c}, {}, 0.0, 0.0)))
    >>> judge(fine, fine), judge(broken, fine), judge(fine, broken)
    ('holds', 'not applicable', 'violated')
    >>> judge(Inequality(1.0, 1.0), fine)
    'unresolved'
    """
    parts = readings(certificate, rtol)
    assumed, concluded = ([each.holds for each in part if each.checked] for part in parts)
    if False in assumed:
        return Verdict.NOT_APPLICABLE
    if None in assumed or not concluded:
        return Verdict.UNRESOLVED
    if False in concluded:
        return Verdict.VIOLATED
    return Verdict.UNRESOLVED if None in concluded else Verdict.HOLDS


def share_lost(risk: Float[Array, " T"], steps: Int[Array, ""] | int) -> Float[Array, ""]:
    r"""Average share of the risk lost per step, $1-(\ell_T/\ell_0)^{1/T}$."""
    return 1 - (risk[-1] / risk[0]) ** (1 / steps)


def undecided_words(names: list[str], without_rule: Sequence[str]) -> str:
    """Why some lines of a certificate stay open."""
    lines = "; ".join(names)
    if without_rule:
        return f"Cannot enclose {', '.join(without_rule)}, for want of a rule. Open: {lines}."
    return f"float64 cannot tell: {lines}."
