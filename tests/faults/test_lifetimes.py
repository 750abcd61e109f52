"""Lifetimes end by reference counts: with Python's collector off, passes leave nothing behind, however they end."""

import contextlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import lifetimes
import pytest
import torch
from pass_kinds import BATCH, OwnOrder, failing_kinds, graphs, sound_kinds, written

import memload
from memload.device.devices import raise_device_error
from memload.formats.graph_list import each_graph
from memload.kept_errors import EarlierTraceback, without_frames
from memload.memory.threads import ThreadPool

SIDE, LARGE_SIDE = 8, 320
BATCH_BYTES = BATCH * 3 * LARGE_SIDE**2
SOUND, FAILING = list(sound_kinds(SIDE, Path())), list(failing_kinds(SIDE, Path()))
COSTLY = ("score, written", "cache, written", "stock, workers", "stock workers fail", "fit")  # files or processes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # stock workers, from Python 3.12 on
    pytest.mark.filterwarnings("ignore:cast. leaves gaps:memload.LayoutWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("lifetimes"), SIDE)


def ways_for(name):
    return (lifetimes.left_behind_two_batches,) if name in COSTLY else lifetimes.WAYS


@pytest.mark.parametrize("name", SOUND)
def test_a_pass_leaves_no_object_thread_or_descriptor_behind(name, folder):
    make = sound_kinds(SIDE, folder)[name]
    assert sum(1 for _ in make()) > 0
    assert lifetimes.leftovers(make, ways_for(name)) == []


@pytest.mark.parametrize("name", FAILING)
def test_a_pass_that_fails_leaves_no_object_thread_or_descriptor_behind(name, folder):
    make = failing_kinds(SIDE, folder)[name]
    with pytest.raises(Exception, match=r".") as told:
        list(make())
    del told
    assert lifetimes.leftovers(make, ways_for(name)) == []


def test_an_error_that_is_told_in_other_words_is_not_kept():
    with lifetimes.collector_off():
        with contextlib.suppress(RuntimeError):
            raise_device_error(RuntimeError("nobody knows what it means"), "copying", torch.device("cpu"))
        assert not lifetimes.objects()


class ChoosesRows(memload.FastLoader):
    """A loader whose passes nobody can tell the place of."""

    @property
    def _index_sampler(self):
        return self.batch_sampler


def test_an_attribute_that_is_not_there_keeps_no_dataset():
    with lifetimes.collector_off():
        ds = memload.from_arrays(stim=torch.zeros(3))
        for name in ("stim", "nothing"):
            with contextlib.suppress(AttributeError):
                getattr(ds, name)
        del ds
        assert not lifetimes.objects()


def test_a_state_that_cannot_be_told_inside_a_group_is_not_kept():
    with lifetimes.collector_off():
        loader = ChoosesRows(memload.from_arrays(x=torch.zeros(24)), BATCH)
        groups = iter(memload.accumulate(loader, 3, rows=len))
        next(groups)
        told = 0
        for _ in range(2):
            try:
                loader.state_dict()
            except RuntimeError as error:
                told += "overrides _index_sampler" in str(error)
        del groups, loader
        assert told == 2
        assert not lifetimes.objects()


def test_a_list_of_graphs_that_nobody_takes_is_not_kept(tmp_path):
    torch.save(graphs(2), tmp_path / "graphs.pt")

    def take(_):
        raise RuntimeError("no more")

    for _ in range(2):  # what is loaded once in a process is there before
        with lifetimes.collector_off():
            with contextlib.suppress(RuntimeError):
                each_graph(tmp_path / "graphs.pt", take, [], trust=True)
            left = lifetimes.objects()
    assert not left


def test_an_error_in_a_pool_of_threads_is_not_kept():
    def fails():
        raise RuntimeError("the function's own")

    with lifetimes.collector_off():
        with ThreadPool(1) as pool:
            future = pool.submit(fails)
            with contextlib.suppress(RuntimeError):
                future.result()
        del pool, future
        assert not lifetimes.objects()


def test_an_error_that_waited_for_its_turn_says_where_it_occurred():
    batches = iter(memload.FastLoader(memload.from_arrays(x=torch.arange(24)), 2, sampler=OwnOrder(bad=4), depth=3))
    assert [batch["x"].tolist() for batch in (next(batches), next(batches))] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="the sampler's own") as told:
        next(batches)
    assert "in __iter__" in str(told.value.__cause__)
    assert "LookupError: the sampler's own" in str(told.value.__cause__)


def test_errors_without_frames_keep_their_causes():
    with pytest.raises(ValueError, match="third") as told:
        raise_one_amid_another()
    error = without_frames(told.value)
    second = error.__cause__
    assert (str(second), str(second.__cause__)) == ("second", "first")
    assert [one.__traceback__ for one in (error, second, second.__cause__)] == [None] * 3
    assert isinstance(second.__cause__.__cause__, EarlierTraceback)
    assert str(second.__cause__.__cause__).count("in raise_one_amid_another") == 2  # the first was not raised
    assert without_frames(KeyError("never raised")).args == ("never raised",)


def raise_one_amid_another():
    try:
        try:
            raise KeyError from OSError("first")
        except KeyError as error:
            raise TypeError("second") from error.__cause__
    except TypeError:
        raise ValueError("third")  # noqa: B904 - the error amid which it is raised is shown as well


@pytest.fixture(scope="module")
def elsewhere():
    """A process whose memory is what is in use."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context, initializer=lifetimes.hold_what_is_in_use) as pool:
        assert pool.submit(abs, -1).result() == 1  # it has begun: it is not a test's to end
        yield pool


@pytest.mark.parametrize("way", [lifetimes.ended, lifetimes.broken_off])
def test_memory_stays_as_it_is_over_passes_whose_functions_make_large_batches(way, elsewhere):
    fine = 100 << 20  # of eight passes; each that stays behind keeps some 30 MB
    assert elsewhere.submit(lifetimes.growth_of_large_batches, 8, way, fine).result() < fine


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SOUND, *FAILING])
def test_memory_stays_as_it_is_over_fifty_passes(name, tmp_path, elsewhere):
    folder, passes = written(tmp_path, LARGE_SIDE), 10 if name in COSTLY else 50
    fine = passes * BATCH_BYTES  # what stays behind of a pass is mostly several batches
    assert elsewhere.submit(lifetimes.growth_of_kind, name, folder, LARGE_SIDE, passes, fine).result() < fine
