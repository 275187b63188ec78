"""Claims: what a paper says, as an experiment that gives one number for every seed, and a rule.

    PAPER.claim("width_helps", "Wider networks train faster.", sh.per_doubling(by_width, decades),
                sh.above(0.0, "decades of risk gained per doubling of the width"),
                control={"train": "b"})

A seed draws data, weights and batches anew, and gives one *effect*. The rule compares effects with
limits (`shoal.evidence.rules`); how seeds add up to a verdict is explained in
``docs/evidence.md``. A *control* is the same experiment with a changed design, for which the
answer is known: a negative one must come out contradicted.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from shoal.errors import InputError
from shoal.evidence.betting import HALF
from shoal.evidence.rules import NEARLY_ALL, SORTS, Effect, Rule, check_rule, known
from shoal.evidence.sequences import Interval

Design = Mapping[str, Any]
"""All that decides an experiment besides the seeds, as plain data."""
Value = float | Interval | Effect | None
"""A seed's effect: a number, what is known of it, with a bend; None if the seed abstains."""
Measure = Callable[[Design, tuple[int, ...]], Sequence[Value]]
"""The experiment: a design and seeds in, one value per seed out."""


class Control(NamedTuple):
    """An experiment whose answer is known: the claim's own with some of its design changed."""

    changes: dict[str, Any]
    sort: str = "negative"  # Must be contradicted; or positive: supported; or null: neither.
    why: str = ""


class Criterion(NamedTuple):
    """What the effect is, and the rule for it. ``sign`` is -1 where small effects help."""

    rule: Rule
    effect: str
    sign: int = 1

    def shown(self, value: float) -> float:
        """A number with the sign in which people read it."""
        return self.sign * value

    @property
    def sentence(self) -> str:
        """The rule in words."""
        a, b = self.rule.for_limit, self.rule.against_limit
        if self.rule.kind in ("equivalence", "scaling"):
            where = f"lies in [{a:g}, {b:g}]"
            outside = "lies outside"
            if self.rule.kind == "scaling":
                where += f" and the line bends by less than {self.rule.bend_margin:g}"
        else:
            above, below = ("above", "below") if self.sign > 0 else ("below", "above")
            where = f"is {above} {self.shown(a):g}"
            outside = f"is {below} {self.shown(b):g}"
        who = quantifier(self.rule)
        return f"supported if {who} {self.effect} {where}; contradicted if it {outside}"


def quantifier(rule: Rule) -> str:
    """Of how many draws the statement is, in words."""
    if rule.every:
        return "in every draw"
    if rule.share == HALF:
        return "in a typical draw"
    if rule.share == NEARLY_ALL:
        return "in nearly all draws"
    return f"in more than {float(rule.share):.0%} of draws"


def above(
    limit: float, effect: str, *, against: float | None = None, bound: bool = False,
    share: Fraction = HALF, every: bool = False, ties: str = "against",
) -> Criterion:  # fmt: skip
    """The effect is above a limit, and refuted if below another one (by default the same).

    ``share`` is the share of draws of which this is said; ``every`` says it of all draws, which
    one verified violation refutes; ``bound`` names the kind.
    """
    other = limit if against is None else against
    kind = "bound" if bound or every else "direction"
    return Criterion(check_rule(Rule(kind, limit, other, share, every, ties)), effect)


def below(limit: float, effect: str, *, against: float | None = None, **more: Any) -> Criterion:
    """The effect is below a limit: as `above`, with the sign of effect and limits turned."""
    other = limit if against is None else against
    return above(-limit, effect, against=-other, **more)._replace(sign=-1)


def between(low: float, high: float, effect: str) -> Criterion:
    """The effect lies within a window: both sides must be refuted for *supported*."""
    return Criterion(check_rule(Rule("equivalence", low, high)), effect)


def exponent(low: float, high: float, effect: str) -> Criterion:
    """An exponent lies within a window, and the line is straight within half of it."""
    return Criterion(check_rule(Rule("scaling", low, high)), effect)


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """A statement, the experiment that tests it, the rule that decides, and its controls."""

    key: str
    statement: str
    source: str  # Provenance.
    measure: Measure
    test: Criterion
    design: dict[str, Any]
    controls: tuple[Control, ...]
    why: str  # Where the limits come from.
    setting: str = "our setting"  # In words.
    assumptions: tuple[str, ...] = ()
    premise: str = ""  # Seeds that do not meet it abstain.
    fixed_problem: bool = False  # A worked example: only weights are drawn.
    max_seeds: int = 100
    seconds: float = 1.0  # Per seed, roughly, on two cores.
    version: int = 1
    changed: str = ""  # Why this version replaced the one before.
    same_runs: tuple[str, ...] = ()  # Claims that look at the same runs.
    verify: Callable[[Design, int], bool] | None = None
    """For statements about all draws: whether a seed's violation is confirmed by other code."""
    differs: str = ""  # Why the result may differ from the paper's.
    waits: str = ""  # Why it cannot be tested yet: it is not registered, and no seeds are spent.

    def effects(self, seeds: Sequence[int], changes: Design | None = None) -> list[Effect | None]:
        """The experiment for some seeds, with a control's changes if given."""
        design = changed_design(self.design, changes or {})
        values = self.measure(design, tuple(seeds))
        if len(values) != len(seeds):
            msg = f"{self.key}: its experiment returned {len(values)} numbers for {len(seeds)} "
            raise InputError(f"{msg}seeds; expected one for each.")
        return [None if v is None else _turned(_effect(v), self.test.sign) for v in values]


def _effect(value: Any) -> Effect:
    if isinstance(value, Effect):
        return Effect(known(value.value), known(value.bend))
    if isinstance(value, tuple):
        return Effect(known((float(value[0]), float(value[1]))))
    return Effect(known(float(value)))


def _turned(effect: Effect, sign: int) -> Effect:
    if sign > 0:
        return effect
    lo, hi = effect.value
    return effect._replace(value=(-hi, -lo))


def changed_design(design: Design, changes: Design) -> dict[str, Any]:
    """A design with changes; a part that is a dictionary is changed name by name.

    >>> changed_design({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 0}})
    {'a': {'x': 1, 'y': 0}, 'b': 3}
    """
    found = dict(design)
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = {**found[name], **value} if both else value
    return found


class Check(NamedTuple):
    """A statement that is true by algebra: a test holds it, and the ledger does not count it."""

    key: str
    statement: str
    source: str
    test: str  # Where it is tested, such as tests/test_song2024.py::test_...
    tolerance: str
    kind: str = "identity"


class Existence(NamedTuple):
    """A statement that something exists, decided by a witness that a checker accepts."""

    key: str
    statement: str
    source: str
    witness: Callable[[], dict[str, Any]]
    """Computes the witness: what was found, and under ``accepted`` whether the checker agrees."""
    checker: str  # What the checker verifies, in words.
    setting: str = "our setting"
    kind: str = "existence"


Statement = Claim | Check | Existence


def make_claim(
    key: str, statement: str, measure: Measure, test: Criterion, *, source: str,
    design: Design | None = None, control: Design | None = None, control_why: str = "",
    controls: Iterable[Control] = (), why: str = "", **more: Any,
) -> Claim:  # fmt: skip
    """A claim, checked: it needs a reason for its limits and a negative control."""
    design = dict(getattr(measure, "design", {}) if design is None else design)
    change = getattr(measure, "changes", dict)
    chosen = (
        *((Control(dict(change(control)), why=control_why),) if control is not None else ()),
        *controls,
    )
    if not any(one.sort == "negative" for one in chosen):
        raise InputError(f"{key}: a claim needs a negative control, such as control={{...}}.")
    if wrong := [one.sort for one in chosen if one.sort not in SORTS]:
        raise InputError(f"{key}: control of sort {wrong[0]!r}; expected {', '.join(SORTS)}.")
    if any(changed_design(design, one.changes) == design for one in chosen):
        raise InputError(f"{key}: a control changes nothing; it must be another experiment.")
    zero = test.rule.for_limit == test.rule.against_limit == 0
    if not why and not zero:
        raise InputError(f"{key}: say in why= where its limits come from.")
    why = why or "the statement has no number, so the limit is 0"
    return Claim(key, statement, source, measure, test, design, chosen, why, **more)
