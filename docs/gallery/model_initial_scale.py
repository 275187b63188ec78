"""How large should initial weights be?

Ten initial scales of one small network at one step size, 1000 steps each. Small weights begin near
the saddle at zero, where the gradient is small, and lose their time there. Here larger is better up
to the largest that was tried.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng = np.random.default_rng(0)
x, y = rng.normal(size=(10, 4)), rng.normal(size=10)
W, v = rng.normal(size=(4, 32)), rng.normal(size=32)
scales = np.geomspace(0.01, 10, 10)
last = []
for scale in scales:
    start = {"W": scale * W, "v": scale * v / 6}
    setup = sh.setup(lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"], start, x, y)
    last.append(sh.train(setup, steps=1000, step_size=0.005, probes=[]).risk[0, -1])
plt.loglog(scales, last, "o-")
plt.xlabel("scale of the initial weights"), plt.ylabel("risk after 1000 steps")
