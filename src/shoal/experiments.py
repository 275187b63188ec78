"""What a paper brings to the laboratory, and how one setting of it is run and certified.

This is the outside of the library: here programs are compiled (``jit``) and seeds batched
(``vmap``). A program depends on shapes and on the choices of a setting, not on its numbers, so
another step size, seed or data set of the same shape does not compile again.
"""

import functools
import math
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import settings, trees
from shoal._typing import Any, Array, Callable, Float, Init, Params, Probe, Scalar
from shoal.certificates import Certificate
from shoal.claims import Claim
from shoal.errors import InputError, nearest
from shoal.figures import Figure
from shoal.files import read_npz
from shoal.linalg import require_float64
from shoal.methods import Method, gradient_descent, gradient_flow
from shoal.models import Model, empirical_risk, predict
from shoal.problems import Problem, checked, require_finite
from shoal.theory.kernel_regime import predicted_risk
from shoal.training import Trajectory, leg, record, trajectory

METHODS: dict[str, Callable[..., Method]] = {"gd": gradient_descent, "flow": gradient_flow}


ANY_METHOD = "any"  # of a theorem that speaks of the start only


class Case(NamedTuple):
    """One start of one setting: everything that a probe or a theorem may ask for."""

    setting: Any
    problem: Problem
    params0: Params
    step_size: Scalar
    speeds: dict[str, Scalar]  # step of each block over the step size; 0 if frozen
    drawn: bool  # the weights were drawn by the setting's initialisation, not given by the user


class Theorem(NamedTuple):
    """A statement that can be confronted with a run."""

    key: str  # as in `shoal certify PAPER.KEY`
    statement: str
    source: str
    method: str  # the method it speaks of, a key of METHODS or ANY_METHOD
    probes: tuple[str, ...]  # what to record to check all its conclusions
    needs: tuple[str, ...]  # of these, those without which nothing can be said
    certificate: Callable[[Case, Trajectory], Certificate]
    largest_step: Callable[[Case], Float[Array, ""]] | None  # NaN where no step is allowed


class FigureRecipe(NamedTuple):
    """How to make one of a paper's figures, at quick or full size."""

    key: str
    title: str
    make: Callable[[bool], Figure]  # argument: full size?


class Paper(NamedTuple):
    """All that shoal knows of a paper. A new paper is one such value."""

    key: str
    title: str
    authors: str
    year: int
    arxiv: str
    about: str
    setting: Any  # the defaults, a flat NamedTuple
    problem: Callable[[Any], Problem]
    model: Callable[[Any], Model]
    init: Callable[[Any], Init]
    loss: Callable[[Array, Array], Float[Array, ""]]
    sizes: Callable[[Params], dict[str, int]]  # settings that the shapes of parameters decide
    speeds: Callable[[Any], dict[str, Scalar]]
    kernel: Callable[[Case], Callable[[Params], Float[Array, "N N"]]]
    probes: Callable[[Case], dict[str, Probe]]
    default_probes: tuple[str, ...]
    theorems: tuple[Theorem, ...]
    claims: tuple[Claim, ...] = ()
    figures: tuple[FigureRecipe, ...] = ()


class Experiment(NamedTuple):
    """A setting made concrete: one problem, and a start for each seed."""

    paper: Paper
    setting: Any
    given: tuple[str, ...]  # names of the settings that the user chose
    problem: Problem
    params0: Params  # leading axis: seeds
    seeds: tuple[int, ...]
    precision: str
    drawn: bool = True  # initial weights come from the setting's initialisation


# ---------------------------------------------------------------------------------- preparing


def prepare(
    paper: Paper,
    values: Mapping[str, Any],
    *,
    seeds: Iterable[int] = (0,),
    data: str | Path | None = None,
    params: str | Path | None = None,
    precision: str = "float64",
) -> Experiment:
    """Turn a user's words into a problem and initial weights, or say what is wrong with them."""
    require_float64()
    if precision not in ("float64", "float32"):
        msg = f"precision={precision!r}: expected float64 or float32."
        raise InputError(msg)
    setting = settings.with_values(paper.setting, values, owner=paper.key)
    _require_whole_records(setting)
    if setting.method == "flow" and precision != "float64":
        msg = "method=flow needs --precision float64: its error control is finer than float32."
        raise InputError(msg)
    given = fixed = tuple(values)
    if data is not None:
        arrays = read_npz(data, ("X", "y"))
        problem = checked(arrays["X"], arrays["y"], where=str(data), precision=precision)
        setting = _adopt(setting, fixed, _problem_sizes(problem), str(data))
        fixed += tuple(_problem_sizes(problem))
    stored = _read_params(paper, params, precision) if params is not None else None
    if stored is not None:
        setting = _adopt(setting, fixed, paper.sizes(stored), str(params))
        fixed += tuple(paper.sizes(stored))
    trees.block_names(paper.model(setting).spec, _trained(setting))
    seeds = tuple(seeds) if stored is None else _seeds_of(stored, tuple(seeds))
    _refuse_giants(paper, setting, len(seeds))
    if data is None:
        problem = paper.problem(setting)
        setting = _adopt(setting, fixed, _problem_sizes(problem), f"problem={setting.problem}")
    if stored is not None:
        params0 = _matching(paper, setting, stored, str(params))
    else:
        params0 = initial_params(paper, setting, seeds)
    return Experiment(
        paper,
        setting,
        given,
        trees.cast(problem, precision),
        trees.cast(params0, precision),
        seeds,
        precision,
        drawn=stored is None,
    )


def _require_whole_records(setting: Any) -> None:
    if setting.num_steps % setting.every:
        fits = math.gcd(setting.num_steps, setting.every)
        msg = f"every={setting.every} does not divide num_steps={setting.num_steps}; try {fits}."
        raise InputError(msg)


def initial_params(paper: Paper, setting: Any, seeds: Iterable[int]) -> Params:
    """Initial weights of each seed, stacked along a leading axis."""
    init, spec = paper.init(setting), paper.model(setting).spec

    def draw(seed: Array) -> Params:
        return init(jax.random.fold_in(jax.random.key(seed), 1), spec)  # data take fold 0

    return jax.vmap(draw)(jnp.asarray(tuple(seeds), jnp.uint32))


def data_key(setting: Any) -> Array:
    """The key from which a setting's data are made; never that of any weights."""
    return jax.random.fold_in(jax.random.key(setting.data_seed), 0)


def _problem_sizes(problem: Problem) -> dict[str, int]:
    return dict(zip(("num_samples", "num_tokens", "dim"), problem.X.shape, strict=True))


def _adopt(setting: Any, fixed: tuple[str, ...], sizes: Mapping[str, int], where: str) -> Any:
    """Take sizes from data or weights; refuse if the user, or the other file, has others."""
    for name, size in sizes.items():
        if name in fixed and getattr(setting, name) != size:
            asked = getattr(setting, name)
            msg = f"{name}={asked}, but {where} has {size}; leave it out or match it."
            raise InputError(msg)
    return setting._replace(**sizes)


def _read_params(paper: Paper, path: str | Path, precision: str) -> Params:
    spec = paper.model(paper.setting).spec
    arrays = read_npz(path, spec._fields)
    for name, array in arrays.items():
        axes = getattr(spec, name).ndim
        if array.dtype.kind not in "fiu":
            msg = f"{path}: {name} holds {array.dtype}; expected real numbers."
            raise InputError(msg)
        require_finite(array, f"{path}: {name}", precision)
        if array.ndim not in (axes, axes + 1) or 0 in array.shape:
            msg = (
                f"{path}: {name} has shape {array.shape}; expected {axes} axes, "
                "or one more in front for seeds."
            )
            raise InputError(msg)
    stacked = {getattr(spec, name).ndim + 1 == a.ndim for name, a in arrays.items()}
    if len(stacked) > 1:
        msg = f"{path}: some arrays have a leading axis of seeds and some have not."
        raise InputError(msg)
    if len({a.shape[0] for a in arrays.values()}) > 1 and stacked == {True}:
        msg = f"{path}: the arrays have leading axes of different length; expected one of seeds."
        raise InputError(msg)
    lead = (lambda a: a) if stacked == {True} else (lambda a: a[None])
    return type(spec)(**{k: jnp.asarray(lead(a), jnp.float64) for k, a in arrays.items()})


def _seeds_of(stored: Params, seeds: tuple[int, ...]) -> tuple[int, ...]:
    count = len(jax.tree.leaves(stored)[0])
    if len(seeds) not in (1, count):
        msg = f"{len(seeds)} seeds, but the weights hold {count}; leave --seeds out or match it."
        raise InputError(msg)
    return seeds if len(seeds) == count else tuple(range(count))


def _matching(paper: Paper, setting: Any, stored: Params, where: str) -> Params:
    spec = paper.model(setting).spec
    count = len(jax.tree.leaves(stored)[0])
    for name, block in trees.blocks(spec).items():
        got = getattr(stored, name).shape
        if got != (count, *block.shape):
            msg = (
                f"{where}: {name} has shape {got[1:]}; with these data it should be {block.shape}."
            )
            raise InputError(msg)
    return stored


def _refuse_giants(paper: Paper, setting: Any, num_seeds: int) -> None:
    """Say so before the machine runs out of memory."""
    spec = paper.model(setting).spec
    weights = sum(leaf.size for leaf in jax.tree.leaves(spec))
    tokens = setting.num_samples * setting.num_tokens
    records = 32.0 * num_seeds * (setting.num_steps // setting.every)
    floats = 4.0 * num_seeds * weights + 4.0 * tokens * weights / setting.dim + tokens * setting.dim
    floats += records
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 8 * floats > have:
        msg = (
            f"this setting needs about {8 * floats / 2**30:.0f} GiB, and the machine has "
            f"{have / 2**30:.0f}; try fewer seeds, samples, tokens or records, or a smaller width."
        )
        raise InputError(msg)


def _trained(setting: Any) -> tuple[str, ...] | None:
    return None if setting.train == "all" else tuple(setting.train.split(","))


# ------------------------------------------------------------------------------------ running

_TRACED = ("step_size", "hidden_step_ratio", "num_steps", "data_seed", "label_scale")


def _program(setting: Any) -> Any:
    """The setting with every field reset that does not change the compiled program."""
    defaults = type(setting)._field_defaults
    return setting._replace(**{k: defaults[k] for k in _TRACED if k in defaults})


def _seeds_at_once(setting: Any, params0: Params) -> int:
    """How many seeds to batch: as many as keep activations below about a gibibyte."""
    one = sum(leaf[0].size for leaf in jax.tree.leaves(params0)) / setting.dim
    return max(1, int(2**27 / (4 * one * setting.num_samples * setting.num_tokens)))


def over_seeds(function: Callable, batch: int, *stacked: Any) -> Any:
    """``vmap`` over the leading axis, in batches if there are more seeds than fit."""
    count = len(jax.tree.leaves(stacked)[0])
    if count <= batch:
        return jax.vmap(function)(*stacked)
    return jax.lax.map(lambda args: function(*args), stacked, batch_size=batch)


_STATIC = ("paper", "setting", "probes", "batch")


def _case(
    setting: Any, problem: Problem, params0: Params, numbers: dict, *, drawn: bool = True
) -> Case:
    return Case(setting, problem, params0, numbers["step_size"], numbers["speeds"], drawn)


def _chosen(paper: Paper, case: Case, names: tuple[str, ...]) -> dict[str, Probe]:
    known = paper.probes(case)
    return {name: known[name] for name in names}


@functools.partial(jax.jit, static_argnames=(*_STATIC, "num_steps", "every"))
def _leg(
    problem, starts, points, states, numbers, *, paper, setting, num_steps, every, probes, batch
):
    def one(params0, params, state):
        case = _case(setting, problem, params0, numbers)
        walked = leg(
            METHODS[setting.method](case.step_size, case.speeds),
            empirical_risk(paper.model(setting), problem, paper.loss),
            params,
            state,
            num_steps=num_steps,
            every=every,
            probes=_chosen(paper, case, probes),
            train=_trained(setting),
        )
        return walked.params, walked.state, walked.records

    return over_seeds(one, batch, starts, points, states)


@functools.partial(jax.jit, static_argnames=_STATIC)
def _last(problem, starts, points, numbers, *, paper, setting, probes, batch):
    def one(params0, params):
        case = _case(setting, problem, params0, numbers)
        risk = empirical_risk(paper.model(setting), problem, paper.loss)
        return record(risk, _chosen(paper, case, probes), params)

    return over_seeds(one, batch, starts, points)


def numbers_of(paper: Paper, setting: Any) -> dict[str, Any]:
    """The numbers of a setting that a compiled program takes as arguments."""
    trained = _trained(setting)
    speeds = {
        name: jnp.asarray(speed if trained is None or name in trained else 0.0, jnp.float64)
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

    ``progress(done, total)`` is called now and then with numbers of steps.
    """
    paper, setting = experiment.paper, experiment.setting
    if setting.step_size is None:
        msg = "step_size is not set; choose one, or use default_step."
        raise InputError(msg)
    _require_whole_records(setting)
    program = _program(setting)
    numbers = numbers_of(paper, setting)
    common = {
        "paper": paper,
        "setting": program,
        "probes": tuple(probes),
        "batch": _seeds_at_once(setting, experiment.params0),
    }
    starts = points = experiment.params0
    method = METHODS[setting.method](numbers["step_size"], numbers["speeds"])
    moving = {n: getattr(points, n) for n in trees.block_names(points, _trained(setting))}
    states = jax.vmap(method.init)(moving)
    records = []
    total = setting.num_steps // setting.every
    legs = max(k for k in range(1, min(20, total) + 1) if total % k == 0)
    for done in range(legs):
        points, states, seen = _leg(
            experiment.problem,
            starts,
            points,
            states,
            numbers,
            num_steps=setting.num_steps // legs,
            every=setting.every,
            **common,
        )
        records.append(seen)
        if progress is not None:
            jax.block_until_ready(points)
            progress((done + 1) * setting.num_steps // legs, setting.num_steps)
    last = _last(experiment.problem, starts, points, numbers, **common)
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=1), *records)
    return jax.vmap(functools.partial(trajectory, every=setting.every))(joined, last, points)


# --------------------------------------------------------------------------------- certifying


def _per_start(experiment: Experiment, function: Callable[[Case], Any]) -> Any:
    """Evaluate a function of one start on every seed, one after the other, compiled once."""
    numbers = numbers_of(experiment.paper, experiment.setting)
    program = _program(experiment.setting)

    @jax.jit
    def every(problem, starts, numbers):
        return jax.lax.map(lambda p: function(_case(program, problem, p, numbers)), starts)

    return every(
        trees.cast(experiment.problem, "float64"),
        trees.cast(experiment.params0, "float64"),
        numbers,
    )


def kernel_predictions(experiment: Experiment, step: Array) -> Float[Array, "S T"]:
    """For every seed, the risk that the tangent kernel at the start predicts at some steps."""
    paper = experiment.paper

    def one(case: Case) -> Float[Array, " T"]:
        outputs = predict(paper.model(case.setting), case.params0, case.problem.X)
        K0 = paper.kernel(case)(case.params0)
        return predicted_risk(K0, outputs - case.problem.y, case.step_size, step)

    return _per_start(experiment, one)


def default_step(experiment: Experiment) -> float:
    r"""Half of $1/\lambda_{\max}(K_0)$, the smallest over seeds.

    A quarter of the limit $2/\lambda_{\max}$ at which the linearised run turns unstable. Neither
    necessary nor sufficient for convergence of the real one: kernels grow along some runs.
    """
    tops = _per_start(
        experiment,
        lambda case: jnp.linalg.eigvalsh(experiment.paper.kernel(case)(case.params0))[-1],
    )
    top = float(jnp.max(tops))
    return 0.5 / top if np.isfinite(top) and top > 0 else 1.0


def allowed_step(experiment: Experiment, theorem: Theorem) -> float | None:
    """The largest step that a theorem allows for all the seeds to which it applies."""
    if theorem.largest_step is None:
        return None
    steps = np.asarray(_per_start(experiment, theorem.largest_step))
    return float(steps[np.isfinite(steps)].min()) if np.isfinite(steps).any() else None


def certify(experiment: Experiment, theorem: Theorem, run: Trajectory) -> list[Certificate]:
    """Confront a theorem with every seed of a run. Bounds are computed in float64."""
    if theorem.method not in (ANY_METHOD, experiment.setting.method):
        msg = (
            f"{theorem.key} speaks of method={theorem.method}, and this run used "
            f"method={experiment.setting.method}; train with --set method={theorem.method}."
        )
        raise InputError(msg)
    if missing := [name for name in theorem.needs if name not in run.probes]:
        lacking = ",".join(missing)
        msg = f"{theorem.key} needs {lacking}, not recorded; train with --probes +{lacking}."
        raise InputError(msg)
    numbers = numbers_of(experiment.paper, experiment.setting)
    program = _program(experiment.setting)

    @jax.jit
    def every(problem, starts, numbers, run):
        def one(args):
            params0, seen = args
            case = _case(program, problem, params0, numbers, drawn=experiment.drawn)
            found = theorem.certificate(case, seen)
            # jax returns plain dicts sorted; the order of the theorem is the reader's
            return found._replace(
                hypotheses=OrderedDict(found.hypotheses),
                conclusions=OrderedDict(found.conclusions),
                constants=OrderedDict(found.constants),
            )

        return jax.lax.map(one, (starts, run))

    stacked = every(
        trees.cast(experiment.problem, "float64"),
        trees.cast(experiment.params0, "float64"),
        numbers,
        run._replace(params=()),
    )
    stacked = jax.tree.map(np.asarray, stacked)
    return [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(len(experiment.seeds))]


def theorem_of(paper: Paper, key: str) -> Theorem:
    """A theorem by its key."""
    for theorem in paper.theorems:
        if theorem.key == key:
            return theorem
    msg = f"{paper.key} has no theorem {key!r}; {nearest(key, [t.key for t in paper.theorems])}"
    raise InputError(msg)


def probe_names(paper: Paper) -> tuple[str, ...]:
    """What can be recorded, without computing anything."""
    setting = paper.setting
    spec = paper.model(setting).spec
    shape = (setting.num_samples, setting.num_tokens, setting.dim)
    X: Any = jax.ShapeDtypeStruct(shape, jnp.float64)
    y: Any = jax.ShapeDtypeStruct(shape[:1], jnp.float64)
    names: list[str] = []

    def look(problem: Problem, params0: Params) -> None:
        case = _case(setting, problem, params0, numbers_of(paper, setting))
        names.extend(paper.probes(case))

    jax.eval_shape(look, Problem(X, y), spec)
    return tuple(names)
