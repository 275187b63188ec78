"""Replay: nothing in a run folder is believed that can be computed again.

A run that was read from disk is trained once more from its first weights, its data and its setting
before a theorem or a proof looks at it. What the folder records must be what comes out, up to
rounding; the verdict is then about what came out *here*.

How far rounding may carry two honest replays apart is measured, not assumed: the run is replayed
twice more with weights, data and step size changed at random in the last digits, by what the sums
and functions of one step may err. Where such twins part, so may honest runs on other machines.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from shoal import trees
from shoal.errors import InputError
from shoal.lab import engine, theorem
from shoal.lab.probes import ITERATES, probe_names
from shoal.lab.setup import Setup, draw_weights, make_data
from shoal.methods import FLOW_RTOL, METHODS, gradient_descent
from shoal.runtime import in_float64, numpy_tree

if TYPE_CHECKING:
    from shoal.lab.run import Run

MOST_WORK = 2e11
"""Numbers that the steps of a whole replay may touch: a minute or two. Longer runs in parts."""
TWINS = 2
FACTOR = 8.0
"""Honest runs may differ by this many times what the twins differ."""


class Loaded(NamedTuple):
    """Where a run was read from, and what reading could not check."""

    folder: str
    drawn: tuple[str, ...] | None  # What the setting drew: data, weights. None: not recorded.
    unchecked: tuple[str, ...] = ()


class Replayed(NamedTuple):
    """A stretch of a run computed again: records, last weights, and how far rounding reaches."""

    found: dict[str, np.ndarray]
    room: dict[str, np.ndarray]  # By how much each of them may differ.
    lost: tuple[int, ...]  # Seeds whose later records rounding decides.


# --------------------------------------------------------------------------- how far rounding goes


def rounding(setup: Setup) -> float:
    """What one step may err by, relative: functions by 16 ulp, a sum by a unit for each term."""
    unit = 2.0**-53 if setup.precision == "float64" else 2.0**-24
    shapes = [np.shape(x) for x in jax.tree.leaves((setup.problem, setup.params0))]
    longest = max((n for shape in shapes for n in shape), default=1)
    own = FLOW_RTOL if setup.setting.method == "flow" else 0.0  # the integrator's own error
    return (32 + longest) * unit + own


def shaken(setup: Setup, rng: np.random.Generator) -> Setup:
    """The setup with weights, data and step changed by what one step may err."""
    size = rounding(setup)

    def shake(x: Any) -> Any:
        x = np.asarray(x)
        if x.dtype.kind != "f":
            return x
        return (x * (1 + size * rng.uniform(-1, 1, x.shape))).astype(x.dtype)

    names = ("problem", "params0", "held_out", "step_size")
    return setup.replace(**{name: jax.tree.map(shake, getattr(setup, name)) for name in names})


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distance entry by entry; equal infinities and two NaN are no distance, one NaN is all."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(one.astype(float) - other.astype(float))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _room(found: np.ndarray, twins: list[np.ndarray], size: float) -> np.ndarray:
    """By how much honest records (seeds, records, ...) may differ from those found.

    Relative to the records; what rounding has once done it may do again later, at another step.
    """
    rest = tuple(range(2, found.ndim))
    level = np.abs(np.where(np.isfinite(found), found, 0.0)).max(axis=rest, initial=0.0)
    least = np.min(level, axis=1, where=level > 0, initial=np.inf, keepdims=True)
    level = np.where((level > 0) | np.isinf(least), level, least)  # a risk may be exactly 0
    apart = np.max([_apart(twin, found).max(axis=rest, initial=0.0) for twin in twins], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(level > 0, apart / level, 0.0)
    share = np.maximum.accumulate(share, axis=1)
    room = np.maximum(FACTOR * apart, np.where(share > 0, FACTOR * share * level, 0.0))
    room = np.where(np.isinf(share), np.inf, room) + size * level
    return room.reshape(room.shape + (1,) * len(rest))


def _numbers(run: Any, setup: Setup) -> dict[str, np.ndarray]:
    """Everything that a trajectory holds, as (seeds, records, ...) by name."""
    ends = {f"weights {name}": W[:, None] for name, W in trees.blocks(run.params).items()}
    if run.average is not None:
        blocks = setup.moving(run.average)
        ends |= {f"average {name}": W[:, None] for name, W in blocks.items()}
    return {"risk": run.risk} | dict(run.probes) | ends


def _computed(setup: Setup, look: Callable[[Setup], dict[str, np.ndarray]]) -> Replayed:
    """What ``look`` finds, and how far its twins are from it."""
    rng = np.random.default_rng(0)
    found, size = look(setup), rounding(setup)
    twins = [look(shaken(setup, rng)) for _ in range(TWINS)]
    real = {name: x for name, x in found.items() if x.dtype.kind == "f"}
    room = {name: _room(x, [twin[name] for twin in twins], size) for name, x in real.items()}
    level = np.where(np.isfinite(found["risk"]), np.abs(found["risk"]), 0).max(axis=1)[:, None]
    # once rounding has moved the risk by that much, as beyond the edge of stability, it decides
    past = np.maximum.accumulate(~(room["risk"] <= 0.01 * level), axis=1)
    room["risk"], lost = np.where(past, np.inf, room["risk"]), past[:, -1]
    for name in room.keys() - {"risk"}:
        room[name] = np.where(lost.reshape(-1, *[1] * (room[name].ndim - 1)), np.inf, room[name])
    if setup.has_samples and setup.squares_weight is not None:
        # residuals are differences: near zero they err by what outputs and targets err
        floor = float(np.sum(np.square(size * np.asarray(setup.targets, float))))
        room["risk"] = room["risk"] + FACTOR * float(setup.squares_weight) * floor
    seeds = setup.seeds or tuple(range(len(lost)))
    return Replayed(found, room, tuple(s for s, bad in zip(seeds, lost, strict=True) if bad))


def differences(
    recorded: dict[str, np.ndarray], again: Replayed, seeds: tuple[int, ...], step: np.ndarray
) -> Iterator[str]:
    """A sentence for each recorded name that a replay does not give, at its first record."""
    for name, room in again.room.items():
        if name not in recorded:
            continue
        was, now = recorded[name], again.found[name]
        if was.dtype == bool and now.dtype != bool:
            now = np.nan_to_num(now)  # 0.1 wrote False where nothing was recorded
        if was.shape != now.shape:
            yield f"{name} has shape {was.shape}, not {now.shape}"
            continue
        wrong = ~(_apart(was, now) <= room)
        if wrong.any():
            first = int(np.argmax(wrong.any(axis=tuple(k for k in range(wrong.ndim) if k != 1))))
            at = tuple(np.argwhere(wrong[:, first])[0])
            where = (at[0], first, *at[1:])
            when = f"step {step[first]}" if was.shape[1] == len(step) else "the end"
            yield (
                f"{name} of seed {seeds[at[0]]} at {when} is recorded as {was[where]:.6g} "
                f"and comes out as {now[where]:.6g}"
            )


# ------------------------------------------------------------------------------- what is replayed


@in_float64
def replayed(run: "Run", probes: Iterable[str] = (), *, whole: bool = False) -> "Run":
    """A run that was read from disk, computed again, with more ``probes`` if some are named.

    A folder that does not record what comes out is refused. Runs made in this process are returned
    as they are. Long runs are replayed in parts (``whole=True``: all the same), and what was not
    replayed is believed; ``notes["replayed"]`` says which parts.
    """
    if run.loaded is None:
        return run
    words = [*run.loaded.unchecked, *_redrawn(run)]
    setup = run.setup
    if not isinstance(setup.setting.method, str) or setup.setting.method not in METHODS:
        found, said = run, _ends(run)
    elif whole or _work(setup, setup.setting.num_steps) <= MOST_WORK:
        found, said = _whole(run, probes)
    else:
        found, said = run, _in_parts(run)
    notes = run.notes | {"replayed": "; ".join([said, *words])}
    return dataclasses.replace(found, notes=notes, loaded=None)


def _work(setup: Setup, steps: int) -> float:
    return setup.setting.floats_per_step() * steps * setup.num_runs


def _refuse(run: "Run", found: Iterable[str]) -> None:
    """Refuse a folder that records something else than a replay gives."""
    said = list(found)
    if said and run.loaded is not None:
        more = f" ({len(said) - 3} more differ)" if len(said) > 3 else ""
        raise InputError(
            f"{run.loaded.folder!r} is refused: a replay gives other numbers. "
            f"{'; '.join(said[:3])}{more}. Train again."
        )


def _whole(run: "Run", probes: Iterable[str]) -> tuple["Run", str]:
    """The whole run, with the probes that were recorded and those that are asked for.

    Probes are replaced, not compared: some jump where rounding decides, as gradients do at kinks.
    """
    known = probe_names(run.setup)
    names = _recorded_probes(run, (*known, ITERATES))
    names |= {name: name for name in probes if name in known}
    own = {k: x for k, x in run.probes.items() if _owner(k, run.parts) not in names}
    made: list[Any] = []

    def look(setup: Setup) -> dict[str, np.ndarray]:
        seen = engine.trajectories(setup, names.values())
        made.append(seen)
        return _numbers(seen, setup)

    again = _computed(run.setup, look)
    recorded = _numbers(run.trajectory, run.setup)
    believed = {name: x for name, x in recorded.items() if name not in run.probes}
    _refuse(run, differences(believed, again, run.seeds, run.step))
    seen, said = made[0], [f"all {run.step[-1]} steps"]
    if again.lost:
        said.append(f"rounding decides later records of seed {', '.join(map(str, again.lost))}")
    if other := list(differences(run.probes, again, run.seeds, run.step)):
        said.append(f"probes that came out otherwise were replaced ({other[0]})")
    if own:
        said.append(f"the user's own probes are believed ({', '.join(own)})")
    parts = engine.generic.parts_of(run.setup, names.values(), seen.probes)
    found = dataclasses.replace(
        run, risk=np.asarray(seen.risk), probes=dict(seen.probes) | own, params=seen.params,
        average=seen.average, parts=run.parts | parts,
    )  # fmt: skip
    return found, "; ".join(said)


def _owner(column: str, parts: dict[str, tuple[str, ...]]) -> str:
    """The probe that a column belongs to."""
    found = [n for n, some in parts.items() if column == n or column[len(n) + 1 :] in some]
    return max((n for n in found if column.startswith(n)), key=len, default=column)


def _recorded_probes(run: "Run", known: Iterable[str]) -> dict[str, str]:
    """Probes of a run that can be computed again, as ``name`` or ``name@50``."""
    every, found = int(run.step[1] - run.step[0]) if len(run.step) > 1 else 1, {}
    for name, parts in run.parts.items():
        columns = [f"{name}_{part}" for part in parts] or [name]
        values = [run.probes[c] for c in columns if c in run.probes]
        if name not in known or not values:
            continue
        blank = np.all([_blank(x) for x in values], axis=0)
        there = np.flatnonzero(~blank)
        stride = int(there[1]) if len(there) > 1 and there[0] == 0 else 1
        sparse = stride > 1 and (len(run.step) - 1) % stride == 0
        found[name] = f"{name}@{stride * every}" if sparse and blank.any() else name
    return found


def _blank(values: np.ndarray) -> np.ndarray:
    """Records of all seeds that hold nothing but NaN; a truth value alone tells nothing."""
    if values.dtype.kind != "f":
        return np.full(values.shape[1], values.dtype == bool)
    return np.isnan(values).all(axis=tuple(k for k in range(values.ndim) if k != 1))


def _ends(run: "Run") -> str:
    """For a method that a folder cannot hold: the risk at both ends."""

    def look(setup: Setup) -> dict[str, np.ndarray]:
        last = setup.replace(params0=run.params)
        ends = [numpy_tree(engine.look(s, s.params0, ()))["risk"] for s in (setup, last)]
        return {"risk": np.stack(ends, axis=1)}

    again, step = _computed(run.setup, look), run.step[[0, -1]]
    _refuse(run, differences({"risk": run.risk[:, [0, -1]]}, again, run.seeds, step))
    return "only the risk at both ends: the folder does not hold its method"


# ------------------------------------------------------------------------------------- long runs


def _in_parts(run: "Run") -> str:
    """Replay the first, the last and random stretches between recorded weights."""
    setup, last = run.setup, len(run.step) - 1
    points = _recorded_weights(run)
    if not _plain(setup):
        points = {0: points[0], last: points[last]}  # a method with a memory starts at the start
    stretches = list(pairwise(sorted(points)))
    every = int(run.step[1] - run.step[0])
    share = max(1, int(MOST_WORK / 5 / _work(setup, every)))  # records that a stretch may have
    inner = stretches[1:-1]
    chosen = np.random.default_rng().permutation(len(inner))[
        :3
    ]  # not known to who wrote the folder
    ends = [stretches[-1]] if len(stretches) > 1 and _plain(setup) else []
    said = []
    for begin, end in [stretches[0], *(inner[k] for k in sorted(chosen)), *ends]:
        stop = min(end, begin + share)
        _stretch(run, points, begin, stop)
        said.append(f"{run.step[begin]}-{run.step[stop]}")
    _ends(run)
    return f"steps {', '.join(said)} of {run.step[last]}; the rest is believed"


def _plain(setup: Setup) -> bool:
    """Whether a step depends on the weights alone."""
    method = gradient_descent(1.0)
    setting = setup.setting
    return setting.method == "gd" and setting.rule(method) is method and not setting.averages


def _recorded_weights(run: "Run") -> dict[int, Any]:
    """Weights by number of record: the first, the last, and what the probe `params` kept."""
    found = {0: run.setup.params0, len(run.step) - 1: run.params}
    moving = run.setup.moving(run.setup.params0)
    kept = {name: run.probes.get(f"{ITERATES}_{name}") for name in moving}
    if any(x is None for x in kept.values()):
        return found
    for k in range(1, len(run.step) - 1):
        blocks = {name: x[:, k] for name, x in kept.items()}  # type: ignore[index]
        if all(np.isfinite(W).all() for W in blocks.values()):
            found[k] = trees.with_blocks(run.setup.params0, blocks)
    return found


def _stretch(run: "Run", points: dict[int, Any], begin: int, stop: int) -> None:
    """Compare one stretch of a run with its replay."""
    steps = run.step[begin : stop + 1]
    changes = {"num_steps": int(steps[-1] - steps[0]), "every": int(steps[1] - steps[0])}
    setup = run.setup.replace(params0=points[begin]).with_setting(**changes)
    again = _computed(setup, lambda s: _numbers(engine.trajectories(s), s))
    recorded = {"risk": run.risk[:, begin : stop + 1]}
    if stop in points:
        ends = trees.blocks(points[stop])
        recorded |= {f"weights {name}": np.asarray(W)[:, None] for name, W in ends.items()}
    _refuse(run, differences(recorded, again, run.seeds, steps))


@in_float64
def path_to(setup: Setup, ends: Any) -> dict[str, np.ndarray]:
    """Weights of one start at every record; refused if they do not end at ``ends``."""
    made: list[Any] = []

    def look(one: Setup) -> dict[str, np.ndarray]:
        seen = engine.trajectories(one, (ITERATES,))
        made.append(seen.probes)
        ends = {name: W[:, None] for name, W in trees.blocks(seen.params).items()}
        return {"risk": seen.risk} | ends

    again = _computed(setup, look)
    if not all(np.isfinite(x).all() for x in again.found.values()):
        raise InputError("the run diverged; train with a smaller step.")
    recorded = {name: np.asarray(W)[:, None] for name, W in trees.blocks(ends).items()}
    for said in differences(recorded, again, setup.seeds, np.zeros(0)):
        raise InputError(
            f"a replay of the run from its first weights does not end at its last weights ({said});"
            " was it trained in another way, or edited?"
        )
    return {name.removeprefix(f"{ITERATES}_"): x[0] for name, x in made[0].items()}


# ------------------------------------------------------------------------- where a run comes from


def drawn_again(setup: Setup) -> tuple[str, ...]:
    """Which of data and weights are, up to rounding, what the setting draws from its seeds."""
    if not setup.paper or setup.setting.reads_files():
        return ()
    try:
        data, weights = make_data(setup.setting), draw_weights(setup.setting, setup.seeds)
    except InputError:  # such as problem=file
        return ()
    pairs = {"data": (data, (setup.problem, setup.held_out)), "weights": (weights, setup.params0)}
    size = rounding(setup)
    return tuple(name for name, (made, has) in pairs.items() if _alike(made, has, size))


def _alike(made: Any, has: Any, size: float) -> bool:
    """Whether all arrays agree up to a share of their largest entry."""

    def one(x: Any, y: Any) -> bool:
        x, y = np.asarray(x, float), np.asarray(y, float)
        return x.shape == y.shape and bool(np.all(_apart(x, y) <= size * np.abs(x).max(initial=0)))

    pairs = jax.tree.leaves(made), jax.tree.leaves(has)
    return len(pairs[0]) == len(pairs[1]) and all(map(one, *pairs))


def _redrawn(run: "Run") -> list[str]:
    """Refuse data and weights that the setting's seeds do not draw, if the folder says they do."""
    loaded, setup = run.loaded, run.setup
    if loaded is None or not setup.paper:
        return []
    if loaded.drawn is None:
        return ["data and weights were not drawn again"]
    drawn = drawn_again(setup) if loaded.drawn else ()
    for name in loaded.drawn:
        if name not in drawn:
            raise InputError(
                f"{loaded.folder!r} is refused: its {name} are not what its setting and seeds draw "
                "here. If nobody edited it, another version of JAX drew them; train again."
            )
    given = [name for name in ("data", "weights") if name not in drawn]
    if setup.from_init and "weights" in given:
        raise InputError(
            f"{loaded.folder!r} is refused: run.json says that the weights were drawn "
            "(from_init), and not that they can be drawn again (drawn)."
        )
    return [f"{' and '.join(given)} as given"] if given else []


# ---------------------------------------------------------------------------------------- the door


def certify(run: "Run", statement: Any) -> theorem.Certificates:
    """Compare a theorem with every seed of a run. Bounds are computed in float64.

    ``statement`` is a key such as ``"theorem_a"``, a `Theorem`, or a function
    ``(setup, run) -> Certificate`` of one start and its trajectory. A run that was read from disk
    is replayed first, and refused if it records other numbers (`Run.replay`).
    """
    chosen = theorem.theorem_of(run.setup, statement)
    theorem.require_covered(run.setup, chosen)
    return theorem.certify(replayed(run, (*chosen.needs, *chosen.probes)), chosen)
