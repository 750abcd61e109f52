"""What a plan may use: what is free here, or what a machine has that is to be asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from memload.device.memory import gpu_memory
from memload.memory import budget
from memload.memory.limits import MemoryLimit
from memload.sizes import parse_size

PROCESS_BYTES = 155_000_000
"""Private memory of a process that has imported torch and memload and has run an operation on the CPU: measured as
RssAnon (154.8 MB with Python 3.11 and torch 2.13 without CUDA). What CUDA takes of RAM is not in it."""


@dataclass(frozen=True)
class Machine:
    """Bytes that may be taken in all, by this process and those beside it.

    Attributes:
        ram: what control groups, a SLURM job and the host leave, with what this process and those beside it have
            already; or as asked for.
        gpu: of one GPU; None where there is none, or nobody knows.
        disk: free, where the data lies; None without a place.
        ram_is_here, disk_is_here: whether the figure is this machine's own.
        process: what a process has of RAM before it loads anything: here, what this one has.
        limits: those of this machine, where RAM is its own: the tightest of what is shared, and that of one process.
    """

    ram: int
    gpu: int | None
    disk: int | None
    ram_is_here: bool
    disk_is_here: bool
    process: int = PROCESS_BYTES
    limits: tuple[MemoryLimit, ...] = ()

    @property
    def own(self) -> MemoryLimit | None:
        """The limit that each process has for itself; None without one."""
        return next((one for one in self.limits if one.of_one_process), None)

    def ram_for(self, processes: int) -> tuple[int, str]:
        """Return the bytes of RAM that so many like processes may take, and the limit that says so; "": the machine."""
        own = self.own
        if own is not None and processes * (own.left + self.process) < self.ram:
            return processes * (own.left + self.process), own.name
        return self.ram, next((one.name for one in self.limits if not one.of_one_process), "")

    @classmethod
    def of(
        cls,
        ram: int | str | None,
        gpu: int | str | None,
        disk: int | str | None,
        files: Iterable[str | os.PathLike[str]],
        processes: int = 1,
    ) -> Machine:
        """Return the machine that is described; what is not described is looked up here.

        Args:
            ram, gpu, disk: bytes, or texts such as "64GB"; None: what is free here.
            files: of the data, or where they are to lie; the first says on which disk.
            processes: that are planned for. Of those that run beside this one, as LOCAL_WORLD_SIZE says, each is taken
                to have what any has that loads nothing.

        Raises:
            ValueError, TypeError: a size is none.
        """
        process = budget.process_bytes() if ram is None else PROCESS_BYTES
        here = budget.memory()
        return cls(
            ram=_ram_here(here, process, processes) if ram is None else parse_size(ram),
            gpu=_gpu_here() if gpu is None else parse_size(gpu),
            disk=_disk_here(files) if disk is None else parse_size(disk),
            ram_is_here=ram is None,
            disk_is_here=disk is None,
            process=process,
            limits=_deciding(here) if ram is None else (),
        )


def _ram_here(here: budget.Memory, process: int, processes: int) -> int:
    others = min(processes, budget.local_processes()) - 1
    return here.free_together + process + others * PROCESS_BYTES


def _deciding(here: budget.Memory) -> tuple[MemoryLimit, ...]:
    shared = here.together().tightest
    shared = None if shared is None or shared.left > here.available else shared
    return tuple(one for one in (shared, here.own) if one is not None)


def _gpu_here() -> int | None:
    memory = gpu_memory()
    return None if memory is None else memory.available


def _disk_here(files: Iterable[str | os.PathLike[str]]) -> int | None:
    place = next(iter(files), None)
    return None if place is None else budget.disk_free(place)
