"""What does the risk look like around a local minimum?

The plane through the end of two runs of song2024's trap: softmax sits in a shallow basin above zero,
the Gaussian kernel in one that reaches zero.
"""

import shoal as sh

runs = []
for kernel in ("softmax", "gaussian"):
    setup = sh.setup("song2024", problem="trap", init="trap", kernel=kernel, train="W_Q")
    runs.append(sh.train(setup, steps=3000, probes=[], every=100))
plane = sh.landscape(*runs, points=31, names=("softmax", "gaussian"))
plane.plot()
