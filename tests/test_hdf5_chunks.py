"""Chunks of HDF5 datasets, decoded by memload and by h5py: the same bytes, whatever filters and shapes they have."""

import ctypes
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
import strategies  # noqa: F401 - loads the profile of hypothesis
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memload
from memload.cli import main
from memload.sources.tile_blocks import TileBlocks

pytestmark = pytest.mark.filterwarnings("ignore::memload.LayoutWarning")

DTYPES = ["<i2", ">i2", "<f4", ">f4", "<u8", ">f8", "|u1", "|b1", "<c8", ">c8", "<f2", ">i4"]
FILTERS = {
    "none": {},
    "gzip": {"compression": "gzip", "compression_opts": 4},
    "gzip, shuffle": {"compression": "gzip", "shuffle": True},
    "gzip, shuffle, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lzf, shuffle": {"compression": "lzf", "shuffle": True},
    "fletcher32": {"fletcher32": True},
    "shuffle": {"shuffle": True},
    "zstd": dict(hdf5plugin.Zstd()),
    "lz4": dict(hdf5plugin.LZ4()),
    "lz4 in blocks": dict(hdf5plugin.LZ4(nbytes=64)),
    "blosc": dict(hdf5plugin.Blosc(cname="lz4")),
    "blosc zstd, bits": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "bitshuffle": dict(hdf5plugin.Bitshuffle(cname="none")),
    "bitshuffle lz4": dict(hdf5plugin.Bitshuffle(cname="lz4")),
    "bitshuffle zstd": dict(hdf5plugin.Bitshuffle(cname="zstd")),
}


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


def noise(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 if np.dtype(dtype).kind == "b" else 50, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["<i2", ">f4", "|u1"])
@pytest.mark.parametrize("filters", FILTERS)
def test_every_filter_is_decoded(tmp_path, filters, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=noise((37, 20, 9), dtype), chunks=(8, 7, 9), **FILTERS[filters])
    compare(tmp_path / "a.h5", "x")


@st.composite
def layouts(draw):
    """A shape, the chunks in which it is stored, and what becomes of it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    chunks = tuple(draw(st.integers(1, side + 2)) for side in shape)
    return {
        "shape": shape,
        "chunks": draw(st.sampled_from([chunks, None])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "filters": draw(st.sampled_from(sorted(FILTERS))),
        "libver": draw(st.sampled_from(["earliest", "latest"])),
        "user_block": draw(st.sampled_from([0, 0, 512])),
        "grows": draw(st.sampled_from(["nowhere", "in rows", "everywhere"])),  # each has an index of its own kind
        "allocated": draw(st.sampled_from(["EARLY", "INCR", "LATE"])),
        "fill": draw(st.integers(0, 1)),
        "boxes": draw(
            st.lists(st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)) for n in shape)), max_size=3)
        ),
        "resized": draw(st.one_of(st.none(), st.tuples(*(st.integers(0, side + 4) for side in shape)))),
        "seed": draw(st.integers(0, 99)),
    }


def write_layout(path, made):
    chunked = made["chunks"] is not None
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(getattr(h5py.h5d, f"ALLOC_TIME_{made['allocated']}"))
    options = {"chunks": made["chunks"], "fillvalue": made["fill"], "dcpl": creation}
    if chunked:
        most = {
            "nowhere": made["shape"],
            "in rows": (None, *made["shape"][1:]),
            "everywhere": (None,) * len(made["shape"]),
        }
        options |= FILTERS[made["filters"]] | {"maxshape": most[made["grows"]]}
        options["chunks"] = tuple(
            step if side is None else min(step, side)
            for step, side in zip(made["chunks"], options["maxshape"], strict=True)
        )
    with h5py.File(path, "w", libver=made["libver"], userblock_size=made["user_block"]) as file:
        try:
            dataset = file.create_dataset("x", made["shape"], made["dtype"], **options)
        except ValueError:  # some filters take no complex numbers
            assume(np.dtype(made["dtype"]).kind != "c")
            raise
        for number, box in enumerate(made["boxes"]):
            part = tuple(slice(min(ends), max(ends)) for ends in box)
            dataset[part] = noise(dataset[part].shape, made["dtype"], made["seed"] + number)
        if made["resized"] is not None and chunked:
            dataset.resize(
                [n if most is None else most for n, most in zip(made["resized"], dataset.maxshape, strict=True)]
            )


@settings(max_examples=120)
@given(layouts())
def test_any_layout_reads_as_h5py_reads_it(tmp_path_factory, made):
    path = tmp_path_factory.getbasetemp() / "layout.h5"
    write_layout(path, made)
    compare(path, "x", made["seed"])


def test_filters_that_are_not_decoded_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros(40), chunks=(8,), **hdf5plugin.Blosc2())
        file.create_dataset("y", data=np.zeros((4, 4)), chunks=(4, 4), **hdf5plugin.Zfp())
    for key, name in (("x", "32026 .blosc2"), ("y", "32013 .zfp")):
        with pytest.raises(memload.FormatError, match=rf"'/{key}': .*HDF5's filter {name}.*h5repack"):
            memload.open(tmp_path / "a.h5", key=key)


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


def test_chunks_at_the_edges_may_have_been_left_unfiltered(tmp_path):
    """By an option of HDF5 that h5py does not offer, and that shows in no mask."""
    library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libhdf5" in line)
    set_options = ctypes.CDLL(library).H5Pset_chunk_opts
    set_options.argtypes = [ctypes.c_int64, ctypes.c_uint]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for key, shuffled in (("x", False), ("y", True)):
            made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            made.set_chunk((2, 30))
            made.set_shuffle()
            if not shuffled:
                made.set_deflate(4)
            assert set_options(made.id, 2) == 0  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
            h5py.h5d.create(file.id, key.encode(), h5py.h5t.STD_I32BE, h5py.h5s.create_simple((5, 70)), made)
            file[key][:] = noise((5, 70), "i4")
        file.create_dataset("z", data=noise((5, 70), "i4"), chunks=(2, 30), shuffle=True)
    for key in "xyz":
        compare(path, key)


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
    assert "betas_session01.hdf5: a row of field 'betas', 1.92 kB, lies across 960 chunks of many rows each" in text
    assert "takes 76.8 kB, 40 times its size and about" in text
    assert text.splitlines()[1] == f"    memload write --key betas {path} betas_session01-shards"
    assert caught[0].filename == __file__


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
