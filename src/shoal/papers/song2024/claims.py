r"""What Song et al. (2024) say, and what follows from it, put to the test.

The paper's full text was not available; statements are in our words, after its abstract, reviews
and public summaries. Batch sizes, step sizes and numbers of runs are not known, so settings are
ours. Rules were written down before their first run; where a statistic or a size was changed after
a review that had seen results, the rule says so.
"""

import functools
from typing import Any

from shoal.claims import Claim, sized
from shoal.papers.song2024 import claims_classifier as real
from shoal.papers.song2024 import claims_layer as layer
from shoal.papers.song2024.trials import Plan

PAPER_SAYS = "paper, as its abstract and public summaries tell it"
OURS = "our question"
REVISED = " (statistic or setting revised after a first look)"
FRESH = "our setting, a new problem for every seed"
ONE_DATA_SET = (
    "our setting, one data set: intervals cover the draw of weights and batches, not of the data"
)


def _claim(key: str, *words: Any, **values: Any) -> Claim:
    return sized(f"song2024.{key}", *words, **({"source": OURS, "setting": FRESH} | values))


_MIX = Plan(num_seeds=16, num_steps=40000, num_samples=3, num_tokens=3, minutes=0.2)
_TEXT = Plan(num_seeds=3, num_steps=100, num_samples=400, num_tokens=32, minutes=0.5)
_TEXT_FULL: dict[str, Any] = {
    "num_seeds": 5,
    "num_steps": 2000,
    "num_samples": 8000,
    "num_tokens": 256,
}
_TEXT_FULL |= {"minutes": 300.0}
_PICTURES = _TEXT._replace(num_tokens=16)
_PICTURES_FULL: dict[str, Any] = {
    "num_seeds": 5,
    "num_steps": 6000,
    "num_samples": 20000,
    "num_tokens": 64,
}
_PICTURES_FULL |= {"minutes": 120.0}
_DIGITS = _TEXT._replace(num_seeds=8, num_tokens=8)
_FEW_DIGITS = _DIGITS._replace(num_seeds=5)
_PLANES = Plan(num_seeds=6, num_steps=10, num_samples=60, num_tokens=8, points=15, minutes=0.5)
# a Gaussian whose steps are too small to learn anything, on data that softmax learns at once
_SLOW = (("problem", "digits"), ("gaussian_steps", (1e-7,)))
_AHEAD = (
    "supported if the Gaussian is ahead in held-out accuracy after the last step, seed by seed, "
    "and the better one is above 55%"
)


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "values_follow_recursion",
        "Training W_V alone takes the loss to the least squares floor at the predicted rate, for "
        "both kernels.",
        "supported if the exact recursion is met to 1e-9 of the first risk",
        (layer.measure_values, layer.decide_values),
        (("train", "W_V,W_K"),),
        Plan(num_seeds=4, num_steps=400),
        planted=Plan(num_seeds=2, num_steps=50),
        source=PAPER_SAYS,
        num_seeds=10,
        num_steps=10000,
    ),
    _claim(
        "heads_times_dim_counts",
        "What decides is heads x dim >= samples x tokens, not dim >= samples x tokens.",
        "supported if two heads of half that dimension leave a floor below 1e-9 of the first risk",
        (layer.measure_count, layer.decide_count),
        (("heads", 1),),
        Plan(num_seeds=8, num_steps=20),
        num_seeds=30,
    ),
    _claim(
        "bytes_need_more_than_dim",
        "dim >= samples x tokens does not make features independent for byte embeddings.",
        "supported if more than 5% of the rank is missing",
        (layer.measure_bytes, layer.decide_bytes),
        (("problem", "gaussian"),),
        Plan(num_seeds=8, num_samples=4, num_tokens=16),
        num_seeds=30,
    ),
    _claim(
        "softmax_is_trapped",
        "Where only W_Q moves, softmax can end at a bad local minimum where the Gaussian finds "
        "zero.",
        "supported if softmax ends more than 6 decades above the Gaussian near the trap, at strict "
        "minima in all runs",
        (layer.measure_trap, layer.decide_trap),
        (("train", "W_Q,W_K"),),
        Plan(num_seeds=16, num_steps=10000),
        source=PAPER_SAYS,
        num_seeds=100,
    ),
    _claim(
        "keys_free_softmax",
        "Training W_K too frees softmax from that trap.",
        "supported if the risk falls below 1e-3 of its start",
        (layer.measure_escape, layer.decide_escape),
        (("train", "W_Q"),),
        Plan(num_seeds=16, num_steps=20000),
        num_seeds=100,
    ),
    _claim(
        "gaussian_has_traps_too",
        "The Gaussian does not always reach zero either when only W_Q moves.",
        "supported if more than 5% of random rows end above 1e-4 although zero is in reach",
        (layer.measure_census, layer.decide_census),
        (("positive", True), ("key_dim", 2)),
        Plan(num_samples=500, num_steps=8000, num_tokens=6),
        num_samples=5000,
    ),
    _claim(
        "softmax_stops_at_hull",
        "Where targets ask for row sums of 0.6, softmax stops at the floor of its convex hull.",
        "supported if it ends less than 10% above that floor",
        (
            functools.partial(layer.measure_mixtures, kernels=("softmax",), row_sum=0.6),
            layer.decide_hull,
        ),
        (("num_steps", 20),),
        _MIX,
        num_seeds=100,
    ),
    _claim(
        "gaussian_goes_below_hull",
        "There the Gaussian, which is not normalised, ends far lower.",
        "supported if it ends more than a decade below softmax",
        (
            functools.partial(layer.measure_mixtures, kernels=("gaussian", "softmax"), row_sum=0.6),
            functools.partial(layer.decide_below, favoured="The Gaussian", other="softmax", by=1.0),
        ),
        (("row_sum", 1.0),),
        _MIX,
        source=PAPER_SAYS,
        num_seeds=100,
    ),
    _claim(
        "softmax_wins_inside_hull",
        "Where targets have row sums of 1, softmax is the better one.",
        "supported if softmax ends more than a decade below the Gaussian",
        (
            functools.partial(layer.measure_mixtures, kernels=("softmax", "gaussian"), row_sum=1.0),
            functools.partial(layer.decide_below, favoured="Softmax", other="the Gaussian", by=1.0),
        ),
        (("row_sum", 0.6),),
        _MIX,
        num_seeds=100,
    ),
    _claim(
        "normalisation_explains_gap",
        "Normalisation explains the gap: with normalised rows the Gaussian does as softmax does.",
        "supported if normalising makes more than half of the mean gap, in decades" + REVISED,
        (
            functools.partial(
                layer.measure_mixtures,
                kernels=("gaussian", "softmax", "normalised_gaussian"),
                row_sum=0.6,
            ),
            layer.decide_normalisation,
        ),
        (("kernels", ("gaussian", "softmax", "gaussian")),),
        _MIX,
        num_seeds=100,
    ),
    _claim(
        "dimension_rescues_softmax",
        "A stronger over-parameterisation, dim >= samples x tokens^2, rescues softmax.",
        "supported if it lowers the final share of the risk by more than a decade outside the hull",
        (layer.measure_rescue, layer.decide_rescue),
        (("num_steps", 20),),
        _MIX,
        source=PAPER_SAYS,
        num_seeds=100,
    ),
    _claim(
        "middling_scale_is_best",
        "Features are most independent at a middling scale of W_Q and W_K (an inverted U).",
        "supported if the best scale beats both ends of 0.01 .. 10 by more than 2 decades, for "
        "both kernels",
        (layer.measure_scales, layer.decide_scales),
        (("tied", True),),
        Plan(num_seeds=16),
        num_seeds=100,
    ),
    _claim(
        "tied_gaussian_is_better",
        "Starting with W_K = W_Q makes the Gaussian's features far more independent.",
        "supported if sigma_min grows by more than a decade, each at its best scale",
        (layer.measure_tied, layer.decide_tied),
        (("tied", False),),
        Plan(num_seeds=16),
        num_seeds=100,
    ),
    _claim(
        "residual_keeps_features",
        "Residual connections keep the last layer's features independent in deeper networks.",
        "supported if they gain more than a decade of conditioning at three layers with norm",
        (real.measure_depth, real.decide_depth),
        (("residual", 0.0),),
        Plan(num_seeds=8, num_samples=4, num_tokens=8, minutes=0.5),
        num_seeds=50,
    ),
    _claim(
        "landscape_more_minima",
        "After two-stage training softmax's landscape has more local minima than the Gaussian's.",
        "supported if its plane has more than half a strict local minimum more on average"
        + REVISED,
        (real.measure_landscape, real.decide_minima),
        (("kernels", ("softmax", "softmax")),),
        _PLANES,
        planted=_PLANES._replace(num_seeds=2, num_steps=10, num_samples=20, points=7),
        source=PAPER_SAYS,
        setting=ONE_DATA_SET,
        num_seeds=20,
        points=51,
    ),
    _claim(
        "landscape_rougher",
        "After two-stage training softmax's landscape is less smooth than the Gaussian's.",
        "supported if the roughness of its plane is larger by more than 0.01" + REVISED,
        (real.measure_landscape, real.decide_roughness),
        (("kernels", ("softmax", "softmax")),),
        _PLANES,
        planted=_PLANES._replace(num_seeds=2, num_steps=10, num_samples=20, points=7),
        source=PAPER_SAYS,
        setting=ONE_DATA_SET,
        num_seeds=20,
        points=51,
    ),
    *(
        _claim(
            f"{problem}_{'tuned' if tuned else 'equal_step'}",
            f"The Gaussian reaches a higher held-out accuracy than softmax on {words}, "
            f"{'each at its own best step' if tuned else 'at the same step'}.",
            _AHEAD,
            (
                functools.partial(real.measure_real, problem=problem, method=method, tuned=tuned),
                real.decide_real,
            ),
            _SLOW,
            quick,
            planted=_DIGITS,
            source=PAPER_SAYS if problem in ("imdb", "pathfinder") else OURS,
            setting=ONE_DATA_SET,
            **full,
        )
        for problem, words, method, quick, full, tuned in (
            ("imdb", "IMDb reviews", "sgd", _TEXT, _TEXT_FULL, False),
            ("imdb", "IMDb reviews", "sgd", _TEXT, _TEXT_FULL, True),
            ("pathfinder", "easy Pathfinder", "adam", _PICTURES, _PICTURES_FULL, False),
            ("pathfinder", "easy Pathfinder", "adam", _PICTURES, _PICTURES_FULL, True),
            ("rotten_tomatoes", "Rotten Tomatoes", "sgd", _TEXT, _TEXT_FULL, False),
            ("digits", "digits by rows", "adam", _FEW_DIGITS, {"num_seeds": 20}, False),
        )
    ),
)
