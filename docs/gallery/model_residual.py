"""What do residual connections do to deep attention?

The condition number of attention's output, layer by layer, at the start: without residuals it
is 2e3 after one layer, 2e11 after two, and infinite (not drawn) after three; with them it stays near
ten.
"""

import matplotlib.pyplot as plt

import shoal as sh

for residual in ("both", "none"):
    setup = sh.setup("qin2025", num_layers=4, residual=residual, num_samples=2, dim=16)
    run = sh.train(setup, steps=0, probes=["conditioning"])
    plt.semilogy(range(1, 5), run.probes["conditioning_condition"][0, 0], "o-", label=residual)
plt.xticks(range(1, 5))
plt.xlabel("layer"), plt.ylabel("condition number"), plt.legend(title="residual")
