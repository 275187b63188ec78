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
from shoal.lab.setting import OURS
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


def mean_interval(samples: np.ndarray) -> Interval:
    """Mean with Student's 95% interval (SciPy); a point if all samples are equal.

    >>> found = mean_interval(np.array([1.0, 2.0, 3.0]))
    >>> found.mean, found.low < 0, found.high > 4
    (2.0, True, True)
    """
    from scipy import stats  # most of a second to import: only when used

    samples = np.asarray(samples, float).ravel()
    mean = float(np.mean(samples))
    if not np.isfinite(samples).all() or len(samples) < 2:
        return Interval(mean, float("nan"), float("nan"))
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
    if not (np.isfinite(above).all() and np.isfinite(below).all()) or len(above) < 2:
        return Interval(mean, float("nan"), float("nan"))
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

    if (
        not (np.isfinite(small).all() and np.isfinite(large).all())
        or min(map(len, (small, large))) < 2
    ):
        return Interval(float("nan"), float("nan"), float("nan"))
    drawn = stats.bootstrap(
        (small, large), ratio, n_resamples=2000, rng=np.random.default_rng(0), vectorized=True
    ).confidence_interval
    return Interval(float(ratio(small, large)), float(drawn.low), float(drawn.high))


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
        name = self.effect
        if np.isinf(self.high):
            said = f"supported if {name} is above {self.low:g}"
        elif np.isinf(self.low):
            said = f"supported if {name} is below {self.high:g}"
        else:
            said = f"supported if {name} lies in [{self.low:g}, {self.high:g}]"
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
        interval = self.interval(found)
        ruling = judge(interval, self.low, self.high)
        mean, low, high = interval
        said = f"{self.effect[:1].upper()}{self.effect[1:]}: {mean:.3g} [{low:.3g}, {high:.3g}]"
        said += f" ({_ends(found, self)})." if _ends(found, self) else "."
        said += f" {self.note}" if self.note else ""
        if not np.all(found.get("premise", True)):
            ruling = Ruling.INCONCLUSIVE
            said += f" Not decided: it is not so that {self.premise}."
        elif np.isnan(low):
            said += " Too few runs ended with numbers to decide."
        elif ruling == Ruling.INCONCLUSIVE:
            said += " The interval reaches across the rule's limit: these seeds do not decide."
        return Evidence(
            mean, low, high, self.effect, _runs(found), ruling, said, _panel(found, self)
        )


def _runs(found: Measurement) -> int:
    if "runs" in found:
        return int(found["runs"])
    if "y" in found:
        return int(found["y"].size)
    sides = [name for name in ("one", "other") if name in found]
    return sum(len(np.atleast_1d(found[name])) for name in sides) or len(found["effect"])


def _ends(found: Measurement, rule: Rule) -> str:
    if "y" in found:
        x, y = found["x"], found["y"]
        ends = (f"{np.mean(y[:, k]):.3g} at {x[k]:g}" for k in (0, -1))
        return ", ".join(ends)
    if "one" in found and "other" in found:
        means = (float(np.mean(found[k])) for k in ("one", "other"))
        return ", ".join(f"{side} {m:.3g}" for side, m in zip(rule.sides, means, strict=True))
    return ""


def _panel(found: Measurement, rule: Rule) -> Panel | None:
    """Evidence to look at: curves along training, a power law, or both sides seed by seed."""
    curves = {k.removeprefix("curve "): y for k, y in found.items() if k.startswith("curve ")}
    if curves:
        steps = {k: np.arange(y.shape[1]) * found.get("every", 1) for k, y in curves.items()}
        lines = tuple(band(k, steps[k], y, positive=True) for k, y in curves.items())
        return Panel(rule.what, "step", "risk", lines, log_y=True)
    if "y" in found:
        line = band("measured", found["x"], found["y"], positive=not rule.per)
        return Panel(rule.what, rule.against, rule.what, (line,), log_x=True, log_y=not rule.per)
    if "one" not in found or "other" not in found:
        return None
    columns = tuple(
        band(name, np.full(len(values), float(k)), np.asarray(values, float)[None, :])
        for k, (name, values) in enumerate(
            zip(rule.sides, (np.atleast_1d(found[s]) for s in ("one", "other")), strict=True)
        )
    )
    return Panel(rule.what, "side", "", columns, points=True)


def above(limit: float, what: str, *sides: str, **more: Any) -> Rule:
    """The effect is above a limit."""
    return Rule(what, low=limit, **(({"sides": sides} if sides else {}) | more))


def below(limit: float, what: str, *sides: str, **more: Any) -> Rule:
    """The effect is below a limit."""
    return Rule(what, high=limit, **(({"sides": sides} if sides else {}) | more))


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


def study_claim(
    key: str,
    statement: str,
    study: Study | Callable[[Plan], Measurement],
    statistic: Callable[[Any], Any] | None,
    rule: Rule | None,
    control: dict[str, Any],
    source: str = OURS,
    *,
    setting: str = "our setting",
    quick: Plan | None = None,
    full: dict[str, Any] | None = None,
    control_plan: Plan | None = None,
) -> Claim:
    """A claim from a study and a statistic, or from a function of a plan (see `Paper.claim`)."""
    if rule is None:
        msg = f"{key}: a claim needs a rule, such as slope('width', above=0.05)."
        raise InputError(msg)
    if isinstance(study, Study):
        if statistic is None:
            msg = f"{key}: a study needs a statistic, a function of a run with one number per seed."
            raise InputError(msg)
        usual = Plan(seeds=len(study.seeds)) if quick is None else quick
        measure = _study_measure(study, statistic)
    else:
        usual, measure = Plan() if quick is None else quick, study
    changes = tuple(control.items())
    return Claim(
        key, statement, source, setting, rule, measure, usual,
        usual._replace(**(full or {"seeds": 4 * usual.seeds})),
        (control_plan or usual)._replace(control=changes),
    )  # fmt: skip


def _study_measure(study: Study, statistic: Callable[[Any], Any]) -> Callable[[Plan], Measurement]:
    def measure(plan: Plan) -> Measurement:
        sized = study.changed(seeds=plan.seeds, control=dict(plan.control))
        values = np.stack([np.asarray(statistic(run), float) for run in sized.runs()], axis=1)
        if len(study.grid) == 1 and all(np.isscalar(v) for v in next(iter(study.grid.values()))):
            grid = next(iter(study.grid.values()))
            return {"x": np.asarray(grid, float), "y": values}
        if values.shape[1] == 2:
            return comparison(values[:, 0], values[:, 1])
        return {"effect": values[:, 0]}

    return measure
