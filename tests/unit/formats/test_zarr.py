"""Zarr arrays and groups, versions 2 and 3: the rows that zarr gives, without zarr."""

import pickle
import shutil
import sys
import warnings
import zipfile

import numcodecs
import numpy as np
import pytest
import strategies  # noqa: F401 - its settings for hypothesis
import torch
from damage import opens_or_says_why
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr3 import codecs as v3
from zarr3 import zarr

import memload
from memload.formats import zarr_store

pytestmark = pytest.mark.filterwarnings("ignore::memload.LayoutWarning")

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]
V3_COMPRESSORS = [
    [],
    [v3.GzipCodec(level=1)],
    [v3.ZstdCodec(level=1)],
    [v3.ZstdCodec(level=1, checksum=True), v3.Crc32cCodec()],
    [v3.BloscCodec(cname="lz4", shuffle="shuffle", typesize=4)],
    [v3.BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=2)],
    [v3.BloscCodec(cname="zlib", shuffle="noshuffle", typesize=8)],
]
V2_COMPRESSORS = [
    None,
    numcodecs.Blosc(cname="lz4", shuffle=numcodecs.Blosc.SHUFFLE),
    numcodecs.Blosc(cname="zstd", shuffle=numcodecs.Blosc.BITSHUFFLE),
    numcodecs.Blosc(cname="blosclz", shuffle=numcodecs.Blosc.NOSHUFFLE),
    numcodecs.Zlib(1),
    numcodecs.GZip(1),
    numcodecs.Zstd(1),
    numcodecs.LZ4(),
]


def all_rows(field):
    return field.gather(np.arange(field.rows)).numpy()


def same_rows(field, array):
    rows = np.random.default_rng(0).permutation(field.rows)
    assert field.gather(rows).numpy().tobytes() == array[:][rows].astype(field.gather(rows).numpy().dtype).tobytes()


@st.composite
def grids(draw):
    """A shape with at least one row, and a chunk shape."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    return shape, [draw(st.integers(1, side + 2)) for side in shape]


def values(shape, dtype, seed):
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape)
    return raw.astype(dtype)


def written(array, draw):
    """Some box of the array, so that chunks stay unwritten."""
    box = tuple(slice(*sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in array.shape)
    array[box] = values([len(range(*cut.indices(n))) for cut, n in zip(box, array.shape, strict=True)], array.dtype, 3)


@given(st.data(), grids(), st.sampled_from(DTYPES), st.sampled_from(["<", ">"]), st.sampled_from(V2_COMPRESSORS))
@settings(max_examples=60)
def test_version_2_gives_the_rows_that_zarr_gives(tmp_path_factory, data, grid, dtype, endian, compressor):
    path = tmp_path_factory.mktemp("zarr") / "x.zarr"
    (shape, chunks), dtype = grid, np.dtype(dtype).newbyteorder(endian)
    filters = [numcodecs.Shuffle(dtype.itemsize)] if dtype.itemsize > 1 and data.draw(st.booleans()) else None
    array = zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        zarr_format=2,
        compressors=compressor,
        filters=filters,
        order=data.draw(st.sampled_from("CF")),
        fill_value=data.draw(st.sampled_from([0, 1])),
        chunk_key_encoding={"name": "v2", "separator": data.draw(st.sampled_from("./"))},
    )
    written(array, data.draw)
    same_rows(memload.open(path).fields["data"], array)


@given(st.data(), grids(), st.sampled_from(DTYPES), st.sampled_from(V3_COMPRESSORS))
@settings(max_examples=100)
def test_version_3_gives_the_rows_that_zarr_gives(tmp_path_factory, data, grid, dtype, compressors):
    path = tmp_path_factory.mktemp("zarr") / "x.zarr"
    shape, chunks = grid
    shards = [side * data.draw(st.integers(1, 3)) for side in chunks] if data.draw(st.booleans()) else None
    order = data.draw(st.permutations(range(len(shape))))
    array = zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
        compressors=compressors,
        filters=[v3.TransposeCodec(order=order)] if data.draw(st.booleans()) else None,
        serializer=v3.BytesCodec(endian=data.draw(st.sampled_from(["little", "big"]))),
        fill_value=data.draw(st.sampled_from([0, 1])),
        chunk_key_encoding={
            "name": data.draw(st.sampled_from(["default", "v2"])),
            "separator": data.draw(st.sampled_from("./")),
        },
    )
    written(array, data.draw)
    same_rows(memload.open(path).fields["data"], array)


def test_fill_values_stand_for_chunks_that_were_never_written(tmp_path):
    for number, (fill, dtype) in enumerate([(np.nan, "f4"), (np.inf, "f8"), (7, "i2"), (True, "bool"), (1 + 2j, "c8")]):
        path = tmp_path / f"{number}.zarr"
        array = zarr.create_array(path, shape=(4, 3), chunks=(2, 2), dtype=dtype, fill_value=fill)
        array[0, 0] = 0
        assert np.array_equal(all_rows(memload.open(path).fields["data"]), array[:], equal_nan=True)


def test_rows_that_are_whole_in_uncompressed_chunks_lie_in_place(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(10, 3), chunks=(4, 3), dtype="f4", compressors=None)
    array[:] = values((10, 3), "f4", 1)
    field = memload.open(tmp_path / "x.zarr").fields["data"]
    assert [(rows, stride) for _, _, rows, stride in field.column.segments] == [(4, 12), (4, 12), (2, 12)]
    same_rows(field, array)


def test_a_group_is_read_by_its_paths_with_and_without_consolidated_metadata(tmp_path):
    group = zarr.create_group(tmp_path / "x.zarr")
    for name, shape in (("train/stim", (6, 2)), ("train/robs", (6,)), ("test/stim", (3, 2))):
        group.create_array(name, shape=shape, dtype="i4", chunks=(2, *shape[1:]))[:] = values(shape, "i4", 0)
    for consolidated in (False, True):
        if consolidated:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is no part of version 3 yet
                zarr.consolidate_metadata(tmp_path / "x.zarr")
        ds = memload.open(tmp_path / "x.zarr", key="train")
        assert sorted(ds.fields) == ["robs", "stim"]
        same_rows(ds.fields["stim"], group["train/stim"])
        same_rows(memload.open(tmp_path / "x.zarr", key="test/stim", field="x").fields["x"], group["test/stim"])
        with pytest.raises(ValueError, match=r"same number of rows.*test/stim: 3"):
            memload.open(tmp_path / "x.zarr")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_store_is_one_file_if_its_members_are_stored(tmp_path, compression):
    expected = values((10, 6), "i4", 0)
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w", compression=compression) as store:
        zarr.create_array(store, shape=(10, 6), chunks=(3, 4), dtype="i4", name="stim")[:] = expected
    if compression == zipfile.ZIP_DEFLATED:
        with pytest.raises(memload.FormatError, match=r"is compressed by the zip file; write it with ZIP_STORED"):
            memload.open(tmp_path / "x.zip")
        return
    field = memload.open(tmp_path / "x.zip").fields["stim"]
    assert {storage.name for storage in field.column.storages} == {str(tmp_path / "x.zip")}
    assert np.array_equal(all_rows(field), expected)


def test_codecs_that_are_not_read_are_named(tmp_path):
    zarr.create_array(tmp_path / "a", shape=4, dtype="i4", zarr_format=2, compressors=numcodecs.LZMA())
    with pytest.raises(memload.FormatError, match=r"its codec 'lzma' is not one .*\(blosc, .*let zarr read it once"):
        memload.open(tmp_path / "a")
    written = memload.write(tmp_path / "shards", {"x": zarr.open_array(tmp_path / "a")})  # as the message says
    assert len(written) == 4
    zarr.create_array(
        tmp_path / "b", shape=4, dtype="i4", zarr_format=2, filters=[numcodecs.Delta("i4")], compressors=None
    )
    with pytest.raises(memload.FormatError, match="'delta'"):
        memload.open(tmp_path / "b")
    zarr.create_array(tmp_path / "c", shape=4, dtype="c16")
    with pytest.raises(memload.FormatError, match=r"complex128 is not among.*complex64"):
        memload.open(tmp_path / "c")


def test_an_array_of_too_many_chunks_is_refused_before_memory_is_taken(tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "x", shape=(10**15, 10), chunks=(1, 10), dtype="i4")
    with pytest.raises(memload.FormatError, match=r"1,000,000,000,000,000 chunks; memload reads up to"):
        memload.open(tmp_path / "x")


def test_the_loader_gives_the_rows_of_zarr_and_travels_to_processes(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(50, 6), chunks=(4, 4), shards=(8, 8), dtype="u1")
    array[:] = values((50, 6), "u1", 0)
    ds = pickle.loads(pickle.dumps(memload.open(tmp_path / "x.zarr", field="x")))
    loader = memload.FastLoader(ds, batch_size=7, cast={"x": memload.Cast(torch.float32)})
    assert loader.engine == "native"
    assert np.array_equal(torch.cat([batch["x"] for batch in loader]).numpy(), array[:].astype("f4"))


def test_a_damaged_index_of_a_shard_is_named(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(8, 6), chunks=(4, 3), shards=(8, 6), dtype="i4")
    array[:] = values((8, 6), "i4", 0)
    shard = tmp_path / "x.zarr" / "c" / "0" / "0"
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(memload.FormatError, match=r"c/0/0: the index of its chunks is damaged"):
        memload.open(tmp_path / "x.zarr")
    shard.write_bytes(sound[-20:])
    with pytest.raises(memload.FormatError, match=r"the index of its chunks has 68 bytes, but 20 are there"):
        memload.open(tmp_path / "x.zarr")


def test_an_older_zarr_says_what_is_needed(tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "x.zarr", shape=(8, 6), chunks=(4, 3), dtype="i4")
    monkeypatch.setattr(zarr, "__version__", "2.18.7")
    with pytest.raises(ImportError, match=r"x\.zarr: needs zarr 3, found 2\.18\.7; upgrade it by pip install"):
        memload.open(tmp_path / "x.zarr")


def test_python_3_10_has_no_zarr_3(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(ImportError, match=r"^x\.zarr: needs zarr 3, which needs Python 3\.11 or newer"):
        zarr_store.zarr_package("x.zarr")


def test_a_damaged_chunk_says_so_when_it_is_read(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(8, 600), chunks=(4, 600), dtype="i4")
    array[:] = values((8, 600), "i4", 0)
    chunk = tmp_path / "x.zarr" / "c" / "1" / "0"
    chunk.write_bytes(b"nonsense" + chunk.read_bytes()[8:])
    ds = memload.open(tmp_path / "x.zarr")
    assert np.array_equal(ds[3]["data"], array[3])
    with pytest.raises(memload.ShardReadError, match=r"c/1/0.*cannot be decoded"):
        ds[4]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    stores = []
    for number, options in enumerate(({"zarr_format": 2}, {}, {"shards": (8, 6)}, {"compressors": None})):
        path = folder / f"{number}.zarr"
        zarr.create_array(path, shape=(9, 6), chunks=(4, 3), dtype="i4", **options)[:] = values((9, 6), "i4", 0)
        stores.append(path)
    return stores


def damage_one_file(data, sound, path):
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(data.draw(st.sampled_from(sound)), path)
    file = data.draw(st.sampled_from(sorted(one for one in path.rglob("*") if one.is_file())))
    broken = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(broken[: data.draw(st.one_of(st.just(len(broken)), st.integers(0, len(broken))))])


@given(st.data())
def test_a_damaged_store_opens_or_says_what_is_wrong(tmp_path_factory, sound, data):
    path = tmp_path_factory.getbasetemp() / "damaged.zarr"
    damage_one_file(data, sound, path)
    opens_or_says_why(path)


def test_more_files_than_a_process_can_map_are_read_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_store, "MOST_MAPPED", 5)
    array = zarr.create_array(tmp_path / "x.zarr", shape=(40, 3), chunks=(2, 3), dtype="f4", compressors=None)
    array[:] = values((40, 3), "f4", 0)
    same_rows(memload.open(tmp_path / "x.zarr").fields["data"], array)
    same_rows(pickle.loads(pickle.dumps(memload.open(tmp_path / "x.zarr"))).fields["data"], array)
    (tmp_path / "x.zarr" / "c" / "7" / "0").write_bytes(b"cut")
    with pytest.raises(memload.ShardReadError, match="c/7/0"):
        memload.open(tmp_path / "x.zarr")[15]
