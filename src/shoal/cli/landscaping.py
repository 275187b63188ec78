"""``shoal landscape``: the risk on a plane around where runs ended."""

from pathlib import Path
from typing import Any, NamedTuple

from shoal.cli import show
from shoal.errors import InputError, nearest
from shoal.session import begin

begin()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from shoal import figures, store, trees  # noqa: E402
from shoal.cli.publishing import write_page  # noqa: E402
from shoal.cli.work import print_json  # noqa: E402
from shoal.diagnostics import landscape as land  # noqa: E402
from shoal.diagnostics.dynamics import curvature  # noqa: E402
from shoal.experiments import Experiment, snapshots, trained  # noqa: E402
from shoal.figures import Curve, Figure, Panel, Surface  # noqa: E402
from shoal.models import empirical_risk, training_risk  # noqa: E402
from shoal.papers import PAPERS  # noqa: E402
from shoal.report import drawing, page  # noqa: E402
from shoal.training import Trajectory  # noqa: E402

KINDS = ("random", "pca", "path")


class Side(NamedTuple):
    """A finished run to look around."""

    name: str
    experiment: Experiment
    run: Trajectory

    @property
    def end(self) -> Any:
        """Where the first seed ended, in float64."""
        return trees.cast(jax.tree.map(lambda w: w[0], self.run.params), "float64")

    @property
    def start(self) -> Any:
        """Where it began."""
        return trees.cast(jax.tree.map(lambda w: w[0], self.experiment.params0), "float64")


def landscape(
    folders: tuple[Path, ...],
    out: Path,
    *,
    kind: str,
    blocks: str,
    span: float,
    points: int,
    samples: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """``shoal landscape``."""
    if kind not in KINDS:
        msg = f"--directions {kind}: {nearest(kind, KINDS)}"
        raise InputError(msg)
    if not 0 < span < 1e6 or not 3 <= points <= 501:
        msg = f"--span {span} --points {points}: expected a span above 0 and 3 to 501 points."
        raise InputError(msg)
    if not 0 <= seed < 2**31 or (samples is not None and samples < 1):
        msg = f"--seed {seed} --samples {samples}: expected 0 .. 2**31 - 1, and 1 or more."
        raise InputError(msg)
    if not folders:
        msg = "shoal landscape needs one or more run folders; make one with shoal train --out."
        raise InputError(msg)
    sides = [Side(str(folder), *store.load_run(folder, PAPERS)) for folder in folders]
    for side in sides:
        if not all(np.isfinite(w).all() for w in jax.tree.leaves(side.end)):
            msg = f"{side.name} diverged: around its end there is nothing to see."
            raise InputError(msg)
    names = _common_blocks(sides, blocks)
    directions, path, said = _directions(sides[0], kind, names, seed)
    grid = jnp.linspace(-span, span, points)
    found = []
    with show.progress("landscape") as tell:
        for done, side in enumerate(sides):
            found.append(_plane(side, directions, names, grid, samples))
            tell(done + 1, len(sides))
    figure = _figure(sides, found, np.asarray(grid), path, said, kind)
    rows = [side_row(side.name, numbers) for side, (_, numbers) in zip(sides, found, strict=True)]
    store.write_json(out / "landscape.json", figure)
    store.write_json(out / "measures.json", {"directions": kind, "blocks": names, "sides": rows})
    store.write_rows(out / "landscape.parquet", figures.rows(figure))
    drawing.save(figure, out)
    used = list({side.experiment.paper.key: side.experiment.paper for side in sides}.values())
    head = tuple(rows[0])
    table = (
        "in numbers",
        tuple(k.replace("_", " ") for k in head),
        tuple(tuple(_cell(row[k]) for k in head) for row in rows),
    )
    parts = [page.figure_section(figure)._replace(tables=(table,))]
    write_page(out / "index.html", "Landscape", said, parts, used)
    if as_json:
        print_json({"out": str(out), "directions": kind, "blocks": names, "sides": rows})
        return
    terminal = show.console()
    terminal.print(said)
    shown = show.table("", *[str(k + 1) for k in range(len(rows))])
    for key in head:
        shown.add_row(key.replace("_", " "), *[_cell(row[key]) for row in rows])
    terminal.print(shown)
    show.note(f"wrote {out / 'index.html'}, landscape.png and landscape.pdf")


def _cell(value: Any) -> str:
    return show.number(value) if isinstance(value, float) else str(value)


def side_row(name: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """A plane's numbers as a row of the table."""
    return {"run": name} | {k: v if isinstance(v, bool) else float(v) for k, v in numbers.items()}


def _common_blocks(sides: list[Side], text: str) -> tuple[str, ...]:
    """Blocks along which to look: named, or those that the first run trained."""
    wanted = tuple(n.strip() for n in text.split(",") if n.strip()) or trained(
        sides[0].experiment.setting
    )
    names = trees.block_names(sides[0].end, wanted)
    if not names:
        msg = f"--blocks {text!r} names no parameter."
        raise InputError(msg)
    for side in sides[1:]:
        for name in names:
            shape, other = (getattr(s.end, name, np.zeros(0)).shape for s in (sides[0], side))
            if shape != other:
                msg = (
                    f"{side.name}: {name} has shape {other}, but in {sides[0].name} it is {shape}; "
                    "the same directions must fit all runs."
                )
                raise InputError(msg)
    return names


def _directions(side: Side, kind: str, names: tuple[str, ...], seed: int) -> tuple:
    key = jax.random.key(seed)
    blocks = ", ".join(names)
    if kind == "random":
        said = f"Random directions in {blocks}, rows scaled to those of the first run's weights."
        return land.random_directions(key, side.end, names), None, said
    if kind == "path":
        still = [n for n in names if bool((getattr(side.start, n) == getattr(side.end, n)).all())]
        if len(still) == len(names):
            msg = f"{', '.join(still)} did not move in {side.name}; choose other --blocks."
            raise InputError(msg)
        said = f"From start (-1) to end (0) of the first run in {blocks}, against a random one."
        return land.path_directions(key, side.start, side.end, names), None, said
    seen = snapshots(side.experiment)
    if missing := [name for name in names if name not in seen]:
        msg = f"{', '.join(missing)} did not move in {side.name}; choose other --blocks."
        raise InputError(msg)
    main = land.principal_directions({name: seen[name][0].astype(jnp.float64) for name in names})
    said = (
        f"Principal directions of the first run's path in {blocks}; they hold "
        f"{100 * float(main.share):.1f}% of its variance."
    )
    return main.directions, np.asarray(main.path), said


def _plane(
    side: Side,
    directions: land.Directions,
    names: tuple[str, ...],
    grid: Any,
    samples: int | None,
) -> tuple[np.ndarray, dict[str, Any]]:
    experiment = side.experiment
    problem = trees.cast(experiment.problem, "float64")
    if samples is not None:
        problem = jax.tree.map(lambda x: x[:samples], problem)
    network = experiment.paper.model(experiment.setting)

    @jax.jit
    def compute(problem: Any, centre: Any, directions: land.Directions) -> tuple:
        risk = empirical_risk(network, problem, experiment.paper.loss)  # differentiable twice
        fast = training_risk(network, problem, experiment.paper.loss)
        width = max(1, 2**22 // max(problem.X.size * problem.X.shape[1], 1))
        values = land.plane(fast, centre, directions, grid, grid, at_once=min(width, 256))
        return values, curvature(risk, train=names)(centre)

    values, ends = compute(problem, side.end, directions)
    step = float(grid[1] - grid[0])
    numbers: dict[str, Any] = land.measures(np.asarray(values), (step, step))
    numbers |= {
        "hessian_min": float(ends["min"]),
        "hessian_max": float(ends["max"]),
        "hessian_converged": bool(ends["min_converged"] & ends["max_converged"]),
    }
    return np.asarray(values), numbers


def _figure(
    sides: list[Side],
    found: list[tuple[np.ndarray, dict[str, Any]]],
    grid: np.ndarray,
    path: np.ndarray | None,
    said: str,
    kind: str,
) -> Figure:
    panels = []
    for k, (side, (values, _)) in enumerate(zip(sides, found, strict=True)):
        curves: tuple[Curve, ...] = ()
        if path is not None and k == 0:
            x, y = path[:, 1], path[:, 0]
            curves = (Curve("path of the run", x, y, y, y),)
        # rows of values are the first direction, drawn upward
        plane = Surface(side.name, grid, grid, values)
        shown = Panel(side.name, "second direction", "first direction", curves, surface=plane)
        panels += [shown, shown._replace(solid=True, curves=())]
    return Figure("landscape", f"Risk on a plane ({kind} directions)", said, tuple(panels))
