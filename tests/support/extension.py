"""The simulated device's extension, compiled beside the first tests by the compiler that built memload.

It asks for nothing that the README's test command has not brought: a C++20 compiler and Python's headers, without which
that could not build memload, and the headers of pybind11 that torch comes with.
"""

import contextlib
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
    compilation = begin_compiling()
    compilation.finish()
    spec = importlib.util.spec_from_file_location(NAME, compilation.path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def begin_compiling() -> "Compilation":
    """Begin to compile the module, unless the same sources have been before, and return at once."""
    return Compilation(ROOT / "build" / f"{NAME}-{_digest()}" / f"{NAME}.so")


class Compilation:
    """A compiler at work on all sources as one.

    The file is there whole or not at all: another process may want the same.

    Args:
        path: of the file to make; if it is there, nothing runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = contextlib.ExitStack()
        self._compiler: subprocess.Popen[str] | None = None
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir=path.parent))
        self._made = Path(folder) / path.name
        source = Path(folder) / f"{NAME}.cpp"
        source.write_text("".join(f'#include "{one}"\n' for one in SOURCES))
        self._command = [*_command(), str(source), "-o", str(self._made)]
        self._compiler = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(self) -> None:
        """Wait until the file is there.

        Raises:
            RuntimeError: the sources cannot be compiled, or the compilation was closed before.
        """
        compiler, self._compiler = self._compiler, None
        if compiler is not None:
            _, said = compiler.communicate()
            if compiler.returncode:
                called = " ".join(self._command)
                raise RuntimeError(f"the simulated device cannot be compiled by {called}:\n{said}")
            self._made.replace(self.path)
        self.close()

    def close(self) -> None:
        """End the compiler, if it still runs."""
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.communicate()
        self._compiler = None
        self._stack.close()


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
