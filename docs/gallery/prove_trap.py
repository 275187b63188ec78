"""Is this run stuck for ever, or only slow?

song2024's trap: four tokens, one number to reach, only the query weights move. Softmax attention is
proved to stay near its risk of 0.05 for ever; a Gaussian kernel is proved to converge to zero.
"""

import matplotlib.pyplot as plt

import shoal as sh

for kernel in ("softmax", "gaussian"):
    setup = sh.setup("song2024", problem="trap", init="trap", kernel=kernel, train="W_Q")
    run = sh.train(setup, steps=5000, probes=[], every=50)
    proof = sh.prove(run)
    plt.semilogy(run.step, run.risk[0], label=f"{kernel}: {proof.verdict}")
plt.xlabel("step"), plt.ylabel("risk"), plt.ylim(bottom=1e-12), plt.legend()
