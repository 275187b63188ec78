"""Where does the error that is left live?

A network learns a curve. Shares of the squared residual by decade of the tangent kernel's
eigenvalues: what lies along large eigenvalues goes first, what is left lies along small ones.
Jumps are single eigenvalues that cross from one decade into the next; white is below 1e-6.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng, x = np.random.default_rng(0), np.linspace(-1, 1, 20)[:, None]
start = {"W": 3 * rng.normal(size=(1, 64)), "b": rng.normal(size=64), "v": rng.normal(size=64) / 8}
curve = np.sin(3 * x[:, 0]) + 0.3 * np.sin(12 * x[:, 0])
setup = sh.setup(lambda p, x: jnp.tanh(x @ p["W"] + p["b"]) @ p["v"], start, x, curve)
run = sh.train(setup, steps=1000, probes=["residual_spectrum"], every=20)
shares = run.probes["residual_spectrum"][0]
names = [f"{10.0**-k:g} to {10.0 ** (-k - 1):g}" for k in range(6)]
plt.stackplot(run.step, shares[:, :6].T, labels=names, colors=plt.cm.viridis(np.arange(6) / 5.5))
plt.legend(title="eigenvalue / largest", loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
plt.xlabel("step"), plt.ylabel("share of the squared residual"), plt.margins(0)
