"""Wu, Liu, Chrysos, Cevher (2023): On the Convergence of Encoder-only Shallow Transformers.

Certified here: theorem A (gradient descent) and theorem B (gradient flow), both ours after the
route of the paper's Theorem 1; theorem C (width), ours; and the prediction of the initial tangent
kernel. The paper's own constants are not certified: its full text was not available to us.
"""

# theorems, claims and figures register themselves with the paper, in this order
from shoal.papers.wu2023.model import PAPER, Wu  # isort: skip
from shoal.papers.wu2023 import (
    depth_studies,
    figures,
    studies,
    theorems,
    width_figures,
    width_studies,
)  # isort: skip

__all__ = [
    "PAPER",
    "Wu",
    "depth_studies",
    "figures",
    "studies",
    "theorems",
    "width_figures",
    "width_studies",
]
