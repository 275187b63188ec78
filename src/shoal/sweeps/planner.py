"""How wide must a model be? The smallest width that trains, and the smallest that is certified.

Every question "is this width enough, for each of these seeds?" is a small task whose answer is
cached on disk. Widths are powers of two. The smallest certified width is found by bisection, which
assumes that more width does not hurt. Training is tried on a full grid, the phase diagram, which
shows where that assumption fails.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from shoal import fits
from shoal.disk.cache import cached, source_of
from shoal.errors import InputError
from shoal.figures import Curve, Figure, Panel, Surface, band
from shoal.fits import Fit
from shoal.lab import engine
from shoal.lab.setup import completed, paper_setup
from shoal.lab.theorem import allowed_steps, require_covered
from shoal.papers import BUILT_IN, paper_of
from shoal.sweeps.grid import blank_setup
from shoal.workers import absolute_target

Question = dict[str, Any]
Ask = Callable[[list[Question]], Iterable[tuple[Question, list[bool]]]]
"""Answers questions, in any order: for every seed, is the width enough?"""


class Search(NamedTuple):
    """What to look for."""

    paper: str  # Its key.
    paper_target: str  # The paper as workers find it: its key, or the absolute path of its file.
    values: dict[str, Any]  # Settings that stay.
    grow: str  # The setting that is called the width.
    theorem: str | None
    samples: tuple[int, ...]
    octaves: tuple[int, int]  # Of the phase diagram: widths 2**first .. 2**last.
    highest: int  # Octave beyond which no certificate is sought.
    seeds: int
    target: float  # Share of the first risk at which a run counts as trained.


class Frontier(NamedTuple):
    """For every number of samples and every seed, the smallest width; NaN: none was enough."""

    widths: np.ndarray  # samples x seeds
    fit: Fit | None


class Result(NamedTuple):
    """The result of a search."""

    plan: Search
    widths: np.ndarray
    converged: np.ndarray  # Share of seeds, samples x widths.
    trains: Frontier
    certified: Frontier | None


def make_search(name: str, values: dict[str, Any], **changes: Any) -> Search:
    """A paper's own plan (`Paper.width_plan`), with parts of it changed; None changes nothing."""
    paper = paper_of(name)
    usual = paper.width_plan()
    search = Search(
        **usual._asdict() | {"values": dict(usual.values) | values},
        paper=paper.key,
        paper_target=absolute_target(name),
        target=1e-2,
    )._replace(**{name: value for name, value in changes.items() if value is not None})
    if search.grow in values or "num_samples" in values:
        raise InputError(f"a plan varies {search.grow} and num_samples; leave them out of --set.")
    if len(search.samples) < 2 or len(set(search.samples)) < len(search.samples):
        raise InputError(f"samples={search.samples}: expected two or more different numbers.")
    if not 0 < search.target < 1 or search.seeds < 2:
        msg = f"target={search.target}, seeds={search.seeds}: expected 0 < target < 1 and 2 seeds."
        raise InputError(msg)
    first = _question(search, "trains", search.samples[0], search.octaves[0])
    setting = completed(paper, _values(first))
    if search.theorem is not None:
        theorem = paper.theorem_of(search.theorem)
        if theorem.largest_step is None:
            raise InputError(f"{theorem.key} does not say which steps it allows; choose another.")
        require_covered(blank_setup(setting), theorem)
    return search


def _question(search: Search, kind: str, samples: int, octave: int) -> Question:
    goal = {"theorem": search.theorem} if kind == "certified" else {"target": search.target}
    about = {"paper": search.paper_target, "grow": search.grow, "values": search.values}
    sizes = {"samples": samples, "width": 2**octave, "seeds": search.seeds}
    return {"kind": kind} | about | sizes | goal


def _values(question: Question) -> dict[str, Any]:
    sizes = {question["grow"]: question["width"], "num_samples": question["samples"]}
    return question["values"] | sizes


def answer(question: Question) -> list[bool]:
    """Is this width enough, for each seed? Answers are cached on disk."""
    paper = paper_of(question["paper"])

    def measure() -> dict[str, Any]:
        setup = paper_setup(paper, _values(question), seeds=range(question["seeds"]))
        if question["kind"] == "certified":
            return {"enough": np.isfinite(allowed_steps(setup, question["theorem"]))}
        best = setup.setting.lowest(setup.problem)
        risk = engine.trajectories(setup, every=setup.setting.num_steps).risk - (best or 0.0)
        with np.errstate(invalid="ignore"):
            return {"enough": risk[:, -1] <= question["target"] * risk[:, 0]}

    source = "" if paper.key in BUILT_IN else source_of(paper.setting)
    return [bool(x) for x in cached(["plan", question, source], measure).arrays["enough"]]


def _bisected(search: Search, ask: Ask) -> np.ndarray:
    """For every number of samples and seed, the smallest certified width; NaN for none.

    All numbers of samples advance together, so that all cores have work; a round asks for the
    middle of the widest open bracket of each.
    """
    shape = (len(search.samples), search.seeds)
    below, above = np.full(shape, search.octaves[0] - 1), np.full(shape, search.highest + 1)
    while (above - below).max() > 1:
        questions = []
        for samples, lows, highs in zip(search.samples, below, above, strict=True):
            k = (highs - lows).argmax()
            if highs[k] - lows[k] > 1:
                middle = int(lows[k] + highs[k]) // 2
                questions.append(_question(search, "certified", samples, middle))
        for question, enough in ask(questions):
            i, octave, yes = *_place(search, question), np.array(enough)
            above[i] = np.where(yes, np.minimum(above[i], octave), above[i])
            below[i] = np.where(yes, below[i], np.maximum(below[i], octave))
            below[i] = np.minimum(below[i], above[i] - 1)
    return np.where(above <= search.highest, 2.0**above, np.nan)


def _place(search: Search, question: Question) -> tuple[int, int]:
    """Position of a question's number of samples, and the octave of its width."""
    return search.samples.index(question["samples"]), question["width"].bit_length() - 1


def _frontier(search: Search, widths: np.ndarray) -> Frontier:
    """The exponent of width against samples, over the seeds for which there is a width."""
    x = np.broadcast_to(np.array(search.samples, float)[:, None], widths.shape)
    finite = np.isfinite(widths)
    several = len(np.unique(x[finite])) > 1 and finite.sum() > 2
    return Frontier(widths, fits.power_law(x[finite], widths[finite]) if several else None)


def carry_out(search: Search, ask: Ask) -> Result:
    """Fill the phase diagram and find both frontiers."""
    low, high = search.octaves
    octaves = range(low, high + 1)
    widths = 2.0 ** np.array(octaves)
    enough = np.zeros((len(search.samples), len(widths), search.seeds), bool)
    grid = [_question(search, "trains", n, k) for k in octaves for n in search.samples]
    for question, yes in ask(grid):
        i, octave = _place(search, question)
        enough[i, octave - low] = yes
    smallest = np.where(enough.any(axis=1), widths[enough.argmax(axis=1)], np.nan)
    certified = None if search.theorem is None else _frontier(search, _bisected(search, ask))
    return Result(search, widths, enough.mean(axis=2), _frontier(search, smallest), certified)


def exponent_text(name: str, frontier: Frontier) -> str:
    """The exponent with its interval, or why there is none."""
    if frontier.fit is None:
        return f"{name}: too few seeds have such a width to fit an exponent"
    fit = frontier.fit
    sure = f"exponent {fit.low:.2f} to {fit.high:.2f} with 95 %"
    return f"{name}: width ~ samples^{fit.slope:.2f} ({sure})"


def _said_of(inside: tuple[Curve, ...]) -> str:
    """What the lines over the phase diagram are."""
    drawn = {"trains": "trains", "certified": "is certified"}
    names = [drawn[edge.label.split()[0]] for edge in inside]
    if not names:
        return ""
    lines = "The line is" if len(names) == 1 else "The lines are"
    return f"{lines} the smallest width that {', or that '.join(names)}: the median over seeds."


def figure(result: Result) -> Figure:
    """The phase diagram with its frontiers, and the frontiers with their exponents."""
    search = result.plan
    x = np.array(search.samples, float)
    lines, edges = [], []
    named = {"trains": result.trains, f"certified by {search.theorem}": result.certified}
    for label, frontier in named.items():
        if frontier is None or not (whole := np.isfinite(frontier.widths).all(axis=1)).any():
            continue
        curve = band(label, x[whole], frontier.widths[whole].T)
        lines.append(curve._replace(label=exponent_text(label, frontier)))
        y = np.log2(curve.y)
        edges.append(Curve(label, np.log2(curve.x), y, y, y))
    plane = Surface("share of seeds", np.log2(x), np.log2(result.widths), result.converged.T)
    inside = tuple(edge for edge in edges if edge.y.max() <= np.log2(result.widths[-1]))
    titles = "share of seeds that train", "log2 samples", f"log2 {search.grow}"
    share = Panel(*titles, inside, surface=plane, note=_said_of(inside))
    width = Panel("smallest width", "samples", search.grow, tuple(lines), log_x=True, log_y=True)
    values = "".join(f", {name}={value}" for name, value in search.values.items())
    caption = (
        f"{search.paper}{values}; {search.seeds} seeds. A seed trains if its risk, above the "
        f"optimum if that is known, falls to {search.target:g} of the first within the steps. "
        "Median and quartiles over seeds; widths "
        "are powers of two, so a width is known up to a factor of two."
    )
    return Figure("plan", f"How wide must {search.paper} be?", caption, (share, width))
