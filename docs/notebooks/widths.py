# %% [markdown]
# # Widths and the planner
#
# How wide must a network be to train, and how wide to be *certified*? The two widths are far apart, and both grow with the number of
# samples.

# %%
import polars as pl

import shoal as sh

study = sh.Study("wu2023", grid={"width": (8, 32, 128)}, seeds=4, num_samples=6, num_steps=100)
table = study.run()
print(
    table.group_by("width", maintain_order=True).agg(
        pl.col("risk_first").median(), pl.col("risk_last").median()
    )
)

# %% [markdown]
# Theorem C says from which width on the features of the start are independent, with probability 0.99: an explicit number, the same for
# every seed. We ask at which of a few widths it holds.

# %%
for width in (1_000, 30_000):
    setup = sh.setup(
        "wu2023",
        num_samples=3,
        num_tokens=2,
        dim=16,
        tokens="unit",
        width=width,
        score_exponent=1.0,
        seeds=range(2),
    )
    found = sh.certify(sh.train(setup, steps=1, probes=[]), "theorem_c")
    print(width, found.verdicts)

# %% [markdown]
# `shoal plan wu2023` does this systematically: bisection over the width for several numbers of samples, with exponents. Every answer is
# cached, so that it continues where it stopped. A small plan from Python:

# %%
from shoal.pages.drawing import draw
from shoal.sweeps import planner

search = planner.make_search("wu2023", {}, samples=(2, 4), octaves=(2, 5), highest=6, seeds=2)
result = planner.carry_out(search, lambda questions: ((q, planner.answer(q)) for q in questions))
draw(planner.figure(result))
print(planner.exponent_text("trains", result.trains))
