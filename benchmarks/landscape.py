"""How fast is a plane of 51 x 51 points of the risk?"""

from typing import Any

import harness
import rivals

POINTS, SPAN = 51, 1.0


def _start(precision: str, **sizes: int) -> tuple[Any, Any, Any]:
    import jax

    from shoal.diagnostics import landscape
    from shoal.lab.setup import paper_setup
    from shoal.papers import wu2023

    start = paper_setup(wu2023.PAPER, sizes, precision=precision).one()
    params = jax.tree.map(jax.numpy.asarray, start.params0)
    return start, params, landscape.random_directions(jax.random.key(0), params)


def shoal(precision: str, **sizes: int) -> harness.Work:
    """One compiled call, as `shoal landscape` makes it."""
    import jax
    import jax.numpy as jnp

    from shoal.diagnostics import landscape

    start, params, directions = _start(precision, **sizes)
    axis = jnp.linspace(-SPAN, SPAN, POINTS).astype(precision)
    risk = start.value_risk
    plane = jax.jit(lambda p, d: landscape.plane(risk, p, d, axis, axis))
    return lambda: {"plane": plane(params, directions).block_until_ready()}


def torch_eager(precision: str, **sizes: int) -> harness.Work:
    """Two loops around a forward pass."""
    import numpy as np

    start, params, directions = _start(precision, **sizes)
    lib = rivals.Torch()
    torch = lib.torch
    p = lib.arrays(params._asdict(), precision)
    one, two = (lib.arrays(d, precision) for d in directions)
    data = lib.arrays({"X": start.inputs, "y": start.targets}, precision)
    axis = np.linspace(-SPAN, SPAN, POINTS)

    def work() -> dict[str, Any]:
        plane = np.empty((POINTS, POINTS))
        with torch.no_grad():
            for i, a in enumerate(axis):
                for j, b in enumerate(axis):
                    moved = {k: p[k] + a * one[k] + b * two[k] for k in p}
                    e = rivals.encoder(lib, moved, data["X"]) - data["y"]
                    plane[i, j] = float(0.5 * (e**2).sum())
        return {"plane": plane}

    return work


SIDES = {"shoal": shoal, "PyTorch eager": torch_eager}


def _case(N: int, n: int, d: int, width: int) -> harness.Case:
    sizes = {"num_samples": N, "num_tokens": n, "dim": d, "width": width}
    flops = POINTS**2 * (2.0 * N * n * d * width + 2.0 * width * d * d)
    return harness.Case(
        f"51 x 51 points, {N} samples, {n} tokens, dim {d}, width {width}",
        sizes,
        dict.fromkeys(SIDES, 1),
        flops,
        rounds=3,
    )


QUESTION = harness.Question(
    "Landscape",
    "The risk of wu2023 on a plane around the start; the limit counts the product over the hidden "
    "units at every point.",
    "plane",
    (_case(20, 5, 20, 256), _case(100, 10, 20, 1000)),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
