"""Shards: what is written is what is read, atomically, in a format that other tools read and that never changes."""

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import strategies
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from programs import run, started
from repository import DATA

import memload
from memload.formats.shards.staging import Staging, makes
from memload.progress import bar
from memload.sizes import format_size, parse_size

PINNED = DATA / "shards-v1"


def tensors_of(dataset):
    return {name: field.gather(np.arange(len(dataset))) for name, field in dataset.fields.items()}


def assert_same(dataset, expected):
    found = tensors_of(dataset)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert strategies.as_bytes(found[name]) == strategies.as_bytes(tensor)


def leftovers(parent):
    return sorted(path.name for path in parent.rglob("*") if ".memload" in path.name)


@pytest.fixture
def fields():
    return {"stim": torch.arange(300, dtype=torch.uint8).reshape(100, 3), "robs": torch.arange(100.0)}


@given(strategies.field_sets(), st.integers(1, 300))
def test_what_is_written_is_what_is_read(tmp_path_factory, arrays, shard_bytes):
    path = tmp_path_factory.mktemp("set") / "s"
    assert_same(memload.write(path, arrays, shard_bytes=shard_bytes), arrays)
    memload.verify(path)


@given(strategies.field_sets(), st.integers(1, 300), st.lists(st.none() | st.integers(0, 7)))
def test_rows_and_batches_in_any_mixture_make_the_same_set(tmp_path_factory, arrays, shard_bytes, steps):
    path = tmp_path_factory.mktemp("set") / "s"
    rows = len(next(iter(arrays.values())))
    at = 0
    with memload.ShardWriter(path, shard_bytes=shard_bytes) as writer:
        for step in [*steps, *[None] * rows]:
            if at == rows:
                break
            if step is None:
                writer.append(**{name: array[at] for name, array in arrays.items()})
            else:
                writer.extend(**{name: array[at : at + step] for name, array in arrays.items()})
            at = min(rows, at + (1 if step is None else step))
    assert_same(memload.open(path), arrays)
    memload.verify(path)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_every_dtype_and_the_safetensors_library_reads_it(tmp_path, dtype):
    expected = strategies.random_tensor(dtype, (6, 2, 3), seed=1)
    assert_same(memload.write(tmp_path / "s", {"x": expected}), {"x": expected})
    (shard,) = (tmp_path / "s").glob("*.safetensors")
    if str(dtype) == "torch.float8_e8m0fnu":  # the library writes it, but its torch reader does not know it
        assert safetensors.deserialize(shard.read_bytes())[0][1]["data"] == strategies.as_bytes(expected)
    else:
        found = safetensors.torch.load_file(shard)["x"]
        assert found.dtype == dtype
        assert strategies.as_bytes(found) == strategies.as_bytes(expected)


def test_many_shards_of_several_fields_open_in_the_safetensors_library(tmp_path, fields):
    memload.write(tmp_path / "s", fields, shard_bytes=140)
    shards = sorted((tmp_path / "s").glob("*.safetensors"))
    assert len(shards) == 5
    parts = [safetensors.torch.load_file(shard) for shard in shards]
    assert torch.equal(torch.cat([part["stim"] for part in parts]), fields["stim"])
    assert torch.equal(torch.cat([part["robs"] for part in parts]), fields["robs"])


def test_data_starts_at_a_multiple_of_4096_and_each_field_is_aligned(tmp_path):
    arrays = {"a": torch.zeros(3, 1, dtype=torch.uint8), "b": torch.zeros(3), "c": torch.zeros(3, dtype=torch.float64)}
    memload.write(tmp_path / "s", arrays)
    raw = (tmp_path / "s" / "shard-00000.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    assert start % 4096 == 0
    assert {name: entry["data_offsets"][0] for name, entry in header.items()} == {"c": 0, "b": 24, "a": 36}


def test_the_format_is_pinned_to_the_byte(tmp_path):
    memload.write(tmp_path / "s", {"stim": torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8), "y": torch.ones(2)})
    header = (
        b'{"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        b'"stim":{"dtype":"U8","shape":[2,3],"data_offsets":[8,14]}}'
    )
    assert (tmp_path / "s" / "shard-00000.safetensors").read_bytes() == (
        b"\xf8\x0f\0\0\0\0\0\0" + header.ljust(4088) + b"\0\0\x80\x3f\0\0\x80\x3f" + b"\1\2\3\4\5\6"
    )
    assert json.loads((tmp_path / "s" / "index.json").read_bytes()) == {
        "format": "memload-shards",
        "version": 1,
        "rows": 2,
        "inner": False,
        "fields": {
            "stim": {"dtype": "U8", "shape": [3], "block_rows": 1398101},
            "y": {"dtype": "F32", "shape": [], "block_rows": 1048576},
        },
        "shards": [
            {
                "file": "shard-00000.safetensors",
                "rows": 2,
                "bytes": 4110,
                "xxh3_64": {"stim": "c7de39ae11689bef", "y": "774376da7ad20e6b"},
                "tensors": {"y": [4096, 4104], "stim": [4104, 4110]},
            }
        ],
    }
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["index.json", "shard-00000.safetensors"]


def test_a_set_written_by_version_1_stays_readable():
    ds = memload.open(PINNED)
    assert memload.verify(PINNED) == ds.nbytes
    assert list(ds.fields) == ["stim", "robs", "trial"]
    assert [ds[i]["trial"].item() for i in range(len(ds))] == list(range(7))
    assert ds[5]["stim"].tolist() == [[5, 6, 7], [8, 9, 10]]
    assert ds[5]["robs"].dtype == torch.bfloat16
    assert ds[5]["robs"].tolist() == [5.0, 2.5, 1.25, -5.0]


def test_a_dataset_is_written_in_its_own_order(tmp_path, fields):
    ds = memload.from_arrays(**fields).select([5, 99, 5, 0]).as_tuple("robs", "stim")
    written = memload.write(tmp_path / "s", ds)
    assert_same(written, {"robs": torch.tensor([5.0, 99.0, 5.0, 0.0]), "stim": fields["stim"][[5, 99, 5, 0]]})


def test_scattered_rows_lists_and_numbers_can_be_written(tmp_path):
    written = memload.write(tmp_path / "s", {"x": torch.arange(12).reshape(3, 4).T, "y": np.asfortranarray(np.eye(4))})
    assert written[3]["x"].tolist() == [3, 7, 11]
    assert written[3]["y"].tolist() == [0, 0, 0, 1]
    rows = ({"label": i, "name": [i, i + 1]} for i in range(3))
    assert memload.write(tmp_path / "t", rows)[2]["name"].tolist() == [2, 3]


def test_a_row_is_copied_at_once_so_that_its_memory_may_be_used_again(tmp_path):
    row = np.zeros(3)
    with memload.ShardWriter(tmp_path / "s") as writer:
        for i in range(4):
            row[:] = i
            writer.append(x=row)
    assert [int(one["x"][0]) for one in memload.open(tmp_path / "s")] == [0, 1, 2, 3]


def test_rows_larger_than_a_checksum_block_and_than_a_shard(tmp_path):
    arrays = {"x": torch.arange(3 * 1_200_000, dtype=torch.float32).reshape(3, -1), "y": torch.arange(3)}
    assert_same(memload.write(tmp_path / "s", arrays, shard_bytes=1000), arrays)
    assert len(list((tmp_path / "s").glob("*.safetensors"))) == 3
    assert memload.verify(tmp_path / "s") == 3 * (4_800_000 + 8)


def test_a_checksum_stands_for_4_mib_of_rows(tmp_path):
    x = torch.randint(0, 256, (5, 2**21 - 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    memload.write(tmp_path / "s", {"x": x})
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    blocks = [x[0:2], x[2:4], x[4:5]]
    assert index["fields"]["x"]["block_rows"] == 2
    assert index["shards"][0]["xxh3_64"]["x"] == "".join(
        xxhash.xxh3_64(b.numpy().tobytes()).hexdigest() for b in blocks
    )


def test_append_adds_shards_and_keeps_those_that_are_there(tmp_path, fields):
    first = memload.write(tmp_path / "s", fields, shard_bytes=350)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*.safetensors")}
    both = memload.write(tmp_path / "s", fields, append=True)
    assert_same(both, {name: torch.cat([tensor, tensor]) for name, tensor in fields.items()})
    assert_same(first, fields)
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())
    assert memload.verify(tmp_path / "s") == both.nbytes
    assert leftovers(tmp_path) == []


def test_append_makes_the_set_if_there_is_none(tmp_path, fields):
    assert_same(memload.write(tmp_path / "s", fields, append=True), fields)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"stim": torch.zeros(3, dtype=torch.uint8)}, r"row 0 has the fields \['stim'\], expected \['robs', 'stim'\]"),
        ({"stim": torch.zeros(3), "robs": 1.0}, r"field 'stim' is float32 \(3,\), expected uint8 \(3,\)"),
        ({"stim": torch.zeros(4, dtype=torch.uint8), "robs": 1.0}, r"field 'stim' is uint8 \(4,\)"),
    ],
)
def test_append_refuses_other_fields_and_changes_nothing(tmp_path, fields, row, message):
    memload.write(tmp_path / "s", fields)
    with pytest.raises(ValueError, match=message), memload.ShardWriter(tmp_path / "s", append=True) as writer:
        writer.append(**row)
    assert_same(memload.open(tmp_path / "s"), fields)
    assert leftovers(tmp_path) == []


def test_readers_see_the_old_set_until_an_append_is_complete(tmp_path, fields):
    memload.write(tmp_path / "s", fields)
    with memload.ShardWriter(tmp_path / "s", append=True, shard_bytes=70) as writer:
        writer.extend(**fields)
        assert_same(memload.open(tmp_path / "s"), fields)
    assert len(memload.open(tmp_path / "s")) == 200


@pytest.mark.parametrize("make", ["set", "directory", "file", "dangling link"])
def test_an_existing_target_is_left_alone(tmp_path, fields, make):
    target = tmp_path / "s"
    if make == "set":
        memload.write(target, fields)
    elif make == "directory":
        target.mkdir()
        (target / "mine.txt").touch()
    elif make == "file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere")
    with pytest.raises(FileExistsError, match="append=True" if make == "set" else "not a set of shards"):
        memload.write(target, {"x": torch.zeros(3)})
    if make == "set":
        assert_same(memload.open(target), fields)
    assert leftovers(tmp_path) == []


def test_append_refuses_what_is_no_set(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="a file"):
        memload.write(tmp_path / "file", {"x": torch.zeros(3)}, append=True)
    with pytest.raises(memload.ShardFormatError, match=r"no index\.json"):
        memload.write(tmp_path, {"x": torch.zeros(3)}, append=True)


def test_an_exception_in_the_block_leaves_nothing(tmp_path, fields):
    def rows():
        yield {name: tensor[0] for name, tensor in fields.items()}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        memload.write(tmp_path / "s", rows(), shard_bytes=1)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_row_leaves_the_writer_usable(tmp_path):
    with memload.ShardWriter(tmp_path / "s") as writer:
        writer.append(x=torch.zeros(3))
        with pytest.raises(ValueError, match=r"row 1: field 'x' is float32 \(4,\), expected float32 \(3,\)"):
            writer.append(x=torch.zeros(4))
        with pytest.raises(ValueError, match="x: 2, y: 3"):
            writer.extend(x=torch.zeros(2), y=torch.zeros(3))
        writer.append(x=torch.ones(3))
    assert len(memload.open(tmp_path / "s")) == 2


def test_a_closed_writer_says_so(tmp_path):
    writer = memload.ShardWriter(tmp_path / "s")
    writer.append(x=1)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.append(x=1)


def test_a_writer_that_is_forgotten_leaves_nothing(tmp_path):
    writer = memload.ShardWriter(tmp_path / "s")
    writer.append(x=1)
    del writer
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("file/s", FileExistsError, r"/file/s: cannot be made: .*/file is no folder; write to another path"),
        ("file/in/s", NotADirectoryError, r"/file/in/s: cannot be made: .*/file is no folder"),
        ("/proc/s", OSError, r"/proc/s: cannot be made: (/proc accepts no new folder \(|this process .* to /proc)"),
        ("", ValueError, "the path is empty"),
        ({"x": torch.zeros(3)}, TypeError, r"the directory to make comes first, .* got a dict"),
    ],
)
def test_a_place_where_nothing_can_be_made_says_what_is_in_the_way(tmp_path, monkeypatch, path, error, message):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(error, match=message) as caught:
        memload.write(path, {"x": torch.zeros(3)})
    assert not isinstance(caught.value, OSError) or caught.value.errno
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_link_to_nothing_where_a_set_is_written_is_not_waited_for(tmp_path):
    (tmp_path / ".s.memload").symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError, match=r"/s: cannot be made: .*/\.s\.memload: a link to nothing is in the way"):
        memload.write(tmp_path / "s", {"x": torch.zeros(3)})


def test_a_folder_that_may_not_be_written_to_is_named_with_who_may_not(tmp_path):
    said = rf"/s: cannot be made: this process \(user {os.geteuid()}\) may not write to {tmp_path};"
    with pytest.raises(PermissionError, match=said), makes(tmp_path / "s"):
        raise PermissionError(errno.EACCES, "Permission denied", "s")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"x": torch.zeros(0, 3)}, ValueError, "0 rows"),
        ([], ValueError, "no row was written"),
        ({}, ValueError, "no fields"),
        ([{}], ValueError, "at least one field"),
        ([(1, 2)], TypeError, 'row 0 is a tuple; expected a mapping .* such as {"stim": '),
        (torch.zeros(3, 2), TypeError, "data is a Tensor; give it a name"),
        ({"x": torch.zeros(3), "y": torch.zeros(4)}, ValueError, "x: 3, y: 4"),
        ({"x": torch.tensor(1.0)}, ValueError, "single number"),
        ({"x": torch.zeros(3, dtype=torch.complex128)}, TypeError, "field 'x': .*cannot be stored"),
        ({"x": np.array(["a"])}, TypeError, "field 'x': .*is text; give a list of str"),
        ({"__metadata__": torch.zeros(3)}, ValueError, "not a name for a field"),
        ({"": torch.zeros(3)}, ValueError, "not a name for a field"),
        ([{"x": None}], TypeError, "field 'x': a NoneType"),
        (None, TypeError, "data is of type NoneType; expected a dataset, arrays by name, or an iterable of rows"),
    ],
)
def test_data_that_cannot_be_written_says_why_and_leaves_nothing(tmp_path, data, error, message):
    with pytest.raises(error, match=message):
        memload.write(tmp_path / "s", data)
    assert list(tmp_path.iterdir()) == []


def test_the_second_of_two_writers_is_refused(tmp_path, fields):
    with memload.ShardWriter(tmp_path / "s") as writer:
        writer.extend(**fields)
        with pytest.raises(memload.WriterBusyError, match="another writer"):
            memload.ShardWriter(tmp_path / "s")
    with memload.ShardWriter(tmp_path / "s", append=True) as writer:
        with pytest.raises(memload.WriterBusyError, match="another writer"):
            memload.ShardWriter(tmp_path / "s", append=True)
        writer.extend(**fields)
    assert len(memload.open(tmp_path / "s")) == 200


def test_of_many_writers_at_once_one_wins_and_its_set_is_whole(tmp_path):
    outcomes = []

    def attempt(number):
        try:
            memload.write(tmp_path / "s", {"x": torch.full((50,), number)}, shard_bytes=80)
            outcomes.append(number)
        except (memload.WriterBusyError, FileExistsError):
            pass

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1
    assert_same(memload.open(tmp_path / "s"), {"x": torch.full((50,), outcomes[0])})
    assert leftovers(tmp_path) == []


KILLED = """
import memload, sys, torch
append = sys.argv[2] == "append"
with memload.ShardWriter(sys.argv[1], shard_bytes=200_000, append=append) as writer:
    print("ready", flush=True)
    for i in range(60):
        writer.extend(x=torch.full((1000, 10), float(i)))
print("done", flush=True)
"""


def in_forked_child(body):
    """Run `body` in a fork of this process, and return its exit status: that of what it returns, 99 if it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: forking with threads is the test
        child = os.fork()
    if child == 0:
        status = 99
        try:
            status = body()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_that_ends_leaves_the_set_of_its_parent_alone(tmp_path):
    with memload.ShardWriter(tmp_path / "s", shard_bytes=64) as writer:
        writer.extend(x=torch.arange(100))

        def child():
            writer.abort()
            return 0

        assert in_forked_child(child) == 0
        with pytest.raises(memload.WriterBusyError):
            memload.ShardWriter(tmp_path / "s")
        writer.extend(x=torch.arange(100, 200))
    assert_same(memload.open(tmp_path / "s"), {"x": torch.arange(200)})
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("use", ["append", "extend", "close"])
def test_a_forked_child_that_writes_is_told_whose_the_writer_is(tmp_path, use):
    with memload.ShardWriter(tmp_path / "s") as writer:
        writer.append(x=1)

        def child():
            with pytest.raises(RuntimeError, match=rf"belongs to process {os.getppid()}, and this is .* forked"):
                getattr(writer, use)(**{} if use == "close" else {"x": torch.tensor([2])})
            return 0

        assert in_forked_child(child) == 0
    assert_same(memload.open(tmp_path / "s"), {"x": torch.tensor([1])})


def test_nothing_is_removed_that_another_writer_could_have_made_meanwhile(tmp_path, monkeypatch):
    target = tmp_path / "s"
    remove = shutil.rmtree

    def watched(path, **options):
        remove(path, **options)
        with pytest.raises(memload.WriterBusyError):
            Staging(target, append=False)

    staging = Staging(target, append=False)
    monkeypatch.setattr(shutil, "rmtree", watched)
    staging.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.015, 0.05])
@pytest.mark.parametrize("mode", ["new", "append"])
def test_a_killed_writer_leaves_nothing_that_opens_and_the_next_one_works(tmp_path, mode, delay):
    target = tmp_path / "s"
    if mode == "append":
        memload.write(target, {"x": torch.zeros(5, 10)})
    with started(KILLED, target, mode) as writer:
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(writer.pid, signal.SIGKILL)
        finished = writer.wait() == 0
    rows = {"new": 0, "append": 5}[mode]
    if target.exists() and len(memload.open(target)) != rows:  # it was faster than the signal: then it is complete
        rows += 60_000
        assert len(memload.open(target)) == rows
        memload.verify(target)
    else:
        assert not finished
    written = memload.write(target, {"x": torch.ones(7, 10)}, append=rows > 0)
    assert len(written) == rows + 7
    assert memload.verify(target) == written.nbytes
    assert leftovers(tmp_path) == []
    listed = {shard["file"] for shard in json.loads((target / "index.json").read_text())["shards"]}
    assert {path.name for path in target.glob("*.safetensors")} == listed


def test_shards_that_a_killed_append_had_moved_into_place_are_cleared(tmp_path, fields):
    memload.write(tmp_path / "s", fields)
    for number in (1, 2, 3):
        (tmp_path / "s" / f"shard-{number:05d}.safetensors").write_bytes(b"half")
    assert len(memload.open(tmp_path / "s")) == 100
    memload.write(tmp_path / "s", fields, append=True)
    assert sorted(path.name for path in (tmp_path / "s").glob("*.safetensors")) == [
        "shard-00000.safetensors",
        "shard-00001.safetensors",
    ]


def test_what_a_writer_killed_at_its_very_end_left_beside_the_set_is_cleared(tmp_path, fields):
    memload.write(tmp_path / "s", fields)
    (tmp_path / ".s.memload").mkdir()
    (tmp_path / ".s.memload" / "lock").touch()
    memload.write(tmp_path / "s", fields, append=True)
    assert leftovers(tmp_path) == []


def test_writing_needs_little_memory(tmp_path):
    code = (
        "import memload, numpy as np, sys, torch\n"
        "def peak():  # of this program; ru_maxrss begins with what the process that forked it held\n"
        "    return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM:'))\n"
        "rows = memload.from_arrays(x=np.zeros((1, 10**6), np.uint8)).select([0] * 400)\n"
        "memload.write(sys.argv[1] + '/warm', rows.select([0] * 20))\n"
        "before = peak()\n"
        "memload.write(sys.argv[1] + '/s', rows)\n"
        "print(peak() - before)"
    )
    done = run(code, tmp_path)
    assert done.status == 0, done.err
    assert int(done.out[0]) < 40_000  # kB, for 400 MB of data


def test_the_index_of_a_set_is_the_last_thing_written(tmp_path, fields):
    memload.write(tmp_path / "s", fields, shard_bytes=70)
    changed = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s").iterdir()}
    assert max(changed, key=changed.get) == "index.json"


def test_a_progress_bar_appears_only_when_asked_and_after_a_second(tmp_path, capfd):
    def slowly():
        for i in range(2):
            time.sleep(0.6)
            yield {"x": torch.full((1000,), i)}

    def work(show, after):
        with bar("work", 100, show, after=after) as counted:
            counted.update(50)
            counted.update(50)

    work(True, after=1000)
    work(False, after=0)
    assert capfd.readouterr().err == ""
    work(True, after=0)
    assert "work" in capfd.readouterr().err
    memload.write(tmp_path / "silent", {"x": torch.zeros(10)}, progress=False)
    assert capfd.readouterr().err == ""
    memload.write(tmp_path / "shown", slowly(), progress=True)
    shown = capfd.readouterr().err
    assert "write" in shown
    assert "B/s" in shown


def test_a_forked_process_killed_amid_a_progress_bar_stops_nobody_else(tmp_path):
    code = (
        "import os, signal, sys, memload, torch, tqdm\n"
        "tqdm.tqdm.get_lock()\n"  # which forked processes share
        "child = os.fork()\n"
        "if child == 0:\n"
        "    tqdm.tqdm.get_lock().acquire()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "for name, progress in (('silent', False), ('shown', True)):\n"
        "    print(len(memload.write(f'{sys.argv[1]}/{name}', {'x': torch.zeros(3)}, progress=progress)))\n"
    )
    done = run(code, tmp_path)
    assert (done.status, done.out) == (0, ["-9", "3", "3"]), done.err


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("512MB", 512_000_000), ("1 KiB", 1024), ("2.5gb", 2_500_000_000), ("100", 100), ("7B", 7), (9, 9)],
)
def test_sizes_are_read_as_people_write_them(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1 PB", "1e9", 0, "0", -5])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_a_size_that_is_no_number_is_named_by_its_type(tmp_path):
    with pytest.raises(TypeError, match='a number of bytes, or a text such as "512MB", got NoneType'):
        memload.write(tmp_path / "s", {"x": torch.zeros(3)}, shard_bytes=None)
    assert list(tmp_path.iterdir()) == []


def test_sizes_are_shown_with_three_digits():
    assert [format_size(n) for n in (0, 999, 1000, 541_875, 2.1675e9, 5e15)] == [
        "0 B",
        "999 B",
        "1 kB",
        "542 kB",
        "2.17 GB",
        "5,000 TB",
    ]


def test_shards_are_readable_by_the_umask_like_any_file(tmp_path, fields):
    old = os.umask(0o027)
    try:
        memload.write(tmp_path / "s", fields)
    finally:
        os.umask(old)
    assert all(path.stat().st_mode & 0o777 == 0o640 for path in (tmp_path / "s").iterdir())
