"""From which step on is it certain that a run converges?

In the shaded part the fate of this run is proved: no later step can leave a ball in which every step
lowers the residual by a proved factor.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng = np.random.default_rng(0)
start = {"W": rng.normal(size=(3, 8)) / 2, "b": np.zeros(8), "v": rng.normal(size=8) / 3}
setup = sh.setup(
    lambda p, x: jnp.tanh(x @ p["W"] + p["b"]) @ p["v"],
    start, rng.normal(size=(4, 3)), rng.normal(size=4),
)  # fmt: skip
run = sh.train(setup, steps=250, step_size=0.1, probes=[])
proof = sh.prove(run)
plt.semilogy(run.step, run.risk[0])
plt.axvspan(proof.step, 250, alpha=0.15, label=f"{proof.verdict}, proved from {proof.step} on")
plt.xlabel("step"), plt.ylabel("risk"), plt.legend()
