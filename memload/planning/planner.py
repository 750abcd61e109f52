"""memload.plan: a prediction of the RAM, GPU memory and disk space that a run takes.

data + loader settings -> LoaderBytes -> RAM, and the stock loader's RAM
models + optimizers    -> Training    -> GPU                                -> Plan: each beside the free bytes
tier                   -> placement of the rows: RAM, GPU, page cache, disk
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from memload.engine.tiers.tier import Tier
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import local_processes
from memload.planning.account import Line
from memload.planning.accounts import (
    Sizes,
    disk_account,
    free_for_rows,
    gpu_account,
    own_for_rows,
    ram_account,
    sets_that_fit,
    stock_account,
)
from memload.planning.alternatives import ways_out
from memload.planning.gpu_account import LIBRARIES, Counted, Steps, Training
from memload.planning.graph_steps import counts_of, graphs_of
from memload.planning.heap import Surplus, heap_keeps_tensors, heap_threshold
from memload.planning.machine import Machine
from memload.planning.model_bytes import Modules
from memload.planning.placement import Placement
from memload.planning.planned_loader import PlannedLoader
from memload.planning.request import Request
from memload.planning.result import Plan
from memload.planning.sets_alternatives import ways_out_of_sets
from memload.planning.sets_planner import SetsPlanner

HEAP_NOTE = (
    "RAM of training on the CPU is stated for the mmap threshold of glibc that this process has in its environment: "
    "give the run the same one, and as MALLOC_TRIM_THRESHOLD_, too."
)
HEAP_OF_RANKS_NOTE = (
    "RAM of training on the CPU over ranks is stated for MALLOC_MMAP_THRESHOLD_=262144 and "
    "MALLOC_TRIM_THRESHOLD_=262144 in the environment of the run. Without them, glibc keeps freed tensors below 32 MB."
)
HEAP_BOUND_NOTE = (
    "RAM of training on the CPU is at most so much, a bound for what glibc keeps of freed tensors below 32 MB: they "
    "count twice, more where few are alive at a time, those of graphs 2.5 times, copies inside convolutions three "
    "times or more. Steps of models took 1.2 to 4.2 times what was alive. With "
    "MALLOC_MMAP_THRESHOLD_=262144 and MALLOC_TRIM_THRESHOLD_=262144 in the environment, of this process and of the "
    "run, they take and count once."
)
HEAP_SEEN_NOTE = (
    "RAM of training on the CPU has what glibc keeps of freed tensors below 32 MB as {steps} steps of the model took "
    "it here. Runs differ by a tenth, and longer ones may take more. With MALLOC_MMAP_THRESHOLD_=262144 and "
    "MALLOC_TRIM_THRESHOLD_=262144 in the environment, of this process and of the run, they take and count once."
)


def plan(
    data: Any,
    batch_size: int | Mapping[str, int] | None = None,
    *,
    tier: Tier | str | Mapping[str, Tier | str] | None = None,
    ram_dtype: Mapping[str, Any] | None = None,
    cache_bytes: int | str | Mapping[str, int | str] | None = None,
    device_bytes: int | str | None = None,
    share_rows: bool = False,
    device: str | None = None,
    model: Modules | None = None,
    optimizer: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    sample: Any = None,
    precision: str = "float32",
    accumulate: int = 1,
    offload: bool = False,
    weights: str = "ram",
    processes: int | None = None,
    strategy: str | None = None,
    world_size: int | None = None,
    ram: int | str | None = None,
    gpu: int | str | None = None,
    disk: int | str | None = None,
    **loader: Any,
) -> Plan:
    """Predict how much RAM, GPU memory and disk space a run takes, and whether this or another machine has that much.

    Nothing is loaded, trained or allocated, except a batch of graphs for a model: see `sample`. Neither the data nor
    the models need exist. Functions of samples and of batches are called for two rows, to measure their results.
    ``print(plan)`` shows a short table.

    Args:
        data: a dataset that FastLoader reads natively, or a `memload.DatasetShape`; a FastLoader or ``DataLoader`` of
            one, whose arguments are then the defaults of ``batch_size``, ``device`` and ``**loader``; or several data
            sets in a dict by name, each with a loader of its own, all of them open together. With
            ``collate_fn=memload.group_collate``, and for what `memload.concat` joins by name, one loader mixes them.
            ``batch_size``, ``tier``, ``ram_dtype``, ``cache_bytes`` and the loader's ``cast`` are then for all of them,
            or mappings by name. ``tier="auto"`` chooses the tiers of all under one limit;
            ``plan.by_set[name].options`` are the arguments of ``with_tier``.
        batch_size: rows per batch. Default: the graphs of `sample`, if it is a batch of graphs; else 1.
        tier: the tier that keeps the rows, see `memload.Tier`. "auto" chooses the one that suits the machine, for
            ``ds.map(fn)`` as ``.cache(path, tier="auto")`` does, if the function is not random. None: the tier on which
            the dataset was opened; mapped files for a `DatasetShape`.
        ram_dtype: with the tier "ram", the dtype or `memload.Cast` of fields that are cast once, when they are loaded.
        cache_bytes: with the tier "hybrid", the size of its cache, in bytes or as a text such as "40GB"; default: as in
            `memload.open`.
        device_bytes: with the tier "split", the bytes of rows in the memory of each GPU; the others are in pinned RAM.
        share_rows: whether the `processes` share the rows of the tiers "device" and "split", as with
            ``memload.to_device(..., group=)``: each row lies once, on the GPU of one of them or in common pinned RAM.
        device: "cuda" if batches are to be on the GPU, as with ``FastLoader(device="cuda")``; "cpu" if the models train
            on the CPU. Default: models train on a GPU, and the loop copies batches to it.
        model: a module, or several in a list or dict; on any device, "meta" included, which takes no memory.
        optimizer: a torch optimizer, its class, or its name in `torch.optim`, or several; a class, or a function of
            parameters, is called with the trained parameters. The state of an optimizer of another library is found by
            a step on tensors without memory, or on tiny ones; if that fails, too, the plan says that it is unknown.
        loss: a function of a batch that returns the loss. It runs on tensors without memory to find the bytes of
            activations. Default: the ``loss`` that the one trained model returns, or the mean of its result for a batch
            (of a dict the fields that its ``forward`` names, else the first; of a tuple the first). If the model does
            not accept the loader's batch, the plan says that activations are unknown.
        sample: a batch for `loss`; default: a batch of the loader's form. With graphs, a step runs for real on the CPU,
            since edges decide the sizes of tensors; the default is a batch of graphs from all parts of the dataset.
            Of a batch of graphs with other than `batch_size`, activations are scaled by graphs, nodes and edges, and
            the plan says that they are an estimate. With ``device="cpu"`` and without `sample`, 20 more steps with the
            loader's batches show what glibc's heap keeps, unless an mmap threshold is in the environment, or they would
            take longer than two minutes.
        precision: "float32", "bf16-mixed" or "fp16-mixed" (autocast; "bf16" and "fp16" mean the same), "bf16-true" or
            "fp16-true" (trained models are converted).
        accumulate: batches whose gradients are added up for one step of the optimizer.
        offload: whether frozen models stay in pinned RAM and are copied to the GPU layer by layer, as by
            `memload.offload`.
        weights: how the weights of models reach the GPU. "ram": models are made in RAM and moved, so that RAM has them
            once. "state_dict": by ``load_state_dict(torch.load(path))``, twice. "mmap": as pages of their file, which
            are not counted: ``torch.load(path, mmap=True)`` and ``load_state_dict(..., assign=True)`` on a model that
            was made on "meta", safetensors, or the ``device_map`` of other libraries. On the CPU, "state_dict" counts
            the file's copy.
        processes: the number of processes on this machine, one for each GPU. With ``share=True``, they share one copy
            of the rows of the tier "ram"; all other memory is separate. Default: LOCAL_WORLD_SIZE, as under torchrun;
            else 1.
        strategy: how the trained models are spread over `world_size` ranks, of all machines together: "ddp"
            (DistributedDataParallel), "ddp-zero1" (that with torch's ZeroRedundancyOptimizer), "fsdp2"
            (``fully_shard`` of each block and of the model), "fsdp2-zero2" (that with ``reshard_after_forward=False``
            for the blocks), or "zero1", "zero2", "zero3" (stages of DeepSpeed's ZeRO).
            The figures are those of the rank that needs most. Parameters, gradients and optimizer states are exact;
            buckets and gathered layers of ZeRO are estimates. Under FSDP2 and ZeRO, "bf16-mixed" converts the
            parameters that compute, and keeps float32 ones for the optimizer. A model that is wrapped in
            DistributedDataParallel, or sharded by ``fully_shard``, is recognised. `memload.planning.distributed` has
            the sources.
        world_size: the number of ranks. Default: that of torch.distributed, or WORLD_SIZE, as under torchrun; else 1.
        ram, gpu, disk: the sizes of another machine, in bytes or as texts such as "64GB"; ``gpu`` is that of one GPU,
            or its name, such as "T4", "A100-40GB" or "RTX 4090". Default: the bytes free on this machine, within the
            limits of control groups, SLURM and this process (``ulimit -v``, ``ulimit -d``).
        **loader: further arguments of `FastLoader`, such as ``cast``, ``depth``, ``shuffle`` or ``num_workers``. Graphs
            are joined by `memload.graph_collate` unless another ``collate_fn`` is given.

    Raises:
        TypeError: `data` is a path, or a dataset that the native engine cannot read.
        ValueError: settings contradict each other, or the loss cannot be run without numbers.

    Example:
        >>> import memload, torch
        >>> volumes = memload.DatasetShape(30_000, {"betas": ("float32", (150, 150, 100))})
        >>> plan = memload.plan(volumes, batch_size=32, shuffle=True, ram="64GB", disk="2TB")
        >>> plan.data.row_bytes, plan.data.batch_bytes, plan.ram.fits, plan.disk.predicted
        (9000000, 288000000, True, 270000000000)
        >>> ds = memload.from_arrays(x=torch.zeros(1000, 25))
        >>> memload.plan(memload.FastLoader(ds, batch_size=32, cast={"x": "bfloat16"})).data.batch_bytes
        1600
    """
    if isinstance(data, DataLoader):
        asked = PlannedLoader.of(data)
        data, device = asked.dataset, asked.device if device is None else device
        batch_size, loader = asked.but(batch_size, loader)
    _check_names(loader)
    request = Request(
        data,
        (1 if "batch_sampler" in loader else graphs_of(sample) or 1) if batch_size is None else batch_size,
        tier=tier,
        ram_dtype=ram_dtype,
        cache_bytes=cache_bytes,
        device_bytes=device_bytes,
        share_rows=share_rows,
        device=device,
        model=model,
        optimizer=optimizer,
        loss=loss,
        sample=sample,
        precision=precision,
        accumulate=accumulate,
        offload=offload,
        weights=weights,
        processes=local_processes() if processes is None else processes,
        strategy=strategy,
        world_size=world_size,
        ram=ram,
        gpu=gpu,
        disk=disk,
        loader=loader,
    )
    return _with_ways_out(request)


def _with_ways_out(request: Request) -> Plan:
    if request.sets is not None:
        of_sets = SetsPlanner()
        first = of_sets(request)
        return replace(first, ways_out=ways_out_of_sets(request, first, of_sets))
    planner = _Planner()
    first = planner(request)
    return replace(first, ways_out=ways_out(request, first, planner))


def _check_names(loader: Iterable[str]) -> None:
    known = inspect.signature(FastLoader).parameters
    for name in loader:
        if name not in known:
            near = difflib.get_close_matches(name, [*inspect.signature(plan).parameters, *known], n=1)
            meant = f"; {near[0]}= is one" if near else ""
            raise TypeError(f"memload.plan takes no {name}=, nor does FastLoader, whose arguments it takes, too{meant}")


class _Planner:
    """Plans requests that differ only in settings.

    A step is run once for each batch size and precision, and training counted once for each strategy of them.
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[Any, ...], Counted] = {}
        self._steps: dict[tuple[Any, ...], Steps] = {}
        self._heap: Surplus | None = None  # as the first steps of graphs show it

    def __call__(self, request: Request) -> Plan:
        """Return the plan of one request, without alternatives."""
        imported = frozenset(sys.modules).intersection(LIBRARIES)  # before anything here imports them
        placement = Placement.of(request)
        machine = Machine.of(request.ram, request.gpu, request.disk, placement.files, request.processes)
        sizes = Sizes.of(request, placement)
        trained, in_ram = self._trained(request, sizes, machine, imported)
        each = sum(line.predicted for line in in_ram)
        free = free_for_rows(sizes, machine, request.processes, each)
        own = own_for_rows(sizes, machine, each)
        settled = placement.settled(free, machine.disk or 0, request.processes, own)
        if settled.dataset is not placement.dataset:  # the loader reads the results of a function
            sizes = Sizes.of(request, settled)
            trained, in_ram = self._trained(request, sizes, machine, imported)
        placement = settled
        ram = ram_account(request, placement, sizes, machine, in_ram)
        gpu = gpu_account(request, placement, sizes, machine, () if request.trains_on_cpu else trained)
        disk = disk_account(placement, machine)
        return Plan(
            data=sizes.loader,
            tier=placement.tier,
            tier_reason=placement.reason,
            processes=request.processes,
            machine=machine,
            ram=ram,
            stock=stock_account(request, placement, sizes, machine, in_ram),
            gpu=gpu if request.uses_gpu else None,
            disk=disk,
            sets=sets_that_fit(placement, ram, gpu if request.uses_gpu else None, disk),
            notes=_notes(request, sizes, machine, self._heap),
            network=placement.network(dict(request.loader)),
        )

    def _trained(
        self, request: Request, sizes: Sizes, machine: Machine, imported: frozenset[str]
    ) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
        """Return the lines of models where they are trained, and those of them and of offloaded ones in RAM."""
        training = Training.of(request, sizes.sample, sizes.spread)
        if training is None:
            return (), ()
        training = replace(training, heap=self._heap)
        lines = self._lines(training, request.batch_size)
        return lines, training.ram_lines(lines, is_here=machine.ram_is_here, imported=imported)

    def _lines(self, training: Training, batch_size: int) -> tuple[Line, ...]:
        of_batch = (batch_size, isinstance(training.sample, str))
        key = (*of_batch, training.precision, training.accumulate > 1, training.strategy)
        if key not in self._counted:
            self._counted[key] = training.counted(steps=self._steps.setdefault(of_batch, {}))
            self._heap = self._counted[key].heap or self._heap
        return training.lines(self._counted[key])


def _notes(request: Request, sizes: Sizes, machine: Machine, heap: Surplus | None) -> tuple[str, ...]:
    of_machine = _machine_notes(request, machine, heap)
    if sizes.spread is None:
        return of_machine
    sample = counts_of(request.sample)
    is_scaled = sample is not None and "batch_sampler" not in request.loader and sample[0] != request.batch_size
    return (sizes.spread.told(None if is_scaled else sample), *of_machine)


def _machine_notes(request: Request, machine: Machine, heap: Surplus | None) -> tuple[str, ...]:
    spread, of_one = request.over_ranks, _notes_of_one(request, machine, heap)
    if spread is None:
        return of_one
    here = request.processes
    more = "; give processes= for more of them on this machine" if here == 1 and spread.world_size > 1 else ""
    ranks = f"RAM is that of {here} of {spread.world_size} ranks, with their loaders{more}."
    return (ranks, *of_one)


def _notes_of_one(request: Request, machine: Machine, heap: Surplus | None) -> tuple[str, ...]:
    if request.trains_on_cpu:
        return _heap_notes(heap, over_ranks=request.over_ranks is not None)
    if machine.has_bf16 or not request.precision.startswith("bf16"):
        return ()
    other = request.precision.replace("bf16", "fp16")
    gpu = machine.gpu_name or "this GPU"
    return (f'{gpu} emulates bfloat16, slowly: precision="{other}" with torch.amp.GradScaler takes the same memory.',)


def _heap_notes(heap: Surplus | None, *, over_ranks: bool) -> tuple[str, ...]:
    """Return what the C library's heap keeps; nothing of one that keeps nothing whatever the environment says."""
    if heap and heap.steps:
        return (HEAP_SEEN_NOTE.format(steps=heap.steps),)
    if heap_threshold():
        return (HEAP_NOTE,)
    if not heap_keeps_tensors():
        return ()
    if over_ranks:
        return (HEAP_OF_RANKS_NOTE,)
    return (f"{HEAP_BOUND_NOTE} {heap.why}" if heap and heap.why else HEAP_BOUND_NOTE,)
