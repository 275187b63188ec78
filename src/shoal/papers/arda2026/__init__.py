r"""Arda, Cayci, Eryilmaz (2026): Finite-Time Analysis of Gradient Descent for Shallow Transformers.

Symbols: $m$ is ``num_heads``, $T$ ``num_tokens``, $n$ ``num_samples``, $\rho$ ``radius``, $\nu$
``teacher_norm``, $\tau$ ``num_steps``, $\eta$ ``step_size``. The loss is the mean of squares,
$L=\tfrac1n\sum_j(f_j-y_j)^2$, without $\tfrac12$.

Certified here: theorems A and B (mean loss of projected gradient descent), both after the paper's
main theorem with our constants, theorem C (a lower bound by duality, ours), and the prediction
of the initial tangent kernel. We know the main text of the paper's first version; its appendices
were not available to us. Its own constants, where its text gives them, stand beside ours in
``docs/theory/arda2026.md``.
"""

from shoal.papers.arda2026 import (  # noqa: I001 (they register, in this order)
    theorems, studies, series_studies, rate_studies, projection_studies, figures, visit,  # noqa: F401
)  # fmt: skip
from shoal.papers.arda2026.model import PAPER

__all__ = ["PAPER"]
