"""A tangent kernel in parts: every pair of samples once, the same numbers as all at once."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal.cli import main
from shoal.diagnostics.kernels import jacobian
from shoal.errors import InputError
from shoal.sweeps import tiles

SMALL = ["--set", "num_tokens=2", "--set", "dim=3", "--set", "width=5"]


@pytest.mark.parametrize(("samples", "most"), [(50, 20), (50, 14), (23, 8), (9, 40)])
def test_every_pair_of_groups_is_on_one_line(samples, most):
    parts = tiles.divided(samples, most)
    groups = range(parts.prime**2)
    met = [pair for line in parts.lines for pair in itertools.combinations(sorted(line), 2)]
    assert sorted(met) == list(itertools.combinations(groups, 2))
    every = np.concatenate([parts.rows((group,)) for group in groups])
    assert every.tolist() == list(range(samples))
    assert max(len(parts.rows(line)) for line in parts.lines) <= parts.longest <= most


def test_parts_that_are_too_small_are_refused():
    with pytest.raises(InputError, match="4 or more"):
        tiles.divided(100, 3)


def made_in_parts(model, folder, samples, most, outputs=1):
    work = tiles.Work(folder, model, tiles.divided(samples, most), outputs)
    for task in work.tasks():
        tiles.make_line(json.loads(json.dumps(task)))
    return work


def model_of(target, seed=0, **values):
    return {"target": target, "values": values, "seed": seed, "data": None, "params": None,
            "precision": "float64"}  # fmt: skip


@pytest.mark.parametrize(
    ("paper", "values"),
    [
        ("wu2023", {"num_samples": 23, "num_tokens": 2, "dim": 3, "width": 5}),
        ("song2024", {"num_samples": 9, "num_tokens": 2, "dim": 2}),
    ],
)
def test_the_parts_make_the_dense_kernel(tmp_path, paper, values):
    samples = values["num_samples"]
    one = jax.tree.map(jnp.asarray, sh.setup(paper, seeds=(3,), step_size=1.0, **values).one())
    outputs = one.targets[0].size
    work = made_in_parts(model_of(paper, seed=3, **values), tmp_path, samples, 8, outputs)
    assert not list(work.tasks())
    made = np.load(work.assemble(), allow_pickle=False)
    J = jacobian(one.network, one.inputs, train=one.trained)(one.params0)
    dense = np.asarray(J @ J.T)  # half the sum of squares: the weight is 1
    np.testing.assert_allclose(made, dense, rtol=1e-12, atol=1e-14 * np.abs(dense).max())
    assert not (tmp_path / tiles.LINES).exists()


MINE = """
import jax.numpy as jnp
import numpy as np
import shoal as sh

def model(n=11):
    x = np.sin(np.arange(3.0 * n)).reshape(n, 3)
    start = {"W": np.cos(np.arange(6.0)).reshape(3, 2)}
    y = np.ones((n, 2))
    return sh.setup(lambda p, x: jnp.tanh(x @ p["W"]), start, x, y, loss="mean_squares")
"""


def test_a_mean_keeps_its_weight_of_the_whole(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    made = made_in_parts(model_of(f"{file}:model"), tmp_path / "k", 11, 6, 2)
    found = np.load(made.assemble(), allow_pickle=False)
    one = tiles.one_start(made.model)
    J = np.concatenate([np.kron(x[None], np.eye(2)) for x in np.asarray(one.inputs)])
    slope = 1 - np.tanh(np.asarray(one.inputs) @ one.params0["W"]) ** 2
    J = slope.reshape(-1, 1) * J  # d tanh(x W)_k / d W_ik = x_i (1 - tanh^2), rows sample by sample
    np.testing.assert_allclose(found, 2 / 22 * J @ J.T, rtol=1e-12, atol=1e-15)


def test_a_stopped_kernel_continues_and_damaged_parts_are_made_again(tmp_path):
    model = model_of("wu2023", num_samples=23, num_tokens=2, dim=3, width=5)
    work = tiles.Work(tmp_path, model, tiles.divided(23, 8), 1)
    first, second, third, *rest = work.tasks()
    for task in (first, second, third):
        tiles.make_line(task)
    tiles.line_file(tmp_path, 1).write_bytes(b"\x93NUMPY")  # half-written
    np.save(tiles.line_file(tmp_path, 2), np.zeros((2, 2)))  # of another kernel
    assert [t["line"] for t in work.tasks()] == [1, 2, *(t["line"] for t in rest)]


def test_extremes_are_those_of_the_spectrum(tmp_path):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    values = np.linspace(1.0, 5.0, 30)
    np.save(tmp_path / "kernel.npy", Q @ np.diag(values) @ Q.T)
    found = tiles.ends_of(tiles.product_with(tmp_path / "kernel.npy", 7), 30)
    assert abs(found.smallest - 1) < 1e-10
    assert abs(found.largest - 5) < 1e-10
    assert found.converged == (True, True)


def test_ends_that_did_not_converge_say_so():
    values = np.geomspace(1e-12, 1.0, 400)
    found = tiles.ends_of(lambda v: values * v, 400, num_matvecs=10)
    assert found.converged == (False, False)
    assert found.smallest - found.residuals[0] <= values[0]
    assert abs(found.largest - values[-1]) <= found.residuals[1]


def test_the_command(tmp_path, capsys):
    words = ["kernel", "wu2023", "--set", "num_samples=12", *SMALL, "--part", "20", "--json"]
    assert main([*words, "--out", str(tmp_path / "k")]) == 0
    about = json.loads(capsys.readouterr().out)
    kernel = np.load(tmp_path / "k" / "kernel.npy", allow_pickle=False)
    assert about["rows"] == len(kernel) == 12
    assert abs(about["extremes"]["largest"]["value"] - np.linalg.eigvalsh(kernel)[-1]) < 1e-9
    before = (tmp_path / "k" / "kernel.npy").stat().st_mtime_ns
    assert main([*words, "--out", str(tmp_path / "k")]) == 0  # there already
    assert (tmp_path / "k" / "kernel.npy").stat().st_mtime_ns == before
    capsys.readouterr()
    other = ["kernel", "wu2023", "--set", "num_samples=13", *SMALL, "--out", str(tmp_path / "k")]
    assert main(other) == 2
    assert "another kernel" in capsys.readouterr().err


def test_what_has_no_parts_is_refused(tmp_path, capsys):
    assert main(["kernel", "icl2025", "--out", str(tmp_path / "k")]) == 2
    assert "no samples" in capsys.readouterr().err
    assert not (tmp_path / "k").exists()
