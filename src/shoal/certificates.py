"""A theorem compared with a run: what it assumes, what it concludes, and the verdict."""

from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from shoal._typing import Array, Float, Int

RTOL = 1e-9
"""Relative distance below which float64 does not decide a comparison of bounds."""


class Inequality(NamedTuple):
    """The claim ``lhs <= rhs``, elementwise.

    ``resolution`` is the absolute rounding level of the two sides (e.g. of a risk near zero).
    """

    lhs: Float[Array, "..."] | float
    rhs: Float[Array, "..."] | float
    resolution: Float[Array, "..."] | float = 0.0


def condition(true: Any) -> Inequality:
    """A hypothesis that is a yes or a no, such as "only W_V is trained".

    >>> condition(True)
    Inequality(lhs=0.0, rhs=0.5, resolution=0.0)
    """
    return Inequality(1.0 - 1.0 * true, 0.5)


class Equality(NamedTuple):
    """The claim ``lhs = rhs`` up to ``tolerance``, elementwise, e.g. over a whole curve."""

    lhs: Float[Array, "..."] | float
    rhs: Float[Array, "..."] | float
    tolerance: Float[Array, "..."] | float


class Certificate(NamedTuple):
    """A theorem compared with a run: what it assumes, and what it concludes.

    The rates are shares of the risk lost per step (per unit of time for a flow), the theorem's
    guarantee and what the run did; NaN if the theorem says nothing about a rate. ``curves`` are
    drawn beside the risk, by name: a bound, or the exact curve; one number for each record.
    """

    hypotheses: dict[str, Inequality]
    conclusions: dict[str, Inequality | Equality]
    constants: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    predicted_rate: Float[Array, ""] | float = float("nan")
    measured_rate: Float[Array, ""] | float = float("nan")
    curves: dict[str, Any] = {}  # noqa: RUF012


class Verdict(StrEnum):
    """The four outcomes of a certificate."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_APPLICABLE = "not applicable"
    UNRESOLVED = "unresolved"


class Reading(NamedTuple):
    """An inequality at its tightest point. ``holds`` is None where float64 does not decide."""

    name: str
    lhs: float
    rhs: float
    holds: bool | None
    margin: float
    at: int | None  # position of the tightest point, if the inequality has many
    relation: str = "<="


def _margin(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Slack relative to the larger side: 1 is far from the bound, 0 on it, negative beyond."""
    scale = np.maximum(np.abs(lhs), np.abs(rhs))
    with np.errstate(invalid="ignore", divide="ignore"):
        margin = np.where(scale > 0, (rhs - lhs) / scale, 0.0)
    return np.where(np.isfinite(lhs) & np.isfinite(rhs), margin, -1.0)


def _points(inequality: Inequality | Equality) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in inequality))
    return tuple(np.atleast_1d(a).ravel() for a in arrays)  # type: ignore[return-value]


def _reading(name: str, inequality: Inequality | Equality, decided: np.ndarray) -> Reading:
    """Gather elementwise decisions (+1 holds, 0 undecided, -1 fails) into one line."""
    lhs, rhs, within = _points(inequality)
    equality = isinstance(inequality, Equality)
    margin = _margin(np.abs(lhs - rhs), within) if equality else _margin(lhs, rhs)
    worst = int(np.lexsort((margin, decided))[0])  # a failed point before an undecided one
    holds = {1: True, 0: None, -1: False}[int(decided[worst])]
    at = worst if np.ndim(inequality.lhs) or np.ndim(inequality.rhs) else None
    sides = float(lhs[worst]), float(rhs[worst])
    return Reading(name, *sides, holds, float(margin[worst]), at, "=" if equality else "<=")


def read_hypothesis(name: str, inequality: Inequality, rtol: float = RTOL) -> Reading:
    """Judge an assumption: it must hold by more than rounding. Infinite bounds never hold."""
    lhs, rhs, resolution = _points(inequality)
    with np.errstate(invalid="ignore"):
        slack = rhs - lhs
        tolerance = rtol * np.maximum(np.abs(lhs), np.abs(rhs)) + resolution
        decided = np.where(slack > tolerance, 1, np.where(slack < -tolerance, -1, 0))
    finite = np.isfinite(lhs) & np.isfinite(rhs)
    return _reading(name, inequality, np.where(finite, decided, -1))


def read_conclusion(name: str, inequality: Inequality | Equality, rtol: float = RTOL) -> Reading:
    """Judge a conclusion: equality is fine, a measured NaN or infinity fails.

    A bound that is itself not finite decides nothing, nor does an excess within rounding.
    """
    lhs, rhs, resolution = _points(inequality)
    with np.errstate(invalid="ignore"):
        if isinstance(inequality, Equality):
            decided = np.where(np.abs(lhs - rhs) <= resolution, 1, -1)
        else:
            tolerance = rtol * np.maximum(np.abs(lhs), np.abs(rhs)) + resolution
            decided = np.where(lhs <= rhs, 1, np.where(lhs - rhs <= tolerance, 0, -1))
    decided = np.where(np.isfinite(lhs), decided, -1)
    return _reading(name, inequality, np.where(np.isfinite(rhs), decided, 0))


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
    assumed, concluded = ([each.holds for each in part] for part in readings(certificate, rtol))
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
