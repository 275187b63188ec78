"""Independent witness of docs/theory/arda2026.md: plain NumPy, loops, no cleverness.

Shapes: X (n, T, d), q (n, d), c (m,), U (m, d), W (m, d, d). One sample is x (T, d) and q (d,).
Nothing of shoal or JAX is used here, and matrices that shoal avoids (M, d x d) are formed.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Activation(NamedTuple):
    """A function, its derivative, and bounds of it and of its first two derivatives."""

    value: Callable
    slope: Callable
    s0: float
    s1: float
    s2: float


def logistic(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


ACTIVATIONS = {
    "tanh": Activation(math.tanh, lambda x: 1 - math.tanh(x) ** 2, 1, 1, 4 / (3 * math.sqrt(3))),
    "logistic": Activation(
        logistic, lambda x: logistic(x) * logistic(-x), 1, 1 / 4, 1 / (6 * math.sqrt(3))
    ),
    "sin": Activation(math.sin, math.cos, 1, 1, 1),
    "erf": Activation(
        math.erf,
        lambda x: 2 / math.sqrt(math.pi) * math.exp(-(x**2)),
        1,
        2 / math.sqrt(math.pi),
        math.sqrt(8 / (math.pi * math.e)),
    ),
}
TANH = ACTIVATIONS["tanh"]


class Weights(NamedTuple):
    c: np.ndarray
    U: np.ndarray
    W: np.ndarray


def plus(a, b, factor=1.0):
    """a + factor b, block by block."""
    return Weights(*(x + factor * y for x, y in zip(a, b, strict=True)))


def dot(a, b):
    return sum(float(np.sum(x * y)) for x, y in zip(a, b, strict=True))


def twins(rng, m, d):
    """The paper's start: m/2 Gaussian heads with random signs, then the same with opposite c."""
    W, U = rng.normal(size=(m // 2, d, d)), rng.normal(size=(m // 2, d))
    c = rng.choice([-1.0, 1.0], m // 2)
    return Weights(np.concatenate([c, -c]), np.concatenate([U, U]), np.concatenate([W, W]))


# ------------------------------------------------------------------------------------- model


def attend(x, q, W_i):
    """Weights alpha (T,), mean token a (d,) and covariance M (d, d) of one head."""
    z = np.array([x_t @ W_i @ q for x_t in x])
    alpha = np.exp(z - z.max())
    alpha = alpha / alpha.sum()
    a = sum(p * x_t for p, x_t in zip(alpha, x, strict=True))
    M = sum(p * np.outer(x_t, x_t) for p, x_t in zip(alpha, x, strict=True)) - np.outer(a, a)
    return alpha, a, M


def features(x, q, U_i, W_i, sigma=TANH):
    """F_c, F_u (d,), F_w (d, d) of one head."""
    _, a, M = attend(x, q, W_i)
    slope = sigma.slope(U_i @ a)
    return sigma.value(U_i @ a), slope * a, slope * np.outer(M @ U_i, q)


def forward(phi, x, q, sigma=TANH):
    total = 0.0
    for c_i, U_i, W_i in zip(*phi, strict=True):
        _, a, _ = attend(x, q, W_i)
        total += c_i * sigma.value(U_i @ a)
    return total / math.sqrt(len(phi.c))


def gradient(phi, x, q, sigma=TANH):
    """Of the output at one sample."""
    heads = []
    for c_i, U_i, W_i in zip(*phi, strict=True):
        F_c, F_u, F_w = features(x, q, U_i, W_i, sigma)
        heads.append((F_c, c_i * F_u, c_i * F_w))
    return Weights(*(np.array(block) / math.sqrt(len(heads)) for block in zip(*heads, strict=True)))


def residuals(phi, X, q, y, sigma=TANH):
    return np.array([forward(phi, *sample, sigma) for sample in zip(X, q, strict=True)]) - y


def loss(phi, X, q, y, sigma=TANH):
    """Mean of squares, without 1/2."""
    return float(np.mean(residuals(phi, X, q, y, sigma) ** 2))


def loss_gradient(phi, X, q, y, sigma=TANH):
    total = Weights(*(np.zeros_like(block) for block in phi))
    for r, x, q_j in zip(residuals(phi, X, q, y, sigma), X, q, strict=True):
        total = plus(total, gradient(phi, x, q_j, sigma), 2 * r / len(y))
    return total


def linearised(phi, phi_0, x, q, sigma=TANH):
    return dot(gradient(phi_0, x, q, sigma), plus(phi, phi_0, -1))


# ---------------------------------------------------------------------------------- training


def project(phi, phi_0, rho):
    """Head by head and block by block, back to distance rho / sqrt(m) of the start."""
    m = len(phi.c)
    blocks = []
    for block, block_0, radius in zip(phi, phi_0, rho, strict=True):
        moved = block.copy()
        for i in range(m):
            step = block[i] - block_0[i]
            length = math.sqrt(np.sum(step**2))
            if length > radius / math.sqrt(m):
                moved[i] = block_0[i] + step * (radius / math.sqrt(m) / length)
        blocks.append(moved)
    return Weights(*blocks)


def projected_gd(phi_0, X, q, y, rho, eta, tau, sigma=TANH):
    """Losses L_0..L_{tau-1}, and the iterates phi_0..phi_tau."""
    phi, losses, iterates = phi_0, [], [phi_0]
    for _ in range(tau):
        losses.append(loss(phi, X, q, y, sigma))
        phi = project(plus(phi, loss_gradient(phi, X, q, y, sigma), -eta), phi_0, rho)
        iterates.append(phi)
    return np.array(losses), iterates


def average(iterates):
    """Of phi_0..phi_{tau-1}: pass the iterates without the last."""
    return Weights(*(np.mean(blocks, axis=0) for blocks in zip(*iterates, strict=True)))


def per_step(phi, phi_0, target, X, q, y, sigma=TANH):
    """What the inequalities of one step speak of: e_rms, max_j |grad f_j|^2, lin_rms."""
    errors, squares, lins = [], [], []
    for x, q_j, y_j in zip(X, q, y, strict=True):
        grad, f = gradient(phi, x, q_j, sigma), forward(phi, x, q_j, sigma)
        errors.append(dot(grad, plus(phi, target, -1)) - (f - y_j))
        squares.append(dot(grad, grad))
        lins.append(f - linearised(phi, phi_0, x, q_j, sigma))
    rms = [math.sqrt(np.mean(np.square(values))) for values in (errors, lins)]
    return {"e_rms": rms[0], "G_squared": max(squares), "lin_rms": rms[1]}


# ------------------------------------------------------------------------------------ teacher


def transported(phi_0, v):
    """The point whose linearised output is the average of <F, v>; v is one triple a head."""
    heads, root = [], math.sqrt(len(phi_0.c))
    for c, U, W, (v_c, v_u, v_w) in zip(*phi_0, v, strict=True):
        heads.append((c + v_c / root, U + c * v_u / root, W + c * v_w / root))
    return Weights(*(np.array(block) for block in zip(*heads, strict=True)))


def summed_features(phi_0, X, q, beta, sigma=TANH):
    """S_c, S_u, S_w of each head: features of all samples, weighted by beta."""
    out = []
    for U_i, W_i in zip(phi_0.U, phi_0.W, strict=True):
        S = [0.0, np.zeros_like(U_i), np.zeros_like(W_i)]
        for b, x, q_j in zip(beta, X, q, strict=True):
            F = features(x, q_j, U_i, W_i, sigma)
            S = [s + b * f for s, f in zip(S, F, strict=True)]
        out.append(S)
    return out


def capacity(S, rho):
    """Gamma(rho): the largest value of beta . f_lin on the domain."""
    total = 0.0
    for S_i in S:
        total += sum(r * math.sqrt(np.sum(s**2)) for r, s in zip(rho, S_i, strict=True))
    return total / len(S)


def dual_teacher(phi_0, X, q, beta, nu, sigma=TANH):
    """Directions v (one triple a head), the point they lead to, and its linearised outputs."""
    v = []
    for S_i in summed_features(phi_0, X, q, beta, sigma):
        lengths = [math.sqrt(np.sum(s**2)) for s in S_i]
        v.append([nu * s / r if r > 0 else 0 * s for s, r in zip(S_i, lengths, strict=True)])
    target = transported(phi_0, v)
    y = [linearised(target, phi_0, *sample, sigma) for sample in zip(X, q, strict=True)]
    return v, target, np.array(y)


def lower_bound(beta, y, gamma, B_lin=0.0):
    """Theorem C: of the linearised loss, or of the loss itself if B_lin is given."""
    gap = max(float(beta @ y) - gamma, 0.0) / (math.sqrt(len(y)) * math.sqrt(beta @ beta))
    return max(gap - B_lin, 0.0) ** 2


# ---------------------------------------------------------------------------------- constants


def a_priori_norm(m, d, delta):
    """Bound of max_i |U_i0|, with probability at least 1 - delta."""
    return math.sqrt(d) + math.sqrt(2 * math.log(m / (2 * delta)))


def constants(m, n, U_max, rho, nu, delta, sigma=TANH, A=1.0, q_max=1.0, y_rms=None):
    """The table of constants: {"basic": {...}, "sharper": {...}}; y_rms is b if not given."""
    s0, s1, s2 = sigma[2:]
    B = U_max + rho[1] / math.sqrt(m)
    g = A**2 * q_max * B  # bound of |MU||q|, the part of grad(U.a) along W
    k = A**3 * q_max**2 * B
    b_1, b_w = s0 * nu[0] + s1 * A * nu[1], s1 * A**2 * q_max * nu[2]
    b = b_1 + b_w
    P, Q = math.hypot(rho[1], rho[2]), math.hypot(rho[1] + nu[1], rho[2] + nu[2])
    log = math.sqrt(math.log(2 * n / delta) / m)
    mixed = A**2 * q_max
    own = {
        "basic": {
            "L_1": s1 * math.hypot(A, g),
            "L_2": s2 * (A**2 + g**2) + s1 * (k + math.hypot(k, mixed)),
            "B_app": 4 * b * log,
        },
        "sharper": {
            "L_1": s1 * max(A, g),
            "L_2": s2 * max(A, g) ** 2 + s1 / 2 * (k + math.hypot(k, 2 * mixed)),
            "B_app": 2 * (b_1 + 2 * b_w) * log,
        },
    }
    table = {}
    for column, c in own.items():
        L_1, L_2 = c["L_1"], c["L_2"]
        B_lin = (L_1 * rho[0] * P + L_2 * P**2 / 2) / math.sqrt(m)
        B_cof = (L_1 * P * (rho[0] + nu[0]) + (rho[0] * L_1 + L_2 * P) * Q) / math.sqrt(m)
        G = math.hypot(s0, (1 + rho[0] / math.sqrt(m)) * L_1)
        D = G * math.hypot(*rho) + (b if y_rms is None else y_rms)
        shared = {"B": B, "b": b, "P": P, "Q": Q, "B_lin": B_lin, "B_cof": B_cof, "G": G, "D": D}
        table[column] = c | shared | {"epsilon": B_lin + B_cof + c["B_app"]}
    return table


def paper_constants(m, n, B, rho, nu, delta, sigma=TANH):
    """Those printed in the paper (tokens and queries of norm at most 1)."""
    s0, s1, s2 = sigma[2:]
    P, b = math.hypot(rho[1], rho[2]), s0 * nu[0] + s1 * nu[1] + s1 * nu[2]
    L_1 = s1 * math.hypot(1, B)
    L_2 = s2 * (1 + B**2) + 8 * s1 * math.hypot(1, B)
    B_lin = (L_1 * rho[0] * P + L_2 * P**2) / math.sqrt(m)
    B_app = 2 * b * math.sqrt(2 * math.log(2 * n / delta) / m)
    return {"L_1": L_1, "L_2": L_2, "B_lin": B_lin, "B_app": B_app}


def bound_a(V_0, G, D, epsilon, eta, tau):
    """Theorem A: of the mean loss of steps s < tau."""
    return V_0 / (4 * eta * tau) + eta * G**2 * D**2 + D * epsilon


def bound_b(V_0, G_squared, epsilon, eta, tau):
    """Theorem B, the form with kappa; infinite if kappa is not positive."""
    kappa = 1 - eta * G_squared
    if kappa <= 0:
        return math.inf
    half = epsilon / (2 * kappa)
    return (half + math.sqrt(half**2 + V_0 / (4 * kappa * eta * tau))) ** 2


# ---------------------------------------------------------------------------------- recurrence


def indrnn(w, u, x, sigma=TANH):
    """State h_T of one recurrent neuron after the tokens x (T, d), and its derivative in w."""
    h, slope_in_w = 0.0, 0.0
    for x_t in x:
        g = w * h + u @ x_t
        h, slope_in_w = sigma.value(g), sigma.slope(g) * (h + w * slope_in_w)
    return h, slope_in_w


def indrnn_bound(w, T, sigma=TANH):
    return sigma.s0 * sigma.s1 * sum((sigma.s1 * abs(w)) ** k for k in range(T - 1))
