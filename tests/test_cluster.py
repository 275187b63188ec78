"""A Dask cluster that is lost, of another version, or not there; connections by TLS."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

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
def cluster(folder, *, security=(), other=None, count=1):
    """A scheduler and ``count`` workers as processes; ``other`` is run first in each worker."""
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
    workers = [subprocess.Popen(words, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield json.loads(file.read_text())["address"], scheduler
    finally:
        for process in (*workers, scheduler):
            process.terminate()
            process.wait()


def start(folder, address, widths="4, 6", environment=None):
    (folder / "s.toml").write_text(SWEEP.format(widths=widths))
    words = [sys.executable, "-m", "shoal", "sweep", "s.toml", "--out", "out"]
    return subprocess.Popen(
        [*words, "--scheduler", address], cwd=folder, stderr=-1, text=True,
        env=os.environ | (environment or {}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense://x", "expected an address such as"),
        ("nonsense://x:1", "no Dask scheduler answers"),
    ],
)
def test_a_wrong_address_leaves_nothing_behind(address, said, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(SWEEP.format(widths="4"))
    words = ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    assert main([*words, "--scheduler", address]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


ONCE = """
import threading
import shoal.sweeps.cluster as c
done = threading.Event()
real = c.real = getattr(c, "real", c.perform)  # Dask imports a preload and reloads it at once
def perform(task, wanted):
    if done.is_set():
        threading.Event().wait()  # until this process is ended
    answer = real(task, wanted)
    done.set()
    return answer
c.perform = perform
"""


@pytest.mark.slow
def test_a_scheduler_that_dies_loses_no_finished_batch(tmp_path):
    (tmp_path / "once.py").write_text(ONCE)  # however fast it is, one batch is done and no more
    with cluster(tmp_path, other=str(tmp_path / "once.py")) as (address, scheduler):
        process = start(tmp_path, address, "4, 6, 8")
        while process.poll() is None and not any((tmp_path / "out" / "runs").glob("*.parquet")):
            os.sched_yield()
        scheduler.send_signal(signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode == 1, said
    assert "the Dask scheduler is gone" in said
    assert "runs are stored; the same command continues" in said
    assert "Traceback" not in said
    kept = sweeps.frame(tmp_path / "out")
    assert len(kept) == 4
    assert main(["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]) == 0
    assert len(sweeps.frame(tmp_path / "out")) == 12


MORTAL = """
import os
import shoal.sweeps.cluster as c
asked = []
real = c.real = getattr(c, "real", c.perform)  # Dask imports a preload and reloads it at once
def perform(task, wanted):
    asked.append(task)
    if len(asked) == 2:
        try:
            os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass  # another worker has died already
        else:
            os._exit(1)
    return real(task, wanted)
c.perform = perform
"""


@pytest.mark.slow
def test_claims_on_a_cluster_that_loses_a_worker(tmp_path):
    shutil.copy(Path(__file__).with_name("toy_paper.py"), tmp_path / "toy_paper.py")
    (tmp_path / "mortal.py").write_text(MORTAL.format(mark=str(tmp_path / "died")))
    paper = str(tmp_path / "toy_paper.py")
    for ledger in ("one", "two"):
        assert main(["claims", "freeze", paper, "--ledger", str(tmp_path / ledger)]) == 0
    words = ["claims", paper, "--until-decided", "--ledger"]
    assert main([*words, str(tmp_path / "one")]) == 0
    with cluster(tmp_path, other=str(tmp_path / "mortal.py"), count=3) as (address, _):
        assert main([*words, str(tmp_path / "two"), "--scheduler", address]) == 0
    assert (tmp_path / "died").exists()
    found = {}
    for ledger in ("one", "two"):
        files = (tmp_path / ledger / "results").glob("*.json")
        found[ledger] = {f.name: json.loads(f.read_text())["effects"] for f in files}
    assert found["one"].keys() == found["two"].keys() != set()
    for name, effects in found["one"].items():  # a decision may come some seeds later
        both = min(len(effects), len(found["two"][name]))
        assert both >= 8
        assert effects[:both] == found["two"][name][:both]


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


class Lost:
    """A client and a future of a scheduler that dies after it said that the task is finished."""

    status, loop = "finished", None

    def scheduler_info(self, _):
        return {"workers": {"a": {"nthreads": 1}}}

    def submit(self, *_, **__):
        return self

    def exception(self):
        return None

    def result(self):
        raise self.error


@pytest.mark.parametrize("kind", ["comm", "future", "loop"])
def test_a_scheduler_that_dies_between_two_questions_is_gone(monkeypatch, kind):
    """Which call notices first depends on the moment; a real scheduler cannot be told when."""
    import asyncio

    import distributed
    from distributed.comm import CommClosedError

    from shoal.sweeps import cluster as ours

    errors = {
        "comm": CommClosedError("closed"),
        "future": distributed.CancelledError("lost"),
        "loop": asyncio.CancelledError(),
    }
    lost = Lost()
    lost.error = errors[kind]
    monkeypatch.setattr(distributed, "as_completed", lambda futures, loop: iter(futures))
    with pytest.raises(ConnectionError, match="the Dask scheduler is gone"):
        list(ours.spread(lost, [{"batch": 0}]))
