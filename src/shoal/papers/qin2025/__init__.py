r"""Qin, Zhou, Jiang, Zhu (2025): GD on Learning Transformers with Residual Connections.

Symbols: $N$ is ``num_samples``, $n$ ``num_tokens``, $d$ ``dim``, $d_k$ ``key_dim``, $m$ ``width``,
$c$ ``out_dim``, $L$ ``num_layers``; $s_{qk}, s_v, \dots$ are ``scale_qk``, ``scale_v`` and so on.
The loss is $\tfrac12\sum_i\lVert F_i-Y_i\rVert_F^2$.

Little of the paper's own text was available to us: its abstract (linear convergence whose speed the
smallest and largest singular value of the attention layer's output decide; residual connections
cure the ill-conditioning of softmax) and excerpts. The network's details, theorems D0 and D, all
constants and all settings are ours; ``docs/theory/qin2025.md`` says which is which.
"""

import jax.numpy as jnp

from shoal._typing import Array
from shoal.certificates import Certificate, Inequality
from shoal.experiments import Case, Paper, Theorem
from shoal.linalg import norm_fro
from shoal.losses import half_sum_of_squares
from shoal.models import predict
from shoal.papers.qin2025 import bounds
from shoal.papers.qin2025.choices import (
    DATA_NUMBERS,
    Setting,
    activations,
    ball_at,
    complete,
    form,
    init,
    model,
    problem,
    sizes,
    speeds,
    split,
    without_scales,
)
from shoal.papers.qin2025.measuring import driving_kernel, probes
from shoal.theory import descent
from shoal.theory.kernel_regime import kernel_regime
from shoal.training import Trajectory


def _residual(case: Case) -> Array:
    return predict(model(case.setting), case.params0, case.problem.X) - case.problem.y


def _theorem_d(case: Case, run: Trajectory) -> Certificate:
    setting, X = case.setting, case.problem.X
    shape = form(setting)
    N, n, d = X.shape
    rows = N * n if setting.output == "tokens" else N
    seen = n * d if setting.output == "whole" else d
    norms = bounds.measure(case.params0, X, shape)
    found = bounds.routes_at_start(norms, n, shape)
    hypotheses = {
        "all blocks move at one step": Inequality(
            jnp.max(jnp.abs(jnp.stack([1 - s for s in case.speeds.values()]))), 0.5
        ),
        "activation: its second derivative is bounded (smooth_leaky, gelu)": Inequality(
            shape.activation.bend, 1e300
        ),
    }
    if setting.route == "layers":
        hypotheses[
            "layer route: no more rows of the last layer than columns (else try route=kernel; "
            "targets of labels=teacher can be fitted, but this theorem does not say so)"
        ] = Inequality(float(rows), max(seen, setting.width) + 0.5)
    return descent.ball_descent(
        ball_at(setting, case.params0, X, norms),
        norm_fro(_residual(case)),
        case.step_size,
        run,
        # outputs are sums of products of this size, even where they cancel
        output_size=jnp.maximum(norms.H_all * norms.u, norm_fro(case.problem.y)),
        split=split(setting),
        hypotheses=hypotheses,
        constants={
            "route through W_U at the start": found.H,
            "route through W_2 at the start": found.Phi,
            "route through W_1 at the start": found.A,
            "rows of the last layer": jnp.asarray(float(rows)),
            "columns of the last layer": jnp.asarray(float(seen)),
        },
    )


def _largest_step(case: Case) -> Array:
    ball = ball_at(case.setting, case.params0, case.problem.X)
    size = norm_fro(_residual(case))
    smallest, top = descent.smallest_ball(ball, size, split(case.setting))
    step = descent.largest_step(smallest, size, split(case.setting))
    return jnp.where(size <= top, step, jnp.nan)


def _kernel_regime(case: Case, run: Trajectory) -> Certificate:
    r, y = _residual(case), case.problem.y
    size = norm_fro(r + y) + norm_fro(y)
    K0 = driving_kernel(case)(case.params0)
    return kernel_regime(K0, r.ravel(), case.step_size, run, output_size=size)


THEOREMS = (
    Theorem(
        key="theorem_d",
        statement="Inside a ball that the start decides, every step of gradient descent contracts "
        "the residual by 1 - c step alpha^2, alpha from the singular values of the last block.",
        source="ours, after Qin et al. (2025); proof in docs/theory/qin2025.md",
        method="gd",
        probes=("distance",),
        needs=(),
        certificate=_theorem_d,
        largest_step=_largest_step,
        covers=lambda setting: not setting.norm,
    ),
    Theorem(
        key="kernel_regime",
        statement="The loss curve is the one that the tangent kernel at the start predicts, up to "
        "what the measured movement of the kernel allows.",
        source="ours; proof in docs/theory/kernel_regime.md",
        method="gd",
        probes=("kernel_distance",),
        needs=("kernel_distance",),
        certificate=_kernel_regime,
        largest_step=None,
    ),
)

PAPER = Paper(
    key="qin2025",
    title="On the Convergence of Gradient Descent on Learning Transformers with Residual "
    "Connections",
    authors="Zhen Qin, Jinxin Zhou, Jiachen Jiang, Zhihui Zhu",
    year=2025,
    arxiv="2506.05249",
    about="residuals cure ill-conditioned attention; depth",
    setting=Setting(),
    problem=problem,
    model=model,
    init=init,
    loss=half_sum_of_squares,
    sizes=sizes,
    speeds=speeds,
    kernel=driving_kernel,
    probes=probes,
    default_probes=("distance", "gradient_norm", "pl_ratio", "conditioning", "token_cosine"),
    theorems=THEOREMS,
    target=lambda _: "Y",
    from_file=lambda setting: setting._replace(problem="file"),
    traced=("step_size", "num_steps", "labels", *DATA_NUMBERS),
    program=without_scales,
    activations=activations,
    complete=complete,
)

# claims and figures are experiments with the paper as it stands so far
from shoal.papers.qin2025.claims import CLAIMS
from shoal.papers.qin2025.pictures import FIGURES

PAPER = PAPER._replace(claims=CLAIMS, figures=FIGURES)
