"""Running and certifying: here programs are compiled (``jit``) and seeds batched (``vmap``).

A program depends on shapes and on the choices of a setting, not on its numbers, so another step
size, seed or data set of the same shape does not compile again.
"""

import functools
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal._typing import Any, Array, Callable, Float, Params, PRNGKeyArray, Probe
from shoal.certificates import Certificate
from shoal.diagnostics import dynamics
from shoal.errors import InputError
from shoal.experiments.nouns import ANY_METHOD, Case, Experiment, Paper, Theorem, trained
from shoal.experiments.preparing import activations, require_whole_records
from shoal.methods import (
    Method,
    adam,
    averaging,
    gradient_descent,
    gradient_flow,
    on_batches,
)
from shoal.models import empirical_risk, predict, training_risk
from shoal.problems import Problem
from shoal.programs import cores
from shoal.theory.kernel_regime import predicted_residual
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
    if at and not (stride.isascii() and stride.isdigit() and int(stride) > 0):
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


def _whole(run: Trajectory) -> dict[str, Any]:
    """Probes that were recorded at every record, not only now and then."""
    if run.risk.shape[1] < 2:
        return run.probes
    there = np.isfinite(np.asarray(run.risk[:, 1]))

    def skipped(values: Any) -> bool:
        second = np.asarray(values)[there, 1]
        return second.dtype.kind == "f" and second.size > 0 and bool(np.isnan(second).all())

    return {name: x for name, x in run.probes.items() if not skipped(x)}


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
    """The same for a share of the seeds, on one thread."""
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
    if stride is not None:  # rare probes are looked at between legs, by a program of their own
        legs = setting.num_steps // stride
    for done in range(legs):
        apart = {}
        if rare:
            apart = _last(data, starts, points, numbers, probes=rare, **common)
            apart.pop("risk")
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
        records.append(seen | {k: _then_blank(x, total // legs) for k, x in apart.items()})
        jax.block_until_ready(points)
        progress((done + 1) * setting.num_steps // legs, setting.num_steps)
    last = _last(data, starts, points, numbers, probes=probes, **common)
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=1), *records)
    run = jax.vmap(functools.partial(trajectory, every=setting.every))(joined, last, points)
    return run._replace(average=starts._replace(**states.mean)) if paper.averages else run


def _then_blank(values: Array, count: int) -> Array:
    """One record of every seed, and nothing for the others of a stride."""
    nothing = jnp.nan if jnp.issubdtype(values.dtype, jnp.inexact) else 0
    shape = (len(values), count - 1, *values.shape[1:])
    return jnp.concatenate([values[:, None], jnp.full(shape, nothing, values.dtype)], axis=1)


# --------------------------------------------------------------------------------- certifying


def _per_start(experiment: Experiment, function: Callable, *extra: Any) -> Any:
    """Evaluate ``function(paper, case, *extra)`` on every seed, one after the other.

    The function should be one of a module, not made anew: a program is compiled for each.
    """
    return _every_start(
        _exact_data(experiment),
        trees.cast(experiment.params0, "float64"),
        numbers_of(experiment.paper, experiment.setting),
        extra,
        function=function,
        paper=experiment.paper,
        setting=program_of(experiment.paper, experiment.setting),
    )


@functools.partial(jax.jit, static_argnames=("function", "paper", "setting"))
def _every_start(data, starts, numbers, extra, *, function, paper, setting):
    def one(params0):
        return function(paper, case_of(setting, data, params0, numbers), *extra)

    return jax.lax.map(one, starts)


def _exact_data(experiment: Experiment) -> Data:
    return trees.cast((experiment.problem, experiment.held_out), "float64")


def has_kernel(experiment: Experiment) -> bool:
    """Does the paper know the tangent kernel of this setting's model?"""
    numbers = numbers_of(experiment.paper, experiment.setting)
    start = jax.tree.map(lambda x: x[0], experiment.params0)
    data = experiment.problem, experiment.held_out
    return experiment.paper.kernel(case_of(experiment.setting, data, start, numbers)) is not None


def kernel_predictions(experiment: Experiment, step: Array) -> Float[Array, "S T"]:
    """For every seed, the risk that the tangent kernel at the start predicts at some steps."""
    return _per_start(experiment, _predicted, step)


def _predicted(paper: Paper, case: Case, step: Array) -> Float[Array, " T"]:
    outputs = predict(paper.model(case.setting), case.params0, case.problem.inputs)
    K0 = _kernel(paper, case)(case.params0)
    y = case.problem.y
    e = predicted_residual(K0, (outputs - y).ravel(), case.step_size, step)
    return jax.vmap(lambda r: paper.loss(y + r.reshape(y.shape), y))(e)


def _kernel(paper: Paper, case: Case) -> Callable[[Params], Float[Array, "K K"]]:
    kernel = paper.kernel(case)
    if kernel is None:
        msg = "this setting has no tangent kernel to choose a step from; set step_size."
        raise InputError(msg)
    return kernel


def default_step(experiment: Experiment) -> float:
    r"""The paper's usual step, or half of $1/\lambda_{\max}(K_0)$; the smallest over seeds.

    The latter is a quarter of the limit $2/\lambda_{\max}$ at which the linearised run turns
    unstable. Neither necessary nor sufficient for convergence of the real one: kernels grow along
    some runs.
    """
    return float(jnp.min(_per_start(experiment, usual_step)))


def usual_step(paper: Paper, case: Case) -> Float[Array, ""]:
    """The default step of one start, as a compiled program can choose it."""
    usual = paper.usual_step(case)
    if usual is not None:
        return jnp.asarray(usual, float)
    top = jnp.linalg.eigvalsh(_kernel(paper, case)(case.params0))[-1]
    return jnp.where(jnp.isfinite(top) & (top > 0), 0.5 / top, 1.0)


def allowed_step(experiment: Experiment, theorem: Theorem) -> float | None:
    """The largest step that a theorem allows for all the seeds to which it applies."""
    if theorem.largest_step is None:
        return None
    steps = allowed_steps(experiment, theorem)
    return float(steps[np.isfinite(steps)].min()) if np.isfinite(steps).any() else None


def allowed_steps(experiment: Experiment, theorem: Theorem) -> np.ndarray:
    """For every seed, the largest step that a theorem allows; NaN where it does not apply."""
    if theorem.largest_step is None:
        msg = f"{experiment.paper.key}.{theorem.key} does not say which steps it allows."
        raise InputError(msg)
    return np.asarray(_per_start(experiment, _of_case(theorem.largest_step)))


@functools.lru_cache
def _of_case(function: Callable[[Case], Any]) -> Callable[[Paper, Case], Any]:
    """The same function for `_per_start`: one for each, so that its program is found again."""
    return lambda _, case: function(case)


def require_covered(paper: Paper, setting: Any, theorem: Theorem) -> None:
    """Refuse a theorem that does not speak of this kind of model at all."""
    if not theorem.covers(setting):
        name = f"{paper.key}.{theorem.key}"
        msg = f"{name} does not speak of this model; see docs/theory/{paper.key}.md."
        raise InputError(msg)


def require_method(setting: Any, theorem: Theorem) -> None:
    """Refuse a theorem that speaks of another way of training."""
    if theorem.method not in (ANY_METHOD, setting.method):
        msg = (
            f"{theorem.key} speaks of method={theorem.method}, and this run used "
            f"method={setting.method}; train with --set method={theorem.method}."
        )
        raise InputError(msg)


def certify(experiment: Experiment, theorem: Theorem, run: Trajectory) -> list[Certificate]:
    """Confront a theorem with every seed of a run. Bounds are computed in float64."""
    require_method(experiment.setting, theorem)
    require_covered(experiment.paper, experiment.setting, theorem)
    run = run._replace(probes=_whole(run))
    if missing := [name for name in theorem.needs if name not in run.probes]:
        lacking = ",".join(missing)
        msg = f"{theorem.key} needs {lacking}, not recorded; train with --probes +{lacking}."
        raise InputError(msg)
    stacked = _certificates(
        _exact_data(experiment),
        trees.cast(experiment.params0, "float64"),
        numbers_of(experiment.paper, experiment.setting),
        run._replace(params=()),
        theorem=theorem,
        setting=program_of(experiment.paper, experiment.setting),
        drawn=experiment.drawn,
    )
    stacked = jax.tree.map(np.asarray, stacked)
    return [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(len(experiment.seeds))]


@functools.partial(jax.jit, static_argnames=("theorem", "setting", "drawn"))
def _certificates(data, starts, numbers, run, *, theorem, setting, drawn):
    def one(args):
        params0, seen = args
        found = theorem.certificate(case_of(setting, data, params0, numbers, drawn=drawn), seen)
        # jax returns plain dicts sorted; the order of the theorem is the reader's
        return found._replace(
            hypotheses=OrderedDict(found.hypotheses),
            conclusions=OrderedDict(found.conclusions),
            constants=OrderedDict(found.constants),
        )

    return jax.lax.map(one, (starts, run))


def endings(experiment: Experiment, run: Trajectory) -> dict[str, Array] | None:
    """Where every seed came to rest: solved, slow, stuck or at a saddle (`dynamics.stationarity`).

    None for a paper or a model whose lowest risk is not known.
    """
    paper, setting = experiment.paper, experiment.setting
    program, numbers = program_of(paper, setting), numbers_of(experiment.paper, setting)
    data = _exact_data(experiment)
    first = jax.tree.map(lambda x: x[0], experiment.params0)
    if paper.floor(case_of(program, data, first, numbers)) is None:
        return None

    @jax.jit
    def every(data, starts, points, numbers, first_risk):
        def one(args):
            params0, params, scale = args
            case = case_of(program, data, params0, numbers)
            risk = empirical_risk(paper.model(program), case.problem, paper.loss)
            lowest: Any = paper.floor(case)
            probe = dynamics.stationarity(risk, lowest, train=trained(program), scale=scale)
            return probe(params)

        return jax.lax.map(one, (starts, points, first_risk))

    starts, points = (trees.cast(p, "float64") for p in (experiment.params0, run.params))
    return every(data, starts, points, numbers, run.risk[:, 0].astype(jnp.float64))


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
