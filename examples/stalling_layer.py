"""A PyTorch layer that hardly learns, and what shoal finds.

The layer attends with scores that were meant to be divided by sqrt(dim) and are multiplied by dim
instead: every softmax looks at one token, and its gradient is gone.

Run: python examples/stalling_layer.py   (needs PyTorch: pip install torch==2.13.0)
"""

import numpy as np
import torch

import shoal as sh

DIM = 16


class Layer(torch.nn.Module):
    """Attention with a residual connection, and a head on the mean token."""

    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(DIM, DIM, bias=False)
        self.key = torch.nn.Linear(DIM, DIM, bias=False)
        self.value = torch.nn.Linear(DIM, DIM, bias=False)
        self.head = torch.nn.Linear(DIM, 1, bias=False)

    def forward(self, x):
        """One number for every sequence."""
        scores = self.query(x) @ self.key(x).transpose(1, 2) * DIM  # the mistake
        h = x + torch.softmax(scores, dim=-1) @ self.value(x)
        return self.head(h.mean(1))


rng = np.random.default_rng(0)
x = rng.standard_normal((120, 6, DIM))  # samples, tokens, dim
chosen = x[np.arange(120), np.argmax(x[:, :, 0], axis=1), 1]  # a token that must be looked for
y = 1.5 * chosen[:, None]

torch.manual_seed(0)
layer = Layer()
run = sh.train(sh.setup(layer, x, y, loss="mean_squares"), steps=600)
found = sh.diagnose(run)
print(found)
found.page("stalling.html")
