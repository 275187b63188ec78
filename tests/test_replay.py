"""Nothing in a run folder is believed that can be computed again.

A forger edits a folder and computes all hashes anew. `certify` and `prove` must refuse it, or say
what they say about the honest folder.
"""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
import pytest

import shoal as sh
from shoal.cli import main
from shoal.lab import replay

SETTING = {
    "num_samples": 4, "num_tokens": 3, "dim": 6, "width": 16, "num_steps": 8,
    "score_exponent": 0.5, "hidden_step_ratio": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A folder, and what certify says about it."""
    run = sh.train(sh.setup("wu2023", seeds=(3, 1), **SETTING))
    folder = tmp_path_factory.mktemp("honest") / "r"
    run.save(folder, [sh.certify(run, "theorem_a")])
    return folder, sh.certify(sh.load(folder), "theorem_a").to_json()


def rehashed(folder):
    """What a careful forger does in the end."""
    about = json.loads((folder / "run.json").read_text())
    for name in about["files"]:
        about["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "run.json").write_text(json.dumps(about))


def about(**changes):
    """Change run.json; a function changes what was there."""

    def edit(folder):
        path = folder / "run.json"
        text = json.loads(path.read_text())
        for name, value in changes.items():
            text[name] = value(text[name]) if callable(value) else value
        path.write_text(json.dumps(text))

    return edit


def setting(**changes):
    return about(setting=lambda old: old | changes)


def arrays(file, change):
    """Change an npz file; ``change`` gets a dict of writable arrays."""

    def edit(folder):
        with np.load(folder / file) as found:
            content = {name: found[name].copy() for name in found.files}
        change(content)
        np.savez(folder / file, **content)

    return edit


def scaled(file, name, factor):
    def change(content):
        content[name] *= factor

    return arrays(file, change)


def table(*columns):
    def edit(folder):
        path = folder / "trajectory.parquet"
        pl.read_parquet(path).with_columns(*columns).write_parquet(path)

    return edit


def without_probes(folder):
    path = folder / "trajectory.parquet"
    pl.read_parquet(path).select("seed", "step", "risk").write_parquet(path)
    about(probes={})(folder)


def steps_of(file):
    def swap(content):
        for name in content:
            content[name] = content[name][::-1].copy()

    return arrays(file, swap)


def all_of(*edits):
    def edit(folder):
        for one in edits:
            one(folder)

    return edit


def retrained(folder):
    """An honest run, but from other labels than its data_seed draws."""
    setup = sh.setup("wu2023", seeds=(3, 1), **SETTING)
    other = setup.replace(problem=setup.problem._replace(y=np.zeros_like(setup.problem.y)))
    shutil.rmtree(folder)
    sh.train(other).save(folder)
    about(drawn=["data", "weights"])(folder)


LATE = pl.col("step") > 4
TAMPERED = {
    "risks": table(pl.col("risk") * 0.9),
    "late risks": table(pl.when(LATE).then(0.0).otherwise("risk").alias("risk")),
    "risks of the twelfth digit": table(pl.col("risk") * (1 + 1e-9)),
    "NaN risks": table(pl.when(LATE).then(float("nan")).otherwise("risk").alias("risk")),
    "step size": setting(step_size=1e-3),
    "step size of one seed": setting(step_size=[0.1, 0.2]),
    "method": setting(method="flow"),
    "exponent": setting(score_exponent=1.0),
    "ratio": setting(hidden_step_ratio=1.0),
    "pooling": setting(pooling="sum"),
    "trained blocks": setting(train="w_O"),
    "first weights": scaled("params0.npz", "W_V", 1.001),
    "first weights, and not drawn": all_of(
        scaled("params0.npz", "W_V", 1.001), about(drawn=["data"], from_init=False)
    ),
    "last weights": scaled("params.npz", "w_O", 1 + 1e-8),
    "NaN weights": scaled("params.npz", "w_O", np.nan),
    "labels": scaled("problem.npz", "y", 0.5),
    "labels, and given": all_of(scaled("problem.npz", "y", 0.5), about(drawn=["weights"])),
    "inputs": scaled("problem.npz", "X", 1.0001),
    "data of another seed": setting(data_seed=7),
    "another initialisation": setting(init="orthogonal"),
    "seeds": about(seeds=[1, 3]),
    "seeds of the weights": steps_of("params0.npz"),
    "probes dropped": without_probes,
    "probes": table(pl.col("movement_W_V") * 0.0),
    "NaN probes": table(pl.lit(float("nan")).alias("movement_W_V")),
    "verdicts": about(verdicts={"theorem_a": ["holds", "holds"]}),
    "a run on other data": retrained,
    "drawn weights said to be given": about(drawn=["data"]),
    "a hash left out": about(files=lambda old: {k: v for k, v in old.items() if k != "params.npz"}),
    "an older format": all_of(about(format=1), table(pl.col("risk") * 0.9)),
}  # fmt: skip
RECOMPUTED = {
    "probes dropped", "probes", "NaN probes", "verdicts", "drawn weights said to be given",
}  # fmt: skip
"""What does not enter a verdict; all else must be refused."""
COMPILED = {"pooling", "trained blocks", "another initialisation"}
"""What needs another program, so that its test takes longer."""


def close(one, other):
    """Equal up to the rounding of another program, NaN being equal."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            close(one[key], other[key])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            close(a, b)
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-7, abs=1e-12, nan_ok=True)
    else:
        assert one == other


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[pytest.mark.slow] * (k in COMPILED)) for k in TAMPERED]
)
def test_an_edited_folder_is_refused_or_judged_by_what_comes_out(name, honest, tmp_path):
    folder = Path(shutil.copytree(honest[0], tmp_path / "r"))
    TAMPERED[name](folder)
    rehashed(folder)
    if name in RECOMPUTED:
        close(sh.certify(sh.load(folder), "theorem_a").to_json(), honest[1])
        return
    with pytest.raises(sh.InputError):
        sh.certify(sh.load(folder), "theorem_a")


def test_the_refusal_says_what_differs(honest, tmp_path, capsys):
    folder = Path(shutil.copytree(honest[0], tmp_path / "r"))
    table(pl.when(LATE).then(pl.col("risk") * 2).otherwise("risk").alias("risk"))(folder)
    rehashed(folder)
    code = main(["certify", "wu2023.theorem_a", "--run", str(folder)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "risk of seed 3 at step 5 is recorded as" in err


def test_what_was_replayed_is_said(honest, capsys):
    words = ["certify", "wu2023.theorem_a", "--run", str(honest[0])]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replayed"] == "all 8 steps"
    assert main(words) == 0
    assert "replayed all 8 steps" in capsys.readouterr().err


def test_a_run_that_was_replayed_is_not_replayed_again(honest):
    run = sh.load(honest[0]).replay()
    assert run.loaded is None
    assert run.replay() is run


def test_other_rounding_is_not_an_edit(honest, tmp_path):
    """Weights, data and step moved by a few units in the last place: another machine's numbers."""
    run = sh.load(honest[0])
    rng = np.random.default_rng(5)

    def nudge(x):
        return x * (1 + 4 * 2.0**-53 * rng.uniform(-1, 1, np.shape(x)))

    moved = run.setup.replace(params0=jax.tree.map(nudge, run.setup.params0))
    other = sh.train(moved.with_steps(run.step_size), probes=[])
    told = dataclasses.replace(run, risk=other.risk, params=other.params)
    assert not np.array_equal(told.risk, run.risk)
    assert "all 8 steps" in told.replay().notes["replayed"]


# ------------------------------------------------------------------------------ own models, proofs


def network(p, x):
    return jnp.tanh(x @ p["W"]) @ p["v"]


def own(scale=1.0):
    rng = np.random.default_rng(0)
    start = {"W": rng.standard_normal((3, 6)) / 2, "v": scale * rng.standard_normal(6) / 3}
    return sh.setup(network, start, rng.standard_normal((3, 3)), rng.standard_normal(3))


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "r"
    run = sh.train(own(), steps=400, step_size=0.1, probes=["params@100"])
    run.save(folder)
    return folder, sh.prove(run)


def test_a_folder_is_proved_as_the_run_was(proved):
    folder, before = proved
    after = sh.prove(sh.load(folder, own()))
    assert (
        (after.verdict, after.step) == (before.verdict, before.step) == ("converges", before.step)
    )
    assert after.rate == pytest.approx(before.rate, rel=1e-9)
    assert after.replayed.startswith("all 400 steps")


@pytest.mark.parametrize(
    "edit",
    [
        setting(step_size=0.09), setting(num_steps=200), setting(train="v"),
        scaled("params.npz", "v", 1.0001), scaled("params0.npz", "v", 1.0001),
        scaled("problem.npz", "y", 0.9), table(pl.col("risk") * 0.5),
    ],
)  # fmt: skip
def test_an_edited_folder_is_not_proved(edit, proved, tmp_path):
    folder = Path(shutil.copytree(proved[0], tmp_path / "r"))
    edit(folder)
    rehashed(folder)
    with pytest.raises(sh.InputError):
        sh.prove(sh.load(folder, own()))


def test_a_folder_of_another_start_is_refused(proved):
    with pytest.raises(sh.InputError, match="not that of the setup"):
        sh.load(proved[0], own(2.0))


def test_a_long_run_is_replayed_in_parts(proved, monkeypatch):
    run = sh.load(proved[0], own())
    work = replay._work(run.setup, 400)
    monkeypatch.setattr(replay, "MOST_WORK", work / 2)
    words = run.replay().notes["replayed"]
    # a fifth of the work a stretch: 40 of the 100 steps between recorded weights
    assert words.startswith("steps 0-40, 100-140, 200-240, 300-340 of 400; the rest is believed")
    assert run.replay(whole=True).notes["replayed"] == "all 400 steps"
    for begin in (20, 120, 320):
        risk = run.risk.copy()
        risk[:, begin] *= 1.001
        with pytest.raises(sh.InputError, match=f"step {begin}"):
            dataclasses.replace(run, risk=risk).replay()
    kept = run.probes["params_v"].copy()
    kept[:, 200] *= 1.001
    with pytest.raises(sh.InputError, match="step 20"):
        dataclasses.replace(run, probes=run.probes | {"params_v": kept}).replay()


def test_a_method_that_a_folder_cannot_hold_is_seen_at_both_ends(tmp_path):
    sh.train(own(), steps=3, method=optax.sgd(0.1)).save(tmp_path / "r")
    run = sh.load(tmp_path / "r", own())
    assert "both ends" in run.replay().notes["replayed"]
    with pytest.raises(sh.InputError, match="step 3"):
        dataclasses.replace(run, risk=run.risk * [1, 1, 1, 1.01]).replay()


def test_a_run_that_ends_at_zero_is_replayed_and_its_end_is_not_free(tmp_path):
    setup = sh.setup(lambda p, x: x * p["a"] * p["b"], {"a": 1.2, "b": 0.8}, [1.0], [1.0])
    run = sh.train(setup, steps=60, step_size=0.3, every=1)
    assert run.risk[0].min() == 0
    run.save(tmp_path / "r")
    loaded = sh.load(tmp_path / "r", setup=setup)
    assert loaded.replay().risk[0, -1] == run.risk[0, -1]
    forged = np.array(run.risk)
    forged[0, -1] = 1e-6
    with pytest.raises(sh.InputError, match="risk"):
        dataclasses.replace(loaded, risk=forged).replay()


def test_a_truth_value_that_was_not_recorded_is_nan_and_older_folders_replay(tmp_path):
    run = sh.train(sh.setup("wu2023", **SETTING), probes=["sharpness@4"])
    seen = run.probes["sharpness_converged"][0]
    assert seen[[0, 4, 8]].tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(np.delete(seen, [0, 4, 8])).all()
    run.save(tmp_path / "r")
    assert sh.load(tmp_path / "r").replay().notes["replayed"] == "all 8 steps"
    table = pl.read_parquet(path := tmp_path / "r" / "trajectory.parquet")
    converged = pl.col("sharpness_converged").fill_nan(0).cast(pl.Boolean)  # as 0.1 wrote it
    table.with_columns(converged).write_parquet(path)
    rehashed(tmp_path / "r")
    assert sh.load(tmp_path / "r").replay().notes["replayed"] == "all 8 steps"
