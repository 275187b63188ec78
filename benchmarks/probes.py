"""What do probes cost?"""

from typing import Any

import harness

STEP = 2e-5
EVERY_STEP = ("pl_ratio", "movement", "attention_entropy")


def _run(precision: str, names: tuple[str, ...], **values: int) -> harness.Work:
    from shoal.lab.engine import trajectories
    from shoal.lab.setup import paper_setup
    from shoal.papers import wu2023

    setup = paper_setup(wu2023.PAPER, values | {"step_size": STEP}, precision=precision)

    def work() -> dict[str, Any]:
        run = trajectories(setup, names)
        return {"risk": run.risk[0, -1], "w_O": run.params.w_O[0]}

    return work


def alone(precision: str, **values: int) -> harness.Work:
    """Training that records nothing but the risk at its ends."""
    return _run(precision, (), **values | {"every": values["num_steps"]})


def watched(precision: str, **values: int) -> harness.Work:
    """Loss, PL ratio, movement and entropy at every step."""
    return _run(precision, EVERY_STEP, **values)


def with_spectrum(precision: str, **values: int) -> harness.Work:
    """The same, and the spectrum of the tangent kernel every 50 steps."""
    return _run(precision, (*EVERY_STEP, "kernel_eigenvalues@50"), **values)


SIDES = {
    "training alone": alone,
    "four probes at every step": watched,
    "and the kernel's spectrum every 50": with_spectrum,
}


def _case(N: int, n: int, d: int, width: int, precision: str) -> harness.Case:
    sizes = {"num_samples": N, "num_tokens": n, "dim": d, "width": width, "num_steps": 200}
    return harness.Case(
        f"{N} samples, {n} tokens, dim {d}, width {width}",
        sizes,
        dict.fromkeys(SIDES, 200),
        3 * 2 * N * n * d * width + 3 * 2 * width * d * d,
        precision,
    )


QUESTION = harness.Question(
    "Probes",
    "wu2023 trained with and without being watched: loss, PL ratio, movement and attention entropy "
    "at every step, and all eigenvalues of the tangent kernel every 50 steps.",
    "step",
    (_case(100, 10, 20, 1000, "float32"), _case(100, 10, 20, 1000, "float64")),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
