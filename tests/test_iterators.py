"""What the iterators of FastLoader offer beside the batches, as torch's own do."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import memload
from memload import Cast, FastLoader


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"n": torch.tensor(index)}


class Counted(IterableDataset):
    def __iter__(self):
        return iter(range(8))


def native():
    return TensorDataset(torch.arange(8))


def as_it_is(batch):
    return batch


KINDS = {
    "native": (native, {}),
    "rows of a class of the user's": (Numbers, {}),
    "an iterable dataset": (Counted, {}),
    "a cast behind stock batches": (Numbers, {"cast": {"n": Cast(torch.float32)}}),
    "a transform behind stock batches": (Numbers, {"batch_transform": as_it_is}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [copy.copy, pickle.dumps])
def test_an_iterator_can_be_neither_copied_nor_pickled_as_in_torch(kind, how):
    make, options = KINDS[kind]
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        how(iter(FastLoader(make(), batch_size=2, **options)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "native"])
def test_the_workers_of_a_stock_iterator_show_through_what_is_laid_around_it_and_end_with_it(kind):
    make, options = KINDS[kind]
    iterator = iter(FastLoader(make(), batch_size=2, num_workers=1, **options))
    next(iterator)
    (worker,) = iterator._workers
    assert worker.is_alive()
    del iterator
    worker.join(60)
    assert worker.exitcode == 0


def test_a_native_pass_has_no_worker_processes_to_wait_for():
    assert list(iter(FastLoader(native(), batch_size=2, num_workers=2))._workers) == []


def test_what_neither_the_layer_nor_the_stock_iterator_has_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'wings'"):
        iter(FastLoader(Numbers())).wings  # noqa: B018


def profiled(loader):
    """How often the profiler saw somebody wait for a batch, and under which names."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        batches = sum(1 for _ in loader)
    waits = {
        event.key: event.count for event in profile.key_averages() if event.key.startswith("enumerate(DataLoader)#")
    }
    return batches, waits


def test_a_profile_shows_the_waits_for_a_native_pass_as_it_shows_those_for_a_stock_iterator():
    batches, stock = profiled(DataLoader(native(), batch_size=2))
    assert stock == {"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": batches + 1}
    assert profiled(FastLoader(native(), batch_size=2)) == (
        batches,
        {"enumerate(DataLoader)#NativePass.__next__": batches + 1},
    )


def test_a_subclass_that_overrides_the_hook_of_torch_gives_its_own_iterators():
    class Doubled(FastLoader):
        def _get_iterator(self):
            return (2 * batch[0] for batch in super()._get_iterator())

    for dataset in (native(), memload.from_arrays(x=torch.arange(8)).as_tuple("x")):
        assert Doubled(dataset, batch_size=8).engine == "native"
        assert next(iter(Doubled(dataset, batch_size=8))).tolist() == list(range(0, 16, 2))


def test_a_warning_of_pinning_without_an_accelerator_names_the_line_that_began_the_pass():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = FastLoader(native(), pin_memory=True)
    for begin in (iter, FastLoader._get_iterator):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            begin(loader)
        assert [warning.filename for warning in caught] == [__file__]


def rows_until_it_fails():
    yield from (0, 1, 2)
    raise LookupError("no more of this")


def handed_out(loader):
    """What each of four calls of next() gives: the rows of a batch, or the type of what is raised."""
    iterator, seen = iter(loader), []
    for _ in range(4):
        try:
            seen.append(len(next(iterator)))
        except (LookupError, StopIteration) as error:
            seen.append(type(error))
    return seen


class OnceFailing(torch.utils.data.Sampler):
    def __iter__(self):
        return rows_until_it_fails()


def test_with_workers_a_pass_whose_sampler_fails_ends_as_a_stock_iterator_does():
    loaders = [
        kind(native(), batch_size=2, sampler=OnceFailing(), num_workers=1, prefetch_factor=1)
        for kind in (DataLoader, FastLoader)
    ]
    assert (
        handed_out(loaders[0]) == handed_out(loaders[1]) == [LookupError, StopIteration, StopIteration, StopIteration]
    )
