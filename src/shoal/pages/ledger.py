"""The ledger for people: a claim's story in a terminal, its page, the index, the short table."""

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from shoal.lab.claim import Check, Existence
from shoal.lab.ledger import Json
from shoal.pages import page
from shoal.pages.ledger_plot import claim_plots, strip

GROUPS = (
    "supported", "contradicted", "inconclusive", "not testable", "exploratory", "stale",
    "superseded",
)  # fmt: skip


YES_NO = ", else 0"
"""How the effect of an outcome that is yes or no ends: "1 if all drops are seen, else 0"."""


def number(value: float) -> str:
    """Three significant digits.

    >>> number(0.012345), number(-math.inf)
    ('0.0123', '-inf')
    """
    return f"{value:.3g}" if math.isfinite(value) else str(value)


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


def effect_text(record: Json) -> str:
    """What the effect is, without the comma that leads on to a verb."""
    return record["effect"].rstrip(",")


def rule_text(record: Json) -> str:
    """The rule in words; for a share of draws, with the share on both sides."""
    share, what = record["quantifier"]["share"], outcome(record)
    if share == "all" or (share == "1/2" and not what):
        return record["rule"]
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
        return f"Not testable yet: {record['waits']}."
    if not seeds["counted"]:
        return f"{said}: no seed has been run."
    counts = f"{seeds['above']} of {seeds['counted']} draws"
    what = outcome(record) or f"{record['effect']} {limits_text(record)}"
    said += f": {what} in {counts}; {_where(record)}."
    if seeds["abstained"]:
        said += f" {seeds['abstained']} draws abstained."
    if record["bent"]:
        said += " Not a power law on this range."
    return said


def _where(record: Json) -> str:
    """Where the median lies, or the share of draws if the statement is about another share."""
    if not about_median(record) and (share := _share(record)):
        seeds = record["seeds"]
        return f"{seeds['above'] / seeds['counted']:.1%} of draws, 95 % sequence {share}"
    middle, _, ends = median_text(record).partition(" [")
    low, high = ends.rstrip("]").split(", ")
    return f"median {middle}, 95 % sequence {low} to {high}"


def replica_words(record: Json) -> str:
    """What a repetition on disjoint seeds gave."""
    if not (found := record.get("replica")):
        return ""
    said = "not decided yet" if found["word"] == "undecided" else f"{found['word']} by itself"
    return (
        f"Repeated on disjoint seeds: {said} ({found['above']} of {found['counted']} draws for, "
        f"{found['below']} against; E {e_text(found['e']['for'])} for, "
        f"{e_text(found['e']['against'])} against)."
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


def support_words(record: Json) -> str:
    """How a supported statement about all draws must be read."""
    if record["quantifier"]["share"] == "all":
        return "Said of all draws; a test can support it only for nearly all (9 of 10)."
    return ""


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
        f"{e_text(record['e']['against_max'])} against (the ledger asks for 10240 at first).",
    ]
    lines += [f"Control, {c['sort']}: {_control(c)}." for c in record["controls"]]
    lines += [words for words in (support_words(record), replica_words(record)) if words]
    return lines


def _control(control: Json) -> str:
    state = {True: "passed", False: "failed", None: "not finished"}[control["passed"]]
    if not control["seeds"]:
        return "not run"
    counts = f"{control['above']} for and {control['below']} against"
    return f"{state}: {counts} in {control['seeds']} draws (E {e_text(control['e'])})"


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


LEAD = (
    "The chance that any verdict below is wrong by the luck of the draw is at most 5 %, however "
    "long we ran and although claims share runs; [how](evidence.md). It does not cover bugs or the "
    "choice of setting, for which there are controls, replays and the setting on each claim's page."
)


def counts(records: Iterable[Json]) -> dict[str, int]:
    """How many claims have which word, in a fixed order."""
    words = [word_of(record) for record in records]
    return {group: words.count(group) for group in GROUPS if group in words}


def counts_text(records: Sequence[Json]) -> str:
    """How many claims have which word, with the reasons why some have no verdict."""
    current = [record for record in records if record["status"] != "superseded"]
    reasons = [reason_of(record) for record in current]
    why = ", ".join(f"{reasons.count(r)} {r}" for r in sorted({*reasons} - {""}))
    parts = [
        f"{count} {group}" + (f" ({why})" if group == "inconclusive" else "")
        for group, count in counts(current).items()
    ]
    old = len(records) - len(current)
    more = f" Besides, {old} superseded version{'s' if old > 1 else ''}." if old else ""
    return f"{len(current)} claims: {', '.join(parts)}.{more}"


def doubts(record: Json) -> list[str]:
    """What a careful reader should doubt, as far as the record tells."""
    found, word = [], word_of(record)
    sorts = {control["sort"] for control in record["controls"]}
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
    if record["seeds"]["abstained"]:
        found.append(f"The verdict is about draws that meet the premise: {record['premise']}.")
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
    lines = ["# The ledger", "", "Written by `shoal claims --markdown`; do not edit.", "", LEAD, ""]
    lines += [counts_text(records), ""]
    papers = dict.fromkeys(r["claim"].partition(".")[0] for r in records)
    for paper in papers:
        mine = [r for r in records if r["claim"].startswith(f"{paper}.")]
        lines += [f"## {paper}", "", "| claim | verdict | draws | median [95 % sequence] |",
                  "| --- | --- | --- | --- |"]  # fmt: skip
        for r in sorted(mine, key=lambda r: GROUPS.index(word_of(r))):
            reason = reason_of(r)
            verdict = f"**{word_of(r)}**" + (f" ({reason})" if reason else "")
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


def write_pages(
    out: Path, records: Sequence[Json], others: Sequence[Any], write: Callable[[Path, bytes], None]
) -> None:
    """An index, and a page for every claim and version."""
    shown = [_view(record) for record in records]
    lead = LEAD.replace("; [how](evidence.md)", "")
    made = page.environment()
    template, shared = made.get_template("claim.html.j2"), page.shell(page.script())
    for view in shown:
        write(out / view["file"], template.render(claim=view, **shared).encode())
    found = counts(records)
    papers = dict.fromkeys(view["paper"] for view in shown)
    by_paper = {p: [v for v in shown if v["paper"] == p] for p in papers}
    rows = tuple(
        (paper, *(str(sum(v["word"] == group for v in mine)) for group in found))
        for paper, mine in by_paper.items()
    )
    index = made.get_template("ledger.html.j2").render(
        papers=by_paper, counts=found, groups=[group.replace(" ", "-") for group in GROUPS],
        total=counts_text(records), summary=("", ("paper", *found), rows), lead=lead,
        against=[view for view in shown if view["word"] == "contradicted"],
        others=[(o.statement, other_words(o)) for o in others], **page.shell(),
    )  # fmt: skip
    write(out / "index.html", index.encode())


def _view(record: Json) -> Json:
    """A record with the words of its page."""
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
        "file": f"{record['claim']}.v{record['version']}.html",
        "word": word_of(record), "mark": word_of(record).replace(" ", "-"),
        "sentence": sentence(record), "median_text": median_text(record),
        "limits_text": limits_text(record), "settings": settings,
        "control_table": ("", head, controls),
        # what follows in braces stands below, setting by setting
        "setting_words": _sentence(record["setting"].get("setting", "").partition("; {")[0]),
        "doubts": doubts(record), "about_median": about_median(record),
        "bend_words": bend_words(record),
        "why": _sentence(record["why"]), "plots": claim_plots(record), "strip": strip(record),
        "support_words": support_words(record), "repeat": repeat,
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
