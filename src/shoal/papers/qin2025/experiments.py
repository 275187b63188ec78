"""Experiments that claims and figures share. Every seed has its own data and weights."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal._typing import Array
from shoal.diagnostics import dynamics
from shoal.lab import engine
from shoal.lab.run import Run, train
from shoal.lab.setup import Setup
from shoal.lab.study import Seeds, fresh_setup, seeds_of, trained
from shoal.linalg import norm_fro
from shoal.models import predict
from shoal.papers.qin2025 import blocks
from shoal.papers.qin2025.model import PAPER
from shoal.theory import descent

MOST = 1e16  # condition numbers beyond this are rounding
SHARES = np.geomspace(0.05, 10, 24)  # steps that are tried, as shares of 2 / sharpness

# what the experiments change in the default setting
SEQUENCE = {"num_samples": 1, "dim": 64, "key_dim": 64, "width": 1, "out_dim": 1,
            "token_scale": 1.0, "residual": "none"}  # fmt: skip
DEEP = {"num_tokens": 8, "dim": 64, "key_dim": 64, "width": 128, "num_layers": 8,
        "token_scale": 1.0}  # fmt: skip
SMALL = {"num_samples": 3, "num_tokens": 4, "width": 32, "token_scale": 32**-0.5, "scale_qk": 0.5,
         "scale_v": 0.3, "scale_1": 0.5, "scale_2": 0.3}  # fmt: skip
"""Sizes and scales at which theorem D certifies something."""

# ------------------------------------------------------------------------------------- untrained


@functools.lru_cache(maxsize=256)
def at_start(function: Callable, seeds: Seeds, *extra: Any, **values: Any) -> Any:
    """A function of every seed's start; the same call is done only once in a process."""
    return engine.per_start(fresh_setup(PAPER, values, seeds=seeds_of(seeds)), function, *extra)


def one_sequence(setup: Setup) -> dict[str, Array]:
    """Conditioning of the first layer on one sequence, with and without the residual."""
    X = setup.inputs[0]
    found = blocks.layers(setup.params0, X, setup.setting.form)
    S, attended = found.S[0], found.A[0]  # the setting has no residual
    kinds = {"S": S, "without": attended, "with": X + attended, "X": X}
    seen = {name: blocks.conditioning(matrix) for name, matrix in kinds.items()}
    return {f"{k}_{name}": c[k] for name, c in seen.items() for k in ("condition", "sigma_min")}


def attention(
    seeds: Seeds, num_tokens: int, scale_qk: float, scale_v: float, correlation: float = 0.0
) -> dict[str, np.ndarray]:
    """Conditioning of one sequence's attention output, with and without the residual (dim 64)."""
    scales = {"scale_qk": scale_qk, "scale_v": scale_v, "token_correlation": correlation}
    return at_start(one_sequence, seeds, **SEQUENCE, num_tokens=num_tokens, **scales)


def every_layer(setup: Setup) -> dict[str, Array]:
    """Conditioning of every layer's attention output, all samples stacked."""
    return setup.setting.stacked_conditioning(setup.params0, setup.inputs)


def depths(seeds: Seeds, residual: str, **more: Any) -> dict[str, np.ndarray]:
    """Condition number and centred share of every layer's attention output, (seeds, depth)."""
    return at_start(every_layer, seeds, **DEEP, residual=residual, **more)


def top_hessian(setup: Setup) -> Array:
    """Top Hessian eigenvalue at the start; NaN if Lanczos did not converge.

    If only some blocks move, that of their kernel: the same where the model is linear in them.
    """
    if setup.setting.train != "all":
        return jnp.linalg.eigvalsh(setup.kernel()(setup.params0))[-1]
    found = dynamics.sharpness(setup.risk, jax.random.key(0), num_matvecs=60)(setup.params0)
    return jnp.where(found["converged"], found["value"], jnp.nan)


def sigma_jacobian(setup: Setup) -> Array:
    """The smallest singular value of the Jacobian at the start."""
    return setup.setting.sigma_jacobian(setup.params0, setup.inputs)


def reach(setup: Setup, share: Array) -> dict[str, Array]:
    """The largest residual that theorem D certifies; step and rate for a share of it."""
    ball = setup.setting.ball_at(setup.params0, setup.inputs)
    top, _ = descent.largest_residual(ball)
    best, _ = descent.smallest_ball(ball, share * top)
    step = descent.largest_step(best, share * top)
    return {
        "relative": top / norm_fro(predict(setup.network, setup.params0, setup.inputs)),
        "step": step,
        "lost": descent.Split().c * step * best.alpha**2,
        "lambda_min": sigma_jacobian(setup) ** 2,
    }


def certified_reach(seeds: Seeds, share: float = 1.0, **values: Any) -> dict[str, np.ndarray]:
    """`reach` in the small setting."""
    return at_start(reach, seeds, share, **(SMALL | values))


# --------------------------------------------------------------------------------------- trained


def fresh_run(seeds: Seeds, step: Any, probes: tuple[str, ...] = (), **values: Any) -> Run:
    """Train every seed on its own data; ``step`` None is half of 1 / lambda_max of each kernel."""
    return trained(PAPER, seeds, probes, step=step, fresh_data=True, **values)


def risk_left(seeds: Seeds, step: Any, num_steps: int, **values: Any) -> np.ndarray:
    """Every seed's risk after training over the first one."""
    every = max(1, num_steps // 50)
    risk = fresh_run(seeds, step, num_steps=num_steps, every=every, **values).risk
    return risk[:, -1] / risk[:, 0]


def risk_by_step(
    seeds: Seeds, steps: tuple[float, ...], num_steps: int, residual: str
) -> np.ndarray:
    """Risk left after training, (seeds, step sizes); infinite where a run diverged."""
    left = np.stack([risk_left(seeds, s, num_steps, residual=residual) for s in steps], axis=1)
    return np.where(np.isfinite(left), left, np.inf)


def late_rate(risk: np.ndarray) -> float:
    """Exponential rate over the last fifth of the run, up to where the risk is rounding.

    >>> round(late_rate(np.exp(-0.1 * np.arange(2000))), 6)
    0.1
    """
    end = int(np.sum(risk > 1e-20 * risk[0])) - 1
    tail = max(1, end // 5)
    return float(-np.log(risk[end] / risk[end - tail]) / tail)


def rates(
    seeds: Seeds, num_steps: int, conditions: tuple[float, ...], step_power: float = 0.0
) -> np.ndarray:
    """Late rate of every seed by the condition number of the tokens, value scale 0.1.

    The step is each seed's default, times (2 / condition) to ``step_power``.
    """
    values: dict[str, Any] = {"num_steps": num_steps, "scale_v": 0.1}
    found = []
    for kappa in conditions:
        setup = fresh_setup(PAPER, values | {"token_condition": kappa}, seeds=seeds_of(seeds))
        steps = engine.default_steps(setup) * (2 / kappa) ** step_power
        run = fresh_run(seeds, tuple(steps.tolist()), token_condition=kappa, **values)
        found.append([late_rate(risk) for risk in run.risk])
    return np.array(found).T


def step_limits(
    seeds: Seeds, residual: str, num_steps: int, **values: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The share of 2 / sharpness up to which all steps end below the start, as an interval.

    It lies between two neighbours of a grid; below the first, or above the last, if need be.
    """
    values = {"residual": residual, "num_steps": num_steps, "every": num_steps} | values
    limit = 2 / at_start(top_hessian, seeds, **values)
    setup = fresh_setup(PAPER, values, seeds=seeds_of(seeds))
    risk = np.stack([train(setup, step_size=s * limit, probes=()).risk for s in SHARES])
    trains = np.cumprod(risk[:, :, -1] < risk[:, :, 0], axis=0).sum(axis=0)
    ends = np.concatenate([[0.0], SHARES, [np.inf]])
    unknown = ~np.isfinite(limit)
    return np.where(unknown, 0.0, ends[trains]), np.where(unknown, np.inf, ends[trains + 1])
