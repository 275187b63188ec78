"""Run folders: whole, unchanged since they were saved, and those of 0.1.0 still read.

``fixtures/0.1.0`` holds folders that version 0.1.0 wrote, and certificates that it computed.
"""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import polars as pl
import pytest

import shoal as sh
from shoal.cli import main

OLD = Path(__file__).parent / "fixtures" / "0.1.0"
OLD_RUNS = ("wu", "song", "song-classifier", "arda", "qin")
SIZES = {"num_samples": 4, "num_tokens": 3, "dim": 6, "width": 16, "num_steps": 4}


def call(capsys, *words):
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def edit(folder, **changes):
    """Change run.json; None removes an entry."""
    path = folder / "run.json"
    about = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in about.items() if v is not None}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of two seeds with a probe of every kind, and its folder."""
    setup = sh.setup("wu2023", seeds=(3, 1), **SIZES)
    run = sh.train(setup, probes="+attention")
    folder = tmp_path_factory.mktemp("saved") / "r"
    run.save(folder, [sh.certify(run, "theorem_a")])
    return run, folder


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved[1], tmp_path / "r"))


# ------------------------------------------------------------------------------------ of today


def test_a_run_comes_back_as_it_was(saved):
    run, folder = saved
    again = sh.load(folder)
    np.testing.assert_array_equal(again.risk, run.risk)
    np.testing.assert_array_equal(again.step, run.step)
    np.testing.assert_array_equal(again.step_size, run.step_size)
    assert again.seeds == run.seeds
    assert again.probes.keys() == run.probes.keys()
    for name, values in run.probes.items():
        np.testing.assert_array_equal(again.probes[name], values)
    for one, two in (
        (again.params, run.params),
        (again.setup.params0, run.setup.params0),
        (again.setup.problem, run.setup.problem),
    ):
        jax.tree.map(np.testing.assert_array_equal, one, two)
    assert again.parts == {name: tuple(parts) for name, parts in run.parts.items()}
    assert again.setup.setting.replace(step_size=None) == run.setup.setting
    assert again.setup.overrides == run.setup.overrides
    assert repr(again).splitlines()[1:] == repr(run).splitlines()[1:]


def test_a_saved_run_certifies_as_it_did_before(saved):
    run, folder = saved
    for theorem in ("theorem_a", "theorem_c"):
        before, after = sh.certify(run, theorem), sh.certify(sh.load(folder), theorem)
        assert_says_again(before.to_json()["results"], after.to_json()["results"])
        assert after.run.notes["replayed"] == "all 4 steps"


def test_a_page_in_the_folder_does_not_disturb_it(copy, capsys):
    assert call(capsys, "report", copy)[0] == 0
    assert (copy / "report.html").is_file()
    assert sh.load(copy).seeds == (3, 1)


@pytest.mark.parametrize(
    "name", ["trajectory.parquet", "problem.npz", "params0.npz", "params.npz", "certificates.json"]
)
def test_a_file_that_was_changed_or_is_gone_is_refused(copy, capsys, name):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content + b"\n")
    code, out, err = call(capsys, "certify", "wu2023.theorem_a", "--run", copy)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name}' was changed" in err
    (copy / name).unlink()
    code, out, err = call(capsys, "certify", "wu2023.theorem_a", "--run", copy)
    assert (code, out, err.count("\n")) == (2, "", 1)


def about_of(saved):
    return json.loads((saved[1] / "run.json").read_text())


def test_a_damaged_run_folder_is_refused(saved, copy, capsys):
    about = about_of(saved)
    setting = about["setting"]

    def edited(**changes):
        return json.dumps(about | {"files": {}} | changes).encode()

    for name, content in (
        ("trajectory.parquet", b"PAR1"),
        ("params0.npz", b"x"),
        ("run.json", b"[]"),
        ("run.json", b"\xff"),
        ("run.json", b'{"format": 1}'),
        ("run.json", b'{"format": 99}'),
        ("run.json", b"[" * 100_000),
        ("run.json", edited(setting=None)),
        ("run.json", edited(precision="object")),
        ("run.json", edited(seeds=[3.5, 1])),
        ("run.json", edited(seeds="31")),
        ("run.json", edited(seeds=[1, 1])),
        ("run.json", edited(seeds=[3])),
        ("run.json", edited(paper="nobody2020")),
        ("run.json", edited(paper=None)),
        ("run.json", edited(files=[1])),
        ("run.json", edited(files={"../run.json": "0"})),
        ("run.json", edited(probes={"movement": 3})),
        ("run.json", edited(probes=[])),
        ("run.json", edited(given=7)),
        ("run.json", edited(setting=setting | {"step_size": None})),
        ("run.json", edited(setting=setting | {"step_size": [0.1]})),
        ("run.json", edited(setting=setting | {"step_size": "fast"})),
        ("run.json", edited(setting=setting | {"step_size": [0.1, float("nan")]})),
        ("run.json", edited(setting=setting | {"train": "zzz"})),
        ("run.json", edited(setting=setting | {"num_samples": 5})),
        ("run.json", edited(setting=setting | {"num_steps": 40})),
        ("run.json", edited(setting=setting | {"width": 99})),
        ("run.json", edited(setting=setting | {"colour": "red"})),
        ("run.json", edited(setting={k: v for k, v in setting.items() if k != "every"})),
    ):
        keep = (copy / name).read_bytes()
        (copy / name).write_bytes(content)
        code, out, err = call(capsys, "certify", "wu2023.theorem_a", "--run", copy)
        assert (code, out, err.count("\n")) == (2, "", 1), (name, content[:80], err)
        (copy / name).write_bytes(keep)


def test_a_run_folder_cannot_have_code_run(copy, capsys, tmp_path):
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    edit(copy, paper=str(trap))
    for words in (["report", copy], ["landscape", copy], ["certify", "wu2023.theorem_a"]):
        more = ["--run", copy] if words[0] == "certify" else []
        assert call(capsys, *words, *more)[0] == 2
    (tmp_path / "c.json").write_text(
        json.dumps({"paper": str(trap), "theorem": "t", "results": []})
    )
    assert call(capsys, "report", tmp_path / "c.json")[0] == 2
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "change",
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
        slice(0, 3),
        slice(1, None),
    ],
    ids=str,
)
def test_a_table_that_is_not_the_run_s_is_refused(copy, capsys, change):
    edit(copy, files=None)  # as in a folder of 0.1.0, which has no digests
    path = copy / "trajectory.parquet"
    table = pl.read_parquet(path)
    table = table[change] if isinstance(change, slice) else table.with_columns(change)
    table.write_parquet(path)
    code, out, err = call(capsys, "certify", "wu2023.theorem_a", "--run", copy)
    assert (code, out, err.count("\n")) == (2, "", 1), err


def test_rows_in_another_order_are_the_same_run(saved, copy):
    edit(copy, files=None)
    path = copy / "trajectory.parquet"
    pl.read_parquet(path).reverse().write_parquet(path)
    np.testing.assert_array_equal(sh.load(copy).risk, saved[0].risk)


def model(params, x):
    return x @ params["out"]


@pytest.mark.parametrize("method", ["gd", optax.sgd(0.5, momentum=0.9)], ids=["gd", "optax"])
def test_a_run_of_an_own_model_needs_its_setup(tmp_path, capsys, method):
    x, y = np.eye(3), np.arange(3.0)
    setup = sh.setup(model, {"out": np.ones(3)}, x, y)
    run = sh.train(setup, steps=3, step_size=0.5 if method == "gd" else None, method=method)
    run.save(tmp_path / "own")
    again = sh.load(tmp_path / "own", setup)
    np.testing.assert_array_equal(again.risk, run.risk)
    assert again.params["out"].tolist() == run.params["out"].tolist()
    with pytest.raises(sh.InputError, match="give the setup that it came from"):
        sh.load(tmp_path / "own")
    assert call(capsys, "report", tmp_path / "own")[0] == 2


def test_inputs_that_are_named_are_saved_under_their_names(tmp_path):
    for name in ("a", "params"):
        setup = sh.setup(
            lambda w, x: sum(x.values()) * w, np.ones(()), {name: np.eye(2)}, np.eye(2)
        )
        sh.train(setup, steps=1, step_size=0.1).save(tmp_path / name)
        assert set(np.load(tmp_path / name / "problem.npz")) == {f"x_{name}", "y"}


def test_a_run_by_optax_comes_back_but_is_no_gradient_descent(tmp_path):
    setup = sh.setup("wu2023", **SIZES)
    run = sh.train(setup, method=optax.sgd(0.01))
    run.save(tmp_path / "r")
    again = sh.load(tmp_path / "r")
    np.testing.assert_array_equal(again.risk, run.risk)
    with pytest.raises(sh.InputError, match="method=gd"):
        sh.certify(again, "theorem_a")
    sh.report(again, out=tmp_path / "page.html")


def test_a_run_on_several_data_sets_is_not_saved_as_one(tmp_path):
    (run,) = sh.Study("wu2023", seeds=2, fresh_data=True, **SIZES).runs()
    with pytest.raises(sh.InputError, match="one problem"):
        run.save(tmp_path / "r")


# ------------------------------------------------------------------------------------ of 0.1.0


@pytest.mark.parametrize("name", OLD_RUNS)
def test_an_old_folder_loads(name):
    about = json.loads((OLD / name / "run.json").read_text())
    run = sh.load(OLD / name)
    assert about["format"] == 1
    assert run.setup.name == about["paper"]
    assert list(run.seeds) == about["seeds"]
    assert run.setup.precision == about["precision"]
    assert set(run.step_size.tolist()) == {about["setting"]["step_size"]}
    assert run.notes["command"] == about["command"]
    table = pl.read_parquet(OLD / name / "trajectory.parquet")
    assert run.risk.ravel().tolist() == table["risk"].to_list()
    recorded = set(table.columns) - {"seed", "step", "time", "risk"}
    if (OLD / name / "probes.npz").is_file():
        recorded |= set(np.load(OLD / name / "probes.npz").files) - {"seed", "step"}
    assert set(run.probes) == recorded
    # columns are joined to the probes that they are parts of
    joined = {f"{k}_{p}" for k, parts in run.parts.items() for p in parts}
    assert joined | {k for k, parts in run.parts.items() if not parts} == recorded
    if name == "wu":
        assert set(run.parts["movement"]) == {"W_Q", "W_K", "W_V", "w_O"}
    # old words for the same thing
    if name == "qin":
        assert run.setup.setting.residual == "feed_forward"
    if name == "arda":
        assert run.setup.setting.radius == (3.0, 3.0, 3.0)
        assert run.average is not None


def numbers(results):
    """Everything that a certificate says, by name."""
    for result in results:
        seed = result["seed"]
        yield (seed, "verdict"), result["verdict"]
        for kind in ("hypotheses", "conclusions"):
            for line in result[kind]:
                for part in ("lhs", "rhs", "holds"):  # the margin follows from the sides
                    yield (seed, kind, line["name"], part), line[part]
        for name, value in result["constants"].items():
            yield (seed, "constants", name), value
        for name in ("predicted_rate", "measured_rate"):
            yield (seed, name), result[name]


def assert_says_again(then, now):
    """A replay records what a theorem can do without, too, so it may say more."""
    was, now = dict(numbers(then)), dict(numbers(now))
    assert set(was) <= set(now)
    assert_equal_numbers(was, now)


def assert_equal_numbers(was, now, rtol=1e-9):
    for what, value in was.items():
        if value is None:  # it was not checked
            continue
        if "is trained" in str(what) or "is fixed" in str(what):  # written as yes or no now
            continue
        if isinstance(value, str | bool | None):
            assert now[what] == value, what
        else:
            np.testing.assert_allclose(now[what], value, rtol=rtol, atol=1e-14, err_msg=str(what))


@pytest.mark.parametrize(
    ("name", "theorem"),
    [
        ("wu", "wu2023.theorem_a"),
        ("wu", "wu2023.kernel_regime"),
        ("song", "song2024.theorem_2"),
        ("arda", "arda2026.theorem_b"),
        ("qin", "qin2025.theorem_d"),
    ],
)
def test_an_old_folder_certifies_as_it_did_then(capsys, name, theorem):
    code, out, err = call(capsys, "certify", theorem, "--run", OLD / name, "--json")
    assert code == 0, err
    found = json.loads(out)
    key = theorem.partition(".")[2]
    then = json.loads((OLD / f"cert-{name}-{key}.json").read_text())
    # 0.1.0 wrote its rounding into both sides, which are enclosed now; the rest is as it was
    was, now = dict(numbers(then["results"])), dict(numbers(found["results"]))
    kept = {k: v for k, v in was.items() if k in now and k[1] not in ("hypotheses", "conclusions")}
    if theorem.endswith("kernel_regime"):  # 0.1 told the rate of the predicted curve as proved
        has = found["results"][0]["constants"]
        proved = 1 - min(has["q"] + has["gamma"] * has["Delta"], 1.0) ** 2
        assert found["results"][0]["predicted_rate"] == pytest.approx(proved, abs=1e-12)
        kept = {k: v for k, v in kept.items() if k[1] != "predicted_rate"}
    assert len(kept) > 4
    assert_equal_numbers(kept, now, rtol=1e-5)  # constants of sets that leave room for rounding
    for part in ("all", "files without hashes", "not drawn again"):
        assert part in found["replayed"]


@pytest.mark.parametrize("name", OLD_RUNS)
def test_an_old_folder_becomes_a_page(capsys, tmp_path, name):
    page = tmp_path / "page.html"
    code, _, err = call(capsys, "report", OLD / name, "--out", page)
    assert code == 0, err
    text = page.read_text()
    about = json.loads((OLD / name / "run.json").read_text())
    assert f"A run of {about['paper']}" in text
    for theorem in about["verdicts"]:
        assert f"{about['paper']}.{theorem}" in text


def test_an_old_folder_has_a_landscape(capsys, tmp_path):
    words = ["landscape", OLD / "wu", "--points", 3, "--out", tmp_path / "plane", "--json"]
    code, _, err = call(capsys, *words)
    assert code == 0, err
    plane = pl.read_parquet(tmp_path / "plane" / "landscape.parquet")
    middle = plane.filter((pl.col("x") == 0) & (pl.col("y") == 0))["low"][0]
    last = pl.read_parquet(OLD / "wu" / "trajectory.parquet")["risk"][10]
    assert middle == pytest.approx(last, rel=1e-10)


def test_an_old_folder_saved_again_is_a_new_one(tmp_path):
    old = sh.load(OLD / "wu")
    old.save(tmp_path / "r")
    about = json.loads((tmp_path / "r" / "run.json").read_text())
    assert about["format"] == 2
    assert set(about["files"]) >= {"params.npz", "probes.npz"}
    np.testing.assert_array_equal(sh.load(tmp_path / "r").risk, old.risk)
