"""Rows of which some lie in a device's memory and the others in pinned RAM: batches are those from files."""

import gc
import json
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from children import refused_in_fork
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_by_address import kernels_in_python
from late_reading import SLOW, is_caught, shows
from same_rows import batches, movie, read_from, reorderings, same
from simulated import SimulatedInterface
from strategies import field_sets, random_tensor
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

import memload
from memload.device import gathering, kernels, split_tier
from memload.device.batch_maker import BatchMaker
from memload.device.frames import FrameIndex
from memload.device.gathered_ahead import GatheredAhead
from memload.device.placing import Placer
from memload.device.shares import Table, checked_weights, dealt_out, frames_on_devices, frequencies, renumbered
from memload.device.split_rows import SplitRows, parts_of
from memload.device.split_tier import SplitColumn, gathered_by, loaded_in_parts
from memload.engine.readers import resolve
from memload.engine.transforms.seeding import PassSeed

CPU = torch.device("cpu")


def split(ds, nbytes, *, devices=1, weights=None):
    """A dataset over the memory of so many devices, which are all the CPU here, and pinned RAM."""
    return replace(ds, fields=loaded_in_parts(ds.fields, [CPU] * devices, nbytes, weights))


def row_bytes(ds):
    return sum(field.row_bytes for field in ds.fields.values())


@given(st.data(), field_sets(), reorderings(), reorderings(), st.booleans(), st.integers(1, 3))
@settings(max_examples=40)
def test_batches_are_those_from_files_wherever_rows_lie(data, arrays, before, after, shuffle, devices):
    local = memload.from_arrays(arrays)
    for step in before:
        local = step(local)
    least, most = row_bytes(local), max(row_bytes(local), local.nbytes)
    nbytes = data.draw(st.none() | st.integers(least, most)) if least else None
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    weights = random.random(len(local)) if data.draw(st.booleans()) else None
    parts = split(local, nbytes, devices=devices, weights=weights)
    for step in after:
        parts, local = step(parts), step(local)
    assert same(batches(parts, shuffle=shuffle), batches(local, shuffle=shuffle))


@given(st.data())
@settings(max_examples=25)
def test_lags_and_windows_are_the_same_before_and_after(data):
    local = memload.from_arrays(movie())
    lags = data.draw(st.lists(st.integers(-3, 5), min_size=1, max_size=5))
    if data.draw(st.booleans()):
        cut = lambda ds: ds.with_lags(stim=lags)  # noqa: E731
    else:
        cut = lambda ds: ds.windows("stim", window=len(lags), hop=2)  # noqa: E731
    nbytes = data.draw(st.integers(row_bytes(cut(local)), local.nbytes))  # of the rows of all fields, once they are cut
    cast = data.draw(st.sampled_from([None, {"stim": memload.Cast(torch.bfloat16, norm_removed=True)}]))
    expected = batches(cut(local), shuffle=True, cast=cast)
    assert same(batches(cut(split(local, nbytes)), shuffle=True, cast=cast), expected)
    weights = np.arange(len(cut(local))) % 7 if data.draw(st.booleans()) else None
    assert same(batches(split(cut(local), nbytes, weights=weights), shuffle=True, cast=cast), expected)


def test_casts_crops_and_transforms_give_the_same_bits():
    arrays = {"image": random_tensor(torch.uint8, (30, 9, 8, 3), 0), "mask": random_tensor(torch.uint8, (30, 9, 8), 1)}
    local = memload.from_arrays(arrays)
    crop = memload.Augment(crop=(5, 4), flip=0.5)
    options = {
        "cast": {
            "image": memload.Cast(torch.float32, scale=1 / 255, channels=-1, layout="NCHW", augment=crop),
            "mask": memload.Cast(torch.float32, augment=crop),
        },
        "batch_transform": lambda batch: {**batch, "noise": torch.rand(3)},
        "shuffle": True,
    }
    assert same(batches(split(local, 3000), **options), batches(local, **options))


def test_samplers_and_states_are_those_of_files():
    local = memload.from_arrays(movie())
    weights = torch.rand(40)
    parts = split(local, local.nbytes // 3, weights=weights)
    for sampler in (
        lambda: RandomSampler(range(40), generator=torch.Generator().manual_seed(5)),
        lambda: WeightedRandomSampler(weights, 30, generator=torch.Generator().manual_seed(5)),
        lambda: memload.WeightedSampler(weights, seed=3),
        lambda: [3, 1, 4, 1, 5],
    ):
        assert same(batches(parts, sampler=sampler()), batches(local, sampler=sampler()))
    for first, second in ((parts, local), (local, parts)):
        stopped, resumed, whole = (
            memload.FastLoader(ds, 6, shuffle=True, generator=torch.Generator().manual_seed(2))
            for ds in (first, second, local)
        )
        taken = iter(stopped)
        before = [next(taken), next(taken)]
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert same([*before, *resumed], [*whole])


def test_stock_loaders_samples_and_zips_work():
    local = memload.from_arrays(movie())
    parts = split(local, 500)
    assert same(parts[-1], local[-1])
    assert same([*DataLoader(parts, batch_size=3)], [*DataLoader(local, batch_size=3)])
    images = memload.to_device(memload.from_arrays(image=torch.arange(40)), "cpu")
    zipped = memload.zip(movie=parts, image=images)
    for batch, other in zip(batches(zipped), batches(local), strict=True):
        assert same({name: batch[name] for name in other}, other)


@pytest.mark.parametrize("ahead", [False, True])
def test_the_tier_is_chosen_where_others_are(ahead, tmp_path):
    memload.write(tmp_path / "shards", movie(), progress=False)
    local = memload.open(tmp_path / "shards")
    nbytes = local.nbytes // 2
    for parts in (
        memload.open(tmp_path / "shards", tier="split", device="cpu", device_bytes=nbytes),
        local.with_tier("split", device="cpu", device_bytes=f"{nbytes} B"),
        memload.to_device(local, "cpu", bytes=nbytes),
        memload.to_device(local, "cpu", tier="split", bytes=nbytes),
    ):
        assert parts.tier is parts.select([3, 1]).tier is memload.Tier.SPLIT
        options = {"device": SimulatedInterface()} if ahead else {}
        loader = memload.FastLoader(parts, 4, **options)
        expected = batches(local)
        found = read_from(options["device"], loader) if ahead else [*loader]
        assert same(found, expected)
    assert "on cpu (440 B) and in pinned RAM (440 B)" in repr(memload.to_device(local, "cpu", bytes=440))


class Without(SimulatedInterface):
    """A device that leaves one kind of call out, at one of its streams."""

    def __init__(self, call, stream, **late):
        super().__init__(**late)
        self.left_out, self._out = 0, (call, getattr(self, stream) if stream else self.current())

    def _leaves(self, call, stream):
        out = (call, stream) == self._out
        self.left_out += out
        return out

    def wait(self, stream, event):
        if not self._leaves("wait", stream):
            super().wait(stream, event)

    def record(self, stream):
        return super().record(self.simulated.add_stream(0, 0) if self._leaves("record", stream) else stream)

    def hold(self, tensor, stream):
        if not self._leaves("hold", stream):
            super().hold(tensor, stream)


@pytest.mark.parametrize("tier", ["split", "pinned"])
@pytest.mark.parametrize(
    ("call", "stream", "late"),
    [
        ("wait", None, {"work": SLOW, "loop": (0, 0)}),  # the loop for the gather
        ("record", "work", {"work": SLOW, "loop": (0, 0)}),
        ("hold", None, {"work": (0, 0), "loop": SLOW}),  # what the loop still reads
    ],
)
def test_a_step_that_is_left_out_shows(tier, call, stream, late):
    local = memload.from_arrays(movie())
    given = {"bytes": 400} if tier == "split" else {"tier": tier}
    expected = batches(local)

    def is_caught_on(interface):
        resident = memload.to_device(local, "cpu", **given)
        return is_caught(interface, memload.FastLoader(resident, 4, device=interface), expected)

    def is_caught_without(late):
        careless = Without(call, stream, **late)
        caught = is_caught_on(careless)
        assert careless.left_out
        return caught

    assert shows(is_caught_without, late)
    assert not is_caught_on(SimulatedInterface(**late))


class Watched(SimulatedInterface):
    """A device whose kernels read some memory late."""

    tables = ()

    def launch(self, stream, fn, *args):
        made = super().launch(stream, fn, *args)
        for table in self.tables:
            self.simulated.watch(table.data_ptr(), table.nbytes, stream)
        return made


class Told(SplitColumn):
    """Rows in memory of a simulated device, which is held until their gather is done, but for one part."""

    interface, left_out = None, None

    def was_read(self):
        for number, table in enumerate(parts_of(self.table)):
            if number != self.left_out:
                self.interface.hold(table, self.interface.work)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("freed", [0, 1])
def test_each_memory_stays_until_the_gather_is_done(freed, tells):
    interface = Watched(work=(50_000, 50_000), loop=(0, 0))
    stored = random_tensor(torch.uint8, (8, 64), 0)
    tables = [interface.empty(256, interface.current()).view(4, 64).copy_(part) for part in stored.split(4)]
    field = split(memload.from_arrays(x=stored), 256).fields["x"]
    column = Told(SplitRows(tuple(tables), CPU), field.column.index, on_devices=tuple(tables))
    Told.interface, Told.left_out = interface, None if tells else freed
    make = BatchMaker(resolve(memload.Dataset({"x": replace(field, column=column)})))
    interface.tables = tables
    batch = Placer(interface).launch(make, np.arange(8), PassSeed(0))
    del column, make, tables[freed]  # the last that refers to this memory
    interface.wait(interface.current(), interface.record(interface.work))
    assert same(interface.read(batch["x"])(), stored)
    interface.synchronise(interface.record(interface.work))
    assert bool(interface.simulated.violations) != tells


@pytest.mark.parametrize("handle", [0, 99])
def test_each_memory_of_a_gpu_is_told_when_it_is_read(monkeypatch, handle):
    told, gpu = [], torch.device("cuda", 1)
    stream = SimpleNamespace(device=gpu, cuda_stream=handle)
    stand_in = SimpleNamespace(wait_stream=lambda other: told.append(("stands for", other)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)  # there is no GPU to ask
    monkeypatch.setattr(split_tier, "_stand_in", lambda device: stand_in)
    tables = tuple(
        SimpleNamespace(device=torch.device("cuda", k), record_stream=lambda stream, k=k: told.append((k, stream)))
        for k in (0, 1)
    )
    memory = SimpleNamespace(was_read=lambda device: told.append(("pinned", device)))
    table = SimpleNamespace(device=gpu)
    SplitColumn(table, FrameIndex(range(1)), on_devices=tables, memory=memory).was_read()
    other = [(0, stream)] if handle else [("stands for", stream), (0, stand_in)]  # torch would take it for cuda:0's own
    assert told == [*other, (1, stream), ("pinned", gpu)]


def test_the_next_batch_is_gathered_while_the_loop_works_on_one_and_raises_its_error_at_its_own_turn():
    interface = SimulatedInterface()
    parts = memload.to_device(memload.from_arrays(movie()), "cpu", bytes=400)
    loader = memload.FastLoader(parts, 1, batch_sampler=[[0, 1], [2, 3], [40], [4]], device=interface)
    taken = iter(loader)
    assert isinstance(taken.layers.gathers, GatheredAhead)
    assert [len(next(taken)["stim"]), len(next(taken)["stim"])] == [2, 2]
    with pytest.raises(IndexError, match="row 40 is not one of the 40 rows"):
        next(taken)
    assert loader.stats().batches == 2


def test_functions_of_batches_run_after_what_the_loop_has_queued():
    local, interface = memload.from_arrays(movie()), SimulatedInterface()
    parts = memload.to_device(local, "cpu", bytes=400)
    halved = lambda batch: {"half": batch["stim"] // 2}  # noqa: E731
    loader = memload.FastLoader(parts, 4, device=interface, batch_transform=halved)
    assert same(read_from(interface, loader), [{"half": batch["stim"] // 2} for batch in batches(local)])


def test_what_lies_in_the_devices_own_memory_is_not_gathered_ahead():
    local = memload.from_arrays(movie())
    for ds in (memload.to_device(local, "cpu"), memload.to_device(local, "cpu", bytes=local.nbytes)):
        taken = iter(memload.FastLoader(ds, 4, device=SimulatedInterface()))
        assert not isinstance(taken.layers.gathers, GatheredAhead)


def test_the_kernel_gets_each_memory_with_its_rows(monkeypatch):
    launched = kernels_in_python(monkeypatch)
    local = memload.from_arrays(movie())
    cast = {"stim": memload.Cast(torch.bfloat16, norm_removed=True)}
    for weights in (None, np.arange(40)):
        parts = split(local, 300, devices=2, weights=weights)
        assert same(batches(parts, shuffle=True, cast=cast), batches(local, shuffle=True, cast=cast))
        cut = parts.with_lags(stim=[0, 3])
        assert same(batches(cut, cast=cast), batches(local.with_lags(stim=[0, 3]), cast=cast))
    assert {tuple(rows for _, rows in parts) for parts in launched} == {(13, 13, 14)}


def test_what_a_kernel_needs_of_rows_is_worked_out_once(monkeypatch):
    kernels_in_python(monkeypatch)
    made, of = [], kernels.RowKernel.of
    monkeypatch.setattr(kernels.RowKernel, "of", staticmethod(lambda *given: made.append(given) or of(*given)))
    parts = split(memload.from_arrays(movie()), 300)
    loader = memload.FastLoader(parts, 4, shuffle=True)
    assert len(loader) > 1
    for _ in range(2):
        list(loader)
    assert len(made) == len(parts.fields)


@pytest.mark.parametrize("nbytes", [None, 300])
def test_what_is_known_of_rows_ends_with_them(monkeypatch, nbytes):
    """No cache keeps a device's memory, whether rows lie in one memory, as a tensor, or in several."""
    kernels_in_python(monkeypatch)
    known = set(gathering._WAYS._found)
    ds = memload.from_arrays(movie())
    near = memload.to_device(ds, "cpu", progress=False) if nbytes is None else split(ds, nbytes)
    table = near.fields["stim"].column.table
    assert isinstance(table, torch.Tensor) == (nbytes is None)
    tables = [weakref.ref(part) for part in parts_of(table)]
    assert same(batches(near), batches(ds))
    assert set(gathering._WAYS._found) > known
    gc.disable()
    try:
        assert None not in [one() for one in tables]
        del near, table
        assert [one() for one in tables] == [None] * len(tables)
        assert set(gathering._WAYS._found) <= known
    finally:
        gc.enable()


def test_fields_with_short_rows_come_first_and_the_others_share_what_is_left():
    tables = {"image": Table(1000, 30_000), "label": Table(1000, 8), "betas": Table(1000, 10_000)}
    assert frames_on_devices(tables, 4_008_000, 1) == {"image": 100, "label": 1000, "betas": 100}
    assert frames_on_devices(tables, 40_008_000, 1) == {"image": 1000, "label": 1000, "betas": 1000}
    assert frames_on_devices(tables, 40_007_999, 1) == {"image": 999, "label": 1000, "betas": 999}
    assert frames_on_devices(tables, None, 3) == {"image": 334, "label": 334, "betas": 334}
    with pytest.raises(ValueError, match=r"is 40 kB, which is less than one row of 40 kB \(image 30 kB, label 8 B"):
        frames_on_devices(tables, 40_007, 1)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 4), st.none() | st.lists(st.integers(0, 5), min_size=50))
def test_each_frame_lies_in_one_memory_and_what_is_read_most_on_the_devices(frames, each, devices, often):
    weights = None if often is None else np.array(often[:frames], dtype=np.float64)
    parts = dealt_out(frames, each, devices, weights)
    assert len(parts) == devices + 1
    assert sorted(number for part in parts for number in part) == [*range(frames)]
    assert all(len(part) <= each for part in parts[:-1])
    assert len(parts[-1]) == max(0, frames - each * devices)
    assert all(list(part) == sorted(part) for part in parts)
    numbers = renumbered(parts)
    order = [number for part in parts for number in part]
    assert [int(number) if numbers is None else int(numbers[number]) for number in order] == [*range(frames)]
    if weights is not None and len(parts[-1]):
        kept = [weights[number] for part in parts[:-1] for number in part]
        assert min(kept, default=np.inf) >= max(weights[number] for number in parts[-1])


def test_a_batch_has_its_share_from_each_memory_and_the_most_drawn_rows_from_the_device():
    local = memload.from_arrays(x=torch.arange(4000))
    weights = 1.0 / np.arange(1, 4001)
    for parts, least, most in ((split(local, 8000), 0.2, 0.3), (split(local, 8000, weights=weights), 0.8, 0.9)):
        column = parts.fields["x"].column
        rows = np.array([*WeightedRandomSampler(weights if least > 0.5 else np.ones(4000), 20_000)])
        on_device = column.index.numbers(rows) < len(column.on_devices[0])
        assert least < on_device.mean() < most


def test_a_frame_is_read_as_often_as_the_rows_that_it_is_in():
    index = FrameIndex(np.array([0, 1, 3, 3]), steps=(0, 1))
    assert frequencies(index, np.array([1.0, 2.0, 4.0, 8.0]), 6).tolist() == [1, 3, 2, 12, 12, 0]
    assert checked_weights(memload.WeightedSampler([0.5, 2.0]), 2).tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"bytes": 9}, ValueError, r"bytes= is 9 B, which is less than one row of 22 B \(stim 6 B, robs 16 B\)"),
        ({"bytes": -1}, ValueError, "at least one byte"),
        ({"bytes": "60 XB"}, ValueError, "not a size: '60 XB'"),
        ({"bytes": [1]}, TypeError, "a size is a number of bytes"),
        ({"bytes": 99, "tier": "pinned"}, TypeError, 'for tier="split"; the tier here is "pinned"'),
        ({"tier": "split"}, TypeError, r'tier="split" takes bytes='),
        ({"tier": "ram"}, ValueError, 'tier is "device", "pinned" or "split" here'),
        ({"weights": [1.0]}, TypeError, "give bytes=, too"),
        ({"bytes": 99, "weights": [1.0]}, ValueError, "one number for each of 40 rows"),
        ({"bytes": 99, "weights": "often"}, TypeError, "one number for each row, or a sampler"),
        (
            {"bytes": 99, "weights": [-1.0] * 40},
            ValueError,
            "finite, and not negative; that of row 0 is -1",
        ),
        ({"bytes": 99, "weights": [float("nan")] * 40}, ValueError, "that of row 0 is nan"),
    ],
)
def test_what_cannot_be_split_is_refused_in_words(given, error, said):
    with pytest.raises(error, match=said):
        memload.to_device(memload.from_arrays(movie()), "cpu", **given)


def test_options_of_the_tier_are_checked_where_it_is_chosen_by_name():
    local = memload.from_arrays(movie())
    with pytest.raises(TypeError, match='tier="split" takes device_bytes='):
        local.with_tier("split", device="cpu")
    with pytest.raises(TypeError, match='device_bytes= is for tier="split"; the tier here is "device"'):
        local.with_tier("device", device="cpu", device_bytes=100)
    with pytest.raises(TypeError, match="to_device takes a dataset of memload's, got a Tensor"):
        memload.to_device(torch.zeros(3), "cpu", bytes=1)
    with pytest.raises(ValueError, match="the dataset is on cpu already"):
        memload.to_device(split(local, 100), "cpu", bytes=100)


def test_too_little_ram_is_told_with_the_figures_of_both_memories():
    endless = memload.from_arrays(x=torch.zeros(1).expand(2**45))
    said = (
        r"of 141 TB of rows, 1 MB lie on cpu, and the other 141 TB do not fit into pinned RAM: .* are available there"
    )
    with pytest.raises(memload.MemorySpaceError, match=said) as caught:
        memload.to_device(endless, "cpu", bytes="1MB")
    assert caught.value.need == 4 * 2**45 - 10**6


def test_devices_that_cannot_read_each_other_are_named(monkeypatch):
    asked = []

    def can(one, other):
        asked.append((one.index, other.index))
        return (one.index, other.index) != (1, 0)

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", can)  # there is no GPU to ask
    two = [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(memload.DeviceError, match=r"cuda:1 cannot read the memory of cuda:0 .*bytes="):
        split_tier.check_peers(two)
    assert sorted(asked) == [(0, 1), (1, 0)]
    split_tier.check_peers(two[:1])
    for several in (["cpu", "cpu"], []):
        with pytest.raises(ValueError, match="several devices are different GPUs"):
            memload.to_device(memload.from_arrays(movie()), several)


def test_any_of_several_devices_gathers_from_all():
    parts, meta = split(memload.from_arrays(movie()), 300, devices=2), torch.device("meta")
    assert gathered_by(parts.fields, meta) is None
    assert gathered_by(memload.to_device(memload.from_arrays(movie()), "cpu").fields, CPU) is None
    field = parts.fields["stim"]
    tables = (field.column.on_devices[0], field.column.on_devices[1].to(meta))
    apart = {"stim": replace(field, column=replace(field.column, on_devices=tables))}
    found = gathered_by(apart, meta)["stim"]
    assert (found.device, apart["stim"].device) == (meta, CPU)
    assert [part.device for part in found.column.table.parts] == [CPU, meta, CPU]


def test_forked_processes_which_do_not_have_the_rows_are_told_so():
    parts = split(memload.from_arrays(movie(400)), 1000)
    assert refused_in_fork(lambda: parts[0], lambda: next(iter(memload.FastLoader(parts, 2)))) == 2
