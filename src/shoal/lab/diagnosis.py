"""Why a run is slow or stuck: a verdict, its evidence, and causes whose remedies were tried.

    found = sh.diagnose(run)
    found.verdict, found.causes[0].advice

Each check is a function of a `Look` (the numbers of one run, computed when first asked for) that
yields causes. A cause has a number, the limit that it passed, why that limit, and what to change;
where the change can be tried, a short training measures what it brings.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal import trees
from shoal.diagnostics import dynamics, inside
from shoal.errors import InputError
from shoal.lab.run import Run, train
from shoal.lab.setup import Setup
from shoal.models import predict
from shoal.runtime import in_float64

TRIAL_STEPS = 200
"""Most steps of a trial; the run itself is trained again for as many, for comparison."""


class Trial(NamedTuple):
    """A remedy that was tried: the last risk as a share of the first, without and with it."""

    change: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        """How many times lower the risk ended."""
        return self.before / max(self.after, 1e-300)


class Cause(NamedTuple):
    """Something that slows or stops a run."""

    key: str
    sentence: str
    value: float
    limit: float
    why: str  # Why this limit.
    advice: str
    severity: float  # For the order of causes: about how many powers of ten beyond the limit.
    remedy: Callable[["Look"], tuple[Setup, Any]] | None = None
    trial: Trial | None = None


class Look:
    """The numbers of one seed of a run, each computed when it is first asked for."""

    def __init__(self, run: Run, row: int) -> None:
        self.run, self.row = run, row
        self.start = run.setup.one(row)
        self.end = jax.tree.map(lambda W: np.asarray(W)[row], run.params)
        self.risk = np.asarray(run.risk[row], float)
        self.step = None if run.step_size is None else float(run.step_size[row])

    @property
    def finite(self) -> bool:
        """Whether the run ended with numbers."""
        return bool(np.isfinite(self.risk).all()) and all(
            np.isfinite(W).all() for W in jax.tree.leaves(self.end)
        )

    @functools.cached_property
    def at(self) -> Any:
        """Where to look: the end, or the start if the run diverged."""
        return self.end if self.finite else self.start.params0

    @functools.cached_property
    def sharpness(self) -> float:
        """Largest eigenvalue of the Hessian where we look."""
        probe = dynamics.sharpness(self.start.risk, jax.random.key(0))
        return float(jax.jit(probe)(self.at)["value"])

    @functools.cached_property
    def gradients(self) -> dict[str, float]:
        """Norm of the gradient of every block at the start."""
        probe = dynamics.gradient_norm(self.start.risk)
        found = jax.jit(probe)(self.start.params0)
        return {name: float(value) for name, value in found.items()}

    @functools.cached_property
    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs at the start, and where we look."""
        both = jax.jit(lambda p: predict(self.start.network, p, self.start.inputs))
        return np.asarray(both(self.start.params0)), np.asarray(both(self.at))

    @functools.cached_property
    def spectrum(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Eigenvalues of the tangent kernel where we look, and the residual along each vector."""
        kernel = self.start.kernel()
        if kernel is None or self.start.targets.size > 2000:
            return None
        values, vectors = np.linalg.eigh(np.asarray(jax.jit(kernel)(self.at)))
        residual = (self.outputs[1] - self.start.targets).ravel()
        return values, vectors.T @ residual

    @functools.cached_property
    def inside(self) -> dict[str, list[tuple[str, float]]]:
        """Entropy, dead units and token cosines at the start, by place in the program."""
        function = getattr(self.start.setting, "function", None)
        if function is None:
            return {"entropy": [], "dead": [], "cosine": []}
        params, x = self.start.params0, self.start.inputs
        parts = inside.parts(function, params, x)
        seen = jax.jit(parts.capture)(params, x)

        def each(places: tuple, measure: Callable) -> list[tuple[str, float]]:
            return [(at.name, float(measure(seen[at.value], at))) for at in places]

        return {
            "entropy": each(parts.attention, lambda v, at: inside.entropy(v, at.axis)),
            "dead": each(parts.units, lambda v, _: inside.dead(v)),
            "cosine": each(parts.stream, lambda v, _: inside.cosine(v)),
        }


# ----------------------------------------------------------------------------------- the verdict

VERDICTS = ("at the floor", "converging", "slow", "stuck", "at a saddle", "unstable", "diverging")


def verdict(look: Look) -> tuple[str, str]:
    """A word for where the run is, and the sentence that says why."""
    risk = look.risk
    if not look.finite:
        return "diverging", "the risk is no longer a finite number"
    first, last = risk[0], risk[-1]
    if last <= 1e-10 * first:
        return "at the floor", f"the risk fell to {last / first:.0e} of its start"
    if last > first or np.mean(np.diff(risk[len(risk) // 2 :]) > 0) > 0.2:
        return "unstable", "the risk rises and falls"
    half = len(risk) // 2
    recent = np.log10(risk[half] / last) if risk[half] > last else 0.0
    steps = look.run.step[-1] - look.run.step[half]
    if recent > 1e-3:
        rate = recent / max(steps, 1)
        word = "converging" if recent > 0.1 else "slow"
        return word, f"it loses a power of ten in {1 / rate:.3g} steps at its present rate"
    ends = jax.jit(dynamics.curvature(look.start.risk, train=look.start.trained))(look.at)
    if float(ends["min"]) < -1e-6 * abs(float(ends["max"])):
        return "at a saddle", f"the Hessian has the eigenvalue {float(ends['min']):.2e}"
    return "stuck", f"the risk stays at {last / first:.3g} of its start"


# ------------------------------------------------------------------------------------ the checks


def step_too_long(look: Look) -> Iterator[Cause]:
    """Gradient descent is unstable beyond 2 / sharpness."""
    if look.step is None or look.run.setup.setting.method != "gd":
        return
    ratio = look.step * look.sharpness / 2
    if ratio > 1.05:
        yield Cause(
            "step_too_long", f"the step is {ratio:.2g} times the largest stable one", ratio, 1.05,
            "beyond 2 / sharpness the steepest direction grows at every step",
            f"use a step of at most {1 / look.sharpness:.2g} (1 / sharpness)",
            np.log10(ratio) + 1, lambda look: (look.start, 1 / look.sharpness),
        )  # fmt: skip


def step_too_short(look: Look) -> Iterator[Cause]:
    """A step far below 2 / sharpness wastes steps in every direction."""
    if look.step is None or look.run.setup.setting.method != "gd" or not look.finite:
        return
    ratio = look.step * look.sharpness / 2
    if 0 < ratio < 0.02 and look.risk[-1] > 1e-6 * look.risk[0]:
        yield Cause(
            "step_too_short", f"the step is {ratio:.2g} of the largest stable one", ratio, 0.02,
            "the number of steps grows like one over the step",
            f"use a step of about {1 / look.sharpness:.2g} (1 / sharpness)",
            -np.log10(ratio) - 1.5, lambda look: (look.start, 1 / look.sharpness),
        )  # fmt: skip


def contradicting_samples(look: Look) -> Iterator[Cause]:
    """Samples with the same input and different targets cannot all be fitted."""
    x = np.concatenate(
        [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(look.start.inputs)], axis=1
    ).astype(float)
    y = np.reshape(look.start.targets, (len(x), -1)).astype(float)
    if len(x) > 4000:
        return
    scale = np.linalg.norm(x, axis=1).mean() or 1.0
    _, group = np.unique(np.round(x / (1e-9 * scale)), axis=0, return_inverse=True)
    lost = 0.0
    worst: list[Any] = []
    for g in np.flatnonzero(np.bincount(group.ravel()) > 1):
        rows = np.flatnonzero(group.ravel() == g)
        apart = float(np.sum((y[rows] - y[rows].mean(0)) ** 2))
        if apart > 1e-12 * np.sum(y**2):
            lost, worst = lost + apart, [*worst, *rows.tolist()]
    if worst:
        share = lost / max(float(np.sum((y - y.mean(0)) ** 2)), 1e-300)
        yield Cause(
            "contradicting_samples",
            f"samples {', '.join(map(str, worst[:6]))} have the same input and different targets",
            share, 0.0, "no model fits two targets at one input",
            "remove one of each, or give the model what tells them apart", 6 + share,
        )  # fmt: skip


def frozen_blocks(look: Look) -> Iterator[Cause]:
    """Blocks that are not trained, or that the risk does not depend on."""
    names = trees.blocks(look.start.params0)
    still = [name for name in names if name not in look.start.trained]
    if still and look.run.setup.setting.train != "all":
        yield Cause(
            "frozen_block", f"{', '.join(still[:4])} are not trained", len(still), 0.0,
            "what does not move cannot help", "train all blocks, unless this is meant", 3.0,
            lambda look: (look.start.with_setting(train="all"), look.step),
        )  # fmt: skip
    total = max(look.gradients.values(), default=0.0)
    for name in look.start.trained:
        if look.gradients[name] <= 1e-12 * total:
            yield Cause(
                "no_gradient", f"the gradient of {name} is zero at the start",
                look.gradients[name], 1e-12 * total,
                "a block without gradient does not learn",
                f"look for a detach, a stop_gradient or a factor zero on the way from {name}", 4.0,
            )  # fmt: skip


def label_scale(look: Look) -> Iterator[Cause]:
    """Targets far larger than what the model puts out at the start."""
    if look.start.squares_weight is None:
        return
    size = float(np.sqrt(np.mean(np.square(look.start.targets))))
    out = float(np.sqrt(np.mean(np.square(look.outputs[0]))))
    ratio = size / max(out, 1e-300)
    if ratio > 100 and size > 10:
        yield Cause(
            "label_scale", f"targets are {ratio:.2g} times as large as the outputs at the start",
            ratio, 100.0, "weights must grow by that factor before anything is fitted",
            f"divide the targets by {size:.2g}", np.log10(ratio) - 1,
        )  # fmt: skip


def saturated_or_uniform(look: Look) -> Iterator[Cause]:
    """Attention that looks at one token only, or at all of them alike."""
    for place, value in look.inside["entropy"]:
        if value < 0.05:
            yield Cause(
                "saturated_attention", f"attention at {place} looks at one token only",
                value, 0.05, "a saturated softmax has almost no gradient",
                "scale the query or key weights of this layer down", 3 - np.log10(max(value, 1e-9)),
            )  # fmt: skip
        if value > 0.99999:
            yield Cause(
                "uniform_attention", f"attention at {place} is uniform", value, 0.99999,
                "where all scores are equal, queries and keys get almost no gradient",
                "start the query and key weights larger", 2.5,
            )  # fmt: skip


def collapsed_tokens(look: Look) -> Iterator[Cause]:
    """Tokens that have become one, from some layer on."""
    for place, value in look.inside["cosine"]:
        if value > 0.99:
            yield Cause(
                "collapsed_tokens", f"tokens are alike from {place} on (cosine {value:.4f})",
                value, 0.99, "equal tokens cannot tell samples apart by their order",
                "add a residual connection around the attention before it", 2.8,
            )  # fmt: skip
            return


def dead_units(look: Look) -> Iterator[Cause]:
    """ReLU units that are zero on every sample."""
    for place, value in look.inside["dead"]:
        if value > 0.5:
            yield Cause(
                "dead_units", f"{value:.0%} of the units at {place} are zero on every sample",
                value, 0.5, "a unit that is zero everywhere has no gradient and never wakes",
                "start this layer's biases at zero, or its weights with mean zero", 3.5 + value,
            )  # fmt: skip


def block_scale(look: Look) -> Iterator[Cause]:
    """A matrix whose size is far from that of the others."""
    gains = {}
    for name, W in trees.blocks(look.start.params0).items():
        if W.ndim >= 2 and min(W.shape) > 1:
            gains[name] = float(np.sqrt(np.mean(np.square(W)) * max(W.shape[-2:])))
    if len(gains) < 2:
        return
    usual = float(np.median(list(gains.values())))
    for name, gain in gains.items():
        ratio = gain / max(usual, 1e-300)
        if not 1 / 30 < ratio < 30:
            more = "larger" if ratio > 1 else "smaller"
            fold = max(ratio, 1 / max(ratio, 1e-300))
            yield Cause(
                "block_scale", f"{name} starts {fold:.3g} times {more} than the other blocks",
                ratio, 30.0, "steps that suit one block are wrong for the other",
                f"scale {name} by {1 / ratio:.2g}", np.log10(fold) + 1.5,
                functools.partial(_rescaled, name=name, factor=1 / ratio),
            )  # fmt: skip


def _rescaled(look: Look, name: str, factor: float) -> tuple[Setup, Any]:
    blocks = {name: trees.blocks(look.start.params0)[name] * factor}
    return look.start.replace(params0=trees.with_blocks(look.start.params0, blocks)), None


def too_few_parameters(look: Look) -> Iterator[Cause]:
    """Fewer trained weights than targets, and a risk that does not fall."""
    if look.start.squares_weight is None or not look.finite:
        return
    moving = trees.size(look.start.moving(look.start.params0))
    rows = look.start.targets.size
    if moving < rows and look.risk[-1] > 1e-3 * look.risk[0]:
        yield Cause(
            "too_narrow", f"{moving} trained weights for {rows} targets", moving / rows, 1.0,
            "with fewer weights than targets most targets cannot be fitted",
            "make the model wider, or train more blocks", 2.0 + rows / max(moving, 1) / 10,
        )  # fmt: skip


def ill_conditioned(look: Look) -> Iterator[Cause]:
    """A kernel with tiny eigenvalues where the residual lies."""
    if not look.finite or look.spectrum is None or look.risk[-1] <= 1e-8 * look.risk[0]:
        return
    values, along = look.spectrum
    small = values < 1e-5 * values[-1]
    share = float(np.sum(along[small] ** 2) / max(np.sum(along**2), 1e-300))
    if small.any() and share > 0.5:
        condition = float(values[-1] / max(values[0], 1e-300))
        yield Cause(
            "ill_conditioned",
            f"{share:.0%} of the residual lies where the kernel is below 1e-5 of its largest value",
            share, 0.5, "such directions need more than 100,000 steps",
            "normalise the inputs, widen the model, or use a preconditioned method", 1.5,
        )._replace(value=condition)  # fmt: skip


CHECKS: tuple[Callable[[Look], Iterator[Cause]], ...] = (
    contradicting_samples, frozen_blocks, dead_units, saturated_or_uniform, collapsed_tokens,
    block_scale, label_scale, step_too_long, step_too_short, too_few_parameters, ill_conditioned,
)  # fmt: skip


# --------------------------------------------------------------------------------------- together


class Diagnosis(NamedTuple):
    """What was found: a verdict with its reason, and causes, the likeliest first."""

    verdict: str
    reason: str
    causes: tuple[Cause, ...]

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change, the likeliest first."""
        return tuple(cause.advice for cause in self.causes)

    def __repr__(self) -> str:
        lines = [f"{self.verdict}: {self.reason}."]
        for number, cause in enumerate(self.causes, start=1):
            lines.append(f"{number}. {cause.sentence}: {cause.advice}.")
            if cause.trial is not None:
                lines.append(
                    f"   Tried: {cause.trial.change}; the risk ended {cause.trial.factor:.3g} "
                    "times as low."
                )
        return "\n".join(lines)


@in_float64
def diagnose(run: Any, *, seed: int | None = None, trials: bool = True) -> Diagnosis:
    """Say why a run is slow or stuck, and what to change.

    ``run`` may be a setup, which is trained first. Remedies are tried by short trainings unless
    ``trials`` is false.
    """
    if isinstance(run, Setup):
        run = train(run, probes=[])
    if not isinstance(run, Run):
        raise InputError(f"cannot diagnose a {type(run).__name__}; expected a run or a setup.")
    look = Look(run, 0 if seed is None else run.seeds.index(seed))
    word, reason = verdict(look)
    found = [cause for check in CHECKS for cause in check(look)]
    found.sort(key=lambda cause: -cause.severity)
    if trials:
        found = [_with_trial(look, cause) for cause in found]
    return Diagnosis(word, reason, tuple(found))


def _with_trial(look: Look, cause: Cause) -> Cause:
    if cause.remedy is None:
        return cause
    setup, step = cause.remedy(look)
    steps = min(TRIAL_STEPS, int(look.run.step[-1]))
    before = _ended(look.start, look.step, steps)
    return cause._replace(trial=Trial(cause.advice, before, _ended(setup, step, steps)))


def _ended(one: Setup, step: Any, steps: int) -> float:
    """The last risk of a short run as a share of the first."""
    setup = one.replace(
        params0=jax.tree.map(lambda W: np.asarray(W)[None], one.params0), seeds=(0,)
    )
    setup = setup.replace(step_size=None)
    risk = train(setup, steps=steps, every=1, step_size=step, probes=[]).risk[0]
    return float(risk[-1] / risk[0]) if np.isfinite(risk[-1]) else float("inf")
