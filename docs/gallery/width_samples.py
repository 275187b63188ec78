"""What do more samples cost at the same width?

Twice the samples, slower training: every sample is one more direction that the kernel must reach.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

for samples in (4, 8, 16, 32):
    setup = sh.setup("wu2023", num_samples=samples, width=128, seeds=range(4))
    run = sh.train(setup, steps=150, probes=[])
    plt.semilogy(
        run.step, np.median(run.risk / run.risk[:, :1], axis=0), label=f"{samples} samples"
    )
plt.xlabel("step"), plt.ylabel("risk / first risk"), plt.legend(title="samples")
