"""``claims``: freeze, spend seeds, replicate, replay, list, and show."""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape

from shoal import console, workers
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
from shoal.runtime import cores
from shoal.sweeps.cluster import Spread, spreading

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


def homes_of(names: Sequence[str]) -> dict[str, str]:
    """Where other processes find the claims, by key: ``TARGET.PART``."""
    found: dict[str, str] = {}
    for name in names or PAPERS:
        target = split_target(name)[0]
        paper, where = paper_of(target), workers.absolute_target(target)
        found |= {c.key: f"{where}.{c.key.removeprefix(f'{paper.key}.')}" for c in paper.claims}
    return found


def claims(
    *names: str, until_decided: bool, budget: str, seeds: int | None, replicate: bool,
    replay: bool, listed: bool, ledger: Path, scheduler: str | None, out: Path | None,
    markdown: Path | None, json: bool,
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
    if scheduler is not None and not (until_decided or replicate or replay):
        raise InputError("--scheduler belongs to --until-decided, --replicate or --replay.")
    if until_decided or replicate or replay:
        with _hands(names, scheduler, alone=seeds is not None) as hands, folder:
            end = time.monotonic() + seconds
            entries = entries_of(folder, _only_claims(chosen))
            if replay:
                _replay(folder, entries, range(len(entries)), hands, end)
            if until_decided:
                _spend(folder, entries, end, seeds, hands)
                _replay(folder, entries, _made_by_others(entries), hands, end)
                _remind(_made_by_others(entries))
            if replicate:
                _replicate(folder, entries, end, seeds, hands)
    records, others = _read(folder, chosen)
    if out is not None:
        pages.write_pages(out, records, others, write_whole)
    if markdown is not None:
        write_whole(markdown, pages.markdown(records, others).encode())
    if json:
        answer(_json(records, others), json=True)
    elif listed:
        answer(None, [_short_table(records, others)], json=False)
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


class Hands(NamedTuple):
    """Who runs seeds: other processes, which find claims by their homes, or this one."""

    spread: Spread | None
    homes: Mapping[str, str]
    far: bool = False  # On a cluster; here a single claim needs no other process.


@contextlib.contextmanager
def _hands(names: Sequence[str], scheduler: str | None, *, alone: bool) -> Iterator[Hands]:
    """Processes of this machine or of a cluster; with ``alone``, or one core, this process."""
    if scheduler is None and (alone or cores() == 1):
        yield Hands(None, {})
        return
    with spreading(scheduler) as spread:
        yield Hands(spread, homes_of(names), far=scheduler is not None)


def _answers(
    tasks: Iterator[workers.Task], entries: list[Entry], hands: Hands, most: int
) -> Iterator[workers.Answer]:
    """Perform jobs, at most so many at once."""
    if hands.spread is not None and (hands.far or most > 1):
        yield from hands.spread(tasks, most)
        return
    for task in tasks:
        claim = entries[task["entry"]].claim
        try:
            found = spending.measured(claim, task["seeds"], task["control"]) if claim else None
        except Exception as error:  # a claim that fails does not stop the others
            yield workers.Answer(task, None, f"{type(error).__name__}: {error}")
        else:
            yield workers.Answer(task, found)


def _task(job: spending.Job, entry: Entry, hands: Hands) -> workers.Task:
    key = entry.registration["claim"]
    return job._asdict() | {"claim": hands.homes.get(key, key)}


def _made_by_others(entries: list[Entry]) -> list[int]:
    """Results that other code has made."""
    return [index for index, entry in enumerate(entries) if _must_be_replayed(entry)]


def _must_be_replayed(entry: Entry) -> bool:
    """Whether other code has made a result, so that no seeds are added before a replay."""
    result, known = entry.result, entry.claim is not None and not entry.exploratory
    code = _code(entry.registration["claim"])
    return known and bool(result["effects"]) and not result["stale"] and code not in result["code"]


def _remind(indices: Sequence[int]) -> None:
    if indices:
        console.note(
            f"{len(indices)} results are of earlier code and were not recomputed: "
            "shoal claims --replay."
        )


def _replay(
    folder: LedgerFolder, entries: list[Entry], indices: Sequence[int], hands: Hands,
    end: float,
) -> None:  # fmt: skip
    """Recompute two seeds of some results, until the time is over."""
    changed = [
        spending.replay_job(index, entries[index])
        for index in indices
        if entries[index].claim and entries[index].result["effects"]
        if not entries[index].exploratory
    ]
    tasks = (
        _task(job, entries[job.entry], hands)
        for job in itertools.takewhile(lambda _: time.monotonic() < end, changed)
    )
    for found in _answers(tasks, entries, hands, len(changed)):
        if found.error is not None:
            _leave_out(entries, found)
        else:
            _compare(folder, entries, found)


def _compare(folder: LedgerFolder, entries: list[Entry], found: workers.Answer) -> None:
    """Keep what a replay says of a result."""
    entry = entries[found.task["entry"]]
    key = entry.registration["claim"]
    result = spending.replayed(entry, found.value, code=_code(key), date=_today())
    if result != entry.result:
        folder.write(folders.SCORED, result)
    stale = "is stale: its first two seeds no longer come out"
    console.note(f"{key}: {stale if result['stale'] else 'stands'} (replayed)")
    entries[found.task["entry"]] = entry._replace(result=result)


def _leave_out(entries: list[Entry], found: workers.Answer) -> None:
    """Do without a claim that failed."""
    entry = entries[found.task["entry"]]
    console.note(f"{entry.registration['claim']} is left out: {found.error}")
    entries[found.task["entry"]] = entry._replace(claim=None)


def _spend(
    folder: LedgerFolder, entries: list[Entry], end: float, most: int | None,
    hands: Hands, kind: str | None = None,
    stop: Callable[[Entry], bool] = lambda _: False,
) -> int:  # fmt: skip
    """Run jobs until nothing is left, the time is over or the seeds are used; seeds that were run.

    Every batch is on disk when its claim's next begins.
    """
    begun, used, deciding = time.monotonic(), 0, threading.Lock()
    busy: set[int] = set()

    def tasks() -> Iterator[workers.Task]:
        nonlocal used
        while time.monotonic() < end and (most is None or used < most):
            with deciding:
                skip = busy | {index for index, entry in enumerate(entries) if stop(entry)}
                job = spending.next_job(entries, skip=skip, by_clock=most is None)
                task: workers.Task = {}  # while only busy claims are left
                if job is not None:
                    busy.add(job.entry)
                    entry = entries[job.entry]
                    if again := kind is None and _must_be_replayed(entry):
                        job = spending.replay_job(job.entry, entry)
                    elif most is not None:
                        job = job._replace(seeds=job.seeds[: most - used])
                    used += 0 if again else len(job.seeds)
                    task = _task(job, entry, hands) | {"replay": again}
                over = not task and not busy
            if over:
                break
            yield task

    mine = sum(entry.claim is not None for entry in entries)
    for found in _answers(tasks(), entries, hands, mine):
        index, job = found.task["entry"], spending.Job(*(found.task[f] for f in JOB))
        with deciding:
            busy.discard(index)
            if found.error is not None:
                _leave_out(entries, found)
                continue
            if found.task["replay"]:
                _compare(folder, entries, found)
                continue
            entry = entries[index]
            code = _code(entry.registration["claim"])
            result = spending.with_measured(entry, job, found.value, code=code, date=_today())
            usual = folders.EXPLORATORY if entry.exploratory else folders.SCORED
            folder.write(kind or usual, result)
            entries[index] = entry._replace(result=result)
        _tell(entries[index], job, time.monotonic() - begun, end - begun)
    _summary(entries, used, time.monotonic() - begun)
    return used


JOB = spending.Job._fields


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
    flags = dict(zip(range(len(entries)), spending.decided(entries), strict=True))
    kept = [i for i, e in enumerate(entries) if e.claim is not None and not e.exploratory]
    done = sum(flags[i] for i in kept)
    aside = sum(1 for i in kept if not flags[i] and spending.left(entries[i]) is None)
    loose = sum(e.claim is not None and e.exploratory for e in entries)
    console.note(
        f"{done} of {len(kept)} decided, {aside} set aside, {len(kept) - done - aside} undecided"
        f"{f', {loose} exploratory (no verdict)' if loose else ''}; "
        f"{used} seeds in {_clock(spent)}."
    )
    if soon := spending.likely_next(entries, 1800):
        console.note(f"The next half hour would most likely decide: {', '.join(soon)}.")


def _replicate(
    folder: LedgerFolder, entries: list[Entry], end: float, most: int | None,
    hands: Hands,
) -> None:  # fmt: skip
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
    _spend(folder, mine, end, most, hands, kind=folders.REPLICAS,
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


def _short_table(records: list[Json], others: Sequence[Any]) -> Any:
    """One line per claim."""
    rows = [
        (escape(r["claim"]), console.coloured(pages.word_of(r)), escape(pages.reason_of(r)))
        for r in records
        if r["status"] != "superseded"
    ]
    rows += [(escape(o.key), console.coloured(_other_word(o)), o.kind) for o in others]
    return console.table("claim", "verdict", "", rows=rows)


def _other_word(other: Any) -> str:
    held = isinstance(other, Check) or other.witness()["accepted"]
    return "check" if isinstance(other, Check) else "supported" if held else "inconclusive"


def _table(records: list[Json], others: Sequence[Any]) -> Any:
    rows = [_cells(record) for record in records if record["status"] != "superseded"]
    for other in others:
        said = f"{escape(other.statement)}\n[dim]{escape(other.key)}[/]"
        word = console.coloured(_other_word(other))
        rows.append((said, word + f"\n[dim]{other.kind}[/]", "", "", ""))
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
