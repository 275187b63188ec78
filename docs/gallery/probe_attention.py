"""What does attention look at, before and after training?

Attention weights of one sequence in qin2025's residual block: at the start, and after 500 steps.
The pattern hardly changes.
"""

import matplotlib.pyplot as plt

import shoal as sh

setup = sh.setup("qin2025", num_layers=1, scale_qk=2.0)
run = sh.train(setup, steps=500, every=500, probes=["attention"])
maps = run.probes["attention"][0]  # (records, samples, tokens, tokens)
figure, axes = plt.subplots(1, 2, figsize=(5.2, 2.6))
for axis, weights, title in zip(axes, maps[[0, -1]], ("start", "step 500"), strict=True):
    shown = axis.imshow(
        weights.reshape(-1, *weights.shape[-2:])[0], vmin=0, vmax=maps.max(), cmap="viridis"
    )
    axis.set(title=title, xlabel="looked at", ylabel="token"), axis.grid(visible=False)
figure.colorbar(shown, ax=axes, label="weight")
