"""A plain run, shared starts of wu2023, and its model in plain NumPy loops: our witnesses."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.lab.engine import per_start
from shoal.lab.setting import Three
from shoal.lab.setup import Setup, paper_setup
from shoal.papers.wu2023.model import PAPER, Scales, Weights, Wu
from shoal.problems import Problem
from shoal.training import Trajectory, record, segment


def run(method, risk, params0, *, num_steps, every=1, probes=None, train=None) -> Trajectory:
    """Train in one segment, with nothing compiled: what the engine is compared with."""
    options = {"num_steps": num_steps, "every": every, "probes": probes, "train": train}
    walked = segment(method, risk, params0, **options)
    last = record(risk, probes, walked.params)
    joined = jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), walked.records, last)
    risks = joined.pop("risk")
    return Trajectory(jnp.arange(len(risks)) * every, risks, joined, walked.params)


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


def numpy_descent(weights, X, y, scales, step_size, num_steps, step_ratios):
    """Every risk of gradient descent, and the last weights."""
    weights = {name: np.array(W) for name, W in weights.items()}
    risks = []
    for _ in range(num_steps):
        f, _ = numpy_forward(weights, X, scales)
        risks.append(0.5 * np.sum((f - y) ** 2))
        gradient = numpy_gradient(weights, X, y, scales)
        weights = {
            k: W - step_size * step_ratios.get(k, 1.0) * gradient[k] for k, W in weights.items()
        }
    f, _ = numpy_forward(weights, X, scales)
    return np.array([*risks, 0.5 * np.sum((f - y) ** 2)]), weights


# ------------------------------------------------------------------------------------------ starts

SMALL = {"num_samples": 4, "num_tokens": 3, "dim": 6, "width": 16, "num_steps": 10}


def small(seeds=(0,), **changes) -> Setup:
    """A small setup of wu2023, with an axis of seeds."""
    return paper_setup(PAPER, SMALL | changes, seeds=seeds)


def start(seed=0, **changes) -> Setup:
    """One start of a small setup, as compiled code sees it."""
    return as_seen(small((seed,), **changes))


def as_seen(setup: Setup) -> Setup:
    """The first run of a setup, all numbers JAX arrays."""
    return jax.tree.map(jnp.asarray, setup.one())


def weights_of(setup: Setup) -> dict:
    """Weights of the first run by name, as NumPy arrays."""
    return {name: np.asarray(W[0]) for name, W in setup.params0._asdict().items()}


class Handmade(Wu):
    """The model with any constants."""

    constants: Three = (1.0, 1.0, 1.0)  # Scale of scores, of the output, of pooling.

    def scales(self) -> Scales:
        return Scales(*self.constants)


def handmade(problem: Problem, params0: Weights, constants=(1.0, 1.0, 1.0), **values) -> Setup:
    """A setup from arrays and constants."""
    N, n, d = problem.X.shape
    sizes = {"num_samples": N, "num_tokens": n, "dim": d, "width": len(params0.w_O)}
    setting = Handmade(**sizes, constants=tuple(map(float, constants)), **values)
    stacked = jax.tree.map(lambda W: np.asarray(W)[None], params0)
    return Setup(setting, jax.tree.map(np.asarray, problem), stacked, (0,), from_init=False)


def numbers(setup: Setup, function, *extra) -> dict:
    """What a function of one start returns for the first run."""
    return jax.tree.map(lambda x: x[0], per_start(setup, function, *extra))
