r"""Theorems D and D0, compared with runs. Statements and proofs: ``docs/theory/qin2025.md``.

Both are `descent.ball_descent`; they differ in what is known of the Jacobian on a ball around the
start. D0 takes its singular values there and the Lipschitz constant $L_J$ of the recursion,
$\alpha=\sigma_p(J_0)-L_J\varrho$ and $\beta=\lVert J_0\rVert+L_J\varrho$. D takes bounds through
the layers, in which the singular values of attention's output appear.
"""

import functools

import jax.numpy as jnp

from shoal import trees
from shoal._typing import Any, Array, Callable, Float
from shoal.certificates import Certificate, Inequality, condition
from shoal.diagnostics.kernels import jacobian
from shoal.lab.setup import Setup
from shoal.linalg import norm_fro
from shoal.models import predict
from shoal.papers.qin2025 import bounds
from shoal.papers.qin2025.model import PAPER
from shoal.theory import descent
from shoal.training import Trajectory

SOURCE = "ours, after Qin et al. (2025); proof in docs/theory/qin2025.md"
_theorem = functools.partial(PAPER.theorem, probes=("distance",), source=SOURCE)


def _compared(
    setup: Setup, run: Trajectory, start: bounds.Start, ball_at: descent.BallAt,
    hypotheses: dict[str, Inequality], constants: dict[str, Any],
) -> Certificate:  # fmt: skip
    bounded = "activation: its second derivative is bounded (smooth_leaky, gelu)"
    curvature = jnp.asarray(start.form.activation.curvature, float)
    hypotheses = hypotheses | {bounded: condition(jnp.isfinite(curvature))}
    # outputs are sums of products of this size, even where they cancel
    size = jnp.maximum(start.H_all * start.u, norm_fro(setup.targets))
    return descent.ball_descent(
        ball_at, _residual(setup), setup.step_size, run, output_size=size,
        weights_size=trees.norm(setup.params0),
        split=setup.setting.step_shares, hypotheses=hypotheses, constants=constants,
    )  # fmt: skip


def _measured(setup: Setup) -> bounds.Start:
    return bounds.measure(setup.params0, setup.inputs, setup.setting.form)


def _residual(setup: Setup) -> Float[Array, ""]:
    return norm_fro(predict(setup.network, setup.params0, setup.inputs) - setup.targets)


def _ball_d(setup: Setup, start: bounds.Start) -> descent.BallAt:
    return setup.setting.ball_at(setup.params0, setup.inputs, start)


def _ball_d0(setup: Setup, start: bounds.Start) -> descent.BallAt:
    J0 = jacobian(setup.network, setup.inputs, train=setup.trained)(setup.params0)
    layers = bounds.ball_at(start, sharp=setup.setting.bounds == "sharp", route="layers")
    return descent.around(J0, lambda radius: layers(radius).lipschitz, rtol=bounds.ROUNDING)


def _allowed(ball: Callable[[Setup, bounds.Start], descent.BallAt]) -> Callable[[Setup], Array]:
    def step(setup: Setup) -> Array:
        ball_at, shares = ball(setup, _measured(setup)), setup.setting.step_shares
        return descent.allowed_step(ball_at, _residual(setup), shares)

    return step


@_theorem(largest_step=_allowed(_ball_d), covers=lambda s: not s.norm)
def theorem_d(setup: Setup, run: Trajectory) -> Certificate:
    """Inside a ball around the start, every step of gradient descent contracts the residual by
    1 - c step alpha^2, with alpha from the singular values of the last block's layers.

    If ``route`` is ``best`` or ``kernel``, alpha may also come from the Jacobian at the start.
    """
    setting, start = setup.setting, _measured(setup)
    N, n, d = setup.inputs.shape
    rows = N * n if setting.output == "tokens" else N
    seen = n * d if setting.output == "whole" else d
    ratios = jnp.stack([jnp.asarray(r, float) for r in setup.step_ratios.values()])
    hypotheses = {"all blocks move at one step": Inequality(jnp.max(jnp.abs(1 - ratios)), 0.5)}
    if setting.route == "layers":
        hypotheses[
            "layer route: no more rows of the last layer than columns (else try route=kernel; "
            "targets of labels=teacher can be fitted, but this theorem does not say so)"
        ] = Inequality(float(rows), max(seen, setting.width) + 0.5)
    found = zip(("W_U", "W_2", "W_1"), bounds.routes(start), strict=True)
    constants = {f"route through {name} at the start": bound for name, bound in found}
    constants["rows of the last layer"] = jnp.asarray(float(rows))
    constants["columns of the last layer"] = jnp.asarray(float(seen))
    return _compared(setup, run, start, _ball_d(setup, start), hypotheses, constants)


@_theorem(largest_step=_allowed(_ball_d0), covers=lambda s: not s.norm and s.has_dense_jacobian())
def theorem_d0(setup: Setup, run: Trajectory) -> Certificate:
    """Inside a ball around the start, every step of gradient descent contracts the residual by
    1 - c step alpha^2, with alpha from the singular values of the Jacobian at the start.

    The general statement, for any model with a Lipschitz Jacobian and any choice of trained
    blocks. The Lipschitz constant is that of theorem D.
    """
    start = _measured(setup)
    ball_at = _ball_d0(setup, start)
    at_start = ball_at(jnp.zeros(()))
    constants = {"sigma_p(J_0)": at_start.alpha, "|J_0|": at_start.beta}
    return _compared(setup, run, start, ball_at, {}, constants)
