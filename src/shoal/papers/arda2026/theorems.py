r"""Theorems A, B and C of ``docs/theory/arda2026.md``, compared with a run.

A run is compared with one point $\tilde\phi$ of the set $\Omega_\rho$, the *comparator*
(`probes.comparator`). Every bound comes with constants that hold for all of $\Omega_\rho$ (worst
case), and with those measured along the path.

A and B bound the mean loss of a run, so they have no curve to draw beside the loss of each step;
the lower bound of C has one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import trees
from shoal._typing import Any, Array, Float, Scalar
from shoal.certificates import Certificate, Inequality, condition, not_checked, positive
from shoal.lab.setup import Setup
from shoal.lab.theorem import ANY_METHOD, KERNEL_REGIME
from shoal.linalg import norm_fro
from shoal.models import predict
from shoal.papers.arda2026 import heads, teachers
from shoal.papers.arda2026.heads import Activation, Weights
from shoal.papers.arda2026.model import PAPER
from shoal.papers.arda2026.probes import PATH, comparator
from shoal.papers.arda2026.teachers import Radii, linearised
from shoal.training import Trajectory
from shoal.verified.enclose import chosen, enclosure_width

ROOM = 1e-6
"""Share by which the set and the bounds of tokens are taken larger than they are said to be.

Rounding then does not decide what lies inside; all constants are those of the larger ones."""

Inequalities = dict[str, Inequality]


def constants(
    activation: Activation, *, largest_U: Scalar, radii: Radii, nu: Radii, num_heads: int,
    token_bound: Scalar = 1.0, query_bound: Scalar = 1.0,
) -> dict[str, Scalar]:  # fmt: skip
    r"""Section 2 of the theory page, the sharper column.

    ``largest_U`` is $\max_i\lVert U_{i0}\rVert$, actual or bounded in advance; ``nu`` the norms of
    the comparator's transport.
    """
    s0, s1, s2 = activation.s0, activation.s1, activation.s2
    A, p, m = token_bound, query_bound, num_heads
    rho_c, rho_U, rho_W = radii
    B = largest_U + rho_U / m**0.5
    AB, k = A**2 * p * B, A**3 * p**2 * B
    L1 = s1 * jnp.maximum(A, AB)
    L2 = s2 * jnp.maximum(A**2, AB**2) + s1 * (k + jnp.sqrt(k**2 + 4 * A**4 * p**2)) / 2
    P = (rho_U**2 + rho_W**2) ** 0.5
    Q = jnp.sqrt((rho_U + nu[1]) ** 2 + (rho_W + nu[2]) ** 2)
    return {
        "B": B, "b": s0 * nu[0] + s1 * A * nu[1] + s1 * A**2 * p * nu[2], "L_1": L1, "L_2": L2,
        "P": P, "Q": Q, "B_lin": (L1 * rho_c * P + 0.5 * L2 * P**2) / m**0.5,
        "B_cof": (L1 * P * (rho_c + nu[0]) + (rho_c * L1 + L2 * P) * Q) / m**0.5,
        "G": jnp.sqrt(s0**2 + (1 + rho_c / m**0.5) ** 2 * L1**2),
    }  # fmt: skip


def _worst_case(setup: Setup, nu: Radii, radii: Radii) -> dict[str, Any]:
    """The constants that hold for the whole set."""
    setting = setup.setting
    return constants(
        setting.sigma, largest_U=jnp.max(jnp.linalg.norm(setup.params0.U, axis=1)),
        radii=radii, nu=nu, num_heads=setting.num_heads,
        token_bound=setting.token_bound * (1 + ROOM),
        query_bound=setting.query_bound * (1 + ROOM),
    )  # fmt: skip


def _weights_rounding(setup: Setup, run: Trajectory) -> dict[str, Array]:
    """How far the recorded movement of a head may be from that of the exact run, by block.

    Weights are rounded at every step, and the projection puts them back.
    """
    eps, m = float(jnp.finfo(run.risk.dtype).eps), setup.setting.num_heads
    limits = dict(zip("cUW", setup.setting.limits, strict=True))
    sizes = {name: jnp.max(rows) for name, rows in teachers.lengths(setup.params0).items()}
    return {name: 8 * eps * (m**0.5 * size + limits[name]) for name, size in sizes.items()}


def _larger_radii(setup: Setup, run: Trajectory) -> Radii:
    """The radii of a set in which the run surely stays, rounding included: a free choice."""

    def larger(setup: Setup) -> Radii:
        blur = _weights_rounding(setup, run)
        limits = zip("cUW", setup.setting.limits, strict=True)
        return tuple(limit * (1 + ROOM) + 4 * blur[name] for name, limit in limits)

    return chosen(larger)(setup)


def bound_a(V0: Scalar, G: Scalar, D: Scalar, error: Scalar, step: Scalar, tau: Scalar) -> Any:
    r"""Theorem A for any step: $V_0/4\eta\tau+\eta G^2D^2+D\varepsilon$."""
    return V0 / (4 * step * tau) + step * (G * D) ** 2 + D * error


def bound_b(V0: Scalar, G: Scalar, error: Scalar, step: Scalar, tau: Scalar) -> Float[Array, ""]:
    r"""Theorem B: $\big(\frac\varepsilon{2\kappa}+\sqrt{\ldots}\big)^2$; NaN unless $\kappa>0$."""
    kappa = 1 - step * jnp.square(G)
    half = error / (2 * kappa)
    root = half + jnp.sqrt(half**2 + V0 / (4 * kappa * step * tau))
    return jnp.where(kappa > 0, root**2, jnp.nan)


def _twins(params0: Weights) -> Float[Array, ""]:
    """How far the start is from pairs of heads with opposite signs, each of size one."""
    half = len(params0.c) // 2
    W, U, c = params0
    gaps = (W[:half] - W[half:], U[:half] - U[half:], c[:half] + c[half:], jnp.abs(c) - 1)
    return jnp.max(jnp.stack([jnp.max(jnp.abs(gap)) for gap in gaps]))


def _hypotheses(setup: Setup, run: Trajectory) -> Inequalities:
    """What A, B and C assume of start, data and iterates."""
    setting = setup.setting
    X, q = heads.split(setup.inputs)
    longest, asked = (jnp.max(jnp.linalg.norm(x, axis=-1)) for x in (X, q))
    found = {
        "twins of opposite signs at the start": condition(_twins(setup.params0) == 0),
        "tokens: max |X_t| <= token_bound": Inequality(longest, setting.token_bound * (1 + ROOM)),
        "queries: max |q| <= query_bound": Inequality(asked, setting.query_bound * (1 + ROOM)),
    }
    blur = _weights_rounding(setup, run)
    for name, radius in zip("cUW", _larger_radii(setup, run), strict=True):
        moved = jnp.max(run.probes.get(f"scaled_movement_{name}", jnp.nan)).astype(jnp.float64)
        found[f"iterates within the radius of {name}"] = Inequality(moved, radius, blur[name])
    return found


def _heads_only(setting: Any) -> bool:
    return setting.model == "heads" and setting.train == "all" and setting.output_scale == 1


def _of_mean(setup: Setup, run: Trajectory) -> tuple[Inequalities, dict, dict]:
    """What A and B assume, and what they compare: as measured, and constants of the whole set."""
    before, y, params0, limits = run.risk[:-1], setup.targets, setup.params0, setup.setting.limits
    there = comparator(setup)
    hypotheses = _hypotheses(setup, run)
    for name, limit in zip("cUW", limits, strict=True):
        bound = Inequality(there.norms[name], limit * (1 + ROOM))
        hypotheses[f"comparator within the radius of {name}"] = bound
    gaps = jnp.max(jnp.diff(run.step)) * 1.0
    hypotheses["recorded at every step"] = Inequality(gaps, 1.5)
    e = linearised(setup.network, params0, setup.inputs, there.point) - y
    known = {
        "mean loss": jnp.mean(before), "best loss": jnp.min(before),
        "V_0": trees.norm(jax.tree.map(jnp.subtract, there.point, params0)) ** 2,
        "epsilon (path)": jnp.max(run.probes["path_error"][:-1]),
        "G^2 (path)": jnp.max(run.probes["path_gradient"][:-1]),
        "e_app": jnp.sqrt(jnp.mean(e**2)), "y_rms": jnp.sqrt(jnp.mean(y**2)),
        "eta": jnp.asarray(setup.step_size), "tau": run.step[-1] * 1.0,
    }  # fmt: skip
    nu = teachers.norms(params0, there.point)
    radii = _larger_radii(setup, run)
    worst = _worst_case(setup, (nu["c"], nu["U"], nu["W"]), radii)
    worst["epsilon (worst case)"] = worst["B_lin"] + worst["B_cof"] + known["e_app"]
    worst["D"] = worst["G"] * sum(r**2 for r in radii) ** 0.5 + known["y_rms"]
    return hypotheses, known, worst


class Rounding(NamedTuple):
    """How far what was recorded along a path may be from what it denotes."""

    output: Array  # Of one output, root mean square.
    risk: Array
    descent: Array  # Of (5.1), first part, ...
    steepness: Array  # ... second part, ...
    nearer: Array  # ... and of (6.1), all at every record before the last.


def _rounding(setup: Setup, run: Trajectory, known: dict) -> Rounding:
    r"""From the sizes of what is computed.

    An output errs by what its enclosure at the start is wide, and by what rounding the weights
    changes, which is at most $G$ times as much; the rest follows by the formulas of (5.1), (6.1).
    """
    eps = float(jnp.finfo(run.risk.dtype).eps)
    coarser = eps / float(jnp.finfo(jnp.float64).eps)
    f = predict(setup.network, setup.params0, setup.inputs)
    wide = jnp.sqrt(jnp.mean(enclosure_width(f) ** 2))
    weights = trees.norm(setup.params0) + jnp.sqrt(known["V_0"])
    L = jnp.abs(run.risk[:-1].astype(jnp.float64))
    G2, distance = (
        run.probes[f"path_{k}"][:-1].astype(jnp.float64) for k in ("gradient", "distance")
    )
    G, apart, root, step = jnp.sqrt(G2), jnp.sqrt(distance), jnp.sqrt(L), known["eta"]
    output = 4 * coarser * wide + 64 * eps * (G * (weights + apart) + root + known["y_rms"])
    risk = output * (2 * root + output)
    error = output + 64 * eps * G * apart
    slope = 2 * G * (output + 64 * eps * root)
    descent = 2 * risk + 2 * root * error + slope * apart
    steepness = 4 * G2 * (risk + 64 * eps * L) + slope * (4 * G * root + slope)
    placed = 16 * eps * (weights + apart + step * 2 * G * root) + step * slope
    gained = (
        4 * step * (risk + root * error + step * G2 * risk) + 64 * eps * step * (1 + step * G2) * L
    )
    nearer = 64 * eps * distance + placed * (2 * apart + placed) + gained
    return Rounding(output, risk, descent, steepness, nearer)


def _certificate(
    run: Trajectory, hypotheses: Inequalities, conclusions: dict[str, Any], bound: Array,
    known: dict[str, Any], others: dict[str, Any], rounding: Rounding, about: dict[str, Any],
) -> Certificate:  # fmt: skip
    first, best, mean, tau = run.risk[0], *(known[k] for k in ("best loss", "mean loss", "tau"))
    told = {"mean loss": mean, "best loss": best, "bound along the path": bound}
    told["bound along the path over mean loss"] = bound / mean
    return Certificate(
        hypotheses,
        conclusions | about | _steps(run, known["eta"], rounding),
        told | known | others,
        predicted_rate=1 - (jnp.minimum(bound, first) / first) ** (1 / tau),
        measured_rate=1 - (best / first) ** (1 / tau),
    )


def _covariance(setup: Setup, run: Trajectory) -> dict[str, Any]:
    """Lemma 1 at every record; with tokens of norm 1 it is the paper's bound by 1."""
    key = "covariance under attention: largest |M|_F <= token_bound^2"
    if "covariance_largest" not in run.probes:
        return {key: not_checked("covariance")}
    largest = run.probes["covariance_largest"].astype(jnp.float64)
    bound = (setup.setting.token_bound * (1 + ROOM)) ** 2
    eps = float(jnp.finfo(run.risk.dtype).eps)
    return {key: Inequality(largest, bound, 256 * eps * (bound + largest))}


def _steps(run: Trajectory, step: Scalar, rounding: Rounding) -> Inequalities:
    """The inequalities (5.1) and (5.2) of every step, with the constants of that step."""
    L = run.risk[:-1].astype(jnp.float64)
    e, G2, distance, descent, steepness = (
        run.probes[f"path_{name}"].astype(jnp.float64)
        for name in ("error", "gradient", "distance", "descent", "steepness")
    )
    gain = 4 * step * (L - e[:-1] * jnp.sqrt(L) - step * G2[:-1] * L)
    least = 2 * L - 2 * e[:-1] * jnp.sqrt(L)
    return {
        "descent: <grad L, phi - comparator> >= 2 L - 2 e sqrt(L)": Inequality(
            least, descent[:-1], rounding.descent
        ),
        "steepness: |grad L|^2 <= 4 G^2 L": Inequality(
            steepness[:-1], 4 * G2[:-1] * L, rounding.steepness
        ),
        "each step comes nearer to the comparator": Inequality(
            distance[1:], distance[:-1] - gain, rounding.nearer
        ),
    }


def _mean_rounding(rounding: Rounding, step: Scalar) -> Array:
    """What the errors of all steps add to the bound of the mean loss."""
    return jnp.mean(rounding.nearer) / (4 * step) + jnp.mean(rounding.risk)


_PATH_CONSTANTS = ("mean loss", "V_0", "epsilon (path)", "G^2 (path)", "eta", "tau")
_OF_MEAN: dict[str, Any] = {
    "source": "ours, after the main theorem of Arda et al.; proof in docs/theory/arda2026.md",
    "probes": ("scaled_movement", "path", "covariance"),
    "needs": ("scaled_movement_c", *(f"path_{name}" for name in PATH)),
    "covers": lambda s: _heads_only(s) and s.radius is not None and s.decay == 0,
}


@PAPER.theorem(**_OF_MEAN)
def theorem_a(setup: Setup, run: Trajectory) -> Certificate:
    r"""Projected gradient descent: the mean loss is at most V_0 / (4 step tau) + step G^2 D^2 +
    D epsilon, whatever the length of the sequences.

    $\bar L\le V_0/4\eta\tau+\eta G^2D^2+D\varepsilon$; the paper has $\eta=\tau^{-1/2}$.
    """
    hypotheses, known, worst = _of_mean(setup, run)
    mean, V0, error, G2, eta, tau = (known[name] for name in _PATH_CONSTANTS)
    on_path = bound_a(V0, jnp.sqrt(G2), jnp.sqrt(jnp.max(run.risk[:-1])), error, eta, tau)
    bound = bound_a(V0, worst["G"], worst["D"], worst["epsilon (worst case)"], eta, tau)
    rounding = _rounding(setup, run, known)
    blur = _mean_rounding(rounding, eta)
    conclusions = {
        "mean loss, constants measured along the path": Inequality(mean, on_path, blur),
        "mean loss, worst case": Inequality(mean, bound, blur),
        "loss never above D^2": Inequality(
            run.risk, jnp.square(worst["D"]), jnp.max(rounding.risk)
        ),
    }
    others, M = {"bound in the worst case": bound} | worst, _covariance(setup, run)
    return _certificate(run, hypotheses, conclusions, on_path, known, others, rounding, M)


@PAPER.theorem(**_OF_MEAN)
def theorem_b(setup: Setup, run: Trajectory) -> Certificate:
    r"""Projected gradient descent with step G^2 < 1: the mean loss is at most about
    V_0 / (step tau) + 4 epsilon^2, and the averaged iterate is nearly as good.

    $\sqrt{\bar L}\le\frac\varepsilon{2\kappa}+\sqrt{\ldots}$ where $\kappa=1-\eta G^2>0$.
    """
    hypotheses, known, worst = _of_mean(setup, run)
    mean, V0, error, G2, eta, tau = (known[name] for name in _PATH_CONSTANTS)
    kappa, worst_kappa = 1 - eta * G2, 1 - eta * worst["G"] ** 2
    rounding = _rounding(setup, run, known)
    # the largest G^2 was recorded in floats: it may be off by what rounding makes of it
    eps = float(jnp.finfo(run.risk.dtype).eps)
    wide = enclosure_width(G2_start := _largest_gradient(setup))
    noise = eta * (4 * eps / float(jnp.finfo(jnp.float64).eps) * wide + 64 * eps * (G2 + G2_start))
    hypotheses["step: 0 < kappa = 1 - eta G^2 (path)"] = positive(kappa)._replace(resolution=noise)
    blur = _mean_rounding(rounding, eta)
    on_path = bound_b(V0, jnp.sqrt(G2), error, eta, tau)
    simple = V0 / (eta * tau) + 4 * error**2
    bound = bound_b(V0, worst["G"], worst["epsilon (worst case)"], eta, tau)

    def where(applies: Array, bound: Array) -> Inequality:
        return Inequality(mean, jnp.where(applies, bound, jnp.inf), blur, applies=applies)

    conclusions = {
        "mean loss, constants measured along the path": Inequality(mean, on_path, blur),
        "mean loss, V_0 / (eta tau) + 4 epsilon^2 (where kappa >= 1/2)":
            where(kappa >= 0.5, simple),
        "mean loss, worst case (where eta G^2 < 1)": where(worst_kappa > 0, bound),
    }  # fmt: skip
    more = {
        "kappa (path)": kappa, "kappa (worst case)": worst_kappa,
        "bound with kappa = 1/2": (error + jnp.sqrt(error**2 + V0 / (2 * eta * tau))) ** 2,
        "bound V_0 / (eta tau) + 4 epsilon^2": simple, "bound in the worst case": bound,
    }  # fmt: skip
    M = _covariance(setup, run)
    if run.average is not None:
        average = trees.cast(run.average, "float64")
        f = predict(setup.network, average, setup.inputs)
        lin = f - linearised(setup.network, setup.params0, setup.inputs, average)
        root, lin_rms = (jnp.sqrt(jnp.mean(e**2)) for e in (f - setup.targets, lin))
        worst_lin = jnp.max(run.probes["path_linearisation"][:-1])
        key = "root of the loss at the averaged iterate"
        error = 4 * jnp.max(rounding.output)
        conclusions[key] = Inequality(root, jnp.sqrt(mean) + worst_lin + lin_rms, error)
        more |= {key: root, "linearisation error (path)": worst_lin}
        more["linearisation error (average)"] = lin_rms
    return _certificate(run, hypotheses, conclusions, on_path, known, more | worst, rounding, M)


def _largest_gradient(setup: Setup) -> Float[Array, ""]:
    r"""$\max_j\lVert\nabla f_j\rVert^2$ at the start."""
    squares = heads.output_gradients(setup.params0, setup.inputs, setup.setting.sigma)
    return jnp.max(squares["W"] + squares["U"] + squares["c"])


def lower_bound(setup: Setup, beta: Float[Array, " N"], radii: Radii) -> Float[Array, ""]:
    r"""$(\beta^\top y-\Gamma)_+/\sqrt n\lVert\beta\rVert\le\sqrt{L_{lin}}$ within the radii."""
    y = setup.targets
    S = teachers.sums(setup.params0, setup.inputs, beta, setup.setting.sigma)
    size = norm_fro(beta) * len(y) ** 0.5
    gap = jnp.maximum(beta @ y - teachers.pairing(S, radii), 0.0)
    return gap / jnp.where(size > 0, size, 1.0)


def _directions(setup: Setup) -> tuple[Weights, Float[Array, " N"]]:
    """The best linearised fit, and the top eigenvector of the tangent kernel at the start."""
    params0, inputs, y, radii = setup.params0, setup.inputs, setup.targets, setup.setting.limits
    K = sum(heads.tangent_kernels(inputs, setup.setting.sigma)(params0).values())
    eigenvalues, V = jnp.linalg.eigh(K)
    curvature = eigenvalues[-1] * (1 + 1e-6)
    fit = teachers.best_fit(setup.network, params0, inputs, y, radii, curvature)
    return fit, V[:, -1] * jnp.sign(V[:, -1] @ y)


@PAPER.theorem(
    method=ANY_METHOD,
    source="ours; proof in docs/theory/arda2026.md",
    probes=("scaled_movement", "path"),
    needs=("scaled_movement_c",),
    covers=lambda setting: _heads_only(setting) and setting.radius is not None,
)
def theorem_c(setup: Setup, run: Trajectory) -> Certificate:
    r"""Lower bound: no weights within the radius have a loss below what a dual certificate of the
    labels allows.

    No point has $\sqrt L$ below $(\beta^\top y-\Gamma)_+/\sqrt n\lVert\beta\rVert-B_{lin}$. Any
    $\beta$ gives a bound. This takes the better of two: the residual of the best linearised fit,
    which is optimal if the fit is, and the top eigenvector of the tangent kernel.
    """
    radii, y = _larger_radii(setup, run), setup.targets
    fit, top = chosen(_directions)(setup)
    residual = y - linearised(setup.network, setup.params0, setup.inputs, fit)
    # any direction makes a true bound; the fit itself need not lie in the larger set exactly
    by_fit, by_top = (lower_bound(setup, b, radii) for b in (chosen(lambda r: r)(residual), top))
    bound = jnp.maximum(by_fit, by_top)
    B_lin = _worst_case(setup, radii, radii)["B_lin"]
    fitted, root = jnp.sqrt(jnp.mean(residual**2)), jnp.sqrt(run.risk.astype(jnp.float64))
    eps = float(jnp.finfo(run.risk.dtype).eps)
    wide = jnp.sqrt(
        jnp.mean(enclosure_width(predict(setup.network, setup.params0, setup.inputs)) ** 2)
    )
    weights = trees.norm(setup.params0) + sum(r**2 for r in radii) ** 0.5
    G = jnp.sqrt(_largest_gradient(setup))
    size = jnp.sqrt(jnp.mean(y**2)) + G * weights + root
    blur = 4 * eps / float(jnp.finfo(jnp.float64).eps) * wide + 64 * eps * size
    floor = jnp.full_like(root, jnp.maximum(bound - B_lin, 0.0))
    key = "no iterate is below (its own linearisation error)"
    conclusions: dict[str, Any] = {
        "the best linearised fit is not below": Inequality(bound, fitted, blur[0]),
        "no iterate is below (worst case B_lin)": Inequality(floor, root, blur),
        key: not_checked("path"),
    }
    if "path_linearisation" in run.probes:
        floor = jnp.maximum(bound - run.probes["path_linearisation"], 0.0)
        conclusions[key] = Inequality(floor, root, blur)
    return Certificate(
        _hypotheses(setup, run),
        conclusions,
        {
            "lower bound of the linearised loss": bound**2,
            "loss of the best linearised fit": fitted**2,
            "duality gap of the fit": fitted**2 - bound**2,
            "by the residual of the fit": by_fit**2,
            "by the top eigenvector": by_top**2,
            "B_lin": B_lin,
            "least loss of the run": jnp.min(run.risk),
        },
        curves={"proved lower bound": floor**2},
    )


PAPER.theorems.append(
    KERNEL_REGIME._replace(
        probes=("kernel_distance", "scaled_movement"),
        needs=("kernel_distance", "scaled_movement_c"),
        covers=lambda setting: _heads_only(setting) and setting.decay == 0,
    )
)
