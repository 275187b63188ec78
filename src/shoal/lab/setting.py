r"""A setting: a paper's words, typed, checked, and able to make what they describe.

A paper subclasses `Setting`: annotated fields are its settings, each with a comment that says what
it does; methods make data, weights and the model. Most methods are inherited::

    class Doe(sh.Setting):
        width: sh.Static[int] = 256   # Hidden units.
        gain: float = 1.0             # Scale of the output.
        def data(self, key): ...
        def params(self): return Weights(W=(self.width, self.dim))
        def apply(self, params, x): ...

**What compiles again.** Floats and seeds are *traced*: they are arguments of compiled programs, so
another value compiles nothing. Everything else is *static*, part of the compile key. ``Static``
makes a float static (for an ``if``), ``Traced`` a whole number traced, and ``Data`` marks what only
makes data and weights, which no compiled program of training depends on.
"""

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from shoal import inits
from shoal.diagnostics.kernels import LARGEST, tangent_kernels
from shoal.errors import InputError, nearest
from shoal.linalg import norm_fro
from shoal.losses import half_sum_of_squares
from shoal.methods import Method
from shoal.models import Model, predict
from shoal.trees import size

if typing.TYPE_CHECKING:
    from shoal.lab.setup import Setup

PAPER, SUMMARY, OURS = "paper", "paper, as summarised", "ours"
"""Provenance: the paper's words are known; known from a summary; our own."""


class Mark(Enum):
    """How a field enters compiled programs (see the top of this module)."""

    STATIC, TRACED, DATA = "static", "traced", "data"


T = TypeVar("T")
Static = Annotated[T, Mark.STATIC]
Traced = Annotated[T, Mark.TRACED]
Data = Annotated[T, Mark.DATA]

LARGEST_WHOLE = 10**12
Count = Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]
Seed = Annotated[int, Field(ge=0, lt=2**31), Mark.TRACED]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _names(text: str) -> str:
    return ",".join(part.strip() for part in text.split(",") if part.strip())


Names = Annotated[str, AfterValidator(_names)]
"""Names separated by commas, such as ``W_Q,W_K``."""


def _three(value: Any) -> tuple[float, float, float]:
    """Three positive numbers, or one for all three; as a tuple, a list, or words."""
    try:
        parts = np.atleast_1d(value.split(",") if isinstance(value, str) else value)
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 3) or not all(0 < x < float("inf") for x in numbers):
        raise PydanticCustomError("three", "three positive numbers such as 3,3,3 (or one for all)")
    return tuple(numbers * (3 // len(numbers)))  # type: ignore[return-value]


Three = Annotated[tuple[float, float, float], BeforeValidator(_three)]
"""Three positive numbers."""


def derived(method: Callable[[Any], T]) -> Callable[[Any], T]:
    """Mark a method without arguments whose numbers follow from traced fields alone.

    Compiled programs compute it once per start, before any loop (`Setting.settled`). If a training
    step and a probe each computed it, XLA would move both out of the loop without seeing that they
    are equal, and compute twice what depends on them, such as the gradient.
    """

    @functools.wraps(method)
    def wrapped(self: Any) -> T:
        known = self.__dict__.get("_derived", {})
        return known[method.__name__] if method.__name__ in known else method(self)

    wrapped.derived = True  # type: ignore[attr-defined]
    return wrapped


@typing.dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Setting:
    """Base class of every setting. Instances are frozen; `replace` makes changed copies."""

    paper: ClassVar[Any] = None  # The paper that it belongs to, set by `Paper`.
    source: ClassVar[str] = (
        OURS  # Provenance, unless a field's comment ends in [paper] or the like.
    )
    averages: ClassVar[bool] = False  # Keep the mean of the iterates along a run.
    queries: ClassVar[bool] = False  # Use a problem file's ``q``, a query for each sequence.
    probe_sentences: ClassVar[dict[str, str]] = {}  # What each of the paper's own probes is.
    default_probes: ClassVar[tuple[str, ...]] = ("movement", "gradient_norm", "pl_ratio")
    objective: ClassVar[Any] = None  # ``objective(params, problem)``: a risk without samples.
    residuals: ClassVar[Any] = None  # ``residuals(params, problem)``: the objective is half of
    # their square, plus ``lowest``.
    loss = staticmethod(half_sum_of_squares)  # A function of all outputs and all targets.

    num_samples: Count = 10  # Number of samples.
    data_seed: Seed = 0  # Seed of the data.
    method: Literal["gd", "flow", "sgd", "adam"] = "gd"  # Training rule.
    train: Names = "all"  # Blocks that are trained: all, or names and patterns such as W_Q,W_K.
    step_size: Positive | None = None  # Step size; auto: half of 1 / lambda_max of the kernel.
    batch_size: Count | None = None  # Samples in a step of sgd and adam; auto: 32.
    num_steps: Traced[Count] = 100  # Number of training steps.
    every: Count = 1  # Record every this many steps.

    def __init_subclass__(cls) -> None:
        for name in ("loss", "init"):  # plain functions (outputs, y) or (key, spec) stay so
            given = cls.__dict__.get(name)
            if inspect.isfunction(given) and len(inspect.signature(given).parameters) == 2:
                setattr(cls, name, staticmethod(given))
        if cls.residuals is not None and cls.objective is None:
            cls.objective = Setting._half_square
        dataclasses.dataclass(frozen=True)(cls)

    # ------------------------------------------------------------------ what a paper overrides

    def data(self, key: Any) -> Any:  # noqa: ARG002
        """Make the problem from a key (`problems.Problem`, or anything for an `objective`)."""
        msg = f"{type(self).__name__} makes no data of its own: give a problem file (--data)."
        raise InputError(msg)

    def test_data(self, key: Any) -> Any:  # noqa: ARG002
        """Make held-out data, if there are any."""
        return None

    def params(self) -> Any:
        """Return the shapes of the parameters: a tree whose leaves are tuples of whole numbers."""
        msg = f"{type(self).__name__} does not say which parameters it has: define params()."
        raise InputError(msg)

    def apply(self, params: Any, x: Any) -> Any:  # noqa: ARG002
        """Return the model's output for one sample."""
        raise InputError(f"{type(self).__name__} has no model: define apply(params, x).")

    def network(self) -> Model:
        """The model; override it to give faster ways to outputs or to the loss."""
        return Model(self.spec(), self.apply)

    def weights(self, key: Any) -> Any:
        """Draw initial weights, by default by ``init``: a function or a name of `shoal.inits`."""
        init: Any = getattr(self, "init", inits.lecun)
        return (init if callable(init) else getattr(inits, init))(key, self.network().spec)

    def lowest(self, problem: Any) -> Any:  # noqa: ARG002
        """The known optimum of the risk, or None."""
        return None

    def _half_square(self, params: Any, problem: Any) -> Any:
        """The objective of a setting with residuals."""
        low = self.lowest(problem)
        return (0.0 if low is None else low) + 0.5 * jnp.sum(self.residuals(params, problem) ** 2)

    def rule(self, method: Method) -> Method:
        """Wrap the training rule, e.g. by a projection."""
        return method

    def step_ratios(self) -> dict[str, Any]:
        """Step of a block over the step size; blocks not named have ratio 1."""
        return {}

    def default_step(self, setup: "Setup") -> Any:  # noqa: ARG002
        """The step where none is given; None: half of 1 / lambda_max of the tangent kernel."""
        return None

    def block_kernels(self, setup: "Setup") -> Any:
        """Tangent kernel of each block; None if there is none. Override it by closed forms."""
        if not setup.has_samples or setup.num_outputs > LARGEST:
            return None
        memory = getattr(self, "memory", None) or 1.0
        return tangent_kernels(setup.network, setup.inputs, memory=memory)

    def output_size(self, setup: "Setup") -> Any:
        """Size of the numbers whose sum is the output, for the rounding error of residuals."""
        outputs = predict(setup.network, setup.params0, setup.inputs)
        return norm_fro(outputs) + norm_fro(setup.targets)

    def floor(self, setup: "Setup") -> Any:  # noqa: ARG002
        """A lower bound of the risk over the trained blocks, as a function of params, or None."""
        return None

    def rests(self, problem: Any) -> Any:  # noqa: ARG002
        """Known risks of saddles, decreasing, near which training may rest; or None."""
        return None

    def probes(self, setup: "Setup") -> dict[str, Any]:  # noqa: ARG002
        """The paper's own probes: functions of the parameters, by name."""
        return {}

    def numbers(
        self, name: str, count: int, words: Mapping[str, Any] = MappingProxyType({})
    ) -> np.ndarray:
        """So many positive numbers, which a field gives as 0.6,0.4 or by a word for them.

        >>> class Tokens(Setting):
        ...     spectrum: str = "0.6,0.4"
        >>> Tokens().numbers("spectrum", 2).tolist()
        [0.6, 0.4]
        >>> Tokens(spectrum="white").numbers("spectrum", 2, {"white": np.ones(2)}).tolist()
        [1.0, 1.0]
        """
        if (text := getattr(self, name)) in words:
            return words[text]
        try:
            found = np.array(text.split(","), float)
        except ValueError:
            found = np.zeros(1)
        if not (len(found) == count and np.all(np.isfinite(found) & (found > 0))):
            known = "".join(f"{word}, " for word in words) + ("or " if words else "")
            wanted = f"{known}{count} positive numbers like 0.6,0.4."
            raise InputError(f"{name}={text}: expected {wanted}")
        return found

    def complete(self) -> Self:
        """Fill in what follows from other settings, and refuse what does not fit together."""
        return self

    def reads_files(self) -> bool:
        """Whether the data come from files or libraries, so that making them cannot be compiled."""
        return False

    def from_file(self) -> Self:
        """Return the setting when the data come from a file."""
        return self

    def check(self, problem: Any) -> None:
        """Refuse a problem from outside that the model cannot take."""

    def target(self) -> str:
        """Name of the targets in a problem file: ``y``, or ``Y`` for rows of numbers."""
        return "Y" if self.output_shape() else "y"

    def floats_per_step(self) -> float:
        """Numbers that a training step of one seed holds, roughly."""
        samples = self.num_samples * float(getattr(self, "num_tokens", 1))
        return 4.0 * samples * size(self.network().spec) / getattr(self, "dim", 1)

    # ------------------------------------------------------------------------------ what it is

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, unchecked: in compiled code they are tracers."""
        if unknown := [name for name in changes if name not in self.__dict__]:
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}")
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__ | changes)
        made.__dict__.pop("_derived", None)  # it may depend on what changed
        return made

    def settled(self) -> Self:
        """Return a copy that has computed what is marked as `derived`."""
        made, methods = self.replace(), self._derived_methods()
        made.__dict__["_derived"] = {name: method(self) for name, method in methods.items()}
        return made

    @classmethod
    @functools.cache
    def _derived_methods(cls) -> dict[str, Callable[[Any], Any]]:
        methods = {name: getattr(m, "fget", m) for name, m in inspect.getmembers_static(cls)}
        return {name: m for name, m in methods.items() if hasattr(m, "derived")}

    def asdict(self) -> dict[str, Any]:
        """Fields by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Names of all fields."""
        return tuple(f.name for f in dataclasses.fields(cls))

    @classmethod
    @functools.cache
    def _hints(cls) -> dict[str, Any]:
        hints = typing.get_type_hints(cls, include_extras=True)
        return {name: hints[name] for name in cls.fields()}

    @classmethod
    @functools.cache
    def marks(cls) -> dict[str, Mark]:
        """How each field enters compiled programs."""
        found = {}
        for name, hint in cls._hints().items():
            parts = tuple(_parts(hint))
            usual = Mark.TRACED if float in parts else Mark.STATIC
            found[name] = next((mark for mark in Mark if mark in parts), usual)
        return found

    @classmethod
    @functools.cache
    def sentences(cls) -> dict[str, str]:
        """The comment beside each field, read from the source, with its choices in front."""
        comments: dict[str, str] = {}
        for base in reversed(cls.__mro__[:-1]):
            try:
                lines = textwrap.dedent(inspect.getsource(base)).splitlines()
                body = ast.parse("\n".join(lines)).body[0]
            except (OSError, TypeError, SyntaxError):
                continue
            for node in getattr(body, "body", ()):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    for line in lines[node.lineno - 1 : node.end_lineno]:
                        if comment := line.partition("#")[2].strip():
                            comments[node.target.id] = comment
        found = {}
        for name, hint in cls._hints().items():
            said = " | ".join(_choices(hint)), comments.get(name, "")
            found[name] = "; ".join(filter(None, said))
        return found

    def spec(self) -> Any:
        """Shapes of the parameters as JAX knows them."""

        def is_shape(node: Any) -> bool:
            return type(node) is tuple and all(isinstance(size, int) for size in node)

        def leaf(node: Any) -> Any:
            return jax.ShapeDtypeStruct(node, jnp.float64) if is_shape(node) else node

        return jax.tree.map(leaf, self.params(), is_leaf=is_shape)

    def data_spec(self) -> Any:
        """Shapes of what `data` makes."""
        return jax.eval_shape(lambda: self.data(jax.random.key(0)))

    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output for one sample."""
        model, tokens = self.network(), getattr(self, "num_tokens", None)
        if tokens is None:
            raise InputError(f"{type(self).__name__} draws its own data; it takes no data file.")
        x = jax.ShapeDtypeStruct((tokens, self.dim), jnp.float64)  # type: ignore[attr-defined]
        return jax.eval_shape(model.apply, model.spec, x).shape

    def split(self, *, for_data: bool = False) -> tuple[Self, dict[str, Any]]:
        """Return the compile key, and the numbers that compiled programs take as arguments.

        The key is this setting with traced numbers blanked and, except for programs that make data
        and weights, data-only fields at their defaults.
        """
        values, blank, marks = {}, {}, self.marks()
        for field in dataclasses.fields(self):
            value, mark = getattr(self, field.name), marks[field.name]
            if mark is Mark.DATA and not for_data:
                blank[field.name] = field.default
            elif mark is Mark.TRACED and value is not None:
                values[field.name] = value
                blank[field.name] = (0.0,) * len(value) if isinstance(value, tuple) else 0
        return self.replace(**blank), values


# --------------------------------------------------------------------------- reading the class


def _parts(hint: Any) -> Iterable[Any]:
    """A type hint, and everything inside it."""
    yield hint
    for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        if get_origin(hint) is not Literal:
            yield from _parts(part)


def _choices(hint: Any) -> tuple[str, ...]:
    """The words that a field with a fixed list of choices takes."""
    return next((get_args(p) for p in _parts(hint) if get_origin(p) is Literal), ())


def provenance(kind: type[Setting]) -> dict[str, str]:
    """Where each field comes from: the class's ``source``, or what its comment says."""
    marks = {"[paper]": PAPER, "[summary]": SUMMARY, "[ours]": OURS}
    return {
        name: next((full for mark, full in marks.items() if text.endswith(mark)), kind.source)
        for name, text in kind.sentences().items()
    }


# ------------------------------------------------------------------------------------- values


def with_values(setting: Setting, values: Mapping[str, Any], *, owner: str) -> Any:
    """Return the setting with some values replaced, each checked against its field's type."""
    hints = setting._hints()
    for name in values:
        if name not in hints:
            raise InputError(f"{owner} has no setting {name!r}; {nearest(name, hints)}")
    return setting.replace(**{name: _checked(name, v, hints[name]) for name, v in values.items()})


def _checked(name: str, value: Any, kind: Any) -> Any:
    parts, choices = tuple(_parts(kind)), _choices(kind)
    if isinstance(value, str) and value.lower() in ("none", "auto") and type(None) in parts:
        return None
    if isinstance(value, bool) and bool not in parts:
        raise InputError(f"{name}={value}: expected {'a word' if choices else 'a number'}.")
    try:
        found = _adapter(kind).validate_python(value)
    except ValidationError as error:
        if isinstance(value, str) and choices:
            raise InputError(f"{name}={value}: {nearest(value, choices)}") from None
        problem = error.errors()[0]["msg"].removeprefix("Input should be ").partition(", unable")[0]
        a_number = "a number " if problem.startswith(("greater", "less")) else ""
        msg = f"{name}={value}: expected {a_number}{problem[:1].lower()}{problem[1:]}."
        raise InputError(msg) from None
    if isinstance(found, float) and not np.isfinite(found):  # whatever its field says
        raise InputError(f"{name}={value}: expected a finite number.")
    if isinstance(found, int) and abs(found) > LARGEST_WHOLE:
        raise InputError(f"{name}={value}: expected a whole number of at most 10^12.")
    return found


_adapter = functools.lru_cache(TypeAdapter)


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Split ``name=value`` words, as they come from the command line.

    >>> parse_assignments(["width=64", "init=he"])
    {'width': '64', 'init': 'he'}
    """
    pairs = {}
    for word in assignments:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InputError(f"--set {word}: expected name=value, e.g. --set width=64.")
        name = name.strip().replace("-", "_")
        if name in pairs:
            raise InputError(f"--set {name}=... is given twice.")
        pairs[name] = value.strip()
    return pairs
