r"""Theorems about gradient descent on one attention layer, compared with runs.

All are ours with these constants, after the route of Song et al. (2024); statements and proofs in
docs/theory/song2024.md. Letters as there: $F$ is the risk $\tfrac12\sum_i\lVert M_i-Y_i\rVert_F^2$.

A recorded number is compared with a bound only beyond the rounding error of the residual,
$10^{-13}(\lVert Y\rVert+\lVert M_0\rVert)$.
"""

import functools

import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Float, Scalar
from shoal.certificates import Certificate, Equality, Inequality, condition, share_lost
from shoal.lab.setup import Setup
from shoal.linalg import norm_fro
from shoal.papers.song2024 import bounds
from shoal.papers.song2024.bounds import ZERO, Numbers
from shoal.papers.song2024.layer import Weights
from shoal.papers.song2024.model import JUST_BELOW, PAPER, Song, hull_floor
from shoal.training import Trajectory

SOURCE = "ours, after Song et al. (2024), Theorem {}; proof in docs/theory/song2024.md"
RECORDED = ("gradient_norm", "distance")
STEP = "step: eta L <= 1, or descent checked at every step"
BEGINS = "the run starts at its initial weights"
DESCENDS = "each step descends by step |grad F|^2 / 2"
Records = Float[Array, " T"]
Hypotheses = dict[str, Inequality]


def _is_layer(setting: Song) -> bool:
    """The theorems are about the layer, not about the classifier."""
    return setting.model == "layer"


_theorem = functools.partial(PAPER.theorem, covers=_is_layer)


def _alone(setup: Setup, block: str) -> Hypotheses:
    """One block is trained and no other."""
    return {
        f"{block} is trained": condition(block in setup.trained),
        "nothing else moves": condition(set(setup.trained) <= {block}),
    }


def _rounding(setup: Setup, run: Trajectory, off_hull: Scalar = 0.0) -> Records:
    """Rounding error of each recorded risk, from that of the outputs.

    ``off_hull`` is how far targets that count as in the affine hull are off it: that part of the
    residual never goes away.
    """
    y = setup.targets
    size = norm_fro(y) + norm_fro(bounds.residual(setup) + y)
    error = 450 * jnp.finfo(run.risk.dtype).eps * size + off_hull
    return error * jnp.sqrt(2 * jnp.abs(run.risk)) + error**2 + 1e-28


def _gradient(setup: Setup, run: Trajectory) -> Records | None:
    """Norm of the gradient over the trained blocks, where it was recorded."""
    if not all(f"gradient_norm_{name}" in run.probes for name in Weights._fields):
        return None
    return jnp.sqrt(sum(run.probes[f"gradient_norm_{name}"] ** 2 for name in setup.trained))


def _descent(setup: Setup, run: Trajectory) -> tuple[Array, Array] | None:
    r"""Both sides of $F_{t+1}\le F_t-\tfrac\eta2\lVert\nabla F_t\rVert^2$, step by step."""
    gradient = _gradient(setup, run)
    if gradient is None or setup.setting.every != 1:
        return None
    return run.risk[1:], run.risk[:-1] - setup.step_size / 2 * gradient[:-1] ** 2


def _step_hypothesis(setup: Setup, L: Scalar, run: Trajectory, rounding: Records) -> Inequality:
    r"""$\eta\le1/L$; or, a posteriori, descent was checked at every step (then $L$ is not needed).

    Written as one inequality: $\eta L$ against 1, where a longer step that was seen to descend
    counts as 0.
    """
    bound = jnp.asarray(setup.step_size * L, float)
    if (sides := _descent(setup, run)) is None:
        return Inequality(bound, 1.0)
    after, promised = sides
    checked = jnp.all(after <= promised + rounding[:-1])  # NaN sides never pass
    return Inequality(jnp.where((bound > 1) & checked, 0.0, bound), 1.0)


def _begins(F_0: Scalar, run: Trajectory, rounding: Records) -> dict[str, Inequality]:
    """The record belongs to these weights: its first risk is theirs."""
    gap = jnp.abs(run.risk[0].astype(jnp.float64) - F_0)
    return {BEGINS: Inequality(gap, 1e-9 * F_0 + rounding[0])}


def _gradient_conclusions(
    setup: Setup, run: Trajectory, name: str, mu: Scalar | Records, rounding: Records
) -> dict[str, Inequality]:
    r"""$2\mu F\le\lVert\nabla F\rVert^2$ and descent at every record, if gradients are there."""
    if (gradient := _gradient(setup, run)) is None:
        return {}
    blur = 450 * jnp.finfo(run.risk.dtype).eps * gradient**2
    found = {name: Inequality(2 * mu * run.risk, gradient**2, 2 * mu * rounding + blur)}
    if (sides := _descent(setup, run)) is not None:
        found[DESCENDS] = Inequality(*sides, rounding[:-1])
    return found


def _largest_step(assumed: Callable[[Setup], tuple[Numbers, Hypotheses]]) -> Callable:
    """1 / L; NaN where a theorem does not apply whatever the step."""

    def step(setup: Setup) -> Float[Array, ""]:
        c, hypotheses = assumed(setup)
        applies = jnp.all(jnp.stack([jnp.asarray(h.lhs < h.rhs) for h in hypotheses.values()]))
        return jnp.where(applies, JUST_BELOW / c["L"], jnp.nan)

    return step


def _certified(
    setup: Setup, run: Trajectory, c: Numbers, hypotheses: Hypotheses,
    *, mu: Scalar, radius: Scalar, off_hull: Scalar = 0.0,
) -> Certificate:  # fmt: skip
    """What theorems 2 and 3 say of a run alike: start, rate, PL inequality, descent, ball."""
    rounding = _rounding(setup, run, off_hull)
    curve = jnp.clip(1 - setup.step_size * mu, 0.0, 1.0) ** run.step * c["F_0"]
    falls = jnp.where(run.step > 0, run.risk, 0.0)
    large = "gradient is large: 2 mu F <= |grad F|^2"
    conclusions: dict[str, Any] = {
        **_begins(c["F_0"], run, rounding),
        "risk falls at the proved rate": Inequality(falls, curve, rounding),
        **_gradient_conclusions(setup, run, large, mu, rounding),
    }
    if "distance" in run.probes:
        conclusions["weights stay within the radius"] = Inequality(run.probes["distance"], radius)
    hypotheses[STEP] = _step_hypothesis(setup, c["L"], run, _rounding(setup, run))
    return Certificate(
        hypotheses=hypotheses,
        conclusions=conclusions,
        constants=c,
        predicted_rate=setup.step_size * mu,
        measured_rate=share_lost(run.risk, run.step[-1]),
        curves={"proved bound": curve},
    )


@_theorem(source=SOURCE.format(1), largest_step=lambda setup: 1 / bounds.value_numbers(setup)["L"])
def theorem_1(setup: Setup, run: Trajectory) -> Certificate:
    """Only W_V moves: the loss follows an exact recursion to the least squares floor, for every
    kernel; the floor is zero for all targets only if heads x dim >= samples x tokens.
    """
    c = bounds.value_numbers(setup)
    eta = jnp.asarray(setup.step_size, float)
    q = jnp.maximum(jnp.abs(1 - eta * c["lambda"]), jnp.abs(1 - eta * c["L"]))
    F_0, floor = c["F_0"], c["F_star"]
    rounding = _rounding(setup, run)
    # F* + (1/2) sum_j (1 - eta sigma_j^2)^(2t) (u_j' r_0)^2
    factors = (1 - eta * c["sigma"] ** 2)[None] ** run.step[:, None]
    exact = floor + 0.5 * jnp.sum((factors * c["parts"][None]) ** 2, axis=1)
    # single precision drifts by its own rounding, step by step
    drift = 1e-10 if run.risk.dtype == jnp.float64 else 1e-3
    falls = jnp.where(run.step > 0, run.risk - floor, 0.0)
    return Certificate(
        hypotheses={
            **_alone(setup, "W_V"),
            "step: eta L < 2": Inequality(eta * c["L"], 2.0),
            "attention is not zero: 0 < L": Inequality(1e-300, c["L"]),
        },
        conclusions={
            "risk is what the recursion says": Equality(run.risk, exact, drift * F_0 + rounding),
            "excess over the floor falls at the proved rate": Inequality(
                falls, q ** (2 * run.step) * (F_0 - floor), rounding + drift * F_0
            ),
            "never below the floor": Inequality(floor, run.risk, rounding + 1e-12 * F_0),
        },
        constants={k: v for k, v in c.items() if k not in ("sigma", "parts")}
        | {"best step": 2 / (c["L"] + c["lambda"]), "q": q},
        predicted_rate=1 - q**2,
        measured_rate=share_lost(jnp.maximum(run.risk - floor, 0.0), run.step[-1]),
        curves={"exact recursion": exact},
    )


def _joint(setup: Setup) -> tuple[Numbers, Hypotheses]:
    """Constants of theorem 2, and its hypotheses but for the step."""
    c = bounds.joint_constants(setup)
    return c, {
        "kernel is softmax or gaussian": condition(setup.setting.kernel in bounds.PROVED),
        "W_V is trained": condition("W_V" in setup.trained),
        "W_O is fixed": condition("W_O" not in setup.trained),
        "features are independent: 0 < lambda": Inequality(ZERO * c["|A_0|"], c["lambda"]),
        "start is close: F_0 <= lambda^2 R^2 / 32": Inequality(c["F_0"], c["threshold"]),
    }


@_theorem(
    source=SOURCE.format(2), probes=(*RECORDED, "lambda_A"), largest_step=_largest_step(_joint)
)
def theorem_2(setup: Setup, run: Trajectory) -> Certificate:
    """W_Q, W_K, W_V move together: close to a start with independent features the loss falls at
    least like (1 - step * lambda^2 / 4)^t.
    """
    c, hypotheses = _joint(setup)
    found = _certified(setup, run, c, hypotheses, mu=c["mu"], radius=c["R"])
    if "lambda_A" in run.probes:
        found.conclusions["features stay independent: lambda / 2 <= sigma_min(A)"] = Inequality(
            c["lambda"] / 2, run.probes["lambda_A"], ZERO * c["|A_0|"]
        )
    return found


def _query_hypotheses(setup: Setup, c: Numbers) -> Hypotheses:
    return {
        "one head": condition(setup.params0.W_Q.shape[0] == 1),
        **_alone(setup, "W_Q"),
        "tokens are independent: 0 < sigma_X": Inequality(ZERO * c["|X|"], c["sigma_X"]),
    }


def _queries(setup: Setup) -> tuple[Numbers, Hypotheses]:
    """Constants of theorem 3, and its hypotheses but for the step."""
    c = bounds.query_constants(setup)
    return c, {
        "kernel is softmax or gaussian": condition(setup.setting.kernel in bounds.PROVED),
        **_query_hypotheses(setup, c),
        "outputs turn with queries: 0 < s_0": Inequality(ZERO * c["j"], c["s_0"]),
        "start is close: F_0 <= mu_0 R_J^2 / 32": Inequality(c["F_0"], c["threshold"]),
    }


@_theorem(source=SOURCE.format(3), probes=RECORDED, largest_step=_largest_step(_queries))
def theorem_3(setup: Setup, run: Trajectory) -> Certificate:
    """Only W_Q moves, one head: where every output turns with its query, the loss falls at least
    like (1 - step * mu_0 / 4)^t.
    """
    c, hypotheses = _queries(setup)
    return _certified(
        setup, run, c, hypotheses, mu=c["mu_0"] / 4, radius=c["R_J"], off_hull=c["off the hull"]
    )


@PAPER.theorem(
    source="ours; proof in docs/theory/song2024.md",
    probes=RECORDED,
    needs=("query_sigma",),
    covers=lambda setting: _is_layer(setting) and setting.num_heads == 1,
)
def theorem_s(setup: Setup, run: Trajectory) -> Certificate:
    """Softmax, only W_Q, affinely independent keys, targets in the affine hull: no stationary
    point lies above zero loss.

    Along the run the gradient bounds the risk with the smallest singular value of dm/dq at that
    point (probe ``query_sigma``).
    """
    g = bounds.query_geometry(setup)
    c = bounds.query_constants(setup, g)
    rounding = _rounding(setup, run, g["off_hull"])
    mu = (c["sigma_X"] * run.probes["query_sigma"]) ** 2
    sees = "gradient sees the risk: 2 sigma_X^2 s_t^2 F <= |grad F|^2"
    floor = hull_floor(setup)(setup.params0)
    rank_K, outside = jnp.min(g["rank_K"]).astype(float), jnp.sum(~g["in_hull"]).astype(float)
    return Certificate(
        hypotheses={
            "kernel is softmax": condition(setup.setting.kernel == "softmax"),
            **_query_hypotheses(setup, c),
            "keys are affinely independent: rank = n - 1": Inequality(
                setup.inputs.shape[1] - 1.5, rank_K
            ),
            "targets lie in the affine hull of the values": Inequality(outside, 0.5),
            STEP: _step_hypothesis(setup, c["L"], run, rounding),
        },
        conclusions={
            **_begins(c["F_0"], run, rounding),
            **_gradient_conclusions(setup, run, sees, mu, rounding),
            "never below the hull floor": Inequality(floor, run.risk, rounding),
        },
        constants=c | {"hull floor": floor},
        measured_rate=share_lost(run.risk, run.step[-1]),
    )
