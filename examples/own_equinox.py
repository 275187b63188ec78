"""An Equinox module of one sample; shoal lifts it to the batch.

Run: python examples/own_equinox.py   (needs Equinox: pip install equinox)
"""

import equinox as eqx
import jax
import numpy as np

import shoal as sh

rng = np.random.default_rng(0)
x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 1))
model = eqx.nn.MLP(4, 1, 64, 2, activation=jax.numpy.tanh, key=jax.random.key(0))
setup = sh.setup(model, x, y)
run = sh.train(setup, steps=100, probes=["kernel_distance"])
print(run)
print(sh.certify(run, "kernel_regime"))
