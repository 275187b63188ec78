"""How does the step size change what can be proved?

Each label says from which step on the fate of the run is certain. Of these three the longest step
converges fastest and is proved first, although it overshoots in its first steps.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng = np.random.default_rng(1)
start = {"W": rng.normal(size=(3, 8)) / 2, "v": rng.normal(size=8) / 3}
x, y = rng.normal(size=(3, 3)), rng.normal(size=3) / 2
setup = sh.setup(lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"], start, x, y)
for step in (0.05, 0.1, 0.2):
    run = sh.train(setup, steps=600, step_size=step, probes=[])
    proof = sh.prove(run, levels=("jets",))
    said = f"from {proof.step}" if proof.verdict == "converges" else proof.verdict
    plt.semilogy(run.step, run.risk[0], label=f"{step}: {said}")
plt.xlabel("step"), plt.ylabel("risk"), plt.legend(title="step size: proved")
