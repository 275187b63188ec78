"""The same models as their authors would write them: plain PyTorch, and plain JAX.

No algebra is spared and none is added: queries, keys and values are formed, attention is applied
to values, autodiff does the rest.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import harness

Arrays = dict[str, np.ndarray]


# -------------------------------------------------------------------------------- the four models


def encoder(lib: Any, p: Any, X: Any) -> Any:
    """wu2023, LeCun, mean pooling, scores over the root of the width."""
    Q, K, V = X @ p["W_Q"].T, X @ p["W_K"].T, X @ p["W_V"].T
    S = lib.softmax(Q @ lib.swap(K) / p["W_Q"].shape[0] ** 0.5)
    return lib.relu(S @ V).mean(1) @ p["w_O"]


def heads(lib: Any, p: Any, X: Any) -> Any:
    """arda2026, query = last token."""
    q = X[:, -1]
    keys = lib.einsum("hde,be->bhd", p["W"], q)
    alpha = lib.softmax(lib.einsum("btd,bhd->bht", X, keys))
    a = lib.einsum("bht,btd->bhd", alpha, X)
    h = lib.tanh(lib.einsum("hd,bhd->bh", p["U"], a))
    return h @ p["c"] / p["c"].shape[0] ** 0.5


def layer(lib: Any, p: Any, X: Any, *, gaussian: bool) -> Any:
    """song2024's layer with heads; a Gaussian's bandwidth is the root of the key width."""
    key_dim, X = p["W_Q"].shape[2], X[:, None]
    Q, K, V = X @ p["W_Q"], X @ p["W_K"], X @ p["W_V"]
    scores = Q @ lib.swap(K) / key_dim**0.5
    if gaussian:
        squares = (Q**2).sum(-1)[..., :, None] + (K**2).sum(-1)[..., None, :]
        weights = lib.exp(scores - squares / (2 * key_dim**0.5))
    else:
        weights = lib.softmax(scores)
    return (weights @ V @ p["W_O"]).sum(1)


def blocks(lib: Any, p: Any, X: Any) -> Any:
    """qin2025 with both residuals and ReLU, an output for every token."""
    key_dim = p["W_Q"].shape[2]
    for W_Q, W_K, W_V, W_1, W_2 in zip(*(p[f"W_{n}"] for n in "QKV12"), strict=True):
        S = lib.softmax((X @ W_Q) @ lib.swap(X @ W_K) / key_dim**0.5)
        A = X + S @ (X @ W_V)
        X = A + lib.relu(A @ W_1) @ W_2
    return X @ p["W_U"]


# ------------------------------------------------------------------------------ the two libraries


class Torch:
    """What the models need, by PyTorch."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.relu, self.tanh, self.einsum = torch.relu, torch.tanh, torch.einsum
        self.exp = torch.exp

    def softmax(self, scores: Any) -> Any:
        """Over keys."""
        return self.torch.softmax(scores, -1)

    def swap(self, K: Any) -> Any:
        """Transpose every matrix of a stack."""
        return K.transpose(-1, -2)

    def arrays(self, values: Arrays, precision: str) -> Any:
        """The same numbers, as this library has them."""
        kind = getattr(self.torch, precision)
        return {k: self.torch.tensor(np.array(v), dtype=kind) for k, v in values.items()}


class Jax:
    """What the models need, by JAX."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self.jax, self.jnp = jax, jnp
        self.relu, self.tanh, self.einsum = jax.nn.relu, jnp.tanh, jnp.einsum
        self.exp = jnp.exp

    def softmax(self, scores: Any) -> Any:
        """Over keys."""
        return self.jax.nn.softmax(scores, -1)

    def swap(self, K: Any) -> Any:
        """Transpose every matrix of a stack."""
        return K.swapaxes(-1, -2)

    def arrays(self, values: Arrays, precision: str) -> Any:
        """The same numbers, as this library has them."""
        return {k: self.jnp.asarray(v, precision) for k, v in values.items()}


# ------------------------------------------------------------------------------------- their loops

Model = Callable[[Any, Any, Any], Any]
Loss = Callable[[Any], Any]
"""Of the errors."""


def torch_loop(
    model: Model,
    start: Arrays,
    data: Arrays,
    loss: Loss,
    precision: str,
    step_size: float,
    num_steps: int,
    *,
    compiled: bool = False,
) -> Callable[[], Arrays]:
    """Plain gradient descent in PyTorch: forward, backward, update."""
    lib = Torch()
    torch = lib.torch
    given = lib.arrays(data, precision)

    def risk(p: Any) -> Any:
        return loss(model(lib, p, given["X"]) - given["y"])

    risk_of = torch.compile(risk) if compiled else risk

    def work() -> Arrays:
        p = {k: v.requires_grad_() for k, v in lib.arrays(start, precision).items()}
        for _ in range(num_steps):
            risk_of(p).backward()
            with torch.no_grad():
                for v in p.values():
                    v -= step_size * v.grad
                    v.grad = None
        return {k: v.detach().numpy() for k, v in p.items()}

    return work


def jax_loop(
    model: Model,
    start: Arrays,
    data: Arrays,
    loss: Loss,
    precision: str,
    step_size: float,
    num_steps: int,
) -> Callable[[], Arrays]:
    """Plain gradient descent in JAX: one compiled step, a loop in Python."""
    lib = Jax()
    given = lib.arrays(data, precision)

    @lib.jax.jit
    def step(p: Any) -> Any:
        slopes = lib.jax.grad(lambda p: loss(model(lib, p, given["X"]) - given["y"]))(p)
        return lib.jax.tree.map(lambda v, g: v - step_size * g, p, slopes)

    def work() -> Arrays:
        p = lib.arrays(start, precision)
        for _ in range(num_steps):
            p = step(p)
        return lib.jax.block_until_ready(p)

    return work


# ------------------------------------------------------------------------------- the same for all

Prepared = Callable[..., Any]
"""From a precision and sizes to a `Setup`: data, weights, the step and the number of steps."""


def _rival(precision: str, prepared: Prepared, model: Model, loss: Loss, loop: Any, **sizes: Any):
    setup = prepared(precision, **sizes)
    setting = setup.setting
    start = {k: v[0] for k, v in setup.params0._asdict().items()}
    data = {"X": setup.problem.X, "y": setup.problem.y}
    return loop(model, start, data, loss, precision, setting.step_size, setting.num_steps)


def _shoal(precision: str, prepared: Prepared, **sizes: Any) -> harness.Work:
    """The engine, as `shoal train` calls it."""
    from shoal.lab.engine import trajectories

    setup = prepared(precision, **sizes)

    def work() -> Arrays:
        return {k: v[0] for k, v in trajectories(setup).params._asdict().items()}

    return work


def descent(prepared: Prepared, model: Model, loss: Loss) -> dict[str, Callable[..., harness.Work]]:
    """All who descend the same risk from the same start: the sides of a question."""
    rival = functools.partial(_rival, prepared=prepared, model=model, loss=loss)
    compiled = functools.partial(torch_loop, compiled=True)
    return {
        "shoal": functools.partial(_shoal, prepared=prepared),
        "PyTorch eager": functools.partial(rival, loop=torch_loop),
        "torch.compile": functools.partial(rival, loop=compiled),
        "plain JAX": functools.partial(rival, loop=jax_loop),
    }


def half_sum(e: Any) -> Any:
    """Half of the sum of squared errors."""
    return 0.5 * (e**2).sum()


def mean(e: Any) -> Any:
    """Mean of squared errors."""
    return (e**2).mean()


# ------------------------------------------------------------------------------ tangent kernels


def jacobian_contraction(apply: Any, params: Any, inputs: Any) -> harness.Work:
    """The tangent kernel by vmap of jax.jacrev, contracted."""
    import jax

    @jax.jit
    def kernel(params: Any, inputs: Any) -> Any:
        J = jax.vmap(jax.jacrev(apply), in_axes=(None, 0))(params, inputs)
        rows = [j.reshape(len(inputs), -1) for j in jax.tree.leaves(J)]
        return sum(j @ j.T for j in rows)

    return lambda: {"kernel": kernel(params, inputs).block_until_ready()}
