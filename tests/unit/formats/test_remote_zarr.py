"""Zarr arrays in a store: the rows that zarr gives, chunk by chunk, whatever the store does meanwhile."""

import functools
import http.server
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from stores import disk_bytes
from zarr3 import zarr

import memload
from memload.formats.remote import repeating
from memload.formats.remote.objects import Listed, Objects
from memload.formats.remote.packed_objects import PackedObjects

pytestmark = pytest.mark.filterwarnings("ignore::memload.LayoutWarning")

X = np.random.default_rng(0).integers(1, 1000, (60, 7, 90)).astype(np.int32)
LAYOUTS = {
    "v2": {"chunks": (8, 4, 90), "zarr_format": 2},
    "v2-fortran": {"chunks": (8, 7, 90), "zarr_format": 2, "order": "F"},
    "v3": {"chunks": (7, 4, 40), "zarr_format": 3},
    "sharded": {"chunks": (4, 7, 90), "shards": (16, 7, 90)},
    "plain": {"chunks": (8, 7, 90), "compressors": None},
}


@pytest.fixture(scope="session")
def arrays(tmp_path_factory, servers):
    """The same rows in each layout, and a group, which all stores have under the same names."""
    folder = tmp_path_factory.mktemp("arrays")
    for name, options in LAYOUTS.items():
        zarr.create_array(folder / f"{name}.zarr", data=X, **options)
    group = zarr.open_group(folder / "group.zarr", mode="w")
    group.create_array("x", data=X, chunks=(8, 7, 90))
    group.create_array("deeper/y", data=np.arange(60), chunks=(25,))
    gaps = zarr.create_array(folder / "gaps.zarr", shape=X.shape, dtype="i4", chunks=(8, 7, 90), fill_value=7)
    gaps[16:24] = X[16:24]
    zarr.create_array(folder / "unwritten.zarr", shape=(9, 3), dtype="f4", chunks=(4, 3), fill_value=2.5)
    for path in folder.iterdir():
        for server in servers.values():
            server.put(path, path.name)
    return folder


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(repeating, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(repeating, "_LONGEST_PAUSE", 0.02)


def cache_of(ds):
    return next(iter(ds.fields.values())).column.storages[0].origin


def epoch(ds, name="data"):
    torch.manual_seed(0)
    return torch.cat([batch[name].clone() for batch in memload.FastLoader(ds, 16, shuffle=True)])


@pytest.mark.parametrize(
    ("store", "layout"),
    [
        *(("s3", layout) for layout in (*LAYOUTS, "gaps")),
        ("gs", "v3"),
        ("gs", "sharded"),
        ("az", "v3"),
        ("az", "sharded"),
    ],
    indirect=["store"],
)
def test_batches_are_those_of_the_local_array(arrays, store, layout):
    ds, local = memload.open(store.url(f"{layout}.zarr")), memload.open(arrays / f"{layout}.zarr")
    assert torch.equal(epoch(ds), epoch(local))
    rows = np.random.default_rng(1).permutation(60)
    assert (
        ds.fields["data"].gather(rows).numpy().tobytes()
        == zarr.open_array(arrays / f"{layout}.zarr")[:][rows].tobytes()
    )
    assert torch.equal(pickle.loads(pickle.dumps(ds))[59]["data"], local[59]["data"])


def test_a_group_and_a_part_of_it(arrays, proxy):
    ds = memload.open("s3://bucket/group.zarr")
    assert list(ds.fields) == ["x", "deeper/y"]
    assert ds[59]["deeper/y"] == 59
    assert list(memload.open("s3://bucket/group.zarr", key="deeper").fields) == ["y"]
    assert list(memload.open("s3://bucket/group.zarr/x", field="stim").fields) == ["stim"]
    with pytest.raises(KeyError, match="nothing is named 'z'"):
        memload.open("s3://bucket/group.zarr", key="z")


def test_an_array_that_was_never_written(arrays, proxy):
    assert epoch(memload.open("s3://bucket/unwritten.zarr")).eq(2.5).all()


def test_only_the_chunks_of_the_rows_are_fetched_and_small_ones_that_share_their_block(arrays, proxy):
    """Three chunks of 20 kB lie in a block of 64 KiB."""
    ds = memload.open("s3://bucket/plain.zarr")
    proxy.requests.clear()
    ds.fields["data"].gather(np.array([7, 25]))
    assert sorted(path.rpartition("zarr/")[2] for path, _ in proxy.requests) == [f"c/{k}/0/0" for k in range(6)]
    ds.fields["data"].gather(np.array([0, 47]))
    assert len(proxy.requests) == 6


def test_a_cache_is_taken_up_again_and_stays_in_its_room(arrays, proxy, tmp_path):
    options = {"cache": tmp_path / "cache", "cache_bytes": "64MB"}
    epoch(memload.open("s3://bucket/v3.zarr", **options))
    ds = memload.open("s3://bucket/v3.zarr", **options)
    proxy.requests.clear()
    assert torch.equal(epoch(ds), epoch(memload.open(arrays / "v3.zarr")))
    assert proxy.requests == []
    del ds
    small = {"cache": tmp_path / "small", "cache_bytes": "1MiB"}
    both = [memload.open(f"s3://bucket/{name}.zarr", **small) for name in ("plain", "v3", "sharded")]
    assert all(torch.equal(epoch(ds), epoch(memload.open(arrays / "v3.zarr"))) for ds in both)
    assert disk_bytes(tmp_path / "small", "*/chunks") <= 1 << 20


def test_tiers_shuffles_and_copies(arrays, proxy, tmp_path):
    ds, local = memload.open("s3://bucket/v2.zarr"), memload.open(arrays / "v2.zarr")
    assert torch.equal(memload.open("s3://bucket/v2.zarr", tier="ram")[9]["data"], local[9]["data"])
    assert memload.BlockShuffle(ds).blocks.sizes.tolist() == memload.BlockShuffle(local).blocks.sizes.tolist()
    written = memload.write(tmp_path / "shards", ds, progress=False)
    assert torch.equal(written[33]["data"], local[33]["data"])
    assert memload.plan(ds, 16, shuffle=True).network.cold_bytes > 0


@pytest.mark.parametrize("faults", [[503, 500], ["cut", "drop"]])
def test_what_passes_by_is_tried_again(arrays, proxy, faults):
    proxy.faults = list(faults)
    ds = memload.open("s3://bucket/v2.zarr")
    proxy.faults = list(faults)
    assert torch.equal(epoch(ds), epoch(memload.open(arrays / "v2.zarr")))


def test_what_stays_raises_with_the_name_of_the_chunk(arrays, proxy, store_server):
    ds = memload.open("s3://bucket/plain.zarr")
    proxy.always = ("c/1/0/0", 500)
    with pytest.raises(memload.ShardReadError, match=r"s3://bucket/plain.zarr/c/1/0/0: 8 attempts in .* failed"):
        ds[8]
    proxy.always = ("c/1/0/0", 403)
    with pytest.raises(PermissionError, match="the store refuses it"):
        ds[8]
    proxy.mend()
    assert torch.equal(ds[8]["data"], torch.from_numpy(X[8]))


def test_a_chunk_that_is_replaced_or_removed(arrays, store):
    store.server.put(arrays / "plain.zarr", "changing.zarr")
    ds = memload.open(store.url("changing.zarr"))
    whole = len(store.server.get("changing.zarr/c/0/0/0"))
    for chunk, data in ((0, b"other"), (3, bytes(whole))):  # of two blocks
        store.server.put_bytes(f"changing.zarr/c/{chunk}/0/0", data)
        with pytest.raises(memload.ShardReadError, match=rf"changing.zarr/c/{chunk}/0/0: the object was "):
            ds[8 * chunk]
    store.server.delete("changing.zarr/c/6/0/0")
    with pytest.raises(FileNotFoundError, match="c/6/0/0: there is no such object"):
        ds[48]
    store.server.delete("changing.zarr/c/0/0/0")
    again = memload.open(store.url("changing.zarr"))
    assert [int(again[row]["data"][0, 0]) for row in (0, 24)] == [0, 0]  # the fill value, and the new chunk's
    assert torch.equal(again[8]["data"], torch.from_numpy(X[8]))


IN_ANOTHER_PROCESS = """
import pickle, sys
ds = pickle.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(b"".join(ds[row]["x"].numpy().tobytes() for row in range(len(ds))))
"""


def rows_in_another_process(ds):
    program = [sys.executable, "-W", "ignore", "-c", IN_ANOTHER_PROCESS]
    out = subprocess.run(program, input=pickle.dumps(ds), stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(out, X.dtype).reshape(X.shape)


def test_a_copy_has_the_rows_of_its_listing_whatever_was_written_beside_them(proxy, store_server, tmp_path):
    group = zarr.open_group(tmp_path / "grow", mode="w")
    x = group.create_array("x", shape=X.shape, dtype="i4", chunks=(8, 7, 90), fill_value=7, compressors=None)
    x[32:] = X[32:]
    store_server.put(tmp_path / "grow", "grow")
    ds = memload.open("s3://bucket/grow", key="x")
    before = x[:]
    group.create_array("model", data=X[:20], chunks=(8, 7, 90), compressors=None)
    x[:16] = X[:16]
    store_server.put(tmp_path / "grow", "grow")
    for row in range(60):  # the dataset of here is alive, and its copy reads the same blocks
        assert np.array_equal(pickle.loads(pickle.dumps(ds))[row]["x"].numpy(), before[row])
    assert np.array_equal(rows_in_another_process(ds), before)
    assert np.array_equal(rows_in_another_process(memload.open("s3://bucket/grow", key="x")), x[:])


def test_a_copy_of_an_array_that_was_replaced_is_refused(proxy, store_server, tmp_path):
    for rows in (X, X + 1):
        zarr.create_array(tmp_path / "new", data=rows, chunks=(8, 7, 90), compressors=None, overwrite=True)
        store_server.put(tmp_path / "new", "new")
        if rows is X:
            pickled = pickle.dumps(memload.open("s3://bucket/new"))
    with pytest.raises(memload.ShardReadError, match=r"new/c/\d/0/0: the object was replaced"):
        pickle.loads(pickled)[0]


def test_a_damaged_chunk_says_where(arrays, proxy, store_server):
    store_server.put(arrays / "v3.zarr", "damaged.zarr")
    store_server.put_bytes("damaged.zarr/c/1/0/0", b"not Zstandard")
    ds = memload.open("s3://bucket/damaged.zarr")
    assert torch.equal(ds[0]["data"], torch.from_numpy(X[0]))
    with pytest.raises(memload.ShardReadError, match=r"damaged.zarr.*chunk \(1, 0, 0\).*cannot be decoded"):
        ds[7]


def test_what_is_no_array_and_what_lists_nothing(arrays, proxy, store_server):
    with pytest.raises(FileNotFoundError, match="no set of shards of memload's, and no metadata of Zarr"):
        memload.open("s3://bucket/nothing.zarr")
    store_server.put_bytes("broken.zarr/zarr.json", b"{")
    with pytest.raises(memload.FormatError, match=r"s3://bucket/broken.zarr: zarr cannot read it"):
        memload.open("s3://bucket/broken.zarr")
    handler = functools.partial(QuietHandler, directory=arrays)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(ValueError, match="a web server does not list its files"):
            memload.open(f"http://127.0.0.1:{server.server_address[1]}/v3.zarr")
        server.shutdown()


def test_a_web_address_that_refuses_what_is_not_there_lists_nothing_either(arrays):
    """As a bucket does whose objects are public and whose listing is not."""

    class Handler(QuietHandler):
        def send_error(self, code, message=None, explain=None):
            super().send_error(403 if code == 404 else code, message, explain)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=arrays)) as server:
        server.handle_error = lambda request, address: None  # a client that asks for something else by now
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name in ("v2", "v3"):
            with pytest.raises(ValueError, match="a web server does not list its files"):
                memload.open(f"http://127.0.0.1:{server.server_address[1]}/{name}.zarr")
        with pytest.raises(PermissionError, match=r"nothing/.*: the store refuses it"):
            memload.open(f"http://127.0.0.1:{server.server_address[1]}/nothing")
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def test_objects_are_packed_so_that_small_ones_share_a_block():
    listed = {str(k): Listed(size, "") for k, size in enumerate([10, 20, 70_000, 60_000, 65_000])}
    packed = PackedObjects(Objects(None, "s3://bucket/a"), listed, 1 << 16)
    assert list(packed.begin_of.values()) == [0, 64, 1 << 16, 135_552, 3 << 16]
    assert packed.nbytes == (3 << 16) + 65_000
