r"""The encoder-only shallow Transformer of Wu et al. (2023): setting, network and tangent kernel.

One head, no bias, no residual, no normalisation, scalar output. For a sequence $X$ with rows $x_i$:

$$ b_i = \mathrm{softmax}(\tau_0 X W_K^\top W_Q x_i),\quad u_i = X^\top b_i,\quad
   F = \tau_1\kappa\sum_i\mathrm{relu}(W_V u_i),\quad f = F^\top w_O. $$

The loss is $\tfrac12\sum_n(f_n-y_n)^2$. Symbols: $d_m$ is ``width``, $d_s$ ``num_tokens``, $\gamma$
``step_size``, $\tau_0 = d_m^{-p}$ ``Scales.score`` with $p$ our ``score_exponent``, $\tau_1$
``Scales.output``, and $\kappa$ ``Scales.pool`` ($1/d_s$ for mean pooling, 1 for the sum).

The paper's full text was not available to us. What is marked [summary] comes from its abstract and
public summaries; its dimensions are not known, so those defaults are ours.
"""

from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from shoal import inits, problems
from shoal._typing import Array, Callable, Float, Params, PRNGKeyArray, Scalar
from shoal.attention import softmax, softmax_pullback
from shoal.diagnostics import layers
from shoal.diagnostics.kernels import Kernels
from shoal.errors import InputError
from shoal.files import read_idx_images
from shoal.lab import setting as lab
from shoal.lab.paper import Paper, WidthPlan
from shoal.lab.setting import Count, Data, NonNegative, Positive, Setting, Share, Static, Traced
from shoal.lab.setup import Setup
from shoal.linalg import norm_fro, norm_op
from shoal.models import Model, with_gradient
from shoal.papers.wu2023 import deep
from shoal.papers.wu2023.hidden_units import hidden_rows, hidden_units, hidden_value
from shoal.problems import Problem
from shoal.trees import padded_chunks

HELD = 2**24
"""Numbers in the largest array of hidden units (samples x tokens x width) that a step holds; the
formula holds two such arrays, the C code at most one."""
TILE = 2**20
"""Numbers in the largest array of a tile of the width in a tangent kernel; three are held."""
TEACHER_WIDTH = 64
"""Width of the teacher, a LeCun network of the same form with p = 1/2 (ours)."""
HIDDEN = ("W_Q", "W_K", "W_V")
Source = Literal["gaussian", "digits", "idx"]
Init = Literal["lecun", "he", "ntk", "xavier", "orthogonal"]
Shape = Literal["plain", "twins", "equal_means", "doubled_tokens"]


class Weights(NamedTuple):
    """The parameters, in the paper's letters."""

    W_Q: Float[Array, "m d"]
    W_K: Float[Array, "m d"]
    W_V: Float[Array, "m d"]
    w_O: Float[Array, " m"]


class Scales(NamedTuple):
    """The constants of the model that are not trained."""

    score: Scalar  # tau_0 = width ** -p
    output: Scalar  # tau_1
    pool: Scalar  # kappa


# ------------------------------------------------------------------------------------- the network


def attention(params: Weights, X: Float[Array, "n d"], scales: Scales) -> Float[Array, "n n"]:
    r"""Attention weights $B$, row $i$ for the query token $i$.

    Scores need only the product $W_Q^\top W_K$, of size dim x dim: formed once for all sequences,
    since under ``vmap`` it does not depend on the batch.
    """
    return softmax(scales.score * (X @ (params.W_Q.T @ params.W_K) @ X.T))


def preactivation(params: Weights, X: Float[Array, "n d"], scales: Scales) -> Float[Array, "n m"]:
    """Hidden units before ReLU: attend first, project after."""
    return (attention(params, X, scales) @ X) @ params.W_V.T


def features(params: Weights, X: Float[Array, "n d"], scales: Scales) -> Float[Array, " m"]:
    r"""What the output weights see, $F = \tau_1\kappa\sum_i\mathrm{relu}(W_Vu_i)$."""
    active = jax.nn.relu(preactivation(params, X, scales))
    return scales.output * scales.pool * jnp.sum(active, axis=0)


def fused_squares(
    scales: Scales, held: int = HELD
) -> Callable[[Weights, Float[Array, "N n d"], Float[Array, " N"]], Float[Array, ""]]:
    r"""Sum of squared errors and its gradient by three matrix products over the hidden units.

    ReLU is homogeneous, so of the hidden units only the mask $m_{ik}=1[W_{V,k}\cdot u_i>0]$ is
    needed. With $\lambda=\tau_1\kappa$ and errors $e_n$:

    $$ g_i = \lambda\sum_k m_{ik}w_kW_{V,k},\quad f_n=\sum_ig_i\cdot u_i,\quad
       P_k = \sum_{n,i}m_{ik}e_nu_i, $$

    the gradient is $2e_ng_i$ in $u_i$, $2\lambda w_kP_k$ in $W_{V,k}$ and
    $2\lambda P_k\cdot W_{V,k}$ in $w_k$. That in the scores passes through a dim x dim matrix, like
    the scores themselves. Automatic differentiation would hold and read three arrays of the hidden
    units' size; the formula of ``hidden_units`` holds one, its kernel a piece of one that stays in
    the cache.
    """

    def both(params: Weights, X: Array, y: Array) -> tuple[Array, Weights]:
        size = scales.output * scales.pool
        B = jax.vmap(attention, in_axes=(None, 0, None))(params, X, scales)
        weighted = size * params.w_O[:, None] * params.W_V
        P, e, dG = hidden_units(X, B, params.W_V, weighted, y, held)
        R = scales.score * dG
        gradient = Weights(
            W_Q=params.W_K @ R.T,
            W_K=params.W_Q @ R,
            W_V=2 * size * params.w_O[:, None] * P,
            w_O=2 * size * jnp.sum(P * params.W_V, axis=1),
        )
        return jnp.sum(e**2), gradient

    return with_gradient(both)


def squares_alone(
    scales: Scales, held: int = HELD
) -> Callable[[Weights, Float[Array, "N n d"], Float[Array, " N"]], Float[Array, ""]]:
    """Sum of squared errors by one product over the hidden units."""

    def squares(params: Weights, X: Any, y: Any) -> Float[Array, ""]:
        X, y = jnp.asarray(X), jnp.asarray(y)  # data may be NumPy arrays
        B = jax.vmap(attention, in_axes=(None, 0, None))(params, X, scales)
        size = scales.output * scales.pool
        return jnp.sum(hidden_value(X, B, params.W_V, size * params.w_O, y, held) ** 2)

    return squares


def tangent_kernels(X: Float[Array, "N n d"], scales: Scales, tile: int = TILE) -> Kernels:
    r"""Exact tangent kernel of each block, without a Jacobian.

    With the slopes $m_i = 1[W_Vu_i>0]$, $Z_i = w_O\odot m_i$, $g_i=\tau_1\kappa W_V^\top Z_i$ and
    $M = \sum_i X^\top(\mathrm{diag}\,b_i-b_ib_i^\top)Xg_i\,x_i^\top$ (dim x dim) for each sequence:

    $$ K_O = FF^\top,\quad
       K_V = (\tau_1\kappa)^2\sum_{ij}(Z_i\cdot Z'_j)(u_i\cdot u'_j),\quad
       K_Q = \tau_0^2\langle W_K^\top W_K M, M'\rangle,\quad
       K_K = \tau_0^2\langle M W_Q^\top W_Q, M'\rangle. $$

    Derived for shoal (``docs/theory/wu2023.md``, section 9). relu'(0) = 0, as in automatic
    differentiation. Hidden units are summed tile by tile, each of about ``tile`` numbers, so memory
    does not grow with the width. $K_V$ is either the sum over pairs of tokens, which costs
    $2N^2n^2m$ operations, or the product of the rows $\sum_iZ_iu_i^\top$, which costs
    $2N^2md+2Nnmd$: whichever is less.
    """
    N, n, d = X.shape
    by_pairs = N * n * n < d * (N + n)

    def kernels(params: Weights) -> dict[str, Float[Array, "N N"]]:
        B = jax.vmap(attention, in_axes=(None, 0, None))(params, X, scales)
        U = B @ X
        u = U.reshape(N * n, d)
        units = len(params.w_O)
        most = max(1, tile // (N * max(n, 0 if by_pairs else d)))
        width = -(-units // -(-units // most))  # equal tiles, as few as possible

        def add(total: tuple, units: tuple[Array, Array]) -> tuple[tuple, None]:
            W, w = units  # the last tile is filled with units of weight 0, which add nothing
            if by_pairs:
                H = u @ W.T
                Z = jnp.where(H > 0, w, 0)
                F = jnp.sum(jnp.maximum(H, 0).reshape(N, n, width), axis=1)
                g, values = Z @ W, Z @ Z.T
            else:
                J, F, g = hidden_rows(U, W, w, 2 * tile)
                rows = J.reshape(N, width * d)
                g, values = g.reshape(N * n, d), rows @ rows.T
            return jax.tree.map(jnp.add, total, (g, values, F @ F.T)), None

        square = jnp.zeros((N, N), X.dtype)
        zero = jnp.zeros_like(u), jnp.zeros((N * n, N * n), X.dtype) if by_pairs else square, square
        tiles = padded_chunks(params.W_V, width), padded_chunks(params.w_O, width)
        (g, values, outputs), _ = jax.lax.scan(add, zero, tiles)
        if by_pairs:
            values = jnp.sum((values * (u @ u.T)).reshape(N, n, N, n), axis=(1, 3))

        size = scales.output * scales.pool
        p = softmax_pullback(B, size * g.reshape(U.shape) @ X.transpose(0, 2, 1)) @ X
        M = jnp.einsum("nia,nib->nab", p, X)
        flat = M.reshape(N, d * d)
        through_K = ((params.W_K.T @ params.W_K) @ M).reshape(N, d * d)
        through_Q = (M @ (params.W_Q.T @ params.W_Q)).reshape(N, d * d)
        return {
            "W_Q": scales.score**2 * (through_K @ flat.T),
            "W_K": scales.score**2 * (through_Q @ flat.T),
            "W_V": size**2 * values,
            "w_O": size**2 * outputs,
        }

    return kernels


def conserved_drift(params0: Weights, step_ratios: dict) -> Callable[[Params], dict[str, Array]]:
    r"""How far the invariants of gradient flow have moved.

    The flow with step ratios $r_*$ conserves $r_KW_QW_Q^\top - r_QW_KW_K^\top$ and, for each hidden
    unit, $r_V w_O^2 - r_O\lVert W_V\rVert^2$ (row norms); gradient descent moves them by
    $O(\gamma)$. Returns the Frobenius norm and the Euclidean norm of the change. The first is a
    (width x width) matrix of rank at most 4 dim: with $M=[W_Q, W_K, W_Q^0, W_K^0] = QR$ it is
    $Q(R\,\mathrm{diag}\,R^\top)Q^\top$, so R suffices.
    """
    r = step_ratios

    def per_unit(params: Weights) -> Float[Array, " m"]:
        return r["W_V"] * params.w_O**2 - r["w_O"] * jnp.sum(params.W_V**2, axis=1)

    def probe(params: Weights) -> dict[str, Float[Array, ""]]:
        signs = jnp.array([r["W_K"], -r["W_Q"], -r["W_K"], r["W_Q"]])
        M = jnp.concatenate([params.W_Q, params.W_K, params0.W_Q, params0.W_K], axis=1)
        R = jnp.linalg.qr(M, mode="r")
        change = (R * jnp.repeat(signs, params0.W_Q.shape[1])[None]) @ R.T
        moved = per_unit(params) - per_unit(params0)
        return {"query_key": jnp.linalg.norm(change), "value_output": jnp.linalg.norm(moved)}

    return probe


# ------------------------------------------------------------------------------------- the setting


class Wu(Setting):
    """One encoder, its data and its training."""

    problem: Data[Source] = "gaussian"  # Random tokens, scikit-learn's digits, or a file. [summary]
    num_samples: Count = 20  # Number of sequences; the paper's synthetic experiment has 100.
    num_tokens: Count = 5  # Tokens in a sequence; for images `patch` decides it.
    dim: Count = 20  # Dimension of a token.
    tokens: Data[Literal["raw", "unit"]] = "raw"  # Tokens as they are, or scaled to norm 1.
    labels: Data[Literal["gaussian", "teacher"]] = "gaussian"  # Independent, or a network's.
    label_scale: NonNegative = 1.0  # Standard deviation of the labels, a number from 0.
    shape: Data[Shape] = "plain"  # A change that makes the data hard or impossible to fit. [ours]
    overlap: Share = 0.0  # Share (0 to 1) of every sequence's energy that is the first's. [ours]
    patch: Data[Count] = 4  # Side in pixels of the squares that images are cut into.
    classes: Data[str] = "0,1"  # Two labels, which become -1 and +1, or `all` for regression.
    images: Data[str] = ""  # Path of an IDX file of images, for problem=idx.
    image_labels: Data[str] = ""  # Path of an IDX file of labels, for problem=idx.
    width: Count = 256  # Hidden units.
    active: Traced[Count] | None = None  # Hidden units in use; the others are 0; auto: all. [ours]
    init: Init = "lecun"  # How initial weights are drawn. [summary]
    score_exponent: NonNegative = 0.5  # The p of width^-p, which multiplies the scores. [summary]
    pooling: Literal["mean", "sum"] = "mean"  # Hidden units over tokens: average or sum. [summary]
    hidden_step_ratio: NonNegative = 1.0  # Step of W_Q, W_K, W_V over that of w_O. [summary]
    num_layers: Count = 1  # Encoder layers; the paper has one. [ours]
    residual: Literal["both", "none"] = "both"  # Around layers before the last (both parts). [ours]
    causal: bool = False  # A token attends to itself and those before it only (decoder). [ours]
    memory: Static[Positive] | None = None  # GiB for hidden units in a step or kernel; auto: 0.25.

    default_probes: ClassVar[tuple[str, ...]] = (
        *Setting.default_probes, "attention_entropy", "attention_from_uniform", "dead_units",
    )  # fmt: skip
    probe_sentences: ClassVar[dict[str, str]] = {
        "attention_entropy": "Mean entropy of attention over its largest value; 1 is uniform.",
        "attention_from_uniform": "Distance of attention from uniform, root mean square.",
        "attention": "Attention weights of every sequence.",
        "dead_units": "Share of hidden units that are off for every token.",
        "feature_sigma_min": "Smallest singular value of the features.",
        "feature_norm": "Largest singular value of the features.",
        "conserved_drift": "Change of what gradient flow conserves.",
    }

    def complete(self) -> Self:
        """Refuse shapes that need more samples or tokens, and units that cannot be left out."""
        needs = {"twins": "num_samples", "doubled_tokens": "num_tokens"}.get(self.shape)
        if needs and getattr(self, needs) < 2:
            raise InputError(f"shape={self.shape} needs {needs}=2 or more.")
        if self.active is not None and self.active > self.width:
            raise InputError(f"active={self.active} units of width={self.width}; raise the width.")
        if self.active is not None and self.init not in ("lecun", "he", "ntk"):
            raise InputError(f"active={self.active} needs init=lecun, he or ntk, not {self.init}.")
        if self.active is not None and self.num_layers > 1:
            raise InputError(f"active={self.active} needs num_layers=1, not {self.num_layers}.")
        return self

    # ------------------------------------------------------------------------------------- data

    def reads_files(self) -> bool:
        """Images come from a file or from scikit-learn."""
        return self.problem != "gaussian"

    def data(self, key: PRNGKeyArray) -> Problem:
        """Gaussian tokens with Gaussian or a teacher's labels, or images in patches."""
        return self._reshaped(self._images(key) if self.reads_files() else self._gaussian(key))

    def _gaussian(self, key: PRNGKeyArray) -> Problem:
        key_X, key_y = jax.random.split(key)
        X = problems.gaussian_tokens(key_X, self.num_samples, self.num_tokens, self.dim)
        X = problems.unit_tokens(X) if self.tokens == "unit" else X
        if self.labels == "gaussian":
            return Problem(X, problems.gaussian_labels(key_y, self.num_samples, self.label_scale))
        teacher = self.replace(width=TEACHER_WIDTH, init="lecun", score_exponent=0.5, active=None)
        weights = inits.lecun(key_y, teacher.spec())
        y = problems.teacher_labels(lambda x: teacher.apply(weights, x), X, self.label_scale)
        return Problem(X, y)

    def _images(self, key: PRNGKeyArray) -> Problem:
        if self.problem == "digits":
            pictures = problems.handwritten_digits()
        elif self.images and self.image_labels:
            pictures = read_idx_images(self.images, self.image_labels)
        else:
            msg = "problem=idx needs --set images=FILE and --set image_labels=FILE (IDX format)."
            raise InputError(msg)
        chosen = {k: getattr(self, k) for k in ("num_samples", "patch", "dim", "classes")}
        made = problems.image_problem(key, *pictures, **chosen)
        return made._replace(X=problems.unit_tokens(made.X)) if self.tokens == "unit" else made

    def _reshaped(self, problem: Problem) -> Problem:
        """The data changed as ``shape`` and ``overlap`` say.

        twins: two equal samples with labels +1 and -1, which no network of this form can fit.
        equal_means: every sequence has the same token mean, so uniform attention cannot tell them
        apart. doubled_tokens: the second token repeats the first, so no sequence has full row rank.
        """
        X, y = problem.X, problem.y
        if self.shape == "twins":
            X, y = X.at[1].set(X[0]), y.at[0].set(1.0).at[1].set(-1.0)
        elif self.shape == "equal_means":
            X = X - (jnp.mean(X, axis=1, keepdims=True) - jnp.mean(X, axis=(0, 1), keepdims=True))
        elif self.shape == "doubled_tokens":
            X = X.at[:, 1].set(X[:, 0])
        own, common = jnp.sqrt(1 - self.overlap), jnp.sqrt(self.overlap)
        return Problem(own * X + common * jnp.broadcast_to(X[:1], X.shape), y)

    # ------------------------------------------------------------------------------------ model

    @property
    def units(self) -> Any:
        """Hidden units in use."""
        return self.width if self.active is None else self.active

    @lab.derived
    def scales(self) -> Scales:
        """The model's constants: only NTK initialisation carries a scale in the output."""
        return Scales(
            score=self.units**-self.score_exponent,
            output=self.units**-0.5 if self.init == "ntk" else 1.0,
            pool=1 / self.num_tokens if self.pooling == "mean" else 1.0,
        )

    def variances(self) -> Weights:
        """Variances of each block's entries at the start (the paper's eta), if independent."""
        d, m = self.dim, self.units
        table = {"lecun": (1 / d, 1 / m), "he": (2 / d, 2 / m), "ntk": (1.0, 1.0),
                 "xavier": (2 / (d + m), 2 / (m + 1))}  # fmt: skip
        if self.init not in table:
            known = ", ".join(table)
            raise InputError(f"init={self.init} has no independent entries; choose from {known}.")
        hidden, output = table[self.init]
        return Weights(hidden, hidden, hidden, output)

    def params(self) -> Any:
        """Shapes of the parameters."""
        matrix = (self.width, self.dim)
        if (L := self.num_layers) > 1:
            back = (L - 1, *matrix[::-1])
            return deep.DeepWeights(*((L, *matrix),) * 3, back, (self.width,))  # type: ignore[arg-type]
        return Weights(matrix, matrix, matrix, (self.width,))  # type: ignore[arg-type]

    def weights(self, key: PRNGKeyArray) -> Any:
        """Draw initial weights of the units in use."""
        drawn: Any = super().weights(key)
        return drawn if self.active is None else self.narrowed(drawn, self.active)

    def narrowed(self, params: Weights, units: Any) -> Weights:
        """Full initial weights cut down to some units; training leaves the others at zero."""
        on = (jnp.arange(self.width) < units).astype(params.w_O.dtype)
        # the output weights of LeCun and He have a variance of one or two over the width
        scale = 1.0 if self.init == "ntk" else jnp.sqrt(self.width / units)
        W_Q, W_K, W_V = (on[:, None] * W for W in params[:3])
        return Weights(W_Q, W_K, W_V, scale * on * params.w_O)

    @property
    def is_encoder(self) -> bool:
        """Whether it is the paper's network: one layer, not causal."""
        return self.num_layers == 1 and not self.causal

    def form(self) -> deep.Form:
        """What the layers of the deep or causal form share."""
        return deep.Form(self.scales(), self.causal, self.residual == "both")

    def apply(self, params: Any, x: Float[Array, "n d"]) -> Float[Array, ""]:
        """One sequence in, one number out."""
        if self.is_encoder:
            return features(params, x, self.scales()) @ params.w_O
        return deep.features(params, x, self.form()) @ params.w_O

    def held(self) -> int:
        """Hidden units that a step may hold at a time, before and after ReLU."""
        return HELD if self.memory is None else max(1, int(self.memory * 2**26))

    def network(self) -> Model:
        """The model, the encoder with squared errors and their gradient in one pass."""
        if not self.is_encoder:
            return Model(self.spec(), self.apply)
        ways = fused_squares, squares_alone
        squares, alone = (way(self.scales(), self.held()) for way in ways)
        return Model(self.spec(), self.apply, fused_squares=squares, squares_alone=alone)

    def floats_per_step(self) -> float:
        """Hidden units of a step, and one array for the probes."""
        if not self.is_encoder:
            return super().floats_per_step()
        units = float(self.num_samples * self.num_tokens * self.width)
        return units + 2.0 * min(units, self.held())

    # --------------------------------------------------------------------------------- training

    def step_ratios(self) -> dict[str, Any]:
        """The hidden weights may move more slowly than the output weights."""
        blocks = (*HIDDEN, "W_D") if self.num_layers > 1 else HIDDEN
        return dict.fromkeys(blocks, self.hidden_step_ratio)

    def block_kernels(self, setup: Setup) -> Kernels:
        """The closed-form tangent kernels of the encoder."""
        if not self.is_encoder:
            return super().block_kernels(setup)
        tile = TILE if self.memory is None else max(1, int(self.memory * 2**30 / 24))
        return tangent_kernels(setup.inputs, self.scales(), tile)

    def output_size(self, setup: Setup) -> Float[Array, ""]:
        r"""Outputs are sums of terms of size $\lVert F\rVert\lVert w_O\rVert$."""
        F = layers.feature_matrix(self.parts()[2], setup.inputs)(setup.params0)
        return norm_op(F) * norm_fro(setup.params0.w_O) + norm_fro(setup.targets)

    def probes(self, setup: Setup) -> dict[str, Any]:
        """What attention, hidden units and features do."""
        X = setup.inputs
        attend, hidden, seen = self.parts()
        found: dict[str, Any] = {
            "attention_entropy": layers.attention_entropy(attend, X),
            "attention_from_uniform": layers.attention_from_uniform(attend, X),
            "attention": lambda p: jax.vmap(attend, in_axes=(None, 0))(p, X),
            "dead_units": layers.dead_units(hidden, X),
            "feature_sigma_min": layers.feature_sigma_min(seen, X),
            "feature_norm": layers.feature_norm(seen, X),
        }
        if self.is_encoder:
            found["conserved_drift"] = conserved_drift(setup.params0, setup.step_ratios)
        return found

    def parts(self) -> tuple[Callable, ...]:
        """Attention, hidden units and features (of the last layer) as functions of the weights."""
        if self.is_encoder:
            parts: tuple[Callable, ...] = (attention, preactivation, features)
            return tuple(partial(f, scales=self.scales()) for f in parts)
        own: tuple[Callable, ...] = (deep.last_attention, deep.preactivation, deep.features)
        return tuple(partial(f, form=self.form()) for f in own)


def feature_matrix(setup: Setup) -> Callable[[Params], Float[Array, "N m"]]:
    """The features of every sample, one row each, as a function of the parameters."""
    return layers.feature_matrix(partial(features, scales=setup.setting.scales()), setup.inputs)


CERTIFIABLE = {"num_tokens": 2, "tokens": "unit", "pooling": "sum", "score_exponent": 1.0}
"""Settings in which theorem A applies at moderate widths."""
PAPER = Paper(
    Wu, key="wu2023", authors="Yongtao Wu, Fanghui Liu, Grigorios G. Chrysos, Volkan Cevher",
    year=2023, title="On the Convergence of Encoder-only Shallow Transformers", arxiv="2311.01575",
    about="width, LeCun/He/NTK initialisation, softmax scaling, global convergence",
    plan=WidthPlan("width", "theorem_a", tuple(CERTIFIABLE.items()), (2, 4, 8, 16), (2, 9),
                   highest=20, seeds=8),
)  # fmt: skip
