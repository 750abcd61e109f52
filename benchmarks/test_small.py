"""Small benchmarks for pytest-benchmark, on the CPU and on a GPU where there is one.

    pytest benchmarks --benchmark-only --benchmark-autosave
    pytest benchmarks --benchmark-only --benchmark-compare

They show a change of one machine's figures from one day to another. What docs/performance.md states comes from the
scripts beside this file, whose contestants take turns: a figure by itself says little on a machine whose speed drifts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import memload
from memload.cli.bench import GatherCeiling, shuffled
from memload.device.cast_stim import cast_stim

ROWS, SHAPE, BATCH = 256, (256, 256, 3), 32  # 50 MB, and 6.3 MB a batch
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

on_each_device = pytest.mark.parametrize("device", DEVICES)
to_each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])


def done(call: Callable[[], Any], device: str) -> Callable[[], Any]:
    """The call, which ends when the device has done what it was given."""

    def until_done() -> Any:
        made = call()
        if device == "cuda":
            torch.cuda.synchronize()
        return made

    return until_done


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (ROWS, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def ds(images: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> memload.Dataset:
    folder: Path = tmp_path_factory.mktemp("data") / "images"
    memload.write(folder, {"image": images})
    return memload.open(folder)


@on_each_device
@to_each_dtype
def test_cast_stim(benchmark: Any, images: torch.Tensor, dtype: torch.dtype, device: str) -> None:
    x = images.to(device)
    out = torch.empty(x.shape, dtype=dtype, device=device)
    benchmark(done(lambda: cast_stim(x, True, dtype, out=out), device))
    assert torch.equal(out.cpu(), cast_stim(images, True, dtype))


@on_each_device
def test_copy(benchmark: Any, images: torch.Tensor, device: str) -> None:
    """What bounds the others: a plain copy, on the CPU, or from pinned memory to the GPU."""
    source = images.pin_memory() if device == "cuda" else images
    target = torch.empty_like(images, device=device)
    benchmark(done(lambda: target.copy_(source, non_blocking=True), device))
    assert torch.equal(target.cpu(), images)


@to_each_dtype
def test_gather(benchmark: Any, ds: memload.Dataset, dtype: torch.dtype) -> None:
    """All rows once in random order, by native threads without a loader."""
    ceiling = GatherCeiling(ds, shuffled(len(ds), 0), BATCH, cast={"image": memload.Cast(dtype, norm_removed=True)})
    benchmark(lambda: ceiling.run(streaming=False))


@on_each_device
def test_epoch(benchmark: Any, ds: memload.Dataset, device: str) -> None:
    cast = {"image": memload.Cast(torch.bfloat16, norm_removed=True)}
    loader = memload.FastLoader(ds, BATCH, shuffle=True, cast=cast, device=device)
    batches = benchmark(done(lambda: sum(1 for _ in loader), device))
    loader.close()
    assert batches == ROWS // BATCH


@on_each_device
def test_first_batch(benchmark: Any, ds: memload.Dataset, device: str) -> None:
    """From nothing: a loader is made, and asked for one batch."""

    def first() -> Any:
        loader = memload.FastLoader(ds, BATCH, shuffle=True, device=device)
        batch = next(iter(loader))
        loader.close()
        return batch

    batch = benchmark(done(first, device))
    assert batch["image"].shape == (BATCH, *SHAPE)
