"""What a setting of qin2025 means: data, network and start."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Float, Init, Params, PRNGKeyArray, Scalar
from shoal.diagnostics.kernels import jacobian
from shoal.errors import InputError
from shoal.experiments import data_key
from shoal.linalg import norm_fro
from shoal.models import Model, predict
from shoal.papers.qin2025 import blocks, bounds
from shoal.papers.qin2025.blocks import Form, Weights
from shoal.problems import Problem, gaussian_tokens
from shoal.settings import Count, Names, NonNegative, Positive, Seed, Share
from shoal.theory import descent


class Setting(NamedTuple):
    """One run. The paper's own sizes, data and steps are not known: all of these are ours."""

    # data
    problem: Literal["gaussian", "file"] = "gaussian"
    num_samples: Count = 4
    num_tokens: Count = 6
    dim: Count = 32  # N n <= dim: attention outputs of all samples can be independent
    token_scale: Positive = 0.5  # standard deviation of a token's entries
    token_correlation: Share = 0.0  # of any two tokens of a sequence
    token_condition: Positive | None = None  # condition number given to all tokens, stacked
    labels: Literal["gaussian", "teacher", "near"] = "gaussian"
    label_scale: NonNegative = 1.0  # gaussian: standard deviation
    near_seed: Seed = 0  # near: labels lie beside the outputs of the weights drawn for this seed,
    near_error: Positive | None = None  # so far off; auto: as far as theorem D certifies
    data_seed: Seed = 0
    # network
    num_layers: Count = 1
    residual: Literal["both", "attention", "feedforward", "none"] = "both"
    residual_scale: Literal["one", "depth"] = "one"  # depth: branches over sqrt(num_layers)
    key_dim: Count = 16
    width: Count = 64  # of the feed-forward layer
    out_dim: Count = 2
    activation: Literal["smooth_leaky", "leaky", "relu", "gelu"] = "smooth_leaky"
    slope: Share = 0.3  # of the leaky ones to the left
    score_power: NonNegative = 0.5  # scores over key_dim to this power
    output: Literal["tokens", "mean", "whole"] = "tokens"
    causal: bool = False  # a token sees itself and those before it (decoder)
    norm: bool = False  # layer norm before each branch
    # start
    init: Literal["gaussian", "orthogonal"] = "gaussian"
    scale_qk: NonNegative = 1.0
    scale_v: NonNegative = 0.5
    scale_1: NonNegative = 1.0
    scale_2: NonNegative = 0.5
    scale_u: NonNegative = 1.0
    # training
    method: Literal["gd", "flow"] = "gd"
    train: Names = "all"
    step_size: Positive | None = None  # auto: half of 1 / lambda_max of the tangent kernel
    num_steps: Count = 500
    every: Count = 1
    # what theorem D computes
    bounds: Literal["sharp", "basic"] = "sharp"
    contraction: Literal["half", "quarter"] = "half"  # c of the page; quarter: a = 1, b = 1/2
    route: Literal["best", "layers", "kernel"] = "best"


def complete(setting: Any) -> Any:
    """Refuse what does not fit together."""
    if setting.labels != "near" and setting.near_error is not None:
        msg = f"near_error={setting.near_error}, but labels={setting.labels}; use labels=near."
        raise InputError(msg)
    if setting.token_condition is not None:
        rows = setting.num_samples * setting.num_tokens
        if setting.token_condition < 1 or rows > setting.dim:
            msg = (
                f"token_condition={setting.token_condition}: give at least 1, and at most dim="
                f"{setting.dim} tokens in all (there are {rows})."
            )
            raise InputError(msg)
    return setting


def form(setting: Any) -> Form:
    """The network without its weights."""
    return Form(
        blocks.activation(setting.activation, setting.slope),
        residual_attention=float(setting.residual in ("both", "attention")),
        residual_feedforward=float(setting.residual in ("both", "feedforward")),
        branch=setting.num_layers**-0.5 if setting.residual_scale == "depth" else 1.0,
        score=setting.key_dim**-setting.score_power,
        output=setting.output,
        causal=setting.causal,
        norm=setting.norm,
    )


def model(setting: Any) -> Model:
    """The network of a setting."""
    seen = setting.num_tokens * setting.dim if setting.output == "whole" else None
    sizes = setting.num_layers, setting.dim, setting.key_dim, setting.width, setting.out_dim
    return blocks.transformer(blocks.shapes(*sizes, seen=seen), form(setting))


def init(setting: Any) -> Init:
    """Gaussian or orthogonal weights, each block with its scale."""
    scales = {
        "W_Q": setting.scale_qk,
        "W_K": setting.scale_qk,
        "W_V": setting.scale_v,
        "W_1": setting.scale_1,
        "W_2": setting.scale_2,
        "W_U": setting.scale_u,
    }
    draw = blocks.orthogonal if setting.init == "orthogonal" else blocks.gaussian
    return lambda key, spec: draw(key, spec, scales)


def split(setting: Any) -> descent.Split:
    """How theorem D0 bounds the step."""
    return descent.Split() if setting.contraction == "half" else descent.Split(1.0, 0.5)


DENSE = 10**8
"""Numbers in the largest Jacobian that is formed; beyond it only the layers speak."""


def smallest_singular_value(setting: Any, params: Weights, X: Float[Array, "N n d"]) -> Array:
    r"""$\sigma_p(J)$ of all outputs, by SVD of the dense Jacobian; 0 if there are more outputs."""
    network = model(setting)
    outputs = jax.eval_shape(network.apply, network.spec, X[0]).size * len(X)
    weights = sum(leaf.size for leaf in jax.tree.leaves(network.spec))
    if outputs > weights or outputs * weights > DENSE:
        return jnp.zeros(())  # a valid bound, if a poor one
    return bounds.smallest(jacobian(network, X)(params))


def ball_at(
    setting: Any, params: Weights, X: Float[Array, "N n d"], norms: bounds.Norms | None = None
) -> descent.BallAt:
    """Theorem D's bounds around a start, whose norms may have been measured already."""
    shape = form(setting)
    return bounds.ball_at(
        bounds.measure(params, X, shape) if norms is None else norms,
        X.shape[1],
        shape,
        sharp=setting.bounds == "sharp",
        sigma_J=None if setting.route == "layers" else smallest_singular_value(setting, params, X),
        route=setting.route,
    )


# -------------------------------------------------------------------------------------- data


def tokens(
    key: PRNGKeyArray, N: int, n: int, d: int, scale: Scalar, correlation: Scalar
) -> Float[Array, "N n d"]:
    """Gaussian tokens; those of a sequence share a part, so that any two are correlated."""
    key_own, key_shared = jax.random.split(key)
    own = gaussian_tokens(key_own, N, n, d)
    shared = jax.random.normal(key_shared, (N, 1, d), float)
    return scale * (jnp.sqrt(1 - correlation) * own + jnp.sqrt(correlation) * shared)


def conditioned(X: Float[Array, "N n d"], condition: Scalar) -> Float[Array, "N n d"]:
    """The same directions, stacked tokens with singular values spread evenly in logarithm."""
    N, n, d = X.shape
    U, s, Vt = jnp.linalg.svd(X.reshape(N * n, d), full_matrices=False)
    wanted = jnp.logspace(0.0, -1.0, N * n) ** jnp.log10(condition)
    wanted = wanted * jnp.sqrt(jnp.sum(s**2) / jnp.sum(wanted**2))
    return ((U * wanted[None]) @ Vt).reshape(N, n, d)


def start_of_seed(setting: Any, seed: Any) -> Weights:
    """The weights that `initial_params` draws for a seed."""
    key = jax.random.fold_in(jax.random.key(jnp.asarray(seed, jnp.uint32)), 1)
    return init(setting)(key, model(setting).spec)


DATA_NUMBERS = (
    "data_seed",
    "near_seed",
    "near_error",
    "token_scale",
    "token_correlation",
    "token_condition",
    "label_scale",
)
"""Settings that only change numbers in the data, so that no program depends on them."""


def problem(setting: Any) -> Problem:
    """Gaussian tokens, and labels that are random, of a teacher, or beside the start's outputs."""
    if setting.problem == "file":
        msg = "problem=file means data of your own: add --data FILE.npz."
        raise InputError(msg)
    numbers = {k: getattr(setting, k) for k in DATA_NUMBERS}
    plain = Setting()
    program = setting._replace(**{k: getattr(plain, k) for k in DATA_NUMBERS}, step_size=None)
    return _made({k: v for k, v in numbers.items() if v is not None}, program)


@functools.partial(jax.jit, static_argnums=1)
def _made(numbers: dict[str, Any], program: Any) -> Problem:
    setting = program._replace(**numbers)
    network = model(program)
    key_X, key_Y, key_teacher = jax.random.split(data_key(setting), 3)
    N, n, d = setting.num_samples, setting.num_tokens, setting.dim
    X = tokens(key_X, N, n, d, setting.token_scale, setting.token_correlation)
    if setting.token_condition is not None:
        X = conditioned(X, setting.token_condition)
    out = jax.eval_shape(network.apply, network.spec, X[0]).shape
    noise = jax.random.normal(key_Y, (N, *out), float)
    if setting.labels == "teacher":
        teacher = init(program)(key_teacher, network.spec)
        return Problem(X, predict(network, teacher, X))
    if setting.labels == "gaussian":
        return Problem(X, setting.label_scale * noise)
    start = start_of_seed(program, setting.near_seed)
    F = predict(network, start, X)
    error = setting.near_error
    if error is None:
        error = certified_error(program, start, X)
        error = jnp.where(error > 0, error, 1e-6 * norm_fro(F))
    return Problem(X, F + error * noise / norm_fro(noise))


def certified_error(setting: Any, start: Weights, X: Float[Array, "N n d"]) -> Array:
    """The largest residual that theorem D certifies, a millionth less."""
    top, _ = descent.largest_residual(ball_at(setting, start, X), split(setting))
    return top * (1 - 1e-6)


def sizes(params: Params) -> dict[str, int]:
    """Settings that (stacked) weights imply."""
    return {
        "num_layers": params.W_Q.shape[-3],
        "key_dim": params.W_Q.shape[-1],
        "width": params.W_1.shape[-1],
        "dim": params.W_1.shape[-2],
        "out_dim": params.W_U.shape[-1],
    }


def speeds(_: Any) -> dict[str, Scalar]:
    """All blocks move at the same step, as the theorem wants."""
    return dict.fromkeys(Weights._fields, 1.0)


def activations(setting: Any) -> float:
    """Numbers that a step of one seed holds."""
    n, d, m = setting.num_tokens, setting.dim, setting.width
    return 4.0 * setting.num_samples * setting.num_layers * n * (n + 3 * d + m)


def without_scales(setting: Any) -> Any:
    """A setting for compiled programs, which see weights, not how they were drawn."""
    plain = Setting()
    return setting._replace(
        **{k: getattr(plain, k) for k in plain._fields if k.startswith("scale_") or k == "init"}
    )
