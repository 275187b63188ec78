r"""Theorems A, B and C of ``docs/theory/arda2026.md``, confronted with a run.

A run is compared with one point $\tilde\phi$ of the set $\Omega_\rho$, the *comparator*: a
teacher's transport at the student's heads, or the best linearised fit. Every bound comes with
constants that hold for all of $\Omega_\rho$ (worst case), and with those measured along the path.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import trees
from shoal._typing import Any, Array, Float, Probe, Scalar
from shoal.certificates import Certificate, Inequality
from shoal.linalg import norm_fro
from shoal.losses import mean_of_squares
from shoal.models import Model, empirical_risk, predict
from shoal.papers.arda2026 import heads, teachers
from shoal.papers.arda2026.heads import Activation, Weights
from shoal.papers.arda2026.teachers import Radii, along, linearised
from shoal.problems import Problem
from shoal.training import Trajectory

PLAY = 1e-6
"""Relative excess up to which a norm counts as the bound itself: unit tokens, rho = nu."""


class Start(NamedTuple):
    """What the theorems need of the start of a run."""

    problem: Problem
    params0: Weights
    comparator: Weights  # inside the set
    comparator_norms: dict[str, Array]  # of its transport, before it was brought inside
    model: Model
    activation: Activation
    radii: Radii
    token_bound: float
    query_bound: float


# ------------------------------------------------------------------------------------ constants


def constants(
    activation: Activation,
    *,
    largest_U: Scalar,
    radii: Radii,
    nu: tuple[Scalar, Scalar, Scalar],
    num_heads: int,
    token_bound: Scalar = 1.0,
    query_bound: Scalar = 1.0,
    sharper: bool = True,
) -> dict[str, Scalar]:
    r"""Section 2 of the theory page: one column, basic or sharper.

    ``largest_U`` is $\max_i\lVert U_{i0}\rVert$, actual or bounded in advance; ``nu`` the norms of
    the comparator's transport.
    """
    s0, s1, s2 = activation.s0, activation.s1, activation.s2
    A, p, m = token_bound, query_bound, num_heads
    rho_c, rho_U, rho_W = radii
    B = largest_U + rho_U / m**0.5
    AB = A**2 * p * B
    if sharper:
        L1 = s1 * jnp.maximum(A, AB)
        bend = (A**3 * p**2 * B + jnp.sqrt((A**3 * p**2 * B) ** 2 + 4 * A**4 * p**2)) / 2
        L2 = s2 * jnp.maximum(A**2, AB**2) + s1 * bend
    else:
        L1 = s1 * jnp.sqrt(A**2 + AB**2)
        bend = A**3 * p**2 * B + jnp.sqrt((A**3 * p**2 * B) ** 2 + A**4 * p**2)
        L2 = s2 * (A**2 + AB**2) + s1 * bend
    P = (rho_U**2 + rho_W**2) ** 0.5
    Q = jnp.sqrt((rho_U + nu[1]) ** 2 + (rho_W + nu[2]) ** 2)
    return {
        "B": B,
        "b": s0 * nu[0] + s1 * A * nu[1] + s1 * A**2 * p * nu[2],
        "L_1": L1,
        "L_2": L2,
        "P": P,
        "Q": Q,
        "B_lin": (L1 * rho_c * P + 0.5 * L2 * P**2) / m**0.5,
        "B_cof": (L1 * P * (rho_c + nu[0]) + (rho_c * L1 + L2 * P) * Q) / m**0.5,
        "G": jnp.sqrt(s0**2 + (1 + rho_c / m**0.5) ** 2 * L1**2),
    }


def approximation_bound(
    activation: Activation,
    nu: tuple[Scalar, Scalar, Scalar],
    *,
    num_heads: int,
    num_samples: int,
    delta: float = 0.05,
    token_bound: Scalar = 1.0,
    query_bound: Scalar = 1.0,
    sharper: bool = True,
) -> Float[Array, ""]:
    r"""$B_{app}$ of lemma 5: transport fixed before the heads are drawn, probability 1 - delta."""
    s0, s1 = activation.s0, activation.s1
    turning = s1 * token_bound**2 * query_bound * nu[2]
    rest = s0 * nu[0] + s1 * token_bound * nu[1]
    root = jnp.sqrt(jnp.log(2 * num_samples / delta) / num_heads)
    return (2 * (rest + 2 * turning) if sharper else 4 * (rest + turning)) * root


def expected_largest_U(dim: int, num_heads: int, delta: float = 0.05) -> Float[Array, ""]:
    r"""Exceeds all $\lVert U_{i0}\rVert$ with probability 1 - delta (Gaussian concentration)."""
    return dim**0.5 + jnp.sqrt(2 * jnp.log(num_heads / (2 * delta)))


def bound_a(V0: Scalar, G: Scalar, D: Scalar, error: Scalar, step: Scalar, tau: Scalar) -> Any:
    r"""Theorem A for any step: $V_0/4\eta\tau+\eta G^2D^2+D\varepsilon$."""
    return V0 / (4 * step * tau) + step * (G * D) ** 2 + D * error


def bound_b(V0: Scalar, G: Scalar, error: Scalar, step: Scalar, tau: Scalar) -> Float[Array, ""]:
    r"""Theorem B: $\big(\frac\varepsilon{2\kappa}+\sqrt{\ldots}\big)^2$; NaN unless $\kappa>0$."""
    kappa = 1 - step * jnp.square(G)
    half = error / (2 * kappa)
    root = half + jnp.sqrt(half**2 + V0 / (4 * kappa * step * tau))
    return jnp.where(kappa > 0, root**2, jnp.nan)


# ------------------------------------------------------------------------------- along the path


def path(start: Start) -> Probe:
    """What the path forms of the theorems ask of every iterate."""
    inputs, y = start.problem.inputs, start.problem.y
    risk = empirical_risk(start.model, start.problem, mean_of_squares)

    def probe(params: Weights) -> dict[str, Array]:
        apart = jax.tree.map(jnp.subtract, params, start.comparator)
        f = predict(start.model, params, inputs)
        e = along(start.model, params, inputs, apart) - (f - y)
        lin = f - linearised(start.model, start.params0, inputs, params)
        by_block = heads.output_gradients(params, inputs, start.activation)
        slope = jax.grad(risk)(params)
        return {
            "error": jnp.sqrt(jnp.mean(e**2)),
            "gradient": jnp.max(by_block["W"] + by_block["U"] + by_block["c"]),
            "linearisation": jnp.sqrt(jnp.mean(lin**2)),
            "linearisation_sup": jnp.max(jnp.abs(lin)),
            "distance": trees.norm(apart) ** 2,
            "descent": trees.dot(slope, apart),
            "steepness": trees.norm(slope) ** 2,
        }

    return probe


PATH = ("error", "gradient", "linearisation", "linearisation_sup", "distance", "descent")
PATH_PROBES = tuple(f"path_{name}" for name in (*PATH, "steepness"))


# --------------------------------------------------------------------------------- certificates


def _twins(params0: Weights) -> Float[Array, ""]:
    """How far the start is from pairs of heads with opposite signs, each of size one."""
    half = len(params0.c) // 2
    apart = [jnp.max(jnp.abs(W[:half] - W[half:])) for W in (params0.W, params0.U)]
    signs = jnp.max(jnp.abs(params0.c[:half] + params0.c[half:]))
    size = jnp.max(jnp.abs(jnp.abs(params0.c) - 1))
    return jnp.maximum(jnp.maximum(*apart), jnp.maximum(signs, size))


def _hypotheses(start: Start, run: Trajectory, *, every: bool = True) -> dict[str, Inequality]:
    X, q = heads.split(start.problem.inputs)
    radii = dict(zip("cUW", start.radii, strict=True))
    longest = jnp.max(jnp.linalg.norm(X, axis=-1))
    asked = jnp.max(jnp.linalg.norm(q, axis=-1))
    found = {
        "twins of opposite signs at the start": Inequality(_twins(start.params0), 1e-9),
        "tokens: max |X_t| <= token_bound": Inequality(longest, start.token_bound * (1 + PLAY)),
        "queries: max |q| <= query_bound": Inequality(asked, start.query_bound * (1 + PLAY)),
    }
    for name, norm in start.comparator_norms.items():
        key = f"comparator within the radius of {name}"
        found[key] = Inequality(norm, radii[name] * (1 + PLAY))
    for name in "cUW":
        moved = run.probes.get(f"scaled_movement_{name}", jnp.full_like(run.risk, jnp.nan))
        # rounding of a projection in the working precision
        blur = 100 * jnp.finfo(run.risk.dtype).eps * len(start.params0.c) ** 0.5
        key = f"iterates within the radius of {name}"
        found[key] = Inequality(jnp.max(moved), radii[name] * (1 + PLAY) + blur)
    if every:
        gaps = jnp.max(jnp.diff(run.step)) * 1.0
        found["recorded at every step"] = Inequality(gaps, 1.5)
    return found


class _Numbers(NamedTuple):
    """All that the conclusions of A and B compare."""

    tau: Array
    mean: Array  # of the losses before the last
    best: Array
    V0: Array
    y_rms: Array
    approximation: Array  # measured at the comparator
    worst: dict[str, Any]
    worst_error: Array
    worst_D: Array
    G2: Array  # largest along the path
    error: Array
    step: Scalar


def _numbers(start: Start, step: Scalar, run: Trajectory) -> _Numbers:
    inputs, y = start.problem.inputs, start.problem.y
    tau = run.step[-1] * 1.0
    before = run.risk[:-1]
    e = linearised(start.model, start.params0, inputs, start.comparator) - y
    approximation = jnp.sqrt(jnp.mean(e**2))
    inside = teachers.norms(teachers.transport_of(start.params0, start.comparator))
    worst = constants(
        start.activation,
        largest_U=jnp.max(jnp.linalg.norm(start.params0.U, axis=1)),
        radii=start.radii,
        nu=(inside["c"], inside["U"], inside["W"]),
        num_heads=len(start.params0.c),
        token_bound=start.token_bound * (1 + PLAY),
        query_bound=start.query_bound * (1 + PLAY),
    )
    y_rms = jnp.sqrt(jnp.mean(y**2))
    size = sum(r**2 for r in start.radii) ** 0.5
    apart = zip(start.comparator, start.params0, strict=True)
    return _Numbers(
        tau=tau,
        mean=jnp.mean(before),
        best=jnp.min(before),
        V0=sum((norm_fro(a - b) ** 2 for a, b in apart), jnp.zeros(())),
        y_rms=y_rms,
        approximation=approximation,
        worst=worst,
        worst_error=worst["B_lin"] + worst["B_cof"] + approximation,
        worst_D=worst["G"] * size + y_rms,
        G2=jnp.max(run.probes["path_gradient"][:-1]),
        error=jnp.max(run.probes["path_error"][:-1]),
        step=step,
    )


def _certificate(
    n: _Numbers,
    bound: Array,
    hypotheses: dict[str, Inequality],
    conclusions: dict[str, Inequality],
    more: dict[str, Any],
    run: Trajectory,
) -> Certificate:
    known = {
        "mean loss": n.mean,
        "best loss": n.best,
        "bound along the path": bound,
        "bound along the path over mean loss": bound / n.mean,
        "V_0": n.V0,
        "epsilon (path)": n.error,
        "G^2 (path)": n.G2,
        "e_app": n.approximation,
        "y_rms": n.y_rms,
        "eta": jnp.asarray(n.step),
        "tau": n.tau,
    }
    worst = {name: jnp.asarray(value) for name, value in n.worst.items()}
    first = run.risk[0]
    return Certificate(
        hypotheses,
        conclusions,
        known | more | worst | {"epsilon (worst case)": n.worst_error, "D": n.worst_D},
        predicted_rate=1 - (jnp.minimum(bound, first) / first) ** (1 / n.tau),
        measured_rate=1 - (n.best / first) ** (1 / n.tau),
    )


def _steps(n: _Numbers, run: Trajectory) -> dict[str, Inequality]:
    """The inequalities (5.1) and (6.1) of every step, with the constants of that step."""
    L = run.risk[:-1].astype(jnp.float64)
    e, G2, distance, descent, steepness = (
        run.probes[f"path_{name}"].astype(jnp.float64)
        for name in ("error", "gradient", "distance", "descent", "steepness")
    )
    eps = jnp.finfo(run.risk.dtype).eps
    # what rounding may add; the first inequality is an equality where the error is zero
    blur = (1e-11 if run.risk.dtype == jnp.float64 else 1e3 * eps) * (1 + distance[:-1] + L)
    gain = 4 * n.step * (L - e[:-1] * jnp.sqrt(L) - n.step * G2[:-1] * L)
    return {
        "descent: <grad L, phi - comparator> >= 2 L - 2 e sqrt(L)": Inequality(
            2 * L - 2 * e[:-1] * jnp.sqrt(L), descent[:-1] + blur
        ),
        "steepness: |grad L|^2 <= 4 G^2 L": Inequality(steepness[:-1], 4 * G2[:-1] * L + blur),
        "each step comes nearer to the comparator": Inequality(
            distance[1:], distance[:-1] - gain + blur
        ),
    }


def theorem_a(start: Start, step: Scalar, run: Trajectory) -> Certificate:
    r"""$\bar L\le V_0/4\eta\tau+\eta G^2D^2+D\varepsilon$; the paper has $\eta=\tau^{-1/2}$."""
    n = _numbers(start, step, run)
    largest = jnp.sqrt(jnp.max(run.risk[:-1]))
    on_path = bound_a(n.V0, jnp.sqrt(n.G2), largest, n.error, step, n.tau)
    worst = bound_a(n.V0, n.worst["G"], n.worst_D, n.worst_error, step, n.tau)
    conclusions = {
        "mean loss, constants measured along the path": Inequality(n.mean, on_path),
        "mean loss, worst case": Inequality(n.mean, worst),
        "loss never above D^2": Inequality(run.risk, jnp.square(n.worst_D)),
    } | _steps(n, run)
    more = {"bound in the worst case": worst}
    return _certificate(n, on_path, _hypotheses(start, run), conclusions, more, run)


def theorem_b(start: Start, step: Scalar, run: Trajectory) -> Certificate:
    r"""$\sqrt{\bar L}\le\frac\varepsilon{2\kappa}+\sqrt{\ldots}$ where $\kappa=1-\eta G^2>0$."""
    n = _numbers(start, step, run)
    kappa = 1 - step * n.G2
    on_path = bound_b(n.V0, jnp.sqrt(n.G2), n.error, step, n.tau)
    short = (n.error + jnp.sqrt(n.error**2 + n.V0 / (2 * step * n.tau))) ** 2
    simple = n.V0 / (step * n.tau) + 4 * n.error**2
    worst_kappa = 1 - step * n.worst["G"] ** 2
    worst = bound_b(n.V0, n.worst["G"], n.worst_error, step, n.tau)
    applies, halves = worst_kappa > 0, kappa >= 0.5
    conclusions = {
        "mean loss, constants measured along the path": Inequality(n.mean, on_path),
        "mean loss, V_0 / (eta tau) + 4 epsilon^2 (where kappa >= 1/2)": Inequality(
            jnp.where(halves, n.mean, 0.0), jnp.where(halves, simple, 0.0)
        ),
        "mean loss, worst case (where eta G^2 < 1)": Inequality(
            jnp.where(applies, n.mean, 0.0), jnp.where(applies, worst, 0.0)
        ),
    }
    more = {
        "kappa (path)": kappa,
        "kappa (worst case)": worst_kappa,
        "bound with kappa = 1/2": short,
        "bound V_0 / (eta tau) + 4 epsilon^2": simple,
        "bound in the worst case": worst,
    }
    if run.average is not None:
        inputs, y = start.problem.inputs, start.problem.y
        average = trees.cast(run.average, "float64")
        f = predict(start.model, average, inputs)
        lin = f - linearised(start.model, start.params0, inputs, average)
        there = jnp.sqrt(jnp.mean((f - y) ** 2))
        lin_rms = jnp.sqrt(jnp.mean(lin**2))
        worst_lin = jnp.max(run.probes["path_linearisation"][:-1])
        conclusions["root of the loss at the averaged iterate"] = Inequality(
            there, jnp.sqrt(n.mean) + worst_lin + lin_rms
        )
        more |= {
            "root of the loss at the averaged iterate": there,
            "linearisation error (path)": worst_lin,
            "linearisation error (average)": lin_rms,
        }
    hypotheses = _hypotheses(start, run) | {
        "step: 0 < kappa = 1 - eta G^2 (path)": Inequality(0.0, kappa)
    }
    return _certificate(n, on_path, hypotheses, conclusions | _steps(n, run), more, run)


def lower_bound(
    start: Start, beta: Float[Array, " N"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""$(\beta^\top y-\Gamma)_+/\sqrt n\lVert\beta\rVert\le\sqrt{L_{lin}}$; and Gamma."""
    y = start.problem.y
    S = teachers.sums(start.params0, start.problem.inputs, beta, start.activation)
    gamma = teachers.pairing(S, start.radii)
    size = norm_fro(beta) * len(y) ** 0.5
    return jnp.maximum(beta @ y - gamma, 0.0) / jnp.where(size > 0, size, 1.0), gamma


def theorem_c(start: Start, run: Trajectory) -> Certificate:
    r"""No point has $\sqrt L$ below $(\beta^\top y-\Gamma)_+/\sqrt n\lVert\beta\rVert-B_{lin}$.

    Any $\beta$ gives a bound; taken is the better of the residual of the best linearised fit, which
    is optimal if the fit is, and of the top eigenvector of the tangent kernel.
    """
    inputs, y = start.problem.inputs, start.problem.y
    K = sum(heads.tangent_kernels(inputs, start.activation)(start.params0).values())
    eigenvalues, V = jnp.linalg.eigh(K)
    fit = teachers.best_fit(
        start.model, start.params0, inputs, y, start.radii, eigenvalues[-1] * (1 + 1e-6)
    )
    residual = y - linearised(start.model, start.params0, inputs, fit)
    top = V[:, -1] * jnp.sign(V[:, -1] @ y)
    (by_fit, _), (by_top, _) = lower_bound(start, residual), lower_bound(start, top)
    bound = jnp.maximum(by_fit, by_top)
    n_worst = constants(
        start.activation,
        largest_U=jnp.max(jnp.linalg.norm(start.params0.U, axis=1)),
        radii=start.radii,
        nu=start.radii,
        num_heads=len(start.params0.c),
        token_bound=start.token_bound * (1 + PLAY),
        query_bound=start.query_bound * (1 + PLAY),
    )
    fitted = jnp.sqrt(jnp.mean(residual**2))
    root = jnp.sqrt(run.risk)
    blur = 1e3 * jnp.finfo(run.risk.dtype).eps * (jnp.sqrt(jnp.mean(y**2)) + 1)
    lin = run.probes.get("path_linearisation", jnp.zeros_like(run.risk))
    floor = jnp.maximum(bound - n_worst["B_lin"], 0.0)
    conclusions = {
        "the best linearised fit is not below": Inequality(bound * (1 - 1e-9), fitted + blur),
        "no iterate is below (worst case B_lin)": Inequality(floor, root, blur),
        "no iterate is below (its own linearisation error)": Inequality(
            jnp.maximum(bound - lin, 0.0), root, blur
        ),
    }
    hypotheses = _hypotheses(start, run, every=False)
    hypotheses = {k: v for k, v in hypotheses.items() if not k.startswith("comparator")}
    return Certificate(
        hypotheses,
        conclusions,
        {
            "lower bound of the linearised loss": bound**2,
            "loss of the best linearised fit": fitted**2,
            "duality gap of the fit": fitted**2 - bound**2,
            "by the residual of the fit": by_fit**2,
            "by the top eigenvector": by_top**2,
            "B_lin": n_worst["B_lin"],
            "least loss of the run": jnp.min(run.risk),
        },
        predicted_rate=jnp.nan,
        measured_rate=jnp.nan,
    )
