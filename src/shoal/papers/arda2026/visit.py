"""What the tour shows of arda2026: a small run of projected gradient descent, and theorem B."""

import numpy as np

from shoal.certificates import Verdict
from shoal.figures import Panel, band
from shoal.lab.run import train
from shoal.lab.setup import paper_setup
from shoal.lab.visit import Visit, number
from shoal.papers.arda2026.model import PAPER

SEQUENCES = {"num_samples": 20, "num_tokens": 8, "dim": 4, "num_heads": 16, "num_steps": 100}


def visit() -> Visit:
    """A small run of projected gradient descent, and theorem B about its mean loss."""
    run = train(paper_setup(PAPER, SEQUENCES), probes=("scaled_movement", "path"))
    found = run.certify("theorem_b")
    risk, verdict, labels = run.risk[0], found.verdict, run.setup.setting.labels
    radius = ",".join(f"{r:g}" for r in run.setup.setting.radius)
    last, mean = float(risk[-1]), float(np.mean(risk[:-1]))
    at_most = float(found[0].constants["bound along the path"])
    applies = verdict != Verdict.NOT_APPLICABLE
    words = f"With radius {radius} the bound is {at_most / mean:.1f} times the mean loss."
    if not applies:
        words = f"Radius {radius} does not contain the teacher: nothing is promised."
    row = {"theorem": "theorem_b", "labels": labels, "radius": radius}
    numbers = (number(last), number(mean), number(at_most) if applies else "-")
    curve = band(f"{labels}, radius {radius}", run.step, run.risk)
    return Visit(
        title="descent within a radius",
        rows=[row | {"first_risk": float(risk[0]), "last_risk": last, "mean_risk": mean,
                     "at_most": at_most, "verdict": verdict}],
        head=("theorem", "labels", "radius", "last loss", "mean loss", "mean at most", "verdict"),
        cells=[(*row.values(), *numbers, verdict)],
        words=words,
        about="Heads with one neuron each, in pairs of opposite signs, each kept in a ball around "
        "its start: the loss is bounded in finite time, whatever the length of the sequences.",
        panels=(Panel("projected gradient descent", "step", "loss", (curve,), log_y=True),),
        verdicts=((f"theorem_b, radius {radius}", verdict),),
        finding=f"The mean loss of {len(risk) - 1} steps is {number(mean)}; theorem_b bounds it by "
        f"{number(at_most)}." if applies else words,
    )  # fmt: skip


PAPER.visit = visit
