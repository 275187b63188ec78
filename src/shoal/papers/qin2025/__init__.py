"""Qin, Zhou, Jiang, Zhu (2025): Gradient Descent on Transformers with Residual Connections.

The paper's full text was not available to us. We know its abstract (linear convergence at a speed
that the smallest and largest singular value of the attention layer's output decide; residual
connections cure the ill-conditioning of softmax) and excerpts. The network's details, theorems D0
and D, all constants and all settings are ours; ``docs/theory/qin2025.md`` says which is which.
"""

from shoal.papers.qin2025 import figures, model, rates, studies, theorems
from shoal.papers.qin2025.model import PAPER, Qin

__all__ = ["PAPER", "Qin", "figures", "model", "rates", "studies", "theorems"]
