"""Data that lies nearer: the same batches as from files, by arithmetic on rows that a device gathers itself."""

import contextlib
import gc
import json
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from children import refused_in_fork
from hypothesis import given, settings
from hypothesis import strategies as st
from same_rows import batches, movie, read_from, reorderings, same
from simulated import SimulatedInterface
from strategies import field_sets, random_tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, WeightedRandomSampler

import memload
from memload.device import pinned_memory
from memload.device.frames import FrameIndex, frames_of
from memload.device.loading import does_not_fit
from memload.device.pinned_memory import PinnedMemory, Reads, _unpin, resident_fields
from memload.device.resident import ResidentColumn
from memload.device.resident_batches import ResidentBatches
from memload.engine.readers import resolve
from memload.engine.settings import BatchSizes
from memload.engine.transforms.seeding import PassSeed

CPU = torch.device("cpu")


def resident_and_local(arrays=None, **changes):
    local = memload.from_arrays(movie(**changes) if arrays is None else arrays)
    return memload.to_device(local, "cpu"), local


@given(field_sets(), reorderings(), reorderings(), st.booleans(), st.booleans(), st.integers(1, 7))
@settings(max_examples=30)
def test_batches_are_those_from_files_whatever_is_selected_before_and_after(
    arrays, before, after, shuffle, drop_last, batch_size
):
    local = memload.from_arrays(arrays)
    for step in before:
        local = step(local)
    moved = memload.to_device(local, "cpu")
    for step in after:
        moved, local = step(moved), step(local)
    arguments = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    assert same(batches(moved, **arguments), batches(local, **arguments))


@given(field_sets(), reorderings(), reorderings(), st.booleans())
@settings(max_examples=20)
def test_data_in_pinned_memory_is_the_same_to_the_cpu_and_to_the_device_that_gathers_it(arrays, before, after, shuffle):
    local = memload.from_arrays(arrays)
    for step in before:
        local = step(local)
    pinned = memload.to_device(local, "cpu", tier="pinned")
    for step in after:
        pinned, local = step(pinned), step(local)
    expected = batches(local, shuffle=shuffle)
    assert same(batches(pinned, shuffle=shuffle), expected)
    seen = resident_fields(pinned.fields, CPU)
    assert seen is not None
    assert same(batches(memload.Dataset(seen), shuffle=shuffle), expected)


def mapping_flags(address):
    """The flags that the kernel shows for the mapping of an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        here = int(bounds[1], 16) <= address < int(bounds[2], 16) if bounds else here
        if here and line.startswith("VmFlags:"):
            return line.split()
    return []


def test_rows_in_pinned_memory_are_withheld_from_forked_processes_which_are_told_so():
    pinned = memload.to_device(memload.from_arrays(movie(400)), "cpu", tier="pinned")
    memories = [field.memory for field in pinned.fields.values()]
    assert all("dc" in mapping_flags(memory.table.data_ptr()) for memory in memories)
    joined = memload.from_arrays(movie(9)).concat(pinned).with_lags(stim=range(2))

    def let_go():
        nonlocal pinned, joined, memories
        del pinned, joined, memories
        gc.collect()

    first = lambda: next(iter(memload.FastLoader(joined, 2)))  # noqa: E731
    assert refused_in_fork(lambda: pinned[0], lambda: joined[0], first, let_go) == 3
    assert same(batches(pinned), batches(memload.from_arrays(movie(400))))


@pytest.mark.filterwarnings("ignore:windows of")  # of rows in any order
def test_windows_of_pinned_memory_are_gathered_frame_by_frame():
    local = memload.from_arrays(movie())
    pinned = memload.to_device(local, "cpu", tier="pinned")
    for cut in (
        lambda ds: ds.with_lags(stim=range(5)),
        lambda ds: ds.with_lags(stim=[-2, 0, 3]).select([9, 1, 1]),
        lambda ds: ds.select([*range(30), 3]).with_lags(stim=[1, 0]),
        lambda ds: ds.windows(window=4, hop=3),
    ):
        for ds in (cut(pinned), memload.to_device(cut(local), "cpu", tier="pinned")):
            assert same(batches(ds), batches(cut(local)))
            assert same(batches(memload.Dataset(resident_fields(ds.fields, CPU))), batches(cut(local)))


def test_what_is_joined_of_several_memories_goes_through_the_ring():
    one, two = (memload.to_device(memload.from_arrays(movie(seed=seed)), "cpu", tier="pinned") for seed in (1, 2))
    joined = one.concat(two)
    assert resident_fields(joined.fields, CPU) is None
    assert resident_fields(one.fields, torch.device("cuda", 0)) is None
    assert same(batches(joined), batches(memload.from_arrays(movie(seed=1)).concat(memload.from_arrays(movie(seed=2)))))


@pytest.mark.parametrize("native", [False, True])
def test_a_device_gathers_rows_in_ram_that_is_pinned_for_it_and_the_loader_says_so(native):
    interface, local, called = SimulatedInterface(native=native), memload.from_arrays(movie()), []

    def transform(batch):
        called.append(batch)
        return batch

    pinned = memload.to_device(local, "cpu", tier="pinned")
    loader = memload.FastLoader(pinned, batch_size=4, device=interface, batch_transform=transform)
    assert "pinned for cpu, which gathers batches out of it by itself" in loader.why
    for _ in range(2):
        assert same(read_from(interface, loader), batches(local))
    assert len(called) == 20
    assert interface.simulated.counts.get("copied_bytes", 0) == 0
    assert loader.nbytes < memload.FastLoader(local, batch_size=4, device=interface).nbytes / 2


def test_functions_of_samples_get_rows_in_pinned_ram_on_the_cpu_as_they_get_rows_in_files():
    interface, local = SimulatedInterface(), memload.from_arrays(movie())
    pinned = memload.to_device(local, "cpu", tier="pinned").map(dict)
    loader = memload.FastLoader(pinned, batch_size=4, device=interface)
    assert "functions of samples run on the CPU" in loader.why
    assert same(read_from(interface, loader), batches(local))
    assert interface.simulated.counts["copied_bytes"] >= local.nbytes


@given(st.data())
@settings(max_examples=25)
@pytest.mark.filterwarnings("ignore:windows of")  # of rows in any order
def test_lags_and_windows_are_the_same_before_and_after(data):
    local = memload.from_arrays(movie())
    chosen = data.draw(st.lists(st.integers(0, 39), min_size=30, max_size=50))
    if data.draw(st.booleans()):
        local = local.select(chosen)
    lags = data.draw(st.lists(st.integers(-3, 5), min_size=1, max_size=5))
    segments = data.draw(st.none() | st.just([(0, 12), (14, 29)]))
    if data.draw(st.booleans()):
        cut = lambda ds: ds.with_lags(stim=lags, segments=segments)  # noqa: E731
    else:
        cut = lambda ds: ds.windows("stim", window=len(lags), hop=2, segments=segments)  # noqa: E731
    again = data.draw(st.permutations(range(len(cut(local)))))
    expected = batches(cut(local).select(again))
    assert same(batches(cut(memload.to_device(local, "cpu")).select(again)), expected)
    assert same(batches(memload.to_device(cut(local), "cpu").select(again)), expected)
    assert same(batches(memload.to_device(cut(local).select(again), "cpu")), expected)


def test_frames_are_stored_once_and_only_those_that_a_row_has():
    local = memload.from_arrays(movie(frames=1000))
    for ds, frames in (
        (local.with_lags(stim=range(32)), 1000),
        (local.windows("stim", window=32, hop=4), 1000),
        (local.with_lags(stim=[0, 7]).select([0, 1]), 4),
        (local.select([3] * 50 + [9]), 2),
    ):
        assert memload.to_device(ds, "cpu").fields["stim"].column.table.shape == (frames, 6)


def test_samplers_states_and_stops_are_those_of_files():
    moved, local = resident_and_local()
    weights = torch.rand(40)
    for sampler in (
        lambda: RandomSampler(range(40), generator=torch.Generator().manual_seed(5)),
        lambda: WeightedRandomSampler(weights, 30, generator=torch.Generator().manual_seed(5)),
        lambda: [3, 1, 4, 1, 5],
    ):
        assert same(batches(moved, sampler=sampler()), batches(local, sampler=sampler()))
    unknown = [[1, 2], [39], [0, 0, 0]]
    assert same(
        batches(moved, batch_size=1, batch_sampler=unknown), batches(local, batch_size=1, batch_sampler=unknown)
    )
    sampled = BatchSampler(SequentialSampler(moved), 7, drop_last=True)
    assert same(
        batches(moved, batch_size=1, batch_sampler=sampled), batches(local, batch_size=1, batch_sampler=sampled)
    )


@pytest.mark.parametrize("first", [0, 1])
def test_a_state_goes_from_files_to_the_device_and_back(first):
    both = resident_and_local()

    def loader(ds):
        return memload.FastLoader(ds, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(2))

    expected = [*loader(both[0])]
    stopped = loader(both[first])
    taken = iter(stopped)
    before = [next(taken), next(taken)]
    state = json.loads(json.dumps(stopped.state_dict()))
    going_on = loader(both[1 - first])
    going_on.load_state_dict(state)
    assert same([*before, *going_on], expected)


def test_casts_views_and_transforms_give_the_same_bits():
    moved, local = resident_and_local()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        cast = {"stim": memload.Cast(dtype, norm_removed=True)}
        assert same(batches(moved, cast=cast), batches(local, cast=cast))
        cut = [ds.with_lags(stim=[0, 3, -1]).select([7, 0, 7, 30]) for ds in (moved, local)]
        assert same(batches(cut[0], cast=cast), batches(cut[1], cast=cast))
    view = [memload.Float32View(ds, norm_removed=True) for ds in (moved, local)]
    assert same(batches(view[0]), batches(view[1]))
    noisy = {"batch_transform": lambda batch: {**batch, "noise": torch.rand(3)}, "shuffle": True}
    assert same(batches(moved, **noisy), batches(local, **noisy))


def test_layouts_zips_subsets_and_stock_loaders_work():
    moved, local = resident_and_local()
    images = memload.to_device(memload.from_arrays(image=torch.arange(5)), "cpu")
    zipped = memload.zip(movie=moved, image=images.select([0, 4] * 20))
    assert [*zipped.fields] == ["stim", "robs", "image"]
    assert batches(zipped)[0]["image"].tolist() == [0, 4, 0, 4]
    assert same(batches(moved.as_tuple("robs", "stim")), batches(local.as_tuple("robs", "stim")))
    assert same(batches(moved.only("stim")), batches(local.only("stim")))
    assert same(batches(Subset(moved, [5, 1, 3])), batches(Subset(local, [5, 1, 3])))
    assert same(moved[-1], local[-1])
    assert same([*DataLoader(moved, batch_size=3)], [*DataLoader(local, batch_size=3)])
    assert moved.stats().rows == 40


def test_joined_datasets_keep_their_names():
    joined = memload.concat({"a": memload.from_arrays(x=torch.arange(3)), "b": memload.from_arrays(x=torch.arange(5))})
    moved = memload.to_device(joined, "cpu")
    assert moved.rows_by_name() == {"a": range(3), "b": range(3, 8)}
    assert moved[4] == {"x": 1, "dataset_idx": 1}
    assert type(moved[4]["dataset_idx"]) is int
    assert same(batches(moved), batches(joined))


def test_it_can_be_written_to_files_again(tmp_path):
    moved, local = resident_and_local()
    assert same(batches(memload.write(tmp_path / "shards", moved)), batches(local))


def test_images_are_cropped_and_laid_out_as_from_files():
    arrays = {"image": random_tensor(torch.uint8, (30, 9, 8, 3), 0), "mask": random_tensor(torch.uint8, (30, 9, 8), 1)}
    moved, local = resident_and_local(arrays)
    crop = memload.Augment(crop=(5, 4), flip=0.5)
    cast = {
        "image": memload.Cast(torch.float32, scale=1 / 255, channels=-1, layout="NCHW", augment=crop),
        "mask": memload.Cast(torch.float32, augment=crop),
    }
    torch.default_generator.manual_seed(0)
    found = [*memload.FastLoader(moved, 7, shuffle=True, cast=cast)]
    torch.default_generator.manual_seed(0)
    assert same(found, [*memload.FastLoader(local, 7, shuffle=True, cast=cast)])


@pytest.mark.parametrize("tier", ["device", "pinned"])
def test_the_tier_is_chosen_where_others_are(tier, tmp_path):
    memload.write(tmp_path / "shards", movie())
    moved, local = memload.open(tmp_path / "shards", tier=tier, device="cpu"), memload.open(tmp_path / "shards")
    assert moved.tier is moved.select([3, 1]).tier is memload.Tier(tier)
    assert same(batches(moved), batches(local))
    assert same(batches(local.with_tier(tier, device="cpu")), batches(local))


def test_counters_tell_what_was_read_and_written():
    moved, local = resident_and_local()
    cast = {"stim": memload.Cast(torch.bfloat16)}
    told = []
    for ds in (moved, local):
        loader = memload.FastLoader(ds, 4, cast=cast)
        assert len([*loader]) == 10
        told.append((loader.stats().batches, loader.stats().rows, loader.stats().bytes_in, loader.stats().bytes_out))
    assert told[0] == told[1]
    assert moved.nbytes == local.nbytes == 40 * (6 + 16)


def test_an_error_of_a_transform_ends_no_pass_and_a_row_that_is_not_there_is_named():
    moved, local = resident_and_local()

    def refuse_the_first(batch):
        if batch["stim"][0, 0, 0] == moved[0]["stim"][0, 0]:
            raise ValueError("the first")
        return batch

    taken = iter(memload.FastLoader(moved, batch_size=4, batch_transform=refuse_the_first))
    with pytest.raises(ValueError, match="the first"):
        next(taken)
    assert same(next(taken), batches(local)[1])
    with pytest.raises(IndexError, match="row 40 is not one of the 40 rows"):
        next(iter(memload.FastLoader(moved, batch_sampler=[[0, 40]])))


@pytest.mark.parametrize("dtype", ["i1", "i4", "u4", "i8"])
def test_row_numbers_of_any_integers_are_those_of_a_field_in_files(dtype):
    moved, local = resident_and_local()
    rows = np.array([1, 0, 39], dtype)
    for name, field in moved.fields.items():
        assert torch.equal(field.gather(rows).cpu(), local.fields[name].gather(rows))
    with pytest.raises(IndexError, match="row 40 is not one of the 40 rows"):
        moved.fields["stim"].gather(np.array([1, 40], dtype))
    with pytest.raises(TypeError, match="float64"):
        moved.fields["stim"].gather(np.array([1.5]))


def test_an_error_of_a_collate_function_of_whole_batches_ends_no_pass_and_stays_as_it_is():
    moved, _ = resident_and_local(frames=8)
    near_robs = movie(8)["robs"]

    def collate(batch):
        if torch.equal(batch["robs"], near_robs[:4]):
            raise RuntimeError("of ours, though torch raises this type for its own")
        return len(batch)

    source = replace(resolve(moved), collate=collate)
    taken = ResidentBatches(source, BatchSizes(4, 4, 8), transform=lambda fields: -fields)
    taken.begin(PassSeed(0))
    taken.extend(np.arange(8))
    taken.finish()
    with pytest.raises(RuntimeError, match=r"^of ours"):
        taken.next(0.0).result()
    assert taken.next(0.0).result() == -2
    assert taken.next(0.0) is None


def test_what_cannot_lie_there_is_refused_in_words(tmp_path):
    moved, local = resident_and_local()
    with pytest.raises(ValueError, match="'tokens' differ in length"):
        memload.to_device(memload.from_arrays(tokens=memload.ragged([torch.arange(3)])), "cpu")
    with pytest.raises(ValueError, match="is on cpu already"):
        memload.to_device(moved, "cpu")
    with pytest.raises(TypeError, match=r"got a list.*memload.from_arrays"):
        memload.to_device([1, 2], "cpu")
    with pytest.raises(ValueError, match=r"'robs': files or arrays.*memload.to_device"):
        memload.zip(stim=moved.only("stim"), robs=local.only("robs"))
    with pytest.raises(ValueError, match="join the datasets first"):
        moved.concat(memload.to_device(local, "cpu"))
    with pytest.raises(ValueError, match=r"'stim': the rows are windows already.*cut both kinds of windows in files"):
        moved.with_lags(stim=range(2)).with_lags(stim=range(2))
    with pytest.raises(TypeError, match=r"call memload\.to_device there"):
        pickle.dumps(moved)
    with pytest.raises(ValueError, match="batch_transform="):
        next(iter(memload.FastLoader(moved.map(lambda sample: sample), batch_size=2)))


def test_what_does_not_fit_is_refused_before_a_byte_moves():
    endless = memload.from_arrays(x=torch.zeros(1).expand(2**50))
    with pytest.raises(memload.MemorySpaceError, match=r"4.5e\+03 TB|4,504 TB"):
        memload.to_device(endless, "cpu")
    told = does_not_fit({"stim": 226 * 10**9, "robs": 10**9}, "cuda:0", 150 * 10**9, 141 * 10**9)
    assert told.startswith(
        "227 GB of rows (stim 226 GB, robs 1 GB) do not fit on cuda:0: 141 GB of 150 GB are available."
    )


def test_rows_that_lie_apart_in_memory_or_are_decoded_come_whole(tmp_path):
    arrays = {"x": np.arange(600, dtype=np.int16).reshape(100, 6)[::2, 1:3]}
    local = memload.from_arrays(arrays)
    assert same(batches(memload.to_device(local, "cpu")), batches(local))
    coded = memload.write(tmp_path / "shards", local, codec="lz4")
    assert same(batches(memload.to_device(coded.select([9, 9, 1]), "cpu")), batches(coded.select([9, 9, 1])))


def test_the_frames_of_overlapping_rows_are_taken_apart():
    local = memload.from_arrays(movie()).windows("stim", window=5, hop=2)
    frames, index = frames_of(local.fields["stim"])
    assert (frames.shape, frames.rows, index.steps) == ((3, 2), 39, (0, 1, 2, 3, 4))
    assert index.begins.tolist() == [*range(0, 36, 2)]


def test_words_of_every_width_are_gathered_as_they_are():
    for width in range(1, 18):
        table = random_tensor(torch.uint8, (7, width), width)
        rows = np.array([6, 0, 0, 3])
        assert torch.equal(
            ResidentColumn(table, FrameIndex(np.arange(7))).gathered(rows), table[torch.from_numpy(rows)]
        )


class Told(ResidentColumn):
    """Rows that note when they are read."""

    def was_read(self):
        READS.append(len(self.table))


READS = []


def test_each_read_of_rows_on_a_device_is_told_so_that_their_memory_stays_until_it_is_done():
    moved, _ = resident_and_local({"x": random_tensor(torch.uint8, (40, 6), 0)})
    field = moved.fields["x"]
    told = replace(field, column=Told(field.column.table, field.column.index))
    pairs = replace(told, shape=(2, 6), column=told.column.windows([0, 1], [(0, 39, 1)]))
    cast, late = memload.Cast(torch.float32, norm_removed=True), memload.Cast(torch.float64)
    for ds, options in (
        (memload.Dataset({"x": told}), {}),
        (memload.Dataset({"x": told}), {"cast": {"x": cast}}),
        (memload.Dataset({"x": told}), {"cast": {"x": late}}),
        (memload.Dataset({"x": pairs}), {"cast": {"x": cast}}),
    ):
        READS.clear()
        assert len(batches(ds, batch_size=13, drop_last=True, **options)) == len(READS) == 3
    READS.clear()
    ds = memload.Dataset({"x": told})
    assert torch.equal(ds[3]["x"], moved[3]["x"])
    told.gather(np.array([1, 2]))
    here = torch.empty(6, dtype=torch.uint8)
    told.column.gather(np.array([1]), here.data_ptr(), here.nbytes)
    assert torch.equal(here, moved[1]["x"])
    assert len(READS) == 3


@pytest.mark.parametrize("moved", [0, 4096, None])
def test_pinned_memory_is_seen_by_a_device_that_reads_it_at_its_own_address(monkeypatch, moved):
    memory = PinnedMemory(3, 5, CPU)
    memory.device, asked = torch.device("cuda", 1), []

    def mapped_address(address, device):
        asked.append(device)
        if moved is None:
            raise RuntimeError("cudaHostGetDevicePointer failed: cudaErrorInvalidValue (invalid argument)")
        return address + moved

    module = SimpleNamespace(mapped_address=mapped_address)
    monkeypatch.setattr(pinned_memory, "cuda_module", lambda: module)  # there is no GPU to ask
    monkeypatch.setattr(torch, "as_tensor", lambda given, device: memory.table)
    assert (memory.seen() is memory.table) == (moved == 0)
    assert asked == [1]


def there_is_a_gpu(monkeypatch, native):
    """Let torch know a GPU, where there is none to ask, as native code calls it: its functions."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(pinned_memory, "native_device", lambda index: native)


@pytest.mark.parametrize("lost", [False, True])
def test_memory_that_a_device_may_still_read_stays_pinned(monkeypatch, lost):
    """Where a wait is refused, nobody knows; after a failed kernel nothing reads any more."""
    kept, unpinned, reads = [], [], Reads()

    def refused():
        raise memload.DeviceError(
            f"cudaEventSynchronize failed: {'cudaErrorIllegalAddress' if lost else 'cudaErrorStreamCaptureUnsupported'}"
        )

    there_is_a_gpu(monkeypatch, SimpleNamespace(unregister_host=unpinned.append))
    monkeypatch.setattr(pinned_memory, "_STILL_READ", kept)
    table = torch.zeros(4, dtype=torch.uint8)
    reads._last = {(0, 1): refused, (0, 2): lambda: None}
    _unpin(CPU, table, reads, os.getpid())
    assert (kept, unpinned) == (([], [table.data_ptr()]) if lost else ([table], []))


def test_pinned_memory_goes_back_after_every_stream_that_reads_it_and_not_in_a_forked_child(monkeypatch):
    order, reads = [], Reads()
    there_is_a_gpu(monkeypatch, SimpleNamespace(unregister_host=order.append))
    reads._last = {(0, k): lambda k=k: order.append(f"stream {k}") for k in (1, 2)}
    table = torch.zeros(4, dtype=torch.uint8)
    _unpin(CPU, table, reads, os.getpid() + 1)
    assert order == []
    _unpin(CPU, table, reads, os.getpid())
    assert order == ["stream 1", "stream 2", table.data_ptr()]
