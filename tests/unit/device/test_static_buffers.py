"""Batches at addresses that repeat, for loops that are captured or compiled."""

import pickle
from collections import namedtuple

import pytest
import torch
from simulated import SimulatedInterface
from torch.utils.data import TensorDataset

import memload

Pair = namedtuple("Pair", ["x", "y"])


def dataset(rows=24):
    return memload.from_arrays(x=torch.arange(rows * 3.0).reshape(rows, 3), y=torch.arange(rows))


def places(batch):
    return [tensor.data_ptr() for tensor in batch.values()]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_addresses_repeat_in_turn_through_all_passes_and_contents_are_those_without(count):
    loader = memload.FastLoader(dataset(), batch_size=4, static_buffers=count)
    expected = [*memload.FastLoader(dataset(), batch_size=4)]
    seen = []
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert all(torch.equal(batch[name], expected[number][name]) for name in ("x", "y"))
            seen.append(places(batch))
    assert len({tuple(place) for place in seen}) == count
    assert seen[count:] == seen[:-count]


def test_buffers_that_would_have_to_be_pinned_are_refused():
    with pytest.raises(ValueError, match="static_buffers=2 with pin_memory=True"):
        memload.FastLoader(memload.from_arrays(x=torch.zeros(4, 2)), 2, pin_memory=True, static_buffers=2)


def test_a_batch_is_valid_until_its_buffer_is_wanted_again():
    taken = iter(memload.FastLoader(dataset(), batch_size=4, static_buffers=3))
    first, second, third = next(taken), next(taken), next(taken)
    assert [batch["y"][0].item() for batch in (first, second, third)] == [0, 4, 8]
    next(taken)
    assert [batch["y"][0].item() for batch in (first, second, third)] == [12, 4, 8]


def test_every_engine_and_structure_is_served():
    near = memload.to_device(dataset(), "cpu")
    pair = {"batch_transform": lambda batch: Pair(batch["x"], [batch["y"], 7])}
    for loader in (
        memload.FastLoader(near, batch_size=4, static_buffers=2, **pair),
        memload.FastLoader(dataset(), batch_size=4, static_buffers=2, **pair),
        memload.FastLoader(dataset(), batch_size=4, static_buffers=2, collate_fn=lambda rows: _stacked(rows), **pair),
    ):
        first, second, third = (batch for batch, _ in zip(loader, range(3), strict=False))
        assert type(third) is Pair
        assert third.x.data_ptr() == first.x.data_ptr() != second.x.data_ptr()
        assert third.y[0].tolist() == [8, 9, 10, 11]
        assert third.y[1] == 7


def _stacked(rows):
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def test_a_smaller_last_batch_is_refused_before_it_comes():
    with pytest.raises(ValueError, match="the last one would have 3 rows instead of 7: give drop_last=True"):
        memload.FastLoader(dataset(), batch_size=7, static_buffers=2)
    assert len([*memload.FastLoader(dataset(), batch_size=7, static_buffers=2, drop_last=True)]) == 3
    taken = iter(memload.FastLoader(dataset(), batch_sampler=[[0, 1], [2]], static_buffers=2))
    next(taken)
    with pytest.raises(ValueError, match=r"float32 \(1, 3\) on cpu where the first had float32 \(2, 3\) on cpu"):
        next(taken)


def test_batches_without_one_form_are_refused_in_words():
    for count in (0, True, 1.5, 2000):
        with pytest.raises(ValueError, match="static_buffers= is a number of buffers"):
            memload.FastLoader(dataset(), batch_size=4, static_buffers=count)
    words = memload.from_arrays(tokens=memload.ragged([torch.arange(3), torch.arange(2)]))
    with pytest.raises(TypeError, match="Rows that differ in length, and graphs"):
        next(iter(memload.FastLoader(words, static_buffers=1)))


def test_states_and_copies_of_the_loader_are_as_without():
    loader = memload.FastLoader(dataset(), batch_size=4, static_buffers=2)
    taken = iter(loader)
    next(taken)
    other = pickle.loads(pickle.dumps(memload.FastLoader(TensorDataset(torch.arange(24)), 4, static_buffers=2)))
    assert len([*other]) == 6
    resumed = memload.FastLoader(dataset(), batch_size=4, static_buffers=2)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))["y"].tolist() == [4, 5, 6, 7]


def test_a_compiled_loop_body_is_compiled_once():
    compiled = []

    def backend(graph, inputs):
        compiled.append(inputs)
        return graph.forward

    step = torch.compile(lambda x, y: (x * 2).sum() + y.sum(), backend=backend, fullgraph=True)
    loader = memload.FastLoader(dataset(), batch_size=4, static_buffers=3)
    expected = [batch["x"].sum() * 2 + batch["y"].sum() for batch in memload.FastLoader(dataset(), batch_size=4)]
    assert [step(batch["x"], batch["y"]) for _ in range(2) for batch in loader] == expected * 2
    assert len(compiled) == 1


def test_buffers_are_counted_as_memory_of_the_device():
    ds = memload.from_arrays(x=torch.zeros(24, 1000, dtype=torch.uint8))
    options = {"batch_size": 4, "cast": {"x": memload.Cast(torch.float32)}}
    batch = 4 * 1000 * 4
    device = SimulatedInterface()
    plain, held = (memload.FastLoader(ds, device=device, static_buffers=k, **options) for k in (None, 3))
    assert held.device_nbytes == pytest.approx(plain.device_nbytes + 3 * batch, abs=3 * 4096 * 4)
    next(iter(held))
    assert held.device_nbytes == plain.device_nbytes + 3 * batch
    near = memload.FastLoader(memload.to_device(ds, "cpu"), static_buffers=2, **options)
    assert near.device_nbytes == 2 * batch
    assert memload.FastLoader(memload.to_device(ds, "cpu"), **options).device_nbytes == 0
    stock = memload.FastLoader(
        ds, collate_fn=lambda rows: _stacked(rows), device=device, static_buffers=2, batch_size=4
    )
    assert memload.FastLoader(ds, batch_size=4, static_buffers=2).device_nbytes == 0
    next(iter(stock))
    assert stock.device_nbytes >= 2 * 4 * 1000
