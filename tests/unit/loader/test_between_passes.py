"""What stays of a pass for the next one, and when it goes."""

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from blocked import threads_of_memload
from waiting import MOST_SECONDS, until

import memload
from memload import _core
from memload.engine.tiers import pressure
from memload.engine.tiers.pressure import Pressure
from memload.errors import MemorySpaceError
from memload.memory.budget import Memory, memory_to_take
from memload.memory.guards import check_memory
from memload.monitoring.own_memory import shrink

ROWS, SIDE, BATCH = 24, 512, 4


@pytest.fixture(autouse=True)
def nothing_kept():
    """Tests begin without the spares of others, and leave none."""
    _core.free_spares()
    yield
    _core.free_spares_below(0)
    _core.free_spares()


def dataset():
    return memload.from_arrays(x=torch.arange(ROWS * SIDE * SIDE, dtype=torch.int32).view(ROWS, SIDE, SIDE))


def loader(batch_size=BATCH, **arguments):
    return memload.FastLoader(dataset(), batch_size, threads=2, **arguments)


def places(batches):
    return {batch["x"].data_ptr() for batch in batches}


def ran(one):
    """Return a loader after a pass over it."""
    for _ in one:
        pass
    return one


def test_slots_and_threads_stay_between_passes_by_default():
    one = loader()
    assert places(one) & places(one) & places(one)
    assert threads_of_memload(3) == 3  # two that gather, and the one that frees them in time
    assert 0 < _core.spare_bytes() <= one.nbytes


def broken_off(one):
    return next(iter(one))["x"].data_ptr()


def closed(one):
    batches = iter(one)
    place = next(batches)["x"].data_ptr()
    batches.close()
    return place


def failed(one):
    place = 0
    with contextlib.suppress(KeyError):
        for batch in one:
            place = batch["x"].data_ptr()
            raise KeyError
    return place


@pytest.mark.parametrize("end", [broken_off, closed, failed])
def test_they_stay_however_a_pass_ends(end):
    one = loader()
    assert end(one) in places(one)


def test_a_batch_that_is_kept_comes_back_later_and_stays_as_it_is():
    one = loader()
    kept = next(iter(one))
    value = kept["x"].clone()
    before = _core.spare_bytes()
    ran(one)
    assert torch.equal(kept["x"], value)
    del kept
    assert _core.spare_bytes() > before


def test_two_loaders_in_turn_keep_no_more_than_the_larger_one_takes():
    train, valid = loader(), loader(1)
    most = max(train.nbytes, valid.nbytes)
    for _ in range(3):
        for one in (train, valid):
            ran(one)
            assert 0 < _core.spare_bytes() <= most


def test_two_iterators_at_once_are_independent_and_both_leave_their_slots():
    one = loader()
    for a, b in zip(one, one, strict=True):
        assert torch.equal(a["x"], b["x"])
        assert a["x"].data_ptr() != b["x"].data_ptr()
    del a, b
    assert one.nbytes < _core.spare_bytes() <= 2 * one.nbytes


def test_close_frees_them_and_may_be_called_at_any_time():
    one = loader()
    one.close()
    batches = iter(one)
    rows = [next(batches)["x"][0, 0, 0].item()]
    one.close()
    rows += [batch["x"][0, 0, 0].item() for batch in batches]
    assert rows == list(range(0, ROWS * SIDE * SIDE, BATCH * SIDE * SIDE))
    assert _core.spare_bytes() > 0
    one.close()
    one.close()
    assert (_core.spare_bytes(), threads_of_memload()) == (0, 0)
    assert len(places(one)) > 0


def test_close_frees_what_persistent_workers_keep():
    one = ran(loader(num_workers=2, persistent_workers=True))
    assert _core.spare_bytes() == 0
    assert threads_of_memload(2) == 2
    one.close()
    assert threads_of_memload() == 0
    assert places(one) & places(one)


def test_they_end_with_their_loader_while_the_collector_is_off(collector_is_off):
    train, valid = ran(loader()), ran(loader())
    before = _core.spare_bytes()
    del train
    assert _core.spare_bytes() < before
    del valid
    assert (_core.spare_bytes(), threads_of_memload()) == (0, 0)


def test_a_dataset_and_a_function_of_the_user_do_not_stay():
    x = torch.zeros(8, 1 << 16)
    held = sys.getrefcount(x)
    ran(memload.FastLoader(memload.from_arrays(x=x), 2, batch_transform=lambda batch: batch["x"].float()))
    assert sys.getrefcount(x) == held


def test_what_nobody_uses_goes_by_itself():
    one = loader()
    one._history.spares = _core.Spares(0.001)
    ran(one)
    until(lambda: _core.spare_bytes() == 0)
    assert threads_of_memload() == 0


def test_what_functions_make_does_not_stay():
    plain, made = ran(loader()), _core.spare_bytes()
    plain.close()
    ran(loader(batch_transform=lambda batch: {"x": batch["x"].float() / 2}))
    assert _core.spare_bytes() == 0
    one = ran(loader(batch_transform=lambda batch: {"x": batch["x"].float() / 2}))
    assert _core.spare_bytes() <= 2 * made
    del one


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_threads_that_stay_follow_the_cpus_of_the_process():
    one, before = ran(loader()), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        ran(one)
        found = [os.sched_getaffinity(task) for task, name in threads() if name[8:].isdigit()]
    finally:
        os.sched_setaffinity(0, before)
    assert found == [{min(before)}] * 2


def threads():
    """The number and name of each native thread."""
    tasks = ((int(task.name), (task / "comm").read_text().strip()) for task in Path("/proc/self/task").iterdir())
    return [(task, name) for task, name in tasks if name.startswith("memload-")]


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_forked_child_closes_and_iterates_and_the_parent_keeps_its_own(arguments):
    one = ran(loader(**arguments))
    before, names = _core.spare_bytes(), threads()
    middle = iter(one)
    next(middle)

    def child():
        held = _core.spare_bytes()
        one.close()
        rows = sum(len(batch["x"]) for batch in one)
        one.close()
        one.close()
        return (held, rows, _core.spare_bytes()) == (0, ROWS, 0)

    assert in_child(child)
    assert sum(len(batch["x"]) for batch in middle) == ROWS - BATCH
    del middle
    assert (_core.spare_bytes(), threads()) == (before, names)


def in_child(body):
    """Whether a body gives true in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while there are threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if body() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_iterator_left_behind_in_a_thread_that_ended_leaves_its_memory_to_its_loader(collector_is_off):
    one = loader()
    thread = threading.Thread(target=broken_off, args=(one,))
    thread.start()
    thread.join()
    assert _core.spare_bytes() > 0
    del thread, one
    assert (_core.spare_bytes(), threads_of_memload()) == (0, 0)


def short(monkeypatch, left):
    monkeypatch.setattr(pressure, "_ASKED", 1)
    monkeypatch.setattr(pressure, "memory", lambda: Memory(10**19, left))


def test_a_pass_that_ends_while_memory_is_short_keeps_nothing(monkeypatch):
    one = loader()
    batches = iter(one)
    next(batches)
    short(monkeypatch, left=10**18 - 1)
    del batches
    assert _core.spare_bytes() == 0
    ran(one)
    until(lambda: _core.spare_bytes() == 0)  # the last batch outlives its pass
    assert threads_of_memload() == 0


def test_what_is_kept_goes_when_the_rest_of_the_machine_takes_what_was_left(monkeypatch):
    one = loader()
    short(monkeypatch, left=10**19)  # far more than the machine has
    ran(one)
    until(lambda: _core.spare_bytes() == 0)
    assert threads_of_memload() == 0


def test_a_pass_that_looks_frees_them_before_caches_shrink(monkeypatch):
    ran(one := loader())
    cache = _core.RowCache(1 << 30, shrinks=True)
    found = iter([Memory(10**12, 10**10), Memory(10**12, 10**12)])
    monkeypatch.setattr(pressure, "memory", lambda: next(found))
    Pressure((cache,)).look()
    assert (_core.spare_bytes(), cache.stats()["budget"]) == (0, 1 << 30)
    assert next(found, None) is None
    assert places(one)


def test_what_fits_beside_them_does_not_free_them():
    ran(one := loader())
    before = _core.spare_bytes()
    assert memory_to_take(1).free > 1
    assert _core.spare_bytes() == before
    memory_to_take()
    assert _core.spare_bytes() == 0
    assert places(one)


def test_copies_and_pickles_of_a_loader_begin_without():
    one = ran(loader())
    before = _core.spare_bytes()
    for other in (copy.copy(one), pickle.loads(pickle.dumps(one))):
        other.close()
        del other
        assert _core.spare_bytes() == before


def test_memory_is_refused_only_after_they_are_freed():
    one = ran(loader())
    assert _core.spare_bytes() > 0
    with pytest.raises(MemorySpaceError):
        check_memory(1 << 60, "this", "take less")
    assert _core.spare_bytes() == 0
    assert places(one)


def test_a_monitor_that_shrinks_frees_them():
    one = ran(loader())
    shrink([one], [])
    assert _core.spare_bytes() == 0


def test_a_process_that_keeps_them_ends_at_once_and_well():
    script = """
import gc, memload, torch
gc.disable()
loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(64, 1 << 16)), 4)
for batch in loader:
    pass
del batch
assert memload._core.spare_bytes() > 0
print("done", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=MOST_SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
