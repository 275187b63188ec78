"""Probes: what can be recorded along a run. These work for every model; papers add their own.

A probe is a function of the parameters, made from one start. `SENTENCES` says what each is; a
probe whose result has parts is recorded under one name for each (``movement_W_Q``). A user's own is
a function that makes it, ``setup -> (params -> value)``, given to `shoal.train` with a name.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.diagnostics import dynamics, kernels
from shoal.errors import InputError, nearest
from shoal.lab.setup import Setup
from shoal.linalg import eigenvalues
from shoal.models import empirical_risk, predict

ITERATES = "params"
"""The probe that records the trained blocks themselves."""

SENTENCES = {
    "movement": "Distance of each block from its start, relative to the block's norm.",
    "distance": "Distance of all parameters from their start.",
    "gradient_norm": "Norm of the gradient, block by block.",
    "pl_ratio": "Polyak-Lojasiewicz ratio: squared gradient norm over twice the risk.",
    "sharpness": "Largest eigenvalue of the Hessian (Lanczos), with its residual.",
    "curvature": "Smallest and largest eigenvalue of the Hessian over the trained blocks.",
    "stationarity": "Solved, slow, stuck or at a saddle: gradient, Hessian, distance to the floor.",
    "edge_of_stability": "Sharpness times step size over 2; above 1 gradient descent is unstable.",
    "gradient_noise": "Noise of one sample's gradient: trace of its covariance over |gradient|^2.",
    "kernel_lambda_min": "Smallest eigenvalue of the tangent kernel.",
    "kernel_lambda_max": "Largest eigenvalue of the tangent kernel.",
    "kernel_extremes": "Both ends of the tangent kernel's spectrum, residuals and convergence.",
    "kernel_condition": "Largest over smallest eigenvalue of the tangent kernel.",
    "kernel_effective_rank": "Exponential of the entropy of the tangent kernel's eigenvalues.",
    "residual_spectrum": "Share of the residual by decade of the tangent kernel's eigenvalues.",
    "kernel_eigenvalues": "All eigenvalues of the tangent kernel.",
    "kernel_block_eigenvalues": "All eigenvalues of each block's tangent kernel.",
    "kernel_share": "Share of each block in the trace of the tangent kernel.",
    "kernel_drift": "Change of the tangent kernel since the start, relative (Frobenius norm).",
    "kernel_distance": "Change of the tangent kernel since the start (operator norm).",
    "plateau": "Which of the known rests of training (0, 1, ..) is nearest to the risk.",
    "test_risk": "Risk on held-out data.",
    ITERATES: "The trained blocks themselves.",
}


def generic_probes(setup: Setup) -> dict[str, Any]:
    """The probes that every model has, for one start."""
    risk, fast, train = setup.risk, setup.fast_risk, setup.trained
    best = setup.setting.lowest(setup.problem)
    sharp = dynamics.sharpness(risk, jax.random.key(0))
    found: dict[str, Any] = {
        "movement": dynamics.movement(setup.params0),
        "distance": dynamics.distance(setup.params0),
        "gradient_norm": dynamics.gradient_norm(fast),
        "pl_ratio": dynamics.pl_ratio(fast, floor=0.0 if best is None else best),
        "sharpness": sharp,
        "curvature": dynamics.curvature(risk, train=train),
    }
    if (step := setup.step_size) is not None:
        found["edge_of_stability"] = lambda params: sharp(params)["value"] * step / 2
    if (floor := setup.setting.floor(setup)) is not None:
        found["stationarity"] = lambda params: dynamics.stationarity(
            risk, floor, train=train, scale=risk(setup.params0)
        )(params)
    if (rests := setup.setting.rests(setup.problem)) is not None:
        found["plateau"] = lambda params: jnp.argmin(jnp.abs(rests - risk(params)))
    if setup.has_samples:
        found |= _sample_probes(setup)
    if setup.held_out is not None:
        found["test_risk"] = empirical_risk(setup.network, setup.held_out, setup.setting.loss)
    return found


def _sample_probes(setup: Setup) -> dict[str, Any]:
    """Probes of models whose risk is a loss of outputs on samples."""
    network, inputs, kernel = setup.network, setup.inputs, setup.tangent_kernel()
    weight = setup.squares_weight
    scale = 1.0 if weight is None else 2 * weight
    ratios = {name: scale * ratio for name, ratio in setup.step_ratios.items()}
    found: dict[str, Any] = {
        "kernel_extremes": kernels.kernel_extremes(network, inputs, ratios, kernel=kernel)
    }
    if not network.coupled:
        count = len(jax.tree.leaves(inputs)[0])
        found["gradient_noise"] = dynamics.gradient_noise(setup.risk, count, setup.trained)
    return found if kernel is None else found | _kernel_probes(setup, kernel)


def _kernel_probes(setup: Setup, kernel: Callable) -> dict[str, Any]:
    parts = setup.setting.block_kernels(setup)
    spectrum = kernels.kernel_eigenvalues(kernel)

    def by_block(params: Any) -> dict[str, Any]:
        return {name: eigenvalues(K) for name, K in parts(params).items()}

    def residual(params: Any) -> Any:
        """The gradient of the loss in the outputs: a multiple of the errors, for squares."""
        outputs = predict(setup.network, params, setup.inputs)
        return jax.grad(lambda f: setup.setting.loss(f, setup.targets))(outputs).ravel()

    return {
        "kernel_lambda_min": lambda params: spectrum(params)[0],
        "kernel_lambda_max": lambda params: spectrum(params)[-1],
        "kernel_condition": lambda params: kernels.condition(spectrum(params)),
        "kernel_effective_rank": lambda params: kernels.effective_rank(spectrum(params)),
        "kernel_eigenvalues": spectrum,
        "kernel_block_eigenvalues": by_block,
        "kernel_share": kernels.kernel_shares(parts),
        "residual_spectrum": kernels.residual_spectrum(kernel, residual),
        # the kernel at the start is computed where the probe is, so unused probes cost nothing
        "kernel_drift": lambda params: kernels.kernel_drift(kernel, setup.params0)(params),
        "kernel_distance": lambda params: kernels.kernel_distance(kernel, setup.params0)(params),
    }


def all_probes(setup: Setup) -> dict[str, Any]:
    """Every probe of one start by name: those of every model, the paper's, and the user's."""
    found = generic_probes(setup) | setup.setting.probes(setup) | {ITERATES: setup.moving}
    return found | {name: make(setup) for name, make in setup.own_probes}


def chosen(setup: Setup, names: Iterable[str]) -> dict[str, Any]:
    """Some probes of one start; ``name@50`` is the probe called ``name``."""
    wanted = [name.partition("@")[0] for name in names]
    known = all_probes(setup) if wanted else {}
    for name in wanted:
        if name not in known:
            raise unknown(setup, name, known)
    return {name: known[name] for name in wanted}


def unknown(setup: Setup, name: str, known: Iterable[str]) -> InputError:
    """The error for a probe that a model does not have, naming the nearest."""
    others = [k for k in known if k != ITERATES]
    return InputError(f"{setup.name} has no probe {name!r}; {nearest(name, others)}")


def probe_names(setup: Setup) -> tuple[str, ...]:
    """What can be recorded, without computing anything."""
    names = setup.abstractly(lambda one: tuple(all_probes(one)))
    return tuple(name for name in names if name != ITERATES)


def sentence(setup: Setup, name: str) -> str:
    """What a probe is, in a sentence."""
    return setup.setting.probe_sentences.get(name, SENTENCES.get(name, ""))


def parts_of(
    setup: Setup, names: Iterable[str], recorded: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """For each probe the names of its parts, as in ``movement_W_Q``; none if it has no parts.

    If the names of what was ``recorded`` are given, they usually say it. Otherwise every probe is
    traced again.
    """
    wanted = [name.partition("@")[0] for name in names]
    owners = {text: [n for n in wanted if f"{text}_".startswith(f"{n}_")] for text in recorded}
    if owners and all(len(some) == 1 for some in owners.values()):
        known: dict[str, tuple[str, ...]] = dict.fromkeys(wanted, ())
        for text, (name,) in owners.items():
            known[name] += (text.removeprefix(f"{name}_"),) if text != name else ()
        return known

    def parts(one: Setup) -> dict[str, tuple[str, ...]]:
        shapes = {k: jax.eval_shape(f, one.params0) for k, f in chosen(one, wanted).items()}
        return {name: tuple(x) if isinstance(x, dict) else () for name, x in shapes.items()}

    return setup.abstractly(parts)
