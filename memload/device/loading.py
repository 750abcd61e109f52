"""Loads fields into a GPU's memory, or into RAM from which the GPU gathers.

files or arrays -> frames, each once -> chunks, by native threads -> table -> fields on that table
                   frames.py                                                  resident.py, pinned_memory.py
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from memload import _core
from memload.columns.fields import Field
from memload.columns.ragged_fields import RaggedField
from memload.device.devices import raise_device_error
from memload.device.frames import FrameIndex, Numbers, frames_of
from memload.device.interface import Interface
from memload.device.memory import gpu_memory
from memload.device.numa import NumaNode
from memload.device.pinned_memory import PinnedField, PinnedMemory
from memload.device.resident import ResidentColumn, ResidentField, resident_device
from memload.device.torch_interface import torch_interface
from memload.engine.gather_spec import GatherSpec
from memload.engine.layout import Only
from memload.engine.settings import reads_blocks, reads_directly
from memload.engine.tiers.tier import Tier
from memload.errors import DeviceError, MemorySpaceError
from memload.memory import budget
from memload.progress import Bar, byte_bar
from memload.sizes import format_size


def loaded(fields: Mapping[str, Field], device: torch.device, tier: Tier, progress: bool | None) -> dict[str, Field]:
    """Return the fields with their bytes in a device's memory (Tier.DEVICE), or pinned for it (Tier.PINNED).

    Args:
        fields: fields by name, in files or arrays.
        device: the device that gathers them.
        tier: Tier.DEVICE or Tier.PINNED.
        progress: whether to show a bar; None: if standard error is a terminal.

    Raises:
        MemorySpaceError: the bytes do not fit; the message has the figures.
        DeviceError: they cannot be pinned.
        ValueError: rows differ in length, or are on a device already.
    """
    check_loadable(fields)
    plans = {name: FramePlan.of(field) for name, field in fields.items()}
    wanted = {name: plan.nbytes for name, plan in plans.items()}
    check_fits(wanted, device if tier is Tier.DEVICE else torch.device("cpu"))
    where = str(device) if tier is Tier.DEVICE else f"pinned for {device}"
    try:
        with byte_bar(where, sum(wanted.values()), progress) as shown:
            made = {name: plan.execute(device, tier, shown) for name, plan in plans.items()}
    except DeviceError:
        raise
    except RuntimeError as error:
        raise_device_error(error, "loading a dataset", device)
    return made


def check_loadable(fields: Mapping[str, Field]) -> None:
    """Raise ValueError if a device cannot gather these fields, or has them already."""
    ragged = [name for name, field in fields.items() if isinstance(field, RaggedField)]
    if ragged:
        raise ValueError(
            f"rows of {', '.join(map(repr, ragged))} differ in length, and a device cannot gather them: leave them "
            "out by as_tuple(...), or keep the dataset in files and give the loader device="
        )
    if (there := resident_device(fields)) is not None:
        raise ValueError(f"the dataset is on {there} already; give the dataset that it was made from")


class FramePlan:
    """The frames of a field that are to be loaded.

    Attributes:
        frames: the field of all stored frames.
        rows: the numbers of the frames to load.
        index: the index of the field's rows into the loaded frames.
    """

    def __init__(self, frames: Field, rows: Numbers | range, index: FrameIndex, field: Field) -> None:
        self.frames, self.rows, self.index, self.field = frames, rows, index, field

    @classmethod
    def of(cls, field: Field) -> FramePlan:
        """Return the plan for all rows of a field."""
        frames, index = frames_of(field)
        return cls(frames, *index.compact(frames.rows), field)

    @property
    def nbytes(self) -> int:
        """The bytes of the frames."""
        return len(self.rows) * self.frames.row_bytes

    def execute(self, device: torch.device, tier: Tier, shown: Bar) -> Field:
        """Load the frames, and return the field over them."""
        if tier is Tier.PINNED:
            return self._pinned(device, shown)
        table = torch.empty((len(self.rows), self.frames.row_bytes), dtype=torch.uint8, device=device)
        fill(table, self.frames, self.rows, shown)
        column = ResidentColumn(table, self.index)
        return ResidentField(
            self.field.dtype, self.field.shape, column, digest=self.field.digest, meant=self.field.meant
        )

    def _pinned(self, device: torch.device, shown: Bar) -> Field:
        memory = PinnedMemory(len(self.rows), self.frames.row_bytes, device)
        fill(memory.table, self.frames, self.rows, shown)
        memory.pin()
        return PinnedField.of(self.field, memory, self.index)


_LESS = "keep the others in pinned RAM (memload.to_device(ds, device, bytes=...))"


def check_fits(wanted: Mapping[str, int], device: torch.device, instead: str = _LESS) -> None:
    """Raise MemorySpaceError, with figures, if so many bytes by field do not fit into the memory of a device.

    Args:
        wanted: bytes by field.
        device: the device.
        instead: what the message advises beside a smaller part and streaming.
    """
    need = sum(wanted.values())
    if device.type == "cpu":
        memory = budget.memory_to_take(need)
        total, free = memory.usable, memory.free
    else:
        found = gpu_memory(device)
        if found is None:
            return
        total, free = found.total, found.available
    if need > free:
        raise MemorySpaceError(does_not_fit(wanted, str(device), total, free, instead), need=need, free=free)


def does_not_fit(wanted: Mapping[str, int], device: str, total: int, free: int, instead: str = _LESS) -> str:
    """Return the message for bytes by field that do not fit into a device's memory."""
    by_field = ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in wanted.items())
    return (
        f"{format_size(sum(wanted.values()))} of rows ({by_field}) do not fit on {device}: {format_size(free)} of "
        f"{format_size(total)} are available. Load a part (ds.select(rows), ds.as_tuple(...)), {instead}, or keep the "
        "dataset in files and give the loader device=, which streams it"
    )


CHUNK_BYTES = 64 << 20
"""Bytes of a chunk; three are in memory at a time, and one of these is being copied."""

_AHEAD = 2  # chunks that are gathered while one is copied


_PINNED_BYTES = 32 << 20  # of a chunk on its way to a GPU; five are pinned at a time


def fill(table: torch.Tensor, field: Field, rows: Numbers | range, shown: Bar) -> None:
    """Copy some rows of a field into a table, in their order.

    Args:
        table: uint8 (rows, bytes of a row), contiguous, on any device.
        field: the field, in files or arrays.
        rows: row numbers; rising ones are read fastest.
        shown: the progress bar.

    Raises:
        ShardReadError: a file cannot be read any more.
        RuntimeError: the device has no memory left for a chunk, or a tensor's memory was freed.
    """
    if not table.numel():
        return
    if table.device.type == "cuda":
        fill_asynchronously(table, field, rows, shown, torch_interface(table.device.index).own_streams())
        return
    begin = 0
    for chunk in _chunks(field, rows):
        end = begin + len(chunk)
        table[begin:end].copy_(chunk.reshape(len(chunk), -1).view(torch.uint8))
        shown.update(chunk.nbytes)
        begin = end


def fill_asynchronously(
    table: torch.Tensor, field: Field, rows: Numbers | range, shown: Bar, interface: Interface
) -> None:
    """Do what `fill` does for a table on a device: native threads gather into pinned memory while chunks are copied.

    When it returns or raises an error, no copy is under way, and every stream may read the table.

    Args:
        table, field, rows, shown: as of `fill`.
        interface: the device of the table.
    """
    interface.follow(interface.copies, interface.current())  # what had the table's memory before
    begin, copied = 0, deque[Any]()
    try:
        for chunk in _pinned_chunks(field, rows, interface):
            interface.copy(table[begin : begin + len(chunk)], chunk, interface.copies)
            copied.append(interface.record(interface.copies))
            begin += len(chunk)
            if len(copied) > 1:
                interface.synchronise(copied.popleft())
            shown.update(chunk.nbytes)
    finally:
        for event in copied:
            interface.synchronise(event)


def _chunks(field: Field, rows: Numbers | range) -> Iterator[torch.Tensor]:
    source = GatherSpec({0: field}, Only(), {})
    most = max(1, min(len(rows), CHUNK_BYTES // field.row_bytes))
    unpack = source.unpacker()
    with _pipeline(source, len(rows), most, borrowed=False) as pipeline:
        for _ in _pushed_ahead(pipeline, rows, most):
            yield unpack(pipeline.next())


def _pinned_chunks(field: Field, rows: Numbers | range, host: Interface) -> Iterator[torch.Tensor]:
    """Yield rows in pinned memory, uint8 (some rows, bytes of a row)."""
    most = max(1, min(len(rows), _PINNED_BYTES // field.row_bytes))
    begun: deque[torch.Tensor] = deque()

    def provide(need: tuple[int, int] | None) -> None:
        while need is not None:
            begun.append(host.pinned(max(1, need[0])))
            address = begun[-1].data_ptr()
            need = pipeline.set_destination(address, address, begun[-1])

    with _pipeline(GatherSpec({0: field}, Only(), {}), len(rows), most, near=host.near, borrowed=True) as pipeline:
        for number in _pushed_ahead(pipeline, rows, most):
            provide(pipeline.needed_destination())
            while isinstance(found := pipeline.next(), tuple):
                provide(found)
            count, offset = min(most, len(rows) - number * most), found[0][1]
            yield begun.popleft()[offset : offset + count * field.row_bytes].view(count, field.row_bytes)


@contextlib.contextmanager
def _pipeline(
    source: GatherSpec, rows: int, most: int, *, near: NumaNode | None = None, borrowed: bool
) -> Iterator[_core.Pipeline]:
    """Give a pipeline for batches of at most `most` rows, and close it."""
    source.check_in_place()
    if source.caches:
        raise ValueError('rows of a store go to a device by way of RAM: memload.open(..., tier="ram")')
    pipeline = _core.Pipeline(
        source.pipeline_fields(),
        batch_rows=most,
        slot_rows=most,
        drop_last=False,
        depth=_AHEAD,
        threads=budget.local_threads(),
        read_blocks=reads_blocks(source, rows),
        direct=reads_directly(source, rows, None),
        borrowed=borrowed,
        cpus=near.cpus if near else (),
    )
    try:
        yield pipeline
    finally:
        pipeline.close()


def _pushed_ahead(pipeline: _core.Pipeline, rows: Numbers | range, most: int) -> Iterator[int]:
    """Yield the number of each batch of rows when it is to be taken, with the next ones pushed already."""
    begins = range(0, len(rows), most)
    for number in range(len(begins) + _AHEAD):
        if number < len(begins):
            pipeline.push(np.asarray(rows[begins[number] : begins[number] + most], dtype=np.int64))
        if number >= _AHEAD:
            yield number - _AHEAD
