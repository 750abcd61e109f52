"""Rows that lie partly on a CUDA device and partly in pinned RAM.

benchmarks/gpu_check.sh runs these. An H200 has run all but those of the copy engine, and of two devices.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import memload
from memload.device.split_tier import SplitColumn

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
ROWS = 300


def movie() -> memload.Dataset:
    generator = torch.Generator().manual_seed(0)
    stim = torch.randint(0, 256, (ROWS, 3, 17, 50), dtype=torch.uint8, generator=generator)
    return memload.from_arrays(stim=stim, robs=torch.rand(ROWS, 7, generator=generator), number=torch.arange(ROWS))


def split(ds: memload.Dataset, share: float, **arguments: object) -> memload.Dataset:
    return memload.to_device(ds, CUDA, bytes=int(ds.nbytes * share), progress=False, **arguments)


def loader_of(ds: memload.Dataset, **arguments: object) -> memload.FastLoader:
    return memload.FastLoader(ds, 32, shuffle=True, generator=torch.Generator().manual_seed(1), **arguments)


def assert_same(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            assert value.device.type == CUDA.type
            assert torch.equal(value.cpu(), other[name])


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16, torch.float32])
def test_batches_are_those_from_files(share: float, dtype: torch.dtype | None) -> None:
    cast = None if dtype is None else {"stim": memload.Cast(dtype, norm_removed=True)}
    parts = split(movie(), share)
    assert parts.tier is memload.Tier.SPLIT
    assert_same([*loader_of(parts, device=CUDA, cast=cast)], [*loader_of(movie(), cast=cast)])
    chosen = [5, 5, 299, 0, *range(100)]
    assert_same([*loader_of(parts.select(chosen), cast=cast)], [*loader_of(movie().select(chosen), cast=cast)])


@pytest.mark.parametrize("by_copies", [None, True, False])
def test_rows_in_ram_come_by_the_copy_engine_or_by_the_kernel(by_copies: bool | None) -> None:
    rows = [*range(ROWS)] * 10  # enough batches to try both ways
    cast = {"stim": memload.Cast(torch.bfloat16, norm_removed=True)}
    loader = loader_of(split(movie(), 0.5).select(rows), device=CUDA, cast=cast)
    access = loader.__memload_loader__()
    choice = access.settings(access.cast_source()).transfer.choice
    choice.by_copies = by_copies
    assert_same([*loader], [*loader_of(movie().select(rows), cast=cast)])
    assert choice.refusal == ""
    assert choice.by_copies is not None
    assert (loader.stats().copies > 0) == (by_copies is not False)


def test_windows_and_samples_are_those_from_files() -> None:
    parts = split(movie(), 0.5)
    for cut in (lambda ds: ds.with_lags(stim=range(8)), lambda ds: ds.windows("robs", window=6, hop=3)):
        assert_same([*loader_of(cut(parts), device=CUDA)], [*loader_of(cut(movie()))])
    for row in (0, ROWS - 1):
        assert_same([parts[row]], [movie()[row]])


def test_rows_lie_where_they_are_said_to_lie() -> None:
    column = split(movie(), 0.25).fields["stim"].column
    assert isinstance(column, SplitColumn)
    (there,), here = column.on_devices, column.memory
    assert here is not None
    assert there.device == CUDA
    assert here.table.device.type == "cpu"
    assert here.table.is_pinned()
    assert 0 < len(there) < ROWS / 2
    assert len(there) + len(here.table) == ROWS


def test_the_device_keeps_the_rows_that_are_drawn_most() -> None:
    weights = 1 / (1 + np.random.default_rng(0).permutation(ROWS))
    parts = split(movie(), 0.25, weights=weights)
    assert_same([*loader_of(parts, device=CUDA)], [*loader_of(movie())])
    kept = parts.fields["stim"].column.on_devices[0]
    most = np.sort(np.argsort(-weights)[: len(kept)])
    expected = torch.stack([movie()[int(row)]["stim"].flatten() for row in most])
    assert {bytes(row) for row in kept.cpu().numpy()} == {bytes(row) for row in expected.numpy()}


def test_a_loop_that_is_late_in_other_streams_finds_the_bytes_of_its_batches() -> None:
    streams = [torch.cuda.Stream(CUDA) for _ in range(3)]
    found = []
    batches = iter(loader_of(split(movie(), 0.5), device=CUDA))
    for turn in range(len(loader_of(movie()))):
        with torch.cuda.stream(streams[turn % 3]):
            batch = next(batches)
            torch.cuda._sleep(10_000_000)
            found.append({name: value.clone() for name, value in batch.items()})
        del batch
    torch.cuda.synchronize(CUDA)
    assert_same(found, [*loader_of(movie())])


def test_both_memories_stay_until_the_last_batch_was_gathered_and_then_go_back() -> None:
    parts = split(memload.from_arrays(x=torch.full((2, 1 << 26), 7, dtype=torch.uint8)), 0.5)
    pinned = parts.fields["x"].column.memory.table
    before = torch.cuda.memory_allocated(CUDA)
    batch = next(iter(memload.FastLoader(parts, 2, device=CUDA)))["x"]
    del parts
    gc.collect()
    assert (batch == 7).all()
    del batch
    gc.collect()
    assert not pinned.is_pinned()
    assert torch.cuda.memory_allocated(CUDA) <= before - (1 << 26)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="rows are spread over two GPUs")
def test_rows_on_two_devices_and_in_ram_are_gathered_by_either() -> None:
    devices = [torch.device("cuda", index) for index in range(2)]
    if not torch.cuda.can_device_access_peer(*devices):
        with pytest.raises(memload.DeviceError, match="no peer access"):
            memload.to_device(movie(), devices)
        return
    for given in ({}, {"bytes": movie().nbytes // 4}):
        parts = memload.to_device(movie(), devices, progress=False, **given)
        for device in devices:
            found = [*loader_of(parts, device=device)]
            assert all(value.device == device for batch in found for value in batch.values())
            assert_same(found, [*loader_of(movie())])
