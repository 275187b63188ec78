"""How do time and memory grow with width, samples, tokens, dim and seeds?"""

import json
import os
import subprocess
import sys
from typing import Any

import harness

BASE = {"num_samples": 50, "num_tokens": 10, "dim": 20, "width": 500}
AXES: dict[str, tuple[float, ...]] = {
    "width": (500, 1000, 2000, 4000, 8000),
    "num_samples": (50, 100, 200, 400, 800),
    "num_tokens": (10, 20, 40, 80, 160),
    "dim": (20, 40, 80, 160, 320),
    "seeds": (2, 4, 8, 16, 32),
    "memory": (0.0625, 0.125, 0.25, 0.5, 1.0),
}
LARGE = {"num_samples": 2000, "num_tokens": 10, "dim": 20, "width": 4000}  # for memory


def measure(what: str, axis: str, size: float) -> dict[str, float]:
    """Seconds a step (or a kernel) and peak memory at one size, in a process of its own."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from shoal.lab.engine import trajectories
    from shoal.lab.setup import paper_setup
    from shoal.papers import wu2023

    values: dict[str, Any] = LARGE | {"memory": size} if axis == "memory" else dict(BASE)
    seeds = range(int(size)) if axis == "seeds" else (0,)
    if axis not in ("seeds", "memory"):
        values[axis] = int(size)
    num_steps = 2 if axis == "memory" else 10
    values |= {"step_size": 1e-3, "num_steps": num_steps, "every": num_steps}
    setup = paper_setup(wu2023.PAPER, values, seeds=seeds)
    if what == "step":

        def call() -> None:
            trajectories(setup)
    else:
        num_steps, start = 1, setup.one()
        kernels = start.setting.block_kernels(start)
        params = jax.tree.map(jax.numpy.asarray, start.params0)
        kernel = jax.jit(lambda params: sum(kernels(params).values()))

        def call() -> None:
            kernel(params).block_until_ready()

    return harness.timed(call, num_steps)


def main() -> None:
    """Print all curves as JSON."""
    if sys.argv[1:2] == ["--one"]:
        what, axis, size = sys.argv[2:5]
        json.dump(measure(what, axis, float(size)), sys.stdout)
        return
    from shoal import fits

    curves = []
    for what in ("step", "kernel"):
        for axis, sizes in AXES.items():
            if (what, axis) == ("kernel", "seeds"):
                continue
            words = [sys.executable, __file__, "--one", what, axis]
            environment = os.environ | harness.GIVE_BACK
            found = [
                json.loads(
                    subprocess.run(
                        [*words, str(size)], check=True, capture_output=True, env=environment
                    ).stdout
                )
                for size in sizes
            ]
            curve = {"what": what, "axis": axis, "sizes": list(sizes)}
            curve |= {k: [f[k] for f in found] for k in ("seconds", "peak")}
            for k in ("seconds", "peak"):
                # the far half of the curve: near its beginning constants weigh
                fit = fits.power_law(sizes[1:], [max(v, 1e-9) for v in curve[k][1:]])
                curve[f"{k}_exponent"] = [fit.slope, fit.low, fit.high]
            curves.append(curve)
    json.dump({"title": "Growth", "about": __doc__, "curves": curves}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
