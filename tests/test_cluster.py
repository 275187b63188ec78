"""A Dask cluster that is lost, of another version, or not there; connections by TLS."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from shoal.cli import main
from shoal.disk import sweeps

pytest.importorskip("distributed")
SWEEP = """paper = "wu2023"
seeds = "0-3"
[set]
num_samples = 3
num_tokens = 2
dim = 4
num_steps = 2
[axes]
width = [{widths}]
"""
QUIET = ["--host", "127.0.0.1", "--port", "0"]


@contextlib.contextmanager
def cluster(folder, *, security=(), other=None):
    """A scheduler and a worker as processes; ``other`` is run first in the worker."""
    file = folder / "scheduler.json"
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    words = [*start, *QUIET, "--no-dashboard", "--scheduler-file", str(file), *security]
    scheduler = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    preload = ["--preload", other] if other else []
    words = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file)]
    words += ["--nthreads", "1", "--no-dashboard", *preload, *security]
    while not (file.is_file() and file.read_text().endswith("}")):
        assert scheduler.poll() is None
        os.sched_yield()
    worker = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        yield json.loads(file.read_text())["address"], scheduler
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait()


def start(folder, address, widths="4, 6", environment=None):
    (folder / "s.toml").write_text(SWEEP.format(widths=widths))
    words = [sys.executable, "-m", "shoal", "sweep", "s.toml", "--out", "out"]
    return subprocess.Popen(
        [*words, "--scheduler", address], cwd=folder, stderr=-1, text=True,
        env=os.environ | (environment or {}),
    )  # fmt: skip


def test_a_wrong_address_leaves_nothing_behind(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(SWEEP.format(widths="4"))
    words = ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    assert main([*words, "--scheduler", "nonsense://x"]) == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_scheduler_that_dies_loses_no_finished_batch(tmp_path):
    with cluster(tmp_path) as (address, scheduler):
        process = start(tmp_path, address, ", ".join(str(width) for width in range(4, 14)))
        while process.poll() is None and not any((tmp_path / "out" / "runs").glob("*.parquet")):
            os.sched_yield()
        scheduler.send_signal(signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode == 1, said
    assert "the Dask scheduler is gone" in said
    assert "runs are stored; the same command continues" in said
    assert "Traceback" not in said
    kept = sweeps.frame(tmp_path / "out")
    assert 0 < len(kept) < 40
    assert main(["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]) == 0
    assert len(sweeps.frame(tmp_path / "out")) == 40


@pytest.mark.slow
def test_a_worker_of_another_version_is_refused_by_name(tmp_path):
    (tmp_path / "older.py").write_text(
        "import shoal.sweeps.cluster as c\nc.__version__ = '0.0.9'\n"
    )
    with cluster(tmp_path, other=str(tmp_path / "older.py")) as (address, _):
        process = start(tmp_path, address)
        _, said = process.communicate()
    assert process.returncode == 2, said
    assert "has 0.0.9" in said
    assert "install the same version" in said


@pytest.mark.slow
def test_a_cluster_by_tls(tmp_path):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-keyout", key, "-out", certificate, "-subj", "/CN=localhost"]
    subprocess.run(words, check=True, capture_output=True)
    security = ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key]
    tls = {"CA_FILE": certificate, "CLIENT__CERT": certificate, "CLIENT__KEY": key}
    environment = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": value for name, value in tls.items()}
    with cluster(tmp_path, security=[*security, "--protocol", "tls"]) as (address, _):
        assert address.startswith("tls://")
        plain = start(tmp_path, address)
        assert "no Dask scheduler answers" in plain.communicate()[1]
        process = start(tmp_path, address, environment=environment)
        _, said = process.communicate()
    assert plain.returncode == 2
    assert process.returncode == 0, said
    assert len(sweeps.frame(tmp_path / "out")) == 8
