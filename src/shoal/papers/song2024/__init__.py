r"""Song et al. (2024): Unraveling the Gradient Descent Dynamics of Transformers.

Symbols: $N$ samples, $n$ tokens, $D$ ``dim``, $H$ ``num_heads``, $d$ ``key_dim``, $d_v$
``value_dim``, $p$ ``out_dim``, $\tau$ ``bandwidth``, $\eta$ ``step_size``. The loss of the layer is
$F=\tfrac12\sum_i\lVert M_i-Y_i\rVert_F^2$ (a sum), that of the classifier the mean cross-entropy.

Certified here: theorem 1 (only $W_V$), theorem 2 ($W_Q$, $W_K$, $W_V$ together), theorem 3 (only
$W_Q$), all ours after the paper's theorems of the same numbers, theorem S (softmax without traps)
and the prediction of the initial tangent kernel. The paper's own constants are not certified: its
full text was not available to us.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from shoal import attention, losses
from shoal._typing import Any, Array, Callable, Float, Init, Params, PRNGKeyArray, Probe, Scalar
from shoal.certificates import Certificate
from shoal.diagnostics import dynamics, kernels, layers
from shoal.errors import InputError
from shoal.experiments import STOCHASTIC, Case, Paper, Theorem
from shoal.linalg import norm_fro, norm_op, numerical_rank, sigma_min
from shoal.models import Model, empirical_risk, predict
from shoal.papers.song2024 import classifier, data, theorems
from shoal.papers.song2024 import layer as architecture
from shoal.papers.song2024.layer import Form, Weights
from shoal.problems import Problem
from shoal.settings import Count, Names, NonNegative, Positive, Seed, Whole
from shoal.theory.kernel_regime import kernel_regime
from shoal.training import Trajectory, spacing

LARGEST_KERNEL = 6000  # rows of the tangent kernel (samples x tokens x outputs) that we form
NORMALISED = ("softmax", "normalised_gaussian")


class Setting(NamedTuple):
    """One run: the layer of the theory, or the classifier of the experiments."""

    model: Literal["layer", "classifier"] = "layer"
    # data
    problem: Literal["gaussian", "trap", "digits", "imdb", "rotten_tomatoes", "pathfinder"] = (
        "gaussian"  # the layer sees real data through frozen embeddings
    )
    num_samples: Count | None = None  # auto: 4 for the layer, 2000 for the classifier
    num_tokens: Count | None = None  # auto: 4; text 256 bytes; pictures: decided by them
    dim: Count | None = None  # auto: 24 for the layer; what a token holds for the classifier
    test_samples: Whole | None = None  # held out; auto: 500 for the classifier
    tokens: Literal["raw", "scaled", "unit"] = "raw"  # gaussian; over sqrt(dim); of norm 1
    labels: Literal["gaussian", "teacher"] = "gaussian"  # a teacher is a layer of the same kernel
    label_scale: NonNegative = 1.0  # root mean square of the targets
    classes: str = "3,8"  # two digits, for problem=digits
    difficulty: Literal["easy", "medium", "hard"] = "easy"  # of Pathfinder: 6, 9, 14 dashes
    patch: Count = 4  # Pathfinder: side of a token; 1 is a pixel a token, as in the paper
    data_seed: Seed = 0
    # model
    kernel: Literal[
        "softmax", "gaussian", "normalised_gaussian", "mean_gaussian", "exponential"
    ] = "softmax"
    bandwidth: Positive | None = None  # tau of Gaussian kernels; auto: sqrt(key width)
    num_heads: Count | None = None  # auto: 1 for the layer, 2 for the classifier
    key_dim: Count = 8  # layer: width of queries and keys
    value_dim: Count = 2  # layer: width of values; at least out_dim, or W_O loses rank
    out_dim: Count = 1  # layer: numbers a token puts out
    init: Literal["gaussian", "tied", "trap"] = "gaussian"  # tied: W_K = W_Q at the start
    score_scale: NonNegative = 1.0  # of W_Q and W_K, in units of 1 / sqrt(dim)
    value_scale: NonNegative = 1.0  # layer: of W_V likewise; 0 starts at output zero
    output_scale: Positive = 1.0  # layer: of W_O, in units of 1 / sqrt(value_dim)
    # classifier
    num_layers: Count = 2
    width: Count = 64
    hidden: Count = 128
    positions: Count = 1024  # length of the table of positions
    embedding_scale: Positive = 0.02  # of tokens and positions at the start, as in Skyformer
    residual: Literal["both", "none"] = "both"
    norm: bool = True  # layer norm before each part
    # training
    method: Literal["gd", "sgd", "adam"] | None = None  # auto: gd for the layer, else adam
    train: Names = "auto"  # auto: all but W_O for the layer; or names, or all
    step_size: Positive | None = None  # auto: by the tangent kernel; classifier 1e-3 (sgd 0.1)
    batch_size: Count | None = None  # of sgd and adam; auto: 32
    num_steps: Count | None = None  # auto: 20000; classifier 1000; shoal certify 200
    every: Count | None = None  # record every so many steps; auto: 1 up to 2000, else 200 records


def complete(setting: Any) -> Setting:
    """Fill in what follows from other settings, and refuse what does not fit together."""
    is_layer = setting.model == "layer"
    if not is_layer and setting.problem not in data.REAL:
        real = ", ".join(data.REAL)
        msg = f"model=classifier needs a problem with classes, not {setting.problem}: {real}."
        raise InputError(msg)
    if setting.problem == "trap":
        sizes = {"num_samples": 1, "num_tokens": 4, "dim": 4}
    elif setting.problem in data.REAL:
        sizes = {"num_samples": 4 if is_layer else 2000} | data.sizes_of(setting)
        sizes |= {"num_tokens": 16, "dim": 64} if is_layer and sizes["num_tokens"] == 256 else {}
    else:
        sizes = {"num_samples": 4, "num_tokens": 4, "dim": 24}
    steps = setting.num_steps or (20000 if is_layer else 1000)
    auto = sizes | {
        "num_steps": steps,
        "test_samples": 0 if is_layer else 500,
        "num_heads": 1 if is_layer else 2,
        "method": "gd" if is_layer else "adam",
        "every": spacing(steps, 200 if is_layer else 20) if steps > 2000 or not is_layer else 1,
    }
    missing = {k: v for k, v in auto.items() if getattr(setting, k) is None}
    if setting.train == "auto":
        missing["train"] = "W_Q,W_K,W_V" if is_layer else "all"
    if setting.init == "trap":
        missing |= {"key_dim": 1, "value_dim": 1, "out_dim": 1}
    setting = setting._replace(**missing)
    _require_fit(setting)
    return setting


def _require_fit(setting: Any) -> None:
    if setting.method not in STOCHASTIC and setting.batch_size is not None:
        msg = f"batch_size={setting.batch_size}, but method=gd sees all samples; use sgd or adam."
        raise InputError(msg)
    if setting.model == "classifier":
        if setting.num_tokens > setting.positions:
            n, have = setting.num_tokens, setting.positions
            msg = (
                f"num_tokens={n}, but the table of positions has {have} rows; set positions={n} "
                "or use fewer tokens."
            )
            raise InputError(msg)
        if setting.width % setting.num_heads:
            msg = f"num_heads={setting.num_heads} does not divide width={setting.width}."
            raise InputError(msg)
        if setting.init == "trap":
            msg = "init=trap belongs to the layer; leave it out."
            raise InputError(msg)
    if setting.init == "trap" and (setting.dim, setting.num_heads) != (4, 1):
        msg = f"init=trap has dim=4 and one head, not dim={setting.dim}, {setting.num_heads} heads."
        raise InputError(msg)


def program(setting: Any) -> Any:
    """The setting without what only makes data and initial weights, so that programs are shared."""
    words = _words(setting)
    data_only = ["tokens", "labels", "classes", "difficulty", "init", "test_samples"]
    data_only += ["score_scale", "value_scale", "output_scale", "embedding_scale"]
    defaults = Setting._field_defaults
    problem = "imdb" if words else "digits" if setting.model == "classifier" else "gaussian"
    return setting._replace(problem=problem, **{name: defaults[name] for name in data_only})


def _words(setting: Any) -> bool:
    """Are the tokens of the classifier numbers of a vocabulary?"""
    if setting.problem == "pathfinder":
        return setting.patch == 1
    return setting.problem in ("imdb", "rotten_tomatoes")


def form(setting: Any) -> Form:
    """Kernel and bandwidth."""
    width = setting.key_dim if setting.model == "layer" else setting.width // setting.num_heads
    tau = math.sqrt(width) if setting.bandwidth is None else setting.bandwidth
    return Form(attention.KERNELS[setting.kernel], tau)


def layer_sizes(setting: Any) -> architecture.Sizes:
    """Shapes of the layer's weights."""
    return architecture.Sizes(
        setting.num_heads, setting.dim, setting.key_dim, setting.value_dim, setting.out_dim
    )


def classifier_sizes(setting: Any) -> classifier.Sizes:
    """Shapes of the classifier's weights."""
    words = _words(setting)
    return classifier.Sizes(
        rows=257 if words else setting.dim,
        vocabulary=words,
        positions=setting.positions,
        num_layers=setting.num_layers,
        num_heads=setting.num_heads,
        width=setting.width,
        hidden=setting.hidden,
        residual=setting.residual == "both",
        norm=setting.norm,
    )


def _sequence_numbers(setting: Any) -> float:
    """Numbers that a gradient of the classifier holds for one sequence."""
    n, s = setting.num_tokens, setting
    return s.num_layers * (3.0 * s.num_heads * n * n + n * (14.0 * s.width + 3.0 * s.hidden))


def activations(setting: Any) -> float:
    """Numbers that a step of one seed holds."""
    n = setting.num_tokens
    if setting.model == "layer":
        row = setting.num_heads * (3 * n + 3 * setting.key_dim + setting.out_dim) + setting.dim
        return 2.0 * setting.num_samples * n * row
    batch = 32 if setting.batch_size is None else setting.batch_size
    return max(batch, _at_once(setting)) * _sequence_numbers(setting)


def _at_once(setting: Any) -> int:
    return max(1, int(2**24 / _sequence_numbers(setting)))


def model(setting: Any) -> Model:
    """The layer or the classifier at a setting."""
    if setting.model == "layer":
        return architecture.attention_layer(layer_sizes(setting), form(setting))
    return classifier.transformer(
        classifier_sizes(setting), form(setting), at_once=_at_once(setting)
    )


def init(setting: Any) -> Init:
    """Gaussian weights; query and key weights may be tied; or the trap."""
    if setting.model == "classifier":
        return lambda key, spec: _tied(
            classifier.initial(
                key,
                spec,
                score_scale=setting.score_scale,
                embedding_scale=setting.embedding_scale,
            ),
            setting,
        )

    def draw(key: PRNGKeyArray, spec: Weights) -> Weights:
        if setting.init == "trap":
            return data.trap_weights()
        keys = jax.random.split(key, 4)
        factors = (
            setting.score_scale / setting.dim**0.5,
            setting.score_scale / setting.dim**0.5,
            setting.value_scale / setting.dim**0.5,
            setting.output_scale / setting.value_dim**0.5,
        )
        drawn = (
            f * jax.random.normal(k, block.shape, block.dtype)
            for f, k, block in zip(factors, keys, spec, strict=True)
        )
        return _tied(Weights(*drawn), setting)

    return draw


def _tied(params: Any, setting: Any) -> Any:
    return params._replace(W_K=params.W_Q) if setting.init == "tied" else params


def problem(setting: Any) -> Problem:
    """The data that training sees."""
    if setting.problem == "trap":
        return data.trap()
    if setting.problem == "gaussian":
        teacher = setting._replace(init="gaussian", value_scale=1.0, output_scale=1.0)
        return data.synthetic(setting, (model(teacher), init(teacher)))
    if setting.model == "layer":
        return data.embedded(setting)
    found = data.classified(setting, held_out=False)
    assert found is not None
    return found


def held_out(setting: Any) -> Problem | None:
    """Data that training does not see (classifier only)."""
    return data.classified(setting, held_out=True) if setting.model == "classifier" else None


def check(setting: Any, problem: Problem) -> None:
    """Refuse data from outside that the classifier cannot take."""
    if setting.model == "classifier":
        data.check(setting, problem, 257 if _words(setting) else 0)


def sizes(params: Any) -> dict[str, int]:
    """Settings that (stacked) weights imply."""
    if not isinstance(params, Weights):
        return {
            "num_layers": params.W_Q.shape[-4],
            "num_heads": params.W_Q.shape[-3],
            "width": params.W_Q.shape[-2],
            "hidden": params.W_1.shape[-1],
            "positions": params.P.shape[-2],
        }
    return {
        "num_heads": params.W_Q.shape[-3],
        "dim": params.W_Q.shape[-2],
        "key_dim": params.W_Q.shape[-1],
        "value_dim": params.W_V.shape[-1],
        "out_dim": params.W_O.shape[-1],
    }


def speeds(setting: Any) -> dict[str, Scalar]:
    """All blocks move at the same step."""
    return dict.fromkeys(model(setting).spec._fields, 1.0)


def loss(outputs: Array, targets: Array) -> Float[Array, ""]:
    """Half the sum of squares; mean cross-entropy where a target is the number of a class."""
    if outputs.ndim == targets.ndim:
        return losses.half_sum_of_squares(outputs, targets)
    return losses.cross_entropy(outputs, targets)


def usual_step(case: Case) -> Scalar:
    r"""A step to begin with.

    Classifier: 1e-3 for Adam, 0.1 for gradient descent. Layer: half of $1/\lambda_{\max}$ of the
    tangent kernel if values move. If only queries or keys move, that kernel may vanish where
    attention saturates, and a step made for it would fling queries away: then $1/L$ with the
    smoothness constant of theorem 3, of which there is one for softmax and one for the Gaussian.
    """
    setting = case.setting
    if setting.model == "classifier":
        return jnp.asarray(1e-3 if setting.method == "adam" else 0.1)
    names = set(Weights._fields if setting.train == "all" else setting.train.split(","))
    if names <= {"W_Q", "W_K"}:
        softly = setting.kernel in (*NORMALISED, "exponential")
        start = _start(case, case.params0)._replace(kernel="softmax" if softly else "gaussian")
        return theorems.JUST_BELOW / theorems.smoothness(start)
    kernel = driving_kernel(case)
    if kernel is None:
        A = architecture.value_matrix(case.params0, case.problem.X, form(setting))
        return 0.5 / norm_op(A) ** 2
    top = jnp.linalg.eigvalsh(kernel(case.params0))[-1]
    return jnp.where(top > 0, 0.5 / top, 1.0)


# ------------------------------------------------------------------------- kernels and floors


def block_kernels(case: Case) -> kernels.Kernels:
    """Tangent kernel of each block over all outputs (samples x tokens x outputs), by autodiff."""
    network = model(case.setting)

    def outputs(params: Params) -> Float[Array, " R"]:
        return predict(network, params, case.problem.X).ravel()

    def parts(params: Params) -> dict[str, Float[Array, "R R"]]:
        J = jax.jacrev(outputs)(params)._asdict()
        flat = {name: j.reshape(len(j), -1) for name, j in J.items()}
        return {name: j @ j.T for name, j in flat.items()}

    return parts


def driving_kernel(case: Case) -> Callable[[Params], Float[Array, "R R"]] | None:
    """The kernel that moves the outputs of the layer; none for the classifier."""
    if case.setting.model == "classifier":
        return None
    if case.problem.y.size > LARGEST_KERNEL:
        return None
    return kernels.total_kernel(block_kernels(case), case.speeds)


def floor(case: Case) -> Callable[[Params], Scalar] | None:
    """A lower bound of the risk that no training of the moving blocks can break.

    If only values move: the least squares floor for the attention as it is. If only queries or keys
    move: the nearest point that weights of this kernel can mix from the values. Otherwise zero.
    """
    setting = case.setting
    if setting.model == "classifier":
        return None
    names = setting.train.split(",") if setting.train != "all" else list(Weights._fields)
    if set(names) == {"W_V"}:
        return lambda params: theorems.value_numbers(_start(case, params))["F_star"]
    if not set(names) <= {"W_Q", "W_K"} or setting.kernel == "exponential":
        return lambda params: 0.0 * jnp.sum(params.W_O)
    return reach_floor(case)


def reach_floor(case: Case) -> Callable[[Weights], Float[Array, ""]]:
    """Lowest risk that attention weights of this kernel's range reach with the values at hand."""
    kind = case.setting.kernel
    box = None if kind in NORMALISED else 1.0
    box = 1.0 / case.setting.num_tokens if kind == "mean_gaussian" else box

    def lowest(params: Weights) -> Float[Array, ""]:
        U = jax.vmap(lambda x: architecture.values(params, x))(case.problem.X)
        rows = jax.vmap(lambda u, y: architecture.reach_floor(u, y, box=box))
        return jnp.sum(rows(U, case.problem.y))

    return lowest


# ------------------------------------------------------------------------------------- probes


def probes(case: Case) -> dict[str, Probe]:
    """Everything that can be recorded along a run."""
    risk = empirical_risk(model(case.setting), case.problem, loss)
    common: dict[str, Probe] = {
        "movement": dynamics.movement(case.params0),
        "distance": dynamics.distance(case.params0),
        "gradient_norm": dynamics.gradient_norm(risk),
    }
    if case.setting.model == "classifier":
        return common | _classifier_probes(case)
    return common | _layer_probes(case, risk)


def _classifier_probes(case: Case) -> dict[str, Probe]:
    network = model(case.setting)

    def accuracy_on(problem: Problem) -> Probe:
        return lambda params: losses.accuracy(predict(network, params, problem.X), problem.y)

    found = {"train_accuracy": accuracy_on(case.problem)}
    if case.held_out is not None:
        held = case.held_out
        found["test_risk"] = empirical_risk(network, held, loss)
        found["test_accuracy"] = accuracy_on(held)
    return found


def _layer_probes(case: Case, risk: Callable) -> dict[str, Probe]:
    X, shape = case.problem.X, form(case.setting)
    moving = tuple(case.setting.train.split(",")) if case.setting.train != "all" else None

    def B(params: Weights) -> Array:
        return architecture.feature_matrix(params, X, shape)

    def A(params: Weights) -> Array:
        return architecture.value_matrix(params, X, shape)

    def heads(params: Weights, x: Array) -> Array:
        return architecture.attention(params, x, shape)

    def row_sums(params: Weights) -> dict[str, Array]:
        sums = jnp.sum(jax.vmap(lambda x: heads(params, x))(X), axis=-1)
        return {"mean": jnp.mean(sums), "min": jnp.min(sums), "max": jnp.max(sums)}

    start = _start(case, case.params0)
    found: dict[str, Probe] = {
        "pl_ratio": dynamics.pl_ratio(risk),
        "lambda_B": lambda params: sigma_min(B(params)),
        "rank_B": lambda params: numerical_rank(B(params), theorems.ZERO),
        "lambda_A": lambda params: sigma_min(A(params)),
        "rank_A": lambda params: numerical_rank(A(params), theorems.ZERO),
        "row_sum": row_sums,
        "attention": lambda params: jax.vmap(lambda x: heads(params, x)[0])(X),
        "reach_floor": reach_floor(case),
        "curvature": dynamics.curvature(risk, train=moving),
        "stationarity": dynamics.stationarity(
            risk, floor(case) or (lambda _: 0.0), train=moving, scale=risk(case.params0)
        ),
        "sharpness": dynamics.sharpness(risk, jax.random.key(0)),
    }
    if case.setting.kernel in NORMALISED:
        found["attention_entropy"] = layers.attention_entropy(heads, X)
    if case.setting.num_heads == 1 and case.setting.kernel in ("softmax", "gaussian"):
        geometry = theorems.query_geometry(start)
        found["query_sigma"] = lambda params: theorems.smallest_jacobian(start, params, geometry)
    if (kernel := driving_kernel(case)) is not None:
        found["kernel_eigenvalues"] = kernels.kernel_eigenvalues(kernel)
        found["kernel_drift"] = kernels.kernel_drift(kernel, case.params0)
        found["kernel_distance"] = kernels.kernel_distance(kernel, case.params0)
    return found


# ----------------------------------------------------------------------------------- theorems


def _start(case: Case, params: Weights) -> theorems.Start:
    return theorems.Start(
        case.problem,
        params,
        form(case.setting),
        case.setting.kernel,
        case.speeds,
        every_step=case.setting.every == 1,
    )


def _of(function: Callable) -> Callable[[Case, Trajectory], Certificate]:
    return lambda case, run: function(_start(case, case.params0), case.step_size, run)


def _kernel_regime(case: Case, run: Trajectory) -> Certificate:
    r = (predict(model(case.setting), case.params0, case.problem.X) - case.problem.y).ravel()
    A = architecture.value_matrix(case.params0, case.problem.X, form(case.setting))
    size = norm_op(A) * norm_fro(case.params0.W_V) + norm_fro(case.problem.y)
    kernel: Any = driving_kernel(case)
    return kernel_regime(kernel(case.params0), r, case.step_size, run, output_size=size)


def _value_step(case: Case) -> Float[Array, ""]:
    A = architecture.value_matrix(case.params0, case.problem.X, form(case.setting))
    return 1 / norm_op(A) ** 2


def _is_layer(setting: Any) -> bool:
    return setting.model == "layer"


def _has_kernel(setting: Any) -> bool:
    rows = setting.num_samples * setting.num_tokens * setting.out_dim
    return _is_layer(setting) and rows <= LARGEST_KERNEL


_OURS = "ours, after Song et al. (2024), Theorem {}; proof in docs/theory/song2024.md"
_RECORDED = ("gradient_norm", "distance")
THEOREMS = (
    Theorem(
        key="theorem_1",
        statement="Only W_V moves: the loss follows an exact recursion to the least squares floor, "
        "for every kernel; the floor is zero for all targets only if heads x dim >= samples x "
        "tokens.",
        source=_OURS.format(1),
        method="gd",
        probes=(),
        needs=(),
        certificate=_of(theorems.theorem_1),
        largest_step=_value_step,
        covers=_is_layer,
    ),
    Theorem(
        key="theorem_2",
        statement="W_Q, W_K, W_V move together: close to a start with independent features the "
        "loss falls at least like (1 - step * lambda^2 / 4)^t.",
        source=_OURS.format(2),
        method="gd",
        probes=(*_RECORDED, "lambda_A"),
        needs=(),
        certificate=_of(theorems.theorem_2),
        largest_step=lambda case: theorems.largest_step_2(_start(case, case.params0)),
        covers=_is_layer,
    ),
    Theorem(
        key="theorem_3",
        statement="Only W_Q moves, one head: where every output turns with its query, the loss "
        "falls at least like (1 - step * mu_0 / 4)^t.",
        source=_OURS.format(3),
        method="gd",
        probes=_RECORDED,
        needs=(),
        certificate=_of(theorems.theorem_3),
        largest_step=lambda case: theorems.largest_step_3(_start(case, case.params0)),
        covers=_is_layer,
    ),
    Theorem(
        key="theorem_s",
        statement="Softmax, only W_Q, affinely independent keys, targets in the affine hull: no "
        "stationary point lies above zero loss.",
        source="ours; proof in docs/theory/song2024.md",
        method="gd",
        probes=(*_RECORDED, "query_sigma"),
        needs=("query_sigma",),
        certificate=_of(theorems.theorem_s),
        largest_step=None,
        covers=lambda setting: _is_layer(setting) and setting.num_heads == 1,
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
        covers=_has_kernel,
    ),
)

PAPER = Paper(
    key="song2024",
    title="Unraveling the Gradient Descent Dynamics of Transformers",
    authors="Bingqing Song, Boran Han, Shuai Zhang, Jie Ding, Mingyi Hong",
    year=2024,
    arxiv="2411.07538",
    about="softmax against Gaussian attention, which weights to train, landscapes",
    setting=Setting(),
    problem=problem,
    model=model,
    init=init,
    loss=loss,
    sizes=sizes,
    speeds=speeds,
    kernel=driving_kernel,
    probes=probes,
    default_probes=(
        "movement",
        "distance",
        "gradient_norm",
        "lambda_B",
        "rank_B",
        "lambda_A",
        "row_sum",
        "query_sigma",
        "train_accuracy",
        "test_risk",
        "test_accuracy",
    ),
    theorems=THEOREMS,
    target=lambda setting: "Y" if setting.model == "layer" else "y",
    held_out=held_out,
    check=check,
    floor=floor,
    usual_step=usual_step,
    activations=activations,
    complete=complete,
    program=program,
)

# claims and figures are experiments with the paper as it stands so far
from shoal.papers.song2024.claims import CLAIMS
from shoal.papers.song2024.pictures import FIGURES

PAPER = PAPER._replace(claims=CLAIMS, figures=FIGURES)
