"""Fields larger than a GPU's memory: some rows in the memory of one GPU or of several, the others in pinned RAM.

    frames of each field -> shares.py: which lie where -> tables, filled by native threads -> SplitColumn
                                                          |- on each GPU
                                                          `- pinned RAM, which the GPU reads across the bus

It has not run on several GPUs yet.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload.columns.fields import Field
from memload.device.devices import raise_device_error
from memload.device.frames import FrameIndex
from memload.device.loading import FramePlan, check_fits, check_loadable, fill
from memload.device.node_sharing import NodeShare
from memload.device.pinned_memory import PinnedMemory
from memload.device.resident import ResidentColumn, ResidentField
from memload.device.row_numbers import RowNumbers
from memload.device.shares import Table, checked_weights, dealt_out, frames_on_devices, frequencies, renumbered
from memload.device.split_rows import SplitRows, Stored, viewed
from memload.errors import DeviceError, MemorySpaceError
from memload.progress import Bar, byte_bar
from memload.sizes import format_size


@dataclass(frozen=True, eq=False)
class SplitColumn(ResidentColumn):
    """Rows of which some lie in the memory of devices and the others in pinned RAM; one kernel gathers from all.

    Args:
        on_devices: the tables of the devices.
        memory: the memory of the other rows; None: there are none.
        share: what keeps the memories that processes share; None: all belong to this process.
    """

    on_devices: tuple[torch.Tensor, ...] = ()
    memory: PinnedMemory | None = None
    share: NodeShare | None = None

    @property
    def may_end(self) -> bool:  # type: ignore[override]
        """Whether rows are those of several processes, which are given back when this one ends."""
        return self.share is not None

    @functools.cached_property
    def is_far(self) -> bool:
        """Whether some rows lie outside of the memory of the device that gathers them."""
        return self.memory is not None or len(self.on_devices) > 1

    @functools.cached_property
    def _on_gpu(self) -> bool:
        return self.table.device.type == "cuda"

    @functools.cached_property
    def rows_on_devices(self) -> int:
        """The number of stored rows on the devices, after which those in RAM are numbered."""
        return sum(map(len, self.on_devices))

    def crosses_bus(self, *, arrived: bool) -> bool:
        """Whether the kernel reads rows of other GPUs, or of RAM."""
        return len(self.on_devices) > 1 if arrived else self.is_far

    def stored_as(self, dtype: torch.dtype, shape: tuple[int, ...] | None, numbers: RowNumbers) -> Stored:
        """Return the frames to which the numbers of a batch refer: those in RAM, or those that arrived from there."""
        frames, arrived = self.frames_as(dtype, shape), numbers.arrived_rows(self)
        if arrived is None:
            return frames
        assert isinstance(frames, SplitRows)
        last = viewed(arrived, dtype, shape)
        assert isinstance(last, torch.Tensor)
        return replace(frames, parts=(*frames.parts[:-1], last))

    def was_read(self) -> None:
        """Keep all memories until the gathering device's current stream has finished the work queued now."""
        if self.share is not None:
            self.share.was_read()
        elif self._on_gpu:
            device = self.table.device
            stream = torch.cuda.current_stream(device)
            for table in self.on_devices:
                _hold(table, stream)
            if self.memory is not None:
                self.memory.was_read(device)

    def check_here(self) -> None:
        """Raise DeviceError in a process that was forked from the one that loaded the rows."""
        if self.share is not None:
            self.share.check_here()
        elif self.memory is not None:
            self.memory.check_here()

    def gathered_by(self, device: torch.device) -> SplitColumn:
        """Return the same rows, gathered by another of their devices."""
        return replace(self, table=table_of(self.on_devices, self.memory, device))


def _hold(table: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a table until a stream, maybe of another device, has finished the work queued now.

    Torch compares the handles of streams without their devices, and default streams all have the handle 0: so it would
    take another device's default stream for the one that the memory belongs to, and not wait for it. Another stream of
    that device stands for it then, which waits for it and does nothing else.
    """
    if not stream.cuda_stream and stream.device != table.device:
        stand_in = _stand_in(stream.device)
        stand_in.wait_stream(stream)
        stream = stand_in
    table.record_stream(stream)


@functools.cache
def _stand_in(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def table_of(on_devices: Sequence[torch.Tensor], memory: PinnedMemory | None, device: torch.device) -> SplitRows:
    """Return rows on devices, and then those in RAM, for the device that gathers them."""
    if memory is None:
        return SplitRows(tuple(on_devices), device)
    seen = memory.seen() if device == memory.device else None
    return SplitRows((*on_devices, memory.table if seen is None else seen), device)


def gathered_by(fields: Mapping[Any, Field], device: torch.device) -> dict[Any, Field] | None:
    """Return fields that one of their devices gathers; None if they are not all on this device."""
    found: dict[Any, Field] = {}
    for key, field in fields.items():
        column = field.column if isinstance(field, ResidentField) else None
        if not isinstance(column, SplitColumn) or device not in [table.device for table in column.on_devices]:
            return None
        found[key] = ResidentField(
            field.dtype, field.shape, column.gathered_by(device), digest=field.digest, meant=field.meant
        )
    return found


def where_split(fields: Mapping[Any, Field]) -> str:
    """Return where rows lie that are split, such as "on cuda:0 (60 GB) and in pinned RAM (140 GB)"; "" for others."""
    every: list[Any] = [field.column for field in fields.values()]
    columns = [column for column in every if isinstance(column, SplitColumn)]
    held: dict[str, int] = {}
    for column in columns:
        for table in column.on_devices:
            place = (
                f"on {table.device}" if column.share is None else f"on devices of {len(column.on_devices)} processes"
            )
            held[place] = held.get(place, 0) + table.nbytes
    if in_ram := sum(column.memory.table.nbytes for column in columns if column.memory is not None):
        held["in pinned RAM"] = in_ram
    return " and ".join(f"{place} ({format_size(nbytes)})" for place, nbytes in held.items())


def loaded_in_parts(
    fields: Mapping[str, Field],
    devices: Sequence[torch.device],
    nbytes: int | None,
    weights: Any = None,
    progress: bool | None = None,
) -> dict[str, Field]:
    """Return the fields with as many rows as fit in the memory of devices, and the others in pinned RAM.

    Args:
        fields: fields by name, in files or arrays.
        devices: the devices that keep rows, of which the first gathers unless a loader names another.
        nbytes: the bytes of rows on each device; None: the devices keep all rows.
        weights: how often each row is drawn, or a sampler with `weights`; None: the devices keep the first rows.
        progress: whether to show a bar; None: if standard error is a terminal.

    Raises:
        MemorySpaceError: a part does not fit; the message has the figures, and nothing was loaded.
        DeviceError: devices cannot read each other's memory, or RAM cannot be pinned.
        ValueError, TypeError: `nbytes` is less than a row, weights do not fit, rows differ in length, or they are on a
            device already.
    """
    check_loadable(fields)
    check_peers(devices)
    often = checked_weights(weights, next(iter(fields.values())).rows if fields else 0)
    plans = {name: FramePlan.of(field) for name, field in fields.items()}
    tables = {name: Table(len(plan.rows), plan.frames.row_bytes) for name, plan in plans.items()}
    each = frames_on_devices(tables, nbytes, len(devices))
    parts = {name: Parts.of(plan, each[name], len(devices), often) for name, plan in plans.items()}
    _check_fit(parts, devices, limited=nbytes is not None)
    where = " and ".join(map(str, devices))
    total = sum(plan.nbytes for plan in plans.values())
    try:
        with byte_bar(where if nbytes is None else f"{where} and pinned RAM", total, progress) as shown:
            made = {name: one.execute(devices, shown) for name, one in parts.items()}
        _open_to_each_other(devices)
    except DeviceError:
        raise
    except RuntimeError as error:
        raise_device_error(error, "loading a dataset", devices[0])
    return made


@dataclass(frozen=True)
class Parts:
    """The frames of a field by the memory that they go to: those of the devices, and then pinned RAM."""

    plan: FramePlan
    numbers: list[Any]

    @classmethod
    def of(cls, plan: FramePlan, each: int, devices: int, weights: Any) -> Parts:
        """Return the parts of a field of which each device keeps at most `each` frames; weights: one for each row."""
        often = None if weights is None else frequencies(plan.index, weights, len(plan.rows))
        return cls(plan, dealt_out(len(plan.rows), each, devices, often))

    def nbytes(self, part: int) -> int:
        """Return the bytes of the frames of one memory; -1: of RAM."""
        return len(self.numbers[part]) * self.plan.frames.row_bytes

    def rows_of(self, part: int) -> Any:
        """Return the stored numbers of the frames of one memory."""
        numbers = self.numbers[part]
        if isinstance(numbers, range):
            return self.plan.rows[numbers.start : numbers.stop]
        return numbers if isinstance(self.plan.rows, range) else self.plan.rows[numbers]

    @property
    def index(self) -> FrameIndex:
        """The index of the field's rows into the frames, numbered memory after memory."""
        places = renumbered(self.numbers)
        return self.plan.index if places is None else self.plan.index.into(places)

    def execute(self, devices: Sequence[torch.device], shown: Bar) -> Field:
        """Load the frames into memory of this process, and return the field over them."""
        on_devices = tuple(self._on(device, part, shown) for part, device in enumerate(devices))
        memory = self._pinned(devices[0], shown) if len(self.numbers[-1]) else None
        table = table_of(on_devices, memory, devices[0])
        column = SplitColumn(table, self.index, on_devices=on_devices, memory=memory)
        field = self.plan.field
        return ResidentField(field.dtype, field.shape, column, digest=field.digest, meant=field.meant)

    def _on(self, device: torch.device, part: int, shown: Bar) -> torch.Tensor:
        shape = len(self.numbers[part]), self.plan.frames.row_bytes
        table = torch.empty(shape, dtype=torch.uint8, device=device)
        fill(table, self.plan.frames, self.rows_of(part), shown)
        return table

    def _pinned(self, device: torch.device, shown: Bar) -> PinnedMemory:
        memory = PinnedMemory(len(self.numbers[-1]), self.plan.frames.row_bytes, device)
        fill(memory.table, self.plan.frames, self.rows_of(-1), shown)
        memory.pin()
        return memory


def _check_fit(parts: Mapping[str, Parts], devices: Sequence[torch.device], *, limited: bool) -> None:
    """Raise MemorySpaceError, with figures, if the part of a device or that of RAM does not fit there."""
    instead = "give less of them by bytes=" if limited else "give bytes=, so that the others stay in pinned RAM"
    for number, device in enumerate(devices):
        check_fits({name: one.nbytes(number) for name, one in parts.items()}, device, instead)
    in_ram = {name: one.nbytes(-1) for name, one in parts.items()}
    total = sum(one.plan.nbytes for one in parts.values())
    try:
        check_fits({"rows": total} if devices[0].type == "cpu" else in_ram, torch.device("cpu"))
    except MemorySpaceError as error:
        kept = total - sum(in_ram.values())
        where = " and ".join(map(str, devices))
        raise MemorySpaceError(
            f"of {format_size(total)} of rows, {format_size(kept)} lie on {where}, and the other "
            f"{format_size(sum(in_ram.values()))} do not fit into pinned RAM: {format_size(error.free)} are available "
            "there. Give more by bytes=, load a part (ds.select(rows), ds.as_tuple(...)), or keep the dataset in files "
            "and give the loader device=, which streams it",
            need=sum(in_ram.values()),
            free=error.free,
        ) from None


def check_peers(devices: Sequence[torch.device]) -> None:
    """Raise DeviceError if one of several devices cannot read the memory of another."""
    apart = [
        (one, other)
        for one, other in itertools.permutations(devices, 2)
        if one.type == "cuda" and not torch.cuda.can_device_access_peer(one, other)
    ]
    if apart:
        one, other = apart[0]
        raise DeviceError(
            f"{one} cannot read the memory of {other} (no peer access: `nvidia-smi topo -p2p r` shows all pairs), so "
            "that rows cannot be spread over both. Give one device and bytes=, which keeps the other rows in pinned RAM"
        )


def _open_to_each_other(devices: Sequence[torch.device]) -> None:
    """Let each device read the memory of the others, and wait until all that was queued for their tables is done.

    A copy from one device to another makes torch enable access of the first to the second, whatever its allocator.
    """
    for one, other in itertools.permutations(devices, 2):
        if one.type == "cuda":
            torch.zeros(1, device=one).to(other)
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
