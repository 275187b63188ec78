"""The engine: the one place that compiles training. Setups and seeds in, trajectories out.

Every function here takes a `Setup` whose parts have a leading axis of runs: the seeds of one
setting, or many settings of equal shape. A compiled program depends on the setting's compile key
and on shapes, not on numbers, seeds or data. What belongs to one run is computed from that run
alone, so a seed's result does not depend on its companions (beyond the rounding of batched
products).
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import native, trees
from shoal.certificates import Ends, NotChecked
from shoal.diagnostics import dynamics
from shoal.errors import InputError
from shoal.lab import probes as generic
from shoal.lab.memory import require_room
from shoal.lab.setup import BATCHES, Setup, key_of, require_whole_records
from shoal.methods import BATCH, METHODS, STOCHASTIC, Method, averaging, from_optax, on_batches
from shoal.models import predict
from shoal.runtime import cores, in_float64, numpy_tree
from shoal.theory.kernel_regime import predicted_residual
from shoal.training import Trajectory, record, segment, spacing
from shoal.verified.enclose import enclosed, needed_bytes
from shoal.verified.intervals import Interval, Truth

CACHED = 2**17
"""Numbers that one core's cache holds, roughly: runs are batched up to this."""
SEGMENTS = 20
"""Most pieces that a run is cut into, for progress and for stopping."""
Progress = Callable[[int, int], None]


def method_of(setup: Setup, key: Any = None) -> Method:
    """The training rule of one start; ``key`` decides the batches."""
    setting, rule = setup.setting, setup.setting.method
    make = METHODS[rule] if isinstance(rule, str) else from_optax(rule)
    method = make(setup.step_size, setup.step_ratios)
    if isinstance(rule, str) and rule in STOCHASTIC:
        count = len(jax.tree.leaves(setup.inputs)[0])
        size = min(BATCH, count) if setting.batch_size is None else setting.batch_size
        method = on_batches(method, num_samples=count, batch_size=size, key=key)
    method = setting.rule(method)
    return averaging(method) if setting.averages else method


# -------------------------------------------------------------------------------- over all runs


def over_runs(function: Callable, setup: Setup, batch: int, *extra: Any) -> Any:
    """Apply ``function(one_setup, *extra)`` to every run, ``batch`` of them by ``vmap``.

    A single run is not batched: the same numbers in batched products would be far slower.
    """
    stacked = (setup.parts(), *extra)

    def one(parts: dict, *rest: Any) -> Any:
        start = setup.with_parts(parts)
        return function(start.replace(setting=start.setting.settled()), *rest)

    count = len(jax.tree.leaves(stacked)[0])
    if count == 1:
        alone = one(*jax.tree.map(lambda x: x[0], stacked))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], alone)
    if count <= batch:
        return jax.vmap(one)(*stacked)
    return jax.lax.map(lambda args: one(*args), stacked, batch_size=batch if batch > 1 else None)


@functools.partial(jax.jit, static_argnames="function")
def _per_start(setup: Setup, extra: tuple, own: tuple, *, function: Callable) -> Any:
    return over_runs(lambda one, *rows: function(one, *extra, *rows), setup, 1, *own)


@in_float64
def per_start(setup: Setup, function: Callable, *extra: Any, own: tuple = ()) -> Any:
    """``function(start, *extra, *own)`` for every run in float64, one after the other.

    What is ``own`` has an entry per run. Define the function once: a new one compiles again.
    """
    return numpy_tree(_per_start(setup.astype("float64"), extra, own, function=function))


def default_steps(setup: Setup) -> np.ndarray:
    r"""The default step of every run: the paper's, or half of $1/\lambda_{\max}(K_0)$.

    The latter is a quarter of the limit $2/\lambda_{\max}$ at which the linearised run turns
    unstable. It is neither necessary nor sufficient for convergence of the real one: kernels grow
    along some runs.
    """
    return per_start(setup.replace(step_size=None), default_step)


def default_step(setup: Setup) -> Any:
    """The default step of one start."""
    if (usual := setup.setting.default_step(setup)) is not None:
        return jnp.asarray(usual, float)
    if (kernel := setup.kernel()) is None:
        # without a tangent kernel: half of 1 / sharpness, the same for a linear model
        sharp = dynamics.sharpness(setup.risk, jax.random.key(0))(setup.params0)["value"]
        return jnp.where(jnp.isfinite(sharp) & (sharp > 0), 0.5 / sharp, 1e-3)
    top = jnp.linalg.eigvalsh(kernel(setup.params0))[-1]
    return jnp.where(jnp.isfinite(top) & (top > 0), 0.5 / top, 1.0)


# ------------------------------------------------------------------------------------- training


def stride_of(text: str) -> tuple[str, int | None]:
    """A probe's name, and the steps between its records if they are given, as in ``name@50``.

    >>> stride_of("sharpness@50"), stride_of("movement")
    (('sharpness', 50), ('movement', None))
    """
    name, at, stride = text.partition("@")
    if at and not (stride.isascii() and stride.isdigit() and len(stride) < 13 and int(stride) > 0):
        raise InputError(f"probe {text!r}: expected a number of steps after @, such as {name}@50.")
    return name, int(stride) if at else None


def _common_stride(names: Iterable[str], num_steps: int, every: int) -> int | None:
    found = {stride for _, stride in map(stride_of, names) if stride is not None}
    if len(found) > 1:
        msg = f"probes at different spacings ({sorted(found)}); choose one for all of them."
        raise InputError(msg)
    for stride in found:
        if stride % every or num_steps % stride:
            msg = f"probes @{stride}: expected a multiple of {every=} that divides {num_steps=}."
            raise InputError(msg)
    return next(iter(found), None)


@functools.partial(jax.jit, static_argnames="batch")
def _begin(setup: Setup, seeds: Any, *, batch: int) -> Any:
    """State of the method before the first step."""

    def one(start: Setup, seed: Any) -> Any:
        return method_of(start, key_of(seed, BATCHES)).init(start.moving(start.params0))

    return over_runs(one, setup, batch, seeds)


@functools.partial(jax.jit, static_argnames=("num_steps", "every", "probes", "batch"))
def _advance(
    setup: Setup, points: Any, states: Any, *, num_steps: int, every: int, probes: tuple, batch: int
) -> tuple:
    """Train for some steps. Nothing else in shoal compiles a training loop."""

    def one(start: Setup, params: Any, state: Any) -> tuple:
        # risk and probes are made inside the loop: numbers made outside enter it as constants, and
        # XLA would not see which are equal, nor compute once what the step and a probe share
        def risk(params: Any, *rows: Any) -> Any:
            return start.fast_risk(params, *rows)

        made = functools.partial(generic.chosen, start, probes)
        how: dict[str, Any] = {"num_steps": num_steps, "every": every, "train": start.trained}
        return segment(method_of(start), risk, params, state, probes=made, **how)

    return over_runs(one, setup, batch, points, states)


@functools.partial(jax.jit, static_argnames=("probes", "batch", "risk"))
def _look(setup: Setup, points: Any, *, probes: tuple, batch: int, risk: bool) -> dict:
    """Risk (if asked) and probes at one point of every run."""

    def one(start: Setup, params: Any) -> dict:
        seen = record(start.fast_risk, generic.chosen(start, probes), params)
        return OrderedDict((name, x) for name, x in seen.items() if risk or name != "risk")

    return over_runs(one, setup, batch, points)


def look(setup: Setup, params: Any, probes: Iterable[str]) -> dict[str, Any]:
    """Risk and probes of every run at given weights, as one row of a trajectory."""
    return _look(setup, params, probes=tuple(probes), batch=1, risk=True)


@in_float64
def trajectories(
    setup: Setup,
    probes: Iterable[str] = (),
    *,
    every: int | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Train every run; NumPy arrays with a leading axis of runs.

    Small models leave cores idle, so each core takes a share of the runs. ``progress(done, total)``
    is called now and then with numbers of steps. Expensive probes can be recorded less often:
    ``kernel_eigenvalues@50`` is every 50 steps (else NaN). Zero steps look at the start only.
    """
    setting, probes, num_steps = setup.setting, tuple(probes), setup.setting.num_steps
    every = (setting.every if every is None else every) if num_steps else 1
    if setup.step_size is None and num_steps and isinstance(setting.method, str):
        setup = setup.with_steps(default_steps(setup))
    require_whole_records(num_steps, every)
    stride = _common_stride(probes, num_steps, every)
    shares, batch = _shares(setup)
    done, stopped, counting = [0] * len(shares), threading.Event(), threading.Lock()

    def tell(share: int, steps: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        with counting:
            done[share] = steps
            if progress is not None:
                progress(sum(done) // len(done), num_steps)

    @in_float64
    def one(share: int) -> Trajectory:
        report = functools.partial(tell, share)
        return _trained(shares[share], probes, num_steps, every, stride, batch, report)

    with ThreadPoolExecutor(len(shares)) as pool:
        each: Any = map if len(shares) == 1 else pool.map  # one share needs no thread
        try:
            found = list(each(one, range(len(shares))))
        except BaseException:
            stopped.set()
            raise
    return jax.tree.map(lambda *xs: np.concatenate(xs)[: setup.num_runs], *found)


def _shares(setup: Setup) -> tuple[list[Setup], int]:
    """The runs in equal shares, one per core, and how many of them to batch.

    As many as a core's cache holds, 16 at most, in equal batches. The last share is filled up, so
    all shapes are equal, and one program serves all shares.
    """
    count = setup.num_runs
    fits = max(1, min(16, int(CACHED / setup.setting.floats_per_step())))
    share = -(-count // min(cores(), count))
    batch = -(-share // -(-share // fits))
    size = batch * -(-share // batch)
    rows = [range(first, first + size) for first in range(0, count, size)]
    return [setup.rows(min(k, count - 1) for k in some) for some in rows], batch


def _trained(
    setup: Setup, probes: tuple[str, ...], num_steps: int, every: int, stride: int | None,
    batch: int, tell: Callable[[int], None],
) -> Trajectory:  # fmt: skip
    """Train a share of the runs, segment by segment; rare probes have a thread of their own."""
    often = tuple(name for name in probes if "@" not in name)
    rare = tuple(name for name in probes if "@" in name)
    seeds = np.asarray(setup.seeds, np.uint32)
    setup = jax.device_put(setup)  # once, and not for every segment
    points, records, average = setup.params0, [], None
    if num_steps:
        states = _begin(setup, seeds, batch=batch)
        total = num_steps // every
        # rare probes look where a piece begins
        pieces = num_steps // (stride or segment_steps(num_steps, every))
        look = in_float64(functools.partial(_look, setup, probes=rare, batch=batch, risk=False))
        with ThreadPoolExecutor(1) as beside:  # rare probes use cores that training leaves idle
            for piece in range(pieces):
                seen_rarely = beside.submit(look, points) if rare else None
                points, states, seen = _advance(
                    setup, points, states,
                    num_steps=num_steps // pieces, every=every, probes=often, batch=batch,
                )  # fmt: skip
                seen = numpy_tree(seen)
                if seen_rarely is not None:
                    found = numpy_tree(seen_rarely.result())
                    seen |= {k: _pad_nan(x, total // pieces) for k, x in found.items()}
                records.append(seen)
                tell((piece + 1) * num_steps // pieces)
        if setup.setting.averages:
            average = average_of(Underway(setup, points, states))
    last = numpy_tree(_look(setup, points, probes=probes, batch=batch, risk=True))
    records.append({name: x[:, None] for name, x in last.items()})
    # jax returns plain dicts sorted; here names and parts stay in the order of the probes
    joined = OrderedDict((k, np.concatenate([seen[k] for seen in records], axis=1)) for k in last)
    risk = joined.pop("risk")
    steps: Any = np.broadcast_to(np.arange(risk.shape[1]) * every, risk.shape)
    return Trajectory(steps, risk, joined, numpy_tree(points), average)


def _pad_nan(values: np.ndarray, count: int) -> np.ndarray:
    """One record of every run, followed by NaN up to the next (a truth value becomes 1 or 0)."""
    kind = values.dtype if np.issubdtype(values.dtype, np.inexact) else np.float64
    found = np.full((len(values), count, *values.shape[1:]), np.nan, kind)
    found[:, 0] = values
    return found


def segment_steps(num_steps: int, every: int) -> int:
    """Steps of one segment: a run is cut into equal ones, `SEGMENTS` at most.

    >>> segment_steps(100, 1), segment_steps(7, 1), segment_steps(10, 5)
    (5, 1, 5)
    """
    total = num_steps // every
    return num_steps // max(k for k in range(1, min(SEGMENTS, total) + 1) if total % k == 0)


class Underway(NamedTuple):
    """A run of one seed that can be continued: its setup, the weights, the method's state."""

    setup: Setup
    params: Any
    state: Any


@in_float64
def begin(setup: Setup) -> Underway:
    """A run of one seed before its first step."""
    state = _begin(setup, np.asarray(setup.seeds, np.uint32), batch=1)
    return Underway(jax.device_put(setup), setup.params0, state)


@in_float64
def advance(run: Underway, num_steps: int, probes: tuple[str, ...] = ()) -> tuple[Underway, dict]:
    """Continue a run, and return what it recorded before its steps 0, every, 2 every, ...

    In pieces of any length it passes the same numbers as in one (`trajectories`).
    """
    every = run.setup.setting.every
    params, state, seen = _advance(
        run.setup, run.params, run.state, num_steps=num_steps, every=every, probes=probes, batch=1
    )
    return run._replace(params=params, state=state), numpy_tree(seen)


def average_of(run: Underway) -> Any:
    """The mean of the iterates so far, if the setting keeps it."""
    if not run.setup.setting.averages:
        return None
    return trees.with_blocks(run.setup.params0, numpy_tree(run.state.mean))


def snapshots(setup: Setup, most: int = 100) -> dict[str, np.ndarray]:
    """The trained blocks along a run, of every seed, at no more than about ``most`` steps."""
    every = spacing(setup.setting.num_steps, most)
    run = trajectories(setup, (generic.ITERATES,), every=every)
    return {name.removeprefix(f"{generic.ITERATES}_"): x for name, x in run.probes.items()}


# --------------------------------------------------------------------------------- after training


@functools.partial(jax.jit, static_argnames="certificate")
def _certificates(setup: Setup, run: Trajectory, *, certificate: Callable) -> Any:
    def one(start: Setup, seen: Trajectory) -> Any:
        found = certificate(start, seen)
        # jax returns plain dicts sorted; the order of the theorem is the reader's
        named = "hypotheses", "conclusions", "constants", "curves"
        return found._replace(**{k: OrderedDict(getattr(found, k)) for k in named})

    return over_runs(one, setup, 1, run)


@in_float64
def certificates(setup: Setup, run: Trajectory, certificate: Callable) -> list[Any]:
    """Compare a theorem with every run: floats for the reader, enclosures for the verdict."""
    exact, seen = setup.astype("float64"), run._replace(params=())
    if setup.num_runs:
        formula, _ = _formula(certificate, (exact.one(0), _row(seen, 0)))
        require_room(needed_bytes(formula.jaxpr), "enclosing what the theorem compares")
    stacked = numpy_tree(_certificates(exact, seen, certificate=certificate))
    found = [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(setup.num_runs)]
    return _with_ends(found, exact, seen, certificate)


def _sides(certificate: Callable, start: Setup, seen: Trajectory) -> dict:
    """Left side, right side and resolution of everything that a theorem compares."""
    found = certificate(start.replace(setting=start.setting.settled()), seen)
    parts = {"hypotheses": found.hypotheses, "conclusions": found.conclusions}
    return {
        part: {k: one[:3] for k, one in lines.items() if not isinstance(one, NotChecked)}
        for part, lines in parts.items()
    }


def _with_ends(
    found: list[Any], setup: Setup, seen: Trajectory, certificate: Callable
) -> list[Any]:
    """Certificates with the ends that enclose their sides.

    What depends on a primitive without a rule has endless ends, which decide nothing.
    """
    runs = [(setup.one(i), _row(seen, i)) for i in range(setup.num_runs)]
    closed, tree = _formula(certificate, runs[0])
    done = []
    for one, arguments in zip(found, runs, strict=True):
        values, without_rule = enclosed(closed, jax.tree.leaves(arguments))
        ends = [_Leaf(value) for value in values]
        merged = _merged(one, jax.tree.unflatten(tree, ends))
        done.append(merged._replace(without_rule=without_rule))
    return done


def _row(seen: Trajectory, i: int) -> Trajectory:
    return jax.tree.map(lambda x: np.asarray(x)[i], seen)


def _formula(certificate: Callable, arguments: Any) -> tuple[Any, Any]:
    """The jaxpr of what a theorem compares, and the structure of its outputs."""
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple((np.shape(x), np.asarray(x).dtype.name) for x in leaves)
    return _traced(certificate, structure, shapes)


@functools.lru_cache(maxsize=64)
def _traced(certificate: Callable, structure: Any, shapes: tuple) -> tuple[Any, Any]:
    given = [jax.ShapeDtypeStruct(shape, name) for shape, name in shapes]
    sides = functools.partial(_sides, certificate)
    with native.formulas_only():
        closed, shape = jax.make_jaxpr(sides, return_shape=True)(
            *jax.tree.unflatten(structure, given)
        )
    return closed, jax.tree.structure(shape)


class _Leaf:
    """An enclosure as a leaf of a tree."""

    def __init__(self, value: Any) -> None:
        """Truth counts as 0 and 1; a whole number is exact."""
        if isinstance(value, Truth):
            value = Interval(value.sure * 1.0, value.possible * 1.0)
        elif not isinstance(value, Interval):
            value = Interval(value * 1.0, value * 1.0)
        self.ends = tuple(value)


def _merged(certificate: Any, ends: dict) -> Any:
    """The certificate with ends for every line."""

    def line(one: Any, sides: Any) -> Any:
        if isinstance(one, NotChecked):
            return one
        lhs, rhs, resolution = (side.ends for side in sides)
        return one._replace(ends=Ends(lhs, rhs, resolution[1]))

    return certificate._replace(
        **{part: OrderedDict((k, line(one, ends[part].get(k))) for k, one in
                             getattr(certificate, part).items())
           for part in ("hypotheses", "conclusions")}
    )  # fmt: skip


def final_states(setup: Setup, run: Trajectory) -> dict[str, np.ndarray] | None:
    """Where every run came to rest: solved, slow, stuck or at a saddle (`dynamics.stationarity`).

    None for a model whose lowest risk is not known.
    """
    if setup.abstractly(lambda one: one.setting.floor(one)) is None:
        return None
    ends = trees.cast(run.params, "float64"), run.risk[:, 0].astype(np.float64)
    return per_start(setup, _final_state, own=ends)


def _final_state(setup: Setup, params: Any, scale: Any) -> Any:
    floor = setup.setting.floor(setup)
    return dynamics.stationarity(setup.risk, floor, train=setup.trained, scale=scale)(params)


def kernel_predictions(setup: Setup, step: np.ndarray) -> np.ndarray | None:
    """For every run, the risk that the tangent kernel at the start predicts at some steps."""
    if not setup.has_samples or setup.abstractly(Setup.kernel) is None:
        return None
    return per_start(setup, _predicted, np.asarray(step))


def _predicted(setup: Setup, step: Any) -> Any:
    y = setup.targets
    e0 = (predict(setup.network, setup.params0, setup.inputs) - y).ravel()
    e = predicted_residual(setup.kernel()(setup.params0), e0, setup.step_size, step)
    return jax.vmap(lambda r: setup.setting.loss(y + r.reshape(y.shape), y))(e)
