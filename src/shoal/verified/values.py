"""What the variables of a jaxpr become: numbers of operations, with shapes."""

from typing import NamedTuple


class Value(NamedTuple):
    """A float array: the number of its operation, and its shape."""

    number: int
    shape: tuple[int, ...]


class Predicate(NamedTuple):
    """An array of truth values that depend on floats."""

    number: int
    shape: tuple[int, ...]


class Weight(NamedTuple):
    """A trained block, by its number; stands for an argument of the jaxpr."""

    block: int
