"""What does `next()` cost where nothing has to be waited for: how many microseconds a batch, with 1, 2 and 8 fields?

All batches of a pass lie ready before the first is taken, so that what is timed is the loop's own thread: it takes the
slot over, makes its tensors and the dict or list around them, and ends the batch before. Fields have rows of one byte,
in dicts (`memload.from_arrays`) and in tuples (`TensorDataset`). Beside it stands what torch itself takes to make as
many tensors of memory that is there (`torch.frombuffer`), in a dict or list, in the same round.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from harness import Bench, arguments

import memload
from memload.cli.measure import Spread, ratio

FIELDS = (1, 2, 8)
ROWS = 64  # of a batch
BATCHES = 1000  # of which the first is not timed


def loader_over(fields: int, container: str, batches: int) -> memload.FastLoader[Any]:
    """A loader that gathers the whole pass ahead."""
    columns = {f"field{k}": torch.zeros(batches * ROWS, 1, dtype=torch.uint8) for k in range(fields)}
    dataset = memload.from_arrays(**columns)
    if container == "tuple":
        dataset = torch.utils.data.TensorDataset(*columns.values())
    return memload.FastLoader(dataset, ROWS, depth=batches)


def seconds_of_next(loader: memload.FastLoader[Any]) -> float:
    """Seconds of one `next()`, with every batch of the pass ready; the batch before ends in it, as in a loop."""
    batches = iter(loader)
    batch = next(batches)
    stopped = time.perf_counter() + 60
    while loader.stats().gather_seconds == 0 or not all_ready(loader, len(loader)):
        if time.perf_counter() > stopped:
            raise RuntimeError("the batches of a pass were not ready within a minute")
        time.sleep(0.01)
    gc.collect()
    count = len(loader) - 1
    begin = time.perf_counter()
    for _ in range(count):
        batch = next(batches)
    seconds = (time.perf_counter() - begin) / count
    del batch
    batches.close()
    return seconds


def all_ready(loader: memload.FastLoader[Any], batches: int) -> bool:
    """Whether the threads have nothing left to gather: the time that they spent stands still."""
    before = loader.stats().gather_seconds
    time.sleep(0.05)
    return batches > 0 and loader.stats().gather_seconds == before


def seconds_of_floor(fields: int, container: str, batches: int) -> float:
    """Seconds of making the tensors of one batch of memory that is there, and the container around them."""
    memory = bytearray(ROWS)
    names = [f"field{k}" for k in range(fields)]
    gc.collect()
    begin = time.perf_counter()
    for _ in range(batches):
        tensors = [torch.frombuffer(memory, dtype=torch.uint8) for _ in names]
        batch = tensors if container == "tuple" else dict(zip(names, tensors, strict=True))
    seconds = (time.perf_counter() - begin) / batches
    del batch
    return seconds


def measure(bench: Bench, fields: int, container: str, batches: int) -> None:
    """One line: microseconds with their spread, and how they compare with the floor."""
    loader = loader_over(fields, container, batches)
    taken, least = [], []
    for _ in range(bench.rounds):
        taken.append(1e6 * seconds_of_next(loader))
        least.append(1e6 * seconds_of_floor(fields, container, batches))
    spread, floor, against = Spread.of(taken), Spread.of(least), ratio(taken, least)
    text = (
        f"{spread.median:.1f} us ({spread.low:.1f} to {spread.high:.1f}), {against.median:.1f} times "
        f"{floor.median:.1f} us of tensors and container alone"
    )
    bench.add(f"{fields} {container}", text, microseconds=spread, floor=floor, of_floor=against)


def main() -> None:
    parser = arguments("what next() costs where every batch is ready", rounds=9, default=())
    bench = Bench(parser.parse_args())
    with bench.cases():
        for container in ("dict", "tuple"):
            for fields in FIELDS:
                measure(bench, fields, container, 50 if bench.args.quick else BATCHES)


if __name__ == "__main__":
    main()
