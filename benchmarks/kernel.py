"""How fast, and in how much memory, is the tangent kernel of wu2023?"""

from typing import Any

import harness


def _start(precision: str, **sizes: int) -> Any:
    from shoal.lab.setup import paper_setup
    from shoal.papers import wu2023

    return paper_setup(wu2023.PAPER, sizes, precision=precision).one()


def _total(kernels: Any, params0: Any) -> harness.Work:
    import jax
    import jax.numpy as jnp

    params = jax.tree.map(jnp.asarray, params0)
    total = jax.jit(lambda params: sum(kernels(params).values()))
    return lambda: {"kernel": total(params).block_until_ready()}


def shoal(precision: str, **sizes: int) -> harness.Work:
    """The closed form."""
    import jax.numpy as jnp

    from shoal.papers.wu2023.model import tangent_kernels

    start = _start(precision, **sizes)
    X = jnp.asarray(start.inputs)
    return _total(tangent_kernels(X, start.setting.scales()), start.params0)


def jax_contraction(precision: str, **sizes: int) -> harness.Work:
    """The Jacobian of all samples, contracted with itself."""
    import jax
    import jax.numpy as jnp

    import rivals

    start = _start(precision, **sizes)
    params = jax.tree.map(jnp.asarray, start.params0)
    return rivals.jacobian_contraction(start.network.apply, params, jnp.asarray(start.inputs))


def torch_contraction(precision: str, **sizes: int) -> harness.Work:
    """The recipe of torch.func: vmap of jacrev, contracted."""
    import rivals

    lib = rivals.Torch()
    torch = lib.torch
    start = _start(precision, **sizes)
    p = lib.arrays(start.params0._asdict(), precision)
    tokens = lib.arrays({"X": start.inputs}, precision)["X"]

    def one(p: Any, x: Any) -> Any:
        return rivals.encoder(lib, p, x[None])[0]

    rows = torch.func.vmap(torch.func.jacrev(one), (None, 0))

    def work() -> dict[str, Any]:
        J = {k: v.flatten(1) for k, v in rows(p, tokens).items()}
        return {"kernel": sum(j @ j.T for j in J.values()).numpy()}

    return work


SIDES = {
    "shoal": shoal,
    "JAX Jacobian": jax_contraction,
    "torch.func": torch_contraction,
}


def _case(
    N: int, n: int, d: int, width: int, precision: str, sides: tuple[str, ...] = tuple(SIDES)
) -> harness.Case:
    sizes = {"num_samples": N, "num_tokens": n, "dim": d, "width": width}
    values = min(2 * N * N * n * n * width, 2 * N * N * width * d + 2 * N * n * width * d)
    flops = values + 2 * 2 * N * n * d * width + 2 * N * N * width
    return harness.Case(
        f"{N} samples, {n} tokens, dim {d}, width {width}",
        sizes,
        dict.fromkeys(sides, 1),
        flops,
        precision,
        rounds=7 if N < 1000 else 2,
    )


QUESTION = harness.Question(
    "Tangent kernel of wu2023",
    "All four blocks, summed. Jacobian contraction is the best method of neural-tangents for such "
    "models and the recipe of torch.func.",
    "kernel",
    (
        _case(100, 10, 20, 4000, "float32"),
        _case(100, 10, 100, 4000, "float32"),
        _case(100, 10, 20, 4000, "float64"),
        _case(100, 10, 100, 4000, "float64"),
        _case(5000, 10, 20, 1000, "float32", ("shoal",)),
    ),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
