"""Does a wider network train faster?

Per step, at one step size that all three bear: yes. The lines are medians of four seeds of wu2023's
encoder.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

for width in (16, 64, 256):
    setup = sh.setup("wu2023", num_samples=10, width=width, seeds=range(4))
    run = sh.train(setup, steps=100, step_size=0.01, probes=[])
    plt.semilogy(run.step, np.median(run.risk, axis=0), label=f"width {width}")
plt.xlabel("step"), plt.ylabel("risk"), plt.legend()
