"""Settings: flat NamedTuples with a comment per number, parsed and checked before anything runs."""

import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from shoal.errors import InputError, nearest

Count = Annotated[int, Field(ge=1, le=10**12)]
Whole = Annotated[int, Field(ge=0, le=10**12)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _names(text: str) -> str:
    return ",".join(part.strip() for part in text.split(",") if part.strip())


Names = Annotated[str, AfterValidator(_names)]
"""Names separated by commas, such as ``W_Q,W_K``."""


def _three(text: str) -> str:
    """Three positive numbers, or one for all three."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3) or not all(0 < x < float("inf") for x in numbers):
        msg = "three positive numbers such as 3,3,3 (or one for all)"
        raise PydanticCustomError("three", msg)
    return ",".join(
        f"{x:g}" if float(f"{x:g}") == x else repr(x) for x in numbers * (3 // len(numbers))
    )


Three = Annotated[str, BeforeValidator(str), AfterValidator(_three)]
"""Three positive numbers separated by commas."""


def with_values(setting: Any, values: Mapping[str, Any], *, owner: str) -> Any:
    """Return the setting with some values replaced, each checked against its field's type."""
    hints = get_type_hints(type(setting), include_extras=True)
    checked = {}
    for name, value in values.items():
        if name not in hints:
            msg = f"{owner} has no setting {name!r}; {nearest(name, hints)}"
            raise InputError(msg)
        checked[name] = _checked(name, value, hints[name])
    return setting._replace(**checked)


def _checked(name: str, value: Any, kind: Any) -> Any:
    if (
        isinstance(value, str)
        and value.lower() in ("none", "auto")
        and type(None) in _members(kind)
    ):
        return None
    if isinstance(value, str) and (choices := _choices(kind)) and value not in choices:
        msg = f"{name}={value}: {nearest(value, choices)}"
        raise InputError(msg)
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Input should be ")
        msg = f"{name}={value}: expected {_lower(problem)}."
        raise InputError(msg) from None


_adapter = functools.lru_cache(TypeAdapter)


def _members(kind: Any) -> tuple:
    return getattr(kind, "__args__", ())


def _choices(kind: Any) -> tuple[str, ...]:
    """The words that a setting with a fixed list of choices takes."""
    kinds = (kind, *_members(kind))
    return next((get_args(k) for k in kinds if get_origin(k) is Literal), ())


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Split ``name=value`` words, as they come from the command line.

    >>> parse_assignments(["width=64", "init=he"])
    {'width': '64', 'init': 'he'}
    """
    pairs = {}
    for word in assignments:
        name, equals, value = word.partition("=")
        if not equals or not name:
            msg = f"--set {word}: expected name=value, e.g. --set width=64."
            raise InputError(msg)
        name = name.strip().replace("-", "_")
        if name in pairs:
            msg = f"--set {name}=... is given twice."
            raise InputError(msg)
        pairs[name] = value.strip()
    return pairs
