"""How fast is a step of gradient descent on wu2023's encoder?"""

from typing import Any

import harness
import rivals


def prepared(precision: str, num_steps: int, **sizes: int) -> Any:
    """The same start for all sides."""
    from shoal.lab.setup import paper_setup
    from shoal.papers import wu2023

    values = sizes | {"step_size": 2e-5, "num_steps": num_steps, "every": num_steps}
    return paper_setup(wu2023.PAPER, values, precision=precision)


SIDES = rivals.descent(prepared, rivals.encoder, rivals.half_sum)


def _case(width: int, precision: str, num_steps: int) -> harness.Case:
    N, n, d = 100, 10, 20
    sizes = {"num_samples": N, "num_tokens": n, "dim": d, "width": width}
    # three products over the hidden units, and W_Q^T W_K with its two gradients
    flops = 3 * 2 * N * n * d * width + 3 * 2 * width * d * d
    return harness.Case(
        f"{N} samples, {n} tokens, dim {d}, width {width}",
        sizes | {"num_steps": num_steps},
        dict.fromkeys(SIDES, num_steps),
        flops,
        precision,
    )


QUESTION = harness.Question(
    "Training wu2023",
    "Full-batch gradient descent on the encoder; the limit is the flops of three products over the "
    "hidden units at the rate of a large matrix product.",
    "step",
    tuple(
        _case(width, precision, num_steps)
        for precision in ("float32", "float64")
        for width, num_steps in ((1000, 100), (4000, 50))
    ),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
