"""The loader's way to a GPU. `tests/unit/device` has more of it, on a simulated device."""

import gc
import shutil
import subprocess
import sys
import time

import pytest
import torch
from device_cases import BATCH, CAST, ROWS, Nested, dataset, loader
from late_reading import on_cpu
from waiting import MOST_SECONDS

import memload
from memload.device.torch_interface import torch_interface
from memload.nested import tensors_of

pytestmark = pytest.mark.gpu


def test_the_loop_gets_what_it_gets_on_the_cpu():
    expected = on_cpu(loader(cast=CAST))
    for got, want in zip(loader(cast=CAST, device="cuda"), expected, strict=True):
        for x, y in zip(tensors_of(got), tensors_of(want), strict=True):
            assert x.is_cuda
            assert torch.equal(x.cpu(), y)


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two devices")
def test_the_second_device_gets_its_batches_while_the_first_is_current():
    second = torch.device("cuda", 1)
    expected = on_cpu(loader(cast=CAST))
    for ds in (None, *(memload.to_device(dataset(), second, tier=tier) for tier in ("device", "pinned"))):
        for got, want in zip(loader(ds, cast=CAST, device=second), expected, strict=True):
            for x, y in zip(tensors_of(got), tensors_of(want), strict=True):
                assert x.device == second
                assert torch.equal(x.cpu(), y)
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two devices")
def test_a_pass_on_the_second_device_first_of_all_leaves_the_first_current():
    """Torch's current device stays the first also where nothing has used it yet."""
    asked = "import torch, memload; ds = memload.from_arrays(x=torch.zeros(8, 4)); "
    asked += "assert [len(b['x']) for b in memload.FastLoader(ds, 4, device='cuda:1')] == [4, 4]; "
    program = asked + "assert torch.cuda.current_device() == 0; assert torch.ones(1, device='cuda').device.index == 0"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=MOST_SECONDS)


def test_a_loader_that_keeps_its_slots_takes_no_more_memory_in_later_passes():
    batches = loader(cast=CAST, device="cuda", num_workers=1, persistent_workers=True)
    reserved = []
    for _ in range(4):
        for _batch in batches:
            pass
        del _batch
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[1:] == reserved[1:2] * 3


def test_a_busy_device_and_switched_streams_change_nothing():
    expected = on_cpu(loader(cast=CAST))
    streams = [torch.cuda.Stream() for _ in range(3)]
    sums, batches = [], iter(loader(cast=CAST, device="cuda"))
    for number in range(len(expected)):
        with torch.cuda.stream(streams[number % 3]):
            batch = next(batches)
            torch.cuda._sleep(2_000_000)
            sums.append([x.double().sum() for x in tensors_of(batch)])
            del batch
    torch.cuda.synchronize()
    for got, want in zip(sums, expected, strict=True):
        for x, y in zip(got, tensors_of(want), strict=True):
            assert torch.allclose(x.cpu(), y.double().sum())


def test_pinned_batches_survive_late_copies():
    expected = [x for batch in on_cpu(memload.FastLoader(dataset(), BATCH)) for x in tensors_of(batch)]
    moved = []
    for batch in memload.FastLoader(dataset(), BATCH, pin_memory=True):
        torch.cuda._sleep(5_000_000)  # the copies come late
        moved += [x.to("cuda", non_blocking=True) for x in tensors_of(batch)]
        del batch
    torch.cuda.synchronize()
    assert all(torch.equal(x.cpu(), y) for x, y in zip(moved, expected, strict=True))


def test_a_graph_is_captured_while_native_threads_copy():
    x, graph = torch.ones(1000, device="cuda"), torch.cuda.CUDAGraph()
    iterator = iter(loader(cast=CAST, device="cuda", depth=8))
    next(iterator)
    with torch.cuda.graph(graph):
        y = x * 2
        time.sleep(0.05)
    graph.replay()
    assert y.sum().item() == 2000
    assert len(list(iterator)) == ROWS // BATCH - 1


@pytest.mark.parametrize("cast", [None, CAST])
def test_a_transform_reads_what_the_loop_has_written(cast):
    """A table of the loop's, written to late, in a kernel that follows one which takes its time."""
    table, added = torch.zeros(1, device="cuda"), []
    transform = lambda batch: {"sum": batch["stim"].double().sum() + table.double(), "at": table.clone()}  # noqa: E731
    expected = [batch["stim"].double().sum() for batch in on_cpu(loader(cast=cast))]
    for k, batch in enumerate(loader(cast=cast, device="cuda", batch_transform=transform)):
        added.append(batch)
        torch.cuda._sleep(5_000_000)
        table.fill_(k + 1.0)
    assert [batch["at"].item() for batch in added] == [float(k) for k in range(len(expected))]
    for k, (batch, want) in enumerate(zip(added, expected, strict=True)):
        assert torch.allclose(batch["sum"].cpu(), want + k)


def test_a_transform_that_is_compiled_to_cuda_graphs_gives_each_batch():
    pytest.importorskip("triton")
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("triton compiles by a C compiler, and there is none")
    compiled = torch.compile(lambda x: (x * 2 + 1).sum(-1), mode="reduce-overhead")
    transform = lambda batch: compiled(batch["stim"])  # noqa: E731
    expected = on_cpu(loader(cast=CAST, batch_transform=lambda batch: (batch["stim"] * 2 + 1).sum(-1)))
    sums = []
    for batch in loader(cast=CAST, device="cuda", batch_transform=transform):
        torch.cuda._sleep(2_000_000)  # the loop reads late; the next call overwrites what it reads
        sums.append(batch.clone())
        del batch
    assert all(torch.allclose(x.cpu(), y) for x, y in zip(sums, expected, strict=True))


def test_two_loaders_in_turn_get_their_own_batches():
    expected = on_cpu(loader(cast=CAST))
    first, second = loader(cast=CAST, device="cuda"), loader(cast=CAST, device="cuda")
    for one, other, want in zip(first, second, expected, strict=True):
        torch.cuda._sleep(1_000_000)
        for got in (one, other):
            assert all(torch.equal(x.cpu(), y) for x, y in zip(tensors_of(got), tensors_of(want), strict=True))


def test_forty_loaders_at_once_get_their_own_batches_in_eighty_streams():
    expected = on_cpu(loader(cast=CAST))
    passes = [iter(loader(cast=CAST, device="cuda")) for _ in range(40)]
    for want in expected[:4]:
        batches = [next(one) for one in passes]
        torch.cuda._sleep(1_000_000)
        for got in batches:
            assert all(torch.equal(x.cpu(), y) for x, y in zip(tensors_of(got), tensors_of(want), strict=True))
    interfaces = [torch_interface(torch.cuda.current_device()) for _ in range(40)]
    handles = {stream.cuda_stream for one in interfaces for stream in (one.copies, one.work)}
    if interfaces[0].native is not None:  # torch's own streams are 32
        assert len(handles) == 80


def test_memory_that_a_loader_left_behind_is_freed_after_its_streams_served_others():
    """The allocator records events in the streams that read a tensor when that is freed."""
    expected = on_cpu(loader(cast=CAST))
    kept = [next(iter(loader(cast=CAST, device="cuda"))) for _ in range(3)]
    gc.collect()
    for got, want in zip(loader(cast=CAST, device="cuda"), expected, strict=True):
        assert all(torch.equal(x.cpu(), y) for x, y in zip(tensors_of(got), tensors_of(want), strict=True))
    for one in kept:
        assert all(torch.equal(x.cpu(), y) for x, y in zip(tensors_of(one), tensors_of(expected[0]), strict=True))
    del kept, one, got
    torch.cuda.empty_cache()
    torch.cuda.synchronize()


def test_the_stock_engine_moves_batches():
    expected = on_cpu(memload.FastLoader(Nested(), batch_size=4, cast=CAST))
    for got, want in zip(memload.FastLoader(Nested(), 4, cast=CAST, device="cuda"), expected, strict=True):
        assert all(torch.equal(x.cpu(), y) for x, y in zip(tensors_of(got), tensors_of(want), strict=True))
