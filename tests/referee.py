"""Hypotheses of theorems at 60 digits, written from the pages of their theory alone.

`digits` runs the jaxpr that the enclosures run, so it checks arithmetic and not formulas. Here the
conditions are written out once more, in mpmath, from docs/theory/wu2023.md (sections 1, 3, 4, 6)
docs/theory/song2024.md (sections 1, 2, 4), docs/theory/qin2025.md (sections 1, 2, 4), the models of
the four pages and docs/theory/kernel_regime.md. Nothing of the papers' code is called.
"""

import mpmath
import numpy as np

mpmath.mp.dps = 60
mpf = mpmath.mpf
exp = np.frompyfunc(mpmath.exp, 1, 1)


def exact(array):
    """Floats as 60-digit numbers."""
    flat = [mpf(float(x)) for x in np.ravel(array)]
    return np.array([*flat, None], object)[:-1].reshape(np.shape(array))


def singular(A):
    """Singular values, largest first."""
    A = A if A.shape[0] >= A.shape[1] else A.T
    return sorted(mpmath.svd_r(mpmath.matrix(A.tolist()), compute_uv=False), reverse=True)


def norm(A):
    """Euclidean norm of all entries."""
    return mpmath.sqrt(sum(x * x for x in np.ravel(A)))


def softmax(Z):
    shifted = exp(Z - Z.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


# --------------------------------------------------------------------------------------- wu2023


def wu_features(X, W_Q, W_K, W_V, tau_0, tau_1, kappa):
    """F_n = tau_1 kappa sum_i ReLU(W_V u_ni), u_ni = X_n' softmax(tau_0 X_n W_K' W_Q x_ni)."""
    rows = []
    for x in X:
        attended = softmax(tau_0 * (x @ W_K.T @ W_Q @ x.T).T) @ x
        hidden = attended @ W_V.T
        rows.append(tau_1 * kappa * np.where(hidden > 0, hidden, mpf(0)).sum(axis=0))
    return np.array(rows)


def wu_numbers(X, y, weights, scales, ratio, multiple):
    """Section 6; None where no radii exist."""
    (W_Q, W_K, W_V, w_O), (tau_0, tau_1, kappa), r = weights, scales, ratio
    N, tokens, _ = X.shape
    F = wu_features(X, W_Q, W_K, W_V, tau_0, tau_1, kappa)
    sigma = singular(F)
    alpha = sigma[-1] if F.shape[1] >= N else mpf(0)
    E = norm(F @ w_O - y)
    if E == 0:
        return {"E": E}
    R = max(norm(x) for x in X.reshape(-1, X.shape[-1]))
    D = max(norm(a - b) for x in X for a in x for b in x)
    c_X, rho = D * D / 4, mpmath.sqrt(N) * tau_1 * kappa * tokens * R
    if alpha < mpf(10) ** -40 * sigma[0] or alpha == 0:  # dependent features, to 60 digits
        return None
    q, k, v = (singular(W)[0] for W in (W_Q, W_K, W_V))
    o = norm(w_O)
    b = multiple * rho * E / alpha**2
    lambda_O = o + multiple * (sigma[0] + alpha / 2) * E / alpha**2
    if r * b * b < 1:
        lambda_O = min(lambda_O, (o + b * v) / (1 - r * b * b))
    lambda_V = v + r * b * lambda_O
    mu = r * b * tau_0 * c_X * lambda_V * lambda_O
    lambda_Q = lambda_K = mpf(0)
    if q != 0 or k != 0:
        if mu >= 1:
            return None
        lambda_Q, lambda_K = (q + mu * k) / (1 - mu**2), (k + mu * q) / (1 - mu**2)
    zeta = 1 + tau_0**2 * c_X**2 * lambda_V**2 * (lambda_Q**2 + lambda_K**2)
    drift = r * rho**2 * lambda_O * zeta
    phi = min(rho * lambda_V, sigma[0] + alpha / 2)
    return {"E": E, "alpha": alpha, "D": drift, "lambda_O": lambda_O, "phi": phi}


def theorem_a(X, y, weights, scales, ratio, step):
    """Conditions 1 to 6 and the large step (7+)."""
    c = wu_numbers(X, y, weights, scales, ratio, 8)
    if c is None or c["E"] == 0:
        return c is not None
    c_5 = 16 * c["D"] * c["E"] / c["alpha"] ** 3
    c_6 = 16 * c["D"] * c["lambda_O"] / c["alpha"] ** 2
    chi = (32 - 16 * c_6) / (64 + 16 * c_5 + c_6**2)
    return bool(c_5 <= 1 and c_6 < 2 and 0 < step <= chi / c["phi"] ** 2)


def theorem_b(X, y, weights, scales, ratio, step):
    """Conditions 1 to 4 with 4 for 8, and 5'."""
    c = wu_numbers(X, y, weights, scales, ratio, 4)
    if c is None or c["E"] == 0:
        return c is not None
    return bool(8 * c["D"] * c["E"] / c["alpha"] ** 3 <= 1)


# ------------------------------------------------------------------------------------- song2024


def theorem_2(X, Y, weights, tau, step):
    """T2 for Gaussian attention: lambda > 0, F_0 <= lambda^2 R^2 / 32, eta <= 1 / L."""
    W_Q, W_K, W_V, W_O = weights
    heads, tokens, e_0 = len(W_Q), X.shape[1], mpmath.e
    blocks, outputs = [], np.zeros(Y.shape) * mpf(0)
    for h in range(heads):
        rows = []
        for i, x in enumerate(X):
            Q, K = x @ W_Q[h], x @ W_K[h]
            apart = ((Q[:, None] - K[None]) ** 2).sum(axis=-1)
            S = exp(-apart / (2 * tau))
            outputs[i] = outputs[i] + S @ (x @ W_V[h] @ W_O[h])
            rows.append(S @ x)
        blocks.append(np.kron(np.concatenate(rows), W_O[h].T))
    A = np.concatenate(blocks, axis=1)
    if A.shape[1] < A.shape[0]:
        return False
    sigma, F_0 = singular(A), norm(outputs - Y) ** 2 / 2
    lam = sigma[-1]
    if lam <= mpf(10) ** -40 * sigma[0]:
        return False
    x = [singular(one)[0] for one in X]
    o, V = [singular(W)[0] for W in W_O], [singular(W)[0] for W in W_V]
    c = [xi * mpmath.sqrt(2 * tokens / (e_0 * tau)) for xi in x]
    e = [2 * mpmath.sqrt(tokens) * xi**2 / tau for xi in x]
    L_A = max(o) * mpmath.sqrt(sum((ci * xi) ** 2 for ci, xi in zip(c, x, strict=True)))
    R = lam / (2 * L_A)
    u = [[xi * (V[h] + R) * o[h] for h in range(heads)] for xi in x]
    b2 = sum((ci * one) ** 2 for ci, row in zip(c, u, strict=True) for one in row)
    E = mpmath.sqrt(sum(max((ei * one) ** 2 for one in row) for ei, row in zip(e, u, strict=True)))
    half = (E + mpmath.sqrt(E**2 + 4 * L_A**2)) / 2
    L = (sigma[0] + R * L_A) ** 2 + b2 + mpmath.sqrt(2 * F_0) * half
    return bool(lam**2 * R**2 / 32 >= F_0 and 0 < step * L <= 1)


# -------------------------------------------------------------------------------------- qin2025


def smooth_leaky(x, g):
    """Section 1: g x + (1 - g) log((1 + e^x) / 2)."""
    return np.frompyfunc(lambda t: g * t + (1 - g) * mpmath.log((1 + mpmath.exp(t)) / 2), 1, 1)(x)


def qin_layers(x, weights, g):
    """A, Phi and H of one block with both residuals, for one sequence."""
    W_Q, W_K, W_V, W_1, W_2 = weights
    S = softmax((x @ W_Q) @ (x @ W_K).T / mpmath.sqrt(W_Q.shape[1]))
    A = x + S @ x @ W_V
    Phi = smooth_leaky(A @ W_1, g)
    return A, Phi, A + Phi @ W_2


def plus(x):
    return max(x, mpf(0))


def theorem_d(X, Y, weights, g, radius, step, *, layers=True):
    """Section 4, one block, sharp, best route, on the ball of a radius; D0 without the layers."""
    n, rho, C_s, b_phi = X.shape[1], radius, mpmath.sqrt(2) / 4, (1 - g) / 4
    block, W_U = [W[0] for W in weights[:5]], weights[5]
    seen, root_k = [qin_layers(x, block, g) for x in X], mpmath.sqrt(block[0].shape[1])
    q, k, v, w1, w2 = (singular(W)[0] + rho for W in block)
    u, bends = singular(W_U)[0] + rho, []
    for x, (A, Phi, _) in zip((singular(x)[0] for x in X), seen, strict=True):
        z1, z2 = x**2 * mpmath.sqrt(q**2 + k**2) / root_k, x**2 / root_k
        a1 = z1 * x * v / 2 + mpmath.sqrt(n) * x
        a2 = v * x * (z2 / 2 + C_s * z1**2) + z1 * x
        p1 = a1 * w1 + singular(A)[0] + a1 * rho
        f2 = a2 * w1 + 2 * a1 + b_phi * p1**2
        h1 = a1 + p1 * w2 + singular(Phi)[0] + p1 * rho
        bends.append((a1, p1, h1, a2 + f2 * w2 + 2 * p1))
    a1, f1, h1, h2 = (norm(part) for part in zip(*bends, strict=True))
    A, Phi, H = (np.concatenate(part) for part in zip(*seen, strict=True))
    beta = mpmath.sqrt((h1 * u) ** 2 + (singular(H)[0] + h1 * rho) ** 2)
    L = (h2 * u + mpmath.sqrt((h2 * u) ** 2 + 4 * h1**2)) / 2
    J = jacobian(lambda *w: qin(X, w, g), weights)
    alpha = plus(smallest(J) - L * rho)
    if layers:
        s_U = plus(smallest(W_U.T) - rho)
        s_2U = plus(smallest((block[4] @ W_U).T) - rho * (u - rho + w2 - rho + rho))
        routes = (plus(smallest(H) - h1 * rho), plus(smallest(Phi) - f1 * rho) * s_U,
                  g * plus(smallest(A) - a1 * rho) * s_2U)  # fmt: skip
        alpha = max(alpha, norm(routes))
    else:
        beta = singular(J)[0] + L * rho
    r = norm(qin(X, weights, g) - np.ravel(Y))
    wide = alpha > 0 and r <= rho * alpha / 2
    return bool(wide and step * beta**2 <= 0.5 and step * L * r <= 0.5)


def smallest(A):
    """Smallest singular value of a wide matrix; 0 for a tall one."""
    return singular(A)[-1] if A.shape[0] <= A.shape[1] else mpf(0)


# ------------------------------------------------------------------------ outputs of four papers


def wu(X, weights, scales):
    W_Q, W_K, W_V, w_O = weights
    return wu_features(X, W_Q, W_K, W_V, *scales) @ w_O


def song(X, weights):
    """Section 1 of song2024.md, softmax."""
    W_Q, W_K, W_V, W_O = weights
    root = mpmath.sqrt(W_Q.shape[-1])
    heads = list(zip(W_Q, W_K, W_V, W_O, strict=True))
    return np.ravel([sum(softmax((x @ Q) @ (x @ K).T / root) @ x @ V @ Z for Q, K, V, Z in heads)
                     for x in X])  # fmt: skip


def arda(X, queries, weights):
    """Section 1 of arda2026.md, tanh."""
    tanh, (W, U, c) = np.frompyfunc(mpmath.tanh, 1, 1), weights
    heads = [[softmax(x @ w @ q) @ x for w in W] for x, q in zip(X, queries, strict=True)]
    hidden = tanh(np.einsum("nhd,hd->nh", np.array(heads), U, optimize=False))
    return hidden @ c / mpmath.sqrt(len(c))


def qin(X, weights, g):
    block = [W[0] for W in weights[:5]]
    return np.concatenate([(qin_layers(x, block, g)[2] @ weights[5]).ravel() for x in X])


def jacobian(outputs, weights, trained=None):
    """By central differences with 200 digits: one column for each weight of the trained blocks."""
    columns = []
    with mpmath.workdps(200):
        h = mpf(10) ** -60
        for k, W in enumerate(weights):
            for at in np.ndindex(W.shape) if trained is None or k in trained else ():
                ends = []
                for shift in (h, -h):
                    moved = [w.copy() for w in weights]
                    moved[k][at] = W[at] + shift
                    ends.append(np.ravel(outputs(*moved)))
                columns.append((ends[0] - ends[1]) / (2 * h))
    return np.array(columns).T


def kernel_regime(J, ratio, step, drift):
    """What the page asks: lambda_min > 0, gamma lambda_max < 2, q + gamma Delta < 1.

    ``ratio`` is twice the weight of the loss, ``drift`` the measured Delta.
    """
    sigma = singular(J)
    least, most = ratio * smallest(J) ** 2, ratio * sigma[0] ** 2
    if smallest(J) <= mpf(10) ** -40 * sigma[0]:
        return False
    q = max(abs(1 - step * least), abs(1 - step * most))
    return bool(step * most < 2 and q + step * drift < 1)


# --------------------------------------------------------------------------------------- a setup


def outputs_of(setup):
    """The outputs as a function of the weights; None where a unit sits on its kink."""
    X, paper = exact(setup.inputs), setup.paper.key
    if paper == "wu2023":
        scales = [mpf(float(x)) for x in setup.setting.scales()]
        W_Q, W_K, W_V, _ = (exact(W) for W in setup.params0)
        hidden = [softmax(scales[0] * (x @ W_K.T @ W_Q @ x.T).T) @ x @ W_V.T for x in X]
        return None if any(x == 0 for x in np.ravel(hidden)) else lambda *w: wu(X, w, scales)
    if paper == "song2024":
        return lambda *w: song(X, w)
    if paper == "arda2026":
        return lambda *w: arda(X, exact(setup.problem.X)[:, -1], w)
    return lambda *w: qin(X, w, mpf(float(setup.setting.slope)))


def kernel_certified(setup, step, drift):
    """Whether the hypotheses of kernel_regime are true of one start; None: not defined."""
    outputs = outputs_of(setup)
    if outputs is None or not np.isfinite(drift):
        return None
    weights = [exact(W) for W in setup.params0]
    moving = [k for k, name in enumerate(setup.params0._fields) if name in setup.trained]
    J = jacobian(outputs, weights, moving)
    return kernel_regime(J, 2 * mpf(float(setup.squares_weight)), mpf(step), mpf(float(drift)))


def certified(theorem, setup, step, constants):
    """Whether all hypotheses of a theorem are true of one start; None: not defined.

    Of the certificate's constants only free choices and measurements are used.
    """
    if theorem.endswith("kernel_regime"):
        return kernel_certified(setup, step, constants["Delta"])
    X, targets = exact(setup.inputs), exact(setup.targets)
    weights = [exact(W) for W in setup.params0]
    if theorem.startswith("qin2025"):
        slope, radius = mpf(float(setup.setting.slope)), mpf(float(constants["radius"]))
        layers = theorem == "qin2025.theorem_d"
        return theorem_d(X, targets, weights, slope, radius, mpf(step), layers=layers)
    if theorem == "song2024.theorem_2":
        return theorem_2(X, targets, weights, mpf(float(setup.setting.form.bandwidth)), mpf(step))
    scales = [mpf(float(x)) for x in setup.setting.scales()]
    ratio = max(mpf(float(setup.step_ratios[name])) for name in ("W_Q", "W_K", "W_V"))
    judge = {"wu2023.theorem_a": theorem_a, "wu2023.theorem_b": theorem_b}[theorem]
    return judge(X, targets, weights, scales, ratio, mpf(step))
