import _thread
import gc
import threading
import weakref
from collections import defaultdict
from functools import partial

import pytest

from memload.memory import endings
from memload.memory.endings import finish

pytestmark = pytest.mark.usefixtures("collector_is_off")  # the tests collect


class Ended:
    """Notes the threads that end it, once."""

    def __init__(self, end):
        self._end = end

    def end(self):
        self._end()

    def __del__(self):
        finish(self.end)


def test_what_loses_its_last_name_ends_in_the_same_thread():
    threads = []
    ended = Ended(lambda: threads.append(threading.get_ident()))
    del ended
    assert threads == [threading.get_ident()]


def test_what_is_collected_ends_in_another_thread_and_is_gone_after_one_collection():
    threads = []
    ended = Ended(lambda: threads.append(threading.get_ident()))
    ended.itself = ended
    gone = weakref.ref(ended)
    del ended
    gc.collect()
    assert len(threads) == 1
    assert threads != [threading.get_ident()]
    assert gone() is None
    ended = Ended(lambda: threads.append(threading.get_ident()))
    del ended
    assert threads[1:] == [threading.get_ident()]  # the collection is over


def test_what_another_thread_lets_go_of_amid_the_collection_ends_in_that_thread():
    threads = []

    def end():
        Ended(lambda: threads.append(threading.get_ident()))
        threads.append(threading.get_ident())

    one = Ended(end)
    one.itself = one
    del one
    gc.collect()
    assert threads == [threads[1]] * 2


def test_a_thread_that_collects_goes_on_where_the_end_waits_for_its_lock(monkeypatch):
    monkeypatch.setattr(endings, "_LONGEST_WAIT", 0.1)
    lock, ended = threading.Lock(), threading.Event()

    def end():
        with lock:
            ended.set()

    one = Ended(end)
    one.itself = one
    with lock:
        del one
        gc.collect()
        assert not ended.is_set()
    assert ended.wait(60)


def test_where_no_thread_can_begin_the_end_comes_at_once(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(endings._thread, "start_new_thread", refuse)
    threads = []
    one = Ended(lambda: threads.append(threading.get_ident()))
    one.itself = one
    del one
    gc.collect()
    assert threads == [threading.get_ident()]


@pytest.fixture
def nobody_else_is_told_of_collections():
    """Property tests leave a callback of Python behind, in which Ctrl-C is raised and lost."""
    told = list(gc.callbacks)
    gc.callbacks[:] = endings._notes
    yield
    gc.callbacks[:] = told


@pytest.mark.usefixtures("ctrl_c_counts", "nobody_else_is_told_of_collections")
def test_an_interrupt_amid_a_collection_is_not_lost():
    one, interrupts = partial(bool), defaultdict(_thread.interrupt_main)
    one.itself, interrupted = one, weakref.ref(one, interrupts.__missing__)  # no function of Python, as Ctrl-C is none
    hash(interrupted)
    del one
    with pytest.raises(KeyboardInterrupt):
        gc.collect()
