"""Can I record a quantity of my own?

A probe is a function of a setup that returns a function of the weights. Here: the stable rank of
wu2023's value weights while they are trained. It changes by about one per
cent, in the first hundred steps.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt

import shoal as sh


def stable_rank(setup):
    return lambda params: jnp.sum(params.W_V**2) / jnp.linalg.norm(params.W_V, 2) ** 2


setup = sh.setup("wu2023", num_samples=10, width=64, seeds=range(3))
run = sh.train(setup, steps=300, probes={"stable_rank": stable_rank})
plt.plot(run.step, run.probes["stable_rank"].T, label=[f"seed {k}" for k in run.seeds])
plt.xlabel("step"), plt.ylabel("stable rank of W_V"), plt.legend()
