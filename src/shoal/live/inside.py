"""What happens inside a model at some weights: attention of one sample, spectrum of the kernel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.diagnostics import inside
from shoal.lab import engine
from shoal.lab.probes import all_probes
from shoal.lab.setup import Setup
from shoal.linalg import eigenvalues
from shoal.models import predict

MOST_MAPS, MOST_TOKENS = 8, 64
"""Heads or layers that a page shows, and rows and columns of each."""
MOST_OUTPUTS = 600
"""Outputs up to which the whole spectrum of the tangent kernel is shown."""


def _maps(setup: Setup, params: Any) -> Any:
    """Attention weights by name, with a leading axis of samples."""
    known = all_probes(setup)
    if "attention" in known:
        return {"attention": known["attention"](params)}
    found = inside.parts(lambda p, x: predict(setup.network, p, x), setup.params0, setup.inputs)
    seen = found.capture(params, setup.inputs)
    return {at.name: jnp.moveaxis(seen[at.value], at.axis, -1) for at in found.attention}


def attention(setup: Setup, params: Any, sample: int) -> dict[str, Any]:
    """Attention maps of one sample: names, and matrices from query tokens to key tokens."""
    if not setup.has_samples:
        return {"names": [], "maps": []}
    count = len(jax.tree.leaves(setup.inputs)[0])
    row = min(sample, count - 1)
    if not getattr(setup.setting, "coupled", False):  # a small program, the same for every sample
        some = jax.tree.map(lambda x: x[row : row + 1], setup.problem)
        setup, row = setup.replace(problem=some), 0
    found = engine.per_start(setup, _maps, own=(params,))
    names, maps = [], []
    for name, stacked in found.items():
        one = np.asarray(stacked)[0][row]
        if one.ndim == 1:
            one = one[None]
        # one row per head is one map; more axes are layers or heads
        flat = one[None] if one.ndim == 2 else one.reshape(-1, *one.shape[-2:])
        for k, part in enumerate(flat[:MOST_MAPS]):
            names.append(_title(name, k, len(flat)))
            maps.append(part[:MOST_TOKENS, :MOST_TOKENS])
    return {"names": names, "maps": maps}


def _title(name: str, k: int, count: int) -> str:
    plain = "attention" if "(" in name or "->" in name or not name else name
    return plain if count == 1 else f"{plain} {k + 1}"


def _spectrum(setup: Setup, params: Any) -> Any:
    kernel = setup.tangent_kernel()
    return eigenvalues(kernel(params))


def spectrum(setup: Setup, params: Any) -> list[float] | None:
    """Eigenvalues of the tangent kernel, the largest first; None if it is too large to be shown."""
    if not setup.has_samples or setup.num_outputs > MOST_OUTPUTS:
        return None
    if setup.abstractly(Setup.tangent_kernel) is None:
        return None
    found = np.asarray(engine.per_start(setup, _spectrum, own=(params,)))[0]
    return np.sort(found)[::-1].tolist()
