"""Setups from a user's own model: any JAX function of weights and a batch, or a foreign module.

What a person brings is checked before anything is compiled: each mistake gets one sentence.
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal.diagnostics import inside
from shoal.errors import InputError, nearest, place_of, words_of
from shoal.interop import from_module, is_module
from shoal.lab.memory import refuse_giant_steps
from shoal.lab.setting import Setting, Static, with_values
from shoal.lab.setup import (
    WEIGHTS,
    Setup,
    key_of,
    require_precision,
    require_whole_records,
    seed_numbers,
    trained_blocks,
)
from shoal.losses import loss_of
from shoal.models import Model
from shoal.problems import Samples
from shoal.runtime import in_float64


class Own(Setting):
    """The setting of a user's own model: a function of parameters and a whole batch."""

    function: Static[Any] = None  # f(params, x) on the whole batch.
    loss_function: Static[Any] = None  # The loss of outputs and targets.
    shapes: Static[Any] = None  # Tree structure and shapes of the parameters.
    label: Static[str] = "own"  # Name of the model.
    arguments: Static[Any] = ()  # Keywords of the function that made the setup, and their values.
    ratios: Static[Any] = ()  # Steps of blocks over the step size, where they are not 1.
    coupled: Static[bool] = False  # The output of a sample depends on the other samples.
    memory: Static[float] = 1.0  # GiB for the factors of a tangent kernel.
    restore: Static[Any] = None  # Trained weights in the form of the module they came from.
    read: Static[Any] = None  # Weights of such a module, by the names of the setup.

    @property
    def loss(self) -> Any:  # type: ignore[override]
        """The loss that was given."""
        return self.loss_function

    def asdict(self) -> dict[str, Any]:
        """Fields that are words or numbers, by name."""
        fields = super().asdict() | {"arguments": dict(self.arguments)}
        if not isinstance(self.method, str):
            fields["method"] = "optax"
        kinds = str | int | float | dict | None
        return {name: value for name, value in fields.items() if isinstance(value, kinds)}

    def params(self) -> Any:
        """Shapes of the parameters that were given."""
        return jax.tree.unflatten(*self.shapes)

    def apply(self, params: Any, x: Any) -> Any:
        """Output for one sample."""
        return self.function(params, jax.tree.map(lambda a: a[None], x))[0]

    def step_ratios(self) -> dict[str, Any]:
        """Steps of blocks over the step size."""
        return dict(self.ratios)

    probe_sentences: ClassVar[dict[str, str]] = {
        "attention_entropy": "Entropy of each attention over the largest possible: 1 is uniform.",
        "attention_largest": "Mean of the largest attention weight of every row, layer by layer.",
        "dead_units": "Share of ReLU units that are zero on every sample, layer by layer.",
        "token_cosine": "Mean cosine between tokens of a sequence: 1 means that they collapsed.",
    }

    def probes(self, setup: Setup) -> dict[str, Any]:
        """What the model's program shows: attention, ReLU units, tokens between the layers."""
        found = inside.parts(self.function, setup.params0, setup.inputs)
        measures = {
            "attention_entropy": (found.attention, inside.entropy),
            "attention_largest": (found.attention, inside.largest),
            "dead_units": (found.units, lambda values, _: inside.dead(values)),
            "token_cosine": (found.stream, lambda values, _: inside.cosine(values)),
        }

        def probe(places: tuple, measure: Callable) -> Callable[[Any], dict[str, Any]]:
            def values(params: Any) -> dict[str, Any]:
                seen = found.capture(params, setup.inputs)
                return {at.name: measure(seen[at.value], at.axis) for at in places}

            return values

        return {name: probe(*how) for name, how in measures.items() if how[0]}

    def network(self) -> Model:
        """The model, whose outputs come for the whole batch."""
        return Model(self.spec(), self.apply, outputs=self.function, coupled=self.coupled)


@in_float64
def own_setup(
    function: Callable[[Any, Any], Any],
    params: Any,
    x: Any,
    y: Any,
    *,
    loss: Any = "squares",
    seeds: Any = None,
    train: str = "all",
    precision: str = "float64",
    label: str = "",
    restore: Callable[[Any], Any] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Setup:
    """A setup from ``f(params, x)`` on the whole batch.

    ``params`` are weights (any tree of floating-point arrays), a file of them (``.npz``,
    ``.safetensors``), or ``init(key)`` that draws them for every seed. ``x`` and ``y`` are arrays
    with a leading axis of samples; ``x`` may be a tuple or a dict of such arrays.
    """
    label = label or getattr(function, "__name__", type(function).__name__)
    params0, seeds, drawn = _weights(params, seeds)
    x, y = _batch(x, "x"), _batch(y, "y")
    if not isinstance(y, np.ndarray):
        raise InputError(f"y is a {type(y).__name__}; expected one array of targets.")
    lengths = {len(leaf) for leaf in jax.tree.leaves((x, y))}
    if len(lengths) != 1:
        msg = f"x and y have leading axes of length {sorted(lengths)}; expected one of samples."
        raise InputError(msg)
    leaves, structure = jax.tree.flatten(params0)
    setting = Own(
        num_samples=lengths.pop(), train=train, function=function, loss_function=loss_of(loss),
        shapes=(structure, tuple(leaf.shape[1:] for leaf in leaves)), label=label, restore=restore,
        read=read,
    )  # fmt: skip
    require_precision(precision, setting)
    trained_blocks(setting, params0)
    first = jax.tree.map(lambda W: W[0], params0)
    outputs = _traced(setting, first, x)
    _require_derivative(setting, first, x)
    y = _targets(setting, outputs, y, named=isinstance(loss, str))
    made = Setup(setting, Samples(x, y), params0, seeds, from_init=drawn).astype(precision)
    refuse_giant_steps(made.one())  # before anything is computed
    return made.replace(setting=setting.replace(coupled=_coupled(setting, first, x)))


def module_setup(module: Any, *args: Any, **values: Any) -> Setup:
    """A setup from a module of another library."""
    if len(args) not in (2, 3):
        raise InputError(f"expected sh.setup(module, x, y), and {len(args) + 1} values were given.")
    variables = args[0] if len(args) == 3 else None
    x, y = args[-2:]
    if isinstance(variables, str | Path):
        raise InputError(
            "load the weights into the module first, then call sh.setup(module, x, y)."
        )
    found = from_module(module, x, variables)
    label = type(module).__name__
    if found.frozen and values.get("train", "all") == "all":
        values["train"] = ",".join(name for name in found.params if name not in found.frozen)
    return own_setup(
        found.function,
        found.params,
        x,
        y,
        label=label,
        restore=found.restore,
        read=found.read,
        **values,
    )


# ---------------------------------------------------------------------------------------- weights


def _weights(params: Any, seeds: Any) -> tuple[Any, tuple[int, ...], bool]:
    """Weights with a leading axis of seeds, the seeds, and whether they were drawn."""
    if isinstance(params, str | Path):
        from shoal.files import read_weights

        params = read_weights(params)
    if callable(params):
        chosen = (0,) if seeds is None else seed_numbers(seeds)
        if not chosen:
            raise InputError("seeds is empty; expected at least one, such as seeds=range(4).")
        found = [_drawn(params, seed) for seed in chosen]
        checked = [_checked_weights(one, "init(key) returns") for one in found]
        if len({jax.tree.structure(one) for one in checked}) > 1:
            raise InputError("init(key) returns trees of different shape for different keys.")
        return jax.tree.map(lambda *Ws: np.stack(Ws), *checked), chosen, True
    if seeds is not None and len(seeds := tuple(seeds)) != 1:
        raise InputError(
            f"the weights are given, so there is one run, and {len(seeds)} seeds were asked for; "
            "leave seeds out, or give init(key) instead of weights."
        )
    one = _checked_weights(params, "the weights have")
    return jax.tree.map(lambda W: W[None], one), seed_numbers(seeds or (0,)), False


def _drawn(init: Callable, seed: int) -> Any:
    try:
        return init(key_of(seed, WEIGHTS))
    except InputError:
        raise
    except Exception as error:
        raise _said("init(key)", error) from error


def _checked_weights(params: Any, what: str) -> Any:
    blocks = trees.blocks(params)
    if not blocks:
        raise InputError(f"{what} no arrays; expected a tree of them, such as a dict.")

    def one(path: str, W: Any) -> np.ndarray:
        if "\0" in path or path != path.encode("utf-8", "replace").decode():
            raise InputError(f"{what} a block {path!r}, which cannot be the name of an array.")
        try:
            array = np.asarray(W)
        except Exception as error:
            raise InputError(f"{what} a block {path!r} that is no array ({error}).") from None
        if array.dtype.kind in "iub" and not isinstance(W, int):
            raise InputError(
                f"{what} a block {path!r} of {array.dtype}; weights are floating-point numbers. "
                "What is not trained belongs into the function, not into the weights."
            )
        if array.dtype.kind not in "fiu" and array.dtype.name not in ("bfloat16",):
            kind = type(W).__name__ if array.dtype == object else str(array.dtype)
            raise InputError(f"{what} a block {path!r} of {kind}; expected real numbers.")
        array = array.astype(np.float64)
        if array.size == 0:
            raise InputError(f"{what} an empty block {path!r} of shape {array.shape}.")
        if not np.isfinite(array).all():
            raise InputError(f"{what} a block {path!r} that holds NaN or infinity.")
        return array

    if len({id(path) for path in blocks}) < len(jax.tree.leaves(params)):
        raise InputError(f"{what} two blocks of the same name; rename one of them.")
    return trees.with_blocks(params, {path: one(path, W) for path, W in blocks.items()})


# ------------------------------------------------------------------------------------------- data


def _batch(values: Any, name: str) -> Any:
    """Arrays of numbers with a leading axis of samples."""
    leaves = jax.tree.leaves(values, is_leaf=lambda v: v is None)
    if not leaves or any(v is None for v in leaves):
        raise InputError(f"{name} holds no arrays.")

    def one(leaf: Any) -> np.ndarray:
        try:
            array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} is not an array of numbers ({error}).") from None
        if array.dtype.kind not in "fiub":
            raise InputError(f"{name} holds {array.dtype}; expected real numbers or whole numbers.")
        if array.ndim == 0 or array.shape[0] == 0:
            raise InputError(
                f"{name} has shape {array.shape}; expected a leading axis of at least one sample."
            )
        if array.dtype.kind == "f":
            array = array.astype(np.float64)
            if not np.isfinite(array).all():
                raise InputError(f"{name} holds NaN or infinity.")
        return array.astype(np.int64) if array.dtype.kind in "iu" else array

    if isinstance(values, list):  # nested lists of numbers are an array
        return one(values)
    if isinstance(values, tuple):
        return tuple(one(v) for v in values)
    return {k: one(v) for k, v in values.items()} if isinstance(values, dict) else one(values)


def _targets(setting: Own, outputs: Any, y: np.ndarray, *, named: bool) -> np.ndarray:
    """Targets that fit the outputs, or what is wrong with them."""
    loss, name = setting.loss, getattr(setting.loss, "__name__", "the loss")
    if named or hasattr(loss, "squares_weight"):  # others may broadcast on purpose
        classes = name == "cross_entropy"
        wanted = outputs.shape[:1] if classes else outputs.shape
        if classes and len(outputs.shape) != 2:
            raise InputError(
                f"cross_entropy expects outputs of shape (samples, classes); they are "
                f"{outputs.shape}."
            )
        if y.shape != wanted:
            raise InputError(
                f"the outputs have shape {outputs.shape} and y has {y.shape}; {name} expects y of "
                f"shape {wanted}."
            )
        if classes:
            if not np.all((y == np.round(y)) & (y >= 0) & (y < outputs.shape[1])):
                high = outputs.shape[1] - 1
                raise InputError(f"cross_entropy expects classes 0 to {high}; y has others.")
        elif name == "logistic" and not np.all(np.abs(y) == 1):
            raise InputError("logistic expects labels -1 and 1; y has others.")
        y = y if classes else y.astype(np.float64)
    try:
        risk = jax.eval_shape(loss, outputs, jax.ShapeDtypeStruct(y.shape, y.dtype))
    except Exception as error:
        raise _said(f"{name}(outputs, y)", error) from error
    if not hasattr(risk, "shape") or risk.shape != () or risk.dtype.kind != "f":
        what = f"shape {risk.shape} of {risk.dtype}" if hasattr(risk, "shape") else str(type(risk))
        raise InputError(f"{name}(outputs, y) returns {what}; expected one floating-point number.")
    return y


# ------------------------------------------------------------------------------------ the function


def _traced(setting: Own, params: Any, x: Any) -> Any:
    """Shape and type of the outputs. Refuses a function that cannot be used, with its reason."""
    function, label = setting.function, setting.label

    def once(*given: Any) -> Any:
        before = str(jax.tree.structure(given))
        outputs = function(*given)
        if str(jax.tree.structure(given)) != before:
            raise InputError(f"{label} changes its arguments; it should leave them as they are.")
        return outputs

    seen = []
    for _ in range(2):
        try:  # a new function each time: JAX remembers what it has traced
            closed, outputs = jax.make_jaxpr(lambda *a: once(*a), return_shape=True)(params, x)
        except InputError:
            raise
        except Exception as error:
            raise _said(f"{label}(params, x)", error) from error
        seen.append((str(closed.jaxpr), [np.asarray(c).tobytes() for c in closed.consts]))
    if seen[0] != seen[1]:
        raise InputError(
            f"{label} is another function each time it is called (randomness or a counter inside?)."
        )
    count = len(jax.tree.leaves(x)[0])
    if not hasattr(outputs, "shape"):
        raise InputError(
            f"{label}(params, x) returns a {type(outputs).__name__}; expected one array of outputs."
        )
    if outputs.shape[:1] != (count,):
        raise InputError(
            f"{label}(params, x) returns shape {outputs.shape}; expected a leading axis of {count} "
            "samples. sh.per_sample(f) lifts a function of one sample."
        )
    if outputs.dtype.kind != "f":
        raise InputError(f"{label}(params, x) returns {outputs.dtype}; expected real numbers.")
    return outputs


def _require_derivative(setting: Own, params: Any, x: Any) -> None:
    """Refuse a function that JAX cannot differentiate in the weights that are trained."""
    chosen = trees.selected(params, trained_blocks(setting, params))

    def total(some: Any) -> Any:
        return jnp.sum(setting.function(trees.with_blocks(params, some), x))

    try:
        jax.eval_shape(jax.grad(total), chosen)
    except Exception as error:
        raise _said(f"the derivative of {setting.label}(params, x)", error) from error


def _coupled(setting: Own, params: Any, x: Any) -> bool:
    """Whether outputs depend on other samples of the batch; refuses those that are not finite."""
    first = jax.jit(setting.function)(params, x)
    if not bool(jnp.isfinite(first).all()):
        raise InputError(f"{setting.label}(params, x) is NaN or infinite at the given weights.")
    try:
        alone = jax.jit(jax.vmap(setting.apply, in_axes=(None, 0)))(params, x)
        apart = jnp.max(jnp.abs(alone - first)) / jnp.maximum(jnp.max(jnp.abs(first)), 1e-300)
    except Exception:  # it does not work on a batch of one
        return True
    return not bool(apart < 1e-9)


def _said(what: str, error: Exception) -> InputError:
    """The user's mistake in one sentence, with the line of the user's file."""
    place = f" in {where}" if (where := place_of(error)) else ""
    kind = type(error).__name__
    lines = words_of(error).splitlines()
    reason = next((line.strip(" .") for line in lines if line.strip()), "")[:160]
    if "Tracer" in kind or kind == "ConcretizationTypeError":
        reason = (
            "it needs the values of its arguments; use jax.numpy instead of numpy, and jnp.where "
            "instead of if"
        )
    return InputError(f"{what} fails{place}: {kind}: {reason}.")


def per_sample(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Lift a function of one sample to the whole batch.

    >>> per_sample(lambda w, x: w @ x)(jnp.ones(2), jnp.ones((3, 2))).tolist()
    [2.0, 2.0, 2.0]
    """
    batched = jax.vmap(function, in_axes=(None, 0))
    batched.__name__ = getattr(function, "__name__", "model")
    return batched


# ------------------------------------------------------------------------------- in a user's file

TRAINING = ("num_steps", "every", "method", "train", "step_size", "batch_size")
"""Settings that every own model has: how it is trained."""


class OwnModel:
    """A model in a user's file: a source of setups, as a paper is.

    ``value`` is a `Setup`, a function that returns one (its keywords are the settings), or a module
    of Flax, Equinox or PyTorch whose file defines ``x``, ``y`` and, if need be, ``loss``.
    """

    def __init__(self, key: str, value: Any, file: Path, beside: Mapping[str, Any]) -> None:
        self.key, self.value, self.file = key, value, file
        if is_module(value):
            for name in ("x", "y"):
                if name not in beside:
                    raise InputError(f"{key} is a module; {file.name} should also define {name}.")
            more = {"loss": beside["loss"]} if "loss" in beside else {}
            self.value = value = module_setup(value, beside["x"], beside["y"], **more)
        try:
            self.keywords = {} if isinstance(value, Setup) else inspect.signature(value).parameters
        except (TypeError, ValueError):  # not a function, or one that does not tell its arguments
            raise InputError(
                f"{key} is a {type(value).__name__}; expected a Setup, or a function for one."
            ) from None

    def setup(self, values: Mapping[str, Any], *, seeds: Any = (0,), **more: Any) -> Setup:
        """The setup that words describe: keywords of the function, and how to train."""
        for name in ("data", "params"):
            if more.get(name) is not None:
                raise InputError(f"--{name} is for papers; {self.key} makes its own.")
        training = {name: value for name, value in values.items() if name in TRAINING}
        keywords = {name: value for name, value in values.items() if name not in TRAINING}
        made = self._made(keywords, tuple(seeds))
        setting = with_values(made.setting, training, owner=self.key)
        require_whole_records(setting.num_steps, setting.every)
        trained_blocks(setting, made.params0)
        setting = setting.replace(label=self.key, arguments=tuple(keywords.items()))
        made = made.replace(setting=setting, overrides=tuple(training)).astype(more["precision"])
        return made if setting.step_size is None else made.with_steps(setting.step_size)

    def defaults(self) -> dict[str, Any]:
        """Settings that have a default, by name."""
        found = {k: p.default for k, p in self.keywords.items() if p.default is not p.empty}
        return {k: v for k, v in found.items() if isinstance(v, int | float | str)}

    def _made(self, keywords: dict[str, Any], seeds: tuple[int, ...]) -> Setup:
        if isinstance(self.value, Setup):
            if keywords:
                name = next(iter(keywords))
                hint = nearest(name, TRAINING)
                raise InputError(
                    f"{self.key} is a finished setup without a setting {name!r}; {hint}"
                )
            made = self.value
        else:
            known = self.keywords
            for name in keywords:
                if name not in known:
                    options = [*(k for k in known if k != "seeds"), *TRAINING]
                    raise InputError(
                        f"{self.key} has no setting {name!r}; {nearest(name, options)}"
                    )
            given = {name: _read(text) for name, text in keywords.items()}
            if "seeds" in known:
                given["seeds"] = seeds
            try:
                made = self.value(**given)
            except InputError:
                raise
            except Exception as error:
                raise _said(f"{self.key}(...)", error) from error
            if not isinstance(made, Setup):
                kind = type(made).__name__
                raise InputError(f"{self.key}(...) returns a {kind}; expected a Setup (sh.setup).")
        if seeds != (0,) and made.seeds != seeds:
            raise InputError(
                f"{self.key} has the seeds {list(made.seeds)}; for others, let a function with an "
                "argument seeds return the setup."
            )
        return made

    def all_theorems(self) -> tuple[Any, ...]:
        """What can be said of any model."""
        from shoal.lab.theorem import EVERY_MODEL

        return EVERY_MODEL

    def theorem_of(self, key: str) -> Any:
        """A theorem by its key."""
        from shoal.lab.theorem import named_theorem

        return named_theorem(key, self.all_theorems(), self.key)


def _read(text: Any) -> Any:
    """A word of the command line as a Python value, where it is one."""
    if not isinstance(text, str):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # two: it is nested too deeply
        return text
