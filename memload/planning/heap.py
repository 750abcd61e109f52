"""What the C library's heap keeps of freed tensors from one step of an epoch to the next."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence

from memload.memory.budget import local_processes, memory_to_take, trim_heap
from memload.planning.curves import MAPPED, Curve


def free_to_take() -> int:
    """Return the bytes that this process may still take, after what its heap and ended passes keep has gone back.

    Steps of training use what the heap keeps, so it is free for them; `HEAP` counts what stays unused.
    """
    trim_heap()
    return memory_to_take().free_for(local_processes())


def heap_keeps_tensors(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the C library's heap keeps freed tensors: glibc's does below 32 MB, unless a threshold is set."""
    return platform.libc_ver()[0] == "glibc" and not heap_threshold(environment)


def heap_threshold(environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes from which on glibc gives freed memory back at once, as the environment sets them; 0 if not.

    glibc takes no threshold above `MAPPED`.
    """
    tunable = re.search(r"glibc\.malloc\.mmap_threshold=(\w+)", environment.get("GLIBC_TUNABLES", ""))
    text = tunable[1] if tunable else environment.get("MALLOC_MMAP_THRESHOLD_", "")
    try:
        threshold = int(text, 0)
    except ValueError:
        return 0
    return threshold if 0 < threshold <= MAPPED else 0


def left_by_last_batch(curve: Curve, times: float, full: Sequence[float], last: Sequence[float]) -> int:
    """Return the bytes that the short last batch of an epoch leaves in the heap, beside a full batch.

    Tensors of a full batch may be too large for the heap, and those of a short one not: what is freed then stays there,
    and tensors of the next full batch use half of it, as `Each.peak` says. Of an MLP 267 MB stayed, and the next step
    took 78 MB more than the one before.

    Args:
        curve: the bytes of a step.
        times: how many times the bytes in the heap count.
        full, last: the counts of a full batch, and of the last one.
    """
    return max(0, curve.kept_in_heap(1, *last) - curve.kept_in_heap(times, *full)) // 2
