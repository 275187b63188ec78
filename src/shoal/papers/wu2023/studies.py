r"""What Wu et al. (2023) say, and what follows from it, tested.

The paper's full text was not available; statements are in our words, after its abstract and public
summaries. Its dimensions are not known, so quick sizes are ours, and "full" means 100 samples of 10
Gaussian tokens in dimension 100, 400 steps and widths up to 4000, our best guess.

Speed is measured in `decades`: how many powers of ten the risk fell, averaged over the run. Unless
said otherwise a run takes its default step, half of $1/\lambda_{\max}$ of its tangent kernel.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from shoal.lab import claim as rules
from shoal.lab.claim import Measurement, Plan, Rule, above, comparison, exponent, exponents, slope
from shoal.lab.engine import per_start
from shoal.lab.run import Run
from shoal.lab.setting import OURS, SUMMARY
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.study import decades, trained
from shoal.papers.wu2023.model import CERTIFIABLE, PAPER, Init, Weights
from shoal.papers.wu2023.theorems import flow_is_certified

QUICK = Plan(grid=(32, 128, 512))
FULL = Plan(seeds=10, samples=100, tokens=10, dim=100, grid=(10, 100, 1000, 4000), steps=400)
SETTING = ("our setting (the paper's dimensions are not known), one data set: intervals cover the "
           "draw of the weights, not of the data")  # fmt: skip
CRIPPLED = {"train": "W_Q"}  # a model that cannot fit: only the query weights move


def sizes(plan: Plan) -> dict[str, Any]:
    """The settings that a plan decides, except for the width."""
    names = {"num_samples": "samples", "num_tokens": "tokens", "dim": "dim", "num_steps": "steps"}
    return {name: getattr(plan, size) for name, size in names.items()}


def run_of(plan: Plan, *probes: str, step: Any = None, **values: Any) -> Run:
    """Train all seeds of a plan; ``step`` as in `lab.study.trained`, or one for each seed."""
    return trained(PAPER, plan.seeds, probes, step=step, **(sizes(plan) | values))


def steps_of(plan: Plan, *, step: Any = None, **values: Any) -> tuple[float, ...]:
    """The step of every seed at a setting, to give other settings the same."""
    return tuple(run_of(plan, step=step, **values).step_size.tolist())


def at_start(plan: Plan, function: Callable[[Setup], Any], **values: Any) -> np.ndarray:
    """A function of every seed's start."""
    return per_start(paper_setup(PAPER, sizes(plan) | values, seeds=range(plan.seeds)), function)


def claim(
    key: str, statement: str, measure: Callable[[Plan], Measurement], rule: Rule,
    control: dict[str, Any], source: str = SUMMARY, seeds: int = QUICK.seeds,
) -> None:  # fmt: skip
    """Register a claim at quick and full size."""
    full = FULL._replace(seeds=max(FULL.seeds, seeds))._asdict()
    PAPER.claim(
        key, statement, measure, None, rule, control=control, source=source, setting=SETTING,
        quick=QUICK._replace(seeds=seeds), full=full,
    )  # fmt: skip


# ------------------------------------------------------------------------------------- convergence


def linear_convergence(plan: Plan) -> Measurement:
    """Rate of the last quarter of the run over that of the third: 1 if the rate persists.

    A rate that persists while the risk ends above 1% of its start decides nothing.
    """
    risk = run_of(plan, width=plan.grid[-1], **dict(plan.control)).risk
    quarter = (risk.shape[1] - 1) // 4
    log = np.log(np.maximum(risk, 1e-300))
    third, last = log[:, -1 - 2 * quarter] - log[:, -1 - quarter], log[:, -1 - quarter] - log[:, -1]
    falling = (third > 0) & (last > 0)
    kept = np.where(falling, last / np.where(falling, third, 1.0), 0.0)
    fallen = np.median(risk[:, -1] / risk[:, 0]) < 0.01 or np.mean(kept) <= 0.8
    return {"effect": kept, "premise": np.asarray(fallen), "curve risk": risk}


claim("linear_convergence", "A wide network converges linearly to zero loss.", linear_convergence,
      above(0.8, "the rate of the last quarter of the run over that of the third",
            premise="the risk ends below 1% of its start",
            note="A constant rate keeps 1, 1/t decay 0.71, a floor 0.", revised=True),
      {"shape": "twins"})  # fmt: skip


def curve(x: Any, columns: list[np.ndarray]) -> Measurement:
    """Numbers of every seed against a setting, one column for each of its values."""
    return {"x": np.asarray(x, float), "y": np.stack(columns, axis=1)}


def speed_by_width(plan: Plan, equal: bool) -> Measurement:
    """Speed at each width, each at its default step or all at the step that suits the widest."""
    step = steps_of(plan, width=plan.grid[-1]) if equal else None
    runs = [run_of(plan, step=step, width=w, **dict(plan.control)) for w in plan.grid]
    return curve(plan.grid, [decades(run.risk) for run in runs])


def speed_by_samples(plan: Plan) -> Measurement:
    """Speed at fixed width for half, the usual and twice the number of samples."""
    counts = (plan.samples // 2, plan.samples, 2 * plan.samples)
    values = {"width": plan.grid[1]} | dict(plan.control)
    runs = [run_of(plan._replace(samples=N), **values) for N in counts]
    return curve(counts, [decades(run.risk) for run in runs])


# negative control: with NTK the kernel does not grow with the width
claim("width_helps_equal_step", "Wider networks converge faster at the same step.",
      partial(speed_by_width, equal=True),
      slope("width", above=0.05, what="decades gained", note="The step suits the widest."),
      {"init": "ntk"})  # fmt: skip
claim("width_helps_own_step", "Wider networks converge faster, each at a step that suits it.",
      partial(speed_by_width, equal=False),
      slope("width", above=0.05, what="decades gained", note="Narrow networks bear larger steps."),
      {"shape": "twins"}, OURS)  # fmt: skip
claim("samples_cost", "More samples at the same width converge more slowly.", speed_by_samples,
      slope("samples", below=-0.05, what="decades gained"), {"shape": "twins"}, OURS)  # fmt: skip

# ------------------------------------------------------------------------------------- comparisons

HALF, ONE = ("p = 1/2", {"score_exponent": 0.5}), ("p = 1", {"score_exponent": 1.0})
LECUN, NTK = ("LeCun", {"init": "lecun"}), ("NTK", {"init": "ntk"})


def ahead(runs: dict[str, Run]) -> Measurement:
    """Decades by which one side is ahead, seed by seed; a side that diverged decides nothing."""
    with np.errstate(invalid="ignore"):
        found = comparison(*(decades(run.risk) for run in runs.values()))
    return found | {f"curve {label}": run.risk for label, run in runs.items()}


def versus(
    key: str, statement: str, favoured: tuple[str, dict], other: tuple[str, dict], width: int,
    step: str, *, control: dict[str, Any] = CRIPPLED, low: float = 0.0, high: float = np.inf,
    note: str = "", **common: Any,
) -> None:  # fmt: skip
    """Claim about two settings on the same data and seeds; ``width`` is a place in the plan's grid.

    ``step`` is "tuned", or "equal": the step that suits the favoured side. The negative control
    weakens the favoured side.
    """
    one, two = favoured[0], other[0]

    def measure(plan: Plan) -> Measurement:
        shared = common | {"width": plan.grid[width]}
        mine, yours = shared | favoured[1], shared | other[1]
        chosen = steps_of(plan, **mine) if step == "equal" else step
        sides = {one: mine | dict(plan.control), two: yours}
        return ahead({k: run_of(plan, step=chosen, **side) for k, side in sides.items()})

    what = f"decades by which {one} is ahead of {two}"
    claim(key, statement, measure, rules.between(low, high, what, one, two, note=note), control)


versus("scaling_large_width_equal_step",
       "At large width, scores scaled by width^-1/2 train faster than by width^-1 (same step).",
       HALF, ONE, -1, "equal")  # fmt: skip
versus("scaling_large_width_tuned",
       "At large width, width^-1/2 trains faster than width^-1, each at its own best step.",
       HALF, ONE, -1, "tuned")  # fmt: skip
versus("scaling_small_width_equal_step",
       "At small width the two scalings train nearly equally fast (same step).",
       HALF, ONE, 0, "equal", low=-0.1, high=0.1)  # fmt: skip
versus("lecun_beats_ntk_equal_step",
       "LeCun initialisation trains faster than NTK at the same step.", LECUN, NTK, -1, "equal",
       note="The step suits LeCun; the kernel of NTK is smaller by about the width, so it would "
       "bear a far larger step.")  # fmt: skip
versus("lecun_beats_ntk_tuned",
       "LeCun initialisation trains faster than NTK, each at its own best step.",
       LECUN, NTK, -1, "tuned",
       note="If this is negative, an advantage at the same step is due to the step.")  # fmt: skip

# --------------------------------------------------------------------------------------- attention


def attention_deficit(setup: Setup) -> Any:
    """One minus the normalised entropy of attention at the start."""
    return 1 - setup.setting.probes(setup)["attention_entropy"](setup.params0)


def deficit_by_width(plan: Plan, score_exponent: float) -> Measurement:
    """Distance of attention from uniform at the start, by width."""
    values = {"score_exponent": score_exponent} | dict(plan.control)
    return curve(plan.grid, [at_start(plan, attention_deficit, width=w, **values)
                             for w in plan.grid])  # fmt: skip


claim("attention_tends_to_uniform", "With width^-1 attention tends to uniform as the width grows.",
      partial(deficit_by_width, score_exponent=1.0),
      exponent(-1.3, -0.7, "1 - entropy of attention", "width", note="Theory says -1."),
      {"score_exponent": 0.5}, seeds=16)  # fmt: skip
claim("attention_stays_informative",
      "With width^-1/2 attention stays away from uniform at any width.",
      partial(deficit_by_width, score_exponent=0.5),
      exponent(-0.25, 0.25, "1 - entropy of attention", "width"), {"score_exponent": 1.0},
      seeds=16)  # fmt: skip
# negative control: attention as uniform as the other side's
versus("dimension_missing",
       "Where samples differ only in how tokens interact, width^-1 trains far more slowly.",
       HALF, ONE, -1, "tuned", shape="equal_means", low=1.0, control={"score_exponent": 1.0},
       note="All sequences have the same token mean; the statement was weakened after a first "
       "look.")  # fmt: skip

# ------------------------------------------------------------------------------ kernel and movement


def kernel_movement(plan: Plan) -> Measurement:
    """Largest relative change of the tangent kernel along the run, by width."""
    drift = []
    for width in plan.grid:
        scale = width / plan.grid[0] if plan.get("labels_grow", False) else 1.0
        run = run_of(plan, "kernel_drift", width=width, label_scale=scale)
        drift.append(np.max(run.probes["kernel_drift"], axis=1))
    return curve(plan.grid, drift)


def freezing(plan: Plan) -> Measurement:
    """Distance of the weights from their end after an eighth of the run, over the whole way."""
    width, slow = plan.grid[-1], plan.get("slow", None)  # a share of the default step
    step = steps_of(plan, step=None if slow else "tuned", width=width)
    step = tuple((slow or 1.0) * s for s in step)
    run = run_of(plan, "params", step=step, width=width, every=plan.steps // 8)

    def squares(name: str) -> np.ndarray:
        path = run.probes[f"params_{name}"]
        return np.sum((path - path[:, -1:]) ** 2, axis=tuple(range(2, path.ndim)))

    left = np.sqrt(sum(squares(name) for name in Weights._fields))
    left = left[:, :-1] / left[:, :1]
    return {"effect": left[:, 1], "x": np.arange(1, 8) / 8, "y": left[:, 1:],
            "runs": np.asarray(len(left))}  # fmt: skip


def output_kernel_entry(setup: Setup) -> Any:
    """One entry of the output weights' tangent kernel at the start."""
    return setup.setting.block_kernels(setup)(setup.params0)["w_O"][0, 0]


def concentration(plan: Plan) -> Measurement:
    """One entry of the output kernel over many seeds, at the smallest and the largest width."""
    many = plan._replace(seeds=12 * plan.seeds)
    values = {"score_exponent": 0.5} | dict(plan.control)
    widths = (plan.grid[0], plan.grid[-1])
    return comparison(*(at_start(many, output_kernel_entry, width=w, **values) for w in widths))


def query_key_share(setup: Setup) -> Any:
    """Share of query and key weights in the trace of the tangent kernel at the start."""
    K = setup.setting.block_kernels(setup)(setup.params0)
    traces = {name: jnp.trace(block) for name, block in K.items()}
    return (traces["W_Q"] + traces["W_K"]) / sum(traces.values())


CONSTANT = 0.3  # exponents within this of zero


def share_by_width(plan: Plan) -> Measurement:
    """Share of query and key weights times width^2p, at the p that fits the claim least.

    Its interval lies farthest outside the limits or, if none does, reaches farthest from zero.
    """
    widths = np.array([8.0 * w for w in plan.grid])  # the power law is that of large widths
    scaled = {}
    for p in (0.5, 0.75, 1.0):  # below 1/2 attention sharpens with the width: no limit exists
        q = p + plan.get("more", 0.0)
        shares = [at_start(plan, query_key_share, width=int(w), score_exponent=q) for w in widths]
        scaled[p] = np.stack(shares, axis=1) * widths ** (2 * p)

    def misfit(p: float) -> tuple[float, float]:
        _, low, high = rules.mean_interval(exponents(widths, scaled[p]))
        return max(low - CONSTANT, -CONSTANT - high, 0.0), max(abs(low), abs(high))

    worst = scaled[max(scaled, key=misfit)]
    return {"x": widths, "y": worst, "runs": np.asarray(len(scaled) * worst.size)}


claim("kernel_moves_less", "The tangent kernel moves less in wider networks.", kernel_movement,
      exponent(-np.inf, -0.1, "the kernel's largest relative change", "width"),
      {"labels_grow": True})  # fmt: skip
claim("weights_freeze_early", "Weights hardly move after the first eighth of training.", freezing,
      rules.below(0.1, "the distance left after an eighth of the run, over the whole distance",
                  note="An eighth is the paper's epoch 50 of 400.", revised=True),
      {"slow": 0.01})  # fmt: skip
claim("kernel_stays_random",
      "With width^-1/2 and one head the tangent kernel does not concentrate across seeds.",
      concentration,
      above(0.5, "the relative spread of a kernel entry over seeds, largest width over smallest",
            "mean at the smallest width", "at the largest", statistic="spread",
            note="Concentration would give the root of the ratio of widths, 0.25 at quick size."),
      {"score_exponent": 1.0}, OURS)  # fmt: skip
# negative control: scores that are scaled by width^-(p + 1/2)
claim("query_key_share",
      "Query and key weights contribute to the tangent kernel like width^(-2p), p >= 1/2.",
      share_by_width,
      exponent(-CONSTANT, CONSTANT, "their share times width^2p, at the p that fits least,",
               "width", revised=True),
      {"more": 0.5}, OURS)  # fmt: skip

# ------------------------------------------------------------------------------- how wide is needed


def smallest_certified(setup: Setup, widths: Any) -> Any:
    """Position of the smallest width at which theorem B applies, by bisection.

    A width is that of the first units of the full start; the others are zero.
    """
    setting = setup.setting

    def applies(units: Any) -> Any:
        narrow = setting.narrowed(setup.params0, units)
        return flow_is_certified(setup.with_setting(active=units).replace(params0=narrow))

    def halve(_: Any, ends: tuple) -> tuple:
        low, high = ends  # the answer lies in (low, high]
        middle = jnp.maximum((low + high) // 2, 0)
        held = applies(widths[middle])
        found = high - low <= 1
        return jnp.where(found | held, low, middle), jnp.where(found | ~held, high, middle)

    rounds = int(np.ceil(np.log2(len(widths) + 1)))
    return jax.lax.fori_loop(0, rounds, halve, (jnp.array(-1), jnp.array(len(widths))))[1]


def certified_width(plan: Plan) -> Measurement:
    """Smallest width at which theorem B applies, by number of samples (p = 1, unit tokens).

    A start that needs more than the grid holds counts as twice its largest width, so the exponent
    is then a lower bound: it can contradict the claim but not support it.
    """
    large = plan.samples >= FULL.samples
    counts, octaves = ((2, 3, 4, 6, 8, 12), 18) if large else ((2, 3, 4, 6), 15)
    widths = np.round(2 ** np.arange(5, octaves + 0.25, 0.25))
    smallest = []
    for N in counts:
        scale = 0.3 * (N / 2) ** plan.get("labels_grow", 0.0)
        values = CERTIFIABLE | {"num_samples": N, "dim": 16, "label_scale": scale}
        start = paper_setup(PAPER, values | {"width": 2**octaves}, seeds=range(plan.seeds))
        found = per_start(start, smallest_certified, widths)
        smallest.append(np.append(widths, 2.0 * widths[-1])[found])
    made = curve(counts, smallest)
    decided = made["y"].max() <= widths[-1] or np.mean(exponents(made["x"], made["y"])) >= 2.25
    return made | {"premise": np.asarray(decided)}


def training_width(plan: Plan) -> Measurement:
    """Smallest width that reaches a thousandth of the initial risk, by number of samples."""
    counts, widths = (4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 12, 16)
    target = 10.0 ** -plan.get("target", 3.0)
    smallest = np.full((plan.seeds, len(counts)), 2.0 * widths[-1])
    for i, N in enumerate(counts):
        longer = plan._replace(samples=N, steps=4 * plan.steps)
        for width in reversed(widths):
            run = run_of(longer, width=widths[-1], active=width, every=longer.steps // 10)
            reached = np.nanmin(run.risk / run.risk[:, :1], axis=1) <= target
            smallest[reached, i] = width
    runs = np.asarray(smallest.size * len(widths))
    return {"x": np.array(counts, float), "y": smallest, "runs": runs}


claim("quadratic_width_suffices",
      "A width quadratic in the number of samples suffices for guaranteed convergence.",
      certified_width,
      exponent(-np.inf, 2.25, "the smallest width that theorem B certifies", "samples",
               premise="the grid of widths holds what is needed",
               note="p = 1, unit tokens, dimension 16, few samples."),
      {"labels_grow": 2.0})  # fmt: skip
claim("quadratic_width_is_needed", "Quadratic width is tight: training needs it.", training_width,
      exponent(1.75, 2.25, "the smallest width that trains to a thousandth of the first risk",
               "samples"),
      {"target": 1.0}, OURS)  # fmt: skip

# -------------------------------------------------------------------------- data and initialisation


def overlap(plan: Plan) -> Measurement:
    """Separate against strongly overlapping samples."""
    shares = {"separate": 0.0, "overlapping": plan.get("overlap", 0.95)}
    return ahead({k: run_of(plan, width=plan.grid[-1], overlap=q) for k, q in shares.items()})


def lost_rank(plan: Plan) -> Measurement:
    """Share of the speed that is lost with a doubled token in every sequence."""
    shapes = {"full rank": "plain", "doubled token": plan.get("shape", "doubled_tokens")}
    found = ahead({k: run_of(plan, width=plan.grid[-1], shape=s) for k, s in shapes.items()})
    return found | {"effect": 1 - found["other"] / found["one"]}


def conditioning(plan: Plan) -> Measurement:
    """Rank correlation of good conditioning of the kernel with speed, over initialisations."""
    from scipy import stats

    condition, speed = [], []
    for init in get_args(Init):
        values = {"init": init, "width": plan.grid[1]} | dict(plan.control)
        run = run_of(plan, "kernel_lambda_min", "kernel_lambda_max", **values)
        low, high = (run.probes[f"kernel_lambda_{end}"][:, 0] for end in ("min", "max"))
        condition.append(np.log10(high / np.maximum(low, 1e-16 * high)))
        speed.append(decades(run.risk))
    a, b = np.array(condition).T, np.array(speed).T
    agreement = [-stats.spearmanr(*seed).statistic for seed in zip(a, b, strict=True)]
    best, worst = (np.take_along_axis(b, k(a, axis=1)[:, None], 1)[:, 0]
                   for k in (np.argmin, np.argmax))  # fmt: skip
    return comparison(best, worst, agreement, runs=b.size)


claim("similar_samples_hurt",
      "Similar samples slow training down (the dissimilarity assumption matters).", overlap,
      above(0.2, "decades by which separate samples are ahead of samples that share 95% of their "
            "energy", "separate", "overlapping"), {"overlap": 0.0})  # fmt: skip
claim("rank_is_needed", "Training needs sequences of full row rank.", lost_rank,
      above(0.5, "the share of the speed lost when every sequence has a doubled token",
            "decades with full rank", "with a doubled token", note="A negative loss is a gain."),
      {"shape": "plain"}, OURS)  # fmt: skip
# negative control: one small step for all, so that the size of the kernel decides
claim("conditioning_ranks_initialisations",
      "Among initialisations, the better conditioned tangent kernel trains faster.", conditioning,
      above(0.3, "the rank correlation of good conditioning with speed, over five initialisations",
            "decades of the best conditioned", "of the worst"), {"step": 1e-4}, OURS)  # fmt: skip
