"""A model as a plain list of operations: what is enclosed, bounded, written down and checked.

A jaxpr has some eighty primitives; a `Program` has the twenty-odd operations below, each with one
rule at the centre (`centre`) and one on the ball (`jets`); the checker knows fewer (`lower`).
All data movement (reshape, transpose, slice, broadcast, gather, ...) is one operation, `take`.
Every value is a vector: the entries of the array row by row.

=============  =================================================================================
operation      value
=============  =================================================================================
weight         trained block number ``block``
constant       the array ``value``: data, frozen weights, literals
take           entry ``index[k]`` of the operand; -1 is the number ``fill``
join           the entries of all operands, one after the other
add, sub       sum, difference of two arrays of one shape
neg            negative
mul, div       product, quotient, entry by entry
dot            products of matrices, ``sizes`` = b, m, k, n: (b, m, k) times (b, k, n)
sum            sum of each of ``rows`` rows
max            largest entry of each row
unary          the function ``name`` of every entry
power          the whole power ``exponent`` of every entry
softmax        softmax of each row
logsumexp      logarithm of the sum of exponentials of each row
centre         each row minus its mean
normalise      each row c over the root of (num/den) |c|^2 + offset
compare        predicate ``name`` (gt, ge, lt, le, eq, ne) of two arrays
logic          ``name`` (and, or, not, all, any) of predicates
finite         predicate that is true where the operand is a number
select         second operand where the predicate is true, else the third
negative       the operand, all of whose entries must be below zero, or it is refused
stop           the operand, whose derivative JAX does not see: refused
=============  =================================================================================
"""

from typing import Any, NamedTuple

import numpy as np

PREDICATES = ("compare", "logic", "finite")
UNARY = (
    "exp", "expm1", "log", "log1p", "tanh", "logistic", "softplus", "erf", "erfc", "sin", "cos",
    "sqrt", "rsqrt", "gelu", "silu", "exp2", "centred_softplus",
)  # fmt: skip


class Operation(NamedTuple):
    """One operation: its kind, the numbers of its operands, the length of its value."""

    kind: str
    inputs: tuple[int, ...]
    size: int
    options: dict[str, Any]
    place: str = ""


class Program(NamedTuple):
    """Operations in order of evaluation; the value numbered ``output`` is the result."""

    operations: tuple[Operation, ...]
    output: int

    @property
    def blocks(self) -> tuple[int, ...]:
        """Numbers of the trained blocks that occur."""
        return tuple(op.options["block"] for op in self.operations if op.kind == "weight")


def pruned(operations: list[Operation], output: int) -> Program:
    """The operations that the output needs, renumbered."""
    needed = {output}
    for number in range(output, -1, -1):
        if number in needed:
            needed.update(operations[number].inputs)
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    kept = tuple(
        operations[old]._replace(inputs=tuple(numbers[i] for i in operations[old].inputs))
        for old in sorted(needed)
    )
    return Program(kept, numbers[output])


def last_uses(program: Program) -> list[list[int]]:
    """For every operation the values that nothing needs afterwards."""
    last: dict[int, int] = {}
    for number, op in enumerate(program.operations):
        last |= dict.fromkeys(op.inputs, number)
    dead: list[list[int]] = [[] for _ in program.operations]
    for value, number in last.items():
        if value != program.output:
            dead[number].append(value)
    return dead


def depends(program: Program) -> list[frozenset[int]]:
    """For every value the trained blocks that it depends on."""
    found: list[frozenset[int]] = []
    for op in program.operations:
        own = frozenset((op.options["block"],)) if op.kind == "weight" else frozenset()
        found.append(own.union(*(found[i] for i in op.inputs)))
    return found


def cut(program: Program, at: int) -> tuple[Program, Program | None]:
    """Split at a value: the program of that value, and the output as a function of it (P3).

    None if the output depends on a trained block in another way too.
    """
    first = pruned(list(program.operations), at)
    operations = list(program.operations)
    length, place = operations[at].size, operations[at].place
    operations[at] = Operation("weight", (), length, {"block": 0}, place)
    second = pruned(operations, program.output)
    others = [op for op in second.operations if op.kind == "weight"]
    return first, second if len(others) == 1 else None


def copies(index: np.ndarray) -> int:
    """How often the most often taken entry is taken."""
    real = index[index >= 0]
    return int(np.bincount(real.ravel()).max(initial=0)) if real.size else 0
