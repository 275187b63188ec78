"""Small models with a fault planted in each, and healthy ones: what a diagnosis is tried on.

Every entry makes a setup and says how it is trained. The base models are an MLP, a stack of
attention layers, and PyTorch encoders; faults are put in by hand, one at a time.
"""

import jax
import jax.numpy as jnp
import numpy as np

import shoal as sh

N, TOKENS, DIM, HIDDEN = 24, 6, 8, 48


def rng(seed=0):
    return np.random.default_rng(seed)


# ------------------------------------------------------------------------------------- an MLP


def mlp(params, x):
    h = jax.nn.relu(x @ params["W1"] + params["b1"])
    h = jax.nn.relu(h @ params["W2"] + params["b2"])
    return (h @ params["W3"])[:, 0]


def mlp_params(seed=0, dim=DIM, hidden=HIDDEN):
    g = rng(seed)
    return {
        "W1": g.normal(size=(dim, hidden)) * np.sqrt(2 / dim), "b1": np.zeros((1, hidden)),
        "W2": g.normal(size=(hidden, hidden)) * np.sqrt(2 / hidden), "b2": np.zeros((1, hidden)),
        "W3": g.normal(size=(hidden, 1)) / np.sqrt(hidden),
    }  # fmt: skip


def mlp_data(seed=1, dim=DIM, count=N):
    g = rng(seed)
    x = g.normal(size=(count, dim))
    return x, np.sin(x @ g.normal(size=dim)) + 0.1 * g.normal(size=count)


# ------------------------------------------------------------------- attention layers, residual


def attend(layer, h):
    scores = h @ layer["Q"] @ jnp.swapaxes(h @ layer["K"], -1, -2) / np.sqrt(DIM)
    return jax.nn.softmax(scores, axis=-1) @ (h @ layer["V"])


def encoder(params, x):
    h = x
    for layer in params["layers"]:
        h = h + attend(layer, h)
        h = h + jax.nn.gelu(h @ layer["W1"]) @ layer["W2"]
    return h.mean(1) @ params["out"]


def bare_encoder(params, x):
    h = x
    for layer in params["layers"]:
        h = attend(layer, h)
        h = jax.nn.gelu(h @ layer["W1"]) @ layer["W2"]
    return h @ params["out"]


def encoder_params(seed=0, layers=2, dim=DIM):
    g = rng(seed)

    def square(rows, columns, size=1.0):
        return g.normal(size=(rows, columns)) * size / np.sqrt(rows)

    made = [
        {"Q": square(dim, dim), "K": square(dim, dim), "V": square(dim, dim),
         "W1": square(dim, 2 * dim), "W2": square(2 * dim, dim, 0.5)}
        for _ in range(layers)
    ]  # fmt: skip
    return {"layers": made, "out": g.normal(size=dim) / np.sqrt(dim)}


def tokens(seed=1, count=N, dim=DIM):
    g = rng(seed)
    x = g.normal(size=(count, TOKENS, dim))
    return x, np.tanh(x[:, 0] @ g.normal(size=dim)) + 0.5 * np.sign(x[:, 1, 0])


# -------------------------------------------------------------------------------- twelve faults


def step_too_long():
    return sh.setup(mlp, mlp_params(), *mlp_data(), loss="mean_squares"), {
        "steps": 300,
        "step_size": 3.0,
    }


def step_too_short():
    return sh.setup(mlp, mlp_params(), *mlp_data(), loss="mean_squares"), {
        "steps": 300,
        "step_size": 1e-5,
    }


def choose(count=80):
    """Tokens, and a target that one must look for: where the first entry is largest."""
    x = rng(1).normal(size=(count, TOKENS, DIM))
    return x, 1.5 * x[np.arange(count), np.argmax(x[:, :, 0], axis=1), 1]


def attention_only(params, x):
    h = x
    for layer in params["layers"]:
        h = h + attend(layer, h)
    return h.mean(1) @ params["out"]


def attention_params(seed=0, layers=2):
    params = encoder_params(seed, layers)
    params["layers"] = [{k: layer[k] for k in "QKV"} for layer in params["layers"]]
    return params


def saturated_attention():
    params = attention_params()
    params["layers"][1]["Q"] = params["layers"][1]["Q"] * 30
    params["layers"][1]["K"] = params["layers"][1]["K"] * 30
    return sh.setup(attention_only, params, *choose(), loss="mean_squares"), {"steps": 1000}


def saturated_attention_torch():
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    with torch.no_grad():
        model[0].layers[1].self_attn.in_proj_weight[: 2 * DIM] *= 40
    x, _ = tokens()
    return sh.setup(
        model, x.astype(np.float32), rng(3).normal(size=x.shape), loss="mean_squares"
    ), {"steps": 300}


def uniform_attention():
    params = attention_params()
    for layer in params["layers"]:
        layer["Q"], layer["K"] = layer["Q"] * 1e-4, layer["K"] * 1e-4
    return sh.setup(attention_only, params, *choose(), loss="mean_squares"), {"steps": 1000}


def collapsed_tokens():
    params = encoder_params(layers=4)
    for layer in params["layers"]:
        layer["Q"], layer["K"] = layer["Q"] * 0.3, layer["K"] * 0.3
    x, _ = tokens()
    y = x[..., 0] * np.sign(x[..., 1])
    return sh.setup(bare_encoder, params, x, y, loss="mean_squares"), {
        "steps": 1000,
        "step_size": 0.3,
    }


def dead_units():
    params = mlp_params()
    params["b2"] = params["b2"] - 30
    return sh.setup(mlp, params, *mlp_data(), loss="mean_squares"), {
        "steps": 300,
        "step_size": 0.05,
    }


def frozen_block():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(DIM, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 2),
    )
    for p in (*model[0].parameters(), *model[2].parameters()):
        p.requires_grad_(False)
    x = rng(1).normal(size=(60, DIM))
    y = np.stack([np.sin(2 * x[:, 0]) * x[:, 1], np.cos(2 * x[:, 2])], 1)
    return sh.setup(model, x, y, loss="mean_squares"), {"steps": 600}


def contradicting_samples():
    x, y = mlp_data(count=16)
    x[3], x[7] = x[2], x[6]
    y[2], y[3], y[6], y[7] = 1, -1, 2, 0
    return sh.setup(mlp, mlp_params(), x, y, loss="mean_squares"), {"steps": 1500}


def label_scale():
    x, y = mlp_data()
    return sh.setup(mlp, mlp_params(), x, 1000 * y, loss="mean_squares"), {
        "steps": 300,
        "step_size": 0.05,
    }


def too_narrow():
    x, y = mlp_data(count=80)
    return sh.setup(mlp, mlp_params(hidden=2), x, y, loss="mean_squares"), {"steps": 3000}


def block_scale():
    params = mlp_params()
    params["W1"] = params["W1"] * 200
    return sh.setup(mlp, params, *mlp_data(), loss="mean_squares"), {"steps": 300}


def ill_conditioned():
    x, y = mlp_data(dim=12, count=12)

    def linear(w, x):
        return x @ w

    return sh.setup(linear, np.zeros(12), x * np.logspace(0, -4, 12), y), {"steps": 500}


FAULTS = {
    name: globals()[name]
    for name in (
        "step_too_long", "step_too_short", "saturated_attention", "uniform_attention",
        "collapsed_tokens", "dead_units", "frozen_block", "contradicting_samples", "label_scale",
        "too_narrow", "block_scale", "ill_conditioned",
    )
}  # fmt: skip


# ----------------------------------------------------------------------------- twelve healthy ones


def healthy_mlp():
    return sh.setup(mlp, mlp_params(), *mlp_data(), loss="mean_squares"), {"steps": 1000}


def healthy_tanh():
    def net(p, x):
        return jnp.tanh(x @ p["a"]) @ p["b"]

    g = rng(5)
    params = {"a": g.normal(size=(DIM, 64)) / np.sqrt(DIM), "b": g.normal(size=64) / 8}
    return sh.setup(net, params, *mlp_data()), {"steps": 2000}


def healthy_linear():
    x, _ = mlp_data(count=40)
    return sh.setup(lambda w, x: x @ w, np.zeros(DIM), x, x @ np.arange(DIM)), {"steps": 300}


def healthy_attention():
    return sh.setup(attention_only, attention_params(), *choose(40), loss="mean_squares"), {
        "steps": 1000
    }


def healthy_encoder():
    params = encoder_params()
    for layer in params["layers"]:
        layer["V"], layer["W2"] = layer["V"] * 0.3, layer["W2"] * 0.3
    return sh.setup(encoder, params, *tokens(), loss="mean_squares"), {"steps": 1000}


def healthy_logistic():
    x, _ = mlp_data(count=40)
    return sh.setup(mlp, mlp_params(), x, np.sign(x[:, 0]), loss="logistic"), {
        "steps": 500,
        "step_size": 0.2,
    }


def healthy_head_only():
    """Random features: frozen on purpose, and enough of them."""
    params = mlp_params(hidden=200)
    return sh.setup(mlp, params, *mlp_data(), loss="mean_squares", train="W3"), {"steps": 3000}


def healthy_zero_head():
    params = mlp_params()
    params["W3"] = params["W3"] * 0
    return sh.setup(mlp, params, *mlp_data(), loss="mean_squares"), {"steps": 1000}


def healthy_wu():
    return sh.setup("wu2023", width=128), {"steps": 300}


def healthy_qin():
    return sh.setup("qin2025"), {"steps": 500}


def healthy_torch_encoder():
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        DIM, 2, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
    )

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(DIM, 3)

        def forward(self, x):
            return self.head(self.encoder(x).mean(1))

    x = rng(1).normal(size=(20, TOKENS, DIM))
    return sh.setup(
        Model(), x.astype(np.float32), rng(2).integers(0, 3, 20), loss="cross_entropy"
    ), {"steps": 400, "step_size": 0.1}


def healthy_torch_cnn():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 1),
    )
    x = rng(1).normal(size=(20, 1, 8, 8)).astype(np.float32)
    return sh.setup(model, x, rng(2).normal(size=(20, 1)), loss="mean_squares"), {"steps": 600}


HEALTHY = {name: make for name, make in globals().items() if name.startswith("healthy_")}
