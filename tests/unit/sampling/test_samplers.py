"""Samplers with weights: what they draw, and that it is the same planned as arrays and iterated."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset

import memload
from memload.sampling.weighted_draws import WEIGHTED_CHUNK, steps_at


def joined(*lengths):
    return memload.concat({f"d{k}": memload.from_arrays(x=torch.arange(n)) for k, n in enumerate(lengths)})


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def chi_square(counts, expected):
    """How far counts are from what was expected, and how far they may be: mean and six standard deviations of chi²."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    freedom = len(counts) - 1
    return ((counts - expected) ** 2 / expected).sum(), freedom + 6 * np.sqrt(2 * freedom)


def test_datasets_are_drawn_in_proportion_to_their_weights():
    both = joined(10, 1000, 200, 5)
    sampler = memload.MixingSampler(both, {"d2": 5, "d0": 1.5, "d1": 3.5, "d3": 0}, 100_000, generator=generator())
    tags = np.searchsorted([10, 1010, 1210], list(sampler), side="right")
    counts = np.bincount(tags, minlength=4)
    assert counts[3] == 0
    found, allowed = chi_square(counts[:3], [15_000, 35_000, 50_000])
    assert found < allowed


def test_no_row_comes_twice_before_every_row_of_its_dataset_came_once():
    both = joined(7, 30, 3).split(0.8, seed=5)[0]
    rows = np.array(list(memload.MixingSampler(both, [3, 1, 2], 1_000, generator=generator())))
    for own in both.rows_by_name().values():
        seen = rows[np.isin(rows, np.asarray(own))]
        whole = len(seen) // len(own) * len(own)
        assert whole > len(own)
        assert (np.sort(seen[:whole].reshape(-1, len(own)), axis=1) == np.sort(np.asarray(own))).all()


def test_with_replacement_rows_of_a_dataset_are_drawn_independently():
    rows = list(memload.MixingSampler(joined(50, 1), [1, 0], 50_000, replacement=True, generator=generator()))
    found, allowed = chi_square(np.bincount(rows, minlength=50), [1_000] * 50)
    assert found < allowed
    assert len(set(rows[:50])) < 50


def test_the_parts_of_a_torch_concat_dataset_can_be_mixed():
    parts = [TensorDataset(torch.zeros(n)) for n in (3, 50)]
    rows = list(memload.MixingSampler(ConcatDataset(parts), [1, 1], generator=generator()))
    assert len(rows) == 53
    assert 10 < sum(row < 3 for row in rows) < 43


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"weights": {"d0": 1}}, ValueError, "a weight for each of d0, d1; got d0"),
        ({"weights": [1, 2, 3]}, ValueError, "expected 2 weights, one for each of d0, d1; got 3"),
        ({"weights": [1, -2]}, ValueError, "weight 1 is -2"),
        ({"weights": [1, float("nan")]}, ValueError, "weight 1 is nan"),
        ({"weights": [0, 0]}, ValueError, "add up to 0"),
        ({"weights": [1, 1], "num_samples": 0}, ValueError, "positive integer, got 0"),
        ({"weights": [1, 1], "replacement": 1}, TypeError, "True or False; got 1"),
        ({"weights": [1, 1], "dataset": joined(3, 0)}, ValueError, "dataset 'd1' has a weight of 1 and no rows"),
        ({"weights": [1, 1], "dataset": [1, 2]}, TypeError, "list has no names for its datasets"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        memload.MixingSampler(**{"dataset": joined(3, 4), **arguments})


def test_rows_are_drawn_in_proportion_to_their_weights():
    weights = torch.tensor([0.0, 1.0, 0.0, 5.0, 0.5, 3.5, 0.0])
    rows = list(memload.WeightedSampler(weights, 100_000, generator=generator()))
    counts = np.bincount(rows, minlength=7)
    assert not counts[[0, 2, 6]].any()
    found, allowed = chi_square(counts[[1, 3, 4, 5]], [10_000, 50_000, 5_000, 35_000])
    assert found < allowed


def test_without_replacement_the_first_draws_follow_the_weights_and_no_row_comes_twice():
    sampler = memload.WeightedSampler([1.0, 2.0, 3.0, 0.0, 4.0], 3, replacement=False, generator=generator())
    passes = np.array([list(sampler) for _ in range(6_000)])
    assert all(len(set(rows)) == 3 for rows in passes)
    found, allowed = chi_square(np.bincount(passes[:, 0], minlength=5)[[0, 1, 2, 4]], [600, 1_200, 1_800, 2_400])
    assert found < allowed
    # The second draw is in proportion to the weights of those that are left.
    after = passes[passes[:, 0] == 4, 1]
    found, allowed = chi_square(np.bincount(after, minlength=3), np.array([1, 2, 3]) / 6 * len(after))
    assert found < allowed


def test_a_row_without_weight_is_never_drawn_though_rounding_reaches_the_sum():
    assert steps_at(np.array([0.0, 0.1, 0.39, 0.4]), np.cumsum([0.0, 0.1, 0.0, 0.3, 0.0])).tolist() == [1, 3, 3, 3]


def test_more_rows_than_torch_can_weigh():
    n = 2**24 + 2
    weights = torch.zeros(n)
    weights[-1] = 1
    with pytest.raises(RuntimeError, match="2\\^24"):
        torch.multinomial(weights, 1)
    assert set(memload.WeightedSampler(weights, 100)) == {n - 1}


@pytest.mark.parametrize("change", ["set_weights", "assigned", "in place", "inference mode"])
@pytest.mark.parametrize("replacement", [True, False])
def test_new_weights_hold_after_the_rows_that_are_drawn_already(change, replacement):
    n = 5_000
    sampler = memload.WeightedSampler(torch.arange(n) < n // 2, 2_000, replacement, generator=generator())
    other = (torch.arange(n) >= n // 2).double()
    rows = iter(sampler)
    before = [next(rows) for _ in range(300)]
    if change == "set_weights":
        sampler.set_weights(other)
    elif change == "assigned":
        sampler.weights = other
    elif change == "in place":
        sampler.weights[:] = other
    else:
        with torch.inference_mode():
            sampler.weights.copy_(other)
    after = list(rows)
    chunk = -(-300 // WEIGHTED_CHUNK) * WEIGHTED_CHUNK
    assert max(before + after[: chunk - 300]) < n // 2 <= min(after[chunk - 300 :])
    assert len(before + after) == 2_000
    if not replacement:
        assert len(set(before + after)) == 2_000


def test_torch_counts_writes_to_a_tensor():
    sampler = memload.WeightedSampler(torch.ones(3))
    before = sampler.edits
    sampler.weights[1] = 2
    assert sampler.edits > before


@pytest.mark.parametrize("num_workers", [0, 1])
def test_new_weights_reach_a_native_pass_within_depth_batches_and_a_chunk(num_workers):
    n, batch, depth = 10_000, 32, 2
    data = memload.from_arrays(row=torch.arange(n))
    sampler = memload.WeightedSampler(torch.arange(n) < n // 2, n, generator=generator())
    loader = memload.FastLoader(data, batch, sampler=sampler, depth=depth, num_workers=num_workers)
    assert loader.engine == "native"
    batches = iter(loader)
    for _ in range(5):
        assert (next(batches)["row"] < n // 2).all()
    sampler.set_weights(torch.arange(n) >= n // 2)
    lead = num_workers * (loader.prefetch_factor or 0)
    late = next(k for k, one in enumerate(batches) if (one["row"] >= n // 2).all())
    assert late <= depth + lead + WEIGHTED_CHUNK // batch + 1
    assert all((one["row"] >= n // 2).all() for one in batches)


def test_weights_of_a_copy_are_its_own():
    sampler = memload.WeightedSampler([1.0, 0.0], 3)
    assert list(sampler) == [0, 0, 0]
    for again in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        again.weights[:] = torch.tensor([0.0, 1.0])
        assert list(again) == [1, 1, 1]
    assert list(sampler) == [0, 0, 0]
    mine = torch.tensor([1.0, 0.0], dtype=torch.float64)
    sampler = memload.WeightedSampler(mine, 3)
    mine[0] = -1
    assert list(sampler) == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"weights": [1, 2, -0.5]}, ValueError, "weight 2 is -0.5"),
        ({"weights": [1, float("nan")]}, ValueError, "weight 1 is nan"),
        ({"weights": [1, float("inf")]}, ValueError, "weight 1 is inf"),
        ({"weights": [1e308, 1e308]}, ValueError, "add up to inf"),
        ({"weights": [0.0, 0.0]}, ValueError, "add up to 0"),
        ({"weights": []}, ValueError, "at least one number"),
        ({"weights": [[1.0]]}, ValueError, r"shape \(1, 1\)"),
        ({"weights": "heavy"}, TypeError, "weights must be numbers"),
        ({"weights": [1.0], "num_samples": 1.5}, ValueError, "positive integer, got 1.5"),
        ({"weights": [1.0], "replacement": None}, TypeError, "True or False; got None"),
        ({"weights": [1.0, 0.0], "replacement": False}, ValueError, "2 rows .* only 1 of those left"),
    ],
)
def test_weights_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        memload.WeightedSampler(**arguments)


def test_new_weights_that_make_no_sense_leave_the_old_ones():
    sampler = memload.WeightedSampler([1.0, 0.0], 2)
    for wrong, message in (([1.0], "expected 2 weights, one for each row, got 1"), ([0.0, -1.0], "weight 1 is -1")):
        with pytest.raises(ValueError, match=message):
            sampler.set_weights(wrong)
    assert list(sampler) == [0, 0]
    sampler.weights[0] = -1
    with pytest.raises(ValueError, match="weight 0 is -1"):
        list(sampler)
    without = memload.WeightedSampler([1.0] * 600, 600, replacement=False)
    rows = iter(without)
    next(rows)
    without.weights[300:] = 0
    with pytest.raises(ValueError, match="without replacement, but only"):
        list(rows)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_native_and_stock_loaders_draw_alike(data):
    dataset = joined(*data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    n = len(dataset)
    own = data.draw(st.booleans())
    count = data.draw(st.integers(1, 700))
    kind = data.draw(st.sampled_from(["mixing", "weighted", "without"]))
    weights = data.draw(st.lists(st.floats(0.01, 9), min_size=n, max_size=n)) if n < 60 else [1.0] * n
    replacement = data.draw(st.booleans())
    arguments = {"batch_size": data.draw(st.integers(1, 90)), "drop_last": data.draw(st.booleans())}

    def outcome(loader_kind):
        torch.default_generator.manual_seed(2)
        seeds = generator(7) if own else None
        if kind == "mixing":
            sampler = memload.MixingSampler(dataset, [1.0] * len(dataset.names), count, replacement, seeds)
        else:
            sampler = memload.WeightedSampler(weights, min(count, n), kind == "weighted", seeds)
        loader = loader_kind(dataset, sampler=sampler, generator=seeds, **arguments)
        states = []
        for _ in range(2):
            iterator = iter(loader)
            while (batch := next(iterator, None)) is not None:
                states += [batch["x"], batch["dataset_idx"], torch.get_rng_state()]
                states += [seeds.get_state()] if own else []
        if loader_kind is memload.FastLoader:
            assert loader.engine == "native"
        return states

    ours, theirs = outcome(memload.FastLoader), outcome(DataLoader)
    assert len(ours) == len(theirs)
    assert all(map(torch.equal, ours, theirs))


def sampler_of(kind, dataset, seeds=None):
    if kind == "mixing":
        return memload.MixingSampler(dataset, [2.0, 1.0, 4.0], 3_000, generator=seeds)
    if kind == "mixing with replacement":
        return memload.MixingSampler(dataset, [2.0, 1.0, 4.0], 3_000, True, generator=seeds)
    weights = torch.arange(len(dataset)) % 7 + 0.5
    return memload.WeightedSampler(weights, 2_000, kind == "weighted", generator=seeds)


@pytest.mark.parametrize(("stop", "own"), [(0, True), (1, True), (1, False), (9, True), (39, True), (47, False)])
@pytest.mark.parametrize("kind", ["mixing", "mixing with replacement", "weighted", "without replacement"])
def test_a_pass_is_taken_up_where_it_stood(kind, stop, own, monkeypatch):
    monkeypatch.setattr("memload.sampling.weighted_draws.MIXED_CHUNK", 512)
    dataset = joined(40, 2_000, 700)

    def loader(seed):
        torch.default_generator.manual_seed(seed)
        return memload.FastLoader(dataset, 41, sampler=sampler_of(kind, dataset, generator(seed) if own else None))

    whole = loader(3)
    batches = [[batch["x"] for batch in whole] for _ in range(2)]
    stopped = loader(3)
    passing = iter(stopped)
    for _ in range(stop):
        next(passing)
    state = json.loads(json.dumps(stopped.state_dict()))
    again = loader(8)
    again.load_state_dict(state)
    rest = [batch["x"] for batch in again]
    assert len(rest) == len(batches[0]) - stop
    assert all(map(torch.equal, rest, batches[0][stop:]))
    if own:
        assert all(map(torch.equal, [batch["x"] for batch in again], batches[1]))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("told", [3, 9, 30])
def test_weights_that_changed_in_mid_pass_do_not_stop_it_from_being_taken_up(replacement, told):
    data = memload.from_arrays(row=torch.arange(1_000))
    heavy = (torch.arange(1_000) % 5 == 0) * 9.0 + 1

    def loader(weights):
        return memload.FastLoader(data, 16, sampler=memload.WeightedSampler(weights, 900, replacement, generator()))

    stopped = loader(torch.ones(1_000))
    rows = []
    for number, batch in enumerate(stopped, start=1):
        rows.append(batch["row"])
        if number == 3:
            stopped.sampler.set_weights(heavy)
        if number == told:
            state = json.loads(json.dumps(stopped.state_dict()))
    again = loader(heavy)
    again.load_state_dict(state)
    rest = [batch["row"] for batch in again]
    assert len(rest) == len(rows) - told
    assert all(map(torch.equal, rest, rows[told:]))
    if not replacement:
        assert len(set(torch.cat(rows).tolist())) == 900


def test_without_replacement_other_weights_than_those_of_the_state_are_refused():
    data = memload.from_arrays(row=torch.arange(600))

    def loader(weights):
        return memload.FastLoader(data, 16, sampler=memload.WeightedSampler(weights, replacement=False))

    stopped = loader(torch.ones(600))
    next(iter(stopped))
    again = loader(torch.arange(1, 601))
    again.load_state_dict(stopped.state_dict())
    with pytest.raises(ValueError, match="weights differ from those that the sampler had"):
        next(iter(again))


def test_a_bool_among_the_indices_of_a_subset_is_given_to_the_dataset_as_in_the_stock_loader():
    x = torch.arange(6.0).view(3, 2)
    rows = [2, True, 0]

    def outcome(kind):
        loader = kind(TensorDataset(x), 3, sampler=SubsetRandomSampler(rows, torch.Generator().manual_seed(1)))
        with pytest.raises(RuntimeError, match="equal size") as raised:
            list(loader)
        return str(raised.value)

    assert outcome(memload.FastLoader) == outcome(DataLoader)


@pytest.mark.parametrize("depth", [None, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_sampler_with_rows_that_do_not_exist_draws_when_a_stock_loader_does(seed, depth):
    def steps(make, **options):
        generator = torch.Generator().manual_seed(seed)
        sampler = RandomSampler(range(8), generator=generator)  # for seven rows
        iterator = iter(make(memload.from_arrays(x=torch.arange(7)), batch_size=2, sampler=sampler, **options))
        for _ in range(5):
            try:
                found = next(iterator)["x"].tolist()
            except (IndexError, StopIteration) as error:
                found = type(error)
            yield found, generator.get_state().tolist()

    assert list(steps(memload.FastLoader, depth=depth)) == list(steps(DataLoader))
