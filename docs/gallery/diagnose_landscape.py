"""What does the risk look like around a local minimum?

Planes of two random directions around the ends of two runs of song2024's trap. Softmax ends at the
bottom of a basin whose bottom is at 0.05, the Gaussian kernel in one that reaches zero.
"""

import shoal as sh

runs = []
for kernel in ("softmax", "gaussian"):
    setup = sh.setup("song2024", problem="trap", init="trap", kernel=kernel, train="W_Q")
    runs.append(sh.train(setup, steps=3000, probes=[], every=100))
plane = sh.landscape(*runs, points=31, names=("softmax", "gaussian"))
plane.plot()
