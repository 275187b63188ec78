r"""Theorems about gradient descent on one attention layer, confronted with runs.

All are ours with these constants, after the route of Song et al. (2024); statements and proofs in
docs/theory/song2024.md. Letters as there: $F$ is the risk $\tfrac12\sum_i\lVert M_i-Y_i\rVert_F^2$.

A recorded number is compared with a bound only beyond what rounding blurs: an error of
$10^{-13}(\lVert Y\rVert+\lVert M_0\rVert)$ in the residual.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Float, Scalar
from shoal.certificates import Certificate, Inequality, share_lost
from shoal.linalg import norm_fro, norm_op, numerical_rank, singular_values
from shoal.papers.song2024 import layer
from shoal.papers.song2024.layer import Form, Weights
from shoal.problems import Problem
from shoal.training import Trajectory

KAPPA_3 = math.sqrt(6) / 9
"""Largest third cumulant of a unit vector under a probability vector (lemma 1)."""
ZERO = 1e-12
"""Singular values below this share of the largest count as zero."""
JUST_BELOW = 1 - 4e-9
"""A largest step is given by so much less, lest rounding puts it on the wrong side."""

Numbers = dict[str, Array]


class Start(NamedTuple):
    """Where a run begins, and which attention it uses."""

    problem: Problem
    params0: Weights
    form: Form
    kernel: str  # its name: bounds are known for softmax and gaussian
    speeds: Mapping[str, Scalar]
    every_step: bool = True  # the run records every step, so descent can be checked


# ----------------------------------------------------------------------------- common pieces


def _residual(start: Start) -> Float[Array, "N n p"]:
    network = layer.attention_layer(_sizes(start.params0), start.form)
    outputs = jax.vmap(network.apply, in_axes=(None, 0))(start.params0, start.problem.X)
    return outputs - start.problem.y


def _sizes(params: Weights) -> layer.Sizes:
    H, D, k = params.W_Q.shape
    return layer.Sizes(H, D, k, *params.W_O.shape[1:])


def _moves(start: Start, *names: str) -> Inequality:
    """The blocks named move (together at least one), as a hypothesis."""
    return Inequality(1e-9, sum(jnp.asarray(start.speeds[name], float) for name in names))


def _rests(start: Start, *names: str) -> Inequality:
    """None of the blocks named moves, as a hypothesis."""
    return Inequality(sum(jnp.asarray(start.speeds[name], float) for name in names), 1e-9)


def _is(condition: bool) -> Inequality:
    """A yes or no of the setting, as a hypothesis."""
    return Inequality(0.0 if condition else 1.0, 0.5)


def _rounding(start: Start, run: Trajectory, off_hull: Scalar = 0.0) -> Float[Array, " T"]:
    """What rounding of outputs means for each recorded risk.

    ``off_hull`` is how far targets that count as in the affine hull are off it: that part of the
    residual never goes away.
    """
    r = _residual(start)
    size = norm_fro(start.problem.y) + norm_fro(r + start.problem.y)
    error = 450 * jnp.finfo(run.risk.dtype).eps * size + off_hull
    return error * jnp.sqrt(2 * jnp.abs(run.risk)) + error**2 + 1e-28


def _gradient(start: Start, run: Trajectory) -> Float[Array, " T"] | None:
    """Norm of the gradient over the trained blocks, where it was recorded."""
    names = [f"gradient_norm_{name}" for name in Weights._fields]
    if not all(name in run.probes for name in names):
        return None
    parts = [
        jnp.where(start.speeds[block] > 0, run.probes[name], 0.0) ** 2
        for block, name in zip(Weights._fields, names, strict=True)
    ]
    return jnp.sqrt(sum(parts))


def _descent(
    start: Start, step_size: Scalar, gradient: Float[Array, " T"] | None, run: Trajectory
) -> tuple[Float[Array, " steps"], Float[Array, " steps"]] | None:
    r"""Both sides of $F_{t+1}\le F_t-\tfrac\eta2\lVert\nabla F_t\rVert^2$, step by step."""
    if gradient is None or not start.every_step:
        return None
    return run.risk[1:], run.risk[:-1] - step_size / 2 * gradient[:-1] ** 2


def _step_hypothesis(
    step_size: Scalar, L: Scalar, sides: tuple | None, rounding: Float[Array, " T"]
) -> Inequality:
    r"""$\eta\le1/L$; or, a posteriori, descent was checked at every step (then $L$ plays no part).

    Written as one inequality: $\eta L$ against 1, where a longer step that was seen to descend
    counts as 0.
    """
    bound = jnp.asarray(step_size * L, float)
    if sides is None:
        return Inequality(bound, 1.0)
    after, promised = sides
    checked = jnp.all(after <= promised + rounding[:-1])  # NaN sides never pass
    return Inequality(jnp.where((bound > 1) & checked, 0.0, bound), 1.0)


def _begins(F_0: Scalar, run: Trajectory, rounding: Float[Array, " T"]) -> Inequality:
    """The record belongs to these weights: its first risk is theirs."""
    gap = jnp.abs(run.risk[0].astype(jnp.float64) - F_0)
    return Inequality(gap, 1e-9 * F_0 + rounding[0])


def _pl(
    mu: Scalar | Float[Array, " T"],
    gradient: Float[Array, " T"],
    run: Trajectory,
    rounding: Float[Array, " T"],
) -> Inequality:
    r"""$2\mu F\le\lVert\nabla F\rVert^2$ at every record."""
    blur = 450 * jnp.finfo(run.risk.dtype).eps * gradient**2
    return Inequality(2 * mu * run.risk, gradient**2, 2 * mu * rounding + blur)


def _run_conclusions(
    start: Start,
    run: Trajectory,
    *,
    step_size: Scalar,
    mu: Scalar,
    radius: Scalar,
    F_0: Scalar,
    off_hull: Scalar = 0.0,
) -> dict[str, Inequality]:
    """What theorems 2 and 3 say of a run alike: start, descent, PL inequality, ball, rate."""
    rounding = _rounding(start, run, off_hull)
    gradient = _gradient(start, run)
    factor = jnp.clip(1 - step_size * mu, 0.0, 1.0)
    found = {
        "the run starts at its initial weights": _begins(F_0, run, rounding),
        "risk falls at the proved rate": Inequality(
            jnp.where(run.step > 0, run.risk, 0.0), factor**run.step * F_0, rounding
        ),
    }
    if gradient is not None:
        found["gradient is large: 2 mu F <= |grad F|^2"] = _pl(mu, gradient, run, rounding)
    if (sides := _descent(start, step_size, gradient, run)) is not None:
        found["each step descends by step |grad F|^2 / 2"] = Inequality(*sides, rounding[:-1])
    if "distance" in run.probes:
        found["weights stay within the radius"] = Inequality(run.probes["distance"], radius)
    return found


# --------------------------------------------------------------------------------- theorem 1


def value_numbers(start: Start) -> Numbers:
    r"""All about training $W_V$ alone: $\lambda$, $L$, the floor, and the residual's parts."""
    A = layer.value_matrix(start.params0, start.problem.X, start.form)
    B = layer.feature_matrix(start.params0, start.problem.X, start.form)
    r = _residual(start).ravel()
    U, sigma, _ = jnp.linalg.svd(A, full_matrices=False)
    alive = sigma > ZERO * sigma[0]
    parts = jnp.where(alive, U.T @ r, 0.0)
    return {
        "lambda": jnp.min(jnp.where(alive, sigma, jnp.inf)) ** 2,
        "L": sigma[0] ** 2,
        "F_0": 0.5 * jnp.sum(r**2),
        "F_star": 0.5 * jnp.sum((r - U @ parts) ** 2),
        "rank A": jnp.sum(alive),
        "rank B": numerical_rank(B, ZERO),
        "rows of A": jnp.asarray(len(r)),
        "sigma": sigma,
        "parts": parts,
    }


def value_risk(c: Numbers, step_size: Scalar, step: Array) -> Float[Array, " T"]:
    r"""The risk at each step, $F^*+\tfrac12\sum_j(1-\eta\sigma_j^2)^{2t}(u_j^\top r_0)^2$."""
    factors = (1 - step_size * c["sigma"] ** 2)[None] ** step[:, None]
    return c["F_star"] + 0.5 * jnp.sum((factors * c["parts"][None]) ** 2, axis=1)


def theorem_1(start: Start, step_size: Scalar, run: Trajectory) -> Certificate:
    r"""Only $W_V$ moves: the run is known exactly, for any kernel, rank and number of heads."""
    c = value_numbers(start)
    eta = jnp.asarray(step_size, float)
    q = jnp.maximum(jnp.abs(1 - eta * c["lambda"]), jnp.abs(1 - eta * c["L"]))
    F_0, floor = c["F_0"], c["F_star"]
    rounding = _rounding(start, run)
    exact = value_risk(c, eta, run.step)
    # single precision drifts by its own rounding, step by step
    drift = 1e-10 if run.risk.dtype == jnp.float64 else 1e-3
    falls = jnp.where(run.step > 0, run.risk - floor, 0.0)
    return Certificate(
        hypotheses={
            "W_V is trained": _moves(start, "W_V"),
            "nothing else moves": _rests(start, "W_Q", "W_K", "W_O"),
            "step: eta L < 2": Inequality(eta * c["L"], 2.0),
            "attention is not zero: 0 < L": Inequality(1e-300, c["L"]),
        },
        conclusions={
            "risk is what the recursion says": Inequality(
                jnp.abs(run.risk - exact), drift * F_0 + rounding
            ),
            "excess over the floor falls at the proved rate": Inequality(
                falls, q ** (2 * run.step) * (F_0 - floor), rounding + drift * F_0
            ),
            "never below the floor": Inequality(floor, run.risk, rounding + 1e-12 * F_0),
        },
        constants={k: v for k, v in c.items() if k not in ("sigma", "parts")}
        | {"best step": 2 / (c["L"] + c["lambda"]), "q": q},
        predicted_rate=1 - q**2,
        measured_rate=share_lost(jnp.maximum(run.risk - floor, 0.0), run.step[-1]),
    )


# --------------------------------------------------------------------------------- theorem 2


def score_constants(start: Start, radius: Scalar) -> tuple[Array, Array]:
    r"""$c_{ih}$ and $e_{ih}$ of lemma 3 in the ball: bounds of the derivatives of $S_{ih}$."""
    X = start.problem.X
    x = jax.vmap(norm_op)(X)[:, None]
    H, _, d = start.params0.W_Q.shape
    if start.kernel == "softmax":
        c = x**2 * (_omega(start)[None] + radius) / (2 * d**0.5)
        return c, 4 * KAPPA_3 * c**2 + x**2 / (2 * d**0.5)
    n, tau = X.shape[1], start.form.bandwidth
    c = jnp.broadcast_to(x * jnp.sqrt(2 * n / (math.e * tau)), (len(X), H))
    return c, jnp.broadcast_to(2 * n**0.5 * x**2 / tau, (len(X), H))


def _omega(start: Start) -> Float[Array, " H"]:
    Q, K = (jax.vmap(norm_op)(W) for W in (start.params0.W_Q, start.params0.W_K))
    return jnp.sqrt(Q**2 + K**2)


def joint_constants(start: Start) -> Numbers:
    """Every constant of theorem 2."""
    X, params0 = start.problem.X, start.params0
    sigma = singular_values(layer.value_matrix(params0, X, start.form))
    rows, columns = start.problem.y.size, params0.W_V.size
    lam = jnp.where(columns >= rows, sigma[-1], 0.0)
    x, o = jax.vmap(norm_op)(X), jax.vmap(norm_op)(params0.W_O)
    d = params0.W_Q.shape[-1]

    def L_A_at(R: Scalar) -> Array:
        c, _ = score_constants(start, R)
        return jnp.max(o * jnp.sqrt(jnp.sum(c**2 * x[:, None] ** 2, axis=0)))

    if start.kernel == "softmax":
        # the root of R k (omega + R) = lambda / 2 for each head, without cancellation
        k = o * jnp.sqrt(jnp.sum(x**6)) / (2 * d**0.5)
        omega = _omega(start)
        share = lam / jnp.where(k > 0, k, 1)
        root = share / (omega + jnp.sqrt(omega**2 + 2 * share))
        R = jnp.min(jnp.where(k > 0, root, jnp.inf))  # a head with W_O = 0 sets no limit
    else:
        R = lam / (2 * L_A_at(0.0))
    c, e = score_constants(start, R)
    L_A = L_A_at(R)
    a = sigma[0] + R * L_A
    u = x[:, None] * (jax.vmap(norm_op)(params0.W_V) + R)[None] * o[None]
    b2 = jnp.sum((c * u) ** 2)
    E = jnp.sqrt(jnp.sum(jnp.max((e * u) ** 2, axis=1)))
    F_0 = 0.5 * jnp.sum(_residual(start) ** 2)
    L = a**2 + b2 + jnp.sqrt(2 * F_0) * 0.5 * (E + jnp.sqrt(E**2 + 4 * L_A**2))
    return {
        "lambda": lam,
        "|A_0|": sigma[0],
        "c": c,
        "L_A": L_A,
        "R": R,
        "threshold": lam**2 * R**2 / 32,
        "F_0": F_0,
        "a^2+b^2": a**2 + b2,
        "E": E,
        "L": L,
        "mu": lam**2 / 4,
    }


def theorem_2(start: Start, step_size: Scalar, run: Trajectory) -> Certificate:
    r"""$W_Q$, $W_K$, $W_V$ move together: the features stay independent and the risk falls."""
    c = joint_constants(start)
    eta = jnp.asarray(step_size, float)
    sides = _descent(start, eta, _gradient(start, run), run)
    conclusions = _run_conclusions(
        start, run, step_size=eta, mu=c["mu"], radius=c["R"], F_0=c["F_0"]
    )
    if "lambda_A" in run.probes:
        conclusions["features stay independent: lambda / 2 <= sigma_min(A)"] = Inequality(
            c["lambda"] / 2, run.probes["lambda_A"], ZERO * c["|A_0|"]
        )
    return Certificate(
        hypotheses={
            "kernel is softmax or gaussian": _is(start.kernel in ("softmax", "gaussian")),
            "W_V is trained": _moves(start, "W_V"),
            "W_O is fixed": _rests(start, "W_O"),
            "features are independent: 0 < lambda": Inequality(ZERO * c["|A_0|"], c["lambda"]),
            "start is close: F_0 <= lambda^2 R^2 / 32": Inequality(c["F_0"], c["threshold"]),
            "step: eta L <= 1, or descent checked at every step": _step_hypothesis(
                eta, c["L"], sides, _rounding(start, run)
            ),
        },
        conclusions=conclusions,
        constants=c,
        predicted_rate=eta * c["mu"],
        measured_rate=share_lost(run.risk, run.step[-1]),
    )


def largest_step_2(start: Start) -> Float[Array, ""]:
    """1 / L of theorem 2, NaN where the theorem does not apply whatever the step."""
    c = joint_constants(start)
    applies = (c["F_0"] <= c["threshold"]) & (c["lambda"] > ZERO * c["|A_0|"])
    applies &= start.kernel in ("softmax", "gaussian")
    return jnp.where(applies, JUST_BELOW / c["L"], jnp.nan)


# --------------------------------------------------------------------------------- theorem 3


def _centred(Z: Float[Array, "*N n k"]) -> Float[Array, "*N n k"]:
    return Z - jnp.mean(Z, axis=-2, keepdims=True)


def affine_gap(U: Float[Array, "n p"], Y: Float[Array, "n p"]) -> Float[Array, " n"]:
    """Distance of each target row to the affine hull of the values."""
    _, sigma, V = jnp.linalg.svd(_centred(U), full_matrices=False)
    alive = sigma > ZERO * norm_op(U)
    away = Y - jnp.mean(U, axis=0)[None]
    inside = (away @ V.T) * alive[None] @ V
    return jnp.sqrt(jnp.sum((away - inside) ** 2, axis=1))


def query_geometry(start: Start) -> Numbers:
    r"""Values, keys and the ranks that decide what training $W_Q$ alone can do (one head)."""
    X, params0 = start.problem.X, start.params0
    U = jax.vmap(lambda x: layer.values(params0, x)[0])(X)
    K = jax.vmap(lambda x: layer.queries_and_keys(params0, x)[1][0])(X)
    sigma_X = singular_values(X.reshape(-1, X.shape[-1]))
    full = X.shape[0] * X.shape[1] <= X.shape[2]
    size = jax.vmap(norm_op)(U) + jnp.sqrt(jnp.max(jnp.sum(start.problem.y**2, -1), -1))
    gap = jax.vmap(affine_gap)(U, start.problem.y)
    in_hull = jnp.max(gap, axis=1) <= 1e-9 * size
    spread = jax.vmap(lambda u: singular_values(_centred(u)))(U)
    rank_U = jnp.sum(spread > ZERO * jax.vmap(norm_op)(U)[:, None], axis=1)
    key_spread = jax.vmap(lambda k: singular_values(_centred(k)))(K)
    rank_K = jnp.sum(key_spread > ZERO * jax.vmap(norm_op)(K)[:, None], axis=1)
    return {
        "U": U,
        "K": K,
        "sigma_X": sigma_X[-1] if full else jnp.zeros(()),
        "|X|": sigma_X[0],
        "in_hull": in_hull,
        "off_hull": jnp.sqrt(jnp.sum(jnp.where(in_hull[:, None], gap, 0.0) ** 2)),
        "rank_U": rank_U,
        "rank_K": rank_K,
    }


def smallest_jacobian(start: Start, params: Weights, geometry: Numbers) -> Float[Array, ""]:
    r"""$\min_{ik}\sigma_{a_i}(J_{ik})$; samples with $a_i=0$ are fitted and do not count."""
    softmax = start.kernel == "softmax"
    J = layer.query_jacobians(params, start.problem.X, start.form, softmax=softmax)
    N, n, p, _ = J.shape
    sigma = jnp.linalg.svd(J, full_matrices=False, compute_uv=False)
    sigma = jnp.concatenate([sigma, jnp.zeros((N, n, p))], axis=-1)[..., :p]  # zero if k < p
    count = jnp.where(geometry["in_hull"], geometry["rank_U"], p) if softmax else jnp.full(N, p)
    picked = jnp.take_along_axis(sigma, jnp.maximum(count - 1, 0)[:, None, None], axis=2)[..., 0]
    least = jnp.min(jnp.where(count[:, None] > 0, picked, jnp.inf))
    return jnp.where(jnp.any(count > 0), least, 0.0)  # nothing can turn, and nothing needs to


def turning_bounds(
    start: Start, U: Float[Array, "N n p"], K: Float[Array, "N n k"]
) -> tuple[Array, Array]:
    r"""$\beta_i$, the Lipschitz constant of $J_{ik}$ in $q$, and $j_i$, the bound of its norm."""
    d, n = K.shape[-1], K.shape[-2]
    if start.kernel == "softmax":
        PU, PK = (jax.vmap(lambda z: norm_op(_centred(z)))(z) for z in (U, K))
        return KAPPA_3 * PU * PK**2 / d, PU * PK / (2 * d**0.5)
    size, tau = jax.vmap(norm_op)(U), start.form.bandwidth
    return n**0.5 * size / tau, size * jnp.sqrt(n / (math.e * tau))


def smoothness(start: Start) -> Float[Array, ""]:
    r"""$L$ of theorem 3, heads added up: beyond one head and $W_Q$ alone only a rule of thumb."""
    X, params0 = start.problem.X, start.params0
    r = _residual(start)

    def head(W_K: Array, W_VO: Array) -> tuple[Array, Array]:
        beta, j = turning_bounds(start, X @ W_VO, X @ W_K)
        return jnp.max(beta), jnp.max(j) ** 2

    beta, j2 = jax.vmap(head)(params0.W_K, params0.W_V @ params0.W_O)
    size = norm_op(X.reshape(-1, X.shape[-1]))
    L = size**2 * (jnp.sum(j2) + jnp.sqrt(jnp.sum(r**2)) * jnp.max(beta))
    return jnp.where(L > 0, L, 1.0)


def query_constants(start: Start, geometry: Numbers | None = None) -> Numbers:
    """Every constant of theorem 3."""
    X, params0 = start.problem.X, start.params0
    g = query_geometry(start) if geometry is None else geometry
    s_0 = smallest_jacobian(start, params0, g)
    beta, j_all = turning_bounds(start, g["U"], g["K"])
    j = jnp.max(j_all)
    token = jnp.max(jnp.sqrt(jnp.sum(X**2, axis=-1)), axis=1)
    R_J = s_0 / (2 * jnp.max(beta * token))
    F_0 = 0.5 * jnp.sum(_residual(start) ** 2)
    mu_0 = (g["sigma_X"] * s_0) ** 2
    return {
        "sigma_X": g["sigma_X"],
        "|X|": g["|X|"],
        "s_0": s_0,
        "mu_0": mu_0,
        "beta": jnp.max(beta),
        "j": j,
        "R_J": R_J,
        "threshold": mu_0 * R_J**2 / 32,
        "F_0": F_0,
        "L": g["|X|"] ** 2 * (j**2 + jnp.sqrt(2 * F_0) * jnp.max(beta)),
        "off the hull": g["off_hull"] if start.kernel == "softmax" else jnp.zeros(()),
        "rank of centred values, least": jnp.min(g["rank_U"]),
        "rank of centred keys, least": jnp.min(g["rank_K"]),
    }


def theorem_3(start: Start, step_size: Scalar, run: Trajectory) -> Certificate:
    r"""Only $W_Q$ moves, one head: a PL inequality through the rank of $\partial m/\partial q$."""
    c = query_constants(start)
    eta = jnp.asarray(step_size, float)
    sides = _descent(start, eta, _gradient(start, run), run)
    return Certificate(
        hypotheses={"kernel is softmax or gaussian": _is(start.kernel in ("softmax", "gaussian"))}
        | _query_hypotheses(start, c)
        | {
            "outputs turn with queries: 0 < s_0": Inequality(ZERO * c["j"], c["s_0"]),
            "start is close: F_0 <= mu_0 R_J^2 / 32": Inequality(c["F_0"], c["threshold"]),
            "step: eta L <= 1, or descent checked at every step": _step_hypothesis(
                eta, c["L"], sides, _rounding(start, run)
            ),
        },
        conclusions=_run_conclusions(
            start,
            run,
            step_size=eta,
            mu=c["mu_0"] / 4,
            radius=c["R_J"],
            F_0=c["F_0"],
            off_hull=c["off the hull"],
        ),
        constants=c,
        predicted_rate=eta * c["mu_0"] / 4,
        measured_rate=share_lost(run.risk, run.step[-1]),
    )


def _query_hypotheses(start: Start, c: Numbers) -> dict[str, Inequality]:
    return {
        "one head": _is(start.params0.W_Q.shape[0] == 1),
        "W_Q is trained": _moves(start, "W_Q"),
        "nothing else moves": _rests(start, "W_K", "W_V", "W_O"),
        "tokens are independent: 0 < sigma_X": Inequality(ZERO * c["|X|"], c["sigma_X"]),
    }


def largest_step_3(start: Start) -> Float[Array, ""]:
    """1 / L of theorem 3, NaN where the theorem does not apply whatever the step."""
    c = query_constants(start)
    applies = (c["F_0"] <= c["threshold"]) & (c["s_0"] > ZERO * c["j"])
    applies &= (c["sigma_X"] > ZERO * c["|X|"]) & (start.params0.W_Q.shape[0] == 1)
    applies &= start.kernel in ("softmax", "gaussian")
    return jnp.where(applies, JUST_BELOW / c["L"], jnp.nan)


# --------------------------------------------------------------------------------- theorem S


def theorem_s(start: Start, step_size: Scalar, run: Trajectory) -> Certificate:
    r"""Softmax, only $W_Q$: with affinely independent keys no stationary point lies above zero.

    Along the run this says that the gradient bounds the risk with the smallest singular value of
    $\partial m/\partial q$ at that point (probe ``query_sigma``).
    """
    g = query_geometry(start)
    c = query_constants(start, g)
    eta = jnp.asarray(step_size, float)
    n = start.problem.X.shape[1]
    rounding = _rounding(start, run, g["off_hull"])
    gradient = _gradient(start, run)
    conclusions = {"the run starts at its initial weights": _begins(c["F_0"], run, rounding)}
    if gradient is not None:
        mu = (c["sigma_X"] * run.probes["query_sigma"]) ** 2
        name = "gradient sees the risk: 2 sigma_X^2 s_t^2 F <= |grad F|^2"
        conclusions[name] = _pl(mu, gradient, run, rounding)
    sides = _descent(start, eta, gradient, run)
    if sides is not None:
        conclusions["each step descends by step |grad F|^2 / 2"] = Inequality(*sides, rounding[:-1])
    floor = jax.vmap(lambda u, y: layer.reach_floor(u[None], y, box=None))(g["U"], start.problem.y)
    conclusions["never below the hull floor"] = Inequality(jnp.sum(floor), run.risk, rounding)
    return Certificate(
        hypotheses={"kernel is softmax": _is(start.kernel == "softmax")}
        | _query_hypotheses(start, c)
        | {
            "keys are affinely independent: rank = n - 1": Inequality(
                n - 1.5, jnp.min(g["rank_K"]).astype(float)
            ),
            "targets lie in the affine hull of the values": Inequality(
                jnp.sum(~g["in_hull"]).astype(float), 0.5
            ),
            "step: eta L <= 1, or descent checked at every step": _step_hypothesis(
                eta, c["L"], sides, rounding
            ),
        },
        conclusions=conclusions,
        constants=c | {"hull floor": jnp.sum(floor)},
        predicted_rate=jnp.nan,
        measured_rate=share_lost(run.risk, run.step[-1]),
    )
