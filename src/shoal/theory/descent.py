r"""Gradient descent on $\tfrac12\lVert f(\theta)-y\rVert^2$ in a ball: theorem D0, any model.

If on the ball of radius $\varrho$ around the start the Jacobian of all outputs satisfies
$\lVert J^\top v\rVert\ge\alpha\lVert v\rVert$, $\lVert J\rVert\le\beta$ and is
$L_J$-Lipschitz, and if $\lVert r_0\rVert\le c\,\varrho\,\alpha$ with $c=1-\frac a2-\frac b2$, then
every step $\eta\le\min(a/\beta^2,\,b/(L_J\lVert r_0\rVert))$ keeps the run in the ball and

$$\lVert r_{t+1}\rVert\le(1-c\,\eta\,\alpha^2)\lVert r_t\rVert.$$

The statement and its proof (``docs/theory/qin2025.md``) are ours.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Any, Array, Callable, Float, Scalar
from shoal.certificates import (
    Certificate,
    Equality,
    Inequality,
    NotChecked,
    not_checked,
    share_lost,
)
from shoal.linalg import sigma_min, singular_values
from shoal.training import Trajectory
from shoal.verified.enclose import chosen, enclosure_width

RADII = (-18.0, 6.0)
"""Exponents of ten between which radii are tried."""


class Ball(NamedTuple):
    """What is known of the Jacobian on a ball around the start."""

    radius: Scalar
    alpha: Scalar
    beta: Scalar
    lipschitz: Scalar


BallAt = Callable[[Float[Array, ""]], Ball]
"""The bounds as a function of the radius."""


class Split(NamedTuple):
    """Shares of the step bound: ``a`` for the size of the Jacobian, ``b`` for its change."""

    a: float = 0.5
    b: float = 0.5

    @property
    def c(self) -> float:
        """Share of the descent that is left.

        >>> Split().c, Split(1.0, 0.5).c
        (0.5, 0.25)
        """
        return 1 - self.a / 2 - self.b / 2


def around(
    J0: Float[Array, "p P"], lipschitz: Callable[[Float[Array, ""]], Scalar], *, rtol: float = 0.0
) -> BallAt:
    r"""Bounds of any model from its Jacobian at the start, $\sigma_p(J_0)-L_J\varrho$ and so on.

    ``J0`` has the columns of the weights that move, and no others. ``lipschitz`` bounds the second
    derivative of the outputs on the ball of a given radius; it is zero for a model that is linear
    in what is trained. A smallest singular value up to ``rtol`` times the largest counts as zero.

    >>> ball = around(jnp.diag(jnp.array([3.0, 2.0])), lambda radius: 0.5)(jnp.asarray(1.0))
    >>> round(float(ball.alpha), 9), round(float(ball.beta), 9)
    (1.5, 3.5)
    """
    sigma = singular_values(J0)
    low = sigma_min(J0, rtol, sigma=sigma)

    def at(radius: Float[Array, ""]) -> Ball:
        L = jnp.asarray(lipschitz(radius), float)
        moved = jnp.where(L > 0, L * radius, 0.0)  # 0 * inf is 0 here
        return Ball(radius, jnp.maximum(low - moved, 0.0), sigma[0] + moved, L)

    return at


def largest_residual(ball_at: BallAt, split: Split = Split()) -> tuple[Array, Array]:  # noqa: B008
    r"""$r_{\max}=\max_\varrho c\,\varrho\,\alpha(\varrho)$ and the radius where it is reached.

    Every radius is a valid certificate: a maximum that the grid missed makes the theorem weaker,
    not wrong.
    """
    ball, top = smallest_ball(ball_at, jnp.inf, split)
    return top, jnp.asarray(ball.radius)


GRID = 481  # Radii compared together: 20 per decade at first, then closer and closer.
TO_THE_TOP, TO_THE_EDGE = 3, 7  # Refinements of the maximum, and of the smallest radius.


def smallest_ball(
    ball_at: BallAt, residual: Scalar, split: Split = Split(),  # noqa: B008
) -> tuple[Ball, Array]:  # fmt: skip
    r"""The smallest ball with $c\,\varrho\,\alpha(\varrho)\ge\lVert r_0\rVert$, and $r_{\max}$.

    It gives the longest step and the best rate. If there is none, the ball at the maximum is
    returned.
    """
    high, _, top = _search(ball_at, residual, split)
    return ball_at(10**high), top


def _search(ball_at: BallAt, residual: Scalar, split: Split) -> tuple[Array, Array, Array]:
    """Logarithms of the smallest radius and of that of the maximum, and the maximum.

    First the maximum is narrowed down, then the first radius from the left that is wide enough;
    both in one loop, so that the bounds are compiled once.
    """
    whole = jnp.asarray(RADII[0], float), jnp.asarray(RADII[1], float)

    def look(turn: Array, state: tuple) -> tuple:
        low, high, best, top = state
        places = jnp.linspace(low, high, GRID)  # logarithms of radii
        reach = jax.vmap(lambda place: split.c * 10**place * ball_at(10**place).alpha)(places)
        most = jnp.argmax(reach)
        best = jnp.where(reach[most] > top, places[most], best)
        top = jnp.maximum(top, reach[most])
        apart = (high - low) / (GRID - 1)
        enough = reach >= residual
        first, edge = jnp.argmax(enough), jnp.any(enough)
        before = jnp.where(first > 0, places[jnp.maximum(first - 1, 0)], low)
        seek_top, turning = turn < TO_THE_TOP - 1, turn == TO_THE_TOP - 1
        low = jnp.where(seek_top, best - apart, jnp.where(edge, before, low))
        high = jnp.where(seek_top, best + apart, jnp.where(edge, places[first], high))
        return jnp.where(turning, whole[0], low), jnp.where(turning, best, high), best, top

    start = (*whole, whole[0], jnp.zeros(()))
    _, high, best, top = jax.lax.fori_loop(0, TO_THE_TOP + TO_THE_EDGE, look, start)
    return high, best, top


def largest_step(ball: Ball, residual: Scalar, split: Split = Split()) -> Array:  # noqa: B008
    r"""$\min(a/\beta^2,\ b/(L_J\lVert r_0\rVert))$."""
    turn = jnp.asarray(ball.lipschitz * residual, float)
    by_change = jnp.where(turn > 0, split.b / jnp.where(turn > 0, turn, 1.0), jnp.inf)
    return jnp.minimum(split.a / ball.beta**2, by_change)


def allowed_step(ball_at: BallAt, residual: Scalar, split: Split = Split()) -> Array:  # noqa: B008
    """The largest step that theorem D0 allows; NaN where no ball is wide enough."""
    ball, top = smallest_ball(ball_at, residual * (1 + ROOM), split)
    allowed = (1 - ROOM) * largest_step(ball, residual, split)
    return jnp.where(residual * (1 + ROOM) <= top, allowed, jnp.nan)


def ball_descent(
    ball_at: BallAt, residual: Scalar, step_size: Scalar, run: Trajectory, *,
    output_size: Scalar, weights_size: Scalar = 0.0, split: Split = Split(),  # noqa: B008
    hypotheses: dict[str, Inequality] | None = None, constants: dict[str, Any] | None = None,
) -> Certificate:  # fmt: skip
    r"""Compare a run of gradient descent with theorem D0.

    ``residual`` is $\lVert r_0\rVert$; ``run.risk`` must be $\tfrac12\lVert r\rVert^2$, and the
    probe ``distance``, if recorded, is compared with the radius. ``output_size`` is the size of the
    numbers whose sums are outputs (and of targets), ``weights_size`` the norm of all weights: they
    set the rounding errors of a residual and of a step.
    """
    r0 = jnp.asarray(residual, float)
    wide = enclosure_width(r0)
    least, radius, widest, middle = chosen(functools.partial(_radii, ball_at, split=split))(
        jnp.maximum(r0 - wide, 0.0), r0 + wide
    )
    at_top = ball_at(widest)
    top = split.c * at_top.radius * at_top.alpha
    found = descent_in(
        ball_at(radius), r0, step_size, run, output_size=output_size, weights_size=weights_size,
        split=split, if_not_above=(middle, ball_at(least)),
        constants={"r_max": top, "r_max over output size": top / output_size} | (constants or {}),
    )  # fmt: skip
    some = {"some ball is wide enough: |r_0| <= r_max": Inequality(r0, top)}
    return found._replace(hypotheses=(hypotheses or {}) | some | found.hypotheses)


def descent_in(
    ball: Ball, residual: Scalar, step_size: Scalar, run: Trajectory, *,
    output_size: Scalar, weights_size: Scalar, split: Split = Split(),  # noqa: B008
    constants: dict[str, Any] | None = None, if_not_above: tuple[Scalar, Ball] | None = None,
) -> Certificate:  # fmt: skip
    """Compare a run with theorem D0 on one ball; see `ball_descent`.

    A residual that is not above some number has a smaller ball, ``if_not_above``, which may allow
    the step although this one does not. Where rounding leaves that open, the step is open too.

    Residuals so small that a step's guaranteed decrease is within rounding are not judged: a run
    comes to rest there. If that is so from the start, the verdict is *unresolved*.
    """
    r0 = jnp.asarray(residual, float)
    limit = largest_step(ball, r0, split)
    if if_not_above is not None:
        middle, smaller = if_not_above
        limit = jnp.where(r0 > middle, limit, largest_step(smaller, r0, split))
    lost = split.c * step_size * ball.alpha**2
    factor = 1 - lost
    risk, t = run.risk.astype(jnp.float64), run.step
    r = jnp.sqrt(2 * risk)
    eps = float(jnp.finfo(run.risk.dtype).eps)
    coarser = eps / float(jnp.finfo(jnp.float64).eps)
    once = 4 * coarser * enclosure_width(r0) + 32 * eps * output_size
    # a step rounds weights and gradient: both move the residual, by no more than beta says
    per_step = eps * ball.beta * weights_size + jnp.minimum(step_size * ball.beta**2, 1.0) * once
    span = jnp.diff(t).astype(float)
    kept = factor**span  # over the steps between two records
    noise = 2 * once + span * per_step
    seen = (1 - kept) * r[:-1] > noise
    promised = jnp.where(jnp.any(seen), kept * r[:-1], jnp.inf)
    contracts = Inequality(jnp.where(seen, r[1:], 0.0), promised, noise)
    curve = factor ** (2 * t) * r0**2 / 2
    error = once + jnp.minimum(t.astype(float), jnp.where(lost > 0, 1 / lost, jnp.inf)) * per_step
    resting = 2 * curve <= error**2
    falls = jnp.where(t > 0, jnp.where(resting, jnp.minimum(risk, curve), risk), 0.0)
    rounding = error * (r + error)
    concluded: dict[str, Inequality | Equality | NotChecked] = {
        "the run starts at its initial weights": Equality(risk[0], curve[0], rounding[0]),
        "each step contracts: |r_t+1| <= (1 - c step alpha^2) |r_t|": contracts,
        "risk stays below the rate: L_t <= (1 - c step alpha^2)^2t L_0": Inequality(
            falls, curve, rounding
        ),
        "the run stays in the ball: distance <= |r_0| / (c alpha)": not_checked("distance"),
    }
    if "distance" in run.probes:
        moved = run.probes["distance"].astype(jnp.float64)
        concluded["the run stays in the ball: distance <= |r_0| / (c alpha)"] = Inequality(
            moved, r0 / (split.c * ball.alpha), (t + 1) * eps * (weights_size + moved)
        )
    measured = (r[1:] / r[:-1]) ** (1 / span)
    return Certificate(
        hypotheses={
            "this ball is wide enough: |r_0| <= c radius alpha": Inequality(
                r0, split.c * ball.radius * ball.alpha
            ),
            "step <= min(a / beta^2, b / (L_J |r_0|))": Inequality(step_size, limit),
        },
        conclusions=concluded,
        constants={
            "|r_0|": r0, "radius": ball.radius, "alpha": ball.alpha, "beta": ball.beta,
            "L_J": ball.lipschitz, "largest step": limit,
            "step": jnp.asarray(step_size, float), "factor": factor,
            "worst measured factor": jnp.max(jnp.where(seen, measured, 0.0)),
            **(constants or {}),
        },
        predicted_rate=1 - factor**2,
        measured_rate=share_lost(run.risk, t[-1]),
        curves={"proved bound": curve},
    )  # fmt: skip


ROOM = 1e-7
"""Share of the residual by which a ball is chosen wider than it must be, for rounding."""


def _radii(ball_at: BallAt, low: Scalar, high: Scalar, split: Split) -> tuple[Array, ...]:
    """The smallest radii for two residuals, that of the largest residual, and their middle.

    Any radius makes a true statement. The second one has room for the residual's rounding, which
    is more than `ROOM` where the residual is small.
    """
    ends = jnp.stack([jnp.asarray(low, float), jnp.asarray(high, float)])
    places, best, _ = jax.vmap(lambda r: _search(ball_at, r, split))(ends * (1 + ROOM))
    return 10 ** places[0], 10 ** places[1], 10 ** best[1], jnp.mean(ends)
