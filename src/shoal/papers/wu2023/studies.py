r"""What Wu et al. (2023) say, and what follows from it, tested.

The paper's full text was not available; statements are in our words, after its abstract and public
summaries. Its dimensions are not known, so sizes are ours; figures at full size have 100 samples of
10 Gaussian tokens in dimension 100, 400 steps and widths up to 4000, our best guess.

Speed is measured in `decades`: how many powers of ten the risk fell, averaged over the run. Unless
said otherwise a run takes its seed's default step, half of $1/\lambda_{\max}$ of its tangent
kernel. Every seed draws its own data and weights.
"""

from collections.abc import Callable
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np

from shoal.evidence.rules import Effect
from shoal.evidence.sequences import EVERYWHERE, Interval
from shoal.lab import effects
from shoal.lab.claim import Criterion, Design, above, below, between, exponent
from shoal.lab.engine import per_start
from shoal.lab.run import Run
from shoal.lab.setting import OURS, SUMMARY
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.study import Plan, decades, fresh_setup, seeds_of, trained
from shoal.papers.wu2023.model import PAPER, Init, Weights

QUICK = Plan(grid=(32, 128, 512))
FULL = Plan(seeds=10, samples=100, tokens=10, dim=100, grid=(10, 100, 1000, 4000), steps=400)
SIZES = {"samples": 12, "tokens": 4, "dim": 10, "steps": 200}
SETTING = "12 samples of 4 Gaussian tokens in dimension 10, 200 steps; the paper's dimensions are "
SETTING += "not known"
CRIPPLED = {"train": "W_Q"}  # a model that cannot fit: only the query weights move
WIDTHS = (32, 128, 512)
FIVE_WIDTHS = (32, 76, 181, 431, 1024)
FOUR_WIDTHS = (32, 80, 200, 512)
WRONG_SIGN = "only the wrong sign refutes it"

Seeds = tuple[int, ...]


def sizes(plan: Plan) -> dict[str, Any]:
    """The settings that a plan decides, except for the width."""
    names = {"num_samples": "samples", "num_tokens": "tokens", "dim": "dim", "num_steps": "steps"}
    return {name: getattr(plan, size) for name, size in names.items()}


def plan_of(design: Design, seeds: Seeds) -> Plan:
    """The sizes of a design."""
    return Plan(seeds=seeds, **design["sizes"])


def run_of(plan: Plan, *probes: str, step: Any = None, **values: Any) -> Run:
    """Train all seeds of a plan; ``step`` as in `lab.study.trained`, or one for each seed."""
    values = sizes(plan) | values
    return trained(PAPER, plan.seeds, probes, step=step, fresh_data=True, **values)


def steps_of(plan: Plan, *, step: Any = None, **values: Any) -> tuple[float, ...]:
    """The step of every seed at a setting, to give other settings the same."""
    return tuple(run_of(plan, step=step, **values).step_size.tolist())


def at_start(plan: Plan, function: Callable[[Setup], Any], **values: Any) -> np.ndarray:
    """A function of every seed's start."""
    setup = fresh_setup(PAPER, sizes(plan) | values, seeds=seeds_of(plan.seeds))
    return per_start(setup, function)


def claim(
    key: str, statement: str, measure: Any, test: Criterion, control: Design, design: Design,
    source: str = SUMMARY, **more: Any,
) -> None:  # fmt: skip
    """Register a claim at our sizes."""
    settled: dict[str, Any] = {"setting": SETTING, "assumptions": ("float64",), "seconds": 1.0}
    settled |= {"control": control} if "controls" not in more else {}
    whole = {"sizes": SIZES} | dict(design)
    PAPER.claim(key, statement, measure, test, source=source, design=whole, **(settled | more))


# ------------------------------------------------------------------------------------- convergence


def linear_convergence(design: Design, seeds: Seeds) -> list[Interval]:
    """The smaller of two margins: the last quarter keeps the rate, and the risk ends below 1 %.

    A constant rate keeps 1 of that of the third quarter, decay like 1/t 0.71, a floor 0.
    """
    risk = run_of(plan_of(design, seeds), **design["settings"]).risk
    quarter = (risk.shape[1] - 1) // 4
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(risk)
        third = log[:, -1 - 2 * quarter] - log[:, -1 - quarter]
        last = log[:, -1 - quarter] - log[:, -1]
        falling = (third > 0) & (last > 0)
        kept = np.where(falling, last / np.where(falling, third, 1.0), 0.0)
        share = risk[:, -1] / risk[:, 0]
    rounding = share < 1e-26  # there the rate is that of rounding
    rates = [EVERYWHERE if r else (k - 0.8, k - 0.8)
             for r, k in zip(rounding, kept.tolist(), strict=True)]  # fmt: skip
    fallen = [(-2 - hi, -2 - lo) for lo, hi in effects.log10_known(share, floor=1e-26)]
    return effects.smaller(rates, fallen)


claim("linear_convergence",
      "A wide network's loss falls below 1 % of its start at a rate that does not fade: the last "
      "quarter of the run keeps more than 0.8 of the rate of the third.",
      linear_convergence,
      above(0.0, "the smaller of (rate kept - 0.8) and (-2 - log10 of the last share)"),
      {"settings": {"shape": "twins"}}, {"settings": {"width": 512, "shape": "plain"}},
      why="0.8 and 1 % are in the statement; both margins must be positive", seconds=0.4,
      control_why="two equal samples with different labels cannot be fitted")  # fmt: skip


def speed_by_width(design: Design, seeds: Seeds) -> list[float]:
    """Decades gained per doubling of the width, at default steps or all at the widest's step."""
    plan, settings = plan_of(design, seeds), design["settings"]
    step = steps_of(plan, width=design["widths"][-1]) if design["equal_step"] else None
    runs = [run_of(plan, step=step, width=w, **settings) for w in design["widths"]]
    columns = np.stack([decades(run.risk) for run in runs], axis=1)
    return effects.slopes(np.log2(design["widths"]), columns)


def speed_by_samples(design: Design, seeds: Seeds) -> list[float]:
    """Decades gained per doubling of the number of samples, at one width."""
    plan, counts = plan_of(design, seeds), design["counts"]
    runs = [run_of(plan._replace(samples=N), **design["settings"]) for N in counts]
    columns = np.stack([decades(run.risk) for run in runs], axis=1)
    return effects.slopes(np.log2(counts), columns)


# negative control: with NTK the kernel does not grow with the width
claim("width_helps_equal_step",
      "At one step size, the one that suits the widest of them, wider networks converge faster.",
      speed_by_width,
      above(0.05, "decades gained per doubling of the width", against=0.0),
      {"settings": {"init": "ntk"}},
      {"widths": WIDTHS, "equal_step": True, "settings": {"init": "lecun"}},
      why=f"0.05 decades are our least gain; {WRONG_SIGN}",
      control_why="with NTK initialisation the kernel does not grow with the width")  # fmt: skip
claim("width_helps_own_step",
      "Wider networks converge faster, by more than 0.05 decades per doubling, each at the step "
      "that its own kernel allows.",
      speed_by_width, above(0.05, "decades gained per doubling of the width"),
      {"settings": {"shape": "twins"}},
      {"widths": WIDTHS, "equal_step": False, "settings": {"shape": "plain"}}, OURS,
      why="the number in the statement",
      control_why="two equal samples with different labels cannot be fitted")  # fmt: skip
claim("samples_cost", "At the same width, more samples converge more slowly.", speed_by_samples,
      below(-0.05, "decades gained per doubling of the samples", against=0.0),
      {"settings": {"shape": "twins", "train": "W_Q"}},
      {"counts": (6, 12, 24), "settings": {"width": 128, "shape": "plain", "train": "all"}}, OURS,
      why=f"0.05 decades are our least loss; {WRONG_SIGN}",
      control_why="a model that cannot fit is as slow with few samples")  # fmt: skip

# ------------------------------------------------------------------------------------- comparisons

HALF, ONE = {"score_exponent": 0.5}, {"score_exponent": 1.0}
LECUN, NTK = {"init": "lecun"}, {"init": "ntk"}


def advantage(design: Design, seeds: Seeds) -> list[Interval]:
    """Decades by which the favoured side is ahead of the other, on the same draw."""
    plan, sides = plan_of(design, seeds), []
    common = design["common"]
    for side in ("favoured", "other"):
        values = {**common, **design[side]}
        step = values.pop("step_size", None)
        if step is None:  # the step that suits the favoured side as registered
            step = steps_of(plan, **{**common, **design["step_of"]})
        sides.append(effects.points(decades(run_of(plan, step=step, **values).risk)))
    return effects.minus(*sides)


def advantage_by_width(design: Design, seeds: Seeds) -> list[float]:
    """How much the advantage grows per doubling of the width."""
    plan, columns = plan_of(design, seeds), []
    for width in design["widths"]:
        step = np.array(steps_of(plan, width=width, **design["favoured"]))
        slower = (design["widths"][0] / width) ** design["step_power"]
        one = run_of(plan, step=tuple((slower * step).tolist()), width=width, **design["favoured"])
        other = run_of(plan, step=tuple(step.tolist()), width=width, **design["other"])
        columns.append(decades(one.risk) - decades(other.risk))
    return effects.slopes(np.log2(design["widths"]), np.stack(columns, axis=1))


TUNED: dict[str, tuple[float, float]] = {
    "scaling_large_width_tuned": (0.003, 0.00864),
    "lecun_beats_ntk_tuned": (0.003, 0.0523),
    "dimension_missing": (0.00623, 0.115),
}
"""Steps of the favoured and the other side: the best mean speed on seeds 9000 to 9015."""


def versus(
    key: str, statement: str, favoured: Design, other: Design, width: int, *,
    control: Design = CRIPPLED, test: Criterion | None = None, effect: str, tuned: bool = False,
    common: Design | None = None, swapped: bool = False, **more: Any,
) -> None:  # fmt: skip
    """Claim about two settings on the same draws; the negative control weakens the favoured side.

    If ``swapped``, the control has each setting on the other side instead. At an equal step, that
    of the favoured side; else each at the step tuned on other draws.
    """
    one, two = dict(favoured), dict(other)
    design: dict[str, Any] = {"common": {"width": width, "train": "all"} | dict(common or {})}
    if tuned:
        steps = TUNED[key]
        one, two = one | {"step_size": steps[0]}, two | {"step_size": steps[1]}
        design["tuned"] = {"seeds": [9000, 9015], "by": "mean decades"}
    design |= {"favoured": one, "other": two, "step_of": dict(favoured)}
    more = {"control_why": "the favoured side trains its query weights only"} | more
    changes = {"favoured": two, "other": one} if swapped else {"favoured": dict(control)}
    claim(key, statement, advantage, test or above(0.0, effect), changes, design, **more)


_P = "decades by which width^-1/2 is ahead of width^-1"
_INIT = "decades by which LeCun is ahead of NTK"
versus("scaling_large_width_equal_step",
       "At width 512, scores scaled by width^-1/2 train faster than by width^-1 at the same step, "
       "the one that suits width^-1/2.", HALF, ONE, 512, effect=_P)  # fmt: skip
claim("scaling_gap_grows_with_width",
      "The advantage of scores scaled by width^-1/2 over width^-1, at the same step, grows with "
      "the width.", advantage_by_width,
      above(0.0, "growth per doubling of the width of the decades by which width^-1/2 is ahead"),
      {"step_power": 1.0},
      {"widths": WIDTHS, "favoured": HALF, "other": ONE, "step_power": 0.0}, seconds=1.5,
      control_why="the favoured side's step shrinks with the width",
      same_runs=("wu2023.scaling_large_width_equal_step",))  # fmt: skip
versus("scaling_large_width_tuned",
       "At width 512, scores scaled by width^-1/2 train faster than by width^-1, each at the step "
       "that was best for it on other draws.", HALF, ONE, 512, effect=_P, tuned=True,
       source=OURS)  # fmt: skip
versus("scaling_small_width_equal_step",
       "At width 32 (small is our number) the two scalings of scores train equally fast at the "
       "same step, within 0.1 decades.", HALF, ONE, 32, effect=_P,
       test=between(-0.1, 0.1, _P),
       why="0.1 decades are a factor 1.26, at which nobody would decide otherwise")  # fmt: skip
versus("lecun_beats_ntk_equal_step",
       "LeCun initialisation trains faster than NTK at the same step, the one that suits LeCun.",
       LECUN, NTK, 512, effect=_INIT,
       differs="The step suits LeCun; the kernel of NTK is smaller by about the width, so it would "
       "bear a far larger step.")  # fmt: skip
versus("lecun_beats_ntk_tuned",
       "LeCun initialisation trains faster than NTK, each at the step that was best for it on "
       "other draws.", LECUN, NTK, 512, effect=_INIT, tuned=True, source=OURS)  # fmt: skip

# --------------------------------------------------------------------------------------- attention


def attention_deficit(setup: Setup) -> Any:
    """One minus the normalised entropy of attention at the start."""
    return 1 - setup.setting.probes(setup)["attention_entropy"](setup.params0)


def deficit_by_width(design: Design, seeds: Seeds) -> list[Effect]:
    """Exponent of the distance of attention from uniform at the start against the width."""
    plan, p = plan_of(design, seeds), design["score_exponent"]
    columns = [at_start(plan, attention_deficit, width=w, score_exponent=p)
               for w in design["widths"]]  # fmt: skip
    return effects.exponents(design["widths"], np.stack(columns, axis=1))


_DEFICIT = "the exponent of 1 - entropy of attention against the width"
claim("attention_tends_to_uniform",
      "With scores scaled by width^-1, attention at the start tends to uniform like 1 / width.",
      deficit_by_width, exponent(-1.3, -0.7, _DEFICIT), {"score_exponent": 0.5},
      {"widths": FIVE_WIDTHS, "score_exponent": 1.0}, seconds=0.3,
      why="theory says -1, the rival 0; 0.3 is less than half the distance (the rate is ours)",
      control_why="with width^-1/2 the exponent is 0")  # fmt: skip
claim("attention_stays_informative",
      "With scores scaled by width^-1/2, attention at the start stays as far from uniform at any "
      "width.", deficit_by_width, exponent(-0.25, 0.25, _DEFICIT), {"score_exponent": 1.0},
      {"widths": FIVE_WIDTHS, "score_exponent": 0.5}, seconds=0.3,
      why="theory says 0, the rival -1; 0.25 is less than half the distance",
      control_why="with width^-1 the exponent is -1")  # fmt: skip
versus("dimension_missing",
       "Where samples differ only in how tokens interact (all sequences have one token mean), "
       "scores scaled by width^-1 lose more than a decade against width^-1/2, each at the step "
       "that was best for it on other draws.", HALF, ONE, 512, effect=_P, tuned=True,
       test=above(1.0, _P, against=0.0), common={"shape": "equal_means"}, swapped=True,
       why=f"a decade is in the statement (ours); {WRONG_SIGN}", version=2,
       changed="the control of version 1 gave width^-1 to both sides; at its own tuned step it "
       "diverged in 4 of 17 draws, so the control was not decided the other way",
       control_why="width^-1 on the favoured side; replaces width^-1 on both sides")  # fmt: skip

# ------------------------------------------------------------------------------ kernel and movement


def kernel_movement(design: Design, seeds: Seeds) -> list[float]:
    """Exponent of the largest relative change of the tangent kernel against the width."""
    plan, drift, widths = plan_of(design, seeds), [], design["widths"]
    for width in widths:
        scale = (width / widths[0]) ** design["label_power"]
        run = run_of(plan, "kernel_drift", width=width, label_scale=scale)
        drift.append(np.max(run.probes["kernel_drift"], axis=1))
    return effects.slopes(np.log(widths), np.log(np.stack(drift, axis=1)))


def freezing(design: Design, seeds: Seeds) -> np.ndarray:
    """Distance of the weights from their end after an eighth of the run, over the whole way."""
    plan = plan_of(design, seeds)
    values = {"width": design["width"], "every": plan.steps // 8}
    run = run_of(plan, "params", step=design["step_size"], **values)

    def squares(name: str) -> np.ndarray:
        path = run.probes[f"params_{name}"]
        return np.sum((path - path[:, -1:]) ** 2, axis=tuple(range(2, path.ndim)))

    left = np.sqrt(sum(squares(name) for name in Weights._fields))
    return left[:, 1] / left[:, 0]


def output_kernel_entry(setup: Setup) -> Any:
    """One entry of the output weights' tangent kernel at the start."""
    return setup.setting.block_kernels(setup)(setup.params0)["w_O"][0, 0]


def concentration(design: Design, seeds: Seeds) -> list[float]:
    """Relative spread of a kernel entry over 12 draws of weights, widest over narrowest."""

    def spread(seed: int, width: int) -> float:
        values = sizes(plan_of(design, (seed,))) | {"data_seed": seed, "width": width}
        draws = [seed + 100_000 * k for k in range(12)]  # on the data of this seed
        setup = paper_setup(PAPER, values | design["settings"], seeds=draws)
        entries = per_start(setup, output_kernel_entry)
        return float(np.std(entries, ddof=1) / np.mean(entries))

    low, high = design["widths"]
    return [spread(seed, high) / spread(seed, low) for seed in seeds]


def query_key_share(setup: Setup) -> Any:
    """Share of query and key weights in the trace of the tangent kernel at the start."""
    K = setup.setting.block_kernels(setup)(setup.params0)
    traces = {name: jnp.trace(block) for name, block in K.items()}
    return (traces["W_Q"] + traces["W_K"]) / sum(traces.values())


def share_by_width(design: Design, seeds: Seeds) -> list[float]:
    """Largest distance of the exponent of the query and key share from -2p, over three p."""
    plan, widths, worst = plan_of(design, seeds), design["widths"], np.zeros(len(seeds))
    for p in (0.5, 0.75, 1.0):  # below 1/2 attention sharpens with the width: no limit exists
        q = p + design["more"]
        shares = [at_start(plan, query_key_share, width=w, score_exponent=q) for w in widths]
        found = effects.slopes(np.log(widths), np.log(np.stack(shares, axis=1)))
        worst = np.maximum(worst, np.abs(np.array(found) + 2 * p))
    return worst.tolist()


claim("kernel_moves_less", "The tangent kernel moves less along training in wider networks.",
      kernel_movement,
      below(-0.1, "the exponent of the kernel's largest relative change against the width",
            against=0.0),
      {"label_power": 1.0}, {"widths": FOUR_WIDTHS, "label_power": 0.0}, seconds=1.5,
      why=f"0.1 is our least exponent; {WRONG_SIGN}",
      control_why="labels that grow with the width move it")  # fmt: skip
claim("weights_freeze_early",
      "After the first eighth of training, at the step that was best on other draws, the weights "
      "of a network of width 512 are within a tenth of their whole way from the end.",
      freezing, below(0.1, "the distance left after an eighth of the run, over the whole distance",
                      bound=True),
      {"step_size": 3e-5}, {"width": 512, "step_size": 0.003}, seconds=0.7,
      why="a tenth is in the statement; an eighth is the paper's epoch 50 of 400",
      control_why="with a step 100 times smaller the weights move all along")  # fmt: skip
claim("kernel_stays_random",
      "With scores scaled by width^-1/2 and one head, the relative spread of a tangent kernel's "
      "entry over draws of the weights shrinks by less than half from width 32 to 512.",
      concentration, above(0.5, "relative spread of a kernel entry, width 512 over width 32,"),
      {"settings": {"score_exponent": 1.0}},
      {"widths": (32, 512), "settings": {"score_exponent": 0.5}}, OURS, seconds=0.5,
      why="a half is in the statement; concentration would give a quarter",
      control_why="with width^-1 the kernel concentrates")  # fmt: skip
claim("query_key_share",
      "The share of query and key weights in the tangent kernel falls like width^(-2p), within "
      "0.3 in the exponent, for p of 1/2, 3/4 and 1.",
      share_by_width, below(0.3, "largest distance of the exponent from -2p over three p",
                            bound=True),
      {"more": 0.5}, {"widths": (256, 640, 1600, 4096), "more": 0.0}, OURS, seconds=3.0,
      why="less than half the distance 1 to the exponent of the next p",
      control_why="scores scaled by width^-(p + 1/2) fall by 1 more")  # fmt: skip

# ------------------------------------------------------------------------------- how wide is needed


def training_width(design: Design, seeds: Seeds) -> list[Effect]:
    """Exponent of the smallest width that reaches a share of the first risk against samples."""
    plan, counts, widths = plan_of(design, seeds), design["counts"], design["widths"]
    ends = np.concatenate([[0.0], widths, [np.inf]])
    found = np.full((len(seeds), len(counts)), len(widths))
    for i, N in enumerate(counts):
        for k, width in reversed(list(enumerate(widths))):
            run = run_of(plan._replace(samples=N), width=widths[-1], active=width,
                         every=plan.steps // 10)  # fmt: skip
            reached = np.nanmin(run.risk / run.risk[:, :1], axis=1) <= 10.0 ** -design["target"]
            found[reached, i] = k
    return effects.exponents(counts, ends[found], ends[found + 1])


claim("quadratic_width_is_needed",
      "The smallest width that trains to a thousandth of the first risk grows at least like the "
      "number of samples to 1.75.",
      training_width, above(1.75, "the exponent of the smallest width that trains against the "
                            "samples", bound=True),
      {"target": 2.0},
      {"sizes": SIZES | {"steps": 800}, "counts": (4, 8, 16, 32),
       "widths": (1, 2, 3, 4, 6, 8, 12, 16), "target": 3.0}, OURS, seconds=3.0,
      why="2 is the paper's order; 0.25 is half the distance to 1.5",
      control_why="to a hundredth of the first risk fewer units suffice")  # fmt: skip

# -------------------------------------------------------------------------- data and initialisation


def overlap(design: Design, seeds: Seeds) -> list[Interval]:
    """Decades by which samples with one overlap are ahead of samples with another."""
    plan, width = plan_of(design, seeds), design["width"]
    one, other = (effects.points(decades(run_of(plan, width=width, overlap=design[side]).risk))
                  for side in ("one", "other"))  # fmt: skip
    return effects.minus(one, other)


def lost_rank(design: Design, seeds: Seeds) -> np.ndarray:
    """Share of the speed of the first shape of data that is lost with the second."""
    plan, width = plan_of(design, seeds), design["width"]
    one, other = (decades(run_of(plan, width=width, shape=design[side]).risk)
                  for side in ("one", "other"))  # fmt: skip
    return 1 - other / one


def conditioning(design: Design, seeds: Seeds) -> list[float]:
    """Rank correlation of good conditioning with speed, over initialisations and widths."""
    from scipy import stats

    plan, condition, speed = plan_of(design, seeds), [], []
    for init in get_args(Init):
        for width in design["widths"]:
            probes = ("kernel_lambda_min@200", "kernel_lambda_max@200")
            run = run_of(plan, *probes, step=design["step_size"], init=init, width=width)
            low, high = (run.probes[f"kernel_lambda_{end}"][:, 0] for end in ("min", "max"))
            condition.append(np.log10(high / np.maximum(low, 1e-16 * high)))
            speed.append(decades(run.risk))
    pairs = zip(np.array(condition).T, np.array(speed).T, strict=True)
    return [-float(stats.spearmanr(a, b).statistic) for a, b in pairs]


_OTHER_SIDE = "the cause on the other side"
claim("similar_samples_hurt",
      "Samples that share 95 % of their energy train more slowly than separate ones.",
      overlap, above(0.2, "decades by which separate samples are ahead", against=0.0),
      {"one": 0.95, "other": 0.0}, {"width": 512, "one": 0.0, "other": 0.95},
      "ours (the assumption that samples differ: paper, as summarised)", seconds=0.7,
      why=f"0.2 decades are our least harm; {WRONG_SIGN}", control_why=_OTHER_SIDE)  # fmt: skip
claim("rank_is_needed",
      "A doubled token in every sequence, so that sequences lack full row rank, costs more than "
      "half of the speed.",
      lost_rank, above(0.5, "the share of the speed that is lost with a doubled token"),
      {"one": "twins"},
      {"width": 512, "one": "plain", "other": "doubled_tokens"}, OURS, seconds=0.7,
      why="a half is in the statement",
      control_why="compared with data that cannot be fitted, nothing is lost")  # fmt: skip
claim("conditioning_ranks_initialisations",
      "Among five initialisations at three widths, the better conditioned the tangent kernel, the "
      "faster the training: the rank correlation is above 0.3.",
      conditioning, above(0.3, "rank correlation of good conditioning with speed, over 15 settings",
                          against=0.0),
      {"step_size": 1e-4}, {"widths": (64, 128, 256), "step_size": None}, OURS, seconds=4.0,
      why=f"the number in the statement; {WRONG_SIGN}",
      control_why="at one small step for all the size of the kernel decides")  # fmt: skip
