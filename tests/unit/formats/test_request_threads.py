"""Threads that wait for answers of a store: as many as are busy, each with one function at a time, ended in the end."""

import gc
import threading
import weakref

import pytest
from waiting import MOST_SECONDS, until

from memload.formats.remote import request_threads
from memload.formats.remote.link import Link
from memload.formats.remote.request_threads import RequestThreads


@pytest.fixture
def threads():
    made = RequestThreads()
    yield made
    made.close(MOST_SECONDS)


def test_functions_run_at_once_up_to_the_most_threads(threads, monkeypatch):
    monkeypatch.setattr(request_threads, "MOST_THREADS", 3)
    go_on, meet = threading.Event(), threading.Barrier(4, timeout=MOST_SECONDS)

    def work():
        meet.wait()
        go_on.wait(MOST_SECONDS)

    assert [threads.try_run(work) for _ in range(3)] == [True] * 3
    meet.wait()  # all of them are at it
    assert not threads.try_run(work)
    go_on.set()
    done = threading.Event()
    until(lambda: threads.try_run(done.set))
    assert done.wait(MOST_SECONDS)


def test_what_a_function_asks_for_follows_on_its_own_thread(threads):
    ran, done = [], threading.Event()

    def last():
        ran.append(threading.get_ident())
        done.set()

    def first():
        ran.append(threading.get_ident())
        threads.try_run(last)

    threads.try_run(first)
    assert done.wait(MOST_SECONDS)
    assert ran[0] == ran[1]


def test_nothing_is_kept_of_what_is_done(threads):
    class Held:
        def __call__(self):
            pass

    held = Held()
    gone = weakref.ref(held)
    threads.try_run(held)
    del held
    gc.disable()  # no cycle is to be waited for either
    try:
        until(lambda: gone() is None)
    finally:
        gc.enable()


def test_closing_waits_for_what_is_under_way_and_then_nothing_runs():
    threads, begun, go_on = RequestThreads(), threading.Event(), threading.Event()
    threads.try_run(lambda: (begun.set(), go_on.wait(MOST_SECONDS)))
    assert begun.wait(MOST_SECONDS)
    assert not threads.close(0)
    assert not threads.try_run(print)
    go_on.set()
    assert threads.close(MOST_SECONDS)


def test_a_thread_without_work_ends(threads, monkeypatch):
    monkeypatch.setattr(request_threads, "_IDLE", 0.0)
    done = threading.Event()
    threads.try_run(done.set)
    assert done.wait(MOST_SECONDS)
    until(lambda: threads._threads == 0)
    done.clear()
    threads.try_run(done.set)
    assert done.wait(MOST_SECONDS)


class Asked:
    """A request that is answered by a thread once it may be, and that all others have to wait for."""

    nbytes, host, is_quick = 1 << 30, "host", True

    def __init__(self):
        self.begun, self.may_end, self.has_come, self.error = threading.Event(), threading.Event(), False, None

    def quickly(self):
        self.begun.set()
        self.has_come = self.may_end.wait(MOST_SECONDS)
        return True

    async def patiently(self):
        self.quickly()

    def fail(self, error):
        self.error = error


def quick_link():
    """Return a link whose store has answered quickly, so that threads ask it."""
    link = Link()
    for _ in range(10):
        link.admission("host").leave(0, link.admission("host").begin())
    return link


def test_requests_that_wait_when_the_process_ends_are_not_begun():
    link, under_way, waiting = quick_link(), Asked(), [Asked() for _ in range(5)]
    for request in (under_way, *waiting):
        link.fetch(request)
    assert under_way.begun.wait(MOST_SECONDS)
    closing = threading.Thread(target=link.close)
    closing.start()
    until(lambda: all(request.error is not None or request.begun.is_set() for request in waiting))
    for request in (under_way, *waiting):
        request.may_end.set()
    closing.join()
    assert under_way.has_come
    assert not any(request.begun.is_set() for request in waiting)
    assert all("this process ends" in str(request.error) for request in waiting)


def test_a_request_that_comes_to_its_store_after_the_end_has_begun_is_not_begun():
    link, under_way, waiting, late = quick_link(), *(Asked() for _ in range(3))
    loop_stands, go_on = threading.Event(), threading.Event()
    link.fetch(under_way)
    link.fetch(waiting)
    link.after(0, lambda: (loop_stands.set(), go_on.wait(MOST_SECONDS)))
    assert loop_stands.wait(MOST_SECONDS)
    link.fetch(late)  # the loop takes it to its store once it goes on
    closing = threading.Thread(target=link.close)
    closing.start()
    until(lambda: waiting.error is not None)
    go_on.set()
    until(lambda: late.error is not None)
    under_way.may_end.set()
    closing.join()
    assert not late.begun.is_set()
    assert "this process ends" in str(late.error)


def test_a_store_that_is_first_asked_after_the_end_makes_nobody_wait():
    link = Link()
    link.close()
    admission = link.admission("host")
    assert all(admission.enter(1 << 30, pytest.fail) for _ in range(3))
