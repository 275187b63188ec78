"""Spending seeds: which experiment is next, and doing it.

Always the claim whose decision is nearest in seconds, its controls first. One without its pilot of
8 seeds is hoped to be sure, that is to need 17. From 24 seeds on a claim without hope is set aside,
and continued only when nothing else is left. What a claim's seeds give does not depend on any of
this: the order decides only how many seeds it gets, and the bets hold for any number.
"""

import math
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from shoal.evidence import rules
from shoal.evidence.spending import BATCH, PILOT
from shoal.lab import ledger
from shoal.lab.claim import Claim
from shoal.lab.ledger import Entry, Json, effects_of, rule_of

SURE = 17
"""Seeds that decide if all of them are on one side."""


class Job(NamedTuple):
    """Some seeds of a claim, or of one of its controls."""

    entry: int  # Its place in the list of entries.
    seeds: tuple[int, ...]
    control: int | None = None


def _registered(entry: Entry) -> float:
    """Seconds that a seed takes, as the registration guesses."""
    return float(entry.registration["seconds_per_seed"])


def seconds_per_seed(entry: Entry) -> float:
    """Seconds that a seed took so far, controls included; before that the registration's guess."""
    result = entry.result
    run = len(result["effects"]) + sum(len(one["effects"]) for one in result["controls"])
    return max(result["log"]["seconds"] / run, 0.01) if run else _registered(entry)


def _control_job(index: int, entry: Entry) -> Job | None:
    """The next seeds of a control that is not finished."""
    rule = rule_of(entry.registration)
    for number, control in enumerate(entry.registration["controls"]):
        effects = effects_of(entry.result, number)
        if rules.control_passed(control["sort"], rule, effects) is None:
            left = rules.control_seeds(rule) - len(rules.counted(rule.for_control(), effects))
            first = ledger.control_seed(entry.registration, number) + len(effects)
            return Job(index, tuple(range(first, first + max(1, min(BATCH, left)))), number)
    return None


def _scored_job(index: int, entry: Entry, count: int) -> Job:
    line, result = entry.registration, entry.result
    first = result["first_seed"] + len(result["effects"])
    room = line["max_seeds"] - len(rules.counted(rule_of(line), effects_of(result)))
    return Job(index, tuple(range(first, first + max(1, min(count, room)))))


def is_full(entry: Entry) -> bool:
    """Whether a claim has used all the seeds that it was registered with."""
    most, effects = entry.registration["max_seeds"], effects_of(entry.result)
    seen = rules.counted(rule_of(entry.registration), effects)
    return len(seen) >= most or len(effects) >= 4 * most


def left(entry: Entry) -> int | None:
    """Seeds until a decision, guessed; None if there is no hope of one."""
    rule, most = rule_of(entry.registration), entry.registration["max_seeds"]
    return rules.seeds_left(rule, effects_of(entry.result), most)


def decided(entries: Sequence[Entry]) -> list[bool]:
    """Which claims need no more seeds."""
    refuted = ledger.rejected_nulls(entries)

    def one(entry: Entry) -> bool:
        name = ledger.name_of(entry.registration)
        if entry.exploratory:
            return left(entry) == 0
        return bool(entry.result["violations"]) or any((*name, s) in refuted for s in SIDES)

    return [one(entry) for entry in entries]


SIDES = ("for", "against")


def next_job(
    entries: Sequence[Entry], *, skip: Collection[int] = (), by_clock: bool = False
) -> Job | None:
    """What to run next; None if nothing is left besides the entries to skip.

    Costs are those of registrations, so that the order is reproducible, or (``by_clock``) measured.
    """
    cost = seconds_per_seed if by_clock else _registered
    open_ = [
        (index, entry)
        for index, (entry, done) in enumerate(zip(entries, decided(entries), strict=True))
        if index not in skip
        if entry.claim is not None and not entry.superseded_by and not entry.result["stale"]
        if not entry.claim.waits
        if not (done and ledger.controls_state(entry.registration, entry.result) is not None)
        if ledger.controls_state(entry.registration, entry.result) is not False
    ]
    near = [
        (seeds * cost(entry), entry.registration["claim"], index)
        for index, entry in open_
        if (seeds := _seeds_wanted(entry)) is not None
    ]
    if near:
        index = min(near)[2]
        return _job(index, entries[index])
    aside = [(_registered(e), e.registration["claim"], k) for k, e in open_ if not is_full(e)]
    return _scored_job(min(aside)[2], entries[min(aside)[2]], BATCH) if aside else None


def _seeds_wanted(entry: Entry) -> int | None:
    """Seeds until a decision, controls included; before its pilot a claim is hoped to be sure."""
    unfinished = sum(
        rules.control_passed(control["sort"], rule_of(entry.registration),
                             effects_of(entry.result, number)) is None
        for number, control in enumerate(entry.registration["controls"])
    )  # fmt: skip
    run = len(entry.result["effects"])
    seeds = left(entry) if run >= PILOT else SURE - run
    if seeds is None or is_full(entry):
        return PILOT * unfinished or None
    return PILOT * unfinished + seeds


def _job(index: int, entry: Entry) -> Job:
    """The next seeds of a claim: of its controls, of its pilot, or towards a decision."""
    if (job := _control_job(index, entry)) is not None:
        return job
    if (run := len(entry.result["effects"])) < PILOT:
        return _scored_job(index, entry, PILOT - run)
    seeds = left(entry) or BATCH
    # every size of a batch is compiled anew, so a small rest is not left over
    return _scored_job(index, entry, seeds if seeds <= 12 else BATCH)


def measured(claim: Claim, seeds: Sequence[int], control: int | None = None) -> Json:
    """Run some seeds of a claim, or of one of its controls: effects, violations and seconds."""
    begun = time.perf_counter()
    effects = claim.effects(seeds, None if control is None else claim.controls[control].changes)
    violations: list[int] = []
    if control is None and claim.test.rule.every and claim.verify is not None:
        limit = claim.test.rule.against_limit
        seen = zip(seeds, effects, strict=True)
        suspects = [seed for seed, e in seen if e is not None and e.value[1] < limit]
        violations = [seed for seed in suspects if claim.verify(claim.design, seed)]
    return {"effects": [ledger.effect_json(e) for e in effects], "violations": violations,
            "seconds": time.perf_counter() - begun}  # fmt: skip


def with_measured(entry: Entry, job: Job, found: Json, *, code: str, date: str) -> Json:
    """The result of an entry with the seeds of a job added."""
    effects = [ledger.effect_of(one) for one in found["effects"]]
    result = ledger.with_effects(entry.result, effects, job.control)
    dates = list(dict.fromkeys([*result["log"]["dates"], date]))
    log = {"dates": dates, "seconds": round(result["log"]["seconds"] + found["seconds"], 2)}
    violations = result["violations"] + found["violations"]
    return result | {"violations": violations, "code": _with_code(result, code), "log": log}


def perform(entry: Entry, job: Job, *, code: str, date: str) -> Json:
    """Run a job in this process; the result with its seeds added."""
    if entry.claim is None:
        raise ValueError(f"{entry.registration['claim']}: the code no longer has this claim.")
    found = measured(entry.claim, job.seeds, job.control)
    return with_measured(entry, job, found, code=code, date=date)


def _with_code(result: Json, code: str) -> list[str]:
    return result["code"] if code in result["code"] else [*result["code"], code]


def replay_job(index: int, entry: Entry) -> Job:
    """The first two scored seeds once more."""
    first, count = entry.result["first_seed"], min(2, len(entry.result["effects"]))
    return Job(index, tuple(range(first, first + count)))


def replayed(entry: Entry, found: Json, *, code: str, date: str) -> Json:
    """A result whose first seeds were recomputed: it stands, or becomes stale."""
    result, effects = entry.result, effects_of(entry.result)
    again = [ledger.effect_of(one) for one in found["effects"]]
    before = effects[: len(again)]
    if ledger.stale(before, again, ledger.spread_of(effects)):
        was = [ledger.effect_json(e) for e in before]
        return result | {"stale": {"code": code, "date": date, "was": was, "now": found["effects"]}}
    return result | {"code": _with_code(result, code)}


def replay(entry: Entry, *, code: str, date: str) -> Json:
    """Recompute the first two scored seeds in this process."""
    if entry.claim is None or not entry.result["effects"]:
        return entry.result
    found = measured(entry.claim, replay_job(0, entry).seeds)
    return replayed(entry, found, code=code, date=date)


def replica_verdict(entry: Entry) -> str:
    """What a replica says by itself: supported, contradicted or undecided."""
    found = rules.tally(rule_of(entry.registration), effects_of(entry.result))
    if entry.result["violations"] or found.against_max >= ledger.family.FIRST_THRESHOLD:
        return "contradicted"
    return "supported" if found.for_max >= ledger.family.FIRST_THRESHOLD else "undecided"


def cost_left(entries: Sequence[Entry]) -> float:
    """Seconds until all claims that can be decided are, guessed from registered costs."""
    total = 0.0
    for entry, done in zip(entries, decided(entries), strict=True):
        seeds = None if done or is_full(entry) else left(entry)
        state = ledger.controls_state(entry.registration, entry.result)
        extra = 8 * len(entry.registration["controls"]) if state is None else 0
        waits = entry.claim is None or bool(entry.claim.waits)
        if state is not False and not entry.superseded_by and not waits:
            total += ((seeds or 0) + extra) * seconds_per_seed(entry)
    return total


def likely_next(entries: Sequence[Entry], seconds: float) -> list[str]:
    """Claims that the next so many seconds would most likely decide, nearest first."""
    hopes: list[tuple[float, str]] = []
    for entry, done in zip(entries, decided(entries), strict=True):
        seeds = None if done or is_full(entry) else left(entry)
        state = ledger.controls_state(entry.registration, entry.result)
        waits = entry.claim is None or bool(entry.claim.waits)
        if seeds is not None and not entry.superseded_by and state is not False and not waits:
            hopes.append((seeds * seconds_per_seed(entry), entry.registration["claim"]))
    chosen, total = [], 0.0
    for cost, key in sorted(hopes):
        total += cost
        if total > seconds:
            break
        chosen.append(key)
    return chosen


def budget_seconds(text: str) -> float:
    """Seconds from words such as ``30m``, ``45s`` or ``2h``.

    >>> budget_seconds("30m"), budget_seconds("90")
    (1800.0, 90.0)
    """
    from shoal.errors import InputError

    units: dict[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"--budget {text}: expected a time such as 30m, 90s or 2h.")
    return seconds
