"""Gradient descent, momentum or Adam?

Any optax transformation is a method. The same start and step size, three rules: momentum
and Adam end at about the same risk, but Adam more than twice as far from the start.
"""

import matplotlib.pyplot as plt
import optax

import shoal as sh

setup = sh.setup("wu2023", num_samples=10, width=64)
methods = {
    "gd": optax.sgd(0.01),
    "momentum": optax.sgd(0.01, momentum=0.9),
    "adam": optax.adam(0.01),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.8))
for name, method in methods.items():
    run = sh.train(setup, steps=200, method=method, probes=["distance"])
    left.semilogy(run.step, run.risk[0], label=name)
    right.plot(run.step, run.probes["distance"][0])
left.set(xlabel="step", ylabel="risk"), left.legend()
right.set(xlabel="step", ylabel="distance from the start")
