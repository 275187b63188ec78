"""Hypotheses of three theorems at 60 digits, written from the pages of their theory alone.

`digits` runs the jaxpr that the enclosures run, so it checks arithmetic and not formulas. Here the
conditions are written out once more, in mpmath, from docs/theory/wu2023.md (sections 1, 3, 4, 6)
and docs/theory/song2024.md (sections 1, 2, 4). Nothing of the papers' code is called.
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


# --------------------------------------------------------------------------------------- a setup


def certified(theorem, setup, step):
    """Whether all hypotheses of a theorem are true of one start."""
    X, targets = exact(setup.inputs), exact(setup.targets)
    weights = [exact(W) for W in setup.params0]
    if theorem == "song2024.theorem_2":
        return theorem_2(X, targets, weights, mpf(float(setup.setting.form.bandwidth)), mpf(step))
    scales = [mpf(float(x)) for x in setup.setting.scales()]
    ratio = max(mpf(float(setup.step_ratios[name])) for name in ("W_Q", "W_K", "W_V"))
    judge = {"wu2023.theorem_a": theorem_a, "wu2023.theorem_b": theorem_b}[theorem]
    return judge(X, targets, weights, scales, ratio, mpf(step))
