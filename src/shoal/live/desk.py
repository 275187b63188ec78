"""From a state to a setup: which targets a page may name, which theorem, probes and step.

Only papers that ship or are installed, the example, and the target that the user typed can be
named: a link never makes shoal run a file.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import InputError, nearest
from shoal.files import cache_folder
from shoal.lab import engine
from shoal.lab.paper import Paper
from shoal.lab.run import chosen_probes
from shoal.lab.setup import Setup
from shoal.lab.theorem import ANY_METHOD, Theorem, allowed_steps, require_covered
from shoal.live.controls import NOT_HERE
from shoal.live.state import State
from shoal.papers import PAPERS, target_of

MOST_NUMBERS = 400_000
"""Numbers that a page may hold of one run: records times curves."""
CERTIFIED_STEPS = 200
"""Steps of a paper that leaves their number open, as in ``shoal certify``."""
EXAMPLE = f"{Path(__file__).with_name('example.py')}:model"


class Asked(NamedTuple):
    """What a state describes, ready to train: one seed, its step size chosen."""

    state: State  # With the theorem that was chosen.
    source: Any
    setup: Setup
    theorem: Theorem | None
    probes: tuple[str, ...]
    uncovered: str = ""  # Why no theorem, or not the one that was asked for.

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return int(self.setup.setting.num_steps)

    def piece(self, at: int, stop: int) -> int:
        """Steps of the next piece: a whole segment of the engine where one fits, else one record.

        So two programs serve every run, and the first is the one of ``shoal train``.
        """
        every = self.setup.setting.every
        whole = engine.segment_steps(self.total, every)
        return whole if at % whole == 0 and at + whole <= stop else every

    @property
    def step_size(self) -> float | None:
        """The step size at the start."""
        return None if self.setup.step_size is None else float(self.setup.step_size[0])


def titles(own: str) -> dict[str, str]:
    """What can be chosen, by name: papers, the user's own target, the example."""
    file, colon, name = own.rpartition(":") if ".py:" in own else (own, "", "")
    found = {own: f"{Path(file).name}{colon}{name} (yours)"}
    papers = {key: f"{paper.key}: {paper.title}" for key, paper in PAPERS.items()}
    listed = papers | (found if own and own not in papers else {})
    return listed | {EXAMPLE: "an own model (the example)"}


def source_of(target: str, own: str) -> Any:
    """The paper or own model of that name, if a page may name it."""
    if target in PAPERS or target in (own, EXAMPLE):
        return _loaded(target)
    hint = nearest(target, [*PAPERS, *filter(None, [own])])
    raise InputError(f"this page has no {target!r}; to open a file: shoal lab {target}; {hint}")


@functools.cache
def _loaded(target: str) -> Any:
    return target_of(target)


def data_file(digest: str) -> Path:
    """Where a file that was dropped on the page is kept, by its digest."""
    if not digest.isalnum():
        raise InputError("data: expected the digest of a file that was dropped on the page.")
    return cache_folder() / "lab-data" / f"{digest}.npz"


def ask(state: State, own: str = "") -> Asked:
    """The setup that a state describes, or what is wrong with it."""
    source = source_of(state.target, own)
    values: dict[str, Any] = dict(state.values)
    for name in NOT_HERE:
        if name in values:
            raise InputError(f"{name} cannot be set on the page; use the command line.")
    if isinstance(source, Paper) and source.setting().num_steps is None:
        values.setdefault("num_steps", CERTIFIED_STEPS)
    data = None
    if state.data and not (data := data_file(state.data)).is_file():
        raise InputError("the data file of this address is not here any more; drop it again.")
    known = {theorem.key: theorem for theorem in source.all_theorems()}
    if state.theorem and state.theorem not in known:
        hint = nearest(state.theorem, known)
        raise InputError(f"{state.target} has no theorem {state.theorem!r}; {hint}")
    chosen = known.get(state.theorem)
    if chosen is not None and chosen.method != ANY_METHOD:
        methods = (chosen.method,) if isinstance(chosen.method, str) else chosen.method
        values.setdefault("method", methods[0])
    seeds = (state.seed,)
    setup = source.setup(values, seeds=seeds, data=data, params=None, precision="float64")
    uncovered = ""
    if chosen is None:
        chosen, uncovered = _first_that_covers(setup, tuple(known.values()))
    else:
        try:
            require_covered(setup, chosen)
        except InputError as error:
            chosen, uncovered = None, str(error)
    if setup.step_size is None:
        setup = setup.with_steps(_automatic(setup, chosen))
    probes = chosen_probes(setup, list(state.probes), chosen.probes if chosen else ())
    _require_modest(setup, len(probes))
    used = state._replace(theorem=chosen.key if chosen else "", values=_words(values))
    return Asked(used, source, setup, chosen, probes, uncovered)


def _automatic(setup: Setup, theorem: Theorem | None) -> np.ndarray:
    """As in ``shoal certify``: the largest step that the theorem allows, else the default."""
    if theorem is not None and theorem.largest_step is not None:
        allowed = allowed_steps(setup, theorem)
        if np.isfinite(allowed).all():
            return allowed
    return engine.default_steps(setup)


def _words(values: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in values.items())


def _first_that_covers(setup: Setup, known: tuple[Theorem, ...]) -> tuple[Theorem | None, str]:
    why = ""
    for theorem in known:
        try:
            require_covered(setup, theorem)
        except InputError as error:
            why = why or str(error)
        else:
            return theorem, ""
    return None, why


def _require_modest(setup: Setup, curves: int) -> None:
    setting = setup.setting
    records = setting.num_steps // setting.every + 1
    if records * (curves + 1) > MOST_NUMBERS:
        most = max(1, MOST_NUMBERS // (curves + 1))
        raise InputError(
            f"{records} records of {curves + 1} curves are too many for a page; set every so that "
            f"there are at most {most}, or fewer probes."
        )


def with_weights(setup: Setup, params: Any, step_size: float) -> Setup:
    """The setup of a run that begins at given weights."""
    stacked = np.asarray(step_size, np.float64)
    return setup.replace(params0=params).with_steps(stacked)
