"""Your own model: any function of parameters and a batch, any pytrees, any loss, any optimiser.

Here a classifier of short sequences with one attention head. Parameters and inputs are dicts, the
loss is cross-entropy, and optax does the steps.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shoal as sh

SAMPLES, TOKENS, DIM, CLASSES = 60, 6, 8, 3


def classify(params, x):
    """Scores of every class: attend with one query, then a linear layer. x is the whole batch."""
    tokens = x["tokens"] @ params["embed"]
    scores = jnp.where(x["present"], tokens @ params["attention"]["query"], -1e9)
    pooled = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores, axis=1), tokens)
    return jnp.tanh(pooled) @ params["readout"]


def initial(key):
    """Initial weights of one seed."""
    keys = jax.random.split(key, 3)
    return {
        "embed": jax.random.normal(keys[0], (DIM, DIM)) / DIM**0.5,
        "attention": {"query": jax.random.normal(keys[1], (DIM,)) / DIM**0.5},
        "readout": jax.random.normal(keys[2], (DIM, CLASSES)) / DIM**0.5,
    }


# Data of any shapes, samples first: sequences of different lengths, and their classes.
rng = np.random.default_rng(0)
classes = rng.integers(CLASSES, size=SAMPLES)
tokens = rng.standard_normal((SAMPLES, TOKENS, DIM)) + np.eye(CLASSES, DIM)[classes, None]
x = {"tokens": tokens, "present": np.arange(TOKENS) < rng.integers(2, TOKENS + 1, (SAMPLES, 1))}

setup = sh.setup(classify, initial, x, classes, loss="cross_entropy", seeds=range(2))
print(setup)

# Any optax transformation is a method; blocks are named by their path, as in attention.query.
adam = optax.adam(0.05)
run = sh.train(setup, steps=60, method=adam, probes=["movement", "gradient_norm", "sharpness@20"])
print(run)

# Train a part of the weights only, by gradient descent with a step chosen for each seed.
frozen = sh.setup(classify, initial, x, classes, loss="cross_entropy", train="attention.*,readout")
print("only attention and readout:", sh.train(frozen, steps=60).risk[0, [0, -1]])

# The risk around where training ended, and a page about all of it.
plane = sh.landscape(run, points=15)
print(plane)
page = Path(tempfile.mkdtemp()) / "report.html"
sh.report(run, plane.figure, out=page, title="A classifier of sequences")
print("wrote", page)
