"""Shards whose fields are compressed: what is written is what is read, and what is damaged is told."""

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from children import write_slowly
from damage import damaged, opens_or_says_why, shard_of, told_by_reading_and_by_verify
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import DATA
from safetensors.torch import load_file
from strategies import as_bytes, codecs, field_sets

import memload
from memload.formats.shards.safetensors_header import read_layout


def rows_of(ds, name):
    return ds.fields[name].gather(np.arange(len(ds)))


def betas(rows=100, voxels=300):
    return (torch.randn(rows, voxels, generator=torch.Generator().manual_seed(1)) * 100).to(torch.int16)


@settings(max_examples=60)
@given(fields=field_sets(max_rows=40), data=st.data())
def test_what_is_written_with_any_codec_is_read_as_it_was(fields, data):
    chosen = {name: data.draw(codecs) for name in fields if data.draw(st.booleans())}
    if any(f"{name}.offsets" in fields for name in chosen):
        return
    order = data.draw(st.permutations(range(len(next(iter(fields.values()))))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shards")
        ds = memload.write(path, fields, codec=chosen, shard_bytes=data.draw(st.integers(1, 2000)))
        memload.verify(path)
        for name, tensor in fields.items():
            assert as_bytes(ds.fields[name].gather(np.array(order))) == as_bytes(tensor[list(order)])


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6), codec=codecs)
def test_rows_may_come_in_batches_of_any_length(sizes, codec):
    x = betas(sum(sizes), 150)
    with tempfile.TemporaryDirectory() as folder:
        with memload.ShardWriter(f"{folder}/shards", codec=codec, shard_bytes=9000) as writer:
            for batch in torch.split(x, sizes):
                writer.extend(x=batch)
        assert torch.equal(rows_of(memload.open(f"{folder}/shards"), "x"), x)


@pytest.mark.parametrize("codec", ["lz4", "zstd:shuffle=bit", "blosc2:rows=5"])
def test_the_loader_reads_compressed_rows_natively(tmp_path, codec):
    x = betas()
    ds = memload.write(tmp_path / "s", {"x": x, "n": torch.arange(100)}, codec=codec, shard_bytes=20_000)
    loader = memload.FastLoader(ds, 16, shuffle=True, cast={"x": memload.Cast(torch.float32)})
    assert loader.engine == "native"
    seen = 0
    for batch in loader:
        assert torch.equal(batch["x"], x[batch["n"]].float())
        seen += len(batch["n"])
    assert seen == 100


def test_a_shard_is_a_safetensors_file_of_blocks_and_offsets(tmp_path):
    x = torch.zeros(10, 400, dtype=torch.int16)
    memload.write(tmp_path / "s", {"x": x, "y": torch.arange(10)}, codec={"x": "zstd:shuffle=none,rows=4"})
    tensors = load_file(tmp_path / "s" / "shard-00000.safetensors")
    assert set(tensors) == {"x", "x.offsets", "y"}
    assert tensors["x"].dtype == torch.uint8
    offsets = tensors["x.offsets"].tolist()
    assert len(offsets) == 4
    assert offsets[-1] == len(tensors["x"])
    block = tensors["x"][offsets[2] :].numpy().tobytes()
    assert memload._core.Chain([("zstd", 0, 0)]).decode(block, 2 * 800) == bytes(1600)
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    assert index["version"] == 2
    assert index["fields"]["x"]["codec"] == {"name": "zstd", "level": 3, "shuffle": "none", "rows": 4}


def test_a_set_without_codecs_stays_of_version_1(tmp_path):
    memload.write(tmp_path / "s", {"x": torch.zeros(10, 3)}, codec="zstd")  # rows of 12 bytes
    assert json.loads((tmp_path / "s" / "index.json").read_text())["version"] == 1


def test_one_codec_for_all_leaves_small_rows_as_they_are(tmp_path):
    ds = memload.write(tmp_path / "s", {"x": betas(), "label": torch.arange(100)}, codec="lz4")
    assert type(ds.fields["x"].column).__name__ == "Tiles"
    assert type(ds.fields["label"].column).__name__ == "Column"


def test_the_set_written_by_an_older_memload_stays_readable(tmp_path):
    """And is pinned: the bytes of data/shards-v2 are those of the first memload that wrote them."""
    old = DATA / "shards-v2"
    ds = memload.open(old)
    expected = torch.arange(60, dtype=torch.int16).reshape(6, 10) * 7
    for name in ("lz4", "zstd", "blosc2"):
        assert torch.equal(rows_of(ds, name), expected)
    memload.verify(old)


def test_a_set_that_is_extended_keeps_its_codecs(tmp_path):
    x = betas()
    memload.write(tmp_path / "s", {"x": x}, codec="zstd:rows=7")
    with pytest.raises(ValueError, match=r"has zstd:level=3,shuffle=byte,rows=7, and codec= asks for lz4"):
        memload.write(tmp_path / "s", {"x": x}, codec="lz4:rows=7", append=True)
    memload.write(tmp_path / "s", {"x": x + 1}, codec="zstd:rows=7", append=True)
    ds = memload.write(tmp_path / "s", {"x": x + 2}, append=True)
    assert torch.equal(rows_of(ds, "x"), torch.cat([x, x + 1, x + 2]))
    memload.verify(tmp_path / "s")


@pytest.mark.parametrize(
    ("fields", "codec", "says"),
    [
        ({"x": betas()}, {"y": "zstd"}, "codec= names the field 'y'; the rows have 'x'"),
        ({"x": betas(), "x.offsets": betas()}, "zstd", "'x.offsets' has the name of the offsets of field 'x'"),
        ({"x": betas()}, "brotli", "no codec is called 'brotli'"),
        ({"x": betas()}, memload.Codec("lz4", rows=2**30), "more than 1 GiB"),
    ],
)
def test_codecs_that_do_not_fit_are_refused_and_leave_nothing(tmp_path, fields, codec, says):
    with pytest.raises(ValueError, match=says):
        memload.write(tmp_path / "s", fields, codec=codec)
    assert list(tmp_path.iterdir()) == []


def test_a_codec_of_a_wrong_type_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"takes a memload\.Codec"):
        memload.write(tmp_path / "s", {"x": betas()}, codec=3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "s"
    memload.write(path, {"x": betas(40), "n": torch.arange(40)}, codec={"x": "zstd:rows=3", "n": "lz4:rows=8"})
    return path


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_shard_is_told_by_reading_and_by_verify(sound, data):
    told_by_reading_and_by_verify(sound, data.draw(damaged(shard_of(sound).read_bytes())))


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_index_is_told(sound, data):
    raw = (sound / "index.json").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s")
        shutil.copytree(sound, path)
        (path / "index.json").write_bytes(data.draw(damaged(raw)))
        opens_or_says_why(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": 0}, "rows, of a block, must be at least 1"),
        ({"rows": 4}, "do not fit checksums of"),
        ({"rows": 2**40}, "do not fit checksums"),
        ({"name": "gzip"}, "no codec is called 'gzip'"),
        ({"shuffle": None}, "an object of name, level, shuffle and rows"),
        ({"more": 1}, "an object of name, level, shuffle and rows"),
    ],
)
def test_an_index_with_a_codec_that_cannot_be_is_refused(sound, tmp_path, change, says):
    path = tmp_path / "s"
    shutil.copytree(sound, path)
    index = json.loads((path / "index.json").read_text())
    index["fields"]["x"]["codec"].update(change)
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(memload.ShardFormatError, match=says):
        memload.open(path)


def test_offsets_that_go_back_are_refused_at_open(sound, tmp_path):
    path = tmp_path / "s"
    shutil.copytree(sound, path)
    with shard_of(path).open("r+b") as file:
        file.seek(4096 + 8)  # the second offset of the first field
        file.write((2**40).to_bytes(8, "little"))
    with pytest.raises(memload.ShardFormatError, match="ends before it begins"):
        memload.open(path)


def test_a_damaged_block_names_its_file_and_row_and_spares_the_others(sound, tmp_path):
    path = tmp_path / "s"
    shutil.copytree(sound, path)
    with shard_of(path).open("r+b") as file:
        file.seek(read_layout(shard_of(path)).tensors["x"].end - 300)
        file.write(bytes(300))
    ds = memload.open(path)
    with pytest.raises(memload.ShardReadError, match=r"shard-00000.*row 39 .*cannot be decoded \(zstd: "):
        ds.fields["x"].gather(np.array([39]))
    assert torch.equal(ds.fields["x"].gather(np.arange(36)), betas(40)[:36])
    assert torch.equal(rows_of(ds, "n"), torch.arange(40))


def test_a_writer_that_is_killed_leaves_nothing_that_opens(tmp_path):
    writer = multiprocessing.get_context("forkserver").Process(target=write_slowly, args=(tmp_path / "s", betas()))
    writer.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".s.memload/set/shard-00003*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert writer.is_alive()
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    with pytest.raises(FileNotFoundError):
        memload.open(tmp_path / "s")
    ds = memload.write(tmp_path / "s", {"x": betas()}, codec="zstd")
    assert len(ds) == 100
