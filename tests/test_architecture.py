"""The import table of docs/design.md, as data: who may import whom, and which file owns which heavy package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import localmem

PACKAGE = Path(localmem.__file__).parent

# Lowest first. A module may import its own level and those below; a name ending in a dot stands for a folder.
LEVELS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "resources",
        "kernel.messages",
        "kernel.events",
        "kernel.budget",
        "kernel.tokens",
        "kernel.cancellation",
        "gguf",
    ),
    (
        "calls.",
        "memory.working_context",
        "memory.main_context",
        "memory.search",
        "memory.signs",
        "memory.user_text",
        "memory.letta_file",
    ),
    ("storage.", "backend.", "config", "models", "pull", "memory.recall", "memory.archival", "memory.history"),
    ("memory.summary", "memory.functions", "kernel."),
    ("runtime", "letta_import"),
    ("bench.",),
    ("interfaces.", "__main__"),
)

# The lowest level and the pure files know no clock, no disk, no model: only these packages beside the standard library.
PURE: dict[str, frozenset[str]] = {
    "kernel.messages": frozenset(),
    "kernel.events": frozenset(),
    "kernel.budget": frozenset(),
    "kernel.tokens": frozenset(),
    "kernel.cancellation": frozenset(),
    "memory.working_context": frozenset(),
    "memory.main_context": frozenset(),
    "memory.search": frozenset(),
    "memory.user_text": frozenset(),
    "memory.letta_file": frozenset(),
    "calls.digits": frozenset(),
    "memory.signs": frozenset({"numpy"}),
    "calls.calibration": frozenset({"numpy"}),
    "calls.frame": frozenset(),
    "calls.gbnf": frozenset(),
    "calls.gbnf_check": frozenset(),
    "calls.grammar": frozenset(),
    "calls.names": frozenset(),
    "calls.pattern": frozenset(),
    "calls.prefix": frozenset(),
    "calls.prompt": frozenset(),
    "calls.schema": frozenset(),
    "calls.stream": frozenset(),
    "calls.chat_format": frozenset({"jinja2"}),
    "calls.spec": frozenset({"outlines", "pydantic", "pydantic_core"}),
}
IMPURE_STANDARD = {"sqlite3", "time", "os", "socket", "threading", "subprocess", "random", "urllib", "http"}

HEAVY: dict[str, set[str]] = {
    "llama_cpp": {"backend.llama_library"},
    "llguidance": {"backend.constraint"},
    "outlines_core": {"backend.constraint"},
    "outlines": {"calls.spec"},
    "hnswlib": {"storage.vector_index"},
    "sentence_transformers": {"storage.embedder"},
    "torch": {"storage.embedder"},
    "tiktoken": {"backend.tokenizer"},
    "sqlite_utils": {"storage.schema"},
    "croniter": {"kernel.scheduler"},
    "jinja2": {"calls.chat_format"},
    "scipy": {"bench.tuning"},
    "matplotlib": {"bench.report"},
}
CONCRETE_BACKENDS = {"localmem.backend.llama", "localmem.backend.llama_library", "localmem.backend.scripted"}


def modules() -> dict[str, Path]:
    """Module name without the package -> file; packages themselves ("__init__") are left out."""
    files = (path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in files}


def imports(path: Path) -> set[str]:
    """Every module a file imports when it runs, those inside functions included."""
    found: set[str] = set()
    for node in running_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the import out, from localmem. on"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without what stands under `if TYPE_CHECKING:`."""
    yield node
    only_for_checkers = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    children = node.orelse if only_for_checkers and isinstance(node, ast.If) else ast.iter_child_nodes(node)
    for child in children:
        yield from running_nodes(child)


def own_imports(name: str) -> set[str]:
    """The localmem modules that `name` imports."""
    known = modules()
    found = {imported.removeprefix("localmem.") for imported in imports(known[name])}
    return {module for module in found if module in known}


def level(module: str) -> int:
    exact = [number for number, names in enumerate(LEVELS) if module in names]
    folder = [n for n, names in enumerate(LEVELS) if any(p.endswith(".") and module.startswith(p) for p in names)]
    assert exact or folder, f"{module} has no place in the import table; give it one"
    return (exact or folder)[0]


@pytest.mark.parametrize("module", sorted(modules()))
def test_module_imports_nothing_above_it(module: str):
    above = {imported for imported in own_imports(module) if level(imported) > level(module)}
    assert not above


def test_imports_have_no_cycle():
    graph = {module: own_imports(module) for module in modules()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, naming the cycle
    assert len(order) == len(graph)


@pytest.mark.parametrize("package", sorted(HEAVY))
def test_heavy_package_is_imported_in_exactly_its_file(package: str):
    importers = {name for name, path in modules().items() if any(i.split(".")[0] == package for i in imports(path))}
    assert importers == HEAVY[package]


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_module_knows_no_clock_no_disk_no_model(module: str):
    used = {imported.split(".")[0] for imported in imports(modules()[module])} - {"localmem", "__future__"}
    outside = {name for name in used if name not in sys.stdlib_module_names}
    assert outside <= PURE[module]
    assert not used & IMPURE_STANDARD


def test_only_the_composition_root_and_the_edges_name_a_concrete_backend():
    below = [name for name in modules() if level(name) < level("runtime") and not name.startswith("backend.")]
    naming = {name: imports(modules()[name]) & CONCRETE_BACKENDS for name in below}
    assert not {name: found for name, found in naming.items() if found}


def test_nothing_imports_an_interface():
    insiders = {name for name in modules() if not name.startswith(("interfaces.", "__main__"))}
    importers = {n for n in insiders if any(i.startswith("localmem.interfaces") for i in imports(modules()[n]))}
    assert not importers


def handlers(path: Path) -> Iterator[ast.ExceptHandler]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))


def caught(handler: ast.ExceptHandler) -> set[str]:
    return {"everything"} if handler.type is None else {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)}


def test_only_the_executor_catches_every_exception():
    catching = {
        n for n, path in modules().items() if any(caught(h) & {"Exception", "everything"} for h in handlers(path))
    }
    assert catching == {"kernel.executor"}


def test_what_catches_an_interrupt_raises_it_again():
    kept = [
        f"{name}:{handler.lineno}"
        for name, path in modules().items()
        for handler in handlers(path)
        if "BaseException" in caught(handler) and not isinstance(handler.body[-1], ast.Raise)
    ]
    assert not kept


def test_the_package_prints_nothing():
    printing = [
        f"{name}:{node.lineno}"
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not printing


def test_the_public_names_are_these():
    assert localmem.__all__ == ["Agent", "LocalmemError", "Settings", "Step", "ToolRules", "load_settings", "open"]


@pytest.mark.parametrize("name", localmem.__all__)
def test_public_name_can_be_loaded(name: str):
    assert callable(getattr(localmem, name))


def test_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = localmem.nothing


def loaded_after(statement: str) -> set[str]:
    """The top-level modules a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nsys.stdout.write(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["import localmem", "import localmem; localmem.Agent; localmem.open; localmem.load_settings"],
    ids=["the package", "every public name"],
)
def test_importing_loads_no_heavy_package(statement: str):
    # jinja2, numpy and pydantic are small, and needed by what the second statement names.
    assert not loaded_after(statement) & (set(HEAVY) - {"jinja2"})


def test_importing_the_package_alone_loads_nothing_from_outside():
    outside = loaded_after("import localmem") - set(sys.stdlib_module_names) - {"localmem", "__main__"}
    assert outside <= {name for name in outside if name.startswith(("_", "sitecustomize", "distutils"))}
