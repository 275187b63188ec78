"""How fast, and in how much memory, is the tangent kernel of a model that shoal has never seen?"""

from typing import Any

import harness
import rivals


def attention(p: Any, x: Any) -> Any:
    """The shape of wu2023 as anyone would write it."""
    import jax
    import jax.numpy as jnp

    scores = (x @ p["W_Q"].T) @ (x @ p["W_K"].T).T / len(p["w_O"]) ** 0.5
    hidden = jax.nn.relu(jax.nn.softmax(scores, axis=-1) @ x @ p["W_V"].T)
    return jnp.mean(hidden, axis=0) @ p["w_O"]


def encoder(p: Any, x: Any) -> Any:
    """Pre-norm layers with four heads, then the mean over tokens and a linear head."""
    import jax
    import jax.numpy as jnp

    def normalised(x: Any, layer: Any, number: int) -> Any:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        size = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return centred / size * layer[f"scale_{number}"] + layer[f"shift_{number}"]

    for layer in p["layers"]:
        h = normalised(x, layer, 1)
        q, k, v = ((h @ layer[name].T).reshape(len(x), 4, -1) for name in ("W_Q", "W_K", "W_V"))
        scores = jnp.einsum("ihk,jhk->hij", q, k) / q.shape[-1] ** 0.5
        attended = jnp.einsum("hij,jhk->ihk", jax.nn.softmax(scores, axis=-1), v)
        x = x + attended.reshape(x.shape) @ layer["W_O"].T
        h = normalised(x, layer, 2)
        x = x + jax.nn.gelu(h @ layer["W_1"].T + layer["b_1"]) @ layer["W_2"].T
    return jnp.mean(x, axis=0) @ p["head"]


def _prepared(precision: str, model: str, N: int, n: int, d: int, width: int) -> tuple:
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape) / shape[-1] ** 0.5, precision)

    def layer() -> dict[str, Any]:
        square = {name: draw(d, d) for name in ("W_Q", "W_K", "W_V", "W_O")}
        wide = {"W_1": draw(width, d), "b_1": draw(width), "W_2": draw(d, width)}
        return square | wide | {f"{k}_{i}": draw(d) for k in ("scale", "shift") for i in (1, 2)}

    X = jnp.asarray(rng.standard_normal((N, n, d)), precision)
    if model == "encoder":
        return encoder, {"layers": [layer() for _ in range(3)], "head": draw(d)}, X
    hidden = {name: draw(width, d) for name in ("W_Q", "W_K", "W_V")}
    return attention, hidden | {"w_O": draw(width)}, X


def shoal(precision: str, **values: Any) -> harness.Work:
    """The cheapest route for every weight, found in the model's program."""
    import jax

    from shoal.diagnostics.kernels import tangent_kernels
    from shoal.models import Model

    apply, params, X = _prepared(precision, **values)
    kernels = tangent_kernels(Model(params, apply), X)
    total = jax.jit(lambda params: sum(kernels(params).values()))
    return lambda: {"kernel": total(params).block_until_ready()}


def jax_contraction(precision: str, **values: Any) -> harness.Work:
    """The Jacobian of all samples, contracted with itself."""
    return rivals.jacobian_contraction(*_prepared(precision, **values))


SIDES = {"shoal": shoal, "JAX Jacobian": jax_contraction}


def _case(model: str, N: int, n: int, d: int, width: int, precision: str) -> harness.Case:
    what = "3-layer encoder" if model == "encoder" else "attention"
    return harness.Case(
        f"{what}, {N} samples, {n} tokens, dim {d}, width {width}",
        {"model": model, "N": N, "n": n, "d": d, "width": width},
        dict.fromkeys(SIDES, 1),
        precision=precision,
    )


QUESTION = harness.Question(
    "Tangent kernel of any model",
    "Plain JAX functions, of which shoal knows nothing: the shape of wu2023, and a pre-norm "
    "encoder of two sizes. Where tokens are many and the model is narrow, forming gradients is "
    "the best that is known to both sides.",
    "kernel",
    (
        _case("attention", 100, 10, 20, 1000, "float64"),
        _case("attention", 100, 10, 20, 1000, "float32"),
        _case("encoder", 50, 10, 256, 1024, "float64"),
        _case("encoder", 100, 10, 20, 1000, "float64"),
    ),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
