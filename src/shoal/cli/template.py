"""What ``shoal new paper`` writes: a paper to begin with, in one file that works."""

TEMPLATE = r'''r"""NAME: what the paper is about, in one sentence.

Symbols: $m$ is ``width``. Certified here: theorem 1 (ours).
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

import shoal as sh


class Weights(NamedTuple):
    W: jax.Array
    a: jax.Array


class Setting(sh.Setting):
    """Two-layer network of which only the output weights move."""

    num_samples: int = 8  # Number of samples.
    num_tokens: int = 1  # Tokens per sequence; this model uses the first.
    dim: int = 6  # Numbers per token.
    width: int = 64  # Hidden units.
    gain: float = 1.0  # Scale of the output; floats never recompile.
    activation: Literal["tanh", "relu"] = "tanh"  # Of the hidden units.
    train: str = "a"  # Blocks that are trained.
    init = sh.lecun

    def data(self, key):
        key_x, key_y = jax.random.split(key)
        X = jax.random.normal(key_x, (self.num_samples, self.num_tokens, self.dim))
        return sh.Problem(X, jax.random.normal(key_y, (self.num_samples,)))

    def params(self):
        return Weights(W=(self.width, self.dim), a=(self.width,))

    def apply(self, params, x):
        h = getattr(jax.nn, self.activation)(params.W @ x[0])
        return self.gain * h @ params.a

    probe_sentences = {"output_norm": "Norm of the output weights."}

    def probes(self, setup):
        return {"output_norm": lambda params: jnp.linalg.norm(params.a)}


PAPER = sh.Paper(Setting, key="NAME", authors="A. Author", year=2026, about="an example")


def spectrum(setup):
    return jnp.linalg.eigvalsh(setup.kernel()(setup.params0))


@PAPER.theorem(method="gd", source="ours", largest_step=lambda setup: 0.999 / spectrum(setup)[-1])
def theorem_1(setup, run):
    r"""The risk falls at a linear rate if the step is at most 1 / lambda_max.

    $$L_t \le (1 - \eta\lambda_{\min})^{2t} L_0$$
    """
    low, high = spectrum(setup)[0], spectrum(setup)[-1]
    bound = (1 - setup.step_size * low) ** (2 * run.step) * run.risk[0]
    return sh.Certificate(
        hypotheses={
            "step: eta lambda_max <= 1": sh.Inequality(setup.step_size * high, 1.0),
            "kernel is positive: 0 < lambda_min": sh.Inequality(1e-12 * high, low),
        },
        conclusions={"risk": sh.Inequality(run.risk[1:], bound[1:], 1e-12 * run.risk[0])},
        predicted_rate=1 - (1 - setup.step_size * low) ** 2,
        measured_rate=1 - (run.risk[-1] / run.risk[0]) ** (1 / run.step[-1]),
        curves={"proved bound": bound},
    )


widths = {"width": (16, 64, 256)}
by_width = sh.Study(Setting, grid=widths, seeds=8, fresh_data=True, step_size=0.002)
PAPER.claim(
    "width_helps",
    "At one step size wider networks train faster.",
    sh.per_doubling(by_width, lambda run: sh.decades(run.risk)),
    sh.above(0.02, "decades of risk gained per doubling of the width"),
    why="0.02 decades are our least gain",
    control={"width": 64},  # one width only: the claim must fail
)
PAPER.figure("width", "Loss by width", by_width, ("risk", "distance"))
'''
