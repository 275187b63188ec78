r"""Song et al. (2024): the attention layer of the theory and the classifier of the experiments.

Symbols: $N$ samples, $n$ tokens, $D$ ``dim``, $H$ ``num_heads``, $d$ ``key_dim``, $d_v$
``value_dim``, $p$ ``out_dim``, $\tau$ ``bandwidth``, $\eta$ ``step_size``. The loss of the layer is
$F=\tfrac12\sum_i\lVert M_i-Y_i\rVert_F^2$ (a sum), that of the classifier the mean cross-entropy.
"""

import functools
import math
import operator
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from shoal import inits, losses
from shoal._typing import Any, Array, Callable, Float, PRNGKeyArray, Scalar
from shoal.diagnostics.layers import attention_entropy
from shoal.errors import InputError
from shoal.lab.paper import Paper
from shoal.lab.setting import Count, Data, Names, NonNegative, Positive, Setting, Traced, Whole
from shoal.lab.setup import WEIGHTS, Setup, key_of
from shoal.linalg import norm_fro, norm_op, numerical_rank, sigma_min
from shoal.methods import BATCH, STOCHASTIC
from shoal.models import Model, predict
from shoal.papers.song2024 import bounds, classifier, data, layer, stack
from shoal.problems import Problem
from shoal.training import spacing

KernelName = Literal["softmax", "gaussian", "normalised_gaussian", "mean_gaussian", "exponential"]
if TYPE_CHECKING:  # complete() fills them in, so that methods need not ask for None
    from typing import Any as AutoCount
    from typing import Any as AutoMethod
else:
    AutoCount, AutoMethod = Count | None, Literal["gd", "sgd", "adam"] | None
JUST_BELOW = 1 - 4e-9
"""Safety factor of a largest step against rounding."""
TRAPS = ("trap", "near_trap")


class Song(Setting):
    """Softmax against Gaussian attention: one layer, or a small Transformer."""

    model: Literal["layer", "stack", "classifier"] = (
        "layer"  # The theory's layer, several of them, or the experiments' model.
    )
    # data
    problem: Literal[
        "gaussian",
        "trap",
        "digits",
        "imdb",
        "rotten_tomatoes",
        "pathfinder",
        "mnist",
        "fashion_mnist",
        "next_byte",
        "reverse",
        "sort",
    ] = "gaussian"  # Where the tokens come from; the layer sees real data in frozen embeddings.
    num_samples: AutoCount = None  # Number of samples; auto: 4 (layer) or 2000 (classifier).
    num_tokens: AutoCount = None  # Tokens of a sample; auto: 4, or what the real data have.
    dim: AutoCount = None  # Numbers of a token; auto: 24 (layer) or what the real data have.
    test_samples: Data[Whole | None] = None  # Held-out samples; auto: 500 for the classifier.
    tokens: Data[Literal["raw", "scaled", "unit", "identity"]] = (
        "raw"  # Standard Gaussian, over sqrt(dim), of norm 1, or unit vectors (free queries).
    )
    labels: Data[Literal["gaussian", "teacher", "query", "mixture", "near"]] = (
        "gaussian"  # Noise, a teacher, one that differs in W_Q only, mixed values, or own outputs.
    )
    near_share: Positive = 1.0  # How far near labels are, over how far theorem 3 certifies.
    teacher_kernel: Data[KernelName | None] = None  # Kernel of the teacher; auto: the student's.
    label_scale: NonNegative = 1.0  # Root mean square of gaussian and teacher labels.
    row_sum: Positive = 1.0  # Sum of the weights that mix the values, for labels=mixture.
    classes: str = "3,8"  # Two classes of digits and pictures; pictures also take all ten: all.
    shuffled: Data[bool] = False  # Shuffle the training classes, so that nothing can be learnt.
    folder: Data[str] = ""  # Where the IDX files of mnist and fashion_mnist lie; auto: searched.
    vocabulary: Whole = 0  # Words of reviews (0: bytes), or symbols of reverse and sort (0: 10).
    difficulty: Data[Literal["trivial", "easy", "medium", "hard"]] = (
        "easy"  # Pathfinder with 3, 6, 9 or 14 dashes. [summary]
    )
    patch: Count = 4  # Pictures: side of a token in pixels; the paper's Pathfinder has 1.
    # model
    kernel: KernelName = "softmax"  # How scores become attention weights. [summary]
    bandwidth: Positive | None = None  # tau of Gaussian kernels; auto: sqrt(key width).
    num_heads: AutoCount = None  # Heads of a layer; auto: 1 (layer) or 2 (classifier). [summary]
    key_dim: Count = 8  # Width of queries and keys, for the layer.
    value_dim: Count = 2  # Width of values, for the layer; below out_dim W_O loses rank.
    out_dim: Count = 1  # Outputs for each token, for the layer.
    init: Data[Literal["gaussian", "tied", "identity", "positive", "trap", "near_trap"]] = (
        "gaussian"  # tied: W_K = W_Q; identity: W_O = 1; positive: also W_V > 0; or the trap.
    )
    score_scale: NonNegative = 1.0  # Scale of W_Q and W_K, in units of 1 / sqrt(dim).
    value_scale: NonNegative = 1.0  # Scale of the layer's W_V likewise; 0 starts at output zero.
    output_scale: Positive = 1.0  # Scale of the layer's W_O, in units of 1 / sqrt(value_dim).
    # classifier
    num_layers: Count = 2  # Layers of the classifier [summary] or of the stack.
    width: Count = 64  # Width of the classifier. [summary]
    hidden: Count = 128  # Hidden units of its feed-forward parts. [summary]
    positions: Count = 1024  # Length of its table of positions.
    embedding_scale: Positive = 0.02  # Initial scale of tokens and positions, as in Skyformer.
    places: Data[Literal["random", "sinusoidal"]] = "random"  # The initial table of positions.
    residual: Literal["both", "none"] = "both"  # Residual connections of classifier and stack.
    norm: bool = True  # Layer norm before each part of the classifier.
    # training
    method: AutoMethod = None  # Training rule; auto: gd, classifier adam.
    train: Names = (
        "auto"  # Blocks that are trained; auto: all but the layer's W_O; W_Q where labels are near.
    )
    step_size: Positive | None = (
        None  # Step size; auto: by the tangent kernel; classifier 1e-3 (sgd 0.1).
    )
    num_steps: Traced[AutoCount] = None  # Training steps; auto: 20000, classifier 1000.
    every: AutoCount = None  # Record every this many steps; auto: 1 up to 2000 steps.

    default_probes: ClassVar[tuple[str, ...]] = (
        "movement", "distance", "gradient_norm", "lambda_B", "rank_B", "lambda_A", "row_sum",
        "query_sigma", "train_accuracy", "test_risk", "test_accuracy",
    )  # fmt: skip
    probe_sentences: ClassVar[dict[str, str]] = {
        "lambda_B": "Smallest singular value of the features B = [S_1 X, ..., S_H X].",
        "rank_B": "Rank of the features B.",
        "lambda_A": "Smallest singular value of A, the derivative of all outputs by W_V.",
        "rank_A": "Rank of A.",
        "row_sum": "Mean, smallest and largest sum of a row of attention weights.",
        "attention": "Attention weights of the first head.",
        "attention_entropy": "Mean entropy of attention rows over log n: 1 uniform, 0 one-hot.",
        "reach_floor": "Lowest risk that any weights of the kernel's range reach with the values.",
        "query_sigma": "Smallest singular value of d output / d query over all rows (one head).",
        "train_accuracy": "Share of training samples that are classified correctly.",
        "test_accuracy": "Share of held-out samples that are classified correctly.",
    }

    def complete(self) -> Self:
        """Fill in what follows from other settings, and refuse what does not fit together."""
        is_layer = self.model != "classifier"
        if self.problem == "trap":
            sizes = {"num_samples": 1, "num_tokens": 4, "dim": 4}
        elif self.problem in data.WITH_CLASSES:
            sizes = {"num_samples": 4 if is_layer else 2000} | data.sizes_of(self)
            if is_layer and sizes["num_tokens"] == 256:
                sizes |= {"num_tokens": 16, "dim": 64}
        else:
            dim = (self.num_tokens or 4) if self.tokens == "identity" else 24
            sizes = {"num_samples": 4, "num_tokens": 4, "dim": dim}
        steps = self.num_steps or (20000 if is_layer else 1000)
        auto: dict[str, Any] = sizes | {
            "num_steps": steps,
            "test_samples": 0 if is_layer else 500,
            "num_heads": 1 if is_layer else 2,
            "method": "gd" if is_layer else "adam",
            "every": spacing(steps, 200 if is_layer else 20) if steps > 2000 or not is_layer else 1,
        }
        missing = {k: v for k, v in auto.items() if getattr(self, k) is None}
        if self.train == "auto":
            blocks = "W_Q" if self.labels == "near" else "W_Q,W_K,W_V"
            missing["train"] = blocks if is_layer else "all"
        if self.init in TRAPS:
            missing |= {"key_dim": 1, "value_dim": 1, "out_dim": 1}
        whole = self.replace(**missing)
        whole._require_fit()
        return whole

    def _require_fit(self) -> None:
        deep, n, dim, H = self.model == "classifier", self.num_tokens, self.dim, self.num_heads
        refused = {
            f"model=classifier needs a problem with classes, not {self.problem}: "
            f"{', '.join(data.WITH_CLASSES)}.": deep and self.problem not in data.WITH_CLASSES,
            f"problem={self.problem} has {data.num_classes(self)} classes; set model=classifier.":
                not deep and data.num_classes(self) > 2,
            f"problem={self.problem} needs an even number of tokens, not {n}.":
                self.problem in data.SEQUENCES and n % 2,
            f"vocabulary={self.vocabulary} is for reviews, reverse and sort, not {self.problem}.":
                self.vocabulary and self.problem not in (*data.TEXTS, *data.SEQUENCES),
            f"batch_size={self.batch_size}, but method=gd sees all samples; use sgd or adam.":
                self.method not in STOCHASTIC and self.batch_size is not None,
            f"num_tokens={n}, but the table of positions has {self.positions} rows; set "
            f"positions={n} or use fewer tokens.": deep and n > self.positions,
            f"num_heads={H} does not divide width={self.width}.": deep and self.width % H,
            f"init={self.init} belongs to the layer; leave it out.":
                deep and self.init not in ("gaussian", "tied"),
            f"init={self.init} has dim=4 and one head, not dim={dim}, {H} heads.":
                self.init in TRAPS and (dim, H) != (4, 1),
            f"init={self.init} needs value_dim=out_dim, not {self.value_dim}, {self.out_dim}.":
                self.init in ("identity", "positive") and self.value_dim != self.out_dim,
            f"init={self.init} belongs to model=layer; leave it out.":
                self.model == "stack" and self.init not in ("gaussian", "tied"),
            f"labels={self.labels} belongs to model=layer; use gaussian or teacher.":
                self.model == "stack" and self.labels not in ("gaussian", "teacher"),
            f"labels=near needs problem=gaussian and one head, not {self.problem}, {H} heads.":
                self.labels == "near" and (deep or self.problem != "gaussian" or H != 1),
            f"near_share={self.near_share}, but labels={self.labels}; use labels=near.":
                self.near_share != 1.0 and self.labels != "near",
            f"tokens=identity needs dim=num_tokens, not dim={dim}, num_tokens={n}.":
                self.tokens == "identity" and self.problem == "gaussian" and dim != n,
        }  # fmt: skip
        for message in (text for text, wrong in refused.items() if wrong):
            raise InputError(message)

    def reads_files(self) -> bool:
        """Digits come from a library, reviews and pictures from files."""
        return self.problem in data.WITH_CLASSES

    def target(self) -> str:
        """The layer has one row of targets per token, the classifier one class number or a few."""
        return "Y" if self.model != "classifier" or data.answers(self) else "y"

    def check(self, problem: Problem) -> None:
        """Refuse data from outside that the classifier cannot take."""
        if self.model == "classifier":
            data.check(self, problem)

    @property
    def has_vocabulary(self) -> bool:
        """Whether tokens are numbers of a vocabulary."""
        numbers = (*data.TEXTS, *data.SEQUENCES, "next_byte")
        return self.problem in numbers or (self.problem == "pathfinder" and self.patch == 1)

    @property
    def form(self) -> layer.Form:
        """Kernel and bandwidth."""
        width = self.width // self.num_heads if self.model == "classifier" else self.key_dim
        tau = math.sqrt(width) if self.bandwidth is None else self.bandwidth
        return layer.Form(layer.KERNELS[self.kernel], tau)

    @property
    def design(self) -> classifier.Design:
        """How the classifier is built."""
        return classifier.Design(
            self.form, self.has_vocabulary, residual=self.residual == "both", norm=self.norm,
            causal=self.problem == "next_byte", answers=data.answers(self),
        )  # fmt: skip

    @property
    def loss(self) -> Any:  # type: ignore[override]
        """Half the sum of squares for the layer, mean cross-entropy for the classifier."""
        return losses.cross_entropy if self.model == "classifier" else losses.half_sum_of_squares

    def params(self) -> Any:
        """Shapes of the weights."""
        if self.model == "classifier":
            return classifier.shapes(
                rows=data.token_kinds(self) if self.has_vocabulary else self.dim,
                positions=self.positions, num_layers=self.num_layers, num_heads=self.num_heads,
                width=self.width, hidden=self.hidden, classes=data.num_classes(self),
            )  # fmt: skip
        H, D, k, v, p = self.num_heads, self.dim, self.key_dim, self.value_dim, self.out_dim
        shapes: Any = ((H, D, k), (H, D, k), (H, D, v), (H, v, p))
        if self.model == "stack":
            L = self.num_layers
            deep: Any = (*((L, *s) for s in shapes[:3]), (L - 1, H, v, D), shapes[3])
            return stack.Weights(*deep)
        return layer.Weights(*shapes)

    def apply(self, params: Any, x: Any) -> Any:
        """A row for each token (layer), or a score for each class (and answer)."""
        if self.model == "layer":
            return layer.outputs(params, x, self.form)
        if self.model == "stack":
            return stack.outputs(params, x, self.form, float(self.residual == "both"))
        return classifier.class_scores(params, x, self.design)

    def network(self) -> Model:
        """The model; the classifier takes as many sequences per batch as fit into memory."""
        if self.model == "layer":
            squares, alone = layer.fused_squares(self.form)
            return super().network()._replace(fused_squares=squares, squares_alone=alone)
        if self.model == "stack":
            return super().network()
        most = max(1, int(2**24 / self._floats_per_sequence()))
        return Model(self.spec(), self.apply, batch_size=most)

    def _floats_per_sequence(self) -> float:
        """Numbers that a gradient of the classifier holds for one sequence."""
        n = self.num_tokens
        hidden = n * (14.0 * self.width + 3.0 * self.hidden)
        return self.num_layers * (3.0 * self.num_heads * n * n + hidden)

    def floats_per_step(self) -> float:
        """Numbers that a training step of one seed holds, roughly."""
        n = self.num_tokens
        if self.model != "classifier":
            row = self.num_heads * (3 * n + 3 * self.key_dim + self.out_dim) + self.dim
            depth = self.num_layers if self.model == "stack" else 1
            return 2.0 * self.num_samples * n * row * depth
        batch = max(self.batch_size or BATCH, self.network().batch_size or 1)
        return batch * self._floats_per_sequence()

    def weights(self, key: PRNGKeyArray) -> Any:
        """Gaussian weights, changed as ``init`` says, or the trap."""
        if self.init in TRAPS:
            return data.trap_weights(key if self.init == "near_trap" else None)
        spec = self.spec()
        if self.model == "classifier":
            columns = math.isqrt(self.num_tokens) if data.side_of(self) else 0
            waves = self.places == "sinusoidal"
            places = classifier.sinusoidal(spec.P, columns) if waves else None
            scales = {"score_scale": self.score_scale, "embedding_scale": self.embedding_scale}
            drawn: Any = classifier.initial(key, spec, places=places, **scales)
        else:
            score, value = (s / self.dim**0.5 for s in (self.score_scale, self.value_scale))
            factors = (score, score, value, self.output_scale / self.value_dim**0.5)
            blocks = layer.Weights(spec.W_Q, spec.W_K, spec.W_V, spec.W_O)
            drawn = layer.Weights(*map(operator.mul, factors, inits.ntk(key, blocks)))
        if self.model == "stack":
            W_I = factors[3] * inits.ntk(jax.random.fold_in(key, 1), spec.W_I)
            drawn = stack.Weights(drawn.W_Q, drawn.W_K, drawn.W_V, W_I, drawn.W_O)
        if self.init == "tied":
            return drawn._replace(W_K=drawn.W_Q)
        if self.init in ("identity", "positive"):
            drawn = drawn._replace(W_O=jnp.broadcast_to(jnp.eye(self.out_dim), drawn.W_O.shape))
        return drawn._replace(W_V=jnp.abs(drawn.W_V)) if self.init == "positive" else drawn

    def data(self, key: PRNGKeyArray) -> Any:
        """Make the data that training sees."""
        if self.problem == "trap":
            return data.trap()
        if self.problem == "gaussian":
            own = functools.partial(self.weights, key_of(self.data_seed, WEIGHTS))
            return data.synthetic(self, key, own)
        return data.labelled(self)[0] if self.model == "classifier" else data.embedded(self, key)

    def test_data(self, key: PRNGKeyArray) -> Any:  # noqa: ARG002
        """Held-out data of the classifier."""
        wanted = self.model == "classifier" and self.test_samples
        return data.labelled(self)[1] if wanted else None

    def default_step(self, setup: Setup) -> Scalar | None:
        r"""The step where none is given.

        Classifier: 1e-3 for Adam, 0.1 otherwise. Layer: None, the tangent kernel decides, if values
        move. If only queries or keys move, that kernel may vanish where attention saturates, and a
        step made for it would fling queries away: then $1/L$ with the smoothness of theorem 3.
        """
        if self.model == "classifier":
            return 1e-3 if self.method == "adam" else 0.1
        if self.model == "stack":
            return None
        if set(setup.trained) <= {"W_Q", "W_K"}:
            return JUST_BELOW / bounds.smoothness(setup)
        if setup.kernel() is None:  # too many outputs: the part of the values alone
            A = layer.value_matrix(setup.params0, setup.inputs, self.form)
            return 0.5 / norm_op(A) ** 2
        return None

    def output_size(self, setup: Setup) -> Scalar:
        """Size of the numbers whose sum is the output."""
        if self.model == "stack":
            return super().output_size(setup)
        A = layer.value_matrix(setup.params0, setup.inputs, self.form)
        return norm_op(A) * norm_fro(setup.params0.W_V) + norm_fro(setup.targets)

    def floor(self, setup: Setup) -> Callable[[Any], Scalar] | None:
        """A lower bound of the risk that no training of the moving blocks can break.

        If only values move: the least squares floor for the attention as it is. If only queries or
        keys move: the nearest point that weights of this kernel can mix from the values. Else zero.
        """
        if self.model == "classifier":
            return None
        if self.model == "stack":
            return lambda params: 0.0 * jnp.sum(params.W_O)
        moving = set(setup.trained)
        if moving == {"W_V"}:
            return lambda params: bounds.value_numbers(setup.replace(params0=params))["F_star"]
        return self.reach_floor(setup) if moving <= {"W_Q", "W_K"} else _zero

    def reach_floor(self, setup: Setup) -> Callable[[Any], Scalar]:
        """Lowest risk that attention weights of this kernel's range reach with the values."""
        kernel = self.form.kernel
        if kernel.normalised:
            return hull_floor(setup)
        box = kernel.largest(self.num_tokens)
        return _zero if box is None else hull_floor(setup, box)  # None: weights of any size

    def probes(self, setup: Setup) -> dict[str, Any]:
        """Features, attention and floors of the layer; accuracies of the classifier."""
        if self.model == "stack":
            return _stack_probes(setup)
        return _layer_probes(setup) if self.model == "layer" else _accuracies(setup)


def _zero(params: layer.Weights) -> Float[Array, ""]:
    return 0.0 * jnp.sum(params.W_O)


def hull_floor(setup: Setup, box: float | None = None) -> Callable[[Any], Float[Array, ""]]:
    """Lowest risk of weights that sum to one, or lie in [0, box], as a function of parameters."""

    def lowest(params: layer.Weights) -> Float[Array, ""]:
        U = jax.vmap(lambda x: layer.values(params, x))(setup.inputs)
        rows = jax.vmap(lambda u, y: layer.reach_floor(u, y, box=box))
        return jnp.sum(rows(U, setup.targets))

    return lowest


def _accuracies(setup: Setup) -> dict[str, Any]:
    def on(part: Problem) -> Callable[[Any], Array]:
        return lambda params: losses.accuracy(predict(setup.network, params, part.inputs), part.y)

    held = {} if setup.held_out is None else {"test_accuracy": on(setup.held_out)}
    return {"train_accuracy": on(setup.problem)} | held


def _layer_probes(setup: Setup) -> dict[str, Any]:
    X, setting, form = setup.inputs, setup.setting, setup.setting.form
    A = functools.partial(layer.value_matrix, X=X, form=form)
    B = functools.partial(layer.feature_matrix, X=X, form=form)
    heads = functools.partial(layer.attention, form=form)

    def row_sums(params: layer.Weights) -> dict[str, Array]:
        sums = jnp.sum(jax.vmap(lambda x: heads(params, x))(X), axis=-1)
        return {"mean": jnp.mean(sums), "min": jnp.min(sums), "max": jnp.max(sums)}

    found: dict[str, Any] = {
        "lambda_B": lambda params: sigma_min(B(params)),
        "rank_B": lambda params: numerical_rank(B(params), bounds.ZERO),
        "lambda_A": lambda params: sigma_min(A(params)),
        "rank_A": lambda params: numerical_rank(A(params), bounds.ZERO),
        "row_sum": row_sums,
        "attention": lambda params: jax.vmap(lambda x: heads(params, x)[0])(X),
        "reach_floor": setting.reach_floor(setup),
    }
    if form.kernel.normalised:
        found["attention_entropy"] = attention_entropy(heads, X)
    if setting.num_heads == 1 and setting.kernel in bounds.PROVED:
        geometry = bounds.query_geometry(setup)
        found["query_sigma"] = lambda params: bounds.smallest_jacobian(setup, params, geometry)
    return found


def _stack_probes(setup: Setup) -> dict[str, Any]:
    X, setting = setup.inputs, setup.setting
    residual = float(setting.residual == "both")

    def B(params: stack.Weights) -> Float[Array, "R C"]:
        return stack.feature_matrix(params, X, setting.form, residual)

    return {
        "lambda_B": lambda params: sigma_min(B(params)),
        "rank_B": lambda params: numerical_rank(B(params), bounds.ZERO),
    }


PAPER = Paper(
    Song,
    key="song2024",
    title="Unraveling the Gradient Descent Dynamics of Transformers",
    authors="Bingqing Song, Boran Han, Shuai Zhang, Jie Ding, Mingyi Hong",
    year=2024,
    arxiv="2411.07538",
    about="softmax against Gaussian attention, which weights to train, landscapes",
)
