"""Batches filled by cost: what is in them, how many there are, who gets them, and that a pass is resumed exactly."""

import itertools
import json
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from waiting import MOST_SECONDS

import memload


@st.composite
def samplers(draw):
    """The arguments of a sampler in which every row fits the budget."""
    numbers = st.integers(0, 9) if draw(st.booleans()) else st.floats(0, 9, width=16)
    costs = draw(st.lists(numbers, min_size=1, max_size=50))
    return {
        "costs": costs,
        "budget": draw(st.integers(max(1, int(np.ceil(max(costs)))), 30)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
        "buckets": draw(st.none() | st.integers(1, 6)),
        "most_rows": draw(st.none() | st.integers(1, 8)),
        "padded": draw(st.booleans()),
    }


def of_ranks(arguments, ranks, epoch=0):
    """The batches of each rank, after checking that each tells how many it gives."""
    found = []
    for rank in range(ranks):
        sampler = memload.BudgetBatchSampler(**arguments, num_replicas=ranks, rank=rank)
        sampler.set_epoch(epoch)
        expected = len(sampler)
        found.append(list(sampler))
        assert len(found[-1]) == expected
    return found


def in_turns(ranks):
    return [batch for turn in zip(*ranks, strict=True) for batch in turn]


def cost(arguments, batch):
    own = [arguments["costs"][row] for row in batch]
    return max(own) * len(own) if arguments["padded"] else sum(own)


def filled_by_hand(arguments, rows):
    """Batches of rows in order, one row after the other."""
    batches = []
    for row in rows:
        fits = batches and cost(arguments, [*batches[-1], row]) <= arguments["budget"]
        if fits and len(batches[-1]) != arguments["most_rows"]:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


@given(samplers(), st.integers(1, 7), st.integers(0, 3))
@settings(deadline=None, max_examples=200)
def test_every_row_comes_once_over_all_ranks_and_no_batch_is_above_the_budget(arguments, ranks, epoch):
    found = of_ranks(arguments, ranks, epoch)
    rows = list(itertools.chain.from_iterable(in_turns(found)))
    assert set(rows) == set(range(len(arguments["costs"])))
    if len(arguments["costs"]) >= -(-len(in_turns(of_ranks(arguments, 1, epoch))) // ranks) * ranks:
        assert len(rows) == len(set(rows))
    for batch in in_turns(found):
        assert batch
        assert cost(arguments, batch) <= arguments["budget"] * (1 + 1e-9)
        assert len(batch) <= (arguments["most_rows"] or len(batch))


@given(samplers())
@settings(deadline=None, max_examples=200)
def test_rows_fill_batches_in_their_order_until_the_next_does_not_fit(arguments):
    arguments |= {"buckets": None}
    (found,) = of_ranks(arguments, 1)
    assert found == filled_by_hand(arguments, list(itertools.chain.from_iterable(found)))
    if not arguments["shuffle"]:
        assert list(itertools.chain.from_iterable(found)) == list(range(len(arguments["costs"])))


@given(samplers(), st.integers(1, 6))
@settings(deadline=None, max_examples=100)
def test_a_batch_has_rows_of_one_bucket_and_buckets_have_rows_of_like_cost(arguments, buckets):
    arguments |= {"buckets": buckets}
    costs = np.array(arguments["costs"])
    order = np.argsort(costs, kind="stable")
    bucket = np.empty(len(costs), int)
    n = min(buckets, len(costs))
    bucket[order] = np.arange(len(costs)) * n // len(costs)
    for batch in of_ranks(arguments, 1)[0]:
        assert len(set(bucket[batch])) == 1


@given(samplers(), st.integers(1, 5))
@settings(deadline=None, max_examples=100)
def test_with_drop_last_batches_that_do_not_go_round_or_are_not_filled_are_left_out(arguments, ranks):
    (whole,) = of_ranks(arguments, 1)
    kept = in_turns(of_ranks({**arguments, "drop_last": True}, ranks))
    assert len(kept) % ranks == 0
    assert all(batch in whole for batch in kept)
    assert len(whole) - len(kept) <= (ranks - 1) + (arguments["buckets"] or 1)


def test_a_last_batch_that_fills_the_budget_is_kept():
    def left(costs, **how):
        return list(memload.BudgetBatchSampler(costs, 4, shuffle=False, drop_last=True, **how))

    assert left([2, 2, 2]) == [[0, 1]]
    assert left([2, 2, 2, 2]) == [[0, 1], [2, 3]]
    assert left([2, 1, 1], padded=True) == [[0, 1]]
    assert left([1, 1, 1], most_rows=3) == [[0, 1, 2]]
    assert left([1, 1, 1]) == []


def test_batches_that_do_not_go_round_are_cut_in_two():
    costs = [1] * 10
    ranks = of_ranks({"costs": costs, "budget": 4, "shuffle": False}, 4)
    assert in_turns(ranks) == [[0, 1], [2, 3], [4, 5, 6, 7], [8, 9]]


def test_with_fewer_rows_than_ranks_rows_come_twice():
    assert of_ranks({"costs": [1, 1], "budget": 1, "shuffle": False}, 3) == [[[0]], [[1]], [[0]]]
    assert of_ranks({"costs": [1, 1], "budget": 2, "shuffle": False}, 3) == [[[0]], [[1]], [[0]]]


def test_batches_of_one_row_cannot_be_cut_so_rows_come_twice():
    ranks = of_ranks({"costs": [1] * 5, "budget": 1, "shuffle": False}, 2)
    assert ranks == [[[0], [2], [4]], [[1], [3], [0]]]


def test_epochs_differ_and_are_the_same_again():
    sampler = memload.BudgetBatchSampler(range(1, 101), 200)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first == list(pickle.loads(pickle.dumps(sampler)))
    assert list(memload.BudgetBatchSampler(range(1, 101), 200, seed=1)) == second


def test_the_batches_of_buckets_are_shuffled_together():
    sampler = memload.BudgetBatchSampler(np.arange(1000), 5_000, buckets=10)
    highest = [max(batch) for batch in sampler]
    assert highest != sorted(highest)
    assert highest != sorted(highest, reverse=True)


@pytest.mark.parametrize("native", [True, False])
def test_a_loader_has_the_length_of_the_epoch_and_is_native(native):
    n = 200
    dataset = memload.from_arrays(x=torch.arange(n)).only("x")
    sampler = memload.BudgetBatchSampler(torch.randint(1, 20, (n,)), 64, buckets=3)
    make = memload.FastLoader if native else DataLoader
    loader = make(dataset, batch_sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected = [list(batch) for batch in sampler]
        assert len(loader) == len(expected)
        assert [batch.tolist() for batch in loader] == expected
    assert not native or loader.engine == "native"


def test_batches_are_gathered_ahead_of_the_loop():
    made = [threading.Event() for _ in range(3)]

    def note(batch):
        next(event for event in made if not event.is_set()).set()
        return batch

    dataset = memload.from_arrays(x=torch.zeros(90)).only("x")
    sampler = memload.BudgetBatchSampler([1] * 90, 30)
    batches = iter(memload.FastLoader(dataset, batch_sampler=sampler, batch_transform=note))
    next(batches)
    assert made[-1].wait(MOST_SECONDS)


def test_the_memory_of_a_pass_is_that_of_its_largest_batch():
    n, row = 4_000, 1_000 * 4
    dataset = memload.from_arrays(x=torch.zeros(n, 1_000)).only("x")
    sampler = memload.BudgetBatchSampler(torch.randint(1, 9, (n,)), 256)
    loader = memload.FastLoader(dataset, batch_sampler=sampler, depth=3)
    slots = 4 * row * max(map(len, sampler))
    assert slots <= loader.nbytes <= slots + 64 * n


@given(samplers(), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4), st.booleans())
@settings(deadline=None, max_examples=60)
def test_an_epoch_is_taken_up_by_another_number_of_ranks(arguments, runs, drop_last):
    """Each run is (ranks, batches that each takes before all stop); what the last leaves is taken by one rank."""
    n, state, seen = len(arguments["costs"]), None, []
    dataset = memload.from_arrays(x=torch.arange(n)).only("x")
    for ranks, take in [*runs, (1, None)]:
        states, turns = [], []
        for rank in range(ranks):
            how = {"num_replicas": ranks, "rank": rank, "drop_last": drop_last}
            sampler = memload.BudgetBatchSampler(**arguments, **how)
            loader = memload.FastLoader(dataset, batch_sampler=sampler)
            if state is not None:
                loader.load_state_dict(state)
            turns.append([batch.tolist() for batch in itertools.islice(loader, take)])
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert len(set(map(len, turns))) == 1
        seen += itertools.chain.from_iterable(in_turns(turns))
        if state is None or turns[0]:
            assert all(one["position"] == states[0]["position"] for one in states)
        state = states[0]
        if state["finished"]:
            break
    again = len(seen) - len(set(seen))
    assert again <= (0 if drop_last else sum(ranks - 1 for ranks, _ in runs))  # where fewer rows than ranks were left
    assert drop_last or set(seen) == set(range(n))


def test_the_state_of_other_costs_or_another_budget_is_refused():
    dataset = memload.from_arrays(x=torch.arange(30))

    def loader(costs, budget):
        return memload.FastLoader(dataset, batch_sampler=memload.BudgetBatchSampler(costs, budget))

    stopped = loader([1] * 30, 4)
    next(iter(stopped))
    with pytest.raises(ValueError, match="sampler, budget: expected 4, got 5"):
        loader([1] * 30, 5).load_state_dict(stopped.state_dict())
    with pytest.raises(ValueError, match="sampler, costs: expected"):
        loader([1] * 29 + [2], 4).load_state_dict(stopped.state_dict())


def test_costs_of_rows_that_are_not_there_fail_as_in_a_stock_loader():
    dataset = memload.from_arrays(x=torch.arange(3)).only("x")
    sampler = memload.BudgetBatchSampler([1] * 5, 2, shuffle=False)
    for make in (memload.FastLoader, DataLoader):
        batches = iter(make(dataset, batch_sampler=sampler))
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(IndexError):
            next(batches)


def test_a_subclass_that_makes_other_batches_is_iterated():
    class Reversed(memload.BudgetBatchSampler):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    sampler = Reversed([1] * 6, 2, shuffle=False)
    loader = memload.FastLoader(memload.from_arrays(x=torch.arange(6)).only("x"), batch_sampler=sampler)
    assert [batch.tolist() for batch in loader] == [[4, 5], [2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"costs": [1, 7, 3, 9]},
            ValueError,
            r"row 1 costs 7, more than the budget of 5, and so do 1 more rows",
        ),
        ({"costs": [1, -2]}, ValueError, "row 1 costs -2"),
        ({"costs": [1, float("nan")]}, ValueError, "row 1 costs nan"),
        ({"costs": []}, ValueError, "at least one number"),
        ({"costs": [[1]]}, ValueError, r"shape \(1, 1\)"),
        ({"costs": ["a"]}, TypeError, "costs must be numbers"),
        ({"costs": [2**62, 2**62], "budget": 2**63}, ValueError, "less than 2\\^63"),
        ({"budget": 0}, ValueError, "positive and finite, got 0"),
        ({"budget": "5"}, TypeError, "budget must be a number, got '5'"),
        ({"buckets": 0}, ValueError, "buckets must be an integer from 1 on, got 0"),
        ({"most_rows": 1.5}, TypeError, "most_rows must be an integer, got 1.5"),
        ({"seed": -1}, ValueError, "seed must be an integer from 0 on"),
        ({"padded": 1}, TypeError, "padded is True or False"),
        ({"num_replicas": 2, "rank": 2}, ValueError, "rank must be below num_replicas, which is 2; got 2"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        memload.BudgetBatchSampler(**{"costs": [1, 2], "budget": 5, **arguments})


def test_a_million_rows_are_planned_in_well_under_a_second():
    costs = np.random.default_rng(0).integers(1, 64, 10**6)
    sampler = memload.BudgetBatchSampler(costs, 2048, buckets=16)
    started = time.process_time()
    assert len(sampler) > 10_000
    assert time.process_time() - started < 1


@pytest.mark.parametrize("form", ["offsets", "padded"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_slots_are_made_for_what_fills_a_batch_not_for_as_many_of_the_longest_rows(form, shuffle):
    lengths = [1] * 2_000 + [10] * 200 + [1_000] * 2
    rows = memload.ragged(torch.zeros(sum(lengths), 4), np.cumsum([0, *lengths]))
    dataset = memload.from_arrays(tokens=rows).with_ragged(form)
    sampler = memload.BudgetBatchSampler(lengths, 1_000, buckets=20, padded=form == "padded", shuffle=shuffle)
    loader = memload.FastLoader(dataset, batch_sampler=sampler, depth=2)
    largest = max(batch["tokens"].values.nbytes for batch in loader)
    assert largest >= 1_000 * 16
    assert 3 * largest <= loader.nbytes <= 3 * 2.5 * largest + sampler.nbytes
    assert loader.stats().batches == len(sampler)
