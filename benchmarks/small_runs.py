"""How many steps a second do many small runs make, all seeds together?"""

from typing import Any

import harness
import rivals

SIZES = {"num_samples": 50, "num_tokens": 10, "dim": 10, "width": 64}
SEEDS, LONG, SHORT = 32, 2000, 200
"""Rivals run one seed for a while: their rate does not depend on how long."""


def prepared(precision: str, seeds: int = 1, num_steps: int = SHORT) -> Any:
    """Some seeds of a small run."""
    from shoal.lab.setup import paper_setup
    from shoal.papers import wu2023

    values = SIZES | {"step_size": 1e-3, "num_steps": num_steps, "every": SHORT}
    return paper_setup(wu2023.PAPER, values, seeds=range(seeds), precision=precision)


def shoal(precision: str) -> harness.Work:
    """All seeds, as `shoal train --seeds 0-31` runs them."""
    from shoal.lab.engine import trajectories

    many, one = prepared(precision, SEEDS, LONG), prepared(precision)
    reached: dict[str, Any] = {}

    def work() -> dict[str, Any]:
        trajectories(many)
        if not reached:  # what the rivals reach, by a shorter call of the same kind
            found = trajectories(one).params._asdict()
            reached.update({k: v[0] for k, v in found.items()})
        return reached

    return work


SIDES = rivals.descent(prepared, rivals.encoder, rivals.half_sum) | {"shoal": shoal}
STEPS = dict.fromkeys(SIDES, SHORT) | {"shoal": SEEDS * LONG}

QUESTION = harness.Question(
    "Small runs",
    f"{SEEDS} seeds of {LONG} steps side by side, against one seed after the other; time a step.",
    "step of one seed",
    tuple(
        harness.Case(
            f"50 samples, 10 tokens, dim 10, width 64, {SEEDS} seeds",
            {},
            STEPS,
            3 * 2 * 500 * 10 * 64 + 3 * 2 * 64 * 100,
            precision,
            rounds=5,
        )
        for precision in ("float32", "float64")
    ),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
