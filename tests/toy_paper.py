r"""Doe (2024): linear regression by gradient descent, a paper in one file.

The model is $f(x)=\gamma\,w^\top x$ with a fixed gain $\gamma$; the loss is half the
sum of squares.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

import shoal as sh


class Weights(NamedTuple):
    """The parameters."""

    w: jax.Array


class Doe(sh.Setting):
    """Linear regression by gradient descent."""

    num_tokens: int = 1  # Tokens per sequence: always one.
    dim: int = 6  # Features per sample.
    width: int = 6  # Weights in use; the others are masked.
    gain: float = 1.0  # Scale of the output. [paper]
    labels: sh.Data[Literal["teacher", "twins"]] = "teacher"  # Twins cannot be fitted.
    num_samples: int = 4  # Number of samples.
    num_steps: sh.Traced[int] = 40  # Number of training steps.

    def data(self, key):
        key_x, key_y = jax.random.split(key)
        X = jax.random.normal(key_x, (self.num_samples, 1, self.dim))
        y = jax.random.normal(key_y, (self.num_samples,))
        if self.labels == "twins":
            X, y = X.at[1].set(X[0]), y.at[1].set(y[0] + 20)
        return sh.Problem(X, y)

    def params(self):
        return Weights(w=(self.dim,))

    def apply(self, params, x):
        used = jnp.arange(self.dim) < self.width
        return self.gain * jnp.sum(params.w * used * x[0])


PAPER = sh.Paper(Doe, key="doe2024", authors="J. Doe", year=2024, about="linear regression")


def kernel_ends(setup):
    """Ends of the spectrum of the (constant) tangent kernel."""
    eigenvalues = jnp.linalg.eigvalsh(setup.kernel()(setup.params0))
    return eigenvalues[0], eigenvalues[-1]


def allowed(setup):
    """The largest step that theorem 1 allows; none where the kernel is singular."""
    low, high = kernel_ends(setup)
    return jnp.where(low > 1e-9 * high, 0.999999 / high, jnp.nan)


def bound(setup, run, factor=1.0):
    low, high = kernel_ends(setup)
    rate = (1 - factor * setup.step_size * low) ** 2
    curve = rate**run.step * run.risk[0]
    return sh.Certificate(
        hypotheses={
            "step: eta lambda_max <= 1": sh.Inequality(setup.step_size * high, 1.0),
            "kernel is positive: 0 < lambda_min": sh.Inequality(1e-9 * high, low),
        },
        conclusions={"risk falls": sh.Inequality(run.risk, curve, 1e-13 * run.risk[0])},
        constants={"lambda_min": low, "lambda_max": high},
        predicted_rate=1 - rate,
        measured_rate=1 - (run.risk[-1] / run.risk[0]) ** (1 / run.step[-1]),
        curves={"proved bound": curve},
    )


@PAPER.theorem(method="gd", source="ours", largest_step=allowed)
def theorem_1(setup, run):
    """The risk falls at least like (1 - step lambda_min)^2t."""
    return bound(setup, run)


@PAPER.theorem(method="gd", source="ours", largest_step=allowed)
def theorem_false(setup, run):
    """The risk falls four times as fast as it does: false on purpose."""
    return bound(setup, run, factor=4.0)


by_width = sh.Study(Doe, grid={"width": (2, 4, 6)}, seeds=8, fresh_data=True, num_steps=20)
both_gains = sh.Study(Doe, grid={"gain": (1.0, 2.0)}, seeds=4, step_size=0.01, num_steps=20)


def fallen(run):
    return sh.decades(run.risk)


def lost(run):
    return -jnp.log10(run.risk[:, -1] / run.risk[:, 0])


PAPER.claim(
    "width_helps", "More weights fit faster, by more than 0.05 decades per doubling.",
    sh.per_doubling(by_width, fallen), sh.above(0.05, "decades per doubling of the width"),
    control={"width": 6}, why="the number in the statement", seconds=0.02,
)  # fmt: skip
PAPER.claim(
    "gain_helps", "A larger gain trains faster at the same step.",
    sh.per_doubling(both_gains, fallen), sh.above(0.0, "decades per doubling of the gain"),
    control={"step_size": 0.2}, seconds=0.01,
)  # fmt: skip
PAPER.claim(
    "learns", "The risk falls by more than a decade.",
    sh.measured(sh.Study(Doe, num_steps=200), lost), sh.above(1.0, "decades of risk lost"),
    control={"labels": "twins"}, why="a decade is in the statement", seconds=0.01,
)  # fmt: skip
PAPER.figure("width", "Loss by width", by_width, ("risk", "distance"))
