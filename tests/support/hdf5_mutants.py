"""Opens and reads damaged HDF5 files, until told to stop; in a process of its own, as HDF5 itself may break.

    python hdf5_mutants.py FOLDER FIRST COUNT SECONDS

Mutants are numbered; those from FIRST on are tried, COUNT of them or for so many seconds. Whatever is read must be what
h5py reads, if h5py reads it; whatever is said must be an error of memload's that names the file.
"""

import random
import sys
import time
import warnings
from pathlib import Path

import h5py
import numpy as np

import memload

MOST_MEMORY = 1000 << 20
MOST_READ = 100 << 20  # bytes of rows; a damaged file may have any number of any size
MOST_SECONDS = 20.0
KEYS = "abcdef"


def sound(path, libver, user_block):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 9, (20, 6, 4))
    with h5py.File(path, "w", libver=libver, userblock_size=user_block) as file:
        file.create_dataset("a", data=data.astype("<i2"), chunks=(3, 4, 4), compression="gzip", shuffle=True)
        file.create_dataset("b", data=data.astype(">f4"))
        file.create_dataset("c", data=data.astype("<f4"), chunks=(1, 6, 4))
        file.create_dataset("d", data=data.astype("<u1"), chunks=(7, 6, 4), compression="lzf", fletcher32=True)
        file.create_dataset("e", data=data.astype("<i8"), chunks=(4, 2, 3), maxshape=(None, None, None))
        file.create_dataset("f", (20, 6), "<f8", chunks=(2, 6), fillvalue=3)
        file["f"][4:8] = 1
    return Path(path).read_bytes()


def mutant(rng, seed):
    broken = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(broken)), rng.random()
        if kind < 0.7:
            broken[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        elif kind < 0.8:
            del broken[max(1, at) :]
        elif kind < 0.9:
            broken[at : at + 8] = bytes([rng.randrange(256)]) * min(8, len(broken) - at)
        else:
            other, n = rng.randrange(len(broken)), rng.randint(1, 16)
            broken[at : at + n] = broken[other : other + n][: len(broken) - at]
    return bytes(broken)


def read(path, key):
    """The first rows as memload reads them, or None after an error that is as it should be."""
    try:
        fields = memload.open(path, key=None if key == "a" else key).fields  # without one, all are looked at
        if key not in fields:
            return None  # its name was damaged
        field = fields[key]
        rows = min(field.rows, 100, MOST_READ // max(1, field.row_bytes))
        return field.gather(np.arange(rows)).numpy() if rows else None
    except (memload.MemloadError, KeyError, ValueError) as error:
        if str(path) not in str(error):
            raise RuntimeError("an error that does not name the file") from error
        return None


def expected(path, key, rows):
    try:
        with h5py.File(path) as file:
            array = file[key][:rows]
        return array.astype(array.dtype.newbyteorder("="))
    except Exception:  # whatever h5py says of it
        return None


def main(folder, first, count, seconds):
    warnings.simplefilter("ignore")
    # Only the newer format has checksums for its metadata: of the older one, HDF5 finds a chunk or misses it by the way
    # that it takes to it.
    kinds = [("latest", 0, True), ("latest", 512, True), ("earliest", 0, False), ("earliest", 512, False)]
    seeds = [(sound(folder / "sound.h5", libver, block), exact) for libver, block, exact in kinds]
    until, path, same = time.monotonic() + seconds, folder / "mutant.h5", 0
    for number in range(first, first + count):
        if time.monotonic() > until:
            break
        print(number, flush=True)
        rng = random.Random(number)
        seed, exact = rng.choice(seeds)
        path.write_bytes(mutant(rng, seed))
        for key in KEYS:
            begin = time.process_time()  # which a busy machine does not lengthen
            found = read(path, key)
            assert time.process_time() - begin < MOST_SECONDS, f"mutant {number}, {key}: too slow"
            theirs = expected(path, key, len(found)) if exact and found is not None else None
            if theirs is not None:
                assert found.tobytes() == theirs.tobytes(), f"mutant {number}, {key}: other bytes than h5py's"
                same += 1
    # Not ru_maxrss, which begins with what the process that forked this one held.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    assert peak < MOST_MEMORY, f"{peak} bytes of memory"
    print("read alike:", same)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
