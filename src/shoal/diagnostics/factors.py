r"""Tangent kernels of any model from small factors, without its Jacobian.

Where a weight $W$ enters by a matrix product $z_t = h_tW$, the gradient of an output is
$\sum_t h_t\otimes\delta_t$ with $\delta_t=\partial f/\partial z_t$, so the entry of the kernel for
two samples is

$$ K_{ab} = \sum_{t,s}\langle h_{a,t},h_{b,s}\rangle\langle\delta_{a,t},\delta_{b,s}\rangle. $$

Such products are found in the model's program (`uses`): also of a weight that was transposed,
reshaped, sliced, cast or scaled before, and rows that are looked up (an embedding, where $h_t$ is
one-hot).
One pass backwards with respect to zeros added at the products gives all $\delta$. A weight that
enters in another way (a bias, a convolution, a scan) is differentiated as usual, in the same pass.
For each product the cheapest way to contract is chosen by counting flops (`cheapest`).
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from shoal._typing import Array, Float, Params
from shoal.diagnostics.programs import computed, value_of
from shoal.diagnostics.uses import Piece, Program, Use, read_program
from shoal.models import Model
from shoal.trees import blocks

TILE = 2**17
"""Numbers in the largest array of a tile, beside the kernel itself."""
Route = Literal["rows", "grams", "shared", "jacobian"]


class Factors(NamedTuple):
    """The gradient of a sample, as factors: h is (k, b, t, c) with k = 1 or outputs."""

    h: Any
    delta: Array  # (outputs, b, t, f)


# ---------------------------------------------------------------------------------- the factors


def _evaluate(
    program: Program, leaves: list[Any], taps: dict[int, Array], wanted: Iterable[Any]
) -> tuple[Array, list[Any]]:
    """The outputs, with the taps added to their products, and the values that are wanted."""
    values = dict(zip(program.inputs, leaves, strict=True))
    for number, op in enumerate(program.operations):
        results = computed(op, values)
        if number in taps:
            results = [results[0] + taps[number]]
        values |= dict(zip(op.outputs, results, strict=True))
    (output,) = program.outputs
    return value_of(output, values).ravel(), [value_of(v, values) for v in wanted]


def _scale(use: Use, scalars: Iterable[Any], delta: Array) -> Array:
    for (name, _), scalar in zip(use.factors, scalars, strict=True):
        if name == "neg":
            delta = -delta
        else:
            delta = delta * scalar.reshape(()) if name == "mul" else delta / scalar.reshape(())
    return delta


class Plan(NamedTuple):
    """A program, and for every weight how its kernel is computed."""

    program: Program
    pieces: dict[int, tuple[Piece, ...]]  # Only of weights that are not differentiated as usual.
    routes: dict[int, tuple[Route, ...]]
    stored: int  # Numbers that the factors of a sample hold.
    made: int  # Numbers that the model makes for a sample, with the pass backwards.


class Lot(NamedTuple):
    """The gradients of samples: factors by weight and piece, or rows of the Jacobian.

    Many weights meet the same h: it is held once, by its source, and is None in their factors.
    """

    h: dict[str, Array]
    by_weight: dict[int, Any]


def sample_factors(plan: Plan, params: Params, sample: Any) -> Lot:
    """Factors of every piece of every weight; rows of the Jacobian for the other weights."""
    program, weights = plan.program, jax.tree.leaves(params)
    rest = [jnp.asarray(leaf) for leaf in jax.tree.leaves(sample)]
    usual = [k for k in range(len(weights)) if k not in plan.pieces]
    uses = [use for some in plan.pieces.values() for piece in some for use in piece.uses]
    numbers = {use.operation for use in uses}
    wanted = [v for use in uses for v in (use.other, *(scalar for _, scalar in use.factors))]
    types = {n: program.operations[n].equation.outvars[0].aval for n in numbers}

    def outputs(taps: dict[int, Array], some: list[Array]) -> tuple[Array, list[Any]]:
        changed = dict(zip(usual, some, strict=True))
        leaves = [changed.get(k, W) for k, W in enumerate(weights)] + rest
        return _evaluate(program, leaves, taps, [v for v in wanted if v is not None])

    taps = {n: jnp.zeros(aval.shape, aval.dtype) for n, aval in types.items()}
    f, pull, seen = jax.vjp(outputs, taps, [weights[k] for k in usual], has_aux=True)
    deltas, rows = _pulled(pull, f)
    values = iter(seen)
    known = {}
    for use in uses:
        other = jnp.asarray(next(values))
        scalars = [None if s is None else jnp.asarray(next(values)) for _, s in use.factors]
        arranged = jax.vmap(use.arrange_delta)(_scale(use, scalars, deltas[use.operation]))
        known[id(use)] = use.arrange_other(other)[None], arranged
    found: dict[int, Any] = {k: J.reshape(len(f), -1) for k, J in zip(usual, rows, strict=True)}
    h = {}
    for k, pieces in plan.pieces.items():
        found[k] = []
        for piece in pieces:
            joined = _joined(piece, known)
            if piece.source is not None:
                if not piece.shared:
                    h[piece.source] = joined.h
                joined = joined._replace(h=None)
            found[k].append(joined)
    return Lot(h, found)


def _pulled(pull: Callable, outputs: Array) -> Any:
    if len(outputs) == 1:
        return jax.tree.map(lambda g: g[None], pull(jnp.ones_like(outputs)))
    return jax.vmap(pull)(jnp.eye(len(outputs), dtype=outputs.dtype))


def _joined(piece: Piece, known: dict[int, tuple[Array, Array]]) -> Factors:
    """The uses of a piece one after the other along the axis of tokens."""
    hs, deltas = [], []
    for use, swapped in zip(piece.uses, piece.swapped, strict=True):
        h, delta = known[id(use)]
        if use.lookup and (not piece.whole or piece.shared):
            h = jax.nn.one_hot(h, use.entries.shape[1], dtype=delta.dtype)
        if piece.by_output:
            h = jnp.broadcast_to(h, (len(delta), *h.shape[1:]))
        hs.append(delta if swapped else h)
        deltas.append(h if swapped else delta)
    return Factors(jnp.concatenate(hs, axis=2), jnp.concatenate(deltas, axis=2))


# ------------------------------------------------------------------------------ the contractions


class Sizes(NamedTuple):
    """Sizes of a piece: samples, outputs, independent products, tokens, and the two widths."""

    samples: int
    outputs: int
    products: int
    tokens: int
    rows: int
    columns: int


def cheapest(
    size: Sizes, *, shared: bool = False, by_output: bool = False, lookup: bool = False
) -> tuple[Route, float]:
    """The way to contract a piece that needs the fewest flops, and how many.

    ``rows``: form the gradients. ``grams``: multiply the Grams of h and of delta. ``shared``: as
    ``grams``, where h is the same for all samples.

    >>> cheapest(Sizes(100, 1, 1, 1, 500, 500))[0]  # one token: a sample's gradient has rank 1
    'grams'
    >>> cheapest(Sizes(100, 1, 1, 10, 20, 1000))[0]
    'rows'
    """
    N, o, b, t, c, f = size
    R = N * o
    flops: dict[Route, float] = {"rows": 2.0 * R * b * c * f * (t + R)}
    if shared:
        flops["shared"] = 2.0 * b * (t * t * c + R * t * t * f + R * R * t * f)
    else:
        of_h = (R if by_output else N) ** 2 * (1 if lookup else c)
        flops["grams"] = 2.0 * b * t * t * (of_h + R * R * (f + 1))
    route = min(flops, key=lambda name: flops[name])
    return route, flops[route]


def contract(route: Route, lots: list[Factors]) -> Float[Array, "R Q"]:
    """The kernel of a piece between the first and the last of one or two lots of samples.

    h is (samples, k, b, t, c), with one sample where it is shared; delta has an axis of outputs.
    """
    ways = {"rows": _from_rows, "grams": _from_grams, "shared": _from_shared}

    def one_product(lots: list[Factors]) -> Array:
        return ways[route]([_by_rows(lot) for lot in lots])

    if lots[0].delta.shape[2] == 1:
        return one_product([Factors(h[:, :, 0], delta[:, :, 0]) for h, delta in lots])
    along = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), lots)
    zero = jnp.zeros([lot.delta.shape[0] * lot.delta.shape[1] for lot in (lots[0], lots[-1])])
    zero = zero.astype(lots[0].delta.dtype)
    return jax.lax.scan(lambda K, some: (K + one_product(some), None), zero, along)[0]


def _by_rows(lot: Factors) -> Factors:
    """h as (m, t, c) and delta as (m, q, t, f): m lots of q rows each have the same h."""
    m = lot.h.shape[0] * lot.h.shape[1]
    return Factors(
        lot.h.reshape(m, *lot.h.shape[2:]), lot.delta.reshape(m, -1, *lot.delta.shape[2:])
    )


def _from_rows(lots: list[Factors]) -> Array:
    """Gradients formed for some columns (or rows) of the weight at a time, and multiplied."""
    counts = [lot.delta.shape[0] * lot.delta.shape[1] for lot in (lots[0], lots[-1])]
    c, f = lots[0].h.shape[-1], lots[0].delta.shape[-1]
    long, short = max(c, f), min(c, f)
    room = max(TILE, counts[0] * counts[1] // 2)
    step = min(max(room // (max(counts) * short), 1), long)

    def gradients(lot: Factors, start: Any, width: int) -> Array:
        h, delta = lot
        if c > f:
            h = jax.lax.dynamic_slice_in_dim(h, start, width, 2)
        else:
            delta = jax.lax.dynamic_slice_in_dim(delta, start, width, 3)
        G = jnp.einsum("mtc,mqtf->mqcf", h, delta)
        return G.reshape(G.shape[0] * G.shape[1], -1)

    def tile(start: Any, width: int) -> Array:
        made = [gradients(lot, start, width) for lot in lots]
        return made[0] @ made[-1].T

    if step == long:
        return tile(0, long)
    starts = jnp.arange(long // step) * step
    zero = jnp.zeros(counts, lots[0].delta.dtype)
    K = jax.lax.scan(lambda K, start: (K + tile(start, step), None), zero, starts)[0]
    return K + tile(long - long % step, long % step) if long % step else K


def _from_grams(lots: list[Factors]) -> Array:
    """Grams of h and of delta, multiplied entry by entry, for some samples at a time."""
    (h_a, delta_a), (h_b, delta_b) = lots[0], lots[-1]
    q, t, f = delta_a.shape[1:]
    m, p, s = delta_b.shape[:3]

    def some(h: Array, delta: Array) -> Array:
        if jnp.issubdtype(h.dtype, jnp.integer):  # rows that were looked up: one-hot
            of_h = (h.reshape(-1, 1) == h_b.reshape(1, -1)).astype(delta.dtype)
        else:
            of_h = h.reshape(-1, h.shape[-1]) @ h_b.reshape(-1, h.shape[-1]).T
        of_delta = delta.reshape(-1, f) @ delta_b.reshape(-1, f).T
        pairs = of_h.reshape(-1, 1, t, m, 1, s) * of_delta.reshape(-1, q, t, m, p, s)
        return jnp.sum(pairs, axis=(2, 5)).reshape(-1, m * p)

    count = len(h_a)
    room = max(TILE, m * p * count * q // 2)
    at_once = _at_once(room // (q * t * m * p * s), h_a)
    whole = count - count % at_once
    pieces = jax.tree.map(lambda a: a[:whole].reshape(-1, at_once, *a.shape[1:]), lots[0])
    K = jax.lax.map(lambda lot: some(*lot), pieces).reshape(-1, m * p)
    return K if whole == count else jnp.concatenate([K, some(h_a[whole:], delta_a[whole:])])


def _from_shared(lots: list[Factors]) -> Array:
    """h is the same for all samples: its Gram is applied to one side."""
    (h, first), last = lots[0], lots[-1].delta
    applied = jnp.einsum("ts,qsf->qtf", h[0] @ h[0].T, first[0])
    return applied.reshape(len(applied), -1) @ last[0].reshape(last.shape[1], -1).T


# -------------------------------------------------------------------------------------- the kernel


def make_plan(model: Model, params: Params, inputs: Any) -> Plan:
    """How the kernel of every weight is computed: shapes suffice."""
    sample = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), inputs)
    program = read_program(model.apply, params, sample)
    samples = len(jax.tree.leaves(inputs)[0])
    outputs = math.prod(jax.eval_shape(model.apply, params, sample).shape)
    pieces, routes, stored = {}, {}, 0
    for k, W in enumerate(jax.tree.leaves(params)):
        found = program.pieces.get(k, ())
        sizes = [_sizes(program, piece, samples, outputs) for piece in found]
        chosen = tuple(map(_route, found, sizes))
        factors = sum(map(_stored, found, sizes))
        if not found or (set(chosen) == {"rows"} and factors >= outputs * W.size):
            stored += outputs * W.size  # rows of the Jacobian, as usual
        else:
            pieces[k], routes[k], stored = found, chosen, stored + factors
    made = sum(atom.aval.size for op in program.operations for atom in op.equation.outvars)
    return Plan(program, pieces, routes, stored, made * (1 + outputs))


def _route(piece: Piece, size: Sizes) -> Route:
    how = {"shared": piece.shared, "by_output": piece.by_output, "lookup": piece.whole}
    return cheapest(size, **how)[0]


def _sizes(program: Program, piece: Piece, samples: int, outputs: int) -> Sizes:
    b, c, f = piece.uses[0].entries.shape
    made = (math.prod(program.sizes[use.operation]) // use.entries.shape[2] for use in piece.uses)
    return Sizes(samples, outputs, b, sum(made) // b, c, f)


def _stored(piece: Piece, size: Sizes) -> int:
    """Numbers that the factors of a sample hold."""
    of_h = 0 if piece.shared else 1 if piece.whole else size.rows
    of_h *= size.outputs if piece.by_output else 1
    return size.products * size.tokens * (of_h + size.outputs * size.columns)


def kernel_routes(model: Model, params: Params, inputs: Any) -> dict[str, tuple[Route, ...]]:
    """By which route the kernel of every block is computed, one for each product it enters."""
    routes = make_plan(model, params, inputs).routes
    return {name: routes.get(k, ("jacobian",)) for k, name in enumerate(blocks(params))}


def factored_kernels(
    model: Model, inputs: Any, *, memory: float = 1.0
) -> Callable[[Params], dict[str, Float[Array, "R R"]]]:
    """Tangent kernel of each block, as a function of the parameters, in about ``memory`` GiB.

    For models whose samples do not depend on each other.
    """

    def kernels(params: Params) -> dict[str, Float[Array, "R R"]]:
        plan = make_plan(model, params, inputs)
        shared = _shared_h(plan, params, jax.tree.map(lambda a: a[0], inputs))

        def factors(some: Any) -> Lot:
            few = min(5, lot_size(params, plan.made, memory))
            fit = max(16 * TILE // plan.made, few)
            one = functools.partial(sample_factors, plan, params)
            return jax.lax.map(one, some, batch_size=_at_once(fit, some))

        def between(lots: list[Lot]) -> dict[str, Array]:
            return {name: _block(plan, k, shared, lots) for k, name in enumerate(blocks(params))}

        return by_lots(factors, between, inputs, lot_size(params, plan.stored, memory))

    return kernels


def _at_once(fit: int, samples: Any) -> int:
    """How many samples are worked on together: a divisor of all where that is near what fits."""
    count = len(jax.tree.leaves(samples)[0])
    fit = min(max(fit, 1), count)
    divisor = next(k for k in range(fit, 0, -1) if count % k == 0)
    return divisor if 2 * divisor >= fit else fit


def lot_size(params: Params, numbers: int, memory: float) -> int:
    """How many units of so many numbers can be held in two lots."""
    width = jnp.dtype(jnp.result_type(*jax.tree.leaves(params))).itemsize
    return max(int(memory * 2**30 / (3 * width * max(numbers, 1))), 1)


def by_lots(
    factors: Callable[[Any], Any], between: Callable[[list], dict[str, Array]], units: Any, fit: int
) -> dict[str, Array]:
    """Kernels over all units (samples, or outputs) from lots of at most ``fit``.

    ``between`` makes them from the factors of one or two lots. With more than one lot, factors are
    computed again for every pair.
    """
    count = len(jax.tree.leaves(units)[0])
    lots = -(-count // fit)
    if lots == 1:
        return between([factors(units)])
    size = -(-count // lots)
    padded = jax.tree.map(lambda a: _in_lots(a, lots, size), units)

    def row(some: Any) -> dict[str, Array]:
        mine = factors(some)
        return jax.lax.map(lambda others: between([mine, factors(others)]), padded)

    def assembled(found: Float[Array, "lots lots r r"]) -> Float[Array, "R R"]:
        rows = found.shape[2]
        K = found.transpose(0, 2, 1, 3).reshape(lots * rows, lots * rows)
        return K[: count * (rows // size), : count * (rows // size)]

    return jax.tree.map(assembled, jax.lax.map(row, padded))


def _shared_h(plan: Plan, params: Params, sample: Any) -> dict[str, Array]:
    """h where it is the same for all samples, by its source."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves((params, sample))]
    pieces = [piece for some in plan.pieces.values() for piece in some if piece.shared]
    wanted = [piece.uses[0].other for piece in pieces]
    found = {}
    for piece, h in zip(pieces, _evaluate(plan.program, leaves, {}, wanted)[1], strict=True):
        (use,) = piece.uses
        arranged = use.arrange_other(jnp.asarray(h))
        if use.lookup:
            arranged = jax.nn.one_hot(arranged, use.entries.shape[1], dtype=leaves[0].dtype)
        found[use.source] = arranged[None, None]
    return found


def _block(plan: Plan, k: int, shared: dict[str, Array], lots: list[Lot]) -> Array:
    """The kernel of one weight between the first and the last lot of samples."""
    if k not in plan.pieces:
        rows = [lot.by_weight[k].reshape(-1, lot.by_weight[k].shape[-1]) for lot in lots]
        return rows[0] @ rows[-1].T
    parts = []
    for number, (piece, route) in enumerate(zip(plan.pieces[k], plan.routes[k], strict=True)):
        factors = [lot.by_weight[k][number] for lot in lots]
        if piece.source is not None:
            held = [shared if piece.shared else lot.h for lot in lots]
            pairs = zip(factors, held, strict=True)
            factors = [one._replace(h=h[piece.source]) for one, h in pairs]
        if piece.whole and not piece.shared and route == "rows":
            width, dtype = piece.uses[0].entries.shape[1], factors[0].delta.dtype
            factors = [one._replace(h=jax.nn.one_hot(one.h, width, dtype=dtype)) for one in factors]
        parts.append(contract(route, factors))
    return sum(parts[1:], parts[0])


def _in_lots(array: Array, lots: int, size: int) -> Array:
    """The leading axis in lots of one size; the last sample is repeated to fill the last one."""
    rows = jnp.minimum(jnp.arange(lots * size), len(array) - 1)
    return jnp.asarray(array)[rows].reshape(lots, size, *array.shape[1:])
