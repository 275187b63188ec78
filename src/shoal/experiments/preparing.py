"""From a user's words to a problem and initial weights, or to what is wrong with the words."""

import functools
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal import settings, trees
from shoal._typing import Any, Array, Params
from shoal.errors import InputError
from shoal.experiments.nouns import Experiment, Paper, trained
from shoal.files import npz_names, read_npz
from shoal.linalg import require_float64
from shoal.problems import Problem, checked, require_finite


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
    setting = paper.complete(settings.with_values(paper.setting, values, owner=paper.key))
    require_whole_records(setting)
    if setting.method == "flow" and precision != "float64":
        msg = "method=flow needs --precision float64: its error control is finer than float32."
        raise InputError(msg)
    given = fixed = tuple(values)
    if data is not None:
        problem, held_out = read_problem(
            data, paper.target(setting), precision, queries=paper.queries
        )
        setting = paper.complete(paper.from_file(setting))
        check_problem(paper, setting, problem, held_out)
        setting = _adopt(setting, fixed, _problem_sizes(problem, setting), str(data))
        fixed += tuple(_problem_sizes(problem, setting))
    spec = paper.model(setting).spec
    stored = _read_params(spec, params, precision) if params is not None else None
    if stored is not None:
        setting = _adopt(setting, fixed, paper.sizes(stored), str(params))
        fixed += tuple(paper.sizes(stored))
    trees.block_names(paper.model(setting).spec, trained(setting))
    seeds = tuple(seeds) if stored is None else _seeds_of(stored, tuple(seeds))
    refuse_giants(paper, setting, len(seeds))
    if data is None:
        problem, held_out = paper.problem(setting), paper.held_out(setting)
        setting = _adopt(
            setting, fixed, _problem_sizes(problem, setting), f"problem={setting.problem}"
        )
    setting = paper.complete(setting)
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
        held_out=None if held_out is None else trees.cast(held_out, precision),
    )


def read_problem(
    path: str | Path, target: str, precision: str = "float64", *, queries: bool = False
) -> tuple[Problem, Problem | None]:
    """The problem in a file, and the held-out data, if there are any (``X_test`` and targets).

    ``queries``: the model takes a query ``q`` with each sequence, if the file has them.
    """
    there = set(npz_names(path))

    def read(end: str) -> Problem:
        asked = [f"q{end}"] if queries and f"q{end}" in there else []
        names = (f"X{end}", f"{target}{end}", *asked)
        where = str(path) + (" (test)" if end else "")
        arrays = read_npz(path, names).values()
        return checked(*arrays, where=where, precision=precision, target=target)

    problem = read("")
    if not {"X_test", f"{target}_test"} & there:
        return problem, None
    test = read("_test")
    if test.X.shape[1:] != problem.X.shape[1:] or test.y.shape[1:] != problem.y.shape[1:]:
        msg = f"{path}: X_test has shape {test.X.shape}; except for the samples it should be X's."
        raise InputError(msg)
    return problem, test


def check_problem(paper: Paper, setting: Any, problem: Problem, held_out: Problem | None) -> None:
    """Let the paper refuse data from outside, and see that targets are what the model puts out."""
    network = paper.model(setting)
    x = jax.ShapeDtypeStruct((setting.num_tokens, setting.dim), jnp.float64)
    rows = len(jax.eval_shape(network.apply, network.spec, x).shape)
    for part in (problem, held_out):
        if part is None:
            continue
        if paper.target(setting) == "Y" and part.y.ndim != 1 + rows:
            kind = ("a row a sample", "a row a token")[rows - 1]
            msg = f"Y has shape {part.y.shape}; this model puts out {kind}."
            raise InputError(msg)
        paper.check(setting, part)


def problem_arrays(experiment: Experiment) -> dict[str, Array]:
    """A problem under the names of a problem file."""
    target = experiment.paper.target(experiment.setting)
    parts = {"": experiment.problem, "_test": experiment.held_out}
    return {
        f"{name}{end}": array
        for end, part in parts.items()
        if part is not None
        for name, array in zip(("X", target, "q"), part, strict=True)
        if array is not None
    }


def require_whole_records(setting: Any) -> None:
    """Refuse a number of steps that does not end with a record."""
    if setting.num_steps % setting.every:
        fits = math.gcd(setting.num_steps, setting.every)
        msg = f"every={setting.every} does not divide num_steps={setting.num_steps}; try {fits}."
        raise InputError(msg)


def initial_params(paper: Paper, setting: Any, seeds: Iterable[int]) -> Params:
    """Initial weights of each seed, stacked along a leading axis."""
    defaults = type(setting)._field_defaults
    setting = setting._replace(**{k: defaults[k] for k in paper.traced if k in defaults})
    return _drawn(jnp.asarray(tuple(seeds), jnp.uint32), paper, setting)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _drawn(seeds: Array, paper: Paper, setting: Any) -> Params:
    init, spec = paper.init(setting), paper.model(setting).spec

    def draw(seed: Array) -> Params:
        return init(jax.random.fold_in(jax.random.key(seed), 1), spec)  # data take fold 0

    return jax.vmap(draw)(seeds)


def _problem_sizes(problem: Problem, setting: Any) -> dict[str, int]:
    sizes = dict(zip(("num_samples", "num_tokens", "dim"), problem.X.shape, strict=True))
    outputs = problem.y.ndim > 1 and "out_dim" in setting._fields
    return sizes | ({"out_dim": problem.y.shape[-1]} if outputs else {})


def _adopt(setting: Any, fixed: tuple[str, ...], sizes: Mapping[str, int], where: str) -> Any:
    """Take sizes from data or weights; refuse if the user, or the other file, has others."""
    for name, size in sizes.items():
        if name in fixed and getattr(setting, name) != size:
            asked = getattr(setting, name)
            msg = f"{name}={asked}, but {where} has {size}; leave it out or match it."
            raise InputError(msg)
    return setting._replace(**sizes)


def _read_params(spec: Params, path: str | Path, precision: str) -> Params:
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


def refuse_giants(paper: Paper, setting: Any, num_seeds: int) -> None:
    """Say so before the machine runs out of memory."""
    spec = paper.model(setting).spec
    weights = sum(leaf.size for leaf in jax.tree.leaves(spec))
    tokens = setting.num_samples * setting.num_tokens
    records = 32.0 * num_seeds * (setting.num_steps // setting.every)
    floats = 4.0 * num_seeds * weights + activations(paper, setting, weights) + tokens * setting.dim
    floats += records
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 8 * floats > have:
        msg = (
            f"this setting needs about {8 * floats / 2**30:.0f} GiB, and the machine has "
            f"{have / 2**30:.0f}; try fewer seeds, samples, tokens or records, or a smaller width."
        )
        raise InputError(msg)


def activations(paper: Paper, setting: Any, weights: int) -> float:
    """How many numbers a step of one seed holds, roughly; ``weights`` is its number of weights."""
    known = paper.activations(setting)
    if known is not None:
        return known
    return 4.0 * setting.num_samples * setting.num_tokens * weights / setting.dim
