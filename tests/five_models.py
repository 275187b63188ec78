"""One attention model, written five times: plain JAX, Flax NNX, Flax Linen, Equinox, PyTorch.

Each function returns what `shoal.setup` takes before the data; all start from the same weights.
"""

import jax
import jax.numpy as jnp
import numpy as np

SAMPLES, TOKENS, DIM, KEY = 5, 4, 6, 3


def weights():
    rng = np.random.default_rng(1)
    shapes = {"q": (DIM, KEY), "k": (DIM, KEY), "v": (DIM, DIM), "o": (DIM, 1)}
    return {name: rng.standard_normal(shape) / np.sqrt(DIM) for name, shape in shapes.items()}


def data():
    rng = np.random.default_rng(2)
    return rng.standard_normal((SAMPLES, TOKENS, DIM)), rng.standard_normal(SAMPLES)


def attend(x, q, k, v, o):
    scores = q @ jnp.swapaxes(k, -1, -2) / np.sqrt(KEY)
    h = x + jax.nn.softmax(scores, axis=-1) @ v
    return o(jnp.tanh(h).mean(-2))[..., 0]


def plain():
    def model(params, x):
        q, k, v = (x @ params[name] for name in "qkv")
        return attend(x, q, k, v, lambda h: h @ params["o"])

    return model, weights()


def nnx_module():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self):
            for name, W in weights().items():
                layer = nnx.Linear(*W.shape, use_bias=False, rngs=nnx.Rngs(0), param_dtype=float)
                layer.kernel[...] = jnp.asarray(W)
                setattr(self, name, layer)

        def __call__(self, x):
            return attend(x, self.q(x), self.k(x), self.v(x), self.o)

    return (Model(),)


def linen_module():
    from flax import linen

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            def layer(name, size):
                return linen.Dense(size, use_bias=False, name=name, param_dtype=float)

            q, k, v = (layer(n, s)(x) for n, s in (("q", KEY), ("k", KEY), ("v", DIM)))
            return attend(x, q, k, v, layer("o", 1))

    return Model(), {"params": {name: {"kernel": W} for name, W in weights().items()}}


def equinox_module():
    import equinox as eqx

    class Model(eqx.Module):
        q: jax.Array
        k: jax.Array
        v: jax.Array
        o: jax.Array

        def __call__(self, x):
            return attend(x, x @ self.q, x @ self.k, x @ self.v, lambda h: h @ self.o)

    return (Model(**{name: jnp.asarray(W) for name, W in weights().items()}),)


def torch_module():
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, W in weights().items():
                layer = torch.nn.Linear(*W.shape, bias=False, dtype=torch.float64)
                layer.weight.data = torch.as_tensor(W.T.copy())
                setattr(self, name, layer)

        def forward(self, x):
            scores = self.q(x) @ self.k(x).transpose(-1, -2) / KEY**0.5
            h = x + torch.softmax(scores, -1) @ self.v(x)
            return self.o(torch.tanh(h).mean(-2))[..., 0]

    return (Model(),)


MODELS = {
    "jax": (plain, None),
    "nnx": (nnx_module, "flax"),
    "linen": (linen_module, "flax"),
    "equinox": (equinox_module, "equinox"),
    "torch": (torch_module, "torch"),
}
