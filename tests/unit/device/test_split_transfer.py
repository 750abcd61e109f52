"""Rows in pinned RAM that the copy engine brings to a device: batches are those that the kernel alone would make."""

import json
import warnings
from collections import deque

import numpy as np
import pytest
import torch
from children import refused_in_fork
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_by_address import kernels_in_python
from late_reading import is_caught, read_all, shows
from same_rows import movie, same
from simulated import SimulatedInterface, Without
from strategies import random_tensor

import memload
from memload.device.copied_rows import (
    AHEAD,
    ArrivedNumbers,
    ArrivedRows,
    CopiedBatch,
    CopiedRows,
    CopyOptions,
    batches_ahead,
    together,
)
from memload.device.frames import FrameIndex
from memload.device.row_numbers import HostNumbers, host_numbers, native_index
from memload.device.transfer_choice import LEAST_BATCHES, RATIOS, RUN
from memload.nested import tensors_of

FIELDS = {"stim": (torch.uint8, (700,)), "y": (torch.float32, (150,)), "label": (torch.int64, ())}
CAST = {"stim": memload.Cast(torch.bfloat16, norm_removed=True)}
ENOUGH = 2 * RUN * (RATIOS + 2)


def dataset(rows=96, seed=0):
    made = torch.Generator().manual_seed(seed)
    fields = {}
    for name, (dtype, shape) in FIELDS.items():
        fields[name] = torch.randint(0, 200, (rows, *shape), generator=made).to(dtype)
    return memload.from_arrays(**fields)


def halves(ds, **options):
    return memload.to_device(ds, "cpu", bytes=ds.nbytes // 2, **options)


def transfer_of(loader):
    """What a pass of the loader may do; None: all rows lie on the device."""
    access = loader.__memload_loader__()
    return access.settings(access.cast_source()).transfer


def choice_of(loader):
    return transfer_of(loader).choice


def loader_of(ds, device=None, *, by_copies=None, **options):
    """A loader whose way is decided, if it is given."""
    options = {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(1)} | options
    loader = memload.FastLoader(ds, device=device, **options)
    if by_copies is not None:
        choice_of(loader).by_copies = by_copies
    return loader


def expected_of(ds, **options):
    return [[*tensors_of(batch)] for batch in loader_of(ds, **options)]


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_batches_are_those_from_files_whichever_way_each_of_them_comes(data):
    local = dataset(rows=40)
    if rows := data.draw(st.none() | st.lists(st.integers(0, 39), min_size=1, max_size=50)):
        local = local.select(rows)
    nbytes = data.draw(st.integers(2000, max(2000, local.nbytes)))
    weights = np.arange(len(local)) % 5 if data.draw(st.booleans()) else None
    options = {
        "cast": data.draw(st.sampled_from([None, CAST])),
        "batch_size": data.draw(st.sampled_from([1, 5, 64])),
        "batch_transform": data.draw(st.sampled_from([None, lambda batch: {**batch, "y": batch["y"] + 1}])),
    }
    expected, parts = expected_of(local, **options), memload.to_device(local, "cpu", bytes=nbytes, weights=weights)
    device = SimulatedInterface(seed=data.draw(st.integers(0, 9)))
    loader = loader_of(parts, device, **options)
    if (plan := transfer_of(loader)) is None:  # all rows are where they are gathered: nothing is late
        assert same([[*tensors_of(batch)] for batch in loader], expected)
        return
    plan.choice.by_copies = True
    read, _ = read_all(device, loader)
    assert same(read, expected)
    assert device.simulated.violations == []


def test_a_batch_is_made_of_rows_on_the_device_and_of_those_that_arrived(monkeypatch):
    launched = kernels_in_python(monkeypatch)
    local, parts = dataset(), halves(dataset())
    far = {field.column.table.parts[-1].data_ptr() for field in parts.fields.values() if field.column.memory}
    for by_copies in (True, False):
        device = SimulatedInterface()
        read, _ = read_all(device, loader_of(parts, device, by_copies=by_copies, batch_size=24))
        assert same(read, expected_of(local, batch_size=24))
        assert far.isdisjoint(memories[-1][0] for memories in launched) == by_copies
        launched.clear()


class Timed(SimulatedInterface):
    """A device on whose clock a batch takes a given time each way."""

    def __init__(self, by_kernel, by_copies, **options):
        super().__init__(**options)
        self._takes, self._clock, self.ways = {False: by_kernel, True: by_copies}, 0.0, []

    def launch(self, stream, fn, *args):
        if stream == self.work:
            self.ways.append(any(isinstance(given, ArrivedRows) and given.places for given in args))
            self._clock += self._takes[self.ways[-1]]
        return super().launch(stream, fn, *args)

    def timestamp(self, stream):
        assert stream == self.work
        return self._clock

    def seconds_between(self, first, second):
        return second - first


@pytest.mark.parametrize(("kernel", "copies", "chosen"), [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, 0.96, False)])
def test_the_faster_way_is_found_kept_for_later_passes_and_told(kernel, copies, chosen):
    local = dataset(rows=64 * ENOUGH).only("stim")
    parts, device = halves(local), Timed(kernel, copies, work=(0, 0), loop=(0, 0))
    loader = loader_of(parts, device, batch_size=64)
    undecided = loader.nbytes
    assert "whichever its first batches find faster" in loader.why
    read, _ = read_all(device, loader)
    assert same(read, expected_of(local, batch_size=64))
    assert device.simulated.violations == []
    assert device.ways[: 2 * RUN] == [False] * RUN + [True] * RUN
    assert set(device.ways[-RUN:]) == {chosen}
    assert ("the copy engine brings" if chosen else "the kernel reads") in loader.why
    assert (loader.nbytes == undecided) == chosen
    stats, device.ways = loader.stats(), []
    assert stats.copied_bytes > 0
    assert stats.copies > 0
    assert len([*loader_of(parts, device, batch_size=64)]) == ENOUGH
    assert set(device.ways) == {chosen}
    assert choice_of(loader_of(parts, device, batch_size=32)).by_copies is None
    assert choice_of(loader_of(parts.select(range(80)), device, batch_size=64)).by_copies is None


class Ordered(Timed):
    """A device that notes, among the ways of batches, where copies are to wait for the kernels launched so far."""

    def follow(self, stream, other):
        if (stream, other) == (self.copies, self.work):
            self.ways.append("copies wait")
        super().follow(stream, other)


def test_while_both_ways_are_compared_no_copy_of_a_run_moves_in_the_time_of_the_run_before():
    parts, device = halves(dataset(rows=8 * ENOUGH)), Ordered(2.0, 1.0)
    assert len([*loader_of(parts, device, batch_size=8)]) == ENOUGH
    pair = [*[False] * RUN, "copies wait", *[True] * RUN]
    assert device.ways[: len(pair) * (RATIOS + 1)] == pair * (RATIOS + 1)
    assert "copies wait" not in device.ways[len(pair) * (RATIOS + 1) :]


def test_slots_are_freed_once_the_kernel_is_chosen():
    parts, device = halves(dataset(rows=8 * ENOUGH)), Timed(1.0, 2.0)
    pinned = [device.simulated.pinned_bytes for _ in loader_of(parts, device, batch_size=8)]
    assert pinned[0] == 0
    assert max(pinned) > 0
    assert pinned[-1] == 0


def test_passes_too_short_to_compare_both_ways_try_nothing():
    device = SimulatedInterface()
    loader = loader_of(halves(dataset(rows=4 * (LEAST_BATCHES - 1))), device)
    assert loader.nbytes < 3000
    assert len([*loader]) == LEAST_BATCHES - 1
    assert device.simulated.counts.get("copy", 0) == 0


@pytest.mark.parametrize("call", ["wait", "record"])  # of the stream of the kernel for what the copy engine brings
def test_a_step_that_is_left_out_shows(call):
    local = dataset(rows=40)
    parts = memload.to_device(local, "cpu", bytes=2000)
    expected = [*loader_of(local)]
    late = {"copies": (3000, 6000), "work": (0, 0), "loop": (0, 0)}
    whole = SimulatedInterface(**late)
    assert not is_caught(whole, loader_of(parts, whole, by_copies=True), expected)

    def is_caught_without(late):
        broken = SimulatedInterface(**late)
        broken.simulated.leave_out(call)
        return is_caught(broken, loader_of(parts, broken, by_copies=True), expected)

    assert shows(is_caught_without, late)


@pytest.mark.parametrize("holds", [True, False])
def test_buffers_that_a_kernel_still_reads_when_a_pass_ends_are_not_used_by_others(holds):
    parts = memload.to_device(dataset(rows=40), "cpu", bytes=2000)
    for times in (1,) if holds else (1, 4, 16):  # on a busy machine a pass ends so late that little shows
        late = {"copies": (0, 0), "work": (20_000 * times, 30_000 * times), "loop": (0, 0)}
        device = SimulatedInterface(**late) if holds else Without("hold", "work", **late)
        kept = [*loader_of(parts, device, by_copies=True)]  # else the memory of batches would be given back before
        device.synchronise(device.record(device.work))
        assert len(kept) == 10
        if device.simulated.violations:
            break
    assert bool(device.simulated.violations) != holds


def arrivals(device, batches, columns, *, early=False):
    """What later work reads of the rows that arrive, of batches that begin ahead, by a host that never waits.

    Early: a buffer is given back before what reads it is in the stream.
    """
    copied, begun, readings = CopiedRows(together(columns), columns, CopyOptions(4, 2), device), deque(), []
    ahead = batches_ahead(4 * columns[0].memory.table.shape[1])
    with device.on(device.work):
        for rows in [*batches, *[None] * ahead]:
            if len(begun) == ahead or (rows is None and begun):
                batch = begun.popleft()
                arrived = ArrivedNumbers(batch, batch.take(wait=True), torch.device("cpu"))
                if early:
                    batch.release()
                readings.append([device.read(arrived.arrived_rows(column)) for column in columns])
                if not early:
                    batch.release()
            if rows is not None:
                begun.append(copied.begin(rows))
    read = [[one() for one in reading] for reading in readings]
    copied.close()
    return read


@pytest.mark.parametrize("call", [None, "wait", "record", "done"])
def test_no_call_of_native_code_can_be_left_out(call):
    """A slot is filled again once its copy is done, and arrived rows are read after their copy."""
    column, batches, expected = far_rows()
    device = SimulatedInterface(copies=(2000, 4000), work=(0, 0))
    if call is not None:
        device.simulated.leave_out(call)
    right = same(arrivals(device, batches, [column]), expected)
    assert (right and device.simulated.violations == []) == (call is None)


@pytest.mark.parametrize("early", [False, True])
def test_a_buffer_of_the_device_is_written_again_only_after_what_reads_it(early):
    column, batches, expected = far_rows()
    device = SimulatedInterface(copies=(0, 0), work=(3000, 5000))
    assert same(arrivals(device, batches, [column], early=early), expected) != early


def far_rows():
    """A column whose rows but the first lie in RAM; rows of batches there; and the bytes of these."""
    stored = random_tensor(torch.uint8, (40, 9000), 0)
    column = memload.to_device(memload.from_arrays(x=stored), "cpu", bytes=9000).fields["x"].column
    batches = [np.random.default_rng(k).integers(1, 40, 4) for k in range(24)]
    return column, batches, [[stored[torch.from_numpy(rows)]] for rows in batches]


class Full(SimulatedInterface):
    """A device that has memory for so many arrivals."""

    def __init__(self, arrivals):
        super().__init__()
        self._left = arrivals

    def empty(self, nbytes, stream):
        if stream == self.copies:
            self._left -= 1
            if self._left < 0:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return super().empty(nbytes, stream)


def test_the_kernel_reads_all_rows_where_the_device_has_no_memory_for_arrivals():
    local, device = dataset(), Full(0)
    loader = loader_of(halves(local), device, by_copies=True)
    read, _ = read_all(device, loader)
    assert same(read, expected_of(local))
    assert "since the device has no memory for those that arrive" in loader.why
    assert device.simulated.violations == []
    assert device.simulated.pinned_bytes == 0


@pytest.mark.parametrize("options", [{"pinned_bytes": 0}, {}])
def test_the_kernel_reads_all_rows_where_slots_cannot_be_pinned(options):
    local = dataset()
    device = SimulatedInterface(pinnable=None if options else 0)
    loader = loader_of(halves(local), device, by_copies=True, options=memload.EngineOptions(**options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read, _ = read_all(device, loader)
    assert same(read, expected_of(local))
    assert "since slots cannot be pinned" in loader.why


def test_the_kernel_reads_all_rows_where_there_is_no_room_for_slots(monkeypatch):
    def short(*_):
        raise memload.MemorySpaceError("2 GB do not fit", need=2, free=1)

    monkeypatch.setattr("memload.device.split_transfer.check_room", short)
    local, device = dataset(), SimulatedInterface()
    loader = loader_of(halves(local), device, by_copies=True)
    assert same(read_all(device, loader)[0], expected_of(local))
    assert "since there is no room for slots (2 GB do not fit)" in loader.why


def test_without_native_code_nothing_is_tried():
    local, device = dataset(rows=4 * LEAST_BATCHES), SimulatedInterface(native=False)
    loader = loader_of(halves(local), device)
    assert same(read_all(device, loader)[0], expected_of(local))
    assert "memload._cuda is not there to copy them" in loader.why


def test_an_error_comes_at_its_own_batch_and_a_pass_that_is_left_early_frees_its_slots():
    device, parts = SimulatedInterface(), halves(dataset())
    choice_of(loader_of(parts, device, batch_size=2)).by_copies = True
    taken = iter(memload.FastLoader(parts, batch_sampler=[[0, 90], [95, 2], [96], [4]], device=device))
    assert [len(next(taken)["y"]), len(next(taken)["y"])] == [2, 2]
    with pytest.raises(IndexError, match="row 96 is not one of the 96 rows"):
        next(taken)
    del taken
    for _ in loader_of(parts, device, by_copies=True):
        break
    assert device.simulated.pinned_bytes == 0


def test_an_error_of_the_device_while_a_batch_is_copied_ahead_leaves_the_batch_before_it_whole(monkeypatch):
    local, device = dataset(), SimulatedInterface()
    taken = iter(loader_of(halves(local), device, by_copies=True))

    take, arrived = CopiedBatch.take, []

    def third_fails(*arguments, **options):
        if len(arrived) == 2:
            raise RuntimeError("cudaEventQuery failed: unspecified launch failure")
        found = take(*arguments, **options)  # None where the rows are still on their way, and nobody waits
        arrived.extend([found] * (found is not None))
        return found

    monkeypatch.setattr(CopiedBatch, "take", third_fails)
    first, second = ({name: device.read(value)() for name, value in next(taken).items()} for _ in range(2))
    assert same([[*first.values()], [*second.values()]], expected_of(local)[:2])
    with pytest.raises(memload.DeviceError, match="a kernel was ended by the driver"):
        next(taken)


def test_a_stopped_pass_goes_on_the_other_way():
    local, device = dataset(), SimulatedInterface()
    parts, whole = halves(local), expected_of(local)
    for first, second in ((True, False), (False, True)):
        stopped = loader_of(parts, device, by_copies=first)
        taken = iter(stopped)
        before = [[device.read(value)() for value in next(taken).values()] for _ in range(7)]
        state = json.loads(json.dumps(stopped.state_dict()))
        resumed = loader_of(parts, device, by_copies=second)
        resumed.load_state_dict(state)
        assert same([*before, *read_all(device, resumed)[0]], whole)


@pytest.mark.parametrize("way", ["files", "kernel", "copy engine"])
def test_the_end_of_a_pass_waits_for_no_kernel_of_the_loop(way):
    local, device = dataset(), SimulatedInterface(loop=(60_000_000, 60_000_000))  # microseconds of a kernel that hangs
    by_copies = None if way == "files" else way == "copy engine"
    loader = loader_of(local if way == "files" else halves(local), device, by_copies=by_copies)
    batches = iter(loader)
    next(batches)
    hung = device.record(device.current())
    batches.close()
    loader.close()
    assert not device.done(hung)
    assert device.simulated.pinned_bytes == 0


def test_slots_are_kept_between_passes_with_persistent_workers():
    device, parts = SimulatedInterface(), halves(dataset())
    loader = loader_of(parts, device, by_copies=True, num_workers=1, persistent_workers=True)
    registered = []
    for _ in range(4):
        assert len([*loader]) == len(loader)
        registered.append(device.simulated.counts["register"])
    assert registered[1:] == registered[1:2] * 3
    loader.close()
    assert device.simulated.pinned_bytes == 0


def test_fields_that_lie_differently_are_copied_apart_and_windows_left_to_the_kernel():
    images, device = dataset(rows=30, seed=1), SimulatedInterface()
    trials = images.select(torch.randint(0, 30, (60,), generator=torch.Generator().manual_seed(2)))
    sets = {
        "a": trials.rename({"stim": "image"}),
        "b": dataset(rows=60, seed=3).only("stim"),
        "c": memload.from_arrays(movie(63)).with_lags(stim=range(4)).rename({"stim": "lagged"}),
    }
    zipped = memload.zip(**sets)
    parts = memload.to_device(zipped, "cpu", bytes=zipped.nbytes // 3)
    loader = loader_of(parts, device, by_copies=True)
    groups = transfer_of(loader).groups
    assert len(groups) > 1
    assert all(column.index.steps is None for group in groups for column in group.columns)
    read, _ = read_all(device, loader)
    expected = loader_of(zipped)
    assert same(read, [[*tensors_of(batch)] for batch in expected])


def test_forked_processes_which_do_not_have_the_rows_are_told_so():
    parts = halves(dataset())
    assert refused_in_fork(lambda: next(iter(loader_of(parts, SimulatedInterface(), by_copies=True)))) == 1


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_native_code_finds_the_numbers_that_index_arithmetic_finds(data):
    frames = data.draw(st.integers(1, 30))
    begins = data.draw(st.none() | st.lists(st.integers(0, frames - 1), min_size=1, max_size=40))
    index = FrameIndex(range(frames) if begins is None else np.array(begins))
    if begins is not None and data.draw(st.booleans()):
        index = FrameIndex(index.begins, None, np.random.default_rng(0).permutation(frames))
    rows = np.array(data.draw(st.lists(st.integers(0, index.rows - 1), max_size=20)), dtype=np.int64)
    assert native_index(index).numbers(rows).tolist() == index.numbers(rows).tolist()
    windows = FrameIndex(range(frames), steps=(0, 1))
    found = HostNumbers([index, windows]).of(rows[rows < frames])
    assert {k: v.tolist() for k, v in found.items()} == {
        k: v.tolist() for k, v in host_numbers([index, windows], rows[rows < frames]).items()
    }
    for bad in (-1, index.rows):
        with pytest.raises(IndexError, match=f"row {bad} is not one of the {index.rows} rows"):
            native_index(index).numbers(np.array([bad]))


@pytest.mark.parametrize("given", [1, 4, 64])
def test_a_batch_with_more_rows_than_buffers_are_made_for_is_left_to_the_kernel(given):
    local, device = dataset(), SimulatedInterface()
    parts = halves(local)
    sampler = [[0, 90], [*range(30, 30 + given)], [95, 2], [7, 7, 91]]
    options = {"batch_size": 1, "shuffle": False, "generator": None, "batch_sampler": LateSampler(sampler)}
    assert transfer_of(loader_of(parts, device, by_copies=True, **options)).options.batch_rows == 1
    read, _ = read_all(device, loader_of(parts, device, by_copies=True, **options))
    assert same(read, expected_of(local, **options))
    assert device.simulated.violations == []


class LateSampler:
    """A batch sampler whose batches are not known before it is iterated."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)

    def __len__(self):
        return len(self._batches)


def test_small_batches_are_begun_several_at_a_time_once_the_copy_engine_is_chosen():
    parts, device = halves(dataset()), SimulatedInterface()
    loader = loader_of(parts, device)
    plan = transfer_of(loader)
    assert plan.ahead == AHEAD  # while both ways are compared
    plan.choice.by_copies = True
    assert plan.ahead == batches_ahead(1 << 20) > AHEAD == batches_ahead((1 << 20) + 1)


def test_what_arrives_is_counted_among_the_memory_of_the_device():
    parts, device, taken = halves(dataset()), SimulatedInterface(), []
    empty = device.empty
    device.empty = lambda nbytes, stream: taken.append((nbytes, stream)) or empty(nbytes, stream)
    loader = loader_of(parts, device, by_copies=True, cast=CAST)
    batch = 4 * (2 * 700 + 4 * 150 + 8)
    counted = loader.device_nbytes
    assert len([*loader]) == len(loader)
    arriving = sum(nbytes for nbytes, stream in taken if stream == device.copies)
    assert arriving == transfer_of(loader).device_bytes > 0
    assert counted == arriving + 4 * batch
    choice_of(loader).by_copies = False
    assert loader.device_nbytes == 4 * batch


def test_batches_without_rows_in_ram_are_not_copied():
    local, device = dataset(), SimulatedInterface()
    parts = halves(local)
    options = {"shuffle": False, "generator": None}
    read, _ = read_all(device, loader_of(parts, device, by_copies=True, **options))
    assert same(read, expected_of(local, **options))
    assert 0 < device.simulated.counts["copy"] < len(read)
