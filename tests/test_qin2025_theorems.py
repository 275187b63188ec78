"""Theorem D confronted with runs: holds, violated, not applicable, unresolved."""

import importlib.util
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.certificates import Verdict, readings, verdict
from shoal.cli import main
from shoal.experiments import allowed_step, certify, prepare, simulate, theorem_of
from shoal.papers import qin2025
from test_qin2025_reference import example_1

THEOREM = theorem_of(qin2025.PAPER, "theorem_d")
CERTIFIED = {
    "num_samples": 3,
    "num_tokens": 4,
    "width": 32,
    "token_scale": 32**-0.5,
    "scale_qk": 0.5,
    "scale_v": 0.3,
    "scale_1": 0.5,
    "scale_2": 0.3,
    "labels": "near",
    "num_steps": 20,
}


def confronted(values, change=lambda run: run, **words):
    experiment = prepare(qin2025.PAPER, CERTIFIED | values, **words)
    step = allowed_step(experiment, THEOREM)
    setting = experiment.setting
    if setting.step_size is None:
        setting = setting._replace(step_size=1e-3 if step is None else step)
    experiment = experiment._replace(setting=setting)
    (found,) = certify(experiment, THEOREM, change(simulate(experiment, THEOREM.probes)))
    return found


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_with_residuals_it_holds_up_to_the_largest_residual(num_layers):
    found = confronted({"num_layers": num_layers, "near_seed": 2}, seeds=(2,))
    assert verdict(found) == Verdict.HOLDS
    c = {name: float(value) for name, value in found.constants.items()}
    np.testing.assert_allclose(c["|r_0|"], c["r_max"], rtol=1e-5)
    assert c["worst measured factor"] <= c["factor"] < 1
    # the sizes that were measured before this code existed (theirs: a = 1, b = 1/2, half of r_max)
    low, high = {1: (1.4e-3, 2.0e-3), 2: (2.5e-4, 4.4e-4), 3: (0.6e-4, 1.1e-4)}[num_layers]
    assert low / 2 < c["r_max"] / 2 < 2 * high


@pytest.mark.parametrize("num_layers", [2, 3])
def test_without_residuals_it_does_not_apply_to_depth(num_layers):
    found = confronted({"num_layers": num_layers, "residual": "none"})
    assert verdict(found) == Verdict.NOT_APPLICABLE
    assert float(found.constants["r_max"]) < 1e-12


def test_without_residuals_one_layer_is_below_float64():
    found = confronted({"residual": "none"})
    assert verdict(found) == Verdict.UNRESOLVED
    assert 0 < float(found.constants["r_max"]) < 1e-6


def test_a_residual_above_the_largest_is_not_covered():
    top = float(confronted({}).constants["r_max"])
    assert verdict(confronted({"near_error": 1.01 * top})) == Verdict.NOT_APPLICABLE
    assert verdict(confronted({"near_error": 0.5 * top})) == Verdict.HOLDS


def test_a_tampered_run_is_violated():
    def slower(run):
        return run._replace(risk=run.risk.at[:, 10].set(run.risk[:, 9]))

    def farther(run):
        return run._replace(probes={"distance": run.probes["distance"] + 1.0})

    def risen(run):
        return run._replace(risk=run.risk * jnp.arange(1.0, 22.0)[None])

    for change in (slower, farther, risen):
        assert verdict(confronted({}, change)) == Verdict.VIOLATED


def test_longer_steps_are_not_covered():
    limit = float(confronted({}).constants["largest step"])
    assert verdict(confronted({"step_size": 1.01 * limit})) == Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"activation": "relu"}, "activation"),
        ({"train": "W_1,W_2,W_U"}, "all blocks move"),
        ({"num_samples": 10, "route": "layers"}, "labels=teacher"),
    ],
)
def test_it_says_why_it_does_not_apply(values, said):
    found = confronted(values)
    assert verdict(found) == Verdict.NOT_APPLICABLE
    failed = [line.name for line in readings(found)[0] if line.holds is False]
    assert any(said in name for name in failed)


def test_the_kernel_route_lives_where_the_layer_route_is_void():
    found = confronted({"num_samples": 10, "route": "kernel", "num_steps": 5})
    assert float(found.constants["r_max"]) > 0
    assert verdict(found) in (Verdict.HOLDS, Verdict.UNRESOLVED)
    assert float(found.constants["route through W_U at the start"]) == 0


def test_the_worked_example_through_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights, X = example_1()
    F = np.array([[[4.680227902], [2.720098372]]])  # printed with ten digits: r_0 to 1e-8
    np.savez("p.npz", X=X, Y=F - np.array([[[0.006], [0.008]]]))
    blocks = {
        name: np.stack([block[name] for block in weights.blocks]) for name in weights.blocks[0]
    }
    np.savez("w.npz", **blocks, W_U=weights.W_U)
    words = "--data p.npz --params w.npz --steps 10 --set route=layers --set bounds=basic"
    quarter = "--set contraction=quarter --out c"
    assert main(f"certify qin2025.theorem_d {words} {quarter}".split()) == 0
    assert "holds" in capsys.readouterr().out
    ((found,),) = [c["results"] for c in json.loads(Path("c/certificates.json").read_text())]
    printed = {
        "r_max": 0.01031652159,
        "radius": 0.03493619185,
        "alpha": 1.14494448,
        "beta": 32.63376601,
        "L_J": 241.2788232,
        "largest step": 0.0009390000374,
        "factor": 0.9996922667,
    }
    for name, value in printed.items():
        np.testing.assert_allclose(found["constants"][name], value, rtol=1e-6)


def test_layer_norm_is_not_spoken_of(capsys):
    assert main(["certify", "qin2025.theorem_d", "--set", "norm=true", "--steps", "2"]) == 2
    assert "does not speak of this model" in capsys.readouterr().err


def test_the_kernel_predicts_a_run():
    theorem = theorem_of(qin2025.PAPER, "kernel_regime")
    experiment = prepare(qin2025.PAPER, CERTIFIED | {"near_error": 1e-3, "step_size": 0.05})
    run = simulate(experiment, theorem.probes)
    (found,) = certify(experiment, theorem, run)
    assert verdict(found) == Verdict.HOLDS


def test_theorem_d0_speaks_of_every_paper():
    path = Path(__file__).parents[1] / "examples" / "certify_any_model.py"
    spec = importlib.util.spec_from_file_location("certify_any_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, (paper, values, lipschitz) in module.CASES.items():
        values = values | ({"num_heads": 1024} if "num_heads" in values else {})
        found = module.certify(paper, values, lipschitz, num_steps=10)
        assert verdict(found) == Verdict.HOLDS, name
        bent = module.certify(paper, values, lambda *_: lambda __: 1e6, num_steps=10)
        assert verdict(bent) == Verdict.NOT_APPLICABLE, name
