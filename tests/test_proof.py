"""`shoal.prove` on setups and runs: promises are kept, false targets refused."""

import itertools
import json
import math
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal.cli import main
from shoal.errors import InputError

rng = np.random.default_rng(2)


def network(p, x):
    return jnp.tanh(x @ p["W"] + p["b"][None]) @ p["v"]


def start(width=8, dim=3):
    return {
        "W": rng.standard_normal((dim, width)) / np.sqrt(dim),
        "b": 0.1 * rng.standard_normal(width),
        "v": rng.standard_normal(width) / np.sqrt(width),
    }


X = rng.standard_normal((4, 3))
Y = 0.5 * rng.standard_normal(4)
START = start()


@pytest.fixture(scope="module")
def run():
    return sh.train(sh.setup(network, START, X, Y), steps=1200, step_size=0.1, probes=["params"])


@pytest.fixture(scope="module")
def proof(run):
    return sh.prove(run)


def test_a_run_converges_from_some_step_on(run, proof):
    assert (proof.verdict, proof.theorem) == ("converges", "P1")
    assert 0 < proof.step < 1200
    assert proof.decisions <= 13
    assert proof.risk == (0.0, 0.0)
    assert len(proof.slack) == 3
    assert "converges from step" in repr(proof)


def test_a_proof_of_convergence_keeps_its_promise(run, proof):
    f = jax.jit(jax.vmap(lambda *w: network(dict(zip("Wbv", w, strict=True)), X) - Y))
    path = [run.probes[f"params_{k}"][0] for k in "Wbv"]
    residual = np.linalg.norm(f(*path), axis=1)[proof.step :]
    steps = residual[residual > 1e-10]
    assert np.all(steps[1:] <= proof.rate[0] * steps[:-1] * (1 + 1e-9))
    moved = sum(
        np.sum((p[proof.step :] - p[proof.step]) ** 2, axis=tuple(range(1, p.ndim))) for p in path
    )
    assert np.sqrt(moved).max() < proof.radius


def told_error(remark):
    return float(re.search(r"differ by at most (\S+);", remark)[1])


def test_the_remark_is_about_floats():
    """Against exact steps of f = abx, in fractions."""
    setup = sh.setup(lambda p, x: x * p["a"] * p["b"], {"a": 1.2, "b": 0.8}, [1.0], [1.0])
    run = sh.train(setup, steps=40, step_size=0.3, every=1, probes=["params"])
    proof = sh.prove(run)
    path = [[Fraction(float(run.probes[f"params_{k}"][0][t])) for k in "ab"] for t in range(41)]
    errors = []
    for (a, b), (c, d) in itertools.pairwise(path[proof.step :]):
        slope = Fraction(0.3) * (a * b - 1)
        errors.append(math.hypot(float(a - slope * b - c), float(b - slope * a - d)))
    told = told_error(proof.remark)
    assert 0 < 0.9 * errors[0] <= told < 100 * max(errors)
    assert "the same rate holds for" in proof.remark


def test_the_remark_of_a_minimum():
    setup = sh.setup(
        lambda p, x: x[:, None] * jnp.stack([p, p**2])[None], np.array(0.6), [1.0], [[1.0, 0.0]]
    )
    proof = sh.prove(sh.train(setup, steps=200, step_size=0.1, every=1, probes=[]))
    assert (proof.verdict, proof.theorem) == ("stuck", "P2")
    assert "of the minimum" in proof.remark
    assert told_error(proof.remark) < 1e-14


def test_a_setup_is_decided_from_its_weights(run, proof):
    ends = {k: run.probes[f"params_{k}"][0][proof.step] for k in "Wbv"}
    alone = sh.prove(sh.setup(network, ends, X, Y), 0.1)
    assert alone.verdict == "converges"
    assert alone.step is None
    assert alone.rate == pytest.approx(proof.rate, rel=1e-12)


def test_stuck_keeps_its_promise():
    K, V = np.array([[-2.0], [-1], [1], [2]]), np.array([[0.2], [2], [0.2], [0.5]])

    def layer(p, x):
        scores = (x @ p["Q"]) @ jnp.swapaxes(x @ p["K"], -1, -2)
        return (jax.nn.softmax(scores, axis=-1) @ (x @ p["V"]))[..., 0]

    setup = sh.setup(
        layer, {"Q": np.full((4, 1), 1.2), "K": K, "V": V}, np.eye(4)[None], np.full((1, 4), 0.3),
        train="Q",
    )  # fmt: skip
    run = sh.train(setup, steps=4000, step_size=0.5, probes=["params"])
    proof = sh.prove(run)
    assert (proof.verdict, proof.theorem) == ("stuck", "P2")
    low, high = proof.risk
    assert 0 < low <= run.risk[0, -1] * (1 + 1e-12)
    assert run.risk[0, -1] <= high * (1 + 1e-12)
    last = sh.prove(sh.setup(
        layer, {"Q": run.params["Q"][0], "K": K, "V": V}, np.eye(4)[None], np.full((1, 4), 0.3),
        train="Q",
    ), 0.5)  # fmt: skip
    assert last.risk[1] - last.risk[0] < 1e-12
    path = run.probes["params_Q"][0]
    apart = np.linalg.norm(path[proof.step] - path[-1])
    assert apart <= proof.constants["distance"] * (1 + 1e-6)


FALSE = {
    "a square is not negative": (lambda p, x: x * p["w"] ** 2, 0.5, -1.0),
    "an exponential is positive": (lambda p, x: x * jnp.exp(p["w"]), 0.0, -0.5),
    "a hyperbolic tangent is below 1": (lambda p, x: x * jnp.tanh(p["w"]), 1.5, 1.1),
    "relu dies on the way": (lambda p, x: x * jax.nn.relu(p["w"]), 0.05, -0.1),
    "an absolute value is not negative": (lambda p, x: x * jnp.abs(p["w"]), 0.05, -0.05),
    "a saddle": (lambda p, x: x * (p["w"] ** 2 + 1), 0.0, 3.0),
    "a truth value times a weight": (lambda p, x: x * (p["w"] > 0) * p["w"], 0.3, -0.2),
    "a choice that ends": (lambda p, x: jnp.where(p["w"] > 0.4, p["w"], 7.0) * x, 0.5, 0.3),
    "a choice by equality": (lambda p, x: jnp.where(p["w"] == 0.5, p["w"], 7.0) * x, 0.5, 0.49),
    "a clipped weight": (lambda p, x: x * jnp.clip(p["w"], 0.0, 1.0), 0.9, 1.1),
    "a tiny square": (lambda p, x: x * p["w"] ** 2, 1e-9, -1e-18),
    "a huge scale": (lambda p, x: x * 1e-300 * (1e150 * p["w"]) ** 2, 1e-9, -1e-18),
    "a saturated softmax": (
        lambda p, x: x * jax.nn.softmax(1e4 * p["w"] * jnp.array([1.0, 2.0]))[0], 1.0, -1e-3),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE)
@pytest.mark.parametrize("step", [0.01, 0.5])
def test_what_cannot_be_reached_is_never_said_to_be(name, step):
    model, w, y = FALSE[name]
    found = sh.prove(sh.setup(model, {"w": w}, [1.0], [y]), step)
    assert found.verdict != "converges"
    if name == "a saddle":
        assert found.verdict == "undecided"


def test_a_minimum_is_not_reached_with_too_long_a_step():
    def model(p, x):
        return jnp.stack([x * p["w"], x * p["w"] + 1], axis=-1)

    setup = sh.setup(model, {"w": 0.4999}, [1.0], [[0.0, 2.0]])
    assert sh.prove(setup, 0.3).verdict == "stuck"
    assert sh.prove(setup, 1.5).verdict == "undecided"  # curvature 2: the limit is a step of 1


def numbers(found):
    return [found.radius, *found.rate, *(found.constants[k] for k in ("residual", "sigma", "L"))]


def near_setup(order=slice(None), units=slice(None), names="Wbv", roots=(1.0, 1.0, 1.0)):
    """The network near its targets, with samples and hidden units in any order."""
    x, y = X[order], (np.asarray(network(START, X)) + 1e-3)[order]
    p = {"W": START["W"][:, units], "b": START["b"][units], "v": START["v"][units]}
    a, b, c = names
    scaled = {new: p[k] / r for new, k, r in zip((a, b, c), "Wbv", roots, strict=True)}

    def model(q, x):
        back = {k: q[new] * r for k, new, r in zip("Wbv", (a, b, c), roots, strict=True)}
        return network(back, x)

    return sh.setup(model, scaled, x, y)


def test_nothing_depends_on_order_or_names():
    usual = sh.prove(near_setup(), 0.05)
    assert usual.verdict == "converges"
    for other in (
        near_setup(order=[2, 0, 3, 1]), near_setup(units=rng.permutation(8)),
        near_setup(names="zca"),
    ):  # fmt: skip
        assert numbers(sh.prove(other, 0.05)) == pytest.approx(numbers(usual), rel=1e-9)


def test_a_ratio_is_a_weight_in_other_coordinates():
    from questions import product, question
    from shoal.verified.decide import decide

    ratio = decide(product(0.1, (4.0, 1.0)))
    scaled = decide(question(lambda w, _, x: 2 * w[0] * w[1] * x, (0.6, 0.8), [1.0], [1.0], 0.1))
    assert ratio.verdict == scaled.verdict == "converges"
    assert ratio.rate == pytest.approx(scaled.rate, rel=1e-9)


def test_stuck_does_not_depend_on_coordinates_or_order_either():
    """P2, with a ratio of 4 or with twice a weight, and samples in either order."""
    from questions import question
    from shoal.verified.decide import decide

    def circle(w, _, x):
        return x * jnp.stack([jnp.sin(w[0]), jnp.cos(w[0])])

    def twice(w, frozen, x):
        return circle((2 * w[0],), frozen, x)

    def decided(function, start, order=1, **how):
        xs, ys = [1.0, 0.9][::order], [[2.0, 1.0], [1.8, 0.9]][::order]
        return decide(question(function, (start,), xs, ys, 0.05, **how))

    usual, turned = decided(circle, 1.1071487), decided(circle, 1.1071487, -1)
    ratio, scaled = decided(circle, 1.1071487, ratios=(4.0,)), decided(twice, 1.1071487 / 2)
    for one, other in ((usual, turned), (ratio, scaled)):
        assert one.verdict == other.verdict == "stuck"
        assert other.risk == pytest.approx(one.risk, rel=1e-9)
        assert other.rate == pytest.approx(one.rate, rel=1e-9)
        assert other.radius == one.radius


def test_sharper_bounds_never_lose_a_proof(run, proof):
    earlier = [sh.prove(run, levels=levels).step for levels in (("jets",), ("jets", "nodes"))]
    assert proof.step <= min(earlier)


def test_more_radii_and_finer_blocks_never_lose_a_proof(monkeypatch):
    from questions import program
    from shoal.verified import decide as module
    from shoal.verified.facts import RADII
    from shoal.verified.fate import Range

    def model(w, _, x):  # two rows of one block that are used apart
        return jnp.tanh(x @ w[0][0]) + jnp.sin(x @ w[0][1])

    x, W = X[:2], START["W"].T[:2]
    whole = program(model, (W,), (), x)
    apart = program(lambda w, _, x: jnp.tanh(x @ w[0]) + jnp.sin(x @ w[1]), tuple(W), (), x)
    y = (np.asarray(model((W,), (), x)) + 1e-3,)
    asked = [
        module.Question((made,), weights, y, np.ones(len(weights)), Range(1.0, 1.0), 0.05)
        for made, weights in ((whole, (W.ravel(),)), (apart, tuple(W)))
    ]
    coarse, fine = (module.decide(one) for one in asked)
    assert coarse.verdict == fine.verdict == "converges"
    assert fine.constants["L"] <= coarse.constants["L"] * (1 + 1e-9)
    for one in asked:  # what few radii prove, all of them do
        monkeypatch.setattr(module, "RADII", RADII[::16])
        few = module.decide(one)
        monkeypatch.setattr(module, "RADII", RADII)
        assert few.verdict == "undecided" or module.decide(one).radius <= few.radius


def test_what_the_theorems_are_not_about_is_refused():
    setup = sh.setup(network, START, X, Y)
    with pytest.raises(InputError, match="method=adam"):
        sh.prove(sh.train(setup, steps=2, method="adam", step_size=1e-3, probes=[]))
    with pytest.raises(InputError, match="squared loss"):
        sh.prove(sh.setup(network, START, X, np.sign(Y), loss="logistic"), 0.1)
    with pytest.raises(InputError, match="projection"):
        sh.prove(sh.setup("arda2026", num_samples=2, num_tokens=2, dim=3, num_heads=2), 0.1)
    with pytest.raises(InputError, match="level"):
        sh.prove(setup, 0.1, levels=["node"])
    with pytest.raises(InputError, match="no array"):
        sh.prove(setup, 1e-9, through="scores")


def test_a_derivative_of_jax_that_is_not_that_of_the_operations_is_refused(monkeypatch):
    """A question about another model than the one that is trained."""
    from shoal.lab import proof as module

    right, y = module.question_of, np.asarray(network(START, X)) + 1e-3
    other = sh.setup(lambda p, x: 1.0001 * network(p, x), START, X, y).one().astype("float64")
    setup = sh.setup(network, START, X, y)
    assert sh.prove(setup, 0.05).verdict == "converges"
    monkeypatch.setattr(module, "question_of", lambda _, params, step: right(other, params, step))
    with pytest.raises(InputError, match="not that of its operations"):
        sh.prove(setup, 0.05)


def test_a_run_that_was_edited_is_refused(run):
    import dataclasses

    ends = jax.tree.map(lambda W: W + 1e-3, run.params)
    with pytest.raises(InputError, match="replay"):
        sh.prove(dataclasses.replace(run, params=ends))


def test_p3_through_a_named_array():
    from jax.ad_checkpoint import checkpoint_name

    def model(p, x):
        u = checkpoint_name(x * p["a"] * p["b"], "u")
        return jnp.stack([u, u * u], axis=-1)

    setup = sh.setup(model, {"a": 1.0, "b": 0.6}, [1.0], [[1.0, 0.0]])
    assert sh.prove(setup, 0.2).verdict == "undecided"
    found = sh.prove(setup, 0.2, through="u")
    assert (found.verdict, found.theorem, found.through) == ("stuck", "P3", "u")
    assert found.risk[0] <= 0.14463671 <= found.risk[1]


@pytest.mark.slow
def test_a_translated_encoder_of_pytorch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        4, 2, 6, dropout=0.0, activation="gelu", batch_first=True, norm_first=True,
        dtype=torch.float64,
    ).eval()  # fmt: skip
    x = rng.standard_normal((1, 3, 4))
    with torch.no_grad():
        y = layer(torch.as_tensor(x)).numpy() + 1e-9
    found = sh.prove(sh.setup(layer, x, y), 1e-3)
    assert found.verdict == "converges"


def test_the_command_line(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import shoal as sh\n"
        "setup = sh.setup(lambda p, x: x * p['a'] * p['b'], {'a': 1.2, 'b': 0.5}, [1.0], [1.0])\n"
    )
    target = f"{file}:setup"
    words = ["prove", target, "--set", "step_size=0.3", "--until-proved", "--json"]
    assert main([*words, "--out", str(tmp_path / "p.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = [
        "verdict",
        "reason",
        "step",
        "radius",
        "rate",
        "risk",
        "constants",
        "theorem",
        "checked",
    ]
    assert set(keys) <= set(found)
    assert found["verdict"] == "converges"
    assert found["checked"] is True
    assert main(["check", str(tmp_path / "p.json")]) == 0
    assert "checked: converges" in capsys.readouterr().out
    text = (tmp_path / "p.json").read_text().replace('"step_size": 0.3', '"step_size": 0.4')
    (tmp_path / "p.json").write_text(text)
    assert main(["check", str(tmp_path / "p.json")]) == 1
    assert main(["check", str(tmp_path / "none.json")]) == 2
    assert main(["prove"]) == 2
    capsys.readouterr()
    assert main(["prove", target, "--set", "step_size=0.3", "--steps", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] is None  # the initial weights only


@pytest.mark.slow  # test_replay has a quick one
def test_a_run_folder_is_proved(tmp_path, capsys, run):
    folder = tmp_path / "r"
    setup = sh.setup("qin2025", dim=3, key_dim=2, width=3, num_samples=1, num_tokens=2, out_dim=1)
    sh.train(setup, steps=300, probes=[]).save(folder)
    assert main(["prove", "--run", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "converges"
    assert 0 < found["step"] < 300


def test_the_trap_of_song2024_is_stuck_and_the_gaussian_is_not():
    from shoal.papers.song2024.proofs import fates

    softmax, gaussian = (fates()[kernel] for kernel in ("softmax", "gaussian"))
    assert (softmax.verdict, gaussian.verdict) == ("stuck", "converges")
    low, high = softmax.risk
    assert low <= 0.0501952333940021189 <= high  # E3, at 50 digits
    assert high - low < 1e-12
