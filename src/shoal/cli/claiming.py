"""``claims``: freeze, spend seeds, replicate, replay, list, and show."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from shoal import console
from shoal.cli.commands import answer
from shoal.disk import ledger as folders
from shoal.disk.cache import cached, code_version
from shoal.disk.ledger import LedgerFolder
from shoal.disk.runs import require_folder, write_whole
from shoal.errors import InputError, nearest
from shoal.lab import ledger as books
from shoal.lab import spending
from shoal.lab.claim import Check, Claim, Statement
from shoal.lab.ledger import Entry, Json
from shoal.pages import ledger as pages
from shoal.papers import PAPERS, paper_of, split_target

FREEZE = "freeze"


def wanted(names: Sequence[str]) -> list[Statement]:
    """Claims by the name of a paper or their own; all, if none is named."""
    chosen: dict[str, Statement] = {}
    for name in names or PAPERS:
        target, part = split_target(name)
        paper = paper_of(target)
        mine = {c.key: c for c in paper.claims if not part or c.key == f"{paper.key}.{part}"}
        if names and not mine:
            known = [c.key.removeprefix(f"{paper.key}.") for c in paper.claims]
            raise InputError(f"{target} has no claim {part!r}; {nearest(part, known)}")
        chosen |= mine
    return list(chosen.values())


def claims(
    *names: str, until_decided: bool, budget: str, seeds: int | None, replicate: bool,
    replay: bool, ledger: Path, out: Path | None, markdown: Path | None, json: bool,
) -> None:  # fmt: skip
    """``shoal claims``."""
    if names[:1] == (FREEZE,):
        _freeze(names[1:], ledger, json=json)
        return
    chosen, folder = wanted(names), LedgerFolder(ledger)
    if out is not None:
        require_folder(out)
    seconds = spending.budget_seconds(budget) if budget else math.inf
    if (budget or seeds is not None) and not (until_decided or replicate):
        raise InputError("--budget and --seeds belong to --until-decided (or --replicate).")
    if until_decided or replicate or replay:
        with folder:
            entries = entries_of(folder, _only_claims(chosen))
            if replay or until_decided:
                entries = _replay_changed(folder, entries, every=replay)
            if until_decided:
                _spend(folder, entries, seconds, seeds)
            if replicate:
                _replicate(folder, entries, seconds, seeds)
    records, others = _read(folder, chosen)
    if out is not None:
        pages.write_pages(out, records, others, write_whole)
    if markdown is not None:
        write_whole(markdown, pages.markdown(records, others).encode())
    if json:
        answer(_json(records, others), json=True)
    elif len(records) + len(others) == 1:
        answer(None, pages.story(records[0]) if records else pages.told(others[0]), json=False)
    else:
        answer(None, [_table(records, others)], _cost(folder, chosen, until_decided), json=False)


# ------------------------------------------------------------------------------------ what is there


def _only_claims(chosen: Sequence[Statement]) -> list[Claim]:
    return [claim for claim in chosen if isinstance(claim, Claim)]


def entries_of(folder: LedgerFolder, claims: Sequence[Claim]) -> list[Entry]:
    """All registrations with their results, and claims that are not registered, as exploratory.

    Registrations of other claims are there too, since a verdict is about the whole ledger; they
    have no claim, so nothing is run for them.
    """
    lines, by_key = folder.registrations(), {claim.key: claim for claim in claims}
    latest = {line["claim"]: line["version"] for line in lines}
    entries = []
    for line in lines:
        key, version = books.name_of(line)
        result = folder.result(folders.SCORED, key, version, line["digest"], line["seeds"][0])
        claim = by_key.get(key)
        newest = version == latest[key]
        if claim is not None and newest and claim.version == version:
            books.require_frozen(claim, line)
        mine = claim if newest and claim is not None and claim.version == version else None
        entries.append(Entry(line, result, mine, None if newest else version + 1))
    for claim in claims:
        if claim.key not in latest or claim.version != latest[claim.key]:
            entries.append(_exploratory(folder, claim))
    return entries


def _exploratory(folder: LedgerFolder, claim: Claim) -> Entry:
    line = books.new_registration(claim, place=0, round_number=0, date="", previous="")
    try:
        result = folder.result(
            folders.EXPLORATORY, claim.key, claim.version, line["digest"], line["seeds"][0]
        )
    except InputError:  # the claim was changed, which it may be as long as it is not frozen
        result = books.empty_result(claim.key, claim.version, line["digest"], line["seeds"][0])
    return Entry(line, result, claim, exploratory=True)


def _read(folder: LedgerFolder, chosen: Sequence[Statement]) -> tuple[list[Json], list[Any]]:
    """Records of the chosen claims (all their versions), and statements of other kinds."""
    keys = {claim.key for claim in chosen}
    entries = entries_of(folder, _only_claims(chosen))
    made = zip(entries, books.records(entries), strict=True)
    records = [r | {"replica": _replica(folder, e)} for e, r in made if r["claim"] in keys]
    return records, [c for c in chosen if not isinstance(c, Claim)]


def _replica(folder: LedgerFolder, entry: Entry) -> Json | None:
    """What the seeds of a repetition say by themselves, if there are any."""
    if entry.exploratory or not (kept := _kept_replica(folder, entry))["effects"]:
        return None
    alone = entry._replace(result=kept)
    found = books.rules.tally(books.rule_of(entry.registration), books.effects_of(kept))
    e = {"for": books.as_float(found.for_max), "against": books.as_float(found.against_max)}
    word = spending.replica_verdict(alone)
    return {"word": word, "counted": found.counted, "above": found.above, "below": found.below,
            "e": e, "first_seed": kept["first_seed"]}  # fmt: skip


def _kept_replica(folder: LedgerFolder, entry: Entry) -> Json:
    line = entry.registration
    first = line["seeds"][0] + books.REPLICAS
    return folder.result(folders.REPLICAS, *books.name_of(line), line["digest"], first)


def _json(records: list[Json], others: Sequence[Any]) -> list[Json]:
    listed = [
        {"claim": o.key, "statement": o.statement, "provenance": o.source, "kind": o.kind}
        for o in others
    ]
    return [{k: v for k, v in r.items() if k != "paths"} for r in records] + listed


def explored(claim: Claim, count: int = 8) -> Json:
    """The record of a claim on its first exploratory seeds, without controls; kept on disk."""
    line = books.new_registration(claim, place=0, round_number=0, date="", previous="")
    about = ["explored", line["digest"], count]
    found = cached(about, lambda: {"effects": _arrays(claim.effects(range(count)))}).arrays
    result = books.empty_result(claim.key, claim.version, line["digest"], 0)
    effects = [[None, None] if np.isnan(row[0]) else row.tolist() for row in found["effects"]]
    entry = Entry(line, result | {"effects": effects}, claim, exploratory=True)
    return books.record(entry, set())


def _arrays(effects: Sequence[Any]) -> Any:
    return np.array([(np.nan, np.nan) if e is None else e.value for e in effects], float)


# ---------------------------------------------------------------------------------------- freezing


def _freeze(names: Sequence[str], where: Path, *, json: bool) -> None:
    """``shoal claims freeze``: append the chosen claims to the registrations."""
    if not names:
        raise InputError("name the claims or papers to freeze: shoal claims freeze qin2025.")
    date, added = time.strftime("%Y-%m-%d", time.gmtime()), []
    with LedgerFolder(where) as folder:
        for claim in _only_claims(wanted(names)):
            if claim.waits:
                console.note(f"{claim.key} is not registered: {claim.waits}.")
                continue
            lines = folder.registrations()
            mine = [line for line in lines if line["claim"] == claim.key]
            if not books.next_version(claim, mine[-1] if mine else None):
                continue
            used = folder.rounds_with_seeds()
            newest = max((line["seeds"][0] // books.ROUND for line in lines), default=1)
            number = newest + 1 if newest in used else newest
            line = books.new_registration(
                claim, place=len(lines), round_number=number, date=date,
                previous=folder.last_digest(),
            )  # fmt: skip
            folder.append(line)
            added.append(line)
    head = ("place", "claim", "version", "round", "digest")
    rows = [
        (str(a["place"]), escape(a["claim"]), str(a["version"]),
         str(a["seeds"][0] // books.ROUND), a["digest"][:12])
        for a in added
    ]  # fmt: skip
    parts = [console.table(*head, rows=rows)] if rows else ["Nothing to freeze: all as registered."]
    answer(added, parts, f"{where / 'registered.jsonl'}: commit it before any seed is run.",
           json=json)  # fmt: skip


# ---------------------------------------------------------------------------------------- spending


def _code(key: str) -> str:
    paper = key.partition(".")[0]
    return code_version(paper)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _replay_changed(folder: LedgerFolder, entries: list[Entry], *, every: bool) -> list[Entry]:
    """Recompute two seeds of every result that other code has made."""
    found = []
    for entry in entries:
        key = entry.registration["claim"]
        other = every or _code(key) not in entry.result["code"]
        if entry.claim and other and entry.result["effects"] and not entry.exploratory:
            result = spending.replay(entry, code=_code(key), date=_today())
            if result != entry.result:
                folder.write(folders.SCORED, result)
            said = (
                "is stale: its first two seeds no longer come out" if result["stale"] else "stands"
            )
            console.note(f"{key}: {said} (replayed with the present code)")
            entry = entry._replace(result=result)
        found.append(entry)
    return found


def _spend(
    folder: LedgerFolder, entries: list[Entry], seconds: float, most: int | None,
    kind: str | None = None, stop: Callable[[Entry], bool] = lambda _: False,
) -> int:  # fmt: skip
    """Run jobs until nothing is left, the time is over or the seeds are used; seeds that were run.

    Every batch is on disk before the next begins.
    """
    begun, used = time.monotonic(), 0
    while time.monotonic() - begun < seconds and (most is None or used < most):
        job = spending.next_job([e for e in entries if not stop(e)])
        if job is None:
            break
        entry = [e for e in entries if not stop(e)][job.entry]
        index = entries.index(entry)
        if most is not None:
            job = job._replace(seeds=job.seeds[: most - used])
        key = entry.registration["claim"]
        try:
            result = spending.perform(entry, job, code=_code(key), date=_today())
        except Exception as error:  # a claim that fails does not stop the others
            console.note(f"{key} is left out: {type(error).__name__}: {error}")
            entries[index] = entry._replace(claim=None)
            continue
        usual = folders.EXPLORATORY if entry.exploratory else folders.SCORED
        folder.write(kind or usual, result)
        entries[index] = entry._replace(result=result)
        used += len(job.seeds)
        _tell(entries[index], job, time.monotonic() - begun, seconds)
    _summary(entries, used, time.monotonic() - begun)
    return used


def _tell(entry: Entry, job: spending.Job, spent: float, budget: float) -> None:
    """One line per batch: e-values as they rise."""
    line, rule = entry.registration, books.rule_of(entry.registration)
    effects = books.effects_of(entry.result, job.control)
    if job.control is not None:
        found = books.rules.tally(rule.for_control(), effects)
        control = line["controls"][job.control]
        passed = books.rules.control_passed(control["sort"], rule, effects)
        state = {True: "passed", False: "FAILED", None: "..."}[passed]
        what = f"{control['sort']} control: {state}"
    else:
        found = books.rules.tally(rule, effects)
        what = f"{found.above} of {found.counted} for, {found.below} against"
    rest = "" if math.isinf(budget) else f" of {_clock(budget)}"
    console.note(
        f"[{_clock(spent)}{rest}] {line['claim']}: {what}; "
        f"E for {_e(found.for_max)}, against {_e(found.against_max)}"
    )


def _clock(seconds: float) -> str:
    """A time that people can read.

    >>> _clock(42.3), _clock(1500), _clock(9000)
    ('42 s', '25 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _e(value: Any) -> str:
    try:
        return f"{float(value):.3g}"
    except OverflowError:
        return "beyond 1e308"


def _summary(entries: list[Entry], used: int, spent: float) -> None:
    mine = [e for e in entries if e.claim is not None]
    flags = dict(zip(range(len(entries)), spending.decided(entries), strict=True))
    done = sum(flags[i] for i, e in enumerate(entries) if e.claim is not None)
    aside = sum(
        1 for i, e in enumerate(entries)
        if e.claim is not None and not flags[i] and spending.left(e) is None
    )  # fmt: skip
    console.note(
        f"{done} of {len(mine)} decided, {aside} set aside, {len(mine) - done - aside} undecided; "
        f"{used} seeds in {_clock(spent)}."
    )
    if soon := spending.likely_next(entries, 1800):
        console.note(f"The next half hour would most likely decide: {', '.join(soon)}.")


def _replicate(
    folder: LedgerFolder, entries: list[Entry], seconds: float, most: int | None
) -> None:
    """The decided claims once more, on seeds that no claim has used."""
    words = {r["claim"]: r["verdict"]["word"] for r in books.records(entries)
             if r["status"] == "current"}  # fmt: skip
    mine = []
    for entry in entries:
        line = entry.registration
        if entry.claim and words.get(line["claim"]) in ("supported", "contradicted"):
            kept = _kept_replica(folder, entry) | {"controls": entry.result["controls"]}
            mine.append(entry._replace(result=kept, exploratory=True))  # each by itself
    if not mine:
        raise InputError("no decided claim to replicate; run shoal claims --until-decided first.")
    _spend(folder, mine, seconds, most, kind=folders.REPLICAS,
           stop=lambda e: spending.replica_verdict(e) != "undecided")  # fmt: skip
    found = [(e.registration["claim"], spending.replica_verdict(e)) for e in mine]
    equal = sum(word == words[key] for key, word in found)
    undecided = sum(word == "undecided" for _, word in found)
    turned = [key for key, word in found if word not in ("undecided", words[key])]
    console.note(
        f"Replicated on disjoint seeds: {equal} of {len(found)} verdicts equal, {undecided} not "
        f"decided, {len(turned)} reversed{': ' + ', '.join(turned) if turned else ''}."
    )


# ----------------------------------------------------------------------------------------- showing


def _table(records: list[Json], others: Sequence[Any]) -> Any:
    rows = [_cells(record) for record in records if record["status"] != "superseded"]
    for other in others:
        said = f"{escape(other.statement)}\n[dim]{escape(other.key)}[/]"
        held = isinstance(other, Check) or other.witness()["accepted"]
        word = "check" if isinstance(other, Check) else "supported" if held else "inconclusive"
        rows.append((said, console.coloured(word) + f"\n[dim]{other.kind}[/]", "", "", ""))
    return console.table("claim", "verdict", "draws", "median [95 % sequence]", "E", rows=rows)


def _cells(record: Json) -> tuple[str, ...]:
    seeds, e = record["seeds"], record["e"]
    word = console.coloured(pages.word_of(record))
    reason = pages.reason_of(record)
    return (
        f"{escape(record['statement'])}\n[dim]{escape(record['claim'])}[/]",
        word + (f"\n[dim]{escape(reason)}[/]" if reason else ""),
        f"{seeds['above']} of {seeds['counted']}",
        escape(pages.median_text(record)),
        f"{_e(e['for_max'])} / {_e(e['against_max'])}",
    )


def _cost(folder: LedgerFolder, chosen: Sequence[Statement], spent: bool) -> str:
    """What deciding the rest would cost."""
    keys = {claim.key for claim in chosen}
    entries = entries_of(folder, _only_claims(chosen))
    mine = [e for e in entries if e.registration["claim"] in keys and e.claim is not None]
    seconds = spending.cost_left(mine)
    if spent or not seconds:
        return ""
    time_left = _clock(seconds)
    loose = sum(e.exploratory and not e.claim.waits for e in mine if e.claim)
    said = f"Deciding what is open would take about {time_left}: add --until-decided --budget 30m."
    if loose:
        said += f" {loose} of them are not registered in {str(folder.folder)!r}, so they would "
        said += "stay exploratory (shoal claims freeze registers)."
    return said
