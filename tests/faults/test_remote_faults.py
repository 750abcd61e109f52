"""Stores that fail, are slow and lie: what can be cured is, what cannot raises in the loop, and a resume is exact."""

import errno
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import killed_loops
import numpy as np
import pytest
import torch
from stores import disk_bytes
from waiting import MOST_SECONDS, until

import memload
from memload.formats.remote import addresses, admission, block_cache, repeating
from memload.formats.remote.link import link
from memload.formats.remote.objects import Objects
from memload.formats.shards.safetensors_header import read_layout

ROWS = 600


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(repeating, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(repeating, "_LONGEST_PAUSE", 0.02)


@pytest.fixture(scope="session")
def faulty_set(tmp_path_factory, servers):
    """A local set that all stores have, too: rows of 4 kB, none of whose bytes is 0."""
    folder = tmp_path_factory.mktemp("faulty") / "faulty"
    draw = torch.Generator().manual_seed(2)
    images = torch.randint(1, 255, (ROWS, 4096), dtype=torch.uint8, generator=draw)
    memload.write(folder, {"image": images, "y": torch.arange(ROWS)}, shard_bytes="512kB", progress=False)
    for server in servers.values():
        server.put(folder, "faulty")
    return folder


def loader_of(ds, seed=0):
    torch.manual_seed(seed)
    return memload.FastLoader(ds, 16, shuffle=True)


def assert_same(got, want):
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["y"], other["y"])


@pytest.mark.parametrize(
    "faults", [[500] * 4, [503, 503], [429] * 5, ["cut"] * 3, ["drop"] * 3, [500, "cut", 429, "drop", 502]]
)
def test_what_passes_by_is_tried_again(faulty_set, proxy, faults):
    ds = memload.open("s3://bucket/faulty", cache_bytes="64MB")
    proxy.faults = list(faults)
    want = list(loader_of(memload.open(faulty_set)))
    assert_same(loader_of(ds), want)
    assert not proxy.faults


def test_an_index_is_tried_again(faulty_set, proxy):
    proxy.faults = [500, "cut", 429]
    assert len(memload.open("s3://bucket/faulty")) == ROWS


def test_what_stays_raises_in_the_loop_and_a_resume_is_exact(faulty_set, proxy):
    ds, want = memload.open("s3://bucket/faulty", cache_bytes="64MB"), list(loader_of(memload.open(faulty_set)))
    proxy.always = ("shard-00003", 500)
    loader, got = loader_of(ds), []
    with pytest.raises(
        memload.ShardReadError, match=r"s3://bucket/faulty/shard-00003.*: 8 attempts in .* failed"
    ) as raised:
        for batch in loader:
            got.append({name: value.clone() for name, value in batch.items()})
    assert raised.value.file == "s3://bucket/faulty/shard-00003.safetensors"
    row = raised.value.row
    assert f": from row {row} of the shard's field " in str(raised.value)
    proxy.mend()
    again = memload.FastLoader(ds, 16, shuffle=True)
    again.load_state_dict(loader.state_dict())
    assert_same([*got, *again], want)


def test_a_replaced_object_is_an_error_and_never_mixed(faulty_set, store):
    store.server.put(faulty_set, "replaced")
    ds = memload.open(store.url("replaced"), cache_bytes="64MB")
    ds[0]
    first = sorted(faulty_set.glob("shard-*"))[0]
    store.server.put_bytes(f"replaced/{first.name}", bytes(first.stat().st_size))
    with pytest.raises(memload.ShardReadError, match=r"shard-00000.safetensors: the object was replaced"):
        ds.select(range(120)).fields["image"].gather(torch.arange(120).numpy())


def test_an_object_that_is_replaced_amid_an_epoch_is_an_error_in_the_loop(faulty_set, store, tmp_path):
    """One of its blocks was read before, and the rows are those of the first shard and others."""
    store.server.put(faulty_set, "amid")
    first = sorted(faulty_set.glob("shard-*"))[0]
    ds = memload.open(store.url("amid"), cache=tmp_path, cache_bytes="64MB")
    assert torch.equal(ds[0]["image"], memload.open(faulty_set)[0]["image"])
    other = partial(store.server.put_bytes, f"amid/{first.name}", bytes(first.stat().st_size))
    store.proxy.meanwhile[f"GET /bucket/amid/{first.name}"] = other
    local = memload.open(faulty_set).fields["image"]
    with pytest.raises(memload.ShardReadError, match=r"shard-00000.safetensors: the object was replaced"):
        for batch in loader_of(ds):
            assert torch.equal(batch["image"], local.gather(batch["y"].numpy()))
    assert store.proxy.meanwhile == {}


@pytest.mark.parametrize("row", [0, 20, 50, 100])
def test_an_error_has_the_first_row_of_the_block_that_is_needed(faulty_set, store, row):
    store.server.put(faulty_set, f"rows{row}")
    ds = memload.open(store.url(f"rows{row}"), cache_bytes="16MB")  # blocks of 64 KiB: 16 images
    images = ds.fields["image"]
    images.gather(np.array([(row + 60) % 120]))
    first = sorted(faulty_set.glob("shard-*"))[0]
    store.server.put_bytes(f"rows{row}/{first.name}", bytes(first.stat().st_size))
    with pytest.raises(memload.ShardReadError, match="the object was replaced") as raised:
        images.gather(np.array([row]))
    assert raised.value.file == store.url(f"rows{row}/{first.name}")
    begin = read_layout(first).tensors["image"].begin
    block = (begin + 4096 * row) // 65536 * 65536
    assert (raised.value.row, raised.value.offset) == (max(0, block - begin) // 4096, block)
    field = "image" if block else "y"  # whose tensor is the first in the shard
    place = f"(bytes {block} to {block + 65536}: from row {raised.value.row} of the shard's field {field!r} on)"
    assert place in str(raised.value)


def test_an_error_in_compressed_rows_has_no_row(faulty_set, proxy, store_server, tmp_path):
    memload.write(tmp_path / "coded", memload.open(faulty_set), codec="lz4", progress=False)
    store_server.put(tmp_path / "coded", "coded")
    ds = memload.open("s3://bucket/coded", cache_bytes="16MB")
    proxy.always = ("shard-", 400)
    with pytest.raises(memload.ShardReadError, match="400 Bad Request") as raised:
        ds.fields["image"].gather(np.array([100]))
    assert raised.value.row == -1


def test_a_replaced_object_of_another_size_is_an_error(faulty_set, store):
    store.server.put(faulty_set, "shorter")
    ds = memload.open(store.url("shorter"))
    first = sorted(faulty_set.glob("shard-*"))[0]
    store.server.put_bytes(f"shorter/{first.name}", bytes(first.stat().st_size - 1))
    with pytest.raises(memload.ShardReadError, match="the object was cut"):
        ds[0]


def test_a_shard_that_is_cut_behind_a_folder_says_so(faulty_set, tmp_path):
    folder = shutil.copytree(faulty_set, tmp_path / "cut")
    first = sorted(folder.glob("shard-*"))[0]
    for nbytes in (first.stat().st_size - 1, 1000):
        ds = memload.open(f"file://{folder}")
        os.truncate(first, nbytes)
        with pytest.raises(memload.ShardReadError, match=rf"shard-00000.safetensors: the object was cut.* {nbytes} "):
            ds.select(range(100)).fields["image"].gather(torch.arange(100).numpy())


def test_a_shard_that_is_cut_after_it_was_read_says_so(faulty_set, tmp_path):
    folder = shutil.copytree(faulty_set, tmp_path / "cut")
    first = sorted(folder.glob("shard-*"))[0]
    ds = memload.open(f"file://{folder}", cache_bytes="16MB")
    ds[0]
    os.truncate(first, 200_000)
    with pytest.raises(memload.ShardReadError, match="the object was cut to 200000 bytes, and the set needs bytes"):
        ds.select(range(100)).fields["image"].gather(torch.arange(100).numpy())


def test_a_store_that_does_not_answer_is_asked_again(faulty_set, proxy, monkeypatch, tmp_path):
    monkeypatch.setattr(addresses, "_TIMEOUT", "2s")
    ds = memload.open("s3://bucket/faulty", cache=tmp_path, cache_bytes="64MB")
    proxy.faults = ["hang"]
    want = list(loader_of(memload.open(faulty_set)))
    assert_same(loader_of(ds), want)
    assert not proxy.faults


@pytest.mark.parametrize("room", ["2.4MB", "64MB"])
def test_a_full_disk_under_the_cache(faulty_set, proxy, small_disk, room):
    """With half of the room or more the loop goes on; with less it raises, and a smaller cache goes on."""
    want = list(loader_of(memload.open(faulty_set).select(range(0, ROWS, 2))))
    taken = small_disk / "other"
    taken.write_bytes(bytes(300_000))
    ds = memload.open("s3://bucket/faulty", cache=small_disk / "cache", cache_bytes=room).select(range(0, ROWS, 2))
    if room == "2.4MB":
        for _ in range(2):
            assert_same(loader_of(ds), want)
        return
    with pytest.raises(memload.DiskSpaceError, match="the disk is full, and has room for less than half"):
        list(loader_of(ds))
    del ds
    smaller = memload.open("s3://bucket/faulty", cache=small_disk / "cache", cache_bytes="1.5MB")
    assert_same(loader_of(smaller.select(range(0, ROWS, 2))), want)


def test_a_disk_that_is_full_when_a_cache_is_opened(faulty_set, small_disk):
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "other").write_bytes(bytes(4 << 20))
    with pytest.raises(memload.DiskSpaceError, match=r"disk/cache: the disk is full, .*; make room, or give cache="):
        memload.open(f"file://{faulty_set}", cache=small_disk / "cache", cache_bytes="64MB")


def test_a_disk_that_is_too_full_for_any_block_is_told(faulty_set, tmp_path, monkeypatch):

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(block_cache.BlockCache, "store", full)
    ds = memload.open(f"file://{faulty_set}", cache=tmp_path, cache_bytes="64MB")
    cache = ds.fields["y"].column.storages[0].origin
    missing = cache.begin(np.arange(2))
    try:
        until(lambda: not cache.table.has_to_wait(missing), within=MOST_SECONDS)
        with pytest.raises(memload.DiskSpaceError, match="the disk is full"):
            cache.proceed(missing)
    finally:
        cache.let_go(np.arange(2))


def test_a_refusal_is_an_error_at_once(faulty_set, store):
    ds = memload.open(store.url("faulty"))
    store.proxy.requests.clear()
    store.proxy.always = ("shard-", 403)
    with pytest.raises(PermissionError, match="the store refuses it"):
        ds[0]
    assert len(store.proxy.ranges()) == 1
    store.proxy.mend()
    assert ds[0]["y"] == 0


def test_a_forked_process_is_told_what_to_do(faulty_set, proxy):
    ds = memload.open("s3://bucket/faulty")
    child = os.fork()
    if child == 0:
        try:
            ds[300]
        except RuntimeError as error:
            os._exit(7 if 'multiprocessing_context="spawn"' in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


ENDS = """
import atexit, sys, threading

def last():
    print([thread.name for thread in threading.enumerate() if thread.name == "memload-remote"])
    try:
        ds[300]
    except RuntimeError as error:
        print(error)

atexit.register(last)  # runs after what memload registers

import memload
from memload.formats.remote.link import link
from memload.formats.remote.addresses import Address

ds = memload.open("s3://bucket/faulty")
ds[0]
print("read", flush=True)
sys.stdin.readline()
objects = Address("s3://bucket/faulty").objects()
requests = [link().submit(objects.part("index.json")) for _ in range(20)]
atexit.register(lambda: print(sum(request.cancelled() for request in requests)))
atexit.register(link().close)
"""


def test_a_process_that_ends_amid_requests_cancels_them_first(faulty_set, proxy):
    process = subprocess.Popen([sys.executable, "-c", ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "read\n"
    proxy.always = ("", "hang")
    said, _ = process.communicate("\n")
    ended = "this process ends, and what it reads from stores and writes to them has ended before"
    assert (process.returncode, said) == (0, f"20\n[]\n{ended}\n")


ENDS_QUICKLY = """
import sys, time
import memload
from memload.formats.remote import addresses, admission
from memload.formats.remote.link import link

admission._FEW, admission._QUICK, addresses.QUICK_SECONDS = 1, float("inf"), 1
ds = memload.open("s3://bucket/faulty", cache_bytes="64MB")
ds[0]
cache = ds.fields["y"].column.storages[0].origin
while not link().admission(cache.objects.host).is_quick:  # a request counts after its bytes are there
    time.sleep(0.001)
print("read", flush=True)
sys.stdin.readline()
cache.begin([20, 22, 24])
sys.stdin.readline()
"""


def test_a_process_that_ends_amid_requests_of_threads_waits_for_these(faulty_set, proxy):
    command = [sys.executable, "-c", ENDS_QUICKLY]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "read\n"
    proxy.always = ("GET .*safetensors", "hang")
    proxy.requests.clear()
    process.stdin.write("\n")
    process.stdin.flush()
    until(lambda: len(proxy.requests) >= 3)
    said, _ = process.communicate("\n", timeout=MOST_SECONDS)
    assert (process.returncode, said) == (0, "")


@pytest.fixture
def quick(faulty_set, proxy, monkeypatch):
    """Whatever the store does, it counts as quick, so that threads ask it."""
    monkeypatch.setattr(admission, "_FEW", 1)
    monkeypatch.setattr(admission, "_QUICK", float("inf"))
    ds = memload.open("s3://bucket/faulty", cache_bytes="65MB")
    ds[0]
    host = ds.fields["y"].column.storages[0].origin.objects.host
    until(lambda: link().admission(host).is_quick, within=MOST_SECONDS)  # a request counts after its bytes are there


@pytest.mark.parametrize("fault", [500, "cut", "drop", "hang"])
def test_what_fails_on_a_thread_is_asked_for_again_on_the_loop(faulty_set, proxy, quick, monkeypatch, fault):
    monkeypatch.setattr(addresses, "QUICK_SECONDS", 1)
    ds, want = memload.open("s3://bucket/faulty", cache_bytes="63MB"), list(loader_of(memload.open(faulty_set)))
    proxy.each = fault
    assert_same(loader_of(ds), want)


def test_a_client_that_panics_on_a_thread_is_asked_again_on_the_loop(faulty_set, proxy, quick, monkeypatch):
    """Rust's panics are no Exception in Python."""

    def panics(*_):
        raise BaseException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(Objects, "part_quickly", panics)
    cache = memload.open("s3://bucket/faulty", cache_bytes="62MB").fields["y"].column.storages[0].origin
    blocks = np.asarray(cache.table.first_blocks[2:3])
    missing = cache.begin(blocks)
    until(lambda: not cache.table.has_to_wait(missing), within=MOST_SECONDS)
    assert len(cache.proceed(missing)) == 0
    cache.let_go(blocks)


@pytest.mark.parametrize(("fault", "error"), [(403, PermissionError), (404, FileNotFoundError)])
def test_what_cannot_be_cured_on_a_thread_is_asked_for_once(faulty_set, proxy, quick, fault, error):
    ds = memload.open("s3://bucket/faulty", cache_bytes=f"{fault}MB")
    cache = ds.fields["y"].column.storages[0].origin
    proxy.always, before = (r"GET .*-00002\.safetensors", fault), len(proxy.ranges("-00002.safetensors"))
    with pytest.raises(error, match=r"-00002.* \(bytes 0 to 262144: from row \d+ of the shard.s field .y. on\)"):
        cache.hold(cache.table.first_blocks[2:3])
    assert len(proxy.ranges("-00002.safetensors")) == before + 1


def _killed_loops(faulty_set, folder, kills):
    """Kill the loops of two ranks that share a cache so many times each; all their batches are as if undisturbed."""
    ranks, program = [], Path(killed_loops.__file__)
    for rank in range(2):
        (folder / str(rank)).mkdir()
        where = ["s3://bucket/faulty", str(folder / "cache"), "1.6MB", str(folder / str(rank))]
        command = [sys.executable, str(program), *where, str(rank), str(kills)]
        ranks.append(subprocess.Popen(command, stderr=subprocess.PIPE))
    for rank in ranks:
        _, said = rank.communicate()
        assert rank.returncode == 0, said.decode()
    local = memload.open(faulty_set)
    for rank in range(2):
        got, want, epoch = (folder / str(rank) / "log").read_text(), "", 0
        while len(want) < len(got):
            want += "".join(map(killed_loops.line_of, killed_loops.epoch_of(local, rank, epoch)))
            epoch += 1
        assert got == want
    shards = len(list((folder / "cache").glob("*/*.safetensors")))
    pages = 2 * shards  # the last block of a file ends amid a page, and the list of its extents takes one
    assert disk_bytes(folder / "cache") <= 1_600_000 + 4096 * pages


def test_loops_that_are_killed_give_the_batches_of_undisturbed_ones(faulty_set, proxy, tmp_path):
    _killed_loops(faulty_set, tmp_path, 5)


@pytest.mark.slow
def test_loops_that_are_killed_two_hundred_times_give_the_batches_of_undisturbed_ones(faulty_set, proxy, tmp_path):
    _killed_loops(faulty_set, tmp_path, 100)
