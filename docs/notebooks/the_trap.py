# %% [markdown]
# # The trap
#
# Four tokens with keys -2, -1, 1, 2 and one number to reach. If only the query weights move, softmax attention slides into a local minimum
# and stays; a Gaussian kernel reaches zero, and so does softmax if the keys may move too (song2024).

# %%
import matplotlib.pyplot as plt

import shoal as sh

runs = {}
for kernel, train in (("softmax", "W_Q"), ("gaussian", "W_Q"), ("softmax", "W_Q,W_K")):
    setup = sh.setup("song2024", problem="trap", init="trap", kernel=kernel, train=train)
    runs[f"{kernel}, {train}"] = sh.train(setup, steps=5000, every=50, probes=[])
for name, run in runs.items():
    plt.semilogy(run.step, run.risk[0], label=name)
plt.xlabel("step"), plt.ylabel("risk"), plt.ylim(bottom=1e-12), plt.legend()

# %% [markdown]
# Stuck, or only slow? The end of the first run: the gradient is gone, the Hessian is positive, and the risk is above its floor.

# %%
(end,) = runs["softmax, W_Q"].final_states()
print(end["state"], "gradient", end["gradient_norm"], "Hessian from", end["hessian_min"])
assert end["state"] == "stuck"

# %% [markdown]
# That is a measurement. This is a proof: from some step on, gradient descent never leaves, for all time.

# %%
stuck = sh.prove(runs["softmax, W_Q"])
free = sh.prove(runs["gaussian, W_Q"])
print(stuck)
print(free)
assert (stuck.verdict, free.verdict) == ("stuck", "converges")

# %% [markdown]
# The risk around both ends:

# %%
sh.landscape(
    runs["softmax, W_Q"], runs["gaussian, W_Q"], points=31, names=("softmax", "gaussian")
).plot()
