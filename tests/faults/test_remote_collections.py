"""Passes over a store that end while their own thread is at work: what the collector ends, and an interrupted close."""

import gc
import os
import signal
import sys
import threading

import pytest
import torch
from block_sets import cache_of, is_pinned, rows_of_blocks
from waiting import until

import memload
from memload.engine.read_ahead import ReadAhead
from memload.formats.remote.claims import Claims
from memload.memory import endings

pytestmark = pytest.mark.usefixtures("collector_is_off")  # the tests collect
X = rows_of_blocks(32)


@pytest.fixture
def ds(tmp_path):
    memload.write(tmp_path / "set", {"x": X}, shard_bytes=8 << 16, progress=False)
    return memload.open(f"file://{tmp_path}/set", cache=tmp_path / "cache", cache_bytes="64MB")


def reading_ahead():
    return [thread for thread in threading.enumerate() if thread.name == "memload-read-ahead"]


def is_in(function):
    """Return whether the thread that reads ahead is within a function."""
    for thread in reading_ahead():
        frame = sys._current_frames().get(thread.ident)
        while frame is not None:
            if frame.f_code is function.__code__:
                return True
            frame = frame.f_back
    return False


def into_a_cycle(it):
    cycle = [it]
    cycle.append(cycle)


def test_a_collection_under_a_lock_of_the_cache_waits_for_no_thread_that_needs_it(ds, monkeypatch):
    monkeypatch.setattr(endings, "_LONGEST_WAIT", 0.2)
    with cache_of(ds).claims.lock:
        it = iter(memload.FastLoader(ds, 8, num_workers=1))  # plans at once
        until(lambda: is_in(Claims.hold))
        into_a_cycle(it)
        del it
        gc.collect()  # its thread waits for the lock
    until(lambda: not reading_ahead())
    until(lambda: not is_pinned(cache_of(ds)))
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)]), X)


def test_a_thread_that_collects_its_own_pass_ends_and_lets_go_of_all_blocks(ds, monkeypatch):
    monkeypatch.setattr(endings, "_LONGEST_WAIT", 0.2)
    wait, is_garbage = ReadAhead._wait, threading.Event()

    def wait_and_collect(self, seen):
        if is_garbage.is_set():
            gc.collect()
        wait(self, seen)

    monkeypatch.setattr(ReadAhead, "_wait", wait_and_collect)
    it = iter(memload.FastLoader(ds, 2))
    next(it)
    into_a_cycle(it)
    del it
    is_garbage.set()
    until(lambda: not reading_ahead())
    until(lambda: not is_pinned(cache_of(ds)))


@pytest.mark.usefixtures("ctrl_c_counts")
def test_a_pass_whose_close_was_interrupted_waits_for_its_thread_when_it_is_closed_again(ds):
    """Python takes a thread for ended once its join is interrupted; what that holds afterwards would stay pinned."""
    with cache_of(ds).claims.lock:
        it = iter(memload.FastLoader(ds, 8, num_workers=1))
        until(lambda: is_in(Claims.hold))
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            it.close()
        again = threading.Thread(target=it.close)
        again.start()
        again.join(0.5)
    again.join()
    until(lambda: not reading_ahead())
    assert not is_pinned(cache_of(ds))
