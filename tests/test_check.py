"""The independent checker accepts proofs, and rejects them when anything was changed."""

import ast
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import shoal as sh
from shoal import check
from shoal.activations import centred_softplus
from shoal.disk.proofs import digest, seal

rng = np.random.default_rng(5)


def test_the_checker_imports_numpy_and_the_standard_library_only():
    tree = ast.parse(inspect.getsource(check))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert names == {"numpy", "hashlib", "json", "math", "sys", "fractions", "pathlib"}


def near(model, start, x, error=1e-3, **how):
    """A setup whose targets lie near the outputs."""
    made = sh.setup(model, start, x, np.zeros(np.shape(model(start, x))), **how)
    y = np.asarray(model(start, x))
    return made.replace(
        problem=made.problem._replace(y=y + error * np.cos(np.arange(y.size).reshape(y.shape)))
    )


def attention(p, x):
    scores = (x @ p["Q"]) @ jnp.swapaxes(x @ p["K"], -1, -2)
    return (jax.nn.softmax(scores, axis=-1) @ (x @ p["V"]))[..., 0]


def network(activation):
    def model(p, x):
        return activation(x @ p["W"] + p["b"][None]) @ p["v"]

    return model


def others(z):
    """Functions that a proof on disk writes as others."""
    square = 1 + z * z
    near = jnp.cos(z) + jnp.expm1(0.1 * z) + jnp.log1p(0.1 * square) + centred_softplus(z)
    return near + jax.lax.erfc(z) + jax.lax.rsqrt(square) - jnp.sqrt(square)


def normed(p, x):
    h = x @ p["W"]
    c = h - h.mean(-1, keepdims=True)
    return (c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-3)) @ p["v"]


def logs(p, x):
    return jax.nn.logsumexp(x @ p["W"], axis=-1) + jnp.sqrt(1 + (x @ p["v"]) ** 2) / (
        3 + jnp.sin(p["b"])
    )


def embedded(p, x):
    return jnp.tanh(p["E"][x]).sum(1) @ p["v"]


def masked(p, x):
    scores = (x @ p["Q"]) @ jnp.swapaxes(x @ p["K"], -1, -2)
    scores = jnp.where(np.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    return (jax.nn.softmax(scores, axis=-1) @ (x @ p["V"]))[..., 0]


def weights(**shapes):
    return {k: rng.standard_normal(s) / np.sqrt(max(s[0], 1)) for k, s in shapes.items()}


def proofs():
    """Setups with a certain fate, and steps."""
    x, tokens = rng.standard_normal((3, 4)), rng.standard_normal((2, 3, 4))
    wide = {"W": (4, 6), "b": (6,), "v": (6,)}
    functions = {
        "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "softplus": jax.nn.softplus,
        "silu": jax.nn.silu, "gelu": lambda z: jax.nn.gelu(z, approximate=False),
        "erf": jax.lax.erf, "sin": jnp.sin,
        "exp": lambda z: jnp.exp(0.3 * z), "relu": jax.nn.relu, "cube": lambda z: z + 0.1 * z**3,
        "rational": lambda z: z / (1 + z * z), "leaky": jax.nn.leaky_relu, "others": others,
    }  # fmt: skip
    for name, function in functions.items():
        error = 1e-5 if name in ("relu", "leaky") else 1e-3
        yield name, near(network(function), weights(**wide), x, error), 0.02
    heads = {"Q": (4, 2), "K": (4, 2), "V": (4, 1)}
    yield "attention", near(attention, weights(**heads), tokens, 1e-6), 0.02
    yield "masked", near(masked, weights(**heads), tokens, 1e-7), 0.02
    yield "norm", near(normed, weights(W=(4, 5), v=(5,)), x, 1e-5), 0.02
    yield "logs", near(logs, weights(W=(4, 3), v=(4,), b=(1,)), x, 1e-5), 0.02
    index = np.array([[0, 1], [2, 2], [1, 1]])  # no two alike up to order
    yield "embedding", near(embedded, weights(E=(3, 4), v=(4,)), index, 1e-5), 0.02
    yield "mean", near(network(jnp.tanh), weights(**wide), x, loss="mean_squares"), 0.02
    yield "frozen", near(network(jnp.tanh), weights(**wide), x, train="W,v"), 0.02
    yield "stuck", trap(), 0.5
    yield "largest", near(largest, weights(W=(4, 6), v=(3,)), x, 1e-5), 0.02
    yield "through", valley(), 0.2
    yield "slow", near(network(lambda z: 1e-5 * z), weights(**wide), x, 1e-13), 0.02
    yield "sums", near(sums, weights(W=(4, 6), k=(3,), v=(2,)), x, 1e-5), 0.002


def sums(p, x):
    rows = jnp.cumsum(jnp.exp2(0.3 * (x @ p["W"])), axis=-1)
    kept = jax.lax.conv_general_dilated(rows[:, None], p["k"][None, None], (2,), ((0, 0),))[:, 0]
    return kept @ p["v"] + jnp.zeros(3).at[np.array([0, 1, 0])].add(jnp.tanh(p["k"]))


def largest(p, x):
    return jnp.max(jnp.reshape(x @ p["W"], (-1, 3, 2)), axis=-1) @ p["v"]


def valley():
    """Two samples that are fitted as well as they can be, through scores with flat directions."""

    def model(p, x):
        u = checkpoint_name(p["a"][x] * p["b"][x], "u")
        return jnp.stack([u, u * u], axis=-1)

    start = {"a": np.array([1.0, 0.9]), "b": np.array([0.6, 0.66])}
    return sh.setup(model, start, np.arange(2), np.array([[1.0, 0.0], [1.0, 0.0]]))


def trap():
    K, V = np.array([[-2.0], [-1], [1], [2]]), np.array([[0.2], [2], [0.2], [0.5]])
    start = {"Q": np.full((4, 1), 1.4143576), "K": K, "V": V}
    return sh.setup(attention, start, np.eye(4)[None], np.full((1, 4), 0.3), train="Q")


PROOFS = {name: (setup, step) for name, setup, step in proofs()}
STUCK = ("stuck", "through")


def proved(name):
    setup, step = PROOFS[name]
    return sh.prove(setup, step, through="u" if name == "through" else None)


QUICK = ("tanh", "relu", "attention", "norm", "largest", "stuck", "through", "sums", "others")


def test_there_are_more_than_twenty_proofs():
    assert len(PROOFS) == 25


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[pytest.mark.slow] * (k not in QUICK)) for k in PROOFS]
)
def test_a_proof_is_accepted(name, tmp_path):
    proof = proved(name)
    assert proof.verdict == ("stuck" if name in STUCK else "converges"), proof
    proof.save(path := tmp_path / "proof.json")
    assert check.check(path) == proof.verdict


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proofs")
    for name in ("tanh", "stuck", "relu", "through", "cube", "slow"):
        proved(name).save(folder / f"{name}.json")
    return folder


def edited(path, out, change, *, sealed=True):
    """A copy with a change; a forger also computes the hashes again."""
    body = json.loads(path.read_text())
    with np.load(path.with_suffix(".npz")) as file:
        arrays = {name: file[name].copy() for name in file.files}
    change(body, arrays)
    if sealed:
        body["arrays"] = {name: digest(array) for name, array in arrays.items()}
        body["sha256"] = seal(body)
    out.write_text(json.dumps(body))
    np.savez(out.with_suffix(".npz"), **arrays)
    return out


def times(name, factor):
    def change(body, _):
        body["constants"][name] *= factor

    return change


def put(name, value):
    def change(body, _):
        body[name] = value(body[name]) if callable(value) else value

    return change


def nudge(kind, by):
    def change(body, arrays):
        arrays[body[kind][0]].reshape(-1)[0] += by

    return change


def operation(kind, **new):
    def change(body, _):
        for program in body["programs"]:
            next(op for op in program["operations"] if op["kind"] == kind).update(new)

    return change


def turned(body, _):
    """The branches that were not taken."""
    for op in comparisons(body):
        op["name"] = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}[op["name"]]


def comparisons(body):
    return [op for program in body["programs"] for op in program["operations"]
            if op["kind"] == "compare"]  # fmt: skip


def undecided(body, arrays):
    """Truth values as constants: a choice that no comparison makes, and no kink limits."""
    size = comparisons(body)[0]["size"]
    arrays["truth"] = (np.arange(size) % 2).astype(float)
    for op in comparisons(body):
        op.update(kind="constant", inputs=[], radius=0.0, arrays={"value": "truth"})


def half_true(body, _):
    for op in comparisons(body):
        op.update(kind="mul")


def negative_radius(body, arrays):
    """An output plus 0 within -1e-3: what is enclosed shrinks."""
    for program in body["programs"]:
        size = program["operations"][program["output"]]["size"]
        arrays[f"zero{size}"] = np.zeros(size)
        number = len(program["operations"])
        program["operations"] += [
            {"kind": "constant", "inputs": [], "size": size, "radius": -1e-3,
             "arrays": {"value": f"zero{size}"}},
            {"kind": "add", "inputs": [program["output"], number], "size": size, "arrays": {}},
        ]  # fmt: skip
        program["output"] = number + 1


def rate(by):
    """A proved factor that is farther from 1."""

    def change(body, _):
        body["rate"] = [1 - by * (1 - x) for x in body["rate"]]

    return change


def broadcast(kind):
    """One number plus, times, or compared with many: bounds would lose the root of their number."""

    def change(body, arrays):
        for program in body["programs"]:
            ops = program["operations"]
            size, number = ops[program["output"]]["size"], len(ops)
            arrays[f"one{size}"], arrays["first"] = np.ones(3 * size), np.arange(1)
            ops += [
                {"kind": "take", "inputs": [program["output"]], "size": 1, "fill": 0.0,
                 "arrays": {"index": "first"}},
                {"kind": "constant", "inputs": [], "size": 3 * size, "radius": 0.0,
                 "arrays": {"value": f"one{size}"}},
                {"kind": kind, "inputs": [number, number + 1], "size": 3 * size, "arrays": {},
                 "name": "lt"},
            ]  # fmt: skip

    return change


def moving_choice(body, arrays):
    """A truth value times a weight that is 1 now: the choice changes as the weight does."""
    W = arrays[body["weights"][0]]
    W[0], arrays["first"], arrays["unit"] = 1.0, np.arange(1), np.ones(1)
    for program in body["programs"]:
        ops, number = program["operations"], len(program["operations"])
        weight = next(k for k, op in enumerate(ops) if op["kind"] == "weight" and not op["block"])
        out = program["output"]
        ops += [
            {"kind": "take", "inputs": [weight], "size": 1, "fill": 0.0,
             "arrays": {"index": "first"}},
            {"kind": "constant", "inputs": [], "size": 1, "radius": 0.0,
             "arrays": {"value": "unit"}},
            {"kind": "compare", "inputs": [number + 1] * 2, "size": 1, "arrays": {}, "name": "eq"},
            {"kind": "mul", "inputs": [number, number + 2], "size": 1, "arrays": {}},
            {"kind": "select", "inputs": [number + 3, out, out], "size": ops[out]["size"],
             "arrays": {}},
        ]  # fmt: skip
        program["output"] = number + 4


def whole_numbers(kind):
    """The negative of the least whole number is itself, and long ones are rounded."""

    def change(body, arrays):
        arrays[body[kind][0]] = np.full_like(arrays[body[kind][0]], -(2.0**63)).astype(np.int64)

    return change


def outer_changed(body, _):
    program = body["programs"][body["outer"][0]]
    next(op for op in program["operations"] if op["kind"] == "mul").update(kind="add")


def dropped(body, _):
    body["inner"].pop()
    body["inner_targets"].pop()


TAMPERED = {
    "a constant": ("tanh", times("L", 0.9)),
    "another constant": ("tanh", times("sigma", 1.1)),
    "the residual": ("tanh", times("residual", 0.5)),
    "a constant upward": ("tanh", times("beta", 1.01)),
    "the third derivative": ("stuck", times("K", 0.5)),
    "an eigenvalue": ("stuck", times("lambda_min", 1.1)),
    "a weight": ("tanh", nudge("weights", 1e-3)),
    "a weight of the trap": ("stuck", nudge("weights", 1e-4)),
    "a label": ("tanh", nudge("inner_targets", 1e-3)),
    "a label of the trap": ("stuck", nudge("inner_targets", 1e-3)),
    "the step": ("tanh", put("step_size", lambda x: 1.5 * x)),
    "a long step": ("stuck", put("step_size", 1000.0)),
    "the radius": ("tanh", put("radius", lambda x: 2 * x)),
    "a small radius": ("tanh", put("radius", lambda x: x / 8)),
    "a radius beyond the kink": ("relu", put("radius", 1.0)),
    "an operation": ("tanh", operation("unary", name="sin")),
    "the other branches": ("relu", turned),
    "no comparison": ("relu", undecided),
    "a truth value that is none": ("relu", half_true),
    "the rate": ("tanh", put("rate", lambda x: [0.5 * x[0], x[1]])),
    "the limiting risk": ("stuck", put("risk", lambda x: [2 * x[0], 2 * x[1]])),
    "the limiting risk, a little": ("stuck", put("risk", lambda x: [x[0] - 1e-9, x[1] - 1e-9])),
    "the verdict": ("stuck", put("verdict", "converges")),
    "the scale": ("tanh", put("scale", [0.5, 0.5])),
    "a sample": ("tanh", dropped),
    "negative step": ("tanh", put("step_size", -0.02)),
    "the curvature in u": ("through", times("m", 1.1)),
    "another function of u": ("through", outer_changed),
    "a label in the valley": ("through", nudge("outer_targets", 1e-3)),
    "a long step in the valley": ("through", put("step_size", 2.0)),
    "a wide ball in the valley": ("through", put("radius", 1.0)),
    "a negative radius": ("tanh", negative_radius),
    "one number plus many": ("tanh", broadcast("add")),
    "one number times many": ("tanh", broadcast("mul")),
    "one number compared with many": ("tanh", broadcast("compare")),
    "a choice by a weight": ("tanh", moving_choice),
    "labels in whole numbers": ("tanh", whole_numbers("inner_targets")),
    "weights in whole numbers": ("tanh", whole_numbers("weights")),
    "a faster rate": ("slow", rate(1.001)),
    "a faster rate by one float": (
        "slow",
        lambda body, _: body.update(rate=[float(np.nextafter(x, 0)) for x in body["rate"]]),
    ),
    "a small constant": ("slow", times("sigma", 1.1)),
    "a constant of one's own": ("tanh", lambda body, _: body["constants"].update(margin=9.0)),
    "an exponent": ("cube", operation("power", exponent=2.7)),
    "an exponent with a half": ("cube", operation("power", exponent=2.5)),
    "an infinite label": ("tanh", nudge("inner_targets", np.inf)),
    "a huge radius": ("tanh", put("radius", 10**400)),
}


SAID = {  # why, where another check could hide that this one is missing
    "one number plus many": "unequal sizes", "one number times many": "unequal sizes",
    "one number compared with many": "unequal sizes", "a choice by a weight": "truth value",
    "labels in whole numbers": "floats", "weights in whole numbers": "floats",
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_a_forger_who_computes_hashes_again_is_found_out(name, written, tmp_path):
    source, change = TAMPERED[name]
    path = edited(written / f"{source}.json", tmp_path / "forged.json", change)
    with pytest.raises(check.Fails, match=SAID.get(name)):
        check.check(path)


@pytest.mark.parametrize("change", [times("L", 1.0000001), nudge("weights", 1e-15)])
def test_any_change_breaks_a_hash(change, written, tmp_path):
    path = edited(written / "tanh.json", tmp_path / "edited.json", change, sealed=False)
    with pytest.raises(check.Fails, match="hash"):
        check.check(path)


def test_an_unchanged_copy_is_checked(written, tmp_path):
    path = edited(written / "tanh.json", tmp_path / "copy.json", lambda *_: None)
    assert check.check(path) == "converges"


def test_nothing_is_written_without_a_proof(tmp_path):
    setup = sh.setup(lambda p, x: x * p**2, np.array([0.5]), [1.0], [-1.0])
    proof = sh.prove(setup, 0.1)
    assert proof.verdict == "undecided"
    with pytest.raises(sh.InputError, match="no proof"):
        proof.save(tmp_path / "no.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "shoal proof 3"}'])
def test_a_malformed_file_is_said_to_be_one(text, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(check.Fails):
        check.check(tmp_path / "bad.json")
