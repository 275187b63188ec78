"""Rules: what kind of statement a claim is, its limits, and what the effects of its seeds say.

An effect is an interval [lo, hi], mostly of width zero: wider where a run only bounds the number.
It counts *above* a limit if lo is, *below* if hi is, else as neither, so what is not known never
helps a verdict. `None` is a seed that abstains. Statements "effect < limit" turn their sign, so
"above" always helps.

| kind | supported refutes | contradicted refutes |
|---|---|---|
| direction, bound | P(Z > a) <= s | P(Z < b) <= 1 - s |
| equivalence | P(Z > a) <= 1/2, and P(Z < b) <= 1/2 | P(Z < a) <= 1/2, or P(Z > b) <= 1/2 |
| scaling | as equivalence, for the slope and for the bend | as equivalence, for the slope |
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from shoal.errors import InputError
from shoal.evidence import betting
from shoal.evidence.betting import HALF
from shoal.evidence.family import FIRST_THRESHOLD
from shoal.evidence.sequences import EVERYWHERE, Interval
from shoal.evidence.spending import FUTILE_FROM, rest

KINDS = ("direction", "bound", "equivalence", "scaling", "existence", "identity")
WINDOWS = ("equivalence", "scaling")
NEARLY_ALL = Fraction(9, 10)
CONTROL_THRESHOLD, CONTROL_SEEDS, CONTROL_SEEDS_OF_A_SHARE = 20, 17, 100


class Effect(NamedTuple):
    """One counted seed: its number, and for a scaling the bend of its curve."""

    value: Interval
    bend: Interval = EVERYWHERE


Effects = Sequence[Effect | None]
"""Seeds in order; None is a seed that abstained."""


class Rule(NamedTuple):
    """How effects decide a claim."""

    kind: str
    for_limit: float  # a: or the lower end of a window.
    against_limit: float  # b: or the upper end of a window.
    share: Fraction = HALF  # Of the population, that the statement is about.
    every: bool = False  # The statement is about all draws: one verified violation refutes it.
    ties: str = "against"  # Or abstain.

    @property
    def bend_margin(self) -> float:
        """Half of a scaling's window."""
        return (self.against_limit - self.for_limit) / 2

    def for_control(self) -> "Rule":
        """The rule of a control: without room between the two limits."""
        return self if self.kind in WINDOWS else self._replace(against_limit=self.for_limit)


def check_rule(rule: Rule) -> Rule:
    """Refuse limits that do not fit the kind."""
    if rule.kind not in KINDS[:4]:
        raise InputError(f"kind={rule.kind!r}: expected one of {', '.join(KINDS[:4])}.")
    window = rule.kind in WINDOWS
    if window and not rule.for_limit < rule.against_limit:
        limits = f"[{rule.for_limit:g}, {rule.against_limit:g}]"
        raise InputError(f"{rule.kind} needs a window with its lower end first, not {limits}.")
    if window and rule.share != HALF:
        raise InputError(f"{rule.kind} is about the median only; leave share={rule.share} out.")
    if not window and rule.against_limit > rule.for_limit:
        msg = f"against={rule.against_limit:g} is above for={rule.for_limit:g}: an effect between "
        raise InputError(f"{msg}them would both support and contradict; swap them.")
    if not 0 < rule.share < 1:
        raise InputError(f"share={rule.share}: expected a number between 0 and 1.")
    if rule.ties not in ("against", "abstain"):
        raise InputError(f"ties={rule.ties!r}: expected against or abstain.")
    return rule


class Null(NamedTuple):
    """A null hypothesis: at most a share of draws has an event."""

    happens: Callable[[Effect], bool]
    share: Fraction


def above(limit: float, share: Fraction = HALF) -> Null:
    """The null that at most a share of draws is above a limit."""
    return Null(lambda effect: effect.value[0] > limit, share)


def below(limit: float, share: Fraction = HALF) -> Null:
    """The null that at most a share of draws is below a limit."""
    return Null(lambda effect: effect.value[1] < limit, share)


def nulls_for(rule: Rule) -> list[Null]:
    """The nulls that must all be refuted for *supported*."""
    a, b = rule.for_limit, rule.against_limit
    if rule.kind not in WINDOWS:
        return [above(a, NEARLY_ALL if rule.every else rule.share)]
    slope, margin = [above(a), below(b)], rule.bend_margin
    if rule.kind == "equivalence":
        return slope
    straight = [
        Null(lambda effect: effect.bend[0] > -margin, HALF),
        Null(lambda effect: effect.bend[1] < margin, HALF),
    ]
    return slope + straight


def nulls_against(rule: Rule) -> list[Null]:
    """The nulls of which one must be refuted for *contradicted*; two are bet on by halves."""
    a, b = rule.for_limit, rule.against_limit
    if rule.kind in WINDOWS:
        return [below(a), above(b)]
    return [below(b, 1 - (NEARLY_ALL if rule.every else rule.share))]


def counted(rule: Rule, effects: Effects) -> list[Effect]:
    """The seeds that count: those that did not abstain, also not by a tie."""

    def tied(effect: Effect) -> bool:
        lo, hi = effect.value
        return rule.ties == "abstain" and lo == hi == rule.for_limit == rule.against_limit

    return [effect for effect in effects if effect is not None and not tied(effect)]


class Tally(NamedTuple):
    """What effects say: counts, and e-values after every counted seed."""

    counted: int
    abstained: int
    above: int  # For windows: above the lower and below the upper end.
    below: int  # For windows: outside.
    e_for: list[Fraction]  # The smallest of those that must all be refuted, from running maxima.
    e_against: list[Fraction]
    for_max: Fraction
    against_max: Fraction
    for_now: Fraction  # Without the maximum over earlier seeds.
    against_now: Fraction

    @property
    def unknown(self) -> int:
        """Seeds that count for neither side."""
        return self.counted - self.above - self.below


def tally(rule: Rule, effects: Effects) -> Tally:
    """Count, and bet against every null."""
    seen = counted(rule, effects)
    events_for = [[n.happens(e) for e in seen] for n in nulls_for(rule)]
    events_against = [[n.happens(e) for e in seen] for n in nulls_against(rule)]
    paths_for = [
        betting.path(events, null.share)
        for events, null in zip(events_for, nulls_for(rule), strict=True)
    ]
    paths_against = [
        betting.path(events, null.share)
        for events, null in zip(events_against, nulls_against(rule), strict=True)
    ]
    against = betting.average(paths_against)
    # all must be refuted: the smallest of the running maxima, each from its own path
    maxima = [_running(path) for path in paths_for]
    e_for = [min(at) for at in zip(*maxima, strict=True)]
    slope = events_for[:2]  # the bend is not counted here
    return Tally(
        counted=len(seen),
        abstained=len(effects) - len(seen),
        above=sum(all(at) for at in zip(*slope, strict=True)),
        below=sum(any(at) for at in zip(*events_against, strict=True)),
        e_for=e_for,
        e_against=against,
        for_max=e_for[-1] if e_for else Fraction(1),
        against_max=betting.largest(against),
        for_now=min((path[-1] for path in paths_for if path), default=Fraction(1)),
        against_now=against[-1] if against else Fraction(1),
    )


def _running(path: Sequence[Fraction]) -> list[Fraction]:
    found: list[Fraction] = []
    for e in path:
        found.append(max(e, found[-1]) if found else e)
    return found


def bend_is_refuted(rule: Rule, effects: Effects) -> bool:
    """Whether a scaling's curve is bent by more than its margin: a description, not a verdict."""
    margin, seen = rule.bend_margin, counted(rule, effects)
    low = betting.path((e.bend[1] < -margin for e in seen), HALF)
    high = betting.path((e.bend[0] > margin for e in seen), HALF)
    return betting.largest(betting.average([low, high])) >= 40


# ------------------------------------------------------------------------------------- controls

SORTS = ("negative", "positive", "null")


def control_seeds(rule: Rule) -> int:
    """Counted seeds within which a control must be decided."""
    usual = rule.share == HALF and not rule.every
    return CONTROL_SEEDS if usual else CONTROL_SEEDS_OF_A_SHARE


def control_passed(sort: str, rule: Rule, effects: Effects) -> bool | None:
    """Whether a control came out as it must; None if it needs more seeds."""
    found, most = tally(rule.for_control(), effects), control_seeds(rule)
    if sort == "null":
        leaked = max(found.for_max, found.against_max) >= CONTROL_THRESHOLD
        return False if leaked else True if found.counted >= most else None
    right = found.against_max if sort == "negative" else found.for_max
    if right >= CONTROL_THRESHOLD:
        return True
    return False if found.counted >= most or len(effects) >= 4 * most else None


# -------------------------------------------------------------------------------------- spending


def seeds_left(rule: Rule, effects: Effects, most: int) -> int | None:
    """Seeds until the nearest decision; None if there is none within ``most`` counted seeds.

    Before 24 seeds nothing is hopeless: then a claim without hope is given the seeds up to 24.
    """
    seen = counted(rule, effects)

    def one(null: Null, threshold: int = FIRST_THRESHOLD) -> int | None:
        above = sum(null.happens(effect) for effect in seen)
        return rest(len(seen), above, share=null.share, most=most, threshold=threshold)

    both = [one(null) for null in nulls_for(rule)]
    hopes = [] if None in both else [max(r for r in both if r is not None)]
    against = nulls_against(rule)
    doubled = FIRST_THRESHOLD * len(against)
    hopes += [r for r in (one(null, doubled) for null in against) if r is not None]
    if hopes:
        return min(hopes)
    return FUTILE_FROM - len(seen) if len(seen) < min(FUTILE_FROM, most) else None


# -------------------------------------------------------------------------------------- verdicts


class Verdict(NamedTuple):
    """A word, and for *inconclusive* the first reason that applies."""

    word: str
    reason: str = ""


def verdict(
    rule: Rule, effects: Effects, *, refuted_for: bool, refuted_against: bool, violated: bool,
    controls_passed: bool | None, sequence: Interval, most: int,
) -> Verdict:  # fmt: skip
    """The verdict, given which nulls the whole ledger rejects.

    ``violated`` is a verified violation of a statement about all draws. ``controls_passed`` is
    None while controls are not finished.
    """
    seen = len(counted(rule, effects))
    if controls_passed is False:
        return Verdict("inconclusive", "control failed")
    if violated:
        return Verdict("contradicted")
    if refuted_for and refuted_against:
        return Verdict("inconclusive", "conflict")
    if (refuted_for or refuted_against) and controls_passed is None:
        return Verdict("inconclusive", "controls not finished")
    if refuted_for or refuted_against:
        return Verdict("supported" if refuted_for else "contradicted")
    if len(effects) >= 4 * most and seen < most:
        return Verdict("inconclusive", "premise rarely met")
    low, high = sequence
    room = rule.kind not in WINDOWS and rule.against_limit < rule.for_limit
    if room and rule.share == HALF and rule.against_limit <= low and high <= rule.for_limit:
        return Verdict("inconclusive", "between the limits")
    if seen >= FUTILE_FROM and seeds_left(rule, effects, most) is None:
        return Verdict("inconclusive", "set aside")
    return Verdict("inconclusive", "undecided")


def known(value: float | Interval) -> Interval:
    """An effect as an interval; what is not a number is known to lie anywhere.

    >>> known(2.0), known(float("nan"))
    ((2.0, 2.0), (-inf, inf))
    """
    lo, hi = value if isinstance(value, tuple) else (value, value)
    if math.isnan(lo) or math.isnan(hi) or lo > hi:
        return EVERYWHERE
    return float(lo), float(hi)
