"""Claims of wu2023 about attention, the tangent kernel, and how wide is wide enough."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import inits, problems
from shoal.claims import (
    Evidence,
    Interval,
    Measurement,
    Ruling,
    above,
    evidence,
    mean_interval,
    within,
)
from shoal.figures import Panel, band
from shoal.methods import gradient_descent
from shoal.models import empirical_risk
from shoal.papers import wu2023
from shoal.papers.wu2023 import theorems
from shoal.papers.wu2023.encoder import Scales, Weights, attention, encoder, tangent_kernels
from shoal.papers.wu2023.trials import FULL, Plan, experiment_of, slopes, trained
from shoal.problems import Problem
from shoal.training import run

# ----------------------------------------------------------------------------------- attention


@functools.partial(jax.jit, static_argnames="width")
def _deficit(X: Any, starts: Weights, scores: Any, width: int) -> Any:  # noqa: ARG001
    """One minus the normalised entropy of attention, for every seed."""

    def one(params: Weights) -> Any:
        B = jax.vmap(lambda x: attention(params, x, Scales(scores, 1.0, 1.0)))(X)
        entropy = -jnp.sum(jax.scipy.special.xlogy(B, B), axis=-1)
        return 1 - jnp.mean(entropy) / jnp.log(X.shape[1])

    return jax.lax.map(one, starts)


def measure_attention(plan: Plan, exponent: float) -> Measurement:
    """Distance of attention from uniform at the start, by width."""
    exponent = dict(plan.plant).get("score_exponent", exponent)
    found = []
    for width in plan.widths:
        made = experiment_of(plan, {"width": width})
        found.append(_deficit(made.problem.X, made.params0, float(width) ** -exponent, width))
    return {"width": np.array(plan.widths), "deficit": np.asarray(found)}


def _attention_slope(found: Measurement) -> tuple[Interval, Panel]:
    per_seed = slopes(np.log(found["width"]), np.log(found["deficit"]))
    panel = Panel(
        "attention at the start",
        "width",
        "1 - normalised entropy",
        (band("deficit", found["width"], found["deficit"].T, positive=True),),
        log_x=True,
        log_y=True,
    )
    return mean_interval(per_seed), panel


def decide_uniform(found: Measurement) -> Evidence:
    """Supported if the deficit falls like 1 / width."""
    slope, panel = _attention_slope(found)
    return evidence(
        slope,
        "exponent of 1 - entropy against width",
        found["deficit"].size,
        within(slope, -1.3, -0.7),
        "At p = 1 the distance of attention from uniform changed like width^{mean:.2f} "
        "[{low:.2f}, {high:.2f}]; theory says width^-1.",
        panel,
    )


def decide_informative(found: Measurement) -> Evidence:
    """Supported if the deficit does not change with the width."""
    slope, panel = _attention_slope(found)
    return evidence(
        slope,
        "exponent of 1 - entropy against width",
        found["deficit"].size,
        within(slope, -0.25, 0.25),
        "At p = 1/2 the distance of attention from uniform changed like width^{mean:.2f} "
        "[{low:.2f}, {high:.2f}]; within 0.25 of zero counts as staying.",
        panel,
    )


# ------------------------------------------------------------------------- kernel and movement


def measure_kernel_movement(plan: Plan) -> Measurement:
    """Largest relative change of the tangent kernel along the run, by width."""
    grow = dict(plan.plant).get("labels_grow", False)
    found = []
    for width in plan.widths:
        scale = width / plan.widths[0] if grow else 1.0
        out = trained(plan, width=width, label_scale=scale, probes=("kernel_drift",))
        found.append(np.max(out.probes["kernel_drift"], axis=1))
    return {"width": np.array(plan.widths), "drift": np.array(found)}


def decide_kernel_movement(found: Measurement) -> Evidence:
    """Supported if the exponent is below -0.1."""
    fall = mean_interval(-slopes(np.log(found["width"]), np.log(found["drift"])))
    panel = Panel(
        "movement of the tangent kernel",
        "width",
        "largest relative change",
        (band("drift", found["width"], found["drift"].T, positive=True),),
        log_x=True,
        log_y=True,
    )
    return evidence(
        fall,
        "exponent with which kernel movement falls with width",
        found["drift"].size,
        above(fall, 0.1),
        f"The largest relative change of the tangent kernel went like width^{-fall.mean:.2f} "
        f"[{-fall.high:.2f}, {-fall.low:.2f}].",
        panel,
    )


@functools.partial(jax.jit, static_argnames="width")
def _kernels_at_start(X: Any, keys: Any, scales: Scales, factor: Any, width: int) -> Any:
    def one(key: Any) -> Any:
        params = inits.lecun(key, wu2023.encoder.weights_spec(X.shape[-1], width))
        params = params._replace(W_Q=factor * params.W_Q, W_K=factor * params.W_K)
        return tangent_kernels(X, scales)(params)

    return jax.lax.map(one, keys)


def _start_kernels(
    plan: Plan, width: int, exponent: float, count: int, growth: float = 0.0
) -> dict[str, np.ndarray]:
    """LeCun kernels at the start; ``growth`` plants query and key weights that grow with width."""
    X = experiment_of(plan, {"width": width}).problem.X
    scales = Scales(float(width) ** -exponent, 1.0, 1 / plan.num_tokens)
    keys = jax.random.split(jax.random.key(0), count)
    made = _kernels_at_start(X, keys, scales, float(width) ** growth, width)
    return jax.tree.map(np.asarray, made)


def measure_concentration(plan: Plan) -> Measurement:
    """One entry of the output kernel over many seeds, at a small and a large width."""
    exponent = dict(plan.plant).get("score_exponent", 0.5)
    ends = (plan.widths[0], plan.widths[-1])
    count = 12 * plan.num_seeds
    entries = [_start_kernels(plan, w, exponent, count)["w_O"][:, 0, 0] for w in ends]
    return {"width": np.array(ends), "entry": np.array(entries)}


def decide_concentration(found: Measurement) -> Evidence:
    """Supported if the relative spread at the large width is at least half of the small one's."""
    from scipy import stats

    small, large = found["entry"]

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> Any:
        spread = [np.std(x, axis=axis, ddof=1) / np.mean(x, axis=axis) for x in (a, b)]
        return spread[1] / spread[0]

    drawn = stats.bootstrap(
        (small, large), ratio, n_resamples=2000, rng=np.random.default_rng(0), vectorized=True
    ).confidence_interval
    kept = Interval(float(ratio(small, large)), float(drawn.low), float(drawn.high))
    expected = (found["width"][1] / found["width"][0]) ** -0.5
    return evidence(
        kept,
        "relative spread of a kernel entry over seeds, large width over small",
        small.size + large.size,
        above(kept, 0.5),
        "From the smallest to the largest width the relative spread of a kernel entry over seeds "
        "changed by a factor {mean:.2f} [{low:.2f}, {high:.2f}]; "
        f"concentration would give {expected:.2f}.",
        Panel(
            "a kernel entry over seeds",
            "width",
            "entry over its mean",
            (band("entry", found["width"], (found["entry"] / found["entry"].mean(1)[:, None]).T),),
            log_x=True,
        ),
    )


EXPONENTS = (0.5, 0.75, 1.0)  # below 1/2 attention sharpens with the width, and no limit exists


def measure_shares(plan: Plan) -> Measurement:
    """Share of query and key weights in the kernel's trace, by width and exponent."""
    growth, exponents = dict(plan.plant).get("growth", 0.0), EXPONENTS
    widths = [8 * w for w in plan.widths]  # the power law is that of large widths
    shares = np.empty((len(exponents), len(widths), plan.num_seeds))
    for i, p in enumerate(exponents):
        for j, width in enumerate(widths):
            K = _start_kernels(plan, width, p, plan.num_seeds, growth)
            traces = {name: np.trace(k, axis1=1, axis2=2) for name, k in K.items()}
            shares[i, j] = (traces["W_Q"] + traces["W_K"]) / sum(traces.values())
    return {"exponent": np.array(exponents), "width": np.array(widths), "share": shares}


def decide_shares(found: Measurement) -> Evidence:
    """Supported if at every p the share falls like width^(-2p), within 0.3."""
    p, log_width = found["exponent"], np.log(found["width"])
    apart = [
        mean_interval(slopes(log_width, np.log(y)) + 2 * q)
        for q, y in zip(p, found["share"], strict=True)
    ]
    rulings = [within(interval, -0.3, 0.3) for interval in apart]
    worst = max(apart, key=lambda interval: abs(interval.mean))
    ruling = Ruling.SUPPORTED if set(rulings) == {Ruling.SUPPORTED} else Ruling.INCONCLUSIVE
    if Ruling.CONTRADICTED in rulings:
        ruling = Ruling.CONTRADICTED
    exponents = ", ".join(
        f"{i.mean - 2 * q:.2f} at p = {q:g}" for q, i in zip(p, apart, strict=True)
    )
    curves = tuple(
        band(f"p = {q:g}", found["width"], y.T, positive=True)
        for q, y in zip(p, found["share"], strict=True)
    )
    return evidence(
        worst,
        "distance of the share's exponent from -2p, at the p where it is largest",
        found["share"].size,
        ruling,
        "The share of query and key weights in the tangent kernel went like width to the "
        f"{exponents}; "
        "theory says -2p. The largest distance from it was {mean:+.2f} [{low:+.2f}, {high:+.2f}].",
        Panel("query and key share", "width", "share of the trace", curves, log_x=True, log_y=True),
    )


# ------------------------------------------------------------------------------ how wide, again


def _padded(key: Any, dim: int, width: Any, most: int) -> Weights:
    """LeCun weights of a traced width: rows beyond it are zero, which training leaves at zero."""
    on = (jnp.arange(most) < width).astype(float)
    full = inits.ntk(key, wu2023.encoder.weights_spec(dim, most))
    W_Q, W_K, W_V = (on[:, None] * W / dim**0.5 for W in full[:3])
    return Weights(W_Q, W_K, W_V, on * full.w_O / jnp.sqrt(width))


@functools.partial(jax.jit, static_argnames="most")
def _smallest_certified(problem: Problem, keys: Any, widths: Any, exponent: Any, most: int) -> Any:
    """Position of the smallest width at which theorem B applies, by bisection, for every seed."""

    def applies(key: Any, width: Any) -> Any:
        params = _padded(key, problem.X.shape[-1], width, most)
        start = theorems.Start(problem, params, Scales(width**-exponent, 1.0, 1.0), 1.0)
        c = theorems.flow_constants(start)
        return (c["alpha"] > c["alpha_resolution"]) & (c["mu"] < 1) & (c["c_5"] < 1)

    def one(key: Any) -> Any:
        def halve(_: Any, ends: tuple) -> tuple:
            low, high = ends  # the answer lies in (low, high]
            middle = jnp.maximum((low + high) // 2, 0)
            held = applies(key, widths[middle])
            found = high - low <= 1
            low, high = jnp.where(found | held, low, middle), jnp.where(found | ~held, high, middle)
            return low, high

        rounds = int(np.ceil(np.log2(len(widths) + 1)))
        return jax.lax.fori_loop(0, rounds, halve, (jnp.array(-1), jnp.array(len(widths))))[1]

    return jax.lax.map(one, keys)


COUNTS, MANY_COUNTS = (2, 3, 4, 6), (2, 3, 4, 6, 8, 12)


def measure_certified_width(plan: Plan) -> Measurement:
    """Smallest width at which theorem B applies, by number of samples (p = 1, unit tokens)."""
    grow = dict(plan.plant).get("labels_grow", 0.0)
    large = plan.num_samples >= FULL.num_samples
    counts, log_most = (MANY_COUNTS, 18) if large else (COUNTS, 15)
    most = 2**log_most
    widths = np.round(2 ** np.arange(5, log_most + 0.25, 0.25))
    smallest = np.empty((len(counts), plan.num_seeds))
    for i, N in enumerate(counts):
        key_X, key_y = jax.random.split(jax.random.key(1))
        X = problems.unit_tokens(problems.gaussian_tokens(key_X, N, 2, 16))
        y = problems.gaussian_labels(key_y, N, 0.3 * (N / 2) ** grow)
        keys = jax.random.split(jax.random.key(2), plan.num_seeds)
        made = Problem(X, y)
        found = np.asarray(_smallest_certified(made, keys, jnp.asarray(widths), 1.0, most))
        smallest[i] = np.append(widths, 2.0 * most)[found]
    return {"samples": np.array(counts), "width": smallest, "most": np.array(2 * most)}


MOST_TRAINED = 16


def measure_training_width(plan: Plan) -> Measurement:
    """Smallest width that reaches a thousandth of the initial risk, by number of samples."""
    counts, widths = (4, 8, 16, 32), np.array([1, 2, 3, 4, 6, 8, 12, MOST_TRAINED])
    target = 10.0 ** -dict(plan.plant).get("target", 3.0)
    smallest = np.empty((len(counts), plan.num_seeds))
    for i, N in enumerate(counts):
        key_X, key_y = jax.random.split(jax.random.key(3))
        X = problems.gaussian_tokens(key_X, N, plan.num_tokens, plan.dim)
        y = problems.gaussian_labels(key_y, N, 1.0)
        keys = jax.random.split(jax.random.key(4), plan.num_seeds)
        best = np.asarray(
            _fallen(Problem(X, y), keys, jnp.asarray(widths, float), 4 * plan.num_steps)
        )
        reached = best <= target
        first = np.array([np.argmax(row) if row.any() else -1 for row in reached])
        smallest[i] = np.where(first >= 0, widths[first], 2 * widths[-1])
    return {"samples": np.array(counts), "width": smallest}


@functools.partial(jax.jit, static_argnames="num_steps")
def _fallen(problem: Problem, keys: Any, widths: Any, num_steps: int) -> Any:
    """Smallest share of the initial risk reached, for every seed and width (zero-padded)."""
    _, n, d = problem.X.shape

    def one(key: Any, width: Any) -> Any:
        scales = Scales(width**-0.5, 1.0, 1 / n)
        params = _padded(key, d, width, MOST_TRAINED)
        K = sum(tangent_kernels(problem.X, scales)(params).values())
        model = encoder(d, MOST_TRAINED, scales)
        risk = empirical_risk(model, problem, wu2023.PAPER.loss)
        method = gradient_descent(0.5 / jnp.linalg.eigvalsh(K)[-1])
        out = run(method, risk, params, num_steps=num_steps, every=num_steps // 10)
        shares = out.risk / out.risk[0]
        return jnp.min(jnp.where(jnp.isfinite(shares), shares, jnp.inf))

    return jax.vmap(lambda key: jax.vmap(lambda w: one(key, w))(widths))(keys)


def _width_exponent(found: Measurement) -> tuple[Interval, Panel]:
    per_seed = slopes(np.log(found["samples"]), np.log(found["width"]))
    panel = Panel(
        "smallest width",
        "samples",
        "width",
        (band("smallest width", found["samples"], found["width"].T),),
        log_x=True,
        log_y=True,
    )
    return mean_interval(per_seed), panel


def decide_certified_width(found: Measurement) -> Evidence:
    """Supported if the exponent is at most 2.25."""
    slope, panel = _width_exponent(found)
    return evidence(
        slope,
        "exponent of the smallest certified width against samples",
        found["width"].size,
        within(slope, -np.inf, 2.25),
        "The smallest width that theorem B certifies (p = 1, unit tokens, dimension 16, few "
        "samples) grew like N^{mean:.2f} [{low:.2f}, {high:.2f}]; up to N^2.25 counts as "
        f"quadratic. {int((found['width'] >= found['most']).sum())} of {found['width'].size} "
        "needed more than the grid held.",
        panel,
    )


def decide_training_width(found: Measurement) -> Evidence:
    """Supported if the exponent is within a quarter of 2."""
    slope, panel = _width_exponent(found)
    return evidence(
        slope,
        "exponent of the smallest width that trains against samples",
        found["width"].size,
        within(slope, 1.75, 2.25),
        "The smallest width that trains to a thousandth of the initial risk grew like N^{mean:.2f} "
        "[{low:.2f}, {high:.2f}]; N^1.75 to N^2.25 counts as quadratic.",
        panel,
    )
