"""A study: settings x seeds -> runs. A table, a figure, a claim, a plan and a sweep are studies.

    table = Study("wu2023", grid={"width": [32, 128]}, seeds=8, num_steps=50).run()

Runs of equal shape go into one compiled call, whatever their numbers, data and seeds.
"""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.figures import Figure, Panel, band
from shoal.lab import engine
from shoal.lab.run import Run, train
from shoal.lab.setting import Setting
from shoal.lab.setup import Setup, make_data, paper_setup
from shoal.lab.theorem import certify
from shoal.trees import size
from shoal.tuning import best_step

MOST_RUNS = 64
"""Runs in one call: more do not make it faster, and a stop would lose more."""
MOST_FLOATS = 2**24
"""Numbers that the runs of one call may hold together."""


class Study:
    """Settings x seeds, and how to run them."""

    def __init__(
        self,
        target: Any,
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
        seeds: int | Iterable[int] = 8,
        fresh_data: bool = False,
        probes: Iterable[str] = (),
        theorems: Iterable[str] = (),
        step_size: Any = None,
        precision: str = "float64",
        control: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> None:
        """``target`` is a paper, or a function of a grid point that returns a `Setup`.

        ``grid`` lists values to vary; every combination is a point. ``fresh_data`` draws new data
        for every seed (seed s has ``data_seed=s``), else all seeds share one problem. Other
        keywords are settings that stay; ``control`` overrides them and the grid's values, for a
        negative control.
        """
        self.target, self.grid = target, {k: tuple(v) for k, v in (grid or {}).items()}
        self.seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
        self.fresh_data, self.precision = fresh_data, precision
        self.probes, self.theorems = tuple(probes), tuple(theorems)
        self.step_size, self.values, self.control = step_size, values, dict(control or {})

    def changed(self, **changes: Any) -> "Study":
        """A copy with other seeds, probes or settings."""
        now = vars(self) | {"grid": {k: v for k, v in self.grid.items() if k not in changes}}
        target, values = now.pop("target"), now.pop("values")
        return Study(target, **(now | values | changes))

    def points(self) -> list[dict[str, Any]]:
        """Every combination of the grid's values."""
        points = itertools.product(*self.grid.values())
        return [dict(zip(self.grid, point, strict=True)) for point in points]

    def setups(self) -> list[Setup]:
        """A setup for every point."""
        target, make = paper_named(self.target), fresh_setup if self.fresh_data else paper_setup
        settings = [self.values | point | self.control for point in self.points()]
        if callable(target):
            return [target(**values) for values in settings]
        how: dict[str, Any] = {"seeds": self.seeds, "precision": self.precision}
        return [make(target, values, **how) for values in settings]

    def runs(self) -> list[Run]:
        """A run with all seeds for every point."""
        return [train(s, step_size=self.step_size, probes=self.probes) for s in self.setups()]

    def run(self) -> Any:
        """A tidy polars frame: one row per run, with its settings, seed, risks and verdicts."""
        import polars as pl

        rows = []
        for point, run in zip(self.points(), self.runs(), strict=True):
            verdicts = {key: run.certify(key).verdicts for key in self.theorems}
            for i, seed in enumerate(run.seeds):
                row = point | {"seed": seed} | run_row(run, i)
                rows.append(row | {key: found[i] for key, found in verdicts.items()})
        return pl.DataFrame(rows, infer_schema_length=None)

    def caption(self, theorem: str = "") -> str:
        """What a figure of this study shows: its settings, its seeds, and whose curves."""
        fixed = self.values | ({} if self.step_size is None else {"step_size": self.step_size})
        words = ", ".join(f"{name} {value}" for name, value in fixed.items()) or "defaults"
        many = len(self.seeds) > 1
        seeds = f"{len(self.seeds)} seeds: median and quartiles" if many else "one seed"
        curves = f" Curves with a name after the colon are those of {theorem}." if theorem else ""
        return f"Settings: {words}; {seeds}.{curves}"

    def __repr__(self) -> str:
        name = self.target
        if not isinstance(name, str):
            name = getattr(paper_named(name), "key", getattr(name, "__name__", "a function"))
        grid = ", ".join(f"{k} in {list(v)}" for k, v in self.grid.items()) or "one setting"
        return f"Study of {name}: {grid}; {len(self.seeds)} seeds"


def paper_named(target: Any) -> Any:
    """A paper by its key or file, by its setting class, or itself; a function stays as it is."""
    if isinstance(target, str):
        from shoal.papers import paper_of

        return paper_of(target)
    return target.paper if isinstance(target, type) and issubclass(target, Setting) else target


def run_row(run: Run, i: int) -> dict[str, Any]:
    """One seed of a run as the cells of a table."""
    risk = np.asarray(run.risk[i], float)
    finite = risk[np.isfinite(risk)]
    gone = run.diverged_at[i]
    row: dict[str, Any] = {
        "status": "done" if gone is None else "diverged",
        "used_step_size": float(run.step_size[i]) if run.step_size is not None else None,
        "risk_first": float(risk[0]),
        "risk_last": float(risk[-1]),
        "risk_least": float(finite.min()) if finite.size else None,
    }
    for name, values in run.probes.items():
        last = np.asarray(values[i, -1])
        row[f"probe_{name}"] = last.item() if last.ndim == 0 else [float(x) for x in last.ravel()]
    return row


# --------------------------------------------------------------------------- many runs in one call


def fresh_setup(
    paper: Any, values: Mapping[str, Any], *, seeds: Iterable[int], **more: Any
) -> Setup:
    """A setup in which every seed has its own data: those of ``data_seed`` equal to the seed."""
    seeds = tuple(seeds)
    base = paper_setup(paper, values, seeds=seeds, **more)
    rows = []
    for i, seed in enumerate(seeds):
        setting = base.setting.replace(data_seed=seed)
        problem, held_out = make_data(setting)
        one = base.rows([i]).replace(setting=setting, problem=problem, held_out=held_out)
        rows.append(one.astype(base.precision))
    return stack(rows)


def stack(setups: Sequence[Setup]) -> Setup:
    """Setups of equal shape as one whose parts all have an entry per run."""
    first = setups[0]

    def rows(setup: Setup) -> dict[str, Any]:
        count, traced = setup.num_runs, setup.setting.split()[1]
        shared = {k: getattr(setup, k) for k in ("problem", "held_out") if k not in setup.stacked}
        spread = jax.tree.map(lambda x: np.broadcast_to(x, (count, *np.shape(x))), shared)
        # the step size has a place of its own, and the number of steps is equal for all
        values = {k: v for k, v in traced.items() if k not in ("step_size", "num_steps")}
        if "values" not in setup.stacked:
            values = jax.tree.map(lambda v: np.full(count, v), values)
        return setup.parts() | spread | {"values": values}

    parts = jax.tree.map(lambda *xs: np.concatenate(xs), *(rows(setup) for setup in setups))
    seeds = tuple(seed for setup in setups for seed in setup.seeds)
    stacked = tuple(dict.fromkeys((*first.stacked, *parts)))
    return first.replace(stacked=stacked, seeds=seeds).with_parts(parts)


def program_key(setup: Setup) -> Any:
    """Setups with the same one can be stacked: compile key, steps, precision and shapes."""
    leaves, structure = jax.tree.flatten(setup.one())
    shapes = tuple((np.shape(leaf), str(np.asarray(leaf).dtype)) for leaf in leaves)
    return structure, shapes, setup.setting.num_steps, setup.step_size is None


def runs_per_call(setup: Setup) -> int:
    """Runs of a program that go into one call."""
    held = setup.setting.floats_per_step() + 4.0 * size(setup.setting.network().spec)
    return max(1, min(MOST_RUNS, int(MOST_FLOATS / held)))


# -------------------------------------------------------------------------- often used in claims


Seeds = int | tuple[int, ...]
"""Seeds, or how many of them from 0 on."""


class Plan(NamedTuple):
    """Sizes of an experiment that claims and figures share."""

    seeds: Seeds = 8
    steps: int = 200
    samples: int = 12
    tokens: int = 4
    dim: int = 10
    width: int = 64  # Or heads.
    layers: int = 1
    grid: tuple[Any, ...] = ()  # Widths, lengths, lags, ...
    points: int = 21  # Along each side of a plane.


def seeds_of(seeds: Seeds) -> tuple[int, ...]:
    """Seeds as a tuple."""
    return tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)


def trained(
    target: Any, seeds: Seeds, probes: tuple[str, ...] = (), *, step: Any = None,
    fresh_data: bool = False, precision: str = "float64", **values: Any,
) -> Run:  # fmt: skip
    """Train every seed of one setting; the same call is done only once in a process.

    ``step`` is a number, one for each seed, None for each seed's default, or ``"tuned"``: the one
    step that is best on these seeds (`best_step`).
    """
    more = step, fresh_data, precision, tuple(sorted(values.items()))
    return _trained(paper_named(target), seeds_of(seeds), probes, *more)


@functools.lru_cache(maxsize=64)
def _trained(
    paper: Any, seeds: tuple, probes: tuple, step: Any, fresh: bool, precision: str, values: tuple
) -> Run:
    make = fresh_setup if fresh else paper_setup
    setup = make(paper, dict(values), seeds=seeds, precision=precision)
    return train(setup, step_size=tuned_step(setup) if step == "tuned" else step, probes=probes)


def decades(risk: np.ndarray, floor: float = 1e-12) -> np.ndarray:
    """How far each seed's risk fell, in powers of ten, on average over the run.

    The area above the logarithmic curve: it rewards falling early as well as falling far; nothing
    is gained below ``floor`` times the first risk. A run that diverges counts as minus infinity.

    >>> decades(np.array([[1.0, 0.1, 0.01]])).tolist()
    [1.0]
    """
    risk = np.asarray(risk, float)
    share = np.maximum(risk / risk[:, :1], floor)
    fallen = -np.mean(np.log10(share), axis=1)
    return np.where(np.isfinite(risk).all(axis=1), fallen, -np.inf)


def tuned_step(setup: Setup, *, budget: int = 9) -> float:
    """The step size at which the mean over seeds of `decades` is largest (`best_step`)."""

    def score(step_size: float) -> float:
        risk = np.asarray(engine.trajectories(setup.with_steps(step_size)).risk)
        return -float(np.mean(decades(risk)))

    first = 2 * float(np.min(engine.default_steps(setup)))
    return best_step(score, first, budget=budget).step_size


def study_figure(
    key: str, title: str, study: Study, names: tuple[str, ...], *, full: bool, theorem: str = ""
) -> Figure:
    """The risk and some probes along training, one curve per point of a study.

    With a theorem, its curves (a bound, the exact curve) are drawn over the risk of the first seed.
    """
    wanted = tuple(name for name in names if name != "risk")
    runs = study.changed(probes=wanted, seeds=4 * len(study.seeds) if full else study.seeds).runs()
    labels = [", ".join(f"{k} {v}" for k, v in point.items()) or "run" for point in study.points()]

    above = not theorem and all(run.best for run in runs)  # else runs could not be compared

    def panel(name: str) -> Panel:
        curves, log = [], name == "risk" and not theorem
        for label, run in zip(labels, runs, strict=True):
            values = run.risk - (run.best if above and run.best else 0.0)
            values = values if name == "risk" else run.probes[name]
            curves.append(band(label, run.step, values, positive=log))
            if theorem and name == "risk":
                found = certify(run, theorem)[0].curves.items()
                curves += [band(f"{label}: {k}", run.step, np.asarray(y)[None]) for k, y in found]
        words = "risk above its optimum" if name == "risk" and above else name.replace("_", " ")
        return Panel(words, "step", words, tuple(curves), log_y=log)

    return Figure(key, title, study.caption(theorem), tuple(panel(name) for name in names))
