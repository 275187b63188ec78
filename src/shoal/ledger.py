"""The ledger: claims measured once, kept on disk, and decided by rules fixed in code."""

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shoal
from shoal.claims import Claim, Evidence, Measurement
from shoal.errors import InputError
from shoal.files import read_npz
from shoal.store import plain, versions


class Entry(NamedTuple):
    """A claim with what its test found."""

    claim: Claim
    plan: Any  # at which size it was measured
    evidence: Evidence
    seconds: float  # of the measurement, whenever made; runs shared with earlier claims are free
    kept: bool  # the measurement was found on disk


@functools.cache
def code_version() -> str:
    """A digest of all code that can change a measurement: everything but the edges."""
    root = Path(shoal.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in ("cli", "report"):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def measurement_key(claim: Claim, plan: Any) -> str:
    """Name under which a measurement is kept: claim, plan and the code's version."""
    libraries = {name: n for name, n in versions().items() if name in ("jax", "jaxlib", "numpy")}
    about = json.dumps([claim.key, plan._asdict(), code_version(), libraries], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:32]


def measured(claim: Claim, plan: Any, folder: Path) -> tuple[Measurement, float, bool]:
    """A measurement with its seconds, from disk if it was made before; damaged files are redone."""
    path = folder / f"{measurement_key(claim, plan)}.npz"
    if path.exists():
        try:
            found = dict(read_npz(path))
            seconds, names = float(found.pop("_seconds")), str(found.pop("_names"))
            if names == ",".join(sorted(found)):
                return found, seconds, True
            path.unlink(missing_ok=True)
        except (InputError, KeyError):
            path.unlink(missing_ok=True)
    begun = time.perf_counter()
    made = {name: np.asarray(value) for name, value in claim.measure(plan).items()}
    seconds = time.perf_counter() - begun
    listed = np.asarray(",".join(sorted(made)))
    # a cache that cannot be written is slower, not wrong
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _write_aside(path, made | {"_seconds": np.asarray(seconds), "_names": listed})
    return made, seconds, False


def _write_aside(path: Path, arrays: dict[str, Any]) -> None:
    handle, name = tempfile.mkstemp(prefix=".shoal-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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
