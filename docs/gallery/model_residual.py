"""What do residual connections do to deep attention?

The condition number of attention's output, layer by layer, at the start: without residuals it
explodes with depth (tokens become alike), with them it stays small.
"""

import matplotlib.pyplot as plt

import shoal as sh

for residual in ("both", "none"):
    setup = sh.setup("qin2025", num_layers=4, residual=residual, num_samples=2, dim=16)
    run = sh.train(setup, steps=0, probes=["conditioning"])
    plt.semilogy(range(1, 5), run.probes["conditioning_condition"][0, 0], "o-", label=residual)
plt.xlabel("layer"), plt.ylabel("condition number"), plt.legend(title="residual")
