"""The ledger: registrations and their chain, spending seeds, what is stale, pages."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shoal.cli import claiming, main
from shoal.disk.ledger import LedgerFolder
from shoal.errors import InputError
from shoal.evidence.rules import Effect
from shoal.lab import ledger, spending
from shoal.lab.claim import Claim, Control, above, below, between, exponent, make_claim
from shoal.lab.ledger import Entry
from shoal.pages import ledger as pages
from shoal.pages import ledger_plot
from shoal.papers import BUILT_IN, paper_of

REPOSITORY = Path(__file__).parent.parent
TOY = str(REPOSITORY / "tests" / "toy_paper.py")


def noise(seed):
    return float(np.random.default_rng(seed).normal())


def coin(design, seeds):
    return [design["mean"] + noise(seed) for seed in seeds]


def claim_of(key="demo.coin", mean=3.0, test=None, **more):
    given = {"source": "ours", "design": {"mean": mean}, "control": {"mean": -3.0}, "seconds": 0.1}
    test = test or above(0.0, "heads")
    return make_claim(key, "Heads come up.", coin, test, **(given | more))


def line_of(claim, place=0, number=1, previous=None):
    given = {"date": "2026-01-01", "previous": previous or ledger.line_digest("")}
    return ledger.new_registration(claim, place=place, round_number=number, **given)


def entry_of(claim, place=0, number=1, count=0):
    line = line_of(claim, place, number)
    result = ledger.empty_result(claim.key, 1, line["digest"], line["seeds"][0])
    return Entry(line, with_seeds(claim, result, count), claim)


def with_seeds(claim, result, count):
    first = result["first_seed"]
    return ledger.with_effects(result, claim.effects(range(first, first + count)), None)


# ----------------------------------------------------------------------------------- registrations


def test_the_worked_digest():
    fields = {
        "against": "0", "alpha": "0.05", "claim": "demo.faster",
        "design": {"grid": {"residual": ["both", "none"]}, "num_steps": 500, "step_size": "0.01"},
        "for": "0", "kind": "direction", "seeds": [10000, 14999], "share": "1/2",
        "statement": "With residuals the loss is lower.", "statistic": "log10_ratio(last_loss)",
        "ties": "against", "version": 1,
    }  # fmt: skip
    expected = "12a2fe5fbcf9e4d7d4281d0c1a6b4b306b6b20d1dabd2237f0d1a27d2863d0ed"
    assert ledger.digest(fields) == expected
    more = {"date": "d", "seconds_per_seed": 1, "previous": "p", "digest": "x"}
    assert ledger.digest(fields | more) == expected


def test_numbers_are_written_so_that_a_digest_cannot_waver():
    assert ledger.canonical({"a": 0.01, "b": 3, "c": (1.0, "x", None, True)}) == {
        "a": "0.01", "b": 3, "c": ["1.0", "x", None, True]}  # fmt: skip
    with pytest.raises(InputError, match="a design holds"):
        ledger.canonical({"a": object()})


def test_a_registration_can_be_read_back_without_the_code():
    claim = claim_of(test=between(-1.0, 2.0, "gap"), why="said so")
    line = json.loads(json.dumps(line_of(claim)))
    assert ledger.rule_of(line) == claim.test.rule
    assert ledger.criterion_of(line) == claim.test
    assert line["seeds"] == [10000, 14999]
    assert ledger.control_seed(line, 0) == 15000


def chain(*claims):
    lines = []
    for place, claim in enumerate(claims):
        previous = ledger.line_digest(lines[-1] if lines else "")
        lines.append(json.dumps(line_of(claim, place, previous=previous)))
    return lines


def test_the_chain_of_digests_notices_every_change():
    lines = chain(claim_of("demo.a"), claim_of("demo.b"), claim_of("demo.c"))
    assert [line["claim"] for line in ledger.check_chain(lines)] == ["demo.a", "demo.b", "demo.c"]
    changed = lines[1].replace("Heads come up", "Heads come up often")
    for broken in ([lines[0], changed, lines[2]], lines[1:], [lines[0], lines[2]], ["{"]):
        with pytest.raises(InputError, match=r"changed after it was written|cannot be read"):
            ledger.check_chain(broken)
    dated = lines[1].replace("2026-01-01", "2026-01-02")  # not digested, but chained
    with pytest.raises(InputError, match="line 3"):
        ledger.check_chain([lines[0], dated, lines[2]])


def test_a_changed_limit_is_refused_without_a_new_version():
    line = line_of(claim_of())
    stricter = above(1.0, "heads")
    with pytest.raises(InputError, match="differs from its registration in for, against, why"):
        ledger.require_frozen(claim_of(test=stricter, why="stricter"), line)
    with pytest.raises(InputError, match="differs from its registration"):
        ledger.next_version(claim_of(test=stricter, why="stricter"), line)
    with pytest.raises(InputError, match="say in changed="):
        ledger.next_version(claim_of(version=2), line)
    with pytest.raises(InputError, match="the next is 2"):
        ledger.next_version(claim_of(version=3, changed="x"), line)
    assert ledger.next_version(claim_of(version=2, changed="a wrong limit"), line)
    assert not ledger.next_version(claim_of(seconds=9.0), line)  # the cost may change
    assert ledger.next_version(claim_of(), None)


# sha256sum of the first 83 lines, as they were registered before any scored seed was run
FIRST_ROUND = "5bc0766147512d75c3649e277ca74f797443cfbf649af4ee12de3641f5095c93"


def test_the_registrations_in_the_repository_are_a_chain_that_only_grew():
    lines = (REPOSITORY / "ledger" / "registered.jsonl").read_text().splitlines(keepends=True)
    ledger.check_chain([line.rstrip("\n") for line in lines])
    assert hashlib.sha256("".join(lines[:83]).encode()).hexdigest() == FIRST_ROUND


def test_every_registered_claim_is_the_one_in_the_code():
    lines = LedgerFolder(REPOSITORY / "ledger").registrations()
    newest = {line["claim"]: line for line in lines}
    claims = {c.key: c for key in BUILT_IN for c in paper_of(key).claims if isinstance(c, Claim)}
    assert newest.keys() == {key for key, claim in claims.items() if not claim.waits}
    for key, line in newest.items():
        ledger.require_frozen(claims[key], line)


def test_there_are_256_places():
    with pytest.raises(InputError, match="all 256 places"):
        line_of(claim_of(), place=256)


# ---------------------------------------------------------------------------------------- verdicts


def passed(entry):
    """An entry whose control has passed."""
    line, claim = entry.registration, entry.claim
    first = ledger.control_seed(line, 0)
    found = claim.effects(range(first, first + 8), claim.controls[0].changes)
    return entry._replace(result=ledger.with_effects(entry.result, found, 0))


def test_a_record_tells_the_verdict_over_the_whole_ledger():
    sure, unsure = (
        passed(entry_of(claim_of("demo.a"), 0, count=17)),
        entry_of(claim_of("demo.b"), 1),
    )
    one, two = ledger.records([sure, passed(unsure)])
    assert one["verdict"]["word"] == "supported"
    assert one["e"]["for_max"] == 14563.5
    assert one["seeds"] == {"counted": 17, "abstained": 0, "above": 17, "below": 0, "unknown": 0}
    assert two["verdict"] == {"word": "inconclusive", "reason": "undecided",
                              "level": "family-wise 5 % over 512 hypotheses"}  # fmt: skip
    assert one["controls"][0]["passed"]
    json.dumps(one)


def test_a_verdict_waits_for_its_controls_and_a_failed_one_hides_it():
    entry = entry_of(claim_of(), count=17)
    (record,) = ledger.records([entry])
    assert record["verdict"]["reason"] == "controls not finished"
    wrong = entry._replace(claim=claim_of(control={"mean": 3.5}))
    first = ledger.control_seed(entry.registration, 0)
    found = wrong.claim.effects(range(first, first + 17), {"mean": 3.5})
    failed = entry._replace(result=ledger.with_effects(entry.result, found, 0))
    (record,) = ledger.records([failed])
    assert record["verdict"]["reason"] == "control failed"
    assert record["e"]["for_max"] == 14563.5  # it keeps its place in the family


def test_exploratory_results_have_no_verdict_and_stay_outside_the_family():
    entry = passed(entry_of(claim_of(), count=20))._replace(exploratory=True)
    (record,) = ledger.records([entry])
    assert (record["status"], record["verdict"]["word"]) == ("exploratory", "exploratory")
    assert ledger.rejected_nulls([entry]) == set()


def test_what_is_not_known_survives_the_file():
    effects = [
        Effect((-np.inf, np.inf)),
        None,
        Effect((1.0, 2.0), (-0.1, 0.1)),
        Effect((3.0, np.inf)),
    ]
    stored = json.loads(json.dumps([ledger.effect_json(e) for e in effects]))
    assert [ledger.effect_of(one) for one in stored] == effects


# ---------------------------------------------------------------------------------------- spending


def spend(entries, most=10_000):
    """Run all jobs; the order of claims and the number of seeds."""
    order = []
    while most > 0 and (job := spending.next_job(entries)) is not None:
        entry = entries[job.entry]
        result = spending.perform(entry, job, code="c", date="d")
        entries[job.entry] = entry._replace(result=result)
        order.append((entry.registration["claim"], job.control, len(job.seeds)))
        most -= len(job.seeds)
    return order


def test_what_is_nearest_in_seconds_comes_first_and_controls_before_their_claim():
    claims = [claim_of("demo.b", seconds=2.0), claim_of("demo.a", seconds=1.0)]
    entries = [entry_of(claim, k) for k, claim in enumerate(claims)]
    order = spend(entries)
    alone = [(0, 8), (None, 8), (None, 9)]  # a control, the pilot, and the rest at once
    assert order == [("demo.a", *job) for job in alone] + [("demo.b", *job) for job in alone]
    assert spending.decided(entries) == [True, True]
    assert [len(e.result["effects"]) for e in entries] == [17, 17]


def test_a_claim_without_hope_is_set_aside_and_continued_last():
    fair = claim_of("demo.fair", mean=0.0, max_seeds=40, seconds=0.01)
    sure = claim_of("demo.sure", seconds=5.0)
    entries = [entry_of(fair, 0), entry_of(sure, 1)]
    order = spend(entries)
    sure_done = max(k for k, (key, _, _) in enumerate(order) if key == "demo.sure")
    later = [n for k, (key, _, n) in enumerate(order) if k > sure_done and key == "demo.fair"]
    assert sum(later) > 0
    assert len(entries[0].result["effects"]) == 40
    assert spending.next_job(entries) is None


def test_seeds_are_taken_in_order_and_none_is_skipped():
    seen = []

    def watched(design, seeds):
        seen.extend(seeds)
        return coin(design, seeds)

    claim = make_claim("demo.w", "S.", watched, above(0.0, "x"), source="ours",
                       design={"mean": 3.0}, control={"mean": -3.0})  # fmt: skip
    spend([entry_of(claim)])
    assert seen == [*range(15000, 15008), *range(10000, 10017)]


def test_the_result_does_not_depend_on_order_or_interruptions():
    claims = [claim_of(f"demo.{k}", mean=m) for k, m in (("a", 3.0), ("b", 1.0), ("c", 0.3))]
    alone = [entry_of(claim, k) for k, claim in enumerate(claims)]
    spend(alone)
    for most in (7, 30, 61):
        some = [entry_of(claim, k) for k, claim in enumerate(claims)]
        spend(some, most)
        spend(some)
        kept = [e.result["effects"] for e in some]
        assert kept == [e.result["effects"] for e in alone]


def test_a_claim_that_cannot_be_tested_gets_no_seeds():
    assert spending.next_job([entry_of(claim_of(waits="too small"))]) is None


def test_budgets():
    assert spending.budget_seconds("30m") == 1800
    for wrong in ("soon", "-3s", "", "inf"):
        with pytest.raises(InputError, match="expected a time"):
            spending.budget_seconds(wrong)


def test_changed_code_is_replayed_and_what_differs_is_stale():
    entry = entry_of(claim_of(), count=12)
    same = spending.replay(entry, code="new", date="d")
    assert (same["stale"], same["code"]) == (None, ["new"])
    moved = entry._replace(claim=claim_of(mean=3.001))
    assert spending.replay(moved, code="new", date="d")["stale"] is None  # within 1 % of spread
    other = entry._replace(claim=claim_of(mean=3.5))
    found = spending.replay(other, code="new", date="d")
    assert found["stale"]["code"] == "new"
    (record,) = ledger.records([passed(other._replace(result=found))])
    assert record["status"] == "stale"
    assert pages.word_of(record) == "stale"
    assert spending.next_job([other._replace(result=found)]) is None


def test_a_verified_violation_refutes_a_statement_about_all_draws():
    checked = []

    def verify(design, seed):
        checked.append(seed)
        return True

    def rarely(design, seeds):
        return [design["mean"] - 10.0 * (seed == 10003) for seed in seeds]

    claim = make_claim("demo.all", "S.", rarely, above(0.0, "x", every=True), source="ours",
                       design={"mean": 1.0}, control={"mean": -1.0}, verify=verify)  # fmt: skip
    entries = [entry_of(claim)]
    spend(entries)
    assert checked == [10003]
    (record,) = ledger.records(entries)
    assert record["verdict"]["word"] == "contradicted"


# ------------------------------------------------------------------------------- the command line


@pytest.fixture
def shoal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        assert main(["claims", *words]) == code
        return capsys.readouterr()

    return call


def test_a_claim_s_whole_life_on_the_command_line(shoal, tmp_path):
    listed = shoal(TOY)
    assert "exploratory" in listed.out
    assert "not registered" in listed.err
    assert not (tmp_path / "ledger").exists()  # nothing is run, nothing written
    assert "round" in shoal("freeze", TOY).out
    assert "Nothing to freeze" in shoal("freeze", TOY).out
    spent = shoal(TOY, "--until-decided", "--seeds", "40")
    assert "E for" in spent.err
    spent = shoal(TOY, "--until-decided", "--out", "pages", "--markdown", "ledger.md")
    assert "3 of 3 decided" in spent.err
    assert shoal(TOY, "--list").out.count("supported") == 3
    told = shoal(f"{TOY}.learns").out
    assert "Supported: decades of risk lost is above 1 in 17 of 17 draws" in told
    assert "Rule: supported if" in told
    records = json.loads(shoal(TOY, "--json").out)
    assert {r["verdict"]["word"] for r in records} == {"supported"}
    assert shoal(TOY, "--until-decided").err.startswith("3 of 3 decided")  # nothing left to do
    replicated = shoal(TOY, "--replicate").err
    assert "3 of 3 verdicts equal, 0 not decided, 0 reversed" in replicated
    told = shoal(f"{TOY}.learns").out
    assert "Repeated on disjoint seeds: supported by itself (17 of 17 draws for" in told
    assert "stands" in shoal(TOY, "--replay").err
    page = (tmp_path / "pages" / "doe2024.learns.v1.html").read_text()
    for part in ("<svg", "Why this limit", "Controls", "Registration", "labels"):
        assert part in page
    assert page.count("<script>") == 1  # our own
    index = (tmp_path / "pages" / "index.html").read_text()
    assert 'id="show-supported"' in index
    assert "3 claims: 3 supported." in (tmp_path / "ledger.md").read_text()
    # new claims and versions belong to the next round from now on
    folder = LedgerFolder(tmp_path / "ledger")
    assert folder.rounds_with_seeds() == {1}


def test_what_cannot_be_done_is_said(shoal, tmp_path):
    assert "belong to --until-decided" in shoal(TOY, "--budget", "3m", code=2).err
    assert "name the claims" in shoal("freeze", code=2).err
    assert "no decided claim" in shoal(TOY, "--replicate", code=2).err
    shoal("freeze", TOY)
    path = tmp_path / "ledger" / "registered.jsonl"
    path.write_text(path.read_text().replace("by more than 0.05", "by more than 0.01"))
    assert "was changed after it was written" in shoal(TOY, code=2).err


def test_a_later_freeze_opens_a_new_round(tmp_path, monkeypatch):
    first, second = claim_of("demo.a"), claim_of("demo.b")
    chosen = [first]
    monkeypatch.setattr(claiming, "wanted", lambda names: chosen)
    claiming._freeze(["demo"], tmp_path, json=True)
    with LedgerFolder(tmp_path) as folder:
        line = folder.registrations()[0]
        result = folder.result("results", "demo.a", 1, line["digest"], line["seeds"][0])
        folder.write("results", with_seeds(first, result, 2))
    chosen.append(second)
    claiming._freeze(["demo"], tmp_path, json=True)
    lines = LedgerFolder(tmp_path).registrations()
    assert [line["seeds"][0] for line in lines] == [10000, 20000]


def test_a_claim_that_fails_does_not_stop_the_others(tmp_path, capsys):
    def broken(design, seeds):
        if seeds:
            raise TypeError("got multiple values")
        return []

    bad = make_claim("demo.bad", "S.", broken, above(0.0, "x"), source="ours", design={"a": 1},
                     control={"a": 2})  # fmt: skip
    with LedgerFolder(tmp_path) as folder:
        entries = [entry_of(bad), entry_of(claim_of(), 1)]
        claiming._spend(folder, entries, math.inf, None, claiming.Hands(None, {}))
    said = capsys.readouterr().err
    assert "demo.bad is left out: TypeError: got multiple values" in said
    assert "1 of 1 decided" in said


def test_two_processes_do_not_write_into_one_ledger(tmp_path):
    with LedgerFolder(tmp_path), pytest.raises(InputError, match="another process"):
        LedgerFolder(tmp_path).__enter__()


def undated(folder):
    """The bytes of all results, without dates and seconds."""
    found = {}
    for path in sorted(folder.glob("results/*.json")):
        text = path.read_text()
        logged = text[text.index('"log": {') : text.index("}", text.index('"log": {')) + 1]
        found[path.name] = text.replace(logged, "")
    return found


@pytest.mark.slow
def test_ten_kills_leave_the_same_records(tmp_path):
    words = [sys.executable, "-m", "shoal", "claims", TOY, "--until-decided"]

    def start(where):
        where.mkdir()
        freeze = [*words[:4], "freeze", TOY]
        subprocess.run(freeze, cwd=where, check=True, capture_output=True)
        return subprocess.Popen(words, cwd=where, stderr=subprocess.PIPE, text=True)

    calm, hit = tmp_path / "calm", tmp_path / "hit"
    undisturbed = start(calm)
    undisturbed.communicate()
    assert undisturbed.returncode == 0
    process = start(hit)
    for _ in range(10):
        assert process.stderr.readline()  # a batch is done, the next has begun
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        process = subprocess.Popen(words, cwd=hit, stderr=subprocess.PIPE, text=True)
    process.communicate()
    assert process.returncode == 0
    assert undated(hit / "ledger") == undated(calm / "ledger") != {}


# ------------------------------------------------------------------------------------------- pages


def test_strangers_words_are_escaped(tmp_path):
    evil = make_claim("demo.evil", "<script>alert(1)</script>.", coin, above(0.0, "<b>x</b>"),
                      source="ours", design={"mean": 3.0}, control={"mean": -3.0})  # fmt: skip
    record = ledger.records([passed(entry_of(evil, count=17))])
    pages.write_pages(tmp_path, record, [], lambda path, text: path.write_bytes(text))
    text = "".join(path.read_text() for path in tmp_path.glob("*.html"))
    assert "<script>alert" not in text
    assert "<b>x</b>" not in text


def test_every_state_of_a_claim_has_a_page(tmp_path):
    empty = entry_of(claim_of("demo.empty"), 0)
    wide = make_claim("demo.wide", "S.", lambda d, s: [(d["lo"], np.inf)] * len(s),
                      above(0.0, "x"), source="ours", design={"lo": 1.0},
                      control={"lo": -9.0})  # fmt: skip
    entries = [empty, entry_of(wide, 1, count=9),
               passed(entry_of(claim_of("demo.old"), 2, count=17))]  # fmt: skip
    entries[2] = entries[2]._replace(superseded_by=2)
    found = ledger.records(entries)
    pages.write_pages(tmp_path, found, [], lambda path, text: path.write_bytes(text))
    assert len(list(tmp_path.glob("*.html"))) == 4
    assert "no seed has been run" in (tmp_path / "demo.empty.v1.html").read_text()
    assert "Superseded by version 2" in (tmp_path / "demo.old.v1.html").read_text()
    assert pages.markdown(found, []).count("\n| ") == 5


def test_a_page_says_what_is_doubtful(tmp_path):
    claim = claim_of("demo.against", mean=-3.0, control=None, controls=[Control({"mean": -4.0})])
    (record,) = ledger.records([passed(entry_of(claim, count=17))])
    assert record["verdict"]["word"] == "contradicted"
    said = " ".join(pages.doubts(record))
    assert "no positive control" in said
    assert "not been repeated" in said
    positive = record["controls"][0] | {"sort": "positive"}
    said = " ".join(pages.doubts(record | {"controls": [*record["controls"], positive]}))
    assert "no positive control" not in said


def test_a_share_of_draws_is_told_as_a_share(tmp_path):
    rare = make_claim("demo.rare", "S.", lambda d, s: [float(seed % d["every"] == 0) for seed in s],
                      above(0.5, "1 if so, else 0,", share=Fraction(1, 20)), source="ours",
                      design={"every": 4}, control={"every": 10**9}, why="said so")  # fmt: skip
    (record,) = ledger.records([entry_of(rare, count=8)])
    assert "in 2 of 8 draws; 25.0% of draws; 95 % interval for the share" in pages.sentence(record)
    assert pages.about_words(record).endswith("a share of draws: more than 5 %.")
    assert pages.rule_text(record) == (
        "supported if so in more than 5 % of draws; contradicted if in fewer"
    )
    assert pages.effect_text(record) == "1 if so, else 0"


def test_controls_of_two_sorts_have_seeds_of_their_own():
    claim = claim_of(control=None, controls=[Control({"mean": -3.0}), Control({"mean": -4.0}),
                                             Control({"mean": 9.0}, "positive")])  # fmt: skip
    line = line_of(claim)
    assert [ledger.control_seed(line, k) for k in range(3)] == [15000, 15500, 17500]


def test_the_line_in_the_interval_is_the_sample_median():
    claim = claim_of(mean=-1.0)
    (record,) = ledger.records([entry_of(claim, count=30)])
    panel = ledger_plot.median_panel(record)
    (curve,) = panel.curves
    values = [low for low, _ in record["effects"]]
    assert curve.y.tolist() == [np.median(values[: int(k)]) for k in curve.x]
    assert [curve.low[-1], curve.high[-1]] == list(record["paths"]["median"][-1])
    assert panel.y_label == "interval for the median (band) and sample median (line)"


def test_draws_that_abstain_by_a_tie_are_not_drawn():
    test = above(0.0, "heads", ties="abstain")
    claim = make_claim("demo.tie", "S.", lambda d, s: [float(seed % 3 - 1) for seed in s], test,
                       source="ours", design={"x": 1}, control={"x": 2})  # fmt: skip
    (record,) = ledger.records([entry_of(claim, count=30)])
    assert record["seeds"]["abstained"] == 10
    assert len(ledger_plot.effect_panel(record).curves[0].x) == record["seeds"]["counted"] == 20


def test_both_bets_are_drawn_as_the_largest_so_far():
    (record,) = ledger.records([entry_of(claim_of(mean=0.0), count=40)])
    panel = ledger_plot.bets_panel(record)
    assert all((np.diff(curve.y) >= 0).all() for curve in panel.curves)
    assert [curve.y[-1] for curve in panel.curves] == [
        record["e"]["for_max"], record["e"]["against_max"]
    ]  # fmt: skip
    assert panel.y_label == "largest E so far"


def failed_record(**more):
    claim = claim_of(control={"mean": 3.5})
    entry = entry_of(claim)
    first = ledger.control_seed(entry.registration, 0)
    found = claim.effects(range(first, first + 17), {"mean": 3.5})
    failed = entry._replace(result=ledger.with_effects(entry.result, found, 0))
    return ledger.records([failed])[0] | more


def test_a_failed_control_is_told_with_its_numbers():
    record = failed_record()
    assert pages.sentence(record) == (
        "No verdict: the negative control failed (17 control draws: 17 for, 0 against, 0 neither; "
        "it came out for the claim where it should not), so the claim's own seeds were not run."
    )
    assert pages.doubts(record)[0].startswith("A control failed")


def test_a_stale_page_says_which_seed_changed_and_what_was_known_before():
    entry = entry_of(claim_of(), count=12)
    was = entry.result["effects"][:2]
    now = [was[0], [was[1][0] + 0.5, was[1][1] + 0.5]]
    stale = {"code": "new", "date": "2026-11-20", "was": was, "now": now}
    (record,) = ledger.records([entry._replace(result=entry.result | {"stale": stale})])
    said = pages.stale_words(record)
    assert "first" not in said
    assert "[" not in said
    assert f"the second seed gives {now[1][0]:#.4g} (before: {was[1][0]:#.4g})" in said
    assert said.endswith("these results no longer count; it was not decided then.")
    assert pages.sentence(record).startswith("Before: heads is above 0 in 12 of 12 draws")


def test_a_scaling_tells_in_how_many_draws_its_line_bends():
    def slopes(design, seeds):
        return [Effect((1.0, 1.0), (b, b)) for b in (0.9 * (seed % 2) for seed in seeds)]

    claim = make_claim("demo.slope", "S.", slopes, exponent(0.7, 1.3, "the exponent"), why="so",
                       source="ours", design={"x": 1}, control={"x": 2})  # fmt: skip
    (record,) = ledger.records([entry_of(claim, count=10)])
    said = "lies in [0.7, 1.3] in 10 of 10 draws; the line bends by less than 0.3 in 5 of 10 draws"
    assert said in pages.sentence(record)


def test_doubts_name_the_only_control_and_where_one_stopped():
    (record,) = ledger.records([passed(entry_of(claim_of(), count=17))])
    assert "There is no positive control." in pages.doubts(record)
    crippled = record["controls"][0] | {"why": "the favoured side has a step 100 times smaller"}
    assert pages.ONE_SIDE in pages.doubts(record | {"controls": [crippled]})
    (record,) = ledger.records([passed(entry_of(claim_of(mean=0.0, max_seeds=100), count=40))])
    assert record["verdict"]["reason"] == "set aside"
    assert pages.doubts(record)[0] == (
        "Stopped after 40 of 100 registered seeds: no decision was in sight."
    )


def test_draws_that_abstain_are_told_with_their_reason():
    tied = above(0.0, "heads", ties="abstain")
    claim = make_claim(
        "demo.tie",
        "S.",
        lambda d, s: [[None, 0.0, 1.0][seed % 3] for seed in s],
        tied,
        source="ours",
        design={"x": 1},
        control={"x": 2},
        premise="it learns",
    )
    (record,) = ledger.records([entry_of(claim, count=9)])
    assert pages.abstained_words(record) == (
        "6 draws abstained, 3 because the premise fails (it learns), 3 because the effect is "
        "exactly at the limit; the verdict is about the others."
    )


def test_what_nobody_looked_at_is_told_apart_from_what_cannot_be_tested():
    (record,) = ledger.records([entry_of(claim_of())])
    yet = record | {"waits": "nobody has looked yet: exploratory seeds first"}
    small = record | {"waits": "at this size chance decides", "claim": "demo.b"}
    assert [pages.badge_of(r) for r in (yet, small)] == [pages.NOT_YET, pages.TOO_SMALL]
    assert pages.counts_text([yet, small]) == (
        "2 claims: 1 not examined yet, 1 not testable at this size."
    )


def test_a_claim_is_shown_with_its_sister(tmp_path):
    keys = ("demo.wide_equal_step", "demo.wide_tuned", "demo.tuned_alone")
    entries = [entry_of(claim_of(key), k, count=17) for k, key in enumerate(keys)]
    found = ledger.records([*map(passed, entries)])
    assert {k: r["claim"] for k, r in pages.sisters(found).items()} == {
        keys[0]: keys[1], keys[1]: keys[0]
    }  # fmt: skip
    pages.write_pages(tmp_path, found, [], lambda path, text: path.write_bytes(text))
    text = (tmp_path / "demo.wide_equal_step.v1.html").read_text()
    assert "At each side&#39;s own step: supported, median" in text or (
        "At each side&#x27;s own step: supported, median" in text
    )
    assert 'href="demo.wide_tuned.v1.html"' in text


def test_the_index_names_claims_and_counts_versions_apart(tmp_path):
    entries = [passed(entry_of(claim_of(f"demo.{k}"), n, count=17)) for n, k in enumerate("ab")]
    entries[0] = entries[0]._replace(superseded_by=2)
    found = [*ledger.records(entries), failed_record(claim="demo.c")]
    pages.write_pages(tmp_path, found, [], lambda path, text: path.write_bytes(text))
    text = (tmp_path / "index.html").read_text()
    assert "demo: 2 claims, 1 superseded version<" in text
    assert "<code>demo.b</code>" in text
    assert "1 inconclusive: control failed<" in text
    assert "<em>Supported</em> means" in text
    assert text.index('id="show-control-failed"') < text.index('id="findings"')


def test_a_limit_of_zero_has_no_sign():
    test = below(-0.05, "gain", against=0.0)
    (record,) = ledger.records([entry_of(claim_of(test=test, why="so"))])
    assert pages.rule_text(record).endswith("contradicted if it is above 0")
    (record,) = ledger.records([entry_of(claim_of(test=below(0.0, "gain")))])
    assert "below 0; contradicted" in pages.rule_text(record)
    assert pages.limits_text(record) == "is below 0"


def test_an_e_value_stands_beside_the_one_that_is_needed():
    (record,) = ledger.records([passed(entry_of(claim_of(), count=17))])
    assert pages.largest_words(record, "for") == "14,564; a verdict needs 10,240"
    assert pages.largest_words(record, "against") == "0.5 of the 10,240 that a verdict needs"
    later = record | {"e": record["e"] | {"for_max": 8604.0}}
    assert pages.largest_words(later, "for").startswith("8,604, enough once other claims")
    shown = pages.story(record)
    assert any("E against 56.8; a control needs 20" in line for line in shown)
