r"""A population risk without samples: $\ell(w)=\tfrac12(w-w_*)^\top\Lambda(w-w_*)+\ell_*$.

Gradient flow is known exactly: $w(t)-w_*=e^{-\Lambda t}(w(0)-w_*)$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import shoal as sh


class Weights(NamedTuple):
    w: jax.Array


class Law(NamedTuple):
    """What the risk depends on, instead of samples."""

    spectrum: jax.Array
    target: jax.Array


class Population(sh.Setting):
    """Gradient flow on a quadratic population risk."""

    dim: int = 3  # Number of weights.
    best: float = 0.25  # The optimum of the risk.
    method: str = "flow"  # Training rule.
    step_size: float | None = 0.1  # Time between two records.
    num_steps: sh.Traced[int] = 20  # Number of records.

    def data(self, key):
        return Law(jnp.arange(1.0, self.dim + 1), jax.random.normal(key, (self.dim,)))

    def params(self):
        return Weights(w=(self.dim,))

    def objective(self, params, law):
        return 0.5 * jnp.sum(law.spectrum * (params.w - law.target) ** 2) + self.best

    def lowest(self, problem):
        return self.best


PAPER = sh.Paper(Population, key="population2024", about="a risk without samples")


@PAPER.theorem(method=("flow", "gd"), source="ours")
def theorem_exact(setup, run):
    """The risk along the flow is known exactly."""
    law, time = setup.problem, setup.step_size * run.step
    gap = (setup.params0.w - law.target)[None] * jnp.exp(-law.spectrum[None] * time[:, None])
    exact = 0.5 * jnp.sum(law.spectrum[None] * gap**2, axis=1) + setup.setting.best
    return sh.Certificate(
        hypotheses={},
        conclusions={"the risk is the exact curve": sh.Equality(run.risk, exact, 1e-7)},
        curves={"exact": exact},
    )
