"""What does a projection cost?

arda2026 keeps every head in a ball around its start. The smallest ball stops training early, the
next one slows it down; the runs of radius 1 and 3 are the same: those balls are never left.
"""

import matplotlib.pyplot as plt

import shoal as sh

for radius in (0.1, 0.3, 1.0, 3.0):
    setup = sh.setup("arda2026", num_samples=20, num_heads=16, radius=(radius,) * 3)
    run = sh.train(setup, steps=300, probes=[])
    plt.semilogy(run.step, run.risk[0], "--" if radius == 3 else "-", label=f"{radius:g}")
plt.xlabel("step"), plt.ylabel("risk"), plt.legend(title="radius")
