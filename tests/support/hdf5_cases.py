"""HDF5 datasets of every layout that the library writes: filters, edges, allocation, fill values, masks of filters."""

import ctypes

import h5py
import hdf5plugin
import numpy as np
from hypothesis import assume, reject
from hypothesis import strategies as st

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
# How long each axis may become, by which HDF5 chooses among its kinds of index.
GROWS = {
    "nowhere": lambda shape: shape,
    "in rows": lambda shape: (None, *shape[1:]),
    "everywhere": lambda shape: (None,) * len(shape),
    "across": lambda shape: (*(2 * side for side in shape[:-1]), None),
    "inside": lambda shape: tuple(None if axis == len(shape) // 2 else side + 3 for axis, side in enumerate(shape)),
    "to a limit": lambda shape: tuple(2 * side for side in shape),
    "along two axes": lambda shape: tuple(None if axis % 2 == 0 else side + 1 for axis, side in enumerate(shape)),
}
_SAME_SIZE = (
    h5py.h5z.FILTER_SHUFFLE,
    32008,
)  # filters whose result is as long as what they are given: any bytes will do


def noise(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 if np.dtype(dtype).kind == "b" else 50, shape).astype(dtype)


@st.composite
def layouts(draw):
    """A shape, the chunks in which it is stored, and what becomes of it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    chunks = tuple(draw(st.integers(1, side + 2)) for side in shape)
    return {
        "shape": shape,
        "chunks": draw(st.sampled_from([chunks, chunks, chunks, None])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "filters": draw(st.sampled_from(["bitshuffle", "shuffle", *sorted(FILTERS)])),
        "libver": draw(st.sampled_from(["earliest", "latest"])),
        "user_block": draw(st.sampled_from([0, 0, 512])),
        "grows": draw(st.sampled_from(sorted(GROWS))),
        "allocated": draw(st.sampled_from(["EARLY", "INCR", "LATE"])),
        "filled": draw(st.sampled_from(["IFSET", "ALLOC", "NEVER"])),
        "fill": draw(st.integers(0, 1)),
        "plain_edges": draw(st.booleans()),
        "boxes": draw(
            st.lists(st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)) for n in shape)), max_size=3)
        ),
        "resized": draw(st.one_of(st.none(), st.tuples(*(st.integers(0, side + 4) for side in shape)))),
        "direct": draw(st.lists(st.tuples(st.integers(0, 2**30), st.integers(0, 7)), max_size=2)),
        "seed": draw(st.integers(0, 99)),
    }


def write_layout(path, made):
    """Write the dataset "x" as one of `layouts` says."""
    with h5py.File(path, "w", libver=made["libver"], userblock_size=made["user_block"]) as file:
        dataset = create(file, "x", made)
        for number, box in enumerate(made["boxes"]):
            part = tuple(slice(min(ends), max(ends)) for ends in box)
            dataset[part] = noise(dataset[part].shape, made["dtype"], made["seed"] + number)
        if dataset.chunks is None:
            return
        if made["resized"] is not None:
            most = zip(made["resized"], dataset.maxshape, strict=True)
            dataset.resize([n if limit is None else min(n, limit) for n, limit in most])
    with h5py.File(path, "r+") as file:  # anew: in one go with a change of its sides, HDF5 forgets the masks
        grid = [-(-side // step) for side, step in zip(file["x"].shape, file["x"].chunks, strict=True)]
        for chosen, skipped in made["direct"] if np.prod(grid) else ():
            _write_chunk(file["x"], np.unravel_index(chosen % np.prod(grid), grid), skipped, made["seed"])


def create(file, name, made):
    """Make a dataset of which nothing is written yet."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(getattr(h5py.h5d, f"ALLOC_TIME_{made['allocated']}"))
    creation.set_fill_time(getattr(h5py.h5d, f"FILL_TIME_{made['filled']}"))
    options = {"fillvalue": made["fill"], "dcpl": creation}
    if made["chunks"] is not None:
        most = GROWS[made["grows"]](made["shape"])
        sides = zip(made["chunks"], most, strict=True)
        options["chunks"] = tuple(step if side is None else min(step, side) for step, side in sides)
        options |= FILTERS[made["filters"]] | {"maxshape": most}
    try:
        dataset = file.create_dataset(name, made["shape"], made["dtype"], **options)
    except ValueError:
        if np.dtype(made["dtype"]).kind == "c":  # which some filters do not take
            reject()
        raise
    if not made["plain_edges"] or dataset.chunks is None:
        return dataset
    keep_edges_plain(creation)
    stored, space = dataset.id.get_type(), dataset.id.get_space()
    del file[name]
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), stored, space, creation))


def keep_edges_plain(creation):
    """Have partial chunks at the edges stored without filters, by an option of HDF5 that h5py does not offer."""
    set_options = ctypes.CDLL(h5py.h5p.__file__).H5Pset_chunk_opts
    set_options.argtypes = [ctypes.c_int64, ctypes.c_uint]
    assert set_options(creation.id, 2) == 0  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS


def _write_chunk(dataset, place, skipped, seed):
    """Write the bytes of a chunk past the filters, those left out that its mask says."""
    created = dataset.id.get_create_plist()
    filters = [created.get_filter(k) for k in range(created.get_nfilters())]
    needed = 0  # to be left out, since not just any bytes can have gone through them
    for k, (number, _, values, _) in enumerate(filters):
        if number not in _SAME_SIZE or values[4:5] not in ((), (0,)) or dataset.dtype.kind == "b":
            needed |= 1 << k
    skipped = (skipped | needed) & (1 << len(filters)) - 1
    corner = tuple(int(k) * step for k, step in zip(place, dataset.chunks, strict=True))
    values = noise(dataset.chunks, dataset.dtype, seed + 7)
    dataset.id.write_direct_chunk(corner, values.tobytes(), filter_mask=skipped)
    kept = dataset.id.get_chunk_info_by_coord(corner).filter_mask
    assume(kept & needed == needed)  # HDF5 keeps the mask of a chunk that had the same size
