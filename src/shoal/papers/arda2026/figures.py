"""The paper's width and series experiments again, and pictures of its open questions.

Values of the paper's figures, its boundary points, lags and anchors are not known to us; ours are
in the captions.
"""

import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from shoal.figures import Curve, Panel, band
from shoal.lab.effects import exponents
from shoal.lab.run import Run
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.study import Plan
from shoal.papers.arda2026 import data, variants
from shoal.papers.arda2026 import experiments as ex
from shoal.papers.arda2026.model import PAPER
from shoal.papers.arda2026.projection_studies import TOO_LONG
from shoal.papers.arda2026.rate_studies import NEEDED, predictions
from shoal.papers.arda2026.studies import SAYS
from shoal.runtime import in_float64

LAGS = (1, 2, 4, 8, 16, 32)
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0)
NORMS = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0)


def _fitted(label: str, x: Any, y: np.ndarray) -> Curve:
    """A band whose label tells its exponent."""
    slopes = [effect.value[0] for effect in exponents(np.asarray(x, float), y)]
    low, middle, high = np.quantile(slopes, [0.25, 0.5, 0.75])
    return band(f"{label}slope {middle:.2f} (quartiles {low:.2f}, {high:.2f})", x, y)


def _guide(first: Curve, power: float) -> Curve:
    """A straight line of a known exponent from where a curve begins."""
    return band(f"power {power:g}", first.x, first.y[0] * (first.x / first.x[0]) ** power)


def _loglog(title: str, x_label: str, y_label: str, *curves: Curve) -> Panel:
    return Panel(title, x_label, y_label, curves, log_x=True, log_y=True)


_PLAN = Plan(seeds=5, steps=400, samples=100)
SIZES: dict[str, tuple[Plan, dict]] = {
    "errors": (_PLAN._replace(seeds=8, grid=(8, 16, 64, 128, 256)),
               {"seeds": 10, "samples": 5000, "grid": (8, 16, 64, 128, 256, 512, 1024)}),
    "widths": (_PLAN._replace(seeds=4, samples=200, grid=(8, 16, 64, 128, 256)),
               {"seeds": 10, "steps": 4000, "samples": 5000}),
    "steps": (_PLAN._replace(seeds=4, grid=(25, 100, 400, 1600)),
              {"seeds": 10, "samples": 1000, "grid": (25, 100, 400, 1600, 6400)}),
    "gradients": (_PLAN._replace(samples=30, grid=(16, 32, 64, 128, 256, 512)),
                  {"seeds": 20, "samples": 200}),
    "training": (_PLAN._replace(seeds=4, steps=200, samples=50, grid=(16, 64, 256)),
                 {"seeds": 10, "steps": 2000, "samples": 500, "grid": (16, 32, 64, 128, 256, 512)}),
    "series": (_PLAN._replace(seeds=4, samples=200, width=32),
               {"seeds": 20, "steps": 2000, "samples": 5000, "width": 64}),
    "knee": (_PLAN._replace(seeds=4, steps=800, samples=60, width=128),
             {"seeds": 10, "steps": 3000, "width": 512}),
    "projection": (_PLAN._replace(steps=200, samples=50), {"seeds": 20}),
    "spikes": (_PLAN._replace(seeds=8), {"seeds": 20, "samples": 1000}),
    "samples": (_PLAN._replace(seeds=4, steps=100, grid=(100, 300, 1000, 3000)),
                {"seeds": 10, "grid": (100, 300, 1000, 3000, 10_000, 30_000)}),
    "rate": (_PLAN._replace(seeds=4, steps=1000, samples=60),
             {"seeds": 10, "steps": 10_000, "samples": 500}),
    "window": (_PLAN._replace(seeds=3, steps=200, samples=64, grid=(16, 128)),
               {"seeds": 10, "steps": 2000, "samples": 1000, "grid": (16, 32, 64, 128)}),
    "radius": (_PLAN._replace(seeds=4, samples=60), {"seeds": 10, "steps": 3000, "width": 512}),
    "long_tokens": (_PLAN._replace(seeds=4, steps=200, samples=50),
                    {"seeds": 20, "steps": 2000, "samples": 500}),
    "depth": (_PLAN._replace(seeds=3, steps=100, samples=20, width=8, grid=(8, 16, 32)),
              {"seeds": 10, "steps": 400, "samples": 100, "width": 32, "grid": (8, 16, 32, 64)}),
}  # fmt: skip
"""Plans at quick size, and what changes at full size."""


def _sizes(key: str, full: bool) -> Plan:
    quick, changes = SIZES[key]
    return quick._replace(**(changes if full else {}))


def _widths(full: bool) -> Plan:
    return _sizes("widths", full)


@PAPER.figure("width", "Width", source=SAYS, jobs=lambda full: ex.width_jobs(_widths(full)))
def width(full: bool) -> tuple:
    """Errors at boundary points, approximation and training by number of heads."""
    errors, plan = _sizes("errors", full), _widths(full)
    kinds = ("coherent", "random", "transported", "approximation")
    *lines, app = (_fitted(f"{kind}, ", **ex.boundary_errors(errors, kind)) for kind in kinds)
    best = _fitted("", **ex.best_by_width(plan))
    return (
        f"tanh, dim 8, 16 tokens, radius and teacher 3. Errors: {errors.samples} samples, "
        f"{errors.seeds} seeds; training: {plan.samples} samples, {plan.steps} "
        f"steps of their number's inverse root, {plan.seeds} seeds (median, quartiles). The "
        "paper reports slopes near -1/2 for all three; which boundary points it takes is not "
        "known.",
        _loglog("linearisation error at the boundary", "heads", "largest over samples",
                *lines, _guide(lines[0], -0.5)),
        _loglog("approximation error", "heads", "largest over samples", app, _guide(app, -0.5)),
        _loglog("lowest training loss", "heads", "mean of squares", best, _guide(best, -0.5)),
    )  # fmt: skip


@PAPER.figure("steps", "Steps")
def steps(full: bool) -> tuple:
    """Mean and lowest loss by number of steps."""
    plan = _sizes("steps", full)
    mean = _fitted("mean, ", **ex.mean_by_steps(plan))
    best = _fitted("lowest, ", **ex.by_grid(plan, "num_steps", ex.lowest))
    last = ex.runs_of(plan, num_steps=int(plan.grid[-1]))
    return (
        "Step = 1 / sqrt(steps), so a run of tau steps is a flow of time sqrt(tau). "
        f"{plan.samples} samples, {plan.width} heads, {plan.seeds} seeds. The rate "
        "1 / sqrt(tau) is an upper bound; what is seen depends on the spectrum of the kernel.",
        _loglog("loss by number of steps", "steps", "mean of squares", mean, best,
                _guide(mean, -0.5)),
        _loglog(f"one run of {last.step[-1]} steps", "step", "loss",
                band("loss", last.step[1:], last.risk[:, 1:])),
    )  # fmt: skip


@PAPER.figure("length", "Length of the sequences")
def length(full: bool) -> tuple:
    """Gradients and training by length; time and memory of a step."""
    plan, training = (_sizes(key, full) for key in ("gradients", "training"))
    mean, most = _mean_and_most(ex.gradient_norms(plan, int(T)) for T in plan.grid)
    lengths, seconds, held = step_costs((100, 1000, 10_000, 100_000))
    return (
        f"Left: {plan.samples} samples, {plan.seeds} seeds. Middle: the same teacher for "
        f"all lengths, {training.samples} samples, {training.steps} steps. Right: streamed "
        "over heads, so that memory is that of the data plus a bounded block.",
        _loglog("gradient in W at the start", "tokens", "norm",
                _fitted("mean, ", plan.grid, mean), _fitted("max, ", plan.grid, most)),
        _loglog("lowest loss over label energy", "tokens", "",
                _fitted("", **ex.loss_by_length(training))),
        _loglog("one gradient step, 64 heads, one sequence", "tokens",
                "seconds, or GiB held by arrays",
                band("seconds", lengths, seconds), band("GiB", lengths, held)),
    )  # fmt: skip


def _mean_and_most(norms: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Over the samples of each column's gradients, both (seeds, columns)."""
    found = list(norms)
    return [np.stack([part(g, axis=1) for g in found], axis=1) for part in (np.mean, np.max)]


def _gradient(setup: Setup) -> Any:
    return jax.grad(setup.fast_risk)(setup.params0)


@in_float64
def step_costs(lengths: tuple[int, ...]) -> np.ndarray:
    """By length: seconds of one gradient step, and GiB that its compiled program holds."""
    rows = []
    for T in lengths:
        values = {"num_samples": 1, "num_tokens": T, "num_heads": 64, "labels": "gaussian"}
        start = paper_setup(PAPER, values).one()
        compiled = jax.jit(_gradient).lower(start).compile()
        jax.block_until_ready(compiled(start))
        begun = time.perf_counter()
        jax.block_until_ready(compiled(start))
        seconds = time.perf_counter() - begun
        held: Any = compiled.memory_analysis()
        size = held.temp_size_in_bytes + held.argument_size_in_bytes + held.output_size_in_bytes
        rows.append((T, seconds, size / 2**30))
    return np.array(rows).T


@PAPER.figure("series", "Attention against recurrence", source=SAYS)
def series(full: bool) -> tuple:
    """Attention against recurrence on series of growing lag."""
    plan = _sizes("series", full)
    lags = np.array((*LAGS, 64) if full else LAGS[1::2])
    curves: dict[str, list[Curve]] = {"loss": [], "jacobian": []}
    for name, model, extra in (
        ("attention", "heads", {}),
        ("attention, clipped tokens", "heads", {"clip": True}),
        ("recurrent, weights 1", "recurrent", {}),
        ("recurrent, weights 0.5", "recurrent", {"recurrence": 0.5}),
    ):
        runs = [ex.series_runs(plan, model, int(L), **extra) for L in lags]
        for kind, lines in curves.items():
            lines.append(band(name, lags, np.stack([run[kind] for run in runs], axis=1)))
    for name, value in (("best possible", data.BAYES), ("predicting zero", data.TRIVIAL)):
        curves["loss"].append(band(name, lags, np.full(len(lags), value)))
    return (
        f"X_t = 0.9 X_(t-lag) + noise of variance 0.1, window lag + 1, {plan.samples} samples, "
        f"{plan.width} heads or units, {plan.steps} steps, no projection, "
        f"{plan.seeds} seeds (median, quartiles); Jacobian in W or in the recurrent weights, "
        "largest over samples and over training. Lags, sizes and recurrent weights are our choice.",
        Panel("lowest held-out loss", "lag", "mean of squares", tuple(curves["loss"]), log_x=True),
        _loglog("largest Jacobian norm", "lag", "norm", *curves["jacobian"]),
    )


@PAPER.figure("knee", "The knee at the teacher's norm")
def knee(full: bool) -> tuple:
    """Loss within a share of the dual teacher's norm, with its lower bound."""
    plan = _sizes("knee", full)
    x, found = np.array(SHARES), [ex.knee_runs(plan, share) for share in SHARES]
    trained, lower = (
        np.stack([f[k] / f["energy"] for f in found], axis=1) for k in ("loss", "lower")
    )
    curves = (
        band("trained", x, trained),
        band("lower bound (linearised)", x, lower),
        band("(1 - share)^2", x, np.maximum(1 - x, 0) ** 2),
    )
    return (
        f"A teacher built so that no smaller norm reproduces its labels. {plan.samples} "
        f"samples, {plan.width} heads, {plan.steps} steps of 0.5, {plan.seeds} seeds.",
        Panel("loss over label energy", "radius over the teacher's norm", "", curves),
    )


@PAPER.figure("projection", "Where the projection acts")
def projection(full: bool) -> tuple:
    """Where the projection acts: loss, heads on the boundary, and steps that are too long."""
    plan = _sizes("projection", full)
    runs = {
        r: ex.runs_of(plan, ("boundary",), radius=r, labels="gaussian", step_size=0.5)
        for r in (0.1, 0.3, 1.0, 3.0)
    }
    edge = tuple(
        band(f"radius {r:g}, {name}", runs[r].step, runs[r].probes[f"boundary_{name}"])
        for r in (0.1, 0.3)
        for name in "cUW"
    )

    def losses(title: str, found: dict[str, Run]) -> Panel:
        curves = (band(label, run.step, run.risk, positive=True) for label, run in found.items())
        return Panel(title, "step", "mean of squares", tuple(curves), log_y=True)

    return (
        f"Gaussian labels, {plan.samples} samples, {plan.width} heads, {plan.seeds} "
        "seeds (median, quartiles). Left and middle: steps of 0.5. Right: tokens of norm 4, "
        f"{TOO_LONG:g} times the step at which the linearised run turns unstable.",
        losses("loss", {f"radius {r:g}": run for r, run in runs.items()}),
        Panel("share of heads on the boundary", "step", "", edge),
        losses("steps that are too long", ex.tamed_runs(plan, 0.5, (TOO_LONG, TOO_LONG))),
    )


@PAPER.figure("input_norm", "Longer tokens")
def input_norm(full: bool) -> tuple:
    """Gradients at the start by length of the tokens: the tail leaves the mean behind."""
    plan, x = _sizes("spikes", full), np.array(NORMS)
    found = _mean_and_most(ex.gradient_norms(plan, norm=norm) for norm in NORMS)
    mean, most = (band(name, x, y) for name, y in zip(("mean", "max"), found, strict=True))
    return (
        f"{plan.samples} samples of 16 tokens, {plan.width} heads, {plan.seeds} seeds. "
        "The bound grows like the cube; attention saturates from norm 2 on, and then single "
        "near-ties dominate.",
        _loglog("gradient in W at the start", "norm of tokens and query", "norm", mean, most,
                _guide(mean, 3.0)),
    )  # fmt: skip


# ------------------------------------------------------------------------- training, at length


def _needed_values(full: bool) -> dict[str, Any]:
    """At full size the paper's tokens; more widths."""
    widths = (4, 8, 16, 32, 64, 128) if full else NEEDED["widths"]
    values = {k: v for k, v in NEEDED["settings"].items() if k != "norm_power"}
    size = {"num_tokens": 16, "dim": 8} if full else {}
    return {"widths": widths, "values": values | size}


def _samples_jobs(full: bool) -> list:
    if not full:
        return []
    plan, chosen = _sizes("samples", full), _needed_values(full)
    return ex.heads_jobs(plan, NEEDED["step"], chosen["widths"], **chosen["values"])


@PAPER.figure("samples", "How many heads do more samples need?", source=SAYS, jobs=_samples_jobs)
def samples(full: bool) -> tuple:
    """Heads that training needs for a level by number of samples, and two laws for them."""
    plan, chosen = _sizes("samples", full), _needed_values(full)
    curves: list[Curve] = []
    told = ""
    for label, power in (("teacher", 0.0), ("teacher of growing norm", 0.25)):
        if full and power:
            continue
        found = ex.heads_needed(
            plan, NEEDED["step"], chosen["widths"], NEEDED["level"], kept=full, norm_power=power,
            **chosen["values"],
        )  # fmt: skip
        most = float(chosen["widths"][-1])
        curves.append(band(label, found["x"], np.minimum(found["high"], most)))
        if not power and len(plan.grid) > 2:
            middle = np.median(np.minimum(found["high"], most), axis=0)
            laws = predictions(found["x"], middle)
            told = (
                f" Fitted to all but the most samples, a logarithm predicts {laws[0]:.3g} heads "
                f"there and a power law {laws[1]:.3g}; found {middle[-1]:.3g}."
            )
    size = chosen["values"]
    return (
        f"Heads (nested, at most {chosen['widths'][-1]}; more are needed where a curve lies on "
        f"that) at which {plan.steps} steps of {NEEDED['step']:g} reach {NEEDED['level']:.0%} of "
        f"the labels' energy. {size['num_tokens']} tokens, dim {size['dim']}, radius 3, "
        f"{plan.seeds} seeds (median, quartiles).{told}",
        _loglog("heads needed", "samples", "heads", *curves),
    )


@PAPER.figure(
    "rate", "The rate bounds the mean loss, also of stochastic steps and at mean-field scale"
)
def rate(full: bool) -> tuple:
    """Mean loss of the first tau steps beside V_0 / (step tau)."""
    plan = _sizes("rate", full)
    panels: list[Panel] = []
    root = float(plan.width) ** 0.5
    sides: tuple[tuple[str, float, float, dict[str, Any]], ...] = (
        ("projected descent", 1.0, 1.0, {}),
        ("one sample per step", 0.25, 1.0, {"method": "sgd"}),
        ("mean-field scale, no projection", 1.0, root, {"radius": None}),
    )
    for title, step, scale, more in sides:
        run, V0 = ex.rate_run(plan, step, scale, **more)
        tau = run.step[1:]
        mean = band("mean loss", tau, ex.mean_so_far(run.risk))
        bound = band("V_0 / (step tau)", tau, V0[:, None] / (step * tau))
        panels.append(_loglog(title, "steps tau", "mean of squares", mean, bound))
    return (
        f"The paper's teacher, {plan.samples} samples, {plan.width} heads, steps of 1 (0.25 for "
        f"one sample), {plan.seeds} seeds (median, quartiles). The rate stands without the terms "
        "of the error. At mean-field scale the output is divided by the root of the heads and the "
        "steps are multiplied by the heads; no theorem applies there.",
        *panels,
    )


@PAPER.figure("window", "A window that grows while the lag stays", source=SAYS)
def window(full: bool) -> tuple:
    """Held-out loss by length of the window at one lag; numbers that prediction holds."""
    plan = _sizes("window", full)
    lag = min(4, plan.grid[0] - 1)
    curves: dict[str, list[Curve]] = {"loss": [], "jacobian": []}
    for name, model, channels in (
        ("attention", "heads", 8), ("recurrent", "recurrent", 8),
        ("recurrent, bare series", "recurrent", 0),
    ):  # fmt: skip
        how = {"channels": channels}
        runs = [ex.series_runs(plan, model, lag, num_tokens=int(T), **how) for T in plan.grid]
        for kind, lines in curves.items():
            lines.append(band(name, plan.grid, np.stack([run[kind] for run in runs], axis=1)))
    lengths = (64, 256, 1024, 4096)
    held: list[Curve] = []
    spent: list[Curve] = []
    for name in ("heads", "recurrent"):
        costs = np.array([prediction_cost(name, T) for T in lengths]).T
        held.append(band("attention" if name == "heads" else "recurrent", lengths, costs[0]))
        spent.append(band("attention" if name == "heads" else "recurrent", lengths, costs[1]))
    for label, value in (("best possible", data.BAYES), ("predicting zero", data.TRIVIAL)):
        curves["loss"].append(band(label, plan.grid, np.full(len(plan.grid), value)))
    return (
        f"Lag {lag}, raw tokens with 8 pairs of position channels, {plan.samples} samples, "
        f"{plan.width} heads or units, {plan.steps} steps, {plan.seeds} seeds (median, quartiles). "
        "Right: one prediction, token by token for the recurrent network: numbers that the "
        "compiled program holds beside its inputs, and operations that it counts. Training holds "
        "numbers for every token in both.",
        Panel("lowest held-out loss", "tokens", "mean of squares", tuple(curves["loss"]),
              log_x=True),
        _loglog("largest Jacobian norm", "tokens", "norm", *curves["jacobian"]),
        _loglog("numbers held by a prediction", "tokens", "", *held),
        _loglog("operations of a prediction", "tokens", "", *spent),
    )  # fmt: skip


@in_float64
def prediction_cost(model: str, num_tokens: int) -> tuple[float, float]:
    """Numbers that the program of one prediction holds beside its inputs, and its operations."""
    values = {"model": model, "num_tokens": num_tokens, "num_heads": 64, "num_samples": 1}
    start = paper_setup(PAPER, values | {"labels": "gaussian"}).one()
    apply = variants.token_by_token if model == "recurrent" else start.network.apply
    x = np.asarray(start.inputs)[0]
    program = jax.jit(lambda params, x: apply(params, x)).lower(start.params0, x).compile()
    held: Any = program.memory_analysis()
    if model == "recurrent":  # the compiler counts the body of a loop once
        return held.temp_size_in_bytes / 8, variants.operations(64, start.setting.dim, num_tokens)
    counted: Any = program.cost_analysis()
    return held.temp_size_in_bytes / 8, counted["flops"]


@PAPER.figure(
    "radius", "A radius of the teacher's norm lowers held-out loss; half of it stops training"
)
def radius(full: bool) -> tuple:
    """Projection with the teacher inside and outside, plain descent, and decay of equal reach."""
    plan = _sizes("radius", full)
    runs: dict[str, Run] = {}
    for share in (0.5, 1.0, 4.0):
        run = ex.within(plan, 0.5, share)
        acts = ex.binds(run)
        word = "never binds" if not acts.any() else f"binds in {acts.sum()} of {len(acts)}"
        runs[f"radius {share:g} of the norm, {word}"] = run
    runs["plain"] = ex.within(plan, 0.5, None)
    decay, equal = ex.decay_of_reach(plan, 0.5, 1.5)
    runs[f"decay {decay:.2g} to the start"] = equal
    numbers: dict[str, Any] = {
        "training loss": lambda run: run.risk,
        "held-out loss": lambda run: run.probes["test_risk"],
        "norm of the gradient": ex.gradient_sizes,
        "largest movement": ex.moved,
        "drift of the tangent kernel": lambda run: run.probes["kernel_drift"],
    }
    panels = []
    for title, number in numbers.items():
        curves = (band(name, run.step, number(run), positive=True)
                  for name, run in runs.items())  # fmt: skip
        panels.append(Panel(title, "step", "", tuple(curves), log_y=True))
    return (
        f"Dual-certified teacher of norm 3, {plan.samples} samples and 200 held out, {plan.width} "
        f"heads, {plan.steps} steps of 0.5, {plan.seeds} seeds (median, quartiles). The decay is "
        "the one whose largest movement is nearest to that of half the norm.",
        *panels,
    )


@PAPER.figure(
    "long_tokens",
    "Tokens of norm 3 train furthest, and those of norm 10 further than those of norm 1",
)
def long_tokens(full: bool) -> tuple:
    """Training by norm of tokens and queries, with the paper's step, plain and projected."""
    plan = _sizes("long_tokens", full)
    panels: list[Panel] = []
    for title, limit in (("plain", None), ("projected, radius 3", 3.0)):
        curves = []
        for norm in (n for n in NORMS if n != 0.3):  # a figure has six styles
            risk = ex.lengthened(plan, norm, radius=limit).risk
            run = np.minimum(risk / risk[:, :1], 1e6)
            curves.append(band(f"norm {norm:g}", np.arange(risk.shape[1]), run, positive=True))
        panels.append(Panel(title, "step", "loss over its start", tuple(curves), log_y=True))
    return (
        f"Gaussian labels, {plan.samples} samples, {plan.width} heads, {plan.steps} steps of "
        f"{plan.steps**-0.5:.3g}, {plan.seeds} seeds (median, quartiles); cut at 1e6.",
        *panels,
    )


@PAPER.figure("depth", "The deep form, trained on longer sequences")
def depth(full: bool) -> tuple:
    """Lowest loss by length, for one to three layers."""
    plan = _sizes("depth", full)
    curves = [
        _fitted(f"{layers} layers, " if layers > 1 else "1 layer, ",
                **ex.loss_by_length(plan._replace(layers=layers)))
        for layers in (1, 2, 3)
    ]  # fmt: skip
    return (
        f"Every length has the same teacher, of one layer. {plan.samples} samples, {plan.width} "
        f"heads per layer, {plan.steps} steps of {plan.steps**-0.5:.2g}, {plan.seeds} seeds.",
        _loglog("lowest loss over label energy", "tokens", "", *curves),
    )
