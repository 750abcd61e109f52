"""What goes on behind an error of a store, and behind a loop that was left: nothing that somebody could wait for."""

import asyncio
import itertools
import signal
import weakref
from functools import partial

import numpy as np
import pytest
import torch
import zarr
from block_sets import cache_of, is_pinned, some
from children import in_fork
from waiting import MOST_SECONDS, until

import memload
from memload.engine import read_ahead
from memload.formats.remote import addresses, admission, repeating
from memload.formats.remote import link as link_module
from memload.formats.remote.cache_folder import ARRIVING, STATE
from memload.formats.remote.link import link
from memload.formats.remote.patience import Patience
from memload.formats.remote.run_fetch import RunFetch

X = torch.arange(64, dtype=torch.int32).repeat(16_384, 1).T.contiguous()  # rows of a block of 64 KiB each
URL, ROOMS = "s3://bucket/leftovers", itertools.count(64 << 20)


@pytest.fixture(autouse=True)
def _few_pauses(monkeypatch):
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(repeating, name, 0.01)


@pytest.fixture(scope="session")
def in_store(tmp_path_factory, store_server):
    """The rows lie in the store, in shards of 16."""
    folder = tmp_path_factory.mktemp("leftovers") / "set"
    memload.write(folder, {"x": X}, shard_bytes=16 << 16, progress=False)
    store_server.put(folder, "leftovers")


@pytest.fixture
def opened(in_store, proxy, monkeypatch):
    """Opens the set, with blocks that no other test has; threads wait for as long as the proxy does."""
    monkeypatch.setattr(addresses, "QUICK_SECONDS", int(MOST_SECONDS))
    return partial(memload.open, URL, cache_bytes=next(ROOMS))


def is_fetching(cache):
    return some(cache, STATE, ARRIVING)


def assert_readable(cache, blocks):
    cache.hold(blocks)
    cache.let_go(blocks)


class Other:
    """An object as another one, of which some attributes are others."""

    def __init__(self, of, **others):
        self._of = of
        vars(self).update(others)

    def __getattr__(self, name):
        return getattr(self._of, name)


def test_requests_that_wait_for_a_loop_that_was_left_are_not_sent(opened, proxy):
    ds = opened()
    cache, entry = cache_of(ds), link().admission("s3://bucket")
    taken = 1 << 40
    until(lambda: entry.in_flight == 0)
    assert entry.enter(taken, print)  # all others wait until it leaves
    proxy.requests.clear()
    blocks = cache.begin(np.arange(cache.table.blocks))
    assert is_fetching(cache)
    until(lambda: entry._waiting_bytes == cache.nbytes)
    cache.let_go(blocks)  # as a loop does in the end
    entry.leave(taken)
    until(lambda: not is_fetching(cache))
    assert proxy.requests == []
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)]), X)


@pytest.mark.parametrize("quick", [False, True])
def test_requests_that_fail_are_not_repeated_for_a_loop_that_was_left(opened, proxy, monkeypatch, quick):
    if quick:  # so that a thread asks
        monkeypatch.setattr(admission, "_FEW", 1)
        monkeypatch.setattr(admission, "_QUICK", float("inf"))
        opened()[63]
        until(lambda: link().admission("s3://bucket").is_quick)
    cache, blocks = cache_of(opened()), np.arange(1)
    proxy.requests.clear()
    proxy.always = ("shard-", 500)
    proxy.meanwhile["GET /bucket/leftovers/shard-"] = lambda: cache.let_go(blocks)
    cache.begin(blocks)
    until(lambda: not is_fetching(cache))
    assert len(proxy.requests) == 1
    proxy.mend()
    assert_readable(cache, blocks)


def test_a_request_that_is_dropped_leaves_no_error_to_whoever_wants_its_blocks_then(opened):
    cache, blocks = cache_of(opened()), np.arange(1)

    async def part(*_, is_wanted, **__):
        cache.let_go(blocks)
        assert not is_wanted()
        cache.table.hold(blocks, cache.limit, False)  # between the last look for pins and the end of the request
        raise OSError("the only attempt")

    cache.table.hold(blocks, cache.limit, False)
    fetch = RunFetch(cache, cache.claims.of(range(1)))
    fetch._cache = Other(cache, objects=Other(cache.objects, part=part))
    link().submit(fetch.patiently()).result(MOST_SECONDS)
    missing = cache.proceed(blocks)
    until(lambda: not cache.table.has_to_wait(missing))
    assert len(cache.proceed(missing)) == 0


def test_blocks_that_cannot_be_claimed_keep_the_pins_that_others_have(opened, monkeypatch):
    cache, blocks = cache_of(opened()), np.arange(1)
    cache.hold(blocks)

    def hold(*_):
        raise TimeoutError("another process has the lock")

    with monkeypatch.context() as patched:
        patched.setattr(cache.claims, "table", Other(cache.table, hold=hold))
        with pytest.raises(TimeoutError, match="has the lock"):
            cache.begin(blocks)
    assert cache.table.evict(blocks, {0: (-1, 0)}) == 0
    cache.let_go(blocks)


def test_an_error_that_comes_while_it_is_looked_for_is_raised(opened, monkeypatch):
    """Rather than lost, so that all attempts are made again."""
    cache, blocks = cache_of(opened()), np.arange(1)
    table = cache.table
    table.hold(blocks, cache.limit, False)  # as a request that is under way

    def has_to_wait(missing):
        cache.give_up(cache.claims.of(range(1)), memload.ShardReadError("too late?"))
        return table.has_to_wait(missing)

    monkeypatch.setattr(cache, "table", Other(table, has_to_wait=has_to_wait))
    with pytest.raises(memload.ShardReadError, match="too late"):
        cache.proceed(blocks)


def read_before(tmp_path):
    """Read row 0 through a cache that is closed then; return the arguments that open it again."""
    options = {"cache": tmp_path / "cache", "cache_bytes": next(ROOMS)}
    ds = memload.open(URL, **options)
    assert torch.equal(ds[0]["x"], X[0])
    gone = weakref.ref(cache_of(ds))
    del ds
    until(lambda: gone() is None)
    return options


def test_blocks_that_are_not_those_of_their_checksums_leave_the_disk_also_where_the_store_fails(
    in_store, proxy, tmp_path
):
    options = read_before(tmp_path)
    (mirror,) = (tmp_path / "cache").glob("*/shard-00000.safetensors")
    mirror.write_bytes(b"x" * mirror.stat().st_size)
    ds = memload.open(URL, **options)
    proxy.always = ("shard-", 403)
    with pytest.raises(PermissionError):
        ds[0]
    cache = cache_of(ds)
    assert cache.room.used == 0
    bad = cache.bytes_of(np.arange(2))  # of row 0, which spans them
    assert mirror.stat().st_blocks * 512 <= mirror.stat().st_size - bad
    proxy.mend()
    assert torch.equal(ds[0]["x"], X[0])


def test_an_error_that_nobody_waited_for_is_not_that_of_another_process(in_store, proxy, tmp_path):
    folder = tmp_path / "cache"
    cache = cache_of(memload.open(URL, cache=folder, cache_bytes=next(ROOMS)))
    blocks = np.arange(1)
    cache.table.hold(blocks, cache.limit, False)
    cache.give_up(cache.claims.of(range(1)), memload.ShardReadError("long ago"))
    cache.let_go(blocks)
    other = cache_of(memload.open(URL, cache=folder, cache_bytes=next(ROOMS)))
    other.table.hold(blocks, other.limit, False)
    missing = cache.begin(blocks)
    assert len(cache.proceed(missing)) == 1
    other.table.failed(blocks)
    cache.let_go(blocks)


def test_blocks_of_an_earlier_process_that_cannot_be_read_leave_nobody_waiting(in_store, proxy, tmp_path):
    """What was claimed beside them is fetched all the same."""
    options = read_before(tmp_path)
    cache = cache_of(memload.open(URL, **options))
    (mirror,) = (tmp_path / "cache").glob("*/shard-00000.safetensors")
    mirror.rename(tmp_path / "away")
    blocks = np.arange(cache.table.first_blocks[2])
    with pytest.raises(FileNotFoundError, match="shard-00000"):
        cache.hold(blocks)
    assert not is_pinned(cache)
    (tmp_path / "away").rename(mirror)
    until(lambda: not is_fetching(cache), within=30)
    assert_readable(cache, blocks)


@pytest.mark.parametrize("order", [1, -1])
def test_a_batch_that_cannot_be_held_leaves_no_block_pinned(opened, tmp_path, order):
    """The cache of one of its sets has room for its blocks, that of the other one has not."""
    first, second = opened(), memload.open(URL, cache=tmp_path, cache_bytes="1MiB")
    with pytest.raises(memload.MemorySpaceError, match="are needed at once"):
        list(memload.FastLoader(memload.zip(**dict(zip("xy", (first, second)[::order], strict=True))), 64))
    assert not is_pinned(cache_of(first))


def test_a_loop_has_patience_anew_for_each_batch(opened, proxy, monkeypatch):
    patient = []

    class Waits(Patience):
        def wait(self, *arguments):
            patient.append(self)
            super().wait(*arguments)

    monkeypatch.setattr(read_ahead, "Patience", Waits)
    for shard, count in ((0, 1), (3, 2)):  # each is answered once so many have waited
        proxy.meanwhile[f"GET /bucket/leftovers/shard-0000{shard}"] = partial(
            until, lambda count=count: len(set(map(id, patient))) >= count, within=30
        )
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(opened(), 16)]), X)
    assert len(set(map(id, patient))) >= 2


def test_no_request_for_a_chunk_goes_on_once_the_error_of_another_one_is_raised(proxy, store_server, tmp_path):
    array = zarr.create_array(tmp_path / "x", shape=(4, 5), dtype="i4", chunks=(1, 5), compressors=None)
    array[:] = 1
    store_server.put(tmp_path / "x", "chunks")
    ds = memload.open("s3://bucket/chunks")
    proxy.always = (r"c/1/0", "hang")
    store_server.delete("chunks/c/2/0")
    with pytest.raises(FileNotFoundError, match="c/2/0: there is no such object"):
        ds[0]
    until(lambda: not asyncio.all_tasks(link()._loop), within=30)


def test_a_forked_process_does_not_wait_for_the_lock_of_a_thread_that_is_not_there(in_store, proxy):
    link()

    def body():
        signal.alarm(30)
        with pytest.raises(RuntimeError, match="forked from one that uses a store"):
            link()

    with link_module._lock:  # as another thread of the parent has it
        assert in_fork(body) == 99
