"""Processes that share a cache, of which one is suspended at the worst moments: the others go on, or say why not."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from block_sets import rows_of_blocks
from waiting import until

import memload
from memload import _core
from memload.formats.remote.cache_folder import OF_OTHERS, CacheFolder
from memload.formats.remote.patience import Patience
from memload.memory import file_locks

X = rows_of_blocks(64)
READS = """
import os, signal, sys
import numpy as np
import torch
import memload

ds = memload.open(sys.argv[1], cache=sys.argv[2], cache_bytes="64MB")
cache = ds.fields["x"].column.storages[0].origin
blocks = np.arange(cache.table.blocks)
cache.begin(blocks)
os.kill(os.getpid(), signal.SIGSTOP)  # with requests under way, and no lock
cache.let_go(blocks)
got = torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)])
sys.exit(not torch.equal(got, torch.arange(1, 65, dtype=torch.int32).repeat(16_384, 1).T))
"""
REMOVES = """
import contextlib, os, signal, sys
import numpy as np
import memload

ds = memload.open(sys.argv[1], cache=sys.argv[2], cache_bytes="64MB")
cache = ds.fields["x"].column.storages[0].origin
blocks = np.arange(cache.table.blocks)
cache.hold(blocks)
cache.let_go(blocks)
refusing = os.open(os.devnull, os.O_RDWR)
with contextlib.suppress(OSError):
    cache.table.evict(blocks[:3], {0: (refusing, 0)})
os.kill(os.getpid(), signal.SIGSTOP)
cache.recover()
"""


@pytest.fixture(scope="session")
def in_store(tmp_path_factory, store_server):
    folder = tmp_path_factory.mktemp("suspended") / "set"
    memload.write(folder, {"x": X}, shard_bytes=8 << 16, progress=False)
    store_server.put(folder, "suspended")
    return folder


@pytest.fixture
def started():
    """Starts programs that are ended with the test, suspended or not."""
    children = []

    def start(program, *arguments):
        children.append(subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)]))
        return children[-1]

    yield start
    for child in children:
        if child.returncode is None:
            child.kill()
            child.wait()


def is_suspended(child):
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_what_a_suspended_process_asked_for_is_asked_for_again(in_store, proxy, tmp_path, monkeypatch, started):
    children = []
    for shard in range(8):  # answers come when it is suspended
        proxy.meanwhile[f"GET /bucket/suspended/shard-0000{shard}"] = lambda: until(lambda: is_suspended(*children))
    children.append(waits := started(READS, "s3://bucket/suspended", tmp_path / "cache"))
    until(lambda: is_suspended(waits))
    monkeypatch.setattr(Patience, "take_over_after", 0.2)
    ds = memload.open("s3://bucket/suspended", cache=tmp_path / "cache", cache_bytes="64MB")
    cache = ds.fields["x"].column.storages[0].origin
    assert (cache.table.states(0, 64) & OF_OTHERS).any()
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)]), X)
    waits.send_signal(signal.SIGCONT)
    assert waits.wait() == 0
    assert cache.room.used == sum(file.nbytes for file in cache.files)


def test_a_block_that_a_suspended_process_removes_is_told(in_store, tmp_path, monkeypatch, started):
    """Nobody else can bring it: the process would remove its bytes once it goes on."""
    url = f"file://{in_store}"
    removes = started(REMOVES, url, tmp_path / "cache")
    until(lambda: is_suspended(removes))
    monkeypatch.setattr(Patience, "take_over_after", 0.2)
    monkeypatch.setattr(Patience, "longest", 0.3)
    ds = memload.open(url, cache=tmp_path / "cache", cache_bytes="64MB")
    with pytest.raises(memload.ShardReadError, match=r"written or removed for 0 s; another process .* is suspended"):
        list(memload.FastLoader(ds, 8))
    assert torch.equal(ds[63]["x"], X[63])  # of another block
    removes.send_signal(signal.SIGCONT)
    assert removes.wait() == 0
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)]), X)


def test_a_room_that_a_suspended_process_keeps_is_told(in_store, tmp_path, monkeypatch):
    """It asked for blocks, for which the room is reserved, and brings none."""
    folder = tmp_path / "cache"
    ds = memload.open(f"file://{in_store}", cache=folder, cache_bytes="1MiB")
    cache = ds.fields["x"].column.storages[0].origin
    (entry,) = CacheFolder(folder).sets()
    other = entry.table(_core.CacheRoom(str(folder / "room")))  # as another process has it
    asked = np.arange(12)
    other.hold(asked, cache.limit, False)
    for name in ("take_over_after", "longest"):
        monkeypatch.setattr(Patience, name, 0.2)
    with pytest.raises(memload.MemorySpaceError, match=r"all of it in use.*or if another process .* is suspended"):
        cache.hold(np.arange(20, 32))
    other.failed(asked)
    cache.hold(np.arange(20, 32))


def test_what_comes_late_is_not_taken_for_what_lacks_room(in_store, proxy, tmp_path, monkeypatch):
    proxy.meanwhile["GET /bucket/suspended/shard-00000"] = lambda: time.sleep(2)
    ds = memload.open("s3://bucket/suspended", cache=tmp_path / "cache", cache_bytes="1MiB")
    for name in ("take_over_after", "longest"):
        monkeypatch.setattr(Patience, name, 0.2)
    assert torch.equal(ds[0]["x"], X[0])


def test_an_error_that_comes_late_is_raised(in_store, proxy, tmp_path, monkeypatch):
    proxy.meanwhile["GET /bucket/suspended/shard-00000"] = lambda: time.sleep(2)
    ds = memload.open("s3://bucket/suspended", cache=tmp_path / "cache", cache_bytes="1MiB")
    proxy.always = ("shard-", 403)
    for name in ("take_over_after", "longest"):
        monkeypatch.setattr(Patience, name, 0.2)
    with pytest.raises(PermissionError, match="the store refuses it"):
        ds[0]


def test_a_process_without_room_waits_for_a_slow_one_that_is_not_suspended(in_store, proxy, tmp_path, monkeypatch):
    """That one shows each second that it still waits for what it asked for."""
    for shard in range(2):
        proxy.meanwhile[f"GET /bucket/suspended/shard-0000{shard}"] = lambda: time.sleep(6)
    sets = [memload.open("s3://bucket/suspended", cache=tmp_path / "cache", cache_bytes=(1 << 20) + k) for k in (0, 1)]
    slow, other = (ds.fields["x"].column.storages[0].origin for ds in sets)  # as two processes have them
    for name in ("take_over_after", "longest"):
        monkeypatch.setattr(Patience, name, 2.5)

    def hold_for_long():
        slow.hold(np.arange(12))
        slow.let_go(np.arange(12))

    thread = threading.Thread(target=hold_for_long)
    thread.start()
    until(lambda: (other.table.states(0, 12) & OF_OTHERS).all(), within=30)
    other.hold(np.arange(20, 32))
    thread.join()
    assert other.room.used <= other.limit


def test_a_lock_that_another_process_keeps_is_told(tmp_path):
    path = tmp_path / "etags"
    kept, mine = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        fcntl.flock(kept, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"etags: another process has its lock .* let it go on, or end it"):
            file_locks.lock(mine, path, longest=0.05)
        fcntl.flock(kept, fcntl.LOCK_UN)
        file_locks.lock(mine, path, longest=0.05)
    finally:
        os.close(kept)
        os.close(mine)
