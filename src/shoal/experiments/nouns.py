"""What a paper brings to the laboratory, and what is made of it: plain values."""

from typing import NamedTuple

import jax

from shoal._typing import Any, Array, Callable, Float, Init, Params, Probe, Scalar
from shoal.certificates import Certificate
from shoal.claims import Claim
from shoal.errors import InputError, nearest
from shoal.figures import Figure
from shoal.methods import Method
from shoal.models import Model
from shoal.problems import Problem
from shoal.training import Trajectory

ANY_METHOD = "any"  # of a theorem that speaks of the start only


TRACED = ("step_size", "hidden_step_ratio", "num_steps", "data_seed", "label_scale")


class Case(NamedTuple):
    """One start of one setting: everything that a probe or a theorem may ask for."""

    setting: Any
    problem: Problem
    params0: Params
    step_size: Scalar
    speeds: dict[str, Scalar]  # step of each block over the step size; 0 if frozen
    drawn: bool  # the weights were drawn by the setting's initialisation, not given by the user
    held_out: Problem | None = None  # data that training does not see


class Theorem(NamedTuple):
    """A statement that can be confronted with a run."""

    key: str  # as in `shoal certify PAPER.KEY`
    statement: str
    source: str
    method: str  # the method it speaks of, a key of METHODS or ANY_METHOD
    probes: tuple[str, ...]  # what to record to check all its conclusions
    needs: tuple[str, ...]  # of these, those without which nothing can be said
    certificate: Callable[[Case, Trajectory], Certificate]
    largest_step: Callable[[Case], Float[Array, ""]] | None  # NaN where no step is allowed
    covers: Callable[[Any], bool] = lambda _: True  # does it speak of a setting's model at all?


class FigureRecipe(NamedTuple):
    """How to make one of a paper's figures, at quick or full size."""

    key: str
    title: str
    make: Callable[[bool], Figure]  # argument: full size?
    jobs: Callable[[bool], list[Callable[[], Any]]] = lambda _: []
    """Long parts of the work, each kept on disk when done, so that a stop loses little."""


class Planned(NamedTuple):
    """How `shoal plan` looks for the smallest width, unless told otherwise."""

    grow: str  # the setting that is the width
    theorem: str | None  # that certifies from some width on
    values: tuple[tuple[str, Any], ...]  # settings that stay
    samples: tuple[int, ...]
    octaves: tuple[int, int]  # of the phase diagram: widths 2**first .. 2**last
    highest: int  # octave beyond which no certificate is sought
    seeds: int


class Paper(NamedTuple):
    """All that shoal knows of a paper. A new paper is one such value."""

    key: str
    title: str
    authors: str
    year: int
    arxiv: str
    about: str
    setting: Any  # the defaults, a flat NamedTuple
    problem: Callable[[Any], Problem]
    model: Callable[[Any], Model]
    init: Callable[[Any], Init]
    loss: Callable[[Array, Array], Float[Array, ""]]
    sizes: Callable[[Params], dict[str, int]]  # settings that the shapes of parameters decide
    speeds: Callable[[Any], dict[str, Scalar]]
    kernel: Callable[[Case], Callable[[Params], Float[Array, "N N"]] | None]
    probes: Callable[[Case], dict[str, Probe]]
    default_probes: tuple[str, ...]
    theorems: tuple[Theorem, ...]
    claims: tuple[Claim, ...] = ()
    figures: tuple[FigureRecipe, ...] = ()
    # what not every paper needs
    target: Callable[[Any], str] = lambda _: "y"  # `Y`, if a target is a matrix with a row a token
    queries: bool = False  # does a problem file's `q`, a query for each sequence, matter?
    held_out: Callable[[Any], Problem | None] = lambda _: None
    from_file: Callable[[Any], Any] = lambda setting: setting  # a setting whose data come from one
    method: Callable[[Any, Method], Method] = lambda _, method: method  # e.g. projected
    averages: bool = False  # keep the mean of the iterates along a run
    traced: tuple[str, ...] = TRACED  # settings that no compiled program depends on
    planned: Planned | None = None  # for `shoal plan`
    numeric: tuple[str, ...] = ()  # numbers that a program may be given later: no shape, no weights
    data_alone: bool = False  # are data made without those, the step and the number of steps?
    check: Callable[[Any, Problem], None] = lambda *_: None  # of data from outside
    floor: Callable[[Case], Callable[[Params], Scalar] | None] = lambda _: None  # of the risk
    usual_step: Callable[[Case], Scalar | None] = lambda _: None  # instead of the kernel's
    activations: Callable[[Any], float | None] = lambda _: None  # numbers in a step of one seed
    complete: Callable[[Any], Any] = lambda setting: setting  # fill in what follows, or refuse
    program: Callable[[Any], Any] = lambda setting: setting  # without what only makes the data


class Experiment(NamedTuple):
    """A setting made concrete: one problem, and a start for each seed."""

    paper: Paper
    setting: Any
    given: tuple[str, ...]  # names of the settings that the user chose
    problem: Problem
    params0: Params  # leading axis: seeds
    seeds: tuple[int, ...]
    precision: str
    drawn: bool = True  # initial weights come from the setting's initialisation
    held_out: Problem | None = None


def theorem_of(paper: Paper, key: str) -> Theorem:
    """A theorem by its key."""
    for theorem in paper.theorems:
        if theorem.key == key:
            return theorem
    msg = f"{paper.key} has no theorem {key!r}; {nearest(key, [t.key for t in paper.theorems])}"
    raise InputError(msg)


def trained(setting: Any) -> tuple[str, ...] | None:
    """Names of the blocks that move; None for all."""
    return None if setting.train == "all" else tuple(setting.train.split(","))


def data_key(setting: Any) -> Array:
    """The key from which a setting's data are made; never that of any weights."""
    return jax.random.fold_in(jax.random.key(setting.data_seed), 0)
