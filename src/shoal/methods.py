"""Training rules: pairs of pure functions. New ones compose instead of growing flags.

A method sees the trained blocks only, as a dict from name to array; what is frozen never enters,
so its gradient is never computed.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Callable, Int, PRNGKeyArray, Risk, Scalar
from shoal.errors import InputError
from shoal.trees import norm

FLOW_RTOL, FLOW_ATOL = 1e-9, 1e-12
"""Local error allowed to the integrator of gradient flow."""

State = Any
Blocks = dict[str, Any]


class Method(NamedTuple):
    """One training rule: a pair of pure functions."""

    init: Callable[[Blocks], State]
    step: Callable[[Risk, Blocks, State], tuple[Blocks, State]]


Ratios = Mapping[str, Scalar] | None
"""Step of each block over the step size, by name; a block not named has ratio 1."""


def _along(init: Callable, update: Callable, step_size: Scalar, step_ratios: Ratios) -> Method:
    r"""The update $W_* \gets W_* - \gamma r_* D_*$; ``update`` makes $D$ of the gradient."""
    ratios = step_ratios or {}

    def step(risk: Risk, blocks: Blocks, state: State) -> tuple[Blocks, State]:
        direction, state = update(jax.grad(risk)(blocks), state, blocks)
        moved = {
            name: W - jnp.asarray(step_size * ratios.get(name, 1.0), W.dtype) * direction[name]
            for name, W in blocks.items()
        }
        return moved, state

    return Method(init, step)


def gradient_descent(step_size: Scalar, step_ratios: Ratios = None) -> Method:
    r"""Simultaneous update $W_* \gets W_* - \gamma r_* \nabla_{W_*}\ell$."""
    return _along(lambda _: (), lambda slope, state, _: (slope, state), step_size, step_ratios)


def gradient_flow(
    step_size: Scalar, step_ratios: Ratios = None, *, max_substeps: int = 2000
) -> Method:
    r"""The flow $\dot W_* = -r_* \nabla_{W_*}\ell$, followed for time ``step_size`` per step.

    Dormand-Prince 5(4) with error control (diffrax). Where the flow slides along a kink of ReLU no
    step is small enough for the error estimate, so substeps are not cut below
    ``step_size / max_substeps``; the error there is of that order. Keep
    ``step_size * lambda_max`` below about 100, or the tolerance is not met either. The true flow
    never raises the risk: if a step did, the parameters become NaN, and a failed integration is
    visible in the trajectory. The state counts substeps.
    """
    import diffrax  # a second to import: only when used

    ratios, shortest = step_ratios or {}, step_size / max_substeps
    controller = diffrax.PIDController(FLOW_RTOL, FLOW_ATOL, dtmin=shortest, force_dtmin=True)

    def step(risk: Risk, blocks: Blocks, state: State) -> tuple[Blocks, State]:
        def velocity(t: Any, y: Blocks, args: Any) -> Blocks:  # noqa: ARG001
            gradient = jax.grad(risk)(y)
            return {name: -ratios.get(name, 1.0) * gradient[name] for name in y}

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(velocity), diffrax.Dopri5(), t0=0.0, t1=step_size, dt0=None, y0=blocks,
            stepsize_controller=controller, max_steps=20 * max_substeps, throw=False,
        )  # fmt: skip
        end = jax.tree.map(lambda W: W[-1], solution.ys)
        (before, slope), (after, end_slope) = (jax.value_and_grad(risk)(y) for y in (blocks, end))
        # what the tolerance on the weights means for the risk, which matters near its floor
        blur = 100 * (FLOW_RTOL * norm(end) + FLOW_ATOL) * (norm(slope) + norm(end_slope))
        failed = solution.result != diffrax.RESULTS.successful
        failed |= ~(after <= before + 1e-6 * jnp.abs(before) + blur)
        moved = jax.tree.map(lambda W: jnp.where(failed, jnp.nan, W), end)
        return moved, state + solution.stats["num_steps"]

    return Method(lambda _: jnp.zeros((), int), step)


def adam(step_size: Scalar, step_ratios: Ratios = None) -> Method:
    r"""Adam (Kingma & Ba 2015), $\beta=(0.9, 0.999)$, $\epsilon=10^{-8}$, by optax."""
    import optax

    moments = optax.scale_by_adam()
    return _along(moments.init, moments.update, step_size, step_ratios)


def from_optax(transformation: Any) -> Callable[..., Method]:
    """Any optax gradient transformation as a method; its step size is its own."""

    def make(_: Any = None, step_ratios: Ratios = None) -> Method:
        return _along(transformation.init, transformation.update, -1.0, step_ratios)

    return make


_zeros = functools.partial(jax.tree.map, jnp.zeros_like)


def subset(key: PRNGKeyArray, total: int, size: int) -> Int[Array, " size"]:
    """A random subset of ``range(total)``, all equally likely, by R. Floyd's algorithm.

    Its work does not grow with ``total``; a permutation, as in ``jax.random.choice``, would take
    longer than the training step itself.
    """
    drawn = jax.random.randint(key, (size,), 0, jnp.arange(total - size + 1, total + 1))

    def insert(i: Int[Array, ""], chosen: Int[Array, " size"]) -> Int[Array, " size"]:
        taken = jnp.any((chosen == drawn[i]) & (jnp.arange(size) < i))
        return chosen.at[i].set(jnp.where(taken, total - size + i, drawn[i]))

    return jax.lax.fori_loop(0, size, insert, jnp.zeros_like(drawn))


def on_batches(
    method: Method, *, num_samples: int, batch_size: int, key: PRNGKeyArray | None = None
) -> Method:
    """Give every step of a method a fresh random batch instead of all samples.

    The samples of a batch are distinct; batches are drawn independently. The method descends the
    loss of the batch: an unbiased estimate for a mean, and ``batch_size / num_samples`` times that
    for a sum. The state carries the key.
    """
    if not 1 <= batch_size <= num_samples:
        raise InputError(f"{batch_size=}: expected between 1 and {num_samples=}.")

    first = jax.random.key(0) if key is None else key

    def step(risk: Risk, blocks: Blocks, state: State) -> tuple[Blocks, State]:
        inner, key = state
        key, now = jax.random.split(key)
        rows = subset(now, num_samples, batch_size)
        blocks, inner = method.step(lambda b: risk(b, rows), blocks, inner)
        return blocks, (inner, key)

    return Method(lambda blocks: (method.init(blocks), first), step)


class Average(NamedTuple):
    """State of an averaging method: that of the method itself, and the mean of what it visited."""

    inner: State
    steps: Int[Array, ""]
    mean: Blocks


def averaging(method: Method) -> Method:
    """Take the steps of a method, and keep the mean of the points that they were taken from."""

    def init(blocks: Blocks) -> Average:
        return Average(method.init(blocks), jnp.zeros((), int), _zeros(blocks))

    def step(risk: Risk, blocks: Blocks, state: Average) -> tuple[Blocks, Average]:
        steps = state.steps + 1
        mean = jax.tree.map(lambda a, W: a + (W - a) / steps.astype(W.dtype), state.mean, blocks)
        blocks, inner = method.step(risk, blocks, state.inner)
        return blocks, Average(inner, steps, mean)

    return Method(init, step)


def onto_balls(W: Array, centre: Array, radius: Scalar) -> Array:
    """Bring each row of a block into the ball of some radius around the same row of ``centre``.

    A row is what the leading axis counts, such as a head; its norm is Euclidean over all else. The
    set is a product of balls, so the nearest point of it is the nearest point of each. Rows inside
    stay exactly as they are.

    >>> onto_balls(jnp.array([[3.0, 4.0], [0.1, 0.0]]), jnp.zeros((2, 2)), 1.0).round(3).tolist()
    [[0.6, 0.8], [0.1, 0.0]]
    """
    moved = W - centre
    length = jnp.sqrt(jnp.sum(moved**2, axis=tuple(range(1, W.ndim)), keepdims=True))
    share = jnp.asarray(radius, W.dtype) / jnp.where(length > 0, length, 1)
    return jnp.where(length > radius, centre + share * moved, W)


def projected(method: Method, radii: Mapping[str, Scalar]) -> Method:
    """After every step, bring each row of a block back into a ball around where it started.

    ``radii`` holds the radius of the balls of each block (`onto_balls`).
    """

    def step(risk: Risk, blocks: Blocks, state: State) -> tuple[Blocks, State]:
        inner, start = state
        blocks, inner = method.step(risk, blocks, inner)
        inside = {k: onto_balls(W, start[k], radii[k]) for k, W in blocks.items()}
        return inside, (inner, start)

    return Method(lambda blocks: (method.init(blocks), blocks), step)


def decaying(method: Method, rate: Scalar, *, to_start: bool) -> Method:
    r"""Descend the risk plus $\tfrac\lambda2\lVert\theta-\theta_*\rVert^2$, $\lambda$ the rate.

    $\theta_*$ is the start, or zero, which is plain weight decay.
    """

    def step(risk: Risk, blocks: Blocks, state: State) -> tuple[Blocks, State]:
        inner, centre = state

        def penalised(b: Blocks, *rows: Array) -> Array:
            distance = sum(jnp.sum((W - centre[name]) ** 2) for name, W in b.items())
            return risk(b, *rows) + 0.5 * rate * distance

        blocks, inner = method.step(penalised, blocks, inner)
        return blocks, (inner, centre)

    return Method(lambda b: (method.init(b), b if to_start else _zeros(b)), step)


METHODS: dict[str, Callable[..., Method]] = {
    "gd": gradient_descent,
    "flow": gradient_flow,
    "sgd": gradient_descent,  # on batches
    "adam": adam,
}
STOCHASTIC = ("sgd", "adam")
BATCH = 32  # samples in a step of a stochastic method, unless the setting says otherwise
