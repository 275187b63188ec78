"""Spending seeds: which experiment is next, and doing it.

Controls come before a claim's pilot of 8 seeds, cheap claims first. Then always the claim whose
decision is nearest in seconds. From 24 seeds on a claim without hope is set aside, and continued
only when nothing else is left. What a claim's seeds give does not depend on any of this: the order
decides only how many seeds it gets, and the bets hold for any number.
"""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from shoal.evidence import rules
from shoal.evidence.spending import BATCH, PILOT
from shoal.lab import ledger
from shoal.lab.ledger import Entry, Json, effects_of, rule_of


class Job(NamedTuple):
    """Some seeds of a claim, or of one of its controls."""

    entry: int  # Its place in the list of entries.
    seeds: tuple[int, ...]
    control: int | None = None


def _seconds(entry: Entry) -> tuple[float, str]:
    return float(entry.registration["seconds_per_seed"]), entry.registration["claim"]


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


def next_job(entries: Sequence[Entry]) -> Job | None:
    """What to run next; None if nothing is left."""
    open_ = [
        (index, entry)
        for index, (entry, done) in enumerate(zip(entries, decided(entries), strict=True))
        if entry.claim is not None and not entry.superseded_by and not entry.result["stale"]
        if not entry.claim.waits
        if not (done and ledger.controls_state(entry.registration, entry.result) is not None)
        if ledger.controls_state(entry.registration, entry.result) is not False
    ]
    open_.sort(key=lambda pair: _seconds(pair[1]))
    for index, entry in open_:
        if (job := _control_job(index, entry)) is not None:
            return job
        if len(entry.result["effects"]) < PILOT:
            return _scored_job(index, entry, PILOT - len(entry.result["effects"]))
    open_ = [(index, entry) for index, entry in open_ if not is_full(entry)]
    hopes = [(left(entry), index, entry) for index, entry in open_]
    near = [
        (seeds * _seconds(entry)[0], entry.registration["claim"], index, seeds)
        for seeds, index, entry in hopes
        if seeds is not None
    ]
    if near:
        _, _, index, seeds = min(near)
        return _scored_job(index, entries[index], min(max(seeds, 1), BATCH))
    return _scored_job(open_[0][0], open_[0][1], BATCH) if open_ else None  # those set aside


def perform(entry: Entry, job: Job, *, code: str, date: str) -> Json:
    """Run a job; the result with its seeds added."""
    claim = entry.claim
    if claim is None:
        raise ValueError(f"{entry.registration['claim']}: the code no longer has this claim.")
    begun = time.perf_counter()
    changes = None if job.control is None else claim.controls[job.control].changes
    effects = claim.effects(job.seeds, changes)
    result = ledger.with_effects(entry.result, effects, job.control)
    if job.control is None and claim.test.rule.every and claim.verify is not None:
        limit = claim.test.rule.against_limit
        seen = zip(job.seeds, effects, strict=True)
        suspects = [seed for seed, e in seen if e is not None and e.value[1] < limit]
        confirmed = [seed for seed in suspects if claim.verify(claim.design, seed)]
        result = result | {"violations": result["violations"] + confirmed}
    seconds = result["log"]["seconds"] + time.perf_counter() - begun
    dates = list(dict.fromkeys([*result["log"]["dates"], date]))
    known = result["code"] if code in result["code"] else [*result["code"], code]
    return result | {"code": known, "log": {"dates": dates, "seconds": round(seconds, 2)}}


def replay(entry: Entry, *, code: str, date: str) -> Json:
    """Recompute the first two scored seeds: the result stands, or becomes stale."""
    claim, result = entry.claim, entry.result
    effects = effects_of(result)
    count = min(2, len(effects))
    if claim is None or count == 0:
        return result
    first = result["first_seed"]
    again = claim.effects(range(first, first + count))
    if ledger.stale(effects[:count], again, ledger.spread_of(effects)):
        was, now = ([ledger.effect_json(e) for e in some] for some in (effects[:count], again))
        return result | {"stale": {"code": code, "date": date, "was": was, "now": now}}
    known = result["code"] if code in result["code"] else [*result["code"], code]
    return result | {"code": known}


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
            total += ((seeds or 0) + extra) * _seconds(entry)[0]
    return total


def likely_next(entries: Sequence[Entry], seconds: float) -> list[str]:
    """Claims that the next so many seconds would most likely decide, nearest first."""
    hopes: list[tuple[float, str]] = []
    for entry, done in zip(entries, decided(entries), strict=True):
        seeds = None if done or is_full(entry) else left(entry)
        state = ledger.controls_state(entry.registration, entry.result)
        waits = entry.claim is None or bool(entry.claim.waits)
        if seeds is not None and not entry.superseded_by and state is not False and not waits:
            hopes.append((seeds * _seconds(entry)[0], entry.registration["claim"]))
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
