"""Sweeps: the file, the runs, the folder, and what kills and damage leave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shoal import workers
from shoal.certificates import verdict
from shoal.cli import main
from shoal.errors import InputError
from shoal.experiments import certify, default_step, prepare, simulate, theorem_of
from shoal.papers import qin2025, wu2023
from shoal.sweeps import batches, folder
from shoal.sweeps.expressions import evaluate
from shoal.sweeps.folder import frame
from shoal.sweeps.grid import from_text, key_of

SMALL = """
paper = "wu2023"
seeds = [0, 1]
probes = ["movement"]
certify = ["theorem_a"]
[set]
num_samples = 3
num_tokens = 2
dim = 4
num_steps = 10
[axes]
width = [8, 16]
score_exponent = [0.5, 1.0]
"""
PLAIN = SMALL.replace('certify = ["theorem_a"]\n', "").replace('probes = ["movement"]\n', "")


# --------------------------------------------------------------------------------------- the file


def test_axes_ranges_zips_and_derived_values_make_the_grid():
    sweep = from_text(
        """
        paper = "wu2023"
        seeds = "3-5"
        [set]
        num_steps = 10
        [axes]
        init = ["lecun", "he"]
        step_size = { from = 0.001, to = 0.1, count = 3, log = true }
        [[zip]]
        num_samples = [2, 3]
        dim = [5, 7]
        [derived]
        width = "num_samples ** 2 + dim"
        """
    )
    assert sweep.num_runs == 2 * 3 * 2 * 3
    assert sweep.varied == ("init", "step_size", "num_samples", "dim", "width")
    assert [s.width for s in sweep.settings[:2]] == [2**2 + 5, 3**2 + 7]
    steps = [s.step_size for s in sweep.settings]
    assert steps[::2][:3] == pytest.approx([0.001, 0.01, 0.1])
    assert sweep.run(4) == (1, 4)


def test_whole_ends_of_a_range_mean_whole_numbers():
    text = 'paper = "wu2023"\n[axes]\nwidth = { from = 10, to = 1000, count = 3, log = true }\n'
    assert [s.width for s in from_text(text).settings] == [10, 100, 1000]


def test_derived_values_may_need_each_other_in_any_order():
    text = (
        'paper = "wu2023"\n[axes]\nnum_samples = [4]\n'
        '[derived]\nwidth = "dim ** 2"\ndim = "3 * num_samples"\n'
    )
    assert from_text(text).settings[0].width == 144


HOSTILE = {
    "import": "[derived]\nwidth = \"__import__('os').system('true')\"",
    "attribute": '[derived]\nwidth = "(1).__class__"',
    "index": '[derived]\nwidth = "[1, 2][0]"',
    "lambda": '[derived]\nwidth = "(lambda: 1)()"',
    "comprehension": '[derived]\nwidth = "max(x for x in (1, 2))"',
    "huge power": '[derived]\nwidth = "9 ** 9 ** 9 ** 9"',
    "huge power of an integer": '[derived]\nwidth = "10 ** 10000000"',
    "negative root": '[derived]\nwidth = "(0 - 8) ** 0.5"',
    "circle": '[derived]\nwidth = "dim"\ndim = "width"',
    "itself": '[derived]\nwidth = "width + 1"',
    "long": f'[derived]\nwidth = "{"1 + " * 500}1"',
    "not text": "[derived]\nwidth = 3",
    "a billion": "[axes]\n"
    + "\n".join(
        f"{n} = {{ from = 1, to = 1000, count = 1000 }}" for n in ("width", "dim", "patch")
    ),
    "endless axis": "[axes]\nwidth = { from = 1, to = 10, count = 1000000000000 }",
    "nested axis": "[axes]\nwidth = [[1, 2], [3]]",
    "empty axis": "[axes]\nwidth = []",
    "nan": "[axes]\nstep_size = [nan]",
    "infinite range": "[axes]\nstep_size = { from = 0.1, to = inf, count = 3 }",
    "unknown setting": "[axes]\nwidht = [1]",
    "unknown key": "[axis]\nwidth = [1]",
    "twice": "[set]\nwidth = 3\n[axes]\nwidth = [1]",
    "unequal zip": "[[zip]]\nwidth = [1, 2]\ndim = [1]",
    "no sense": "[axes]\nwidth = [-3]",
    "giant": "[axes]\nwidth = [100000000000]",
    "rounded far": '[derived]\nwidth = "round(7, 0 - 900000000000)"',
    "many long axes": "[axes]\n"
    + "\n".join(f"a{k} = {{ from = 1, to = 2.0, count = 100000 }}" for k in range(50)),
    "many short axes": "[axes]\n" + "\n".join(f"a{k} = [1, 2]" for k in range(3000)),
    "long chain": "[derived]\n" + "\n".join(f'a{k} = "a{k + 1}"' for k in range(3000)),
    "many dots": f"set{'.a' * 10000} = 1",
    "deep hours": f"budget.hours{'.a' * 15} = 1",
    "giant integer": f"[set]\nwidth = {'9' * 5000}",
    "giant hexadecimal": f"[set]\nwidth = 0x{'f' * 5000}",
    "giant end": f"[axes]\nwidth = {{ from = 1, to = 1{'0' * 400}, count = 3 }}",
    "giant floats": "[axes]\nstep_size = { from = -1.7e308, to = 1.7e308, count = 3 }",
    "giant hours": f"[budget]\nhours = 1{'0' * 400}",
    "superscript seeds": 'seeds = "\u00b2-3"',
    "many seeds": f'seeds = "0-{"9" * 5000}"',
    "seeds beyond the budget": 'seeds = "0-99999"\n[budget]\nruns = 10',
    "giant stride": f'probes = ["movement@{"9" * 5000}"]',
    "not toml": "[axes",
    "deep toml": "x = " + "[" * 5000 + "]" * 5000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_in_a_sentence(kind, tmp_path, capsys):
    path = tmp_path / "s.toml"
    text = HOSTILE[kind]
    path.write_text(text if kind.endswith("toml") else f'paper = "wu2023"\n{text}\n')
    begun = time.perf_counter()
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    assert time.perf_counter() - begun < 5  # a second, and what a loaded machine adds
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


NEEDS_A_PAPER = {"unknown setting", "no sense", "giant", "giant stride"}


def test_what_is_wrong_with_a_file_is_told_before_jax_is_imported(tmp_path):
    program = """
import sys
from shoal.cli import main
codes = [main(["sweep", path, "--out", "out"]) for path in sys.argv[1:]]
assert codes == [2] * len(codes), codes
assert "jax" not in sys.modules and "polars" not in sys.modules
"""
    paths = []
    for kind in HOSTILE.keys() - NEEDS_A_PAPER:
        paths.append(tmp_path / f"{kind}.toml")
        toml = kind.endswith("toml")
        paths[-1].write_text(HOSTILE[kind] if toml else f'paper = "wu2023"\n{HOSTILE[kind]}\n')
    subprocess.run([sys.executable, "-c", program, *paths], check=True, cwd=tmp_path)


def test_expressions_are_arithmetic_and_nothing_else():
    assert evaluate("max(2, n) * 3 - 4 // 3 % 2 + -n", {"n": 5}) == 15 - 1 - 5
    assert evaluate("round(sqrt(n) + log2(8))", {"n": 16}) == 7
    for text in ("n.real", "True", "1 if n else 2", "'a'", "n and 1", "f(1)", "min(*[1])", "1j"):
        with pytest.raises(InputError):
            evaluate(text, {"n": 2})
    with pytest.raises(InputError, match="beyond"):
        evaluate("n * n * n * n", {"n": 10**6})
    with pytest.raises(InputError):
        evaluate("1 / n", {"n": 0})
    with pytest.raises(InputError, match="not a number"):
        evaluate("init * 2", {"init": "he"})


def test_an_expression_may_be_tried_before_all_its_names_are_known():
    assert evaluate("2 * n", {}, partly=True) is None
    assert evaluate("2 * n", {"n": 3}, partly=True) == 6
    for text in ("n + 9 ** 9 ** 9", "n ** 1000", "n + f(1)", "n.real", "max(n, 1 / 0)"):
        with pytest.raises(InputError):
            evaluate(text, {}, partly=True)


# --------------------------------------------------------------------------------------- the runs


def test_runs_of_a_batch_are_those_of_train_and_certify():
    sweep = from_text(SMALL)
    divided = batches.batches(SMALL)
    assert sorted(run for batch in divided for run in batch.runs) == list(range(8))
    assert len(divided) == 2  # the exponent is a number that one program takes
    rows = [row for k in range(len(divided)) for row in batches.do(SMALL, k)]
    for row in rows:
        values = {k: row[k] for k in ("num_samples", "num_tokens", "dim", "num_steps", "width")}
        values["score_exponent"] = row["score_exponent"]
        alone = prepare(wu2023.PAPER, values, seeds=[row["seed"]])
        step = default_step(alone)
        assert row["used_step_size"] == pytest.approx(step, rel=1e-12)
        alone = alone._replace(setting=alone.setting._replace(step_size=step))
        theorem = theorem_of(wu2023.PAPER, "theorem_a")
        run = simulate(alone, ("movement", *theorem.probes))
        np.testing.assert_allclose(row["curve_risk"], run.risk[0], rtol=1e-10)
        assert row["probe_movement_W_V"] == pytest.approx(
            float(run.probes["movement_W_V"][0, -1]), rel=1e-9
        )
        (found,) = certify(alone, theorem, run)
        assert row["theorem_a_predicted_rate"] == pytest.approx(
            float(found.predicted_rate), rel=1e-9, nan_ok=True
        )
        assert row["theorem_a"] == str(verdict(found))
    assert len({row["key"] for row in rows}) == 8
    assert rows[0]["key"] == key_of(sweep, rows[0]["number"])


def test_a_run_that_diverges_is_recorded_and_the_others_go_on():
    text = PLAIN.replace("[axes]", "[axes]\nstep_size = [0.01, 1e6]").replace("[8, 16]", "[8]")
    rows = [row for k in range(len(batches.batches(text))) for row in batches.do(text, k)]
    wild = [row for row in rows if row["step_size"] > 1]
    assert all(row["status"] == "diverged" and "step" in row["reason"] for row in wild)
    assert all(row["status"] == "done" for row in rows if row["step_size"] < 1)
    assert len(rows) == 8


def test_a_batch_that_fails_says_why(monkeypatch):
    def broken(*_):
        msg = "no such thing"
        raise RuntimeError(msg)

    monkeypatch.setattr(batches, "run_together", broken)
    rows = batches.do(PLAIN, 0)
    assert {row["status"] for row in rows} == {"failed"}
    assert "no such thing" in rows[0]["reason"]


def test_failed_runs_are_done_again_when_asked(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(PLAIN)
    sweep = from_text(PLAIN)
    with folder.Writer(tmp_path / "out") as writer:
        writer.add([batches.row_of(sweep, run, "no memory") for run in range(sweep.num_runs)])
    words = ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert set(frame(tmp_path / "out")["status"]) == {"failed"}
    assert main([*words, "--retry"]) == 0
    table = frame(tmp_path / "out")
    assert len(table) == sweep.num_runs
    assert set(table["status"]) == {"done"}
    capsys.readouterr()


def test_other_papers_sweep_too():
    text = (
        'paper = "qin2025"\nseeds = [0, 1]\n[set]\nnum_samples = 2\nnum_tokens = 2\ndim = 6\n'
        'num_steps = 4\nwidth = 6\nkey_dim = 3\n[axes]\nresidual = ["both", "none"]\n'
    )
    rows = [row for k in range(len(batches.batches(text))) for row in batches.do(text, k)]
    assert [row["status"] for row in rows] == ["done"] * 4
    values = {k: rows[0][k] for k in ("num_samples", "num_tokens", "dim", "width", "key_dim")}
    alone = prepare(
        qin2025.PAPER,
        values | {"num_steps": 4, "residual": rows[0]["residual"]},
        seeds=[rows[0]["seed"]],
    )
    alone = alone._replace(setting=alone.setting._replace(step_size=default_step(alone)))
    np.testing.assert_allclose(rows[0]["curve_risk"], simulate(alone).risk[0], rtol=1e-10)


def test_data_that_decide_their_own_sizes_do_so_in_sweeps_too():
    text = (
        'paper = "wu2023"\n[set]\nproblem = "digits"\nnum_samples = 5\nnum_steps = 4\n'
        "patch = 4\ndim = 16\nwidth = 8\n"
    )
    (row,) = batches.do(text, 0)
    values = {"problem": "digits", "num_samples": 5, "num_steps": 4, "patch": 4, "dim": 16}
    alone = prepare(wu2023.PAPER, values | {"width": 8})
    assert alone.setting.num_tokens == 4 != wu2023.Setting().num_tokens
    alone = alone._replace(setting=alone.setting._replace(step_size=default_step(alone)))
    np.testing.assert_allclose(row["curve_risk"], simulate(alone).risk[0], rtol=1e-10)


# -------------------------------------------------------------------------------------- the folder


def run_command(*words, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "shoal", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep that nothing disturbed."""
    where = tmp_path_factory.mktemp("sweep")
    (where / "s.toml").write_text(PLAIN)
    done = run_command("sweep", where / "s.toml", "--out", where / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == {"done": 8}
    return where


def copy_of(finished: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(finished / "out", tmp_path / "out")
    (tmp_path / "s.toml").write_text(PLAIN)
    return tmp_path


def test_the_table_is_complete_and_other_tools_can_read_it(finished):
    rows = frame(finished / "out")
    assert rows["number"].to_list() == list(range(8))
    assert len(list((finished / "out" / "runs").glob("*.parquet"))) == 1  # merged
    index = pl.read_parquet(finished / "out" / "index.parquet")
    assert index["key"].to_list() == rows["key"].to_list()
    assert "curve_risk" not in index.columns


def test_the_same_command_again_does_nothing(finished, tmp_path):
    here = copy_of(finished, tmp_path)
    done = run_command("sweep", here / "s.toml", "--out", here / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done_now"] == 0


def test_a_longer_seed_list_keeps_what_is_there(finished, tmp_path):
    here = copy_of(finished, tmp_path)
    (here / "s.toml").write_text(PLAIN.replace("[0, 1]", "[0, 1, 2]"))
    done = run_command("sweep", here / "s.toml", "--out", here / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done_now"] == 4


@pytest.mark.parametrize("harm", ["flipped", "truncated", "empty"])
def test_damage_is_named_and_mended_by_the_same_command(finished, tmp_path, harm, capsys):
    here = copy_of(finished, tmp_path)
    (path,) = (here / "out" / "runs").glob("*.parquet")
    content = bytearray(path.read_bytes())
    if harm == "flipped":
        content[len(content) // 2] ^= 1
    else:
        del content[len(content) // 2 if harm == "truncated" else 0 :]
    path.write_bytes(bytes(content))
    assert main(["ls", str(here / "out")]) == 2
    assert path.name in capsys.readouterr().err
    done = run_command("sweep", here / "s.toml", "--out", here / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert path.name in done.stderr
    assert frame(here / "out").equals(frame(finished / "out"))


def test_two_writers_are_told_apart(tmp_path):
    with folder.Writer(tmp_path / "out"):
        (tmp_path / "s.toml").write_text(PLAIN)
        done = run_command("sweep", tmp_path / "s.toml", "--out", tmp_path / "out")
        assert done.returncode == 2
        assert f"process {os.getpid()}" in done.stderr


def test_many_small_files_are_merged_and_a_stop_on_the_way_loses_nothing(tmp_path, monkeypatch):
    rows = [{"number": k, "key": f"k{k}", "seed": 0, "status": "done"} for k in range(6)]
    monkeypatch.setattr(folder, "MERGE_AT", 4)
    with folder.Writer(tmp_path / "out") as writer:
        for row in rows[:3]:
            writer.add([row])
        old = sorted((tmp_path / "out" / "runs").iterdir())
        contents = [p.read_bytes() for p in old]
        writer.add([rows[3]])
        assert len(list((tmp_path / "out" / "runs").iterdir())) == 1
        for path, content in zip(old, contents, strict=True):
            path.write_bytes(content)  # as if the merge had been stopped before it removed them
        for row in rows[4:]:
            writer.add([row])
    assert frame(tmp_path / "out")["number"].to_list() == list(range(6))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        folder.Writer(tmp_path / "file" / "out")


@pytest.mark.parametrize("moment", [0.3, 2.5, 4.0])
def test_a_kill_loses_at_most_what_was_in_flight(finished, tmp_path, moment):
    (tmp_path / "s.toml").write_text(PLAIN)
    words = [sys.executable, "-m", "shoal", "sweep", tmp_path / "s.toml"]
    words += ["--out", tmp_path / "out"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = run_command("sweep", tmp_path / "s.toml", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert frame(tmp_path / "out").equals(frame(finished / "out"))


def test_ctrl_c_stops_cleanly_and_says_how_to_continue(tmp_path):
    (tmp_path / "s.toml").write_text(PLAIN.replace("num_steps = 10", "num_steps = 2000000"))
    words = [sys.executable, "-m", "shoal", "sweep", tmp_path / "s.toml"]
    words += ["--out", tmp_path / "out"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in said


# ----------------------------------------------------------------------------------- looking at it


def test_ls_show_query_and_export(finished, tmp_path, capsys):
    out = str(finished / "out")
    assert main(["ls", out]) == 0
    assert "8 of 8 runs" in capsys.readouterr().out
    assert main(["show", out, "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["number"] == 3
    assert len(shown["curve_risk"]) == 11
    assert main(["show", out, shown["key"][:10]]) == 0
    capsys.readouterr()
    assert main(["show", out, "99"]) == 2
    assert "from 0 to 7" in capsys.readouterr().err
    sql = "select width, count(*) as n from runs group by width order by width"
    assert main(["query", out, sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"width": 8, "n": 4}, {"width": 16, "n": 4}]
    assert main(["query", out, "select widht from runs"]) == 2
    assert "width" in capsys.readouterr().err
    assert main(["export", out, str(tmp_path / "t.csv")]) == 0
    assert len(pl.read_csv(tmp_path / "t.csv")) == 8
    assert main(["export", out, str(tmp_path / "t.parquet")]) == 0
    assert pl.read_parquet(tmp_path / "t.parquet").equals(frame(out))
    assert main(["export", out, str(tmp_path / "t.xlsx")]) == 2


def test_a_dry_run_counts_and_writes_nothing(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(SMALL)
    assert main(["sweep", str(tmp_path / "s.toml"), "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["programs"]) == (8, 2)
    # three products over the hidden units at least, ten steps, eight runs
    assert said["flops"] > 8 * 10 * 3 * 2 * 6 * 4 * 8
    assert list(tmp_path.iterdir()) == [tmp_path / "s.toml"]


# --------------------------------------------------------------------------------------- processes


def test_a_worker_that_dies_is_replaced_and_its_task_done_again():
    worker = workers.Worker(0)
    try:
        worker.process.kill()
        answer = worker.ask({"sweep": PLAIN, "batch": 0})
        assert answer.error is None
        assert len(answer.value) == 4
        assert worker.ask({"sweep": "nonsense", "batch": 0}).error.startswith("InputError")
    finally:
        worker.end()


def test_a_worker_ends_with_its_parent():
    worker = workers.Worker(0)
    worker.process.communicate(timeout=60)
    assert worker.process.returncode == 0


def test_the_same_sweep_on_a_dask_cluster_with_workers_that_come_and_go(finished, tmp_path):
    pytest.importorskip("distributed")
    from distributed import LocalCluster

    (tmp_path / "s.toml").write_text(PLAIN)
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        words = [sys.executable, "-m", "shoal", "sweep", str(tmp_path / "s.toml"), "--out"]
        words += [str(tmp_path / "out"), "--scheduler", cluster.scheduler_address]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        time.sleep(5)
        os.kill(cluster.workers[0].process.pid, signal.SIGKILL)
        cluster.scale(3)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert frame(tmp_path / "out").equals(frame(finished / "out"))


def test_no_scheduler_is_said_at_once(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(PLAIN)
    words = ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    assert main([*words, "--scheduler", "tcp://127.0.0.1:9"]) == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err
