"""How fast is a step of gradient descent on song2024's attention layer?"""

import functools
from typing import Any

import harness
import rivals

SIZES = {"num_samples": 50, "num_tokens": 10, "dim": 32, "num_heads": 4}
KEYS, VALUES, OUT, STEPS = 8, 2, 1, 300


def prepared(precision: str, kernel: str) -> Any:
    """The same start for all sides; all four blocks are trained."""
    from shoal.lab.setup import paper_setup
    from shoal.papers import song2024

    values = SIZES | {"key_dim": KEYS, "value_dim": VALUES, "out_dim": OUT, "kernel": kernel}
    values |= {"train": "all", "step_size": 1e-4, "num_steps": STEPS, "every": STEPS}
    return paper_setup(song2024.PAPER, values, precision=precision)


def _side(name: str, precision: str, kernel: str) -> harness.Work:
    model = functools.partial(rivals.layer, gaussian=kernel == "gaussian")
    return rivals.descent(prepared, model, rivals.half_sum)[name](precision, kernel=kernel)


NAMES = ("shoal", "PyTorch eager", "torch.compile", "plain JAX")
SIDES = {name: functools.partial(_side, name) for name in NAMES}


def _case(kernel: str, precision: str) -> harness.Case:
    N, n, D, H = SIZES.values()
    # a product forwards and two backwards, for queries, keys, values (their two maps in one) and
    # attention
    forward = 2.0 * N * n * H * (2 * D * KEYS + D * OUT + n * KEYS + n * OUT)
    return harness.Case(
        f"{N} samples, {n} tokens, dim {D}, {H} heads, {kernel}",
        {"kernel": kernel},
        dict.fromkeys(SIDES, STEPS),
        3 * forward,
        precision,
        exponentials=N * H * n * n,
    )


QUESTION = harness.Question(
    "Training song2024's layer",
    "Full-batch gradient descent on queries, keys, values and outputs. The limit is the flops at "
    "the rate of a large matrix product, and the exponentials at theirs.",
    "step",
    tuple(
        _case(kernel, precision)
        for precision in ("float32", "float64")
        for kernel in ("softmax", "gaussian")
    ),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
