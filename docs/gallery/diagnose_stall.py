"""Why does this model hardly learn?

Scores that should be divided by the root of the dimension are multiplied by the dimension. shoal
finds the saturated attention, divides the scores by 16.9 and trains again: 600 steps now end more
than ten times lower.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng = np.random.default_rng(0)
x = rng.normal(size=(120, 6, 16))
y = 1.5 * x[np.arange(120), np.argmax(x[:, :, 0], axis=1), 1]
start = {name: rng.normal(size=(16, 16)) / 7 for name in "qkv"} | {"head": rng.normal(size=16) / 7}


def layer(p, x):
    scores = 16 * (x @ p["q"]) @ jnp.swapaxes(x @ p["k"], 1, 2)  # the mistake
    return (x + jax.nn.softmax(scores) @ x @ p["v"]).mean(1) @ p["head"]


found = sh.diagnose(sh.setup(layer, start, x, y, loss="mean_squares"), steps=600)
print(found.verdict, [cause.key for cause in found.causes])
for curve in found.risk.curves:
    plt.semilogy(curve.x, curve.y, label=curve.label)
plt.xlabel("step"), plt.ylabel("risk"), plt.legend()
