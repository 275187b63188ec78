"""The ledger for people: a claim's story in a terminal, its page, the index, the short table."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from shoal.evidence.rules import CONTROL_THRESHOLD
from shoal.lab import ledger as books
from shoal.lab.claim import Check, Existence
from shoal.lab.ledger import Json
from shoal.pages import page
from shoal.pages.ledger_plot import abstains, claim_plots, strip

GROUPS = (
    "supported", "contradicted", "inconclusive", "not testable", "exploratory", "stale",
    "superseded",
)  # fmt: skip
NOT_YET, TOO_SMALL = "not examined yet", "not testable at this size"

VALID = "valid whenever one stops"
YES_NO = ", else 0"
"""How the effect of an outcome that is yes or no ends: "1 if all drops are seen, else 0"."""


def number(value: float) -> str:
    """Three significant digits.

    >>> number(0.012345), number(-0.0), number(-math.inf)
    ('0.0123', '0', '-inf')
    """
    return f"{value + 0.0:.3g}" if math.isfinite(value) else str(value)


def turned(record: Json, ends: Sequence[float]) -> tuple[float, float]:
    """An interval with the sign in which people read the effect."""
    low, high = (record["sign"] * end for end in ends)
    return (low, high) if low <= high else (high, low)


def median_text(record: Json) -> str:
    """The median with its 95 % sequence."""
    if record["median"] is None:
        return "-"
    low, high = turned(record, record["median"])
    middle = number(low) if low == high else f"{number(low)} to {number(high)}"
    ends = turned(record, record["sequence"]["median"])
    return f"{middle} [{number(ends[0])}, {number(ends[1])}]"


def word_of(record: Json) -> str:
    """The word that a reader sees first: a verdict, or what hides it."""
    if record["status"] in ("stale", "superseded"):
        return record["status"]
    if record["waits"]:
        return "not testable"
    return record["verdict"]["word"]


def reason_of(record: Json) -> str:
    """Why there is no verdict, in words; nothing if there is one."""
    if word_of(record) != "inconclusive":
        return ""
    reason = record["verdict"]["reason"]
    return "not run yet" if reason == "undecided" and not record["effects"] else reason


def group_of(record: Json) -> str:
    """The word by which the index sorts: what has no verdict is told apart by its reason."""
    if word_of(record) == "not testable":
        looked = re.search(r"looked|no step is tuned", record["waits"])
        return NOT_YET if looked else TOO_SMALL
    return reason_of(record) or word_of(record)


def badge_of(record: Json) -> str:
    """The word that a page shows: *not testable* is told apart, *inconclusive* is not."""
    word = word_of(record)
    return group_of(record) if word == "not testable" else word


def outcome(record: Json) -> str:
    """What happens in a draw that counts for the claim, if the effect is yes or no; else nothing.

    >>> outcome({"effect": "1 if all drops are seen, else 0,"})
    'all drops are seen'
    """
    said = effect_text(record)
    yes_no = said.startswith("1 if ") and said.endswith(YES_NO)
    return said.removeprefix("1 if ").removesuffix(YES_NO) if yes_no else ""


def e_text(value: float) -> str:
    """An e-value.

    >>> e_text(14563.5), e_text(0.4321), e_text(math.inf)
    ('14,564', '0.432', 'inf')
    """
    return f"{value:,.0f}" if 100 <= value < 1e9 else number(value)


def of_needed(e: float, needed: float, what: str = "a verdict") -> str:
    """An e-value beside the one that decides.

    >>> of_needed(546, 10240), of_needed(56.8, 20, "a control")
    ('546 of the 10,240 that a verdict needs', '56.8; a control needs 20')
    """
    asked = f"{needed:,.0f}"
    few = f"{e_text(e)} of the {asked} that {what} needs"
    return few if e < needed else f"{e_text(e)}; {what} needs {asked}"


def largest_words(record: Json, side: str) -> str:
    """The largest e-value of a side beside the one that a verdict needs."""
    e, needed = record["e"][f"{side}_max"], record["e"]["threshold"]
    word = {"for": "supported", "against": "contradicted"}[side]
    if e < needed and record["verdict"]["word"] == word:
        return f"{e_text(e)}, enough once other claims are decided (the first needs {needed:,.0f})"
    return of_needed(e, needed)


def effect_text(record: Json) -> str:
    """What the effect is, without the comma that leads on to a verb."""
    return record["effect"].rstrip(",")


def rule_text(record: Json) -> str:
    """The rule in words; for a share of draws, with the share on both sides."""
    share, what = record["quantifier"]["share"], outcome(record)
    if share == "all" or (share == "1/2" and not what):
        return re.sub(r"(?<= )-0(?=;|$)", "0", record["rule"])
    said = "half" if share == "1/2" else f"{float(Fraction(share)):.0%}".replace("%", " %")
    what = what or f"{record['effect']} {limits_text(record)}"
    return f"supported if {what} in more than {said} of draws; contradicted if in fewer"


def limits_text(record: Json) -> str:
    """What an effect that helps does: "is above 0"."""
    if isinstance(record["for"], list):
        return f"lies in [{', '.join(record['for'])}]"
    limit = number(record["sign"] * float(record["for"]))
    return f"is {'above' if record['sign'] > 0 else 'below'} {limit}"


def sentence(record: Json) -> str:
    """The verdict in one sentence."""
    seeds, word, reason = record["seeds"], word_of(record), reason_of(record)
    if record["population"].startswith("weights") and word in ("supported", "contradicted"):
        word += " for this problem"
    said = word[:1].upper() + word[1:] + (f" ({reason})" if reason else "")
    if record["waits"]:
        group = group_of(record)
        return f"{group[:1].upper()}{group[1:]}: {record['waits']}."
    if record["verdict"]["reason"] == "control failed":
        return failed_words(record)
    if not seeds["counted"]:
        return f"{said}: no seed has been run."
    counts = f"{seeds['above']} of {seeds['counted']} draws"
    what = outcome(record) or f"{record['effect']} {limits_text(record)}"
    said = "Before" if record["stale"] else said
    bend = f"; the line bends {bend_words(record)}" if record["kind"] == "scaling" else ""
    said += f": {what} in {counts}{bend}; {_where(record)}."
    if seeds["abstained"]:
        said += f" {seeds['abstained']} draws abstained."
    if record["bent"]:
        said += " Not a power law on this range."
    return said


def failed_words(record: Json) -> str:
    """Why a claim whose control failed has no verdict."""
    control = next(c for c in record["controls"] if c["passed"] is False)
    above, below, seeds = control["above"], control["below"], control["seeds"]
    said = f"{above} for, {below} against, {seeds - above - below} neither" + _wrong_way(control)
    own = record["seeds"]["counted"]
    then = f"{own} draws give none" if own else "seeds were not run"
    return (
        f"No verdict: the {control['sort']} control failed ({seeds} control draws: {said}), "
        f"so the claim's own {then}."
    )


def stale_words(record: Json) -> str:
    """What a replay gave, where it differs, and whether there was a verdict before."""
    found, spread = record["stale"], books.spread_of(books.effects_of(record))
    said = []
    for name, was, now in zip(("first", "second"), found["was"], found["now"], strict=False):
        if books.stale([books.effect_of(was)], [books.effect_of(now)], spread):
            ends = (_replayed(record, one) for one in (now, was))
            said.append("the {} seed gives {} (before: {})".format(name, *ends))
    word = record["verdict"]["word"]
    then = "it was not decided then" if word == "inconclusive" else f"the verdict was {word}"
    code = f"code (that of {found['date']}) "
    return f"With today's {code}{' and '.join(said)}, so these results no longer count; {then}."


def _replayed(record: Json, stored: Sequence[Any]) -> str:
    """An effect with enough digits to tell it from another."""
    if stored[0] is None:
        return "nothing: it abstains"
    ends = dict.fromkeys(f"{end:#.4g}" for end in turned(record, stored[:2]))
    bend = f", bend {' to '.join(dict.fromkeys(f'{b:#.4g}' for b in stored[2:]))}"
    return " to ".join(ends) + (bend if stored[2:] else "")


def _where(record: Json) -> str:
    """Where the median lies, or the share of draws if the statement is about another share."""
    if not about_median(record) and (share := _share(record)):
        seeds = record["seeds"]
        said = f"{seeds['above'] / seeds['counted']:.1%} of draws"
        return f"{said}; 95 % interval for the share, {VALID}: {share}"
    middle, _, ends = median_text(record).partition(" [")
    low, high = ends.rstrip("]").split(", ")
    return f"median {middle}; 95 % interval for the median, {VALID}: {low} to {high}"


def replica_words(record: Json) -> str:
    """What a repetition on disjoint seeds gave."""
    if not (found := record.get("replica")):
        return ""
    said = "not decided yet" if found["word"] == "undecided" else f"{found['word']} by itself"
    needed = record["e"]["threshold"]
    return (
        f"Repeated on disjoint seeds: {said} ({found['above']} of {found['counted']} draws for, "
        f"{found['below']} against; E for {e_text(found['e']['for'])}, "
        f"E against {e_text(found['e']['against'])}; a verdict needs {needed:,.0f})."
    )


def about_median(record: Json) -> bool:
    """Whether the statement is about the median, not about a share of draws."""
    return record["quantifier"]["share"] == "1/2" and not outcome(record)


def bend_words(record: Json) -> str:
    """In how many draws a scaling's line is straight enough: that must be shown too."""
    if record["kind"] != "scaling":
        return ""
    low, high = (float(end) for end in record["for"])
    margin = (high - low) / 2
    bends = [row[2:] for row in record["effects"] if len(row) == 4]
    straight = sum(-margin < lo and hi < margin for lo, hi in bends)
    return f"by less than {number(margin)} in {straight} of {len(bends)} draws"


def about_words(record: Json) -> str:
    """Which draws the verdict is about."""
    share = record["quantifier"]["share"]
    if share == "all":
        return (
            "The verdict is about all draws; a test can support it only for nearly all (9 of 10)."
        )
    if about_median(record):
        return "The verdict is about the median draw."
    said = "half" if share == "1/2" else f"{float(Fraction(share)):.0%}".replace("%", " %")
    return f"The verdict is about a share of draws: more than {said}."


def abstained_words(record: Json) -> str:
    """How many draws abstained and why."""
    if not (count := record["seeds"]["abstained"]):
        return ""
    tied = sum(row[0] is not None and abstains(record, *row[:2]) for row in record["effects"])
    reasons = {f"the premise fails ({record['premise']})": count - tied,
               "the effect is exactly at the limit": tied}  # fmt: skip
    why = [(f"{n} because " if n < count else "because ") + k for k, n in reasons.items() if n]
    draws = "draw" if count == 1 else "draws"
    return f"{count} {draws} abstained, {', '.join(why)}; the verdict is about the others."


def story(record: Json) -> list[str]:
    """A claim in a terminal: statement, verdict, one sentence, rule and effect with its unit."""
    from rich.markup import escape

    lines = [
        f"[bold]{escape(record['statement'])}[/]",
        f"[dim]{escape(record['claim'])} v{record['version']}; {escape(record['provenance'])}[/]",
        "",
        escape(sentence(record)),
        f"Rule: {escape(rule_text(record))}.",
        f"Effect: {escape(effect_text(record))}; {escape(median_text(record))} (median, 95 %).",
        f"Why these limits: {escape(record['why'])}.",
        f"E-values: {e_text(record['e']['for_max'])} for, "
        f"{e_text(record['e']['against_max'])} against; a verdict needs "
        f"{record['e']['threshold']:,.0f} (a little less once other claims are decided).",
    ]
    lines += [f"Control, {c['sort']}: {_control(c)}." for c in record["controls"]]
    lines += [words for words in (about_words(record), replica_words(record)) if words]
    return lines


def _control(control: Json) -> str:
    state = {True: "passed", False: "failed", None: "not finished"}[control["passed"]]
    if not control["seeds"]:
        return "not run"
    counts = f"{control['above']} for and {control['below']} against in {control['seeds']} draws"
    which = {"negative": "E against ", "positive": "E for "}.get(control["sort"], "the larger E ")
    e = which + of_needed(control["e"], CONTROL_THRESHOLD, "a control")
    return f"{state}: {counts} ({e}){_wrong_way(control)}"


def _wrong_way(control: Json) -> str:
    """What a failed negative control shows if it comes out as the claim would."""
    failed = control["sort"] == "negative" and control["passed"] is False
    wrong = failed and control["above"] > control["below"]
    return "; it came out for the claim where it should not" if wrong else ""


def told(other: Check | Existence) -> list[str]:
    """A statement that is not tested by seeds, in a terminal."""
    from rich.markup import escape

    lines = [f"[bold]{escape(other.statement)}[/]", f"[dim]{escape(other.key)}; {other.source}[/]"]
    if isinstance(other, Check):
        return [*lines, f"True by algebra: held by {other.test} (tolerance {other.tolerance})."]
    found = other.witness()
    said = "a witness was found and verified" if found["accepted"] else "no verified witness"
    details = ", ".join(f"{k} {v}" for k, v in found.items() if k != "accepted")
    return [*lines, f"Existence: {said} ({escape(other.checker)}).", escape(details)]


# ------------------------------------------------------------------------------------ Markdown


HOW = "[How](evidence.md)."
LEAD = (
    "*Supported* means: at the stated size and setting more than half of random draws lie beyond "
    "a limit that was fixed beforehand. It does not mean a large effect, all draws, or other "
    "sizes. The chance that any *supported* or *contradicted* below is wrong in this sense by the "
    "luck of the draw is at most 5 %, however long we ran and although claims share runs. A badly "
    "chosen setting, limit or step is not covered; controls and replays find some mistakes, not "
    "all."
)


def counts(records: Iterable[Json], word: Callable[[Json], str] = word_of) -> dict[str, int]:
    """How many claims have which word, in a fixed order."""
    ordered = sorted(records, key=lambda r: (GROUPS.index(word_of(r)), word(r)))
    words = [word(record) for record in ordered]
    return {found: words.count(found) for found in dict.fromkeys(words)}


def counts_text(records: Sequence[Json]) -> str:
    """How many claims have which word, with the reasons why some have no verdict."""
    current = [record for record in records if record["status"] != "superseded"]
    reasons = [reason_of(record) for record in current]
    why = ", ".join(f"{reasons.count(r)} {r}" for r in sorted({*reasons} - {""}))
    parts = [
        f"{count} {word}" + (f" ({why})" if word == "inconclusive" else "")
        for word, count in counts(current, badge_of).items()
    ]
    return f"{len(current)} claims: {', '.join(parts)}.{_besides(len(records) - len(current))}"


def _besides(old: int) -> str:
    return f" Besides, {old} superseded version{'s' if old > 1 else ''}." if old else ""


def heading(records: Sequence[Json]) -> str:
    """How many claims a paper has; versions that were replaced are counted apart."""
    old = sum(record["status"] == "superseded" for record in records)
    count = len(records) - old
    said = f"{count} claim{'' if count == 1 else 's'}"
    return said + (f", {old} superseded version{'s' if old > 1 else ''}" if old else "")


CRIPPLED = re.compile(
    r"(favoured|other) side('s step shrinks| has a step| has no time| does not train| trains its)"
    r"|learns shuffled classes"
)
"""Why a control keeps one side from training."""
ONE_SIDE = (
    "The negative control cripples one side: it shows that a loss would be seen, not that the "
    "effect has the stated cause."
)


def _stopped(record: Json) -> list[str]:
    """Why there are no more draws."""
    reason, run = reason_of(record), record["seeds"]["counted"]
    if reason == "set aside":
        most = record["registration"]["max_seeds"]
        return [f"Stopped after {run} of {most} registered seeds: no decision was in sight."]
    if reason == "control failed":
        return ["A control failed: the experiment does not tell what it should, so it stopped."]
    return []


def doubts(record: Json) -> list[str]:
    """What a careful reader should doubt, as far as the record tells."""
    word, sorts = word_of(record), {control["sort"] for control in record["controls"]}
    found = _stopped(record)
    if word == "supported" and sorts == {"negative"}:
        crippling = all(CRIPPLED.search(control["why"]) for control in record["controls"])
        found.append(ONE_SIDE if crippling else "There is no positive control.")
    if record["verdict"]["word"] == "contradicted" and "positive" not in sorts:
        found.append(
            "There is no positive control: the negative one shows that the experiment can come out "
            "against, not that it could have come out for the statement."
        )
    if record["population"].startswith("weights"):
        found.append("All draws are of one problem: nothing is said about others.")
    if record["seeds"]["unknown"]:
        found.append(
            f"In {record['seeds']['unknown']} of {record['seeds']['counted']} draws the effect is "
            "between the limits or known too roughly, and counts for neither side."
        )
    if said := abstained_words(record):
        found.append(said)
    if word in ("supported", "contradicted") and not record.get("replica"):
        found.append("It has not been repeated on disjoint seeds.")
    if record["same_runs"]:
        others = ", ".join(record["same_runs"])
        found.append(f"Same runs as {others}: these verdicts are not independent support.")
    if record["setting"].get("statistic") == "<lambda>":
        found.append(
            "Its statistic has no name in the registration: a change of it would be noticed only "
            "by a replay."
        )
    return found


def markdown(records: Sequence[Json], others: Sequence[Any]) -> str:
    """The ledger as a short table."""
    lines = ["# The ledger", "", "Written by `shoal claims --markdown`; do not edit.", "",
             f"{LEAD} {HOW}", ""]  # fmt: skip
    lines += [counts_text(records), ""]
    papers = dict.fromkeys(r["claim"].partition(".")[0] for r in records)
    for paper in papers:
        mine = [r for r in records if r["claim"].startswith(f"{paper}.")]
        lines += [f"## {paper}", "", "| claim | verdict | draws | median [95 % sequence] |",
                  "| --- | --- | --- | --- |"]  # fmt: skip
        for r in sorted(mine, key=lambda r: GROUPS.index(word_of(r))):
            reason = reason_of(r)
            verdict = f"**{badge_of(r)}**" + (f" ({reason})" if reason else "")
            claim = f"{r['statement']} (`{r['claim']}`; {r['provenance']})"
            draws = f"{r['seeds']['above']} of {r['seeds']['counted']}"
            cells = (claim, verdict, draws, f"{median_text(r)}, {effect_text(r)}")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    if others:
        lines += ["## Checks and existence", "", "Not evidence from draws, and not counted above.",
                  ""]  # fmt: skip
    lines += [f"- {o.statement} (`{o.key}`; {other_words(o)})" for o in others]
    return "\n".join(lines).rstrip() + "\n"


# ---------------------------------------------------------------------------------------- pages


ONE_STEP = ("_equal_step", "_at_one_step", "_at_common_step")
OWN_STEPS = ("_at_own_steps", "_at_own_step", "_own_step", "_tuned")
"""How names of one statement end, at one step for all sides and at each side's own."""


def stem_of(key: str) -> tuple[str, bool] | None:
    """The statement that a claim shares with its sister, and whether each side has its own step.

    >>> stem_of("a.width_own_step"), stem_of("a.width_equal_step"), stem_of("a.width")
    (('a.width', True), ('a.width', False), None)
    """
    for end in (*ONE_STEP, *OWN_STEPS):
        if key.endswith(end):
            return key.removesuffix(end), end in OWN_STEPS
    return None


def sisters(records: Sequence[Json]) -> dict[str, Json]:
    """By the name of a claim, the newest version of the same statement with the other steps."""
    current = [record for record in records if record["status"] != "superseded"]
    by_stem = {stem: r for r in current if (stem := stem_of(r["claim"]))}
    return {
        mine["claim"]: by_stem[name, not own]
        for (name, own), mine in by_stem.items()
        if (name, not own) in by_stem
    }


def sister_words(sister: Json) -> str:
    """What came out with the other steps: the verdict, and the median if the claim is about it."""
    stem = stem_of(sister["claim"])
    where = "At each side's own step" if stem and stem[1] else "At one step for all sides"
    group, word = group_of(sister), badge_of(sister)
    said = f"{where}: {word}" + (f" ({group})" if group != word else "")
    if about_median(sister) and sister["median"] is not None:
        said += f", median {median_text(sister).partition(' [')[0]}"
    return said


def write_pages(
    out: Path, records: Sequence[Json], others: Sequence[Any], write: Callable[[Path, bytes], None]
) -> None:
    """An index, and a page for every claim and version."""
    shown = [_view(record, sisters(records)) for record in records]
    made = page.environment()
    template, shared = made.get_template("claim.html.j2"), page.shell(page.script())
    for view in shown:
        write(out / view["file"], template.render(claim=view, **shared).encode())
    found = counts(records, badge_of)
    papers = dict.fromkeys(view["paper"] for view in shown)
    by_paper = {p: [v for v in shown if v["paper"] == p] for p in papers}
    rows = tuple(
        (paper, *(str(sum(v["word"] == word for v in mine)) for word in found))
        for paper, mine in by_paper.items()
    )
    groups = counts(records, group_of)
    index = made.get_template("ledger.html.j2").render(
        papers={p: (heading(mine), mine) for p, mine in by_paper.items()}, counts=found,
        groups=[(_mark(group), _filter_name(records, group), n) for group, n in groups.items()],
        total=counts_text(records), summary=("", ("paper", *found), rows), lead=LEAD.split("*"),
        against=[view for view in shown if view["word"] == "contradicted"],
        others=[(o.statement, other_words(o)) for o in others], **page.shell(),
    )  # fmt: skip
    write(out / "index.html", index.encode())


def _mark(words: str) -> str:
    return words.replace(" ", "-")


def _filter_name(records: Iterable[Json], group: str) -> str:
    """What a group is called where one chooses what to see: with the verdict's word if it has one.

    >>> _filter_name([], "supported")
    'supported'
    """
    open_ = any(reason_of(record) == group for record in records)
    return f"inconclusive: {group}" if open_ else group


def _file(record: Json) -> str:
    return f"{record['claim']}.v{record['version']}.html"


def _view(record: Json, others: dict[str, Json]) -> Json:
    """A record with the words of its page."""
    sister = others.get(record["claim"])
    design = record["setting"].items()
    hidden = ("setting", "reduce", "premise")  # said in words elsewhere
    settings = [
        (k.replace("_", " "), plainly(v)) for k, v in design
        if k not in hidden and plainly(v) not in ("", "<lambda>")
    ]  # fmt: skip
    repeat = f"shoal claims {record['claim']} --until-decided --seeds 1"
    controls = tuple(
        (c["sort"], plainly(c["changes"]), c["why"], _control(c)) for c in record["controls"]
    )
    head = ("sort", "what is changed", "why", "result")
    return record | {
        "paper": record["claim"].partition(".")[0],
        "file": _file(record), "word": badge_of(record), "mark": _mark(group_of(record)),
        "sister": sister and (sister_words(sister), sister["claim"], _file(sister)),
        "sentence": sentence(record), "median_text": median_text(record),
        "limits_text": limits_text(record), "settings": settings,
        "control_table": ("", head, controls),
        # what follows in braces stands below, setting by setting
        "setting_words": _sentence(record["setting"].get("setting", "").partition("; {")[0]),
        "doubts": doubts(record), "about_median": about_median(record),
        "bend_words": bend_words(record),
        "why": _sentence(record["why"]), "plots": claim_plots(record), "strip": strip(record),
        "about_words": about_words(record), "repeat": repeat,
        "largest": {side: largest_words(record, side) for side in ("for", "against")},
        "stale_words": stale_words(record) if record["stale"] else "",
        "abstained_words": abstained_words(record),
        "share_text": _share(record), "number": number, "e_text": e_text,
        "replica_words": replica_words(record),
        "median_of_all": _median_of_all(record), "rule_words": rule_text(record),
        "effect_words": effect_text(record), "reason": reason_of(record),
    }  # fmt: skip


def plainly(value: Any) -> str:
    """A design's value in words; nothing for what is not set.

    >>> plainly({"width": [32, 128], "more": {}, "step": None, "side": {"clip": True}})
    'width 32, 128; side (clip yes)'
    """
    if isinstance(value, dict):
        parts = {k: plainly(v) for k, v in value.items()}
        nested = {k: isinstance(value[k], dict) for k in parts}
        return "; ".join(f"{k} ({v})" if nested[k] else f"{k} {v}" for k, v in parts.items() if v)
    if isinstance(value, list | tuple):
        return ", ".join(f"[{plainly(v)}]" if isinstance(v, list) else plainly(v) for v in value)
    words = {True: "yes", False: "no"} if isinstance(value, bool) else {None: ""}
    return words.get(value, str(value))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") or not words else ".")


def other_words(other: Check | Existence) -> str:
    """What holds a statement that is not tested by seeds."""
    if isinstance(other, Check):
        return f"identity, held by {other.test}, tolerance {other.tolerance}"
    found = "a verified witness" if other.witness()["accepted"] else "no verified witness"
    return f"existence: {found} ({other.checker})"


def _median_of_all(record: Json) -> str:
    low, high = turned(record, record["sequence"]["median_ledger"])
    some = math.isfinite(low) or math.isfinite(high)
    return f"{number(low)} to {number(high)}" if some else "not yet bounded"


def _share(record: Json) -> str:
    ends = record["sequence"]["share_above"]
    return (
        "" if ends is None or not record["seeds"]["counted"] else f"{ends[0]:.0%} to {ends[1]:.0%}"
    )
