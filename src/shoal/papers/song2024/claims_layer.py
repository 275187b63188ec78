"""Measurements and rules for claims about the layer of the theory."""

from typing import Any

import jax
import numpy as np

from shoal.claims import (
    Evidence,
    Measurement,
    Ruling,
    above,
    evidence,
    mean_interval,
    ratio_interval,
    within,
)
from shoal.experiments import (
    Case,
    Experiment,
    allowed_step,
    numbers_of,
    prepare,
    simulate,
    theorem_of,
)
from shoal.figures import Panel, band
from shoal.linalg import numerical_rank
from shoal.papers import song2024
from shoal.papers.song2024 import theorems, trials
from shoal.papers.song2024.layer import feature_matrix
from shoal.papers.song2024.trials import SCALES, Plan

TINY = 1e-24  # risks below this are rounding; logarithms stop here


def _log10(x: Any) -> np.ndarray:
    return np.log10(np.maximum(np.asarray(x, float), TINY))


def _points(title: str, label: str, columns: list[tuple[str, np.ndarray]]) -> Panel:
    """Each seed's number for a few sides, side by side."""
    curves = tuple(
        band(name, np.full(len(values), float(k)), values[:, None].T)
        for k, (name, values) in enumerate(columns)
    )
    return Panel(title, "side", label, curves, points=True)


# ------------------------------------------------------------------------------- values alone


def values_experiment(plan: Plan, kernel: str, heads: int, dim: int, train: str) -> Experiment:
    """A problem and starts for training values alone, at the step of theorem 1."""
    values = {
        "num_samples": plan.num_samples,
        "num_tokens": plan.num_tokens,
        "dim": dim,
        "num_heads": heads,
        "kernel": kernel,
        "train": train,
        "num_steps": plan.num_steps,
    }
    made = prepare(song2024.PAPER, values, seeds=range(plan.num_seeds))
    step = allowed_step(made, theorem_of(song2024.PAPER, "theorem_1"))
    return made._replace(setting=made.setting._replace(step_size=step))


def _case(experiment: Experiment, seed: int) -> Case:
    numbers = numbers_of(song2024.PAPER, experiment.setting)
    params0 = jax.tree.map(lambda w: w[seed], experiment.params0)
    return Case(
        experiment.setting,
        experiment.problem,
        params0,
        numbers["step_size"],
        numbers["speeds"],
        True,
    )


def measure_values(plan: Plan) -> Measurement:
    """Risk curves of value-only training beside what the recursion says, both kernels."""
    train = dict(plan.plant).get("train", "W_V")
    found: dict[str, list] = {"risk": [], "exact": []}
    for kernel in ("softmax", "gaussian"):
        for heads, dim in ((1, 24), (2, 6)):
            made = values_experiment(plan, kernel, heads, dim, train)
            run = simulate(made)
            for seed in range(plan.num_seeds):
                case = _case(made, seed)
                numbers = theorems.value_numbers(song2024.start_of(case, case.params0))
                exact = theorems.value_risk(numbers, made.setting.step_size, run.step[seed])
                found["risk"].append(np.asarray(run.risk[seed]))
                found["exact"].append(np.asarray(exact))
    return {name: np.array(rows) for name, rows in found.items()}


def decide_values(found: Measurement) -> Evidence:
    """The recursion is exact."""
    risk, exact = found["risk"], found["exact"]
    gap = _log10(np.max(np.abs(risk - exact), axis=1) / risk[:, 0])
    interval = mean_interval(gap.reshape(4, -1).mean(axis=0))  # a seed counts once
    ruling = within(interval, -np.inf, -9.0)
    steps = np.arange(risk.shape[1])
    panel = Panel(
        "training W_V alone",
        "step",
        "risk",
        (
            band("measured", steps, risk, positive=True),
            band("recursion", steps, exact, positive=True),
        ),
        log_y=True,
    )
    return evidence(
        interval,
        "log10 of the largest gap to the recursion over the first risk",
        len(risk),
        ruling,
        "The recursion misses the run by 10^{mean:.1f} [{low:.1f}, {high:.1f}] of the first risk.",
        panel,
    )


def floor_shares(experiment: Experiment, num_seeds: int) -> list[float]:
    """Least squares floor over the first risk, for every seed."""
    found = []
    for seed in range(num_seeds):
        case = _case(experiment, seed)
        numbers = theorems.value_numbers(song2024.start_of(case, case.params0))
        found.append(float(numbers["F_star"] / numbers["F_0"]))
    return found


def measure_count(plan: Plan) -> Measurement:
    """Least squares floors by heads, at the same product of heads and dimension or not."""
    heads = dict(plan.plant).get("heads", 2)
    rows = plan.num_samples * plan.num_tokens
    floors = {}
    for name, (h, dim) in {
        "halved": (heads, rows // 2),
        "one head": (1, rows // 2),
        "full": (1, rows),
    }.items():
        made = values_experiment(plan, "softmax", h, dim, "W_V")
        floors[name] = floor_shares(made, plan.num_seeds)
    return {name.replace(" ", "_"): np.array(values) for name, values in floors.items()}


def decide_count(found: Measurement) -> Evidence:
    """Two heads of half the dimension fit everything."""
    interval = mean_interval(_log10(found["halved"]))
    one = float(np.mean(found["one_head"]))
    sentence = (
        "With dim = samples x tokens / 2 two heads leave a floor of 10^{mean:.1f} "
        "[{low:.1f}, {high:.1f}] of the first risk; one head of that dimension leaves "
        f"{one:.2f}."
    )
    panel = _points(
        "least squares floor",
        "log10 of floor / first risk",
        [
            ("heads x dim = rows, dim halved", _log10(found["halved"])),
            ("one head, dim halved", _log10(found["one_head"])),
            ("one head, dim = rows", _log10(found["full"])),
        ],
    )
    meaning = "log10 of the floor over the first risk, dim halved"
    runs = 3 * len(found["halved"])
    return evidence(interval, meaning, runs, within(interval, -np.inf, -9.0), sentence, panel)


def measure_bytes(plan: Plan) -> Measurement:
    """Rank of the features on real bytes with dim = samples x tokens."""
    problem = dict(plan.plant).get("problem", "imdb")
    rows = plan.num_samples * plan.num_tokens
    ranks = []
    for seed in range(plan.num_seeds):
        values = {
            "problem": problem,
            "num_samples": plan.num_samples,
            "num_tokens": plan.num_tokens,
            "dim": rows,
            "data_seed": seed,
        }
        for kernel in ("softmax", "gaussian"):
            made = prepare(song2024.PAPER, values | {"kernel": kernel}, seeds=[seed])
            params = jax.tree.map(lambda w: w[0], made.params0)
            B = feature_matrix(params, made.problem.X, song2024.form(made.setting))
            ranks.append(float(numerical_rank(B, theorems.ZERO)) / rows)
    return {"rank": np.array(ranks)}


def decide_bytes(found: Measurement) -> Evidence:
    """The rank falls short although the dimension suffices."""
    interval = mean_interval(1 - found["rank"].reshape(-1, 2).mean(axis=1))  # two kernels a seed
    sentence = (
        "With dim = samples x tokens, {mean:.0%} [{low:.0%}, {high:.0%}] of the rank is missing."
    )
    if interval.low > 0.05:
        sentence += " Embeddings that add a byte and a position repeat themselves."
    return evidence(
        interval,
        "share of the rank that is missing",
        len(found["rank"]),
        above(interval, 0.05),
        sentence,
        _points("rank of the features", "rank / rows", [("bytes", found["rank"])]),
    )


# ---------------------------------------------------------------------------------- the trap


def measure_trap(plan: Plan) -> Measurement:
    """Softmax and Gaussian from the same starts near the trap."""
    train = dict(plan.plant).get("train", "W_Q")
    batch = trials.traps(plan.num_seeds)
    ends = {
        kernel: trials.descend(
            batch, kernel=kernel, train=train, step_size=0.5, num_steps=plan.num_steps, every=50
        )
        for kernel in ("softmax", "gaussian")
    }
    soft = ends["softmax"]
    return {
        "softmax": soft.risk,
        "gaussian": ends["gaussian"].risk,
        "gradient": soft.gradient,
        "hessian_min": soft.hessian_min,
    }


def decide_trap(found: Measurement) -> Evidence:
    """Softmax ends at a strict minimum above zero, the Gaussian at zero."""
    gap = _log10(found["softmax"][:, -1]) - _log10(found["gaussian"][:, -1])
    interval = mean_interval(gap)
    ruling = above(interval, 6.0)
    strict = (found["gradient"] < 1e-8) & (found["hessian_min"] > 1e-6)
    if ruling == Ruling.SUPPORTED and not strict.all():
        ruling = Ruling.INCONCLUSIVE
    sentence = (
        "Softmax ends {mean:.1f} [{low:.1f}, {high:.1f}] decades above the Gaussian; in "
        f"{int(strict.sum())} of {len(strict)} runs at a strict local minimum (gradient below "
        f"1e-8, Hessian positive), at a median risk of {np.median(found['softmax'][:, -1]):.3g}."
    )
    steps = 50 * np.arange(found["softmax"].shape[1])
    panel = Panel(
        "only W_Q moves",
        "step",
        "risk",
        tuple(band(k, steps, found[k], positive=True) for k in ("softmax", "gaussian")),
        log_y=True,
    )
    return evidence(interval, "decades between final risks", 2 * len(gap), ruling, sentence, panel)


def measure_escape(plan: Plan) -> Measurement:
    """Softmax near the trap with keys trained too."""
    train = dict(plan.plant).get("train", "W_Q,W_K")
    ends = trials.descend(
        trials.traps(plan.num_seeds),
        kernel="softmax",
        train=train,
        step_size=0.2,
        num_steps=plan.num_steps,
        every=100,
    )
    return {"risk": ends.risk}


def decide_escape(found: Measurement) -> Evidence:
    """The risk falls by a factor of a thousand at least."""
    fallen = _log10(found["risk"][:, -1]) - _log10(found["risk"][:, 0])
    interval = mean_interval(fallen)
    steps = 100 * np.arange(found["risk"].shape[1])
    curve = band("softmax, W_Q and W_K", steps, found["risk"], positive=True)
    return evidence(
        interval,
        "log10 of last over first risk",
        len(fallen),
        within(interval, -np.inf, -3.0),
        "The risk falls to 10^{mean:.1f} [{low:.1f}, {high:.1f}] of its start when keys move too.",
        Panel("queries and keys move", "step", "risk", (curve,), log_y=True),
    )


def measure_census(plan: Plan) -> Measurement:
    """Random rows, the Gaussian as its own teacher's student."""
    plant = dict(plan.plant)
    risk = trials.census(
        plan.num_samples,
        kernel="gaussian",
        teacher="gaussian",
        key_dim=plant.get("key_dim", 1),
        positive=plant.get("positive", False),
        num_steps=plan.num_steps,
    )
    return {"risk": risk}


def decide_census(found: Measurement) -> Evidence:
    """More than one row in twenty ends above zero."""
    stuck = ~(found["risk"] <= 1e-4)  # not a number is not zero either
    interval = mean_interval(stuck.astype(float))
    ordered = np.sort(np.maximum(found["risk"], 1e-30))
    curve = band("rows", np.linspace(0, 1, len(ordered)), ordered[None])
    return evidence(
        interval,
        "share of rows that end above 1e-4",
        len(stuck),
        above(interval, 0.05),
        "{mean:.1%} [{low:.1%}, {high:.1%}] of random rows end above 1e-4, with zero in reach.",
        Panel("final risks", "share of rows", "risk", (curve,), log_y=True),
    )


# --------------------------------------------------------------------------------- row sums


def measure_mixtures(plan: Plan, kernels: tuple[str, ...], row_sum: float) -> Measurement:
    """Final risks of kernels on targets that mix the values, and softmax's floor."""
    plant = dict(plan.plant)
    batch = trials.mixtures(plan.num_seeds, plant.get("row_sum", row_sum))
    kernels = plant.get("kernels", kernels)
    found: Measurement = {"floor": trials.hull_floors(batch)}
    for place, kernel in enumerate(kernels):
        ends = trials.descend(
            batch,
            kernel=kernel,
            train="W_Q",
            step_size=0.02,
            num_steps=plant.get("num_steps", plan.num_steps),
        )
        found[f"risk_{place}"] = ends.risk[:, -1]
        found[f"first_{place}"] = ends.risk[:, 0]
    return found


def decide_hull(found: Measurement) -> Evidence:
    """Softmax ends within a tenth of the floor of its convex hull."""
    over = found["risk_0"] / np.maximum(found["floor"], TINY) - 1
    interval = mean_interval(over)
    return evidence(
        interval,
        "final risk of softmax over its hull floor, minus 1",
        len(over),
        within(interval, -1e-6, 0.1),
        "Softmax ends {mean:.2%} [{low:.2%}, {high:.2%}] above the lowest risk that weights which "
        "sum to one can reach.",
        _points(
            "row sums 0.6",
            "log10 risk",
            [("softmax", _log10(found["risk_0"])), ("hull floor", _log10(found["floor"]))],
        ),
    )


def decide_below(found: Measurement, *, favoured: str, other: str, by: float) -> Evidence:
    """The first kernel ends below the second by ``by`` decades."""
    gap = _log10(found["risk_1"]) - _log10(found["risk_0"])
    interval = mean_interval(gap)
    where = "below" if interval.mean >= 0 else "above"
    sentence = (
        f"{favoured} ends {abs(interval.mean):.2f} decades {where} {other} "
        "(95%: {low:.2f} to {high:.2f} below; "
        f"medians {np.median(found['risk_0']):.2g} and {np.median(found['risk_1']):.2g})."
    )
    panel = _points(
        "final risks",
        "log10 risk",
        [(favoured, _log10(found["risk_0"])), (other, _log10(found["risk_1"]))],
    )
    meaning = f"decades by which {favoured} ends lower"
    return evidence(interval, meaning, 2 * len(gap), above(interval, by), sentence, panel)


def decide_normalisation(found: Measurement) -> Evidence:
    """With its rows normalised the Gaussian does as softmax does."""
    bell, soft, even = (_log10(found[f"risk_{k}"]) for k in range(3))
    interval = ratio_interval(even - bell, soft - bell)
    return evidence(
        interval,
        "share of the gap between Gaussian and softmax that normalising rows makes",
        3 * len(bell),
        above(interval, 0.5),
        "Normalising its rows takes the Gaussian {mean:.0%} [{low:.0%}, {high:.0%}] of the way to "
        "softmax's final risk (in decades).",
        _points(
            "row sums 0.6",
            "log10 risk",
            [("gaussian", bell), ("softmax", soft), ("normalised gaussian", even)],
        ),
    )


def measure_rescue(plan: Plan) -> Measurement:
    """Softmax on targets outside its hull, at dim = N n and dim = N n^2."""
    steps = dict(plan.plant).get("num_steps", plan.num_steps)
    found: Measurement = {}
    for name, dim in (("small", 9), ("large", 27)):
        batch = trials.mixtures(plan.num_seeds, 0.6, dim=dim)
        ends = trials.descend(batch, kernel="softmax", train="W_Q", step_size=0.02, num_steps=steps)
        found[name] = ends.risk[:, -1] / ends.risk[:, 0]
        found[f"{name}_floor"] = trials.hull_floors(batch) / ends.risk[:, 0]
    return found


def decide_rescue(found: Measurement) -> Evidence:
    """The larger dimension brings the risk down by a decade."""
    gain = _log10(found["small"]) - _log10(found["large"])
    interval = mean_interval(gain)
    sentence = (
        "dim = N n^2 instead of N n lowers softmax's final share of the risk by {mean:.2f} "
        f"[{{low:.2f}}, {{high:.2f}}] decades (medians {np.median(found['small']):.2g} and "
        f"{np.median(found['large']):.2g}; hull floors {np.median(found['small_floor']):.2g} and "
        f"{np.median(found['large_floor']):.2g})."
    )
    panel = _points(
        "softmax outside its hull",
        "log10 of last / first risk",
        [("dim = N n", _log10(found["small"])), ("dim = N n^2", _log10(found["large"]))],
    )
    return evidence(
        interval, "decades gained by dim = N n^2", 2 * len(gain), above(interval, 1.0), sentence,
        panel,
    )  # fmt: skip


# ----------------------------------------------------------------------------- initialisation


def measure_scales(plan: Plan) -> Measurement:
    """Independence of the features by scale of query and key weights."""
    tied = dict(plan.plant).get("tied", False)
    return {
        kernel: trials.feature_sigmas(plan.num_seeds, kernel=kernel, tied=tied)
        for kernel in ("softmax", "gaussian")
    }


def scale_panel(curves: dict[str, np.ndarray]) -> Panel:
    """Smallest singular values by scale."""
    made = tuple(
        band(name, np.array(SCALES), np.maximum(values, 1e-20).T, positive=True)
        for name, values in curves.items()
    )
    return Panel("features", "scale of W_Q, W_K", "sigma_min(B)", made, log_x=True, log_y=True)


def decide_scales(found: Measurement) -> Evidence:
    """The best scale beats both ends by two decades, for both kernels."""
    heights = []
    for kernel in ("softmax", "gaussian"):
        logs = np.log10(np.maximum(found[kernel], 1e-20))
        heights.append(logs.max(axis=0) - np.maximum(logs[0], logs[-1]))
    least = np.minimum(*heights)
    interval = mean_interval(least)
    return evidence(
        interval,
        "decades between the best scale and the better end, the smaller of two kernels",
        2 * len(SCALES) * len(least),
        above(interval, 2.0),
        "The best scale of W_Q and W_K beats the better end of 0.01 .. 10 by {mean:.1f} "
        "[{low:.1f}, {high:.1f}] decades.",
        scale_panel(dict(found)),
    )


def measure_tied(plan: Plan) -> Measurement:
    """Gaussian features with W_K = W_Q at the start, and without."""
    tied = dict(plan.plant).get("tied", True)
    return {
        "tied": trials.feature_sigmas(plan.num_seeds, kernel="gaussian", tied=tied),
        "free": trials.feature_sigmas(plan.num_seeds, kernel="gaussian", tied=False),
    }


def decide_tied(found: Measurement) -> Evidence:
    """Tied weights gain a decade at the best scale of each."""
    logs = {name: np.log10(np.maximum(v, 1e-20)).max(axis=0) for name, v in found.items()}
    interval = mean_interval(logs["tied"] - logs["free"])
    return evidence(
        interval,
        "decades gained by W_K = W_Q, each at its best scale",
        2 * len(SCALES) * len(logs["tied"]),
        above(interval, 1.0),
        "Tied weights make sigma_min(B) of the Gaussian {mean:.2f} [{low:.2f}, {high:.2f}] decades "
        "larger, each at its best scale.",
        scale_panel(dict(found)),
    )
