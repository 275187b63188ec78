r"""A tangent kernel too large for one process: made in parts by workers, kept as one array on disk.

Samples are divided into $p^2$ groups, the points of a plane over the field of $p$ elements. Any two
points lie on exactly one of its $p^2+p$ lines, so if every task is the kernel of the samples of
one line, every pair of groups is computed once (a group with itself $p+1$ times), and a task needs
nothing but the kernel of fewer samples. The prime $p$ is the smallest for which a line has at most
as many samples as were asked for.
"""

import functools
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.disk.cache import code_version
from shoal.errors import InputError
from shoal.files import write_aside
from shoal.lab.memory import made_arrays
from shoal.lab.setup import Setup
from shoal.papers import target_of
from shoal.runtime import in_float64

LINES, KERNEL = "lines", "kernel.npy"
Line = tuple[int, ...]
"""Numbers of the groups on a line."""


class Parts(NamedTuple):
    """How the samples of a kernel are divided."""

    samples: int
    prime: int  # 1: a single part, the whole.

    @property
    def edges(self) -> np.ndarray:
        """Where groups begin; all samples in order, groups of nearly equal size."""
        return np.linspace(0, self.samples, self.prime**2 + 1).round().astype(int)

    @property
    def lines(self) -> list[Line]:
        """All lines: upright ones, then those of each slope."""
        p = self.prime
        upright = [tuple(x * p + y for y in range(p)) for x in range(p)]
        sloped = [
            tuple(x * p + (slope * x + start) % p for x in range(p))
            for slope in range(p)
            for start in range(p)
        ]
        return upright + sloped if p > 1 else upright

    @property
    def longest(self) -> int:
        """Samples on the longest line, or a few more."""
        return self.prime * -(-self.samples // self.prime**2)

    def rows(self, line: Line) -> np.ndarray:
        """Numbers of the samples on a line."""
        edges = self.edges
        return np.concatenate([np.arange(edges[g], edges[g + 1]) for g in line])


def divided(samples: int, most: int) -> Parts:
    """Parts of at most ``most`` samples.

    >>> divided(20000, 2000)
    Parts(samples=20000, prime=11)
    >>> divided(50, 100)
    Parts(samples=50, prime=1)
    """
    if most < 4:
        raise InputError(f"parts of {most} samples: expected 4 or more.")
    if samples <= most:
        return Parts(samples, 1)
    primes = (p for p in range(2, samples) if all(p % q for q in range(2, int(p**0.5) + 1)))
    for p in primes:
        if p * -(-samples // p**2) <= most:
            return Parts(samples, p)
    raise InputError(f"{samples} samples cannot be divided into parts of {most}.")


# ---------------------------------------------------------------------------------- in a worker


def make_line(task: dict[str, Any]) -> None:
    """Compute the kernel of one line's samples and write it, whole, into the folder."""
    start, kernel = _start(json.dumps(task["model"], sort_keys=True))
    parts = Parts(*task["parts"])
    rows = parts.rows(parts.lines[task["line"]])
    filled = np.resize(rows, parts.longest)  # one program serves all lines
    made = np.asarray(kernel(_of_samples(start, filled)))
    side = len(made) // len(filled) * len(rows)
    made = made[:side, :side] * _weight_ratio(start, len(filled))
    write_aside(line_file(Path(task["folder"]), task["line"]), npy_bytes(made))


def _weight_ratio(start: Setup, samples: int) -> float:
    """The loss's weight of a sample among all, over that among some: a mean divides by more."""
    whole, part = start.squares_weight, _of_samples(start, np.arange(samples)).squares_weight
    return 1.0 if whole is None or part is None else whole / part


def line_file(folder: Path, line: int) -> Path:
    """Where the kernel of a line lies."""
    return folder / LINES / f"{line:05d}.npy"


def npy_bytes(array: np.ndarray) -> bytes:
    """An array as a file of NumPy has it."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


@functools.lru_cache(maxsize=1)
def _start(words: str) -> tuple[Setup, Callable[[Setup], Any]]:
    """The one start that a task's words describe, and its kernel as a compiled function."""
    return one_start(json.loads(words)), jax.jit(in_float64(_kernel))


def _kernel(one: Setup) -> Any:
    if (kernel := one.tangent_kernel()) is None:
        raise InputError("a part is too large for its kernel to be formed; take smaller parts.")
    return kernel(one.params0)


@in_float64
def part_bytes(start: Setup, parts: Parts) -> float:
    """Bytes that the kernel of one line takes: its largest array thrice, foreseen from shapes."""
    rows = np.zeros(parts.longest, int)
    line = jax.eval_shape(lambda one: _of_samples(one, rows), start)
    return 3 * max(made_arrays(jax.make_jaxpr(_kernel)(line)), default=0.0)


def one_start(model: dict[str, Any]) -> Setup:
    """The start with a seed of a paper or of a user's model."""
    how = {name: model[name] for name in ("data", "params", "precision")}
    made = target_of(model["target"]).setup(model["values"], seeds=(model["seed"],), **how)
    if not made.has_samples:
        raise InputError(f"{made.name} has no samples, and so no tangent kernel over samples.")
    if made.network.coupled:
        raise InputError(f"{made.name}: outputs depend on the whole batch, which has no parts.")
    return made.with_steps(1.0).one()


def _of_samples(start: Setup, rows: np.ndarray) -> Setup:
    return start.replace(problem=jax.tree.map(lambda x: x[rows], start.problem), held_out=None)


# ---------------------------------------------------------------------------------- in the client


class Work(NamedTuple):
    """A kernel that is being made in a folder."""

    folder: Path
    model: dict[str, Any]  # Words that every worker understands (`one_start`).
    parts: Parts
    outputs: int  # Numbers that the model puts out for a sample.

    @property
    def size(self) -> int:
        """Rows of the kernel."""
        return self.parts.samples * self.outputs

    def about(self) -> dict[str, Any]:
        """What decides the numbers; a folder made from anything else is refused."""
        target = self.model["target"].rpartition("/")[2]
        said = self.model | {"target": target, "code": code_version()}
        return said | {"samples": self.parts.samples, "outputs": self.outputs,
                       "prime": self.parts.prime}  # fmt: skip

    def tasks(self) -> Iterator[dict[str, Any]]:
        """The lines that are not there yet."""
        for number, line in enumerate(self.parts.lines):
            if not self._is_there(number, line):
                yield {"model": self.model, "parts": list(self.parts), "line": number,
                       "folder": str(self.folder), "kernel": True}  # fmt: skip

    def _is_there(self, number: int, line: Line) -> bool:
        side = len(self.parts.rows(line)) * self.outputs
        try:
            found = np.load(line_file(self.folder, number), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        return found.shape == (side, side) and found.dtype == np.float64

    def assemble(self) -> Path:
        """Write the kernel as one array, group by group; afterwards the lines are removed."""
        made, path = self.folder / f"{KERNEL}.part", self.folder / KERNEL
        head = {"descr": "<f8", "fortran_order": False, "shape": (self.size, self.size)}
        with made.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, head)
            for group in range(self.parts.prime**2):
                file.write(self._rows_of(group).tobytes())
        made.replace(path)
        self.forget_parts()
        return path

    def forget_parts(self) -> None:
        """Remove the parts of an array that is there."""
        for number in range(len(self.parts.lines)):
            line_file(self.folder, number).unlink(missing_ok=True)
        if (self.folder / LINES).is_dir():
            (self.folder / LINES).rmdir()

    def _rows_of(self, group: int) -> np.ndarray:
        """The kernel's rows of a group: a piece of every line through it."""
        edges = self.parts.edges * self.outputs
        rows = np.empty((edges[group + 1] - edges[group], self.size))
        for number, line in enumerate(self.parts.lines):
            if group not in line:
                continue
            made = np.load(line_file(self.folder, number), mmap_mode="r", allow_pickle=False)
            ends = np.cumsum([0, *(edges[g + 1] - edges[g] for g in line)])
            mine = line.index(group)
            band = made[ends[mine] : ends[mine + 1]]
            for place, other in enumerate(line):
                rows[:, edges[other] : edges[other + 1]] = band[:, ends[place] : ends[place + 1]]
        return rows


class Ends(NamedTuple):
    """Smallest and largest eigenvalue, and how far each pair is from being one."""

    smallest: float
    largest: float
    residuals: tuple[float, float]  # |K v - value v| for unit v: an eigenvalue is that near.
    converged: tuple[bool, bool]


def product_with(path: Path, rows_at_once: int = 256) -> Callable[[np.ndarray], np.ndarray]:
    """Products of a kernel on disk with a vector, holding some of its rows."""
    head = np.load(path, mmap_mode="r", allow_pickle=False)
    size, offset = len(head), head.offset
    del head

    def product(v: np.ndarray) -> np.ndarray:
        image = np.empty(size)
        with path.open("rb") as file:
            file.seek(offset)
            for first in range(0, size, rows_at_once):
                count = min(rows_at_once, size - first)
                band = np.fromfile(file, np.float64, count * size).reshape(count, size)
                with np.errstate(invalid="ignore", over="ignore"):  # seen by who asks
                    image[first : first + count] = band @ v
        return image

    return product


def ends_of(
    product: Callable[[np.ndarray], np.ndarray], size: int, *, num_matvecs: int = 60,
    rtol: float = 1e-6,
) -> Ends:  # fmt: skip
    """Both ends of the spectrum of a symmetric operator, by Lanczos with full orthogonalisation.

    ``converged`` compares a residual with ``rtol`` times the eigenvalue, or with rounding. The
    lower end of an ill-conditioned kernel rarely converges: read the flag. An operator that is not
    finite has no ends: NaN.

    >>> round(ends_of(lambda v: np.array([1.0, 2.0, 9.0]) * v, 3).largest, 9)
    9.0
    """
    depth, basis, alpha, beta = min(num_matvecs, size), [], [], []
    v = np.random.default_rng(0).standard_normal(size)
    v /= np.linalg.norm(v)
    for _ in range(depth):
        basis.append(v)
        w = product(v)
        if not np.isfinite(w).all():
            return Ends(np.nan, np.nan, (np.nan, np.nan), (False, False))
        alpha.append(v @ w)
        Q = np.array(basis)
        for _ in range(2):  # twice is enough
            w = w - Q.T @ (Q @ w)
        beta.append(float(np.linalg.norm(w)))
        if beta[-1] <= 1e-13 * max(map(abs, alpha)):
            break
        v = w / beta[-1]
    T = np.diag(alpha) + np.diag(beta[: len(alpha) - 1], 1) + np.diag(beta[: len(alpha) - 1], -1)
    S, Q = np.linalg.eigh(T)[1], np.array(basis)
    values, residuals = [], []
    for k in (0, -1):
        vector = S[:, k] @ Q
        vector /= np.linalg.norm(vector)
        image = product(vector)  # the true residual, not the recurrence's estimate
        values.append(float(vector @ image))
        residuals.append(float(np.linalg.norm(image - values[-1] * vector)))
    dust = size * np.finfo(float).eps * max(map(abs, values))
    good = [bool(r <= max(rtol * abs(x), dust)) for r, x in zip(residuals, values, strict=True)]
    return Ends(values[0], values[1], (residuals[0], residuals[1]), (good[0], good[1]))
