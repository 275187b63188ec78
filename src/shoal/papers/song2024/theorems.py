r"""Theorems about gradient descent on one attention layer, compared with runs.

All are ours with these constants, after the route of Song et al. (2024); statements and proofs in
docs/theory/song2024.md. Letters as there: $F$ is the risk $\tfrac12\sum_i\lVert M_i-Y_i\rVert_F^2$.

A recorded number breaks a bound only beyond the rounding of the run, which follows from the sizes
of outputs, weights and Jacobian (`Rounding`).
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from shoal import trees
from shoal._typing import Array, Callable, Float, Scalar
from shoal.certificates import (
    SMALLEST,
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
from shoal.linalg import norm_fro, singular_values
from shoal.papers.song2024 import bounds, layer
from shoal.papers.song2024.bounds import Numbers
from shoal.papers.song2024.layer import Weights
from shoal.papers.song2024.model import JUST_BELOW, PAPER, Song, hull_floor
from shoal.training import Trajectory
from shoal.verified.enclose import chosen, enclosure_width

SOURCE = "ours, after Song et al. (2024), Theorem {}; proof in docs/theory/song2024.md"
RECORDED = ("gradient_norm", "distance")
STEP = "step: eta L <= 1, or descent checked at every step"
BEGINS = "the run starts at its initial weights"
DESCENDS = "each step descends by step |grad F|^2 / 2"
Records = Float[Array, " T"]
Hypotheses = dict[str, Inequality]
Conclusions = dict[str, Inequality | Equality | NotChecked]


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


class Rounding(NamedTuple):
    """How far a run in floats may be from the exact one, record by record."""

    residual: Records
    gradient: Scalar  # Of a gradient that is evaluated once, over the norm of the residual ...
    fixed: Scalar  # ... and what is added to that.
    weights: Records

    def of_risk(self, run: Trajectory) -> Records:
        """Of the risk."""
        return self.residual * jnp.sqrt(2 * jnp.abs(run.risk)) + self.residual**2

    def of_gradient(self, run: Trajectory) -> Records:
        """Of the norm of the gradient."""
        return self.gradient * jnp.sqrt(2 * jnp.abs(run.risk)) + self.fixed


def _rounding(
    setup: Setup, run: Trajectory, J: Scalar, *, radius: Scalar, settled: Scalar = jnp.inf
) -> Rounding:
    """From the sizes of what is computed.

    Evaluating the residual errs by what its enclosure at the start is wide, and by rounding outputs
    and targets; a step rounds the weights, which move the residual by at most ``J`` (a bound of the
    Jacobian) times as much. What earlier steps left contracts, so that no more than ``settled`` of
    them add up. ``radius`` bounds how far the weights move.
    """
    eps = float(jnp.finfo(run.risk.dtype).eps)
    coarser = eps / float(jnp.finfo(jnp.float64).eps)
    r = bounds.residual(setup)
    size = 2 * norm_fro(setup.targets) + norm_fro(r)
    once = 4 * coarser * norm_fro(enclosure_width(r)) + 32 * eps * size
    weights = trees.norm(setup.moving(setup.params0)) + radius
    step = jnp.asarray(setup.step_size, float)
    per_step = eps * J * weights + jnp.minimum(step * J**2, 1.0) * once
    t = run.step.astype(float)
    return Rounding(
        once + per_step * jnp.minimum(t, settled),
        64 * eps * J, J * once, (t + 1) * (eps * weights + step * J * once),
    )  # fmt: skip


def _contracting(step_size: Scalar, mu: Scalar) -> Scalar:
    """Steps after which a contraction by 1 - step mu of the risk has forgotten an error."""
    return jnp.where(step_size * mu > 0, 2 / (step_size * mu), jnp.inf)


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


def _step_hypothesis(setup: Setup, L: Scalar, run: Trajectory, error: Rounding) -> Inequality:
    r"""$\eta\le1/L$; or, a posteriori, descent was checked at every step (then $L$ is not needed).

    Written as one inequality: $\eta L$ against 1, where a longer step that was seen to descend by
    more than rounding counts as 0, and one of which rounding decides as 1, which decides nothing.
    """
    bound = jnp.asarray(setup.step_size * L, float)
    if (sides := _descent(setup, run)) is None:
        return Inequality(bound, 1.0)
    after, promised = sides
    rounding = _descent_rounding(setup, run, error)
    sure = jnp.all(after <= promised - rounding)  # NaN sides never pass
    open_ = jnp.all(after <= promised + rounding)
    seen = jnp.where(sure, 0.0, jnp.where(open_, 1.0, bound))
    return Inequality(jnp.where(bound > 1, seen, bound), 1.0)


def _descent_rounding(setup: Setup, run: Trajectory, error: Rounding) -> Array:
    """Of both sides of the descent inequality."""
    risk, slope = error.of_risk(run), error.of_gradient(run)
    gradient = _gradient(setup, run)
    turned = 0.0 if gradient is None else gradient * slope + slope**2
    return risk[1:] + (risk + setup.step_size * turned)[:-1]


def _begins(F_0: Scalar, run: Trajectory, error: Rounding) -> dict[str, Equality]:
    """The record belongs to these weights: its first risk is theirs."""
    return {BEGINS: Equality(run.risk[0].astype(jnp.float64), F_0, error.of_risk(run)[0])}


def _gradient_conclusions(
    setup: Setup, run: Trajectory, name: str, mu: Scalar | Records, risk: Records, error: Rounding,
    mu_error: Scalar | Records = 0.0,
) -> Conclusions:  # fmt: skip
    r"""$2\mu F\le\lVert\nabla F\rVert^2$ and descent at every record, if gradients are there."""
    if (gradient := _gradient(setup, run)) is None:
        return {name: not_checked("gradient_norm"), DESCENDS: not_checked("gradient_norm")}
    slope = error.of_gradient(run)
    blur = 2 * mu * error.of_risk(run) + 2 * mu_error * jnp.abs(risk)
    found: Conclusions = {
        name: Inequality(2 * mu * risk, gradient**2, blur + 2 * gradient * slope + slope**2)
    }
    if (sides := _descent(setup, run)) is not None:
        found[DESCENDS] = Inequality(*sides, _descent_rounding(setup, run, error))
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
    *, mu: Scalar, radius: Scalar, jacobian: Scalar, off_hull: Scalar = 0.0,
) -> Certificate:  # fmt: skip
    """What theorems 2 and 3 say of a run alike: start, rate, PL inequality, descent, ball.

    ``off_hull`` is how far targets lie off what attention can reach: that part of the residual is
    orthogonal to all gradients, so it stays, and the theorem is about the rest of the risk.
    """
    settled = _contracting(setup.step_size, mu)
    error = _rounding(setup, run, jacobian, radius=radius, settled=settled)
    stays = off_hull**2 / 2
    falling = jnp.clip(1 - setup.step_size * mu, 0.0, 1.0) ** run.step
    curve = falling * (c["F_0"] - stays) + stays
    risk = run.risk.astype(jnp.float64)
    falls = jnp.where(run.step > 0, risk, 0.0)
    large = "gradient is large: 2 mu F <= |grad F|^2"
    conclusions: Conclusions = {
        **_begins(c["F_0"], run, error),
        "risk falls at the proved rate": Inequality(falls, curve, error.of_risk(run)),
        **_gradient_conclusions(setup, run, large, mu, risk - stays, error),
        "weights stay within the radius": not_checked("distance"),
    }
    if (distance := run.probes.get("distance")) is not None:
        conclusions["weights stay within the radius"] = Inequality(distance, radius, error.weights)
    hypotheses[STEP] = _step_hypothesis(setup, c["L"], run, error)
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
    # singular vectors are no enclosures: what they make is compared up to their own error
    c = chosen(bounds.value_numbers)(setup)
    eta = jnp.asarray(setup.step_size, float)
    sigma = singular_values(layer.value_matrix(setup.params0, setup.inputs, setup.setting.form))
    L, F_0 = sigma[0] ** 2, 0.5 * jnp.sum(bounds.residual(setup) ** 2)
    q = jnp.maximum(jnp.abs(1 - eta * c["lambda"]), jnp.abs(1 - eta * c["L"]))
    floor, t = c["F_star"], run.step.astype(float)
    # F* + (1/2) sum_j (1 - eta sigma_j^2)^(2t) (u_j' r_0)^2
    factors = (1 - eta * c["sigma"] ** 2)[None] ** run.step[:, None]
    exact = floor + 0.5 * jnp.sum((factors * c["parts"][None]) ** 2, axis=1)
    wide = 64 * max(c["sigma"].shape) * jnp.finfo(jnp.float64).eps
    least = jnp.sqrt(c["lambda"])
    moved = jnp.minimum(t[-1] * eta * sigma[0], 1 / least) * jnp.sqrt(2 * F_0)
    error = _rounding(setup, run, sigma[0], radius=moved)
    # singular values and vectors are those of a matrix that differs by ``wide`` times its size;
    # directions that count as zero move the residual a little all the same
    left_out = t * eta * (bounds.ZERO**2 + wide) * L
    recursion = error.of_risk(run) + 2 * F_0 * left_out
    floor_error = 2 * F_0 * jnp.minimum(wide * sigma[0] / least, 1.0)
    risk = run.risk.astype(jnp.float64)
    falls = jnp.where(run.step > 0, risk - floor, 0.0)
    return Certificate(
        hypotheses={
            **_alone(setup, "W_V"),
            "step: eta L < 2": Inequality(eta * L, 2.0),
            "attention is not zero: 0 < L": positive(L),
        },
        conclusions={
            "risk is what the recursion says": Equality(risk, exact, recursion),
            "excess over the floor falls at the proved rate": Inequality(
                falls, q ** (2 * run.step) * (F_0 - floor), recursion + 2 * floor_error
            ),
            "never below the floor": Inequality(floor, risk, error.of_risk(run) + floor_error),
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
        "features are independent: 0 < lambda": positive(c["lambda"]),
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
    jacobian = jnp.sqrt(c["a^2+b^2"])
    found = _certified(setup, run, c, hypotheses, mu=c["mu"], radius=c["R"], jacobian=jacobian)
    name = "features stay independent: lambda / 2 <= sigma_min(A)"
    found.conclusions[name] = not_checked("lambda_A")
    if "lambda_A" in run.probes:
        eps = float(jnp.finfo(run.risk.dtype).eps)
        coarser = eps / float(jnp.finfo(jnp.float64).eps)
        wide = enclosure_width(c["lambda"]) + enclosure_width(c["|A_0|"])
        weights = trees.norm(setup.moving(setup.params0)) + c["R"]
        drift = (run.step + 1) * eps * c["L_A"] * weights
        size = c["|A_0|"] + c["R"] * c["L_A"]
        found.conclusions[name] = Inequality(
            c["lambda"] / 2, run.probes["lambda_A"], 4 * coarser * wide + 32 * eps * size + drift
        )
    return found


def _query_hypotheses(setup: Setup, c: Numbers) -> Hypotheses:
    return {
        "one head": condition(setup.params0.W_Q.shape[0] == 1),
        **_alone(setup, "W_Q"),
        "tokens are independent: 0 < sigma_X": positive(c["sigma_X"]),
    }


def _rank_hypothesis(setup: Setup, g: Numbers) -> Hypotheses:
    """Where targets lie in the hull, its dimension must be known: the largest that is possible.

    A smaller rank can be seen but not proved in floating point, so it decides nothing.
    """
    if not setup.setting.form.kernel.normalised:
        return {}
    known = jnp.all(~g["in_hull"] | (g["rank_U"] == g["full_rank"]))
    some = jnp.any(g["in_hull"])
    surely = jnp.where(known & some, g["sigma_U"], 1.0)
    return {
        "dimension of the hull is known: values span what they can": Inequality(
            jnp.where(known, SMALLEST, 1.0), surely
        )
    }


def _queries(setup: Setup) -> tuple[Numbers, Hypotheses]:
    """Constants of theorem 3, and its hypotheses but for the step."""
    g = bounds.query_geometry(setup)
    c = bounds.query_constants(setup, g)
    return c, {
        "kernel is softmax or gaussian": condition(setup.setting.kernel in bounds.PROVED),
        **_query_hypotheses(setup, c),
        **_rank_hypothesis(setup, g),
        "outputs turn with queries: 0 < s_0": positive(c["s_0"]),
        "start is close: F_0 <= mu_0 R_J^2 / 32": Inequality(c["F_0"], c["threshold"]),
    }


@_theorem(source=SOURCE.format(3), probes=RECORDED, largest_step=_largest_step(_queries))
def theorem_3(setup: Setup, run: Trajectory) -> Certificate:
    """Only W_Q moves, one head: where every output turns with its query, the loss falls at least
    like (1 - step * mu_0 / 4)^t.
    """
    c, hypotheses = _queries(setup)
    return _certified(
        setup, run, c, hypotheses, mu=c["mu_0"] / 4, radius=c["R_J"],
        jacobian=c["|X|"] * c["j"], off_hull=c["off the hull"],
    )  # fmt: skip


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
    moved = jnp.max(run.probes["distance"]) if "distance" in run.probes else jnp.zeros(())
    error = _rounding(setup, run, c["|X|"] * c["j"], radius=moved)
    eps = float(jnp.finfo(run.risk.dtype).eps)
    coarser = eps / float(jnp.finfo(jnp.float64).eps)
    turns = run.probes["query_sigma"].astype(jnp.float64)
    turns_error = 4 * coarser * enclosure_width(c["s_0"]) + 64 * eps * c["j"]
    mu = (c["sigma_X"] * turns) ** 2
    mu_error = c["sigma_X"] ** 2 * turns_error * (2 * turns + turns_error)
    sees = "gradient sees the risk: 2 sigma_X^2 s_t^2 F <= |grad F|^2"
    floor = chosen(hull_floor(setup))(setup.params0)
    outside = jnp.sum(~g["in_hull"]).astype(float)
    risk = run.risk.astype(jnp.float64)
    return Certificate(
        hypotheses={
            "kernel is softmax": condition(setup.setting.kernel == "softmax"),
            **_query_hypotheses(setup, c),
            "keys are affinely independent: rank = n - 1": positive(g["sigma_K"]),
            "targets lie in the affine hull of the values": Inequality(outside, 0.5),
            **_rank_hypothesis(setup, g),
            STEP: _step_hypothesis(setup, c["L"], run, error),
        },
        conclusions={
            **_begins(c["F_0"], run, error),
            **_gradient_conclusions(
                setup, run, sees, mu, risk - g["off_hull"] ** 2 / 2, error, mu_error
            ),
            "never below the hull floor": Inequality(floor, risk, error.of_risk(run)),
        },
        constants=c | {"hull floor": floor},
        measured_rate=share_lost(run.risk, run.step[-1]),
    )
