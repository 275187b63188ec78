"""How far is gradient descent from gradient flow?

The flow is the limit of small steps. Against time (steps times step size) gradient descent with a
step of 0.01 lies on it; longer steps leave it, here to a lower risk.
"""

import matplotlib.pyplot as plt

import shoal as sh

setup = sh.setup("wu2023", num_samples=5, width=32)
flow = sh.train(setup, steps=20, step_size=0.05, method="flow", probes=[])
plt.semilogy(flow.step * 0.05, flow.risk[0], "k", lw=3, alpha=0.3, label="flow")
for step, count in ((0.01, 100), (0.05, 20), (0.1, 10)):
    run = sh.train(setup, steps=count, step_size=step, probes=[])
    plt.semilogy(run.step * step, run.risk[0], ".-", label=f"step {step}")
plt.xlabel("time"), plt.ylabel("risk"), plt.legend()
