"""Shards of 128 MiB on their way to a store, in pieces: they arrive whole, and the writer needs little memory."""

import subprocess
import sys

import numpy as np
import pytest

import memload

MOST_MEMORY = 96 << 20
"""Bytes that docs/parallel-writing.md states for shards on their way."""
ROWS, SHARD = 300, 128 << 20
WRITER = """
import sys
import numpy as np
import memload

def memory(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))

def rows():
    for k in range(int(sys.argv[2])):
        yield {"x": np.random.default_rng(k).integers(0, 256, 1 << 20, dtype=np.uint8)}

memload.write_part(sys.argv[1] + "-small", {"x": np.zeros((4, 9))}, part=0, parts=1)  # what any writer needs
before = memory("VmRSS")
memload.write_part(sys.argv[1], rows(), part=0, parts=1, shard_bytes=int(sys.argv[3]))
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("uploads")
def test_large_shards_go_in_pieces_from_little_memory_and_arrive_whole(store, tmp_path):
    store.proxy.once = ("partNumber=5|comp=block&", "half")
    program = [sys.executable, "-c", WRITER, store.url("large"), str(ROWS), str(SHARD)]
    took = int(subprocess.run(program, stdout=subprocess.PIPE, check=True, text=True).stdout)
    assert store.server.unfinished() == 0
    assert sum("partNumber=" in path or "comp=block&" in path for path, _ in store.proxy.requests) >= ROWS >> 3
    assert memload.seal(store.url("large")).fields["x"].rows == ROWS
    for name in store.server.keys("large"):
        (tmp_path / name).write_bytes(store.server.get(f"large/{name}"))
        store.server.delete(f"large/{name}")  # it is in memory
    sizes = sorted(path.stat().st_size for path in tmp_path.glob("shard-*"))
    assert sizes[1:] == [SHARD + 4096] * 2  # and a header
    memload.verify(tmp_path)
    ds = memload.open(tmp_path)
    for k in (0, 127, 128, ROWS - 1):
        assert np.array_equal(ds[k]["x"].numpy(), np.random.default_rng(k).integers(0, 256, 1 << 20, dtype=np.uint8))
    assert took <= MOST_MEMORY
