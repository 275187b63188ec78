"""Theorem D0 needs three numbers of a model; here it is applied to one of each other paper.

Models that are linear in what is trained have a Jacobian that does not move (L_J = 0). The heads of
arda2026 are trained in all their weights; a bound of their second derivatives is worked out below
(docs/theory/qin2025.md, section 14).
"""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
from shoal.experiments import prepare, trained

from shoal.certificates import verdict
from shoal.diagnostics.dynamics import distance
from shoal.diagnostics.kernels import jacobian
from shoal.losses import half_sum_of_squares
from shoal.methods import gradient_descent
from shoal.models import empirical_risk, predict
from shoal.papers import arda2026, song2024, wu2023
from shoal.papers.arda2026.heads import ACTIVATIONS, split
from shoal.theory import descent
from shoal.training import run


def linear(_params, _problem, _setting):
    """A model that is linear in what moves."""
    return lambda _: 0.0


def heads(params, problem, setting):
    """Bound of the second derivative of arda2026's outputs when all weights move."""
    s1, s2 = ACTIVATIONS[setting.activation][3:]
    X, q = split(problem.inputs)
    B, k = (jnp.max(jnp.linalg.norm(a, axis=-1)) for a in (X, q))
    N, m = len(X), len(params.c)

    def at(radius):
        c = jnp.abs(params.c) + radius
        U = jnp.linalg.norm(params.U, axis=1) + radius
        gW = B**2 * k * U  # |dg| <= B |dU| + gW |dW|
        UU = c * s2 * B**2
        UW = c * (s2 * B * gW + s1 * B**2 * k)
        WW = c * (s2 * gW**2 + s1 * U * B**3 * k**2)
        # a symmetric form in |dc|, |dU|, |dW|; its Frobenius norm bounds its largest value
        form = UU**2 + WW**2 + 2 * ((s1 * B) ** 2 + (s1 * gW) ** 2 + UW**2)
        return (N / m) ** 0.5 / setting.output_scale * jnp.max(jnp.sqrt(form))

    return at


def certify(paper, values, lipschitz, num_steps=50):
    """Train by the longest step that D0 allows, and confront it with the run."""
    experiment = prepare(paper, values)
    setting, problem = experiment.setting, experiment.problem
    start = jax.tree.map(lambda leaf: leaf[0], experiment.params0)
    model, train = paper.model(setting), trained(setting)

    @jax.jit
    def confront(params0):
        r0 = jnp.linalg.norm((predict(model, params0, problem.inputs) - problem.y).ravel())
        J0 = jacobian(model, problem.inputs, train=train)(params0)
        ball_at = descent.around(J0, lipschitz(params0, problem, setting))
        step = descent.largest_step(descent.smallest_ball(ball_at, r0)[0], r0)
        found = run(
            gradient_descent(step),
            empirical_risk(model, problem, half_sum_of_squares),
            params0,
            num_steps=num_steps,
            probes={"distance": distance(params0)},
            train=train,
        )
        size = jnp.linalg.norm(problem.y.ravel()) + r0
        return descent.ball_descent(ball_at, r0, step, found, output_size=size)

    return confront(start)


CASES = {
    "wu2023, output weights": (
        wu2023.PAPER,
        {"num_samples": 5, "num_tokens": 3, "dim": 8, "width": 64, "train": "w_O"},
        linear,
    ),
    "song2024, value weights": (
        song2024.PAPER,
        {"num_samples": 2, "num_tokens": 2, "dim": 8, "train": "W_V"},
        linear,
    ),
    "arda2026, all weights": (
        arda2026.PAPER,
        {"num_samples": 4, "num_heads": 4096, "labels": "gaussian", "label_scale": 0.001},
        heads,
    ),
}

if __name__ == "__main__":
    for name, case in CASES.items():
        found = certify(*case)
        numbers = ", ".join(
            f"{key} {float(found.constants[key]):.3g}"
            for key in ("|r_0|", "r_max", "alpha", "beta", "L_J", "factor", "worst measured factor")
        )
        print(f"{name}: {verdict(found)} ({numbers})")
