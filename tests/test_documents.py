"""README, examples and help texts run, and say what is there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import app, main
from shoal.papers import PAPERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if path.stem == "first_certificate":
        assert done.stdout.splitlines()[-1] == "verdict: holds"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_in_the_readme_runs(block):
    done = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def readme_commands():
    joined = README.replace("\\\n", " ")
    for block in re.findall(r"```\n(.*?)```", joined, re.DOTALL):
        for line in block.splitlines():
            if line.removeprefix("$ ").startswith("shoal "):
                yield line.removeprefix("$ ")


def test_commands_in_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = list(readme_commands())
    assert len(commands) == 9
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    out = capsys.readouterr().out
    # the numbers shown in the README are those of the command
    for number in (
        "4.193e-05",
        "0.01127",
        "0.6368",
        "4.583e-05",
        "seed 0: holds",
        "stuck",
        "0.01533",
    ):
        assert number in out
        assert number in README


def test_every_command_is_in_the_readme():
    for name in app:
        if not name.startswith("-"):
            assert f"`shoal {name}" in README, name


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


def test_the_tour_ends_well_and_with_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tour"]) == 0
    out = capsys.readouterr().out
    page = (tmp_path / "tour.html").read_text()
    titles = ("Does the theorem apply?", "Stuck or slow?", "Projected descent", "What residuals do")
    for words in (*titles, "The ledger", "Digits: Attention"):
        assert words in page
    assert "holds" in out
    assert "not applicable" in out
    assert "violated" not in out
