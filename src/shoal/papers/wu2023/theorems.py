r"""Theorems A, B and C: when training provably finds zero loss, and how wide is wide enough.

They are ours, after the route of Wu et al. (2023), Theorem 1, whose own constants are not certified
(the full text was not available to us). Proofs and worked numbers are in ``docs/theory/wu2023.md``;
its letters are used here:

| letter | is |
|---|---|
| $E_0$, $\alpha$ | norm of the initial residual; smallest singular value of the initial features |
| $R$, $c_X$ | longest token; a quarter of the squared diameter of a sequence's tokens |
| $\rho$ | $\sqrt N\tau_1\kappa d_sR$ |
| $r$, $\gamma$ | step of the hidden weights over that of $w_O$; step size |
| $\lambda_*$, $\delta_*$ | bound of the norm of a block along the whole run; radius of its ball |
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Bool, Float, Scalar
from shoal.certificates import (
    Certificate,
    Equality,
    Inequality,
    NotChecked,
    condition,
    not_checked,
    positive,
    share_lost,
)
from shoal.lab.setup import Setup
from shoal.lab.theorem import ANY_METHOD
from shoal.linalg import norm_fro, norm_op, singular_values
from shoal.methods import FLOW_ATOL, FLOW_RTOL
from shoal.papers.wu2023.model import HIDDEN, PAPER, attention, feature_matrix
from shoal.theory.arccosine import relu_kernel
from shoal.training import Trajectory
from shoal.verified.enclose import enclosure_width

Numbers = dict[str, Float[Array, ""]]

SAFETY = 1 - 8e-9  # of the largest allowed step, so that enclosures can decide that it is allowed
FAILURE = 0.01  # probability with which theorem C may be wrong about weights drawn at random
RECORDED = ("movement", "feature_sigma_min", "feature_norm")
SOURCE = "ours, after the route of Wu et al. (2023), Theorem 1; proof in docs/theory/wu2023.md"


# --------------------------------------------------------------------------------------- constants


def start_constants(setup: Setup) -> Numbers:
    """Everything that does not depend on the theorem."""
    X, y, params0, scales = setup.inputs, setup.targets, setup.params0, setup.setting.scales()
    N, n, _ = X.shape
    F = feature_matrix(setup)(params0)
    sigma = singular_values(F)
    distances = jnp.linalg.norm(X[:, :, None] - X[:, None], axis=-1)
    R = jnp.max(jnp.linalg.norm(X, axis=-1))
    # frozen hidden weights move less than any ratio allows, so the largest ratio is the theorem's r
    r = functools.reduce(jnp.maximum, [setup.step_ratios[name] for name in HIDDEN])
    return {
        "E_0": norm_fro(F @ params0.w_O - y),
        "alpha": sigma[-1] if F.shape[1] >= N else jnp.zeros(()),
        "norm_F": sigma[0],
        "R": R,
        "c_X": jnp.max(distances) ** 2 / 4,
        "rho": jnp.sqrt(N) * scales.output * scales.pool * n * R,
        **dict(zip(("tau_0", "tau_1", "kappa"), map(jnp.asarray, scales), strict=True)),
        "r": jnp.asarray(r, float),
        **dict(zip(("q_0", "k_0", "v_0", "o_0"), map(norm_op, params0), strict=True)),
    }


def radii(c: Numbers, multiple: float) -> Numbers:
    r"""Least radii of the balls in which the weights stay, in closed form (section 6).

    ``multiple`` is 8 for theorem A and 4 for B. Where no radii exist ($\mu\ge1$) the bounds of
    $W_Q$, $W_K$ are infinite. Fixed-point iteration would not notice: its iterates are lower
    bounds.
    """
    r, rho, alpha, E_0 = c["r"], c["rho"], c["alpha"], c["E_0"]
    b = multiple * rho * E_0 / alpha**2
    coarse = jnp.where(r * b**2 < 1, (c["o_0"] + b * c["v_0"]) / (1 - r * b**2), jnp.inf)
    spectral = c["o_0"] + multiple * (c["norm_F"] + alpha / 2) * E_0 / alpha**2
    lambda_O = jnp.minimum(coarse, spectral)
    lambda_V = c["v_0"] + r * b * lambda_O
    still = (c["q_0"] == 0) & (c["k_0"] == 0)
    mu = jnp.where(still, 0.0, r * b * c["tau_0"] * c["c_X"] * lambda_V * lambda_O)
    exists = mu < 1
    lambda_Q = jnp.where(exists, (c["q_0"] + mu * c["k_0"]) / (1 - mu**2), jnp.inf)
    lambda_K = jnp.where(exists, (c["k_0"] + mu * c["q_0"]) / (1 - mu**2), jnp.inf)
    zeta = 1 + (c["tau_0"] * c["c_X"] * lambda_V) ** 2 * (lambda_Q**2 + lambda_K**2)
    norms = {"O": lambda_O, "V": lambda_V, "Q": lambda_Q, "K": lambda_K}
    return {"b": b, "mu": mu} | {
        **{f"lambda_{block}": norm for block, norm in norms.items()},
        **{f"delta_{block}": norm - c[f"{block.lower()}_0"] for block, norm in norms.items()},
        "zeta": zeta,
        "z": lambda_O**2 * zeta,
        "D": r * rho**2 * lambda_O * zeta,
        "phi": jnp.minimum(rho * lambda_V, c["norm_F"] + alpha / 2),
    }


def descent_constants(setup: Setup) -> Numbers:
    r"""Every constant of theorem A, the largest step (7+) and the basic step (7) included."""
    return descent_numbers(start_constants(setup))


def descent_numbers(start: Numbers) -> Numbers:
    """The constants of theorem A from those of a start."""
    c = start | radii(start, 8.0)
    r, rho, alpha, E_0 = c["r"], c["rho"], c["alpha"], c["E_0"]
    # with E_0 = 0 nothing moves, and the conditions on movement are void
    moves = E_0 > 0
    c_5 = jnp.where(moves, 16 * c["D"] * E_0 / alpha**3, 0.0)
    c_6 = jnp.where(moves, 16 * c["D"] * c["lambda_O"] / alpha**2, 0.0)
    chi = (32 - 16 * c_6) / (64 + 16 * c_5 + c_6**2)
    slow = 2 * r * rho**3 * c["lambda_O"] * c["lambda_V"] * c["zeta"] * E_0
    basic = (alpha**2 / 8) / (slow + rho**4 * (c["lambda_V"] ** 2 + r * c["z"]) ** 2)
    steps = {"gamma_basic": basic, "gamma_max": chi / c["phi"] ** 2}
    return c | {"c_5": c_5, "c_6": c_6, "chi": chi} | steps


def flow_constants(setup: Setup) -> Numbers:
    """Every constant of theorem B."""
    return flow_numbers(start_constants(setup))


def flow_numbers(start: Numbers) -> Numbers:
    """The constants of theorem B from those of a start."""
    c = start | radii(start, 4.0)
    return c | {"c_5": jnp.where(c["E_0"] > 0, 8 * c["D"] * c["E_0"] / c["alpha"] ** 3, 0.0)}


def flow_is_certified(setup: Setup) -> Bool[Array, ""]:
    """Whether the start satisfies the hypotheses of theorem B."""
    c = flow_constants(setup)
    return _visible(c) & (c["mu"] < 1) & (c["c_5"] < 1)


def _visible(c: Numbers) -> Bool[Array, ""]:
    """Whether float64 may tell alpha from 0: for a proposal only, a certificate encloses it."""
    return c["alpha"] > jnp.finfo(jnp.float64).eps * c["norm_F"]


def largest_step(setup: Setup) -> Float[Array, ""]:
    """The largest step size that theorem A allows; NaN if it allows none."""
    c = descent_constants(setup)
    allowed = _visible(c) & (c["mu"] < 1) & (c["c_5"] <= 1) & (c["c_6"] < 2)
    return jnp.where(allowed, SAFETY * c["gamma_max"], jnp.nan)


def width_constants(setup: Setup, value_variance: Scalar) -> Numbers:
    r"""Every constant of theorem C: $\lambda$, $T$, $b$ and the width that suffices."""
    X, scales = setup.inputs, setup.setting.scales()
    N, n, d = X.shape
    B = jax.vmap(lambda x: attention(setup.params0, x, scales))(X)
    U = (B @ X).reshape(N * n, d)
    G = scales.pool**2 * jnp.sum(relu_kernel(U, U).reshape(N, n, N, n), axis=(1, 3))
    eigenvalues = jnp.linalg.eigvalsh(G)
    smallest = eigenvalues[0]
    T = scales.pool**2 * n * jnp.sum(U**2)
    # the root of 8 sqrt(2) (T / lambda) (1 + b) = e^b, approached from above, where the
    # condition holds at every iterate
    log_K = jnp.log(8 * jnp.sqrt(2.0) * T / smallest)
    b = jax.lax.fori_loop(0, 60, lambda _, b: log_K + jnp.log1p(b), 2 * log_K + 2)
    b = jnp.maximum(b, 1.0)
    width = jnp.asarray(setup.setting.units, float)
    needed = 8 * T * b / ((0.5 - 0.5 * jnp.log(2.0)) * smallest) * jnp.log(N / FAILURE)
    eta_V = jnp.asarray(value_variance, float)
    bound = scales.output**2 * eta_V * width * smallest / 4
    return {"lambda": smallest, "T": T, "b": b, "p": jnp.asarray(FAILURE), "eta_V": eta_V,
            "width": width, "width needed": needed, "bound": bound}  # fmt: skip


# ---------------------------------------------------------------------------------------- theorems

_theorem = functools.partial(PAPER.theorem, covers=lambda setting: setting.is_encoder)


@_theorem(method="gd", probes=RECORDED, source=SOURCE, largest_step=largest_step)
def theorem_a(setup: Setup, run: Trajectory) -> Certificate:
    r"""Gradient descent: the loss falls at least like (1 - step * alpha^2 / 4)^t, the weights stay
    in small balls and the features stay independent.

    $$ \ell_t\le(1-\gamma\alpha^2/4)^t\,\ell_0 $$

    With the large step (7+): $\gamma\le\chi/\varphi^2$, which needs $c_6<2$. A block that is frozen
    moves less than the theorem allows, so only $w_O$ must be trained.
    """
    c, step_size = descent_constants(setup), setup.step_size
    rate = step_size * c["alpha"] ** 2 / 4
    bound = (1 - rate) ** run.step * c["E_0"] ** 2 / 2
    moving = jnp.where(c["E_0"] > 0, step_size, 0.0)
    hypotheses = {
        "(5) features drift less than alpha/2: c_5 < 1": Inequality(c["c_5"], 1.0),
        "(6) ReLU term: c_6 < 2": Inequality(c["c_6"], 2.0),
        "(7+) step size: gamma < chi / phi^2": Inequality(moving, c["gamma_max"]),
    }
    c |= {"gamma": jnp.asarray(step_size, float)}
    measured = share_lost(run.risk, run.step[-1])
    settled = jnp.where(rate > 0, 2 / rate, jnp.inf)  # 1 / (1 - sqrt(1 - rate)) is below this
    return _compared(setup, run, c, hypotheses, bound, rate, measured, settled)


@_theorem(method="flow", probes=RECORDED, source=SOURCE)
def theorem_b(setup: Setup, run: Trajectory) -> Certificate:
    r"""Gradient flow: the loss falls at least like exp(-alpha^2 t / 2).

    The weights stay in balls. The step size is the time between two steps of the integrator's
    record. Needs neither the condition (6) nor a bound on the step. Rates are per unit of time.
    """
    c, step_size = flow_constants(setup), setup.step_size
    time = step_size * run.step
    rate = c["alpha"] ** 2 / 2
    bound = jnp.exp(-rate * time) * c["E_0"] ** 2 / 2
    integrated = jnp.all(jnp.isfinite(run.risk)) & (step_size * c["phi"] ** 2 < 100)
    hypotheses = {
        "(5') features drift less than alpha/2: c_5' < 1": Inequality(c["c_5"], 1.0),
        # a NaN, or a record too coarse for the integrator, decides nothing
        "the flow was integrated": Inequality(jnp.where(integrated, 0.0, 1.0), 1.0),
    }
    c |= {"time step": jnp.asarray(step_size, float)}
    measured = -jnp.log(run.risk[-1] / run.risk[0]) / time[-1]
    settled = jnp.where(rate > 0, 1 + 2 / (rate * step_size), jnp.inf)
    return _compared(
        setup, run, c, hypotheses, bound, rate, measured, settled, (FLOW_RTOL, FLOW_ATOL)
    )


@_theorem(method=ANY_METHOD, source="ours; proof in docs/theory/wu2023.md")
def theorem_c(setup: Setup, run: Trajectory | None) -> Certificate:  # noqa: ARG001
    r"""Width: with probability 0.99 over Gaussian W_V, the initial features are independent once
    the width exceeds an explicit number.

    $$ \sigma_N(F)^2\ge\tau_1^2\eta_Vd_m\lambda/4 $$

    The rows of $W_V$ are drawn independently from $N(0, \eta_VI)$, given the attention; weights
    that were not drawn so fail the first hypothesis. Says nothing about training. One draw in a
    hundred may come out violated without the theorem being wrong.
    """
    drawn = setup.from_init and setup.setting.init != "orthogonal"
    c = width_constants(setup, setup.setting.variances().W_V if drawn else float("nan"))
    alpha = start_constants(setup)["alpha"]
    return Certificate(
        hypotheses={
            "rows of W_V are independent Gaussians: 0 < eta_V": positive(
                c["eta_V"] if drawn else 0.0
            ),
            "limit features are independent: 0 < lambda": positive(c["lambda"]),
            "wide enough": Inequality(c["width needed"], c["width"]),
        },
        conclusions={"features are independent": Inequality(c["bound"], alpha**2)},
        constants=c | {"alpha": alpha},
    )


class Rounding(NamedTuple):
    """How far a run in floats may be from the exact one, record by record."""

    residual: Float[Array, " T"]
    weights: dict[str, Float[Array, " T"]]
    features: Float[Array, " T"]


SUBSTEPS = 100
"""Steps of the flow's integrator between two records that are allowed for."""


def _rounding(
    setup: Setup, run: Trajectory, c: Numbers, settled: Scalar, integrator: tuple[float, float]
) -> Rounding:
    r"""From the sizes of what is computed, inside the balls of the theorem.

    Evaluating the residual errs by what its enclosure at the start is wide, and by rounding terms
    of size $\varphi\lambda_O$. A step rounds every weight, which moves the residual by
    $\lVert J\rVert$ times as much, $\lVert J\rVert^2\le\varphi^2+r\rho^2z$; what earlier
    steps left contracts with the run, so that no more than ``settled`` of them add up.
    """
    eps = float(jnp.finfo(run.risk.dtype).eps)
    coarser = eps / float(jnp.finfo(jnp.float64).eps)
    relative, absolute = integrator
    F = feature_matrix(setup)(setup.params0)
    wide_F, wide_f = (norm_fro(enclosure_width(x)) for x in (F, F @ setup.params0.w_O))
    size = norm_fro(setup.targets) + c["E_0"] + c["phi"] * c["lambda_O"]
    once = 4 * coarser * wide_f + 32 * eps * size
    lengths = {name: norm_fro(W) + c[f"delta_{name[-1]}"]
               for name, W in setup.params0._asdict().items()}  # fmt: skip
    per_step = {
        name: eps * length
        + SUBSTEPS * (relative * length + absolute * getattr(setup.params0, name).size ** 0.5)
        for name, length in lengths.items()
    }
    J = jnp.sqrt(c["phi"] ** 2 + (c["rho"] * c["lambda_O"]) ** 2 * c["zeta"])
    moved = functools.reduce(jnp.add, per_step.values())
    gamma = jnp.asarray(setup.step_size, float)
    count = jnp.minimum(run.step.astype(float), settled)
    steps = run.step.astype(float)
    turned = 1 + c["tau_0"] * c["c_X"] * c["lambda_V"] * (c["lambda_Q"] + c["lambda_K"])
    return Rounding(
        once + (J * moved + jnp.minimum(gamma * J**2, 1.0) * once) * count,
        {name: (steps + 1) * (each + gamma * J * once) for name, each in per_step.items()},
        4 * coarser * wide_F + 32 * eps * c["phi"] + c["rho"] * turned * moved * steps,
    )


def _compared(
    setup: Setup, run: Trajectory, c: Numbers, hypotheses: dict[str, Inequality],
    bound: Float[Array, " T"], rate: Scalar, measured: Scalar, settled: Scalar,
    integrator: tuple[float, float] = (0.0, 0.0),
) -> Certificate:  # fmt: skip
    """What theorems A and B share: the bound on the risk, and on everything that was recorded.

    ``integrator`` are the relative and absolute error of a step, zero for a discrete method.
    """
    common = {
        "w_O is trained": condition(jnp.asarray(setup.step_ratios["w_O"], float) > 0),
        "features are independent: 0 < alpha": positive(c["alpha"]),
        "(1-4) balls exist: mu < 1": Inequality(jnp.where(c["E_0"] > 0, c["mu"], 0.0), 1.0),
    }
    risk, seen = run.risk.astype(jnp.float64), run.probes
    error = _rounding(setup, run, c, settled, integrator)
    rounding = error.residual * jnp.sqrt(2 * jnp.abs(risk)) + error.residual**2
    falling = jnp.where(run.step > 0, risk, 0.0)  # step 0 is an equality, checked by itself
    conclusions: dict[str, Inequality | Equality | NotChecked] = {
        "the run starts at its initial weights": Equality(risk[0], c["E_0"] ** 2 / 2, rounding[0]),
        "risk falls at the proved rate": Inequality(falling, bound, rounding),
    }
    for name in ("w_O", "W_V", "W_Q", "W_K"):
        key, line = f"movement_{name}", f"{name} stays in its ball"
        if key not in seen:
            conclusions[line] = not_checked("movement")
            continue
        length = norm_fro(getattr(setup.params0, name))
        scale = jnp.where(length > 0, length, 1)
        moved = seen[key].astype(jnp.float64) * scale
        conclusions[line] = Inequality(moved, c[f"delta_{name[-1]}"], error.weights[name])
    line = "features stay independent: alpha/2 <= sigma_min(F)"
    low, high = seen.get("feature_sigma_min"), seen.get("feature_norm")
    conclusions[line] = (
        not_checked("feature_sigma_min") if low is None
        else Inequality(c["alpha"] / 2, low, error.features)
    )  # fmt: skip
    conclusions["features stay bounded: |F| <= phi"] = (
        not_checked("feature_norm") if high is None else Inequality(high, c["phi"], error.features)
    )
    curves = {"proved bound": bound}
    return Certificate(common | hypotheses, conclusions, c, rate, measured, curves)
