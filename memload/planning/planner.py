"""memload.plan: what a run will take of RAM, GPU and disk, before it begins.

data + loader settings -> LoaderBytes -> RAM, and the stock loader's RAM
models + optimizers    -> Training    -> GPU                                -> Plan: each beside what is free
tier                   -> where the rows lie: RAM, GPU, page cache, disk
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from memload.memory.budget import local_processes
from memload.planning.account import Line
from memload.planning.accounts import (
    Sizes,
    disk_account,
    free_for_rows,
    gpu_account,
    ram_account,
    sets_that_fit,
    stock_account,
)
from memload.planning.alternatives import ways_out
from memload.planning.gpu_account import Counted, Training
from memload.planning.machine import Machine
from memload.planning.placement import Placement
from memload.planning.request import Request
from memload.planning.result import Plan
from memload.tiers.tier import Tier
from memload.training.model_bytes import Modules


def plan(
    data: Any,
    batch_size: int = 1,
    *,
    tier: Tier | str | None = None,
    ram_dtype: Mapping[str, Any] | None = None,
    cache_bytes: int | str | None = None,
    device: str | None = None,
    model: Modules | None = None,
    optimizer: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    sample: Any = None,
    precision: str = "float32",
    accumulate: int = 1,
    offload: bool = False,
    processes: int | None = None,
    ram: int | str | None = None,
    gpu: int | str | None = None,
    disk: int | str | None = None,
    **loader: Any,
) -> Plan:
    """Predict how much RAM, GPU memory and disk space a run takes, and whether this or another machine has that much.

    Nothing is loaded, trained or allocated: neither the data nor the models need exist. Functions of samples and of
    batches are called for two rows, to see what they make. Printed, the plan is a short table.

    Args:
        data: a dataset that FastLoader reads natively, or a `memload.DatasetShape`.
        batch_size: rows per batch.
        tier: where the rows are kept, see `memload.Tier`; "auto" chooses what suits the machine, for ``ds.map(fn)`` as
            ``.cache(path, tier="auto")`` does, if the function is not random. None: the tier on which the dataset was
            opened; mapped files for a `DatasetShape`.
        ram_dtype: with the tier "ram", the dtype or `memload.Cast` of fields that are cast once, when they are loaded.
        cache_bytes: with the tier "hybrid", the size of its cache, in bytes or as a text such as "40GB"; default: as in
            `memload.open`.
        device: "cuda" if batches are to be on the GPU, as with ``FastLoader(device="cuda")``.
        model: a module, or several in a list or dict; on any device, "meta" included, which takes no memory.
        optimizer: a torch optimizer or its class, or several; a class, or a function of parameters, is given those that
            are trained. What one of another library keeps is found by a step on tensors without memory, or on tiny
            ones; where that does not work either, the plan says that it is unknown.
        loss: a function of a batch that returns the loss, which is run on tensors without memory to find what
            activations take. Default: what the one model that trains returns as its ``loss``, or the mean of what it
            returns for a batch (of a dict the fields that its ``forward`` names, else the first; of a tuple the first).
            Where it does not take the loader's batch, the plan says that activations are unknown.
        sample: a batch for `loss`; default: one as the loader gives it.
        precision: "float32", "bf16", "fp16" (trained models are converted), "bf16-mixed" or "fp16-mixed" (autocast).
        accumulate: batches whose gradients are added up for one step of the optimizer.
        offload: whether models that train nothing stay in pinned RAM and come to the GPU layer by layer, as by
            `memload.offload`.
        processes: on this machine, one for each GPU. Rows of the tier "ram" are there once for all, with
            ``share=True``; all else is each one's own. Default: what LOCAL_WORLD_SIZE says, as under torchrun; else 1.
        ram, gpu, disk: what another machine has, in bytes or as texts such as "64GB"; ``gpu`` is that of one GPU.
            Default: what is free on this machine, as far as control groups and SLURM allow.
        **loader: further arguments of `FastLoader`, such as ``cast``, ``depth``, ``shuffle`` or ``num_workers``.

    Raises:
        TypeError: `data` is a path, or nothing that the native engine reads.
        ValueError: settings contradict each other, or the loss cannot be run without numbers.

    Example:
        >>> import memload, torch
        >>> volumes = memload.DatasetShape(30_000, {"betas": ("float32", (150, 150, 100))})
        >>> plan = memload.plan(volumes, batch_size=32, shuffle=True, ram="64GB", disk="2TB")
        >>> plan.data.row_bytes, plan.data.batch_bytes, plan.ram.fits, plan.disk.predicted
        (9000000, 288000000, True, 270000000000)
    """
    request = Request(
        data,
        batch_size,
        tier=tier,
        ram_dtype=ram_dtype,
        cache_bytes=cache_bytes,
        device=device,
        model=model,
        optimizer=optimizer,
        loss=loss,
        sample=sample,
        precision=precision,
        accumulate=accumulate,
        offload=offload,
        processes=local_processes() if processes is None else processes,
        ram=ram,
        gpu=gpu,
        disk=disk,
        loader=loader,
    )
    planner = _Planner()
    found = planner(request)
    return replace(found, ways_out=ways_out(request, found, planner))


class _Planner:
    """Plans requests that differ in settings alone; what is trained with the same ones is worked out once."""

    def __init__(self) -> None:
        self._counted: dict[tuple[Any, ...], Counted] = {}

    def __call__(self, request: Request) -> Plan:
        """Return the plan of one request, without what fits instead of it."""
        placement = Placement.of(request)
        machine = Machine.of(request.ram, request.gpu, request.disk, placement.files, request.processes)
        sizes = Sizes.of(request, placement)
        free = free_for_rows(sizes, machine, request.processes)
        settled = placement.settled(free, machine.disk or 0, request.processes)
        if settled.dataset is not placement.dataset:  # the loader reads what a function made
            sizes = Sizes.of(request, settled)
        placement = settled
        training = Training.of(request, sizes.sample)
        ram = ram_account(request, placement, sizes, machine, training.offloaded_bytes if training else 0)
        gpu = gpu_account(request, placement, sizes, machine, self._lines(training, request.batch_size))
        disk = disk_account(placement, machine)
        return Plan(
            data=sizes.loader,
            tier=placement.tier,
            tier_reason=placement.reason,
            processes=request.processes,
            machine=machine,
            ram=ram,
            stock=stock_account(request, placement, sizes, machine),
            gpu=gpu if request.uses_gpu else None,
            disk=disk,
            sets=sets_that_fit(placement, ram, gpu if request.uses_gpu else None, disk),
        )

    def _lines(self, training: Training | None, batch_size: int) -> tuple[Line, ...]:
        if training is None:
            return ()
        key = (batch_size, training.precision, training.accumulate > 1)
        if key not in self._counted:
            self._counted[key] = training.counted()
        return training.lines(self._counted[key])
