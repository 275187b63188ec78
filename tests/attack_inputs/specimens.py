"""One honest file or folder of every kind that shoal reads; the attack damages copies of them."""

import contextlib
import io
import shutil
from pathlib import Path

import numpy as np

TOY = Path(__file__).parents[1] / "toy_paper.py"
SMALL = {
    "wu2023": ("num_samples=3", "num_tokens=2", "dim=4", "width=6"),
    "song2024": ("num_samples=3", "num_tokens=2", "dim=4", "num_heads=1", "key_dim=2"),
    "arda2026": ("num_samples=3", "num_tokens=2", "dim=4", "num_heads=4"),
    "qin2025": ("num_samples=2", "num_tokens=2", "dim=4", "width=5", "key_dim=2"),
    "icl2025": ("num_samples=3", "dim=2", "context=3", "num_heads=2"),
}
MODEL = """
import jax.numpy as jnp
import numpy as np
import shoal as sh

def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]

def model(width=3, scale=1.0):
    rng = np.random.default_rng(0)
    params = {"a": scale * rng.standard_normal((2, width)), "b": rng.standard_normal(width)}
    return sh.setup(f, params, rng.standard_normal((4, 2)), rng.standard_normal(4))

def line():
    return sh.setup(lambda w, x: x @ w, np.ones(3), np.eye(3), np.arange(3.0))
"""
SWEEP = """paper = "wu2023"
seeds = "0-1"
probes = ["movement"]
certify = ["kernel_regime"]

[set]
num_samples = 3
num_tokens = 2
dim = 4
num_steps = 2

[axes]
width = [4, 6]
score_exponent = { from = 0.25, to = 1.0, count = 2 }

[derived]
hidden_step_ratio = "1 / width"

[budget]
runs = 50
hours = 1
"""


def settings(paper: str) -> list[str]:
    """Words that make a paper's model small."""
    return [word for value in SMALL[paper] for word in ("--set", value)]


def files(folder: Path) -> dict[str, Path]:
    """The specimens that are texts."""
    shutil.copy(TOY, folder / "toy.py")
    (folder / "own.py").write_text(MODEL)
    (folder / "grid.toml").write_text(SWEEP)
    return {
        "toy": folder / "toy.py",
        "model": folder / "own.py",
        "sweep file": folder / "grid.toml",
    }


def make(folder: Path) -> dict[str, Path]:
    """Make the specimens with shoal's own commands; by kind."""
    from shoal.cli import main

    def run(*words: object) -> str:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in words])
        assert code == 0, (words, err.getvalue())
        return out.getvalue()

    folder.mkdir(parents=True)
    found = files(folder)
    for paper in SMALL:
        found[f"run {paper}"] = folder / paper
        run("train", paper, *settings(paper), "--steps", 2, "--out", folder / paper)
    found["run own"] = folder / "own"
    run("train", f"{found['model']}:model", "--steps", 3, "--out", folder / "own")
    found["proof"] = folder / "proof.json"
    run("prove", f"{found['model']}:line", "--steps", 20, "--out", found["proof"])
    found["certificate"] = folder / "certificate.json"
    words = ("certify", "wu2023.theorem_a", *settings("wu2023"), "--steps", 2, "--json")
    found["certificate"].write_text(run(*words))
    found["sweep"] = folder / "grid-sweep"
    run("sweep", found["sweep file"], "--out", found["sweep"])
    found["figures"] = folder / "landscape"
    run("landscape", folder / "wu2023", "--points", 5, "--out", found["figures"])
    found["ledger"] = folder / "ledger"
    run("claims", "freeze", found["toy"], "--ledger", found["ledger"])
    run("claims", found["toy"], "--until-decided", "--seeds", 8, "--ledger", found["ledger"])
    found["log"] = _log(folder / "log")
    _arrays(folder, found)
    return found


def _log(folder: Path) -> Path:
    import shoal as sh

    setup = sh.setup(lambda w, x: x @ w, np.ones(3), np.eye(4, 3), np.ones(4))
    watch = sh.watch(setup, every=1, out=folder, method="gd", step_size=0.1, probes=[])
    for step in range(6):
        watch(step, np.ones(3) * 0.9**step)
    return folder


def _arrays(folder: Path, found: dict[str, Path]) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    found["data"] = folder / "data.npz"
    np.savez(found["data"], X=rng.standard_normal((3, 2, 4)), y=rng.standard_normal(3))
    with np.load(folder / "wu2023" / "params0.npz") as archive:
        weights = {name: array[0] for name, array in archive.items()}
    found["weights"] = folder / "weights.npz"
    np.savez(found["weights"], **weights)
    found["safetensors"] = folder / "weights.safetensors"
    save_file(weights, found["safetensors"])
