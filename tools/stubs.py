"""Writes memload/_core.pyi and memload/_cuda.pyi from the compiled modules, or checks that they have not drifted.

python tools/stubs.py            # after a change of the bindings: writes the stubs of the memload that is importable
python tools/stubs.py --check    # changes nothing; shows the difference and exits with 1 if there is one

memload._cuda exists only where nvcc was found; its stub is left alone elsewhere.
"""

import argparse
import difflib
import importlib.util
import re
import sys
import tempfile
from pathlib import Path

import pybind11_stubgen

PACKAGE = Path(__file__).resolve().parent.parent / "memload"


def generate(module: str) -> str:
    """What pybind11-stubgen says about a compiled module."""
    with tempfile.TemporaryDirectory() as folder:
        pybind11_stubgen.main([module, "--output-dir", folder, "--exit-code"])
        text = Path(folder, *module.split(".")).with_suffix(".pyi").read_text()
    # What strict type checkers ask for and pybind11's signatures do not say.
    text = re.sub(r"\bdict(?=[:,\]\n])(?!\[)", "dict[str, typing.Any]", text)
    text = re.sub(r"(\w+: )(?!typing)([\w.]+)( = None)", r"\1\2 | None\3", text)
    # The version's value is left out: pyproject.toml is the one place that holds it.
    return re.sub(r"^(version: str) = .*$", r"\1", text.rstrip(), flags=re.MULTILINE) + "\n"


def difference(stub: Path, generated: str) -> str:
    """The unified diff from the stub in the tree to the generated one; empty if they agree."""
    kept = stub.read_text() if stub.exists() else ""
    lines = difflib.unified_diff(kept.splitlines(True), generated.splitlines(True), str(stub), "generated")
    return "".join(lines)


def main() -> int:
    """Handles every module that was built; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    drifted = False
    for name in ("_core", "_cuda"):
        if importlib.util.find_spec(f"memload.{name}") is None:
            print(f"memload.{name} is not built here: its stub is left alone")
            continue
        generated, stub = generate(f"memload.{name}"), PACKAGE / f"{name}.pyi"
        diff = difference(stub, generated)
        if diff and check:
            sys.stdout.write(diff)
            drifted = True
        elif diff:
            stub.write_text(generated)
            print(f"wrote {stub}")
    if drifted:
        print("The stubs differ from the compiled modules: run `python tools/stubs.py` and commit what it writes.")
    return int(drifted)


if __name__ == "__main__":
    sys.exit(main())
