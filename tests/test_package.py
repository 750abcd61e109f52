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

import memload

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(memload.__file__).parent


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command elsewhere, so that it does not meet the folder memload/ of the checkout by accident."""
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter that imports the memload under test."""
    return run(sys.executable, "-c", code, cwd=cwd, PYTHONPATH=str(PACKAGE.parent))


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


def test_importing_starts_no_thread_and_touches_no_gpu(tmp_path):
    code = """
import os, torch
before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), dict(os.environ)
import memload
assert (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), dict(os.environ)) == before
assert not torch.cuda.is_initialized()
assert not [line for line in open("/proc/self/maps") if "/dev/nvidia" in line]
"""
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_importing_adds_little_to_what_torch_takes(tmp_path):
    code = """
import time, torch, numpy
start = time.process_time()
import memload
print(time.process_time() - start)
"""
    seconds = min(float(python(code, tmp_path).stdout) for _ in range(3))
    assert seconds < 0.5


COMMAND = shutil.which("memload", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("words", [[sys.executable, "-m", "memload"], [COMMAND]], ids=["python -m memload", "memload"])
def test_the_command_explains_itself(words, tmp_path):
    if words == [None]:
        assert PACKAGE == ROOT / "memload"  # built in place: nothing installed the command
        return
    done = run(*words, "--help", cwd=tmp_path, PYTHONPATH=str(PACKAGE.parent))
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("demo", "doctor", "info", "verify", "write", "bench"))


def test_a_checkout_without_the_compiled_module_says_what_to_do(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "memload", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = run(sys.executable, "-c", "import memload", cwd=tmp_path)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: {tmp_path / 'memload'} is memload's source, without its compiled module")
    assert "pip install ." in message
    assert "another folder" in message
    assert "cmake --preset dev" in message


def test_another_missing_module_is_not_mistaken_for_the_compiled_one(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "memload")
    face = tmp_path / "memload" / "__init__.py"
    face.write_text(face.read_text() + "\nimport memload.no_such_module\n")
    done = run(sys.executable, "-c", "import memload", cwd=tmp_path)
    assert "No module named 'memload.no_such_module'" in done.stderr.splitlines()[-1]
