"""How fast is a step of projected gradient descent on arda2026's heads?"""

from typing import Any

import harness
import rivals


def prepared(precision: str, num_steps: int, **sizes: int) -> Any:
    """The same start for all sides; labels without a teacher, which a step does not see."""
    from shoal.lab.setup import paper_setup
    from shoal.papers import arda2026

    values: dict[str, Any] = {"labels": "gaussian", "radius": "none", "step_size": 0.01}
    values |= sizes | {"num_steps": num_steps, "every": num_steps}
    return paper_setup(arda2026.PAPER, values, precision=precision)


SIDES = rivals.descent(prepared, rivals.heads, rivals.mean)


def _case(N: int, T: int, d: int, m: int, num_steps: int, precision: str) -> harness.Case:
    sizes = {"num_samples": N, "num_tokens": T, "dim": d, "num_heads": m}
    # keys (N m d^2), scores, s and two pullbacks (N T m d each), and W's gradient (N m d^2)
    flops = 2.0 * N * m * (2 * d * d + 4 * T * d)
    return harness.Case(
        f"{N} samples, {T} tokens, dim {d}, {m} heads",
        sizes | {"num_steps": num_steps},
        dict.fromkeys(SIDES, num_steps),
        flops,
        precision,
        rounds=5,
        exponentials=N * T * m,
    )


QUESTION = harness.Question(
    "Training arda2026",
    "Full-batch gradient descent on the heads. The limit is the flops at the rate of a large "
    "matrix product, and the exponentials at theirs.",
    "step",
    tuple(
        _case(5000, 16, 8, heads, steps, precision)
        for precision in ("float32", "float64")
        for heads, steps in ((8, 20), (256, 5))
    ),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
