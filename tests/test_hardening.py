"""Caches that others could write, questions that would read files, forged tables, long calls."""

import hashlib
import io
import os
import signal
import subprocess
import sys

import polars as pl
import pytest

from shoal import files
from shoal.cli import main
from shoal.disk import asking, sweeps
from shoal.errors import InputError

# ----------------------------------------------------------------------------------------- caches


def test_a_private_folder_is_used(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    assert files.others_can_write(folder) is None
    assert files._private(folder) == folder


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o1777])
def test_a_cache_that_others_can_write_is_not_used(tmp_path, capsys, mode):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    used = files._private(folder)
    assert used != folder
    assert used.stat().st_mode & 0o077 == 0
    assert "other users can write" in capsys.readouterr().err


def test_a_folder_above_counts_unless_only_owners_may_rename(tmp_path):
    above = tmp_path / "above"
    cache = above / "cache"
    cache.mkdir(parents=True)
    above.chmod(0o777)
    assert "above" in (files.others_can_write(cache) or "")
    above.chmod(0o1777)
    assert files.others_can_write(cache) is None


@pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0, reason="needs root to make another user's files"
)
def test_what_another_user_planted_is_not_loaded(tmp_path, capfd):
    folder = tmp_path / "cache"
    (folder / "native").mkdir(parents=True)
    folder.chmod(0o755)
    os.chown(folder, 65534, 65534)  # nobody, who can write what he likes into his folder
    code = "from shoal.files import cache_folder; print(cache_folder())"
    environment = os.environ | {"SHOAL_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert str(folder) not in done.stdout
    assert "belongs to another user" in done.stderr


def test_programs_where_others_can_write_are_not_read(tmp_path, monkeypatch):
    import jax

    from shoal.runtime import command_session

    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    (tmp_path / "compiled").mkdir()
    for mode, used in ((0o777, None), (0o700, str(tmp_path / "compiled"))):
        (tmp_path / "compiled").chmod(mode)
        with command_session():
            assert jax.config.jax_compilation_cache_dir == used
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_planted_library_is_not_loaded(tmp_path):
    from shoal import native

    library = tmp_path / "planted.so"
    library.write_bytes(b"not even a library")
    library.with_suffix(".sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())
    library.chmod(0o666)
    assert native._loaded(library) is None
    assert "write" in (files.others_can_write(library) or "")


# -------------------------------------------------------------------------------------- questions


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    with sweeps.Writer(folder) as writer:
        writer.add(rows(4))
    return folder


def rows(count):
    return [
        {"number": k, "key": f"key{k}", "seed": k, "width": 2**k, "status": "done", "reason": "",
         "risk_first": 1.0, "risk_last": 0.5**k, "curve_step": [0, 1], "curve_risk": [1.0, 0.5**k]}
        for k in range(count)
    ]  # fmt: skip


def test_a_question_is_answered(sweep_folder):
    found = asking.ask(
        sweep_folder, "with t as (select width from runs) select sum(width) s from t"
    )
    assert found["s"].to_list() == [15]


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("select * from read_csv('/etc/passwd')", "read_csv"),
        ("select * from \"READ_CSV\"('/etc/passwd')", "READ_CSV"),
        ("select E'\\'' , x from read_parquet/**/('x')", "read_parquet"),
        ("drop table runs", "begins with select"),
        ("delete from runs", "begins with select"),
        ("create table t as select 1", "begins with select"),
        ("", "begins with select"),
        ("select 1; select 2", "only one"),
        ("select " + "(" * 5000 + "1" + ")" * 5000, "recursion"),
        ("select nothing from runs", "nothing"),
        ("select '" + "x" * 200_000 + "'", "characters"),
    ],
)
def test_other_questions_are_refused(sweep_folder, sql, complaint):
    with pytest.raises(InputError, match=complaint):
        asking.ask(sweep_folder, sql)


def test_the_process_that_answers_can_open_nothing(tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    code = (
        "import polars as pl, sys\nfrom shoal.disk.asking import _close_doors\n_close_doors()\n"
        "try:\n    print(pl.SQLContext({}, eager=True).execute(\"select * from read_csv('"
        f"{secret}')\"))\nexcept BaseException as e: print('refused', type(e).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("refused"), done


def test_a_question_that_explodes_is_a_sentence(sweep_folder, capsys, monkeypatch):
    monkeypatch.setattr(asking, "SECONDS", 1)  # this one would take years
    many = ", ".join(f"runs as t{k}" for k in range(18))  # 4 ** 18 rows
    assert main(["query", str(sweep_folder), f"select sum(t0.width) from {many}"]) == 2
    assert "ask for less" in capsys.readouterr().err


# ----------------------------------------------------------------------------------- forged tables


def forge(folder, frame):
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    frame.write_parquet(content := io.BytesIO())
    name = hashlib.sha256(content.getvalue()).hexdigest()[:32]
    (folder / "runs" / f"{name}.parquet").write_bytes(content.getvalue())


def honest():
    return pl.DataFrame(rows(3))


FORGED = {
    "no key": lambda: honest().drop("key"),
    "no number": lambda: honest().drop("number"),
    "no status": lambda: honest().drop("status"),
    "words for numbers": lambda: honest().with_columns(number=pl.lit("one")),
    "words for a risk": lambda: honest().with_columns(risk_last=pl.lit("small")),
    "a number for a key": lambda: honest().with_columns(key=pl.lit(7)),
    "a gap in the keys": lambda: honest().with_columns(key=pl.lit(None, pl.String)),
    "a curve of words": lambda: honest().with_columns(curve_risk=pl.lit("down")),
    "structs": lambda: honest().with_columns(width=pl.struct(pl.lit(1).alias("a"))),
    "dates": lambda: honest().with_columns(width=pl.date(2026, 1, 1)),
    "bytes": lambda: honest().with_columns(width=pl.lit(b"x")),
    "lists of lists": lambda: honest().with_columns(width=pl.lit([[1.0]])),
}


@pytest.mark.parametrize("kind", FORGED)
@pytest.mark.parametrize("command", [["ls"], ["show", "0"], ["query", "select * from runs"]])
def test_forged_tables_are_refused(tmp_path, capsys, kind, command):
    forge(tmp_path, FORGED[kind]())
    name, *more = command
    assert main([name, str(tmp_path), *more]) == 2
    said = capsys.readouterr().err
    assert "damaged" in said
    assert "Traceback" not in said


def test_tables_whose_types_differ_are_refused(tmp_path, capsys):
    forge(tmp_path, honest())
    forge(tmp_path, honest().with_columns(width=pl.lit([1.0])))
    assert main(["ls", str(tmp_path)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_pipes_and_links_are_not_read(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    os.mkfifo(tmp_path / "runs" / "pipe.parquet")
    (tmp_path / "runs" / "loop.parquet").symlink_to("loop.parquet")
    assert main(["ls", str(tmp_path)]) == 2
    assert "regular" in capsys.readouterr().err


def test_spreadsheets_run_nothing(tmp_path):
    folder = tmp_path / "sweep"
    with sweeps.Writer(folder) as writer:
        writer.add([row | {"reason": "=HYPERLINK(1)"} for row in rows(1)])
    assert main(["export", str(folder), str(tmp_path / "runs.csv")]) == 0
    assert "'=HYPERLINK(1)" in (tmp_path / "runs.csv").read_text()


# ---------------------------------------------------------------------------------------- signals

STUCK = """
import ctypes, signal
from shoal import cli
cli.GRACE = 0.1
signal.signal({number}, lambda *_: None)  # Python does not get to run its handler
with cli.last_resort():
    print("ready", flush=True)
    while True:
        ctypes.CDLL(None).pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_does_not_react_is_ended(number):
    code = STUCK.format(number=int(number))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 128 + number
    assert b"stopped" in said


# ----------------------------------------------------------------------------------------- memory


GIANTS = [
    ["train", "wu2023", "--set", "num_tokens=20000"],
    ["certify", "wu2023.theorem_a", "--set", "num_tokens=100000"],
    ["train", "wu2023", "--set", "width=100000000"],
    ["train", "wu2023", "--set", "num_samples=1000000"],
    ["train", "wu2023", "--seeds", "0-99999", "--set", "width=100000"],
    ["train", "wu2023", "--steps", "10000000000"],
    ["train", "song2024", "--set", "num_tokens=100000"],
    ["train", "song2024", "--set", "num_samples=10000000"],
    ["train", "arda2026", "--set", "num_samples=100000000"],
    ["train", "arda2026", "--set", "num_tokens=100000000"],
    ["train", "qin2025", "--set", "num_tokens=50000"],
    ["certify", "qin2025.theorem_d", "--set", "width=100000000"],
    ["train", "qin2025", "--set", "dim=1000000"],
]


@pytest.mark.parametrize("command", GIANTS, ids=" ".join)
def test_giants_are_refused_with_numbers(capsys, command):
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "GiB are available" in said


def test_the_memory_that_is_available_decides(capsys, monkeypatch):
    from shoal.lab import memory

    command = ["train", "wu2023", "--set", "num_tokens=2000", "--steps", "1", "--probes", "none"]
    monkeypatch.setattr(memory, "available_memory", lambda: 0.5 * 2**30)
    assert main(command) == 2
    assert "0.5 GiB are available" in capsys.readouterr().err


def test_a_giant_model_of_ones_own_is_refused(monkeypatch):
    import jax.numpy as jnp
    import numpy as np

    import shoal as sh
    from shoal.lab import memory

    def pairs(w, x):  # all pairs of samples' entries: 3 GiB
        return jnp.tanh(w * x[:, :, None] * x[:, None, :]).sum((1, 2))

    monkeypatch.setattr(memory, "available_memory", lambda: 2.0 * 2**30)
    with pytest.raises(InputError, match="GiB are available"):
        sh.setup(pairs, np.ones(()), np.ones((4, 10_000)), np.ones(4))


def test_a_group_has_a_limit_of_its_own(tmp_path, monkeypatch):
    from shoal import runtime

    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    monkeypatch.setattr(runtime, "GROUPS", ((tmp_path, "memory.max", "memory.current"),))
    assert runtime.available_memory() == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert runtime.available_memory() > 2**27


def test_what_xla_could_not_allocate_is_a_sentence(capsys, monkeypatch):
    from shoal.cli import commands

    def fails(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")

    monkeypatch.setattr(commands, "papers", fails)
    assert main(["papers"]) == 1
    assert "memory" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "wu2023", "--width", "64"], "--set width=VALUE"),
        (["train", "wu2023", "--out", "/proc/nothing/here"], "choose another --out"),
        (["tour", "--out", "/dev/null/page.html"], "choose another --out"),
        (["bench", "--markdown", "/dev/null/x.md"], "choose another --markdown"),
        (["report", __file__], "is not a run folder"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_advice_is_good(capsys, command, said):
    assert main(command) == 2
    assert said in capsys.readouterr().err


def test_queries_are_checked_also_where_they_are_not_used(tmp_path, capsys):
    import numpy as np

    path = tmp_path / "data.npz"
    np.savez(path, X=np.ones((4, 3, 5)), y=np.ones(4), q=np.ones((2, 7)))
    assert main(["train", "wu2023", "--data", str(path)]) == 2
    assert "q has shape (2, 7)" in capsys.readouterr().err


def test_too_few_addresses_are_a_sentence():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "from shoal.cli import main; raise SystemExit(main(['train', 'wu2023']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "ulimit" in done.stderr
