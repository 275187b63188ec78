"""Imports point one way, and some things are done in one place only."""

import ast
import dataclasses
from pathlib import Path

import shoal
from shoal.lab.paper import Paper

ROOT = Path(shoal.__file__).parent
LAYERS = (
    {
        "errors", "_typing", "trees", "linalg", "activations", "losses", "methods", "models",
        "training", "problems", "files", "figures", "fits", "tuning", "inits", "attention",
        "certificates", "jsons", "runtime", "native", "fused", "mnist", "pathfinder", "reviews",
        "theory", "interop", "diagnostics", "verified", "check", "evidence",
    },
    {"lab"},
    {"papers", "door"},
    {"disk"},
    {"landscapes", "pages", "console"},
    {"sweeps", "workers"},
    {"live"},
    {"cli"},
    {"__main__"},
)  # fmt: skip
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
LAZY_FROM_LAB = {"console", "pages", "disk", "papers", "lab"}
"""Above the laboratory, but imported inside functions: results print, draw and save themselves."""


def modules():
    """Every module's dotted name below shoal, with its syntax tree."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            yield name, ast.parse(path.read_text())


MODULES = dict(modules())


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def statements(tree, *, lazy):
    """Import statements: those that run when the module is imported, and maybe those inside."""
    found = []

    def look(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                found.append(child)
            elif is_type_checking(child):
                continue
            elif lazy or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                look(child)

    look(tree)
    return found


def imported(tree, *, lazy=False):
    """Names below shoal that a module imports; ``from shoal.lab import engine`` is lab.engine."""
    for node in statements(tree, lazy=lazy):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.level:
            raise AssertionError(f"relative import in line {node.lineno}")
        else:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("shoal."):
                below = name.removeprefix("shoal.")
                while below and below not in MODULES:
                    below = below.rpartition(".")[0]
                if below:
                    yield below


def top(name):
    return name.partition(".")[0]


def test_every_module_has_a_layer_and_every_layer_a_module():
    assert {top(name) for name in MODULES} == set(RANK)


def test_module_level_imports_point_one_way():
    wrong = [
        f"{name} imports {other}"
        for name, tree in MODULES.items()
        for other in imported(tree)
        if RANK[top(other)] > RANK[top(name)]
    ]
    assert wrong == []


def test_the_base_never_reaches_up_and_the_laboratory_only_lazily_and_to_its_own_edges():
    wrong = []
    for name, tree in MODULES.items():
        for other in imported(tree, lazy=True):
            if RANK[top(name)] == 0 and RANK[top(other)] > 0:
                wrong.append(f"{name} imports {other}")
            if top(name) == "lab" and RANK[top(other)] > 0 and top(other) not in LAZY_FROM_LAB:
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_no_module_imports_itself_around_a_circle():
    graph = {name: set(imported(tree)) - {name} for name, tree in MODULES.items()}
    done, path = set(), []

    def visit(name):
        if name in path:
            raise AssertionError(" -> ".join([*path[path.index(name) :], name]))
        if name not in done:
            path.append(name)
            for other in sorted(graph[name]):
                visit(other)
            path.pop()
            done.add(name)

    for name in graph:
        visit(name)


def test_papers_do_not_know_each_other():
    papers = [name for name in MODULES if name.startswith("papers.")]
    assert papers
    for name in papers:
        own = name.split(".")[1]
        others = {n.split(".")[1] for n in imported(MODULES[name], lazy=True) if "papers." in n}
        assert others <= {own}, name


def called(tree):
    """Names of what a module calls: ``f(...)`` is f, ``a.b.f(...)`` is b.f and f."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr
                owner = node.func.value
                if isinstance(owner, ast.Name):
                    yield f"{owner.id}.{node.func.attr}"


def names_from(tree, module):
    """Under which names a module's functions are imported."""
    for node in statements(tree, lazy=True):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            for alias in node.names:
                yield alias.name, alias.asname or alias.name


def test_one_engine_trains():
    users = set()
    for name, tree in MODULES.items():
        calls = set(called(tree))
        mine = dict(names_from(tree, "shoal.training"))
        if mine.get("segment") in calls or "training.segment" in calls:
            users.add(name)
    assert users <= {"lab.engine", "training"}
    assert "lab.engine" in users


def test_only_the_command_line_prints():
    for name, tree in MODULES.items():
        calls = (n.func for n in ast.walk(tree) if isinstance(n, ast.Call))
        names = {f.id for f in calls if isinstance(f, ast.Name)}
        assert top(name) == "cli" or not {"print", "input"} & names, name


def test_only_the_disk_writes_files():
    """What makes a file goes through `files.write_aside`, or lives in disk."""
    for name, tree in MODULES.items():
        if top(name) not in ("disk", "cli"):
            assert not {"write_text", "write_bytes"} & set(called(tree)), name


def test_nothing_is_unpickled_and_nothing_is_evaluated():
    for name, tree in MODULES.items():
        for node in statements(tree, lazy=True):
            said = [alias.name for alias in node.names] + [getattr(node, "module", None)]
            assert not {"pickle", "marshal", "shelve", "dill"} & set(said), name
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert not any(
                    k.arg == "allow_pickle" and getattr(k.value, "value", True)
                    for k in node.keywords
                ), name
                assert getattr(node.func, "id", "") not in ("eval", "exec"), name


def test_importing_changes_nothing_in_the_process():
    """No module sets an environment variable, a JAX option or a signal handler when imported."""
    for name, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            text = ast.unparse(node)
            for touch in ("os.environ[", "environ.setdefault", "config.update", "signal.signal"):
                assert touch not in text, f"{name}: {text}"


def test_a_paper_is_small():
    assert len(dataclasses.fields(Paper)) <= 12
