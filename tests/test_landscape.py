"""Landscapes: planes against direct evaluation, numbers against functions that are known."""

import json
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import shoal as sh
from shoal.cli import main
from shoal.diagnostics import landscape as land

P = namedtuple("P", "W v")


def start(seed=0):
    a, b = jax.random.split(jax.random.key(seed))
    return P(jax.random.normal(a, (3, 2)), jax.random.normal(b, (4,)))


def risk(p):
    return jnp.sum(p.W**2) + jnp.sum(jnp.sin(p.v))


def test_a_plane_is_the_risk_at_each_of_its_points():
    centre, grid = start(), jnp.array([-1.0, 0.25, 2.0])
    d = land.random_directions(jax.random.key(1), centre)
    found = land.plane(risk, centre, d, grid, grid, batch_size=2)
    for i, a in enumerate(grid):
        for j, b in enumerate(grid):
            point = P(*(getattr(centre, n) + a * d.first[n] + b * d.second[n] for n in P._fields))
            assert float(found[i, j]) == pytest.approx(float(risk(point)), rel=1e-12)


def test_random_directions_have_the_rows_of_the_weights():
    centre = start()
    d = land.random_directions(jax.random.key(1), centre, ["W"])
    assert list(d.first) == ["W"]
    for side in d:
        np.testing.assert_allclose(
            jnp.linalg.norm(side["W"], axis=1), jnp.linalg.norm(centre.W, axis=1), rtol=1e-12
        )
    assert float(jnp.abs(d.first["W"] - d.second["W"]).max()) > 0.1


def test_path_directions_lead_from_start_to_end_and_aside():
    a, b = start(0), start(1)
    d = land.path_directions(jax.random.key(2), a, b)
    np.testing.assert_allclose(d.first["W"], b.W - a.W, rtol=1e-12)
    flat = [jnp.concatenate([s["W"].ravel(), s["v"]]) for s in d]
    assert float(flat[0] @ flat[1]) == pytest.approx(0.0, abs=1e-12)
    lengths = [float(jnp.linalg.norm(f)) for f in flat]
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-12)


def test_principal_directions_find_the_plane_of_a_path():
    t = np.linspace(0, 1, 30)
    u, w = np.random.default_rng(0).normal(size=(2, 5))
    path = np.outer(1 - t, u) + np.outer(np.sin(4 * t), w) + 7
    found = land.principal_directions({"x": jnp.asarray(path)})
    assert float(found.share) == pytest.approx(1.0, abs=1e-12)
    again = path[-1] + np.asarray(found.path) @ np.stack(
        [found.directions.first["x"], found.directions.second["x"]]
    )
    np.testing.assert_allclose(again, path, atol=1e-10)
    assert np.abs(np.asarray(found.path)).max() == pytest.approx(1.0)


X, Y = np.meshgrid(np.linspace(-2, 2, 81), np.linspace(-2, 2, 81), indexing="ij")


@pytest.mark.parametrize(
    ("heights", "minima", "indefinite", "negative"),
    [
        (X**2 + 3 * Y**2, 1, 0.0, 0.0),
        (X**2 - Y**2, 0, 1.0, 0.0),
        (-(X**2) - Y**2, 0, 0.0, 1.0),
        ((X**2 - 1) ** 2 + Y**2, 2, None, 0.0),
        (np.cos(3 * X) + np.cos(3 * Y), 4, None, None),
        (np.zeros_like(X), 0, 0.0, 0.0),
    ],
)
def test_measures_of_known_surfaces(heights, minima, indefinite, negative):
    found = land.measures(heights, (0.05, 0.05))
    assert found["local_minima"] == minima
    if indefinite is not None:
        assert found["indefinite"] == pytest.approx(indefinite, abs=0.01)
    if negative is not None:
        assert found["negative"] == pytest.approx(negative, abs=0.01)


def test_the_double_well_is_indefinite_where_its_second_derivative_is_negative():
    found = land.measures((X**2 - 1) ** 2 + Y**2, (0.05, 0.05))
    share = np.mean(np.abs(X[1:-1, 1:-1]) < 3**-0.5)
    assert found["indefinite"] == pytest.approx(share, abs=0.02)
    assert found["roughness"] > land.measures(X**2 + Y**2, (0.05, 0.05))["roughness"]
    assert land.measures(X, (0.05, 0.05))["roughness"] == pytest.approx(1.0)


def test_infinite_points_do_not_count():
    heights = np.where(X > 1.9, np.inf, X**2 + Y**2)
    found = land.measures(heights, (0.05, 0.05))
    assert found["local_minima"] == 1
    assert found["indefinite"] == 0
    assert np.isfinite(list(found.values())).all()


# ------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of query and key weights on the same data with other labels, and a narrower one."""
    folder = tmp_path_factory.mktemp("runs")
    sizes = ["--set=num_samples=4", "--set=num_tokens=3", "--set=dim=6", "--set=train=W_Q,W_K"]
    for name, more in {"one": "width=16", "two": "label_scale=2", "thin": "width=8"}.items():
        words = [*sizes, "--set=width=16"] if name == "two" else sizes
        words = ["train", "wu2023", *words, "--set", more, "--steps", "20", "--probes", "none"]
        assert main([*words, "--out", str(folder / name)]) == 0
    return folder


@pytest.mark.parametrize(
    "kind",
    [
        "random",
        pytest.param("pca", marks=pytest.mark.slow),
        pytest.param("path", marks=pytest.mark.slow),
    ],
)
def test_the_command_compares_two_runs(runs, tmp_path, capsys, kind):
    out = tmp_path / "plane"
    words = ["landscape", str(runs / "one"), str(runs / "two"), "--directions", kind]
    assert main([*words, "--points", "11", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [len(said["sides"]), said["blocks"]] == [2, ["W_Q", "W_K"]]
    assert said["sides"][0]["hessian_max"] > 0
    assert said["sides"][0]["highest"] != said["sides"][1]["highest"]
    for name in ("index.html", "landscape.png", "landscape.pdf", "landscape.parquet"):
        assert (out / name).stat().st_size > 1000
    again = tmp_path / "again"
    assert main([*words, "--points", "11", "--out", str(again), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sides"] == said["sides"]
    assert main(["report", str(out)]) == 0


def test_the_middle_of_the_plane_is_the_end_of_the_run(runs, tmp_path, capsys):
    out = tmp_path / "plane"
    words = ["landscape", str(runs / "one"), "--points", "11", "--out", str(out)]
    assert main(words) == 0
    heights = pl.read_parquet(out / "landscape.parquet")
    middle = heights.filter((pl.col("x") == 0) & (pl.col("y") == 0))["low"][0]
    last = pl.read_parquet(runs / "one" / "trajectory.parquet")["risk"][-1]
    assert middle == pytest.approx(last, rel=1e-10)
    # the table has a column for each run, and its name at the top
    assert str(runs / "one")[:20] in capsys.readouterr().out.replace("\n", "")


def test_some_samples_are_a_smaller_risk(runs):
    run = sh.load(runs / "one")
    whole, half = (sh.landscape(run, points=3, samples=count) for count in (None, 2))
    assert (half.planes[0] < whole.planes[0]).all()
    X, y = run.setup.problem.X[:2], run.setup.problem.y[:2]
    params = jax.tree.map(lambda W: W[0], run.params)
    f = [float(run.setup.setting.apply(params, jnp.asarray(x))) for x in X]
    assert half.planes[0][1, 1] == pytest.approx(0.5 * sum((f - y) ** 2), rel=1e-12)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "one or more runs"),
        (["nowhere"], "not a run folder"),
        (["{one}", "--directions", "rndom"], "did you mean 'random'"),
        (["{one}", "--blocks", "W_X"], "no parameter is called"),
        (["{one}", "{thin}"], "the same directions must fit"),
        (["{one}", "--points", "1"], "3 to 501"),
        (["{one}", "--span", "0"], "span above 0"),
        (["{one}", "--samples", "0"], "1 or more"),
        (["{one}", "--seed", "-1"], "0 .. 2**31 - 1"),
        (["{one}", "--seed", "99999999999999999999"], "0 .. 2**31 - 1"),
        (["{one}", "--directions", "path", "--blocks", "W_V"], "did not move"),
        (["{one}", "--directions", "pca", "--blocks", "W_V"], "did not move"),
        (["{one}", "--paper", "nosuch.py"], "there is no file"),
    ],
)
def test_bad_words_are_refused(runs, tmp_path, capsys, words, hint):
    filled = [w.format(one=runs / "one", thin=runs / "thin") for w in words]
    assert main(["landscape", *filled, "--out", str(tmp_path / "x")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert hint in said.err
    assert not (tmp_path / "x").exists()
