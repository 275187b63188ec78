"""Imports point one way."""

import ast
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
LAYERS = (
    {"errors"},
    {"_typing", "trees", "linalg", "fits", "figures", "programs"},
    {"problems", "attention", "losses", "files", "settings", "reviews", "pathfinder", "native"},
    {"models", "inits", "projections", "keeping", "session"},
    {"methods", "training", "diagnostics"},
    {"certificates", "claims", "rules"},
    {"theory", "experiments", "tuning"},
    {"papers"},
    {"store", "sweeps", "workers"},
    {"ledger"},
    {"report"},
    {"cli", "__main__"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def modules():
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts != ("__init__",):
            yield path, parts


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "shoal":
                yield from (alias.name for alias in node.names)
            elif node.module.startswith("shoal."):
                yield node.module.removeprefix("shoal.")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("shoal."):
                    yield alias.name.removeprefix("shoal.")


def test_every_module_has_a_layer():
    assert {parts[0] for _, parts in modules()} <= set(RANK)


def test_imports_point_upward_only():
    wrong = []
    for path, parts in modules():
        for name in imports(path):
            other = name.split(".")[0]
            if other in ("__version__",) or other == parts[0]:
                continue
            if RANK[other] > RANK[parts[0]]:
                wrong.append(f"{'.'.join(parts)} imports {name}")
    assert wrong == []


def test_papers_do_not_know_each_other():
    for path, parts in modules():
        if parts[0] == "papers" and len(parts) > 2:
            others = {n.split(".")[1] for n in imports(path) if n.startswith("papers.")}
            assert others <= {parts[1]}


def test_only_the_edges_print():
    for path, parts in modules():
        if parts[0] != "cli":
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            names = {n.func.id for n in calls if isinstance(n.func, ast.Name)}
            assert "print" not in names, path


def test_nothing_is_unpickled():
    for path, _ in modules():
        text = path.read_text()
        assert "allow_pickle=True" not in text
        assert "import pickle" not in text
