"""Make the errors for memory or a thread that the system refused; they name the limit responsible.

The core imports these functions by name when the system refuses it memory or a thread.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from memload.errors import MemorySpaceError, ThreadLimitError
from memload.memory.budget import Memory, groups_of, memory, parse_limit, read_text
from memload.sizes import format_size

_ROOT = Path("/")
_INSTEAD = (
    "raise the limit, or take less: a smaller batch_size=, depth=1, fewer threads=, or fewer rows or fields in RAM; "
    "memload.plan says beforehand what fits"
)
_MAPPING = "to map "  # the start of the core's messages
_SMALLER_FILES = "raise the limit, since mapped files count to it, or open fewer files, such as some of the shards"


def no_memory(what: str = "", need: int = 0, root: Path = _ROOT) -> MemorySpaceError:
    """Return the error for memory that the system refused.

    Args:
        what: the thing that takes the memory; empty where it is not known.
        need: bytes; 0 where they are not known.
        root: the root of the file system.
    """
    found = memory(root)
    asked = f"{what or 'what was asked for'} takes {format_size(need)}" if need else "memory was asked for"
    count, most = _mappings(root)
    if count >= most - 1:
        return MemorySpaceError(
            f"{asked}, and the system refuses it: this process has {count:,} mappings, as many as vm.max_map_count "
            "allows: raise that (sysctl vm.max_map_count), or open fewer files, larger ones",
            need=need,
            free=found.free,
        )
    return MemorySpaceError(
        f"{asked}, and the system refuses it: this process can still take {format_size(found.free)} "
        f"({found.described}): {_SMALLER_FILES if what.startswith(_MAPPING) else _INSTEAD}",
        need=need,
        free=found.free,
    )


def no_thread(root: Path = _ROOT) -> ThreadLimitError:
    """Return the error for a thread that the system refused: it names every limit that may have refused it."""
    limits = [*_process_counts(root), *_stack(memory(root))]
    named = "; ".join(limits) or "no limit that can be read from here explains it"
    return ThreadLimitError(
        f"the system refuses this process another thread, and it has {threading.active_count()} of Python's: {named}. "
        "Raise the limit, end other processes of this user, or ask for fewer threads= and workers"
    )


def _process_counts(root: Path) -> Iterator[str]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        yield f"all processes and threads of this user may be {soft:,} together (the limit RLIMIT_NPROC, ulimit -u)"
    for folder in groups_of(root, "pids"):
        most, now = (parse_limit(read_text(folder / name)) for name in ("pids.max", "pids.current"))
        if most is not None:
            yield f"its control group allows {most:,} processes and threads (pids.max), and has {now or 0:,}"


def _stack(found: Memory) -> Iterator[str]:
    limit = found.tightest
    if limit is not None and limit.of_one_process:
        size, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = "a stack" if size == resource.RLIM_INFINITY else f"a stack of {format_size(size)}"
        yield f"each thread takes {stack}, and {limit.name} leaves {format_size(limit.left)}"


def _mappings(root: Path) -> tuple[int, int]:
    """Return how many mappings this process has, and how many it may have."""
    most = parse_limit(read_text(root / "proc/sys/vm/max_map_count"))
    return (read_text(root / "proc/self/maps") or "").count("\n"), 1 << 62 if most is None else most
