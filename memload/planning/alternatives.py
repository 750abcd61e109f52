"""Settings that fit where a plan does not, each planned in the same way as the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from memload.engine.tiers.tier import ON_GPU, Tier
from memload.nested import mapped
from memload.planning.account import Account
from memload.planning.frozen import frozen_parts
from memload.planning.gpu_account import TEMPORARY
from memload.planning.machine import Machine
from memload.planning.model_bytes import modules_of
from memload.planning.placement import IN_RAM
from memload.planning.request import Request
from memload.planning.result import Plan
from memload.planning.variants import is_graphs
from memload.planning.weights_in_ram import ON_THEIR_WAY
from memload.sizes import format_size, parse_size

Compute = Callable[[Request], Plan]
Alternative = tuple[str, Request]

MAPPED = (
    'weights mapped from their file (weights="mmap"): torch.load(path, mmap=True) and load_state_dict(..., '
    'assign=True) on a model made on "meta", safetensors, or device_map'
)

_CACHE_SHARE = 0.9  # of the remaining RAM, for a cache of rows
_DEVICE_SHARE = 0.98  # of the remaining memory of a GPU, for rows: figures in sentences are rounded


def ways_out(request: Request, refused: Plan, compute: Compute) -> tuple[str, ...]:
    """Return settings that fit instead, in sentences with figures; empty if the plan itself fits.

    Args:
        request: the arguments of the plan.
        refused: the plan.
        compute: returns the plan of a request.
    """
    if refused.fits:
        return ()
    sentences = tuple(sentence(words, plan) for words, plan in _fitting(request, refused, compute))
    return sentences or (nothing_fits(refused),)


def _fitting(request: Request, refused: Plan, compute: Compute) -> Iterator[tuple[str, Plan]]:
    if request.sets is None:
        for words, changed in _on_several(request, refused):
            yield from _first_that_fits(words, changed, compute)
    if refused.ram.fits is False and refused.tier in IN_RAM:
        for words, changed in _other_tiers(request, refused):
            plan = compute(changed)
            if plan.fits:
                yield words, plan
    for words, changed in of_weights(request, refused):
        yield from _first_that_fits(words, changed, compute)
    if refused.gpu is not None and refused.gpu.fits is False:
        for words, changed in _on_the_gpu(request, refused.machine, shrinks=_could_fit(refused)):
            yield from _first_that_fits(words, changed, compute)
    elif refused.ram.fits is False and not refused.ram.of(ON_THEIR_WAY):
        yield from _first_that_fits("", request, compute)
        if request.trains_on_cpu and request.precision == "float32":
            half = replace(request, precision="bf16-mixed")
            yield from _first_that_fits('precision="bf16-mixed"', half, compute)


def _on_several(request: Request, refused: Plan) -> Iterator[Alternative]:
    """Yield settings that lay the rows on several GPUs, or partly in RAM."""
    if request.processes > 1 and refused.tier in (Tier.DEVICE, Tier.SPLIT) and not request.share_rows:
        shared = f"share_rows=True, as by memload.to_device(..., group=): rows on one of {request.processes} GPUs each"
        yield shared, replace(request, share_rows=True)
    if (split := _split(request, refused)) is not None:
        yield split


def _split(request: Request, refused: Plan) -> Alternative | None:
    """Return the tier "split" with as many rows on the GPU as it has room for; None if it has none, or room for all."""
    gpu, stored = refused.gpu, refused.data.stored_bytes
    if refused.tier not in ON_GPU or request.ram_casts or gpu is None or gpu.free is None:
        return None
    most = format_size(max(0, gpu.free - gpu.without("rows on the GPU")) * _DEVICE_SHARE)
    nbytes = parse_size(most) if most != "0 B" else 0
    gpus = request.processes if request.share_rows else 1
    if not 0 < gpus * nbytes < stored or nbytes == request.device_bytes:
        return None
    where = "the GPU" if gpus == 1 else f"{gpus} GPUs"
    words = (
        f'tier="split", device_bytes="{most}": {gpus * nbytes / stored:.0%} of the rows on {where}, the others in '
        "pinned RAM"
    )
    return words, replace(request, tier=Tier.SPLIT, device_bytes=nbytes)


def _other_tiers(request: Request, refused: Plan) -> Iterator[Alternative]:
    casts = request.ram_casts
    loader = {**request.loader, "cast": {**(request.loader.get("cast") or {}), **casts}} if casts else request.loader
    gathered = _off_the_gpu(replace(request, ram_dtype=None, loader=loader))
    if casts:
        yield 'tier="ram" as stored, cast while gathering', gathered
    if any(cast.dtype.itemsize > 2 for cast in casts.values()):
        halves = {name: replace(cast, dtype=torch.bfloat16) for name, cast in casts.items() if cast.dtype.itemsize > 2}
        yield 'tier="ram" as bfloat16', replace(request, ram_dtype={**casts, **halves})
    left = (refused.ram.free or 0) - refused.ram.without("rows in RAM")
    cache = int(left * _CACHE_SHARE / request.processes)
    if 0 < cache < refused.data.stored_bytes:
        share = cache / refused.data.stored_bytes
        each = f" in each of {request.processes} processes" if request.processes > 1 else ""
        words = f'tier="hybrid", cache_bytes="{format_size(cache)}": {share:.0%} of the rows stay in RAM{each}'
        yield words, replace(gathered, tier=Tier.HYBRID, cache_bytes=cache)
    yield 'tier="mmap", what the page cache holds gives way', replace(gathered, tier=Tier.MMAP)


def _off_the_gpu(request: Request) -> Request:
    """Return a request whose rows may lie on tiers that no GPU gathers from; batches still go to the GPU."""
    if request.tier is not Tier.SPLIT:
        return request
    return _streamed(request)


def _streamed(request: Request) -> Request:
    """Return a request whose rows lie in mapped files, and whose batches go to the GPU."""
    return replace(request, device_bytes=None, share_rows=False, device=request.device or "cuda", tier=Tier.MMAP)


def _on_the_gpu(request: Request, machine: Machine, *, shrinks: bool) -> Iterator[Alternative]:
    """Yield settings that take less GPU memory; `shrinks`: whether smaller batches and activations help."""
    if shrinks:
        yield "", request
    yield from of_models(request, machine, shrinks=shrinks)
    if request.tier in (Tier.DEVICE, Tier.SPLIT):
        yield "streamed from mapped files", _streamed(request)


def of_models(request: Request, machine: Machine, *, shrinks: bool) -> Iterator[Alternative]:
    """Yield settings of models that take less GPU memory; `shrinks`: whether smaller activations help."""
    if request.model is None:
        return
    if shrinks and request.precision == "float32":
        half = "bf16-mixed" if machine.has_bf16 else "fp16-mixed"
        scaled = "" if machine.has_bf16 else " with torch.amp.GradScaler"
        yield f'precision="{half}"{scaled}', replace(request, precision=half)
    if request.strategy is not None and request.strategy != "fsdp2" and request.over_ranks is not None:
        yield 'strategy="fsdp2"', replace(request, strategy="fsdp2")
    if not request.offload and frozen_parts(modules_of(request.model)):
        yield "frozen models in pinned RAM, on the GPU layer by layer (offload=True)", replace(request, offload=True)


def of_weights(request: Request, refused: Plan) -> Iterator[Alternative]:
    """Yield the way of weights that needs no RAM, if they take some on their way and RAM is short."""
    if refused.ram.fits is False and refused.ram.of(ON_THEIR_WAY):
        yield MAPPED, replace(request, weights="mmap")


def _first_that_fits(words: str, request: Request, compute: Compute) -> Iterator[tuple[str, Plan]]:
    """Yield the first that fits: the request itself, or its effective batch in smaller and smaller parts."""
    plan, parts = compute(request), [words] if words else []
    while not plan.fits:
        size = request.batch_size // 2
        if request.batch_size % 2 or not _could_fit(plan):
            return
        request = replace(
            request, batch_size=size, accumulate=2 * request.accumulate, sample=_first_rows(request, size)
        )
        parts = [*([words] if words else []), f"batch_size={size}, {request.accumulate} of them accumulated"]
        plan = compute(request)
    yield ", ".join(parts), plan


def _could_fit(plan: Plan) -> bool:
    """Return whether the lines that do not depend on the batch size leave any room."""
    gpu, ram = plan.gpu, plan.ram
    on_gpu = gpu is None or gpu.free is None or gpu.without(*TEMPORARY, "fragmentation") < gpu.free
    return on_gpu and (ram.free is None or ram.without("loader", "slots", *TEMPORARY) < ram.free)


def _first_rows(request: Request, size: int) -> Any:
    """Return the first rows of the sample that was given, if one was."""

    def cut(part: Any) -> Any:
        is_batch = isinstance(part, torch.Tensor) and part.ndim and len(part) == request.batch_size
        return part[:size] if is_batch else part

    return mapped(request.sample, cut, is_graphs)  # of graphs, the plan scales what the whole sample takes


def sentence(words: str, plan: Plan) -> str:
    """Return settings that fit, with the figures of their plan."""
    return f"{words}: {', '.join(map(_figures, plan.accounts))}"


def _figures(account: Account) -> str:
    free = "" if account.free is None else f" of {format_size(account.free)}"
    return f"{account.place} {format_size(account.predicted)}{free}"


def nothing_fits(refused: Plan) -> str:
    """Return what is needed, where nothing that can be changed fits."""
    short = [account for account in refused.accounts if account.fits is False]
    needed = " and ".join(f"{account.place} of {format_size(account.predicted)}" for account in short)
    return f"nothing that can be changed here does: this needs {needed}"
