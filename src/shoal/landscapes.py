"""The risk on a plane around where runs ended, with numbers that say how it looks."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.markup import escape

from shoal import console, trees
from shoal.diagnostics import landscape as land
from shoal.diagnostics.dynamics import curvature
from shoal.errors import InputError, nearest
from shoal.figures import Curve, Figure, Panel, Surface
from shoal.lab import engine
from shoal.lab.run import Run
from shoal.lab.setup import Setup
from shoal.lab.visit import number
from shoal.runtime import in_float64

KINDS = ("random", "pca", "path")


class Landscape(NamedTuple):
    """Planes of several runs on the same directions, and what was measured on each."""

    kind: str
    blocks: tuple[str, ...]
    words: str  # What the directions are.
    grid: np.ndarray  # Along both sides.
    planes: tuple[np.ndarray, ...]
    measures: tuple[dict[str, Any], ...]  # One for each run, with its name.
    figure: Figure

    def plot(self) -> Any:
        """Draw contours and surfaces with matplotlib."""
        from shoal.pages.drawing import draw

        return draw(self.figure)

    @property
    def table(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Head and rows: what was measured, with a column for each run."""
        keys = [key for key in self.measures[0] if key != "run"]
        rows = [(k.replace("_", " "), *(_cell(m[k]) for m in self.measures)) for k in keys]
        return ("", *(m["run"] for m in self.measures)), tuple(rows)

    @property
    def finding(self) -> str:
        """What the planes look like, in a sentence for each."""
        said = []
        for one in self.measures:
            minima = int(one["local_minima"])
            many = {0: "no local minimum inside", 1: "one local minimum"}.get(
                minima, f"{minima} local minima"
            )
            ends = f"{number(one['lowest'])} to {number(one['highest'])}"
            bent = f"{100 * one['indefinite']:.0f} % of it curved both ways"
            said.append(f"{one['run']}: the risk goes from {ends}, with {many} and {bent}.")
        return " ".join(said)

    @property
    def explained(self) -> str:
        """What the rows of the table are."""
        return MEASURES

    def parts(self) -> list[Any]:
        """The directions and the table, as things to print."""
        head, rows = self.table
        return [self.words, console.table(*map(escape, head), rows=rows)]

    def __repr__(self) -> str:
        """The measures as a table."""
        return console.text_of(*self.parts())


def _cell(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


MEASURES = (
    "Local minima: points of the grid below all neighbours. Indefinite, negative: shares of it "
    "that curve both ways, or only down. Roughness: 1 if lines only rise or fall, 2 for bowls, "
    "more for hills. Flat: share within the lowest tenth of the range. Hessian: its extreme "
    "eigenvalues at the run's end."
)
"""What the rows of the table are."""


class Side(NamedTuple):
    """A finished run to look around: its first seed, in float64."""

    name: str
    run: Run
    start: Setup
    end: Any  # Parameters.


def _side(name: str, run: Run) -> Side:
    one = run.setup.astype("float64").one()
    end = jax.tree.map(lambda w: jnp.asarray(w[0], jnp.float64), run.params)
    if not all(np.isfinite(w).all() for w in jax.tree.leaves(end)):
        raise InputError(f"{name} diverged: around its end there is nothing to see.")
    return Side(name, run, one.replace(params0=jax.tree.map(jnp.asarray, one.params0)), end)


@in_float64
def landscape(
    *runs: Run,
    directions: str = "random",
    blocks: str = "",
    span: float = 1.0,
    points: int = 51,
    samples: int | None = None,
    seed: int = 0,
    names: tuple[str, ...] = (),
    progress: Callable[[int, int], Any] = lambda *_: None,
) -> Landscape:
    """The risk on a plane around the end of each run's first seed.

    All runs are shown on the directions of the first: ``random`` (rows scaled to the weights'),
    ``pca`` (principal directions of its path, which is run again) or ``path`` (from start to end,
    against a random one). ``blocks`` selects the parameters along which to move, by default those
    that were trained. ``samples`` restricts the risk to the first samples.
    """
    _require(runs, directions, span, points, samples, seed)
    names = names or tuple(f"run {k + 1}" for k in range(len(runs)))
    sides = [_side(name, run) for name, run in zip(names, runs, strict=True)]
    chosen = _common_blocks(sides, blocks)
    axes, path, words = _directions(sides[0], directions, chosen, seed)
    grid = np.linspace(-span, span, points)
    planes, measures, panels = [], [], []
    for done, side in enumerate(sides, 1):
        values, numbers = _plane(side, axes, chosen, grid, samples)
        planes.append(values)
        measures.append({"run": side.name} | numbers)
        # rows of values are the first direction, drawn upward
        shown = Panel(side.name, "second direction", "first direction", path if done == 1 else ())
        shown = shown._replace(surface=Surface(side.name, grid, grid, values))
        panels += [shown, shown._replace(solid=True, curves=())]
        progress(done, len(sides))
    title = f"Risk on a plane ({directions} directions)"
    figure = Figure("landscape", title, words, tuple(panels))
    return Landscape(directions, chosen, words, grid, tuple(planes), tuple(measures), figure)


def _require(runs: tuple, kind: str, span: float, points: int, samples: Any, seed: int) -> None:
    if kind not in KINDS:
        raise InputError(f"directions {kind}: {nearest(kind, KINDS)}")
    if not 0 < span < 1e6 or not 3 <= points <= 501:
        msg = f"span {span}, points {points}: expected a span above 0 and 3 to 501 points."
        raise InputError(msg)
    if not 0 <= seed < 2**31 or (samples is not None and samples < 1):
        msg = f"seed {seed}, samples {samples}: expected 0 .. 2**31 - 1, and 1 or more."
        raise InputError(msg)
    if not runs:
        raise InputError("a landscape needs one or more runs; make one with shoal train --out.")


def _common_blocks(sides: list[Side], text: str) -> tuple[str, ...]:
    """Blocks along which to look: selected, or those that the first run trained."""
    wanted = tuple(n.strip() for n in text.split(",") if n.strip())
    names = trees.block_names(sides[0].end, wanted or sides[0].start.trained)
    for side in sides[1:]:
        mine, others = trees.blocks(sides[0].end), trees.blocks(side.end)
        for name in names:
            shape, other = mine[name].shape, getattr(others.get(name), "shape", "missing")
            if shape != other:
                msg = (
                    f"{side.name}: {name} has shape {other}, but in {sides[0].name} it is {shape}; "
                    "the same directions must fit all runs."
                )
                raise InputError(msg)
    return names


def _directions(side: Side, kind: str, names: tuple[str, ...], seed: int) -> tuple:
    """Two directions, the run's path in their plane where it is known, and words."""
    key = jax.random.key(seed)
    listed = ", ".join(names)
    if kind == "random":
        words = f"Random directions in {listed}, rows scaled to those of the first run's weights."
        return land.random_directions(key, side.end, names), (), words
    still = f"did not move in {side.name}; choose other blocks."
    if kind == "path":
        start, end = trees.blocks(side.start.params0), trees.blocks(side.end)
        if all(np.array_equal(start[name], end[name]) for name in names):
            raise InputError(f"{listed} {still}")
        words = f"From start (-1) to end (0) of the first run in {listed}, against a random one."
        return land.path_directions(key, side.start.params0, side.end, names), (), words
    seen = engine.snapshots(side.run.setup.rows([0]))
    if missing := [name for name in names if name not in seen]:
        raise InputError(f"{', '.join(missing)} {still}")
    main = land.principal_directions({name: jnp.asarray(seen[name][0], float) for name in names})
    words = (
        f"Principal directions of the first run's path in {listed}; they hold "
        f"{100 * float(main.share):.1f}% of its variance."
    )
    y, x = np.asarray(main.path).T
    return main.directions, (Curve("path of the run", x, y, y, y),), words


@functools.partial(jax.jit, static_argnames=("names", "batch"))
def _compute(start: Setup, centre: Any, axes: Any, grid: Any, *, names: tuple, batch: int) -> tuple:
    values = land.plane(start.value_risk, centre, axes, grid, grid, batch_size=batch)
    return values, curvature(start.risk, train=names)(centre)


def _plane(
    side: Side, axes: land.Directions, names: tuple, grid: np.ndarray, samples: int | None
) -> tuple[np.ndarray, dict[str, Any]]:
    start = side.start
    if samples is not None:
        start = start.replace(problem=jax.tree.map(lambda x: x[:samples], start.problem))
    largest = max((leaf.size for leaf in jax.tree.leaves(start.problem)), default=1)
    tokens = getattr(start.setting, "num_tokens", 1)
    batch = min(max(1, 2**22 // max(largest * tokens, 1)), 256)
    values, ends = _compute(start, side.end, axes, grid, names=names, batch=batch)
    step = float(grid[1] - grid[0])
    measures: dict[str, Any] = land.measures(np.asarray(values), (step, step))
    measures |= {
        "hessian_min": float(ends["min"]),
        "hessian_max": float(ends["max"]),
        "hessian_converged": bool(ends["min_converged"] & ends["max_converged"]),
    }
    return np.asarray(values), measures
