"""Pairs of streams of a device: one for copies and one for casts, for one user at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class StreamPairs:
    """The pairs of streams of one device, of which each user has one alone. Any thread may call it.

    Streams are never destroyed: torch's allocator keeps memory by streams, and records events in streams that read a
    tensor when that is freed, which may be long after the loader. So a pair that is given back serves the next user,
    whose work follows in the order of the streams, and there are as many pairs as there were users at one time.

    Args:
        create: makes a stream; its argument is whether work in it goes before other work on the device.

    Example:
        >>> pairs = StreamPairs(lambda urgent: "urgent" if urgent else "usual")
        >>> pairs.lease().copies, pairs.lease().work
        ('usual', 'urgent')
    """

    def __init__(self, create: Callable[[bool], Any]) -> None:
        self._create = create
        self._free: deque[tuple[Any, Any]] = deque()

    def lease(self) -> StreamPair:
        """Return a pair that nobody has; it comes back when the returned object is collected."""
        try:
            streams = self._free.pop()  # the one that came back last, of which the allocator has memory
        except IndexError:
            streams = self._create(False), self._create(True)
        return StreamPair(*streams, self._free)


class StreamPair:
    """A pair of streams.

    Attributes:
        copies: the stream of copies to the device.
        work: the stream of casts, whose short kernels go before those of the loop.
    """

    def __init__(self, copies: Any, work: Any, free: deque[tuple[Any, Any]]) -> None:
        self.copies, self.work = copies, work
        self._free = free

    def __del__(self) -> None:
        self._free.append((self.copies, self.work))
