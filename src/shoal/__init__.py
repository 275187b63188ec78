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

__version__ = "0.2.0.dev0"

_DOOR = {
    "setup": "shoal.door",
    "report": "shoal.door",
    "landscape": "shoal.door",
    "train": "shoal.lab.run",
    "Run": "shoal.lab.run",
    "load": "shoal.lab.run",
    "certify": "shoal.lab.theorem",
    "Theorem": "shoal.lab.theorem",
    "Setup": "shoal.lab.setup",
    "per_sample": "shoal.lab.setup",
    "Study": "shoal.lab.study",
    "decades": "shoal.lab.study",
    "Setting": "shoal.lab.setting",
    "Static": "shoal.lab.setting",
    "Traced": "shoal.lab.setting",
    "Data": "shoal.lab.setting",
    "Paper": "shoal.lab.paper",
    "Claim": "shoal.lab.claim",
    "Plan": "shoal.lab.claim",
    "Rule": "shoal.lab.claim",
    "above": "shoal.lab.claim",
    "below": "shoal.lab.claim",
    "between": "shoal.lab.claim",
    "exponent": "shoal.lab.claim",
    "slope": "shoal.lab.claim",
    "Certificate": "shoal.certificates",
    "Inequality": "shoal.certificates",
    "Equality": "shoal.certificates",
    "Problem": "shoal.problems",
    "InputError": "shoal.errors",
    "half_sum_of_squares": "shoal.losses",
    "mean_of_squares": "shoal.losses",
    "lecun": "shoal.inits",
}
_MODULES = ("papers", "methods", "losses", "inits", "problems", "figures", "linalg")

__all__ = ["__version__", "probes", *_DOOR, *_MODULES]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _DOOR:
        found = getattr(import_module(_DOOR[name]), name)
    elif name in _MODULES:
        found = import_module(f"shoal.{name}")
    elif name == "probes":
        found = import_module("shoal.lab.probes")
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
    from shoal.certificates import Certificate, Equality, Inequality
    from shoal.door import landscape, report, setup
    from shoal.errors import InputError
    from shoal.inits import lecun
    from shoal.lab import probes
    from shoal.lab.claim import Claim, Plan, Rule, above, below, between, exponent, slope
    from shoal.lab.paper import Paper
    from shoal.lab.run import Run, load, train
    from shoal.lab.setting import Data, Setting, Static, Traced
    from shoal.lab.setup import Setup, per_sample
    from shoal.lab.study import Study, decades
    from shoal.lab.theorem import Theorem, certify
    from shoal.losses import half_sum_of_squares, mean_of_squares
    from shoal.problems import Problem
