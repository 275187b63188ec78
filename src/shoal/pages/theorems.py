"""A theorem compared with runs, as a card: statement, formula, gauges, verdict, what was seen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.certificates import SMALLEST, is_condition
from shoal.lab import visit
from shoal.pages.formulas import FORMULAS
from shoal.pages.page import Section, Table
from shoal.pages.svg import Gauge

_HOLDS = {True: "yes", False: "no", None: "?"}
MOST_SEEDS = 3  # whose tables are shown


def number(value: float | None) -> str:
    """Four significant digits; a dash for what is not a number."""
    return "–" if value is None or not np.isfinite(value) else visit.number(value)


def _name(theorem: dict[str, Any]) -> str:
    return f"{theorem['paper']}.{theorem['theorem']}"


def seed_verdicts(theorem: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """For every verdict the seeds that have it."""
    seeds: dict[str, list[str]] = {}
    for result in theorem["results"]:
        seeds.setdefault(result["verdict"], []).append(str(result["seed"]))
    lines = []
    for verdict, mine in seeds.items():
        shown = ", ".join(mine[:12]) + (f", ... ({len(mine)} in all)" if len(mine) > 12 else "")
        lines.append((f"seed{'s' if len(mine) > 1 else ''} {shown}", verdict))
    return tuple(lines)


def _worst(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    known = [line for line in lines if line["margin"] is not None]
    return min(known, key=lambda line: line["margin"], default=None)


TINY = 1e-300  # how a strict inequality writes its zero
ENDLESS = {
    ("lhs",): "left side not finite",
    ("rhs",): "right side not finite",
    ("lhs", "rhs"): "both sides not finite",
}


def _endless(value: float | None) -> bool:
    return value is None or not np.isfinite(value)


def _side(value: float) -> str:
    return "0" if abs(value) < TINY else "−" * (value < 0) + f"{abs(value):.3g}"


def _both(line: dict[str, Any]) -> str:
    """Both sides with the sign that is true of them; a yes or no in these words."""
    if is_condition(line["lhs"], line["rhs"]):
        return "yes" if line["lhs"] == 0 else "no"
    endless = [name for name in ("lhs", "rhs") if _endless(line[name])]
    if endless:  # a sign between them would say nothing
        return ENDLESS[tuple(endless)]
    strict = line["lhs"] == SMALLEST  # it stands for 0 in "0 < x"
    sign = {True: "≤<"[strict], False: ">≥"[strict], None: "against"}[line["holds"]]
    return f"{_side(line['lhs'])} {sign} {_side(line['rhs'])}"


def _against(line: dict[str, Any]) -> str:
    both = _both(line)
    return f"{line['name']}: {both}" if both in ("yes", "no") else f"{line['name']} ({both})"


def _rates(result: dict[str, Any]) -> str:
    if result["predicted_rate"] is None or result["measured_rate"] is None:
        return ""
    return (
        f" A step loses {number(result['measured_rate'])} of the risk; "
        f"proved are {number(result['predicted_rate'])}."
    )


def seen(theorem: dict[str, Any]) -> str:
    """What came out, in a sentence about the first seed with the most frequent verdict."""
    results = theorem["results"]
    if not results:
        return ""
    words = [result["verdict"] for result in results]
    word = max(dict.fromkeys(words), key=words.count)
    result = results[words.index(word)]
    failed = [line for line in result["hypotheses"] if line["holds"] is False]
    few = f"{len(failed)} of {len(result['hypotheses'])} hypotheses"
    if word == "not applicable" and failed:
        worst = _worst(failed) or failed[0]
        verb = "fails" if len(failed) == 1 else "fail"
        said = f"{few} {verb}, so nothing is proved. Farthest off: {_against(worst)}."
    elif word == "violated":
        broken = [line for line in result["conclusions"] if line["holds"] is False]
        what = _against(broken[0]) if broken else "a conclusion"
        said = f"The hypotheses hold and a conclusion does not: {what}."
    elif word == "holds":
        tight = _worst(result["hypotheses"])
        near = f" Closest to its limit: {_against(tight)}." if tight else ""
        said = f"All hypotheses hold, and so does what follows.{near}{_rates(result)}"
    else:
        said = "The arithmetic does not decide: rounding could have turned a side."
    return said if len(set(words)) == 1 else f"Most seeds ({words.count(word)}): {said}"


def _ratio(line: dict[str, Any]) -> float | None:
    """Left over right side, where that says something."""
    left, right = line["lhs"], line["rhs"]
    if left is None or right is None or not np.isfinite([left, right]).all():
        return None if line["holds"] is not False else np.inf
    if right <= 0 or left < 0:  # no ratio, but which side is larger
        return {True: 0.0, False: np.inf, None: None}[line["holds"]]
    return left / right


def gauges(theorem: dict[str, Any]) -> tuple[Gauge, ...]:
    """Each hypothesis of the first seed as left side over right side."""
    found = []
    for line in theorem["results"][0]["hypotheses"] if theorem["results"] else ():
        if line.get("relation", "<=") == "<=":
            found.append(Gauge(line["name"], _ratio(line), _both(line), line["holds"]))
    return tuple(found)


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    if (relation := line.get("relation", "<=")).startswith("not "):
        return line["name"], "", relation, "–", ""
    if is_condition(line["lhs"], line["rhs"]):
        return line["name"], "", "", "–", _HOLDS[line["holds"]]
    margin = "–" if line["margin"] is None else visit.signed(line["margin"])
    if line["lhs"] == SMALLEST:
        return line["name"], "0", f"< {number(line['rhs'])}", margin, _HOLDS[line["holds"]]
    right = f"{'=' if relation == '=' else '≤'} {number(line['rhs'])}"
    return line["name"], number(line["lhs"]), right, margin, _HOLDS[line["holds"]]


def theorem_tables(theorem: dict[str, Any]) -> tuple[Table, ...]:
    """Both sides of every inequality, for some seeds."""
    tables = []
    for result in theorem["results"][:MOST_SEEDS]:
        for kind in ("hypotheses", "conclusions"):
            head = (kind, "left side", "right side", "margin", "holds")
            rows = tuple(map(_cells, result[kind]))
            tables.append((f"seed {result['seed']}: {result['verdict']}", head, rows))
    return tuple(tables)


def formula_of(theorem: dict[str, Any]) -> str:
    """Assumption and conclusion in LaTeX, if the theorem's formula is known."""
    known = FORMULAS.get(_name(theorem)) or FORMULAS.get(theorem["theorem"])
    return rf"$${known[0]}$$ $$\Longrightarrow\quad {known[1]}$$" if known else ""


def theorem_section(theorem: dict[str, Any]) -> Section:
    """The card of a theorem."""
    said = seen(theorem)
    source = theorem.get("source")
    return Section(
        _name(theorem), theorem.get("statement") or "", verdicts=seed_verdicts(theorem),
        finding=f"{_name(theorem)}: {said}" if said else "",
        source=f"Source: {source}" if source else "", formula=formula_of(theorem), seen=said,
        gauges=gauges(theorem), more=theorem_tables(theorem),
        more_title="Both sides of every inequality",
    )  # fmt: skip


def certificate_sections(
    theorem: dict[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[Section]:
    """A certificate as ``shoal certify --json`` printed it; settings that are not the defaults."""
    usual = {k: str(v) for k, v in (defaults or {}).items()}
    setting = tuple((str(k), str(v)) for k, v in theorem.get("setting", {}).items())
    changed = tuple((k, v) for k, v in setting if usual.get(k) != v)
    card = theorem_section(theorem)
    if not setting:
        return [card]
    shown = changed or (("set", "nothing: all settings are the paper's"),)
    folded = Section("Setting", details=shown, more_details=setting, more_title="All settings")
    return [card, folded]
