"""The accounts of one plan: RAM, the stock loader's RAM, GPU and disk."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from mmap import PAGESIZE
from typing import Any

import torch

from memload.dataset.dataset import Dataset
from memload.device.copied_rows import batches_ahead
from memload.device.loading import CHUNK_BYTES
from memload.engine.request import EngineOptions
from memload.engine.tiers.tier import ON_GPU, Tier
from memload.loader.fast_loader import FastLoader
from memload.memory.limits import MemoryLimit
from memload.planning.account import Account, Line
from memload.planning.gpu_account import gpu_lines
from memload.planning.gpu_batches import arriving_rows, far_batches, loop_batches
from memload.planning.graph_spread import GraphSpread
from memload.planning.loader_bytes import LoaderBytes, sample_batch
from memload.planning.loader_slots import stock_lines
from memload.planning.machine import PROCESS_BYTES, Machine
from memload.planning.placement import IN_RAM, Placement
from memload.planning.request import Request
from memload.planning.weights_in_ram import ON_THEIR_WAY
from memload.sizes import format_size

CUDA_IN_RAM = 117_000_000
"""What the first tensor on a GPU adds to the resident memory of a process, pages of libraries included: 116.6 MB.

Source: https://github.com/pytorch/pytorch/issues/113326 (torch 2.2, CUDA 11.8, RTX 3090, CUDA_MODULE_LOADING=LAZY, as
torch sets it: 438,632 kB after 322,040 kB). Without lazy loading it was 1.73 GB. It was not measured here, and kernels
that cuBLAS and cuDNN load add to it."""

_RESIDENT_AHEAD = 3  # batches of row numbers that a pass plans for rows on a device
_CHUNKS = 3 * CHUNK_BYTES  # buffers that copy rows to a device
_READS, _READ_BUFFER = 8, 2 << 20  # concurrent reads past the page cache, and the buffer of each
_ENTRY = 8  # bytes of an entry of the page table


@dataclass(frozen=True)
class Sizes:
    """The sizes of a loader and its batches.

    Attributes:
        loader: the bytes of the loader's pass.
        sample: a batch without memory, for the loss; or the reason why there is none; None if nothing is trained.
        transforms: whether functions make new batches on a GPU.
        spread: the sizes of the batches that models get, if they are graphs; None if they are not known.
    """

    loader: LoaderBytes
    sample: Any = None
    transforms: bool = False
    spread: GraphSpread | None = None

    @classmethod
    def of(cls, request: Request, placement: Placement) -> Sizes:
        """Return the sizes for a request.

        Raises:
            TypeError: the native engine does not read the dataset.
        """
        settings = dict(request.loader)
        on_gpu = request.copies_batches or placement.tier in ON_GPU
        transforms = on_gpu and settings.pop("batch_transform", None) is not None  # such a function runs on the GPU
        loader = _loader(placement.dataset, request.batch_size, settings)
        nbytes = replace(LoaderBytes.of(loader, to_device=on_gpu), stored_bytes=placement.stored_bytes)
        needs_sample = request.model is not None and request.sample is None
        has_values = not placement.planned
        spread = GraphSpread.of(loader) if request.model is not None and has_values else None
        sample = _sample(request, loader, spread, has_values) if needs_sample else request.sample
        return cls(nbytes, sample, transforms, spread)


def _sample(request: Request, loader: FastLoader[Any], spread: GraphSpread | None, has_values: bool) -> Any:
    try:
        return sample_batch(loader, spread, has_values=has_values)
    except ValueError as error:
        if request.loss is not None:
            raise
        return str(error)


def _loader(dataset: Any, batch_size: int, settings: dict[str, Any]) -> FastLoader[Any]:
    if isinstance(dataset, Dataset) and dataset._collate_fn is not None:  # there is one way to join graphs
        settings = {"collate_fn": dataset._collate_fn, **settings}
    with warnings.catch_warnings():  # more workers than CPUs: the plan may be for another machine
        warnings.filterwarnings("ignore", "This DataLoader will create")
        return FastLoader(dataset, batch_size, **settings)


def ram_account(
    request: Request, placement: Placement, sizes: Sizes, machine: Machine, training: tuple[Line, ...]
) -> Account:
    """Return the account of RAM, for all processes.

    Args:
        request: the arguments of the plan.
        placement: the tier of the rows, and their bytes.
        sizes: the bytes of batches and slots.
        machine: the free bytes.
        training: the lines of models that are in RAM, of one process.
    """
    loader, count = sizes.loader, request.processes
    each = f" x {count} processes" if count > 1 else ""
    if placement.tier in ON_GPU:
        lines = [
            Line("loader", (_RESIDENT_AHEAD * loader.batch_rows * 8 + loader.plan_bytes) * count, f"row numbers{each}"),
            Line("chunks", _CHUNKS * count, f"while the rows are copied to the GPU{each}"),
        ]
        if placement.tier is Tier.SPLIT and placement.held_bytes:
            stored = loader.row_bytes * loader.batch_rows
            slots = batches_ahead(stored) + 1
            note = f"{slots}, pinned, while the copy engine is tried or used{each}"
            lines.append(Line("slots", slots * stored * count, note))
    else:
        lines = [Line("loader", loader.nbytes * count, f"{loader.slots} slots and the plan{each}")]
    if loader.made_bytes:
        transformed = loader.made_in_all - loader.work_bytes
        lines.append(Line("transformed batches", transformed * count, f"at most {loader.slots + 1}{each}"))
    if loader.work_bytes:
        lines.append(Line("transforms at work", loader.work_bytes * count, f"while all threads work{each}"))
    tier_lines = _tier_lines(placement, count)
    if placement.reads_past_cache and not (placement.tier is Tier.MMAP and _only_through_cache(request)):
        lines.append(
            Line("read buffers", read_buffers(loader) * count, f"for rows that are not in the page cache{each}")
        )
    own = [replace(line, predicted=line.predicted * count, note=f"{line.note}{each}".strip()) for line in training]
    lines = [*lines, *tier_lines, *_beyond_batches(own, lines), *_cuda_lines(request, machine)]
    lines.append(_process_line(placement, machine, count))
    free, limit = machine.ram_for(count)
    return Account("RAM", tuple(lines), free, limit)


def _beyond_batches(training: list[Line], batches: list[Line]) -> list[Line]:
    """Return the lines of models; of weights on their way what is beyond batches, which come when these are gone."""
    later = sum(line.predicted for line in batches)
    beyond = [
        replace(line, predicted=max(0, line.predicted - later)) if line.name == ON_THEIR_WAY else line
        for line in training
    ]
    return [line for line in beyond if line.predicted or line.name != ON_THEIR_WAY]


def _cuda_lines(request: Request, machine: Machine) -> list[Line]:
    """Return the line of CUDA's memory in RAM; none if this process has it already, or uses no GPU."""
    there = machine.ram_is_here and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    count = request.processes - there
    if not request.uses_gpu or not count:
        return []
    return [Line("CUDA in RAM", CUDA_IN_RAM * count, "context, with lazy loading; without cuBLAS and cuDNN")]


def read_buffers(loader: LoaderBytes) -> int:
    """Return the bytes of the buffers of a pass that reads past the page cache."""
    return max(_READS, loader.threads) * _READ_BUFFER


def _only_through_cache(request: Request) -> bool:
    options = request.loader.get("options")
    return isinstance(options, EngineOptions) and options.direct is False


def free_for_rows(sizes: Sizes, machine: Machine, processes: int, trained: int) -> int:
    """Return the bytes of RAM that processes, loaders, their read buffers and `trained` of each leave for rows."""
    return free_beside(processes * (loader_ram(sizes) + trained), machine, processes)


def free_beside(nbytes: int, machine: Machine, processes: int) -> int:
    """Return the bytes of RAM that processes and so many further bytes leave."""
    return max(0, machine.ram - _process_bytes(machine, processes) - nbytes)


def loader_ram(sizes: Sizes) -> int:
    """Return the RAM of one loader: slots, plan, results of functions, and read buffers."""
    return sizes.loader.nbytes + sizes.loader.made_in_all + read_buffers(sizes.loader)


def own_for_rows(sizes: Sizes, machine: Machine, trained: int) -> MemoryLimit | None:
    """Return the limit of a single process, less its loader's bytes and `trained`; None without a limit."""
    return machine.own and replace(machine.own, left=max(0, machine.own.left - loader_ram(sizes) - trained))


def stock_account(
    request: Request, placement: Placement, sizes: Sizes, machine: Machine, training: tuple[Line, ...]
) -> Account:
    """Return the account of RAM for torch's own loader with the same settings; `training` as in `ram_account`."""
    workers, prefetch = request.loader.get("num_workers", 0), request.loader.get("prefetch_factor")
    count = request.processes
    lines = [
        Line(line.name, line.predicted * count, line.note)
        for line in stock_lines(sizes.loader.batch_bytes, workers, prefetch, pins=_pins(request))
    ]
    lines += _cuda_lines(request, machine)
    lines += [replace(line, predicted=line.predicted * count) for line in training]
    if placement.tier in IN_RAM:
        lines.append(Line("rows in RAM", placement.held_bytes * placement.copies(count), ""))
    return Account("RAM, stock loader", (*lines, _process_line(placement, machine, count)), *machine.ram_for(count))


def _pins(request: Request) -> bool:
    return bool(request.loader.get("pin_memory"))


def gpu_account(
    request: Request, placement: Placement, sizes: Sizes, machine: Machine, training: tuple[Line, ...]
) -> Account:
    """Return the account of one GPU; `training` has the lines of models, optimizers and activations."""
    batches = [*_batch_lines(request, sizes), *_arriving_lines(placement, sizes)]
    lines = gpu_lines(placement.device_bytes, tuple(batches), training, machine.capability)
    return Account("GPU", lines, machine.gpu, machine.gpu_name)


def disk_account(placement: Placement, machine: Machine) -> Account | None:
    """Return the account of the disk; None if the rows are on this disk already and no other was given."""
    if placement.planned:
        return Account("disk", (Line("rows", placement.stored_bytes, "as they are stored"),), machine.disk)
    lines = [] if machine.disk_is_here or not placement.file_bytes else [Line("files", placement.file_bytes)]
    if placement.written_bytes:
        lines.append(Line("rows", placement.written_bytes, "results of the function, written once"))
    return Account("disk", tuple(lines), machine.disk) if lines else None


def sets_that_fit(placement: Placement, ram: Account, gpu: Account | None, disk: Account | None) -> dict[str, int]:
    """Return how many such datasets fit beside all other lines, by the name of the account."""
    counts = {}
    for account, rows, size in (
        (ram, "rows in RAM", placement.held_bytes or placement.once_bytes),
        (gpu, "rows on the GPU", placement.device_bytes or placement.once_bytes),
        (disk, "rows", placement.stored_bytes),
    ):
        if account is not None and account.free is not None and size:
            counts[account.place] = max(0, account.free - account.without(rows)) // size
    return counts


def _tier_lines(placement: Placement, count: int) -> list[Line]:
    """Return the lines of the tier's RAM."""
    tier, lines, copies = placement.tier, [], placement.copies(count)
    if tier in IN_RAM and placement.held_bytes:
        by = "group=" if placement.shared else "share=True"
        shared = f"one copy for {count} processes, with {by}" if count > copies else ""
        each = f"in each of {copies} processes" if copies > 1 else shared
        lines.append(Line("rows in RAM", placement.held_bytes * copies, each))
    if tier is Tier.HYBRID or placement.cache_bytes:
        each = f"{format_size(placement.cache_bytes or 0)} in each of {count} processes" if count > 1 else ""
        lines.append(Line("cache of rows", (placement.cache_bytes or 0) * count, each))
    if tier is Tier.MMAP and placement.mapped_bytes:
        entries = placement.mapped_bytes // PAGESIZE * _ENTRY
        lines.append(Line("page tables", entries * count, f"8 bytes for each mapped page of {PAGESIZE >> 10} KB"))
        lines.append(Line("page cache", placement.mapped_bytes, "gives way: not counted", counted=False))
    return lines


def _process_line(placement: Placement, machine: Machine, count: int) -> Line:
    nbytes = _process_bytes(machine, count)
    if machine.ram_is_here:
        others = f", and {count - 1} more" if count > 1 else ""
        return Line("process", nbytes, f"what this process has now{others}")
    arrays = f", and arrays of {format_size(placement.array_bytes)}" if placement.array_bytes else ""
    return Line("process", nbytes + placement.array_bytes, f"Python, torch and memload{arrays}")


def _process_bytes(machine: Machine, count: int) -> int:
    """Return the bytes of processes before they load anything."""
    return machine.process + (count - 1) * PROCESS_BYTES


def _arriving_lines(placement: Placement, sizes: Sizes) -> list[Line]:
    """Return the line of rows that arrive out of pinned RAM, if some lie there."""
    if placement.tier is not Tier.SPLIT or not placement.held_bytes:
        return []
    return [arriving_rows(sizes.loader.row_bytes * sizes.loader.batch_rows)]


def _batch_lines(request: Request, sizes: Sizes) -> list[Line]:
    """Return the lines of batches on the GPU: with ``device=`` copies in flight and casts; else the loop's copies."""
    if not request.uses_gpu:
        return []
    loader = sizes.loader
    transformed = [Line("transformed batches", 2 * loader.batch_bytes, "the one in use and the next")]
    transformed = transformed if sizes.transforms else []
    if request.tier in ON_GPU:
        stored = loader.row_bytes * loader.batch_rows
        if request.tier is Tier.DEVICE:
            note = "the one in use, and the next, before and after its cast"
            return [Line("batches", 3 * loader.batch_bytes + stored, note), *transformed]
        return [far_batches(loader.batch_bytes, stored), *transformed]
    if not request.copies_batches:
        return [*loop_batches(loader.batch_bytes)]
    return [Line("batches", loader.device_bytes, "being copied, ready and in use"), *transformed]
