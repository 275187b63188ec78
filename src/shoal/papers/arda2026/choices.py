"""What a setting of arda2026 means: data, model, start, and the set of the projection."""

from typing import Literal, NamedTuple

from shoal._typing import Any, Init, Params, Scalar
from shoal.errors import InputError
from shoal.methods import Method, decaying, projected
from shoal.models import Model
from shoal.papers.arda2026 import data, heads, relatives
from shoal.papers.arda2026.heads import ACTIVATIONS, Weights
from shoal.papers.arda2026.teachers import Radii
from shoal.problems import Problem
from shoal.settings import Count, Names, NonNegative, Positive, Seed, Three, Whole


class Setting(NamedTuple):
    """One run: the model of the theory, or a relative of it."""

    model: Literal["heads", "recurrent", "causal", "deep"] = "heads"
    # data
    problem: Literal["ball", "autoregressive", "file"] = "ball"  # tokens of norm 1 at most; series
    num_samples: Count = 100  # the paper's width experiment has 5000
    num_tokens: Count | None = None  # auto: 16; autoregressive: lag + 1
    dim: Count | None = None  # auto: 8; autoregressive: 1 + 2 channels
    token_norm: Positive = 1.0  # ball: tokens (and the query, if it is one) times this
    query: Literal["last", "fixed"] = "last"  # the last token, or one unit vector for all
    labels: Literal["teacher", "dual", "gaussian"] = "teacher"  # dual: of exactly known norm
    label_scale: NonNegative = 1.0  # gaussian: standard deviation
    teacher_norm: Three = "3,3,3"  # nu for c, U, W: nominal for the paper's teacher
    num_anchors: Count = 1  # inputs at which the paper's teacher looks; not stated there
    anchor_tokens: Count | None = None  # their length; auto: num_tokens, as in the paper
    pool: Count = 8192  # heads over which its labels are averaged
    lag: Count = 4  # autoregressive: X_t = 0.9 X_{t-lag} + noise
    channels: Whole = 8  # autoregressive: pairs of position channels
    clip: bool = False  # autoregressive: scale tokens to norm 1, as the theory wants
    test_samples: Whole | None = None  # held out; auto: 1000 for autoregressive
    data_seed: Seed = 0
    # model
    num_heads: Count = 64  # even; units of the recurrent network
    activation: Literal["tanh", "logistic", "sin", "erf"] = "tanh"
    output_scale: Positive = 1.0  # heads: the output over this; sqrt(heads) is the mean field
    num_layers: Count = 2  # deep
    recurrence: NonNegative = 1.0  # recurrent: size of its weights at the start
    # training
    method: Literal["gd", "sgd"] = "gd"
    train: Names = "all"  # or some of W,U,c
    radius: Three | None = "3,3,3"  # rho for c, U, W, over sqrt(heads); none: no projection
    decay: NonNegative = 0.0  # weight decay
    decay_to: Literal["start", "zero"] = "start"
    step_size: Positive | None = None  # auto: 1 / sqrt(num_steps), as in the paper
    batch_size: Count | None = None  # sgd; auto: 1, as in the paper
    num_steps: Count = 400
    every: Count = 1
    # what certificates assume, and how much memory a step may take
    token_bound: Positive = 1.0
    query_bound: Positive = 1.0
    comparator: Literal["teacher", "fit"] | None = None  # auto: the teacher's, if there is one
    memory: Positive | None = None  # GiB for attention in a step; auto: what fits into the cache


def complete(setting: Any) -> Any:
    """Fill in what follows from other settings, and refuse what does not fit together."""
    series = setting.problem == "autoregressive"
    taught = setting.problem == "ball" and setting.labels != "gaussian"
    if setting.comparator == "teacher" and not taught:
        msg = "comparator=teacher, but no teacher made these labels; use comparator=fit."
        raise InputError(msg)
    auto = {
        "num_tokens": setting.lag + 1 if series else 16,
        "dim": 1 + 2 * setting.channels if series else 8,
        "anchor_tokens": setting.num_tokens or 16,
        "test_samples": 1000 if series else 0,
        "batch_size": 1 if setting.method == "sgd" else None,
        "comparator": "teacher" if taught else "fit",
    }
    setting = setting._replace(**{k: v for k, v in auto.items() if getattr(setting, k) is None})
    if setting.num_heads % 2:
        msg = (
            f"num_heads={setting.num_heads} is odd, but heads come in twins of opposite signs; try "
            f"{setting.num_heads + 1}."
        )
        raise InputError(msg)
    if setting.method == "gd" and setting.batch_size is not None:
        msg = f"batch_size={setting.batch_size}, but method=gd sees all samples; use method=sgd."
        raise InputError(msg)
    if setting.model == "causal" and setting.problem == "ball":
        msg = "model=causal predicts the next value of a series; set problem=autoregressive."
        raise InputError(msg)
    if setting.model == "deep" and setting.num_layers < 2:
        msg = "model=deep needs num_layers of at least 2; one layer is model=heads."
        raise InputError(msg)
    if series:
        data.require_lag(setting)
    return setting


def radii(setting: Any) -> Radii | None:
    """The radii of the set for c, U and W, or None without a projection."""
    if setting.radius is None:
        return None
    return tuple(map(float, setting.radius.split(",")))  # type: ignore[return-value]


def method(setting: Any, plain: Method) -> Method:
    """Decay and projection around a plain method."""
    rule = plain
    if setting.decay > 0:
        rule = decaying(rule, setting.decay, to_start=setting.decay_to == "start")
    limits = radii(setting)
    if limits is None:
        return rule
    rho_c, rho_U, rho_W = (r / setting.num_heads**0.5 for r in limits)
    names = {"c": rho_c, "U": rho_U, "W": rho_W, "u": rho_U, "w": rho_W}
    inner = dict.fromkeys(("inner_W", "inner_U", "inner_V"), float("inf"))
    return projected(rule, names | inner)


def block(setting: Any) -> int:
    """Attention weights that may be held at a time; about eight arrays of that size are."""
    return heads.BLOCK if setting.memory is None else max(1, int(setting.memory * 2**30 / 64))


def model(setting: Any) -> Model:
    """The model of a setting."""
    activation = ACTIVATIONS[setting.activation]
    m, d = setting.num_heads, setting.dim
    if setting.model == "recurrent":
        return relatives.recurrent(m, d, activation)
    if setting.model == "causal":
        return relatives.causal(m, d, activation)
    if setting.model == "deep":
        return relatives.deep(setting.num_layers, m, d, activation)
    return heads.heads(m, d, activation, block=block(setting), scale=setting.output_scale)


def init(setting: Any) -> Init:
    """Twins of opposite signs."""
    if setting.model == "recurrent":
        return lambda key, spec: relatives.twin_units(key, spec, setting.recurrence)
    return relatives.deep_twins if setting.model == "deep" else heads.twins


def problem(setting: Any) -> Problem:
    """The data that training sees."""
    if setting.problem == "file":
        msg = "problem=file means data of your own: add --data FILE.npz."
        raise InputError(msg)
    if setting.problem == "autoregressive":
        return data.autoregressive(setting, held_out=False)
    return data.sequences(setting)


def held_out(setting: Any) -> Problem | None:
    """More windows of the series."""
    if setting.problem != "autoregressive" or not setting.test_samples:
        return None
    return data.autoregressive(setting, held_out=True)


def check(setting: Any, problem: Problem) -> None:
    """Refuse targets from outside that the causal form does not put out."""
    if setting.model == "causal" and problem.y.shape[2] != 1:
        msg = f"Y has {problem.y.shape[2]} outputs a token; model=causal has one."
        raise InputError(msg)


def sizes(params: Params) -> dict[str, int]:
    """Settings that (stacked) weights imply."""
    found = {"num_heads": params.c.shape[-1]}
    if isinstance(params, relatives.Units):
        return found | {"dim": params.u.shape[-1]}
    if isinstance(params, relatives.Deep):
        found["num_layers"] = params.inner_W.shape[-4] + 1
    return found | {"dim": params.W.shape[-1]}


def speeds(setting: Any) -> dict[str, Scalar]:
    """All blocks move at the same step."""
    return dict.fromkeys(model(setting).spec._fields, 1.0)


def activations(setting: Any) -> float:
    """Numbers that a step of one seed holds."""
    n, T, m, d = setting.num_samples, setting.num_tokens, setting.num_heads, setting.dim
    kept = 2.0 * n * T * d
    if setting.model == "heads":
        return kept + 8.0 * min(block(setting), n * T * m) + 4.0 * m * d * d
    per_sample = {"recurrent": 4.0 * T * m, "causal": 4.0 * m * T * T}.get(
        setting.model, 6.0 * setting.num_layers * m * T * (T + d)
    )
    return kept + n * per_sample


__all__ = ["Setting", "Weights"]
