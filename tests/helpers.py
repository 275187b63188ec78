"""Shared problems, and the model written again in plain NumPy loops: our independent witness."""

import jax
import numpy as np

from shoal.papers import wu2023
from shoal.papers.wu2023.encoder import Scales, Weights
from shoal.problems import Problem


def numpy_forward(weights: dict, X: np.ndarray, scales: Scales):
    """Outputs and features, one token at a time."""
    F = np.zeros((len(X), len(weights["w_O"])))
    for n, x in enumerate(X):
        for i in range(len(x)):
            scores = np.array(
                [
                    scales.score * (weights["W_Q"] @ x[i]) @ (weights["W_K"] @ x[j])
                    for j in range(len(x))
                ]
            )
            b = np.exp(scores - scores.max())
            b /= b.sum()
            F[n] += scales.output * scales.pool * np.maximum(weights["W_V"] @ (b @ x), 0)
    return F @ weights["w_O"], F


def numpy_gradient(weights: dict, X: np.ndarray, y: np.ndarray, scales: Scales) -> dict:
    """Gradient of half the sum of squares, from the chain rule written out."""
    f, F = numpy_forward(weights, X, scales)
    e = f - y
    total = {name: np.zeros_like(W) for name, W in weights.items()}
    total["w_O"] = F.T @ e
    for n, x in enumerate(X):
        for i in range(len(x)):
            scores = scales.score * (x @ weights["W_K"].T) @ (weights["W_Q"] @ x[i])
            b = np.exp(scores - scores.max())
            b /= b.sum()
            u = b @ x
            back = e[n] * scales.output * scales.pool * weights["w_O"] * (weights["W_V"] @ u > 0)
            total["W_V"] += np.outer(back, u)
            to_b = x @ (weights["W_V"].T @ back)
            to_scores = scales.score * (b * to_b - b * (b @ to_b))
            total["W_Q"] += np.outer(weights["W_K"].T.T @ (x.T @ to_scores), x[i])
            total["W_K"] += np.outer(weights["W_Q"] @ x[i], to_scores @ x)
    return total


def numpy_descent(weights, X, y, scales, step_size, num_steps, speeds):
    """Every risk of gradient descent, and the last weights."""
    weights = {name: np.array(W) for name, W in weights.items()}
    risks = []
    for _ in range(num_steps):
        f, _ = numpy_forward(weights, X, scales)
        risks.append(0.5 * np.sum((f - y) ** 2))
        gradient = numpy_gradient(weights, X, y, scales)
        weights = {k: W - step_size * speeds.get(k, 1.0) * gradient[k] for k, W in weights.items()}
    f, _ = numpy_forward(weights, X, scales)
    return np.array([*risks, 0.5 * np.sum((f - y) ** 2)]), weights


def small(**changes) -> wu2023.Setting:
    values = {"num_samples": 4, "num_tokens": 3, "dim": 6, "width": 16, "num_steps": 10}
    return wu2023.Setting(**(values | changes))


def start_of(setting: wu2023.Setting, seed: int = 0) -> tuple[Problem, Weights, Scales]:
    """Problem, initial weights and constants of a setting."""
    problem = wu2023.problem(setting)
    init = wu2023.INITS[setting.init]
    return problem, init(jax.random.key(seed), wu2023.model(setting).spec), wu2023.scales(setting)
