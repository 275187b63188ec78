"""What the attack on inputs (`make attack`) found, kept."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from attack_inputs import judge, specimens
from shoal import check, figures
from shoal.cli import main
from shoal.disk import logs, runs, sweeps
from shoal.disk.ledger import LedgerFolder
from shoal.errors import InputError
from shoal.lab.ledger import empty_result


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null"])
def test_a_device_is_never_read(tmp_path, name):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "1.parquet").symlink_to(name)
    (tmp_path / "run.json").symlink_to(name)
    with pytest.raises(InputError, match="damaged"):
        logs.records(tmp_path)
    with pytest.raises(InputError, match="not a regular file"):
        runs.read_json(tmp_path / "run.json")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(InputError, match="not a regular file"):
        runs.read_json(tmp_path / "run.json")


def test_a_word_with_nul_and_a_long_name_are_one_short_sentence(capsys):
    assert main(["sweep", "a\0b"]) == 2
    assert "NUL" in capsys.readouterr().err
    assert main(["prove", "x" * 5000]) == 2
    assert len(capsys.readouterr().err) < 1000


def test_a_damaged_archive_is_not_a_proof(tmp_path, monkeypatch):
    def fails(*_):
        raise zipfile.BadZipFile("Bad CRC-32")

    monkeypatch.setattr(check, "read", fails)
    with pytest.raises(check.Fails, match="malformed"):
        check.check(tmp_path / "proof.json")


@pytest.mark.parametrize("name", ["proof.json", "proof.npz"])
def test_a_pipe_is_not_a_proof(tmp_path, name):
    (tmp_path / "model.py").write_text(specimens.MODEL)
    words = ["prove", f"{tmp_path / 'model.py'}:line", "--steps", "20"]
    assert main([*words, "--out", str(tmp_path / "proof.json")]) == 0
    assert check.check(tmp_path / "proof.json") == "converges"
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(check.Fails, match="not a regular file"):
        check.check(tmp_path / "proof.json")


def test_a_pipe_is_not_a_sweep(tmp_path, capsys):
    os.mkfifo(tmp_path / "grid.toml")
    assert main(["sweep", str(tmp_path / "grid.toml"), "--dry-run"]) == 2
    assert "not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"effects": [["x", 1.0]]}, {"effects": 3}, {"controls": [{}]}, {"violations": None},
        {"stale": 1}, {"log": {}}, {"code": [1]}, {"first_seed": True},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_forged_results_of_claims_are_refused(tmp_path, change):
    result = empty_result("toy.a", 1, "0", 10_000)
    folder = LedgerFolder(tmp_path)
    folder.write("results", result)
    assert folder.result("results", "toy.a", 1, "0", 10_000) == result
    folder.path("results", "toy.a", 1).write_text(json.dumps(result | change))
    with pytest.raises(InputError, match="not a result of a claim"):
        folder.result("results", "toy.a", 1, "0", 10_000)


def test_a_name_that_no_system_takes_is_bad_input(capsys):
    assert main(["new", "paper", "x" * 300]) == 2
    assert "too long" in capsys.readouterr().err


def test_a_paper_without_tokens_takes_no_data_file(tmp_path, capsys):
    np.savez(tmp_path / "data.npz", X=np.ones((3, 2, 4)), y=np.ones(3))
    assert main(["train", "icl2025", "--data", str(tmp_path / "data.npz")]) == 2
    assert "takes no data file" in capsys.readouterr().err


def test_a_curve_of_which_nothing_can_be_shown_is_empty():
    assert figures.band("a", np.arange(3), -np.ones((2, 3)), positive=True).y.size == 0


def test_a_name_that_is_not_utf8_is_written_and_printed(tmp_path):
    name = os.fsdecode(b"caf\xe9.py")
    words = [sys.executable, "-m", "shoal", "new", "paper", "mine", "--out", name]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\\udce9" in done.stderr
    assert (tmp_path / name).is_file()


def test_commands_for_a_terminal_are_written_out(tmp_path, capsys):
    from test_hardening import rows

    with sweeps.Writer(tmp_path / "sweep") as writer:
        writer.add([row | {"[red]\x1b[2J": 1, "key": "\x1b[31m"} for row in rows(1)])
    for command in (["show", "0"], ["query", "select * from runs"]):
        assert main([command[0], str(tmp_path / "sweep"), *command[1:]]) == 0
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        assert "x1b[31m" in said.out
        assert "[red]" in said.out


@pytest.mark.filterwarnings("default")
def test_a_small_attack_finds_nothing(tmp_path):
    folder = tmp_path / "specimens"
    folder.mkdir()
    has = specimens.files(folder)
    found = {}
    for number in range(5000, 5040):
        kind, case, _, wrong = judge.tried(0, number, has, kinds=("names", "lines", "sweep files"))
        wrong = [text for text in wrong if not text.startswith("hang")]  # the machine may be slow
        if wrong:
            found[number] = (kind, case.words, wrong)
    assert not found
