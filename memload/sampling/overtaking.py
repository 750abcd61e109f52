"""Index batches whose data may overtake each other: which of them the loop still has to get.

With ``in_order=False`` worker processes hand over what is ready first, so a count of batches is no place to go on:

    batches that were pulled    0 1 2 3 4 5 6 7      first:  2, up to where the loop has everything
    the loop has                x x . x x . x .      pulled: 6 from there on, of which
                                                     late:   0, 3 and 5 are still to come
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from memload.sampling.draws import Position


class Overtaking:
    """The index batches of one pass, and those of them that the loop does not have.

    Args:
        source: the batches in order, from where the pass begins; told how many the loop has seen.
        position: where the pass was stopped: what was late comes first, then what had not been pulled.
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
        """Learn from a stock iterator which batches it has not handed out; without it, they come in order.

        Args:
            batches: an iterator with worker processes, which numbers what it sends to them.
        """
        self._tasks = getattr(batches, "_task_info", None)  # torch has no public way to know

    def next(self, seen: int) -> Any:
        """Return the next batch; the loop has seen so many. Raises StopIteration after the last."""
        settled = min(self._missing(seen), default=self._number(self._sent))
        while self._read < self._number(self._sent):
            self._source.next(settled)
            self._read += 1
        batch = self._source.next(settled)
        self._read += 1
        self._sent += 1
        return batch

    def position(self, seen: int) -> dict[str, Any]:
        """Return where the pass stands when the loop has got so many batches."""
        end = self._number(max(self._sent, len(self._late)))
        missing = self._missing(seen)
        first = min(missing, default=end)
        place: dict[str, Any] = self._source.position(first)
        if len(missing) == end - first:
            return place  # nothing was overtaken
        return {**place, "overtaken": {"pulled": end - first, "late": [number - first for number in missing]}}

    def _missing(self, seen: int) -> list[int]:
        """The numbers of the batches that were pulled, in this pass or before, and that the loop does not have."""
        sent = range(seen, self._sent) if self._tasks is None else sorted(self._tasks)
        return [self._number(task) for task in sent] + self._late[self._sent :]

    def _number(self, task: int) -> int:
        """The number, from where the pass begins, of the batch that is sent so many-th."""
        late = len(self._late)
        return self._late[task] if task < late else self._behind + task - late
