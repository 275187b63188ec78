"""How fast is a step of gradient descent on qin2025's residual blocks?"""

from typing import Any

import harness
import rivals

MODEL = {"activation": "relu", "num_layers": 4, "key_dim": 16, "out_dim": 2}


def prepared(precision: str, num_steps: int, **sizes: int) -> Any:
    """The same start for all sides."""
    from shoal.lab.setup import paper_setup
    from shoal.papers import qin2025

    values = MODEL | sizes | {"step_size": 1e-5, "num_steps": num_steps, "every": num_steps}
    return paper_setup(qin2025.PAPER, values, precision=precision)


SIDES = rivals.descent(prepared, rivals.blocks, rivals.half_sum)


def _case(N: int, n: int, d: int, m: int, num_steps: int, precision: str) -> harness.Case:
    sizes = {"num_samples": N, "num_tokens": n, "dim": d, "width": m}
    k = MODEL["key_dim"]
    # a product forwards and two backwards, for queries, keys, values, feed-forward and attention
    forward = 2.0 * N * n * (2 * d * k + d * d + 2 * d * m + n * k + n * d)
    return harness.Case(
        f"4 layers, {N} samples, {n} tokens, dim {d}, width {m}",
        sizes | {"num_steps": num_steps},
        dict.fromkeys(SIDES, num_steps),
        3 * 4 * forward,
        precision,
        exponentials=4 * N * n * n,
    )


QUESTION = harness.Question(
    "Training qin2025 at depth 4",
    "Full-batch gradient descent on four residual blocks.",
    "step",
    tuple(
        _case(*sizes, precision)
        for precision in ("float32", "float64")
        for sizes in ((4, 6, 32, 64, 300), (64, 16, 64, 256, 20))
    ),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
