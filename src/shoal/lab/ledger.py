"""The ledger: claims measured once, kept on disk, and decided by rules fixed in code."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from shoal.jsons import plain
from shoal.lab.claim import Claim, Evidence, Plan


class Entry(NamedTuple):
    """A claim with what its test found."""

    claim: Claim
    plan: Plan  # The size at which it was measured.
    evidence: Evidence
    seconds: float  # Of the measurement, whenever made; runs shared with earlier claims are free.
    cached: bool  # The measurement was found on disk.


def about(claim: Claim, plan: Plan) -> list:
    """What decides a measurement, with the code's version."""
    return [claim.key, plain(plan)]


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry as ``shoal claims --json`` lists it."""
    claim, found = entry.claim, entry.evidence
    return {
        "id": claim.key,
        "statement": claim.statement,
        "source": claim.source,
        "setting": f"{claim.setting}: {_sizes(entry.plan)}",
        "rule": claim.rule.sentence,
        "effect": found.effect,
        "interval": [found.low, found.high],
        "meaning": found.meaning,
        "runs": found.runs,
        "verdict": str(found.ruling),
        "sentence": found.sentence,
        "seconds": round(entry.seconds, 2),
    }


def _sizes(plan: Plan) -> str:
    """The sizes that differ from the defaults."""
    usual = Plan()._asdict()
    fields = plan._asdict().items()
    shown = {k: v for k, v in fields if k not in ("control", "minutes") and v != usual[k]}
    return ", ".join(f"{k}={v}" for k, v in ({"seeds": plan.seeds} | shown).items())


def ledger_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """A whole ledger, evidence plots included, as it is kept in ledger.json."""
    return [plain(entry_json(e) | {"panel": e.evidence.panel}) for e in entries]
