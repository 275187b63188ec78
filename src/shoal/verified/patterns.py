"""Recognising softmax, logsumexp, centring, normalisation, GELU and SiLU by their wiring.

Every operation is emitted as it stands, and some values carry a *tag* that says what they are in
terms of an earlier value: the exponential of its entries, the sum over its rows. Tags hold the
identity of that value and, entry by entry, which number belongs to which row (trap 17): a mean over
another axis or a sum of another array does not match. When a pattern is complete its single
operation is emitted too, and what nothing needs any more is pruned.

A value under ``stop_gradient``, or the largest of a row, is *opaque*: its derivative is unknown.
Subtracted before an exponential it cancels; used in any other way it stays in the program as a
``stop`` or ``max``, which the rules refuse or decide (R7).
"""

from typing import Any, NamedTuple

import numpy as np

from shoal.verified.program import Operation

ROOT_HALF = 0.7071067811865476


class Opaque(NamedTuple):
    """Entries of an opaque value, as numbers of entries of another one.

    ``source`` is twice the number of that value, plus 1 if its gradient is stopped: a shift that is
    stopped in one place only does not cancel in JAX's derivative.
    """

    source: int
    at: np.ndarray


class Entries(NamedTuple):
    """A function of single entries of ``base``: kind ``shifted``, ``exp`` or ``square``.

    ``shift`` numbers the entries of the opaque value ``source`` that were subtracted; -1: none.
    """

    kind: str
    base: int
    at: np.ndarray
    source: int = -1
    shift: np.ndarray | None = None


class Rows(NamedTuple):
    """A function of rows of ``base``: ((num/den) sum + offset)^power, or its logarithm.

    ``kind`` says what is summed: ``plain``, ``exp`` or ``square``; ``members`` has one row of entry
    numbers for each; ``at`` numbers the row that each entry of the value belongs to.
    """

    kind: str
    base: int
    members: np.ndarray
    at: np.ndarray
    source: int = -1
    shift: np.ndarray | None = None
    num: float = 1.0
    den: float = 1.0
    offset: float = 0.0
    power: float = 1.0
    log: bool = False

    @property
    def is_sum(self) -> bool:
        """Nothing but the sum."""
        return (self.num, self.den, self.offset, self.power, self.log) == (1, 1, 0, 1, False)


class Scaled(NamedTuple):
    """``factor`` times ``base``."""

    base: int
    factor: float


class Function(NamedTuple):
    """The function ``name`` of ``base``, entry by entry."""

    name: str
    base: int


class Patterns:
    """Operations, with tags. Equal operations are emitted once."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.tags: dict[int, Any] = {}
        self.place = ""
        self._known: dict[Any, int] = {}
        self._moves: set[int] = set()  # values that depend on weights

    def emit(self, kind: str, inputs: tuple[int, ...], size: int, **options: Any) -> int:
        """Add an operation, unless an equal one exists; its number."""
        key = (kind, inputs, size, tuple((k, _hashable(v)) for k, v in sorted(options.items())))
        if key not in self._known:
            self._known[key] = number = len(self.operations)
            self.operations.append(Operation(kind, inputs, size, options, self.place))
            if kind == "weight" or any(i in self._moves for i in inputs):
                self._moves.add(number)
        return self._known[key]

    # -------------------------------------------------------------------------------- constants

    def full(self, value: float, size: int) -> int:
        """A constant vector."""
        return self.emit("constant", (), size, value=np.full(size, value))

    def literal(self, number: int) -> float | None:
        """The value of a constant whose entries are all equal."""
        op = self.operations[number]
        if op.kind != "constant" or not op.size:
            return None
        first = float(op.options["value"][0])
        return first if (op.options["value"] == first).all() else None

    def truth(self, x: Any) -> int:
        """A known or unknown array of truth values as an operation."""
        if isinstance(x, np.ndarray):
            value = x.ravel().astype(np.float64)
            one = self.emit("constant", (), value.size, value=value)
            return self.emit("compare", (one, self.full(0.5, value.size)), value.size, name="gt")
        return x.number

    # --------------------------------------------------------------------------------- movement

    def take(self, number: int, index: np.ndarray, fill: float = 0.0) -> int:
        """Entries by number."""
        op = self.operations[number]
        if len(index) == op.size and (index == np.arange(op.size)).all():
            return number
        if op.kind == "constant":
            value = np.where(index < 0, fill, op.options["value"][np.maximum(index, 0)])
            return self.emit("constant", (), len(index), value=value)
        if op.kind == "take" and (index >= 0).all():  # one movement after another is one
            inner = op.options["index"][index]
            found = self.take(op.inputs[0], inner, op.options["fill"])
        else:
            index = np.asarray(index, np.int64)
            found = self.emit("take", (number,), len(index), index=index, fill=float(fill))
        if (index >= 0).all():
            self._tag(found, self._moved_tag(number, index))
        return found

    def _tag(self, number: int, tag: Any) -> None:
        if tag is not None:
            self.tags.setdefault(number, tag)

    def _moved_tag(self, number: int, index: np.ndarray) -> Any:
        tag = self.tags.get(number)
        if isinstance(tag, Entries):
            shift = None if tag.shift is None else tag.shift[index]
            return tag._replace(at=tag.at[index], shift=shift)
        return tag._replace(at=tag.at[index]) if isinstance(tag, Rows | Opaque) else None

    def join(self, numbers: tuple[int, ...]) -> int:
        """Several values, one after the other."""
        if len(numbers) == 1:
            return numbers[0]
        sizes = [self.operations[n].size for n in numbers]
        if all(self.operations[n].kind == "constant" for n in numbers):
            value = np.concatenate([self.operations[n].options["value"] for n in numbers])
            return self.emit("constant", (), len(value), value=value)
        return self.emit("join", numbers, sum(sizes))

    # ------------------------------------------------------------------------------- arithmetic

    def arithmetic(self, kind: str, a: int, b: int) -> int:
        """Sum, difference, product or quotient, or what it completes."""
        attempts = {"add": self._sum, "sub": self._difference, "mul": self._product,
                    "div": self._quotient}  # fmt: skip
        orders = ((a, b), (b, a)) if kind in ("add", "mul") else ((a, b),)
        for one, other in orders:
            if (found := attempts[kind](one, other)) is not None:
                return found
        number = self.emit(kind, (a, b), self.operations[a].size)
        for one, other in orders:
            self._tag(number, self._combined(kind, one, other))
        return number

    def _combined(self, kind: str, a: int, b: int) -> Any:
        """The tag of ``a`` combined with a literal or an opaque value ``b``."""
        tag, value = self.tags.get(a), self.literal(b)
        opaque = self.tags.get(b)
        if kind == "mul" and a == b:
            return Entries("square", a, np.arange(self.operations[a].size))
        if kind == "sub" and isinstance(opaque, Opaque):
            everywhere = np.arange(self.operations[a].size)
            return Entries("shifted", a, everywhere, opaque.source, opaque.at)
        if value is None or not np.isfinite(value):
            return None
        if isinstance(tag, Rows) and tag.power == 1 and not tag.log:
            if kind == "add" and tag.offset == 0:
                return tag._replace(offset=value)
            if value > 0 and tag.offset == 0 and tag.num == tag.den == 1:
                if kind == "mul":
                    return tag._replace(num=value)
                if kind == "div":
                    return tag._replace(den=value)
        if kind == "mul" and not isinstance(tag, Rows | Entries | Opaque):
            return _scaled(a, tag, value)
        return None

    def negative(self, a: int) -> int:
        """The negative."""
        if (value := self.literal(a)) is not None:
            return self.full(-value, self.operations[a].size)
        number = self.emit("neg", (a,), self.operations[a].size)
        if not isinstance(self.tags.get(a), Rows | Entries | Opaque):
            self._tag(number, _scaled(a, self.tags.get(a), -1.0))
        return number

    def _sum(self, a: int, b: int) -> int | None:
        """``log(sum exp(z - c)) + c``, and ``x + stop_gradient(min(x, 0) - x)``."""
        if self._is_cut_at_zero(a, b):
            return self.emit("negative", (a,), self.operations[a].size)
        rows, opaque = self.tags.get(a), self.tags.get(b)
        if not (isinstance(rows, Rows) and rows.log and isinstance(opaque, Opaque)):
            return None
        if rows.source != opaque.source or rows.shift is None:
            return None
        if not (rows.shift[rows.at] == opaque.at).all():
            return None
        return self.take(self._log_sum_exp(rows), rows.at)

    def _is_cut_at_zero(self, a: int, b: int) -> bool:
        """Whether b is ``stop_gradient(min(a, 0) - a)``: value min(a, 0), derivative that of a."""

        def made(number: int, kind: str, **options: Any) -> tuple[int, ...]:
            op = self.operations[number]
            fits = op.kind == kind and all(op.options[k] == v for k, v in options.items())
            return op.inputs if fits else ()

        apart = made(made(b, "stop")[0], "sub") if made(b, "stop") else ()
        if not apart or apart[1] != a or not (chosen := made(apart[0], "select")):
            return False
        which, low, zero = chosen
        return (
            low == a and self.literal(zero) == 0 and made(which, "compare", name="lt") == (a, zero)
        )

    def _difference(self, a: int, b: int) -> int | None:
        """``x - mean(x)``, or ``(z - c) - log(sum exp(z - c))``."""
        one, rows = self.tags.get(a), self.tags.get(b)
        if not isinstance(rows, Rows):
            return None
        if rows.log and isinstance(one, Entries) and one.kind == "shifted":
            place = self._places(rows, one.at)
            same = (one.base, one.source) == (rows.base, rows.source)
            if place is None or not same or not (one.shift == rows.shift[rows.at]).all():  # type: ignore[index]
                return None
            base = self.take(rows.base, one.at)
            return self.arithmetic("sub", base, self.take(self._log_sum_exp(rows), rows.at))
        count = rows.members.shape[1]
        mean = (rows.kind, rows.base, rows.offset, rows.power, rows.log) == (
            "plain",
            a,
            0,
            1,
            False,
        )
        place = self._places(rows, np.arange(self.operations[a].size)) if mean else None
        if place is None or (rows.num, rows.den) != (1, count):
            return None
        return self.take(self._on_rows("centre", rows), place)

    def _product(self, a: int, b: int) -> int | None:
        """``c * rsqrt(mean(c^2) + eps)``, GELU, SiLU."""
        rows = self.tags.get(b)
        if isinstance(rows, Rows) and rows.power == -0.5:
            return self._normalised(a, rows)
        size = self.operations[a].size
        if isinstance(rows, Function):
            if rows.name == "logistic" and rows.base == a:
                return self.emit("unary", (a,), size, name="silu")
            one = self.tags.get(a)
            if rows.name == "half_gaussian_tail" and one == Scaled(rows.base, 0.5):
                return self.emit("unary", (rows.base,), size, name="gelu")
        return None

    def _quotient(self, a: int, b: int) -> int | None:
        """``exp(z - c) / sum exp(z - c)``, ``c / sqrt(mean(c^2) + eps)``."""
        one, rows = self.tags.get(a), self.tags.get(b)
        if not isinstance(rows, Rows):
            return None
        if rows.power == 0.5:
            return self._normalised(a, rows)
        if not (isinstance(one, Entries) and (one.kind, rows.kind) == ("exp", "exp")):
            return None
        if not rows.is_sum or (one.base, one.source) != (rows.base, rows.source):
            return None
        if one.shift is not None and not (one.shift == rows.shift[rows.at]).all():  # type: ignore[index]
            return None
        place = self._places(rows, one.at)
        return None if place is None else self.take(self._on_rows("softmax", rows), place)

    def _normalised(self, a: int, rows: Rows) -> int | None:
        if rows.kind != "square" or rows.base != a or rows.offset < 0:
            return None
        place = self._places(rows, np.arange(self.operations[a].size))
        if place is None:
            return None
        how = {"num": rows.num, "den": rows.den, "offset": rows.offset}
        return self.take(self._on_rows("normalise", rows, **how), place)

    def _places(self, rows: Rows, entries: np.ndarray) -> np.ndarray | None:
        """Where entries of the base stand in its rows, if each stands in the row it is used with.

        None unless every entry of the base belongs to one row at most.
        """
        if len(entries) != len(rows.at) or copies_at_most_once(rows.members) is False:
            return None
        flat = np.full(int(rows.members.max(initial=-1)) + 1, -1)
        flat[rows.members.ravel()] = np.arange(rows.members.size)
        if (entries >= len(flat)).any():
            return None
        place = flat[entries]
        fits = (place >= 0) & (place // rows.members.shape[1] == rows.at)
        return place if fits.all() else None

    def _on_rows(self, kind: str, rows: Rows, **options: Any) -> int:
        arranged = self.take(rows.base, rows.members.ravel())
        count = len(rows.members)
        return self.emit(kind, (arranged,), rows.members.size, rows=count, **options)

    def _log_sum_exp(self, rows: Rows) -> int:
        arranged = self.take(rows.base, rows.members.ravel())
        count = len(rows.members)
        return self.emit("logsumexp", (arranged,), count, rows=count)

    # -------------------------------------------------------------------------------- functions

    def unary(self, name: str, a: int) -> int:
        """A function of every entry."""
        tag, size = self.tags.get(a), self.operations[a].size
        if name == "log" and isinstance(tag, Rows) and tag.kind == "exp" and tag.is_sum:
            if tag.source < 0:
                return self.take(self._log_sum_exp(tag), tag.at)
            number = self.emit("unary", (a,), size, name=name)
            self._tag(number, tag._replace(log=True))
            return number
        number = self.emit("unary", (a,), size, name=name)
        if name == "exp":
            if isinstance(tag, Entries) and tag.kind == "shifted":
                self._tag(number, tag._replace(kind="exp"))
            else:
                self._tag(number, Entries("exp", a, np.arange(size)))
        elif name in ("sqrt", "rsqrt") and isinstance(tag, Rows) and tag.power == 1 and not tag.log:
            self._tag(number, tag._replace(power=0.5 if name == "sqrt" else -0.5))
        elif name == "logistic":
            self._tag(number, Function("logistic", a))
        elif name == "erfc" and isinstance(tag, Scaled) and tag.factor == -ROOT_HALF:
            self._tag(number, Function("half_gaussian_tail", tag.base))
        return number

    def power(self, a: int, exponent: int) -> int:
        """A whole power."""
        size = self.operations[a].size
        if exponent == 0:
            return self.full(1.0, size)
        if exponent == 1:
            return a
        number = self.emit("power", (a,), size, exponent=exponent)
        if exponent == 2:
            self._tag(number, Entries("square", a, np.arange(size)))
        return number

    def log_add_exp(self, a: int, b: int) -> int:
        """``log(e^a + e^b)`` as b + softplus(a - b)."""
        size = self.operations[a].size
        if self.literal(b) == 0:
            return self.emit("unary", (a,), size, name="softplus")
        apart = self.arithmetic("sub", a, b)
        return self.arithmetic("add", b, self.emit("unary", (apart,), size, name="softplus"))

    def select(self, which: int, a: int, b: int) -> int:
        """One value where a predicate holds, the other elsewhere."""
        return self.emit("select", (which, a, b), self.operations[a].size)

    # ------------------------------------------------------------------------------------- rows

    def row_sum(self, a: int, members: np.ndarray) -> int:
        """Sums over rows of entries."""
        arranged = self.take(a, members.ravel())
        number = self.emit("sum", (arranged,), len(members), rows=len(members))
        at, tag = np.arange(len(members)), self.tags.get(a)
        if isinstance(tag, Entries) and tag.kind in ("exp", "square") and members.size:
            shift = None if tag.shift is None else tag.shift[members]
            if shift is None or (shift == shift[:, :1]).all():
                row_shift = None if shift is None else shift[:, 0]
                rows = Rows(tag.kind, tag.base, tag.at[members], at, tag.source, row_shift)
                self._tag(number, rows)
                return number
        self._tag(number, Rows("plain", a, members, at))
        return number

    def row_max(self, a: int, members: np.ndarray) -> int:
        """Largest entries of rows, which may serve as a shift that cancels."""
        arranged = self.take(a, members.ravel())
        number = self.emit("max", (arranged,), len(members), rows=len(members))
        self._tag(number, Opaque(2 * number, np.arange(len(members))))
        return number

    def stop(self, a: int) -> int:
        """``stop_gradient``: the identity for what does not depend on weights."""
        if a not in self._moves:
            return a
        tag, op = self.tags.get(a), self.operations[a]
        number = self.emit("stop", (a,), op.size)
        if isinstance(tag, Opaque):
            self._tag(number, tag._replace(source=tag.source | 1))
        elif op.kind == "take" and (op.options["index"] >= 0).all():
            self._tag(number, Opaque(2 * op.inputs[0] + 1, op.options["index"]))
        else:
            self._tag(number, Opaque(2 * a + 1, np.arange(op.size)))
        return number

    def is_positive(self, a: int) -> bool:
        """Whether a value is a sum of exponentials."""
        tag = self.tags.get(a)
        return isinstance(tag, Rows) and tag.kind == "exp" and tag.is_sum


def _scaled(a: int, tag: Any, factor: float) -> Scaled:
    if isinstance(tag, Scaled):
        product = tag.factor * factor
        if abs(tag.factor) == 1 or abs(factor) == 1:  # exact
            return Scaled(tag.base, product)
    return Scaled(a, factor)


def copies_at_most_once(members: np.ndarray) -> bool:
    """Whether no entry number occurs twice."""
    return len(np.unique(members)) == members.size


def _hashable(value: Any) -> Any:
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
