r"""Depth and the causal form of the encoder (`deep`), as claims; all ours.

The paper has one layer; its summaries name depth and decoders as open.
"""

from typing import Any

import numpy as np

from shoal.evidence.sequences import Interval
from shoal.lab import effects
from shoal.lab.claim import Control, Design, above, below, between
from shoal.lab.setting import OURS
from shoal.lab.study import decades
from shoal.papers.wu2023.studies import HALF, Seeds, at_start, claim, plan_of, run_of
from shoal.papers.wu2023.width_studies import TINY, UNSEEN, default_steps, stepped


def condition(setup: Any) -> Any:
    """Condition number of the features of the last layer at the start."""
    probes = setup.setting.probes(setup)
    return probes["feature_norm"](setup.params0) / probes["feature_sigma_min"](setup.params0)


def conditioning_gained(design: Design, seeds: Seeds) -> list[Interval]:
    """Powers of ten of the features' condition number without over with residual connections."""
    plan, sides = plan_of(design, seeds), []
    for name in ("without", "with"):
        found = at_start(plan, condition, **{**design["common"], **design[name]})
        sides.append(effects.log10_known(found, ceiling=1e14))
    return effects.minus(*sides)


def last_by_depth(design: Design, seeds: Seeds) -> list[Interval]:
    """Log10 of the last over the first risk of a deep encoder."""
    risk = run_of(plan_of(design, seeds), **design["settings"]).risk
    return effects.log10_known(np.nan_to_num(risk[:, -1] / risk[:, 0], nan=np.inf), floor=TINY)


def causal_lead(design: Design, seeds: Seeds) -> list[Interval]:
    """Decades of mean speed by which the causal form is ahead of the encoder, at one step."""
    plan, sides = plan_of(design, seeds), []
    steps = default_steps(plan, **design["other"])
    for name in ("favoured", "other"):
        run = stepped(plan, design["shares"][name] * steps, **design[name])
        sides.append(effects.points(decades(run.risk)))
    return effects.minus(*sides)


_DEEP = "12 samples of 4 Gaussian tokens in dimension 10, width 64"
claim("residuals_keep_deep_features",
      "With four encoder layers, residual connections make the condition number of the last "
      "layer's features more than ten times smaller.", conditioning_gained,
      above(1.0, "powers of ten of the condition number gained by residual connections"),
      {"common": {"num_layers": 1}},
      {"common": {"num_layers": 4, "width": 64}, "without": {"residual": "none"},
       "with": {"residual": "both"}}, OURS, seconds=0.2, setting=f"{_DEEP}, untrained",
      waits=UNSEEN,
      why="a factor ten is in the statement",
      control_why="one layer has no residual connection")  # fmt: skip
claim("deep_encoder_converges",
      "Three encoder layers with residual connections train to below 1 % of the first loss in 200 "
      "steps, each draw at the step that its kernel allows.", last_by_depth,
      below(-2.0, "log10 of the last over the first risk", bound=True),
      {"settings": {"shape": "twins"}},
      {"settings": {"num_layers": 3, "width": 64}}, OURS, seconds=1.0, waits=UNSEEN,
      setting=f"{_DEEP}, 200 steps", why="1 % is in the statement",
      control_why="two equal samples with different labels cannot be fitted")  # fmt: skip
claim("decoder_trains_like_encoder",
      "The causal (decoder) form trains as fast as the encoder at the same step, the one that "
      "suits the encoder, within 0.3 decades of mean speed.", causal_lead,
      between(-0.3, 0.3, "decades of mean speed by which the causal form is ahead"),
      {}, {"favoured": HALF | {"width": 128, "causal": True},
           "other": HALF | {"width": 128, "causal": False},
           "shares": {"favoured": 1.0, "other": 1.0}}, OURS, seconds=0.3,
      setting=_DEEP.replace("64", "128") + ", 200 steps",
      why="0.3 decades are a factor 2, at which one would choose the other form",
      controls=[
          Control({"favoured": {"train": "W_Q"}}, why="the causal form trains its queries only"),
          Control({"sizes": {"tokens": 1}}, "positive", "with one token both forms are one"),
      ])  # fmt: skip
