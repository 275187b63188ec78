"""How wide must a model be? The smallest width that a theorem certifies, and that trains.

Every question "is this width enough, for these seeds?" is a small task of its own, kept on disk.
Widths are powers of two; an answer for each seed comes from bisection, which assumes that more
width does not hurt. Where that fails the phase diagram, which is a full grid, shows it.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from shoal import fits
from shoal.errors import InputError, nearest
from shoal.experiments import (
    Experiment,
    Paper,
    allowed_steps,
    default_step,
    prepare,
    simulate,
    theorem_of,
)
from shoal.figures import Curve, Figure, Panel, Surface, band
from shoal.files import cache_folder
from shoal.fits import Fit
from shoal.keeping import kept
from shoal.papers import PAPERS, paper_of

Question = dict[str, Any]
Ask = Callable[[list[Question]], Iterable[tuple[Question, list[bool]]]]
"""Answers questions, in any order: for every seed, is the width enough?"""


class Plan(NamedTuple):
    """What is asked."""

    paper: str
    values: dict[str, Any]  # settings that stay
    grow: str  # the setting that is called width here
    theorem: str | None
    samples: tuple[int, ...]
    octaves: tuple[int, int]  # of the phase diagram: widths 2**first .. 2**last
    highest: int  # octave beyond which no certificate is sought
    seeds: int
    target: float  # share of the first risk that counts as trained


class Frontier(NamedTuple):
    """For every number of samples and every seed, the smallest width; NaN: none was enough."""

    widths: np.ndarray  # samples x seeds
    fit: Fit | None


class Found(NamedTuple):
    """What a plan found."""

    plan: Plan
    widths: np.ndarray
    converged: np.ndarray  # share of seeds, samples x widths
    trains: Frontier
    certified: Frontier | None


def default_plan(paper: Paper, values: dict[str, Any], **changes: Any) -> Plan:
    """A paper's own plan, with some of it changed."""
    if paper.planned is None:
        can = [p.key for p in PAPERS.values() if p.planned is not None]
        msg = f"there is no plan for {paper.key}; there is one for {', '.join(can)}."
        raise InputError(msg)
    about = paper.planned
    plan = Plan(
        paper=paper.key,
        values=dict(about.values) | values,
        grow=about.grow,
        theorem=about.theorem,
        samples=about.samples,
        octaves=about.octaves,
        highest=about.highest,
        seeds=about.seeds,
        target=1e-2,
    )._replace(**{k: v for k, v in changes.items() if v is not None})
    if plan.grow in values or "num_samples" in values:
        msg = f"{plan.grow} and num_samples are what a plan varies; leave them out of --set."
        raise InputError(msg)
    if plan.grow not in paper.setting._fields:
        msg = f"no setting is called {plan.grow!r}; {nearest(plan.grow, paper.setting._fields)}"
        raise InputError(msg)
    if plan.theorem is not None:
        theorem_of(paper, plan.theorem)
    if len(plan.samples) < 2 or len(set(plan.samples)) < len(plan.samples):
        msg = f"samples={plan.samples}: expected two or more different numbers."
        raise InputError(msg)
    if not 0 < plan.target < 1 or plan.seeds < 2:
        msg = f"target={plan.target}, seeds={plan.seeds}: expected 0 < target < 1 and 2 seeds."
        raise InputError(msg)
    return plan


# ------------------------------------------------------------------------------------ one question


def _experiment(question: Question) -> Experiment:
    values = question["values"] | {question["grow"]: question["width"]}
    values |= {"num_samples": question["samples"]}
    return prepare(paper_of(question["paper"]), values, seeds=range(question["seeds"]))


def answer(question: Question) -> list[bool]:
    """Is this width enough, for each seed? Kept on disk."""

    def make() -> dict[str, Any]:
        experiment = _experiment(question)
        if question["kind"] == "certified":
            theorem = theorem_of(experiment.paper, question["theorem"])
            steps = allowed_steps(experiment, theorem)
            return {"enough": np.isfinite(steps)}
        setting = experiment.setting
        if setting.step_size is None:
            setting = setting._replace(step_size=default_step(experiment))
        every = setting._replace(every=setting.num_steps)
        risk = np.asarray(simulate(experiment._replace(setting=every)).risk)
        with np.errstate(invalid="ignore"):
            return {"enough": risk[:, -1] <= question["target"] * risk[:, 0]}

    found = kept(["plan", question], make, cache_folder() / "measurements")
    return [bool(x) for x in found.arrays["enough"]]


# ------------------------------------------------------------------------------------- the search


def _question(plan: Plan, kind: str, samples: int, octave: int) -> Question:
    about: Question = {"kind": kind, "paper": plan.paper, "grow": plan.grow}
    about |= {"values": plan.values, "samples": samples, "width": 2**octave, "seeds": plan.seeds}
    return about | ({"theorem": plan.theorem} if kind == "certified" else {"target": plan.target})


def _bisected(plan: Plan, kind: str, low: int, high: int, ask: Ask) -> np.ndarray:
    """For every number of samples and seed, the smallest octave that is enough; NaN for none.

    All numbers of samples advance together, so that all cores have work; a round asks for the
    middle of the widest open bracket of each.
    """
    shape = (len(plan.samples), plan.seeds)
    below, above = np.full(shape, low - 1), np.full(shape, high + 1)
    while True:
        questions = []
        for i, samples in enumerate(plan.samples):
            gap = above[i] - below[i]
            if gap.max() > 1:
                k = int(gap.argmax())
                middle = int(below[i, k] + above[i, k]) // 2
                questions.append(_question(plan, kind, samples, middle))
        if not questions:
            break
        for question, enough in ask(questions):
            i = plan.samples.index(question["samples"])
            octave = question["width"].bit_length() - 1
            yes = np.array(enough)
            above[i] = np.where(yes, np.minimum(above[i], octave), above[i])
            below[i] = np.where(yes, below[i], np.maximum(below[i], octave))
            below[i] = np.minimum(below[i], above[i] - 1)
    return np.where(above <= high, 2.0**above, np.nan)


def _frontier(plan: Plan, widths: np.ndarray) -> Frontier:
    """The exponent of width against samples, over the seeds for which there is a width."""
    x = np.broadcast_to(np.array(plan.samples, float)[:, None], widths.shape)
    there = np.isfinite(widths)
    several = len(np.unique(x[there])) > 1 and there.sum() > 2
    return Frontier(widths, fits.power_law(x[there], widths[there]) if several else None)


def carry_out(plan: Plan, ask: Ask) -> Found:
    """Fill the phase diagram, find both frontiers."""
    low, high = plan.octaves
    octaves = range(low, high + 1)
    converged = np.full((len(plan.samples), len(octaves)), np.nan)
    first = np.full((len(plan.samples), plan.seeds), np.nan)
    grid = [_question(plan, "trains", n, k) for k in octaves for n in plan.samples]
    for question, enough in ask(grid):
        i = plan.samples.index(question["samples"])
        converged[i, question["width"].bit_length() - 1 - low] = np.mean(enough)
        better = np.array(enough) & ~(first[i] <= question["width"])
        first[i] = np.where(better, question["width"], first[i])
    certified = None
    if plan.theorem is not None:
        certified = _frontier(plan, _bisected(plan, "certified", low, plan.highest, ask))
    widths = 2.0 ** np.array(octaves)
    return Found(plan, widths, converged, _frontier(plan, first), certified)


# --------------------------------------------------------------------------------------- in words


def said(name: str, frontier: Frontier) -> str:
    """The exponent with its interval, or why there is none."""
    if frontier.fit is None:
        return f"{name}: too few seeds have such a width to fit an exponent"
    fit = frontier.fit
    return f"{name}: width ~ samples^{fit.slope:.2f} [{fit.low:.2f}, {fit.high:.2f}]"


def figure(found: Found) -> Figure:
    """The phase diagram with its frontiers, and the frontiers with their exponents."""
    plan = found.plan
    x = np.array(plan.samples, float)
    lines, edges = [], []
    for name, frontier in (("trains", found.trains), (plan.theorem, found.certified)):
        if frontier is None or not np.isfinite(frontier.widths).any():
            continue
        there = np.isfinite(frontier.widths).all(axis=1)
        if there.any():
            label = name if name == "trains" else f"certified by {name}"
            curve = band(label, x[there], frontier.widths[there].T)
            lines.append(curve._replace(label=said(label, frontier)))
            y = np.log2(curve.y)
            edges.append(Curve(label, np.log2(curve.x), y, y, y))
    plane = Surface("share of seeds", np.log2(x), np.log2(found.widths), found.converged.T)
    share = Panel(
        "share of seeds that train",
        "log2 samples",
        f"log2 {plan.grow}",
        tuple(e for e in edges if e.y.max() <= np.log2(found.widths[-1])),
        surface=plane,
    )
    smallest = Panel("smallest width", "samples", plan.grow, tuple(lines), log_x=True, log_y=True)
    values = ", ".join(f"{k}={v}" for k, v in plan.values.items())
    caption = (
        f"{plan.paper} with {values}; {plan.seeds} seeds. A seed trains if its risk falls to "
        f"{plan.target:g} of the first within the steps. Median and quartiles over seeds; widths "
        "are powers of two, so a width is known up to a factor of two."
    )
    return Figure("plan", f"How wide must {plan.paper} be?", caption, (share, smallest))
