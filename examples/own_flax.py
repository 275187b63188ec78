"""A Flax NNX module: train it with any optax transformation, and get the module back.

Run: python examples/own_flax.py   (needs Flax: pip install flax)
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import shoal as sh


class Attention(nnx.Module):
    """One head of attention, averaged over tokens."""

    def __init__(self, dim, rngs):
        self.attend = nnx.MultiHeadAttention(2, dim, decode=False, rngs=rngs)
        self.out = nnx.Linear(dim, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.attend(x)).mean(1))[:, 0]


rng = np.random.default_rng(0)
x, y = rng.standard_normal((10, 5, 8)), rng.standard_normal(10)
setup = sh.setup(Attention(8, nnx.Rngs(0)), x, y, loss="mean_squares")
run = sh.train(setup, steps=200, method=optax.adam(1e-2), probes=["movement"])
print(run)
module = run.state_dict()
print(f"the module again: {type(module).__name__}, outputs {module(jnp.asarray(x)).shape}")
