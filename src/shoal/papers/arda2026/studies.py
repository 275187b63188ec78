"""What Arda, Cayci and Eryilmaz (2026) say, and what follows from it, tested; the tour's visit.

Statements are in our words after the paper's main text; its figures' values, the rule by which it
chooses boundary points, its lags and its number of anchors are not known to us. Rules were written
down before their first run; where a statistic or a setting was changed after a first look, the rule
says so.
"""

import functools
from typing import Any

import numpy as np

from shoal.certificates import Verdict
from shoal.figures import Panel, band
from shoal.lab.claim import Plan, above, below, between, exponent
from shoal.lab.run import train
from shoal.lab.setting import OURS
from shoal.lab.setup import paper_setup
from shoal.lab.visit import Visit, number
from shoal.papers.arda2026 import experiments as ex
from shoal.papers.arda2026.model import PAPER

NO_TRAINING = 1e-7
"""A step so small that nothing is learnt, for negative controls."""
SAYS = "paper, main text in our words"
ONE_DATA_SET = "; one data set: intervals cover the draw of weights, not of the data"
SETTING = "tanh, dim 8, 16 tokens of norm 1 at most, the paper's teacher with one anchor (our "
SETTING += "choice)" + ONE_DATA_SET
SERIES = "series with lag L, window L + 1, raw tokens with 8 pairs of position channels, our lags "
SERIES += "and sizes"
FLAT = {"step_size": NO_TRAINING}
HALF = (-0.65, -0.35)
_PLAN = Plan(seeds=5, steps=400, samples=100)
_ERRORS = _PLAN._replace(seeds=8, grid=(8, 16, 64, 128, 256))
_ERRORS_FULL: dict[str, Any] = {
    "seeds": 10, "samples": 5000, "grid": (8, 16, 64, 128, 256, 512, 1024), "minutes": 20.0,
}  # fmt: skip
_WIDTHS = _PLAN._replace(seeds=4, samples=200, grid=(8, 16, 64, 128, 256), minutes=0.6)
_WIDTHS_FULL: dict[str, Any] = {"seeds": 10, "steps": 4000, "samples": 5000, "minutes": 150.0}
_STEPS = _PLAN._replace(seeds=4, grid=(25, 100, 400, 1600), minutes=0.3)
_LENGTHS = _PLAN._replace(samples=30, grid=(16, 32, 64, 128, 256, 512))
_SERIES = _PLAN._replace(seeds=4, samples=200, grid=(2, 32), width=32, minutes=0.3)
_SERIES_FULL: dict[str, Any] = {
    "seeds": 20, "steps": 2000, "samples": 5000, "width": 64, "minutes": 400.0,
}  # fmt: skip


def _claim(key: str, statement: str, measure: Any, rule: Any, control: dict, **more: Any) -> None:
    more = {"setting": SETTING} | more
    PAPER.claim(key, statement, measure, rule=rule, control=control, **more)


_series = functools.partial(
    _claim, source=SAYS, setting=SERIES + ONE_DATA_SET, quick=_SERIES, full=_SERIES_FULL
)


for _key, _statement, _kind, _rule, _other, _source in (
    ("boundary_error_falls_like_root_width",
     "The linearisation error at boundary points falls like one over the root of the heads.",
     "random", exponent(*HALF, "linearisation error at random boundary points", "heads"),
     "transported", SAYS),
    ("coherent_error_falls_like_root_width",
     "It does so where all heads, twins included, move along one feature.",
     "coherent", exponent(-0.6, -0.4, "linearisation error at coherent boundary points", "heads"),
     "random", "ours"),
    ("transported_error_falls_like_width",
     "Along a teacher's transport the twins cancel and the error falls like one over the heads.",
     "transported", exponent(-1.25, -0.85, "linearisation error along the transport", "heads"),
     "coherent", "ours"),
    ("approximation_falls_like_root_width",
     "The largest approximation error falls like one over the root of the heads.",
     "approximation", exponent(*HALF, "largest approximation error", "heads"), "random", SAYS),
):  # fmt: skip
    _claim(
        _key, _statement, functools.partial(ex.boundary_errors, kind=_kind), _rule,
        {"kind": _other}, source=_source, quick=_ERRORS, full=_ERRORS_FULL,
        control_plan=_ERRORS._replace(seeds=4, samples=30, grid=(8, 64)),
    )  # fmt: skip
for _key, _statement, _limits in (
    ("training_loss_falls_like_root_width",
     "The lowest training loss falls like one over the root of the heads.", HALF),
    ("wider_trains_better",
     "More heads train to a lower loss in the same number of steps.", (-np.inf, -0.1)),
):  # fmt: skip
    _claim(
        _key, _statement, ex.best_by_width, exponent(*_limits, "lowest training loss", "heads"),
        FLAT, source=SAYS, quick=_WIDTHS, full=_WIDTHS_FULL,
        control_plan=_WIDTHS._replace(steps=20, samples=30, grid=(8, 64)),
    )  # fmt: skip
_claim(
    "mean_loss_falls_like_root_steps",
    "With steps of one over the root of their number, the mean loss falls like that root.",
    ex.mean_by_steps, exponent(*HALF, "mean loss", "steps"), FLAT,
    source=SAYS, quick=_STEPS, control_plan=_STEPS._replace(samples=30, grid=(25, 100)),
    full={"seeds": 10, "samples": 1000, "grid": (25, 100, 400, 1600, 6400), "minutes": 15.0},
)  # fmt: skip
_claim(
    "path_bound_is_informative",
    "Theorem B with constants measured along the path is true and within 50 times the loss.",
    ex.path_bound, between(1.0, 50.0, "bound over mean loss", "bound", "mean loss"),
    {"times": 100.0}, quick=_PLAN._replace(samples=60), full={"seeds": 20, "steps": 4000},
    control_plan=_PLAN._replace(seeds=3, steps=40, samples=10, width=8),
)  # fmt: skip
_claim(
    "samples_cost_a_logarithm",
    "At fixed width the largest approximation error grows with the samples no faster than a "
    "logarithm would over this range.",
    ex.errors_by_samples, exponent(-0.05, 0.15, "largest approximation error", "samples"),
    {"added": True}, source=SAYS, quick=_PLAN._replace(seeds=8, grid=(100, 300, 1000, 3000)),
    control_plan=_PLAN._replace(seeds=3, grid=(30, 300)),
    full={"seeds": 20, "grid": (100, 300, 1000, 3000, 10000), "minutes": 1.0},
)  # fmt: skip
_claim(
    "gradients_free_of_length",
    "Gradients at the start do not grow with the length of the sequences.",
    ex.gradients, exponent(-0.5, 0.05, "|df/dW|", "tokens"), {"power": 1},
    source=SAYS, quick=_LENGTHS, control_plan=_LENGTHS._replace(samples=5, grid=(16, 64)),
    setting="tanh, dim 8, tokens of norm 1 at most; new data for every seed",
    full={"seeds": 20, "samples": 200, "minutes": 3.0},
)  # fmt: skip
_claim(
    "training_free_of_length",
    "With the same teacher, training is no harder on longer sequences.",
    ex.loss_by_length, exponent(-1.0, 0.1, "lowest loss over label energy", "tokens"),
    {"slower": True}, source=SAYS,
    quick=_PLAN._replace(seeds=4, steps=200, samples=50, grid=(16, 64, 256), minutes=0.4),
    control_plan=_PLAN._replace(seeds=3, samples=20, grid=(16, 64), width=16),
    full={"seeds": 10, "steps": 2000, "samples": 500, "grid": (16, 32, 64, 128, 256, 512),
          "minutes": 60.0},
)  # fmt: skip
_series(
    "attention_does_not_mind_the_lag",
    "The Transformer predicts a series as well at lag 32 as at lag 2.",
    functools.partial(ex.lag_growth, model="heads"),
    below(0.05, "growth of the held-out loss", "long lag", "short lag",
          note="Predicting zero has loss 0.526."), {"model": "recurrent", "recurrence": 0.5},
)  # fmt: skip
_series(
    "recurrence_minds_the_lag",
    "The IndRNN predicts worse at lag 32 than at lag 2.",
    functools.partial(ex.lag_growth, model="recurrent"),
    above(0.1, "growth of the held-out loss", "long lag", "short lag"), {"recurrence": 1.0},
    control_plan=_SERIES._replace(steps=100, samples=50, grid=(2, 2)),
)  # fmt: skip
for _key, _statement, _channels, _seen in (
    ("recurrent_jacobians_are_larger",
     "At lag 32 the IndRNN's Jacobian in its recurrent weights exceeds the Transformer's in W.",
     8, "; both see them"),
    ("bare_recurrent_jacobians_are_larger",
     "So does an IndRNN that sees the bare series, without channels of positions.",
     0, " for attention only"),
):  # fmt: skip
    _series(
        _key, _statement, functools.partial(ex.jacobians, channels=_channels),
        above(0.0, "powers of ten by which the recurrent Jacobian is larger",
              "recurrent", "attention"), {"recurrence": 0.1},
        setting=f"{SERIES}{_seen}; recurrent weights start at +1 and -1{ONE_DATA_SET}",
        control_plan=_SERIES._replace(steps=20, samples=50, grid=(2, 8)),
    )  # fmt: skip
_series(
    "recurrence_wins_at_short_lags",
    "At lag 2 the IndRNN predicts better than the Transformer.",
    ex.small_lag, above(0.0, "advantage in loss", "attention", "recurrent"), FLAT,
    control_plan=_SERIES._replace(steps=100, samples=50),
)  # fmt: skip
_series(
    "unit_tokens_do_not_select",
    "Tokens clipped to norm 1, as the theory asks, keep attention too flat to find a lag.",
    ex.clipping, above(0.1, "loss added by clipping at lag 8", "clipped", "raw"), {"clip": False},
    source=OURS, quick=_SERIES._replace(grid=(8,)),
    control_plan=_SERIES._replace(steps=20, samples=50, grid=(8,)),
)  # fmt: skip
_claim(
    "causal_loss_is_flat_along_the_window",
    "In the sequence-to-sequence form, late places are predicted as well as early ones.",
    ex.places,
    between(0.8, 1.25, "loss of the last quarter over that of the first", "late", "early"),
    {"growth": 0.2}, setting="causal form, lag 4, window 33" + ONE_DATA_SET,
    quick=_PLAN._replace(seeds=4, steps=200, grid=(4, 33), width=16, minutes=0.4),
    control_plan=_PLAN._replace(seeds=3, steps=10, samples=50, grid=(4, 25), width=8),
    full={"seeds": 10, "steps": 2000, "samples": 1000, "minutes": 120.0},
)  # fmt: skip
_claim(
    "depth_keeps_gradients_free_of_length",
    "Three layers deep, the gradients of inner layers do not grow with the length either.",
    ex.gradients, exponent(-0.5, 0.1, "|df/dW| of inner layers", "tokens", revised=True),
    {"power": 1},
    quick=_PLAN._replace(seeds=4, samples=8, grid=(8, 16, 32, 64), width=16, layers=3, minutes=0.3),
    control_plan=_PLAN._replace(seeds=3, samples=4, grid=(8, 32), width=8, layers=3),
    setting="deep form of three layers, dim 8, without opposite signs (with them, inner "
    "gradients are zero at the start); new data for every seed",
    full={"seeds": 20, "samples": 50, "minutes": 20.0},
)  # fmt: skip
_claim(
    "projection_rests",
    "In the paper's width experiment the projection never acts.",
    ex.use_of_radius, between(0.0, 0.999, "share of the radius", "used", "allowed"),
    {"radius": 0.05}, quick=_PLAN._replace(seeds=4, samples=200),
    control_plan=_PLAN._replace(seeds=3, steps=40, samples=20, width=16),
    full={"seeds": 10, "steps": 4000, "samples": 5000, "minutes": 60.0},
)  # fmt: skip
_claim(
    "projection_tames_long_steps",
    "Where a step is too long for gradient descent, projection keeps the loss lower.",
    ex.tamed,
    above(0.0, "powers of ten by which the plain loss is higher", "plain", "projected",
          revised=True),
    {"radius": 1e6}, quick=_PLAN._replace(steps=200, samples=50), full={"seeds": 20},
    control_plan=_PLAN._replace(seeds=3, steps=20, samples=20, width=16),
    setting="Gaussian labels, tokens of norm 4, radius 0.5, five times the step at which the "
    "linearised run turns unstable; mean loss of the last half" + ONE_DATA_SET,
)  # fmt: skip
_claim(
    "projection_beats_decay",
    "At equal largest movement of a head, projection reaches a lower loss than decay to the "
    "start.",
    ex.decay,
    above(0.0, "powers of ten by which the loss under decay is higher", "decay", "projection"),
    {"swapped": True},
    quick=_PLAN._replace(steps=1000, samples=60, grid=(0.003, 0.01, 0.03, 0.1, 0.3), minutes=0.4),
    control_plan=_PLAN._replace(seeds=3, steps=200, samples=20, grid=(0.01, 0.3), width=16),
    setting="Gaussian labels, radius 0.5, steps of 0.5" + ONE_DATA_SET,
    full={"seeds": 20, "steps": 10000, "minutes": 10.0},
)  # fmt: skip
_claim(
    "loss_has_a_knee_at_the_teacher_s_norm",
    "Within half of the dual teacher's norm, training ends at a quarter of the labels' energy.",
    ex.knee, between(0.9, 1.1, "loss over that quarter", "loss", "expected"), {"share": 0.75},
    quick=_PLAN._replace(seeds=4, steps=800, samples=60, width=128, minutes=0.5),
    control_plan=_PLAN._replace(seeds=3, steps=300, samples=20),
    setting="dual-certified teacher on the student's own heads; new data for every seed",
    full={"seeds": 10, "steps": 3000, "width": 512, "minutes": 20.0},
)  # fmt: skip
_claim(
    "long_tokens_make_spikes",
    "With tokens ten times as long, the largest gradient among samples leaves the mean behind.",
    ex.spikes, above(0.3, "powers of ten by which largest over mean grows", "norm 10", "norm 1"),
    {"norm": 1.0}, quick=_PLAN._replace(seeds=8), full={"seeds": 20, "samples": 1000},
    setting="gradients in W at the start; new data for every seed",
)  # fmt: skip
_claim(
    "mean_field_moves_the_kernel",
    "Dividing the output by the root of the heads, with steps to match, leaves the kernel regime.",
    ex.mean_field,
    above(0.5, "powers of ten by which the kernel drifts further", "mean field", "kernel"),
    {"scale": 1.0}, quick=_PLAN._replace(seeds=4, steps=200, samples=40, minutes=0.3),
    control_plan=_PLAN._replace(seeds=3, steps=10, samples=10, width=8),
    full={"seeds": 10, "steps": 2000, "minutes": 5.0},
)  # fmt: skip

SEQUENCES = {"num_samples": 20, "num_tokens": 8, "dim": 4, "num_heads": 16, "num_steps": 100}


def visit() -> Visit:
    """A small run of projected gradient descent, and theorem B about its mean loss."""
    run = train(paper_setup(PAPER, SEQUENCES), probes=("scaled_movement", "path"))
    found = run.certify("theorem_b")
    risk, verdict, labels = run.risk[0], found.verdict, run.setup.setting.labels
    radius = ",".join(f"{r:g}" for r in run.setup.setting.radius)
    last, mean = float(risk[-1]), float(np.mean(risk[:-1]))
    at_most = float(found[0].constants["bound along the path"])
    applies = verdict != Verdict.NOT_APPLICABLE
    words = f"With radius {radius} the bound is {at_most / mean:.1f} times the mean loss."
    if not applies:
        words = f"Radius {radius} does not contain the teacher: nothing is promised."
    row = {"theorem": "theorem_b", "labels": labels, "radius": radius}
    numbers = (number(last), number(mean), number(at_most) if applies else "-")
    curve = band(f"{labels}, radius {radius}", run.step, run.risk)
    return Visit(
        title="descent within a radius",
        rows=[row | {"first_risk": float(risk[0]), "last_risk": last, "mean_risk": mean,
                     "at_most": at_most, "verdict": verdict}],
        head=("theorem", "labels", "radius", "last loss", "mean loss", "mean at most", "verdict"),
        cells=[(*row.values(), *numbers, verdict)],
        words=words,
        about="Heads with one neuron each, in pairs of opposite signs, each kept in a ball around "
        "its start: the loss is bounded in finite time, whatever the length of the sequences.",
        panels=(Panel("projected gradient descent", "step", "loss", (curve,), log_y=True),),
        verdicts=((f"theorem_b, radius {radius}", verdict),),
    )  # fmt: skip


PAPER.visit = visit
