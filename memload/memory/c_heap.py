"""What the C library's heap has free: it keeps memory that a program gave back, for the next blocks."""

from __future__ import annotations

import ctypes


class _Figures(ctypes.Structure):
    """The fields of `struct mallinfo2` (glibc 2.33 and later), in bytes and numbers of chunks."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def trim_heap() -> None:
    """Return free memory that the C library keeps to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def heap_free_bytes() -> int:
    """Return the bytes of free blocks in the C library's heap; 0 where it does not tell.

    The call walks through the lists of free blocks: it takes microseconds, or milliseconds for some 100,000 of them.
    """
    figures = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if figures is None:  # an older glibc, or another library
        return 0
    figures.restype = _Figures
    return int(figures().fordblks)
