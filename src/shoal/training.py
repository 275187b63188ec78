"""The one training loop, pure: the engine compiles and batches it."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax

from shoal import trees
from shoal._typing import Any, Array, Float, Int, Params, Probe, Risk
from shoal.errors import InputError
from shoal.methods import Method, State

Probes = Mapping[str, Probe] | Callable[[], Mapping[str, Probe]]
"""Probes by name, or a function that makes them."""


class Trajectory(NamedTuple):
    """What a run leaves behind; the leading axis of all but ``params`` is the recorded step.

    ``params`` are the final parameters; ``average``, if it was kept, is the mean of those before
    every step. To keep every iterate, record the identity probe,
    ``probes={"params": lambda params: params}``.
    """

    step: Int[Array, " T"]
    risk: Float[Array, " T"]
    probes: dict[str, Any]
    params: Params
    average: Params | None = None


class Segment(NamedTuple):
    """A stretch of a run that can be continued: where it ended, and what it recorded before."""

    params: Params
    state: State
    records: dict[str, Any]


def segment(
    method: Method, risk: Risk, params: Params, state: State | None = None, *,
    num_steps: int, every: int = 1, probes: Probes | None = None,
    train: Iterable[str] | None = None,
) -> Segment:  # fmt: skip
    """Take ``num_steps`` steps, recording risk and probes *before* steps 0, every, 2 every, ...

    Only the blocks that ``train`` selects move; the others are constants to the method, so their
    gradients are never computed. Probes may be given as a function that makes them: it is called
    inside the loop, where XLA sees that step and probes compute the same things.
    """
    start = trees.selected(params, train)
    if not start:
        known = ", ".join(trees.blocks(params))
        raise InputError(f"train={train!r} selects no parameter; choose from {known}.")

    def whole(moving: dict[str, Array]) -> Params:
        return trees.with_blocks(params, moving)

    def advance(carry: tuple, _: None) -> tuple[tuple, None]:
        moving, state = carry
        return method.step(lambda b, *rows: risk(whole(b), *rows), moving, state), None

    def record_then_advance(carry: tuple, _: None) -> tuple[tuple, dict]:
        seen = record(risk, probes, whole(carry[0]))
        if every == 1:  # no inner loop: XLA shares what step and record both compute
            return advance(carry, None)[0], seen
        return jax.lax.scan(advance, carry, length=every)[0], seen

    begin = start, method.init(start) if state is None else state
    (moving, state), records = jax.lax.scan(record_then_advance, begin, length=num_steps // every)
    return Segment(whole(moving), state, records)


def record(risk: Risk, probes: Probes | None, params: Params) -> dict[str, Any]:
    """Risk and probes at one point; a probe that returns a dict has a name for each part."""
    made = probes() if callable(probes) else probes or {}
    seen = {name: probe(params) for name, probe in made.items()}
    found = {"risk": risk(params)}
    for name, value in seen.items():
        if isinstance(value, dict):
            found |= {f"{name}_{part}": x for part, x in value.items()}
        else:
            found[name] = value
    return found


def spacing(num_steps: int, records: int) -> int:
    """Steps between records for about ``records`` of them.

    The smallest divisor of ``num_steps`` that gives no more; where that gives far fewer (the number
    of steps is nearly prime), the largest that gives more.

    >>> spacing(1000, 20), spacing(2003, 200)
    (50, 1)
    """
    least = -(-num_steps // records)
    fits = [k for k in range(1, num_steps + 1) if num_steps % k == 0]
    fewer = min(k for k in fits if k >= least)
    return fewer if fewer <= 10 * least else max(k for k in fits if k <= least)
