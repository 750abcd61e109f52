"""Data that lies nearer to a CUDA device. benchmarks/gpu_check.sh runs these; one H200 has run them."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import memload
from memload.device.pinned_memory import resident_fields

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)


def movie() -> memload.Dataset:
    generator = torch.Generator().manual_seed(0)
    stim = torch.randint(0, 256, (300, 3, 17, 5), dtype=torch.uint8, generator=generator)
    return memload.from_arrays(stim=stim, robs=torch.rand(300, 7, generator=generator), number=torch.arange(300))


def batches(ds: memload.Dataset, **arguments: object) -> list[dict[str, torch.Tensor]]:
    loader = memload.FastLoader(ds, 32, shuffle=True, generator=torch.Generator().manual_seed(1), **arguments)
    return [{name: value.cpu() for name, value in batch.items()} for batch in loader]


def assert_same(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("tier", ["device", "pinned"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16, torch.float32])
def test_batches_are_those_from_files(tier: str, dtype: torch.dtype | None) -> None:
    cast = None if dtype is None else {"stim": memload.Cast(dtype, norm_removed=True)}
    moved = memload.to_device(movie(), "cuda", tier=tier)
    assert_same(batches(moved, device="cuda", cast=cast), batches(movie(), cast=cast))
    chosen = [5, 5, 299, 0, *range(100)]
    assert_same(batches(moved.select(chosen), device="cuda", cast=cast), batches(movie().select(chosen), cast=cast))


@pytest.mark.parametrize("tier", ["device", "pinned"])
def test_windows_are_those_from_files(tier: str) -> None:
    moved = memload.to_device(movie(), "cuda", tier=tier)
    for cut in (lambda ds: ds.with_lags(stim=range(8)), lambda ds: ds.windows("robs", window=6, hop=3)):
        assert_same(batches(cut(moved), device="cuda"), batches(cut(movie())))
        assert_same(batches(memload.to_device(cut(movie()), "cuda", tier=tier), device="cuda"), batches(cut(movie())))


def test_the_device_gathers_out_of_pinned_memory_by_itself() -> None:
    pinned = memload.to_device(movie(), "cuda", tier="pinned")
    seen = resident_fields(pinned.fields, CUDA)
    assert seen is not None
    for name, field in seen.items():
        assert field.column.table.device == CUDA
        assert field.column.table.data_ptr() == pinned.fields[name].memory.table.data_ptr()  # no copy of it
    assert_same(batches(memload.Dataset(seen)), batches(movie()))
    assert_same(batches(pinned), batches(movie()))  # and to the CPU it is a dataset in RAM


def held() -> int:
    """Bytes of RAM that are this process's own, and those that are locked or pinned for it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    told = [status[name] for name in ("RssAnon", "VmLck", "VmPin") if name in status]  # some sandboxes leave them out
    return sum(int(one.split()[0]) << 10 for one in told)


def gather_once_from_pinned_memory() -> None:
    """Of 256 MB, which nothing pins any more once nothing gathers from it, though its pages are still there to see."""
    pinned = memload.to_device(memload.from_arrays(x=torch.zeros(2, 1 << 27, dtype=torch.uint8)), tier="pinned")
    table = pinned.fields["x"].memory.table
    assert table.is_pinned()
    loader = memload.FastLoader(pinned, 2, device="cuda")
    last = next(iter(loader))["x"]
    del pinned, loader
    gc.collect()
    assert last.sum() == 0
    assert not table.is_pinned()


def test_pinned_memory_goes_back_when_nobody_gathers_from_it_any_more() -> None:
    gather_once_from_pinned_memory()  # after which CUDA and torch have taken what they keep
    before = held()
    for _ in range(4):
        gather_once_from_pinned_memory()
    gc.collect()
    assert held() - before < 1 << 27


def test_a_sample_and_a_stock_loaders_batch_lie_on_the_device() -> None:
    moved = memload.to_device(movie(), "cuda")
    assert moved[7]["number"].device == CUDA
    batch = next(iter(torch.utils.data.DataLoader(moved, batch_size=3)))
    assert batch["number"].tolist() == [0, 1, 2]
    assert batch["stim"].device == CUDA


def test_what_does_not_fit_on_the_device_is_refused_with_figures() -> None:
    endless = memload.from_arrays(x=torch.zeros(1).expand(2**45))
    with pytest.raises(memload.MemloadError, match=r"do not fit on cuda:0: .* of .* are available"):
        memload.to_device(endless, "cuda")


@pytest.mark.parametrize("moved", [False, True])
def test_a_captured_loop_replays_on_the_buffers(moved: bool) -> None:
    ds = memload.to_device(movie(), "cuda") if moved else movie()
    cast = {"stim": memload.Cast(torch.float32, norm_removed=True)}
    loader = memload.FastLoader(ds, 32, drop_last=True, device="cuda", static_buffers=2, cast=cast)
    total = torch.zeros((), device="cuda")
    graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def step(x: torch.Tensor) -> None:
        total.add_(x.double().sum().float())

    for batch in loader:  # captures both
        key = batch["stim"].data_ptr()
        if key not in graphs:
            step(batch["stim"])
            torch.cuda.synchronize()
            graphs[key] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[key]):
                step(batch["stim"])
    assert len(graphs) == 2
    total.zero_()
    for batch in loader:
        graphs[batch["stim"].data_ptr()].replay()
    expected = sum(batch["stim"].double().sum() for batch in memload.FastLoader(movie(), 32, drop_last=True, cast=cast))
    assert total.item() == pytest.approx(float(expected), rel=1e-5)


def test_a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"device=cuda:99 is not there: there (is only cuda:0|are cuda:0 to)"):
        memload.to_device(movie(), "cuda:99")


@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
def test_a_compiled_loop_body_takes_batches_of_the_device() -> None:
    step = torch.compile(lambda x: (x.float() * 2).sum(), backend="eager", fullgraph=True)
    loader = memload.FastLoader(memload.to_device(movie(), "cuda"), 32, static_buffers=2, drop_last=True)
    found = [step(batch["number"]).item() for batch in loader]
    assert found == [2.0 * sum(range(32 * k, 32 * k + 32)) for k in range(9)]


@pytest.mark.parametrize("tier", ["device", "pinned"])
def test_a_default_device_changes_nothing(tier: str) -> None:
    moved = memload.to_device(movie(), "cuda", tier=tier)
    cast = {"stim": memload.Cast(torch.bfloat16, mean=0.5, std=2.0)}
    expected = batches(movie(), cast=cast)
    with torch.device("cuda"):
        assert_same(batches(moved, device="cuda", cast=cast), expected)
        sample = moved[3]
    assert torch.equal(sample["number"].cpu(), torch.tensor(3))


def test_pinned_rows_that_are_dropped_while_a_graph_is_captured_leave_the_capture_valid() -> None:
    """The memory goes back in the middle of the capture, as the collector may have it; its readers are waited for."""
    x = torch.arange(8.0, device="cuda")
    graph, pinned = torch.cuda.CUDAGraph(), memload.to_device(movie(), "cuda", tier="pinned")
    assert len(batches(pinned, device="cuda")) == 10
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 2
        del pinned
        gc.collect()
    x += 1
    graph.replay()
    assert torch.equal(y.cpu(), 2 * torch.arange(1.0, 9.0))
    assert_same(batches(memload.to_device(movie(), "cuda", tier="pinned"), device="cuda"), batches(movie()))
