"""The setting of arda2026: what its words mean, and the set of the projection."""

from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from shoal.certificates import Inequality
from shoal.diagnostics.kernels import LARGEST
from shoal.errors import InputError
from shoal.lab.paper import Paper
from shoal.lab.setting import (
    Count,
    Data,
    NonNegative,
    Positive,
    Setting,
    Static,
    Three,
    Traced,
    Whole,
)
from shoal.linalg import norm_fro
from shoal.losses import mean_of_squares
from shoal.methods import Method, decaying, projected
from shoal.models import Model
from shoal.papers.arda2026 import data, heads, variants
from shoal.papers.arda2026.heads import ACTIVATIONS, Activation
from shoal.papers.arda2026.probes import SENTENCES, own_probes
from shoal.problems import Problem

INFINITE = (float("inf"),) * 3
Form = Literal["heads", "recurrent", "causal", "deep"]
Source = Data[Literal["ball", "autoregressive", "file"]]
Labels = Literal["teacher", "dual", "gaussian"]
Sigma = Literal["tanh", "logistic", "sin", "erf"]
Point = Literal["teacher", "fit"]


class Arda(Setting):
    """Softmax heads with one neuron each, trained by projected gradient descent."""

    averages: ClassVar[bool] = True
    queries: ClassVar[bool] = True
    probe_sentences: ClassVar[dict[str, str]] = SENTENCES
    default_probes: ClassVar[tuple[str, ...]] = (
        "scaled_movement", "gradient_norm", "linearisation", "jacobian", "boundary",
        "attention_entropy", "covariance", "test_risk",
    )  # fmt: skip
    loss = staticmethod(mean_of_squares)

    model: Form = "heads"  # The model of the theory, or one of three variants. [paper]
    # data
    problem: Source = "ball"  # Random tokens in a ball, windows of a series, or a file. [paper]
    num_samples: Count = 100  # Number of samples; 5000 in the paper's experiments.
    num_tokens: Count | None = None  # Tokens per sequence; auto: 16, or lag + 1. [paper]
    dim: Count | None = None  # Entries per token; auto: 8, or 1 + 2 channels. [paper]
    token_norm: Positive = 1.0  # Bound of the norms of tokens in the ball. [paper]
    query: Literal["last", "fixed"] = "last"  # The last token, or one unit vector. [paper]
    labels: Labels = "teacher"  # Made by the paper's teacher, one of known norm, or chance. [paper]
    label_scale: NonNegative = 1.0  # Standard deviation of gaussian labels.
    teacher_norm: Three = (3.0, 3.0, 3.0)  # Teacher's norms nu for c, U and W (nominal). [paper]
    num_anchors: Count = 1  # Inputs at which the paper's teacher looks; not stated in the paper.
    anchor_tokens: Count | None = None  # Tokens of these inputs; auto: num_tokens. [paper]
    pool: Data[Count] = 8192  # Heads over which the paper's teacher averages. [paper]
    lag: Data[Count] = 4  # Lag L of the series X_t = 0.9 X_(t-L) + noise.
    channels: Data[Whole] = 8  # Pairs of position channels beside a series. [paper]
    clip: Data[bool] = False  # Scale tokens of a series to norm 1 at most, as the theory asks.
    test_samples: Data[Whole | None] = None  # Held-out samples; auto: 1000 for a series, else 0.
    # model
    num_heads: Count = 64  # Heads (units of the recurrent network), an even number.
    activation: Sigma = "tanh"  # Activation of the neurons. [paper]
    output_scale: Static[Positive] = 1.0  # Divides the heads' output; sqrt(num_heads): mean field.
    num_layers: Count = 2  # Layers of the deep variant, at least 2.
    recurrence: NonNegative = 1.0  # Size of the initial recurrent weights.
    # training
    method: Literal["gd", "sgd"] = "gd"  # Training rule. [paper]
    radius: Three | None = (3.0, 3.0, 3.0)  # For c, U, W, over sqrt(num_heads); or none. [paper]
    decay: Static[NonNegative] = 0.0  # Weight decay. [paper]
    decay_to: Literal["start", "zero"] = "start"  # Where weight decay pulls the weights.
    step_size: Positive | None = None  # Step size; auto: 1 / sqrt(num_steps). [paper]
    batch_size: Count | None = None  # Samples in a step of sgd; auto: 1. [paper]
    num_steps: Traced[Count] = 400  # Number of training steps; 4000 or 2000 in the paper.
    # what certificates assume, and how much memory a step may take
    token_bound: Positive = 1.0  # Bound of the tokens' norms in certificates. [paper]
    query_bound: Positive = 1.0  # Bound of the queries' norms in certificates. [paper]
    comparator: Point | None = None  # What theorems compare a run with; auto: teacher, else fit.
    memory: Static[Positive | None] = None  # GiB for attention in a step; auto: the cache's size.

    def complete(self) -> Self:
        """Fill in what follows from other settings, and refuse what does not fit together."""
        series = self.problem == "autoregressive"
        taught = self.problem == "ball" and self.labels != "gaussian"
        auto = {
            "num_tokens": self.lag + 1 if series else 16,
            "dim": 1 + 2 * self.channels if series else 8,
            "anchor_tokens": self.num_tokens or 16,
            "test_samples": 1000 if series else 0,
            "batch_size": 1 if self.method == "sgd" else None,
            "comparator": "teacher" if taught else "fit",
        }
        done = self.replace(**{k: v for k, v in auto.items() if getattr(self, k) is None})
        m, lag = done.num_heads, done.lag
        refused = {
            "comparator=teacher, but no teacher made these labels; use comparator=fit.":
                done.comparator == "teacher" and not taught,
            f"num_heads={m} is odd, but heads come in twins of opposite signs; try {m + 1}.":
                m % 2,
            f"batch_size={done.batch_size}, but method=gd sees all samples; use method=sgd.":
                done.method == "gd" and done.batch_size is not None,
            "model=causal predicts the next value of a series; set problem=autoregressive.":
                done.model == "causal" and done.problem == "ball",
            "model=deep needs num_layers of at least 2; one layer is model=heads.":
                done.model == "deep" and done.num_layers < 2,
            f"lag={lag}, but a window has num_tokens={done.num_tokens}; the lag must be smaller: "
            f"try num_tokens={lag + 1}.": series and lag >= (done.num_tokens or 0),
        }  # fmt: skip
        for message in (text for text, wrong in refused.items() if wrong):
            raise InputError(message)
        return done

    def from_file(self) -> Self:
        """Nobody knows the teacher of data from a file."""
        return self.replace(problem="file", comparator=None)

    def check(self, problem: Problem) -> None:
        """Refuse targets with more outputs per token than the causal form has."""
        if self.model == "causal" and problem.y.shape[2] != 1:
            raise InputError(f"Y has {problem.y.shape[2]} outputs per token; model=causal has one.")

    @property
    def sigma(self) -> Activation:
        """The activation with its bounds."""
        return ACTIVATIONS[self.activation]

    @property
    def limits(self) -> tuple[Any, Any, Any]:
        """The radii for c, U and W; infinite without a projection."""
        return self.radius or INFINITE

    @property
    def block(self) -> int:
        """Attention weights to hold at a time; about eight arrays of that size are held."""
        return heads.BLOCK if self.memory is None else max(1, int(self.memory * 2**30 / 64))

    def data(self, key: Any) -> Problem:
        """Sequences in a ball, or windows of a series."""
        if self.problem == "file":
            raise InputError("problem=file means data of your own: add --data FILE.npz.")
        if self.problem == "autoregressive":
            return data.autoregressive(self, jax.random.fold_in(key, 3), self.num_samples)
        return data.sequences(self, jax.random.fold_in(key, 2))

    def test_data(self, key: Any) -> Problem | None:
        """More windows of the series, or more tokens labelled by the same teacher."""
        if self.problem == "file" or not self.test_samples:
            return None
        if self.problem == "ball":
            return data.sequences(self, jax.random.fold_in(key, 2), self.test_samples)
        return data.autoregressive(self, jax.random.fold_in(key, 4), self.test_samples)

    def network(self) -> Model:
        """The heads, or a variant."""
        sizes = self.num_heads, self.dim or 8, self.sigma
        if self.model == "deep":
            return variants.deep(self.num_layers, *sizes)
        if self.model == "heads":
            return heads.heads(*sizes, block=self.block, scale=self.output_scale)
        return (variants.recurrent if self.model == "recurrent" else variants.causal)(*sizes)

    def weights(self, key: Any) -> Any:
        """Twins of opposite signs."""
        spec = self.network().spec
        if self.model == "deep":
            return variants.deep_twins(key, spec)
        drawn = heads.twins(key, spec)
        return drawn._replace(w=self.recurrence * drawn.w) if self.model == "recurrent" else drawn

    def floats_per_step(self) -> float:
        """Numbers that a step of one seed holds."""
        n, T, m, d = self.num_samples, self.num_tokens or 16, self.num_heads, self.dim or 8
        held = 2.0 * n * T * d
        if self.model == "heads":
            return held + 8.0 * min(self.block, n * T * m) + 4.0 * m * d * d
        each = {"recurrent": 4.0 * T * m, "causal": 4.0 * m * T * T}
        each["deep"] = 6.0 * self.num_layers * m * T * (T + d)
        return held + n * each[self.model]

    def rule(self, method: Method) -> Method:
        """Weight decay, and the projection after every step."""
        if self.decay > 0:
            method = decaying(method, self.decay, to_start=self.decay_to == "start")
        if self.radius is None:
            return method
        c, U, W = (r / self.num_heads**0.5 for r in self.radius)
        inner = dict.fromkeys(("inner_W", "inner_U", "inner_V"), float("inf"))
        return projected(method, inner | {"c": c, "U": U, "W": W, "u": U, "w": W})

    def default_step(self, setup: Any) -> Any:  # noqa: ARG002
        """The paper's step, one over the root of the number of steps."""
        return 1 / jnp.sqrt(self.num_steps)

    def probes(self, setup: Any) -> dict[str, Any]:
        """The paper's own probes."""
        return own_probes(setup)

    def block_kernels(self, setup: Any) -> Any:
        """Closed forms for the heads; automatic differentiation for variants."""
        if self.model != "heads" or setup.targets.size > LARGEST:
            return super().block_kernels(setup)
        kernels = heads.tangent_kernels(setup.inputs, self.sigma, block=self.block)
        return lambda params: {k: K / self.output_scale**2 for k, K in kernels(params).items()}

    def output_size(self, setup: Any) -> Any:
        """An output is a sum of m terms of size 1 / sqrt(m)."""
        count = setup.targets.size
        return (count * self.num_heads) ** 0.5 / self.output_scale + norm_fro(setup.targets)

    def kernel_hypotheses(self, run: Any) -> dict[str, Inequality]:
        """The tangent kernel predicts a run whose steps are not cut short by the projection."""
        return {
            f"no step is cut: movement of {name} within the radius": Inequality(
                jnp.max(run.probes[f"scaled_movement_{name}"]), limit * (1 - 1e-6)
            )
            for name, limit in zip("cUW", self.radius or (), strict=False)
        }


PAPER = Paper(
    Arda,
    key="arda2026",
    title="Finite-Time Analysis of Gradient Descent for Shallow Transformers",
    authors="Enes Arda, Semih Cayci, Atilla Eryilmaz",
    year=2026,
    arxiv="2601.16514",
    about="projected GD, log width, independence of sequence length, IndRNN",
)
