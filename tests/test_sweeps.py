"""Sweeps: the file, the runs, the folder, and what kills and damage leave behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from shoal import workers
from shoal.cli import main
from shoal.disk import sweeps as folders
from shoal.disk.sweeps import frame
from shoal.errors import InputError
from shoal.lab import setup as setups
from shoal.lab.run import train
from shoal.lab.setup import paper_setup
from shoal.papers import _module, paper_of
from shoal.sweeps import batches, grid
from shoal.sweeps.expressions import evaluate
from shoal.sweeps.parse import parse

TOY = Path(__file__).with_name("toy_paper.py")
FIXTURES = Path(__file__).with_name("fixtures")
PLAIN = f"""
paper = "{TOY}"
seeds = [0, 1]
[set]
num_samples = 3
num_steps = 10
[axes]
dim = [5, 6]
gain = [0.5, 1.0]
"""
SMALL = f'probes = ["movement"]\ncertify = ["theorem_1", "kernel_regime"]\n{PLAIN}'


def sweep_of(text):
    return grid.make_sweep(parse(text))


def rows_of(text):
    """All rows of a sweep, trained in this process."""
    sweep = sweep_of(text)
    return [
        sweep.row(number, cells)
        for batch in batches.divide(sweep)
        for number, cells in zip(
            batch.runs, batches.run_batch(sweep.task(batch.runs, batch.size)), strict=True
        )
    ]


# --------------------------------------------------------------------------------------- the file


def test_axes_ranges_zips_and_derived_values_make_the_grid():
    sweep = sweep_of(
        f"""
        paper = "{TOY}"
        seeds = "3-5"
        [set]
        num_steps = 10
        [axes]
        labels = ["teacher", "twins"]
        step_size = {{ from = 0.001, to = 0.1, count = 3, log = true }}
        [[zip]]
        num_samples = [2, 3]
        dim = [5, 7]
        [derived]
        width = "num_samples ** 2 + dim"
        """
    )
    assert len(sweep.settings) * 3 == sweep.file.num_runs == 2 * 3 * 2 * 3
    assert sweep.varied == ("labels", "step_size", "num_samples", "dim", "width")
    assert [s.width for s in sweep.settings[:2]] == [2**2 + 5, 3**2 + 7]
    steps = [s.step_size for s in sweep.settings]
    assert steps[::2][:3] == pytest.approx([0.001, 0.01, 0.1])
    assert sweep.run(4) == (1, 4)


def test_whole_ends_of_a_range_mean_whole_numbers():
    text = 'paper = "x"\n[axes]\nwidth = { from = 10, to = 1000, count = 3, log = true }\n'
    assert parse(text).axes == [[{"width": 10}, {"width": 100}, {"width": 1000}]]
    few = text.replace("10, to = 1000, count = 3", "1, to = 3, count = 99999")
    assert parse(f"seeds = '0-9'\n{few}").num_runs == 3 * 10  # so the budget allows it


def test_derived_values_may_need_each_other_in_any_order():
    text = (
        f'paper = "{TOY}"\n[axes]\nnum_samples = [4]\n'
        '[derived]\nwidth = "dim ** 2"\ndim = "3 * num_samples"\n'
    )
    assert sweep_of(text).settings[0].width == 144


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
    "repeated value": "[axes]\nwidth = [1, 2, 1]",
    "nan": "[axes]\nstep_size = [nan]",
    "infinite range": "[axes]\nstep_size = { from = 0.1, to = inf, count = 3 }",
    "unknown key": "[axis]\nwidth = [1]",
    "twice": "[set]\nwidth = 3\n[axes]\nwidth = [1]",
    "zipped twice": "[axes]\nwidth = [1]\n[[zip]]\nwidth = [1]\ndim = [1]",
    "derived twice": '[axes]\nwidth = [1]\n[derived]\nwidth = "3"',
    "unequal zip": "[[zip]]\nwidth = [1, 2]\ndim = [1]",
    "rounded far": '[derived]\nwidth = "round(7, 0 - 900000000000)"',
    "many long axes": "[axes]\n"
    + "\n".join(f"a{k} = {{ from = 1, to = 2.0, count = 100000 }}" for k in range(50)),
    "many short axes": "[axes]\n" + "\n".join(f"a{k} = [1, 2]" for k in range(3000)),
    "long chain": "[derived]\n" + "\n".join(f'a{k} = "a{k + 1}"' for k in range(3000)),
    "many dots": f"set{'.a' * 10000} = 1",
    "one long word": f"set.{'a' * 60000} = x",
    "many spaces": f"set{' ' * 60000}. = x",
    "deep hours": f"budget.hours{'.a' * 15} = 1",
    "giant integer": f"[set]\nwidth = {'9' * 5000}",
    "giant hexadecimal": f"[set]\nwidth = 0x{'f' * 5000}",
    "giant end": f"[axes]\nwidth = {{ from = 1, to = 1{'0' * 400}, count = 3 }}",
    "giant floats": "[axes]\nstep_size = { from = -1.7e308, to = 1.7e308, count = 3 }",
    "giant hours": f"[budget]\nhours = 1{'0' * 400}",
    "superscript seeds": 'seeds = "\u00b2-3"',
    "many seeds": f'seeds = "0-{"9" * 5000}"',
    "seeds beyond the budget": 'seeds = "0-99999"\n[budget]\nruns = 10',
    "not toml": "[axes",
    "deep toml": "x = " + "[" * 5000 + "]" * 5000,
}
NEEDS_A_PAPER = {
    "unknown setting": "[axes]\nwidht = [1]",
    "no sense": "[axes]\nbatch_size = [-3]",
    "yes for a number": "[set]\nwidth = true",
    "giant": "[axes]\nnum_samples = [100000000000]",
    "giant stride": f'probes = ["movement@{"9" * 5000}"]',
    "spaced probe": 'probes = ["movement@5"]',
    "unknown probe": 'probes = ["movemnt"]',
    "unknown theorem": 'certify = ["theorem_9"]',
    "another method's theorem": 'certify = ["theorem_1"]\n[axes]\nmethod = ["gd", "adam"]',
    "unknown block": '[set]\ntrain = "W_Q"',
    "flow in float32": 'precision = "float32"\n[set]\nmethod = "flow"',
    "records that do not fit": "[set]\nnum_steps = 10\n[axes]\nevery = [2, 3]",
}


def written(text, path, kind=""):
    path.write_text(text if kind.endswith("toml") else f'paper = "{TOY}"\n{text}\n')
    return str(path)


@pytest.mark.parametrize("kind", HOSTILE | NEEDS_A_PAPER)
def test_hostile_files_are_refused_in_a_sentence(kind, tmp_path, capsys):
    path = written((HOSTILE | NEEDS_A_PAPER)[kind], tmp_path / "s.toml", kind)
    assert main(["sweep", path, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_mistakes_in_a_file_are_reported_before_jax_is_imported(tmp_path):
    program = """
import sys
from shoal.cli import main
codes = [main(["sweep", path, "--out", "out"]) for path in sys.argv[1:]]
assert codes == [2] * len(codes), codes
assert "jax" not in sys.modules and "polars" not in sys.modules
"""
    paths = [written(text, tmp_path / f"{k}.toml", k) for k, text in HOSTILE.items()]
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


def test_listing_and_estimating_draw_neither_data_nor_weights(monkeypatch):
    def drawn(*_, **__):
        raise AssertionError

    for name in ("make_data", "draw_weights", "paper_setup"):
        monkeypatch.setattr(setups, name, drawn)
        monkeypatch.setattr(grid, name, drawn, raising=False)
    sweep = sweep_of(SMALL)
    found = batches.estimate(sweep, 2)
    assert (found.runs, found.programs, found.batches) == (8, 2, 2)
    # residuals and gradient of 3 samples in 5 or 6 features, ten steps, eight runs
    assert found.flops > 8 * 10 * 2 * 2 * 3 * 5


@pytest.fixture(scope="module")
def rows():
    return rows_of(SMALL)


def test_runs_of_a_batch_are_those_of_train_and_certify(rows):
    sweep = sweep_of(SMALL)
    divided = batches.divide(sweep)
    assert sorted(run for batch in divided for run in batch.runs) == list(range(8))
    assert len(divided) == 2  # the gain is a number that one program takes
    names = ("num_samples", "num_steps", "dim", "gain")
    for row in (rows[0], rows[3], rows[5]):
        values = {name: row[name] for name in names}
        run = train(
            paper_setup(paper_of(str(TOY)), values, seeds=[row["seed"]]),
            probes=["movement", "kernel_distance"],
        )
        assert row["used_step_size"] == pytest.approx(float(run.step_size[0]), rel=1e-12)
        np.testing.assert_allclose(row["curve_risk"], run.risk[0], rtol=1e-10)
        np.testing.assert_array_equal(row["curve_step"], run.step)
        assert row["risk_last"] == row["curve_risk"][-1] == row["risk_least"]
        moved = float(run.probes["movement_w"][0, -1])
        assert row["probe_movement_w"] == pytest.approx(moved, rel=1e-9)
        for key in ("theorem_1", "kernel_regime"):
            (found,) = run.certify(key)
            assert row[key] == run.certify(key).verdict == "holds"
            predicted = float(found.predicted_rate)
            assert row[f"{key}_predicted_rate"] == pytest.approx(predicted, rel=1e-9)
    assert len({row["key"] for row in rows}) == 8
    assert rows[0]["key"] == sweep.key(rows[0]["number"])


def test_rows_have_the_columns_of_the_documentation(rows):
    theorem = ["", "_hypotheses_margin", "_conclusions_margin", "_predicted_rate", "_measured_rate"]
    assert list(rows[0]) == [
        *("number", "key", "seed", "num_samples", "num_steps", "dim", "gain", "status", "reason"),
        *("used_step_size", "risk_first", "risk_last", "risk_least", "probe_movement_w"),
        *(f"theorem_1{end}" for end in theorem),
        *(f"kernel_regime{end}" for end in theorem),
        *("curve_step", "curve_risk"),
    ]


def test_runs_that_differ_only_in_training_share_data_and_weights():
    batches._data.cache_clear()
    batches._weights.cache_clear()
    text = PLAIN.replace("dim = [5, 6]", "step_size = [0.01, 0.02]\nmethod = ['gd', 'adam']")
    rows = rows_of(text.replace("gain = [0.5, 1.0]", ""))
    assert len(rows) == 8
    assert batches._data.cache_info().misses == 1
    assert batches._weights.cache_info().misses == 2


def test_a_run_that_diverges_is_recorded_and_the_others_go_on():
    text = PLAIN.replace("dim = [5, 6]", "step_size = [0.01, 1e200]")
    rows = rows_of(text)
    wild = [row for row in rows if row["step_size"] > 1]
    assert all(row["status"] == "diverged" and "at step 1" in row["reason"] for row in wild)
    assert all(row["status"] == "done" for row in rows if row["step_size"] < 1)
    assert len(rows) == 8


def test_float32_is_trained_in_float32_and_certified_in_float64():
    (row,) = rows_of(
        f'paper = "{TOY}"\nprecision = "float32"\ncertify = ["theorem_1"]\n[set]\nnum_steps = 10\n'
    )
    assert row["status"] == "done"
    assert row["risk_last"] == float(np.float32(row["risk_last"]))
    assert row["theorem_1_hypotheses_margin"] == pytest.approx(0.5)


def test_a_batch_that_fails_says_why(monkeypatch):
    def broken(*_, **__):
        msg = "no such thing"
        raise RuntimeError(msg)

    monkeypatch.setattr(batches.engine, "trajectories", broken)
    rows = rows_of(PLAIN)
    assert {row["status"] for row in rows} == {"failed"}
    assert rows[0]["reason"] == "RuntimeError: no such thing"


@pytest.fixture
def in_process(monkeypatch):
    """Tasks are performed in this process, which has compiled their programs."""

    def spread(tasks, *, most):
        return (workers.Answer(task, workers.perform(task)) for task in tasks)

    monkeypatch.setattr(workers, "spread", spread)


def test_failed_runs_are_done_again_when_asked(in_process, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(PLAIN)
    sweep = sweep_of(PLAIN)
    with folders.Writer(tmp_path / "out") as writer:
        failed = batches.failure("no memory")
        writer.add([sweep.row(run, failed) for run in range(sweep.file.num_runs)])
    words = ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert set(frame(tmp_path / "out")["status"]) == {"failed"}
    assert main([*words, "--retry"]) == 0
    table = frame(tmp_path / "out")
    assert len(table) == sweep.file.num_runs
    assert set(table["status"]) == {"done"}
    capsys.readouterr()


REAL = {
    "qin2025": 'paper = "qin2025"\nseeds = [0, 1]\n[set]\nnum_samples = 2\nnum_tokens = 2\n'
    'dim = 6\nnum_steps = 4\nwidth = 6\nkey_dim = 3\n[axes]\nresidual = ["both", "none"]\n',
    # data that decide their own sizes
    "wu2023": 'paper = "wu2023"\n[set]\nproblem = "digits"\nnum_samples = 5\nnum_steps = 4\n'
    "patch = 4\ndim = 16\nwidth = 8\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("key", REAL)
def test_the_papers_sweep_too(key):
    sweep = sweep_of(REAL[key])
    rows = rows_of(REAL[key])
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:
        where, seed = sweep.run(row["number"])
        alone = paper_setup(paper_of(key), sweep.given[where], seeds=[seed])
        assert alone.setting == sweep.settings[where]
        np.testing.assert_allclose(row["curve_risk"], train(alone, probes=()).risk[0], rtol=1e-10)
    if key == "wu2023":
        assert sweep.settings[0].num_tokens == 4 != paper_of(key).setting().num_tokens


# ------------------------------------------------------------------------------- a paper in a file


def test_a_run_is_named_by_the_source_of_its_paper(tmp_path):
    mine = tmp_path / "mine.py"
    keys = []
    for end in ("", "# another comment\n"):
        mine.write_text(TOY.read_text() + end)
        _module.cache_clear()
        keys.append(sweep_of(PLAIN.replace(str(TOY), str(mine))).key(0))
    assert keys[0] != keys[1]


def test_a_task_names_a_file_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(TOY.parent)
    task = sweep_of(PLAIN.replace(str(TOY), "./toy_paper.py")).task((0,), 1)
    assert task["paper"] == str(TOY)
    assert json.loads(json.dumps(task))["runs"] == [[task["runs"][0][0], 0]]
    assert workers.absolute_target("wu2023") == "wu2023"


# -------------------------------------------------------------------------------------- the folder


def command(*words):
    return [sys.executable, "-m", "shoal", *map(str, words)]


def run_command(*words, **kwargs):
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, **kwargs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep that nothing disturbed, started where its paper is."""
    where = tmp_path_factory.mktemp("sweep")
    shutil.copy(TOY, where / "mine.py")
    (where / "s.toml").write_text(PLAIN.replace(str(TOY), "mine.py"))
    done = run_command("sweep", "s.toml", "--out", "out", "--json", cwd=where)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == {"done": 8}
    return where


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """A copy of it, with the same paper elsewhere: runs are named by what is in a file."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "s.toml").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_is_complete_and_other_tools_can_read_it(finished):
    rows = frame(finished / "out")
    assert rows["number"].to_list() == list(range(8))
    assert len(list((finished / "out" / "runs").glob("*.parquet"))) == 1  # merged
    index = pl.read_parquet(finished / "out" / "index.parquet")
    assert index["key"].to_list() == rows["key"].to_list()
    assert "curve_risk" not in index.columns


def test_the_same_command_again_does_nothing(copied, capsys):
    assert main(["sweep", "s.toml", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done_now"] == 0


def test_a_longer_seed_list_keeps_what_is_there(in_process, copied, capsys):
    Path("s.toml").write_text(Path("s.toml").read_text().replace("[0, 1]", "[0, 1, 2]"))
    assert main(["sweep", "s.toml", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done_now"] == 4


@pytest.mark.parametrize("harm", ["flipped", "truncated", "empty"])
def test_damage_is_named_and_repaired_by_the_same_command(
    in_process, finished, copied, harm, capsys
):
    (path,) = Path("out/runs").glob("*.parquet")
    content = bytearray(path.read_bytes())
    if harm == "flipped":
        content[len(content) // 2] ^= 1
    else:
        del content[len(content) // 2 if harm == "truncated" else 0 :]
    path.write_bytes(bytes(content))
    assert main(["ls", "out"]) == 2
    assert path.name in capsys.readouterr().err
    assert main(["sweep", "s.toml", "--out", "out"]) == 0
    assert path.name in capsys.readouterr().err
    assert_frame_equal(frame("out"), frame(finished / "out"), rel_tol=1e-10)


def test_a_second_writer_is_refused(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(PLAIN)
    with folders.Writer(tmp_path / "out"):
        assert main(["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]) == 2
    assert f"process {os.getpid()}" in capsys.readouterr().err


def test_many_small_files_are_merged_and_an_interruption_loses_nothing(tmp_path, monkeypatch):
    rows = [{"number": k, "key": f"k{k}", "seed": 0, "status": "done"} for k in range(6)]
    monkeypatch.setattr(folders, "MERGE_AT", 4)
    with folders.Writer(tmp_path / "out") as writer:
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
        folders.Writer(tmp_path / "file" / "out")


def test_nothing_new_is_started_after_the_budgets_hours(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(f"{PLAIN}[budget]\nhours = 1e-9\n")
    assert main(["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "hours is used up; the same command continues" in said
    assert "no run was finished" in said


def wait_until(happened, process):
    """Return when something happened, or when the process has ended."""
    while process.poll() is None and not happened():
        os.sched_yield()


MOMENTS = {
    "it has begun": lambda out: (out / "lock").exists(),
    "its workers have begun": lambda out: (out / "sweep.toml").exists(),
    "a batch is done": lambda out: any(out.glob("runs/*.parquet")),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_loses_at_most_what_was_in_flight(finished, tmp_path, moment):
    shutil.copy(finished / "mine.py", tmp_path)
    shutil.copy(finished / "s.toml", tmp_path)
    words = command("sweep", "s.toml", "--out", "out")
    process = subprocess.Popen(
        words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=tmp_path
    )
    wait_until(lambda: MOMENTS[moment](tmp_path / "out"), process)
    process.kill()
    process.wait()
    done = run_command("sweep", "s.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert frame(tmp_path / "out").equals(frame(finished / "out"))


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_continue(tmp_path):
    endless = "num_steps = 100000000000\nevery = 10000000000"
    (tmp_path / "s.toml").write_text(PLAIN.replace("num_steps = 10", endless))
    words = command("sweep", tmp_path / "s.toml", "--out", tmp_path / "out")
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "out" / "sweep.toml").exists, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "0 of 8 runs are stored; the same command continues" in said


# ----------------------------------------------------------------------------------- looking at it


def test_ls_show_query_and_export(copied, capsys):
    Path("mine.py").write_text("raise SystemExit('only the sweep itself runs a file')")
    Path("out/sweep.toml").write_text(PLAIN.replace(str(TOY), "mine.py"))
    assert main(["ls", "out"]) == 0
    assert "8 of 8 runs" in capsys.readouterr().out
    assert main(["show", "out", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["number"] == 3
    assert len(shown["curve_risk"]) == 11
    assert main(["show", "out", shown["key"][:10]]) == 0
    capsys.readouterr()
    assert main(["show", "out", "99"]) == 2
    assert "from 0 to 7" in capsys.readouterr().err
    sql = "select dim, count(*) as n from runs group by dim order by dim"
    assert main(["query", "out", sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"dim": 5, "n": 4}, {"dim": 6, "n": 4}]
    assert main(["query", "out", "select gian from runs"]) == 2
    assert "'gain'" in capsys.readouterr().err
    assert main(["export", "out", "t.csv"]) == 0
    assert len(pl.read_csv("t.csv")) == 8
    assert main(["export", "out", "t.parquet"]) == 0
    assert pl.read_parquet("t.parquet").equals(frame("out"))
    assert main(["export", "out", "t.xlsx"]) == 2


def test_a_folder_of_version_0_1_0_can_still_be_looked_at(tmp_path, capsys):
    old = str(FIXTURES / "sweep-0.1.0")
    assert main(["ls", old]) == 0
    said = capsys.readouterr().out
    assert "4 of 4 runs" in said
    assert "2 not applicable" in said
    assert main(["show", old, "1"]) == 0
    capsys.readouterr()
    sql = "select seed, width, risk_last from runs where width = 16 order by seed"
    assert main(["query", old, sql, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in rows] == [0, 1]
    assert main(["export", old, str(tmp_path / "t.csv")]) == 0
    assert pl.read_csv(tmp_path / "t.csv")["width"].to_list() == [8, 8, 16, 16]


@pytest.mark.slow
def test_a_sweep_of_version_0_1_0_done_again_gives_the_same_table():
    old = frame(FIXTURES / "sweep-0.1.0")
    rows = rows_of((FIXTURES / "sweep-0.1.0" / "sweep.toml").read_text())
    new = pl.DataFrame(rows, infer_schema_length=None).sort("number")
    assert new.columns == old.columns
    assert_frame_equal(new.drop("key"), old.drop("key"), rel_tol=1e-9)  # code is part of a key


def test_a_dry_run_counts_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SMALL)
    assert main(["sweep", "s.toml", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["programs"]) == (8, 2)
    assert main(["sweep", "s.toml", "--dry-run"]) == 0
    assert "4 settings (dim, gain) with 2 seeds" in capsys.readouterr().out
    assert os.listdir() == ["s.toml"]


# --------------------------------------------------------------------------------------- processes


def test_a_worker_that_dies_is_replaced_and_its_task_done_again(rows):
    sweep = sweep_of(SMALL)
    batch = batches.divide(sweep)[0]
    task = {"sweep": sweep.task(batch.runs, batch.size)}
    worker = workers.Worker(0)
    try:
        worker.process.kill()
        answer = worker.ask(task)
        assert answer.error is None
        wanted = [row["risk_last"] for row in rows[:4]]
        assert [cells["risk_last"] for cells in answer.value] == pytest.approx(wanted, rel=1e-10)
        task["sweep"]["paper"] = "nonsense"
        assert worker.ask(task).error.startswith("InputError")
    finally:
        worker.end()
    assert worker.ask(task).error == "stopped"


def test_a_worker_ends_with_its_parent():
    worker = workers.Worker(0)
    worker.process.communicate()
    assert worker.process.returncode == 0


@pytest.mark.slow
def test_the_same_sweep_on_a_dask_cluster_with_workers_that_come_and_go(finished, tmp_path):
    pytest.importorskip("distributed")
    from distributed import LocalCluster

    out = tmp_path / "out"
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        words = command("sweep", "s.toml", "--out", out, "--scheduler", cluster.scheduler_address)
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=finished)
        wait_until((out / "sweep.toml").exists, process)
        os.kill(cluster.workers[0].process.pid, signal.SIGKILL)
        cluster.scale(3)
        _, said = process.communicate()
    assert process.returncode == 0, said
    assert frame(out).equals(frame(finished / "out"))


@pytest.mark.slow
def test_a_missing_scheduler_is_reported(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(PLAIN)
    words = ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    assert main([*words, "--scheduler", "tcp://127.0.0.1:9"]) == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err
