"""Brings the rows of a batch that lie in pinned RAM to the device by its copy engine, while its kernel works on others.

    numbers   3    9    1    7          of rows; the first 5 lie on the device, the others in RAM
              3    5    1    6          those in RAM are numbered in the order in which they arrive
                   |         |
    RAM ----------(4)-------(2)---- gather, native threads -> pinned slot -> copy engine -> arrived rows, on the device

The kernel then gathers the batch from the rows on the device and those that arrived.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from memload import _core
from memload.device.destination_buffers import PinnedRing
from memload.device.frames import Numbers
from memload.device.interface import Interface
from memload.device.row_numbers import Arrived, HasIndex, HostNumbers, RowNumbers, native_index
from memload.device.split_tier import SplitColumn
from memload.engine.gatherer import longest_close
from memload.engine.settings import bytes_of_slot
from memload.stats import LoaderStats

AHEAD = 2
"""Batches whose rows are gathered and copied ahead of the kernel."""

_SMALL_AHEAD, _SMALL = 8, 1 << 20
"""Of batches of at most so many bytes more are ahead: the native pipeline begins several at a time, since to wake a
thread costs the loop's thread more than all else (`Pass::may_wait`)."""

_ALIGN = 512  # bytes, as torch's allocator aligns its blocks


def batches_ahead(slot_bytes: int) -> int:
    """Return how many batches are gathered and copied ahead of the kernel, by the bytes of a slot."""
    return _SMALL_AHEAD if slot_bytes <= _SMALL else AHEAD


@dataclass(frozen=True)
class CopyOptions:
    """How rows are copied.

    Attributes:
        batch_rows: rows of the largest batch, as far as it is known.
        threads: native threads that gather.
        pinned_bytes: the most bytes of slots; None: no limit.
    """

    batch_rows: int
    threads: int
    pinned_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Together:
    """Columns whose rows in RAM are copied together, since the same rows of each lie there.

    Attributes:
        columns: the columns.
        identity: that of their indices.
        first: the number of the first row in RAM.
    """

    columns: Sequence[SplitColumn]
    identity: Hashable
    first: int

    @property
    def fields(self) -> list[Any]:
        """The rows in RAM as the native pipeline takes them."""
        return [_pipeline_field(column) for column in self.columns]

    def most_bytes(self, rows: int) -> int:
        """Return the most bytes in RAM of a batch of so many rows."""
        return bytes_of_slot(self.fields, rows)

    def ahead(self, rows: int) -> int:
        """Return how many batches of so many rows are ahead of the kernel."""
        return batches_ahead(self.most_bytes(rows))

    def device_bytes(self, rows: int) -> int:
        """Return the bytes of the device's memory in which batches of so many rows arrive."""
        return self.ahead(rows) * self._buffer_bytes(rows)

    def _buffer_bytes(self, rows: int) -> int:
        return -(-max(1, self.most_bytes(rows)) // _ALIGN) * _ALIGN

    def buffers(self, rows: int, interface: Interface) -> torch.Tensor:
        """Return memory of the device for batches of so many rows, in one block, that the stream `work` reads, too.

        It is uint8 (batches, bytes of a batch).
        """
        memory = interface.empty(self.device_bytes(rows), interface.copies)
        interface.hold(memory, interface.work)
        return memory.view(self.ahead(rows), self._buffer_bytes(rows))


def _pipeline_field(column: SplitColumn) -> Any:
    assert column.memory is not None
    rows, row_bytes = column.memory.table.shape
    return _core.Column(row_bytes, [(column.memory.storage, 0, rows, row_bytes)]), None, 1, 8, [row_bytes], None


def together(columns: Sequence[Any]) -> list[Together]:
    """Return the columns that the copy engine can serve, by those that are copied together.

    Windows are not among them: those of a batch share frames, each of which would be copied for each window.
    """
    found: dict[Hashable, list[SplitColumn]] = {}
    for column in columns:
        if isinstance(column, SplitColumn) and column.memory is not None and column.index.steps is None:
            found.setdefault((column.index.identity, column.rows_on_devices), []).append(column)
    return [Together(each, each[0].index.identity, each[0].rows_on_devices) for each in found.values()]


def ring_bytes(groups: Sequence[Together], options: CopyOptions) -> int:
    """Return the bytes of the pinned slots."""
    rows, threads = options.batch_rows, options.threads
    return sum(_core.Pipeline.ring_bytes(one.fields, rows, one.ahead(rows), threads) for one in groups)


class ArrivedRows(NamedTuple):
    """Rows of a batch that are on the device for work in the stream `work`.

    Attributes:
        places: where those of each column lie.
        memory: the buffers that they lie in, uint8, which a simulated device watches until they were read.
    """

    places: dict[SplitColumn, Arrived]
    memory: Sequence[torch.Tensor]


class CopiedBatch(NamedTuple):
    """A batch whose rows in RAM are on their way.

    Attributes:
        numbers: those of its rows on the CPU: by the identity of an index, and by what is copied together.
        parts: what is on its way.
        keys: the key in `numbers` of each column that may be copied.
    """

    numbers: dict[Hashable, Numbers]
    parts: Sequence[_Copies]
    keys: Mapping[SplitColumn, _Copies]

    def take(self, *, wait: bool) -> ArrivedRows | None:
        """Return the arrived rows, for later work in the stream `work`, after which `release` is to be called.

        None: they are not all there yet, and without `wait` they are not waited for.
        """
        parts = self.parts
        if len(parts) == 1:
            return parts[0].take(wait=wait)
        if not wait and not all(part.is_ready() for part in parts):
            return None
        places, memory = dict[SplitColumn, Arrived](), list[torch.Tensor]()
        for part in parts:
            if (found := part.take(wait=True)) is not None:
                places.update(found.places)
                memory.extend(found.memory)
        return ArrivedRows(places, memory)

    def release(self) -> None:
        """Say that all that reads the arrived rows is in the stream `work`."""
        for part in self.parts:
            part.release()


class ArrivedNumbers(RowNumbers):
    """The numbers of a batch with rows that the copy engine brought.

    Args:
        batch: the batch.
        arrived: its rows that arrived.
        device: the device.
    """

    def __init__(self, batch: CopiedBatch, arrived: ArrivedRows, device: torch.device) -> None:
        self._bring(batch.numbers, device)
        self._arrived, self._keys = arrived.places, batch.keys

    def of_column(self, column: HasIndex) -> torch.Tensor:
        """Return the numbers of the rows of a column."""
        return self._numbers[self._keys.get(column) or column.index.identity]  # type: ignore[call-overload]

    def arrived(self, column: HasIndex) -> Arrived | None:
        """Return the rows that stand for a column's last part; None: nothing does."""
        found: Arrived | None = self._arrived.get(column)  # type: ignore[call-overload]
        return found

    def arrived_rows(self, column: HasIndex) -> torch.Tensor | None:
        """Return these rows as a tensor, uint8 (rows, row_bytes)."""
        found = self.arrived(column)
        return None if found is None else self._keys[column].rows_at(found, _row_bytes(column))  # type: ignore[index, arg-type]


class CopiedRows:
    """Copies the rows of batches in their order. For one thread at a time.

    Args:
        groups: what is copied.
        columns: all columns of a batch.
        options: how.
        interface: the device, with `native`.
        reuse: what an earlier pass kept; None: nothing.

    Raises:
        RuntimeError: the device has no memory for rows that arrive.
    """

    def __init__(
        self,
        groups: Sequence[Together],
        columns: Sequence[HasIndex],
        options: CopyOptions,
        interface: Interface,
        reuse: CopiedRows | None = None,
    ) -> None:
        kept = reuse if reuse is not None and reuse._serves(groups, interface) else None
        self._interface, self._batch_rows = interface, options.batch_rows
        self._ring: PinnedRing = kept._ring if kept else PinnedRing.of(interface, options.pinned_bytes)
        before: Sequence[_Copies | None] = kept._copies if kept else [None] * len(groups)
        self._copies: list[_Copies] = [
            _Copies(one, options, interface, self._ring, old) for one, old in zip(groups, before, strict=True)
        ]
        self._keys = {column: one for one in self._copies for column in one.together.columns}
        others = [column.index for column in columns if column not in self._keys]
        self._others = HostNumbers(others) if others else None

    def _serves(self, groups: Sequence[Together], interface: Interface) -> bool:
        mine, others = ([[c.memory for c in one.columns] for one in all_] for all_ in (self._groups, groups))
        return mine == others and self._interface.native is interface.native

    @property
    def _groups(self) -> list[Together]:
        return [one.together for one in self._copies]

    @property
    def refusal(self) -> str:
        """Why slots are not all pinned; "": they are."""
        return self._ring.slots.refusal

    def begin(self, rows: Numbers) -> CopiedBatch | None:
        """Begin to copy the rows of a batch; None: it has more rows than slots and buffers are made for.

        Raises:
            IndexError: a row number is out of range.
        """
        if len(rows) > self._batch_rows:
            return None
        numbers, parts = {} if self._others is None else self._others.of(rows), []
        for copies in self._copies:
            numbers[copies], moved = copies.push(rows)
            if moved:
                parts.append(copies)
        return CopiedBatch(numbers, parts, self._keys)

    def stats(self) -> LoaderStats:
        """Return the counters of native threads and copies."""
        return sum((copies.stats() for copies in self._copies), LoaderStats())

    def close(self, keep_slots: bool = False, at_once: bool = False) -> None:
        """Stop, and free slots and threads, or keep the slots for a later pass."""
        for copies in self._copies:
            copies.close(keep_slots, at_once)


class _Copies:
    """The copies of rows that are copied together, through a ring of pinned slots, to buffers of the device in turn."""

    def __init__(
        self, group: Together, options: CopyOptions, interface: Interface, ring: PinnedRing, reuse: _Copies | None
    ) -> None:
        assert interface.native is not None
        self.together = group
        self._index = native_index(group.columns[0].index)
        self._buffers: torch.Tensor | None = group.buffers(options.batch_rows, interface)
        fields, buffers = group.fields, self._buffers
        self._in_turn = itertools.cycle(buffers.unbind())
        self._pipeline: _core.Pipeline = _core.Pipeline(
            fields,
            batch_rows=options.batch_rows,
            slot_rows=options.batch_rows,
            drop_last=False,
            depth=len(buffers),
            threads=options.threads,
            reuse=reuse._pipeline if reuse else None,
            slots=ring.slots,
            route=(interface.native, interface.handle(interface.copies), interface.handle(interface.work), len(fields)),
            buffers=(buffers.data_ptr(), *buffers.shape),
            cpus=interface.near.cpus if interface.near else (),
        )

    def push(self, rows: Numbers) -> tuple[Numbers, int]:
        """Begin to copy those of some rows, one batch, that lie in RAM; return the numbers of all, and their number."""
        return self._pipeline.push_from(self._index, self.together.first, rows)

    def is_ready(self) -> bool:
        """Return whether `take` has the next batch without waiting."""
        return bool(self._pipeline.ready())

    def take(self, *, wait: bool) -> ArrivedRows | None:
        """Return the next batch; what follows in the stream `work` finds it there.

        None: it is not there yet, and without `wait` it is not waited for.

        Raises:
            RuntimeError: the copies were closed meanwhile.
        """
        arrived = self._pipeline.next_addresses(wait)
        if arrived is None and wait:
            raise RuntimeError("rows of a batch were on their way to the device when their copies were closed")
        if arrived is None:
            return None
        return ArrivedRows(dict(zip(self.together.columns, arrived, strict=True)), (next(self._in_turn),))

    def rows_at(self, arrived: Arrived, row_bytes: int) -> torch.Tensor:
        """Return rows that have arrived, uint8 (rows, row_bytes)."""
        assert self._buffers is not None
        (address, rows), memory = arrived, self._buffers.view(-1)
        begin = address - memory.data_ptr()
        return memory[begin : begin + rows * row_bytes].view(rows, row_bytes)

    def release(self) -> None:
        """Say that all that reads the batch which was taken first is in the stream `work`."""
        self._pipeline.release()

    def stats(self) -> LoaderStats:
        """Return the counters of the pipeline that are about copies."""
        counted = self._pipeline.stats()
        names = ("gather_seconds", "helped_pieces", "copied_bytes", "copies", "copy_wait_seconds", "streaming")
        return LoaderStats(**{name: counted[name] for name in names})

    def close(self, keep_slots: bool, at_once: bool) -> None:
        """Stop, and free buffers, slots and threads, or keep the slots."""
        self._pipeline.close(keep_slots, longest_close(at_once))
        self._buffers, self._in_turn = None, itertools.cycle(())


def _row_bytes(column: SplitColumn) -> int:
    assert column.memory is not None
    return int(column.memory.table.shape[1])
