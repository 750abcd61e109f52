"""Loads rows for all processes of a machine together: each row lies once, on the GPU of one of them or in shared RAM.

    frames of each field -> shares.py: which lie where -> each process loads its part -> all open those of the others
                                                          node_memory.py                 node_sharing.py

It has run with two processes on one GPU, not on several yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import xxhash

from memload.columns.fields import Field
from memload.device.devices import device_of, raise_device_error
from memload.device.loading import FramePlan, check_fits, check_loadable, fill
from memload.device.node_memory import GpuNodeMemory, HostNodeMemory, NodeMemory, SharedFile
from memload.device.node_sharing import NodeShare, warn_of_readers
from memload.device.pinned_memory import PinnedMemory
from memload.device.resident import ResidentField
from memload.device.shares import Table, checked_weights, frames_on_devices
from memload.device.split_tier import Parts, SplitColumn, table_of
from memload.errors import DeviceError
from memload.progress import Bar, byte_bar
from memload.sizes import parse_size

T = TypeVar("T")

_ALIGN = 256  # bytes; tables of fields begin at multiples
_MOST = 16  # processes, whose memories and RAM a kernel reads: csrc/cuda/stored_rows.h


class Members:
    """The processes of a group, which take each step of a load together.

    Args:
        group: a group of torch.distributed.

    Raises:
        TypeError: it is none, or this process does not belong to it.
    """

    def __init__(self, group: Any) -> None:
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            raise TypeError("group= shares rows with the processes of torch.distributed: call init_process_group first")
        try:
            self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise TypeError(f"group= takes a group of torch.distributed, such as group.WORLD; got {group!r}") from error
        if self.rank < 0:
            raise TypeError("this process does not belong to the group of group=")
        self._group = group

    def all(self, step: Callable[[], T]) -> list[T]:
        """Return what a function returned in each process, by rank, once all have called it.

        Raises:
            Exception: what the function raised here.
            DeviceError: it raised an error in another process, whose rank and message it has.
        """
        raised: Exception | None = None
        mine: tuple[Any, str] = None, ""
        try:
            mine = step(), ""
        except Exception as error:
            raised, mine = error, (None, f"{type(error).__name__}: {error}")
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, mine, group=self._group)
        try:
            if raised is not None:
                raise raised
        finally:
            del raised  # its traceback refers to this frame
        failed = [f"process {rank} of the group: {said}" for rank, (_, said) in enumerate(found) if said]
        if failed:
            raise DeviceError(f"rows are shared by all of a group or by none. {failed[0]}")
        return [value for value, _ in found]


def loaded_for_group(
    fields: Mapping[str, Field],
    device: Any,
    nbytes: int | str | None,
    weights: Any,
    group: Any,
    progress: bool | None = None,
) -> dict[str, Field]:
    """Return what `loaded_by_group` does, for a device and bytes as a user gives them; a bad one is an error in all."""
    given: list[tuple[NodeMemory, int | None]] = []
    Members(group).all(
        lambda: given.append((gpu_or_host(device_of(device)), None if nbytes is None else parse_size(nbytes)))
    )
    memory, each = given[0]
    return loaded_by_group(fields, memory, each, weights, group, progress)


def loaded_by_group(
    fields: Mapping[str, Field],
    memory: NodeMemory,
    nbytes: int | None,
    weights: Any,
    group: Any,
    progress: bool | None = None,
) -> dict[str, Field]:
    """Return fields whose rows lie in the memories of a group's processes, and in RAM that all of them have pinned.

    Args:
        fields: fields by name, in files or arrays; the same in all processes.
        memory: the device of this process.
        nbytes: the bytes of rows on each device; None: the devices keep all rows.
        weights: as of `loaded_in_parts`.
        group: a group of torch.distributed, whose processes all call this, on one machine.
        progress: whether to show a bar; None: if standard error is a terminal.

    Raises:
        MemorySpaceError, DeviceError, ValueError, TypeError: as `loaded_in_parts`; in all processes if in one.
    """
    members = Members(group)
    plans: list[_Plan] = []
    seen = members.all(lambda: _described(plans, fields, nbytes, weights, members, memory.device))
    _check_alike(seen)
    warn_of_readers()  # all processes are here, and have dropped what they drop before they load anew
    plan = plans[0]
    loading: list[_Loading] = []
    try:
        made = members.all(lambda: _begun(loading, plan, memory))
        mine = loading[0]
        members.all(lambda: mine.fill(made[0].ram, progress))
        members.all(lambda: mine.open(made))
        return mine.fields()
    except BaseException:
        for one in loading:  # now, not when the caller lets go of the error, whose frames have all of it
            one.drop()
        raise
    finally:
        for one in loading:
            one.close_files()


def gpu_or_host(device: torch.device) -> NodeMemory:
    """Return the memory of a device that processes share."""
    return GpuNodeMemory(device) if device.type == "cuda" else HostNodeMemory()


@dataclass(frozen=True)
class _Plan:
    """Where the frames of each field lie.

    Attributes:
        parts: the frames of each field by memory: those of the processes by rank, and then those in RAM.
        rank, size: of this process, and of the group.
    """

    parts: Mapping[str, Parts]
    rank: int
    size: int

    def nbytes(self, part: int) -> dict[str, int]:
        """The bytes of each field in one memory; -1: in RAM."""
        return {name: one.nbytes(part) for name, one in self.parts.items()}

    def places(self, part: int) -> dict[str, tuple[int, int]]:
        """Where each field's table begins and ends in one memory."""
        found, end = {}, 0
        for name, nbytes in self.nbytes(part).items():
            begin = -(-end // _ALIGN) * _ALIGN
            end = begin + nbytes
            found[name] = begin, end
        return found

    def size_of(self, part: int) -> int:
        """The bytes of one memory."""
        return max((end for _, end in self.places(part).values()), default=0)


@dataclass(frozen=True)
class _Described:
    """What has to be the same in all processes of a group."""

    machine: str
    fields: Any
    nbytes: int | None
    weights: str
    kind: str


def _described(
    plans: list[_Plan],
    fields: Mapping[str, Field],
    nbytes: int | None,
    weights: Any,
    members: Members,
    device: torch.device,
) -> _Described:
    """Make the plan of this process, and return what it was made of."""
    if members.size > _MOST:
        raise ValueError(
            f"a group of {members.size} processes: rows are shared by {_MOST} at most; make smaller groups"
        )
    check_loadable(fields)
    often = checked_weights(weights, next(iter(fields.values())).rows if fields else 0)
    frames = {name: FramePlan.of(one) for name, one in fields.items()}
    tables = {name: Table(len(plan.rows), plan.frames.row_bytes) for name, plan in frames.items()}
    each = frames_on_devices(tables, nbytes, members.size)
    parts = {name: Parts.of(plan, each[name], members.size, often) for name, plan in frames.items()}
    plan = _Plan(parts, members.rank, members.size)
    instead = "give less of them by bytes=" if nbytes is not None else "give bytes=, so that the others stay in RAM"
    if device.type == "cuda":
        check_fits(plan.nbytes(members.rank), device, instead)
    if members.rank == 0:
        in_ram = range(-1, members.size) if device.type == "cpu" else [-1]
        check_fits({"rows in RAM": sum(plan.size_of(part) for part in in_ram)}, torch.device("cpu"), instead)
    plans.append(plan)
    form = [
        (str(name), str(one.dtype), tuple(one.shape), one.rows, tables[name], _which(frames[name]), _content(one))
        for name, one in fields.items()
    ]
    drawn = "" if often is None else _digest(often)
    return _Described(_machine(), form, nbytes, drawn, device.type)


def _which(plan: FramePlan) -> str:
    """Return a digest of which stored frames are loaded, and of which each row consists."""
    index = plan.index
    return f"{_digest(plan.rows)} {_digest(index.begins)} {index.steps} {_digest(index.places)}"


def _content(field: Field) -> str:
    """Return a digest of the first, middle and last row."""
    rows = sorted({0, field.rows // 2, field.rows - 1}) if field.rows else []
    return _digest(field.gather(np.array(rows, dtype=np.int64)).reshape(-1).view(torch.uint8).numpy())


def _digest(numbers: Any) -> str:
    if numbers is None or isinstance(numbers, range):
        return repr(numbers)
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data)


def _machine() -> str:
    """Return what is the same in all processes of a machine that see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _check_alike(seen: Sequence[_Described]) -> None:
    if any(one.machine != seen[0].machine for one in seen):
        raise ValueError(
            "the processes of group= are on several machines, or in containers that do not see each other: make a "
            "group for each machine (torch.distributed.new_subgroups()), and run containers with --pid=host"
        )
    other = next((rank for rank, one in enumerate(seen) if one != seen[0]), None)
    if other is not None:
        what = ", ".join(
            f"{name}: {getattr(seen[0], name)!r} and {getattr(seen[other], name)!r}"
            for name in ("fields", "nbytes", "weights", "kind")
            if getattr(seen[0], name) != getattr(seen[other], name)
        )
        raise ValueError(f"processes 0 and {other} of group= load different rows, or place them differently: {what}")


@dataclass(frozen=True)
class _Made:
    """What a process has made for the others: the handle of its memory, its lock, and the first one also the RAM."""

    handle: Any
    guard: str
    ram: str | None


def _begun(loading: list[_Loading], plan: _Plan, memory: NodeMemory) -> _Made:
    own = memory.export(max(1, plan.size_of(plan.rank)))
    try:
        share = NodeShare(own, memory.device)
    except BaseException:
        own.free()
        raise
    file = SharedFile.create(plan.size_of(-1)) if plan.rank == 0 and plan.size_of(-1) else None
    loading.append(_Loading(plan, memory, share, own.memory, file))
    return _Made(own.handle, share.guard, None if file is None else file.path)


@dataclass
class _Loading:
    """A load of this process, under way.

    Attributes:
        plan: where frames lie.
        memory: the device of this process.
        share: what this process has of the memories.
        own: the memory of this process.
        file: the RAM that all share, of the process that made it; of others, once it is opened.
        ram: that RAM, mapped.
        tables: the memories of all processes, by rank.
    """

    plan: _Plan
    memory: NodeMemory
    share: NodeShare
    own: torch.Tensor
    file: SharedFile | None
    ram: torch.Tensor | None = None
    tables: list[torch.Tensor] = field(default_factory=list)

    def fill(self, path: str | None, progress: bool | None) -> None:
        """Load the frames of this process, and its part of those in RAM."""
        device, rank = self.memory.device, self.plan.rank
        if path is not None:
            self.file = self.file or SharedFile.open(path, self.plan.size_of(-1))
            self.file.reserve(*self._share_of_ram())
            self.ram = self.file.mapped()
        total = self.plan.size_of(rank) + self.plan.size_of(-1) // self.plan.size
        try:
            with byte_bar(f"{device}, with {self.plan.size - 1} other processes", total, progress) as shown:
                for name, parts in self.plan.parts.items():
                    fill(self._table(self.own, name, rank), parts.plan.frames, parts.rows_of(rank), shown)
                    self._fill_ram(name, parts, shown)
        except DeviceError:
            raise
        except RuntimeError as error:
            raise_device_error(error, "loading a dataset", device)

    def _share_of_ram(self) -> tuple[int, int]:
        size, rank, count = self.plan.size_of(-1), self.plan.rank, self.plan.size
        return size * rank // count, size * (rank + 1) // count

    def _fill_ram(self, name: str, parts: Parts, shown: Bar) -> None:
        if self.ram is None:
            return
        rows, table = parts.rows_of(-1), self._table(self.ram, name, -1)
        begin, end = (len(rows) * rank // self.plan.size for rank in (self.plan.rank, self.plan.rank + 1))
        fill(table[begin:end], parts.plan.frames, rows[begin:end], shown)

    def _table(self, memory: torch.Tensor, name: str, part: int) -> torch.Tensor:
        """Return the rows of a field in one memory, uint8 (rows, bytes of a row)."""
        begin, end = self.plan.places(part)[name]
        row_bytes = self.plan.parts[name].plan.frames.row_bytes
        return memory[begin:end].view(len(self.plan.parts[name].numbers[part]), row_bytes)

    def open(self, made: Sequence[_Made]) -> None:
        """Open the memories of the other processes, and pin the RAM; all of them are filled."""
        if self.ram is not None:
            self.share.pin(self.ram)
        for rank, one in enumerate(made):
            if rank == self.plan.rank:
                self.tables.append(self.own)
                continue
            opened = self.memory.open(one.handle, max(1, self.plan.size_of(rank)))
            self.tables.append(self.share.add(opened, one.guard))

    def drop(self) -> None:
        """Let go of all memories."""
        self.share.close()
        self.tables.clear()
        self.ram, self.own = None, torch.empty(0, dtype=torch.uint8, device="cpu")

    def close_files(self) -> None:
        """Close the file of the RAM, which all have mapped."""
        if self.file is not None:
            self.file.close()

    def fields(self) -> dict[str, Field]:
        """Return the fields."""
        return {name: self._field(name, parts) for name, parts in self.plan.parts.items()}

    def _field(self, name: str, parts: Parts) -> Field:
        device, share = self.memory.device, self.share
        tables = tuple(self._table(memory, name, rank) for rank, memory in enumerate(self.tables))
        memory = None
        if self.ram is not None and len(parts.numbers[-1]):
            memory = PinnedMemory.over(self._table(self.ram, name, -1), device, share.reads)
        column = SplitColumn(
            table_of(tables, memory, device), parts.index, on_devices=tables, memory=memory, share=share
        )
        given = parts.plan.field
        return ResidentField(given.dtype, given.shape, column, digest=given.digest, meant=given.meant)
