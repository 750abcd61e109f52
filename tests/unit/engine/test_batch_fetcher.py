"""The batch fetcher: what a stock DataLoader gets when it asks a memload dataset for a batch."""

import copy
import gc
import multiprocessing
import operator
import pickle
import random
import threading
import weakref

import numpy as np
import pytest
import torch
from same_rows import OneByOne
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, default_collate
from torch.utils.data._utils import collate as torch_collate
from waiting import MOST_SECONDS

import memload
from memload.engine import batch_fetcher as fetcher
from memload.engine.gathered import DictRow, GatheredRows, TensorRow, TupleRow

LAYOUTS = ["dict", "tuple", "only"]


def dataset(layout="dict", n=50):
    generator = torch.Generator().manual_seed(n)
    ds = memload.from_arrays(
        stim=torch.randint(0, 256, (n, 4, 5), dtype=torch.uint8, generator=generator),
        robs=torch.randn(n, 3, generator=generator).to(torch.bfloat16),
        id=torch.arange(n),
    )
    return {"dict": ds, "tuple": ds.as_tuple(), "only": ds.only("stim")}[layout]


def view(n=50):
    return memload.Float32View(dataset(n=n), norm_removed=True)


def same(a, b):
    """Whether both are equal to the bit, in the same containers of the same types."""
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def passes(ds, seed=0, **arguments):
    torch.default_generator.manual_seed(seed)
    loader = DataLoader(ds, **arguments)
    return [copy.deepcopy(batch) for _ in range(2) for batch in loader]


AROUND = {
    "itself": lambda ds: ds,
    "Subset": lambda ds: Subset(ds, [3, 1, -1, 8, 8, 0, 20]),
    "Subset of Subset": lambda ds: Subset(Subset(ds, range(40, 10, -1)), range(5, 25)),
    "ConcatDataset": lambda ds: ConcatDataset([ds, Subset(ds, range(7))]),
    "StackDataset by name": lambda ds: StackDataset(a=ds, b=ds),
    "StackDataset by place": lambda ds: StackDataset(ds, ds),
}


@pytest.mark.parametrize(
    ("around", "workers"), [*((around, 0) for around in AROUND), ("itself", 2), ("StackDataset by name", 2)]
)
@pytest.mark.parametrize("make", [*LAYOUTS, "view"])
def test_a_stock_loader_gets_the_batches_that_it_gets_of_plain_samples(make, around, workers):
    ds = view() if make == "view" else dataset(make)
    arguments = {"batch_size": 8, "shuffle": True, "num_workers": workers}
    assert same(passes(AROUND[around](ds), **arguments), passes(AROUND[around](OneByOne(ds)), **arguments))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("around", ["itself", "Subset", "StackDataset by name"])
def test_the_native_gather_makes_every_batch_and_counts_it(layout, around):
    ds = dataset(layout)
    ways = 2 if "Stack" in around else 1
    rows = sum(len(batch) for batch in passes(AROUND[around](ds), batch_size=8, collate_fn=lambda rows: rows))
    assert ds.stats().rows == rows * ways
    assert ds.stats().batches == 2 * ways * -(-rows // 2 // 8)


def test_the_batches_of_a_view_are_converted_while_they_are_gathered():
    converted = view()
    passes(converted, batch_size=8)
    assert converted.stats().rows == 100
    assert converted.base.stats().rows == 100
    assert converted.stats().bytes_out > 3 * converted.stats().bytes_in / 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_default_collate_takes_the_gathered_memory_as_it_is(layout):
    rows = dataset(layout).__getitems__([4, 2, 9])
    first = rows[0]
    batch = default_collate(rows)
    tensor = {"dict": lambda b: b["stim"], "tuple": lambda b: b[0], "only": lambda b: b}[layout]
    assert tensor(first).data_ptr() == tensor(batch).data_ptr()
    assert type(tensor(batch)) is torch.Tensor


def test_two_loops_of_batches_share_few_slots():
    ds = dataset()
    seen = {batch["stim"].data_ptr() for _ in range(5) for batch in DataLoader(ds, batch_size=5)}
    assert len(seen) <= 3
    assert ds.stats().fresh_batches == 0


def test_who_holds_a_batch_while_the_next_two_are_asked_for_needs_no_fresh_memory():
    ds = dataset()
    iterator = iter(DataLoader(ds, batch_size=5))
    handed_out, ahead = None, next(iterator)
    for batch in iterator:  # as accelerate does, to know which batch is the last
        handed_out, ahead = ahead, batch
    assert handed_out is not None
    assert ds.stats().fresh_batches == 0


def test_batches_that_are_kept_stay_as_they_were():
    ds = dataset(n=100)
    kept = list(DataLoader(ds, batch_size=5))
    assert same(torch.cat([batch["id"] for batch in kept]), torch.arange(100))
    assert ds.stats().fresh_batches == 16


LOOKS = {
    "iterates": lambda rows: list(rows),
    "unpacks": lambda rows: [*rows],
    "indexes": lambda rows: [rows[i] for i in range(len(rows))],
    "indexes from the end": lambda rows: [rows[i - len(rows)] for i in range(len(rows))],
    "slices": lambda rows: rows[:],
    "slices a part": lambda rows: rows[1:3],
    "reverses": lambda rows: list(reversed(rows)),
    "copies": lambda rows: rows.copy(),
    "copies by the module": lambda rows: copy.copy(rows),
    "copies deeply": lambda rows: copy.deepcopy(rows),
    "pickles": lambda rows: pickle.loads(pickle.dumps(rows)),
    "adds": lambda rows: operator.add(rows, [1]),
    "is added": lambda rows: operator.add([1], rows),
    "multiplies": lambda rows: 2 * rows,
    "extends another": lambda rows: (out := [], out.extend(rows))[0],
    "is spliced in": lambda rows: (out := [0, 1], out.__setitem__(slice(1, 1), rows))[0],
    "appends": lambda rows: (rows.append(5), list(rows))[1],
    "pops": lambda rows: [rows.pop(), rows.pop(0), len(rows)],
    "deletes": lambda rows: (rows.__delitem__(0), list(rows))[1],
    "clears": lambda rows: (rows.clear(), list(rows), len(rows))[1:],
    "inserts": lambda rows: (rows.insert(1, "x"), list(rows))[1],
    "replaces": lambda rows: (rows.__setitem__(2, "x"), list(rows))[1],
    "sorts": lambda rows: sorted(rows, key=lambda row: -int(str(id_of(row)))),
    "sorts in place": lambda rows: (rows.sort(key=id_of), list(rows))[1],
    "shuffles": lambda rows: (random.Random(3).shuffle(rows), list(rows))[1],
    "filters": lambda rows: list(filter(lambda row: id_of(row) % 2 == 0, rows)),
    "enumerates": lambda rows: list(enumerate(rows)),
    "zips": lambda rows: list(zip(rows, range(9), strict=False)),
    "asks for the first": lambda rows: rows[0],
    "asks for the first from the end": lambda rows: rows[-len(rows)],
    "asks whether there are any": lambda rows: bool(rows),
    "asks for the length": lambda rows: len(rows),
    "is a list": lambda rows: isinstance(rows, list),
    "prints": lambda rows: repr(rows),
    "counts": lambda rows: rows.count("x"),
    "collates": default_collate,
    "collates a slice": lambda rows: default_collate(rows[:3]),
    "collates all but the first": lambda rows: default_collate(rows[1:]),
    "collates a list of them": lambda rows: default_collate(list(rows)),
    "collates in another order": lambda rows: default_collate(rows[::-1]),
    "collates twice the same": lambda rows: default_collate([rows[0], rows[0], rows[2]]),
    "converts": torch.utils.data.default_convert,
}


def id_of(row):
    return int(row["id"] if isinstance(row, dict) else row[2] if isinstance(row, tuple) else row.long().sum())


def plainly(value):
    """The value with the first row's container as a plain one: what it is in all but name."""
    if isinstance(value, TensorRow):
        return value.as_subclass(torch.Tensor)
    if isinstance(value, dict):
        return {key: plainly(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plainly, value))
    return [plainly(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_rows_are_a_list_of_real_samples_to_whoever(look, layout):
    ds, indices = dataset(layout), [4, 2, 9, 17, 3]
    expected = LOOKS[look]([ds[i] for i in indices])
    found = LOOKS[look](ds.__getitems__(indices))
    assert same(plainly(found), plainly(expected))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_first_row_is_of_a_type_of_our_own_and_that_is_a_subclass(layout):
    ds = dataset(layout)
    rows, plain = ds.__getitems__([4, 2, 9]), ds[0]
    assert isinstance(rows[0], type(plain))
    assert type(rows[0]) in (DictRow, TupleRow, TensorRow)
    assert {type(row) for row in rows[1:]} == {type(plain)}


ALTERATIONS = {
    "replaces a field": lambda row: row.update(robs=row["robs"] * 2),
    "adds a field": lambda row: row.update(more=torch.ones(2)),
    "removes a field": lambda row: row.pop("robs"),
    "reorders fields": lambda row: row.update(stim=row.pop("stim")),
    "writes in place": lambda row: row["stim"].fill_(7),
    "reshapes in place": lambda row: row["robs"].unsqueeze_(0),
    "asks for a gradient": lambda row: row["robs"].requires_grad_(),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
@pytest.mark.parametrize("how_many", ["first", "all"])
def test_what_a_collate_function_does_to_samples_is_in_the_batch(alteration, how_many):
    def collate(rows):
        for row in [rows[0]] if how_many == "first" else rows:
            ALTERATIONS[alteration](row)
        try:
            return default_collate(rows)
        except (RuntimeError, KeyError) as error:
            return type(error), str(error)

    ds, indices = dataset(), [4, 2, 9]
    expected, found = collate([ds[i] for i in indices]), collate(ds.__getitems__(indices))
    assert same(found, expected)
    if isinstance(found, dict):
        assert [x.requires_grad for x in found.values()] == [x.requires_grad for x in expected.values()]


def test_samples_that_somebody_looked_at_do_not_share_memory_with_the_batch():
    rows = dataset().__getitems__([4, 2, 9])
    samples = list(rows)
    batch = default_collate(rows)
    before = copy.deepcopy(samples)
    batch["stim"].zero_()
    assert same(list(map(plainly, samples)), list(map(plainly, before)))


def test_a_sample_that_is_kept_keeps_its_own_bytes_only():
    rows = dataset(n=50).__getitems__(range(50))
    kept = list(rows)[1:]
    assert {sample["stim"].untyped_storage().nbytes() for sample in kept} == {20}


def test_large_samples_are_not_copied_once_more():
    ds = memload.from_arrays(x=torch.arange(3 * 20_000).reshape(3, 20_000).float())
    rows = list(ds.__getitems__([2, 0, 1]))
    assert len({row["x"].untyped_storage().data_ptr() for row in rows}) == 1
    assert same(default_collate(rows), default_collate([ds[2], ds[0], ds[1]]))
    rows[1]["x"].requires_grad_().sum().backward()
    assert not rows[2]["x"].requires_grad


def test_rows_of_two_batches_collate_together():
    ds = dataset()
    one, two = ds.__getitems__([1, 2]), ds.__getitems__([3, 4])
    assert same(default_collate([one[0], two[0], two[1]]), default_collate([ds[1], ds[3], ds[4]]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rules_that_users_put_into_torchs_map_are_followed(layout, monkeypatch):
    def doubled(batch, *, collate_fn_map=None):
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map) * 2

    ds = dataset(layout)
    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, doubled)
    assert same(default_collate(ds.__getitems__([4, 2])), default_collate([ds[4], ds[2]]))


def test_a_rule_for_dicts_is_followed(monkeypatch):
    monkeypatch.setitem(torch_collate.default_collate_fn_map, dict, lambda batch, *, collate_fn_map: len(batch))
    assert default_collate(dataset().__getitems__([4, 2, 1])) == 3


def test_a_map_of_ones_own_is_followed():
    ds = dataset()
    rules = {torch.Tensor: lambda batch, *, collate_fn_map: len(batch)}
    assert torch_collate.collate(ds.__getitems__([4, 2]), collate_fn_map=rules) == {"stim": 2, "robs": 2, "id": 2}


def test_torch_still_collates_by_the_type_of_the_first_element_looked_up_in_its_map():
    """What gathered.py relies on; torch's documentation names the map, its module is not public."""
    seen = []

    class Own(dict):
        pass

    def rule(batch, *, collate_fn_map=None):
        seen.append((batch, collate_fn_map))
        return "ours"

    rows = [Own(), {}]
    torch_collate.default_collate_fn_map[Own] = rule
    try:
        assert default_collate(rows) == "ours"
    finally:
        del torch_collate.default_collate_fn_map[Own]
    assert seen[0][0] is rows
    assert seen[0][1] is torch_collate.default_collate_fn_map
    assert "default_collate_fn_map" in default_collate.__doc__
    assert torch_collate.default_collate_fn_map[torch.Tensor] is torch_collate.collate_tensor_fn


@pytest.mark.parametrize(
    ("indices", "error"),
    [([0, 50], IndexError), ([-51], IndexError), ([0.5], TypeError), (["a"], TypeError), ([slice(0, 2)], TypeError)],
)
def test_an_index_that_is_none_fails_as_it_does_for_one_sample(indices, error):
    ds = dataset()
    with pytest.raises(error) as alone:
        ds[indices[-1]]
    with pytest.raises(error) as together:
        ds.__getitems__(indices)
    assert str(together.value) == str(alone.value)


@pytest.mark.parametrize(
    "indices", [[], range(3), (1, -1), torch.tensor([3, 1]), np.array([2, 2]), [torch.tensor(3), np.int64(1)], [True]]
)
def test_indices_come_in_any_sequence(indices):
    ds = dataset()
    assert same(list(map(plainly, ds.__getitems__(indices))), [ds[i] for i in indices])


@pytest.mark.parametrize("base", [memload.Dataset, memload.Float32View])
def test_a_subclass_that_reads_samples_otherwise_is_asked_for_samples(base):
    class Doubled(base):
        def __getitem__(self, index):
            return {"twice": super().__getitem__(index)["id"] * 2}

    ds = Doubled(dataset().fields) if base is memload.Dataset else Doubled(dataset(), norm_removed=True)
    assert same(default_collate(ds.__getitems__([2, 5])), {"twice": torch.tensor([4, 10])})


def test_a_view_of_what_has_no_batches_converts_sample_by_sample():
    base = [{"stim": torch.full((2,), i, dtype=torch.uint8)} for i in range(4)]
    for plain in (base, Subset(base, range(4)), memload.Float32View(base, norm_removed=False)):
        over = memload.Float32View(plain, norm_removed=True)
        assert same(over.__getitems__([3, 0]), [over[3], over[0]])


def test_a_view_of_a_view_converts_as_it_does_for_one_sample():
    over = memload.Float32View(view(), norm_removed=True, float16=True)
    assert same(default_collate(over.__getitems__([3, 0])), default_collate([over[3], over[0]]))


def test_a_view_travels_to_a_spawned_process_without_its_slots():
    ds = view()
    passes(ds, batch_size=8)
    assert same(default_collate(pickle.loads(pickle.dumps(ds)).__getitems__([2, 3])), default_collate([ds[2], ds[3]]))


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_gather_with_slots_of_their_own(context):
    ds = dataset()
    passes(ds, batch_size=8)  # this process has slots when its workers start
    arguments = {"batch_size": 8, "num_workers": 1, "multiprocessing_context": context}
    assert same(passes(ds, **arguments), passes(OneByOne(ds), batch_size=8))


def worker_counts(ds, connection):
    list(DataLoader(ds, batch_size=10))
    connection.send(ds.stats().rows)


def test_a_forked_process_counts_what_it_gathers_itself():
    ds = dataset()
    list(DataLoader(ds, batch_size=10))
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=worker_counts, args=(ds, there))
    child.start()
    assert here.poll(MOST_SECONDS)
    assert here.recv() == 50
    child.join(MOST_SECONDS)
    assert child.exitcode == 0
    assert ds.stats().rows == 50


def test_a_custom_collate_in_a_worker_may_send_the_samples_themselves():
    ds = dataset()
    found = list(DataLoader(ds, batch_size=4, num_workers=1, collate_fn=list))
    assert same([row for rows in found for row in rows], [ds[i] for i in range(len(ds))])


def test_slots_end_with_the_dataset():
    ds = dataset()
    list(DataLoader(ds, batch_size=10))
    gone = weakref.ref(ds._fetcher._slots._pipeline)
    del ds
    gc.collect()
    assert gone() is None


def test_the_memory_of_very_large_batches_is_not_kept(monkeypatch):
    monkeypatch.setattr(fetcher, "_MOST_KEPT", 100_000)
    ds = memload.from_arrays(x=torch.arange(90_000).reshape(9, 10_000))
    batch = default_collate(ds.__getitems__(range(9)))
    assert ds._fetcher._slots._pipeline is None
    assert ds.stats().rows == 9
    assert torch.equal(default_collate(ds.__getitems__([3]))["x"], batch["x"][3:4])
    assert ds._fetcher._slots._pipeline is not None
    assert ds.stats().rows == 10


def test_batches_outlive_their_dataset():
    ds = dataset()
    batch = default_collate(ds.__getitems__([1, 2]))
    expected = default_collate([ds[1], ds[2]])
    del ds
    gc.collect()
    assert same(batch, expected)


def test_several_threads_may_ask_at_once():
    ds, wrong = dataset(n=500), []

    def ask(k):
        for i in range(0, 480, 7):
            batch = default_collate(ds.__getitems__(range(i, i + k)))
            if not torch.equal(batch["id"], torch.arange(i, i + k)):
                wrong.append((i, k))

    threads = [threading.Thread(target=ask, args=(k,)) for k in (1, 4, 9, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_SECONDS)
    assert wrong == []


def test_a_file_that_is_cut_short_raises_and_the_next_batch_is_its_own(tmp_path):
    path = tmp_path / "x.npy"
    rows = np.arange(400 * 4096, dtype=np.int32).reshape(400, 4096)
    np.save(path, rows)
    ds = memload.open(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(memload.ShardReadError):
        default_collate(ds.__getitems__([399]))
    name = next(iter(ds.fields))
    assert torch.equal(default_collate(ds.__getitems__([3]))[name][0], torch.from_numpy(rows[3]))


def test_rows_are_gathered_when_somebody_looks():
    ds = dataset()
    rows = ds.__getitems__([1, 2])
    assert isinstance(rows, GatheredRows)
    assert len(rows) == 2
    assert ds.stats().batches == 0
    default_collate(rows)
    assert ds.stats().batches == 1


def test_a_fast_loader_with_a_collate_function_of_ones_own_comes_through_here():
    ds = dataset()
    loader = memload.FastLoader(ds, batch_size=5, collate_fn=lambda rows: default_collate(rows))
    assert same(torch.cat([batch["id"] for batch in loader]), torch.arange(50))
    assert ds.stats().rows == 50


def test_a_first_sample_that_was_conjugated_is_collated_with_its_values():
    values = torch.randn(4, 3, dtype=torch.complex64)

    def conjugated_first(samples):
        samples[0]["x"] = samples[0]["x"].conj()
        return default_collate(samples)

    (batch,) = DataLoader(memload.from_arrays(x=values), 4, collate_fn=conjugated_first)
    assert torch.equal(batch["x"], torch.cat([values[:1].conj(), values[1:]]))
