"""Which share of what pinned copies can reach does the loader's way to the GPU reach, by size of batch?

The rows lie in a table that is small enough for the CPU's cache, so that gathering is no limit; nothing is cast. The
ceiling is the best of plain loops of asynchronous copies of the same size, from 1, 2 and 4 pinned buffers. Beside it
stands what a copy from memory that is not pinned reaches, as `.to("cuda")` of an ordinary batch does.
"""

from __future__ import annotations

import torch
from gpu_common import MB, GpuBench, best_copy_seconds, clocked, gpu_arguments
from gpu_data import compare

import memload
from memload.cli.measure import Spread, in_turn, ratio
from memload.memory.budget import default_threads

MEGABYTES = (1, 4, 16, 64, 256)
ROWS = 64  # of a batch
STORED = 4  # rows, of which batches are made: 16 MB for the largest
EPOCH_BYTES = 4 << 30  # 80 ms at the bus's full width, beside which the millisecond is small in which a pass begins


def loader_of(nbytes: int, device: torch.device, batches: int) -> memload.FastLoader[torch.Tensor]:
    table = torch.randint(0, 256, (STORED, nbytes // ROWS), dtype=torch.uint8)
    rows = memload.from_arrays(x=table).only("x").select(torch.arange(STORED).repeat(ROWS // STORED * batches))
    return memload.FastLoader(rows, ROWS, device=device, num_workers=default_threads(), persistent_workers=True)


def through(loader: memload.FastLoader[torch.Tensor]) -> None:
    for _ in loader:
        pass


def measure(bench: GpuBench, nbytes: int) -> None:
    batches = 4 if bench.args.quick else max(8, EPOCH_BYTES // nbytes)
    loader = loader_of(nbytes, bench.device, batches)
    expected = next(iter(memload.FastLoader(loader.dataset, ROWS)))
    ordinary = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    compare(({"x": x} for x in loader), ({"x": expected} for _ in range(batches)), bench.device)
    times = in_turn(
        {
            "loader": lambda: clocked(lambda: through(loader), bench.device) / batches,
            "plain": lambda: best_copy_seconds(nbytes, bench.device, batches),
            "ordinary": lambda: clocked(lambda: [ordinary.to(bench.device) for _ in range(4)], bench.device) / 4,
        },
        bench.rounds,
    )
    rates = {name: Spread.of(nbytes / seconds / 1e9 for seconds in found) for name, found in times.items()}
    case = f"{nbytes / MB:g} MB"
    share = ratio(times["plain"], times["loader"])
    bench.judge(case, "the loader's copies, share of a plain loop's", share, 0.97, gb_per_s=rates)
    bench.judge(case, "GB/s of plain pinned copies", rates["plain"], None)
    bench.judge(case, "GB/s of copies from ordinary memory", rates["ordinary"], None)


def main() -> None:
    bench = GpuBench(gpu_arguments("pinned copies", rounds=5).parse_args())
    for megabytes in (0.25,) if bench.args.quick else MEGABYTES:
        bench.attempt(f"{megabytes:g} MB", measure, bench, int(megabytes * MB))
    bench.save()
    bench.end()


if __name__ == "__main__":
    main()
