"""Sets of shards in a store: the batches of a local copy, and never a byte that was not fetched."""

import asyncio
import gc
import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from block_sets import closed
from stores import disk_bytes
from waiting import MOST_SECONDS, until

import memload
from memload import _core
from memload.cli.main import main
from memload.engine.read_ahead import ReadAhead
from memload.formats.remote import descriptors, objects
from memload.formats.remote.admission import MOST_IN_FLIGHT, Admission, Rate
from memload.formats.remote.link import link
from memload.formats.shards.stated_offsets import stated

ROWS = 1500
KINDS = {"plain": {}, "coded": {"codec": "lz4"}}


@pytest.fixture(scope="session")
def sets(tmp_path_factory, servers):
    """The same rows as local sets of each kind, which all stores have under the same names."""
    folder = tmp_path_factory.mktemp("sets")
    draw = torch.Generator().manual_seed(1)
    rows = {
        "image": torch.randint(1, 255, (ROWS, 50, 50), dtype=torch.uint8, generator=draw),  # no byte is 0
        "y": torch.arange(1, ROWS + 1),
        "tokens": memload.ragged([torch.arange(1, 1 + k % 17) for k in range(ROWS)]),
    }
    for kind, options in KINDS.items():
        memload.write(folder / kind, rows, shard_bytes="1MB", progress=False, **options)
        for server in servers.values():
            server.put(folder / kind, kind)
    return folder


def batches_of(ds, seed=0, **options):
    torch.manual_seed(seed)
    loader = memload.FastLoader(ds, 32, shuffle=True, ragged="padded", **options)
    assert loader.engine == "native"
    return [{name: (v if isinstance(v, torch.Tensor) else v.values).clone() for name, v in b.items()} for b in loader]


def assert_same(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def cache_of(ds):
    return next(iter(ds.fields.values())).column.storages[0].origin


# No path gives bytes that were not fetched.


class Refusing:
    """An origin that fetches nothing."""

    def hold(self, blocks):
        raise LookupError("nothing is fetched here")


@pytest.fixture
def bare(tmp_path):
    """A storage of 8192 rows of 8 bytes, all absent."""
    path = tmp_path / "mirror"
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(1 << 16)
    table = _core.BlockTable(_core.CacheRoom(), "", 4096, [1 << 16])
    return _core.Storage.mirror(str(path), "s3://bucket/shard", table, 0, Refusing()), table


def columns_on(storage):
    column = _core.Column(8, [(storage, 0, 8192, 8)])
    offsets = np.arange(0, 8193, 8)
    ram = _core.Storage.borrow(offsets, offsets.ctypes.data, offsets.nbytes, "offsets")
    chain = _core.Chain([("lz4", 0, 8)])
    table = np.array([[0, 0, 100, 0], [0, 100, 100, 0]])
    return {
        "rows": column,
        "selected": column.select(np.array([5, 3])),
        "windows": _core.Windows(column, [0, 1], [(0, 100, 1)]),
        "ragged": _core.Ragged(8, 1, [(ram, 0, storage, 0, 1024, 8192, 0)]),
        "tiles": _core.Tiles([_core.TileGrid(16, 8, [1], [8, 1], [storage], table, chain)]),
    }


def batch_of(column):
    pipeline = _core.Pipeline(
        [(column, None, 0, 64, [1], None)], batch_rows=1, slot_rows=1, drop_last=False, depth=1, threads=1
    )
    pipeline.push(np.array([0]))
    try:
        pipeline.next()
    finally:
        pipeline.close()


@pytest.mark.parametrize("kind", ["rows", "selected", "windows", "ragged", "tiles"])
def test_a_column_never_gives_absent_bytes(bare, kind):
    column, out = columns_on(bare[0])[kind], np.zeros(1 << 10, np.uint8)
    with pytest.raises(LookupError, match="nothing is fetched"):
        column.gather(np.array([0]), out.ctypes.data, column.row_bytes * (8 if kind == "ragged" else 1))


@pytest.mark.parametrize("kind", ["rows", "selected", "windows", "ragged", "tiles"])
def test_a_pipeline_never_gives_absent_bytes(bare, kind):
    with pytest.raises(memload.ShardReadError, match=r"s3://bucket/shard.*not fetched"):
        batch_of(columns_on(bare[0])[kind])


def test_what_loads_into_ram_never_gives_absent_bytes(bare):
    storage, out = bare[0], np.zeros(64, np.uint8)
    with pytest.raises(LookupError):
        storage.load(0, out.ctypes.data, 64)
    with pytest.raises(LookupError):
        _core.load_rows(columns_on(storage)["rows"], None, np.array([0]), out.ctypes.data, 8)


def brought(table, folder):
    """Pin the first block, and bring it."""
    with (folder / "mirror").open("r+b") as mirror:
        table.store(int(table.hold([0], 1 << 20)[0][0]), [0], mirror.fileno(), 0, bytes(table.bytes_of(0)), False)


def test_bytes_that_are_there_but_not_pinned_are_absent_too(bare, tmp_path):
    storage, table = bare
    brought(table, tmp_path)
    batch_of(columns_on(storage)["rows"])
    table.let_go([0])
    with pytest.raises(memload.ShardReadError, match="not fetched"):
        batch_of(columns_on(storage)["rows"])


@pytest.mark.parametrize("whole", [False, True])
def test_a_read_pins_what_another_thread_has_pinned(bare, tmp_path, whole):
    """That thread may let go amid the read, and then the blocks may be removed."""
    storage, table = bare
    brought(table, tmp_path)
    if whole:
        with (tmp_path / "mirror").open("r+b") as mirror:
            for block in table.hold(np.arange(1, 16), 1 << 20)[0].tolist():
                table.store(block, [0], mirror.fileno(), block * 4096, bytes(4096), False)
        assert table.hold_all()
    columns, out = columns_on(storage), np.zeros(64, np.uint8)
    with pytest.raises(LookupError):
        storage.load(0, out.ctypes.data, 8)
    with pytest.raises(LookupError):
        _core.load_rows(columns["rows"], None, np.array([0]), out.ctypes.data, 8)
    for kind, nbytes in (("rows", 8), ("ragged", 64)):
        with pytest.raises(LookupError):
            columns[kind].gather(np.array([0]), out.ctypes.data, nbytes)


# The same as a local copy.


@pytest.mark.parametrize("room", ["64MB", "3MB"])
@pytest.mark.parametrize("kept", ["folder", "ram"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_a_local_copy(sets, proxy, tmp_path, kind, kept, room):
    local = memload.open(sets / kind)
    folder = tmp_path / "cache" if kept == "folder" else None
    ds = memload.open(f"s3://bucket/{kind}", cache=folder, cache_bytes=room)
    cache, few = cache_of(ds), range(0, ROWS, 10)
    if room == "3MB":
        ds, local = ds.select(few), local.select(few)
    for epoch in range(2 if room == "64MB" else 1):
        assert_same(batches_of(ds, epoch), batches_of(local, epoch))
    assert cache.room.used <= cache.limit
    if room == "64MB":
        assert cache.counts.fetched_bytes <= sum(one.nbytes for one in cache.files)
    if kept == "folder":
        assert disk_bytes(folder) <= cache.limit


def test_a_set_that_is_there_is_read_without_the_store(sets, store, tmp_path):
    ds = memload.open(store.url("plain"), cache=tmp_path / "cache", cache_bytes="64MB")
    local = memload.open(sets / "plain")
    assert_same(batches_of(ds), batches_of(local))
    store.proxy.always = ("", 500)
    assert_same(batches_of(ds, 1), batches_of(local, 1))


def test_a_state_goes_on_where_the_loop_was(sets, proxy):
    ds, local = memload.open("s3://bucket/plain", cache_bytes="8MB"), memload.open(sets / "plain")
    want = batches_of(local)
    torch.manual_seed(0)
    loader = memload.FastLoader(ds, 32, shuffle=True, ragged="padded")
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    state = loader.state_dict()
    batches.close()
    again = memload.FastLoader(ds, 32, shuffle=True, ragged="padded")
    again.load_state_dict(state)
    assert all(torch.equal(got["y"], one["y"]) for got, one in zip(again, want[10:], strict=True))


def test_rows_selections_zips_joins_and_casts(sets, proxy):
    ds, local = (memload.open(where) for where in ("s3://bucket/plain", sets / "plain"))
    assert torch.equal(ds[7]["image"], local[7]["image"])
    assert torch.equal(ds[-1]["tokens"], local[-1]["tokens"])
    rows = [5, 1499, 5, 700]
    want = torch.stack([local[row]["image"] for row in rows])
    assert torch.equal(ds.select(rows).fields["image"].gather(np.arange(4)), want)
    both = memload.zip(a=ds.only("image"), b=memload.from_arrays(z=torch.arange(ROWS)).only("z"))
    joined = ds.concat(ds.select(range(10)))
    assert len(joined) == ROWS + 10
    batch = next(iter(memload.FastLoader(both, 8)))
    assert torch.equal(batch["a"], torch.stack([local[k]["image"] for k in range(8)]))
    cast = memload.FastLoader(ds.as_tuple("image"), 16, cast={"image": memload.Cast(torch.float32, norm_removed=True)})
    assert torch.equal(next(iter(cast))[0], (torch.stack([local[k]["image"] for k in range(16)]).float() - 127) / 255)


def test_windows_and_map_and_the_ram_tier(sets, proxy):
    ds, local = (memload.open(where).as_tuple("image", "y") for where in ("s3://bucket/plain", sets / "plain"))
    assert torch.equal(ds.with_lags(image=range(3))[20][0], local.with_lags(image=range(3))[20][0])
    mapped = memload.FastLoader(ds.map(lambda row: row[1] * 2), 8)
    assert next(iter(mapped)).tolist() == [2, 4, 6, 8, 10, 12, 14, 16]
    loaded = memload.open("s3://bucket/plain", tier="ram").as_tuple("image", "y")
    assert torch.equal(loaded[1200][0], local[1200][0])
    with pytest.raises(ValueError, match="rows of a store are kept by cache="):
        memload.open("s3://bucket/plain", tier="direct")
    with pytest.raises(ValueError, match="these rows lie in a store"):
        ds.with_tier("hybrid", cache_bytes="2MB")


def test_a_stock_loader_reads_it(sets, proxy):
    ds, local = memload.open("s3://bucket/coded").only("y"), memload.open(sets / "coded").only("y")
    got = list(torch.utils.data.DataLoader(ds, 100))
    assert torch.equal(torch.cat(got), torch.cat(list(torch.utils.data.DataLoader(local, 100))))


def test_it_is_copied_by_write(sets, proxy, tmp_path):
    copy = memload.write(tmp_path / "copy", memload.open("s3://bucket/coded"), progress=False)
    assert_same(batches_of(copy), batches_of(memload.open(sets / "plain")))


def test_a_store_object_and_a_file_address(sets, proxy):
    local = memload.open(sets / "plain")
    for where in (proxy.store("plain"), f"file://{sets}/plain"):
        assert torch.equal(memload.open(where)[3]["image"], local[3]["image"])


# Opening.


@pytest.mark.parametrize("kind", KINDS)
def test_opening_takes_the_index_alone(sets, proxy, kind):
    proxy.requests.clear()
    ds = memload.open(f"s3://bucket/{kind}")
    assert [path for path, _ in proxy.requests] == [f"/bucket/{kind}/index.json"]
    assert_same(batches_of(ds), batches_of(memload.open(sets / kind)))


def copied(source, target, change):
    """Copy a set, whose index is changed."""
    shutil.copytree(source, target)
    index = json.loads((target / "index.json").read_text())
    change(index)
    (target / "index.json").write_text(json.dumps(index))
    return target


def without_offsets(index):
    """Make an index one of earlier versions, which do not say whether there is an inner set, and have no offsets."""
    del index["inner"]
    assert all(shard.pop("offsets") for shard in index["shards"])


def test_an_index_without_offsets_opens_by_those_of_the_shards(sets, proxy, store_server, tmp_path):
    store_server.put(copied(sets / "plain", tmp_path / "few", without_offsets), "few")
    proxy.requests.clear()
    ds = memload.open("s3://bucket/few")
    asked = [path for path, _ in proxy.requests]
    assert asked[:2] == ["/bucket/few/index.json", "/bucket/few/rows/index.json"]
    assert len(asked) - 2 == len(cache_of(ds).files)
    assert_same(batches_of(ds), batches_of(memload.open(sets / "plain")))


def test_an_index_without_places_of_tensors_opens_by_the_headers(sets, proxy, store_server, tmp_path):
    def older(index):
        without_offsets(index)
        assert all(shard.pop("tensors") for shard in index["shards"])

    folder = copied(sets / "coded", tmp_path / "older", older)
    store_server.put(folder, "older")
    assert_same(batches_of(memload.open("s3://bucket/older")), batches_of(memload.open(sets / "coded")))
    assert len(memload.open(folder)) == ROWS


@pytest.mark.parametrize("wrong", ["?", "eJw=", stated(bytes(8)), stated(bytes(1 << 20))])
def test_wrong_offsets_of_an_index_are_refused(sets, proxy, store_server, tmp_path, wrong):
    def damaged(index):
        index["shards"][0]["offsets"]["tokens.offsets"] = wrong

    store_server.put(copied(sets / "plain", tmp_path / "damaged", damaged), "damaged")
    where = r"s3://bucket/damaged/index.json: shard-00000.safetensors, tensor 'tokens.offsets': offsets .* restore"
    with pytest.raises(memload.ShardFormatError, match=where):
        memload.open("s3://bucket/damaged")


@pytest.mark.parametrize(
    ("key", "wrong"), [("inner", "yes"), ("inner", 1), ("parts", 0), ("parts", "2"), ("parts", True)]
)
def test_an_index_that_does_not_say_what_it_should_is_refused(sets, tmp_path, key, wrong):
    folder = copied(sets / "plain", tmp_path / "wrong", lambda index: index.update({key: wrong}))
    with pytest.raises(memload.ShardFormatError, match=f"{key}: expected "):
        memload.open(folder)


def test_long_offsets_stay_in_the_shards(tmp_path):
    """Of 20,000 random lengths the index would have more than it should."""
    lengths = torch.randint(0, 256, (20_000,), generator=torch.Generator().manual_seed(1)).tolist()
    flags = memload.ragged([torch.zeros(n, dtype=torch.bool) for n in lengths])
    memload.write(tmp_path / "long", {"x": flags}, progress=False)
    assert "offsets" not in json.loads((tmp_path / "long" / "index.json").read_text())["shards"][0]


def test_the_index_says_where_tensors_lie(sets):
    index = json.loads((sets / "plain" / "index.json").read_text())
    shard = index["shards"][0]
    begin, end = shard["tensors"]["y"]
    raw = (sets / "plain" / shard["file"]).read_bytes()[begin:end]
    assert np.frombuffer(raw, "<i8").tolist() == list(range(1, shard["rows"] + 1))


@pytest.mark.parametrize("wrong", [[0, 9], [8, 1 << 40], [9, 8], "x", [8]])
def test_a_wrong_place_of_a_tensor_is_refused(sets, tmp_path, wrong):
    folder = tmp_path / "wrong"
    shutil.copytree(sets / "plain", folder)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["tensors"]["y"] = wrong
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(memload.ShardFormatError, match=r"shard 0: tensor 'y' must be \[begin, end\]"):
        memload.open(folder)


def test_an_address_of_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"file:///.*/none: there is no such folder on this machine"):
        memload.open(f"file://{tmp_path}/none")


def test_a_missing_set_or_bucket_and_wrong_arguments(sets, proxy, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/nothing: no index.json there"):
        memload.open("s3://bucket/nothing")
    with pytest.raises(FileNotFoundError, match="there is no such bucket"):
        memload.open("s3://no-bucket/plain")
    with pytest.raises(TypeError, match="leave out key="):
        memload.open("s3://bucket/plain", key="y")
    with pytest.raises(TypeError, match="cache= is for a set in a store"):
        memload.open(sets / "plain", cache=tmp_path)
    with pytest.raises(ValueError, match=r"cache_bytes is at least 1 MiB \(1,048,576 bytes\), got '1MB'"):
        memload.open("s3://bucket/plain", cache_bytes="1MB")
    with pytest.raises(ValueError, match="cache= is empty: give the path of a folder"):
        memload.open("s3://bucket/plain", cache="")
    with pytest.raises(memload.MemorySpaceError, match="give a larger cache_bytes="):
        list(memload.FastLoader(memload.open("s3://bucket/plain", cache_bytes="1MiB"), 1000, ragged="padded"))


def test_small_requests_are_some_hundred_at_once_and_keep_their_order():
    under_way, most = 0, 0

    async def answer(number):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if number == 1999:
            raise PermissionError
        return number * 2

    assert objects._together(range(1000), answer).result() == list(range(0, 2000, 2))
    assert 100 < most <= 200
    with pytest.raises(PermissionError):
        objects._together(range(3000), answer).result()


# The cache.


def test_few_mirror_files_are_open_at_once(sets, proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(descriptors, "_MOST_OPEN", 2)
    folder = tmp_path / "cache"
    ds = memload.open("s3://bucket/plain", cache=folder, cache_bytes="2MB").as_tuple("image", "y")
    list(memload.FastLoader(ds.select(range(0, ROWS, 3)), 4, shuffle=True))
    assert len(cache_of(ds).files) > 2
    held = [link for link in Path("/proc/self/fd").iterdir() if str(folder) in os.path.realpath(link)]
    assert len([link for link in held if "shard-" in os.path.realpath(link)]) <= 2


def test_blocks_are_verified_when_a_cache_is_taken_up_again(sets, proxy, tmp_path):
    folder = tmp_path / "cache"
    batches_of(memload.open("s3://bucket/plain", cache=folder, cache_bytes="64MB"))
    closed(folder)
    mirror = sorted(folder.glob("*/shard-00001*"))[0]
    raw = bytearray(mirror.read_bytes())
    raw[100_000] ^= 1
    mirror.write_bytes(raw)
    proxy.requests.clear()
    ds = memload.open("s3://bucket/plain", cache=folder, cache_bytes="64MB")
    assert_same(batches_of(ds), batches_of(memload.open(sets / "plain")))
    assert len(proxy.ranges()) == 1  # the one block that differed


def test_other_content_of_a_folder_stays(proxy, sets, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="this folder has other content"):
        memload.open("s3://bucket/plain", cache=folder)
    ds = memload.open("s3://bucket/plain", cache=tmp_path / "cache", cache_bytes="64MB")
    ds[0]
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    (sorted((tmp_path / "cache").glob("*/"))[0] / "notes.txt").write_text("mine")
    del ds
    closed(tmp_path / "cache")
    assert main(["cache", "rm", str(tmp_path / "cache"), "--all"]) == 0
    assert len(list(tmp_path.rglob("notes.txt"))) == 2
    assert not list(tmp_path.rglob("cache/*/shard-*"))


def test_the_room_counts_all_sets_of_a_folder(sets, proxy, tmp_path):
    folder = tmp_path / "cache"
    batches_of(memload.open("s3://bucket/plain", cache=folder, cache_bytes="5MB"))
    assert_same(
        batches_of(memload.open("s3://bucket/coded", cache=folder, cache_bytes="5MB").select(range(0, ROWS, 10))),
        batches_of(memload.open(sets / "coded").select(range(0, ROWS, 10))),
    )
    assert disk_bytes(folder) <= 5_000_000


def test_rooms_of_other_sizes_share_the_blocks_of_whoever_reads_now(sets, proxy, tmp_path):
    program = f"""
        import sys, memload
        ds = memload.open("s3://bucket/plain", cache={str(tmp_path / "cache")!r}, cache_bytes="64MB")
        ds[0]
        print("read", flush=True)
        sys.stdin.read()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"read\n"
    larger = cache_of(memload.open("s3://bucket/plain", cache=tmp_path / "cache", cache_bytes="2GiB"))
    other.communicate()
    assert larger.table.block_bytes == 1 << 16
    assert len(list((tmp_path / "cache").glob("*/set.json"))) == 1
    assert (
        cache_of(memload.open("s3://bucket/plain", cache=tmp_path / "new", cache_bytes="2GiB")).table.block_bytes
        == 1 << 20
    )


def test_the_command_lists_and_clears_a_cache(sets, proxy, tmp_path, capsys):
    folder = tmp_path / "cache"
    ds = memload.open("s3://bucket/plain", cache=folder, cache_bytes="64MB")
    ds[0]
    del ds
    closed(folder)
    assert main(["cache", "list", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    (entry,) = listed["entries"]
    assert entry["url"] == "s3://bucket/plain"
    assert 0 < entry["nbytes"] < entry["set_nbytes"]
    assert main(["cache", "list", str(folder)]) == 0
    assert "s3://bucket/plain" in capsys.readouterr().out
    assert main(["cache", "rm", str(folder), "nothing"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["cache", "rm", str(folder), entry["name"][:6], "--json"]) == 0
    removed = json.loads(capsys.readouterr().out)["removed"]
    assert removed == [{"name": entry["name"], "nbytes": entry["nbytes"], "is_gone": True}]
    assert disk_bytes(folder) == 0


def best_hits(uses, room, held):
    """Return the most uses that can find their block there, with room for so many blocks; `held` are there before."""
    after, later = [0] * len(uses), {}
    for k in reversed(range(len(uses))):
        after[k] = later.get(uses[k], len(uses))
        later[uses[k]] = k
    there, hits = {block: later.get(block, len(uses)) for block in held}, 0
    for k, block in enumerate(uses):
        hits += block in there
        if block not in there and len(there) == room:
            del there[max(there, key=there.get)]
        there[block] = after[k]
    return hits


def test_evicted_blocks_are_those_of_farthest_use(sets, proxy, monkeypatch):
    monkeypatch.setattr(Admission, "product", 0)  # what is ahead on a slow link takes some of the room
    rows = list(range(0, ROWS, 4))
    ds = memload.open("s3://bucket/plain", cache_bytes="2MB").as_tuple("image", "y").select(rows)
    cache, before = cache_of(ds), 0
    find = _core.BlocksOf([field.column for field in ds.fields.values()])
    for epoch in range(2):
        held = np.flatnonzero(cache.table.states(0, cache.table.blocks) & 3).tolist()
        torch.manual_seed(epoch)
        order = [rows.index(int(y) - 1) for _, y in memload.FastLoader(ds, 1, shuffle=True)]
        uses = [block for row in order for block in find(np.array([row]))[0][1].tolist()]
        hits, before = cache.counts.hits - before, cache.counts.hits
        # Batches ahead of the loop take some of so small a room; benchmarks/remote.py has larger ones.
        assert hits >= 0.88 * best_hits(uses, cache.limit // cache.table.block_bytes, held)
        assert hits < len(uses)


class Pushed:
    """A gatherer that gives the loop nothing, and keeps the blocks of all batches that it was given."""

    def __init__(self, batches):
        self.left, self.finished = batches, threading.Event()

    def push(self, rows):
        self.left -= 1

    def finish(self):
        self.finished.set()


def test_batches_of_the_same_blocks_are_held_far_ahead(sets, proxy):
    """They are asked for once: what batches have in common is no reason to leave the link idle."""
    ds, draw = memload.open("s3://bucket/plain", cache_bytes="1GB"), np.random.default_rng(0)
    batches, pushed = 60, Pushed(60)
    ahead = ReadAhead(pushed, [ds.fields["image"].column], [cache_of(ds)], 32, False)
    ahead.start()
    try:
        for _ in range(batches):
            ahead.push(draw.permutation(ROWS)[:32])
        ahead.finish()
        assert pushed.finished.wait(60)
        assert pushed.left == 0
    finally:
        ahead.stop()


def test_a_slow_link_has_batches_held_farther_ahead_where_the_room_is_small(sets, proxy, monkeypatch):
    """Else the loop would wait for requests that could have been made while it had the batches before."""
    ds, draw = memload.open("s3://bucket/plain", cache_bytes="2MB"), np.random.default_rng(0)
    cache = cache_of(ds)
    batches = [draw.permutation(ROWS)[:2] for _ in range(100)]
    most = cache.limit // 2 // (2 * cache.table.block_bytes)  # batches whose blocks take half the room
    assert most >= 4
    for on_its_way, held in ((0, 2), (1 << 30, most)):
        monkeypatch.setattr(Admission, "product", on_its_way)
        pushed = Pushed(held)
        ahead = ReadAhead(pushed, [ds.fields["image"].column], [cache], 2, False)
        ahead.start()
        try:
            for rows in batches:
                ahead.push(rows)
            deadline = time.monotonic() + 300
            while pushed.left > 0:
                assert time.monotonic() < deadline, f"{pushed.left} of {held} batches are not held"
                time.sleep(0.001)
        finally:
            ahead.stop()


def test_blocks_of_a_shuffle_are_those_that_are_fetched(sets, proxy):
    ds = memload.open("s3://bucket/plain", cache_bytes="3MB").as_tuple("image", "y")
    cache = cache_of(ds)
    sampler = memload.BlockShuffle(ds, window=2, seed=0)
    find = _core.BlocksOf([ds.fields["image"].column])
    begins = [find(np.array([row]))[0][1].tolist()[0] for row in range(ROWS)]
    assert sampler.blocks.sizes.tolist() == np.unique(begins, return_counts=True)[1].tolist()
    assert sorted(int(y) for _, y in memload.FastLoader(ds, 1, sampler=sampler)) == list(range(1, ROWS + 1))
    assert cache.counts.fetched_bytes <= 1.3 * sum(one.nbytes for one in cache.files)
    half = memload.BlockShuffle(ds.select(range(0, ROWS, 2)))
    assert half.blocks.rows == ROWS // 2


def test_a_plan_counts_what_epochs_fetch(sets, proxy):
    large = memload.open("s3://bucket/plain", cache_bytes="64MB").as_tuple("image", "y")
    plan = memload.plan(large, 32, shuffle=True)
    cache, before = cache_of(large), cache_of(large).counts.fetched_bytes
    list(memload.FastLoader(large, 32, shuffle=True))
    assert (plan.network.cold_bytes, plan.network.warm_bytes) == (cache.counts.fetched_bytes - before, 0)
    assert "network: a first epoch fetches" in str(plan).lower()

    small = memload.open("s3://bucket/plain", cache_bytes="2MB").as_tuple("image", "y")
    network, cache = memload.plan(small, 8, shuffle=True).network, cache_of(small)
    fetched = [cache.counts.fetched_bytes]
    for _ in range(2):
        list(memload.FastLoader(small, 8, shuffle=True))
        fetched.append(cache.counts.fetched_bytes)
    assert fetched[1] - fetched[0] <= network.cold_bytes
    assert fetched[2] - fetched[1] <= network.warm_bytes < network.cold_bytes
    in_order = memload.plan(small, 8).network
    assert in_order.cold_bytes == in_order.warm_bytes < network.warm_bytes
    assert memload.plan(memload.from_arrays(x=torch.zeros(9)), 3).network is None
    assert str(small.tier) == "mmap"


def test_it_travels_to_other_processes(sets, proxy, tmp_path):
    ds = memload.open("s3://bucket/coded", cache=tmp_path / "cache", cache_bytes="64MB")
    copy = pickle.loads(pickle.dumps(ds))
    assert torch.equal(copy[9]["image"], memload.open(sets / "coded")[9]["image"])


@pytest.mark.parametrize("rows", [40, 90])
def test_a_copy_of_a_set_that_was_replaced_is_refused(proxy, store_server, tmp_path, rows):
    for name, count in (("old", 40), ("new", rows)):
        x = torch.full((count, 10), len(name) + count, dtype=torch.int32)
        memload.write(tmp_path / name, {"x": x + (name == "new")}, shard_bytes="500B", progress=False)
        store_server.put(tmp_path / name, f"copied-{rows}")
        if name == "old":
            ds = memload.open(f"s3://bucket/copied-{rows}")
            pickled, again = pickle.dumps(ds), pickle.dumps(pickle.loads(pickle.dumps(ds)))
    for one in (pickled, again):
        with pytest.raises(
            memload.ShardReadError, match=r"index.json: the set was replaced .* expected the index with"
        ):
            pickle.loads(one)


def test_a_copy_reads_the_index_once(sets, proxy):
    pickled = pickle.dumps(memload.open("s3://bucket/plain"))
    proxy.requests.clear()
    copy = pickle.loads(pickled)
    assert [path for path, _ in proxy.requests if path.endswith("json")] == ["/bucket/plain/index.json"]
    assert copy[9]["y"] == 10


def test_two_processes_download_each_block_once(sets, proxy, tmp_path):
    program = textwrap.dedent(f"""
        import sys, torch, memload
        ds = memload.open("s3://bucket/plain", cache={str(tmp_path / "cache")!r}, cache_bytes="64MB")
        ds = ds.as_tuple("image", "y")
        local = memload.open({str(sets / "plain")!r}).as_tuple("image", "y")
        loaders = []
        for one in (ds, local):
            torch.manual_seed(int(sys.argv[1]))
            loaders.append([tuple(v.clone() for v in batch) for batch in memload.FastLoader(one, 32, shuffle=True)])
        assert all(torch.equal(a, b) for p, q in zip(*loaders, strict=True) for a, b in zip(p, q))
    """)
    ranks = [subprocess.Popen([sys.executable, "-c", program, str(rank)], stderr=subprocess.PIPE) for rank in range(2)]
    for rank in ranks:
        _, said = rank.communicate(timeout=MOST_SECONDS)
        assert rank.returncode == 0, said.decode()
    files = len(list((sets / "plain").glob("*.safetensors")))
    fetched = proxy.ranges()
    assert len(fetched) - len(set(fetched)) <= files  # only offsets, which each process reads when it opens the set


@pytest.fixture
def replaced(proxy, store_server, tmp_path):
    """Writes a set of two shards; returns its cache, and what gives it shards of the same size and other bytes."""
    for name, fill in (("old", 1), ("new", 2)):
        memload.write(tmp_path / name, {"x": torch.full((80, 10_000), fill)}, shard_bytes="3.2MB", progress=False)
    store_server.put(tmp_path / "old", tmp_path.name)

    def replace():
        for shard in (tmp_path / "new").glob("shard-*"):
            store_server.put_bytes(f"{tmp_path.name}/{shard.name}", shard.read_bytes())

    return f"s3://bucket/{tmp_path.name}", {"cache": tmp_path / "cache", "cache_bytes": "64MB"}, replace


def rows_read(ds, rows):
    """Return the first number of each row; "replaced" for one that is refused as what the cache has no more."""
    found = []
    for row in rows:
        try:
            found.append(int(ds[row]["x"][0]))
        except memload.ShardReadError as error:
            said = str(error)
            found.append("replaced" if "was replaced" in said and "memload cache rm" in said else said)
    return found


READ_ON = """
import sys, memload
ds = memload.open(sys.argv[1], cache=sys.argv[2], cache_bytes="64MB")
for row in (0, 20, 39, 60):
    try:
        print(int(ds[row]["x"][0]), end=" ")
    except memload.ShardReadError as error:
        print("replaced" if "the object was replaced" in str(error) else error, end=" ")
"""


def test_a_shard_that_is_replaced_is_never_mixed_by_the_processes_of_a_cache(replaced, capsys):
    """The first shard was read before, the second one was not, so that it counts as it is now."""
    url, options, replace = replaced
    ds = memload.open(url, **options)
    assert rows_read(ds, [0]) == [1]
    replace()
    program = [sys.executable, "-c", READ_ON, url, str(options["cache"])]
    assert subprocess.run(program, stdout=subprocess.PIPE, check=True, text=True).stdout == "1 replaced replaced 2 "
    assert rows_read(ds, [0, 20, 39, 60, 79]) == [1, "replaced", "replaced", 2, 2]
    del ds
    ds = memload.open(url, **options)
    assert rows_read(ds, [0, 20, 60]) == [1, "replaced", 2]
    remove = ["cache", "rm", str(options["cache"]), "--all"]
    assert main(remove) == 0
    assert "which a process reads now" in capsys.readouterr().out
    assert rows_read(memload.open(url, **options), [0, 20, 60]) == ["replaced", "replaced", 2]
    del ds
    closed(options["cache"])
    assert main(remove) == 0
    assert capsys.readouterr().out.startswith("removed")
    assert rows_read(memload.open(url, **options), [0, 20, 60]) == [2, 2, 2]


def test_an_error_that_was_handled_keeps_no_cache(replaced):
    url, options, replace = replaced
    ds = memload.open(url, **options)
    assert rows_read(ds, [0]) == [1]
    replace()
    cache = weakref.ref(cache_of(ds))
    gc.disable()
    try:
        assert rows_read(ds, [39]) == ["replaced"]
        del ds
        until(lambda: cache() is None)  # the thread of the last request keeps it for a moment
    finally:
        gc.enable()


@pytest.mark.parametrize("left", ["", "[0", "[0, 7]\n", '[0, ""]\n'])
def test_blocks_without_an_etag_are_fetched_again(replaced, left):
    """As they are where the machine went down before the ETag reached the disk."""
    url, options, replace = replaced
    assert rows_read(memload.open(url, **options), [0]) == [1]
    closed(options["cache"])
    (etags,) = options["cache"].glob("*/etags")
    etags.write_text(left)
    replace()
    for _ in range(2):
        assert rows_read(memload.open(url, **options), [0, 20, 39, 60]) == [2, 2, 2, 2]
        closed(options["cache"])
    assert len(etags.read_text().removeprefix(left if "\n" in left else "").splitlines()) == 2


def test_offsets_are_of_the_shards_whose_rows_are_read(sets, proxy, store_server, tmp_path):
    store_server.put(copied(sets / "plain", tmp_path / "offsets", without_offsets), "offsets")
    ds = memload.open("s3://bucket/offsets")
    first = sorted((sets / "plain").glob("shard-*"))[0]
    store_server.put_bytes(f"offsets/{first.name}", bytes(first.stat().st_size))
    with pytest.raises(memload.ShardReadError, match=r"shard-00000.safetensors: the object was replaced"):
        ds[0]


# The link.


def test_a_request_that_is_cancelled_as_it_is_let_in_gives_its_room_back():
    async def rooms():
        one, waiting = link(), []

        async def answer():
            waiting.extend(asyncio.ensure_future(one.carried("host", 1000, answer)) for _ in range(2))
            await asyncio.sleep(0)

        await one.carried("host", MOST_IN_FLIGHT, answer)  # which lets the others in at its end
        for request in waiting:
            request.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return [request.cancelled() for request in waiting], one.admission("host").in_flight

    assert link().submit(rooms()).result() == ([True, True], 0)


def test_what_waits_behind_the_requests_of_a_link_is_known():
    one, let_in = Admission(), []
    target = one.target
    assert one.enter(target, partial(let_in.append, 0))
    assert not one.enter(target, partial(let_in.append, 1))
    assert not one.is_provided
    assert not one.enter(target, partial(let_in.append, 2))
    assert one.is_provided
    one.leave(target)
    assert (let_in, one.is_provided) == ([1], False)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def asked_of(latency, most, requests=2000, nbytes=1 << 20):
    """Keep the target in flight on a link of a latency in seconds and so many bytes in a second; return the `Rate`."""
    clock = Clock()
    rate, under_way, carried = Rate(clock), deque(), 0.0
    for _ in range(requests):
        while (len(under_way) + 1) * nbytes <= rate.target:
            carried = max(carried, clock.now + latency) + nbytes / most
            under_way.append((rate.begin(), carried))
        begun, clock.now = under_way.popleft()
        rate.end(begun, nbytes)
    return rate


def test_more_is_in_flight_until_the_rate_grows_no_further():
    """A link of 250 MB/s and 0.1 s carries 25 MB at once; half more than that is asked for in the end."""
    assert 25e6 < asked_of(0.1, 250e6).target < 45e6


def test_a_longer_way_is_seen_after_a_while():
    clock = Clock()
    rate = Rate(clock)
    for seconds in [0.01] * 100 + [0.1] * 1000:
        begun = rate.begin()
        clock.now += seconds
        rate.end(begun, 30 << 20)
    assert rate.target > 40e6


def test_what_is_in_flight_is_bounded():
    clock = Clock()
    rate = Rate(clock)
    for _ in range(100):
        begun = [rate.begin() for _ in range(200)]
        clock.now += 1.0
        for one in begun:
            rate.end(one, 8 << 20)
    assert rate.target == MOST_IN_FLIGHT


@pytest.mark.parametrize("options", [{}, {"codec": "lz4"}], ids=str)
@pytest.mark.parametrize("by", ["subject", "word", "keys"])
def test_rows_of_a_store_are_split_by_a_field_as_local_ones_are(tmp_path, options, by):
    subject = np.random.default_rng(0).integers(0, 20, 1000)
    rows = {"x": np.arange(4000).reshape(1000, 4), "subject": subject, "word": [f"s{one}" for one in subject]}
    memload.write(f"file://{tmp_path}/store", rows, shard_bytes="16kB", progress=False, **options)
    memload.write(tmp_path / "local", rows, progress=False)
    key = subject if by == "keys" else by
    local, remote = (memload.open(place) for place in (tmp_path / "local", f"file://{tmp_path}/store"))
    for one, other in zip(local.split(0.8, 3, by=key), remote.split(0.8, 3, by=key), strict=True):
        read = [torch.cat([batch["x"] for batch in memload.FastLoader(part, 64)]) for part in (one, other)]
        assert torch.equal(*read)
    train, test = ({int(row["subject"]) for row in part} for part in remote.split(0.8, 3, by=key))
    assert (train & test, len(train | test)) == (set(), 20)
