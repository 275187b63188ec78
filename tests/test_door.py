"""The door: `import shoal as sh`, what it offers, and what it leaves alone."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
import toy_paper

TOY = Path(toy_paper.__file__)


def python(code, *arguments, **environment):
    """Run code in a process of its own, warnings as errors, and return what it prints as JSON."""
    plain = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, env=plain | environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -------------------------------------------------------------------------- what importing does


def test_importing_shoal_loads_nothing_heavy():
    loaded = python("import sys, json, shoal; print(json.dumps(sorted(sys.modules)))")
    heavy = {"jax", "jaxlib", "numpy", "matplotlib", "scipy", "polars", "plotly", "pydantic"}
    assert heavy & set(loaded) == set()
    assert "shoal.lab" not in loaded


def test_every_name_of_the_door_exists_and_is_listed():
    assert set(sh.__all__) == set(dir(sh))
    for name in sh.__all__:
        assert getattr(sh, name) is not None
    assert sh.papers.BUILT_IN
    assert "movement" in sh.probes.SENTENCES


def test_a_misspelt_name_names_the_nearest():
    with pytest.raises(AttributeError, match="no attribute 'trian'; did you mean 'train'"):
        sh.trian  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'qqqqqq'$"):
        sh.qqqqqq  # noqa: B018


AROUND = """
import json, os, signal, sys, threading
before = dict(os.environ)
handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}
import jax, jax.numpy as jnp
values = lambda: {k: repr(v) for k, v in jax.config.values.items()}
config = values()
import numpy as np
import shoal as sh
setup = sh.setup(sys.argv[1], seeds=range(3), width=4)
run = sh.train(setup, steps=5, probes=["movement", "kernel_lambda_min"])
found = sh.certify(run, "theorem_1")
repr(setup), repr(run), repr(found), run._repr_html_(), found._repr_html_()
x = jnp.linspace(0, 1, 5)
own = jax.jit(lambda x: jnp.sin(x) * 2)(x)
now = values()
print(json.dumps({
    "environment": {k: v for k, v in os.environ.items() if before.get(k) != v}
    | {k: None for k in before if k not in os.environ},
    "config": {k: now[k] for k in now if now[k] != config.get(k)},
    "handlers": all(signal.getsignal(n) is h for n, h in handlers.items()),
    "threads": threading.active_count(),
    "results": sorted({str(leaf.dtype) for leaf in jax.tree.leaves(
        (run.risk, run.probes, run.params, run.step_size, setup.params0))}),
    "kinds": sorted({type(leaf).__name__ for leaf in jax.tree.leaves(
        (run.risk, run.probes, run.params, run.step_size, run.step))}),
    "bounds": str(np.asarray(found[0].constants["lambda_min"]).dtype),
    "own": [str(own.dtype), str(x.dtype), str(jax.grad(lambda w: w**2)(3.0).dtype)],
}))
"""


def test_training_leaves_the_process_as_it_was():
    found = python(AROUND, TOY)
    assert found == {
        "environment": {},
        "config": {},
        "handlers": True,
        "threads": 1,
        "results": ["float64"],
        "kinds": ["ndarray"],
        "bounds": "float64",
        "own": ["float32"] * 3,
    }


def test_float64_that_the_user_switched_on_stays_on():
    code = AROUND.replace(
        "import numpy as np",
        "jax.config.update('jax_enable_x64', True); config = values()\nimport numpy as np",
        1,
    )
    found = python(code, TOY)
    assert found["own"] == ["float64"] * 3
    assert found["config"] == {}


# -------------------------------------------------------------------------------- sh.setup


X = np.random.default_rng(0).normal(size=(6, 3))
Y = np.linspace(-1.0, 1.0, 6)


def model(params, x):
    return jnp.tanh(x @ params["hidden"]["W"] + params["hidden"]["b"][None]) @ params["out"]


def init(key):
    import jax

    one, two = jax.random.split(key)
    hidden = {"W": jax.random.normal(one, (3, 4)), "b": jnp.zeros(4)}
    return {"hidden": hidden, "out": jax.random.normal(two, (4,)) / 2}


@pytest.fixture(scope="module")
def own():
    return sh.setup(model, init, X, Y, seeds=range(3))


@pytest.fixture(scope="module")
def toy():
    return sh.train(sh.setup(str(TOY), seeds=range(4)), step_size="theorem_1", probes="+distance")


def test_a_paper_is_named_by_key_file_class_or_itself():
    for target in (str(TOY), toy_paper.PAPER, toy_paper.Doe):
        made = sh.setup(target, width=3, seeds=[1, 2])
        assert (made.name, made.setting.width, made.seeds) == ("doe2024", 3, (1, 2))


def test_a_setting_class_without_a_paper_gets_one():
    class Lonely(toy_paper.Doe):
        """A setting that nobody registered."""

        paper = None

    assert sh.setup(Lonely).name == "lonely"


def test_files_are_keywords(tmp_path):
    np.savez(tmp_path / "p.npz", X=np.ones((3, 1, 5)), y=np.ones(3))
    assert sh.setup(toy_paper.Doe, data=tmp_path / "p.npz").setting.dim == 5
    np.savez(tmp_path / "w.npz", w=np.ones((2, 6)))
    made = sh.setup(toy_paper.Doe, params=tmp_path / "w.npz", precision="float32")
    assert (made.seeds, made.precision) == ((0, 1), "float32")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: sh.setup("doe2025"), "no paper is called 'doe2025'"),
        (lambda: sh.setup("wu2032"), "did you mean 'wu2023'"),
        (lambda: sh.setup("nowhere.py"), "there is no file 'nowhere.py'"),
        (lambda: sh.setup(toy_paper.Doe, wdith=3), "no setting 'wdith'; did you mean 'width'"),
        (lambda: sh.setup(toy_paper.Doe, 64), "settings are keywords"),
        (
            lambda: inspect.unwrap(sh.setup)(toy_paper.Doe, seeds=4),
            r"expected several, such as seeds=range\(4\)",
        ),
        (lambda: sh.setup(model, init, X), r"expected sh.setup\(f, params, x, y\), and 3 values"),
        (lambda: sh.setup(3), "cannot make a setup from int"),
        (lambda: sh.setup(model, init, X, Y, loss="square"), "did you mean 'squares'"),
        (lambda: sh.setup(model, init, X, Y, train="hiden.*"), "no parameter is called 'hiden"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_nearest(call, complaint):
    with pytest.raises(sh.InputError, match=complaint) as caught:
        call()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------- own models


def test_an_own_model_trains_is_certified_and_measured(own):
    run = sh.train(own, steps=20, probes=["movement", "kernel_distance", "sharpness@10"])
    assert run.risk.shape == (3, 21)
    assert (run.risk[:, -1] < run.risk[:, 0]).all()
    assert run.parts["movement"] == ("hidden.W", "hidden.b", "out")
    assert run.params["hidden"]["W"].shape == (3, 3, 4)
    assert np.isnan(run.probes["sharpness_value"][:, 5]).all()
    assert len(sh.certify(run, "kernel_regime")) == 3
    assert run.frame().columns[:3] == ["seed", "step", "risk"]
    assert run.frame().shape[0] == 3 * 21


def test_an_own_model_follows_plain_descent(own):
    import jax

    run = sh.train(own, steps=5, step_size=0.05)
    params = jax.tree.map(lambda W: jnp.asarray(W[1]), own.params0)
    for step in range(6):
        value, slope = jax.value_and_grad(lambda p: 0.5 * jnp.sum((model(p, X) - Y) ** 2))(params)
        assert run.risk[1, step] == pytest.approx(float(value), rel=1e-12)
        params = jax.tree.map(lambda W, g: W - 0.05 * g, params, slope)


def test_patterns_select_what_is_trained():
    made = sh.setup(model, init, X, Y, train="hidden.*")
    run = sh.train(made, steps=5)
    np.testing.assert_array_equal(run.params["out"], made.params0["out"])
    assert np.abs(run.params["hidden"]["b"]).max() > 0
    only = sh.train(sh.setup(model, init, X, Y, train="out"), steps=2, probes=["params"])
    assert list(only.probes) == ["params_out"]


def test_a_function_of_one_sample_is_lifted(own):
    def one(params, x):
        return jnp.tanh(x @ params["hidden"]["W"] + params["hidden"]["b"]) @ params["out"]

    lifted = sh.train(sh.setup(sh.per_sample(one), init, X, Y, seeds=range(3)), steps=5)
    batch = sh.train(own, steps=5)
    np.testing.assert_allclose(lifted.risk, batch.risk, rtol=1e-10)
    np.testing.assert_allclose(lifted.step_size, batch.step_size, rtol=1e-10)


def test_a_classifier_trains_without_a_tangent_kernel():
    def scores(W, x):
        return x @ W

    made = sh.setup(scores, np.zeros((3, 2)), X, (Y > 0).astype(float), loss="cross_entropy")
    run = sh.train(made, steps=10)
    assert run.risk[0, 0] == pytest.approx(np.log(2))
    assert run.risk[0, -1] < np.log(2)
    with pytest.raises(sh.InputError, match="kernel_regime needs"):
        sh.certify(run, "kernel_regime")


def test_a_theorem_about_an_own_model(own):
    def falls(setup, run):
        r"""The risk never rises, $L_{t+1} \le L_t$."""
        return sh.Certificate(
            hypotheses={"small step": sh.Inequality(setup.step_size, 1.0)},
            conclusions={"falls": sh.Inequality(run.risk[1:], run.risk[:-1])},
        )

    found = sh.certify(sh.train(own, steps=5), falls)
    assert found.verdicts == ["holds"] * 3
    assert "<math" in found._repr_html_()


# ------------------------------------------------------------------------ results print themselves


def test_results_print_themselves_as_the_command_line_does(toy):
    said = repr(toy)
    assert "doe2024" in said
    assert "largest that theorem_1 allows" in said
    assert all(word in said for word in ("seed", "first risk", "last risk"))
    found = repr(sh.certify(toy, "theorem_1"))
    assert "doe2024.theorem_1" in found
    assert "step: eta lambda_max <= 1" in found
    assert "Every hypothesis holds, and the run obeys every conclusion." in found
    assert "all 4 seeds: 4 holds" in found
    assert "violated" in repr(sh.certify(toy, "theorem_false"))
    assert "\x1b" not in said + found  # no colours
    made = repr(toy.setup)
    assert "Setup of doe2024, 4 seed" in made
    assert "w (6,)" in made


def test_notebooks_see_tables_and_formulas(toy):
    assert "<table>" in toy._repr_html_()
    found = sh.certify(toy, "theorem_1")._repr_html_()
    assert "<table>" in found
    assert "&lt;= 1" in found
    assert "<math" not in found  # its docstring has no formula

    def bounded(setup, run):
        r"""The risk stays below its start.

        $$L_t \le L_0$$ for every $t$ <of course>.
        """
        return sh.Certificate({}, {"b": sh.Inequality(run.risk, run.risk[0])})

    found = sh.certify(toy, bounded)._repr_html_()
    assert found.count("<math") == 2
    assert "$" not in found
    assert "&lt;of course&gt;" in found


def test_a_diverged_run_says_so():
    run = sh.train(sh.setup(toy_paper.Doe, seeds=range(2)), step_size=1e6, steps=40)
    assert "diverged" in repr(run)
    assert "2 of 2 seeds diverged" in repr(run)
    assert run._repr_html_()


# --------------------------------------------------------------------- save, load, draw, report


def same(one, other):
    np.testing.assert_array_equal(one.risk, other.risk)
    np.testing.assert_array_equal(one.step, other.step)
    assert set(one.probes) == set(other.probes)
    for name in one.probes:
        np.testing.assert_array_equal(one.probes[name], other.probes[name])
    assert one.parts == other.parts


def test_a_run_is_saved_and_loaded_whole(toy, tmp_path):
    toy.save(tmp_path / "run", [sh.certify(toy, "theorem_1")])
    back = sh.load(tmp_path / "run")
    same(toy, back)
    np.testing.assert_array_equal(back.params.w, toy.params.w)
    np.testing.assert_array_equal(back.step_size, toy.step_size)
    assert back.seeds == toy.seeds
    assert sh.certify(back, "theorem_1").verdicts == ["holds"] * 4
    assert "largest that theorem_1 allows" in repr(back)
    with pytest.raises(sh.InputError, match="exists already"):
        toy.save(tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["verdicts"] == {"theorem_1": ["holds"] * 4}
    (tmp_path / "run" / "params.npz").write_bytes(b"")
    with pytest.raises(sh.InputError, match="was changed after the run was saved"):
        sh.load(tmp_path / "run")


def test_a_run_of_an_own_model_needs_its_setup_to_be_loaded(own, tmp_path):
    run = sh.train(own, steps=4, probes=["movement", "kernel_eigenvalues"])
    run.save(tmp_path / "run")
    with pytest.raises(sh.InputError, match="give the setup that it came from"):
        sh.load(tmp_path / "run")
    back = sh.load(tmp_path / "run", own)
    same(run, back)
    np.testing.assert_array_equal(back.step_size, run.step_size)
    np.testing.assert_array_equal(back.params["hidden"]["W"], run.params["hidden"]["W"])
    again = sh.train(back.setup, probes=["movement"])
    np.testing.assert_array_equal(again.risk, run.risk)


def test_a_run_draws_itself(toy, tmp_path):
    figure = toy.figure("distance")
    assert [panel.title for panel in figure.panels] == ["risk", "distance"]
    toy.plot("distance", out=tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"


def test_a_report_is_one_page_that_needs_nothing_else(toy, own, tmp_path):
    page = sh.report(
        sh.certify(toy, "theorem_1"), sh.train(own, steps=4), out=tmp_path / "r.html", title="Both"
    )
    assert page == tmp_path / "r.html"
    text = page.read_text()
    assert "<title>Both" in text
    assert "doe2024.theorem_1" in text
    assert "proved bound" in text
    assert "J. Doe (2024)" in text
    for outside in ('src="http', "<link", "@import url"):
        assert outside not in text
    with pytest.raises(sh.InputError, match="cannot report on int"):
        sh.report(3)


def test_the_landscape_of_a_run_has_its_minimum_where_a_linear_model_ends(toy):
    found = sh.landscape(toy, points=5)
    assert found.planes[0].shape == (5, 5)
    assert found.planes[0][2, 2] == pytest.approx(toy.risk[0, -1], rel=1e-9)
    assert "hessian max" in repr(found)
    X = toy.setup.problem.X[:, 0]
    top = np.linalg.eigvalsh(X.T @ X)[-1]
    assert found.measures[0]["hessian_max"] == pytest.approx(top, rel=1e-9)


@pytest.mark.parametrize("directions", ["path", "pca"])
def test_the_landscape_of_an_own_model(own, directions):
    found = sh.landscape(sh.train(own, steps=20), directions=directions, points=5)
    assert np.isfinite(found.planes[0]).all()
    assert found.kind == directions
    with pytest.raises(sh.InputError, match="directions pth: did you mean 'path'"):
        sh.landscape(sh.train(own, steps=20), directions="pth")
