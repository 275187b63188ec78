"""Claims: what Qin et al. (2025) say, what follows from it, and a visit for ``shoal tour``.

Of the paper we know the abstract and excerpts. Statements whose source is the paper are its
abstract in our words, and every setting is ours. Every seed draws its own data and weights; a
measure takes a design and seeds and returns one effect per seed.
"""

import math
from functools import partial
from typing import Any

import numpy as np

from shoal.evidence.rules import Effect
from shoal.evidence.sequences import Interval
from shoal.figures import Panel, band
from shoal.lab import effects
from shoal.lab.claim import Control, Design, above, between
from shoal.lab.engine import default_steps
from shoal.lab.run import Run, train
from shoal.lab.setup import paper_setup
from shoal.lab.study import fresh_setup
from shoal.lab.theorem import certify
from shoal.lab.visit import Visit, number
from shoal.papers.qin2025 import experiments
from shoal.papers.qin2025.experiments import MOST, at_start, attention, certified_reach, depths
from shoal.papers.qin2025.model import PAPER

COMMON_STEP, SMALL_STEP = 0.01, 0.003
STEPS = tuple(np.geomspace(1e-3, 0.3, 11).tolist())  # among which each side has its best
ROUNDING = 1e-28  # shares of the first loss below this are rounding

Seeds = tuple[int, ...]

# ------------------------------------------------------------------------------- what is measured


def cured(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the residual lowers the condition number, where it helps least."""
    found = [attention(seeds, *setting) for setting in design["settings"]]
    gains = [
        effects.log10_ratio(f["condition_without"], f["condition_with"], ceiling=MOST)
        for f in found
    ]
    least = gains[0]
    for gain in gains[1:]:
        least = effects.smaller(least, gain)
    return least


def over_tokens(design: Design, seeds: Seeds) -> np.ndarray:
    """Condition number of the output over that of the tokens."""
    found = attention(seeds, 16, 1.0, design["value_scale"], design["token_correlation"])
    return found["condition_with"] / found["condition_X"]


def logits(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which attention's condition number at one score scale exceeds that at another."""
    scales = design["score_scale"], design["reference_scale"]
    one, other = (attention(seeds, 16, scale, 0.5)["condition_S"] for scale in scales)
    return effects.log10_ratio(one, other, ceiling=MOST)


def deep(design: Design, seeds: Seeds) -> list[Interval]:
    """A measure of a deep layer with one choice of residuals over that with another, in orders."""
    one, other = (
        depths(seeds, design[side])[design["measure"]][:, design["layer"] - 1]
        for side in ("one", "other")
    )
    return effects.log10_ratio(one, other, floor=1 / MOST, ceiling=MOST)


def collapse_speed(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders that the centred share loses in the third layer over those of the second."""
    share = depths(seeds, **design["settings"])["centred_share"]
    logs = [effects.log10_known(share[:, k], floor=1 / MOST) for k in range(3)]
    early, late = effects.minus(logs[0], logs[1]), effects.minus(logs[1], logs[2])
    return [_ratio(a, b) for a, b in zip(late, early, strict=True)]


def _ratio(above: Interval, below: Interval) -> Interval:
    """A ratio of intervals; without a loss in the layer before there is no speed to compare."""
    if below[0] <= 0:
        return (-np.inf, np.inf) if below[1] > 0 else (-np.inf, -np.inf)
    ends = [a / b for a in above for b in below]
    return min(ends), max(ends)


def shares_left(design: Design, seeds: Seeds, side: str) -> np.ndarray:
    """Every seed's loss after training over its first, on one side of a comparison."""
    values = {**design["common"], **design[side]}
    step, share = values.pop("step_size", None), values.pop("step_share", None)
    if step is None:  # each seed's own: half of 1 / lambda_max of its kernel
        setup = fresh_setup(PAPER, values, seeds=seeds)
        step = tuple((default_steps(setup) * (1.0 if share is None else share)).tolist())
    return experiments.risk_left(seeds, step, design["num_steps"], **values)


def faster(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the loss falls further on the fast side than on the slow one."""
    slow, fast = (shares_left(design, seeds, side) for side in ("slow", "fast"))
    return effects.loss_ratio(slow, fast, floor=ROUNDING)


def both_parts(design: Design, seeds: Seeds) -> list[Interval]:
    """The smaller of two margins: it trains by three orders with residuals, and not without."""
    logs = {side: effects.loss_ratio(shares_left(design, seeds, side), np.ones(len(seeds)),
                                     floor=ROUNDING) for side in ("slow", "fast")}  # fmt: skip
    trains = [(-3 - hi, -3 - lo) for lo, hi in logs["fast"]]
    does_not = [(lo + 0.3, hi + 0.3) for lo, hi in logs["slow"]]
    return effects.smaller(trains, does_not)


def local_rate(design: Design, seeds: Seeds) -> np.ndarray:
    """Decay of the loss late in training over what the smallest kernel eigenvalue predicts."""
    steps, step = design["num_steps"], design["step_size"]
    probe, tail = f"kernel_eigenvalues@{steps}", steps // 5
    run = experiments.fresh_run(seeds, step, (probe,), num_steps=steps)
    measured = -np.log(run.risk[:, -1] / run.risk[:, -1 - tail]) / tail
    eigenvalue = run.probes["kernel_eigenvalues"][:, -1, 0]
    return measured / (-2 * np.log(np.abs(1 - step * eigenvalue)))


def rate_by_condition(design: Design, seeds: Seeds) -> list[Effect]:
    """Exponent of the late rate against the tokens' condition number."""
    grid = tuple(design["conditions"])
    found = experiments.rates(seeds, design["num_steps"], grid, design["step_power"])
    return effects.exponents(grid, np.maximum(found, 0.0))


def step_limit(design: Design, seeds: Seeds) -> list[Interval]:
    """The longest step that trains times sharpness / 2, between two points of a grid."""
    low, high = experiments.step_limits(
        seeds, design["residual"], design["num_steps"], **design["more"]
    )
    return list(zip(low.tolist(), high.tolist(), strict=True))


def sharpness_growth(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the sharpness grows more with depth on one side than on the other."""

    def growth(scale: str) -> np.ndarray:
        sharp = partial(at_start, experiments.top_hessian, seeds, residual_scale=scale)
        return sharp(num_layers=design["num_layers"]) / sharp(num_layers=1)

    return effects.log10_ratio(growth(design["one"]), growth(design["other"]))


def certified(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which theorem D certifies larger errors; no certificate is a reach of zero."""
    sides = (certified_reach(seeds, residual=design[side])["relative"] for side in ("one", "other"))
    one, other = (np.nan_to_num(side, nan=0.0) for side in sides)
    return effects.log10_ratio(one, other)


def conservative(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the kernel at the start contracts faster than theorem D guarantees."""
    found = certified_reach(seeds, design["share"])  # a small residual, a small ball
    kernel = 1 - np.abs(1 - found["step"] * found["lambda_min"])
    return effects.log10_ratio(kernel, found["lost"])


# ---------------------------------------------------------------------------------------- claims

SUMMARY = "paper, as summarised (its abstract); the setting is ours"
SEQUENCE = "one sequence of Gaussian tokens, dim and key dim 64, untrained"
LAYERS = "4 sequences of 8 Gaussian tokens, dim 64, width 128, branches of scale 0.5, untrained"
TRAINED = ("4 sequences of 6 Gaussian tokens of scale 0.5, dim 32, width 64, smooth leaky "
           "activation, random targets")  # fmt: skip
SMALL = "3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3, 1 layer"
KAPPA, LOSS = "orders of the condition number", "orders of the loss over its start"
LONGEST = "the longest step that ends below the start, over 2 / sharpness,"
ORDER = "the statement means more than a power of ten; only the wrong sign refutes it"
FACTOR = "a factor 1.25 is the margin at which a user would not decide otherwise"
NO_NUMBER = "the statement has no number"

_WITHOUT, _WITH = {"residual": "none"}, {"residual": "both"}


def _claim(
    key: str, said: str, measure: Any, test: Any, at: str, design: Design, **more: Any
) -> None:
    settled = {"assumptions": ("float64",), "why": NO_NUMBER} | more
    PAPER.claim(key, said, measure, test, setting=at, design=design, **settled)


_CURED = [[n, *s] for n in (8, 16, 32) for s in ((0.25, 0.1), (1.0, 0.5), (2.0, 1.0))]
_claim(
    "residual_cures_conditioning",
    "Adding the residual connection lowers the condition number of attention's output by more "
    "than a power of ten, whatever the number of tokens and the scales of the weights.",
    cured, above(1.0, f"{KAPPA} gained by the residual, in the setting where it helps least,",
                 against=0.0),
    f"{SEQUENCE}; 8, 16 and 32 tokens; score and value scales 0.25/0.1, 1/0.5 and 2/1",
    {"settings": _CURED}, source=SUMMARY, why=ORDER, seconds=0.4,
    controls=[Control({"settings": [[16, 1.0, 1000.0]]}, why="value weights beside which the "
                      "residual does not count")],
)  # fmt: skip
_claim(
    "residual_cures_correlated_tokens",
    "Adding the residual connection lowers the condition number of attention's output by more "
    "than a power of ten even if tokens have correlation 0.99.",
    cured, above(1.0, f"{KAPPA} gained by the residual", against=0.0),
    f"{SEQUENCE}; 16 tokens, score scale 1, value scale 0.5",
    {"settings": [[16, 1.0, 0.5, 0.99]]}, why=ORDER, seconds=0.05,
    controls=[Control({"settings": [[16, 1.0, 1e5, 0.99]]}, why="value weights beside which the "
                      "residual does not count")],
)  # fmt: skip
_claim(
    "residual_cannot_beat_its_tokens",
    "With small value weights, attention's output with its residual is conditioned as the tokens "
    "are, within a factor 1.25.",
    over_tokens, between(0.8, 1.25, "condition number of the output over that of the tokens"),
    f"{SEQUENCE}; 16 tokens of correlation 0.9, score scale 1, value scale 0.1",
    {"value_scale": 0.1, "token_correlation": 0.9}, why=FACTOR, seconds=0.05,
    controls=[Control({"value_scale": 20.0}, why="large value weights outweigh the tokens")],
)  # fmt: skip
for _key, _word, _scale in (("small", "small", 0.25), ("large", "large", 2.0)):
    _claim(
        f"{_key}_logits_hurt",
        f"Without a residual, {_word} scores (scale {_scale:g}) make the attention matrix worse "
        "conditioned than scores of scale 1.",
        logits, above(0.0, f"{KAPPA} added by score scale {_scale:g}"), f"{SEQUENCE}; 16 tokens",
        {"score_scale": _scale, "reference_scale": 1.0}, seconds=0.05,
        controls=[Control({"score_scale": 1.0, "reference_scale": _scale},
                          why="the cause on the other side")],
    )  # fmt: skip
_claim(
    "the_residual_around_attention_matters",
    "Of the two residual connections, the one around attention keeps the condition number of the "
    "fourth layer's attention output low: without it, it is more than 1000 times larger.",
    deep, above(3.0, f"{KAPPA} in layer 4 added by the wrong residual", against=0.0),
    f"{LAYERS}; beyond 1e16 only that is known",
    {"measure": "condition", "layer": 4, "one": "feed_forward", "other": "attention"},
    why="the number in the statement; only the wrong sign refutes it", seconds=0.1,
    controls=[Control({"one": "both"}, why="both sides have the residual around attention")],
)  # fmt: skip
_claim(
    "the_feedforward_residual_holds_the_scale",
    "Next to the residual around attention, the one around the feed-forward layer lowers the "
    "condition number in the eighth layer by more than half a power of ten.",
    deep, above(0.5, f"{KAPPA} in layer 8 added without the feed-forward residual", against=0.0),
    LAYERS, {"measure": "condition", "layer": 8, "one": "attention", "other": "both"},
    why="the number in the statement; only the wrong sign refutes it", seconds=0.1,
    controls=[Control({"one": "both", "other": "attention"}, why="the cause on the other side")],
)  # fmt: skip
_claim(
    "rank_collapses_without_residuals",
    "Without residual connections the tokens of a sequence become equal within three layers: the "
    "share that is not their mean is more than 1000 times smaller than with them.",
    deep, above(3.0, "orders of the share of tokens that is not their mean, with over without "
                "residuals, layer 3,", against=0.0),
    f"{LAYERS}; below 1e-16 only that is known",
    {"measure": "centred_share", "layer": 3, "one": "both", "other": "none"},
    why="the number in the statement; only the wrong sign refutes it", seconds=0.1,
    controls=[Control({"one": "none", "other": "both"}, why="the cause on the other side")],
)  # fmt: skip
_claim(
    "collapse_accelerates",
    "Without residual connections the collapse of tokens is faster than geometric: a layer loses "
    "more than 1.5 times the orders of the layer before.",
    collapse_speed, above(1.5, "orders of the share of tokens that is not their mean lost from "
                          "layer 2 to 3, over those from 1 to 2,", against=1.0),
    f"{LAYERS}, without residuals", {"settings": {"residual": "none"}},
    why="1.5 is the number in the statement; at 1 the collapse is geometric", seconds=0.1,
    controls=[Control({"settings": {"residual": "both", "scale_qk": 1e-3, "scale_v": 10.0}},
                      why="uniform attention beside a residual multiplies the mean by about ten in "
                      "every layer and leaves the rest: geometric. Replaces the residual around "
                      "attention alone, which left 11 of 17 draws below 1.5")],
)  # fmt: skip


def _trains_faster(
    key: str, said: str, slow: Design, fast: Design, *, effect: str, at: str = TRAINED,
    measure: Any = faster, common: Design | None = None, step: float = COMMON_STEP, **more: Any,
) -> None:  # fmt: skip
    """A claim that the loss falls further on one side; the control hampers that side."""
    slow, fast = {"step_size": step} | dict(slow), {"step_size": step} | dict(fast)
    design = {"common": dict(common or {}), "slow": slow, "fast": fast, "num_steps": 500}
    design |= {"tuned": more.pop("tuned")} if "tuned" in more else {}
    if "controls" not in more:
        hampered = {"fast": {"step_size": fast["step_size"] / 100}}
        why = "the favoured side has a step 100 times smaller"
        more["controls"] = [Control(hampered, why=why)]
    words = f"{at}; 500 steps" + (f" of {step:g}" if fast["step_size"] == step else "")
    _claim(key, said, measure, above(0.0, effect), words, design, **({"seconds": 1.0} | more))


_LEFT = f"{LOSS}, without over with residuals,"
_trains_faster(
    "residual_trains_faster_at_one_step",
    "At one step size for both, the loss falls further with residual connections than without.",
    _WITHOUT, _WITH, effect=_LEFT, source=SUMMARY,
    version=2, changed="the smooth leaky rectifier lost digits near 0: version 1 became stale",
)  # fmt: skip
TUNED_STEPS = {"none": STEPS[5], "both": STEPS[5]}
"""The best of `STEPS` on seeds 9000 to 9015: the smallest median loss after 500 steps."""
_trains_faster(
    "residual_trains_faster_at_own_step",
    "The loss falls further with residual connections than without when each side has the step "
    "size that was best for it on other draws.",
    _WITHOUT | {"step_size": TUNED_STEPS["none"]}, _WITH | {"step_size": TUNED_STEPS["both"]},
    effect=_LEFT, tuned={"seeds": [9000, 9015], "grid": STEPS, "by": "median of the last loss"},
)  # fmt: skip
_trains_faster(
    "relu_trains_faster_with_residual",
    "With ReLU, which the theorems do not cover, the loss falls further with residual connections "
    "than without, at one step size for both.",
    _WITHOUT, _WITH, effect=_LEFT, common={"activation": "relu"},
    at=TRAINED.replace("smooth leaky", "ReLU"),
)  # fmt: skip
_trains_faster(
    "causal_trains_faster_with_residual",
    "In the causal (decoder) form the loss falls further with residual connections than without, "
    "at one step size for both.",
    _WITHOUT, _WITH, effect=_LEFT, common={"causal": True}, at=f"{TRAINED}, causal",
)  # fmt: skip
_trains_faster(
    "attention_residual_alone_trains",
    "The loss falls further with the residual connection around attention alone than with the one "
    "around the feed-forward layer alone.",
    {"residual": "feed_forward"}, {"residual": "attention"},
    effect=f"{LOSS}, feed-forward residual alone over attention's alone,",
)  # fmt: skip
_trains_faster(
    "deep_networks_need_residuals",
    "Six layers with residual connections train to a thousandth of the first loss, and without "
    "them the loss stays above half of the first.",
    _WITHOUT, _WITH, measure=both_parts, common={"num_layers": 6}, step=SMALL_STEP, seconds=4.0,
    effect="the smaller of the orders below a thousandth (with residuals) and those above a half "
    "(without)", at=f"{TRAINED}, 6 layers",
    why="a thousandth and a half are in the statement; both margins must be positive",
)  # fmt: skip
_trains_faster(
    "depth_speeds_training_with_residuals",
    "With residual connections the loss of four layers falls further than that of one layer, at "
    "one step size for both.",
    {"num_layers": 1}, {"num_layers": 4}, step=SMALL_STEP, seconds=2.5,
    effect=f"{LOSS}, 1 layer over 4 layers,",
)  # fmt: skip
_claim(
    "smallest_eigenvalue_gives_the_rate",
    "Late in training the loss falls at the rate that the smallest eigenvalue of the tangent "
    "kernel predicts, (1 - step x eigenvalue)^2 per step, within a factor 1.25 of the exponent.",
    local_rate, between(0.8, 1.25, "measured over predicted exponential rate"),
    f"{TRAINED}; 800 steps of 0.01, of which the last fifth counts",
    {"num_steps": 800, "step_size": COMMON_STEP}, why=FACTOR, seconds=2.0,
    controls=[Control({"num_steps": 20}, why="early in training other modes dominate")],
    version=2, changed="the smooth leaky rectifier lost digits near 0: version 1 became stale",
)  # fmt: skip
_claim(
    "rate_falls_like_condition_squared",
    "The rate of convergence falls no faster than the square of the tokens' condition number.",
    rate_by_condition,
    above(-2.25, "the exponent of the late rate against the tokens' condition number", bound=True),
    f"{TRAINED}, value scale 0.1; condition 2, 4, 8, 16, 32; 1000 steps of half of 1 / lambda_max "
    "of each seed's kernel; the last fifth before the loss is rounding",
    {"conditions": [2.0, 4.0, 8.0, 16.0, 32.0], "num_steps": 1000, "step_power": 0.0},
    why="-2 is the guarantee; 0.25 is half the distance to an exponent of -2.5", seconds=8.0,
    controls=[Control({"step_power": 3.0}, why="a step that shrinks like the cube of the "
                      "condition number makes the rate fall faster")],
)  # fmt: skip
_DEEPER = Control({"residual": "both", "more": {"num_layers": 4}},
                  why="four layers with residuals bear more than twice that step")  # fmt: skip
_LINEAR = Control({"more": {"train": "W_U"}}, "positive", "linear in W_U: the limit is exact")
for _key, _mode, _words in (
    ("two_over_sharpness_limits_the_step", "both", "With residual connections"),
    ("two_over_sharpness_without_residuals", "none", "Without residual connections"),
):
    _claim(
        _key,
        f"{_words}, the longest step that trains is 2 / sharpness at the start, within a factor 2.",
        step_limit, between(0.5, 2.0, LONGEST), f"{TRAINED}; 120 steps, 24 step sizes",
        {"residual": _mode, "num_steps": 120, "more": {"num_layers": 1, "train": "all"}},
        why="a factor 2 is the number in the statement", seconds=3.0,
        controls=[_DEEPER, _LINEAR],
    )  # fmt: skip
_claim(
    "scaled_branches_keep_the_sharpness",
    "From one to six layers the sharpness grows by more than half a power of ten more with plain "
    "branches than with branches divided by the root of the depth.",
    sharpness_growth,
    above(0.5, "orders by which the sharpness grows more from 1 to 6 layers with plain branches",
          against=0.0),
    f"{TRAINED}, untrained", {"num_layers": 6, "one": "one", "other": "depth"}, seconds=1.5,
    why="the number in the statement; only the wrong sign refutes it",
    controls=[Control({"one": "depth", "other": "one"}, why="the cause on the other side")],
)  # fmt: skip
_claim(
    "residual_widens_the_certificate",
    "With residual connections theorem D certifies initial errors that are more than 1000 times "
    "larger than without.",
    certified, above(3.0, "orders of the largest certified error over the output's size, with over "
                     "without residuals,", against=0.0),
    f"{SMALL}; the better route; no certificate is a reach of zero",
    {"one": "both", "other": "none"}, seconds=1.0,
    why="the number in the statement; only the wrong sign refutes it",
    controls=[Control({"one": "none", "other": "both"}, why="the cause on the other side")],
)  # fmt: skip
_claim(
    "the_certificate_is_conservative",
    "The rate that theorem D guarantees is more than three times lower than the rate of the "
    "tangent kernel at the start.",
    conservative, above(0.48, "orders by which the kernel's rate exceeds the guaranteed one at "
                        "theorem D's step"),
    SMALL, {"share": 1.0}, why="0.48 = log10 3, the number in the statement", seconds=0.5,
    controls=[Control({"share": 1e-6}, why="for tiny errors the guarantee is nearly exact")],
)  # fmt: skip
_trains_faster(
    "realizable_targets_are_easier",
    "With more tokens than dimensions, the loss falls further on a teacher's targets than on "
    "random ones.",
    {"labels": "gaussian", "step_size": None}, {"labels": "teacher", "step_size": None},
    common={"num_samples": 8, "num_tokens": 12}, effect=f"{LOSS}, random over teacher's targets,",
    at="8 sequences of 12 Gaussian tokens of scale 0.5, dim 32, width 64; each seed's step is half "
    "of 1 / lambda_max of its kernel", seconds=4.0, step=0.0,
    controls=[Control({"fast": {"step_share": 0.01}},
                      why="the favoured side has a step 100 times smaller")],
)  # fmt: skip

# ----------------------------------------------------------------------------------------- visit

NEAR = experiments.SMALL | {"num_layers": 2, "labels": "near", "near_error": 1e-4,
                            "step_size": 2e-4, "num_steps": 200}  # fmt: skip


def _visited(residual: str) -> tuple[Run, dict[str, Any]]:
    setup = paper_setup(PAPER, NEAR | {"residual": residual})
    run = train(setup, probes=("distance", "conditioning"))
    found = certify(run, "theorem_d")
    condition = float(run.probes["conditioning_condition"][0, 0, -1])
    r_max, r_0 = (float(found[0].constants[name]) for name in ("r_max", "|r_0|"))
    return run, {
        "residual": residual, "layers": NEAR["num_layers"], "condition": condition, "r_max": r_max,
        "r_0": r_0, "risk_left": float(run.risk[0, -1] / run.risk[0, 0]), "verdict": found.verdict,
    }  # fmt: skip


def _finite(value: float) -> str:
    return number(value) if math.isfinite(value) else "infinite"


def visit() -> Visit:
    """Two layers with and without residuals: conditioning, and what theorem D certifies."""
    runs, rows = zip(*map(_visited, ("both", "none")), strict=True)
    said = [
        f"{word} residuals the second layer's attention output has condition number "
        f"{_finite(row['condition'])}, and theorem_d certifies initial errors up to "
        f"{number(row['r_max'])}: {row['verdict']}."
        for word, row in zip(("With", "Without"), rows, strict=True)
    ]
    curves = tuple(
        band(f"residuals: {row['residual']}", run.step, run.risk / run.risk[:, :1])
        for row, run in zip(rows, runs, strict=True)
    )
    return Visit(
        "what residuals do to two layers",
        list(rows),
        ("residuals", "layers", "condition number", "r_max", "|r_0|", "risk left", "verdict"),
        [tuple(number(x) if isinstance(x, float) else str(x) for x in r.values()) for r in rows],
        "\n".join(said),
        about="softmax makes attention's output ill-conditioned, residual connections cure it, and "
        "the speed of training follows its singular values.",
        panels=(Panel("at one step for both", "step", "risk over its start", curves),),
        verdicts=tuple((f"theorem_d, residuals: {r['residual']}", r["verdict"]) for r in rows),
        finding="Two layers: the condition number of attention's output is "
        f"{_finite(rows[0]['condition'])} with residual connections and "
        f"{_finite(rows[1]['condition'])} without.",
    )


PAPER.visit = visit
