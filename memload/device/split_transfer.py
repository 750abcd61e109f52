"""How the rows of a pass come out of pinned RAM: by the kernel or by the copy engine, whichever a trial found faster.

numbers of a batch -> transfer_choice.py: which way -> the kernel reads all rows
                                                    `- copied_rows.py: the copy engine moves those in RAM
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from memload.device.copied_rows import AHEAD, CopiedBatch, CopiedRows, CopyOptions, Together, ring_bytes, together
from memload.device.frames import Numbers
from memload.device.interface import Interface
from memload.device.kernels import OwnerCache
from memload.device.row_numbers import HostNumbers
from memload.device.transfer_choice import LEAST_BATCHES, Place, TransferChoice, TransferTrial
from memload.engine.gather_spec import GatherSpec
from memload.engine.settings import check_room
from memload.errors import MemorySpaceError
from memload.stats import LoaderStats

_CHOICES = OwnerCache()


@dataclass(frozen=True)
class TransferPlan:
    """What a pass over rows on a device and in pinned RAM may do.

    Attributes:
        source: the gather specification.
        groups: the rows that the copy engine can move.
        options: how it does.
        choice: the choice for these rows and batches of this size.
        batches: batches of the pass; 0: not known.
    """

    source: GatherSpec
    groups: Sequence[Together]
    options: CopyOptions
    choice: TransferChoice
    batches: int

    @classmethod
    def of(cls, source: GatherSpec, options: CopyOptions, batches: int) -> TransferPlan | None:
        """Return the plan for a source; None: the copy engine cannot move any of its rows."""
        groups = together([field.column for field in source.fields.values()])
        if not groups:
            return None
        return cls(source, groups, options, _choice_of(groups, options.batch_rows), batches)

    @property
    def ahead(self) -> int:
        """How many batches begin ahead of the kernel: more of small ones, but where both ways are compared."""
        return self._slots_ahead if self.choice.by_copies else AHEAD

    @property
    def most_ahead(self) -> int:
        """How many batches may begin ahead of the kernel in the course of a pass."""
        return self._slots_ahead if self.may_copy else AHEAD

    @functools.cached_property
    def _slots_ahead(self) -> int:
        return min(one.ahead(self.options.batch_rows) for one in self.groups)

    @property
    def may_copy(self) -> bool:
        """Whether the copy engine is used, or tried."""
        if self.choice.by_copies is None:
            return not 0 < self.batches < LEAST_BATCHES
        return self.choice.by_copies

    @property
    def ring_bytes(self) -> int:
        """The bytes of the pinned slots of a pass."""
        return ring_bytes(self.groups, self.options) if self.may_copy else 0

    @property
    def device_bytes(self) -> int:
        """The bytes of the device's memory in which rows of a pass arrive."""
        return sum(one.device_bytes(self.options.batch_rows) for one in self.groups) if self.may_copy else 0

    def check_room(self) -> None:
        """Raise MemorySpaceError if this process cannot take the slots."""
        rows = self.options.batch_rows
        slot = sum(one.most_bytes(rows) for one in self.groups)
        check_room(self.source, slot, max(one.ahead(rows) for one in self.groups), self.batches)


def _choice_of(groups: Sequence[Together], batch_rows: int) -> TransferChoice:
    """Return the choice for rows, by the memories that they lie in, and for batches of a size."""
    columns = [column for group in groups for column in group.columns]
    key = batch_rows, columns[0].table.device, *((id(column.memory), column.rows) for column in columns)
    return _CHOICES.of(columns[0].memory, key, TransferChoice)


class BegunTransfer(NamedTuple):
    """A batch whose way is decided.

    Attributes:
        rows: its row numbers.
        numbers: those of its rows on the CPU, by the identity of an index; None: the rows are on their way.
        copied: its rows that are on their way by the copy engine; None: the kernel reads all.
        place: its place in the trial; None: it has none.
    """

    rows: Numbers
    numbers: Mapping[Hashable, Numbers] | None = None
    copied: CopiedBatch | None = None
    place: Place | None = None


class SplitTransfer:
    """Brings the rows of one pass to the device. For one thread at a time.

    Args:
        plan: what the pass may do.
        interface: the device.
        kept: what an earlier pass kept; None: nothing.
    """

    def __init__(self, plan: TransferPlan, interface: Interface, kept: CopiedRows | None) -> None:
        self._plan, self._interface, self._kept = plan, interface, kept
        self._columns: Sequence[Any] = [field.column for field in plan.source.fields.values()]
        self._numbers = HostNumbers(column.index for column in self._columns)
        self._copies: CopiedRows | None = None
        self._under_way = 0  # batches that are copied, whose kernel was not launched
        self._ended = LoaderStats()  # of copies that were given up
        self._trial = TransferTrial(plan.choice, interface.seconds_between)
        if interface.native is None and plan.choice.by_copies is None:
            plan.choice.refuse("memload._cuda is not there to copy them")

    @property
    def ahead(self) -> int:
        """How many batches begin ahead of the kernel."""
        return self._plan.ahead

    @property
    def turns(self) -> bool:
        """Whether the next batch may begin a run of copies, before which the kernels of all others are launched."""
        return self._plan.may_copy and self._trial.turns

    def begin(self, rows: Numbers) -> BegunTransfer:
        """Decide the way of a batch, and begin to copy what is to be copied.

        Args:
            rows: its row numbers, int64.

        Raises:
            IndexError: a row number is out of range.
        """
        by_copies, place = self._plan.choice.by_copies, None
        if by_copies is None and self._plan.may_copy:
            full, turns = len(rows) == self._plan.options.batch_rows, self.turns
            place = self._trial.begin(rows=self._rows_in_ram(self._numbers.of(rows)), full=full)
            by_copies = self._trial.by_copies
            if turns and by_copies:  # else the bus would move rows of this run in the time of the one before
                self._interface.follow(self._interface.copies, self._interface.work)
        copied = self._copied(rows) if by_copies else None
        if copied is None:
            return BegunTransfer(rows, self._numbers.of(rows), None, place)
        self._under_way += 1
        return BegunTransfer(rows, None, copied, place)

    def _rows_in_ram(self, numbers: Mapping[Hashable, Numbers]) -> int:
        return sum(int(np.count_nonzero(numbers[group.identity] >= group.first)) for group in self._plan.groups)

    def _copied(self, rows: Numbers) -> CopiedBatch | None:
        """Begin to copy the rows of a batch; None: the kernel has to read them."""
        try:
            copies = self._opened() if self._copies is None else self._copies
            begun = copies.begin(rows)
            why = f"slots cannot be pinned ({refused})" if (refused := copies.refusal) else ""
        except MemorySpaceError as error:
            why = f"there is no room for slots ({error})"
        except torch.OutOfMemoryError:
            why = "the device has no memory for those that arrive"
        if why:
            self._refuse(why)
            return None
        return begun

    def _opened(self) -> CopiedRows:
        plan = self._plan
        plan.check_room()
        self._copies = CopiedRows(plan.groups, self._columns, plan.options, self._interface, self._kept)
        self._kept = None
        return self._copies

    def _refuse(self, why: str) -> None:
        """Leave all rows to the kernel from now on, those of batches included that began to be copied."""
        self._plan.choice.refuse(why)
        self._end_copies()

    def still_copied(self, begun: BegunTransfer) -> CopiedBatch | None:
        """Return the rows of a batch that are on their way; None: the kernel reads all."""
        return None if self._copies is None else begun.copied

    def launched(self, begun: BegunTransfer) -> None:
        """Note that the kernel of a batch is in the stream `work`."""
        copies = self._copies
        if copies is not None and begun.copied is not None:
            begun.copied.release()
            self._under_way -= 1
        if begun.place is not None:
            begun.place.ended(lambda: self._interface.timestamp(self._interface.work))
        if copies is not None and not self._under_way and not self._plan.may_copy:
            self._end_copies()

    def stats(self) -> LoaderStats:
        """Return the counters of native threads and copies."""
        return self._ended if self._copies is None else self._ended + self._copies.stats()

    def _end_copies(self) -> None:
        if self._copies is not None:
            self._ended += self._copies.stats()
            self._copies.close()
            self._copies = None

    def close(self, keep_slots: bool, at_once: bool) -> CopiedRows | None:
        """Stop, and free slots and threads, or keep the slots, which are returned then."""
        if self._copies is None:
            return None
        self._copies.close(keep_slots, at_once)
        return self._copies if keep_slots else None
