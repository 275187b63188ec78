"""What do more samples cost at the same width?

Medians of four seeds, each with the step that shoal chooses for it: with twice the samples training
is slower, in each of three doublings.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

for samples in (4, 8, 16, 32):
    setup = sh.setup("wu2023", num_samples=samples, width=128, seeds=range(4))
    run = sh.train(setup, steps=150, probes=[])
    plt.semilogy(run.step, np.median(run.risk / run.risk[:, :1], axis=0), label=f"{samples}")
plt.xlabel("step"), plt.ylabel("risk / first risk"), plt.legend(title="samples")
