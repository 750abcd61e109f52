"""Samplers of memload's under several ranks: one common order, dealt out once, whatever the number of ranks becomes."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

import memload
from memload.sampling import weighted_draws

KINDS = ("mixing", "mixing with replacement", "weighted", "without replacement")


@pytest.fixture(autouse=True, scope="module")
def drawn_in_small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted_draws, "MIXED_CHUNK", 16)
        patch.setattr(weighted_draws, "WEIGHTED_CHUNK", 7)
        yield


def joined(n):
    first = max(1, n // 3)
    parts = {"a": torch.arange(first), "b": torch.arange(first, n)}
    return memload.concat({name: memload.from_arrays(x=values) for name, values in parts.items()})


def sampler_of(kind, n, total, **how):
    if "mixing" in kind:
        return memload.MixingSampler(joined(n), {"a": 2, "b": 1}, total, "with" in kind, **how)
    return memload.WeightedSampler(torch.arange(1, n + 1), min(total, n), kind == "weighted", **how)


def rank_loader(kind, n, total, ranks, rank, *, batch_size=3, native=True, epoch=0, loader=memload.FastLoader, **how):
    dataset = memload.from_arrays(x=torch.arange(n)).only("x") if native else list(range(n))
    sampler = sampler_of(kind, n, total, num_replicas=ranks, rank=rank, seed=5, **how)
    sampler.set_epoch(epoch)
    return loader(dataset, batch_size, sampler=sampler)


def turns(shares):
    """The rows of all ranks in the order in which they take turns."""
    assert len(set(map(len, shares))) == 1, "ranks have different numbers of rows"
    return [row for turn in zip(*shares, strict=True) for row in turn]


@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(3, 40),
    total=st.integers(1, 70),
    ranks=st.integers(1, 5),
    short=st.booleans(),
    epoch=st.integers(0, 3),
    native=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_ranks_take_turns_in_one_order_and_have_equally_many_rows(kind, n, total, ranks, short, epoch, native):
    alone = sampler_of(kind, n, total, num_replicas=1, rank=0, seed=5)
    alone.set_epoch(epoch)
    order = list(alone)
    how = {"drop_last": short, "epoch": epoch, "native": native}
    loaders = [rank_loader(kind, n, total, ranks, rank, **how) for rank in range(ranks)]
    shares = [[row for batch in loader for row in batch.tolist()] for loader in loaders]
    assert shares == [list(loader.sampler) for loader in loaders]
    assert {len(loader.sampler) for loader in loaders} == {len(shares[0])}
    dealt = turns(shares)
    assert dealt[: len(order)] == order[: len(dealt)]
    whole = math.floor if short else math.ceil
    assert len(dealt) == whole(len(order) / ranks) * ranks
    assert all(0 <= row < n for row in dealt)


@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(3, 40),
    total=st.integers(1, 90),
    worlds=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    batch_size=st.integers(1, 5),
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    short=st.booleans(),
    native=st.booleans(),
    teller=st.integers(0, 4),
)
@settings(deadline=None, max_examples=150)
def test_every_draw_is_delivered_once_over_ranks_that_change_twice(
    kind, n, total, worlds, batch_size, shares, short, native, teller
):
    order = list(sampler_of(kind, n, total, num_replicas=1, rank=0, seed=5))
    state, seen = None, []
    for world, share in zip(worlds, [*shares, None], strict=True):
        how = {"batch_size": batch_size, "native": native, "drop_last": short}
        loaders = [rank_loader(kind, n, total, world, rank, **how) for rank in range(world)]
        rows, states = [], []
        left = len(order) - len(seen)
        batches = math.ceil((left // world if short else math.ceil(left / world)) / batch_size)
        steps = batches if share is None else math.floor(share * batches)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            rows.append([row for _ in range(steps) for row in next(iterator).tolist()])
            states.append(json.loads(json.dumps(loader.state_dict())))
            if share is None:
                assert next(iterator, None) is None
        positions = [one["position"] for one in states]
        assert all(one == positions[0] for one in positions), "ranks tell different states"
        state = states[teller % world]
        seen = (seen + turns(rows))[: len(order)]
        assert seen == order[: len(seen)]
    assert short or seen == order
    assert len(order) - len(seen) < max(worlds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_on_as_many_ranks_a_resumed_pass_gives_what_was_left_to_the_row(kind, native, taken):
    for rank in range(3):
        loader = rank_loader(kind, 40, 35, 3, rank, native=native)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = loader.state_dict()
        again = rank_loader(kind, 40, 35, 3, rank, native=native, epoch=9 if taken else 0)
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_differ_and_follow_from_seed_and_epoch_alone(kind):
    def epoch(number, **how):
        return list(rank_loader(kind, 40, 35, 2, 0, epoch=number, **how).sampler)

    torch.manual_seed(1)
    standing = torch.get_rng_state()
    first = epoch(0)
    assert torch.equal(torch.get_rng_state(), standing)  # nothing is drawn from torch's generator
    torch.manual_seed(2)
    assert epoch(0) == first
    assert epoch(1) != first


@pytest.mark.parametrize("kind", KINDS)
def test_a_stock_loader_gets_the_same_share(kind):
    ours, stock = (rank_loader(kind, 40, 35, 3, 1, loader=one) for one in (memload.FastLoader, DataLoader))
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in stock]


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_that_change_at_a_common_step_hold_for_the_same_draws_on_every_rank(replacement):
    def share(rank):
        data = memload.from_arrays(x=torch.arange(60)).only("x")
        how = {"num_replicas": 3, "rank": rank}
        sampler = memload.WeightedSampler(torch.ones(60), 50, replacement, **how)
        rows = []
        for step, batch in enumerate(memload.FastLoader(data, 2, sampler=sampler)):
            if step in (1, 4):
                sampler.set_weights(torch.arange(60) + 1.0 + 50 * step)
            rows += batch.tolist()
        return rows

    shares = [share(rank) for rank in range(3)]
    dealt = turns(shares)[:50]
    assert replacement or len(set(dealt)) == 50
    assert share(1) == shares[1]


def test_other_libraries_see_samplers_that_share_their_rows_out_by_themselves():
    for kind in KINDS:
        assert isinstance(sampler_of(kind, 9, 9), DistributedSampler)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"num_replicas": 0}, ValueError, "num_replicas must be an integer from 1 on, got 0"),
        (
            {"num_replicas": 2},
            ValueError,
            "num_replicas=2 needs rank=, from 0 to 1: torch.distributed is not initialised",
        ),
        ({"num_replicas": 2, "rank": 2}, ValueError, "rank must be below num_replicas, which is 2; got 2"),
        ({"num_replicas": 2, "rank": 0, "seed": -1}, ValueError, "seed must be an integer from 0 on, got -1"),
        ({"num_replicas": 2, "rank": 0, "seed": 1.5}, TypeError, "seed must be an integer, got 1.5"),
        ({"drop_last": 1}, TypeError, "drop_last is True or False; got 1"),
        ({"seed": 1, "generator": torch.Generator()}, ValueError, "a generator or a seed, not both"),
        (
            {"num_replicas": 2, "rank": 0, "generator": torch.Generator()},
            ValueError,
            "a generator draws for one process, but 2 ranks share the rows: give seed=",
        ),
    ],
)
def test_ranks_that_make_no_sense_are_refused(how, error, message):
    with pytest.raises(error, match=message):
        sampler_of("mixing", 9, 9, **how)
    with pytest.raises(error, match=message):
        sampler_of("weighted", 9, 9, **how)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("native", [True, False])
def test_rows_that_two_ranks_left_out_are_there_for_one_whatever_the_batch_size(kind, native):
    """Three rows, of which two ranks leave one out: a last batch that is short is not a whole one."""
    order = list(sampler_of(kind, 3, 3, num_replicas=1, rank=0, seed=5))
    for batch_size in (1, 2, 3):
        how, seen = {"batch_size": batch_size, "native": native, "drop_last": True}, []
        for rank in range(2):
            told = rank_loader(kind, 3, 3, 2, rank, **how)
            batches = iter(told)
            seen += next(batches).tolist()
            state = told.state_dict()
        left = rank_loader(kind, 3, 3, 1, 0, **how)
        left.load_state_dict(state)
        assert seen + [row for batch in left for row in batch.tolist()] == order, batch_size
