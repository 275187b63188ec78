"""For which widths and step sizes does training succeed?

Powers of ten by which the risk falls in 100 steps, for 32 pairs of a width and a step size. Every
width is one compiled call, in which each seed has its own step size. White: the risk did not fall.
The two wide networks bear only shorter steps.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

widths, steps, fall = [8, 32, 128, 512], np.geomspace(0.003, 3, 8), []
for width in widths:
    setup = sh.setup("wu2023", num_samples=6, width=width, seeds=range(len(steps)))
    risk = sh.train(setup, steps=100, step_size=steps, probes=[]).risk
    fall.append(np.where(risk[:, -1] < risk[:, 0], np.log10(risk[:, 0] / risk[:, -1]), np.nan))
plt.imshow(fall, origin="lower", aspect="auto"), plt.grid(visible=False)
plt.xticks(range(8), [f"{s:.2g}" for s in steps]), plt.yticks(range(4), widths)
plt.xlabel("step size"), plt.ylabel("width"), plt.colorbar(label="decades gained")
