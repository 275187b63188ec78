"""Caches that others could write, questions that would read files, forged tables, long calls."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import giants
import shoal as sh
from shoal import files, workers
from shoal.cli import main
from shoal.disk import asking, sweeps, tables
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


def test_an_answer_has_an_end(sweep_folder):
    many = ", ".join(f"runs as t{k}" for k in range(11))  # 4 ** 11 rows of three columns
    with pytest.raises(InputError, match="4,194,304 rows of 3 columns"):
        asking.ask(sweep_folder, f"select t0.seed, t1.width, t2.key from {many}")


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


@pytest.mark.parametrize("command", giants.GIANTS, ids=" ".join)
def test_giants_are_refused_with_numbers(capsys, command, tmp_path):
    assert main(giants.with_own_model(command, tmp_path)) == 2
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
        (["lab", "--no-open", "--out", "/proc/nothing/here"], "choose another --out"),
        (["lab", "--no-open", "--out", __file__], "is not a folder; choose another --out"),
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


def test_a_platform_that_is_not_there_is_a_sentence():
    words = [sys.executable, "-m", "shoal", "papers", "wu2023"]
    environment = os.environ | {"JAX_PLATFORMS": "cuda"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("shoal: JAX cannot start on JAX_PLATFORMS=cuda")


def test_a_variable_that_jax_cannot_read_is_a_sentence():
    command = [sys.executable, "-m", "shoal", "train", "wu2023", "--steps", "1"]
    environment = os.environ | {"JAX_ENABLE_X64": "maybe"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("shoal: JAX cannot be loaded (invalid truth value 'maybe'")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_debug_nans", True), ("jax_numpy_dtype_promotion", "strict"),
        ("jax_transfer_guard", "disallow"), ("jax_check_tracer_leaks", True),
        ("jax_default_prng_impl", "rbg"), ("jax_threefry_partitionable", False),
    ],
)  # fmt: skip
def test_jaxs_switches_change_no_result(name, value, capsys):
    import jax

    command = ["train", "wu2023", "--set", "num_samples=3", "--set", "num_tokens=2", "--set",
               "dim=4", "--set", "width=6", "--steps", "2", "--json"]  # fmt: skip
    assert main(command) == 0
    usual = json.loads(capsys.readouterr().out)
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        assert main(command) == 0
        assert getattr(jax.config, name) == value
    finally:
        jax.config.update(name, before)
    assert json.loads(capsys.readouterr().out)["last_risk"] == usual["last_risk"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_failure(closed, tmp_path):
    line = f"{sys.executable} -m shoal new paper mine {closed}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.py").is_file()


def test_a_pipe_or_a_device_is_never_replaced_by_a_file(tmp_path, capsys):
    """As root, `--markdown /dev/null` put a file in the place of the device."""
    os.mkfifo(pipe := tmp_path / "pipe")
    words = ["claims", "wu2023.rank_is_needed", "--markdown", str(pipe)]
    assert main(words) == 2
    assert "a device or a pipe" in capsys.readouterr().err
    with pytest.raises(OSError, match="a device or a pipe"):
        files.write_aside(pipe, b"")
    assert pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_device_is_a_sentence(tmp_path):
    words = [sys.executable, "-m", "shoal", "new", "paper", "mine", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, cwd=tmp_path, stdout=full, stderr=-1, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "shoal: OSError: [Errno 28] No space left on device\n"


# ------------------------------------------------------------------------------------ users' files

HEAD = "import sys, os, numpy as np, jax.numpy as jnp, shoal as sh\n"
LINE = "def model(): return sh.setup(lambda w, x: x @ w, np.ones(3), np.eye(3), np.ones(3))\n"
ENDS = {
    "on import": "sys.exit(0)",
    "in the model": "def model(): raise SystemExit('\x1b[2J bye')",
    "in the function": "def f(w, x): sys.exit(5)\n"
    "def model(): return sh.setup(f, np.ones(3), np.eye(3), np.ones(3))",
    "in a way of its own": "class Odd(BaseException): pass\nraise Odd('x')",
}


@pytest.mark.parametrize("where", ENDS)
def test_a_file_that_ends_the_process_is_a_sentence(where, tmp_path, capsys):
    (tmp_path / "m.py").write_text(HEAD + ENDS[where])
    assert main(["train", f"{tmp_path}/m.py:model", "--steps", "2"]) == 2
    said = capsys.readouterr().err
    assert "m.py, line" in said
    assert "ends the command" in said
    assert "\x1b" not in said


def test_a_worker_survives_a_file_that_ends_the_process(tmp_path):
    (tmp_path / "m.py").write_text("raise SystemExit(3)")
    task = {"claim": f"{tmp_path}/m.py.x", "seeds": [0], "control": None}
    (answer,) = workers.spread([task], most=1)
    assert answer.error == "SystemExit: 3"


def test_an_exception_without_words_is_told(tmp_path, capsys):
    body = "class E(Exception):\n    def __str__(self): raise ValueError\nraise E"
    (tmp_path / "m.py").write_text(body)
    assert main(["papers", f"{tmp_path}/m.py"]) == 2
    assert "E: it has no message" in capsys.readouterr().err


def test_what_a_file_prints_is_no_result(tmp_path, capsys):
    (tmp_path / "m.py").write_text(HEAD + "print('hello')\n" + LINE)
    assert main(["train", f"{tmp_path}/m.py:model", "--steps", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["paper"] == "model"
    assert "hello" in err


def test_a_file_that_changes_the_folder_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "m.py").write_text(HEAD + "os.chdir('inner')\n" + LINE)
    assert main(["train", "m.py:model", "--steps", "2", "--out", "run"]) == 0
    assert (tmp_path / "run" / "run.json").is_file()


@pytest.mark.parametrize("value", ["min", "type", "3"])
def test_what_is_no_model_is_refused(value, tmp_path, capsys):
    (tmp_path / "m.py").write_text(f"model = {value}")
    assert main(["train", f"{tmp_path}/m.py:model"]) == 2
    assert "expected a Setup" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["file", "allow_pickle", "[a]", "", "é.0"])
def test_blocks_may_have_any_name(name, tmp_path):
    setup = sh.setup(lambda w, x: x @ w[name], {name: np.ones(3)}, np.eye(3), np.ones(3))
    run = sh.train(setup.with_setting(train=name or "*"), steps=2)
    run.save(tmp_path / "run")
    again = sh.load(tmp_path / "run", setup)
    np.testing.assert_array_equal(again.params[name], run.params[name])


@pytest.mark.parametrize("name", ["a\0b", "\udc80"])
def test_names_that_no_file_can_hold_are_refused(name):
    with pytest.raises(InputError, match="cannot be the name"):
        sh.setup(lambda w, x: x @ w[name], {name: np.ones(3)}, np.eye(3), np.ones(3))


# -------------------------------------------------------------------------- small files that unfold


def _unfolding(path, **columns):
    """A table of thirty million equal numbers: some kilobytes."""
    zeros = pl.select(pl.repeat(0, 3 * 10**7, dtype=pl.Int64).alias("step"))
    zeros.with_columns(**columns).write_parquet(path)
    assert path.stat().st_size < 2**18


def test_the_footer_tells_how_large_a_table_becomes(tmp_path, monkeypatch):
    _unfolding(tmp_path / "t.parquet")
    assert tables.num_values((tmp_path / "t.parquet").read_bytes()) == 3 * 10**7
    monkeypatch.setattr(tables, "available_memory", lambda: 2.0**28)
    with pytest.raises(OSError, match=r"takes 0\.224 GiB; at most 0\.125"):
        tables.read_table(tmp_path / "t.parquet")
    pl.DataFrame({"curve": [[0.0] * 10**6]}).write_parquet(tmp_path / "t.parquet")
    assert tables.num_values((tmp_path / "t.parquet").read_bytes()) == 10**6


@pytest.mark.parametrize("cut", [0, 4, 9, 30])
def test_a_footer_that_is_cut_is_refused(cut, tmp_path):
    pl.DataFrame({"a": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(OSError, match=r"footer|Parquet"):
        tables.num_values(content[: -8 - cut] + content[-8:] if cut else content[:-1])


def test_forged_steps_are_not_counted_out(tmp_path, capsys):
    setup = sh.setup("wu2023", num_samples=3, num_tokens=2, dim=4, width=4)
    sh.train(setup, steps=2).save(tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["setting"]["num_steps"] = 10**12  # 7 TiB of numbers of steps
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "exactly the steps" in capsys.readouterr().err


def test_weights_of_a_paper_may_be_safetensors(tmp_path, capsys):
    from safetensors.numpy import save_file

    setup = sh.setup("wu2023", num_samples=3, num_tokens=2, dim=4, width=4)
    weights = {k: np.asarray(W[0]) for k, W in setup.params0._asdict().items()}
    save_file(weights, tmp_path / "w.safetensors")
    sizes = ["--set", "num_samples=3", "--set", "num_tokens=2"]
    words = ["train", "wu2023", *sizes, "--params", str(tmp_path / "w.safetensors"), "--steps", "2"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["setting"]["width"] == 4
    head = b'{"W_Q":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "w.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"\0")
    assert main(words) == 2
    assert "cannot be read as safetensors" in capsys.readouterr().err


def test_messages_have_an_end(tmp_path, capsys):
    files.write_npz(tmp_path / "w.npz", {f"a{k}": np.zeros(1) for k in range(1000)})
    assert main(["train", "wu2023", "--params", str(tmp_path / "w.npz")]) == 2
    assert len(capsys.readouterr().err) < 2100


# -------------------------------------------------------------------- found by a later attack


def test_data_of_a_paper_without_sequences_is_refused(capsys):
    assert main(["data", "icl2025"]) == 2
    assert "has no sequences of tokens" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [np.array("x"), np.full((2, 2), np.nan), np.zeros((3, 3))])
def test_a_forged_risk_is_refused(bad, tmp_path, capsys):
    setup = sh.setup("icl2025", num_samples=3, dim=2, context=3, num_heads=2)
    sh.train(setup, steps=2).save(tmp_path / "run")
    path = tmp_path / "run" / "problem.npz"
    files.write_npz(path, files.read_npz(path) | {"optimum": bad})
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    assert main(["landscape", str(tmp_path / "run"), "--points", "3"]) == 2
    assert "optimum" in capsys.readouterr().err


def test_training_says_which_hypotheses_fail(capsys):
    small = ["--set", "num_samples=3", "--set", "num_tokens=2", "--set", "dim=4"]
    assert main(["train", "wu2023", *small, "--set", "step_size=1e6", "--steps", "9"]) == 0
    out, err = capsys.readouterr()
    assert "theorem_a is not applicable, since this fails: " in out
    assert "Warning" not in err


def test_a_recursion_without_an_end_is_ended(sweep_folder, monkeypatch):
    monkeypatch.setattr(asking, "RECURSIVE", 1)
    endless = "with recursive t as (select 1 as n union all select n + 1 from t) select n from t"
    with pytest.raises(InputError, match="let its recursion end"):
        asking.ask(sweep_folder, endless)
    found = asking.ask(sweep_folder, f"{endless.replace('from t)', 'from t where n < 3)')}")
    assert found["n"].to_list() == [1, 2, 3]


def test_what_is_wrong_with_a_file_is_told_briefly(tmp_path, capsys):
    (tmp_path / "proof.json").write_bytes(b"\xff" * 10**6)
    assert main(["check", str(tmp_path / "proof.json")]) == 1
    assert len(capsys.readouterr().out) < 300


def test_what_a_theorem_compares_must_fit_into_memory(monkeypatch, capsys):
    from shoal.lab import memory

    sizes = ["--set", "num_samples=4", "--set", "num_tokens=8", "--set", "dim=4"]
    command = ["wu2023", *sizes, "--set", "width=8", "--steps", "1", "--set", "step_size=1e-3"]
    monkeypatch.setattr(memory, "available_memory", lambda: 2.0**18)
    assert main(["train", *command, "--probes", "none"]) == 0
    assert "theorem_c not checked: enclosing" in capsys.readouterr().err
    assert main(["certify", "wu2023.theorem_c", *command[1:]]) == 2
    assert "GiB are available" in capsys.readouterr().err


def test_an_enclosure_forgets_what_nobody_reads_again():
    import jax
    import jax.numpy as jnp

    from shoal.verified.enclose import needed_bytes

    def chain(x, length):
        for _ in range(length):
            x = jnp.sin(x) * x
        return x

    short, long = (jax.make_jaxpr(lambda x, n=n: chain(x, n))(jnp.ones(1000)) for n in (2, 50))
    assert needed_bytes(short.jaxpr) == needed_bytes(long.jaxpr) >= 2 * 2 * 8000


@pytest.mark.parametrize("seed", [-1, 2**32, True])
def test_seeds_are_whole_numbers_of_32_bits(seed):
    with pytest.raises(InputError, match="expected a whole number"):
        sh.setup("wu2023", num_samples=3, num_tokens=2, dim=4, width=4, seeds=[seed])
    with pytest.raises(InputError, match="expected a whole number"):
        sh.setup(lambda w, x: x @ w, lambda _: np.ones(3), np.eye(3), np.ones(3), seeds=[seed])


KERNEL = ["kernel", "wu2023", "--set", "num_samples=6", "--set", "num_tokens=2", "--set", "dim=4"]


def test_a_kernel_without_a_cluster_leaves_nothing(tmp_path, capsys):
    out = tmp_path / "k"
    assert main([*KERNEL, "--scheduler", "nonsense://x:1", "--out", str(out)]) == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err
    assert not out.exists()


def test_a_kernel_that_is_not_finite_is_told(tmp_path, capsys):
    setup = sh.setup("wu2023", num_samples=6, num_tokens=2, dim=4, width=4)
    files.write_npz(tmp_path / "w.npz", {
        name: np.full(W.shape[1:], 1e300) for name, W in setup.params0._asdict().items()
    })  # fmt: skip
    more = ["--params", str(tmp_path / "w.npz"), "--out", str(tmp_path / "k"), "--json"]
    assert main([*KERNEL, *more]) == 0
    ends = json.loads(capsys.readouterr().out)["extremes"]
    assert [ends[name]["converged"] for name in ("smallest", "largest")] == [False, False]


def test_parts_of_a_kernel_must_fit_into_memory(tmp_path, capsys, monkeypatch):
    from shoal.cli import tiling

    monkeypatch.setattr(tiling, "available_memory", lambda: 500.0)
    assert main([*KERNEL, "--out", str(tmp_path / "k")]) == 2
    assert "give a smaller --part" in capsys.readouterr().err
    assert not (tmp_path / "k").exists()


def test_a_limit_of_data_counts_as_memory():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31))\n"
        "from shoal.runtime import available_memory; print(available_memory() < 2**31)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("value", ["nan", "-inf", "1e999"])
def test_no_setting_is_infinite(value, capsys):
    assert main(["train", "icl2025", "--set", f"balance={value}"]) == 2
    assert "expected a finite number" in capsys.readouterr().err


def test_a_function_without_a_derivative_is_refused(tmp_path, capsys):
    loop = "jax.lax.while_loop(lambda s: s.sum() < 3, lambda s: s + 1, x @ w)"
    text = f"import jax\ndef model():\n    f = lambda w, x: {loop}\n"
    text += "    return sh.setup(f, np.ones(3), np.eye(3), np.ones(3))\n"
    (tmp_path / "m.py").write_text(HEAD + text)
    assert main(["train", f"{tmp_path}/m.py:model", "--steps", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("shoal: the derivative of <lambda>(params, x) fails")
    assert "ValueError: Reverse-mode differentiation" in said
    assert said.count("\n") == 1


def test_a_risk_whose_scale_is_zero_can_be_diagnosed(tmp_path, capsys):
    text = "def model(): return sh.setup(lambda w, x: x @ w, np.ones(3), X, np.ones(4))\n"
    (tmp_path / "m.py").write_text(
        f"{HEAD}X = np.random.default_rng(0).normal(size=(4, 3))\n{text}"
    )
    words = ["diagnose", f"{tmp_path}/m.py:model", "--steps", "3", "--no-trials", "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "cannot fit"
    assert "Warning" not in err


def test_what_fails_later_in_a_users_file_is_told_with_its_line(tmp_path, capsys):
    text = "calls = []\ndef loss(o, y):\n    calls.append(0)\n"
    text += "    if len(calls) > 1: raise LookupError('gone')\n    return ((o - y) ** 2).sum()\n"
    line = LINE.replace("np.ones(3))\n", "np.ones(3), loss=loss)\n")
    (tmp_path / "m.py").write_text(HEAD + text + line)
    assert main(["train", f"{tmp_path}/m.py:model", "--steps", "2"]) == 2
    said = capsys.readouterr().err
    assert "m.py, line" in said
    assert "LookupError: gone" in said


def test_the_default_step_counts_what_eigenvalues_take():
    from shoal.lab import memory
    from shoal.lab.setup import abstract_setup
    from shoal.runtime import in_float64

    setting = sh.setup("wu2023", num_samples=2, num_tokens=1, dim=4, width=4).setting
    start = in_float64(abstract_setup)(setting.replace(num_samples=1000), None)
    assert memory.in_float64(memory.default_step_bytes)(start) == 8 * 8 * 1000**2
    start = in_float64(abstract_setup)(setting.replace(num_samples=1000, num_tokens=2), None)
    pairs_of_tokens = 8 * 2000**2
    assert memory.in_float64(memory.default_step_bytes)(start) == 3 * pairs_of_tokens


@pytest.mark.parametrize("content", ['"text"', '{"setting": 3}', '{"setting": {"arguments": [1]}}'])
def test_a_run_of_an_own_model_whose_description_is_no_object_is_refused(content, tmp_path, capsys):
    (tmp_path / "m.py").write_text(
        "import numpy as np, shoal as sh\n"
        "def model():\n"
        "    return sh.setup(lambda w, x: x @ w, np.ones(2), np.eye(2), np.ones(2))\n"
    )
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text(content)
    assert main(["report", str(tmp_path / "r"), "--paper", f"{tmp_path}/m.py:model"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_address_without_a_port_is_refused_before_a_client_is_made(capsys, tmp_path):
    pytest.importorskip("distributed")
    words = ["kernel", "wu2023", "--out", str(tmp_path / "k"), "--scheduler", "3"]
    assert main(words) == 2
    assert "--scheduler 3: expected an address such as tcp://node1:8786" in capsys.readouterr().err


def test_arrays_that_data_are_made_from_count(capsys):
    words = ["train", "arda2026", "--set", "num_samples=3", "--set", "anchor_tokens=2147483648"]
    assert main([*words, "--steps", "2"]) == 2
    assert "making data and weights would take" in capsys.readouterr().err
