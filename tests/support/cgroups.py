"""A memory limit as containers and schedulers set it: a control group of our own, where this user may make one."""

import contextlib
import os
from pathlib import Path

from memload.memory.budget import parse_groups

ROOT = Path("/sys/fs/cgroup")


def _own():
    """The folder of this process's group, and the name of its limit."""
    groups = parse_groups(Path("/proc/self/cgroup").read_text())
    if "memory" in groups:
        return ROOT / "memory" / groups["memory"].strip("/"), "memory.limit_in_bytes"
    return ROOT / groups[""].strip("/"), "memory.max"


def why_not():
    """Why no limit can be set here; None if one can."""
    try:
        with limited(1 << 30):
            return None
    except OSError as error:
        return f"no control group can be made here: {error}"


@contextlib.contextmanager
def limited(nbytes, name=""):
    """The file to which a process writes its number to have a limit of so many bytes of memory, page cache included."""
    own, limit = _own()
    group = own / f"memload-test-{os.getpid()}{name}"
    group.mkdir()
    try:
        (group / limit).write_text(str(nbytes))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()
