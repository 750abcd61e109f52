"""Makes an environment for each peer, with the same torch.

    python benchmarks/peers/environments.py FOLDER [NAME ...]

The environments share the files of one with torch alone, by hard links, so FOLDER takes some 6 GB in all. An
environment that is complete is left as it is. What cannot be installed is named with pip's reason, in
FOLDER/NAME.failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from known import PEERS

ROOT = Path(__file__).resolve().parent.parent.parent
BASE = "torch"
TORCH = ("-c", str(ROOT / "constraints.txt"), "torch", "numpy")


def python_of(folder: Path, name: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return folder / name / "bin" / "python"


def installed(folder: Path, name: str) -> dict[str, str] | None:
    """Return the versions of the packages in an environment; None if it is not complete."""
    record = folder / name / "installed.json"
    return json.loads(record.read_text()) if record.exists() else None


def make(folder: Path, name: str, packages: tuple[str, ...]) -> str | None:
    """Make the environment of a peer; return the reason if that fails."""
    failed = folder / f"{name}.failed"
    failed.unlink(missing_ok=True)
    shutil.rmtree(folder / name, ignore_errors=True)
    if packages:
        shutil.copytree(folder / BASE, folder / name, symlinks=True, copy_function=os.link)
        (folder / name / "installed.json").unlink()  # pip replaces files, so that those of the others stay
    else:
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
    pip = [python_of(folder, name), "-m", "pip", "--disable-pip-version-check"]
    run = subprocess.run(
        [*pip, "install", "--quiet", "--no-compile", *TORCH, *packages], text=True, capture_output=True
    )
    if run.returncode:
        failed.write_text(run.stderr)
        shutil.rmtree(folder / name)
        return reason(run.stderr)
    listed = subprocess.run([*pip, "list", "--format=json"], text=True, capture_output=True, check=True).stdout
    versions = {package["name"]: package["version"] for package in json.loads(listed)}
    (folder / name / "installed.json").write_text(json.dumps(versions))
    return None


def reason(output: str) -> str:
    """Return the line of pip's errors that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if "error" in line.lower() or "not found" in line.lower()]
    return (told or lines or ["pip said nothing"])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the environments go")
    parser.add_argument("names", nargs="*", choices=[[], *PEERS], help="peers (default: all)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys([BASE, *(args.names or PEERS)]):
        if installed(args.folder, name):
            print(f"{name}: is there", flush=True)
            continue
        failed = make(args.folder, name, (str(ROOT),) if name == "memload" else PEERS[name].packages)
        print(f"{name}: {failed or 'installed'}", flush=True)


if __name__ == "__main__":
    main()
