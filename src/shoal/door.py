"""What `import shoal as sh` offers that is not a method of something else."""

from pathlib import Path
from typing import Any

from shoal.errors import InputError, nearest
from shoal.interop import is_module
from shoal.lab.own import module_setup, own_setup
from shoal.lab.paper import Paper
from shoal.lab.setting import Setting
from shoal.lab.setup import Setup, paper_setup


def setup(target: Any, *args: Any, seeds: Any = None, **values: Any) -> Setup:
    """Make a setup: model, data, loss and initial weights.

    - ``setup("wu2023", width=64, seeds=range(4))``: a paper by its key or file, or a `Paper`; every
      setting is a keyword; ``data=`` and ``params=`` name files.
    - ``setup(f, params, x, y, loss="squares")``: a function ``f(params, x)`` of the whole batch;
      ``params`` is any pytree of weights, a file of them, or ``init(key)`` that draws them for
      every seed.
    - ``setup(module, x, y)``: a Flax NNX, Equinox or PyTorch module, in evaluation mode; a Flax
      Linen module comes with its variables, ``setup(module, variables, x, y)``.

    >>> import shoal as sh
    >>> made = sh.setup(lambda w, x: x @ w, np.zeros(2), np.eye(2), np.ones(2))
    >>> sh.train(made, steps=2, step_size=0.5).risk.tolist()
    [[1.0, 0.25, 0.0625]]
    """
    if isinstance(seeds, int):
        raise InputError(
            f"{seeds=}: expected several, such as seeds=range({seeds}) or seeds=[{seeds}]."
        )
    if isinstance(target, type) and issubclass(target, Setting):
        target = target.paper or Paper(target, key=target.__name__.lower())
    if isinstance(target, str):
        from shoal.papers import paper_of

        target = paper_of(target)
    if isinstance(target, Paper):
        if args:
            key = target.key
            raise InputError(f"{key}: settings are keywords, such as sh.setup({key!r}, width=64).")
        files = {k: values.pop(k) for k in ("data", "params", "precision") if k in values}
        return paper_setup(target, values, seeds=(0,) if seeds is None else seeds, **files)
    if is_module(target):
        return module_setup(target, *args, seeds=seeds, **values)
    if not callable(target):
        msg = f"cannot make a setup from {type(target).__name__}: expected a paper or a function."
        raise InputError(msg)
    if len(args) != 3:
        msg = f"expected sh.setup(f, params, x, y), and {len(args) + 1} values were given."
        raise InputError(msg)
    if unknown := set(values) - OPTIONS:
        raise InputError(
            f"sh.setup has no option {min(unknown)!r}; {nearest(min(unknown), OPTIONS)}"
        )
    return own_setup(target, *args, seeds=seeds, **values)


OPTIONS = {"loss", "train", "precision"}
"""What a setup of an own model can be told beside its data."""


def report(*results: Any, out: str | Path = "report.html", title: str = "") -> Path:
    """Write one self-contained HTML page about runs and certificates, and return its path."""
    from shoal.pages.sections import report_page

    return report_page(results, Path(out), title)
