"""What a setting of song2024 means: data, model, start and loss."""

import math
from typing import Literal, NamedTuple

import jax

from shoal import attention, losses, reviews
from shoal._typing import Any, Array, Float, Init, PRNGKeyArray, Scalar
from shoal.errors import InputError
from shoal.experiments import BATCH, STOCHASTIC
from shoal.models import Model
from shoal.papers.song2024 import classifier, data
from shoal.papers.song2024 import layer as architecture
from shoal.papers.song2024.layer import Form, Weights
from shoal.problems import Problem
from shoal.settings import Count, Names, NonNegative, Positive, Seed, Whole
from shoal.training import spacing


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
    difficulty: Literal["trivial", "easy", "medium", "hard"] = "easy"  # 3, 6, 9 or 14 dashes
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
    places: Literal["random", "sinusoidal"] = "random"  # the table of positions at the start
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
    data_only += ["score_scale", "value_scale", "output_scale", "embedding_scale", "places"]
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
        rows=reviews.VOCABULARY if words else setting.dim,
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
    batch = BATCH if setting.batch_size is None else setting.batch_size
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
        columns = math.isqrt(setting.num_tokens) if setting.problem == "pathfinder" else 0
        sinusoidal = setting.places == "sinusoidal"
        return lambda key, spec: _tied(
            classifier.initial(
                key,
                spec,
                score_scale=setting.score_scale,
                embedding_scale=setting.embedding_scale,
                places=classifier.sinusoidal(spec.P, columns) if sinusoidal else None,
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
        data.check(setting, problem, reviews.VOCABULARY if _words(setting) else 0)


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
