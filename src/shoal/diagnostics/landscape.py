r"""The risk on a plane, $F(\theta+ad_1+bd_2)$, and numbers that say how it looks.

Pictures of landscapes depend on directions and eyes. Here the same directions serve all sides of a
comparison, and each plane comes with counts: local minima, curvature of both signs, roughness,
flatness.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from shoal import trees
from shoal._typing import Any, Array, Float, Params, PRNGKeyArray, Risk

Blocks = dict[str, Any]


class Directions(NamedTuple):
    """Two directions of parameter space, by block; what is frozen does not appear."""

    first: Blocks
    second: Blocks


def _rows(W: Array) -> Float[Array, "..."]:
    """Norm of each row; of the whole block, if it is a vector."""
    return jnp.sqrt(jnp.sum(W**2, axis=-1 if W.ndim > 1 else None, keepdims=True))


def random_directions(
    key: PRNGKeyArray, params: Params, train: Iterable[str] | None = None
) -> Directions:
    """Two Gaussian directions, every row scaled to the norm of the row that it moves.

    Filter normalisation (Li et al. 2018): a plane then looks the same for weights that are scaled.
    """
    blocks = trees.selected(params, train)

    def like(key: PRNGKeyArray, W: Array) -> Array:
        noise = jax.random.normal(key, W.shape, W.dtype)
        return noise * (_rows(W) / _rows(noise))

    def draw(key: PRNGKeyArray) -> Blocks:
        keys = jax.random.split(key, len(blocks))
        return {name: like(k, W) for k, (name, W) in zip(keys, blocks.items(), strict=True)}

    return Directions(*(draw(k) for k in jax.random.split(key, 2)))


def path_directions(
    key: PRNGKeyArray, start: Params, end: Params, train: Iterable[str] | None = None
) -> Directions:
    """From the start to the end, and a random direction at a right angle, of the same length."""
    ends = trees.selected(end, train), trees.selected(start, train)
    path, unravel = ravel_pytree(jax.tree.map(jnp.subtract, *ends))
    length = jnp.sqrt(jnp.sum(path**2))
    unit = path / jnp.where(length > 0, length, 1)
    noise = jax.random.normal(key, path.shape, path.dtype)
    noise = noise - (noise @ unit) * unit
    second = noise * (length / jnp.sqrt(jnp.sum(noise**2)))
    return Directions(unravel(path), unravel(second))


class Principal(NamedTuple):
    """Principal directions of a trajectory, and where its points lie in their plane."""

    directions: Directions
    path: Float[Array, "T 2"]
    share: Float[Array, ""]  # of the trajectory's variance in the plane


def principal_directions(snapshots: Blocks) -> Principal:
    """The plane through the last point that holds most of a trajectory (leading axis: time).

    Scaled so that the trajectory reaches from -1 to 1 in each direction where it moves.
    """
    unravel = ravel_pytree(jax.tree.map(lambda x: x[-1], snapshots))[1]
    rows = jax.vmap(lambda blocks: ravel_pytree(blocks)[0])(snapshots)
    away = rows - rows[-1][None]
    _, sigma, V = jnp.linalg.svd(away, full_matrices=False)
    V = jnp.concatenate([V, jnp.zeros((2, V.shape[1]))])[:2]
    coordinates = away @ V.T
    reach = jnp.max(jnp.abs(coordinates), axis=0)
    reach = jnp.where(reach > 0, reach, 1)
    first, second = (unravel(v * r) for v, r in zip(V, reach, strict=True))
    total = jnp.sum(sigma**2)
    share = jnp.sum(sigma[:2] ** 2) / jnp.where(total > 0, total, 1)
    return Principal(Directions(first, second), coordinates / reach[None], share)


def plane(
    risk: Risk, centre: Params, directions: Directions,
    a: Float[Array, " rows"], b: Float[Array, " columns"], *, batch_size: int = 64,
) -> Float[Array, "rows columns"]:  # fmt: skip
    """The risk at every point of a grid, ``batch_size`` points at a time."""
    blocks = trees.blocks(centre)

    def at(point: Float[Array, " 2"]) -> Float[Array, ""]:
        moved = {
            name: blocks[name] + point[0] * one + point[1] * directions.second[name]
            for name, one in directions.first.items()
        }
        return risk(trees.with_blocks(centre, moved))

    grid = jnp.stack(jnp.meshgrid(a, b, indexing="ij"), axis=-1).reshape(-1, 2)
    values = jax.lax.map(at, grid, batch_size=min(batch_size, len(grid)))
    return values.reshape(len(a), len(b))


def measures(values: np.ndarray, spacing: tuple[float, float]) -> dict[str, float]:
    r"""A plane in numbers; points that are not finite do not count.

    ``local_minima``: points below all eight neighbours by more than rounding. ``indefinite``,
    ``negative``: shares of inner points whose 2 x 2 Hessian (finite differences) has eigenvalues of
    both signs, or none above zero. ``roughness``: total variation along the lines of the grid over
    the range of each line, averaged: 1 for monotone lines, at most 2 for bowls, more for hills.
    ``flat``: share of points in the lowest tenth of the range.

    >>> x = np.linspace(-1, 1, 21)
    >>> found = measures(x[:, None] ** 2 + x[None] ** 2, (0.1, 0.1))
    >>> found["local_minima"], found["indefinite"], round(found["roughness"], 6)
    (1.0, 0.0, 2.0)
    """
    F = np.asarray(values, float)
    inner = F[1:-1, 1:-1]
    rows, columns = F.shape
    beside = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    around = [F[i : rows - 2 + i, j : columns - 2 + j] for i, j in beside]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        dust = 64 * np.finfo(float).eps * np.abs(inner)
        lowest = np.logical_and.reduce([inner + dust < other for other in around])
        h, k = spacing
        xx = (F[2:, 1:-1] - 2 * inner + F[:-2, 1:-1]) / h**2
        yy = (F[1:-1, 2:] - 2 * inner + F[1:-1, :-2]) / k**2
        xy = (F[2:, 2:] - F[2:, :-2] - F[:-2, 2:] + F[:-2, :-2]) / (4 * h * k)
        middle, half = (xx + yy) / 2, np.sqrt(((xx - yy) / 2) ** 2 + xy**2)
        low, high = middle - half, middle + half
        known = np.isfinite(low) & np.isfinite(high)
        # differences of equal numbers are rounding, not curvature
        blur = 16 * np.finfo(float).eps * np.abs(inner) / min(h, k) ** 2
        lines = F, F.T
        moved = np.concatenate([np.sum(np.abs(np.diff(x, axis=1)), axis=1) for x in lines])
        rough = moved / np.concatenate([np.ptp(x, axis=1) for x in lines])
    finite = F[np.isfinite(F)]
    count = max(int(known.sum()), 1)
    span = np.ptp(finite) if finite.size else np.nan
    return {
        "local_minima": float(lowest.sum()),
        "indefinite": float((known & (low < -blur) & (high > blur)).sum() / count),
        "negative": float((known & (low < -blur) & (high <= blur)).sum() / count),
        "roughness": float(np.mean(rough[np.isfinite(rough)])) if np.isfinite(rough).any() else 1.0,
        "total_variation": float(np.mean(moved[np.isfinite(moved)])),
        "flat": float(np.mean(finite <= finite.min() + 0.1 * span)) if finite.size else np.nan,
        "lowest": float(finite.min()) if finite.size else np.nan,
        "highest": float(finite.max()) if finite.size else np.nan,
    }
