"""A setup: model, data, loss and initial weights, ready to train. Where it came from is forgotten.

`paper_setup` makes one from a paper's setting, `own_setup` from any JAX function. A setup holds one
problem and a start for every seed: ``params0`` and ``step_size`` have a leading axis of seeds. What
a theorem, a probe or a kernel is given is *one* start, the same class without that axis.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import models, trees
from shoal.diagnostics.kernels import total_kernel
from shoal.errors import InputError
from shoal.files import read_weights
from shoal.lab.memory import refuse_giants
from shoal.lab.setting import with_values
from shoal.models import Model
from shoal.problems import read_problem, require_finite
from shoal.runtime import in_float64, numpy_tree

if TYPE_CHECKING:
    from shoal.lab.paper import Paper

DATA, WEIGHTS, BATCHES = 0, 1, 2
"""What a seed's keys are for. This is the only place where seeds become keys."""


def key_of(seed: Any, purpose: int) -> Any:
    """The key of a seed for data, weights or batches."""
    return jax.random.fold_in(jax.random.key(jnp.asarray(seed, jnp.uint32)), purpose)


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """Model, data, loss and initial weights (see the top of this module)."""

    setting: Any
    problem: Any
    params0: Any
    seeds: tuple[int, ...] = ()
    step_size: Any = None  # One number per seed; None until it is chosen.
    held_out: Any = None  # Data that training does not see.
    precision: str = "float64"
    overrides: tuple[str, ...] = ()  # Names of the settings that the user chose.
    from_init: bool = True  # The weights were drawn by the setting, not given.
    stacked: tuple[str, ...] = ("params0", "step_size")  # What has one entry per run.
    own_probes: tuple[tuple[str, Callable], ...] = ()  # The user's, by name (see `lab.probes`).

    # ------------------------------------------------------------------------- what it consists of

    @property
    def paper(self) -> "Paper | None":
        """The paper whose setting this is, if any."""
        return type(self.setting).paper

    @property
    def name(self) -> str:
        """The paper's key, or the name of the user's function."""
        return self.paper.key if self.paper else self.setting.label

    @property
    def network(self) -> Model:
        """The model."""
        return self.setting.network()

    @property
    def has_samples(self) -> bool:
        """Whether the risk is a loss of outputs on samples, and not an objective of its own."""
        return self.setting.objective is None

    def _samples(self) -> Any:
        if not self.has_samples:
            msg = f"{self.name} has no samples: its risk is a function of the parameters alone."
            raise InputError(msg)
        return self.problem

    @property
    def inputs(self) -> Any:
        """What the model sees."""
        return self._samples().inputs

    @property
    def targets(self) -> Any:
        """What the outputs are compared with."""
        return self._samples().y

    @property
    def squares_weight(self) -> float | None:
        """The c of a loss that is c times the sum of squared errors; None for other losses."""
        return models.squares_weight(self.setting.loss, self.targets.size)

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the blocks that move."""
        return trained_blocks(self.setting, self.params0)

    def moving(self, params: Any) -> dict[str, Any]:
        """The blocks that move, by name."""
        names = self.trained
        return {name: W for name, W in trees.blocks(params).items() if name in names}

    @property
    def step_ratios(self) -> dict[str, Any]:
        """Step of each block over the step size; 0 for a block that does not move."""
        ratios, names = self.setting.step_ratios(), trees.blocks(self.params0)
        return dict.fromkeys(names, 0.0) | {name: ratios.get(name, 1.0) for name in self.trained}

    @property
    def risk(self) -> Any:
        """The risk as a function of the parameters, differentiable twice."""
        return self._risk(models.empirical_risk)

    @property
    def fast_risk(self) -> Any:
        """The same number by the fastest way: for training steps, not for Hessians."""
        return self._risk(models.training_risk)

    @property
    def value_risk(self) -> Any:
        """The same number by the fastest way, if no derivative is wanted."""
        return self._risk(models.value_risk)

    def _risk(self, make: Callable) -> Any:
        if self.has_samples:
            return make(self.network, self.problem, self.setting.loss)
        return lambda params, *_: self.setting.objective(params, self.problem)

    @property
    def num_outputs(self) -> int:
        """Numbers that the model puts out for all samples together."""
        if self.squares_weight is not None:
            return self.targets.size
        shape = jax.eval_shape(lambda p: models.predict(self.network, p, self.inputs), self.params0)
        return shape.size

    def kernel(self) -> Any:
        r"""The kernel that drives the outputs, $2c\sum_*r_*K_*$ for a loss $c\sum(f-y)^2$, or None.

        Gradient descent moves the outputs by $-\gamma Ke$ to first order, $e$ the residual.
        """
        if not self.has_samples or self.squares_weight is None:
            return None
        return self.tangent_kernel()

    def tangent_kernel(self) -> Any:
        r"""As `kernel`, and for another loss $\sum_*r_*K_*$; None if it is too large to be formed.

        Gradient descent moves the outputs by $-\gamma K\nabla\ell$ to first order, $\nabla\ell$ the
        gradient of the loss in the outputs.
        """
        if (parts := self.setting.block_kernels(self)) is None:
            return None
        total, weight = total_kernel(parts, self.step_ratios), self.squares_weight
        return total if weight is None else lambda params: 2 * weight * total(params)

    # ----------------------------------------------------------------------------- changed copies

    def replace(self, **changes: Any) -> "Setup":
        """Return a copy with some parts changed."""
        return dataclasses.replace(self, **changes)

    def with_setting(self, **changes: Any) -> "Setup":
        """Return a copy with some settings changed, unchecked."""
        return self.replace(setting=self.setting.replace(**changes))

    def with_steps(self, step_size: Any) -> "Setup":
        """Return a copy with one step size for every seed, or one for each."""
        steps = np.broadcast_to(np.asarray(step_size, np.float64), (self.num_runs,)).copy()
        return self.replace(step_size=steps)

    def astype(self, precision: str) -> "Setup":
        """Return a copy in another precision."""
        names = "problem", "params0", "held_out"
        parts = {name: trees.cast(getattr(self, name), precision) for name in names}
        return self.replace(**parts, precision=precision)

    @property
    def num_runs(self) -> int:
        """Length of the leading axis."""
        return len(jax.tree.leaves(self.params0)[0])

    def parts(self) -> dict[str, Any]:
        """What has one entry per run; ``values`` are the setting's traced numbers."""
        found = {k: getattr(self, k) for k in self.stacked if getattr(self, k, None) is not None}
        if "values" in self.stacked:
            values = self.setting.split()[1].items()
            found["values"] = {k: v for k, v in values if np.ndim(jax.tree.leaves(v)[0])}
        return found

    def with_parts(self, parts: Mapping[str, Any]) -> "Setup":
        """Return a copy with other entries: of one run, or of some."""
        values = parts.get("values", {})
        rest = {name: part for name, part in parts.items() if name != "values"}
        return self.replace(setting=self.setting.replace(**values), **rest)

    def rows(self, rows: Iterable[int]) -> "Setup":
        """Return some of the runs."""
        chosen = np.asarray(tuple(rows))
        seeds = tuple(self.seeds[k] for k in chosen) if self.seeds else ()
        some = jax.tree.map(lambda x: np.asarray(x)[chosen], self.parts())
        return self.with_parts(some).replace(seeds=seeds)

    def one(self, row: int = 0) -> "Setup":
        """Return one run, without the leading axis."""
        parts = jax.tree.map(lambda x: np.asarray(x)[row], self.parts())
        return self.with_parts(parts).replace(seeds=())

    @in_float64
    def abstractly(self, look: Callable[["Setup"], Any]) -> Any:
        """``look(start)`` of one start with shapes in place of numbers: nothing is computed."""
        found: list[Any] = []
        jax.eval_shape(lambda one: found.append(look(one)), self.one())
        return found[0]

    def __repr__(self) -> str:
        from shoal.console import setup_text

        return setup_text(self)


def _flatten(setup: Setup) -> tuple:
    key, values = setup.setting.split()
    values.pop("step_size", None)
    numbers = jax.tree.map(lambda value: _number(value, setup.precision), values)
    parts = (numbers, setup.problem, setup.params0, setup.step_size, setup.held_out)
    about = setup.precision, setup.from_init, setup.stacked, setup.own_probes
    return parts, (key.replace(step_size=None), *about)


def _number(value: Any, precision: str) -> Any:
    """A traced number in the working precision; seeds and counts stay whole."""
    if not isinstance(value, float | int | np.ndarray):  # such as what JAX traces
        return value
    number = np.asarray(value)
    return number.astype(precision) if number.dtype.kind == "f" else number


def _unflatten(about: tuple, parts: tuple) -> Setup:
    key, precision, from_init, stacked, own = about
    numbers, problem, params0, step_size, held_out = parts
    about = step_size, held_out, precision, (), from_init, stacked, own
    return Setup(key.replace(**numbers), problem, params0, (), *about)


jax.tree_util.register_pytree_node(Setup, _flatten, _unflatten)


# ----------------------------------------------------------------------------------- from a paper


@in_float64
def paper_setup(
    paper: "Paper",
    values: Mapping[str, Any],
    *,
    seeds: Iterable[int] = (0,),
    data: str | Path | None = None,
    params: str | Path | None = None,
    precision: str = "float64",
) -> Setup:
    """Turn a user's words into a problem and initial weights, or say what is wrong with them."""
    setting = completed(paper, values)
    require_precision(precision, setting)
    overrides = fixed = tuple(values)
    problem = held_out = None
    if data is not None:
        problem, held_out = read_problem(data, setting.target(), precision, queries=setting.queries)
        setting = setting.from_file().complete()
        check_problem(setting, problem, held_out)
        setting, fixed = _adopt(setting, fixed, _problem_sizes(problem, setting), data)
    stored = None
    if params is not None:
        stored = read_params(setting.network().spec, params, precision)
        setting, fixed = _adopt(setting, fixed, _weight_sizes(setting, stored), params)
    trained_blocks(setting, setting.network().spec)  # refuses names that select nothing
    seeds = seed_numbers(seeds)
    seeds = seeds if stored is None else _seeds_of(stored, seeds)
    refuse_giants(setting, len(seeds), problem)
    if problem is None:
        problem, held_out = make_data(setting)
        where = f"problem={getattr(setting, 'problem', 'data')}"
        setting, _ = _adopt(setting, fixed, _problem_sizes(problem, setting), where)
    setting = setting.complete()
    if stored is not None:
        _require_shapes(setting.network().spec, stored, params)
    params0 = draw_weights(setting, seeds) if stored is None else stored
    made = Setup(
        setting, problem, params0, seeds, held_out=held_out, overrides=overrides,
        from_init=stored is None,
    ).astype(precision)  # fmt: skip
    return made if setting.step_size is None else made.with_steps(setting.step_size)


def completed(paper: "Paper", values: Mapping[str, Any]) -> Any:
    """A paper's setting with a user's values, complete and checked."""
    setting = with_values(paper.setting(), values, owner=paper.key).complete()
    require_whole_records(setting.num_steps, setting.every)
    return setting


def require_precision(precision: str, setting: Any) -> None:
    """Refuse an unknown precision, and one that the method cannot work in."""
    if precision not in ("float64", "float32"):
        raise InputError(f"precision={precision!r}: expected float64 or float32.")
    if setting.method == "flow" and precision != "float64":
        raise InputError("method=flow needs float64: its error control is finer than float32.")


def trained_blocks(setting: Any, params: Any) -> tuple[str, ...]:
    """Names of the blocks that move; a name or pattern that selects nothing is refused."""
    return trees.block_names(params, None if setting.train == "all" else setting.train.split(","))


def require_whole_records(num_steps: int, every: int) -> None:
    """Refuse a number of steps that does not end with a record."""
    if num_steps % every:
        fits = int(np.gcd(num_steps, every))
        raise InputError(f"every={every} does not divide num_steps={num_steps}; try {fits}.")


@in_float64
def make_data(setting: Any) -> tuple[Any, Any]:
    """The problem of a setting, and its held-out data: always from the same compiled program."""
    program = untrained(setting).split(for_data=True)
    made = numpy_tree(_data(setting) if setting.reads_files() else _made(*program))
    if setting.objective is None and not hasattr(made[0], "inputs"):
        kind, owner = type(made[0]).__name__, type(setting).__name__
        raise InputError(f"{owner}.data returns {kind}; expected a sh.Problem.")
    return made


def _data(setting: Any) -> tuple[Any, Any]:
    key = key_of(setting.data_seed, DATA)
    return setting.data(key), setting.test_data(key)


@functools.partial(jax.jit, static_argnums=0)
def _made(program: Any, numbers: dict[str, Any]) -> tuple[Any, Any]:
    return _data(program.replace(**numbers))


@in_float64
def draw_weights(setting: Any, seeds: Iterable[int]) -> Any:
    """Initial weights of each seed, along a leading axis."""
    program = untrained(setting).split(for_data=True)
    return numpy_tree(_drawn(*program, np.asarray(tuple(seeds), np.uint32)))


@functools.partial(jax.jit, static_argnums=0)
def _drawn(program: Any, numbers: dict[str, Any], seeds: Any) -> Any:
    setting = program.replace(**numbers)
    return jax.vmap(lambda seed: setting.weights(key_of(seed, WEIGHTS)))(seeds)


def untrained(setting: Any) -> Any:
    """The setting of what makes data and weights: how to train does not matter."""
    neutral = {"num_steps": 1, "every": 1, "step_size": None, "train": "all", "method": "gd"}
    return setting.replace(**neutral, batch_size=None)


def check_problem(setting: Any, problem: Any, held_out: Any) -> None:
    """Let the setting refuse data from outside, and compare targets with the model's output."""
    scores = getattr(setting.loss, "of_classes", False)  # an axis that targets do not have
    for part in (problem,) if held_out is None else (problem, held_out):
        if setting.target() == "Y" and part.y.ndim + scores != 1 + len(setting.output_shape()):
            rows = ("sample", "token")[len(setting.output_shape()) - 1]
            raise InputError(f"Y has shape {part.y.shape}; expected one target row per {rows}.")
        setting.check(part)


def _problem_sizes(problem: Any, setting: Any) -> dict[str, int]:
    """Settings that the shapes of the data decide."""
    X = getattr(problem, "X", None)
    if X is None:
        return {}
    sizes = dict(zip(("num_samples", "num_tokens", "dim"), X.shape, strict=True))
    if problem.y.ndim > 1:
        sizes["out_dim"] = problem.y.shape[-1]
    return {name: size for name, size in sizes.items() if name in setting.fields()}


def _weight_sizes(setting: Any, stored: Any) -> dict[str, int]:
    """Settings that the shapes of weights decide: those that appear as the length of an axis.

    An axis belongs to a setting if its length is the setting's value, up to a constant: it then
    grows by that value when the setting is doubled.
    """
    before = trees.blocks(setting.network().spec)
    got = {name: W.shape[1:] for name, W in trees.blocks(stored).items()}
    found: dict[str, int] = {}
    for name, value in setting.asdict().items():
        if type(value) is not int or name == "num_samples":
            continue
        try:
            after = trees.blocks(setting.replace(**{name: 2 * value}).network().spec)
        except (InputError, ValueError, TypeError, ZeroDivisionError):
            continue
        for block, spec in before.items():
            more = after[block].shape if block in after else ()
            if len(more) != len(spec.shape):  # a second layer brings an axis of layers
                continue
            for axis, (one, two) in enumerate(zip(spec.shape, more, strict=True)):
                if value > 0 and two - one == value:
                    found.setdefault(name, got[block][axis] + value - one)
    return found


def _adopt(setting: Any, fixed: tuple, sizes: Mapping[str, int], where: Any) -> tuple[Any, tuple]:
    """Take sizes from data or weights, now fixed; refuse if the user, or a file, has others."""
    for name, size in sizes.items():
        if name in fixed and (asked := getattr(setting, name)) != size:
            msg = f"{name}={asked}, but {where} has {size}; leave it out or match it."
            raise InputError(msg)
    return setting.replace(**sizes), (*fixed, *sizes)


def read_params(spec: Any, path: str | Path, precision: str) -> Any:
    """Weights from a file, with a leading axis of seeds (added if it has none)."""
    wanted = trees.blocks(spec)
    arrays = read_weights(path, tuple(wanted))
    for name, array in arrays.items():
        axes = wanted[name].ndim
        if array.dtype.kind not in "fiu":
            raise InputError(f"{path}: {name} holds {array.dtype}; expected real numbers.")
        require_finite(array, f"{path}: {name}", precision)
        if array.ndim not in (axes, axes + 1) or 0 in array.shape:
            msg = f"{path}: {name} has shape {array.shape}; expected {axes} axes, "
            raise InputError(f"{msg}or one more in front for seeds.")
    stacked = {wanted[name].ndim + 1 == a.ndim for name, a in arrays.items()}
    if len(stacked) > 1:
        raise InputError(f"{path}: some arrays have a leading axis of seeds and some have not.")
    if len({a.shape[0] for a in arrays.values()}) > 1 and stacked == {True}:
        msg = f"{path}: the arrays have leading axes of different length; expected one of seeds."
        raise InputError(msg)
    found = {k: np.asarray(a if stacked == {True} else a[None], float) for k, a in arrays.items()}
    return trees.with_blocks(spec, found)


def seed_numbers(seeds: Iterable[int]) -> tuple[int, ...]:
    """Seeds as whole numbers of 32 bits, or a refusal of the first that is none.

    >>> seed_numbers(range(2))
    (0, 1)
    """
    chosen = tuple(seeds)
    for seed in chosen:
        whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
        if not whole or not 0 <= seed < 2**32:
            raise InputError(f"seed {seed!r}: expected a whole number from 0 to {2**32 - 1}.")
    return chosen


def _seeds_of(stored: Any, seeds: tuple[int, ...]) -> tuple[int, ...]:
    count = len(jax.tree.leaves(stored)[0])
    if len(seeds) not in (1, count):
        msg = f"{len(seeds)} seeds, but the weights hold {count}; leave --seeds out or match it."
        raise InputError(msg)
    return seeds if len(seeds) == count else tuple(range(count))


def _require_shapes(spec: Any, stored: Any, where: Any) -> None:
    for (name, block), W in zip(trees.blocks(spec).items(), jax.tree.leaves(stored), strict=True):
        if (got := W.shape[1:]) != (want := block.shape):
            msg = f"{where}: {name} has shape {got}; with these data it should be {want}."
            raise InputError(msg)


def abstract_setup(setting: Any, given: Any = None) -> Setup:
    """One start of a setting with shapes in place of numbers: nothing is computed."""
    return jax.eval_shape(lambda: one_start(setting, given))


def one_start(setting: Any, given: Any = None) -> Setup:
    """The start of seed 0, on the setting's data or on given ones."""
    problem, held_out = _data(setting) if given is None else (given, None)
    return Setup(setting, problem, setting.weights(key_of(0, WEIGHTS)), (), held_out=held_out)
