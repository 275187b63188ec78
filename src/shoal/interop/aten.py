"""PyTorch's core operations in JAX, one line or one small function each.

`TABLE` maps the name of an operation in an exported graph (``aten.mm.default``) to a function of
the same arguments. What is not in it is refused by name (`shoal.interop.torch`).
"""

# ruff: noqa: ARG001, ARG005 (arguments are those of PyTorch's operations)

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# ----------------------------------------------------------------------- shapes and constants


def _dtype(dtype: Any, otherwise: Any = None) -> Any:
    """JAX's type for one of PyTorch's, which comes as its name (``torch.float64``)."""
    if dtype is None:
        return otherwise
    name = str(dtype).removeprefix("torch.")
    return jnp.dtype({"double": "float64", "float": "float32", "long": "int64"}.get(name, name))


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    """Axes as JAX wants them; none, or an empty list, means all."""
    if axes is None or axes == []:
        return tuple(range(ndim))
    return tuple(a % ndim for a in ([axes] if isinstance(axes, int) else axes))


def _expand(x: Any, shape: Any, implicit: bool = False) -> Any:
    new = len(shape) - x.ndim
    sizes = [x.shape[i - new] if s == -1 else s for i, s in enumerate(shape)]
    return jnp.broadcast_to(x, sizes)


def _squeeze(x: Any, axes: Any = None) -> Any:
    return jnp.squeeze(x, tuple(a for a in _axes(axes, x.ndim) if x.shape[a] == 1))


def _slice(x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    size = x.shape[axis]
    end = None if end is None or end >= size else end
    where = [slice(None)] * x.ndim
    where[axis] = slice(start, end, step)
    return x[tuple(where)]


def _split(x: Any, sizes: Any, axis: int = 0) -> list[Any]:
    length = x.shape[axis]
    if isinstance(sizes, int):
        cuts = list(range(sizes, length, sizes))
    else:
        cuts = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return jnp.split(x, cuts, axis)


def _index(x: Any, indices: list[Any]) -> Any:
    return x[tuple(slice(None) if i is None else i for i in indices)]


def _constant(shape: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    usual = jnp.int64 if isinstance(value, int) and not isinstance(value, bool) else None
    usual = bool if isinstance(value, bool) else usual or jnp.float64
    return jnp.full(shape, value, _dtype(dtype, usual))


def _filled_like(x: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(x.shape, value, _dtype(dtype, x.dtype))


def _arange(*bounds: Any, dtype: Any = None, **_: Any) -> Any:
    whole = all(isinstance(b, int) for b in bounds)
    return jnp.arange(*bounds).astype(_dtype(dtype, jnp.int64 if whole else jnp.float64))


def _convert(x: Any, dtype: Any = None, **_: Any) -> Any:
    return x if dtype is None else x.astype(_dtype(dtype))


def _pad(x: Any, pad: list[int], value: float = 0.0) -> Any:
    """PyTorch counts pads from the last axis; a negative one cuts."""
    widths = [(0, 0, 0)] * x.ndim
    for k in range(len(pad) // 2):
        widths[x.ndim - 1 - k] = (pad[2 * k], pad[2 * k + 1], 0)
    return lax.pad(x, jnp.asarray(value, x.dtype), widths)


# ---------------------------------------------------------------------------------- arithmetic


def _with_alpha(operation: Callable) -> Callable:
    return lambda x, y, alpha=1: operation(x, y if alpha == 1 else alpha * y)


def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return jnp.true_divide(x, y)
    return jnp.floor_divide(x, y) if rounding_mode == "floor" else jnp.trunc(x / y)


def _addmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = a @ b
    return (c if beta == 1 else beta * c) + (product if alpha == 1 else alpha * product)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    return jnp.clip(x, low, high)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    safe = jnp.where(x > 0, 0, x)
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(safe * input_scale))


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    z = x * beta
    return jnp.where(z > threshold, x, jax.nn.softplus(jnp.minimum(z, threshold)) / beta)


def _softmax(x: Any, axis: int, half_to_float: bool = False) -> Any:
    return jax.nn.softmax(x, axis)


def _safe_softmax(x: Any, axis: int, dtype: Any = None) -> Any:
    """A row that is masked everywhere gives zeros, not NaN."""
    masked = jnp.all(x == -jnp.inf, axis, keepdims=True)
    return jnp.where(masked, 0.0, jax.nn.softmax(jnp.where(masked, 0.0, x), axis))


def _log_softmax(x: Any, axis: int, half_to_float: bool = False) -> Any:
    return jax.nn.log_softmax(x, axis)


# ---------------------------------------------------------------------------------- reductions


def _reduce(operation: Callable) -> Callable:
    def reduced(x: Any, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return operation(_convert(x, dtype), axis=_axes(axes, x.ndim), keepdims=keepdim)

    return reduced


def _variance(x: Any, axes: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return jnp.var(x, axis=_axes(axes, x.ndim), ddof=correction, keepdims=keepdim)


def _norm(x: Any, p: float = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = _axes(axes, x.ndim)
    if p == 2:
        return jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=keepdim))
    return jnp.sum(jnp.abs(x) ** p, axes, keepdims=keepdim) ** (1 / p)


def _extreme(where: Callable) -> Callable:
    def found(x: Any, axis: int, keepdim: bool = False) -> tuple[Any, Any]:
        at = where(x, axis=axis, keepdims=True)
        value = jnp.take_along_axis(x, at, axis)
        return (value, at) if keepdim else (value.squeeze(axis), at.squeeze(axis))

    return found


# ------------------------------------------------------------------------------- normalisation


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean = jnp.mean(x, axes, keepdims=True)
    rstd = lax.rsqrt(jnp.mean(jnp.square(x - mean), axes, keepdims=True) + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, rstd


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> tuple[Any, Any]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(x), axes, keepdims=True) + eps)
    return (x * rstd if weight is None else x * rstd * weight), rstd


def _per_channel(v: Any, ndim: int) -> Any:
    return v.reshape((1, -1) + (1,) * (ndim - 2))


def _group_norm(
    x: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, groups: int, eps: float
) -> tuple[Any, Any, Any]:
    parts = x.reshape(N, groups, -1)
    mean = parts.mean(-1, keepdims=True)
    rstd = lax.rsqrt(jnp.square(parts - mean).mean(-1, keepdims=True) + eps)
    out = ((parts - mean) * rstd).reshape(x.shape)
    out = out if weight is None else out * _per_channel(weight, x.ndim)
    return (out if bias is None else out + _per_channel(bias, x.ndim)), mean, rstd


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    scale = lax.rsqrt(var + eps)
    out = (x - _per_channel(mean, x.ndim)) * _per_channel(scale, x.ndim)
    out = out if weight is None else out * _per_channel(weight, x.ndim)
    return (out if bias is None else out + _per_channel(bias, x.ndim)), jnp.zeros(0), jnp.zeros(0)


# ------------------------------------------------------------------------ attention, convolution


def _attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    **_: Any,
) -> Any:
    if dropout:
        raise NotImplementedError
    scores = (q @ jnp.swapaxes(k, -1, -2)) * (
        1 / math.sqrt(q.shape[-1]) if scale is None else scale
    )
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None and mask.dtype == bool:
        scores = jnp.where(mask, scores, -jnp.inf)
    elif mask is not None:
        scores = scores + mask
    return _safe_softmax(scores, -1) @ v


def _flash_attention(
    q: Any,
    k: Any,
    v: Any,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Any, Any]:
    return _attention(q, k, v, attn_mask, dropout, is_causal, scale=scale), jnp.zeros(0)


def _convolution(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    if transposed:
        raise NotImplementedError
    out = lax.conv_general_dilated(
        x, w, tuple(stride), [(p, p) for p in padding], rhs_dilation=tuple(dilation),
        feature_group_count=groups,
    )  # fmt: skip
    return out if bias is None else out + _per_channel(bias, out.ndim)


def _windows(values: Any, ndim: int, usual: Any = None) -> tuple[int, ...]:
    """Two numbers (or one, or none at all) for the last two axes."""
    found = list(values) if values else list(usual if usual is not None else [1, 1])
    found = found * 2 if len(found) == 1 else found
    return (1,) * (ndim - len(found)) + tuple(found)


def _max_pool(
    x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Any, Any]:
    if ceil:
        raise NotImplementedError
    pads = [padding] if isinstance(padding, int) else padding
    wide = _windows(pads, x.ndim, [0, 0]) if any(pads) else (0,) * x.ndim
    dilate = _windows([dilation] if isinstance(dilation, int) else dilation, x.ndim)
    out = lax.reduce_window(
        x, -jnp.inf, lax.max, _windows(size, x.ndim), _windows(stride, x.ndim, size),
        [(p if a >= x.ndim - 2 else 0,) * 2 for a, p in enumerate(wide)], window_dilation=dilate,
    )  # fmt: skip
    return out, None


def _avg_pool(
    x: Any, size: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False,
    include_pad: bool = True, divisor: int | None = None,
) -> Any:  # fmt: skip
    if ceil or any(padding):
        raise NotImplementedError
    window = _windows(size, x.ndim)
    total = lax.reduce_window(x, 0.0, lax.add, window, _windows(stride, x.ndim, size), "VALID")
    return total / (divisor or math.prod(window))


def _adaptive_avg_pool(x: Any, size: Any) -> Any:
    for axis, wanted in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        length = x.shape[axis]
        cuts = [(i * length // wanted, -(-(i + 1) * length // wanted)) for i in range(wanted)]
        parts = [lax.slice_in_dim(x, a, b, axis=axis).mean(axis, keepdims=True) for a, b in cuts]
        x = jnp.concatenate(parts, axis)
    return x


def _embedding(weight: Any, index: Any, padding_idx: int = -1, *_: Any) -> Any:
    """Rows of a table; the row of padding gets no gradient, as in PyTorch."""
    if padding_idx >= 0:
        fixed = lax.stop_gradient(weight[padding_idx])
        weight = weight.at[padding_idx].set(fixed)
    return weight[index]


_SAME = ("clone", "alias", "contiguous", "lift_fresh_copy", "dropout", "positive")


def _same(x: Any, *_: Any, **__: Any) -> Any:
    return x


_ELEMENTWISE: dict[str, Callable] = {
    "neg": jnp.negative, "abs": jnp.abs, "exp": jnp.exp, "expm1": jnp.expm1, "log": jnp.log,
    "log1p": jnp.log1p, "log2": jnp.log2, "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt, "sin": jnp.sin,
    "cos": jnp.cos, "tan": jnp.tan, "tanh": jnp.tanh, "atan": jnp.arctan, "erf": lax.erf,
    "sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "relu6": jax.nn.relu6, "silu": jax.nn.silu,
    "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round, "sign": jnp.sign,
    "reciprocal": jnp.reciprocal, "isnan": jnp.isnan, "isinf": jnp.isinf,
    "logical_not": jnp.logical_not, "bitwise_not": jnp.invert,
}  # fmt: skip

_PAIRS: dict[str, Callable] = {
    "mul": jnp.multiply, "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less,
    "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal, "maximum": jnp.maximum,
    "minimum": jnp.minimum, "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor, "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or,
    "pow": jnp.power, "atan2": jnp.arctan2, "remainder": jnp.remainder,
    "add": _with_alpha(jnp.add), "sub": _with_alpha(jnp.subtract), "div": _divide,
    "rsub": _with_alpha(lambda x, y: y - x),
}  # fmt: skip

_OTHERS: dict[str, Callable] = {
    # products
    "mm.default": jnp.matmul, "bmm.default": jnp.matmul, "matmul.default": jnp.matmul,
    "mv.default": jnp.matmul, "dot.default": jnp.dot, "addmm.default": _addmm,
    "baddbmm.default": _addmm,
    "linear.default": lambda x, w, b=None: x @ w.T if b is None else x @ w.T + b,
    "scaled_dot_product_attention.default": _attention,
    "_scaled_dot_product_flash_attention_for_cpu.default": _flash_attention,
    "convolution.default": _convolution,
    # shapes
    "view.default": lambda x, shape: jnp.reshape(x, shape),
    "_unsafe_view.default": lambda x, shape: jnp.reshape(x, shape),
    "reshape.default": lambda x, shape: jnp.reshape(x, shape),
    "permute.default": lambda x, axes: jnp.transpose(x, _axes(axes, x.ndim)),
    "transpose.int": jnp.swapaxes, "t.default": jnp.transpose, "expand.default": _expand,
    "unsqueeze.default": jnp.expand_dims, "squeeze.dim": _squeeze, "squeeze.dims": _squeeze,
    "squeeze.default": _squeeze, "slice.Tensor": _slice,
    "flatten.using_ints": lambda x, a=0, b=-1: x.reshape(
        (*x.shape[: a % x.ndim], -1, *x.shape[b % x.ndim + 1 :])
    ),
    "select.int": lambda x, axis, i: jnp.take(x, i % x.shape[axis], axis),
    "cat.default": lambda parts, axis=0: jnp.concatenate(
        [p for p in parts if p.shape != (0,)], axis
    ),
    "stack.default": lambda parts, axis=0: jnp.stack(parts, axis),
    "split.Tensor": _split, "split_with_sizes.default": _split,
    "chunk.default": lambda x, n, axis=0: _split(x, -(-x.shape[axis] // n), axis),
    "unbind.int": lambda x, axis=0: list(jnp.moveaxis(x, axis, 0)),
    "repeat.default": jnp.tile, "flip.default": jnp.flip, "roll.default": jnp.roll,
    "constant_pad_nd.default": _pad,
    "tril.default": jnp.tril, "triu.default": jnp.triu,
    "diagonal.default": jnp.diagonal,
    "cumsum.default": lambda x, axis, dtype=None: jnp.cumsum(x, axis),
    # looking up
    "index.Tensor": _index, "embedding.default": _embedding,
    "index_select.default": lambda x, axis, i: jnp.take(x, i, axis),
    "gather.default": lambda x, axis, i, **_: jnp.take_along_axis(x, i, axis),
    # constants
    "full.default": _constant, "full_like.default": _filled_like, "arange.default": _arange,
    "zeros.default": lambda shape, **k: _constant(shape, 0.0, **k),
    "ones.default": lambda shape, **k: _constant(shape, 1.0, **k),
    "empty.memory_format": lambda shape, **k: _constant(shape, 0.0, **k),
    "zeros_like.default": lambda x, **k: _filled_like(x, 0, **k),
    "ones_like.default": lambda x, **k: _filled_like(x, 1, **k),
    "new_zeros.default": lambda x, shape, **k: _constant(shape, 0, **({"dtype": x.dtype} | k)),
    "new_ones.default": lambda x, shape, **k: _constant(shape, 1, **({"dtype": x.dtype} | k)),
    "arange.start": _arange, "arange.start_step": _arange,
    "scalar_tensor.default": lambda v, **k: _constant((), v, **k),
    "_to_copy.default": _convert,
    "to.dtype": lambda x, dtype, *_, **__: _convert(x, dtype),
    # choices
    "where.self": jnp.where,
    "where.ScalarOther": jnp.where, "where.ScalarSelf": jnp.where,
    "masked_fill.Scalar": lambda x, mask, value: jnp.where(mask, value, x).astype(x.dtype),
    "masked_fill.Tensor": lambda x, mask, value: jnp.where(mask, value, x).astype(x.dtype),
    "clamp.default": _clamp, "clamp_min.default": _clamp,
    "clamp_max.default": lambda x, high: jnp.clip(x, None, high),
    "hardtanh.default": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    # activations and normalisations
    "gelu.default": _gelu, "elu.default": _elu, "softplus.default": _softplus,
    "leaky_relu.default": lambda x, slope=0.01: jax.nn.leaky_relu(x, slope),
    "_softmax.default": _softmax, "_safe_softmax.default": _safe_softmax,
    "_log_softmax.default": _log_softmax,
    "native_layer_norm.default": _layer_norm, "native_group_norm.default": _group_norm,
    "_fused_rms_norm.default": _rms_norm,
    "rms_norm.default": lambda *a, **k: _rms_norm(*a, **k)[0],
    "layer_norm.default": lambda x, shape, w=None, b=None, eps=1e-5, *_: _layer_norm(
        x, shape, w, b, eps
    )[0],
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    # reductions
    "mean.dim": _reduce(jnp.mean), "mean.default": _reduce(jnp.mean),
    "sum.dim_IntList": _reduce(jnp.sum), "sum.default": _reduce(jnp.sum),
    "amax.default": _reduce(jnp.max), "amin.default": _reduce(jnp.min),
    "any.dim": _reduce(jnp.any), "any.dims": _reduce(jnp.any), "any.default": _reduce(jnp.any),
    "all.dim": _reduce(jnp.all), "all.default": _reduce(jnp.all),
    "logsumexp.default": _reduce(jax.scipy.special.logsumexp),
    "prod.dim_int": _reduce(jnp.prod),
    "var.correction": _variance, "var.dim": lambda x, axes, unbiased=True, keepdim=False: (
        _variance(x, axes, correction=int(unbiased), keepdim=keepdim)
    ),
    "linalg_vector_norm.default": _norm,
    "max.dim": _extreme(jnp.argmax), "min.dim": _extreme(jnp.argmin),
    "argmax.default": lambda x, axis=None, keepdim=False: jnp.argmax(x, axis, keepdims=keepdim),
    # pooling
    "max_pool2d_with_indices.default": _max_pool, "avg_pool2d.default": _avg_pool,
    "_adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "adaptive_avg_pool1d.default": _adaptive_avg_pool,
}  # fmt: skip

_SCALARS: dict[str, Callable] = {
    "sym_size.int": lambda x, axis: x.shape[axis],
    "sym_numel.default": lambda x: x.size,
}


_KINDS = (
    "Tensor", "Scalar", "default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor", "Scalar",
    "Tensor_mode", "Scalar_mode",
)  # fmt: skip


def _table() -> dict[str, Callable]:
    found = {f"aten.{name}.default": _same for name in _SAME}
    found["aten.detach.default"] = lax.stop_gradient
    found |= {f"aten.{name}.default": op for name, op in _ELEMENTWISE.items()}
    for name, op in _PAIRS.items():
        found |= {f"aten.{name}.{kind}": op for kind in _KINDS}
    found |= {f"aten.{name}": op for name, op in (_OTHERS | _SCALARS).items()}
    return found


TABLE: dict[str, Callable] = _table()

PYTHON = {
    f: f
    for f in (
        operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv,
        operator.mod, operator.neg, operator.pow, operator.truediv, operator.eq, operator.ge,
        operator.gt, operator.le, operator.lt, operator.ne, math.floor, math.ceil, math.sqrt,
        min, max,
    )
}  # fmt: skip
"""What a graph does with whole numbers such as sizes."""

CHECKS = ("_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range")
"""Operations without a result, which only check."""
