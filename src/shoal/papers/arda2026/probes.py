"""What can be recorded along a run of arda2026, beside what every model has.

`path` compares every iterate with one point of the set, the *comparator*: a teacher's transport at
the student's heads, or the best linearised fit. The theorems compare runs with the same point.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import trees
from shoal._typing import Any, Array, Float, Params, Probe
from shoal.diagnostics.layers import attention_entropy
from shoal.lab.setup import Setup
from shoal.models import predict
from shoal.papers.arda2026 import data, heads, teachers
from shoal.papers.arda2026.heads import Weights
from shoal.verified.enclose import chosen

ON_THE_BOUNDARY = 1e-6
"""Relative distance from the radius below which a head counts as being on it."""

SENTENCES = {
    "scaled_movement": "Largest movement of a head times sqrt(heads), block by block.",
    "linearisation": "Distance of the outputs from the linearised model's: largest, and rms.",
    "jacobian": "Norm of the output's gradient, block by block: the largest over samples.",
    "boundary": "Share of heads on the boundary of the set, block by block.",
    "covariance": "Trace and norm of the tokens' covariance under attention: means over heads, and "
    "the largest norm.",
    "attention_entropy": "Mean entropy of attention over log(tokens): 1 is uniform, 0 one-hot.",
    "path": "What theorems A and B ask of every iterate: errors, gradients, distances.",
}


def own_probes(setup: Setup) -> dict[str, Probe]:
    """The paper's own probes for one start."""
    found: dict[str, Probe] = {
        "scaled_movement": functools.partial(teachers.norms, setup.params0),
        "linearisation": functools.partial(_linearisation, setup),
        "jacobian": functools.partial(_jacobian, setup),
    }
    if setup.setting.model == "heads":
        X, q = heads.split(setup.inputs)
        found |= {
            "boundary": functools.partial(_boundary, setup),
            "covariance": functools.partial(_covariance, setup.inputs),
            "attention_entropy": attention_entropy(  # a sequence and its query as one array
                lambda params, x: heads.attention(params.W, x[:-1], x[-1]),
                jnp.concatenate([X, q[:, None]], axis=1),
            ),
        }
        if setup.setting.output_scale == 1:
            found["path"] = path(setup)
    return found


def _boundary(setup: Setup, params: Weights) -> dict[str, Float[Array, ""]]:
    limits, near = dict(zip("cUW", setup.setting.limits, strict=True)), 1 - ON_THE_BOUNDARY
    moved = teachers.movement(setup.params0, params).items()
    return {name: jnp.mean(rows >= limits[name] * near, dtype=float) for name, rows in moved}


def _linearisation(setup: Setup, params: Params) -> dict[str, Float[Array, ""]]:
    network, params0, inputs = setup.network, setup.params0, setup.inputs
    moved = teachers.linearised(network, params0, inputs, params)
    error = predict(network, params, inputs) - predict(network, params0, inputs) - moved
    return {"sup": jnp.max(jnp.abs(error)), "rms": jnp.sqrt(jnp.mean(error**2))}


def _jacobian(setup: Setup, params: Params) -> dict[str, Float[Array, ""]]:
    setting = setup.setting
    if setting.model == "heads":
        squares = heads.output_gradients(params, setup.inputs, setting.sigma)
        return {k: jnp.sqrt(jnp.max(s)) / setting.output_scale for k, s in squares.items()}
    J = jax.vmap(jax.jacrev(setup.network.apply), in_axes=(None, 0))(params, setup.inputs)
    return {name: jnp.max(teachers.row_norms(block)) for name, block in trees.blocks(J).items()}


def _covariance(inputs: Any, params: Weights) -> dict[str, Float[Array, ""]]:
    def one(sample: Any) -> tuple[Array, Array, Array]:
        x, q = heads.split(sample)
        alpha = heads.attention(params.W, x, q)
        a = alpha @ x
        M = jnp.einsum("mt,td,te->mde", alpha, x, x) - a[:, :, None] * a[:, None, :]
        size = jnp.sqrt(jnp.sum(M**2, axis=(1, 2)))
        return jnp.mean(jnp.trace(M, axis1=1, axis2=2)), jnp.mean(size), jnp.max(size)

    trace, size, largest = jax.lax.map(one, inputs)
    return {"trace": jnp.mean(trace), "norm": jnp.mean(size), "largest": jnp.max(largest)}


class Comparator(NamedTuple):
    """The point that a run is compared with."""

    point: Weights  # Inside the set.
    norms: dict[str, Array]  # Of its transport, before it was projected into the set.


INSIDE = 1 - 2.0**-40
"""The comparator is moved towards the start by this factor, so that it is surely in the set."""


def comparator(setup: Setup) -> Comparator:
    """The teacher's transport at the student's heads, or the best linearised fit: a free choice."""
    return Comparator(*chosen(_comparator)(setup))


def _comparator(setup: Setup) -> tuple[Weights, dict[str, Array]]:
    setting, params0, inputs = setup.setting, setup.params0, setup.inputs
    if setting.comparator != "teacher":
        K = sum(heads.tangent_kernels(inputs, setting.sigma, block=setting.block)(params0).values())
        top = jnp.linalg.eigvalsh(K)[-1] * (1 + 1e-6)
        y, limits = setup.targets, setting.limits
        point = teachers.best_fit(setup.network, params0, inputs, y, limits, top)
    elif setting.labels == "dual":
        point = teachers.moved(params0, data.dual_transport(setting, params0, inputs))
    else:
        point = teachers.moved(params0, data.teacher(setting, params0))
    inside = teachers.nearest(params0, point, setting.limits)
    inside = jax.tree.map(lambda W, V: W + INSIDE * (V - W), params0, inside)
    return inside, teachers.norms(params0, point)


PATH = ("error", "gradient", "linearisation", "linearisation_sup", "distance", "descent",
        "steepness")  # fmt: skip


def path(setup: Setup) -> Probe:
    """What the path forms of the theorems ask of every iterate, in float64."""
    setup = setup.astype("float64")
    network, params0, inputs, y = setup.network, setup.params0, setup.inputs, setup.targets
    target = comparator(setup).point  # computed once, outside of the loop over steps

    def probe(params: Weights) -> dict[str, Array]:
        params = trees.cast(params, "float64")
        difference = jax.tree.map(jnp.subtract, params, target)
        f = predict(network, params, inputs)
        e = teachers.along(network, params, inputs, difference) - (f - y)
        lin = f - teachers.linearised(network, params0, inputs, params)
        squares = heads.output_gradients(params, inputs, setup.setting.sigma)
        slope = jax.grad(setup.risk)(params)
        return {
            "error": jnp.sqrt(jnp.mean(e**2)),
            "gradient": jnp.max(squares["W"] + squares["U"] + squares["c"]),
            "linearisation": jnp.sqrt(jnp.mean(lin**2)),
            "linearisation_sup": jnp.max(jnp.abs(lin)),
            "distance": trees.norm(difference) ** 2,
            "descent": trees.dot(slope, difference),
            "steepness": trees.norm(slope) ** 2,
        }

    return probe
