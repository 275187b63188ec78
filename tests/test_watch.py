"""Loops that shoal does not run: what is recorded, kept after a kill, and made of a log."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
import pytest

import five_models
import shoal as sh
from shoal.cli import main
from shoal.disk import logs


def loop(setup, watch, steps, step_size=0.1):
    """Gradient descent by optax, with somebody else's loop."""
    params = setup.one().params0
    rule = optax.sgd(step_size)
    state = rule.init(params)
    model, (x, y) = five_models.plain()[0], five_models.data()
    gradient = jax.jit(jax.grad(lambda p: 0.5 * jnp.sum((model(p, x) - y) ** 2)))
    for step in range(steps + 1):
        watch(step, params)
        update, state = rule.update(gradient(params), state)
        params = optax.apply_updates(params, update)


@pytest.fixture
def setup():
    return sh.setup(*five_models.plain(), *five_models.data())


def test_a_watched_loop_is_the_run_that_shoal_would_have_made(setup, tmp_path):
    out = tmp_path / "log"
    watch = sh.watch(setup, every=5, out=out, method="gd", step_size=0.1)
    loop(setup, watch, 20)
    seen = sh.load(out, setup)
    own = sh.train(setup, steps=20, every=5, step_size=0.1, probes=["gradient_norm", "movement"])
    np.testing.assert_allclose(seen.risk, own.risk, rtol=1e-10)
    assert seen.step.tolist() == own.step.tolist()
    assert set(seen.probes) == set(own.probes)
    for name, values in own.probes.items():
        np.testing.assert_allclose(seen.probes[name], values, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(seen.params["q"], own.params["q"], rtol=1e-10)


def test_a_log_is_certified(setup, tmp_path):
    watch = sh.watch(
        setup,
        every=1,
        out=tmp_path / "log",
        method="gd",
        step_size=0.01,
        probes=["kernel_distance"],
    )
    loop(setup, watch, 20, step_size=0.01)
    found = sh.certify(sh.load(tmp_path / "log", setup), "kernel_regime")
    own = sh.train(setup, steps=20, step_size=0.01, probes=["kernel_distance"])
    assert found.verdict == sh.certify(own, "kernel_regime").verdict


def test_a_log_of_an_unknown_method_is_not_certified(setup, tmp_path):
    loop(setup, sh.watch(setup, every=1, out=tmp_path / "log", probes=["kernel_distance"]), 3)
    with pytest.raises(sh.InputError, match="is about method=gd"):
        sh.certify(sh.load(tmp_path / "log", setup), "kernel_regime")


def test_many_records_are_gathered_and_other_tools_read_them(setup, tmp_path):
    watch = sh.watch(setup, every=1, out=tmp_path / "log", probes=[])
    loop(setup, watch, 2 * logs.TOGETHER)
    assert len(list((tmp_path / "log" / "records").iterdir())) < logs.TOGETHER
    table = pl.concat(pl.read_parquet(p) for p in (tmp_path / "log" / "records").iterdir())
    assert sorted(table["step"].to_list()) == list(range(2 * logs.TOGETHER + 1))


def test_steps_between_cost_nothing(setup, tmp_path):
    watch = sh.watch(setup, every=100, out=tmp_path / "log")
    watch(0, setup.one().params0)
    watch(50, "not even looked at")
    assert len(logs.records(tmp_path / "log")) == 1


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w, p: w(0, p), "steps should grow"),
        (lambda w, p: w(100, {"q": p["q"]}), "block 'k' has shape"),
        (lambda w, p: w(100, p | {"q": p["q"].T}), r"block 'q' has shape \(6, 3\)"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(setup, tmp_path, call, complaint):
    watch = sh.watch(setup, every=100, out=tmp_path / "log", probes=[])
    watch(0, setup.one().params0)
    with pytest.raises(sh.InputError, match=complaint):
        call(watch, setup.one().params0)


def test_a_folder_that_exists_is_not_written_into(setup, tmp_path):
    with pytest.raises(sh.InputError, match="exists already"):
        sh.watch(setup, out=tmp_path)


def test_a_kill_keeps_what_was_recorded(setup, tmp_path):
    code = """
        import os, signal, sys
        sys.path.insert(0, TESTS)
        import five_models, shoal as sh, test_watch
        setup = sh.setup(*five_models.plain(), *five_models.data())
        watch = sh.watch(setup, every=1, out="log", probes=[])
        def until(step, params):
            if step == 7:
                os.kill(os.getpid(), signal.SIGKILL)
            watch(step, params)
        test_watch.loop(setup, until, 20)
    """.replace("TESTS", repr(os.path.dirname(__file__)))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert sh.load(tmp_path / "log", setup).step.tolist() == list(range(7))


def test_a_pytorch_loop_is_watched(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (module,) = five_models.torch_module()
    x, y = five_models.data()
    setup = sh.setup(module, x, y)
    watch = sh.watch(setup, every=5, out=tmp_path / "log", method="gd", step_size=0.1)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(11):
        watch(step, module)
        optimiser.zero_grad()
        loss = 0.5 * ((module(torch.as_tensor(x)) - torch.as_tensor(y)) ** 2).sum()
        loss.backward()
        optimiser.step()
    own = sh.train(setup, steps=10, every=5, step_size=0.1, probes=[])
    np.testing.assert_allclose(sh.load(tmp_path / "log", setup).risk, own.risk, rtol=1e-10)


def test_a_log_is_diagnosed_and_reported(setup, tmp_path, capsys):
    loop(setup, sh.watch(setup, every=5, out=tmp_path / "log", method="gd", step_size=0.1), 40)
    found = sh.diagnose(sh.load(tmp_path / "log", setup), trials=False)
    assert found.verdict in ("converging", "slow", "at the floor")
    assert main(["diagnose", str(tmp_path / "log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] in ("converging", "slow")
    assert main(["report", str(tmp_path / "log"), "--out", str(tmp_path / "page.html")]) == 0
    assert "gradient norm" in (tmp_path / "page.html").read_text()
