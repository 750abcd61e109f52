"""Chunks of HDF5 datasets, decoded by memload and by h5py: the same bytes, whatever filters and shapes they have."""

from types import SimpleNamespace

import h5py
import hdf5plugin
import numpy as np
import pytest
import strategies  # noqa: F401 - loads the profile of hypothesis
import torch
from hdf5_cases import FILTERS, create, layouts, noise, write_layout
from hypothesis import assume, given, settings

import memload
from memload import _core
from memload.cli.main import main
from memload.formats.costs import cost_of, seconds_of
from memload.formats.tile_blocks import TileBlocks

pytestmark = pytest.mark.filterwarnings("ignore::memload.LayoutWarning")


def read_all(path, key):
    dataset = memload.open(path, key=key)
    return dataset.fields[key].gather(np.arange(len(dataset))).numpy()


def as_h5py_reads(path, key):
    with h5py.File(path) as file:
        array = file[key][...]
    return array.astype(array.dtype.newbyteorder("="))


def compare(path, key, seed=0):
    expected = as_h5py_reads(path, key)
    field = memload.open(path, key=key).fields[key]
    order = np.random.default_rng(seed).integers(0, len(expected), 2 * len(expected))
    assert field.gather(np.arange(field.rows)).numpy().tobytes() == expected.tobytes()
    assert field.gather(order).numpy().tobytes() == expected[order].tobytes()


@pytest.mark.parametrize("dtype", ["<i2", ">f4", "|u1"])
@pytest.mark.parametrize("filters", FILTERS)
def test_every_filter_is_decoded(tmp_path, filters, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=noise((37, 20, 9), dtype), chunks=(8, 7, 9), **FILTERS[filters])
    compare(tmp_path / "a.h5", "x")


@pytest.mark.parametrize("written", [(slice(2, 4), slice(0, 3)), (slice(0, 4), slice(0, 6))], ids=["part", "all"])
@pytest.mark.parametrize("filters", ["none", "gzip"])
def test_chunks_of_a_dataset_that_grows_across_its_rows_lie_where_h5py_reads_them(tmp_path, written, filters):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        dataset = file.create_dataset("x", (4, 6), "<i4", maxshape=(4, None), chunks=(2, 3), **FILTERS[filters])
        dataset[written] = noise((4, 6), "<i4")[written] + 1
    compare(tmp_path / "a.h5", "x")


@settings(max_examples=160)
@given(layouts())
def test_any_layout_reads_as_h5py_reads_it(tmp_path_factory, made):
    path = tmp_path_factory.getbasetemp() / "layout.h5"
    try:
        write_layout(path, made)
        as_h5py_reads(path, "x")
    except (OSError, RuntimeError):
        assume(not made["plain_edges"])  # HDF5 itself fails at some of these when their sides change
        raise
    compare(path, "x", made["seed"])


def test_filters_that_are_not_decoded_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros(40), chunks=(8,), **hdf5plugin.Blosc2())
        file.create_dataset("y", data=np.zeros((4, 4)), chunks=(4, 4), **hdf5plugin.Zfp())
    for key, name in (("x", "32026 .blosc2"), ("y", "32013 .zfp")):
        with pytest.raises(memload.FormatError, match=rf"'/{key}': .*HDF5's filter {name}.*h5repack"):
            memload.open(tmp_path / "a.h5", key=key)


def test_codecs_behind_a_filter_that_are_not_decoded_are_named_at_open(tmp_path):
    filters = {
        "blosc with the codec snappy": (32001, (0, 0, 0, 0, 5, 1, 3)),
        "bitshuffle with the codec 9": (32008, (0, 9)),
    }
    data = np.arange(4000, dtype="<i4").reshape(40, 100)
    for name, (number, options) in filters.items():
        with h5py.File(tmp_path / "a.h5", "w") as file:
            made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            made.set_chunk((8, 100))
            made.set_filter(number, h5py.h5z.FLAG_OPTIONAL, options)
            h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((40, 100)), made))
            file["x"][...] = data
        with pytest.raises(memload.FormatError, match=rf"'/x': .*{name}, which .*h5py read it .*import hdf5plugin"):
            memload.open(tmp_path / "a.h5")


def test_files_of_one_dataset_need_not_be_stored_alike(tmp_path):
    data = noise((30, 6), "<i2")
    for number, options in enumerate([{}, {"chunks": (4, 6)}, {"chunks": (4, 2), "compression": "gzip"}]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=data + number, **options)
    field = memload.open(f"{tmp_path}/*.h5").fields["x"]
    order = np.random.default_rng(0).permutation(90)
    assert np.array_equal(field.gather(order).numpy(), np.concatenate([data, data + 1, data + 2])[order])


def test_chunks_that_went_without_a_filter_are_told_by_their_masks(tmp_path):
    path = tmp_path / "a.h5"
    data = noise((6, 40), "<i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=data, chunks=(2, 40), compression="gzip", shuffle=True)
        dataset.id.write_direct_chunk((2, 0), data[2:4].tobytes(), filter_mask=0b11)
        shuffled = data[4:].reshape(-1).view(np.uint8).reshape(-1, 4).T.copy()
        dataset.id.write_direct_chunk((4, 0), shuffled.tobytes(), filter_mask=0b10)
    compare(path, "x")
    assert np.array_equal(read_all(path, "x"), data)


def early(path, shape, dtype, chunks, filters, *, plain):
    """Return an open file whose dataset "x" is allocated, not written to; `plain`: partial chunks unfiltered."""
    made = {"shape": shape, "chunks": chunks, "dtype": dtype, "filters": filters, "grows": "nowhere", "fill": 0}
    with h5py.File(path, "w", libver="latest") as file:
        create(file, "x", {**made, "allocated": "EARLY", "filled": "IFSET", "plain_edges": plain})
    return h5py.File(path, "r+")


@pytest.mark.parametrize("filters", ["shuffle", "bitshuffle", "gzip", "gzip, shuffle", "fletcher32"])
def test_partial_chunks_may_have_been_left_unfiltered(tmp_path, filters):
    """By an option of HDF5 that shows in no mask."""
    with early(tmp_path / "a.h5", (5, 70), ">i4", (2, 30), filters, plain=True) as file:
        file["x"][:] = noise((5, 70), "i4")
    compare(tmp_path / "a.h5", "x")


# Partial chunks of zeros, which are the same bytes before the filters and behind them, beside some that are not.
@pytest.mark.parametrize("filters", ["shuffle", "bitshuffle"])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("shape", "chunks", "written"), [((1, 5, 3), (1, 4, 2), np.s_[:, 4]), ((9, 5), (2, 4), np.s_[6:, 1:])]
)
def test_a_chunk_that_looks_the_same_either_way_is_no_evidence(tmp_path, filters, plain, shape, chunks, written):
    with early(tmp_path / "a.h5", shape, "<i2", chunks, filters, plain=plain) as file:
        file["x"][written] = 1 + np.arange(file["x"][written].size).reshape(file["x"][written].shape)
    compare(tmp_path / "a.h5", "x")


def test_where_hdf5_does_not_tell_of_partial_chunks_only_what_is_ambiguous_is_left_to_h5py(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("whole", data=noise((4, 6), "i4"), chunks=(2, 3), shuffle=True)
        file.create_dataset("gzip", data=noise((5, 7), "i4"), chunks=(2, 3), compression="gzip")
        file.create_dataset("shuffle", data=noise((5, 7), "i4"), chunks=(2, 3), shuffle=True)
    without_hdf5 = SimpleNamespace(__file__=_core.__file__)
    monkeypatch.setattr(h5py, "h5p", without_hdf5)
    compare(path, "whole")
    compare(path, "gzip")
    with pytest.raises(
        memload.FormatError, match=r"'/shuffle': .*partial chunks.* let h5py read it once: memload\.write"
    ):
        memload.open(path, key="shuffle")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_behind_a_user_block_are_found_whatever_precedes_them(tmp_path, libver):
    """Where a chunk's bytes lie twice, as many bytes apart as the user block has, they show nothing of its offset."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=512) as file:
        dataset = file.create_dataset("x", (64, 512), "u1", chunks=(1, 512))
        dataset[:] = np.minimum(np.arange(64), 40)[:, None]  # the last chunks are the same
        file.create_dataset("y", data=noise((40, 50), "i4"), chunks=(7, 9), compression="gzip")
    compare(path, "x")
    compare(path, "y")


def test_a_tiny_row_in_the_other_byte_order_is_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(5000, dtype=">f8")
        file["y"] = np.arange(5000, dtype=">i2").reshape(5, 1000)
    compare(tmp_path / "a.h5", "x")
    compare(tmp_path / "a.h5", "y")


@pytest.mark.parametrize("threads", [0, 2])
def test_the_loader_reads_chunks_natively_and_casts_on_the_way(tmp_path, threads):
    data = noise((50, 12, 5), ">i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(8, 5, 5), compression="gzip", shuffle=True)
        file["y"] = np.arange(50)
    ds = memload.open(tmp_path / "a.h5")
    passes = []
    for kind in (memload.FastLoader, torch.utils.data.DataLoader):
        torch.manual_seed(3)
        passes.append(list(kind(ds.as_tuple("x", "y"), 7, shuffle=True, num_workers=threads)))
    assert all(torch.equal(a, b) for one, two in zip(*passes, strict=True) for a, b in zip(one, two, strict=True))
    loader = memload.FastLoader(ds, 7, cast={"x": memload.Cast(torch.float32)})
    assert loader.engine == "native"
    assert np.array_equal(torch.cat([batch["x"] for batch in loader]).numpy(), data.astype(np.float32))


def test_damaged_chunks_raise_with_file_and_place(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=noise((40, 1000), "<i4"), chunks=(4, 1000), compression="gzip")
        file.flush()
        info = dataset.id.get_chunk_info_by_coord((8, 0))
    with path.open("r+b") as file:
        file.seek(info.byte_offset + info.size // 2)
        file.write(b"\xff" * 40)
    ds = memload.open(path)
    with pytest.raises((memload.ShardReadError, memload.DecodeError), match=r"a\.h5"):
        ds[9]
    assert ds[3]["x"].shape == (1000,)
    with pytest.raises((memload.ShardReadError, memload.DecodeError), match=r"a\.h5"):
        list(memload.FastLoader(ds, 4))


def misfit(path, rows=40, shape=(12, 10, 8)):
    data = np.random.default_rng(0).integers(-900, 900, (rows, *shape)).astype("<i2")
    with h5py.File(path, "w") as file:
        file.create_dataset("betas", data=data, chunks=(rows, 1, 1, 1))
    return data


@pytest.mark.filterwarnings("error::memload.LayoutWarning")
def test_a_layout_that_fights_row_access_says_what_a_row_costs_and_what_to_do(tmp_path):
    path = tmp_path / "betas_session01.hdf5"
    misfit(path)
    with pytest.warns(memload.LayoutWarning) as caught:
        memload.open(path, key="betas")
    text = str(caught[0].message)
    assert (
        "betas_session01.hdf5: a row of field 'betas', 1.92 kB, is stored across 960 chunks of many rows each" in text
    )
    assert "takes 76.8 kB, 40 times its size and about" in text
    assert text.splitlines()[1] == f"    memload write --key betas {path} betas_session01-shards"
    assert caught[0].filename == __file__


def test_the_time_of_a_row_is_that_of_the_file_where_it_costs_most(tmp_path):
    for name, chunks in (("0", (1, 600)), ("1", (40, 1))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", (40, 600), "i4", chunks=chunks, compression="gzip")[:, 300:] = 7
    with h5py.File(tmp_path / "0.h5") as file:
        infos = [file["x"].id.get_chunk_info(k) for k in range(40)]
    with (tmp_path / "0.h5").open("r+b") as file:  # whoever decodes one of these knows it
        for info in infos:
            file.seek(info.byte_offset)
            file.write(bytes(info.size))
    field = memload.open(f"{tmp_path}/*.h5").fields["x"]
    assert cost_of(field).tiles == 600
    assert seconds_of(field) > 0


@pytest.mark.filterwarnings("error::memload.LayoutWarning")
def test_layouts_that_fit_are_opened_without_a_warning(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, chunks in enumerate([(1, 60), (7, 60), (7, 10), (1, 1), None]):
            options = {"compression": "gzip"} if chunks else {}
            file.create_dataset(str(number), data=np.zeros((100, 60)), chunks=chunks, **options)
    memload.open(tmp_path / "a.h5")


@pytest.mark.filterwarnings("error::memload.LayoutWarning")
@pytest.mark.parametrize("shape", [(4000, 300), (4000,)])
def test_compressed_shards_of_our_own_are_no_reason_to_warn(tmp_path, shape):
    memload.write(tmp_path / "s", {"x": torch.zeros(shape)}, codec="zstd")
    assert len(memload.open(tmp_path / "s")) == 4000


@pytest.mark.filterwarnings("error::memload.LayoutWarning")
def test_many_files_that_do_not_fit_are_one_warning(tmp_path):
    for number in range(9):
        misfit(tmp_path / f"{number}.h5")
    with pytest.warns(
        memload.LayoutWarning, match=r"0\.h5 and 8 more.*\n.*memload\.write\(.0-shards., dataset\)"
    ) as caught:
        memload.open(f"{tmp_path}/*.h5", key="betas")
    assert len(caught) == 1


def boxes_of(blocks, row_shape, wanted, nbytes):
    """All rows as the blocks bring them, and how often each element came."""
    out = np.zeros((blocks.rows, *row_shape), blocks.dtype)
    times = np.zeros((blocks.rows, *row_shape), int)
    for band in blocks.bands():
        for rows, box, values in blocks.read(band, wanted, nbytes):
            out[band.start : band.stop][(rows, *box)] = values
            times[band.start : band.stop][(rows, *box)] += 1
    return out, times


@pytest.mark.parametrize("nbytes", [1, 3000, 10**9])
@pytest.mark.parametrize("filters", ["none", "gzip, shuffle"])
def test_blocks_bring_every_element_of_every_row_once(tmp_path, filters, nbytes):
    data = noise((45, 7, 5, 6), ">i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(20, 2, 1, 4), **FILTERS[filters])
    (grid,) = memload.open(tmp_path / "a.h5").fields["x"].column.parts
    blocks = TileBlocks(grid, np.dtype("<i2"))
    assert [len(band) for band in blocks.bands()] == [20, 20, 5]
    out, times = boxes_of(blocks, (7, 5, 6), None, nbytes)
    assert (times == 1).all()
    assert np.array_equal(out, data)


@pytest.mark.parametrize("nbytes", [1, 10**9])
def test_chunks_without_a_wanted_element_are_not_decoded(tmp_path, nbytes):
    path = tmp_path / "a.h5"
    data = noise((45, 7, 5, 6), "<i2")
    wanted = np.zeros((7, 5, 6), bool)
    wanted[2:4, 1, 3:] = True
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=data, chunks=(20, 1, 1, 3), compression="gzip")
        file.flush()
        places = [
            dataset.id.get_chunk_info_by_coord((row, *axes, 0)) for row in (0, 20, 40) for axes in np.ndindex(2, 5)
        ]
    with path.open("r+b") as file:  # whoever decodes one of these knows it
        for info in places:
            file.seek(info.byte_offset)
            file.write(bytes(info.size))
    (grid,) = memload.open(path).fields["x"].column.parts
    out, times = boxes_of(TileBlocks(grid, np.dtype("<i2")), (7, 5, 6), wanted, nbytes)
    assert (times[:, wanted] == 1).all()
    assert np.array_equal(out[:, wanted], data[:, wanted])


def test_a_large_misfit_is_transposed_with_mask_and_scale(tmp_path):
    data = np.random.default_rng(0).integers(-900, 900, (300, 40, 40, 20)).astype("<i2")
    path = tmp_path / "betas.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("betas", data=data, chunks=(300, 10, 10, 1), compression="gzip", compression_opts=1)
    field = memload.open(path).fields["betas"]
    assert field.blocks is not None
    mask = np.random.default_rng(1).random((40, 40, 20)) < 0.1
    np.save(tmp_path / "roi.npy", mask)
    command = ["write", "--quiet", "--key", "betas", "--mask", str(tmp_path / "roi.npy"), "--scale", "1/300"]
    assert main([*command, str(path), str(tmp_path / "shards")]) == 0
    written = memload.open(tmp_path / "shards").fields["betas"].gather(np.arange(300)).numpy()
    assert np.array_equal(written, data[:, mask].astype(np.float32) * np.float32(1 / 300))


def test_the_command_line_says_what_a_row_costs(tmp_path, capsys):
    misfit(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("gz", data=np.zeros((40, 100)), chunks=(4, 100), compression="gzip")
        file["plain"] = np.zeros((40, 100))
    assert main(["info", str(tmp_path / "a.h5")]) == 0
    said = capsys.readouterr().out
    assert "betas: read in place, 40 rows a chunk, 960 chunks a row; a row of 1.92 kB takes 960 chunks, 76.8 kB" in said
    assert "76.8 kB, 40 times its size: unfit for reading by rows" in said
    assert "gz: decoded: deflate, 4 rows a chunk; a row of 800 B takes 1 chunk, 3.2 kB" in said
    assert "plain: read in place; a row takes its own 800 B" in said
    assert "memload write" in said
