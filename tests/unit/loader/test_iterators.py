"""What the iterators of FastLoader offer beside the batches, as torch's own do."""

import copy
import pickle
import signal
import threading
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from waiting import MOST_SECONDS

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
    worker.join(MOST_SECONDS)
    assert worker.exitcode in (0, -signal.SIGTERM)  # by which torch ends a worker that takes more than five seconds


def test_a_native_pass_has_no_worker_processes_to_wait_for():
    assert list(iter(FastLoader(native(), batch_size=2, num_workers=2))._workers) == []


@pytest.mark.parametrize("make", [native, Numbers])
def test_a_loader_that_ends_its_workers_itself_ends_the_pass(make):
    iterator = iter(FastLoader(make(), batch_size=2, num_workers=1))
    workers = iterator._workers
    next(iterator)
    iterator._shutdown_workers()
    assert not any(worker.is_alive() for worker in workers)
    if make is native:
        assert list(iterator) == []


def test_what_neither_the_layer_nor_the_stock_iterator_has_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'wings'"):
        iter(FastLoader(Numbers())).wings  # noqa: B018


def profiled(loader):
    """How often the profiler saw somebody wait for a batch, and under which names."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
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


@pytest.mark.parametrize("make", [native, Numbers])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_hook_of_torch_may_be_called_instead_of_iter_and_draws_as_a_stock_loader_does(make, workers):
    drawn = []
    for kind in (DataLoader, FastLoader):
        generator = torch.Generator().manual_seed(3)
        loader = kind(make(), batch_size=3, shuffle=True, num_workers=workers, generator=generator)
        passes = [list(begin(loader)) for begin in (iter, kind._get_iterator, kind._get_iterator, iter)]
        drawn.append((str(passes), generator.get_state().tolist()))
    assert drawn[0] == drawn[1]


def test_the_hook_of_torch_gives_batches_that_are_cast_and_transformed_once():
    more = {"cast": {"n": Cast(torch.float32)}, "batch_transform": lambda batch: {"n": batch["n"] + 1}}
    loader = FastLoader(Numbers(), batch_size=4, **more)
    for begin in (iter, FastLoader._get_iterator):
        assert [batch["n"].tolist() for batch in begin(loader)] == [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]


@pytest.mark.parametrize("make", [native, Numbers])
def test_threads_may_begin_passes_of_one_loader_at_a_time(make):
    """Each has begun, and has yet to take the iterator of the sampler, before any goes on."""
    met = threading.Barrier(2, timeout=MOST_SECONDS)

    class Together(FastLoader):
        def _get_iterator(self):
            met.wait()
            return super()._get_iterator()

    loader = Together(make(), batch_size=2)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(str(list(loader)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [str(list(DataLoader(make(), batch_size=2)))] * 2


@pytest.mark.parametrize("make", [native, Numbers])
def test_a_subclass_may_say_which_rows_come_by_the_hook_of_torch(make):
    def overriding(kind):
        class Chosen(kind):
            @property
            def _index_sampler(self):
                return [[3], [1, 2]]

        return Chosen

    chosen = overriding(FastLoader)(make())
    assert str(list(chosen)) == str(list(overriding(DataLoader)(make())))
    assert "overrides _index_sampler" in chosen.why
    with pytest.raises(RuntimeError, match=r"Chosen overrides _index_sampler.*batch_sampler="):
        chosen.state_dict()


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
