"""A laboratory for the training dynamics of Transformers and other small models.

    import shoal as sh

    setup = sh.setup("wu2023", width=64, seeds=range(4))
    run = sh.train(setup, steps=200, probes=["pl_ratio"])
    print(sh.certify(run, "theorem_a"))

Importing shoal changes nothing in the process and loads neither JAX nor matplotlib; names are
loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PLACES = {
    "door": "setup report",
    "landscapes": "landscape",
    "lab.run": "train Run load",
    "lab.replay": "certify",
    "lab.theorem": "Theorem",
    "lab.proof": "prove Proof",
    "lab.setup": "Setup",
    "lab.own": "per_sample",
    "lab.watch": "watch",
    "lab.diagnosis": "diagnose",
    "lab.study": "Study decades",
    "lab.setting": "Setting Static Traced Data",
    "lab.paper": "Paper",
    "lab.effects": "per_doubling power_law compared measured",
    "lab.claim": "Claim Control above below between exponent",
    "certificates": "Certificate Inequality Equality condition",
    "problems": "Problem",
    "errors": "InputError",
    "losses": "half_sum_of_squares mean_of_squares",
    "inits": "lecun",
}
_DOOR = {name: place for place, names in _PLACES.items() for name in names.split()}
_MODULES = {"probes": "lab.probes"} | {
    name: name for name in ("papers", "methods", "losses", "inits", "problems", "figures", "linalg")
}

__all__ = ["__version__", *_DOOR, *_MODULES]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _MODULES:
        found = import_module(f"shoal.{_MODULES[name]}")
    elif name in _DOOR:
        found = getattr(import_module(f"shoal.{_DOOR[name]}"), name)
    else:
        import difflib

        close = difflib.get_close_matches(name, __all__, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'shoal' has no attribute {name!r}{hint}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What the door offers."""
    return sorted(__all__)


if TYPE_CHECKING:
    from shoal import figures, inits, linalg, losses, methods, papers, problems
    from shoal.certificates import Certificate, Equality, Inequality, condition
    from shoal.door import report, setup
    from shoal.errors import InputError
    from shoal.inits import lecun
    from shoal.lab import probes
    from shoal.lab.claim import Claim, Control, above, below, between, exponent
    from shoal.lab.diagnosis import diagnose
    from shoal.lab.effects import compared, measured, per_doubling, power_law
    from shoal.lab.own import per_sample
    from shoal.lab.paper import Paper
    from shoal.lab.proof import Proof, prove
    from shoal.lab.replay import certify
    from shoal.lab.run import Run, load, train
    from shoal.lab.setting import Data, Setting, Static, Traced
    from shoal.lab.setup import Setup
    from shoal.lab.study import Study, decades
    from shoal.lab.theorem import Theorem
    from shoal.lab.watch import watch
    from shoal.landscapes import landscape
    from shoal.losses import half_sum_of_squares, mean_of_squares
    from shoal.problems import Problem
