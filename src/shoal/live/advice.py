"""What would make a theorem applicable: settings that compile nothing are tried, one at a time.

Each trial evaluates all hypotheses at the start with one number moved by a factor, and with the
largest step that the theorem then allows; the smallest move that helps is reported. Nothing is
trained, so a trial takes milliseconds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.console import shapes_weights
from shoal.errors import InputError
from shoal.lab.paper import Paper
from shoal.lab.setting import Mark
from shoal.live import gauges
from shoal.live.desk import Asked, ask
from shoal.live.state import State

FACTORS = (1 / 2, 2, 1 / 8, 8, 1 / 64, 64)
"""How a number is moved, the smallest moves first."""
LEFT_ALONE = ("data_seed", "near_seed", "num_steps", "step_size", "near_error")
WIDER = "width", "num_heads"


def _failed(asked: Asked) -> list[str]:
    found = gauges.judged(asked, gauges.at_start(asked))
    return [line["name"] for line in found["hypotheses"] if line["holds"] is not True]


def _with_step(asked: Asked) -> Asked:
    """The same with the largest step that the theorem allows, where it says one."""
    step = gauges.largest(asked)
    return asked if step is None else asked._replace(setup=asked.setup.with_steps(np.array(step)))


def trials(asked: Asked, own: str) -> Iterator[dict[str, Any] | None]:
    """Try changes, one per turn: None while none helps, else what was found. May be abandoned."""
    before = _failed(asked)
    if not before or asked.theorem is None:
        return
    yield None
    for step in (gauges.largest(asked), gauges.usual(asked)):
        if step is None or step == asked.step_size:
            continue
        left = _failed(asked._replace(setup=asked.setup.with_steps(np.array(step))))
        if len(left) < len(before):
            yield _found("step_size", repr(step), before, left, f"step size {step:.4g}")
            if not left:
                return
            before = left  # whatever else is tried is tried with this step
            break
        yield None
    if not isinstance(asked.source, Paper):
        return
    setting = asked.setup.setting
    for name, mark in type(setting).marks().items():
        value = getattr(setting, name)
        if (
            mark is not Mark.TRACED
            or name in LEFT_ALONE
            or not isinstance(value, float)
            or not value
        ):
            continue
        yield from _moved(asked, own, name, value, before)


def _moved(
    asked: Asked, own: str, name: str, value: float, before: list[str]
) -> Iterator[dict[str, Any] | None]:
    for factor in FACTORS:
        word = f"{value * factor:.4g}"
        try:
            other = _with_step(ask(_replaced(asked.state, name, word), own))
            left = _failed(other)
        except InputError:  # outside of what the setting allows
            yield None
            continue
        if len(left) < len(before):
            yield _found(name, word, before, left, f"{name} = {word} (now {value:.4g})")
            return
        yield None


def _replaced(state: State, name: str, word: str) -> State:
    values = {k: v for k, v in state.values if k not in (name, "step_size")}
    return state._replace(values=tuple((values | {name: word}).items()))


def _found(name: str, word: str, before: list[str], left: list[str], text: str) -> dict[str, Any]:
    more = len(before) - len(left)
    gained = "one more hypothesis" if more == 1 else f"{more} more hypotheses"
    said = "every hypothesis would hold" if not left else f"{gained} would hold"
    return {"name": name, "value": word, "whole": not left, "text": f"{text}: {said}"}


def hints(asked: Asked) -> list[str]:
    """What usually helps, though it compiles anew, in words."""
    if not isinstance(asked.source, Paper):
        return []
    sizes = (name for name in WIDER if shapes_weights(asked.setup.setting, name))
    larger = "".join(f"a larger {name} or " for name in list(sizes)[:1])
    return [f"Often {larger}fewer samples help: these compile again, so try them."]
