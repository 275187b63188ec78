"""Your first certificate: does theorem A cover this network, and does training obey it?

The command line does the same:
``shoal certify wu2023.theorem_a --set width=20000 --set num_samples=2 ... --out DIR``.
"""

import tempfile
from pathlib import Path

import shoal as sh

# A paper's model, its data and initial weights; every setting is a keyword (`shoal papers wu2023`).
setup = sh.setup(
    "wu2023",
    num_samples=2,
    num_tokens=2,
    dim=16,
    tokens="unit",
    label_scale=0.1,
    pooling="sum",
    score_exponent=1.0,
    width=20000,
)

# Train with the largest step that the theorem allows, recording what its conclusions need.
run = sh.train(setup, steps=50, step_size="theorem_a")
print(run)

# Compare: each hypothesis and conclusion with its margin, then the verdict.
certificate = sh.certify(run, "theorem_a")
print(certificate)

# Keep it: a picture, a table, and a folder that any tool can read.
folder = Path(tempfile.mkdtemp())
run.plot("movement", out=folder / "run.png")
print(run.frame().head(3))
run.save(folder / "run", [certificate])

# Load it again; the theorem says the same about it.
again = sh.load(folder / "run")
print("the loaded run:", sh.certify(again, "theorem_a").verdict)
print("everything is in", folder)
