"""Own models: a function, or a module of Flax, Equinox or PyTorch; and what is refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import five_models
import shoal as sh
from shoal.cli import main


def made(name):
    make, needs = five_models.MODELS[name]
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed")
    return sh.setup(*make(), *five_models.data())


@pytest.mark.parametrize("name", five_models.MODELS)
def test_one_model_in_five_forms_has_one_trajectory(name):
    run = sh.train(made(name), steps=200, step_size=0.1, probes=[])
    expected = sh.train(made("jax"), steps=200, step_size=0.1, probes=[])
    np.testing.assert_allclose(run.risk, expected.risk, rtol=1e-10)
    assert expected.risk[0, -1] < 0.1 * expected.risk[0, 0]


def test_weights_of_a_flax_module_come_back_into_it():
    pytest.importorskip("flax", reason="flax is not installed")
    x, _ = five_models.data()
    run = sh.train(made("nnx"), steps=3, step_size=0.1, probes=[])
    module = run.state_dict()
    plain, _ = five_models.plain()
    expected = sh.train(made("jax"), steps=3, step_size=0.1, probes=[]).state_dict()
    np.testing.assert_allclose(module(x), plain(expected, x), rtol=1e-10)


def test_weights_of_an_equinox_module_come_back_into_it():
    pytest.importorskip("equinox", reason="equinox is not installed")
    x, _ = five_models.data()
    module = sh.train(made("equinox"), steps=3, step_size=0.1, probes=[]).state_dict()
    plain, _ = five_models.plain()
    expected = sh.train(made("jax"), steps=3, step_size=0.1, probes=[]).state_dict()
    np.testing.assert_allclose(jax.vmap(module)(x), plain(expected, x), rtol=1e-10)


def test_any_optax_transformation_trains_an_own_model():
    run = sh.train(made("jax"), steps=50, method=optax.adamw(1e-2), probes=["gradient_norm"])
    assert run.risk[0, -1] < run.risk[0, 0]
    assert "gradient_norm_q" in run.probes


def test_seeds_draw_weights_by_init():
    model, _ = five_models.plain()

    def init(key):
        keys = dict(zip("qkvo", jax.random.split(key, 4), strict=True))
        return {k: jax.random.normal(keys[k], W.shape) for k, W in five_models.weights().items()}

    setup = sh.setup(model, init, *five_models.data(), seeds=[3, 7])
    run = sh.train(setup, steps=2, step_size=1e-3, probes=[])
    alone = sh.train(sh.setup(model, init, *five_models.data(), seeds=[7]), steps=2, step_size=1e-3)
    assert run.seeds == (3, 7)
    np.testing.assert_allclose(run.risk[1], alone.risk[0], rtol=1e-12)


def test_inputs_may_be_several_arrays_and_whole_numbers():
    def model(params, x):
        return params["table"][x["ids"]].mean(1) @ params["w"] + x["extra"]

    params = {"table": np.ones((7, 3)), "w": np.ones(3)}
    ids = np.arange(12).reshape(4, 3) % 7
    setup = sh.setup(model, params, {"ids": ids, "extra": np.zeros(4)}, np.zeros(4))
    assert sh.train(setup, steps=1, step_size=1e-3).risk[0, 0] == pytest.approx(0.5 * 4 * 9)


# -------------------------------------------------------------------------------- weights in files


def test_weights_come_from_npz_and_safetensors(tmp_path):
    from safetensors.numpy import save_file

    model, weights = five_models.plain()
    np.savez(tmp_path / "w.npz", **weights)
    save_file(weights, tmp_path / "w.safetensors")
    expected = sh.setup(model, weights, *five_models.data()).params0
    for name in ("w.npz", "w.safetensors"):
        found = sh.setup(model, tmp_path / name, *five_models.data()).params0
        assert all(np.array_equal(found[k], expected[k]) for k in expected)


def test_a_pickle_is_not_opened(tmp_path):
    import pickle

    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "opened"), "w"))

    (tmp_path / "w.pt").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(sh.InputError, match=r"holds a pickle, which can run any code"):
        sh.setup(five_models.plain()[0], tmp_path / "w.pt", *five_models.data())
    assert not (tmp_path / "opened").exists()


# ------------------------------------------------------------------------------------- bad input

MODEL, GOOD = five_models.plain()
X, Y = five_models.data()
COUNT = {"calls": 0}


def counting(params, x):
    COUNT["calls"] += 1
    return x[:, 0] @ params["v"][:, 0] + COUNT["calls"]


def spoiling(params, x):
    params["more"] = 1.0
    return x[:, 0, 0]


def changed(**blocks):
    return GOOD | blocks


class NoArray:
    pass


def raises(params, x):
    raise RuntimeError("the user's own words")


BAD = {
    "f is no function": (3, GOOD, X, Y, {}, "cannot make a setup from int"),
    "too few values": ((MODEL, GOOD, X), "expected sh.setup"),
    "too many values": ((MODEL, GOOD, X, Y, Y), "expected sh.setup"),
    "no weights": (MODEL, {}, X, Y, {}, "no arrays"),
    "empty list of weights": (MODEL, [], X, Y, {}, "no arrays"),
    "weights None": (MODEL, None, X, Y, {}, "no arrays"),
    "whole-number weights": (MODEL, changed(q=np.ones((6, 3), int)), X, Y, {}, "'q' of int64"),
    "yes-or-no weights": (MODEL, changed(q=np.ones((6, 3), bool)), X, Y, {}, "'q' of bool"),
    "complex weights": (MODEL, changed(q=np.ones((6, 3), complex)), X, Y, {}, "of complex128"),
    "words as weights": (MODEL, changed(q="seven"), X, Y, {}, "expected real numbers"),
    "objects as weights": (MODEL, changed(q=NoArray()), X, Y, {}, "of NoArray"),
    "NaN in weights": (MODEL, changed(q=np.full((6, 3), np.nan)), X, Y, {}, "holds NaN"),
    "infinite weights": (MODEL, changed(o=np.full((6, 1), np.inf)), X, Y, {}, "holds NaN or inf"),
    "empty block": (MODEL, changed(q=np.ones((0, 3))), X, Y, {}, "empty block 'q'"),
    "block missing": (MODEL, {"q": GOOD["q"]}, X, Y, {}, "KeyError"),
    "block of another shape": (MODEL, changed(q=np.ones((5, 3))), X, Y, {}, "fails"),
    "no file of weights": (MODEL, "nowhere.npz", X, Y, {}, "there is no file"),
    "x None": (MODEL, GOOD, None, Y, {}, "x holds no arrays"),
    "x empty": (MODEL, GOOD, {}, Y, {}, "x holds no arrays"),
    "x of words": (MODEL, GOOD, np.array(["a"] * 5), Y, {}, "x holds <U1"),
    "x of objects": (MODEL, GOOD, np.array([None] * 5), Y, {}, "x holds object"),
    "x ragged": (MODEL, GOOD, [[1.0], [1.0, 2.0]], Y, {}, "x is not an array"),
    "x complex": (MODEL, GOOD, X * 1j, Y, {}, "x holds complex128"),
    "x a number": (MODEL, GOOD, 3.0, Y, {}, "leading axis of at least one sample"),
    "x without samples": (MODEL, GOOD, X[:0], Y[:0], {}, "leading axis of at least one sample"),
    "NaN in x": (MODEL, GOOD, X * np.nan, Y, {}, "x holds NaN"),
    "NaN in y": (MODEL, GOOD, X, Y * np.nan, {}, "y holds NaN"),
    "infinite y": (MODEL, GOOD, X, Y * np.inf, {}, "y holds NaN or infinity"),
    "y None": (MODEL, GOOD, X, None, {}, "y holds no arrays"),
    "y a tuple": (MODEL, GOOD, X, (Y, Y), {}, "y is a tuple"),
    "y of words": (MODEL, GOOD, X, np.array(["a"] * 5), {}, "y holds <U1"),
    "y too short": (MODEL, GOOD, X, Y[:3], {}, "leading axes of length"),
    "y a column": (MODEL, GOOD, X, Y[:, None], {}, "expects y of shape"),
    "parts of x differ": (MODEL, GOOD, (X, X[:2]), Y, {}, "leading axes of length"),
    "x of other width": (MODEL, GOOD, X[..., :4], Y, {}, "fails"),
    "outputs a tuple": (lambda p, x: (x, x), GOOD, X, Y, {}, "returns a tuple"),
    "outputs a dict": (lambda p, x: {"a": x}, GOOD, X, Y, {}, "returns a dict"),
    "outputs None": (lambda p, x: None, GOOD, X, Y, {}, "returns a NoneType"),
    "outputs a word": (lambda p, x: "no", GOOD, X, Y, {}, "fails"),
    "outputs whole numbers": (lambda p, x: jnp.ones(5, int), GOOD, X, Y, {}, "returns int"),
    "outputs one number": (lambda p, x: jnp.sum(x), GOOD, X, Y, {}, "leading axis of 5 samples"),
    "outputs for one sample": (lambda p, x: x[0, :, 0], GOOD, X, Y, {}, "per_sample"),
    "outputs NaN": (lambda p, x: jnp.log(-x[:, 0, 0] ** 2), GOOD, X, Y, {}, "is NaN or infinite"),
    "numpy inside": (lambda p, x: np.tanh(np.asarray(x))[:, 0, 0], GOOD, X, Y, {}, "jax.numpy"),
    "if inside": (lambda p, x: x[:, 0, 0] if x.sum() > 0 else -x[:, 0, 0], GOOD, X, Y, {}, "jnp.w"),
    "an exception inside": (raises, GOOD, X, Y, {}, "the user's own words"),
    "its line is named": (raises, GOOD, X, Y, {}, "in test_own_models.py, line"),
    "randomness inside": (
        lambda p, x: x[:, 0, 0] + np.random.rand(5), GOOD, X, Y, {}, "another function each time"  # noqa: NPY002
    ),
    "a counter inside": (counting, GOOD, X, Y, {}, "another function each time"),
    "changes its arguments": (spoiling, GOOD, X, Y, {}, "changes its arguments"),
    "too few arguments": (lambda p: p, GOOD, X, Y, {}, "positional argument"),
    "loss unknown": (MODEL, GOOD, X, Y, {"loss": "square"}, "no loss is called 'square'"),
    "loss of another kind": (MODEL, GOOD, X, Y, {"loss": 3}, "no loss is called 3"),
    "loss of many numbers": (MODEL, GOOD, X, Y, {"loss": lambda f, y: f - y}, "expected one"),
    "loss of whole numbers": (MODEL, GOOD, X, Y, {"loss": lambda f, y: 1}, "expected one"),
    "loss that fails": (MODEL, GOOD, X, Y, {"loss": lambda f, y: f @ jnp.ones(3)}, "fails"),
    "classes for one output": (MODEL, GOOD, X, Y, {"loss": "cross_entropy"}, "(samples, classes)"),
    "classes out of range": (
        lambda p, x: x[:, 0], GOOD, X, np.full(5, 6), {"loss": "cross_entropy"}, "classes 0 to 5"
    ),
    "classes between": (
        lambda p, x: x[:, 0], GOOD, X, np.full(5, 0.5), {"loss": "cross_entropy"}, "classes 0 to 5"
    ),
    "labels not signs": (MODEL, GOOD, X, Y, {"loss": "logistic"}, "labels -1 and 1"),
    "train unknown": (MODEL, GOOD, X, Y, {"train": "w*"}, "no parameter is called 'w*'"),
    "seeds with weights": (MODEL, GOOD, X, Y, {"seeds": range(3)}, "so there is one run"),
    "seeds a number": (MODEL, GOOD, X, Y, {"seeds": 3}, "expected several"),
    "no seeds": (MODEL, lambda key: GOOD, X, Y, {"seeds": []}, "seeds is empty"),
    "init fails": (MODEL, lambda key: 1 / 0, X, Y, {}, "init(key) fails"),
    "init returns nothing": (MODEL, lambda key: {}, X, Y, {}, "no arrays"),
    "precision unknown": (MODEL, GOOD, X, Y, {"precision": "half"}, "expected float64 or float32"),
    "option misspelt": (MODEL, GOOD, X, Y, {"los": "squares"}, "'loss'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_a_sentence(name):
    *values, complaint = BAD[name]
    options = values.pop() if len(values) == 5 else {}
    values = values[0] if len(values) == 1 else values
    with pytest.raises(sh.InputError) as told:
        sh.setup(*values, **options)
    assert complaint in str(told.value)
    assert "\n" not in str(told.value)


BAD_TRAINING = {
    "negative steps": ({"steps": -1}, "steps"),
    "steps between": ({"steps": 1.5}, "steps"),
    "every zero": ({"every": 0}, "every"),
    "step NaN": ({"step_size": np.nan}, "step_size"),
    "step zero": ({"step_size": 0.0}, "step_size"),
    "step a list of another length": ({"step_size": [0.1, 0.2]}, "step_size"),
    "method unknown": ({"method": "sdg"}, "no method is called 'sdg'"),
    "probe unknown": ({"probes": ["sharpnes"]}, "no probe 'sharpnes'"),
    "theorem unknown": ({"step_size": "theorem_a"}, "no theorem 'theorem_a'"),
}


@pytest.mark.parametrize("name", BAD_TRAINING)
def test_bad_training_gets_a_sentence(name):
    options, complaint = BAD_TRAINING[name]
    setup = sh.setup(MODEL, GOOD, X, Y)
    with pytest.raises(sh.InputError, match=complaint):
        sh.train(setup, **({"steps": 2} | options))


# ------------------------------------------------------------------------------ kernels and insides


def test_the_kernel_of_any_model_is_that_of_its_jacobian():
    setup = made("jax")
    one = setup.one()
    J = jax.jacrev(lambda p: MODEL(p, X))(one.params0)
    flat = np.concatenate([np.reshape(j, (len(Y), -1)) for j in jax.tree.leaves(J)], axis=1)
    np.testing.assert_allclose(one.kernel()(one.params0), flat @ flat.T, rtol=1e-12)


def test_a_model_that_couples_its_samples_is_noticed():
    def normalised(params, x):
        h = x[:, 0] @ params["v"]
        return ((h - h.mean(0, keepdims=True)) @ params["o"])[:, 0]

    setup = sh.setup(normalised, GOOD, X, Y)
    assert setup.setting.coupled
    assert not made("jax").setting.coupled
    one = setup.one()
    J = jax.jacrev(lambda p: normalised(p, X))(one.params0)
    flat = np.concatenate([np.reshape(j, (len(Y), -1)) for j in jax.tree.leaves(J)], axis=1)
    np.testing.assert_allclose(one.kernel()(one.params0), flat @ flat.T, rtol=1e-10)


def test_what_is_inside_a_model_is_found():
    def block(params, h):
        scores = h @ params["q"] @ jnp.swapaxes(h @ params["k"], 1, 2)
        h = h + jax.nn.softmax(scores, axis=-1) @ (h @ params["v"])
        return h + jax.nn.relu(h @ params["in"]) @ params["out"]

    def model(params, x):
        for one in params["layers"]:
            x = block(one, x)
        return x.mean((1, 2))

    rng = np.random.default_rng(0)
    shapes = {"q": (6, 3), "k": (6, 3), "v": (6, 6), "in": (6, 8), "out": (8, 6)}
    layers = [{k: 0.3 * rng.standard_normal(s) for k, s in shapes.items()} for _ in range(2)]
    layers[1]["q"] *= 1e4  # saturated
    layers[0]["in"] = np.abs(layers[0]["in"])
    layers[0]["in"][:, :4] = 0.0  # half of the units are dead
    setup = sh.setup(model, {"layers": layers}, X, Y)
    names = ["attention_entropy", "attention_largest", "dead_units", "token_cosine"]
    run = sh.train(setup, steps=0, step_size=0.1, probes=names)
    entropies = [v[0, 0] for k, v in run.probes.items() if k.startswith("attention_entropy")]
    assert len(entropies) == 2
    assert entropies[0] > 0.5
    assert entropies[1] < 0.05
    dead = [v[0, 0] for k, v in run.probes.items() if k.startswith("dead_units")]
    assert dead[0] == pytest.approx(0.5)
    cosines = [v[0, 0] for k, v in run.probes.items() if k.startswith("token_cosine")]
    assert len(cosines) == 6  # two attended, four residual sums

    h = X
    expected = []
    for one in layers:
        scores = h @ one["q"] @ np.swapaxes(h @ one["k"], 1, 2)
        A = np.exp(scores - scores.max(-1, keepdims=True))
        A /= A.sum(-1, keepdims=True)
        expected.append(np.mean(-np.sum(A * np.log(np.maximum(A, 1e-300)), -1)) / np.log(4))
        h = h + A @ h @ one["v"]
        h = h + np.maximum(h @ one["in"], 0) @ one["out"]
    np.testing.assert_allclose(entropies, expected, rtol=1e-6, atol=1e-9)


# --------------------------------------------------------------------------- on the command line

FILE = """
import numpy as np
import shoal as sh
from shoal.cli import main

def line(width: int = 3, seeds=(0,)):
    x = np.random.default_rng(0).standard_normal((2, width))
    return sh.setup(lambda w, x: x @ w, lambda key: np.zeros(width), x, x[:, 0], seeds=seeds)

fixed = line(4)
number = 3

def wrong():
    return 7

def broken():
    return 1 / 0
"""


@pytest.fixture
def shoal(tmp_path, monkeypatch, capsys):
    """A command in a folder with my.py: its exit code, and what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(FILE)

    def run(*words):
        capsys.readouterr()
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_model_in_a_file_is_trained_reported_and_certified(shoal, tmp_path):
    words = ["--set", "width=5", "--steps", "20", "--probes", "+kernel_distance"]
    code, said, _ = shoal("train", "my.py:line", *words, "--out", "r")
    assert code == 0
    assert "line: 1 seed, 20 steps" in said
    assert shoal("report", "r", "--paper", "my.py:line")[0] == 0
    assert (tmp_path / "r" / "report.html").is_file()
    code, said, _ = shoal("certify", "my.py:line.kernel_regime", "--run", "r", "--json")
    assert (code, json.loads(said)["results"][0]["verdict"]) == (0, "holds")
    code, said, _ = shoal("train", "my.py:line", "--seeds", "0-2", "--steps", "2", "--json")
    assert json.loads(said)["seeds"] == [0, 1, 2]
    assert shoal("train", "my.py:fixed", "--steps", "2", "--set", "train=params")[0] == 0
    assert shoal("landscape", "r", "--paper", "my.py:line", "--points", "5")[0] == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("train my.py:lin", "my.py defines no 'lin'; did you mean 'line'?"),
        ("train nowhere.py:line", "there is no file 'nowhere.py'"),
        ("train my.py:line --set wdth=3", "line has no setting 'wdth'; did you mean 'width'?"),
        ("train my.py:fixed --set width=3", "fixed is a finished setup"),
        ("train my.py:fixed --seeds 0-2", "fixed has the seeds [0]"),
        ("train my.py:number", "number is a int"),
        ("train my.py:wrong", "wrong(...) returns a int"),
        ("train my.py:broken", "broken(...) fails in my.py, line 17: ZeroDivisionError"),
        ("train my.py:line --params w.npz", "--params is for papers"),
        ("train my.py:line --set num_steps=10 --set every=3", "does not divide"),
        ("certify my.py:line", "which theorem?"),
        ("certify my.py:line.theorem_a", "line has no theorem 'theorem_a'"),
        ("train my.py:line --set width=0", "fails in my.py, line 8: IndexError"),
    ],
)
def test_a_wrong_target_is_told_in_one_line(shoal, words, complaint):
    code, out, err = shoal(*words.split())
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


# ------------------------------------------------------------------------------------------ sweeps

NET = """
import jax
import jax.numpy as jnp
import numpy as np
import shoal as sh

x = np.random.default_rng(0).normal(size=(10, 4))
y = np.sin(x[:, 0])


def net(width: int = 8, scale: float = 1.0, seeds=(0,)):
    def init(key):
        return {"W": scale * jax.random.normal(key, (4, width)) / 2, "v": jnp.ones(width) / width}

    return sh.setup(lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"], init, x, y, seeds=seeds)
"""


def test_keywords_of_a_function_are_axes_of_a_sweep(tmp_path, capsys):
    (tmp_path / "my.py").write_text(NET)
    (tmp_path / "sweep.toml").write_text(
        f'paper = "{tmp_path}/my.py:net"\nseeds = [0, 1]\n[set]\nnum_steps = 20\nevery = 20\n'
        "[axes]\nwidth = [4, 8]\n[derived]\nscale = 'width / 8'\n"
    )
    words = ["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    capsys.readouterr()
    query = "SELECT width, scale, seed, risk_last FROM runs ORDER BY width, seed"
    assert main(["query", str(tmp_path / "out"), query, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["width"], row["scale"], row["seed"]) for row in rows] == [
        (4, 0.5, 0), (4, 0.5, 1), (8, 1.0, 0), (8, 1.0, 1),
    ]  # fmt: skip
    namespace = {}
    exec(NET, namespace)
    for row in rows[::3]:
        setup = namespace["net"](width=row["width"], scale=row["scale"], seeds=(row["seed"],))
        run = sh.train(setup, steps=20, every=20, probes=[])
        assert row["risk_last"] == pytest.approx(run.risk[0, -1], rel=1e-9)


def test_a_module_with_its_data_is_a_target(tmp_path, capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    text = "import torch\nimport numpy as np\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(3, 1)\n"
    (tmp_path / "my.py").write_text(text)
    assert main(["train", f"{tmp_path}/my.py:model"]) == 2
    assert "should also define x" in capsys.readouterr().err
    (tmp_path / "your.py").write_text(text + "x, y = np.eye(3), np.ones((3, 1))\n")
    assert main(["train", f"{tmp_path}/your.py:model", "--steps", "5", "--json"]) == 0
