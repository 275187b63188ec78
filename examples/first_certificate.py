"""Your first certificate: does theorem A apply to this network, and does training obey it?

Everything is a plain call; the command line does the same with
``shoal certify wu2023.theorem_a --set width=20000 ...``.
"""

import jax

jax.config.update("jax_enable_x64", True)  # bounds mean nothing in single precision

from shoal.experiments import allowed_step, certify, prepare, simulate, theorem_of

from shoal.certificates import readings, verdict
from shoal.papers import wu2023

values = {
    "num_samples": 2,
    "num_tokens": 2,
    "dim": 16,
    "tokens": "unit",
    "label_scale": 0.1,
    "pooling": "sum",
    "score_exponent": 1.0,
    "width": 20000,
    "num_steps": 50,
}
theorem = theorem_of(wu2023.PAPER, "theorem_a")

# a problem and initial weights, then the largest step size that the theorem allows for them
experiment = prepare(wu2023.PAPER, values, seeds=[0])
step_size = allowed_step(experiment, theorem)
experiment = experiment._replace(setting=experiment.setting._replace(step_size=step_size))

# train, recording what the theorem speaks of, and confront the two
trajectory = simulate(experiment, theorem.probes)
(certificate,) = certify(experiment, theorem, trajectory)

hypotheses, conclusions = readings(certificate)
for line in (*hypotheses, *conclusions):
    print(f"{line.lhs:12.4g} <= {line.rhs:12.4g}  margin {line.margin:+.3f}  {line.name}")
print(
    f"risk {trajectory.risk[0, 0]:.4g} -> {trajectory.risk[0, -1]:.4g}; lost per step: "
    f"proved {certificate.predicted_rate:.4g}, measured {certificate.measured_rate:.4g}"
)
print("verdict:", verdict(certificate))
