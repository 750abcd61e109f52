"""Sets written straight to a store, in parts: what is sealed is what one writer writes to a folder."""

import json
import os
import pickle
import random
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from obstore.store import LocalStore, MemoryStore
from waiting import MOST_SECONDS

import memload
from memload.cli.main import main
from memload.formats.remote import upload_buffers
from memload.formats.remote import uploads as uploading
from memload.formats.remote.upload_folder import UploadFolder

ROWS = 24


pytestmark = pytest.mark.usefixtures("uploads")


def mixed(start, stop):
    """Rows of every kind: plain, compressed, ragged, and texts."""
    numbers = range(start, stop)
    return {
        "x": torch.arange(start, stop),
        "big": torch.stack([torch.full((300,), k % 7, dtype=torch.uint8) for k in numbers]),
        "tokens": memload.ragged([torch.arange(k % 5, dtype=torch.int32) for k in numbers]),
        "text": [f"row {k}" * (k % 3) for k in numbers],
    }


def write(url, part, parts=4, **options):
    step = ROWS // parts
    return memload.write_part(url, mixed(part * step, part * step + step), part=part, parts=parts, **options)


def all_rows(ds):
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in ds[k].items()}
        for k in range(len(ds))
    ]


def assert_whole(server, prefix, ds):
    """The set has all rows, and nothing but what its index lists lies in the store."""
    assert all_rows(ds) == all_rows(memload.from_arrays(mixed(0, ROWS)))
    listed = json.loads(server.get(f"{prefix}/index.json"))["shards"]
    assert server.keys(prefix) == sorted(["index.json", *(shard["file"] for shard in listed)])


@pytest.mark.parametrize("options", [{}, {"codec": "zstd", "shard_bytes": 700}], ids=["plain", "small-zstd"])
def test_parts_in_any_order_make_the_set_that_one_writer_makes(store, options):
    prefix = f"any-order-{len(options)}"
    for part in random.Random(1).sample(range(4), 4):
        assert write(store.url(prefix), part, **options).rows == 6
    with pytest.raises(FileNotFoundError, match="parts of a set are here, which `memload seal`, or"):
        memload.open(store.url(prefix))
    assert_whole(store.server, prefix, memload.seal(store.url(prefix)))


def test_sealing_reads_and_moves_no_shard(proxy, store_server):
    for part in range(2):
        memload.write_part("s3://bucket/moved", {"x": torch.arange(5)}, part=part, parts=2)
    proxy.requests.clear()
    memload.seal("s3://bucket/moved")
    assert proxy.ranges() == []


def test_repeated_replaced_and_concurrent_parts_leave_one_of_each(store):
    url = store.url("repeated")
    memload.write_part(url, mixed(0, 1), part=3, parts=4)
    for part in (0, 1, 2, 3, 1):
        write(url, part)
    with ThreadPoolExecutor(3) as pool:
        written = list(pool.map(lambda _: write(url, 2), range(3)))
        assert [part.rows for part in written] == [6] * 3
        assert [len(ds) for ds in pool.map(lambda _: memload.seal(url), range(3))] == [ROWS] * 3
    assert_whole(store.server, "repeated", memload.seal(url, parts=4))
    with pytest.raises(ValueError, match=r"parts=5, but a set is sealed here already, of parts=4; "):
        memload.seal(url, parts=5)
    with pytest.raises(FileExistsError, match="this set is complete"):
        write(url, 0)


def test_a_part_of_unchanged_files_is_left_as_it_is(proxy, store_server, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20.0).reshape(10, 2))
    ds = memload.open(tmp_path / "x.npy")
    for expected in (True, False):
        proxy.requests.clear()
        memload.write_part("s3://bucket/same", ds, part=0, parts=2, rows=range(5))
        assert bool(proxy.ranges()) is expected
    memload.write_part("s3://bucket/same", ds, part=0, parts=2, rows=range(5), resume=False)
    assert len(store_server.keys("same")) == 3  # the replaced shard stays until the set is sealed
    memload.write_part("s3://bucket/same", ds, part=1, parts=2, rows=range(5, 10))
    assert torch.equal(memload.seal("s3://bucket/same")[7]["data"], ds[7]["data"])
    assert len(store_server.keys("same")) == 3


def test_what_is_missing_or_disagrees_is_refused(store):
    url = store.url("refused")
    with pytest.raises(FileNotFoundError, match="no parts of a set are here"):
        memload.seal(url)
    write(url, 1)
    with pytest.raises(ValueError, match=r"3 of 4 parts are missing: part 0, 2, 3"):
        memload.seal(url)
    with pytest.raises(ValueError, match=r"part 1 of 4 is complete, and this is part 0 of 3"):
        write(url, 0, parts=3)
    with pytest.raises(ValueError, match=r"part 0 of 4 has the fields \['y'\]"):
        memload.write_part(url, {"y": torch.arange(3)}, part=0, parts=4)
    for part in (0, 2, 3):
        write(url, part)
    lost = next(name for name in store.server.keys("refused") if name.startswith("shard-00002"))
    store.server.put_bytes(f"refused/{lost}", b"short")
    with pytest.raises(memload.ShardFormatError, match=rf"{lost}: it has 5 bytes instead of \d+; write its part"):
        memload.seal(url)
    store.server.delete(f"refused/{lost}")
    with pytest.raises(memload.ShardFormatError, match=rf"{lost}: it is missing; write its part again"):
        memload.seal(url)
    write(url, 2)
    assert_whole(store.server, "refused", memload.seal(url))


def test_a_writer_that_completes_after_the_sealing_removes_its_own(store):
    url = store.url("late")
    for part in range(4):
        write(url, part)

    def rows():
        for k in range(6):
            yield {name: values[0] for name, values in mixed(k, k + 1).items()}
        memload.seal(url)

    memload.write_part(url, rows(), part=0, parts=4, ragged=["tokens"])
    assert_whole(store.server, "late", memload.open(url))


@pytest.mark.parametrize("where", ["s3://bucket/counts", "folder"])
def test_a_writer_that_completes_after_the_sealing_returns_what_counts(proxy, store_server, tmp_path, where):
    path = where if "://" in where else tmp_path / where

    def rows():
        yield {"x": 2}
        memload.write_part(path, {"x": torch.ones(50)}, part=0, parts=2)
        memload.write_part(path, {"x": torch.ones(9)}, part=1, parts=2, shard_bytes=1)
        memload.seal(path)

    written = memload.write_part(path, rows(), part=0, parts=2)
    assert (written.rows, written.shards) == (50, 1)
    assert len(memload.open(path)) == 59


def test_a_set_of_somebody_else_is_not_returned_as_ones_own(proxy, store_server):
    url = "s3://bucket/mine-or-not"

    def rows():
        yield {"x": 2}
        memload.write(url, {"x": torch.ones(50, dtype=torch.int64)})

    with pytest.raises(FileExistsError, match="another writer completed a set there meanwhile, which stays"):
        memload.write(url, rows())
    assert len(memload.open(url)) == 50


def test_of_two_writers_of_a_set_at_once_one_is_told(store):
    """Both are at their last row at the same time; whichever counts, its rows are the set, and the other one raises."""
    for case in range(3):
        url, barrier = store.url(f"at-once-{case}"), threading.Barrier(2)

        def write_all(value, url=url, barrier=barrier):
            def rows():
                yield {"x": value}
                barrier.wait(MOST_SECONDS)

            try:
                return memload.write(url, rows(), progress=False)[0]["x"].item()
            except FileExistsError:
                return None

        with ThreadPoolExecutor(2) as pool:
            told = list(pool.map(write_all, (1, 2)))
        assert sorted(told, key=str) == [memload.open(url)[0]["x"].item(), None]
        assert len(store.server.keys(f"at-once-{case}")) == 2


def test_other_objects_stay(store):
    store.server.put_bytes("mine/thesis.txt", b"mine")
    with pytest.raises(FileExistsError, match=r"other objects are there, such as 'thesis.txt'"):
        memload.write(store.url("mine"), {"x": torch.arange(3)})
    for part in range(2):
        memload.write_part(store.url("beside"), {"x": torch.arange(3)}, part=part, parts=2)
    store.server.put_bytes("beside/notes.txt", b"mine")
    memload.seal(store.url("beside"))
    assert "notes.txt" in store.server.keys("beside")


@pytest.mark.parametrize("path", [Path("s3://bucket/set"), " s3://bucket/set", "s3:/bucket/set", "gcs://bucket/set"])
def test_what_reads_like_an_address_is_no_folder_to_make(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"x": np.arange(3)}
    for write in (memload.write, partial(memload.write_part, part=0, parts=1), lambda to, _: memload.ShardWriter(to)):
        with pytest.raises(ValueError, match=r"reads like the address of a store.*s3://, gs://, az://"):
            write(path, data)
    assert not [*tmp_path.glob("*s*:")]


def test_a_whole_set_is_written_as_one_part(proxy, store_server):
    ds = memload.write("s3://bucket/whole", mixed(0, ROWS), codec={"big": "auto"}, progress=False)
    assert_whole(store_server, "whole", ds)
    with pytest.raises(FileExistsError, match="this set is complete"):
        memload.write("s3://bucket/whole", mixed(0, ROWS))
    with pytest.raises(ValueError, match="what is at an address is complete once it is there"):
        memload.write("s3://bucket/whole", mixed(0, ROWS), append=True)
    with pytest.raises(ValueError, match="this writes to a file system only"):
        memload.ShardWriter("s3://bucket/new")


def test_the_commands_write_and_seal(proxy, store_server, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(20.0).reshape(10, 2))
    for part in (1, 0):
        assert main(["write", f"x={tmp_path}/x.npy", "s3://bucket/command", "--part", f"{part}/2", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["seal", "s3://bucket/command", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 10
    assert main(["write", f"x={tmp_path}/x.npy", "s3://bucket/command2", "--quiet"]) == 0
    assert memload.open("s3://bucket/command2")[9]["x"].tolist() == [18.0, 19.0]
    assert main(["seal", "s3://bucket/none"]) == 2
    again = ["write", f"x={tmp_path}/x.npy", "s3://bucket/command", "--part", "0/2", "--quiet"]
    assert main(again) == 2  # the set is sealed
    assert main(["verify", "s3://bucket/command"]) == 0
    assert "160 B read, all checksums agree" in capsys.readouterr().out


def test_stores_of_obstore_and_addresses_of_folders(tmp_path):
    (tmp_path / "store").mkdir()
    for where in (MemoryStore(), LocalStore(tmp_path / "store"), f"file://{tmp_path}/fresh"):
        for part in (1, 0):
            memload.write_part(where, {"x": torch.arange(3) + 3 * part}, part=part, parts=2)
        assert memload.seal(where)[4]["x"] == 4
    assert len(memload.open(tmp_path / "fresh")) == 6


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://bucket/run#1", "'#' is no part of a name in an address; write %23 for it"),
        ("s3://bucket/run?1", "'\\?' is no part of a name in an address; write %3F for it"),
        ("file:///folder/run#1", "'#' is no part of a name"),
        ("s3://bucket/run\\1", "is no part of a name in an address; write %5C for it"),
        ("s3://bucket/one/../two", "a folder of a store has no '.' and '..'"),
        ("s3://bucket/one/%2E%2e/two", "a folder of a store has no '.' and '..'"),
        ("s3://bucket/run\n1", "it has a blank at an end, a line break"),
        ("s3://bucket/run%0A1", "it has a blank at an end, a line break"),
        ("s3://bucket/run ", "it has a blank at an end"),
        ("s3://key:secret@bucket/run", "is no name of a bucket"),
        ("file://folder/run", "it names the host 'folder'; .* three slashes: file:///folder"),
        ("https://127.0.0.1:9/run#1", "'#' is no part of a name"),
    ],
)
def test_what_an_address_would_lose_is_refused(address, said):
    """Else two sets would be one: obstore drops these, or takes them for something else."""
    steps = (
        lambda: memload.write_part(address, {"x": torch.arange(3)}, part=0, parts=1),
        lambda: memload.seal(address),
        lambda: memload.open(address),
    )
    for step in steps:
        with pytest.raises(ValueError, match=said):
            step()


def test_names_with_percent_signs_are_what_obstore_takes_them_for(proxy, store_server, tmp_path):
    for name, plain in (("run%231 a", "run#1 a"), ("run%232%20a", "run#2 a")):
        memload.write(f"s3://bucket/{name}", {"x": torch.arange(3)})
        assert "index.json" in store_server.keys(plain)
        memload.write(f"file://{tmp_path}/{name}", {"x": torch.arange(3)})
        assert len(memload.open(f"file://localhost{tmp_path}/{name}")) == len(memload.open(tmp_path / plain)) == 3


def test_the_name_of_a_file_is_no_address_of_a_set():
    with pytest.raises(ValueError, match=r"this is the name of a \.pt file; write to an address without this suffix"):
        memload.write("s3://bucket/run.pt", {"x": torch.arange(3)})


def test_a_web_server_is_refused():
    with pytest.raises(ValueError, match="sets are read from web servers, and not written to them"):
        memload.write("http://127.0.0.1:9/set", {"x": torch.arange(3)})


def test_a_bucket_that_is_not_there_and_missing_permissions(store):
    with pytest.raises(FileNotFoundError, match="there is no such bucket"):
        memload.write(f"{store.scheme}://no-bucket/new", {"x": torch.arange(3)})
    store.proxy.always = ("", 403)
    with pytest.raises(PermissionError, match="the store refuses it"):
        memload.write(store.url("forbidden"), {"x": torch.arange(3)})


@pytest.mark.parametrize(("largest", "at_once", "most"), [(0, 0, 2), (0, 150_000, 4), (1 << 20, 150_000, 0)])
def test_shards_that_wait_on_the_disk_are_few(proxy, uploads, monkeypatch, largest, at_once, most):
    """One is written, and some are uploaded; small ones without codecs are in memory."""
    monkeypatch.setattr(upload_buffers, "LARGEST", largest)
    monkeypatch.setattr(uploading, "UPLOADING", at_once)
    seen, url = [], f"s3://bucket/bounded-{most}"

    def rows():
        for k in range(40):
            seen.append(len(list(uploads.glob("*/shard-*"))))
            yield {"x": torch.full((49_000,), k, dtype=torch.uint8)}

    memload.write(url, rows(), shard_bytes=49_000)
    assert 0 <= max(seen) <= most
    assert [int(row["x"][-1]) for row in memload.open(url)] == list(range(40))


def test_rows_of_an_unknown_number_are_moved_together_in_memory(proxy):
    """Room for a whole shard is laid out, of which the last one has less."""
    rows = [
        {"x": torch.full((7,), k, dtype=torch.int64), "y": torch.full((5,), k, dtype=torch.uint8)} for k in range(9)
    ]
    ds = memload.write("s3://bucket/unknown", iter(rows), shard_bytes=400)
    assert all(torch.equal(ds[k][name], row[name]) for k, row in enumerate(rows) for name in row)


def test_what_a_part_asks_of_the_store(proxy):
    """Two lists, its ticket, the index of another part, its own, whether the set is sealed, and a removal."""
    rows = {"x": torch.zeros(40, 1000)}
    for part in (0, 1):
        proxy.requests.clear()
        memload.write_part("s3://bucket/asked", rows, part=part, parts=2, shard_bytes=40_000)
    assert len(proxy.ranges()) == 4
    assert len(proxy.requests) == 7 + 4
    proxy.requests.clear()
    memload.seal("s3://bucket/asked")
    assert len(proxy.requests) == 2 + 2 + 1 + 2 + 1 + 1  # lists, parts, the index, lists, a removal, and opening it


def test_what_killed_writers_left_on_the_disk_goes(uploads):
    alive = UploadFolder()
    left = uploads / f"memload-upload-{os.getuid()}-left"
    left.mkdir()
    (left / "shard").write_bytes(b"x")
    UploadFolder().remove()
    assert not left.exists()
    assert alive.path.exists()
    alive.remove()


@pytest.mark.ray
def test_a_sink_of_ray_writes_to_a_store(proxy, store_server):
    """The steps that Ray takes, in its order; the sink travels to each task."""
    block = pytest.importorskip("pandas").DataFrame({"x": [1, 2], "text": ["a", "b"]})
    sink = memload.ShardSink("s3://bucket/sink")
    sink.on_write_start()
    numbers = [pickle.loads(pickle.dumps(sink)).write([block], types.SimpleNamespace(task_idx=k)) for k in (1, 0)]
    sink.on_write_complete(types.SimpleNamespace(write_returns=numbers))
    assert [row["text"] for row in memload.open("s3://bucket/sink")] == ["a", "b"] * 2
    with pytest.raises(FileExistsError, match="this set is complete"):
        sink.on_write_start()
    failing = memload.ShardSink("s3://bucket/failing")
    failing.on_write_start()
    failing.write([block], types.SimpleNamespace(task_idx=0))
    failing.on_write_failed(RuntimeError())
    assert store_server.keys("failing") == []


@pytest.mark.ray
@pytest.mark.parametrize("where", ["s3://bucket/jobs", "folder"])
def test_of_two_jobs_of_ray_one_is_refused_and_removes_nothing(proxy, store_server, tmp_path, where):
    block = pytest.importorskip("pandas").DataFrame({"x": [1, 2]})
    path = where if "://" in where else tmp_path / where
    one, other = memload.ShardSink(path), memload.ShardSink(path)
    one.on_write_start()
    with pytest.raises(FileExistsError, match="already"):
        other.on_write_start()
    number = one.write([block], types.SimpleNamespace(task_idx=0))
    with pytest.raises(FileExistsError, match="already"):
        other.on_write_start()
    other.on_write_failed(RuntimeError())
    one.on_write_complete(types.SimpleNamespace(write_returns=[number]))
    assert [row["x"] for row in memload.open(path)] == [1, 2]


@pytest.mark.ray
def test_of_two_jobs_of_ray_at_the_same_moment_one_is_refused(proxy, store_server):
    """The other one begins between the first one's look at the store and its own object there."""
    pytest.importorskip("pandas")
    one, other = memload.ShardSink("s3://bucket/moment"), memload.ShardSink("s3://bucket/moment")
    proxy.meanwhile = {"PUT /bucket/moment/.parts/job": other.on_write_start}
    with pytest.raises(FileExistsError, match="something is there already, of another job"):
        one.on_write_start()
    one.on_write_failed(RuntimeError())
    assert store_server.keys("moment") == [".parts/job"]
    other.on_write_failed(RuntimeError())
    assert store_server.keys("moment") == []


@pytest.mark.ray
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_job_that_failed_lets_the_next_one_take_the_place(tmp_path, kind):
    block = pytest.importorskip("pandas").DataFrame({"x": [1, 2]})
    (tmp_path / "store").mkdir()
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path / "store")
    failed, sink = memload.ShardSink(store), memload.ShardSink(store)
    failed.on_write_start()
    failed.write([block], types.SimpleNamespace(task_idx=0))
    failed.on_write_failed(RuntimeError())
    sink.on_write_start()
    number = sink.write([block], types.SimpleNamespace(task_idx=0))
    sink.on_write_complete(types.SimpleNamespace(write_returns=[number]))
    assert len(memload.open(store)) == 2


@pytest.mark.ray
def test_a_job_whose_answer_was_lost_goes_on(proxy, store_server):
    sink = memload.ShardSink("s3://bucket/lost-answer")
    proxy.once = ("PUT /bucket/lost-answer/.parts/job", "lost")
    sink.on_write_start()
    sink.on_write_failed(RuntimeError())
    assert store_server.keys("lost-answer") == []
