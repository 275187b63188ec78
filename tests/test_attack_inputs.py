"""What the attack on inputs (`make attack`) found, kept."""

import os
import zipfile

import pytest

from shoal import check
from shoal.cli import main
from shoal.disk import logs, runs
from shoal.errors import InputError


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
