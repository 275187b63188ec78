"""Watch a training loop that shoal does not run.

    watch = sh.watch(setup, every=100, out="log")
    for step in range(num_steps):
        watch(step, params)     # or a PyTorch, Flax or Equinox module
        ...                     # your own step

Every ``every`` steps risk and probes are computed on the setup's data and appended to the log.
`shoal.load` makes a run of a log, so everything that works on runs works on it. ``watch.seconds``
says what each record cost.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal import trees
from shoal.errors import InputError
from shoal.lab import engine
from shoal.lab.run import Run, chosen_probes
from shoal.lab.setup import Setup
from shoal.runtime import in_float64, numpy_tree

DEFAULT = ("gradient_norm", "movement")
KEPT = 2**20
"""Models with at most this many weights have their newest ones written at every record."""


class Watch:
    """Record probes of a model that somebody else trains; call it before every step."""

    def __init__(
        self,
        setup: Setup,
        *,
        every: int = 100,
        probes: Iterable[str] = DEFAULT,
        out: str | Path = "log",
        method: str = "unknown",
        step_size: float | None = None,
    ) -> None:
        """``method`` and ``step_size`` say what the loop does, if a theorem is to be checked."""
        from shoal.disk import logs

        if setup.num_runs != 1:
            raise InputError(f"a loop trains one model, and this setup has {setup.num_runs} seeds.")
        if not isinstance(every, int) or every < 1:
            raise InputError(f"every={every!r}: expected a whole number, at least 1.")
        self.setup = setup if step_size is None else setup.with_steps(step_size)
        self.every, self.out = every, Path(out)
        self.probes = chosen_probes(self.setup, list(probes))
        self.last = -1
        self.seconds: list[float] = []  # What each record cost; the first one also compiles.
        about = {
            "model": setup.name, "every": every, "probes": self.probes, "method": method,
            "step_size": step_size, "num_samples": setup.setting.num_samples,
        }  # fmt: skip
        logs.begin(self.out, about)

    @in_float64
    def __call__(self, step: int, model: Any) -> None:
        """Record, if ``step`` is a multiple of ``every``."""
        if step % self.every:
            return
        from shoal.disk import logs

        jax.block_until_ready(model)  # steps of the loop that are still under way are not our cost
        begun = time.perf_counter()

        if step <= self.last:
            raise InputError(f"step {step} comes after step {self.last}; steps should grow.")
        params = self._params(model)
        seen = numpy_tree(engine.look(self.setup, params, self.probes))
        row = {name: _cell(x[0]) for name, x in seen.items()}
        if self.last < 0:
            logs.write_params(self.out / "params0.npz", params)
        if trees.size(params) <= KEPT:
            logs.write_params(self.out / "params.npz", params)
        logs.append(self.out, {"step": int(step)} | row)
        self.last = int(step)
        self.seconds.append(time.perf_counter() - begun)

    def _params(self, model: Any) -> Any:
        """Weights with a leading axis of one seed, in the setup's own form."""
        read = getattr(self.setup.setting, "read", None)
        found = model if read is None else read(model)
        wanted = trees.blocks(self.setup.params0)
        blocks = {name: np.asarray(W, np.float64)[None] for name, W in trees.blocks(found).items()}
        for name, W in wanted.items():
            if name not in blocks or blocks[name].shape != W.shape:
                got = blocks[name].shape[1:] if name in blocks else "nothing"
                raise InputError(f"block {name!r} has shape {W.shape[1:]} in the setup; got {got}.")
        return trees.with_blocks(self.setup.params0, blocks)


watch = Watch


def _cell(value: Any) -> Any:
    return value.item() if value.ndim == 0 else [float(v) for v in value.ravel()]


def run_of_log(folder: Path, setup: Setup | None) -> Run:
    """A log as a run of the setup that it watched."""
    from shoal.disk import logs
    from shoal.files import read_npz

    about, table = logs.read_log(folder)
    if setup is None:
        raise InputError(
            f"{str(folder)!r} is a log of the model {about['model']!r}; give the setup that it "
            "watched: sh.load(folder, setup)."
        )
    step, every = table["step"].to_numpy(), int(about["every"])
    if len(step) and not np.array_equal(step, np.arange(len(step)) * every):
        raise InputError(
            f"{str(folder)!r}: steps are missing; expected 0, {every}, {2 * every} ..."
        )
    unknown = jax.tree.map(lambda W: W * np.nan, setup.params0)

    def stored(name: str) -> Any:
        if not (folder / name).is_file():
            return unknown
        return trees.with_blocks(unknown, read_npz(folder / name, tuple(trees.blocks(unknown))))

    setup, last = setup.replace(params0=stored("params0.npz")), stored("params.npz")
    known = {"method": str(about["method"]), "num_steps": int(step[-1]), "every": every}
    setup = setup.with_setting(**known)
    if about["step_size"] is not None:
        setup = setup.with_steps(float(about["step_size"]))
    probes = {
        name: np.asarray(table[name].to_list(), float)[None]
        for name in table.columns
        if name not in ("step", "risk")
    }
    notes = {"step_size_source": "the loop's own"}
    parts = engine.generic.parts_of(setup, about["probes"], probes)
    return Run(setup, step, table["risk"].to_numpy()[None], probes, last, None, parts, notes)
