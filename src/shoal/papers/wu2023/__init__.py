"""Wu, Liu, Chrysos, Cevher (2023): On the Convergence of Encoder-only Shallow Transformers.

Certified here: theorem A (gradient descent) and theorem B (gradient flow), both ours after the
route of the paper's Theorem 1; theorem C (width), ours; and the prediction of the initial tangent
kernel. The paper's own constants are not certified: its full text was not available to us.
"""

from shoal.papers.wu2023 import model, theorems  # isort: skip
from shoal.papers.wu2023.model import PAPER, Wu

__all__ = ["PAPER", "Wu"]
