"""Random rows in files of every format, on every tier, beside a stock loader over the same rows in memory."""

import pickle
from collections import Counter

import h5py
import hdf5plugin
import numpy as np
import pyarrow as pa
import safetensors.numpy
import torch
import zarr
from soak.forked import names
from torch.utils.data import DataLoader

import memload

DTYPES = ["uint8", "int16", "int32", "int64", "float32", "float64", "float16", "uint16", "int8"]
CODECS = [None, "zstd", "lz4", "zstd:rows=3", "lz4:rows=1"]
TIERS = [{}, {}, {}, {"tier": "ram"}, {"tier": "hybrid", "cache_bytes": "2MB"}, {"tier": "direct"}]


def random_arrays(rng):
    """One to three arrays of equal length; some are smooth or constant, as compressed data is."""
    rows, draw = rng.choice([1, 2, 3, 7, 20, 50]), np.random.default_rng(rng.randrange(2**32))
    arrays = {}
    for name in "xyz"[: rng.randint(1, 3)]:
        shape = (rows, *(rng.choice([1, 2, 3, 5, 8, 17]) for _ in range(rng.randint(0, 3))))
        bytes_of_all = draw.integers(0, rng.choice([1, 4, 120]), shape)
        arrays[name] = bytes_of_all.astype(rng.choice(DTYPES))
    return arrays


class Rows(torch.utils.data.Dataset):
    """The same rows as a stock loader takes them."""

    def __init__(self, arrays, rows, of_sample):
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self.rows, self.of_sample = rows, of_sample

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.of_sample({name: tensor[self.rows[index]] for name, tensor in self.tensors.items()})


def npy(rng, folder, arrays):
    name = rng.choice(list(arrays))
    np.save(folder / "x.npy", arrays[name])
    return memload.open(folder / "x.npy", field=name)


def npz(rng, folder, arrays):
    np.savez(folder / "x.npz", **arrays)
    return memload.open(folder / "x.npz")


def safetensors_file(rng, folder, arrays):
    safetensors.numpy.save_file(arrays, folder / "x.safetensors")
    return memload.open(folder / "x.safetensors")


def torch_file(rng, folder, arrays):
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.save({"train": tensors, "epoch": 3} if rng.random() < 0.5 else tensors, folder / "x.pt")
    return memload.open(folder / "x.pt", **({"key": "train"} if "train" in torch.load(folder / "x.pt") else {}))


def raw(rng, folder, arrays):
    name, skipped = rng.choice(list(arrays)), rng.choice([0, 1, 100, 4096])
    (folder / "x.dat").write_bytes(bytes(skipped) + arrays[name].tobytes())
    shape = arrays[name].shape[1:]
    return memload.open(folder / "x.dat", field=name, dtype=arrays[name].dtype, shape=shape, offset=skipped)


def hdf5(rng, folder, arrays):
    """Chunks of any shape and filters; some are allocated early, or written in part."""
    with h5py.File(folder / "x.h5", "w", libver=rng.choice(["earliest", "latest"])) as file:
        for name, array in arrays.items():
            arrays[name] = _hdf5_dataset(rng, file, name, array)
    return memload.open(folder / "x.h5")


def _hdf5_dataset(rng, file, name, array):
    if rng.random() < 0.2:
        return file.create_dataset(name, data=array)[...]
    chunks = tuple(rng.randint(1, side) for side in array.shape)
    maximum = tuple(None if rng.random() < 0.3 else side for side in array.shape)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if rng.random() < 0.3:
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    kind = {"dtype": array.dtype, "chunks": chunks, "maxshape": maximum, "dcpl": properties}
    made = file.create_dataset(name, array.shape, **kind, **rng.choice(HDF5_FILTERS))
    if rng.random() < 0.3:  # a part; the rest is zero
        part = tuple(slice(begin, rng.randint(begin, side)) for side in array.shape for begin in [rng.randrange(side)])
        made[part] = array[part]
    else:
        made[...] = array
    return made[...]


HDF5_FILTERS = [
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"shuffle": True},
    {"fletcher32": True},
    {"compression": "lzf", "fletcher32": True},
    hdf5plugin.Bitshuffle(cname="none"),
    hdf5plugin.Bitshuffle(),
    hdf5plugin.Blosc(),
    hdf5plugin.Zstd(),
    hdf5plugin.LZ4(),
]


def zarr_store(rng, folder, arrays):
    group = zarr.open_group(folder / "x.zarr", mode="w", zarr_format=rng.choice([2, 3]))
    for name, array in arrays.items():
        chunks = tuple(rng.randint(1, side) for side in array.shape)
        more = {"compressors": None} if rng.random() < 0.4 else {}
        made = group.create_array(name, shape=array.shape, chunks=chunks, dtype=array.dtype, **more)
        if rng.random() < 0.9:
            made[...] = array
        arrays[name] = made[...]
    return memload.open(folder / "x.zarr")


def arrow(rng, folder, arrays):
    columns = {name: _arrow_column(array) for name, array in arrays.items() if array.ndim < 3}
    if not columns:
        return npz(rng, folder, arrays)
    table = pa.table(columns)
    with pa.OSFile(str(folder / "x.arrow"), "wb") as sink:
        new = pa.ipc.new_file if rng.random() < 0.5 else pa.ipc.new_stream
        with new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rng.choice([1, 3, 1000]))
    return memload.open(folder / "x.arrow")


def _arrow_column(array):
    values = pa.array(array.reshape(-1))
    return values if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, array.shape[1])


def shards(rng, folder, arrays):
    how = {"codec": rng.choice(CODECS), "shard_bytes": rng.choice(["1KB", "64KB", "512MB"])}
    cut = rng.randint(0, len(next(iter(arrays.values()))))
    parts = [part for part in (slice(0, cut), slice(cut, None)) if len(next(iter(arrays.values()))[part])]
    for number, part in enumerate(parts):
        memload.write(folder / "s", {name: array[part] for name, array in arrays.items()}, append=number > 0, **how)
    return memload.open(folder / "s")


def in_memory(rng, folder, arrays):
    return memload.from_arrays(**arrays)


FORMATS = [npy, npz, safetensors_file, torch_file, raw, hdf5, hdf5, hdf5, zarr_store, zarr_store, arrow, shards, shards]
FORMATS += [in_memory]


def attack(rng, folder):
    """Write rows, open them, and compare two passes of each loader, one of them stopped and resumed."""
    arrays = random_arrays(rng)
    kind = rng.choice(FORMATS)
    try:
        ds = kind(rng, folder, arrays)
    except memload.FormatError as error:
        names(error, folder)
        return {"files refused": 1}
    expected = {name: arrays[name] for name in ds.fields}
    tier = {} if kind is in_memory else rng.choice(TIERS)
    ds = ds.with_tier(tier["tier"], **{k: v for k, v in tier.items() if k != "tier"}) if tier else ds
    if rng.random() < 0.2 and kind is not in_memory:
        ds = pickle.loads(pickle.dumps(ds))
    rows = list(range(len(ds)))
    if rng.random() < 0.4:
        rows = [rng.randrange(len(ds)) for _ in range(rng.randint(1, 60))]
        ds = ds.select(rows)
    tried = compared(rng, ds, expected, rows)
    return Counter(tried) + Counter({f"files: {kind.__name__}": 1})


def compared(rng, ds, arrays, rows):
    """Compare the passes of a FastLoader over the dataset with those of a stock loader over the arrays."""
    of_sample, of_batch, settings = functions(rng, arrays)
    mapped = ds.map(of_sample) if of_sample is not same else ds
    batch_size, shuffle, drop = rng.choice([1, 2, 3, 8, 100]), rng.random() < 0.6, rng.random() < 0.3
    seed, common = rng.randrange(2**32), {"shuffle": shuffle, "drop_last": drop}
    stock = DataLoader(Rows(arrays, rows, of_sample), batch_size, **common, generator=generator(seed))
    wanted = [[of_batch(batch) for batch in stock] for _ in range(2)]

    def make(**more):
        return memload.FastLoader(mapped, batch_size, **common, **settings, **more)

    loader = make(generator=generator(seed), threads=rng.randint(1, 3), depth=rng.randint(1, 3))
    found = [list(loader)]
    stop, iterator = rng.randint(0, len(wanted[1])), iter(loader)
    begun = [next(iterator) for _ in range(stop)]
    other = make(generator=generator(0), num_workers=rng.randint(0, 2))
    other.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    found.append([*begun, *(other if stop < len(wanted[1]) else iterator)])
    for got, want in zip(found, wanted, strict=True):
        assert_equal(got, want)
    return {"batches compared": sum(map(len, wanted)), "passes": 2}


def same(value):
    return value


def functions(rng, arrays):
    """What is done to samples, what a stock loop would do to batches, and the arguments that do so natively."""
    name = rng.choice(list(arrays))
    kind = rng.choice(["plain", "plain", "cast", "normalise", "map", "batch"])
    if kind == "cast":
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
        return same, lambda b: {**b, name: b[name].to(dtype)}, {"cast": {name: memload.Cast(dtype)}}
    bytes_of = [name for name, array in arrays.items() if array.dtype == np.uint8]
    if kind == "normalise" and bytes_of:
        name, dtype = rng.choice(bytes_of), rng.choice([torch.float32, torch.bfloat16, torch.float16])
        cast = {name: memload.Cast(dtype, norm_removed=True)}
        return same, lambda b: {**b, name: (b[name].to(dtype) - 127) / 255.0}, {"cast": cast}
    if kind == "map":
        return lambda s: {**s, "new": s[name].double().sum() * 2}, same, {}
    if kind == "batch":
        function = lambda b: {**b, "new": b[name].double() + 1}  # noqa: E731
        return same, function, {"batch_transform": function}
    return same, same, {}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def assert_equal(got, want):
    assert len(got) == len(want), f"{len(got)} batches instead of {len(want)}"
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        assert list(a) == list(b), (list(a), list(b))
        for name in b:
            assert a[name].dtype == b[name].dtype, (name, a[name].dtype, b[name].dtype)
            assert a[name].shape == b[name].shape, (name, a[name].shape, b[name].shape)
            equal = a[name].reshape(-1).view(torch.uint8).equal(b[name].contiguous().reshape(-1).view(torch.uint8))
            assert equal, f"batch {number}: other bytes in {name}"
