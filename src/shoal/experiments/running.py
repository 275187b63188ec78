"""Running and certifying: here programs are compiled (``jit``) and seeds batched (``vmap``).

A program depends on shapes and on the choices of a setting, not on its numbers, so another step
size, seed or data set of the same shape does not compile again.
"""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal._typing import Any, Array, Callable, Params, PRNGKeyArray, Probe
from shoal.errors import InputError
from shoal.experiments.nouns import Case, Experiment, Paper, trained
from shoal.experiments.preparing import activations, require_whole_records
from shoal.methods import (
    Method,
    adam,
    averaging,
    gradient_descent,
    gradient_flow,
    on_batches,
)
from shoal.models import training_risk
from shoal.problems import Problem
from shoal.programs import cores
from shoal.training import Trajectory, leg, record, spacing, trajectory

METHODS: dict[str, Callable[..., Method]] = {
    "gd": gradient_descent,
    "flow": gradient_flow,
    "sgd": gradient_descent,  # on batches
    "adam": adam,
}
STOCHASTIC = ("sgd", "adam")
BATCH = 32  # samples in a step of a stochastic method, unless the setting says otherwise


def method_of(
    paper: Paper,
    setting: Any,
    numbers: dict[str, Any],
    num_samples: int,
    key: PRNGKeyArray | None = None,
) -> Method:
    """The training rule of a setting; ``key`` decides the batches."""
    method = METHODS[setting.method](numbers["step_size"], numbers["speeds"])
    if setting.method in STOCHASTIC:
        size = min(BATCH, num_samples) if setting.batch_size is None else setting.batch_size
        method = on_batches(method, num_samples=num_samples, batch_size=size, key=key)
    method = paper.method(setting, method)
    return averaging(method) if paper.averages else method


def program_of(paper: Paper, setting: Any) -> Any:
    """The setting with every field reset that does not change the compiled program."""
    setting = paper.program(setting)
    defaults = type(setting)._field_defaults
    return setting._replace(**{k: defaults[k] for k in paper.traced if k in defaults})


def _seeds_at_once(experiment: Experiment) -> int:
    """How many seeds to batch: as many as a core's cache holds, 16 at most, in equal batches."""
    weights = sum(leaf[0].size for leaf in jax.tree.leaves(experiment.params0))
    held = activations(experiment.paper, experiment.setting, weights)
    fits = max(1, min(16, int(CACHED / held)))
    share = -(-len(experiment.seeds) // min(cores(), len(experiment.seeds)))
    return -(-share // -(-share // fits))


CACHED = 2**17  # numbers


def _shares(experiment: Experiment, batch: int) -> list[Experiment]:
    """The seeds in equal shares of whole batches, one a core; the last is filled up.

    So all shapes are equal, and one program does.
    """
    count = len(experiment.seeds)
    size = -(-count // min(cores(), count))
    size = batch * -(-size // batch)
    shares = []
    for first in range(0, count, size):
        rows = [min(k, count - 1) for k in range(first, first + size)]
        shares.append(
            experiment._replace(
                params0=jax.tree.map(lambda x, rows=rows: x[jnp.array(rows)], experiment.params0),
                seeds=tuple(experiment.seeds[k] for k in rows),
            )
        )
    return shares


def over_seeds(function: Callable, batch: int, *stacked: Any) -> Any:
    """Over the leading axis, so many at a time: ``vmap``, but not for one.

    A batch of one is the same numbers in batched products, which are slower by far.
    """
    count = len(jax.tree.leaves(stacked)[0])
    if count == 1:
        alone = function(*jax.tree.map(lambda x: x[0], stacked))
        return jax.tree.map(lambda x: x[None], alone)
    if count <= batch:
        return jax.vmap(function)(*stacked)
    return jax.lax.map(
        lambda args: function(*args), stacked, batch_size=batch if batch > 1 else None
    )


_STATIC = ("paper", "setting", "probes", "batch")


Data = tuple[Problem, Problem | None]  # seen in training, and held out


def case_of(
    setting: Any, data: Data, params0: Params, numbers: dict, *, drawn: bool = True
) -> Case:
    """One start of a setting, with numbers that may be traced."""
    return Case(setting, data[0], params0, numbers["step_size"], numbers["speeds"], drawn, data[1])


ITERATES = "params"  # a probe of every paper: the trained blocks themselves


def stride_of(text: str) -> tuple[str, int | None]:
    """A probe's name, and how many steps apart it is recorded if that is said, as in ``name@50``.

    >>> stride_of("sharpness@50"), stride_of("movement")
    (('sharpness', 50), ('movement', None))
    """
    name, at, stride = text.partition("@")
    if at and not (stride.isascii() and stride.isdigit() and len(stride) < 13 and int(stride) > 0):
        msg = f"probe {text!r}: expected a number of steps after @, such as {name}@50."
        raise InputError(msg)
    return name, int(stride) if at else None


def _stride(names: tuple[str, ...]) -> int | None:
    """The stride of all rare probes; they have the same."""
    found = {stride for _, stride in map(stride_of, names) if stride is not None}
    if len(found) > 1:
        msg = f"probes at different strides ({sorted(found)}); choose one for all of them."
        raise InputError(msg)
    return next(iter(found), None)


def chosen(paper: Paper, case: Case, names: tuple[str, ...]) -> dict[str, Probe]:
    """Probes of a case by name; how often each is due does not matter here."""
    known = paper.probes(case) | {ITERATES: _iterates(case.setting)}
    return {name: known[name] for name, _ in map(stride_of, names)}


def _iterates(setting: Any) -> Probe:
    def probe(params: Params) -> dict[str, Array]:
        return {name: getattr(params, name) for name in trees.block_names(params, trained(setting))}

    return probe


@functools.partial(jax.jit, static_argnames=(*_STATIC, "num_steps", "every"))
def _leg(data, starts, points, states, numbers, *, paper, setting, num_steps, every, probes, batch):
    def one(params0, params, state):
        case = case_of(setting, data, params0, numbers)
        walked = leg(
            method_of(paper, setting, numbers, len(case.problem.X)),
            training_risk(paper.model(setting), case.problem, paper.loss),
            params,
            state,
            num_steps=num_steps,
            every=every,
            probes=chosen(paper, case, probes),
            train=trained(setting),
        )
        return walked.params, walked.state, walked.records

    return over_seeds(one, batch, starts, points, states)


@functools.partial(jax.jit, static_argnames=_STATIC)
def _last(data, starts, points, numbers, *, paper, setting, probes, batch):
    def one(params0, params):
        case = case_of(setting, data, params0, numbers)
        risk = training_risk(paper.model(setting), case.problem, paper.loss)
        return record(risk, chosen(paper, case, probes), params)

    return over_seeds(one, batch, starts, points)


@functools.partial(jax.jit, static_argnames=_STATIC)
def _apart(data, starts, *, points, numbers, paper, setting, probes, batch):
    """Probes without the risk."""

    def one(params0, params):
        case = case_of(setting, data, params0, numbers)
        found = record(lambda _: jnp.zeros(()), chosen(paper, case, probes), params)
        return {name: value for name, value in found.items() if name != "risk"}

    return over_seeds(one, batch, starts, points)


def numbers_of(paper: Paper, setting: Any) -> dict[str, Any]:
    """The numbers of a setting that a compiled program takes as arguments."""
    moving = trained(setting)
    speeds = {
        name: jnp.asarray(speed if moving is None or name in moving else 0.0, jnp.float64)
        for name, speed in paper.speeds(setting).items()
    }
    step = float("nan") if setting.step_size is None else setting.step_size
    return {"step_size": jnp.asarray(step, jnp.float64), "speeds": speeds}


def simulate(
    experiment: Experiment,
    probes: tuple[str, ...] = (),
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Trajectory:
    """Train every seed; all arrays of the trajectory have a leading axis of seeds.

    Small models leave cores idle, so each core takes a share of the seeds.
    ``progress(done, total)`` is called now and then with numbers of steps. A dear probe can be
    recorded more rarely than the risk: ``kernel_eigenvalues@50`` is every 50 steps (else NaN).
    """
    setting = experiment.setting
    if setting.step_size is None:
        msg = "step_size is not set; choose one, or use default_step."
        raise InputError(msg)
    require_whole_records(setting)
    stride = _stride(tuple(probes))
    if stride is not None and (stride % setting.every or setting.num_steps % stride):
        msg = (
            f"probes @{stride}: expected a multiple of every={setting.every} that divides "
            f"num_steps={setting.num_steps}."
        )
        raise InputError(msg)
    batch = _seeds_at_once(experiment)
    shares = _shares(experiment, batch)
    done, stopped, counting = [0] * len(shares), threading.Event(), threading.Lock()

    def one(k: int) -> Trajectory:
        def tell(steps: int, total: int) -> None:
            if stopped.is_set():
                raise InterruptedError
            with counting:
                done[k] = steps
                if progress is not None:
                    progress(sum(done) // len(done), total)

        return _simulate(shares[k], tuple(probes), batch, tell)

    if len(shares) == 1:
        runs = [one(0)]
    else:
        with ThreadPoolExecutor(len(shares)) as pool:
            try:
                runs = list(pool.map(one, range(len(shares))))
            except BaseException:
                stopped.set()
                raise
    count = len(experiment.seeds)
    return jax.tree.map(lambda *xs: jnp.concatenate(xs)[:count], *runs)


def _simulate(
    experiment: Experiment,
    probes: tuple[str, ...],
    batch: int,
    progress: Callable[[int, int], None],
) -> Trajectory:
    """The same for a share of the seeds; rare probes have a thread of their own."""
    paper, setting = experiment.paper, experiment.setting
    program = program_of(paper, setting)
    numbers = numbers_of(paper, setting)
    common = {"paper": paper, "setting": program, "batch": batch}
    often = tuple(name for name in probes if stride_of(name)[1] is None)
    rare = tuple(name for name in probes if stride_of(name)[1] is not None)
    starts = points = experiment.params0
    data = experiment.problem, experiment.held_out
    moving = {n: getattr(points, n) for n in trees.block_names(points, trained(setting))}

    def begin(blocks: Any, seed: Array) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), 2)  # data take fold 0, weights fold 1
        return method_of(paper, setting, numbers, len(data[0].X), key).init(blocks)

    states = jax.vmap(begin)(moving, jnp.asarray(experiment.seeds, jnp.uint32))
    records = []
    total, stride = setting.num_steps // setting.every, _stride(probes)
    legs = max(k for k in range(1, min(20, total) + 1) if total % k == 0)
    if stride is not None:  # rare probes look at where a leg begins, by a program of their own
        legs = setting.num_steps // stride
    look = functools.partial(_apart, data, starts, numbers=numbers, probes=rare, **common)
    with ThreadPoolExecutor(1) as beside:  # rare probes take what cores are idle during training
        for done in range(legs):
            apart = beside.submit(look, points=points) if rare else None
            points, states, seen = _leg(
                data,
                starts,
                points,
                states,
                numbers,
                num_steps=setting.num_steps // legs,
                every=setting.every,
                probes=often,
                **common,
            )
            jax.block_until_ready(points)
            if apart is not None:
                seen |= {k: _then_blank(x, total // legs) for k, x in apart.result().items()}
            records.append(seen)
            progress((done + 1) * setting.num_steps // legs, setting.num_steps)
    last = _last(data, starts, points, numbers, probes=probes, **common)
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=1), *records)
    run = jax.vmap(functools.partial(trajectory, every=setting.every))(joined, last, points)
    return run._replace(average=starts._replace(**states.mean)) if paper.averages else run


def _then_blank(values: Array, count: int) -> np.ndarray:
    """One record of every seed, and nothing for the others of a stride."""
    nothing = np.nan if np.issubdtype(values.dtype, np.inexact) else 0
    found = np.full((len(values), count, *values.shape[1:]), nothing, values.dtype)
    found[:, 0] = values
    return found


def probe_names(paper: Paper, setting: Any = None) -> tuple[str, ...]:
    """What can be recorded, without computing anything."""
    setting = paper.complete(paper.setting) if setting is None else setting
    network = paper.model(setting)
    shape = (setting.num_samples, setting.num_tokens, setting.dim)
    X: Any = jax.ShapeDtypeStruct(shape, jnp.float64)
    out = jax.eval_shape(network.apply, network.spec, jax.ShapeDtypeStruct(shape[1:], jnp.float64))
    rows = out.shape if paper.target(setting) == "Y" else ()
    y: Any = jax.ShapeDtypeStruct((shape[0], *rows), jnp.float64)
    names: list[str] = []

    def look(problem: Problem, params0: Params) -> None:
        case = case_of(setting, (problem, problem), params0, numbers_of(paper, setting))
        names.extend(paper.probes(case))

    jax.eval_shape(look, Problem(X, y), network.spec)
    return tuple(names)


def snapshots(experiment: Experiment, most: int = 100) -> dict[str, Array]:
    """The trained blocks along a run, of every seed, at no more than about ``most`` steps."""
    setting = experiment.setting
    every = spacing(setting.num_steps, most)
    run = simulate(experiment._replace(setting=setting._replace(every=every)), (ITERATES,))
    return {name.removeprefix(f"{ITERATES}_"): x for name, x in run.probes.items()}
