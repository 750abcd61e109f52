"""What torch's own DataLoader takes in RAM for the same batches: workers x prefetch x batch, and the processes.

A worker copies samples (as h5py, numpy and a cast to float32 do), stacks them in shared memory, and sends the batch's
name. The main process asks for ``workers * prefetch_factor`` batches when it starts and for one more with each that
it hands out, so that many lie ready while the loop holds one more.
"""

from __future__ import annotations

from memload.planning.account import Line

WORKER_BYTES = 9_000_000
"""Private memory of a forked worker with a small dataset: measured as Pss_Anon of a loop with 2 and 4 workers over one
without, per worker, at 8.4 to 8.7 MB (Python 3.11, torch 2.13). It grows with what the dataset holds in Python objects,
whose reference counts a worker writes to. Workers that are spawned take what a whole process takes."""

SAMPLES = 2
"""Batches of samples in a worker: those of which it stacks one, and what the C library keeps of the last. Measured at
1.5 to 2.6 (rows of 2.2 MB, batches of 9 and 17 MB)."""

DEFAULT_PREFETCH = 2
"""What torch sets where the user gives no prefetch_factor."""


def stock_lines(batch_bytes: int, workers: int, prefetch_factor: int | None) -> tuple[Line, ...]:
    """Return what the stock loader takes beside the process that runs the loop.

    Args:
        batch_bytes: of one batch as the loop gets it.
        workers: its num_workers.
        prefetch_factor: batches that each worker makes ahead; None: torch's default.
    """
    if not workers:
        return (
            Line("batches", 2 * batch_bytes, "the one that the loop holds, and the next"),
            Line("samples", batch_bytes, "copies, of which a batch is stacked"),
        )
    ahead = workers * (prefetch_factor or DEFAULT_PREFETCH)
    return (
        Line("batches", (ahead + 1) * batch_bytes, f"{workers} workers x {ahead // workers}, and one in the loop"),
        Line("samples", SAMPLES * workers * batch_bytes, "copies, of which workers stack batches, and their heaps"),
        Line("worker processes", workers * WORKER_BYTES, f"{workers}, forked"),
    )
