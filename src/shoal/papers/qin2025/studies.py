"""Claims: what Qin et al. (2025) say, what follows from it, and a visit for ``shoal tour``.

Of the paper we know the abstract and excerpts. Statements whose source is the paper are its
abstract in our words, and every setting is ours. Rules were written down before their first run;
where one was changed after a first look, it says so.
"""

from functools import partial
from typing import Any

import numpy as np

from shoal.figures import Panel, band
from shoal.lab.claim import Measurement, Plan, above, between, comparison, exponent, log10_ratio
from shoal.lab.run import Run, train
from shoal.lab.setup import paper_setup
from shoal.lab.theorem import certify
from shoal.lab.visit import Visit, number
from shoal.papers.qin2025 import experiments
from shoal.papers.qin2025.experiments import MOST, at_start, attention, certified_reach, depths
from shoal.papers.qin2025.model import PAPER

COMMON_STEP, SMALL_STEP, FROZEN_STEP = 0.01, 0.003, 1e-9
"""The last one is so small that nothing is learnt: for negative controls."""
STEPS = tuple(np.geomspace(1e-3, 0.3, 11).tolist())  # among which each side has its best

# ------------------------------------------------------------------------------- what is measured

CURED = tuple((n, *s) for n in (8, 16, 32) for s in ((0.25, 0.1), (1.0, 0.5), (2.0, 1.0)))
CORRELATED = ((16, 1.0, 0.5, 0.99),)  # tokens, score scale, value scale and correlation


def _cured(plan: Plan, settings: tuple) -> Measurement:
    """Condition numbers without and with the residual, in the setting where it helps least."""
    found = [attention(plan.seeds, *setting) for setting in settings]
    without = np.stack([f["condition_without"] for f in found])
    with_it = np.stack([f[plan.get("kind", "condition_with")] for f in found])
    least = np.argmin(np.log10(without / with_it), axis=0), np.arange(plan.seeds)
    return log10_ratio(without[least], with_it[least])


def _over_tokens(plan: Plan) -> Measurement:
    found = attention(plan.seeds, 16, 1.0, plan.get("scale_v", 0.1), 0.9)
    one, other = found["condition_with"], found["condition_X"]
    return comparison(one, other, one / other)


def _logits(plan: Plan, scale: float) -> Measurement:
    one, other = (attention(plan.seeds, 16, s, 0.5) for s in (plan.get("scale", scale), 1.0))
    return log10_ratio(one["condition_S"], other["condition_S"])


def _deep(plan: Plan, kind: str, one: str, other: str) -> Measurement:
    """A measure of a deep layer with one choice of residuals over that with another."""
    modes = (plan.get("residual", one), other)
    found = (depths(plan.seeds, mode)[kind][:, plan.layers - 1] for mode in modes)
    return log10_ratio(*(np.clip(values, 1 / MOST, MOST) for values in found))


def _collapse_speed(plan: Plan) -> Measurement:
    """Without residuals: orders that the share loses in the third layer over the second."""
    share = np.maximum(depths(plan.seeds, "none")["centred_share"], 1 / MOST)
    fall = -np.diff(np.log10(share), axis=1)
    late, early = (fall[:, k] for k in ((0, 1) if plan.get("swapped", False) else (1, 0)))
    return comparison(late, early, late / early)


def _faster(plan: Plan, slow: dict, fast: dict, step: Any = COMMON_STEP, **values: Any) -> Any:
    """Risk left on the slow side over that on the fast one, which a control changes."""
    changed = dict(plan.control)
    step, values["num_layers"] = changed.pop("step", step), plan.layers
    sides, sizes = (values | slow, values | fast | changed), (plan.seeds, step, plan.steps)
    return log10_ratio(*(experiments.risk_left(*sizes, **side) for side in sides))


def _own_step(plan: Plan) -> Measurement:
    sizes = (plan.seeds, plan.get("steps", STEPS), plan.steps)
    found = (experiments.risk_by_step(*sizes, residual=mode) for mode in ("none", "both"))
    return log10_ratio(*(left.min(axis=1) for left in found))


def _local_rate(plan: Plan) -> Measurement:
    """Decay of the risk late in training over what the smallest kernel eigenvalue predicts."""
    tail, probe = plan.steps // 5, f"kernel_eigenvalues@{plan.steps}"
    run = experiments.fresh_run(plan.seeds, COMMON_STEP, (probe,), num_steps=plan.steps)
    measured = -np.log(run.risk[:, -1] / run.risk[:, -1 - tail]) / tail
    eigenvalue = run.probes["kernel_eigenvalues"][:, -1, plan.get("eigenvalue", 0)]
    predicted = -2 * np.log(np.abs(1 - COMMON_STEP * eigenvalue))
    return comparison(measured, predicted, measured / predicted)


def _rate_by_condition(plan: Plan) -> Measurement:
    rates = experiments.rates(plan.seeds, plan.get("step", None), plan.steps, plan.grid)
    return {"x": np.array(plan.grid), "y": rates}


def _step_limit(plan: Plan, residual: str) -> Measurement:
    share = experiments.step_limits(plan.seeds, plan.get("residual", residual), plan.steps)
    return comparison(share, np.ones_like(share), share)


def _sharpness_growth(plan: Plan) -> Measurement:
    """Sharpness at a depth over that of one layer: plain branches against scaled ones."""

    def growth(scale: str) -> np.ndarray:
        sharp = partial(at_start, experiments.top_hessian, plan.seeds, residual_scale=scale)
        return sharp(num_layers=plan.layers) / sharp(num_layers=1)

    return log10_ratio(growth(plan.get("residual_scale", "one")), growth("depth"))


def _certified(plan: Plan) -> Measurement:
    modes = (plan.get("residual", "both"), "none")
    return log10_ratio(*(certified_reach(plan.seeds, residual=m)["relative"] for m in modes))


def _conservative(plan: Plan) -> Measurement:
    """Share of the residual lost per step by the kernel at the start, over theorem D's."""
    found = certified_reach(plan.seeds, plan.get("share", 1.0))  # a small residual, a small ball
    return log10_ratio(1 - np.abs(1 - found["step"] * found["lambda_min"]), found["lost"])


# ---------------------------------------------------------------------------------------- claims

SUMMARY = "paper, as summarised (its abstract); the setting is ours"
SEQUENCE = "one sequence of Gaussian tokens, dim and key dim 64, untrained"
LAYERS = "4 sequences of 8 Gaussian tokens, dim 64, width 128, branches of scale 0.5, untrained"
TRAINED = ("4 sequences of 6 Gaussian tokens of scale 0.5, dim 32, width 64, smooth leaky "
           "activation, random targets, float64")  # fmt: skip
SMALL = "3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3, 1 layer"
STEPPED = f"{TRAINED}; 500 steps of"
KAPPA, LOSS = "orders of the condition number", "orders of the loss over its start"
LONGEST = "longest step that ends below the start, times sharpness / 2"

_START, _DEEP = Plan(seeds=50, minutes=0.1), Plan(seeds=20, layers=4, minutes=0.1)
_RUNS, _SHORT = Plan(seeds=5, steps=500), Plan(seeds=3, steps=50)
_FROZEN, _NO_CURE = {"step": FROZEN_STEP}, {"kind": "condition_without"}
NONE, BOTH, SIDES = {"residual": "none"}, {"residual": "both"}, ("without", "with")


def _claim(key: str, said: str, measure: Any, rule: Any, at: str, plan: Plan, **more: Any) -> None:
    full = {"seeds": 30, "minutes": 2.0} if plan.seeds == 5 else {"seeds": 10 * plan.seeds}
    if more["control"] is _FROZEN:
        more["control_plan"] = plan._replace(seeds=3, steps=50)
    PAPER.claim(key, said, measure, None, rule, setting=at, quick=plan, full=full, **more)


# fmt: off
_claim("residual_cures_conditioning",
       "The residual connection cures the ill-conditioning of attention's output.",
       partial(_cured, settings=CURED),
       above(1.0, f"{KAPPA}, where the residual helps least", *SIDES),
       f"{SEQUENCE}; 8, 16 and 32 tokens; score and value scales 0.25/0.1, 1/0.5 and 2/1", _START,
       control=_NO_CURE, source=SUMMARY)
_claim("residual_cures_correlated_tokens",
       "The residual cures attention's output even if tokens have correlation 0.99.",
       partial(_cured, settings=CORRELATED), above(1.0, KAPPA, *SIDES),
       f"{SEQUENCE}; 16 tokens, score scale 1, value scale 0.5", _START, control=_NO_CURE)
_claim("residual_cannot_beat_its_tokens",
       "With small value weights the output is conditioned as the tokens are, no better.",
       _over_tokens, between(0.8, 1.25, "ratio of condition numbers", "output", "tokens"),
       f"{SEQUENCE}; 16 tokens of correlation 0.9, score scale 1, value scale 0.1", _START,
       control={"scale_v": 20.0})
_claim("small_logits_hurt", "Without residual, small scores make attention ill-conditioned.",
       partial(_logits, scale=0.25), above(1.0, KAPPA, "score scale 0.25", "score scale 1"),
       f"{SEQUENCE}; 16 tokens", _START, control={"scale": 1.0})
_claim("large_logits_hurt", "Without residual, large scores make attention ill-conditioned, too.",
       partial(_logits, scale=2.0), above(0.5, KAPPA, "score scale 2", "score scale 1"),
       f"{SEQUENCE}; 16 tokens", _START, control={"scale": 1.0})
_claim("the_residual_around_attention_matters",
       "Of the two residuals, the one around attention keeps the rank with depth.",
       partial(_deep, kind="condition", one="feed_forward", other="attention"),
       above(3.0, f"{KAPPA} in layer 4", "feed-forward residual alone", "attention's alone"),
       f"{LAYERS}; beyond 1e16 counts as 1e16", _DEEP, control={"residual": "attention"})
_claim("the_feedforward_residual_holds_the_scale",
       "The residual around the feed-forward layer then keeps the conditioning with depth.",
       partial(_deep, kind="condition", one="attention", other="both"),
       above(0.5, f"{KAPPA} in layer 8", "attention's residual alone", "both"), LAYERS,
       _DEEP._replace(layers=8), control=BOTH)
_claim("rank_collapses_without_residuals", "Without residuals tokens become equal in a few layers.",
       partial(_deep, kind="centred_share", one="both", other="none"),
       above(3.0, "orders of the share of tokens that is not their mean, layer 3",
             "with", "without"), LAYERS, _DEEP._replace(layers=3), control=NONE)
_claim("collapse_accelerates", "The collapse is faster than geometric.", _collapse_speed,
       above(1.5, "ratio of orders lost", "layers 2 to 3", "layers 1 to 2"),
       f"{LAYERS}; share of tokens that is not their mean, without residuals",
       _DEEP._replace(layers=3), control={"swapped": True})
_claim("residual_trains_faster_at_one_step",
       "At one step for both, training converges faster with residuals.",
       partial(_faster, slow=NONE, fast=BOTH), above(1.0, LOSS, *SIDES), f"{STEPPED} 0.01", _RUNS,
       control=_FROZEN, source=SUMMARY)
_claim("residual_trains_faster_at_own_step",
       "Training converges faster with residuals when each side takes its own best step.",
       _own_step, above(1.0, LOSS, *SIDES),
       f"{STEPPED} the best of 11 sizes (0.001 to 0.3) for each seed and side", _RUNS,
       control={"steps": (FROZEN_STEP,)}, control_plan=_SHORT)
_claim("relu_trains_faster_with_residual",
       "Training converges faster with residuals for ReLU, too, which the theorems do not cover.",
       partial(_faster, slow=NONE, fast=BOTH, activation="relu"), above(1.0, LOSS, *SIDES),
       f"{STEPPED} 0.01".replace("smooth leaky", "ReLU"), _RUNS, control=_FROZEN)
_claim("causal_trains_faster_with_residual",
       "Training converges faster with residuals in the causal (decoder) form, too.",
       partial(_faster, slow=NONE, fast=BOTH, causal=True), above(1.0, LOSS, *SIDES),
       f"{STEPPED} 0.01, causal", _RUNS, control=_FROZEN)
_claim("attention_residual_alone_trains",
       "For training, too, the residual around attention is the one that matters.",
       partial(_faster, slow={"residual": "feed_forward"}, fast={"residual": "attention"}),
       above(1.0, LOSS, "feed-forward residual alone", "attention's alone"), f"{STEPPED} 0.01",
       _RUNS, control=_FROZEN)
_claim("deep_networks_need_residuals", "Six layers train with residuals and not without.",
       partial(_faster, slow=NONE, fast=BOTH, step=SMALL_STEP), above(3.0, LOSS, *SIDES),
       f"{STEPPED} 0.003", _RUNS._replace(layers=6), control=_FROZEN)
_claim("depth_speeds_training_with_residuals",
       "With residuals, more layers train faster at one step.",
       partial(_faster, slow={"num_layers": 1}, fast={}, step=SMALL_STEP),
       above(1.0, LOSS, "1 layer", "4 layers"), f"{STEPPED} 0.003", _RUNS._replace(layers=4),
       control=_FROZEN)
_claim("smallest_eigenvalue_gives_the_rate",
       "Late in training the loss falls by (1 - step lambda_min)^2 per step.", _local_rate,
       between(0.8, 1.25, "ratio of exponential rates", "measured", "predicted"),
       f"{TRAINED}; 800 steps of 0.01, of which the last fifth counts", _RUNS._replace(steps=800),
       control={"eigenvalue": -1})
_claim("rate_falls_like_condition_squared",
       "The rate of convergence falls like the square of the tokens' condition number.",
       _rate_by_condition,
       exponent(-2.5, -1.5, "the late rate", "the tokens' condition number", revised=True),
       f"{TRAINED}, value scale 0.1; condition 2, 4, 8, 16; 1000 steps of half of 1 / lambda_max "
       "of each seed's kernel; the last fifth before the loss is rounding",
       _RUNS._replace(steps=1000, grid=(2.0, 4.0, 8.0, 16.0)), control=_FROZEN, source=SUMMARY)
_claim("two_over_sharpness_limits_the_step",
       "With residuals, 2 / sharpness at the start is the longest step that trains.",
       partial(_step_limit, residual="both"), between(0.5, 2.0, LONGEST, "measured", "limit"),
       f"{TRAINED}; 120 steps", _RUNS._replace(steps=120), control=NONE)
_claim("two_over_sharpness_without_residuals",
       "Without residuals, too, 2 / sharpness at the start is the longest step that trains.",
       partial(_step_limit, residual="none"), between(0.5, 2.0, LONGEST, "measured", "limit"),
       f"{TRAINED}; 120 steps", _RUNS._replace(steps=120), control=NONE)
_claim("scaled_branches_keep_the_sharpness",
       "Branches over the root of the depth keep the sharpness from growing with depth.",
       _sharpness_growth,
       above(0.5, "orders by which the sharpness grows from 1 to 6 layers", "plain", "scaled"),
       f"{TRAINED}, untrained", _RUNS._replace(layers=6), control={"residual_scale": "depth"},
       control_plan=_SHORT._replace(layers=2))
_claim("residual_widens_the_certificate",
       "Theorem D certifies much larger initial errors with residuals.", _certified,
       above(3.0, "orders of r_max over the output's size", "with", "without"),
       f"{SMALL}; r_max is the largest residual that the better route certifies", _RUNS,
       control=NONE)
_claim("the_certificate_is_conservative",
       "Theorem D's guaranteed rate is far below the rate of the kernel at the start.",
       _conservative, above(1.0, "orders of the rate at theorem D's step", "kernel", "guaranteed"),
       SMALL, _RUNS, control={"share": 1e-6})
_claim("realizable_targets_are_easier",
       "With more tokens than dimensions, a teacher's targets are fitted better than random ones.",
       partial(_faster, slow={"labels": "gaussian"}, fast={"labels": "teacher"}, step=None,
               num_samples=8, num_tokens=12), above(0.5, LOSS, "random", "teacher"),
       "8 sequences of 12 Gaussian tokens of scale 0.5, dim 32, width 64; 500 steps of half of 1 / "
       "lambda_max of each seed's kernel", _RUNS, control={"labels": "gaussian"},
       control_plan=_SHORT)
# fmt: on

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


def visit() -> Visit:
    """Two layers with and without residuals: conditioning, and what theorem D certifies."""
    runs, rows = zip(*map(_visited, ("both", "none")), strict=True)
    said = [
        f"{word} residuals the second layer's attention output has condition number "
        f"{number(row['condition'])}, and theorem_d certifies initial errors up to "
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
    )


PAPER.visit = visit
