r"""The setting: data, network and start.

Symbols: $N$ is ``num_samples``, $n$ ``num_tokens``, $d$ ``dim``, $d_k$ ``key_dim``, $m$ ``width``,
$c$ ``out_dim``, $L$ ``num_layers``; $s_{qk}, s_v, \dots$ are ``scale_qk``, ``scale_v`` and so on.
The loss is $\tfrac12\sum_i\lVert F_i-Y_i\rVert_F^2$.
"""

from typing import Annotated, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from pydantic import BeforeValidator

from shoal._typing import Any, Array, Float, PRNGKeyArray, Probe
from shoal.diagnostics.kernels import jacobian
from shoal.errors import InputError
from shoal.lab import setting as lab
from shoal.lab.paper import Paper
from shoal.lab.setting import Count, Data, NonNegative, Positive, Seed, Setting, Share, Traced
from shoal.lab.setup import WEIGHTS, Setup, key_of
from shoal.linalg import eigenvalues, norm_fro, sigma_min
from shoal.models import Model, predict
from shoal.papers.qin2025 import blocks, bounds
from shoal.papers.qin2025.blocks import Form, Weights, conditioning
from shoal.papers.qin2025.bounds import Start
from shoal.problems import Problem
from shoal.theory import descent
from shoal.trees import size

DENSE_JACOBIAN = 10**8
"""Numbers in the largest Jacobian that is formed; beyond it only the layer routes count."""

Residual = Annotated[
    Literal["both", "attention", "feed_forward", "none"],
    # version 0.1 wrote the word together
    BeforeValidator(lambda word: "feed_forward" if word == "feedforward" else word),
]


class Qin(Setting):
    """A residual Transformer trained by gradient descent. The paper's own sizes are not known."""

    default_probes = ("distance", "gradient_norm", "pl_ratio", "conditioning", "token_cosine")
    probe_sentences: ClassVar[dict[str, str]] = {
        "conditioning": "Singular values, condition number, ranks and share of the tokens that is "
        "not their mean, of every layer's attention output, all samples stacked.",
        "conditioning_each": "The same for each sequence alone: the worst sequence of every layer.",
        "token_cosine": "Mean cosine between tokens of a sequence after every layer's attention.",
        "routes": "Lower bounds of the smallest singular value of the Jacobian through the last "
        "block's layers, and that singular value.",
        "attention": "Attention weights of every sequence, layer by layer.",
        "local_rate": "Loss ratio of a step near convergence, the largest (1 - step lambda)^2.",
    }

    # data
    problem: Data[Literal["gaussian", "file"]] = "gaussian"  # Source of the data; file: your own.
    num_samples: Count = 4  # Number of sequences.
    num_tokens: Count = 6  # Tokens per sequence.
    dim: Count = 32  # Entries of a token; the layer routes need samples x tokens <= dim.
    token_scale: Positive = 0.5  # Standard deviation of a token's entries.
    token_correlation: Share = 0.0  # Correlation of any two tokens of a sequence, 0 to 1.
    token_condition: Positive | None = None  # Condition number of all tokens; auto: as drawn.
    labels: Data[Literal["gaussian", "teacher", "near"]] = "gaussian"  # Near: near_seed's outputs.
    label_scale: NonNegative = 1.0  # Standard deviation of gaussian labels.
    near_seed: Seed = 0  # Near labels lie beside the outputs of the weights drawn for this seed.
    near_error: Positive | None = None  # How far beside; auto: as far as theorem D certifies.
    # network
    num_layers: Count = 1  # Number of blocks. [summary]
    residual: Residual = "both"  # Residual connections that are present. [summary]
    residual_scale: Literal["one", "depth"] = "one"  # Depth: branches over sqrt(num_layers).
    key_dim: Count = 16  # Entries of a query or key.
    width: Count = 64  # Hidden units of the feed-forward layer.
    out_dim: Count = 2  # Outputs per token, or per sequence.
    activation: Literal["smooth_leaky", "leaky", "relu", "gelu"] = "smooth_leaky"  # Of the units.
    slope: Share = 0.3  # Slope of the leaky activations to the left, 0 to 1.
    score_power: NonNegative = 0.5  # Scores are divided by key_dim to this power.
    output: Literal["tokens", "mean", "whole"] = "tokens"  # Per token, of their mean, or of all.
    causal: bool = False  # A token sees only itself and those before it (decoder).
    norm: bool = False  # Layer norm before each branch.
    # start
    init: Data[Literal["gaussian", "orthogonal"]] = "gaussian"  # Distribution of the weights.
    scale_qk: NonNegative = 1.0  # Scale of W_Q and W_K.
    scale_v: NonNegative = 0.5  # Scale of W_V.
    scale_1: NonNegative = 1.0  # Scale of W_1.
    scale_2: NonNegative = 0.5  # Scale of W_2.
    scale_u: NonNegative = 1.0  # Scale of W_U.
    # training, and what theorem D computes
    num_steps: Traced[Count] = 500  # Number of training steps.
    bounds: Literal["sharp", "basic"] = "sharp"  # Constants of theorems D and D0.
    contraction: Literal["half", "quarter"] = "half"  # The c of D0; quarter: a = 1, b = 1/2.
    route: Literal["best", "layers", "kernel"] = "best"  # Lower bound that theorem D uses.

    # ------------------------------------------------------------------------------------- network

    @property
    @lab.derived
    def form(self) -> Form:
        """The network without its weights."""
        return Form(
            blocks.activation(self.activation, self.slope),
            residual_attention=float(self.residual in ("both", "attention")),
            residual_feed_forward=float(self.residual in ("both", "feed_forward")),
            branch=self.num_layers**-0.5 if self.residual_scale == "depth" else 1.0,
            score=self.key_dim**-self.score_power,
            **{name: getattr(self, name) for name in ("output", "causal", "norm")},
        )

    def params(self) -> Any:
        """Shapes of the weights."""
        L, d, k, m = self.num_layers, self.dim, self.key_dim, self.width
        read = (self.num_tokens * d if self.output == "whole" else d, self.out_dim)
        shapes: Any = ((L, d, k), (L, d, k), (L, d, d), (L, d, m), (L, m, d), read)
        return Weights(*shapes)

    def apply(self, params: Weights, x: Float[Array, "n d"]) -> Float[Array, "..."]:
        """The output for one sequence."""
        return blocks.outputs(params, x, self.form)

    def network(self) -> Model:
        """The model, with squared errors and their gradient in one pass."""
        squares, alone = blocks.fused_squares(self.form)
        return super().network()._replace(fused_squares=squares, squares_alone=alone)

    def weights(self, key: PRNGKeyArray) -> Weights:
        """Gaussian or orthogonal weights, each block with its scale."""
        draw = {"gaussian": blocks.gaussian, "orthogonal": blocks.orthogonal}[self.init]
        scales = [getattr(self, f"scale_{name}") for name in ("qk", "qk", "v", "1", "2", "u")]
        keys, shapes = jax.random.split(key, len(scales)), self.params()
        return Weights(*(draw(*each) for each in zip(keys, shapes, scales, strict=True)))

    def floats_per_step(self) -> float:
        """Numbers that a training step of one seed holds."""
        n, d, m = self.num_tokens, self.dim, self.width
        return 4.0 * self.num_samples * self.num_layers * n * (n + 3 * d + m)

    # ---------------------------------------------------------------------------------------- data

    def complete(self) -> Self:
        """Refuse what does not fit together."""
        if self.labels != "near" and self.near_error is not None:
            msg = f"near_error={self.near_error}, but labels={self.labels}; use labels=near."
            raise InputError(msg)
        rows = self.num_samples * self.num_tokens
        if self.token_condition is not None and (self.token_condition < 1 or rows > self.dim):
            raise InputError(
                f"token_condition={self.token_condition}: expected at least 1, and at most dim="
                f"{self.dim} tokens in all (there are {rows})."
            )
        return self

    def from_file(self) -> Self:
        """The setting of data from a file."""
        return self.replace(problem="file")

    def data(self, key: PRNGKeyArray) -> Problem:
        """Gaussian tokens; labels are random, of a teacher, or beside the outputs of a start."""
        if self.problem == "file":
            raise InputError("problem=file means data of your own: add --data FILE.npz.")
        key_X, key_Y, key_teacher = jax.random.split(key, 3)
        shape = (self.num_samples, self.num_tokens, self.dim)
        X = blocks.tokens(key_X, shape, self.token_scale, self.token_correlation)
        if self.token_condition is not None:
            X = blocks.conditioned(X, self.token_condition)
        if self.labels == "teacher":
            return Problem(X, predict(self.network(), self.weights(key_teacher), X))
        noise = jax.random.normal(key_Y, (len(X), *self.output_shape()), float)
        if self.labels == "gaussian":
            return Problem(X, self.label_scale * noise)
        start = self.weights(key_of(self.near_seed, WEIGHTS))
        F = predict(self.network(), start, X)
        error: Any = self.near_error
        if error is None:
            top, _ = descent.largest_residual(self.ball_at(start, X), self.step_shares)
            error = jnp.where(top > 0, top * (1 - 1e-6), 1e-6 * norm_fro(F))
        return Problem(X, F + error * noise / norm_fro(noise))

    # -------------------------------------------------------------------------- what bounds a run

    @property
    def step_shares(self) -> descent.Split:
        """How theorem D0 bounds the step."""
        return descent.Split() if self.contraction == "half" else descent.Split(1.0, 0.5)

    def has_dense_jacobian(self) -> bool:
        """Whether the Jacobian of all outputs is small enough to be formed."""
        rows = self.num_samples * (self.num_tokens if self.output == "tokens" else 1)
        return rows * self.out_dim * size(self.spec()) <= DENSE_JACOBIAN

    def sigma_jacobian(self, params: Weights, X: Float[Array, "N n d"]) -> Float[Array, ""]:
        r"""$\sigma_p(J)$ of all outputs by SVD; 0, a valid bound, if $J$ is too large to form."""
        if not self.has_dense_jacobian():
            return jnp.zeros(())
        return sigma_min(jacobian(self.network(), X)(params), bounds.ROUNDING)

    def ball_at(
        self, params: Weights, X: Float[Array, "N n d"], start: Start | None = None
    ) -> descent.BallAt:
        """Theorem D's bounds around a start, whose norms may have been measured already."""
        return bounds.ball_at(
            bounds.measure(params, X, self.form) if start is None else start,
            sharp=self.bounds == "sharp",
            sigma_J=0.0 if self.route == "layers" else self.sigma_jacobian(params, X),
            route=self.route,
        )

    # -------------------------------------------------------------------------------------- probes

    def attended(self, params: Weights, X: Float[Array, "N n d"]) -> Float[Array, "L N n d"]:
        """The attention output of every layer."""
        return jax.vmap(lambda x: blocks.layers(params, x, self.form).A, out_axes=1)(X)

    def stacked_conditioning(self, params: Weights, X: Float[Array, "N n d"]) -> dict[str, Array]:
        """Conditioning of every layer's attention output, the matrix of the theorem."""
        A = self.attended(params, X)
        found = jax.lax.map(lambda a: conditioning(a.reshape(-1, a.shape[-1])), A)
        return found | {"centred_share": jax.vmap(blocks.centred_share)(A)}

    def probes(self, setup: Setup) -> dict[str, Probe]:
        """The paper's own probes; `probe_sentences` says what they are."""
        X, kernel = setup.inputs, setup.kernel()

        def each(params: Weights) -> dict[str, Float[Array, " L"]]:
            found = jax.vmap(jax.vmap(conditioning))(self.attended(params, X))
            most = {name: jnp.max(found[name], axis=1) for name in ("sigma_max", "condition")}
            return most | {name: jnp.min(found[name], axis=1) for name in ("sigma_min", "rank")}

        def attention(params: Weights) -> Float[Array, "N L n n"]:
            return jax.vmap(lambda x: blocks.layers(params, x, self.form).S)(X)

        def routes(params: Weights) -> dict[str, Float[Array, ""]]:
            found = bounds.routes(bounds.measure(params, X, self.form))
            sigma = {"together": found.together(), "sigma_min": self.sigma_jacobian(params, X)}
            return found._asdict() | sigma

        def local_rate(params: Weights) -> Float[Array, ""]:
            ends = eigenvalues(kernel(params))[jnp.array([0, -1])]
            return jnp.max((1 - setup.step_size * jnp.maximum(ends, 0.0)) ** 2)

        found: dict[str, Probe] = {
            "conditioning": lambda params: self.stacked_conditioning(params, X),
            "conditioning_each": each,
            "token_cosine": lambda params: jax.vmap(blocks.token_cosine)(self.attended(params, X)),
            "routes": routes,
            "attention": attention,
        }
        has_rate = kernel is not None and setup.step_size is not None
        return found | ({"local_rate": local_rate} if has_rate else {})


PAPER = Paper(
    Qin, key="qin2025", authors="Zhen Qin, Jinxin Zhou, Jiachen Jiang, Zhihui Zhu", year=2025,
    title="On the Convergence of Gradient Descent on Learning Transformers with Residual "
    "Connections", arxiv="2506.05249", about="how residuals cure badly conditioned attention",
)  # fmt: skip
