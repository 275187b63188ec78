"""A whole paper in one file, through every command: from its path, and as an installed package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import shoal as sh
import toy_paper
from shoal import papers
from shoal.cli import main
from shoal.errors import InputError

TOY = toy_paper.__file__


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def shoal(capsys):
    """A command with --json, and what it prints; ``code`` is the exit code that it must have."""

    def run(*words, code=0, as_json=True):
        capsys.readouterr()
        found = main([*words, *(["--json"] if as_json and code == 0 else [])])
        said = capsys.readouterr()
        assert found == code, said.err
        if code:
            assert said.out == ""
            assert len(said.err.strip().splitlines()) == 1
            return said.err
        return json.loads(said.out) if as_json else said.out

    return run


# ------------------------------------------------------------------------------- from its path


def test_a_paper_is_below_three_hundred_lines():
    assert len(Path(TOY).read_text().splitlines()) < 300


def test_papers_shows_everything(shoal):
    (about,) = shoal("papers", TOY)
    assert (about["key"], about["year"], about["authors"]) == ("doe2024", 2024, "J. Doe")
    assert about["title"] == "Linear regression by gradient descent."
    assert [t["key"] for t in about["theorems"]] == ["theorem_1", "theorem_false", "kernel_regime"]
    assert len(about["claims"]) == 3
    assert about["figures"][0]["key"] == "width"
    assert about["settings"]["gain"] == {"about": "Scale of the output.", "source": "paper"}
    assert "kernel_eigenvalues" in about["probes"]
    assert all(about["probes"].values())  # each has a sentence
    text = shoal("papers", TOY, as_json=False)
    assert "Weights in use; the others are masked." in text
    assert "theorem_false" in text


def test_train_writes_a_run_folder_that_certify_and_report_read(shoal):
    words = ["train", TOY, "--seeds", "0-2", "--set", "gain=2", "--steps", "30"]
    about = shoal(*words, "--probes", "+kernel_distance", "--out", "run")
    assert about["paper"] == "doe2024"
    assert about["setting"]["gain"] == 2.0
    assert about["verdicts"]["kernel_regime"] == ["holds"] * 3
    assert about["verdicts"]["theorem_1"] == ["holds"] * 3
    run = sh.load("run")
    assert run.risk.shape == (3, 31)
    assert run.risk[:, -1].tolist() == about["last_risk"]
    found = shoal("certify", f"{TOY}.theorem_1", "--run", "run")
    assert [r["verdict"] for r in found["results"]] == ["holds"] * 3
    page = shoal("report", "run", "--paper", TOY)["page"]
    text = Path(page).read_text()
    assert "theorem_1: proved bound" in text
    assert "J. Doe (2024)" in text
    assert "exists already" in shoal(*words, "--out", "run", code=2)


def test_certify_tells_the_true_theorem_from_the_false_one(shoal):
    words = ["--seeds", "0,5"]
    found = shoal("certify", f"{TOY}.theorem_1", *words)
    assert [r["verdict"] for r in found["results"]] == ["holds", "holds"]
    assert found["step_size_source"] == "largest that theorem_1 allows"
    assert found["results"][1]["seed"] == 5
    assert found["results"][0]["hypotheses"][0]["name"] == "step: eta lambda_max <= 1"
    false = shoal("certify", f"{TOY}.theorem_false", *words)
    assert [r["verdict"] for r in false["results"]] == ["violated", "violated"]
    twins = shoal("certify", f"{TOY}.theorem_1", "--set", "labels=twins")
    assert twins["results"][0]["verdict"] == "not applicable"
    text = shoal("certify", f"{TOY}.theorem_false", as_json=False)
    assert "Either the record is wrong or the theorem is." in " ".join(text.split())


def test_own_data_and_weights_come_from_files(shoal):
    rng = np.random.default_rng(0)
    np.savez("p.npz", X=rng.normal(size=(3, 1, 8)), y=rng.normal(size=3))
    np.savez("w.npz", w=rng.normal(size=(2, 8)))
    words = ["--data", "p.npz", "--params", "w.npz", "--set", "width=8", "--out", "run"]
    found = shoal("certify", f"{TOY}.theorem_1", *words)
    assert found["setting"]["dim"] == 8
    assert [r["verdict"] for r in found["results"]] == ["holds", "holds"]
    assert not sh.load("run").setup.from_init


def test_data_measures_the_problem(shoal):
    found = shoal("data", TOY, "--set", "num_samples=3")
    assert (found["num_samples"], found["num_tokens"], found["dim"]) == (3, 1, 6)
    assert found["full_row_rank"]


def test_an_edited_claim_is_refused_until_it_is_a_new_version(shoal):
    shutil.copy(TOY, "mine.py")
    papers._module.cache_clear()
    text = Path("mine.py").read_text().replace("doe2024", "mine2024")
    Path("mine.py").write_text(text)
    shoal("claims", "freeze", "mine.py.gain_helps")
    (first,) = shoal("claims", "mine.py.gain_helps", "--until-decided", "--seeds", "20")
    assert (first["claim"], first["status"]) == ("mine2024.gain_helps", "current")
    Path("mine.py").write_text(text.replace("num_steps=20", "num_steps=10"))
    papers._module.cache_clear()
    said = shoal("claims", "mine.py.gain_helps", code=2)
    assert "differs from its registration in design" in said


def test_reproduce_draws_the_paper_s_figures(shoal):
    found = shoal("reproduce", f"{TOY}.width")
    assert found["out"] == "figures-doe2024"
    for file in found["files"]:
        assert Path(file).stat().st_size > 1000
    rows = pl.read_parquet("figures-doe2024/width.parquet")
    assert set(rows["label"]) == {"width 2", "width 4", "width 6"}
    page = shoal("report", "figures-doe2024", "--paper", TOY)["page"]
    text = Path(page).read_text()
    assert "Loss by width" in text
    assert "wu2023" not in text  # only the papers that are shown are cited


def test_the_landscape_of_a_run(shoal):
    shoal("train", TOY, "--out", "run")
    found = shoal("landscape", "run", "--points", "5", "--directions", "path")
    assert found["directions"] == "path"
    assert found["blocks"] == ["w"]
    assert Path("landscape/index.html").exists()


@pytest.mark.slow
def test_plan_finds_the_smallest_width(shoal):
    found = shoal("plan", TOY, "--samples", "2,8", "--seeds", "2", "--set", "dim=64")
    assert Path("plan-doe2024/index.html").exists()
    # a linear model with fewer weights than samples fits nothing, and its kernel is singular; the
    # search begins with width 4
    assert found["certified"]["widths"] == [[4.0, 4.0], [8.0, 8.0]]


SWEEP = f"""
paper = "{TOY}"
seeds = "0-1"
probes = ["distance"]
certify = ["theorem_1", "theorem_false"]
[set]
num_steps = 8
[axes]
gain = [1.0, 2.0]
width = [2, 6]
"""


def test_a_sweep_on_two_processes_is_each_run_alone(shoal, monkeypatch):
    monkeypatch.setattr("shoal.cli.sweeping.cores", lambda: 2)
    Path("s.toml").write_text(SWEEP)
    cost = shoal("sweep", "s.toml", "--dry-run")
    assert cost["runs"] == 8
    found = shoal("sweep", "s.toml", "--out", "out")
    assert (found["runs"], found["done_now"], found["status"]) == (8, 8, {"done": 8})
    again = shoal("sweep", "s.toml", "--out", "out")
    assert (again["runs"], again["done_now"]) == (8, 0)
    rows = shoal("query", "out", "select * from runs")
    assert len(rows) == 8
    for row in rows:
        values = {name: row[name] for name in ("gain", "width")}
        setup = sh.setup(TOY, seeds=[row["seed"]], num_steps=8, **values)
        run = sh.train(setup, probes=["distance"])
        assert row["used_step_size"] == pytest.approx(run.step_size[0], rel=1e-12)
        assert row["risk_last"] == pytest.approx(run.risk[0, -1], rel=1e-9)
        assert row["probe_distance"] == pytest.approx(run.probes["distance"][0, -1], rel=1e-9)
        assert row["theorem_1"] == sh.certify(run, "theorem_1").verdict
    assert {row["theorem_1"] for row in rows} == {"holds", "not applicable"}  # width 2 of 4 samples
    assert len(shoal("ls", "out")) == 8
    assert shoal("export", "out", "out.csv")
    assert len(Path("out.csv").read_text().splitlines()) == 9


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["certify", TOY], "names a paper; which theorem?"),
        (["certify", f"{TOY}.theorem_2"], "doe2024 has no theorem 'theorem_2'; did you mean"),
        (["certify", f"{TOY}.theorem_1", "--set", "method=adam"], "theorem_1 is about gd"),
        (["train", TOY, "--set", "gian=3"], "did you mean 'gain'"),
        (["train", TOY, "--probes", "distanc"], "did you mean 'distance'"),
        (["train", TOY, "--seeds", "1,1"], "a seed is named twice"),
        (["claims", f"{TOY}.lerns"], "did you mean 'learns'"),
        (["reproduce", f"{TOY}.wdith"], "did you mean 'width'"),
        (["report", "nowhere"], "there is no file or folder"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(shoal, words, hint):
    assert hint in shoal(*words, code=2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1", "holds no paper: it should define PAPER"),
        ("import nonsense_that_is_not_there", "fails when it is run: ModuleNotFoundError"),
        ("def f(:", "fails when it is run: SyntaxError"),
        (
            Path(TOY).read_text().replace("doe2024", "wu2023"),
            "which is a built-in paper; rename it",
        ),
    ],
)
def test_files_that_are_no_papers_are_refused(text, complaint):
    Path("bad.py").write_text(text)
    before = [name for name in sys.modules if "shoal_paper" in name]
    with pytest.raises(InputError, match=complaint):
        papers.paper_of("bad.py")
    assert [name for name in sys.modules if "shoal_paper" in name] == before  # it is forgotten


def test_two_files_of_the_same_name_are_two_papers():
    for name in ("a", "b"):
        Path(name).mkdir()
        text = Path(TOY).read_text().replace("doe2024", f"{name}2024")
        Path(name, "paper.py").write_text(text)
    assert papers.paper_of("a/paper.py").key == "a2024"
    assert papers.paper_of("b/paper.py").key == "b2024"
    assert papers.known_paper("a2024").key == "a2024"
    assert papers.known_paper("b2024").setting.sentences()["dim"] == "Features per sample."


# ------------------------------------------------------------------------------- the template


def test_the_template_is_a_paper_that_works(shoal):
    assert shoal("new", "paper", "roe2025") == {"file": "roe2025.py"}
    found = shoal("certify", "./roe2025.py.theorem_1", "--seeds", "0-2")
    assert [r["verdict"] for r in found["results"]] == ["holds"] * 3
    (about,) = shoal("papers", "roe2025.py")
    assert about["key"] == "roe2025"
    assert all(setting["about"] for setting in about["settings"].values())
    assert "exists already" in shoal("new", "paper", "roe2025", code=2)
    assert "'wu2023' is a built-in paper" in shoal("new", "paper", "wu2023", code=2)
    assert "is not a Python name" in shoal("new", "paper", "2x", code=2)


def test_the_template_s_certificate_shows_its_formula():
    from shoal.cli.template import TEMPLATE

    Path("poe2025.py").write_text(TEMPLATE.replace("NAME", "poe2025"))
    run = sh.train(sh.setup("poe2025.py"), step_size="theorem_1")
    assert "<math" in sh.certify(run, "theorem_1")._repr_html_()


@pytest.mark.slow
def test_the_template_s_claim_and_figure_work(shoal):
    shoal("new", "paper", "moe2025")
    shoal("claims", "freeze", "moe2025.py")
    (claim,) = shoal("claims", "moe2025.py", "--until-decided")
    assert claim["verdict"]["word"] == "supported"
    assert claim["controls"][0]["passed"]
    assert shoal("reproduce", "moe2025.py")["files"]


# --------------------------------------------------------------------- as an installed package


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder as pip leaves it: a module, and what says that it is a paper."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(TOY, folder / "doe_paper.py")
    about = folder / "doe_paper-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: doe-paper\nVersion: 1.0\n")
    points = "[shoal.papers]\ndoe2024 = doe_paper:PAPER\nbroken2024 = doe_paper:NOTHING\n"
    (about / "entry_points.txt").write_text(points)
    return folder


def command(installed, *words, code=0):
    before = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{before}"}
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr if code else json.loads(done.stdout)


def test_an_installed_paper_is_found_by_its_key(installed):
    (about,) = command(installed, "papers", "doe2024", "--json")
    assert about["key"] == "doe2024"
    found = command(installed, "certify", "doe2024.theorem_1", "--out", "run", "--json")
    assert found["results"][0]["verdict"] == "holds"
    page = command(installed, "report", "run", "--json")["page"]  # nobody says which file it is
    assert "doe2024.theorem_1" in Path(page).read_text()
    said = command(installed, "papers", "broken2024", code=2)
    assert "the installed paper 'broken2024' cannot be loaded" in said


@pytest.mark.slow
def test_an_installed_paper_sweeps_and_has_a_ledger(installed):
    Path("s.toml").write_text(SWEEP.replace(TOY, "doe2024"))
    found = command(installed, "sweep", "s.toml", "--out", "out", "--json")
    assert found["status"] == {"done": 8}
    command(installed, "claims", "freeze", "doe2024", "--json")
    claims = command(installed, "claims", "doe2024", "--until-decided", "--json")
    assert {c["verdict"]["word"] for c in claims} == {"supported"}
    assert command(installed, "reproduce", "doe2024.width", "--json")["files"]


# ---------------------------------------------------------------- what a newcomer stumbled over

CAUSAL = '''
"""Two theorems that read the same probe; only one says so."""
from typing import Literal
import jax, jax.numpy as jnp
import shoal as sh

class Tiny(sh.Setting):
    num_samples: int = 3
    num_tokens: int = 1
    dim: int = 4
    labels: Literal["line", "zero"] = "line"  # What is fitted.
    num_steps: int = 10
    probe_sentences = {"size": "Norm of the weights."}
    def data(self, key):
        X = jax.random.normal(key, (self.num_samples, 1, self.dim))
        return sh.Problem(X, X[:, 0, 0] * (9.0 if self.labels == "line" else 0.0))
    def params(self):
        return {"w": (self.dim,), "b": ()}
    def apply(self, params, x):
        return x[0] @ params["w"] + params["b"]
    def probes(self, setup):
        return {"size": lambda params: jnp.linalg.norm(params["w"])}

PAPER = sh.Paper(Tiny, key="tiny2024")

def certificate(setup, run):
    return sh.Certificate(
        {"all is trained": sh.condition(setup.trained == ("b", "w"))},
        {"size is finite": sh.Inequality(run.probes["size"], 1e9),
         "nothing is nothing": sh.Equality(0.0, 0.0, 1e-12)})

@PAPER.theorem(source="ours", needs=("size",))
def declared(setup, run):
    "Says what it needs."
    return certificate(setup, run)

@PAPER.theorem(source="ours", probes=("size",))
def silent(setup, run):
    "Does not say what it needs."
    return certificate(setup, run)

PAPER.claim("line_is_harder", "A line is fitted by larger weights than zero is.",
    sh.compared(sh.Study(Tiny, grid={"labels": ("line", "zero")}), lambda run: run.risk[:, 0]),
    sh.above(1.0, "first risk of the line minus that of zero"), why="our number",
    control={"labels": "zero"})
'''


@pytest.fixture
def tiny():
    path = Path("tiny.py")
    path.write_text(CAUSAL)
    return f"./{path}"


def test_train_keeps_the_run_and_names_theorems_that_it_cannot_check(tiny, capsys):
    assert main(["train", tiny, "--out", "r"]) == 0
    said = capsys.readouterr()
    assert "silent reads the probe 'size'" in said.err
    assert "needs=('size',)" in said.err
    assert "declared (--probes +size)" in " ".join(said.out.split())
    assert (Path("r") / "run.json").is_file()


def test_a_condition_and_an_equality_are_read_as_such(tiny, shoal):
    found = shoal("certify", f"{tiny}.declared")["results"][0]
    assert found["verdict"] == "holds"
    assert found["hypotheses"][0]["holds"]
    assert [c.get("relation", "<=") for c in found["conclusions"]] == ["<=", "="]
    assert "= 0" in shoal("certify", f"{tiny}.declared", as_json=False)
    partly = shoal("certify", f"{tiny}.declared", "--set", "train=w")["results"][0]
    assert partly["verdict"] == "not applicable"


def test_two_words_are_compared_seed_by_seed(tiny):
    (claim,) = papers.paper_of(tiny).claims
    assert all(e.value[0] > 1 for e in claim.effects(range(4)))
    assert all(e.value == (0, 0) for e in claim.effects(range(4), claim.controls[0].changes))


def test_three_words_are_not_a_comparison():
    study = sh.Study("wu2023", grid={"init": ("lecun", "he", "ntk")}, seeds=2, num_steps=1)
    with pytest.raises(InputError, match="has 3 points; a comparison needs two"):
        sh.compared(study, lambda run: run.risk[:, -1])


def test_a_run_of_an_own_paper_is_loaded_by_naming_its_file(tiny):
    run = sh.train(sh.setup(tiny))
    run.save("r")
    code = "import shoal as sh; print(sh.load('r', paper='tiny.py').risk.shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(run.risk.shape)
    alone = "import shoal as sh; sh.load('r')"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert "sh.load(folder, paper=FILE)" in done.stderr


def test_a_report_of_nothing_says_that_nothing_is_there(shoal):
    assert "there is no file or folder 'nowhere'" in shoal("report", "nowhere", code=2)


def test_yes_and_no_are_compared_too():
    study = sh.Study("qin2025", grid={"norm": (True, False)}, num_steps=1, dim=4, width=4)
    measure = sh.compared(study, lambda run: run.risk[:, 0])
    assert len(measure(measure.design, (0, 1))) == 2
