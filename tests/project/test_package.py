"""The package as a whole: what it is made of, what importing it does, and what a checkout without its modules says."""

import ast
import importlib.metadata
import importlib.resources
import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from programs import Ended, Nursery, Program, run_all
from repository import ROOT
from waiting import MOST_SECONDS

import memload
from memload.cli.main import COMMANDS

PACKAGE = Path(memload.__file__).parent


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command elsewhere, so that it does not meet the folder memload/ of the checkout by accident."""
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=MOST_SECONDS)


IMPORTS = """
import os, torch
before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), dict(os.environ)
import memload
assert (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), dict(os.environ)) == before
assert not torch.cuda.is_initialized()
assert not [line for line in open("/proc/self/maps") if "/dev/nvidia" in line]
"""
MODULES = """
import sys, torch, numpy
before = set(sys.modules)
import memload
added = set(sys.modules) - before
print(*sorted(added - sys.stdlib_module_names - {"memload", "memload._core"}))
"""
EVERYTHING = """
import sys, torch, numpy
sys.modules["ray"] = None  # memload.ShardSink derives from a class of Ray, which it loads where it is installed
before = set(sys.modules)
from memload import *
assert all(name in globals() for name in sys.modules["memload"].__all__)
added = set(sys.modules) - before
print(len(added), *sorted({name.partition(".")[0] for name in added} - sys.stdlib_module_names))
"""
NAMES = """
import inspect, pickle, pydoc, sys
import memload
assert "memload.loader.fast_loader" not in sys.modules
assert dir(memload) == memload.__all__
assert "memload.loader.fast_loader" not in sys.modules
assert pickle.loads(sys.argv[1].encode("latin-1")) == memload.Cast("bfloat16")
loader = memload.FastLoader
module = sys.modules["memload.loader.fast_loader"]
assert loader is memload.FastLoader is vars(memload)["FastLoader"] is module.FastLoader
assert [name for name, _ in inspect.getmembers(memload)] == memload.__all__
said = pydoc.plain(pydoc.render_doc(memload))
print(*(name for name in memload.__all__ if name[0] != "_" and f" {name}" not in said))
print(hasattr(memload, "no_such_name"))
try:
    memload.no_such_name
except AttributeError as error:
    print(error)
from memload import no_such_name
"""
LOOP = """
import sys, torch, memload
for batch in memload.FastLoader(memload.open(sys.argv[1]), 64, shuffle=True, cast={"x": memload.Cast("float32")}):
    pass
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "memload"))
"""
AROUND = {"caching", "cli", "graphs", "images", "monitoring", "planning", "writing"}
NEEDED = {"memload", "numpy", "tqdm", "xxhash"}
HELP = """
import sys
from memload.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code
print(*sorted({"torch", "numpy", "memload.dataset.dataset"} & set(sys.modules)))
"""
AS_MODULE = """
import runpy, sys
runpy.run_module("memload", run_name="__main__", alter_sys=True)
"""
FROM_FOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
import memload
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """What programs left that import memload where nothing but torch is imported."""
    built, source = (tmp_path_factory.mktemp(name, numbered=False) for name in ("built", "source"))
    shutil.copytree(PACKAGE, source / "memload", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(PACKAGE, built / "memload")
    face = built / "memload" / "__init__.py"
    face.write_text(face.read_text() + "\nimport memload.no_such_module\n")
    programs = {
        "imports": IMPORTS,
        "python -m memload": Program(AS_MODULE, ("--help",)),
        "source": Program(FROM_FOLDER, (source,)),
        "module missing": Program(FROM_FOLDER, (built,)),
        "modules": MODULES,
        "everything": EVERYTHING,
        "names": Program(NAMES, (pickle.dumps(memload.Cast("bfloat16"), 0).decode("latin-1"),)),
    }
    return run_all(programs, nursery=Nursery(imports=("torch",)))


def declared_version() -> str:
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert found
    return found[1]


def test_the_version_is_the_one_that_pyproject_declares():
    assert memload.__version__ == declared_version()


def test_an_installed_distribution_has_the_version_of_its_module():
    if not PACKAGE.parent.samefile(sysconfig.get_path("platlib")):
        assert PACKAGE == ROOT / "memload"  # built in place: there is no distribution to agree with
        return
    assert importlib.metadata.version("memload") == memload.__version__


@pytest.mark.parametrize("name", ["py.typed", "_core.pyi", "_cuda.pyi"])
def test_type_checkers_find(name):
    assert importlib.resources.files("memload").joinpath(name).is_file()


def test_every_exported_name_exists_and_is_exported_once():
    assert all(hasattr(memload, name) for name in memload.__all__)
    assert len(set(memload.__all__)) == len(memload.__all__)


def is_module(value: object) -> bool:
    return isinstance(value, type(memload))


def test_the_names_of_the_package_are_exported_or_private_or_modules():
    public = {name for name, value in vars(memload).items() if not name.startswith("_") and not is_module(value)}
    assert public <= set(memload.__all__)


def test_importing_starts_no_thread_and_touches_no_gpu(ended: dict[str, Ended]):
    assert ended["imports"].status == 0, ended["imports"].err


def test_importing_loads_the_face_and_the_compiled_module_alone(ended: dict[str, Ended]):
    assert ended["modules"].status == 0, ended["modules"].err
    assert ended["modules"].out == [""]


def test_all_of_it_loads_no_package_beside_those_it_needs_and_few_modules(ended: dict[str, Ended]):
    assert ended["everything"].status == 0, ended["everything"].err
    count, *packages = ended["everything"].out[0].split()
    assert {name for name in packages if "cython" not in name} <= NEEDED
    assert int(count) < 400  # torch has about 1,500


def test_a_loop_over_shards_loads_what_it_uses_and_nothing_that_stands_around_the_loader(tmp_path: Path):
    memload.write(tmp_path / "shards", memload.from_arrays(x=torch.zeros(640, 8, dtype=torch.uint8)), progress=False)
    done = run_all({"loop": Program(LOOP, (tmp_path / "shards",))}, nursery=Nursery(imports=("torch",)))["loop"]
    assert done.status == 0, done.err
    loaded = done.out[0].split()
    assert "memload.loader.fast_loader" in loaded
    assert [name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in AROUND] == []
    assert [name for name in loaded if name.startswith("memload.device.")] == ["memload.device.on_request"]
    assert len(loaded) <= 110, loaded


def test_names_that_are_imported_when_they_are_asked_for_are_names_like_any(ended: dict[str, Ended]):
    """For `dir`, `inspect`, `pydoc`, pickles; what is no name of memload's is refused as any module does."""
    assert ended["names"].out == ["", "False", "module 'memload' has no attribute 'no_such_name'"]
    assert (
        ended["names"].err.splitlines()[-1].startswith("ImportError: cannot import name 'no_such_name' from 'memload'")
    )


def test_type_checkers_are_told_the_modules_that_names_come_from():
    for node in ast.walk(ast.parse(Path(memload.__file__).read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING":
            told = {(one.module, alias.name) for one in node.body for alias in one.names}
    homes = {(home, name) for home, names in memload._HOMES.items() for name in names.split()}
    assert told == homes
    assert sorted([*(name for _, name in homes), "__version__"]) == memload.__all__


def test_no_public_name_is_that_of_a_module_which_would_take_its_place():
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(memload.__all__) & modules == set()


def test_help_is_said_without_torch():
    """Of memload, of each command and of commands' commands; the options of all of them are declared."""
    commands = [[], *([name] for name in COMMANDS), ["cache", "rm"]]
    programs = {" ".join(words): Program(HELP, (*words, "--help")) for words in commands}
    for name, done in run_all(programs, nursery=Nursery(imports=())).items():
        assert done.status == 0, done.err
        assert done.out[0].startswith(f"usage: memload {name}".rstrip()), name
        assert done.out[-1] == "", name


def assert_explains_itself(status: int | None, said: str):
    assert status == 0
    assert all(word in said for word in ("demo", "doctor", "info", "verify", "write", "bench"))


def test_the_module_explains_itself_as_a_command(ended: dict[str, Ended]):
    assert_explains_itself(ended["python -m memload"].status, "\n".join(ended["python -m memload"].out))


def test_the_command_explains_itself(tmp_path: Path):
    command = shutil.which("memload", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if command is None:
        assert PACKAGE == ROOT / "memload"  # built in place: nothing installed the command
        return
    done = run(command, "--help", cwd=tmp_path, PYTHONPATH=str(PACKAGE.parent))
    assert_explains_itself(done.returncode, done.stdout)


def test_a_checkout_without_the_compiled_module_says_what_to_do(
    ended: dict[str, Ended], tmp_path_factory: pytest.TempPathFactory
):
    assert ended["source"].status == 1
    message = ended["source"].err.splitlines()[-1]
    folder = tmp_path_factory.getbasetemp() / "source" / "memload"
    assert message.startswith(f"ImportError: {folder} is memload's source, without its compiled module")
    assert "pip install ." in message
    assert "another folder" in message
    assert "cmake --preset dev" in message


def test_another_missing_module_is_not_mistaken_for_the_compiled_one(ended: dict[str, Ended]):
    assert "No module named 'memload.no_such_module'" in ended["module missing"].err.splitlines()[-1]
