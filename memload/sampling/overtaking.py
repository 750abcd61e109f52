"""Track the index batches that the loop still has to get where batches may arrive out of order.

With ``in_order=False`` worker processes hand over the first ready batch, so a count of batches is no position:

    batches that were pulled    0 1 2 3 4 5 6 7      first:  2, up to where the loop has everything
    the loop has                x x . x x . x .      pulled: 6 from there on, of which
                                                     late:   0, 3 and 5 are missing
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from memload.sampling.draws import Position


class Overtaking:
    """The index batches of one pass, and those among them that the loop does not have.

    Args:
        source: the batches in order, from the start of the pass; each call passes the number that the loop has seen.
        position: the position at which the pass was stopped; late batches come first, then those not pulled yet.
    """

    def __init__(self, source: Any, position: Position | None) -> None:
        overtaken = (position or {}).get("overtaken", {"pulled": 0, "late": []})
        self._source = source
        self._late: list[int] = overtaken["late"]
        self._behind: int = overtaken["pulled"]
        self._read = 0  # of the source
        self._sent = 0
        self._tasks: Collection[int] | None = None

    def watch(self, batches: Any) -> None:
        """Take a stock iterator that knows which batches it has not handed out; without one, they come in order.

        Args:
            batches: an iterator with worker processes, which numbers the tasks that it sends to them.
        """
        self._tasks = getattr(batches, "_task_info", None)  # torch has no public way to read it

    def next(self, seen: int) -> Any:
        """Return the next batch; the loop has seen `seen` batches. Raises StopIteration after the last."""
        settled = min(self._missing(seen), default=self._number(self._sent))
        while self._read < self._number(self._sent):
            self._source.next(settled)
            self._read += 1
        batch = self._source.next(settled)
        self._read += 1
        self._sent += 1
        return batch

    def position(self, seen: int) -> dict[str, Any]:
        """Return the position of the pass after the loop has got `seen` batches."""
        end = self._number(max(self._sent, len(self._late)))
        missing = self._missing(seen)
        first = min(missing, default=end)
        place: dict[str, Any] = self._source.position(first)
        if len(missing) == end - first:
            return place  # nothing was overtaken
        return {**place, "overtaken": {"pulled": end - first, "late": [number - first for number in missing]}}

    def _missing(self, seen: int) -> list[int]:
        """Return the numbers of the batches that were pulled, in this pass or before, but not handed to the loop."""
        sent = range(seen, self._sent) if self._tasks is None else sorted(self._tasks)
        return [self._number(task) for task in sent] + self._late[self._sent :]

    def _number(self, task: int) -> int:
        """Return the number, from the start of the pass, of the batch of this task."""
        late = len(self._late)
        return self._late[task] if task < late else self._behind + task - late
