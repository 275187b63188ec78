"""A PyTorch layer, as it is: train it, look at its gradients, put the weights back.

Run: python examples/own_torch.py   (needs PyTorch: pip install torch==2.13.0)
"""

import numpy as np
import torch

import shoal as sh

rng = np.random.default_rng(0)
x = rng.standard_normal((12, 6, 16))  # samples, tokens, dim
y = rng.standard_normal((12, 6, 16))

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
setup = sh.setup(layer, x, y, loss="mean_squares")  # evaluation mode: dropout is off
run = sh.train(setup, steps=100, step_size=0.1, probes=["gradient_norm", "sharpness@50"])
print(run)

last = {name: float(run.probes[f"gradient_norm_{name}"][0, -1]) for name in setup.trained}
weakest = min(last, key=last.get)
print(f"smallest gradient at the end: {weakest} ({last[weakest]:.1e})")

layer.load_state_dict(run.state_dict())
with torch.no_grad():
    outputs = layer.eval()(torch.as_tensor(x, dtype=torch.float32)).numpy()
print(f"risk in PyTorch with the trained weights: {np.mean((outputs - y) ** 2):.6f}")
