"""Claims: what a paper says, tested by a rule that is fixed before the run.

A claim measures one number per seed (its *effect*) or a curve per seed whose exponent is the
effect, and a `Rule` decides by a 95% interval over seeds: *supported* if all of it lies within the
rule's limits, *contradicted* if none of it does, else *inconclusive*.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import InputError
from shoal.figures import Panel, band
from shoal.lab.study import Study

Measurement = dict[str, np.ndarray]
"""What a rule looks at: ``effect`` (one per seed), or ``x`` and ``y`` (seeds, points) for an
exponent. ``one`` and ``other`` are the two sides of a comparison; ``premise`` is false for a seed
to which the claim does not apply; ``curve LABEL`` (seeds, records) is drawn as evidence."""


class Ruling(StrEnum):
    """The three outcomes of a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


class Interval(NamedTuple):
    """A mean over seeds with its 95% confidence interval."""

    mean: float
    low: float
    high: float


class Evidence(NamedTuple):
    """What a claim's test found."""

    effect: float
    low: float  # 95% interval over seeds
    high: float
    meaning: str  # What the effect measures.
    runs: int
    ruling: Ruling
    sentence: str
    panel: Panel | None = None


class Plan(NamedTuple):
    """Sizes of a claim's experiment; ``control`` are changes that make the claim false."""

    seeds: int = 8
    steps: int = 200
    samples: int = 12
    tokens: int = 4
    dim: int = 10
    width: int = 64  # Or heads.
    layers: int = 1
    grid: tuple[Any, ...] = ()  # Widths, lengths, lags, ...
    points: int = 21  # Along each side of a plane.
    minutes: float = 0.2  # On two cores, roughly.
    control: tuple[tuple[str, Any], ...] = ()

    def get(self, name: str, value: Any) -> Any:
        """The control's value of something, or the usual one."""
        return dict(self.control).get(name, value)


# --------------------------------------------------------------------------------------- intervals


def _too_few(*samples: np.ndarray) -> bool:
    return any(len(x) < 2 or not np.isfinite(x).all() for x in samples)


def mean_interval(samples: np.ndarray) -> Interval:
    """Mean with Student's 95% interval (SciPy); a point if all samples are equal.

    >>> found = mean_interval(np.array([1.0, 2.0, 3.0]))
    >>> found.mean, found.low < 0, found.high > 4
    (2.0, True, True)
    """
    from scipy import stats  # most of a second to import: only when used

    samples = np.asarray(samples, float).ravel()
    mean = float(np.mean(samples))
    if _too_few(samples):
        return Interval(mean, np.nan, np.nan)
    if np.ptp(samples) <= 1e-12 * max(abs(mean), 1e-300):
        return Interval(mean, mean, mean)
    low, high = stats.ttest_1samp(samples, 0.0).confidence_interval(0.95)
    return Interval(mean, float(low), float(high))


def ratio_interval(above: np.ndarray, below: np.ndarray) -> Interval:
    """Ratio of two means over the same seeds, with a 95% bootstrap interval (2000 draws).

    Not the mean of ratios, which one small denominator would decide.

    >>> ratio_interval(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    above, below = np.asarray(above, float), np.asarray(below, float)
    mean = float(np.mean(above) / np.mean(below))
    if _too_few(above, below):
        return Interval(mean, np.nan, np.nan)
    rows = np.random.default_rng(0).integers(len(above), size=(2000, len(above)))
    ratios = above[rows].mean(axis=1) / below[rows].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(mean, float(low), float(high))


def spread_ratio(small: np.ndarray, large: np.ndarray) -> Interval:
    """Relative spread of one sample over that of another, with a 95% bootstrap interval."""
    from scipy import stats

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> Any:
        spread = [np.std(x, axis=axis, ddof=1) / np.mean(x, axis=axis) for x in (a, b)]
        return spread[1] / spread[0]

    if _too_few(small, large):
        return Interval(np.nan, np.nan, np.nan)
    draws: dict[str, Any] = {"n_resamples": 2000, "rng": np.random.default_rng(0)}
    found = stats.bootstrap((small, large), ratio, vectorized=True, **draws).confidence_interval
    return Interval(float(ratio(small, large)), float(found.low), float(found.high))


def exponents(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For each seed (leading axis of y), the slope of log y against log x by least squares.

    >>> exponents(np.array([1.0, 10.0, 100.0]), np.array([[1.0, 100.0, 10000.0]])).round(6).tolist()
    [2.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return slopes(np.log(x), np.log(np.asarray(y, float)))


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For each seed (leading axis of y), the slope of y against x by least squares."""
    t = np.asarray(x, float) - np.mean(x)
    return np.asarray(y, float) @ t / (t @ t)


# ------------------------------------------------------------------------------------------- rules


def judge(found: Interval, low: float, high: float) -> Ruling:
    """Supported if the whole interval lies within, contradicted if it lies wholly outside.

    If one limit is infinite, the other is strict: a tie is not above it.

    >>> str(judge(Interval(2.0, 1.0, 3.0), 0.0, np.inf)), str(judge(Interval(0, 0, 0), 0.0, np.inf))
    ('supported', 'contradicted')
    >>> str(judge(Interval(2.0, -1.0, 5.0), 0.0, 9.0)), str(judge(Interval(0, 0, 0), 0.0, 1.0))
    ('inconclusive', 'supported')
    """
    if np.isnan(found.low) or np.isnan(found.high):
        return Ruling.INCONCLUSIVE
    if np.isposinf(high):
        inside, outside = found.low > low, found.high <= low
    elif np.isneginf(low):
        inside, outside = found.high < high, found.low >= high
    else:
        inside = low <= found.low and found.high <= high
        outside = found.high < low or found.low > high
    if inside:
        return Ruling.SUPPORTED
    return Ruling.CONTRADICTED if outside else Ruling.INCONCLUSIVE


class Rule(NamedTuple):
    """How a claim is decided: limits of an effect, and the words to tell it by."""

    what: str  # What the effect is.
    low: float = -np.inf
    high: float = np.inf
    against: str = ""  # The effect is an exponent (or slope) of ``what`` against this.
    sides: tuple[str, str] = ("one side", "the other")
    premise: str = ""  # What must hold for a seed to count.
    note: str = ""  # Added to the sentence.
    statistic: str = "mean"  # Or ratio, spread: how seeds are summed up.
    per: str = ""  # ``doubling``: a slope against log2 x instead of an exponent.
    revised: bool = False  # Changed after a first look at the same seeds.

    @property
    def sentence(self) -> str:
        """The rule in words."""
        limits = f"lies in [{self.low:g}, {self.high:g}]"
        if np.isinf(self.high):
            limits = f"is above {self.low:g}"
        elif np.isinf(self.low):
            limits = f"is below {self.high:g}"
        said = f"supported if {self.effect} {limits}"
        said += f", provided that {self.premise}" if self.premise else ""
        return said + (" (revised after a first look at the same seeds)" if self.revised else "")

    @property
    def effect(self) -> str:
        """Name of the effect."""
        if self.per:
            return f"{self.what} per {self.per} of the {self.against}"
        return f"the exponent of {self.what} against {self.against}" if self.against else self.what

    def interval(self, found: Measurement) -> Interval:
        """The effect with its interval."""
        if self.statistic == "ratio":
            return ratio_interval(found["one"], found["other"])
        if self.statistic == "spread":
            return spread_ratio(found["one"], found["other"])
        if "effect" in found:
            effects = found["effect"]
        elif self.per:
            effects = slopes(np.log2(found["x"]), found["y"])
        else:
            effects = exponents(found["x"], found["y"])
        counted = np.asarray(found.get("premise", True), bool)
        return mean_interval(np.where(counted, effects, np.nan) if counted.ndim else effects)

    def decide(self, found: Measurement) -> Evidence:
        """Decide a measurement."""
        mean, low, high = interval = self.interval(found)
        ruling = judge(interval, self.low, self.high)
        said = f"{self.effect[:1].upper()}{self.effect[1:]}: {mean:.3g} [{low:.3g}, {high:.3g}]"
        runs, made_of, panel = _shown(found, self)
        said += f"{made_of}."
        said += f" {self.note}" if self.note else ""
        if not np.all(found.get("premise", True)):
            ruling = Ruling.INCONCLUSIVE
            said += f" Not decided: it is not so that {self.premise}."
        elif np.isnan(low):
            said += " Too few runs ended with numbers to decide."
        elif ruling == Ruling.INCONCLUSIVE:
            said += " The interval reaches across the rule's limit: these seeds do not decide."
        return Evidence(mean, low, high, self.effect, runs, ruling, said, panel)


def _shown(found: Measurement, rule: Rule) -> tuple[int, str, Panel | None]:
    """Number of runs, what the effect was made of (in brackets), and a picture of it."""
    runs, ends, panel = len(np.atleast_1d(found.get("effect", ()))), [], None
    if "y" in found:
        x, y = found["x"], found["y"]
        runs, ends = y.size, [f"{np.mean(y[:, k]):.3g} at {x[k]:g}" for k in (0, -1)]
        line = band("measured", x, y, positive=not rule.per)
        panel = Panel(rule.what, rule.against, rule.what, (line,), log_x=True, log_y=not rule.per)
    elif "one" in found and "other" in found:
        both = [np.atleast_1d(np.asarray(found[side], float)) for side in ("one", "other")]
        runs = sum(map(len, both))
        sides = list(zip(rule.sides, both, strict=True))
        ends = [f"{name} {np.mean(y):.3g}" for name, y in sides]
        columns = [band(n, np.full(len(y), 1.0 * k), y[None]) for k, (n, y) in enumerate(sides)]
        panel = Panel(rule.what, "side", "", tuple(columns), points=True)
    curves = {k.removeprefix("curve "): y for k, y in found.items() if k.startswith("curve ")}
    if curves:
        steps = {k: np.arange(y.shape[1]) * found.get("every", 1) for k, y in curves.items()}
        lines = tuple(band(k, steps[k], y, positive=True) for k, y in curves.items())
        panel = Panel(rule.what, "step", "risk", lines, log_y=True)
    return int(found.get("runs", runs)), f" ({', '.join(ends)})" if ends else "", panel


def above(limit: float, what: str, *sides: str, **more: Any) -> Rule:
    """The effect is above a limit; ``sides`` name the two that are compared, for the sentence."""
    return between(limit, np.inf, what, *sides, **more)


def below(limit: float, what: str, *sides: str, **more: Any) -> Rule:
    """The effect is below a limit."""
    return between(-np.inf, limit, what, *sides, **more)


def between(low: float, high: float, what: str, *sides: str, **more: Any) -> Rule:
    """The effect lies between two limits."""
    return Rule(what, low, high, **(({"sides": sides} if sides else {}) | more))


def exponent(low: float, high: float, what: str, against: str, **more: Any) -> Rule:
    """The exponent of one thing against another lies between two limits."""
    return Rule(what, low, high, against, **more)


def slope(against: str, *, above: float = -np.inf, below: float = np.inf, **more: Any) -> Rule:
    """The change of the statistic per doubling of a setting lies above or below a limit."""
    what = more.pop("what", "change of the statistic")
    return Rule(what, above, below, against, per="doubling", **more)


# ------------------------------------------------------------------------------------ measurements


def comparison(one: Any, other: Any, effect: Any = None, **more: Any) -> Measurement:
    """Two sides and the effect of every seed, by default their difference."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    chosen = one - other if effect is None else np.asarray(effect, float)
    return {"one": one, "other": other, "effect": chosen} | more


def log10_ratio(one: Any, other: Any, **more: Any) -> Measurement:
    """How many powers of ten one side is above the other."""
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.log10(np.asarray(one, float) / np.asarray(other, float))
    return comparison(one, other, powers, **more)


class Claim(NamedTuple):
    """A statement, the experiment that tests it, the rule that decides, and a negative control.

    ``measure`` trains; the rule only looks at the numbers, so it can be read and tested by itself.
    A plan with the code's version is the key under which a finished measurement is kept.
    ``control`` is a plan whose changes make the claim false: the rule must say *contradicted*.
    """

    key: str
    statement: str
    source: str
    setting: str
    rule: Rule
    measure: Callable[[Plan], Measurement]
    quick: Plan
    full: Plan
    control: Plan

    def decide(self, found: Measurement) -> Evidence:
        """Decide a measurement by the rule."""
        return self.rule.decide(found)


def study_measure(study: Study, statistic: Callable[[Any], Any]) -> Callable[[Plan], Measurement]:
    """How a claim measures a study: the statistic of every run, one number per seed.

    Over a grid of numbers the rule fits an exponent or a slope. Two points of another kind (such as
    ``mask: causal, none``) are compared seed by seed: first minus second. One point is the effect.
    """

    def measure(plan: Plan) -> Measurement:
        sized = study.changed(seeds=plan.seeds, control=dict(plan.control))
        values = np.stack([np.asarray(statistic(run), float) for run in sized.runs()], axis=1)
        grid = next(iter(study.grid.values()), ())
        if len(study.grid) == 1 and all(type(v) in (int, float) for v in grid):
            return {"x": np.asarray(grid, float), "y": values}
        if values.shape[1] == 2:
            return comparison(values[:, 0], values[:, 1])
        if values.shape[1] > 2:
            raise InputError(
                f"{study!r} has {values.shape[1]} points; a claim compares two, or fits a slope "
                "against one setting of numbers."
            )
        return {"effect": values[:, 0]}

    return measure
