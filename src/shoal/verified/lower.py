r"""A program in the fewer kinds of operations that a proof on disk has and `shoal.check` knows.

Differences, quotients, roots, sums of rows and centring become products, powers and products of
matrices; functions that are others in disguise are written as these. Branches go: at the given
weights every comparison is decided, so what it chose is taken, and a ``guard`` demands that the
entries which were compared stay apart on the ball. A checked proof hence speaks of the function
that the model is on that ball.
"""

import math
from typing import Any

import numpy as np

from shoal.verified.balls import UNIT
from shoal.verified.program import Operation, Program, depends

NEAR = 2.0e-16
"""How far the floats nearest to log(2) and pi/2 lie from them, at most."""
KEPT = ("weight", "take", "join", "add", "mul", "dot", "softmax", "logsumexp", "normalise")


class Lowered:
    """Operations so far; ``numbers`` says where the values of the old program are."""

    def __init__(self, program: Program, values: list[Any]) -> None:
        self.operations: list[Operation] = []
        self.numbers: list[int] = []
        self.values, self.moving = values, [bool(blocks) for blocks in depends(program)]
        self._constants: dict[Any, int] = {}
        for number, op in enumerate(program.operations):
            self.number, self.place = number, op.place
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

    def guard(self, a: int, b: int, left: np.ndarray, right: np.ndarray, sign: np.ndarray) -> None:
        """Demand that entries stay above (sign 1) or below (-1) others."""
        if len(sign):
            self.emit("guard", (a, b), 0, left=left, right=right, sign=sign.astype(float))

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
        return self._branch(op, given)

    def _rows(self, op: Operation, a: int) -> int:
        rows = op.options["rows"]
        k = self.operations[a].size // max(rows, 1)
        if op.kind == "sum":
            return self.rows_times(a, rows, np.ones((k, 1)))
        return self.rows_times(a, rows, np.eye(k) - 1 / k, 2 * UNIT)

    def _branch(self, op: Operation, given: list[int]) -> int:
        if op.kind == "max":
            return self._largest(op, given[0])
        if op.kind == "select":
            here, which = np.arange(op.size), self.values[op.inputs[0]]
            if which.all() or not which.any():
                index, source = here, given[1] if which.all() else given[2]
            else:
                index = np.where(which, here, op.size + here)
                source = self.emit("join", tuple(given[1:]), 2 * op.size)
            return self.emit("take", (source,), op.size, index=index, fill=0.0)
        if op.kind == "negative":
            here, zero = np.arange(op.size), self.constant(np.zeros(op.size))
            self.guard(given[0], zero, here, here, -np.ones(op.size))
            return given[0]
        if op.kind == "compare":
            one, other = (self.values[i].mid for i in op.inputs)
            apart = (one != other) | any(self.moving[i] for i in op.inputs)
            need = np.flatnonzero(apart & np.isfinite(one) & np.isfinite(other))
            self.guard(given[0], given[1], need, need, np.sign(one - other)[need])
        return -1  # a predicate: nothing uses its number

    def _largest(self, op: Operation, a: int) -> int:
        value = self.values[op.inputs[0]]
        mid, rad = (x.reshape(op.options["rows"], -1) for x in value)
        top = np.argmax(mid, axis=1)
        first = np.arange(len(mid)) * mid.shape[1] + top
        others = np.ones(mid.shape, bool)
        others[np.arange(len(mid)), top] = False
        if not self.moving[op.inputs[0]]:  # equal numbers may share the lead
            others &= (mid != mid[np.arange(len(mid)), top][:, None]) | (rad > 0)
        right = np.flatnonzero(others)
        left = np.repeat(first, mid.shape[1]).reshape(mid.shape).ravel()[right]
        self.guard(a, a, left, right, np.ones(len(right)))
        return self.emit("take", (a,), op.size, index=first, fill=0.0)
