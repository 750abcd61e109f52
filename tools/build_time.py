"""What a build from source costs, file by file, in seconds of CPU time (user and system), without a compiler cache.

    PYTHONPATH=. python tools/build_time.py                   # what `pip install .` builds, without memload._cuda
    PYTHONPATH=. python tools/build_time.py -DMEMLOAD_CUDA=ON -DMEMLOAD_TESTS=ON

CPU time hardly depends on what else runs, wall-clock time does: it is printed beside it. Needs the group `dev`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOG = "MEMLOAD_BUILD_TIMES"


def main(options: list[str]) -> None:
    """Configure a fresh build in a folder that goes afterwards, build it with as many jobs as processors, and tell."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "times.jsonl"
        started = time.monotonic()
        _build(Path(scratch) / "build", log, options)
        _tell([json.loads(line) for line in log.read_text().splitlines()], time.monotonic() - started)


def _build(folder: Path, log: Path, options: list[str]) -> None:
    launcher = f"{sys.executable};{Path(__file__).resolve()};--launch"
    launchers = [f"-DCMAKE_{language}_COMPILER_LAUNCHER={launcher}" for language in ("CXX", "CUDA")]
    environment = {**os.environ, "CCACHE_DISABLE": "1", LOG: str(log)}
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    cuda = [] if any(option.startswith("-DMEMLOAD_CUDA=") for option in options) else ["-DMEMLOAD_CUDA=OFF"]
    quietly = {"check": True, "env": environment, "stdout": subprocess.DEVNULL}
    subprocess.run([*configure, f"-DPython_EXECUTABLE={sys.executable}", *launchers, *cuda, *options], **quietly)
    log.write_text("")  # the compiler's checks are no part of it
    subprocess.run(["cmake", "--build", str(folder), "-j", str(os.cpu_count())], **quietly)


def _tell(runs: list[dict], wall: float) -> None:
    folders: defaultdict[str, float] = defaultdict(float)
    for run in sorted(runs, key=lambda run: -run["seconds"]):
        folders[str(Path(run["source"]).parent)] += run["seconds"]
        print(f"{run['seconds']:7.2f} s  {run['source']}")
    print()
    for folder, seconds in sorted(folders.items(), key=lambda item: -item[1]):
        print(f"{seconds:7.1f} s  {folder}/")
    total = sum(run["seconds"] for run in runs)
    print(f"{total:7.1f} s  of CPU time in {len(runs)} compilations")
    print(f"{wall:7.1f} s  by the clock on {os.cpu_count()} cores, with what configuring and linking take")


def _launch(command: list[str]) -> int:
    """Run one compilation and append what it cost to the log."""
    code = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    source = Path(command[command.index("-c") + 1]) if "-c" in command else Path(command[-1])
    inside = source.relative_to(ROOT) if source.is_relative_to(ROOT) else Path("made", source.name)
    line = {"source": str(inside), "seconds": used.ru_utime + used.ru_stime}
    with Path(os.environ[LOG]).open("a") as log:
        log.write(json.dumps(line) + "\n")
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        sys.exit(_launch(sys.argv[2:]))
    main(sys.argv[1:])
