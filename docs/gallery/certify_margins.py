"""Which hypothesis of a theorem fails first?

Margins of theorem_a's hypotheses for two widths: right of the line a hypothesis holds, left of it it
fails. At width 2,000 two of them fail (the upper two), so the theorem is not applicable.
At width 40,000 the step is the longest that the theorem allows: its margin is zero.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

small = {"num_samples": 3, "num_tokens": 2, "dim": 16, "tokens": "unit", "label_scale": 0.3}
for k, width in enumerate((2000, 40000)):
    setup = sh.setup("wu2023", **small, pooling="sum", width=width, score_exponent=1.0)
    found = sh.certify(sh.train(setup, steps=5, step_size="theorem_a"), "theorem_a")
    (one,) = found.to_json()["results"]
    names = [h["name"].split(":")[0] for h in one["hypotheses"]]
    margins = np.clip([h["margin"] for h in one["hypotheses"]], -1, 1)
    plt.barh(np.arange(len(names)) + 0.4 * k, margins, 0.4, label=f"{width}: {found.verdict}")
plt.yticks(range(len(names)), names, fontsize=7), plt.xticks([-1, -0.5, 0, 0.5, 1])
(
    plt.axvline(0, color="k", lw=0.8),
    plt.xlabel("margin"),
    plt.legend(title="width", loc="lower left", fontsize=7),
)
