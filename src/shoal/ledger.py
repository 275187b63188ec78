"""The ledger: claims measured once, kept on disk, and decided by rules fixed in code."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from shoal.claims import Claim, Evidence
from shoal.keeping import Kept, kept
from shoal.store import plain


class Entry(NamedTuple):
    """A claim with what its test found."""

    claim: Claim
    plan: Any  # at which size it was measured
    evidence: Evidence
    seconds: float  # of the measurement, whenever made; runs shared with earlier claims are free
    kept: bool  # the measurement was found on disk


def about(claim: Claim, plan: Any) -> list:
    """What decides a measurement, with the code's version (`keeping.kept`)."""
    return [claim.key, plan._asdict()]


def measured(claim: Claim, plan: Any, folder: Path) -> Kept:
    """A claim's measurement, from disk if it was made before."""
    return kept(about(claim, plan), lambda: claim.measure(plan), folder)


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry as ``shoal claims --json`` lists it."""
    claim, found = entry.claim, entry.evidence
    return {
        "id": claim.key,
        "statement": claim.statement,
        "source": claim.source,
        "setting": f"{claim.setting}: {_sizes(entry.plan)}",
        "rule": claim.rule,
        "effect": found.effect,
        "interval": [found.low, found.high],
        "meaning": found.meaning,
        "runs": found.runs,
        "verdict": str(found.ruling),
        "sentence": found.sentence,
        "seconds": round(entry.seconds, 2),
    }


def _sizes(plan: Any) -> str:
    fields = plan._asdict().items()
    return ", ".join(f"{k}={v}" for k, v in fields if k != "plant")


def ledger_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """A whole ledger, evidence plots included, as it is kept in ledger.json."""
    return [plain(entry_json(e) | {"panel": e.evidence.panel}) for e in entries]
