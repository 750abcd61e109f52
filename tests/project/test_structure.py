"""The house in order: who imports whom, and what users may import."""

import ast
import doctest
import functools
import gc
import importlib
import inspect
import re
import tempfile
from pathlib import Path

import pytest
from repository import CSRC, DOCS, ROOT

import memload

PACKAGE = Path(memload.__file__).parent


# From the ground up. A package imports from packages that stand before it, in the order of the lines and within a line;
# imports for type checking and imports inside functions count. The root modules stand below all, `memload` and its
# `__main__` above.
FLOORS = """
memory
columns
casts sampling
formats
engine
device
dataset
loader
writing graphs images caching monitoring planning
cli
"""
ORDER = ["", *FLOORS.split()]
# Methods that are another way to say a function of a higher floor, which they import when they are called.
LATE = {("dataset.mapped", "caching.map_cache")}


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}
ROOMS = [name for name, path in MODULES.items() if path.name != "__init__.py"]
WITH_EXAMPLES = [name for name in ROOMS if ">>> " in MODULES[name].read_text()]


@pytest.fixture(scope="module", autouse=True)
def _trees_that_no_collection_goes_through():
    """Half a million nodes, through which Python's collector of garbage would go again and again."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path, types=True):
    """The modules of memload that a file imports, inside functions and, if wanted, for type checking, too."""
    return [*_imports_of(path, types)]


def _imports_of(path, types):
    tree = tree_of(path)
    unwanted = {
        inner
        for node in ast.walk(tree)
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in unwanted:
            continue
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            parts = name.split(".")
            if parts[0] != "memload" or parts[1:2] in (["_core"], ["_cuda"], ["__version__"]):
                continue
            yield next(known for k in range(len(parts), 0, -1) if (known := ".".join(parts[1:k])) in MODULES or k == 1)


def package_of(module):
    return module.partition(".")[0] if "." in module or MODULES[module].name == "__init__.py" else ""


def test_every_package_has_a_floor_and_none_is_left_that_is_gone():
    assert sorted({package_of(module) for module in MODULES}) == sorted(ORDER)


def stands_above(imported, module):
    if not imported:
        return package_of(module) != "cli"
    return ORDER.index(package_of(imported)) > ORDER.index(package_of(module))


def test_modules_import_from_their_packages_and_those_before_them():
    wrong = [
        f"{module} may not import memload{imported and '.'}{imported}, which stands above it"
        for module in ROOMS
        if module != "__main__"
        for imported in imports_of(MODULES[module])
        if (module, imported) not in LATE and stands_above(imported, module)
    ]
    assert wrong == []


def test_modules_import_each_other_in_no_circle():
    edges = {
        module: {one for one in imports_of(path, types=False) if (module, one) not in LATE}
        for module, path in MODULES.items()
    }
    done, under_way = set(), []

    def visit(module):
        assert module not in under_way, " -> ".join([*under_way[under_way.index(module) :], module])
        if module not in done:
            under_way.append(module)
            for one in sorted(edges[module] - {module, ""}):
                visit(one)
            done.add(under_way.pop())

    for module in sorted(MODULES):
        visit(module)


def private_to_torch(path):
    """What a file uses of torch's private parts: names of modules that it imports from, and dotted names."""
    for node in ast.walk(tree_of(path)):
        name = ast.unparse(node) if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.ImportFrom):
            name = node.module
        if re.fullmatch(r"torch(\.\w+)*\._(?!_)\w+(\.\w+)*", name or ""):
            yield name


def test_what_is_private_to_torch_is_in_the_table_of_the_design():
    page = (DOCS / "design" / "loader.md").read_text()
    table = page.partition("## What is private to torch")[2].splitlines()
    files = {f"memload/{path.relative_to(PACKAGE)}": path for path in MODULES.values()}
    used = [(name, file) for file, path in files.items() for name in private_to_torch(path)]
    assert len(used) > 5
    assert [(name, file) for name, file in used if not any(name in line and file in line for line in table)] == []


def test_nobody_imports_relatively():
    for path in MODULES.values():
        for node in ast.walk(tree_of(path)):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


@pytest.mark.parametrize("name", memload.__all__)
def test_every_public_name_exists_and_is_documented(name):
    member = getattr(memload, name)
    if name == "__version__":
        return
    assert inspect.getdoc(member)
    assert member.__module__.startswith("memload")
    if inspect.isfunction(member):
        assert "Example:" in member.__doc__
        assert ">>> " in member.__doc__


def test_all_is_sorted_and_complete():
    assert sorted(memload.__all__) == memload.__all__ == dir(memload)
    public = {
        name
        for name, member in vars(memload).items()
        if not name.startswith("_") and not inspect.ismodule(member) and name != "annotations"
    }
    assert public <= set(memload.__all__)


def test_files_that_docstrings_name_are_there():
    """From the module's own folder, or from memload's; what a user calls train.py is not ours."""
    missing = []
    for module, path in MODULES.items():
        for name in re.findall(r"[\w/]+\.py\b", ast.get_docstring(tree_of(path)) or ""):
            if name != "train.py" and not any((folder / name).exists() for folder in (path.parent, PACKAGE)):
                missing.append((module, name))
    assert missing == []


@pytest.mark.parametrize("package", sorted(PACKAGE.glob("*/__init__.py")), ids=lambda path: path.parent.name)
def test_a_package_says_what_lies_in_it_and_names_no_module_that_is_gone(package):
    said = ast.get_docstring(ast.parse(package.read_text()))
    rooms = {path.stem for path in package.parent.glob("*.py")}
    assert set(re.findall(r"`(\w+)`", said)) <= rooms | set(memload.__all__)
    below = ORDER[1 : ORDER.index(package.parent.name)]
    assert " ".join(said.split()).endswith(", ".join(["Imports only from: the root modules", *below]) + ".")


def test_no_page_holds_the_marks_of_a_merge():
    root = ROOT
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("*.toml")]
    assert pages
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    assert [str(page) for page in pages if any(line.startswith(marks) for line in page.read_text().splitlines())] == []


def test_files_stay_readable_in_length():
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 450} == {}


def test_sources_of_the_core_stay_readable_in_length():
    core = CSRC
    sources = [path for path in core.rglob("*.*") if path.suffix in {".h", ".cpp", ".cu"}]
    lengths = {str(path): len(path.read_text().splitlines()) for path in sources if path.parent.name != "tests"}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > 450} == {}


def _functions():
    for name, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                yield f"{name}.{node.name}", node.end_lineno - first.lineno + 1


def test_functions_stay_short():
    assert [(name, lines) for name, lines in _functions() if lines > 60] == []


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(module, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outcome = doctest.testmod(importlib.import_module(f"memload.{module}"))
    assert outcome.failed == 0
