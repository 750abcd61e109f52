"""The order of a loop's own work, of casts that run ahead of it, and of functions that must not."""

import time

import pytest
import torch
from late_reading import LATE, SLOW, assert_same, is_caught, on_cpu, read_all, shows
from simulated import SimulatedInterface, Without
from torch.utils.data import Dataset

import memload

ROWS, BATCH = 96, 8
CAST = {"x": memload.Cast(torch.float32, scale=2.0)}


def dataset():
    return memload.from_arrays(x=torch.arange(ROWS * 64, dtype=torch.int16).view(ROWS, 64), label=torch.arange(ROWS))


class Stock(Dataset):
    """The same samples, which only torch's machinery reads."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": torch.arange(index * 64, index * 64 + 64, dtype=torch.int16), "label": index}


def loader(ds, **options):
    return memload.FastLoader(ds, BATCH, cast=CAST, **options)


class Early(SimulatedInterface):
    """A device on which functions do not wait for the loop."""

    def call(self, fn, *args):
        return self.launch(self.work, fn, *args)


KINDS = [(dataset, True), (dataset, False), (Stock, True)]


def looked_up(device, ds):
    """What each batch adds to its rows from a table that the loop, late, writes to after each batch."""
    table = device.empty(4, device.current()).view(torch.float32)
    device.write(table, torch.zeros(1))

    def added(batch):
        return {**batch, "x": batch["x"] + table}

    readings = []
    for k, batch in enumerate(loader(ds, device=device, batch_transform=added)):
        readings.append(device.read(batch["x"]))
        device.write(table, torch.tensor([k + 1.0]))
    first = torch.arange(64) * 2.0
    return [(reading() - k * BATCH * 128)[0] - first for k, reading in enumerate(readings)]


@pytest.mark.parametrize(("made", "native"), KINDS)
@pytest.mark.parametrize("late", [{"loop": LATE}, {"copies": LATE, "work": LATE}, {"work": LATE, "loop": LATE}])
def test_a_transform_sees_what_the_loop_has_queued_before_it_asked_for_the_batch(made, native, late):
    device = SimulatedInterface(native=native, **late)
    added = looked_up(device, made())
    assert [set(one.tolist()) for one in added] == [{float(k)} for k in range(ROWS // BATCH)]
    assert device.simulated.violations == []


@pytest.mark.parametrize(("made", "native"), KINDS)
def test_a_transform_that_does_not_wait_for_the_loop_shows(made, native):
    def is_caught_where_it_is_early(late):
        added = looked_up(Early(native=native, **late), made())
        return [set(one.tolist()) for one in added] != [{float(k)} for k in range(ROWS // BATCH)]

    assert shows(is_caught_where_it_is_early, {"copies": (0, 0), "work": (0, 0), "loop": SLOW})


@pytest.mark.parametrize("made", [dataset, Stock])
def test_a_transform_is_called_when_the_loop_asks_for_its_batch(made):
    """What the loop changes in Python, such as a factor that grows, is seen as well."""
    calls = []
    transform = lambda batch: calls.append(None) or batch  # noqa: E731
    for handed, _ in enumerate(loader(made(), device=SimulatedInterface(), batch_transform=transform), 1):
        assert len(calls) == handed


def test_after_a_write_to_the_data_transforms_still_follow_the_loop():
    """From then on the dataset itself answers, and its batches are moved whole."""
    device, x = SimulatedInterface(loop=LATE, copies=LATE), torch.zeros(ROWS, 4)
    table = device.empty(4, device.current()).view(torch.float32)
    device.write(table, torch.zeros(1))
    ds, readings = memload.from_arrays(x=x), []
    for k, batch in enumerate(
        memload.FastLoader(ds, BATCH, device=device, batch_transform=lambda batch: batch["x"] + table)
    ):
        readings.append(device.read(batch))
        device.write(table, torch.tensor([k + 1.0]))
        if k == 3:
            x += 100
    assert [reading()[0, 0].item() for reading in readings] == [k + 100.0 * (k > 3) for k in range(ROWS // BATCH)]


class Replayed:
    """A function as a captured graph is one: it reads and writes the same memory each time, in the current stream."""

    def __init__(self, device):
        self.device = device
        self.out = device.empty(BATCH * 64 * 4, device.current()).view(torch.float32).view(BATCH, 64)

    def __call__(self, batch):
        self.device.write(self.out, batch["x"] + 1)
        return {**batch, "x": self.out}


@pytest.mark.parametrize(("made", "native"), KINDS)
def test_a_function_that_writes_to_the_same_memory_each_time_gives_each_batch_to_the_loop(made, native):
    """So do functions that are compiled to CUDA graphs: their results lie where the graph was captured."""
    expected = on_cpu(loader(made(), batch_transform=lambda batch: {**batch, "x": batch["x"] + 1}))
    device = SimulatedInterface(native=native, loop=LATE, copies=(0, 0), work=(0, 0))
    read, _ = read_all(device, loader(made(), device=device, batch_transform=Replayed(device)))
    assert_same(read, expected)

    def is_caught_where_it_is_early(late):
        early = Early(native=native, **late)
        return is_caught(early, loader(made(), device=early, batch_transform=Replayed(early)), expected)

    assert shows(is_caught_where_it_is_early, {"loop": SLOW, "copies": (0, 0), "work": (0, 0)})


def doubled(batch):
    """What reads memory of the batch, and lets go of it."""
    return {"twice": batch["x"] * 2, "label": batch["label"]}


@pytest.mark.parametrize(
    ("call", "late"),
    [
        ("wait", {"work": SLOW, "loop": (0, 0)}),  # the loop's stream for the casts that functions read
        ("hold", {"copies": (0, 0), "work": (0, 0), "loop": SLOW}),  # what functions still read, late
    ],
)
def test_a_step_that_is_left_out_before_a_transform_shows(call, late):
    expected = on_cpu(loader(dataset(), batch_transform=doubled))

    def is_caught_on(device):
        return is_caught(device, loader(dataset(), device=device, batch_transform=doubled), expected)

    def is_caught_without(late):
        broken = Without(call, None, **late)
        caught = is_caught_on(broken)
        assert broken.left_out
        return caught

    assert not is_caught_on(SimulatedInterface(**late))
    assert shows(is_caught_without, late)


@pytest.mark.parametrize("made", [dataset, lambda: memload.to_device(dataset(), "cpu")], ids=["copied", "resident"])
def test_the_loop_has_waited_for_functions_that_it_called_itself(made):
    options = {} if made is not dataset else {"device": SimulatedInterface()}
    slow = loader(made(), batch_transform=lambda batch: time.sleep(0.005) or batch, **options)
    assert len(list(slow)) == ROWS // BATCH
    stats = slow.stats()
    assert stats.transform_seconds >= 0.005 * stats.batches
    assert stats.consumer_wait_seconds == pytest.approx(stats.transform_wait_seconds + stats.transform_seconds)
    assert stats.consumer_wait_seconds <= stats.wall_seconds


def test_without_functions_there_is_no_time_of_them():
    plain = loader(dataset(), device=SimulatedInterface())
    assert len(list(plain)) == ROWS // BATCH
    assert (plain.stats().transform_seconds, plain.stats().transform_wait_seconds) == (0.0, 0.0)
