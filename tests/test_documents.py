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

import pytest

from shoal.cli import app, main
from shoal.lab.setting import parse_assignments, with_values
from shoal.papers import PAPERS, paper_of, split_target

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, kind=""):
    """The fenced blocks of a page whose fence names this language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == kind]


def commands(page):
    """The commands in the blocks of a page: lines that begin with ``$ shoal``, maybe continued."""
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ shoal "):
                yield line.removeprefix("$ ")


def script(page):
    """The Python blocks of a page, one after the other."""
    return "\n".join(blocks(page, "python"))


def shown_numbers(page):
    """Numbers in the blocks that show output; what rounding decides is left out."""
    for block in blocks(page):
        if "$ shoal" not in block and "make " not in block:
            for text in re.findall(r"(?<![\w.])\d+\.\d+(?:e[+-]\d+)?(?![\w.])", block):
                if abs(float(text)) > 1e-9:
                    yield text


WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
ALL_COMMANDS = [command for page in PAGES for command in commands(page)]


# -------------------------------------------------------------------------- quick: they make sense


def test_there_is_something_to_run():
    assert len(list(commands(README))) >= 6
    assert len(blocks(README, "python")) >= 3
    assert len(list(shown_numbers(README))) >= 5


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda p: p.name)
def test_python_in_documents_compiles(page):
    ast.parse(script(page))


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_commands_in_documents_have_the_right_words(command):
    words = shlex.split(command)[1:]
    app.parse_args(words, exit_on_error=False, print_error=False)
    if words[0] in ("train", "certify"):
        target, part = split_target(words[1])
        paper = paper_of(target)
        values = parse_assignments(words[k + 1] for k, word in enumerate(words) if word == "--set")
        with_values(paper.setting(), values, owner=paper.key).complete()
        assert words[0] == "train" or paper.theorem_of(part)


def test_every_command_is_in_the_readme():
    text = README.read_text()
    for name in app:
        if not name.startswith("-"):
            assert re.search(rf"`(shoal )?{name}\b", text), name


def test_every_theorem_and_proof_is_documented():
    for paper in PAPERS.values():
        text = (ROOT / "docs" / "theory" / f"{paper.key}.md").read_text()
        for theorem in paper.theorems:
            assert f"{paper.key}.{theorem.key}" in text
            for page in re.findall(r"docs/\S+\.md", theorem.source):
                assert (ROOT / page).is_file()


def test_links_between_documents_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 5
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


# ----------------------------------------------------------------------------------- slow: they run


def output_of(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in WITH_PYTHON if p != README], ids=lambda p: p.name)
def test_python_in_documents_runs(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(Path(__file__).parent / "fixtures" / "sweep-0.1.0", tmp_path / "widths")
    here = [block for block in blocks(page, "python") if "SLURMCluster" not in block]
    output_of([sys.executable, "-c", "\n".join(here)], tmp_path)


@pytest.mark.slow
def test_what_the_readme_shows_is_what_comes_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    said = output_of([sys.executable, "-c", script(README)], tmp_path)
    for command in commands(README):
        assert main(shlex.split(command)[1:]) == 0, command
    said += capsys.readouterr().out
    missing = [number for number in shown_numbers(README) if number not in said]
    assert missing == []


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
