"""A pass whose batches memory cannot hold is refused before the first, rather than killed at the third."""

from __future__ import annotations

from collections.abc import Sequence

from memload import _core
from memload.engine.source import Source
from memload.memory.guards import check_memory
from memload.ragged_rows.fields import RaggedField
from memload.sizes import format_size

_LARGE = 1 << 30  # bytes of slots from which on it is asked what is free: that takes some tenths of a millisecond


def check_room(source: Source, slot_rows: int, depth: int, batches: int) -> None:
    """Raise MemorySpaceError if this process cannot take the slots of a pass: each will be filled by a batch.

    Args:
        source: what is gathered; slots of rows that differ in length are seldom full, and not judged.
        slot_rows: rows that a slot is made for.
        depth: batches gathered ahead, beside that of the loop.
        batches: of the pass; 0: not known.
    """
    slots = min(depth + 1, batches or depth + 1)
    _check(slots * _slot_bytes(source, slot_rows), slots)


def check_joined_room(sources: Sequence[Source], slot_rows: int, depth: int, batches: int, *, in_order: bool) -> None:
    """Raise MemorySpaceError if this process cannot take the slots of a pass over several sources together.

    Args:
        sources: each has slots of its own, which take memory as rows come.
        slot_rows: rows of the largest batch.
        depth: batches gathered ahead, beside that of the loop.
        batches: of the pass; 0: not known.
        in_order: whether batches are wholly of one source after the other. If not, each source is taken to have its
            share of every batch, which is the least that it comes to.
    """
    slots = min(depth + 1, batches or depth + 1)
    if in_order:
        each = [min(slots * slot_rows, source.rows) for source in sources]
    else:
        rows = max(1, sum(source.rows for source in sources))
        each = [slots * slot_rows * source.rows // rows for source in sources]
    room = (count * _slot_bytes(source, slot_rows) // slot_rows for count, source in zip(each, sources, strict=True))
    _check(sum(room), slots)


def _slot_bytes(source: Source, slot_rows: int) -> int:
    """Bytes of a slot; 0 where rows differ in length."""
    if any(isinstance(field, RaggedField) for field in source.fields.values()):
        return 0
    return _core.Pipeline.ring_bytes(source.pipeline_fields(), slot_rows, depth=1) // 2


def _check(need: int, slots: int) -> None:
    if need < _LARGE:
        return
    check_memory(
        need,
        f"the loop's batch with those gathered ahead, {slots} of {format_size(need // slots)},",
        "give a smaller batch_size=, or depth=1 for fewer batches ahead; memload.plan says beforehand what fits",
    )
