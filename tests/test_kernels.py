"""The tangent kernel of any model equals the contraction of its Jacobian, by every route."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal.diagnostics import factors, kernels
from shoal.models import Model

RNG = np.random.default_rng(0)
N, TOKENS, DIM = 5, 4, 6


def normal(*shape):
    return RNG.standard_normal(shape) / (shape[0] ** 0.5 if shape else 1)


def contraction(apply, params, inputs):
    """The witness: the whole Jacobian, contracted block by block."""
    J = jax.jit(jax.vmap(jax.jacrev(lambda p, x: jnp.ravel(apply(p, x))), (None, 0)))(
        params, inputs
    )
    rows = jax.tree.map(lambda j, W: j.reshape(-1, np.size(W)), J, params)
    return jax.tree.map(lambda j: j @ j.T, rows)


def agrees(apply, params, inputs, **more):
    """Both kernels to 1e-12 of their size, block by block; returns the routes."""
    params, inputs = jax.tree.map(jnp.asarray, (params, inputs))
    model = Model(params, apply)
    made = jax.jit(factors.factored_kernels(model, inputs, **more))(params)
    for (name, K), dense in zip(
        made.items(), jax.tree.leaves(contraction(apply, params, inputs)), strict=True
    ):
        size = np.abs(dense).max()
        np.testing.assert_allclose(K, dense, rtol=0, atol=1e-12 * size, err_msg=name)
    return factors.kernel_routes(model, params, inputs)


# ------------------------------------------------------------------------------------ the models


def two_layers(p, x):
    return jnp.tanh(x.ravel() @ p["W"] + p["b"]) @ p["v"]


TWO_LAYERS = {"W": normal(TOKENS * DIM, 40), "b": normal(40), "v": normal(40, 3)}


def attention(p, x):
    scores = (x @ p["q"]) @ (x @ p["k"]).T / DIM**0.5
    return jnp.sum(jax.nn.softmax(scores, axis=-1) @ (x @ p["v"]) @ p["o"], axis=0)


ATTENTION = {"q": normal(DIM, 30), "k": normal(DIM, 30), "v": normal(DIM, 30), "o": normal(30, 2)}


def normalised(x, scale, shift):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    size = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
    return centred / size * scale[None] + shift[None]


def encoder(p, x):
    """Three pre-norm layers with two heads, projections stacked in one weight."""
    for layer in p["layers"]:
        h = normalised(x, layer["scale_1"], layer["shift_1"])
        stacked = h @ layer["in"].T + layer["in_bias"][None]
        q, k, v = (a.reshape(-1, 2, DIM // 2) for a in jnp.split(stacked, 3, axis=-1))
        weights = jax.nn.softmax(jnp.einsum("ihk,jhk->hij", q, k), axis=-1)
        attended = jnp.einsum("hij,jhk->ihk", weights, v).reshape(x.shape)
        x = x + attended @ layer["out"].T
        h = normalised(x, layer["scale_2"], layer["shift_2"])
        x = x + jax.nn.gelu(h @ layer["W_1"] + layer["b_1"][None]) @ layer["W_2"]
    return jnp.mean(x, axis=0) @ p["head"]


def encoder_layer(width=24):
    return {
        "in": normal(3 * DIM, DIM), "in_bias": normal(3 * DIM), "out": normal(DIM, DIM),
        "W_1": normal(DIM, width), "b_1": normal(width), "W_2": normal(width, DIM),
        "scale_1": normal(DIM), "shift_1": normal(DIM),
        "scale_2": normal(DIM), "shift_2": normal(DIM),
    }  # fmt: skip


ENCODER = {"layers": [encoder_layer() for _ in range(3)], "head": normal(DIM, 2)}


def tied(p, ids):
    h = p["embedding"][ids]
    h = h + jnp.tanh(h @ p["W"] / 3.0)
    return jnp.mean(h, axis=0) @ p["embedding"].T


TIED = {"embedding": normal(11, DIM), "W": normal(DIM, DIM)}


def untied(p, ids):
    return jnp.tanh(p["embedding"][ids] @ p["W"]).sum(0) @ p["out"]


UNTIED = {"embedding": normal(11, DIM), "W": normal(DIM, 20), "out": normal(20, 2)}


def convolution(p, x):
    h = jax.lax.conv_general_dilated(x.T[None], p["filter"], (1,), "SAME")
    return jax.nn.relu(h).sum((0, 2)) @ p["out"]


CONVOLUTION = {"filter": normal(7, DIM, 3), "out": normal(7, 2)}


def twice(p, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ p["W"]) @ p["W"]) @ p["W"].T)


def product_first(p, x):
    """The scores of wu2023: two weights are multiplied before they meet a sample."""
    weights = jax.nn.softmax(x @ (p["q"].T @ p["k"]) @ x.T, axis=-1)
    return jnp.mean(jax.nn.relu((weights @ x) @ p["v"].T), axis=0) @ p["o"]


PRODUCT_FIRST = {"q": normal(50, DIM), "k": normal(50, DIM), "v": normal(50, DIM), "o": normal(50)}


def stacked(p, x):
    """Layers along an axis of one weight; heads as a batch; a block that is repeated."""
    for W in (p["W"][0], p["W"][1].T):
        x = jnp.tanh(x @ (-2.0 * W))
    heads = jnp.einsum("nd,hdk->hnk", x, p["heads"])
    repeated = jnp.broadcast_to(p["last"][None], (len(p["heads"]), *p["last"].shape))
    return jnp.sum(jnp.tanh(heads) @ repeated, axis=(0, 1))


STACKED = {"W": normal(2, DIM, DIM), "heads": normal(3, DIM, 5), "last": normal(5, 4)}


def overlapping(p, x):
    return jnp.sum(jnp.tanh(x @ p["W"][:, :6])) + jnp.sum(jnp.tanh(x @ p["W"][:, 2:])) ** 2


def own_square(p, x):
    return jnp.sum(jnp.tanh(x @ (p["W"].T @ p["W"])))


def tied_scores(p, x):
    """Queries are keys, and wide; a weight that is scaled by its own norm, one that is rounded."""
    h = x @ p["qk"]
    weights = jax.nn.softmax(h @ h.T / DIM, axis=-1)
    unit = p["v"] / jnp.sqrt(jnp.sum(p["v"] ** 2))
    rounded = x.astype(int) @ p["r"].astype(int)
    return jnp.sum(weights @ x @ unit, axis=0) + jnp.sum(rounded) * p["g"]


TIED_SCORES = {"qk": normal(DIM, 30), "v": normal(DIM, 2), "r": 5 * normal(DIM, 2), "g": normal(2)}

X = RNG.standard_normal((N, TOKENS, DIM))
IDS = RNG.integers(0, 11, (N, TOKENS))
MODELS = {
    "two layers": (two_layers, TWO_LAYERS, X),
    "attention": (attention, ATTENTION, X),
    "encoder": (encoder, ENCODER, X),
    "tied embedding": (tied, TIED, IDS),
    "embedding": (untied, UNTIED, IDS),
    "convolution": (convolution, CONVOLUTION, X),
    "a weight used twice": (twice, {"W": normal(DIM, DIM)}, X),
    "product of weights first": (product_first, PRODUCT_FIRST, X),
    "stacked": (stacked, STACKED, X),
    "overlapping slices": (overlapping, {"W": normal(DIM, 8)}, X),
    "tied scores": (tied_scores, TIED_SCORES, X),
    "a weight times itself": (own_square, {"W": normal(9, DIM)}, X),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_kernel_is_the_contraction_of_the_jacobian(name):
    agrees(*MODELS[name])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("route", ["rows", "grams"])
def test_every_route_gives_the_same_kernel(name, route, monkeypatch):
    monkeypatch.setattr(factors, "cheapest", lambda *_, **__: (route, 0.0))
    monkeypatch.setattr(factors, "_stored", lambda *_: 0)  # never the Jacobian, if not needed
    monkeypatch.setattr(factors, "TILE", 50)  # several tiles
    routes = agrees(*MODELS[name])
    products = {"filter", "b"} | {"overlapping slices": {"W"}, "tied scores": {"v", "r", "g"}}.get(
        name, set()
    )
    for block, chosen in routes.items():
        small = block.rpartition(".")[2].startswith(("b_", "in_bias", "scale", "shift"))
        assert set(chosen) == {"jacobian" if block in products or small else route}, block


def test_the_route_follows_the_shapes():
    wide = {"q": normal(400, DIM), "k": normal(400, DIM), "v": normal(400, DIM), "o": normal(400)}
    assert factors.kernel_routes(Model(wide, product_first), wide, X) == {
        "q": ("shared",), "k": ("shared",), "v": ("rows",), "o": ("grams",),
    }  # fmt: skip
    deep = {"W": normal(TOKENS * DIM, 400), "b": normal(400), "v": normal(400, 3)}
    assert factors.kernel_routes(Model(deep, two_layers), deep, X) == {
        "W": ("grams",), "b": ("jacobian",), "v": ("grams",),
    }  # fmt: skip
    large = UNTIED | {"embedding": normal(5000, DIM)}
    assert factors.kernel_routes(Model(large, untied), large, IDS)["embedding"] == ("grams",)
    agrees(untied, large, IDS)


def test_in_little_memory_samples_are_taken_in_lots():
    for name in ("encoder", "tied embedding"):
        apply, params, inputs = MODELS[name]
        plan = factors.make_plan(Model(params, apply), params, inputs)
        two_samples = 2 * 3 * 8 * plan.stored / 2**30
        agrees(apply, params, inputs, memory=two_samples)  # five samples in lots of two


def test_less_memory_is_held_if_less_is_allowed():
    wide = {"W": normal(TOKENS * DIM, 4000), "b": normal(4000), "v": normal(4000, 3)}
    inputs = jnp.asarray(RNG.standard_normal((60, TOKENS, DIM)))
    held = []
    for memory in (1.0, 1e-3):
        kernel = jax.jit(factors.factored_kernels(Model(wide, two_layers), inputs, memory=memory))
        held.append(kernel.lower(wide).compile().memory_analysis().temp_size_in_bytes)
    assert held[1] < held[0] / 4


def test_wide_scores_are_formed_from_the_product_of_weights():
    """(x Q)(x K)' is x (Q K') x', where Q and K are wider than x: they do not meet a sample."""
    wide = {"q": normal(DIM, 90), "k": normal(DIM, 90), "v": normal(DIM, 90), "o": normal(90, 2)}
    routes = agrees(attention, wide, X)
    assert routes["q"] == routes["k"] == ("shared",)
    in_batch = lambda p, x: jax.vmap(attention, (None, 0))(p, x[None])[0]  # noqa: E731
    assert agrees(in_batch, wide, X)["q"] == ("shared",)


def test_a_derivative_of_its_own_is_kept():
    """ReLU at zero has slope 0 by its own rule; the maximum that it is made of would have 1/2."""

    def apply(p, x):
        return jnp.sum(jax.nn.relu(x @ p["W"]) @ p["v"])

    agrees(apply, {"W": np.zeros((DIM, 7)), "v": normal(7)}, X)
    agrees(apply, {"W": normal(DIM, 7), "v": normal(7)}, X)


def own(apply, params, inputs, **more):
    outputs = jax.vmap(apply, (None, 0))(params, inputs)
    made = sh.setup(sh.per_sample(apply), params, inputs, np.zeros(outputs.shape), **more)
    return jax.tree.map(jnp.asarray, made.one())


def test_a_setup_takes_factors_beyond_a_small_jacobian(monkeypatch):
    monkeypatch.setattr(kernels, "SMALL", 0)
    for train in ("all", "q,v"):
        start = own(attention, ATTENTION, X, train=train)
        J = kernels.jacobian(start.network, start.inputs, train=start.trained)(start.params0)
        K = jax.jit(start.kernel())(start.params0)
        np.testing.assert_allclose(K, J @ J.T, rtol=0, atol=1e-12 * np.abs(K).max())


def test_coupled_samples_take_rows_of_the_whole_jacobian(monkeypatch):
    monkeypatch.setattr(kernels, "SMALL", 0)

    def centred(p, x):
        h = jnp.tanh(x.reshape(len(x), -1) @ p["W"])
        return (h - jnp.mean(h, axis=0)[None]) @ p["v"]

    params = {"W": normal(TOKENS * DIM, 20), "v": normal(20, 2)}
    start = jax.tree.map(jnp.asarray, sh.setup(centred, params, X, np.zeros((N, 2))).one())
    assert start.network.coupled
    J = jax.jacrev(lambda p: centred(p, X).ravel())(start.params0)
    for memory in (1.0, 3e-5):  # at once, and in lots
        made = jax.jit(kernels.tangent_kernels(start.network, X, memory=memory))(start.params0)
        for name, K in made.items():
            rows = J[name].reshape(2 * N, -1)
            np.testing.assert_allclose(K, rows @ rows.T, rtol=0, atol=1e-12 * np.abs(K).max())


@pytest.mark.slow
def test_a_torch_encoder_is_read_through_its_translation():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(DIM, 2, 12, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    start = jax.tree.map(jnp.asarray, sh.setup(module, X, np.zeros(X.shape)).one())
    routes = agrees(start.network.apply, start.params0, X)
    found = {name.rpartition("layers.")[2][2:]: route for name, route in routes.items()}
    assert found["linear1.weight"] != ("jacobian",)
    assert found["self_attn.in_proj_weight"] != ("jacobian",)
