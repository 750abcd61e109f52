"""What fits where a plan does not: the same run with other settings, each planned as exactly as the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from memload.memory.account import Account
from memload.memory.gpu_account import trains_nothing
from memload.memory.model_bytes import modules_of
from memload.memory.placement import IN_RAM
from memload.memory.plan_result import Plan
from memload.memory.request import Request
from memload.memory.tiers import Tier
from memload.sizes import format_size

Compute = Callable[[Request], Plan]
Way = tuple[str, Request]

_CACHE_SHARE = 0.9  # of what is left, that a cache of rows is given


def ways_out(request: Request, refused: Plan, compute: Compute) -> tuple[str, ...]:
    """Return what fits instead, in sentences with figures; empty if the plan itself fits.

    Args:
        request: what was asked.
        refused: the plan of it.
        compute: plans a request.
    """
    if refused.fits:
        return ()
    found = tuple(_sentence(words, plan) for words, plan in _fitting(request, refused, compute))
    return found or (_nothing(refused),)


def _fitting(request: Request, refused: Plan, compute: Compute) -> Iterator[tuple[str, Plan]]:
    if refused.ram.fits is False and request.tier in IN_RAM:
        yield from _those_that_fit(_other_tiers(request, refused), compute)
    if refused.gpu is not None and refused.gpu.fits is False:
        yield from _on_the_gpu(request, compute)
        if request.tier is Tier.DEVICE:
            streamed = replace(request, tier=Tier.MMAP, device=request.device or "cuda")
            yield from _first_that_fits(_and_smaller("streamed from mapped files", streamed), compute)
    elif refused.ram.fits is False and request.tier not in IN_RAM:
        yield from _first_that_fits(_smaller(request), compute)


def _other_tiers(request: Request, refused: Plan) -> Iterator[Way]:
    if request.ram_dtype:
        yield 'tier="ram" as stored, cast while gathering', replace(request, ram_dtype=None)
        halves = {name: torch.bfloat16 for name, dtype in request.ram_dtype.items() if dtype.itemsize > 2}
        if halves:
            yield 'tier="ram" as bfloat16', replace(request, ram_dtype={**request.ram_dtype, **halves})
    left = (refused.ram.free or 0) - refused.ram.without("rows in RAM")
    cache = int(left * _CACHE_SHARE)
    if 0 < cache < refused.data.stored_bytes:
        share = cache / refused.data.stored_bytes
        words = f'tier="hybrid", cache_bytes="{format_size(cache)}": {share:.0%} of the rows stay in RAM'
        yield words, replace(request, tier=Tier.HYBRID, ram_dtype=None, cache_bytes=cache)
    yield 'tier="mmap", what the page cache holds gives way', replace(request, tier=Tier.MMAP, ram_dtype=None)


def _on_the_gpu(request: Request, compute: Compute) -> Iterator[tuple[str, Plan]]:
    yield from _first_that_fits(_smaller(request), compute)
    if request.precision == "float32" and request.loss is not None:
        lower = replace(request, precision="bf16-mixed")
        yield from _first_that_fits(_and_smaller('precision="bf16-mixed"', lower), compute)
    if not request.offload and request.model is not None and any(map(trains_nothing, modules_of(request.model))):
        words = "frozen models in pinned RAM, on the GPU layer by layer (memload.offload)"
        yield from _first_that_fits(_and_smaller(words, replace(request, offload=True)), compute)


def _and_smaller(words: str, request: Request) -> Iterator[Way]:
    yield words, request
    for smaller, changed in _smaller(request):
        yield f"{words}, {smaller}", changed


def _smaller(request: Request) -> Iterator[Way]:
    """The same effective batch in smaller parts."""
    size, whole = request.batch_size, request.batch_size * request.accumulate
    while size > 1:
        size //= 2
        if whole % size == 0:
            count = whole // size
            yield (
                f"batch_size={size}, {count} of them accumulated",
                replace(request, batch_size=size, accumulate=count, sample=_first_rows(request, size)),
            )


def _first_rows(request: Request, size: int) -> object:
    def cut(part: object) -> object:
        if isinstance(part, torch.Tensor):
            return part[:size] if part.ndim and len(part) == request.batch_size else part
        if isinstance(part, dict):
            return {name: cut(value) for name, value in part.items()}
        return type(part)(map(cut, part)) if type(part) in (list, tuple) else part  # type: ignore[call-arg, arg-type]

    return cut(request.sample)


def _those_that_fit(ways: Iterator[Way], compute: Compute) -> Iterator[tuple[str, Plan]]:
    for words, changed in ways:
        plan = compute(changed)
        if plan.fits:
            yield words, plan


def _first_that_fits(ways: Iterator[Way], compute: Compute) -> Iterator[tuple[str, Plan]]:
    first = next(_those_that_fit(ways, compute), None)
    if first is not None:
        yield first


def _sentence(words: str, plan: Plan) -> str:
    return f"{words}: {', '.join(map(_figures, plan.accounts))}"


def _figures(account: Account) -> str:
    of = "" if account.free is None else f" of {format_size(account.free)}"
    return f"{account.place} {format_size(account.predicted)}{of}"


def _nothing(refused: Plan) -> str:
    short = [account for account in refused.accounts if account.fits is False]
    missing = " and ".join(f"{account.place} that has {format_size(account.predicted)}" for account in short)
    return f"nothing that can be changed here: it takes {missing}"
