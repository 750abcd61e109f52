"""The simulated device's extension, compiled when a test first wants it, by the compiler that built memload.

It asks for nothing that the README's test command has not brought: a C++20 compiler and Python's headers, without which
that could not build memload, and the headers of pybind11 that torch comes with.
"""

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from repository import CSRC, ROOT

NAME = "_simulated"
SOURCES = (
    *(f"core/base/{name}.cpp" for name in ("error", "fork", "memory")),
    *(f"python/{name}.cpp" for name in ("convert", "dlpack")),
    *(f"tests/simulated/{name}.cpp" for name in ("memory", "device", "module")),
)
OPTIONS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


@functools.cache
def simulated_extension() -> ModuleType:
    """Return the module, compiled in some 10 s unless the same sources have been before."""
    path = ROOT / "build" / f"{NAME}-{_digest()}" / f"{NAME}.so"
    if not path.exists():
        _compile(path)
    spec = importlib.util.spec_from_file_location(NAME, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digest() -> str:
    """What the compiled file hangs on: every source and header that could be in it, the compiler, torch and Python."""
    folders = {CSRC / Path(source).parent for source in SOURCES} | {CSRC / "core/slots"}
    files = sorted(path for folder in folders for path in folder.iterdir() if path.suffix in {".h", ".cpp"})
    found = hashlib.sha256(repr((_command(), torch.__version__)).encode())
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _command() -> list[str]:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        raise RuntimeError("tests on the simulated device compile it, and there is no C++ compiler: set CXX to one")
    headers = (Path(torch.__file__).parent / "include", sysconfig.get_path("include"))
    return [*compiler.split(), *OPTIONS, f"-I{CSRC}", *(f"-isystem{folder}" for folder in headers)]


def _compile(path: Path) -> None:
    """All sources as one, whole or not at all: another process may want the same."""
    text = "".join(f'#include "{source}"\n' for source in SOURCES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*_command(), "-x", "c++", "-", "-o", str(made)]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the simulated device cannot be compiled by {' '.join(command)}:\n{done.stderr}")
        made.replace(path)
