"""Where the projection acts, what it does to training, and what takes its place."""

from typing import Any

import numpy as np

from shoal.evidence.sequences import Interval
from shoal.lab import effects
from shoal.lab.claim import Design, Value, above, below, between
from shoal.lab.setting import OURS
from shoal.papers.arda2026 import experiments as ex
from shoal.papers.arda2026.model import PAPER
from shoal.papers.arda2026.studies import OTHER_SIDE, SIZES, WRONG_SIGN, Seeds, claim, plan_of

TOO_LONG = 32.0
"""Multiple of the step at which the linearised run turns unstable: the smallest power of two at
which plain descent ended above its start on most of the seeds 9000 to 9015."""


def radius_share(design: Design, seeds: Seeds) -> np.ndarray:
    """Largest share of the radius that any block used."""
    return ex.use_of_radius(plan_of(design, seeds), design["radius"])


def tamed(design: Design, seeds: Seeds) -> list[Value]:
    """Orders by which the plain loss of the last half is above that with projection."""
    plan = plan_of(design, seeds)
    runs = ex.tamed_runs(plan, design["radius"], tuple(design["multiples"])).values()
    plain, projected = (run.risk[:, plan.steps // 2 :].mean(axis=1) for run in runs)
    found = effects.loss_ratio(plain, projected)
    first, last = (next(iter(runs)).risk[:, k] for k in (0, -1))
    met = ~(last <= first) if design["premise"] else np.ones(len(seeds), bool)
    return effects.where(met.tolist(), found)


def decay_or_projection(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the loss under decay, at equal movement, is above that under projection."""
    plan = plan_of(design, seeds)
    low, high = ex.loss_at_movement(plan, design["movement"])
    _, projected = ex.decay_ends(plan, radius=design["radius"])
    with np.errstate(divide="ignore"):
        ends = np.log10(low / projected), np.log10(high / projected)
    return list(zip(ends[0].tolist(), ends[1].tolist(), strict=True))


def knee(design: Design, seeds: Seeds) -> np.ndarray:
    """Loss within a share of the dual teacher's norm over a quarter of the labels' energy."""
    found = ex.knee_runs(plan_of(design, seeds), design["share"])
    return found["loss"] / (0.25 * found["energy"])


def spiky(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which largest over mean gradient grows from one token norm to another."""
    plan = plan_of(design, seeds)
    one, other = (ex.spikes(plan, design[side]) for side in ("one", "other"))
    return effects.log10_ratio(one, other)


claim(
    "projection_rests",
    "In the paper's width experiment at our size, the projection never acts: no block uses its "
    "whole radius.",
    radius_share, below(0.999, "largest share of the radius that a block used", bound=True),
    {"radius": 0.05}, {"radius": 3.0, "sizes": SIZES | {"samples": 200}}, source=OURS, seconds=0.6,
    why="1 is the radius; 0.001 is for rounding", control_why="a radius 60 times smaller",
    differs="200 samples and 400 steps are not the paper's 5000 and 4000.",
)  # fmt: skip
claim(
    "projection_tames_long_steps",
    "Where a step is too long for plain gradient descent, so that it ends above its start, "
    "projection keeps the loss lower.",
    tamed, above(0.0, "orders by which the plain loss of the last half is higher"),
    {"multiples": (0.25, TOO_LONG), "premise": False},
    {"radius": 0.5, "multiples": (TOO_LONG, TOO_LONG), "premise": True,
     "sizes": {"steps": 200, "samples": 50, "width": 64}, "tuned": {"seeds": [9000, 9015]}},
    source=OURS, seconds=0.4, premise="plain descent ends above its start",
    setting=f"Gaussian labels, tokens of norm 4, radius 0.5, {TOO_LONG:g} times the step at which "
    "the linearised run turns unstable; mean loss of the last half",
    control_why="plain descent with a step that suits it",
)  # fmt: skip
claim(
    "projection_beats_decay",
    "At equal largest movement of a head, projection reaches a lower loss than decay to the start.",
    decay_or_projection, above(0.0, "orders by which the loss under decay is higher"),
    {"radius": 0.1},
    {"radius": 0.5, "movement": 0.5, "sizes": {"steps": 1000, "samples": 60, "width": 64},
     "grid": tuple(np.geomspace(0.1, 1.0, 11).round(5).tolist())},
    source=OURS, seconds=4.0, version=2,
    changed="the decays of version 1 end at 0.3, which allows more movement than 0.5",
    setting="Gaussian labels, radius 0.5, 1000 steps of 0.5; the loss under decay is enclosed by "
    "those of two neighbouring decays", control_why="the projected side has a fifth of the radius",
)  # fmt: skip
claim(
    "loss_has_a_knee_at_the_teacher_s_norm",
    "Within half of the dual teacher's norm, training ends at a quarter of the labels' energy, "
    "within 10 %.",
    knee, between(0.9, 1.1, "loss over a quarter of the labels' energy"), {"share": 0.75},
    {"share": 0.5, "sizes": {"steps": 800, "samples": 60, "width": 128}}, source=OURS, seconds=1.5,
    why="10 % is in the statement, far below the distance to rivals",
    setting="dual-certified teacher on the student's own heads",
    control_why="at share 0.75 theory says a sixteenth",
)  # fmt: skip
claim(
    "long_tokens_make_spikes",
    "With tokens ten times as long, the largest gradient among samples leaves the mean behind.",
    spiky, above(0.3, "orders by which largest over mean gradient grows with the tokens",
                 against=0.0),
    {"one": 1.0, "other": 10.0}, {"one": 10.0, "other": 1.0}, source=OURS, seconds=0.2,
    why=f"0.3 is a factor two, our number; {WRONG_SIGN}", setting="gradients in W at the start",
    control_why=OTHER_SIDE,
)  # fmt: skip

# ---------------------------------------------------------------- teachers inside and outside


def _sides(design: Design, seeds: Seeds) -> tuple[Any, Any]:
    plan, step = plan_of(design, seeds), design["step"]
    return ex.within(plan, step, design["share"]), ex.within(plan, step, None)


def held_out_cost(design: Design, seeds: Seeds) -> list[Value]:
    """Orders by which the projected run's last held-out loss is above the plain one's."""
    projected, plain = _sides(design, seeds)
    lost = effects.log10_ratio(*(run.probes["test_risk"][:, -1] for run in (projected, plain)))
    return effects.where(ex.binds(projected).tolist() if design["premise"] else [True] * len(seeds),
                         lost)  # fmt: skip


def training_cost(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the projected run ends above the plain one."""
    return effects.log10_ratio(*(run.risk[:, -1] for run in _sides(design, seeds)))


def gradient_left(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the projected run's last gradient is larger than the plain one's."""
    projected, plain = (ex.gradient_sizes(run)[:, -1] for run in _sides(design, seeds))
    return effects.log10_ratio(projected, plain)


def further(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the mean loss of the last half is lower with one token norm than another."""
    plan = plan_of(design, seeds)
    runs = (ex.lengthened(plan, design[side], radius=design["radius"]) for side in ("other", "one"))
    other, one = (run.risk[:, plan.steps // 2 :].mean(axis=1) for run in runs)
    return effects.loss_ratio(other, one)


# chosen after a look at seeds 0 to 3
_DUAL = {"sizes": {"steps": 400, "samples": 60, "width": 64}, "step": 0.5}
_DUAL_SETTING = (
    "dual-certified teacher of norm 3 on the student's own heads, 64 heads, 60 samples, "
)
_DUAL_SETTING += "200 held out, 400 steps of 0.5; plain descent has the same start and steps"
_IDLE = "four times the teacher's norm, a radius that never binds: both runs are the same"
claim(
    "projection_at_the_teacher_s_norm_lowers_held_out_loss",
    "Where the radius binds and just holds the teacher (radius = its norm), projected descent ends "
    "at a lower held-out loss than plain descent.",
    held_out_cost, below(0.0, "decades by which the projected held-out loss is higher"),
    {"share": 0.5}, _DUAL | {"share": 1.0, "premise": True}, source=OURS, seconds=1.5,
    premise="some head comes to the boundary", setting=_DUAL_SETTING,
    control_why="half the teacher's norm, so that the teacher lies outside",
)  # fmt: skip
_OUTSIDE_KEYS = ("projection_outside_costs_loss", "projection_outside_keeps_gradients")
for _key, _words, _measure, _effect in (
    (_OUTSIDE_KEYS[0], "training ends above plain descent by more than a decade", training_cost,
     "orders by which the projected run ends above the plain one"),
    (_OUTSIDE_KEYS[1], "the gradient at the end is larger than that of plain descent by more than "
     "a decade", gradient_left, "orders by which the last gradient is larger with projection"),
):  # fmt: skip
    claim(
        _key, f"Where the radius is half the teacher's norm, {_words}.", _measure,
        above(1.0, _effect, against=0.0), {"share": 4.0}, _DUAL | {"share": 0.5}, source=OURS,
        seconds=1.5, setting=_DUAL_SETTING, why=f"a decade is in the statement; {WRONG_SIGN}",
        control_why=_IDLE, same_runs=tuple(f"arda2026.{k}" for k in _OUTSIDE_KEYS if k != _key),
    )  # fmt: skip
claim(
    "long_tokens_train_further",
    "With the paper's step and no projection, tokens and queries of norm 10 train further than "
    "those of norm 1, for which the theory is.",
    further, above(0.0, "orders by which the mean loss of the last half is lower at norm 10"),
    {"one": 0.1}, {"one": 10.0, "other": 1.0, "radius": None,
                   "sizes": {"steps": 200, "samples": 50, "width": 64}},
    source=OURS, seconds=1.0, setting="Gaussian labels, 64 heads, 50 samples, 200 steps of 0.071",
    control_why="tokens ten times shorter than those of the theory",
    differs="The bounds grow like the cube of the norm, which says nothing about the loss. The "
    "statement was turned round after a look at seeds 0 to 3: we expected training to break.",
)  # fmt: skip

PAPER.check(
    "mean_field_moves_the_kernel",
    "Dividing the output by the root of the heads, with steps to match, multiplies the drift of "
    "the tangent kernel by the heads, to leading order.", source=OURS,
    tolerance="0.02 in powers of ten",
    test="tests/test_arda2026.py::test_mean_field_scaling_multiplies_the_drift_by_the_heads",
)  # fmt: skip
