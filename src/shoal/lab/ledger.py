"""The ledger: registrations, results, and the records that follow from them.

A *registration* is the frozen form of a claim, one line of an append-only file, with a digest of
its own and that of the line before. A *result* holds the effects of its seeds in order, and those
of its controls. No verdict is stored: records compute it, over the whole ledger at once.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import InputError
from shoal.evidence import betting, family, rules, sequences
from shoal.evidence.rules import WINDOWS, Effect, Rule
from shoal.lab.claim import Claim, Criterion, quantifier

Json = dict[str, Any]

ROUND, SCORED, REPLICAS, NEGATIVE, POSITIVE = 10_000, 5000, 2500, 5000, 7500
"""Seeds: round v scores from 10000 v on; replicas, negative and positive controls from there."""
TUNING = tuple(range(9000, 9016))
"""Seeds on which steps and scales are tuned; 0 to 8999 are exploratory."""
UNDIGESTED = ("date", "seconds_per_seed", "previous", "digest")


# ----------------------------------------------------------------------------------- registration


def number_text(value: float) -> str:
    """A number as registrations write it.

    >>> number_text(0.0), number_text(0.05), number_text(-math.inf)
    ('0', '0.05', '-inf')
    """
    value = float(value)
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)


def canonical(value: Any) -> Any:
    """Plain data in which numbers that are not integers are strings."""
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return canonical(value.tolist())
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Fraction):
        return str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise InputError(f"a design holds {value!r}; expected numbers, words, lists or dictionaries.")


def digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of a registration without its date, cost and place in the chain."""
    kept = {k: v for k, v in fields.items() if k not in UNDIGESTED}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def frozen_fields(claim: Claim) -> Json:
    """What a registration says of a claim: any change of it is a new version."""
    test, rule = claim.test, claim.test.rule
    window = [number_text(rule.for_limit), number_text(rule.against_limit)]
    sign = "" if test.sign > 0 else "minus "
    said: Json = {
        "claim": claim.key,
        "version": claim.version,
        "statement": claim.statement,
        "provenance": claim.source,
        "quantifier": {"share": "all" if rule.every else str(rule.share),
                       "words": quantifier(rule)},
        "assumptions": list(claim.assumptions),
        "kind": rule.kind,
        "statistic": {"effect": sign + test.effect, "sign": test.sign},
        "for": window if rule.kind in WINDOWS else window[0],
        "against": window if rule.kind in WINDOWS else window[1],
        "why": claim.why,
        "ties": rule.ties,
        "premise": claim.premise or None,
        "population": "weights on one fixed problem" if claim.fixed_problem
                      else "data, weights and batches",
        "design": {"setting": claim.setting} | canonical(claim.design),
        "max_seeds": claim.max_seeds,
        "controls": [{"sort": c.sort, "changes": canonical(c.changes), "why": c.why}
                     for c in claim.controls],
    }  # fmt: skip
    return said


def new_registration(
    claim: Claim, *, place: int, round_number: int, date: str, previous: str
) -> Json:
    """A line for the file of registrations."""
    if place >= family.PLACES:
        msg = f"all {family.PLACES} places are taken; open a second ledger with a level of its own."
        raise InputError(msg)
    first = ROUND * round_number
    fields = {"place": place} | frozen_fields(claim) | {"seeds": [first, first + SCORED - 1]}
    more = {"seconds_per_seed": number_text(claim.seconds), "date": date, "previous": previous}
    return fields | more | {"digest": digest(fields)}


def line_digest(line: str) -> str:
    """What the next line calls ``previous``."""
    return hashlib.sha256(line.encode()).hexdigest()


def check_chain(lines: Sequence[str]) -> list[Json]:
    """Registrations from their lines; refuses a file in which anything was changed."""
    found, previous = [], line_digest("")
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            kept = entry["digest"], entry["previous"], entry["place"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"line {number + 1} of the registrations cannot be read.") from None
        if kept != (digest(entry), previous, number):
            msg = f"line {number + 1} of the registrations ({entry.get('claim')}) was changed "
            raise InputError(f"{msg}after it was written; restore the file from version control.")
        found.append(entry)
        previous = line_digest(line)
    return found


def rule_of(registration: Json) -> Rule:
    """The rule of a registration, as it was frozen."""
    share, ends = registration["quantifier"]["share"], registration["for"]
    low, high = ends if isinstance(ends, list) else (ends, registration["against"])
    every = share == "all"
    how = (rules.HALF if every else Fraction(share), every, registration["ties"])
    return Rule(registration["kind"], float(low), float(high), *how)


def criterion_of(registration: Json) -> Criterion:
    """Rule, effect and sign of a registration, as frozen."""
    said = registration["statistic"]
    effect = said["effect"] if said["sign"] > 0 else said["effect"].removeprefix("minus ")
    return Criterion(rule_of(registration), effect, said["sign"])


def differences(claim: Claim, registration: Json) -> list[str]:
    """Names of the frozen fields in which a claim differs from its registration."""
    now = frozen_fields(claim)
    return [name for name, value in now.items() if registration.get(name) != value]


def require_frozen(claim: Claim, registration: Json) -> None:
    """Refuse a claim that is not what was registered."""
    if changed := differences(claim, registration):
        name = changed[0]
        was, now = registration.get(name), frozen_fields(claim)[name]
        msg = f"{claim.key} differs from its registration in {', '.join(changed)} ({name} was "
        msg += f"{was!r}, is {now!r}): set version={registration['version'] + 1}, say why in "
        raise InputError(f"{msg}changed=, and freeze it: shoal claims freeze {claim.key}.")


def next_version(claim: Claim, latest: Json | None) -> bool:
    """Whether a claim must be frozen; refuses a change without a new version."""
    if latest is None:
        return True
    if claim.version == latest["version"]:
        require_frozen(claim, latest)
        return False
    if claim.version != latest["version"] + 1:
        msg = f"{claim.key} is version {claim.version}, registered is {latest['version']}; "
        raise InputError(f"{msg}the next is {latest['version'] + 1}.")
    if not claim.changed:
        raise InputError(f"{claim.key}: say in changed= why version {claim.version} is needed.")
    return True


# ----------------------------------------------------------------------------------------- results


def empty_result(key: str, version: int, digest: str, first: int) -> Json:
    """A result without seeds."""
    return {"claim": key, "version": version, "digest": digest, "first_seed": first,
            "effects": [], "controls": [], "violations": [], "code": [], "stale": None,
            "log": {"dates": [], "seconds": 0.0}}  # fmt: skip


def effect_json(effect: Effect | None) -> list[Any]:
    """[lo, hi], with the bend's two numbers for a scaling; nulls for a seed that abstains."""
    if effect is None:
        return [None, None]
    bend = [] if effect.bend == sequences.EVERYWHERE else list(effect.bend)
    return [*effect.value, *bend]


def effect_of(stored: Sequence[Any]) -> Effect | None:
    """An effect as it is stored."""
    if stored[0] is None:
        return None
    lo, hi, *bend = (float(x) for x in stored)
    return Effect((lo, hi), (bend[0], bend[1]) if bend else sequences.EVERYWHERE)


def effects_of(result: Json, control: int | None = None) -> list[Effect | None]:
    """Effects of a result, or of one of its controls, in the order of seeds."""
    stored = result["effects"] if control is None else _control(result, control)
    return [effect_of(one) for one in stored]


def _control(result: Json, number: int) -> list[Any]:
    kept = result["controls"]
    return kept[number]["effects"] if number < len(kept) else []


def with_effects(result: Json, effects: Sequence[Effect | None], control: int | None) -> Json:
    """A result with more seeds."""
    stored = [effect_json(effect) for effect in effects]
    if control is None:
        return result | {"effects": result["effects"] + stored}
    kept = [dict(one) for one in result["controls"]]
    kept += [{"effects": []} for _ in range(control + 1 - len(kept))]
    kept[control] = {"effects": kept[control]["effects"] + stored}
    return result | {"controls": kept}


def control_seed(registration: Json, number: int) -> int:
    """The first seed of a control; each has 500 of the 2500 seeds of its sort."""
    sort = registration["controls"][number]["sort"]
    offset = POSITIVE if sort == "positive" else NEGATIVE
    before = [c["sort"] == "positive" for c in registration["controls"][:number]]
    return registration["seeds"][0] + offset + 500 * sum(b == (sort == "positive") for b in before)


def controls_state(registration: Json, result: Json) -> bool | None:
    """Whether all controls passed; None while some are not finished."""
    rule, states = rule_of(registration), []
    for number, control in enumerate(registration["controls"]):
        states.append(rules.control_passed(control["sort"], rule, effects_of(result, number)))
    return False if False in states else None if None in states else True


def stale(old: Sequence[Effect | None], new: Sequence[Effect | None], spread: float) -> bool:
    """Whether recomputed effects differ by more than 1 % of the effects' spread."""
    allowed = 0.01 * spread if spread > 0 else 1e-9

    def far(a: float, b: float) -> bool:
        return a != b and not abs(a - b) <= allowed

    for a, b in zip(old, new, strict=True):
        if a is None or b is None:
            if a is not b:
                return True
        elif any(far(x, y) for x, y in zip((*a.value, *a.bend), (*b.value, *b.bend), strict=True)):
            return True
    return False


def spread_of(effects: Sequence[Effect | None]) -> float:
    """Median absolute deviation of the effects that are numbers."""
    values = [e.value[0] for e in effects if e is not None and math.isfinite(sum(e.value))]
    if not values:
        return 0.0
    middle = statistics.median(values)
    return statistics.median(abs(v - middle) for v in values)


# ----------------------------------------------------------------------------------------- records


class Entry(NamedTuple):
    """A registration with its result; ``claim`` is None if the code no longer has it."""

    registration: Json
    result: Json
    claim: Claim | None
    superseded_by: int | None = None
    exploratory: bool = False  # Not registered: shown without a verdict, outside the family.


def name_of(registration: Json) -> tuple[str, int]:
    """Key and version."""
    return registration["claim"], registration["version"]


def rejected_nulls(entries: Sequence[Entry]) -> set[tuple[str, int, str]]:
    """The nulls that the ledger rejects, all of its entries together (shown or not)."""
    nulls: dict[tuple[str, int, str], tuple[Fraction, int]] = {}
    for entry in entries:
        if entry.exploratory:
            continue
        found = rules.tally(rule_of(entry.registration), effects_of(entry.result))
        number = entry.registration["seeds"][0] // ROUND
        for side, e in (("for", found.for_max), ("against", found.against_max)):
            nulls[(*name_of(entry.registration), side)] = (e, number)
    return family.rejected(nulls)


def records(entries: Sequence[Entry]) -> list[Json]:
    """A record for every entry, with the verdict over the whole ledger."""
    refuted = rejected_nulls(entries)
    return [record(entry, refuted) for entry in entries]


def record(entry: Entry, refuted: set[tuple[str, int, str]]) -> Json:
    """All that is known of a claim, as the pages show it."""
    line, result, claim = entry.registration, entry.result, entry.claim
    rule, test, effects = rule_of(line), criterion_of(line), effects_of(result)
    name, seen = name_of(line), [e.value for e in rules.counted(rule, effects)]
    found = rules.tally(rule, effects)
    shown = sequences.median_sequence(seen)
    wide = sequences.median_sequence(seen, sequences.LEDGER)
    last, last_wide = (s[-1] if s else sequences.EVERYWHERE for s in (shown, wide))
    verdict = rules.verdict(
        rule, effects, refuted_for=(*name, "for") in refuted,
        refuted_against=(*name, "against") in refuted, violated=bool(result["violations"]),
        controls_passed=controls_state(line, result), sequence=last, most=line["max_seeds"],
    )  # fmt: skip
    status = "superseded" if entry.superseded_by else "stale" if result["stale"] else "current"
    if entry.exploratory:
        status, verdict = "exploratory", rules.Verdict("exploratory")
    level = f"family-wise 5 % over {family.NULLS} hypotheses"
    return {
        "claim": line["claim"], "version": line["version"], "place": line["place"],
        "status": status, "superseded_by": entry.superseded_by,
        "statement": line["statement"], "provenance": line["provenance"],
        "quantifier": line["quantifier"], "assumptions": line["assumptions"],
        "population": line["population"], "setting": line["design"], "kind": line["kind"],
        "effect": test.effect, "rule": test.sentence, "sign": test.sign,
        "for": line["for"], "against": line["against"], "why": line["why"],
        "ties": line["ties"], "premise": line["premise"],
        "registration": {k: line[k] for k in ("digest", "date", "seeds", "max_seeds")},
        "code": result["code"], "stale": result["stale"],
        "seeds": {"counted": found.counted, "abstained": found.abstained, "above": found.above,
                  "below": found.below, "unknown": found.unknown},
        "effects": result["effects"],
        "e": {"for": as_float(found.for_now), "for_max": as_float(found.for_max),
              "against": as_float(found.against_now), "against_max": as_float(found.against_max),
              "threshold": family.FIRST_THRESHOLD},
        "p": {"for": betting.p_value(found.for_max), "against": betting.p_value(found.against_max)},
        "paths": {"for": [as_float(e) for e in found.e_for],
                  "against": [as_float(e) for e in found.e_against], "median": shown},
        "median": _median(seen),
        "sequence": {"median": last, "level": 0.95, "median_ledger": last_wide,
                     "share_above": _share_above(rule, seen)},
        "verdict": {"word": verdict.word, "level": level, "reason": verdict.reason or None},
        "bent": rule.kind == "scaling" and bool(effects) and rules.bend_is_refuted(rule, effects),
        "controls": [_control_record(line, result, k) for k in range(len(line["controls"]))],
        "same_runs": list(claim.same_runs) if claim else [],
        "waits": claim.waits if claim else "",
        "differs": claim.differs if claim else "", "changed": claim.changed if claim else "",
        "cost": {"seconds": result["log"]["seconds"],
                 "seconds_per_seed": float(line["seconds_per_seed"])},
    }  # fmt: skip


def _median(seen: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The sample's median, as far as it is known."""
    if not seen:
        return None
    low, high = (statistics.median(side) for side in zip(*seen, strict=True))
    return rules.known((low, high))


def as_float(e: Fraction) -> float:
    """An e-value as a float; infinite if it is beyond the floats."""
    try:
        return float(e)
    except OverflowError:
        return math.inf


def _share_above(rule: Rule, seen: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    return None if rule.kind in WINDOWS else sequences.share_sequence(seen, rule.for_limit)


def _control_record(line: Json, result: Json, number: int) -> Json:
    control, effects, rule = line["controls"][number], effects_of(result, number), rule_of(line)
    found = rules.tally(rule.for_control(), effects)
    e = {"negative": found.against_max, "positive": found.for_max}
    return control | {
        "seeds": found.counted, "above": found.above, "below": found.below,
        "e": as_float(e.get(control["sort"], max(found.for_max, found.against_max))),
        "effects": [effect_json(x) for x in effects],
        "passed": rules.control_passed(control["sort"], rule, effects),
    }  # fmt: skip
