"""The ledger's verdicts once more, from its files alone, by code that shares nothing with shoal.

Bets are integrals by Gauss-Legendre quadrature (exact for polynomials of these degrees), Holm's
rule is written out as in a textbook, and no function of ``shoal.evidence`` is called.
"""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shoal.cli import claiming
from shoal.disk.ledger import LedgerFolder

LEDGER = Path(__file__).parents[1] / "ledger"
NODES, WEIGHTS = np.polynomial.legendre.leggauss(400)  # exact up to degree 799


def wealth(events, share):
    """The bet on every share from ``share`` to 1, after every seed."""
    p = share + (1 - share) * (NODES + 1) / 2
    stakes, found = WEIGHTS / 2, []
    for event in events:
        stakes = stakes * (p / share if event else (1 - p) / (1 - share))
        found.append(stakes.sum())
    return np.array(found)


def largest(path):
    return max(path, default=1.0)


def bets(line, rows):
    """Largest bets against the null of *supported* and that of *contradicted*."""
    window = isinstance(line["for"], list)
    a, b = (float(x) for x in (line["for"] if window else (line["for"], line["against"])))
    seen = [row for row in rows if row[0] is not None]
    if line["ties"] == "abstain":
        seen = [row for row in seen if not row[0] == row[1] == a == b]
    lo, hi = (np.array([row[k] for row in seen]) for k in (0, 1))
    if window:
        needed = [lo > a, hi < b]
        if line["kind"] == "scaling":
            bend, margin = np.array([row[2:] for row in seen]).reshape(-1, 2), (b - a) / 2
            needed += [bend[:, 0] > -margin, bend[:, 1] < margin]
        outside = (wealth(hi < a, 0.5) + wealth(lo > b, 0.5)) / 2
        return min(largest(wealth(events, 0.5)) for events in needed), largest(outside)
    said = line["quantifier"]["share"]
    share = float(Fraction("9/10" if said == "all" else said))
    return largest(wealth(lo > a, share)), largest(wealth(hi < b, 1 - share))


def holm(nulls):
    """Names of rejected nulls of ``[(name, largest bet, round)]``, smallest p first."""
    found = {}
    while True:
        ranked = sorted(nulls, key=lambda null: -null[1])
        for name, bet, number in ranked:
            earlier = sum(r <= number for r in found.values())
            if name not in found and 1 / bet <= 0.05 / (512 - earlier) * (1 + 1e-9):
                found[name] = number
                break
        else:
            return set(found)


def files():
    lines = [json.loads(line) for line in (LEDGER / "registered.jsonl").read_text().splitlines()]
    for line in lines:
        path = LEDGER / "results" / f"{line['claim']}.v{line['version']}.json"
        yield line, json.loads(path.read_text()) if path.is_file() else None


@pytest.fixture(scope="module")
def records():
    """What shoal says of every registration."""
    found, _ = claiming._read(LedgerFolder(LEDGER), claiming.wanted([]))
    return {(r["claim"], r["version"]): r for r in found if r["status"] != "exploratory"}


def test_every_verdict_follows_from_the_files(records):
    nulls, kept = [], {}
    for line, result in files():
        name = (line["claim"], line["version"])
        kept[name] = pair = bets(line, result["effects"]) if result else (1.0, 1.0)
        number = line["seeds"][0] // 10_000
        nulls += [((*name, side), bet, number) for side, bet in zip("+-", pair, strict=True)]
    refuted = holm(nulls)
    assert records.keys() == kept.keys()
    for name, record in records.items():
        ours = record["e"]["for_max"], record["e"]["against_max"]
        assert ours == pytest.approx(kept[name], rel=1e-9)
        if record["verdict"]["word"] == "supported":
            assert (*name, "+") in refuted
            assert (*name, "-") not in refuted
        elif record["verdict"]["word"] == "contradicted":
            assert (*name, "-") in refuted
        else:  # nothing is decided and not said, save where a control stands in the way
            decided = (*name, "+") in refuted or (*name, "-") in refuted
            hidden = record["verdict"]["reason"] in ("control failed", "controls not finished")
            assert not decided or hidden or record["verdict"]["reason"] == "conflict"


def test_every_control_follows_from_the_files(records):
    for line, result in files():
        for number, control in enumerate(line["controls"]):
            rows = result["controls"][number]["effects"] if result and result["controls"] else []
            rule = line if isinstance(line["for"], list) else line | {"against": line["for"]}
            for_, against = bets(rule, rows)
            right = {"negative": against, "positive": for_}[control["sort"]]
            said = records[line["claim"], line["version"]]["controls"][number]
            assert said["e"] == pytest.approx(right, rel=1e-9)
            assert (said["passed"] is True) == (right >= 20)


def test_no_seed_is_used_twice():
    """Scored seeds, their repetitions and controls of one registration are disjoint."""
    used = {}
    for line, result in files():
        first, count = line["seeds"][0], len(result["effects"]) if result else 0
        replica = LEDGER / "replicas" / f"{line['claim']}.v{line['version']}.json"
        ranges = [range(first, first + count)]
        if replica.is_file():
            again = json.loads(replica.read_text())
            ranges.append(range(again["first_seed"], again["first_seed"] + len(again["effects"])))
        for number, _ in enumerate(line["controls"]):
            begin = claiming.books.control_seed(line, number)
            controls = result["controls"] if result else []
            count = len(controls[number]["effects"]) if number < len(controls) else 0
            ranges.append(range(begin, begin + count))
        seeds = [seed for one in ranges for seed in one]
        assert len(seeds) == len(set(seeds))
        assert all(9999 < seed < math.inf for seed in seeds)
        earlier = used.setdefault(line["claim"], set())
        assert earlier.isdisjoint(seeds)  # versions of a claim, and their controls
        earlier |= set(seeds)
