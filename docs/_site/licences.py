"""The list of packages that shoal needs, with their licences, as packages declare them.

``python docs/_site/licences.py`` writes docs/licences.md from what is installed; install every
extra first.
"""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).parents[1] / "licences.md"
HEAD = """# Licences

shoal is under the Apache License 2.0. These packages are installed with it or with one of its
extras, directly or because another one needs them; none is part of shoal's own files. The licence
is the one that the package declares; "for" names the extras that bring it (nothing: shoal itself).
The page is made by `python docs/_site/licences.py`, and a test compares it with what is installed.
PyTorch's builds for graphics cards bring further packages of NVIDIA under NVIDIA's own terms.

| package | licence | for |
|---|---|---|
"""


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(extra: str = "") -> dict[str, Distribution]:
    """Packages that are installed for shoal with an extra, directly or not, by name."""
    found: dict[str, Distribution] = {}
    _collect("shoal", {extra}, found, set())
    found.pop("shoal")
    return found


def _collect(
    name: str, extras: set[str], found: dict[str, Distribution], seen: set[tuple[str, str]]
) -> None:
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    found[normal(name)] = package
    for extra in {"", *extras}:
        if (normal(name), extra) in seen:
            continue
        seen.add((normal(name), extra))
        for text in package.requires or ():
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                _collect(one.name, one.extras, found, seen)


def extras() -> list[str]:
    """The names of shoal's extras."""
    return sorted(distribution("shoal").metadata.get_all("Provides-Extra") or [])


def licence(package: Distribution) -> str:
    """The licence that a package declares: an expression, a classifier, or its own words."""
    about = package.metadata
    if said := about.get("License-Expression"):
        return said
    kinds = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    if kinds:
        return ", ".join(kind.split(" :: ")[-1] for kind in kinds)
    return (about.get("License") or "not declared").splitlines()[0]


def rows() -> list[str]:
    """A row of the table for every package that is installed."""
    usual = needed()
    brought: dict[str, list[str]] = {}
    packages = dict(usual)
    for extra in extras():
        for name, package in needed(extra).items():
            if name not in usual:
                packages[name] = package
                brought.setdefault(name, []).append(extra)
    return [
        f"| {name} | {licence(packages[name])} | {', '.join(brought.get(name, []))} |"
        for name in sorted(packages)
    ]


if __name__ == "__main__":
    PAGE.write_text(HEAD + "\n".join(rows()) + "\n")
