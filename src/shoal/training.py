"""The one training loop, pure: the engine compiles and batches it."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

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
    method: Method,
    risk: Risk,
    params: Params,
    state: State | None = None,
    *,
    num_steps: int,
    every: int = 1,
    probes: Probes | None = None,
    train: Iterable[str] | None = None,
) -> Segment:
    """Take ``num_steps`` steps, recording risk and probes *before* steps 0, every, 2 every, ...

    Only the blocks that ``train`` selects move; the others are constants to the method, so their
    gradients are never computed. Probes may be given as a function that makes them: it is called
    inside the loop, where XLA sees that step and probes compute the same things.
    """
    if num_steps < 1 or every < 1 or num_steps % every:
        raise InputError(
            f"{every=} does not divide {num_steps=} into whole records; "
            f"try every={math.gcd(num_steps, every) or 1}."
        )
    names = trees.block_names(params, train)
    if not names:
        raise InputError(
            f"train={train!r} selects no parameter; choose from {', '.join(trees.blocks(params))}."
        )

    def whole(moving: dict[str, Array]) -> Params:
        return trees.with_blocks(params, moving)

    def advance(carry: tuple, _: None) -> tuple[tuple, None]:
        moving, state = carry
        return method.step(lambda b, *rows: risk(whole(b), *rows), moving, state), None

    def record_then_advance(carry: tuple, _: None) -> tuple[tuple, dict]:
        seen = record(risk, probes, whole(carry[0]))
        # with every = 1 there is no inner loop, and XLA shares what step and record both compute
        carry = (
            advance(carry, None)[0] if every == 1 else jax.lax.scan(advance, carry, length=every)[0]
        )
        return carry, seen

    moving = {name: W for name, W in trees.blocks(params).items() if name in names}
    state = method.init(moving) if state is None else state
    (moving, state), records = jax.lax.scan(
        record_then_advance, (moving, state), length=num_steps // every
    )
    return Segment(whole(moving), state, records)


def record(risk: Risk, probes: Probes | None, params: Params) -> dict[str, Any]:
    """Risk and probes at one point; a probe that returns a dict has a name for each part."""
    made = probes() if callable(probes) else probes or {}
    seen = {name: probe(params) for name, probe in made.items()}
    return {"risk": risk(params)} | flat_names(seen)


def flat_names(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What probes returned, dicts among it spread over several names.

    >>> flat_names({"a": 1, "b": {"x": 2, "y": 3}})
    {'a': 1, 'b_x': 2, 'b_y': 3}
    """
    found: dict[str, Any] = {}
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


def run(
    method: Method,
    risk: Risk,
    params0: Params,
    *,
    num_steps: int,
    every: int = 1,
    probes: Mapping[str, Probe] | None = None,
    train: Iterable[str] | None = None,
) -> Trajectory:
    """Train from ``params0``, recording risk and probes at steps 0, every, ..., num_steps.

    Pure: wrap it in ``jax.jit`` and ``jax.vmap`` as you like, e.g. over a leading axis of seeds.
    Divergence is data: the trajectory holds the infinities and NaNs.

    >>> from collections import namedtuple
    >>> from shoal.methods import gradient_descent
    >>> P = namedtuple("P", "w b")
    >>> halving = gradient_descent(step_size=0.5)
    >>> out = run(halving, lambda p: 0.5 * p.w**2 + p.b, P(jnp.array(8.0), jnp.array(0.0)),
    ...           num_steps=2, train=["w"])
    >>> out.risk.tolist(), float(out.params.w)
    ([32.0, 8.0, 2.0], 2.0)
    """
    walked = segment(
        method, risk, params0, num_steps=num_steps, every=every, probes=probes, train=train
    )
    last = record(risk, probes, walked.params)
    return trajectory(walked.records, last, walked.params, every)


def trajectory(records: dict, last: dict, params: Params, every: int) -> Trajectory:
    """Join the records of a run with those of its end."""
    joined = jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), records, last)
    risk = joined.pop("risk")
    return Trajectory(jnp.arange(len(risk)) * every, risk, joined, params)


def diverged_at(trajectory: Trajectory) -> Int[Array, ""]:
    """First recorded step whose risk is not a finite number; -1 if there is none."""
    bad = ~jnp.isfinite(trajectory.risk)
    return jnp.where(bad.any(), trajectory.step[jnp.argmax(bad)], -1)
