"""Python programs that run side by side, each in a process of its own, forked before it has done anything."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Ended:
    """What a program left."""

    status: int | None  # None: it had to be killed
    out: list[str]
    err: str


def run_all(programs, within=60.0):
    """Run programs, given by name, at once; they all start with Python, torch and memload imported, and end as any."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, os.environ["PYTHONPATH"]])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "error", str(Path(__file__)), folder]
        done = subprocess.run(
            command,
            input=json.dumps([programs, within]),
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=within + 120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        statuses = json.loads(done.stdout)
        read = lambda name: Path(folder, name).read_text()  # noqa: E731
        return {name: Ended(statuses[name], read(f"{name}.out").splitlines(), read(f"{name}.err")) for name in programs}


def _wait(children, within):
    """The status of each child; those that do not end within so many seconds are killed."""
    statuses, end = {}, time.monotonic() + within
    while len(statuses) < len(children):
        for name, child in children.items():
            if name in statuses:
                continue
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                statuses[name] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                statuses[name] = None
        time.sleep(0.01)
    return statuses


def _main(folder):
    import torch  # noqa: F401

    import memload  # noqa: F401 - once for all programs

    programs, within = json.load(sys.stdin)
    children = {}
    for name, code in programs.items():
        child = os.fork()
        if child == 0:
            for number, kind in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{folder}/{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
            return compile(code, name, "exec")
        children[name] = child
    print(json.dumps(_wait(children, within)))
    return None


if __name__ == "__main__":
    code = _main(sys.argv[1])
    if code is not None:
        exec(code, {"__name__": "__main__"})
