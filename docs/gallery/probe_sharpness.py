"""Does training end at the edge of stability?

Beyond a sharpness (largest eigenvalue of the Hessian) of 2 / step size gradient descent is unstable.
With both steps the sharpness rises past that line, is thrown back, and settles on it.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng = np.random.default_rng(0)
x, y = rng.normal(size=(20, 4)), rng.normal(size=20)
start = {"W": rng.normal(size=(4, 20)) / 2, "v": rng.normal(size=20) / 5}
setup = sh.setup(lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"], start, x, y)
for k, step in enumerate((0.01, 0.02)):
    run = sh.train(setup, steps=1500, step_size=step, probes=["sharpness@10"])
    seen = run.step % 10 == 0
    plt.plot(run.step[seen], run.probes["sharpness_value"][0, seen], f"C{k}", label=f"step {step}")
    plt.axhline(2 / step, color=f"C{k}", ls="--", lw=0.8)
plt.xlabel("step"), plt.ylabel("sharpness (dashed: 2 / step)"), plt.legend()
