"""What a setup takes of memory, foreseen from shapes: nothing is computed.

What a step holds is at most the sum of all arrays that the risk computes, twice (values, and
gradients on the way back). Where that sum is too much, the compiler is asked what it would hold.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

from shoal import trees
from shoal.errors import InputError
from shoal.runtime import available_memory, in_float64

SMALL = 2**25
"""Settings whose sizes multiply to less than this are not looked at."""
NOT_SIZES = ("num_steps", "every", "data_seed", "seed")


@in_float64
def refuse_giants(setting: Any, num_seeds: int, problem: Any = None) -> None:
    """Refuse a setting that does not fit into memory, before data and weights are made.

    ``problem`` is a user's own data, if there are any.
    """
    records = 32.0 * num_seeds * (setting.num_steps // setting.every)
    weights = float(trees.size(setting.network().spec))
    shared = 8 * records + 8 * 4 * weights * num_seeds
    require_room(shared, "weights and records")
    if not setting.reads_files() and _sizes(setting) * num_seeds > SMALL:
        from shoal.lab.setup import abstract_setup, one_start

        start = abstract_setup(setting, problem)
        refuse_giant_steps(start, shared)
        if setting.step_size is None and isinstance(setting.method, str):
            require_room(shared + default_step_bytes(start), "the default step (set step_size)")
        made = jax.make_jaxpr(lambda: jax.tree.leaves(one_start(setting, problem)))()
        require_room(shared + max(made_arrays(made), default=0.0), "making data and weights")


@in_float64
def refuse_giant_steps(start: Any, shared: float = 0.0) -> None:
    """Refuse one start (arrays, or their shapes) whose data and steps do not fit into memory."""
    data = sum(_bytes(x) for x in jax.tree.leaves((start.problem, start.held_out)))
    require_room(shared + data, "data")
    if shared + data + 2 * forward_bytes(start) <= available_memory() / 2:
        return
    require_room(shared + data + compiled_bytes(start), "a step of training")


def require_room(needed: float, what: str) -> None:
    """Refuse what takes more memory than there is."""
    have = available_memory()
    if needed > have:
        raise InputError(
            f"{what} would take {_gib(needed)}, and {_gib(have)} are available; try fewer seeds, "
            "samples, tokens or records, a smaller width, or a batch_size."
        )


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def _sizes(setting: Any) -> float:
    """The product of all whole numbers of a setting, tokens twice: no array is larger."""
    values = {k: v for k, v in setting.__dict__.items() if k not in NOT_SIZES}
    numbers = [abs(v) for v in values.values() if isinstance(v, int) and not isinstance(v, bool)]
    tokens = values.get("num_tokens") or 1
    return math.prod(float(v) for v in numbers if v > 1) * float(tokens)


def _bytes(x: Any) -> float:
    return float(np.prod(np.shape(x), dtype=float)) * x.dtype.itemsize


def forward_bytes(start: Any) -> float:
    """Bytes of all arrays that one evaluation of the risk makes, if none were freed."""
    return sum(made_arrays(jax.make_jaxpr(lambda one: one.fast_risk(one.params0))(start)))


def default_step_bytes(start: Any) -> float:
    """Bytes for the tangent kernel whose largest eigenvalue gives the default step."""
    from shoal.lab.engine import default_step

    program = jax.make_jaxpr(default_step)(start)
    decomposed = _eigenvalues(program)  # LAPACK's workspace is large
    return max(3 * max(made_arrays(program), default=0.0), 8 * max(decomposed, default=0.0))


def _eigenvalues(program: Any) -> Iterator[float]:
    """Bytes of every matrix whose eigenvalues a jaxpr computes."""
    for equation in program.eqns:
        if equation.primitive.name == "eigh":
            yield _bytes(equation.invars[0].aval)
        for inner in jaxprs_in_params(equation.params):
            yield from _eigenvalues(inner)


def made_arrays(program: Any) -> Iterator[float]:
    """Bytes of every array that a jaxpr makes, also in the jaxprs that it calls."""
    for equation in program.eqns:
        yield from (_bytes(v.aval) for v in equation.outvars if hasattr(v.aval, "dtype"))
        for inner in jaxprs_in_params(equation.params):
            yield from made_arrays(inner)


def compiled_bytes(start: Any) -> float:
    """Bytes that the compiled gradient holds beside its arguments."""
    gradient = jax.jit(lambda one: jax.grad(one.fast_risk)(one.params0))
    held: Any = gradient.lower(start).compile().memory_analysis()
    return float(held.temp_size_in_bytes + held.output_size_in_bytes)
