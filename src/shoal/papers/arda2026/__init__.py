r"""Arda, Cayci, Eryilmaz (2026): Finite-Time Analysis of Gradient Descent for Shallow Transformers.

Symbols: $m$ is ``num_heads``, $T$ ``num_tokens``, $n$ ``num_samples``, $\rho$ ``radius``, $\nu$
``teacher_norm``, $\tau$ ``num_steps``, $\eta$ ``step_size``. The loss is the mean of squares,
$L=\tfrac1n\sum_j(f_j-y_j)^2$, without $\tfrac12$.

Certified here: theorems A and B (mean loss of projected gradient descent), both after the paper's
main theorem with constants of ours, theorem C (a lower bound by duality, ours), and the prediction
of the initial tangent kernel. The paper's appendices were not available to us; its own constants,
where its text gives them, stand beside ours in ``docs/theory/arda2026.md``.
"""

from typing import Any

import jax.numpy as jnp

from shoal.certificates import Certificate, Inequality
from shoal.experiments import ANY_METHOD, Case, Paper, Theorem
from shoal.losses import mean_of_squares
from shoal.models import predict
from shoal.papers.arda2026 import theorems
from shoal.papers.arda2026.choices import (
    Setting,
    activations,
    check,
    complete,
    held_out,
    init,
    method,
    model,
    problem,
    radii,
    sizes,
    speeds,
)
from shoal.papers.arda2026.measuring import driving_kernel, probes, start_of, usual_step
from shoal.theory.kernel_regime import kernel_regime
from shoal.training import Trajectory


def _theorem_a(case: Case, run: Trajectory) -> Certificate:
    return theorems.theorem_a(start_of(case), case.step_size, run)


def _theorem_b(case: Case, run: Trajectory) -> Certificate:
    return theorems.theorem_b(start_of(case), case.step_size, run)


def _theorem_c(case: Case, run: Trajectory) -> Certificate:
    return theorems.theorem_c(start_of(case), run)


def _kernel_regime(case: Case, run: Trajectory) -> Certificate:
    y = case.problem.y
    e0 = predict(model(case.setting), case.params0, case.problem.inputs) - y
    half_sum = run._replace(risk=run.risk * len(y) / 2)  # the page's risk is half a sum of squares
    # an output is a sum of m terms of size m ** -1/2
    size = (len(y) * case.setting.num_heads) ** 0.5 + jnp.sqrt(jnp.sum(y**2))
    K0 = driving_kernel(case)(case.params0)
    found = kernel_regime(K0, e0, case.step_size, half_sum, output_size=size)
    limits = radii(case.setting)
    if limits is None:
        return found
    cut = {
        f"no step is cut: movement of {name} within the radius": Inequality(
            jnp.max(run.probes[f"scaled_movement_{name}"]), limit * (1 - 1e-6)
        )
        for name, limit in zip("cUW", limits, strict=True)
    }
    return found._replace(hypotheses=found.hypotheses | cut)


def _of_heads(setting: Any) -> bool:
    return setting.model == "heads" and setting.train == "all" and setting.output_scale == 1


def _projected(setting: Any) -> bool:
    return _of_heads(setting) and setting.radius is not None and setting.decay == 0


_OURS = "ours, after the main theorem of Arda et al. (2026); proof in docs/theory/arda2026.md"
_RECORDED = ("scaled_movement", "path")
_NEEDED = ("scaled_movement_c", *theorems.PATH_PROBES)
THEOREMS = (
    Theorem(
        key="theorem_a",
        statement="Projected gradient descent: the mean loss is at most V_0 / (4 step tau) + step "
        "G^2 D^2 + D epsilon, whatever the length of the sequences.",
        source=_OURS,
        method="gd",
        probes=_RECORDED,
        needs=_NEEDED,
        certificate=_theorem_a,
        largest_step=None,
        covers=_projected,
    ),
    Theorem(
        key="theorem_b",
        statement="Projected gradient descent with step G^2 < 1: the mean loss is at most about "
        "V_0 / (step tau) + 4 epsilon^2, and the averaged iterate is nearly as good.",
        source=_OURS,
        method="gd",
        probes=_RECORDED,
        needs=_NEEDED,
        certificate=_theorem_b,
        largest_step=None,
        covers=_projected,
    ),
    Theorem(
        key="theorem_c",
        statement="Lower bound: no weights within the radius have a loss below what a dual "
        "certificate of the labels allows.",
        source="ours; proof in docs/theory/arda2026.md",
        method=ANY_METHOD,
        probes=_RECORDED,
        needs=("scaled_movement_c",),
        certificate=_theorem_c,
        largest_step=None,
        covers=lambda setting: _of_heads(setting) and setting.radius is not None,
    ),
    Theorem(
        key="kernel_regime",
        statement="The loss curve is the one that the tangent kernel at the start predicts, up to "
        "what the measured movement of the kernel allows.",
        source="ours; proof in docs/theory/kernel_regime.md",
        method="gd",
        probes=("kernel_distance", "scaled_movement"),
        needs=("kernel_distance", "scaled_movement_c"),
        certificate=_kernel_regime,
        largest_step=None,
        covers=lambda setting: _of_heads(setting) and setting.decay == 0,
    ),
)

PAPER = Paper(
    key="arda2026",
    title="Finite-Time Analysis of Gradient Descent for Shallow Transformers",
    authors="Enes Arda, Semih Cayci, Atilla Eryilmaz",
    year=2026,
    arxiv="2601.16514",
    about="projected GD, log width, independence of sequence length, IndRNN",
    setting=Setting(),
    problem=problem,
    model=model,
    init=init,
    loss=mean_of_squares,
    sizes=sizes,
    speeds=speeds,
    kernel=driving_kernel,
    probes=probes,
    default_probes=(
        "scaled_movement",
        "gradient_norm",
        "linearisation",
        "jacobian",
        "boundary",
        "attention_entropy",
        "covariance",
        "test_risk",
    ),
    theorems=THEOREMS,
    target=lambda setting: "Y" if setting.model == "causal" else "y",
    queries=True,
    held_out=held_out,
    check=check,
    from_file=lambda setting: setting._replace(problem="file", comparator=None),
    method=method,
    averages=True,
    traced=("step_size",),
    usual_step=usual_step,
    activations=activations,
    complete=complete,
)

# claims and figures are experiments with the paper as it stands so far
from shoal.papers.arda2026.claims import CLAIMS
from shoal.papers.arda2026.pictures import FIGURES

PAPER = PAPER._replace(claims=CLAIMS, figures=FIGURES)
