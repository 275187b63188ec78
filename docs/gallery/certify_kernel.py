"""Does the kernel at the start predict the loss curve?

For a network of two widths: the prediction of the tangent kernel (dashed) and the run. Both
begin alike; the wide one stays on its prediction, the narrow one leaves it after some 30 steps.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng = np.random.default_rng(0)
x, y = rng.normal(size=(8, 3)), rng.normal(size=8)


def network(params, x):
    return jnp.tanh(x @ params["W"]) @ params["v"] / params["v"].size ** 0.5


for k, width in enumerate((8, 2048)):
    start = {"W": rng.normal(size=(3, width)), "v": rng.normal(size=width)}
    run = sh.train(sh.setup(network, start, x, y), steps=200, probes=["kernel_distance"])
    curves = sh.certify(run, "kernel_regime")[0].curves
    plt.semilogy(run.step, run.risk[0], f"C{k}", label=f"width {width}")
    for values in list(curves.values())[:1]:
        plt.semilogy(run.step, values, f"C{k}--")
plt.plot([], [], "k--", label="predicted")
plt.xlabel("step"), plt.ylabel("risk"), plt.legend()
