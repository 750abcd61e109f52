"""Rows that lie inside chunks: encoded, or with parts of rows, or both."""

import functools
import gc
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from disks import can_be_read_directly, evict
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from waiting import lets_others_run

import memload
from memload._core import Chain, Column, Storage, TileGrid, Tiles
from memload.columns.fields import Field

DEFLATE = ("deflate", 0, 0)


def shuffle(array):
    return ("shuffle", array.itemsize, 0)


def written(raw, through):
    """The bytes as the filter's own library writes them."""
    return zlib.compress(raw, 4) if through == DEFLATE else Chain([through]).encode(raw)


def stored(array, tile, filters=(), path=None, *, cut=False, absent=(), skipping=()):
    """The array as a TileGrid, its tiles encoded in a file or in memory; tiles are named by their number."""
    chain = Chain(list(filters)) if filters else None
    grid = [-(-side // step) for side, step in zip(array.shape, tile, strict=True)]
    table, parts, size = [], [], 0
    for number, place in enumerate(np.ndindex(*grid)):
        if number in absent:
            table.append((-1, 0, 0, 0))
            continue
        inside = tuple(slice(i * step, (i + 1) * step) for i, step in zip(place, tile, strict=True))
        part = array[inside]
        if not cut:
            whole = np.full(tile, 7, array.dtype)
            whole[tuple(map(slice, part.shape))] = part
            part = whole
        skips = number in skipping
        encoded = functools.reduce(written, list(filters)[skips:], part.tobytes())
        table.append((0, size, len(encoded), int(skips)))
        parts.append(encoded)
        size += len(encoded)
    data = b"".join(parts)
    if path is None:
        owner = np.frombuffer(data or b"\0", np.uint8)
        storage = Storage.borrow(owner, owner.ctypes.data, len(data), "memory")
    else:
        path.write_bytes(data)
        storage = Storage.map_file(str(path))
    return TileGrid(
        len(array),
        array.itemsize,
        array.shape[1:],
        tile,
        [storage],
        np.array(table, np.int64).reshape(-1, 4),
        chain,
        cut=cut,
    )


def dataset(array, *parts, **fields):
    dtype, shape = torch.from_numpy(array[:0]).dtype, array.shape[1:]
    return memload.Dataset({"x": Field(dtype, shape, Tiles(list(parts))), **fields})


def images(rows=64):
    return np.random.default_rng(0).integers(0, 40, (rows, 24, 20, 3), dtype=np.uint8)


@st.composite
def tiled_arrays(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    tile = [draw(st.integers(1, side + 2)) for side in shape]
    dtype = draw(st.sampled_from(["u1", "i2", "f4", "c8", "f8"]))
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    filters = draw(st.sampled_from([(), (DEFLATE,), (shuffle(array), DEFLATE), (shuffle(array), ("zstd", 0, 0))]))
    form = {"cut": draw(st.booleans()), "absent": draw(st.sets(st.integers(0, 20)))}
    if filters:
        form["skipping"] = draw(st.sets(st.integers(0, 20)))
    return array, stored(array, tile, filters, **form), tile, form["absent"]


@given(tiled_arrays(), st.data())
def test_any_array_gives_numpys_rows_through_every_door(made, data):
    array, grid, tile, absent = made
    expected = array.copy()
    numbers = [-(-side // step) for side, step in zip(array.shape, tile, strict=True)]
    for number, place in enumerate(np.ndindex(*numbers)):
        if number in absent:
            expected[tuple(slice(i * step, (i + 1) * step) for i, step in zip(place, tile, strict=True))] = 0
    ds = dataset(array, grid)
    rows = data.draw(st.lists(st.integers(0, len(array) - 1), min_size=1, max_size=12))
    chosen = ds.select(rows)
    assert np.array_equal(ds[rows[0]]["x"].numpy(), expected[rows[0]])
    assert np.array_equal(chosen.fields["x"].gather(np.arange(len(rows))).numpy(), expected[rows])
    native = torch.cat([batch["x"] for batch in memload.FastLoader(chosen, batch_size=5)])
    stock = torch.cat([batch["x"] for batch in DataLoader(chosen, batch_size=5)])
    assert np.array_equal(native.numpy(), expected[rows])
    assert torch.equal(stock, native)


def test_a_cast_is_fused_and_equals_torchs(tmp_path):
    array = images()
    ds = dataset(array, stored(array, (8, 24, 7, 3), [DEFLATE], tmp_path / "x"))
    cast = {"x": memload.Cast(torch.float32, norm_removed=True)}
    loader = memload.FastLoader(ds, batch_size=16, shuffle=True, cast=cast, generator=torch.Generator().manual_seed(3))
    plain = DataLoader(
        memload.from_arrays(x=array), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    for got, want in zip(loader, plain, strict=True):
        assert torch.equal(got["x"], (want["x"].float() - 127) / 255.0)
    assert loader.engine == "native"


def test_a_chunk_of_several_rows_is_decoded_once_for_a_batch_and_counted_as_stored(tmp_path):
    array = images()
    grid = stored(array, (8, 24, 20, 3), [DEFLATE], tmp_path / "x")
    ds = dataset(array, grid)
    loader = memload.FastLoader(ds, batch_size=64, shuffle=True)
    list(loader)
    stats = loader.stats()
    assert stats.bytes_in == (tmp_path / "x").stat().st_size == int(grid.table[:, 2].sum())
    assert stats.bytes_out == array.nbytes
    assert 0 < stats.decode_seconds <= stats.gather_seconds


def test_files_that_are_stored_differently_are_one_column(tmp_path):
    array = images(30)
    np.save(tmp_path / "plain.npy", array[10:20])
    plain = memload.open(tmp_path / "plain.npy", field="x")
    first = stored(array[:10], (1, 24, 20, 3), [DEFLATE], tmp_path / "first")
    last = stored(array[20:], (4, 5, 20, 3), [], tmp_path / "last")
    joined = Tiles.concat([Tiles([first]), Tiles([plain.fields["x"].column, last])])
    assert [type(part) for part in joined.parts] == [TileGrid, Column, TileGrid]
    assert {Path(s.name).name for s in joined.storages} == {"first", "plain.npy", "last"}
    ds = memload.Dataset({"x": Field(torch.uint8, array.shape[1:], joined)})
    order = np.random.default_rng(1).permutation(30)
    batches = memload.FastLoader(ds.select(order), batch_size=7)
    assert np.array_equal(torch.cat([batch["x"] for batch in batches]).numpy(), array[order])


def test_joined_datasets_may_be_stored_differently_and_say_how(tmp_path):
    array = images(30)
    tiled = dataset(array[:10], stored(array[:10], (8, 24, 5, 3), [shuffle(array), DEFLATE], tmp_path / "x"))
    plain = memload.from_arrays(x=array[10:])
    joined = plain.concat(tiled)
    order = np.random.default_rng(1).permutation(30)
    assert np.array_equal(
        joined.select(order).fields["x"].gather(np.arange(30)).numpy(), np.concatenate([array[10:], array[:10]])[order]
    )
    how = tiled.fields["x"].stored
    assert str(how) == "decoded: shuffle+deflate, 8 rows a chunk, 4 chunks a row"
    assert how.decoded_bytes == 8 * array[0].nbytes
    assert how.read_bytes * 2 == pytest.approx((tmp_path / "x").stat().st_size, abs=1)
    assert str(joined.fields["x"].stored) == f"{how} or in place"
    assert joined.fields["x"].stored.read_bytes == array[0].nbytes


def test_windows_over_chunks_decode_each_chunk_once(tmp_path):
    array = images(40)
    grid = stored(array, (8, 24, 20, 3), [DEFLATE], tmp_path / "x")
    lagged = dataset(array, grid).with_lags(x=range(4))
    loader = memload.FastLoader(lagged, batch_size=37)
    (batch,) = loader
    rows = np.arange(3, 40)[:, None] - np.arange(4)
    assert np.array_equal(batch["x"].numpy(), array[rows])
    assert loader.stats().bytes_in == grid.table[:, 2].sum()


@pytest.mark.parametrize("where", ["file", "memory"])
def test_what_is_pickled_reads_the_same_rows(tmp_path, where):
    array = images(30).astype(np.int16)
    grid = stored(
        array,
        (4, 10, 20, 3),
        [shuffle(array), DEFLATE],
        tmp_path / "x" if where == "file" else None,
        cut=True,
        absent={2},
        skipping={3},
    )
    plain = memload.from_arrays(x=array[:5])
    ds = plain.concat(dataset(array, grid)).select(np.arange(34, -1, -1))
    packed = pickle.dumps(ds)
    again = pickle.loads(packed)
    rows = np.arange(35)
    assert torch.equal(again.fields["x"].gather(rows), ds.fields["x"].gather(rows))
    assert again.fields["x"].column.storages[-1].mapped == (where == "file")
    empty = pickle.loads(pickle.dumps(dataset(array[:0], stored(array[:0], (4, 10, 20, 3), [DEFLATE]))))
    assert len(empty) == 0


def test_workers_that_are_forked_or_start_afresh_read_chunks(tmp_path):
    array = images(30)
    ds = dataset(array, stored(array, (4, 24, 20, 3), [DEFLATE], tmp_path / "x"))
    next(iter(memload.FastLoader(ds, batch_size=8)))  # threads that a forked child must do without
    for context in ("fork", "forkserver"):
        workers = DataLoader(ds, batch_size=8, num_workers=1, multiprocessing_context=context)
        assert np.array_equal(torch.cat([batch["x"] for batch in workers]).numpy(), array)


def test_what_threads_decode_in_is_counted_and_given_back(tmp_path):
    array = images(256)
    tile = (256, 24, 20, 3)
    ds = dataset(array, stored(array, tile, [DEFLATE], tmp_path / "x"))
    sizes = {}
    for threads in (1, 3):
        loader = memload.FastLoader(ds, batch_size=4, threads=threads, depth=2)
        sizes[threads] = loader.nbytes
        list(loader)
    per_thread = (sizes[3] - sizes[1]) / 2
    assert np.prod(tile) < per_thread < 3 * np.prod(tile)


def test_a_damaged_chunk_names_itself_and_other_rows_are_read(tmp_path):
    array = images()
    grid = stored(array, (4, 24, 20, 3), [DEFLATE], tmp_path / "x")
    offset, nbytes = grid.table[3, 1:3].tolist()
    with (tmp_path / "x").open("r+b") as file:
        file.seek(offset + nbytes // 2)
        file.write(bytes(40))
    ds = dataset(array, grid)
    with pytest.raises(memload.ShardReadError, match=r"chunk \(3, 0, 0, 0\).*cannot be decoded \(deflate") as raised:
        list(memload.FastLoader(ds.select(range(13, 30)), batch_size=17))
    assert (raised.value.row, raised.value.offset) == (13, offset)
    assert raised.value.file == str(tmp_path / "x")
    with pytest.raises(memload.ShardReadError, match="Restore it"):
        ds[14]
    assert np.array_equal(ds[16]["x"].numpy(), array[16])


CHAINS = [("deflate",), ("shuffle", "deflate"), ("lz4",), ("shuffle", "zstd"), ("blosc",)]


@pytest.mark.parametrize("names", CHAINS, ids="+".join)
@given(data=st.data())
def test_damaged_bytes_give_rows_or_an_error_that_names_the_chunk(names, data):
    array = images(8)
    sound = stored(array, (3, 24, 11, 3), [(name, int(name in ("shuffle", "blosc")), 0) for name in names])
    table = sound.table.copy()
    bytes_of = np.empty(int(table[:, 2].sum()), np.uint8)
    Column(bytes_of.nbytes, [(sound.storages[0], 0, 1, 0)]).gather(
        np.zeros(1, np.int64), bytes_of.ctypes.data, bytes_of.nbytes
    )
    for _ in range(data.draw(st.integers(1, 4))):
        bytes_of[data.draw(st.integers(0, len(bytes_of) - 1))] = data.draw(st.integers(0, 255))
    number = data.draw(st.integers(0, len(table) - 1))
    table[number, 2] = data.draw(st.integers(0, int(table[number, 2])))
    storage = Storage.borrow(bytes_of, bytes_of.ctypes.data, bytes_of.nbytes, "damaged")
    grid = TileGrid(8, 1, (24, 20, 3), (3, 24, 11, 3), [storage], table, sound.chain)
    try:
        said = f"chunk {tuple(dataset(array, grid).fields['x'].gather(np.arange(8)).shape)}"
    except memload.ShardReadError as error:
        said = str(error)
    assert "chunk (" in said


def test_cold_chunks_are_asked_for_ahead(tmp_path):
    array = images(2000)
    grid = stored(array, (8, 24, 20, 3), [DEFLATE], tmp_path / "x")
    if not can_be_read_directly(tmp_path / "x"):
        pytest.skip(f"{tmp_path} is on a file system without a disk")
    evict(tmp_path / "x")
    loader = memload.FastLoader(dataset(array, grid), batch_size=40)
    assert np.array_equal(torch.cat([batch["x"] for batch in loader]).numpy(), array)
    assert loader.stats().advised_rows > 0
    assert loader.stats().direct_bytes == 0


@pytest.mark.parametrize("filters", [(), (DEFLATE,)])
def test_a_file_that_is_cut_short_raises_with_row_and_file(tmp_path, filters):
    array = images(600)
    ds = dataset(array, stored(array, (1, 24, 20, 3), filters, tmp_path / "x"))
    os.truncate(tmp_path / "x", 4096)
    with pytest.raises(memload.ShardReadError, match="truncated") as raised:
        list(memload.FastLoader(ds, batch_size=200))
    assert 0 < raised.value.row < 600
    assert raised.value.file == str(tmp_path / "x")


def test_wrong_tables_and_chunks_beyond_a_bound_are_refused():
    storage = Storage.borrow(np.zeros(64, np.uint8), 0, 0, "nothing")
    with pytest.raises(ValueError, match=r"are 2 x 1 chunks, got 1"):
        TileGrid(4, 1, [3], [2, 3], [storage], [(-1, 0, 0, 0)])
    with pytest.raises(ValueError, match=r"nothing: chunk \(0, 0\) has 5 bytes at offset 1, but there are 0"):
        TileGrid(2, 1, [3], [2, 3], [storage], [(0, 1, 5, 0)], Chain([DEFLATE]))
    with pytest.raises(ValueError, match="more than 1073741824 bytes"):
        TileGrid(2, 8, [3], [2, 1 << 27], [storage], [(-1, 0, 0, 0)], Chain([DEFLATE]))
    with pytest.raises(ValueError, match="row 0 of the table of chunks is out of range"):
        TileGrid(2, 1, [3], [2, 3], [storage], [(-2, 0, 0, 0)])
    with pytest.raises(ValueError, match=r"rows of \(storage or -1"):
        TileGrid(2, 1, [3], [2, 3], [storage], [(-1, 0, 0)])


def test_decoding_lets_other_python_threads_run(tmp_path):
    array = np.zeros((4, 1 << 24), np.uint8)
    ds = dataset(array, stored(array, (1, 1 << 24), [DEFLATE], tmp_path / "x"))
    assert lets_others_run(lambda: ds.fields["x"].gather(np.arange(4)))


def test_hundreds_of_files_take_no_descriptors(tmp_path):
    array = images(300)
    parts = [stored(array[i : i + 1], (1, 24, 20, 3), [DEFLATE], tmp_path / str(i)) for i in range(300)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    ds = dataset(array, *parts)
    loader = memload.FastLoader(ds, batch_size=50)
    assert np.array_equal(torch.cat([batch["x"] for batch in loader]).numpy(), array)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
