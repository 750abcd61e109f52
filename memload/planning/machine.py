"""The memory that a plan may use: the free bytes here, or those of a machine that is described."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from memload.device.memory import gpu_memory
from memload.memory import budget
from memload.memory.limits import MemoryLimit
from memload.planning.gpus import GpuModel, capability_here, gpu_here_has_bf16, parse_gpu
from memload.sizes import parse_size

PROCESS_BYTES = 155_000_000
"""Private memory of a process that has imported torch and memload and has run an operation on the CPU: measured as
RssAnon (154.8 MB with Python 3.11 and torch 2.13 without CUDA). CUDA's own RAM is not in it."""


@dataclass(frozen=True)
class Machine:
    """The bytes that all processes of a run may take together.

    Attributes:
        ram: the bytes that control groups, a SLURM job and the host leave, plus those that these processes have
            already; or the given size.
        gpu: the bytes of one GPU; None if there is none, or they are not known.
        disk: the free bytes of the disk of the data; None without files.
        ram_is_here, disk_is_here: whether the figure is that of this machine.
        process: RAM of a process before it loads anything; here, that of this process.
        gpu_model: the GPU that was given by name; None if it was not.
        gpu_capability: the compute capability of a GPU of this machine; None if another is planned for.
        has_bf16: whether the GPU computes in bfloat16; True if it is not known.
        limits: with `ram_is_here`, the tightest shared limit, and the limit of a single process.
    """

    ram: int
    gpu: int | None
    disk: int | None
    ram_is_here: bool
    disk_is_here: bool
    process: int = PROCESS_BYTES
    gpu_model: GpuModel | None = None
    gpu_capability: tuple[int, int] | None = None
    has_bf16: bool = True
    limits: tuple[MemoryLimit, ...] = ()

    @property
    def own(self) -> MemoryLimit | None:
        """The limit of a single process; None without one."""
        return next((limit for limit in self.limits if limit.of_one_process), None)

    @property
    def gpu_name(self) -> str:
        """The name of the GPU, such as "the T4"; empty if it was not given by name."""
        return f"the {self.gpu_model.name}" if self.gpu_model else ""

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of the GPU; None if it is not known."""
        return self.gpu_model.capability if self.gpu_model else self.gpu_capability

    def ram_for(self, processes: int) -> tuple[int, str]:
        """Return the RAM of so many equal processes, and the name of the limit that sets it; "": the machine's size."""
        own = self.own
        if own is not None and processes * (own.left + self.process) < self.ram:
            return processes * (own.left + self.process), own.name
        return self.ram, next((limit.name for limit in self.limits if not limit.of_one_process), "")

    @classmethod
    def of(
        cls,
        ram: int | str | None,
        gpu: int | str | None,
        disk: int | str | None,
        files: Iterable[str | os.PathLike[str]],
        processes: int = 1,
    ) -> Machine:
        """Return the described machine; sizes that are not given are those of this machine.

        Args:
            ram, gpu, disk: bytes, or texts such as "64GB"; None: the free bytes here. `gpu` may be a name such as "T4".
            files: the files of the data; the first one determines the disk.
            processes: the number of planned processes. Those that run already beside this one (LOCAL_WORLD_SIZE) are
                assumed to have loaded nothing.

        Raises:
            ValueError, TypeError: a size is invalid, or a GPU unknown.
        """
        here = budget.memory_to_take() if ram is None else budget.memory()
        process = budget.process_bytes() if ram is None else PROCESS_BYTES
        gpu_bytes, model = (_gpu_here(), None) if gpu is None else parse_gpu(gpu)
        return cls(
            ram=_ram_here(here, process, processes) if ram is None else parse_size(ram),
            gpu=gpu_bytes,
            disk=_disk_here(files) if disk is None else parse_size(disk),
            ram_is_here=ram is None,
            disk_is_here=disk is None,
            process=process,
            gpu_model=model,
            gpu_capability=capability_here() if gpu is None else None,
            has_bf16=model.has_bf16 if model else gpu is not None or gpu_here_has_bf16(),
            limits=_tightest_limits(here) if ram is None else (),
        )


def _ram_here(here: budget.Memory, process: int, processes: int) -> int:
    others = min(processes, budget.local_processes()) - 1
    return here.free_together + process + others * PROCESS_BYTES


def _tightest_limits(here: budget.Memory) -> tuple[MemoryLimit, ...]:
    shared = here.together().tightest
    shared = None if shared is None or shared.left > here.available else shared
    return tuple(limit for limit in (shared, here.own) if limit is not None)


def _gpu_here() -> int | None:
    memory = gpu_memory()
    return None if memory is None else memory.available


def _disk_here(files: Iterable[str | os.PathLike[str]]) -> int | None:
    file = next(iter(files), None)
    return None if file is None else budget.disk_free(file)
