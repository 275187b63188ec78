"""Attention against recurrence on series with a lag, and the sequence-to-sequence form."""

from functools import partial

import numpy as np

from shoal.evidence.sequences import Interval
from shoal.lab import effects
from shoal.lab.claim import Design, above, below, between
from shoal.lab.setting import OURS
from shoal.papers.arda2026 import experiments as ex
from shoal.papers.arda2026.model import PAPER
from shoal.papers.arda2026.studies import OTHER_SIDE, SAYS, WRONG_SIGN, Seeds, claim, plan_of

SERIES = "series with lag L, window L + 1, raw tokens with 8 pairs of position channels, 200 "
SERIES += "samples, 32 heads or units, 400 steps; our lags and sizes"

_SERIES = {"steps": 400, "samples": 200, "width": 32}
_series = partial(claim, setting=SERIES, seconds=3.0)


def lag_growth(design: Design, seeds: Seeds) -> list[Interval]:
    """Held-out loss at the long lag minus that at the short one."""
    plan, how = plan_of(design, seeds), {"recurrence": design["recurrence"]}
    sides = (ex.series_runs(plan, design["model"], design[lag], **how)["loss"]
             for lag in ("long", "short"))  # fmt: skip
    return effects.minus(*map(effects.points, sides))


def jacobians(design: Design, seeds: Seeds) -> list[Interval]:
    """Orders by which the recurrent Jacobian exceeds attention's, largest along training."""
    plan, lag = plan_of(design, seeds), design["lag"]
    extra = {"recurrence": design["recurrence"], "channels": design["channels"]}
    recurrent = ex.series_runs(plan, "recurrent", lag, **extra)["jacobian"]
    return effects.log10_ratio(recurrent, ex.series_runs(plan, "heads", lag)["jacobian"])


def short_lag(design: Design, seeds: Seeds) -> list[Interval]:
    """Held-out loss at a short lag: attention minus recurrent."""
    plan, lag = plan_of(design, seeds), design["lag"]
    recurrent = ex.series_runs(plan, "recurrent", lag, step_size=design["recurrent_step"])["loss"]
    attention = ex.series_runs(plan, "heads", lag)["loss"]
    return effects.minus(effects.points(attention), effects.points(recurrent))


def clipping(design: Design, seeds: Seeds) -> list[Interval]:
    """Held-out loss with one way of clipping tokens minus that with the other."""
    plan = plan_of(design, seeds)
    sides = (ex.series_runs(plan, "heads", design["lag"], clip=design[side])["loss"]
             for side in ("one", "other"))  # fmt: skip
    return effects.minus(*map(effects.points, sides))


_LAGS = {"sizes": _SERIES, "long": 32, "short": 2, "recurrence": 1.0}
_series(
    "attention_does_not_mind_the_lag",
    "The held-out loss of the Transformer on a series is at lag 32 at most 0.05 above that at "
    "lag 2.",
    lag_growth, below(0.05, "growth of the held-out loss from lag 2 to lag 32", bound=True),
    {"model": "recurrent", "recurrence": 0.5}, _LAGS | {"model": "heads"},
    why="0.05 is in the statement; predicting zero has loss 0.526, the best possible 0.1",
    control_why="a recurrent network that forgets",
)  # fmt: skip
_series(
    "recurrence_minds_the_lag",
    "The IndRNN predicts a series worse at lag 32 than at lag 2.",
    lag_growth, above(0.1, "growth of the held-out loss from lag 2 to lag 32", against=0.0),
    {"long": 2, "short": 32}, _LAGS | {"model": "recurrent"},
    why=f"0.1 is our least harm; {WRONG_SIGN}", control_why=OTHER_SIDE,
)  # fmt: skip
_AGAIN = {
    "version": 2,
    "changed": "version 1 is stale: with later code its first seed gives 1.203 instead of 1.159",
}
for _key, _words, _channels, _reading in (
    ("recurrent_jacobians_are_larger", "an IndRNN that sees the channels of positions too", 8, 1),
    ("bare_recurrent_jacobians_are_larger", "an IndRNN that sees the bare series", 0, 2),
):
    _twin = "bare_recurrent" if _channels else "recurrent"
    _series(
        _key,
        f"At lag 32 the Jacobian of {_words} in its recurrent weights exceeds the Transformer's in "
        "W, largest over samples and training.",
        jacobians, above(0.0, "orders by which the recurrent Jacobian is larger"),
        {"recurrence": 0.1},
        {"sizes": _SERIES, "lag": 32, "recurrence": 1.0, "channels": _channels},
        source=f"{SAYS}, reading {_reading} of one sentence",
        control_why="recurrent weights of 0.1 forget at once",
        same_runs=(f"arda2026.{_twin}_jacobians_are_larger",),
        differs="What the IndRNN sees is not known, and the answer depends on it.",
        **({} if _channels else _AGAIN),
    )  # fmt: skip
_SHORT = {"sizes": _SERIES, "lag": 2, "recurrent_step": None}
_UNTRAINED = {"recurrent_step": 1e-7}
_series(
    "recurrence_wins_at_short_lags",
    "At lag 2 the IndRNN predicts a series better than the Transformer.",
    short_lag, above(0.0, "held-out loss of attention minus that of the IndRNN"), _UNTRAINED,
    _SHORT, control_why="an IndRNN that does not learn",
    same_runs=("arda2026.recurrence_equals_attention_at_short_lags",),
)  # fmt: skip
_series(
    "recurrence_equals_attention_at_short_lags",
    "At lag 2 the IndRNN and the Transformer predict a series equally well, within 0.02.",
    short_lag, between(-0.02, 0.02, "held-out loss of attention minus that of the IndRNN"),
    _UNTRAINED, _SHORT, source=OURS, why="0.02 is a fifth of the best possible loss, 0.1",
    control_why="an IndRNN that does not learn",
    same_runs=("arda2026.recurrence_wins_at_short_lags",),
)  # fmt: skip
_series(
    "unit_tokens_do_not_select",
    "Tokens clipped to norm 1, as the theory asks, keep attention from finding a lag of 8: the "
    "held-out loss is higher than with raw tokens.",
    clipping, above(0.1, "held-out loss added by clipping at lag 8", against=0.0),
    {"one": False, "other": True}, {"sizes": _SERIES, "lag": 8, "one": True, "other": False},
    source=OURS, why=f"0.1 is our least harm; {WRONG_SIGN}", control_why=OTHER_SIDE,
)  # fmt: skip


def late_over_early(design: Design, seeds: Seeds) -> np.ndarray:
    """Loss of the last quarter of the window over that of the first after some places."""
    return ex.places(plan_of(design, seeds), design["lag"], design["num_tokens"], design["skip"])


claim(
    "causal_loss_is_flat_along_the_window",
    "In the sequence-to-sequence form, late places of the window are predicted as well as early "
    "ones, within a factor 1.25.",
    late_over_early, between(0.8, 1.25, "loss of the last quarter over that of the first"),
    {"lag": 16}, {"lag": 4, "num_tokens": 33, "skip": 4,
                  "sizes": {"steps": 200, "samples": 100, "width": 16}},
    source=OURS, seconds=3.0, why="a factor 1.25 is in the statement",
    setting="causal form, lag 4, window 33, 16 heads, 100 samples, 200 steps",
    control_why="a lag of 16, which early places cannot see",
)  # fmt: skip


# --------------------------------------------------------- windows that grow while the lag stays


def window_growth(design: Design, seeds: Seeds) -> list[Interval]:
    """Held-out loss at the long window minus that at the short one, at one lag or a growing one."""
    plan = plan_of(design, seeds)
    found: list[list[Interval]] = []
    for T in (design["long"], design["short"]):
        lag = T - 1 if design["grows"] else design["lag"]
        how = {"num_tokens": T, "channels": design["channels"]}
        found.append(effects.points(ex.series_runs(plan, design["model"], lag, **how)["loss"]))
    return effects.minus(*found)


_WINDOWS = {"sizes": {"steps": 200, "samples": 64, "width": 64}, "long": 128, "short": 16, "lag": 4,
            "channels": 8, "grows": False}  # fmt: skip
_WINDOW_SETTING = "series with lag 4 in windows of 16 and 128 tokens, raw tokens with 8 pairs of "
_WINDOW_SETTING += "position channels, 64 samples, 64 held out, 64 heads or units, 200 steps"
claim(
    "attention_does_not_mind_the_window",
    "At a lag of 4, the held-out loss of the Transformer is in a window of 128 tokens at most 0.05 "
    "above that in one of 16.",
    window_growth, below(0.05, "growth of the held-out loss from 16 to 128 tokens", bound=True),
    {"grows": True, "model": "recurrent", "long": 33, "short": 3},
    _WINDOWS | {"model": "heads"}, setting=_WINDOW_SETTING, seconds=3.0,
    why="0.05 is in the statement; predicting zero has loss 0.526, the best possible 0.1",
    control_why="an IndRNN and a lag that grows with the window, from 2 to 32",
)  # fmt: skip
for _key, _words, _channels in (
    ("recurrence_minds_the_window", "sees the channels of positions too", 8),
    ("bare_recurrence_minds_the_window", "sees the bare series", 0),
):
    claim(
        _key,
        f"At a lag of 4, an IndRNN that {_words} predicts worse in a window of 128 tokens than in "
        "one of 16.",
        window_growth, above(0.0, "growth of the held-out loss from 16 to 128 tokens"),
        {"long": 16, "short": 128}, _WINDOWS | {"model": "recurrent", "channels": _channels},
        setting=_WINDOW_SETTING, source=OURS, seconds=3.0, control_why=OTHER_SIDE,
        differs="What the IndRNN sees is not known, and the answer may depend on it.",
        waits="of four exploratory draws with channels two went each way, and without them nothing "
        "was looked at: sizes that decide are not known",
    )  # fmt: skip
PAPER.check(
    "recurrence_holds_no_window",
    "One prediction of the IndRNN, token by token, holds as many numbers for 4096 tokens as for "
    "64; those of the Transformer grow in proportion to the window. (Training holds numbers for "
    "every token in both.)", source=SAYS, tolerance="none: numbers of compiled programs",
    test="tests/test_arda2026_rates.py::"
    "test_a_recurrent_prediction_holds_no_window_and_attention_does",
)  # fmt: skip
