r"""What Qin et al. (2025) say, and what follows from it, put to the test.

Of the paper we know the abstract and excerpts; statements called the paper's are its abstract in
our words, and every setting is ours. Rules were written down before their first run; where one was
changed after a first look, it says so.
"""

import functools
from typing import Any

from shoal.claims import Claim, sized
from shoal.papers.qin2025 import measurements as measure
from shoal.papers.qin2025.trials import Plan
from shoal.rules import exponent, number

PAPER_SAYS = "paper, its abstract in our words; the setting is ours"
OURS = "our question"
ONE_SEQUENCE = "one sequence of Gaussian tokens, dim and key dim 64, weights drawn, nothing trained"
TRAINED = (
    "4 sequences of 6 Gaussian tokens of scale 0.5, dim 32, width 64, smooth leaky activation, "
    "random targets, float64; seeds draw data and weights"
)
DEEP = "4 sequences of 8 Gaussian tokens, dim 64, width 128, branch weights of scale 0.5, untrained"
REVISED = " (statistic revised after a first look, which had measured rounding)"
ANY = float("inf")


def _claim(key: str, *words: Any, **values: Any) -> Claim:
    return sized(f"qin2025.{key}", *words, **({"source": OURS, "setting": TRAINED} | values))


SIDES = {"both": "with", "none": "without"}


def _faster(one: str, other: str, *, by: float = 1.0, **changed: Any) -> tuple[Any, Any]:
    """One side's loss ends lower than the other's by so many orders, at one step for both."""
    names = (SIDES.get(side, side) for side in (other, one))
    return (
        functools.partial(measure.common_step, one=other, other=one, **changed),
        number(by, ANY, "orders of the loss", *names),
    )


_SEQUENCE = Plan(num_seeds=50, minutes=0.1)
_LAYERS = Plan(num_seeds=20, num_layers=4, minutes=0.1)
_RUNS = Plan(num_seeds=5, num_steps=500, minutes=0.1)
_SHORT = _RUNS._replace(num_seeds=3, num_steps=50)
_MANY: dict[str, Any] = {"num_seeds": 30, "minutes": 2.0}
_NOTHING_LEARNT = (("step", measure.NEVER),)

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "residual_cures_conditioning",
        "The residual connection cures the ill-conditioning of attention's output.",
        "supported if, where it helps least among 9 settings (8, 16, 32 tokens; score and value "
        "scales 0.25/0.1, 1/0.5, 2/1), the condition number falls by more than 1 order",
        (
            measure.conditioning,
            number(1.0, ANY, "orders of the condition number", "without", "with"),
        ),
        (("kind", "condition_without"),),
        _SEQUENCE,
        source=PAPER_SAYS,
        setting=ONE_SEQUENCE,
        num_seeds=500,
    ),
    _claim(
        "residual_cures_correlated_tokens",
        "It does so even for tokens of correlation 0.99: the residual cures attention's output.",
        "supported if the condition number falls by more than 1 order (16 tokens, scales 1/0.5)",
        (
            measure.correlated,
            number(1.0, ANY, "orders of the condition number", "without", "with"),
        ),
        (("kind", "condition_without"),),
        _SEQUENCE._replace(grid=(0.99,)),
        setting=ONE_SEQUENCE,
        num_seeds=500,
    ),
    _claim(
        "residual_cannot_beat_its_tokens",
        "With small value weights the output is conditioned as the tokens are, no better.",
        "supported if its condition number over the tokens' lies in [0.8, 1.25] (correlation 0.9, "
        "value scale 0.1)",
        (measure.of_tokens, number(0.8, 1.25, "ratio of condition numbers", "output", "tokens")),
        (("scale_v", 20.0),),
        _SEQUENCE,
        setting=ONE_SEQUENCE,
        num_seeds=500,
    ),
    _claim(
        "small_logits_hurt",
        "Without residual, small scores make attention ill-conditioned.",
        "supported if its condition number at score scale 0.25 is over 1 order above that at 1",
        (
            measure.logits,
            number(1.0, ANY, "orders of the condition number", "scale 0.25", "scale 1"),
        ),
        (("scale", 1.0),),
        _SEQUENCE._replace(grid=(0.25, 1.0)),
        setting=ONE_SEQUENCE,
        num_seeds=500,
    ),
    _claim(
        "large_logits_hurt",
        "Without residual, large scores do so too.",
        "supported if its condition number at score scale 2 is above that at 1 by more than half "
        "an order",
        (measure.logits, number(0.5, ANY, "orders of the condition number", "scale 2", "scale 1")),
        (("scale", 1.0),),
        _SEQUENCE._replace(grid=(2.0, 1.0)),
        setting=ONE_SEQUENCE,
        num_seeds=500,
    ),
    _claim(
        "the_residual_around_attention_matters",
        "Of the two residuals it is the one around attention that keeps the rank with depth.",
        "supported if in layer 4 the condition number with the feed-forward residual alone is more "
        "than 3 orders above that with attention's alone (beyond 1e16 counts as 1e16)",
        (
            functools.partial(measure.deep_condition, one="feedforward", other="attention"),
            number(3.0, ANY, "orders of the condition number", "feedforward", "attention"),
        ),
        (("mode", "attention"),),
        _LAYERS,
        setting=DEEP,
        num_seeds=200,
    ),
    _claim(
        "the_feedforward_residual_holds_the_scale",
        "The one around the feed-forward layer then keeps the conditioning with depth.",
        "supported if in layer 8 the condition number with attention's residual alone is more than "
        "half an order above that with both",
        (
            functools.partial(measure.deep_condition, one="attention", other="both"),
            number(0.5, ANY, "orders of the condition number", "attention", "both"),
        ),
        (("mode", "both"),),
        _LAYERS._replace(num_layers=8),
        setting=DEEP,
        num_seeds=200,
    ),
    _claim(
        "rank_collapses_without_residuals",
        "Without residuals tokens become equal within a few layers.",
        "supported if in layer 3 the share of tokens that is not their mean is more than 3 orders "
        "smaller without residuals than with",
        (measure.collapse, number(3.0, ANY, "orders of the centred share", "with", "without")),
        (("mode", "both"),),
        _LAYERS._replace(num_layers=3),
        setting=DEEP,
        num_seeds=200,
    ),
    _claim(
        "collapse_accelerates",
        "The collapse is faster than geometric.",
        "supported if without residuals the share falls by more orders from layer 2 to 3 than from "
        "1 to 2, by a factor above 1.5",
        (measure.collapse_speed, number(1.5, ANY, "ratio of falls", "layers 2-3", "layers 1-2")),
        (("swapped", True),),
        _LAYERS._replace(num_layers=3),
        setting=DEEP,
        num_seeds=200,
    ),
    _claim(
        "residual_trains_faster_at_one_step",
        "At one step for both, training converges faster with residuals.",
        "supported if the loss over its start after 500 steps of 0.01 is more than 1 order lower",
        _faster("both", "none"),
        _NOTHING_LEARNT,
        _RUNS,
        planted=_SHORT,
        source=PAPER_SAYS,
        **_MANY,
    ),
    _claim(
        "residual_trains_faster_at_own_step",
        "It does so when each side takes its own best step.",
        "supported if the loss over its start after 500 steps, each side at the best of 11 steps "
        "from 0.001 to 0.3, is more than 1 order lower",
        (
            functools.partial(measure.own_step, one="none", other="both"),
            number(1.0, ANY, "orders of the loss", "without", "with"),
        ),
        (("steps", (measure.NEVER,)),),
        _RUNS._replace(minutes=0.3),
        planted=_SHORT,
        **_MANY,
    ),
    _claim(
        "relu_trains_faster_with_residual",
        "The same with ReLU, of which the theorems do not speak.",
        "supported if the loss over its start after 500 steps of 0.01 is more than 1 order lower",
        _faster("both", "none", activation="relu"),
        _NOTHING_LEARNT,
        _RUNS,
        planted=_SHORT,
        **_MANY,
    ),
    _claim(
        "causal_trains_faster_with_residual",
        "The same for the causal (decoder) form.",
        "supported if the loss over its start after 500 steps of 0.01 is more than 1 order lower",
        _faster("both", "none", causal=True),
        _NOTHING_LEARNT,
        _RUNS,
        planted=_SHORT,
        **_MANY,
    ),
    _claim(
        "attention_residual_alone_trains",
        "For training, too, the residual around attention is the one that matters.",
        "supported if with it alone the loss over its start after 500 steps of 0.01 is more than 1 "
        "order below that with the feed-forward residual alone",
        _faster("attention", "feedforward"),
        _NOTHING_LEARNT,
        _RUNS,
        planted=_SHORT,
        **_MANY,
    ),
    _claim(
        "deep_networks_need_residuals",
        "Six layers train with residuals and not without.",
        "supported if the loss over its start after 500 steps of 0.003 is more than 3 orders lower "
        "with residuals",
        _faster("both", "none", by=3.0),
        _NOTHING_LEARNT,
        _RUNS._replace(num_layers=6, grid=(0.003,), minutes=0.3),
        planted=_SHORT._replace(num_layers=6),
        **_MANY,
    ),
    _claim(
        "depth_speeds_training_with_residuals",
        "With residuals, more layers train faster at one step.",
        "supported if the loss over its start after 500 steps of 0.003 with 4 layers is more than "
        "1 order below that with 1",
        (measure.by_depth, number(1.0, ANY, "orders of the loss", "1 layer", "4 layers")),
        _NOTHING_LEARNT,
        _RUNS._replace(num_layers=4, minutes=0.2),
        planted=_SHORT._replace(num_layers=4),
        **_MANY,
    ),
    _claim(
        "smallest_eigenvalue_gives_the_rate",
        "Late in training the loss falls by (1 - step lambda_min)^2 a step.",
        "supported if the measured exponential rate over the predicted one lies in [0.8, 1.25] "
        "(800 steps of 0.01, the last fifth)",
        (measure.local_rate, number(0.8, 1.25, "ratio of rates", "measured", "predicted")),
        (("eigenvalue", "lambda_max"),),
        _RUNS._replace(num_steps=800),
        **_MANY,
    ),
    _claim(
        "rate_falls_like_condition_squared",
        "The rate falls like the square of the condition number, tokens conditioned on purpose.",
        "supported if the exponent of the late rate against the tokens' condition number lies in "
        "[-2.5, -1.5] (condition 2, 4, 8, 16; step half of 1 / lambda_max of the kernel; the last "
        "fifth before the loss is rounding)" + REVISED,
        (
            measure.rate_by_condition,
            exponent(-2.5, -1.5, "rate", "condition number"),
        ),
        (("frozen", True),),
        _RUNS._replace(num_steps=1000, grid=(2.0, 4.0, 8.0, 16.0), minutes=0.2),
        source=PAPER_SAYS,
        **_MANY,
    ),
    _claim(
        "two_over_sharpness_limits_the_step",
        "With residuals, 2 / sharpness at the start is the longest step that trains.",
        "supported if the longest step that ends below the start after 120 steps, over 2 / "
        "sharpness, lies in [0.5, 2]",
        (
            functools.partial(measure.step_limit, residual="both"),
            number(0.5, 2.0, "longest step times sharpness / 2", "measured", "limit"),
        ),
        (("mode", "none"),),
        _RUNS._replace(num_steps=120),
        **_MANY,
    ),
    _claim(
        "two_over_sharpness_without_residuals",
        "So it is without residuals.",
        "supported if the longest step that ends below the start after 120 steps, over 2 / "
        "sharpness, lies in [0.5, 2]",
        (
            functools.partial(measure.step_limit, residual="none"),
            number(0.5, 2.0, "longest step times sharpness / 2", "measured", "limit"),
        ),
        (("mode", "none"),),
        _RUNS._replace(num_steps=120),
        **_MANY,
    ),
    _claim(
        "scaled_branches_keep_the_sharpness",
        "Branches over the root of the depth keep the sharpness from growing with depth.",
        "supported if from 1 to 6 layers it grows by half an order more without that scale",
        (measure.sharpness_growth, number(0.5, ANY, "orders of growth", "plain", "scaled")),
        (("scaled", True),),
        _RUNS._replace(num_layers=6, minutes=0.2),
        planted=_SHORT._replace(num_layers=2),
        **_MANY,
    ),
    _claim(
        "residual_widens_the_certificate",
        "Theorem D certifies much larger initial errors with residuals.",
        "supported if the largest certified residual over the output's size is more than 3 orders "
        "larger (1 layer, the better of both routes)",
        (measure.certified, number(3.0, ANY, "orders of r_max over output", "with", "without")),
        (("mode", "none"),),
        _RUNS,
        setting="3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3",
        **_MANY,
    ),
    _claim(
        "the_certificate_is_conservative",
        "Theorem D's guaranteed rate is far below what the kernel at the start promises.",
        "supported if it is more than 1 order below, both at the same step",
        (measure.conservative, number(1.0, ANY, "orders of the rate", "kernel", "guaranteed")),
        (("share", 1e-6),),
        _RUNS,
        setting="3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3",
        **_MANY,
    ),
    _claim(
        "realizable_targets_are_easier",
        "With more tokens than dimensions, targets of a teacher are fitted further than random "
        "ones.",
        "supported if the loss over its start after 500 steps is more than half an order lower "
        "(96 tokens in dimension 32, step half of 1 / lambda_max)",
        (measure.realizable, number(0.5, ANY, "orders of the loss", "random", "teacher")),
        (("teacher", 0.0),),
        _RUNS._replace(minutes=0.3),
        planted=_SHORT,
        setting="8 sequences of 12 Gaussian tokens of scale 0.5, dim 32, width 64",
        **_MANY,
    ),
)
