r"""A program in the fewer kinds of operations that a proof on disk has and `shoal.check` knows.

Differences, quotients, roots, sums of rows and centring become products, powers and products of
matrices; functions that are others in disguise are written as these; truth values are the numbers
1 and 0. Comparisons and choices stay as they are, so the checker decides every branch itself.
"""

import math
from typing import Any

import numpy as np

from shoal.verified.balls import UNIT
from shoal.verified.program import Operation, Program

NEAR = 2.0e-16
"""How far the floats nearest to log(2) and pi/2 lie from them, at most."""
KEPT = ("weight", "take", "join", "add", "mul", "dot", "softmax", "logsumexp", "normalise")


class Lowered:
    """Operations so far; ``numbers`` says where the values of the old program are."""

    def __init__(self, program: Program) -> None:
        self.operations: list[Operation] = []
        self.numbers: list[int] = []
        self._constants: dict[Any, int] = {}
        for op in program.operations:
            self.place = op.place
            self.numbers.append(self._one(op))

    def emit(self, kind: str, inputs: tuple[int, ...], size: int, **options: Any) -> int:
        """Add an operation; its number."""
        self.operations.append(Operation(kind, inputs, size, options, self.place))
        return len(self.operations) - 1

    def constant(self, value: np.ndarray, radius: float = 0.0) -> int:
        """Known numbers, each within ``radius``; equal ones are kept once."""
        key = value.tobytes(), value.size, radius
        if key not in self._constants:
            self._constants[key] = self.emit("constant", (), value.size, value=value, radius=radius)
        return self._constants[key]

    def times(self, a: int, factor: float, radius: float = 0.0) -> int:
        """A value times a number."""
        size = self.operations[a].size
        return self.emit("mul", (a, self.constant(np.full(size, factor), radius)), size)

    def plus(self, a: int, number: float, radius: float = 0.0) -> int:
        """A value plus a number."""
        size = self.operations[a].size
        return self.emit("add", (a, self.constant(np.full(size, number), radius)), size)

    def unary(self, name: str, a: int) -> int:
        """A function of every entry, as one that the checker knows."""
        if name in ("sqrt", "rsqrt"):
            return self.power(a, 0.5 if name == "sqrt" else -0.5)
        if name == "exp2":
            return self.unary("exp", self.times(a, math.log(2), NEAR))
        if name == "expm1":
            return self.plus(self.unary("exp", a), -1.0)
        if name == "centred_softplus":
            return self.plus(self.unary("softplus", a), -math.log(2), NEAR)
        if name == "log1p":
            return self.unary("log", self.plus(a, 1.0))
        if name == "logistic":
            return self.plus(self.times(self.unary("tanh", self.times(a, 0.5)), 0.5), 0.5)
        if name == "erfc":
            return self.plus(self.times(self.unary("erf", a), -1.0), 1.0)
        if name == "cos":
            return self.unary("sin", self.plus(a, math.pi / 2, NEAR))
        return self.emit("unary", (a,), self.operations[a].size, name=name)

    def power(self, a: int, exponent: float) -> int:
        """A power of every entry."""
        return self.emit("power", (a,), self.operations[a].size, exponent=exponent)

    def rows_times(self, a: int, rows: int, matrix: np.ndarray, radius: float = 0.0) -> int:
        """Each row of a value times a known matrix."""
        k, n = matrix.shape
        right = self.constant(matrix.ravel(), radius)
        return self.emit("dot", (a, right), rows * n, sizes=(1, rows, k, n))

    # ------------------------------------------------------------------------------ one operation

    def _one(self, op: Operation) -> int:
        given, options = [self.numbers[i] for i in op.inputs], op.options
        if op.kind in KEPT:
            return self.emit(op.kind, tuple(given), op.size, **options)
        if op.kind == "constant":
            return self.constant(options["value"])
        if op.kind == "sub":
            return self.emit("add", (given[0], self.times(given[1], -1.0)), op.size)
        if op.kind == "neg":
            return self.times(given[0], -1.0)
        if op.kind == "div":
            return self.emit("mul", (given[0], self.power(given[1], -1)), op.size)
        if op.kind == "unary":
            return self.unary(options["name"], given[0])
        if op.kind == "power":
            return self.power(given[0], options["exponent"])
        if op.kind in ("sum", "centre"):
            return self._rows(op, given[0])
        if op.kind == "max":
            return self.emit("largest", (given[0],), op.size, rows=options["rows"])
        if op.kind == "logic":
            return self._logic(options["name"], given, op.size)
        return self._branch(op, given)

    def _rows(self, op: Operation, a: int) -> int:
        rows = op.options["rows"]
        k = self.operations[a].size // max(rows, 1)
        if op.kind == "sum":
            return self.rows_times(a, rows, np.ones((k, 1)))
        return self.rows_times(a, rows, np.eye(k) - 1 / k, 2 * UNIT)

    def _branch(self, op: Operation, given: list[int]) -> int:
        if op.kind == "select":
            return self.emit("select", tuple(given), op.size)
        if op.kind == "compare":
            return self.compare(op.options["name"], *given)
        if op.kind == "finite":
            return self.compare("ne", given[0], self.constant(np.full(op.size, -np.inf)))
        zero = self.constant(np.zeros(op.size))  # negative: what is not below zero has no value
        return self.emit("select", (self.compare("lt", given[0], zero), given[0], zero), op.size)

    def compare(self, name: str, a: int, b: int) -> int:
        """1 where a comparison is true, else 0."""
        return self.emit("compare", (a, b), self.operations[a].size, name=name)

    def _logic(self, name: str, given: list[int], size: int) -> int:
        """Truth values are the numbers 1 and 0."""
        if name in ("all", "any"):
            k = self.operations[given[0]].size // max(size, 1)
            count = self.rows_times(given[0], size, np.ones((k, 1)))
            least = k - 0.5 if name == "all" else 0.5
            return self.compare("gt", count, self.constant(np.full(size, least)))
        if name == "and":
            return self.emit("mul", tuple(given), size)
        if name == "not":
            return self.plus(self.times(given[0], -1.0), 1.0)
        count = self.emit("add", tuple(given), size)
        return self.compare("gt", count, self.constant(np.full(size, 0.5)))
