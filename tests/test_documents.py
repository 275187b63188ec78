"""README and documents: what they show runs, and is what shoal says.

In the default suite every shown command is parsed and every block compiled; ``make test-all`` runs
them and looks for the shown numbers in what they print.
"""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from cyclopts import CycloptsError

from shoal.cli import app, main
from shoal.errors import InputError
from shoal.lab.setting import parse_assignments, with_values
from shoal.papers import PAPERS, paper_of, split_target

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
MADE = ("_build", "_site", "gallery", "notebooks", "papers", "reference")  # see test_site.py
WRITTEN = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.relative_to(ROOT / "docs").parts[0] not in MADE
]
PAGES = [README, *WRITTEN]
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")


class Block(NamedTuple):
    """A fenced block: its language, its text, and whether the page says why it is not run."""

    kind: str
    text: str
    marked: bool


def blocks(page):
    """The fenced blocks of a page, in order."""
    lines = page.read_text().splitlines()
    fences = [k for k, line in enumerate(lines) if line.startswith("```")]
    assert len(fences) % 2 == 0, f"{page.name}: a block is not closed"
    for first, last in zip(fences[::2], fences[1::2], strict=True):
        marked = first > 0 and bool(NOT_RUN.fullmatch(lines[first - 1]))
        text = "".join(f"{line}\n" for line in lines[first + 1 : last])
        yield Block(lines[first].removeprefix("```"), text, marked)


def block_commands(block):
    """The commands of a block: lines that begin with ``$ shoal``, maybe continued."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.kind == "console" and line.startswith("$ shoal "):
            yield shlex.split(line.removeprefix("$ "), comments=True)


def script(page):
    """A page as one program: Python as it stands, commands as calls; nothing that is marked.

    A block that begins with ``# my.py`` is also written to that file.
    """
    lines = ["from pathlib import Path", "from shoal.cli import main"]
    for block in blocks(page):
        if block.marked:
            continue
        if block.kind == "python":
            if name := re.match(r"# (\w+\.py)\n", block.text):
                lines.append(f"Path({name[1]!r}).write_text({block.text!r})")
            lines.append(block.text)
        lines += [f"assert main({words[1:]!r}) == 0" for words in block_commands(block)]
    return "\n".join(lines)


def shown_numbers(page):
    """Numbers in the blocks that show output; what rounding decides is left out."""
    for block in blocks(page):
        if block.kind == "text":
            for text in re.findall(r"(?<![\w.])\d+\.\d+(?:e[+-]\d+)?(?![\w.])", block.text):
                if abs(float(text)) > 1e-9:
                    yield text


ALL_COMMANDS = [
    words for page in PAGES for block in blocks(page) for words in block_commands(block)
]
RUNNABLE = [
    page
    for page in PAGES
    if any(b.kind in ("python", "console") and not b.marked for b in blocks(page))
]


# -------------------------------------------------------------------------- quick: they make sense


def test_there_is_something_to_run():
    kinds = [block.kind for block in blocks(README)]
    assert kinds.count("python") == 2
    assert kinds.count("console") == 1
    assert len(list(shown_numbers(README))) >= 5
    assert len(ALL_COMMANDS) >= 15
    assert len(RUNNABLE) >= 10


def test_every_block_is_run_or_says_why_not():
    for page in PAGES:
        for block in blocks(page):
            shown = block.kind in ("text", "toml") or block.kind.startswith("{")
            if not (shown or block.marked):
                assert block.kind in ("python", "console"), f"{page.name}: {block.text[:60]!r}"
                runs = block.kind == "python" or all(
                    line.startswith("$ shoal ") for line in block.text.strip().splitlines()
                )
                assert runs, f"{page.name}: {block.text[:60]!r}"


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda p: p.name)
def test_blocks_in_documents_compile(page):
    ast.parse(script(page))


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=" ".join)
def test_commands_in_documents_have_the_right_words(command):
    words = command[1:]
    app.parse_args(words, exit_on_error=False, print_error=False)
    if words[0] in ("train", "certify") and ".py" not in words[1]:
        target, part = split_target(words[1])
        paper = paper_of(target)
        require_settings(paper, words)
        assert words[0] == "train" or paper.theorem_of(part)


def require_settings(paper, words):
    values = parse_assignments(words[k + 1] for k, word in enumerate(words) if word == "--set")
    with_values(paper.setting(), values, owner=paper.key).complete()


# ------------------------------------------------------------------------- statements of the papers

STATEMENTS = ROOT / "docs" / "statements.md"


class Row(NamedTuple):
    """What a paper says, the commands that test it, and what came out."""

    paper: str
    statement: str
    commands: list[list[str]]
    outcome: str


def statement_rows(text):
    """All rows of the tables, with the heading above them."""
    paper = ""
    for line in text.splitlines():
        if line.startswith("## "):
            paper = line.removeprefix("## ")
        if line.startswith("| ") and not line.startswith("| statement"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 3, line
            commands = [shlex.split(words) for words in re.findall(r"`([^`]+)`", cells[1])]
            yield Row(paper, cells[0], commands, cells[2])


def require_known(words):
    """Refuse a command that does not parse, or names a claim, figure, theorem or test not there."""
    if words[0] == "pytest":
        file, _, name = words[1].partition("::")
        assert re.search(
            rf"^def {name.partition('[')[0]}\(", (ROOT / file).read_text(), re.MULTILINE
        )
        return
    program, verb, *rest = words
    assert program == "shoal"
    app.parse_args([verb, *rest], exit_on_error=False, print_error=False)
    target, part = split_target(rest[0])
    paper = paper_of(target)
    known = {
        "claims": [claim.key.removeprefix(f"{paper.key}.") for claim in paper.claims],
        "reproduce": [figure.key for figure in paper.figures],
        "certify": [theorem.key for theorem in paper.all_theorems()],
    }.get(verb, [""])
    assert part in known, words
    require_settings(paper, words)


def ledger_words():
    """The verdict of every claim in the ledger's table; of versions, the one that counts."""
    found = {}
    for line in (ROOT / "docs" / "ledger.md").read_text().splitlines():
        key, word = re.search(r"\(`([\w.]+)`;", line), re.search(r"\| \*\*(.+?)\*\*", line)
        if key and word and word[1] != "superseded":
            found[key[1]] = word[1]
    return found


def require_true(row, verdicts):
    """Refuse a row without a command or outcome, and a verdict that is not the ledger's."""
    assert row.commands, row.statement
    assert row.outcome, row.statement
    assert "absent" not in row.outcome
    assert re.search(r"\((paper|summary|ours)[^()]*\)$", row.statement), row.statement
    for words in row.commands:
        require_known(words)
    said = re.findall(r"\*\*(supported|contradicted)\*\*", row.outcome)
    claims = [words[2] for words in row.commands if words[1] == "claims"]
    assert all(word in [verdicts.get(key) for key in claims] for word in said), row.statement


def test_every_statement_of_a_paper_has_a_command_and_an_outcome():
    rows = list(statement_rows(STATEMENTS.read_text()))
    verdicts = ledger_words()
    assert {row.paper for row in rows} >= {"wu2023", "song2024", "arda2026", "qin2025"}
    for row in rows:
        require_true(row, verdicts)


@pytest.mark.parametrize(
    "line",
    [
        "| It trains (paper) | `shoal claims wu2023.nothing` | claim |",
        "| It trains (paper) | `shoal reproduce wu2023.nothing` | figure |",
        "| It trains (paper) | `shoal certify wu2023.theorem_z` | theorem |",
        "| It trains (paper) | `shoal certify wu2023.theorem_a --set nothing=1` | theorem |",
        "| It trains (paper) | `shoal nothing wu2023` | claim |",
        "| It trains (paper) | `pytest tests/test_wu2023.py::test_nothing` | test |",
        "| It trains (paper) | by hand | claim |",
        "| It trains (paper) | `shoal claims wu2023.samples_cost` | **contradicted** |",
        "| It trains | `shoal claims wu2023.samples_cost` | **supported** |",
    ],
)
def test_a_wrong_row_of_statements_is_noticed(line):
    (row,) = statement_rows(line)
    with pytest.raises((AssertionError, InputError, CycloptsError)):
        require_true(row, ledger_words())


def test_every_theorem_and_proof_is_documented():
    for paper in PAPERS.values():
        text = (ROOT / "docs" / "theory" / f"{paper.key}.md").read_text()
        for theorem in paper.theorems:
            assert f"{paper.key}.{theorem.key}" in text
            for page in re.findall(r"docs/\S+\.md", theorem.source):
                assert (ROOT / page).is_file()


def test_links_between_documents_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *WRITTEN]
    assert len(pages) > 20
    made = re.compile(r"(?:\.\./)?(?:gallery|notebooks|papers|reference)/\w+\.md")  # by the site
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not (link.startswith("http") or made.fullmatch(link)):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


# ----------------------------------------------------------------------------------- slow: they run


def output_of(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda p: p.name)
def test_what_documents_show_runs(page, tmp_path):
    if page.name == "run-folders.md":
        for name in ("duckdb", "pandas", "pyarrow"):
            pytest.importorskip(name, reason=f"{name} is not installed (extra docs)")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(Path(__file__).parent / "fixtures" / "sweep-0.1.0", tmp_path / "widths")
    said = output_of([sys.executable, "-c", script(page)], tmp_path)
    if page == README:
        missing = [number for number in shown_numbers(README) if number not in said]
        assert missing == []
        for line in ("softmax stuck from step 4050", "gaussian converges from step 400"):
            assert line in README.read_text()
            assert line in said


@pytest.mark.slow
def test_the_tour_ends_well_and_with_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tour"]) == 0
    out = capsys.readouterr().out
    page = (tmp_path / "tour.html").read_text()
    for paper in PAPERS.values():
        assert f"{paper.key}: " in out
        assert paper.visit().title.lower() in page.lower()
    assert "Some claims" in page
    assert "holds" in out
    assert "not applicable" in out
    assert "violated" not in out
    assert "softmax is stuck for ever" in out
    assert "gaussian goes to zero risk" in out
