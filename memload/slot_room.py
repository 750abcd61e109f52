"""A pass whose batches memory cannot hold is refused before the first, rather than killed at the third."""

from __future__ import annotations

from memload import _core
from memload.memory.guards import check_memory
from memload.native import Source
from memload.ragged_fields import RaggedField
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
    slot = _core.Pipeline.ring_bytes(source.pipeline_fields(), slot_rows, depth=1) // 2
    slots = min(depth + 1, batches or depth + 1)
    if slots * slot < _LARGE or any(isinstance(field, RaggedField) for field in source.fields.values()):
        return
    check_memory(
        slots * slot,
        f"the loop's batch with those gathered ahead, {slots} of {format_size(slot)},",
        "give a smaller batch_size=, or depth=1 for fewer batches ahead; memload.plan says beforehand what fits",
    )
