"""A batch carries the numbers of its rows; a pass that is cancelled gives back the plan of what it has not given."""

import gc
import os
import weakref

import numpy as np
import pytest
import torch
from late_reading import LATE
from simulated import SimulatedInterface
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import memload
from memload import _core

N = 47

ORDERS = {
    "in order": {"batch_size": 5},
    "shuffled": {"batch_size": 6, "shuffle": True},
    "drop last": {"batch_size": 5, "shuffle": True, "drop_last": True},
    "a list": {"batch_size": 4, "sampler": [*range(40)][::-3]},
    "batches of their own": {"batch_sampler": [[3], [1, 2, -1], [40, 0], [7, 7, 7, 8], [6], [5, 4]]},
    "arrays of their own": {"batch_sampler": [np.array([2, 1]), np.array([0])]},
}


def planned(order, n=N):
    """The rows of each batch as a stock loader asks for them."""
    torch.manual_seed(5)
    return [batch[0].tolist() for batch in DataLoader(TensorDataset(torch.arange(n)), **order)]


def begun(dataset, order, **options):
    torch.manual_seed(5)
    loader = memload.FastLoader(dataset, **{"options": memload.EngineOptions(depth=3)} | order | options)
    assert loader.engine == "native", loader.why
    return iter(loader)


def numbered():
    return memload.from_arrays(row=torch.arange(N), x=torch.rand(N, 3)), lambda batch: batch["row"]


def ragged():
    x = memload.ragged([np.full(k % 5, k, dtype=np.float32) for k in range(N)])
    return memload.from_arrays(row=torch.arange(N), x=x), lambda batch: batch["row"]


def windows():
    frames = memload.from_arrays(x=torch.arange(N))
    return frames.windows("x", window=4), lambda batch: batch["x"][:, 0]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("make", [numbered, ragged, windows])
def test_the_rows_of_each_batch_are_those_that_the_sampler_gave(make, order):
    dataset, rows_in = make()
    iterator, got = begun(dataset, order), []
    for batch in iterator:
        got.append(iterator.layers.gathers.row_numbers().tolist())
        assert rows_in(batch).tolist() == [row % len(dataset) for row in got[-1]]
    assert got == planned(order, len(dataset))


def test_rows_of_a_batch_may_be_asked_for_again_and_outlive_the_pass():
    iterator = begun(numbered()[0], ORDERS["in order"])
    next(iterator)
    first = iterator.layers.gathers.row_numbers()
    assert iterator.layers.gathers.row_numbers() is first
    assert sum(1 for _ in iterator) == 9
    iterator.close()
    assert first.tolist() == [0, 1, 2, 3, 4]


def changing(batch):
    return {"x": batch["x"] + 0}


LAYERS = {
    "gathered": {},
    "transformed by threads": {
        "batch_transform": changing,
        "options": memload.EngineOptions(depth=3, transform_threads=3),
    },
    "on a device": {"device": lambda: SimulatedInterface(copies=LATE)},
    "transformed there": {"device": lambda: SimulatedInterface(copies=LATE), "batch_transform": changing},
    "copied by torch": {"device": lambda: SimulatedInterface(native=False), "batch_transform": changing},
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_whatever_is_ahead_of_the_loop_comes_from_the_dataset_once_its_data_has_changed(layers, mapped, order):
    expected = planned(order)
    for at in range(len(expected)):
        x, options = torch.arange(N), dict(layers)
        device = options["device"] = options["device"]() if "device" in options else None
        dataset = memload.from_arrays(x=x)
        iterator = begun(dataset.map(dict) if mapped else dataset, order, **options)
        read, want = [], []
        for step, batch in enumerate(iterator):
            read.append(batch["x"].clone().clone if device is None else device.read(batch["x"]))
            want.append([row % N + 1000 * (step > at) for row in expected[step]])
            if step == at:
                x += 1000
        assert [value().tolist() for value in read] == want


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_groups_that_are_ahead_come_from_their_datasets_once_these_have_changed(order):
    expected = planned(order)
    for at in range(len(expected)):
        first, second = torch.arange(20), torch.arange(20, N)
        members = {"a": memload.from_arrays(x=first), "b": memload.from_arrays(x=second, y=torch.zeros(N - 20))}
        dataset = memload.concat(members)
        for step, batch in enumerate(begun(dataset, order, collate_fn=memload.group_collate)):
            rows = [row for group in batch for row in group["x"].tolist()]
            assert sorted(rows) == sorted(row % N + 1000 * (step > at) for row in expected[step])
            if step == at:
                first += 1000
                second += 1000


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_a_row_that_could_not_be_read_ahead_of_a_change_is_an_error_and_no_early_end(layers, tmp_path):
    path = tmp_path / "y.npy"
    for at in range(6):
        np.save(path, np.zeros((N, 4096), dtype=np.uint8))
        x, options = torch.arange(N), dict(layers)
        if "device" in options:
            options["device"] = options["device"]()
        iterator = begun(memload.zip(y=memload.open(path), x=memload.from_arrays(x=x)), {"batch_size": 4}, **options)
        os.truncate(path, 25 * 4096)  # of 24 rows, and a header
        for _ in range(at):
            next(iterator)
        x += 1
        with pytest.raises(memload.ShardReadError, match="truncated"):
            list(iterator)


def cut(plan):
    batches = []
    while plan.ready:
        batches.append(plan.take().tolist())
    return batches


def test_a_plan_is_cut_into_batches_as_rows_come():
    plan = _core.PlanQueue(4, False)
    plan.extend(np.arange(3))
    assert not plan.ready
    with pytest.raises(IndexError, match="no batch is planned"):
        plan.take()
    plan.extend(np.arange(3, 9))
    plan.put_back(np.array([50]))
    assert cut(plan) == [[50], [0, 1, 2, 3], [4, 5, 6, 7]]
    plan.finish()
    assert cut(plan) == [[8]]
    dropping = _core.PlanQueue(4, drop_last=True)
    dropping.extend(np.arange(5))
    dropping.finish()
    assert cut(dropping) == [[0, 1, 2, 3]]


def test_batches_of_their_own_and_a_stream_may_follow_each_other():
    for large in (2, 7, 100):
        plan = _core.PlanQueue(4, False)
        plan.extend(np.arange(3))
        plan.push(np.arange(3, 3 + large))
        plan.extend(np.arange(3 + large, 10 + large))
        plan.finish()
        assert [row for batch in cut(plan) for row in batch] == [*range(10 + large)]


def extended(plan):
    array = np.arange(1 << 17)  # so large that it is kept, and not copied
    plan.extend(array)
    return weakref.ref(array)


def test_arrays_of_a_plan_are_let_go_with_it():
    iterator = begun(numbered()[0], ORDERS["in order"])
    gathers = iterator.layers.gathers
    gc.disable()
    try:
        plan = _core.PlanQueue(4, False)
        array = extended(plan)
        assert array() is not None
        del plan
        assert array() is None
        array = extended(gathers)
        assert array() is not None
        gathers.close(keep_slots=True)
        assert array() is None
    finally:
        gc.enable()


def test_the_plan_of_a_cancelled_pass_outlives_it():
    draws = RandomSampler(range(N), replacement=True, num_samples=100_000)  # so many are kept, and not copied
    order = {"batch_size": 1000, "sampler": draws}
    iterator = begun(numbered()[0], order)
    next(iterator)
    gathers = iterator.layers.gathers
    plan = gathers.cancel()
    gathers.close(keep_slots=False)
    del gathers, iterator
    assert cut(plan) == planned(order)[1:]
