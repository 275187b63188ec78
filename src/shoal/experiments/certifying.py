"""Starts and runs confronted with theorems: default steps, allowed steps, certificates, endings."""

import functools
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal._typing import Any, Array, Callable, Float, Params
from shoal.certificates import Certificate
from shoal.diagnostics import dynamics
from shoal.errors import InputError
from shoal.experiments.nouns import ANY_METHOD, Case, Experiment, Paper, Theorem, trained
from shoal.experiments.running import Data, case_of, numbers_of, program_of
from shoal.models import empirical_risk, predict
from shoal.theory.kernel_regime import predicted_residual
from shoal.training import Trajectory


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


def _whole(run: Trajectory) -> dict[str, Any]:
    """Probes that were recorded at every record, not only now and then."""
    if run.risk.shape[1] < 2:
        return run.probes
    there = np.isfinite(np.asarray(run.risk[:, 1]))

    def skipped(values: Any) -> bool:
        second = np.asarray(values)[there, 1]
        return second.dtype.kind == "f" and second.size > 0 and bool(np.isnan(second).all())

    return {name: x for name, x in run.probes.items() if not skipped(x)}


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
