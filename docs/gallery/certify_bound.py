"""How loose is a proved rate?

theorem_a proves that the risk falls at least like the dashed line. The run, with the same step, loses
about 15 times as much of its risk in a step, and its verdict is in the legend.
"""

import matplotlib.pyplot as plt

import shoal as sh

setup = sh.setup(
    "wu2023", num_samples=3, num_tokens=2, dim=16, tokens="unit", label_scale=0.3,
    pooling="sum", width=40000, score_exponent=1.0,
)  # fmt: skip
run = sh.train(setup, steps=40, step_size="theorem_a")
found = sh.certify(run, "theorem_a")
rate = found[0].predicted_rate
plt.semilogy(run.step, run.risk[0], label=f"run: {found.verdict}")
plt.semilogy(run.step, run.risk[0, 0] * (1 - rate) ** run.step, "--", label="proved")
plt.xlabel("step"), plt.ylabel("risk"), plt.legend()
