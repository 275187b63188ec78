"""Which weights need to move?

song2024's attention layer with different blocks trained, the others frozen at their start. Values
alone are a least squares problem: a fast fall, then a slow one. Queries and keys alone are slower
still. All together end nearly twenty times lower than values alone.
"""

import matplotlib.pyplot as plt

import shoal as sh

for train in ("W_V", "W_Q", "W_Q,W_K", "all"):
    setup = sh.setup("song2024", train=train, num_samples=4)
    run = sh.train(setup, steps=300, every=10, probes=[])
    plt.semilogy(run.step, run.risk[0], label=train)
plt.xlabel("step"), plt.ylabel("risk"), plt.legend(title="trained")
