"""Independent witness of docs/theory/qin2025.md: plain NumPy, loops over samples, blocks and rows.

Shapes: X (N, n, d); a block is {"W_Q" (d, dk), "W_K" (d, dk), "W_V" (d, d), "W_1" (d, m),
"W_2" (m, d)}; W_U is (d, c), or (n d, c) if the output is "vec". Outputs are one flat vector, by
sample, then token (if the output is "tokens"), then component; the loss is half the sum of squares.
Nothing of shoal or JAX is used here.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

BLOCKS = ("W_Q", "W_K", "W_V", "W_1", "W_2")
LAYER_NORM_EPS = 1e-5


# -------------------------------------------------------------------------------- activations


class Activation(NamedTuple):
    """A function, its derivative; floor <= phi', |phi'| <= top, |phi''| <= curvature."""

    value: Callable
    slope: Callable
    floor: float
    top: float
    curvature: float


def logistic(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def normal_cdf(x):
    return math.erfc(-x / math.sqrt(2)) / 2


def normal_pdf(x):
    return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def relu():
    return Activation(lambda x: max(x, 0.0), lambda x: float(x > 0), 0.0, 1.0, math.inf)


def leaky(g=0.3):
    return Activation(
        lambda x: x if x > 0 else g * x, lambda x: 1.0 if x > 0 else g, g, 1.0, math.inf
    )


def smooth_leaky(g=0.3):
    return Activation(
        lambda x: g * x + (1 - g) * (softplus(x) - math.log(2)),
        lambda x: g + (1 - g) * logistic(x),
        g,
        1.0,
        (1 - g) / 4,
    )


def gelu():
    """The exact one. Its slope falls below zero, so the floor that route A may use is zero."""
    root = math.sqrt(2)
    return Activation(
        lambda x: x * normal_cdf(x),
        lambda x: normal_cdf(x) + x * normal_pdf(x),
        0.0,
        normal_cdf(root) + root * normal_pdf(root),
        math.sqrt(2 / math.pi),
    )


def entrywise(function, M):
    return np.array([[function(float(x)) for x in row] for row in M])


# -------------------------------------------------------------------------------------- model


class Model(NamedTuple):
    """What is not trained: switches, scales, mask, norm, output."""

    activation: Activation = smooth_leaky()
    residual_attention: float = 1.0  # epsilon_a
    residual_feedforward: float = 1.0  # epsilon_f
    branch_scale: float = 1.0  # s, of both branches
    score_exponent: float = 0.5  # logits are divided by dk to this power
    causal: bool = False
    layer_norm: bool = False
    output: str = "tokens"  # or "mean", "vec"


class Weights(NamedTuple):
    blocks: list
    W_U: np.ndarray


def flatten(weights):
    parts = [block[name].ravel() for block in weights.blocks for name in BLOCKS]
    return np.concatenate([*parts, weights.W_U.ravel()])


def unflatten(vector, like):
    blocks, at = [], 0
    for block in like.blocks:
        blocks.append({})
        for name in BLOCKS:
            size = block[name].size
            blocks[-1][name] = vector[at : at + size].reshape(block[name].shape)
            at += size
    return Weights(blocks, vector[at:].reshape(like.W_U.shape))


def normalised(X, model):
    """Each row minus its mean, over its standard deviation; X itself without layer norm."""
    if not model.layer_norm:
        return X
    rows = [(x - x.mean()) / math.sqrt(x.var() + LAYER_NORM_EPS) for x in X]
    return np.array(rows)


def normalised_back(X, cotangent, model):
    if not model.layer_norm:
        return cotangent
    rows = []
    for x, g in zip(X, cotangent, strict=True):
        deviation = math.sqrt(x.var() + LAYER_NORM_EPS)
        y = (x - x.mean()) / deviation
        rows.append((g - g.mean() - y * np.mean(g * y)) / deviation)
    return np.array(rows)


def attention_weights(Z, model):
    S = np.zeros_like(Z)
    for k, z in enumerate(Z):
        visible = k + 1 if model.causal else len(z)
        e = np.exp(z[:visible] - z[:visible].max())
        S[k, :visible] = e / e.sum()
    return S


def apply_block(X, block, model):
    """One block of one sequence, with everything on the way."""
    gamma = block["W_Q"].shape[1] ** -model.score_exponent
    B = normalised(X, model)
    Z = gamma * (B @ block["W_Q"]) @ (B @ block["W_K"]).T
    S = attention_weights(Z, model)
    A = model.residual_attention * X + model.branch_scale * S @ B @ block["W_V"]
    C = normalised(A, model)
    G = C @ block["W_1"]
    Phi = entrywise(model.activation.value, G)
    H = model.residual_feedforward * A + model.branch_scale * Phi @ block["W_2"]
    return {"X": X, "B": B, "Z": Z, "S": S, "A": A, "C": C, "G": G, "Phi": Phi, "H": H}


def apply_block_back(trace, block, dH, model):
    """Cotangents of the block's weights, and of its input."""
    s, gamma = model.branch_scale, block["W_Q"].shape[1] ** -model.score_exponent
    X, B, S, A, C, G, Phi = (trace[name] for name in ("X", "B", "S", "A", "C", "G", "Phi"))
    dG = s * (dH @ block["W_2"].T) * entrywise(model.activation.slope, G)
    dA = model.residual_feedforward * dH + normalised_back(A, dG @ block["W_1"].T, model)
    dS = s * dA @ block["W_V"].T @ B.T
    dZ = np.zeros_like(S)
    for k in range(len(S)):
        dZ[k] = S[k] * (dS[k] - S[k] @ dS[k])
    dB = s * S.T @ dA @ block["W_V"].T
    dB = dB + gamma * dZ @ B @ block["W_K"] @ block["W_Q"].T
    dB = dB + gamma * dZ.T @ B @ block["W_Q"] @ block["W_K"].T
    gradient = {
        "W_Q": gamma * B.T @ dZ @ B @ block["W_K"],
        "W_K": gamma * B.T @ dZ.T @ B @ block["W_Q"],
        "W_V": s * (S @ B).T @ dA,
        "W_1": C.T @ dG,
        "W_2": s * Phi.T @ dH,
    }
    return gradient, model.residual_attention * dA + normalised_back(X, dB, model)


def traces(weights, x, model):
    """Of one sequence: a list over blocks."""
    out = []
    for block in weights.blocks:
        out.append(apply_block(x, block, model))
        x = out[-1]["H"]
    return out


def read_out(H, model):
    """Rows that W_U multiplies: n of them, or one."""
    if model.output == "tokens":
        return H
    if model.output == "mean":
        return H.mean(axis=0, keepdims=True)
    if model.output == "vec":
        return H.reshape(1, -1)
    raise ValueError(model.output)


def read_out_back(dE, shape, model):
    if model.output == "mean":
        return np.repeat(dE, shape[0], axis=0) / shape[0]
    return dE.reshape(shape)


def outputs(weights, X, model):
    parts = [read_out(traces(weights, x, model)[-1]["H"], model) @ weights.W_U for x in X]
    return np.concatenate([part.ravel() for part in parts])


def loss(weights, X, Y, model):
    return 0.5 * float(np.sum((outputs(weights, X, model) - Y.ravel()) ** 2))


def pull_back(weights, x, cotangent, model):
    """Gradient of <cotangent, output> at one sequence; the cotangent is flat."""
    steps = traces(weights, x, model)
    E = read_out(steps[-1]["H"], model)
    dF = cotangent.reshape(E.shape[0], -1)
    dH = read_out_back(dF @ weights.W_U.T, steps[-1]["H"].shape, model)
    blocks = []
    for trace, block in zip(reversed(steps), reversed(weights.blocks), strict=True):
        gradient, dH = apply_block_back(trace, block, dH, model)
        blocks.insert(0, gradient)
    return Weights(blocks, E.T @ dF)


def loss_gradient(weights, X, Y, model):
    """As one flat vector."""
    r = (outputs(weights, X, model) - Y.ravel()).reshape(len(X), -1)
    pairs = zip(X, r, strict=True)
    return sum(flatten(pull_back(weights, x, r_i, model)) for x, r_i in pairs)


def jacobian(weights, X, model):
    """J (p, P), one row an output."""
    per_sample = outputs(weights, X[:1], model).size
    rows = []
    for x in X:
        for unit in np.eye(per_sample):
            rows.append(flatten(pull_back(weights, x, unit, model)))
    return np.array(rows)


def gradient_descent(weights, X, Y, model, eta, steps):
    """Norms of the residual at t = 0..steps, and the iterates."""
    norms, iterates = [], [weights]
    for t in range(steps + 1):
        norms.append(math.sqrt(2 * loss(iterates[-1], X, Y, model)))
        if t < steps:
            moved = flatten(iterates[-1]) - eta * loss_gradient(iterates[-1], X, Y, model)
            iterates.append(unflatten(moved, weights))
    return np.array(norms), iterates


# -------------------------------------------------------------------------------- conditioning


def singular_values(M):
    return np.linalg.svd(M, compute_uv=False)


def sigma(M, k):
    """The k-th largest singular value, counted from one; zero if there are fewer."""
    return float(singular_values(M)[k - 1]) if 0 < k <= min(M.shape) else 0.0


def norm(M):
    return sigma(M, 1)


def certain(M, k):
    """sigma, but zero where it cannot be told from rounding."""
    return sigma(M, k) if sigma(M, k) > 1e-12 * norm(M) else 0.0


def conditioning(M, num_tokens):
    """Of stacked rows (N n, d): extreme singular values, their ratio, two measures of collapse."""
    largest, smallest = sigma(M, 1), sigma(M, M.shape[0])
    centred = M.copy()
    for start in range(0, len(M), num_tokens):
        centred[start : start + num_tokens] -= M[start : start + num_tokens].mean(axis=0)
    square = float(np.sum(M**2))
    return {
        "sigma_max": largest,
        "sigma_min": smallest,
        "kappa": largest / smallest if smallest > 0 else math.inf,
        "centred_share": math.sqrt(float(np.sum(centred**2)) / square) if square > 0 else 0.0,
        "stable_rank": square / largest**2 if largest > 0 else 0.0,
    }


def weyl(X, branch):
    """Bounds for X + branch: of sigma_min from below, of kappa from above (inf if void)."""
    low, high = sigma(X, X.shape[0]) - norm(branch), norm(X) + norm(branch)
    return low, high / low if low > 0 else math.inf


# ------------------------------------------------------------------------------- ball constants


def positive(x):
    return max(x, 0.0)


def length(numbers):
    return math.sqrt(sum(x**2 for x in numbers))


class Start(NamedTuple):
    """What theorem D reads off the start; everything else follows from the radius."""

    model: Model
    num_tokens: int
    key_dim: int
    norms: list  # per block: {"W_Q": ..., ..., "A": [per sample], "Phi": [...], "H": [...]}
    x: list  # norms of the X_i
    U: float  # norm of W_U
    read: float  # norm of the stacked rows that W_U multiplies
    sigma_H: float
    sigma_Phi: float
    sigma_A: float
    sigma_U: float
    sigma_2U: float
    sigma_J: float
    output_norm: float


def start_numbers(weights, X, model, with_kernel=True):
    if model.layer_norm or math.isinf(model.activation.curvature):
        raise ValueError("theorem D covers neither layer norm nor activations with a kink")
    steps = [traces(weights, x, model) for x in X]
    norms = []
    for index, block in enumerate(weights.blocks):
        entry = {name: norm(block[name]) for name in BLOCKS}
        for name in ("A", "Phi", "H"):
            entry[name] = [norm(one[index][name]) for one in steps]
        norms.append(entry)
    last = [one[-1] for one in steps]
    read = np.concatenate([read_out(one["H"], model) for one in last])
    A, Phi = (np.concatenate([one[name] for one in last]) for name in ("A", "Phi"))
    W_2, W_U, n = weights.blocks[-1]["W_2"], weights.W_U, len(X[0])
    if model.output == "mean":
        Phi = np.array([one["Phi"].mean(axis=0) for one in last])
    product = (np.kron(np.eye(n), W_2) if model.output == "vec" else W_2) @ W_U
    J = jacobian(weights, X, model) if with_kernel else np.zeros((1, 1))
    return Start(
        model=model,
        num_tokens=n,
        key_dim=weights.blocks[0]["W_Q"].shape[1],
        norms=norms,
        x=[norm(x) for x in X],
        U=norm(W_U),
        read=norm(read),
        sigma_H=certain(read, len(read)),
        sigma_Phi=certain(Phi, len(Phi)),
        sigma_A=certain(A, len(A)),
        sigma_U=certain(W_U, W_U.shape[1]),
        sigma_2U=certain(product, W_U.shape[1]),
        sigma_J=certain(J, len(J)),
        output_norm=float(np.linalg.norm(outputs(weights, X, model))),
    )


def block_constants(start, entry, i, rho, variant, x, xi, xi2):
    """One row of the recursion: sample i, one block, whose input obeys x, xi, xi2."""
    phi, root_n = start.model.activation, math.sqrt(start.num_tokens)
    s, scale = start.model.branch_scale, start.key_dim**-start.model.score_exponent
    eps_a, eps_f = start.model.residual_attention, start.model.residual_feedforward
    q, k, v, w_1, w_2 = (entry[name] + rho for name in BLOCKS)
    mixed = math.hypot(q, k)
    C_s, Q = {"basic": (1.5, q + k), "sharp": (math.sqrt(2) / 4, mixed)}[variant]
    z_1 = scale * (2 * x * q * k * xi + x**2 * mixed)
    z_2 = scale * (2 * x * q * k * xi2 + 2 * q * k * xi**2 + 4 * x * xi * Q + x**2)
    a_1 = eps_a * xi + s * (z_1 * x * v / 2 + root_n * xi * v + root_n * x)
    bracket = x * (z_2 / 2 + C_s * z_1**2) + z_1 * xi + root_n * xi2
    a_2 = eps_a * xi2 + s * (v * bracket + z_1 * x + 2 * root_n * xi)
    A_bar = entry["A"][i] + a_1 * rho
    p_1, p_2 = a_1 * w_1 + A_bar, a_2 * w_1 + 2 * a_1
    f_1, f_2 = phi.top * p_1, phi.top * p_2 + phi.curvature * p_1**2
    Phi_bar = entry["Phi"][i] + f_1 * rho
    h_1 = eps_f * a_1 + s * (f_1 * w_2 + Phi_bar)
    h_2 = eps_f * a_2 + s * (f_2 * w_2 + 2 * f_1)
    return {
        "x": x, "z_1": z_1, "z_2": z_2, "a_1": a_1, "a_2": a_2, "A_bar": A_bar, "p_1": p_1,
        "p_2": p_2, "f_1": f_1, "f_2": f_2, "Phi_bar": Phi_bar, "h_1": h_1, "h_2": h_2,
    }  # fmt: skip


def ball_constants(start, rho, variant="basic"):
    """Theorem D on the ball of radius rho; "blocks" holds the table, by block, then sample."""
    table = [[] for _ in start.norms]
    for i, x in enumerate(start.x):
        xi = xi2 = 0.0
        for row, entry in zip(table, start.norms, strict=True):
            row.append(block_constants(start, entry, i, rho, variant, x, xi, xi2))
            xi, xi2 = row[-1]["h_1"], row[-1]["h_2"]
            x = entry["H"][i] + xi * rho
    totals = {name: length(row[name] for row in table[-1]) for name in ("a_1", "f_1", "h_1", "h_2")}
    share = 1 / math.sqrt(start.num_tokens) if start.model.output == "mean" else 1.0
    s, g, u = start.model.branch_scale, start.model.activation.floor, start.U + rho
    h_1, h_2 = share * totals["h_1"], share * totals["h_2"]
    H_bar = start.read + h_1 * rho
    if variant == "basic":
        beta, L_J = h_1 * u + H_bar, h_2 * u + 2 * h_1
    else:
        beta, L_J = math.hypot(h_1 * u, H_bar), (h_2 * u + math.hypot(h_2 * u, 2 * h_1)) / 2
    W_2 = start.norms[-1]["W_2"]
    sigma_U = positive(start.sigma_U - rho)
    sigma_2U = positive(start.sigma_2U - rho * (start.U + W_2 + rho))
    routes = (
        positive(start.sigma_H - h_1 * rho),
        s * positive(start.sigma_Phi - share * totals["f_1"] * rho) * sigma_U,
        s * share * g * positive(start.sigma_A - totals["a_1"] * rho) * sigma_2U,
    )
    alpha_lay, alpha_ntk = length(routes), positive(start.sigma_J - L_J * rho)
    return {
        "blocks": table, "H_bar": H_bar, "beta": beta, "L_J": L_J, "routes": routes,
        "alpha_lay": alpha_lay, "alpha_ntk": alpha_ntk, "alpha_best": max(alpha_lay, alpha_ntk),
    }  # fmt: skip


# ---------------------------------------------------------------------------------- certificate


class Choice(NamedTuple):
    """a and b of theorem D0."""

    a: float = 1.0
    b: float = 0.5

    @property
    def c(self):
        return 1 - self.a / 2 - self.b / 2


def admissible(start, rho, variant, route, choice):
    """Lambda(rho): the largest initial residual that the ball of radius rho certifies."""
    return choice.c * rho * ball_constants(start, rho, variant)["alpha_" + route]


def dead_radius(start, variant, route):
    """A radius beyond which alpha is zero, from the constants at radius zero."""
    at = ball_constants(start, 0.0, variant)
    rows = at["blocks"][-1]
    share = 1 / math.sqrt(start.num_tokens) if start.model.output == "mean" else 1.0

    def over(numerator, denominator):
        return numerator / denominator if denominator > 0 else 0.0

    through_W_1 = min(
        over(start.sigma_A, length(row["a_1"] for row in rows)),
        over(start.sigma_2U, start.U + start.norms[-1]["W_2"]),
    )
    layer = max(
        over(start.sigma_H, share * length(row["h_1"] for row in rows)),
        min(start.sigma_U, over(start.sigma_Phi, share * length(row["f_1"] for row in rows))),
        through_W_1 if start.model.activation.floor > 0 else 0.0,
    )
    kernel = over(start.sigma_J, at["L_J"])
    return {"lay": layer, "ntk": kernel, "best": max(layer, kernel)}[route]


def grid(start, variant, route, per_decade=200, decades=6):
    """Logarithmic, up to the dead radius."""
    top = dead_radius(start, variant, route)
    return [top * 10 ** (k / per_decade) for k in range(-decades * per_decade, 1)] if top else []


def r_max(start, variant="basic", route="lay", choice=Choice()):  # noqa: B008
    """Largest Lambda and the radius where it is: grid, then golden section around the best."""
    radii = grid(start, variant, route)
    if not radii:
        return 0.0, 0.0
    values = [admissible(start, rho, variant, route, choice) for rho in radii]
    best = int(np.argmax(values))
    low, high = radii[max(best - 1, 0)], radii[min(best + 1, len(radii) - 1)]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if admissible(start, left, variant, route, choice) < admissible(
            start, right, variant, route, choice
        ):
            low = left
        else:
            high = right
    refined = (low + high) / 2
    return max(
        (values[best], radii[best]),
        (admissible(start, refined, variant, route, choice), refined),
    )


def smallest_radius(start, r_0, variant="basic", route="lay", choice=Choice()):  # noqa: B008
    """The smallest rho with Lambda(rho) >= r_0, or None: from the left, then bisection."""
    value, best = r_max(start, variant, route, choice)
    if r_0 > value or value == 0:
        return None
    low = 0.0
    for rho in [*(rho for rho in grid(start, variant, route) if rho < best), best]:
        if admissible(start, rho, variant, route, choice) >= r_0:
            high = rho
            break
        low = rho
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if admissible(start, middle, variant, route, choice) >= r_0:
            high = middle
        else:
            low = middle
    return high


def certificate(start, r_0, variant="basic", route="lay", choice=Choice()):  # noqa: B008
    """Radius, constants, step and proved factor of the residual's norm; None if there is none."""
    rho = smallest_radius(start, r_0, variant, route, choice)
    if rho is None:
        return None
    at = ball_constants(start, rho, variant)
    alpha, beta, L_J = at["alpha_" + route], at["beta"], at["L_J"]
    eta = min(choice.a / beta**2, choice.b / (L_J * r_0) if L_J * r_0 > 0 else math.inf)
    lost = choice.c * eta * alpha**2
    return {
        "rho": rho, "alpha": alpha, "beta": beta, "L_J": L_J, "eta": eta, "factor": 1 - lost,
        "lost": lost,
    }  # fmt: skip


def slack(output_norm, target_norm):
    """Rounding of the norm of the residual that is not held against a run."""
    return 1e-14 * (output_norm + target_norm)


def resolved(lost, r_0, output_norm, target_norm, steps):
    """Whether the decrease that is proved over the run can be told from rounding."""
    return -math.expm1(steps * math.log1p(-lost)) * r_0 >= slack(output_norm, target_norm)


# -------------------------------------------------------------------------------------- softmax


def softmax_first(s, v):
    """Directional derivative of softmax at weights s."""
    return s * (v - s @ v)


def softmax_second(s, v):
    """Second directional derivative."""
    c = v - s @ v
    return s * (c**2 - s @ c**2)
