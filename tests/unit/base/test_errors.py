"""Malformed sets and faults of the world: each raises its type and says where, what was expected, and what to do."""

import contextlib
import copy
import errno
import json
import os
import pickle
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import strategies
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import memload
from memload.cli.main import main
from memload.errors import Damage
from memload.formats.shards.index import dump_index, parse_index
from memload.formats.shards.safetensors_header import build_header, parse_header, read_layout


@pytest.fixture
def shards(tmp_path):
    """A set of three shards with 40, 40 and 20 rows."""
    fields = {"stim": torch.arange(300, dtype=torch.uint8).reshape(100, 3), "robs": torch.arange(100.0)}
    memload.write(tmp_path / "s", fields, shard_bytes=40 * 7)
    return tmp_path / "s"


def header_of(tensors, data=b"", length=None):
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(file, match):
    with pytest.raises(memload.ShardFormatError, match=match):
        parse_header(file, len(file))


# Headers


def test_a_sound_header_gives_the_tensors_and_where_they_lie():
    file = header_of({"b": entry("F32", (1,), (2, 6)), "a": entry(), "__metadata__": {"k": "v"}}, bytes(6))
    layout = parse_header(file, len(file))
    assert list(layout.tensors) == ["b", "a"]
    assert (layout.tensors["a"].begin, layout.tensors["a"].end) == (len(file) - 6, len(file) - 4)
    assert layout.tensors["b"].dtype == torch.float32
    assert layout.tensors["b"].end == layout.file_size == len(file)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**63 - 1, 1000])
def test_a_header_longer_than_the_file_is_refused_without_reading_it(length):
    refused(header_of({}, length=length), f"states {length} bytes, but only 2 follow")


def test_a_header_beyond_the_limit_of_the_format_is_refused():
    with pytest.raises(memload.ShardFormatError, match="the format allows 100000000"):
        parse_header(header_of(b"", length=100_000_001), 2**40)


@pytest.mark.parametrize("size", range(8))
def test_a_file_without_room_for_the_length_is_refused(size):
    refused(bytes(size), f"at least 8 bytes, this one has {size}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1,', "not JSON"),
        (b"[]", "begin with '{'"),
        (b' {"a":1}', "begin with '{'"),
        (b"", "begin with '{'"),
        (b'{"\xff": 1}', "not JSON in UTF-8"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b'{"a": NaN}', "expected an object"),
        (b'{"\\ud800": 1}', "cannot be written as UTF-8"),
        (b'{"": 1}', "not a name"),
        (b'{"a": {"x": 1, "x": 1}}', "'x' occurs twice"),
        (b'{"a": 1, "a": 1}', "'a' occurs twice"),
        (b'{"__metadata__": 3}', "object of texts"),
        (b'{"__metadata__": {"a": 3}}', "object of texts"),
    ],
)
def test_a_header_that_is_no_proper_json_is_refused(text, message):
    refused(header_of(text), message)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([], "expected an object of dtype, shape and data_offsets"),
        ({"dtype": "U8", "shape": [2]}, "expected an object of dtype, shape and data_offsets"),
        ({**entry(), "extra": 1}, "expected an object of dtype, shape and data_offsets"),
        (entry("Q7"), "unknown dtype 'Q7'; known are BOOL, U8"),
        (entry(3), "unknown dtype 3"),
        ({**entry(), "shape": 2}, "array of counts"),
        (entry(shape=(-2,)), "array of counts"),
        (entry(shape=(2.0,)), "array of counts"),
        (entry(shape=(True, 2)), "array of counts"),
        (entry(shape=(2**32, 2**32)), r"multiplies to 2\^63"),
        (entry(shape=(2**62, 0, 4), offsets=(0, 0)), r"can be fewer than 2\^53"),
        (entry(shape=(2**64,)), "array of counts"),
        (entry(offsets=(0,)), "two counts"),
        (entry(offsets=(0, 2, 4)), "two counts"),
        (entry(offsets=(-2, 0)), "two counts"),
        (entry(offsets=(0, 2.0)), "two counts"),
        ({**entry(), "data_offsets": "02"}, "two counts"),
        (entry(offsets=(0, 3)), r"U8 \[2\] has 2 bytes, but data_offsets \[0, 3\] span 3"),
        (entry(offsets=(2, 0)), "span -2"),
    ],
)
def test_a_tensor_that_is_malformed_is_named(tensor, message):
    refused(header_of({"a": tensor}, bytes(2)), f"tensor 'a': .*{message}")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((0, 2), (1, 3), "'b' overlaps .* at byte"),
        ((0, 2), (0, 2), "'b' overlaps"),
        ((0, 2), (3, 5), "'b' leaves a gap"),
        ((1, 3), (3, 5), "'a' leaves a gap"),
        ((0, 2), (2, 4), "lengthened: the header says"),
        ((0, 2), (4, 6), "'b' leaves a gap"),
    ],
)
def test_offsets_that_overlap_or_leave_gaps_are_refused(first, second, message):
    refused(header_of({"a": entry(offsets=first), "b": entry(offsets=second)}, bytes(5)), message)


def test_offsets_beyond_the_file_are_refused():
    refused(header_of({"a": entry("F64", (4,), (0, 32))}, bytes(31)), "cut short: the header says .* the file has")


@given(st.binary(max_size=300))
@example(header_of({"a": entry(offsets=(0, 2**63))}))
def test_no_bytes_raise_anything_but_a_shard_format_error(raw):
    with contextlib.suppress(memload.ShardFormatError):
        parse_header(raw, len(raw))


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_counts = st.integers(0, 6) | st.integers(0, 2**70) | _json
_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32", "BOOL", "BF16", "Q"]) | _json,
        "shape": st.lists(_counts, max_size=3) | _json,
        "data_offsets": st.lists(_counts, min_size=2, max_size=2) | _json,
    }
)


@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]) | st.text(), _entries | _json), st.integers(0, 20))
def test_no_json_raises_anything_but_a_shard_format_error(header, size):
    raw = header_of(header)
    with contextlib.suppress(memload.ShardFormatError):
        layout = parse_header(raw, len(raw) + size)
        assert sum(tensor.end - tensor.begin for tensor in layout.tensors.values()) == size


@given(st.data())
def test_a_built_header_parses_to_what_it_was_built_from(data):
    shapes = data.draw(st.dictionaries(strategies.names, st.lists(st.integers(0, 9), max_size=4)))
    raw = build_header({name: (torch.float16, tuple(shape)) for name, shape in shapes.items()})
    size = sum(2 * int(np.prod(shape)) for shape in shapes.values())
    layout = parse_header(raw, len(raw) + size)
    assert len(raw) % 4096 == 0
    assert {name: list(tensor.shape) for name, tensor in layout.tensors.items()} == shapes


# Sets of shards


def edit(shards, change):
    path = shards / "index.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(version=3), "format version 3, but this memload reads up to 2: install a newer one"),
        (lambda c: c.update(version=0), "version: expected a number"),
        (lambda c: c.update(version="1"), "version: expected a number"),
        (lambda c: c.update(format="other"), "not an index of memload"),
        (lambda c: c.update(rows=101), "rows do not add up: 101 are stated, the shards have 100"),
        (lambda c: c.pop("rows"), "rows do not add up: None"),
        (lambda c: c.update(fields=[]), "fields: expected an object"),
        (lambda c: c.update(fields={}), "fields: there must be at least one"),
        (lambda c: c.update(shards={}), "shards: expected an array"),
        (lambda c: c["fields"].update({"": {}}), "not a name"),
        (lambda c: c["fields"].update(stim=3), "field 'stim': expected an object"),
        (lambda c: c["fields"]["stim"].update(dtype="Q7"), "field 'stim': unknown dtype 'Q7'"),
        (lambda c: c["fields"]["stim"].update(shape=[-1]), "field 'stim': the shape"),
        (lambda c: c["fields"]["stim"].update(block_rows=0), "field 'stim': block_rows must be at least 1"),
        (lambda c: c["shards"].append(3), "shard 3: expected an object"),
        (lambda c: c["shards"][1].update(rows=-1), "shard 1: rows and bytes must be counts"),
        (lambda c: c["shards"][1].update(rows=39), "rows do not add up"),
        (lambda c: c["shards"][1].update(xxh3_64={}), "shard 1: xxh3_64"),
        (lambda c: c["shards"][1]["xxh3_64"].update(stim="0g" * 8), "shard 1, field 'stim': .* hexadecimal"),
        (lambda c: c["shards"][1]["xxh3_64"].update(stim="00"), "shard 1, field 'stim': .* hexadecimal"),
        (lambda c: c["shards"].append(c["shards"].pop(0) | {"file": "shard-00001.safetensors"}), "listed twice"),
        (lambda c: c["fields"]["stim"].update(shape=[2**62, 2]), r"field 'stim': .* multiplies to 2\^63 bytes or more"),
        (
            lambda c: c.update(fields={"a": {"dtype": "F64", "shape": [2**62], "block_rows": 1}}, shards=[], rows=0),
            r"field 'a': 1 times float64 .* multiplies to 2\^63 bytes or more",
        ),
        (lambda c: c["shards"][0].update(bytes=5000), "says 5000 bytes, but the file has 4376"),
        (lambda c: c["fields"]["stim"].update(shape=[1, 3]), r"should be uint8 \(40, 1, 3\) by the index, but is"),
    ],
)
def test_an_index_that_is_wrong_says_where_and_what(shards, change, message):
    edit(shards, change)
    with pytest.raises(memload.ShardFormatError, match=message) as caught:
        memload.open(shards)
    assert str(shards) in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\0b", 3, None])
def test_a_shard_name_that_leaves_the_directory_is_refused(shards, name):
    edit(shards, lambda content: content["shards"][0].update(file=name))
    with pytest.raises(memload.ShardFormatError, match="shard 0: file must be the plain name of a file"):
        memload.open(shards)


def test_a_shard_that_is_a_link_outside_is_refused_and_one_inside_is_not(shards, tmp_path):
    shard = shards / "shard-00000.safetensors"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(memload.ShardFormatError, match=r"a link to .*elsewhere, outside the directory"):
        memload.open(shards)
    shard.unlink()
    (tmp_path / "elsewhere").rename(shards / "inside")
    shard.symlink_to("inside")
    assert len(memload.open(shards)) == 100


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"a":1,"a":1}'])
def test_an_index_that_is_not_json_says_what_to_do(shards, raw):
    (shards / "index.json").write_bytes(raw)
    with pytest.raises(memload.ShardFormatError, match=r"index\.json: (not|the name)"):
        memload.open(shards)


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (os.mkfifo, "not a file"),
        (Path.mkdir, "not a file"),
        (
            lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 2**30 + 1),
            "1073741825 bytes, and an index at",
        ),
    ],
)
def test_an_index_that_would_be_waited_for_or_fill_the_memory_is_not_read(shards, put, message):
    (shards / "index.json").unlink()
    put(shards / "index.json")
    for read in (memload.open, memload.verify):
        with pytest.raises(memload.ShardFormatError, match=rf"index\.json: .*{message}"):
            read(shards)


def test_what_is_no_directory_of_shards_is_told_so_when_it_is_verified(shards, tmp_path):
    with pytest.raises(memload.ShardFormatError, match=r"nowhere: there is nothing at this path"):
        memload.verify(tmp_path / "nowhere")
    with pytest.raises(memload.ShardFormatError, match=r"00000\.safetensors: a file; expected a directory"):
        memload.verify(shards / "shard-00000.safetensors")


def test_the_name_that_occurs_twice_among_many_is_found_at_once():
    text = "{" + ",".join(f'"{k}":0' for k in [*range(10**5), 10**5 - 1]) + "}"
    with pytest.raises(memload.ShardFormatError, match="'99999' occurs twice"):
        parse_index(text.encode())


@given(st.data())
def test_no_index_raises_anything_but_a_shard_format_error(data):
    sound = {
        "format": "memload-shards",
        "version": 1,
        "rows": 2,
        "fields": {"a": {"dtype": "U8", "shape": [], "block_rows": 4}},
        "shards": [{"file": "x", "rows": 2, "bytes": 4098, "xxh3_64": {"a": "0123456789abcdef"}}],
    }
    assert parse_index(json.dumps(sound).encode()).rows == 2
    place, key = data.draw(
        st.sampled_from(
            [(part, key) for part in (sound, sound["fields"]["a"], sound["shards"][0]) for key in part]
            + [(sound["fields"], "a"), (sound["shards"], 0), (sound["shards"][0]["xxh3_64"], "a")]
        )
    )
    place[key] = data.draw(_json)
    with contextlib.suppress(memload.ShardFormatError):
        index = parse_index(json.dumps(sound).encode())
        assert parse_index(dump_index(index)) == index


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_of_another_length_names_file_and_lengths(shards, change):
    path = shards / "shard-00001.safetensors"
    os.truncate(path, 4376 + change)
    with pytest.raises(
        memload.ShardFormatError, match=rf"shard-00001.*says 4376 bytes, but the file has {4376 + change}"
    ):
        memload.open(shards)


def test_a_missing_shard_is_named(shards):
    (shards / "shard-00001.safetensors").unlink()
    with pytest.raises(memload.ShardFormatError, match=r"shard-00001.safetensors: this shard is missing"):
        memload.open(shards)


def test_a_shard_of_the_right_length_with_another_header_is_refused(shards):
    path = shards / "shard-00001.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"stim"', b'"stem"'))
    with pytest.raises(memload.ShardFormatError, match=r"the index has the tensors \['robs', 'stim'\], the header "):
        memload.open(shards)
    path.write_bytes(raw.replace(b'"stim":{', b'"stim":['))
    with pytest.raises(memload.ShardFormatError, match=r"shard-00001.safetensors: the header is not JSON"):
        memload.open(shards)


def test_a_file_cut_after_it_was_opened_raises_with_file_row_and_offset(shards):
    ds = memload.open(shards)
    path = shards / "shard-00001.safetensors"
    os.truncate(path, 0)
    with pytest.raises(memload.ShardReadError, match="shard-00001") as caught:
        ds[45]
    assert caught.value.file == str(path)
    assert caught.value.row == 5
    assert caught.value.offset >= 4096
    assert isinstance(caught.value, OSError)
    assert ds[10]["robs"].item() == 10.0


# Checksums


def flip(path, offset):
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


def test_verify_names_shard_field_and_rows(shards):
    ds = memload.open(shards)
    assert memload.verify(shards) == ds.nbytes
    flip(shards / "shard-00001.safetensors", 4096 + 160)
    assert len(memload.open(shards)) == 100
    with pytest.raises(memload.ChecksumError, match=r"shard-00001.safetensors, field 'stim', rows 40 to 79") as caught:
        memload.verify(shards)
    (damage,) = caught.value.damages
    assert (damage.shard, damage.field, damage.rows) == ("shard-00001.safetensors", "stim", range(40, 80))


def test_verify_joins_blocks_and_reports_every_place(tmp_path):
    path = tmp_path / "s"
    memload.write(path, {"x": torch.zeros(6, 2**22, dtype=torch.uint8), "y": torch.zeros(6, dtype=torch.uint8)})
    for offset in (2**22, 2 * 2**22, 4 * 2**22, 6 * 2**22):
        flip(path / "shard-00000.safetensors", 4096 + offset)
    with pytest.raises(memload.ChecksumError) as caught:
        memload.verify(path)
    assert [(damage.field, damage.rows) for damage in caught.value.damages] == [
        ("x", range(1, 3)),
        ("x", range(4, 5)),
        ("y", range(6)),
    ]


def test_verify_goes_on_after_a_shard_that_cannot_be_read(shards):
    (shards / "shard-00000.safetensors").unlink()
    os.truncate(shards / "shard-00001.safetensors", 5000)
    flip(shards / "shard-00002.safetensors", 4096)
    with pytest.raises(memload.ChecksumError) as caught:
        memload.verify(shards)
    assert [damage.shard[:11] for damage in caught.value.damages] == ["shard-00000", "shard-00001", "shard-00002"]
    assert caught.value.damages[2].rows == range(80, 100)


def test_the_command_line_tells_and_sets_the_status(shards, tmp_path, capsys):
    assert main(["info", str(shards)]) == 0
    said = capsys.readouterr().out
    assert all(part in said for part in ("100 rows", "stim", "uint8", "(3,)", "files: 3", "stim: read in place"))
    assert main(["verify", str(shards)]) == 0
    assert "700 B read, all checksums agree" in capsys.readouterr().out
    flip(shards / "shard-00001.safetensors", 4096)
    assert main(["verify", str(shards)]) == 1
    assert "shard-00001.safetensors, field 'robs', rows 40 to 79" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "none")]) == 2
    assert "nothing at this path" in capsys.readouterr().err
    assert main(["cache", "list", str(tmp_path / "none")]) == 2
    assert "expected the folder that cache() was given, or memload.open as cache=" in capsys.readouterr().err


def test_the_command_line_writes_files_side_by_side(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.arange(10))
    np.save(tmp_path / "b.npy", np.ones((10, 2)))
    sources = [f"stim={tmp_path / 'a.npy'}", f"robs={tmp_path / 'b.npy'}"]
    assert main(["write", *sources, str(tmp_path / "s"), "--shard-bytes", "100"]) == 0
    assert main(["write", *sources, str(tmp_path / "s")]) == 2
    assert "append" in capsys.readouterr().err
    assert main(["write", *sources, "--append", str(tmp_path / "s")]) == 0
    ds = memload.open(tmp_path / "s")
    assert [ds[i]["stim"].item() for i in range(20)] == [*range(10)] * 2


# Disk space


def test_too_little_space_is_noticed_beforehand_and_states_need_and_free(tmp_path):
    system = os.statvfs(tmp_path)
    free = system.f_bavail * system.f_frsize
    rows = memload.from_arrays(x=torch.zeros(1, 2**20)).select(np.zeros(int(free / 2**22 / 1.1), dtype=np.int64))
    assert rows.nbytes < free
    with pytest.raises(
        memload.DiskSpaceError, match=r"the files take .* and need .* free, but the file system has"
    ) as caught:
        memload.write(tmp_path / "s", rows)
    assert caught.value.need == rows.nbytes
    assert caught.value.free == pytest.approx(free, rel=0.1)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def stream(blocks):
    for number in range(blocks):
        yield {"x": torch.full((100_000,), number, dtype=torch.uint8)}


def test_a_disk_that_fills_up_raises_and_leaves_nothing(small_disk):
    with pytest.raises(memload.DiskSpaceError, match=r"the disk is full .* what was written is removed") as caught:
        memload.write(small_disk / "s", stream(100), shard_bytes=300_000)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert caught.value.free > 1_900_000
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_while_appending_leaves_the_set_as_it_was(small_disk):
    memload.write(small_disk / "s", stream(5))
    with pytest.raises(memload.DiskSpaceError):
        memload.write(small_disk / "s", stream(100), shard_bytes=300_000, append=True)
    assert sorted(path.name for path in (small_disk / "s").iterdir()) == ["index.json", "shard-00000.safetensors"]
    assert memload.verify(small_disk / "s") == 500_000


def test_the_space_is_that_of_the_file_system_of_the_target(small_disk):
    with pytest.raises(memload.DiskSpaceError, match=r"need 2.4 MB free"):
        memload.write(small_disk / "s", {"x": torch.zeros(2_000_000, dtype=torch.uint8)})


def test_a_file_size_limit_counts_as_a_full_disk(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limit[1]))
    try:
        with pytest.raises(memload.DiskSpaceError, match="the disk is full"):
            memload.write(tmp_path / "s", {"x": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == []


# The types


@pytest.mark.parametrize(
    "error",
    [
        memload.ShardReadError("gone", file="/a", row=3, offset=4096),
        memload.ShardWriteError("refused", file="s3://bucket/a"),
        memload.DiskSpaceError("full", need=5, free=3),
        memload.ChecksumError("bad", [Damage("a", "differs", "x", range(3))]),
        memload.WriterBusyError("busy"),
        memload.ShardFormatError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_facts_on_the_way_from_a_worker(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert getattr(again, "errno", None) == getattr(error, "errno", None)


def test_errors_serve_those_who_catch_the_built_in_types():
    assert issubclass(memload.ShardReadError, OSError)
    assert issubclass(memload.ShardReadError, memload.MemloadError)
    assert issubclass(memload.DiskSpaceError, OSError)
    assert issubclass(memload.ShardFormatError, memload.FormatError)
    assert issubclass(memload.FormatError, ValueError)


def test_reading_a_layout_names_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(header_of(b"{]"))
    with pytest.raises(memload.ShardFormatError, match=r"x\.safetensors: the header is not JSON"):
        read_layout(path)


def test_a_copied_set_opens_anywhere(shards, tmp_path):
    shutil.copytree(shards, tmp_path / "copy")
    assert memload.verify(tmp_path / "copy") == 700
