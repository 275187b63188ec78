"""A run: what training a setup leaves behind. It saves, loads, draws and prints itself."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.diagnostics.dynamics import STATES
from shoal.errors import InputError, nearest
from shoal.figures import Figure
from shoal.lab import engine, probes
from shoal.lab.replay import Loaded, certify, replayed
from shoal.lab.setup import Setup
from shoal.lab.theorem import Theorem, allowed_steps, theorem_of
from shoal.methods import METHODS
from shoal.runtime import in_float64
from shoal.training import Trajectory


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Trajectories of every seed; all arrays are NumPy."""

    setup: Setup
    step: np.ndarray  # (records,)
    risk: np.ndarray  # (seeds, records)
    probes: dict[str, np.ndarray]  # (seeds, records, ...) by name
    params: Any  # Final parameters, with a leading axis of seeds.
    average: Any = None  # Mean of the iterates, if it was kept.
    parts: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """For each probe the names of its parts: ``movement`` is recorded as ``movement_W_Q``, ..."""
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    loaded: Loaded | None = None  # Where it was read from, until it has been replayed.

    @property
    def trajectory(self) -> Trajectory:
        """The same as stacked trajectories."""
        steps: Any = np.broadcast_to(self.step, self.risk.shape)
        risk: Any = self.risk
        return Trajectory(steps, risk, self.probes, self.params, self.average)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the initial weights."""
        return self.setup.seeds

    @property
    def step_size(self) -> Any:
        """The step size of every seed; None if the method has its own."""
        return self.setup.step_size

    @property
    def best(self) -> float | None:
        """The known optimum of the risk, which rates and figures subtract; None: zero."""
        lowest = self.setup.setting.lowest(self.setup.problem)
        return None if lowest is None else float(lowest)

    @property
    def diverged_at(self) -> list[int | None]:
        """For every seed the first recorded step whose risk is not finite."""
        bad = ~np.isfinite(self.risk)
        return [int(self.step[np.argmax(row)]) if row.any() else None for row in bad]

    def certify(self, theorem: Any) -> Any:
        """Compare a theorem with this run (`shoal.certify`)."""
        return certify(self, theorem)

    def replay(self, *, whole: bool = False) -> "Run":
        """Compute a run that was read from disk again, and refuse it if it records other numbers.

        `shoal.certify` and `shoal.prove` do so by themselves. ``whole`` replays long runs from end
        to end, not in parts; ``notes["replayed"]`` says what was replayed.
        """
        return replayed(self, whole=whole)

    def final_states(self) -> list[dict[str, Any]] | None:
        """Where each seed came to rest; None if the lowest possible risk is not known."""
        if "ended" in self.notes:
            return self.notes["ended"]
        if (ends := engine.final_states(self.setup, self.trajectory)) is None:
            return None
        each = [{name: x[i] for name, x in ends.items()} for i in range(len(self.seeds))]
        return [end | {"state": STATES[int(end["state"])]} for end in each]

    def state_dict(self, seed: int | None = None) -> Any:
        """Trained weights in the form of the module that they came from.

        For PyTorch a ``state_dict``, for Flax and Equinox the module (or variables) itself; for a
        JAX function the tree of weights. ``seed`` chooses one of several.
        """
        row = 0 if seed is None else self.seeds.index(seed)
        params = jax.tree.map(lambda W: W[row], self.params)
        restore = getattr(self.setup.setting, "restore", None)
        return params if restore is None else restore(params)

    def frame(self) -> Any:
        """A polars frame: seed, step, (time,) risk, and one column per scalar probe."""
        import polars as pl

        seeds = np.repeat(np.asarray(self.seeds), len(self.step))
        columns: dict[str, Any] = {"seed": seeds, "step": np.tile(self.step, len(self.seeds))}
        if self.setup.setting.method == "flow":
            columns["time"] = (self.step_size[:, None] * self.step[None]).ravel()
        columns["risk"] = self.risk.ravel()
        scalar = {name: x.ravel() for name, x in self.probes.items() if x.ndim == 2}
        return pl.DataFrame(columns | scalar)

    def figure(self, *names: str) -> Figure:
        """The risk and some probes as a figure (data, not yet drawn)."""
        from shoal.pages.sections import run_figure

        return run_figure(self, names)

    def plot(self, *names: str, out: str | Path | None = None) -> Any:
        """Draw the risk and some probes with matplotlib; ``out`` saves PNG or PDF."""
        from shoal.pages.drawing import draw

        page = draw(self.figure(*names))
        if out is not None:
            page.savefig(out, dpi=160)
        return page

    def save(self, folder: str | Path, certificates: Iterable[Any] = ()) -> None:
        """Write a run folder; it appears whole or not at all."""
        from shoal.disk.runs import save_run

        save_run(Path(folder), self, tuple(certificates))

    def __repr__(self) -> str:
        from shoal.console import run_parts, text_of

        return text_of(*run_parts(self))

    def _repr_html_(self) -> str:
        from shoal.pages.notebook import run_html

        return run_html(self)


def load(folder: str | Path, setup: Setup | None = None, *, paper: str = "") -> Run:
    """Read a run folder back, checking that its parts belong together.

    A run of your own model needs the ``setup`` that it came from; a run of your own paper needs the
    file that defines it (``paper="mine.py"``), unless that file has been imported or used already.
    """
    from shoal.disk.runs import load_run

    if (Path(folder) / "log.json").is_file():
        from shoal.lab.watch import run_of_log

        return run_of_log(Path(folder), setup)
    if paper:
        from shoal.papers import paper_of

        paper_of(paper)
    return load_run(Path(folder), setup)


def chosen_probes(setup: Setup, wanted: Any, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Probes to record: None for the default ones, ``"all"``, or names; ``extra`` are added.

    Default and extra probes that this model does not have are left out; a name that was asked for
    and does not exist is refused.
    """
    known = probes.probe_names(setup)
    if wanted == "all":
        return known
    usual = [name for name in setup.setting.default_probes if name in known]
    asked = [wanted] if isinstance(wanted, str) else list(wanted or ())
    names = [n for word in asked for n in word.removeprefix("+").split(",") if n]
    if wanted is None or any(word.startswith("+") for word in asked):
        names = [*usual, *names]
    chosen = {engine.stride_of(text)[0]: text for text in names}  # what is given again counts
    for name in chosen:
        if name not in (*known, probes.ITERATES):
            raise probes.unknown(setup, name, known)
    # what a theorem looks at is recorded at every record
    return tuple((chosen | {name: name for name in extra if name in known}).values())


@in_float64
def train(
    setup: Setup,
    *,
    steps: Any = None,
    step_size: Any = None,
    method: Any = None,
    probes: Any = None,
    every: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Train every seed of a setup.

    ``step_size`` is a number, one per seed, or a theorem (its key will do), for the largest step it
    allows; by default the setup's, else one chosen for each seed from that seed alone. ``method``
    is ``gd``, ``flow``, ``sgd``, ``adam`` or any optax transformation. ``probes`` are names to
    record (``"+name"`` adds to the default ones, ``"name@50"`` records every 50 steps), or a dict
    from names to functions ``setup -> (params -> value)`` that make probes of your own; a name
    without a function (None) is one that exists.
    """
    for name, value, least in (("steps", steps, 0), ("every", every, 1)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is not None and (not whole or value < least):
            raise InputError(f"{name}={value!r}: expected a whole number, at least {least}.")
    changes = {"num_steps": steps, "every": every, "method": method}
    changes = {name: value for name, value in changes.items() if value is not None}
    if steps is not None and every is None and steps % setup.setting.every:
        changes["every"] = 1
    setup = setup.with_setting(**changes)
    method = setup.setting.method
    if isinstance(method, str) and method not in METHODS:
        raise InputError(f"no method is called {method!r}; {nearest(method, METHODS)}")
    setup, source, extra = _with_steps(setup, step_size)
    watched, asked = _with_own_probes(setup, probes)
    names = chosen_probes(watched, asked, extra)
    begun = time.perf_counter()
    found = engine.trajectories(watched, names, progress=progress)
    notes = {"step_size_source": source, "seconds": round(time.perf_counter() - begun, 3)}
    parts = engine.generic.parts_of(watched, names, found.probes)
    step, risk = np.asarray(found.step[0]), np.asarray(found.risk)
    return Run(setup, step, risk, dict(found.probes), found.params, found.average, parts, notes)


def _with_own_probes(setup: Setup, probes: Any) -> tuple[Setup, Any]:
    """Add the user's probes to a setup; the names of all that were asked for."""
    if not isinstance(probes, Mapping):
        return setup, probes
    made = {name: make for name, make in probes.items() if make is not None}
    own = {name.removeprefix("+").partition("@")[0]: make for name, make in made.items()}
    for name, make in own.items():
        if not callable(make) or not name.isidentifier():
            msg = f"probes={{{name!r}: ...}}: expected a name and a function of a setup."
            raise InputError(msg)
    return setup.replace(own_probes=tuple(own.items())), list(probes)


def _checked_steps(step_size: Any, count: int) -> np.ndarray:
    try:
        steps = np.asarray(step_size, np.float64)
    except (TypeError, ValueError):
        steps = np.full(0, np.nan)
    if steps.shape not in ((), (count,)) or not np.all(np.isfinite(steps) & (steps > 0)):
        many = f", or {count} of them, one per seed" if count > 1 else ""
        raise InputError(f"step_size={step_size!r}: expected a number above 0{many}.")
    return steps


def _with_steps(setup: Setup, step_size: Any) -> tuple[Setup, str, tuple[str, ...]]:
    """Choose a step for every seed if none is given; where it came from; probes to add."""
    more: tuple[str, ...] = ()
    usual = "default"
    if isinstance(step_size, str | Theorem):
        theorem, step_size = theorem_of(setup, step_size), None
        more = theorem.probes
        limited = theorem.largest_step is not None or theorem.facts is not None
        if setup.step_size is None and limited:
            steps = allowed_steps(setup, theorem)
            none = np.isnan(steps)
            if not none.all():
                steps = np.where(none, engine.default_steps(setup), steps) if none.any() else steps
                return setup.with_steps(steps), f"largest that {theorem.key} allows", more
            usual = f"default: {theorem.key} allows no step here"
    if step_size is not None:
        return setup.with_steps(_checked_steps(step_size, setup.num_runs)), "given", more
    if setup.step_size is not None:
        return setup, "given", more
    if not isinstance(setup.setting.method, str):
        return setup, "the method's own", more
    return setup.with_steps(engine.default_steps(setup)), usual, more
