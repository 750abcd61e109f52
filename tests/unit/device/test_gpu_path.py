"""Batches on a device: the whole path on a simulated one, whose copies and kernels are late and out of step."""

import contextlib
import gc
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from device_cases import BATCH, CAST, ROWS, Nested, dataset, loader
from late_reading import LATE, SLOW, assert_same, is_caught, on_cpu, read_all, shows
from simulated import POISON, SimulatedInterface, Without
from waiting import MOST_SECONDS, until

import memload
from memload.device.destination_buffers import pinned_copy_rate
from memload.device.devices import checked_target
from memload.device.placing import Placer
from memload.nested import tensors_of


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "late",
    [
        {"copies": LATE, "loop": (0, 0)},  # the loop is faster than its device
        {"copies": (0, 0), "work": LATE},
        {"loop": LATE, "copies": (0, 50)},  # and slower
        {"copies": (0, 700), "work": (0, 700), "loop": (0, 700)},
    ],
)
def test_the_loop_reads_on_the_device_what_it_reads_on_the_cpu(late, native):
    device = SimulatedInterface(native=native, **late)
    expected = on_cpu(loader(cast=CAST))
    batches = loader(cast=CAST, device=device)
    assert batches.engine == "native"
    read, _ = read_all(device, batches)
    assert_same(read, expected)
    assert device.simulated.violations == []


@pytest.mark.parametrize(("megabytes", "on_cpu", "on_device"), [(1, 2, 8), (4, 2, 4), (32, 2, 2)])
def test_small_batches_have_more_slots_where_they_are_copied_to_a_device(megabytes, on_cpu, on_device):
    rows = memload.from_arrays(x=torch.zeros(8, (megabytes << 20) - 4096, dtype=torch.uint8))
    for device, depth in ((None, on_cpu), (SimulatedInterface(), on_device)):
        batches = memload.FastLoader(rows, 1, device=device)
        assert batches.nbytes / (1 << 20) == pytest.approx((depth + 1) * megabytes, abs=megabytes / 2)


@pytest.mark.parametrize("nearer", [False, True])
def test_statistics_tell_a_device_that_is_behind_the_loop_from_one_that_is_not(nearer):
    waited, rows = [], memload.from_arrays(x=torch.arange(400).view(40, 10))
    for loop in (SLOW, (0, 0)):
        device = SimulatedInterface(loop=loop)
        ds = memload.to_device(rows, "cpu", bytes=1600) if nearer else rows
        batches = memload.FastLoader(ds, 2, device=device)
        assert batches.engine == "native"
        read_all(device, batches)
        stats = batches.stats()
        assert stats.device_wait_seconds + stats.consumer_wait_seconds <= stats.wall_seconds
        waited.append(stats.device_wait_seconds)
        assert "The device is the limit" in stats.limit or loop != SLOW
    assert waited[0] > 3 * waited[1]


def test_batches_that_are_kept_stay_as_they_are():
    device = SimulatedInterface(copies=LATE)
    expected = on_cpu(loader(cast=CAST))
    read, kept = read_all(device, loader(cast=CAST, device=device), keeps=6)
    assert_same(read, expected)
    assert_same(kept, expected[-6:])


def test_a_loop_that_switches_streams_reads_the_same():
    device = SimulatedInterface(copies=LATE)
    streams = [device.simulated.add_stream(0, 900, seed) for seed in range(3)]
    with contextlib.ExitStack() as inside:

        def switch():
            inside.close()
            inside.enter_context(device.on(streams[len(tried) % 3]))
            tried.append(None)

        tried = []
        expected, read = on_cpu(loader(cast=CAST)), []
        batches = iter(loader(cast=CAST, device=device))
        while True:
            switch()
            batch = next(batches, None)
            if batch is None:
                break
            read.append([device.read(tensor) for tensor in tensors_of(batch)])
    assert_same([[one() for one in late] for late in read], expected)
    assert device.simulated.violations == []


@pytest.mark.parametrize(
    ("call", "stream", "late", "native"),
    [
        ("wait", None, {"work": SLOW, "loop": (0, 0)}, True),  # the loop for the casts
        ("hold", None, {"copies": (0, 0), "work": (0, 0), "loop": SLOW}, True),  # what the loop still reads
        ("record", "work", {"work": SLOW, "loop": (0, 0)}, True),
        ("hold", "work", {"copies": (0, 0), "work": SLOW}, True),  # what casts still read
        ("wait", "work", {"copies": SLOW, "work": (0, 0)}, False),  # casts for copies
        ("record", "copies", {"copies": SLOW, "work": (0, 0)}, False),
    ],
)
def test_a_step_that_is_left_out_shows(call, stream, late, native):
    shows_where_it_is_left_out(dataset(), call, stream, late, native)


def test_memory_that_casts_of_moved_batches_read_is_held():
    shows_where_it_is_left_out(dataset().only("stim"), "hold", "work", {"copies": (0, 0), "work": SLOW}, False)


def shows_where_it_is_left_out(ds, call, stream, late, native):
    """Where a step is left out, that shows; where all are made, nothing does."""
    expected = on_cpu(loader(ds, cast=CAST))

    def is_caught_on(device):
        return is_caught(device, loader(ds, cast=CAST, device=device), expected)

    def is_caught_without(late):
        device = Without(call, stream, native=native, **late)
        caught = is_caught_on(device)
        assert device.left_out > 0
        return caught

    with ThreadPoolExecutor(1) as beside:  # both mostly wait
        of_whole = beside.submit(is_caught_on, SimulatedInterface(native=native, **late))
        assert shows(is_caught_without, late)
        assert not of_whole.result()


@pytest.mark.parametrize("call", ["wait", "record", "done"])
def test_a_native_step_that_is_left_out_shows(call):
    expected = on_cpu(loader())

    def is_caught_without(late):
        device = SimulatedInterface(**late)
        device.simulated.leave_out(call)
        return is_caught(device, loader(device=device, depth=1), expected)

    assert shows(is_caught_without, {"copies": LATE, "work": (0, 0), "loop": (0, 0)})


@pytest.mark.parametrize("native", [True, False])
def test_the_loop_is_not_far_ahead_of_its_device(native):
    device = SimulatedInterface(loop=(2000, 2000), copies=(0, 0), work=(0, 0))
    most, events = 0, []
    for batch in loader(device=device) if native else memload.FastLoader(Nested(), device=device):
        late = [device.read(tensor) for tensor in tensors_of(batch)]
        events.append(device.record(device.current()))
        most = max(most, sum(not device.done(event) for event in events))
        del batch, late
    assert 1 <= most <= 3


class Noting(SimulatedInterface):
    """A device that keeps what is cast on it."""

    def launch(self, stream, fn, *args):
        made = super().launch(stream, fn, *args)
        self.made.append(next(tensor.clone() for tensor in tensors_of(fn(*args))))
        return made


@pytest.mark.parametrize("native", [True, False])
def test_batches_of_tensors_are_cast_ahead_and_put_aside_when_these_are_written_to(native):
    """Torch counts writes to tensors, so that passes over them are watched; whether one is ahead shows in some pass."""
    device, x, ahead = Noting(native=native), torch.arange(40.0).reshape(20, 2), []
    cast = {"x": memload.Cast(torch.bfloat16)}

    def is_ahead():
        device.made = []
        batches = iter(loader(memload.from_arrays(x=x), shuffle=False, batch_size=4, device=device, cast=cast))
        for handed in range(1, 5):
            next(batches)
            if len(device.made) > handed:
                ahead.append((handed, batches))
                return True
        return False

    until(is_ahead, within=MOST_SECONDS)
    ((handed, batches),) = ahead
    assert torch.equal(device.made[handed].float(), x[4 * handed : 4 * handed + 4])
    x += 100
    read, _ = read_all(device, batches)
    assert_same(read, [{"x": part.bfloat16()} for part in x[4 * handed :].split(4)])
    assert device.simulated.violations == []


def test_a_transform_draws_for_rows_that_were_written_to_as_for_others():
    x, passes = torch.zeros(20, 2), []
    for written in (0, 2):
        device, read = SimulatedInterface(), []
        torch.manual_seed(1)
        noisy = lambda batch, generator: {"x": batch["x"] + torch.rand(4, 2, generator=generator)}  # noqa: E731
        for k, batch in enumerate(loader(memload.from_arrays(x=x), batch_size=4, device=device, batch_transform=noisy)):
            read.append(device.read(batch["x"]))
            if k + 1 == written:
                x.zero_()
        passes.append([[value()] for value in read])
    assert_same(*passes)


def test_bytes_cross_the_bus_as_they_are_stored():
    device = SimulatedInterface()
    batches = loader(cast=CAST, device=device)
    for _ in batches:
        pass
    stats = batches.stats()
    stored = ROWS * (3 * 24 * 24 + 5 * 4 + 8)
    assert stored <= stats.copied_bytes <= stored * 1.1  # fields are aligned, not widened
    assert stats.copies == 2 * ROWS // BATCH  # what is cast in one copy, all else in another
    assert stats.copied_bytes == device.simulated.counts["copied_bytes"]


def test_a_state_is_the_same_with_a_device_and_without():
    device = SimulatedInterface()
    states = []
    for given in ({}, {"device": device}):
        batches = loader(cast=CAST, **given)
        iterator = iter(batches)
        for _ in range(4):
            next(iterator)
        states.append(batches.state_dict())
        del iterator
    assert states[0] == states[1]
    expected = on_cpu(loader(cast=CAST))
    resumed = loader(cast=CAST, device=device)
    resumed.load_state_dict(states[0])
    assert_same(read_all(device, resumed)[0], expected[4:])


def noisy(batch):
    return {**batch, "stim": batch["stim"] + torch.rand(batch["stim"].shape, generator=None)}


def test_a_batch_transform_follows_the_cast_on_the_device():
    device = SimulatedInterface(copies=LATE, work=LATE)
    expected = on_cpu(loader(cast=CAST, batch_transform=noisy))
    read, _ = read_all(device, loader(cast=CAST, batch_transform=noisy, device=device))
    assert_same(read, expected)


class Held:
    """An object with a tensor in which nobody would look."""

    def __init__(self, x):
        self.inside = SimpleNamespace(x=[x])


def reads_of_held(device):
    """What the loop reads, late, of tensors that objects hold which it drops at once."""
    placer, readings = Placer(device), []
    for k in range(20):
        batch = placer.hand_over(Held(placer.launch(torch.full, (500,), float(k))))
        readings.append(device.read(batch.inside.x[0]))
        del batch
    return [bool((reading() == k).all()) for k, reading in enumerate(readings)]


def test_tensors_that_objects_hold_are_not_used_again_before_the_loop_has_read_them():
    late = {"copies": (0, 0), "work": (0, 0), "loop": LATE}
    assert all(reads_of_held(SimulatedInterface(**late)))
    assert not all(reads_of_held(Without("hold", None, **late)))


def test_a_field_without_elements_is_on_the_device_too():
    ds = memload.from_arrays(x=torch.arange(6.0), none=torch.empty(6, 0, 2, dtype=torch.int16))
    seen = [batch["none"] for batch in loader(ds, batch_size=4, device=SimulatedInterface())]
    assert [(one.shape, one.dtype) for one in seen] == [((4, 0, 2), torch.int16), ((2, 0, 2), torch.int16)]


def test_images_are_cut_and_flipped_on_the_device_as_on_the_cpu():
    augment = memload.Augment(crop=(16, 16), flip=0.5)
    cast = {"stim": memload.Cast(torch.float32, mean=0.5, std=2.0, channels=-3, augment=augment)}
    device = SimulatedInterface(copies=LATE, work=LATE)
    expected = on_cpu(loader(cast=cast))
    assert_same(read_all(device, loader(cast=cast, device=device))[0], expected)


def test_an_error_that_a_kernel_left_behind_is_told_in_words():
    class Broken(SimulatedInterface):
        def wait(self, stream, event):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(memload.DeviceError, match="CUDA_LAUNCH_BLOCKING=1"):
        next(iter(loader(device=Broken())))


def test_an_error_of_a_transform_ends_no_pass():
    calls = []

    def fails(batch):
        calls.append(None)
        if len(calls) == 2:
            raise KeyError("second")
        return batch

    device = SimulatedInterface()
    iterator = iter(loader(batch_transform=fails, device=device))
    next(iterator)
    with pytest.raises(KeyError, match="second"):
        next(iterator)
    assert len(list(iterator)) == ROWS // BATCH - 2


def test_persistent_workers_keep_the_ring():
    device = SimulatedInterface(copies=LATE)
    batches = loader(device=device, num_workers=1, persistent_workers=True)
    expected = on_cpu(loader(num_workers=1, persistent_workers=True))
    for _ in range(2):
        read, _ = read_all(device, batches)
        pinned = device.simulated.pinned_bytes
        assert pinned > 0
    assert len(read) == len(expected)
    assert device.simulated.violations == []
    del batches
    gc.collect()
    assert device.simulated.pinned_bytes == 0


def ragged():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 60)
    tokens = memload.ragged([rng.integers(0, 100, n).astype(np.int32) for n in lengths])
    return memload.from_arrays(tokens=tokens, y=np.arange(60, dtype=np.float32))


@pytest.mark.parametrize("form", ["offsets", "padded", "jagged"])
def test_rows_that_differ_in_length_go_to_the_device(form):
    device = SimulatedInterface(copies=LATE)
    batches = loader(ragged(), ragged=form, device=device)
    assert "while they are gathered" in batches.why
    expected = on_cpu(loader(ragged(), ragged=form))
    assert_same(read_all(device, batches)[0], expected)


def test_windows_go_to_the_device():
    frames = memload.from_arrays(stim=torch.arange(80 * 6, dtype=torch.uint8).view(80, 6)).with_lags(stim=range(4))
    device = SimulatedInterface(copies=LATE)
    expected = on_cpu(loader(frames, cast=CAST))
    assert_same(read_all(device, loader(frames, cast=CAST, device=device))[0], expected)


def test_what_does_not_go_as_it_is_gathered_is_moved_whole():
    device = SimulatedInterface(copies=LATE)
    texts = memload.from_arrays(name=[f"row {k}" for k in range(40)], x=torch.arange(40.0))
    mapped = dataset().map(lambda row: {**row, "y": row["y"] * 2})
    both = memload.concat({"one": dataset(40), "two": dataset(24)})
    for ds, collate in ((texts, None), (mapped, None), (both, memload.group_collate)):
        options = {"batch_size": 8, "collate_fn": collate}
        batches = memload.FastLoader(ds, device=device, **options)
        assert "moved to cpu whole, since" in batches.why
        expected = on_cpu(memload.FastLoader(ds, **options))
        assert_same(read_all(device, batches)[0], expected)


def test_the_stock_engine_moves_tensors_of_any_nesting():
    device = SimulatedInterface(copies=LATE, work=LATE)
    options = {"batch_size": 4, "cast": CAST, "batch_transform": lambda batch: {**batch, "more": batch["stim"] * 2}}
    expected = on_cpu(memload.FastLoader(Nested(), **options))
    batches = memload.FastLoader(Nested(), device=device, **options)
    assert batches.engine == "torch"
    kept = list(batches)
    assert [batch["deep"][1][1] for batch in kept] == [batch["deep"][1][1] for batch in expected]
    assert_same([[device.read(x)() for x in tensors_of(batch)] for batch in kept], expected)
    assert_same(read_all(device, memload.FastLoader(Nested(), device=device, **options))[0], expected)


@pytest.mark.parametrize(
    ("call", "stream", "late"),
    [
        ("wait", "work", {"copies": LATE, "work": (0, 0), "loop": (0, 0)}),
        ("wait", None, {"copies": LATE, "loop": (0, 0)}),
    ],
)
def test_a_step_that_is_left_out_of_the_stock_engine_shows(call, stream, late):
    expected = on_cpu(memload.FastLoader(Nested(), batch_size=2))

    def is_caught_without(late):
        device = Without(call, stream, **late)
        return is_caught(device, memload.FastLoader(Nested(), batch_size=2, device=device), expected)

    assert shows(is_caught_without, late)


def doubled_there(device):
    """Whether tensors that the loop's stream makes on the device are doubled in `work` as they should be."""
    placer, readings = Placer(device), []
    for k in range(20):
        there = device.launch(device.current(), torch.full, (500,), float(k))
        placed = placer.place([there])
        del there
        made = placer.launch(torch.mul, placed.pop(), 2)
        readings.append(device.read(*placer.hand_over([made])))
        del made
    right = all(bool((reading() == 2.0 * k).all()) for k, reading in enumerate(readings))
    return right and not device.simulated.violations


@pytest.mark.filterwarnings("ignore:batches have tensors that are on")
@pytest.mark.parametrize(
    ("call", "late"), [("wait", {"loop": LATE, "work": (0, 0)}), ("hold", {"loop": (0, 0), "work": LATE})]
)
def test_what_the_loop_makes_on_the_device_is_ordered_and_held_too(call, late):
    assert doubled_there(SimulatedInterface(**late))
    assert shows(lambda late: not doubled_there(Without(call, "work", **late)), late)


def test_a_tensor_that_is_on_the_device_passes_with_one_warning():
    device = SimulatedInterface()
    placer = Placer(device)
    there = device.empty(8, device.work)
    with pytest.warns(RuntimeWarning, match="on cpu already"):
        placed = placer.place([there, torch.ones(3)])
    assert placed[0] is there
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placer.place({"x": there})


def test_strides_dtypes_and_objects_survive_the_move():
    device = SimulatedInterface()
    pair = memload.Ragged(torch.arange(4), torch.tensor([0, 1, 4]))
    batch = {
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "transposed": torch.arange(12).view(3, 4).T,
        "gaps": torch.arange(12)[::3],
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(7, dtype=torch.int16),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "ragged": pair,
        "number": 3,
    }
    placed = Placer(device).place(batch)
    device.synchronise(device.record(device.work))
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and name != "sparse":
            assert torch.equal(placed[name], value), name
            assert placed[name].stride() == (value.stride() if name != "gaps" else (1,)), name
    assert torch.equal(placed["sparse"].to_dense(), torch.eye(3))
    assert isinstance(placed["ragged"], memload.Ragged)
    assert placed["number"] == 3


def test_pinned_slots_are_bounded_and_the_warning_names_the_limit():
    device = SimulatedInterface()
    ring = memload.EngineOptions(pinned_bytes=0)
    batches = loader(cast=CAST, device=device, options=ring)
    expected = on_cpu(loader(cast=CAST))
    with pytest.warns(RuntimeWarning, match="limit of 0 bytes"):
        read, _ = read_all(device, batches)
    assert_same(read, expected)
    assert device.simulated.pinned_bytes == 0
    scarce = SimulatedInterface(pinnable=1 << 14)
    with pytest.warns(RuntimeWarning, match="16384 can be pinned"):
        assert_same(read_all(scarce, loader(cast=CAST, device=scarce))[0], expected)
    with pytest.raises(ValueError, match="pinned_bytes"):
        memload.EngineOptions(pinned_bytes=-1)


def test_a_probe_measures_copies_from_pinned_slots_and_gives_them_back():
    device = SimulatedInterface(copies=(100, 200))
    assert 0 < pinned_copy_rate(device) < (16 << 20) / 100e-6
    assert device.simulated.pinned_bytes == 0
    assert pinned_copy_rate(SimulatedInterface(pinnable=0)) == 0.0


def test_what_is_stated_is_what_is_taken():
    device = SimulatedInterface()
    batches = loader(cast=CAST, device=device)
    iterator = iter(batches)
    for _ in range(10):
        next(iterator)
    assert 0.8 * batches.nbytes <= device.simulated.pinned_bytes <= batches.nbytes
    widened = BATCH * 3 * 24 * 24 * 4
    assert batches.device_nbytes >= 4 * widened
    assert loader().device_nbytes == 0


class Pinning(memload.FastLoader):
    """A loader that pins by what it is given."""

    def __init__(self, *args, host, **options):
        self.host = host
        super().__init__(*args, pin_memory=True, **options)

    def _host_memory(self):
        return self.host


class Hasty(SimulatedInterface):
    """Pinned memory that is no longer torch's: whoever copies from it tells nobody."""

    def pinned(self, nbytes):
        return super().pinned(nbytes).clone() if nbytes == 0 else super().pinned(nbytes)

    def copy(self, to, source, stream):
        self.simulated.copy(to.data_ptr(), source.data_ptr(), source.nbytes, stream)


def moved_by_the_loop(device):
    """A loop that copies each pinned batch to the device itself, and drops it at once."""
    stream, readings = device.current(), []
    for batch in Pinning(dataset(), BATCH, host=device):
        for tensor in tensors_of(batch):
            there = device.empty(tensor.nbytes, stream)
            device.copy(there, tensor, stream)
            readings.append((device.read(there.view(tensor.dtype).view(tensor.shape)), there))
        del batch, tensor
    return [reading() for reading, _ in readings]


def test_pinned_batches_are_not_filled_again_before_the_loops_own_copies_are_done():
    expected = [x for batch in on_cpu(memload.FastLoader(dataset(), BATCH)) for x in tensors_of(batch)]
    safe = SimulatedInterface(loop=LATE)
    assert all(map(torch.equal, moved_by_the_loop(safe), expected))
    assert safe.simulated.violations == []

    def is_caught_where_nobody_is_told(late):
        broken = Hasty(**late)
        return not all(map(torch.equal, moved_by_the_loop(broken), expected)) or broken.simulated.violations

    assert shows(is_caught_where_nobody_is_told, {"loop": LATE})


def test_pinned_batches_lie_in_memory_of_the_allocator():
    host = SimulatedInterface()
    batches = Pinning(dataset(), BATCH, host=host)
    for batch in batches:
        assert all(map(host.is_pinned, tensors_of(batch)))
    slot = BATCH * (3 * 24 * 24 + 28)
    assert batches.nbytes >= 3 * slot


def test_reading_before_the_stream_has_come_is_poison():
    device = SimulatedInterface(loop=(0, 0))
    gate = device.simulated.gate()
    device.wait(device.copies, gate)
    iterator = iter(loader(device=device))
    batch = next(iterator)
    assert (batch["label"].view(torch.uint8) == POISON).all()
    device.simulated.open(gate)


def test_a_device_that_is_none_is_refused_in_words():
    with pytest.raises(TypeError, match="device="):
        loader(device=1.5)
    with pytest.raises(ValueError, match="no device of torch's"):
        loader(device="gpu")
    assert checked_target("cpu") is None
    assert loader(device="cpu").why == loader().why
    if not torch.cuda.is_available():
        with pytest.raises(memload.DeviceError, match="CUDA"):
            loader(device="cuda")
    with pytest.raises(ValueError, match="should not be set"):
        loader().device = "cuda"


def test_an_early_end_gives_everything_back():
    device = SimulatedInterface(copies=LATE)
    for _ in range(3):
        for batch in loader(device=device):
            del batch
            break
    gc.collect()
    assert device.simulated.pinned_bytes == 0
    assert device.simulated.violations == []


def test_a_row_that_is_not_there_ends_the_pass_in_its_turn():
    device = SimulatedInterface(copies=LATE)
    rows = [*range(16), 999, *range(7)]
    batches = loader(shuffle=None, sampler=rows, device=device)
    seen = 0
    with pytest.raises(IndexError):
        for _ in batches:
            seen += 1
    assert seen == 2


def test_a_loader_for_a_device_travels():
    assert pickle.loads(pickle.dumps(loader(device="cpu"))).device == "cpu"
