"""The examples run as they stand, and show what they say."""

import re
import runpy
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Run an example with its files under ``tmp_path``; what it printed, and its names."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(name):
        names = runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out, names

    return run


def test_every_example_is_tested():
    tested = set(re.findall(r'told\("(\w+)"\)', Path(__file__).read_text()))
    assert {path.stem for path in FOLDER.glob("*.py")} == tested


def test_a_first_certificate_is_kept_and_loaded(told, tmp_path):
    text, names = told("first_certificate")
    assert names["certificate"].verdict == "holds"
    assert "the loaded run: holds" in text
    assert "hypothesis" in text
    (folder,) = (path.parent for path in tmp_path.rglob("run.png"))
    assert (folder / "run" / "run.json").is_file()


def test_an_own_probe_is_recorded_like_any_other(told):
    text, names = told("write_your_own_probe")
    run = names["run"]
    assert run.probes["self_attention"].shape == run.risk.shape
    assert ((run.probes["self_attention"] > 0) & (run.probes["self_attention"] < 1)).all()
    assert {"self_attention", "attention_entropy"} <= set(run.frame().columns)
    assert "uniform is 0.25" in text


@pytest.mark.slow
def test_any_model_can_be_certified(told):
    text, _ = told("certify_any_model")
    verdicts = re.findall(r"^(\S.*): (.*)$", text, re.MULTILINE)
    assert [name.split(",")[0] for name, _ in verdicts] == [
        "your network", "wu2023", "song2024", "arda2026",
    ]  # fmt: skip
    assert {verdict for _, verdict in verdicts} == {"holds"}


@pytest.mark.slow
def test_an_own_model_is_trained_and_shown(told, tmp_path):
    text, names = told("own_jax")
    run = names["run"]
    assert (run.risk[:, -1] < 0.3 * run.risk[:, 0]).all()
    assert run.parts["movement"] == ("attention.query", "embed", "readout")
    (page,) = tmp_path.rglob("report.html")
    assert "A classifier of sequences" in page.read_text()
    assert str(page) in text


@pytest.mark.slow
def test_a_pytorch_layer_is_trained_and_gets_its_weights_back(told):
    pytest.importorskip("torch", reason="torch is not installed")
    text, names = told("own_torch")
    said = float(text.rsplit(":", 1)[1])
    assert said == pytest.approx(names["run"].risk[0, -1], rel=1e-4)


@pytest.mark.slow
def test_a_flax_module_is_trained_by_optax(told):
    pytest.importorskip("flax", reason="flax is not installed")
    text, names = told("own_flax")
    assert names["run"].risk[0, -1] < 0.1 * names["run"].risk[0, 0]
    assert "outputs (10,)" in text


@pytest.mark.slow
def test_an_equinox_module_is_certified(told):
    pytest.importorskip("equinox", reason="equinox is not installed")
    text, _ = told("own_equinox")
    assert "kernel_regime" in text


@pytest.mark.slow
def test_the_stalling_layer_is_found_out(told):
    pytest.importorskip("torch", reason="torch is not installed")
    text, names = told("stalling_layer")
    first = names["found"].causes[0]
    assert first.key == "saturated_attention"
    assert first.trial.factor > 3
    assert "looks at one token only" in text
