"""How much is the luck of the draw?

64 seeds of the initial weights on one problem, in one compiled call: every line is a seed, the red
one is the median. After 200 steps the luckiest is eight powers of ten below the unluckiest.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

setup = sh.setup("wu2023", num_samples=10, width=32, seeds=range(64))
run = sh.train(setup, steps=200, step_size=0.02, probes=[])
plt.semilogy(run.step, run.risk.T, color="C0", alpha=0.12)
plt.semilogy(run.step, np.median(run.risk, axis=0), "C1", lw=2)
plt.xlabel("step"), plt.ylabel("risk of 64 seeds")
