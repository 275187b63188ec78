"""One number per seed: ways to make a claim's effects from runs.

A number that a run only bounds stays an interval: a loss at the level of rounding, a threshold
found on a grid, a side that diverged. Such a number never helps a verdict by accident.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import InputError
from shoal.evidence.rules import Effect, known
from shoal.evidence.sequences import EVERYWHERE, Interval
from shoal.evidence.slopes import bend_interval, slope_interval
from shoal.lab.claim import Design, Value
from shoal.lab.study import Study
from shoal.runtime import in_float64


def points(values: Any) -> list[Interval]:
    """Numbers as intervals of width zero."""
    return [known(float(v)) for v in np.asarray(values, float)]


def log10_known(values: Any, floor: float = 0.0, ceiling: float = np.inf) -> list[Interval]:
    """Powers of ten; below the floor or above the ceiling only that much is known.

    >>> log10_known([100.0, 1e-40, np.inf], floor=1e-30)
    [(2.0, 2.0), (-inf, -30.0), (inf, inf)]
    """
    found = []
    with np.errstate(divide="ignore"):
        for v in np.asarray(values, float):
            if np.isnan(v) or v < 0:
                found.append(EVERYWHERE)
            elif v < floor:
                found.append((-np.inf, float(np.log10(floor))))
            elif np.isfinite(v) and v > ceiling:
                found.append((float(np.log10(ceiling)), np.inf))
            else:
                found.append(known(float(np.log10(v))))
    return found


def minus(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Differences, seed by seed; two sides that are infinite in the same way say nothing.

    >>> minus([(2.0, 2.0), (np.inf, np.inf)], [(0.5, 1.0), (np.inf, np.inf)])
    [(1.0, 1.5), (-inf, inf)]
    """
    found = []
    for (a, b), (c, d) in zip(one, other, strict=True):
        with np.errstate(invalid="ignore"):
            lo, hi = np.subtract(a, d), np.subtract(b, c)
        found.append(
            (-np.inf if np.isnan(lo) else float(lo), np.inf if np.isnan(hi) else float(hi))
        )
    return found


def smaller(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """The smaller of two effects, seed by seed: above a limit only if both are."""
    pairs = zip(one, other, strict=True)
    return [(min(a, c), min(b, d)) for (a, b), (c, d) in pairs]


def log10_ratio(
    one: Any, other: Any, floor: float = 0.0, ceiling: float = np.inf
) -> list[Interval]:
    """How many powers of ten one side is above the other."""
    return minus(log10_known(one, floor, ceiling), log10_known(other, floor, ceiling))


def loss_ratio(one: Any, other: Any, floor: float = 0.0) -> list[Interval]:
    """As `log10_ratio`, of losses: not a number means that a run diverged, so it is infinite."""
    top, bottom = (np.where(np.isnan(x), np.inf, x) for x in (np.asarray(one), np.asarray(other)))
    return log10_ratio(top, bottom, floor)


def exponents(x: Any, low: Any, high: Any = None) -> list[Effect]:
    """Exponent and bend of every seed's curve (seeds, points) against x."""
    low = np.asarray(low, float)
    high = low if high is None else np.asarray(high, float)
    return [
        Effect(slope_interval(x, a, b), bend_interval(x, a, b))
        for a, b in zip(low, high, strict=True)
    ]


def slopes(x: Any, y: Any) -> list[float]:
    """The slope of every seed's curve (seeds, points) against x by least squares."""
    t = np.asarray(x, float) - np.mean(x)
    return [float(v) for v in np.asarray(y, float) @ t / (t @ t)]


def first_times(x: Any, values: Any, level: Any) -> np.ndarray:
    """Where every seed's curve (seeds, points) first falls to a level; infinite if nowhere.

    >>> first_times([0.0, 1.0, 2.0], [[4.0, 2.0, 0.0], [4.0, 4.0, 4.0]], 3.0).tolist()
    [0.5, inf]
    """
    x, y = np.asarray(x, float), np.asarray(values, float)
    reached = y <= np.reshape(level, (-1, 1))
    at = np.maximum(reached.argmax(axis=1), 1)
    row = np.arange(len(y))
    before, after = y[row, at - 1], y[row, at]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.clip((before - np.ravel(level)) / (before - after), 0.0, 1.0)
    found = x[at - 1] + np.where(np.isnan(share), 0.0, share) * (x[at] - x[at - 1])
    return np.where(reached.any(axis=1), found, np.inf)


def drop_times(run: Any, share: float) -> np.ndarray:
    """When every seed's risk has lost a share of all that it loses in the run."""
    first, last = run.risk[:, 0], run.risk[:, -1]
    return first_times(run.step * run.step_size[0], run.risk, first - share * (first - last))


@in_float64
def rests(run: Any) -> np.ndarray:
    """The risks near which training may rest, as the run's setting knows them."""
    one = run.setup.one()
    return np.asarray(one.setting.rests(jax.tree.map(jnp.asarray, one.problem)))


def share_near(run: Any, levels: Any, within: float = 0.01) -> np.ndarray:
    """Share of the time of its fall, from 5 % to 95 % of it, in which the risk is near a level."""
    near = (np.abs(run.risk[..., None] / levels - 1) < within).any(axis=-1)
    time = run.step * run.step_size[0]
    inside = (time >= drop_times(run, 0.05)[:, None]) & (time <= drop_times(run, 0.95)[:, None])
    return (near & inside).sum(axis=1) / inside.sum(axis=1)


def middle_times(run: Any, levels: Any) -> np.ndarray:
    """When the risk passes the middles between neighbouring levels (seeds, middles)."""
    middles = (levels[1:] + levels[:-1]) / 2
    time = run.step * run.step_size[0]
    return np.stack([first_times(time, run.risk, m) for m in middles], axis=1)


def where(met: Sequence[Any], values: Sequence[Value]) -> list[Value]:
    """Let the seeds abstain whose premise is false; one that cannot be evaluated counts.

    >>> where([True, False, None], [1.0, 2.0, 3.0])
    [1.0, None, (-inf, inf)]
    """
    found: list[Value] = []
    for holds, value in zip(met, values, strict=True):
        found.append(EVERYWHERE if holds is None else value if bool(holds) else None)
    return found


# --------------------------------------------------------------------------------- of a study


class StudyMeasure:
    """An experiment made of a study: a statistic of its runs, and how points become one number."""

    def __init__(
        self, study: Study, statistic: Callable[[Any], Any], reduce: Callable[[Any, Any], Any]
    ) -> None:
        self.study, self.statistic, self.reduce = study, statistic, reduce
        self.design: dict[str, Any] = {
            "grid": study.grid,
            "step_size": study.step_size, "precision": study.precision,
            "settings": study.values, "every_point": {},
            "statistic": getattr(statistic, "__name__", "statistic"),
            "reduce": getattr(reduce, "__name__", "reduce"),
        }  # fmt: skip

    def changes(self, control: Design) -> dict[str, Any]:
        """A control's settings, which replace those of every point, as changes of the design."""
        step = {k: v for k, v in control.items() if k == "step_size"}
        return {"every_point": {k: v for k, v in control.items() if k not in step}} | step

    def __call__(self, design: Design, seeds: tuple[int, ...]) -> Sequence[Value]:
        """Run the study on fresh data and weights for every seed."""
        study = self.study.changed(
            seeds=seeds, fresh_data=True, step_size=design["step_size"],
            control=dict(design["every_point"]),
        )  # fmt: skip
        values = [np.asarray(self.statistic(run), float) for run in study.runs()]
        return self.reduce(next(iter(study.grid.values()), ()), np.stack(values, axis=1))


def per_doubling(study: Study, statistic: Callable[[Any], Any]) -> StudyMeasure:
    """The change of a statistic of the runs per doubling of the study's one setting."""
    if len(study.grid) != 1:
        raise InputError(f"{study!r}: a slope needs one setting of numbers in the grid.")

    def slope_per_doubling(grid: Any, values: Any) -> list[float]:
        return slopes(np.log2(np.asarray(grid, float)), values)

    return StudyMeasure(study, statistic, slope_per_doubling)


def power_law(study: Study, statistic: Callable[[Any], Any]) -> StudyMeasure:
    """The exponent of a statistic of the runs against the study's one setting."""
    if len(study.grid) != 1:
        raise InputError(f"{study!r}: an exponent needs one setting of numbers in the grid.")
    return StudyMeasure(study, statistic, exponents)


def compared(study: Study, statistic: Callable[[Any], Any]) -> StudyMeasure:
    """The statistic at the first point of the study minus that at the second."""
    if (count := len(study.points())) != 2:
        raise InputError(f"{study!r} has {count} points; a comparison needs two.")

    def first_minus_second(_: Any, values: Any) -> list[Interval]:
        return minus(points(values[:, 0]), points(values[:, 1]))

    return StudyMeasure(study, statistic, first_minus_second)


def measured(study: Study, statistic: Callable[[Any], Any]) -> StudyMeasure:
    """The statistic of the study's only point."""
    if (count := len(study.points())) != 1:
        raise InputError(f"{study!r} has {count} points; expected one, or use compared.")

    def itself(_: Any, values: Any) -> list[Interval]:
        return points(values[:, 0])

    return StudyMeasure(study, statistic, itself)
