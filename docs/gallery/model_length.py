"""Do long sequences slow training down?

arda2026 says that its bounds do not depend on the length of the sequences. Of these three runs (one
seed each) that with 4 tokens is much faster; 16 and 64 tokens differ little.
"""

import matplotlib.pyplot as plt

import shoal as sh

for tokens in (4, 16, 64):
    setup = sh.setup("arda2026", num_samples=20, num_heads=16, num_tokens=tokens)
    run = sh.train(setup, steps=100, probes=[])
    plt.semilogy(run.step, run.risk[0] / run.risk[0, 0], label=f"{tokens}")
plt.xlabel("step"), plt.ylabel("risk / first risk"), plt.legend(title="tokens")
