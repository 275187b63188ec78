"""A model of one's own for `shoal lab`: one attention head that learns which token matters.

Copy this file, change the model, and open it with ``shoal lab my.py:model``. Keywords of the
function become sliders.
"""

import jax
import jax.numpy as jnp
import numpy as np

import shoal as sh

DIM = 6


def attend(params, x):
    """Outputs for the whole batch: each sequence asks one query, and reads one value."""
    scores = jnp.einsum("btd,de,e->bt", x, params["key"], params["query"])
    weights = jax.nn.softmax(scores, axis=1)
    hidden = jnp.tanh(jnp.einsum("bt,btd->bd", weights, x) @ params["hidden"])
    return hidden @ params["readout"]


def model(width=24, num_samples=4, num_tokens=5, noise=0.1, seeds=(0,)):
    """The target is the first entry of the token whose last entry is largest, and some noise."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, num_tokens, DIM))
    chosen = np.argmax(x[:, :, -1], axis=1)
    y = x[np.arange(num_samples), chosen, 0] + noise * rng.standard_normal(num_samples)

    def initial(key):
        keys = jax.random.split(key, 4)
        return {
            "key": jax.random.normal(keys[0], (DIM, DIM)) / DIM**0.5,
            "query": jax.random.normal(keys[1], (DIM,)) / DIM**0.5,
            "hidden": jax.random.normal(keys[2], (DIM, width)) / DIM**0.5,
            "readout": jax.random.normal(keys[3], (width,)) / width**0.5,
        }

    return sh.setup(attend, initial, x, y, seeds=seeds)
