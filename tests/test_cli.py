"""The commands, as people and scripts call them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from helpers import numpy_descent
from shoal.cli import main
from shoal.papers import wu2023

SHOAL = (sys.executable, "-m", "shoal")
TINY = ["--set", "num_samples=4", "--set", "num_tokens=3", "--set", "dim=6", "--set", "width=16"]
SMALL = "train wu2023 --set num_samples=8 --set num_tokens=4 --set dim=12 --set width=64"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(capsys, *words):
    """Exit code, standard output and standard error of a command."""
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def ok(capsys, *words):
    code, out, err = call(capsys, *words)
    assert code == 0, err
    return out


# ------------------------------------------------------------------------------------ training


def recomputed(folder):
    """Every risk and the last weights of a run folder, by NumPy alone."""
    about = json.loads((folder / "run.json").read_text())
    s = about["setting"]
    scales = wu2023.Scales(
        s["width"] ** -s["score_exponent"],
        s["width"] ** -0.5 if s["init"] == "ntk" else 1.0,
        1 / s["num_tokens"] if s["pooling"] == "mean" else 1.0,
    )
    data, start = np.load(folder / "problem.npz"), np.load(folder / "params0.npz")
    speeds = dict.fromkeys(("W_Q", "W_K", "W_V"), s["hidden_step_ratio"])
    for i, seed in enumerate(about["seeds"]):
        weights = {name: start[name][i] for name in start.files}
        yield (
            i,
            seed,
            *numpy_descent(
                weights, data["X"], data["y"], scales, s["step_size"], s["num_steps"], speeds
            ),
        )


def test_a_run_folder_can_be_recomputed_by_anyone(capsys, tmp_path):
    words = [*SMALL.split(), "--set", "init=lecun", "--set", "score_exponent=0.5"]
    ok(capsys, *words, "--steps", "50", "--seeds", "0,1", "--out", "r1")
    folder = tmp_path / "r1"
    files = {p.name for p in folder.iterdir()}
    assert files == {
        "run.json",
        "trajectory.parquet",
        "problem.npz",
        "params0.npz",
        "params.npz",
        "certificates.json",
    }
    table = pl.read_parquet(folder / "trajectory.parquet")
    assert table.columns[:3] == ["seed", "step", "risk"]
    last = np.load(folder / "params.npz")
    for i, seed, risks, weights in recomputed(folder):
        rows = table.filter(pl.col("seed") == seed)
        assert rows["step"].to_list() == list(range(51))
        np.testing.assert_allclose(rows["risk"].to_numpy(), risks, rtol=1e-10)
        for name, W in weights.items():
            np.testing.assert_allclose(last[name][i], W, rtol=1e-10, atol=1e-14)


def test_the_same_command_gives_the_same_bytes(capsys, tmp_path):
    for name in ("a", "b"):
        ok(capsys, "train", "wu2023", *TINY, "--steps", "20", "--seeds", "0-2", "--out", name)
    for file in ("problem.npz", "params0.npz", "params.npz"):
        one, two = np.load(tmp_path / "a" / file), np.load(tmp_path / "b" / file)
        for name in one.files:
            assert one[name].tobytes() == two[name].tobytes()
    first, second = (pl.read_parquet(tmp_path / n / "trajectory.parquet") for n in ("a", "b"))
    assert first.equals(second, null_equal=True)


def own_files(tmp_path, stacked=False):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 2, 5)), rng.normal(size=3)
    W = {k: rng.normal(size=(7, 5)) / 3 for k in ("W_Q", "W_K", "W_V")} | {
        "w_O": rng.normal(size=7) / 3
    }
    np.savez(tmp_path / "F.npz", X=X, y=y)
    np.savez(
        tmp_path / "W.npz", **{k: np.stack([w, 2 * w]) if stacked else w for k, w in W.items()}
    )
    return X, y, W


@pytest.mark.parametrize("stacked", [False, True])
def test_training_starts_from_the_user_s_data_and_weights(capsys, tmp_path, stacked):
    X, y, W = own_files(tmp_path, stacked)
    words = ["--data", "F.npz", "--params", "W.npz", "--set", "step_size=0.01", "--steps", "4"]
    summary = json.loads(ok(capsys, "train", "wu2023", *words, "--json"))
    scales = wu2023.Scales(7**-0.5, 1.0, 0.5)
    risks, _ = numpy_descent(W, X, y, scales, 0.01, 4, {})
    assert summary["first_risk"][0] == pytest.approx(risks[0], rel=1e-12)
    assert summary["last_risk"][0] == pytest.approx(risks[-1], rel=1e-12)
    assert summary["setting"]["width"] == 7
    assert summary["seeds"] == ([0, 1] if stacked else [0])


def test_certify_starts_from_the_user_s_data_and_weights(capsys, tmp_path):
    np.savez(tmp_path / "F.npz", X=np.eye(2)[None], y=[0.01])
    eye = np.eye(2)
    np.savez(tmp_path / "W.npz", W_Q=eye, W_K=eye, W_V=eye, w_O=[0.01, -0.01])
    words = ["--data", "F.npz", "--params", "W.npz", "--set", "score_exponent=0"]
    said = json.loads(
        ok(capsys, "certify", "wu2023.theorem_a", *words, "--set", "pooling=sum", "--json")
    )
    result = said["results"][0]
    assert result["verdict"] == "holds"
    # worked by hand in docs/theory/wu2023.md, example 1
    assert result["constants"]["c_6"] == pytest.approx(0.4342154486, rel=1e-9)
    assert result["constants"]["gamma"] == pytest.approx(0.09534140636, rel=1e-8)
    assert set(said) >= {"paper", "theorem", "results"}
    for line in (*result["hypotheses"], *result["conclusions"]):
        assert set(line) >= {"name", "lhs", "rhs", "holds", "margin"}
        assert line["holds"] is True


def test_a_finished_run_is_certified_and_a_tampered_one_violated(capsys, tmp_path):
    np.savez(tmp_path / "F.npz", X=np.eye(2)[None], y=[0.01])
    eye = np.eye(2)
    np.savez(tmp_path / "W.npz", W_Q=eye, W_K=eye, W_V=eye, w_O=[0.01, -0.01])
    start = ["--data", "F.npz", "--params", "W.npz", "--set", "score_exponent=0"]
    step = ["--set", "pooling=sum", "--set", "step_size=0.09", "--steps", "10"]
    ok(capsys, "train", "wu2023", *start, *step, "--out", "r")
    certify = ("certify", "wu2023.theorem_a", "--run", "r", "--json")
    before = json.loads(ok(capsys, *certify))
    assert before["results"][0]["verdict"] == "holds"
    stored = json.loads((tmp_path / "r" / "run.json").read_text())
    assert stored["verdicts"]["theorem_a"] == ["holds"]
    path = tmp_path / "r" / "trajectory.parquet"
    table = pl.read_parquet(path)
    worse = pl.when(pl.col("step") == 6).then(pl.col("risk") * 1e3).otherwise(pl.col("risk"))
    table.with_columns(risk=worse).write_parquet(path)
    after = json.loads(ok(capsys, *certify))
    assert after["results"][0]["verdict"] == "violated"


def test_theorem_b_is_checked_along_the_flow(capsys):
    words = ["--set", "num_samples=2", "--set", "num_tokens=2", "--set", "dim=8"]
    words += ["--set", "width=2000", "--set", "tokens=unit", "--set", "label_scale=0.1"]
    words += ["--set", "score_exponent=1", "--steps", "4", "--json"]
    said = json.loads(ok(capsys, "certify", "wu2023.theorem_b", *words))
    assert said["results"][0]["verdict"] == "holds"
    assert said["setting"]["method"] == "flow"


def test_kernel_regime_and_vector_probes_are_recorded(capsys, tmp_path):
    ok(capsys, "certify", "wu2023.kernel_regime", *TINY, "--steps", "5", "--out", "k")
    ok(capsys, "train", "wu2023", *TINY, "--steps", "4", "--probes", "all", "--out", "r")
    arrays = np.load(tmp_path / "r" / "probes.npz")
    assert arrays["kernel_eigenvalues"].shape == (1, 5, 4)
    assert arrays["attention"].shape == (1, 5, 4, 3, 3)
    table = pl.read_parquet(tmp_path / "r" / "trajectory.parquet")
    assert {"movement_W_Q", "sharpness_value", "sharpness_converged"} <= set(table.columns)
    verdicts = json.loads((tmp_path / "r" / "run.json").read_text())["verdicts"]
    assert set(verdicts) == {"theorem_a", "theorem_c", "kernel_regime"}


def test_digits_and_a_diverging_run_are_results_not_errors(capsys, tmp_path):
    words = ["--set", "problem=digits", "--set", "num_samples=10", "--set", "width=16"]
    said = ok(
        capsys, "train", "wu2023", *words, "--set", "step_size=5", "--steps", "30", "--out", "d"
    )
    assert "diverged" in said
    about = json.loads((tmp_path / "d" / "run.json").read_text())
    assert about["diverged_at"][0] > 0


# ---------------------------------------------------------------------------------- bad input


def bad_files(tmp_path):
    own_files(tmp_path)
    X, y = np.ones((3, 2, 5)), np.ones(3)
    np.savez(tmp_path / "nan.npz", X=np.where(X > 0, np.nan, X), y=y)
    np.savez(tmp_path / "short.npz", X=X, y=np.ones(4))
    np.savez(tmp_path / "objects.npz", X=np.array([{}], dtype=object), y=y)
    np.savez(tmp_path / "other.npz", X=np.ones((3, 2, 4)), y=y)
    np.savez(tmp_path / "large.npz", X=1e200 * X, y=y)
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr("X.npy", b"no magic")
        archive.writestr("y.npy", b"")
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "taken").mkdir()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("train wu2023 --set wdith=3", "did you mean 'width'"),
        ("train wu2023 --set width=many", "valid integer"),
        ("train wu2023 --set width=0", "greater than or equal to 1"),
        ("train wu2023 --set init=lecunn", "did you mean 'lecun'"),
        ("train wu2023 --set train=W_X", "no parameter is called 'W_X'"),
        ("train wu2023 --data nan.npz", "NaN"),
        ("train wu2023 --data short.npz", "expected (3,)"),
        ("train wu2023 --data text.npz", "not an npz file"),
        ("train wu2023 --data objects.npz", "cannot be read as plain arrays"),
        ("train wu2023 --data nowhere.npz", "there is no file"),
        ("train wu2023 --data other.npz --params W.npz", "dim"),
        ("train wu2023 --data F.npz --set dim=4", "F.npz has 5"),
        ("train wu2023 --params W.npz --set width=9", "W.npz has 7"),
        ("train wu2023 --params F.npz", "lacks W_Q"),
        ("train wu2023 --out taken", "exists already"),
        ("train wu2024", "did you mean 'wu2023'"),
        ("certify wu2023.theorem_z", "no theorem 'theorem_z'"),
        ("certify wu2023", "which theorem"),
        ("certify wu2023.theorem_a --run taken", "not a run folder"),
        ("certify wu2023.theorem_a --set method=flow", "must be gd"),
        ("train wu2023 --seeds 0,x", "whole numbers"),
        ("train wu2023 --seeds 1,1", "named twice"),
        ("train wu2023 --seeds ²", "whole numbers"),
        ("train wu2023 --steps 1.5", "valid integer"),
        ("train wu2023 --steps 1000000000000", "GiB"),
        ("train wu2023 --steps 4 --set num_steps=4", "use one of them"),
        ("train wu2023 --set width=4 --set width=8", "given twice"),
        ("train wu2023 --set method=flow --precision float32", "needs --precision float64"),
        ("train wu2023 --data large.npz --precision float32", "infinite in float32"),
        ("train wu2023 --data taken", "a folder"),
        ("train wu2023 --data odd.npz", "cannot be read as plain arrays"),
        ("train wu2023 --out /proc/nowhere", "cannot make a folder"),
        ("train wu2023 --out " + 300 * "x", "cannot make a folder"),
        ("train wu2023 --out new/../taken", "exists already"),
        ("train wu2023 --set init=\x1b[31mred", "\\x1b[31mred"),
        ("train wu2023 --steps 0", "greater than or equal to 1"),
        ("train wu2023 --steps 10 --set every=3", "does not divide"),
        ("train wu2023 --set width=999999999999", "GiB"),
        ("train wu2023 --precision float16", "float64 or float32"),
        ("train wu2023 --probes nosuch", "no probe 'nosuch'"),
        ("train wu2023 --set problem=idx", "needs --set images=FILE"),
        ("train wu2023 --frobnicate", "Unknown option"),
        ("trian wu2023", "Did you mean"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(capsys, tmp_path, words, complaint):
    bad_files(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    words = words.split() + (
        [] if "--out" in words or words.startswith("trian") else ["--out", "new"]
    )
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def edited(about, **changes):
    return json.dumps(about | changes).encode()


def test_a_damaged_run_folder_is_refused(capsys, tmp_path):
    ok(capsys, "train", "wu2023", *TINY, "--steps", "4", "--seeds", "3,1", "--out", "r")
    about = json.loads((tmp_path / "r" / "run.json").read_text())
    setting = about["setting"]
    for name, content in (
        ("trajectory.parquet", b"PAR1"),
        ("params0.npz", b"x"),
        ("run.json", b"[]"),
        ("run.json", b'{"format": 1}'),
        ("run.json", b'{"format": 99}'),
        ("run.json", b"[" * 100_000),
        ("run.json", edited(about, setting=None)),
        ("run.json", edited(about, precision="object")),
        ("run.json", edited(about, seeds=[3.5, 1])),
        ("run.json", edited(about, seeds="31")),
        ("run.json", edited(about, paper="nobody2020")),
        ("run.json", edited(about, setting=setting | {"step_size": None})),
        ("run.json", edited(about, setting=setting | {"train": "zzz"})),
        ("run.json", edited(about, setting=setting | {"num_samples": 5})),
        ("run.json", edited(about, setting=setting | {"num_steps": 40})),
    ):
        keep = (tmp_path / "r" / name).read_bytes()
        (tmp_path / "r" / name).write_bytes(content)
        code, out, err = call(capsys, "certify", "wu2023.theorem_a", "--run", "r")
        assert (code, out, err.count("\n")) == (2, "", 1), (name, content[:80], err)
        (tmp_path / "r" / name).write_bytes(keep)


@pytest.mark.parametrize(
    "edit",
    [
        pl.lit(0).alias("step"),
        (pl.col("step") * 10).alias("step"),
        (-pl.col("risk")).alias("risk"),
        pl.col("risk").cast(pl.Float32),
        pl.col("risk").cast(pl.String),
        pl.col("risk").cast(pl.Int64),
        pl.lit(None).cast(pl.Float64).alias("movement_W_V"),
        pl.lit("x").alias("movement_W_V"),
        pl.col("step").cast(pl.Int128),
    ],
    ids=str,
)
def test_a_table_that_is_not_the_run_s_is_refused(capsys, tmp_path, edit):
    if not (tmp_path.parent / "shared-run").exists():
        ok(
            capsys,
            "train",
            "wu2023",
            *TINY,
            "--steps",
            "4",
            "--out",
            str(tmp_path.parent / "shared-run"),
        )
    shutil.copytree(tmp_path.parent / "shared-run", tmp_path / "r")
    path = tmp_path / "r" / "trajectory.parquet"
    table = pl.read_parquet(path).with_columns(edit)
    table.write_parquet(path)
    code, out, err = call(capsys, "certify", "wu2023.theorem_a", "--run", "r")
    assert (code, out, err.count("\n")) == (2, "", 1), err


@pytest.mark.parametrize("keep", [slice(0, 3), slice(1, None)])
def test_dropped_rows_are_noticed(capsys, tmp_path, keep):
    ok(capsys, "train", "wu2023", *TINY, "--steps", "4", "--out", "r")
    path = tmp_path / "r" / "trajectory.parquet"
    table = pl.read_parquet(path)
    table[keep].write_parquet(path)
    assert call(capsys, "certify", "wu2023.theorem_a", "--run", "r")[0] == 2


# ------------------------------------------------------------------------------ kills and edges


def test_a_kill_during_a_run_leaves_no_folder_under_its_final_name(tmp_path):
    words = [*TINY, "--steps", "2000000", "--set", "every=100000", "--out", "killed"]
    process = subprocess.Popen([*SHOAL, "train", "wu2023", *words], cwd=tmp_path)
    time.sleep(6)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(tmp_path.iterdir()) == []


def wait_until_busy(pid, seconds):
    """Until a process has computed so long: however busy the machine, it is past its imports."""
    ticks = os.sysconf("SC_CLK_TCK")
    for _ in range(1200):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[11]) >= seconds * ticks:  # user time
            return
        time.sleep(0.1)


def test_ctrl_c_says_so_and_cleans_up(tmp_path):
    words = [*TINY, "--steps", "2000000", "--set", "every=100000", "--out", "stopped"]
    command = [*SHOAL, "train", "wu2023", *words]
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        wait_until_busy(process.pid, seconds=6)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        # a busy machine may have had time for a line of progress
        assert err.splitlines()[-1] == "shoal: stopped."
        assert "Traceback" not in err
        assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(capsys, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("shoal.store._write_json", broken)
    code, _, err = call(capsys, "train", "wu2023", *TINY, "--steps", "2", "--out", "full")
    assert code == 1
    assert "No space left" in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_appears_meanwhile_is_not_overwritten(capsys, tmp_path, monkeypatch):
    from shoal import store

    write = store._write_files

    def slow(*arguments):
        write(*arguments)
        (tmp_path / "race").mkdir()
        (tmp_path / "race" / "mine").write_text("precious")

    monkeypatch.setattr("shoal.store._write_files", slow)
    code, _, err = call(capsys, "train", "wu2023", *TINY, "--steps", "2", "--out", "race")
    assert code == 2
    assert "exists already" in err
    assert [p.name for p in tmp_path.iterdir()] == ["race"]
    assert (tmp_path / "race" / "mine").read_text() == "precious"


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from shoal.cli import main; "
        "main(['--help']); main(['certify', '--help']); "
        "print(sorted({'jax', 'numpy', 'polars', 'scipy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "hypotheses, conclusions" in done.stdout


def test_a_second_call_compiles_nothing(tmp_path):
    environment = os.environ | {"SHOAL_CACHE_DIR": str(tmp_path / "cache")}
    cached = []
    for _ in range(2):
        words = ["train", "wu2023", *TINY, "--steps", "4"]
        subprocess.run([*SHOAL, *words], env=environment, check=True, capture_output=True)
        cached.append({p.name for p in (tmp_path / "cache").rglob("*-cache")})
    assert cached[0]
    assert cached[1] == cached[0]


def test_papers_lists_theorems_settings_and_probes(capsys):
    said = json.loads(ok(capsys, "papers", "--json"))
    assert said[0]["key"] == "wu2023"
    assert [t["key"] for t in said[0]["theorems"]] == [
        "theorem_a",
        "theorem_b",
        "theorem_c",
        "kernel_regime",
    ]
    text = ok(capsys, "papers", "wu2023")
    for name in wu2023.Setting._fields:
        assert name in text
    assert "softmax sees scores" in text


def test_data_reports_the_assumptions(capsys):
    said = json.loads(ok(capsys, "data", "wu2023", "--set", "problem=digits", "--json"))
    assert said["full_row_rank"] is True
    assert said["dissimilar"] is False
    assert "full row rank" in ok(capsys, "data", "wu2023")
