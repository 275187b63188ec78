"""Claims: what Qin et al. (2025) say, what follows from it, and a visit for ``shoal tour``.

Of the paper we know the abstract and excerpts. Statements whose source is the paper are its
abstract in our words, and every setting is ours. Rules were written down before their first run;
where one was changed after a first look, it says so. Every seed has its own data and weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from shoal._typing import Array
from shoal.diagnostics import dynamics
from shoal.figures import Panel, band
from shoal.lab import engine
from shoal.lab.claim import (
    Measurement,
    Plan,
    Rule,
    above,
    between,
    comparison,
    exponent,
    log10_ratio,
)
from shoal.lab.run import Run, train
from shoal.lab.setting import OURS
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.study import fresh_setup, trained
from shoal.lab.theorem import certify
from shoal.lab.visit import Visit, number
from shoal.linalg import norm_fro
from shoal.models import predict
from shoal.papers.qin2025 import blocks
from shoal.papers.qin2025.conditioning import conditioning, weyl
from shoal.papers.qin2025.model import PAPER
from shoal.theory import descent

COMMON_STEP, SMALL_STEP = 0.01, 0.003
FROZEN_STEP = 1e-9
"""A step so small that nothing is learnt: for negative controls."""
STEPS = tuple(np.geomspace(1e-3, 0.3, 11).tolist())
"""Step sizes among which each side of a comparison has its best."""
SHARES = np.geomspace(0.05, 10, 24)
"""Steps that are tried, as shares of 2 / sharpness."""
MOST = 1e16
"""Condition numbers beyond this are rounding."""

# what every experiment changes in the default setting
SEQUENCE = {"num_samples": 1, "dim": 64, "key_dim": 64, "width": 1, "out_dim": 1,
            "token_scale": 1.0, "residual": "none"}  # fmt: skip
DEEP = {"num_tokens": 8, "dim": 64, "key_dim": 64, "width": 128, "num_layers": 8,
        "token_scale": 1.0}  # fmt: skip
SMALL = {"num_samples": 3, "num_tokens": 4, "width": 32, "token_scale": 32**-0.5, "scale_qk": 0.5,
         "scale_v": 0.3, "scale_1": 0.5, "scale_2": 0.3}  # fmt: skip
"""Sizes and scales at which theorem D certifies something."""
TALL = {"num_samples": 8, "num_tokens": 12}


# --------------------------------------------------------------------------- measured at the start


def at_start(function: Callable, seeds: int, *extra: Any, **values: Any) -> dict[str, np.ndarray]:
    """A function of every seed's start; the same call is done only once in a process."""
    return _at_start(function, seeds, extra, tuple(sorted(values.items())))


@functools.lru_cache(maxsize=256)
def _at_start(function: Callable, seeds: int, extra: tuple, values: tuple) -> Any:
    return engine.per_start(fresh_setup(PAPER, dict(values), seeds=range(seeds)), function, *extra)


def one_sequence(setup: Setup) -> dict[str, Array]:
    """Conditioning of the first layer on one sequence, with and without the residual."""
    X, form = setup.inputs[0], setup.setting.form
    found = blocks.layers(setup.params0, X, form)
    S, attended = found.S[0], found.A[0]  # the setting has no residual
    kinds = {"S": S, "without": attended, "with": X + attended, "X": X}
    measured = {name: conditioning(matrix) for name, matrix in kinds.items()}
    names = ("condition", "sigma_min")
    return {f"{k}_{name}": m[k] for name, m in measured.items() for k in names} | {
        f"weyl_{k}": bound for k, bound in weyl(X, attended).items()
    }


def attention(
    seeds: int, num_tokens: int, scale_qk: float, scale_v: float, correlation: float = 0.0
) -> dict[str, np.ndarray]:
    """Conditioning of one sequence's attention output, with and without the residual (dim 64)."""
    scales = {"scale_qk": scale_qk, "scale_v": scale_v, "token_correlation": correlation}
    return at_start(one_sequence, seeds, **SEQUENCE, num_tokens=num_tokens, **scales)


def every_layer(setup: Setup) -> dict[str, Array]:
    """Conditioning of every layer's attention output, all samples stacked."""
    return setup.setting.stacked_conditioning(setup.params0, setup.inputs)


def depths(seeds: int, residual: str) -> dict[str, np.ndarray]:
    """Condition number and centred share of every layer's attention output, (seeds, depth)."""
    return at_start(every_layer, seeds, **DEEP, residual=residual)


def top_hessian(setup: Setup) -> Array:
    """Top Hessian eigenvalue at the start; NaN if Lanczos did not converge."""
    import jax

    found = dynamics.sharpness(setup.risk, jax.random.key(0), num_matvecs=60)(setup.params0)
    return jnp.where(found["converged"], found["value"], jnp.nan)


def sigma_jacobian(setup: Setup) -> Array:
    """The smallest singular value of the Jacobian."""
    return setup.setting.sigma_jacobian(setup.params0, setup.inputs)


def reach(setup: Setup, share: Array) -> dict[str, Array]:
    """The largest residual that theorem D certifies, and its step and rate for a share of that."""
    setting, params, X = setup.setting, setup.params0, setup.inputs
    ball = setting.ball_at(params, X)
    top, _ = descent.largest_residual(ball)
    best, _ = descent.smallest_ball(ball, share * top)
    step = descent.largest_step(best, share * top)
    return {
        "relative": top / norm_fro(predict(setup.network, params, X)),
        "step": step,
        "lost": descent.Split().c * step * best.alpha**2,
        "lambda_min": sigma_jacobian(setup) ** 2,
    }


def certified_reach(seeds: int, share: float = 1.0, **values: Any) -> dict[str, np.ndarray]:
    """`reach` in the small setting."""
    return at_start(reach, seeds, share, **(SMALL | values))


# ----------------------------------------------------------------------------- claims at the start

SETTINGS = tuple((n, *s) for n in (8, 16, 32) for s in ((0.25, 0.1), (1.0, 0.5), (2.0, 1.0)))


def _least_cured(plan: Plan) -> Measurement:
    """Condition numbers without and with the residual, in the setting where it helps least."""
    found = [attention(plan.seeds, *s) for s in SETTINGS]
    kind = plan.get("kind", "condition_with")
    without = np.stack([f["condition_without"] for f in found])
    with_it = np.stack([f[kind] for f in found])
    least = np.argmin(np.log10(without / with_it), axis=0)
    seeds = np.arange(plan.seeds)
    return log10_ratio(without[least, seeds], with_it[least, seeds])


def _correlated(plan: Plan) -> Measurement:
    found = attention(plan.seeds, 16, 1.0, 0.5, 0.99)
    return log10_ratio(found["condition_without"], found[plan.get("kind", "condition_with")])


def _over_tokens(plan: Plan) -> Measurement:
    found = attention(plan.seeds, 16, 1.0, plan.get("scale_v", 0.1), 0.9)
    one, other = found["condition_with"], found["condition_X"]
    return comparison(one, other, one / other)


def _logits(plan: Plan, scale: float) -> Measurement:
    one, other = (attention(plan.seeds, 16, s, 0.5) for s in (plan.get("scale", scale), 1.0))
    return log10_ratio(one["condition_S"], other["condition_S"])


def _deep_condition(plan: Plan, one: str, other: str) -> Measurement:
    modes = (plan.get("residual", one), other)
    found = (depths(plan.seeds, mode)["condition"][:, plan.layers - 1] for mode in modes)
    return log10_ratio(*(np.minimum(condition, MOST) for condition in found))


def _collapse(plan: Plan) -> Measurement:
    modes = ("both", plan.get("residual", "none"))
    found = (depths(plan.seeds, mode)["centred_share"][:, plan.layers - 1] for mode in modes)
    return log10_ratio(*(np.maximum(share, 1 / MOST) for share in found))


def _collapse_speed(plan: Plan) -> Measurement:
    """Without residuals: how much further the share falls in the third layer than in the second."""
    share = np.maximum(depths(plan.seeds, "none")["centred_share"], 1 / MOST)
    fall = -np.diff(np.log10(share), axis=1)
    late, early = (fall[:, k] for k in ((0, 1) if plan.get("swapped", False) else (1, 0)))
    return comparison(late, early, late / early)


def _sharpness_growth(plan: Plan) -> Measurement:
    """Sharpness at a depth over that of one layer: plain branches against scaled ones."""

    def growth(scale: str) -> np.ndarray:
        found = (at_start(top_hessian, plan.seeds, num_layers=L, residual_scale=scale)
                 for L in (plan.layers, 1))  # fmt: skip
        return np.divide(*found)

    return log10_ratio(growth(plan.get("residual_scale", "one")), growth("depth"))


def _certified(plan: Plan) -> Measurement:
    modes = (plan.get("residual", "both"), "none")
    return log10_ratio(*(certified_reach(plan.seeds, residual=m)["relative"] for m in modes))


def _conservative(plan: Plan) -> Measurement:
    """Share of the residual lost per step by the kernel at the start, over theorem D's."""
    found = certified_reach(plan.seeds, plan.get("share", 1.0))  # a small residual, a small ball
    return log10_ratio(1 - np.abs(1 - found["step"] * found["lambda_min"]), found["lost"])


# -------------------------------------------------------------------------------- claims by training


def fresh_run(seeds: int, step: Any, probes: tuple[str, ...] = (), **values: Any) -> Run:
    """Train every seed on its own data."""
    return trained(PAPER, seeds, probes, step=step, fresh_data=True, **values)


def risk_left(seeds: int, step: Any, num_steps: int, **values: Any) -> np.ndarray:
    """Every seed's risk after training over the first one."""
    sizes = {"num_steps": num_steps, "every": max(1, num_steps // 50)}
    risk = fresh_run(seeds, step, **sizes, **values).risk
    return risk[:, -1] / risk[:, 0]


def _common_step(plan: Plan, slow: str, fast: str, step: float = COMMON_STEP, **values: Any) -> Any:
    """Risk left with one choice of residuals over that with another, at one step for both."""
    step = plan.get("step", step)
    left = (risk_left(plan.seeds, step, plan.steps, residual=mode, num_layers=plan.layers, **values)
            for mode in (slow, fast))  # fmt: skip
    return log10_ratio(*left)


def risk_by_step(seeds: int, steps: tuple[float, ...], num_steps: int, residual: str) -> np.ndarray:
    """Risk left after training, (seeds, step sizes); infinite where a run diverged."""
    left = np.stack([risk_left(seeds, s, num_steps, residual=residual) for s in steps], axis=1)
    return np.where(np.isfinite(left), left, np.inf)


def _own_step(plan: Plan) -> Measurement:
    steps = plan.get("steps", STEPS)
    found = (risk_by_step(plan.seeds, steps, plan.steps, mode) for mode in ("none", "both"))
    return log10_ratio(*(left.min(axis=1) for left in found))


def _by_depth(plan: Plan) -> Measurement:
    step = plan.get("step", SMALL_STEP)
    return log10_ratio(
        *(risk_left(plan.seeds, step, plan.steps, num_layers=L) for L in (1, plan.layers))
    )


def _local_rate(plan: Plan) -> Measurement:
    """Decay of the risk late in training over what the smallest kernel eigenvalue predicts."""
    tail, probe = plan.steps // 5, f"kernel_eigenvalues@{plan.steps}"
    run = fresh_run(plan.seeds, COMMON_STEP, (probe,), num_steps=plan.steps)
    measured = -np.log(run.risk[:, -1] / run.risk[:, -1 - tail]) / tail
    eigenvalue = run.probes["kernel_eigenvalues"][:, -1, plan.get("eigenvalue", 0)]
    predicted = -2 * np.log(np.abs(1 - COMMON_STEP * eigenvalue))
    return comparison(measured, predicted, measured / predicted)


def late_rate(risk: np.ndarray) -> float:
    """Exponential rate over the last fifth of the run, up to where the risk is rounding.

    >>> round(late_rate(np.exp(-0.1 * np.arange(2000))), 6)
    0.1
    """
    end = int(np.sum(risk > 1e-20 * risk[0])) - 1
    tail = max(1, end // 5)
    return float(-np.log(risk[end] / risk[end - tail]) / tail)


def rate_by_condition(plan: Plan) -> Measurement:
    """Late rate by the condition number of the tokens."""
    step, sizes = plan.get("step", None), {"num_steps": plan.steps, "scale_v": 0.1}
    runs = [fresh_run(plan.seeds, step, token_condition=kappa, **sizes) for kappa in plan.grid]
    rates = [[late_rate(risk) for risk in run.risk] for run in runs]
    return {"x": np.array(plan.grid), "y": np.array(rates).T}


def step_limits(seeds: int, residual: str, num_steps: int) -> np.ndarray:
    """The share of 2 / sharpness up to which all steps end below the start; NaN if none does."""
    values = {"residual": residual, "num_steps": num_steps, "every": num_steps}
    limit = 2 / at_start(top_hessian, seeds, **values)
    setup = fresh_setup(PAPER, values, seeds=range(seeds))
    risk = np.stack([train(setup, step_size=s * limit, probes=()).risk for s in SHARES])
    trains = np.cumprod(risk[:, :, -1] < risk[:, :, 0], axis=0).sum(axis=0)
    return np.where(trains > 0, SHARES[np.maximum(trains - 1, 0)], np.nan)


def _step_limit(plan: Plan, residual: str) -> Measurement:
    share = step_limits(plan.seeds, plan.get("residual", residual), plan.steps)
    return comparison(share, np.ones_like(share), share)


def _realizable(plan: Plan) -> Measurement:
    labels = ("gaussian", plan.get("labels", "teacher"))
    return log10_ratio(*(risk_left(plan.seeds, None, plan.steps, labels=k, **TALL) for k in labels))


# ---------------------------------------------------------------------------------------- the claims

SUMMARY = "paper, as summarised (its abstract); the setting is ours"
ONE_SEQUENCE = "one sequence of Gaussian tokens, dim and key dim 64, untrained"
TRAINED = (
    "4 sequences of 6 Gaussian tokens of scale 0.5, dim 32, width 64, smooth leaky activation, "
    "random targets, float64"
)
LAYERS = "4 sequences of 8 Gaussian tokens, dim 64, width 128, branch weights of scale 0.5, untrained"
CERTIFIED = "3 sequences of 4 tokens of variance 1/32, dim and width 32, scales 0.5 and 0.3, 1 layer"
CONDITION, LOSS = "orders of the condition number", "orders of the loss over its start"
STEP_OVER = "longest step that ends below the start, times sharpness / 2"

_START = Plan(seeds=50, minutes=0.1)
_DEEP = Plan(seeds=20, layers=4, minutes=0.1)
_RUNS = Plan(seeds=5, steps=500, minutes=0.1)
_SHORT = Plan(seeds=3, steps=50)
_FROZEN = {"step": FROZEN_STEP}


def _claim(
    key: str,
    statement: str,
    measure: Callable[[Plan], Measurement],
    rule: Rule,
    control: dict[str, Any],
    quick: Plan,
    setting: str = TRAINED,
    source: str = OURS,
    control_plan: Plan | None = None,
) -> None:
    full = {"seeds": 30, "minutes": 2.0} if quick.seeds == 5 else {"seeds": 10 * quick.seeds}
    PAPER.claim(
        key, statement, measure, None, rule, control=control, source=source, setting=setting,
        quick=quick, full=full, control_plan=control_plan,
    )  # fmt: skip


_claim(
    "residual_cures_conditioning",
    "The residual connection cures the ill-conditioning of attention's output.",
    _least_cured,
    above(1.0, f"{CONDITION}, where the residual helps least", "without", "with"),
    {"kind": "condition_without"},
    _START,
    f"{ONE_SEQUENCE}; 8, 16 and 32 tokens; score and value scales 0.25/0.1, 1/0.5 and 2/1",
    SUMMARY,
)
_claim(
    "residual_cures_correlated_tokens",
    "The residual cures attention's output even if tokens have correlation 0.99.",
    _correlated,
    above(1.0, CONDITION, "without", "with"),
    {"kind": "condition_without"},
    _START,
    f"{ONE_SEQUENCE}; 16 tokens, score scale 1, value scale 0.5",
)
_claim(
    "residual_cannot_beat_its_tokens",
    "With small value weights the output is conditioned as the tokens are, no better.",
    _over_tokens,
    between(0.8, 1.25, "ratio of condition numbers", "output", "tokens"),
    {"scale_v": 20.0},
    _START,
    f"{ONE_SEQUENCE}; 16 tokens of correlation 0.9, score scale 1, value scale 0.1",
)
_claim(
    "small_logits_hurt",
    "Without residual, small scores make attention ill-conditioned.",
    functools.partial(_logits, scale=0.25),
    above(1.0, CONDITION, "score scale 0.25", "score scale 1"),
    {"scale": 1.0},
    _START,
    f"{ONE_SEQUENCE}; 16 tokens",
)
_claim(
    "large_logits_hurt",
    "Without residual, large scores make attention ill-conditioned, too.",
    functools.partial(_logits, scale=2.0),
    above(0.5, CONDITION, "score scale 2", "score scale 1"),
    {"scale": 1.0},
    _START,
    f"{ONE_SEQUENCE}; 16 tokens",
)
_claim(
    "the_residual_around_attention_matters",
    "Of the two residuals, the one around attention keeps the rank with depth.",
    functools.partial(_deep_condition, one="feed_forward", other="attention"),
    above(3.0, f"{CONDITION} in layer 4", "feed-forward residual alone", "attention's alone"),
    {"residual": "attention"},
    _DEEP,
    f"{LAYERS}; beyond 1e16 counts as 1e16",
)
_claim(
    "the_feedforward_residual_holds_the_scale",
    "The residual around the feed-forward layer then keeps the conditioning with depth.",
    functools.partial(_deep_condition, one="attention", other="both"),
    above(0.5, f"{CONDITION} in layer 8", "attention's residual alone", "both"),
    {"residual": "both"},
    _DEEP._replace(layers=8),
    LAYERS,
)
_claim(
    "rank_collapses_without_residuals",
    "Without residuals tokens become equal within a few layers.",
    _collapse,
    above(3.0, "orders of the share of tokens that is not their mean, layer 3", "with", "without"),
    {"residual": "both"},
    _DEEP._replace(layers=3),
    LAYERS,
)
_claim(
    "collapse_accelerates",
    "The collapse is faster than geometric.",
    _collapse_speed,
    above(1.5, "ratio of the orders lost from layer to layer", "layers 2 to 3", "layers 1 to 2"),
    {"swapped": True},
    _DEEP._replace(layers=3),
    f"{LAYERS}; share of tokens that is not their mean, without residuals",
)
_claim(
    "residual_trains_faster_at_one_step",
    "At one step for both, training converges faster with residuals.",
    functools.partial(_common_step, slow="none", fast="both"),
    above(1.0, LOSS, "without", "with"),
    _FROZEN,
    _RUNS,
    f"{TRAINED}; 500 steps of 0.01",
    SUMMARY,
    _SHORT,
)
_claim(
    "residual_trains_faster_at_own_step",
    "Training converges faster with residuals when each side takes its own best step.",
    _own_step,
    above(1.0, LOSS, "without", "with"),
    {"steps": (FROZEN_STEP,)},
    _RUNS._replace(minutes=0.3),
    f"{TRAINED}; 500 steps, for each seed and side the best of 11 step sizes from 0.001 to 0.3",
    control_plan=_SHORT,
)
_claim(
    "relu_trains_faster_with_residual",
    "Training converges faster with residuals for ReLU, too, which the theorems do not cover.",
    functools.partial(_common_step, slow="none", fast="both", activation="relu"),
    above(1.0, LOSS, "without", "with"),
    _FROZEN,
    _RUNS,
    f"{TRAINED.replace('smooth leaky', 'ReLU')}; 500 steps of 0.01",
    control_plan=_SHORT,
)
_claim(
    "causal_trains_faster_with_residual",
    "Training converges faster with residuals in the causal (decoder) form, too.",
    functools.partial(_common_step, slow="none", fast="both", causal=True),
    above(1.0, LOSS, "without", "with"),
    _FROZEN,
    _RUNS,
    f"{TRAINED}; causal, 500 steps of 0.01",
    control_plan=_SHORT,
)
_claim(
    "attention_residual_alone_trains",
    "For training, too, the residual around attention is the one that matters.",
    functools.partial(_common_step, slow="feed_forward", fast="attention"),
    above(1.0, LOSS, "feed-forward residual alone", "attention's alone"),
    _FROZEN,
    _RUNS,
    f"{TRAINED}; 500 steps of 0.01",
    control_plan=_SHORT,
)
_claim(
    "deep_networks_need_residuals",
    "Six layers train with residuals and not without.",
    functools.partial(_common_step, slow="none", fast="both", step=SMALL_STEP),
    above(3.0, LOSS, "without", "with"),
    _FROZEN,
    _RUNS._replace(layers=6, minutes=0.3),
    f"{TRAINED}; 500 steps of 0.003",
    control_plan=_SHORT._replace(layers=6),
)
_claim(
    "depth_speeds_training_with_residuals",
    "With residuals, more layers train faster at one step.",
    _by_depth,
    above(1.0, LOSS, "1 layer", "4 layers"),
    _FROZEN,
    _RUNS._replace(layers=4, minutes=0.2),
    f"{TRAINED}; 500 steps of 0.003",
    control_plan=_SHORT._replace(layers=4),
)
_claim(
    "smallest_eigenvalue_gives_the_rate",
    "Late in training the loss falls by (1 - step lambda_min)^2 per step.",
    _local_rate,
    between(0.8, 1.25, "ratio of exponential rates", "measured", "predicted"),
    {"eigenvalue": -1},
    _RUNS._replace(steps=800),
    f"{TRAINED}; 800 steps of 0.01, of which the last fifth counts",
)
_claim(
    "rate_falls_like_condition_squared",
    "The rate of convergence falls like the square of the tokens' condition number.",
    rate_by_condition,
    exponent(-2.5, -1.5, "the late rate", "the tokens' condition number", revised=True,
             note="The first statistic measured rounding."),
    {"step": FROZEN_STEP},
    _RUNS._replace(steps=1000, grid=(2.0, 4.0, 8.0, 16.0), minutes=0.2),
    f"{TRAINED}, value scale 0.1; condition 2, 4, 8, 16; 1000 steps of half of 1 / lambda_max of "
    "each seed's kernel; the last fifth before the loss is rounding",
    SUMMARY,
)  # fmt: skip
_claim(
    "two_over_sharpness_limits_the_step",
    "With residuals, 2 / sharpness at the start is the longest step that trains.",
    functools.partial(_step_limit, residual="both"),
    between(0.5, 2.0, STEP_OVER, "measured", "limit"),
    {"residual": "none"},
    _RUNS._replace(steps=120),
    f"{TRAINED}; 120 steps",
)
_claim(
    "two_over_sharpness_without_residuals",
    "Without residuals, too, 2 / sharpness at the start is the longest step that trains.",
    functools.partial(_step_limit, residual="none"),
    between(0.5, 2.0, STEP_OVER, "measured", "limit"),
    {"residual": "none"},
    _RUNS._replace(steps=120),
    f"{TRAINED}; 120 steps",
)
_claim(
    "scaled_branches_keep_the_sharpness",
    "Branches over the root of the depth keep the sharpness from growing with depth.",
    _sharpness_growth,
    above(0.5, "orders by which the sharpness grows from 1 to 6 layers", "plain", "scaled"),
    {"residual_scale": "depth"},
    _RUNS._replace(layers=6, minutes=0.2),
    f"{TRAINED}, untrained",
    control_plan=_SHORT._replace(layers=2),
)
_claim(
    "residual_widens_the_certificate",
    "Theorem D certifies much larger initial errors with residuals.",
    _certified,
    above(3.0, "orders of the largest certified residual over the output", "with", "without"),
    {"residual": "none"},
    _RUNS,
    f"{CERTIFIED}, the better of both routes",
)
_claim(
    "the_certificate_is_conservative",
    "Theorem D's guaranteed rate is far below the rate of the kernel at the start.",
    _conservative,
    above(1.0, "orders of the rate, both at theorem D's step", "kernel", "guaranteed"),
    {"share": 1e-6},
    _RUNS,
    CERTIFIED,
)
_claim(
    "realizable_targets_are_easier",
    "With more tokens than dimensions, a teacher's targets are fitted better than random ones.",
    _realizable,
    above(0.5, LOSS, "random", "teacher"),
    {"labels": "gaussian"},
    _RUNS._replace(minutes=0.3),
    "8 sequences of 12 Gaussian tokens of scale 0.5, dim 32, width 64; 500 steps of half of 1 / "
    "lambda_max of each seed's kernel",
    control_plan=_SHORT,
)

# ------------------------------------------------------------------------------------------ the visit

NEAR = SMALL | {"num_layers": 2, "labels": "near", "near_error": 1e-4, "step_size": 2e-4,
                "num_steps": 200}  # fmt: skip


def _visited(residual: str) -> tuple[Run, dict[str, Any]]:
    setup = paper_setup(PAPER, NEAR | {"residual": residual})
    run = train(setup, probes=("distance", "conditioning"))
    (certificate,), (verdict,) = (found := certify(run, "theorem_d")), found.verdicts
    return run, {
        "residual": residual,
        "layers": setup.setting.num_layers,
        "condition": float(run.probes["conditioning_condition"][0, 0, -1]),
        "r_max": float(certificate.constants["r_max"]),
        "r_0": float(certificate.constants["|r_0|"]),
        "risk_left": float(run.risk[0, -1] / run.risk[0, 0]),
        "verdict": verdict,
    }


def visit() -> Visit:
    """Two layers with and without residuals: conditioning, and what theorem D certifies."""
    runs, rows = zip(*map(_visited, ("both", "none")), strict=True)
    words = "\n".join(
        f"{'With' if row['residual'] == 'both' else 'Without'} residuals the second layer's "
        f"attention output has condition number {number(row['condition'])}, and theorem_d "
        f"certifies initial errors up to {number(row['r_max'])}: {row['verdict']}."
        for row in rows
    )
    shown = ("condition", "r_max", "r_0", "risk_left")
    cells = [
        (row["residual"], str(row["layers"]), *(number(row[k]) for k in shown), row["verdict"])
        for row in rows
    ]
    curves = tuple(
        band(f"residuals: {row['residual']}", run.step, run.risk / run.risk[:, :1])
        for row, run in zip(rows, runs, strict=True)
    )
    return Visit(
        title="what residuals do to two layers",
        rows=list(rows),
        head=("residuals", "layers", "condition number", "r_max", "|r_0|", "risk left", "verdict"),
        cells=cells,
        words=words,
        about="softmax makes attention's output ill-conditioned, residual connections cure it, and "
        "the speed of training follows its singular values.",
        panels=(Panel("at one step for both", "step", "risk over its start", curves),),
        verdicts=tuple((f"theorem_d, residuals: {r['residual']}", r["verdict"]) for r in rows),
    )


PAPER.visit = visit
