"""Blocks that others claim while a request is under way: neither its late failure nor its late bytes disturb them."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from block_sets import cache_of, rows_of_blocks
from waiting import MOST_SECONDS, until

import memload
from memload.formats.remote import addresses, admission, repeating
from memload.formats.remote.cache_folder import ARRIVING, OF_OTHERS, PRESENT, STATE
from memload.formats.remote.link import link

X = rows_of_blocks(64)
URL = "s3://bucket/claims"
SIZE = 1 << 16  # bytes of a block
ROOMS = itertools.count(64 << 20)  # so that each set has blocks of its own, as one in another process has
FIRST = np.arange(1)


@pytest.fixture(scope="session")
def in_store(tmp_path_factory, store_server):
    folder = tmp_path_factory.mktemp("claims") / "set"
    memload.write(folder, {"x": X}, shard_bytes=16 << 16, progress=False)
    store_server.put(folder, "claims")
    return folder


@pytest.fixture
def opened(in_store, proxy, tmp_path, monkeypatch):
    """Opens the blocks of the set as a further process does, in one folder; threads wait for as long as the proxy."""
    monkeypatch.setattr(addresses, "QUICK_SECONDS", int(MOST_SECONDS))
    return lambda: cache_of(memload.open(URL, cache=tmp_path / "cache", cache_bytes=next(ROOMS)))


@pytest.fixture
def other(opened):
    """What another process has of the blocks."""
    return opened()


@pytest.fixture
def cache(opened, other, proxy):
    """The blocks in this process, and no request so far."""
    cache = opened()
    proxy.requests.clear()
    return cache


@pytest.fixture(params=["the loop", "a thread"])
def asks(request, opened, monkeypatch):
    """What asks for blocks."""
    if request.param == "a thread":
        monkeypatch.setattr(admission, "_FEW", 1)
        monkeypatch.setattr(admission, "_QUICK", float("inf"))
        (quick := opened()).hold(np.arange(63, 64))
        quick.let_go(np.arange(63, 64))
        until(lambda: link().admission("s3://bucket").is_quick)


class HeldBack:
    """A request for the first shard that the proxy keeps until `go` is called."""

    def __init__(self, proxy):
        self._came, self._may_go = threading.Event(), threading.Event()
        proxy.meanwhile["GET /bucket/claims/shard-00000"] = self._keep

    def _keep(self):
        self._came.set()
        self._may_go.wait(MOST_SECONDS)

    def until_it_comes(self):
        assert self._came.wait(MOST_SECONDS)

    def go(self):
        self._may_go.set()


def states(cache, blocks):
    return (cache.table.states(0, cache.table.blocks)[blocks] & (STATE | OF_OTHERS)).tolist()


def in_flight():
    return link().admission("s3://bucket").in_flight


def brought(cache, missing):
    """Wait for blocks as a loop does; raise what it raises."""
    while len(missing):
        until(partial(is_settled, cache, missing))
        missing = cache.proceed(missing)


def is_settled(cache, missing):
    return not cache.table.has_to_wait(missing)


def bring(cache, first, count, in_store):
    """Have another process bring blocks of the first shard that this one asked for."""
    blocks = np.arange(first, first + count)
    cache.table.hold(blocks, cache.limit, False)
    cache.table.take_over(blocks)
    content = (in_store / "shard-00000.safetensors").read_bytes()
    cache.store(first, 0, first * SIZE, content[first * SIZE : (first + count) * SIZE])


def test_a_late_failure_leaves_a_later_claim_of_its_process_alone(cache, other, proxy):
    late, later = HeldBack(proxy), None
    proxy.once = ("shard-00000", 403)
    missing = cache.begin(FIRST)
    late.until_it_comes()
    other.table.hold(FIRST, other.limit, False)
    other.table.take_over(FIRST)
    other.table.failed(FIRST)  # as a process that was ended
    later = HeldBack(proxy)
    missing = cache.proceed(missing)
    later.until_it_comes()
    late.go()
    until(lambda: in_flight() == SIZE)  # of the later request
    assert states(cache, FIRST) == [ARRIVING]
    assert cache.proceed(missing).tolist() == [0]
    later.go()
    brought(cache, missing)
    assert (len(proxy.ranges()), cache.counts.fetched_bytes) == (2, SIZE)


def test_a_late_failure_of_a_block_that_another_process_gave_up_is_not_raised(cache, other, proxy):
    late = HeldBack(proxy)
    proxy.once = ("shard-00000", 403)
    missing = cache.begin(FIRST)
    late.until_it_comes()
    other.table.hold(FIRST, other.limit, False)
    other.table.take_over(FIRST)
    other.table.failed(FIRST)
    late.go()
    until(lambda: in_flight() == 0)
    brought(cache, missing)
    assert states(cache, FIRST) == [PRESENT]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_error_of_blocks_that_another_process_brings_afterwards_is_not_raised(cache, other, proxy, is_there):
    proxy.once = ("shard-00000", 403)
    missing = cache.begin(FIRST)
    until(lambda: states(cache, FIRST) == [0])
    brings = HeldBack(proxy)
    begun = other.begin(FIRST)
    brings.until_it_comes()
    if is_there:
        brings.go()
        brought(other, begun)
    assert len(cache.proceed(missing)) == (not is_there)
    brings.go()
    brought(cache, missing)
    assert cache.counts.requests == 0


def test_an_error_of_a_block_that_nobody_brings_is_raised_beside_one_that_came(cache, other, proxy):
    proxy.once = ("shard-00000", 403)
    missing = cache.begin(np.arange(2))
    until(lambda: states(cache, np.arange(2)) == [0, 0])
    other.hold(FIRST)
    with pytest.raises(PermissionError, match="from row"):
        cache.proceed(missing)


def test_an_error_that_nobody_waited_for_is_not_that_of_a_loop_which_lacks_room(cache, proxy):
    proxy.once = ("shard-00000", 403)
    cache.begin(FIRST)
    until(lambda: states(cache, FIRST) == [0])
    cache.let_go(FIRST)
    others = np.arange(1, 3)
    cache.hold(others)
    cache.limit = 2 * SIZE
    missing = cache.begin(FIRST)
    assert cache.proceed(missing).tolist() == [0]
    cache.let_go(others)
    brought(cache, cache.proceed(missing))
    assert states(cache, FIRST) == [PRESENT]


def test_an_error_that_two_loops_find_at_once_is_raised_in_both(cache, proxy, monkeypatch):
    proxy.once = ("shard-00000", 403)
    missing = cache.begin(FIRST)
    until(lambda: states(cache, FIRST) == [0])
    failed_of, met = cache.claims.failed_of, threading.Barrier(2, timeout=MOST_SECONDS)

    def failed_of_both(blocks):
        found = failed_of(blocks)
        met.wait()  # each has found it before either of them forgets it
        return found

    monkeypatch.setattr(cache.claims, "failed_of", failed_of_both)
    with ThreadPoolExecutor() as loops:
        errors = [loop.exception() for loop in [loops.submit(cache.proceed, missing) for _ in range(2)]]
    assert [type(error) for error in errors] == [PermissionError] * 2


def test_a_request_that_waits_for_the_link_leaves_out_what_others_brought(cache, other, proxy, in_store, asks):
    entry, taken, blocks = link().admission("s3://bucket"), 1 << 40, np.arange(8)
    until(lambda: in_flight() == 0)
    assert entry.enter(taken, print)  # all others wait until it leaves
    proxy.requests.clear()
    missing = cache.begin(blocks)
    until(lambda: entry._waiting_bytes == 8 * SIZE)
    bring(other, 2, 2, in_store)
    entry.leave(taken)
    brought(cache, missing)
    assert sorted(one[1] for one in proxy.ranges()) == [f"bytes=0-{2 * SIZE - 1}", f"bytes={4 * SIZE}-{8 * SIZE - 1}"]
    assert cache.counts.fetched_bytes + other.counts.fetched_bytes == 8 * SIZE
    until(lambda: in_flight() == 0)


def test_a_further_attempt_leaves_out_what_others_brought(cache, other, proxy, in_store, asks):
    first, blocks = HeldBack(proxy), np.arange(8)
    proxy.once = ("shard-00000", 500)
    proxy.requests.clear()
    missing = cache.begin(blocks)
    first.until_it_comes()
    bring(other, 0, 6, in_store)
    first.go()
    brought(cache, missing)
    assert [one[1] for one in proxy.ranges()] == [f"bytes=0-{8 * SIZE - 1}", f"bytes={6 * SIZE}-{8 * SIZE - 1}"]
    until(lambda: in_flight() == 0)


def test_a_request_of_which_others_brought_all_is_not_sent(cache, other, proxy, in_store):
    entry, taken = link().admission("s3://bucket"), 1 << 40
    until(lambda: in_flight() == 0)
    assert entry.enter(taken, print)
    missing = cache.begin(np.arange(4))
    until(lambda: entry._waiting_bytes == 4 * SIZE)
    bring(other, 0, 4, in_store)
    entry.leave(taken)
    until(lambda: in_flight() == 0)
    assert len(cache.proceed(missing)) == 0
    assert proxy.requests == []


def test_attempts_count_on_where_others_bring_a_part_after_each(cache, other, proxy, in_store, monkeypatch):
    """Else a store that fails would be asked anew, and without a pause, each time."""
    monkeypatch.setattr(repeating, "_LONGEST_PAUSE", 0.1)
    proxy.always = ("shard-00000", 500)
    held, missing = HeldBack(proxy), cache.begin(np.arange(4))
    for first in range(2):
        held.until_it_comes()
        bring(other, first, 1, in_store)
        following = HeldBack(proxy)
        held.go()
        held = following
    held.go()
    with pytest.raises(memload.ShardReadError, match=r": 8 attempts in .* to read bytes 131072 to 262144 failed"):
        brought(cache, missing)
    assert len(proxy.ranges()) == 8


def test_late_bytes_are_stored_where_another_claim_waits_for_them(cache, other, proxy):
    late = HeldBack(proxy)
    missing = cache.begin(FIRST)
    late.until_it_comes()
    other.table.hold(FIRST, other.limit, False)
    other.table.take_over(FIRST)
    late.go()
    brought(cache, missing)
    assert states(other, FIRST) == [PRESENT]
