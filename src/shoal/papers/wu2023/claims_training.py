"""Claims of wu2023 about training: convergence, comparisons, data and initialisations."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
from shoal.experiments import default_step
from shoal.figures import Panel, band
from shoal.methods import gradient_descent
from shoal.models import empirical_risk
from shoal.papers import wu2023
from shoal.papers.wu2023.encoder import Weights
from shoal.papers.wu2023.trials import (
    Plan,
    curve_panel,
    experiment_of,
    slopes,
    suitable_step,
    trained,
)
from shoal.training import run
from shoal.tuning import decades, tuned

# --------------------------------------------------------------------------------- convergence


def measure_linear(plan: Plan) -> Measurement:
    """Risk at the largest width with the default step."""
    out = trained(plan, width=plan.widths[-1], **dict(plan.plant))
    return {"risk": out.risk}


def decide_linear(found: Measurement) -> Evidence:
    """Does the rate persist? Compare the last quarter of the run with the one before."""
    risk = found["risk"]
    quarter = (risk.shape[1] - 1) // 4
    log = np.log(np.maximum(risk, 1e-300))
    third, last = log[:, -1 - 2 * quarter] - log[:, -1 - quarter], log[:, -1 - quarter] - log[:, -1]
    falling = (third > 0) & (last > 0)
    kept = mean_interval(np.where(falling, last / np.where(falling, third, 1.0), 0.0))
    fell = float(np.median(risk[:, -1] / risk[:, 0]))
    ruling = above(kept, 0.8)
    if ruling == Ruling.SUPPORTED and not fell < 0.01:
        ruling = Ruling.INCONCLUSIVE
    words = (
        f"The risk ended at {fell:.1e} of its start, and in the last quarter of the run it kept "
        "{mean:.0%} [{low:.0%}, {high:.0%}] of the rate of the quarter before (a constant rate "
        "would keep 100%, 1/t decay 71%, a floor 0%)."
    )
    return evidence(
        kept,
        "rate of the last quarter over that of the third",
        len(risk),
        ruling,
        words,
        curve_panel("loss of the widest network", [("risk", risk)]),
    )


def _speeds_by(plan: Plan, name: str, values: tuple[int, ...], **fixed: Any) -> Measurement:
    found = [
        np.asarray(trained(plan, step="default", **(fixed | {name: v} | dict(plan.plant))).risk)
        for v in values
    ]
    return {"values": np.array(values), "decades": np.array([decades(r) for r in found])}


def measure_width_speed(plan: Plan) -> Measurement:
    """Speed at each width, each at half of 1 / lambda_max."""
    return _speeds_by(plan, "width", plan.widths)


def measure_width_equal_step(plan: Plan) -> Measurement:
    """Speed at each width, all at the step that suits the widest."""
    step = suitable_step(plan, width=plan.widths[-1])
    runs = [trained(plan, step=step, **({"width": w} | dict(plan.plant))) for w in plan.widths]
    return {"values": np.array(plan.widths), "decades": np.array([decades(r.risk) for r in runs])}


def decide_width_equal_step(found: Measurement) -> Evidence:
    """Supported if a doubling of the width gains more than 0.05 decades."""
    gain, panel = _per_doubling(found, 1.0)
    return evidence(
        gain,
        "decades gained per doubling of the width",
        found["decades"].size,
        above(gain, 0.05),
        "All at the step that suits the widest, a doubling of the width changed the speed by "
        "{mean:+.3f} decades [{low:+.3f}, {high:+.3f}]; more than +0.05 counts.",
        panel._replace(x_label="width"),
    )


def measure_sample_speed(plan: Plan) -> Measurement:
    """Speed at fixed width for half as many, as many and twice as many samples."""
    counts = (plan.num_samples // 2, plan.num_samples, 2 * plan.num_samples)
    return _speeds_by(plan, "num_samples", counts, width=plan.widths[1])


def _per_doubling(found: Measurement, sign: float) -> tuple[Interval, Panel]:
    per_seed = sign * slopes(np.log2(found["values"]), found["decades"])
    panel = Panel(
        "speed",
        "value",
        "decades of risk, averaged over the run",
        (band("speed", found["values"], found["decades"].T),),
        log_x=True,
    )
    return mean_interval(per_seed), panel


def decide_width_speed(found: Measurement) -> Evidence:
    """Supported if a doubling of the width gains more than 0.05 decades."""
    gain, panel = _per_doubling(found, 1.0)
    return evidence(
        gain,
        "decades gained per doubling of the width",
        found["decades"].size,
        above(gain, 0.05),
        "At half of 1/lambda_max each, a doubling of the width changed the speed by {mean:+.3f} "
        "decades [{low:+.3f}, {high:+.3f}]; more than +0.05 counts as help. (Narrow networks bear "
        "the larger step.)",
        panel._replace(x_label="width"),
    )


def decide_sample_speed(found: Measurement) -> Evidence:
    """Supported if a doubling of the samples costs more than 0.05 decades."""
    loss, panel = _per_doubling(found, -1.0)
    return evidence(
        loss,
        "decades lost per doubling of the samples",
        found["decades"].size,
        above(loss, 0.05),
        "At fixed width, each doubling of the samples cost {mean:.3f} decades [{low:.3f}, "
        "{high:.3f}].",
        panel._replace(x_label="samples"),
    )


# --------------------------------------------------------------------------------- comparisons


class Side(NamedTuple):
    """One side of a comparison."""

    label: str
    values: tuple[tuple[str, Any], ...]


def _versus(
    plan: Plan, favoured: Side, other: Side, *, width: int, step: str, **common: Any
) -> Measurement:
    """Both sides on the same data and seeds; the plant weakens the favoured side."""
    mine = common | dict(favoured.values) | {"width": width} | dict(plan.plant)
    yours = common | dict(other.values) | {"width": width}
    if step == "equal":
        same = suitable_step(plan, **(common | dict(favoured.values) | {"width": width}))
        first, second = trained(plan, step=same, **mine), trained(plan, step=same, **yours)
    else:
        first, second = trained(plan, step=step, **mine), trained(plan, step=step, **yours)
    return {"favoured": first.risk, "other": second.risk}


def _gain(found: Measurement) -> Interval:
    """Seed by seed; not a number where a side diverged, which decides nothing."""
    with np.errstate(invalid="ignore"):
        gain = decades(found["favoured"]) - decades(found["other"])
    return mean_interval(np.where(np.isfinite(gain), gain, np.nan))


def _comparison(found: Measurement, favoured: str, other: str, ruling, words: str) -> Evidence:  # type: ignore[no-untyped-def]
    gain = _gain(found)
    diverged = sum(int((~np.isfinite(r)).any(axis=1).sum()) for r in found.values())
    if diverged:
        words += f" {diverged} runs diverged."
    return evidence(
        gain,
        f"decades by which {favoured} is ahead of {other}",
        len(found["favoured"]) + len(found["other"]),
        ruling(gain),
        words,
        curve_panel(
            f"{favoured} and {other}", [(favoured, found["favoured"]), (other, found["other"])]
        ),
    )


HALF = Side("p = 1/2", (("score_exponent", 0.5),))
ONE = Side("p = 1", (("score_exponent", 1.0),))
LECUN = Side("LeCun", (("init", "lecun"),))
NTK = Side("NTK", (("init", "ntk"),))


def faster(favoured: Side, other: Side, *, where: int, step: str, **common: Any):  # type: ignore[no-untyped-def]
    """Measure and decide for «favoured is faster than other»."""

    def measure(plan: Plan) -> Measurement:
        return _versus(plan, favoured, other, width=plan.widths[where], step=step, **common)

    def decide(found: Measurement) -> Evidence:
        how = "the same step" if step == "equal" else "each its own best step"
        words = (
            f"With {how}, {favoured.label} was {{mean:+.2f}} decades [{{low:+.2f}}, {{high:+.2f}}] "
            f"ahead of {other.label}, seed by seed."
        )
        if step == "equal" and favoured is LECUN:
            words += (
                " The step suits LeCun; the kernel of NTK is smaller by about the width, so it "
                "would bear a far larger one."
            )
        if step == "tuned" and favoured is LECUN:
            words += (
                " What looks like an advantage at the same step is one of the step, not of the "
                "initialisation, if this is negative."
            )
        return _comparison(found, favoured.label, other.label, lambda g: above(g, 0.0), words)

    return measure, decide


def measure_small_width(plan: Plan) -> Measurement:
    """Both scalings at the smallest width, the same step."""
    return _versus(plan, HALF, ONE, width=plan.widths[0], step="equal")


def decide_small_width(found: Measurement) -> Evidence:
    """Near equal means within a tenth of a decade."""
    return _comparison(
        found,
        HALF.label,
        ONE.label,
        lambda gain: within(gain, -0.1, 0.1),
        "At the smallest width and the same step, p = 1/2 was {mean:+.3f} decades [{low:+.3f}, "
        "{high:+.3f}] ahead; within 0.1 counts as near equal.",
    )


def measure_missing(plan: Plan) -> Measurement:
    """p = 1/2 against p = 1 where only token interactions tell the samples apart."""
    return _versus(plan, HALF, ONE, width=plan.widths[-1], step="tuned", shape="equal_means")


def decide_missing(found: Measurement) -> Evidence:
    """Supported if p = 1/2 is ahead by more than a decade."""
    return _comparison(
        found,
        HALF.label,
        ONE.label,
        lambda gain: above(gain, 1.0),
        "On sequences with equal token means, each at its own best step, p = 1/2 was {mean:+.2f} "
        "decades [{low:+.2f}, {high:+.2f}] ahead of p = 1; more than 1 counts.",
    )


def measure_freezing(plan: Plan) -> Measurement:
    """How far the weights still are from their end, after every eighth of the run."""
    made = experiment_of(plan, {"width": plan.widths[-1]})
    slow = dict(plan.plant).get("slow")
    step = tuned(made).step_size if slow is None else slow * default_step(made)
    risk = empirical_risk(wu2023.model(made.setting), made.problem, wu2023.PAPER.loss)

    def one(params0: Weights) -> Any:
        out = run(
            gradient_descent(step),
            risk,
            params0,
            num_steps=plan.num_steps,
            every=plan.num_steps // 8,
            probes={"weights": lambda params: params},
        )
        squares = jax.tree.map(
            lambda path, end: jnp.sum((path - end[None]) ** 2, axis=tuple(range(1, path.ndim))),
            out.probes["weights"],
            out.params,
        )
        return jnp.sqrt(functools.reduce(jnp.add, squares))

    return {"left": np.asarray(jax.jit(jax.vmap(one))(made.params0))}


def decide_freezing(found: Measurement) -> Evidence:
    """Supported if after an eighth of the run less than 10% of the way is left."""
    left = found["left"] / found["left"][:, :1]
    share = mean_interval(left[:, 1])
    eighths = np.arange(left.shape[1]) / 8
    panel = Panel(
        "weights",
        "share of the run",
        "distance left, over the whole distance",
        (band("distance to where they end", eighths, left),),
    )
    return evidence(
        share,
        "distance left after an eighth of the run, over the whole distance",
        len(left),
        within(share, 0.0, 0.1),
        "After an eighth of the run (the paper's epoch 50 of 400) the weights had {mean:.0%} "
        "[{low:.0%}, {high:.0%}] of their way still to go; less than 10% counts as almost frozen.",
        panel,
    )


# ------------------------------------------------------------------------------ data, initials


def measure_overlap(plan: Plan) -> Measurement:
    """Separate against strongly overlapping samples."""
    share = dict(plan.plant).get("overlap", 0.95)
    width = plan.widths[-1]
    sides = [trained(plan, width=width, overlap=q) for q in (0.0, share)]
    return {"favoured": sides[0].risk, "other": sides[1].risk}


def decide_overlap(found: Measurement) -> Evidence:
    """Supported if overlap costs more than 0.2 decades."""
    return _comparison(
        found,
        "separate samples",
        "overlapping samples",
        lambda gain: above(gain, 0.2),
        "Samples that share 95% of their energy trained {mean:.2f} decades [{low:.2f}, {high:.2f}] "
        "behind separate ones, at half of 1/lambda_max each; more than 0.2 counts.",
    )


def measure_rank(plan: Plan) -> Measurement:
    """Full row rank against a doubled token in every sequence."""
    width = plan.widths[-1]
    shape = dict(plan.plant).get("shape", "doubled_tokens")
    sides = [trained(plan, width=width), trained(plan, width=width, shape=shape)]
    return {"favoured": sides[0].risk, "other": sides[1].risk}


def decide_rank(found: Measurement) -> Evidence:
    """Supported if the loss of rank costs more than half of the speed."""
    lost = mean_interval(1 - decades(found["other"]) / decades(found["favoured"]))
    return evidence(
        lost,
        "share of the speed lost with the rank",
        len(found["favoured"]) + len(found["other"]),
        above(lost, 0.5),
        "With a doubled token in every sequence (no full row rank), training lost {mean:.0%} "
        "[{low:.0%}, {high:.0%}] of its speed (a negative loss is a gain); more than half counts "
        "as needing the rank.",
        curve_panel(
            "rank of the data", [("full rank", found["favoured"]), ("doubled", found["other"])]
        ),
    )


def measure_initialisations(plan: Plan) -> Measurement:
    """Condition number of the initial kernel and speed, for five initialisations."""
    condition, speed = [], []
    for init in wu2023.INITS:
        values: dict[str, Any] = {"init": init, "width": plan.widths[1]} | dict(plan.plant)
        out = trained(plan, probes=("kernel_lambda_min", "kernel_lambda_max"), **values)
        low, high = (out.probes[f"kernel_lambda_{end}"][:, 0] for end in ("min", "max"))
        condition.append(np.log10(high / np.maximum(low, 1e-16 * high)))
        speed.append(decades(out.risk))
    return {"condition": np.array(condition), "decades": np.array(speed)}


def decide_initialisations(found: Measurement) -> Evidence:
    """Supported if the rank correlation over initialisations is negative, seed by seed."""
    from scipy import stats

    columns = zip(found["condition"].T, found["decades"].T, strict=True)
    agreement = mean_interval(np.array([-stats.spearmanr(a, b).statistic for a, b in columns]))
    curves = tuple(
        band(name, c, s[None].repeat(1, axis=0))
        for name, c, s in zip(wu2023.INITS, found["condition"], found["decades"], strict=True)
    )
    return evidence(
        agreement,
        "rank correlation of good conditioning with speed, over five initialisations",
        found["decades"].size,
        above(agreement, 0.3),
        "Over LeCun, He, NTK, Xavier and orthogonal, the rank correlation of good conditioning "
        "with speed was {mean:.2f} [{low:.2f}, {high:.2f}]; above 0.3 counts.",
        Panel("conditioning and speed", "log10 condition number", "decades", curves, points=True),
    )
