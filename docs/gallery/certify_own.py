"""Can I check a theorem of my own?

Gradient descent with a step below 2 / sharpness should never raise the risk. A theorem is a function
that returns both sides of its inequalities. It holds for the two shortest steps. The others are too
long at some record, so it says nothing about them: two of these runs do rise, one diverges.
"""

import matplotlib.pyplot as plt

import shoal as sh


def never_rises(setup, run):
    top = run.probes["sharpness_value"]
    return sh.Certificate(
        hypotheses={"step < 2 / sharpness": sh.Inequality(setup.step_size * top, 2.0)},
        conclusions={"risk falls": sh.Inequality(run.risk[1:], run.risk[:-1])},
    )


setup = sh.setup("wu2023", num_samples=4, num_tokens=3, dim=6, width=16)
for step in (0.02, 0.05, 0.1, 0.2, 0.4):
    run = sh.train(setup, steps=40, step_size=step, probes=["sharpness"])
    plt.semilogy(run.step, run.risk[0], label=f"{step}: {sh.certify(run, never_rises).verdict}")
plt.ylim(1e-10, 1e3), plt.xlabel("step"), plt.ylabel("risk"), plt.legend(title="step size")
