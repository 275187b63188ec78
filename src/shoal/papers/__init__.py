"""The papers: built in, from a file, or from an installed package (entry points `shoal.papers`)."""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import InputError, nearest, words_of
from shoal.lab.paper import Paper
from shoal.lab.setup import Setup

LOADED = "shoal_paper_"
"""How the modules of users' files are called."""
BUILT_IN = ("wu2023", "song2024", "arda2026", "qin2025", "icl2025")


@functools.cache
def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="shoal.papers")}


def _value(module: Any, where: str) -> Paper:
    found = module if isinstance(module, Paper) else getattr(module, "PAPER", None)
    if not isinstance(found, Paper):
        raise InputError(f"{where} holds no paper: it should define PAPER = sh.Paper(...).")
    return found


@functools.cache
def _named(key: str) -> Paper:
    """A paper that is built in or installed; a KeyError if there is none."""
    if key in BUILT_IN:
        return _value(importlib.import_module(f"shoal.papers.{key}"), key)
    point = _entry_points()[key]
    try:
        return _value(point.load(), key)
    except (ImportError, AttributeError) as error:
        msg = f"the installed paper {key!r} cannot be loaded ({type(error).__name__}: {error})."
        raise InputError(msg) from None


@functools.cache
def _module(path: Path) -> Any:
    """Run a file. Only a path that the user typed is ever run.

    Afterwards we are where we were: what else the user typed is found from there.
    """
    mark = hashlib.sha256(str(path).encode()).hexdigest()[:8]  # files of one name are two modules
    name = f"{LOADED}{path.stem}_{mark}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that classes in it know their source
    here = os.open(".", os.O_RDONLY)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        msg = f"{str(path)!r} fails when it is run: {type(error).__name__}: {words_of(error)}"
        raise InputError(msg) from error
    finally:
        os.fchdir(here)
        os.close(here)
    return module


def _existing(target: str) -> Path:
    path = Path(target)
    if not path.is_file():
        msg = f"there is no file {target!r}; write a template with shoal new paper NAME."
        raise InputError(msg)
    return path.resolve()


def _from_file(path: Path) -> Paper:
    """The ``PAPER`` of a file."""
    module = _module(path)
    try:
        found = _value(module, str(path))
        if found.key in BUILT_IN:
            msg = f"{str(path)!r} calls itself {found.key!r}, which is a built-in paper; rename it."
            raise InputError(msg)
    except InputError:  # it is forgotten
        del sys.modules[module.__name__]
        _module.cache_clear()
        raise
    return found


def target_of(target: str) -> Any:
    """Where setups come from: a paper, or ``my.py:name``, a model in a user's file."""
    file, colon, name = target.rpartition(":")
    if not colon or not is_file(file):
        return paper_of(target)
    from shoal.lab.own import OwnModel

    module = _module(_existing(file))
    if not hasattr(module, name):
        known = [n for n, v in vars(module).items() if callable(v) or isinstance(v, Setup)]
        raise InputError(f"{file} defines no {name!r}; {nearest(name, known)}")
    return OwnModel(name, getattr(module, name), _existing(file), vars(module))


class _Papers(Mapping[str, Paper]):
    """All papers that have a name, loaded when looked at."""

    def __getitem__(self, key: str) -> Paper:
        return _named(key)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*BUILT_IN, *_entry_points())))

    def __len__(self) -> int:
        return sum(1 for _ in self)


PAPERS: Mapping[str, Paper] = _Papers()


def is_file(target: str) -> bool:
    """Whether a target is written as a Python file."""
    return target.endswith(".py")


def paper_of(target: str) -> Paper:
    """A paper by its key, or by the path of the file that defines it."""
    if is_file(target):
        return _from_file(_existing(target))
    if ".py:" in target:
        raise InputError(
            f"{target!r} is a model, not a paper; theorems about every model are kernel_regime and "
            f"theorem_d0: shoal certify {target}.kernel_regime."
        )
    if target not in PAPERS:
        raise InputError(f"no paper is called {target!r}; {nearest(target, PAPERS)}")
    return PAPERS[target]


def known_paper(key: str) -> Paper:
    """A paper by the key that a run folder names: built in, installed, or loaded by the user.

    A key from a file is never taken for a path: only what the user types is run.
    """
    if key in BUILT_IN:
        return PAPERS[key]
    for module in reversed(list(sys.modules.values())):
        paper = getattr(module, "__dict__", {}).get("PAPER")
        if isinstance(paper, Paper) and paper.key == key:
            return paper
    if key not in PAPERS:
        raise InputError(
            f"no paper is called {key!r} here; if it is your own, name its file: --paper FILE, or "
            "in Python sh.load(folder, paper=FILE)."
        )
    return PAPERS[key]


def split_target(name: str) -> tuple[str, str]:
    """Split ``TARGET.PART`` (a theorem, a claim or a figure); the part may be empty.

    >>> split_target("wu2023.theorem_a"), split_target("./mine.py.theorem_1"), split_target("a.py")
    (('wu2023', 'theorem_a'), ('./mine.py', 'theorem_1'), ('a.py', ''))
    >>> split_target("my.py:model.kernel_regime"), split_target("my.py:model")
    (('my.py:model', 'kernel_regime'), ('my.py:model', ''))
    """
    file, own, rest = name.partition(".py:")
    if own:
        model, _, part = rest.partition(".")
        return f"{file}{own}{model}", part
    if is_file(name):
        return name, ""
    target, _, part = name.rpartition(".") if ".py." in name else name.partition(".")
    return target, part
