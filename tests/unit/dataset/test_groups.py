"""Many datasets at once: what users write by hand with ConcatDataset, a tagging wrapper and a collate function."""

import copy
import json
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from blocked import threads_left, threads_of_memload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same_rows import OneByOne
from simulated import SimulatedInterface
from strategies import as_bytes, random_tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

import memload
from memload.dtypes import TORCH_DTYPES

FIELDS = ("stim", "robs", "ident")


class Tagged(Dataset):
    """The wrapper that users write."""

    def __init__(self, dataset, number):
        self.dataset, self.number = dataset, number

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return {**self.dataset[index], "dataset_idx": self.number}


def collate_by_dataset(samples):
    """The collate function that users write."""
    groups = {}
    for sample in samples:
        groups.setdefault(sample["dataset_idx"], []).append(sample)
    return [default_collate(group) for group in groups.values()]


def by_hand(members):
    return ConcatDataset([Tagged(member, k) for k, member in enumerate(members.values())])


def equal(a, b):
    if isinstance(a, torch.Tensor):
        same = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return same and as_bytes(a) == as_bytes(b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def assert_equal_passes(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert equal(mine, other)


@st.composite
def member_sets(draw, alike=None):
    """Datasets by name, of one form or of several."""
    count = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 255))
    dtypes = st.sampled_from([d for d in TORCH_DTYPES.values() if not d.is_floating_point or d.itemsize > 1])
    forms = st.lists(st.sampled_from(FIELDS), min_size=1, unique=True).flatmap(
        lambda names: st.fixed_dictionaries(
            {name: st.tuples(dtypes, st.sampled_from([(), (3,), (2, 3)])) for name in names}
        )
    )
    alike = draw(st.booleans()) if alike is None else alike
    form = draw(forms)
    members = {}
    for k in range(count):
        rows = draw(st.integers(1, 12))
        shapes = form if alike else draw(forms)
        arrays = {name: random_tensor(dtype, (rows, *shape), seed + k) for name, (dtype, shape) in shapes.items()}
        members[f"d{k}"] = memload.from_arrays(arrays)
    return members


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_groups_are_those_of_a_tagging_wrapper_and_a_collate_function(data):
    members = data.draw(member_sets())
    dataset, reference = memload.concat(members), by_hand(members)
    n = len(reference)
    assert len(dataset) == n
    assert dataset.names == tuple(members)
    rows = None
    for _ in range(data.draw(st.integers(0, 2))):
        rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=30))
        reference, n = Subset(reference, rows), len(rows)
        dataset = Subset(dataset, rows) if data.draw(st.booleans()) or type(dataset) is Subset else dataset.select(rows)
    assert all(equal(dataset[k], reference[k]) for k in range(n))
    arguments = {"batch_size": data.draw(st.integers(1, 9)), "drop_last": data.draw(st.booleans())}
    arguments["shuffle"] = data.draw(st.booleans())
    passes = []
    for kind, ds, collate in (
        (memload.FastLoader, dataset, memload.group_collate),
        (DataLoader, dataset, memload.group_collate),
        (DataLoader, reference, collate_by_dataset),
    ):
        torch.default_generator.manual_seed(data.draw(st.just(3)))
        loader = kind(ds, collate_fn=collate, **arguments)
        passes.append([list(loader), list(loader)])
        if kind is memload.FastLoader:
            assert loader.engine == "native", loader.why
    assert equal(passes[0], passes[2])
    assert equal(passes[1], passes[2])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(member_sets(alike=True), st.integers(1, 9))
def test_alike_datasets_make_a_dataset_that_works_everywhere(members, batch_size):
    dataset, reference = memload.concat(members), by_hand(members)
    assert type(dataset) is memload.Dataset
    loader = memload.FastLoader(dataset, batch_size)
    assert loader.engine == "native"
    assert_equal_passes(loader, DataLoader(reference, batch_size))
    assert_equal_passes(DataLoader(dataset, batch_size), DataLoader(reference, batch_size))
    names = list(dataset.fields)
    tuples = [tuple(batch[name] for name in names) for batch in DataLoader(reference, batch_size)]
    assert_equal_passes([tuple(b) for b in memload.FastLoader(dataset.as_tuple(), batch_size)], tuples)


def small():
    g = torch.Generator().manual_seed(0)
    return {
        "mouse": memload.from_arrays(
            stim=torch.randint(0, 256, (40, 5, 7), dtype=torch.uint8, generator=g), robs=torch.randn(40, 3, generator=g)
        ),
        "monkey": memload.from_arrays(
            stim=torch.randint(0, 256, (25, 6, 7), dtype=torch.uint8, generator=g), eye=torch.randn(25, 2, generator=g)
        ),
        "cat": memload.from_arrays(stim=torch.randint(0, 256, (9, 5, 7), dtype=torch.uint8, generator=g)),
    }


def fast(dataset, batch_size=8, **kwargs):
    return memload.FastLoader(dataset, batch_size, collate_fn=memload.group_collate, **kwargs)


def test_the_dataset_idx_of_a_row_is_an_int_and_negative_rows_count_from_the_end():
    both = memload.concat(small())
    assert type(both) is memload.GroupedDataset
    assert both[-1]["dataset_idx"] == both[73]["dataset_idx"] == 2
    assert type(both[40]["dataset_idx"]) is int
    assert torch.equal(both[40]["stim"], small()["monkey"][0]["stim"])
    for wrong in (74, -75):
        with pytest.raises(IndexError, match="not one of the 74 rows"):
            both[wrong]
    with pytest.raises(TypeError, match="read row by row"):
        both[0:2]


def test_selections_of_selections_keep_names_and_numbers():
    both = memload.concat(small())
    chosen = both.select(range(73, -1, -2)).select([0, 1, 30])
    assert chosen.names == ("mouse", "monkey", "cat")
    assert [row["dataset_idx"] for row in chosen] == [2, 2, 0]
    assert {name: len(rows) for name, rows in chosen.rows_by_name().items()} == {"mouse": 1, "monkey": 0, "cat": 2}
    first, second = both.split(0.5, seed=1)
    assert len(first) == len(second) == 37
    assert sum(len(rows) for rows in first.rows_by_name().values()) == 37
    assert first.nbytes + second.nbytes == both.nbytes
    by_name = both.split(1 / 3, seed=1, by=[row["dataset_idx"] for row in both])
    found = [{row["dataset_idx"] for row in part} for part in by_name]
    assert len(found[0]) == 1
    assert found[1] == {0, 1, 2} - found[0]
    with pytest.raises(TypeError, match="by='x': the datasets of groups have fields of their own; give one key"):
        both.split(0.5, seed=1, by="x")
    with pytest.raises(IndexError, match="row 74 at position 1"):
        both.select([0, 74])


@pytest.mark.parametrize("pick", [("mouse", "monkey", "cat"), ("mouse", "mouse")])
def test_rows_by_name_are_where_the_rows_are(pick):
    members = {f"{name}{k}": small()[name] for k, name in enumerate(pick)}
    for dataset in (memload.concat(members), memload.concat(members).split(0.6, seed=2)[0]):
        for number, (name, rows) in enumerate(dataset.rows_by_name().items()):
            assert name == dataset.names[number]
            assert {dataset[int(row)]["dataset_idx"] for row in rows} <= {number}
        assert sorted(np.concatenate(list(dataset.rows_by_name().values()))) == list(range(len(dataset)))


@pytest.mark.parametrize("alike", [True, False])
def test_it_travels_as_a_pickle_and_copies_share(alike, tmp_path):
    members = {"a": small()["mouse"], "b": small()["mouse" if alike else "cat"]}
    files = {
        name: memload.write(tmp_path / name, member) or memload.open(tmp_path / name)
        for name, member in members.items()
    }
    for joined in (memload.concat(members), memload.concat(files)):
        chosen = joined.select(range(30, 45))
        again = pickle.loads(pickle.dumps(chosen))
        assert again.names == ("a", "b")
        assert all(equal(again[k], chosen[k]) for k in range(15))
        assert copy.copy(joined) is joined
        assert repr(again).startswith(f"memload.{type(joined).__name__}: 15 rows")
    assert len(pickle.dumps(memload.concat(files))) < 8_000


def test_the_numbers_of_many_rows_take_eight_bytes_in_all():
    zeros = np.broadcast_to(np.uint8(0), (10**9,))
    rows = memload.from_arrays(x=np.lib.stride_tricks.as_strided(zeros, (10**9,), (0,)))
    both = memload.concat({"a": rows, "b": rows})
    assert len(both) == 2 * 10**9
    assert both[10**9]["dataset_idx"] == 1


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ({}, ValueError, "at least one"),
        ({"a": [1, 2]}, TypeError, "dataset 'a' is a list"),
        ({"": "mouse"}, ValueError, "not a name"),
        ({"a": "mouse", "b": "tuples"}, ValueError, "the rows of dataset 'b' are no dicts"),
        ({"a": "joined"}, ValueError, "dataset 'a' has a field 'dataset_idx' already"),
    ],
)
def test_what_cannot_be_joined_by_name_is_refused(members, error, message):
    known = {
        **small(),
        "tuples": small()["mouse"].as_tuple("stim"),
        "joined": memload.concat({"x": small()["mouse"]}),
    }
    with pytest.raises(error, match=message):
        memload.concat({name: known[one] if isinstance(one, str) else one for name, one in members.items()})


def test_batches_of_datasets_that_differ_need_group_collate_and_why_says_so():
    loader = memload.FastLoader(memload.concat(small()), 50)
    assert loader.engine == "torch"
    assert "differ in fields, dtypes or shapes" in loader.why
    assert "collate_fn=memload.group_collate" in loader.why
    with pytest.raises(RuntimeError):
        list(loader)


def test_samples_without_a_number_are_refused():
    with pytest.raises(KeyError, match=r"sample 1 has .*x"):
        memload.group_collate([{"x": 1, "dataset_idx": 0}, {"x": 1}])
    with pytest.raises(TypeError, match="sample 0 is a tuple"):
        memload.group_collate([(1, 2)])
    with pytest.raises(TypeError, match="that of sample 0 is a float"):
        memload.group_collate([{"dataset_idx": 0.5}])
    loader = fast(small()["mouse"])
    assert loader.engine == "torch"
    assert "integer 'dataset_idx'" in loader.why
    with pytest.raises(KeyError, match="dataset_idx"):
        next(iter(loader))


def test_any_dataset_with_the_field_is_grouped_natively(tmp_path):
    tags = torch.tensor([3, 1, 3, 3, 1, 200, 1] * 5, dtype=torch.uint8)
    dataset = memload.from_arrays(x=torch.arange(35.0), dataset_idx=tags)
    memload.write(tmp_path / "shards", dataset)
    for one in (
        dataset,
        memload.open(tmp_path / "shards"),
        Subset(dataset, range(3, 30)),
        ConcatDataset([dataset, dataset]),
    ):
        loader = fast(one, 6)
        assert loader.engine == "native", loader.why
        assert_equal_passes(loader, DataLoader(one, 6, collate_fn=memload.group_collate))


def test_casts_apply_to_every_dataset_that_has_the_field():
    casts = {"stim": memload.Cast(torch.bfloat16, norm_removed=True), "eye": memload.Cast(torch.float64)}
    dataset = memload.concat(small())
    native = fast(dataset, shuffle=True, cast=casts, generator=torch.Generator().manual_seed(1))
    assert native.engine == "native"
    stock = fast(OneByOne(dataset), shuffle=True, cast=casts, generator=torch.Generator().manual_seed(1))
    assert stock.engine == "torch"
    batches = list(native)
    assert_equal_passes(batches, stock)
    assert {group["stim"].dtype for batch in batches for group in batch} == {torch.bfloat16}
    with pytest.raises(KeyError, match=r"eyes.*the datasets have .*stim.*robs.*dataset_idx.*eye"):
        fast(dataset, cast={"eyes": memload.Cast(torch.float32)})


@pytest.mark.parametrize("pick", [("mouse", "monkey", "cat"), ("mouse", "mouse")])
def test_a_float32view_is_converted_while_gathering(pick):
    view = memload.Float32View(memload.concat({f"{n}{k}": small()[n] for k, n in enumerate(pick)}), norm_removed=True)
    for dataset in (view, Subset(view, range(60, 10, -1))):
        assert fast(dataset).engine == "native"
        assert_equal_passes(fast(dataset), DataLoader(dataset, 8, collate_fn=memload.group_collate))


@pytest.mark.parametrize("float16", [False, True])
def test_views_that_convert_alike_are_joined_into_one_view(float16):
    parts = [memload.from_arrays(stim=torch.randint(0, 256, (n, 5), dtype=torch.uint8)) for n in (6, 4)]
    a, b = (memload.Float32View(part, True, float16) for part in parts)
    for joined in (memload.concat([a, b]), memload.concat(a, b), memload.concat(view for view in (a, b))):
        assert joined.float16 == float16
        assert_equal_passes(memload.FastLoader(joined, 4), DataLoader(ConcatDataset([a, b]), 4))
        assert memload.FastLoader(joined, 4).engine == "native"
    named = memload.concat({"a": a, "b": b})
    assert named.names == ("a", "b")
    assert named.rows_by_name() == {"a": range(6), "b": range(6, 10)}
    assert named[7]["dataset_idx"] == 1
    assert torch.equal(named[7]["stim"], b[1]["stim"])
    assert len(list(memload.MixingSampler(named, {"a": 1, "b": 1}, num_samples=8))) == 8


def test_views_of_datasets_that_differ_are_joined_by_name():
    members = {name: member for name, member in small().items() if "stim" in member.fields}
    views = {name: memload.Float32View(member, True) for name, member in members.items()}
    dataset = memload.Float32View(memload.concat(members), True)
    assert len(views) > 1
    assert fast(memload.concat(views)).engine == "native"
    assert_equal_passes(fast(memload.concat(views)), fast(dataset))


def test_views_that_cannot_be_joined_say_what_joins_them():
    class Own(memload.Float32View):
        pass

    ds = memload.from_arrays(stim=torch.zeros(3, dtype=torch.uint8))
    view = memload.Float32View(ds, True)
    for other, error, words in (
        (memload.Float32View(ds, False), ValueError, "dataset 0 has norm_removed=True, dataset 1 norm_removed=False"),
        (memload.Float32View(ds, True, True), ValueError, "ConcatDataset keeps each as it is"),
        (ds, TypeError, r"dataset 1 is a Dataset.*memload\.Float32View\(memload\.concat\("),
        (Own(ds, True), TypeError, "dataset 1 is an Own"),
        (memload.Float32View(TensorDataset(torch.zeros(2)), True), TypeError, "dataset 1 is a TensorDataset.*Concat"),
        (ds.map(dict), TypeError, "dataset 1 is a MappedDataset"),
    ):
        with pytest.raises(error, match=words):
            memload.concat([view, other])
        parts = ConcatDataset([view, other])  # which the messages name
        assert len(parts) == 3 + len(other)
    for other in (ds.map(dict), TensorDataset(torch.zeros(2)), view):
        with pytest.raises(TypeError, match="ConcatDataset joins datasets of any kind"):
            ds.concat(other)


def test_a_batch_sampler_of_ones_own_is_followed_row_by_row():
    batches = [[0, 73, 41], [5], [70, 71, -1, 2], list(range(74))]
    dataset = memload.concat(small())
    kwargs = {"batch_sampler": batches, "collate_fn": memload.group_collate}
    loader = memload.FastLoader(dataset, **kwargs)
    assert_equal_passes(loader, DataLoader(dataset, **kwargs))
    assert loader.engine == "native"


def test_a_row_that_is_not_there_is_an_index_error_in_its_turn():
    for kind in (memload.FastLoader, DataLoader):
        iterator = iter(kind(memload.concat(small()), 2, sampler=[0, 50, 74, 2, 3], collate_fn=memload.group_collate))
        assert len(next(iterator)) == 2
        with pytest.raises(IndexError, match="74"):
            next(iterator)


def test_an_error_of_one_member_comes_in_its_turn_and_ends_the_pass(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((64, 65536), dtype=np.uint8))
    members = {"sound": memload.from_arrays(x=torch.arange(64)), "cut": memload.open(path, field="x")}
    iterator = iter(fast(memload.concat(members), 8, depth=1, sampler=[*range(32), *range(56, 128)]))
    assert [len(next(iterator)) for _ in range(5)] == [1] * 5
    os.truncate(path, 4096)
    with pytest.raises(memload.ShardReadError, match="truncated"):
        for _ in range(9):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert threads_left() == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_breaks_leaves_no_threads_unless_they_are_to_persist(persistent):
    kept = {"num_workers": 1, "persistent_workers": True} if persistent else {}
    loader = fast(memload.concat(small()), shuffle=True, **kept)
    for _ in range(20):
        for batch in loader:
            assert batch
            break
    assert (threads_of_memload(1) if persistent else threads_left()) == int(persistent)
    full = list(loader)
    assert sum(len(group["dataset_idx"]) for batch in full for group in batch) == 74
    del loader, batch, full
    assert threads_left() == 0


def test_batches_that_are_kept_stay_as_they_are():
    dataset = memload.concat(small())
    kept = list(fast(dataset, 5, depth=1))
    assert_equal_passes(kept, DataLoader(dataset, 5, collate_fn=memload.group_collate))


def test_next_from_several_threads_hands_each_batch_out_once():
    iterator = iter(fast(memload.concat(small()), 3))
    seen = []

    def consume():
        seen.extend(len(group["dataset_idx"]) for batch in iterator for group in batch)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(seen) == 74


def test_statistics_count_batches_and_nbytes_is_the_most_that_slots_can_take():
    members = {
        name: memload.from_arrays(x=torch.zeros(600, size, dtype=torch.uint8))
        for name, size in (("a", 3000), ("b", 5000))
    }
    loader = fast(memload.concat(members), 100, shuffle=True, depth=2)
    assert len(list(loader)) == 12
    stats = loader.stats()
    assert (stats.batches, stats.rows) == (12, 1200)
    assert stats.bytes_out == 600 * (3008 + 5008)
    rings = 3 * 100 * (3008 + 5008)
    assert rings < loader.nbytes < 1.5 * rings


@pytest.mark.parametrize("pick", [("mouse", "cat"), ("mouse", "mouse")])
def test_after_a_fork_the_child_loads_afresh(pick):
    loader = fast(
        memload.concat({f"{n}{k}": small()[n] for k, n in enumerate(pick)}), num_workers=1, persistent_workers=True
    )
    expected = len(list(loader))
    inherited = iter(loader)
    next(inherited)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(RuntimeError, match="before the process was forked"):
                next(inherited)
            os._exit(0 if len(list(loader)) == expected else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(inherited)) == expected - 1


def scaled(sample):
    """A function that needs the number of the dataset as an int."""
    return {"x": sample["x"] * {0: 1, 1: 10}[sample["dataset_idx"]], "dataset_idx": sample["dataset_idx"]}


def test_functions_of_samples_and_batches_see_what_they_see_in_a_stock_loader():
    both = memload.concat({"a": memload.from_arrays(x=torch.arange(9)), "b": memload.from_arrays(x=torch.arange(7))})
    for dataset in (
        both.map(scaled),
        Subset(both, range(14, 1, -1)),
        memload.Dataset.map(both.select(range(3, 12)), scaled),
    ):
        loader = memload.FastLoader(dataset, 4)
        assert loader.engine == "native"
        assert_equal_passes(loader, DataLoader(dataset, 4))

    def count(groups):
        return [len(group["dataset_idx"]) for group in groups]

    for dataset in (both, memload.concat(small())):
        loader = fast(dataset, 10, batch_transform=count)
        assert loader.engine == "native"
        assert list(loader) == [count(groups) for groups in DataLoader(dataset, 10, collate_fn=memload.group_collate)]
    mapped = fast(both.map(scaled))
    assert "batch_transform=" in mapped.why
    assert_equal_passes(mapped, DataLoader(both.map(scaled), 8, collate_fn=memload.group_collate))


def test_rows_of_datasets_that_differ_are_mapped_one_by_one_on_stock_machinery():
    def doubled(sample):
        return {name: value if name == "dataset_idx" else value * 2 for name, value in sample.items()}

    members = {"a": memload.from_arrays(x=torch.arange(9)), "b": memload.from_arrays(y=torch.arange(7.0))}
    mapped = memload.concat(members).map(doubled)
    assert mapped[10] == {"y": torch.tensor(2.0), "dataset_idx": 1}
    loader = fast(mapped)
    assert "batch_transform=" in loader.why
    assert_equal_passes(loader, DataLoader(mapped, 8, collate_fn=memload.group_collate))
    assert memload.concat(members).map(doubled, in_processes=True).in_processes


def test_a_stock_loader_over_alike_datasets_gets_gathered_batches_and_ints():
    both = memload.concat({"a": memload.from_arrays(x=torch.arange(9)), "b": memload.from_arrays(x=torch.arange(7))})
    samples = both.__getitems__([1, 10, -1])
    assert [type(sample["dataset_idx"]) for sample in samples] == [int, int, int]
    assert [sample["dataset_idx"] for sample in samples] == [0, 1, 1]
    before = both.stats().batches
    batches = list(DataLoader(both, 4))
    assert both.stats().batches == before + 4
    assert batches[0]["dataset_idx"].dtype == torch.int64


@pytest.mark.parametrize("spoil", [False, True])
def test_a_stock_loader_groups_batches_that_were_gathered_as_a_whole(spoil):
    both = memload.concat({name: small()["mouse"] for name in ("a", "b")})

    def collate(samples):
        if spoil:  # then they are ordinary samples
            samples[1]["robs"] = samples[1]["robs"] + 1
        return memload.group_collate(samples)

    plain = [OneByOne(both)[row] for row in (3, 50, 4, 41, 79)]
    before = both.stats().batches
    (batch,) = DataLoader(both, 5, sampler=[3, 50, 4, 41, 79], collate_fn=collate)
    assert both.stats().batches == before + 1
    assert equal(batch, collate(plain))


def test_a_joined_dataset_is_written_and_grouped_after_it_was_opened_again(tmp_path):
    both = memload.concat({name: small()["mouse"] for name in ("a", "b")})
    memload.write(tmp_path / "joined", both)
    again = memload.open(tmp_path / "joined")
    assert fast(again).engine == "native"
    assert_equal_passes(fast(again), fast(both))


def test_what_is_written_to_an_array_meanwhile_shows_as_in_a_stock_loader():
    def passed(kind):
        arrays = {name: torch.zeros(16, size) for name, size in (("a", 2), ("b", 3))}
        dataset = memload.concat({name: memload.from_arrays(x=array) for name, array in arrays.items()})
        seen = []
        for number, batch in enumerate(kind(dataset, 4, sampler=[*range(0, 32, 3)], collate_fn=memload.group_collate)):
            seen.append(batch)
            arrays["b"] += number + 1
        return seen

    assert_equal_passes(passed(memload.FastLoader), passed(DataLoader))


def test_a_pass_by_groups_is_taken_up_where_it_stood():
    def loader():
        return fast(memload.concat(small()), 7, shuffle=True, generator=torch.Generator().manual_seed(4))

    whole = list(loader())
    stopped = loader()
    batches = iter(stopped)
    for _ in range(4):
        next(batches)
    again = loader()
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert_equal_passes(again, whole[4:])


@pytest.mark.parametrize("loader", [DataLoader, memload.FastLoader])
def test_what_is_written_to_one_group_is_no_change_of_another_to_autograd(loader):
    dataset = memload.concat({name: memload.from_arrays(x=torch.ones(4, 2)) for name in "ab"})
    first, second = next(iter(loader(dataset, batch_size=8, collate_fn=memload.group_collate)))
    weight = torch.ones(2, requires_grad=True)
    loss = (first["x"] * weight).sum()
    second["x"].sub_(1)
    loss.backward()
    assert weight.grad.tolist() == [4, 4]


def images(*sizes):
    """Datasets of 20 images each, of these sizes, which have the rows of one stream of random numbers."""
    draw = torch.Generator().manual_seed(0)
    pixels = {f"{k}, {size}": torch.randint(0, 256, (20, size, 7, 3), generator=draw) for k, size in enumerate(sizes)}
    return {name: memload.from_arrays(image=one.byte(), number=torch.arange(20)) for name, one in pixels.items()}


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize("where", ["native", "of one form", "torch", "device"])
def test_images_of_groups_are_laid_out_as_those_of_single_rows(layout, where):
    members = images(5, 5) if where == "of one form" else images(4, 5)
    joined = memload.concat(members)
    rule = memload.Cast(torch.float16, mean=(3, 90, 7), std=61, channels=-1, layout=layout)
    options = {"shuffle": True, "collate_fn": memload.group_collate, "cast": {"image": rule}}
    device = SimulatedInterface() if where == "device" else None
    options |= {"device": device} if device else {}
    loader = memload.FastLoader(joined.map(lambda row: row) if where == "torch" else joined, batch_size=6, **options)
    assert loader.engine == ("torch" if where == "torch" else "native")
    rows = {
        name: [row["image"] for row in memload.FastLoader(member, batch_size=1, cast={"image": rule})]
        for name, member in members.items()
    }
    seen = 0
    for group in (group for batch in loader for group in batch):
        for tensor in group.values() if device else ():
            device.read(tensor)()  # waits until it is there
        (name,) = {joined.names[k] for k in group["dataset_idx"].tolist()}
        assert torch.equal(group["image"], torch.cat([rows[name][k] for k in group["number"].tolist()]))
        form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        assert group["image"].is_contiguous(memory_format=form)
        seen += len(group["image"])
    assert seen == 40


def test_images_of_groups_are_not_augmented_and_the_error_says_what_to_do():
    rule = memload.Cast(torch.float32, augment=memload.Augment(flip=0.5))
    words = "'image': .*neither cropped, resized nor flipped: do what augment= would in batch_transform="
    with pytest.raises(ValueError, match=words):
        memload.FastLoader(memload.concat(images(4, 5)), 6, collate_fn=memload.group_collate, cast={"image": rule})
