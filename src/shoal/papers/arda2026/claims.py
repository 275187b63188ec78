r"""What Arda, Cayci, Eryilmaz (2026) say, and what follows from it, put to the test.

Statements are in our words after the paper's main text; its figures' values, the rule by which it
chooses boundary points, its lags and its number of anchors are not known to us. Rules were written
down before their first run; where a statistic or a setting was changed after a first look, the rule
says so.
"""

import functools
from typing import Any

from shoal.claims import Claim, sized
from shoal.papers.arda2026 import measurements as measure
from shoal.papers.arda2026.trials import Plan
from shoal.rules import exponent, number

PAPER_SAYS = "paper, its main text in our words"
OURS = "our question"
SETTING = (
    "tanh, dim 8, 16 tokens of norm 1 at most, the paper's teacher with one anchor (our choice)"
)
ONE_DATA_SET = "; one data set: intervals cover the draw of weights, not of the data"
SERIES = (
    "series with lag L, window L + 1, raw tokens with 8 pairs of position channels, our lags and "
    "sizes"
)
REVISED = " (statistic or setting revised after a first look)"
HALF = (-0.65, -0.35)
ANY = float("inf")


def _claim(key: str, *words: Any, **values: Any) -> Claim:
    return sized(
        f"arda2026.{key}", *words, **({"source": OURS, "setting": SETTING + ONE_DATA_SET} | values)
    )


def _jacobians(channels: int) -> tuple[Any, Any]:
    what = "orders of magnitude by which the recurrent Jacobian is larger"
    return (
        functools.partial(measure.jacobians, channels=channels),
        number(0.0, ANY, what, "recurrent", "attention"),
    )


def _at_boundary(kind: str, low: float, high: float, what: str) -> tuple[Any, Any]:
    return functools.partial(measure.boundary_errors, kind=kind), exponent(low, high, what, "heads")


_ERRORS = Plan(num_seeds=8, num_samples=100, grid=(8, 16, 64, 128, 256), minutes=0.2)
_ERRORS_FULL: dict[str, Any] = {
    "num_seeds": 10,
    "num_samples": 5000,
    "grid": (8, 16, 64, 128, 256, 512, 1024),
    "minutes": 20.0,
}
_FEW = _ERRORS._replace(num_seeds=4, num_samples=30, grid=(8, 64))
_WIDTHS = Plan(num_seeds=4, num_steps=400, num_samples=200, grid=(8, 16, 64, 128, 256), minutes=0.6)
_STEPS = Plan(num_seeds=4, num_samples=100, grid=(25, 100, 400, 1600), minutes=0.3)
_LENGTHS = Plan(num_seeds=5, num_samples=30, grid=(16, 32, 64, 128, 256, 512), minutes=0.2)
_SERIES = Plan(num_seeds=4, num_steps=400, num_samples=200, grid=(2, 32), num_heads=32, minutes=0.3)
_SERIES_FULL: dict[str, Any] = {
    "num_seeds": 20,
    "num_steps": 2000,
    "num_samples": 5000,
    "num_heads": 64,
    "minutes": 400.0,
}
_FLAT = (("step_size", measure.NEVER),)

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "boundary_error_falls_like_root_width",
        "The linearisation error at boundary points falls like one over the root of the heads.",
        "supported if the exponent at random boundary points lies in [-0.65, -0.35]",
        _at_boundary("random", *HALF, "linearisation error"),
        (("kind", "transported"),),
        _ERRORS,
        planted=_FEW,
        source=PAPER_SAYS,
        **_ERRORS_FULL,
    ),
    _claim(
        "coherent_error_falls_like_root_width",
        "It does so where all heads, twins included, move along one feature.",
        "supported if the exponent at coherent boundary points lies in [-0.6, -0.4]",
        _at_boundary("coherent", -0.6, -0.4, "linearisation error"),
        (("kind", "random"),),
        _ERRORS,
        planted=_FEW,
        **_ERRORS_FULL,
    ),
    _claim(
        "transported_error_falls_like_width",
        "Along a teacher's transport the twins cancel and the error falls like one over the heads.",
        "supported if the exponent at transported boundary points lies in [-1.25, -0.85]",
        _at_boundary("transported", -1.25, -0.85, "linearisation error"),
        (("kind", "coherent"),),
        _ERRORS,
        planted=_FEW,
        **_ERRORS_FULL,
    ),
    _claim(
        "approximation_falls_like_root_width",
        "The largest approximation error falls like one over the root of the heads.",
        "supported if the exponent lies in [-0.65, -0.35]",
        _at_boundary("approximation", *HALF, "approximation error"),
        (("kind", "random"),),
        _ERRORS,
        planted=_FEW,
        source=PAPER_SAYS,
        **_ERRORS_FULL,
    ),
    _claim(
        "training_loss_falls_like_root_width",
        "The lowest training loss falls like one over the root of the heads.",
        "supported if the exponent lies in [-0.65, -0.35]",
        (measure.best_by_width, exponent(*HALF, "lowest training loss", "heads")),
        _FLAT,
        _WIDTHS,
        planted=_WIDTHS._replace(num_steps=20, num_samples=30, grid=(8, 64)),
        source=PAPER_SAYS,
        num_seeds=10,
        num_steps=4000,
        num_samples=5000,
        minutes=150.0,
    ),
    _claim(
        "wider_trains_better",
        "More heads train to a lower loss in the same number of steps.",
        "supported if the exponent of the lowest loss lies below -0.1",
        (measure.best_by_width, exponent(-ANY, -0.1, "lowest training loss", "heads")),
        _FLAT,
        _WIDTHS,
        planted=_WIDTHS._replace(num_steps=20, num_samples=30, grid=(8, 64)),
        source=PAPER_SAYS,
        num_seeds=10,
        num_steps=4000,
        num_samples=5000,
        minutes=150.0,
    ),
    _claim(
        "mean_loss_falls_like_root_steps",
        "With steps of one over the root of their number, the mean loss falls like that root.",
        "supported if the exponent lies in [-0.65, -0.35]",
        (measure.mean_by_steps, exponent(*HALF, "mean loss", "steps")),
        _FLAT,
        _STEPS,
        planted=_STEPS._replace(num_samples=30, grid=(25, 100)),
        source=PAPER_SAYS,
        num_seeds=10,
        num_samples=1000,
        grid=(25, 100, 400, 1600, 6400),
        minutes=15.0,
    ),
    _claim(
        "path_bound_is_informative",
        "Theorem B with constants measured along the path is true and within 50 times the loss.",
        "supported if bound over mean loss lies in [1, 50]",
        (measure.path_bound, number(1.0, 50.0, "bound over mean loss", "bound", "mean loss")),
        (("times", 100.0),),
        Plan(num_seeds=5, num_steps=400, num_samples=60),
        planted=Plan(num_seeds=3, num_steps=40, num_samples=10, num_heads=8),
        num_seeds=20,
        num_steps=4000,
    ),
    _claim(
        "samples_cost_a_logarithm",
        "At fixed width the largest approximation error grows with the samples no faster than a "
        "logarithm would over this range.",
        "supported if its exponent in the number of samples lies in [-0.05, 0.15]",
        (
            measure.errors_by_samples,
            exponent(-0.05, 0.15, "largest approximation error", "samples"),
        ),
        (("added", True),),
        Plan(num_seeds=8, grid=(100, 300, 1000, 3000)),
        planted=Plan(num_seeds=3, grid=(30, 300)),
        source=PAPER_SAYS,
        num_seeds=20,
        grid=(100, 300, 1000, 3000, 10000),
        minutes=1.0,
    ),
    _claim(
        "gradients_free_of_length",
        "Gradients at the start do not grow with the length of the sequences.",
        "supported if the exponent of the gradient's norm lies in [-0.5, 0.05]",
        (
            functools.partial(measure.gradients, num_layers=1),
            exponent(-0.5, 0.05, "|df/dW|", "tokens"),
        ),
        (("sum_tokens", True),),
        _LENGTHS,
        planted=_LENGTHS._replace(num_samples=5, grid=(16, 64)),
        source=PAPER_SAYS,
        setting="tanh, dim 8, tokens of norm 1 at most; new data for every seed",
        num_seeds=20,
        num_samples=200,
        minutes=3.0,
    ),
    _claim(
        "training_free_of_length",
        "With the same teacher, training is no harder on longer sequences.",
        "supported if the exponent of the relative loss lies in [-1, 0.1]",
        (measure.loss_by_length, exponent(-1.0, 0.1, "lowest loss over label energy", "tokens")),
        (("slower", True),),
        Plan(num_seeds=4, num_steps=200, num_samples=50, grid=(16, 64, 256), minutes=0.4),
        planted=Plan(num_seeds=3, num_steps=400, num_samples=20, grid=(16, 64), num_heads=16),
        source=PAPER_SAYS,
        num_seeds=10,
        num_steps=2000,
        num_samples=500,
        grid=(16, 32, 64, 128, 256, 512),
        minutes=60.0,
    ),
    _claim(
        "attention_does_not_mind_the_lag",
        "The Transformer predicts a series as well at lag 32 as at lag 2.",
        "supported if its held-out loss grows by less than 0.05 (the trivial loss is 0.526)",
        (
            functools.partial(measure.lag_growth, model="heads"),
            number(-ANY, 0.05, "growth of the held-out loss", "long lag", "short lag"),
        ),
        (("model", "recurrent"), ("recurrence", 0.5)),
        _SERIES,
        source=PAPER_SAYS,
        setting=SERIES + ONE_DATA_SET,
        **_SERIES_FULL,
    ),
    _claim(
        "recurrence_minds_the_lag",
        "The IndRNN predicts worse at lag 32 than at lag 2.",
        "supported if its held-out loss grows by more than 0.1",
        (
            functools.partial(measure.lag_growth, model="recurrent"),
            number(0.1, ANY, "growth of the held-out loss", "long lag", "short lag"),
        ),
        (("recurrence", 1.0),),
        _SERIES,
        planted=_SERIES._replace(num_steps=100, num_samples=50, grid=(2, 2)),
        source=PAPER_SAYS,
        setting=SERIES + ONE_DATA_SET,
        **_SERIES_FULL,
    ),
    _claim(
        "recurrent_jacobians_are_larger",
        "At lag 32 the IndRNN's Jacobian in its recurrent weights exceeds the Transformer's in W.",
        "supported if the ratio of the largest norms along training is above 1",
        _jacobians(8),
        (("recurrence", 0.1),),
        _SERIES,
        planted=_SERIES._replace(num_steps=20, num_samples=50, grid=(2, 8)),
        source=PAPER_SAYS,
        setting=SERIES + "; both see them; recurrent weights start at +1 and -1" + ONE_DATA_SET,
        **_SERIES_FULL,
    ),
    _claim(
        "bare_recurrent_jacobians_are_larger",
        "So does an IndRNN that sees the bare series, without channels of positions.",
        "supported if the ratio of the largest norms along training is above 1",
        _jacobians(0),
        (("recurrence", 0.1),),
        _SERIES,
        planted=_SERIES._replace(num_steps=20, num_samples=50, grid=(2, 8)),
        source=PAPER_SAYS,
        setting=SERIES + " for attention only; recurrent weights start at +1 and -1" + ONE_DATA_SET,
        **_SERIES_FULL,
    ),
    _claim(
        "recurrence_wins_at_short_lags",
        "At lag 2 the IndRNN predicts better than the Transformer.",
        "supported if its held-out loss is lower, seed by seed",
        (measure.small_lag, number(0.0, ANY, "advantage in loss", "attention", "recurrent")),
        _FLAT,
        _SERIES,
        planted=_SERIES._replace(num_steps=100, num_samples=50),
        source=PAPER_SAYS,
        setting=SERIES + ONE_DATA_SET,
        **_SERIES_FULL,
    ),
    _claim(
        "unit_tokens_do_not_select",
        "Tokens clipped to norm 1, as the theory wants, keep attention too flat to find a lag.",
        "supported if clipping raises the held-out loss at lag 8 by more than 0.1",
        (measure.clipping, number(0.1, ANY, "loss added by clipping", "clipped", "raw")),
        (("clip", False),),
        _SERIES._replace(grid=(8,)),
        planted=_SERIES._replace(num_steps=20, num_samples=50, grid=(8,)),
        setting=SERIES + ONE_DATA_SET,
        **_SERIES_FULL,
    ),
    _claim(
        "causal_loss_is_flat_along_the_window",
        "In the sequence-to-sequence form, late places are predicted as well as early ones.",
        "supported if the loss of the last quarter over that of the first lies in [0.8, 1.25]",
        (measure.places, number(0.8, 1.25, "late over early loss", "late", "early")),
        (("growth", 0.2),),
        Plan(num_seeds=4, num_steps=200, num_samples=100, grid=(4, 33), num_heads=16, minutes=0.4),
        planted=Plan(num_seeds=3, num_steps=10, num_samples=50, grid=(4, 25), num_heads=8),
        setting="causal form, lag 4, window 33" + ONE_DATA_SET,
        num_seeds=10,
        num_steps=2000,
        num_samples=1000,
        minutes=120.0,
    ),
    _claim(
        "depth_keeps_gradients_free_of_length",
        "Three layers deep, the gradients of inner layers do not grow with the length either.",
        "supported if the exponent of their norm lies in [-0.5, 0.1]" + REVISED,
        (
            functools.partial(measure.gradients, num_layers=3),
            exponent(-0.5, 0.1, "|df/dW| of inner layers", "tokens"),
        ),
        (("sum_tokens", True),),
        Plan(num_seeds=4, num_samples=8, grid=(8, 16, 32, 64), num_heads=16, minutes=0.3),
        planted=Plan(num_seeds=3, num_samples=4, grid=(8, 32), num_heads=8),
        setting="deep form of three layers, dim 8, without opposite signs (with them, inner "
        "gradients are zero at the start); new data for every seed",
        num_seeds=20,
        num_samples=50,
        minutes=20.0,
    ),
    _claim(
        "projection_rests",
        "In the paper's width experiment the projection never acts.",
        "supported if no block uses more than 99.9% of its radius",
        (measure.use_of_radius, number(0.0, 0.999, "share of the radius", "used", "allowed")),
        (("radius", "0.05"),),
        Plan(num_seeds=4, num_steps=400, num_samples=200),
        planted=Plan(num_seeds=3, num_steps=40, num_samples=20, num_heads=16),
        num_seeds=10,
        num_steps=4000,
        num_samples=5000,
        minutes=60.0,
    ),
    _claim(
        "projection_tames_long_steps",
        "Where a step is too long for gradient descent, projection keeps the loss lower.",
        "supported if the mean loss of the last half is lower with projection, seed by seed"
        + REVISED,
        (
            measure.tamed,
            number(
                0.0,
                ANY,
                "orders of magnitude by which the plain loss is higher",
                "plain",
                "projected",
            ),
        ),
        (("radius", "1e6"),),
        Plan(num_seeds=5, num_steps=200, num_samples=50),
        planted=Plan(num_seeds=3, num_steps=20, num_samples=20, num_heads=16),
        setting="Gaussian labels, tokens of norm 4, radius 0.5, five times the step at which the "
        "linearised run turns unstable" + ONE_DATA_SET,
        num_seeds=20,
    ),
    _claim(
        "projection_beats_decay",
        "At equal largest movement of a head, projection reaches a lower loss than decay to the "
        "start.",
        "supported if the loss under decay is higher, seed by seed",
        (
            measure.decay,
            number(
                0.0,
                ANY,
                "orders of magnitude by which the loss under decay is higher",
                "decay",
                "projection",
            ),
        ),
        (("swapped", True),),
        Plan(num_seeds=5, num_steps=1000, num_samples=60, grid=measure.DECAYS, minutes=0.4),
        planted=Plan(num_seeds=3, num_steps=200, num_samples=20, grid=(0.01, 0.3), num_heads=16),
        setting="Gaussian labels, radius 0.5, steps of 0.5" + ONE_DATA_SET,
        num_seeds=20,
        num_steps=10000,
        minutes=10.0,
    ),
    _claim(
        "loss_has_a_knee_at_the_teacher_s_norm",
        "Within half of the dual teacher's norm, training ends at a quarter of the labels' energy.",
        "supported if the loss over that quarter lies in [0.9, 1.1]",
        (measure.knee, number(0.9, 1.1, "loss over expected", "loss", "expected")),
        (("share", 0.75),),
        Plan(num_seeds=4, num_steps=800, num_samples=60, num_heads=128, minutes=0.5),
        planted=Plan(num_seeds=3, num_steps=300, num_samples=20, num_heads=64),
        setting="dual-certified teacher on the student's own heads; new data for every seed",
        num_seeds=10,
        num_steps=3000,
        num_heads=512,
        minutes=20.0,
    ),
    _claim(
        "long_tokens_make_spikes",
        "With tokens ten times as long, the largest gradient among samples leaves the mean behind.",
        "supported if largest over mean grows by more than 0.3 orders of magnitude",
        (
            measure.spikes,
            number(
                0.3,
                ANY,
                "orders of magnitude by which largest over mean grows",
                "norm 10",
                "norm 1",
            ),
        ),
        (("norm", 1.0),),
        Plan(num_seeds=8, num_samples=100),
        setting="gradients in W at the start; new data for every seed",
        num_seeds=20,
        num_samples=1000,
    ),
    _claim(
        "mean_field_moves_the_kernel",
        "Dividing the output by the root of the heads, with steps to match, leaves the kernel "
        "regime.",
        "supported if the kernel drifts more than 10 ** 0.5 times as far",
        (
            measure.mean_field,
            number(
                0.5,
                ANY,
                "orders of magnitude by which the kernel drifts further",
                "mean field",
                "kernel",
            ),
        ),
        (("scale", 1.0),),
        Plan(num_seeds=4, num_steps=200, num_samples=40, minutes=0.3),
        planted=Plan(num_seeds=3, num_steps=10, num_samples=10, num_heads=8),
        num_seeds=10,
        num_steps=2000,
        minutes=5.0,
    ),
)
