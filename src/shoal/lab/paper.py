"""A paper: a setting class, with theorems, claims and figures about it.

    PAPER = Paper(Doe, key="doe2024", title="...", authors="...", year=2024)

    @PAPER.theorem(method="gd", probes=("distance",))
    def theorem_1(setup, run) -> Certificate:
        \"\"\"The risk falls linearly ...\"\"\"

A new paper is one file with such a value, called ``PAPER``.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.errors import InputError
from shoal.figures import Figure
from shoal.lab import effects
from shoal.lab.claim import (
    Check,
    Claim,
    Criterion,
    Design,
    Existence,
    Measure,
    Statement,
    make_claim,
)
from shoal.lab.setting import OURS, PAPER, SUMMARY, Setting
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.study import Study, study_figure
from shoal.lab.theorem import KERNEL_REGIME, Theorem, named_theorem
from shoal.lab.visit import compared


class PaperFigure(NamedTuple):
    """How to make one of a paper's figures, at quick or full size."""

    key: str
    title: str
    make: Callable[[bool], Any]  # Argument: full size?
    source: str
    jobs: Callable[[bool], list[Callable[[], Any]]]
    """Long parts of the work, each kept on disk when done, so that a stop loses little."""


class WidthPlan(NamedTuple):
    """How `shoal plan` looks for the smallest width, unless told otherwise."""

    grow: str = "width"  # The setting that is called the width.
    theorem: str | None = None  # It certifies from some width on.
    values: tuple[tuple[str, Any], ...] = ()  # Settings that stay.
    samples: tuple[int, ...] = (2, 4, 8)
    octaves: tuple[int, int] = (2, 6)  # Of the phase diagram: widths 2**first .. 2**last.
    highest: int = 12  # Octave beyond which no certificate is sought.
    seeds: int = 4


@dataclasses.dataclass(eq=False)
class Paper:
    """Definition of a paper. Decorators add theorems, claims and figures."""

    setting: type[Setting]
    key: str
    title: str = ""
    authors: str = ""
    year: int | None = None
    arxiv: str = ""
    about: str = ""
    theorems: list[Theorem] = dataclasses.field(default_factory=list)
    claims: list[Statement] = dataclasses.field(default_factory=list)
    figures: list[PaperFigure] = dataclasses.field(default_factory=list)
    plan: WidthPlan | None = None
    visit: Callable[[], Any] | None = None  # What `shoal tour` shows of it.

    def __post_init__(self) -> None:
        self.setting.paper = self
        self.title = self.title or (self.setting.__doc__ or self.key).strip().splitlines()[0]

    def theorem(
        self,
        *,
        method: str | tuple[str, ...] = "gd",
        probes: Iterable[str] = (),
        needs: Iterable[str] = (),
        source: str = OURS,
        statement: str = "",
        covers: Mapping[str, Any] | Callable[[Any], bool] = MappingProxyType({}),
        **more: Any,
    ) -> Callable[[Callable], Callable]:
        """Register a function ``(setup, run) -> Certificate`` under its own name.

        The first paragraph of its docstring is the statement, unless one is given. ``covers`` are
        values that a setting must have, or a function of it. ``more`` may be ``largest_step`` (see
        `Theorem`).
        """
        require_provenance(source)
        fits = covers if callable(covers) else functools.partial(has_values, dict(covers))

        def add(function: Callable) -> Callable:
            words = statement or " ".join((function.__doc__ or "").split("\n\n")[0].split())
            key, seen = function.__name__.lstrip("_"), tuple(dict.fromkeys((*needs, *probes)))
            made = Theorem(
                key, words, source, function, method, seen, tuple(needs), covers=fits, **more
            )
            self.theorems.append(made)
            return function

        return add

    def theorem_about(
        self, start: Callable[[Setup], Any], key: str, statement: str,
        conclusion: Callable[[Any, Setup, Any], Any], **how: Any,
    ) -> None:  # fmt: skip
        """Register a general theorem, ``(start, setup, run) -> Certificate``, under a key.

        ``start(setup)`` is what it is about, such as a product of the setup's weights; ``how`` is
        as in `theorem`.
        """

        def certificate(setup: Setup, run: Any) -> Any:
            return conclusion(start(setup), setup, run)

        certificate.__name__ = key
        self.theorem(statement=statement, **how)(certificate)

    def claim(
        self, key: str, statement: str, measure: Measure, test: Criterion, *, source: str = OURS,
        control: Design | None = None, **more: Any,
    ) -> Claim:  # fmt: skip
        """Register a claim: an experiment with one number per seed, a rule and a negative control.

        ``measure(design, seeds)`` returns the effect of every seed; `per_doubling`, `power_law`,
        `compared` and `measured` make one from a study. ``control`` changes the design so that the
        claim is false, and ``control_why`` says why. ``more`` are ``design``, ``controls``,
        ``why`` and the fields of `Claim`.
        """
        require_provenance(source)
        key = f"{self.key}.{key}"
        more |= {"source": source, "control": control}
        made = make_claim(key, statement, measure, test, **more)
        self.claims.append(made)
        return made

    def study_claim(
        self, key: str, statement: str, statistic: Callable[[Any], Any], test: Criterion,
        values: Mapping[str, Any], *, how: Callable[..., effects.StudyMeasure] = effects.measured,
        grid: Mapping[str, Any] | None = None, probes: Iterable[str] = (), setting: str = "",
        **more: Any,
    ) -> Claim:  # fmt: skip
        """Register a claim about runs of the paper's own setting (`claim` has the rest).

        ``statistic(run)`` gives one number for every seed, ``values`` are settings that stay and
        ``grid`` those that vary; ``how`` makes one number of all points: `measured`, `compared`,
        `per_doubling` or `power_law`.
        """
        study = Study(self.setting, grid=grid, probes=probes, **values)
        words = "; ".join(filter(None, (setting, f"{dict(values)}")))
        return self.claim(key, statement, how(study, statistic), test, setting=words, **more)

    def check(self, key: str, statement: str, *, test: str, tolerance: str, source: str) -> None:
        """List a statement that is true by algebra, and the test that holds it."""
        require_provenance(source)
        self.claims.append(Check(f"{self.key}.{key}", statement, source, test, tolerance))

    def existence(
        self, key: str, statement: str, witness: Callable[[], dict[str, Any]], *, checker: str,
        source: str = OURS, **more: Any,
    ) -> None:  # fmt: skip
        """Register a statement that something exists, with what computes and checks a witness."""
        require_provenance(source)
        made = Existence(f"{self.key}.{key}", statement, source, witness, checker, **more)
        self.claims.append(made)

    def figure(
        self,
        key: str,
        title: str = "",
        study: Study | None = None,
        probes: Iterable[str] = ("risk",),
        *,
        source: str = OURS,
        theorem: str = "",
        jobs: Callable[[bool], list] = lambda _: [],
    ) -> Any:
        """Register a figure: of a study, or as a decorator of a function ``full -> Figure``.

        ``theorem`` draws its curves over the risk of a study's first seed. A function may also
        return the caption and the panels, as one tuple.
        """
        require_provenance(source)

        def add(make: Callable[[bool], Any]) -> Callable[[bool], Any]:
            words = title or (make.__doc__ or key).strip().splitlines()[0].rstrip(".")

            def figure(full: bool) -> Figure:
                made = make(full)
                return made if isinstance(made, Figure) else Figure(key, words, made[0], made[1:])

            self.figures.append(PaperFigure(key, words, figure, source, jobs))
            return figure

        if study is None:
            return add
        words, names = title or key, tuple(probes)
        return add(lambda full: study_figure(key, words, study, names, full=full, theorem=theorem))

    def visit_by_theorems(
        self, title: str, shared: Mapping[str, Any],
        cases: Iterable[tuple[Mapping[str, Any], str]], words: str, *, about: str,
    ) -> None:  # fmt: skip
        """Let `shoal tour` show short runs, each compared with a theorem (`visit.compared`)."""
        cases = tuple(cases)
        self.visit = functools.partial(compared, self, title, shared, cases, words, about=about)

    def setup(self, values: Mapping[str, Any], **how: Any) -> Setup:
        """The setup that a user's words describe (`paper_setup`)."""
        return paper_setup(self, values, **how)

    def all_theorems(self) -> tuple[Theorem, ...]:
        """Its own theorems and the one about every model."""
        general = () if any(t.key == KERNEL_REGIME.key for t in self.theorems) else (KERNEL_REGIME,)
        return (*self.theorems, *general)

    def theorem_of(self, key: str) -> Theorem:
        """A theorem by its key."""
        return named_theorem(key, self.all_theorems(), self.key)

    def width_plan(self) -> WidthPlan:
        """How `shoal plan` looks for the smallest width."""
        if self.plan is not None:
            return self.plan
        if "width" not in self.setting.fields():
            raise InputError(f"{self.key} has no plan and no setting called width.")
        certifying = [t.key for t in self.theorems if t.largest_step is not None]
        return WidthPlan(theorem=certifying[0] if certifying else None)

    def citation(self) -> str:
        """How to cite it."""
        year = f" ({self.year})" if self.year else ""
        where = f" arXiv:{self.arxiv}." if self.arxiv else ""
        return f"{self.authors or self.key}{year}. {self.title}.{where}"

    def __repr__(self) -> str:
        return f"Paper({self.key!r}, {self.title!r})"


def has_values(values: Mapping[str, Any], setting: Any) -> bool:
    """Whether a setting has these values.

    >>> has_values({"num_samples": 10}, Setting())
    True
    """
    return all(getattr(setting, name) == value for name, value in values.items())


def require_provenance(source: str) -> None:
    """Refuse a source that does not begin with paper, "paper, as summarised" or ours."""
    if not source.startswith((PAPER, SUMMARY, OURS)):
        msg = f"source={source!r}: expected {PAPER!r}, {SUMMARY!r} or {OURS!r}, maybe with more."
        raise InputError(msg)
