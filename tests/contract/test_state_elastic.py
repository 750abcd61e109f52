"""A state saved on some number of ranks is resumed on another: what is left of the epoch is dealt out once."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

import memload


def rank_loader(rows, ranks, rank, *, batch_size, shuffle=True, short=False, drop_last=False, epoch=0, native=True):
    dataset = memload.from_arrays(x=torch.arange(rows)).only("x") if native else list(range(rows))
    sampler = DistributedSampler(dataset, ranks, rank, shuffle=shuffle, seed=3, drop_last=short)
    sampler.set_epoch(epoch)
    return memload.FastLoader(dataset, batch_size, sampler=sampler, drop_last=drop_last)


def dealt(order, gone, ranks, rank, batch_size, short, drop_last):
    """What the documentation says, with lists: the batches of one rank when `gone` rows of the order are behind."""
    left = order[gone:]
    if short:
        left = left[: len(left) // ranks * ranks]
    else:
        filling = math.ceil(len(left) / ranks) * ranks - len(left)
        left = left + (order * ranks)[:filling]
    own = left[rank::ranks]
    batches = [own[begin : begin + batch_size] for begin in range(0, len(own), batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]


@given(
    rows=st.integers(1, 60),
    worlds=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    batch_size=st.integers(1, 5),
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    shuffle=st.booleans(),
    short=st.booleans(),
    drop_last=st.booleans(),
    native=st.booleans(),
    teller=st.integers(0, 4),
)
@settings(deadline=None, max_examples=120)
def test_rows_to_come_are_seen_once_over_ranks_that_change_twice(
    rows, worlds, batch_size, shares, shuffle, short, drop_last, native, teller
):
    settings = {"batch_size": batch_size, "shuffle": shuffle, "short": short, "drop_last": drop_last, "native": native}
    order = list(DistributedSampler(range(rows), 1, 0, shuffle=shuffle, seed=3))
    gone, state, seen = 0, None, []
    for world, share in zip(worlds, [*shares, None], strict=True):
        expected = [dealt(order, gone, world, rank, batch_size, short, drop_last) for rank in range(world)]
        steps = len(expected[0]) if share is None else math.floor(share * len(expected[0]))
        loaders = [rank_loader(rows, world, rank, **settings) for rank in range(world)]
        for loader, batches in zip(loaders, expected, strict=True):
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            found = [next(iterator).tolist() for _ in range(steps)]
            assert found == batches[:steps]
            seen += [row for batch in found for row in batch]
            if share is None:
                assert next(iterator, None) is None
        gone = min(gone + steps * batch_size * world, rows)
        state = json.loads(json.dumps(loaders[teller % world].state_dict()))
        assert state["position"]["gone"] == gone or steps == 0
    if not drop_last and not short:
        assert set(seen) == set(range(rows))
        assert len(seen) - rows < max(worlds)  # only what fills the last turn is seen twice
    else:
        assert len(seen) == len(set(seen)) or not short


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("world", [2, 8])
def test_the_epochs_behind_a_change_of_ranks_are_those_of_a_fresh_loader(world, native):
    stopped = rank_loader(100, 4, 2, batch_size=3, epoch=5, native=native)
    iterator = iter(stopped)
    for _ in range(3):
        next(iterator)
    state = stopped.state_dict()
    for rank in range(world):
        taken_up = rank_loader(100, world, rank, batch_size=3, native=native)
        taken_up.load_state_dict(state)
        assert taken_up.sampler.epoch == 5
        list(taken_up)
        for epoch in (6, 7):
            taken_up.sampler.set_epoch(epoch)
            fresh = rank_loader(100, world, rank, batch_size=3, epoch=epoch, native=native)
            assert [batch.tolist() for batch in taken_up] == [batch.tolist() for batch in fresh]


def test_the_epoch_of_the_state_holds_for_its_rows_whatever_was_set_since():
    stopped = rank_loader(20, 2, 0, batch_size=4, epoch=3)
    iterator = iter(stopped)
    next(iterator)
    rest = [batch.tolist() for batch in iterator]
    state = rank_loader(20, 2, 0, batch_size=4, epoch=3)
    iterator = iter(state)
    next(iterator)
    taken_up = rank_loader(20, 2, 0, batch_size=4)
    taken_up.load_state_dict(state.state_dict())
    taken_up.sampler.set_epoch(4)
    assert [batch.tolist() for batch in taken_up] == rest


def test_a_state_from_between_two_epochs_leaves_the_epoch_to_the_loop():
    stopped = rank_loader(20, 2, 0, batch_size=4, epoch=3)
    list(stopped)
    taken_up = rank_loader(20, 2, 0, batch_size=4)
    taken_up.load_state_dict(stopped.state_dict())
    taken_up.sampler.set_epoch(4)
    fresh = rank_loader(20, 2, 0, batch_size=4, epoch=4)
    assert [batch.tolist() for batch in taken_up] == [batch.tolist() for batch in fresh]


@given(st.integers(1, 40), st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 3))
@settings(deadline=None, max_examples=100)
def test_the_rows_of_a_rank_are_those_of_the_sampler(rows, ranks, shuffle, short, epoch):
    for rank in range(ranks):
        loader = rank_loader(rows, ranks, rank, batch_size=3, shuffle=shuffle, short=short, epoch=epoch)
        assert [row for batch in loader for row in batch.tolist()] == list(loader.sampler)
