r"""What Song et al. (2024) say, and what follows from it, as claims; and the paper's visit.

In this order: values alone, the trap, row sums of attention, initialisation, the visit.

The paper's full text was not available; statements are in our words, after its abstract, reviews
and public summaries. Batch sizes, step sizes and numbers of runs are not known, so settings are
ours. Rules were written down before their first run; where a statistic or a size was changed after
a review that had seen results, the rule says so.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal._typing import Array, Float
from shoal.figures import Panel, band
from shoal.lab.claim import Measurement, Plan, above, below, between, comparison
from shoal.lab.engine import per_start
from shoal.lab.run import Run, train
from shoal.lab.setting import SUMMARY
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.study import Study, fresh_setup, trained
from shoal.lab.visit import Visit, number
from shoal.linalg import numerical_rank, sigma_min
from shoal.papers.song2024 import bounds, layer
from shoal.papers.song2024.model import PAPER, hull_floor

KERNELS = ("softmax", "gaussian")
TINY = 1e-24
"""Risks below this are rounding; logarithms stop here."""
FRESH = "our setting, a new problem for every seed"
_claim = functools.partial(PAPER.claim, setting=FRESH)


def log10(x: Any, least: float = TINY) -> np.ndarray:
    """Powers of ten, cut off below."""
    return np.log10(np.maximum(np.asarray(x, float), least))


def _at_start(values: dict, seeds: int, measure: Any, *more: Any) -> Any:
    """What a function finds in every seed's problem and weights before training."""
    return per_start(fresh_setup(PAPER, values, seeds=range(seeds)), measure, *more)


def _last(run: Run) -> np.ndarray:
    return log10(run.risk[:, -1])


def recursion(plan: Plan) -> Measurement:
    """Risk of value-only training at theorem 1's step, beside the exact recursion."""
    risk, exact = [], []
    for kernel, (heads, dim) in itertools.product(KERNELS, ((1, 24), (2, 6))):
        run = trained(
            PAPER, plan.seeds, step="theorem_1", fresh_data=True, kernel=kernel, num_heads=heads,
            dim=dim, train=plan.get("train", "W_V"), num_steps=plan.steps,
        )  # fmt: skip
        risk.append(run.risk)
        exact.append([one.curves["exact recursion"] for one in run.certify("theorem_1")])
    risks, curves = np.array(risk), np.array(exact)
    gap = log10(np.max(np.abs(risks - curves), axis=2) / risks[:, :, 0])
    return {
        "effect": gap.mean(axis=0),  # a seed counts once
        "runs": np.array(gap.size), "every": np.array(run.setup.setting.every),
        "curve measured": np.concatenate(risks), "curve recursion": np.concatenate(curves),
    }  # fmt: skip


def _floor_share(setup: Setup) -> Float[Array, ""]:
    c = bounds.value_numbers(setup)
    return c["F_star"] / c["F_0"]


def value_floors(plan: Plan, heads: int, dim: int) -> np.ndarray:
    """Share of the first risk that training values alone must leave, for every seed."""
    values = {"num_samples": plan.samples, "num_tokens": plan.tokens, "train": "W_V"}
    return _at_start(values | {"num_heads": heads, "dim": dim}, plan.seeds, _floor_share)


def halved_floors(plan: Plan) -> Measurement:
    """Floors with half the dimension: two heads against one."""
    half = plan.samples * plan.tokens // 2
    two, one = (log10(value_floors(plan, h, half)) for h in (plan.get("heads", 2), 1))
    return comparison(two, one, effect=two)


def _rank_share(setup: Setup) -> Float[Array, ""]:
    B = layer.feature_matrix(setup.params0, setup.inputs, setup.setting.form)
    return numerical_rank(B, bounds.ZERO) / len(B)


def byte_ranks(plan: Plan) -> Measurement:
    """Missing share of the rank of the features on bytes, dim = samples x tokens, both kernels."""
    values = {"problem": plan.get("problem", "imdb"), "num_samples": plan.samples}
    values |= {"num_tokens": plan.tokens, "dim": plan.samples * plan.tokens}
    shares = [_at_start(values | {"kernel": k}, plan.seeds, _rank_share) for k in KERNELS]
    return {"effect": 1 - np.mean(shares, axis=0), "runs": np.array(2 * plan.seeds)}


_claim(
    "values_follow_recursion",
    "Training W_V alone takes the loss to the least squares floor at the predicted rate, for both "
    "kernels.",
    recursion, rule=below(-9.0, "log10 of the largest gap to the recursion over the first risk"),
    control={"train": "W_V,W_K"}, control_plan=Plan(seeds=2, steps=50), source=SUMMARY,
    quick=Plan(seeds=4, steps=400), full={"seeds": 10, "steps": 10000},
)  # fmt: skip
_claim(
    "heads_times_dim_counts",
    "What decides is heads x dim >= samples x tokens, not dim >= samples x tokens.",
    halved_floors,
    rule=below(-9.0, "log10 of the floor over the first risk, dim halved", "two heads", "one head"),
    control={"heads": 1}, quick=Plan(seeds=8, samples=4, tokens=4), full={"seeds": 30},
)  # fmt: skip
_claim(
    "bytes_need_more_than_dim",
    "dim >= samples x tokens does not make features independent for byte embeddings.",
    byte_ranks, rule=above(0.05, "share of the rank that is missing"),
    control={"problem": "gaussian"}, quick=Plan(seeds=8, samples=4, tokens=16), full={"seeds": 30},
)  # fmt: skip


NEAR_TRAP: dict[str, Any] = {"problem": "trap", "init": "near_trap"}


def near_trap(plan: Plan, kernel: str, moving: str, step: float) -> Run:
    """Train from neighbours of the trap."""
    return trained(
        PAPER, plan.seeds, step=step, kernel=kernel, train=moving, num_steps=plan.steps, every=50,
        **NEAR_TRAP,
    )  # fmt: skip


def trapped(plan: Plan) -> Measurement:
    """Softmax and Gaussian from the same starts near the trap."""
    moving = plan.get("train", "W_Q")
    softmax, gaussian = (near_trap(plan, kernel, moving, 0.5) for kernel in KERNELS)
    one, other = _last(softmax), _last(gaussian)
    ends = softmax.final_states() or []
    strict = np.array([e["gradient_norm"] < 1e-8 and e["hessian_min"] > 1e-6 for e in ends])
    curves = {"curve softmax": softmax.risk, "curve gaussian": gaussian.risk}
    fine = np.all(strict | (one - other <= 6.0))
    return comparison(one, other, premise=fine, every=np.array(50), **curves)


def row_risks(setup: Setup) -> Float[Array, " rows"]:
    """Risk of each query."""
    return 0.5 * jnp.sum(bounds.residual(setup) ** 2, axis=-1).ravel()


def census(
    seeds: int, *, kernel: str, teacher: str, key_dim: int, positive: bool, steps: int = 8000
) -> np.ndarray:
    """For every seed, the share of six queries that end above 1e-4; a teacher's queries label them.

    Each seed has six tokens with random keys and values, and as many queries, each on its own.
    """
    unit = 6**0.5  # keys, queries and values of variance one
    run = trained(
        PAPER, seeds, step=0.3, fresh_data=True, kernel=kernel, teacher_kernel=teacher,
        key_dim=key_dim, value_dim=1, num_samples=1, num_tokens=6, tokens="identity",
        labels="query", init="positive" if positive else "identity", score_scale=unit,
        value_scale=unit, train="W_Q", num_steps=steps,
    )  # fmt: skip
    risks = per_start(run.setup.replace(params0=run.params), row_risks)
    return np.mean(~(risks <= 1e-4), axis=1)  # NaN is above


def gaussian_census(plan: Plan) -> Measurement:
    """Random rows, the Gaussian as its own teacher's student."""
    case = {"key_dim": 1, "positive": False} | dict(plan.control)
    stuck = census(plan.seeds, kernel="gaussian", teacher="gaussian", steps=plan.steps, **case)
    return {"effect": stuck, "runs": np.array(6 * stuck.size)}


_claim(
    "softmax_is_trapped",
    "Where only W_Q moves, softmax can end at a bad local minimum where the Gaussian finds zero.",
    trapped,
    rule=above(6.0, "decades by which softmax ends above the Gaussian near the trap", *KERNELS,
               premise="every run that ends above is at a strict minimum (gradient below 1e-8, "
               "Hessian above 1e-6)"), control={"train": "W_Q,W_K"}, source=SUMMARY,
    quick=Plan(seeds=16, steps=10000), full={"seeds": 100},
)  # fmt: skip
_claim(
    "keys_free_softmax",
    "Training W_K too frees softmax from that trap.",
    Study(PAPER, seeds=16, step_size=0.2, train="W_Q,W_K", num_steps=20000, every=100, **NEAR_TRAP),
    lambda run: log10(run.risk[:, -1] / run.risk[:, 0]),
    below(-3.0, "log10 of last over first risk"), control={"train": "W_Q"}, full={"seeds": 100},
)  # fmt: skip
_claim(
    "gaussian_has_traps_too",
    "The Gaussian does not always reach zero either when only W_Q moves.",
    gaussian_census,
    rule=above(0.05, "share of random rows that end above 1e-4 although zero is in reach"),
    control={"positive": True, "key_dim": 2}, quick=Plan(seeds=150, steps=8000, tokens=6),
    full={"seeds": 800},
)  # fmt: skip


def mixture_runs(plan: Plan, kernel: str, row_sum: float, dim: int = 12) -> Run:
    """Train W_Q on targets that mix the values themselves with weights of a given sum (E2)."""
    return trained(
        PAPER, plan.seeds, step=0.02, fresh_data=True, labels="mixture", row_sum=row_sum,
        init="identity", num_samples=3, num_tokens=3, dim=dim, key_dim=4, value_dim=3, out_dim=3,
        kernel=kernel, train="W_Q", num_steps=plan.get("num_steps", plan.steps),
    )  # fmt: skip


def _lowest_in_hull(setup: Setup) -> Float[Array, ""]:
    return hull_floor(setup)(setup.params0)


def hull_floors(run: Run) -> np.ndarray:
    """Lowest risk of weights that sum to one, values fixed, on each problem of a run."""
    return np.maximum(per_start(run.setup, _lowest_in_hull), TINY)


def over_hull(plan: Plan) -> Measurement:
    """Softmax on targets with row sums of 0.6, against the floor of its convex hull."""
    run = mixture_runs(plan, "softmax", 0.6)
    last, floor = run.risk[:, -1], hull_floors(run)
    return comparison(last, floor, effect=last / floor - 1)


def lower_by(plan: Plan, favoured: str, other: str, row_sum: float) -> Measurement:
    """Decades by which one kernel ends below another."""
    runs = (mixture_runs(plan, k, plan.get("row_sum", row_sum)) for k in (other, favoured))
    return comparison(*map(_last, runs))


def normalisation_gap(plan: Plan) -> Measurement:
    """How far normalising its rows takes the Gaussian towards softmax, in decades."""
    kernels = ("gaussian", "softmax", plan.get("normalised", "normalised_gaussian"))
    gaussian, softmax, even = (_last(mixture_runs(plan, kernel, 0.6)) for kernel in kernels)
    return {"one": even - gaussian, "other": softmax - gaussian}


def rescued(plan: Plan) -> Measurement:
    """Softmax on targets outside its hull, at dim = N n and dim = N n^2."""
    runs = (mixture_runs(plan, "softmax", 0.6, dim) for dim in (9, 27))
    return comparison(*(log10(run.risk[:, -1] / run.risk[:, 0]) for run in runs))


_MIX: dict[str, Any] = {"quick": Plan(seeds=16, steps=40000), "full": {"seeds": 100}}
_claim(
    "softmax_stops_at_hull",
    "Where targets ask for row sums of 0.6, softmax stops at the floor of its convex hull.",
    over_hull,
    rule=between(-1e-6, 0.1, "final risk of softmax over its hull floor, minus 1", "last risk",
                 "hull floor"), control={"num_steps": 20}, **_MIX,
)  # fmt: skip
_claim(
    "gaussian_goes_below_hull",
    "There the Gaussian, which is not normalised, ends far lower.",
    functools.partial(lower_by, favoured="gaussian", other="softmax", row_sum=0.6),
    rule=above(1.0, "decades by which the Gaussian ends below softmax", *KERNELS),
    control={"row_sum": 1.0}, source=SUMMARY, **_MIX,
)  # fmt: skip
_claim(
    "softmax_wins_inside_hull",
    "Where targets have row sums of 1, softmax is the better one.",
    functools.partial(lower_by, favoured="softmax", other="gaussian", row_sum=1.0),
    rule=above(1.0, "decades by which softmax ends below the Gaussian", "gaussian", "softmax"),
    control={"row_sum": 0.6}, **_MIX,
)  # fmt: skip
_claim(
    "normalisation_explains_gap",
    "Normalisation explains the gap: with normalised rows the Gaussian does as softmax does.",
    normalisation_gap,
    rule=above(0.5, "share of the mean gap (in decades) between Gaussian and softmax that "
               "normalising makes", "normalised minus plain Gaussian",
               "softmax minus plain Gaussian", statistic="ratio", revised=True),
    control={"normalised": "gaussian"}, **_MIX,
)  # fmt: skip
_claim(
    "dimension_rescues_softmax",
    "A stronger over-parameterisation, dim >= samples x tokens^2, rescues softmax.",
    rescued,
    rule=above(1.0, "decades by which it lowers the final share of the risk outside the hull",
               "dim = N n", "dim = N n^2"), control={"num_steps": 20}, source=SUMMARY, **_MIX,
)  # fmt: skip


SCALES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)


def _sigma_by_scale(setup: Setup, scales: Float[Array, " points"]) -> Float[Array, " points"]:
    def one(scale: Array) -> Array:
        W = setup.params0._replace(W_Q=scale * setup.params0.W_Q, W_K=scale * setup.params0.W_K)
        return sigma_min(layer.feature_matrix(W, setup.inputs, setup.setting.form))

    return jax.lax.map(one, scales)


def feature_sigmas(seeds: int, kernel: str, *, tied: bool) -> np.ndarray:
    """Smallest singular value of the features by scale of W_Q and W_K, (seeds, scales)."""
    values: dict[str, Any] = {"tokens": "scaled", "kernel": kernel}
    values |= {"init": "tied" if tied else "gaussian", "score_scale": 24**0.5}  # of variance one
    return np.maximum(_at_start(values, seeds, _sigma_by_scale, np.array(SCALES)), 1e-20)


def best_scales(plan: Plan) -> Measurement:
    """The best scale against the better end, for the kernel where it gains less."""
    tied = plan.get("tied", False)
    logs = np.log10([feature_sigmas(plan.seeds, kernel, tied=tied) for kernel in KERNELS])
    best, end = logs.max(axis=2), np.maximum(logs[..., 0], logs[..., -1])
    least = np.argmin(best - end, axis=0)[None]
    one, other = (np.take_along_axis(side, least, 0)[0] for side in (best, end))
    return comparison(one, other, runs=np.array(logs.size))


def tied_sigmas(plan: Plan) -> Measurement:
    """Gaussian features with W_K = W_Q at the start, and without, each at its best scale."""
    sides = (plan.get("tied", True), False)
    found = [np.log10(feature_sigmas(plan.seeds, "gaussian", tied=tied)) for tied in sides]
    return comparison(*(logs.max(axis=1) for logs in found), runs=np.array(2 * found[0].size))


_claim(
    "middling_scale_is_best",
    "Features are most independent at a middling scale of W_Q and W_K (an inverted U).",
    best_scales,
    rule=above(2.0, "decades of sigma_min(B) between the best scale and the better end of 0.01 .. "
               "10, the smaller of two kernels", "best scale", "better end"),
    control={"tied": True}, quick=Plan(seeds=16), full={"seeds": 100},
)  # fmt: skip
_claim(
    "tied_gaussian_is_better",
    "Starting with W_K = W_Q makes the Gaussian's features far more independent.",
    tied_sigmas,
    rule=above(1.0, "decades of sigma_min(B) gained by W_K = W_Q, each at its best scale", "tied",
               "free"), control={"tied": False}, quick=Plan(seeds=16), full={"seeds": 100},
)  # fmt: skip


_TRAP = {"problem": "trap", "init": "trap", "train": "W_Q", "num_steps": 5000, "every": 50}
_VISITED: tuple[tuple[dict[str, Any], Any], ...] = (  # settings and step
    (_TRAP | {"kernel": "softmax"}, 0.5),
    (_TRAP | {"kernel": "gaussian"}, 0.5),
    ({"kernel": "softmax", "train": "W_V", "num_steps": 200}, "theorem_1"),  # last, random data
)


def _visit_words(rows: list[dict[str, Any]]) -> str:
    """What the table says, in words that depend on it."""
    stuck = [
        f"{row['kernel']} with {row['train']} sits in a strict local minimum (Hessian from "
        f"{number(row['hessian_min'])})"
        for row in rows
        if row["state"] == "stuck" and row["hessian_min"] > 0
    ]
    solved = [f"{r['kernel']} with {r['train']}" for r in rows if r["state"] == "at the floor"]
    words = f"Stuck: {'; '.join(stuck) or 'none'}. Solved: {'; '.join(solved) or 'none'}."
    said = "With only W_V moving (random data) the risk follows a recursion known to theorem_1"
    return f"{words}\n{said}: {rows[-1]['verdict']}."


def visit() -> Visit:
    """Softmax stuck where the Gaussian is not, and training that is known exactly."""
    rows, curves = [], []
    for values, step in _VISITED:
        run = train(paper_setup(PAPER, values), step_size=step, probes=())
        first, last, (ended, *_) = run.risk[0, 0], run.risk[0, -1], run.final_states() or [{}]
        row: dict[str, Any] = {key: values[key] for key in ("kernel", "train")}
        row |= {"first_risk": float(first), "last_risk": float(last), "state": ended["state"]}
        row |= {key: float(ended[key]) for key in ("gradient_norm", "hessian_min")}
        exact = values["train"] == "W_V"
        rows.append(row | {"verdict": run.certify("theorem_1").verdict if exact else None})
        label = f"{values['kernel']}, {values['train']}"
        curves.append(band(label, run.step, np.maximum(run.risk, 1e-30)))
    shown = [list(row.values())[:-1] for row in rows]  # all but the verdict, in this order
    return Visit(
        title="stuck or slow? softmax or Gaussian",
        rows=rows,
        head=("kernel", "trained", "first risk", "last risk", "at the end", "|gradient|",
              "Hessian from"),
        cells=[tuple(v if isinstance(v, str) else number(v) for v in row) for row in shown],
        words=_visit_words(rows),
        about="With softmax attention and only the query weights moving, gradient descent can get "
        "stuck where a Gaussian kernel does not. Four tokens, one number to reach.",
        panels=(Panel("training", "step", "risk", tuple(curves), log_y=True),),
        verdicts=((f"theorem_1, {label}", rows[-1]["verdict"]),),
    )  # fmt: skip


PAPER.visit = visit
