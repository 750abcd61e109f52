"""The package as a whole: what it is made of, what importing it does, and what a checkout without its modules says."""

import importlib.metadata
import importlib.resources
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from programs import Ended, Nursery, Program, run_all

import memload

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(memload.__file__).parent


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command elsewhere, so that it does not meet the folder memload/ of the checkout by accident."""
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


IMPORTS = """
import os, torch
before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), dict(os.environ)
import memload
assert (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), dict(os.environ)) == before
assert not torch.cuda.is_initialized()
assert not [line for line in open("/proc/self/maps") if "/dev/nvidia" in line]
"""
SECONDS = """
import time
start = time.process_time()
import torch, numpy
middle = time.process_time()
import memload
print(middle - start, time.process_time() - middle)
"""
SECONDS_AGAIN = """
import time
start = time.process_time()
import memload
print(time.process_time() - start)
"""
AGAIN = ("first", "second", "third")  # a loaded machine makes one import slow, not every one
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
        **{name: Program(SECONDS_AGAIN) for name in AGAIN},
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


def test_importing_adds_little_to_what_torch_takes(ended: dict[str, Ended], tmp_path: Path):
    done = run(sys.executable, "-c", SECONDS, cwd=tmp_path, PYTHONPATH=str(PACKAGE.parent))
    torch, once = map(float, done.stdout.split())
    again = [float(ended[name].out[0]) for name in AGAIN]
    assert min(once, *again) < 0.45 * torch


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
