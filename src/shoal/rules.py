"""Two ways to decide a claim: by an exponent, or by a number of every seed."""

import functools

import numpy as np

from shoal._typing import Callable
from shoal.claims import (
    Evidence,
    Interval,
    Measurement,
    Ruling,
    above,
    evidence,
    mean_interval,
    within,
)
from shoal.figures import Panel, band


def between(found: Interval, low: float, high: float) -> Ruling:
    """Within two limits; one that is infinite leaves the other strict, so a tie is not above.

    >>> str(between(Interval(0.0, 0.0, 0.0), 0.0, float("inf")))
    'contradicted'
    """
    if np.isposinf(high):
        return above(found, low)
    if np.isneginf(low):
        return above(Interval(-found.mean, -found.high, -found.low), -high)
    return within(found, low, high)


def exponents(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For each seed (leading axis of y), the slope of log y against log x by least squares.

    >>> exponents(np.array([1.0, 10.0, 100.0]), np.array([[1.0, 100.0, 10000.0]])).round(6).tolist()
    [2.0]
    """
    t = np.log(x) - np.log(x).mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.asarray(y, float)) @ t / (t @ t)


def decide_exponent(
    found: Measurement, low: float, high: float, what: str, against: str
) -> Evidence:
    """The exponent of ``what`` against ``against`` lies between two numbers."""
    x, y = found["x"], found["y"]
    interval = mean_interval(exponents(x, y))
    ends = f"{np.mean(y[:, 0]):.3g} at {x[0]:g}, {np.mean(y[:, -1]):.3g} at {x[-1]:g}"
    power = f"{against} to the power {{mean:.2f}} [{{low:.2f}}, {{high:.2f}}]"
    sentence = f"{_capital(what)} goes like {power} ({ends})."
    panel = Panel(
        what, against, what, (band("measured", x, y, positive=True),), log_x=True, log_y=True
    )
    meaning = f"exponent of {what} against {against}"
    ruling = between(interval, low, high)
    return evidence(interval, meaning, y.size, ruling, sentence, panel)


def decide_number(
    found: Measurement, low: float, high: float, what: str, sides: tuple[str, str]
) -> Evidence:
    """A number of every seed lies between two limits; the two sides are told and drawn."""
    interval: Interval = mean_interval(found["effect"])
    one, other = found["one"], found["other"]
    sentence = (
        f"{_capital(what)}: {{mean:.3g}} [{{low:.3g}}, {{high:.3g}}] "
        f"({sides[0]} {np.mean(one):.3g}, {sides[1]} {np.mean(other):.3g})."
    )
    columns = tuple(
        band(name, np.full(len(values), float(k)), np.asarray(values)[None, :])
        for k, (name, values) in enumerate(zip(sides, (one, other), strict=True))
    )
    ruling = between(interval, low, high)
    panel = Panel(what, "side", "", columns, points=True)
    return evidence(interval, what, 2 * len(one), ruling, sentence, panel)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def pair(one: np.ndarray, other: np.ndarray, effect: np.ndarray) -> Measurement:
    """What `decide_number` looks at: two sides and the number of every seed."""
    return {"one": np.asarray(one), "other": np.asarray(other), "effect": np.asarray(effect)}


def orders(one: np.ndarray, other: np.ndarray) -> Measurement:
    """How many orders of magnitude one side is above the other."""
    return pair(one, other, np.log10(np.asarray(one, float) / np.asarray(other, float)))


def exponent(low: float, high: float, what: str, against: str) -> Callable[[Measurement], Evidence]:
    """The rule `decide_exponent` with its limits and words."""
    return functools.partial(decide_exponent, low=low, high=high, what=what, against=against)


def number(
    low: float, high: float, what: str, one: str, other: str
) -> Callable[[Measurement], Evidence]:
    """The rule `decide_number` with its limits and words."""
    return functools.partial(decide_number, low=low, high=high, what=what, sides=(one, other))
