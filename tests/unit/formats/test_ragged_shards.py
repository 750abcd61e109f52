"""Ragged fields and texts in shards: written, read, verified, appended to; and what is malformed."""

import base64
import json
import re
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_cases import row_lists, same, same_tensor, sentences
from repository import DATA

import memload
from memload.formats.shards import index as shard_index
from memload.formats.shards.stated_offsets import raw_offsets
from memload.writing.ragged_row_source import RaggedRowSource


def rows_of(ds, name):
    return [ds[k][name] for k in range(len(ds))]


@given(row_lists(), row_lists(axis=1), st.sampled_from([1, 300, 2000, 10**6]))
@settings(max_examples=40)
def test_what_is_written_is_read(tmp_path_factory, tokens, edges, shard_bytes):
    rows = min(len(tokens), len(edges))
    path = tmp_path_factory.mktemp("set") / "shards"
    texts = [f"{k}é" * (k % 3) for k in range(rows)]
    fields = {"t": memload.ragged(tokens[:rows]), "e": memload.ragged(edges[:rows], axis=1), "text": texts}
    ds = memload.write(path, {**fields, "y": torch.arange(rows)}, shard_bytes=shard_bytes)
    assert all(map(same_tensor, rows_of(ds, "t"), tokens[:rows]))
    assert all(map(same_tensor, rows_of(ds, "e"), edges[:rows]))
    assert rows_of(ds, "text") == texts
    assert rows_of(ds, "y") == list(range(rows))
    source = memload.from_arrays(**fields, y=torch.arange(rows))
    assert same(list(memload.FastLoader(ds, 4)), list(memload.FastLoader(source, 4)))
    assert memload.verify(path) == sum(
        tensor.nbytes for file in path.glob("*.safetensors") for tensor in safetensors.torch.load_file(file).values()
    )


def written(path, value, **options):
    return memload.write(path, {"x": value}, **options)


def extended(path, value, **options):
    with memload.ShardWriter(path, **options) as writer:
        writer.extend(x=value)


def appended(path, value, **options):
    with memload.ShardWriter(path, **options) as writer:
        writer.append(x=value)


@pytest.mark.parametrize(
    ("write", "value", "says"),
    [
        (
            written,
            [[1, 2], [3]],
            "field 'x': row 1 has length 1, row 0 length 2. Rows of different length are a ragged ",
        ),
        (written, [np.zeros((2, 3)), np.zeros((2, 4))], r"field 'x': row 1 has shape \(2, 4\), row 0 shape \(2, 3\)"),
        (extended, [torch.zeros(2), torch.zeros(2), torch.zeros(1)], "row 2 .*give x=memload.ragged.rows., or to a Sh"),
        (
            appended,
            [[1, 2], [3]],
            "field 'x': a row is one array, but part 1 of this one has length 1, part 0 length 2",
        ),
        (written, [[[1], [2, 3]], [[1], [2, 3]]], "field 'x': a list that makes no array of numbers"),
    ],
)
def test_lists_of_different_length_are_told_by_field_and_row_and_what_to_do(tmp_path, write, value, says):
    with pytest.raises((ValueError, TypeError), match=says):
        write(tmp_path / "s", value)
    assert not list(tmp_path.iterdir())


def test_a_row_that_is_no_array_is_told_by_field_and_number(tmp_path):
    with pytest.raises(ValueError, match="field 'x': row 1 makes no array of numbers"):
        extended(tmp_path / "s", [[1], [[1, 2], [3]]], ragged=["x"])


def test_a_shard_is_tensors_of_values_and_offsets(tmp_path):
    tokens = [torch.tensor([1, 2], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)]
    edges = [torch.tensor([[0], [1]]), torch.tensor([[2, 3], [4, 5]])]
    memload.write(tmp_path / "s", {"x": memload.ragged(tokens), "e": memload.ragged(edges, axis=1), "text": ["é", ""]})
    found = safetensors.torch.load_file(tmp_path / "s" / "shard-00000.safetensors")
    wanted = {
        "x": torch.tensor([1, 2, 3], dtype=torch.int32),
        "x.offsets": torch.tensor([0, 2, 3]),
        "e": torch.tensor([[0, 2, 3], [1, 4, 5]]),
        "e.offsets": torch.tensor([0, 1, 3]),
        "text": torch.tensor([0xC3, 0xA9], dtype=torch.uint8),
        "text.offsets": torch.tensor([0, 2, 2]),
    }
    assert same(found, {name: wanted[name] for name in found})
    assert set(found) == set(wanted)
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    assert index["version"] == 2
    assert index["fields"]["e"] == {"dtype": "I64", "shape": [2, None], "block_rows": 2**19}
    assert index["fields"]["text"] == {"dtype": "U8", "shape": [None], "block_rows": 2**22, "text": True}
    assert index["shards"][0]["items"] == {"x": 3, "e": 3, "text": 2}


def test_sets_without_ragged_fields_stay_readable_by_older_versions(tmp_path):
    memload.write(tmp_path / "s", {"x": torch.zeros(3)})
    assert json.loads((tmp_path / "s" / "index.json").read_text())["version"] == 1


def test_an_older_version_would_refuse_the_set_by_its_version(tmp_path, monkeypatch):
    memload.write(tmp_path / "s", {"x": ["a"]})
    monkeypatch.setattr(shard_index, "FORMAT_VERSION", 1)
    with pytest.raises(memload.ShardFormatError, match="written in format version 2, but this memload reads up to 1"):
        memload.open(tmp_path / "s")


def test_rows_come_one_by_one_and_by_the_batch(tmp_path):
    tokens = [torch.arange(n) for n in (3, 0, 5, 1)]
    with memload.ShardWriter(tmp_path / "s", ragged=["tokens"], shard_bytes=60) as writer:
        for k, row in enumerate(tokens):
            writer.append(tokens=row, prompt=f"number {k}", y=k)
        writer.extend(tokens=tokens, prompt=["a", "b", "c", "d"], y=torch.arange(4))
        writer.extend(tokens=memload.ragged(tokens), prompt=("e", "f", "g", "h"), y=[0, 1, 2, 3])
    with memload.ShardWriter(tmp_path / "s", append=True) as writer:
        writer.append(tokens=torch.arange(7), prompt="more", y=9)
    ds = memload.open(tmp_path / "s")
    assert [len(row) for row in rows_of(ds, "tokens")] == [3, 0, 5, 1] * 3 + [7]
    assert rows_of(ds, "prompt")[3:6] == ["number 3", "a", "b"]
    assert rows_of(ds, "prompt")[-1] == "more"
    assert memload.verify(tmp_path / "s") > 0


def test_single_rows_are_written_in_bounded_pieces(tmp_path):
    row = torch.zeros(2**18, dtype=torch.int64)
    with memload.ShardWriter(tmp_path / "s", ragged={"x": 0}, shard_bytes="5MB") as writer:
        for k in range(6):
            writer.append(x=row[: len(row) - k])
            assert writer._buffer is not None
            assert writer._buffer._ragged_bytes < 2**22
    assert len(list((tmp_path / "s").glob("*.safetensors"))) == 3
    assert [len(x) for x in rows_of(memload.open(tmp_path / "s"), "x")] == [2**18 - k for k in range(6)]


def test_rows_of_more_planes_than_a_process_may_open_files_are_written(tmp_path):
    rows = [torch.rand(200, length) for length in (3, 0, 5, 1)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 50, limits[1]))
    try:
        with memload.ShardWriter(tmp_path / "set", ragged={"rates": 1}) as writer:
            for start in (0, 2):
                writer.extend(rates=rows[start : start + 2])
        stored = memload.open(tmp_path / "set")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all(same_tensor(stored[k]["rates"], row) for k, row in enumerate(rows))
    memload.verify(tmp_path / "set")


def test_an_iterable_of_rows_is_written(tmp_path):
    rows = [{"x": torch.arange(n), "e": torch.zeros(2, n + 1), "t": "t" * n} for n in range(5)]
    ds = memload.write(tmp_path / "s", iter(rows), ragged={"x": 0, "e": 1})
    assert [tuple(row["e"].shape) for row in (ds[k] for k in range(5))] == [(2, n + 1) for n in range(5)]
    assert ds.fields["t"].kind == "text"


def test_a_dataset_is_written_with_its_selection_and_whatever_its_form(tmp_path):
    ds = sentences(50)
    chosen = ds.select([4, 4, 1, 30]).concat(ds)
    stored = memload.write(tmp_path / "s", chosen.with_ragged("padded"), shard_bytes=700)
    assert same(list(memload.FastLoader(stored, 9)), list(memload.FastLoader(chosen, 9)))
    again = memload.write(tmp_path / "t", stored)
    assert same(list(memload.FastLoader(again, 9)), list(memload.FastLoader(chosen, 9)))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([{"x": torch.zeros(2)}, {"x": torch.zeros(3)}], ValueError, "say so by ragged=['x']"),
        ([{"x": "a"}, {"x": torch.zeros(2)}], TypeError, ""),
        (
            [{"x": "a"}, {"x": torch.zeros(2, dtype=torch.uint8)}],
            ValueError,
            "row 1: field 'x' is uint8 (None,), expected text",
        ),
        ([{"r": torch.zeros(2)}, {"r": torch.zeros(2, 3)}], ValueError, "row 1: field 'r' is float32 (None, 3)"),
        ([{"r": torch.tensor(1)}], ValueError, "has no axis 0"),
        ([{"r": torch.zeros(2), "r.offsets": 3}], ValueError, "has the name of the offsets of field 'r'"),
        ([{"x": "\ud800"}], ValueError, "field 'x'"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_words(tmp_path, rows, error, message):
    if error is TypeError:
        rows, error, message = [rows[1], rows[0]], ValueError, "row 1: field 'x' is text, expected float32 (2,)"
    with pytest.raises(error, match=re.escape(message)):
        memload.write(tmp_path / "s", rows, ragged=["r"])
    assert not (tmp_path / "s").exists()
    with pytest.raises(TypeError, match="ragged= takes names of fields"):
        memload.ShardWriter(tmp_path / "s", ragged="r")


def damaged(tmp_path, name, at, value):
    """A set whose tensor `name` has the byte `at` changed."""
    ds = memload.from_arrays(x=memload.ragged([torch.arange(4), torch.arange(2), torch.arange(3)]), y=torch.arange(3))
    memload.write(tmp_path / "s", ds)
    file = tmp_path / "s" / "shard-00000.safetensors"
    header = json.loads(file.read_bytes()[8 : 8 + int.from_bytes(file.read_bytes()[:8], "little")])
    begin = 8 + int.from_bytes(file.read_bytes()[:8], "little") + header[name]["data_offsets"][0]
    raw = bytearray(file.read_bytes())
    raw[begin + at] = value
    file.write_bytes(raw)
    return tmp_path / "s"


def test_verify_names_the_rows_whose_items_are_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr("memload.formats.shards.ragged_spec.CHECK_BLOCK", 16)  # two items
    path = damaged(tmp_path, "x", 5 * 8, 77)
    with pytest.raises(memload.ChecksumError, match="the checksum differs, of 1 of 5 blocks") as caught:
        memload.verify(path)
    assert [(damage.field, damage.rows) for damage in caught.value.damages] == [("x", range(1, 2))]


def test_offsets_that_are_damaged_are_refused_at_open_and_found_by_verify(tmp_path):
    path = damaged(tmp_path, "x.offsets", 8, 200)
    with pytest.raises(memload.ShardFormatError, match=r"field 'x': .*shard-00000.*offset 1 is 200, which lies beyond"):
        memload.open(path)
    with pytest.raises(memload.ChecksumError, match="the checksum differs, of 1 of 1 block"):
        memload.verify(path)


@given(st.data())
@settings(max_examples=150)
def test_an_index_that_is_changed_is_read_or_refused_and_nothing_else(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    if not path.exists():
        memload.write(path, sentences(6), shard_bytes=400, codec={"text": "lz4"})
    index = json.loads((path / "index.json").read_text())
    places = [(holder, key) for holder, key in _places(index) if not isinstance(holder[key], dict)]
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(
        st.sampled_from(
            [None, -1, 0, 1, 2**62, 2**63, "", "x", [], [None], [None, None], [0, None], [[None]], {}, True]
        )
    )
    try:
        read = shard_index.parse_index(json.dumps(index).encode())
    except memload.ShardFormatError:
        return
    assert read.rows >= 0


def _places(node):
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in members:
        yield node, key
        yield from _places(value)


@given(st.lists(st.integers(0, 255), min_size=8, max_size=8), st.integers(0, 6))
@settings(max_examples=60)
def test_offsets_of_any_bytes_open_or_are_refused(tmp_path_factory, value, position):
    path = tmp_path_factory.getbasetemp() / "offsets"
    if not path.exists():
        memload.write(path, {"x": memload.ragged([torch.arange(n) for n in range(6)])})
        (path / "whole").write_bytes((path / "shard-00000.safetensors").read_bytes())
    raw = bytearray((path / "whole").read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    with safetensors.safe_open(path / "shard-00000.safetensors", "np") as file:
        first = "x.offsets" if next(iter(file.offset_keys())) == "x.offsets" else "x"
    begin = start + (0 if first == "x.offsets" else 15 * 8)
    raw[begin + 8 * position : begin + 8 * position + 8] = bytes(value)
    (path / "shard-00000.safetensors").write_bytes(raw)
    offsets = np.frombuffer(bytes(raw[begin : begin + 56]), dtype=np.int64)
    if np.all(np.diff(offsets) >= 0) and offsets[0] >= 0 and offsets[-1] <= 15:
        assert [len(row) for row in rows_of(memload.open(path), "x")] == np.diff(offsets).tolist()
    else:
        with pytest.raises(memload.ShardFormatError, match="offset"):
            memload.open(path)


def test_a_shard_that_is_cut_short_while_it_is_read_raises(tmp_path):
    ds = memload.write(tmp_path / "s", {"x": memload.ragged([torch.arange(4000)] * 8)})
    file = tmp_path / "s" / "shard-00000.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(8192)
    with pytest.raises(memload.ShardReadError, match="shard-00000"):
        _ = ds[7]
    with pytest.raises(memload.ShardReadError, match="shard-00000"):
        list(memload.FastLoader(ds, 2))


def test_info_says_what_a_set_holds(tmp_path, capsys):
    from memload.cli.main import main

    memload.write(tmp_path / "s", sentences(10))
    assert main(["info", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr().out
    assert "tokens" in shown
    assert "(None,)" in shown
    assert "text" in shown
    assert main(["write", str(tmp_path / "s"), str(tmp_path / "t"), "--quiet"]) == 0
    assert main(["verify", str(tmp_path / "t"), "--quiet"]) == 0


def test_items_are_scaled_and_cast_on_the_way(tmp_path):
    rows = [torch.randn(n, 2) for n in (3, 0, 5)]
    ds = memload.from_arrays(x=memload.ragged(rows), n=torch.arange(3), t=["a", "b", "c"])
    stored = memload.write(tmp_path / "s", ds, cast="bfloat16", scale={"x": 2.0}, rows=[2, 0])
    assert all(map(same_tensor, rows_of(stored, "x"), [(rows[k] * 2).to(torch.bfloat16) for k in (2, 0)]))
    assert rows_of(stored, "n") == [2, 0]
    with pytest.raises(ValueError, match=r"rows are float32 \(None, 2\), the mask is \(2,\)"):
        memload.write(tmp_path / "t", ds, mask={"x": np.ones(2, dtype=bool)})
    with pytest.raises(TypeError, match="texts can be neither scaled nor cast"):
        memload.write(tmp_path / "t", ds, scale={"t": 2.0})


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_writing_that_was_interrupted_is_taken_up(tmp_path, monkeypatch, capfd, codec):
    source = memload.write(tmp_path / "source", sentences(300))
    whole = RaggedRowSource.blocks

    def breaking(self, conversions, start, _nbytes, *more):
        for number, block in enumerate(whole(self, conversions, start, 2000, *more)):
            if number == 8:
                raise KeyboardInterrupt
            yield block

    with monkeypatch.context() as patch:
        patch.setattr(RaggedRowSource, "blocks", breaking)
        with pytest.raises(KeyboardInterrupt):
            memload.write(tmp_path / "s", source, shard_bytes=3000, codec=codec)
    assert not (tmp_path / "s").exists()
    stored = memload.write(tmp_path / "s", source, shard_bytes=3000, codec=codec, progress=None)
    assert "resumed where it was interrupted" in capfd.readouterr().err
    assert same(list(memload.FastLoader(stored, 64)), list(memload.FastLoader(source, 64)))
    assert memload.verify(tmp_path / "s") > 0


def test_the_set_that_the_first_memload_of_this_version_wrote_is_read_and_written_again(tmp_path):
    old = DATA / "shards-v2-ragged"
    ds = memload.open(old)
    assert [ds[k]["x"].tolist() for k in range(4)] == [[1, 2], [], [3], [4, 5, 6]]
    assert [ds[k]["e"].tolist() for k in range(4)] == [[[0], [1]], [[1, 2], [3, 4]], [[], []], [[5], [6]]]
    assert [ds[k]["text"] for k in range(4)] == ["é", "", "two words", "日本"]
    assert [float(ds[k]["y"]) for k in range(4)] == [0.0, 1.0, 2.0, 3.0]
    memload.verify(old)
    again = memload.write(tmp_path / "s", ds, shard_bytes=100)
    assert len(again) == 4
    for file in sorted(old.glob("*.safetensors")):
        assert (tmp_path / "s" / file.name).read_bytes() == file.read_bytes(), file.name
    before, after = (json.loads((folder / "index.json").read_bytes()) for folder in (old, tmp_path / "s"))
    assert after.pop("inner") is False  # which the first memload did not state, nor the following
    for shard in after["shards"]:
        assert shard.pop("tensors")
        assert shard.pop("offsets").keys() == {"x.offsets", "e.offsets", "text.offsets"}
    assert after == before


def test_an_index_states_the_differences_of_offsets(tmp_path):
    """In base64 of zlib of "<i8", which is pinned."""
    memload.write(tmp_path / "s", {"x": memload.ragged([torch.zeros(2), torch.zeros(0), torch.zeros(3)])})
    (shard,) = json.loads((tmp_path / "s" / "index.json").read_bytes())["shards"]
    differences = zlib.decompress(base64.b64decode(shard["offsets"]["x.offsets"]))
    assert differences == struct.pack("<3q", 2, 0, 3)
    old = base64.b64encode(zlib.compress(differences, 1)).decode()  # by another level
    assert raw_offsets(old, 32) == struct.pack("<4q", 0, 2, 2, 5)
