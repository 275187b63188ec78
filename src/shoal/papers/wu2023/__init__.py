r"""Wu, Liu, Chrysos, Cevher (2023): On the Convergence of Encoder-only Shallow Transformers.

Symbols: $d_m$ is ``width``, $d_s$ ``num_tokens``, $\tau_0 = d_m^{-p}$ with $p$ our
``score_exponent``, $\gamma$ ``step_size``. The loss is $\tfrac12\sum_n(f_n-y_n)^2$.

Certified here: theorem A (gradient descent) and theorem B (gradient flow), both ours after the
route of the paper's Theorem 1, theorem C (width), and the prediction of the initial tangent kernel.
The paper's own constants are not certified: its full text was not available to us.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from shoal import inits, problems
from shoal._typing import Array, Callable, Float, Init, Params, Probe, Scalar
from shoal.certificates import Certificate
from shoal.diagnostics import dynamics, kernels, layers
from shoal.errors import InputError
from shoal.experiments import (
    ANY_METHOD,
    Case,
    Paper,
    Planned,
    Theorem,
    data_key,
    initial_params,
)
from shoal.files import read_idx_images
from shoal.linalg import norm_fro, norm_op
from shoal.losses import half_sum_of_squares
from shoal.models import Model, empirical_risk, predict, training_risk
from shoal.papers.wu2023 import encoder as architecture
from shoal.papers.wu2023 import limits, theorems
from shoal.papers.wu2023.encoder import Scales, Weights
from shoal.papers.wu2023.limits import Variances
from shoal.problems import Problem
from shoal.settings import Count, Names, NonNegative, Positive, Seed
from shoal.theory.kernel_regime import kernel_regime
from shoal.training import Trajectory

INITS: dict[str, Init] = {
    "lecun": inits.lecun,
    "he": inits.he,
    "ntk": inits.ntk,
    "xavier": inits.xavier,
    "orthogonal": inits.orthogonal,
}
TEACHER_WIDTH = 64  # our setting: a LeCun network of the same form with p = 1/2
HIDDEN = ("W_Q", "W_K", "W_V")


class Setting(NamedTuple):
    """One run. The paper's dimensions are not known; the defaults are ours."""

    # data
    problem: Literal["gaussian", "digits", "idx"] = "gaussian"
    num_samples: Count = 20  # the paper's synthetic experiment has 100
    num_tokens: Count = 5  # images: decided by `patch`
    dim: Count = 20
    tokens: Literal["raw", "unit"] = "raw"  # standard Gaussian, or every token of norm 1
    labels: Literal["gaussian", "teacher"] = "gaussian"
    label_scale: NonNegative = 1.0  # standard deviation of the labels
    patch: Count = 4  # side of the squares that images are cut into
    classes: str = "0,1"  # two labels as -1 and +1, or `all` as regression
    images: str = ""  # IDX file of images, for problem=idx
    image_labels: str = ""  # IDX file of labels
    data_seed: Seed = 0
    # model
    width: Count = 256
    init: Literal["lecun", "he", "ntk", "xavier", "orthogonal"] = "lecun"
    score_exponent: NonNegative = 0.5  # p: the softmax sees scores times width ** -p
    pooling: Literal["mean", "sum"] = "mean"  # prose says average, the proofs' constants sum
    # training
    method: Literal["gd", "flow"] = "gd"
    train: Names = "all"  # or some of W_Q,W_K,W_V,w_O
    step_size: Positive | None = None  # auto: half of 1 / lambda_max of the tangent kernel
    hidden_step_ratio: NonNegative = 1.0  # step of W_Q, W_K, W_V over that of w_O; 1 is the paper's
    num_steps: Count = 100
    every: Count = 1  # record every so many steps
    memory: Positive | None = None  # GiB for hidden units, in a step or kernel; auto: about 0.25


def scales(setting: Setting) -> Scales:
    """The model's constants: only NTK initialisation carries a scale in the output."""
    return Scales(
        score=setting.width**-setting.score_exponent,
        output=setting.width**-0.5 if setting.init == "ntk" else 1.0,
        pool=1 / setting.num_tokens if setting.pooling == "mean" else 1.0,
    )


def variances(setting: Setting) -> Variances:
    """Variances of the entries at the start, for the Gaussian initialisations."""
    d, m = setting.dim, setting.width
    table = {
        "lecun": Variances(1 / d, 1 / d, 1 / d, 1 / m),
        "he": Variances(2 / d, 2 / d, 2 / d, 2 / m),
        "ntk": Variances(1.0, 1.0, 1.0, 1.0),
        "xavier": Variances(2 / (d + m), 2 / (d + m), 2 / (d + m), 2 / (m + 1)),
    }
    if setting.init not in table:
        msg = f"init={setting.init} has no independent entries; choose from {', '.join(table)}."
        raise InputError(msg)
    return table[setting.init]


def model(setting: Setting) -> Model:
    """The encoder at a setting."""
    return architecture.encoder(setting.dim, setting.width, scales(setting), held(setting))


def held(setting: Setting) -> int:
    """Hidden units that a step may hold at a time, before and after ReLU."""
    return architecture.HELD if setting.memory is None else max(1, int(setting.memory * 2**26))


def activations(setting: Setting) -> float:
    """Numbers that a step and its usual probes hold: hidden units, and one array for the probes."""
    units = float(setting.num_samples * setting.num_tokens * setting.width)
    return units + 2.0 * min(units, held(setting))


def problem(setting: Setting) -> Problem:
    """The data of a setting."""
    key = data_key(setting)
    if setting.problem != "gaussian":
        if setting.problem == "digits":
            images, labels = problems.handwritten_digits()
        elif setting.images and setting.image_labels:
            images, labels = read_idx_images(setting.images, setting.image_labels)
        else:
            msg = "problem=idx needs --set images=FILE and --set image_labels=FILE (IDX format)."
            raise InputError(msg)
        made = problems.image_problem(
            key,
            images,
            labels,
            num_samples=setting.num_samples,
            patch=setting.patch,
            dim=setting.dim,
            classes=setting.classes,
        )
        return made._replace(X=problems.unit_tokens(made.X)) if setting.tokens == "unit" else made
    key_X, key_y = jax.random.split(key)
    X = problems.gaussian_tokens(key_X, setting.num_samples, setting.num_tokens, setting.dim)
    X = problems.unit_tokens(X) if setting.tokens == "unit" else X
    if setting.labels == "gaussian":
        return Problem(X, problems.gaussian_labels(key_y, setting.num_samples, setting.label_scale))
    teacher = model(setting._replace(width=TEACHER_WIDTH, init="lecun", score_exponent=0.5))
    weights = inits.lecun(key_y, teacher.spec)
    y = problems.teacher_labels(lambda x: teacher.apply(weights, x), X, setting.label_scale)
    return Problem(X, y)


def sizes(params: Weights) -> dict[str, int]:
    """Width and dimension that (stacked) weights imply."""
    return {"width": params.W_Q.shape[-2], "dim": params.W_Q.shape[-1]}


def speeds(setting: Setting) -> dict[str, Scalar]:
    """Step ratios: the hidden weights may move more slowly than the output weights."""
    ratios: dict[str, Scalar] = dict.fromkeys(HIDDEN, setting.hidden_step_ratio)
    return ratios | {"w_O": 1.0}


def block_kernels(case: Case) -> kernels.Kernels:
    """The closed-form tangent kernels on a case's data."""
    tile = architecture.TILE
    if case.setting.memory is not None:
        tile = max(1, int(case.setting.memory * 2**30 / 24))
    return architecture.tangent_kernels(case.problem.X, scales(case.setting), tile)


def driving_kernel(case: Case) -> Callable[[Params], Float[Array, "N N"]]:
    """The kernel that moves the outputs, blocks weighted by their step ratios."""
    return kernels.total_kernel(block_kernels(case), case.speeds)


def distance_to_limit(
    setting: Setting, problem: Problem, seeds: tuple[int, ...]
) -> Float[Array, " S"]:
    r"""Relative distance of the initial tangent kernel to its limit, for each seed ($p>1/2$)."""
    if setting.score_exponent <= 0.5:
        p = setting.score_exponent
        msg = f"score_exponent={p}: only above 1/2 is there a fixed limit (limits.random_limit)."
        raise InputError(msg)
    constants = scales(setting)
    limit = limits.uniform_limit(problem.X, variances(setting), constants, setting.width)
    blocks = architecture.tangent_kernels(problem.X, constants)

    @jax.jit
    def distances(starts: Weights) -> Float[Array, " S"]:
        return jax.lax.map(lambda p: limits.relative_distance(blocks(p), limit), starts)

    return distances(initial_params(PAPER, setting, seeds))


def probes(case: Case) -> dict[str, Probe]:
    """Everything that can be recorded along a run."""
    X, constants, network = case.problem.X, scales(case.setting), model(case.setting)
    # descended by the training step itself, so that the compiler shares its gradient with probes
    fast = training_risk(network, case.problem, half_sum_of_squares)
    risk = empirical_risk(network, case.problem, half_sum_of_squares)  # differentiable twice

    def fixed(function: Callable) -> Callable:
        return lambda params, x: function(params, x, constants)

    def eigenvalue(index: int) -> Probe:
        spectrum = kernels.kernel_eigenvalues(driving_kernel(case))
        return lambda params: spectrum(params)[index]

    def by_block(params: Weights) -> dict[str, Array]:
        parts = block_kernels(case)(params)
        return {name: kernels.kernel_eigenvalues(lambda K: K)(K) for name, K in parts.items()}

    return {
        "movement": dynamics.movement(case.params0),
        "gradient_norm": dynamics.gradient_norm(fast),
        "pl_ratio": dynamics.pl_ratio(fast),
        "attention_entropy": layers.attention_entropy(fixed(architecture.attention), X),
        "attention_from_uniform": layers.attention_from_uniform(fixed(architecture.attention), X),
        "dead_units": layers.dead_units(fixed(architecture.preactivation), X),
        "feature_sigma_min": layers.feature_sigma_min(fixed(architecture.features), X),
        "feature_norm": layers.feature_norm(fixed(architecture.features), X),
        "kernel_lambda_min": eigenvalue(0),
        "kernel_lambda_max": eigenvalue(-1),
        "kernel_eigenvalues": kernels.kernel_eigenvalues(driving_kernel(case)),
        "kernel_block_eigenvalues": by_block,
        "kernel_share": kernels.kernel_shares(block_kernels(case)),
        "kernel_drift": kernels.kernel_drift(driving_kernel(case), case.params0),
        "kernel_distance": kernels.kernel_distance(driving_kernel(case), case.params0),
        "sharpness": dynamics.sharpness(risk, jax.random.key(0)),
        "conserved_drift": architecture.conserved_drift(case.params0, case.speeds),
        "attention": lambda params: jax.vmap(fixed(architecture.attention), in_axes=(None, 0))(
            params, X
        ),
    }


def _start(case: Case) -> theorems.Start:
    # frozen hidden weights move less than any ratio allows, so the largest speed is the theorem's r
    ratio = functools.reduce(jnp.maximum, [case.speeds[name] for name in HIDDEN])
    return theorems.Start(case.problem, case.params0, scales(case.setting), ratio)


def _theorem_a(case: Case, run: Trajectory) -> Certificate:
    return theorems.theorem_a(_start(case), case.step_size, case.speeds, run)


def _theorem_b(case: Case, run: Trajectory) -> Certificate:
    return theorems.theorem_b(_start(case), case.step_size, case.speeds, run)


def _theorem_c(case: Case, run: Trajectory) -> Certificate:  # noqa: ARG001
    drawn = case.drawn and case.setting.init != "orthogonal"
    return theorems.theorem_c(_start(case), variances(case.setting).W_V if drawn else float("nan"))


def _kernel_regime(case: Case, run: Trajectory) -> Certificate:
    e0 = predict(model(case.setting), case.params0, case.problem.X) - case.problem.y
    F = layers.feature_matrix(
        lambda params, x: architecture.features(params, x, scales(case.setting)), case.problem.X
    )(case.params0)
    size = norm_op(F) * norm_fro(case.params0.w_O) + norm_fro(case.problem.y)
    K0 = driving_kernel(case)(case.params0)
    return kernel_regime(K0, e0, case.step_size, run, output_size=size)


_OURS = "ours, after the route of Wu et al. (2023), Theorem 1; proof in docs/theory/wu2023.md"
_RECORDED = ("movement", "feature_sigma_min", "feature_norm")
THEOREMS = (
    Theorem(
        key="theorem_a",
        statement="Gradient descent: the loss falls at least like (1 - step * alpha^2 / 4)^t, the "
        "weights stay in small balls and the features stay independent.",
        source=_OURS,
        method="gd",
        probes=_RECORDED,
        needs=(),
        certificate=_theorem_a,
        largest_step=lambda case: theorems.largest_step(_start(case)),
    ),
    Theorem(
        key="theorem_b",
        statement="Gradient flow: the loss falls at least like exp(-alpha^2 t / 2).",
        source=_OURS,
        method="flow",
        probes=_RECORDED,
        needs=(),
        certificate=_theorem_b,
        largest_step=None,
    ),
    Theorem(
        key="theorem_c",
        statement="Width: with probability 0.99 over Gaussian W_V, the initial features are "
        "independent once the width exceeds an explicit number.",
        source="ours; proof in docs/theory/wu2023.md",
        method=ANY_METHOD,
        probes=(),
        needs=(),
        certificate=_theorem_c,
        largest_step=None,
    ),
    Theorem(
        key="kernel_regime",
        statement="The loss curve is the one that the tangent kernel at the start predicts, up to "
        "what the measured movement of the kernel allows.",
        source="ours; proof in docs/theory/kernel_regime.md",
        method="gd",
        probes=("kernel_distance",),
        needs=("kernel_distance",),
        certificate=_kernel_regime,
        largest_step=None,
    ),
)

PAPER = Paper(
    key="wu2023",
    title="On the Convergence of Encoder-only Shallow Transformers",
    authors="Yongtao Wu, Fanghui Liu, Grigorios G. Chrysos, Volkan Cevher",
    year=2023,
    arxiv="2311.01575",
    about="width, LeCun/He/NTK initialisation, softmax scaling, global convergence",
    setting=Setting(),
    problem=problem,
    model=model,
    init=lambda setting: INITS[setting.init],
    loss=half_sum_of_squares,
    sizes=sizes,
    activations=activations,
    numeric=("score_exponent",),
    planned=Planned(
        grow="width",
        theorem="theorem_a",
        values=(
            ("num_tokens", 2),
            ("tokens", "unit"),
            ("pooling", "sum"),
            ("score_exponent", 1.0),
        ),
        samples=(2, 4, 8, 16),
        octaves=(2, 9),
        highest=20,
        seeds=8,
    ),
    data_alone=True,
    speeds=speeds,
    kernel=driving_kernel,
    probes=probes,
    default_probes=(
        "movement",
        "gradient_norm",
        "pl_ratio",
        "attention_entropy",
        "attention_from_uniform",
        "dead_units",
    ),
    theorems=THEOREMS,
)

# claims and figures are experiments with the paper as it stands so far
from shoal.papers.wu2023.claims import CLAIMS
from shoal.papers.wu2023.pictures import FIGURES

PAPER = PAPER._replace(claims=CLAIMS, figures=FIGURES)
