"""Counts what the architecture of memload is judged by, and says which figures are still far from what is wanted.

PYTHONPATH=. python tools/house.py            # a table: now and wanted
PYTHONPATH=. python tools/house.py --json     # the same for programs
PYTHONPATH=. python tools/house.py --check    # exit status 1 if a figure that was met is met no longer

What the files say is counted in this tree. What happens at run time (a pass, an import) is counted in fresh processes,
in the memload that is importable. A check leaves times out: they depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# -P: the folder it is run in, which may be this tree without its compiled module, is no place to import from.
PYTHON = (sys.executable, "-P")
# What users ask for by name; a loop over shards works without it. Packages, and modules of others.
AROUND = frozenset(
    [
        *("caching", "cli", "graphs", "images", "monitoring", "planning", "writing"),
        *(
            "dataset.joining",
            "dataset.recordings.recording",
            "dataset.zipping",
            "device.layerwise",
            "device.offload",
            "device.weights",
        ),
        *("loader.accelerate", "loader.accumulation"),
    ]
)


@dataclass(frozen=True)
class Wanted:
    """The most that a figure is to be; `met` once it was reached, from when on `--check` holds it.

    `held` is what was reached on the way there, which `--check` holds until then.
    """

    title: str
    most: float
    met: bool = False
    held: float | None = None

    @property
    def limit(self) -> float | None:
        """What the figure may not exceed; None: anything."""
        return self.most if self.met else self.held


WANTED = {
    "packages": Wanted("packages of memload/", 16, met=True),
    "root_modules": Wanted("root modules of memload/", 8, met=True),
    "circle": Wanted("packages and root modules in the largest circle of imports", 0, met=True),
    "circles": Wanted("circles of imports", 0, met=True),
    "floors": Wanted("floors in tests/project/test_structure.py", 10, met=True),
    "private_uses": Wanted("uses of loader._something outside of the loader's package", 0, met=True),
    "private_files": Wanted("files with such uses", 0, met=True),
    "pass_files": Wanted("Python files that one pass executes", 20, met=True),
    "pass_units": Wanted("packages and root modules of these files", 8, met=True),
    "pass_changes": Wanted("changes of file before the second batch", 60, met=True),
    "import_modules": Wanted("modules of memload that `import memload` loads", 110, met=True),
    "loop_modules": Wanted("modules of memload that a loop over shards loads", 110, met=True),
    "loop_around": Wanted("those of them that stand around the loader", 0, met=True),
    "help_torch": Wanted("modules of torch and numpy that `memload --help` loads", 0, met=True),
    "lines": Wanted("lines of memload/", 36_000),
    "import_seconds": Wanted("seconds that `import memload` takes after torch", 0.2),
    "import_cpu": Wanted("of these on the CPU", 0.2),
    "loop_seconds": Wanted("seconds until FastLoader, open and Cast are there, after torch", 0.2),
    "loop_cpu": Wanted("of these on the CPU", 0.2),
    "help_seconds": Wanted("seconds that `memload --help` takes", 0.5),
    "help_cpu": Wanted("of these on the CPU", 0.5),
}


# What the files say


def sources(package: Path) -> dict[str, Path]:
    """The Python files of a package by the names of their modules: "" for its own, "casts.rule" and so on."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def unit_of(module: str) -> str:
    """The package directly below memload, or the root module, in which a module lies."""
    return module.partition(".")[0]


def packages_and_root_modules(package: Path) -> tuple[list[str], list[str]]:
    """Packages directly below a package, and its modules without those that Python itself asks for."""
    packages = [path.parent.name for path in package.glob("*/__init__.py")]
    modules = [path.stem for path in package.glob("*.py") if not path.stem.startswith("__")]
    return sorted(packages), sorted(modules)


def imported_names(tree: ast.AST, name: str) -> Iterator[str]:
    """What a file imports of package `name`, for types and in functions too, without the package's own name."""
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            found = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        yield from (inner.partition(".")[2] for inner in found if inner.partition(".")[0] == name)


# A method that is another way to say a function of a higher floor, which it imports when it is called.
LATE = {("dataset.mapped", "caching.map_cache")}


def imports_among_units(package: Path) -> dict[str, set[str]]:
    """For each package and root module those that its files import, LATE apart; "" is the package's `__init__.py`."""
    modules = sources(package)
    units = {unit_of(module) for module in modules}
    edges: dict[str, set[str]] = {unit: set() for unit in units}
    for module, path in modules.items():
        for imported in imported_names(ast.parse(path.read_text()), package.name):
            if any(imported == late or imported.startswith(f"{late}.") for by, late in LATE if by == module):
                continue
            unit = unit_of(imported)
            if unit.startswith("_") and unit not in units:  # compiled modules, __version__
                continue
            edges[unit_of(module)].add(unit if unit in units else "")
    return {unit: among - {unit} for unit, among in edges.items()}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one unit, the largest first (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_units: list[str] = []
    found = []

    def visit(unit: str) -> None:
        number[unit] = lowest[unit] = len(number)
        open_units.append(unit)
        for other in sorted(edges[unit]):
            if other not in number:
                visit(other)
                lowest[unit] = min(lowest[unit], lowest[other])
            elif other in open_units:
                lowest[unit] = min(lowest[unit], number[other])
        if lowest[unit] == number[unit]:
            start = open_units.index(unit)
            found.append(sorted(open_units[start:]))
            del open_units[start:]

    for unit in sorted(edges):
        if unit not in number:
            visit(unit)
    return sorted((circle for circle in found if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def floors(test: Path) -> int:
    """How many floors a test of the structure lists: in FLOORS, and in PROGRAMS, if it has that apart."""
    count = 0
    for node in ast.parse(test.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("FLOORS", "PROGRAMS"):
            count += _length(node.value)
    if not count:
        raise SystemExit(f"{test}: no list FLOORS that could be counted")
    return count


def _length(table: ast.expr) -> int:
    """The entries of a literal; of a text those lines that are not indented, which begin an entry."""
    if isinstance(table, (ast.List, ast.Tuple)):
        return len(table.elts)
    if isinstance(table, ast.Dict):
        return len(table.keys)
    if isinstance(table, ast.Call) and table.args:
        return _length(table.args[0])
    if isinstance(table, ast.Constant) and isinstance(table.value, str):
        return sum(not line.startswith(" ") for line in table.value.strip().splitlines())
    raise SystemExit(f"floors are listed in a form that is not counted: {ast.unparse(table)[:60]}")


def private_uses(tree: ast.AST) -> int:
    """How often a file uses what is private to a `loader`, read or written or by getattr."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            count += _is_loader(node.value) and _is_private(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            named = node.args[1] if len(node.args) > 1 else None
            count += _is_loader(node.args[0]) and isinstance(named, ast.Constant) and _is_private(str(named.value))
    return count


def _is_loader(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_") == "loader"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def what_files_say(package: Path, structure: Path) -> dict[str, float]:
    """The figures that need no run."""
    packages, modules = packages_and_root_modules(package)
    round_about = circles(imports_among_units(package))
    uses = {
        module: private_uses(ast.parse(path.read_text()))
        for module, path in sources(package).items()
        if unit_of(module) != "loader"
    }
    return {
        "packages": len(packages),
        "root_modules": len(modules),
        "circle": max(map(len, round_about), default=0),
        "circles": len(round_about),
        "floors": floors(structure),
        "private_uses": sum(uses.values()),
        "private_files": sum(count > 0 for count in uses.values()),
        "lines": sum(len(path.read_text().splitlines()) for path in sources(package).values()),
    }


# What happens at run time: programs that print JSON

_SHARDS = """
import sys, torch, memload
rows = memload.from_arrays(x=torch.arange(4096 * 8).to(torch.uint8).reshape(4096, 8))
memload.write(sys.argv[1], rows, progress=False)
"""
_PASS = """
import json, os, sys, threading, torch, memload

def first_batch():
    loader = memload.FastLoader(dataset, batch_size=64, shuffle=True, cast={"x": memload.Cast("float32")})
    batches = iter(loader)
    return next(batches), batches

def entered(frame, event, argument):
    file = frame.f_code.co_filename
    if not file.startswith(home):
        return
    files.add(file[len(home):])
    if threading.current_thread() is threading.main_thread() and (not trail or trail[-1] != file):
        trail.append(file)

home = os.path.dirname(memload.__file__) + os.sep
dataset, files, trail = memload.open(sys.argv[1]), set(), []
first_batch()[1].close()  # what is imported and remembered at the first pass is not a pass's work
threading.settrace(entered)
sys.settrace(entered)
kept = first_batch()
sys.settrace(None)
threading.settrace(None)
kept[1].close()
print(json.dumps({"files": sorted(files), "changes": len(trail)}))
"""
_LOOP = """
import json, sys, torch, memload
for batch in memload.FastLoader(memload.open(sys.argv[1]), 64, shuffle=True, cast={"x": memload.Cast("float32")}):
    pass
print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] == "memload")))
"""
_IMPORT = """
import gc, json, sys, time, torch
gc.collect()  # which torch's import leaves due, and which would be counted here: 0.1 s
wall, cpu = time.perf_counter(), time.process_time()
import memload
for name in sys.argv[1:]:
    getattr(memload, name)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
modules = sum(name.partition(".")[0] == "memload" for name in sys.modules)
print(json.dumps({"modules": modules, "wall": wall, "cpu": cpu}))
"""
_HELP = """
import contextlib, io, json, resource, runpy, sys, time
sys.argv = ["memload", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    runpy.run_module("memload", run_name="__main__", alter_sys=True)
print(json.dumps(sum(name.partition(".")[0] in ("torch", "numpy") for name in sys.modules)))
"""


def outcome(program: str, *arguments: str) -> object:
    """What a program prints as JSON on its last line, run in a fresh process."""
    command = [*PYTHON, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"a program that counts ended with status {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def what_a_pass_does(shards: str) -> dict[str, float]:
    """Which files a pass executes: a set of shards, one cast, on the CPU, from the constructor to the first batch."""
    done = outcome(_PASS, shards)
    units = {file.partition(os.sep)[0] for file in done["files"]}
    return {"pass_files": len(done["files"]), "pass_units": len(units), "pass_changes": done["changes"]}


def what_is_loaded(shards: str) -> dict[str, float]:
    """How many modules there are after `import memload`, after a loop over shards, and after `memload --help`."""
    loop = outcome(_LOOP, shards)
    return {
        "import_modules": outcome(_IMPORT)["modules"],
        "loop_modules": len(loop),
        "loop_around": len(around(loop)),
        "help_torch": outcome(_HELP),
    }


def around(modules: Iterable[str]) -> list[str]:
    """Those modules, named in full, that stand around the loader."""
    return sorted(name for name in modules if AROUND & {unit_of(inner := name.partition(".")[2]), inner})


def how_long_it_takes(repeats: int) -> dict[str, float]:
    """Seconds of imports and of the help, the median of several fresh processes."""
    bare = [outcome(_IMPORT) for _ in range(repeats)]
    loop = [outcome(_IMPORT, "FastLoader", "open", "Cast") for _ in range(repeats)]
    helps = [_seconds_of_a_process("-m", "memload", "--help") for _ in range(repeats)]
    median = statistics.median
    return {
        "import_seconds": median(one["wall"] for one in bare),
        "import_cpu": median(one["cpu"] for one in bare),
        "loop_seconds": median(one["wall"] for one in loop),
        "loop_cpu": median(one["cpu"] for one in loop),
        "help_seconds": median(wall for wall, _ in helps),
        "help_cpu": median(cpu for _, cpu in helps),
    }


def _seconds_of_a_process(*arguments: str) -> tuple[float, float]:
    """How long Python takes for its arguments: by the clock, and on the CPU."""
    before, clock = os.times(), os.times().elapsed
    subprocess.run([*PYTHON, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=300)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - clock, used


def figures(repeats: int) -> dict[str, float]:
    """All figures; times only where they are to be repeated at least once."""
    found = what_files_say(ROOT / "memload", ROOT / "tests" / "project" / "test_structure.py")
    with tempfile.TemporaryDirectory() as folder:
        shards = str(Path(folder) / "shards")
        subprocess.run([*PYTHON, "-c", _SHARDS, shards], check=True, timeout=300)
        found |= what_a_pass_does(shards) | what_is_loaded(shards)
    if repeats:
        found |= how_long_it_takes(repeats)
    return found


# What is said of them


def regressed(found: dict[str, float], wanted: dict[str, Wanted]) -> list[str]:
    """A sentence for each figure that exceeds what it had reached before."""
    return [
        f"{wanted[name].title}: at most {limit:g} wanted, and reached before; now {now:g}"
        for name, now in found.items()
        if (limit := wanted[name].limit) is not None and now > limit
    ]


def table(found: dict[str, float], wanted: dict[str, Wanted]) -> str:
    """Now and wanted, a line for each figure; what is met has a mark."""
    lines = [f"{'':70} {'now':>8} {'wanted':>8}"]
    for name, want in wanted.items():
        if name in found:
            mark = " met" if found[name] <= want.most else ""
            lines.append(f"{want.title:70} {_said(found[name]):>8} {_said(want.most):>8}{mark}")
    return "\n".join(lines)


def _said(figure: float) -> str:
    return f"{figure:.2f}" if isinstance(figure, float) else f"{figure:,}"


def main(arguments: list[str] | None = None) -> int:
    """Print the figures and return the exit status: 1 if one that is to stay met is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="fail if a figure that was met is met no longer")
    parser.add_argument("--repeats", type=int, default=5, help="processes for each time (default: 5; 0: no times)")
    options = parser.parse_args(arguments)
    found = figures(0 if options.check else options.repeats)
    if options.json:
        both = {name: {"now": now, **asdict(WANTED[name])} for name, now in found.items()}
        print(json.dumps(both, indent=1))
    else:
        print(table(found, WANTED))
    worse = regressed(found, WANTED) if options.check else []
    for sentence in worse:
        print(sentence, file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
