"""The paper's width and series experiments made anew, and pictures of its open questions.

Values of the paper's figures, its boundary points, lags and anchors are not known to us; ours are
in the captions.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.experiments import FigureRecipe
from shoal.figures import Curve, Figure, Panel, band
from shoal.losses import mean_of_squares
from shoal.models import training_risk
from shoal.papers.arda2026 import data, heads, trials
from shoal.papers.arda2026 import measurements as measure
from shoal.papers.arda2026.claims import CLAIMS
from shoal.papers.arda2026.heads import ACTIVATIONS
from shoal.papers.arda2026.trials import Plan
from shoal.problems import Problem
from shoal.rules import exponents


def _plan(key: str, full: bool) -> Plan:
    claim = next(c for c in CLAIMS if c.key == f"arda2026.{key}")
    return claim.full if full else claim.quick


def _line(label: str, x: Any, y: Any) -> Curve:
    x, y = np.asarray(x, float), np.asarray(y, float)
    return Curve(label, x, y, y, y)


def _guide(x: np.ndarray, start: float, power: float) -> Curve:
    """A straight line of a known exponent, for the eye."""
    return _line(f"power {power:g}", x, start * (x / x[0]) ** power)


def _slope(x: np.ndarray, y: np.ndarray) -> str:
    from shoal.claims import mean_interval

    found = mean_interval(exponents(x, y))
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


def width(full: bool) -> Figure:
    """Errors at boundary points, approximation and training by number of heads."""
    errors_plan = _plan("boundary_error_falls_like_root_width", full)
    widths = tuple(int(m) for m in errors_plan.grid)
    found = trials.width_errors(widths, errors_plan.num_seeds, errors_plan.num_samples)
    x = np.array(widths, float)
    named = ("coherent", "random", "transported")
    lines = [band(f"{k}, slope {_slope(x, found[k])}", x, found[k]) for k in named]
    lin = Panel(
        "linearisation error at the boundary",
        "heads",
        "largest over samples",
        (*lines, _guide(x, float(np.median(found["coherent"][:, 0])), -0.5)),
        log_x=True,
        log_y=True,
    )
    app = Panel(
        "approximation error",
        "heads",
        "largest over samples",
        (
            band(f"slope {_slope(x, found['approximation'])}", x, found["approximation"]),
            _guide(x, float(np.median(found["approximation"][:, 0])), -0.5),
        ),
        log_x=True,
        log_y=True,
    )
    plan = _plan("training_loss_falls_like_root_width", full)
    w = np.array(plan.grid)
    best = trials.best_losses(plan)
    loss = Panel(
        "lowest training loss",
        "heads",
        "mean of squares",
        (band(f"slope {_slope(w, best)}", w, best), _guide(w, float(np.median(best[:, 0])), -0.5)),
        log_x=True,
        log_y=True,
    )
    caption = (
        f"tanh, dim 8, 16 tokens, radius and teacher 3. Errors: {errors_plan.num_samples} samples, "
        f"{errors_plan.num_seeds} seeds; training: {plan.num_samples} samples, {plan.num_steps} "
        f"steps of their number's inverse root, {plan.num_seeds} seeds (median, quartiles). The "
        "paper reports slopes near -1/2 for all three; which boundary points it takes is not known."
    )
    return Figure("width", "Width", caption, (lin, app, loss))


def width_jobs(full: bool) -> list[Any]:
    """The runs of the width experiment at the paper's size."""
    plan = _plan("training_loss_falls_like_root_width", full)
    if plan.num_samples < trials.LARGE:
        return []
    return [functools.partial(trials.width_run, *job) for job in trials.width_jobs(plan)]


def steps(full: bool) -> Figure:
    """Mean and lowest loss by number of steps."""
    plan = _plan("mean_loss_falls_like_root_steps", full)
    runs = [
        trials.trained(
            plan.num_seeds,
            num_samples=plan.num_samples,
            num_heads=plan.num_heads,
            num_steps=int(tau),
        )
        for tau in plan.grid
    ]
    x = np.array(plan.grid)
    mean = np.stack([r.risk[:, :-1].mean(axis=1) for r in runs], axis=1)
    best = np.stack([r.risk[:, :-1].min(axis=1) for r in runs], axis=1)
    panel = Panel(
        "loss by number of steps",
        "steps",
        "mean of squares",
        (
            band(f"mean, slope {_slope(x, mean)}", x, mean),
            band(f"lowest, slope {_slope(x, best)}", x, best),
            _guide(x, float(np.median(mean[:, 0])), -0.5),
        ),
        log_x=True,
        log_y=True,
    )
    last = runs[-1]
    curve = Panel(
        f"one run of {int(x[-1])} steps",
        "step",
        "loss",
        (band("loss", last.step[0][1:], last.risk[:, 1:]),),
        log_x=True,
        log_y=True,
    )
    caption = (
        f"Step = 1 / sqrt(steps), so a run of tau steps is a flow of time sqrt(tau). "
        f"{plan.num_samples} samples, {plan.num_heads} heads, {plan.num_seeds} seeds. The rate "
        "1 / sqrt(tau) is an upper bound; what is seen depends on the spectrum of the kernel."
    )
    return Figure("steps", "Steps", caption, (panel, curve))


def length(full: bool) -> Figure:
    """Gradients and training by length; time and memory of a step."""
    plan = _plan("gradients_free_of_length", full)
    x = np.array(plan.grid)
    found = trials.gradients_by_length(
        tuple(int(T) for T in plan.grid),
        plan.num_seeds,
        num_samples=plan.num_samples,
        num_heads=plan.num_heads,
    )
    first = Panel(
        "gradient in W at the start",
        "tokens",
        "norm",
        tuple(band(f"{k}, slope {_slope(x, v)}", x, v) for k, v in found.items()),
        log_x=True,
        log_y=True,
    )
    training = _plan("training_free_of_length", full)
    measured = measure.loss_by_length(training)
    second = Panel(
        "lowest loss over label energy",
        "tokens",
        "",
        (band(f"slope {_slope(measured['x'], measured['y'])}", measured["x"], measured["y"]),),
        log_x=True,
        log_y=True,
    )
    lengths, seconds, peak = step_costs((100, 1000, 10_000, 100_000))
    third = Panel(
        "one gradient step, 64 heads, one sequence",
        "tokens",
        "seconds, or GiB held by arrays",
        (_line("seconds", lengths, seconds), _line("GiB", lengths, peak)),
        log_x=True,
        log_y=True,
    )
    caption = (
        f"Left: {plan.num_samples} samples, {plan.num_seeds} seeds. Middle: the same teacher for "
        f"all lengths, {training.num_samples} samples, {training.num_steps} steps. Right: streamed "
        "over heads, so that memory is that of the data plus a bounded block."
    )
    return Figure("length", "Length of the sequences", caption, (first, second, third))


def step_costs(lengths: tuple[int, ...], num_heads: int = 64) -> tuple[np.ndarray, ...]:
    """Seconds of one gradient step, and GiB that its compiled program holds, by length."""
    seconds, peak = [], []
    model = heads.heads(num_heads, 8, ACTIVATIONS["tanh"])
    params = heads.twins(jax.random.key(0), model.spec)
    for T in lengths:
        X = data.clipped(jax.random.normal(jax.random.key(1), (1, T, 8)))
        risk = training_risk(model, Problem(X, jnp.ones(1)), mean_of_squares)
        compiled = jax.jit(jax.grad(risk)).lower(params).compile()
        jax.block_until_ready(compiled(params))
        begun = time.perf_counter()
        jax.block_until_ready(compiled(params))
        seconds.append(time.perf_counter() - begun)
        held: Any = compiled.memory_analysis()
        size = held.temp_size_in_bytes + held.argument_size_in_bytes + held.output_size_in_bytes
        peak.append((size + X.nbytes) / 2**30)
    return np.array(lengths), np.array(seconds), np.array(peak)


LAGS = (1, 2, 4, 8, 16, 32)


def series(full: bool) -> Figure:
    """Attention against recurrence on series of growing lag."""
    plan = _plan("attention_does_not_mind_the_lag", full)
    lags = (*LAGS, 64) if full else LAGS[1::2]
    sides: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("attention", "heads", {}),
        ("attention, clipped tokens", "heads", {"clip": True}),
        ("recurrent, weights 1", "recurrent", {}),
        ("recurrent, weights 0.5", "recurrent", {"recurrence": 0.5}),
    )
    loss: list[Curve] = []
    jacobian: list[Curve] = []
    for name, model, extra in sides:
        runs = [trials.series_runs(plan, model, lag, **extra) for lag in lags]
        for kind, curves in (("loss", loss), ("jacobian", jacobian)):
            values = np.stack([run[kind] for run in runs], axis=1)
            curves.append(band(name, np.array(lags), values))
    x = np.array(lags, float)
    best = _line("best possible", x, np.full(len(x), data.BAYES))
    zero = _line("predicting zero", x, np.full(len(x), data.TRIVIAL))
    caption = (
        f"X_t = 0.9 X_(t-lag) + noise of variance 0.1, window lag + 1, {plan.num_samples} samples, "
        f"{plan.num_heads} heads or units, {plan.num_steps} steps, no projection, "
        f"{plan.num_seeds} seeds (median, quartiles); Jacobian in W or in the recurrent weights, "
        "largest over samples and over training. Lags, sizes and recurrent weights are our choice."
    )
    return Figure(
        "series",
        "Attention against recurrence",
        caption,
        (
            Panel(
                "lowest held-out loss", "lag", "mean of squares", (*loss, best, zero), log_x=True
            ),
            Panel("largest Jacobian norm", "lag", "norm", tuple(jacobian), log_x=True, log_y=True),
        ),
    )


SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0)


def knee(full: bool) -> Figure:
    """Loss within a share of the dual teacher's norm, with its lower bound."""
    plan = _plan("loss_has_a_knee_at_the_teacher_s_norm", full)
    found = trials.knee(plan, SHARES)
    x = np.array(SHARES)
    relative = found["loss"] / found["energy"]
    panel = Panel(
        "loss over label energy",
        "radius over the teacher's norm",
        "",
        (
            band("trained", x, relative),
            band("lower bound (linearised)", x, found["lower"] / found["energy"]),
            _line("(1 - share)^2", x, np.maximum(1 - x, 0) ** 2),
        ),
    )
    caption = (
        f"A teacher built so that no smaller norm reproduces its labels. {plan.num_samples} "
        f"samples, {plan.num_heads} heads, {plan.num_steps} steps of 0.5, {plan.num_seeds} seeds."
    )
    return Figure("knee", "The knee at the teacher's norm", caption, (panel,))


def projection(full: bool) -> Figure:
    """Where the projection acts: loss, heads on the boundary, and steps that are too long."""
    plan = _plan("projection_tames_long_steps", full)
    probes = ("boundary", "linearisation")
    common: dict[str, Any] = {
        "num_samples": plan.num_samples,
        "num_heads": plan.num_heads,
        "labels": "gaussian",
        "num_steps": plan.num_steps,
        "step_size": 0.5,
    }
    radii = ("0.1", "0.3", "1", "3")
    runs = {r: trials.trained(plan.num_seeds, probes, radius=r, **common) for r in radii}
    steps = next(iter(runs.values())).step[0]
    loss = tuple(band(f"radius {r}", steps, run.risk, positive=True) for r, run in runs.items())
    edge = tuple(
        band(f"radius {r}, {name}", steps, run.probes[f"boundary_{name}"])
        for r, run in list(runs.items())[:2]
        for name in "cUW"
    )
    common = measure.tamed_setting(plan)
    wild = {
        "plain": trials.trained(plan.num_seeds, radius=None, **common),
        "radius 0.5": trials.trained(plan.num_seeds, radius="0.5", **common),
    }
    long = tuple(band(k, steps, run.risk, positive=True) for k, run in wild.items())
    caption = (
        f"Gaussian labels, {plan.num_samples} samples, {plan.num_heads} heads, {plan.num_seeds} "
        "seeds (median, quartiles). Left and middle: steps of 0.5. Right: tokens of norm 4, five "
        "times the step at which the linearised run turns unstable."
    )
    panels = (
        Panel("loss", "step", "mean of squares", loss, log_y=True),
        Panel("share of heads on the boundary", "step", "", edge),
        Panel("steps that are too long", "step", "mean of squares", long, log_y=True),
    )
    return Figure("projection", "Where the projection acts", caption, panels)


NORMS = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0)


def input_norm(full: bool) -> Figure:
    """Gradients at the start by length of the tokens: the tail leaves the mean behind."""
    plan = _plan("long_tokens_make_spikes", full)
    columns: dict[str, list] = {"mean": [], "max": []}
    for norm in NORMS:
        found = trials.gradients_by_length(
            (16,), plan.num_seeds, num_samples=plan.num_samples, num_heads=plan.num_heads, norm=norm
        )
        for name, values in found.items():
            columns[name].append(values[:, 0])
    x = np.array(NORMS)
    curves = tuple(band(name, x, np.stack(values, axis=1)) for name, values in columns.items())
    third = _guide(x, float(np.median(columns["mean"][0])), 3.0)
    panel = Panel(
        "gradient in W at the start",
        "norm of tokens and query",
        "norm",
        (*curves, third),
        log_x=True,
        log_y=True,
    )
    caption = (
        f"{plan.num_samples} samples of 16 tokens, {plan.num_heads} heads, {plan.num_seeds} seeds. "
        "The bound grows like the cube; attention saturates from norm 2 on, and then single "
        "near-ties dominate."
    )
    return Figure("input_norm", "Longer tokens", caption, (panel,))


FIGURES = (
    FigureRecipe("width", "Width", width, width_jobs),
    FigureRecipe("steps", "Steps", steps),
    FigureRecipe("length", "Length of the sequences", length),
    FigureRecipe("series", "Attention against recurrence", series),
    FigureRecipe("knee", "The knee at the teacher's norm", knee),
    FigureRecipe("projection", "Where the projection acts", projection),
    FigureRecipe("input_norm", "Longer tokens", input_norm),
)
