r"""Studies over decades of width: the scaling of scores, narrow networks, and the width needed.

The paper's summaries say: scores scaled by width^-1/2 and by width^-1 train alike in narrow
networks and the former faster in wide ones; convergence is linear from the width of the number of
samples on; a width that is quadratic in the samples suffices. Sizes are ours.

Chosen after a look at exploratory seeds (0 to 5): the grid of certified widths (first half octaves,
too coarse to tell exponents near 2.25), and 200 steps where alpha is zero. The limits were not.
"""

from typing import Any

import numpy as np

from shoal.evidence.rules import Effect
from shoal.evidence.sequences import Interval
from shoal.lab import effects, engine
from shoal.lab.claim import Control, Design, above, below, exponent
from shoal.lab.run import Run
from shoal.lab.setting import OURS
from shoal.lab.study import Plan, decades, fresh_setup, seeds_of
from shoal.papers.wu2023.drawn_widths import smallest_drawn
from shoal.papers.wu2023.model import PAPER
from shoal.papers.wu2023.studies import (
    HALF,
    NTK,
    ONE,
    SIZES,
    Seeds,
    claim,
    plan_of,
    run_of,
    sizes,
    versus,
)

UNSEEN = "its effect and controls were not yet looked at on enough exploratory seeds"
TINY = 1e-24
"""A last risk below this share of the first is rounding."""


def default_steps(plan: Plan, **values: Any) -> np.ndarray:
    """Half of 1 / lambda_max of the tangent kernel of every seed, without training."""
    setup = fresh_setup(PAPER, sizes(plan) | values, seeds=seeds_of(plan.seeds))
    return np.asarray(engine.default_steps(setup))


def stepped(plan: Plan, steps: np.ndarray, *probes: str, **values: Any) -> Run:
    """Train every seed with a step of its own."""
    return run_of(plan, *probes, step=tuple(np.asarray(steps).tolist()), **values)


# ------------------------------------------------------------------ the scaling of scores by width

DECADES = (32, 256, 2048, 8192)
SHORT = SIZES | {"steps": 100}


def side(design: Design, plan: Plan, name: str, width: int) -> Run:
    """One side at one width, at the favoured side's default step or at a share of its own."""
    values = {**design[name], "width": width}
    start = values if design["shares"] else {**design["favoured"], "width": width}
    share = design["shares"][name] if design["shares"] else 1.0
    share *= (design["widths"][0] / width) ** design["step_powers"][name]
    return stepped(plan, share * default_steps(plan, **start), **values)


def ahead(design: Design, plan: Plan, width: int) -> list[Interval]:
    """Decades by which the favoured side is ahead at one width: mean speed, or the last risk."""
    runs = [side(design, plan, name, width) for name in ("favoured", "other")]
    if design["measure"] == "speed":
        return effects.minus(*(effects.points(decades(run.risk)) for run in runs))
    favoured, other = (run.risk[:, -1] / run.risk[:, 0] for run in runs)
    return effects.loss_ratio(other, favoured, floor=TINY)


def trend(design: Design, seeds: Seeds) -> list[Interval]:
    """Change of the lead per power of ten of the width."""
    plan = plan_of(design, seeds)
    columns = np.array([ahead(design, plan, width) for width in design["widths"]])
    found = effects.exponents(design["widths"], *(10.0 ** columns[..., k].T for k in (0, 1)))
    return [effect.value for effect in found]


def lead(design: Design, seeds: Seeds) -> list[Interval]:
    """The lead at the only width."""
    return ahead(design, plan_of(design, seeds), design["widths"][0])


def along_training(design: Design, seeds: Seeds) -> list[Effect]:
    """Exponent against the width of what attention does along training.

    ``gradients``: the norm of the gradient of W_Q and W_K over the norm of the errors, median along
    the run. ``deficit``: 1 - entropy of attention, largest along the run.
    """
    plan, columns = plan_of(design, seeds), []
    for width in design["widths"]:
        values = {"width": width, "score_exponent": design["score_exponent"]}
        steps = default_steps(plan, **values)
        probes = ("gradient_norm@10", "attention_entropy@10")
        run = stepped(plan, steps, *probes, **values)
        if design["what"] == "deficit":
            columns.append(np.max(1 - run.probes["attention_entropy"][:, ::10], axis=1))
            continue
        squares = sum(run.probes[f"gradient_norm_{k}"][:, ::10] ** 2 for k in ("W_Q", "W_K"))
        columns.append(np.median(np.sqrt(squares / (2 * run.risk[:, ::10])), axis=1))
    return effects.exponents(design["widths"], np.stack(columns, axis=1))


def speed_by_exponent(design: Design, seeds: Seeds) -> list[Interval]:
    """Slope of the mean speed (decades) against p at one width and step, that of p = 1/4."""
    plan, p = plan_of(design, seeds), np.array(design["exponents"])
    steps = default_steps(plan, width=design["width"], score_exponent=design["exponents"][0])
    speeds = []
    for exponent_, share in zip(design["exponents"], design["shares"], strict=True):
        run = stepped(plan, share * steps, width=design["width"], score_exponent=exponent_)
        speeds.append(np.maximum(decades(run.risk), -1e3))  # one that diverges is the slowest
    return effects.points(effects.slopes(p, np.stack(speeds, axis=1)))


_SAME = {"favoured": 1.0, "other": 1.0}
_TREND: dict[str, Any] = {
    "sizes": SHORT, "widths": DECADES, "favoured": HALF, "other": ONE, "measure": "speed",
    "shares": None, "step_powers": {"favoured": 0.0, "other": 0.0},
}  # fmt: skip
_SHRINKING = [
    Control({"step_powers": {"favoured": 1.0}}, why="the favoured side's step shrinks"),
    Control({"step_powers": {"other": 1.0}}, "positive", "the other side's step shrinks"),
]
_RANGE = "12 samples of 4 Gaussian tokens in dimension 10, 100 steps, widths 32, 256, 2048 and 8192"
for _key, _what, _effect, _more in (
    ("scaling_gap_over_decades", "at the same step, in mean speed", "decades of mean speed", {}),
    ("scaling_gap_in_last_loss", "at the same step, in the last loss",
     "decades of the last loss", {"measure": "last"}),
    ("scaling_gap_at_own_steps", "each at the step that its own kernel allows, in mean speed",
     "decades of mean speed", {"shares": _SAME}),
):  # fmt: skip
    claim(_key, f"From width 32 to 8192 the lead of scores scaled by width^-1/2 over width^-1 "
          f"grows with the width, {_what}.", trend,
          above(0.0, f"growth per power of ten of the width of the {_effect} by which width^-1/2 "
                "is ahead"), {}, _TREND | _more,
          OURS if "shares" in _more else "paper, as summarised", seconds=2.0, setting=_RANGE,
          waits=UNSEEN,
          controls=_SHRINKING,
          same_runs=() if _key == "scaling_gap_over_decades"
          else ("wu2023.scaling_gap_over_decades",),
          differs="Summaries say that the scalings differ in wide networks; that the lead grows "
          "with the width is our reading.")  # fmt: skip

_FOUR = (32, 160, 800, 4000)
_ALONG = {"sizes": SHORT, "widths": _FOUR, "score_exponent": 1.0}
claim("query_key_gradients_fade",
      "With scores scaled by width^-1 the gradient of query and key weights, over the errors, "
      "falls along training like width^-1/2.", along_training,
      exponent(-0.75, -0.25, "the exponent of the gradient of W_Q and W_K over the errors"),
      {"score_exponent": 0.5}, _ALONG | {"what": "gradients"}, OURS, seconds=1.5, waits=UNSEEN,
      setting=_RANGE.replace("256, 2048 and 8192", "160, 800 and 4000"),
      why="tau_0 |W_K| is of order width^-1/2, the rival 0; 0.25 is half the distance",
      control_why="with width^-1/2 it does not fall")  # fmt: skip
claim("attention_stays_uniform_in_training",
      "With scores scaled by width^-1 attention stays near uniform along training: the largest "
      "distance of its entropy from 1 falls like 1 / width.", along_training,
      exponent(-1.3, -0.7, "the exponent of the largest 1 - entropy along training"),
      {"score_exponent": 0.5}, _ALONG | {"what": "deficit"}, OURS, seconds=1.5, waits=UNSEEN,
      setting=_RANGE.replace("256, 2048 and 8192", "160, 800 and 4000"),
      why="theory says -1 at the start, the rival 0; 0.3 is less than half the distance",
      control_why="with width^-1/2 the exponent is 0",
      same_runs=("wu2023.query_key_gradients_fade",))  # fmt: skip
claim("smaller_exponents_train_faster",
      "At width 2048 and one step, the one that suits p = 1/4, training is the faster the smaller "
      "p among 1/4, 1/2, 3/4 and 1.", speed_by_exponent,
      below(0.0, "decades of mean speed per unit of p"), {"shares": (0.01, 1.0, 1.0, 1.0)},
      {"sizes": SHORT, "width": 2048, "exponents": (0.25, 0.5, 0.75, 1.0),
       "shares": (1.0, 1.0, 1.0, 1.0)}, OURS, seconds=1.0,
      control_why="p = 1/4 takes steps 100 times smaller")  # fmt: skip

HE = {"init": "he"}
versus("he_beats_ntk_equal_step",
       "He initialisation trains faster than NTK at the same step, the one that suits He.",
       HE, NTK, 512, effect="decades by which He is ahead of NTK", waits=UNSEEN,
       differs="The step suits He; NTK would bear a far larger step.")  # fmt: skip
claim("he_beats_ntk_own_step",
      "He initialisation trains faster than NTK, each at the step that its own kernel allows.",
      lead, above(0.0, "decades by which He is ahead of NTK"), {"favoured": {"train": "W_Q"}},
      _TREND | {"sizes": SIZES, "widths": (512,), "favoured": HE, "other": NTK, "shares": _SAME},
      OURS, waits=UNSEEN,
      control_why="the favoured side trains its query weights only")  # fmt: skip

# ------------------------------------------------------------- narrow networks, and rates by width


def lead_of_wide(design: Design, seeds: Seeds) -> list[Interval]:
    """Powers of ten by which the wide network's last share of the risk is below the narrow one's.

    Both take the step that suits the widest of all, or each the one that suits itself.
    """
    plan, shares = plan_of(design, seeds), []
    common = default_steps(plan, width=design["widest"])
    for name in ("narrow", "wide"):
        values = design[name]
        steps = default_steps(plan, **values) if design["own_step"] else common
        risk = stepped(plan, steps, **values).risk
        shares.append(risk[:, -1] / risk[:, 0])
    return effects.loss_ratio(shares[0], shares[1], floor=TINY)


def proved_over_measured(design: Design, seeds: Seeds) -> list[Interval]:
    """Log10 of the measured rate over the paper's, the smallest over widths.

    The measured rate is that of the mean decay over the run, the paper's -log(1 - step alpha^2/2),
    with alpha a singular value of the features at the start (``feature``: the smallest).
    """
    plan, found = plan_of(design, seeds), []
    for width in design["widths"]:
        run = run_of(plan, f"{design['feature']}@{plan.steps}", width=width)
        alpha = run.probes[design["feature"]][:, 0]
        promised = -np.log1p(-np.minimum(run.step_size * alpha**2 / 2, 0.999))
        with np.errstate(divide="ignore", invalid="ignore"):
            measured = np.log(run.risk[:, 0] / run.risk[:, -1]) / plan.steps
            found.append(np.log10(measured / promised))
    return effects.points(np.min(found, axis=0))


def last_share(design: Design, seeds: Seeds) -> list[Interval]:
    """Log10 of the last over the first risk where theorems A and B are silent."""
    risk = run_of(plan_of(design, seeds), **design["settings"]).risk
    return effects.log10_known(np.nan_to_num(risk[:, -1] / risk[:, 0], nan=np.inf), floor=TINY)


MORE = SIZES | {"samples": 20}
_LAG: dict[str, Any] = {
    "sizes": MORE, "widest": 800, "narrow": {"width": 2}, "wide": {"width": 200},
    "own_step": False,
}  # fmt: skip
_TWENTY = "20 samples of 4 Gaussian tokens in dimension 10, 200 steps; the paper has 100 samples "
_TWENTY += "and widths 10, 100, 1000 and 4000"
for _key, _how, _own in (
    ("narrow_lags_at_common_step", "at one step for both, the one that suits width 40 N", False),
    ("narrow_lags_at_own_step", "each at the step that its own kernel allows", True),
):
    claim(_key, f"A network of width N / 10 for N samples ends above one of width 10 N, {_how}.",
          lead_of_wide, above(0.0, "powers of ten by which the wide network ends lower"),
          {"wide": {"train": "W_Q"}}, _LAG | {"own_step": _own},
          OURS if _own else "paper, as summarised", seconds=0.7, setting=_TWENTY,
          controls=[
              Control({"wide": {"train": "W_Q"}}, why="the wide one trains its queries only"),
              Control({"narrow": {"train": "W_Q"}}, "positive", "so does the narrow one"),
          ])  # fmt: skip
claim("rate_is_at_least_alpha_squared",
      "From width N to 40 N the loss falls at least at the rate of the paper's theorem, a share "
      "step x alpha^2 / 2 per step with alpha measured at the start, although the theorem's "
      "conditions fail.", proved_over_measured,
      above(0.0, "log10 of the measured over the proved rate, smallest over widths", bound=True),
      {"feature": "feature_norm"},
      {"sizes": MORE, "widths": (20, 160, 800), "feature": "feature_sigma_min"}, seconds=1.0,
      waits=UNSEEN,
      setting=_TWENTY, why="0: the measured rate is the larger one",
      control_why="with the largest singular value instead of the smallest")  # fmt: skip
claim("converges_where_alpha_is_zero",
      "At width N / 2 the features are dependent (alpha = 0), so that the theorems say nothing, "
      "and yet the loss falls below a tenth of its start.", last_share,
      below(-1.0, "log10 of the last over the first risk", bound=True),
      {"settings": {"train": "W_Q"}}, {"sizes": MORE,
                                       "settings": {"width": 10}}, OURS,
      seconds=0.7, setting=_TWENTY,
      why="a tenth is in the statement",
      control_why="a model that cannot fit: only the query weights move")  # fmt: skip

# ------------------------------------------------------------------------------ the width certified


def certified_width(design: Design, seeds: Seeds) -> list[Effect]:
    """Exponent of the smallest certified width against the samples, to the power ``against``.

    A width lies between two of the grid; below and beyond the grid only that is known.
    """
    (lowest, highest), found = design["octaves"], []
    octaves: Any = np.arange(lowest, highest, 0.125)
    for seed in seeds:
        ends = []
        for N in design["counts"]:
            dim = round(design["dim"] * (N / 4) ** design["dim_power"])
            scale = 0.3 * (N / 2) ** design["label_power"]
            values = {"num_samples": N, "dim": dim, "label_scale": scale}
            values["score_exponent"] = design["score_exponent"]
            widths = np.round(2.0 ** octaves[2.0**octaves >= max(2 * dim, N)])
            k = smallest_drawn(values, seed, design["method"], widths)
            ends.append(np.concatenate([[0.0], widths, [np.inf]])[k : k + 2])
        x = np.array(design["counts"], float) ** design["against"]
        found += effects.exponents(x, *np.array(ends).T[:, None])
    return found


_CERTIFIED: dict[str, Any] = {
    "method": "flow", "score_exponent": 1.0, "counts": (2, 4, 8, 16, 32), "octaves": (5, 37),
    "dim": 16, "dim_power": 0.0, "label_power": 0.0, "against": 1.0,
}  # fmt: skip
_GROWN: dict[str, Any] = {"dim_power": 1.0, "counts": (4, 8, 16, 32)}
_case: dict[str, Any]
for _key, _words, _case in (
    ("quadratic_width_suffices", "theorem B guarantees convergence of gradient flow, with scores "
     "scaled by width^-1", {}),
    ("quadratic_width_suffices_at_one_half", "theorem B guarantees convergence of gradient flow, "
     "with scores scaled by width^-1/2", {"score_exponent": 0.5}),
    ("quadratic_width_suffices_for_descent", "theorem A guarantees convergence of gradient "
     "descent, with scores scaled by width^-1", {"method": "descent"}),
    ("quadratic_width_suffices_if_dim_grows", "theorem B guarantees convergence of gradient flow, "
     "with scores scaled by width^-1/2 and dimensions of four times the samples",
     _GROWN | {"score_exponent": 0.5}),
):  # fmt: skip
    _first = _key == "quadratic_width_suffices"
    claim(_key, f"The smallest width at which {_words}, grows no faster than the number of samples "
          "to 2.25.", certified_width,
          below(2.25, "the exponent of the smallest certified width against the samples",
                bound=True), {}, _CERTIFIED | _case,
          "paper, as summarised" if _first else OURS, seconds=1.0,
          setting="unit tokens, two per sequence, dimension "
          + ("4 N" if "dim_power" in _case else "16") + ", labels of scale 0.3; N from "
          + ("4" if "dim_power" in _case else "2") + " to 32, widths up to 2^37 on a grid of "
          "eighths of an octave, drawn from their exact distribution up to 1 %",
          why="2 is in the statement; 0.25 is half the distance to 2.5",
          controls=[
              Control({"label_power": 2.0}, why="labels that grow like the square of the samples"),
              Control({"against": 3.0}, "positive", "against the cube of the samples the exponent "
                      "is a third"),
          ], version=2 if _first else 1,
          changed="20 s a seed; widths are drawn from their distribution" if _first else "",
          differs="The theorems are ours, and sufficient only: the paper's may need less. "
          "Summaries disagree on the exponent p of the paper's statement.")  # fmt: skip
