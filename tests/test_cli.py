"""The commands, as people and scripts call them."""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import zipfile

import numpy as np
import polars as pl
import pytest

from helpers import numpy_descent
from shoal import console
from shoal.cli import app, main
from shoal.papers import wu2023
from shoal.papers.wu2023.model import Scales

SHOAL = (sys.executable, "-m", "shoal")
SIZES = ["--set=num_samples=4", "--set=num_tokens=3", "--set=dim=6", "--set=width=16"]
TINY = ["train", "wu2023", *SIZES, "--steps", "4"]
# recorded so rarely, a segment of training ends, and a signal is heard, every 20000 steps
ENDLESS = ["train", "wu2023", *SIZES, "--steps", "200000000", "--set", "every=20000"]
ENDLESS += ["--probes", "movement@20000"]


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


def run_json(folder):
    return json.loads((folder / "run.json").read_text())


# ------------------------------------------------------------------------------------ training


def recomputed(folder):
    """Every risk and the last weights of a run folder, by NumPy alone."""
    about = run_json(folder)
    s = about["setting"]
    scales = Scales(
        s["width"] ** -s["score_exponent"],
        s["width"] ** -0.5 if s["init"] == "ntk" else 1.0,
        1 / s["num_tokens"] if s["pooling"] == "mean" else 1.0,
    )
    data, start = np.load(folder / "problem.npz"), np.load(folder / "params0.npz")
    ratios = dict.fromkeys(("W_Q", "W_K", "W_V"), s["hidden_step_ratio"])
    steps = np.broadcast_to(s["step_size"], len(about["seeds"]))
    for i, seed in enumerate(about["seeds"]):
        weights = {name: start[name][i] for name in start.files}
        yield (
            i,
            seed,
            *numpy_descent(weights, data["X"], data["y"], scales, steps[i], s["num_steps"], ratios),
        )


def test_a_run_folder_can_be_recomputed_by_anyone(capsys, tmp_path):
    ok(capsys, *TINY[:-1], "20", "--seeds", "0,1", "--set", "hidden_step_ratio=2", "--out", "r1")
    folder = tmp_path / "r1"
    assert {p.name for p in folder.iterdir()} == {
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
        assert rows["step"].to_list() == list(range(21))
        np.testing.assert_allclose(rows["risk"].to_numpy(), risks, rtol=1e-10)
        for name, W in weights.items():
            np.testing.assert_allclose(last[name][i], W, rtol=1e-10, atol=1e-14)


def test_run_json_says_what_was_run(capsys, tmp_path):
    ok(capsys, *TINY, "--seeds", "0,2", "--out", "r")
    about = run_json(tmp_path / "r")
    assert (about["format"], about["paper"], about["seeds"]) == (2, "wu2023", [0, 2])
    # every seed has its own default step
    steps = about["setting"]["step_size"]
    assert len(steps) == 2
    assert steps[0] != steps[1]
    assert about["from_init"] is True
    assert set(about["probes"]["movement"]) == {"W_Q", "W_K", "W_V", "w_O"}
    assert about["probes"]["pl_ratio"] == []
    assert set(about["verdicts"]) == {"theorem_a", "theorem_c"}
    assert set(about["files"]) == {p.name for p in (tmp_path / "r").iterdir()} - {"run.json"}
    assert set(about["versions"]) >= {"shoal", "python", "jax", "numpy"}
    # one step for all is one number
    ok(capsys, *TINY, "--seeds", "0,2", "--set", "step_size=0.01", "--out", "same")
    assert run_json(tmp_path / "same")["setting"]["step_size"] == 0.01


def test_the_same_command_gives_the_same_bytes(capsys, tmp_path):
    for name in ("a", "b"):
        ok(capsys, *TINY, "--seeds", "0-2", "--out", name)
    for file in ("problem.npz", "params0.npz", "params.npz"):
        one, two = np.load(tmp_path / "a" / file), np.load(tmp_path / "b" / file)
        for name in one.files:
            assert one[name].tobytes() == two[name].tobytes()
    first, second = (pl.read_parquet(tmp_path / n / "trajectory.parquet") for n in ("a", "b"))
    assert first.equals(second, null_equal=True)


def test_a_seed_does_not_depend_on_its_companions(capsys):
    together = json.loads(ok(capsys, *TINY, "--seeds", "0-2", "--json"))
    alone = json.loads(ok(capsys, *TINY, "--seeds", "2", "--json"))
    assert alone["setting"]["step_size"] == pytest.approx(
        together["setting"]["step_size"][2], rel=1e-14
    )
    assert alone["last_risk"][0] == pytest.approx(together["last_risk"][2], rel=1e-12)


def own_files(folder):
    """A problem, and weights with and without a leading axis of seeds, of other sizes than TINY."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 2, 5)), rng.normal(size=3)
    W = {k: rng.normal(size=(7, 5)) / 3 for k in ("W_Q", "W_K", "W_V")} | {
        "w_O": rng.normal(size=7) / 3
    }
    np.savez(folder / "F.npz", X=X, y=y)
    np.savez(folder / "W.npz", **W)
    np.savez(folder / "W2.npz", **{k: np.stack([w, 2 * w]) for k, w in W.items()})
    return X, y, W


@pytest.mark.parametrize(("file", "seeds"), [("W.npz", [0]), ("W2.npz", [0, 1])])
def test_training_starts_from_the_user_s_data_and_weights(capsys, tmp_path, file, seeds):
    X, y, W = own_files(tmp_path)
    words = ["--data", "F.npz", "--params", file, "--set", "step_size=0.01", "--steps", "4"]
    summary = json.loads(ok(capsys, "train", "wu2023", *words, "--json"))
    risks, _ = numpy_descent(W, X, y, Scales(7**-0.5, 1.0, 0.5), 0.01, 4, {})
    assert summary["first_risk"][0] == pytest.approx(risks[0], rel=1e-12)
    assert summary["last_risk"][0] == pytest.approx(risks[-1], rel=1e-12)
    assert summary["setting"]["width"] == 7
    assert summary["seeds"] == seeds


# ------------------------------------------------------------------------------------ certifying


@pytest.fixture
def example(tmp_path):
    """Example 1 of docs/theory/wu2023.md, worked out by hand there."""
    np.savez(tmp_path / "F.npz", X=np.eye(2)[None], y=[0.01])
    eye = np.eye(2)
    np.savez(tmp_path / "W.npz", W_Q=eye, W_K=eye, W_V=eye, w_O=[0.01, -0.01])
    words = "--data F.npz --params W.npz --set score_exponent=0 --set pooling=sum --steps 10"
    return words.split()


def test_certify_starts_from_the_user_s_data_and_weights(capsys, example):
    said = json.loads(ok(capsys, "certify", "wu2023.theorem_a", *example, "--json"))
    result = said["results"][0]
    assert result["verdict"] == "holds"
    assert result["constants"]["c_6"] == pytest.approx(0.4342154486, rel=1e-9)
    assert result["constants"]["gamma"] == pytest.approx(0.09534140636, rel=1e-8)
    assert (said["paper"], said["theorem"]) == ("wu2023", "theorem_a")
    assert said["source"].startswith("ours")
    assert set(result) >= {"seed", "predicted_rate", "measured_rate"}
    for line in (*result["hypotheses"], *result["conclusions"]):
        assert set(line) >= {"name", "lhs", "rhs", "holds", "margin"}
        assert line["holds"] is True


def test_a_finished_run_is_certified_and_a_tampered_one_refused(capsys, tmp_path, example):
    ok(capsys, "train", "wu2023", *example, "--set", "step_size=0.09", "--out", "r")
    certify = ("certify", "wu2023.theorem_a", "--run", "r", "--json")
    assert json.loads(ok(capsys, *certify))["results"][0]["verdict"] == "holds"
    assert run_json(tmp_path / "r")["verdicts"]["theorem_a"] == ["holds"]
    path = tmp_path / "r" / "trajectory.parquet"
    worse = pl.when(pl.col("step") == 6).then(pl.col("risk") * 1e3).otherwise(pl.col("risk"))
    pl.read_parquet(path).with_columns(risk=worse).write_parquet(path)
    code, out, err = call(capsys, *certify)
    assert (code, out) == (2, "")
    assert "was changed after the run was saved" in err
    # without digests, as in folders of 0.1.0, the replay notices
    about = run_json(tmp_path / "r")
    del about["files"]
    (tmp_path / "r" / "run.json").write_text(json.dumps(about))
    code, out, err = call(capsys, *certify)
    assert (code, out) == (2, "")
    assert "risk of seed 0 at step 6 is recorded as" in err


def test_a_certified_run_is_saved_with_its_certificate(capsys, tmp_path, example):
    ok(capsys, "certify", "wu2023.theorem_a", *example, "--out", "c")
    stored = json.loads((tmp_path / "c" / "certificates.json").read_text())
    assert stored[0]["results"][0]["verdict"] == "holds"
    # certified again and saved elsewhere, the run still says how it was made
    ok(capsys, "certify", "wu2023.theorem_c", "--run", "c", "--out", "again")
    about = run_json(tmp_path / "again")
    assert about["data_file"] == "F.npz"
    assert about["verdicts"].keys() == {"theorem_c"}


def test_theorem_b_is_checked_along_the_flow(capsys):
    words = "--set num_samples=2 --set num_tokens=2 --set dim=8 --set width=2000 --set tokens=unit"
    words += " --set label_scale=0.1 --set score_exponent=1 --steps 4 --json"
    said = json.loads(ok(capsys, "certify", "wu2023.theorem_b", *words.split()))
    assert said["results"][0]["verdict"] == "holds"
    assert said["setting"]["method"] == "flow"


def test_kernel_regime_and_vector_probes_are_recorded(capsys, tmp_path):
    ok(capsys, "certify", "wu2023.kernel_regime", *SIZES, "--steps", "4", "--out", "k")
    assert run_json(tmp_path / "k")["verdicts"].keys() == {"kernel_regime"}
    ok(capsys, *TINY, "--probes", "all", "--out", "r")
    arrays = np.load(tmp_path / "r" / "probes.npz")
    assert arrays["kernel_eigenvalues"].shape == (1, 5, 4)
    assert arrays["attention"].shape == (1, 5, 4, 3, 3)
    table = pl.read_parquet(tmp_path / "r" / "trajectory.parquet")
    assert {"movement_W_Q", "sharpness_value", "sharpness_converged"} <= set(table.columns)
    assert set(run_json(tmp_path / "r")["verdicts"]) == {"theorem_a", "theorem_c", "kernel_regime"}


def test_a_diverging_run_is_a_result_with_advice(capsys, tmp_path):
    said = ok(capsys, *TINY[:-1], "200", "--set", "step_size=50", "--out", "d")
    assert "diverged" in said
    assert "try --set step_size=" in said
    assert run_json(tmp_path / "d")["diverged_at"][0] > 0


# ------------------------------------------------------------------------ what is said, and where


def test_json_is_the_only_thing_on_standard_output(capsys, tmp_path):
    ok(capsys, *TINY, "--out", "r")
    for words in (
        [*TINY, "--out", "r2"],
        ["certify", "wu2023.theorem_a", "--run", "r"],
        ["data", "wu2023", *SIZES],
        ["papers", "wu2023"],
        ["landscape", "r", "--points", "3"],
        ["report", "r"],
        ["new", "paper", "doe2024"],
    ):
        json.loads(ok(capsys, *words, "--json"))


def test_a_run_is_summed_up_in_a_table(capsys):
    code, out, err = call(capsys, *TINY, "--seeds", "0,2")
    assert code == 0
    assert "2 seeds, 4 steps of" in out
    assert "not applicable" in out
    assert "add --out DIR" in out
    assert err == ""


def test_progress_estimates_the_time_after_the_first_report(capsys, monkeypatch):
    now = iter([0.0, 20.0, 22.0, 30.0, 99.0])
    monkeypatch.setattr("shoal.console.time.monotonic", lambda: next(now))
    with console.progress("work") as tell:  # begins at 0
        for done in (1, 2, 5, 10):
            tell(done, 10)
    # 19 seconds went by before the first report, which is compilation and predicts nothing
    assert capsys.readouterr().err == "work: 1 of 10\nwork: 5 of 10, about 12 s left\n"


def test_papers_lists_theorems_settings_and_probes(capsys):
    said = json.loads(ok(capsys, "papers", "wu2023", "--json"))[0]
    assert [t["key"] for t in said["theorems"]] == [
        "theorem_a",
        "theorem_b",
        "theorem_c",
        "kernel_regime",
    ]
    for part in (*said["theorems"], *said["claims"], *said["figures"], *said["settings"].values()):
        assert part["source"].startswith(("ours", "paper"))
    assert not any(s["about"].endswith("]") or not s["about"] for s in said["settings"].values())
    text = ok(capsys, "papers", "wu2023")
    for name in (*wu2023.PAPER.setting.fields(), *said["probes"]):
        assert name in text
    assert f"{len(said['claims'])} claims (shoal claims wu2023)" in text
    assert len(said["claims"]) >= 23


def test_data_reports_the_assumptions(capsys):
    words = ["data", "wu2023", "--set", "problem=digits", "--set", "num_samples=8"]
    said = json.loads(ok(capsys, *words, "--json"))
    assert said["full_row_rank"] is True
    assert said["dissimilar"] is False
    assert "full row rank" in ok(capsys, *words)
    alone = ok(capsys, "data", "wu2023", "--set", "num_samples=1")
    assert "1 sample of 5 tokens" in alone
    assert "too few pairs" in alone
    assert "nan" not in alone


def test_every_command_has_a_help_that_reads_like_help(capsys):
    for words in [[name] for name in app if not name.startswith("-")] + [["new", "paper"]]:
        text = " ".join(ok(capsys, *words, "--help").split())
        assert "Usage: shoal " + " ".join(words) in text
        assert "[default: False]" not in text
        assert '[default: ""]' not in text
        assert words == ["new"] or "--json" in text


def test_every_command_finds_its_work_and_passes_what_it_takes(monkeypatch):
    """The words stand in shoal.cli, the work in its modules: names and arguments must agree."""
    calls = []

    class Spy:
        def __init__(self, module):
            self._module = importlib.import_module(module)

        def __getattr__(self, name):
            work = inspect.signature(getattr(self._module, name))
            return lambda *args, **kwargs: calls.append((name, work.bind(*args, **kwargs)))

    monkeypatch.setattr("shoal.cli.import_module", Spy)
    two = ("show", "query", "export")
    apart = ("sweep", "lab", "new", "papers", *two)  # these do not go through import_module
    names = [n for n in app if not n.startswith("-") and n not in apart]
    for words in [*([n, "x"] for n in names if n != "tour"), *([n, "x", "x"] for n in two)]:
        assert main(words) == 0, words
    assert main(["tour"]) == main(["new", "paper", "x"]) == 0
    assert len({name for name, _ in calls}) == len(names) + len(two) + 1


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


def test_a_new_paper_works_at_once(capsys, tmp_path):
    ok(capsys, "new", "paper", "doe2031", "--out", "sub/doe.py")
    target = "./sub/doe.py"
    said = json.loads(ok(capsys, "certify", f"{target}.theorem_1", "--steps", "8", "--json"))
    assert said["results"][0]["verdict"] == "holds"
    assert f"{target}.theorem_1" in ok(capsys, "papers", target)
    ok(capsys, "train", target, "--steps", "8", "--out", "r")
    ok(capsys, "report", "r", "--paper", target)
    assert "doe2031" in (tmp_path / "r" / "report.html").read_text()


# ---------------------------------------------------------------------------------- bad input


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    own_files(folder)
    X, y = np.ones((3, 2, 5)), np.ones(3)
    np.savez(folder / "nan.npz", X=np.where(X > 0, np.nan, X), y=y)
    np.savez(folder / "short.npz", X=X, y=np.ones(4))
    np.savez(folder / "objects.npz", X=np.array([{}], dtype=object), y=y)
    np.savez(folder / "other.npz", X=np.ones((3, 2, 4)), y=y)
    np.savez(folder / "large.npz", X=1e200 * X, y=y)
    np.savez(folder / "complex.npz", X=X + 1j, y=y)
    np.savez(folder / "words.npz", X=X, y=np.array(["a", "b", "c"]))
    np.savez(folder / "none.npz", X=np.ones((0, 2, 5)), y=np.ones(0))
    np.savez(folder / "half.npz", X=X, y=y, X_test=X)
    with zipfile.ZipFile(folder / "odd.npz", "w") as archive:
        archive.writestr("X.npy", b"no magic")
        archive.writestr("y.npy", b"")
    (folder / "text.npz").write_text("not an archive")
    (folder / "taken").mkdir()
    (folder / "fails.py").write_text("1 / 0\n")
    (folder / "nothing.py").write_text("\n")
    (folder / "thief.py").write_text(
        "import shoal as sh\nclass S(sh.Setting): pass\nPAPER = sh.Paper(S, key='wu2023')\n"
    )
    return folder


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        # what to work on
        ("train", "train needs TARGET"),
        ("trian wu2023", "Did you mean"),
        ("train wu2023 extra", "too many arguments: extra"),
        ("train wu2023 --frobnicate", "no option --frobnicate"),
        ("train wu2024", "did you mean 'wu2023'"),
        ("train WU2023", "did you mean 'wu2023'"),
        ("train nosuch.py", "there is no file 'nosuch.py'"),
        ("train fails.py", "ZeroDivisionError"),
        ("train nothing.py", "holds no paper"),
        ("train thief.py", "built-in paper"),
        ("certify wu2023", "which theorem"),
        ("certify wu2023.theorem_z", "no theorem 'theorem_z'"),
        ("certify wu2023.theorem_A", "did you mean 'theorem_a'"),
        ("certify wu2023.theorem_a --set method=flow", "theorem_a is about gd"),
        ("certify wu2023.theorem_a --run taken", "not a run folder"),
        ("certify wu2023.theorem_a --run nowhere --steps 3", "leave out --set"),
        ("claims wu2023.rank_is_neded", "did you mean 'rank_is_needed'"),
        ("claims nobody2020", "no paper is called"),
        ("claims wu2023.rank_is_needed --out F.npz", "cannot write into"),
        ("claims wu2023.rank_is_needed --markdown taken", "Is a directory"),
        ("claims wu2023.rank_is_needed --until-decided --budget soon", "expected a time"),
        ("claims wu2023.rank_is_needed --seeds 3", "belong to --until-decided"),
        ("reproduce wu2023.scalign", "did you mean 'scaling'"),
        ("reproduce wu2023 --out F.npz/x", "cannot write into"),
        ("tour --out taken", "is a folder"),
        ("papers wu2024", "did you mean 'wu2023'"),
        ("new paper 3x", "is not a Python name"),
        ("new paper class", "is not a Python name"),
        ("new paper wu2023", "built-in"),
        ("new paper new --out fails.py", "exists already"),
        ("report", "report needs"),
        ("report nowhere", "there is no file or folder"),
        ("report text.npz", "is not a run folder"),
        ("report taken --paper nosuch.py", "there is no file"),
        # settings
        ("train wu2023 --set wdith=3", "did you mean 'width'"),
        ("train wu2023 --set width", "expected name=value"),
        ("train wu2023 --set width=many", "integer"),
        ("train wu2023 --set width=0", "equal to 1"),
        ("train wu2023 --set init=lecunn", "did you mean 'lecun'"),
        ("train wu2023 --set init=\x1b[31mred", "\\x1b[31mred"),
        ("train wu2023 --set train=W_X", "no parameter is called 'W_X'"),
        ("train wu2023 --set width=4 --set width=8", "given twice"),
        ("train wu2023 --set width=999999999999", "GiB"),
        ("train wu2023 --set step_size=nan", "finite"),
        ("train wu2023 --set problem=idx", "needs --set images=FILE"),
        ("train wu2023 --set method=flow --precision float32", "needs float64"),
        ("train wu2023 --steps 1.5", "integer"),
        ("train wu2023 --steps 0", "equal to 1"),
        ("train wu2023 --steps 1000000000000", "GiB"),
        ("train wu2023 --steps 4 --set num_steps=4", "use one of them"),
        ("train wu2023 --steps 10 --set every=3", "does not divide"),
        ("train wu2023 --seeds 0,x", "whole numbers"),
        ("train wu2023 --seeds 1,1", "named twice"),
        ("train wu2023 --seeds 3-1", "not a range"),
        ("train wu2023 --seeds ²", "whole numbers"),
        ("train wu2023 --precision float16", "float64 or float32"),
        ("train wu2023 --probes nosuch", "no probe 'nosuch'"),
        ("train wu2023 --probes movement@0", "a number of steps after @"),
        # files
        ("train wu2023 --data nan.npz", "NaN"),
        ("train wu2023 --data short.npz", "expected (3,)"),
        ("train wu2023 --data text.npz", "not an npz file"),
        ("train wu2023 --data objects.npz", "cannot be read as plain arrays"),
        ("train wu2023 --data odd.npz", "cannot be read as plain arrays"),
        ("train wu2023 --data complex.npz", "expected real numbers"),
        ("train wu2023 --data words.npz", "expected real numbers"),
        ("train wu2023 --data none.npz", "none of them 0"),
        ("train wu2023 --data half.npz", "lacks y_test"),
        ("train wu2023 --data nowhere.npz", "there is no file"),
        ("train wu2023 --data taken", "a folder"),
        ("train wu2023 --data large.npz --precision float32", "infinite in float32"),
        ("train wu2023 --data other.npz --params W.npz", "dim"),
        ("train wu2023 --data F.npz --set dim=4", "F.npz has 5"),
        ("train wu2023 --params W.npz --set width=9", "W.npz has 7"),
        ("train wu2023 --params F.npz", "lacks W_Q"),
        ("train wu2023 --params W2.npz --seeds 0-2", "hold 2"),
        # where to write
        ("train wu2023 --out taken", "exists already"),
        ("train wu2023 --out new/../taken", "exists already"),
        ("train wu2023 --out F.npz/x", "cannot write into"),
        ("train wu2023 --out /proc/nowhere", "cannot write into"),
        ("train wu2023 --out " + 300 * "x", "cannot write into"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(
    capsys, monkeypatch, bad_files, words, complaint
):
    monkeypatch.chdir(bad_files)
    before = sorted(p.name for p in bad_files.rglob("*"))
    said = words.split()
    if said[0] in ("train", "certify") and "--out" not in said and len(said) > 1:
        said += ["--out", "new"]
    code, out, err = call(capsys, *said)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.startswith("shoal: ")
    assert err.count("\n") == 1
    assert sorted(p.name for p in bad_files.rglob("*") if p.suffix != ".pyc") == before


# ------------------------------------------------------------------------------ kills and edges


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_says_so_and_cleans_up(capsys, tmp_path, monkeypatch, number, code):
    from contextlib import contextmanager

    @contextmanager
    def interrupted(_):
        yield lambda *_: os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    monkeypatch.setattr("shoal.console.progress", interrupted)
    found, out, err = call(capsys, *TINY, "--out", "stopped")
    assert (found, out) == (code, "")
    assert err == "shoal: stopped; nothing was saved.\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is handler


def test_an_interrupted_ledger_says_how_to_continue(capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.lab.spending.measured", stop)
    code, out, err = call(capsys, "claims", "wu2023.rank_is_needed", "--until-decided")
    assert (code, out) == (130, "")
    assert err.endswith("every finished batch is kept, and the same command continues.\n")


def begun(tmp_path):
    """A command that trains for ever, once it is training: it says so on standard error."""
    process = subprocess.Popen(
        [*SHOAL, *ENDLESS, "--out", "new"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    seen = []
    for line in process.stderr:  # ends when the process ends
        seen.append(line)
        if ": training: " in line:
            return process
    pytest.fail("".join(seen))


@pytest.mark.slow
def test_a_kill_during_a_run_leaves_no_folder_under_its_final_name(tmp_path):
    process = begun(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_of_a_real_process_says_so_and_cleans_up(tmp_path, number, code):
    process = begun(tmp_path)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert err.splitlines()[-1] == "shoal: stopped; nothing was saved."
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(capsys, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("shoal.disk.runs._write_files", broken)
    code, out, err = call(capsys, *TINY, "--out", "full")
    assert (code, out) == (1, "")
    assert "No space left" in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_appears_meanwhile_is_not_overwritten(capsys, tmp_path, monkeypatch):
    from shoal.disk import runs

    write = runs._write_files

    def slow(*arguments):
        write(*arguments)
        (tmp_path / "race").mkdir()
        (tmp_path / "race" / "mine").write_text("precious")

    monkeypatch.setattr("shoal.disk.runs._write_files", slow)
    code, _, err = call(capsys, *TINY, "--out", "race")
    assert code == 2
    assert "exists already" in err
    assert [p.name for p in tmp_path.iterdir()] == ["race"]
    assert (tmp_path / "race" / "mine").read_text() == "precious"


@pytest.mark.slow
def test_a_second_call_compiles_nothing(tmp_path):
    environment = os.environ | {"SHOAL_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    cached = []
    for _ in range(2):
        subprocess.run([*SHOAL, *TINY], env=environment, check=True, capture_output=True)
        cached.append({p.name for p in (tmp_path / "cache").rglob("*-cache")})
    assert cached[0]
    assert cached[1] == cached[0]
