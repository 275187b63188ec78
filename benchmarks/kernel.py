"""How fast, and in how much memory, is the tangent kernel of wu2023?"""

from typing import Any

import harness


def _start(precision: str, **sizes: int) -> tuple[Any, Any, Any]:
    import jax

    from shoal.experiments import prepare
    from shoal.papers import wu2023

    experiment = prepare(wu2023.PAPER, sizes, precision=precision)
    return experiment, jax.tree.map(lambda x: x[0], experiment.params0), experiment.problem.X


def _total(kernels: Any, params: Any) -> harness.Work:
    import jax

    total = jax.jit(lambda params: sum(kernels(params).values()))
    return lambda: {"kernel": total(params).block_until_ready()}


def shoal(precision: str, **sizes: int) -> harness.Work:
    """The closed form."""
    from shoal.papers import wu2023
    from shoal.papers.wu2023.encoder import tangent_kernels

    experiment, params, X = _start(precision, **sizes)
    return _total(tangent_kernels(X, wu2023.scales(experiment.setting)), params)


def jax_contraction(precision: str, **sizes: int) -> harness.Work:
    """The Jacobian of all samples, contracted with itself."""
    from shoal.diagnostics.kernels import tangent_kernels
    from shoal.papers import wu2023

    experiment, params, X = _start(precision, **sizes)
    return _total(tangent_kernels(wu2023.model(experiment.setting), X), params)


def torch_contraction(precision: str, **sizes: int) -> harness.Work:
    """The recipe of torch.func: vmap of jacrev, contracted."""
    import rivals

    lib = rivals.Torch()
    torch = lib.torch
    _, params, X = _start(precision, **sizes)
    p = lib.arrays(params._asdict(), precision)
    tokens = lib.arrays({"X": X}, precision)["X"]

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
