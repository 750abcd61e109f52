"""Opens and reads damaged files of one format, until told to stop; in a process of its own, as it may not end well.

    PYTHONPATH=. python tests/support/source_mutants.py FORMAT [SECONDS [FIRST [COUNT]]]

Mutants are numbered; those from FIRST on are tried, COUNT of them or for so many seconds, ten minutes if not told. The
last number printed is the one that failed: give it as FIRST. Whatever is said must be an error of memload's that names
the file, within seconds, and in bounded memory.
"""

import contextlib
import random
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from hdf5_mutants import MOST_SECONDS, mutant

import memload

MOST_READ = 10 << 20  # bytes of rows; a damaged file may have any number of any size
MOST_MEMORY = 700 << 20  # beside what is there before the first is opened
# Errors of Python's own: a name that is asked for may be lost, and arrays may have different numbers of rows.
MEANT = {"arrow": (KeyError,), "torch": (ValueError,), "npz": (ValueError,)}


def arrays():
    rng = np.random.default_rng(0)
    return {"x": rng.integers(0, 9, (30, 6, 4)).astype(np.int16), "y": rng.random(30)}


def ragged_arrays():
    rows = [torch.arange(n, dtype=torch.int32) for n in (3, 0, 9, 1, 30, 2)]
    return {"x": memload.ragged(rows), "y": np.arange(6.0), "text": ["a", "", "äö", "text", "x" * 50, "end"]}


def npy(path):
    np.save(path / "x.npy", arrays()["x"])
    return path / "x.npy"


def npz(path):
    np.savez(path / "x.npz", **arrays())
    return path / "x.npz"


def safetensors(path):
    shards(path)
    return next((path / "shards").glob("*.safetensors"))


def shards(path):
    return written(path / "shards", arrays(), shard_bytes=1000)


def compressed(path):
    codecs = {"x": memload.Codec("zstd", rows=4), "y": memload.Codec("blosc2", rows=7)}
    return written(path / "shards", arrays(), codec=codecs)


def ragged(path):
    return written(path / "shards", ragged_arrays())


def compressed_ragged(path):
    codecs = {"x": memload.Codec("zstd", rows=4), "y": "lz4:rows=2", "text": memload.Codec("blosc2", rows=7)}
    return written(path / "shards", ragged_arrays(), codec=codecs)


def torch_file(path):
    torch.save({name: torch.from_numpy(values) for name, values in arrays().items()}, path / "x.pt")
    return path / "x.pt"


def graphs(path):
    from torch_geometric.data import Data, InMemoryDataset

    made = [Data(x=torch.rand(n, 4), edge_index=torch.randint(0, n, (2, 2 * n)), num_nodes=n) for n in (3, 2, 7)]
    InMemoryDataset.save(made, str(path / "data.pt"))
    return path / "data.pt"


def arrow(path):
    import pyarrow as pa

    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 21, 2, dtype="i4")), pa.array(np.arange(20.0)))
    table = pa.table({"x": np.arange(10), "y": lists, "s": ["text"] * 10})
    with pa.OSFile(str(path / "x.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return path / "x.arrow"


def zarr_store(path):
    from zarr3 import zarr

    group = zarr.create_group(path / "x.zarr")
    kinds = {"a": {"shards": (8, 6)}, "b": {"compressors": None}, "c": {"fill_value": 3}}
    for name, options in kinds.items():
        array = group.create_array(name, shape=(9, 6), chunks=(4, 3), dtype="i4", **options)
        array[:] = np.arange(54).reshape(9, 6)
    return path / "x.zarr"


def written(path, data, **options):
    memload.write(path, data, progress=False, **options)
    return path


def nifti(path):
    from nifti_cases import saved

    return saved(path / "x.nii", arrays()["x"].astype("f4")[..., None], version=2)


FORMATS = {
    "npy": npy,
    "npz": npz,
    "safetensors": safetensors,
    "shards": shards,
    "compressed": compressed,
    "ragged": ragged,
    "compressed_ragged": compressed_ragged,
    "torch": torch_file,
    "graphs": graphs,
    "arrow": arrow,
    "zarr": zarr_store,
    "nifti": nifti,
}


def damage(rng, sound, path):
    """Put a copy of what is sound there, one file of which is damaged."""
    if sound.is_file():
        path.write_bytes(mutant(rng, sound.read_bytes()))
        return
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound, path)
    file = rng.choice(sorted(one for one in path.rglob("*") if one.is_file() and one.stat().st_size))
    file.write_bytes(mutant(rng, file.read_bytes()))


def read(path, kind):
    """Open and read the first rows, and return whether they could be; an error must be ours, and name the file."""
    try:
        keys = {"key": ["x", "y"]} if kind == "arrow" else {}  # its texts are not read in place
        ds = memload.open_graphs(path).as_plain() if kind == "graphs" else memload.open(path, **keys)
        for field in ds.fields.values():
            rows = min(field.rows, 1000, MOST_READ // max(1, field.row_bytes))
            if rows and field.nbytes < 100 * MOST_READ:
                field.gather(np.arange(rows))
        if kind == "graphs" and len(ds):
            list(memload.FastLoader(ds, 2, collate_fn=memload.graph_collate))
    except (memload.MemloadError, *MEANT.get(kind, ())) as error:
        if str(path) not in str(error):
            raise RuntimeError(f"an error that does not name the file: {error}") from error
        return False
    return True


def try_mutants(kind, seconds=600.0, first=0, count=10**9):
    """Return how many of the mutants could be read, none of them slowly, or with much memory."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        sound = FORMATS[kind](folder)
        path = folder / "mutant" / sound.name
        path.parent.mkdir()
        with contextlib.suppress(OSError):  # a kernel that does not forget the peak so far
            Path("/proc/self/clear_refs").write_text("5")
        before, until, good = peak_memory(), time.monotonic() + seconds, 0
        for number in range(first, first + count):
            if time.monotonic() > until:
                break
            begin = time.process_time()  # which a busy machine does not lengthen
            print(number, flush=True)
            damage(random.Random(number), sound, path)
            good += read(path, kind)
            assert time.process_time() - begin < MOST_SECONDS, f"mutant {number}: too slow"
            taken = peak_memory() - before
            assert taken < MOST_MEMORY, f"mutant {number}: {taken} bytes of memory"
    return good


def peak_memory():
    """Bytes. Not ru_maxrss, which begins with what the process that forked this one held."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def main(kind, *limits):
    warnings.simplefilter("ignore")
    print("read:", try_mutants(kind, *map(float, limits[:1]), *map(int, limits[1:])))


if __name__ == "__main__":
    main(*sys.argv[1:])
