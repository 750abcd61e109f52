"""Functions of samples and batches: the stock loader's results, ahead of the loop, in order, and ended in time."""

import collections
import contextlib
import dataclasses
import functools
import gc
import os
import pickle
import random
import re
import threading
import time
import traceback
import weakref

import numpy as np
import pytest
import torch
from programs import run
from repository import DOCS
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
from vision import v2
from waiting import MOST_SECONDS, coming

import memload
from memload.device.destinations import pinned
from memload.engine.readers import resolve
from memload.engine.request import EngineOptions
from memload.engine.transforms.concurrency import ConcurrencyTuner
from memload.engine.transforms.seeding import PassSeed, Randomness
from memload.engine.transforms.transform_pipeline import TransformPipeline


def images(n=40, seed=0):
    g = torch.Generator().manual_seed(seed)
    return memload.from_arrays(
        stim=torch.randint(0, 256, (n, 3, 6, 5), dtype=torch.uint8, generator=g), row=torch.arange(n)
    )


def doubled(sample):
    return {"stim": sample["stim"].numpy().astype(np.float32) * 2, "row": int(sample["row"]), "text": "a"}


def summed(sample):
    return sample["stim"].sum(), sample["row"]


def swapped(sample):
    return sample[1], sample[0]


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


class Function(torch.utils.data.Dataset):
    """What users write today."""

    def __init__(self, base, *functions):
        self.base, self.functions = base, functions

    def __len__(self):
        return len(self.base)

    def __getitem__(self, index):
        sample = self.base[index]
        for fn in self.functions:
            sample = fn(sample)
        return sample


def threads_of_transforms():
    return [t for t in threading.enumerate() if t.name.startswith("memload transform")]


def wait_until(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    assert condition()


# Equal to the stock loader.


@pytest.mark.parametrize(
    ("fast", "stock"),
    [
        (images().map(doubled), Function(images(), doubled)),
        (images().map(summed).map(swapped), Function(images(), summed, swapped)),
        (images().as_tuple("row", "stim").map(swapped), Function(images().as_tuple("row", "stim"), swapped)),
        (images().only("row").map(torch.neg), Function(images().only("row"), torch.neg)),
        (Subset(images().map(summed), [7, 3, 3, 1]), Subset(Function(images(), summed), [7, 3, 3, 1])),
        (ConcatDataset([images().map(summed)] * 2), ConcatDataset([Function(images(), summed)] * 2)),
        (
            memload.MappedDataset(TensorDataset(torch.arange(9), torch.ones(9, 2)), swapped),
            Function(TensorDataset(torch.arange(9), torch.ones(9, 2)), swapped),
        ),
        (
            memload.MappedDataset(memload.Float32View(images(), norm_removed=True), summed),
            Function(memload.Float32View(images(), norm_removed=True), summed),
        ),
    ],
    ids=["dict", "chained", "tuple", "only", "subset", "concat", "tensors", "view"],
)
@pytest.mark.parametrize("generator", [False, True])
def test_mapped_samples_make_the_stock_loaders_batches_and_leave_its_generator_states(fast, stock, generator):
    seen = []
    for kind, dataset in ((DataLoader, stock), (memload.FastLoader, fast), (DataLoader, fast)):
        torch.manual_seed(3)
        own = torch.Generator().manual_seed(5) if generator else None
        loader = kind(dataset, batch_size=7, shuffle=True, generator=own)
        states, batches = [], []
        for _ in range(2):
            iterator = iter(loader)
            while True:
                states.append((torch.get_rng_state(), own and own.get_state()))
                try:
                    batches.append(next(iterator))
                except StopIteration:
                    break
        seen.append((batches, states))
        if kind is memload.FastLoader:
            assert loader.engine == "native", loader.why
    assert equal(*(one[0] for one in seen[:2]))
    assert equal(*(one[0] for one in seen[1:]))
    for one in seen[1:]:
        assert all(equal(a[0], b[0]) and equal(a[1], b[1]) for a, b in zip(seen[0][1], one[1], strict=True))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler", [None, [5, 1, 1, 9, 3], [[1, 2], [3], [4, 5, 6]]])
def test_a_batch_transform_gets_the_cast_batch_on_both_engines(drop_last, sampler):
    ds = images()
    if sampler and isinstance(sampler[0], list):
        how = {"batch_sampler": sampler}
    else:
        how = {"batch_size": 3, "sampler": sampler, "drop_last": drop_last}
    cast = {"stim": memload.Cast(torch.float32, norm_removed=True)}

    def flipped(batch):
        assert batch["stim"].dtype == torch.float32
        return batch["stim"].flip(-1), batch["row"] * 2

    fast = memload.FastLoader(ds, cast=cast, batch_transform=flipped, **how)
    stock = memload.FastLoader(Function(ds), cast=cast, batch_transform=flipped, **how)
    assert (fast.engine, stock.engine) == ("native", "torch")
    expected = [flipped({**b, "stim": cast["stim"].apply(b["stim"])}) for b in DataLoader(ds, **how)]
    assert equal(list(fast), expected)
    assert equal(list(stock), expected)
    assert len(fast) == len(iter(stock)) == len(expected)


def test_a_cast_of_a_mapped_dataset_follows_the_map():
    cast = {"stim": memload.Cast(torch.float64)}
    fast = memload.FastLoader(images().map(doubled), 8, cast=cast)
    stock = memload.FastLoader(Function(images(), doubled), 8, cast=cast)
    assert (fast.engine, stock.engine) == ("native", "torch")
    assert next(iter(fast))["stim"].dtype == torch.float64
    assert equal(list(fast), list(stock))


def test_a_cast_by_name_of_tuples_that_a_function_made_says_how_to_give_it():
    mapped = images().as_tuple("stim", "row").map(lambda sample: sample)
    for dataset in (mapped, Function(mapped)):
        with pytest.raises(KeyError, match=r"positions 0 to 1, and no names where .*cast=\{0: torch.float32\}"):
            next(iter(memload.FastLoader(dataset, 8, cast={"stim": torch.float32})))
    stim, _ = next(iter(memload.FastLoader(mapped, 8, cast={0: torch.float32})))
    assert stim.dtype == torch.float32


def test_a_view_of_mapped_samples_and_a_concat_of_different_functions_run_on_stock_machinery():
    view = memload.FastLoader(memload.Float32View(images().map(dict), norm_removed=True), 4)
    assert view.engine == "torch"
    assert "map the view instead" in view.why
    mixed = memload.FastLoader(ConcatDataset([images().map(summed), images().map(dict)]), 4)
    assert mixed.engine == "torch"
    assert next(iter(view))["stim"].dtype == torch.float32


def test_selections_and_parts_of_a_mapped_dataset_are_mapped():
    ds = images().map(doubled)
    assert [sample["row"] for sample in ds.select([4, 2])] == [4, 2]
    first, second = ds.split(0.75, seed=1)
    assert (len(first), len(second)) == (30, 10)
    assert {sample["row"] for part in (first, second) for sample in part} == set(range(40))
    assert [row for (row,) in memload.MappedDataset(TensorDataset(torch.arange(5)), tuple).select([3, 1])] == [3, 1]
    with pytest.raises(TypeError, match="random_split"):
        memload.MappedDataset([1, 2], str).split(0.5, seed=0)
    assert "mapped by doubled" in repr(ds)
    assert len(pickle.loads(pickle.dumps(ds))) == 40


@pytest.mark.parametrize("make", [lambda: images().map(3), lambda: memload.MappedDataset(iter([]), str)])
def test_map_refuses_what_is_no_function_or_no_dataset(make):
    with pytest.raises(TypeError, match="map "):
        make()


def test_a_batch_transform_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="batch_transform= takes a function of one batch, got str"):
        memload.FastLoader(images(), batch_transform="flip")


def test_heavy_functions_run_in_worker_processes_where_asked():
    ds = images(8).map(in_which_process, in_processes=True)
    loader = memload.FastLoader(ds, batch_size=4, num_workers=1, multiprocessing_context="fork")
    assert loader.engine == "torch"
    assert "in_processes=True" in loader.why
    assert set(torch.cat(list(loader)).tolist()).isdisjoint({os.getpid()})
    there = memload.FastLoader(images(8).map(in_which_process), batch_size=4, num_workers=1)
    assert set(torch.cat(list(there)).tolist()) == {os.getpid()}


def in_which_process(sample):
    return os.getpid()


# Order, and what waits.


def test_batches_come_in_order_whatever_each_takes():
    def uneven(batch):
        time.sleep(0.02 if batch["row"][0] % 3 == 0 else 0.0)
        return batch["row"]

    loader = memload.FastLoader(images(), 1, batch_transform=uneven, threads=4)
    assert torch.cat(list(loader)).tolist() == list(range(40))


@pytest.mark.parametrize(("depth", "threads"), [(1, 1), (2, 3)])
def test_no_function_is_called_further_ahead_of_the_loop_than_depth_and_threads(depth, threads):
    calls = []

    def counted(batch):
        calls.append(1)
        return batch

    loader = memload.FastLoader(images(), 1, batch_transform=counted, threads=threads, depth=depth)
    for handed, _batch in enumerate(loader, start=1):
        wait_until(lambda n=handed: len(calls) >= min(40, n + depth + threads))
        time.sleep(0.002)
        assert len(calls) <= handed + depth + threads


def test_slots_for_batches_under_way_are_counted_and_suffice():
    calls, depth, threads = [], 2, 3

    def part(batch):
        calls.append(1)
        return {**batch, "x": batch["stim"][:, 1:]}  # views of slots

    mapped = memload.FastLoader(images(), 1, depth=depth, threads=threads, batch_transform=part)
    assert mapped.nbytes == memload.FastLoader(images(), 1, depth=depth + threads).nbytes
    batches = iter(mapped)
    for handed in range(1, 41):
        batch = next(batches)
        assert batch["x"].shape[1] == batch["stim"].shape[1] - 1
        wait_until(lambda n=handed: len(calls) >= min(40, n + depth + threads))
        del batch  # before the next is asked for, for which a thread then wants its slot
    # With one slot fewer, each batch but the first ones would be fresh. Each thread may hold the last one that it made
    # for as long as the machine lets it wait.
    assert mapped.stats().fresh_batches <= threads


def test_kept_batches_and_views_stay_as_they_are():
    loader = memload.FastLoader(images(), 4, threads=2, batch_transform=lambda b: (b["stim"][:, 1], b["row"].numpy()))
    kept = list(loader)
    expected = images()
    for k, (stim, rows) in enumerate(kept):
        assert rows.tolist() == list(range(4 * k, 4 * k + 4))
        assert torch.equal(stim, torch.stack([expected[int(row)]["stim"][1] for row in rows]))


def test_the_transform_runs_while_the_loop_works():
    done = threading.Event()
    loader = memload.FastLoader(images(), 20, batch_transform=lambda b: (b["row"][0] == 20 and done.set(), b))
    next_batch = iter(loader)
    next(next_batch)
    assert done.wait(MOST_SECONDS)  # the second is made before anybody asks for it


def test_whatever_a_transform_returns_is_pinned_as_far_as_it_can_be():
    class Pins:
        def pin_memory(self):
            return "pinned"

    Pair = collections.namedtuple("Pair", "a b")
    given = {"x": [Pins(), 3], "y": (Pins(), "text"), "z": Pair(Pins(), None)}
    assert pinned(given) == {"x": ["pinned", 3], "y": ("pinned", "text"), "z": Pair("pinned", None)}


def test_groups_of_many_datasets_are_transformed_while_their_plan_goes_on():
    ds = memload.concat({"a": images(30), "b": images(30, seed=1)})
    how = {"batch_sampler": [[k, 30 + k, k] for k in range(30)], "collate_fn": memload.group_collate}
    expected = list(memload.FastLoader(ds, **how))
    loader = memload.FastLoader(ds, depth=2, threads=3, batch_transform=lambda batch: batch, **how)
    assert loader.engine == "native"
    assert equal(list(loader), expected)


# Errors.


class OddError(Exception):
    def __init__(self, row, reason):
        super().__init__(f"{row}: {reason}")
        self.row = row


def fails_at_17(sample):
    if sample["row"] == 17:
        raise OddError(17, "not today")
    return sample["row"]


def test_an_exception_of_a_function_comes_in_its_turn_with_type_and_traceback_and_the_next_batch_follows():
    iterator = iter(memload.FastLoader(images().map(fails_at_17), 5, threads=2))
    assert torch.cat([next(iterator) for _ in range(3)]).tolist() == list(range(15))
    with pytest.raises(OddError, match="17: not today") as raised:
        next(iterator)
    assert raised.value.row == 17
    assert 'raise OddError(17, "not today")' in "".join(traceback.format_tb(raised.tb))
    assert torch.cat(list(iterator)).tolist() == list(range(20, 40))  # as the stock iterator goes on


def raised_by(loader):
    with pytest.raises((OddError, RuntimeError)) as caught:
        list(loader)
    (note,) = caught.value.__notes__
    return note


def odd_of(sample):
    if sample["label"] == 13:
        raise OddError(3, 4)
    return sample


def odd_with_rng(sample, rng):
    rng.random()
    return odd_of(sample)


def odd_of_batch(batch):
    if 13 in batch["label"]:
        raise OddError(3, 4)
    return batch


def repeated(sample):
    return {"x": sample["label"].repeat(1 + int(sample["label"] == 13))}


LABELS = memload.from_arrays(label=torch.arange(20))


@pytest.mark.parametrize(
    ("dataset", "row"),
    [
        (LABELS.map(odd_of), 13),
        (LABELS.map(odd_with_rng), 13),
        (LABELS.select([11, 12, 13]).map(odd_of), 2),
        (Subset(LABELS.map(odd_of), [1, 13]), 1),
        (memload.concat({"a": LABELS.select([0]), "b": LABELS}).map(odd_of), 14),
    ],
)
def test_an_error_of_a_function_of_samples_names_the_row_of_the_loaders_dataset(dataset, row):
    loader = memload.FastLoader(dataset, batch_size=4)
    note = raised_by(loader)
    assert note.startswith(f"memload: at row {row} of the loader's dataset, in map(odd_")
    assert "_with_int_tag" not in note
    with pytest.raises(OddError):
        loader.dataset[row]


def test_an_error_of_a_function_of_batches_names_the_rows_and_on_stock_machinery_the_batch():
    note = raised_by(memload.FastLoader(LABELS, batch_size=10, batch_transform=odd_of_batch))
    assert note == (
        "memload: in the batch of rows 10, 11, 12, 13, 14, 15, 16, 17 and 2 more of the loader's dataset, "
        "in batch_transform=odd_of_batch"
    )
    note = raised_by(memload.FastLoader(list(LABELS), batch_size=10, batch_transform=odd_of_batch))
    assert note == "memload: in batch 1, counted from 0, in batch_transform=odd_of_batch"


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    label: int


def frozen_of(sample):
    raise FrozenError(int(sample["label"]))


@pytest.mark.parametrize(
    "made",
    [
        lambda: memload.FastLoader(LABELS.map(frozen_of), batch_size=4),
        lambda: memload.FastLoader(LABELS, batch_size=1, batch_transform=frozen_of),
        lambda: DataLoader(LABELS.map(frozen_of), batch_size=4),
    ],
)
def test_an_error_that_takes_no_notes_is_raised_as_it_is(made):
    with pytest.raises(FrozenError, match=r"^0$"):
        list(made())


def test_samples_that_do_not_join_are_named_by_their_rows():
    note = raised_by(memload.FastLoader(LABELS.map(repeated), batch_size=2))
    assert note == (
        "memload: in the batch of rows 12, 13 of the loader's dataset: the results of map(repeated) do not join"
    )


def test_a_copied_sample_with_rows_of_many_lengths_is_told_to_be_changed_in_place():
    ragged = memload.from_arrays(r=memload.ragged([torch.ones(n) for n in (2, 3)]), text=["a", "bc"])
    note = raised_by(memload.FastLoader(ragged.map(lambda sample: {**sample, "r": sample["r"] * 2}), batch_size=2))
    assert "do not join; rows of 'r' differ in length: change the sample that the function is given" in note

    def changed(sample):
        sample["r"] = sample["r"] * 2
        return sample

    (batch,) = memload.FastLoader(ragged.map(changed), batch_size=2)
    assert batch["r"].lengths.tolist() == [2, 3]


def test_a_stock_loader_over_mapped_samples_names_the_row_once_however_often_the_error_passes():
    assert raised_by(DataLoader(LABELS.map(odd_of), batch_size=4)) == (
        "memload: at row 13 of the mapped dataset, in map(odd_of)"
    )
    assert raised_by(DataLoader(LABELS.map(odd_of).map(repeated), batch_size=4)) == (
        "memload: at row 13 of the mapped dataset, in map(odd_of)"
    )


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_stop_iteration_of_a_transform_does_not_end_the_loop_unheard(engine):
    def stops(batch):
        raise StopIteration

    dataset = images() if engine == "native" else Function(images())
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(memload.FastLoader(dataset, 5, batch_transform=stops))


def test_an_index_that_is_not_there_is_still_an_index_error_in_its_turn():
    iterator = iter(memload.FastLoader(images(), 1, sampler=[1, 99, 2], batch_transform=lambda b: b["row"].item()))
    assert next(iterator) == 1
    with pytest.raises(IndexError):
        next(iterator)
    assert next(iterator) == 2


def test_what_collate_does_not_take_says_so_as_in_the_stock_loader():
    with pytest.raises(TypeError, match="default_collate"):
        next(iter(memload.FastLoader(images().map(lambda sample: object()), 4)))


@pytest.mark.usefixtures("passes_end_patiently")
def test_a_function_that_never_returns_meets_the_timeout_and_the_end_of_the_pass():
    never = threading.Event()
    loader = memload.FastLoader(images(), 4, timeout=0.2, batch_transform=lambda b: never.wait())
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(iter(loader))
    assert time.monotonic() - began < 100  # the end of the pass waits for no function then
    never.set()
    wait_until(lambda: not threads_of_transforms())


@pytest.mark.parametrize("workers", [0, 1])
def test_after_a_timeout_the_loop_may_wait_once_more_and_loses_no_batch(workers):
    free, pulled = threading.Event(), []

    class InOrder(torch.utils.data.Sampler):
        def __iter__(self):
            return (pulled.append(row) or row for row in range(8))

    def waiting(batch):
        free.wait()
        return batch["row"].tolist()

    loader = memload.FastLoader(
        images(8), 1, sampler=InOrder(), num_workers=workers, timeout=0.1, batch_transform=waiting
    )
    batches = iter(loader)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"timed out after 0\.1 seconds"):
            next(batches)
    assert len(pulled) == (2 if workers else 1)  # as many as at first, however often it was asked
    free.set()
    assert list(coming(batches)) == [[row] for row in range(8)]


# Randomness.


def noisy(sample, rng, generator):
    return {
        "row": sample["row"],
        "torch": torch.rand(2) + torch.empty(2).normal_(),
        "numpy": rng.random(2),
        "own": torch.randint(0, 1000, (2,), generator=generator),
    }


def jittered(batch):
    return {**batch, "noise": torch.randn_like(batch["torch"]), "kept": torch.nn.functional.dropout(batch["torch"])}


def passes_of(passes=1, *, seed=1, **arguments):
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the state that must not move
    loader = memload.FastLoader(images().map(noisy), 8, shuffle=True, batch_transform=jittered, **arguments)
    assert loader.engine == "native"
    found = [list(loader) for _ in range(passes)]
    return found, torch.get_rng_state(), np.random.get_state()[2]  # noqa: NPY002


def test_random_numbers_do_not_depend_on_threads_or_depth_and_touch_no_global_generator():
    reference = passes_of(2, threads=1, depth=1)
    for threads, depth in ((2, 2), (5, 3)):
        assert equal(passes_of(2, threads=threads, depth=depth)[0], reference[0])
    torch.manual_seed(1)
    plain = memload.FastLoader(images(), 8, shuffle=True)
    assert [len(list(plain)) for _ in range(2)] == [5, 5]
    assert torch.equal(torch.get_rng_state(), reference[1])
    assert reference[2] == 624  # freshly seeded: nothing was drawn
    first, second = reference[0]
    assert not equal(sorted_by_row(first), sorted_by_row(second))
    assert not equal(passes_of(2, seed=2)[0], reference[0])


def sorted_by_row(batches):
    rows = torch.cat([batch["row"] for batch in batches])
    return torch.cat([batch["torch"] for batch in batches])[rows.argsort()]


def test_a_row_draws_the_same_whatever_the_order_and_the_size_of_batches():
    found = {}
    for size, sampler in ((8, None), (3, list(range(39, -1, -1)))):
        own = torch.Generator().manual_seed(4)  # nothing but the base seed is drawn from it
        batches = list(memload.FastLoader(images().map(noisy), size, sampler=sampler, generator=own))
        found[size] = sorted_by_row(batches), torch.cat([b["numpy"] for b in batches])
    assert torch.equal(found[8][0], found[3][0])
    assert torch.equal(found[8][1], found[3][1].flip(0))
    assert len(found[8][0].unique()) == 80


def numpy_alone(sample, rng):
    return {"row": sample["row"], "numpy": rng.random(2)}


def numpy_beside_torch(sample, rng, generator):
    return numpy_alone(sample, rng)


def numpy_further_on(sample, rng):
    return {**sample, "again": rng.random(2)}


def test_numpys_generator_gives_a_row_the_same_numbers_whatever_else_is_asked_for():
    found = []
    for ds in (
        images().map(numpy_alone),
        images().map(numpy_beside_torch),
        images().map(numpy_alone).map(numpy_further_on),
    ):
        own = torch.Generator().manual_seed(4)
        batches = list(memload.FastLoader(ds, 8, shuffle=True, generator=own, batch_transform=also_numpy))
        found.append({name: torch.cat([batch[name] for batch in batches]) for name in batches[0]})
    alone, beside, chained = found
    assert equal(alone, beside)
    assert len(alone["numpy"].unique()) == 80
    assert torch.equal(chained["numpy"], alone["numpy"])
    assert not set(chained["again"].flatten().tolist()) & set(alone["numpy"].flatten().tolist())  # the stream goes on
    assert torch.equal(chained["batch"], alone["batch"])
    assert len(alone["batch"].unique()) == 40


def also_numpy(batch, rng):
    return {**batch, "batch": torch.from_numpy(rng.random(len(batch["row"])))}


def twice(again, sample, generator):
    first = generator.initial_seed(), generator.get_state()
    drawn = torch.rand(3)
    again(generator, *first)
    return {"row": sample["row"], "first": drawn, "second": torch.rand(3)}


def by_state(generator, seed, state):
    generator.set_state(state)


def by_seed(generator, seed, state):
    generator.manual_seed(seed)


@pytest.mark.parametrize("again", [by_state, by_seed])
def test_a_row_draws_the_same_numbers_twice_where_it_seeds_its_generator_again(again):
    ds = images().map(functools.partial(twice, again))
    drawn = torch.cat([batch["first"] for batch in memload.FastLoader(ds, 8, shuffle=True, threads=2)])
    assert len(drawn.unique()) == 120
    for batch in [ds[3], *memload.FastLoader(ds, 8, threads=2), *torch.utils.data.DataLoader(ds, 8)]:
        assert torch.equal(batch["first"], batch["second"])


def seeds_everything(sample):
    torch.manual_seed(7)
    torch.set_rng_state(torch.get_rng_state())
    np.random.seed(7)  # noqa: NPY002
    random.seed(7)
    return {"row": sample["row"], "torch": torch.rand(2)}


@pytest.mark.filterwarnings("ignore:map. seeds_everything calls torch:UserWarning")
def test_calls_that_seed_the_process_change_nothing_of_what_rows_draw_and_are_left_alone():
    def made(fn):
        own = torch.Generator().manual_seed(4)
        batches = iter(memload.FastLoader(images().map(fn), 8, generator=own, threads=2))
        first = next(batches)
        theirs = (torch.random.default_generator, torch.cuda.manual_seed_all, np.random.seed, random.seed)
        return sorted_by_row([first, *batches]), theirs

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    theirs = (torch.default_generator, torch.cuda.manual_seed_all, np.random.seed, random.seed)
    try:
        seeding, during = made(seeds_everything)
        quiet, _ = made(lambda sample: {"row": sample["row"], "torch": torch.rand(2)})
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
    assert torch.equal(seeding, quiet)
    assert all(one is other for one, other in zip(theirs, during, strict=True))


def test_persistent_workers_are_seeded_once_and_count_their_passes():
    own = torch.Generator().manual_seed(4)
    loader = memload.FastLoader(images().map(noisy), 8, num_workers=1, persistent_workers=True, generator=own)
    passes = [sorted_by_row(list(loader)) for _ in range(3)]
    assert len({tuple(one.flatten().tolist()) for one in passes}) == 3


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_after_a_resume_random_numbers_are_those_that_would_have_come(engine):
    dataset = images().map(noisy) if engine == "native" else Function(images())

    def make(threads):
        own = torch.Generator().manual_seed(4)
        transform = jittered if engine == "native" else lambda batch: (batch, torch.rand(3))
        return memload.FastLoader(dataset, 4, shuffle=True, generator=own, batch_transform=transform, threads=threads)

    first = make(2)
    assert first.engine == engine
    iterator = iter(first)
    begun = [next(iterator) for _ in range(3)]
    state = first.state_dict()
    rest = list(iterator)
    resumed = make(3)
    resumed.load_state_dict(state)
    assert equal(list(resumed), rest)
    assert not equal(begun[0], rest[0])


def test_behind_stock_machinery_a_batch_transform_draws_from_its_own_generator_too():
    def draws(batch, generator):
        return torch.rand(3), torch.rand(3, generator=generator)

    def run(**arguments):
        torch.manual_seed(8)
        loader = memload.FastLoader(Function(images(), dict), 8, shuffle=True, **arguments)
        return [list(loader) for _ in range(2)], torch.get_rng_state()

    (first, second), state = run(batch_transform=draws)
    assert equal(run(batch_transform=draws)[0], [first, second])
    assert not equal(first, second)
    assert torch.equal(state, run()[1])


def test_on_the_spot_a_function_draws_from_the_default_generator():
    ds = images().map(noisy)
    torch.manual_seed(0)
    first = ds[3]
    assert not equal(torch.as_tensor(first["numpy"]), torch.as_tensor(ds[3]["numpy"]))
    torch.manual_seed(0)
    assert equal(torch.as_tensor(ds[3]["numpy"]), torch.as_tensor(first["numpy"]))


def test_a_generator_that_the_user_bound_is_not_replaced():
    def draw(batch, generator):
        return generator.initial_seed()

    def default(batch, generator=torch.Generator().manual_seed(77)):  # noqa: B008 - the case
        return generator.initial_seed()

    import functools

    bound = functools.partial(draw, generator=torch.Generator().manual_seed(77))
    for transform in (bound, default):
        assert next(iter(memload.FastLoader(images(), 8, batch_transform=transform))) == 77


# What people transform with.


def test_a_module_runs_without_gradients_and_keeps_its_mode():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.full((), 2.0))

        def forward(self, batch, generator):
            assert self.training
            return torch.nn.functional.dropout(batch["stim"] * self.factor, 0.5, self.training)

    module = Scale()
    batches = list(memload.FastLoader(images(), 8, batch_transform=module))
    assert not any(batch.requires_grad for batch in batches)
    assert all(set((b / 4).unique().tolist()) <= set(range(256)) for b in batches)
    assert torch.is_grad_enabled()
    weight = torch.ones(1, requires_grad=True)
    (batches[0].mean() * weight).sum().backward()  # a batch is an ordinary tensor: no inference tensor
    assert weight.grad is not None


def test_torchvision_transforms_of_batches_and_samples_are_reproducible():
    flip = v2.Compose([v2.RandomHorizontalFlip(0.5), v2.RandomCrop(4), v2.ColorJitter(0.3), v2.ToDtype(torch.float32)])
    ds = images().only("stim")

    def run(threads):
        torch.manual_seed(0)
        whole = list(memload.FastLoader(ds, 8, shuffle=True, batch_transform=flip, threads=threads))
        return whole, list(memload.FastLoader(ds.map(flip), 8, shuffle=True, threads=threads))

    before = run(1)
    assert equal(run(3), before)
    assert before[1][0].shape == (8, 3, 4, 4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_pipeline_is_compiled_once_and_draws_reproducibly(backend):
    torch.compiler.reset()

    def pipeline(batch):
        return batch["stim"].float().mul(2).add(1)

    def random(batch):
        return batch["stim"].float() + torch.rand(batch["stim"].shape)

    compiled = torch.compile(pipeline, backend=backend)
    batches = list(memload.FastLoader(images(), 8, batch_transform=compiled, threads=2))
    assert equal(batches, [pipeline(batch) for batch in DataLoader(images(), 8)])
    torch.manual_seed(2)
    state = torch.get_rng_state()
    runs = []
    for threads in (1, 3):
        torch.manual_seed(2)
        compiled = torch.compile(random, backend=backend)
        runs.append(list(memload.FastLoader(images(), 8, batch_transform=compiled, threads=threads)))
    assert equal(*runs)
    torch.set_rng_state(state)


def test_what_draws_only_from_the_process_is_refused_by_name():
    drop = torch.nn.Dropout2d()
    loader = memload.FastLoader(images(), 8, batch_transform=lambda b: drop(b["stim"].float()))
    with pytest.raises(RuntimeError, match="dropout2d draws from torch's process-wide generator"):
        next(iter(loader))
    drop.eval()
    assert next(iter(loader)).shape == (8, 3, 6, 5)


# The end of a pass.


@pytest.mark.usefixtures("passes_end_patiently")
def test_two_hundred_loops_that_break_leave_no_thread():
    loader = memload.FastLoader(images(), 2, batch_transform=lambda b: b["row"] + 1, threads=2)
    for _ in range(200):
        for _batch in loader:
            break
    del _batch
    gc.collect()
    assert threads_of_transforms() == []


@pytest.mark.usefixtures("passes_end_patiently")
def test_an_iterator_that_is_dropped_or_fails_in_the_loop_ends_its_threads_and_memory():
    def looped():
        for batch in memload.FastLoader(images().map(doubled), 2, threads=2):
            seen.append(weakref.ref(batch["stim"]))
            raise KeyError("in the loop")

    seen = []
    with pytest.raises(KeyError):
        looped()
    gc.collect()
    assert seen[0]() is None
    assert threads_of_transforms() == []
    iterator = iter(memload.FastLoader(images(), 2, batch_transform=dict))
    next(iterator)
    assert threads_of_transforms()
    iterator.close()
    iterator.close()
    assert threads_of_transforms() == []
    assert list(iterator) == []


def test_a_pass_that_is_closed_amid_the_samples_of_a_batch_ends_at_the_next_sample():
    def slow(sample):
        calls.append(1)
        begun.set()
        may_go_on.wait(MOST_SECONDS)
        return sample

    calls, begun, may_go_on = [], threading.Event(), threading.Event()
    iterator = iter(memload.FastLoader(images().map(slow), 8, num_workers=1))  # which begins with iter()
    assert begun.wait(MOST_SECONDS)
    iterator.close()
    may_go_on.set()
    for thread in threads_of_transforms():
        thread.join(MOST_SECONDS)
    assert threads_of_transforms() == []
    assert len(calls) == 1


def test_transform_threads_share_what_torch_has_per_operation_and_leave_it_to_others_as_before():
    before, shares = torch.get_num_threads(), []
    torch.set_num_threads(4)

    def count(batch):
        batch["stim"].float()
        shares.append(torch.get_num_threads())
        return batch

    try:
        list(memload.FastLoader(images(), 8, batch_transform=count, threads=2))
        assert (set(shares), torch.get_num_threads()) == ({2}, 4)
    finally:
        torch.set_num_threads(before)
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), later) == (before, [before])


ENDINGS = """
import os, signal, sys, threading, time, memload, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may have it ignored
ds = memload.from_arrays(x=torch.arange(100))
def blocks(batch):
    {block}
loader = memload.FastLoader(ds, 4, batch_transform=blocks, threads=2)
iterator = iter(loader)
try:
    {loop}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(0)
"""


INTERRUPT = "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()"


@pytest.mark.parametrize(
    ("block", "loop", "told"),
    [
        ("time.sleep(1000)", f"{INTERRUPT}; next(iterator)", ["interrupted"]),
        ("threading.Event().wait()", f"{INTERRUPT}; next(iterator)", ["interrupted"]),
        ("return batch", f"next(iterator); {INTERRUPT}; time.sleep(1000)", ["interrupted"]),
        ("return batch", "next(iterator)", []),
    ],
)
def test_ctrl_c_and_exit_end_the_process_in_time_even_with_a_function_that_never_returns(block, loop, told):
    done = run(ENDINGS.format(block=block, loop=loop))
    assert (done.status, done.out) == (0, told), done.err


def test_an_iterator_that_crossed_a_fork_says_so_and_the_child_loads_afresh():
    loader = memload.FastLoader(images(), 4, batch_transform=lambda b: b["row"].tolist())
    iterator = iter(loader)
    assert next(iterator) == [0, 1, 2, 3]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                next(iterator)
            except RuntimeError as error:
                told = "made before the process was forked" in str(error)
            iterator.close()
            os.write(write, b"yes" if told and next(iter(loader)) == [0, 1, 2, 3] else b"no")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"yes"
    os.close(read)
    assert next(iterator) == [4, 5, 6, 7]


# What the loader says of itself.


def test_the_statistics_name_the_transform_where_it_is_the_limit():
    slow = memload.FastLoader(images(), 8, threads=1, batch_transform=lambda b: time.sleep(0.02))
    began = time.perf_counter()
    assert list(slow) == [None] * 5
    stats = slow.stats()
    assert (stats.batches, stats.rows) == (5, 40)
    assert 0.1 <= stats.transform_seconds <= time.perf_counter() - began
    for _ in range(1000):  # on a busy machine the gather, too, may keep the loop waiting now and then
        if "for the transform" in slow.stats().limit:
            break
        list(slow)
    assert "for the transform" in slow.stats().limit
    assert "for the transform" not in memload.FastLoader(images(), 8).stats().limit


@pytest.mark.usefixtures("passes_end_patiently")
def test_transform_threads_are_as_many_as_gather_or_as_said():
    def threads(**arguments):
        iterator = iter(memload.FastLoader(images(), 1, batch_transform=dict, **arguments))
        next(iterator)
        try:
            return len(threads_of_transforms())
        finally:
            iterator.close()

    assert threads(threads=3) == 3
    assert threads(num_workers=1) == 1
    assert threads(threads=30) == 8
    assert threads(options=EngineOptions(threads=1, transform_threads=4)) == 4


def test_the_examples_of_the_page_run():
    page = DOCS / "transforms.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    scope = {}
    for block in blocks:
        exec(block, scope)


class ShoutedError(RuntimeError):
    """An error that can be looked at weakly."""


def shouting(_):
    raise ShoutedError("in a transform")


def ending(_):
    raise StopIteration


def swapped_names(batch):
    return dict(reversed(batch.items()))


class Odd:
    def __iter__(self):
        yield [0, 1]
        raise ShoutedError("in a sampler")

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: memload.FastLoader(images(), 4, batch_transform=shouting),
        lambda: memload.FastLoader(images(), 4, batch_transform=ending),
        lambda: memload.FastLoader(images().map(shouting), 4),
        lambda: memload.FastLoader(images(), batch_sampler=[[0, 1], [99]], batch_transform=swapped_names),
        lambda: memload.FastLoader(images(), batch_sampler=Odd(), batch_transform=swapped_names),
        lambda: memload.FastLoader(
            memload.concat({"a": images()}), batch_sampler=Odd(), collate_fn=memload.group_collate
        ),
    ],
    ids=["batch", "stop", "sample", "row that is not there", "sampler", "sampler of groups"],
)
@pytest.mark.usefixtures("passes_end_patiently")
def test_an_error_that_was_caught_keeps_neither_pass_nor_threads_alive(make):
    gc.collect()
    gc.disable()
    try:
        loader = make()
        iterator = iter(loader)
        gone = weakref.ref(iterator)
        with contextlib.suppress(Exception):
            while True:
                next(iterator)
        del loader, iterator
        assert gone() is None
        assert threads_of_transforms() == []
    finally:
        gc.enable()


def large(sample):
    return torch.zeros(9000)


class NoMemory:
    def take(self, field, nbytes):
        raise MemoryError(nbytes)


def test_an_error_amid_the_samples_of_a_batch_leaves_the_thread_with_torchs_own_generator():
    transform_pipeline = TransformPipeline.of(resolve(images().map(large)), None)
    batch = {"stim": torch.zeros(2, 3), "row": torch.arange(2)}
    with pytest.raises(MemoryError) as kept:
        transform_pipeline.apply(batch, np.arange(2), PassSeed(1), Randomness(), NoMemory())
    torch.manual_seed(3)
    first = torch.rand(4)
    assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    del kept


def no_memory_in_other_threads(function):
    def called(*arguments):
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError
        return function(*arguments)

    return called


@pytest.mark.parametrize(("owner", "name"), [(torch, "set_num_threads"), (ConcurrencyTuner, "end")])
def test_threads_that_find_no_memory_for_their_own_work_end_the_pass_with_the_error(owner, name, monkeypatch):
    monkeypatch.setattr(owner, name, no_memory_in_other_threads(getattr(owner, name)))
    ds = memload.from_arrays(x=torch.arange(12))
    batches = iter(memload.FastLoader(ds, 2, batch_transform=lambda batch: batch, timeout=MOST_SECONDS))
    found = 0
    with pytest.raises(MemoryError):
        for _ in batches:
            found += 1
    assert found <= 6
    with pytest.raises(StopIteration):
        next(batches)
