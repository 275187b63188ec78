"""Song et al. (2024): Unraveling the Gradient Descent Dynamics of Transformers.

Certified here: theorem 1 (only W_V), theorem 2 (W_Q, W_K, W_V together), theorem 3 (only W_Q), all
ours after the paper's theorems of the same numbers, theorem S (softmax without traps) and the
prediction of the initial tangent kernel. The paper's own constants are not certified: its full text
was not available to us, only its abstract, reviews and public summaries.
"""

# in the order in which claims and figures are listed
from shoal.papers.song2024 import theorems, studies, block_studies, depth_studies  # noqa: F401, I001
from shoal.papers.song2024 import classifier_studies, figures, study_figures, proofs  # noqa: F401
from shoal.papers.song2024 import dimension_studies  # noqa: F401
from shoal.papers.song2024.model import PAPER, Song

__all__ = ["PAPER", "Song"]
